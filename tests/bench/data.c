/*
 * Databases full of leases, and numbers.
 *
 * Ids are hashes of a counter, so two runs of the bench work on the same keys, scattered over the
 * whole range as random UUIDs are: the worst case for the indexes. The schema's own constraints look
 * at all of it; its triggers are switched off meanwhile. They cost most of the time, and one of them
 * refuses attempts that are born closed, which is what a history is made of here.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

int64_t clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double *sorted_copy(const double *values, int n)
{
	double *sorted = malloc((size_t)n * sizeof(*sorted));

	if (n < 1 || !sorted)
		die("nothing was measured");
	memcpy(sorted, values, (size_t)n * sizeof(*sorted));
	qsort(sorted, (size_t)n, sizeof(*sorted), by_value);
	return sorted;
}

double median(const double *values, int n)
{
	double *sorted = sorted_copy(values, n);
	double middle = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;

	free(sorted);
	return middle;
}

double percentile(const double *values, int n, double share)
{
	double *sorted = sorted_copy(values, n);
	double value = sorted[(int)(share * (n - 1))];

	free(sorted);
	return value;
}

/* -- databases -------------------------------------------------------------------------------- */

/*
 * What a filling does about the schema's own guards: foreign keys are not looked at, since both sides
 * come from one formula, and the triggers that fire nevertheless are switched off until it is done.
 */
#define FILLING_BEGINS                                                                             \
	"BEGIN; SET LOCAL session_replication_role = replica; "                                    \
	"CREATE TEMP TABLE guards ON COMMIT DROP AS "                                              \
	"SELECT format('ALTER TABLE %%s %%%%s TRIGGER %%I', tgrelid::regclass, tgname) AS alter "  \
	"  FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'A' "                            \
	"   AND tgrelid IN ('lease.runs'::regclass, 'lease.run_attempts'::regclass); "             \
	"DO $$ DECLARE alter text; BEGIN FOR alter IN SELECT g.alter FROM guards g LOOP "          \
	"EXECUTE format(alter, 'DISABLE'); END LOOP; END $$; "
#define FILLING_ENDS                                                                               \
	"; DO $$ DECLARE alter text; BEGIN FOR alter IN SELECT g.alter FROM guards g LOOP "        \
	"EXECUTE format(alter, 'ENABLE ALWAYS'); END LOOP; END $$; COMMIT"

/* SQL for the run id of number i: a hash, … */
static char *random_id(const char *name)
{
	char *id;

	if (asprintf(&id, "md5('%s ' || i)::uuid::text", name) < 0)
		die("out of memory");
	return id;
}

/* … a hash behind the place that i has among n over the whole range, … */
static char *spread_id(long n)
{
	char *id;

	if (asprintf(&id,
		     "(lpad(to_hex(i * (4294967295 / %ld)), 8, '0') || "
		     "substr(md5('closed ' || i), 9))::uuid::text",
		     n) < 0)
		die("out of memory");
	return id;
}

/* … or like a UUID of version 7, which begins with a time. */
static char *ordered_id(const char *time)
{
	char *id;

	if (asprintf(&id,
		     "(lpad(to_hex((extract(epoch FROM %s) * 1000)::int8), 12, '0') || '7' || "
		     "substr(md5(i::text), 1, 19))::uuid::text",
		     time) < 0)
		die("out of memory");
	return id;
}

/*
 * Runs that lost a worker once and were completed by their second attempt, one every 10 ms until
 * yesterday. They come in the order of their ids, so that the indexes grow page after page; random ids
 * are spread over the whole range.
 */
static char *history_text(const struct filling *filling)
{
	long runs = filling->closed / 2;
	char *id, *text;

	if (runs == 0)
		return strdup("");
	id = filling->ids == RANDOM_IDS ? spread_id(runs) : ordered_id("t");
	if (asprintf(
		    &text,
		    FILLING_BEGINS
		    "WITH made AS ("
		    "    INSERT INTO lease.runs "
		    "           (run_id, status, state_version, created_at, updated_at, finished_at) "
		    "    SELECT %1$s, 'completed', 5, t, t, t FROM generate_series(1::int8, %2$ld) i, "
		    "   LATERAL (SELECT now() - interval '1 day' - (%2$ld - i) * interval '10 ms' AS t) s "
		    "    RETURNING run_id, created_at) "
		    "INSERT INTO lease.run_attempts (run_id, attempt_no, owner, started_at, heartbeat_at, "
		    "       lease_expires_at, finished_at, outcome, error_code) "
		    "SELECT m.run_id, a.no, 'worker-7:5b0c1f8e-6a3d-4f0e-9d55-0d1c5a7b9e42', m.created_at + a.began, "
		    "       m.created_at + a.began, m.created_at + a.lease, m.created_at + a.ended, a.outcome, a.code "
		    "  FROM made m, (VALUES (1, interval '0 s', interval '30 s', interval '30.01 s', "
		    "                        'lease_expired', 'worker_lease_expired'), "
		    "                       (2, '40 s', '70 s', '41 s', 'completed', NULL)) "
		    "          AS a (no, began, lease, ended, outcome, code)" FILLING_ENDS,
		    id, runs) < 0)
		die("out of memory");
	free(id);
	return text;
}

/* One statement, or several, on each of the connections at the same time. */
static void send_all(const struct filling *fillings, int n,
		     char *(*text_of)(const struct filling *))
{
	for (int i = 0; i < n; i++) {
		char *text = text_of(&fillings[i]);

		if (!PQsendQuery(fillings[i].conn, text))
			die("%s", PQerrorMessage(fillings[i].conn));
		free(text);
	}
	for (int i = 0; i < n; i++)
		for (PGresult *result; (result = PQgetResult(fillings[i].conn));) {
			if (PQresultStatus(result) == PGRES_FATAL_ERROR)
				die("filling a database: %s", PQresultErrorMessage(result));
			PQclear(result);
		}
}

/* `id` is SQL for the run id of number i, in both tables. */
static char *open_text(const char *id, long n, const char *ttl)
{
	char *text;

	if (asprintf(
		    &text,
		    FILLING_BEGINS
		    "INSERT INTO lease.runs (run_id, status, state_version) "
		    "SELECT %1$s, 'running', 2 FROM generate_series(1, %2$ld) i; "
		    "INSERT INTO lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		    "SELECT %1$s, 1, 'worker-' || i %% 64 || ':' || md5('owner ' || i)::uuid, "
		    "       clock_timestamp() + %3$s FROM generate_series(1, %2$ld) i" FILLING_ENDS,
		    id, n, ttl) < 0)
		die("out of memory");
	return text;
}

void open_leases(PGconn *conn, const char *name, long n, const char *ttl)
{
	char *id = random_id(name), *text = open_text(id, n, ttl);

	sql(conn, "%s", text);
	free(text);
	free(id);
}

/* Longer than any run of the bench. */
#define TTL_OF_FILLING "interval '1 day'"

static char *filling_open_text(const struct filling *filling)
{
	char *time, *id, *text;

	if (asprintf(&time, "'%s'::timestamptz + i * interval '1 ms'",
		     filling->now ? filling->now : "now") < 0)
		die("out of memory");
	id = filling->ids == RANDOM_IDS ? random_id("open") : ordered_id(time);
	text = open_text(id, filling->open, TTL_OF_FILLING);
	free(id);
	free(time);
	return text;
}

enum { PROCESSORS = 2 };

void fill_databases(const struct filling *fillings, int n)
{
	/* neither commits nor new segments of the log are to wait for the disk */
	for (int i = 0; i < n; i++)
		sql(fillings[i].conn, "SET synchronous_commit = off; SET wal_init_zero = off");
	for (int i = 0; i < n; i += PROCESSORS)
		send_all(fillings + i, n - i < PROCESSORS ? n - i : PROCESSORS, history_text);
	send_all(fillings, n, filling_open_text);
}

void settle(PGconn *conn)
{
	sql(conn, "VACUUM (FREEZE, ANALYZE) lease.runs, lease.run_attempts");
	sql(conn, "CHECKPOINT");
	sync(); /* what the kernel would write out while somebody waits for a commit */
}

void need_database(struct bench *bench)
{
	if (bench->conn)
		return;
	progress("loading %ld closed attempts and %ld open leases", bench->history, bench->open);
	bench->conninfo = test_database_create();
	bench->conn = test_connect(bench->conninfo);
	fill_databases(&(struct filling){ .conn = bench->conn,
					  .ids = RANDOM_IDS,
					  .closed = bench->history,
					  .open = bench->open },
		       1);
	settle(bench->conn);
}

struct bench *need_large(struct bench *bench)
{
	struct bench *large = bench->large;

	if (!large) {
		large = bench->large = calloc(1, sizeof(*large));
		if (!large)
			die("out of memory");
		large->quick = bench->quick;
		large->open = bench->storm;
	}
	need_database(large);
	return large;
}

/* The checkpoint renames the segments that are done with, up to min_wal_size: Makefile. */
void fill_log(PGconn *conn, int segments)
{
	for (int i = 0; i < segments; i++)
		sql(conn, "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()");
	sql(conn, "CHECKPOINT");
	sync();
}

void drop_database(PGconn *conn, char *conninfo)
{
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);
}

void drop_large(struct bench *bench)
{
	drop_database(bench->large->conn, bench->large->conninfo);
	free(bench->large);
	bench->large = NULL;
}

struct lease_token *read_tokens(PGconn *conn, size_t *ret_n)
{
	PGresult *result = PQexec(conn, "SELECT run_id, attempt_no, owner FROM lease.run_attempts "
					"WHERE finished_at IS NULL ORDER BY md5(run_id)");
	size_t n = (size_t)PQntuples(result);
	struct lease_token *tokens = calloc(n + 1, sizeof(*tokens));

	if (PQresultStatus(result) != PGRES_TUPLES_OK || !tokens)
		die("reading the tokens: %s", PQerrorMessage(conn));
	for (size_t i = 0; i < n; i++) {
		snprintf(tokens[i].run_id, sizeof(tokens[i].run_id), "%s",
			 PQgetvalue(result, (int)i, 0));
		tokens[i].attempt_no = atoi(PQgetvalue(result, (int)i, 1));
		snprintf(tokens[i].owner, sizeof(tokens[i].owner), "%s",
			 PQgetvalue(result, (int)i, 2));
	}
	PQclear(result);
	*ret_n = n;
	return tokens;
}

long long wal_position(PGconn *conn)
{
	return sql_number(conn, "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8");
}

void wait_alone(PGconn *conn)
{
	wait_sql(
		conn,
		"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
		"AND pid <> pg_backend_pid() AND backend_type = 'client backend')");
}

double server_us(PGconn *conn)
{
	char path[64], text[64] = "";
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", PQbackendPID(conn));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (length <= 0)
		die("%s cannot be read: the server must run on this machine", path);
	close(fd);
	return strtod(text, NULL) / 1000;
}
