/*
 * What the database itself refuses about runtime facts, to anybody; what its views find and show;
 * what each role may do; and the whole story of a run, read back.
 */
#include "facts.h"

/* -- a run with a bit of everything ------------------------------------------------------------ */

/*
 * Two attempts, the first one lost: node "n" failed and was lost, then succeeded; node "open" runs;
 * a checkpoint and a change of plan; contents, operations.
 */
static struct lease_grant make_story(PGconn *conn)
{
	struct lease_grant grant = submit_and_claim(conn, "run");

	register_content(conn, "file:///input");
	register_content(conn, "file:///output");
	register_content(conn, "file:///nobody-uses-it");
	expect(0, lease_node_start(conn,
				   &(struct lease_node_start){ .token = grant.token,
							       .node_id = "n",
							       .operation_id = "op",
							       .input_ref = "file:///input",
							       .trace_id = "trace-n" },
				   NULL, &failure));
	expect(0, lease_node_finish(conn,
				    &(struct lease_node_finish){ .token = grant.token,
								 .node_id = "n",
								 .execution_no = 1,
								 .status = LEASE_EXECUTION_FAILED,
								 .normalized_error = "timeout",
								 .error_message = "no answer" },
				    NULL, &failure));
	start(conn, &grant.token, "n", "op");
	let_lease_end(conn, "run");
	reconcile(conn, LEASE_POLICY_REQUEUE);
	grant = claim(conn, "run", "worker-2");
	start(conn, &grant.token, "n", "op");
	expect(0,
	       lease_node_finish(conn,
				 &(struct lease_node_finish){ .token = grant.token,
							      .node_id = "n",
							      .execution_no = 3,
							      .status = LEASE_EXECUTION_SUCCEEDED,
							      .output_ref = "file:///output" },
				 NULL, &failure));
	expect(0,
	       lease_checkpoint_record(conn,
				       &(struct lease_checkpoint){ .token = grant.token,
								   .checkpoint_id = "c-1",
								   .content_ref = "file:///output",
								   .expected_version = 4 },
				       NULL, &failure));
	expect(0, lease_plan_change(conn, &grant.token, 5, 0, NULL, &failure));
	start(conn, &grant.token, "open", NULL);
	return grant;
}

/* All facts as one text: what a refused statement must leave as it was. */
static char *all_facts(PGconn *conn)
{
	return sql_text(
		conn,
		"select concat_ws(E'\\n', "
		"(select string_agg(t::text, ';' order by t::text) from lease.runs t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.run_attempts t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.nodes t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.node_executions t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.operations t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.contents t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.checkpoints t), "
		"(select string_agg(t::text, ';' order by t::text) from lease.run_events t))");
}

/* -- guards ------------------------------------------------------------------------------------ */

/* Refused by a guard or by a foreign key, which comes first where there is one. */
static void assert_refused(PGconn *conn, const char *who, const char *statement)
{
	PGresult *result = PQexec(conn, statement);
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	if (!state || (strcmp(state, "23001") != 0 && strcmp(state, "23503") != 0))
		fail_msg("%s as %s: %s %s", statement, who, state ? state : "accepted",
			 PQresultErrorMessage(result));
	PQclear(result);
}

/* Each column set to itself, which changes nothing, and deletes and truncates. */
static void assert_immutable(PGconn *conn, const char *who, const char *table, const char *where)
{
	PGresult *columns;
	char statement[1024];

	snprintf(statement, sizeof(statement),
		 "select quote_ident(column_name) from information_schema.columns "
		 "where table_schema = 'lease' and table_name = '%s' and is_identity = 'NO'",
		 table);
	columns = PQexec(conn, statement);
	assert_true(PQntuples(columns) >= 4);
	for (int i = 0; i < PQntuples(columns); i++) {
		const char *column = PQgetvalue(columns, i, 0);

		snprintf(statement, sizeof(statement), "update lease.%s set %s = %s where %s",
			 table, column, column, where);
		assert_refused(conn, who, statement);
	}
	PQclear(columns);
	snprintf(statement, sizeof(statement), "delete from lease.%s where %s", table, where);
	assert_refused(conn, who, statement);
	snprintf(statement, sizeof(statement), "truncate lease.%s cascade", table);
	assert_refused(conn, who, statement);
}

static const struct anybody {
	const char *who, *become;
} anybody[] = {
	{ "a superuser", "reset role; set session_replication_role = origin" },
	{ "the tables' owner", "set role lease_owner" },
	{ "a replication role", "reset role; set session_replication_role = replica" },
	{ "a local replication role", "reset role; set session_replication_role = local" },
};

static void closed_facts_cannot_be_changed_deleted_or_truncated_by_anybody(void **state)
{
	struct fixture *f = *state;
	char *before, *after;

	make_story(f->conn);
	before = all_facts(f->conn);
	for (size_t i = 0; i < LENGTH(anybody); i++) {
		sql(f->conn, "%s", anybody[i].become);
		assert_immutable(f->conn, anybody[i].who, "node_executions",
				 "finished_at is not null");
		assert_immutable(f->conn, anybody[i].who, "operations", "true");
		assert_immutable(f->conn, anybody[i].who, "contents", "true");
		assert_immutable(f->conn, anybody[i].who, "contents",
				 "content_ref = 'file:///nobody-uses-it'");
		assert_immutable(f->conn, anybody[i].who, "checkpoints", "true");
		assert_immutable(f->conn, anybody[i].who, "run_events", "true");
		assert_immutable(f->conn, anybody[i].who, "run_attempts",
				 "finished_at is not null");
		/* an open execution is not deleted either, nor does it become another */
		assert_refused(f->conn, anybody[i].who,
			       "delete from lease.node_executions where finished_at is null");
		assert_refused(
			f->conn, anybody[i].who,
			"update lease.node_executions set attempt_no = 9 where finished_at is "
			"null");
		assert_refused(
			f->conn, anybody[i].who,
			"update lease.node_executions set run_attempt_no = 1 where finished_at is "
			"null");
		assert_refused(
			f->conn, anybody[i].who,
			"update lease.node_executions set operation_id = 'op' where finished_at is "
			"null");
		assert_refused(f->conn, anybody[i].who,
			       "update lease.node_executions set input_ref = 'file:///input' "
			       "where finished_at is null");
		assert_refused(
			f->conn, anybody[i].who,
			"update lease.node_executions set started_at = started_at - interval '1 s' "
			"where finished_at is null");
		/* and history is not made up */
		assert_refused(f->conn, anybody[i].who,
			       "insert into lease.node_executions (run_id, node_id, attempt_no, "
			       "run_attempt_no, "
			       "status, finished_at) values ('run', 'n', 4, 2, 'succeeded', "
			       "clock_timestamp())");
		assert_refused(
			f->conn, anybody[i].who,
			"insert into lease.contents values ('file:///input', 'sha256:' || "
			"repeat('0', 64), "
			"'t', 1, 1) on conflict (content_ref) do update set hash = excluded.hash");
	}
	sql(f->conn, "reset role; set session_replication_role = origin");
	after = all_facts(f->conn);
	assert_string_equal(after, before);
	free(before);
	free(after);
}

static void node_state_set_by_hand_is_refused(void **state)
{
	struct fixture *f = *state;

	make_story(f->conn);
	for (size_t i = 0; i < LENGTH(anybody); i++) {
		sql(f->conn, "%s", anybody[i].become);
		/* without the version step, and with it */
		sql_fails(f->conn, "23514",
			  "update lease.nodes set state = 'succeeded' where node_id = 'open'");
		sql_fails(
			f->conn, "23001",
			"update lease.nodes set state = 'succeeded', state_version = state_version "
			"+ 1 "
			"where node_id = 'open'");
		sql_fails(
			f->conn, "23001",
			"update lease.nodes set state = 'failed', state_version = state_version + "
			"1 "
			"where node_id = 'n'");
		sql_fails(
			f->conn, "23514",
			"update lease.nodes set state_version = state_version + 2 where node_id = "
			"'n'");
		sql_fails(f->conn, "23514",
			  "update lease.nodes set updated_at = clock_timestamp()");
		sql_fails(f->conn, "23514",
			  "update lease.nodes set state = 'done' where node_id = 'n'");
		/* a node that nobody executed */
		sql_fails(f->conn, "23001",
			  "insert into lease.nodes (run_id, node_id, state) values ('run', 'm', "
			  "'succeeded')");
	}
	sql(f->conn, "reset role; set session_replication_role = origin");
	sql_fails(f->conn, "23503", "delete from lease.nodes where node_id = 'n'");
	assert_sql(f->conn, "n succeeded 6, open running 1",
		   "select string_agg(concat_ws(' ', node_id, state, state_version), ', ' order by "
		   "node_id) "
		   "from lease.nodes");
}

static void executions_hold_together(void **state)
{
	struct fixture *f = *state;

	make_story(f->conn);
	/* a second open one; one number twice; of no attempt; of no node; number 0 */
	sql_fails(f->conn, "23505",
		  "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
		  "values ('run', 'open', 2, 2)");
	sql_fails(f->conn, "23505",
		  "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
		  "values ('run', 'n', 3, 2)");
	sql_fails(f->conn, "23503",
		  "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
		  "values ('run', 'n', 4, 3)");
	sql_fails(f->conn, "23503",
		  "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
		  "values ('run', 'm', 1, 2)");
	sql_fails(f->conn, "23514",
		  "insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
		  "values ('run', 'n', 0, 2)");
	/* words and pairs */
	sql_fails(
		f->conn, "23514",
		"update lease.node_executions set status = 'done', finished_at = clock_timestamp() "
		"where node_id = 'open'");
	sql_fails(f->conn, "23514",
		  "update lease.node_executions set status = 'succeeded' where node_id = 'open'");
	sql_fails(
		f->conn, "23514",
		"update lease.node_executions set finished_at = clock_timestamp() where node_id = "
		"'open'");
	sql_fails(f->conn, "23514",
		  "update lease.node_executions set status = 'failed', finished_at = "
		  "clock_timestamp() "
		  "where node_id = 'open'");
	sql_fails(f->conn, "23514",
		  "update lease.node_executions set status = 'succeeded', finished_at = "
		  "clock_timestamp(), "
		  "normalized_error = 'timeout' where node_id = 'open'");
	sql_fails(f->conn, "23514",
		  "update lease.node_executions set status = 'abandoned', finished_at = "
		  "clock_timestamp(), "
		  "output_ref = 'file:///output' where node_id = 'open'");
	sql_fails(f->conn, "23514",
		  "insert into lease.run_events (kind, run_id) values ('something_else', 'run')");
	/* a run's checkpoint is one of its own */
	submit(f->conn, "other");
	sql_fails(f->conn, "23503",
		  "update lease.runs set current_checkpoint_id = 'c-1', state_version = "
		  "state_version + 1 "
		  "where run_id = 'other'");
	sql_fails(f->conn, "23503",
		  "update lease.runs set current_checkpoint_id = 'c-9', state_version = "
		  "state_version + 1 "
		  "where run_id = 'run'");
	sql_fails(f->conn, "23514",
		  "update lease.runs set current_checkpoint_id = null where run_id = 'run'");
}

/* -- views ------------------------------------------------------------------------------------- */

#define assert_unexplained(conn, expected)                                                         \
	assert_sql(                                                                                \
		conn, expected,                                                                    \
		"select coalesce(string_agg(node_id || ': ' || reason, '; ' order by node_id), "   \
		"'') "                                                                             \
		"from lease.unexplained_nodes")

static void unexplained_nodes_finds_what_was_planted_and_nothing_else(void **state)
{
	struct fixture *f = *state;
	struct lease_story *story;

	f->inconsistent = true;
	make_story(f->conn);
	assert_unexplained(f->conn, "");
	sql(f->conn, "alter table lease.nodes disable trigger user;"
		     "alter table lease.node_executions disable trigger user");

	sql(f->conn, "update lease.nodes set state = 'succeeded' where node_id = 'open'");
	assert_unexplained(f->conn, "open: the newest execution has another status");
	expect(0, lease_read_story(f->conn, "run", &story, &failure));
	assert_string_equal(story->unexplained, "open: the newest execution has another status");
	lease_story_free(story);
	sql(f->conn, "update lease.nodes set state = 'running' where node_id = 'open'");
	assert_unexplained(f->conn, "");

	sql(f->conn, "insert into lease.nodes (run_id, node_id, state) values ('run', 'bare', "
		     "'failed')");
	assert_unexplained(f->conn, "bare: the node has no execution");
	sql(f->conn, "delete from lease.nodes where node_id = 'bare'");

	sql(f->conn,
	    "begin; delete from lease.node_executions where node_id = 'n' and attempt_no = 2");
	assert_unexplained(f->conn, "n: execution numbers have a gap");
	sql(f->conn, "rollback");

	/* open under the first attempt, which is closed */
	sql(f->conn, "begin; update lease.node_executions set run_attempt_no = 1 where node_id = "
		     "'open'");
	assert_unexplained(f->conn, "open: an execution is open under a closed attempt");
	sql(f->conn, "rollback");

	/* open, though newer ones are there: under an open attempt, and under a closed one */
	for (int attempt = 1; attempt <= 2; attempt++) {
		sql(f->conn,
		    "begin; update lease.node_executions set status = 'running', finished_at = "
		    "null, "
		    "normalized_error = null, error_message = null, run_attempt_no = %d "
		    "where node_id = 'n' and attempt_no = 1",
		    attempt);
		assert_unexplained(f->conn, "n: an execution is open that is not the newest");
		sql(f->conn, "rollback");
	}
	assert_unexplained(f->conn, "");
}

static void run_overview_shows_where_each_run_is(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = make_story(f->conn);

	start(f->conn, &grant.token, "a-later-one", NULL);
	submit(f->conn, "never-claimed");
	grant = submit_and_claim(f->conn, "ended");
	start(f->conn, &grant.token, "n", NULL);
	expect(0, end_as(f->conn, &grant.token, LEASE_RUN_FAILED));
	assert_sql(f->conn, "3 3",
		   "select count(*) || ' ' || count(distinct run_id) from lease.run_overview");
	assert_sql(
		f->conn, "running 6 2 c-1 worker-2 2 2 1 {open,a-later-one}",
		"select concat_ws(' ', status, state_version, plan_version, current_checkpoint_id, "
		"split_part(owner, ':', 1), open_attempt_no, attempts, losses, current_nodes) "
		"from lease.run_overview where run_id = 'run'");
	assert_sql(
		f->conn, "t",
		"select o.lease_expires_at = a.lease_expires_at and o.heartbeat_at = "
		"a.heartbeat_at "
		"and o.owner = a.owner from lease.run_overview o join lease.run_attempts a using "
		"(run_id) "
		"where run_id = 'run' and a.finished_at is null");
	assert_sql(f->conn, "pending 1 1 0 0",
		   "select concat_ws(' ', status, state_version, plan_version, owner, "
		   "lease_expires_at, "
		   "attempts, losses, current_nodes) from lease.run_overview where run_id = "
		   "'never-claimed'");
	assert_sql(
		f->conn, "failed 3 1 1 0",
		"select concat_ws(' ', status, state_version, plan_version, owner, "
		"lease_expires_at, "
		"attempts, losses, current_nodes) from lease.run_overview where run_id = 'ended'");
}

/* -- roles ------------------------------------------------------------------------------------- */

static PGconn *connect_as(struct fixture *f, const char *role)
{
	char conninfo[1024];

	snprintf(conninfo, sizeof(conninfo), "%s options='-c role=%s'", f->conninfo, role);
	return test_connect(conninfo);
}

static void read_everything(PGconn *conn)
{
	struct lease_event_batch *batch;
	struct lease_operation operation;
	struct lease_content content;
	struct lease_story *story;

	expect(0, lease_operation_lookup(conn, "op", &operation, &failure));
	assert_int_equal(operation.state, LEASE_OPERATION_SUCCEEDED);
	expect(0, lease_content_lookup(conn, "file:///output", &content, &failure));
	expect(0, lease_read_story(conn, "run", &story, &failure));
	assert_true(story->n_events > 0);
	lease_story_free(story);
	expect(0, lease_events_after(conn, NULL, 1000, &batch, &failure));
	assert_true(batch->n > 0);
	lease_event_batch_free(batch);
	sql(conn, "select * from lease.run_overview; select * from lease.unexplained_nodes");
}

static void worker_role_may_do_what_the_verbs_do_and_no_more(void **state)
{
	static const char *const refused[] = {
		"delete from lease.nodes",
		"delete from lease.node_executions",
		"delete from lease.run_events",
		"truncate lease.run_events",
		"update lease.operations set node_id = node_id",
		"update lease.contents set hash = hash",
		"update lease.checkpoints set content_ref = content_ref",
		"update lease.run_events set kind = kind",
		"update lease.node_executions set started_at = started_at",
		"update lease.node_executions set run_attempt_no = run_attempt_no",
		"update lease.nodes set node_id = node_id",
		"alter table lease.nodes disable trigger node_guard",
		"set session_replication_role = replica",
		/* the database's own: an event with a false txid would never reach a consumer */
		"insert into lease.run_events (kind, run_id, txid) values ('run_moved', 'run', "
		"'1')",
		("insert into lease.run_events (kind, run_id, event_id) overriding system value "
		 "values ('run_moved', 'run', 1)"),
		"insert into lease.run_events (kind, run_id, at) values ('run_moved', 'run', "
		"now())",
		"insert into lease.operations values ('x', 'run', 'n', now())",
	};
	struct fixture *f = *state;
	PGconn *conn = connect_as(f, "lease_worker");
	struct lease_grant grant = submit_and_claim(conn, "first");

	start(conn, &grant.token, "n", "op-first");
	expect(0, fail_as(conn, &grant.token, "n", 1, "timeout", NULL));
	register_content(conn, "file:///first");
	register_content(conn, "file:///first");
	start(conn, &grant.token, "n", "op-first");
	expect(0, succeed_as(conn, &grant.token, "n", 2, NULL));
	expect(0, checkpoint_as(conn, &grant.token, "c-first", 2, NULL));
	expect(0, lease_plan_change(conn, &grant.token, 3, 0, NULL, &failure));
	start(conn, &grant.token, "open", NULL);
	expect(0, release_as(conn, &grant.token, NULL));
	grant = claim(conn, "first", "worker-2");
	start(conn, &grant.token, "open", NULL);
	expect(0, lease_suspend(conn, &grant.token, 0, NULL, &failure));
	expect(0, lease_resume(conn, "first", 0, 0, NULL, &failure));
	grant = claim(conn, "first", "worker-3");
	start(conn, &grant.token, "open", NULL);
	expect(0, lease_request_cancel(conn, "first", 0, 0, NULL, &failure));
	expect(0, end_as(conn, &grant.token, LEASE_RUN_CANCELLED));
	make_story(conn);
	read_everything(conn);
	for (size_t i = 0; i < LENGTH(refused); i++)
		sql_fails(conn, "42501", "%s", refused[i]);
	PQfinish(conn);
}

static void reconciler_role_closes_open_executions_and_no_more(void **state)
{
	static const char *const refused[] = {
		"insert into lease.nodes (run_id, node_id, state) values ('run', 'x', 'running')",
		("insert into lease.node_executions (run_id, node_id, attempt_no, run_attempt_no) "
		 "values ('run', 'n', 9, 1)"),
		"insert into lease.operations values ('x', 'run', 'n')",
		"insert into lease.contents values ('r', 'sha256:' || repeat('a', 64), 't', 1, 1)",
		"insert into lease.checkpoints values ('x', 'run', 1, 1, 1)",
		"update lease.node_executions set output_ref = 'file:///input'",
		"update lease.node_executions set normalized_error = 'timeout'",
		"update lease.runs set current_checkpoint_id = 'c-1'",
		"update lease.run_events set kind = kind",
		"delete from lease.run_events",
		"delete from lease.node_executions",
		"delete from lease.run_attempts",
		"insert into lease.run_events (kind, run_id, txid) values ('run_moved', 'run', "
		"'1')",
	};
	static const enum lease_policy policies[] = { LEASE_POLICY_RECORD, LEASE_POLICY_REQUEUE,
						      LEASE_POLICY_FAIL };
	struct fixture *f = *state;
	PGconn *conn = connect_as(f, "lease_reconciler");
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	lease_sweep_options_init(&options);
	make_story(f->conn);
	for (size_t i = 0; i < LENGTH(policies); i++) {
		char run_id[32];
		struct lease_grant grant;

		snprintf(run_id, sizeof(run_id), "lost-%zu", i);
		grant = submit_and_claim(f->conn, run_id);
		start(f->conn, &grant.token, "n", NULL);
		start(f->conn, &grant.token, "m", run_id);
		let_lease_end(f->conn, run_id);
		options.policy = policies[i];
		expect(0, lease_reconcile_expired_leases(conn, &options, NULL, &figures, &failure));
		assert_int_equal(figures.closed, 1);
		assert_int_equal(figures.skipped, 0);
	}
	assert_sql(
		f->conn, "6 6",
		"select (select count(*) from lease.node_executions where status = 'lease_expired' "
		"and run_id like 'lost-%%') || ' ' || "
		"(select count(*) from lease.nodes where state = 'lease_expired' and run_id like "
		"'lost-%%')");
	read_everything(conn);
	for (size_t i = 0; i < LENGTH(refused); i++)
		sql_fails(conn, "42501", "%s", refused[i]);
	PQfinish(conn);
}

static void reader_role_reads_and_writes_nothing(void **state)
{
	struct fixture *f = *state;
	PGconn *conn = connect_as(f, "lease_reader");
	struct lease_content content = content_of("file:///x");
	struct lease_grant grant = make_story(f->conn);

	read_everything(conn);
	expect(LEASE_E_SERVER, lease_submit(conn, &(struct lease_submission){ .run_id = "x" }, NULL,
					    NULL, &failure));
	assert_string_equal(failure.sqlstate, "42501");
	expect(LEASE_E_SERVER, lease_content_register(conn, &content, NULL, &failure));
	assert_string_equal(failure.sqlstate, "42501");
	expect(LEASE_E_SERVER, start_as(conn, &grant.token, "m", NULL, NULL));
	assert_string_equal(failure.sqlstate, "42501");
	PQfinish(conn);
}

static void everything_in_the_schema_belongs_to_its_owner(void **state)
{
	struct fixture *f = *state;

	assert_sql(f->conn, NULL,
		   "select string_agg(relname, ', ') from pg_class where relnamespace = "
		   "'lease'::regnamespace "
		   "and relkind in ('r', 'v', 'S') and relowner <> 'lease_owner'::regrole");
	assert_sql(f->conn, NULL,
		   "select string_agg(proname, ', ') from pg_proc where pronamespace = "
		   "'lease'::regnamespace "
		   "and (proowner <> case proname when 'remove_runs' then 'lease_remover'::regrole "
		   "else 'lease_owner'::regrole end "
		   "or not coalesce(proconfig, '{}') @> '{\"search_path=pg_catalog, pg_temp\"}')");
	assert_sql(f->conn, NULL,
		   "select string_agg(typname, ', ') from pg_type where typnamespace = "
		   "'lease'::regnamespace "
		   "and typtype = 'd' and typowner <> 'lease_owner'::regrole");
	/* guards hold in every replication role; being woken does not */
	assert_sql(
		f->conn, "event_notify",
		"select string_agg(tgname, ', ') from pg_trigger t join pg_class c on c.oid = "
		"tgrelid "
		"where c.relnamespace = 'lease'::regnamespace and not tgisinternal and tgenabled "
		"<> 'A'");
}

/* -- the story of a run ------------------------------------------------------------------------ */

#define assert_text(actual, expected)                                                              \
	do {                                                                                       \
		const char *text = actual;                                                         \
		const char *wanted = expected;                                                     \
                                                                                                   \
		if (!text || !wanted)                                                              \
			assert_true(!text && !wanted);                                             \
		else                                                                               \
			assert_string_equal(text, wanted);                                         \
	} while (0)

static void story_tells_all_facts_of_a_run(void **state)
{
	static const struct {
		const char *node_id;
		int execution_no, run_attempt_no;
		enum lease_execution_status status;
		const char *operation_id, *input_ref, *output_ref, *error, *message, *trace_id;
	} executions[] = {
		{ "n", 1, 1, LEASE_EXECUTION_FAILED, "op", "file:///input", NULL, "timeout",
		  "no answer", "trace-n" },
		{ "n", 2, 1, LEASE_EXECUTION_LEASE_EXPIRED, "op", NULL, NULL, NULL, NULL, NULL },
		{ "n", 3, 2, LEASE_EXECUTION_SUCCEEDED, "op", NULL, "file:///output", NULL, NULL,
		  NULL },
		{ "open", 1, 2, LEASE_EXECUTION_RUNNING, NULL, NULL, NULL, NULL, NULL, NULL },
	};
	struct fixture *f = *state;
	struct lease_grant grant = make_story(f->conn);
	struct lease_story *story = (struct lease_story *)-1;

	submit(f->conn, "other");
	expect(LEASE_NOT_FOUND, lease_read_story(f->conn, "nowhere", &story, &failure));
	assert_ptr_equal(story, (struct lease_story *)-1);
	expect(0, lease_read_story(f->conn, "run", &story, &failure));

	assert_string_equal(story->history->run.run_id, "run");
	assert_int_equal(story->history->run.status, LEASE_RUN_RUNNING);
	assert_int_equal(story->history->run.state_version, 6);
	assert_int_equal(story->history->run.plan_version, 2);
	assert_int_equal(story->history->n_attempts, 2);
	assert_int_equal(story->history->attempts[0].outcome, LEASE_OUTCOME_LEASE_EXPIRED);
	assert_int_equal(story->history->attempts[1].outcome, LEASE_OUTCOME_NONE);
	assert_string_equal(story->history->attempts[1].owner, grant.token.owner);

	assert_int_equal(story->n_executions, LENGTH(executions));
	for (size_t i = 0; i < LENGTH(executions); i++) {
		const struct lease_execution *execution = &story->executions[i];

		assert_string_equal(execution->node_id, executions[i].node_id);
		assert_int_equal(execution->execution_no, executions[i].execution_no);
		assert_int_equal(execution->run_attempt_no, executions[i].run_attempt_no);
		assert_string_equal(execution->owner,
				    story->history->attempts[execution->run_attempt_no - 1].owner);
		assert_int_equal(execution->status, executions[i].status);
		assert_text(execution->operation_id, executions[i].operation_id);
		assert_text(execution->input_ref, executions[i].input_ref);
		assert_text(execution->output_ref, executions[i].output_ref);
		assert_text(execution->normalized_error, executions[i].error);
		assert_text(execution->error_message, executions[i].message);
		assert_text(execution->trace_id, executions[i].trace_id);
		assert_true(execution->status == LEASE_EXECUTION_RUNNING
				    ? execution->finished_at == LEASE_TIME_NONE
				    : execution->finished_at >= execution->started_at);
	}

	assert_int_equal(story->n_checkpoints, 1);
	assert_string_equal(story->checkpoints[0].checkpoint_id, "c-1");
	assert_int_equal(story->checkpoints[0].run_attempt_no, 2);
	assert_int_equal(story->checkpoints[0].state_version, 5);
	assert_int_equal(story->checkpoints[0].plan_version, 1);
	assert_string_equal(story->checkpoints[0].content_ref, "file:///output");
	assert_string_equal(story->current_checkpoint_id, "c-1");
	assert_null(story->unexplained);

	assert_int_equal(
		story->n_events,
		sql_number(f->conn, "select count(*) from lease.run_events where run_id = 'run'"));
	for (size_t i = 1; i < story->n_events; i++) {
		assert_true(story->events[i].event_id > story->events[i - 1].event_id);
		assert_true(story->events[i].at >= story->events[i - 1].at);
		assert_string_equal(story->events[i].run_id, "run");
	}
	assert_string_equal(story->events[story->n_events - 1].kind, "node_started");
	lease_story_free(story);
	lease_story_free(NULL);

	expect(0, lease_read_story(f->conn, "other", &story, &failure));
	assert_int_equal(story->n_executions + story->n_checkpoints + story->history->n_attempts,
			 0);
	assert_int_equal(story->n_events, 1);
	assert_null(story->current_checkpoint_id);
	assert_null(story->unexplained);
	lease_story_free(story);
}

static void story_says_why_a_run_is_not_explained(void **state)
{
	struct fixture *f = *state;
	struct lease_story *story;
	struct lease_grant grant = submit_and_claim(f->conn, "run");

	f->inconsistent = true;
	expect(0, end_as(f->conn, &grant.token, LEASE_RUN_COMPLETED));
	sql(f->conn, "alter table lease.runs disable trigger user;"
		     "update lease.runs set status = 'failed'");
	expect(0, lease_read_story(f->conn, "run", &story, &failure));
	assert_string_equal(story->unexplained, "the newest attempt does not lead to this status");
	lease_story_free(story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(closed_facts_cannot_be_changed_deleted_or_truncated_by_anybody),
		fixture_test(node_state_set_by_hand_is_refused),
		fixture_test(executions_hold_together),
		fixture_test(unexplained_nodes_finds_what_was_planted_and_nothing_else),
		fixture_test(run_overview_shows_where_each_run_is),
		fixture_test(worker_role_may_do_what_the_verbs_do_and_no_more),
		fixture_test(reconciler_role_closes_open_executions_and_no_more),
		fixture_test(reader_role_reads_and_writes_nothing),
		fixture_test(everything_in_the_schema_belongs_to_its_owner),
		fixture_test(story_tells_all_facts_of_a_run),
		fixture_test(story_says_why_a_run_is_not_explained),
	};

	return cmocka_run_group_tests_name("facts_guards", tests, NULL, NULL);
}
