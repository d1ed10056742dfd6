/*
 * Amnesty: after an outage of the database leases that ended meanwhile hold for a grace, for every
 * verb, for the sweep and for each close in its own write; and only those, only for so long.
 *
 * The heartbeat is either written here, to stand in for an outage, or beaten by a sweep.
 */
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* Both ways in which an amnesty is in force: nobody has beaten since, or somebody has and granted it. */
static const char *const silent = "interval '-1 h', interval '-1 h', interval '-1 h'";
static const char *const granted = "interval '0', interval '-1 h', interval '1 h'";
/* All is well. */
static const char *const beaten = "interval '0', interval '0', interval '-1 h'";

/* beat_at, protect_from and amnesty_until, counted from now. */
static void set_heartbeat(struct scenario *s, const char *offsets)
{
	sql(s->admin,
	    "delete from lease.heartbeat; "
	    "insert into lease.heartbeat (beat_at, protect_from, amnesty_until, after, grace) "
	    "select now + b, now + p, now + u, interval '5 s', interval '15 s' "
	    "from (select clock_timestamp() as now) c, (values (%s)) v (b, p, u)",
	    offsets);
}

/* A run whose lease ended a second ago. */
static struct lease_token take_ended(struct scenario *s, const char *run_id, const char *owner)
{
	struct lease_token token = take_run(s, run_id, owner);

	end_lease(s, run_id);
	return token;
}

static void check_owner(struct scenario *s, const char *heartbeat)
{
	struct lease_token token = take_ended(s, "renewed", "w"), many[2];
	struct lease_grant grants[2];
	struct lease_node_start start = { .node_id = "n" };
	struct lease_node_execution execution;
	int results[2];

	set_heartbeat(s, heartbeat);
	assert_granted(renew(s->worker, &token, LONG, NULL));
	assert_sql(s->admin, "t",
		   "select lease_expires_at > clock_timestamp() from lease.run_attempts "
		   "where run_id = 'renewed'");
	many[0] = take_ended(s, "many1", "w");
	many[1] = take_ended(s, "many2", "w");
	assert_granted(
		lease_renew_leases(s->worker, many, 2, LONG, 0, grants, results, &last_error));
	assert_granted(results[0]);
	assert_granted(results[1]);
	token = take_ended(s, "refreshed", "w");
	assert_granted(claim(s->worker, "refreshed", "w", LONG, NULL));
	assert_run(s, "refreshed", "running v2 | 1 w open");
	token = take_ended(s, "released", "w");
	assert_granted(release(s->worker, &token, 0, NULL));
	token = take_ended(s, "suspended", "w");
	assert_granted(suspend(s->worker, &token, NULL));
	token = take_ended(s, "finished", "w");
	start.token = token;
	assert_granted(lease_node_start(s->worker, &start, &execution, &last_error));
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
}

static void the_owners_verbs_take_effect(void **state)
{
	struct scenario *s = *state;

	check_owner(s, silent);
	scenario_empty(s);
	check_owner(s, granted);
}

static void check_others(struct scenario *s, const char *heartbeat)
{
	struct lease_sweep_figures figures;

	take_ended(s, "r", "w");
	take_ended(s, "cancelled", "w");
	set_heartbeat(s, heartbeat);
	assert_refused(LEASE_HELD, claim(s->other, "r", "x", LONG, NULL));
	assert_refused(LEASE_HELD, give_up(s->other, "r", 0, NULL));
	assert_granted(request_cancel(s->other, "cancelled", 0, NULL));
	for (int policy = LEASE_POLICY_RECORD; policy <= LEASE_POLICY_REQUEUE; policy++) {
		assert_granted(reconcile(s->other, (enum lease_policy)policy, 1, &figures));
		assert_int_equal(figures.closed, 0);
		assert_int_equal(figures.pardoned, 2);
		assert_int_equal(figures.expired, 0);
	}
	assert_run(s, "r", "running v2 | 1 w open");
	assert_run(s, "cancelled", "running v2 | 1 w open");
}

static void nobody_else_takes_or_closes_it(void **state)
{
	struct scenario *s = *state;

	check_others(s, silent);
	scenario_empty(s);
	check_others(s, granted);
}

/* Nothing that liblease does leaves one, but others may have. */
static void a_leftover_is_passed_over_until_the_amnesty_ends(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	assert_granted(submit(s->worker, "leftover"));
	sql(s->admin,
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('leftover', 1, 'w', clock_timestamp() - interval '1 s')");
	set_heartbeat(s, granted);
	assert_refused(LEASE_HELD, claim(s->other, "leftover", "x", LONG, NULL));
	/* it does not stand before the others */
	assert_granted(submit(s->worker, "behind"));
	assert_granted(claim_next(s->other, "x", true, &grant));
	assert_string_equal(grant.token.run_id, "behind");
	assert_refused(LEASE_HELD, request_cancel(s->other, "leftover", 0, NULL));
	set_heartbeat(s, beaten);
	assert_granted(claim_next(s->other, "x", true, &grant));
	assert_run(s, "leftover", "running v2 | 1 w lease_expired worker_lease_expired | 2 x open");
}

static void check_closed(struct scenario *s, const char *heartbeat)
{
	struct lease_token token = take_ended(s, "r", "w");
	struct lease_sweep_figures figures;

	if (heartbeat)
		set_heartbeat(s, heartbeat);
	assert_refused(LEASE_EXPIRED, renew(s->worker, &token, LONG, NULL));
	assert_refused(LEASE_EXPIRED, finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_granted(reconcile(s->other, LEASE_POLICY_FAIL, 0, &figures));
	assert_int_equal(figures.closed, 1);
	assert_int_equal(figures.pardoned, 0);
	assert_run(s, "r",
		   "failed v3 worker_lease_expired | 1 w lease_expired worker_lease_expired");
	scenario_empty(s);
}

static void what_no_amnesty_protects_is_closed_at_once(void **state)
{
	struct scenario *s = *state;

	check_closed(s, NULL); /* no reconciler with amnesty ever ran */
	check_closed(s, beaten); /* no outage */
	/* an outage, but the lease had ended while all was well */
	check_closed(s, "interval '-1 h', interval '0', interval '-1 h'");
	check_closed(s, "interval '0', interval '0', interval '1 h'");
}

static void a_deadline_ends_the_amnesty(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = token_of("r", 1, "w");

	sql(s->admin,
	    "insert into lease.runs (run_id, status, deadline_at) "
	    "values ('r', 'running', clock_timestamp() - interval '1 s'); "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, deadline_at) "
	    "select run_id, 1, 'w', deadline_at, deadline_at from lease.runs");
	set_heartbeat(s, granted);
	assert_refused(LEASE_EXPIRED, renew(s->worker, &token, LONG, NULL));
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, NULL));
	assert_run(s, "r", "failed v2 deadline_exceeded | 1 w lease_expired worker_lease_expired");
}

static void the_status_tells_of_it(void **state)
{
	struct scenario *s = *state;
	struct lease_status status;

	take_ended(s, "r", "w");
	assert_granted(lease_read_status(s->worker, &status, &last_error));
	assert_int_equal(status.attempts_expired, 1);
	assert_int_equal(status.attempts_pardoned, 0);
	assert_true(status.beat_at == LEASE_TIME_NONE);
	set_heartbeat(s, granted);
	assert_granted(lease_read_status(s->worker, &status, &last_error));
	assert_int_equal(status.attempts_expired, 0);
	assert_int_equal(status.attempts_pardoned, 1);
	assert_true(status.oldest_expired_at == LEASE_TIME_NONE);
	assert_true(status.beat_at != LEASE_TIME_NONE && status.amnesty_until > status.now);
}

/* -- a close in flight ---------------------------------------------------------------------------- */

static int sweep_once(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	return lease_reconcile_expired_leases(conn, &options, NULL, arg, reterr);
}

/*
 * At the look the lease is over and not protected. Before the close can write, another has the row; when
 * it is free, the lease has been renewed, and is over once more, but by an outage.
 */
static void a_close_in_flight_consults_the_heartbeat_itself(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;
	struct call sweep = call_of(sweep_once, s->worker, &figures);

	take_ended(s, "r", "w");
	set_heartbeat(s, granted);
	sql(s->admin, "update lease.heartbeat set protect_from = "
		      "(select lease_expires_at from lease.run_attempts)");
	sql(s->other, "begin; select from lease.run_attempts for update");
	call_start(&sweep);
	wait_blocked(s, 1);
	sql(s->other, "update lease.run_attempts "
		      "set lease_expires_at = lease_expires_at + interval '1 ms'; commit");
	assert_granted(call_wait(&sweep));
	assert_int_equal(figures.closed, 0);
	assert_run(s, "r", "running v2 | 1 w open");
}

/* -- the beat ------------------------------------------------------------------------------------ */

static struct lease_sweep_options beating(int64_t after)
{
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	options.interval = 100 * LEASE_MILLISECOND;
	options.amnesty_after = after;
	options.amnesty_grace = after > 0 ? 3 * after : 0;
	return options;
}

static void wait_for_beats(struct scenario *s)
{
	char *before = sql_text(s->admin, "select coalesce(max(beat_at)::text, '-infinity') "
					  "from lease.heartbeat");

	wait_sql(s->admin, "select exists (select from lease.heartbeat where beat_at > '%s')",
		 before);
	free(before);
}

static void the_first_beat_grants_nothing(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(3600 * LEASE_SECOND);
	struct sweeper *sweeper;

	take_ended(s, "r", "w");
	sweeper = sweeper_start(s, &options, NULL);
	wait_sql(s->admin, "select outcome is not null from lease.run_attempts");
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
	assert_sql(
		s->admin, "t,t,01:00:00,03:00:00",
		"select concat_ws(',', beat_at = protect_from, amnesty_until <= beat_at, after, grace) "
		"from lease.heartbeat");
}

static void beats_go_on_and_move_what_is_protected(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(LEASE_SECOND / 5);
	struct sweeper *sweeper = sweeper_start(s, &options, NULL);

	for (int i = 0; i < 3; i++)
		wait_for_beats(s);
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
}

struct told {
	int amnesties;
	int64_t until;
};

static void take_amnesty(void *arg, int64_t until)
{
	struct told *told = arg;

	told->amnesties++;
	told->until = until;
}

/* A gap of an hour before the sweep's first beat; by the row's setting, not by the sweep's. */
static void a_gap_is_an_amnesty(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(3600 * LEASE_SECOND);
	struct told told = { 0 };
	struct lease_sweep_callbacks callbacks = { .amnesty = take_amnesty, .arg = &told };
	struct lease_sweep_figures figures;
	struct sweeper *sweeper;

	take_ended(s, "r", "w");
	set_heartbeat(s, silent);
	sweeper = sweeper_start(s, &options, &callbacks);
	wait_sql(s->admin, "select exists (select from lease.heartbeat "
			   "where beat_at > clock_timestamp() - interval '10 min')");
	/* several passes, and nothing is closed */
	wait_for_passes(sweeper, 3);
	assert_int_equal(sweeper_stop(sweeper, &figures), 0);
	assert_run(s, "r", "running v2 | 1 w open");
	assert_sql(s->admin, "03:00:00,t,01:00:00",
		   "select concat_ws(',', amnesty_until - beat_at, "
		   "protect_from < beat_at - interval '59 min', after) from lease.heartbeat");
	assert_int_equal(told.amnesties, 1);
	assert_true(told.until == figures.amnesty_until);
	assert_int_equal(figures.pardoned, 1);
	assert_int_equal(figures.closed, 0);
}

/* Live workers renew within the grace, dead ones are closed when it is over. */
static void the_dead_are_closed_when_the_grace_is_over(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(200 * LEASE_MILLISECOND);
	struct lease_token live = take_ended(s, "live", "w");
	struct sweeper *sweeper;

	take_ended(s, "dead", "w");
	set_heartbeat(s, silent);
	sweeper = sweeper_start(s, &options, NULL);
	assert_granted(renew(s->worker, &live, LONG, NULL));
	wait_sql(s->admin,
		 "select outcome is not null from lease.run_attempts where run_id = 'dead'");
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
	assert_run(s, "live", "running v2 | 1 w open");
	assert_sql(s->admin, "t",
		   "select finished_at >= amnesty_until from lease.heartbeat, lease.run_attempts "
		   "where run_id = 'dead'");
}

/* Back to back: protect_from stays while an amnesty is in force. */
static void an_amnesty_keeps_what_it_protects(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(LEASE_SECOND / 5);
	struct sweeper *sweeper;
	char *before;

	set_heartbeat(s, granted);
	before = sql_text(s->admin, "select protect_from from lease.heartbeat");
	sweeper = sweeper_start(s, &options, NULL);
	wait_for_beats(s);
	wait_for_beats(s);
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
	assert_sql(s->admin, before, "select protect_from from lease.heartbeat");
	free(before);
}

static void a_clock_that_went_back_is_a_gap(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(3600 * LEASE_SECOND);
	struct sweeper *sweeper;

	set_heartbeat(s, "interval '1 d', interval '1 d', interval '-1 h'");
	sweeper = sweeper_start(s, &options, NULL);
	wait_sql(s->admin, "select amnesty_until > clock_timestamp() and protect_from = beat_at "
			   "from lease.heartbeat");
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
}

static void off_removes_the_heartbeat(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(LEASE_AMNESTY_OFF);
	struct sweeper *sweeper;

	take_ended(s, "r", "w");
	set_heartbeat(s, granted);
	sweeper = sweeper_start(s, &options, NULL);
	wait_sql(s->admin, "select outcome is not null from lease.run_attempts");
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
	assert_sql(s->admin, "0", "select count(*) from lease.heartbeat");
}

static void neither_a_single_sweep_nor_one_without_amnesty_beats(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(0);
	struct sweeper *sweeper;
	char *before;

	set_heartbeat(s, silent);
	before = sql_text(s->admin, "select h::text || xmin from lease.heartbeat h");
	sweeper = sweeper_start(s, &options, NULL);
	wait_for_passes(sweeper, 2);
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
	options = beating(LEASE_SECOND);
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, NULL, &last_error));
	options.amnesty_after = LEASE_AMNESTY_OFF;
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, NULL, &last_error));
	assert_sql(s->admin, before, "select h::text || xmin from lease.heartbeat h");
	free(before);
}

/* While it cannot beat it does not sweep either: here somebody holds the row. */
static void no_beat_no_sweep(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options = beating(400 * LEASE_MILLISECOND);
	struct lease_sweep_figures figures;
	struct sweeper *sweeper;

	set_heartbeat(s, beaten);
	take_ended(s, "r", "w");
	sql(s->other, "begin; select from lease.heartbeat for update");
	sweeper = sweeper_start(s, &options, NULL);
	wait_for_failures(sweeper, 2);
	assert_run(s, "r", "running v2 | 1 w open");
	sql(s->other, "rollback");
	wait_sql(s->admin, "select outcome is not null from lease.run_attempts");
	assert_true(sweeper_stop(sweeper, &figures) >= 2);
	assert_string_equal(last_error.sqlstate, "57014");
}

static void options_that_cannot_protect_are_refused(void **state)
{
	static const int64_t bad[][3] = {
		{ -2, 0, 0 },
		{ LEASE_SECOND, 2 * LEASE_SECOND, 0 },
		{ 10, LEASE_SECOND, 0 },
		{ LEASE_SECOND, LEASE_DURATION_MAX + 1, 0 },
		{ 0, 0, LEASE_SECOND },
		{ LEASE_SECOND, 3 * LEASE_SECOND, -1 },
	};
	struct lease_sweep *sweep = NULL;

	(void)state;
	for (size_t i = 0; i < LENGTH(bad); i++) {
		struct lease_sweep_options options = beating(0);

		options.amnesty_after = bad[i][0];
		options.amnesty_grace = bad[i][1];
		options.max_clock_jump = bad[i][2];
		assert_error(LEASE_E_INVALID, lease_sweep_new(&options, NULL, &sweep, &last_error));
		assert_null(sweep);
	}
}

/* Roles: workers look at the heartbeat, and cannot write it. */
static void workers_cannot_write_it(void **state)
{
	struct scenario *s = *state;

	set_heartbeat(s, beaten);
	sql(s->admin, "set role lease_worker");
	assert_sql(s->admin, "1", "select count(*) from lease.heartbeat");
	sql_fails(s->admin, "42501", "update lease.heartbeat set beat_at = now()");
	sql_fails(s->admin, "42501", "delete from lease.heartbeat");
	sql(s->admin, "reset role; set role lease_reconciler");
	sql(s->admin, "update lease.heartbeat set beat_at = now(); delete from lease.heartbeat");
	sql(s->admin, "reset role");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(the_owners_verbs_take_effect),
		store_test(nobody_else_takes_or_closes_it),
		store_test(a_leftover_is_passed_over_until_the_amnesty_ends),
		store_test(what_no_amnesty_protects_is_closed_at_once),
		store_test(a_deadline_ends_the_amnesty),
		store_test(the_status_tells_of_it),
		store_test(a_close_in_flight_consults_the_heartbeat_itself),
		store_test(the_first_beat_grants_nothing),
		store_test(beats_go_on_and_move_what_is_protected),
		store_test(a_gap_is_an_amnesty),
		store_test(the_dead_are_closed_when_the_grace_is_over),
		store_test(an_amnesty_keeps_what_it_protects),
		store_test(a_clock_that_went_back_is_a_gap),
		store_test(off_removes_the_heartbeat),
		store_test(neither_a_single_sweep_nor_one_without_amnesty_beats),
		store_test(no_beat_no_sweep),
		store_test(options_that_cannot_protect_are_refused),
		store_test(workers_cannot_write_it),
	};

	return cmocka_run_group_tests_name("amnesty", tests, NULL, scenario_end);
}
