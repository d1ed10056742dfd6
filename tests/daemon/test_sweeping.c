/*
 * The daemon at its work: leases that end, policies, locks, several databases, several daemons,
 * and what is left when it is killed or stopped in each of its phases.
 */
#include "fixture.h"

static const char *config_with(const char *options)
{
	return text("amnesty: off\n%s\ndatabases:\n%s", options, entry("main", conninfo, ""));
}

/* A claim as a worker makes it; the lease is then left alone. */
static void claim(const char *run_id, int64_t ttl)
{
	struct lease_grant grant;
	struct lease_error error;
	char owner[LEASE_ID_MAX + 1];
	struct lease_claim command = { .run_id = run_id, .owner = owner, .ttl = ttl };

	assert_int_equal(lease_owner_generate("worker", owner, &error), 0);
	if (lease_mark_running(conn, &command, &grant, &error) != 0)
		fail_msg("claim: %s", error.message);
}

static void submit(const char *run_id)
{
	struct lease_submission submission = { .run_id = run_id };
	struct lease_change change;
	struct lease_error error;

	if (lease_submit(conn, &submission, NULL, &change, &error) != 0)
		fail_msg("submit: %s", error.message);
}

static void wait_run(const char *run_id, const char *status, int attempts)
{
	wait_sql(conn,
		 "select status = '%s' and (select count(*) = %d from lease.run_attempts a"
		 " where a.run_id = r.run_id and finished_at is not null)"
		 " from lease.runs r where run_id = '%s'",
		 status, attempts, run_id);
}

/* ---- leases that end ---- */

/* The only scan is the first: what it listed is closed at its end, not by a later scan. */
static void a_lease_is_closed_at_its_end_and_not_at_the_next_scan(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "soon", 5, 1500, 10800000);
	daemon_start_ready(&daemon,
			   config_with("interval: 1h\norphan_interval: 1d\nlog:\n  level: debug"));
	wait_closed(&daemon.process, conn, 5);
	assert_sql(conn, "0",
		   "select count(*) from lease.run_attempts where finished_at < lease_expires_at");
	assert_int_equal(daemon_count_log(&daemon, "scanned: "), 1);
	assert_holds(process_errors(&daemon.process), "the next scan in 60 min");
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void renewed_leases_are_left_alone(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "over", 3, 1000, 10800000);
	add_leases(conn, "renewed", 3, 1000, 10800000);
	daemon_start_ready(&daemon, config_with("interval: 1h\nlog:\n  level: debug"));
	daemon_wait_log(&daemon, "scanned: ");
	sql(conn,
	    "update lease.run_attempts set lease_expires_at = lease_expires_at + interval '1 h'"
	    " where run_id like 'renewed-%%'");
	wait_closed(&daemon.process, conn, 3);
	daemon_stop(&daemon);
	assert_sql(conn, "3", "select count(*) from lease.run_attempts where finished_at is null");
	assert_explained(conn);
}

static void case_14_rescued_and_lost_again(void **state)
{
	struct daemon daemon;

	(void)state;
	submit("r");
	daemon_start_ready(&daemon, config_with("policy: requeue\ninterval: 200ms"));
	claim("r", 100000);
	wait_run("r", "pending", 1);
	claim("r", 100000);
	wait_run("r", "pending", 2);
	daemon_stop(&daemon);
	assert_sql(conn, "1,2",
		   "select string_agg(attempt_no::text, ',' order by attempt_no)"
		   " from lease.run_attempts where outcome = 'lease_expired'");
	assert_explained(conn);
}

static void case_17_a_run_that_kills_its_workers_is_given_up(void **state)
{
	struct daemon daemon;

	(void)state;
	submit("poison");
	daemon_start_ready(&daemon,
			   config_with("policy: requeue\nmax_lease_losses: 3\ninterval: 200ms"));
	for (int loss = 1; loss <= 3; loss++) {
		claim("poison", 100000);
		wait_run("poison", loss < 3 ? "pending" : "failed", loss);
	}
	daemon_wait_log(&daemon, "the run is now failed (lease_losses_exhausted)");
	daemon_stop(&daemon);
	assert_sql(conn, "lease_losses_exhausted",
		   "select terminal_error_code from lease.runs where run_id = 'poison'");
	assert_explained(conn);
}

static void orphans_are_moved_and_no_attempt_is_invented(void **state)
{
	struct daemon daemon;

	(void)state;
	sql(conn, "insert into lease.runs (run_id, status) values ('orphan', 'running')");
	daemon_start_ready(&daemon, config_with("policy: fail\norphan_interval: 1s"));
	wait_run("orphan", "failed", 0);
	daemon_wait_log(&daemon, "run orphan had no open attempt; the run is now failed");
	daemon_stop(&daemon);
}

/* ---- what is told ---- */

static void a_storm_is_summed_up(void **state)
{
	struct daemon daemon;
	const char *log;
	long long told = 0;

	(void)state;
	add_leases(conn, "storm", 1000, -1000, 5000);
	daemon_start_ready(&daemon,
			   config_with("policy: requeue\nlog:\n  closed_attempts_per_second: 5"));
	wait_closed(&daemon.process, conn, 1000);
	daemon_wait_log(&daemon, "attempts more as lease_expired");
	daemon_stop(&daemon);
	told = lines_of_closed(&daemon);
	log = process_errors(&daemon.process);
	assert_true(told >= 5);
	/* every attempt is told of once: singly or in a summary */
	for (const char *at = log; (at = strstr(at, ": closed ")) != NULL; at++)
		told += atoll(at + strlen(": closed "));
	assert_int_equal(told, 1000);
	assert_true(count_text(log, "\n") < 100);
	assert_explained(conn);
}

static void odd_identifiers_cannot_break_a_line(void **state)
{
	struct daemon daemon;

	(void)state;
	sql(conn,
	    "insert into lease.runs (run_id, status) values (E'a\\nb\\x1b[31m\\\\\"{,}\U0001F600', 'running');"
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at)"
	    " select run_id, 1, E'w\\t\\n', clock_timestamp() from lease.runs");
	daemon_start_ready(&daemon, config_with("log:\n  level: debug"));
	daemon_wait_log(&daemon, "run a\\x0ab\\x1b[31m\\\"{,}\U0001F600 closed as lease_expired");
	daemon_stop(&daemon);
	assert_lacks(process_errors(&daemon.process), "\x1b");
	assert_explained(conn);
}

static void a_run_that_cannot_be_written_is_passed_over(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "r", 20, -1000, 5000);
	sql(conn, "create function public.refuse() returns trigger language plpgsql as"
		  " 'begin raise exception ''not this one''; end';"
		  "create trigger refuse before update on lease.run_attempts for each row"
		  " when (new.run_id = 'r-00007') execute function public.refuse()");
	daemon_start_ready(&daemon, config_with("interval: 200ms"));
	wait_closed(&daemon.process, conn, 19);
	daemon_wait_log(&daemon, "run r-00007 passed over");
	assert_holds(process_errors(&daemon.process), "SQLSTATE P0001");
	/* it comes up with every scan, and is not told of every time */
	daemon_wait_status(&daemon, "1 open, 1 expired, oldest unclosed at least");
	assert_int_equal(daemon_count_log(&daemon, "r-00007"), 1);
	sql(conn, "drop trigger refuse on lease.run_attempts");
	wait_closed(&daemon.process, conn, 20);
	daemon_wait_status(&daemon, "0 expired, oldest unclosed 0 s");
	daemon_stop(&daemon);
	assert_explained(conn);
}

/* ---- one sweep at a time ---- */

static void case_23_one_sweep_in_flight(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);
	char *blocked;

	(void)state;
	daemon_start_ready(&daemon, config_with(LONG_TIMEOUTS "interval: 100ms"));
	daemon_wait_status(&daemon, "0 open");
	sql(holder, "begin; lock table lease.run_attempts in access exclusive mode");
	wait_daemon_blocked(conn, 1);
	blocked = sql_text(conn, "select max(query_start)::text from pg_stat_activity"
				 " where application_name = 'lease-reconciler'"
				 " and datname = current_database()");
	/* ten intervals later the very same statement is still the only one */
	sql(holder, "select pg_sleep(1)");
	assert_sql(conn, "1",
		   "select count(*) from pg_stat_activity"
		   " where application_name = 'lease-reconciler'"
		   " and datname = current_database()");
	assert_sql(conn, blocked,
		   "select max(query_start)::text from pg_stat_activity"
		   " where application_name = 'lease-reconciler'"
		   " and datname = current_database()");
	sql(holder, "rollback");
	add_leases(conn, "after", 3, -100, 5000);
	wait_closed(&daemon.process, conn, 3);
	assert_lacks(process_errors(&daemon.process), "failed");
	free(blocked);
	PQfinish(holder);
	daemon_stop(&daemon);
}

static void case_24_a_table_locked_for_long(void **state)
{
	struct daemon daemon;
	char *other = test_database_create();
	PGconn *holder = test_connect(conninfo), *other_conn = test_connect(other);

	(void)state;
	sql(holder, "begin; lock table lease.run_attempts in access exclusive mode");
	daemon_start_ready(&daemon, text("interval: 200ms\nlock_timeout: 100ms\ndatabases:\n%s%s",
					 entry("main", conninfo, ""), entry("other", other, "")));
	daemon_wait_log(&daemon, "main: sweep failed: canceling statement due to lock timeout, "
				 "SQLSTATE 55P03");
	daemon_wait_status(&daemon, "main: failing for");
	add_leases(other_conn, "unharmed", 5, 300, 5000);
	wait_closed(&daemon.process, other_conn, 5);
	assert_lacks(process_errors(&daemon.process), "other: sweep failed");
	sql(holder, "rollback");
	add_leases(conn, "late", 5, -100, 5000);
	wait_closed(&daemon.process, conn, 5);
	daemon_wait_log(&daemon, "main: sweeping again, after");
	assert_int_equal(daemon_count_log(&daemon, "main: sweep failed"), 1);
	daemon_wait_status(&daemon, "2 databases: 2 connected");
	daemon_stop(&daemon);
	PQfinish(holder);
	PQfinish(other_conn);
	free(other);
	assert_explained(conn);
}

static void a_locked_run_is_closed_when_it_is_let_go(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 5, -100, 5000);
	sql(holder, "begin; select from lease.runs where run_id = 'r-00003' for update");
	daemon_start_ready(&daemon, config_with("interval: 1h"));
	wait_closed(&daemon.process, conn, 4);
	sql(holder, "rollback");
	wait_closed(&daemon.process, conn, 5);
	daemon_wait_status(&daemon, "0 expired, oldest unclosed 0 s");
	daemon_stop(&daemon);
	PQfinish(holder);
	assert_explained(conn);
}

/* ---- several daemons ---- */

/* Each attempt is closed by one of them, and told of by that one alone. */
static void two_daemons_close_2000_leases_once_each(void **state)
{
	const char *options = "policy: requeue\ninterval: 200ms\nbatch_size: 50\n"
			      "log:\n  closed_attempts_per_second: 10000";
	struct daemon first, second;

	(void)state;
	record_closes(conn);
	add_leases(conn, "ending", 2000, 2000, 10000);
	daemon_start_ready(&first, config_with(options));
	daemon_start_ready(&second, config_with(options));
	wait_closed(&first.process, conn, 2000);
	daemon_stop(&first);
	daemon_stop(&second);
	assert_closed_once(conn, 2000);
	assert_sql(conn, "2000",
		   "select count(*) from lease.runs"
		   " where status = 'pending' and state_version = 3");
	assert_int_equal(lines_of_closed(&first) + lines_of_closed(&second), 2000);
	assert_explained(conn);
}

/* The second one looks at each run, finds it closed or locked, and has nothing to say. */
static void case_13_the_second_reconciler_loses_every_row(void **state)
{
	struct daemon first, second;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 30, -100, 5000);
	/* the first one has all runs locked and waits for an attempt's row */
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00030' for update");
	daemon_start_ready(
		&first,
		config_with("interval: 1h\npolicy: requeue\n"
			    "batch_size: 400\n" /* an eighth holds all */
			    "lock_timeout: 10m\nstatement_timeout: 20m\nnetwork_timeout: 30m"));
	wait_daemon_blocked(conn, 1);
	daemon_start_ready(&second, config_with("interval: 200ms\npolicy: requeue"));
	daemon_wait_status(&second, "30 open, 30 expired");
	sql(holder, "rollback");
	wait_closed(&first.process, conn, 30);
	daemon_wait_status(&second, "0 open, 0 expired");
	daemon_stop(&first);
	daemon_stop(&second);
	assert_true(daemon_count_log(&first, "closed") > 0);
	assert_int_equal(daemon_count_log(&second, "closed"), 0);
	assert_int_equal(daemon_count_log(&second, "warning"), 0);
	PQfinish(holder);
	assert_explained(conn);
}

/* ---- the end of the daemon ---- */

static void assert_none_or_all_closed(int n)
{
	assert_sql(
		conn, "t",
		"select count(*) in (0, %d) from lease.run_attempts where finished_at is not null",
		n);
	assert_sql(conn, "t",
		   "select count(*) in (0, %d) from lease.runs where status <> 'running'", n);
	assert_explained(conn);
}

static void killed_in_mid_chunk_nothing_is_half_closed(void **state)
{
	const char *options = "policy: requeue\nbatch_size: 400"; /* of which it begins with 50 */
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 50, -100, 5000);
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00025' for update");
	daemon_start_ready(&daemon, config_with(options));
	wait_daemon_blocked(conn, 1);
	process_signal(&daemon.process, SIGKILL);
	assert_int_equal(process_wait(&daemon.process, TEST_PATIENCE_MS), 128 + SIGKILL);
	daemon_done(&daemon);
	assert_sql(conn, "0",
		   "select count(*) from lease.run_attempts where finished_at is not null");
	sql(holder, "rollback");
	wait_daemon_gone(conn);
	assert_none_or_all_closed(50);
	daemon_start_ready(&daemon, config_with(options));
	wait_closed(&daemon.process, conn, 50);
	daemon_stop(&daemon);
	assert_sql(conn, "50",
		   "select count(*) from lease.runs where status = 'pending'"
		   " and state_version = 3");
	assert_explained(conn);
	PQfinish(holder);
}

static void case_25_terminated_while_it_connects(void **state)
{
	struct black_hole hole;
	struct daemon daemon;

	(void)state;
	black_hole_open(&hole);
	daemon_start_ready(&daemon, text("connect_timeout: 1m\ndatabases:\n%s",
					 entry("lab", text("host=%s", hole.folder), "")));
	daemon_wait_status(&daemon, "lab: connecting");
	daemon_stop(&daemon);
	black_hole_close(&hole);
}

static void case_25_terminated_while_it_pauses(void **state)
{
	char *folder = test_tmpdir();
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, text("reconnect_min: 10m\nreconnect_max: 10m\ndatabases:\n%s",
					 entry("lab", text("host=%s", folder), "")));
	daemon_wait_status(&daemon, "unreachable for");
	daemon_stop(&daemon);
	free(folder);
}

static void case_25_terminated_while_it_waits(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "held", 5, 3600000, 3600000);
	daemon_start_ready(&daemon, config_with("interval: 1h"));
	daemon_wait_status(&daemon, "5 open, 0 expired");
	daemon_stop(&daemon);
	wait_daemon_gone(conn);
}

static void case_25_terminated_while_it_scans(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 10, -100, 5000);
	sql(holder, "begin; lock table lease.run_attempts in access exclusive mode");
	daemon_start_ready(&daemon, config_with(LONG_TIMEOUTS));
	wait_daemon_blocked(conn, 1);
	daemon_stop(&daemon);
	sql(holder, "rollback");
	PQfinish(holder);
	wait_daemon_gone(conn);
	assert_sql(conn, "0",
		   "select count(*) from lease.run_attempts where finished_at is not null");
}

static void case_25_terminated_while_it_locks(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 10, -100, 5000);
	/* lets the scan of attempts through, and stops the lock of runs */
	sql(holder, "begin; lock table lease.runs in access exclusive mode");
	daemon_start_ready(&daemon, config_with(LONG_TIMEOUTS));
	wait_daemon_blocked(conn, 1);
	daemon_stop(&daemon);
	sql(holder, "rollback");
	PQfinish(holder);
	wait_daemon_gone(conn);
	assert_sql(conn, "0",
		   "select count(*) from lease.run_attempts where finished_at is not null");
}

static void case_25_terminated_while_it_applies(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 10, -100, 5000);
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00005' for update");
	daemon_start_ready(&daemon, config_with(LONG_TIMEOUTS "policy: requeue"));
	wait_daemon_blocked(conn, 1);
	daemon_stop(&daemon);
	sql(holder, "rollback");
	PQfinish(holder);
	wait_daemon_gone(conn);
	assert_none_or_all_closed(10);
}

/* SIGTERM finds a chunk of ten expired leases in flight, held up by the row locks that `hold` takes. */
static void terminate_in_flight(const char *hold, const char *options)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	add_leases(conn, "r", 10, -100, 5000);
	sql(holder, "begin; %s", hold);
	daemon_start_ready(&daemon, config_with(options));
	wait_daemon_blocked(conn, 1);
	process_signal(&daemon.process, SIGTERM);
	assert_true(notify_saw(&daemon.notify, "STOPPING=1", TEST_PATIENCE_MS));
	sql(holder, "rollback");
	assert_int_equal(process_wait(&daemon.process, TEST_PATIENCE_MS), 0);
	daemon_done(&daemon);
	PQfinish(holder);
	wait_daemon_gone(conn);
}

/* A chunk that can go through goes through: SIGTERM waits for it. */
static void case_25_the_chunk_in_flight_is_finished(void **state)
{
	(void)state;
	terminate_in_flight("select from lease.run_attempts where run_id = 'r-00005' for update",
			    LONG_TIMEOUTS "policy: requeue");
	assert_none_or_all_closed(10);
}

static void case_25_no_further_chunk_is_begun(void **state)
{
	(void)state;
	terminate_in_flight("select from lease.run_attempts for update",
			    LONG_TIMEOUTS "batch_size: 1");
	assert_sql(conn, "t",
		   "select count(*) <= 1 from lease.run_attempts where outcome is not null");
	assert_explained(conn);
}

static void a_second_signal_ends_it_at_once(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	sql(holder, "begin; lock table lease.run_attempts in access exclusive mode");
	daemon_start_ready(&daemon, config_with(LONG_TIMEOUTS));
	wait_daemon_blocked(conn, 1);
	process_signal(&daemon.process, SIGINT);
	assert_true(notify_saw(&daemon.notify, "STOPPING=1", TEST_PATIENCE_MS));
	process_signal(&daemon.process, SIGTERM);
	assert_int_equal(process_wait(&daemon.process, TEST_PATIENCE_MS), 0);
	daemon_done(&daemon);
	sql(holder, "rollback");
	PQfinish(holder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, create, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_lease_is_closed_at_its_end_and_not_at_the_next_scan),
		TEST(renewed_leases_are_left_alone),
		TEST(case_14_rescued_and_lost_again),
		TEST(case_17_a_run_that_kills_its_workers_is_given_up),
		TEST(orphans_are_moved_and_no_attempt_is_invented),
		TEST(a_storm_is_summed_up),
		TEST(odd_identifiers_cannot_break_a_line),
		TEST(a_run_that_cannot_be_written_is_passed_over),
		TEST(case_23_one_sweep_in_flight),
		TEST(case_24_a_table_locked_for_long),
		TEST(a_locked_run_is_closed_when_it_is_let_go),
		TEST(two_daemons_close_2000_leases_once_each),
		TEST(case_13_the_second_reconciler_loses_every_row),
		TEST(killed_in_mid_chunk_nothing_is_half_closed),
		TEST(case_25_terminated_while_it_connects),
		TEST(case_25_terminated_while_it_pauses),
		TEST(case_25_terminated_while_it_waits),
		TEST(case_25_terminated_while_it_scans),
		TEST(case_25_terminated_while_it_locks),
		TEST(case_25_terminated_while_it_applies),
		TEST(case_25_the_chunk_in_flight_is_finished),
		TEST(case_25_no_further_chunk_is_begun),
		TEST(a_second_signal_ends_it_at_once),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("sweeping", tests, NULL, processes_kill_all);
}
