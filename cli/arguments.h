/*
 * The command line: which command, its options and words, and the texts of --help.
 *
 * Promises: what is wrong is told in one line on standard error that names it; nothing is
 * abbreviated, guessed or ignored. Options may stand before, between and after the words; "--" ends
 * them.
 */
#ifndef LEASE_CLI_ARGUMENTS_H
#define LEASE_CLI_ARGUMENTS_H

#include "command.h"

enum { ARGUMENTS_RUN = -1 };

/*
 * Reads the command line. ARGUMENTS_RUN: *ret is filled, run its command. Otherwise the exit code:
 * help or version was asked for and written (0), or something is wrong (64). `commands` ends with
 * NULL.
 */
int arguments_parse(int argc, char **argv, const struct command *const *commands,
		    struct context *ret);

/* Frees what arguments_parse allocated. */
void arguments_done(struct context *context);

#endif
