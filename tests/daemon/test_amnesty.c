/*
 * The daemon and an outage that no worker is to blame for: the whole of PostgreSQL is frozen, or its
 * clock jumps (libfaketime). Workers here are threads that renew all their leases in one statement.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "fixture.h"

static struct cluster cluster;
/* -- workers -------------------------------------------------------------------------------------- */

#define TTL (3 * LEASE_SECOND)

/* Renews `live` of its leases, all of them while `dead` is false; tries again until it may. */
struct workers {
	pthread_t thread;
	struct lease_token tokens[1100];
	size_t n, live;
	atomic_bool dead, stop;
	atomic_int rounds;
	int refused; /* of those that live */
};

/* False: its answer is still out, or the connection is gone. */
static bool renew_all(struct workers *workers, PGconn *worker)
{
	static struct lease_grant grants[1100];
	static int results[1100];
	size_t n = atomic_load(&workers->dead) ? workers->live : workers->n;
	struct lease_error error;

	if (lease_renew_leases(worker, workers->tokens, n, TTL, 0, grants, results, &error) != 0)
		return false;
	for (size_t i = 0; i < workers->live; i++)
		workers->refused += results[i] != 0;
	atomic_fetch_add(&workers->rounds, 1);
	return true;
}

static void *work(void *argument)
{
	struct workers *workers = argument;
	PGconn *worker = NULL;

	while (!atomic_load(&workers->stop)) {
		if (!worker)
			worker = PQconnectdb(conninfo);
		if (!renew_all(workers, worker)) {
			PQfinish(worker);
			worker = NULL;
		}
		usleep(200000);
	}
	PQfinish(worker);
	return NULL;
}

static bool has_renewed(void *argument)
{
	return atomic_load(&((struct workers *)argument)->rounds) > 0;
}

static void wait_renewed(struct workers *workers)
{
	atomic_store(&workers->rounds, 0);
	if (!wait_until(has_renewed, workers, TEST_PATIENCE_MS))
		fail_msg("no worker could renew");
}

/* The first `live` of `n` runs are renewed to the end. */
static struct workers *start_workers(size_t n, size_t live)
{
	struct workers *workers = calloc(1, sizeof(*workers));

	if (!workers)
		abort();
	workers->n = n;
	workers->live = live;
	sql(conn,
	    "insert into lease.runs (run_id, status) select 'r' || to_char(i, 'FM0000'), 'running' "
	    "from generate_series(0, %zu) i; "
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "select run_id, 1, 'w', clock_timestamp() + interval '1 min' from lease.runs",
	    n - 1);
	for (size_t i = 0; i < n; i++) {
		struct lease_token *token = &workers->tokens[i];

		*token = (struct lease_token){ .attempt_no = 1 };
		snprintf(token->run_id, sizeof(token->run_id), "r%04zu", i);
		snprintf(token->owner, sizeof(token->owner), "w");
	}
	if (pthread_create(&workers->thread, NULL, work, workers) != 0)
		abort();
	wait_renewed(workers);
	return workers;
}

static void stop_workers(struct workers *workers)
{
	atomic_store(&workers->stop, true);
	pthread_join(workers->thread, NULL);
	assert_int_equal(workers->refused, 0);
	free(workers);
}

/* Their leases end TTL after this at the latest. The rows are locked in the order in which workers do. */
static void let_the_others_die(struct workers *workers)
{
	sql(conn,
	    "with others as materialized (select run_id from lease.run_attempts "
	    "    where run_id >= 'r' || to_char(%zu, 'FM0000') order by run_id for update) "
	    "update lease.run_attempts a set lease_expires_at = clock_timestamp() + interval '3 s' "
	    "from others o where a.run_id = o.run_id",
	    workers->live);
	atomic_store(&workers->dead, true);
	wait_renewed(workers);
}

/* -- freezing ------------------------------------------------------------------------------------- */

static const char *config_with(const char *options)
{
	return text("interval: 500ms\nreconnect_min: 20ms\nreconnect_max: 200ms\npolicy: requeue\n"
		    "amnesty_after: 800ms\namnesty_grace: 6s\n%s\ndatabases:\n%s",
		    options, entry("main", conninfo, ""));
}

/*
 * 1,000 live workers, 50 that die as the database freezes: after three lease lengths all leases are
 * over, and those 50 alone are closed, when the grace is over.
 */
static void case_18_frozen_for_three_lease_lengths(void **state)
{
	struct daemon daemon;
	struct workers *workers = start_workers(1050, 1000);

	(void)state;
	daemon_start_ready(&daemon, config_with(""));
	wait_sql(conn, "select exists (select from lease.heartbeat)");
	daemon_wait_status(&daemon, "1050 open, 0 expired");
	let_the_others_die(workers);
	assert_true(cluster_signal(&cluster, SIGSTOP));
	usleep(3 * TTL); /* the outage: nothing can be waited for */
	assert_true(cluster_signal(&cluster, SIGCONT));
	daemon_wait_log(&daemon, "nobody could renew");
	wait_sql(conn, "select count(*) = 50 from lease.run_attempts where outcome is not null");
	wait_renewed(workers);
	assert_sql(conn, "50,t,t",
		   "select concat_ws(',', count(*), bool_and(a.run_id >= 'r1000'), "
		   "bool_and(a.finished_at >= h.amnesty_until)) "
		   "from lease.run_attempts a, lease.heartbeat h where a.outcome is not null");
	assert_sql(conn, "1000", "select count(*) from lease.run_attempts where outcome is null");
	stop_workers(workers);
	daemon_stop(&daemon);
	assert_sql(conn, "0", "select count(*) from lease.unexplained_runs");
}

/* -- the clock ------------------------------------------------------------------------------------ */

static void set_clock(const char *offset)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/clock", cluster.folder);
	write_file(path, offset);
	chmod(path, 0644);
}

/* The database's clock jumps a day forward and, later, back: an alarm, and no mass expiry. */
static void case_19_the_databases_clock_jumps(void **state)
{
	struct daemon daemon;
	struct workers *workers = start_workers(60, 50);

	(void)state;
	daemon_start_ready(&daemon, config_with("max_clock_jump: 10s"));
	daemon_wait_status(&daemon, "60 open, 0 expired");
	let_the_others_die(workers);
	set_clock("+86400s");
	daemon_wait_log(&daemon, "the database's clock jumped forward by 2");
	wait_sql(conn, "select count(*) = 10 from lease.run_attempts where outcome is not null");
	assert_sql(conn, "t,t",
		   "select concat_ws(',', bool_and(a.run_id >= 'r0050'), "
		   "bool_and(a.finished_at >= h.amnesty_until)) "
		   "from lease.run_attempts a, lease.heartbeat h where a.outcome is not null");
	wait_renewed(workers);
	set_clock("+0s");
	daemon_wait_log(&daemon, "the database's clock jumped back by 2");
	wait_renewed(workers);
	daemon_wait_status(&daemon, "50 open, 0 expired");
	assert_sql(conn, "10", "select count(*) from lease.run_attempts where outcome is not null");
	stop_workers(workers);
	daemon_stop(&daemon);
}

/* -- switching it ---------------------------------------------------------------------------------- */

static void off_removes_the_row_at_once_and_at_reload(void **state)
{
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon, config_with(""));
	wait_sql(conn, "select exists (select from lease.heartbeat where after = interval '800 ms' "
		       "and grace = interval '6 s')");
	write_file(daemon.config_path, config_with("amnesty: off"));
	process_signal(&daemon.process, SIGHUP);
	wait_sql(conn, "select not exists (select from lease.heartbeat)");
	write_file(daemon.config_path, config_with("amnesty: on"));
	process_signal(&daemon.process, SIGHUP);
	wait_sql(conn, "select exists (select from lease.heartbeat)");
	daemon_stop(&daemon);
}

static void a_lease_too_short_to_be_protected_is_told(void **state)
{
	struct daemon daemon;

	(void)state;
	add_leases(conn, "short", 1, 2000, 2000);
	daemon_start_ready(&daemon, config_with(""));
	daemon_wait_log(&daemon, "the amnesty protects leases of 2 s and longer");
	daemon_stop(&daemon);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, create, drop)

/*
 * Starts the server again such that its clock is set by the file `clock` in the cluster's folder. The
 * server alone: each process with that library makes a shared segment named after its pid, and one
 * that was killed leaves it to stop a later process that happens to get the same pid. So what earlier
 * ones left is cleared away.
 */
static int create_with_clock(void **state)
{
	cluster_stop(&cluster, "fast");
	set_clock("+0s");
	cluster_shell(
		&cluster,
		"for left in /dev/shm/faketime_shm_*; do pid=${left##*_}; [ -d /proc/$pid ] ||"
		" rm -f $left /dev/shm/sem.faketime_sem_$pid; done; "
		"library=$(ls /usr/lib/*/faketime/libfaketime.so.1) || exit 1; "
		"FAKETIME_TIMESTAMP_FILE=$2/clock FAKETIME_NO_CACHE=1 DONT_FAKE_MONOTONIC=1 "
		"LEASE_CLUSTER_PRELOAD=$library exec \"$1\" start \"$2\"");
	return create(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(case_18_frozen_for_three_lease_lengths),
		TEST(off_removes_the_row_at_once_and_at_reload),
		TEST(a_lease_too_short_to_be_protected_is_told),
		/* the last one: reading that clock is slow */
		cmocka_unit_test_setup_teardown(case_19_the_databases_clock_jumps,
						create_with_clock, drop),
	};
	int failed;

	cluster_prepare(&cluster);
	cluster_start(&cluster);
	cluster_use(&cluster);
	cmocka_set_test_filter(getenv("TEST_FILTER"));
	failed = cmocka_run_group_tests_name("amnesty of the daemon", tests, NULL, NULL);
	cluster_remove(&cluster);
	return failed;
}
