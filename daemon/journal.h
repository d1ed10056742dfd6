/*
 * What the daemon tells: to the journal with fields, or as one readable line on stderr.
 *
 * Promises: each kind of message has a MESSAGE_ID and a priority of its own, listed in one table
 * (journal_event_id); nothing that a database or a user wrote can break a line or reach a terminal
 * as a control character; a reader of stderr that has stopped reading never holds up the daemon;
 * a storm of closed attempts becomes a few lines a second.
 *
 * Must never: hold a fact that is not in the tables, print a secret (callers pass none), or fail
 * the work because a line could not be written. The one that may hold it up is journald, if that
 * hangs: sd_journal_sendv waits for it.
 */
#ifndef LEASE_DAEMON_JOURNAL_H
#define LEASE_DAEMON_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "lease.h"

enum journal_event {
	JOURNAL_START_REFUSED, /* the daemon cannot begin: configuration, memory */
	JOURNAL_STARTED,
	JOURNAL_STOPPED,
	JOURNAL_RELOADED,
	JOURNAL_RELOAD_REFUSED,
	JOURNAL_CONNECTED,
	JOURNAL_CONNECT_FAILED,
	JOURNAL_UNREACHABLE, /* said again and again, slowly */
	JOURNAL_CONNECTION_LOST,
	JOURNAL_READ_ONLY, /* a standby or read-only server: the next host is tried */
	JOURNAL_SWEEP_FAILED,
	JOURNAL_SWEEP_FAILING, /* said again and again, slowly */
	JOURNAL_SWEEP_RECOVERED,
	JOURNAL_ATTEMPT_CLOSED,
	JOURNAL_RUN_MOVED, /* a run without an open attempt */
	JOURNAL_ATTEMPTS_CLOSED, /* the summary of those not told singly */
	JOURNAL_RUN_SKIPPED,
	JOURNAL_AMNESTY, /* the database was away: leases hold on */
	JOURNAL_CLOCK_JUMPED,
	JOURNAL_SHORT_LEASES, /* shorter than the amnesty can protect */
	JOURNAL_PASS,
	JOURNAL_SERVER_NOTICE,
	JOURNAL_DATABASE_REMOVED,
	JOURNAL_WATCHDOG_WITHHELD,
	JOURNAL_METRICS_FAILED, /* the file; said once */
	JOURNAL_METRICS_RECOVERED,
	JOURNAL_EVENTS, /* how many there are */
};

/* The MESSAGE_ID (32 hexadecimal digits) and the name of an event: the same in all versions. */
const char *journal_event_id(enum journal_event event);
const char *journal_event_name(enum journal_event event);

/* Fields beside MESSAGE, MESSAGE_ID and PRIORITY. NULL, "", 0, LEASE_TIME_NONE: not there. */
struct journal_fields {
	const char *database;
	const char *sqlstate;
	const char *run_id;
	int32_t attempt_no;
	const char *owner;
	const char *outcome;
	const char *run_status;
	const char *error_code;
	int64_t lease_expires_at; /* microseconds since 1970-01-01 UTC, the database's clock */
	int64_t detection_lag; /* microseconds; LEASE_TIME_NONE when there is none */
};

struct journal {
	bool to_journal;
	int level;
	int closed_per_second;
	int64_t second; /* of the monotonic clock: when the budget for single lines began */
	int in_second;
	int64_t lost; /* lines that nobody would read */
};

/* Chooses the target by $JOURNAL_STREAM (systemd.exec(5)); NULL means the defaults. Again at will. */
void journal_open(struct journal *journal, const struct config_log *log);

/* Control characters and what is not UTF-8 are escaped; too long a text is cut. */
void journal_write(struct journal *journal, enum journal_event event,
		   const struct journal_fields *fields, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* What became of runs that were not told singly, for one database. All zero: nothing. */
struct journal_summary {
	int64_t attempts;
	int64_t moved[LEASE_RUN_INTERRUPTED + 1];
	int64_t skipped;
	int64_t lag_max;
};

/*
 * Tell of one run that the reconciler wrote to or passed over; false: there were too many in this
 * second, it was added to the summary instead, to be written within a second.
 */
bool journal_closed(struct journal *journal, const char *database,
		    const struct lease_closed *closed, struct journal_summary *summary);
bool journal_skipped(struct journal *journal, const char *database,
		     const struct lease_skipped *skipped, struct journal_summary *summary);

/* Writes it, if there is anything in it, and zeroes it. */
void journal_summarize(struct journal *journal, const char *database,
		       struct journal_summary *summary);

/* Microseconds of CLOCK_MONOTONIC: what all of the daemon counts time by. */
int64_t monotonic_now(void);

/* "4 ms", "12 s", "3 min", "2 h 5 min": a duration in microseconds, for people. */
#define DURATION_SIZE 32
const char *duration_text(int64_t duration, char buffer[DURATION_SIZE]);

/* One line out of a message of several: runs of blanks and line breaks become one blank. */
void make_one_line(char *text);

/*
 * Copies as much of `from` as there is room for, whole characters only; what is no UTF-8 and
 * control characters become \xNN.
 */
void escape_text(char *to, size_t size, const char *from);

#endif
