/*
 * A worker that runs commands under leases: `leasectl exec` with one, `leasectl work` with many.
 *
 * Each command has a guard of its own, which acts in time on the lease's end (guard.h); here is
 * what may wait for the database: claiming, renewing all leases in one statement, and ending each
 * run by how its command ended. Nothing is kept but what stands in the database.
 *
 * Promises: no command is started before its lease is granted, and a run is ended only after its
 * command and all that descends from it have ended. A renewal, an end or a release whose outcome is
 * not known is asked for again until the database has answered.
 */
#ifndef LEASE_CLI_WORKER_H
#define LEASE_CLI_WORKER_H

#include "command.h"

/* Exit codes of exec and work beside those of failure.h and the command's own. */
#define EXIT_LEASE_LOST 76
#define EXIT_CANNOT_EXECUTE 126
#define EXIT_NOT_FOUND 127

#define WORKER_JOBS_MAX 500

struct worker_options {
	char *const *argv; /* the command */
	const char *identity; /* the stable part of the owner */
	int64_t ttl, period; /* period <= ttl / 3 */
	int64_t grace; /* from SIGTERM to SIGKILL */
	int64_t retry_delay, retry_max; /* after exit code 75: the first delay and the longest */
	/* work alone */
	const char *tenant; /* NULL: any */
	int jobs; /* at a time */
	bool pending_only; /* no running runs without an open attempt */
	bool until_idle; /* end when no run is due and none is being worked on */
	int64_t idle; /* longest pause between two looks for a run that is due */
};

/* Runs the command under the lease of one run. The exit code: the command's, or why not. */
int worker_exec(struct context *context, const struct worker_options *options, const char *run_id);
/* Claims runs that are due, and runs the command for each, until a signal. */
int worker_work(struct context *context, const struct worker_options *options);

#endif
