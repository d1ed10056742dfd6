/*
 * The statements of lib/sql, one file each: the server takes every one as it stands, and with a
 * large history behind it reaches its rows by the index that is meant for it, whether the plan
 * knows the parameters or not.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"
#include "sql.h"

/* What the plan of a file must name. Every other file must only leave the tables' heaps alone. */
struct plan {
	const char *file;
	const char *indexes[3];
	const char *alternative; /* serves as well as the first index */
};

#define OPEN "run_attempts_open_idx"
#define KEY "run_attempts_pkey"

static const struct plan plans[] = {
	{ "submit", { "runs_pkey" }, NULL },
	{ "lock_runs", { "runs_pkey" }, NULL },
	{ "lock_runs_skip", { "runs_pkey" }, NULL },
	{ "lock_next", { "runs_pending_idx" }, NULL },
	{ "lock_next_running", { "runs_running_idx", OPEN }, NULL },
	{ "look", { KEY, "runs_pkey" }, NULL },
	{ "close_and_move", { OPEN, "runs_pkey" }, KEY },
	{ "open_attempts", { OPEN, "runs_pkey" }, NULL },
	{ "mark_cancel", { OPEN, "runs_pkey" }, NULL },
	{ "renew", { OPEN }, KEY },
	{ "renew_many", { OPEN }, KEY },
	{ "read_run", { "runs_pkey" }, NULL },
	{ "read_attempts", { KEY }, NULL },
	{ "read_status", { OPEN, "runs_pending_idx", "runs_running_idx" }, NULL },
	{ "scan_page", { OPEN }, NULL },
	{ "scan_orphans", { "runs_running_idx", OPEN }, NULL },
	{ "scan_deadlines", { "runs_deadline_idx" }, NULL },
	{ "count_releases", { KEY }, NULL },
	{ "list_reconcilable", { OPEN, "runs_running_idx", "runs_deadline_idx" }, NULL },
	{ "audit_page", { "runs_pkey", KEY }, NULL },
	{ "read_activity", { "run_events_pkey" }, NULL },
};

/* Reads all runs where finished ones are asked for: see a_list_of_unfinished_runs_... */
static const char *const reads_all[] = { "list_runs" };

/* Statements that write or lock are sent with settings.sql, the others with settings_scan.sql. */
static const char *const reading[] = { "read_",  "scan_", "events_", "open_window",
				       "count_", "list_", "audit_" };

/* A file as the library embeds it: no comment lines, no semicolon at the end. */
static char *statement_of(const char *name)
{
	char path[128], *file, *text, *to, *end;

	snprintf(path, sizeof(path), "lib/sql/%s.sql", name);
	file = test_source(path);
	text = read_file(file);
	free(file);
	to = text;
	for (char *line = text; *line;) {
		char *next = strchr(line, '\n');
		size_t length = next ? (size_t)(next - line) + 1 : strlen(line);

		if (strncmp(line + strspn(line, " \t"), "--", 2) != 0) {
			memmove(to, line, length);
			to += length;
		}
		line += length;
	}
	*to = '\0';
	end = text + strlen(text);
	while (end > text && strchr(" \n;", end[-1]))
		*--end = '\0';
	return text;
}

static void each_file(void (*use)(void *arg, const char *name), void *arg)
{
	char *folder = test_source("lib/sql");
	DIR *dir = opendir(folder);
	const struct dirent *entry;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		char name[64];

		if (sscanf(entry->d_name, "%63[a-z_].sql", name) == 1 &&
		    strchr(entry->d_name, '.') && strcmp(strchr(entry->d_name, '.'), ".sql") == 0)
			use(arg, name);
	}
	closedir(dir);
	free(folder);
}

static void prepare_file(void *arg, const char *name)
{
	struct scenario *s = arg;
	char *text = statement_of(name);

	if (strncmp(text, "BEGIN", 5) == 0)
		sql(s->admin, "%s; ROLLBACK", text);
	else
		sql(s->admin, "PREPARE %s AS %s", name, text);
	free(text);
}

static void every_file_is_one_statement_that_the_server_takes(void **state)
{
	struct scenario *s = *state;

	each_file(prepare_file, s);
	assert_sql(s->admin, "t", "select count(*) > 15 from pg_prepared_statements");
}

/* -- plans ------------------------------------------------------------------------------------------ */

/* 20,000 runs that ended, with an attempt each, and some hundreds in every other state. */
static void load(struct scenario *s)
{
	sql(s->admin,
	    "insert into lease.runs (run_id, status, deadline_at) "
	    "select 'r' || to_char(i, 'FM00000'), 'running', clock_timestamp() + interval '1 day' "
	    "from generate_series(1, 20000) i; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() from lease.runs; "
	    "update lease.run_attempts set finished_at = clock_timestamp(), outcome = 'completed'; "
	    "update lease.runs set status = 'completed', state_version = 2, "
	    "finished_at = clock_timestamp(); "
	    "insert into lease.runs (run_id, status) select 'open' || i, 'running' "
	    "from generate_series(1, 300) i; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() + interval '1 h' "
	    "from lease.runs where status = 'running'; "
	    "insert into lease.runs (run_id, status, deadline_at) "
	    "select 'idle' || i, case when i %% 2 = 0 then 'pending' else 'waiting' end, "
	    "case when i %% 3 = 0 then clock_timestamp() + interval '1 min' end "
	    "from generate_series(1, 600) i");
	sql(s->admin, "vacuum analyze lease.runs");
	sql(s->admin, "vacuum analyze lease.run_attempts");
}

/* A value for each parameter, by its type: what it says does not matter to a plan. */
static char *arguments_of(struct scenario *s, const char *name)
{
	return sql_text(
		s->admin,
		"select coalesce('(' || string_agg(case p "
		"when 'text' then $$'r00010'$$ when 'text[]' then $$array['r00010','r00011','open1']$$ "
		"when 'boolean' then 'true' when 'integer' then '1' when 'bigint' then '100' "
		"when 'integer[]' then 'array[1,1,1]' when 'bigint[]' then 'array[1,1,1]' "
		"when 'boolean[]' then 'array[true,true,true]' else 'null' end, ', ') || ')', '') "
		"from pg_prepared_statements, unnest(parameter_types::text[]) p where name = '%s'",
		name);
}

static char *explain(struct scenario *s, const char *name)
{
	char *arguments = arguments_of(s, name), *query = NULL, *text = calloc(1, 1 << 17);
	PGresult *result;

	if (asprintf(&query, "explain (costs off) execute %s%s", name, arguments) < 0 || !text)
		fail_msg("out of memory");
	result = PQexec(s->admin, query);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail_msg("%s: %s", query, PQresultErrorMessage(result));
	for (int i = 0; i < PQntuples(result) && strlen(text) < 1 << 16; i++) {
		strcat(text, PQgetvalue(result, i, 0));
		strcat(text, "\n");
	}
	PQclear(result);
	free(query);
	free(arguments);
	return text;
}

static bool names_indexes(const char *text, const struct plan *plan)
{
	for (size_t i = 0; i < LENGTH(plan->indexes) && plan->indexes[i]; i++)
		if (!strstr(text, plan->indexes[i]) &&
		    !(i == 0 && plan->alternative && strstr(text, plan->alternative)))
			return false;
	return true;
}

static void check_plan(struct scenario *s, const char *name, const char *mode)
{
	char *text = explain(s, name);
	bool good = !strstr(text, "Seq Scan on runs") && !strstr(text, "Seq Scan on run_attempts");

	for (size_t i = 0; i < LENGTH(reads_all); i++)
		good = good || strcmp(reads_all[i], name) == 0;
	for (size_t i = 0; i < LENGTH(plans); i++)
		if (strcmp(plans[i].file, name) == 0)
			good = good && names_indexes(text, &plans[i]);
	if (!good)
		fail_msg("lib/sql/%s.sql, %s:\n%s", name, mode, text);
	free(text);
}

static bool reads_only(const char *name)
{
	for (size_t i = 0; i < LENGTH(reading); i++)
		if (strncmp(name, reading[i], strlen(reading[i])) == 0)
			return true;
	return false;
}

/* Under the settings that it is sent with: two timeouts, notify, hash joins. */
static void check_file(void *arg, const char *name)
{
	static const char *const modes[] = { "force_generic_plan", "force_custom_plan" };
	struct scenario *s = arg;
	const char *settings = reads_only(name) ? "settings_scan" : "settings";
	char *arguments;

	if (strncmp(name, "begin", 5) == 0 || strncmp(name, "settings", 8) == 0)
		return;
	for (size_t mode = 0; mode < LENGTH(modes); mode++) {
		sql(s->admin, "begin");
		arguments = sql_text(
			s->admin,
			"select string_agg(case when i <= 2 then $$'10000'$$ else $$'off'$$ end, ',') "
			"from pg_prepared_statements, "
			"generate_series(1, cardinality(parameter_types)) i where name = '%s'",
			settings);
		sql(s->admin, "execute %s(%s); set local plan_cache_mode = %s", settings, arguments,
		    modes[mode]);
		check_plan(s, name, modes[mode]);
		sql(s->admin, "rollback");
		free(arguments);
	}
}

static void every_statement_uses_its_index(void **state)
{
	struct scenario *s = *state;

	load(s);
	each_file(prepare_file, s);
	each_file(check_file, s);
	/* and every file that is named here is there */
	for (size_t i = 0; i < LENGTH(plans); i++)
		assert_sql(s->admin, "1",
			   "select count(*) from pg_prepared_statements where name = '%s'",
			   plans[i].file);
}

/* Under the settings of readings; the scan of all runs is there in a generic plan, and not begun. */
static void a_list_of_unfinished_runs_reads_no_finished_one(void **state)
{
	static const char *const modes[] = { "force_generic_plan", "force_custom_plan" };
	struct scenario *s = *state;

	load(s);
	each_file(prepare_file, s);
	sql(s->admin, "begin; execute settings_scan('10000', '10000')");
	for (size_t mode = 0; mode < LENGTH(modes); mode++) {
		PGresult *result;
		bool found = false;

		sql(s->admin, "set local plan_cache_mode = %s", modes[mode]);
		result = PQexec(
			s->admin,
			"explain (analyze, costs off, timing off, summary off) execute "
			"list_runs(array['pending', 'running', 'waiting'], null, null, null, "
			"null, false, null, 50, 'lease_expired')");
		assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
		for (int i = 0; i < PQntuples(result); i++) {
			const char *line = PQgetvalue(result, i, 0);

			if (strstr(line, "Seq Scan on runs") && !strstr(line, "never executed"))
				fail_msg("%s: %s", modes[mode], line);
			found = found || strstr(line, "runs_running_idx");
		}
		assert_true(found);
		PQclear(result);
	}
	sql(s->admin, "rollback");
}

/* A renewal has no transaction of its own, so its plan must be good under any settings. */
static void a_renewal_uses_its_index_under_the_servers_own_settings(void **state)
{
	struct scenario *s = *state;

	load(s);
	each_file(prepare_file, s);
	check_plan(s, "renew", "no settings");
	check_plan(s, "submit", "no settings");
}

/* -- statistics from before the leases ------------------------------------------------------------ */

/* How many rows all steps of a plan may handle: one that reads an index whole handles far more. */
struct row_limit {
	const char *file, *hash_joins, *arguments;
	int rows;
};

static const struct row_limit limits[] = {
	{ "look", NULL, "runs('over'), each_int(null), each(null), 3, 'lease_expired'", 1500 },
	{ "look", NULL, "runs('over'), each_int(1), each('w'), 0, ''", 1500 },
	{ "mark_cancel", NULL, "runs('over')", 10000 },
	{ "close_and_move", NULL,
	  "runs('over'), each_int(1), each(null), each('lease_expired'), each(null), each(null), "
	  "each('pending'), array_fill(false, array[50]), each_int(0), each(null), each(null), "
	  "each('running'), each('lease_expired'), 'running'",
	  10000 },
	{ "open_attempts", NULL,
	  "runs('over'), each_int(2), each('w2'), each_int(1000), each(null), 'running', "
	  "each('pending')",
	  20000 },
	{ "renew", NULL, "'held0007', 1, 'w', 1000", 30 },
	{ "renew_many", "on", "runs('held'), each_int(1), each('w'), each_int(1000)", 10000 },
	{ "lock_next", NULL, "null", 50 },
	{ "lock_next_running", NULL, "null", 50 },
	/* none of them is to be looked at, and none is kept to be read again */
	{ "scan_page", NULL, "'', 5000, 1000", 25000 },
	{ "scan_orphans", NULL, "'', 5000, true", 150000 },
};

/*
 * 10,000 leases, half of them over, each with an execution under way, that the statistics know
 * nothing of: the planner believes that the indexes on what is open are empty.
 */
static void load_unknown(struct scenario *s, bool analyzed)
{
	sql(s->admin, "alter table lease.runs set (autovacuum_enabled = off); "
		      "alter table lease.run_attempts set (autovacuum_enabled = off); "
		      "alter table lease.node_executions set (autovacuum_enabled = off)");
	if (analyzed) {
		load(s);
		sql(s->admin, "update lease.run_attempts set finished_at = clock_timestamp(), "
			      "outcome = 'completed' where outcome is null; "
			      "update lease.runs set status = 'completed', state_version = 2, "
			      "finished_at = clock_timestamp() where status = 'running'");
		sql(s->admin, "vacuum full analyze lease.runs");
		sql(s->admin, "vacuum full analyze lease.run_attempts");
		sql(s->admin, "vacuum analyze lease.node_executions");
	}
	sql(s->admin,
	    "insert into lease.runs (run_id, status) "
	    "select k || to_char(i, 'FM0000'), 'running' "
	    "from unnest(array['held', 'over']) k, generate_series(1, 5000) i; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() "
	    " + case when run_id < 'over' then interval '1 h' else interval '0' end "
	    "from lease.runs where status = 'running'; "
	    "with n as (insert into lease.nodes (run_id, node_id, state) "
	    "select run_id, 'n', 'running' from lease.runs where status = 'running') "
	    "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no, status) "
	    "select run_id, 'n', 1, 1, 'running' from lease.runs where status = 'running'; "
	    "insert into lease.runs (run_id, status) values ('an orphan', 'running'), ('p', 'pending')");
}

static void check_limit(struct scenario *s, const struct row_limit *limit, const char *mode)
{
	long long rows;

	if (reads_only(limit->file))
		sql(s->admin, "execute settings_scan('60000', '60000')");
	else
		sql(s->admin,
		    "execute settings('60000', '60000', 'off', '%s'); set local plan_cache_mode = %s",
		    limit->hash_joins ? limit->hash_joins : "off", mode);
	rows = sql_number(s->admin, "select pg_temp.rows_handled($$%s(%s)$$)", limit->file,
			  limit->arguments);
	if (rows > limit->rows)
		fail_msg("lib/sql/%s.sql handles %lld rows, more than %d, with %s", limit->file,
			 rows, limit->rows, mode);
}

static void check_limits(struct scenario *s, bool analyzed, const char *mode)
{
	load_unknown(s, analyzed);
	each_file(prepare_file, s);
	sql(s->admin, "create function runs(kind text) returns text[] language sql as "
		      "$$select array_agg(kind || to_char(i, 'FM0000') order by i) "
		      "from generate_series(1, 50) i$$; "
		      "create function each(value text) returns text[] language sql as "
		      "$$select array_fill(value, array[50])$$; "
		      "create function each_int(value int) returns int[] language sql as "
		      "$$select array_fill(value, array[50])$$");
	sql(s->admin,
	    "create function pg_temp.rows_handled(statement text) returns int8 language plpgsql as "
	    "$body$ declare plan jsonb; begin "
	    "execute 'explain (analyze, format json) execute ' || statement into plan; "
	    "return (select sum((n->>'Actual Loops')::numeric * ((n->>'Actual Rows')::numeric "
	    "+ coalesce((n->>'Rows Removed by Filter')::numeric, 0) "
	    "+ coalesce((n->>'Rows Removed by Join Filter')::numeric, 0))) "
	    "from jsonb_path_query(plan, 'strict $.**') n where jsonb_typeof(n) = 'object' "
	    "and n ? 'Actual Rows'); end $body$");
	for (size_t i = 0; i < LENGTH(limits); i++) {
		sql(s->admin, "begin");
		check_limit(s, &limits[i], mode);
		/* the attempts that open_attempts needs closed */
		sql(s->admin,
		    strcmp(limits[i].file, "close_and_move") == 0 ? "commit" : "rollback");
	}
}

static void no_statement_reads_an_index_whole_with_old_statistics(void **state)
{
	check_limits(*state, true, "auto");
}

static void no_statement_reads_an_index_whole_without_statistics(void **state)
{
	check_limits(*state, false, "auto");
}

/* What stays prepared keeps a plan that was made when the statistics were still older. */
static void no_kept_plan_reads_an_index_whole_with_old_statistics(void **state)
{
	check_limits(*state, true, "force_generic_plan");
}

static void no_kept_plan_reads_an_index_whole_without_statistics(void **state)
{
	check_limits(*state, false, "force_generic_plan");
}

/* How many rows the close of attempt `number` of run r gives; `owner` is NULL for a lost one. */
static long long close_rows(struct scenario *s, int number, const char *owner)
{
	char *rest = sql_text(
		s->admin,
		"select coalesce(string_agg(case p when 'text[]' then ', array[null]::text[]' "
		"else ', null' end, '' order by i), '') from pg_prepared_statements, "
		"unnest(parameter_types::text[]) with ordinality p (p, i) "
		"where name = 'close_and_move' and i > 11");
	char *statement = NULL;
	PGresult *result;
	long long rows;

	if (asprintf(
		    &statement,
		    "execute close_and_move(array['r'], array[%d], array[%s%s%s]::text[], "
		    "array['failed'], array[null]::text[], array[null]::text[], array[null]::text[], "
		    "array[false], array[0], array[null]::text[], array[null]::text[]%s)",
		    number, owner ? "'" : "", owner ? owner : "null", owner ? "'" : "", rest) < 0)
		fail_msg("out of memory");
	result = PQexec(s->admin, statement);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail_msg("%s: %s", statement, PQresultErrorMessage(result));
	rows = PQntuples(result);
	PQclear(result);
	free(statement);
	free(rest);
	return rows;
}

/* Whatever was decided before: the statement itself closes nothing that is not to be closed. */
static void the_close_repeats_its_whole_guard(void **state)
{
	struct scenario *s = *state;

	take_run(s, "r", "w");
	each_file(prepare_file, s);
	assert_int_equal(close_rows(s, 1, "x"), 0); /* another's */
	assert_int_equal(close_rows(s, 2, "w"), 0); /* another number */
	assert_int_equal(close_rows(s, 1, NULL), 0); /* lost, but its lease holds */
	assert_run(s, "r", "running v2 | 1 w open");
	assert_int_equal(close_rows(s, 1, "w"), 1);
	assert_int_equal(close_rows(s, 1, "w"), 0); /* closed */
	assert_int_equal(close_rows(s, 1, NULL), 0);
	assert_granted(claim(s->worker, "r", "w2", LONG, NULL));
	end_lease(s, "r");
	assert_int_equal(close_rows(s, 2, NULL), 1);
	assert_run(s, "r", "running v2 | 1 w failed | 2 w2 failed");
}

static void what_is_embedded_is_what_stands_in_the_file(void **state)
{
	char *renew = statement_of("renew"), *look = statement_of("look");

	(void)state;
	assert_string_equal(lease_sql_renew, renew);
	assert_string_equal(lease_sql_look, look);
	free(renew);
	free(look);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_embedded_is_what_stands_in_the_file),
		store_test(every_file_is_one_statement_that_the_server_takes),
		store_test(the_close_repeats_its_whole_guard),
		store_test_alone(every_statement_uses_its_index),
		store_test_alone(a_list_of_unfinished_runs_reads_no_finished_one),
		store_test_alone(no_statement_reads_an_index_whole_with_old_statistics),
		store_test_alone(no_statement_reads_an_index_whole_without_statistics),
		store_test_alone(no_kept_plan_reads_an_index_whole_with_old_statistics),
		store_test_alone(no_kept_plan_reads_an_index_whole_without_statistics),
		store_test_alone(a_renewal_uses_its_index_under_the_servers_own_settings),
	};

	return cmocka_run_group_tests_name("sql", tests, NULL, scenario_end);
}
