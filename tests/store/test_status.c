/*
 * Reading: a run with its history in one snapshot, where a database stands, and whether it is one
 * that this library can work on.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

static void a_history_tells_all_of_a_run(void **state)
{
	struct scenario *s = *state;
	struct lease_submission submission = { .run_id = "r", .tenant_id = "t", .deadline = LONG };
	struct lease_claim given = {
		.run_id = "r", .owner = "w1", .ttl = 2 * LONG, .trace_id = "trace"
	};
	struct lease_release release;
	struct lease_history *history;
	struct lease_grant first, second;

	assert_granted(lease_submit(s->worker, &submission, NULL, NULL, &last_error));
	assert_granted(lease_mark_running(s->worker, &given, &first, &last_error));
	release = (struct lease_release){
		.token = first.token, .delay = 1, .error_code = "busy", .error_message = "come back"
	};
	assert_granted(lease_release_lease_for_retry(s->worker, &release, NULL, &last_error));
	assert_granted(claim(s->worker, "r", "w2", 60 * LEASE_SECOND, &second));
	assert_granted(request_cancel(s->worker, "r", 0, NULL));

	assert_granted(lease_list_attempts(s->other, "r", &history, &last_error));
	assert_string_equal(history->run.run_id, "r");
	assert_string_equal(history->run.tenant_id, "t");
	assert_int_equal(history->run.status, LEASE_RUN_RUNNING);
	assert_int_equal(history->run.state_version, 4);
	assert_int_equal(history->run.plan_version, 1);
	assert_true(history->run.not_before > history->run.created_at);
	assert_true(history->run.deadline_at - history->run.created_at <= LONG + LEASE_SECOND);
	assert_true(history->run.cancel_requested_at >= second.now);
	assert_true(history->run.updated_at > history->run.created_at);
	assert_true(history->run.finished_at == LEASE_TIME_NONE);
	assert_null(history->run.terminal_error_code);
	assert_null(history->run.terminal_error_message);
	assert_true(history->now > second.now);

	assert_int_equal(history->n_attempts, 2);
	assert_int_equal(history->attempts[0].attempt_no, 1);
	assert_string_equal(history->attempts[0].owner, "w1");
	assert_true(history->attempts[0].started_at == first.now);
	assert_true(history->attempts[0].lease_expires_at == history->run.deadline_at);
	assert_true(history->attempts[0].deadline_at == history->run.deadline_at);
	assert_true(history->attempts[0].cancel_requested_at == LEASE_TIME_NONE);
	assert_true(history->attempts[0].finished_at > first.now);
	assert_int_equal(history->attempts[0].outcome, LEASE_OUTCOME_RETRY_RELEASED);
	assert_string_equal(history->attempts[0].error_code, "busy");
	assert_string_equal(history->attempts[0].error_message, "come back");
	assert_string_equal(history->attempts[0].trace_id, "trace");

	assert_int_equal(history->attempts[1].attempt_no, 2);
	assert_int_equal(history->attempts[1].outcome, LEASE_OUTCOME_NONE);
	assert_true(history->attempts[1].finished_at == LEASE_TIME_NONE);
	assert_true(history->attempts[1].heartbeat_at == second.now);
	assert_true(history->attempts[1].lease_expires_at == second.lease_expires_at);
	assert_true(history->attempts[1].cancel_requested_at == history->run.cancel_requested_at);
	assert_null(history->attempts[1].error_code);
	assert_null(history->attempts[1].error_message);
	assert_null(history->attempts[1].trace_id);
	lease_history_free(history);
	lease_history_free(NULL);
}

static void a_history_without_attempts_or_without_a_run(void **state)
{
	struct scenario *s = *state;
	struct lease_history *history = NULL;

	assert_refused(LEASE_NOT_FOUND, lease_list_attempts(s->worker, "r", &history, &last_error));
	assert_null(history);
	assert_granted(submit(s->worker, "r"));
	assert_granted(lease_list_attempts(s->worker, "r", &history, &last_error));
	assert_int_equal(history->n_attempts, 0);
	assert_int_equal(history->run.status, LEASE_RUN_PENDING);
	lease_history_free(history);
}

static void a_long_history_is_in_order_of_the_attempts(void **state)
{
	struct scenario *s = *state;
	struct lease_history *history;

	sql(s->admin, "insert into lease.runs (run_id, status) values ('r', 'running')");
	for (int i = 1; i <= 12; i++)
		sql(s->admin,
		    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		    "values ('r', %d, 'w', clock_timestamp()); update lease.run_attempts "
		    "set finished_at = clock_timestamp(), outcome = 'lease_expired' "
		    "where attempt_no = %d",
		    i, i);
	assert_granted(lease_list_attempts(s->worker, "r", &history, &last_error));
	assert_int_equal(history->n_attempts, 12);
	for (int i = 0; i < 12; i++)
		assert_int_equal(history->attempts[i].attempt_no, i + 1);
	lease_history_free(history);
}

static void the_status_of_an_empty_database(void **state)
{
	struct scenario *s = *state;
	struct lease_status status;

	memset(&status, 0x5a, sizeof(status));
	assert_granted(lease_read_status(s->worker, &status, &last_error));
	assert_int_equal(status.runs_pending + status.runs_running + status.runs_waiting, 0);
	assert_int_equal(status.attempts_open + status.attempts_expired, 0);
	assert_true(status.oldest_expired_at == LEASE_TIME_NONE);
	assert_true(status.next_end_at == LEASE_TIME_NONE);
	assert_true(status.now > INT64_C(1577836800) * LEASE_SECOND);
}

static void the_status_counts_runs_and_leases(void **state)
{
	struct scenario *s = *state;
	struct lease_status status;
	struct lease_token token;

	for (int i = 0; i < 3; i++) {
		char run_id[8];

		snprintf(run_id, sizeof(run_id), "p%d", i);
		assert_granted(submit(s->worker, run_id));
	}
	token = take_run(s, "asleep", "w");
	assert_granted(suspend(s->worker, &token, NULL));
	token = take_run(s, "done", "w");
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	take_run(s, "a", "w");
	take_run(s, "b", "w");
	take_run(s, "c", "w");
	take_run(s, "d", "w");
	sql(s->admin, "update lease.run_attempts set lease_expires_at = case run_id "
		      "when 'a' then timestamptz '2020-01-01 00:00:01+00' "
		      "when 'b' then timestamptz '2020-01-01 00:00:00+00' "
		      "when 'c' then timestamptz '2100-01-01 00:00:00+00' "
		      "else timestamptz '2100-01-01 00:00:00.5+00' end where finished_at is null");
	assert_granted(lease_read_status(s->worker, &status, &last_error));
	assert_int_equal(status.runs_pending, 3);
	assert_int_equal(status.runs_running, 4);
	assert_int_equal(status.runs_waiting, 1);
	assert_int_equal(status.attempts_open, 4);
	assert_int_equal(status.attempts_expired, 2);
	assert_true(status.oldest_expired_at == INT64_C(1577836800) * LEASE_SECOND);
	assert_true(status.next_end_at == INT64_C(4102444800) * LEASE_SECOND);
}

static void a_database_of_this_version_passes_the_check(void **state)
{
	struct scenario *s = *state;

	assert_granted(lease_check_database(s->worker, 0, &last_error));
	assert_sql(s->admin, "t", "select max(version) = %d from lease.schema_migrations",
		   LEASE_SCHEMA_VERSION);
}

static void a_database_that_is_too_old_or_too_new_does_not(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	sql(s->admin,
	    "insert into lease.schema_migrations (version, name, checksum) values (%d, 'x', 'x')",
	    LEASE_SCHEMA_VERSION + 1);
	assert_error(LEASE_E_SCHEMA, lease_check_database(s->worker, 0, &last_error));
	assert_non_null(strstr(last_error.message, "newer"));
	assert_error(LEASE_E_SCHEMA,
		     lease_reconcile_expired_leases(s->worker, &options, NULL, NULL, &last_error));
	sql(s->admin, "delete from lease.schema_migrations where version >= %d",
	    LEASE_SCHEMA_VERSION);
	assert_error(LEASE_E_SCHEMA, lease_check_database(s->worker, 0, &last_error));
	assert_non_null(strstr(last_error.message, "leasectl migrate"));
	sql(s->admin, "delete from lease.schema_migrations");
	assert_error(LEASE_E_SCHEMA, lease_check_database(s->worker, 0, &last_error));
	assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_FIX);
	assert_null(strchr(last_error.message, '\n'));
}

/* What the view must say of each state that cannot be. */
static void unexplained_runs_are_told(void **state)
{
	static const struct {
		const char *status, *outcome, *error_code;
		bool explained;
	} table[] = {
		{ "running", NULL, NULL, true },
		{ "pending", NULL, NULL, false },
		{ "waiting", NULL, NULL, false },
		{ "failed", NULL, NULL, false },
		{ "completed", "completed", NULL, true },
		{ "failed", "completed", NULL, false },
		{ "running", "completed", NULL, false },
		{ "failed", "failed", "x", true },
		{ "completed", "failed", "x", false },
		{ "cancelled", "cancelled", NULL, true },
		{ "pending", "cancelled", NULL, false },
		{ "interrupted", "interrupted", NULL, true },
		{ "waiting", "interrupted", NULL, false },
		{ "waiting", "interrupted", "suspended", true },
		{ "pending", "interrupted", "suspended", true },
		{ "running", "interrupted", "suspended", false },
		{ "completed", "interrupted", "suspended", false },
		{ "pending", "retry_released", NULL, true },
		{ "running", "retry_released", NULL, false },
		{ "failed", "retry_released", NULL, true },
		{ "completed", "retry_released", NULL, false },
		{ "running", "lease_expired", NULL, true },
		{ "pending", "lease_expired", NULL, true },
		{ "failed", "lease_expired", NULL, true },
		{ "cancelled", "lease_expired", NULL, true },
		{ "completed", "lease_expired", NULL, false },
		{ "interrupted", "lease_expired", NULL, false },
	};
	struct scenario *s = *state;

	for (size_t i = 0; i < LENGTH(table); i++) {
		bool terminal = lease_run_status_is_terminal(
			(enum lease_run_status)lease_run_status_parse(table[i].status));
		char *count;

		sql(s->admin,
		    "insert into lease.runs (run_id, status, finished_at) "
		    "values ('r%zu', '%s', %s); "
		    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		    "values ('r%zu', 1, 'w', clock_timestamp())",
		    i, table[i].status, terminal ? "clock_timestamp()" : "null", i);
		if (table[i].outcome)
			sql(s->admin,
			    "update lease.run_attempts set finished_at = clock_timestamp(), "
			    "outcome = '%s', error_code = nullif('%s', '') where run_id = 'r%zu'",
			    table[i].outcome, table[i].error_code ? table[i].error_code : "", i);
		count = sql_text(
			s->admin,
			"select count(*) from lease.unexplained_runs where run_id = 'r%zu'", i);
		if (strcmp(count, table[i].explained ? "0" : "1") != 0)
			fail_msg("run %s, attempt %s (%s): %s rows", table[i].status,
				 table[i].outcome ? table[i].outcome : "open",
				 table[i].error_code ? table[i].error_code : "-", count);
		free(count);
	}
	sql(s->admin,
	    "insert into lease.runs (run_id, status) values ('gap', 'running'); "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('gap', 2, 'w', clock_timestamp()); "
	    "insert into lease.runs (run_id, status) values ('legacy', 'running')");
	assert_sql(s->admin, "attempt numbers have a gap",
		   "select reason from lease.unexplained_runs where run_id in ('gap', 'legacy')");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_history_tells_all_of_a_run),
		store_test(a_history_without_attempts_or_without_a_run),
		store_test(a_long_history_is_in_order_of_the_attempts),
		store_test(the_status_of_an_empty_database),
		store_test(the_status_counts_runs_and_leases),
		store_test(a_database_of_this_version_passes_the_check),
		store_test_alone(a_database_that_is_too_old_or_too_new_does_not),
		store_test(unexplained_runs_are_told),
	};

	return cmocka_run_group_tests_name("status", tests, NULL, scenario_end);
}
