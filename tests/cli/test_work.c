/*
 * leasectl work, end to end: many runs, several at a time, drained, killed, cut off.
 */
#include "worker.h"

#include <sysexits.h>

#define start_work(process, script, ...)                                                           \
	start(process, "work", ##__VA_ARGS__, "--", "bash", "-c", script)

/* run-1 … run-N */
static void submit_many(int n)
{
	for (int i = 1; i <= n; i++) {
		char run_id[16];

		snprintf(run_id, sizeof(run_id), "run-%d", i);
		assert_granted(submit(s->worker, run_id));
	}
}

/* 4 at a time: the first four wait for each other, and never is a fifth at work. */
static void twenty_runs_four_at_a_time(void **state)
{
	struct process process;

	(void)state;
	submit_many(20);
	start_work(&process,
		   SCRIPT "mark $LEASE_RUN_ID x\n"
			  "case $LEASE_RUN_ID in run-[1234]) wait_for run-1; wait_for run-2;"
			  " wait_for run-3; wait_for run-4;; esac\n"
			  "echo $LEASE_RUN_ID; cat",
		   "--jobs", "4", "--until-idle");
	ends_with(0, &process);
	assert_sql(s->admin, "20 20",
		   "select count(*) || ' ' || count(distinct run_id) from lease.run_attempts "
		   "where outcome = 'completed'");
	assert_sql(s->admin, "4",
		   "select max(n) from (select (select count(*) from lease.run_attempts b "
		   "where b.started_at <= a.started_at and b.finished_at > a.started_at) as n "
		   "from lease.run_attempts a) m");
	assert_sql(s->admin, "20",
		   "select count(distinct l) from regexp_split_to_table('%s', E'\\n') l "
		   "where l like 'run-%%'",
		   process_output(&process));
	assert_explained(s);
}

static void the_oldest_run_comes_first(void **state)
{
	struct process process;

	(void)state;
	submit_many(3);
	start_work(&process, "echo $LEASE_RUN_ID", "--until-idle");
	ends_with(0, &process);
	assert_string_equal(process_output(&process), "run-1\nrun-2\nrun-3\n");
	said(&process, "run run-2 attempt 1: completed\n");
}

/* One transaction wrote all renewals. */
static void all_leases_are_renewed_in_one_statement(void **state)
{
	struct process process;

	(void)state;
	submit_many(3);
	start_work(&process, SCRIPT "mark $LEASE_RUN_ID x; wait_for go", "--jobs", "3", "--ttl",
		   "2s", "--until-idle");
	wait_trace("run-1");
	wait_trace("run-2");
	wait_trace("run-3");
	wait_sql(s->admin, "select count(distinct xmin::text) = 1 and count(*) = 3 and "
			   "min(heartbeat_at - started_at) > interval '1 s' "
			   "from lease.run_attempts where finished_at is null");
	make_trace("go");
	ends_with(0, &process);
	assert_sql(s->admin, "3", "select count(*) from lease.runs where status = 'completed'");
}

static void one_failing_run_does_not_starve_the_rest(void **state)
{
	struct process process;

	(void)state;
	submit_many(5);
	start_work(&process, "[ $LEASE_RUN_ID != run-1 ] || exit 75", "--until-idle",
		   "--retry-delay", "1h", "--retry-max", "2h");
	ends_with(0, &process);
	assert_sql(s->admin, "4", "select count(*) from lease.runs where status = 'completed'");
	run_is("run-1", "pending v3 | 1 retry_released exit_75");
	said(&process, "run run-1 attempt 1: released for retry (exit_75), due in 1h00m");
}

static void a_run_whose_worker_was_lost_is_taken_over(void **state)
{
	struct process process;

	(void)state;
	take_run(s, "lost", "w");
	end_lease(s, "lost");
	assert_granted(reconcile(s->worker, LEASE_POLICY_RECORD, 0, NULL));
	start_work(&process, "true", "--until-idle", "--pending-only");
	ends_with(0, &process);
	run_is("lost", "running v2 | 1 lease_expired worker_lease_expired");
	start_work(&process, "true", "--until-idle");
	ends_with(0, &process);
	run_is("lost", "completed v3 | 1 lease_expired worker_lease_expired | 2 completed");
}

static void only_the_tenants_runs_are_claimed(void **state)
{
	struct process process;

	(void)state;
	submit_many(1);
	assert_granted(lease_submit(s->worker,
				    &(struct lease_submission){ .run_id = "b", .tenant_id = "t" },
				    NULL, NULL, &last_error));
	start_work(&process, "true", "--until-idle", "--tenant", "t");
	ends_with(0, &process);
	run_is("b", "completed v3 | 1 completed");
	run_is("run-1", "pending v1");
}

static void an_idle_worker_finds_what_comes_in(void **state)
{
	struct process process;

	(void)state;
	start_work(&process, SCRIPT "mark $LEASE_RUN_ID x", "--idle", "50ms");
	/* it has looked, and goes on looking */
	wait_sql(s->admin, "select count(*) = 1 from pg_stat_activity where "
			   "application_name = 'leasectl' and query = 'ROLLBACK' and "
			   "datname = current_database()");
	submit_many(1);
	wait_trace("run-1");
	process_signal(&process, SIGTERM);
	ends_with(0, &process);
	run_is("run-1", "completed v3 | 1 completed");
}

static void sigterm_drains(void **state)
{
	struct process process;

	(void)state;
	submit_many(3);
	start_work(&process, SCRIPT "trap 'mark term x' TERM; mark $LEASE_RUN_ID x; wait_for go",
		   "--jobs", "2");
	wait_trace("run-1");
	wait_trace("run-2");
	process_signal(&process, SIGTERM);
	process_wait_text(&process, "no further run is claimed", TEST_PATIENCE_MS);
	make_trace("go");
	ends_with(0, &process);
	assert_false(trace_is_there("term"));
	run_is("run-1", "completed v3 | 1 completed");
	run_is("run-2", "completed v3 | 1 completed");
	run_is("run-3", "pending v1");
}

static void a_second_sigterm_releases_what_is_at_work(void **state)
{
	struct process process;

	(void)state;
	submit_many(2);
	start_work(&process,
		   SCRIPT "[ $LEASE_RUN_ID = run-1 ] && trap 'exit 0' TERM\n"
			  "mark $LEASE_RUN_ID x; wait_for never",
		   "--jobs", "2");
	wait_trace("run-1");
	wait_trace("run-2");
	process_signal(&process, SIGTERM);
	process_wait_text(&process, "no further run is claimed", TEST_PATIENCE_MS);
	process_signal(&process, SIGTERM);
	ends_with(0, &process);
	run_is("run-1", "completed v3 | 1 completed");
	run_is("run-2", "pending v3 | 1 retry_released signal_15");
}

static void one_lost_lease_ends_its_command_alone(void **state)
{
	struct process process;

	(void)state;
	submit_many(2);
	start_work(&process, SCRIPT "mark $LEASE_RUN_ID $$; wait_for go", "--jobs", "2", "--ttl",
		   "2s", "--until-idle");
	wait_trace("run-1");
	wait_trace("run-2");
	/* closed, and not pending: nobody shall claim it again here */
	end_lease(s, "run-1");
	assert_granted(reconcile(s->worker, LEASE_POLICY_FAIL, 0, NULL));
	process_wait_text(&process, "run run-1 attempt 1: its lease is lost", TEST_PATIENCE_MS);
	assert_true(process_state(trace_number("run-2")));
	make_trace("go");
	ends_with(0, &process);
	run_is("run-2", "completed v3 | 1 completed");
}

static void a_killed_worker_leaves_no_command_behind(void **state)
{
	struct process process;
	pid_t pids[3];

	(void)state;
	submit_many(3);
	start_work(&process, SCRIPT "mark $LEASE_RUN_ID $$; while :; do sleep 0.05; done", "--jobs",
		   "3", "--ttl", "1h");
	pids[0] = trace_number("run-1");
	pids[1] = trace_number("run-2");
	pids[2] = trace_number("run-3");
	process_signal(&process, SIGKILL);
	for (int i = 0; i < 3; i++) {
		struct family alone = { { pids[i], pids[i], pids[i] } };

		wait_family(has_ended, &alone);
	}
}

/* The lease is long: the commands notice nothing, and then it goes on. */
static void work_goes_on_after_an_outage(void **state)
{
	struct process process;

	(void)state;
	submit_many(2);
	start_work(&process, SCRIPT "mark $LEASE_RUN_ID x; wait_for go", "--until-idle", "--ttl",
		   "1h");
	wait_trace("run-1");
	shut_out();
	make_trace("go");
	process_wait_text(&process, "trying again", TEST_PATIENCE_MS);
	set_connections("true");
	ends_with(0, &process);
	said(&process, "the database answers again");
	run_is("run-1", "completed v3 | 1 completed");
	run_is("run-2", "completed v3 | 1 completed");
}

static void a_command_that_cannot_start_ends_the_worker(void **state)
{
	struct process process;

	(void)state;
	submit_many(2);
	start(&process, "work", "--", "/etc");
	ends_with(126, &process);
	said(&process, "/etc: cannot be executed: Permission denied");
	run_is("run-1", "pending v3 | 1 retry_released start_failed");
	run_is("run-2", "pending v1");
}

/* What docs/worker.md shows. */
static void the_examples_work(void **state)
{
	static const char *const names[] = { "examples/worker.sh", "examples/worker.py" };
	struct process process;

	(void)state;
	for (size_t i = 0; i < LENGTH(names); i++) {
		char *example = test_source(names[i]);

		if (i == 1 && system("command -v python3 >/dev/null") != 0) {
			free(example);
			break;
		}
		submit_many(2);
		start(&process, "work", "--until-idle", "--", example, folder);
		/* an interpreter may be slow to start on a busy machine */
		process_wait(&process, 6 * TEST_PATIENCE_MS);
		ends_with(0, &process);
		assert_sql(s->admin, "2",
			   "select count(*) from lease.runs where status = 'completed'");
		assert_true(trace_is_there("run-1.result"));
		assert_true(trace_is_there("run-2.result"));
		free(example);
		scenario_empty(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		worker_test(twenty_runs_four_at_a_time),
		worker_test(the_oldest_run_comes_first),
		worker_test(all_leases_are_renewed_in_one_statement),
		worker_test(one_failing_run_does_not_starve_the_rest),
		worker_test(a_run_whose_worker_was_lost_is_taken_over),
		worker_test(only_the_tenants_runs_are_claimed),
		worker_test(an_idle_worker_finds_what_comes_in),
		worker_test(sigterm_drains),
		worker_test(a_second_sigterm_releases_what_is_at_work),
		worker_test(one_lost_lease_ends_its_command_alone),
		worker_test(a_killed_worker_leaves_no_command_behind),
		worker_test(work_goes_on_after_an_outage),
		worker_test(a_command_that_cannot_start_ends_the_worker),
		worker_test(the_examples_work),
	};
	const char *filter = getenv("TEST_FILTER");

	if (filter)
		cmocka_set_test_filter(filter);
	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
