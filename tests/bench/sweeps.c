/*
 * Sweeps: a fifth of the open leases has expired, and the library's sweep closes them, beside the
 * least that a database can do: one statement that closes all the attempts and requeues all the
 * runs at once, under the same guards, and holds every row until it is done.
 *
 * A second statement writes the events as well. They take turns. After each measurement the requeued
 * runs are opened again by new attempts, as a fleet would do it, so all find the same tables.
 */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

enum { PARTS = 5, ROUNDS_MAX = 8, LOCK_ROUNDS = 3 };

/* Ends the leases of one part of the runs. Gives how many. */
static long expire_part(PGconn *conn, int part)
{
	long n = (long)sql_number(
		conn,
		"WITH ended AS (UPDATE lease.run_attempts SET lease_expires_at = clock_timestamp() "
		"WHERE finished_at IS NULL AND abs(hashtextextended(run_id, 0) %% %d) = %d RETURNING 1) "
		"SELECT count(*) FROM ended",
		PARTS, part);

	if (n == 0)
		die("no open lease is left to expire");
	return n;
}

void reopen_requeued(PGconn *conn)
{
	sql(conn,
	    "BEGIN; SET LOCAL synchronous_commit = off; "
	    "INSERT INTO lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "SELECT r.run_id, 1 + (SELECT max(a.attempt_no) FROM lease.run_attempts a WHERE a.run_id = r.run_id), "
	    "       'worker:' || md5(r.run_id)::uuid, clock_timestamp() + interval '1 day' "
	    "  FROM lease.runs r WHERE r.status = 'pending'; "
	    "UPDATE lease.runs SET status = 'running', state_version = state_version + 1 "
	    " WHERE status = 'pending'; COMMIT");
}

void sweep_options(struct lease_sweep_options *options)
{
	lease_sweep_options_init(options);
	options->policy = LEASE_POLICY_REQUEUE;
	options->max_lease_losses = 100;
}

static void check_closed(const char *what, long closed, long expired)
{
	if (closed != expired)
		die("%s closed %ld attempts of %ld", what, closed, expired);
}

/* -- attempts closed a second ----------------------------------------------------------------- */

/* Attempts a second, and the server's processor time for one. */
struct rate {
	double per_s, server_us;
};

static struct rate rate_since(PGconn *conn, int64_t began, double server, long expired)
{
	double seconds = (double)(clock_us() - began) / 1e6;

	return (struct rate){ (double)expired / seconds,
			      (server_us(conn) - server) / (double)expired };
}

static struct rate time_sweep(PGconn *conn, long expired)
{
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct lease_error error;
	double server = server_us(conn);
	int64_t began = clock_us();

	sweep_options(&options);
	if (lease_reconcile_expired_leases(conn, &options, NULL, &figures, &error) != 0)
		die("the sweep: %s", error.message);
	check_closed("the sweep", (long)figures.closed, expired);
	return rate_since(conn, began, server, expired);
}

/* What is `returned` of the closed attempts, and a further part of the statement that reads it. */
static struct rate time_one_statement(PGconn *conn, long expired, const char *returned,
				      const char *part)
{
	double server = server_us(conn);
	int64_t began = clock_us();
	long closed = (long)sql_number(
		conn,
		"WITH closed AS ("
		"    UPDATE lease.run_attempts SET finished_at = clock_timestamp(), "
		"           outcome = 'lease_expired', error_code = 'worker_lease_expired' "
		"     WHERE finished_at IS NULL AND lease_expires_at <= clock_timestamp() RETURNING %s), "
		"moved AS ("
		"    UPDATE lease.runs r SET status = 'pending', state_version = r.state_version + 1, "
		"           updated_at = clock_timestamp() FROM closed c WHERE r.run_id = c.run_id RETURNING 1) "
		"%s SELECT count(*) FROM moved",
		returned, part);

	check_closed("the statement", closed, expired);
	return rate_since(conn, began, server, expired);
}

static struct rate time_statement(PGconn *conn, long expired)
{
	return time_one_statement(conn, expired, "run_id", "");
}

/* All rows that the sweep writes, too. */
static struct rate time_statement_with_events(PGconn *conn, long expired)
{
	return time_one_statement(
		conn, expired, "*",
		", events AS ("
		"    INSERT INTO lease.run_events (kind, run_id, attempt_no, from_status, to_status, "
		"                                  outcome, owner, error_code) "
		"    SELECT 'attempt_closed', run_id, attempt_no, 'running', 'pending', "
		"           outcome, owner, error_code FROM closed)");
}

/* In turn; each round begins with another one. */
struct side {
	struct rate (*close)(PGconn *conn, long expired);
	double per_s[ROUNDS_MAX], server_us[ROUNDS_MAX];
};

static void run_side(struct side *side, PGconn *conn, int part, int round)
{
	struct rate rate = side->close(conn, expire_part(conn, part % PARTS));

	side->per_s[round] = rate.per_s;
	side->server_us[round] = rate.server_us;
	reopen_requeued(conn);
}

enum { SWEEP, STATEMENT, WITH_EVENTS, SIDES };

static void measure_rates(PGconn *conn, int rounds)
{
	struct side sides[SIDES] = { [SWEEP] = { .close = time_sweep },
				     [STATEMENT] = { .close = time_statement },
				     [WITH_EVENTS] = { .close = time_statement_with_events } };
	double ratios[SIDES][ROUNDS_MAX];
	int part = 0;

	for (int i = 0; i < SIDES; i++) /* warms up */
		run_side(&sides[i], conn, part++, 0);
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < SIDES; i++)
			run_side(&sides[(i + round) % SIDES], conn, part++, round);
		for (int i = 0; i < SIDES; i++)
			ratios[i][round] = sides[SWEEP].per_s[round] / sides[i].per_s[round];
	}
	figure("sweep_per_s", median(sides[SWEEP].per_s, rounds), "attempts/s", NO_AIM, 0,
	       "expired attempts closed and their runs requeued by one sweep, up to 200 a transaction");
	figure("sweep_vs_floor", median(ratios[STATEMENT], rounds), "ratio", AT_LEAST, 0.7,
	       "the same / one statement that updates both tables for all rows");
	figure("sweep_vs_writes", median(ratios[WITH_EVENTS], rounds), "ratio", NO_AIM, 0,
	       "the same / one statement that writes the events, too");
	figure("sweep_server_us", median(sides[SWEEP].server_us, rounds), "us", NO_AIM, 0,
	       "processor time of the server for one attempt that a sweep closes");
	figure("sweep_floor_server_us", median(sides[STATEMENT].server_us, rounds), "us", NO_AIM, 0,
	       "for one that the statement closes");
	figure("sweep_writes_server_us", median(sides[WITH_EVENTS].server_us, rounds), "us", NO_AIM,
	       0, "and for one whose event it writes");
}

/* -- how long rows stay locked ---------------------------------------------------------------- */

/*
 * Another connection that asks for run after run, in a lock that the sweep's excludes, and notes
 * how long it waited.
 */
struct probe {
	PGconn *conn;
	const struct lease_token *tokens;
	size_t n;
	atomic_bool stop;
	/* what came of it */
	int64_t longest;
	long probes;
};

static void *run_probe(void *argument)
{
	struct probe *probe = argument;

	for (size_t i = 0; !atomic_load(&probe->stop); i = (i + 1) % probe->n) {
		const char *values[] = { probe->tokens[i].run_id };
		int64_t began = clock_us(), waited;
		PGresult *result = PQexecParams(
			probe->conn, "SELECT FROM lease.runs WHERE run_id = $1 FOR SHARE", 1, NULL,
			values, NULL, NULL, 1);

		waited = clock_us() - began;
		if (PQntuples(result) != 1)
			die("the probe: %s", PQerrorMessage(probe->conn));
		PQclear(result);
		probe->probes++;
		if (waited > probe->longest)
			probe->longest = waited;
	}
	return NULL;
}

static void wait_for_events(PGconn *conn, int events)
{
	struct pollfd fd = { .fd = PQsocket(conn),
			     .events = (short)((events & LEASE_POLL_READ ? POLLIN : 0) |
					       (events & LEASE_POLL_WRITE ? POLLOUT : 0)) };

	if (poll(&fd, 1, TEST_PATIENCE_MS) <= 0)
		die("the sweep got no answer");
}

/*
 * Drives a sweep until it closed `expired`. The count of the closed grows when a chunk's commit is
 * answered, and the next chunk is sent before poll returns: so the time from one growth to the next
 * is that of a transaction, from before its locks to the answer of its commit, and a little more.
 * The one scan comes before the first chunk, since its page holds all, and ends the pass.
 */
static int64_t time_chunks(struct lease_sweep *sweep, PGconn *conn, long expired)
{
	struct lease_sweep_figures figures;
	struct lease_error error;
	int64_t longest = 0, began = 0, closed = 0;

	for (;;) {
		int events = lease_sweep_poll(sweep, conn, &error);

		if (events < 0)
			die("the sweep: %s", error.message);
		lease_sweep_read_figures(sweep, &figures);
		if (figures.closed > closed || (figures.passes > 0 && closed == 0 && !began)) {
			int64_t now = clock_us();

			if (began && now - began > longest)
				longest = now - began;
			began = now;
			closed = figures.closed;
		}
		if (closed >= expired)
			return longest;
		if (events)
			wait_for_events(conn, events);
		else
			began = 0, poll(NULL, 0, 1); /* only runs that the probe held are left */
	}
}

/* Milliseconds of one sweep on a new connection. */
struct locks {
	double longest, waited;
};

static struct locks sweep_beside_probe(PGconn *conn, const char *conninfo,
				       const struct lease_token *tokens, size_t n, int part)
{
	struct lease_sweep_options options;
	struct lease_sweep *sweep;
	struct lease_error error;
	PGconn *sweeping = test_connect(conninfo);
	struct probe probe = { .conn = test_connect(conninfo), .tokens = tokens, .n = n };
	pthread_t thread;
	int64_t longest;
	long expired = expire_part(conn, part);

	sweep_options(&options);
	options.scan_page = 1000000;
	options.orphan_interval = LEASE_DURATION_MAX;
	if (lease_sweep_new(&options, NULL, &sweep, &error) != 0)
		die("the sweep: %s", error.message);
	PQsetnonblocking(sweeping, 1);
	if (pthread_create(&thread, NULL, run_probe, &probe) != 0)
		die("starting a thread failed");
	longest = time_chunks(sweep, sweeping, expired);
	atomic_store(&probe.stop, true);
	pthread_join(thread, NULL);
	lease_sweep_free(sweep);
	PQfinish(sweeping);
	PQfinish(probe.conn);
	reopen_requeued(conn);
	return (struct locks){ (double)longest / 1000, (double)probe.longest / 1000 };
}

/* The longest of each sweep, and the median of these: a machine that stands still is one of them. */
static void measure_locks(PGconn *conn, const char *conninfo)
{
	double longest[LOCK_ROUNDS], waited[LOCK_ROUNDS];
	size_t n;
	struct lease_token *tokens = read_tokens(conn, &n);

	for (int round = 0; round < LOCK_ROUNDS; round++) {
		struct locks locks = sweep_beside_probe(conn, conninfo, tokens, n, round);

		longest[round] = locks.longest;
		waited[round] = locks.waited;
	}
	free(tokens);
	figure("sweep_longest_lock_ms", median(longest, LOCK_ROUNDS), "ms", AT_MOST, 50,
	       "longest transaction of a sweep: no run's row stays locked for longer");
	figure("sweep_probe_wait_ms", median(waited, LOCK_ROUNDS), "ms", NO_AIM, 0,
	       "longest wait of a connection that locked run after run beside it");
}

void measure_sweeps(struct bench *bench)
{
	need_database(bench);
	sql(bench->conn, "SET synchronous_commit = on");
	progress("sweeps: beside one statement");
	measure_rates(bench->conn, bench->quick ? 2 : 3);
	progress("sweeps: locks");
	measure_locks(bench->conn, bench->conninfo);
	sql(bench->conn, "SET synchronous_commit = off");
}
