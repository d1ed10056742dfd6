/*
 * No memory: each allocation of the library's and of the configuration's reader fails once, one
 * after the other, in every function. What comes back then is LEASE_E_MEMORY, nothing is changed
 * or left open, and the same call on the same connection works afterwards. Leaks are seen by ASan
 * and valgrind, under which this runs as well.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "all_verbs.h"
#include "allocations.h"
#include "config.h"
#include "scenario.h"

enum { ALLOCATIONS_MAX = 5000 };

/* All facts of the database, to the byte. */
static char *all_facts(struct scenario *s)
{
	return sql_text(
		s->admin,
		"select md5(concat("
		"(select string_agg(t::text, '|' order by t) from lease.runs t), "
		"(select string_agg(t::text, '|' order by t) from lease.run_attempts t), "
		"(select string_agg(t::text, '|' order by t) from lease.nodes t), "
		"(select string_agg(t::text, '|' order by t) from lease.node_executions t), "
		"(select string_agg(t::text, '|' order by t) from lease.operations t), "
		"(select string_agg(t::text, '|' order by t) from lease.contents t), "
		"(select string_agg(t::text, '|' order by t) from lease.checkpoints t), "
		"(select string_agg(t::text, '|' order by event_id) from lease.run_events t)))");
}

/* Several transactions: what those before did is done. */
static bool goes_on_in_parts(const struct verb *verb)
{
	return strcmp(verb->name, "reconcile") == 0;
}

static void expect_nothing_happened(struct scenario *s, const struct verb *verb, long at, int r,
				    const struct lease_error *error, const char *before)
{
	char *after = all_facts(s);

	if (r != LEASE_E_MEMORY)
		fail_msg("%s without allocation %ld: %d %s", verb->name, at, r, error->message);
	if (!goes_on_in_parts(verb) && !error->outcome_unknown && strcmp(before, after) != 0)
		fail_msg("%s without allocation %ld failed and changed something", verb->name, at);
	if (PQstatus(s->worker) != CONNECTION_OK ||
	    PQtransactionStatus(s->worker) != PQTRANS_IDLE ||
	    PQpipelineStatus(s->worker) != PQ_PIPELINE_OFF || PQisnonblocking(s->worker))
		fail_msg("%s without allocation %ld left the connection behind", verb->name, at);
	free(after);
}

/* Until all of its allocations have failed once; how many there were. */
static long starve(struct scenario *s, const struct verb *verb)
{
	for (long at = 1; at < ALLOCATIONS_MAX; at++) {
		char *before = all_facts(s);
		struct lease_error error = { 0 };
		bool failed;
		int r;

		allocations_fail_at(at);
		r = verb->call(s->worker, 0, &error);
		failed = allocations_failed();
		allocations_fail_at(0);
		if (r < 0)
			expect_nothing_happened(s, verb, at, r, &error, before);
		free(before);
		/* nothing was refused any more, or it was got over: a list that is read again */
		if (r >= 0 && !failed)
			return at - 1;
	}
	fail_msg("%s does not come to an end of its allocations", verb->name);
	return 0;
}

static void every_function_without_memory(void **state)
{
	struct scenario *s = *state;
	long refused = 0;

	for (const struct verb *verb = all_verbs; verb->name; verb++) {
		struct lease_error error = { 0 };

		if (strcmp(verb->name, "preview_sweep") == 0) {
			take_run(s, "lost", "w:7");
			take_run(s, "lost-too", "w:8");
			end_lease(s, "lost");
			end_lease(s, "run");
		}
		refused += starve(s, verb);
		if (verb->call(s->worker, 0, &error) < 0)
			fail_msg("%s does not work afterwards: %s", verb->name, error.message);
	}
	assert_true(refused > 200);
	assert_explained(s);
	assert_sql(s->admin, "0",
		   "select count(*) from lease.run_attempts where finished_at is null and "
		   "lease_expires_at < clock_timestamp()");
}

/* -- a sweep by an event loop ---------------------------------------------------------------------- */

static void poll_until_idle(struct scenario *s, struct lease_sweep *sweep)
{
	long long until = test_now_ms() + TEST_PATIENCE_MS;
	struct lease_error error;

	while (test_now_ms() < until) {
		int events = lease_sweep_poll(sweep, s->worker, &error);

		if (events < 0 && error.code != LEASE_E_MEMORY)
			fail_msg("%s", error.message);
		if (events <= 0)
			return;
		assert_true(PQstatus(s->worker) == CONNECTION_OK);
		(void)!poll(
			&(struct pollfd){
				.fd = PQsocket(s->worker),
				.events = (short)((events & LEASE_POLL_READ ? POLLIN : 0) |
						  (events & LEASE_POLL_WRITE ? POLLOUT : 0)) },
			1, TEST_PATIENCE_MS);
	}
	fail_msg("a sweep does not come to its end");
}

/* Whatever fails, the next passes close what is over. */
static void a_sweep_that_goes_on_without_memory(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	bool failed = true;

	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	PQsetnonblocking(s->worker, 1);
	for (long at = 1; failed && at < ALLOCATIONS_MAX; at++) {
		struct lease_sweep *sweep = NULL;
		long long until = test_now_ms() + TEST_PATIENCE_MS;
		bool is_closed = false;
		char owner[32];

		snprintf(owner, sizeof(owner), "w:%ld", at);
		if (at == 1)
			take_run(s, "r", "w:0");
		else
			assert_granted(claim(s->other, "r", owner, LONG, NULL));
		end_lease(s, "r");
		allocations_fail_at(at);
		if (lease_sweep_new(&options, NULL, &sweep, &last_error) < 0) {
			allocations_fail_at(0);
			assert_int_equal(last_error.code, LEASE_E_MEMORY);
			assert_granted(reconcile(s->other, LEASE_POLICY_REQUEUE, 0, NULL));
			continue;
		}
		while (!is_closed) {
			lease_sweep_hurry(sweep);
			poll_until_idle(s, sweep);
			allocations_count(false);
			is_closed = sql_number(s->admin, "select count(*) from lease.run_attempts "
							 "where finished_at is null") == 0;
			if (test_now_ms() > until)
				fail_msg("without allocation %ld the run is never closed", at);
			allocations_count(true);
		}
		failed = allocations_failed();
		allocations_fail_at(0);
		lease_sweep_free(sweep);
	}
	assert_false(failed);
}

/* -- the configuration ------------------------------------------------------------------------------ */

static void a_configuration_without_memory(void **state)
{
	char *path = test_source("config/lease-reconciler.yaml"), *text = read_file(path);
	long at = 1;

	(void)state;
	for (; at < ALLOCATIONS_MAX; at++) {
		struct config *config = NULL;
		struct config_error error = { 0 };
		bool failed;
		int r;

		allocations_fail_at(at);
		r = config_parse(path, text, strlen(text), false, &config, &error);
		failed = allocations_failed();
		allocations_fail_at(0);
		if (r == 0)
			config_free(config);
		if (!failed)
			break;
		if (r != 0 && (config || !strstr(error.message, "memory")))
			fail_msg("without allocation %ld: %d \"%s\"", at, r, error.message);
	}
	assert_in_range(at, 5, ALLOCATIONS_MAX - 1);
	free(text);
	free(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(every_function_without_memory),
		store_test(a_sweep_that_goes_on_without_memory),
		cmocka_unit_test(a_configuration_without_memory),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
