/*
 * What leasectl exec promises while a command runs: whatever is done to leasectl, to its guard or to
 * the database, nothing below it goes on without a lease.
 */
#include "worker.h"

#include <sys/socket.h>
#include <sysexits.h>

#include "cluster.h"
#include "guard.h"

static struct cluster cluster; /* of its own: it is stopped */

static int begin_cluster(void **state)
{
	(void)state;
	cluster_prepare(&cluster);
	cluster_start(&cluster);
	cluster_use(&cluster);
	return 0;
}

static int end_cluster(void **state)
{
	processes_kill_all(state);
	scenario_end(state);
	cluster_remove(&cluster);
	return 0;
}

/* -- leasectl killed, stopped; its guard killed ----------------------------------------------------- */

static void leasectl_killed_ends_all_below_it(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "1h", "--grace", "100ms");
	process_signal(&process, SIGKILL);
	wait_family(has_ended, &family);
	assert_sql(s->admin, "1",
		   "select count(*) from lease.run_attempts where finished_at is null");
}

static void leasectl_killed_gives_no_grace_past_the_lease(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "2s", "--grace", "1h");
	process_signal(&process, SIGKILL);
	wait_family(has_ended, &family);
}

static void leasectl_stopped_ends_all_at_the_leases_end(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "2s", "--grace", "1h");
	process_signal(&process, SIGSTOP);
	wait_family(has_ended, &family);
	process_signal(&process, SIGCONT);
	ends_with(76, &process);
	said(&process, "its lease is lost");
	assert_sql(s->admin, "1",
		   "select count(*) from lease.run_attempts where finished_at is null");
}

/* The guard leaves when all is over, whatever order is on its way to it. */
static void news_are_heard_though_an_order_was_not(void **state)
{
	struct {
		int32_t kind, value;
		int64_t time;
	} news = { .kind = GUARD_UNRENEWED, .value = 9 };
	struct guard guard;
	int sockets[2], value = 0;

	(void)state;
	assert_int_equal(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets));
	guard = (struct guard){ .socket = sockets[0] };
	guard_answer(guard.socket);
	assert_int_equal(sizeof(news), send(sockets[1], &news, sizeof(news), 0));
	close(sockets[1]);
	assert_int_equal(GUARD_UNRENEWED, guard_read(&guard, &value));
	assert_int_equal(9, value);
	assert_int_equal(GUARD_GONE, guard_read(&guard, &value));
	close(sockets[0]);
}

static void a_killed_guard_ends_all_and_releases_the_run(void **state)
{
	struct process process;
	struct family family;
	pid_t guard;

	(void)state;
	family = start_family(&process, "--ttl", "1h", "--grace", "1h");
	guard = process_parent(family.pids[0]); /* between leasectl and the command */
	assert_true(guard > 1);
	assert_int_not_equal(guard, process.pid);
	kill(guard, SIGKILL);
	ends_with(EX_OSERR, &process);
	assert_true(family_has_ended(&family));
	run_is("r", "pending v3 | 1 retry_released guard_lost");
}

/* -- the database goes away ------------------------------------------------------------------------- */

static void a_stopped_database_stops_the_command_and_a_refusal_ends_it(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "3s", "--grace", "100ms");
	cluster_stop(&cluster, "immediate");
	wait_family(is_stopped, &family);
	process_wait_text(&process, "the command is stopped until a renewal is granted",
			  TEST_PATIENCE_MS);
	cluster_start(&cluster);
	PQreset(s->admin);
	ends_with(76, &process);
	assert_true(family_has_ended(&family));
	said(&process, "its lease is lost (expired)");
}

/* What the database grants counts, not what the worker's clock says. */
static void a_granted_renewal_continues_the_command(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "3s", "--grace", "100ms");
	shut_out();
	sql(s->admin, "update lease.run_attempts set lease_expires_at = clock_timestamp() + "
		      "interval '1 hour'");
	wait_family(is_stopped, &family);
	set_connections("true");
	wait_family(runs, &family);
	process_wait_text(&process, "renewed, the command goes on", TEST_PATIENCE_MS);
	assert_granted(request_cancel(s->worker, "r", 0, NULL));
	ends_with(137, &process);
	run_is("r", "cancelled v3 signal_9 | 1 cancelled signal_9");
}

static void a_stopped_command_can_still_be_ended(void **state)
{
	struct process process;
	struct family family;

	(void)state;
	family = start_family(&process, "--ttl", "2s", "--grace", "100ms");
	shut_out();
	wait_family(is_stopped, &family);
	process_signal(&process, SIGTERM);
	wait_family(has_ended, &family);
	set_connections("true");
	ends_with(76, &process);
}

/* Stops or continues the server's own process and the one that serves leasectl. */
static void signal_server(pid_t backend, int signal_number)
{
	assert_int_equal(kill(cluster_postmaster(&cluster), signal_number), 0);
	assert_int_equal(kill(backend, signal_number), 0);
}

/* leasectl waits for a database that does not answer: its guard does not. */
static void a_silent_database_stops_the_command_too(void **state)
{
	struct process process;
	struct family family;
	pid_t backend;

	(void)state;
	family = start_family(&process, "--ttl", "3s", "--grace", "100ms");
	backend = (pid_t)sql_number(s->admin, "select pid from pg_stat_activity "
					      "where application_name = 'leasectl'");
	signal_server(backend, SIGSTOP);
	wait_family(is_stopped, &family);
	end_lease(s, "r");
	signal_server(backend, SIGCONT);
	ends_with(76, &process);
	assert_true(family_has_ended(&family));
	said(&process, "its lease is lost (expired)");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		worker_test(leasectl_killed_ends_all_below_it),
		worker_test(leasectl_killed_gives_no_grace_past_the_lease),
		worker_test(leasectl_stopped_ends_all_at_the_leases_end),
		cmocka_unit_test(news_are_heard_though_an_order_was_not),
		worker_test(a_killed_guard_ends_all_and_releases_the_run),
		worker_test(a_stopped_database_stops_the_command_and_a_refusal_ends_it),
		worker_test(a_granted_renewal_continues_the_command),
		worker_test(a_stopped_command_can_still_be_ended),
		worker_test(a_silent_database_stops_the_command_too),
	};
	const char *filter = getenv("TEST_FILTER");

	if (filter)
		cmocka_set_test_filter(filter);
	return cmocka_run_group_tests(tests, begin_cluster, end_cluster);
}
