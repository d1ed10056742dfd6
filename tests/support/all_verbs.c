/* Every function of the library that talks to a database: see all_verbs.h. */
#include "all_verbs.h"

#include <stdlib.h>
#include <string.h>

#define TTL (3600 * LEASE_SECOND)
#define HASH "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct lease_token token = { .run_id = "run", .attempt_no = 1, .owner = "w:1" };

static int submit_named(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_submission submission = {
		.run_id = "run", .tenant_id = "tenant", .deadline = 2 * TTL, .timeout = timeout
	};
	struct lease_change change;

	return lease_submit(conn, &submission, NULL, &change, reterr);
}

static int submit_unnamed(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_submission submission = { .delay = TTL, .timeout = timeout };
	char run_id[LEASE_ID_MAX + 1];
	struct lease_change change;

	return lease_submit(conn, &submission, run_id, &change, reterr);
}

static int check(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	return lease_check_database(conn, timeout, reterr);
}

static int mark_running(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_claim claim = {
		.run_id = "run", .owner = "w:1", .ttl = TTL, .trace_id = "trace", .timeout = timeout
	};
	struct lease_grant grant;

	return lease_mark_running(conn, &claim, &grant, reterr);
}

static int claim_next(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_claim claim = {
		.owner = "w:2", .ttl = TTL, .timeout = timeout, .take_over = true
	};
	struct lease_grant grant;

	return lease_claim_next(conn, &claim, &grant, reterr);
}

static int renew_one(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_grant grant;

	return lease_renew_lease(conn, &token, TTL, timeout, &grant, reterr);
}

static int renew_many(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	enum { MANY = 50 };
	struct lease_token tokens[MANY];
	struct lease_grant grants[MANY];
	int results[MANY];

	for (int i = 0; i < MANY; i++) {
		tokens[i] = token;
		tokens[i].run_id[3] = (char)(i > 0 ? '0' + i : '\0');
	}
	return lease_renew_leases(conn, tokens, MANY, TTL, timeout, grants, results, reterr);
}

static int register_content(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_content content = { .content_ref = "file:///content",
					 .hash = HASH,
					 .media_type = "text/plain",
					 .size_bytes = 1,
					 .schema_version = 1 };
	bool changed;

	(void)timeout;
	return lease_content_register(conn, &content, &changed, reterr);
}

static int look_up_content(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_content content;

	(void)timeout;
	return lease_content_lookup(conn, "file:///content", &content, reterr);
}

static int start_node(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_node_start start = { .token = token,
					  .node_id = "node",
					  .operation_id = "operation",
					  .input_ref = "file:///content",
					  .trace_id = "trace",
					  .timeout = timeout };
	struct lease_node_execution execution;

	return lease_node_start(conn, &start, &execution, reterr);
}

static int finish_node(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_node_finish finish = { .token = token,
					    .node_id = "node",
					    .execution_no = 1,
					    .status = LEASE_EXECUTION_FAILED,
					    .normalized_error = "timeout",
					    .error_message = "no answer",
					    .timeout = timeout };
	struct lease_change change;

	return lease_node_finish(conn, &finish, &change, reterr);
}

static int look_up_operation(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_operation operation;

	(void)timeout;
	return lease_operation_lookup(conn, "operation", &operation, reterr);
}

static int record_checkpoint(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_checkpoint checkpoint = { .token = token,
					       .checkpoint_id = "checkpoint",
					       .content_ref = "file:///content",
					       .expected_version = 2,
					       .timeout = timeout };
	struct lease_change change;

	return lease_checkpoint_record(conn, &checkpoint, &change, reterr);
}

static int change_plan(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_change change;

	return lease_plan_change(conn, &token, 3, timeout, &change, reterr);
}

static int list_attempts(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_history *history = NULL;
	int r = lease_list_attempts(conn, "run", &history, reterr);

	(void)timeout;
	lease_history_free(history);
	return r;
}

static int read_story(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_story *story = NULL;
	int r = lease_read_story(conn, "run", &story, reterr);

	(void)timeout;
	lease_story_free(story);
	return r;
}

static int follow_events(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_event_batch *first = NULL, *second = NULL;
	int r = lease_events_after(conn, NULL, 2, &first, reterr);

	(void)timeout;
	if (r == 0)
		r = lease_events_after(conn, first->cursor, 1000, &second, reterr);
	lease_event_batch_free(first);
	lease_event_batch_free(second);
	return r;
}

static int read_status(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_status status;

	(void)timeout;
	return lease_read_status(conn, &status, reterr);
}

static int read_activity(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_activity activity;

	(void)timeout;
	return lease_read_activity(conn, 0, &activity, reterr);
}

static int list_runs(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_run_filter filter = { .tenant_id = "tenant", .owner = "w", .limit = 100 };
	struct lease_run_list *list = NULL;
	int r = lease_list_runs(conn, &filter, &list, reterr);

	(void)timeout;
	lease_run_list_free(list);
	return r;
}

static int read_audit(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_audit_page *page = NULL;
	int r = lease_read_audit(conn, NULL, 100, &page, reterr);

	(void)timeout;
	lease_audit_page_free(page);
	return r;
}

/* -- reconciling -------------------------------------------------------------------------------- */

/* Reads all of what it is handed, as a caller may. */
static void on_closed(void *arg, const struct lease_closed *closed)
{
	size_t *length = arg;

	*length += strlen(closed->run_id) + (closed->owner ? strlen(closed->owner) : 0) +
		   (closed->error_code ? strlen(closed->error_code) : 0) +
		   strlen(lease_run_status_name(closed->status));
}

static void on_skipped(void *arg, const struct lease_skipped *skipped)
{
	size_t *length = arg;

	*length += strlen(skipped->run_id) + strlen(skipped->error->message);
}

static struct lease_sweep_options sweep_options(int64_t timeout)
{
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	options.max_lease_losses = 3;
	if (timeout > 0)
		options.statement_timeout = options.lock_timeout = timeout;
	return options;
}

static int preview_sweep(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	size_t length = 0;
	struct lease_sweep_options options = sweep_options(timeout);
	struct lease_sweep_callbacks callbacks = { .closed = on_closed, .arg = &length };
	int64_t n;

	return lease_preview_sweep(conn, &options, &callbacks, &n, reterr);
}

static int reconcile(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	size_t length = 0;
	struct lease_sweep_options options = sweep_options(timeout);
	struct lease_sweep_callbacks callbacks = { .closed = on_closed,
						   .skipped = on_skipped,
						   .arg = &length };
	struct lease_sweep_figures figures;

	return lease_reconcile_expired_leases(conn, &options, &callbacks, &figures, reterr);
}

/* -- ends --------------------------------------------------------------------------------------- */

static int count_releases(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	int n;

	return lease_count_releases(conn, "run", 10, timeout, &n, reterr);
}

static int suspend(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_change change;

	return lease_suspend(conn, &token, timeout, &change, reterr);
}

static int resume(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_change change;

	return lease_resume(conn, "run", 0, timeout, &change, reterr);
}

static int release(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_release release = { .token = token,
					 .error_code = "rate_limited",
					 .error_message = "later",
					 .timeout = timeout };
	struct lease_change change;

	return lease_release_lease_for_retry(conn, &release, &change, reterr);
}

static int finish(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_finish finish = { .token = &token,
				       .status = LEASE_RUN_FAILED,
				       .error_code = "disk_full",
				       .error_message = "no space left",
				       .timeout = timeout };
	struct lease_change change;

	return lease_set_terminal_status(conn, &finish, &change, reterr);
}

static int give_up(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_finish finish = { .run_id = "run",
				       .status = LEASE_RUN_FAILED,
				       .error_code = "given_up",
				       .timeout = timeout };
	struct lease_change change;

	return lease_set_terminal_status(conn, &finish, &change, reterr);
}

static int request_cancel(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct lease_change change;

	return lease_request_cancel(conn, "run", 0, timeout, &change, reterr);
}

/* clang-format off */
const struct verb all_verbs[] = {
	{ "check_database", check },
	{ "submit", submit_named },
	{ "submit_unnamed", submit_unnamed },
	{ "mark_running", mark_running },
	{ "claim_next", claim_next },
	{ "renew_lease", renew_one },
	{ "renew_leases", renew_many },
	{ "content_register", register_content },
	{ "content_lookup", look_up_content },
	{ "node_start", start_node },
	{ "operation_lookup", look_up_operation },
	{ "node_finish", finish_node },
	{ "checkpoint_record", record_checkpoint },
	{ "plan_change", change_plan },
	{ "list_attempts", list_attempts },
	{ "read_story", read_story },
	{ "events_after", follow_events },
	{ "read_status", read_status },
	{ "read_activity", read_activity },
	{ "list_runs", list_runs },
	{ "read_audit", read_audit },
	{ "preview_sweep", preview_sweep },
	{ "reconcile", reconcile },
	{ "count_releases", count_releases },
	{ "suspend", suspend },
	{ "resume", resume },
	{ "release", release },
	{ "set_terminal_status", finish },
	{ "give_up", give_up },
	{ "request_cancel", request_cancel },
	{ NULL, NULL },
};
/* clang-format on */
