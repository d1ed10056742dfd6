/*
 * case 27: every verb through pgbouncer in transaction mode, where each transaction may meet another
 * server session and prepared statements are not there. The daemon's side: tests/ha/test_pooled.c.
 */
#include <stdlib.h>

#include "pooler.h"
#include "scenario.h"

struct pooled {
	struct scenario *s;
	struct pooler pooler;
	PGconn *conns[3]; /* clients, all served by one or two sessions of the server */
};

static struct pooled *start_pooler(struct scenario *s, int sessions)
{
	struct pooled *p = calloc(1, sizeof(*p));

	p->s = s;
	pooler_start(&p->pooler, s->conninfo, sessions);
	for (size_t i = 0; i < LENGTH(p->conns); i++)
		p->conns[i] = test_connect(p->pooler.conninfo);
	return p;
}

static void stop_pooler(struct pooled *p)
{
	for (size_t i = 0; i < LENGTH(p->conns); i++)
		PQfinish(p->conns[i]);
	pooler_stop(&p->pooler);
	free(p);
}

static void case_27_every_verb_works(void **state)
{
	struct scenario *s = *state;
	struct pooled *p = start_pooler(s, 1);
	PGconn *a = p->conns[0], *b = p->conns[1], *c = p->conns[2];
	struct lease_grant grant, other;
	struct lease_history *history;
	struct lease_status status;
	struct lease_sweep_figures figures;
	int result = -1;

	assert_granted(lease_check_database(a, 0, &last_error));
	assert_granted(submit(a, "r"));
	assert_granted(claim(b, "r", "w1", LONG, &grant));
	assert_refused(LEASE_HELD, claim(c, "r", "w2", LONG, NULL));
	assert_granted(renew(c, &grant.token, LONG, NULL));
	assert_granted(
		lease_renew_leases(a, &grant.token, 1, LONG, 0, &other, &result, &last_error));
	assert_int_equal(result, 0);
	assert_granted(release(b, &grant.token, 0, NULL));
	assert_granted(claim_next(a, "w2", true, &grant));
	assert_granted(suspend(c, &grant.token, NULL));
	assert_granted(resume(b, "r", 0, NULL));
	assert_granted(claim(c, "r", "w3", LONG, &grant));
	end_lease(s, "r");
	assert_refused(LEASE_EXPIRED, renew(a, &grant.token, LONG, NULL));
	assert_granted(reconcile(b, LEASE_POLICY_REQUEUE, 3, &figures));
	assert_int_equal(figures.closed, 1);
	assert_granted(claim(a, "r", "w4", LONG, &grant));
	assert_granted(request_cancel(b, "r", 0, NULL));
	assert_granted(finish(c, &grant.token, LEASE_RUN_CANCELLED, NULL, NULL));
	assert_granted(lease_list_attempts(a, "r", &history, &last_error));
	assert_int_equal(history->n_attempts, 4);
	lease_history_free(history);
	assert_granted(lease_read_status(b, &status, &last_error));
	assert_int_equal(status.attempts_open, 0);
	assert_run(s, "r",
		   "cancelled v10 | 1 w1 retry_released | 2 w2 interrupted suspended "
		   "| 3 w3 lease_expired worker_lease_expired | 4 w4 cancelled");
	/* all of it in one session of the server, and nothing is left in that */
	assert_sql(a, "0 0 on on",
		   "select concat_ws(' ', current_setting('statement_timeout'), "
		   "current_setting('lock_timeout'), current_setting('jit'), "
		   "current_setting('enable_seqscan'))");
	assert_sql(a, "0", "select count(*) from pg_prepared_statements");
	assert_explained(s);
	stop_pooler(p);
}

static int claim_all(PGconn *conn, void *arg, struct lease_error *reterr)
{
	int *claimed = arg, r;

	for (;;) {
		char owner[LEASE_ID_MAX + 1];
		struct lease_claim given = { .owner = owner,
					     .ttl = LONG,
					     .timeout = 60 * LEASE_SECOND };
		struct lease_finish finish = { .status = LEASE_RUN_COMPLETED,
					       .timeout = 60 * LEASE_SECOND };
		struct lease_grant grant;

		r = lease_owner_generate("w", owner, reterr);
		if (r == 0)
			r = lease_claim_next(conn, &given, &grant, reterr);
		if (r == 0) {
			finish.token = &grant.token;
			r = lease_set_terminal_status(conn, &finish, NULL, reterr);
		}
		if (r != 0)
			return r;
		++*claimed;
	}
}

static void case_27_clients_take_turns_at_fewer_sessions(void **state)
{
	struct scenario *s = *state;
	struct pooled *p = start_pooler(s, 2);
	int claimed[3] = { 0 };
	struct call calls[3];

	sql(s->admin,
	    "insert into lease.runs (run_id) select 'r' || i from generate_series(1, 120) i");
	for (int i = 0; i < 3; i++) {
		calls[i] = call_of(claim_all, p->conns[i], &claimed[i]);
		call_start(&calls[i]);
	}
	for (int i = 0; i < 3; i++)
		assert_refused(LEASE_NOT_FOUND, call_wait(&calls[i]));
	assert_int_equal(claimed[0] + claimed[1] + claimed[2], 120);
	assert_sql(s->admin, "120",
		   "select count(*) from lease.runs r join lease.run_attempts a using (run_id) "
		   "where r.status = 'completed' and a.outcome = 'completed'");
	/* often as they were sent: both sessions that serve the clients know no statement */
	for (int i = 0; i < 3; i++)
		assert_sql(p->conns[i], "0", "select count(*) from pg_prepared_statements");
	assert_explained(s);
	stop_pooler(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(case_27_every_verb_works),
		store_test(case_27_clients_take_turns_at_fewer_sessions),
	};

	return cmocka_run_group_tests_name("pooler", tests, NULL, scenario_end);
}
