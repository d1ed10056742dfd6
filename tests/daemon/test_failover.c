/*
 * Two servers by streaming replication: the primary dies, the standby is promoted, and daemons and
 * workers that name both hosts go on there by themselves. Under synchronous replication nothing is
 * lost and nothing happens twice; what an asynchronous promotion loses is pinned down here as well,
 * word for word as docs/running.md tells it.
 *
 * Each test makes the standby anew, from what the test before has promoted.
 */
#include <libpq-fe.h>

#include "../torture/checker.h"
#include "daemon.h"

static struct cluster primary, standby;
static char *conninfo; /* of the database on the primary alone */
static const char *database;
static bool promoted;
static PGconn *conn; /* superuser: on the primary, after fail_over on what was the standby */

static int begin(void **state)
{
	(void)state;
	cluster_prepare(&primary);
	cluster_start(&primary);
	cluster_use(&primary);
	return 0;
}

static int finish(void **state)
{
	processes_kill_all(state);
	cluster_remove(&primary);
	return 0;
}

/* From now on a commit is acknowledged when the standby has it on its disk. */
static void replicate_synchronously(void)
{
	sql(conn, "alter system set synchronous_standby_names = '*'");
	sql(conn, "select pg_reload_conf()");
	wait_sql(conn, "select count(*) = 1 from pg_stat_replication where sync_state = 'sync'");
}

static int create(void **state)
{
	(void)state;
	conninfo = test_database_create();
	database = strstr(conninfo, "dbname=") + strlen("dbname=");
	conn = test_connect(conninfo);
	record_closes(conn);
	promoted = false;
	cluster_prepare(&standby);
	cluster_standby(&standby, &primary);
	return 0;
}

/* The first of the list may be the one that is gone, or a standby. */
static const char *both_hosts(const char *user, const char *more)
{
	return text("host=%s,%s port=5432 user=%s dbname=%s connect_timeout=2 %s", primary.folder,
		    standby.folder, user, database, more);
}

#define STRICT "amnesty: off\n"
#define AMNESTY "amnesty: on\namnesty_after: 1s\namnesty_grace: 3s\ninterval: 300ms\n"

static const char *config_as(const char *role, const char *attributes, const char *options)
{
	return text("reconnect_min: 20ms\nreconnect_max: 200ms\nconnect_timeout: 1s\n"
		    "policy: requeue\nlog:\n  closed_attempts_per_second: 10000\n%s"
		    "\ndatabases:\n%s",
		    options, entry("main", both_hosts(role, attributes), ""));
}

static void kill_primary(void)
{
	cluster_stop(&primary, "immediate");
}

static void promote_standby(void)
{
	cluster_promote(&standby);
	promoted = true;
	PQfinish(conn);
	conn = test_connect(
		text("host=%s port=5432 user=postgres dbname=%s", standby.folder, database));
}

static void fail_over(void)
{
	kill_primary();
	promote_standby();
}

/* What was promoted is the next test's primary; where a test failed before that, the old one. */
static int drop(void **state)
{
	struct cluster old = primary;

	processes_kill_all(state);
	if (!promoted && PQping(conninfo) != PQPING_OK)
		promote_standby();
	if (promoted) {
		primary = standby;
		cluster_remove(&old);
	} else {
		sql(conn, "alter system reset synchronous_standby_names");
		sql(conn, "select pg_reload_conf()");
		cluster_remove(&standby);
	}
	PQfinish(conn);
	conn = NULL;
	cluster_use(&primary);
	free(conninfo);
	return 0;
}

/* ---- a worker through liblease ---- */

static struct lease_error last_error;

#define assert_verb(expected, call) assert_verb_at(expected, call, #call, __FILE__, __LINE__)
static void assert_verb_at(int expected, int result, const char *what, const char *file, int line)
{
	if (result == expected)
		return;
	print_error("%s: %d, %s; expected %d\n", what, result,
		    result < 0 ? last_error.message : lease_refusal_name(result), expected);
	_fail(file, line);
}

static int claim(PGconn *worker, const char *run_id, const char *owner, int64_t ttl,
		 struct lease_grant *ret)
{
	struct lease_claim command = { .run_id = run_id, .owner = owner, .ttl = ttl };

	return lease_mark_running(worker, &command, ret, &last_error);
}

static int renew(PGconn *worker, const struct lease_token *token, int64_t ttl,
		 struct lease_grant *ret)
{
	return lease_renew_lease(worker, token, ttl, 5 * LEASE_SECOND, ret, &last_error);
}

static int complete(PGconn *worker, const struct lease_token *token)
{
	struct lease_finish command = { .token = token, .status = LEASE_RUN_COMPLETED };

	return lease_set_terminal_status(worker, &command, NULL, &last_error);
}

static void add_runs(const char *name, int n)
{
	sql(conn, "insert into lease.runs (run_id) select '%s' || i from generate_series(1, %d) i",
	    name, n);
}

/* A worker with both hosts in its conninfo connects anew, as after any lost connection. */
static PGconn *connect_worker(void)
{
	return test_connect(both_hosts("postgres", "target_session_attrs=read-write"));
}

#define LONG (3600 * LEASE_SECOND)

static void what_was_acknowledged_is_there_after_the_failover(void **state)
{
	struct lease_grant claimed, renewed, done, grant;
	PGconn *worker;

	(void)state;
	replicate_synchronously();
	worker = connect_worker();
	add_runs("r", 3);
	assert_verb(0, claim(worker, "r1", "w1", LONG, &claimed));
	assert_verb(0, claim(worker, "r2", "w2", LONG, &grant));
	assert_verb(0, renew(worker, &grant.token, 2 * LONG, &renewed));
	assert_verb(0, claim(worker, "r3", "w3", LONG, &done));
	assert_verb(0, complete(worker, &done.token));
	fail_over();
	/* the connection is lost; that nothing was changed by this call is known */
	assert_verb(LEASE_E_CONNECTION, renew(worker, &claimed.token, LONG, &grant));
	assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_RECONNECT);
	PQfinish(worker);
	worker = connect_worker();
	assert_sql(conn, "t",
		   "select lease_expires_at = 'epoch'::timestamptz + %lld * interval '1 us'"
		   " from lease.run_attempts where run_id = 'r2'",
		   (long long)renewed.lease_expires_at);
	assert_sql(conn, "completed", "select status from lease.runs where run_id = 'r3'");
	/* the worker goes on under the very leases that it has */
	assert_verb(0, renew(worker, &claimed.token, 2 * LONG, &grant));
	assert_verb(0, complete(worker, &claimed.token));
	assert_verb(0, complete(worker, &renewed.token));
	/* what it repeats, because it did not hear of it, changes nothing */
	assert_verb(0, complete(worker, &done.token));
	PQfinish(worker);
	assert_sql(conn, "3 3",
		   "select count(*) || ' ' || count(*) filter (where outcome = 'completed')"
		   " from lease.run_attempts");
	assert_closed_once(conn, 3);
	assert_explained(conn);
}

/* ---- daemons ---- */

static unsigned told_of(struct daemon *daemon, int i)
{
	return daemon_count_log(daemon, text("r-%05d closed as", i));
}

/*
 * Leases end before, during and after the time without a primary. What is still to do is done on
 * the new one, whatever was in flight.
 */
static void two_daemons_go_on_and_close_nothing_twice(void **state)
{
	const char *options = STRICT "interval: 300ms\nbatch_size: 10";
	struct daemon first, second;

	(void)state;
	replicate_synchronously();
	daemon_start_ready(&first, config_as("postgres", "", options));
	daemon_start_ready(&second,
			   config_as("postgres", "target_session_attrs=read-write", options));
	daemon_wait_status(&first, "1 database: 1 connected");
	daemon_wait_status(&second, "1 database: 1 connected");
	add_leases(conn, "late", 100, 3000, 10000);
	add_leases(conn, "r", 200, 100, 10000);
	wait_sql(conn, "select count(*) >= 40 from public.closes");
	kill_primary();
	daemon_wait_log(&first, "main: connection lost");
	daemon_wait_log(&second, "main: connection lost");
	/* the standby is there all the while, and of no use */
	daemon_wait_log(&first, text("socket %s port 5432: the server is a standby in recovery: "
				     "connect to the primary; connection dropped",
				     standby.folder));
	daemon_wait_log(&second, "session is read-only");
	daemon_wait_status(&first, "main: unreachable for");
	promote_standby();
	wait_closed(&first.process, conn, 300);
	daemon_wait_log(&first, text("main: connected to socket %s", standby.folder));
	daemon_wait_log(&second, text("main: connected to socket %s", standby.folder));
	daemon_wait_status(&first, "0 open, 0 expired");
	daemon_wait_status(&second, "0 open, 0 expired");
	daemon_stop(&first);
	daemon_stop(&second);
	assert_closed_once(conn, 300);
	assert_sql(conn, "300",
		   "select count(*) from lease.runs where status = 'pending'"
		   " and state_version = 3");
	assert_sql(conn, "300 300",
		   "select count(*) || ' ' || count(distinct run_id) from lease.run_events"
		   " where kind = 'attempt_closed'");
	for (int i = 1; i <= 200; i++)
		assert_true(told_of(&first, i) + told_of(&second, i) <= 1);
	assert_explained(conn);
}

/* ---- the whole of it, at random ---- */

enum { WORKERS = 3, DAEMONS = 2 };

static void start_worker(struct process *process, int i, const char *log)
{
	char *program = test_program("tests/torture/torture-worker");

	process_start(
		process,
		((char *[]){
			program, (char *)text("%d.1", i), (char *)text("%d", 100 + i), (char *)log,
			(char *)both_hosts("torture_worker", "target_session_attrs=read-write"),
			NULL }),
		NULL);
	free(program);
}

struct wanted_work {
	struct checker *checker;
	char *query; /* 1: it is done */
};

static bool is_worked(void *argument)
{
	struct wanted_work *wanted = argument;

	checker_look(wanted->checker);
	return checker_number(wanted->checker, wanted->query) == 1;
}

/* Until so many attempts have begun and were closed since, some of them as lost. */
static void wait_worked(struct checker *checker, int attempts)
{
	struct wanted_work wanted = { .checker = checker };
	char *since = sql_text(conn, "select clock_timestamp()::text");

	if (asprintf(&wanted.query,
		     "select (count(*) filter (where finished_at is not null) >= %d"
		     " and bool_or(outcome = 'lease_expired'))::int"
		     " from lease.run_attempts where started_at > '%s'",
		     attempts, since) < 0)
		abort();
	if (!wait_until(is_worked, &wanted, 3 * TEST_PATIENCE_MS))
		fail_msg("the work does not go on");
	free(wanted.query);
	free(since);
}

static bool is_all_closed(void *argument)
{
	struct checker *checker = argument;

	checker_look(checker);
	return sql_number(conn, "select count(*) from lease.run_attempts"
				" where finished_at is null") == 0;
}

static void start_all(struct process *workers, struct daemon *daemons, char **logs)
{
	char *folder = test_tmpdir();

	for (int i = 0; i < DAEMONS; i++)
		daemon_start_ready(&daemons[i],
				   config_as("torture_reconciler", "",
					     STRICT "interval: 500ms\norphan_interval: 1s"));
	for (int i = 0; i < WORKERS; i++) {
		if (asprintf(&logs[i], "%s/%d.log", folder, i) < 0)
			abort();
		write_file(logs[i], "");
		start_worker(&workers[i], i, logs[i]);
	}
	free(folder);
}

/*
 * Workers of the fault campaign do all that workers do, before and after, and write down what they
 * were told; the campaign's checker judges the history (docs/torture.md).
 */
static void random_work_loses_nothing_that_was_acknowledged(void **state)
{
	char *everywhere = strdup(both_hosts("postgres", "target_session_attrs=read-write"));
	struct checker *checker = checker_new(everywhere, "100", 3);
	struct process workers[WORKERS];
	struct daemon daemons[DAEMONS];
	char *logs[WORKERS];

	(void)state;
	checker_prepare(checker);
	replicate_synchronously();
	sql(conn, "create role torture_worker login in role lease_worker;"
		  "create role torture_reconciler login in role lease_reconciler");
	start_all(workers, daemons, logs);
	wait_worked(checker, 60);
	fail_over();
	wait_worked(checker, 60);
	for (int i = 0; i < WORKERS; i++) {
		assert_false(process_ended(&workers[i]));
		process_signal(&workers[i], SIGKILL);
		process_wait(&workers[i], TEST_PATIENCE_MS);
	}
	if (!wait_until(is_all_closed, checker, TEST_PATIENCE_MS))
		fail_msg("attempts stay open; log: %s", tail(process_errors(&daemons[0].process)));
	for (int i = 0; i < DAEMONS; i++)
		daemon_stop(&daemons[i]);
	assert_true(checker_finish(checker, logs, WORKERS) > 200);
	assert_int_equal(checker_violations(checker), 0);
	checker_free(checker);
	for (int i = 0; i < WORKERS; i++)
		free(logs[i]);
	free(everywhere);
}

/* ---- amnesty ---- */

enum { LIVE = 20, DEAD = 10, FLEET = LIVE + DEAD };

static void renew_fleet(PGconn *worker, const struct lease_grant *from, int n, int64_t ttl,
			struct lease_grant *ret)
{
	struct lease_token tokens[FLEET];
	int results[FLEET];

	for (int i = 0; i < n; i++)
		tokens[i] = from[i].token;
	assert_verb(0, lease_renew_leases(worker, tokens, (size_t)n, ttl, 5 * LEASE_SECOND, ret,
					  results, &last_error));
	for (int i = 0; i < n; i++)
		if (results[i] != 0)
			fail_msg("%s is not renewed: %s", tokens[i].run_id,
				 lease_refusal_name(results[i]));
}

static bool is_over(void *argument)
{
	const struct lease_grant *grants = argument;

	for (int i = 0; i < FLEET; i++)
		if (lease_clock_boottime() < grants[i].local_end + LEASE_SECOND / 4)
			return false;
	return true;
}

/*
 * The failover takes longer than any lease lasts. On the new primary those who are alive renew and
 * keep their runs; those who are not are closed, when the grace is over.
 */
static void live_workers_keep_their_runs_across_a_long_failover(void **state)
{
	struct lease_grant grants[FLEET], renewed[FLEET];
	struct daemon daemon;
	PGconn *worker;

	(void)state;
	replicate_synchronously();
	add_runs("r", FLEET);
	worker = connect_worker();
	daemon_start_ready(&daemon, config_as("postgres", "", AMNESTY));
	daemon_wait_status(&daemon, "0 open, 0 expired");
	for (int i = 0; i < FLEET; i++)
		assert_verb(0,
			    claim(worker, text("r%d", i + 1), "w", 4 * LEASE_SECOND, &grants[i]));
	renew_fleet(worker, grants, FLEET, 4 * LEASE_SECOND, grants);
	kill_primary();
	PQfinish(worker);
	assert_true(wait_until(is_over, grants, TEST_PATIENCE_MS));
	promote_standby();
	worker = connect_worker();
	renew_fleet(worker, grants, LIVE, LONG, renewed);
	daemon_wait_log(&daemon, "main: connected to");
	wait_closed(&daemon.process, conn, DEAD);
	assert_sql(conn, text("%d %d", LIVE, DEAD),
		   "select count(*) filter (where finished_at is null) || ' '"
		   " || count(*) filter (where outcome = 'lease_expired')"
		   " from lease.run_attempts");
	for (int i = 0; i < LIVE; i++)
		assert_verb(0, complete(worker, &renewed[i].token));
	daemon_stop(&daemon);
	PQfinish(worker);
	assert_closed_once(conn, FLEET);
	assert_explained(conn);
}

/* ---- who is not to be believed ---- */

/*
 * Nobody has fenced it, so it takes requests; but no commit comes back from it, because nobody
 * follows it any more. That the server's statement_timeout does not end that wait is part of it:
 * PostgreSQL would call such a commit done.
 */
static void an_old_primary_that_comes_back_acknowledges_nothing(void **state)
{
	struct lease_claim claim_old = {
		.run_id = "r1", .owner = "old", .ttl = LONG, .timeout = LEASE_SECOND
	};
	struct lease_grant held, grant;
	PGconn *old;

	(void)state;
	replicate_synchronously();
	add_runs("r", 2);
	old = test_connect(conninfo);
	assert_verb(0, claim(old, "r2", "w2", LONG, &held));
	PQfinish(old);
	fail_over();
	cluster_start(&primary);
	old = test_connect(conninfo);
	assert_verb(LEASE_E_TIMEOUT, lease_mark_running(old, &claim_old, &grant, &last_error));
	assert_true(last_error.outcome_unknown);
	PQfinish(old);
	old = test_connect(conninfo);
	assert_verb(LEASE_E_TIMEOUT,
		    lease_renew_lease(old, &held.token, LONG, LEASE_SECOND, &grant, &last_error));
	PQfinish(old);
	cluster_stop(&primary, "immediate");
	assert_verb(0, claim(conn, "r1", "new", LONG, &grant));
	assert_int_equal(grant.token.attempt_no, 1);
}

/* ---- asynchronous replication ---- */

/* The standby gets nothing any more; what was acknowledged so far it has. */
static void cut_replication(void)
{
	PGconn *follower = test_connect(
		text("host=%s port=5432 user=postgres dbname=%s", standby.folder, database));

	wait_sql(conn, "select flush_lsn >= pg_current_wal_lsn() from pg_stat_replication");
	sql(follower, "alter system set primary_conninfo = ''");
	sql(follower, "select pg_reload_conf()");
	wait_sql(follower, "select count(*) = 0 from pg_stat_wal_receiver");
	PQfinish(follower);
}

static void reconcile(void)
{
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;

	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	assert_verb(0, lease_reconcile_expired_leases(conn, &options, NULL, &figures, &last_error));
}

/* docs/running.md, "What an asynchronous promotion can lose", says it in the same order. */
static void what_an_asynchronous_promotion_loses(void **state)
{
	struct lease_grant claimed, renewed, done, grant;
	PGconn *worker;

	(void)state;
	worker = connect_worker();
	add_runs("r", 3);
	assert_verb(0, claim(worker, "r2", "w2", 2 * LEASE_SECOND, &renewed));
	assert_verb(0, claim(worker, "r3", "w3", LONG, &done));
	cut_replication();
	assert_verb(0, claim(worker, "r1", "w1", LONG, &claimed));
	assert_verb(0, renew(worker, &renewed.token, LONG, &renewed));
	assert_verb(0, complete(worker, &done.token));
	PQfinish(worker);
	fail_over();
	worker = connect_worker();
	/* a claim: the run is given to another, under the same number; the owner tells them apart */
	assert_verb(0, claim(worker, "r1", "other", LONG, &grant));
	assert_int_equal(grant.token.attempt_no, claimed.token.attempt_no);
	assert_true(lease_clock_boottime() < claimed.local_end);
	assert_verb(LEASE_NOT_OWNER, renew(worker, &claimed.token, LONG, &grant));
	assert_verb(LEASE_NOT_OWNER, complete(worker, &claimed.token));
	/* a renewal: the lease ends when it would have ended without it; the next number is another's */
	wait_sql(conn, "select lease_expires_at < clock_timestamp() from lease.run_attempts"
		       " where run_id = 'r2'");
	reconcile();
	assert_verb(0, claim(worker, "r2", "other", LONG, &grant));
	assert_int_equal(grant.token.attempt_no, renewed.token.attempt_no + 1);
	assert_true(lease_clock_boottime() < renewed.local_end);
	assert_verb(LEASE_EXPIRED, renew(worker, &renewed.token, LONG, &grant));
	assert_verb(LEASE_EXPIRED, complete(worker, &renewed.token));
	/* an end: the run goes on, and nobody works on it */
	assert_sql(conn, "running", "select status from lease.runs where run_id = 'r3'");
	assert_verb(0, complete(worker, &done.token));
	PQfinish(worker);
	assert_explained(conn);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, create, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_was_acknowledged_is_there_after_the_failover),
		TEST(two_daemons_go_on_and_close_nothing_twice),
		TEST(random_work_loses_nothing_that_was_acknowledged),
		TEST(live_workers_keep_their_runs_across_a_long_failover),
		TEST(an_old_primary_that_comes_back_acknowledges_nothing),
		TEST(what_an_asynchronous_promotion_loses),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("failover", tests, begin, finish);
}
