/*
 * leasectl, end to end: the built program against a real PostgreSQL of this file's own.
 *
 * Promises: the program brings its own cluster (tests/cluster.sh), because it drops and makes roles
 * and changes pg_hba.conf, which belong to all databases of a cluster. JSON is checked by
 * PostgreSQL. Nothing is asserted about how long anything takes.
 */
#include "../support/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "lease.h"
#include "migrations.h"

#define LOCK_KEY "7810756276994795879" /* "leasemig" */
#define SECRET "hunter2-very-secret"
#define OPTIONS_MAX 24

/* -- running it ------------------------------------------------------------------------------- */

static struct {
	struct process process;
	int code;
	const char *out, *err;
} ran;

static char *plain_environment[] = { "LC_ALL=C.UTF-8", "TERM=xterm", "COLUMNS", "NO_COLOR",
				     "PGOPTIONS",      "PGSERVICE",  NULL };

/* leasectl [-d conninfo] words…; conninfo NULL: none. */
static void start(struct process *process, char *const environment[], const char *conninfo,
		  const char *const words[])
{
	char *program = test_program("leasectl");
	const char *argv[OPTIONS_MAX] = { program };
	int n = 1;

	for (; *words; words++)
		argv[n++] = *words;
	if (conninfo) {
		argv[n++] = "-d";
		argv[n++] = conninfo;
	}
	process_start(process, (char *const *)argv, environment);
	free(program);
}

static void finish(struct process *process)
{
	ran.process = *process;
	ran.code = process_wait(&ran.process, TEST_PATIENCE_MS);
	ran.out = process_output(&ran.process);
	ran.err = process_errors(&ran.process);
}

#define finish_with(code, process) finish_at(code, process, __FILE__, __LINE__)
static void finish_at(int code, struct process *process, const char *file, int line)
{
	finish(process);
	if (ran.code == code)
		return;
	print_error("exit code %d instead of %d\nstdout: %s\nstderr: %s\n", ran.code, code, ran.out,
		    ran.err);
	_fail(file, line);
}

static void run_words(int code, char *const environment[], const char *conninfo,
		      const char *const words[], const char *file, int line)
{
	struct process process;

	start(&process, environment, conninfo, words);
	finish_at(code, &process, file, line);
}

/* Runs it with these words and expects this exit code; the outputs are in `ran`. */
#define leasectl(code, conninfo, ...)                                                              \
	run_words(code, plain_environment, conninfo, (const char *const[]){ __VA_ARGS__, NULL },   \
		  __FILE__, __LINE__)
#define leasectl_env(code, environment, conninfo, ...)                                             \
	run_words(code, environment, conninfo, (const char *const[]){ __VA_ARGS__, NULL },         \
		  __FILE__, __LINE__)

#define assert_has(text, part) assert_has_at(text, part, __FILE__, __LINE__)
static void assert_has_at(const char *text, const char *part, const char *file, int line)
{
	if (strstr(text, part))
		return;
	print_error("\"%s\" is not in:\n%s\n", part, text);
	_fail(file, line);
}

#define assert_lacks(text, part) assert_lacks_at(text, part, __FILE__, __LINE__)
static void assert_lacks_at(const char *text, const char *part, const char *file, int line)
{
	if (!strstr(text, part))
		return;
	print_error("\"%s\" is in:\n%s\n", part, text);
	_fail(file, line);
}

static int count_of(const char *text, const char *part)
{
	int n = 0;

	while ((text = strstr(text, part))) {
		text += strlen(part);
		n++;
	}
	return n;
}

/* A failure: nothing on standard output, one line on standard error. */
#define assert_one_line(part) assert_one_line_at(part, __FILE__, __LINE__)
static void assert_one_line_at(const char *part, const char *file, int line)
{
	assert_has_at(ran.err, part, file, line);
	if (count_of(ran.err, "\n") == 1 && strncmp(ran.err, "leasectl: ", 10) == 0 && !*ran.out)
		return;
	print_error("no single line: stdout: %s\nstderr: %s\n", ran.out, ran.err);
	_fail(file, line);
}

/* The value at a path of the JSON document that came out; NULL for null or nothing there. */
static char *json_at(PGconn *conn, const char *path, const char *file, int line)
{
	const char *values[] = { ran.out, path };
	PGresult *result = PQexecParams(conn, "select $1::json::jsonb #>> $2::text[]", 2, NULL,
					values, NULL, NULL, 0);
	char *value = NULL;

	if (PQresultStatus(result) != PGRES_TUPLES_OK) {
		print_error("%s%s\n", PQresultErrorMessage(result), ran.out);
		_fail(file, line);
	}
	if (!PQgetisnull(result, 0, 0))
		value = strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	return value;
}

#define assert_json(conn, path, expected) assert_json_at(conn, path, expected, __FILE__, __LINE__)
static void assert_json_at(PGconn *conn, const char *path, const char *expected, const char *file,
			   int line)
{
	char *value = json_at(conn, path, file, line);

	if (!value != !expected || (value && strcmp(value, expected) != 0)) {
		print_error("%s: \"%s\" instead of \"%s\"\n", path, value ? value : "null",
			    expected ? expected : "null");
		_fail(file, line);
	}
	free(value);
}

/* Whether an SQL condition holds, in which $1 is the JSON document. */
#define assert_json_sql(conn, condition) assert_json_sql_at(conn, condition, __FILE__, __LINE__)
static void assert_json_sql_at(PGconn *conn, const char *condition, const char *file, int line)
{
	const char *values[] = { ran.out };
	char statement[2048];
	PGresult *result;

	snprintf(statement, sizeof(statement),
		 "with document as materialized (select $1::json::jsonb as j) "
		 "select (%s) from document",
		 condition);
	result = PQexecParams(conn, statement, 1, NULL, values, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK ||
	    strcmp(PQgetvalue(result, 0, 0), "t") != 0) {
		print_error("%s: does not hold\n%s%s\n", condition, PQresultErrorMessage(result),
			    ran.out);
		_fail(file, line);
	}
	PQclear(result);
}

static char *with_settings(const char *conninfo, const char *settings)
{
	char *text;

	assert_true(asprintf(&text, "%s %s", conninfo, settings) > 0);
	return text;
}

/* The same database as another role. */
static char *as_role(const char *conninfo, const char *role)
{
	const char *user = strstr(conninfo, " user="), *database = strstr(conninfo, " dbname=");
	char *text;

	assert_true(user && database);
	assert_true(asprintf(&text, "%.*s user=%s%s", (int)(user - conninfo), conninfo, role,
			     database) > 0);
	return text;
}

/* A migrated database for tests that mind only runs of their own; it goes with the program. */
static const char *shared_database(void)
{
	static char conninfo[512];

	if (!conninfo[0]) {
		char *created = test_database_create();

		snprintf(conninfo, sizeof(conninfo), "%s", created);
		free(created);
	}
	return conninfo;
}

/* -- migrate: roles, of which a cluster has one set: first, later tests leave them behind ------ */

static void forget_roles(void)
{
	PGconn *admin = test_connect("dbname=postgres");

	sql(admin, "drop role if exists lease_owner, lease_reader, lease_worker, "
		   "lease_reconciler, lease_archive, lease_remover");
	PQfinish(admin);
}

/* Holds the migrations' lock of a database. */
static PGconn *hold_lock(const char *conninfo)
{
	PGconn *conn = test_connect(conninfo);

	sql(conn, "select pg_advisory_lock(" LOCK_KEY ")");
	return conn;
}

static int newest_version(void)
{
	return lease_migrations[lease_migrations_count - 1].version;
}

/* "schema lease is at version N", and what follows it. */
static const char *at_version(const char *rest)
{
	static char text[80];

	snprintf(text, sizeof(text), "schema lease is at version %d%s\n", newest_version(), rest);
	return text;
}

/* A line for each migration, with its name in it. */
static const char *for_each_migration(const char *verb)
{
	static char text[4096];

	text[0] = '\0';
	for (int i = 0; i < lease_migrations_count; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %s\n", verb,
			 lease_migrations[i].name);
	return text;
}

static void assert_all_applied(void)
{
	char expected[4200];

	snprintf(expected, sizeof(expected), "%s%s", for_each_migration("applied"), at_version(""));
	assert_string_equal(ran.out, expected);
}

/* Both wait at the lock and go on at the same moment, into the same roles. */
static void two_databases_of_one_cluster_at_once(void **state)
{
	(void)state;
	for (int round = 0; round < 2; round++) {
		char *conninfos[2];
		struct process processes[2];
		PGconn *locks[2];

		forget_roles();
		for (int i = 0; i < 2; i++) {
			conninfos[i] = test_database_create_empty();
			locks[i] = hold_lock(conninfos[i]);
			start(&processes[i], plain_environment, conninfos[i],
			      (const char *const[]){ "migrate", NULL });
		}
		for (int i = 0; i < 2; i++)
			process_wait_text(&processes[i], "waiting for it", TEST_PATIENCE_MS);
		for (int i = 0; i < 2; i++)
			PQfinish(locks[i]);
		for (int i = 0; i < 2; i++) {
			finish_with(0, &processes[i]);
			assert_all_applied();
		}
		for (int i = 0; i < 2; i++) {
			PGconn *conn = test_connect(conninfos[i]);

			assert_sql(conn, "lease_owner",
				   "select nspowner::regrole from pg_namespace "
				   "where nspname = 'lease'");
			PQfinish(conn);
			test_database_drop(conninfos[i]);
			free(conninfos[i]);
		}
	}
}

static char *create_owned_database(const char *owner)
{
	char *conninfo = test_database_create_empty();
	PGconn *admin = test_connect("dbname=postgres");
	char *own = as_role(conninfo, owner);

	sql(admin, "alter database %s owner to %s", strstr(conninfo, "dbname=") + 7, owner);
	PQfinish(admin);
	free(conninfo);
	return own;
}

static void a_plain_owner_migrates_and_is_told_what_is_missing(void **state)
{
	char *silent[] = { "LC_ALL=C.UTF-8", "PGOPTIONS=-c client_min_messages=error", NULL };
	PGconn *admin = test_connect("dbname=postgres"), *conn;
	char *conninfo;

	(void)state;
	forget_roles();
	sql(admin, "create role app_owner login");
	conninfo = create_owned_database("app_owner");
	leasectl_env(0, silent, conninfo, "migrate");
	assert_has(ran.out,
		   "applied 0003_roles\n"
		   "note: role lease_owner is missing and app_owner may not create it\n"
		   "note: role lease_reader is missing and app_owner may not create it\n"
		   "note: role lease_worker is missing and app_owner may not create it\n"
		   "note: role lease_reconciler is missing and app_owner may not create it\n");
	assert_has(
		ran.out,
		"applied 0006_archive\n"
		"note: role lease_archive is missing and app_owner may not create it: nothing can "
		"be archived\n");
	assert_has(ran.out, at_version(""));
	assert_string_equal(ran.err, "");
	leasectl(0, conninfo, "migrate");
	assert_string_equal(ran.out, at_version(": nothing to apply"));
	leasectl(0, conninfo, "submit", "--run", "r");
	assert_string_equal(ran.out, "r\n");
	test_database_drop(conninfo);
	free(conninfo);

	/* the roles are there, but the schema may not be handed over */
	for (const char *const *role =
		     (const char *const[]){ "lease_owner", "lease_reader", "lease_worker",
					    "lease_reconciler", "lease_archive", "lease_remover",
					    NULL };
	     *role; role++)
		sql(admin, "create role %s nologin", *role);
	conninfo = create_owned_database("app_owner");
	leasectl(0, conninfo, "migrate", "--json");
	conn = test_connect(conninfo);
	assert_json_sql(conn, "j->'notes' ? 'the schema stays with app_owner: it may not be "
			      "handed to lease_owner'");
	assert_json_sql(conn, "j->>'notes' not like '%is missing%'");
	assert_json_sql(conn,
			"j->'notes' ? 'function remove_runs stays with app_owner, who may not "
			"hand it to lease_remover: nothing can be archived'");
	assert_json(conn, "{applied,2}", "0003_roles");
	assert_sql(conn, "t", "select has_schema_privilege('lease_worker', 'lease', 'usage')");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
	PQfinish(admin);
}

/* As in a managed PostgreSQL, where nobody is a superuser. */
static void who_may_create_roles_hands_the_removal_over(void **state)
{
	PGconn *admin = test_connect("dbname=postgres"), *conn;
	char *conninfo;

	(void)state;
	forget_roles();
	sql(admin, "create role app_creator login createrole");
	conninfo = create_owned_database("app_creator");
	leasectl(0, conninfo, "migrate");
	assert_lacks(ran.out, "archived");
	conn = test_connect(conninfo);
	assert_sql(
		conn, "lease_remover t",
		"select proowner::regrole || ' ' || has_function_privilege('lease_archive', oid, "
		"'execute')::char from pg_proc where proname = 'remove_runs'");
	/* what it took to hand it over is taken back */
	assert_sql(conn, "0",
		   "select count(*) from pg_auth_members m where roleid = 'lease_remover'::regrole "
		   "and coalesce((to_jsonb(m)->>'set_option')::bool, true)");
	assert_sql(conn, "f", "select has_schema_privilege('lease_remover', 'lease', 'create')");
	/* and it works */
	sql(conn, "insert into lease.runs (run_id, status, finished_at) values ('r', 'failed', "
		  "clock_timestamp() - interval '9 days'); grant lease_archive to app_creator; "
		  "set role lease_archive");
	sql_fails(conn, "42501", "delete from lease.runs");
	assert_sql(conn, "removed",
		   "select r.verdict from lease.run_facts(array['r']) f, "
		   "lease.remove_runs(array['r'], array[encode(sha256(sha256(convert_to(f.line, "
		   "'UTF8'))), 'hex')], clock_timestamp() - interval '8 days') r");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
	sql(admin, "drop role app_creator");
	PQfinish(admin);
}

static void a_stranger_is_refused_with_77(void **state)
{
	PGconn *admin = test_connect("dbname=postgres"), *conn;
	char *database = test_database_create(), *empty = test_database_create_empty();
	char *stranger = as_role(database, "stranger");
	char *stranger_empty = as_role(empty, "stranger");

	(void)state;
	sql(admin, "create role stranger login");
	leasectl(EX_NOPERM, stranger, "status");
	assert_one_line("permission denied for schema lease");
	assert_has(ran.err, "grant this role lease_reader");
	leasectl(EX_NOPERM, stranger, "migrate");
	assert_one_line("migrate as the owner of the database");
	leasectl(EX_NOPERM, stranger_empty, "migrate");
	assert_one_line("migration 0001_runs.sql, statement 1: permission denied for database");
	assert_has(ran.err, "(SQLSTATE 42501)");

	/* a reader looks and changes nothing */
	sql(admin, "grant lease_reader to stranger");
	leasectl(0, database, "submit", "--run", "r");
	leasectl(0, stranger, "status");
	leasectl(0, stranger, "history", "r");
	leasectl(0, stranger, "migrate", "--status");
	leasectl(0, stranger, "migrate");
	leasectl(EX_NOPERM, stranger, "submit", "--run", "s");
	assert_one_line("cannot submit: permission denied for table runs");
	leasectl(EX_NOPERM, stranger, "cancel", "r");
	assert_one_line("cannot cancel: ");
	conn = test_connect(database);
	assert_sql(conn, "r pending",
		   "select string_agg(run_id || ' ' || status, ',') from lease.runs");
	PQfinish(conn);
	PQfinish(admin);
	test_database_drop(database);
	test_database_drop(empty);
	free(stranger);
	free(stranger_empty);
	free(database);
	free(empty);
}

/* -- migrate ---------------------------------------------------------------------------------- */

static void migrate_applies_once_and_shows_it(void **state)
{
	char *conninfo = test_database_create_empty();
	PGconn *conn = test_connect(conninfo);
	char *status;

	(void)state;
	leasectl(0, conninfo, "migrate", "--status");
	assert_has(ran.out, "version  name ");
	assert_has(ran.out, "      1  0001_runs ");
	assert_int_equal(count_of(ran.out, "  -           pending\n"), lease_migrations_count);
	leasectl(0, conninfo, "migrate", "--dry-run");
	assert_string_equal(ran.out, for_each_migration("would apply"));
	leasectl(0, conninfo, "migrate", "--dry-run", "--json");
	assert_json(conn, "{would_apply,1}", "0002_guards");
	assert_json(conn, "{version}", "0");
	assert_sql(conn, NULL, "select to_regnamespace('lease')");

	leasectl(0, conninfo, "migrate");
	assert_all_applied();
	assert_string_equal(ran.err, "");
	for (int i = 0; i < lease_migrations_count; i++)
		assert_sql(conn, lease_migrations[i].checksum,
			   "select checksum from lease.schema_migrations "
			   "where version = %d and name = '%s'",
			   lease_migrations[i].version, lease_migrations[i].name);
	status = sql_text(conn, "select string_agg(m::text, ' ') from lease.schema_migrations m");

	leasectl(0, conninfo, "migrate");
	assert_string_equal(ran.out, at_version(": nothing to apply"));
	leasectl(0, conninfo, "migrate", "--dry-run");
	assert_string_equal(ran.out, at_version(": nothing to apply"));
	leasectl(0, conninfo, "migrate", "--json");
	assert_json(conn, "{applied}", "[]");
	assert_json_sql(conn, "(j->>'version')::int = (select max(version) from "
			      "lease.schema_migrations)");
	assert_sql(conn, status, "select string_agg(m::text, ' ') from lease.schema_migrations m");

	leasectl(0, conninfo, "migrate", "--status");
	assert_int_equal(count_of(ran.out, "  applied\n"), lease_migrations_count);
	leasectl(0, conninfo, "migrate", "--status", "--json");
	assert_json(conn, "{migrations,2,state}", "applied");
	assert_json_sql(conn, "select bool_and(m.applied_at = (x->>'applied_at')::timestamptz and "
			      "m.checksum = x->>'checksum' and m.name = x->>'name') and count(*) = "
			      "(select count(*) from lease.schema_migrations) "
			      "from jsonb_array_elements(j->'migrations') x "
			      "join lease.schema_migrations m on m.version = (x->>'version')::int");
	free(status);
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* Every migration is applied by exactly one of them, and each of them ends well. */
static void several_processes_at_once_apply_each_migration_once(void **state)
{
	enum { PROCESSES = 3, ROUNDS = 4 };

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		char *conninfo = test_database_create_empty();
		struct process processes[PROCESSES];
		PGconn *lock = round % 2 ? hold_lock(conninfo) : NULL;
		int applied[64] = { 0 };

		for (int i = 0; i < PROCESSES; i++)
			start(&processes[i], plain_environment, conninfo,
			      (const char *const[]){ "migrate", NULL });
		for (int i = 0; lock && i < PROCESSES; i++)
			process_wait_text(&processes[i], "waiting for it", TEST_PATIENCE_MS);
		PQfinish(lock);
		for (int i = 0; i < PROCESSES; i++) {
			finish_with(0, &processes[i]);
			assert_has(ran.out, "schema lease is at version ");
			for (int k = 0; k < lease_migrations_count; k++) {
				char line[128];

				snprintf(line, sizeof(line), "applied %s\n",
					 lease_migrations[k].name);
				applied[k] += count_of(ran.out, line);
			}
		}
		for (int k = 0; k < lease_migrations_count; k++)
			assert_int_equal(applied[k], 1);
		leasectl(0, conninfo, "status");
		test_database_drop(conninfo);
		free(conninfo);
	}
}

/* What a role or database sets must change neither what a migration means nor the lock's worth. */
static void migrate_does_not_depend_on_session_settings(void **state)
{
	char *environment[] = {
		"LC_ALL=C.UTF-8",
		"PGOPTIONS=-c default_transaction_isolation=serializable -c search_path=elsewhere "
		"-c standard_conforming_strings=off -c client_min_messages=error "
		"-c statement_timeout=60000 -c bytea_output=escape -c datestyle=german "
		"-c intervalstyle=sql_standard -c extra_float_digits=-15",
		NULL
	};

	(void)state;
	for (int round = 0; round < 2; round++) {
		char *conninfo = test_database_create_empty();
		PGconn *lock = hold_lock(conninfo);
		struct process processes[2];

		for (int i = 0; i < 2; i++)
			start(&processes[i], environment, conninfo,
			      (const char *const[]){ "migrate", NULL });
		for (int i = 0; i < 2; i++)
			process_wait_text(&processes[i], "waiting for it", TEST_PATIENCE_MS);
		PQfinish(lock);
		for (int i = 0; i < 2; i++) {
			finish_with(0, &processes[i]);
		}
		leasectl_env(0, environment, conninfo, "migrate", "--status");
		assert_int_equal(count_of(ran.out, "  applied\n"), lease_migrations_count);
		leasectl_env(0, environment, conninfo, "submit", "--run", "r", "--deadline", "1h");
		leasectl_env(0, environment, conninfo, "history", "r", "--json");
		leasectl_env(0, environment, conninfo, "cancel", "r");
		test_database_drop(conninfo);
		free(conninfo);
	}
}

static void a_changed_migration_is_refused_by_name(void **state)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);

	(void)state;
	/* the third is pending again, and must not be applied */
	sql(conn, "delete from lease.schema_migrations where version > 2");
	sql(conn,
	    "update lease.schema_migrations set checksum = repeat('0', 64) where version = 2");
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_one_line("migration 0002_guards was changed after it had been applied");
	assert_has(ran.err, "nothing was done");
	leasectl(EX_DATAERR, conninfo, "migrate", "--dry-run");
	assert_one_line("migration 0002_guards was changed");
	assert_sql(conn, "2", "select count(*) from lease.schema_migrations");
	leasectl(0, conninfo, "migrate", "--status");
	assert_has(ran.out, "  CHANGED\n");
	assert_int_equal(count_of(ran.out, "  applied\n"), 1);
	assert_int_equal(count_of(ran.out, "  pending\n"), lease_migrations_count - 2);
	leasectl(0, conninfo, "migrate", "--status", "--json");
	assert_json(conn, "{migrations,1,state}", "CHANGED");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* The look before the lock was fine; what counts is the one under it. */
static void a_change_while_it_waits_is_refused_too(void **state)
{
	char *conninfo = test_database_create();
	PGconn *conn = hold_lock(conninfo);
	struct process process;

	(void)state;
	sql(conn, "delete from lease.schema_migrations where version > 2");
	start(&process, plain_environment, conninfo, (const char *const[]){ "migrate", NULL });
	process_wait_text(&process, "waiting for it", TEST_PATIENCE_MS);
	sql(conn,
	    "update lease.schema_migrations set checksum = repeat('0', 64) where version = 1");
	sql(conn, "select pg_advisory_unlock(" LOCK_KEY ")");
	finish_with(EX_DATAERR, &process);
	assert_has(ran.err, "migration 0001_runs was changed");
	assert_sql(conn, "2", "select count(*) from lease.schema_migrations");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* One line, with the newest version that this build knows within. */
static void assert_line_with_version(const char *before, const char *after)
{
	char expected[256];

	snprintf(expected, sizeof(expected), "%s%d%s", before, newest_version(), after);
	assert_one_line(expected);
}

static void a_newer_or_torn_record_is_refused(void **state)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);

	(void)state;
	sql(conn, "insert into lease.schema_migrations values (99, '0099_future', 'x')");
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_line_with_version(
		"this database has migration 99 (0099_future), this leasectl knows "
		"them up to ",
		": install a newer one; nothing was done");
	leasectl(0, conninfo, "migrate", "--status");
	assert_has(ran.out, "     99  0099_future");
	assert_has(ran.out, "  UNKNOWN\n");
	leasectl(EX_CONFIG, conninfo, "status");
	assert_line_with_version("schema lease has version 99, this program knows only ", "");
	leasectl(EX_CONFIG, conninfo, "submit");
	assert_one_line("schema lease has version 99");

	sql(conn, "update lease.schema_migrations set version = 0 where version = 99");
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_one_line("records migration 0 (0099_future), which this leasectl does not know");

	sql(conn, "delete from lease.schema_migrations where version in (0, 2)");
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_line_with_version("migration 0002_guards is not recorded although ", " is");
	sql(conn, "delete from lease.schema_migrations where version > 1");
	leasectl(EX_CONFIG, conninfo, "status");
	assert_line_with_version("schema lease has version 1, this program needs ",
				 ": run 'leasectl migrate'");
	sql(conn, "delete from lease.schema_migrations");
	leasectl(EX_CONFIG, conninfo, "cancel", "r");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* The first n migrations, as migrate would have applied them. */
static PGconn *migrate_by_hand(const char *conninfo, int n)
{
	PGconn *conn = test_connect(conninfo);

	for (int i = 0; i < n; i++) {
		PGresult *result = PQexec(conn, lease_migrations[i].sql);

		assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
		PQclear(result);
		sql(conn,
		    "insert into lease.schema_migrations (version, name, checksum) "
		    "values (%d, '%s', '%s')",
		    lease_migrations[i].version, lease_migrations[i].name,
		    lease_migrations[i].checksum);
	}
	return conn;
}

/* The line of the file on which a text stands first. */
static int line_with(const char *file, const char *text)
{
	const char *found = strstr(file, text);
	int line = 1;

	assert_non_null(found);
	for (; file < found; file++)
		line += *file == '\n';
	return line;
}

static void an_sql_error_names_file_line_and_sqlstate(void **state)
{
	char *conninfo = test_database_create_empty(), expected[160];
	PGconn *conn = migrate_by_hand(conninfo, 1);

	(void)state;
	sql(conn, "alter table lease.run_attempts drop column owner cascade");
	snprintf(expected, sizeof(expected), "leasectl: migration 0002_guards.sql, line %d: ",
		 line_with(lease_migrations[1].sql, "OLD.owner"));
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_one_line(expected);
	assert_has(ran.err, "column old.owner does not exist (SQLSTATE 42703); it was rolled back");
	/* the function before the faulty trigger is gone again, the first migration stays */
	assert_sql(conn, "0",
		   "select count(*) from pg_proc where pronamespace = 'lease'::regnamespace");
	assert_sql(conn, "1", "select max(version) from lease.schema_migrations");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

static void an_sql_error_without_a_place_names_the_statement(void **state)
{
	char *conninfo = test_database_create_empty();
	PGconn *conn = test_connect(conninfo);

	(void)state;
	sql(conn, "create schema lease; create domain lease.message as text");
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_one_line("migration 0001_runs.sql, statement 5: type \"message\" already exists "
			"(SQLSTATE 42710); it was rolled back");
	assert_sql(conn, NULL, "select to_regclass('lease.schema_migrations')");

	/* an error within a block has the block's own line */
	sql(conn, "drop schema lease cascade");
	PQfinish(conn);
	conn = migrate_by_hand(conninfo, 2);
	sql(conn,
	    "create view lease.\"%%\" as select 1; alter table lease.runs drop column not_before");
	leasectl(EX_DATAERR, conninfo, "migrate");
	assert_one_line("migration 0003_roles.sql, statement 3 (SQL statement");
	assert_has(ran.err, "column \"not_before\" of relation \"runs\" does not exist");
	assert_sql(conn, "2", "select max(version) from lease.schema_migrations");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* A table that somebody has locked: rather fail than let every renewal queue up behind. */
static void a_locked_table_makes_it_try_again(void **state)
{
	char *conninfo = test_database_create_empty();
	PGconn *conn = migrate_by_hand(conninfo, 1);

	(void)state;
	sql(conn, "begin; lock table lease.run_attempts in row exclusive mode");
	leasectl(EX_TEMPFAIL, conninfo, "migrate");
	assert_one_line(
		"migration 0002_guards.sql, statement 2: canceling statement due to lock timeout "
		"(SQLSTATE 55P03); it was rolled back: try again");
	sql(conn, "rollback");
	leasectl(0, conninfo, "migrate");
	assert_has(ran.out, "applied 0002_guards\n");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* Killed in the middle: the server rolls back, the next call does it all. */
static void a_killed_migrate_leaves_nothing_half_done(void **state)
{
	char *conninfo = test_database_create_empty();
	PGconn *conn = migrate_by_hand(conninfo, 1);
	struct process process;

	(void)state;
	/* 0002 makes its function, then waits for this table */
	sql(conn, "begin; lock table lease.run_attempts in row exclusive mode");
	start(&process, plain_environment, conninfo, (const char *const[]){ "migrate", NULL });
	wait_sql(conn, "select exists (select from pg_locks where not granted "
		       "and relation = 'lease.run_attempts'::regclass)");
	process_signal(&process, SIGKILL);
	finish_with(128 + SIGKILL, &process);
	sql(conn, "rollback");
	leasectl(0, conninfo, "migrate");
	assert_has(ran.out, at_version(""));
	assert_int_equal(sql_number(conn, "select count(*) from lease.schema_migrations"),
			 lease_migrations_count);
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

static void a_read_only_server_is_good_enough_to_look(void **state)
{
	char *environment[] = { "LC_ALL=C.UTF-8", "PGOPTIONS=-c default_transaction_read_only=on",
				NULL };
	char *conninfo = test_database_create(), *empty = test_database_create_empty();

	(void)state;
	leasectl(0, conninfo, "submit", "--run", "r");
	leasectl_env(0, environment, conninfo, "status");
	leasectl_env(0, environment, conninfo, "history", "r");
	leasectl_env(0, environment, conninfo, "migrate");
	leasectl_env(EX_UNAVAILABLE, environment, conninfo, "cancel", "r");
	assert_one_line("read-only");
	leasectl_env(EX_UNAVAILABLE, environment, empty, "migrate");
	assert_one_line("this server is a standby or read-only: connect to the primary");
	leasectl_env(0, environment, empty, "migrate", "--dry-run");
	leasectl_env(EX_CONFIG, environment, empty, "status");
	assert_one_line("lease");
	test_database_drop(conninfo);
	test_database_drop(empty);
	free(conninfo);
	free(empty);
}

/* -- status ----------------------------------------------------------------------------------- */

static void status_counts(void **state)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);

	(void)state;
	leasectl(0, conninfo, "status");
	assert_has(ran.out, "unfinished runs  0 (0 pending, 0 running, 0 waiting)\n"
			    "open attempts    0 (0 expired, not closed yet)\n"
			    "oldest expired   none\n"
			    "next lease end   none\n");
	leasectl(0, conninfo, "status", "--json");
	assert_json(conn, "{oldest_expired_at}", NULL);
	assert_json(conn, "{next_end_in_seconds}", NULL);

	sql(conn, "insert into lease.runs (run_id, status) select 'p' || i, 'pending' "
		  "from generate_series(1, 3) i union all select 'w', 'waiting' union all "
		  "select 'r' || i, 'running' from generate_series(1, 4) i; "
		  "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		  "values ('r1', 1, 'o', clock_timestamp() + interval '2 h'), "
		  "('r2', 1, 'o', clock_timestamp() + interval '1 h'), "
		  "('r3', 1, 'o', clock_timestamp() - interval '90 s'), "
		  "('r4', 1, 'o', clock_timestamp() - interval '80 s')");
	leasectl(0, conninfo, "status", "--json");
	assert_json(conn, "{runs}", "{\"pending\": 3, \"running\": 4, \"waiting\": 1}");
	assert_json(conn, "{attempts}", "{\"open\": 4, \"expired\": 2}");
	assert_json_sql(conn, "j->>'database' = current_database()");
	assert_json_sql(conn,
			"(j->>'oldest_expired_at')::timestamptz = (select min(lease_expires_at) "
			"from lease.run_attempts)");
	assert_json_sql(conn, "(j->>'next_end_at')::timestamptz = (select lease_expires_at "
			      "from lease.run_attempts where run_id = 'r2')");
	/* ages are from the document's own now, to the microsecond */
	assert_json_sql(
		conn,
		"(j->>'oldest_expired_age_seconds')::numeric = "
		"extract(epoch from (j->>'now')::timestamptz "
		"- (j->>'oldest_expired_at')::timestamptz) "
		"and (j->>'next_end_in_seconds')::numeric = "
		"extract(epoch from (j->>'next_end_at')::timestamptz - (j->>'now')::timestamptz)");
	assert_json_sql(conn,
			"j->>'now' ~ '^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d\\.\\d{6}Z$'");
	leasectl(0, conninfo, "status");
	assert_has(ran.out, "unfinished runs  8 (3 pending, 4 running, 1 waiting)\n");
	assert_has(ran.out, "open attempts    4 (2 expired, not closed yet)\n");
	assert_has(ran.out, "oldest expired   1m");
	assert_has(ran.out, "next lease end   in 59m");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* -- history ---------------------------------------------------------------------------------- */

/* A message with all that has to be escaped somewhere, 10 kB of it. */
static char *awkward_message(void)
{
	static const char piece[] = "\"quoted\" 'single' back\\slash {brace},[x] \\n \\u0000 % "
				    "new\nline tab\t bell\a esc\033[31mred cr\r del\177 "
				    "\u00e4\u20ac\U0001f600 c1\302\205 bidi\u202e zwj\u200d "
				    "line\u2028sep tag\U000e0041 ";
	char *text = calloc(1, 12000);

	assert_non_null(text);
	for (size_t length = 0; length < 10240; length += strlen(piece))
		snprintf(text + length, 12000 - length, "%s", piece);
	return text;
}

static const char awkward_run[] = "r\"'\\ {},\n\t\U0001f600 --json";
static const char awkward_owner[] = "w\"'\\{},%s\033]0;title\a\U0001f600:x";

/* Once: the two tests that look at it share a database. */
static void make_awkward_run(PGconn *conn, char *message)
{
	struct lease_submission submission = { .run_id = awkward_run,
					       .tenant_id = "t\\\"\u20ac",
					       .deadline = LEASE_SECOND * 3600 };
	struct lease_claim claim = { .run_id = awkward_run,
				     .owner = awkward_owner,
				     .ttl = 60 * LEASE_SECOND,
				     .trace_id = "trace\"\\" };
	struct lease_error error = { 0 };
	struct lease_grant grant;
	struct lease_finish end = { .status = LEASE_RUN_FAILED,
				    .error_code = "e\"\\\u00e4",
				    .error_message = message };

	if (sql_number(conn, "select count(*) from lease.runs where tenant_id like 't_%%'"))
		return;
	assert_int_equal(lease_submit(conn, &submission, NULL, NULL, &error), 0);
	assert_int_equal(lease_mark_running(conn, &claim, &grant, &error), 0);
	end.token = &grant.token;
	if (lease_set_terminal_status(conn, &end, NULL, &error) != 0)
		fail_msg("%s", error.message);
}

static void history_as_json_is_what_stands_in_the_tables(void **state)
{
	const char *conninfo = shared_database();
	PGconn *conn = test_connect(conninfo);
	char *message = awkward_message();

	(void)state;
	make_awkward_run(conn, message);
	leasectl(0, conninfo, "history", awkward_run, "--json");
	assert_string_equal(ran.err, "");
	assert_int_equal(count_of(ran.out, "\n"), 1);
	assert_json(conn, "{run,run_id}", awkward_run);
	assert_json(conn, "{run,terminal_error_message}", message);
	assert_json(conn, "{attempts,0,owner}", awkward_owner);
	assert_json(conn, "{attempts,0,error_message}", message);
	assert_json(conn, "{attempts,1}", NULL);
	/* every member of both is the column of that name, times to the microsecond */
	assert_json_sql(
		conn, "select bool_and(case when e.key ~ '_(at|before)$' or e.key = 'not_before' "
		      "then (e.value #>> '{}')::timestamptz "
		      "is not distinct from (t->>e.key)::timestamptz "
		      "else e.value #>> '{}' is not distinct from t->>e.key end) and count(*) = 13 "
		      "from jsonb_each(j->'run') e, (select to_jsonb(r) as t from lease.runs r "
		      "where r.run_id = j->'run'->>'run_id') r");
	assert_json_sql(
		conn, "select bool_and(case when e.key ~ '_at$' "
		      "then (e.value #>> '{}')::timestamptz "
		      "is not distinct from (t->>e.key)::timestamptz "
		      "else e.value #>> '{}' is not distinct from t->>e.key end) and count(*) = 12 "
		      "from jsonb_each(j->'attempts'->0) e, "
		      "(select to_jsonb(a) as t from lease.run_attempts a "
		      "where a.run_id = j->'run'->>'run_id') a");
	free(message);
	PQfinish(conn);
}

/* The columns of a line, for texts whose characters are all one wide but for U+1F600. */
static size_t columns_of(const char *line, size_t length)
{
	size_t columns = 0;

	for (size_t i = 0; i < length; i++)
		columns += ((line[i] & 0xc0) != 0x80) + ((unsigned char)line[i] == 0xf0);
	return columns;
}

static void assert_no_wider(const char *text, size_t width)
{
	while (*text) {
		size_t length = strcspn(text, "\n");

		if (columns_of(text, length) > width)
			fail_msg("wider than %zu: %.*s", width, (int)length, text);
		text += length + (text[length] == '\n');
	}
}

static void history_for_people_is_safe_on_a_terminal(void **state)
{
	static char *narrow[] = { "LC_ALL=C.UTF-8", "COLUMNS=80", NULL };
	static char *ascii[] = { "LC_ALL=C", "COLUMNS", NULL };
	const char *conninfo = shared_database();
	PGconn *conn = test_connect(conninfo);
	char *message = awkward_message();
	const char *table;

	(void)state;
	make_awkward_run(conn, message);
	leasectl(0, conninfo, "history", awkward_run);
	for (const char *c = ran.out; *c; c++)
		assert_true((unsigned char)*c >= ' ' || *c == '\n');
	assert_lacks(ran.out, "\177");
	assert_lacks(ran.out, "\u202e");
	assert_lacks(ran.out, "\302\205");
	assert_has(ran.out, "run       r\"'\\ {},\\n\\t\U0001f600 --json\n");
	assert_has(ran.out, "status    failed, version 3, tenant t\\\"\u20ac\n");
	assert_has(ran.out,
		   "\\x1b[31mred cr\\r del\\x7f \u00e4\u20ac\U0001f600 c1\\u0085 bidi\\u202e");
	assert_has(ran.out, "tag\\U000e0041");
	/* a pipe has no width: nothing is cut */
	assert_true(strlen(ran.out) > (size_t)2 * 10240);

	leasectl_env(0, narrow, conninfo, "history", awkward_run);
	table = strstr(ran.out, "attempt  owner");
	assert_non_null(table);
	assert_no_wider(table, 80);
	assert_has(table, "\u2026\n");

	leasectl_env(0, ascii, conninfo, "history", awkward_run);
	for (const char *c = ran.out; *c; c++)
		assert_true((*c >= ' ' && *c < 0x7f) || *c == '\n');
	assert_has(ran.out, "\\u00e4\\u20ac\\U0001f600");
	free(message);
	PQfinish(conn);
}

/* Attempts at known moments of one minute: [start, heartbeat, lease end, end] in seconds. */
static void insert_attempt(PGconn *conn, const char *run_id, int number, const char *owner,
			   const int seconds[4], const char *outcome)
{
	sql(conn,
	    "insert into lease.run_attempts (run_id, attempt_no, owner, started_at, heartbeat_at, "
	    "lease_expires_at) select '%s', %d, '%s', t + %d * s, t + %d * s, t + %d * s "
	    "from (select timestamptz '2024-02-29 12:00:00Z' as t, interval '1 s' as s) t",
	    run_id, number, owner, seconds[0], seconds[1], seconds[2]);
	sql(conn,
	    "update lease.run_attempts set outcome = '%s', finished_at = "
	    "timestamptz '2024-02-29 12:00:00Z' + %d * interval '1 s' "
	    "where run_id = '%s' and attempt_no = %d",
	    outcome, seconds[3], run_id, number);
}

static void insert_drawn_run(PGconn *conn)
{
	if (sql_number(conn, "select count(*) from lease.runs where run_id = 'drawn'"))
		return;
	sql(conn, "insert into lease.runs (run_id, status, created_at) "
		  "values ('drawn', 'running', '2024-02-29 12:00:00Z')");
	insert_attempt(conn, "drawn", 1, "a:01234567-0123-4123-8123-0123456789ab",
		       (const int[]){ 0, 10, 20, 25 }, "lease_expired");
	insert_attempt(conn, "drawn", 2, "b", (const int[]){ 25, 28, 38, 30 }, "retry_released");
	insert_attempt(conn, "drawn", 3, "b", (const int[]){ 30, 39, 49, 40 }, "interrupted");
	insert_attempt(conn, "drawn", 4, "b", (const int[]){ 40, 40, 50, 40 }, "failed");
	insert_attempt(conn, "drawn", 5, "c", (const int[]){ 42, 48, 58, 50 }, "completed");
}

/* 57 columns: 3 of label, 3 of frame, 51 cells for 50 seconds. */
static void the_timeline_is_to_scale(void **state)
{
	char *ascii[] = { "LC_ALL=C", "COLUMNS=57", NULL };
	char *utf8[] = { "LC_ALL=C.UTF-8", "COLUMNS=57", NULL };
	const char *conninfo = shared_database();
	PGconn *conn = test_connect(conninfo);
	const char *timeline;

	(void)state;
	insert_drawn_run(conn);
	leasectl_env(0, ascii, conninfo, "history", "drawn");
	timeline = strstr(ran.out, "timeline from");
	assert_non_null(timeline);
	assert_string_equal(timeline, "timeline from 2024-02-29 12:00:00.000Z, 50.0s long, 1.0s~\n"
				      "1 a |###########----------....X                         |\n"
				      "2 b |                         #####R                    |\n"
				      "3 b |                              ##########I          |\n"
				      "4 b |                                        F          |\n"
				      "5 c |                                          ########C|\n"
				      "X lease_expired  R retry_released  I interrupted\n"
				      "F failed  C completed  # leased\n"
				      "- leased, after the last renewal\n"
				      ". lease over, not closed yet\n");
	leasectl_env(0, utf8, conninfo, "history", "drawn");
	timeline = strstr(ran.out, "timeline from");
	assert_non_null(timeline);
	assert_has(timeline,
		   "1 a \u2502\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u2588"
		   "\u2591\u2591\u2591\u2591\u2591\u2591\u2591\u2591\u2591\u2591"
		   "\u00b7\u00b7\u00b7\u00b7\u2020                         \u2502\n");
	assert_no_wider(timeline, 57);
	PQfinish(conn);
}

static void history_of_open_young_and_long_runs(void **state)
{
	char *narrow[] = { "LC_ALL=C", "COLUMNS=20", NULL };
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);

	(void)state;
	leasectl(0, conninfo, "submit", "--run", "young", "--delay", "1h", "--deadline", "2h");
	leasectl(0, conninfo, "history", "young");
	assert_has(ran.out, "status      pending, version 1, tenant default\n");
	assert_has(ran.out, "not before  ");
	assert_has(ran.out, "deadline    ");
	assert_has(ran.out, "\n\nno attempts\n");
	leasectl(0, conninfo, "history", "young", "--json");
	assert_json(conn, "{attempts}", "[]");

	sql(conn,
	    "insert into lease.runs (run_id, status) values ('open', 'running'); "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, started_at, heartbeat_at, "
	    "lease_expires_at) values ('open', 1, 'o', clock_timestamp() - interval '1 h', "
	    "clock_timestamp() - interval '30 min', clock_timestamp() + interval '1 h')");
	leasectl(0, conninfo, "history", "open");
	assert_has(ran.out, "open     lease ends in 59m");
	assert_has(ran.out, "\u25b6\u2502\n");
	assert_lacks(ran.out, "\u00b7");
	sql(conn, "update lease.run_attempts set lease_expires_at = "
		  "clock_timestamp() - interval '10 min'");
	leasectl(0, conninfo, "history", "open");
	assert_has(ran.out, "open     lease over for 10m");
	assert_has(ran.out, "not closed yet\n");
	assert_has(ran.out, "\u00b7\u25b6\u2502\n");
	leasectl(0, conninfo, "history", "open", "--json");
	assert_json(conn, "{attempts,0,outcome}", NULL);
	assert_json(conn, "{attempts,0,finished_at}", NULL);

	/* all in the table, the newest in the timeline */
	sql(conn, "insert into lease.runs (run_id, status) values ('long', 'running')");
	for (int i = 1; i <= 120; i++)
		insert_attempt(conn, "long", i, "o", (const int[]){ i, i, i + 9, i + 1 },
			       "lease_expired");
	leasectl_env(0, narrow, conninfo, "history", "long");
	assert_int_equal(count_of(ran.out, "lease_expired"), 121);
	assert_int_equal(count_of(ran.out, "X"), 51);
	assert_has(ran.out, "\n71 o  |");
	assert_lacks(ran.out, "\n70 o  |");
	assert_no_wider(strstr(ran.out, "timeline from"), 40);
	leasectl(0, conninfo, "history", "long", "--json");
	assert_json(conn, "{attempts,119,attempt_no}", "120");
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* -- submit, cancel, resume ------------------------------------------------------------------- */

static void submit_adds_a_run_once(void **state)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);
	char *run_id;

	(void)state;
	leasectl(0, conninfo, "submit", "--run", "r1", "--tenant", "t1", "--delay", "1.5m",
		 "--deadline", "2h");
	assert_string_equal(ran.out, "r1\n");
	assert_string_equal(ran.err, "");
	assert_sql(conn, "t1 pending 01:58:30",
		   "select tenant_id || ' ' || status || ' ' || "
		   "deadline_at - not_before from lease.runs");
	leasectl(0, conninfo, "submit", "--run", "r1", "--deadline", "7d");
	assert_string_equal(ran.out, "r1\n");
	assert_string_equal(ran.err,
			    "leasectl: run r1 was there already (pending): left as it is\n");
	assert_sql(conn, "01:58:30", "select deadline_at - not_before from lease.runs");
	leasectl(0, conninfo, "submit", "--run=r1", "--json");
	assert_json(conn, "{changed}", "false");
	assert_json(conn, "{state_version}", "1");

	leasectl(0, conninfo, "submit");
	run_id = strndup(ran.out, strcspn(ran.out, "\n"));
	assert_int_equal(strlen(run_id), 36);
	assert_sql(conn, "pending default",
		   "select status || ' ' || tenant_id from lease.runs "
		   "where run_id = '%s' and not_before is null",
		   run_id);
	leasectl(0, conninfo, "submit", "--json");
	assert_json_sql(conn, "exists (select from lease.runs where run_id = j->>'run_id') "
			      "and (j->>'changed')::bool and j->>'status' = 'pending'");
	assert_sql(conn, "3", "select count(*) from lease.runs");
	free(run_id);
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

static void durations_are_read_exactly_or_refused(void **state)
{
	static const char *const bad[] = { "",
					   "5",
					   "s",
					   "-5s",
					   "+5s",
					   " 5s",
					   "5 s",
					   "5s ",
					   "5.s",
					   ".5s",
					   "1h30m",
					   "5S",
					   "5sec",
					   "0x5s",
					   "1e3s",
					   "nan",
					   "infs",
					   "99999999999999999999s",
					   "9223372036854775807us",
					   "3651d",
					   "106751991167301d" };
	static const struct {
		const char *text, *microseconds;
	} good[] = { { "1us", "1" },          { "250ms", "250000" },
		     { "1.5s", "1500000" },   { "0.1s", "100000" },
		     { "5m", "300000000" },   { "2h", "7200000000" },
		     { "1d", "86400000000" }, { "3650d", "315360000000000" },
		     { "0.000001s", "1" } };
	const char *conninfo = shared_database();
	PGconn *conn = test_connect(conninfo);

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		leasectl(EX_USAGE, conninfo, "submit", "--tenant", "bad", "--deadline", bad[i]);
		assert_one_line("--deadline: '");
	}
	leasectl(EX_USAGE, conninfo, "submit", "--tenant", "bad", "--deadline", "0s");
	assert_one_line("--deadline");
	assert_sql(conn, "0", "select count(*) from lease.runs where tenant_id = 'bad'");
	/* 10 s later than due: the difference does not depend on when it was submitted */
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		leasectl(0, conninfo, "submit", "--run", good[i].text, "--delay", good[i].text,
			 "--deadline", "1us");
		assert_sql(
			conn, good[i].microseconds,
			"select (extract(epoch from not_before - deadline_at) * 1000000 + 1)::int8 "
			"from lease.runs where run_id = '%s'",
			good[i].text);
	}
	PQfinish(conn);
}

static void cancel_and_resume(void **state)
{
	const char *conninfo = shared_database();
	PGconn *conn = test_connect(conninfo);
	struct lease_claim claim = { .run_id = "c", .owner = "o", .ttl = 60 * LEASE_SECOND };
	struct lease_grant grant;

	(void)state;
	leasectl(EX_NOINPUT, conninfo, "cancel", "none");
	assert_one_line("run none: refused (not_found): there is no such run in this database");
	leasectl(EX_NOINPUT, conninfo, "resume", "none", "--json");
	assert_json(conn, "{refusal}", "not_found");
	assert_json(conn, "{run_id}", "none");
	assert_json(conn, "{changed}", "false");
	leasectl(EX_NOINPUT, conninfo, "history", "none", "--json");
	assert_json(conn, "{refusal}", "not_found");

	leasectl(0, conninfo, "submit", "--run", "c");
	leasectl(0, conninfo, "resume", "c");
	assert_string_equal(ran.out, "run c: was pending already (version 1)\n");
	assert_int_equal(lease_mark_running(conn, &claim, &grant, NULL), 0);
	leasectl(EX_DATAERR, conninfo, "resume", "c");
	assert_one_line("run c: refused (illegal)");
	assert_int_equal(lease_suspend(conn, &grant.token, 0, NULL, NULL), 0);
	leasectl(EX_DATAERR, conninfo, "resume", "c", "--expect", "2");
	assert_one_line("run c: refused (stale_version)");
	leasectl(0, conninfo, "resume", "c", "--expect", "3");
	assert_string_equal(ran.out, "run c: resumed, pending (version 4)\n");

	claim.owner = "p";
	assert_int_equal(lease_mark_running(conn, &claim, &grant, NULL), 0);
	leasectl(0, conninfo, "cancel", "c");
	assert_string_equal(ran.out,
			    "run c: cancel requested: its worker learns of it at the next renewal "
			    "(version 5)\n");
	leasectl(0, conninfo, "cancel", "c");
	assert_string_equal(ran.out, "run c: a cancel was requested already (version 5)\n");
	leasectl(0, conninfo, "history", "c");
	assert_has(ran.out, "cancel requested  ");
	assert_int_equal(
		lease_set_terminal_status(conn,
					  &(struct lease_finish){ .token = &grant.token,
								  .status = LEASE_RUN_CANCELLED },
					  NULL, NULL),
		0);
	leasectl(0, conninfo, "cancel", "c", "--json");
	assert_json(conn, "{changed}", "false");
	assert_json(conn, "{status}", "cancelled");
	leasectl(EX_DATAERR, conninfo, "resume", "c");
	assert_one_line("run c: refused (terminal)");

	leasectl(0, conninfo, "submit", "--run", "d");
	leasectl(0, conninfo, "cancel", "d", "--expect", "1");
	assert_string_equal(ran.out, "run d: cancelled (version 2)\n");
	leasectl(0, conninfo, "submit", "--run", "-dash");
	leasectl(0, NULL, "cancel", "-d", conninfo, "--", "-dash");
	PQfinish(conn);
}

static void bad_ids_are_refused(void **state)
{
	const char *conninfo = shared_database();
	char id[300];
	PGconn *conn = test_connect(conninfo);

	(void)state;
	memset(id, 'x', sizeof(id));
	id[256] = '\0';
	leasectl(EX_USAGE, conninfo, "submit", "--run", id);
	assert_one_line("run_id must have 1 to 255 bytes, it has 256");
	leasectl(EX_USAGE, conninfo, "submit", "--run", "");
	assert_one_line("run_id must have 1 to 255 bytes, it has 0");
	leasectl(EX_USAGE, conninfo, "cancel", "");
	leasectl(EX_USAGE, conninfo, "submit", "--tenant", id);
	leasectl(EX_DATAERR, conninfo, "submit", "--run", "bad\xff");
	assert_one_line("invalid byte sequence for encoding \"UTF8\": 0xff (SQLSTATE 22021)");
	leasectl(EX_DATAERR, conninfo, "history", "bad\xff");
	leasectl(EX_USAGE, conninfo, "history", id);
	assert_sql(conn, "0", "select count(*) from lease.runs where octet_length(run_id) > 40");
	id[255] = '\0';
	leasectl(0, conninfo, "submit", "--run", id);
	leasectl(0, conninfo, "history", id);
	PQfinish(conn);
}

/* -- the command line ------------------------------------------------------------------------- */

static void help_and_version(void **state)
{
	static const char *const commands[] = { "migrate", "status", "history",
						"submit",  "cancel", "resume" };
	char version[64];

	(void)state;
	leasectl(0, NULL, "--version");
	snprintf(version, sizeof(version), "leasectl %s (schema version %d)\n",
		 LEASE_VERSION_STRING, LEASE_SCHEMA_VERSION);
	assert_string_equal(ran.out, version);
	assert_int_equal(newest_version(), LEASE_SCHEMA_VERSION);
	leasectl(0, NULL, "help", "cancel");
	assert_has(ran.out, "Usage: leasectl cancel [OPTION]... RUN\n");
	leasectl(0, NULL, "-h");
	assert_string_equal(ran.err, "");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		char line[64];

		snprintf(line, sizeof(line), "\n  %-10s ", commands[i]);
		assert_has(ran.out, line);
	}
	/* no connection, no words are needed for it */
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		char line[64];

		snprintf(line, sizeof(line), "Usage: leasectl %s", commands[i]);
		leasectl(0, NULL, commands[i], "--help");
		assert_has(ran.out, line);
		assert_has(ran.out, "--dbname CONNINFO");
		assert_no_wider(ran.out, 100);
		assert_string_equal(ran.err, "");
	}
}

static void wrong_use_is_one_line_and_64(void **state)
{
	static const struct {
		const char *words[6], *message;
	} cases[] = {
		{ { NULL }, "which command? See 'leasectl --help'" },
		{ { "--json" }, "which command?" },
		{ { "frobnicate" }, "unknown command 'frobnicate': see 'leasectl --help'" },
		{ { "migrat" }, "unknown command 'migrat'" },
		{ { "" }, "unknown command ''" },
		{ { "--frob" }, "unknown option '--frob': see 'leasectl --help'" },
		{ { "-x" }, "unknown option '-x'" },
		{ { "status", "--frob=x" },
		  "status: unknown option '--frob': see 'leasectl status --help'" },
		{ { "status", "--expect", "3" }, "status: unknown option '--expect'" },
		{ { "--expect", "3", "cancel" }, "unknown option '--expect'" },
		{ { "migrate", "--stat" }, "migrate: unknown option '--stat'" },
		{ { "migrate", "--status=1" }, "--status takes no value" },
		{ { "migrate", "--status", "--dry-run" },
		  "--status and --dry-run exclude each other" },
		{ { "migrate", "now" }, "migrate: 'now' is one word too many" },
		{ { "history" }, "history: RUN is missing: see 'leasectl history --help'" },
		{ { "history", "a", "b" }, "history: 'b' is one word too many" },
		{ { "cancel", "a", "--expect" }, "--expect needs a value: VERSION" },
		{ { "cancel", "a", "--expect", "x" }, "--expect: 'x' is no whole number from 1" },
		{ { "cancel", "a", "--expect", "0" }, "--expect: '0' is no whole number from 1" },
		{ { "cancel", "a", "--expect", "-1" }, "--expect: '-1' is no" },
		{ { "cancel", "a", "--expect", " 1" }, "--expect: ' 1' is no" },
		{ { "cancel", "a", "--expect", "9223372036854775808" }, "is no whole number" },
		{ { "status", "-d" }, "--dbname needs a value: CONNINFO" },
		{ { "status", "--config", "x", "-d", "y" },
		  "--dbname and --config exclude each other" },
		{ { "status", "--database", "x" },
		  "--database names an entry of a file: give --config" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		run_words(EX_USAGE, plain_environment, NULL, cases[i].words, __FILE__, __LINE__);
		assert_one_line(cases[i].message);
	}
}

/* -- connecting ------------------------------------------------------------------------------- */

static void connection_failures_and_their_exit_codes(void **state)
{
	static const struct {
		const char *conninfo;
		int code;
		const char *message;
	} cases[] = {
		{ "host=/nonexistent", EX_UNAVAILABLE, "cannot connect: " },
		{ "host=127.0.0.1 port=1", EX_UNAVAILABLE, "Connection refused" },
		{ "no_such_database", EX_UNAVAILABLE,
		  "database \"no_such_database\" does not exist" },
		{ "user=no_such_role", EX_NOPERM, "role \"no_such_role\" does not exist" },
		{ "postgresql:///postgres?user=no_such_role", EX_NOPERM, "check user, password" },
		{ "service=no_such_service", EX_UNAVAILABLE, "no_such_service" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		leasectl(cases[i].code, cases[i].conninfo, "status");
		assert_one_line(cases[i].message);
		leasectl(cases[i].code, cases[i].conninfo, "migrate");
		assert_one_line(cases[i].message);
	}
	leasectl(EX_CONFIG, "postgres", "status");
	assert_one_line("schema lease is missing in this database: run 'leasectl migrate'");
}

/* Whatever is wrong with a connection string, no piece of it comes out. */
static void passwords_never_come_out(void **state)
{
	static const struct {
		const char *conninfo;
		int code;
		const char *message;
	} cases[] = {
		{ "postgresql://u:" SECRET "@/postgres?host=/nonexistent", EX_UNAVAILABLE,
		  "cannot connect" },
		{ "host=/nonexistent password=" SECRET, EX_UNAVAILABLE, "cannot connect" },
		{ "postgresql://u:x@" SECRET "@host/db", EX_USAGE, "write %40 for '@'" },
		{ "postgresql://u:x/" SECRET "@host/db", EX_USAGE, "write %40 for '@'" },
		{ "postgresql://u:" SECRET "/db", EX_USAGE, "the port is not a number" },
		{ "postgresql://u:%" SECRET "@host/db", EX_USAGE, "'%' is not followed by two" },
		{ "postgresql://u@host/db?" SECRET, EX_USAGE, "parameter after '?'" },
		{ "postgresql://u@host/db?" SECRET "=1", EX_USAGE, "parameter after '?'" },
		{ "postgresql://u@[::1/" SECRET, EX_USAGE, "IPv6" },
		{ "postgresql:/u:" SECRET "@host/db", EX_USAGE, "a URI begins with postgresql://" },
		{ "u:" SECRET "@host/db", EX_USAGE, "a URI begins with postgresql://" },
		{ "mysql://u:" SECRET "@host/db?a=b", EX_USAGE, "keyword" },
		{ "password=a " SECRET " host=x", EX_USAGE, "keyword=value pairs" },
		{ "password='" SECRET, EX_USAGE, "a single quote is not closed" },
		{ SECRET "=x", EX_USAGE, "a keyword that libpq does not know" },
		{ "host=x port=" SECRET, EX_USAGE, "the port is not a number" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		leasectl(cases[i].code, cases[i].conninfo, "status");
		assert_one_line(cases[i].message);
		assert_lacks(ran.err, SECRET);
		/* and in the wrong place */
		leasectl(EX_USAGE, NULL, "status", cases[i].conninfo);
		assert_int_equal(count_of(ran.err, "\n"), 1);
		if (strpbrk(cases[i].conninfo, "=@"))
			assert_lacks(ran.err, SECRET);
	}
}

static void the_process_title_shows_no_password(void **state)
{
	char *conninfo = test_database_create_empty(), path[64], title[4096];
	char *secret = with_settings(conninfo, "password=" SECRET);
	PGconn *lock = hold_lock(conninfo);
	struct process process;
	size_t length;
	FILE *file;

	(void)state;
	start(&process, plain_environment, secret, (const char *const[]){ "migrate", NULL });
	process_wait_text(&process, "waiting for it", TEST_PATIENCE_MS);
	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)process.pid);
	file = fopen(path, "r");
	assert_non_null(file);
	length = fread(title, 1, sizeof(title), file);
	fclose(file);
	assert_true(memmem(title, length, "migrate", 7) != NULL);
	assert_true(memmem(title, length, "****", 4) != NULL);
	assert_null(memmem(title, length, SECRET, strlen(SECRET)));
	PQfinish(lock);
	finish_with(0, &process);
	test_database_drop(conninfo);
	free(secret);
	free(conninfo);
}

static bool is_refused(void *conninfo)
{
	PGconn *conn = PQconnectdb(conninfo);
	bool refused = PQstatus(conn) != CONNECTION_OK;

	PQfinish(conn);
	return refused;
}

/* A role that needs a password, whatever pg_hba.conf says of the others. */
static void require_password(const char *role, const char *conninfo)
{
	PGconn *admin = test_connect("dbname=postgres");
	char *path = sql_text(admin, "show hba_file");
	char *user = as_role(conninfo, role);

	sql(admin, "create role %s login password '%s'", role, SECRET);
	sql(admin,
	    "copy (select l from (values (1, 'local all %s scram-sha-256'), "
	    "(2, 'local all all trust')) v (i, l) order by i) to '%s'",
	    role, path);
	sql(admin, "select pg_reload_conf()");
	assert_true(wait_until(is_refused, user, TEST_PATIENCE_MS));
	PQfinish(admin);
	free(user);
	free(path);
}

static void wrong_and_missing_passwords(void **state)
{
	const char *conninfo = shared_database();
	char *file, *folder = test_tmpdir(), *text;
	char *locked = as_role(conninfo, "locked");
	char *wrong = with_settings(locked, "password=wrong-" SECRET);
	char *right = with_settings(locked, "password=" SECRET);
	char *environment[] = { "PGPASSWORD=wrong-" SECRET, NULL };
	char *config, *password;

	(void)state;
	require_password("locked", conninfo);
	leasectl(EX_NOPERM, locked, "status");
	assert_one_line(
		"put a password into ~/.pgpass, PGPASSWORD or the configuration's password_file");
	leasectl(EX_NOPERM, wrong, "status");
	assert_one_line("password authentication failed for user \"locked\"");
	assert_lacks(ran.err, SECRET);
	leasectl_env(EX_NOPERM, environment, locked, "migrate");
	assert_lacks(ran.err, SECRET);
	leasectl(EX_NOPERM, right, "status");
	assert_one_line("permission denied for schema lease");

	/* the daemon's file, with the password in one of its own */
	assert_true(asprintf(&config, "%s/daemon.yaml", folder) > 0);
	assert_true(asprintf(&password, "%s/password", folder) > 0);
	assert_true(asprintf(&text,
			     "databases:\n  - name: app\n    conninfo: \"%s\"\n"
			     "    password_file: %s\n",
			     locked, password) > 0);
	write_file(config, text);
	leasectl(EX_CONFIG, NULL, "status", "--config", config);
	assert_one_line("password: cannot read the password: No such file or directory");
	write_file(password, SECRET "\n");
	leasectl(EX_NOPERM, NULL, "status", "--config", config);
	assert_one_line("permission denied for schema lease");
	write_file(password, "wrong-" SECRET "\n");
	leasectl(EX_NOPERM, NULL, "status", "--config", config);
	assert_one_line("password authentication failed");
	assert_lacks(ran.err, SECRET);
	write_file(password, "two\nlines\n");
	leasectl(EX_CONFIG, NULL, "status", "--config", config);
	assert_one_line("a password is one line");
	file = calloc(1, 6000);
	memset(file, 'x', 5999);
	write_file(password, file);
	leasectl(EX_CONFIG, NULL, "status", "--config", config);
	assert_one_line("at most 4096 bytes");
	free(file);
	free(text);
	free(config);
	free(password);
	free(folder);
	free(locked);
	free(wrong);
	free(right);
}

static void the_daemons_file_names_databases(void **state)
{
	char *one = test_database_create(), *two = test_database_create(), *folder = test_tmpdir();
	char *path, *text;
	PGconn *conn = test_connect(two);

	(void)state;
	assert_true(asprintf(&path, "%s/daemon.yaml", folder) > 0);
	leasectl(EX_NOINPUT, NULL, "status", "--config", path);
	assert_one_line("daemon.yaml: cannot be read");
	write_file(path, "databases:\n  - name: x\n    conninfo: host=/x\n    intervall: 5s\n");
	leasectl(EX_CONFIG, NULL, "status", "--config", path);
	assert_one_line("daemon.yaml:4:5: ");
	write_file(path, "databases:\n  - name: x\n    conninfo: host=/x frob=" SECRET "\n");
	leasectl(EX_CONFIG, NULL, "status", "--config", path);
	assert_one_line("conninfo: it holds a keyword that libpq does not know");
	assert_lacks(ran.err, SECRET);

	assert_true(asprintf(&text,
			     "databases:\n  - name: one\n    conninfo: \"%s\"\n"
			     "  - name: two\n    conninfo: \"%s\"\n",
			     one, two) > 0);
	write_file(path, text);
	leasectl(EX_USAGE, NULL, "status", "--config", path);
	assert_one_line("names several databases: choose one with --database: one, two");
	leasectl(EX_USAGE, NULL, "status", "--config", path, "--database", "three");
	assert_one_line("names no database 'three'; there are: one, two");
	leasectl(0, NULL, "submit", "--config", path, "--database", "two", "--run", "r");
	assert_sql(conn, "r", "select run_id from lease.runs");
	leasectl(0, NULL, "--config", path, "--json", "--database=one", "status");
	assert_json(conn, "{runs,pending}", "0");
	free(text);
	PQfinish(conn);
	test_database_drop(one);
	test_database_drop(two);
	free(path);
	free(folder);
	free(one);
	free(two);
}

static void libpqs_environment_and_services(void **state)
{
	const char *conninfo = shared_database();
	char *folder = test_tmpdir(), *path, *text;
	char *name = strstr(conninfo, "dbname=") + 7;
	char database[128], file[256];
	char *environment[] = { database, file, NULL };
	PGconn *conn = test_connect(conninfo);

	(void)state;
	assert_true(asprintf(&path, "%s/services", folder) > 0);
	assert_true(asprintf(&text, "[mine]\ndbname=%s\n", name) > 0);
	write_file(path, text);
	snprintf(file, sizeof(file), "PGSERVICEFILE=%s", path);
	snprintf(database, sizeof(database), "PGDATABASE=%s", name);
	leasectl_env(0, environment, NULL, "status", "--json");
	assert_json(conn, "{database}", name);
	leasectl_env(0, environment, name, "status", "--json");
	assert_json(conn, "{database}", name);
	strcpy(database, "PGSERVICE=mine");
	leasectl_env(0, environment, NULL, "status", "--json");
	assert_json(conn, "{database}", name);
	strcpy(database, "PGDATABASE=nowhere");
	leasectl_env(0, environment, "service=mine", "status", "--json");
	assert_json(conn, "{database}", name);
	free(text);
	free(path);
	free(folder);
	PQfinish(conn);
}

/* -- standard output -------------------------------------------------------------------------- */

/* Runs it under sh, with redirections. */
static void in_shell(int code, const char *conninfo, const char *command)
{
	char *program = test_program("leasectl");
	const char *argv[] = { "sh", "-c", command, program, conninfo, NULL };
	struct process process;

	process_start(&process, (char *const *)argv, plain_environment);
	finish(&process);
	free(program);
	if (ran.code != code)
		fail_msg("exit code %d instead of %d: %s\nstderr: %s", ran.code, code, command,
			 ran.err);
}

static void output_that_cannot_be_written_is_74(void **state)
{
	static const char *const commands[] = { "status",
						"status --json",
						"history o",
						"history o --json",
						"migrate",
						"migrate --status",
						"migrate --status --json",
						"submit",
						"cancel o",
						"--help",
						"--version",
						"status --help" };
	const char *conninfo = shared_database();
	char *empty = test_database_create_empty();
	PGconn *conn = test_connect(conninfo), *empty_conn = test_connect(empty);
	char command[256];

	(void)state;
	/* it writes while it is connected: nothing of that may get into the connection */
	in_shell(EX_IOERR, empty, "exec \"$0\" -d \"$1\" migrate >&-");
	assert_int_equal(sql_number(empty_conn, "select count(*) from lease.schema_migrations"),
			 lease_migrations_count);
	PQfinish(empty_conn);
	test_database_drop(empty);
	free(empty);
	leasectl(0, conninfo, "submit", "--run", "o");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		snprintf(command, sizeof(command), "exec \"$0\" -d \"$1\" %s >/dev/full",
			 commands[i]);
		in_shell(EX_IOERR, conninfo, command);
		assert_string_equal(
			ran.err,
			"leasectl: cannot write to standard output: No space left on device\n");
		/* closed: the connection's socket must not take its place */
		if (i % 3 != 0)
			continue;
		snprintf(command, sizeof(command), "exec \"$0\" -d \"$1\" %s >&-", commands[i]);
		in_shell(EX_IOERR, conninfo, command);
		assert_string_equal(
			ran.err,
			"leasectl: cannot write to standard output: Bad file descriptor\n");
	}
	/* what was refused keeps its own exit code */
	in_shell(EX_NOINPUT, conninfo, "exec \"$0\" -d \"$1\" cancel none --json >/dev/full");
	/* nothing else is touched when all three are closed */
	in_shell(EX_IOERR, conninfo, "exec \"$0\" -d \"$1\" submit --run p <&- >&- 2>&-");
	assert_sql(conn, "1", "select count(*) from lease.runs where run_id = 'p'");
	PQfinish(conn);
}

/* Who closed the pipe has read enough: no words, and no death by a signal. */
static void a_broken_pipe_is_quiet(void **state)
{
	const char *conninfo = shared_database();
	char *program = test_program("leasectl");
	char *argv[] = { program, "status", "-d", (char *)conninfo, NULL };
	char *folder = test_tmpdir(), *path, *errors;
	int ends[2], status, error_file;
	pid_t pid;

	(void)state;
	assert_true(asprintf(&path, "%s/errors", folder) > 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	error_file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	close(ends[0]);
	pid = fork();
	if (pid == 0) {
		signal(SIGPIPE, SIG_DFL);
		dup2(ends[1], 1);
		dup2(error_file, 2);
		execv(program, argv);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), EX_IOERR);
	errors = read_file(path);
	assert_string_equal(errors, "");
	close(ends[1]);
	close(error_file);
	free(errors);
	free(path);
	free(folder);
	free(program);
}

/* What it writes to a terminal of this width; `no_color` NULL: not set. To be freed. */
static char *on_terminal(unsigned short columns, const char *no_color, const char *conninfo,
			 const char *const words[])
{
	struct winsize size = { .ws_row = 24, .ws_col = columns };
	char *program = test_program("leasectl"), *text = calloc(1, 65536);
	const char *argv[OPTIONS_MAX] = { program, "-d", conninfo };
	size_t length = 0;
	int master, status;
	ssize_t got;
	pid_t pid;

	for (int i = 0; words[i]; i++)
		argv[3 + i] = words[i];
	pid = forkpty(&master, NULL, NULL, &size);
	if (pid == 0) {
		setenv("LC_ALL", "C.UTF-8", 1);
		setenv("TERM", "xterm", 1);
		unsetenv("COLUMNS");
		unsetenv("NO_COLOR");
		if (no_color)
			setenv("NO_COLOR", no_color, 1);
		execv(program, (char *const *)argv);
		_exit(127);
	}
	/* a terminal whose other side is gone reads as an error */
	while (length < 65000 && (got = read(master, text + length, 65000 - length)) > 0)
		length += (size_t)got;
	close(master);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	free(program);
	return text;
}

/* Takes colours and carriage returns out, in place. */
static void strip(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		if (*from == '\033')
			from += strcspn(from, "m");
		else if (*from != '\r')
			*to++ = *from;
	}
	*to = '\0';
}

static void colours_on_a_terminal_only(void **state)
{
	const char *const words[] = { "history", "drawn", NULL };
	const char *const as_json[] = { "history", "drawn", "--json", NULL };
	const char *conninfo = shared_database();
	char *text;
	PGconn *conn = test_connect(conninfo);

	(void)state;
	insert_drawn_run(conn);
	leasectl(0, conninfo, "history", "drawn");
	assert_lacks(ran.out, "\033");
	text = on_terminal(60, NULL, conninfo, words);
	assert_has(text, "\033[31mlease_expired\033[0m");
	assert_has(text, "\033[32mcompleted\033[0m");
	strip(text);
	assert_lacks(text, "\033");
	assert_no_wider(strstr(text, "timeline from"), 60);
	assert_has(text, "5 c \u2502");
	free(text);
	text = on_terminal(120, "1", conninfo, words);
	assert_lacks(text, "\033");
	assert_has(text, "lease_expired");
	free(text);
	text = on_terminal(120, "", conninfo, words);
	assert_has(text, "\033[31m");
	free(text);
	text = on_terminal(60, NULL, conninfo, as_json);
	assert_lacks(text, "\033");
	free(text);
	PQfinish(conn);
}

/* -- the program ------------------------------------------------------------------------------ */

/* Runs itself again within a cluster of its own; comes back only if it cannot. */
static void run_in_own_cluster(char *self, char *test)
{
	char *script = test_source("tests/cluster.sh");
	char *argv[] = { "bash", script, "with", self, test, NULL };
	const char *folder = getenv("TMPDIR");

	setenv("LEASECTL_TEST_TMPDIR", folder ? folder : "", 1);
	/* the server runs as another user, who may not see the folder of the tests */
	unsetenv("TMPDIR");
	setenv("LEASE_CLUSTER_FSYNC", "off", 1);
	execvp("bash", argv);
	perror("bash");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_databases_of_one_cluster_at_once),
		cmocka_unit_test(a_plain_owner_migrates_and_is_told_what_is_missing),
		cmocka_unit_test(who_may_create_roles_hands_the_removal_over),
		cmocka_unit_test(a_stranger_is_refused_with_77),
		cmocka_unit_test(migrate_applies_once_and_shows_it),
		cmocka_unit_test(several_processes_at_once_apply_each_migration_once),
		cmocka_unit_test(migrate_does_not_depend_on_session_settings),
		cmocka_unit_test(a_changed_migration_is_refused_by_name),
		cmocka_unit_test(a_change_while_it_waits_is_refused_too),
		cmocka_unit_test(a_newer_or_torn_record_is_refused),
		cmocka_unit_test(an_sql_error_names_file_line_and_sqlstate),
		cmocka_unit_test(an_sql_error_without_a_place_names_the_statement),
		cmocka_unit_test(a_locked_table_makes_it_try_again),
		cmocka_unit_test(a_killed_migrate_leaves_nothing_half_done),
		cmocka_unit_test(a_read_only_server_is_good_enough_to_look),
		cmocka_unit_test(status_counts),
		cmocka_unit_test(history_as_json_is_what_stands_in_the_tables),
		cmocka_unit_test(history_for_people_is_safe_on_a_terminal),
		cmocka_unit_test(the_timeline_is_to_scale),
		cmocka_unit_test(history_of_open_young_and_long_runs),
		cmocka_unit_test(submit_adds_a_run_once),
		cmocka_unit_test(durations_are_read_exactly_or_refused),
		cmocka_unit_test(cancel_and_resume),
		cmocka_unit_test(bad_ids_are_refused),
		cmocka_unit_test(help_and_version),
		cmocka_unit_test(wrong_use_is_one_line_and_64),
		cmocka_unit_test(connection_failures_and_their_exit_codes),
		cmocka_unit_test(passwords_never_come_out),
		cmocka_unit_test(the_process_title_shows_no_password),
		cmocka_unit_test(wrong_and_missing_passwords),
		cmocka_unit_test(the_daemons_file_names_databases),
		cmocka_unit_test(libpqs_environment_and_services),
		cmocka_unit_test(output_that_cannot_be_written_is_74),
		cmocka_unit_test(a_broken_pipe_is_quiet),
		cmocka_unit_test(colours_on_a_terminal_only),
	};
	const char *folder = getenv("LEASECTL_TEST_TMPDIR");

	if (!folder) {
		run_in_own_cluster(argv[0], argc > 1 ? argv[1] : NULL);
		return EX_UNAVAILABLE;
	}
	if (*folder)
		setenv("TMPDIR", folder, 1);
	/* one test, by its name */
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, processes_kill_all);
}
