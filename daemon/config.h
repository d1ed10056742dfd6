/*
 * The daemon's configuration: a strict YAML file becomes one immutable struct config.
 *
 * Promises: a file is taken whole or refused whole; the first fault is reported as one line,
 * "file:line:column: key: what is wrong, what is allowed"; no secret is ever part of that line or
 * of what config_print writes.
 *
 * Must never: log, exit, keep global state, open a connection, or change a struct config that was
 * handed out. A reload loads a second one and swaps.
 */
#ifndef LEASE_DAEMON_CONFIG_H
#define LEASE_DAEMON_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Negative errors; negated, they are the exit codes of sysexits.h. */
enum {
	CONFIG_E_NOINPUT = -66, /* the file cannot be opened or read, or is not a regular file */
	CONFIG_E_MEMORY = -71, /* out of memory */
	CONFIG_E_CONTENT = -78, /* the file was read, and what it says is refused */
};

/* The largest file that is read, and the most databases it may name. */
#define CONFIG_SIZE_MAX ((size_t)1024 * 1024)
#define CONFIG_DATABASES_MAX ((size_t)1000)

struct config_error {
	int code; /* CONFIG_E_… */
	unsigned line; /* from 1; 0 when the fault has no place in the file */
	unsigned column; /* from 1, in characters; 0 likewise */
	char message[1280];
};

/* What happens to a run whose lease was lost. */
enum config_policy {
	CONFIG_POLICY_RECORD,
	CONFIG_POLICY_FAIL,
	CONFIG_POLICY_REQUEUE,
};

enum config_log_target {
	CONFIG_LOG_AUTO,
	CONFIG_LOG_JOURNAL,
	CONFIG_LOG_STDERR,
};

/* The numbers are the priorities of syslog(3), which journald takes as they are. */
enum config_log_level {
	CONFIG_LOG_ERROR = 3,
	CONFIG_LOG_WARNING = 4,
	CONFIG_LOG_NOTICE = 5,
	CONFIG_LOG_INFO = 6,
	CONFIG_LOG_DEBUG = 7,
};

/* What a database may set for itself. All durations are microseconds, here and below. */
struct config_sweep {
	int64_t interval_us;
	int64_t orphan_interval_us;
	int64_t statement_timeout_us;
	int64_t lock_timeout_us;
	int batch_size;
	int max_lease_losses; /* 0: no limit; always 0 unless policy is requeue */
	enum config_policy policy;
	int notify; /* 0 or 1 */
	int amnesty; /* 0 or 1 */
	int64_t amnesty_after_us, amnesty_grace_us, max_clock_jump_us;
};

struct config_log {
	enum config_log_target target;
	enum config_log_level level;
	int closed_attempts_per_second;
};

struct config_database {
	char *name;
	char *conninfo; /* may hold a password: for libpq's eyes only */
	char *conninfo_shown; /* the same with every secret masked: for messages */
	char *password_file; /* effective absolute path, or NULL */
	struct config_sweep sweep; /* effective: own values, else those of the file's top level */
};

struct config {
	struct config_sweep sweep;
	int64_t connect_timeout_us;
	int64_t network_timeout_us;
	int64_t reconnect_min_us;
	int64_t reconnect_max_us;
	int scan_page;
	int due_limit;
	struct config_log log;
	char *metrics_file; /* absolute path, or NULL: none is written */
	int64_t metrics_interval_us;
	struct config_database *databases; /* in the file's order, at least one */
	size_t databases_count;
};

/*
 * Reads and checks the file at path. Returns 0 and a configuration in *ret that the caller frees
 * with config_free, or CONFIG_E_… with *reterr filled and *ret untouched. Never blocks on a FIFO
 * or a device: only regular files are read.
 */
int config_load(const char *path, struct config **ret, struct config_error *reterr);

/*
 * The same for a text in memory that need not end with a NUL byte. name stands for the file in
 * messages. world_readable says that anybody on the machine can read the text: then a password
 * within conninfo is refused. Reads the environment variable CREDENTIALS_DIRECTORY
 * (systemd.exec(5), LoadCredential=) where a password_file asks for it.
 */
int config_parse(const char *name, const char *text, size_t length, bool world_readable,
		 struct config **ret, struct config_error *reterr);

/* Frees the configuration and all strings within. NULL is fine. */
void config_free(struct config *config);

/*
 * Writes the effective configuration as YAML, each database with all its effective values, secrets
 * masked. What it writes can be loaded again, but for masked secrets. Look at ferror(file) after.
 */
void config_print(FILE *file, const struct config *config);

/* The names of all known keys, for checks of documentation: NULL when index is past the last. */
const char *config_key_name(size_t index);

#endif
