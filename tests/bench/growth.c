/*
 * The same work with no history, with a million and with ten million closed attempts behind the same
 * open leases; with random run ids, and with such that grow with time.
 *
 * For each kind of id there are three databases that differ in the history alone: the larger ones
 * are copies of the one without, filled. All three are measured in turn within each round, and a
 * figure is the median over the rounds of what one took / what the one without history took; so
 * whatever else the machine does hits all of them. Renewals and scans are timed; of sweeps and claims
 * it is the server's processor time, because one connection with several turns waits more than it
 * works.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { SIZES = 3, ROUNDS_MAX = 16 };

enum work { RENEW, SCAN, SWEEP, CLAIM, CLAIM_NEXT, WORKS };

static const struct {
	const char *name, *what;
	enum aim aim; /* of its ratios: 1.1 */
} works[WORKS] = {
	[RENEW] = { "renew", "time of renewals on 8 connections", AT_MOST },
	[SCAN] = { "scan", "time of a scan of all open leases", AT_MOST },
	[SWEEP] = { "sweep", "the server's processor time for an attempt that a sweep closes",
		    NO_AIM },
	[CLAIM] = { "claim", "the same for lease_mark_running", NO_AIM },
	[CLAIM_NEXT] = { "claim_next", "the same for lease_claim_next", NO_AIM },
};

struct plan {
	long closed[SIZES];
	const char *names[SIZES]; /* as they stand in the figures' names */
	int renewals, scans, cycles; /* rounds of each */
	double seconds; /* of renewals in each */
	int expired; /* leases that a sweep finds over */
};

static const struct plan full = { .closed = { 0, 1000000, 10000000 },
				  .names = { "0", "1m", "10m" },
				  .renewals = 10,
				  .scans = 6,
				  .cycles = 3,
				  .seconds = 0.4,
				  .expired = 1000 };
static const struct plan quick = { .closed = { 0, 100000, 300000 },
				   .names = { "0", "100k", "300k" },
				   .renewals = 4,
				   .scans = 4,
				   .cycles = 2,
				   .seconds = 0.2,
				   .expired = 300 };

/* One database. */
struct size {
	char *conninfo;
	PGconn *conn;
	struct client clients[CLIENTS];
	double cost[WORKS][ROUNDS_MAX]; /* microseconds of one, by rounds */
};

static const char *const kinds[] = { [RANDOM_IDS] = "random", [ORDERED_IDS] = "ordered" };
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* -- databases -------------------------------------------------------------------------------- */

/* Without history, and its copies. */
static void make_sizes(struct size sizes[SIZES], enum run_ids ids, long open)
{
	PGconn *conn;

	sizes[0].conninfo = test_database_create();
	conn = test_connect(sizes[0].conninfo);
	sql(conn, "SET synchronous_commit = off");
	if (ids == RANDOM_IDS)
		open_leases(conn, "open", open, "interval '1 day'");
	else
		open_ordered_leases(conn, open, "interval '1 day'");
	sql(conn, "VACUUM (ANALYZE) lease.runs, lease.run_attempts");
	PQfinish(conn);
	for (int i = 1; i < SIZES; i++)
		sizes[i].conninfo = test_database_copy(sizes[0].conninfo);
	for (int i = 0; i < SIZES; i++)
		sizes[i].conn = test_connect(sizes[i].conninfo);
}

/* The same size of both kinds at a time: there are two processors. */
static void fill_sizes(struct size sizes[KINDS][SIZES], const struct plan *plan)
{
	for (int i = 1; i < SIZES; i++) {
		struct filling fillings[KINDS];

		progress("growth: %ld closed attempts, twice", plan->closed[i]);
		for (int kind = 0; kind < KINDS; kind++)
			fillings[kind] = (struct filling){ sizes[kind][i].conn, (enum run_ids)kind,
							   plan->closed[i] };
		fill_histories(fillings, KINDS);
	}
}

static void drop_sizes(struct size sizes[SIZES])
{
	for (int i = 0; i < SIZES; i++) {
		PQfinish(sizes[i].conn);
		test_database_drop(sizes[i].conninfo);
		free(sizes[i].conninfo);
	}
}

/* -- work ------------------------------------------------------------------------------------- */

/* Each database in turn, another one first in each round. */
static void measure_renewing(struct size sizes[SIZES], const struct plan *plan)
{
	struct lease_token *tokens;
	size_t n;
	long rows;

	tokens = read_tokens(sizes[0].conn, &n);
	for (int i = 0; i < SIZES; i++) {
		clients_open(sizes[i].clients, sizes[i].conninfo, tokens, n);
		clients_set(sizes[i].clients, "synchronous_commit = off");
		for (size_t all = 0; all < n; all += (size_t)rows) /* warms up */
			clients_run(sizes[i].clients, renew_leases, 0.2, &rows);
	}
	for (int round = 0; round < plan->renewals; round++)
		for (int i = 0; i < SIZES; i++) {
			struct size *size = &sizes[(i + round) % SIZES];

			size->cost[RENEW][round] = 1e6 / clients_run(size->clients, renew_lease,
								     plan->seconds, &rows);
		}
	for (int i = 0; i < SIZES; i++)
		clients_close(sizes[i].clients);
	free(tokens);
}

/* A whole sweep. Gives the processor time that it took the server, and its figures. */
static double sweep(PGconn *conn, long expired, struct lease_sweep_figures *ret)
{
	struct lease_sweep_options options;
	struct lease_error error;
	double before = server_us(conn);

	sweep_options(&options);
	if (lease_reconcile_expired_leases(conn, &options, NULL, ret, &error) != 0)
		die("the sweep: %s", error.message);
	if (ret->closed != expired)
		die("a sweep closed %lld attempts of %ld", (long long)ret->closed, expired);
	return server_us(conn) - before;
}

static void measure_scans(struct size sizes[SIZES], const struct plan *plan)
{
	struct lease_sweep_figures figures;

	for (int i = 0; i < SIZES; i++) /* warms up */
		sweep(sizes[i].conn, 0, &figures);
	for (int round = 0; round < plan->scans; round++)
		for (int i = 0; i < SIZES; i++) {
			struct size *size = &sizes[(i + round) % SIZES];

			sweep(size->conn, 0, &figures);
			size->cost[SCAN][round] = (double)figures.scan_duration;
		}
}

/* Claims the runs `from` to `to` in the list, or as many that are due. The server's time for one. */
static double claim(PGconn *conn, bool next, int from, int to)
{
	PGresult *runs = PQexec(conn, "SELECT run_id FROM pick ORDER BY n");
	struct lease_claim claim = { .ttl = TTL };
	struct lease_grant grant;
	struct lease_error error;
	char owner[LEASE_ID_MAX + 1];
	double before = server_us(conn);
	int r = lease_owner_generate("bench", owner, &error);

	claim.owner = owner;
	for (int i = from; r == 0 && i < to; i++) {
		claim.run_id = PQgetvalue(runs, i, 0);
		r = next ? lease_claim_next(conn, &claim, &grant, &error)
			 : lease_mark_running(conn, &claim, &grant, &error);
	}
	if (r != 0)
		die("claiming: %s", r < 0 ? error.message : lease_refusal_name(r));
	PQclear(runs);
	return (server_us(conn) - before) / (to - from);
}

/* Leases of runs picked at random are over, a sweep requeues these, and they are claimed again. */
static void run_cycle(struct size *size, int round, int expired)
{
	PGconn *conn = size->conn;
	struct lease_sweep_figures figures;

	sql(conn,
	    "CREATE TEMP TABLE pick AS SELECT run_id, row_number() OVER () AS n "
	    "  FROM lease.run_attempts WHERE finished_at IS NULL "
	    " ORDER BY md5(run_id || '%d') LIMIT %d",
	    round, expired);
	sql(conn,
	    "UPDATE lease.run_attempts a SET lease_expires_at = clock_timestamp() FROM pick p "
	    "WHERE a.run_id = p.run_id AND a.finished_at IS NULL");
	size->cost[SWEEP][round] = sweep(conn, expired, &figures) / expired;
	size->cost[CLAIM][round] = claim(conn, false, 0, expired / 2);
	size->cost[CLAIM_NEXT][round] = claim(conn, true, expired / 2, expired);
	sql(conn, "DROP TABLE pick");
}

static void measure_cycles(struct size sizes[SIZES], const struct plan *plan)
{
	for (int i = 0; i < SIZES; i++) {
		sql(sizes[i].conn, "SET synchronous_commit = off");
		run_cycle(&sizes[i], 0, plan->expired / 4); /* warms up */
	}
	for (int round = 0; round < plan->cycles; round++)
		for (int i = 0; i < SIZES; i++)
			run_cycle(&sizes[(i + round) % SIZES], round, plan->expired);
}

/* -- figures ---------------------------------------------------------------------------------- */

static void make_figure(const struct size sizes[SIZES], const struct plan *plan, const char *kind,
			enum work work, int i)
{
	int rounds = work == RENEW ? plan->renewals : work == SCAN ? plan->scans : plan->cycles;
	double ratios[ROUNDS_MAX];
	char *name, *what;

	for (int round = 0; round < rounds; round++)
		ratios[round] = sizes[i].cost[work][round] / sizes[0].cost[work][round];
	if (asprintf(&name, "growth_%s_%s_%s", works[work].name, plan->names[i], kind) < 0 ||
	    asprintf(&what, "with %ld closed attempts / with none, %s run ids: %s", plan->closed[i],
		     kind, works[work].what) < 0)
		die("out of memory");
	figure(name, median(ratios, rounds), "ratio", works[work].aim, 1.1, what);
}

static void measure_kind(struct size sizes[SIZES], const struct plan *plan, const char *kind)
{
	sql(sizes[0].conn, "CHECKPOINT");
	progress("growth: %s ids, renewals", kind);
	measure_renewing(sizes, plan);
	progress("growth: %s ids, scans", kind);
	measure_scans(sizes, plan);
	progress("growth: %s ids, sweeps and claims", kind);
	measure_cycles(sizes, plan);
	for (int work = 0; work < WORKS; work++)
		for (int i = 1; i < SIZES; i++)
			make_figure(sizes, plan, kind, (enum work)work, i);
}

void measure_growth(struct bench *bench)
{
	const struct plan *plan = bench->quick ? &quick : &full;
	struct size(*sizes)[SIZES] = calloc(KINDS, sizeof(*sizes));

	if (!sizes)
		die("out of memory");
	for (int kind = 0; kind < KINDS; kind++)
		make_sizes(sizes[kind], (enum run_ids)kind, bench->open);
	fill_sizes(sizes, plan);
	for (int kind = 0; kind < KINDS; kind++) {
		measure_kind(sizes[kind], plan, kinds[kind]);
		drop_sizes(sizes[kind]);
	}
	free(sizes);
}
