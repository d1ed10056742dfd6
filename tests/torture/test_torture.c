/*
 * A short fault campaign, and its parts: the schedule is the seed's, and the proxy does to
 * connections what it says. The long campaign is `make torture`.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "proxy.h"

/* Some thirty seconds on two busy cores. */
#define CAMPAIGN "--faults", "40", "--seed", "11"

enum { CAMPAIGN_MS = 240000, CONN = 2 };

static int run_torture(struct process *process, char *const arguments[])
{
	char *program = test_program("tests/torture/torture"), *argv[8] = { program };

	for (int i = 0; i < 6 && arguments[i]; i++)
		argv[i + 1] = arguments[i];
	process_start(process, argv, NULL);
	free(program);
	return process_wait(process, CAMPAIGN_MS);
}

static void short_campaign(void **state)
{
	struct process process;
	int code = run_torture(&process, (char *[]){ CAMPAIGN, NULL });
	const char *output = process_output(&process), *last = strstr(output, "torture: faults=");
	long faults = 0, operations = 0, violations = -1;

	(void)state;
	/* all of it, in lines of its own: cmocka cuts long messages */
	if (code != 0)
		printf("%s%s", output, process_errors(&process));
	assert_int_equal(code, 0);
	assert_non_null(last);
	assert_int_equal(sscanf(last, "torture: faults=%ld operations=%ld violations=%ld\n",
				&faults, &operations, &violations),
			 3);
	assert_int_equal(violations, 0);
	assert_true(faults > 20);
	/* the work went on between the faults, and leases were lost */
	assert_true(operations > 200);
	assert_non_null(strstr(output, " lease_expired"));
	assert_non_null(strstr(output, " completed"));
}

static void schedule_follows_from_the_seed(void **state)
{
	struct process a, b, c;

	(void)state;
	assert_int_equal(
		run_torture(&a, (char *[]){ "--list", "--faults", "500", "--seed", "7", NULL }), 0);
	assert_int_equal(
		run_torture(&b, (char *[]){ "--list", "--faults", "500", "--seed", "7", NULL }), 0);
	assert_int_equal(
		run_torture(&c, (char *[]){ "--list", "--faults", "500", "--seed", "8", NULL }), 0);
	assert_string_equal(process_output(&a), process_output(&b));
	assert_string_not_equal(process_output(&a), process_output(&c));
}

/* -- the proxy ---------------------------------------------------------------------------------- */

struct through {
	struct torture_proxy *proxy;
	char *conninfo;
	PGconn *conn; /* straight */
	PGconn *conns[CONN]; /* through route 0 and 1 */
};

static int open_proxy(void **state)
{
	struct through *t = calloc(1, sizeof(*t));
	char server[128], through[256];

	t->conninfo = test_database_create_empty();
	t->conn = test_connect(t->conninfo);
	sql(t->conn, "create table written (x int)");
	snprintf(server, sizeof(server), "%s/.s.PGSQL.%s", PQhost(t->conn), PQport(t->conn));
	t->proxy = torture_proxy_start(server, CONN);
	for (int i = 0; i < CONN; i++) {
		snprintf(through, sizeof(through),
			 "host=127.0.0.1 port=%d user=%s dbname=%s sslmode=disable "
			 "gssencmode=disable application_name=through-%d",
			 torture_proxy_port(t->proxy, i), PQuser(t->conn), PQdb(t->conn), i);
		t->conns[i] = test_connect(through);
	}
	*state = t;
	return 0;
}

static int close_proxy(void **state)
{
	struct through *t = *state;

	for (int i = 0; i < CONN; i++)
		PQfinish(t->conns[i]);
	torture_proxy_stop(t->proxy);
	PQfinish(t->conn);
	test_database_drop(t->conninfo);
	free(t->conninfo);
	free(t);
	return 0;
}

static bool is_answered(void *conn)
{
	return PQconsumeInput(conn) && !PQisBusy(conn);
}

static bool has_ended(void *conn)
{
	return !PQconsumeInput(conn);
}

static void cut_hits_its_route(void **state)
{
	struct through *t = *state;

	torture_proxy_cut(t->proxy, 0, true);
	assert_true(wait_until(has_ended, t->conns[0], TEST_PATIENCE_MS));
	sql(t->conns[1], "select 1");
	wait_sql(t->conn, "select count(*) = 0 from pg_stat_activity"
			  " where application_name = 'through-0'");
}

static void silence_holds_back_and_then_delivers(void **state)
{
	struct through *t = *state;

	/* towards the client: the server does what it is asked to */
	torture_proxy_silence(t->proxy, 0, PROXY_TO_CLIENT, 3600000, false);
	assert_true(PQsendQuery(t->conns[0], "insert into written values (1)"));
	wait_sql(t->conn, "select count(*) = 1 from written");
	assert_false(is_answered(t->conns[0]));
	torture_proxy_heal(t->proxy);
	assert_true(wait_until(is_answered, t->conns[0], TEST_PATIENCE_MS));
	for (PGresult *result; (result = PQgetResult(t->conns[0]));)
		PQclear(result);
	/* towards the server: it hears nothing, then all of it */
	torture_proxy_silence(t->proxy, 0, PROXY_TO_SERVER, 3600000, false);
	assert_true(PQsendQuery(t->conns[0], "insert into written values (2)"));
	sql(t->conns[1], "select 1");
	assert_sql(t->conn, "1", "select count(*) from written");
	torture_proxy_heal(t->proxy);
	wait_sql(t->conn, "select count(*) = 2 from written");
	/* and an end of the silence that is a cut */
	torture_proxy_silence(t->proxy, 1, PROXY_TO_SERVER, 20, true);
	assert_true(wait_until(has_ended, t->conns[1], TEST_PATIENCE_MS));
}

static void answers_are_lost_from_a_batch_on(void **state)
{
	struct through *t = *state;

	torture_proxy_lose_answers(t->proxy, 0, 2, 50);
	sql(t->conns[0], "insert into written values (1)");
	PQclear(PQexec(t->conns[0], "insert into written values (2)"));
	assert_int_equal(PQstatus(t->conns[0]), CONNECTION_BAD);
	wait_sql(t->conn, "select count(*) = 2 from written");
}

static void late_and_in_pieces_is_still_whole(void **state)
{
	struct through *t = *state;

	torture_proxy_delay(t->proxy, 0, 20, 3600000);
	torture_proxy_trickle(t->proxy, 0, 3600000);
	assert_sql(t->conns[0], "5000", "select length(repeat('%04d', 1250)) /* %0500d */", 7, 0);
	torture_proxy_heal(t->proxy);
	assert_sql(t->conns[0], "1", "select 1");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(schedule_follows_from_the_seed),
		cmocka_unit_test_setup_teardown(cut_hits_its_route, open_proxy, close_proxy),
		cmocka_unit_test_setup_teardown(silence_holds_back_and_then_delivers, open_proxy,
						close_proxy),
		cmocka_unit_test_setup_teardown(answers_are_lost_from_a_batch_on, open_proxy,
						close_proxy),
		cmocka_unit_test_setup_teardown(late_and_in_pieces_is_still_whole, open_proxy,
						close_proxy),
		cmocka_unit_test(short_campaign),
	};

	return cmocka_run_group_tests_name("torture", tests, NULL, processes_kill_all);
}
