/*
 * Events on a real PostgreSQL: one row a transition, written in its transaction, nothing for what
 * changes nothing, and a notification only where one is wanted.
 */
#include <unistd.h>

#include "facts.h"

/* -- what writes an event, and what does not --------------------------------------------------- */

/* The events of a run, one a line: kind from>to attempt node execution outcome error reference. */
#define assert_events(conn, run_id, expected)                                                      \
	assert_sql(conn, expected,                                                                 \
		   "select string_agg(concat_ws(' ', kind, coalesce(from_status, '') || '>' || "   \
		   "to_status, 'a' || attempt_no, node_id, 'x' || execution_no, outcome, "         \
		   "error_code, reference), E'\\n' order by event_id) || E'\\n' "                  \
		   "from lease.run_events where run_id = '%s'",                                    \
		   run_id)

static void give_up(PGconn *conn, const char *run_id, const char *error_code)
{
	expect(0, lease_set_terminal_status(conn,
					    &(struct lease_finish){ .run_id = run_id,
								    .status = LEASE_RUN_FAILED,
								    .error_code = error_code },
					    NULL, &failure));
}

static void every_verb_writes_one_event_a_transition(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant;

	submit(f->conn, "run");
	grant = claim(f->conn, "run", "worker-1");
	start(f->conn, &grant.token, "n", "op");
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", NULL));
	start(f->conn, &grant.token, "n", "op");
	start(f->conn, &grant.token, "m", NULL);
	expect(0, succeed_as(f->conn, &grant.token, "m", 1, NULL));
	expect(0, checkpoint_as(f->conn, &grant.token, "c-1", 2, NULL));
	expect(0, lease_plan_change(f->conn, &grant.token, 3, 0, NULL, &failure));
	expect(0, lease_release_lease_for_retry(
			  f->conn,
			  &(struct lease_release){ .token = grant.token, .error_code = "busy" },
			  NULL, &failure));
	grant = claim(f->conn, "run", "worker-2");
	expect(0, lease_suspend(f->conn, &grant.token, 0, NULL, &failure));
	expect(0, lease_resume(f->conn, "run", 0, 0, NULL, &failure));
	claim(f->conn, "run", "worker-3");
	let_lease_end(f->conn, "run");
	reconcile(f->conn, LEASE_POLICY_RECORD);
	grant = claim(f->conn, "run", "worker-4");
	expect(0, lease_request_cancel(f->conn, "run", 0, 0, NULL, &failure));
	expect(0, end_as(f->conn, &grant.token, LEASE_RUN_CANCELLED));
	assert_events(f->conn, "run",
		      "run_submitted >pending\n"
		      "attempt_opened pending>running a1\n"
		      "node_started >running a1 n x1 op\n"
		      "node_finished running>failed a1 n x1 timeout op\n"
		      "node_started failed>running a1 n x2 op\n"
		      "node_started >running a1 m x1\n"
		      "node_finished running>succeeded a1 m x1\n"
		      "checkpoint_recorded running>running a1 c-1\n"
		      "plan_changed running>running a1\n"
		      "attempt_closed running>pending a1 retry_released busy\n"
		      "node_finished running>abandoned a1 n x2 op\n"
		      "attempt_opened pending>running a2\n"
		      "attempt_closed running>waiting a2 interrupted suspended\n"
		      "run_moved waiting>pending\n"
		      "attempt_opened pending>running a3\n"
		      "attempt_closed running>running a3 lease_expired worker_lease_expired\n"
		      "attempt_opened running>running a4\n"
		      "cancel_requested running>running a4\n"
		      "attempt_closed running>cancelled a4 cancelled\n");
	/* each event of an attempt names its owner, and none other does */
	assert_sql(f->conn, "0",
		   "select count(*) from lease.run_events v "
		   "left join lease.run_attempts a using (run_id, attempt_no) "
		   "where v.owner is distinct from a.owner");
}

static void ends_of_runs_write_one_event_each(void **state)
{
	static const enum lease_run_status ends[] = { LEASE_RUN_COMPLETED, LEASE_RUN_FAILED,
						      LEASE_RUN_INTERRUPTED };
	struct fixture *f = *state;
	struct lease_grant grant;

	for (size_t i = 0; i < LENGTH(ends); i++) {
		const char *word = lease_run_status_name(ends[i]);
		char expected[256];

		grant = submit_and_claim(f->conn, word);
		expect(0, lease_set_terminal_status(f->conn,
						    &(struct lease_finish){ .token = &grant.token,
									    .status = ends[i],
									    .error_code = "why" },
						    NULL, &failure));
		snprintf(expected, sizeof(expected),
			 "run_submitted >pending\nattempt_opened pending>running a1\n"
			 "attempt_closed running>%s a1 %s why\n",
			 word, word);
		assert_events(f->conn, word, expected);
	}
	submit(f->conn, "given-up");
	give_up(f->conn, "given-up", "nobody_wants_it");
	assert_events(f->conn, "given-up",
		      "run_submitted >pending\nrun_moved pending>failed nobody_wants_it\n");
	submit(f->conn, "cancelled-at-once");
	expect(0, lease_request_cancel(f->conn, "cancelled-at-once", 0, 0, NULL, &failure));
	assert_events(f->conn, "cancelled-at-once",
		      "run_submitted >pending\nrun_moved pending>cancelled\n");
}

static void reconciler_writes_one_event_a_transition(void **state)
{
	struct fixture *f = *state;
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	options.max_lease_losses = 2;
	submit(f->conn, "poison");
	for (int i = 0; i < 2; i++) {
		claim(f->conn, "poison", "worker-1");
		let_lease_end(f->conn, "poison");
		expect(0, lease_reconcile_expired_leases(f->conn, &options, NULL, NULL, &failure));
	}
	assert_events(f->conn, "poison",
		      "run_submitted >pending\n"
		      "attempt_opened pending>running a1\n"
		      "attempt_closed running>pending a1 lease_expired worker_lease_expired\n"
		      "attempt_opened pending>running a2\n"
		      "attempt_closed running>failed a2 lease_expired lease_losses_exhausted\n");

	submit_and_claim(f->conn, "orphan");
	let_lease_end(f->conn, "orphan");
	reconcile(f->conn, LEASE_POLICY_RECORD);
	reconcile(f->conn, LEASE_POLICY_FAIL);
	assert_events(f->conn, "orphan",
		      "run_submitted >pending\n"
		      "attempt_opened pending>running a1\n"
		      "attempt_closed running>running a1 lease_expired worker_lease_expired\n"
		      "run_moved running>failed worker_lease_expired\n");

	expect(0, lease_submit(f->conn,
			       &(struct lease_submission){ .run_id = "late",
							   .deadline = LEASE_MILLISECOND },
			       NULL, NULL, &failure));
	wait_sql(f->conn,
		 "select deadline_at <= clock_timestamp() from lease.runs where run_id = 'late'");
	reconcile(f->conn, LEASE_POLICY_RECORD);
	assert_events(f->conn, "late",
		      "run_submitted >pending\nrun_moved pending>failed deadline_exceeded\n");

	/* an attempt that was left open on a pending run: two steps, two events */
	submit(f->conn, "left-open");
	sql(f->conn, "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		     "values ('left-open', 1, 'lost:1', clock_timestamp())");
	claim(f->conn, "left-open", "worker-2");
	assert_events(f->conn, "left-open",
		      "run_submitted >pending\n"
		      "attempt_closed pending>pending a1 lease_expired worker_lease_expired\n"
		      "attempt_opened pending>running a2\n");
}

static void renewals_repetitions_refusals_and_reading_write_none(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run"), refreshed;
	struct lease_node_execution execution;
	struct lease_event_batch *batch;
	struct lease_operation operation;
	struct lease_story *story;
	struct lease_grant grants[1];
	int results[1];
	char *before;

	start(f->conn, &grant.token, "n", "op");
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", NULL));
	start(f->conn, &grant.token, "open", NULL);
	expect(0, checkpoint_as(f->conn, &grant.token, "c", 2, NULL));
	expect(0, lease_request_cancel(f->conn, "run", 0, 0, NULL, &failure));
	before = sql_text(f->conn, "select count(*) || ' ' || max(event_id) from lease.run_events");

	expect(0, lease_renew_lease(f->conn, &grant.token, LONG_TTL, 0, NULL, &failure));
	expect(0, lease_renew_leases(f->conn, &grant.token, 1, LONG_TTL, 0, grants, results,
				     &failure));
	assert_int_equal(results[0], 0);
	expect(0, lease_mark_running(f->conn,
				     &(struct lease_claim){ .run_id = "run",
							    .owner = grant.token.owner,
							    .ttl = LONG_TTL },
				     &refreshed, &failure));
	assert_false(refreshed.new_attempt);

	submit(f->conn, "run");
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", NULL));
	expect(0, checkpoint_as(f->conn, &grant.token, "c", 2, NULL));
	expect(0, lease_request_cancel(f->conn, "run", 0, 0, NULL, &failure));
	assert_int_equal(reconcile(f->conn, LEASE_POLICY_FAIL).closed, 0);

	expect(LEASE_HELD, claim_as(f->conn, "run", "worker-2", LONG_TTL, &refreshed));
	expect(LEASE_HELD, start_as(f->conn, &grant.token, "open", NULL, &execution));
	expect(LEASE_CANCEL_REQUESTED, start_as(f->conn, &grant.token, "n", "op", &execution));
	expect(LEASE_STALE_VERSION, checkpoint_as(f->conn, &grant.token, "d", 2, NULL));
	expect(LEASE_STALE_VERSION, lease_plan_change(f->conn, &grant.token, 2, 0, NULL, &failure));
	expect(LEASE_CANCEL_REQUESTED, release_as(f->conn, &grant.token, NULL));
	expect(LEASE_CANCEL_REQUESTED, end_as(f->conn, &grant.token, LEASE_RUN_COMPLETED));
	expect(LEASE_NOT_FOUND, lease_resume(f->conn, "nowhere", 0, 0, NULL, &failure));
	expect(LEASE_ILLEGAL, lease_resume(f->conn, "run", 0, 0, NULL, &failure));

	expect(0, lease_operation_lookup(f->conn, "op", &operation, &failure));
	expect(0, lease_read_story(f->conn, "run", &story, &failure));
	lease_story_free(story);
	expect(0, lease_events_after(f->conn, NULL, 10, &batch, &failure));
	lease_event_batch_free(batch);
	assert_sql(f->conn, before,
		   "select count(*) || ' ' || max(event_id) from lease.run_events");
	free(before);
}

/* -- being woken ------------------------------------------------------------------------------- */

/* How many notifications came to a connection that listens; each of our channel, and empty. */
static int count_notifications(PGconn *conn)
{
	PGnotify *notify;
	int n = 0;

	/* they arrive with the answer to a statement that follows their commit */
	sql(conn, "select 1");
	while ((notify = PQnotifies(conn))) {
		assert_string_equal(notify->relname, "lease_events");
		assert_string_equal(notify->extra, "");
		PQfreemem(notify);
		n++;
	}
	return n;
}

static PGconn *listen_to_events(struct fixture *f)
{
	PGconn *conn = test_connect(f->conninfo);

	sql(conn, "listen lease_events");
	return conn;
}

static void reconciler_notifies_once_a_transaction(void **state)
{
	struct fixture *f = *state;
	PGconn *listener = listen_to_events(f);
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	assert_true(options.notify);
	for (int i = 0; i < 10; i++) {
		char run_id[32];
		struct lease_grant grant;

		snprintf(run_id, sizeof(run_id), "run-%d", i);
		grant = submit_and_claim(f->conn, run_id);
		start(f->conn, &grant.token, "n", NULL);
		let_lease_end(f->conn, run_id);
	}
	assert_int_equal(count_notifications(listener), 0);
	options.batch_size = 5; /* ten runs, thirty events, two transactions */
	expect(0, lease_reconcile_expired_leases(f->conn, &options, NULL, NULL, &failure));
	assert_int_equal(count_notifications(listener), 2);
	/* nothing to do: nothing to say */
	expect(0, lease_reconcile_expired_leases(f->conn, &options, NULL, NULL, &failure));
	assert_int_equal(count_notifications(listener), 0);
	/* and not when it is not asked to, whatever the database's setting is */
	submit_and_claim(f->conn, "quiet");
	let_lease_end(f->conn, "quiet");
	options.notify = false;
	sql(f->conn, "set lease.notify = on");
	expect(0, lease_reconcile_expired_leases(f->conn, &options, NULL, NULL, &failure));
	assert_int_equal(count_notifications(listener), 0);
	assert_sql(f->conn, "on", "select current_setting('lease.notify')");
	PQfinish(listener);
}

/* All verbs of a worker that write events; gives how many transactions that was. */
static int write_by_all_verbs(PGconn *conn, const char *prefix)
{
	struct lease_grant grant;
	char run_id[2][64];

	for (int i = 0; i < 2; i++) {
		snprintf(run_id[i], sizeof(run_id[i]), "%s-%d", prefix, i);
		submit(conn, run_id[i]);
	}
	grant = claim(conn, run_id[0], "worker-1");
	start(conn, &grant.token, "n", NULL);
	expect(0, succeed_as(conn, &grant.token, "n", 1, NULL));
	expect(0, checkpoint_as(conn, &grant.token, run_id[0], 2, NULL));
	expect(0, lease_plan_change(conn, &grant.token, 3, 0, NULL, &failure));
	expect(0, lease_renew_lease(conn, &grant.token, LONG_TTL, 0, NULL, &failure));
	start(conn, &grant.token, "open", NULL);
	expect(0, release_as(conn, &grant.token, NULL)); /* two events, one transaction */
	grant = claim(conn, run_id[0], "worker-2");
	expect(0, lease_suspend(conn, &grant.token, 0, NULL, &failure));
	expect(0, lease_resume(conn, run_id[0], 0, 0, NULL, &failure));
	grant = claim(conn, run_id[0], "worker-3");
	expect(0, lease_request_cancel(conn, run_id[0], 0, 0, NULL, &failure));
	expect(0, end_as(conn, &grant.token, LEASE_RUN_CANCELLED));
	give_up(conn, run_id[1], NULL);
	return 16;
}

static void workers_notify_when_their_role_or_database_says_so_and_not_by_default(void **state)
{
	struct fixture *f = *state;
	PGconn *listener = listen_to_events(f), *worker;
	char role[64], *name = sql_text(f->conn, "select current_database()"), *conninfo;
	int transactions;

	write_by_all_verbs(f->conn, "default");
	assert_int_equal(count_notifications(listener), 0);

	sql(f->conn, "alter database %s set lease.notify = on", name);
	worker = test_connect(f->conninfo);
	transactions = write_by_all_verbs(worker, "database");
	assert_int_equal(count_notifications(listener), transactions);
	/* a refusal and a renewal are none of it */
	expect(LEASE_TERMINAL, lease_request_cancel(worker, "database-1", 0, 0, NULL, &failure));
	assert_int_equal(count_notifications(listener), 0);
	PQfinish(worker);
	sql(f->conn, "alter database %s reset lease.notify", name);

	snprintf(role, sizeof(role), "lease_test_worker_%d", (int)getpid());
	sql(f->conn, "create role %s login in role lease_worker", role);
	sql(f->conn, "alter role %s set lease.notify = on", role);
	assert_true(asprintf(&conninfo, "%s user=%s", f->conninfo, role) > 0);
	worker = test_connect(conninfo);
	transactions = write_by_all_verbs(worker, "role");
	assert_int_equal(count_notifications(listener), transactions);
	PQfinish(worker);
	sql(f->conn, "drop role %s", role);
	free(conninfo);
	free(name);
	PQfinish(listener);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(every_verb_writes_one_event_a_transition),
		fixture_test(ends_of_runs_write_one_event_each),
		fixture_test(reconciler_writes_one_event_a_transition),
		fixture_test(renewals_repetitions_refusals_and_reading_write_none),
		fixture_test(reconciler_notifies_once_a_transaction),
		fixture_test(workers_notify_when_their_role_or_database_says_so_and_not_by_default),
	};

	return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
