/*
 * pipeline.h - batches of statements, and the pump that takes them through a connection.
 *
 * A *batch* is what goes to the server in one round trip: statements in libpq's pipeline mode, up
 * to one sync. An *operation* is a resumable piece of work that fills a batch, takes its results,
 * fills the next, until it has none left. The *pump* carries an operation over a connection
 * without ever blocking; when a statement fails it drains the batch, rolls back what is open, and
 * reports the first error. It knows nothing of runs.
 */
#ifndef LEASE_PIPELINE_H
#define LEASE_PIPELINE_H

#include <libpq-fe.h>
#include <stddef.h>

#include "error.h"

#define BATCH_STATEMENTS 12
#define STATEMENT_PARAMETERS 16

struct statement {
	const char *sql;
	bool often; /* see batch_add_often */
	int n;
	const char *values[STATEMENT_PARAMETERS];
	char *owned[STATEMENT_PARAMETERS]; /* those of `values` to free */
};

struct batch {
	struct statement statements[BATCH_STATEMENTS];
	int n;
	int answered; /* so many of them before the others; 0: all at the end */
	bool commits; /* its effect may be durable before the answer has come */
	bool no_memory; /* a bind failed; the pump refuses to send */
};

/* Adds a statement; the binds that follow give its parameters in order, all in text format. */
void batch_add(struct batch *batch, const char *sql);
/*
 * The same for a text of lib/sql that a connection sends again and again: it may stay prepared there
 * (prepared.h). Only in operations that can be restarted.
 */
void batch_add_often(struct batch *batch, const char *sql);
/*
 * The server is to answer what was added so far when it has done that, not only at the end of the batch:
 * the time from that answer to a later one is the server's own, without the network's.
 */
void batch_answer_so_far(struct batch *batch);
void bind_text(struct batch *batch, const char *value); /* borrowed until the batch is sent */
void bind_int(struct batch *batch, int64_t value);
/* The parameters of settings.sql. */
struct settings {
	int64_t statement_timeout, lock_timeout;
	const char *notify; /* NULL: as it is set */
	bool hash_joins; /* and none else; false: nested loops */
};
void bind_settings(struct batch *batch, const struct settings *settings);
void bind_milliseconds(struct batch *batch, int64_t microseconds); /* rounded up, 1 to 2^31 - 1 */
void batch_done(struct batch *batch);

/* A PostgreSQL array literal in the making: '{"a",NULL,"b"}'. */
struct array {
	char *text;
	size_t length, size;
	bool no_memory;
};

void array_add_text(struct array *array, const char *value); /* NULL gives NULL */
void array_add_int(struct array *array, int64_t value);
void array_add_bool(struct array *array, bool value);
/* Closes the literal and hands it to the batch; the array is empty again. */
void bind_array(struct batch *batch, struct array *array);

struct operation {
	/* Fills the next batch. 1: filled, 0: the work is done, negative: an error. */
	int (*next)(void *self, struct batch *batch, struct lease_error *reterr);
	/* Takes the result of statement `index` of the batch, and owns it. 0 or an error. */
	int (*take)(void *self, int index, PGresult *result, struct lease_error *reterr);
	void *self;
	/* Begins anew, as if nothing had been sent. NULL: it cannot, and adds nothing "often". */
	void (*restart)(void *self);
};

enum pump_state { PUMP_IDLE, PUMP_NEXT, PUMP_SENDING, PUMP_RECEIVING };

/* What the server owes: an answer for each statement, and now and then one more before it. */
struct answer {
	int statement;
	enum { ANSWER_RESULT, ANSWER_PREPARED, ANSWER_PID } kind;
};

struct pump {
	PGconn *conn;
	struct operation operation;
	enum pump_state state;
	struct batch batch;
	struct answer answers[2 * BATCH_STATEMENTS]; /* that are due for the batch, in order */
	int due, received;
	bool rolling_back;
	bool stale; /* it failed because of a prepared statement alone */
	bool is_second_try; /* after that */
	int failed_statement; /* index within its batch of the statement that failed; -1 */
	struct lease_error error; /* the first one; code 0: none */
};

void pump_start(struct pump *pump, PGconn *conn, struct operation operation);
/* LEASE_POLL_… events to wait for, 0: done, negative: failed (and rolled back). */
int pump_poll(struct pump *pump, struct lease_error *reterr);
/* Drops what is in flight, for a connection that is gone. */
void pump_abandon(struct pump *pump);
bool pump_is_idle(const struct pump *pump);

/* Runs an operation to its end, waiting at most `timeout` microseconds. */
int pump_run(PGconn *conn, struct operation operation, int64_t timeout, struct lease_error *reterr);

/* An operation of one batch. The result that `take` gets is borrowed. */
struct exchange {
	void (*fill)(void *self, struct batch *batch);
	int (*take)(void *self, int index, const PGresult *result, struct lease_error *reterr);
	void *self;
};

struct exchange_state {
	struct exchange exchange;
	bool was_sent;
};

/* `state` must live until the operation has ended. */
struct operation exchange_operation(struct exchange_state *state, struct exchange exchange);
int exchange_run(PGconn *conn, struct exchange exchange, int64_t timeout,
		 struct lease_error *reterr);

/* For what blocks: checks that a connection is idle, sets it non-blocking, and back again. */
int connection_begin(PGconn *conn, bool *ret_was_nonblocking, struct lease_error *reterr);
void connection_end(PGconn *conn, bool was_nonblocking);
/* Waits for LEASE_POLL_… events. 1: ready, 0: the time is over, -1: the system refused. */
int wait_for(PGconn *conn, int events, int64_t until);
void pause_until(int64_t until);

int64_t clock_monotonic(void); /* microseconds */

/*
 * Results come in binary format. read_form checks once that a result has the columns that its
 * reader expects, one letter each: t text, i int4, l int8, b bool, s timestamptz. After it the
 * fields can be read without further checks; a NULL time reads as LEASE_TIME_NONE, a NULL number
 * as 0, a NULL text as NULL.
 */
int read_form(const PGresult *result, const char *form, struct lease_error *reterr);
int64_t read_int(const PGresult *result, int row, int column);
int64_t read_time(const PGresult *result, int row, int column);
bool read_bool(const PGresult *result, int row, int column);
const char *read_text(const PGresult *result, int row, int column); /* borrowed */

#endif
