/*
 * One database under the daemon's care: one libpq connection, one sweep, the watchers that drive
 * both, and what is known of the database while it is away.
 *
 * Promises: never blocks (but for the look-up of a host name that has no hostaddr, and a password
 * file on a slow disk); whatever is in flight has a deadline; a lost connection is rebuilt, host by
 * host, with growing pauses; one operation at a time is in flight; a failure is told once, and then
 * at a slow rhythm.
 *
 * Must never: show a password, decide anything about a run (the library does), or touch another
 * database's connection.
 */
#ifndef LEASE_DAEMON_DATABASE_H
#define LEASE_DAEMON_DATABASE_H

#include <ev.h>
#include <stdio.h>

#include "config.h"
#include "journal.h"
#include "lease.h"
#include "metrics.h"

struct database;

/* What the databases of one daemon share. It outlives them. */
struct database_environment {
	struct ev_loop *loop;
	struct journal *journal;
	struct metrics *metrics;
	/* What database_describe or database_is_stopped say may be another now. Free nothing here. */
	void (*changed)(void *arg);
	void *arg;
};

/*
 * Whether libpq understands the connection string. 0, or -1 with one line in `message` that holds
 * nothing of the string but names of known keywords.
 */
int database_check_conninfo(const struct config_database *entry, char *message, size_t size);

/* Copies what it needs of the configuration. It begins to connect at once. NULL: out of memory. */
struct database *database_new(const struct database_environment *environment,
			      const struct config *config, const struct config_database *entry);

/* Whether `entry` names the same server, user and password file: database_apply is enough then. */
bool database_matches(const struct database *database, const struct config_database *entry);

/* New options, for what starts from now on. */
void database_apply(struct database *database, const struct config *config,
		    const struct config_database *entry);

/* Lets the transaction in flight end, then closes the connection; begins nothing more. */
void database_stop(struct database *database);
bool database_is_stopped(const struct database *database);

/* Closes the connection whatever is in flight: the server rolls it back. NULL is fine. */
void database_free(struct database *database);

const char *database_name(const struct database *database);
/* Connected to a server that can be written to, and the last operation went well. */
bool database_is_well(const struct database *database);
bool database_is_connected(const struct database *database);

/* For metrics. False: it is being let go and says nothing any more. */
bool database_measure(const struct database *database, struct metrics_sample *ret);

/* Writes a clause for STATUS=. True when it says something else as time goes by. */
bool database_describe(const struct database *database, FILE *file);

/*
 * How long this database has been late with what it should have done by itself, in microseconds;
 * 0: it is on time. It is on time as long as
 * - its timer is not over: the deadline of the connection attempt or of the answer that is out, the
 *   end of the pause between attempts, the next wake-up of the sweep, and a little patience; and
 * - while it is connected, something comes to its end: a pass, a run, or a failure that was handled.
 *   Half an hour and four intervals without any of these is late.
 */
int64_t database_lateness(const struct database *database);

/*
 * For `--once`: connects, host by host, and reconciles once, blocking. Runs the loop. 0 with
 * *ret_figures, or a negative enum lease_errno with one line in `message`.
 */
int database_reconcile_once(const struct database_environment *environment,
			    const struct config *config, const struct config_database *entry,
			    struct lease_sweep_figures *ret_figures, char *message, size_t size);

#endif
