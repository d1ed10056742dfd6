/*
 * lists.c - reading many runs: lists by filters, what the reconciler would do, audits, activity.
 *
 * Never writes. What is long is read in pages, each a snapshot of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "facts.h"
#include "sql.h"
#include "verbs.h"

#define LIMIT_MAX 100000

static int no_memory(struct lease_error *reterr)
{
	return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
}

static int check_limit(int limit, struct lease_error *reterr)
{
	if (limit >= 1 && limit <= LIMIT_MAX)
		return 0;
	return lease_error_set(reterr, LEASE_E_INVALID, "limit must be from 1 to %d, it is %d",
			       LIMIT_MAX, limit);
}

static void *allocate(int n, size_t size, struct lease_error *reterr)
{
	void *memory = calloc(n > 0 ? (size_t)n : 1, size);

	if (!memory)
		no_memory(reterr);
	return memory;
}

/* -- runs by filters ---------------------------------------------------------------------------- */

struct listing {
	const struct lease_run_filter *filter;
	struct lease_run_list *list;
};

static void fill_listing(const struct reading *reading, struct batch *batch)
{
	const struct listing *listing = reading->ret;
	const struct lease_run_filter *filter = listing->filter;
	struct array statuses = { 0 };

	for (int status = LEASE_RUN_PENDING; status <= LEASE_RUN_INTERRUPTED; status++)
		if (!filter->statuses || filter->statuses & 1u << status)
			array_add_text(&statuses,
				       lease_run_status_name((enum lease_run_status)status));
	batch_add(batch, lease_sql_list_runs);
	bind_array(batch, &statuses);
	bind_text(batch, filter->tenant_id);
	bind_text(batch, filter->error_code);
	if (filter->created_within > 0)
		bind_int(batch, filter->created_within);
	else
		bind_text(batch, NULL);
	bind_text(batch, filter->owner);
	bind_text(batch, filter->expired ? "t" : "f");
	bind_text(batch, filter->after);
	bind_int(batch, filter->limit);
	bind_text(batch, lease_outcome_name(LEASE_OUTCOME_LEASE_EXPIRED));
}

static int take_entry(struct lease_run_entry *entry, const PGresult *result, int row,
		      struct lease_error *reterr)
{
	int status = lease_run_status_parse(read_text(result, row, 3));

	if (status < 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "unknown status");
	copy_id(entry->run.run_id, read_text(result, row, 1));
	copy_id(entry->run.tenant_id, read_text(result, row, 2));
	entry->run.status = (enum lease_run_status)status;
	entry->run.state_version = read_int(result, row, 4);
	entry->run.created_at = read_time(result, row, 5);
	entry->run.updated_at = read_time(result, row, 6);
	entry->run.not_before = read_time(result, row, 7);
	entry->run.deadline_at = read_time(result, row, 8);
	entry->run.cancel_requested_at = read_time(result, row, 9);
	entry->run.finished_at = read_time(result, row, 10);
	entry->open_attempt_no = (int32_t)read_int(result, row, 12);
	copy_id(entry->owner, read_text(result, row, 13));
	entry->lease_expires_at = read_time(result, row, 14);
	entry->attempts = (int32_t)read_int(result, row, 15);
	entry->losses = (int32_t)read_int(result, row, 16);
	return copy_text(read_text(result, row, 11), &entry->run.terminal_error_code, reterr);
}

static int take_listing(struct reading *reading, int index, const PGresult *result,
			struct lease_error *reterr)
{
	struct lease_run_list *list = ((struct listing *)reading->ret)->list;
	int n = PQntuples(result);
	int r = read_form(result, "stttlsssssstitsii", reterr);

	(void)index;
	if (r < 0)
		return r;
	list->runs = allocate(n, sizeof(*list->runs), reterr);
	if (!list->runs)
		return LEASE_E_MEMORY;
	list->n = (size_t)n;
	for (int row = 0; r == 0 && row < n; row++) {
		list->now = read_time(result, row, 0);
		r = take_entry(&list->runs[row], result, row, reterr);
	}
	return r;
}

int lease_list_runs(PGconn *conn, const struct lease_run_filter *filter,
		    struct lease_run_list **ret, struct lease_error *reterr)
{
	struct listing listing = { .filter = filter };
	struct reading reading = { .fill = fill_listing, .take = take_listing, .ret = &listing };
	int r = check_limit(filter->limit, reterr);

	if (r == 0)
		r = check_optional_id("tenant_id", filter->tenant_id, reterr);
	if (r == 0)
		r = check_optional_id("error_code", filter->error_code, reterr);
	if (r == 0)
		r = check_optional_id("owner", filter->owner, reterr);
	if (r == 0)
		r = check_optional_id("run_id", filter->after, reterr);
	if (r == 0)
		r = check_duration("created_within", filter->created_within, 0, reterr);
	if (r < 0)
		return r;
	listing.list = calloc(1, sizeof(*listing.list));
	if (!listing.list)
		return no_memory(reterr);
	r = run_reading(conn, &reading, reterr);
	if (r == 0)
		*ret = listing.list;
	else
		lease_run_list_free(listing.list);
	return r;
}

void lease_run_list_free(struct lease_run_list *list)
{
	if (!list)
		return;
	for (size_t i = 0; i < list->n; i++)
		free(list->runs[i].run.terminal_error_code);
	free(list->runs);
	free(list);
}

/* -- what the reconciler would do ---------------------------------------------------------------- */

/* Runs of one look. */
#define PREVIEW_PAGE 500

struct preview {
	char after[LEASE_ID_MAX + 1];
	char (*run_ids)[LEASE_ID_MAX + 1];
	struct txn_item *items;
	size_t n;
};

static void fill_preview(const struct reading *reading, struct batch *batch)
{
	const struct preview *preview = reading->ret;

	batch_add(batch, lease_sql_list_reconcilable);
	bind_text(batch, preview->after);
	bind_int(batch, PREVIEW_PAGE);
}

static int take_preview(struct reading *reading, int index, const PGresult *result,
			struct lease_error *reterr)
{
	struct preview *preview = reading->ret;
	int r = read_form(result, "t", reterr);

	(void)index;
	if (r == 0 && PQntuples(result) > PREVIEW_PAGE)
		r = lease_error_set(reterr, LEASE_E_PROTOCOL, "more rows than were asked for");
	if (r < 0)
		return r;
	preview->n = (size_t)PQntuples(result);
	for (size_t i = 0; i < preview->n; i++)
		copy_id(preview->run_ids[i], read_text(result, (int)i, 0));
	return 0;
}

static int look_at_page(PGconn *conn, struct preview *preview,
			const struct lease_sweep_options *options,
			const struct lease_sweep_callbacks *callbacks, int64_t *ret_n,
			struct lease_error *reterr)
{
	struct txn txn = { .lock = TXN_LOOK, .items = preview->items, .n = preview->n };
	int r;

	for (size_t i = 0; i < preview->n; i++)
		preview->items[i].command = txn_reconcile_command(options, preview->run_ids[i]);
	r = run_txn(conn, &txn, options->statement_timeout, reterr);
	for (size_t i = 0; r == 0 && i < preview->n; i++) {
		struct lease_closed closed = txn_closed(&preview->items[i]);

		if (preview->items[i].decision.verdict != VERDICT_APPLY)
			continue;
		callbacks->closed(callbacks->arg, &closed);
		++*ret_n;
	}
	txn_done(&txn);
	return r;
}

int lease_preview_sweep(PGconn *conn, const struct lease_sweep_options *options,
			const struct lease_sweep_callbacks *callbacks, int64_t *ret_n,
			struct lease_error *reterr)
{
	struct preview preview = { .n = PREVIEW_PAGE };
	struct reading reading = { .fill = fill_preview, .take = take_preview, .ret = &preview };
	int64_t n = 0;
	int r = 0;

	if (!callbacks || !callbacks->closed || options->policy < LEASE_POLICY_RECORD ||
	    options->policy > LEASE_POLICY_REQUEUE || options->max_lease_losses < 0)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "a callback is missing, or the policy or max_lease_losses "
				       "is out of range");
	preview.run_ids = calloc(PREVIEW_PAGE, sizeof(*preview.run_ids));
	preview.items = calloc(PREVIEW_PAGE, sizeof(*preview.items));
	if (!preview.run_ids || !preview.items)
		r = no_memory(reterr);
	while (r == 0 && preview.n == PREVIEW_PAGE) {
		r = run_reading(conn, &reading, reterr);
		if (r == 0 && preview.n > 0)
			r = look_at_page(conn, &preview, options, callbacks, &n, reterr);
		if (r == 0 && preview.n > 0)
			copy_id(preview.after, preview.run_ids[preview.n - 1]);
	}
	free(preview.run_ids);
	free(preview.items);
	if (r == 0 && ret_n)
		*ret_n = n;
	return r;
}

/* -- audits -------------------------------------------------------------------------------------- */

struct audit {
	const char *after;
	int limit;
	struct lease_audit_page *page;
};

static void fill_audit(const struct reading *reading, struct batch *batch)
{
	const struct audit *audit = reading->ret;

	batch_add(batch, lease_sql_audit_page);
	bind_text(batch, audit->after ? audit->after : "");
	bind_int(batch, audit->limit);
}

static int take_fault(struct lease_unexplained *fault, const PGresult *result, int row,
		      struct lease_error *reterr)
{
	int r;

	copy_id(fault->run_id, read_text(result, row, 1));
	fault->newest_no = (int32_t)read_int(result, row, 2);
	copy_id(fault->node_id, read_text(result, row, 4));
	r = copy_text(read_text(result, row, 5), &fault->status, reterr);
	if (r == 0)
		r = copy_text(read_text(result, row, 6), &fault->newest_outcome, reterr);
	if (r == 0)
		r = copy_text(read_text(result, row, 7), &fault->reason, reterr);
	return r;
}

static int take_audit(struct reading *reading, int index, const PGresult *result,
		      struct lease_error *reterr)
{
	struct lease_audit_page *page = ((struct audit *)reading->ret)->page;
	int n = PQntuples(result) - 1;
	int r = read_form(result, "itiitttt", reterr);

	(void)index;
	if (r < 0)
		return r;
	if (n < 0 || read_int(result, 0, 0) != 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "a page without figures");
	copy_id(page->last_run_id, read_text(result, 0, 1));
	page->runs = read_int(result, 0, 2);
	page->legacy = read_int(result, 0, 3);
	page->unexplained = allocate(n, sizeof(*page->unexplained), reterr);
	if (!page->unexplained)
		return LEASE_E_MEMORY;
	page->n = (size_t)n;
	for (int row = 0; r == 0 && row < n; row++)
		r = take_fault(&page->unexplained[row], result, row + 1, reterr);
	return r;
}

int lease_read_audit(PGconn *conn, const char *after, int limit, struct lease_audit_page **ret,
		     struct lease_error *reterr)
{
	struct audit audit = { .after = after, .limit = limit };
	struct reading reading = { .fill = fill_audit, .take = take_audit, .ret = &audit };
	int r = check_limit(limit, reterr);

	if (r == 0 && after && after[0])
		r = check_id("run_id", after, reterr);
	if (r < 0)
		return r;
	audit.page = calloc(1, sizeof(*audit.page));
	if (!audit.page)
		return no_memory(reterr);
	r = run_reading(conn, &reading, reterr);
	if (r == 0)
		*ret = audit.page;
	else
		lease_audit_page_free(audit.page);
	return r;
}

void lease_audit_page_free(struct lease_audit_page *page)
{
	if (!page)
		return;
	for (size_t i = 0; i < page->n; i++) {
		free(page->unexplained[i].status);
		free(page->unexplained[i].newest_outcome);
		free(page->unexplained[i].reason);
	}
	free(page->unexplained);
	free(page);
}

/* -- activity ------------------------------------------------------------------------------------ */

struct activity {
	int64_t after;
	struct lease_activity found;
};

static void fill_activity(const struct reading *reading, struct batch *batch)
{
	const struct activity *activity = reading->ret;

	batch_add(batch, lease_sql_read_activity);
	bind_int(batch, activity->after);
}

static int take_activity(struct reading *reading, int index, const PGresult *result,
			 struct lease_error *reterr)
{
	struct lease_activity *found = &((struct activity *)reading->ret)->found;
	int r = read_form(result, "ttls", reterr);

	(void)index;
	if (r < 0)
		return r;
	if (PQntuples(result) < 1 || read_text(result, 0, 0))
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "expected the newest event");
	found->event_id = read_int(result, 0, 2);
	found->now = read_time(result, 0, 3);
	for (int row = 1; row < PQntuples(result); row++) {
		const char *kind = read_text(result, row, 0);
		int outcome = lease_outcome_parse(read_text(result, row, 1));
		int64_t n = read_int(result, row, 2);

		if (strcmp(kind, "run_submitted") == 0)
			found->submitted += n;
		else if (strcmp(kind, "attempt_opened") == 0)
			found->opened += n;
		else if (strcmp(kind, "attempt_closed") == 0 && outcome >= 0)
			found->closed[outcome] += n;
	}
	return 0;
}

int lease_read_activity(PGconn *conn, int64_t after_event_id, struct lease_activity *ret,
			struct lease_error *reterr)
{
	struct activity activity = { .after = after_event_id };
	struct reading reading = { .fill = fill_activity, .take = take_activity, .ret = &activity };
	int r = run_reading(conn, &reading, reterr);

	if (r == 0)
		*ret = activity.found;
	return r;
}
