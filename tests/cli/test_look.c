/*
 * leasectl runs, sweep --dry-run, audit, status --watch and release, end to end.
 *
 * What is said about a sweep is compared with what a sweep then does; JSON is read by PostgreSQL.
 */
#include "worker.h"

#include <sysexits.h>

static struct process ran;

#define leasectl(code, ...)                                                                        \
	do {                                                                                       \
		start(&ran, __VA_ARGS__);                                                          \
		ends_with(code, &ran);                                                             \
	} while (0)

#define out_has(part) out_has_at(part, __FILE__, __LINE__)
static void out_has_at(const char *part, const char *file, int line)
{
	if (strstr(process_output(&ran), part))
		return;
	print_error("\"%s\" is not in:\n%s\n", part, process_output(&ran));
	_fail(file, line);
}

/* The value of an SQL expression over the JSON document j that came out. */
#define json_is(expected, expression) json_is_at(expected, expression, __FILE__, __LINE__)
static void json_is_at(const char *expected, const char *expression, const char *file, int line)
{
	const char *values[] = { process_output(&ran) };
	char statement[1024];
	PGresult *result;

	snprintf(statement, sizeof(statement), "select (%s)::text from (select $1::jsonb as j) d",
		 expression);
	result = PQexecParams(s->admin, statement, 1, NULL, values, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK ||
	    strcmp(PQgetvalue(result, 0, 0), expected) != 0) {
		print_error("%s: \"%s\" instead of \"%s\"%s\n%s\n", expression,
			    PQntuples(result) ? PQgetvalue(result, 0, 0) : "", expected,
			    PQresultErrorMessage(result), values[0]);
		_fail(file, line);
	}
	PQclear(result);
}

#define RUN_IDS "(select string_agg(r->>'run_id', ' ') from jsonb_array_elements(j->'runs') r)"

static void submit_for(const char *run_id, const char *tenant_id, int64_t deadline)
{
	assert_granted(lease_submit(s->worker,
				    &(struct lease_submission){ .run_id = run_id,
								.tenant_id = tenant_id,
								.deadline = deadline },
				    NULL, NULL, &last_error));
}

/* -- runs ------------------------------------------------------------------------------------------ */

static void runs_are_filtered(void **state)
{
	struct lease_token token;

	(void)state;
	leasectl(0, "runs");
	out_has("no runs\n");
	submit_for("pending", "a", 0);
	submit_for("waiting", "a", 0);
	assert_granted(claim(s->worker, "waiting", "w:1", LONG, &(struct lease_grant){ 0 }));
	token = token_of("waiting", 1, "w:1");
	assert_granted(suspend(s->worker, &token, NULL));
	token = take_run(s, "failed", "v:2");
	assert_granted(finish(s->worker, &token, LEASE_RUN_FAILED, "boom", NULL));
	take_run(s, "held", "w:3");
	take_run(s, "over", "wide:4");
	end_lease(s, "over");

	leasectl(0, "runs", "--json");
	json_is("over held failed waiting pending", RUN_IDS);
	json_is("1 0 boom",
		"j->'runs'->2->>'attempts' || ' ' || (j->'runs'->2->>'losses') || ' ' || "
		"(j->'runs'->2->>'terminal_error_code')");
	json_is("1 w:3", "j->'runs'->1->>'open_attempt_no' || ' ' || (j->'runs'->1->>'owner')");
	leasectl(0, "runs", "--json", "--status", "pending,waiting");
	json_is("waiting pending", RUN_IDS);
	leasectl(0, "runs", "--json", "--status", "failed");
	json_is("failed", RUN_IDS);
	leasectl(0, "runs", "--json", "--status", "running,failed");
	json_is("over held failed", RUN_IDS);
	leasectl(0, "runs", "--json", "--tenant", "a");
	json_is("waiting pending", RUN_IDS);
	leasectl(0, "runs", "--json", "--owner", "w");
	json_is("held", RUN_IDS);
	leasectl(0, "runs", "--json", "--owner", "wide:4");
	json_is("over", RUN_IDS);
	leasectl(0, "runs", "--json", "--error", "boom");
	json_is("failed", RUN_IDS);
	leasectl(0, "runs", "--json", "--expired");
	json_is("over", RUN_IDS);
	sql(s->admin, "insert into lease.runs (run_id, tenant_id, created_at) "
		      "values ('old', 'a', now() - interval '1 day')");
	leasectl(0, "runs", "--json", "--tenant", "a");
	json_is("waiting pending old", RUN_IDS);
	leasectl(0, "runs", "--json", "--created-within", "1h", "--tenant", "a");
	json_is("waiting pending", RUN_IDS);
	leasectl(0, "runs", "--status", "running");
	out_has("lease over for ");
	out_has("lease ends in ");
	leasectl(EX_USAGE, "runs", "--status", "running,done");
	said(&ran, "--status: 'done' is none");
}

static void runs_are_paged(void **state)
{
	(void)state;
	/* at one time: then by run_id */
	sql(s->admin, "insert into lease.runs (run_id, created_at) select 'run-' || n, now() "
		      "from generate_series(1, 5) n");
	leasectl(0, "runs", "--json", "--limit", "2");
	json_is("run-5 run-4", RUN_IDS);
	said(&ran, "--after 'run-4' goes on");
	leasectl(0, "runs", "--json", "--limit", "2", "--after", "run-4");
	json_is("run-3 run-2", RUN_IDS);
	leasectl(0, "runs", "--json", "--limit", "2", "--after", "run-2");
	json_is("run-1", RUN_IDS);
	assert_string_equal(process_errors(&ran), "");
}

/* -- sweep --dry-run ------------------------------------------------------------------------------- */

/* Runs of all kinds that a sweep has to do with, and some that it has not. */
static void make_scene(void)
{
	struct lease_token token;

	scenario_empty(s);
	take_run(s, "held", "w1");
	take_run(s, "over", "w2");
	take_run(s, "cancelled", "w3");
	assert_granted(request_cancel(s->worker, "cancelled", 0, NULL));
	submit_for("late", NULL, 1);
	submit_for("pending", NULL, 0);
	token = take_run(s, "done", "w4");
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	/* lost once before, and now again */
	take_run(s, "twice", "w5");
	end_lease(s, "twice");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_granted(claim(s->worker, "twice", "w6", LONG, &(struct lease_grant){ 0 }));
	/* without an open attempt, and one that never had any */
	take_run(s, "orphan", "w7");
	end_lease(s, "orphan");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	sql(s->admin, "insert into lease.runs (run_id, status) values ('legacy', 'running')");
	end_lease(s, "over");
	end_lease(s, "cancelled");
	end_lease(s, "twice");
	submit_for("later", NULL, 1);
}

/* What was said into a table, then a sweep: each run is as said, and no other has changed. */
static void a_dry_run_says_what_a_sweep_does(void **state)
{
	static const struct {
		enum lease_policy policy;
		const char *losses; /* NULL: no limit */
	} cases[] = {
		{ LEASE_POLICY_RECORD, NULL },
		{ LEASE_POLICY_FAIL, NULL },
		{ LEASE_POLICY_REQUEUE, NULL },
		{ LEASE_POLICY_REQUEUE, "2" },
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(cases); i++) {
		const char *policy = lease_policy_name(cases[i].policy);
		const char *values[1];

		make_scene();
		sql(s->admin,
		    "drop table if exists said, before; create temp table before as "
		    "select run_id::text, status, state_version, (select count(*) from "
		    "lease.run_attempts a where a.run_id = r.run_id and finished_at is null) as open "
		    "from lease.runs r");
		if (cases[i].losses)
			leasectl(0, "sweep", "--dry-run", "--json", "--policy", policy,
				 "--max-lease-losses", cases[i].losses);
		else
			leasectl(0, "sweep", "--dry-run", "--json", "--policy", policy);
		values[0] = process_output(&ran);
		sql(s->admin, "create temp table said (run_id text, attempt_no int, "
			      "moved bool, status text, error_code text)");
		sql(s->admin,
		    "insert into said select r.* from jsonb_to_recordset('%s'::jsonb->'runs') "
		    "as r (run_id text, attempt_no int, moved bool, status text, error_code text)",
		    values[0]);
		/* nothing has happened yet */
		assert_sql(s->admin, "0",
			   "select count(*) from before b join lease.runs r using (run_id) "
			   "where b.state_version <> r.state_version");
		assert_true(sql_number(s->admin, "select count(*) from said") >= 4);
		assert_granted(reconcile(s->worker, cases[i].policy,
					 cases[i].losses ? atoi(cases[i].losses) : 0, NULL));
		assert_sql(
			s->admin, NULL,
			"select string_agg(run_id || ' ' || r.status, ', ') "
			"from lease.runs r join before b using (run_id) "
			"left join said s using (run_id) where r.status <> coalesce(s.status, "
			"b.status) or (b.status <> r.status) <> coalesce(s.moved, false) or "
			"(s.attempt_no is not null) <> (b.open > (select count(*) from "
			"lease.run_attempts a where a.run_id = r.run_id and finished_at is null)) "
			"or (s.moved and s.error_code <> coalesce(r.terminal_error_code, s.error_code))");
	}
}

static void a_dry_run_for_people_names_each_run(void **state)
{
	(void)state;
	take_run(s, "over", "w2");
	end_lease(s, "over");
	leasectl(0, "sweep", "--dry-run");
	out_has("stays running");
	out_has("policy record: 1 attempts would be closed, 0 runs moved\n");
	leasectl(EX_USAGE, "sweep");
	said(&ran, "only with --dry-run");
	leasectl(EX_USAGE, "sweep", "--dry-run", "--policy", "x");
	leasectl(EX_USAGE, "sweep", "--dry-run", "--max-lease-losses", "3");
}

/* More than one page of runs. */
static void a_dry_run_has_no_end_of_its_own(void **state)
{
	(void)state;
	sql(s->admin,
	    "insert into lease.runs (run_id, status) select 'r' || n, 'running' "
	    "from generate_series(1, 1201) n;"
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select 'r' || n, 1, 'w', now() from generate_series(1, 1201) n");
	leasectl(0, "sweep", "--dry-run", "--json", "--policy", "requeue");
	json_is("1201 1201", "(select count(*) || ' ' || count(distinct r->>'run_id') from "
			     "jsonb_array_elements(j->'runs') r where r->>'status' = 'pending')");
}

static void the_policy_comes_from_the_configuration(void **state)
{
	char *path = trace_path("daemon.yaml"), *content;
	char *program = test_program("leasectl");

	(void)state;
	take_run(s, "over", "w2");
	end_lease(s, "over");
	assert_true(asprintf(&content,
			     "databases:\n  - name: one\n    conninfo: \"%s\"\n"
			     "    policy: requeue\n    max_lease_losses: 1\n",
			     s->conninfo) > 0);
	write_file(path, content);
	process_start(&ran, ((char *[]){ program, "sweep", "--dry-run", "--config", path, NULL }),
		      NULL);
	ends_with(0, &ran);
	out_has("lease_losses_exhausted");
	out_has("policy requeue: 1 attempts would be closed, 1 runs moved\n");
	free(program);
	free(content);
	free(path);
}

/* -- audit ----------------------------------------------------------------------------------------- */

static void an_audit_finds_what_was_planted_and_nothing_else(void **state)
{
	struct lease_token token;

	(void)state;
	make_scene();
	token = token_of("held", 1, "w1");
	assert_granted(lease_node_start(
		s->worker, &(struct lease_node_start){ .token = token, .node_id = "n" },
		&(struct lease_node_execution){ 0 }, &last_error));
	/* ended without ever having had an attempt, and says so */
	assert_granted(request_cancel(s->worker, "pending", 0, NULL));
	leasectl(0, "audit");
	out_has(" 1 legacy, 0 unexplained\n");
	sql(s->admin, "alter table lease.runs disable trigger user;"
		      "alter table lease.nodes disable trigger user;"
		      "update lease.runs set status = 'running', finished_at = null "
		      "where run_id = 'done';"
		      "update lease.nodes set state = 'succeeded'");
	leasectl(EX_DATAERR, "audit", "--json");
	json_is("2 1", "jsonb_array_length(j->'unexplained') || ' ' || (j->>'legacy')");
	json_is("done running 1 completed the newest attempt does not lead to this status",
		"(select concat_ws(' ', u->>'run_id', u->>'node_id', u->>'status', u->>'newest_no', "
		"u->>'newest_outcome', u->>'reason') from jsonb_array_elements(j->'unexplained') u "
		"where u->>'run_id' = 'done')");
	json_is("held n succeeded 1 running",
		"(select concat_ws(' ', u->>'run_id', u->>'node_id', u->>'status', u->>'newest_no', "
		"u->>'newest_outcome') from jsonb_array_elements(j->'unexplained') u "
		"where u->>'run_id' = 'held')");
	leasectl(EX_DATAERR, "audit");
	out_has("2 unexplained\n");
	said(&ran, "the facts do not explain everything");
}

static void an_audit_reads_all_pages(void **state)
{
	(void)state;
	sql(s->admin, "insert into lease.runs (run_id, status) select 'r' || n, 'running' "
		      "from generate_series(1, 10001) n");
	leasectl(0, "audit", "--json");
	json_is("10001 10001", "j->>'runs' || ' ' || (j->>'legacy')");
}

/* -- status --watch -------------------------------------------------------------------------------- */

static void watching_shows_what_happens(void **state)
{
	struct lease_token token;

	(void)state;
	start(&ran, "status", "--watch", "--json", "--every", "100ms");
	process_wait_text(&ran, "\"since\":{", TEST_PATIENCE_MS);
	token = take_run(s, "r", "w");
	process_wait_text(&ran, "\"submitted\":1,", TEST_PATIENCE_MS);
	process_wait_text(&ran, "\"opened\":1,", TEST_PATIENCE_MS);
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	process_wait_text(&ran, "\"completed\":1,", TEST_PATIENCE_MS);
	process_signal(&ran, SIGTERM);
	ends_with(128 + SIGTERM, &ran);
	leasectl(EX_USAGE, "status", "--every", "1s");
	leasectl(EX_USAGE, "status", "--watch", "--every", "1ms");
}

static void watching_goes_on_over_an_outage(void **state)
{
	(void)state;
	start(&ran, "status", "--watch", "--json", "--every", "100ms");
	process_wait_text(&ran, "\"since\":{", TEST_PATIENCE_MS);
	shut_out();
	process_wait_text(&ran, "\"error\":\"", TEST_PATIENCE_MS);
	set_connections("true");
	submit_for("after", NULL, 0);
	process_wait_text(&ran, "\"runs\":{\"pending\":1,", TEST_PATIENCE_MS);
}

static void watching_shows_all_databases_of_the_configuration(void **state)
{
	char *path = trace_path("daemon.yaml"), *content;
	char *program = test_program("leasectl");

	(void)state;
	assert_true(asprintf(&content,
			     "databases:\n  - name: one\n    conninfo: \"%s\"\n"
			     "  - name: two\n    conninfo: \"%s\"\n",
			     s->conninfo, s->conninfo) > 0);
	write_file(path, content);
	process_start(&ran,
		      ((char *[]){ program, "status", "--watch", "--every", "100ms", "--config",
				   path, NULL }),
		      NULL);
	process_wait_text(&ran, "\none ", TEST_PATIENCE_MS);
	process_wait_text(&ran, "\ntwo ", TEST_PATIENCE_MS);
	free(program);
	free(content);
	free(path);
}

/* -- release --------------------------------------------------------------------------------------- */

static void an_attempt_is_released_by_its_token(void **state)
{
	(void)state;
	take_run(s, "r", "w:1");
	leasectl(EX_DATAERR, "release", "--attempt", "1", "--owner", "w:2", "r");
	said(&ran, "refused (not_owner): it has no such attempt of this owner");
	leasectl(0, "release", "--attempt", "1", "--owner", "w:1", "--delay", "1h", "--error",
		 "later", "r");
	run_is("r", "pending v3 | 1 retry_released later");
	assert_sql(s->admin, "t", "select not_before > now() + interval '50 min' from lease.runs");
	leasectl(0, "release", "--attempt", "1", "--owner", "w:1", "r");
	out_has("had been released already");
	take_run(s, "over", "w:3");
	end_lease(s, "over");
	leasectl(EX_DATAERR, "release", "--attempt", "1", "--owner", "w:3", "over");
	said(&ran, "refused (expired)");
	leasectl(EX_USAGE, "release", "r");
	said(&ran, "whose lease?");
	leasectl(EX_USAGE, "release");
	leasectl(EX_USAGE, "release", "--attempt", "4294967297", "--owner", "w", "r");
}

static void a_command_knows_its_token(void **state)
{
	char *program = test_program("leasectl"), *script;

	(void)state;
	submit_for("r", NULL, 0);
	assert_true(asprintf(&script, "%s release -d '%s' --error later", program, s->conninfo) >
		    0);
	exec_ends(76, "r", script);
	run_is("r", "pending v3 | 1 retry_released later");
	free(script);
	free(program);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		worker_test(runs_are_filtered),
		worker_test(runs_are_paged),
		worker_test(a_dry_run_says_what_a_sweep_does),
		worker_test(a_dry_run_for_people_names_each_run),
		worker_test(a_dry_run_has_no_end_of_its_own),
		worker_test(the_policy_comes_from_the_configuration),
		worker_test_alone(an_audit_finds_what_was_planted_and_nothing_else),
		worker_test(an_audit_reads_all_pages),
		worker_test(watching_shows_what_happens),
		worker_test(watching_goes_on_over_an_outage),
		worker_test(watching_shows_all_databases_of_the_configuration),
		worker_test(an_attempt_is_released_by_its_token),
		worker_test(a_command_knows_its_token),
	};
	const char *filter = getenv("TEST_FILTER");

	if (filter)
		cmocka_set_test_filter(filter);
	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
