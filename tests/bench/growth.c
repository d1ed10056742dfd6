/*
 * The same work with no history, with a million and with ten million closed attempts behind the same
 * open leases; with random run ids, and with such that grow with time.
 *
 * For each kind of id there are three databases that differ in the history alone: the open leases
 * come last, the same into each and into all at once, so that where they lie in the server's memory
 * is no difference either. The three take turns as short as the work allows, on the
 * same leases in the same order: single pages of a scan, single claims. A figure is the median over
 * the turns of what one took / what the one without history took. The memory of a shared machine
 * changes its speed by a half from one second to the next, and turns that are seconds apart would
 * compare that. Of sweeps and claims it is the server's processor time, because one connection waits
 * more than it works.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "sql.h"

enum { SIZES = 3, TURNS_MAX = 512, PAGE = 5000, CLAIMS = 20, TRANSACTIONS = 10 };

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

static const char *const kind_names[] = { [RANDOM_IDS] = "random", [ORDERED_IDS] = "ordered" };
enum { KINDS = sizeof(kind_names) / sizeof(kind_names[0]) };

struct plan {
	int sizes, kinds;
	long closed[SIZES];
	const char *names[SIZES]; /* as they stand in the figures' names */
	int renewals, scans, cycles; /* turns of each: of scans, pages */
	double seconds; /* of renewals in each */
	int expired; /* leases that a sweep finds over */
};

static const struct plan full = { .sizes = 3,
				  .kinds = KINDS,
				  .closed = { 0, 1000000, 10000000 },
				  .names = { "0", "1m", "10m" },
				  .renewals = 30,
				  .scans = 200,
				  .cycles = 5,
				  .seconds = 0.05,
				  .expired = 240 };
static const struct plan quick = { .sizes = 2,
				   .kinds = 1, /* random ids */
				   .closed = { 0, 100000 },
				   .names = { "0", "100k" },
				   .renewals = 10,
				   .scans = 40,
				   .cycles = 3,
				   .seconds = 0.05,
				   .expired = 120 };

/* One database. */
struct size {
	char *conninfo;
	PGconn *conn;
	struct client clients[CLIENTS];
	char cursor[LEASE_ID_MAX + 1]; /* where its scan stands */
	double cost[WORKS][TURNS_MAX]; /* microseconds of one, by turns */
};

/* The databases of one kind of run ids. */
struct kind {
	const char *name;
	int n_sizes;
	struct size sizes[SIZES];
	int turns[WORKS];
	struct lease_token *tokens; /* of the open leases, which are the same in all, at random */
	size_t n;
	size_t scanned; /* of them, so far */
};

/* Another database begins each time. */
static struct size *whose_turn(struct kind *kind, int turn, int i)
{
	return &kind->sizes[(i + turn) % kind->n_sizes];
}

static int next_turn(struct kind *kind, enum work work)
{
	if (kind->turns[work] == TURNS_MAX)
		die("growth: more than %d turns", TURNS_MAX);
	return kind->turns[work]++;
}

/* -- databases -------------------------------------------------------------------------------- */

/*
 * The same open leases in all of a kind, and histories behind them. Autovacuum would come in the midst of
 * the turns of one database, by its size, and is the same matter for all of them.
 */
static void make_kinds(struct kind kinds[KINDS], const struct plan *plan, const struct bench *bench)
{
	PGconn *conn = PQconnectdb("");
	char *now = sql_text(conn, "SELECT now()");
	struct filling fillings[SIZES * KINDS];
	int n = 0;

	PQfinish(conn);
	for (int i = 0; i < plan->sizes; i++)
		for (int ids = 0; ids < plan->kinds; ids++) {
			struct size *size = &kinds[ids].sizes[i];

			size->conninfo = test_database_create();
			conn = test_connect(size->conninfo);
			sql(conn, "ALTER TABLE lease.runs SET (autovacuum_enabled = off); "
				  "ALTER TABLE lease.run_attempts SET (autovacuum_enabled = off)");
			fillings[n++] = (struct filling){ .conn = conn,
							  .ids = (enum run_ids)ids,
							  .closed = plan->closed[i],
							  .open = bench->open,
							  .now = now };
		}
	progress("growth: %d databases with up to %ld closed attempts", n,
		 plan->closed[plan->sizes - 1]);
	fill_databases(fillings, n);
	for (int i = 0; i < n; i++) {
		sql(fillings[i].conn, "ANALYZE lease.runs, lease.run_attempts");
		PQfinish(fillings[i].conn);
	}
	free(now);
	for (int ids = 0; ids < plan->kinds; ids++) {
		kinds[ids].name = kind_names[ids];
		kinds[ids].n_sizes = plan->sizes;
		conn = test_connect(kinds[ids].sizes[0].conninfo);
		kinds[ids].tokens = read_tokens(conn, &kinds[ids].n);
		PQfinish(conn);
	}
}

/*
 * All of them new: a server process that once needed much memory, as for filling a database, keeps
 * it, and does the same work faster than one that gets its memory from the system each time.
 */
static void open_connections(struct kind *kind)
{
	for (int i = 0; i < kind->n_sizes; i++) {
		kind->sizes[i].conn = test_connect(kind->sizes[i].conninfo);
		sql(kind->sizes[i].conn, "SET synchronous_commit = off");
	}
}

static void drop_sizes(struct kind *kind)
{
	for (int i = 0; i < kind->n_sizes; i++)
		drop_database(kind->sizes[i].conn, kind->sizes[i].conninfo);
	free(kind->tokens);
}

/* -- renewals --------------------------------------------------------------------------------- */

static void measure_renewing(struct kind *kind, const struct plan *plan)
{
	long rows;

	for (int i = 0; i < kind->n_sizes; i++) {
		struct size *size = &kind->sizes[i];

		clients_open(size->clients, size->conninfo, kind->tokens, kind->n);
		clients_set(size->clients, "synchronous_commit = off");
		for (size_t all = 0; all < kind->n; all += (size_t)rows) /* warms up */
			clients_run(size->clients, renew_leases, 0.1, &rows);
		clients_run(size->clients, renew_lease, 0.1, &rows);
	}
	for (int round = 0; round < plan->renewals; round++) {
		int turn = next_turn(kind, RENEW);

		for (int i = 0; i < kind->n_sizes; i++) {
			struct size *size = whose_turn(kind, turn, i);

			size->cost[RENEW][turn] = 1e6 / clients_run(size->clients, renew_lease,
								    plan->seconds, &rows);
		}
	}
	for (int i = 0; i < kind->n_sizes; i++)
		clients_close(kind->sizes[i].clients);
}

/* -- scans ------------------------------------------------------------------------------------ */

static void take(PGconn *conn, PGresult *result, ExecStatusType expected)
{
	if (PQresultStatus(result) != expected)
		die("%s", PQerrorMessage(conn));
	PQclear(result);
}

/* The next page, by the library's statement without the library. Gives how many leases it has. */
static long scan_page(struct size *size, double *ret_us)
{
	PGconn *conn = size->conn;
	const char *timeouts[] = { "10000", "2000" }, *values[] = { size->cursor, NULL, NULL };
	char page[16], horizon[16];
	PGresult *result;
	int64_t began;
	long leases;

	snprintf(page, sizeof(page), "%d", PAGE);
	snprintf(horizon, sizeof(horizon), "%" PRId64, 5 * LEASE_SECOND);
	values[1] = page;
	values[2] = horizon;
	take(conn, PQexec(conn, lease_sql_begin), PGRES_COMMAND_OK);
	take(conn, PQexecParams(conn, lease_sql_settings_scan, 2, NULL, timeouts, NULL, NULL, 0),
	     PGRES_TUPLES_OK);
	began = clock_us();
	result = PQexecParams(conn, lease_sql_scan_page, 3, NULL, values, NULL, NULL, 0);
	*ret_us = (double)(clock_us() - began);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		die("a scan: %s", PQerrorMessage(conn));
	leases = atol(PQgetvalue(result, 0, 2));
	snprintf(size->cursor, sizeof(size->cursor), "%s", PQgetvalue(result, 0, 1));
	PQclear(result);
	take(conn, PQexec(conn, "COMMIT"), PGRES_COMMAND_OK);
	return leases;
}

/* The next page of each database in turn; from the beginning again where there is none. */
static void scan_pages(struct kind *kind, int turn)
{
	size_t left = kind->n - kind->scanned;
	long expected = left < PAGE ? (long)left : PAGE;

	for (int i = 0; i < kind->n_sizes; i++) {
		struct size *size = whose_turn(kind, turn, i);
		long leases;

		if (kind->scanned == 0)
			size->cursor[0] = '\0';
		leases = scan_page(size, &size->cost[SCAN][turn]);
		if (leases != expected)
			die("a page of a scan has %ld leases of %ld", leases, expected);
	}
	kind->scanned = (kind->scanned + (size_t)expected) % kind->n;
}

static void measure_scans(struct kind *kind, const struct plan *plan)
{
	do { /* warms up */
		scan_pages(kind, 0);
	} while (kind->scanned > 0);
	for (int round = 0; round < plan->scans; round++)
		scan_pages(kind, next_turn(kind, SCAN));
}

/* -- sweeps and claims ------------------------------------------------------------------------ */

static void expire(PGconn *conn, const struct lease_token *tokens, int n)
{
	char *ids = malloc((size_t)n * (LEASE_ID_MAX + 4) + 4), *end = ids;
	const char *values[] = { ids };

	if (!ids)
		die("out of memory");
	for (int i = 0; i < n; i++)
		end += sprintf(end, "%c\"%s\"", i == 0 ? '{' : ',', tokens[i].run_id);
	strcpy(end, "}");
	take(conn,
	     PQexecParams(conn,
			  "UPDATE lease.run_attempts SET lease_expires_at = clock_timestamp() "
			  "WHERE run_id = ANY ($1::text[]) AND finished_at IS NULL",
			  1, NULL, values, NULL, NULL, 0),
	     PGRES_COMMAND_OK);
	free(ids);
}

/* The server's time from the end of a sweep's first transaction to that of its last. */
struct closing {
	PGconn *conn;
	int batch, closed;
	double first, last;
};

static void note_closed(void *arg, const struct lease_closed *closed)
{
	struct closing *closing = arg;

	(void)closed;
	closing->closed++;
	if (closing->closed == closing->batch)
		closing->first = server_us(closing->conn);
	if (closing->closed % closing->batch == 0)
		closing->last = server_us(closing->conn);
}

/*
 * A whole sweep. All that is over is on one page, so that no scan comes between its transactions:
 * scans are measured above. Gives the processor time that an attempt took the server.
 */
static double sweep(PGconn *conn, int expired)
{
	struct closing closing = { .conn = conn };
	struct lease_sweep_callbacks callbacks = { .closed = note_closed, .arg = &closing };
	struct lease_sweep_options options;
	struct lease_error error;

	sweep_options(&options);
	options.scan_page = 1000000;
	/* fewer than a new connection begins with, so that all transactions are alike */
	options.batch_size = expired / TRANSACTIONS;
	closing.batch = options.batch_size;
	if (lease_reconcile_expired_leases(conn, &options, &callbacks, NULL, &error) != 0)
		die("the sweep: %s", error.message);
	if (closing.closed != expired)
		die("a sweep closed %d attempts of %d", closing.closed, expired);
	return (closing.last - closing.first) / (expired - closing.batch);
}

/* A claim of the run named, or of the next one that is due (NULL). */
static void claim(PGconn *conn, const char *run_id, const char *owner)
{
	struct lease_claim claim = { .run_id = run_id, .owner = owner, .ttl = TTL };
	struct lease_grant grant;
	struct lease_error error;
	int r = run_id ? lease_mark_running(conn, &claim, &grant, &error)
		       : lease_claim_next(conn, &claim, &grant, &error);

	if (r != 0)
		die("claiming: %s", r < 0 ? error.message : lease_refusal_name(r));
}

/* Some claims of each database, one by one in turn. tokens NULL: of whatever is due. */
static void claim_some(struct kind *kind, const struct lease_token *tokens, const char *owner)
{
	enum work work = tokens ? CLAIM : CLAIM_NEXT;
	int turn = next_turn(kind, work);
	double before[SIZES];

	for (int i = 0; i < kind->n_sizes; i++)
		before[i] = server_us(kind->sizes[i].conn);
	for (int k = 0; k < CLAIMS; k++)
		for (int i = 0; i < kind->n_sizes; i++)
			claim(whose_turn(kind, k, i)->conn, tokens ? tokens[k].run_id : NULL,
			      owner);
	for (int i = 0; i < kind->n_sizes; i++)
		kind->sizes[i].cost[work][turn] = (server_us(kind->sizes[i].conn) - before[i]) /
						  CLAIMS;
}

/* Leases are over, a sweep requeues their runs, and these are claimed again, half by their ids. */
static void run_cycle(struct kind *kind, const struct lease_token *tokens, int expired)
{
	struct lease_error error;
	char owner[LEASE_ID_MAX + 1];
	int turn = next_turn(kind, SWEEP);

	if (lease_owner_generate("bench", owner, &error) != 0)
		die("%s", error.message);
	for (int i = 0; i < kind->n_sizes; i++) {
		struct size *size = whose_turn(kind, turn, i);

		expire(size->conn, tokens, expired);
		size->cost[SWEEP][turn] = sweep(size->conn, expired);
	}
	for (int from = 0; from < expired; from += CLAIMS)
		claim_some(kind, from < expired / 2 ? tokens + from : NULL, owner);
}

static void measure_cycles(struct kind *kind, const struct plan *plan)
{
	size_t expired = (size_t)plan->expired, from = 0;

	if (kind->n < expired)
		die("growth: --open must be at least %zu", expired);
	for (int cycle = 0; cycle <= plan->cycles; cycle++) {
		run_cycle(kind, kind->tokens + from, plan->expired);
		if (cycle == 0) /* warms up */
			kind->turns[SWEEP] = kind->turns[CLAIM] = kind->turns[CLAIM_NEXT] = 0;
		from = from + 2 * expired <= kind->n ? from + expired : 0;
	}
}

/* -- figures ---------------------------------------------------------------------------------- */

static void make_figure(const struct kind *kind, const struct plan *plan, enum work work, int i)
{
	const struct size *none = &kind->sizes[0], *size = &kind->sizes[i];
	double ratios[TURNS_MAX];
	char *name, *what;

	for (int turn = 0; turn < kind->turns[work]; turn++)
		ratios[turn] = size->cost[work][turn] / none->cost[work][turn];
	if (asprintf(&name, "growth_%s_%s_%s", works[work].name, plan->names[i], kind->name) < 0 ||
	    asprintf(&what, "with %ld closed attempts / with none, %s run ids: %s", plan->closed[i],
		     kind->name, works[work].what) < 0)
		die("out of memory");
	figure(name, median(ratios, kind->turns[work]), "ratio", works[work].aim, 1.1, what);
}

static void measure_kind(struct kind *kind, const struct plan *plan)
{
	open_connections(kind);
	sql(kind->sizes[0].conn, "CHECKPOINT");
	progress("growth: %s ids, renewals", kind->name);
	measure_renewing(kind, plan);
	progress("growth: %s ids, scans", kind->name);
	measure_scans(kind, plan);
	progress("growth: %s ids, sweeps and claims", kind->name);
	measure_cycles(kind, plan);
	for (int work = 0; work < WORKS; work++)
		for (int i = 1; i < kind->n_sizes; i++)
			make_figure(kind, plan, (enum work)work, i);
}

void measure_growth(struct bench *bench)
{
	const struct plan *plan = bench->quick ? &quick : &full;
	struct kind *kinds = calloc(KINDS, sizeof(*kinds));

	if (!kinds)
		die("out of memory");
	make_kinds(kinds, plan, bench);
	for (int ids = 0; ids < plan->kinds; ids++) {
		measure_kind(&kinds[ids], plan);
		drop_sizes(&kinds[ids]);
	}
	free(kinds);
}
