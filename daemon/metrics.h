/*
 * Figures for monitoring: counters of what the daemon did, and what is so now, as one text file in
 * Prometheus' format, for node_exporter's textfile collector. There is no open port.
 *
 * Promises: a reader sees the whole of an old file or the whole of a new one; counting is a few
 * additions in memory; whatever SQLSTATEs a server invents, the series of a database stay few; a
 * file that cannot be written is told of once, and nothing else suffers.
 *
 * Must never: hold up a sweep for longer than writing a small file takes, count a thing twice, or
 * hold a fact that is not in the tables.
 */
#ifndef LEASE_DAEMON_METRICS_H
#define LEASE_DAEMON_METRICS_H

#include <ev.h>
#include <stdio.h>

#include "journal.h"
#include "lease.h"

/* The counters of one database, known by its name. */
struct metrics_counters;

/* What is so now, of one database that is swept. */
struct metrics_sample {
	const struct metrics_counters *counters;
	bool up; /* connected to a server that can be written to */
	bool scanned; /* the figures of the last scan mean something */
	struct lease_sweep_figures sweep;
	int64_t expired; /* leases that are over and not closed */
	int64_t oldest_unclosed; /* microseconds; -1: not known */
};

struct metrics_source {
	/* Fills at most `size` samples. Returns how many there are. */
	size_t (*measure)(void *arg, struct metrics_sample *samples, size_t size);
	void *arg;
};

struct metrics {
	struct ev_loop *loop;
	struct journal *journal;
	struct metrics_source source;
	struct metrics_counters *counters; /* a list */
	int64_t started_at; /* microseconds since 1970-01-01 UTC, this machine's clock */
	const char *path; /* NULL: no file is wanted */
	ev_timer timer;
	bool failing; /* the last file could not be written, which was told */
};

void metrics_init(struct metrics *metrics, struct ev_loop *loop, struct journal *journal,
		  struct metrics_source source);
/*
 * From now on the file at `path` (NULL: none) is written every `interval`, for the first time when
 * the loop goes on. A file at another path before is removed. The path stays the caller's, and has to
 * be there until the next call or metrics_stop.
 */
void metrics_configure(struct metrics *metrics, const char *path, int64_t interval);
/* Writes the last file: counters alone, because nothing is known from now on. */
void metrics_stop(struct metrics *metrics);

/*
 * The counters of this name, made if need be; they count on while anybody holds them. NULL: out of
 * memory. metrics_leave: NULL is fine.
 */
struct metrics_counters *metrics_join(struct metrics *metrics, const char *database);
void metrics_leave(struct metrics *metrics, struct metrics_counters *counters);

/* `n` scans came to their end, the last one just now. */
void metrics_count_sweeps(struct metrics_counters *counters, int64_t n);
/* A connection or an operation failed; "": without a SQLSTATE. */
void metrics_count_failure(struct metrics_counters *counters, const char *sqlstate);
void metrics_count_closed(struct metrics_counters *counters, const struct lease_closed *closed);
void metrics_count_skipped(struct metrics_counters *counters);
void metrics_count_connection(struct metrics_counters *counters);
void metrics_count_amnesty(struct metrics_counters *counters);
void metrics_count_clock_jump(struct metrics_counters *counters);

/* Writes all of it; `now` false: counters alone. */
void metrics_render(struct metrics *metrics, FILE *file, bool now);

#endif
