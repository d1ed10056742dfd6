/*
 * Ending an attempt on a real database: released, suspended, completed, failed, cancelled; by its
 * owner while the lease holds, once, and by nobody else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* -- terminal statuses -------------------------------------------------------------------------- */

static void finish_with(struct scenario *s, enum lease_run_status status, const char *word)
{
	struct lease_token token = take_run(s, word, "w");
	struct lease_change change;
	char expected[128], *before;

	assert_granted(finish(s->worker, &token, status, "my_code", &change));
	assert_true(change.changed);
	assert_int_equal(change.status, status);
	assert_int_equal(change.state_version, 3);
	snprintf(expected, sizeof(expected), "%s v3 my_code | 1 w %s my_code", word, word);
	assert_run(s, word, expected);
	assert_sql(s->admin, "t",
		   "select r.finished_at >= a.finished_at and a.finished_at >= a.started_at "
		   "and a.error_message is null and r.terminal_error_message is null "
		   "from lease.runs r join lease.run_attempts a using (run_id) where run_id = '%s'",
		   word);

	before = run_bytes(s, word);
	assert_granted(finish(s->worker, &token, status, "other_code", &change));
	assert_false(change.changed);
	assert_int_equal(change.status, status);
	assert_int_equal(change.state_version, 3);
	assert_untouched(s, word, before);
}

static void terminal_statuses_close_the_attempt_with_the_same_word_once(void **state)
{
	struct scenario *s = *state;

	finish_with(s, LEASE_RUN_COMPLETED, "completed");
	finish_with(s, LEASE_RUN_FAILED, "failed");
	finish_with(s, LEASE_RUN_INTERRUPTED, "interrupted");
	assert_explained(s);
}

static void another_terminal_status_is_refused_afterwards(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	char *before;

	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	before = run_bytes(s, "r");
	assert_refused(LEASE_TERMINAL, finish(s->worker, &token, LEASE_RUN_FAILED, NULL, NULL));
	assert_refused(LEASE_TERMINAL, finish(s->worker, &token, LEASE_RUN_CANCELLED, NULL, NULL));
	assert_refused(LEASE_TERMINAL, release(s->worker, &token, 0, NULL));
	assert_refused(LEASE_TERMINAL, suspend(s->worker, &token, NULL));
	assert_refused(LEASE_TERMINAL, renew(s->worker, &token, LONG, NULL));
	assert_refused(LEASE_TERMINAL, give_up(s->worker, "r", 0, NULL));
	assert_refused(LEASE_TERMINAL, resume(s->worker, "r", 0, NULL));
	assert_refused(LEASE_TERMINAL, request_cancel(s->worker, "r", 0, NULL));
	assert_untouched(s, "r", before);
}

static void the_message_is_kept_with_the_code(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_finish given = { .token = &token,
				      .status = LEASE_RUN_FAILED,
				      .error_code = "exit_1",
				      .error_message = "it broke" };

	assert_granted(lease_set_terminal_status(s->worker, &given, NULL, &last_error));
	assert_sql(
		s->admin, "exit_1|it broke|exit_1|it broke",
		"select concat_ws('|', error_code, error_message, terminal_error_code, "
		"terminal_error_message) from lease.runs join lease.run_attempts using (run_id)");
}

/* A run that was interrupted for good must not look like one that was suspended. */
static void a_reserved_error_code_does_not_pass_for_a_suspension(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_change change;
	int result = finish(s->worker, &token, LEASE_RUN_INTERRUPTED, "suspended", &change);

	if (result == LEASE_E_INVALID) {
		assert_run(s, "r", "running v2 | 1 w open");
		return;
	}
	assert_granted(result);
	assert_explained(s);
	assert_granted(finish(s->worker, &token, LEASE_RUN_INTERRUPTED, "suspended", &change));
	assert_false(change.changed);
}

/* -- owners whose lease is over, and those who never had it -------------------------------------- */

static void refuse_all(struct scenario *s, const struct lease_token *token, int refusal)
{
	char *before = run_bytes(s, token->run_id);

	assert_refused(refusal, renew(s->worker, token, LONG, NULL));
	assert_refused(refusal, release(s->worker, token, 0, NULL));
	assert_refused(refusal, suspend(s->worker, token, NULL));
	assert_refused(refusal, finish(s->worker, token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_refused(refusal, finish(s->worker, token, LEASE_RUN_FAILED, NULL, NULL));
	assert_refused(refusal, finish(s->worker, token, LEASE_RUN_INTERRUPTED, NULL, NULL));
	assert_untouched(s, token->run_id, before);
}

static void an_expired_owner_is_refused_before_any_sweep(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");

	end_lease(s, "r");
	refuse_all(s, &token, LEASE_EXPIRED);
	assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, NULL));
	refuse_all(s, &token, LEASE_EXPIRED);
	assert_granted(claim(s->other, "r", "w2", LONG, NULL));
	refuse_all(s, &token, LEASE_EXPIRED);
	assert_run(s, "r", "running v4 | 1 w1 lease_expired worker_lease_expired | 2 w2 open");
}

static void a_stale_owner_and_a_stale_number_are_refused_always(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1"), wrong = token;

	snprintf(wrong.owner, sizeof(wrong.owner), "w2");
	refuse_all(s, &wrong, LEASE_NOT_OWNER);
	wrong = token;
	wrong.attempt_no = 2;
	refuse_all(s, &wrong, LEASE_NOT_OWNER);
	wrong.attempt_no = INT32_MAX;
	refuse_all(s, &wrong, LEASE_NOT_OWNER);
	snprintf(wrong.run_id, sizeof(wrong.run_id), "other");
	assert_granted(submit(s->worker, "other"));
	refuse_all(s, &wrong, LEASE_NOT_OWNER);
	assert_granted(renew(s->worker, &token, LONG, NULL));
}

static void case_09_a_worker_restarts_under_the_same_name(void **state)
{
	struct scenario *s = *state;
	struct lease_token old = take_run(s, "r", "host-1:first");

	assert_refused(LEASE_HELD, claim(s->worker, "r", "host-1:second", LONG, NULL));
	end_lease(s, "r");
	assert_refused(LEASE_HELD, claim(s->worker, "r", "host-1:second", LONG, NULL));
	refuse_all(s, &old, LEASE_EXPIRED);
	assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_granted(claim(s->worker, "r", "host-1:second", LONG, NULL));
	refuse_all(s, &old, LEASE_EXPIRED);
	assert_run(s, "r",
		   "running v4 | 1 host-1:first lease_expired worker_lease_expired "
		   "| 2 host-1:second open");
}

/* No verb gives one owner two attempts of a run, so the second one is made by hand. */
static void case_22_the_same_owner_with_a_higher_attempt(void **state)
{
	struct scenario *s = *state;
	struct lease_token old = take_run(s, "r", "w"), new = token_of("r", 2, "w");

	end_lease(s, "r");
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	sql(s->admin,
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('r', 2, 'w', clock_timestamp() + interval '1 h')");
	refuse_all(s, &old, LEASE_EXPIRED);
	assert_granted(renew(s->worker, &new, LONG, NULL));
	assert_granted(finish(s->worker, &new, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_run(s, "r", "completed v3 | 1 w lease_expired worker_lease_expired | 2 w completed");
	/* the old token still names an attempt that was lost */
	assert_refused(LEASE_TERMINAL, finish(s->worker, &old, LEASE_RUN_COMPLETED, NULL, NULL));
}

/* -- release and suspend ------------------------------------------------------------------------- */

static void release_makes_the_run_due_after_the_delay(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_release given = { .token = token,
				       .delay = 60 * LEASE_SECOND,
				       .error_code = "rate_limited",
				       .error_message = "later" };
	struct lease_change change;
	char *before;

	assert_granted(lease_release_lease_for_retry(s->worker, &given, &change, &last_error));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_PENDING);
	assert_int_equal(change.state_version, 3);
	assert_run(s, "r", "pending v3 | 1 w retry_released rate_limited");
	assert_sql(
		s->admin, "t",
		"select not_before - a.finished_at between interval '59 s' and interval '61 s' "
		"and error_message = 'later' and terminal_error_code is null and r.finished_at is null "
		"from lease.runs r join lease.run_attempts a using (run_id)");
	before = run_bytes(s, "r");
	assert_granted(lease_release_lease_for_retry(s->worker, &given, &change, &last_error));
	assert_false(change.changed);
	assert_untouched(s, "r", before);
	assert_explained(s);
}

static void release_repeated_tells_where_the_run_is_now(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");
	struct lease_change change;
	char *before;

	assert_granted(release(s->worker, &token, 0, NULL));
	assert_granted(claim(s->other, "r", "w2", LONG, NULL));
	before = run_bytes(s, "r");
	assert_granted(release(s->worker, &token, LONG, &change));
	assert_false(change.changed);
	assert_int_equal(change.status, LEASE_RUN_RUNNING);
	assert_int_equal(change.state_version, 4);
	assert_untouched(s, "r", before);
}

static void suspend_waits_and_resume_makes_it_pending(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w1");
	struct lease_change change;
	char *before;

	assert_granted(suspend(s->worker, &token, &change));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_WAITING);
	assert_run(s, "r", "waiting v3 | 1 w1 interrupted suspended");
	before = run_bytes(s, "r");
	assert_granted(suspend(s->worker, &token, &change));
	assert_false(change.changed);
	assert_refused(LEASE_STALE_VERSION, resume(s->worker, "r", 2, &change));
	assert_untouched(s, "r", before);

	assert_granted(resume(s->worker, "r", 3, &change));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_PENDING);
	assert_int_equal(change.state_version, 4);
	before = run_bytes(s, "r");
	assert_granted(resume(s->worker, "r", 0, &change));
	assert_false(change.changed);
	assert_untouched(s, "r", before);
	assert_granted(claim(s->other, "r", "w2", LONG, NULL));
	assert_refused(LEASE_ILLEGAL, resume(s->worker, "r", 0, NULL));
	assert_run(s, "r", "running v5 | 1 w1 interrupted suspended | 2 w2 open");
	assert_explained(s);
}

static void resume_is_refused_past_the_deadline(void **state)
{
	struct scenario *s = *state;
	char *before;

	sql(s->admin, "insert into lease.runs (run_id, status, deadline_at) "
		      "values ('r', 'waiting', clock_timestamp() - interval '1 s')");
	before = run_bytes(s, "r");
	assert_refused(LEASE_DEADLINE, resume(s->worker, "r", 0, NULL));
	assert_untouched(s, "r", before);
	assert_refused(LEASE_NOT_FOUND, resume(s->worker, "nothing", 0, NULL));
}

/* -- giving up ----------------------------------------------------------------------------------- */

static void give_up_what_nobody_works_on(void **state)
{
	struct scenario *s = *state;
	struct lease_finish given = { .run_id = "pending",
				      .status = LEASE_RUN_FAILED,
				      .error_code = "given_up",
				      .error_message = "nobody wants it" };
	struct lease_change change;
	struct lease_token token;
	char *before;

	submit(s->worker, "pending");
	assert_granted(lease_set_terminal_status(s->worker, &given, &change, &last_error));
	assert_true(change.changed);
	assert_run(s, "pending", "failed v2 given_up");
	assert_sql(s->admin, "nobody wants it", "select terminal_error_message from lease.runs");

	token = take_run(s, "waiting", "w1");
	assert_granted(suspend(s->worker, &token, NULL));
	assert_granted(give_up(s->worker, "waiting", 3, NULL));
	assert_run(s, "waiting", "failed v4 | 1 w1 interrupted suspended");

	take_run(s, "lost", "w1");
	before = run_bytes(s, "lost");
	assert_refused(LEASE_HELD, give_up(s->worker, "lost", 0, NULL));
	assert_untouched(s, "lost", before);
	end_lease(s, "lost");
	assert_refused(LEASE_HELD, give_up(s->worker, "lost", 0, NULL));
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	assert_refused(LEASE_STALE_VERSION, give_up(s->worker, "lost", 1, NULL));
	assert_granted(give_up(s->worker, "lost", 2, &change));
	assert_int_equal(change.state_version, 3);
	assert_granted(give_up(s->worker, "lost", 0, &change));
	assert_false(change.changed);
	assert_refused(LEASE_NOT_FOUND, give_up(s->worker, "nothing", 0, NULL));
	given.run_id = "lost";
	given.status = LEASE_RUN_COMPLETED;
	assert_refused(LEASE_ILLEGAL,
		       lease_set_terminal_status(s->worker, &given, NULL, &last_error));
	assert_explained(s);
}

/* -- cancelling ---------------------------------------------------------------------------------- */

static void cancel_of_a_pending_run_takes_effect_at_once(void **state)
{
	struct scenario *s = *state;
	struct lease_change change;
	char *before;

	submit(s->worker, "r");
	assert_refused(LEASE_STALE_VERSION, request_cancel(s->worker, "r", 2, NULL));
	assert_granted(request_cancel(s->worker, "r", 1, &change));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_CANCELLED);
	assert_int_equal(change.state_version, 2);
	assert_run(s, "r", "cancelled v2");
	before = run_bytes(s, "r");
	assert_granted(request_cancel(s->worker, "r", 0, &change));
	assert_false(change.changed);
	assert_untouched(s, "r", before);
	assert_refused(LEASE_NOT_FOUND, request_cancel(s->worker, "nothing", 0, NULL));
}

static void cancel_of_a_waiting_run_takes_effect_at_once(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	assert_granted(suspend(s->worker, &token, NULL));
	assert_granted(request_cancel(s->worker, "r", 0, NULL));
	assert_run(s, "r", "cancelled v4 | 1 w interrupted suspended");
	assert_explained(s);
}

static void cancel_of_a_running_run_reaches_its_worker(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_grant grant;
	struct lease_change change;
	char *before;

	assert_granted(renew(s->worker, &token, LONG, &grant));
	assert_false(grant.cancel_requested);
	assert_refused(LEASE_ILLEGAL, finish(s->worker, &token, LEASE_RUN_CANCELLED, NULL, NULL));

	assert_granted(request_cancel(s->other, "r", 2, &change));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_RUNNING);
	assert_int_equal(change.state_version, 2); /* a mark is no change of state */
	assert_sql(s->admin, "t",
		   "select r.cancel_requested_at = a.cancel_requested_at "
		   "from lease.runs r join lease.run_attempts a using (run_id)");
	before = run_bytes(s, "r");
	assert_granted(request_cancel(s->other, "r", 0, &change));
	assert_false(change.changed); /* set once */
	assert_refused(LEASE_CANCEL_REQUESTED,
		       finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_refused(LEASE_CANCEL_REQUESTED,
		       finish(s->worker, &token, LEASE_RUN_FAILED, NULL, NULL));
	assert_refused(LEASE_CANCEL_REQUESTED, release(s->worker, &token, 0, NULL));
	assert_refused(LEASE_CANCEL_REQUESTED, suspend(s->worker, &token, NULL));
	assert_untouched(s, "r", before);

	assert_granted(renew(s->worker, &token, LONG, &grant));
	assert_true(grant.cancel_requested);
	assert_granted(finish(s->worker, &token, LEASE_RUN_CANCELLED, NULL, NULL));
	assert_run(s, "r", "cancelled v3 | 1 w cancelled");
	assert_explained(s);
}

static void cancel_of_a_lost_workers_run_is_done_by_the_reconciler(void **state)
{
	struct scenario *s = *state;

	take_run(s, "marked", "w");
	assert_granted(request_cancel(s->other, "marked", 0, NULL));
	end_lease(s, "marked");
	take_run(s, "over", "w"); /* the request comes when the lease is over already */
	end_lease(s, "over");
	assert_granted(request_cancel(s->other, "over", 0, NULL));
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	assert_run(s, "marked", "cancelled v3 | 1 w lease_expired worker_lease_expired");
	assert_run(s, "over", "cancelled v3 | 1 w lease_expired worker_lease_expired");
	take_run(s, "orphan", "w");
	end_lease(s, "orphan");
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	assert_granted(request_cancel(s->other, "orphan", 0, NULL));
	assert_run(s, "orphan", "cancelled v3 | 1 w lease_expired worker_lease_expired");
	assert_explained(s);
}

static void cancel_closes_a_leftover_attempt_whose_lease_is_over(void **state)
{
	struct scenario *s = *state;

	sql(s->admin,
	    "insert into lease.runs (run_id) values ('r'); insert into lease.run_attempts "
	    "(run_id, attempt_no, owner, lease_expires_at) "
	    "values ('r', 1, 'w', clock_timestamp() + interval '1 h')");
	assert_refused(LEASE_HELD, request_cancel(s->worker, "r", 0, NULL));
	end_lease(s, "r");
	assert_granted(request_cancel(s->worker, "r", 0, NULL));
	assert_run(s, "r", "cancelled v2 | 1 w lease_expired worker_lease_expired");
	assert_explained(s);
}

static int cancel_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	return lease_request_cancel(conn, arg, 0, 0, NULL, reterr);
}

/* Between the look and the close the lease is extended: it is held, and nothing is written. */
static void cancel_loses_to_a_renewal_of_the_leftover_attempt(void **state)
{
	struct scenario *s = *state;
	struct call call = call_of(cancel_verb, s->worker, "r");

	sql(s->admin,
	    "insert into lease.runs (run_id) values ('r'); insert into lease.run_attempts "
	    "(run_id, attempt_no, owner, lease_expires_at) "
	    "values ('r', 1, 'w', clock_timestamp() - interval '1 s')");
	sql(s->other, "begin; update lease.run_attempts "
		      "set lease_expires_at = clock_timestamp() + interval '1 h'");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_refused(LEASE_HELD, call_wait(&call));
	assert_run(s, "r", "pending v1 | 1 w open");
}

/* -- cost ---------------------------------------------------------------------------------------- */

static void ending_costs_two_round_trips(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "a", "w1");
	struct round_trips trips;
	enum lease_run_status statuses[] = { LEASE_RUN_COMPLETED, LEASE_RUN_FAILED,
					     LEASE_RUN_INTERRUPTED };

	round_trips_start(&trips, s->worker);
	assert_granted(release(s->worker, &token, 0, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
	round_trips_start(&trips, s->worker);
	assert_granted(release(s->worker, &token, 0, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
	token = take_run(s, "b", "w1");
	round_trips_start(&trips, s->worker);
	assert_granted(suspend(s->worker, &token, NULL));
	assert_granted(resume(s->worker, "b", 0, NULL));
	assert_granted(request_cancel(s->worker, "b", 0, NULL));
	assert_int_equal(round_trips_stop(&trips), 6);
	for (size_t i = 0; i < LENGTH(statuses); i++) {
		token = take_run(s, lease_run_status_name(statuses[i]), "w1");
		round_trips_start(&trips, s->worker);
		assert_granted(finish(s->worker, &token, statuses[i], NULL, NULL));
		assert_int_equal(round_trips_stop(&trips), 2);
	}
	token = take_run(s, "c", "w1");
	assert_granted(request_cancel(s->worker, "c", 0, NULL));
	round_trips_start(&trips, s->worker);
	assert_granted(finish(s->worker, &token, LEASE_RUN_CANCELLED, NULL, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(terminal_statuses_close_the_attempt_with_the_same_word_once),
		store_test(another_terminal_status_is_refused_afterwards),
		store_test(the_message_is_kept_with_the_code),
		store_test(a_reserved_error_code_does_not_pass_for_a_suspension),
		store_test(an_expired_owner_is_refused_before_any_sweep),
		store_test(a_stale_owner_and_a_stale_number_are_refused_always),
		store_test(case_09_a_worker_restarts_under_the_same_name),
		store_test(case_22_the_same_owner_with_a_higher_attempt),
		store_test(release_makes_the_run_due_after_the_delay),
		store_test(release_repeated_tells_where_the_run_is_now),
		store_test(suspend_waits_and_resume_makes_it_pending),
		store_test(resume_is_refused_past_the_deadline),
		store_test(give_up_what_nobody_works_on),
		store_test(cancel_of_a_pending_run_takes_effect_at_once),
		store_test(cancel_of_a_waiting_run_takes_effect_at_once),
		store_test(cancel_of_a_running_run_reaches_its_worker),
		store_test(cancel_of_a_lost_workers_run_is_done_by_the_reconciler),
		store_test(cancel_closes_a_leftover_attempt_whose_lease_is_over),
		store_test(cancel_loses_to_a_renewal_of_the_leftover_attempt),
		store_test(ending_costs_two_round_trips),
	};

	return cmocka_run_group_tests_name("finish", tests, NULL, scenario_end);
}
