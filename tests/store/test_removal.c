/*
 * lease.remove_runs, the one way by which facts leave the database: what it removes, what it leaves
 * and why, who may call it, and that the guards know nobody else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

#define CUT "clock_timestamp() - interval '90 days'"

/* As leasectl makes it: SHA-256 over the SHA-256s of the lines. */
#define DIGEST_OF(run_id)                                                                          \
	"(select encode(sha256(string_agg(sha256(convert_to(f.line, 'UTF8')), '' order by f.n)), " \
	"'hex') from lease.run_facts(array['" run_id "']) with ordinality f (r, line, n))"

/* What becomes of one run that is handed over with the digest of its facts as they are. */
#define REMOVE(run_id)                                                                             \
	"select verdict from lease.remove_runs(array['" run_id                                     \
	"'], array[" DIGEST_OF(run_id) "], " CUT ")"

static const char *const tables[] = { "runs",       "run_attempts",    "nodes",
				      "operations", "node_executions", "checkpoints",
				      "run_events" };

/* Everything, to the byte. */
static char *all_facts(struct scenario *s)
{
	return sql_text(
		s->admin,
		"select string_agg(f.line, E'\\n' order by f.n) from lease.run_facts((select "
		"array_agg(run_id::text) from lease.runs)) with ordinality f (r, line, n)");
}

static void assert_nothing_left(struct scenario *s, const char *run_id)
{
	for (size_t i = 0; i < LENGTH(tables); i++)
		assert_sql(s->admin, "0", "select count(*) from lease.%s where run_id = '%s'",
			   tables[i], run_id);
}

static void a_run_goes_with_all_its_facts_and_nothing_else_goes(void **state)
{
	struct scenario *s = *state;
	char *before, *after;

	live_through(s, "stays");
	before = all_facts(s);
	live_through(s, "goes");
	sql(s->admin, "insert into lease.runs (run_id, status, finished_at) "
		      "values ('legacy', 'completed', clock_timestamp() - interval '91 days')");
	sql_unguarded(s, "update lease.runs set finished_at = finished_at - interval '100 days' "
			 "where run_id = 'goes'");
	for (size_t i = 0; i < LENGTH(tables); i++)
		assert_sql(s->admin, "t", "select count(*) > 0 from lease.%s where run_id = 'goes'",
			   tables[i]);
	assert_sql(s->admin, "removed", REMOVE("goes"));
	assert_sql(s->admin, "removed", REMOVE("legacy"));
	assert_nothing_left(s, "goes");
	assert_nothing_left(s, "legacy");
	after = all_facts(s);
	assert_string_equal(after, before);
	/* contents are shared, and stay */
	assert_sql(s->admin, "file:///goes file:///shared file:///stays",
		   "select string_agg(content_ref, ' ' order by content_ref) from lease.contents");
	assert_sql(s->admin, "gone", REMOVE("goes"));
	assert_explained(s);
	free(before);
	free(after);
}

/* The lines hold every row and every column, whatever the session's settings are. */
static void facts_do_not_depend_on_settings(void **state)
{
	struct scenario *s = *state;
	char *plain, *odd;

	live_through(s, "r");
	plain = all_facts(s);
	sql(s->admin, "set timezone = 'Pacific/Auckland'; set datestyle = 'SQL, DMY'; "
		      "set search_path = lease; set extra_float_digits = -5; "
		      "set intervalstyle = 'sql_standard'");
	odd = all_facts(s);
	assert_string_equal(odd, plain);
	free(odd);
	free(plain);
	sql(s->admin, "reset all");
	for (size_t i = 0; i < LENGTH(tables); i++)
		assert_sql(s->admin, "0",
			   "select count(*) from (select to_jsonb(t) from lease.%s t except "
			   "select (line::jsonb)->'row' from lease.run_facts(array['r']) "
			   "where line::jsonb->>'table' = '%s') d",
			   tables[i], tables[i]);
	assert_sql(s->admin, "2",
		   "select count(*) from lease.run_facts(array['r', 'r', 'nobody']) "
		   "where line::jsonb->>'table' = 'contents'");
}

static void only_old_ended_runs_go(void **state)
{
	struct scenario *s = *state;
	char *before, *after;

	take_run(s, "running", "w:1");
	assert_granted(submit(s->worker, "pending"));
	live_through(s, "young");
	sql_unguarded(s, "update lease.runs set finished_at = finished_at - interval '89 days' "
			 "where run_id = 'young'");
	before = all_facts(s);
	assert_sql(s->admin, "not_terminal", REMOVE("running"));
	assert_sql(s->admin, "not_terminal", REMOVE("pending"));
	assert_sql(s->admin, "too_young", REMOVE("young"));
	assert_sql(s->admin, "gone", REMOVE("nobody"));
	/* a cut that is no cut, or too near */
	sql_fails(s->admin, "22023", "select lease.remove_runs(array['young'], array['x'], null)");
	sql_fails(s->admin, "22023",
		  "select lease.remove_runs(array['young'], array['x'], 'infinity')");
	sql_fails(s->admin, "22023",
		  "select lease.remove_runs(array['young'], array['x'], clock_timestamp() - "
		  "interval '23 hours')");
	sql_fails(s->admin, "22023",
		  "select lease.remove_runs(array['young', 'running'], array['x'], " CUT ")");
	sql_fails(s->admin, "22023", "select lease.remove_runs(null, null, " CUT ")");
	sql_fails(s->admin, "22023", "select lease.remove_runs(array['young'], null, " CUT ")");
	sql_fails(s->admin, "22023",
		  "select lease.remove_runs(array_fill('x'::text, array[10001]), "
		  "array_fill('x'::text, array[10001]), " CUT ")");
	after = all_facts(s);
	assert_string_equal(after, before);
	free(before);
	free(after);
}

static void only_what_was_exported_goes(void **state)
{
	struct scenario *s = *state;
	char *digest, *before, *after;

	live_through(s, "r");
	let_ended_runs_age(s, "100 days");
	digest = sql_text(s->admin, "select " DIGEST_OF("r"));
	/* no digest, another's, one of less */
	assert_sql(s->admin, "changed",
		   "select verdict from lease.remove_runs(array['r'], array[null], " CUT ")");
	assert_sql(s->admin, "changed",
		   "select verdict from lease.remove_runs(array['r'], array[''], " CUT ")");
	/* one event more, one column of one row otherwise */
	sql(s->admin, "begin; insert into lease.run_events (kind, run_id) "
		      "values ('cancel_requested', 'r')");
	assert_sql(s->admin, "changed",
		   "select verdict from lease.remove_runs(array['r'], array['%s'], " CUT ")",
		   digest);
	sql(s->admin, "rollback");
	before = all_facts(s);
	for (size_t i = 0; i < LENGTH(tables); i++) {
		char *statement;

		if (asprintf(&statement,
			     "create table public.kept as select * from lease.%s; "
			     "delete from lease.%s where ctid = (select min(ctid) from lease.%s)",
			     tables[i], tables[i], tables[i]) < 0)
			abort();
		sql_unguarded(s, statement);
		free(statement);
		assert_sql(s->admin, i == 0 ? "gone" : "changed",
			   "select verdict from lease.remove_runs(array['r'], array['%s'], " CUT
			   ")",
			   digest);
		if (asprintf(&statement,
			     "insert into lease.%s overriding system value select * from "
			     "public.kept on conflict do nothing; drop table public.kept",
			     tables[i]) < 0)
			abort();
		sql_unguarded(s, statement);
		free(statement);
	}
	after = all_facts(s);
	assert_string_equal(after, before);
	assert_sql(s->admin, "removed",
		   "select verdict from lease.remove_runs(array['r'], array['%s'], " CUT ")",
		   digest);
	free(before);
	free(after);
	free(digest);
}

static void what_is_open_or_locked_stays(void **state)
{
	struct scenario *s = *state;

	live_through(s, "attempt");
	live_through(s, "execution");
	live_through(s, "locked");
	live_through(s, "free");
	let_ended_runs_age(s, "100 days");
	/* by hand: liblease opens nothing under a run that has ended */
	sql(s->admin,
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('attempt', 3, 'w', clock_timestamp())");
	sql_unguarded(s, "insert into lease.node_executions (run_id, node_id, attempt_no, "
			 "run_attempt_no) values ('execution', 'fetch', 9, 2)");
	sql(s->worker, "begin; select from lease.runs where run_id = 'locked' for key share");
	assert_sql(s->admin,
		   "attempt open_attempt, execution open_execution, free removed, locked locked",
		   "select string_agg(run_id || ' ' || verdict, ', ' order by run_id) from "
		   "lease.remove_runs(array['locked', 'free', 'attempt', 'execution'], "
		   "array[" DIGEST_OF("locked") ", " DIGEST_OF("free") ", " DIGEST_OF(
			   "attempt") ", " DIGEST_OF("execution") "], " CUT ")");
	sql(s->worker, "rollback");
	assert_sql(s->admin, "removed", REMOVE("locked"));
	sql_unguarded(s, "delete from lease.run_attempts where finished_at is null; "
			 "delete from lease.node_executions where finished_at is null");
}

static void deletes_are_refused(struct scenario *s, const char *sqlstates, const char *table)
{
	char statement[64];
	PGresult *result;
	const char *state;

	snprintf(statement, sizeof(statement), "delete from lease.%s", table);
	result = PQexec(s->admin, statement);
	state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	if (!state || !strstr(sqlstates, state))
		fail_msg("%s: %s", statement, state ? state : "accepted");
	PQclear(result);
}

/* The guard's exception is for the function's owner alone. */
static void nobody_deletes_by_hand(void **state)
{
	static const char *const writers[] = {
		"reset role", "set role lease_owner",
		"reset role; set session_replication_role = replica",
		"set session_replication_role = origin; set role lease_archive"
	};
	struct scenario *s = *state;
	char *before, *after;

	live_through(s, "r");
	let_ended_runs_age(s, "100 days");
	before = all_facts(s);
	for (size_t i = 0; i < LENGTH(writers); i++) {
		bool may_not = strstr(writers[i], "lease_archive");

		sql(s->admin, "%s", writers[i]);
		for (size_t k = 0; k < LENGTH(tables); k++) {
			/* by a guard, or by a foreign key, which comes first where there is one */
			deletes_are_refused(s, may_not ? "42501" : "23001 23503", tables[k]);
			sql_fails(s->admin, may_not ? "42501" : "23001",
				  "truncate lease.%s cascade", tables[k]);
		}
		deletes_are_refused(s, may_not ? "42501" : "23001 23503", "contents");
	}
	sql(s->admin, "reset role");
	after = all_facts(s);
	assert_string_equal(after, before);
	free(before);
	free(after);
}

static void the_remover_is_nobody_and_can_no_more_than_delete(void **state)
{
	struct scenario *s = *state;

	assert_sql(s->admin, "lease_remover",
		   "select proowner::regrole::text from pg_proc where oid = "
		   "'lease.remove_runs(text[],text[],timestamptz)'::regprocedure and prosecdef");
	assert_sql(s->admin, "0",
		   "select count(*) from pg_auth_members where roleid = 'lease_remover'::regrole "
		   "or member = 'lease_remover'::regrole");
	assert_sql(s->admin, "false false",
		   "select rolcanlogin || ' ' || rolsuper from pg_roles where rolname = "
		   "'lease_remover'");
	assert_sql(s->admin, "f",
		   "select has_schema_privilege('lease_remover', 'lease', 'create')");
	/* owns nothing else, in this database */
	assert_sql(s->admin, "1",
		   "select count(*) from pg_shdepend where refobjid = 'lease_remover'::regrole "
		   "and deptype = 'o' and dbid = (select oid from pg_database where datname = "
		   "current_database())");
	live_through(s, "r");
	sql(s->admin,
	    "insert into lease.contents values ('file:///unused', 'sha256:' || repeat('0', "
	    "64), 'text/plain', 1)");
	sql(s->admin, "set role lease_remover");
	sql_fails(s->admin, "42501", "truncate lease.run_events");
	sql_fails(s->admin, "42501", "delete from lease.contents");
	sql_fails(s->admin, "42501", "delete from lease.schema_migrations");
	sql_fails(s->admin, "42501", "update lease.run_attempts set outcome = 'completed'");
	sql_fails(s->admin, "42501", "update lease.runs set status = 'pending'");
	sql_fails(s->admin, "23001", "update lease.runs set updated_at = clock_timestamp()");
	sql_fails(s->admin, "42501", "insert into lease.runs (run_id) values ('x')");
	sql(s->admin, "reset role");
	/* rights that somebody grants it besides do not lift the other guards */
	sql(s->admin, "begin; grant all on all tables in schema lease to lease_remover; "
		      "set local role lease_remover");
	sql_fails(s->admin, "23001", "truncate lease.run_events");
	sql_fails(s->admin, "23001",
		  "delete from lease.contents where content_ref = 'file:///unused'");
	sql_fails(s->admin, "23001", "update lease.run_events set kind = kind");
	sql(s->admin, "rollback");
}

static void only_the_archive_role_may_call_it(void **state)
{
	static const char *const others[] = { "lease_reader", "lease_worker", "lease_reconciler",
					      "lease_test_nobody" };
	struct scenario *s = *state;

	sql(s->admin, "do $$begin create role lease_test_nobody; exception when duplicate_object "
		      "or unique_violation then null; end$$; "
		      "grant usage on schema lease to lease_test_nobody");
	live_through(s, "r");
	let_ended_runs_age(s, "100 days");
	for (size_t i = 0; i < LENGTH(others); i++) {
		sql(s->admin, "set role %s", others[i]);
		sql_fails(s->admin, "42501",
			  "select lease.remove_runs(array['r'], array['x'], " CUT ")");
		sql_fails(s->admin, "42501", "select lease.run_facts(array['r'])");
	}
	sql(s->admin, "set role lease_archive");
	sql_fails(s->admin, "42501", "insert into lease.runs (run_id) values ('x')");
	sql_fails(s->admin, "42501", "select from lease.runs for update");
	assert_sql(s->admin, "removed", REMOVE("r"));
	sql(s->admin, "reset role; revoke usage on schema lease from lease_test_nobody");
	assert_nothing_left(s, "r");
}

/* Reads on to the end, and counts. */
static size_t count_events(struct scenario *s, const char *cursor, const char *run_id)
{
	struct lease_event_batch *batch;
	char *next = cursor ? strdup(cursor) : NULL;
	size_t n = 0;
	bool more = true;

	while (more) {
		assert_granted(lease_events_after(s->worker, next, 4, &batch, &last_error));
		for (size_t i = 0; i < batch->n; i++)
			assert_string_equal(batch->events[i].run_id, run_id);
		n += batch->n;
		more = batch->n > 0;
		free(next);
		next = strdup(batch->cursor);
		lease_event_batch_free(batch);
	}
	free(next);
	return n;
}

static char *cursor_after(struct scenario *s, int events)
{
	struct lease_event_batch *batch;
	char *cursor;

	assert_granted(lease_events_after(s->worker, NULL, events, &batch, &last_error));
	cursor = strdup(batch->cursor);
	lease_event_batch_free(batch);
	return cursor;
}

/* A reader of events goes on over the gap, from the start, from within it and from behind it. */
static void consumers_go_on_over_removed_events(void **state)
{
	struct scenario *s = *state;
	char *within, *after;

	live_through(s, "old");
	within = cursor_after(s, 5);
	after = cursor_after(s, 1000);
	assert_true(count_events(s, within, "old") > 5);
	let_ended_runs_age(s, "100 days");
	assert_sql(s->admin, "removed", REMOVE("old"));
	assert_int_equal(count_events(s, within, "new"), 0);
	assert_granted(submit(s->worker, "new"));
	assert_int_equal(count_events(s, NULL, "new"), 1);
	assert_int_equal(count_events(s, after, "new"), 1);
	free(within);
	free(after);
}

/* A removed run's id is free again, and so are its operations: they are never_tried. */
static void a_removed_run_begins_anew(void **state)
{
	struct scenario *s = *state;

	live_through(s, "r");
	let_ended_runs_age(s, "100 days");
	assert_sql(s->admin, "removed", REMOVE("r"));
	live_through(s, "r");
	assert_sql(s->admin, "1 2",
		   "select min(attempt_no) || ' ' || max(attempt_no) "
		   "from lease.run_attempts where run_id = 'r'");
	assert_explained(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_run_goes_with_all_its_facts_and_nothing_else_goes),
		store_test(facts_do_not_depend_on_settings),
		store_test(only_old_ended_runs_go),
		store_test(only_what_was_exported_goes),
		store_test(what_is_open_or_locked_stays),
		store_test(nobody_deletes_by_hand),
		store_test(the_remover_is_nobody_and_can_no_more_than_delete),
		store_test(only_the_archive_role_may_call_it),
		store_test(consumers_go_on_over_removed_events),
		store_test(a_removed_run_begins_anew),
	};

	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
