/*
 * Daemons behind pgbouncer in transaction mode: each of their transactions may meet another session
 * of the server, and the pooler stands between a daemon that is lost and the locks that it has.
 * The workers' side: tests/store/test_pooler.c.
 */
#include "../torture/proxy.h"
#include "fixture.h"
#include "pooler.h"

static struct pooler pooler;

static int create_recording(void **state)
{
	create(state);
	record_closes(conn);
	return 0;
}

static const char *config_with(const char *through, const char *options)
{
	return text("reconnect_min: 20ms\nreconnect_max: 200ms\npolicy: requeue\namnesty: off\n"
		    "log:\n  closed_attempts_per_second: 10000\n%s\ndatabases:\n%s",
		    options, entry("main", through, ""));
}

static bool nothing_is_open(void *argument)
{
	(void)argument;
	return sql_number(conn, "select count(*) from lease.run_attempts"
				" where finished_at is null") == 0;
}

static void wait_none_open(struct daemon *daemon)
{
	if (!wait_until(nothing_is_open, NULL, TEST_PATIENCE_MS))
		fail_msg("attempts stay open; log: %s", tail(process_errors(&daemon->process)));
}

/* Two daemons and a client take turns at one session of the server. */
static void case_27_two_daemons_sweep_through_one_session(void **state)
{
	struct daemon first, second;
	PGconn *client;

	(void)state;
	pooler_start(&pooler, conninfo, 1);
	client = test_connect(pooler.conninfo);
	add_leases(conn, "soon", 200, 2000, 10000);
	daemon_start_ready(&first, config_with(pooler.conninfo, "interval: 200ms"));
	daemon_start_ready(&second, config_with(pooler.conninfo, "interval: 200ms"));
	daemon_wait_status(&first, "1 database: 1 connected");
	daemon_wait_status(&second, "1 database: 1 connected");
	add_leases(client, "more", 100, 500, 10000);
	wait_none_open(&first);
	daemon_wait_status(&first, "0 open, 0 expired");
	daemon_wait_status(&second, "0 open, 0 expired");
	assert_closed_once(conn, 300);
	assert_sql(client, "1",
		   "select count(*) from pg_stat_activity where datname = current_database()"
		   " and backend_type = 'client backend' and pid <> %d",
		   PQbackendPID(conn));
	/* and leave nothing behind in it */
	assert_sql(client, "0 0 0 on on",
		   "select concat_ws(' ', current_setting('statement_timeout'),"
		   " current_setting('lock_timeout'),"
		   " current_setting('idle_in_transaction_session_timeout'),"
		   " current_setting('jit'), current_setting('enable_seqscan'))");
	PQfinish(client);
	daemon_stop(&first);
	daemon_stop(&second);
	assert_int_equal(lines_of_closed(&first) + lines_of_closed(&second), 300);
	assert_lacks(process_errors(&first.process), "failed");
	assert_lacks(process_errors(&second.process), "failed");
	pooler_stop(&pooler);
	assert_explained(conn);
}

static void a_pooler_that_restarts_is_found_again(void **state)
{
	struct daemon daemon;

	(void)state;
	pooler_start(&pooler, conninfo, 2);
	daemon_start_ready(&daemon, config_with(pooler.conninfo, "interval: 200ms"));
	daemon_wait_status(&daemon, "0 open, 0 expired");
	process_signal(&pooler.process, SIGKILL);
	process_wait(&pooler.process, TEST_PATIENCE_MS);
	daemon_wait_log(&daemon, "main: connection lost");
	daemon_wait_status(&daemon, "main: unreachable for");
	add_leases(conn, "r", 20, -100, 5000);
	pooler_restart(&pooler);
	wait_none_open(&daemon);
	daemon_stop(&daemon);
	pooler_stop(&pooler);
	assert_closed_once(conn, 20);
	assert_explained(conn);
}

/* ---- one of two loses its path ---- */

#define LOST_TIMEOUTS                                                                              \
	"lock_timeout: 1500ms\nstatement_timeout: 2s\nnetwork_timeout: 3s\nconnect_timeout: 1s\n"

/* Nothing of what one sends or is sent arrives any more, the end of its connection neither. */
static void lose_path(struct torture_proxy *proxy)
{
	torture_proxy_silence(proxy, 0, PROXY_TO_SERVER, 3600000, true);
	torture_proxy_silence(proxy, 0, PROXY_TO_CLIENT, 3600000, true);
}

static const char *lossy_conninfo(struct torture_proxy *proxy)
{
	return text("host=127.0.0.1 port=%d user=client dbname=pooled sslmode=disable"
		    " gssencmode=disable",
		    torture_proxy_port(proxy, 0));
}

/* The lost one comes back and finds all done; then both go on as before. */
static void assert_both_go_on(struct torture_proxy *proxy, struct daemon *lost,
			      struct daemon *other, int closed)
{
	daemon_wait_log(lost, "connection lost: no answer within network_timeout");
	torture_proxy_heal(proxy);
	torture_proxy_cut(proxy, 0, false);
	daemon_wait_log(lost, "main: connected to host 127.0.0.1 port");
	daemon_wait_status(lost, "0 open, 0 expired");
	add_leases(conn, "later", 20, -100, 5000);
	wait_none_open(other);
	daemon_stop(lost);
	daemon_stop(other);
	assert_closed_once(conn, closed + 20);
	assert_sql(conn, text("%d", closed + 20),
		   "select count(*) from lease.run_events where kind = 'attempt_closed'");
	assert_sql(conn, text("%d", closed + 20),
		   "select count(*) from lease.runs where status = 'pending'"
		   " and state_version = 3");
	assert_explained(conn);
}

/*
 * It has sent its chunk with the commit behind it, and learns nothing of what became of it. Who is
 * to tell of those attempts is nobody: the facts are in the tables.
 */
static void case_06_a_path_lost_while_the_chunk_is_written(void **state)
{
	PGconn *holder = test_connect(conninfo);
	struct torture_proxy *proxy;
	struct daemon lost, other;

	(void)state;
	pooler_start(&pooler, conninfo, 3);
	proxy = torture_proxy_start(pooler.socket, 1);
	add_leases(conn, "r", 40, -100, 5000);
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00020' for update");
	daemon_start_ready(&lost, config_with(lossy_conninfo(proxy),
					      "batch_size: 400\n" /* an eighth holds all */
					      "lock_timeout: 4s\nstatement_timeout: 5s\n"
					      "network_timeout: 6s\nconnect_timeout: 1s"));
	wait_daemon_blocked(conn, 1);
	lose_path(proxy);
	daemon_start_ready(&other, config_with(pooler.conninfo, LOST_TIMEOUTS "interval: 200ms"));
	daemon_wait_status(&other, "40 open, 40 expired");
	sql(holder, "rollback");
	wait_none_open(&other);
	daemon_wait_status(&other, "0 open, 0 expired");
	assert_both_go_on(proxy, &lost, &other, 40);
	assert_true(lines_of_closed(&lost) + lines_of_closed(&other) >= 20);
	assert_true(daemon_count_log(&lost, "r-00007") + daemon_count_log(&other, "r-00007") <= 1);
	torture_proxy_stop(proxy);
	pooler_stop(&pooler);
	PQfinish(holder);
}

/*
 * It has all runs locked, and never hears that it has. Its session of the server belongs to the
 * pooler, which does not know that its client is lost: only the server's own timeout lets the
 * other one have them.
 */
static void case_06_a_path_lost_with_locks_taken(void **state)
{
	struct torture_proxy *proxy;
	struct daemon lost, other;

	(void)state;
	pooler_start(&pooler, conninfo, 3);
	proxy = torture_proxy_start(pooler.socket, 1);
	add_leases(conn, "r", 40, 5000, 20000);
	daemon_start_ready(&lost, config_with(lossy_conninfo(proxy), LOST_TIMEOUTS "interval: 1h"));
	daemon_wait_status(&lost, "40 open, 0 expired");
	/* the next that it asks for is to lock them, when they end */
	torture_proxy_lose_answers(proxy, 0, 1, 3600000);
	wait_sql(conn, "select count(*) = 1 from pg_stat_activity"
		       " where datname = current_database() and state = 'idle in transaction'"
		       " and application_name = 'lease-reconciler'");
	lose_path(proxy);
	daemon_start_ready(&other, config_with(pooler.conninfo, LOST_TIMEOUTS "interval: 200ms"));
	wait_none_open(&other);
	assert_both_go_on(proxy, &lost, &other, 40);
	assert_true(lines_of_closed(&other) >= 40);
	assert_int_equal(daemon_count_log(&lost, "attempt 1 of r-"), 0);
	torture_proxy_stop(proxy);
	pooler_stop(&pooler);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, create_recording, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_27_two_daemons_sweep_through_one_session),
		TEST(a_pooler_that_restarts_is_found_again),
		TEST(case_06_a_path_lost_while_the_chunk_is_written),
		TEST(case_06_a_path_lost_with_locks_taken),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("pooled", tests, NULL, NULL);
}
