/*
 * facts.c - reading: histories, where a database stands, whether it is one that we can work on.
 * Never writes.
 */
#include "facts.h"

#include <stdlib.h>
#include <string.h>

#include "sql.h"
#include "verbs.h"

/* Reading waits as long as the caller's server lets it, within this. */
#define READ_TIMEOUT (60 * LEASE_SECOND)

/* -- the check -------------------------------------------------------------------------------- */

enum { CHECK_SERVER, CHECK_SCHEMA, CHECK_END };

static int check_next(void *self, struct batch *batch, struct lease_error *reterr)
{
	struct database_check *check = self;

	(void)reterr;
	if (check->step == CHECK_END)
		return 0;
	batch_add(batch,
		  check->step == CHECK_SERVER ? lease_sql_check_database : lease_sql_check_schema);
	return 1;
}

static int check_server(const PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "bbb", reterr);

	if (r < 0)
		return r;
	if (PQntuples(result) != 1)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "expected one row");
	if (read_bool(result, 0, 0))
		return lease_error_set(reterr, LEASE_E_READ_ONLY,
				       "the server is a standby in recovery: connect to the "
				       "primary");
	if (read_bool(result, 0, 1))
		return lease_error_set(reterr, LEASE_E_READ_ONLY,
				       "the server is read-only (default_transaction_read_only)");
	if (!read_bool(result, 0, 2))
		return lease_error_set(reterr, LEASE_E_SCHEMA,
				       "schema lease is missing in this database: run "
				       "'leasectl migrate'");
	return 0;
}

static int check_schema(const PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "i", reterr);
	int64_t version;

	if (r < 0)
		return r;
	version = PQntuples(result) == 1 ? read_int(result, 0, 0) : 0;
	if (version < LEASE_SCHEMA_VERSION)
		return lease_error_set(reterr, LEASE_E_SCHEMA,
				       "schema lease has version %d, this program needs %d: run "
				       "'leasectl migrate'",
				       (int)version, LEASE_SCHEMA_VERSION);
	if (version > LEASE_SCHEMA_VERSION)
		return lease_error_set(reterr, LEASE_E_SCHEMA,
				       "schema lease has version %d, this program knows only %d: "
				       "install a newer lease-reconciler",
				       (int)version, LEASE_SCHEMA_VERSION);
	return 0;
}

static int check_take(void *self, int index, PGresult *result, struct lease_error *reterr)
{
	struct database_check *check = self;
	int r = check->step == CHECK_SERVER ? check_server(result, reterr)
					    : check_schema(result, reterr);

	(void)index;
	check->step++;
	PQclear(result);
	return r;
}

struct operation database_check_operation(struct database_check *check)
{
	check->step = CHECK_SERVER;
	return (struct operation){ check_next, check_take, check, NULL };
}

int lease_check_database(PGconn *conn, int64_t timeout, struct lease_error *reterr)
{
	struct database_check check;

	return pump_run(conn, database_check_operation(&check), effective_timeout(timeout), reterr);
}

/* -- one batch that only reads, in one snapshot ------------------------------------------------- */

static void fill_reading(void *self, struct batch *batch)
{
	const struct reading *reading = self;

	batch_add(batch, lease_sql_begin_read);
	batch_add(batch, lease_sql_settings_scan);
	bind_milliseconds(batch, READ_TIMEOUT);
	bind_milliseconds(batch, READ_TIMEOUT);
	reading->fill(reading, batch);
	batch_add(batch, "COMMIT");
}

static int take_reading(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct reading *reading = self;

	/* the reading's own statements come after BEGIN and the settings */
	if (PQresultStatus(result) != PGRES_TUPLES_OK || index < 2)
		return 0;
	return reading->take(reading, index - 2, result, reterr);
}

int run_reading(PGconn *conn, struct reading *reading, struct lease_error *reterr)
{
	return exchange_run(conn, (struct exchange){ fill_reading, take_reading, reading },
			    READ_TIMEOUT, reterr);
}

/* -- histories -------------------------------------------------------------------------------- */

int copy_text(const char *from, char **ret, struct lease_error *reterr)
{
	*ret = from ? strdup(from) : NULL;
	return from && !*ret ? lease_error_set(reterr, LEASE_E_MEMORY, "out of memory") : 0;
}

void lease_history_free(struct lease_history *history)
{
	if (!history)
		return;
	for (size_t i = 0; i < history->n_attempts; i++) {
		free(history->attempts[i].error_code);
		free(history->attempts[i].error_message);
		free(history->attempts[i].trace_id);
	}
	free(history->attempts);
	free(history->run.terminal_error_code);
	free(history->run.terminal_error_message);
	free(history);
}

static int take_run(struct reading *reading, const PGresult *result, struct lease_error *reterr)
{
	struct lease_history *history = reading->ret;
	struct lease_run *run = &history->run;
	int r = read_form(result, "sttllsssssstt", reterr);
	int status;

	if (r < 0)
		return r;
	if (PQntuples(result) == 0) {
		reading->refusal = LEASE_NOT_FOUND;
		return 0;
	}
	status = lease_run_status_parse(read_text(result, 0, 2));
	if (status < 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "unknown status");
	copy_id(run->run_id, reading->run_id);
	copy_id(run->tenant_id, read_text(result, 0, 1));
	history->now = read_time(result, 0, 0);
	run->status = (enum lease_run_status)status;
	run->state_version = read_int(result, 0, 3);
	run->plan_version = read_int(result, 0, 4);
	run->not_before = read_time(result, 0, 5);
	run->deadline_at = read_time(result, 0, 6);
	run->cancel_requested_at = read_time(result, 0, 7);
	run->created_at = read_time(result, 0, 8);
	run->updated_at = read_time(result, 0, 9);
	run->finished_at = read_time(result, 0, 10);
	r = copy_text(read_text(result, 0, 11), &run->terminal_error_code, reterr);
	return r < 0 ? r
		     : copy_text(read_text(result, 0, 12), &run->terminal_error_message, reterr);
}

static int take_attempt(struct lease_attempt *attempt, const PGresult *result, int row,
			struct lease_error *reterr)
{
	const char *outcome = read_text(result, row, 8);
	int value = outcome ? lease_outcome_parse(outcome) : LEASE_OUTCOME_NONE;
	int r;

	if (value < 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "unknown outcome");
	attempt->attempt_no = (int32_t)read_int(result, row, 0);
	copy_id(attempt->owner, read_text(result, row, 1));
	attempt->started_at = read_time(result, row, 2);
	attempt->heartbeat_at = read_time(result, row, 3);
	attempt->lease_expires_at = read_time(result, row, 4);
	attempt->deadline_at = read_time(result, row, 5);
	attempt->cancel_requested_at = read_time(result, row, 6);
	attempt->finished_at = read_time(result, row, 7);
	attempt->outcome = (enum lease_outcome)value;
	r = copy_text(read_text(result, row, 9), &attempt->error_code, reterr);
	if (r == 0)
		r = copy_text(read_text(result, row, 10), &attempt->error_message, reterr);
	if (r == 0)
		r = copy_text(read_text(result, row, 11), &attempt->trace_id, reterr);
	return r;
}

static int take_attempts(struct lease_history *history, const PGresult *result,
			 struct lease_error *reterr)
{
	int n = PQntuples(result);
	int r = read_form(result, "itsssssstttt", reterr);

	if (r < 0 || n == 0)
		return r;
	history->attempts = calloc((size_t)n, sizeof(*history->attempts));
	if (!history->attempts)
		return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	history->n_attempts = (size_t)n;
	for (int row = 0; r == 0 && row < n; row++)
		r = take_attempt(&history->attempts[row], result, row, reterr);
	return r;
}

int take_history(struct reading *reading, int index, const PGresult *result,
		 struct lease_error *reterr)
{
	return index == 0 ? take_run(reading, result, reterr)
			  : take_attempts(reading->ret, result, reterr);
}

void fill_history(const struct reading *reading, struct batch *batch)
{
	batch_add(batch, lease_sql_read_run);
	bind_text(batch, reading->run_id);
	batch_add(batch, lease_sql_read_attempts);
	bind_text(batch, reading->run_id);
}

int lease_list_attempts(PGconn *conn, const char *run_id, struct lease_history **ret,
			struct lease_error *reterr)
{
	struct lease_history *history;
	struct reading reading = { .fill = fill_history, .take = take_history, .run_id = run_id };
	int r = check_id("run_id", run_id, reterr);

	if (r < 0)
		return r;
	reading.ret = history = calloc(1, sizeof(*history));
	if (!history)
		return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	r = run_reading(conn, &reading, reterr);
	if (r == 0)
		r = reading.refusal;
	if (r == 0)
		*ret = history;
	else
		lease_history_free(history);
	return r;
}

/* -- releases without a break ------------------------------------------------------------------- */

struct releases {
	const char *run_id;
	int limit, n;
};

static void fill_releases(void *self, struct batch *batch)
{
	const struct releases *releases = self;

	batch_add(batch, lease_sql_count_releases);
	bind_text(batch, releases->run_id);
	bind_text(batch, lease_outcome_name(LEASE_OUTCOME_RETRY_RELEASED));
	bind_int(batch, releases->limit);
}

static int take_releases(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct releases *releases = self;
	int r = read_form(result, "i", reterr);

	(void)index;
	if (r < 0)
		return r;
	if (PQntuples(result) != 1)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "expected one row");
	releases->n = (int)read_int(result, 0, 0);
	return 0;
}

int lease_count_releases(PGconn *conn, const char *run_id, int limit, int64_t timeout, int *ret,
			 struct lease_error *reterr)
{
	struct releases releases = { .run_id = run_id, .limit = limit };
	int r = check_id("run_id", run_id, reterr);

	if (r == 0 && (limit < 1 || limit > 1000))
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "limit must be from 1 to 1000, it is %d", limit);
	if (r == 0)
		r = exchange_run(conn, (struct exchange){ fill_releases, take_releases, &releases },
				 effective_timeout(timeout), reterr);
	if (r == 0)
		*ret = releases.n;
	return r;
}

/* -- where a database stands ------------------------------------------------------------------- */

static void fill_status(const struct reading *reading, struct batch *batch)
{
	(void)reading;
	batch_add(batch, lease_sql_read_status);
}

static int take_status(struct reading *reading, int index, const PGresult *result,
		       struct lease_error *reterr)
{
	int r = read_form(result, "sllllllssss", reterr);

	(void)index;
	if (r < 0)
		return r;
	if (PQntuples(result) != 1)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "expected one row");
	*(struct lease_status *)reading->ret = (struct lease_status){
		.now = read_time(result, 0, 0),
		.runs_pending = read_int(result, 0, 1),
		.runs_running = read_int(result, 0, 2),
		.runs_waiting = read_int(result, 0, 3),
		.attempts_open = read_int(result, 0, 4),
		.attempts_expired = read_int(result, 0, 5),
		.attempts_pardoned = read_int(result, 0, 6),
		.oldest_expired_at = read_time(result, 0, 7),
		.next_end_at = read_time(result, 0, 8),
		.beat_at = read_time(result, 0, 9),
		.amnesty_until = read_time(result, 0, 10),
	};
	return 0;
}

int lease_read_status(PGconn *conn, struct lease_status *ret, struct lease_error *reterr)
{
	struct lease_status status = { 0 };
	struct reading reading = { .fill = fill_status, .take = take_status, .ret = &status };
	int r = run_reading(conn, &reading, reterr);

	if (r == 0)
		*ret = status;
	return r;
}
