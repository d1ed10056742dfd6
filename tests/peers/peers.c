/*
 * The comparison with what people would use instead: how each rescues the work of lost workers, in
 * one run, on one PostgreSQL, over as many rows. Run it by `make bench-peers`; docs/bench/peers.md
 * says what is compared and what is not.
 *
 * In each round every peer gets a fresh copy of its own database, so that none finds what another
 * round left. It promises no verdict; a peer that did not rescue every row, or kept fewer facts than
 * it is said to keep, ends the program with an error.
 */
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "peers.h"

/* Clients: the one that counts and the one that watches. */
enum { ROUNDS_MAX = 9, OWN_CLIENTS = 2 };

/* What two peers of one schema share. */
static const char lease_left[] = "SELECT count(*) FROM lease.run_attempts "
				 "WHERE finished_at IS NULL AND lease_expires_at <= now()";
/* The history behind has lost attempts of its own; what is rescued here waits for the next one. */
static const char lease_facts[] =
	"SELECT count(*) FROM lease.run_attempts a JOIN lease.runs r USING (run_id) "
	"WHERE a.outcome = 'lease_expired' AND r.status = 'pending'";
static const char orm_left[] = "SELECT count(*) FROM orm.attempts a JOIN orm.runs r USING (run_id) "
			       "WHERE a.finished_at IS NULL AND r.lease_expires_at <= now()";
static const char orm_facts[] = "SELECT count(*) FROM orm.attempts WHERE outcome = 'lease_expired'";
static const char river_left[] =
	"SELECT count(*) FROM river.job "
	"WHERE state = 'running' AND attempted_at < now() - interval '1 hour'";
static const char river_facts[] = "SELECT count(*) FROM river.job WHERE cardinality(errors) = 1";

static const struct peer peers[] = {
	{ .name = "sweep",
	  .title = "lease-reconciler, the library's sweep",
	  .kept = KEPT_AS_ROW,
	  .make = make_leases,
	  .rescue = rescue_by_sweep,
	  .left = lease_left,
	  .facts = lease_facts },
	{ .name = "daemon",
	  .title = "lease-reconciler, the daemon",
	  .kept = KEPT_AS_ROW,
	  .make = make_leases,
	  .rescue = rescue_by_daemon,
	  .left = lease_left,
	  .facts = lease_facts },
	{ .name = "absurd",
	  .title = "absurd-shaped (emulated)",
	  .kept = KEPT_AS_ROW,
	  .file = "absurd",
	  .make = make_emulated,
	  .rescue = rescue_as_absurd,
	  .left = "SELECT count(*) FROM absurd.attempts_work "
		  "WHERE state = 'running' AND claim_expires_at <= now()",
	  .facts = "SELECT count(*) FROM absurd.attempts_work WHERE state = 'failed'" },
	{ .name = "orm",
	  .title = "ORM-shaped, one by one (emulated)",
	  .kept = KEPT_AS_ROW,
	  .file = "orm",
	  .make = make_emulated,
	  .rescue = rescue_as_orm,
	  .left = orm_left,
	  .facts = orm_facts },
	{ .name = "orm_node",
	  .title = "ORM-shaped, by node-postgres (emulated)",
	  .kept = KEPT_AS_ROW,
	  .file = "orm",
	  .make = make_emulated,
	  .rescue = rescue_by_package,
	  .left = orm_left,
	  .facts = orm_facts },
	{ .name = "river",
	  .title = "River-shaped, 10,000 at a time (emulated)",
	  .kept = KEPT_IN_ROW,
	  .batch = 10000,
	  .file = "river",
	  .make = make_emulated,
	  .rescue = rescue_as_river,
	  .left = river_left,
	  .facts = river_facts },
	{ .name = "river_1000",
	  .title = "River-shaped, 1,000 at a time (emulated)",
	  .kept = KEPT_IN_ROW,
	  .batch = 1000,
	  .file = "river",
	  .make = make_emulated,
	  .rescue = rescue_as_river,
	  .left = river_left,
	  .facts = river_facts },
	{ .name = "graphile_worker",
	  .title = "graphile-worker",
	  .kept = KEPT_NOTHING,
	  .file = "graphile_worker",
	  .make = make_by_package,
	  .rescue = rescue_by_package,
	  .left = "SELECT count(*) FROM graphile_worker._private_jobs "
		  "WHERE locked_at < now() - interval '4 hours'" },
	{ .name = "pg_boss",
	  .title = "pg-boss",
	  .kept = KEPT_NOTHING,
	  .file = "pg_boss",
	  .make = make_by_package,
	  .rescue = rescue_by_package,
	  .left = "SELECT count(*) FROM pgboss.job "
		  "WHERE state = 'active' AND started_on + expire_in < now()" },
	{ .name = "oban",
	  .title = "Oban-shaped (emulated)",
	  .kept = KEPT_NOTHING,
	  .file = "oban",
	  .make = make_emulated,
	  .rescue = rescue_as_oban,
	  .left = "SELECT count(*) FROM oban.jobs WHERE state = 'executing' "
		  "AND attempted_at < timezone('UTC', now()) - interval '1 hour'" },
};

enum { PEERS = sizeof(peers) / sizeof(peers[0]), OURS = 0, THEIRS = 2 };

/* What came of one peer, round by round. */
struct result {
	double per_s[ROUNDS_MAX], lock_ms[ROUNDS_MAX], server_us[ROUNDS_MAX];
	double statements, written, wal, facts;
};

/* Of one run of the program. */
static struct comparison {
	long rows, rounds;
	const char *only, *json;
	PGconn *admin, *watching; /* in another database than any peer's */
	long long wal; /* where it stood when the rescue began */
	pid_t postmaster;
	char *databases[PEERS]; /* full of lost workers' rows, copied for each round */
	struct result results[PEERS];
	double gap_ms; /* the longest between two looks at the locks */
} run;

static bool is_picked(int i)
{
	return !run.only || strcmp(run.only, peers[i].name) == 0;
}

/* -- databases -------------------------------------------------------------------------------- */

const char *database_of(const char *conninfo)
{
	return strstr(conninfo, "dbname=") + strlen("dbname=");
}

void load_rows(const struct peer *peer, const char *conninfo, long rows)
{
	PGconn *conn = test_connect(conninfo);
	char *path, *source, *text;

	if (asprintf(&path, "tests/peers/%s.sql", peer->file) < 0)
		die("out of memory");
	source = test_source(path);
	text = read_file(source);
	sql(conn, "SET peers.rows = %ld; SET synchronous_commit = off", rows);
	sql(conn, "%s", text);
	PQfinish(conn);
	free(path);
	free(source);
	free(text);
}

/* Peers of one schema have one database to copy. */
static char *made_before(int i)
{
	for (int j = 0; j < i; j++)
		if (run.databases[j] && peers[j].make == peers[i].make &&
		    (!peers[j].file || strcmp(peers[j].file, peers[i].file) == 0))
			return run.databases[j];
	return NULL;
}

static void make_database(int i)
{
	PGconn *conn;

	run.databases[i] = made_before(i);
	if (run.databases[i])
		return;
	progress("loading: %s", peers[i].title);
	run.databases[i] = peers[i].make(&peers[i], run.rows);
	conn = test_connect(run.databases[i]);
	sql(conn, "VACUUM (FREEZE, ANALYZE)");
	if (sql_number(conn, "%s", peers[i].left) != run.rows)
		die("%s: not %ld rows of lost workers", peers[i].name, run.rows);
	PQfinish(conn);
}

/* -- one rescue ------------------------------------------------------------------------------- */

void rescue_begins(void)
{
	sql(run.admin, "SELECT pg_stat_statements_reset()");
	run.wal = wal_position(run.admin);
}

/* How many children the postmaster has, those among them that it did not wait for yet. */
static long long count_children(void)
{
	char path[80], *children;
	long long n = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)run.postmaster,
		 (int)run.postmaster);
	children = read_file(path);
	for (const char *at = children; *at; at++)
		n += *at == ' ';
	free(children);
	return n;
}

/* Until the server has so many clients, and its postmaster has waited for those that it had before. */
static void wait_for_clients(int n)
{
	while (sql_number(run.admin, "SELECT count(*) FROM pg_stat_activity "
				     "WHERE backend_type = 'client backend'") != n ||
	       sql_number(run.admin, "SELECT count(*) FROM pg_stat_activity") != count_children())
		poll(NULL, 0, 5);
}

/*
 * Processor time of all backends that have ended, in microseconds: the postmaster waits for each, and
 * gets the time that it took (proc(5): cutime, cstime). The kernel counts it in hundredths of a second.
 */
static double ended_backends_us(void)
{
	unsigned long long user, kernel;
	char path[64], *stat;
	const char *fields;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)run.postmaster);
	stat = read_file(path);
	fields = strrchr(stat, ')'); /* what follows the program's name */
	if (!fields ||
	    sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %llu %llu", &user,
		   &kernel) != 2)
		die("%s is not what it should be: the server must run on this machine", path);
	free(stat);
	return (double)(user + kernel) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

/* What the server counted, which the peer's own connections must have left for. */
static void read_counts(int i, PGconn *conn)
{
	struct result *result = &run.results[i];

	if (sql_number(conn, "%s", peers[i].left) != 0)
		die("%s: not all rows are rescued", peers[i].name);
	result->written = (double)sql_number(conn, "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) "
						   "FROM pg_stat_user_tables") /
			  (double)run.rows;
	result->facts = peers[i].facts
				? (double)sql_number(conn, "%s", peers[i].facts) / (double)run.rows
				: 0;
	if ((result->facts == 1) != (peers[i].kept != KEPT_NOTHING))
		die("%s: keeps %g facts an attempt", peers[i].name, result->facts);
}

/*
 * Those that clients sent. A deferred foreign key is looked at by the commit, which the server counts
 * as statements of their own: pg-boss has one.
 */
static double count_statements(const char *database)
{
	return (double)sql_number(
		run.admin,
		"SELECT coalesce(sum(calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
		"WHERE d.datname = '%s' AND s.toplevel "
		"AND s.query NOT LIKE 'SELECT %% FROM ONLY %% FOR KEY SHARE OF x'",
		database);
}

static void rescue_once(int i, long round)
{
	struct result *result = &run.results[i];
	char *conninfo = test_database_copy(run.databases[i]);
	struct watch *watch = watch_start(run.watching);
	double ended;
	int64_t gap;
	PGconn *conn;

	wait_for_clients(OWN_CLIENTS);
	ended = ended_backends_us();
	result->per_s[round] = (double)run.rows / peers[i].rescue(&peers[i], conninfo);
	result->lock_ms[round] = (double)watch_stop(watch, &gap) / 1000;
	result->wal = (double)(wal_position(run.admin) - run.wal) / (double)run.rows;
	wait_for_clients(OWN_CLIENTS);
	result->server_us[round] = (ended_backends_us() - ended) / (double)run.rows;
	result->statements = count_statements(database_of(conninfo));
	if ((double)gap / 1000 > run.gap_ms)
		run.gap_ms = (double)gap / 1000;
	conn = test_connect(conninfo);
	read_counts(i, conn);
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

/* -- figures ---------------------------------------------------------------------------------- */

/* The name lives as long as the program, as a figure wants it. */
static void peer_figure(const char *peer, const char *what, double value)
{
	char *name;

	if (asprintf(&name, "peer_%s_%s", peer, what) < 0)
		die("out of memory");
	figure(name, value, "", NO_AIM, 0, "");
}

static void keep_figures(void)
{
	double load = 0;

	getloadavg(&load, 1);
	figure("cores", (double)sysconf(_SC_NPROCESSORS_ONLN), "", NO_AIM, 0, "");
	figure("rows", (double)run.rows, "", NO_AIM, 0, "");
	figure("rounds", (double)run.rounds, "", NO_AIM, 0, "");
	figure("load_average", load, "", NO_AIM, 0, "");
	figure("watch_gap_ms", run.gap_ms, "", NO_AIM, 0, "");
	for (int i = 0; i < PEERS; i++) {
		const struct result *result = &run.results[i];

		if (!is_picked(i))
			continue;
		peer_figure(peers[i].name, "rescued_per_s", median(result->per_s, (int)run.rounds));
		peer_figure(peers[i].name, "longest_lock_ms",
			    median(result->lock_ms, (int)run.rounds));
		peer_figure(peers[i].name, "server_us", median(result->server_us, (int)run.rounds));
		peer_figure(peers[i].name, "statements", result->statements);
		peer_figure(peers[i].name, "rows_written", result->written);
		peer_figure(peers[i].name, "wal_bytes", result->wal);
		peer_figure(peers[i].name, "row_per_attempt", peers[i].kept == KEPT_AS_ROW);
	}
}

/* Medians of each round's ratio: what disturbs a round disturbs both sides of it. */
static void keep_ratios(void)
{
	double rates[ROUNDS_MAX], locks[ROUNDS_MAX];

	for (int round = 0; round < run.rounds; round++) {
		double fastest = 0, shortest = 0;

		for (int i = THEIRS; i < PEERS; i++) {
			const struct result *result = &run.results[i];

			if (peers[i].kept == KEPT_AS_ROW && result->per_s[round] > fastest)
				fastest = result->per_s[round];
			if (i == THEIRS || result->lock_ms[round] < shortest)
				shortest = result->lock_ms[round];
		}
		rates[round] = run.results[OURS].per_s[round] / fastest;
		locks[round] = run.results[OURS].lock_ms[round] / shortest;
	}
	figure("sweep_vs_best_with_history", median(rates, (int)run.rounds), "", NO_AIM, 0, "");
	figure("sweep_lock_vs_shortest", median(locks, (int)run.rounds), "", NO_AIM, 0, "");
	printf("\nthe sweep / the fastest other that keeps a row for each attempt: %.2f\n"
	       "its longest lock / the shortest of the others' longest: %.2f\n",
	       median(rates, (int)run.rounds), median(locks, (int)run.rounds));
}

static void print_peers(void)
{
	static const char *const kept[] = { "no", "in the row", "a row" };
	char rate[32], lock[32], server[32], statements[32], written[32], wal[32];

	printf("\n%-42s %-11s %9s %11s %10s %11s %8s %8s\n", "", "an attempt", "rescued", "longest",
	       "server's", "statements", "rows", "WAL");
	printf("%-42s %-11s %9s %11s %10s %11s %8s %8s\n", "", "is kept as", "a second", "lock, ms",
	       "time, us", "for all", "written", "bytes");
	for (int i = 0; i < PEERS; i++) {
		const struct result *result = &run.results[i];

		if (is_picked(i))
			printf("%-42s %-11s %9s %11s %10s %11s %8s %8s\n", peers[i].title,
			       kept[peers[i].kept],
			       number_text(median(result->per_s, (int)run.rounds), rate),
			       number_text(median(result->lock_ms, (int)run.rounds), lock),
			       number_text(median(result->server_us, (int)run.rounds), server),
			       number_text(result->statements, statements),
			       number_text(result->written, written),
			       number_text(result->wal, wal));
	}
	printf("\nmedians of %ld rounds over %ld rows; server's time, written and WAL: for each row\n",
	       run.rounds, run.rows);
}

/* -- options ---------------------------------------------------------------------------------- */

static void print_usage(FILE *file)
{
	fputs("usage: peers [--rows N] [--rounds N] [--only NAME] [FILE]\n"
	      "\n"
	      "Needs a PostgreSQL of its own with pg_stat_statements, and the packages: `make bench-peers`.\n"
	      "\n"
	      "  --rows N     rows of lost workers, and as many held and ended ones (100000)\n"
	      "  --rounds N   1 to 9; the medians count (5)\n"
	      "  --only NAME  one peer\n"
	      "  FILE         where to write the figures as JSON\n"
	      "\n"
	      "peers:\n",
	      file);
	for (int i = 0; i < PEERS; i++)
		fprintf(file, "  %-16s %s\n", peers[i].name, peers[i].title);
}

static void __attribute__((noreturn)) usage_error(const char *what, const char *value)
{
	fprintf(stderr, "peers: %s '%s'\n", what, value);
	print_usage(stderr);
	exit(EX_USAGE);
}

static const char *parse_peer(const char *name)
{
	for (int i = 0; i < PEERS; i++)
		if (strcmp(peers[i].name, name) == 0)
			return name;
	usage_error("no such peer:", name);
}

static void parse_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "rows", required_argument, NULL, 'r' },
		{ "rounds", required_argument, NULL, 'n' },
		{ "only", required_argument, NULL, 'o' },
		{ "help", no_argument, NULL, '?' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	run.rows = 100000;
	run.rounds = 5;
	opterr = 0;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'r')
			run.rows = parse_count("--rows", optarg, 100);
		else if (option == 'n')
			run.rounds = parse_count("--rounds", optarg, 1);
		else if (option == 'o')
			run.only = parse_peer(optarg);
		else if (strcmp(argv[optind - 1], "--help") == 0) {
			print_usage(stdout);
			exit(0);
		} else
			usage_error("unknown option, or one without its value:", argv[optind - 1]);
	}
	if (run.rounds > ROUNDS_MAX) {
		fprintf(stderr, "peers: --rounds takes a number from 1 to %d, not '%ld'\n",
			ROUNDS_MAX, run.rounds);
		exit(EX_USAGE);
	}
	if (argc - optind > 1)
		usage_error("one FILE at most, not also", argv[optind + 1]);
	run.json = argv[optind];
}

/* Before minutes go into loading. */
static void check_needs(void)
{
	char *script = test_program("tests/peers/rescue.js");

	if (access(script, R_OK) != 0)
		die("%s is missing: make bench-peers puts it there, with the packages", script);
	free(script);
	run.admin = test_connect("dbname=postgres");
	sql(run.admin, "CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
	rescue_begins();
	run.watching = test_connect("dbname=postgres");
	run.postmaster = process_parent(PQbackendPID(run.admin));
}

int main(int argc, char **argv)
{
	parse_options(argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	check_needs();
	for (int i = 0; i < PEERS; i++)
		if (is_picked(i))
			make_database(i);
	/* the first is another one each time */
	for (long round = 0; round < run.rounds; round++)
		for (int turn = 0; turn < PEERS; turn++) {
			int i = (int)((turn + round) % PEERS);

			if (!is_picked(i))
				continue;
			rescue_once(i, round);
			progress("round %ld: %s: %.0f a second, longest lock %.1f ms", round + 1,
				 peers[i].name, run.results[i].per_s[round],
				 run.results[i].lock_ms[round]);
		}
	PQfinish(run.watching);
	PQfinish(run.admin);
	print_peers();
	keep_figures();
	if (!run.only)
		keep_ratios();
	if (run.json)
		figures_write(run.json);
	return 0;
}
