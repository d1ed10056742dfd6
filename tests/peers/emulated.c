/*
 * Shapes of how others rescue, written anew from what they publish: the statements that go to the
 * server, in the same order and over as many rows, without the language and the library around
 * them. So each is at least as fast here as where it comes from. docs/bench/peers.md says what is
 * left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "peers.h"

char *make_emulated(const struct peer *peer, long rows)
{
	char *conninfo = test_database_create_empty();

	load_rows(peer, conninfo, rows);
	return conninfo;
}

static double seconds_since(int64_t began)
{
	return (double)(clock_us() - began) / 1e6;
}

static PGresult *prepared(PGconn *conn, const char *name, int n, const char *const *values)
{
	PGresult *result = PQexecPrepared(conn, name, n, values, NULL, NULL, 0);
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s: %s", name, PQerrorMessage(conn));
	return result;
}

static void prepare(PGconn *conn, const char *name, const char *statement)
{
	PGresult *result = PQprepare(conn, name, statement, 0, NULL);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		die("%s: %s", name, PQerrorMessage(conn));
	PQclear(result);
}

/* The seconds that these statements take, one after the other; a NULL ends them. */
static double time_statements(const char *conninfo, const char *const *statements)
{
	PGconn *conn = test_connect(conninfo);
	double seconds;
	int64_t began;

	rescue_begins();
	began = clock_us();
	for (; *statements; statements++)
		sql(conn, "%s", *statements);
	seconds = seconds_since(began);
	PQfinish(conn);
	return seconds;
}

/* -- Oban: two updates of all the rows, in one transaction ------------------------------------ */

double rescue_as_oban(const struct peer *peer, const char *conninfo)
{
	static const char *const statements[] = {
		"BEGIN",
		"UPDATE oban.jobs SET state = 'available' WHERE state = 'executing' "
		"AND attempted_at < timezone('UTC', now()) - interval '1 hour' "
		"AND attempt < max_attempts",
		"UPDATE oban.jobs SET state = 'discarded', discarded_at = timezone('UTC', now()) "
		"WHERE state = 'executing' "
		"AND attempted_at < timezone('UTC', now()) - interval '1 hour' "
		"AND attempt >= max_attempts",
		"COMMIT",
		NULL,
	};

	(void)peer;
	return time_statements(conninfo, statements);
}

/* -- River: read a batch of jobs, decide in the client, update them by their ids --------------- */

/* The arrays of one batch's update, as text. */
struct batch {
	char *ids, *errors, *retry_at, *states;
};

static void add_job(FILE *const arrays[4], bool first, const char *id, const char *attempt,
		    const char *now)
{
	const char *comma = first ? "" : ",";

	fprintf(arrays[0], "%s%s", comma, id);
	fprintf(arrays[1],
		"%s\"{\\\"at\\\":\\\"%s\\\",\\\"attempt\\\":%s,"
		"\\\"error\\\":\\\"worker lost\\\",\\\"trace\\\":\\\"\\\"}\"",
		comma, now, attempt);
	fprintf(arrays[2], "%s\"%s\"", comma, now);
	fprintf(arrays[3], "%sretryable", comma);
}

static void make_batch(struct batch *batch, const PGresult *jobs)
{
	char **texts[4] = { &batch->ids, &batch->errors, &batch->retry_at, &batch->states };
	int id = PQfnumber(jobs, "id"), attempt = PQfnumber(jobs, "attempt");
	FILE *arrays[4];
	size_t size;
	char now[32];
	time_t at = time(NULL);
	struct tm fields;

	strftime(now, sizeof(now), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&at, &fields));
	for (int i = 0; i < 4; i++) {
		arrays[i] = open_memstream(texts[i], &size);
		if (!arrays[i])
			die("out of memory");
		fputc('{', arrays[i]);
	}
	for (int i = 0; i < PQntuples(jobs); i++)
		add_job(arrays, i == 0, PQgetvalue(jobs, i, id), PQgetvalue(jobs, i, attempt), now);
	for (int i = 0; i < 4; i++) {
		fputc('}', arrays[i]);
		if (fclose(arrays[i]) != 0)
			die("out of memory");
	}
}

static int rescue_batch(PGconn *conn, const char *limit)
{
	PGresult *jobs = prepared(conn, "stuck", 1, &limit);
	int n = PQntuples(jobs);
	struct batch batch;

	if (n > 0) {
		make_batch(&batch, jobs);
		PQclear(prepared(conn, "rescue", 4,
				 ((const char *const[]){ batch.ids, batch.errors, batch.retry_at,
							 batch.states })));
		free(batch.ids);
		free(batch.errors);
		free(batch.retry_at);
		free(batch.states);
	}
	PQclear(jobs);
	return n;
}

double rescue_as_river(const struct peer *peer, const char *conninfo)
{
	PGconn *conn = test_connect(conninfo);
	char limit[24];
	double seconds;
	int64_t began;

	snprintf(limit, sizeof(limit), "%ld", peer->batch);
	prepare(conn, "stuck",
		"SELECT * FROM river.job WHERE state = 'running' "
		"AND attempted_at < now() - interval '1 hour' ORDER BY id LIMIT $1::bigint");
	prepare(conn, "rescue",
		"UPDATE river.job j SET errors = array_append(j.errors, r.error), "
		"       finalized_at = NULL, scheduled_at = r.retry_at, state = r.state::river.state "
		"  FROM unnest($1::bigint[], $2::jsonb[], $3::timestamptz[], $4::text[]) "
		"       AS r (id, error, retry_at, state) WHERE j.id = r.id");
	rescue_begins();
	began = clock_us();
	while (rescue_batch(conn, limit) == peer->batch)
		;
	seconds = seconds_since(began);
	PQfinish(conn);
	return seconds;
}

/* -- absurd: one call of a function that goes row by row --------------------------------------- */

double rescue_as_absurd(const struct peer *peer, const char *conninfo)
{
	(void)peer;
	return time_statements(conninfo,
			       (const char *const[]){ "SELECT absurd.fail_lost('work')", NULL });
}

/* -- an ORM: lock all, then one by one --------------------------------------------------------- */

const char *const orm_statements[ORM_STATEMENTS] = {
	[ORM_LOST] =
		"SELECT * FROM orm.runs WHERE status = 'running' AND lease_expires_at <= now() "
		"ORDER BY run_id FOR UPDATE SKIP LOCKED",
	[ORM_CLOSE] = "UPDATE orm.attempts SET finished_at = clock_timestamp(), "
		      "outcome = 'lease_expired', error_code = 'worker_lease_expired' "
		      "WHERE run_id = $1 AND finished_at IS NULL",
	[ORM_ATTEMPT] = "SELECT * FROM orm.attempts WHERE run_id = $1 "
			"ORDER BY attempt_no DESC LIMIT 1",
	[ORM_MOVE] = "UPDATE orm.runs SET status = 'pending', owner = NULL, "
		     "lease_expires_at = NULL, version = version + 1, "
		     "updated_at = clock_timestamp() WHERE run_id = $1",
};

static const char *const orm_names[ORM_STATEMENTS] = { "lost", "close", "attempt", "move" };

static void reconcile_one(PGconn *conn, const char *run_id)
{
	PGresult *attempt;

	PQclear(prepared(conn, orm_names[ORM_CLOSE], 1, &run_id));
	attempt = prepared(conn, orm_names[ORM_ATTEMPT], 1, &run_id);
	if (PQntuples(attempt) != 1)
		die("the run %s has no attempt", run_id);
	PQclear(attempt);
	PQclear(prepared(conn, orm_names[ORM_MOVE], 1, &run_id));
}

double rescue_as_orm(const struct peer *peer, const char *conninfo)
{
	PGconn *conn = test_connect(conninfo);
	PGresult *lost;
	double seconds;
	int64_t began;

	(void)peer;
	for (int i = 0; i < ORM_STATEMENTS; i++)
		prepare(conn, orm_names[i], orm_statements[i]);
	rescue_begins();
	began = clock_us();
	sql(conn, "BEGIN");
	lost = prepared(conn, orm_names[ORM_LOST], 0, NULL);
	for (int i = 0; i < PQntuples(lost); i++)
		reconcile_one(conn, PQgetvalue(lost, i, 0));
	sql(conn, "COMMIT");
	seconds = seconds_since(began);
	PQclear(lost);
	PQfinish(conn);
	return seconds;
}
