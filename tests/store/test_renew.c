/*
 * Renewing on a real database: one round trip, one heap-only update, never shorter, never past the
 * deadline, and the same verdict as lease_decide's row.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "scenario.h"
#include "sql.h"

/* -- one lease ------------------------------------------------------------------------------------ */

static void renewal_extends_the_lease(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	int64_t before = lease_clock_boottime();
	struct lease_grant grant;
	int64_t after;

	assert_granted(renew(s->worker, &token, 2 * LONG, &grant));
	after = lease_clock_boottime();
	assert_memory_equal(&grant.token, &token, sizeof(token));
	assert_true(grant.lease_expires_at >= grant.now + 2 * LONG);
	assert_true(grant.lease_expires_at <= grant.now + 2 * LONG + LEASE_SECOND);
	assert_true(grant.deadline_at == LEASE_TIME_NONE);
	assert_int_equal(grant.state_version, 0);
	assert_false(grant.cancel_requested);
	assert_false(grant.new_attempt);
	assert_true(grant.local_end >= before + 2 * LONG / 100 * 99);
	assert_true(grant.local_end <= after + 2 * LONG / 100 * 99 + LEASE_SECOND);
	assert_sql(s->admin, "t",
		   "select (extract(epoch from lease_expires_at) * 1000000)::bigint = %lld "
		   "and (extract(epoch from heartbeat_at) * 1000000)::bigint = %lld "
		   "and heartbeat_at > started_at from lease.run_attempts",
		   (long long)grant.lease_expires_at, (long long)grant.now);
	assert_run(s, "r", "running v2 | 1 w open");
}

static void renewal_touches_the_attempt_alone(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	/* somebody holds the run's row all the while */
	sql(s->other, "begin; select from lease.runs for update");
	assert_granted(renew(s->worker, &token, LONG, NULL));
	sql(s->other, "rollback");
}

static void renewal_never_shortens(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_grant first, second;

	assert_granted(renew(s->worker, &token, LONG, &first));
	assert_granted(renew(s->worker, &token, LEASE_SECOND, &second));
	assert_true(second.lease_expires_at == first.lease_expires_at);
	assert_true(second.now > first.now);
	assert_granted(lease_renew_lease(s->worker, &token, 1, LONG, &second, &last_error));
	assert_true(second.lease_expires_at == first.lease_expires_at);
}

static void renewal_never_reaches_past_the_deadline(void **state)
{
	struct scenario *s = *state;
	struct lease_submission submission = { .run_id = "r", .deadline = 600 * LEASE_SECOND };
	struct lease_grant grant;

	assert_granted(lease_submit(s->worker, &submission, NULL, NULL, &last_error));
	assert_granted(claim(s->worker, "r", "w", LEASE_SECOND * 300, &grant));
	assert_true(grant.lease_expires_at < grant.deadline_at);
	assert_granted(renew(s->worker, &grant.token, LONG, &grant));
	assert_true(grant.lease_expires_at == grant.deadline_at);
	assert_granted(renew(s->worker, &grant.token, LONG, &grant));
	assert_true(grant.lease_expires_at == grant.deadline_at);
	assert_granted(lease_renew_leases(s->worker, &grant.token, 1, LONG, 0, &grant,
					  (int[1]){ 9 }, &last_error));
	assert_true(grant.lease_expires_at == grant.deadline_at);
	assert_sql(s->admin, "t",
		   "select a.lease_expires_at = r.deadline_at from lease.runs r "
		   "join lease.run_attempts a using (run_id)");
}

static void the_local_end_comes_before_the_databases_and_moves_on(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	int64_t ttl = 2 * LONG, last = 0;

	for (int i = 0; i < 50; i++) {
		struct lease_grant grant;
		int64_t after;

		ttl += 10 * LEASE_SECOND;
		assert_granted(renew(s->worker, &token, ttl, &grant));
		after = lease_clock_boottime();
		/* at `after` the database's clock is at least at grant.now */
		assert_true(grant.local_end - after < grant.lease_expires_at - grant.now);
		assert_true(grant.local_end > last);
		last = grant.local_end;
	}
}

static void a_long_ttl_is_renewed_and_refused_like_a_short_one(void **state)
{
	struct scenario *s = *state;
	struct lease_token tokens[2] = { take_run(s, "a", "w"), take_run(s, "b", "w") };
	struct lease_grant grants[2];
	int results[2];

	/* as milliseconds this is more than the server takes for a timeout */
	assert_granted(renew(s->worker, &tokens[0], LEASE_DURATION_MAX, &grants[0]));
	assert_true(grants[0].lease_expires_at > grants[0].now + LEASE_DURATION_MAX / 2);
	assert_granted(lease_renew_leases(s->worker, tokens, 2, LEASE_DURATION_MAX, 0, grants,
					  results, &last_error));
	end_lease(s, "b");
	assert_refused(LEASE_EXPIRED, renew(s->worker, &tokens[1], LEASE_DURATION_MAX, NULL));
}

static void renewal_costs_one_round_trip(void **state)
{
	struct scenario *s = *state;
	struct lease_token tokens[2] = { take_run(s, "a", "w"), take_run(s, "b", "w") };
	struct lease_grant grants[2];
	struct round_trips trips;
	int results[2];

	round_trips_start(&trips, s->worker);
	assert_granted(renew(s->worker, &tokens[0], LONG, NULL));
	assert_int_equal(round_trips_stop(&trips), 1);
	round_trips_start(&trips, s->worker);
	assert_granted(
		lease_renew_leases(s->worker, tokens, 2, LONG, 0, grants, results, &last_error));
	assert_int_equal(round_trips_stop(&trips), 1);
	end_lease(s, "a");
	end_lease(s, "b");
	round_trips_start(&trips, s->worker);
	assert_granted(
		lease_renew_leases(s->worker, tokens, 2, LONG, 0, grants, results, &last_error));
	assert_int_equal(round_trips_stop(&trips), 2); /* one more for all refused together */
	assert_int_equal(results[0], LEASE_EXPIRED);
	assert_int_equal(results[1], LEASE_EXPIRED);
}

static void each_refusal_of_a_renewal(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w"), wrong = token;
	struct lease_grant grant, untouched;

	memset(&grant, 0x5a, sizeof(grant));
	untouched = grant;
	snprintf(wrong.run_id, sizeof(wrong.run_id), "nothing");
	assert_refused(LEASE_NOT_FOUND, renew(s->worker, &wrong, LONG, &grant));
	wrong = token;
	wrong.attempt_no = 2;
	assert_refused(LEASE_NOT_OWNER, renew(s->worker, &wrong, LONG, &grant));
	wrong = token;
	snprintf(wrong.owner, sizeof(wrong.owner), "W");
	assert_refused(LEASE_NOT_OWNER, renew(s->worker, &wrong, LONG, &grant));
	end_lease(s, "r");
	assert_refused(LEASE_EXPIRED, renew(s->worker, &token, LONG, &grant));
	assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_refused(LEASE_EXPIRED, renew(s->worker, &token, LONG, &grant));
	token = take_run(s, "done", "w");
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_refused(LEASE_TERMINAL, renew(s->worker, &token, LONG, &grant));
	assert_true(memcmp(&grant, &untouched, sizeof(grant)) == 0);
}

static void case_03_a_lease_renewed_for_ten_lengths_never_expires(void **state)
{
	struct scenario *s = *state;
	const int64_t ttl = LEASE_SECOND / 2;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct sweeper *sweeper;
	struct lease_grant grant;
	int64_t began, stalls = 0;

	lease_sweep_options_init(&options);
	options.interval = 20 * LEASE_MILLISECOND;
	options.policy = LEASE_POLICY_FAIL;
	submit(s->worker, "r");
	sweeper = sweeper_start(s, &options, NULL);
	assert_granted(claim(s->worker, "r", "w0", ttl, &grant));
	began = grant.now;
	while (grant.now < began + 10 * ttl) {
		int64_t end = grant.local_end;
		int r;

		poll(NULL, 0, (int)(ttl / 5 / 1000));
		r = renew(s->worker, &grant.token, ttl, &grant);
		if (r == 0)
			continue;
		/* only a machine that stood still excuses it: then the answer comes after the end */
		if (lease_clock_boottime() < end || ++stalls > 20)
			assert_granted(r);
		PQreset(s->worker);
		snprintf(grant.token.run_id, sizeof(grant.token.run_id), "r%d", (int)stalls);
		submit(s->worker, grant.token.run_id);
		assert_granted(claim(s->worker, grant.token.run_id, "w", ttl, &grant));
		began = grant.now;
	}
	assert_int_equal(sweeper_stop(sweeper, &figures), 0);
	assert_int_equal(figures.closed, stalls);
	assert_true(figures.passes > 10);
	assert_sql(s->admin, "t",
		   "select count(*) = 1 from lease.run_attempts where finished_at is null");
}

/* -- many leases ---------------------------------------------------------------------------------- */

static void renew_many_in_any_order(void **state)
{
	enum { N = 200 };
	struct scenario *s = *state;
	struct lease_token tokens[N];
	struct lease_grant grants[N];
	int results[N];

	for (int i = 0; i < N; i++) {
		char run_id[16];

		snprintf(run_id, sizeof(run_id), "r%03d", i * 37 % N); /* 37 is prime to 200 */
		tokens[i] = take_run(s, run_id, "w");
	}
	end_lease(s, tokens[7].run_id);
	tokens[8].attempt_no = 5;
	snprintf(tokens[9].run_id, sizeof(tokens[9].run_id), "nothing");
	snprintf(tokens[10].owner, sizeof(tokens[10].owner), "x");
	assert_granted(request_cancel(s->other, tokens[11].run_id, 0, NULL));
	assert_granted(finish(s->other, &tokens[12], LEASE_RUN_COMPLETED, NULL, NULL));
	assert_granted(lease_renew_leases(s->worker, tokens, N, 2 * LONG, 0, grants, results,
					  &last_error));
	for (int i = 0; i < N; i++) {
		static const struct lease_grant none;
		int expected = i == 7    ? LEASE_EXPIRED
			       : i == 8  ? LEASE_NOT_OWNER
			       : i == 9  ? LEASE_NOT_FOUND
			       : i == 10 ? LEASE_NOT_OWNER
			       : i == 12 ? LEASE_TERMINAL
					 : 0;

		assert_int_equal(results[i], expected);
		if (expected) {
			assert_memory_equal(&grants[i], &none, sizeof(none));
			continue;
		}
		assert_memory_equal(&grants[i].token, &tokens[i], sizeof(tokens[i]));
		assert_true(grants[i].lease_expires_at >= grants[i].now + 2 * LONG);
		assert_true(grants[i].local_end > 0);
		assert_int_equal(grants[i].cancel_requested, i == 11);
	}
	assert_sql(s->admin, "195",
		   "select count(*) from lease.run_attempts "
		   "where lease_expires_at > clock_timestamp() + interval '110 min'");
}

static void renew_many_never_shortens(void **state)
{
	struct scenario *s = *state;
	struct lease_token tokens[2] = { take_run(s, "a", "w"), take_run(s, "b", "w") };
	struct lease_grant first[2], second[2];
	int results[2];

	assert_granted(
		lease_renew_leases(s->worker, tokens, 2, LONG, 0, first, results, &last_error));
	assert_granted(
		lease_renew_leases(s->worker, tokens, 2, 1, LONG, second, results, &last_error));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(results[i], 0);
		assert_true(first[i].lease_expires_at == second[i].lease_expires_at);
	}
}

static void renew_many_refuses_bad_lists(void **state)
{
	struct scenario *s = *state;
	struct lease_token tokens[2] = { take_run(s, "a", "w"), take_run(s, "a2", "w") };
	struct lease_token twice[2] = { tokens[0], tokens[0] };
	struct lease_grant grants[2];
	int results[2];
	char *before = run_bytes(s, "a");

	assert_error(LEASE_E_INVALID, lease_renew_leases(s->worker, tokens, 0, LONG, 0, grants,
							 results, &last_error));
	assert_error(LEASE_E_INVALID, lease_renew_leases(s->worker, tokens, 10001, LONG, 0, grants,
							 results, &last_error));
	assert_error(LEASE_E_INVALID, lease_renew_leases(s->worker, twice, 2, LONG, 0, grants,
							 results, &last_error));
	assert_non_null(strstr(last_error.message, "a"));
	tokens[1].attempt_no = 0;
	assert_error(LEASE_E_INVALID, lease_renew_leases(s->worker, tokens, 2, LONG, 0, grants,
							 results, &last_error));
	assert_untouched(s, "a", before);
}

/* A worker keeps its grants where they are renewed: an error must not take its local_end away. */
static void after_an_error_the_grants_are_as_before(void **state)
{
	struct scenario *s = *state;
	struct lease_token tokens[2] = { take_run(s, "a", "w"), take_run(s, "b", "w") };
	struct lease_grant grants[2], before[2];
	int results[2] = { 41, 42 };

	memset(grants, 0x5a, sizeof(grants));
	memcpy(before, grants, sizeof(before));
	sql(s->worker, "begin");
	assert_error(LEASE_E_BUSY, lease_renew_leases(s->worker, tokens, 2, LONG, 0, grants,
						      results, &last_error));
	sql(s->worker, "rollback");
	assert_true(memcmp(grants, before, sizeof(before)) == 0);
	tokens[1].attempt_no = -1;
	assert_error(LEASE_E_INVALID, lease_renew_leases(s->worker, tokens, 2, LONG, 0, grants,
							 results, &last_error));
	assert_true(memcmp(grants, before, sizeof(before)) == 0);
	assert_int_equal(results[0], 41);
	assert_int_equal(results[1], 42);
}

/* -- the SQL and the table ------------------------------------------------------------------------ */

/* A run made by hand: any status, with a history, and perhaps an open attempt. */
struct random_state {
	enum lease_run_status status;
	int closed; /* attempts 1 to `closed` are closed, by "own" or "other" */
	bool own_closed; /* whose they are */
	bool open, own, valid;
	int cancel, deadline; /* deadline 0 none, 1 ahead, 2 passed, 3 before the ttl's end */
	int32_t named;
	bool name_own;
};

static struct random_state make_state(unsigned *seed)
{
	return (struct random_state){
		.status = (enum lease_run_status)random_below(seed, 7),
		.closed = (int)random_below(seed, 3),
		.own_closed = random_below(seed, 2),
		.open = random_below(seed, 4) > 0,
		.own = random_below(seed, 4) > 0,
		.valid = random_below(seed, 3) > 0,
		.cancel = random_below(seed, 2) != 0,
		.deadline = (int)random_below(seed, 4),
		.named = (int32_t)random_below(seed, 4) + 1,
		.name_own = random_below(seed, 5) > 0,
	};
}

static void insert_state(struct scenario *s, const char *run_id, const struct random_state *r)
{
	static const char *const deadlines[] = { "null", "interval '9 h'", "interval '-1 h'",
						 "interval '90 min'" };
	bool terminal = lease_run_status_is_terminal(r->status);

	sql(s->admin,
	    "insert into lease.runs (run_id, deadline_at) values ('%s', clock_timestamp() + %s)",
	    run_id, deadlines[r->deadline]);
	for (int i = 1; i <= r->closed + (r->open ? 1 : 0); i++) {
		bool open = i > r->closed;

		sql(s->admin,
		    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, "
		    "deadline_at, cancel_requested_at) select run_id, %d, '%s', "
		    "clock_timestamp() + interval '%s', deadline_at, %s from lease.runs where run_id = '%s'",
		    i, (open ? r->own : r->own_closed) ? "own" : "other",
		    open && r->valid ? "1 h" : "-1 h",
		    open && r->cancel ? "clock_timestamp()" : "null", run_id);
		if (!open)
			sql(s->admin,
			    "update lease.run_attempts set finished_at = clock_timestamp(), "
			    "outcome = 'retry_released' where run_id = '%s' and attempt_no = %d",
			    run_id, i);
	}
	sql(s->admin,
	    "update lease.runs set status = '%s', finished_at = %s, state_version = %d, "
	    "cancel_requested_at = %s where run_id = '%s'",
	    lease_run_status_name(r->status), terminal ? "clock_timestamp()" : "null",
	    r->status == LEASE_RUN_PENDING ? 1 : 2, r->cancel ? "clock_timestamp()" : "null",
	    run_id);
}

/* What a look would find, with `now` in the middle of all those hours. */
static struct lease_facts facts_of(const struct random_state *r)
{
	bool open_named = r->open && r->named == r->closed + 1;
	bool closed_named = r->named <= r->closed;

	return (struct lease_facts){
		.now = 0,
		.found = true,
		.status = r->status,
		.state_version = 2,
		.not_before = LEASE_TIME_NONE,
		.deadline_at = r->deadline == 0   ? LEASE_TIME_NONE
			       : r->deadline == 2 ? -1
						  : 1,
		.cancel_requested_at = r->cancel ? -1 : LEASE_TIME_NONE,
		.open = { r->open ? r->closed + 1 : 0, r->own ? "own" : "other", r->valid ? 1 : 0 },
		.named = { open_named || closed_named ? r->named : 0,
			   (open_named ? r->own : r->own_closed) ? "own" : "other",
			   closed_named ? LEASE_OUTCOME_RETRY_RELEASED : LEASE_OUTCOME_NONE, NULL },
		.last_attempt_no = r->closed + (r->open ? 1 : 0),
	};
}

static void renewal_in_sql_is_the_row_of_the_table(void **state)
{
	struct scenario *s = *state;
	unsigned seed = 20;
	int granted = 0, refused[LEASE_ILLEGAL + 1] = { 0 };

	for (int i = 0; i < test_rounds(300); i++) {
		struct random_state r = make_state(&seed);
		struct lease_facts facts = facts_of(&r);
		char run_id[16];
		struct lease_token token;
		struct lease_command command;
		struct lease_decision decision;
		struct lease_grant grant;
		long long before = 0;
		char *bytes;

		snprintf(run_id, sizeof(run_id), "r%d", i);
		insert_state(s, run_id, &r);
		token = token_of(run_id, r.named, r.name_own ? "own" : "other");
		command = (struct lease_command){ .kind = COMMAND_RENEW,
						  .run_id = token.run_id,
						  .attempt_no = token.attempt_no,
						  .owner = token.owner,
						  .ttl = 2 * LONG };
		lease_decide(&facts, &command, &decision);
		bytes = run_bytes(s, run_id);
		if (decision.verdict == VERDICT_REFUSE) {
			assert_refused((int)decision.refusal,
				       renew(s->worker, &token, 2 * LONG, &grant));
			assert_untouched(s, run_id, bytes);
			refused[decision.refusal]++;
			continue;
		}
		free(bytes);
		before = sql_number(
			s->admin,
			"select (extract(epoch from lease_expires_at) * 1000000)::bigint "
			"from lease.run_attempts where run_id = '%s' and finished_at is null",
			run_id);
		assert_granted(renew(s->worker, &token, 2 * LONG, &grant));
		granted++;
		assert_int_equal(grant.cancel_requested, r.cancel);
		/* greatest(what it is, least(now + ttl, deadline_at)) */
		if (r.deadline == 2)
			assert_true(grant.lease_expires_at == before);
		else if (r.deadline == 3)
			assert_true(grant.lease_expires_at == grant.deadline_at);
		else
			assert_true(grant.lease_expires_at >= grant.now + 2 * LONG &&
				    grant.lease_expires_at < grant.now + 2 * LONG + LEASE_SECOND);
	}
	assert_true(granted > 10);
	assert_true(refused[LEASE_EXPIRED] > 10 && refused[LEASE_NOT_OWNER] > 10 &&
		    refused[LEASE_TERMINAL] > 3);
}

/* -- what a renewal costs the database ------------------------------------------------------------ */

/* WAL records and bytes of so many renewals, as EXPLAIN counts them, full page images left out. */
static void count_wal(struct scenario *s, int renewals, long long *ret_records,
		      long long *ret_bytes)
{
	sql(s->admin, "prepare renewal as %s", lease_sql_renew);
	*ret_records = *ret_bytes = 0;
	/* what a checkpoint makes dirty again would count as full page images */
	for (int i = 0; i < renewals; i++) {
		char *plan = sql_text(s->admin,
				      "explain (analyze, wal, costs off, timing off, format json) "
				      "execute renewal('r', 1, 'w', %lld)",
				      (long long)LONG);
		const char *records = strstr(plan, "\"WAL Records\":");
		const char *bytes = strstr(plan, "\"WAL Bytes\":");
		const char *images = strstr(plan, "\"WAL FPI\":");

		assert_non_null(records);
		assert_non_null(bytes);
		assert_non_null(images);
		if (atoi(images + strlen("\"WAL FPI\":")) == 0) {
			*ret_records += atoll(records + strlen("\"WAL Records\":"));
			*ret_bytes += atoll(bytes + strlen("\"WAL Bytes\":"));
		} else {
			i--;
		}
		/* a trigger that was called is listed with its calls */
		assert_null(strstr(plan, "\"Trigger Name\""));
		free(plan);
	}
	sql(s->admin, "deallocate renewal");
}

static void the_guards_cost_a_renewal_nothing(void **state)
{
	struct scenario *s = *state;
	long long records, bytes, bare_records, bare_bytes;

	take_run(s, "r", "w");
	count_wal(s, 1000, &records, &bytes);
	sql(s->admin, "alter table lease.run_attempts disable trigger all; "
		      "alter table lease.runs disable trigger all");
	count_wal(s, 1000, &bare_records, &bare_bytes);
	print_message("WAL a renewal: %lld bytes, without the guards %lld\n", bytes / 1000,
		      bare_bytes / 1000);
	assert_true(records < 1100); /* one each, and now and then a page is pruned */
	assert_true(bytes <= bare_bytes * 105 / 100);
	assert_true(records <= bare_records * 105 / 100);
	assert_true(bytes / 1000 <= 300);
}

static void renewals_are_heap_only(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");

	for (int i = 0; i < 300; i++)
		assert_granted(renew(s->worker, &token, LONG, NULL));
	/* a session hands its counts in when it is idle, and at the latest when it ends */
	PQfinish(s->worker);
	s->worker = test_connect(s->conninfo);
	wait_sql(s->admin,
		 "select n_tup_upd >= 300 from pg_stat_user_tables where relname = 'run_attempts'");
	/* an analyze of the server's own may hold a snapshot and so keep a full page from being cleared */
	assert_sql(s->admin, "t",
		   "select n_tup_hot_upd * 100 >= n_tup_upd * 95 from pg_stat_user_tables "
		   "where relname = 'run_attempts'");
}

static void no_index_holds_the_lease(void **state)
{
	struct scenario *s = *state;

	assert_sql(
		s->admin, "0",
		"select count(*) from pg_index i join pg_attribute a on a.attrelid = i.indrelid "
		"and a.attnum = any (i.indkey) where i.indrelid = 'lease.run_attempts'::regclass "
		"and a.attname in ('lease_expires_at', 'heartbeat_at')");
}

static void case_10_a_renewal_period_needs_room_for_two_lost_ones(void **state)
{
	(void)state;
	assert_granted(lease_ttl_check(30 * LEASE_SECOND, 10 * LEASE_SECOND, &last_error));
	assert_granted(lease_ttl_check(3, 1, &last_error));
	/* the message says what to change */
	assert_error(LEASE_E_INVALID,
		     lease_ttl_check(30 * LEASE_SECOND, 10 * LEASE_SECOND + 1, &last_error));
	assert_non_null(strstr(last_error.message, "third"));
	assert_error(LEASE_E_INVALID, lease_ttl_check(2, 1, &last_error));
	assert_error(LEASE_E_INVALID, lease_ttl_check(0, 1, &last_error));
	assert_error(LEASE_E_INVALID, lease_ttl_check(30, 0, &last_error));
	assert_error(LEASE_E_INVALID, lease_ttl_check(-3, -1, &last_error));
	assert_error(LEASE_E_INVALID, lease_ttl_check(LEASE_DURATION_MAX + 1, 1, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(renewal_extends_the_lease),
		store_test(renewal_touches_the_attempt_alone),
		store_test(renewal_never_shortens),
		store_test(renewal_never_reaches_past_the_deadline),
		store_test(the_local_end_comes_before_the_databases_and_moves_on),
		store_test(a_long_ttl_is_renewed_and_refused_like_a_short_one),
		store_test(renewal_costs_one_round_trip),
		store_test(each_refusal_of_a_renewal),
		store_test(case_03_a_lease_renewed_for_ten_lengths_never_expires),
		store_test(renew_many_in_any_order),
		store_test(renew_many_never_shortens),
		store_test(renew_many_refuses_bad_lists),
		store_test(after_an_error_the_grants_are_as_before),
		store_test(renewal_in_sql_is_the_row_of_the_table),
		store_test_alone(the_guards_cost_a_renewal_nothing),
		store_test_alone(renewals_are_heap_only),
		store_test(no_index_holds_the_lease),
		cmocka_unit_test(case_10_a_renewal_period_needs_room_for_two_lost_ones),
	};

	return cmocka_run_group_tests_name("renew", tests, NULL, scenario_end);
}
