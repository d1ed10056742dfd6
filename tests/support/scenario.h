/*
 * What the store tests share: a database with connections, the verbs in short form, a way to say in
 * one line where a run stands, other threads that run a verb, and a proxy that cuts connections.
 *
 * The short verbs fail the test on an error and hand back 0 or the refusal; their error is in
 * `last_error`. Everything here but `struct call`, `struct sweeper` and the proxy's own thread
 * belongs to the main thread. Nothing waits without a deadline.
 */
#ifndef LEASE_TEST_SCENARIO_H
#define LEASE_TEST_SCENARIO_H

#include <pthread.h>
#include <stdatomic.h>

#include "harness.h"
#include "lease.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* Long enough that no lease of this ttl ends while a test runs, on any machine. */
#define LONG (3600 * LEASE_SECOND)

struct scenario {
	char *conninfo;
	PGconn *admin; /* superuser: looks, and does what nobody may */
	PGconn *worker; /* the library's */
	PGconn *other; /* another worker's */
};

/*
 * cmocka's setup and teardown. The tests of a program share a database that is emptied after each;
 * one that changes the schema, or counts what the server counts, gets a database of its own.
 */
int scenario_open(void **state);
int scenario_open_alone(void **state);
int scenario_close(void **state);
int scenario_end(void **state); /* teardown of the group */
/* Empties the database in the middle of a test. */
void scenario_empty(struct scenario *s);
/* Statements that no trigger and no foreign key looks at: what is in the database must allow it. */
void sql_unguarded(struct scenario *s, const char *statements);
/* Moves all times of the runs that have ended, and of their facts, back: '100 days'. */
void let_ended_runs_age(struct scenario *s, const char *by);
#define store_test(function)                                                                       \
	cmocka_unit_test_setup_teardown(function, scenario_open, scenario_close)
#define store_test_alone(function)                                                                 \
	cmocka_unit_test_setup_teardown(function, scenario_open_alone, scenario_close)

/* -- verbs in short form ------------------------------------------------------------------------ */

extern struct lease_error last_error;

/* Expects 0 or this refusal; an error or another refusal fails, with its name and message. */
#define assert_granted(result) assert_result_at(0, result, #result, __FILE__, __LINE__)
#define assert_refused(refusal, result)                                                            \
	assert_result_at(refusal, result, #result, __FILE__, __LINE__)
/* Expects this error. */
#define assert_error(code, result) assert_result_at(code, result, #result, __FILE__, __LINE__)
void assert_result_at(int expected, int actual, const char *what, const char *file, int line);

/* Each of these may return an error as well: hand it to one of the asserts above. */
int submit(PGconn *conn, const char *run_id);
int claim(PGconn *conn, const char *run_id, const char *owner, int64_t ttl,
	  struct lease_grant *ret);
int claim_next(PGconn *conn, const char *owner, bool take_over, struct lease_grant *ret);
int renew(PGconn *conn, const struct lease_token *token, int64_t ttl, struct lease_grant *ret);
int release(PGconn *conn, const struct lease_token *token, int64_t delay, struct lease_change *ret);
int suspend(PGconn *conn, const struct lease_token *token, struct lease_change *ret);
int finish(PGconn *conn, const struct lease_token *token, enum lease_run_status status,
	   const char *error_code, struct lease_change *ret);
int give_up(PGconn *conn, const char *run_id, int64_t version, struct lease_change *ret);
int resume(PGconn *conn, const char *run_id, int64_t version, struct lease_change *ret);
int request_cancel(PGconn *conn, const char *run_id, int64_t version, struct lease_change *ret);
int reconcile(PGconn *conn, enum lease_policy policy, int max_losses,
	      struct lease_sweep_figures *ret);

/* What the verb of a command handed back, as far as there is such a thing. */
struct performed {
	bool changed;
	struct lease_change change;
	struct lease_grant grant;
	struct lease_node_execution execution;
	struct lease_sweep_figures figures;
};

/* The verb of a command, whichever it is. COMMAND_RECONCILE is a whole sweep. */
struct lease_command;
int perform(PGconn *conn, const struct lease_command *command, struct performed *ret);

/* Submits and claims for LONG, on s->worker; fails unless it is granted. */
struct lease_token take_run(struct scenario *s, const char *run_id, const char *owner);
/*
 * A run with all kinds of facts, from its submission to its end: a lost attempt, a failed and a lost
 * node execution, an operation, a content of its own and one that all such runs share, a checkpoint,
 * a message with quotes, line ends and letters beyond ASCII.
 */
void live_through(struct scenario *s, const char *run_id);
struct lease_token token_of(const char *run_id, int32_t attempt_no, const char *owner);

/* -- where a run stands ------------------------------------------------------------------------ */

/* Lets the lease of the open attempt be over since a second ago. */
void end_lease(struct scenario *s, const char *run_id);

/*
 * "running v2 | 1 w1 lease_expired worker_lease_expired | 2 w2 open": the run's status, version
 * and error code, then each attempt's number, owner, outcome and error code.
 */
#define assert_run(s, run_id, expected) assert_run_at(s, run_id, expected, __FILE__, __LINE__)
void assert_run_at(struct scenario *s, const char *run_id, const char *expected, const char *file,
		   int line);
/* The same as a string, to be freed. */
char *run_text(struct scenario *s, const char *run_id);
/* All rows of the run and its attempts, to the byte, with the transactions that wrote them. */
char *run_bytes(struct scenario *s, const char *run_id);
#define assert_untouched(s, run_id, before)                                                        \
	assert_untouched_at(s, run_id, before, __FILE__, __LINE__)
void assert_untouched_at(struct scenario *s, const char *run_id, char *before, const char *file,
			 int line); /* frees `before` */
/* Every run's status follows from its attempts. */
#define assert_explained(s)                                                                        \
	assert_sql((s)->admin, "0", "select count(*) from lease.unexplained_runs")

/* -- other threads ------------------------------------------------------------------------------ */

/* A verb that runs in another thread, on a connection that nobody else uses meanwhile. */
struct call {
	int (*verb)(PGconn *conn, void *arg, struct lease_error *reterr);
	PGconn *conn;
	void *arg;
	int result;
	struct lease_error error;
	struct running *running;
};

struct call call_of(int (*verb)(PGconn *conn, void *arg, struct lease_error *reterr), PGconn *conn,
		    void *arg);
void call_start(struct call *call);
/* Its result; fails the test when it does not end. */
int call_wait(struct call *call);

/* Waits until so many sessions of this database wait for a lock. */
void wait_blocked(struct scenario *s, int sessions);
/* Waits until this connection's session does. */
void wait_blocked_session(struct scenario *s, PGconn *conn);

/* A reconciler in a thread of its own, until it is stopped. */
struct sweeper {
	PGconn *conn;
	struct lease_sweep *sweep;
	struct lease_error error; /* the first one */
	atomic_llong errors;
	atomic_llong passes; /* horizon scans that came to their end */
	atomic_bool stop;
	struct running *running;
};

struct sweeper *sweeper_start(struct scenario *s, const struct lease_sweep_options *options,
			      const struct lease_sweep_callbacks *callbacks);
/* Wait until it has made so many more passes; until it has failed so often in all. */
void wait_for_passes(struct sweeper *sweeper, int more);
void wait_for_failures(struct sweeper *sweeper, int failures);
/* Frees it. Gives how many errors there were; the first one is in last_error. */
int sweeper_stop(struct sweeper *sweeper, struct lease_sweep_figures *ret);

/* A number below `below`, the same sequence for the same seed. */
unsigned random_below(unsigned *seed, unsigned below);
/* How often to repeat what races: `rounds`, or LEASE_TEST_ROUNDS. */
int test_rounds(int rounds);

/* -- a proxy that cuts -------------------------------------------------------------------------- */

enum cut {
	CUT_NEVER,
	CUT_REQUEST, /* the batch never reaches the server, the connection breaks */
	CUT_ANSWER, /* the server does all of the batch, then the connection breaks */
	CUT_SILENCE, /* the server does all of the batch, no answer comes, nothing breaks */
};

/* Passes bytes between one client and the server; a batch ends with the protocol's Sync. */
struct proxy {
	char *conninfo; /* to connect through it */
	char *folder;
	int listener;
	char server[108]; /* path of the server's socket */
	atomic_int batches; /* that went through since it was opened or armed */
	atomic_int cut_at; /* the batch to cut, from 1 */
	atomic_int how;
	atomic_bool cut; /* it has happened */
	atomic_bool stop;
	pthread_t thread;
};

void proxy_open(struct proxy *proxy, const struct scenario *s);
void proxy_close(struct proxy *proxy);
/* From now on: batch number `at` is cut. */
void proxy_arm(struct proxy *proxy, enum cut how, int at);

/* Batches that a connection sends from here to round_trips_stop: what libpq's trace shows. */
struct round_trips {
	PGconn *conn;
	FILE *file;
	char *text;
	size_t size;
};

void round_trips_start(struct round_trips *trips, PGconn *conn);
int round_trips_stop(struct round_trips *trips);

#endif
