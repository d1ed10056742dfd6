/*
 * A storm: very many leases are over at once, beside as many that hold. What the real daemon does
 * then, how long workers wait beside it, and what a second daemon brings.
 *
 * The workers' side is paced, as workers are: a renewal and a claim every few milliseconds, each by
 * another connection than the one before. First they run alone, which gives the figures that those
 * of the storm are compared with.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"

/* A fleet is many connections with long pauses: one that waits does not make the others wait. */
enum { PACE_US = 80000, SPARE_RUNS = 50000 };

/* CLIENTS that renew, CLIENTS that claim. */
struct workers {
	struct client renewing[CLIENTS], claiming[CLIENTS];
	struct lease_token *tokens;
};

static long claim_next(struct client *worker)
{
	struct lease_claim claim = { .ttl = TTL };
	struct lease_grant grant;
	struct lease_error error;
	char owner[LEASE_ID_MAX + 1];
	int r = lease_owner_generate("bench", owner, &error);

	claim.owner = owner;
	if (r == 0)
		r = lease_claim_next(worker->conn, &claim, &grant, &error);
	if (r != 0)
		die("claiming the next run: %s", r < 0 ? error.message : lease_refusal_name(r));
	return 1;
}

static void workers_open(struct workers *workers, struct bench *bench)
{
	size_t n;

	workers->tokens = read_tokens(bench->conn, &n);
	clients_open(workers->renewing, bench->conninfo, workers->tokens, n);
	clients_open(workers->claiming, bench->conninfo, workers->tokens, n);
	for (int i = 0; i < CLIENTS; i++) {
		workers->renewing[i].pace_us = workers->claiming[i].pace_us = PACE_US;
		workers->renewing[i].offset_us = i * PACE_US / CLIENTS;
		workers->claiming[i].offset_us = (2 * i + 1) * PACE_US / (2 * CLIENTS);
	}
}

static void workers_close(struct workers *workers)
{
	clients_close(workers->renewing);
	clients_close(workers->claiming);
	free(workers->tokens);
}

static void workers_start(struct workers *workers)
{
	for (int i = 0; i < CLIENTS; i++) {
		client_start(&workers->renewing[i], renew_lease, FOR_EVER_S);
		client_start(&workers->claiming[i], claim_next, FOR_EVER_S);
	}
}

static void workers_stop(struct workers *workers)
{
	for (int i = 0; i < CLIENTS; i++) {
		client_stop(&workers->renewing[i]);
		client_stop(&workers->claiming[i]);
	}
}

/* Milliseconds that half of the steps took, and 99 of 100. */
struct latency {
	double p50, p99;
};

/* Of all steps of all clients. */
static struct latency read_latency(const struct client clients[CLIENTS])
{
	struct latency latency;
	double *all;
	int n = 0;

	for (int i = 0; i < CLIENTS; i++)
		n += clients[i].calls;
	all = calloc((size_t)n, sizeof(*all));
	if (!all)
		die("out of memory");
	n = 0;
	for (int i = 0; i < CLIENTS; i++)
		for (int k = 0; k < clients[i].calls; k++)
			all[n++] = clients[i].latency[k];
	latency = (struct latency){ percentile(all, n, 0.5), percentile(all, n, 0.99) };
	free(all);
	return latency;
}

/* -- one storm ---------------------------------------------------------------------------------- */

/* A sweep goes by run_id: while the last one is open nothing else is asked, so that asking costs little. */
static void wait_until_closed(PGconn *conn)
{
	char *last = sql_text(conn, "SELECT max(run_id) FROM storm");

	while (sql_number(conn,
			  "SELECT count(*) FROM lease.run_attempts "
			  "WHERE run_id = '%s' AND attempt_no = 1 AND finished_at IS NULL",
			  last) > 0)
		sleep(1);
	free(last);
	while (sql_number(conn,
			  "SELECT count(*) FROM (SELECT FROM storm s "
			  "JOIN lease.run_attempts a ON a.run_id = s.run_id AND a.attempt_no = 1 "
			  "WHERE a.finished_at IS NULL LIMIT 1) o") > 0)
		sleep(1);
}

/*
 * Leases that are over, of runs that the table `storm` lists. A heartbeat of an earlier daemon would
 * make the time that this takes an outage, and an amnesty would keep them.
 */
static void make_storm(PGconn *conn, const char *name, long n)
{
	sql(conn, "DELETE FROM lease.heartbeat");
	sql(conn,
	    "CREATE TEMP TABLE storm AS "
	    "SELECT md5('%s ' || i)::uuid::text COLLATE \"C\" AS run_id FROM generate_series(1, %ld) i",
	    name, n);
	open_leases(conn, name, n, "interval '-1 s'");
	sql(conn, "ANALYZE storm");
	sync();
}

/* Seconds that the part of the closes from one share of all to another took. */
static double seconds_of_part(PGconn *conn, double from, double to)
{
	char *text = sql_text(
		conn,
		"SELECT extract(epoch FROM max(at) - min(at)) FROM ("
		"  SELECT a.finished_at AS at, percent_rank() OVER (ORDER BY a.finished_at) AS share"
		"    FROM storm s JOIN lease.run_attempts a ON a.run_id = s.run_id AND a.attempt_no = 1) c "
		"WHERE share BETWEEN %f AND %f",
		from, to);
	double seconds = atof(text);

	free(text);
	return seconds;
}

enum { DATABASES = 2, DAEMONS = 2 };

/* Closes a second of all, after `n` leases were over in each of the databases. */
static double time_daemons(const char *name, struct bench *databases, int n_databases,
			   int daemons_each, long n)
{
	struct process daemon[DATABASES * DAEMONS];
	int daemons = 0;
	double rate = 0;

	for (int i = 0; i < n_databases; i++)
		make_storm(databases[i].conn, name, n);
	for (int i = 0; i < n_databases; i++)
		for (int k = 0; k < daemons_each; k++)
			daemon_start(&daemon[daemons++], databases[i].conn, databases[i].conninfo);
	for (int i = 0; i < n_databases; i++)
		wait_until_closed(databases[i].conn);
	for (int i = 0; i < daemons; i++)
		daemon_stop(&daemon[i]);
	for (int i = 0; i < n_databases; i++) {
		rate += (double)n / seconds_of_part(databases[i].conn, 0, 1);
		sql(databases[i].conn, "DROP TABLE storm");
	}
	return rate;
}

/* What two bring each other, beside what the machine has left for two that share no database. */
static void measure_daemons(bool quick)
{
	long n = quick ? 10000 : 30000;
	struct bench databases[DATABASES] = { { .open = n }, { .open = n } };
	int rounds = quick ? 1 : 2;
	double alone[2], two_vs_one[2], two_vs_apart[2];

	progress("storm: %ld at once, one daemon and two", n);
	for (int i = 0; i < DATABASES; i++)
		need_database(&databases[i]);
	fill_log(databases[0].conn, quick ? 16 : 64);
	time_daemons("warm", databases, DATABASES, 1, n);
	for (int i = 0; i < rounds; i++) {
		double two = time_daemons(i ? "two again" : "two", databases, 1, DAEMONS, n);

		alone[i] = time_daemons(i ? "one again" : "one", databases, 1, 1, n);
		two_vs_one[i] = two / alone[i];
		two_vs_apart[i] = two / time_daemons(i ? "apart again" : "apart", databases,
						     DATABASES, 1, n);
	}
	figure("daemon_closed_per_s", median(alone, rounds), "attempts/s", NO_AIM, 0,
	       "expired attempts closed by one daemon");
	figure("two_daemons_vs_one", median(two_vs_one, rounds), "ratio", AT_LEAST, 1.5,
	       "the same by two daemons on one database / by one");
	figure("two_daemons_vs_apart", median(two_vs_apart, rounds), "ratio", NO_AIM, 0,
	       "by two daemons on one database / by two that have one each");
	for (int i = 0; i < DATABASES; i++)
		drop_database(databases[i].conn, databases[i].conninfo);
}

/* `call` is a word of the figures' names, `what` says it in full. */
static void report_latency(const char *call, const char *what, struct latency alone,
			   struct latency beside)
{
	char *p50_ratio, *p99, *p99_ratio, *half, *most;

	if (asprintf(&p50_ratio, "storm_%s_p50_vs_idle", call) < 0 ||
	    asprintf(&p99, "storm_%s_p99_ms", call) < 0 ||
	    asprintf(&p99_ratio, "storm_%s_p99_vs_idle", call) < 0 ||
	    asprintf(&half, "%s beside the storm / without it, half of all", what) < 0 ||
	    asprintf(&most, "%s beside the storm, 99 of 100", what) < 0)
		die("out of memory");
	figure(p50_ratio, beside.p50 / alone.p50, "ratio", NO_AIM, 0, half);
	figure(p99, beside.p99, "ms", NO_AIM, 0, most);
	figure(p99_ratio, beside.p99 / alone.p99, "ratio", AT_MOST, 3,
	       "the same / without the storm");
}

static void measure_beside(struct bench *bench, struct workers *workers, long n)
{
	struct latency renewal, claim; /* alone */
	struct process daemon;

	progress("storm: workers alone");
	/* twice: the first time they meet pages that were never written to */
	for (int i = 0; i < 2; i++) {
		workers_start(workers);
		sleep(bench->quick ? 2 : 5);
		workers_stop(workers);
	}
	renewal = read_latency(workers->renewing);
	claim = read_latency(workers->claiming);

	progress("storm: %ld leases are over at once", n);
	make_storm(bench->conn, "storm", n);
	workers_start(workers);
	daemon_start(&daemon, bench->conn, bench->conninfo);
	wait_until_closed(bench->conn);
	workers_stop(workers);
	figure("storm_rss_kb", (double)proc_number(&daemon, "status", "\nVmHWM:"), "kB", AT_MOST,
	       32768, "the daemon's highest memory in the storm, shared libraries included");
	daemon_stop(&daemon);

	figure("storm_closed_per_s", (double)n / seconds_of_part(bench->conn, 0, 1), "attempts/s",
	       NO_AIM, 0, "closed by one daemon beside renewals and claims");
	figure("storm_last_vs_first",
	       seconds_of_part(bench->conn, 0, 0.1) / seconds_of_part(bench->conn, 0.9, 1), "ratio",
	       AT_LEAST, 0.8, "rate in the last tenth / in the first");
	report_latency("renew", "a renewal", renewal, read_latency(workers->renewing));
	report_latency("claim", "a claim of the next run", claim, read_latency(workers->claiming));
	sql(bench->conn, "DROP TABLE storm");
}

/* The last that is done to that database: a storm leaves as many rows behind as it had. */
void measure_storm(struct bench *bench)
{
	struct bench *large = need_large(bench);
	struct workers workers;

	fill_log(large->conn, bench->quick ? 16 : 200);
	workers_open(&workers, large);
	sql(large->conn,
	    "INSERT INTO lease.runs (run_id) SELECT md5('spare ' || i)::uuid::text "
	    "FROM generate_series(1, %d) i",
	    SPARE_RUNS);
	measure_beside(large, &workers, large->open);
	workers_close(&workers);
	drop_large(bench);
	measure_daemons(bench->quick);
}
