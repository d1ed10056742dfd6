/*
 * Databases that go away, come back, refuse, or are the wrong ones: on a PostgreSQL cluster of this
 * program's own, which it may stop.
 */
#include "daemon.h"

static struct cluster cluster;
static char *conninfo;
static PGconn *conn;

/* All of the harness goes to this cluster. */
static int begin(void **state)
{
	(void)state;
	cluster_prepare(&cluster);
	cluster_start(&cluster);
	cluster_use(&cluster);
	return 0;
}

static int finish(void **state)
{
	processes_kill_all(state);
	cluster_remove(&cluster);
	return 0;
}

/* A test that failed may have left the cluster down. */
static int create(void **state)
{
	(void)state;
	if (PQping("dbname=postgres") != PQPING_OK) {
		cluster_stop(&cluster, "immediate");
		cluster_start(&cluster);
	}
	conninfo = test_database_create();
	conn = test_connect(conninfo);
	return 0;
}

static int drop(void **state)
{
	processes_kill_all(state);
	PQfinish(conn);
	conn = NULL;
	free(conninfo);
	return 0;
}

static const char *config_with(const char *options)
{
	return text("amnesty: off\nreconnect_min: 20ms\nreconnect_max: 200ms\n%s\ndatabases:\n%s",
		    options, entry("main", conninfo, ""));
}

static void reconnect(void)
{
	PQfinish(conn);
	conn = test_connect(conninfo);
}

/* The connection of before the crash is lost; the server takes new ones when it has recovered. */
static bool is_recovered(void *argument)
{
	PGconn *fresh = PQconnectdb(conninfo);
	bool fine = PQstatus(fresh) == CONNECTION_OK;

	(void)argument;
	PQclear(PQexec(conn, "select 1"));
	fine = fine && PQstatus(conn) != CONNECTION_OK;
	PQfinish(fresh);
	if (fine)
		reconnect();
	return fine;
}

/* The process that serves the daemon. */
static pid_t daemon_backend(void)
{
	return (pid_t)sql_number(conn, "select max(pid) from pg_stat_activity"
				       " where datname = current_database()"
				       " and application_name = 'lease-reconciler'");
}

/* The seconds in "oldest unclosed expired lease at most N s" of the newest STATUS=; -1: none. */
static int status_age(struct daemon *daemon)
{
	char *status = notify_value(&daemon->notify, "STATUS");
	const char *found = status ? strstr(status, "expired lease at most ") : NULL;
	int age = -1;

	if (found)
		sscanf(found, "expired lease at most %d s", &age);
	free(status);
	return age;
}

struct wanted_age {
	struct daemon *daemon;
	int more_than;
};

static bool is_older(void *argument)
{
	struct wanted_age *wanted = argument;

	return status_age(wanted->daemon) > wanted->more_than;
}

static int wait_age(struct daemon *daemon, int more_than)
{
	struct wanted_age wanted = { daemon, more_than };

	if (!wait_until(is_older, &wanted, TEST_PATIENCE_MS))
		fail_msg("the age never grew beyond %d s", more_than);
	return status_age(daemon);
}

/* ---- away and back ---- */

static void case_04_away_and_back(void **state)
{
	struct daemon daemon;
	pid_t pid;

	(void)state;
	add_leases(conn, "soon", 5, 2000, 10800000);
	daemon_start_ready(&daemon, config_with("policy: requeue"));
	pid = daemon.process.pid;
	daemon_wait_status(&daemon, "5 open, 0 expired, oldest unclosed 0 s");
	cluster_stop(&cluster, "fast");
	daemon_wait_log(&daemon, "main: connection lost: terminating connection due to "
				 "administrator command, SQLSTATE 57P01");
	daemon_wait_status(&daemon, "1 database: 0 connected; main: unreachable for");
	/* the leases that it knows of end meanwhile, and it says how long ago at most */
	wait_age(&daemon, wait_age(&daemon, 0));
	cluster_start(&cluster);
	daemon_wait_log(&daemon, "main: connected to socket");
	reconnect();
	wait_closed(&daemon.process, conn, 5);
	daemon_wait_status(&daemon, "1 database: 1 connected; main: 0 open, 0 expired");
	assert_int_equal(daemon.process.pid, pid);
	assert_true(!process_ended(&daemon.process));
	/* told when it went and when it came, not at each try in between */
	assert_true(daemon_count_log(&daemon, "No such file") <= 1);
	assert_holds(process_errors(&daemon.process), " failures (");
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void case_05_one_of_two_is_down_at_start(void **state)
{
	struct daemon daemon;
	char *folder = test_tmpdir(), *path;

	(void)state;
	if (asprintf(&path, "%s/.s.PGSQL.5432", folder) < 0)
		abort();
	daemon_start_ready(
		&daemon,
		text("reconnect_max: 200ms\ndatabases:\n%s%s",
		     entry("lab", text("host=%s user=postgres dbname=postgres", folder), ""),
		     entry("main", conninfo, "")));
	add_leases(conn, "r", 5, 100, 5000);
	wait_closed(&daemon.process, conn, 5);
	daemon_wait_status(&daemon, "2 databases: 1 connected; lab: unreachable for");
	daemon_wait_status(&daemon, "oldest unclosed expired lease unknown");
	/* it comes up: without a schema, but it is reached */
	assert_int_equal(symlink(text("%s/.s.PGSQL.5432", cluster.folder), path), 0);
	daemon_wait_log(&daemon, "lab: connected to socket");
	daemon_wait_log(&daemon, "lab: sweep failed: schema lease is missing in this database: "
				 "run 'leasectl migrate'");
	daemon_stop(&daemon);
	free(path);
	free(folder);
}

static void case_12_restarted_while_idle(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "held", 5, 3600000, 10800000);
	daemon_start_ready(&daemon, config_with("interval: 1h"));
	daemon_wait_status(&daemon, "5 open");
	/* not known to the daemon yet, and the next scan is an hour away */
	add_leases(conn, "over", 5, -100, 10800000);
	cluster_stop(&cluster, "immediate");
	daemon_wait_log(&daemon, "connection lost");
	cluster_start(&cluster);
	reconnect();
	wait_closed(&daemon.process, conn, 5);
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void case_12_restarted_in_mid_sweep(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 50, -100, 5000);
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00025' for update");
	daemon_start_ready(&daemon, config_with("policy: requeue"));
	wait_daemon_blocked(conn, 1);
	cluster_stop(&cluster, "immediate");
	daemon_wait_log(&daemon, "connection lost");
	cluster_start(&cluster);
	PQfinish(holder);
	reconnect();
	wait_closed(&daemon.process, conn, 50);
	assert_sql(conn, "50",
		   "select count(*) from lease.runs where status = 'pending'"
		   " and state_version = 3");
	daemon_stop(&daemon);
	assert_explained(conn);
}

/*
 * A backend is killed in the middle of a chunk of 250 runs, each with a node in execution: all of
 * PostgreSQL goes down and recovers. The daemon stands still until it was looked at.
 */
static void case_30_crash_with_250_rows_in_flight(void **state)
{
	PGconn *holder = test_connect(conninfo);
	struct daemon daemon;

	(void)state;
	add_leases(conn, "r", 250, -100, 5000);
	sql(conn, "with n as (insert into lease.nodes (run_id, node_id, state)"
		  "  select run_id, 'n', 'running' from lease.runs)"
		  " insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no,"
		  "  status) select run_id, 'n', 1, 1, 'running' from lease.runs");
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00200' for update");
	daemon_start_ready(&daemon,
			   config_with("policy: requeue\nbatch_size: 2000\n" LONG_TIMEOUTS));
	wait_daemon_blocked(conn, 1);
	/* all of them are: a new connection begins with an eighth of batch_size */
	assert_sql(conn, "0",
		   "select count(*) from (select from lease.runs for update skip locked) x");
	process_signal(&daemon.process, SIGSTOP);
	assert_int_equal(kill(daemon_backend(), SIGKILL), 0);
	assert_true(wait_until(is_recovered, NULL, TEST_PATIENCE_MS));
	PQfinish(holder);
	assert_sql(conn, "250 250 250 0",
		   "select concat_ws(' ',"
		   " (select count(*) from lease.run_attempts where finished_at is null),"
		   " (select count(*) from lease.runs where status = 'running'),"
		   " (select count(*) from lease.node_executions where finished_at is null),"
		   " (select count(*) from lease.run_events))");
	process_signal(&daemon.process, SIGCONT);
	wait_closed(&daemon.process, conn, 250);
	daemon_stop(&daemon);
	assert_sql(conn, "250 250 250 250",
		   "select concat_ws(' ',"
		   " (select count(*) from lease.runs where status = 'pending'"
		   "   and state_version = 3),"
		   " (select count(*) from lease.node_executions where status = 'lease_expired'),"
		   " (select count(*) from lease.nodes where state = 'lease_expired'),"
		   " (select count(*) from lease.run_events where kind = 'attempt_closed'))");
	assert_explained(conn);
}

static void a_terminated_connection_is_rebuilt_at_once(void **state)
{
	struct daemon daemon;
	pid_t before;

	(void)state;
	daemon_start_ready(&daemon, config_with("interval: 1h"));
	daemon_wait_status(&daemon, "0 open");
	before = daemon_backend();
	sql(conn, "select pg_terminate_backend(%d)", (int)before);
	daemon_wait_log(&daemon, "SQLSTATE 57P01");
	daemon_wait_log(&daemon, "and 1 failure (57P01: 1)");
	assert_int_equal(daemon_count_log(&daemon, "main: connected to"), 2);
	daemon_stop(&daemon);
}

/* ---- silence ---- */

static void case_16_a_silent_server_is_noticed(void **state)
{
	struct daemon daemon;
	pid_t backend;

	(void)state;
	daemon_start_ready(
		&daemon,
		config_with("interval: 100ms\nlock_timeout: 200ms\nstatement_timeout: 300ms\n"
			    "network_timeout: 500ms"));
	daemon_wait_status(&daemon, "0 open");
	backend = daemon_backend();
	/* the server's process stops: the connection stays open, and nothing comes any more */
	assert_int_equal(kill(backend, SIGSTOP), 0);
	daemon_wait_log(&daemon, "connection lost: no answer within network_timeout (500 ms)");
	add_leases(conn, "r", 3, -100, 5000);
	wait_closed(&daemon.process, conn, 3);
	kill(backend, SIGCONT);
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void a_host_that_never_answers_is_left_for_the_next(void **state)
{
	struct black_hole hole;
	struct daemon daemon;
	char *name = sql_text(conn, "select current_database()");

	(void)state;
	black_hole_open(&hole);
	add_leases(conn, "r", 3, -100, 5000);
	daemon_start_ready(&daemon, text("connect_timeout: 300ms\ndatabases:\n%s",
					 entry("main",
					       text("host=%s,%s user=postgres dbname=%s",
						    hole.folder, cluster.folder, name),
					       "")));
	daemon_wait_log(&daemon, "did not answer within connect_timeout (300 ms)");
	wait_closed(&daemon.process, conn, 3);
	daemon_stop(&daemon);
	black_hole_close(&hole);
	free(name);
}

/* ---- the wrong server ---- */

static void case_15_read_only_server(void **state)
{
	struct daemon daemon;

	(void)state;
	sql(conn, "alter database %s set default_transaction_read_only = on", PQdb(conn));
	daemon_start_ready(&daemon, config_with(""));
	daemon_wait_log(&daemon, "the server is read-only");
	daemon_wait_log(&daemon, "connection dropped, trying the next host");
	daemon_wait_status(&daemon, "main: unreachable for");
	sql(conn, "set default_transaction_read_only = off");
	sql(conn, "alter database %s reset default_transaction_read_only", PQdb(conn));
	add_leases(conn, "r", 3, -100, 5000);
	wait_closed(&daemon.process, conn, 3);
	/* the same again and again was told once */
	assert_int_equal(daemon_count_log(&daemon, "the server is read-only"), 1);
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void case_15_standby_first(void **state)
{
	struct cluster standby;
	struct daemon daemon;
	char *name = sql_text(conn, "select current_database()");

	(void)state;
	cluster_prepare(&standby);
	cluster_standby(&standby, &cluster);
	add_leases(conn, "r", 3, 500, 5000);
	daemon_start_ready(&daemon,
			   text("databases:\n%s", entry("main",
							text("host=%s,%s user=postgres dbname=%s",
							     standby.folder, cluster.folder, name),
							"")));
	daemon_wait_log(&daemon, text("socket %s port 5432: the server is a standby in recovery",
				      standby.folder));
	daemon_wait_log(&daemon, text("main: connected to socket %s", cluster.folder));
	wait_closed(&daemon.process, conn, 3);
	daemon_stop(&daemon);
	cluster_remove(&standby);
	free(name);
}

/* ---- refused ---- */

#define SECRET "Xq7-hunter2-vW"

/* The password is nowhere to be seen: not in the log, the status, the process's title. */
static void assert_secret(struct daemon *daemon)
{
	char *title = read_file(text("/proc/%d/cmdline", (int)daemon->process.pid));

	assert_lacks(process_errors(&daemon->process), "hunter2");
	assert_lacks(process_output(&daemon->process), "hunter2");
	assert_lacks(daemon->notify.record, "hunter2");
	assert_lacks(title, "hunter2");
	free(title);
}

static void wrong_password_is_told_and_a_right_one_taken(void **state)
{
	char *folder = test_tmpdir(), *hba, *path;
	char *database = sql_text(conn, "select current_database()");
	struct daemon daemon;

	(void)state;
	sql(conn,
	    "do $$ begin create role keeper login in role lease_reconciler;"
	    " exception when duplicate_object then null; end $$;"
	    "set password_encryption = 'scram-sha-256'; alter role keeper password '" SECRET "'");
	if (asprintf(&hba, "%s/data/pg_hba.conf", cluster.folder) < 0 ||
	    asprintf(&path, "%s/password", folder) < 0)
		abort();
	write_file(hba, "local all keeper scram-sha-256\nlocal all all trust\n"
			"local replication all trust\n");
	sql(conn, "select pg_reload_conf()");
	write_file(path, "wrong-" SECRET "\n");
	add_leases(conn, "r", 3, -100, 5000);
	daemon_start_ready(
		&daemon,
		text("reconnect_max: 200ms\ndatabases:\n%s",
		     entry("main", text("host=%s user=keeper dbname=%s", cluster.folder, database),
			   text("    password_file: %s\n", path))));
	daemon_wait_log(&daemon, "28P01: password authentication failed for user \"keeper\"");
	daemon_wait_status(&daemon, "main: unreachable for");
	assert_holds(process_errors(&daemon.process), "check user, password_file");
	/* the file is read at each try */
	write_file(path, SECRET "\n");
	wait_closed(&daemon.process, conn, 3);
	daemon_wait_log(&daemon, "as keeper");
	assert_int_equal(daemon_count_log(&daemon, "28P01: password"), 1);
	assert_secret(&daemon);
	daemon_stop(&daemon);
	free(path);
	free(hba);
	free(database);
	free(folder);
}

static void a_missing_password_file_is_told(void **state)
{
	char *folder = test_tmpdir();
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, text("databases:\n%s",
					 entry("main", conninfo,
					       text("    password_file: %s/none\n", folder))));
	daemon_wait_log(&daemon,
			text("password_file %s/none cannot be used: No such file", folder));
	daemon_wait_status(&daemon, "main: unreachable for");
	daemon_stop(&daemon);
	free(folder);
}

static void case_28_refusals_have_their_sqlstate(void **state)
{
	char *database = sql_text(conn, "select current_database()");
	struct daemon daemon;

	(void)state;
	sql(conn, "create role crowded login connection limit 0 in role lease_reconciler");
	daemon_start_ready(
		&daemon,
		text("reconnect_max: 200ms\ndatabases:\n%s%s",
		     entry("crowded",
			   text("host=%s user=crowded dbname=%s", cluster.folder, database), ""),
		     entry("absent", text("host=%s user=postgres dbname=absent", cluster.folder),
			   "")));
	daemon_wait_log(&daemon, "crowded: cannot connect");
	daemon_wait_log(&daemon, "FATAL: 53300: too many connections for role");
	daemon_wait_log(&daemon, "FATAL: 3D000: database \"absent\" does not exist");
	daemon_wait_status(&daemon, "2 databases: 0 connected");
	sql(conn, "alter role crowded connection limit -1");
	daemon_wait_log(&daemon, "crowded: connected to");
	assert_holds(process_errors(&daemon.process), "(53300: ");
	daemon_stop(&daemon);
	sql(conn, "drop owned by crowded; drop role crowded");
	free(database);
}

static void a_wrong_schema_is_told_once_and_the_right_one_taken(void **state)
{
	struct daemon daemon;

	(void)state;
	sql(conn, "insert into lease.schema_migrations (version, name, checksum)"
		  " values (999, 'x', 'x')");
	daemon_start_ready(&daemon, config_with(""));
	daemon_wait_log(&daemon, "main: sweep failed: schema lease has version 999");
	daemon_wait_status(&daemon, "main: failing for");
	add_leases(conn, "r", 3, -100, 5000);
	sql(conn, "delete from lease.schema_migrations where version = 999");
	wait_closed(&daemon.process, conn, 3);
	daemon_wait_log(&daemon, "main: sweeping again, after");
	assert_int_equal(daemon_count_log(&daemon, "main: sweep failed"), 1);
	daemon_stop(&daemon);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, create, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_04_away_and_back),
		TEST(case_05_one_of_two_is_down_at_start),
		TEST(case_12_restarted_while_idle),
		TEST(case_12_restarted_in_mid_sweep),
		TEST(case_30_crash_with_250_rows_in_flight),
		TEST(a_terminated_connection_is_rebuilt_at_once),
		TEST(case_16_a_silent_server_is_noticed),
		TEST(a_host_that_never_answers_is_left_for_the_next),
		TEST(case_15_read_only_server),
		TEST(case_15_standby_first),
		TEST(wrong_password_is_told_and_a_right_one_taken),
		TEST(a_missing_password_file_is_told),
		TEST(case_28_refusals_have_their_sqlstate),
		TEST(a_wrong_schema_is_told_once_and_the_right_one_taken),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("outages", tests, begin, finish);
}
