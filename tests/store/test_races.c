/*
 * Who wins when two write at once. Barriers, not luck: somebody holds a row, both contenders queue
 * up behind it (the server's own list of waiting sessions tells), and the row is let go. The
 * hammering at the end is on top of that.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "scenario.h"

static const int64_t patience = TEST_PATIENCE_MS * LEASE_MILLISECOND * 4;

/* -- the verbs as calls ----------------------------------------------------------------------------- */

struct claim_call {
	const char *run_id; /* NULL: the next one */
	char owner[32];
	bool take_over;
	int64_t ttl;
	struct lease_grant grant;
};

static int claim_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct claim_call *c = arg;
	struct lease_claim claim = { .run_id = c->run_id,
				     .owner = c->owner,
				     .ttl = c->ttl ? c->ttl : LONG,
				     .take_over = c->take_over,
				     .timeout = patience };

	return c->run_id ? lease_mark_running(conn, &claim, &c->grant, reterr)
			 : lease_claim_next(conn, &claim, &c->grant, reterr);
}

struct renew_call {
	struct lease_token token;
	struct lease_grant grant;
};

static int renew_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct renew_call *c = arg;

	return lease_renew_lease(conn, &c->token, 2 * LONG, patience, &c->grant, reterr);
}

static int complete_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct lease_finish finish = { .token = arg,
				       .status = LEASE_RUN_COMPLETED,
				       .timeout = patience };

	return lease_set_terminal_status(conn, &finish, NULL, reterr);
}

static int cancel_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	return lease_request_cancel(conn, arg, 0, patience, NULL, reterr);
}

static int reconcile_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	options.lock_timeout = options.statement_timeout = patience;
	return lease_reconcile_expired_leases(conn, &options, NULL, arg, reterr);
}

/* -- sixteen at once ---------------------------------------------------------------------------------- */

enum { CLAIMANTS = 16 };

static void claim_at_once(struct scenario *s, const char *run_id, const char *expected_start)
{
	struct call calls[CLAIMANTS];
	struct claim_call claims[CLAIMANTS];
	int granted = 0, winner = -1;
	char expected[128];

	sql(s->admin, "begin; select from lease.runs where run_id = '%s' for no key update",
	    run_id);
	for (int i = 0; i < CLAIMANTS; i++) {
		claims[i] = (struct claim_call){ .run_id = run_id };
		snprintf(claims[i].owner, sizeof(claims[i].owner), "w%d", i);
		calls[i] = call_of(claim_verb, test_connect(s->conninfo), &claims[i]);
		call_start(&calls[i]);
	}
	wait_blocked(s, CLAIMANTS);
	sql(s->admin, "commit");
	for (int i = 0; i < CLAIMANTS; i++) {
		int result = call_wait(&calls[i]);

		PQfinish(calls[i].conn);
		if (result == 0) {
			granted++;
			winner = i;
			continue;
		}
		assert_refused(LEASE_HELD, result);
	}
	assert_int_equal(granted, 1);
	snprintf(expected, sizeof(expected), "%s w%d open", expected_start, winner);
	assert_run(s, run_id, expected);
	assert_explained(s);
}

static void sixteen_connections_claim_one_run_and_one_wins(void **state)
{
	struct scenario *s = *state;

	submit(s->worker, "r");
	claim_at_once(s, "r", "running v2 | 1");
}

static void sixteen_connections_take_over_one_run_and_one_wins(void **state)
{
	struct scenario *s = *state;

	take_run(s, "r", "lost");
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	claim_at_once(s, "r", "running v2 | 1 lost lease_expired worker_lease_expired | 2");
}

static void sixteen_connections_claim_the_next_and_each_gets_its_own(void **state)
{
	struct scenario *s = *state;
	struct call calls[CLAIMANTS];
	struct claim_call claims[CLAIMANTS];

	sql(s->admin,
	    "insert into lease.runs (run_id) select 'r' || i from generate_series(1, %d) i",
	    CLAIMANTS);
	/* all wait for the table, and go on at once */
	sql(s->admin, "begin; lock table lease.runs in access exclusive mode");
	for (int i = 0; i < CLAIMANTS; i++) {
		claims[i] = (struct claim_call){ .run_id = NULL };
		snprintf(claims[i].owner, sizeof(claims[i].owner), "w%d", i);
		calls[i] = call_of(claim_verb, test_connect(s->conninfo), &claims[i]);
		call_start(&calls[i]);
	}
	wait_blocked(s, CLAIMANTS);
	sql(s->admin, "commit");
	for (int i = 0; i < CLAIMANTS; i++) {
		assert_granted(call_wait(&calls[i]));
		PQfinish(calls[i].conn);
		for (int k = 0; k < i; k++)
			assert_string_not_equal(claims[i].grant.token.run_id,
						claims[k].grant.token.run_id);
	}
	assert_sql(
		s->admin, "t",
		"select count(*) = %d and count(distinct owner) = %d and bool_and(attempt_no = 1) "
		"from lease.run_attempts",
		CLAIMANTS, CLAIMANTS);
}

/*
 * A run that is taken over stays `running`, so its row does not tell a late comer that it is gone:
 * the look does. A claim of "the next" must then look for another one, not report `held`.
 */
static void workers_take_over_lost_runs_and_are_told_nothing_odd(void **state)
{
	enum { WORKERS = 4, RUNS = 60 };
	struct scenario *s = *state;
	int held = 0, claimed = 0;

	for (int round = 0; round < 3; round++) {
		sql(s->admin,
		    "insert into lease.runs (run_id, status) "
		    "select 'r%d_' || i, 'running' from generate_series(1, %d) i",
		    round, RUNS);
		for (int done = 0; done < WORKERS;) {
			struct call calls[WORKERS];
			struct claim_call claims[WORKERS];
			PGconn *conns[WORKERS];

			done = 0;
			for (int i = 0; i < WORKERS; i++)
				conns[i] = test_connect(s->conninfo);
			for (int k = 0; k < 30 && done < WORKERS; k++) {
				done = 0;
				for (int i = 0; i < WORKERS; i++) {
					claims[i] = (struct claim_call){ .take_over = true };
					snprintf(claims[i].owner, sizeof(claims[i].owner), "w%d_%d",
						 claimed, i);
					calls[i] = call_of(claim_verb, conns[i], &claims[i]);
					call_start(&calls[i]);
				}
				for (int i = 0; i < WORKERS; i++) {
					int result = call_wait(&calls[i]);

					if (result == LEASE_HELD)
						held++;
					else if (result == LEASE_NOT_FOUND)
						done++;
					else
						assert_granted(result);
				}
				claimed++;
			}
			for (int i = 0; i < WORKERS; i++)
				PQfinish(conns[i]);
		}
	}
	assert_sql(
		s->admin, "t",
		"select count(*) = %d and bool_and(attempt_no = 1) and count(distinct run_id) = %d "
		"from lease.run_attempts",
		3 * RUNS, 3 * RUNS);
	assert_int_equal(held, 0);
}

/* -- a renewal and a closer ------------------------------------------------------------------------------ */

/* The lease of r ends in a second and a half; s->other holds its attempt's row. */
static struct lease_token hold_ending_attempt(struct scenario *s)
{
	struct lease_token token = take_run(s, "r", "w");

	sql(s->admin,
	    "update lease.run_attempts set lease_expires_at = clock_timestamp() + interval '1.5 s'");
	sql(s->other, "begin; select from lease.run_attempts for update");
	return token;
}

static void wait_over(struct scenario *s)
{
	wait_sql(s->admin, "select lease_expires_at <= clock_timestamp() from lease.run_attempts");
}

static void case_08_a_renewal_in_flight_over_the_end_before_the_closer(void **state)
{
	struct scenario *s = *state;
	struct renew_call renewal = { .token = hold_ending_attempt(s) };
	struct call renewing = call_of(renew_verb, s->worker, &renewal);
	struct lease_sweep_figures figures = { 0 };
	struct call closing = call_of(reconcile_verb, test_connect(s->conninfo), &figures);

	call_start(&renewing);
	wait_blocked(s, 1);
	wait_over(s);
	call_start(&closing);
	wait_blocked(s, 2);
	sql(s->other, "commit");
	/* the renewal's guard held when it looked; the closer's does not hold any more */
	assert_granted(call_wait(&renewing));
	assert_granted(call_wait(&closing));
	PQfinish(closing.conn);
	assert_int_equal(figures.closed, 0);
	assert_run(s, "r", "running v2 | 1 w open");
	assert_granted(complete_verb(s->worker, &renewal.token, &last_error));
	assert_explained(s);
}

static void case_08_a_renewal_in_flight_over_the_end_after_the_closer(void **state)
{
	struct scenario *s = *state;
	struct renew_call renewal = { .token = hold_ending_attempt(s) };
	struct lease_sweep_figures figures = { 0 };
	struct call closing = call_of(reconcile_verb, test_connect(s->conninfo), &figures);

	wait_over(s);
	call_start(&closing);
	wait_blocked(s, 1);
	/* the closer has not written yet, and still the lease is over */
	assert_refused(LEASE_EXPIRED, renew_verb(s->worker, &renewal, &last_error));
	assert_run(s, "r", "running v2 | 1 w open");
	sql(s->other, "commit");
	assert_granted(call_wait(&closing));
	PQfinish(closing.conn);
	assert_int_equal(figures.closed, 1);
	assert_run(s, "r", "pending v3 | 1 w lease_expired worker_lease_expired");
	assert_refused(LEASE_EXPIRED, renew_verb(s->worker, &renewal, &last_error));
}

/* What was looked at as over is not over when it is to be written: the close repeats its guard. */
static void the_closer_sees_a_renewal_that_came_between_look_and_close(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures = { 0 };
	struct call closing = call_of(reconcile_verb, s->worker, &figures);
	struct lease_token token = take_run(s, "r", "w");

	end_lease(s, "r");
	sql(s->other, "begin; update lease.run_attempts "
		      "set lease_expires_at = clock_timestamp() + interval '1 h'");
	call_start(&closing);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_granted(call_wait(&closing));
	assert_int_equal(figures.closed, 0);
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 0);
	assert_run(s, "r", "running v2 | 1 w open");
	assert_granted(complete_verb(s->worker, &token, &last_error));
}

static void a_refresh_written_after_a_renewal_does_not_shorten(void **state)
{
	struct scenario *s = *state;
	struct renew_call renewal = { .token = take_run(s, "r", "w") };
	struct claim_call refresh = { .run_id = "r", .owner = "w", .ttl = LEASE_SECOND };
	struct call renewing = call_of(renew_verb, s->worker, &renewal);
	struct call refreshing = call_of(claim_verb, test_connect(s->conninfo), &refresh);

	sql(s->other, "begin; select from lease.run_attempts for update");
	call_start(&renewing);
	wait_blocked(s, 1);
	call_start(&refreshing);
	wait_blocked(s, 2);
	sql(s->other, "commit");
	assert_granted(call_wait(&renewing));
	assert_granted(call_wait(&refreshing));
	PQfinish(refreshing.conn);
	assert_true(refresh.grant.lease_expires_at == renewal.grant.lease_expires_at);
	assert_sql(
		s->admin, "t",
		"select lease_expires_at > clock_timestamp() + interval '100 min' from lease.run_attempts");
}

/* -- a renewal and its own end ----------------------------------------------------------------------------- */

static void a_renewal_before_the_completion(void **state)
{
	struct scenario *s = *state;
	struct renew_call renewal = { .token = take_run(s, "r", "w") };
	struct call renewing = call_of(renew_verb, s->worker, &renewal);
	struct call completing = call_of(complete_verb, test_connect(s->conninfo), &renewal.token);

	sql(s->other, "begin; select from lease.run_attempts for update");
	call_start(&renewing);
	wait_blocked(s, 1);
	call_start(&completing);
	wait_blocked(s, 2);
	sql(s->other, "commit");
	assert_granted(call_wait(&renewing));
	assert_granted(call_wait(&completing));
	PQfinish(completing.conn);
	assert_run(s, "r", "completed v3 | 1 w completed");
}

static void a_renewal_after_the_completion(void **state)
{
	struct scenario *s = *state;
	struct renew_call renewal = { .token = take_run(s, "r", "w") };
	struct call renewing = call_of(renew_verb, s->worker, &renewal);
	struct call completing = call_of(complete_verb, test_connect(s->conninfo), &renewal.token);

	sql(s->other, "begin; select from lease.run_attempts for update");
	call_start(&completing);
	wait_blocked(s, 1);
	call_start(&renewing);
	wait_blocked(s, 2);
	sql(s->other, "commit");
	assert_granted(call_wait(&completing));
	assert_refused(LEASE_TERMINAL, call_wait(&renewing));
	PQfinish(completing.conn);
	assert_run(s, "r", "completed v3 | 1 w completed");
}

/* -- a completion and others that want the run ----------------------------------------------------------------- */

/* The reconciler has locked the run and looked; the completion waits, and then it is too late. */
static void a_completion_waits_for_the_closer_and_is_refused(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = hold_ending_attempt(s);
	struct lease_sweep_figures figures = { 0 };
	struct call closing = call_of(reconcile_verb, s->worker, &figures);
	struct call completing = call_of(complete_verb, test_connect(s->conninfo), &token);

	wait_over(s);
	call_start(&closing);
	wait_blocked(s, 1);
	call_start(&completing);
	wait_blocked(s, 2);
	sql(s->other, "commit");
	assert_granted(call_wait(&closing));
	assert_refused(LEASE_EXPIRED, call_wait(&completing));
	PQfinish(completing.conn);
	assert_run(s, "r", "pending v3 | 1 w lease_expired worker_lease_expired");
}

/* Somebody who knows nothing of the run's lock closes the attempt between look and close. */
static void a_close_from_outside_is_respected(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct call completing = call_of(complete_verb, s->worker, &token);

	sql(s->other, "begin; update lease.run_attempts set finished_at = clock_timestamp(), "
		      "outcome = 'lease_expired'");
	call_start(&completing);
	wait_blocked(s, 1);
	sql(s->other, "commit");
	assert_refused(LEASE_EXPIRED, call_wait(&completing));
	assert_run(s, "r", "running v2 | 1 w lease_expired");
	assert_explained(s);
}

static void cancel_and_complete(struct scenario *s, bool cancel_first)
{
	struct lease_token token = take_run(s, "r", "w");
	struct call completing = call_of(complete_verb, s->worker, &token);
	struct call cancelling = call_of(cancel_verb, test_connect(s->conninfo), "r");

	sql(s->other, "begin; select from lease.runs for update");
	call_start(cancel_first ? &cancelling : &completing);
	wait_blocked(s, 1);
	call_start(cancel_first ? &completing : &cancelling);
	wait_blocked(s, 2);
	sql(s->other, "commit");
	if (cancel_first) {
		assert_granted(call_wait(&cancelling));
		assert_refused(LEASE_CANCEL_REQUESTED, call_wait(&completing));
		assert_run(s, "r", "running v2 | 1 w open");
	} else {
		assert_granted(call_wait(&completing));
		assert_refused(LEASE_TERMINAL, call_wait(&cancelling));
		assert_run(s, "r", "completed v3 | 1 w completed");
	}
	PQfinish(cancelling.conn);
}

static void a_cancel_request_before_the_completion(void **state)
{
	cancel_and_complete(*state, true);
}

static void a_cancel_request_after_the_completion(void **state)
{
	cancel_and_complete(*state, false);
}

/* A sweep in one pass over the open attempts. */
static struct lease_sweep *scan_once(struct scenario *s, struct lease_sweep_figures *figures)
{
	struct lease_sweep_options options;
	struct lease_sweep *sweep;
	int events;

	lease_sweep_options_init(&options);
	options.interval = 60 * LEASE_SECOND;
	options.policy = LEASE_POLICY_REQUEUE;
	assert_granted(lease_sweep_new(&options, NULL, &sweep, &last_error));
	PQsetnonblocking(s->other, 1);
	while ((events = lease_sweep_poll(sweep, s->other, &last_error)) > 0)
		poll(&(struct pollfd){ .fd = PQsocket(s->other), .events = POLLIN }, 1, 1000);
	assert_granted(events);
	lease_sweep_read_figures(sweep, figures);
	assert_int_equal(figures->passes, 1);
	return sweep;
}

/* A run whose lease ends soon, and a sweep that has listed it and waits for that. */
static struct lease_sweep *list_ending_run(struct scenario *s, struct lease_token *ret)
{
	for (int tries = 0; tries < 5; tries++) {
		struct lease_sweep_figures figures;
		struct lease_sweep *sweep;
		char run_id[16];

		snprintf(run_id, sizeof(run_id), "r%d", tries);
		*ret = take_run(s, run_id, "w");
		sql(s->admin,
		    "update lease.run_attempts set heartbeat_at = clock_timestamp() - interval '1 h', "
		    "lease_expires_at = clock_timestamp() + interval '2 s' where run_id = '%s'",
		    run_id);
		sweep = scan_once(s, &figures);
		if (figures.due == 1)
			return sweep;
		lease_sweep_free(sweep); /* this machine stood still, and the lease is over */
	}
	fail_msg("no lease lives long enough to be listed");
	return NULL;
}

/* Lets it wake at the end that it read long ago, and act on it. */
static void act_on_old_list(struct scenario *s, struct lease_sweep *sweep)
{
	struct lease_sweep_figures figures;

	int events;

	do {
		events = lease_sweep_poll(sweep, s->other, &last_error);
		assert_true(events >= 0);
		poll(&(struct pollfd){ .fd = PQsocket(s->other), .events = POLLIN }, events > 0,
		     events ? 1000 : 2);
		lease_sweep_read_figures(sweep, &figures);
	} while (figures.due > 0 || events > 0);
	assert_int_equal(figures.closed, 0);
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 0);
	lease_sweep_free(sweep);
}

static void case_01_a_run_that_is_completed_after_it_was_listed(void **state)
{
	struct scenario *s = *state;
	struct lease_token token;
	struct lease_sweep *sweep = list_ending_run(s, &token);
	char *before;

	assert_granted(complete_verb(s->worker, &token, &last_error));
	before = run_bytes(s, token.run_id);
	act_on_old_list(s, sweep);
	assert_untouched(s, token.run_id, before);
}

static void case_01_a_run_that_is_released_and_claimed_after_it_was_listed(void **state)
{
	struct scenario *s = *state;
	struct lease_token token;
	struct lease_sweep *sweep = list_ending_run(s, &token);
	char *before;

	assert_granted(release(s->worker, &token, 0, NULL));
	assert_granted(claim(s->worker, token.run_id, "w2", LONG, NULL));
	before = run_bytes(s, token.run_id);
	act_on_old_list(s, sweep);
	assert_untouched(s, token.run_id, before);
	assert_run(s, token.run_id, "running v4 | 1 w retry_released | 2 w2 open");
}

/* A foreign key's check, which holds the key of the run, is in nobody's way. */
static void key_share_locks_pass(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;
	struct lease_grant grant;

	submit(s->worker, "r");
	sql(s->other, "begin; select from lease.runs for key share");
	assert_granted(claim(s->worker, "r", "w1", LONG, NULL));
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, &figures));
	assert_int_equal(figures.closed, 1);
	assert_int_equal(figures.contended, 0);
	assert_granted(claim_next(s->worker, "w2", false, &grant));
	assert_granted(finish(s->worker, &grant.token, LEASE_RUN_COMPLETED, NULL, NULL));
	sql(s->other, "commit");
}

/* -- two reconcilers --------------------------------------------------------------------------------------------- */

static void lose_many(struct scenario *s, int n)
{
	sql(s->admin,
	    "insert into lease.runs (run_id, status, state_version) "
	    "select format('r%%s', to_char(i, 'FM0000')), 'running', 2 from generate_series(1, %d) i; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() - interval '1 s' from lease.runs",
	    n);
}

static void count_call(void *arg, const struct lease_closed *closed)
{
	(void)closed;
	++*(int *)arg;
}

static void case_13_a_second_reconciler_loses_every_row(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures first = { 0 }, second = { 0 };
	struct call closing = call_of(reconcile_verb, s->worker, &first);
	struct lease_sweep_options options;
	int told = 0;
	struct lease_sweep_callbacks callbacks = { .closed = count_call, .arg = &told };
	PGconn *conn;

	lose_many(s, 20);
	/* the first has locked all runs and waits for one attempt */
	sql(s->other, "begin; select from lease.run_attempts where run_id = 'r0020' for update");
	call_start(&closing);
	wait_blocked(s, 1);
	lease_sweep_options_init(&options);
	conn = test_connect(s->conninfo);
	assert_granted(
		lease_reconcile_expired_leases(conn, &options, &callbacks, &second, &last_error));
	assert_int_equal(second.closed, 0);
	assert_true(second.contended >= 20);
	assert_int_equal(told, 0);
	sql(s->other, "commit");
	assert_granted(call_wait(&closing));
	assert_int_equal(first.closed, 20);
	assert_granted(
		lease_reconcile_expired_leases(conn, &options, &callbacks, &second, &last_error));
	assert_int_equal(second.closed, 0);
	assert_int_equal(told, 0);
	PQfinish(conn);
	assert_sql(s->admin, "20",
		   "select count(*) from lease.run_attempts where outcome = 'lease_expired'");
}

static void case_07_two_reconcilers_never_deadlock(void **state)
{
	struct scenario *s = *state;

	for (int round = 0; round < test_rounds(4); round++) {
		struct lease_sweep_figures figures[2] = { { 0 } };
		struct call calls[2] = { call_of(reconcile_verb, s->worker, &figures[0]),
					 call_of(reconcile_verb, s->other, &figures[1]) };

		scenario_empty(s);
		lose_many(s, 500);
		call_start(&calls[0]);
		call_start(&calls[1]);
		assert_granted(call_wait(&calls[0]));
		assert_granted(call_wait(&calls[1]));
		assert_int_equal(figures[0].closed + figures[1].closed, 500);
		assert_sql(
			s->admin, "500",
			"select count(*) from lease.runs where status = 'pending' and state_version = 3");
	}
	assert_explained(s);
}

/* -- one lock order ------------------------------------------------------------------------------------------------- */

struct renew_many_call {
	struct lease_token tokens[100];
	size_t n;
	struct lease_grant grants[100];
	int results[100];
};

static int renew_many_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct renew_many_call *c = arg;

	return lease_renew_leases(conn, c->tokens, c->n, LONG, patience, c->grants, c->results,
				  reterr);
}

/* Held up at the second of three rows, a writer must have the first and not the third. */
static void assert_locked_in_order(struct scenario *s, const char *table)
{
	wait_blocked(s, 1);
	sql_fails(s->admin, "55P03",
		  "select from lease.%s where run_id = 'a' for no key update nowait", table);
	sql(s->admin, "select from lease.%s where run_id = 'c' for no key update nowait", table);
}

static void many_renewals_lock_in_order_of_run_id(void **state)
{
	struct scenario *s = *state;
	struct renew_many_call *many = calloc(1, sizeof(*many));
	struct call renewing = call_of(renew_many_verb, s->worker, many);

	many->tokens[2] = take_run(s, "a", "w");
	many->tokens[0] = take_run(s, "b", "w");
	many->tokens[1] = take_run(s, "c", "w");
	many->n = 3;
	sql(s->other, "begin; select from lease.run_attempts where run_id = 'b' for update");
	call_start(&renewing);
	assert_locked_in_order(s, "run_attempts");
	sql(s->other, "commit");
	assert_granted(call_wait(&renewing));
	free(many);
}

static void a_close_locks_attempts_in_order_of_run_id(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures = { 0 };
	struct call closing = call_of(reconcile_verb, s->worker, &figures);

	/* listed in order of their end: c, b, a */
	sql(s->admin,
	    "insert into lease.runs (run_id, status, state_version) "
	    "select id, 'running', 2 from unnest('{c,b,a}'::text[]) id; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() - ascii(run_id) * interval '1 s' from lease.runs");
	sql(s->other, "begin; select from lease.run_attempts where run_id = 'b' for update");
	call_start(&closing);
	assert_locked_in_order(s, "run_attempts");
	sql(s->other, "commit");
	assert_granted(call_wait(&closing));
	assert_int_equal(figures.closed, 3);
}

static void overlapping_renewals_in_opposite_order_never_deadlock(void **state)
{
	enum { N = 100 };
	struct scenario *s = *state;
	struct renew_many_call *many = calloc(2, sizeof(*many));
	struct call calls[2] = { call_of(renew_many_verb, s->worker, &many[0]),
				 call_of(renew_many_verb, s->other, &many[1]) };

	for (int i = 0; i < N; i++) {
		char run_id[16];

		snprintf(run_id, sizeof(run_id), "r%d", i);
		many[0].tokens[i] = many[1].tokens[N - 1 - i] = take_run(s, run_id, "w");
	}
	many[0].n = many[1].n = N;
	for (int round = 0; round < test_rounds(100); round++) {
		call_start(&calls[0]);
		call_start(&calls[1]);
		assert_granted(call_wait(&calls[0]));
		assert_granted(call_wait(&calls[1]));
		for (int i = 0; i < N; i++)
			assert_int_equal(many[0].results[i] | many[1].results[i], 0);
	}
	free(many);
}

/* -- hammering ---------------------------------------------------------------------------------------------------------- */

enum action { COMPLETE, RELEASE, RENEW_AND_DIE, DIE };

/* One worker of a race: a share of the runs, each with an action near the end of its lease. */
struct racer {
	PGconn *conn;
	const struct race *race;
	int first, step;
	unsigned seed;
	int errors;
	struct lease_error error;
};

struct race {
	int n, workers;
	const enum action *actions; /* to choose from */
	unsigned n_actions;
	int64_t began; /* CLOCK_MONOTONIC when the leases were written */
	int64_t *ends; /* microseconds after that */
	enum action *did;
	int *results; /* of the action; each racer writes its own */
	atomic_int *told; /* how often a reconciler said that it closed this run's attempt */
};

static int64_t monotonic(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000;
}

static int act(PGconn *conn, enum action action, const struct lease_token *token,
	       struct lease_error *reterr)
{
	struct lease_release release = { .token = *token, .timeout = patience };

	switch (action) {
	case COMPLETE:
		return complete_verb(conn, (void *)(uintptr_t)token, reterr);
	case RELEASE:
		return lease_release_lease_for_retry(conn, &release, NULL, reterr);
	case RENEW_AND_DIE:
		return lease_renew_lease(conn, token, 100 * LEASE_MILLISECOND, patience, NULL,
					 reterr);
	case DIE:
		break;
	}
	return LEASE_EXPIRED;
}

static int race_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct racer *racer = arg;
	const struct race *race = racer->race;

	(void)reterr;
	for (int i = racer->first; i < race->n; i += racer->step) {
		char run_id[16];
		struct lease_token token;
		/* mostly within a few milliseconds of the end, sometimes in good time */
		int64_t early = random_below(&racer->seed, 4)
					? (int64_t)random_below(&racer->seed, 8000) - 2000
					: 60000;
		int64_t left = race->began + race->ends[i] - early - monotonic();

		if (left > 0)
			nanosleep(&(struct timespec){ left / LEASE_SECOND,
						      left % LEASE_SECOND * 1000 },
				  NULL);
		snprintf(run_id, sizeof(run_id), "r%04d", i + 1);
		token = token_of(run_id, 1, "w");
		race->did[i] = race->actions[random_below(&racer->seed, race->n_actions)];
		race->results[i] = act(conn, race->did[i], &token, &racer->error);
		if (race->results[i] < 0)
			racer->errors++;
	}
	return racer->errors;
}

static void note_told(void *arg, const struct lease_closed *closed)
{
	const struct race *race = arg;
	int number = atoi(closed->run_id + 1) - 1;

	if (closed->attempt_no == 1 && number >= 0 && number < race->n)
		atomic_fetch_add(&race->told[number], 1);
}

/* Each run's rows agree with what its worker and the reconcilers were told. */
static void judge_race(struct scenario *s, const struct race *race)
{
	PGresult *result = PQexec(s->admin,
				  "select r.status, a.outcome, a.attempt_no, r.state_version "
				  "from lease.runs r join lease.run_attempts a using (run_id) "
				  "order by run_id");
	int won = 0, lost = 0;

	assert_int_equal(PQntuples(result), race->n); /* one attempt each */
	for (int i = 0; i < race->n; i++) {
		const char *status = PQgetvalue(result, i, 0), *outcome = PQgetvalue(result, i, 1);
		bool ended = race->results[i] == 0 && race->did[i] != RENEW_AND_DIE;
		const char *expected = !ended                     ? "lease_expired"
				       : race->did[i] == COMPLETE ? "completed"
								  : "retry_released";

		if (race->results[i] != 0)
			assert_refused(LEASE_EXPIRED, race->results[i]);
		assert_string_equal(outcome, expected);
		assert_string_equal(status,
				    strcmp(outcome, "completed") == 0 ? "completed" : "pending");
		assert_string_equal(PQgetvalue(result, i, 3), "3");
		assert_int_equal(race->told[i], ended ? 0 : 1);
		if (race->did[i] != DIE)
			*(race->results[i] == 0 ? &won : &lost) += 1;
	}
	PQclear(result);
	print_message("%d runs: the worker was in time %d times and late %d times\n", race->n, won,
		      lost);
	assert_explained(s);
}

static void run_race(struct scenario *s, int n, int workers, const enum action *actions,
		     unsigned n_actions)
{
	struct race race = {
		.n = n, .workers = workers, .actions = actions, .n_actions = n_actions
	};
	struct lease_sweep_options options;
	struct lease_sweep_callbacks callbacks = { .closed = note_told, .arg = &race };
	struct sweeper *sweepers[2];
	struct lease_sweep_figures figures[2];
	struct racer *racers = calloc((size_t)workers, sizeof(*racers));
	struct call *calls = calloc((size_t)workers, sizeof(*calls));
	int64_t spread = (int64_t)n * 2000 / workers;

	race.ends = calloc((size_t)n, sizeof(*race.ends));
	race.did = calloc((size_t)n, sizeof(*race.did));
	race.results = calloc((size_t)n, sizeof(*race.results));
	race.told = calloc((size_t)n, sizeof(*race.told));
	for (int i = 0; i < n; i++)
		race.ends[i] = LEASE_SECOND / 2 + spread * i / n;
	lose_many(s, n);
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	options.interval = 100 * LEASE_MILLISECOND;
	options.batch_size = 50;
	race.began = monotonic();
	sql(s->admin,
	    "update lease.run_attempts set lease_expires_at = statement_timestamp() + "
	    "interval '500 ms' + (substr(run_id, 2)::int - 1) * %f * interval '1 microsecond'",
	    (double)spread / n);
	for (int i = 0; i < 2; i++)
		sweepers[i] = sweeper_start(s, &options, &callbacks);
	for (int i = 0; i < workers; i++) {
		racers[i] = (struct racer){
			.race = &race, .first = i, .step = workers, .seed = (unsigned)i * 77 + 1
		};
		calls[i] = call_of(race_verb, test_connect(s->conninfo), &racers[i]);
		call_start(&calls[i]);
	}
	for (int i = 0; i < workers; i++) {
		int errors = call_wait(&calls[i]);

		PQfinish(calls[i].conn);
		if (errors > 0)
			fail_msg("%d errors, the last: SQLSTATE %s: %s", errors,
				 racers[i].error.sqlstate, racers[i].error.message);
	}
	wait_sql(s->admin, "select count(*) = 0 from lease.run_attempts where finished_at is null");
	for (int i = 0; i < 2; i++)
		assert_int_equal(sweeper_stop(sweepers[i], &figures[i]), 0);
	judge_race(s, &race);
	assert_int_equal(sql_number(s->admin, "select count(*) from lease.run_attempts "
					      "where outcome = 'lease_expired'"),
			 figures[0].closed + figures[1].closed);
	free(race.ends);
	free(race.did);
	free(race.results);
	free(race.told);
	free(racers);
	free(calls);
}

static void case_11_complete_against_reconcile_on_leases_just_ending(void **state)
{
	static const enum action complete[] = { COMPLETE };

	run_race(*state, test_rounds(1000), 4, complete, 1);
}

static void two_reconcilers_and_eight_workers_over_leases_just_ending(void **state)
{
	static const enum action all[] = { COMPLETE, RELEASE, RENEW_AND_DIE, DIE };

	run_race(*state, 2000, 8, all, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(sixteen_connections_claim_one_run_and_one_wins),
		store_test(sixteen_connections_take_over_one_run_and_one_wins),
		store_test(sixteen_connections_claim_the_next_and_each_gets_its_own),
		store_test(workers_take_over_lost_runs_and_are_told_nothing_odd),
		store_test(case_08_a_renewal_in_flight_over_the_end_before_the_closer),
		store_test(case_08_a_renewal_in_flight_over_the_end_after_the_closer),
		store_test(the_closer_sees_a_renewal_that_came_between_look_and_close),
		store_test(a_refresh_written_after_a_renewal_does_not_shorten),
		store_test(a_renewal_before_the_completion),
		store_test(a_renewal_after_the_completion),
		store_test(a_completion_waits_for_the_closer_and_is_refused),
		store_test(a_close_from_outside_is_respected),
		store_test(a_cancel_request_before_the_completion),
		store_test(a_cancel_request_after_the_completion),
		store_test(case_01_a_run_that_is_completed_after_it_was_listed),
		store_test(case_01_a_run_that_is_released_and_claimed_after_it_was_listed),
		store_test(key_share_locks_pass),
		store_test(case_13_a_second_reconciler_loses_every_row),
		store_test(case_07_two_reconcilers_never_deadlock),
		store_test(many_renewals_lock_in_order_of_run_id),
		store_test(a_close_locks_attempts_in_order_of_run_id),
		store_test(overlapping_renewals_in_opposite_order_never_deadlock),
		store_test(case_11_complete_against_reconcile_on_leases_just_ending),
		store_test(two_reconcilers_and_eight_workers_over_leases_just_ending),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("races", tests, NULL, scenario_end);
}
