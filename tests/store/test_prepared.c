/*
 * What a connection keeps prepared: the verbs' statements from their sixth use on, with plans that do
 * not depend on the parameters; and what takes them away again costs nobody a call.
 */
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

enum { USES = 5, OFTEN = 2 * USES };

#define NAMES "select count(*) from pg_prepared_statements where name like 'lease\\_%%'"

static void renew_often(struct scenario *s, const struct lease_token *token)
{
	for (int i = 0; i < OFTEN; i++)
		assert_granted(renew(s->worker, token, LONG, NULL));
}

/* One run after another, from its claim to its end. */
static void work_often(struct scenario *s, const char *prefix)
{
	for (int i = 0; i < OFTEN; i++) {
		char run_id[32];
		struct lease_grant grant;

		snprintf(run_id, sizeof(run_id), "%s%d", prefix, i);
		assert_granted(submit(s->other, run_id));
		assert_granted(claim_next(s->worker, "w", false, &grant));
		assert_string_equal(grant.token.run_id, run_id);
		assert_granted(finish(s->worker, &grant.token, LEASE_RUN_COMPLETED, NULL, NULL));
		assert_run(s, run_id, "completed v3 | 1 w completed");
	}
}

static void a_statement_stays_prepared_from_its_sixth_use_on(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	for (int i = 0; i < USES; i++)
		assert_granted(renew(s->worker, &token, LONG, NULL));
	assert_sql(s->worker, "0", NAMES);
	renew_often(s, &token);
	assert_sql(s->worker, "1", NAMES);
	assert_sql(s->worker, "t",
		   "select generic_plans > 0 and statement like 'UPDATE lease.run_attempts%%' "
		   "from pg_prepared_statements where name like 'lease\\_%%'");
}

/* Lock, look and the two that write: none is planned for its parameters. */
static void verbs_keep_plans_that_fit_every_run(void **state)
{
	struct scenario *s = *state;
	struct round_trips trips;
	struct lease_grant grant;

	work_often(s, "r");
	assert_sql(s->worker, "0 5",
		   "select sum(custom_plans) || ' ' || count(*) from pg_prepared_statements "
		   "where name like 'lease\\_%%' and statement not like '%%set_config%%'");
	assert_granted(submit(s->other, "r"));
	round_trips_start(&trips, s->worker);
	assert_granted(claim(s->worker, "r", "w", LONG, &grant));
	assert_int_equal(round_trips_stop(&trips), 2);
	round_trips_start(&trips, s->worker);
	assert_granted(renew(s->worker, &grant.token, LONG, NULL));
	assert_int_equal(round_trips_stop(&trips), 1);
	round_trips_start(&trips, s->worker);
	assert_granted(finish(s->worker, &grant.token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_int_equal(round_trips_stop(&trips), 2);
	assert_explained(s);
}

/* Whatever their number, in one round trip, and in the order of run_id: store/test_races. */
static void renewals_of_many_keep_one_plan(void **state)
{
	struct scenario *s = *state;
	struct lease_token tokens[20];
	struct lease_grant grants[20];
	struct round_trips trips;
	int results[20];

	for (int i = 0; i < 20; i++) {
		char run_id[16];

		snprintf(run_id, sizeof(run_id), "r%d", i);
		tokens[i] = take_run(s, run_id, "w");
	}
	for (size_t n = 1; n <= 20; n++) {
		assert_granted(lease_renew_leases(s->worker, tokens, n, LONG, 0, grants, results,
						  &last_error));
		for (size_t i = 0; i < n; i++)
			assert_int_equal(results[i], 0);
	}
	assert_sql(s->worker, "0 1",
		   "select sum(custom_plans) || ' ' || count(*) from pg_prepared_statements "
		   "where statement like '%%unnest(%%int8[])%%'");
	round_trips_start(&trips, s->worker);
	assert_granted(
		lease_renew_leases(s->worker, tokens, 20, LONG, 0, grants, results, &last_error));
	assert_int_equal(round_trips_stop(&trips), 1);
}

/* The application's own connection: what it throws away is sent anew, once and for all. */
static void what_was_discarded_is_sent_anew(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "held", "w");

	renew_often(s, &token);
	work_often(s, "a");
	sql(s->worker, "discard all");
	work_often(s, "b");
	renew_often(s, &token);
	assert_sql(s->worker, "0", NAMES);
	assert_int_equal(PQtransactionStatus(s->worker), PQTRANS_IDLE);
	assert_explained(s);
}

static void a_renewal_after_a_discard_is_granted(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	renew_often(s, &token);
	assert_sql(s->worker, "1", NAMES);
	sql(s->worker, "deallocate all");
	renew_often(s, &token);
	assert_sql(s->worker, "0", NAMES);
}

static void a_name_that_is_taken_is_not_used(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	for (int i = 1; i < 20; i++)
		sql(s->worker, "prepare lease_%d as select 1", i);
	renew_often(s, &token);
	work_often(s, "a");
	assert_sql(s->worker, "19", NAMES);
}

/* As a later migration might: "cached plan must not change result type". */
static void a_changed_column_is_read_anew(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	renew_often(s, &token);
	sql(s->admin, "drop view lease.unexplained_runs, lease.run_overview cascade");
	sql(s->admin, "alter table lease.run_attempts alter heartbeat_at type timestamptz(3)");
	renew_often(s, &token);
}

static void a_connection_that_was_reset_begins_anew(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	renew_often(s, &token);
	PQreset(s->worker);
	assert_sql(s->worker, "0", NAMES);
	renew_often(s, &token);
	assert_sql(s->worker, "1", NAMES);
}

/* Only the look is gone: the lock chose a run already when that is found out. */
static void what_was_discarded_in_part_is_sent_anew(void **state)
{
	struct scenario *s = *state;
	char *look;

	work_often(s, "a");
	look = sql_text(s->worker, "select name from pg_prepared_statements "
				   "where statement like '%%unbroken%%'");
	sql(s->worker, "deallocate %s", look);
	free(look);
	work_often(s, "b");
	assert_int_equal(PQtransactionStatus(s->worker), PQTRANS_IDLE);
	assert_explained(s);
}

static void claim_refused(struct scenario *s, int times)
{
	for (int i = 0; i < times; i++)
		assert_refused(LEASE_NOT_FOUND, claim(s->worker, "none", "w", LONG, NULL));
}

/* The lock fails in the very batch that was to prepare it and the look: later ones do it. */
static void an_error_in_between_leaves_nothing_half_prepared(void **state)
{
	struct scenario *s = *state;
	struct lease_claim given = {
		.run_id = "r", .owner = "w", .ttl = LONG, .timeout = LEASE_SECOND / 5
	};
	struct lease_grant grant;

	assert_granted(submit(s->other, "r"));
	sql(s->other, "begin; select from lease.runs where run_id = 'r' for update");
	claim_refused(s, USES + 1); /* the last one asks whose session it is */
	assert_true(lease_mark_running(s->worker, &given, &grant, &last_error) < 0);
	assert_string_equal(last_error.sqlstate, "55P03");
	assert_sql(s->worker, "2", NAMES); /* the settings and the lock */
	sql(s->other, "rollback");
	claim_refused(s, OFTEN);
	assert_sql(s->worker, "3", NAMES);
	assert_granted(claim(s->worker, "r", "w", LONG, &grant));
	assert_explained(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_statement_stays_prepared_from_its_sixth_use_on),
		store_test(verbs_keep_plans_that_fit_every_run),
		store_test(renewals_of_many_keep_one_plan),
		store_test(what_was_discarded_is_sent_anew),
		store_test(a_renewal_after_a_discard_is_granted),
		store_test(a_name_that_is_taken_is_not_used),
		store_test_alone(a_changed_column_is_read_anew),
		store_test(a_connection_that_was_reset_begins_anew),
		store_test(what_was_discarded_in_part_is_sent_anew),
		store_test(an_error_in_between_leaves_nothing_half_prepared),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("prepared statements", tests, NULL, scenario_end);
}
