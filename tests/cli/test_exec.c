/*
 * leasectl exec, end to end, with real commands and signals: how a command ends is how its run ends,
 * and what is refused runs nothing. What happens when leasectl, its guard or the database is gone is
 * in test_guard.c.
 */
#include "worker.h"

#include <sysexits.h>

/* -- how a command ends is how its run ends ------------------------------------------------------ */

static void the_command_runs_under_a_lease(void **state)
{
	struct process process;

	(void)state;
	submit(s->worker, "r");
	start_exec(&process, "r",
		   SCRIPT "mark token \"$LEASE_RUN_ID $LEASE_ATTEMPT_NO $LEASE_OWNER\"\n"
			  "wait_for go; cat $D/token",
		   "--owner", "me", "--ttl", "1500ms");
	wait_trace("token");
	/* renewed, more than once */
	wait_sql(s->admin, "select heartbeat_at > started_at + interval '900 ms' "
			   "from lease.run_attempts");
	assert_sql(s->admin, "t", "select owner ~ '^me:[0-9a-f-]{36}$' from lease.run_attempts");
	make_trace("go");
	ends_with(0, &process);
	assert_sql(s->admin, "t",
		   "select '%s' = run_id || ' ' || attempt_no || ' ' || owner || E'\\n' "
		   "from lease.run_attempts",
		   process_output(&process));
	assert_string_equal(process_errors(&process), "");
	assert_sql(s->admin, "completed completed",
		   "select r.status || ' ' || a.outcome from lease.runs r "
		   "join lease.run_attempts a using (run_id)");
	assert_explained(s);
}

static void exit_codes_end_the_run(void **state)
{
	static const struct {
		const char *script;
		int code;
		const char *run;
	} cases[] = {
		{ "exit 0", 0, "completed - completed -" },
		{ "exit 3", 3, "failed exit_3 failed exit_3" },
		{ "exit 255", 255, "failed exit_255 failed exit_255" },
		{ "kill -KILL $$", 137, "failed signal_9 failed signal_9" },
		{ "kill -TERM $$", 143, "failed signal_15 failed signal_15" },
		{ "exit 75", 75, "pending - retry_released exit_75" },
	};

	(void)state;
	for (size_t i = 0; i < LENGTH(cases); i++) {
		char run_id[8];

		snprintf(run_id, sizeof(run_id), "r%zu", i);
		submit(s->worker, run_id);
		exec_ends(cases[i].code, run_id, cases[i].script);
		assert_sql(
			s->admin, cases[i].run,
			"select r.status || ' ' || coalesce(r.terminal_error_code, '-') || ' ' || "
			"a.outcome || ' ' || coalesce(a.error_code, '-') from lease.runs r "
			"join lease.run_attempts a using (run_id) where run_id = '%s'",
			run_id);
	}
	assert_explained(s);
}

static int64_t delay_of(const char *run_id)
{
	return sql_number(s->admin,
			  "select round(extract(epoch from r.not_before - a.finished_at))::int "
			  "from lease.runs r join lease.run_attempts a using (run_id) "
			  "where run_id = '%s' order by attempt_no desc limit 1",
			  run_id);
}

static void each_75_in_a_row_doubles_the_delay(void **state)
{
	static const int expected[] = { 600, 1200, 2400, 3000, 3000 };
	struct lease_grant grant;

	(void)state;
	submit(s->worker, "r");
	for (size_t i = 0; i < LENGTH(expected); i++) {
		exec_ends(75, "r", "exit 75", "--retry-delay", "10m", "--retry-max", "50m");
		assert_int_equal(delay_of("r"), expected[i]);
		sql(s->admin, "update lease.runs set not_before = null");
	}
	/* another end breaks the row */
	assert_granted(claim(s->worker, "r", "w", LONG, &grant));
	end_lease(s, "r");
	assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, NULL));
	exec_ends(75, "r", "exit 75", "--retry-delay", "10m", "--retry-max", "50m");
	assert_int_equal(delay_of("r"), 600);
}

static void what_a_command_leaves_behind_ends_before_the_run(void **state)
{
	struct family family;

	(void)state;
	submit(s->worker, "r");
	exec_ends(0, "r",
		  SCRIPT "(" FAMILY ") >/dev/null 2>&1 & wait_for command; wait_for gone; exit 0",
		  "--grace", "100ms");
	family = find_family();
	assert_true(family_has_ended(&family));
	assert_sql(s->admin, "completed", "select status from lease.runs");
}

/* -- refused before anything happens -------------------------------------------------------------- */

static void assert_nothing_ran(int attempts)
{
	assert_false(trace_is_there("ran"));
	assert_int_equal(sql_number(s->admin, "select count(*) from lease.run_attempts"), attempts);
}

static void a_refused_claim_runs_nothing(void **state)
{
	struct process process;

	(void)state;
	take_run(s, "held", "w");
	start_exec(&process, "held", "touch $D/ran");
	ends_with(EX_DATAERR, &process);
	said(&process, "refused (held)");
	start_exec(&process, "nosuch", "touch $D/ran");
	ends_with(EX_NOINPUT, &process);
	said(&process, "refused (not_found)");
	assert_nothing_ran(1);
}

static void a_command_that_cannot_run_costs_no_attempt(void **state)
{
	struct process process;

	(void)state;
	submit(s->worker, "r");
	start(&process, "exec", "--run", "r", "--", "no-such-command");
	ends_with(127, &process);
	start(&process, "exec", "--run", "r", "--", "/etc/passwd");
	ends_with(126, &process);
	assert_nothing_ran(0);
	/* what is found out too late is released */
	start(&process, "exec", "--run", "r", "--", "/etc");
	ends_with(126, &process);
	run_is("r", "pending v3 | 1 retry_released start_failed");
}

static void case_10_a_period_longer_than_a_third_of_the_lease_is_refused(void **state)
{
	struct process process;

	(void)state;
	submit(s->worker, "r");
	start_exec(&process, "r", "touch $D/ran", "--ttl", "30s", "--renew-every", "11s");
	ends_with(EX_USAGE, &process);
	said(&process, "--renew-every: a renewal period of 11.000 s is longer than a third of the "
		       "lease of 30.000 s: renew at least every 10.000 s, or lease for at least "
		       "33.000 s");
	start(&process, "work", "--ttl", "30s", "--renew-every", "10001ms", "--", "touch", "x");
	ends_with(EX_USAGE, &process);
	said(&process, "longer than a third");
	assert_nothing_ran(0);
	exec_ends(0, "r", "exit 0", "--ttl", "30s", "--renew-every", "10s");
}

static void wrong_use_is_told(void **state)
{
	static const char *const cases[][6] = {
		{ "exec", "--", "true", NULL, "which run?" },
		{ "exec", "--run", "r", NULL, "-- COMMAND [ARGUMENT]... is missing" },
		{ "exec", "--run=r", "--ttl=99ms", "true", "--ttl: a lease must last" },
		{ "exec", "--run=r", "--owner=", "true", "--owner: a name has 1 to 200 bytes" },
		{ "exec", "--run=r", "--retry-max=1ms", "true", "--retry-max: it must not be" },
		{ "work", "--jobs", "501", "true", "--jobs: at most 500" },
		{ "work", "--jobs", "0", "true", "--jobs: '0' is no whole number" },
		{ "work", "--idle=0s", "true", NULL, "--idle: a pause has 1ms" },
	};
	struct process process;

	(void)state;
	for (size_t i = 0; i < LENGTH(cases); i++) {
		start_words(&process, (const char *const[]){ cases[i][0], cases[i][1], cases[i][2],
							     cases[i][3], NULL });
		ends_with(EX_USAGE, &process);
		said(&process, cases[i][4]);
	}
}

/* -- signals and cancel requests ------------------------------------------------------------------ */

static void signals_reach_the_command(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process, SCRIPT "trap 'mark usr1 x' USR1; trap 'mark term x; exit 7' TERM\n"
				     "(trap 'mark childterm x; exit' TERM; mark child $BASHPID;"
				     " while :; do sleep 0.02; done) &\n"
				     "wait_for child; mark ready x; while :; do sleep 0.02; done");
	process_signal(&process, SIGUSR1);
	wait_trace("usr1");
	process_signal(&process, SIGTERM);
	ends_with(7, &process);
	assert_true(trace_is_there("term"));
	assert_true(trace_is_there("childterm"));
	run_is("r", "failed v3 exit_7 | 1 failed exit_7");
}

static void a_cancel_request_ends_the_command(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process, SCRIPT "trap 'exit 5' TERM; mark ready x; wait_for never", "--ttl",
		    "2s");
	assert_granted(request_cancel(s->worker, "r", 0, NULL));
	ends_with(5, &process);
	run_is("r", "cancelled v3 exit_5 | 1 cancelled exit_5");
}

static void a_cancelled_command_that_does_not_end_is_killed(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "2s", "--grace", "100ms");
	assert_granted(request_cancel(s->worker, "r", 0, NULL));
	ends_with(137, &process);
	assert_true(family_has_ended(&family));
	run_is("r", "cancelled v3 signal_9 | 1 cancelled signal_9");
}

static void a_cancel_request_after_the_last_renewal_counts(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process, SCRIPT "mark ready x; wait_for go; exit 0", "--ttl", "1h");
	assert_granted(request_cancel(s->worker, "r", 0, NULL));
	make_trace("go");
	ends_with(0, &process);
	run_is("r", "cancelled v3 exit_0 | 1 cancelled exit_0");
}

/* -- the lease is lost ---------------------------------------------------------------------------- */

static void a_refused_renewal_ends_the_command(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process,
		    SCRIPT "trap 'mark term x; exit 0' TERM; mark ready x; wait_for never", "--ttl",
		    "2s");
	end_lease(s, "r");
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, NULL));
	ends_with(76, &process);
	assert_true(trace_is_there("term"));
	said(&process, "its lease is lost (expired)");
	run_is("r", "pending v3 | 1 lease_expired worker_lease_expired");
}

static void a_lost_command_that_does_not_end_is_killed(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "2s", "--grace", "100ms");
	end_lease(s, "r");
	ends_with(76, &process);
	assert_true(family_has_ended(&family));
}

static void an_end_that_is_refused_is_told(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process, SCRIPT "mark ready x; wait_for go", "--ttl", "1h");
	end_lease(s, "r");
	make_trace("go");
	ends_with(76, &process);
	said(&process, "its lease is lost (expired): how the command ended cannot be recorded");
}

/* -- the database goes away when the command has ended ---------------------------------------------- */

/* The commit took place, its answer got lost: asked again, the database says so. */
static void a_lost_answer_at_the_end_is_asked_for_again(void **state)
{
	struct process process;
	struct proxy proxy;

	(void)state;
	submit(s->worker, "r");
	proxy_open(&proxy, s);
	through = proxy.conninfo;
	start_exec(&process, "r", SCRIPT "mark ready x; wait_for go; exit 3", "--ttl", "1h");
	wait_trace("ready");
	proxy_arm(&proxy, CUT_ANSWER, 2);
	make_trace("go");
	ends_with(3, &process);
	assert_true(atomic_load(&proxy.cut));
	said(&process, "cannot end a run");
	run_is("r", "failed v3 exit_3 | 1 failed exit_3");
	proxy_close(&proxy);
}

static void an_outage_at_the_end_is_waited_for(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process, SCRIPT "mark ready x; wait_for go; exit 0", "--ttl", "1h");
	shut_out();
	make_trace("go");
	process_wait_text(&process, "trying again", TEST_PATIENCE_MS);
	set_connections("true");
	ends_with(0, &process);
	run_is("r", "completed v3 | 1 completed");
}

static void a_second_signal_gives_up_waiting(void **state)
{
	struct process process;

	(void)state;
	start_ready(&process, SCRIPT "mark ready x; wait_for go; exit 0", "--ttl", "1h");
	shut_out();
	make_trace("go");
	process_wait_text(&process, "trying again", TEST_PATIENCE_MS);
	process_signal(&process, SIGTERM);
	process_signal(&process, SIGINT);
	ends_with(EX_UNAVAILABLE, &process);
	said(&process, "how its command ended is not recorded");
	run_is("r", "running v2 | 1 open");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		worker_test(the_command_runs_under_a_lease),
		worker_test(exit_codes_end_the_run),
		worker_test(each_75_in_a_row_doubles_the_delay),
		worker_test(what_a_command_leaves_behind_ends_before_the_run),
		worker_test(a_refused_claim_runs_nothing),
		worker_test(a_command_that_cannot_run_costs_no_attempt),
		worker_test(case_10_a_period_longer_than_a_third_of_the_lease_is_refused),
		worker_test(wrong_use_is_told),
		worker_test(signals_reach_the_command),
		worker_test(a_cancel_request_ends_the_command),
		worker_test(a_cancelled_command_that_does_not_end_is_killed),
		worker_test(a_cancel_request_after_the_last_renewal_counts),
		worker_test(a_refused_renewal_ends_the_command),
		worker_test(a_lost_command_that_does_not_end_is_killed),
		worker_test(an_end_that_is_refused_is_told),
		worker_test(a_lost_answer_at_the_end_is_asked_for_again),
		worker_test(an_outage_at_the_end_is_waited_for),
		worker_test(a_second_signal_gives_up_waiting),
	};
	const char *filter = getenv("TEST_FILTER");

	if (filter)
		cmocka_set_test_filter(filter);
	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
