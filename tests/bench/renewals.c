/*
 * Renewals, beside the least that a database can do for one.
 *
 * Both sides run from the same connections, both prepared or both not, over the same keys in the
 * same order, in short rounds that take turns; a ratio compares neighbouring rounds, so
 * that whatever else the machine does hits both. All pages are touched before anything is
 * measured, so that no figure holds the full-page images that follow a checkpoint.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "sql.h"

/* -- what they are measured against ----------------------------------------------------------- */

/* The library's statement without the library. */
static long renew_by_statement(struct client *client)
{
	const struct lease_token *token = next_token(client);
	char attempt_no[16];
	const char *values[] = { token->run_id, attempt_no, token->owner, TTL_TEXT };

	snprintf(attempt_no, sizeof(attempt_no), "%" PRId32, token->attempt_no);
	if (execute(client, lease_sql_renew, 4, values) != 1)
		die("%s was not renewed", token->run_id);
	return 1;
}

/* -- rounds ----------------------------------------------------------------------------------- */

enum { ROUNDS_MAX = 16 };

/* One way to write, measured round by round. */
struct side {
	long (*step)(struct client *client);
	/* rows a second; a row's bytes of WAL, and microseconds of the server's processors */
	double rate[ROUNDS_MAX], wal[ROUNDS_MAX], server[ROUNDS_MAX];
};

static void run_side(struct side *side, struct client clients[CLIENTS], PGconn *conn, int round,
		     double seconds)
{
	double server = clients_server_us(clients);
	long long wal = wal_position(conn);
	long rows;

	side->rate[round] = clients_run(clients, side->step, seconds, &rows);
	side->wal[round] = (double)(wal_position(conn) - wal) / (double)rows;
	side->server[round] = (clients_server_us(clients) - server) / (double)rows;
}

/* The sides take turns, every other round in reverse order. */
static void run_rounds(struct side *sides, int n_sides, struct client clients[CLIENTS],
		       PGconn *conn, int rounds, double seconds)
{
	for (int round = 0; round < rounds; round++)
		for (int i = 0; i < n_sides; i++)
			run_side(&sides[round % 2 ? n_sides - 1 - i : i], clients, conn, round,
				 seconds);
}

static double ratio(const struct side *a, const struct side *b, int rounds)
{
	double ratios[ROUNDS_MAX];

	for (int i = 0; i < rounds; i++)
		ratios[i] = a->rate[i] / b->rate[i];
	return median(ratios, rounds);
}

/* As it is by default: each renewal is on the disk before the worker is told. */
static void measure_durable(struct client clients[CLIENTS], PGconn *conn, int rounds,
			    double seconds)
{
	struct side sides[] = { { .step = renew_lease }, { .step = update_one } };
	struct side *ours = &sides[0], *floor = &sides[1];

	clients_set(clients, "synchronous_commit = on");
	run_rounds(sides, 2, clients, conn, rounds, seconds);
	figure("renew_vs_floor", ratio(ours, floor, rounds), "ratio", AT_LEAST, 0.9,
	       "renewals / bare one-row UPDATEs by primary key, both prepared, synchronous_commit on");
	figure("renew_per_s", median(ours->rate, rounds), "leases/s", NO_AIM, 0,
	       "lease_renew_lease on 8 connections, synchronous_commit on");
	figure("renew_wal_bytes", median(ours->wal, rounds), "bytes", AT_MOST, 300,
	       "WAL of one renewal, its commit included");
}

/* Without the wait for the disk: what both cost the processors. */
static void measure_processor(struct client clients[CLIENTS], PGconn *conn, int rounds,
			      double seconds)
{
	struct side sides[] = { { .step = renew_lease },        { .step = update_one },
				{ .step = renew_by_statement }, { .step = update_one_unprepared },
				{ .step = renew_leases },       { .step = update_many } };
	struct side *ours = &sides[0], *floor = &sides[1];
	struct side *pooled = &sides[2], *pooled_floor = &sides[3];
	struct side *batch = &sides[4], *batch_floor = &sides[5];

	clients_set(clients, "synchronous_commit = off");
	run_rounds(sides, 6, clients, conn, rounds, seconds);
	figure("renew_cpu_vs_floor", ratio(ours, floor, rounds), "ratio", NO_AIM, 0,
	       "the same, synchronous_commit off: no wait for the disk hides the difference");
	figure("renew_cpu_per_s", median(ours->rate, rounds), "leases/s", NO_AIM, 0,
	       "the same, synchronous_commit off");
	figure("renew_server_us", median(ours->server, rounds), "us", NO_AIM, 0,
	       "processor time of the server for one renewal");
	figure("renew_floor_server_us", median(floor->server, rounds), "us", NO_AIM, 0,
	       "and for one bare UPDATE: compare the two, both grow on a busy machine");
	figure("renew_pooled_vs_floor", ratio(pooled, pooled_floor, rounds), "ratio", NO_AIM, 0,
	       "the renewal's statement / the bare UPDATE, both planned each time, as behind a pooler");
	figure("renew_pooled_server_us", median(pooled->server, rounds), "us", NO_AIM, 0,
	       "processor time of the server for one such renewal");
	figure("renew_batch_per_s", median(batch->rate, rounds), "leases/s", NO_AIM, 0,
	       "lease_renew_leases, 100 at a time on 8 connections, synchronous_commit off");
	figure("renew_batch_server_us", median(batch->server, rounds), "us", NO_AIM, 0,
	       "processor time of the server for one renewal in a batch");
	figure("renew_batch_floor_server_us", median(batch_floor->server, rounds), "us", NO_AIM, 0,
	       "and for one bare UPDATE of 100 rows");
	figure("renew_batch_vs_pooled", ratio(batch, pooled, rounds), "ratio", AT_LEAST, 10,
	       "renewals in batches / single ones that are planned each time");
	figure("renew_batch_vs_single", ratio(batch, ours, rounds), "ratio", NO_AIM, 0,
	       "renewals in batches / single ones that are prepared");
	figure("renew_batch_vs_floor", ratio(batch, batch_floor, rounds), "ratio", AT_LEAST, 0.7,
	       "renewals in batches / bare UPDATEs of 100 rows by = ANY");
	figure("renew_batch_wal_bytes", median(batch->wal, rounds), "bytes", AT_MOST, 180,
	       "WAL of one renewal in a batch of 100");
}

/* Until every row of both tables was written a few times: pages, caches, room for HOT. */
static void warm_up(struct client clients[CLIENTS], long n)
{
	clients_set(clients, "synchronous_commit = off");
	for (long rows, all = 0; all < 3 * n; all += rows)
		clients_run(clients, renew_leases, 0.5, &rows);
	for (long rows, all = 0; all < 3 * n; all += rows)
		clients_run(clients, update_many, 0.5, &rows);
}

/* -- heap-only updates ------------------------------------------------------------------------ */

static long long updates_of_attempts(PGconn *conn, const char *kind)
{
	return sql_number(conn,
			  "SELECT n_tup_%supd FROM pg_stat_user_tables "
			  "WHERE relid = 'lease.run_attempts'::regclass",
			  kind);
}

/* Counters are complete when the connections that counted are gone. */
struct hot {
	long long updates, hot;
};

static struct hot count_hot(PGconn *conn)
{
	wait_alone(conn);
	return (struct hot){ updates_of_attempts(conn, ""), updates_of_attempts(conn, "hot_") };
}

static double hot_percent(const struct hot *before, const struct hot *after)
{
	return 100.0 * (double)(after->hot - before->hot) /
	       (double)(after->updates - before->updates);
}

void measure_renewals(struct bench *bench)
{
	int rounds = bench->quick ? 2 : 5;
	double seconds = bench->quick ? 0.4 : 0.8;
	struct client clients[CLIENTS];
	struct lease_token *tokens;
	struct hot hot[3];
	size_t n;

	need_database(bench);
	make_floor(bench->conn);
	tokens = read_tokens(bench->conn, &n);
	progress("renewals: warming up");
	clients_open(clients, bench->conninfo, tokens, n);
	warm_up(clients, (long)n);
	clients_close(clients);
	hot[0] = count_hot(bench->conn);

	progress("renewals: synchronous_commit on");
	clients_open(clients, bench->conninfo, tokens, n);
	measure_durable(clients, bench->conn, rounds, seconds);
	clients_close(clients);
	hot[1] = count_hot(bench->conn);
	figure("renew_hot_percent", hot_percent(&hot[0], &hot[1]), "%", AT_LEAST, 100,
	       "of them, those that changed no index");

	progress("renewals: synchronous_commit off");
	clients_open(clients, bench->conninfo, tokens, n);
	measure_processor(clients, bench->conn, rounds, seconds);
	clients_close(clients);
	hot[2] = count_hot(bench->conn);
	figure("renew_flood_hot_percent", hot_percent(&hot[1], &hot[2]), "%", NO_AIM, 0,
	       "the same at full speed, in batches: each lease renewed about once a second");
	free(tokens);
}
