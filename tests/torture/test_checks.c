/*
 * Each check of the fault campaign finds what it is there for: a history that is whole brings no
 * finding, and the same history with one thing made wrong brings one of that check.
 *
 * The database refuses most of these wrongs by itself; here its guards are switched off.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checker.h"
#include "scenario.h"

static struct checker *checker;

static int open_checker(void **state)
{
	int r = scenario_open_alone(state);
	struct scenario *s = *state;

	checker = checker_new(s->conninfo, "none", 0);
	return r;
}

static int close_checker(void **state)
{
	checker_free(checker);
	checker = NULL;
	return scenario_close(state);
}

/* Run a: lost once, then worked on and completed. Run b: cancelled under its worker. */
static void make_history(struct scenario *s)
{
	struct lease_token token;
	struct lease_grant grant;
	struct lease_change change;
	struct lease_node_execution execution;
	struct lease_node_start start = { .node_id = "n1", .operation_id = "a/n1" };
	struct lease_node_finish end = { .node_id = "n1",
					 .execution_no = 1,
					 .status = LEASE_EXECUTION_SUCCEEDED };
	struct lease_checkpoint checkpoint = { .checkpoint_id = "c1", .expected_version = 4 };

	take_run(s, "a", "w:1");
	end_lease(s, "a");
	assert_granted(reconcile(s->admin, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_granted(claim(s->worker, "a", "w:2", LONG, &grant));
	start.token = end.token = checkpoint.token = grant.token;
	assert_granted(lease_node_start(s->worker, &start, &execution, &last_error));
	assert_granted(lease_node_finish(s->worker, &end, &change, &last_error));
	assert_granted(lease_checkpoint_record(s->worker, &checkpoint, &change, &last_error));
	assert_granted(lease_plan_change(s->worker, &grant.token, 5, 0, &change, &last_error));
	assert_granted(finish(s->worker, &grant.token, LEASE_RUN_COMPLETED, NULL, &change));
	token = take_run(s, "b", "w:3");
	assert_granted(request_cancel(s->other, "b", 0, &change));
	assert_granted(finish(s->worker, &token, LEASE_RUN_CANCELLED, NULL, &change));
}

static const struct {
	const char *check, *what;
	int findings;
} wrongs[] = {
	{ "01",
	  "update lease.run_attempts set finished_at = finished_at + interval '1 h'"
	  " where attempt_no = 1 and run_id = 'a'",
	  1 },
	{ "02",
	  "update lease.run_attempts set lease_expires_at = finished_at + interval '1 ms'"
	  " where outcome = 'lease_expired'",
	  1 },
	{ "02",
	  "update lease.run_attempts set deadline_at = lease_expires_at - interval '1 ms'"
	  " where run_id = 'b'",
	  1 },
	{ "03", "update lease.run_attempts set attempt_no = 2 where run_id = 'b'", 1 },
	{ "03", "update lease.node_executions set attempt_no = 2", 1 },
	{ "04", "update lease.runs set status = 'failed'", 2 },
	{ "04", "update lease.nodes set state = 'failed'", 1 },
	{ "05", "delete from lease.run_events where kind = 'attempt_opened' and attempt_no = 2",
	  1 },
	{ "05", "delete from lease.run_events where outcome = 'cancelled'", 1 },
	{ "05",
	  "insert into lease.run_events (kind, run_id, attempt_no, owner)"
	  " values ('attempt_opened', 'c', 3, 'w')",
	  1 },
	{ "06", "delete from lease.run_events where kind = 'node_finished'", 1 },
	{ "06",
	  "insert into lease.run_events (kind, run_id, attempt_no, node_id, execution_no)"
	  " values ('node_started', 'b', 1, 'n1', 1)",
	  1 },
	{ "07", "delete from lease.run_events where kind = 'run_submitted' and run_id = 'a'", 1 },
	{ "07", "delete from lease.run_events where kind = 'cancel_requested'", 1 },
	{ "07", "insert into lease.run_events (kind, run_id) values ('run_submitted', 'd')", 1 },
	{ "08", "delete from lease.run_events where kind = 'checkpoint_recorded'", 1 },
	{ "08", "update lease.runs set current_checkpoint_id = 'c0' where run_id = 'b'", 1 },
	{ "09", "update lease.node_executions set started_at = started_at + interval '1 h'", 1 },
	{ "09", "update lease.checkpoints set run_id = 'b', run_attempt_no = 1", 1 },
	/* in force since before the close, and pardoning it: by its amnesty, by the gap in the beats */
	{ "10",
	  "insert into torture.beats (at, beat_at, protect_from, amnesty_until, after)"
	  " select finished_at - interval '9 s', finished_at, finished_at - interval '9 s',"
	  " finished_at + interval '1 s', interval '9 s' from lease.run_attempts"
	  " where outcome = 'lease_expired'",
	  1 },
	{ "10",
	  "insert into torture.beats (at, beat_at, protect_from, amnesty_until, after)"
	  " select finished_at - interval '9 s', finished_at - interval '9 s',"
	  " finished_at - interval '9 s', finished_at - interval '9 s', interval '1 s'"
	  " from lease.run_attempts where outcome = 'lease_expired'",
	  1 },
	/* the row was deleted just before */
	{ "10",
	  "insert into torture.beats (at, beat_at, protect_from, amnesty_until, after)"
	  " select finished_at - interval '9 s', finished_at, finished_at - interval '9 s',"
	  " finished_at + interval '1 s', interval '9 s' from lease.run_attempts"
	  " where outcome = 'lease_expired';"
	  " insert into torture.beats (at) select finished_at - interval '1 ms'"
	  " from lease.run_attempts where outcome = 'lease_expired'",
	  0 },
	{ "20", "update lease.run_attempts set error_message = 'x' where run_id = 'a'", 1 },
	{ "20", "update lease.node_executions set run_id = 'b'", 1 },
	{ "21",
	  "insert into torture.acts (verb, call, run_id, attempt_no, owner, result, changed, word,"
	  " number) select v, 'x', 'run of ' || v, 1, 'w', 'ok', true, 'completed', 1 from"
	  " unnest('{submit,claim,claim_next,finish,release,suspend,give_up,node_start,"
	  "node_finish,checkpoint,plan_change,cancel,resume}'::text[]) v",
	  13 },
	{ "21",
	  "insert into torture.acts (verb, run_id, attempt_no, owner, result, changed, word) values"
	  " ('finish', 'a', 2, 'w:2', 'ok', false, 'failed'),"
	  " ('finish', 'b', 1, 'w:3', 'ok', false, 'cancelled')",
	  1 },
	{ "22",
	  "insert into torture.acts (verb, call, try, run_id, result) values"
	  " ('checkpoint', 'c1', 1, 'a', 'sent'), ('checkpoint', 'c1', 1, 'a', 'expired')",
	  1 },
	{ "22",
	  "insert into torture.acts (verb, call, try, run_id, result, unknown) values"
	  " ('checkpoint', 'c1', 1, 'b', 'sent', null),"
	  " ('checkpoint', 'c1', 1, 'b', 'timeout', true)",
	  0 },
	{ "23",
	  "insert into torture.acts (verb, run_id, attempt_no, owner, result, now, ends)"
	  " select 'renew', run_id, attempt_no, owner, 'ok', 1,"
	  " (extract(epoch from lease_expires_at) * 1000000)::bigint + 1000"
	  " from lease.run_attempts where run_id = 'a'",
	  1 },
	{ "23",
	  "insert into torture.acts (verb, run_id, attempt_no, owner, result, now, ends)"
	  " values ('renew', 'b', 1, 'w:4', 'ok', 1, 2)",
	  1 },
	{ "24",
	  "insert into torture.acts (verb, run_id, attempt_no, owner, result, at, local_end)"
	  " values ('claim', 'a', 1, 'w:1', 'ok', 1000, 9000),"
	  " ('claim', 'a', 2, 'w:2', 'ok', 8999, 20000)",
	  1 },
	{ "24",
	  "insert into torture.acts (verb, call, try, run_id, attempt_no, owner, result, at,"
	  " local_end, sent) values ('claim', 'x', 1, 'b', 1, 'w:1', 'ok', 1000, 9000, 900),"
	  " ('finish', 'y', 1, 'b', 1, 'w:1', 'sent', 5000, null, 5000),"
	  " ('claim', 'z', 1, 'b', 2, 'w:2', 'ok', 6000, 20000, 5900)",
	  0 },
	{ "25",
	  "insert into torture.acts (run_id, result, unknown, advice, sqlstate)"
	  " values ('a', 'server error', false, 'fix', '42501'),"
	  " ('b', 'unexpected answer', false, 'reconnect', null),"
	  " ('c', 'connection lost', true, 'reconnect', null)",
	  2 },
	{ "26", "delete from torture.followed where run_id = 'a' and place > 3", 1 },
	{ "26", "update torture.followed set place = -place where run_id = 'b'", 1 },
	{ "26", "insert into torture.followed values (100, 999, 'c')", 1 },
	{ "27",
	  "update lease.run_attempts set finished_at = null, outcome = null, error_code = null"
	  " where run_id = 'b'",
	  1 },
};

/* Findings are told once for a run and a check, so each wrong gets a checker of its own. */
static void find(struct scenario *s, const char *check, const char *what, int findings)
{
	struct checker *fresh = checker_new(s->conninfo, "none", 0);
	PGconn *conn = checker_connection(fresh);
	long found;

	sql(conn, "begin");
	for (const char *const *table =
		     (const char *const[]){ "runs", "run_attempts", "nodes", "node_executions",
					    "checkpoints", "run_events", NULL };
	     *table; table++)
		sql(conn, "alter table lease.%s disable trigger all", *table);
	sql(conn, "%s", what);
	found = checker_ask(fresh, check);
	sql(conn, "rollback");
	if (found != findings)
		fail_msg("check %s: %ld findings instead of %d: %s", check, found, findings, what);
	checker_free(fresh);
}

static void each_check_finds_what_it_is_for(void **state)
{
	struct scenario *s = *state;
	PGresult *result;

	checker_prepare(checker);
	checker_look(checker); /* before there is anything: the consumer's cursor begins here */
	make_history(s);
	assert_int_equal(checker_finish(checker, NULL, 0), 0);
	assert_int_equal(checker_violations(checker), 0);
	for (size_t i = 0; i < LENGTH(wrongs); i++)
		find(s, wrongs[i].check, wrongs[i].what, wrongs[i].findings);
	/* all of them: a check that nothing here breaks would be asked for nothing */
	result = PQexec(s->admin, "select count(*) from torture.copies");
	assert_string_equal(PQgetvalue(result, 0, 0), "4");
	PQclear(result);
}

static void every_check_is_tried(void **state)
{
	struct scenario *s = *state;
	char *folder = test_source("tests/torture/checks");
	struct process process;
	int tried = 0, files = 0;

	(void)s;
	process_start(&process, ((char *[]){ "ls", folder, NULL }), NULL);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	for (const char *c = process_output(&process); *c; c++)
		files += *c == '\n';
	for (size_t i = 0; i < LENGTH(wrongs); i++)
		tried += i == 0 || strcmp(wrongs[i].check, wrongs[i - 1].check) != 0;
	assert_int_equal(tried, files);
	free(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(each_check_finds_what_it_is_for, open_checker,
						close_checker),
		cmocka_unit_test(every_check_is_tried),
	};

	return cmocka_run_group_tests_name("torture/checks", tests, NULL, scenario_end);
}
