/*
 * Databases full of leases, and numbers.
 *
 * Ids are hashes of a counter, so two runs of the bench work on the same keys, scattered over the
 * whole range as random UUIDs are: the worst case for the indexes. The schema's own constraints look
 * at all of it but for one trigger: attempts that are born closed are what a history is made of
 * here, and what lease.attempt_born_open exists to refuse.
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

/* `n` runs that were completed by their first attempt, a day ago. */
static void make_history(PGconn *conn, long n)
{
	/* foreign keys are not looked at either, since both sides come from one formula */
	sql(conn, "SET session_replication_role = replica");
	sql(conn, "ALTER TABLE lease.run_attempts DISABLE TRIGGER attempt_born_open");
	sql(conn,
	    "INSERT INTO lease.runs (run_id, status, state_version, created_at, updated_at, finished_at) "
	    "SELECT md5('closed ' || i)::uuid::text, 'completed', 3, t, t, t "
	    "  FROM generate_series(1, %ld) i, (SELECT clock_timestamp() - interval '1 day' AS t) s",
	    n);
	sql(conn,
	    "INSERT INTO lease.run_attempts (run_id, attempt_no, owner, started_at, heartbeat_at, "
	    "       lease_expires_at, finished_at, outcome) "
	    "SELECT md5('closed ' || i)::uuid::text, 1, 'worker-' || i %% 64 || ':' || md5('owner ' || i)::uuid, "
	    "       t, t, t + interval '30 s', t + interval '1 s', 'completed' "
	    "  FROM generate_series(1, %ld) i, (SELECT clock_timestamp() - interval '1 day' AS t) s",
	    n);
	sql(conn, "ALTER TABLE lease.run_attempts ENABLE ALWAYS TRIGGER attempt_born_open");
	sql(conn, "RESET session_replication_role");
}

void open_leases(PGconn *conn, const char *name, long n, const char *ttl)
{
	sql(conn,
	    "INSERT INTO lease.runs (run_id, status, state_version) "
	    "SELECT md5('%s ' || i)::uuid::text, 'running', 2 FROM generate_series(1, %ld) i",
	    name, n);
	sql(conn,
	    "INSERT INTO lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "SELECT md5('%s ' || i)::uuid::text, 1, 'worker-' || i %% 64 || ':' || md5('owner ' || i)::uuid, "
	    "       clock_timestamp() + %s FROM generate_series(1, %ld) i",
	    name, ttl, n);
}

void need_database(struct bench *bench)
{
	if (bench->conn)
		return;
	progress("loading %ld closed attempts and %ld open leases", bench->history, bench->open);
	bench->conninfo = test_database_create();
	bench->conn = test_connect(bench->conninfo);
	sql(bench->conn, "SET synchronous_commit = off");
	make_history(bench->conn, bench->history);
	/* longer than any run of the bench */
	open_leases(bench->conn, "open", bench->open, "interval '1 day'");
	/* what autovacuum would come for in mid-measurement, and dirty pages of the load */
	sql(bench->conn, "VACUUM (FREEZE, ANALYZE) lease.runs, lease.run_attempts");
	sql(bench->conn, "CHECKPOINT");
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
