/*
 * Options, bad input of every kind, --check-config and --once: one clear line and the right exit
 * code, and never a password.
 */
#include "daemon.h"

static const char *const secret = "Xq7-hunter2-vW";

static int once(struct process *process, const char *config)
{
	char *path = write_config(config);
	int code = run_program(process, ((char *[]){ "--once", "--config", path, NULL }));

	free(path);
	return code;
}

static int check(struct process *process, const char *config)
{
	char *path = write_config(config);
	int code = run_program(process, ((char *[]){ "--check-config", "--config", path, NULL }));

	free(path);
	return code;
}

/* ---- usage ---- */

static void wrong_usage_is_one_line_and_64(void **state)
{
	char *wrong[][4] = {
		{ "--frobnicate", NULL },
		{ "-x", NULL },
		{ "--config", NULL },
		{ "--once=now", NULL },
		{ "start", NULL },
		{ "--verbose", NULL },
		{ "--check-config", "--once", NULL },
	};
	struct process process;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(run_program(&process, wrong[i]), 64);
		assert_one_line(process_errors(&process));
		assert_holds(process_errors(&process), "--help");
		assert_string_equal(process_output(&process), "");
	}
}

static void version_and_help_go_to_stdout(void **state)
{
	struct process process;

	(void)state;
	assert_int_equal(run_program(&process, ((char *[]){ "--version", NULL })), 0);
	assert_string_equal(process_output(&process),
			    text("lease-reconciler %s\n", lease_version()));
	assert_int_equal(run_program(&process, ((char *[]){ "--help", NULL })), 0);
	assert_holds(process_output(&process), "--check-config");
	assert_string_equal(process_errors(&process), "");
}

/* ---- configuration ---- */

static void configuration_that_cannot_be_read_is_66(void **state)
{
	char *folder = test_tmpdir();
	char *modes[] = { "--check-config", "--once", NULL };
	struct process process;

	(void)state;
	for (int i = 0; i < 3; i++) {
		char *path = (char *)text("%s/missing.yaml", folder);
		char *arguments[] = { "--config", path, modes[i], NULL };

		assert_int_equal(run_program(&process, arguments), 66);
		assert_one_line(process_errors(&process));
		assert_holds(process_errors(&process), "missing.yaml");
	}
	assert_int_equal(run_program(&process, ((char *[]){ "--config", folder, NULL })), 66);
	assert_one_line(process_errors(&process));
	free(folder);
}

static void wrong_configuration_is_78_with_its_place(void **state)
{
	struct process process;
	char *path = write_config("interval: 5\ndatabases:\n  - name: a\n    conninfo: dbname=a\n");
	char *modes[] = { "--check-config", "--once", NULL };

	(void)state;
	for (int i = 0; i < 3; i++) {
		char *arguments[] = { "--config", path, modes[i], NULL };

		assert_int_equal(run_program(&process, arguments), 78);
		assert_one_line(process_errors(&process));
		assert_holds(process_errors(&process), ".yaml:1:11: interval:");
	}
	free(path);
}

static void wrong_connection_strings_are_78_and_show_nothing(void **state)
{
	static const struct {
		const char *conninfo, *told;
	} wrong[] = {
		{ "host=/tmp dbnam=a", "after the value of 'host'" },
		{ "user=a password=Xq7-hunter2-vW Xq7-hunter2-vW=1",
		  "after the value of 'password'" },
		{ "nonsense=1", "at the beginning" },
		{ "host=a,b hostaddr=10.0.0.1", "host and hostaddr" },
		{ "host=a,b,c port=1,2", "port" },
		{ "postgresql://u@h/db?Xq7-hunter2-vW=1", "URI" },
	};
	struct process process;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const char *config = text("databases:\n%s", entry("lab", wrong[i].conninfo, ""));

		assert_int_equal(check(&process, config), 78);
		assert_one_line(process_errors(&process));
		assert_holds(process_errors(&process), "'lab'");
		assert_holds(process_errors(&process), "conninfo");
		assert_holds(process_errors(&process), wrong[i].told);
		assert_lacks(process_errors(&process), secret);
	}
}

static void check_config_connects_to_nothing(void **state)
{
	struct process process;

	(void)state;
	assert_int_equal(check(&process, "databases:\n  - name: a\n    conninfo: host=/nowhere\n"),
			 0);
	assert_one_line(process_output(&process));
	assert_holds(process_output(&process), "ok, 1 database");
	assert_string_equal(process_errors(&process), "");
}

static void verbose_prints_what_can_be_loaded_again(void **state)
{
	char *path = write_config(
		text("policy: fail\ndatabases:\n  - name: a\n    conninfo: dbname=a password=%s\n",
		     secret));
	struct process process;

	(void)state;
	assert_int_equal(run_program(&process, ((char *[]){ "--check-config", "--verbose",
							    "--config", path, NULL })),
			 0);
	assert_lacks(process_output(&process), secret);
	assert_holds(process_output(&process), "policy: fail");
	assert_int_equal(check(&process, text("%s", process_output(&process))), 0);
	free(path);
}

/* ---- once ---- */

static void once_tells_a_refused_connection_in_one_line(void **state)
{
	struct process process;
	char *folder = test_tmpdir();

	(void)state;
	assert_int_equal(
		once(&process, text("databases:\n%s", entry("lab", text("host=%s", folder), ""))),
		75);
	assert_one_line(process_errors(&process));
	assert_holds(process_errors(&process), "lab: failed: cannot connect");
	assert_holds(process_errors(&process), folder);
	assert_string_equal(process_output(&process), "");
	free(folder);
}

static void once_tells_a_wrong_schema_and_what_to_do(void **state)
{
	struct process process;
	char *empty = test_database_create_empty(), *old = test_database_create();
	char *new = test_database_create();
	PGconn *conn = test_connect(old);

	(void)state;
	sql(conn, "delete from lease.schema_migrations where version > 1");
	PQfinish(conn);
	conn = test_connect(new);
	sql(conn,
	    "insert into lease.schema_migrations (version, name, checksum) values (999, 'x', 'x')");
	PQfinish(conn);
	assert_int_equal(once(&process, text("databases:\n%s", entry("e", empty, ""))), 75);
	assert_one_line(process_errors(&process));
	assert_holds(process_errors(&process), "leasectl migrate");
	assert_int_equal(once(&process, text("databases:\n%s", entry("o", old, ""))), 75);
	assert_one_line(process_errors(&process));
	assert_holds(process_errors(&process), "version 1");
	assert_holds(process_errors(&process), "leasectl migrate");
	assert_int_equal(once(&process, text("databases:\n%s", entry("n", new, ""))), 75);
	assert_one_line(process_errors(&process));
	assert_holds(process_errors(&process), "version 999");
	assert_holds(process_errors(&process), "newer");
	free(empty);
	free(old);
	free(new);
}

static void case_26_reconcile_twice_closes_nothing_more(void **state)
{
	struct process process;
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);
	const char *config = text("policy: requeue\nlog:\n  closed_attempts_per_second: 1\n"
				  "databases:\n%s",
				  entry("main", conninfo, ""));

	(void)state;
	add_leases(conn, "over", 7, -1000, 5000);
	add_leases(conn, "held", 2, 3600000, 3600000);
	assert_int_equal(once(&process, config), 0);
	assert_string_equal(process_output(&process),
			    "main: 9 open, 7 expired, 7 closed, 7 pending\n");
	assert_holds(process_errors(&process), "closed as lease_expired");
	assert_holds(process_errors(&process), "closed 6 attempts more as lease_expired");
	assert_int_equal(once(&process, config), 0);
	assert_string_equal(process_output(&process), "main: 2 open, 0 expired, 0 closed\n");
	assert_string_equal(process_errors(&process), "");
	assert_sql(conn, "7",
		   "select count(*) from lease.run_attempts where finished_at is not null");
	assert_explained(conn);
	PQfinish(conn);
	free(conninfo);
}

static void once_leaves_what_is_locked_and_says_so(void **state)
{
	struct process process;
	char *conninfo = test_database_create(), *other = test_database_create();
	PGconn *conn = test_connect(conninfo), *holder = test_connect(conninfo);

	(void)state;
	add_leases(conn, "over", 3, -1000, 5000);
	sql(holder, "begin; select from lease.runs where run_id = 'over-00002' for update");
	assert_int_equal(once(&process, text("databases:\n%s%s", entry("main", conninfo, ""),
					     entry("other", other, ""))),
			 75);
	assert_holds(process_output(&process),
		     "main: 3 open, 3 expired, 2 closed, 1 left (locked by somebody else)\n");
	assert_holds(process_output(&process), "other: 0 open, 0 expired, 0 closed\n");
	sql(holder, "rollback");
	assert_explained(conn);
	PQfinish(holder);
	PQfinish(conn);
	free(conninfo);
	free(other);
}

/* ---- odd environments ---- */

static void closed_streams_do_not_disturb(void **state)
{
	char *conninfo = test_database_create(), *program = test_program("lease-reconciler");
	PGconn *conn = test_connect(conninfo);
	char *path = write_config(
		text("log:\n  level: debug\ndatabases:\n%s", entry("main", conninfo, "")));
	struct process process;

	(void)state;
	add_leases(conn, "over", 3, -1000, 5000);
	process_start(&process,
		      ((char *[]){ "bash", "-c", "exec \"$0\" --config \"$1\" <&- >&- 2>&-",
				   program, path, NULL }),
		      NULL);
	wait_closed(&process, conn, 3);
	add_leases(conn, "later", 3, 100, 5000);
	wait_closed(&process, conn, 6);
	process_signal(&process, SIGTERM);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	assert_explained(conn);
	PQfinish(conn);
	free(program);
	free(path);
	free(conninfo);
}

static void a_reader_that_stopped_reading_does_not_hold_it_up(void **state)
{
	char *conninfo = test_database_create(), *program = test_program("lease-reconciler");
	PGconn *conn = test_connect(conninfo);
	char *path = write_config(text("log:\n  level: debug\n  closed_attempts_per_second: 10000\n"
				       "databases:\n%s",
				       entry("main", conninfo, "")));
	struct process process;

	(void)state;
	/* 2,000 lines do not fit into a pipe of 64 kB that nobody reads */
	add_leases(conn, "over", 2000, -1000, 5000);
	process_start(&process,
		      ((char *[]){ "bash", "-c",
				   "exec {pipe}<> <(:); \"$0\" --config \"$1\" 2>&$pipe & "
				   "trap 'kill $!; wait $!; exit $?' TERM; wait",
				   program, path, NULL }),
		      NULL);
	wait_closed(&process, conn, 2000);
	process_signal(&process, SIGTERM);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	assert_explained(conn);
	PQfinish(conn);
	free(program);
	free(path);
	free(conninfo);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_usage_is_one_line_and_64),
		cmocka_unit_test(version_and_help_go_to_stdout),
		cmocka_unit_test(configuration_that_cannot_be_read_is_66),
		cmocka_unit_test(wrong_configuration_is_78_with_its_place),
		cmocka_unit_test(wrong_connection_strings_are_78_and_show_nothing),
		cmocka_unit_test(check_config_connects_to_nothing),
		cmocka_unit_test(verbose_prints_what_can_be_loaded_again),
		cmocka_unit_test(once_tells_a_refused_connection_in_one_line),
		cmocka_unit_test(once_tells_a_wrong_schema_and_what_to_do),
		cmocka_unit_test(case_26_reconcile_twice_closes_nothing_more),
		cmocka_unit_test(once_leaves_what_is_locked_and_says_so),
		cmocka_unit_test(closed_streams_do_not_disturb),
		cmocka_unit_test(a_reader_that_stopped_reading_does_not_hold_it_up),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("options", tests, NULL, processes_kill_all);
}
