/*
 * txn.h - one transaction on one or many runs: lock, look, decide, apply.
 *
 * 1. lock the rows of the runs, in order of run_id; 2. look, in a second statement and so in a
 * snapshot newer than the locks; 3. decide, by lease_decide in machine.c; 4. apply, by statements
 * over arrays that repeat their guards, and commit. Locking and looking are one round trip,
 * applying and committing the second. The same code serves one run and five hundred.
 *
 * A resumable object: an operation for the pump in pipeline.h. It never decides from rows that it
 * read before the lock, and never writes but through these four steps.
 */
#ifndef LEASE_TXN_H
#define LEASE_TXN_H

#include "machine.h"
#include "pipeline.h"

struct txn_item {
	struct lease_command command;
	/* set by the transaction */
	bool locked; /* false: somebody else has it, or there is no such run */
	struct lease_facts facts; /* its strings live until txn_done */
	struct lease_decision decision;
	bool applied; /* the decision's writes took place; false: a guard did not hold */
	int64_t state_version; /* the run's, afterwards */
	int64_t node_version; /* the node's state_version, afterwards */
	/* of the attempt that was opened, refreshed or closed, or of another fact written */
	int64_t now; /* database time of the write */
	int64_t lease_expires_at, deadline_at, cancel_requested_at;
};

enum txn_lock {
	TXN_LOCK, /* wait for locked rows, up to lock_timeout */
	TXN_LOCK_SKIP, /* pass over them */
	TXN_LOCK_NEXT, /* one item: take the next run that is due; fills in command.run_id */
	TXN_LOOK, /* lock nothing, decide, write nothing: why was it refused? */
};

struct txn {
	enum txn_lock lock;
	int64_t statement_timeout, lock_timeout;
	const char *tenant_id; /* TXN_LOCK_NEXT; NULL: any */
	bool take_over; /* TXN_LOCK_NEXT: running runs without an open attempt, too */
	const char *notify; /* lease.notify for this transaction; NULL: as it is set */
	/* the caller's, sorted by run_id, each run once; commands about nodes and checkpoints alone */
	struct txn_item *items;
	size_t n;
	int64_t look_took; /* set by TXN_LOCK_SKIP: what lock and look took the server */
	/* its own */
	int step;
	int64_t began_at; /* at the server: monotonic time of its answer to that */
	PGresult *looked, *looked_node, *next_run;
	int role[BATCH_STATEMENTS]; /* what each statement of the batch is */
	size_t *position[3]; /* items of each kind of array statement, in its order */
	size_t n_position[3];
};

/* What the reconciler asks of a run, by the policy in `options`. */
struct lease_command txn_reconcile_command(const struct lease_sweep_options *options,
					   const char *run_id);
/* What that came to, or, where it was not applied, would have. Strings are the item's. */
struct lease_closed txn_closed(const struct txn_item *item);

/* `txn` holds lock, timeouts, items and n; the rest is zero. */
struct operation txn_operation(struct txn *txn);
/* Which statement of the failed batch writes attempts and runs. */
bool txn_is_applying(const struct txn *txn);
void txn_done(struct txn *txn);

#endif
