/*
 * How a command says that it did not do what was asked: one line on standard error, and an exit
 * code of sysexits.h.
 *
 *	64 usage         an unknown command or option, a value that makes no sense
 *	65 refused       the state machine, the record of migrations or the data's type says no
 *	66 no such run
 *	69 unavailable   no connection, or not to a server that can do this
 *	70 software      the server or this program does what it should not
 *	71 system        no memory, no random numbers
 *	74 output        standard output cannot be written
 *	75 temporary     the same command may work in a moment
 *	76 lease lost    exec alone (worker.h, with 126 and 127)
 *	77 no permission
 *	78 configuration the file, or the schema in the database, is not what is needed
 *
 * Promises: the line is safe on a terminal. Must never: exit, write to standard output.
 */
#ifndef LEASE_CLI_FAILURE_H
#define LEASE_CLI_FAILURE_H

#include <libpq-fe.h>
#include <sysexits.h>

#include "lease.h"

/* Writes "leasectl: …" and returns exit_code. */
int fail(int exit_code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A line that is no failure, beside the answer: "leasectl: …". */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* An error of liblease, with what to do about it; `what` is what was tried. */
int fail_with_error(const char *what, const struct lease_error *error);

/* The exit code for an error of liblease. */
int exit_code_for(const struct lease_error *error);

/* A failed result as an error of liblease would be: code, SQLSTATE and message. */
struct lease_error error_from_result(const PGconn *conn, const PGresult *result);

#endif
