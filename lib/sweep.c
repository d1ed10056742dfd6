/*
 * sweep.c - the reconciler of one database: what to do next on its connection, and when.
 *
 * A *pass* is one horizon scan, in pages by run_id. What a page lists goes into the due list: a
 * lease that is over is due at once, one that will end before the next scan at its end. Whatever
 * is due goes through lock-look-decide-apply in chunks before the next page is read, so that
 * memory stays bounded. Orphans and passed deadlines are listed by two scans of their own, and
 * treated alike: a list only says which runs to look at, the look under the lock decides.
 *
 * Nothing here writes but through txn.c, and nothing waits: the caller does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "due.h"
#include "facts.h"
#include "pace.h"
#include "sql.h"
#include "txn.h"

enum activity {
	IDLE,
	CHECKING,
	BEATING, /* the heartbeat */
	SCANNING, /* the next page of the open attempts, */
	SCANNING_ORPHANS, /* of the orphans, */
	SCANNING_DEADLINES, /* of the passed deadlines */
	CLOSING, /* a chunk */
};

/* A part of the chunk that stands alone, because the whole did not go through. */
struct range {
	size_t from, to;
};
#define RANGES 32 /* halving a chunk leaves at most its logarithm of parts waiting */

struct lease_sweep {
	struct lease_sweep_options options;
	struct lease_sweep_callbacks callbacks;
	struct lease_sweep_figures figures;
	bool once, stopping, checked;

	struct pump pump;
	enum activity activity; /* in flight */
	struct database_check check;
	struct exchange_state exchange; /* a scan's page, or a beat */

	/* scans */
	enum activity scan; /* the one under way, or IDLE */
	char cursor[LEASE_ID_MAX + 1];
	int page_size; /* of the page in flight: the option may change meanwhile */
	/*
	 * The numbers of the newest lists: of the horizon scan, odd, and the next odd one for what was
	 * over when it was listed; of orphans and deadlines, even.
	 */
	uint32_t pass_list, orphan_list;
	bool left_pages; /* in this pass, to another reconciler */
	int64_t page_sent_at, pass_began_at, scan_at, orphans_at;
	int64_t horizon, interval;
	struct lease_sweep_figures seen; /* what this pass has counted so far */
	int64_t shortest_ttl;

	/*
	 * Database time minus CLOCK_MONOTONIC. Each answer gives a lower bound, since it took time
	 * to arrive; the highest of a pass is the nearest, and none makes us wake up too early.
	 */
	int64_t clock_offset;
	bool clock_known;

	/* the heartbeat; monotonic times */
	int64_t beat_due_at, beat_retry_at, beat_sent_at;
	bool force_amnesty; /* with the next beat */
	/* bounds of database time minus CLOCK_MONOTONIC, from the last beat */
	int64_t offset_least, offset_most;
	bool offset_known;

	/* runs to look at */
	struct due due;
	struct due_entry *chunk;
	struct txn_item *items;
	size_t n_chunk, chunk_size; /* room for batch_size */
	bool chunk_is_whole; /* as many as a transaction takes at present */
	struct pace pace;
	struct range ranges[RANGES];
	int n_ranges;
	struct txn txn;

	/* after errors */
	int failures_in_a_row;
	int64_t retry_at;
	unsigned jitter;
};

#define RETRY_LOCKED (2 * LEASE_MILLISECOND)
#define RETRY_LOCKED_MAX (256 * LEASE_MILLISECOND)
#define RETRY_FAILED (100 * LEASE_MILLISECOND)
#define RETRY_FAILED_MAX (10 * LEASE_SECOND)
#define SCAN_SLACK (50 * LEASE_MILLISECOND)
#define SHORTEST_INTERVAL (20 * LEASE_MILLISECOND)
/* Scanning takes at most one part in so many of the time. */
#define SCAN_SHARE 20
/* Lists of a pass: numbers that its successor does not use. */
#define PASS_LISTS 4

static int64_t min64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Doubles with each try, up to a limit. */
static int64_t backoff(int64_t first, int64_t limit, int tries)
{
	for (int i = 0; i < tries && first < limit; i++)
		first *= 2;
	return min64(first, limit);
}

static unsigned next_random(struct lease_sweep *sweep)
{
	sweep->jitter = sweep->jitter * 1103515245u + 12345u;
	return sweep->jitter >> 8;
}

/* -- options ---------------------------------------------------------------------------------- */

void lease_sweep_options_init(struct lease_sweep_options *options)
{
	*options = (struct lease_sweep_options){
		.interval = 5 * LEASE_SECOND,
		.orphan_interval = 60 * LEASE_SECOND,
		.statement_timeout = 10 * LEASE_SECOND,
		.lock_timeout = 2 * LEASE_SECOND,
		.batch_size = 200,
		.scan_page = 5000,
		.due_limit = 10000,
		.policy = LEASE_POLICY_RECORD,
		.notify = true,
	};
}

static int check_options(const struct lease_sweep_options *o, struct lease_error *reterr)
{
	if (o->interval < LEASE_MILLISECOND || o->orphan_interval < LEASE_MILLISECOND ||
	    o->statement_timeout < LEASE_MILLISECOND || o->lock_timeout < LEASE_MILLISECOND)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "interval, orphan_interval, statement_timeout and "
				       "lock_timeout must be at least 1 ms");
	if (o->interval > LEASE_DURATION_MAX || o->orphan_interval > LEASE_DURATION_MAX ||
	    o->statement_timeout > LEASE_DURATION_MAX || o->lock_timeout > LEASE_DURATION_MAX)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "no duration may be longer than ten years");
	if (o->batch_size < 1 || o->batch_size > 100000 || o->scan_page < 1 ||
	    o->scan_page > 1000000 || o->due_limit < 1 || o->due_limit > 10000000)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "batch_size must be 1 to 100000, scan_page 1 to 1000000, "
				       "due_limit 1 to 10000000");
	if (o->amnesty_after != 0 && o->amnesty_after != LEASE_AMNESTY_OFF &&
	    (o->amnesty_after < LEASE_MILLISECOND || o->amnesty_after > LEASE_DURATION_MAX / 3 ||
	     o->amnesty_grace < 3 * o->amnesty_after || o->amnesty_grace > LEASE_DURATION_MAX))
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "amnesty_after must be at least 1 ms, and amnesty_grace at "
				       "least three times as long");
	if (o->max_clock_jump != 0 &&
	    (o->amnesty_after <= 0 || o->max_clock_jump < LEASE_MILLISECOND ||
	     o->max_clock_jump > LEASE_DURATION_MAX))
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "max_clock_jump must be at least 1 ms, and goes with an "
				       "amnesty only");
	if (o->policy < LEASE_POLICY_RECORD || o->policy > LEASE_POLICY_REQUEUE ||
	    o->max_lease_losses < 0)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "policy or max_lease_losses is out of range");
	return 0;
}

int lease_sweep_set_options(struct lease_sweep *sweep, const struct lease_sweep_options *options,
			    struct lease_error *reterr)
{
	int64_t now = clock_monotonic();
	int r = check_options(options, reterr);

	if (r < 0)
		return r;
	if (options->amnesty_after != sweep->options.amnesty_after ||
	    options->amnesty_grace != sweep->options.amnesty_grace)
		sweep->beat_due_at = 0;
	sweep->options = *options;
	pace_set_limit(&sweep->pace, (size_t)options->batch_size);
	/* a page must fit, or what it lists would be dropped and scanned again for ever */
	sweep->due.limit = (size_t)max64(options->due_limit, 2 * (int64_t)options->scan_page);
	sweep->scan_at = min64(sweep->scan_at, now + options->interval);
	sweep->orphans_at = min64(sweep->orphans_at, now + options->orphan_interval);
	return 0;
}

int lease_sweep_new(const struct lease_sweep_options *options,
		    const struct lease_sweep_callbacks *callbacks, struct lease_sweep **ret,
		    struct lease_error *reterr)
{
	struct lease_sweep *sweep = calloc(1, sizeof(*sweep));
	int r;

	if (!sweep)
		return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	sweep->due.known_until = INT64_MAX;
	r = lease_sweep_set_options(sweep, options, reterr);
	if (r < 0) {
		free(sweep);
		return r;
	}
	if (callbacks)
		sweep->callbacks = *callbacks;
	sweep->figures.oldest_expired_at = LEASE_TIME_NONE;
	sweep->figures.beat_at = sweep->figures.amnesty_until = LEASE_TIME_NONE;
	sweep->jitter = (unsigned)clock_monotonic();
	sweep->pass_list = 1;
	sweep->orphan_list = 2;
	lease_sweep_reset(sweep);
	*ret = sweep;
	return 0;
}

/* -- the chunk -------------------------------------------------------------------------------- */

static void drop_chunk(struct lease_sweep *sweep)
{
	for (size_t i = 0; i < sweep->n_chunk; i++)
		free(sweep->chunk[i].run_id);
	sweep->n_chunk = 0;
	sweep->n_ranges = 0;
}

/*
 * Without memory the due list knows that it knows nothing from then on, and the sweep scans again.
 * Puts a run back, to be looked at again: soon at first, then less and less often. It stays on the
 * list that it was on: the next scan of that kind replaces it.
 */
static void put_back(struct lease_sweep *sweep, const struct due_entry *entry, int64_t not_before)
{
	int64_t soon = clock_monotonic() + backoff(RETRY_LOCKED, RETRY_LOCKED_MAX, entry->tries);

	due_add(&sweep->due, entry->run_id, max64(soon, not_before), entry->tries + 1, entry->list);
}

static int by_run_id(const void *a, const void *b)
{
	return strcmp(((const struct due_entry *)a)->run_id, ((const struct due_entry *)b)->run_id);
}

/* Two scans may have listed a run. */
static void sort_chunk(struct lease_sweep *sweep)
{
	size_t kept = 0;

	qsort(sweep->chunk, sweep->n_chunk, sizeof(*sweep->chunk), by_run_id);
	for (size_t i = 0; i < sweep->n_chunk; i++) {
		if (kept > 0 && by_run_id(&sweep->chunk[kept - 1], &sweep->chunk[i]) == 0)
			free(sweep->chunk[i].run_id);
		else
			sweep->chunk[kept++] = sweep->chunk[i];
	}
	sweep->n_chunk = kept;
}

static bool size_chunk(struct lease_sweep *sweep)
{
	size_t size = (size_t)sweep->options.batch_size;

	if (sweep->chunk_size == size)
		return true;
	free(sweep->chunk);
	free(sweep->items);
	sweep->chunk = calloc(size, sizeof(*sweep->chunk));
	sweep->items = calloc(size, sizeof(*sweep->items));
	sweep->chunk_size = sweep->chunk && sweep->items ? size : 0;
	return sweep->chunk_size > 0;
}

/* Takes what is due now. False: there is no memory for it. */
static bool gather_chunk(struct lease_sweep *sweep, int64_t now)
{
	if (!size_chunk(sweep))
		return false;
	while (sweep->n_chunk < sweep->pace.runs && due_next(&sweep->due) <= now)
		due_take(&sweep->due, &sweep->chunk[sweep->n_chunk++]);
	sweep->chunk_is_whole = sweep->n_chunk == sweep->pace.runs;
	sort_chunk(sweep);
	sweep->ranges[0] = (struct range){ 0, sweep->n_chunk };
	sweep->n_ranges = 1;
	return true;
}

/*
 * Between two beats there are at most the statements of one transaction; together they must not
 * take so long that the next beat sees a gap.
 */
static int64_t cut_timeout(const struct lease_sweep_options *options, int64_t timeout, int part)
{
	if (options->amnesty_after <= 0)
		return timeout;
	return max64(min64(timeout, options->amnesty_after / part), LEASE_MILLISECOND);
}

/* The transaction for the range on top. */
static struct operation begin_range(struct lease_sweep *sweep)
{
	const struct range *range = &sweep->ranges[sweep->n_ranges - 1];
	const struct lease_sweep_options *options = &sweep->options;

	for (size_t i = range->from; i < range->to; i++)
		sweep->items[i].command = txn_reconcile_command(options, sweep->chunk[i].run_id);
	sweep->txn = (struct txn){
		.lock = TXN_LOCK_SKIP,
		.statement_timeout = cut_timeout(options, options->statement_timeout, 4),
		.lock_timeout = cut_timeout(options, options->lock_timeout, 4),
		.notify = options->notify ? "on" : "off",
		.items = sweep->items + range->from,
		.n = range->to - range->from,
	};
	return txn_operation(&sweep->txn);
}

static void report_closed(struct lease_sweep *sweep, const struct txn_item *item)
{
	struct lease_closed closed = txn_closed(item);

	sweep->figures.closed += closed.attempt_no > 0;
	if (closed.moved)
		sweep->figures.moved[closed.status]++;
	if (sweep->callbacks.closed)
		sweep->callbacks.closed(sweep->callbacks.arg, &closed);
}

/* The monotonic time at which a lease ends, never too early. */
static int64_t local_time(const struct lease_sweep *sweep, int64_t database_time)
{
	return database_time - sweep->clock_offset;
}

/* Until when a lease holds that holds now: an amnesty without an end lasts until a beat comes. */
static int64_t held_until(const struct lease_facts *facts)
{
	if (facts->open.lease_expires_at > facts->now)
		return facts->open.lease_expires_at;
	if (facts->heartbeat.amnesty_until > facts->now)
		return facts->heartbeat.amnesty_until;
	return facts->now + facts->heartbeat.after;
}

static void settle_item(struct lease_sweep *sweep, const struct due_entry *entry,
			const struct txn_item *item)
{
	if (!item->locked) {
		sweep->figures.contended++;
		put_back(sweep, entry, 0);
		return;
	}
	switch (item->decision.verdict) {
	case VERDICT_APPLY:
		if (item->applied)
			report_closed(sweep, item);
		else
			put_back(sweep, entry, 0);
		break;
	case VERDICT_REFUSE:
		/* of interest only if it ends before the next scan lists it */
		if (item->decision.refusal == LEASE_HELD && !sweep->once) {
			int64_t ends = local_time(sweep, held_until(&item->facts));

			if (ends - SCAN_SLACK <= sweep->scan_at)
				put_back(sweep, entry, ends);
		}
		break;
	case VERDICT_UNCHANGED:
		break;
	}
}

/* The list of what was over already when this pass listed it. */
static uint32_t over_list(const struct lease_sweep *sweep)
{
	return sweep->pass_list + 2;
}

/* What was over already when it was listed, and since then was closed or locked by others. */
static size_t count_others(const struct lease_sweep *sweep, const struct range *range, bool locked)
{
	size_t n = 0;

	for (size_t i = range->from; i < range->to; i++)
		n += sweep->chunk[i].list == over_list(sweep) && sweep->chunk[i].tries == 0 &&
		     (sweep->items[i].locked ? sweep->items[i].decision.verdict == VERDICT_UNCHANGED
					     : locked);
	return n;
}

/*
 * Most of a whole chunk is dealt with, or locked: another reconciler works on this page, and whoever
 * does the same chunks after it only looks at what is done.
 *
 * Where it is done, that one went on from here, and the rest is left to it: each closes what lies
 * between its own place and the next one's, which makes a page whole. Should it not come that far,
 * the next pass finds what is over; it begins when this one has ended. Where it is locked, that one
 * is here: go on from elsewhere.
 */
static void part_from_others(struct lease_sweep *sweep, const struct range *range)
{
	size_t n = range->to - range->from;

	if (sweep->once || n == 1 || n < sweep->n_chunk || !sweep->chunk_is_whole)
		return;
	if (count_others(sweep, range, false) > n / 2) {
		due_forget(&sweep->due, over_list(sweep));
		sweep->left_pages = true;
	} else if (count_others(sweep, range, true) > n / 2) {
		due_rotate(&sweep->due, over_list(sweep), clock_monotonic(), next_random(sweep));
	}
}

static void complete_range(struct lease_sweep *sweep)
{
	struct range range = sweep->ranges[--sweep->n_ranges];

	pace_note(&sweep->pace, range.to - range.from, sweep->txn.look_took);
	part_from_others(sweep, &range);
	for (size_t i = range.from; i < range.to; i++)
		settle_item(sweep, &sweep->chunk[i], &sweep->items[i]);
	txn_done(&sweep->txn);
	if (sweep->n_ranges == 0)
		drop_chunk(sweep);
}

/* Whether the fault may lie with one run of the chunk rather than with all. */
static bool is_fault_of_one(const struct lease_sweep *sweep, const struct lease_error *error)
{
	if (lease_error_advice(error) == LEASE_ADVICE_SPLIT)
		return true;
	/* too slow as a whole; or an attempt's row is locked, as the runs' rows were not */
	return strcmp(error->sqlstate, "57014") == 0 ||
	       (strcmp(error->sqlstate, "55P03") == 0 && txn_is_applying(&sweep->txn));
}

/* True: dealt with here, the sweep goes on. */
static bool fail_range(struct lease_sweep *sweep, const struct lease_error *error)
{
	bool one = is_fault_of_one(sweep, error);
	struct range range = sweep->ranges[--sweep->n_ranges];
	size_t middle = range.from + (range.to - range.from) / 2;

	txn_done(&sweep->txn);
	if (one && range.to - range.from > 1 && sweep->n_ranges + 2 <= RANGES) {
		sweep->ranges[sweep->n_ranges++] = (struct range){ middle, range.to };
		sweep->ranges[sweep->n_ranges++] = (struct range){ range.from, middle };
		return true;
	}
	if (one) {
		sweep->figures.skipped++;
		if (sweep->callbacks.skipped)
			sweep->callbacks.skipped(
				sweep->callbacks.arg,
				&(struct lease_skipped){ sweep->chunk[range.from].run_id, error });
		if (sweep->n_ranges == 0)
			drop_chunk(sweep);
		return true;
	}
	sweep->ranges[sweep->n_ranges++] = range;
	for (int k = 0; k < sweep->n_ranges; k++)
		for (size_t i = sweep->ranges[k].from; i < sweep->ranges[k].to; i++)
			put_back(sweep, &sweep->chunk[i], 0);
	drop_chunk(sweep);
	return false;
}

/* -- scans ------------------------------------------------------------------------------------ */

static void note_database_time(struct lease_sweep *sweep, int64_t database_time)
{
	int64_t offset = database_time - clock_monotonic();

	if (!sweep->clock_known || offset > sweep->clock_offset)
		sweep->clock_offset = offset;
	sweep->clock_known = true;
}

/* How much longer than the interval a scan must look ahead, so that the next one comes in time. */
static int64_t slack(const struct lease_sweep *sweep)
{
	return SCAN_SLACK + 2 * sweep->figures.scan_duration;
}

static void begin_scan(struct lease_sweep *sweep, enum activity scan, int64_t now)
{
	sweep->scan = scan;
	sweep->cursor[0] = '\0';
	if (scan == SCANNING_ORPHANS)
		sweep->orphan_list += 2;
	if (scan != SCANNING)
		return;
	sweep->pass_list += PASS_LISTS;
	sweep->pass_began_at = now;
	sweep->horizon = sweep->once ? 0 : sweep->interval + slack(sweep);
	sweep->left_pages = false;
	sweep->seen = (struct lease_sweep_figures){ .oldest_expired_at = LEASE_TIME_NONE };
	sweep->shortest_ttl = INT64_MAX;
	sweep->clock_known = false;
	sweep->due.known_until = INT64_MAX;
	/* not before this pass has ended; a lease that is held until then is listed anew */
	sweep->scan_at = now + sweep->interval;
}

static void choose_interval(struct lease_sweep *sweep)
{
	int64_t wanted = sweep->options.interval;
	int64_t floor = sweep->seen.scan_duration * SCAN_SHARE;

	if (sweep->shortest_ttl < INT64_MAX)
		wanted = min64(wanted, max64(sweep->shortest_ttl / 3 * 2, SHORTEST_INTERVAL));
	sweep->figures.stretched = floor > wanted;
	sweep->interval = max64(wanted, floor);
	sweep->figures.next_interval = sweep->interval;
}

static void end_pass(struct lease_sweep *sweep)
{
	int64_t now = clock_monotonic();

	sweep->scan = IDLE;
	due_forget(&sweep->due, sweep->pass_list - PASS_LISTS);
	due_forget(&sweep->due, over_list(sweep) - PASS_LISTS);
	sweep->figures.open = sweep->seen.open;
	sweep->figures.expired = sweep->seen.expired;
	sweep->figures.pardoned = sweep->seen.pardoned;
	sweep->figures.shortest_ttl = sweep->shortest_ttl < INT64_MAX ? sweep->shortest_ttl : 0;
	sweep->figures.oldest_expired_at = sweep->seen.oldest_expired_at;
	sweep->figures.scan_duration = sweep->seen.scan_duration;
	sweep->figures.passes++;
	sweep->figures.passed_at = now;
	choose_interval(sweep);
	if (sweep->once) {
		sweep->scan_at = INT64_MAX;
		return;
	}
	/* what this pass listed reaches to its horizon: begin the next before that is used up */
	sweep->scan_at = sweep->pass_began_at +
			 max64(min64(sweep->interval, sweep->horizon - slack(sweep)),
			       sweep->seen.scan_duration);
}

/* The first row of a page holds its figures: 0, the last run_id, how many were read, ... */
static int begin_page(struct lease_sweep *sweep, const PGresult *result, const char *form,
		      struct lease_error *reterr)
{
	int r = read_form(result, form, reterr);
	const char *last;

	if (r < 0)
		return r;
	if (PQntuples(result) < 1 || read_int(result, 0, 0) != 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "a page without figures");
	last = read_text(result, 0, 1);
	if (last)
		snprintf(sweep->cursor, sizeof(sweep->cursor), "%s", last);
	return 0;
}

static bool is_last_page(const struct lease_sweep *sweep, const PGresult *result)
{
	return read_int(result, 0, 2) < sweep->page_size;
}

#define PAGE_FORM "itissili"

/*
 * What is over is due at once: in the order of run_id, so that the rows of a chunk lie together, but
 * from some place in the page on, so that two reconcilers that read it at once begin apart.
 */
static void list_page(struct lease_sweep *sweep, const PGresult *result, int64_t now)
{
	int n = PQntuples(result) - 1, first = n > 0 ? (int)(next_random(sweep) % (unsigned)n) : 0;

	for (int i = 0; i < n; i++) {
		const char *run_id = read_text(result, i + 1, 1);
		int64_t ends = local_time(sweep, read_time(result, i + 1, 3));

		if (!run_id)
			continue;
		if (ends > now)
			due_add(&sweep->due, run_id, ends, 0, sweep->pass_list);
		else
			due_add(&sweep->due, run_id, max64(now - n, 0) + (i + n - first) % n, 0,
				over_list(sweep));
	}
}

/* A page of the horizon scan; see scan_page.sql. */
static int take_page(struct lease_sweep *sweep, const PGresult *result, struct lease_error *reterr)
{
	struct lease_sweep_figures *seen = &sweep->seen;
	int r = begin_page(sweep, result, PAGE_FORM, reterr);
	int64_t oldest, now = clock_monotonic();

	if (r < 0)
		return r;
	note_database_time(sweep, read_time(result, 0, 4));
	seen->scan_duration += now - sweep->page_sent_at;
	seen->open += read_int(result, 0, 2);
	seen->expired += read_int(result, 0, 5);
	seen->pardoned += read_int(result, 0, 7);
	oldest = read_time(result, 0, 3);
	if (oldest != LEASE_TIME_NONE &&
	    (seen->oldest_expired_at == LEASE_TIME_NONE || oldest < seen->oldest_expired_at))
		seen->oldest_expired_at = oldest;
	if (!PQgetisnull(result, 0, 6) && read_int(result, 0, 6) > 0)
		sweep->shortest_ttl = min64(sweep->shortest_ttl, read_int(result, 0, 6));
	list_page(sweep, result, now);
	if (is_last_page(sweep, result))
		end_pass(sweep);
	return 0;
}

/* A page of orphans or passed deadlines, to be looked at now; see scan_orphans.sql. */
static int take_list(struct lease_sweep *sweep, const PGresult *result, struct lease_error *reterr)
{
	int r = begin_page(sweep, result, "iti", reterr);
	int64_t now = clock_monotonic();

	if (r < 0)
		return r;
	for (int row = 1; row < PQntuples(result); row++)
		if (!PQgetisnull(result, row, 1))
			due_add(&sweep->due, read_text(result, row, 1), now, 0, sweep->orphan_list);
	if (!is_last_page(sweep, result))
		return 0;
	if (sweep->scan == SCANNING_ORPHANS) {
		begin_scan(sweep, SCANNING_DEADLINES, now);
	} else {
		sweep->scan = IDLE;
		due_forget(&sweep->due, sweep->orphan_list - 2);
		sweep->orphans_at = sweep->once ? INT64_MAX : now + sweep->options.orphan_interval;
	}
	return 0;
}

static int scan_take(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct lease_sweep *sweep = self;

	/* after BEGIN and the settings */
	if (index != 2)
		return 0;
	return sweep->scan == SCANNING ? take_page(sweep, result, reterr)
				       : take_list(sweep, result, reterr);
}

static void scan_fill(void *self, struct batch *batch)
{
	struct lease_sweep *sweep = self;
	const struct lease_sweep_options *options = &sweep->options;

	sweep->page_size = options->scan_page;
	sweep->page_sent_at = clock_monotonic();
	batch_add(batch, lease_sql_begin);
	batch_add(batch, lease_sql_settings_scan);
	bind_milliseconds(batch, cut_timeout(options, options->statement_timeout, 2));
	bind_milliseconds(batch, cut_timeout(options, options->lock_timeout, 2));
	batch_add(batch, sweep->scan == SCANNING           ? lease_sql_scan_page
			 : sweep->scan == SCANNING_ORPHANS ? lease_sql_scan_orphans
							   : lease_sql_scan_deadlines);
	bind_text(batch, sweep->cursor);
	bind_int(batch, sweep->page_size);
	if (sweep->scan == SCANNING)
		bind_int(batch, sweep->horizon);
	else if (sweep->scan == SCANNING_ORPHANS)
		bind_text(batch, options->policy == LEASE_POLICY_RECORD ? "f" : "t");
	batch_add(batch, "COMMIT");
}

/* -- the heartbeat ------------------------------------------------------------------------------ */

/*
 * The database's clock was read between sending and now. If even the nearest readings of this beat
 * and the last are further apart than allowed, it jumped.
 */
static void watch_clock(struct lease_sweep *sweep, int64_t database_time)
{
	int64_t allowed = sweep->options.max_clock_jump;
	int64_t least = database_time - clock_monotonic();
	int64_t most = database_time - sweep->beat_sent_at;
	int64_t jump = 0;

	if (sweep->offset_known && least > sweep->offset_most)
		jump = least - sweep->offset_most;
	else if (sweep->offset_known && most < sweep->offset_least)
		jump = most - sweep->offset_least;
	sweep->offset_least = least;
	sweep->offset_most = most;
	sweep->offset_known = true;
	if (allowed == 0 || (jump <= allowed && jump >= -allowed))
		return;
	sweep->force_amnesty = true;
	if (sweep->callbacks.clock_jumped)
		sweep->callbacks.clock_jumped(sweep->callbacks.arg, jump);
}

static int beat_take(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct lease_sweep *sweep = self;
	struct lease_sweep_figures *figures = &sweep->figures;
	int64_t before = figures->amnesty_until;
	int r;

	/* after BEGIN and the settings; what removes the heartbeat gives no row */
	if (index != 2 || PQresultStatus(result) != PGRES_TUPLES_OK)
		return 0;
	r = read_form(result, "sssb", reterr);
	if (r < 0)
		return r;
	if (PQntuples(result) != 1)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "a beat without a row");
	figures->beat_at = read_time(result, 0, 0);
	figures->amnesty_until = read_bool(result, 0, 3) ? read_time(result, 0, 2)
							 : LEASE_TIME_NONE;
	sweep->force_amnesty = false;
	watch_clock(sweep, figures->beat_at);
	if (figures->amnesty_until != LEASE_TIME_NONE && figures->amnesty_until != before &&
	    sweep->callbacks.amnesty)
		sweep->callbacks.amnesty(sweep->callbacks.arg, figures->amnesty_until);
	return 0;
}

static void beat_fill(void *self, struct batch *batch)
{
	struct lease_sweep *sweep = self;
	const struct lease_sweep_options *options = &sweep->options;

	sweep->beat_sent_at = clock_monotonic();
	batch_add(batch, lease_sql_begin);
	/* a beat that waits for long would set beat_at back so far that the next one sees a gap */
	batch_add(batch, lease_sql_settings_scan);
	bind_milliseconds(batch, cut_timeout(options, options->statement_timeout, 2));
	bind_milliseconds(batch, cut_timeout(options, options->statement_timeout, 2));
	if (options->amnesty_after > 0) {
		batch_add(batch, lease_sql_beat);
		bind_int(batch, options->amnesty_after);
		bind_int(batch, options->amnesty_grace);
		bind_text(batch, sweep->force_amnesty ? "t" : "f");
	} else {
		batch_add(batch, lease_sql_beat_never);
	}
	batch_add(batch, "COMMIT");
}

static bool is_beating(const struct lease_sweep *sweep)
{
	return !sweep->once && sweep->options.amnesty_after != 0;
}

/* Four times within `after`, so that a beat may fail. */
static void beaten(struct lease_sweep *sweep)
{
	if (sweep->options.amnesty_after <= 0) {
		sweep->figures.beat_at = sweep->figures.amnesty_until = LEASE_TIME_NONE;
		sweep->beat_due_at = INT64_MAX;
	} else if (sweep->force_amnesty) {
		sweep->beat_due_at = 0;
	} else {
		sweep->beat_due_at = sweep->beat_sent_at + sweep->options.amnesty_after / 4;
	}
}

/* -- what next -------------------------------------------------------------------------------- */

/* When the next pass is to begin. */
static int64_t next_pass_at(const struct lease_sweep *sweep)
{
	return sweep->left_pages ? 0 : min64(sweep->scan_at, sweep->due.known_until);
}

/* When the next scan is to begin, of either kind. */
static int64_t next_scan_at(const struct lease_sweep *sweep)
{
	return min64(next_pass_at(sweep), sweep->orphans_at);
}

static enum activity choose(struct lease_sweep *sweep, int64_t now)
{
	if (sweep->stopping)
		return IDLE;
	if (!sweep->checked)
		return sweep->retry_at > now ? IDLE : CHECKING;
	/* before anything else, also while a sweep that failed waits: no beat, no sweep */
	if (is_beating(sweep) && sweep->beat_due_at <= now)
		return sweep->beat_retry_at > now ? IDLE : BEATING;
	if (sweep->retry_at > now)
		return IDLE;
	if (sweep->n_ranges > 0 || due_next(&sweep->due) <= now)
		return CLOSING;
	if (sweep->scan == IDLE) {
		if (next_scan_at(sweep) > now)
			return IDLE;
		if (next_pass_at(sweep) <= now)
			begin_scan(sweep, SCANNING, now);
		else
			begin_scan(sweep, SCANNING_ORPHANS, now);
	}
	return sweep->scan;
}

/* Begins the next activity. 1: begun, 0: there is nothing to do now, negative: an error. */
static int begin(struct lease_sweep *sweep, PGconn *conn, int64_t now, struct lease_error *reterr)
{
	struct operation operation;

	sweep->activity = choose(sweep, now);
	switch (sweep->activity) {
	case IDLE:
		return 0;
	case CHECKING:
		operation = database_check_operation(&sweep->check);
		break;
	case BEATING:
		operation = exchange_operation(&sweep->exchange,
					       (struct exchange){ beat_fill, beat_take, sweep });
		break;
	case SCANNING:
	case SCANNING_ORPHANS:
	case SCANNING_DEADLINES:
		operation = exchange_operation(&sweep->exchange,
					       (struct exchange){ scan_fill, scan_take, sweep });
		break;
	case CLOSING:
		if (sweep->n_ranges == 0 && !gather_chunk(sweep, now)) {
			sweep->activity = IDLE;
			return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
		}
		operation = begin_range(sweep);
		break;
	}
	pump_start(&sweep->pump, conn, operation);
	return 1;
}

static void complete(struct lease_sweep *sweep)
{
	if (sweep->activity == CHECKING)
		sweep->checked = true;
	if (sweep->activity == CLOSING)
		complete_range(sweep);
	if (sweep->activity == BEATING) /* says nothing of sweeps that fail */
		beaten(sweep);
	else
		sweep->failures_in_a_row = 0;
	sweep->activity = IDLE;
}

/* True: dealt with, go on. */
static bool fail(struct lease_sweep *sweep, const struct lease_error *error)
{
	enum activity activity = sweep->activity;
	int64_t pause;

	sweep->activity = IDLE;
	if (activity == CLOSING && fail_range(sweep, error))
		return true;
	sweep->figures.failures++;
	pause = backoff(RETRY_FAILED, RETRY_FAILED_MAX, sweep->failures_in_a_row++);
	/* half of it at random, so that several daemons do not come back at once */
	pause = pause / 2 + (int64_t)next_random(sweep) % (pause / 2 + 1);
	if (activity == BEATING)
		sweep->beat_retry_at = clock_monotonic() + pause;
	else
		sweep->retry_at = clock_monotonic() + pause;
	return false;
}

int lease_sweep_poll(struct lease_sweep *sweep, PGconn *conn, struct lease_error *reterr)
{
	for (;;) {
		struct lease_error error;
		int r = 1;

		if (sweep->activity == IDLE) {
			r = begin(sweep, conn, clock_monotonic(), &error);
			if (r == 0)
				return 0;
		}
		if (r > 0)
			r = pump_poll(&sweep->pump, &error);
		if (r > 0)
			return r;
		if (r == 0) {
			complete(sweep);
		} else if (!fail(sweep, &error)) {
			if (reterr)
				*reterr = error;
			return r;
		}
	}
}

int64_t lease_sweep_wake_at(const struct lease_sweep *sweep)
{
	int64_t at;

	if (sweep->stopping)
		return INT64_MAX;
	if (!sweep->checked || sweep->n_ranges > 0 || sweep->scan != IDLE)
		at = 0;
	else
		at = min64(due_next(&sweep->due), next_scan_at(sweep));
	at = max64(at, sweep->retry_at);
	if (!sweep->checked || !is_beating(sweep))
		return at;
	/* while a beat fails there is no sweep */
	if (sweep->beat_due_at <= sweep->beat_retry_at)
		return sweep->beat_retry_at;
	return min64(at, sweep->beat_due_at);
}

void lease_sweep_reset(struct lease_sweep *sweep)
{
	if (sweep->activity == CLOSING)
		txn_done(&sweep->txn);
	pump_abandon(&sweep->pump);
	drop_chunk(sweep);
	due_clear(&sweep->due);
	sweep->activity = sweep->scan = IDLE;
	sweep->checked = false;
	pace_reset(&sweep->pace);
	sweep->interval = sweep->options.interval;
	sweep->scan_at = sweep->orphans_at = sweep->retry_at = 0;
	sweep->beat_due_at = sweep->beat_retry_at = 0;
	sweep->failures_in_a_row = 0;
	sweep->left_pages = false;
}

void lease_sweep_stop(struct lease_sweep *sweep)
{
	sweep->stopping = true;
}

void lease_sweep_hurry(struct lease_sweep *sweep)
{
	sweep->scan_at = sweep->orphans_at = 0;
}

void lease_sweep_read_figures(const struct lease_sweep *sweep, struct lease_sweep_figures *ret)
{
	*ret = sweep->figures;
	ret->due = (int64_t)sweep->due.n;
}

void lease_sweep_free(struct lease_sweep *sweep)
{
	if (!sweep)
		return;
	lease_sweep_reset(sweep);
	due_done(&sweep->due);
	free(sweep->chunk);
	free(sweep->items);
	free(sweep);
}

/* -- one sweep, blocking ---------------------------------------------------------------------- */

/* How long rows locked by others are tried again before they are left to the next sweep. */
#define LOCKED_PATIENCE LEASE_SECOND
/* How much longer than statement_timeout an answer may take. */
#define ANSWER_SLACK (5 * LEASE_SECOND)

static bool is_swept(const struct lease_sweep *sweep)
{
	return sweep->figures.passes > 0 && sweep->scan == IDLE && sweep->n_ranges == 0 &&
	       sweep->due.n == 0 && next_scan_at(sweep) == INT64_MAX;
}

static int sweep_once(struct lease_sweep *sweep, PGconn *conn, struct lease_error *reterr)
{
	int64_t patience = INT64_MAX;

	for (;;) {
		int events = lease_sweep_poll(sweep, conn, reterr);
		int64_t now = clock_monotonic();
		int ready;

		if (events < 0 || (events == 0 && is_swept(sweep)))
			return events;
		if (events == 0) { /* what is left is locked by others */
			if (patience == INT64_MAX)
				patience = now + LOCKED_PATIENCE;
			if (now >= patience)
				return 0;
			pause_until(min64(lease_sweep_wake_at(sweep), patience));
			continue;
		}
		ready = wait_for(conn, events,
				 now + sweep->options.statement_timeout + ANSWER_SLACK);
		if (ready <= 0)
			return lease_error_set(reterr, LEASE_E_TIMEOUT,
					       "no answer from the server in time; close the "
					       "connection");
	}
}

int lease_reconcile_expired_leases(PGconn *conn, const struct lease_sweep_options *options,
				   const struct lease_sweep_callbacks *callbacks,
				   struct lease_sweep_figures *ret, struct lease_error *reterr)
{
	struct lease_sweep *sweep = NULL;
	bool was_nonblocking = false;
	int r = connection_begin(conn, &was_nonblocking, reterr);

	if (r < 0)
		return r;
	r = lease_sweep_new(options, callbacks, &sweep, reterr);
	if (sweep) {
		sweep->once = true;
		r = sweep_once(sweep, conn, reterr);
		if (ret)
			lease_sweep_read_figures(sweep, ret);
		lease_sweep_free(sweep);
	}
	connection_end(conn, was_nonblocking);
	return r;
}
