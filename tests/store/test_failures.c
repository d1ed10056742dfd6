/*
 * When something breaks: each failure has its code, its SQLSTATE and its advice, says whether the
 * outcome is unknown, and leaves the connection usable or says that it must be closed. Repeating a
 * verb after a lost answer tells what came of it.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline.h"
#include "scenario.h"

/* Idle, out of the pipeline, in the mode it came in, and with nothing left in the session. */
static void assert_as_found(PGconn *conn)
{
	assert_int_equal(PQstatus(conn), CONNECTION_OK);
	assert_int_equal(PQtransactionStatus(conn), PQTRANS_IDLE);
	assert_int_equal(PQpipelineStatus(conn), PQ_PIPELINE_OFF);
	assert_int_equal(PQisnonblocking(conn), 0);
	assert_sql(
		conn, "0 0 0 on on",
		"select concat_ws(' ', current_setting('statement_timeout'), "
		"current_setting('lock_timeout'), "
		"current_setting('idle_in_transaction_session_timeout'), current_setting('jit'), "
		"current_setting('enable_seqscan'))");
}

#define assert_failure(number, state, advice, call)                                                \
	do {                                                                                       \
		memset(&last_error, 0, sizeof(last_error));                                        \
		assert_error(number, call);                                                        \
		assert_int_equal(last_error.code, number);                                         \
		assert_string_equal(last_error.sqlstate, state);                                   \
		assert_int_equal(lease_error_advice(&last_error), advice);                         \
		assert_true(last_error.message[0] != '\0');                                        \
	} while (0)

/* -- nothing is sent --------------------------------------------------------------------------------- */

static void a_connection_in_a_transaction_is_busy(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_sweep_options options;
	struct lease_status status;
	struct lease_history *history;
	char *before = run_bytes(s, "r");

	lease_sweep_options_init(&options);
	sql(s->worker, "begin");
	for (int failed = 0; failed < 2; failed++) {
		struct round_trips trips;

		round_trips_start(&trips, s->worker);
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX, submit(s->worker, "new"));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       claim(s->worker, "r", "w", LONG, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       claim_next(s->worker, "w", true, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       renew(s->worker, &token, LONG, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       release(s->worker, &token, 0, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       suspend(s->worker, &token, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX, resume(s->worker, "r", 0, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       request_cancel(s->worker, "r", 0, NULL));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       lease_reconcile_expired_leases(s->worker, &options, NULL, NULL,
							      &last_error));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       lease_read_status(s->worker, &status, &last_error));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       lease_list_attempts(s->worker, "r", &history, &last_error));
		assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX,
			       lease_check_database(s->worker, 0, &last_error));
		assert_int_equal(round_trips_stop(&trips), 0);
		/* the caller's transaction is as it was; and a failed one is busy as well */
		assert_int_equal(PQtransactionStatus(s->worker),
				 failed ? PQTRANS_INERROR : PQTRANS_INTRANS);
		PQclear(PQexec(s->worker, "select 1/0"));
	}
	sql(s->worker, "rollback");
	assert_untouched(s, "r", before);
	assert_granted(renew(s->worker, &token, LONG, NULL));
	assert_as_found(s->worker);
}

static void a_connection_in_a_pipeline_is_busy(void **state)
{
	struct scenario *s = *state;

	assert_int_equal(PQenterPipelineMode(s->worker), 1);
	assert_failure(LEASE_E_BUSY, "", LEASE_ADVICE_FIX, submit(s->worker, "r"));
	assert_int_equal(PQpipelineStatus(s->worker), PQ_PIPELINE_ON);
	assert_int_equal(PQexitPipelineMode(s->worker), 1);
	assert_granted(submit(s->worker, "r"));
}

static void a_connection_that_is_not_there(void **state)
{
	PGconn *conn = PQconnectdb("host=/nonexistent connect_timeout=1");

	(void)state;
	assert_failure(LEASE_E_CONNECTION, "", LEASE_ADVICE_RECONNECT, submit(NULL, "r"));
	assert_failure(LEASE_E_CONNECTION, "", LEASE_ADVICE_RECONNECT, submit(conn, "r"));
	assert_false(last_error.outcome_unknown);
	PQfinish(conn);
}

static void a_connection_keeps_its_mode(void **state)
{
	struct scenario *s = *state;

	assert_granted(submit(s->worker, "a"));
	assert_as_found(s->worker);
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	assert_as_found(s->worker);
	PQsetnonblocking(s->worker, 1);
	assert_granted(submit(s->worker, "b"));
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	assert_int_equal(PQisnonblocking(s->worker), 1);
	assert_refused(LEASE_NOT_FOUND, claim(s->worker, "c", "w", LONG, NULL));
	assert_int_equal(PQisnonblocking(s->worker), 1);
}

/* -- case 28: the server says no ------------------------------------------------------------------------ */

static int claim_within(PGconn *conn, int64_t timeout)
{
	struct lease_claim given = { .run_id = "r", .owner = "w", .ttl = LONG, .timeout = timeout };
	struct lease_grant grant;

	return lease_mark_running(conn, &given, &grant, &last_error);
}

/* A lock that is held tells as such (55P03), not as a slow statement (57014). */
static void case_28_a_row_that_stays_locked(void **state)
{
	struct scenario *s = *state;

	submit(s->worker, "r");
	sql(s->other, "begin; select from lease.runs for update");
	assert_failure(LEASE_E_SERVER, "55P03", LEASE_ADVICE_RETRY,
		       claim_within(s->worker, 2 * LEASE_SECOND));
	assert_false(last_error.outcome_unknown);
	assert_as_found(s->worker);
	sql(s->other, "commit");
	assert_granted(claim_within(s->worker, 0));
}

static void case_28_a_table_that_stays_locked(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	take_run(s, "r", "w");
	end_lease(s, "r");
	lease_sweep_options_init(&options);
	options.lock_timeout = 100 * LEASE_MILLISECOND;
	sql(s->other, "begin; lock table lease.runs in access exclusive mode");
	assert_failure(
		LEASE_E_SERVER, "55P03", LEASE_ADVICE_RETRY,
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_false(last_error.outcome_unknown);
	assert_as_found(s->worker);
	sql(s->other, "rollback; begin; lock table lease.run_attempts in access exclusive mode");
	assert_failure(
		LEASE_E_SERVER, "55P03", LEASE_ADVICE_RETRY,
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.failures, 1);
	assert_int_equal(figures.skipped, 0);
	sql(s->other, "rollback");
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.closed, 1);
}

/* A daemon's sweep goes on by itself, once the table is free again. */
static void case_28_a_sweep_goes_on_after_the_lock_is_gone(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct sweeper *sweeper;

	take_run(s, "r", "w");
	end_lease(s, "r");
	lease_sweep_options_init(&options);
	options.lock_timeout = 20 * LEASE_MILLISECOND;
	sql(s->other, "begin; lock table lease.runs in access exclusive mode");
	sweeper = sweeper_start(s, &options, NULL);
	wait_blocked_session(s, sweeper->conn);
	/* and once more, so that the first time has failed */
	wait_sql(
		s->admin,
		"select wait_event_type is distinct from 'Lock' from pg_stat_activity where pid = %d",
		PQbackendPID(sweeper->conn));
	wait_blocked_session(s, sweeper->conn);
	sql(s->other, "rollback");
	wait_sql(s->admin, "select finished_at is not null from lease.run_attempts");
	assert_true(sweeper_stop(sweeper, &figures) >= 1);
	assert_string_equal(last_error.sqlstate, "55P03");
	assert_true(figures.failures >= 1);
	assert_int_equal(figures.closed, 1);
}

static void case_28_a_statement_that_takes_too_long(void **state)
{
	struct scenario *s = *state;

	sql(s->admin, "create function public.slow() returns trigger language plpgsql as "
		      "$$begin perform pg_sleep(60); return null; end$$; "
		      "create trigger slow after insert on lease.run_attempts "
		      "for each row execute function public.slow()");
	submit(s->worker, "r");
	assert_failure(LEASE_E_SERVER, "57014", LEASE_ADVICE_RETRY,
		       claim_within(s->worker, 2 * LEASE_SECOND));
	assert_false(last_error.outcome_unknown);
	assert_as_found(s->worker);
	assert_run(s, "r", "pending v1");
	sql(s->admin, "drop trigger slow on lease.run_attempts");
	assert_granted(claim_within(s->worker, 0));
}

struct renew_two {
	struct lease_token tokens[2];
	struct lease_grant grants[2];
	int results[2];
};

static int renew_two_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct renew_two *c = arg;

	return lease_renew_leases(conn, c->tokens, 2, LONG, 60 * LEASE_SECOND, c->grants,
				  c->results, reterr);
}

/*
 * The library's session waits for b, and looks for a deadlock once, some time later: by then the
 * other must wait for a, or nobody is told. A slow machine gets a second chance, with more time.
 */
static int deadlock(struct scenario *s, struct renew_two *two, int milliseconds)
{
	struct call call = call_of(renew_two_verb, s->worker, two);
	int result;

	sql(s->worker, "set deadlock_timeout = '%d ms'", milliseconds);
	sql(s->other, "set deadlock_timeout = '600 s'; begin; "
		      "select from lease.run_attempts where run_id = 'b' for update");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->other, "select from lease.run_attempts where run_id = 'a' for update");
	result = call_wait(&call);
	sql(s->other, "commit");
	return result;
}

static void case_28_a_deadlock(void **state)
{
	struct scenario *s = *state;
	struct renew_two two = { .tokens = { take_run(s, "a", "w"), take_run(s, "b", "w") } };
	int result = LEASE_E_SERVER;

	snprintf(last_error.sqlstate, sizeof(last_error.sqlstate), "55P03");
	for (int wait = 300; wait < 9000 && strcmp(last_error.sqlstate, "55P03") == 0; wait *= 5)
		result = deadlock(s, &two, wait);
	assert_int_equal(result, LEASE_E_SERVER);
	assert_string_equal(last_error.sqlstate, "40P01");
	assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_RETRY);
	assert_false(last_error.outcome_unknown);
	assert_as_found(s->worker);
	assert_granted(renew_two_verb(s->worker, &two, &last_error));
	assert_int_equal(two.results[0] | two.results[1], 0);
}

static int renew_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	return lease_renew_lease(conn, arg, LONG, 60 * LEASE_SECOND, NULL, reterr);
}

/* Whatever the session's default is: a renewal that loses to another write must be told apart. */
static void case_28_a_serialization_failure(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct call call = call_of(renew_verb, s->worker, &token);

	sql(s->worker, "set default_transaction_isolation = 'repeatable read'");
	sql(s->other, "begin; update lease.run_attempts set heartbeat_at = clock_timestamp()");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_failure(LEASE_E_SERVER, "40001", LEASE_ADVICE_RETRY, call_wait(&call));
	assert_false(last_error.outcome_unknown);
	assert_granted(renew_verb(s->worker, &token, &last_error));
}

/* The transactions of the other verbs set their own isolation: they see what the lock waited for. */
static int claim_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct lease_claim given = { .run_id = "r", .owner = arg, .ttl = LONG };
	struct lease_grant grant;

	return lease_mark_running(conn, &given, &grant, reterr);
}

static void verbs_do_not_depend_on_the_sessions_isolation(void **state)
{
	struct scenario *s = *state;
	struct call call = call_of(claim_verb, s->worker, "w2");

	submit(s->worker, "r");
	sql(s->worker, "set default_transaction_isolation = 'serializable'");
	sql(s->other,
	    "begin; select from lease.runs for update; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('r', 1, 'w1', clock_timestamp() + interval '1 h'); "
	    "update lease.runs set status = 'running', state_version = 2");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_refused(LEASE_HELD, call_wait(&call));
}

static void case_28_an_administrator_ends_the_session(void **state)
{
	struct scenario *s = *state;
	struct call call = call_of(claim_verb, s->worker, "w");

	submit(s->worker, "r");
	sql(s->other, "begin; select from lease.runs for update");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->admin, "select pg_terminate_backend(%d)", PQbackendPID(s->worker));
	assert_int_equal(call_wait(&call), LEASE_E_SERVER);
	assert_string_equal(last_error.sqlstate, "57P01");
	assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_RECONNECT);
	assert_false(
		last_error.outcome_unknown); /* it waited for the lock: nothing to commit yet */
	sql(s->other, "commit");
	assert_failure(LEASE_E_CONNECTION, "", LEASE_ADVICE_RECONNECT, submit(s->worker, "r2"));
	assert_false(last_error.outcome_unknown);
	assert_run(s, "r", "pending v1");
}

/* In the middle of the batch that ends with COMMIT nobody can tell from outside. */
static void case_28_an_administrator_ends_the_session_while_it_writes(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct call call = call_of(renew_verb, s->worker, &token);

	sql(s->other, "begin; select from lease.run_attempts for update");
	call_start(&call);
	wait_blocked(s, 1);
	sql(s->admin, "select pg_terminate_backend(%d)", PQbackendPID(s->worker));
	assert_int_equal(call_wait(&call), LEASE_E_SERVER);
	assert_string_equal(last_error.sqlstate, "57P01");
	assert_true(last_error.outcome_unknown);
	sql(s->other, "commit");
}

static void a_role_without_rights_is_told(void **state)
{
	struct scenario *s = *state;

	submit(s->worker, "r");
	sql(s->worker, "set role lease_reader");
	assert_failure(LEASE_E_SERVER, "42501", LEASE_ADVICE_FIX,
		       claim(s->worker, "r", "w", LONG, NULL));
	assert_as_found(s->worker);
}

static void a_read_only_session_is_told(void **state)
{
	struct scenario *s = *state;

	submit(s->worker, "r");
	sql(s->worker, "set default_transaction_read_only = on");
	assert_failure(LEASE_E_READ_ONLY, "25006", LEASE_ADVICE_RECONNECT,
		       claim(s->worker, "r", "w", LONG, NULL));
	assert_failure(LEASE_E_READ_ONLY, "25006", LEASE_ADVICE_RECONNECT, submit(s->worker, "r2"));
	assert_failure(LEASE_E_READ_ONLY, "", LEASE_ADVICE_RECONNECT,
		       lease_check_database(s->worker, 0, &last_error));
}

static void a_database_without_the_schema_is_told(void **state)
{
	char *conninfo = test_database_create_empty();
	PGconn *conn = test_connect(conninfo);
	struct lease_sweep_options options;

	(void)state;
	lease_sweep_options_init(&options);
	assert_failure(LEASE_E_SCHEMA, "42P01", LEASE_ADVICE_FIX, submit(conn, "r"));
	assert_failure(LEASE_E_SCHEMA, "", LEASE_ADVICE_FIX,
		       lease_check_database(conn, 0, &last_error));
	assert_non_null(strstr(last_error.message, "leasectl migrate"));
	assert_failure(LEASE_E_SCHEMA, "", LEASE_ADVICE_FIX,
		       lease_reconcile_expired_leases(conn, &options, NULL, NULL, &last_error));
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* -- the connection breaks ----------------------------------------------------------------------------------- */

/* One verb, as often as it takes, with what it must have done in the end. */
struct repeated {
	const char *name;
	void (*prepare)(struct scenario *s); /* makes run r ready */
	int (*verb)(PGconn *conn, bool *ret_changed);
	int batches; /* that the verb sends; the last one commits */
	const char *undone, *done; /* the run before and after */
};

static struct lease_token r_token(void)
{
	return token_of("r", 1, "w");
}

static void prepare_nothing(struct scenario *s)
{
	submit(s->admin, "other");
}

static void prepare_pending(struct scenario *s)
{
	submit(s->admin, "r");
}

static void prepare_running(struct scenario *s)
{
	take_run(s, "r", "w");
}

static void prepare_waiting(struct scenario *s)
{
	struct lease_token token = take_run(s, "r", "w");

	assert_granted(suspend(s->worker, &token, NULL));
}

static int do_submit(PGconn *conn, bool *ret_changed)
{
	struct lease_change change = { 0 };
	int r = lease_submit(conn, &(struct lease_submission){ .run_id = "r" }, NULL, &change,
			     &last_error);

	*ret_changed = change.changed;
	return r;
}

static int do_claim(PGconn *conn, bool *ret_changed)
{
	struct lease_grant grant = { 0 };
	int r = claim(conn, "r", "w", LONG, &grant);

	*ret_changed = grant.new_attempt;
	return r;
}

static int do_renew(PGconn *conn, bool *ret_changed)
{
	struct lease_token token = r_token();

	*ret_changed = true;
	return renew(conn, &token, LONG, NULL);
}

static int do_release(PGconn *conn, bool *ret_changed)
{
	struct lease_token token = r_token();
	struct lease_change change = { 0 };
	int r = release(conn, &token, 0, &change);

	*ret_changed = change.changed;
	return r;
}

static int do_suspend(PGconn *conn, bool *ret_changed)
{
	struct lease_token token = r_token();
	struct lease_change change = { 0 };
	int r = suspend(conn, &token, &change);

	*ret_changed = change.changed;
	return r;
}

static int do_resume(PGconn *conn, bool *ret_changed)
{
	struct lease_change change = { 0 };
	int r = resume(conn, "r", 0, &change);

	*ret_changed = change.changed;
	return r;
}

static int do_complete(PGconn *conn, bool *ret_changed)
{
	struct lease_token token = r_token();
	struct lease_change change = { 0 };
	int r = finish(conn, &token, LEASE_RUN_COMPLETED, NULL, &change);

	*ret_changed = change.changed;
	return r;
}

static int do_give_up(PGconn *conn, bool *ret_changed)
{
	struct lease_change change = { 0 };
	int r = give_up(conn, "r", 0, &change);

	*ret_changed = change.changed;
	return r;
}

static int do_cancel(PGconn *conn, bool *ret_changed)
{
	struct lease_change change = { 0 };
	int r = request_cancel(conn, "r", 0, &change);

	*ret_changed = change.changed;
	return r;
}

static const struct repeated repeated[] = {
	{ "submit", prepare_nothing, do_submit, 1, NULL, "pending v1" },
	{ "mark_running", prepare_pending, do_claim, 2, "pending v1", "running v2 | 1 w open" },
	{ "renew_lease", prepare_running, do_renew, 1, "running v2 | 1 w open",
	  "running v2 | 1 w open" },
	{ "release", prepare_running, do_release, 2, "running v2 | 1 w open",
	  "pending v3 | 1 w retry_released" },
	{ "suspend", prepare_running, do_suspend, 2, "running v2 | 1 w open",
	  "waiting v3 | 1 w interrupted suspended" },
	{ "resume", prepare_waiting, do_resume, 2, "waiting v3 | 1 w interrupted suspended",
	  "pending v4 | 1 w interrupted suspended" },
	{ "completed", prepare_running, do_complete, 2, "running v2 | 1 w open",
	  "completed v3 | 1 w completed" },
	{ "give up", prepare_pending, do_give_up, 2, "pending v1", "failed v2" },
	{ "cancel", prepare_pending, do_cancel, 2, "pending v1", "cancelled v2" },
	{ "cancel a running one", prepare_running, do_cancel, 2, "running v2 | 1 w open",
	  "running v2 | 1 w open" },
};

static void assert_run_or_none(struct scenario *s, const char *expected)
{
	if (expected)
		assert_run(s, "r", expected);
	else
		assert_sql(s->admin, "0", "select count(*) from lease.runs where run_id = 'r'");
}

static void cut_and_repeat(struct scenario *s, struct proxy *proxy, const struct repeated *verb,
			   enum cut how, int batch)
{
	PGconn *conn;
	bool changed, last = batch == verb->batches;
	int r;

	print_message("%s, batch %d, %s\n", verb->name, batch,
		      how == CUT_REQUEST ? "the request is lost" : "the answer is lost");
	verb->prepare(s);
	proxy_arm(proxy, CUT_NEVER, 0);
	conn = test_connect(proxy->conninfo);
	proxy_arm(proxy, how, batch);
	r = verb->verb(conn, &changed);
	assert_true(atomic_load(&proxy->cut));
	assert_error(LEASE_E_CONNECTION, r);
	assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_RECONNECT);
	assert_int_equal(last_error.outcome_unknown, last);
	PQfinish(conn);
	/* a session whose client is gone may still hold the row for a moment: the verb waits for it */
	assert_run_or_none(s, how == CUT_ANSWER && last ? verb->done : verb->undone);
	assert_granted(verb->verb(s->worker, &changed));
	if (verb->verb != do_renew)
		assert_int_equal(changed, !(how == CUT_ANSWER && last));
	assert_run_or_none(s, verb->done);
	assert_explained(s);
}

static void every_verb_can_be_repeated_after_a_lost_answer(void **state)
{
	struct scenario *s = *state;
	struct proxy proxy;

	proxy_open(&proxy, s);
	for (size_t i = 0; i < LENGTH(repeated); i++)
		for (int batch = 1; batch <= repeated[i].batches; batch++)
			for (int how = CUT_REQUEST; how <= CUT_ANSWER; how++) {
				cut_and_repeat(s, &proxy, &repeated[i], (enum cut)how, batch);
				scenario_empty(s);
			}
	proxy_close(&proxy);
}

static void a_claim_of_the_next_run_whose_answer_is_lost(void **state)
{
	struct scenario *s = *state;
	struct proxy proxy;
	PGconn *conn;

	submit(s->worker, "r");
	proxy_open(&proxy, s);
	conn = test_connect(proxy.conninfo);
	proxy_arm(&proxy, CUT_ANSWER, 3);
	assert_error(LEASE_E_CONNECTION, claim_next(conn, "w", false, NULL));
	assert_true(last_error.outcome_unknown);
	PQfinish(conn);
	proxy_close(&proxy);
	/* nobody knows which run it took, but its lease ends and the reconciler frees it */
	assert_run(s, "r", "running v2 | 1 w open");
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_granted(claim_next(s->worker, "w2", false, NULL));
}

static void a_sweep_whose_commit_is_not_acknowledged_looks_again(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct proxy proxy;
	PGconn *conn;

	take_run(s, "a", "w");
	take_run(s, "b", "w");
	end_lease(s, "a");
	end_lease(s, "b");
	proxy_open(&proxy, s);
	conn = test_connect(proxy.conninfo);
	/* two for the check, one page, lock and look, then the chunk's writes and its commit */
	proxy_arm(&proxy, CUT_ANSWER, 5);
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	assert_error(LEASE_E_CONNECTION,
		     lease_reconcile_expired_leases(conn, &options, NULL, &figures, &last_error));
	assert_true(last_error.outcome_unknown);
	assert_int_equal(figures.closed, 0); /* as far as it knows */
	PQfinish(conn);
	proxy_close(&proxy);
	assert_run(s, "a", "pending v3 | 1 w lease_expired worker_lease_expired");
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.closed, 0);
	assert_run(s, "b", "pending v3 | 1 w lease_expired worker_lease_expired");
}

/* -- no answer at all ------------------------------------------------------------------------------------------- */

static void a_server_that_is_silent_times_out(void **state)
{
	struct scenario *s = *state;
	struct proxy proxy;

	proxy_open(&proxy, s);
	submit(s->worker, "r");
	for (int batch = 1; batch <= 2; batch++) {
		PGconn *conn;

		proxy_arm(&proxy, CUT_NEVER, 0);
		conn = test_connect(proxy.conninfo);
		proxy_arm(&proxy, CUT_SILENCE, batch);
		assert_failure(LEASE_E_TIMEOUT, "", LEASE_ADVICE_RECONNECT,
			       claim_within(conn, 2 * LEASE_SECOND));
		assert_int_equal(last_error.outcome_unknown, batch == 2);
		PQfinish(conn);
	}
	assert_run(s, "r", "running v2 | 1 w open");
	assert_granted(claim_within(s->worker, 0));
	proxy_close(&proxy);
}

/*
 * Stopped, or its network gone, with the run's lock in hand and the transaction open: no end of the
 * connection tells the server, and a reconciler passes over what is locked.
 */
static void a_caller_that_falls_silent_within_a_call_holds_up_nobody(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_finish end = { .token = &token,
				    .status = LEASE_RUN_COMPLETED,
				    .timeout = LEASE_SECOND };
	struct lease_sweep_figures figures = { 0 };
	struct proxy proxy;
	PGconn *conn;

	proxy_open(&proxy, s);
	conn = test_connect(proxy.conninfo);
	proxy_arm(&proxy, CUT_SILENCE, 1);
	assert_failure(LEASE_E_TIMEOUT, "", LEASE_ADVICE_RECONNECT,
		       lease_set_terminal_status(conn, &end, NULL, &last_error));
	end_lease(s, "r");
	/* the connection stays: here nobody closes it, as nobody does for a machine that is gone */
	for (long long until = test_now_ms() + TEST_PATIENCE_MS;
	     figures.closed == 0 && test_now_ms() < until;)
		assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, &figures));
	assert_run(s, "r", "pending v3 | 1 w lease_expired worker_lease_expired");
	PQfinish(conn);
	proxy_close(&proxy);
}

/* -- an answer of another form ------------------------------------------------------------------------------------- */

struct odd_operation {
	int step;
};

static int odd_next(void *self, struct batch *batch, struct lease_error *reterr)
{
	struct odd_operation *odd = self;

	(void)reterr;
	if (odd->step++ > 0)
		return 0;
	batch_add(batch, "BEGIN");
	batch_add(batch, "INSERT INTO lease.runs (run_id) VALUES ('odd') RETURNING run_id");
	batch_add(batch, "COMMIT");
	batch->commits = true;
	return 1;
}

static int odd_take(void *self, int index, PGresult *result, struct lease_error *reterr)
{
	int r = index == 1 ? read_form(result, "l", reterr) : 0;

	(void)self;
	PQclear(result);
	return r;
}

/* The batch is on its way as a whole: that its answer is odd does not stop its COMMIT. */
static void an_odd_answer_to_a_batch_that_commits_leaves_the_outcome_unknown(void **state)
{
	struct scenario *s = *state;
	struct odd_operation odd = { 0 };
	struct operation operation = { odd_next, odd_take, &odd, NULL };

	assert_failure(LEASE_E_PROTOCOL, "", LEASE_ADVICE_RECONNECT,
		       pump_run(s->worker, operation, LEASE_TIMEOUT_DEFAULT, &last_error));
	assert_sql(s->admin, "1", "select count(*) from lease.runs where run_id = 'odd'");
	assert_true(last_error.outcome_unknown);
}

static void no_verb_needs_its_error_or_its_change(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_claim given = { .run_id = "" };
	struct lease_grant grant;

	assert_int_equal(lease_mark_running(s->worker, &given, &grant, NULL), LEASE_E_INVALID);
	assert_int_equal(lease_renew_lease(s->worker, &token, LONG, 0, NULL, NULL), 0);
	assert_int_equal(lease_request_cancel(s->worker, "r", 0, 0, NULL, NULL), 0);
	sql(s->worker, "begin");
	assert_int_equal(lease_renew_lease(s->worker, &token, LONG, 0, NULL, NULL), LEASE_E_BUSY);
	sql(s->worker, "rollback");
	sql(s->worker, "set role lease_reader");
	assert_int_equal(lease_renew_lease(s->worker, &token, LONG, 0, NULL, NULL), LEASE_E_SERVER);
	assert_int_equal(lease_reconcile_expired_leases(
				 s->worker, &(struct lease_sweep_options){ .interval = 0 }, NULL,
				 NULL, NULL),
			 LEASE_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_connection_in_a_transaction_is_busy),
		store_test(a_connection_in_a_pipeline_is_busy),
		cmocka_unit_test(a_connection_that_is_not_there),
		store_test(a_connection_keeps_its_mode),
		store_test(case_28_a_row_that_stays_locked),
		store_test(case_28_a_table_that_stays_locked),
		store_test(case_28_a_sweep_goes_on_after_the_lock_is_gone),
		store_test_alone(case_28_a_statement_that_takes_too_long),
		store_test(case_28_a_deadlock),
		store_test(case_28_a_serialization_failure),
		store_test(verbs_do_not_depend_on_the_sessions_isolation),
		store_test(case_28_an_administrator_ends_the_session),
		store_test(case_28_an_administrator_ends_the_session_while_it_writes),
		store_test(a_role_without_rights_is_told),
		store_test(a_read_only_session_is_told),
		cmocka_unit_test(a_database_without_the_schema_is_told),
		store_test(every_verb_can_be_repeated_after_a_lost_answer),
		store_test(a_claim_of_the_next_run_whose_answer_is_lost),
		store_test(a_sweep_whose_commit_is_not_acknowledged_looks_again),
		store_test(a_server_that_is_silent_times_out),
		store_test(a_caller_that_falls_silent_within_a_call_holds_up_nobody),
		store_test(an_odd_answer_to_a_batch_that_commits_leaves_the_outcome_unknown),
		store_test(no_verb_needs_its_error_or_its_change),
	};

	return cmocka_run_group_tests_name("failures", tests, NULL, scenario_end);
}
