/*
 * The reconciler on a real database: lost attempts are closed once, runs move on by policy, cancel
 * and deadline come first, and nobody's valid lease is touched. Both as one blocking sweep and as
 * the resumable object that a daemon drives.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* -- policies -------------------------------------------------------------------------------------- */

static void lose(struct scenario *s, const char *run_id, const char *owner)
{
	take_run(s, run_id, owner);
	end_lease(s, run_id);
}

static void policy_record_closes_the_attempt_and_leaves_the_run(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;
	char *run;

	lose(s, "r", "w");
	run = sql_text(s->admin, "select format('%%s %%s %%s', ctid, xmin, r) from lease.runs r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_int_equal(figures.closed, 1);
	assert_int_equal(figures.moved[LEASE_RUN_FAILED] + figures.moved[LEASE_RUN_PENDING], 0);
	assert_run(s, "r", "running v2 | 1 w lease_expired worker_lease_expired");
	assert_sql(s->admin, run, "select format('%%s %%s %%s', ctid, xmin, r) from lease.runs r");
	assert_sql(
		s->admin, "t",
		"select finished_at >= lease_expires_at + interval '1 s' from lease.run_attempts");
	assert_explained(s);
	free(run);
}

static void policy_fail_fails_the_run(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;

	lose(s, "r", "w");
	assert_granted(reconcile(s->worker, LEASE_POLICY_FAIL, 0, &figures));
	assert_int_equal(figures.moved[LEASE_RUN_FAILED], 1);
	assert_run(s, "r",
		   "failed v3 worker_lease_expired | 1 w lease_expired worker_lease_expired");
	assert_sql(s->admin, "t",
		   "select r.finished_at >= a.finished_at from lease.runs r "
		   "join lease.run_attempts a using (run_id)");
	assert_explained(s);
}

static void policy_requeue_makes_the_run_due_at_once(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;
	struct lease_grant grant;

	lose(s, "r", "w");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, &figures));
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 1);
	assert_run(s, "r", "pending v3 | 1 w lease_expired worker_lease_expired");
	assert_granted(claim_next(s->other, "w2", false, &grant));
	assert_int_equal(grant.token.attempt_no, 2);
	assert_explained(s);
}

static void lose_again(struct scenario *s, int max_losses)
{
	struct lease_grant grant;
	char owner[LEASE_ID_MAX + 1];

	assert_granted(lease_owner_generate("w", owner, &last_error));
	assert_granted(claim(s->worker, "r", owner, LONG, &grant));
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, max_losses, NULL));
}

static void case_17_a_run_that_kills_every_worker_is_quarantined(void **state)
{
	struct scenario *s = *state;

	submit(s->worker, "r");
	lose_again(s, 3);
	lose_again(s, 3);
	assert_sql(s->admin, "pending", "select status from lease.runs");
	lose_again(s, 3);
	assert_sql(s->admin, "failed lease_losses_exhausted",
		   "select status || ' ' || terminal_error_code from lease.runs");
	assert_sql(s->admin, "3",
		   "select count(*) from lease.run_attempts "
		   "where outcome = 'lease_expired'");
	assert_refused(LEASE_TERMINAL, claim(s->worker, "r", "w", LONG, NULL));
	assert_explained(s);
}

static void losses_count_only_without_a_break(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	submit(s->worker, "r");
	lose_again(s, 3);
	lose_again(s, 3);
	assert_granted(claim(s->worker, "r", "good", LONG, &grant));
	assert_granted(release(s->worker, &grant.token, 0, NULL));
	lose_again(s, 3);
	lose_again(s, 3);
	assert_sql(s->admin, "pending", "select status from lease.runs");
	lose_again(s, 3);
	assert_sql(s->admin, "failed", "select status from lease.runs");
	assert_sql(s->admin, "6", "select max(attempt_no) from lease.run_attempts");
}

static void without_a_limit_losses_do_not_count(void **state)
{
	struct scenario *s = *state;

	submit(s->worker, "r");
	for (int i = 0; i < 8; i++)
		lose_again(s, 0);
	assert_sql(s->admin, "pending v17",
		   "select status || ' v' || state_version from lease.runs");
	lose_again(s, 1); /* and with a limit of one the next is the last */
	assert_sql(s->admin, "failed", "select status from lease.runs");
}

static void cancel_comes_before_every_policy(void **state)
{
	struct scenario *s = *state;

	for (int policy = LEASE_POLICY_RECORD; policy <= LEASE_POLICY_REQUEUE; policy++) {
		const char *run_id = lease_policy_name((enum lease_policy)policy);

		sql(s->admin,
		    "insert into lease.runs (run_id, deadline_at) "
		    "values ('%s', clock_timestamp() + interval '1 h')",
		    run_id);
		assert_granted(claim(s->worker, run_id, "w", LONG, NULL));
		assert_granted(request_cancel(s->worker, run_id, 0, NULL));
		end_lease(s, run_id);
		assert_granted(reconcile(s->worker, (enum lease_policy)policy, 1, NULL));
		assert_run(s, run_id, "cancelled v3 | 1 w lease_expired worker_lease_expired");
	}
	assert_explained(s);
}

/* A run whose worker was lost and whose deadline has passed since. */
static void lose_past_deadline(struct scenario *s, const char *run_id, bool cancelled)
{
	sql(s->admin,
	    "insert into lease.runs (run_id, deadline_at, status, state_version, cancel_requested_at) "
	    "values ('%s', clock_timestamp() - interval '1 min', 'running', 2, %s); "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, deadline_at) "
	    "select run_id, 1, 'w', deadline_at, deadline_at from lease.runs where run_id = '%s'",
	    run_id, cancelled ? "clock_timestamp()" : "null", run_id);
}

static void deadline_comes_before_every_policy_and_after_cancel(void **state)
{
	struct scenario *s = *state;

	for (int policy = LEASE_POLICY_RECORD; policy <= LEASE_POLICY_REQUEUE; policy++) {
		const char *run_id = lease_policy_name((enum lease_policy)policy);

		lose_past_deadline(s, run_id, false);
		assert_granted(reconcile(s->worker, (enum lease_policy)policy, 1, NULL));
		assert_run(s, run_id,
			   "failed v3 deadline_exceeded | 1 w lease_expired worker_lease_expired");
	}
	lose_past_deadline(s, "both", true);
	assert_granted(reconcile(s->worker, LEASE_POLICY_FAIL, 1, NULL));
	assert_run(s, "both", "cancelled v3 | 1 w lease_expired worker_lease_expired");
	assert_explained(s);
}

/* -- what has no lease ------------------------------------------------------------------------------ */

static void pending_and_waiting_runs_past_their_deadline_fail(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;

	sql(s->admin,
	    "insert into lease.runs (run_id, status, deadline_at, not_before) values "
	    "('late', 'pending', clock_timestamp() - interval '1 s', null), "
	    "('later', 'pending', clock_timestamp() - interval '1 s', clock_timestamp() + interval '1 h'), "
	    "('asleep', 'waiting', clock_timestamp() - interval '1 s', null), "
	    "('in_time', 'pending', clock_timestamp() + interval '1 h', null), "
	    "('no_deadline', 'pending', null, null)");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_int_equal(figures.moved[LEASE_RUN_FAILED], 3);
	assert_int_equal(figures.closed, 0);
	assert_run(s, "late", "failed v2 deadline_exceeded");
	assert_run(s, "later", "failed v2 deadline_exceeded");
	assert_run(s, "asleep", "failed v2 deadline_exceeded");
	assert_run(s, "in_time", "pending v1");
	assert_run(s, "no_deadline", "pending v1");
}

static void make_legacy(struct scenario *s)
{
	sql(s->admin,
	    "insert into lease.runs (run_id, status) values ('a', 'running'), "
	    "('b', 'running'), ('c', 'running'), ('d', 'waiting'); "
	    "update lease.runs set cancel_requested_at = clock_timestamp() where run_id = 'b'; "
	    "insert into lease.runs (run_id, status, deadline_at) "
	    "values ('e', 'running', clock_timestamp() - interval '1 s')");
}

static void case_21_an_adopted_table_gets_no_attempt_invented(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;
	char *before;

	make_legacy(s);
	before = run_bytes(s, "a");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_untouched(s, "a", before);
	assert_run(s, "b", "cancelled v2");
	assert_run(s, "e", "failed v2 deadline_exceeded");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 3, &figures));
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 2);
	assert_run(s, "a", "pending v2");
	assert_run(s, "c", "pending v2");
	assert_run(s, "d", "waiting v1");
	assert_sql(s->admin, "0", "select count(*) from lease.run_attempts");
	assert_explained(s);
}

static void case_21_under_policy_fail(void **state)
{
	struct scenario *s = *state;

	make_legacy(s);
	assert_granted(reconcile(s->worker, LEASE_POLICY_FAIL, 0, NULL));
	assert_run(s, "a", "failed v2 worker_lease_expired");
	assert_run(s, "b", "cancelled v2");
	assert_run(s, "c", "failed v2 worker_lease_expired");
	assert_run(s, "d", "waiting v1");
	assert_run(s, "e", "failed v2 deadline_exceeded");
	assert_sql(s->admin, "0", "select count(*) from lease.run_attempts");
}

static void an_orphan_whose_losses_are_exhausted_fails(void **state)
{
	struct scenario *s = *state;

	lose(s, "r", "w1");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	assert_granted(claim(s->worker, "r", "w2", LONG, NULL));
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 2, NULL));
	assert_run(s, "r",
		   "failed v3 lease_losses_exhausted "
		   "| 1 w1 lease_expired worker_lease_expired "
		   "| 2 w2 lease_expired worker_lease_expired");
}

static void a_leftover_attempt_of_a_run_that_is_not_running_closes(void **state)
{
	struct scenario *s = *state;

	sql(s->admin,
	    "insert into lease.runs (run_id, status, finished_at) values ('p', 'pending', null), "
	    "('w', 'waiting', null), ('t', 'completed', clock_timestamp()), ('v', 'pending', null); "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() "
	    "+ case when run_id = 'v' then interval '1 h' else interval '-1 s' end from lease.runs");
	assert_granted(reconcile(s->worker, LEASE_POLICY_FAIL, 0, NULL));
	assert_run(s, "p", "pending v1 | 1 w lease_expired worker_lease_expired");
	assert_run(s, "w", "waiting v1 | 1 w lease_expired worker_lease_expired");
	assert_run(s, "t", "completed v1 | 1 w lease_expired worker_lease_expired");
	assert_run(s, "v", "pending v1 | 1 w open");
}

/* -- twice, and by two ------------------------------------------------------------------------------- */

static void case_26_reconciling_twice_changes_nothing_the_second_time(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;
	char *before;

	lose(s, "a", "w");
	lose(s, "b", "w");
	take_run(s, "c", "w");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_int_equal(figures.closed, 2);
	before = run_bytes(s, "a");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_int_equal(figures.closed, 0);
	assert_untouched(s, "a", before);
	assert_run(s, "c", "running v2 | 1 w open");
}

static void case_14_a_worker_takes_rescued_work_and_dies_at_once(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;

	lose(s, "r", "w1");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_granted(claim_next(s->worker, "w2", false, NULL));
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, &figures));
	assert_int_equal(figures.closed, 1);
	assert_run(s, "r",
		   "pending v5 | 1 w1 lease_expired worker_lease_expired "
		   "| 2 w2 lease_expired worker_lease_expired");
}

/* -- what the callbacks tell -------------------------------------------------------------------------- */

struct told {
	struct {
		char run_id[LEASE_ID_MAX + 1];
		char owner[LEASE_ID_MAX + 1];
		char error_code[64];
		struct lease_closed closed; /* its strings are gone */
		bool skipped;
		struct lease_error error;
	} runs[64];
	size_t n;
};

static void note_closed(void *arg, const struct lease_closed *closed)
{
	struct told *told = arg;

	if (told->n == LENGTH(told->runs))
		return;
	snprintf(told->runs[told->n].run_id, sizeof(told->runs[0].run_id), "%s", closed->run_id);
	snprintf(told->runs[told->n].owner, sizeof(told->runs[0].owner), "%s",
		 closed->owner ? closed->owner : "(none)");
	snprintf(told->runs[told->n].error_code, sizeof(told->runs[0].error_code), "%s",
		 closed->error_code ? closed->error_code : "(none)");
	told->runs[told->n++].closed = *closed;
}

static void note_skipped(void *arg, const struct lease_skipped *skipped)
{
	struct told *told = arg;

	if (told->n == LENGTH(told->runs))
		return;
	snprintf(told->runs[told->n].run_id, sizeof(told->runs[0].run_id), "%s", skipped->run_id);
	told->runs[told->n].skipped = true;
	told->runs[told->n++].error = *skipped->error;
}

static int reconcile_telling(PGconn *conn, const struct lease_sweep_options *options,
			     struct told *told, struct lease_sweep_figures *figures)
{
	struct lease_sweep_callbacks callbacks = { .closed = note_closed,
						   .skipped = note_skipped,
						   .arg = told };

	memset(told, 0, sizeof(*told));
	return lease_reconcile_expired_leases(conn, options, &callbacks, figures, &last_error);
}

static void the_callback_tells_what_was_closed(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct told told;

	lose(s, "a", "wa");
	sql(s->admin, "insert into lease.runs (run_id, status) values ('b', 'running')");
	sql(s->admin, "insert into lease.runs (run_id, deadline_at) "
		      "values ('c', clock_timestamp() - interval '1 s')");
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	assert_granted(reconcile_telling(s->worker, &options, &told, &figures));
	assert_int_equal(told.n, 3);

	assert_string_equal(told.runs[0].run_id, "a");
	assert_string_equal(told.runs[0].owner, "wa");
	assert_string_equal(told.runs[0].error_code, "worker_lease_expired");
	assert_int_equal(told.runs[0].closed.attempt_no, 1);
	assert_true(told.runs[0].closed.moved);
	assert_int_equal(told.runs[0].closed.status, LEASE_RUN_PENDING);
	assert_true(told.runs[0].closed.closed_at >=
		    told.runs[0].closed.lease_expires_at + LEASE_SECOND);
	assert_sql(s->admin, "t",
		   "select (extract(epoch from finished_at) * 1000000)::bigint = %lld "
		   "and (extract(epoch from lease_expires_at) * 1000000)::bigint = %lld "
		   "from lease.run_attempts",
		   (long long)told.runs[0].closed.closed_at,
		   (long long)told.runs[0].closed.lease_expires_at);

	assert_string_equal(told.runs[1].run_id, "b");
	assert_string_equal(told.runs[1].owner, "(none)");
	assert_string_equal(told.runs[1].error_code, "(none)");
	assert_int_equal(told.runs[1].closed.attempt_no, 0);
	assert_true(told.runs[1].closed.lease_expires_at == LEASE_TIME_NONE);
	assert_true(told.runs[1].closed.closed_at > 0);
	assert_int_equal(told.runs[1].closed.status, LEASE_RUN_PENDING);

	assert_string_equal(told.runs[2].run_id, "c");
	assert_string_equal(told.runs[2].error_code, "deadline_exceeded");
	assert_int_equal(told.runs[2].closed.status, LEASE_RUN_FAILED);
	assert_int_equal(figures.closed, 1);
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 2);
	assert_int_equal(figures.moved[LEASE_RUN_FAILED], 1);
}

static void the_figures_count_open_and_expired_leases(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;

	lose(s, "a", "w");
	lose(s, "b", "w");
	take_run(s, "c", "w");
	sql(s->admin, "update lease.run_attempts set lease_expires_at = "
		      "timestamptz '2020-01-01 00:00:00+00' where run_id = 'b'");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_int_equal(figures.open, 3);
	assert_int_equal(figures.expired, 2);
	assert_true(figures.oldest_expired_at == INT64_C(1577836800) * LEASE_SECOND);
	assert_int_equal(figures.passes, 1);
	assert_int_equal(figures.failures, 0);
	assert_int_equal(figures.contended, 0);
	assert_int_equal(figures.skipped, 0);
	assert_int_equal(figures.due, 0);
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, &figures));
	assert_int_equal(figures.open, 1);
	assert_int_equal(figures.expired, 0);
	assert_true(figures.oldest_expired_at == LEASE_TIME_NONE);
}

/* -- pages, batches, limits --------------------------------------------------------------------------- */

/* n runs with attempts, every third of which still holds its lease. */
static void make_many(struct scenario *s, int n)
{
	sql(s->admin,
	    "insert into lease.runs (run_id, status, state_version) "
	    "select 'r' || i, 'running', 2 from generate_series(1, %d) i; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select 'r' || i, 1, 'w', clock_timestamp() "
	    "+ case when i %% 3 = 0 then interval '1 h' else interval '-1 s' end "
	    "from generate_series(1, %d) i",
	    n, n);
}

static void assert_many_closed(struct scenario *s, int n)
{
	assert_sql(s->admin, "t",
		   "select bool_and(outcome is not distinct from "
		   "case when substr(run_id, 2)::int %% 3 = 0 then null else 'lease_expired' end) "
		   "and count(*) = %d from lease.run_attempts",
		   n);
	assert_explained(s);
}

static void pages_of_any_size_reach_every_lease(void **state)
{
	struct scenario *s = *state;

	for (int page = 1; page <= 7; page++) {
		int n = 21 + page % 3; /* sometimes a multiple of the page */
		struct lease_sweep_options options;
		struct lease_sweep_figures figures;

		scenario_empty(s);
		make_many(s, n);
		lease_sweep_options_init(&options);
		options.scan_page = page;
		options.batch_size = 1 + page % 4;
		options.due_limit = 1;
		assert_granted(lease_reconcile_expired_leases(s->worker, &options, NULL, &figures,
							      &last_error));
		assert_int_equal(figures.closed, n - n / 3);
		assert_int_equal(figures.open, n);
		assert_int_equal(figures.expired, n - n / 3);
		assert_many_closed(s, n);
	}
}

static void pages_of_orphans_and_deadlines_reach_every_run(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	sql(s->admin, "insert into lease.runs (run_id, status) select 'o' || i, 'running' "
		      "from generate_series(1, 25) i; "
		      "insert into lease.runs (run_id, status, deadline_at) select 'd' || i, "
		      "case when i %% 2 = 0 then 'pending' else 'waiting' end, "
		      "clock_timestamp() - interval '1 s' from generate_series(1, 25) i");
	lease_sweep_options_init(&options);
	options.scan_page = 5; /* the last page of both is full */
	options.batch_size = 4;
	options.policy = LEASE_POLICY_REQUEUE;
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 25);
	assert_int_equal(figures.moved[LEASE_RUN_FAILED], 25);
}

static void more_leases_are_due_than_the_list_holds(void **state)
{
	enum { N = 300 };
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct sweeper *sweeper;

	/* they end while the sweeper waits for them: more than it can keep in mind */
	make_many(s, N);
	sql(s->admin, "update lease.run_attempts set lease_expires_at = clock_timestamp() "
		      "+ interval '500 ms' + substr(run_id, 2)::int * interval '1 ms' "
		      "where lease_expires_at < clock_timestamp()");
	lease_sweep_options_init(&options);
	options.interval = 2 * LEASE_SECOND;
	options.scan_page = 10;
	options.due_limit = 20;
	options.batch_size = 7;
	sweeper = sweeper_start(s, &options, NULL);
	wait_sql(s->admin,
		 "select count(*) = %d from lease.run_attempts where finished_at is not null",
		 N - N / 3);
	assert_int_equal(sweeper_stop(sweeper, &figures), 0);
	assert_int_equal(figures.closed, N - N / 3);
	assert_many_closed(s, N);
}

static void a_chunk_that_the_database_refuses_is_halved(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct told told;

	make_many(s, 30);
	sql(s->admin, "create function public.refuse() returns trigger language plpgsql as "
		      "$$begin raise exception 'not this one'; end$$; "
		      "create trigger refuse before update on lease.runs for each row "
		      "when (old.run_id in ('r7', 'r8', 'r25')) execute function public.refuse()");
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_FAIL;
	assert_granted(reconcile_telling(s->worker, &options, &told, &figures));
	assert_int_equal(figures.closed, 17);
	assert_int_equal(figures.skipped, 3);
	for (size_t i = 0, skipped = 0; i < told.n; i++)
		if (told.runs[i].skipped) {
			static const char *const expected[] = { "r25", "r7", "r8", NULL };

			assert_string_equal(told.runs[i].run_id, expected[skipped++ % 4]);
			assert_string_equal(told.runs[i].error.sqlstate, "P0001");
			assert_string_equal(told.runs[i].error.message, "not this one");
			assert_int_equal(lease_error_advice(&told.runs[i].error),
					 LEASE_ADVICE_SPLIT);
		}
	assert_sql(s->admin, "r25 r7 r8",
		   "select string_agg(run_id, ' ' order by run_id) from lease.run_attempts "
		   "where finished_at is null and lease_expires_at <= clock_timestamp()");
	sql(s->admin, "drop trigger refuse on lease.runs");
	assert_granted(reconcile_telling(s->worker, &options, &told, &figures));
	assert_int_equal(figures.closed, 3);
	assert_int_equal(figures.skipped, 0);
	assert_explained(s);
}

static void a_locked_attempt_does_not_stop_the_others(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct told told;

	make_many(s, 12);
	sql(s->other, "begin; select from lease.run_attempts where run_id = 'r4' for update");
	lease_sweep_options_init(&options);
	options.lock_timeout = 50 * LEASE_MILLISECOND;
	options.policy = LEASE_POLICY_REQUEUE;
	assert_granted(reconcile_telling(s->worker, &options, &told, &figures));
	assert_int_equal(figures.closed, 7);
	assert_int_equal(figures.skipped, 1);
	assert_run(s, "r4", "running v2 | 1 w open");
	for (size_t i = 0; i < told.n; i++)
		if (told.runs[i].skipped) {
			assert_string_equal(told.runs[i].run_id, "r4");
			assert_string_equal(told.runs[i].error.sqlstate, "55P03");
		}
	sql(s->other, "rollback");
	assert_granted(reconcile_telling(s->worker, &options, &told, &figures));
	assert_int_equal(figures.closed, 1);
	assert_explained(s);
}

static void case_02_what_comes_after_locked_pages_is_rescued_in_the_same_sweep(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	make_many(s, 24);
	sql(s->admin,
	    "update lease.run_attempts set lease_expires_at = clock_timestamp() - interval '1 s'");
	sql(s->other,
	    "begin; select from lease.runs where run_id <> 'r9' order by run_id for update");
	lease_sweep_options_init(&options); /* r9 is the last of all */
	options.scan_page = 5;
	options.batch_size = 5;
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.closed, 1);
	assert_true(figures.contended >= 23);
	assert_run(s, "r9", "running v2 | 1 w lease_expired worker_lease_expired");
	sql(s->other, "rollback");
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.closed, 23);
}

/* Reading a run's row takes a millisecond. The first transaction does not know that yet. */
static void a_slow_database_locks_few_runs_at_a_time(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	make_many(s, 900);
	sql(s->admin, "alter table lease.runs enable row level security; "
		      "create policy slow on lease.runs to lease_reconciler "
		      "using (pg_sleep(0.001) is not null)");
	sql(s->worker, "set role lease_reconciler");
	lease_sweep_options_init(&options);
	options.batch_size = 400;
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.closed, 600);
	assert_sql(
		s->admin, "50 25 23",
		"select concat_ws(' ', max(n), min(n), count(*)) from (select count(*) as n from "
		"lease.run_events where kind = 'attempt_closed' group by txid) t");
	assert_many_closed(s, 900);
}

/* -- the resumable object ------------------------------------------------------------------------------ */

static void wait_for(PGconn *conn, int events, int timeout_ms)
{
	struct pollfd fd = {
		.fd = PQsocket(conn),
		.events = (short)((events & LEASE_POLL_READ ? POLLIN : 0) |
				  (events & LEASE_POLL_WRITE ? POLLOUT : 0)),
	};

	poll(&fd, events ? 1 : 0, timeout_ms);
}

static struct lease_sweep *new_sweep(struct scenario *s, const struct lease_sweep_options *options,
				     const struct lease_sweep_callbacks *callbacks)
{
	struct lease_sweep *sweep;

	assert_granted(lease_sweep_new(options, callbacks, &sweep, &last_error));
	PQsetnonblocking(s->worker, 1);
	return sweep;
}

/* One step of a daemon's loop. False: it waits for nothing but the time. */
static bool step(struct lease_sweep *sweep, PGconn *conn)
{
	int events = lease_sweep_poll(sweep, conn, &last_error);

	if (events < 0)
		assert_granted(events);
	wait_for(conn, events, events ? TEST_PATIENCE_MS : 1);
	return events > 0;
}

static void drive_until_idle(struct lease_sweep *sweep, PGconn *conn)
{
	while (step(sweep, conn))
		;
}

static struct lease_sweep_figures figures_of(const struct lease_sweep *sweep)
{
	struct lease_sweep_figures figures;

	lease_sweep_read_figures(sweep, &figures);
	return figures;
}

static void drive_until_passes(struct lease_sweep *sweep, PGconn *conn, int64_t passes)
{
	long long deadline = test_now_ms() + TEST_PATIENCE_MS;

	while (figures_of(sweep).passes < passes) {
		assert_true(test_now_ms() < deadline);
		step(sweep, conn);
	}
}

/* Until the query gives 't', looked at whenever the sweep has nothing to do. */
static void drive_until(struct scenario *s, struct lease_sweep *sweep, const char *query)
{
	long long deadline = test_now_ms() + TEST_PATIENCE_MS;
	bool holds = false;

	while (!holds) {
		char *value;

		if (test_now_ms() > deadline)
			fail_msg("still not so after %d ms: %s", TEST_PATIENCE_MS, query);
		drive_until_idle(sweep, s->worker);
		value = sql_text(s->admin, "%s", query);
		holds = value && strcmp(value, "t") == 0;
		free(value);
	}
}

/* -- beside another reconciler ------------------------------------------------------------------ */

enum { SHARED = 60, SHARED_OVER = SHARED - SHARED / 3, SHARED_BATCH = 4 };

#define CLOSED(n) "select count(*) = " #n " from lease.run_attempts where finished_at is not null"

/* One pass an hour: what it drops nobody lists again, unless it does so itself. */
static struct lease_sweep *sweep_beside_another(struct scenario *s)
{
	struct lease_sweep_options options;

	make_many(s, SHARED);
	lease_sweep_options_init(&options);
	options.interval = 3600 * LEASE_SECOND;
	options.batch_size = SHARED_BATCH;
	return new_sweep(s, &options, NULL);
}

static void a_page_that_another_has_locked_in_part_is_closed_whole(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep *sweep = sweep_beside_another(s);

	sql(s->other, "begin; select from lease.runs where run_id in (select run_id "
		      "from lease.run_attempts where lease_expires_at < clock_timestamp() "
		      "order by run_id limit 20) for update");
	drive_until(s, sweep, CLOSED(20));
	sql(s->other, "rollback");
	drive_until(s, sweep, CLOSED(40));
	assert_int_equal(figures_of(sweep).passes, 1);
	assert_int_equal(figures_of(sweep).closed, SHARED_OVER);
	assert_many_closed(s, SHARED);
	lease_sweep_free(sweep);
}

/*
 * Another closes what a page listed. Of that the sweep looks at one chunk and leaves the rest; and then
 * it scans again, as what is over since then shows.
 */
static void what_is_left_to_another_is_scanned_again_at_once(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep *sweep = sweep_beside_another(s);
	struct lease_sweep_figures others;

	drive_until_passes(sweep, s->worker, 1);
	assert_granted(reconcile(s->other, LEASE_POLICY_RECORD, 0, &others));
	assert_true(others.closed > SHARED_OVER / 2);
	sql(s->admin, "update lease.run_attempts set lease_expires_at = clock_timestamp() "
		      "where finished_at is null and run_id like 'r3%%'");
	/* one chunk was on its way before, and one has shown it */
	while (figures_of(sweep).due > SHARED - SHARED_OVER) {
		assert_true(figures_of(sweep).due >= SHARED - 3 * SHARED_BATCH);
		step(sweep, s->worker);
	}
	drive_until(s, sweep,
		    "select count(*) = 0 from lease.run_attempts "
		    "where finished_at is null and run_id like 'r3%'");
	assert_int_equal(figures_of(sweep).passes, 2);
	assert_explained(s);
	lease_sweep_free(sweep);
}

/* As if it had been given for an hour: a short ttl would shorten the interval. */
static void end_lease_in(struct scenario *s, const char *run_id, int milliseconds)
{
	sql(s->admin,
	    "update lease.run_attempts set heartbeat_at = clock_timestamp() - interval '1 h', "
	    "lease_expires_at = clock_timestamp() + %d * interval '1 ms' where run_id = '%s'",
	    milliseconds, run_id);
}

static void a_sweep_wakes_when_a_lease_ends(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct told told = { .n = 0 };
	struct lease_sweep_callbacks callbacks = { .closed = note_closed,
						   .skipped = note_skipped,
						   .arg = &told };
	struct lease_sweep *sweep;

	take_run(s, "r", "w");
	end_lease_in(s, "r", 600);
	lease_sweep_options_init(&options);
	options.interval = 60 * LEASE_SECOND;
	options.policy = LEASE_POLICY_REQUEUE;
	sweep = new_sweep(s, &options, &callbacks);
	drive_until_idle(sweep, s->worker);
	assert_int_equal(figures_of(sweep).passes, 1);
	drive_until(s, sweep, "select status = 'pending' from lease.runs");
	assert_int_equal(figures_of(sweep).passes, 1); /* no second scan found it */
	assert_int_equal(told.n, 1);
	assert_true(told.runs[0].closed.closed_at >= told.runs[0].closed.lease_expires_at);
	lease_sweep_free(sweep);
}

static void a_lease_renewed_after_it_was_listed_is_left_alone(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = take_run(s, "r", "w");
	struct lease_sweep_options options;
	struct lease_sweep *sweep;

	end_lease_in(s, "r", 2000);
	lease_sweep_options_init(&options);
	options.interval = 60 * LEASE_SECOND;
	sweep = new_sweep(s, &options, NULL);
	drive_until_passes(sweep, s->worker, 1);
	drive_until_idle(sweep, s->worker);
	if (figures_of(sweep).closed == 0) { /* else this machine stood still for two seconds */
		assert_int_equal(figures_of(sweep).due, 1);
		assert_granted(renew(s->other, &token, LONG, NULL));
		while (figures_of(sweep).due > 0)
			step(sweep, s->worker);
		drive_until_idle(sweep, s->worker);
		assert_int_equal(figures_of(sweep).closed, 0);
		assert_int_equal(figures_of(sweep).passes, 1);
		assert_run(s, "r", "running v2 | 1 w open");
	}
	lease_sweep_free(sweep);
}

static void the_interval_follows_the_shortest_ttl(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep *sweep;

	take_run(s, "long", "w");
	submit(s->worker, "short");
	assert_granted(claim(s->worker, "short", "w", 60 * LEASE_SECOND, NULL));
	/* cut short by its deadline: says nothing about how often it is renewed */
	assert_granted(lease_submit(
		s->worker,
		&(struct lease_submission){ .run_id = "cut", .deadline = 30 * LEASE_SECOND }, NULL,
		NULL, &last_error));
	assert_granted(claim(s->worker, "cut", "w", LONG, NULL));
	lease_sweep_options_init(&options);
	options.interval = 3600 * LEASE_SECOND;
	sweep = new_sweep(s, &options, NULL);
	drive_until_idle(sweep, s->worker);
	assert_int_equal(figures_of(sweep).next_interval, 40 * LEASE_SECOND);
	assert_false(figures_of(sweep).stretched);
	lease_sweep_free(sweep);
}

/* A page that is in flight was asked for by the old size: it says nothing about the new one. */
static void change_page_in_mid_scan(struct scenario *s, int from, int to)
{
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct lease_sweep *sweep;
	int events;

	make_many(s, 24);
	sql(s->admin, "insert into lease.runs (run_id, status) "
		      "select 'o' || i, 'running' from generate_series(1, 24) i");
	lease_sweep_options_init(&options);
	options.interval = options.orphan_interval = 3600 * LEASE_SECOND;
	options.policy = LEASE_POLICY_REQUEUE;
	sweep = new_sweep(s, &options, NULL);
	/* whatever is in flight, it was begun with `from` and ends with `to` */
	for (;;) {
		options.scan_page = from;
		assert_granted(lease_sweep_set_options(sweep, &options, &last_error));
		events = lease_sweep_poll(sweep, s->worker, &last_error);
		assert_true(events >= 0);
		if (events == 0)
			break;
		wait_for(s->worker, events, TEST_PATIENCE_MS);
		options.scan_page = to;
		assert_granted(lease_sweep_set_options(sweep, &options, &last_error));
		events = lease_sweep_poll(sweep, s->worker, &last_error);
		assert_true(events >= 0);
		if (events == 0)
			break;
		wait_for(s->worker, events, TEST_PATIENCE_MS);
	}
	drive_until_idle(sweep, s->worker);
	figures = figures_of(sweep);
	lease_sweep_free(sweep);
	assert_int_equal(figures.passes, 1);
	assert_int_equal(figures.open, 24);
	assert_int_equal(figures.closed, 16);
	assert_int_equal(figures.moved[LEASE_RUN_PENDING], 16 + 24);
}

static void a_smaller_page_in_mid_scan_cuts_no_pass_short(void **state)
{
	change_page_in_mid_scan(*state, 12, 2);
}

static void a_larger_page_in_mid_scan_cuts_no_pass_short(void **state)
{
	change_page_in_mid_scan(*state, 2, 12);
}

/* "A run that somebody has locked is tried again after some milliseconds": not at the next look. */
static void a_locked_orphan_is_tried_again_soon(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep *sweep;

	sql(s->admin, "insert into lease.runs (run_id, status, deadline_at) values "
		      "('orphan', 'running', null), ('late', 'pending', clock_timestamp())");
	sql(s->other, "begin; select from lease.runs for update");
	lease_sweep_options_init(&options);
	options.interval = 20 * LEASE_MILLISECOND;
	options.orphan_interval = 3600 * LEASE_SECOND;
	options.policy = LEASE_POLICY_REQUEUE;
	sweep = new_sweep(s, &options, NULL);
	drive_until_passes(sweep, s->worker, 40);
	sql(s->other, "rollback");
	drive_until(s, sweep, "select bool_and(state_version = 2) from lease.runs");
	assert_true(figures_of(sweep).contended > 1);
	assert_run(s, "orphan", "pending v2");
	assert_run(s, "late", "failed v2 deadline_exceeded");
	lease_sweep_free(sweep);
}

static void a_locked_run_is_tried_again_soon(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep *sweep;

	take_run(s, "r", "w");
	end_lease_in(s, "r", -1000);
	sql(s->other, "begin; select from lease.runs for update");
	lease_sweep_options_init(&options);
	options.interval = 3600 * LEASE_SECOND;
	sweep = new_sweep(s, &options, NULL);
	while (figures_of(sweep).contended < 5)
		step(sweep, s->worker);
	sql(s->other, "rollback");
	drive_until(s, sweep, "select finished_at is not null from lease.run_attempts");
	assert_int_equal(figures_of(sweep).passes, 1);
	lease_sweep_free(sweep);
}

static void a_stopped_sweep_begins_nothing_more(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep *sweep;

	lose(s, "r", "w");
	lease_sweep_options_init(&options);
	sweep = new_sweep(s, &options, NULL);
	/* its check of the database stays in flight */
	sql(s->admin, "begin; lock table lease.schema_migrations");
	assert_true(step(sweep, s->worker));
	lease_sweep_stop(sweep);
	sql(s->admin, "commit");
	drive_until_idle(sweep, s->worker);
	assert_true(lease_sweep_wake_at(sweep) == INT64_MAX);
	assert_int_equal(lease_sweep_poll(sweep, s->worker, NULL), 0);
	assert_int_equal(PQtransactionStatus(s->worker), PQTRANS_IDLE);
	assert_run(s, "r", "running v2 | 1 w open");
	lease_sweep_free(sweep);
}

static void a_hurried_sweep_scans_at_once(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep *sweep;

	lease_sweep_options_init(&options);
	options.interval = options.orphan_interval = 3600 * LEASE_SECOND;
	options.policy = LEASE_POLICY_REQUEUE;
	sweep = new_sweep(s, &options, NULL);
	drive_until_idle(sweep, s->worker);
	assert_int_equal(figures_of(sweep).passes, 1);
	take_run(s, "r", "w");
	end_lease_in(s, "r", -1000);
	sql(s->admin, "insert into lease.runs (run_id, status) values ('o', 'running')");
	drive_until_idle(sweep, s->worker);
	assert_int_equal(figures_of(sweep).closed, 0);
	lease_sweep_hurry(sweep);
	drive_until_idle(sweep, s->worker);
	assert_int_equal(figures_of(sweep).passes, 2);
	assert_int_equal(figures_of(sweep).closed, 1);
	assert_run(s, "o", "pending v2");
	lease_sweep_free(sweep);
}

static void after_a_reset_a_sweep_goes_on_with_a_new_connection(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep *sweep;
	int events;

	make_many(s, 30);
	lease_sweep_options_init(&options);
	options.batch_size = 4;
	sweep = new_sweep(s, &options, NULL);
	while (figures_of(sweep).closed == 0)
		step(sweep, s->worker);
	sql(s->admin, "select pg_terminate_backend(%d)", PQbackendPID(s->worker));
	wait_sql(s->admin, "select count(*) = 0 from pg_stat_activity where pid = %d",
		 PQbackendPID(s->worker));
	while ((events = lease_sweep_poll(sweep, s->worker, &last_error)) > 0)
		wait_for(s->worker, events, TEST_PATIENCE_MS);
	assert_true(events < 0);
	assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_RECONNECT);
	PQfinish(s->worker);
	lease_sweep_reset(sweep);
	s->worker = test_connect(s->conninfo);
	PQsetnonblocking(s->worker, 1);
	drive_until(s, sweep,
		    "select count(*) = 10 from lease.run_attempts where finished_at is null");
	assert_many_closed(s, 30);
	lease_sweep_free(sweep);
}

static int reconcile_call(PGconn *conn, void *arg, struct lease_error *reterr)
{
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	return lease_reconcile_expired_leases(conn, &options, NULL, arg, reterr);
}

/* It was listed as over and locked by somebody; then it turns out that its lease holds again. */
static void a_lease_that_was_extended_behind_a_lock_is_left_alone(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures = { 0 };
	struct call call = call_of(reconcile_call, s->worker, &figures);

	lose(s, "r", "w");
	sql(s->other, "begin; select from lease.runs for update");
	call_start(&call);
	wait_sql(
		s->admin,
		"select query = 'ROLLBACK' and state = 'idle' from pg_stat_activity where pid = %d",
		PQbackendPID(s->worker));
	sql(s->other, "update lease.run_attempts "
		      "set lease_expires_at = clock_timestamp() + interval '1 h'; commit");
	assert_granted(call_wait(&call));
	assert_int_equal(figures.closed, 0);
	assert_true(figures.contended >= 1);
	assert_run(s, "r", "running v2 | 1 w open");
}

static void refuse_option(const struct lease_sweep_options *options)
{
	struct lease_sweep *sweep = NULL;

	memset(&last_error, 0, sizeof(last_error));
	assert_error(LEASE_E_INVALID, lease_sweep_new(options, NULL, &sweep, &last_error));
	assert_null(sweep);
	assert_true(strlen(last_error.message) > 0);
	assert_error(LEASE_E_INVALID, lease_sweep_new(options, NULL, &sweep, NULL));
}

static void options_out_of_range_are_refused(void **state)
{
	struct lease_sweep_options good, bad;

	(void)state;
	lease_sweep_options_init(&good);
#define REFUSE(field, value)                                                                       \
	do {                                                                                       \
		bad = good;                                                                        \
		bad.field = value;                                                                 \
		refuse_option(&bad);                                                               \
	} while (0)
	REFUSE(interval, 0);
	REFUSE(interval, -1);
	REFUSE(interval, LEASE_DURATION_MAX + 1);
	REFUSE(orphan_interval, 999);
	REFUSE(orphan_interval, INT64_MAX);
	REFUSE(statement_timeout, 0);
	REFUSE(statement_timeout, INT64_MAX);
	REFUSE(lock_timeout, 0);
	REFUSE(lock_timeout, INT64_MIN);
	REFUSE(batch_size, 0);
	REFUSE(batch_size, 100001);
	REFUSE(scan_page, 0);
	REFUSE(scan_page, 1000001);
	REFUSE(due_limit, 0);
	REFUSE(due_limit, 10000001);
	REFUSE(policy, (enum lease_policy)3);
	REFUSE(policy, (enum lease_policy) - 1);
	REFUSE(max_lease_losses, -1);
#undef REFUSE
	lease_sweep_free(NULL);
}

/* What lease.h allows, the server must take: it counts timeouts in 31 bits of milliseconds. */
static void the_longest_timeouts_work(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	lose(s, "r", "w");
	lease_sweep_options_init(&options);
	options.statement_timeout = options.lock_timeout = LEASE_DURATION_MAX;
	assert_granted(
		lease_reconcile_expired_leases(s->worker, &options, NULL, &figures, &last_error));
	assert_int_equal(figures.closed, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(policy_record_closes_the_attempt_and_leaves_the_run),
		store_test(policy_fail_fails_the_run),
		store_test(policy_requeue_makes_the_run_due_at_once),
		store_test(case_17_a_run_that_kills_every_worker_is_quarantined),
		store_test(losses_count_only_without_a_break),
		store_test(without_a_limit_losses_do_not_count),
		store_test(cancel_comes_before_every_policy),
		store_test(deadline_comes_before_every_policy_and_after_cancel),
		store_test(pending_and_waiting_runs_past_their_deadline_fail),
		store_test(case_21_an_adopted_table_gets_no_attempt_invented),
		store_test(case_21_under_policy_fail),
		store_test(an_orphan_whose_losses_are_exhausted_fails),
		store_test(a_leftover_attempt_of_a_run_that_is_not_running_closes),
		store_test(case_26_reconciling_twice_changes_nothing_the_second_time),
		store_test(case_14_a_worker_takes_rescued_work_and_dies_at_once),
		store_test(the_callback_tells_what_was_closed),
		store_test(the_figures_count_open_and_expired_leases),
		store_test(pages_of_any_size_reach_every_lease),
		store_test(pages_of_orphans_and_deadlines_reach_every_run),
		store_test(more_leases_are_due_than_the_list_holds),
		store_test_alone(a_slow_database_locks_few_runs_at_a_time),
		store_test_alone(a_chunk_that_the_database_refuses_is_halved),
		store_test(a_locked_attempt_does_not_stop_the_others),
		store_test(case_02_what_comes_after_locked_pages_is_rescued_in_the_same_sweep),
		store_test(a_sweep_wakes_when_a_lease_ends),
		store_test(a_lease_renewed_after_it_was_listed_is_left_alone),
		store_test(the_interval_follows_the_shortest_ttl),
		store_test(a_smaller_page_in_mid_scan_cuts_no_pass_short),
		store_test(a_larger_page_in_mid_scan_cuts_no_pass_short),
		store_test(a_locked_orphan_is_tried_again_soon),
		store_test(a_locked_run_is_tried_again_soon),
		store_test(a_page_that_another_has_locked_in_part_is_closed_whole),
		store_test(what_is_left_to_another_is_scanned_again_at_once),
		store_test(a_stopped_sweep_begins_nothing_more),
		store_test(a_hurried_sweep_scans_at_once),
		store_test(after_a_reset_a_sweep_goes_on_with_a_new_connection),
		store_test(a_lease_that_was_extended_behind_a_lock_is_left_alone),
		cmocka_unit_test(options_out_of_range_are_refused),
		store_test(the_longest_timeouts_work),
	};

	return cmocka_run_group_tests_name("reconcile", tests, NULL, scenario_end);
}
