/*
 * Submitting and claiming on a real database: attempts are numbered 1, 2, 3, one owner at a time
 * has the run, and the oldest run that is due comes first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* -- submit ------------------------------------------------------------------------------------- */

static void submit_adds_a_pending_run(void **state)
{
	struct scenario *s = *state;
	struct lease_change change;

	assert_granted(lease_submit(s->worker, &(struct lease_submission){ .run_id = "r" }, NULL,
				    &change, &last_error));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_PENDING);
	assert_int_equal(change.state_version, 1);
	assert_run(s, "r", "pending v1");
	assert_sql(s->admin, "default", "select tenant_id from lease.runs");
	assert_sql(s->admin, "t",
		   "select not_before is null and deadline_at is null from lease.runs");
}

static void submit_again_leaves_the_run_as_it_is(void **state)
{
	struct scenario *s = *state;
	struct lease_submission again = { .run_id = "r", .tenant_id = "b", .delay = LONG };
	struct lease_change change;
	char *before;

	take_run(s, "r", "w");
	before = run_bytes(s, "r");
	assert_granted(lease_submit(s->worker, &again, NULL, &change, &last_error));
	assert_false(change.changed);
	assert_int_equal(change.status, LEASE_RUN_RUNNING);
	assert_int_equal(change.state_version, 2);
	assert_untouched(s, "r", before);
}

static void submit_makes_ids_in_order_of_time(void **state)
{
	struct scenario *s = *state;
	char first[LEASE_ID_MAX + 1], second[LEASE_ID_MAX + 1];

	assert_granted(
		lease_submit(s->worker, &(struct lease_submission){ 0 }, first, NULL, &last_error));
	/* the id holds milliseconds: the next one begins with a later one */
	wait_sql(s->admin,
		 "select clock_timestamp() > created_at + interval '5 ms' from lease.runs");
	assert_granted(lease_submit(s->worker, &(struct lease_submission){ 0 }, second, NULL,
				    &last_error));
	assert_int_equal(strlen(first), 36);
	assert_true(strcmp(first, second) < 0);
	assert_int_equal(first[14], '7');
	assert_non_null(strchr("89ab", first[19]));
	assert_sql(s->admin, "2", "select count(run_id::text::uuid) from lease.runs");
}

static void submit_counts_delay_and_deadline_by_the_database_clock(void **state)
{
	struct scenario *s = *state;
	struct lease_submission submission = {
		.run_id = "r", .tenant_id = "t", .delay = 60 * LEASE_SECOND, .deadline = LONG
	};

	assert_granted(lease_submit(s->worker, &submission, NULL, NULL, &last_error));
	assert_sql(s->admin, "t",
		   "select not_before - created_at between interval '59 s' and interval '61 s' "
		   "and deadline_at - created_at between interval '3599 s' and interval '3601 s' "
		   "and tenant_id = 't' from lease.runs");
}

static int submit_call(PGconn *conn, void *arg, struct lease_error *reterr)
{
	return lease_submit(conn, &(struct lease_submission){ .run_id = "r" }, NULL, arg, reterr);
}

/* The other session's row is not in this statement's snapshot, and yet it is there. */
static void submit_while_another_session_adds_the_same_run(void **state)
{
	struct scenario *s = *state;
	struct lease_change change = { .changed = true };
	struct call call = call_of(submit_call, s->worker, &change);

	sql(s->other, "begin; insert into lease.runs (run_id) values ('r')");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_granted(call_wait(&call));
	assert_false(change.changed);
	assert_int_equal(change.status, LEASE_RUN_PENDING);
	assert_int_equal(change.state_version, 1);
}

/* -- mark_running ------------------------------------------------------------------------------- */

/* The spine: 1 is released, 2 is lost, 3 completes, and nothing changes once it is written. */
static void claim_release_lose_claim_again(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");
	struct lease_grant grant;
	struct lease_sweep_figures figures;
	char *first, *now;

	assert_int_equal(token.attempt_no, 1);
	assert_run(s, "r", "running v2 | 1 w1 open");
	assert_granted(release(s->worker, &token, 0, NULL));
	assert_run(s, "r", "pending v3 | 1 w1 retry_released");
	first = sql_text(s->admin, "select format('%%s %%s %%s', ctid, xmin, a) "
				   "from lease.run_attempts a where attempt_no = 1");

	assert_granted(claim(s->worker, "r", "w2", LONG, &grant));
	assert_int_equal(grant.token.attempt_no, 2);
	end_lease(s, "r");
	assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, &figures));
	assert_int_equal(figures.closed, 1);
	assert_run(s, "r",
		   "pending v5 | 1 w1 retry_released "
		   "| 2 w2 lease_expired worker_lease_expired");

	assert_granted(claim(s->worker, "r", "w3", LONG, &grant));
	assert_int_equal(grant.token.attempt_no, 3);
	assert_granted(finish(s->worker, &grant.token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_run(s, "r",
		   "completed v7 | 1 w1 retry_released "
		   "| 2 w2 lease_expired worker_lease_expired | 3 w3 completed");
	now = sql_text(s->admin, "select format('%%s %%s %%s', ctid, xmin, a) "
				 "from lease.run_attempts a where attempt_no = 1");
	assert_string_equal(first, now);
	assert_explained(s);
	free(first);
	free(now);
}

static void claim_grants_a_lease(void **state)
{
	struct scenario *s = *state;
	int64_t before, after;
	struct lease_claim given = {
		.run_id = "r", .owner = "w", .ttl = 30 * LEASE_SECOND, .trace_id = "trace"
	};
	struct lease_grant grant;

	submit(s->worker, "r");
	before = lease_clock_boottime();
	assert_granted(lease_mark_running(s->worker, &given, &grant, &last_error));
	after = lease_clock_boottime();
	assert_string_equal(grant.token.run_id, "r");
	assert_string_equal(grant.token.owner, "w");
	assert_int_equal(grant.token.attempt_no, 1);
	assert_int_equal(grant.state_version, 2);
	assert_int_equal(grant.lease_expires_at - grant.now, 30 * LEASE_SECOND);
	assert_true(grant.deadline_at == LEASE_TIME_NONE);
	assert_false(grant.cancel_requested);
	assert_true(grant.new_attempt);
	/* counted from before the request, a hundredth early */
	assert_true(grant.local_end >= before + 29 * LEASE_SECOND);
	assert_true(grant.local_end <= after + 30 * LEASE_SECOND * 99 / 100);
	assert_sql(
		s->admin, "t",
		"select started_at = heartbeat_at and trace_id = 'trace' and finished_at is null "
		"and lease_expires_at = started_at + interval '30 s' "
		"and (extract(epoch from started_at) * 1000000)::bigint = %lld "
		"from lease.run_attempts",
		(long long)grant.now);
}

static void claim_by_the_live_owner_refreshes(void **state)
{
	struct scenario *s = *state;
	struct lease_grant first, second;

	submit(s->worker, "r");
	assert_granted(claim(s->worker, "r", "w", LONG, &first));
	assert_granted(claim(s->worker, "r", "w", 2 * LONG, &second));
	assert_false(second.new_attempt);
	assert_int_equal(second.token.attempt_no, 1);
	assert_int_equal(second.state_version, 2);
	assert_true(second.lease_expires_at >= first.lease_expires_at + LONG);
	assert_true(second.now > first.now);
	assert_run(s, "r", "running v2 | 1 w open");
}

static void claim_by_the_live_owner_never_shortens(void **state)
{
	struct scenario *s = *state;
	struct lease_grant first, second;

	submit(s->worker, "r");
	assert_granted(claim(s->worker, "r", "w", LONG, &first));
	assert_granted(claim(s->worker, "r", "w", LEASE_SECOND, &second));
	assert_true(second.lease_expires_at == first.lease_expires_at);
	assert_sql(s->admin, "t",
		   "select (extract(epoch from lease_expires_at) * 1000000)::bigint = %lld "
		   "from lease.run_attempts",
		   (long long)first.lease_expires_at);
}

static void claim_by_another_is_held_whether_the_lease_is_over_or_not(void **state)
{
	struct scenario *s = *state;
	char *before;

	take_run(s, "r", "w1");
	before = run_bytes(s, "r");
	assert_refused(LEASE_HELD, claim(s->other, "r", "w2", LONG, NULL));
	assert_untouched(s, "r", before);
	end_lease(s, "r");
	before = run_bytes(s, "r");
	assert_refused(LEASE_HELD, claim(s->other, "r", "w2", LONG, NULL));
	assert_refused(LEASE_EXPIRED, claim(s->other, "r", "w1", LONG, NULL));
	assert_untouched(s, "r", before);
}

static void open_leftover(struct scenario *s, const char *owner, const char *ends)
{
	sql(s->admin,
	    "insert into lease.runs (run_id) values ('r'); insert into lease.run_attempts "
	    "(run_id, attempt_no, owner, lease_expires_at) "
	    "values ('r', 1, '%s', clock_timestamp() + interval '%s')",
	    owner, ends);
}

static void claim_closes_a_leftover_attempt_whose_lease_is_over(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	open_leftover(s, "w1", "-1 s");
	assert_granted(claim(s->worker, "r", "w2", LONG, &grant));
	assert_true(grant.new_attempt);
	assert_int_equal(grant.token.attempt_no, 2);
	assert_int_equal(grant.state_version, 2);
	assert_true(grant.lease_expires_at - grant.now == LONG);
	assert_run(s, "r", "running v2 | 1 w1 lease_expired worker_lease_expired | 2 w2 open");
	assert_explained(s);
}

static void claim_spares_a_leftover_attempt_whose_lease_holds(void **state)
{
	struct scenario *s = *state;
	char *before;

	open_leftover(s, "w1", "1 h");
	before = run_bytes(s, "r");
	assert_refused(LEASE_HELD, claim(s->worker, "r", "w2", LONG, NULL));
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w3", true, NULL));
	assert_untouched(s, "r", before);
}

static void claim_next_closes_a_leftover_attempt_too(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	open_leftover(s, "w1", "-1 s");
	assert_granted(claim_next(s->worker, "w2", false, &grant));
	assert_int_equal(grant.token.attempt_no, 2);
	assert_run(s, "r", "running v2 | 1 w1 lease_expired worker_lease_expired | 2 w2 open");
}

/* The lease is renewed between the look and the close: the close's own guard stands in the way. */
static int claim_call(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct lease_grant grant;

	return lease_mark_running(conn,
				  &(struct lease_claim){ .run_id = "r", .owner = arg, .ttl = LONG },
				  &grant, reterr);
}

static void claim_loses_to_a_renewal_of_the_leftover_attempt(void **state)
{
	struct scenario *s = *state;
	struct call call = call_of(claim_call, s->worker, "w2");

	open_leftover(s, "w1", "-1 s");
	sql(s->other, "begin; update lease.run_attempts "
		      "set lease_expires_at = clock_timestamp() + interval '1 h'");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_refused(LEASE_HELD, call_wait(&call));
	assert_run(s, "r", "pending v1 | 1 w1 open");
}

static void claim_by_an_owner_that_stands_on_a_closed_attempt(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");
	char *before;

	assert_granted(release(s->worker, &token, 0, NULL));
	before = run_bytes(s, "r");
	assert_refused(LEASE_EXPIRED, claim(s->worker, "r", "w1", LONG, NULL));
	assert_untouched(s, "r", before);
	/* on another run it may */
	submit(s->worker, "r2");
	assert_granted(claim(s->worker, "r2", "w1", LONG, NULL));
}

static void claim_takes_over_a_running_run_without_open_attempt(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	take_run(s, "r", "w1");
	end_lease(s, "r");
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	assert_run(s, "r", "running v2 | 1 w1 lease_expired worker_lease_expired");
	assert_granted(claim(s->worker, "r", "w2", LONG, &grant));
	assert_int_equal(grant.token.attempt_no, 2);
	assert_int_equal(grant.state_version, 2); /* its status did not change */
	assert_run(s, "r", "running v2 | 1 w1 lease_expired worker_lease_expired | 2 w2 open");
	assert_explained(s);
}

static void claim_is_refused_before_not_before(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");

	assert_granted(release(s->worker, &token, LONG, NULL));
	assert_sql(s->admin, "t",
		   "select not_before between clock_timestamp() + interval '59 min' "
		   "and clock_timestamp() + interval '1 h' from lease.runs");
	assert_refused(LEASE_NOT_BEFORE, claim(s->worker, "r", "w2", LONG, NULL));
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w2", true, NULL));
	sql(s->admin, "update lease.runs set not_before = clock_timestamp()");
	assert_granted(claim(s->worker, "r", "w2", LONG, NULL));
}

static void claim_never_reaches_past_the_deadline(void **state)
{
	struct scenario *s = *state;
	struct lease_submission submission = { .run_id = "r", .deadline = 60 * LEASE_SECOND };
	struct lease_grant grant;

	assert_granted(lease_submit(s->worker, &submission, NULL, NULL, &last_error));
	assert_granted(claim(s->worker, "r", "w1", LONG, &grant));
	assert_true(grant.lease_expires_at == grant.deadline_at);
	assert_true(grant.lease_expires_at - grant.now <= 60 * LEASE_SECOND);
	assert_sql(s->admin, "t",
		   "select a.lease_expires_at = r.deadline_at and a.deadline_at = r.deadline_at "
		   "from lease.runs r join lease.run_attempts a using (run_id)");
	assert_granted(claim(s->worker, "r", "w1", LONG, &grant)); /* a refresh */
	assert_true(grant.lease_expires_at == grant.deadline_at);
}

static void claim_is_refused_past_the_deadline(void **state)
{
	struct scenario *s = *state;

	sql(s->admin, "insert into lease.runs (run_id, deadline_at) "
		      "values ('r', clock_timestamp() - interval '1 s')");
	assert_refused(LEASE_DEADLINE, claim(s->worker, "r", "w1", LONG, NULL));
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w1", true, NULL));
}

static void claim_of_what_is_not_there_or_has_ended(void **state)
{
	struct scenario *s = *state;
	struct lease_token token;

	assert_refused(LEASE_NOT_FOUND, claim(s->worker, "nothing", "w1", LONG, NULL));
	token = take_run(s, "done", "w1");
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_refused(LEASE_TERMINAL, claim(s->worker, "done", "w2", LONG, NULL));
	token = take_run(s, "asleep", "w1");
	assert_granted(suspend(s->worker, &token, NULL));
	assert_refused(LEASE_ILLEGAL, claim(s->worker, "asleep", "w2", LONG, NULL));
}

static void claim_tells_of_a_cancel_request(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	take_run(s, "r", "w1");
	assert_granted(request_cancel(s->other, "r", 0, NULL));
	assert_granted(claim(s->worker, "r", "w1", LONG, &grant));
	assert_true(grant.cancel_requested);
	assert_false(grant.new_attempt);
}

static void a_refusal_leaves_the_grant_as_it_was(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant, before;

	memset(&grant, 0x5a, sizeof(grant));
	before = grant;
	assert_refused(LEASE_NOT_FOUND, claim(s->worker, "nothing", "w1", LONG, &grant));
	assert_memory_equal(&grant, &before, sizeof(grant));
}

/* -- claim_next ----------------------------------------------------------------------------------- */

static void claim_next_takes_the_oldest_that_is_due(void **state)
{
	struct scenario *s = *state;
	static const char *const expected[] = { "m", "a", "z", "b", "y" };
	struct lease_grant grant;

	sql(s->admin,
	    "insert into lease.runs (run_id, created_at, not_before) values "
	    "('a', clock_timestamp() - interval '4 min', clock_timestamp() - interval '1 s'), "
	    "('z', clock_timestamp() - interval '3 min', null), "
	    "('b', clock_timestamp() - interval '2 min', null), "
	    "('m', clock_timestamp() - interval '5 min', null), "
	    "('early', clock_timestamp() - interval '9 min', clock_timestamp() + interval '1 h'), "
	    "('y', clock_timestamp() - interval '1 min', null)");
	for (size_t i = 0; i < LENGTH(expected); i++) {
		char owner[16];

		snprintf(owner, sizeof(owner), "w%zu", i);
		assert_granted(claim_next(s->worker, owner, false, &grant));
		assert_string_equal(grant.token.run_id, expected[i]);
		assert_string_equal(grant.token.owner, owner);
		assert_int_equal(grant.token.attempt_no, 1);
		assert_int_equal(grant.state_version, 2);
	}
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w9", false, &grant));
}

static void claim_next_gives_a_requeued_run_its_old_place(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	take_run(s, "old", "w1");
	submit(s->worker, "new");
	end_lease(s, "old");
	assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 3, NULL));
	assert_granted(claim_next(s->worker, "w2", false, &grant));
	assert_string_equal(grant.token.run_id, "old");
}

static void claim_next_passes_over_what_others_have_locked(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	submit(s->worker, "a");
	submit(s->worker, "b");
	sql(s->other, "begin; select from lease.runs where run_id = 'a' for no key update");
	assert_granted(claim_next(s->worker, "w1", false, &grant));
	assert_string_equal(grant.token.run_id, "b");
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w2", true, &grant));
	sql(s->other, "rollback");
	assert_granted(claim_next(s->worker, "w2", false, &grant));
	assert_string_equal(grant.token.run_id, "a");
}

static void claim_next_keeps_to_its_tenant(void **state)
{
	struct scenario *s = *state;
	struct lease_claim given = {
		.tenant_id = "b", .owner = "w", .ttl = LONG, .take_over = true
	};
	struct lease_grant grant;

	sql(s->admin, "insert into lease.runs (run_id, tenant_id, status) values "
		      "('r1', 'a', 'pending'), ('r2', 'b', 'pending'), "
		      "('r3', 'a', 'running'), ('r4', 'b', 'running')");
	assert_granted(lease_claim_next(s->worker, &given, &grant, &last_error));
	assert_string_equal(grant.token.run_id, "r2");
	given.owner = "w2";
	assert_granted(lease_claim_next(s->worker, &given, &grant, &last_error));
	assert_string_equal(grant.token.run_id, "r4");
	given.owner = "w3";
	assert_refused(LEASE_NOT_FOUND, lease_claim_next(s->worker, &given, &grant, &last_error));
}

static void claim_next_takes_over_only_when_asked_and_pending_first(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	take_run(s, "lost", "w1");
	end_lease(s, "lost");
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w2", false, &grant));
	submit(s->worker, "fresh");
	assert_granted(claim_next(s->worker, "w2", true, &grant));
	assert_string_equal(grant.token.run_id, "fresh");
	assert_granted(claim_next(s->worker, "w3", true, &grant));
	assert_string_equal(grant.token.run_id, "lost");
	assert_int_equal(grant.token.attempt_no, 2);
	assert_true(grant.new_attempt);
	assert_refused(LEASE_NOT_FOUND, claim_next(s->worker, "w4", true, &grant));
	assert_explained(s);
}

/* Rows that no verb makes, but an adopted table may hold: the ones behind them must be reached. */
static void claim_next_is_not_stopped_by_a_pending_run_with_a_cancel_request(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	sql(s->admin, "insert into lease.runs (run_id, created_at, cancel_requested_at) values "
		      "('a', clock_timestamp() - interval '1 min', clock_timestamp())");
	submit(s->worker, "b");
	assert_granted(claim_next(s->worker, "w1", false, &grant));
	assert_string_equal(grant.token.run_id, "b");
}

static void claim_next_refuses_an_owner_it_cannot_serve_and_writes_nothing(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");
	char *before;

	assert_granted(release(s->worker, &token, 0, NULL));
	before = run_bytes(s, "r");
	assert_refused(LEASE_EXPIRED, claim_next(s->worker, "w1", false, NULL));
	assert_untouched(s, "r", before);
}

/* -- cost ----------------------------------------------------------------------------------------- */

static void claiming_costs_two_round_trips(void **state)
{
	struct scenario *s = *state;
	struct round_trips trips;

	submit(s->worker, "a");
	submit(s->worker, "b");
	round_trips_start(&trips, s->worker);
	assert_granted(claim(s->worker, "a", "w1", LONG, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
	round_trips_start(&trips, s->worker);
	assert_granted(claim(s->worker, "a", "w1", LONG, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
	round_trips_start(&trips, s->worker);
	assert_refused(LEASE_HELD, claim(s->worker, "a", "w2", LONG, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
	round_trips_start(&trips, s->worker);
	assert_granted(claim_next(s->worker, "w3", false, NULL));
	assert_int_equal(round_trips_stop(&trips), 3);
	round_trips_start(&trips, s->worker);
	assert_granted(submit(s->worker, "c"));
	assert_int_equal(round_trips_stop(&trips), 1);
}

static void an_owner_is_new_each_time(void **state)
{
	char first[LEASE_ID_MAX + 1], second[LEASE_ID_MAX + 1], identity[202];

	(void)state;
	assert_granted(lease_owner_generate("host-1", first, &last_error));
	assert_granted(lease_owner_generate("host-1", second, &last_error));
	assert_int_equal(strncmp(first, "host-1:", 7), 0);
	assert_int_equal(strlen(first), 7 + 36);
	assert_int_equal(first[7 + 14], '4');
	assert_string_not_equal(first, second);
	memset(identity, 'x', 201);
	identity[201] = '\0';
	assert_error(LEASE_E_INVALID, lease_owner_generate(identity, first, &last_error));
	identity[200] = '\0';
	assert_granted(lease_owner_generate(identity, first, &last_error));
	assert_error(LEASE_E_INVALID, lease_owner_generate("", first, &last_error));
	assert_error(LEASE_E_INVALID, lease_owner_generate(NULL, first, &last_error));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(submit_adds_a_pending_run),
		store_test(submit_again_leaves_the_run_as_it_is),
		store_test(submit_makes_ids_in_order_of_time),
		store_test(submit_counts_delay_and_deadline_by_the_database_clock),
		store_test(submit_while_another_session_adds_the_same_run),
		store_test(claim_release_lose_claim_again),
		store_test(claim_grants_a_lease),
		store_test(claim_by_the_live_owner_refreshes),
		store_test(claim_by_the_live_owner_never_shortens),
		store_test(claim_by_another_is_held_whether_the_lease_is_over_or_not),
		store_test(claim_closes_a_leftover_attempt_whose_lease_is_over),
		store_test(claim_spares_a_leftover_attempt_whose_lease_holds),
		store_test(claim_next_closes_a_leftover_attempt_too),
		store_test(claim_loses_to_a_renewal_of_the_leftover_attempt),
		store_test(claim_by_an_owner_that_stands_on_a_closed_attempt),
		store_test(claim_takes_over_a_running_run_without_open_attempt),
		store_test(claim_is_refused_before_not_before),
		store_test(claim_never_reaches_past_the_deadline),
		store_test(claim_is_refused_past_the_deadline),
		store_test(claim_of_what_is_not_there_or_has_ended),
		store_test(claim_tells_of_a_cancel_request),
		store_test(a_refusal_leaves_the_grant_as_it_was),
		store_test(claim_next_takes_the_oldest_that_is_due),
		store_test(claim_next_gives_a_requeued_run_its_old_place),
		store_test(claim_next_passes_over_what_others_have_locked),
		store_test(claim_next_keeps_to_its_tenant),
		store_test(claim_next_takes_over_only_when_asked_and_pending_first),
		store_test(claim_next_is_not_stopped_by_a_pending_run_with_a_cancel_request),
		store_test(claim_next_refuses_an_owner_it_cannot_serve_and_writes_nothing),
		store_test(claiming_costs_two_round_trips),
		cmocka_unit_test(an_owner_is_new_each_time),
	};

	return cmocka_run_group_tests_name("claim", tests, NULL, scenario_end);
}
