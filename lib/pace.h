/*
 * pace.h - how many runs the sweep takes in one transaction.
 *
 * Their rows stay locked until the commit, so what a transaction may take is a time, and how much
 * goes into it depends on the server. A new connection begins with an eighth of `limit`, since its
 * server process does everything for the first time, which takes twice to three times as long. Each
 * transaction takes up to twice as many as the one before, as long as lock and look take no longer
 * than they may.
 *
 * Counted is what locking and looking take the server, about two fifths of all that it does in the
 * transaction. Neither a slow network nor a slow disk makes transactions small, which would only
 * slow the sweep down (docs/decisions/0009).
 */
#ifndef LEASE_PACE_H
#define LEASE_PACE_H

#include <stddef.h>
#include <stdint.h>

#define PACE_LEAST 25 /* with fewer, more transactions would cost more than they give */
#define PACE_LOOK INT64_C(8000) /* what locking and looking may take, microseconds */

struct pace {
	size_t limit; /* the most in one transaction: batch_size */
	size_t runs; /* for the next transaction */
};

/* A new connection. */
void pace_reset(struct pace *pace);
void pace_set_limit(struct pace *pace, size_t limit);
/* So many runs were locked and looked at, which took the server so many microseconds. */
void pace_note(struct pace *pace, size_t runs, int64_t took);

#endif
