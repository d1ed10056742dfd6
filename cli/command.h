/*
 * What a command is: a row of the table in commands.c with its options and a function.
 *
 * To add one: write its file with a `const struct command command_NAME`, declare it below, and name
 * it in the table of commands.c; parsing, checks, `--help` and the list of commands follow from there.
 */
#ifndef LEASE_CLI_COMMAND_H
#define LEASE_CLI_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "connection.h"
#include "output.h"

#define COMMAND_OPTIONS_MAX 16

enum option_kind {
	OPTION_FLAG, /* takes no value */
	OPTION_TEXT, /* any text */
	OPTION_SECRET, /* a text that may hold a password: taken out of the process's title */
	OPTION_DURATION, /* 30s, 1.5m; in microseconds, not negative */
	OPTION_NUMBER, /* a whole number from 1 */
};

struct option {
	const char *name; /* without the dashes */
	char letter; /* 0: none */
	enum option_kind kind;
	const char *argument; /* what the help calls the value; NULL for a flag */
	const char *help;
};

struct option_value {
	bool given;
	const char *text;
	int64_t number; /* OPTION_DURATION, OPTION_NUMBER */
};

struct context;

struct command {
	const char *name;
	const char *summary; /* one line, for the list of commands */
	const char *words; /* what stands for the words after the options: "RUN"; NULL: none */
	int min_words, max_words;
	const char *description; /* lines for --help */
	const struct option *options;
	size_t n_options; /* at most COMMAND_OPTIONS_MAX */
	/* Returns 0 or an exit code of sysexits.h, after one line on standard error. */
	int (*run)(struct context *context);
};

/* One call of a command. */
struct context {
	const struct command *command;
	struct option_value values[COMMAND_OPTIONS_MAX]; /* by the index in command->options */
	char **words;
	int n_words;
	struct connection_source source;
	struct output output;
};

extern const struct command *const command_table[]; /* ends with NULL */

extern const struct command command_migrate;
extern const struct command command_status;
extern const struct command command_history;
extern const struct command command_submit;
extern const struct command command_cancel;
extern const struct command command_resume;
extern const struct command command_explain;
extern const struct command command_content;
extern const struct command command_events;
extern const struct command command_exec;
extern const struct command command_work;
extern const struct command command_release;
extern const struct command command_runs;
extern const struct command command_sweep;
extern const struct command command_audit;
extern const struct command command_archive;

#endif
