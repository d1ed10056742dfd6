/*
 * Clocks: the database's decides, the worker's wall clock is never looked at, and a worker that was
 * stopped learns from CLOCK_BOOTTIME and from its next renewal that its lease is over.
 *
 * This program has a clock_gettime of its own, which the library is linked with: so a machine's
 * clock can be wrong, and a machine can have been suspended.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "scenario.h"

static time_t wall_shift, boot_shift;

int clock_gettime(clockid_t clock, struct timespec *ret)
{
	int r = (int)syscall(SYS_clock_gettime, clock, ret);

	if (r == 0 && clock == CLOCK_REALTIME)
		ret->tv_sec += wall_shift;
	if (r == 0 && clock == CLOCK_BOOTTIME)
		ret->tv_sec += boot_shift;
	return r;
}

static void work_with_wrong_clock(struct scenario *s, const char *run_id, time_t shift)
{
	struct lease_grant grant;
	struct lease_sweep_figures figures;
	struct lease_change change;
	char made[LEASE_ID_MAX + 1];

	wall_shift = shift;
	assert_granted(submit(s->worker, run_id));
	assert_granted(claim(s->worker, run_id, "w1", LONG, &grant));
	assert_int_equal(grant.lease_expires_at - grant.now, LONG);
	assert_sql(s->admin, "t",
		   "select abs(extract(epoch from clock_timestamp()) - %f) < 60 "
		   "and lease_expires_at > clock_timestamp() + interval '55 min' "
		   "from lease.run_attempts where run_id = '%s'",
		   (double)grant.now / 1e6, run_id);
	assert_true(grant.local_end - lease_clock_boottime() < LONG);
	assert_true(grant.local_end - lease_clock_boottime() > LONG / 10 * 9);
	assert_granted(renew(s->worker, &grant.token, LONG, &grant));
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, &figures));
	assert_int_equal(figures.closed, 0);
	assert_granted(renew(s->worker, &grant.token, LONG, &grant));
	assert_granted(release(s->worker, &grant.token, 0, NULL));
	assert_granted(claim(s->worker, run_id, "w2", LONG, &grant));
	end_lease(s, run_id);
	assert_refused(LEASE_EXPIRED, renew(s->worker, &grant.token, LONG, &grant));
	assert_granted(reconcile(s->worker, LEASE_POLICY_FAIL, 0, &figures));
	assert_int_equal(figures.closed, 1);
	assert_granted(lease_submit(
		s->worker, &(struct lease_submission){ .delay = LONG, .deadline = 2 * LONG }, made,
		&change, &last_error));
	assert_sql(s->admin, "t",
		   "select not_before - created_at < interval '61 min' "
		   "and deadline_at - created_at between interval '119 min' and interval '121 min' "
		   "from lease.runs where run_id = '%s'",
		   made);
	assert_explained(s);
	wall_shift = 0;
}

static void case_20_a_clock_that_is_ten_minutes_off(void **state)
{
	work_with_wrong_clock(*state, "ahead", 600);
	work_with_wrong_clock(*state, "behind", -600);
}

static void case_20_a_clock_that_is_years_off(void **state)
{
	work_with_wrong_clock(*state, "ahead", 20L * 365 * 86400);
	work_with_wrong_clock(*state, "behind", -20L * 365 * 86400);
}

static void a_clock_that_jumps_while_a_verb_waits(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	assert_granted(submit(s->worker, "r"));
	assert_granted(claim(s->worker, "r", "w", LONG, &grant));
	for (int i = 0; i < 20; i++) {
		wall_shift = i % 2 ? 86400 : -86400;
		assert_granted(renew(s->worker, &grant.token, LONG, &grant));
	}
	wall_shift = 0;
}

/* CLOCK_BOOTTIME goes on while the machine sleeps; the process itself has noticed nothing. */
static void a_suspended_machine_is_past_its_local_end(void **state)
{
	struct scenario *s = *state;
	struct lease_grant grant;

	assert_granted(submit(s->worker, "r"));
	assert_granted(claim(s->worker, "r", "w", 60 * LEASE_SECOND, &grant));
	assert_true(lease_clock_boottime() < grant.local_end);
	boot_shift = 60;
	assert_true(lease_clock_boottime() >= grant.local_end);
	boot_shift = 0;
}

/* -- case 29: the worker's process --------------------------------------------------------------- */

/* Renews until it is refused, and says how it was. Runs in a process of its own. */
static int be_worker(const char *conninfo, const char *run_id)
{
	PGconn *conn = PQconnectdb(conninfo);
	struct lease_claim given = { .run_id = run_id,
				     .owner = "stopped",
				     .ttl = 2 * LEASE_SECOND };
	struct lease_grant grant;
	struct lease_error error;
	int r = lease_mark_running(conn, &given, &grant, &error);

	printf("claim %s\n", r < 0 ? error.message : lease_refusal_name(r));
	fflush(stdout);
	while (r == 0) {
		poll(NULL, 0, 20);
		r = lease_renew_lease(conn, &grant.token, given.ttl, 60 * LEASE_SECOND, &grant,
				      &error);
	}
	printf("renewal %s, its local end %s\n", r < 0 ? error.message : lease_refusal_name(r),
	       lease_clock_boottime() >= grant.local_end ? "passed" : "ahead");
	PQfinish(conn);
	return r < 0;
}

static void stop_and_continue(struct scenario *s, const char *run_id, bool swept)
{
	char *argv[] = { "/proc/self/exe", "worker", s->conninfo, (char *)(uintptr_t)run_id, NULL };
	struct process worker;

	assert_granted(submit(s->worker, run_id));
	process_start(&worker, argv, NULL);
	process_wait_text(&worker, "claim granted", TEST_PATIENCE_MS);
	/* it has renewed at least once */
	wait_sql(s->admin,
		 "select heartbeat_at > started_at from lease.run_attempts where run_id = '%s'",
		 run_id);
	process_signal(&worker, SIGSTOP);
	wait_sql(
		s->admin,
		"select lease_expires_at < clock_timestamp() from lease.run_attempts where run_id = '%s'",
		run_id);
	if (swept) {
		assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, NULL));
		assert_granted(claim(s->worker, run_id, "next", LONG, NULL));
	}
	process_signal(&worker, SIGCONT);
	assert_int_equal(process_wait(&worker, TEST_PATIENCE_MS), 0);
	assert_string_equal(process_output(&worker),
			    "claim granted\nrenewal expired, its local end passed\n");
	assert_run(s, run_id,
		   swept ? "running v4 | 1 stopped lease_expired worker_lease_expired | 2 next open"
			 : "running v2 | 1 stopped open");
}

static void case_29_a_worker_stopped_past_its_lease_before_any_sweep(void **state)
{
	stop_and_continue(*state, "r", false);
}

static void case_29_a_worker_stopped_until_another_has_its_run(void **state)
{
	stop_and_continue(*state, "r", true);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		store_test(case_20_a_clock_that_is_ten_minutes_off),
		store_test(case_20_a_clock_that_is_years_off),
		store_test(a_clock_that_jumps_while_a_verb_waits),
		store_test(a_suspended_machine_is_past_its_local_end),
		store_test(case_29_a_worker_stopped_past_its_lease_before_any_sweep),
		store_test(case_29_a_worker_stopped_until_another_has_its_run),
	};

	if (argc == 4 && strcmp(argv[1], "worker") == 0)
		return be_worker(argv[2], argv[3]);
	return cmocka_run_group_tests_name("clock", tests, NULL, scenario_end);
}
