/*
 * The daemon without memory: each of its own allocations, from its start to its end, fails once.
 *
 * It either does not start, and says why in one line with the exit code for it, or it works: closes
 * what is over, and leaves when it is told to. LEASE_TEST_ROUNDS=1 tries all of them instead of each
 * seventh.
 */
#include <sysexits.h>

#include "fixture.h"

enum { ALLOCATIONS_MAX = 2000 };

static long allocations_of(const char *path)
{
	char *text = read_file(path);
	long n = atol(text);

	free(text);
	return n;
}

static bool decided(void *argument)
{
	struct daemon *daemon = argument;

	return process_ended(&daemon->process) || notify_saw(&daemon->notify, "READY=1", 1);
}

static void start_starved(struct daemon *daemon, const char *config, long at, const char *counted)
{
	char *program = test_program("tests/daemon/starved-reconciler");
	char *environment[4] = { NULL, NULL, NULL, NULL };

	daemon->config_path = write_config(config);
	notify_open(&daemon->notify);
	if (asprintf(&environment[0], "NOTIFY_SOCKET=%s", daemon->notify.path) < 0 ||
	    asprintf(&environment[1], "LEASE_TEST_FAIL_ALLOCATION=%ld", at) < 0 ||
	    asprintf(&environment[2], "LEASE_TEST_ALLOCATIONS=%s", counted) < 0)
		abort();
	process_start(&daemon->process,
		      ((char *[]){ program, "--config", daemon->config_path, NULL }), environment);
	for (int i = 0; i < 3; i++)
		free(environment[i]);
	free(program);
	if (!wait_until(decided, daemon, TEST_PATIENCE_MS))
		fail_msg("without allocation %ld: neither ready nor ended: %s", at,
			 tail(process_errors(&daemon->process)));
}

/* Whether there was an allocation of that number. */
static bool live_without(const char *config, long at, const char *counted)
{
	struct daemon daemon;

	start_starved(&daemon, config, at, counted);
	if (process_ended(&daemon.process)) {
		const char *said = process_errors(&daemon.process);

		if (process_wait(&daemon.process, 0) != EX_OSERR || !strstr(said, "memory"))
			fail_msg("without allocation %ld: exit code %d: %s", at,
				 process_wait(&daemon.process, 0), said);
		assert_one_line(said);
		daemon_done(&daemon);
		return true;
	}
	add_leases(conn, text("lost-%ld-", at), 1, 0, 1000);
	wait_sql(conn,
		 "select not exists (select from lease.run_attempts where finished_at is null)");
	daemon_stop(&daemon);
	return allocations_of(counted) >= at;
}

static void every_allocation_of_the_daemon(void **state)
{
	char *folder = test_tmpdir();
	char *counted = strdup(text("%s/counted", folder));
	char *config = strdup(text("interval: 500ms\nreconnect_min: 50ms\nreconnect_max: 200ms\n"
				   "databases:\n%s",
				   entry("main", conninfo, "")));
	long at = 1;

	(void)state;
	while (at < ALLOCATIONS_MAX && live_without(config, at, counted))
		at += getenv("LEASE_TEST_ROUNDS") ? 1 : 7;
	assert_in_range(at, 20, ALLOCATIONS_MAX - 1);
	free(config);
	free(counted);
	free(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_allocation_of_the_daemon, create, drop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
