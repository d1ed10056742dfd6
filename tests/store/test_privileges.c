/*
 * Least privilege: what each role may do to each table, column by column, and nothing more.
 *
 * The first test compares all of it with a table written down here, so that a grant too many in a
 * later migration does not go by unseen. The others try by statements what matters most: history is
 * neither made up nor taken away.
 */
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

#define EVENT_COLUMNS                                                                              \
	"kind run_id attempt_no node_id execution_no from_status to_status outcome owner "         \
	"error_code reference"

struct privileges {
	const char *role, *table;
	/* columns, or "all": of the whole table; NULL: none of them */
	const char *select, *insert, *update, *delete;
};

/* clang-format off */
static const struct privileges granted[] = {
	{ "lease_archive", "*", "all", NULL, NULL, NULL },
	{ "lease_reader", "*", "all", NULL, NULL, NULL },

	{ "lease_reconciler", "*", "all", NULL, NULL, NULL },
	{ "lease_reconciler", "runs", "all", NULL,
	  "status state_version not_before updated_at finished_at terminal_error_code "
	  "terminal_error_message", NULL },
	{ "lease_reconciler", "run_attempts", "all", NULL,
	  "finished_at outcome error_code error_message", NULL },
	{ "lease_reconciler", "nodes", "all", NULL, "state state_version updated_at", NULL },
	{ "lease_reconciler", "node_executions", "all", NULL, "status finished_at", NULL },
	{ "lease_reconciler", "run_events", "all", EVENT_COLUMNS, NULL, NULL },
	{ "lease_reconciler", "heartbeat", "all", "all", "all", "all" },

	/* granted to nobody: the owner of the one function that removes archived runs */
	{ "lease_remover", "*", NULL, NULL, NULL, NULL },
	{ "lease_remover", "runs", "all", NULL, "updated_at", "all" },
	{ "lease_remover", "run_attempts", "all", NULL, NULL, "all" },
	{ "lease_remover", "nodes", "all", NULL, NULL, "all" },
	{ "lease_remover", "operations", "all", NULL, NULL, "all" },
	{ "lease_remover", "node_executions", "all", NULL, NULL, "all" },
	{ "lease_remover", "checkpoints", "all", NULL, NULL, "all" },
	{ "lease_remover", "run_events", "all", NULL, NULL, "all" },
	{ "lease_remover", "contents", "all", NULL, NULL, NULL },

	{ "lease_worker", "*", "all", NULL, NULL, NULL },
	{ "lease_worker", "runs", "all", "run_id tenant_id status not_before deadline_at",
	  "status state_version plan_version current_checkpoint_id not_before cancel_requested_at "
	  "updated_at finished_at terminal_error_code terminal_error_message", NULL },
	{ "lease_worker", "run_attempts", "all",
	  "run_id attempt_no owner started_at heartbeat_at lease_expires_at deadline_at "
	  "cancel_requested_at trace_id",
	  "heartbeat_at lease_expires_at cancel_requested_at finished_at outcome error_code "
	  "error_message", NULL },
	{ "lease_worker", "nodes", "all", "run_id node_id state", "state state_version updated_at",
	  NULL },
	{ "lease_worker", "operations", "all", "operation_id run_id node_id", NULL, NULL },
	{ "lease_worker", "node_executions", "all",
	  "run_id node_id attempt_no run_attempt_no operation_id status input_ref trace_id",
	  "status finished_at output_ref normalized_error error_message", NULL },
	{ "lease_worker", "contents", "all",
	  "content_ref hash media_type size_bytes schema_version", NULL, NULL },
	{ "lease_worker", "checkpoints", "all",
	  "checkpoint_id run_id run_attempt_no state_version plan_version content_ref", NULL, NULL },
	{ "lease_worker", "run_events", "all", EVENT_COLUMNS, NULL, NULL },
};
/* clang-format on */

/* The row of this table, else the one of all others. */
static const struct privileges *granted_to(const char *role, const char *table)
{
	const struct privileges *others = NULL;

	for (size_t i = 0; i < LENGTH(granted); i++) {
		if (strcmp(granted[i].role, role) != 0)
			continue;
		if (strcmp(granted[i].table, table) == 0)
			return &granted[i];
		if (strcmp(granted[i].table, "*") == 0)
			others = &granted[i];
	}
	if (!others)
		fail_msg("role %s is not in the table of this test", role);
	return others;
}

static void expect_privilege(PGconn *conn, const char *role, const char *table, const char *what,
			     const char *expected)
{
	char *actual = sql_text(
		conn,
		"select case when has_table_privilege('%s', '%s', '%s') then 'all' else "
		"(select string_agg(attname, ' ' order by attnum) from pg_attribute "
		"where attrelid = '%s'::regclass and attnum > 0 and not attisdropped and "
		"has_column_privilege('%s', attrelid, attnum, '%s')) end",
		role, table, what, table, role, what);

	if ((actual == NULL) != (expected == NULL) || (actual && strcmp(actual, expected) != 0))
		fail_msg("%s may %s of %s: %s; expected: %s", role, what, table,
			 actual ? actual : "nothing", expected ? expected : "nothing");
	free(actual);
}

static void expect_no_privilege(PGconn *conn, const char *role, const char *table, const char *what)
{
	assert_sql(conn, "f", "select has_table_privilege('%s', '%s', '%s')", role, table, what);
}

static void each_role_has_what_it_needs_and_no_more(void **state)
{
	struct scenario *s = *state;
	PGresult *pairs = PQexec(s->admin,
				 "select rolname, relname, 'lease.' || relname from pg_roles, "
				 "pg_class where rolname like 'lease\\_%' and rolname not in "
				 "('lease_owner', 'lease_test_nobody') and relnamespace = "
				 "'lease'::regnamespace and relkind in ('r', 'v', 'm', 'p', 'f')");

	assert_int_equal(PQresultStatus(pairs), PGRES_TUPLES_OK);
	assert_true(PQntuples(pairs) >= 3 * 10);
	for (int i = 0; i < PQntuples(pairs); i++) {
		const char *role = PQgetvalue(pairs, i, 0), *table = PQgetvalue(pairs, i, 2);
		const struct privileges *wanted = granted_to(role, PQgetvalue(pairs, i, 1));
		bool removes = wanted->delete != NULL;

		expect_privilege(s->admin, role, table, "SELECT", wanted->select);
		expect_privilege(s->admin, role, table, "INSERT", wanted->insert);
		expect_privilege(s->admin, role, table, "UPDATE", wanted->update);
		assert_sql(s->admin, removes ? "t" : "f",
			   "select has_table_privilege('%s', '%s', 'DELETE')", role, table);
		expect_no_privilege(s->admin, role, table, "TRUNCATE");
		expect_no_privilege(s->admin, role, table, "REFERENCES");
		expect_no_privilege(s->admin, role, table, "TRIGGER");
	}
	PQclear(pairs);
	/* whoever has no role has nothing, and no role may make anything in the schema */
	assert_sql(s->admin, "0",
		   "select count(*) from pg_class, aclexplode(relacl) where relnamespace = "
		   "'lease'::regnamespace and grantee = 0");
	assert_sql(
		s->admin, "0",
		"select count(*) from pg_roles where rolname in ('lease_reader', 'lease_worker', "
		"'lease_reconciler', 'lease_archive') and "
		"has_schema_privilege(oid, 'lease', 'CREATE')");
	assert_sql(
		s->admin, "0",
		"select count(*) from pg_roles where rolname like 'lease\\_%%' and (rolsuper or "
		"rolcreaterole or rolcreatedb or rolreplication or rolbypassrls or rolcanlogin)");
}

/* -- statements ----------------------------------------------------------------------------------- */

/* Run "open": one open attempt; run "closed": ended by its owner; both with all columns filled. */
static void make_history(struct scenario *s)
{
	struct lease_token token = take_run(s, "closed", "w:1");

	assert_granted(finish(s->worker, &token, LEASE_RUN_FAILED, "disk_full", NULL));
	take_run(s, "open", "w:2");
}

static void the_reconcilers_role_neither_inserts_nor_deletes_an_attempt(void **state)
{
	static const char *const statements[] = {
		"insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		"values ('closed', 2, 'w', clock_timestamp())",
		"insert into lease.run_attempts select * from lease.run_attempts",
		"insert into lease.run_attempts default values",
		"insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		"values ('open', 1, 'w', clock_timestamp()) on conflict do nothing",
		"delete from lease.run_attempts",
		"delete from lease.run_attempts where run_id = 'nobody'",
		"with gone as (delete from lease.run_attempts returning *) select from gone",
		"truncate lease.run_attempts cascade",
		"copy lease.run_attempts from stdin",
		"alter table lease.run_attempts disable trigger all",
		"set session_replication_role = replica",
	};
	struct scenario *s = *state;
	char *before;

	make_history(s);
	before = sql_text(s->admin, "select string_agg(a::text, '|' order by run_id) from "
				    "lease.run_attempts a");
	sql(s->other, "set role lease_reconciler");
	for (size_t i = 0; i < LENGTH(statements); i++)
		sql_fails(s->other, "42501", "%s", statements[i]);
	assert_sql(s->admin, before,
		   "select string_agg(a::text, '|' order by run_id) from lease.run_attempts a");
	free(before);
}

/*
 * The columns that a role may write, one by one, set to another value on a closed attempt: the
 * database refuses each, whichever the value.
 */
static void cannot_touch_closed_attempts(struct scenario *s, const char *role)
{
	static const char *const columns[][2] = {
		{ "heartbeat_at", "clock_timestamp()" },
		{ "lease_expires_at", "clock_timestamp() + interval '1 h'" },
		{ "cancel_requested_at", "clock_timestamp()" },
		{ "finished_at", "clock_timestamp()" },
		{ "finished_at", "null, outcome = null, error_code = null" },
		{ "outcome", "'completed'" },
		{ "error_code", "'other'" },
		{ "error_code", "null" },
		{ "error_message", "'other'" },
	};
	char *before = run_bytes(s, "closed");
	size_t tried = 0;

	sql(s->other, "set role %s", role);
	for (size_t i = 0; i < LENGTH(columns); i++) {
		char *may = sql_text(s->other,
				     "select has_column_privilege('lease.run_attempts', '%s', "
				     "'UPDATE')",
				     columns[i][0]);
		bool allowed = strcmp(may, "t") == 0;

		free(may);
		/* 23001: the guard of closed attempts; 42501: no right at all */
		sql_fails(s->other, allowed ? "23001" : "42501",
			  "update lease.run_attempts set %s = %s where run_id = 'closed'",
			  columns[i][0], columns[i][1]);
		tried += allowed;
	}
	assert_true(tried >= 4);
	assert_untouched(s, "closed", before);
	/* the same rights are enough for an open one: the refusals were about being closed */
	sql(s->other,
	    "begin; update lease.run_attempts set error_code = null where run_id = 'open'; "
	    "rollback");
	sql(s->other, "reset role");
}

static void a_workers_role_cannot_touch_closed_attempts(void **state)
{
	make_history(*state);
	cannot_touch_closed_attempts(*state, "lease_worker");
}

static void the_reconcilers_role_cannot_touch_closed_attempts(void **state)
{
	make_history(*state);
	cannot_touch_closed_attempts(*state, "lease_reconciler");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(each_role_has_what_it_needs_and_no_more),
		store_test(the_reconcilers_role_neither_inserts_nor_deletes_an_attempt),
		store_test(a_workers_role_cannot_touch_closed_attempts),
		store_test(the_reconcilers_role_cannot_touch_closed_attempts),
	};

	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
