/*
 * pipeline.c - see pipeline.h. All traffic with the server goes through this file.
 *
 * libpq's pipeline mode: manual, "34.5. Pipeline Mode". Every statement is sent with parameters,
 * and unnamed but where prepared.h allows a name: transaction poolers that know no prepared statements
 * see none.
 */
#include "pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "prepared.h"

/* -- batches ---------------------------------------------------------------------------------- */

void batch_add(struct batch *batch, const char *sql)
{
	struct statement *statement;

	if (batch->n == BATCH_STATEMENTS) {
		batch->no_memory = true;
		return;
	}
	statement = &batch->statements[batch->n++];
	*statement = (struct statement){ .sql = sql };
}

void batch_add_often(struct batch *batch, const char *sql)
{
	batch_add(batch, sql);
	if (!batch->no_memory)
		batch->statements[batch->n - 1].often = true;
}

void batch_answer_so_far(struct batch *batch)
{
	batch->answered = batch->n;
}

/* The slot of the next parameter, or NULL when there is no room (a bug) or no statement. */
static int next_parameter(struct batch *batch, struct statement **ret)
{
	if (batch->no_memory || batch->n == 0 ||
	    batch->statements[batch->n - 1].n == STATEMENT_PARAMETERS) {
		batch->no_memory = true;
		return -1;
	}
	*ret = &batch->statements[batch->n - 1];
	return (*ret)->n++;
}

void bind_text(struct batch *batch, const char *value)
{
	struct statement *statement;
	int i = next_parameter(batch, &statement);

	if (i >= 0)
		statement->values[i] = value;
}

/* `value` is freed with the batch; NULL means that there was no memory for it. */
static void bind_owned(struct batch *batch, char *value)
{
	struct statement *statement;
	int i = next_parameter(batch, &statement);

	if (i < 0 || !value) {
		batch->no_memory = true;
		free(value);
		return;
	}
	statement->values[i] = statement->owned[i] = value;
}

void bind_int(struct batch *batch, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, value);
	bind_owned(batch, strdup(text));
}

void bind_milliseconds(struct batch *batch, int64_t microseconds)
{
	int64_t milliseconds = microseconds / 1000 + (microseconds % 1000 > 0);

	/* the server's settings are 32 bits wide, and 0 would mean no timeout at all */
	bind_int(batch, milliseconds < 1 ? 1 : milliseconds > INT32_MAX ? INT32_MAX : milliseconds);
}

void bind_settings(struct batch *batch, const struct settings *settings)
{
	bind_milliseconds(batch, settings->statement_timeout);
	bind_milliseconds(batch, settings->lock_timeout);
	bind_text(batch, settings->notify);
	bind_text(batch, settings->hash_joins ? "on" : "off");
}

void batch_done(struct batch *batch)
{
	for (int i = 0; i < batch->n; i++)
		for (int k = 0; k < batch->statements[i].n; k++)
			free(batch->statements[i].owned[k]);
	batch->n = 0;
	batch->answered = 0;
	batch->commits = false;
	batch->no_memory = false;
}

/* -- arrays ----------------------------------------------------------------------------------- */

static void array_append(struct array *array, const char *text, size_t length)
{
	if (array->no_memory)
		return;
	if (array->length + length + 1 > array->size) {
		size_t size = (array->length + length + 1) * 2;
		char *grown = realloc(array->text, size < 256 ? 256 : size);

		if (!grown) {
			array->no_memory = true;
			return;
		}
		array->text = grown;
		array->size = size < 256 ? 256 : size;
	}
	memcpy(array->text + array->length, text, length);
	array->length += length;
	array->text[array->length] = '\0';
}

static void array_next(struct array *array)
{
	array_append(array, array->length == 0 ? "{" : ",", 1);
}

/* Always quoted; within quotes only these two characters mean something (manual, 8.15.6). */
void array_add_text(struct array *array, const char *value)
{
	array_next(array);
	if (!value) {
		array_append(array, "NULL", 4);
		return;
	}
	array_append(array, "\"", 1);
	while (*value) {
		size_t plain = strcspn(value, "\"\\");

		array_append(array, value, plain);
		value += plain;
		if (*value) {
			array_append(array, "\\", 1);
			array_append(array, value++, 1);
		}
	}
	array_append(array, "\"", 1);
}

void array_add_int(struct array *array, int64_t value)
{
	char text[24];
	int length = snprintf(text, sizeof(text), "%" PRId64, value);

	array_next(array);
	array_append(array, text, (size_t)length);
}

void array_add_bool(struct array *array, bool value)
{
	array_next(array);
	array_append(array, value ? "t" : "f", 1);
}

void bind_array(struct batch *batch, struct array *array)
{
	array_append(array, array->length == 0 ? "{}" : "}", array->length == 0 ? 2 : 1);
	if (array->no_memory) {
		free(array->text);
		array->text = NULL;
	}
	bind_owned(batch, array->text);
	*array = (struct array){ 0 };
}

/* -- the pump --------------------------------------------------------------------------------- */

void pump_start(struct pump *pump, PGconn *conn, struct operation operation)
{
	pump->conn = conn;
	pump->operation = operation;
	pump->state = PUMP_NEXT;
	pump->rolling_back = false;
	pump->stale = pump->is_second_try = false;
	pump->failed_statement = -1;
	pump->error = (struct lease_error){ 0 };
}

bool pump_is_idle(const struct pump *pump)
{
	return pump->state == PUMP_IDLE;
}

void pump_abandon(struct pump *pump)
{
	batch_done(&pump->batch);
	pump->state = PUMP_IDLE;
}

static void remember_error(struct pump *pump, const struct lease_error *error, int statement)
{
	if (pump->error.code)
		return;
	pump->error = *error;
	pump->failed_statement = statement;
}

/* The connection is of no use any more: ends the operation with an error at once. */
static int break_off(struct pump *pump, struct lease_error *reterr)
{
	struct lease_error error;

	lease_error_from_connection(&error, pump->conn);
	remember_error(pump, &error, -1);
	/* a server that says goodbye with an error message still leaves a commit in doubt */
	pump->error.outcome_unknown = pump->batch.commits;
	pump_abandon(pump);
	if (reterr)
		*reterr = pump->error;
	return pump->error.code;
}

static int finish(struct pump *pump, struct lease_error *reterr)
{
	pump_abandon(pump);
	if (PQpipelineStatus(pump->conn) != PQ_PIPELINE_OFF && !PQexitPipelineMode(pump->conn))
		return break_off(pump, reterr);
	if (!pump->error.code)
		return 0;
	if (reterr)
		*reterr = pump->error;
	return pump->error.code;
}

/* Fills the next batch: the operation's, or a rollback after an error. 0: there is none. */
static int fill(struct pump *pump)
{
	struct lease_error error;
	int r;

	batch_done(&pump->batch);
	pump->due = pump->received = 0;
	if (!pump->error.code) {
		r = pump->operation.next(pump->operation.self, &pump->batch, &error);
		if (r == 0)
			return 0;
		if (r > 0 && !pump->batch.no_memory)
			return 1;
		if (r > 0)
			lease_error_set(&error, LEASE_E_MEMORY, "out of memory");
		remember_error(pump, &error, -1);
		batch_done(&pump->batch);
	}
	if (pump->rolling_back || PQtransactionStatus(pump->conn) == PQTRANS_IDLE)
		return 0;
	pump->rolling_back = true;
	batch_add(&pump->batch, "ROLLBACK");
	return 1;
}

/*
 * Nothing was done, for want of a prepared statement: does it again without any, since from now on
 * nothing is prepared on this connection.
 */
static bool try_again(struct pump *pump)
{
	if (!pump->stale || pump->is_second_try || !pump->operation.restart)
		return false;
	pump->operation.restart(pump->operation.self);
	pump_start(pump, pump->conn, pump->operation);
	pump->is_second_try = true;
	return true;
}

static void expect(struct pump *pump, int statement, int kind)
{
	pump->answers[pump->due++] = (struct answer){ statement, kind };
}

static bool send_text(struct pump *pump, int index, const struct statement *s)
{
	expect(pump, index, ANSWER_RESULT);
	return PQsendQueryParams(pump->conn, s->sql, s->n, NULL, s->values, NULL, NULL, 1);
}

static bool send_by_name(struct pump *pump, int index, const struct statement *s, const char *name)
{
	expect(pump, index, ANSWER_RESULT);
	return PQsendQueryPrepared(pump->conn, name, s->n, s->values, NULL, NULL, 1);
}

static bool send_statement(struct pump *pump, int index)
{
	const struct statement *s = &pump->batch.statements[index];
	const char *name = NULL;

	switch (s->often ? prepared_use(pump->conn, s->sql, &name) : PREPARED_NOT) {
	case PREPARED_NOT:
		break;
	case PREPARED_ASK:
		expect(pump, index, ANSWER_PID);
		if (!PQsendQueryParams(pump->conn, "SELECT pg_catalog.pg_backend_pid()", 0, NULL,
				       NULL, NULL, NULL, 1))
			return false;
		break;
	case PREPARED_FIRST:
		expect(pump, index, ANSWER_PREPARED);
		if (!PQsendPrepare(pump->conn, name, s->sql, s->n, NULL))
			return false;
		return send_by_name(pump, index, s, name);
	case PREPARED_ALREADY:
		return send_by_name(pump, index, s, name);
	}
	return send_text(pump, index, s);
}

static bool send_batch(struct pump *pump)
{
	PGconn *conn = pump->conn;

	if (PQpipelineStatus(conn) == PQ_PIPELINE_OFF && !PQenterPipelineMode(conn))
		return false;
	for (int i = 0; i < pump->batch.n; i++) {
		if (!send_statement(pump, i))
			return false;
		if (i + 1 == pump->batch.answered && !PQsendFlushRequest(conn))
			return false;
	}
	return PQpipelineSync(conn);
}

/* Takes a good answer, and owns it. */
static int take_answer(struct pump *pump, const struct answer *answer, PGresult *result,
		       struct lease_error *reterr)
{
	int r = 0;

	switch (answer->kind) {
	case ANSWER_RESULT:
		return pump->operation.take(pump->operation.self, answer->statement, result,
					    reterr);
	case ANSWER_PREPARED:
		break;
	case ANSWER_PID:
		r = read_form(result, "i", reterr);
		if (r == 0 && PQntuples(result) == 1)
			prepared_take_pid(pump->conn, (int)read_int(result, 0, 0));
		break;
	}
	PQclear(result);
	return r;
}

static void take_result(struct pump *pump, PGresult *result)
{
	const struct answer *answer = &pump->answers[pump->received++];
	const struct statement *statement = &pump->batch.statements[answer->statement];
	struct lease_error error;

	if (answer->kind == ANSWER_PREPARED)
		prepared_take(pump->conn, statement->sql,
			      PQresultStatus(result) == PGRES_COMMAND_OK);
	switch (PQresultStatus(result)) {
	case PGRES_COMMAND_OK:
	case PGRES_TUPLES_OK:
		if (!pump->error.code && !pump->rolling_back) {
			if (take_answer(pump, answer, result, &error) < 0) {
				/* the batch is on its way as a whole, its COMMIT included */
				error.outcome_unknown = pump->batch.commits;
				remember_error(pump, &error, answer->statement);
			}
			return;
		}
		break;
	case PGRES_PIPELINE_ABORTED: /* an earlier statement of the batch failed */
		break;
	case PGRES_FATAL_ERROR:
		lease_error_from_result(&error, result);
		if (!pump->error.code && statement->often)
			pump->stale = prepared_is_stale(pump->conn, result);
		remember_error(pump, &error, answer->statement);
		break;
	default:
		lease_error_set(&error, LEASE_E_PROTOCOL, "unexpected result status %s",
				PQresStatus(PQresultStatus(result)));
		remember_error(pump, &error, answer->statement);
		break;
	}
	PQclear(result);
}

/* Takes what has arrived. 1: the batch is answered up to its sync, 0: more to come, -1: broken. */
static int receive(struct pump *pump)
{
	PGconn *conn = pump->conn;

	for (;;) {
		PGresult *result;

		if (PQisBusy(conn))
			return 0;
		result = PQgetResult(conn);
		if (!result) {
			/* NULL ends the results of one statement; anything else is the end */
			if (PQstatus(conn) == CONNECTION_BAD || pump->received > pump->due)
				return -1;
			if (PQisBusy(conn))
				return 0;
			result = PQgetResult(conn);
			if (!result)
				return -1;
		}
		if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
			PQclear(result);
			return pump->received == pump->due ? 1 : -1;
		}
		if (pump->received == pump->due) { /* more answers than questions */
			PQclear(result);
			return -1;
		}
		take_result(pump, result);
		if (PQstatus(conn) == CONNECTION_BAD)
			return -1;
	}
}

int pump_poll(struct pump *pump, struct lease_error *reterr)
{
	PGconn *conn = pump->conn;
	int flushing;

	for (;;) {
		switch (pump->state) {
		case PUMP_IDLE:
			return 0;
		case PUMP_NEXT:
			if (PQstatus(conn) != CONNECTION_OK)
				return break_off(pump, reterr);
			if (!fill(pump)) {
				if (try_again(pump))
					break;
				return finish(pump, reterr);
			}
			if (!send_batch(pump))
				return break_off(pump, reterr);
			pump->state = PUMP_SENDING;
			break;
		case PUMP_SENDING:
		case PUMP_RECEIVING:
			/* manual, 34.4: while flushing, read as well, or both sides may block */
			flushing = PQflush(conn);
			if (flushing < 0 || !PQconsumeInput(conn)) {
				/* what the server said before it went is the better message */
				receive(pump);
				return break_off(pump, reterr);
			}
			pump->state = flushing ? PUMP_SENDING : PUMP_RECEIVING;
			switch (receive(pump)) {
			case 0:
				return LEASE_POLL_READ | (flushing ? LEASE_POLL_WRITE : 0);
			case 1:
				pump->state = PUMP_NEXT;
				break;
			default:
				return break_off(pump, reterr);
			}
			break;
		}
	}
}

/* -- the blocking driver ---------------------------------------------------------------------- */

int64_t clock_monotonic(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000;
}

void pause_until(int64_t until)
{
	for (int64_t left; (left = until - clock_monotonic()) > 0;) {
		left = (left + 999) / 1000;
		poll(NULL, 0, left > 60000 ? 60000 : (int)left);
	}
}

int wait_for(PGconn *conn, int events, int64_t until)
{
	struct pollfd fd = {
		.fd = PQsocket(conn),
		.events = (short)((events & LEASE_POLL_READ ? POLLIN : 0) |
				  (events & LEASE_POLL_WRITE ? POLLOUT : 0)),
	};

	for (;;) {
		int64_t left = until - clock_monotonic();
		int r;

		if (left <= 0)
			return 0;
		left = (left + 999) / 1000;
		r = poll(&fd, 1, left > 60000 ? 60000 : (int)left);
		if (r > 0)
			return 1;
		if (r < 0 && errno != EINTR)
			return -1;
	}
}

static int drive(struct pump *pump, int64_t until, struct lease_error *reterr)
{
	for (;;) {
		int events = pump_poll(pump, reterr);
		int ready;

		if (events <= 0)
			return events;
		ready = wait_for(pump->conn, events, until);
		if (ready > 0)
			continue;
		if (ready < 0)
			lease_error_set(reterr, LEASE_E_SYSTEM, "poll: %s", strerror(errno));
		else
			lease_error_set(reterr, LEASE_E_TIMEOUT,
					"no answer from the server in time; close the connection");
		if (reterr)
			reterr->outcome_unknown = pump->batch.commits;
		pump_abandon(pump);
		return ready < 0 ? LEASE_E_SYSTEM : LEASE_E_TIMEOUT;
	}
}

int connection_begin(PGconn *conn, bool *ret_was_nonblocking, struct lease_error *reterr)
{
	if (!conn || PQstatus(conn) != CONNECTION_OK)
		return lease_error_from_connection(reterr, conn);
	if (PQtransactionStatus(conn) != PQTRANS_IDLE || PQpipelineStatus(conn) != PQ_PIPELINE_OFF)
		return lease_error_set(reterr, LEASE_E_BUSY,
				       "the connection is not idle: end its transaction first");
	*ret_was_nonblocking = PQisnonblocking(conn);
	if (PQsetnonblocking(conn, 1) != 0)
		return lease_error_from_connection(reterr, conn);
	return 0;
}

void connection_end(PGconn *conn, bool was_nonblocking)
{
	if (!was_nonblocking && PQstatus(conn) == CONNECTION_OK)
		PQsetnonblocking(conn, 0);
}

int pump_run(PGconn *conn, struct operation operation, int64_t timeout, struct lease_error *reterr)
{
	struct pump pump = { 0 };
	bool was_nonblocking = false;
	int r = connection_begin(conn, &was_nonblocking, reterr);

	if (r < 0)
		return r;
	pump_start(&pump, conn, operation);
	r = drive(&pump, clock_monotonic() + timeout, reterr);
	connection_end(conn, was_nonblocking);
	return r;
}

static int exchange_next(void *self, struct batch *batch, struct lease_error *reterr)
{
	struct exchange_state *state = self;

	(void)reterr;
	if (state->was_sent)
		return 0;
	state->was_sent = true;
	state->exchange.fill(state->exchange.self, batch);
	return 1;
}

static int exchange_take(void *self, int index, PGresult *result, struct lease_error *reterr)
{
	struct exchange_state *state = self;
	int r = state->exchange.take(state->exchange.self, index, result, reterr);

	PQclear(result);
	return r;
}

static void exchange_restart(void *self)
{
	struct exchange_state *state = self;

	state->was_sent = false;
}

struct operation exchange_operation(struct exchange_state *state, struct exchange exchange)
{
	*state = (struct exchange_state){ .exchange = exchange };
	return (struct operation){ exchange_next, exchange_take, state, exchange_restart };
}

int exchange_run(PGconn *conn, struct exchange exchange, int64_t timeout,
		 struct lease_error *reterr)
{
	struct exchange_state state;

	return pump_run(conn, exchange_operation(&state, exchange), timeout, reterr);
}

/* -- reading results -------------------------------------------------------------------------- */

/* Type OIDs and lengths: src/include/catalog/pg_type.dat; they never change. */
static const struct column_type {
	char letter;
	Oid oid;
	int length; /* -1: any */
} column_types[] = {
	{ 't', 25, -1 }, { 'i', 23, 4 },   { 'l', 20, 8 },
	{ 'b', 16, 1 },  { 's', 1184, 8 }, { 0 }, /* no column has this type */
};

static const struct column_type *column_type(char letter)
{
	const struct column_type *type = column_types;

	while (type->letter && type->letter != letter)
		type++;
	return type;
}

int read_form(const PGresult *result, const char *form, struct lease_error *reterr)
{
	int n = (int)strlen(form);

	if (PQresultStatus(result) != PGRES_TUPLES_OK || PQnfields(result) != n)
		return lease_error_set(reterr, LEASE_E_PROTOCOL,
				       "expected a result of %d columns, got %d", n,
				       PQnfields(result));
	for (int column = 0; column < n; column++) {
		const struct column_type *type = column_type(form[column]);
		if (PQftype(result, column) != type->oid || PQfformat(result, column) != 1)
			return lease_error_set(
				reterr, LEASE_E_PROTOCOL,
				"column %d has type %u in format %d, expected %u in 1", column + 1,
				PQftype(result, column), PQfformat(result, column), type->oid);
		for (int row = 0; row < PQntuples(result) && type->length >= 0; row++)
			if (!PQgetisnull(result, row, column) &&
			    PQgetlength(result, row, column) != type->length)
				return lease_error_set(
					reterr, LEASE_E_PROTOCOL,
					"row %d, column %d has length %d, expected %d", row + 1,
					column + 1, PQgetlength(result, row, column), type->length);
	}
	return 0;
}

/* Integers come in network byte order, of 4 or 8 bytes. */
int64_t read_int(const PGresult *result, int row, int column)
{
	const unsigned char *bytes = (const unsigned char *)PQgetvalue(result, row, column);
	int length = PQgetlength(result, row, column);
	uint64_t value = 0;

	if (PQgetisnull(result, row, column))
		return 0;
	for (int i = 0; i < length; i++)
		value = value << 8 | bytes[i];
	return length == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value;
}

int64_t read_time(const PGresult *result, int row, int column)
{
	/* microseconds from 1970-01-01 to 2000-01-01, PostgreSQL's epoch */
	const int64_t epoch = INT64_C(946684800) * LEASE_SECOND;
	int64_t value = read_int(result, row, column);

	if (PQgetisnull(result, row, column))
		return LEASE_TIME_NONE;
	return value > INT64_MAX - epoch ? INT64_MAX : value + epoch;
}

bool read_bool(const PGresult *result, int row, int column)
{
	return !PQgetisnull(result, row, column) && PQgetvalue(result, row, column)[0] != 0;
}

const char *read_text(const PGresult *result, int row, int column)
{
	return PQgetisnull(result, row, column) ? NULL : PQgetvalue(result, row, column);
}
