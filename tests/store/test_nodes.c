/*
 * Nodes and their executions on a real PostgreSQL: every execution stays on record with its worker,
 * the node follows its newest execution, and what is open under an attempt closes with it.
 */
#include "facts.h"

/* The executions of a node as one text: "number status error owner's attempt, …". */
#define assert_executions(conn, run_id, node_id, expected)                                         \
	assert_sql(conn, expected,                                                                 \
		   "select string_agg(concat_ws(' ', attempt_no, status, normalized_error, "       \
		   "'by ' || run_attempt_no), ', ' order by attempt_no) "                          \
		   "from lease.node_executions where run_id = '%s' and node_id = '%s'",            \
		   run_id, node_id)

#define assert_node(conn, run_id, node_id, expected)                                               \
	assert_sql(conn, expected,                                                                 \
		   "select state || ' ' || state_version from lease.nodes "                        \
		   "where run_id = '%s' and node_id = '%s'",                                       \
		   run_id, node_id)

/* -- retries ----------------------------------------------------------------------------------- */

static void node_that_times_out_twice_then_succeeds(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_story *story;
	struct lease_change change;

	for (int i = 1; i <= 3; i++) {
		int32_t number = start(f->conn, &grant.token, "call-tool", "op-1");

		assert_int_equal(number, i);
		if (i < 3)
			expect(0, fail_as(f->conn, &grant.token, "call-tool", number,
					  i == 1 ? "timeout" : "rate_limited", &change));
		else
			expect(0, succeed_as(f->conn, &grant.token, "call-tool", number, &change));
		assert_true(change.changed);
	}
	assert_executions(f->conn, "run", "call-tool",
			  "1 failed timeout by 1, 2 failed rate_limited by 1, 3 succeeded by 1");
	assert_node(f->conn, "run", "call-tool", "succeeded 6");
	assert_sql(f->conn, "op-1", "select string_agg(operation_id, ',') from lease.operations");

	expect(0, lease_read_story(f->conn, "run", &story, &failure));
	assert_int_equal(story->n_executions, 3);
	for (size_t i = 0; i < 3; i++) {
		const struct lease_execution *execution = &story->executions[i];

		assert_string_equal(execution->operation_id, "op-1");
		assert_string_equal(execution->owner, grant.token.owner);
		assert_true(execution->started_at <= execution->finished_at);
	}
	assert_null(story->unexplained);
	lease_story_free(story);
}

static void three_executions_by_three_workers_name_each_its_own(void **state)
{
	static const char *const errors[] = { "timeout", "rate_limited" };
	struct fixture *f = *state;
	char owners[3][LEASE_ID_MAX + 1];
	struct lease_story *story;

	submit(f->conn, "run");
	for (int i = 0; i < 3; i++) {
		char worker[32];
		struct lease_grant grant;
		int32_t number;

		snprintf(worker, sizeof(worker), "worker-%d", i + 1);
		grant = claim(f->conn, "run", worker);
		snprintf(owners[i], sizeof(owners[i]), "%s", grant.token.owner);
		number = start(f->conn, &grant.token, "call-tool", "op-1");
		if (i == 2) {
			expect(0, succeed_as(f->conn, &grant.token, "call-tool", number, NULL));
			expect(0, end_as(f->conn, &grant.token, LEASE_RUN_COMPLETED));
			break;
		}
		expect(0, fail_as(f->conn, &grant.token, "call-tool", number, errors[i], NULL));
		if (i == 0) {
			expect(0, release_as(f->conn, &grant.token, NULL));
		} else { /* the second worker dies after it reported */
			let_lease_end(f->conn, "run");
			assert_int_equal(reconcile(f->conn, LEASE_POLICY_REQUEUE).closed, 1);
		}
	}
	assert_executions(f->conn, "run", "call-tool",
			  "1 failed timeout by 1, 2 failed rate_limited by 2, 3 succeeded by 3");
	assert_sql(f->conn, "1", "select count(distinct operation_id) from lease.node_executions");
	expect(0, lease_read_story(f->conn, "run", &story, &failure));
	assert_int_equal(story->n_executions, 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(story->executions[i].run_attempt_no, i + 1);
		assert_string_equal(story->executions[i].owner, owners[i]);
		assert_string_equal(story->history->attempts[i].owner, owners[i]);
	}
	lease_story_free(story);
}

static void failed_execution_stays_as_it_was_to_the_byte(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	int32_t number;
	char *before;

	expect(0, lease_node_start(f->conn,
				   &(struct lease_node_start){ .token = grant.token,
							       .node_id = "n",
							       .operation_id = "op",
							       .trace_id = "trace-1" },
				   NULL, &failure));
	register_content(f->conn, "file:///partial");
	expect(0, lease_node_finish(
			  f->conn,
			  &(struct lease_node_finish){
				  .token = grant.token,
				  .node_id = "n",
				  .execution_no = 1,
				  .status = LEASE_EXECUTION_FAILED,
				  .normalized_error = "timeout",
				  .error_message = "no answer\nwithin 'ten' seconds: {\"a\",NULL}",
				  .output_ref = "file:///partial" },
			  NULL, &failure));
	before = sql_text(f->conn, "select e::text || e.xmin from lease.node_executions e");
	number = start(f->conn, &grant.token, "n", "op");
	expect(0, succeed_as(f->conn, &grant.token, "n", number, NULL));
	assert_sql(f->conn, before,
		   "select e::text || e.xmin from lease.node_executions e where attempt_no = 1");
	free(before);
	assert_sql(f->conn, "trace-1 no answer\nwithin 'ten' seconds: {\"a\",NULL} file:///partial",
		   "select concat_ws(' ', trace_id, error_message, output_ref) "
		   "from lease.node_executions where attempt_no = 1");
}

/* -- start ------------------------------------------------------------------------------------- */

static void starting_twice_is_held_and_says_which_execution_is_open(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_node_execution first, again = { 0 };

	expect(0, fail_as(f->conn, &grant.token, "n", start(f->conn, &grant.token, "n", "op"),
			  "timeout", NULL));
	expect(0, start_as(f->conn, &grant.token, "n", "op", &first));
	assert_int_equal(first.execution_no, 2);
	assert_int_equal(first.state_version, 3);
	assert_false(first.succeeded);
	assert_sql(f->conn, "t",
		   "select (extract(epoch from started_at) * 1000000)::int8 = %lld "
		   "from lease.node_executions where attempt_no = 2",
		   (long long)first.started_at);

	expect(LEASE_HELD, start_as(f->conn, &grant.token, "n", "op", &again));
	assert_int_equal(again.execution_no, 2);
	assert_false(again.succeeded);
	/* with another operation or none it is the same node */
	expect(LEASE_HELD, start_as(f->conn, &grant.token, "n", "op-2", &again));
	expect(LEASE_HELD, start_as(f->conn, &grant.token, "n", NULL, &again));
	assert_executions(f->conn, "run", "n", "1 failed timeout by 1, 2 running by 1");
	assert_sql(f->conn, "op", "select string_agg(operation_id, ',') from lease.operations");

	/* another node is another matter */
	assert_int_equal(start(f->conn, &grant.token, "m", "op-m"), 1);
	assert_sql(f->conn, "2",
		   "select count(*) from lease.node_executions where finished_at is null");
}

static void starting_what_succeeded_is_refused_and_hands_back_the_output(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_node_execution execution = { 0 };

	register_content(f->conn, "s3://bucket/result.json");
	start(f->conn, &grant.token, "n", "op");
	expect(0, lease_node_finish(
			  f->conn,
			  &(struct lease_node_finish){ .token = grant.token,
						       .node_id = "n",
						       .execution_no = 1,
						       .status = LEASE_EXECUTION_SUCCEEDED,
						       .output_ref = "s3://bucket/result.json" },
			  NULL, &failure));
	for (int i = 0; i < 2; i++) {
		expect(LEASE_TERMINAL, start_as(f->conn, &grant.token, "n", "op", &execution));
		assert_true(execution.succeeded);
		assert_int_equal(execution.execution_no, 1);
		assert_string_equal(execution.output_ref, "s3://bucket/result.json");
		/* and so for the next worker */
		expect(0, release_as(f->conn, &grant.token, NULL));
		grant = claim(f->conn, "run", "worker-2");
		memset(&execution, 0, sizeof(execution));
	}
	/* one that succeeded without output */
	start(f->conn, &grant.token, "m", NULL);
	expect(0, succeed_as(f->conn, &grant.token, "m", 1, NULL));
	expect(LEASE_TERMINAL, start_as(f->conn, &grant.token, "m", NULL, &execution));
	assert_true(execution.succeeded);
	assert_string_equal(execution.output_ref, "");
	assert_executions(f->conn, "run", "n", "1 succeeded by 1");
}

static void start_is_refused_without_a_lease_that_holds(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_node_execution execution = { .execution_no = 77 };
	struct lease_token other = grant.token;

	snprintf(other.run_id, sizeof(other.run_id), "nowhere");
	expect(LEASE_NOT_FOUND, start_as(f->conn, &other, "n", "op", &execution));
	other = grant.token;
	other.attempt_no = 2;
	expect(LEASE_NOT_OWNER, start_as(f->conn, &other, "n", "op", &execution));
	other = grant.token;
	snprintf(other.owner, sizeof(other.owner), "somebody:else");
	expect(LEASE_NOT_OWNER, start_as(f->conn, &other, "n", "op", &execution));

	start(f->conn, &grant.token, "failed-once", NULL);
	expect(0, fail_as(f->conn, &grant.token, "failed-once", 1, "timeout", NULL));
	expect(0, lease_request_cancel(f->conn, "run", 0, 0, NULL, &failure));
	expect(LEASE_CANCEL_REQUESTED, start_as(f->conn, &grant.token, "n", "op", &execution));
	let_lease_end(f->conn, "run");
	expect(LEASE_EXPIRED, start_as(f->conn, &grant.token, "n", "op", &execution));
	reconcile(f->conn, LEASE_POLICY_RECORD);
	assert_int_equal(execution.execution_no, 77); /* untouched by all of these */
	expect(LEASE_TERMINAL, start_as(f->conn, &grant.token, "failed-once", NULL, &execution));
	assert_false(execution.succeeded);

	/* lost, while the run goes on */
	grant = submit_and_claim(f->conn, "lost");
	let_lease_end(f->conn, "lost");
	reconcile(f->conn, LEASE_POLICY_RECORD);
	expect(LEASE_EXPIRED, start_as(f->conn, &grant.token, "n", "op", &execution));
	claim(f->conn, "lost", "worker-2");
	expect(LEASE_EXPIRED, start_as(f->conn, &grant.token, "n", "op", &execution));

	/* waiting: the token's attempt is closed */
	grant = submit_and_claim(f->conn, "waiting");
	expect(0, lease_suspend(f->conn, &grant.token, 0, NULL, &failure));
	expect(LEASE_EXPIRED, start_as(f->conn, &grant.token, "n", "op", &execution));

	assert_sql(f->conn, "0", "select count(*) from lease.operations");
	assert_sql(f->conn, "failed-once", "select string_agg(node_id, ',') from lease.nodes");
}

/* Nobody but a hand can make it so: an attempt that is open on a run that does not run. */
static void owner_of_a_run_that_does_not_run_is_told_illegal(void **state)
{
	struct fixture *f = *state;
	struct lease_token token = { .run_id = "run", .attempt_no = 1, .owner = "w:1" };

	f->inconsistent = true;
	submit(f->conn, "run");
	sql(f->conn, "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		     "values ('run', 1, 'w:1', clock_timestamp() + interval '1 hour')");
	expect(LEASE_ILLEGAL, start_as(f->conn, &token, "n", "op", NULL));
	expect(LEASE_ILLEGAL, succeed_as(f->conn, &token, "n", 1, NULL));
	expect(LEASE_ILLEGAL, checkpoint_as(f->conn, &token, "c", 1, NULL));
	expect(LEASE_ILLEGAL, lease_plan_change(f->conn, &token, 1, 0, NULL, &failure));
	let_lease_end(f->conn, "run");
	expect(LEASE_EXPIRED, start_as(f->conn, &token, "n", "op", NULL));
}

static void unregistered_content_is_refused_and_nothing_is_written(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_node_start begin = { .token = grant.token,
					  .node_id = "n",
					  .operation_id = "op",
					  .input_ref = "file:///never-registered" };
	struct lease_node_finish end = { .token = grant.token,
					 .node_id = "n",
					 .execution_no = 1,
					 .status = LEASE_EXECUTION_SUCCEEDED,
					 .output_ref = "file:///never-registered" };
	long long events = sql_number(f->conn, "select count(*) from lease.run_events");

	for (int i = 0; i < 2; i++) { /* with an operation and without */
		expect(LEASE_E_SERVER, lease_node_start(f->conn, &begin, NULL, &failure));
		assert_string_equal(failure.sqlstate, "23503");
		assert_non_null(strstr(failure.message, "file:///never-registered"));
		assert_false(failure.outcome_unknown);
		begin.operation_id = NULL;
	}
	assert_sql(f->conn, "0 0 0",
		   "select concat_ws(' ', (select count(*) from lease.nodes), "
		   "(select count(*) from lease.operations), "
		   "(select count(*) from lease.node_executions))");
	start(f->conn, &grant.token, "n", "op");
	expect(LEASE_E_SERVER, lease_node_finish(f->conn, &end, NULL, &failure));
	assert_string_equal(failure.sqlstate, "23503");
	assert_node(f->conn, "run", "n", "running 1");
	assert_int_equal(sql_number(f->conn, "select count(*) from lease.run_events"), events + 1);

	register_content(f->conn, "file:///never-registered");
	expect(0, lease_node_finish(f->conn, &end, NULL, &failure));
	begin.node_id = "m";
	begin.operation_id = "op-m";
	expect(0, lease_node_start(f->conn, &begin, NULL, &failure));
	assert_sql(f->conn, "file:///never-registered",
		   "select input_ref from lease.node_executions where node_id = 'm'");
}

/* There is no connection: it is not even looked at. */
static void bad_arguments_are_refused_before_anything_is_sent(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	char long_id[LEASE_ID_MAX + 2], long_ref[LEASE_REF_MAX + 2];
	struct lease_node_start begin = { .token = grant.token, .node_id = "n" };
	struct lease_node_finish end = { .token = grant.token,
					 .node_id = "n",
					 .execution_no = 1,
					 .status = LEASE_EXECUTION_FAILED,
					 .normalized_error = "timeout" };
	struct lease_node_start bad_start;
	struct lease_node_finish bad_end;

	memset(long_id, 'x', sizeof(long_id) - 1);
	long_id[LEASE_ID_MAX + 1] = '\0';
	memset(long_ref, 'x', sizeof(long_ref) - 1);
	long_ref[LEASE_REF_MAX + 1] = '\0';
#define refuse_start(...)                                                                          \
	bad_start = begin;                                                                         \
	__VA_ARGS__;                                                                               \
	expect(LEASE_E_INVALID, lease_node_start(NULL, &bad_start, NULL, &failure));               \
	assert_true(failure.message[0] != '\0')
#define refuse_finish(...)                                                                         \
	bad_end = end;                                                                             \
	__VA_ARGS__;                                                                               \
	expect(LEASE_E_INVALID, lease_node_finish(NULL, &bad_end, NULL, &failure));                \
	assert_true(failure.message[0] != '\0')

	refuse_start(bad_start.node_id = NULL);
	refuse_start(bad_start.node_id = "");
	refuse_start(bad_start.node_id = long_id);
	refuse_start(bad_start.operation_id = "");
	refuse_start(bad_start.operation_id = long_id);
	refuse_start(bad_start.input_ref = "");
	refuse_start(bad_start.input_ref = long_ref);
	refuse_start(bad_start.trace_id = long_id);
	refuse_start(bad_start.token.attempt_no = 0);
	refuse_start(bad_start.token.owner[0] = '\0');
	refuse_finish(bad_end.node_id = NULL);
	refuse_finish(bad_end.execution_no = 0);
	refuse_finish(bad_end.normalized_error = NULL); /* a failure has a name, */
	refuse_finish(bad_end.status = LEASE_EXECUTION_SUCCEEDED); /* a success has none */
	refuse_finish(bad_end.status = LEASE_EXECUTION_RUNNING);
	refuse_finish(bad_end.status = LEASE_EXECUTION_LEASE_EXPIRED);
	refuse_finish(bad_end.status = LEASE_EXECUTION_ABANDONED);
	refuse_finish(bad_end.output_ref = long_ref);
	refuse_finish(bad_end.normalized_error = long_id);
#undef refuse_start
#undef refuse_finish
}

static void names_of_any_kind_come_back_whole(void **state)
{
	static const char *const names[] = { "it's",  "a\"b",      "back\\slash",
					     "{x,y}", "NULL",      "\xf0\x9f\x90\x98",
					     "\\000", "new\nline", " " };
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_operation operation;

	for (size_t i = 0; i < LENGTH(names); i++) {
		start(f->conn, &grant.token, names[i], names[i]);
		expect(0, fail_as(f->conn, &grant.token, names[i], 1, names[i], NULL));
		expect(0, lease_operation_lookup(f->conn, names[i], &operation, &failure));
		assert_string_equal(operation.node_id, names[i]);
		assert_string_equal(operation.normalized_error, names[i]);
	}
	assert_int_equal(sql_number(f->conn, "select count(*) from lease.nodes"), LENGTH(names));
}

/* -- finish ------------------------------------------------------------------------------------ */

static void finish_by_a_token_that_is_stale_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run"), next;
	struct lease_change change = { .state_version = 77 };
	struct lease_token other = grant.token;

	start(f->conn, &grant.token, "n", "op");
	snprintf(other.run_id, sizeof(other.run_id), "nowhere");
	expect(LEASE_NOT_FOUND, succeed_as(f->conn, &other, "n", 1, &change));
	other = grant.token;
	other.attempt_no = 9;
	expect(LEASE_NOT_OWNER, succeed_as(f->conn, &other, "n", 1, &change));
	other = grant.token;
	snprintf(other.owner, sizeof(other.owner), "somebody:else");
	expect(LEASE_NOT_OWNER, succeed_as(f->conn, &other, "n", 1, &change));
	assert_node(f->conn, "run", "n", "running 1");

	/* its lease is over, before and after somebody noticed, and under the next worker's */
	let_lease_end(f->conn, "run");
	expect(LEASE_EXPIRED, succeed_as(f->conn, &grant.token, "n", 1, &change));
	assert_node(f->conn, "run", "n", "running 1");
	reconcile(f->conn, LEASE_POLICY_REQUEUE);
	expect(LEASE_EXPIRED, succeed_as(f->conn, &grant.token, "n", 1, &change));
	next = claim(f->conn, "run", "worker-2");
	expect(LEASE_EXPIRED, succeed_as(f->conn, &grant.token, "n", 1, &change));
	assert_int_equal(start(f->conn, &next.token, "n", "op"), 2);
	expect(LEASE_EXPIRED, succeed_as(f->conn, &grant.token, "n", 2, &change));
	assert_executions(f->conn, "run", "n", "1 lease_expired by 1, 2 running by 2");
	/* the old attempt under the new owner's name */
	other = next.token;
	other.attempt_no = 1;
	expect(LEASE_NOT_OWNER, succeed_as(f->conn, &other, "n", 2, &change));
	expect(0, end_as(f->conn, &next.token, LEASE_RUN_FAILED));
	expect(LEASE_TERMINAL, succeed_as(f->conn, &next.token, "n", 2, &change));
	assert_int_equal(change.state_version, 77);
}

static void finishing_again_changes_nothing_and_says_so(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_change change;
	char *before;

	start(f->conn, &grant.token, "n", NULL);
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", &change));
	assert_true(change.changed);
	assert_int_equal(change.status, LEASE_RUN_RUNNING);
	assert_int_equal(change.state_version, 2); /* the run's */
	before = sql_text(
		f->conn,
		"select string_agg(e::text, ';' order by event_id) from lease.run_events e");
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", &change));
	assert_false(change.changed);
	/* with another status it is another command */
	expect(LEASE_EXPIRED, succeed_as(f->conn, &grant.token, "n", 1, NULL));
	/* also after a second execution, also after the attempt's end, also after the run's */
	start(f->conn, &grant.token, "n", NULL);
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", &change));
	assert_false(change.changed);
	expect(0, succeed_as(f->conn, &grant.token, "n", 2, NULL));
	expect(0, end_as(f->conn, &grant.token, LEASE_RUN_COMPLETED));
	expect(0, succeed_as(f->conn, &grant.token, "n", 2, &change));
	assert_false(change.changed);
	assert_int_equal(change.status, LEASE_RUN_COMPLETED);
	expect(LEASE_TERMINAL, fail_as(f->conn, &grant.token, "n", 2, "timeout", NULL));
	assert_sql(
		f->conn, before,
		"select string_agg(e::text, ';' order by event_id) from lease.run_events e "
		"where event_id <= (select max(event_id) from lease.run_events where execution_no "
		"= 1)");
	free(before);
	assert_node(f->conn, "run", "n", "succeeded 4");
}

static void executions_of_others_and_of_nobody_cannot_be_finished(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run"), next;

	start(f->conn, &grant.token, "n", NULL);
	expect(LEASE_NOT_FOUND, succeed_as(f->conn, &grant.token, "n", 2, NULL));
	expect(LEASE_NOT_FOUND, succeed_as(f->conn, &grant.token, "m", 1, NULL));
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", NULL));
	start(f->conn, &grant.token, "open", NULL);
	expect(0, release_as(f->conn, &grant.token, NULL));
	next = claim(f->conn, "run", "worker-2");
	expect(LEASE_NOT_OWNER, succeed_as(f->conn, &next.token, "n", 1, NULL));
	/* not even by the same word, which would say that it had been this worker's */
	expect(LEASE_NOT_OWNER, fail_as(f->conn, &next.token, "n", 1, "timeout", NULL));
	expect(LEASE_NOT_OWNER, succeed_as(f->conn, &next.token, "open", 1, NULL));
	assert_executions(f->conn, "run", "n", "1 failed timeout by 1");
	assert_executions(f->conn, "run", "open", "1 abandoned by 1");
}

/* -- attempts that close ----------------------------------------------------------------------- */

static void end_completed(PGconn *conn, struct lease_grant *grant)
{
	expect(0, end_as(conn, &grant->token, LEASE_RUN_COMPLETED));
}

static void end_failed(PGconn *conn, struct lease_grant *grant)
{
	expect(0, end_as(conn, &grant->token, LEASE_RUN_FAILED));
}

static void end_interrupted(PGconn *conn, struct lease_grant *grant)
{
	expect(0, end_as(conn, &grant->token, LEASE_RUN_INTERRUPTED));
}

static void end_cancelled(PGconn *conn, struct lease_grant *grant)
{
	expect(0, lease_request_cancel(conn, grant->token.run_id, 0, 0, NULL, &failure));
	expect(0, end_as(conn, &grant->token, LEASE_RUN_CANCELLED));
}

static void end_released(PGconn *conn, struct lease_grant *grant)
{
	expect(0, release_as(conn, &grant->token, NULL));
}

static void end_suspended(PGconn *conn, struct lease_grant *grant)
{
	expect(0, lease_suspend(conn, &grant->token, 0, NULL, &failure));
}

static void lose(PGconn *conn, struct lease_grant *grant, enum lease_policy policy)
{
	let_lease_end(conn, grant->token.run_id);
	assert_int_equal(reconcile(conn, policy).closed, 1);
	assert_int_equal(reconcile(conn, policy).closed, 0);
}

static void lose_under_record(PGconn *conn, struct lease_grant *grant)
{
	lose(conn, grant, LEASE_POLICY_RECORD);
}

static void lose_under_fail(PGconn *conn, struct lease_grant *grant)
{
	lose(conn, grant, LEASE_POLICY_FAIL);
}

static void lose_under_requeue(PGconn *conn, struct lease_grant *grant)
{
	lose(conn, grant, LEASE_POLICY_REQUEUE);
}

static void lose_with_cancel_requested(PGconn *conn, struct lease_grant *grant)
{
	expect(0, lease_request_cancel(conn, grant->token.run_id, 0, 0, NULL, &failure));
	lose(conn, grant, LEASE_POLICY_RECORD);
}

static void lose_past_deadline(PGconn *conn, struct lease_grant *grant)
{
	wait_sql(conn,
		 "select deadline_at <= clock_timestamp() from lease.runs where run_id = '%s'",
		 grant->token.run_id);
	assert_int_equal(reconcile(conn, LEASE_POLICY_RECORD).closed, 1);
}

static const struct ending {
	const char *run_id; /* says what happens */
	int64_t deadline;
	void (*end)(PGconn *conn, struct lease_grant *grant);
	const char *outcome, *run_status, *execution_status;
} endings[] = {
	{ "completed", 0, end_completed, "completed", "completed", "abandoned" },
	{ "failed", 0, end_failed, "failed", "failed", "abandoned" },
	{ "interrupted", 0, end_interrupted, "interrupted", "interrupted", "abandoned" },
	{ "cancelled", 0, end_cancelled, "cancelled", "cancelled", "abandoned" },
	{ "released", 0, end_released, "retry_released", "pending", "abandoned" },
	{ "suspended", 0, end_suspended, "interrupted", "waiting", "abandoned" },
	{ "lost-record", 0, lose_under_record, "lease_expired", "running", "lease_expired" },
	{ "lost-fail", 0, lose_under_fail, "lease_expired", "failed", "lease_expired" },
	{ "lost-requeue", 0, lose_under_requeue, "lease_expired", "pending", "lease_expired" },
	{ "lost-cancel", 0, lose_with_cancel_requested, "lease_expired", "cancelled",
	  "lease_expired" },
	{ "lost-deadline", 300 * LEASE_MILLISECOND, lose_past_deadline, "lease_expired", "failed",
	  "lease_expired" },
};

/* What a run with an attempt that closed looks like: nodes "open-1" and "open-2", "done" before. */
static void assert_closed_with_attempt(PGconn *conn, const char *run_id, const char *outcome,
				       const char *run_status, const char *execution_status)
{
	char expected[512];

	snprintf(expected, sizeof(expected), "%s %s", run_status, outcome);
	assert_sql(conn, expected,
		   "select r.status || ' ' || a.outcome from lease.runs r "
		   "join lease.run_attempts a using (run_id) where run_id = '%s'",
		   run_id);
	snprintf(expected, sizeof(expected), "done failed failed 2, open-1 %s %s 2, open-2 %s %s 2",
		 execution_status, execution_status, execution_status, execution_status);
	assert_sql(
		conn, expected,
		"select string_agg(concat_ws(' ', node_id, e.status, n.state, n.state_version), ', "
		"' "
		"order by node_id) from lease.node_executions e join lease.nodes n using (run_id, "
		"node_id) "
		"where run_id = '%s'",
		run_id);
	snprintf(
		expected, sizeof(expected),
		"done running failed timeout 1 -, open-1 running %s 1 op-%s, open-2 running %s 1 -",
		execution_status, run_id, execution_status);
	assert_sql(conn, expected,
		   "select string_agg(concat_ws(' ', node_id, from_status, to_status, error_code, "
		   "attempt_no, coalesce(reference, '-')), ', ' order by node_id) "
		   "from lease.run_events where run_id = '%s' and kind = 'node_finished'",
		   run_id);
	assert_sql(
		conn, "t",
		"select bool_and(e.finished_at is not null and e.owner is not null) from "
		"(select x.finished_at, v.owner from lease.node_executions x "
		"left join lease.run_events v on v.run_id = x.run_id and v.node_id = x.node_id "
		"and v.execution_no = x.attempt_no and v.kind = 'node_finished' "
		"and v.owner = (select owner from lease.run_attempts a where a.run_id = x.run_id) "
		"where x.run_id = '%s') e",
		run_id);
}

static void executions_open_under_an_attempt_close_with_it(void **state)
{
	struct fixture *f = *state;

	for (size_t i = 0; i < LENGTH(endings); i++) {
		const struct ending *ending = &endings[i];
		struct lease_grant grant;
		char operation_id[64];

		snprintf(operation_id, sizeof(operation_id), "op-%s", ending->run_id);
		expect(0, lease_submit(f->conn,
				       &(struct lease_submission){ .run_id = ending->run_id,
								   .deadline = ending->deadline },
				       NULL, NULL, &failure));
		grant = claim(f->conn, ending->run_id, "worker-1");
		start(f->conn, &grant.token, "done", NULL);
		expect(0, fail_as(f->conn, &grant.token, "done", 1, "timeout", NULL));
		start(f->conn, &grant.token, "open-1", operation_id);
		start(f->conn, &grant.token, "open-2", NULL);
		ending->end(f->conn, &grant);
		assert_closed_with_attempt(f->conn, ending->run_id, ending->outcome,
					   ending->run_status, ending->execution_status);
		assert_explained(f->conn);
	}
}

/* An attempt that was left open on a run that does not run, as an older program might leave it. */
static void leave_open(PGconn *conn, const char *run_id, int64_t deadline)
{
	expect(0, lease_submit(conn,
			       &(struct lease_submission){ .run_id = run_id, .deadline = deadline },
			       NULL, NULL, &failure));
	sql(conn,
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('%s', 1, 'lost:1', clock_timestamp());"
	    "with n as (insert into lease.nodes (run_id, node_id, state) values ('%s', 'n', "
	    "'running')) "
	    "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
	    "values ('%s', 'n', 1, 1)",
	    run_id, run_id, run_id);
}

static void executions_under_an_attempt_that_was_left_open_close_with_it(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant;

	leave_open(f->conn, "taken-over", 0);
	grant = claim(f->conn, "taken-over", "worker-2");
	assert_int_equal(grant.token.attempt_no, 2);
	assert_executions(f->conn, "taken-over", "n", "1 lease_expired by 1");
	assert_int_equal(start(f->conn, &grant.token, "n", NULL), 2);

	leave_open(f->conn, "cancelled", 0);
	expect(0, lease_request_cancel(f->conn, "cancelled", 0, 0, NULL, &failure));
	assert_executions(f->conn, "cancelled", "n", "1 lease_expired by 1");

	leave_open(f->conn, "reconciled", 0);
	assert_int_equal(reconcile(f->conn, LEASE_POLICY_RECORD).closed, 1);
	assert_executions(f->conn, "reconciled", "n", "1 lease_expired by 1");
	assert_sql(f->conn, "pending", "select status from lease.runs where run_id = 'reconciled'");

	leave_open(f->conn, "too-late", LEASE_MILLISECOND);
	wait_sql(f->conn, "select deadline_at <= clock_timestamp() from lease.runs where run_id = "
			  "'too-late'");
	assert_int_equal(reconcile(f->conn, LEASE_POLICY_RECORD).closed, 1);
	assert_executions(f->conn, "too-late", "n", "1 lease_expired by 1");
	assert_sql(f->conn, "failed", "select status from lease.runs where run_id = 'too-late'");
	assert_sql(f->conn, "4",
		   "select count(*) from lease.run_events where kind = 'node_finished' "
		   "and to_status = 'lease_expired' and owner = 'lost:1'");
}

/* Chunks of many runs, halved and whole: each attempt's executions, and no other's. */
static void one_sweep_closes_the_executions_of_many_runs(void **state)
{
	struct fixture *f = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	sql(f->conn,
	    "insert into lease.runs (run_id, status) select 'run-' || i, 'running' from "
	    "generate_series(1, 500) i;"
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select 'run-' || i, 1, 'w:' || i, "
	    "clock_timestamp() + case when i %% 5 = 0 then interval '1 hour' else interval '0' "
	    "end "
	    "from generate_series(1, 500) i;"
	    "with n as (insert into lease.nodes (run_id, node_id, state) "
	    "select 'run-' || i, 'n-' || k, 'running' from generate_series(1, 500) i, "
	    "generate_series(1, 3) k) "
	    "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
	    "select 'run-' || i, 'n-' || k, 1, 1 from generate_series(1, 500) i, "
	    "generate_series(1, 3) k");
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	options.batch_size = 77;
	expect(0, lease_reconcile_expired_leases(f->conn, &options, NULL, &figures, &failure));
	assert_int_equal(figures.closed, 400);
	assert_sql(f->conn, "1200 300",
		   "select count(*) filter (where status = 'lease_expired') || ' ' || "
		   "count(*) filter (where status = 'running') from lease.node_executions");
	assert_sql(f->conn, "1200 400",
		   "select count(*) filter (where kind = 'node_finished') || ' ' || "
		   "count(*) filter (where kind = 'attempt_closed') from lease.run_events");
}

/* -- races ------------------------------------------------------------------------------------- */

struct racer {
	PGconn *conn;
	pthread_barrier_t *barrier;
	int (*act)(struct racer *racer);
	struct lease_token token;
	int result;
	struct lease_error error;
	struct lease_node_execution execution;
};

static void *race(void *argument)
{
	struct racer *racer = argument;

	pthread_barrier_wait(racer->barrier);
	racer->result = racer->act(racer);
	return NULL;
}

static void race_two(struct racer racers[2])
{
	pthread_barrier_t barrier;
	pthread_t threads[2];

	pthread_barrier_init(&barrier, NULL, 2);
	for (int i = 0; i < 2; i++) {
		racers[i].barrier = &barrier;
		pthread_create(&threads[i], NULL, race, &racers[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&barrier);
}

static int race_start(struct racer *racer)
{
	return lease_node_start(racer->conn,
				&(struct lease_node_start){ .token = racer->token,
							    .node_id = "n",
							    .operation_id = "op" },
				&racer->execution, &racer->error);
}

static int race_finish(struct racer *racer)
{
	return lease_node_finish(
		racer->conn,
		&(struct lease_node_finish){ .token = racer->token,
					     .node_id = "n",
					     .execution_no = racer->execution.execution_no,
					     .status = LEASE_EXECUTION_FAILED,
					     .normalized_error = "timeout" },
		NULL, &racer->error);
}

static int race_release(struct racer *racer)
{
	return lease_release_lease_for_retry(
		racer->conn, &(struct lease_release){ .token = racer->token }, NULL, &racer->error);
}

static void two_starts_at_once_open_one_execution(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct racer racers[2];

	memset(racers, 0, sizeof(racers));
	for (int i = 0; i < 2; i++)
		racers[i] = (struct racer){ .conn = test_connect(f->conninfo),
					    .act = race_start,
					    .token = grant.token };
	for (int round = 1; round <= 100; round++) {
		int winner;

		race_two(racers);
		winner = racers[0].result == 0 ? 0 : 1;
		assert_int_equal(racers[winner].result, 0);
		assert_int_equal(racers[!winner].result, LEASE_HELD);
		assert_int_equal(racers[winner].execution.execution_no, round);
		assert_int_equal(racers[!winner].execution.execution_no, round);
		expect(0, fail_as(f->conn, &grant.token, "n", round, "timeout", NULL));
	}
	for (int i = 0; i < 2; i++)
		PQfinish(racers[i].conn);
	assert_sql(f->conn, "100 100",
		   "select count(*) || ' ' || max(attempt_no) from lease.node_executions");
}

static void finish_against_the_end_of_its_attempt_has_one_outcome(void **state)
{
	struct fixture *f = *state;
	int finished = 0, abandoned = 0;
	struct racer racers[2];

	memset(racers, 0, sizeof(racers));
	submit(f->conn, "run");
	for (int i = 0; i < 2; i++)
		racers[i] = (struct racer){ .conn = test_connect(f->conninfo),
					    .act = i ? race_release : race_finish };
	for (int round = 1; round <= 100; round++) {
		struct lease_grant grant = claim(f->conn, "run", "worker-1");

		racers[0].token = racers[1].token = grant.token;
		racers[0].execution.execution_no = start(f->conn, &grant.token, "n", "op");
		race_two(racers);
		assert_int_equal(racers[1].result, 0);
		if (racers[0].result == 0) {
			finished++;
		} else {
			assert_int_equal(racers[0].result, LEASE_EXPIRED);
			abandoned++;
		}
	}
	for (int i = 0; i < 2; i++)
		PQfinish(racers[i].conn);
	assert_int_equal(
		sql_number(f->conn,
			   "select count(*) from lease.node_executions where status = 'failed'"),
		finished);
	assert_int_equal(
		sql_number(f->conn,
			   "select count(*) from lease.node_executions where status = 'abandoned'"),
		abandoned);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(node_that_times_out_twice_then_succeeds),
		fixture_test(three_executions_by_three_workers_name_each_its_own),
		fixture_test(failed_execution_stays_as_it_was_to_the_byte),
		fixture_test(starting_twice_is_held_and_says_which_execution_is_open),
		fixture_test(starting_what_succeeded_is_refused_and_hands_back_the_output),
		fixture_test(start_is_refused_without_a_lease_that_holds),
		fixture_test(owner_of_a_run_that_does_not_run_is_told_illegal),
		fixture_test(unregistered_content_is_refused_and_nothing_is_written),
		fixture_test(bad_arguments_are_refused_before_anything_is_sent),
		fixture_test(names_of_any_kind_come_back_whole),
		fixture_test(finish_by_a_token_that_is_stale_changes_nothing),
		fixture_test(finishing_again_changes_nothing_and_says_so),
		fixture_test(executions_of_others_and_of_nobody_cannot_be_finished),
		fixture_test(executions_open_under_an_attempt_close_with_it),
		fixture_test(executions_under_an_attempt_that_was_left_open_close_with_it),
		fixture_test(one_sweep_closes_the_executions_of_many_runs),
		fixture_test(two_starts_at_once_open_one_execution),
		fixture_test(finish_against_the_end_of_its_attempt_has_one_outcome),
	};

	return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
