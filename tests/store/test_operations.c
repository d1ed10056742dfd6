/*
 * Operations on a real PostgreSQL: the identity of an outside side effect is there once, belongs to
 * one node of one run, and tells a worker whether to reconcile or to retry.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "facts.h"
#include "sql.h"

static struct lease_operation look_up(PGconn *conn, const char *operation_id)
{
	struct lease_operation operation = { 0 };

	expect(0, lease_operation_lookup(conn, operation_id, &operation, &failure));
	return operation;
}

/* -- lookups ----------------------------------------------------------------------------------- */

static void operation_that_was_never_tried(void **state)
{
	struct fixture *f = *state;
	struct lease_operation operation;

	memset(&operation, 'x', sizeof(operation));
	expect(0, lease_operation_lookup(f->conn, "op", &operation, &failure));
	assert_int_equal(operation.state, LEASE_OPERATION_NEVER_TRIED);
	assert_string_equal(operation.run_id, "");
	assert_string_equal(operation.node_id, "");
	assert_string_equal(operation.output_ref, "");
	assert_string_equal(operation.normalized_error, "");
	assert_int_equal(operation.executions, 0);
	assert_int_equal(operation.unknown, 0);

	expect(LEASE_E_INVALID, lease_operation_lookup(f->conn, NULL, &operation, &failure));
	expect(LEASE_E_INVALID, lease_operation_lookup(f->conn, "", &operation, &failure));
}

static void operation_tells_what_is_known_of_it_from_try_to_try(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_operation operation;

	start(f->conn, &grant.token, "n", "op");
	operation = look_up(f->conn, "op");
	assert_int_equal(operation.state, LEASE_OPERATION_RUNNING);
	assert_string_equal(operation.run_id, "run");
	assert_string_equal(operation.node_id, "n");
	assert_int_equal(operation.executions, 1);

	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", NULL));
	operation = look_up(f->conn, "op");
	assert_int_equal(operation.state, LEASE_OPERATION_FAILED);
	assert_string_equal(operation.normalized_error, "timeout");
	assert_int_equal(operation.unknown, 0);

	start(f->conn, &grant.token, "n", "op");
	assert_int_equal(look_up(f->conn, "op").state, LEASE_OPERATION_RUNNING);
	expect(0, fail_as(f->conn, &grant.token, "n", 2, "rate_limited", NULL));
	assert_string_equal(look_up(f->conn, "op").normalized_error, "rate_limited");

	register_content(f->conn, "file:///result");
	start(f->conn, &grant.token, "n", "op");
	expect(0,
	       lease_node_finish(f->conn,
				 &(struct lease_node_finish){ .token = grant.token,
							      .node_id = "n",
							      .execution_no = 3,
							      .status = LEASE_EXECUTION_SUCCEEDED,
							      .output_ref = "file:///result" },
				 NULL, &failure));
	operation = look_up(f->conn, "op");
	assert_int_equal(operation.state, LEASE_OPERATION_SUCCEEDED);
	assert_string_equal(operation.output_ref, "file:///result");
	assert_string_equal(operation.normalized_error, "rate_limited");
	assert_int_equal(operation.executions, 3);
	assert_string_equal(lease_operation_state_name(operation.state), "succeeded");
	assert_sql(f->conn, "op run n",
		   "select string_agg(concat_ws(' ', operation_id, run_id, node_id), ',') from "
		   "lease.operations");
}

/* An end that nobody knows stays unknown, whatever failed for sure later; a success settles it. */
static void unknown_end_stays_unknown_until_a_success(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_operation operation;

	start(f->conn, &grant.token, "n", "op");
	expect(0, release_as(f->conn, &grant.token, NULL));
	operation = look_up(f->conn, "op");
	assert_int_equal(operation.state, LEASE_OPERATION_UNKNOWN); /* abandoned */
	assert_int_equal(operation.unknown, 1);

	grant = claim(f->conn, "run", "worker-2");
	start(f->conn, &grant.token, "n", "op");
	assert_int_equal(look_up(f->conn, "op").state, LEASE_OPERATION_RUNNING);
	expect(0, fail_as(f->conn, &grant.token, "n", 2, "timeout", NULL));
	operation = look_up(f->conn, "op");
	assert_int_equal(operation.state, LEASE_OPERATION_UNKNOWN);
	assert_string_equal(operation.normalized_error, "timeout");
	assert_int_equal(operation.executions, 2);
	assert_int_equal(operation.unknown, 1);

	start(f->conn, &grant.token, "n", "op");
	let_lease_end(f->conn, "run");
	reconcile(f->conn, LEASE_POLICY_REQUEUE);
	assert_int_equal(look_up(f->conn, "op").unknown, 2); /* and one that was lost */

	grant = claim(f->conn, "run", "worker-3");
	start(f->conn, &grant.token, "n", "op");
	expect(0, succeed_as(f->conn, &grant.token, "n", 4, NULL));
	operation = look_up(f->conn, "op");
	assert_int_equal(operation.state, LEASE_OPERATION_SUCCEEDED);
	assert_string_equal(operation.output_ref, "");
	assert_int_equal(operation.executions, 4);
}

/* -- a worker that is killed ------------------------------------------------------------------- */

/* A worker that starts a node, sends its mail, and hangs before it can report that. */
static void __attribute__((noreturn)) work_and_hang(const char *conninfo, const char *mail)
{
	PGconn *conn = PQconnectdb(conninfo);
	struct lease_claim claim = { .run_id = "run", .owner = "worker-1:a", .ttl = LEASE_SECOND };
	struct lease_grant grant;
	struct lease_error error;
	int file;

	if (lease_mark_running(conn, &claim, &grant, &error) != 0 ||
	    lease_node_start(conn,
			     &(struct lease_node_start){ .token = grant.token,
							 .node_id = "send-mail",
							 .operation_id = "mail-4711" },
			     NULL, &error) != 0)
		_exit(1);
	file = open(mail, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (file < 0 || close(file) < 0)
		_exit(2);
	for (;;)
		pause();
}

static bool is_there(void *path)
{
	return access(path, F_OK) == 0;
}

static bool is_lost_attempt_closed(void *conn)
{
	return reconcile(conn, LEASE_POLICY_REQUEUE).closed == 1;
}

static void worker_killed_between_side_effect_and_finish_leaves_the_end_unknown(void **state)
{
	struct fixture *f = *state;
	char *folder = test_tmpdir(), mail[4096];
	struct lease_operation operation;
	struct lease_grant grant;
	int status;
	pid_t worker;

	snprintf(mail, sizeof(mail), "%s/mail", folder);
	free(folder);
	submit(f->conn, "run");
	worker = fork();
	assert_true(worker >= 0);
	if (worker == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		work_and_hang(f->conninfo, mail);
	}
	assert_true(wait_until(is_there, mail, TEST_PATIENCE_MS));
	kill(worker, SIGKILL);
	assert_int_equal(waitpid(worker, &status, 0), worker);
	assert_true(WIFSIGNALED(status));

	assert_int_equal(look_up(f->conn, "mail-4711").state, LEASE_OPERATION_RUNNING);
	assert_true(wait_until(is_lost_attempt_closed, f->conn, TEST_PATIENCE_MS));
	grant = claim(f->conn, "run", "worker-2");
	assert_int_equal(grant.token.attempt_no, 2);
	operation = look_up(f->conn, "mail-4711");
	assert_int_equal(operation.state, LEASE_OPERATION_UNKNOWN);
	assert_string_equal(lease_operation_state_name(operation.state), "unknown");
	assert_string_equal(operation.run_id, "run");
	assert_string_equal(operation.node_id, "send-mail");
	assert_int_equal(operation.executions, 1);
	assert_int_equal(operation.unknown, 1);

	/* the second worker finds the mail in the outbox and says so, under the same operation */
	assert_int_equal(start(f->conn, &grant.token, "send-mail", "mail-4711"), 2);
	expect(0, succeed_as(f->conn, &grant.token, "send-mail", 2, NULL));
	assert_int_equal(look_up(f->conn, "mail-4711").state, LEASE_OPERATION_SUCCEEDED);
}

/* -- conflicts --------------------------------------------------------------------------------- */

#define assert_written(conn, expected)                                                             \
	assert_sql(conn, expected,                                                                 \
		   "select concat_ws(' ', (select count(*) from lease.nodes), "                    \
		   "(select count(*) from lease.operations), "                                     \
		   "(select count(*) from lease.node_executions), "                                \
		   "(select count(*) from lease.run_events where node_id is not null))")

static void operation_of_another_node_or_run_is_refused(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_grant other = submit_and_claim(f->conn, "other");
	struct lease_node_execution execution = { .execution_no = 77 };

	start(f->conn, &grant.token, "n", "op");
	expect(LEASE_OPERATION_CONFLICT, start_as(f->conn, &grant.token, "m", "op", &execution));
	expect(LEASE_OPERATION_CONFLICT, start_as(f->conn, &other.token, "n", "op", &execution));
	expect(LEASE_OPERATION_CONFLICT, start_as(f->conn, &other.token, "m", "op", &execution));
	assert_int_equal(execution.execution_no, 77);
	assert_written(f->conn, "1 1 1 1");

	/* also when it has ended, and its run with it */
	expect(0, succeed_as(f->conn, &grant.token, "n", 1, NULL));
	expect(0, end_as(f->conn, &grant.token, LEASE_RUN_COMPLETED));
	expect(LEASE_OPERATION_CONFLICT, start_as(f->conn, &other.token, "n", "op", &execution));
	assert_written(f->conn, "1 1 1 2");
	/* a node may change its operation, and come back to the first */
	start(f->conn, &other.token, "n", "op-1");
	expect(0, fail_as(f->conn, &other.token, "n", 1, "timeout", NULL));
	start(f->conn, &other.token, "n", "op-2");
	expect(0, fail_as(f->conn, &other.token, "n", 2, "timeout", NULL));
	start(f->conn, &other.token, "n", "op-1");
	assert_int_equal(look_up(f->conn, "op-1").executions, 2);
	assert_int_equal(look_up(f->conn, "op-2").executions, 1);
}

static void database_refuses_an_execution_with_an_operation_of_another_node(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");

	start(f->conn, &grant.token, "n", "op-n");
	start(f->conn, &grant.token, "m", NULL);
	expect(0, fail_as(f->conn, &grant.token, "m", 1, "timeout", NULL));
	sql_fails(f->conn, "23503",
		  "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no, "
		  "operation_id) "
		  "values ('run', 'm', 2, 1, 'op-n')");
	sql_fails(f->conn, "23505",
		  "insert into lease.operations (operation_id, run_id, node_id) values ('op-n', "
		  "'run', 'm')");
	sql_fails(f->conn, "23503",
		  "insert into lease.operations (operation_id, run_id, node_id) values ('op-x', "
		  "'run', 'x')");
}

/* -- two runs that register one operation at the same moment ----------------------------------- */

struct starter {
	PGconn *conn;
	pthread_barrier_t *barrier; /* NULL: at once */
	struct lease_token token;
	char operation_id[64];
	int result;
	struct lease_error error;
};

static void *run_start(void *argument)
{
	struct starter *starter = argument;

	if (starter->barrier)
		pthread_barrier_wait(starter->barrier);
	starter->result = lease_node_start(
		starter->conn,
		&(struct lease_node_start){ .token = starter->token,
					    .node_id = "n",
					    .operation_id = starter->operation_id },
		NULL, &starter->error);
	return NULL;
}

/* What lease_node_start writes, by its own statement, in a transaction that stays open. */
static void start_uncommitted(PGconn *conn, const struct lease_token *token,
			      const char *operation_id)
{
	const char *const values[] = { token->run_id, "n",  "1",       "1",  operation_id,
				       NULL,          NULL, "running", NULL, token->owner };
	PGresult *result;

	sql(conn, "begin");
	sql(conn, "select from lease.runs where run_id = '%s' for no key update", token->run_id);
	result = PQexecParams(conn, lease_sql_start_node, LENGTH(values), NULL, values, NULL, NULL,
			      0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail_msg("%s", PQerrorMessage(conn));
	PQclear(result);
}

static void start_behind_an_uncommitted_one(struct fixture *f, const char *end, int expected)
{
	struct lease_grant first, second;
	struct starter starter = { .conn = test_connect(f->conninfo) };
	PGconn *holder = test_connect(f->conninfo);
	pthread_t thread;

	first = submit_and_claim(f->conn, end[0] == 'c' ? "first-1" : "first-2");
	second = submit_and_claim(f->conn, end[0] == 'c' ? "second-1" : "second-2");
	starter.token = second.token;
	snprintf(starter.operation_id, sizeof(starter.operation_id), "op-%s", end);
	start_uncommitted(holder, &first.token, starter.operation_id);
	pthread_create(&thread, NULL, run_start, &starter);
	wait_blocked(f->conn, PQbackendPID(starter.conn));
	sql(holder, "%s", end);
	pthread_join(thread, NULL);
	assert_int_equal(starter.result, expected);
	assert_string_equal(look_up(f->conn, starter.operation_id).run_id,
			    expected == 0 ? second.token.run_id : first.token.run_id);
	assert_int_equal(look_up(f->conn, starter.operation_id).executions, 1);
	/* what was refused left no node and no event behind */
	assert_int_equal(
		sql_number(f->conn,
			   "select count(*) from lease.run_events where node_id is not null "
			   "and run_id = '%s'",
			   second.token.run_id),
		expected == 0);
	assert_int_equal(sql_number(f->conn, "select count(*) from lease.nodes where run_id = '%s'",
				    second.token.run_id),
			 expected == 0);
	PQfinish(holder);
	PQfinish(starter.conn);
}

static void start_waits_for_another_run_that_is_registering_its_operation(void **state)
{
	start_behind_an_uncommitted_one(*state, "commit", LEASE_OPERATION_CONFLICT);
	start_behind_an_uncommitted_one(*state, "rollback", 0);
}

static void two_runs_that_register_one_operation_at_once_one_gets_it(void **state)
{
	enum { ROUNDS = 100 };
	struct fixture *f = *state;
	struct starter starters[2];
	pthread_barrier_t barrier;

	memset(starters, 0, sizeof(starters));
	pthread_barrier_init(&barrier, NULL, 2);
	for (int i = 0; i < 2; i++)
		starters[i] = (struct starter){ .conn = test_connect(f->conninfo),
						.barrier = &barrier };
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[2];
		int winner;

		for (int i = 0; i < 2; i++) {
			char run_id[32];

			snprintf(run_id, sizeof(run_id), "run-%d-%d", round, i);
			starters[i].token = submit_and_claim(f->conn, run_id).token;
			snprintf(starters[i].operation_id, sizeof(starters[i].operation_id),
				 "op-%d", round);
			pthread_create(&threads[i], NULL, run_start, &starters[i]);
		}
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		winner = starters[0].result == 0 ? 0 : 1;
		assert_int_equal(starters[winner].result, 0);
		assert_int_equal(starters[!winner].result, LEASE_OPERATION_CONFLICT);
		assert_string_equal(look_up(f->conn, starters[0].operation_id).run_id,
				    starters[winner].token.run_id);
	}
	for (int i = 0; i < 2; i++)
		PQfinish(starters[i].conn);
	pthread_barrier_destroy(&barrier);
	assert_int_equal(sql_number(f->conn, "select count(*) from lease.operations"), ROUNDS);
	assert_int_equal(sql_number(f->conn, "select count(*) from lease.node_executions"), ROUNDS);
}

/* Somebody never commits: the start ends in its time, as an error that says to try again. */
static void start_behind_one_that_never_ends_gives_up_in_its_time(void **state)
{
	struct fixture *f = *state;
	struct lease_grant first = submit_and_claim(f->conn, "first");
	struct lease_grant second = submit_and_claim(f->conn, "second");
	PGconn *holder = test_connect(f->conninfo);
	struct lease_node_start begin = {
		.token = second.token, .node_id = "n", .operation_id = "op", .timeout = LEASE_SECOND
	};

	start_uncommitted(holder, &first.token, "op");
	expect(LEASE_E_SERVER, lease_node_start(f->conn, &begin, NULL, &failure));
	assert_int_equal(lease_error_advice(&failure), LEASE_ADVICE_RETRY);
	assert_false(failure.outcome_unknown);
	assert_int_equal(PQtransactionStatus(f->conn), PQTRANS_IDLE);
	sql(holder, "rollback");
	expect(0, lease_node_start(f->conn, &begin, NULL, &failure));
	PQfinish(holder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(operation_that_was_never_tried),
		fixture_test(operation_tells_what_is_known_of_it_from_try_to_try),
		fixture_test(unknown_end_stays_unknown_until_a_success),
		fixture_test(worker_killed_between_side_effect_and_finish_leaves_the_end_unknown),
		fixture_test(operation_of_another_node_or_run_is_refused),
		fixture_test(database_refuses_an_execution_with_an_operation_of_another_node),
		fixture_test(start_waits_for_another_run_that_is_registering_its_operation),
		fixture_test(two_runs_that_register_one_operation_at_once_one_gets_it),
		fixture_test(start_behind_one_that_never_ends_gives_up_in_its_time),
	};

	return cmocka_run_group_tests_name("operations", tests, NULL, NULL);
}
