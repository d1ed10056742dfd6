/*
 * What renewals leave behind: how large tables and indexes become under millions of them with
 * autovacuum on, and what a snapshot does that somebody holds open, so that nothing can be cleared
 * away.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* -- bloat ------------------------------------------------------------------------------------ */

/* Bytes of the attempts with all that belongs to them, of the runs likewise, of each index. */
enum { RELATIONS_MAX = 16 };
struct sizes {
	double attempts, runs, indexes[RELATIONS_MAX];
	int n;
};

static struct sizes read_sizes(PGconn *conn)
{
	struct sizes sizes = {
		.attempts = (double)sql_number(
			conn, "SELECT pg_total_relation_size('lease.run_attempts')"),
		.runs = (double)sql_number(conn, "SELECT pg_total_relation_size('lease.runs')"),
	};
	PGresult *result = PQexec(
		conn, "SELECT pg_relation_size(indexrelid) FROM pg_index "
		      "WHERE indrelid = 'lease.run_attempts'::regclass ORDER BY indexrelid");

	sizes.n = PQntuples(result);
	if (sizes.n == 0 || sizes.n > RELATIONS_MAX)
		die("the indexes of lease.run_attempts: %s", PQerrorMessage(conn));
	for (int i = 0; i < sizes.n; i++)
		sizes.indexes[i] = atof(PQgetvalue(result, i, 0));
	PQclear(result);
	return sizes;
}

/* So many renewals, by batches, as fast as they can. */
static void flood(struct client clients[CLIENTS], long renewals)
{
	for (long rows, all = 0; all < renewals; all += rows)
		clients_run(clients, renew_leases, 0.5, &rows);
}

/* A database of its own, which starts as small as it can be. */
static PGconn *make_database(struct bench *bench, char **ret_conninfo)
{
	PGconn *conn;

	*ret_conninfo = test_database_create();
	conn = test_connect(*ret_conninfo);
	sql(conn, "SET synchronous_commit = off");
	open_leases(conn, "open", bench->open, "interval '1 day'");
	settle(conn);
	return conn;
}

void measure_bloat(struct bench *bench)
{
	long renewals = bench->quick ? 10 * bench->open : 5000000;
	char *conninfo;
	PGconn *conn = make_database(bench, &conninfo);
	struct sizes before = read_sizes(conn), after;
	struct client clients[CLIENTS];
	struct lease_token *tokens;
	double worst = 0;
	size_t n;

	tokens = read_tokens(conn, &n);
	clients_open(clients, conninfo, tokens, n);
	clients_set(clients, "synchronous_commit = off");
	progress("bloat: %ld renewals", renewals);
	flood(clients, renewals);
	clients_close(clients);
	free(tokens);
	after = read_sizes(conn);
	for (int i = 0; i < after.n; i++)
		if (after.indexes[i] / before.indexes[i] > worst)
			worst = after.indexes[i] / before.indexes[i];
	figure("bloat_renewals", (double)renewals, "", NO_AIM, 0,
	       "renewals, 100 at a time at full speed, autovacuum as it is by default");
	figure("bloat_attempts", after.attempts / before.attempts, "ratio", AT_MOST, 1.3,
	       "size of lease.run_attempts with its indexes after them / before");
	figure("bloat_attempts_index", worst, "ratio", AT_MOST, 1.3,
	       "the same for the one of its indexes that grew most");
	figure("bloat_runs", after.runs / before.runs, "ratio", AT_MOST, 1.3,
	       "the same for lease.runs");
	drop_database(conn, conninfo);
}

/* -- a snapshot held open --------------------------------------------------------------------- */

/* Leases for sweeps beside those that are renewed, so many in each part. */
enum { PARTS = 4, SWEPT = 200, PACE_US = 5000 };

struct part {
	double p50, p99; /* milliseconds of a renewal */
	double sweep; /* microseconds of a sweep, for each attempt that it closed */
};

/* Some leases are over, and a sweep closes them; their runs are taken again. */
static double sweep_some(PGconn *conn, int part)
{
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct lease_error error;
	int64_t began;

	sql(conn,
	    "UPDATE lease.run_attempts a SET lease_expires_at = clock_timestamp() FROM swept s "
	    "WHERE s.part = %d AND a.run_id = s.run_id AND a.finished_at IS NULL",
	    part);
	sweep_options(&options);
	began = clock_us();
	if (lease_reconcile_expired_leases(conn, &options, NULL, &figures, &error) != 0)
		die("the sweep: %s", error.message);
	if (figures.closed != SWEPT)
		die("a sweep closed %lld attempts of %d", (long long)figures.closed, SWEPT);
	began = clock_us() - began;
	reopen_requeued(conn);
	return (double)began / SWEPT;
}

/* Renewals at the pace of workers, and sweeps beside them. */
static struct part measure_part(struct client clients[CLIENTS], PGconn *conn, double seconds)
{
	double *latency = calloc((size_t)CLIENTS * LATENCIES_MAX, sizeof(*latency));
	double sweeps[1000];
	int64_t until = clock_us() + (int64_t)(seconds * 1e6);
	int n = 0, calls = 0;
	struct part part;

	if (!latency)
		die("out of memory");
	for (int i = 0; i < CLIENTS; i++) {
		clients[i].pace_us = PACE_US;
		client_start(&clients[i], renew_lease, FOR_EVER_S);
	}
	do
		sweeps[n] = sweep_some(conn, n % PARTS);
	while (++n < 1000 && clock_us() < until);
	for (int i = 0; i < CLIENTS; i++) {
		client_stop(&clients[i]);
		clients[i].pace_us = 0;
		memcpy(latency + calls, clients[i].latency,
		       (size_t)clients[i].calls * sizeof(*latency));
		calls += clients[i].calls;
	}
	part.p50 = percentile(latency, calls, 0.5);
	part.p99 = percentile(latency, calls, 0.99);
	part.sweep = median(sweeps, n);
	free(latency);
	return part;
}

static void make_swept(PGconn *conn)
{
	open_leases(conn, "swept", (long)PARTS * SWEPT, "interval '1 day'");
	sql(conn,
	    "CREATE TEMP TABLE swept AS SELECT md5('swept ' || i)::uuid::text COLLATE \"C\" AS run_id, "
	    "i %% %d AS part FROM generate_series(1, %d) i",
	    PARTS, PARTS * SWEPT);
	sql(conn, "ANALYZE swept");
}

static void make_held_figures(const struct part *without, const struct part *first,
			      const struct part *last, const struct part *after, long versions)
{
	figure("held_versions", (double)versions, "", NO_AIM, 0,
	       "renewals of each lease within a snapshot held open, before its last part");
	figure("held_first_renew_p50", first->p50 / without->p50, "ratio", NO_AIM, 0,
	       "a renewal, half of all: snapshot just opened / none");
	figure("held_first_renew_p99", first->p99 / without->p99, "ratio", NO_AIM, 0,
	       "the same, 99 of 100");
	figure("held_first_sweep", first->sweep / without->sweep, "ratio", NO_AIM, 0,
	       "a sweep's time for an attempt, likewise");
	figure("held_last_renew_p50", last->p50 / without->p50, "ratio", NO_AIM, 0,
	       "a renewal, half of all: after so many versions / none");
	figure("held_last_renew_p99", last->p99 / without->p99, "ratio", NO_AIM, 0,
	       "the same, 99 of 100");
	figure("held_last_renew_p99_ms", last->p99, "ms", NO_AIM, 0, "the same as it is");
	figure("held_last_sweep", last->sweep / without->sweep, "ratio", NO_AIM, 0,
	       "a sweep's time for an attempt, likewise");
	figure("held_after_renew_p50", after->p50 / without->p50, "ratio", NO_AIM, 0,
	       "a renewal, half of all: the snapshot was let go / none");
}

void measure_held(struct bench *bench)
{
	long versions = bench->quick ? 4 : 10;
	double seconds = bench->quick ? 1 : 3;
	char *conninfo;
	PGconn *conn = make_database(bench, &conninfo), *holder = test_connect(conninfo);
	struct part without, first, last, after;
	struct client clients[CLIENTS];
	struct lease_token *tokens;
	size_t n;

	tokens = read_tokens(conn, &n);
	make_swept(conn);
	clients_open(clients, conninfo, tokens, n);
	clients_set(clients, "synchronous_commit = off");
	flood(clients, (long)n); /* warms up */
	progress("held: without a snapshot");
	without = measure_part(clients, conn, seconds);
	progress("held: with a snapshot");
	sql(holder, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM lease.heartbeat");
	first = measure_part(clients, conn, seconds);
	progress("held: %ld renewals of each lease", versions);
	flood(clients, versions * (long)n);
	progress("held: with the snapshot, %ld versions later", versions);
	last = measure_part(clients, conn, seconds);
	sql(holder, "COMMIT");
	progress("held: after it");
	after = measure_part(clients, conn, seconds);
	make_held_figures(&without, &first, &last, &after, versions);
	clients_close(clients);
	free(tokens);
	PQfinish(holder);
	drop_database(conn, conninfo);
}
