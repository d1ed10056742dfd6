/*
 * What the service manager sees (READY, STATUS, WATCHDOG, RELOADING, STOPPING), and reloading.
 */
#include <ev.h>

#include "fixture.h"
#include "service.h"

static const char *config_with(const char *options)
{
	return text("amnesty: off\n%s\ndatabases:\n%s", options, entry("main", conninfo, ""));
}

/* Replaces the file and asks for it to be read; waits for the manager to be told of both ends. */
static void reload(struct daemon *daemon, const char *config)
{
	write_file(daemon->config_path, config);
	notify_forget(&daemon->notify);
	process_signal(&daemon->process, SIGHUP);
	assert_true(notify_saw(&daemon->notify, "RELOADING=1", TEST_PATIENCE_MS));
	assert_true(notify_saw(&daemon->notify, "READY=1", TEST_PATIENCE_MS));
	/* in this order, and with the time of the request */
	assert_true(strstr(daemon->notify.record, "RELOADING=1\nMONOTONIC_USEC=") <
		    strstr(daemon->notify.record, "READY=1"));
}

/* ---- the protocol ---- */

static void it_is_ready_though_its_database_is_down(void **state)
{
	char *folder = test_tmpdir();
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon,
			   text("databases:\n%s", entry("lab", text("host=%s", folder), "")));
	daemon_wait_status(&daemon, "1 database: 0 connected; lab: unreachable for");
	daemon_wait_status(&daemon, "oldest unclosed expired lease unknown");
	notify_forget(&daemon.notify);
	process_signal(&daemon.process, SIGTERM);
	assert_int_equal(process_wait(&daemon.process, TEST_PATIENCE_MS), 0);
	assert_true(notify_saw(&daemon.notify, "STOPPING=1", 0));
	daemon_done(&daemon);
	free(folder);
}

static void the_status_tells_what_is_so(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "held", 12, 3600000, 10800000);
	daemon_start_ready(&daemon, config_with("interval: 200ms"));
	daemon_wait_status(
		&daemon, "1 database: 1 connected; main: 12 open, 0 expired, oldest unclosed 0 s");
	add_leases(conn, "more", 3, 3600000, 10800000);
	daemon_wait_status(&daemon, "main: 15 open, 0 expired, oldest unclosed 0 s");
	daemon_stop(&daemon);
}

/* A run that somebody keeps locked is over and unclosed, and gets older. */
static void the_age_of_what_is_unclosed_grows(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "r", 1, 10800000, 10800000);
	sql(holder, "begin; select from lease.runs where run_id = 'r-00001' for update");
	daemon_start_ready(&daemon, config_with("interval: 500ms"));
	daemon_wait_status(&daemon, "1 open, 0 expired, oldest unclosed 0 s");
	sql(conn, "update lease.run_attempts set lease_expires_at = clock_timestamp()");
	daemon_wait_status(&daemon, "1 open, 1 expired, oldest unclosed at most");
	sql(holder, "rollback");
	daemon_wait_status(&daemon, "0 open, 0 expired, oldest unclosed 0 s");
	PQfinish(holder);
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void the_watchdog_is_fed(void **state)
{
	char *program = test_program("lease-reconciler");
	char *path = write_config(config_with(""));
	struct notify_socket notify;
	struct process process;

	(void)state;
	notify_open(&notify);
	process_start(&process, ((char *[]){ program, "--config", path, NULL }),
		      ((char *[]){ (char *)text("NOTIFY_SOCKET=%s", notify.path),
				   "WATCHDOG_USEC=200000", NULL }));
	for (int i = 0; i < 3; i++) {
		assert_true(notify_saw(&notify, "WATCHDOG=1", TEST_PATIENCE_MS));
		notify_forget(&notify);
	}
	process_signal(&process, SIGTERM);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	notify_close(&notify);
	free(path);
	free(program);
}

/* After the start and after the reload. Nothing is forgotten in between, which might be the second. */
static bool is_ready_twice(void *argument)
{
	struct notify_socket *notify = argument;

	return notify_saw(notify, "READY=1", 1) && count_text(notify->record, "READY=1\n") >= 2;
}

/* Its queue is full after ten messages; the sweeps go on, and READY comes when there is room. */
static void a_manager_that_does_not_read_holds_up_nothing(void **state)
{
	char *program = test_program("lease-reconciler");
	char *path = write_config(config_with("interval: 200ms"));
	struct notify_socket notify;
	struct process process;

	(void)state;
	notify_open(&notify);
	process_start(&process, ((char *[]){ program, "--config", path, NULL }),
		      ((char *[]){ (char *)text("NOTIFY_SOCKET=%s", notify.path),
				   "WATCHDOG_USEC=20000", NULL }));
	process_wait_text(&process, "main: connected to", TEST_PATIENCE_MS);
	for (int i = 1; i <= 3; i++) {
		add_leases(conn, text("r%d", i), 1, 500, 5000);
		wait_closed(&process, conn, i);
	}
	process_signal(&process, SIGHUP);
	process_wait_text(&process, "configuration reloaded", TEST_PATIENCE_MS);
	assert_true(wait_until(is_ready_twice, &notify, TEST_PATIENCE_MS));
	process_signal(&process, SIGTERM);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	notify_close(&notify);
	free(path);
	free(program);
}

static void interrupt_ends_it_too(void **state)
{
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, config_with(""));
	process_signal(&daemon.process, SIGINT);
	assert_int_equal(process_wait(&daemon.process, TEST_PATIENCE_MS), 0);
	daemon_done(&daemon);
}

static void nobody_listens(void **state)
{
	char *program = test_program("lease-reconciler");
	char *path = write_config(config_with(""));
	struct process process;

	(void)state;
	process_start(&process, ((char *[]){ program, "--config", path, NULL }),
		      ((char *[]){ "NOTIFY_SOCKET", NULL }));
	process_wait_text(&process, "main: connected to", TEST_PATIENCE_MS);
	process_signal(&process, SIGTERM);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	free(path);
	free(program);
}

/* ---- the part by itself ---- */

static const char *late_name;

static bool describe_nothing(void *arg, FILE *file)
{
	(void)arg;
	fputs("nothing", file);
	return false;
}

static const char *find_late(void *arg, int64_t *ret_lateness)
{
	(void)arg;
	*ret_lateness = 9 * LEASE_SECOND;
	return late_name;
}

static void stop_loop(struct ev_loop *loop, ev_timer *watcher, int events)
{
	(void)watcher;
	(void)events;
	ev_break(loop, EVBREAK_ALL);
}

static void run_for(struct ev_loop *loop, double seconds)
{
	ev_timer timer;

	ev_timer_init(&timer, stop_loop, seconds, 0.);
	ev_timer_start(loop, &timer);
	ev_run(loop, 0);
}

static void the_watchdog_starves_while_a_database_is_late(void **state)
{
	struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
	struct journal journal = { .level = CONFIG_LOG_ERROR };
	struct service service;
	struct notify_socket notify;

	(void)state;
	notify_open(&notify);
	setenv("NOTIFY_SOCKET", notify.path, 1);
	setenv("WATCHDOG_USEC", "40000", 1);
	late_name = "lab";
	service_init(&service, loop, &journal,
		     (struct service_source){ describe_nothing, find_late, NULL });
	unsetenv("WATCHDOG_USEC");
	service_ready(&service);
	run_for(loop, 0.3);
	assert_true(notify_saw(&notify, "READY=1", 0));
	assert_false(notify_saw(&notify, "WATCHDOG=1", 0));
	late_name = NULL;
	run_for(loop, 0.3);
	assert_true(notify_saw(&notify, "WATCHDOG=1", 0));
	service_stopping(&service);
	service_done(&service);
	unsetenv("NOTIFY_SOCKET");
	notify_close(&notify);
	ev_loop_destroy(loop);
}

static bool describe_much(void *arg, FILE *file)
{
	(void)arg;
	fputs("\xff\n|", file);
	for (int i = 0; i < 3000; i++)
		fputs("\xc3\xa4", file);
	return false;
}

/* The manager drops what is too long or not UTF-8. */
static void a_status_is_cut_and_stays_utf8(void **state)
{
	struct ev_loop *loop = ev_loop_new(EVFLAG_AUTO);
	struct journal journal = { .level = CONFIG_LOG_ERROR };
	struct service service;
	struct notify_socket notify;
	char *status;

	(void)state;
	notify_open(&notify);
	setenv("NOTIFY_SOCKET", notify.path, 1);
	service_init(&service, loop, &journal,
		     (struct service_source){ describe_much, find_late, NULL });
	service_ready(&service);
	status = notify_value(&notify, "STATUS");
	assert_non_null(status);
	assert_true(strlen(status) < SERVICE_STATUS_MAX);
	assert_true(strlen(status) > SERVICE_STATUS_MAX - 10);
	assert_memory_equal(status, "\\xff\\x0a|\xc3\xa4", 11);
	assert_string_equal(status + strlen(status) - 5, "\xc3\xa4...");
	free(status);
	service_done(&service);
	unsetenv("NOTIFY_SOCKET");
	notify_close(&notify);
	ev_loop_destroy(loop);
}

/* ---- reloading ---- */

static void a_reload_adds_and_removes_databases(void **state)
{
	char *other = test_database_create();
	PGconn *other_conn = test_connect(other);
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, config_with("interval: 200ms"));
	daemon_wait_status(&daemon, "1 database: 1 connected; main:");
	reload(&daemon, text("interval: 200ms\ndatabases:\n%s%s", entry("main", conninfo, ""),
			     entry("other", other, "")));
	daemon_wait_log(&daemon, "configuration reloaded: 2 databases");
	add_leases(other_conn, "r", 3, -100, 5000);
	wait_closed(&daemon.process, other_conn, 3);
	/* what was there goes on with the connection that it has */
	assert_int_equal(daemon_count_log(&daemon, "main: connected to"), 1);
	reload(&daemon, text("interval: 200ms\ndatabases:\n%s", entry("other", other, "")));
	daemon_wait_log(&daemon, "main: left: it is not in the configuration any more");
	daemon_wait_status(&daemon, "1 database: 1 connected; other:");
	wait_daemon_gone(conn);
	daemon_stop(&daemon);
	PQfinish(other_conn);
	free(other);
}

static void a_reload_changes_options_and_keeps_the_connection(void **state)
{
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, config_with("interval: 1h\npolicy: record"));
	daemon_wait_status(&daemon, "0 open");
	add_leases(conn, "r", 3, -100, 5000);
	reload(&daemon, config_with("interval: 100ms\npolicy: requeue"));
	wait_closed(&daemon.process, conn, 3);
	assert_sql(conn, "3", "select count(*) from lease.runs where status = 'pending'");
	assert_int_equal(daemon_count_log(&daemon, "main: connected to"), 1);
	daemon_stop(&daemon);
	assert_explained(conn);
}

static void a_reload_with_another_connection_connects_anew(void **state)
{
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, config_with("interval: 200ms"));
	daemon_wait_status(&daemon, "0 open");
	reload(&daemon, text("interval: 200ms\ndatabases:\n%s",
			     entry("main", text("%s application_name=renamed", conninfo), "")));
	wait_daemon_gone(conn);
	wait_sql(conn,
		 "select count(*) = 1 from pg_stat_activity where application_name = 'renamed'");
	daemon_wait_status(&daemon, "1 database: 1 connected; main: 0 open");
	daemon_stop(&daemon);
}

static void a_bad_reload_changes_nothing(void **state)
{
	static const char *const bad[] = {
		"interval: 5\ndatabases:\n  - name: a\n    conninfo: dbname=a\n",
		"databases:\n  - name: a\n    conninfo: dbnam=a\n",
		"",
	};
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, config_with("interval: 200ms\npolicy: fail"));
	daemon_wait_status(&daemon, "0 open");
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		reload(&daemon, bad[i]);
		assert_int_equal(daemon_count_log(&daemon,
						  "error configuration not reloaded, the old "
						  "one stays in force: "),
				 i + 1);
	}
	assert_holds(process_errors(&daemon.process), ".yaml:1:11: interval:");
	unlink(daemon.config_path);
	process_signal(&daemon.process, SIGHUP);
	daemon_wait_log(&daemon, "No such file or directory");
	add_leases(conn, "r", 3, -100, 5000);
	wait_closed(&daemon.process, conn, 3);
	assert_sql(conn, "3", "select count(*) from lease.runs where status = 'failed'");
	assert_int_equal(daemon_count_log(&daemon, "main: connected to"), 1);
	daemon_stop(&daemon);
}

static void a_reload_in_mid_transaction_lets_it_end(void **state)
{
	struct daemon daemon;
	PGconn *holder = test_connect(conninfo);
	char *other = test_database_create();

	(void)state;
	add_leases(conn, "r", 10, -100, 5000);
	sql(holder, "begin; select from lease.run_attempts where run_id = 'r-00005' for update");
	daemon_start_ready(&daemon, config_with(LONG_TIMEOUTS "policy: requeue"));
	wait_daemon_blocked(conn, 1);
	reload(&daemon, text("databases:\n%s", entry("other", other, "")));
	sql(holder, "rollback");
	daemon_wait_log(&daemon, "main: left:");
	assert_sql(conn, "10", "select count(*) from lease.runs where status = 'pending'");
	daemon_stop(&daemon);
	PQfinish(holder);
	free(other);
	assert_explained(conn);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, create, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(it_is_ready_though_its_database_is_down),
		TEST(the_status_tells_what_is_so),
		TEST(the_age_of_what_is_unclosed_grows),
		TEST(the_watchdog_is_fed),
		TEST(a_manager_that_does_not_read_holds_up_nothing),
		TEST(interrupt_ends_it_too),
		TEST(nobody_listens),
		cmocka_unit_test(the_watchdog_starves_while_a_database_is_late),
		cmocka_unit_test(a_status_is_cut_and_stays_utf8),
		TEST(a_reload_adds_and_removes_databases),
		TEST(a_reload_changes_options_and_keeps_the_connection),
		TEST(a_reload_with_another_connection_connects_anew),
		TEST(a_bad_reload_changes_nothing),
		TEST(a_reload_in_mid_transaction_lets_it_end),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("service", tests, NULL, processes_kill_all);
}
