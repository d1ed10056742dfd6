/*
 * What the measurements stand on: options, figures, databases full of leases, load on connections.
 *
 * The comparison with others (tests/peers/) stands on it, too.
 *
 * A measurement is one function in a file of its own subject, listed in bench.c. It makes its
 * figures known through `figure`; nothing here judges them, because a bench is no test. Whatever
 * goes wrong (a statement, a connection, a count that is not right) ends the program with an error:
 * a wrong figure is worse than none.
 */
#ifndef LEASE_BENCH_H
#define LEASE_BENCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "harness.h"
#include "lease.h"

struct bench {
	/* options */
	bool quick; /* fewer, shorter rounds and a smaller database */
	const char *only; /* one measurement; NULL: all of them */
	long open; /* open leases */
	long history; /* closed attempts behind them */
	long storm; /* leases that are over at once, and as many that hold */
	const char *json; /* file to write; NULL: none */
	/* the database that most measurements use, made when it is first asked for */
	char *conninfo;
	PGconn *conn;
	struct bench
		*large; /* one with as many open leases as a storm has, likewise; NULL: not yet */
};

struct measurement {
	const char *name;
	const char *what;
	void (*run)(struct bench *bench);
};

void measure_renewals(struct bench *bench);
void measure_sweeps(struct bench *bench);
void measure_verbs(struct bench *bench);
void measure_growth(struct bench *bench);
void measure_bloat(struct bench *bench);
void measure_held(struct bench *bench);
void measure_detection(struct bench *bench);
void measure_idle(struct bench *bench);
void measure_storm(struct bench *bench);

/* -- figures ---------------------------------------------------------------------------------- */

enum aim { NO_AIM, AT_LEAST, AT_MOST };

/* `name` is the key in the JSON file and must not change lightly; the strings are kept. */
void figure(const char *name, double value, const char *unit, enum aim aim, double bound,
	    const char *what);

struct figure {
	const char *name, *unit, *what;
	double value, bound;
	enum aim aim;
};

const struct figure *figures_all(int *ret_n);
const struct figure *figure_find(const char *name); /* NULL: it was not measured */
bool figure_falls_short(const struct figure *figure);

/* The table goes to stdout; `path` gets all of them, or is left as it is. */
void figures_print(void);
void figures_write(const char *path);
/* The same for other forms of them, below. */
void write_whole(const char *path, void (*write)(FILE *file));
void write_markdown(FILE *file);
void write_picture(FILE *file);

/* Four significant digits, whole numbers whole. */
const char *number_text(double value, char text[32]);

/* The value of an option; ends the program when it is no number, or less than `min`. */
long parse_count(const char *option, const char *text, long min);

/* Progress, on stderr. */
void progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* -- numbers ---------------------------------------------------------------------------------- */

int64_t clock_us(void); /* CLOCK_MONOTONIC in microseconds */
double median(const double *values, int n);
double percentile(const double *values, int n, double share); /* share: 0 to 1 */

/* -- databases -------------------------------------------------------------------------------- */

/* Fills in bench->conninfo and bench->conn: `history` closed attempts, `open` open leases. */
void need_database(struct bench *bench);

/* A database of a million open leases and no history, made when it is first asked for. */
struct bench *need_large(struct bench *bench);
void drop_large(struct bench *bench);

/* Ends the connection and drops its database; `conninfo` is freed. */
void drop_database(PGconn *conn, char *conninfo);

/* `n` runs with an open attempt each, named after `name`; the leases last `ttl` (an SQL expression). */
void open_leases(PGconn *conn, const char *name, long n, const char *ttl);

/* What comes into an empty database: a history of two attempts a run, then the open leases. */
struct filling {
	PGconn *conn;
	enum run_ids { RANDOM_IDS, ORDERED_IDS } ids; /* the latter grow with time */
	long closed, open;
	const char *now; /* of open leases with ordered ids, which are the same for the same time */
};

/* All histories, two at a time; then the open leases of all at the same time. */
void fill_databases(const struct filling *fillings, int n);

/* After filling: what autovacuum would come for in mid-measurement, and dirty pages. */
void settle(PGconn *conn);

/*
 * Lets the server have so many segments of its log ready, as one has that runs for long: a new one is
 * 16 MB of zeros, which whoever commits meanwhile waits for.
 */
void fill_log(PGconn *conn, int segments);

/* The fencing tokens of all open attempts, in random order; to be freed by the caller. */
struct lease_token *read_tokens(PGconn *conn, size_t *ret_n);

/* WAL written so far, in bytes. */
long long wal_position(PGconn *conn);

/* Processor time that the server spent on a connection so far, in microseconds. */
double server_us(PGconn *conn);

/* Waits until no other connection uses the database: only then its counters are complete. */
void wait_alone(PGconn *conn);

/* -- load ------------------------------------------------------------------------------------- */

enum { CLIENTS = 8, BATCH = 100, LATENCIES_MAX = 200000 };

/* A lease longer than any run of the bench, in microseconds. */
#define TTL (INT64_C(86400) * LEASE_SECOND)
#define TTL_TEXT "86400000000"

/* One connection with leases, and what it does with them. */
struct client {
	PGconn *conn;
	const struct lease_token *tokens;
	size_t n, next;
	bool is_prepared; /* update_one's statement is, on `conn` */
	/* One thing, over and over: how many rows it wrote. It must not fail; 0 ends the client. */
	long (*step)(struct client *client);
	/*
	 * A step every so many microseconds, each timed from when it was due, so that one that waits
	 * makes those behind it late as well. 0: one after the other, and none is timed.
	 */
	int64_t pace_us;
	int64_t offset_us; /* the first one so much later, so that not all come at once */
	/* of clients_run and client_start */
	int64_t until;
	atomic_bool stop;
	pthread_t thread;
	pthread_barrier_t *start;
	/* what came of it */
	long rows;
	double seconds;
	double *latency; /* milliseconds, of a paced one's first LATENCIES_MAX steps */
	int calls;
};

/* Opens the connections and shares out the tokens, which stay the caller's. */
void clients_open(struct client clients[CLIENTS], const char *conninfo,
		  const struct lease_token *tokens, size_t n);
void clients_close(struct client clients[CLIENTS]);
void clients_set(struct client clients[CLIENTS], const char *setting);
double clients_server_us(struct client clients[CLIENTS]); /* all of them together */
/* All clients repeat `step` for so long. Gives rows a second, and the rows themselves. */
double clients_run(struct client clients[CLIENTS], long (*step)(struct client *), double seconds,
		   long *ret_rows);
/* One alone, beside whatever else goes on. */
enum { FOR_EVER_S = 1000000 };
void client_start(struct client *client, long (*step)(struct client *), double seconds);
void client_stop(struct client *client);

/* Steps: renewals by the library, single and BATCH at a time, … */
long renew_lease(struct client *client);
long renew_leases(struct client *client);
/*
 * … and the least that a database can do for one: an UPDATE of one row by its primary key, in a
 * table of the same columns that has nothing else (no trigger, constraint or domain, no other index)
 * and holds the open leases alone. One row: prepared, as the library's renewal is; or not, as both
 * are behind a pooler.
 */
void make_floor(PGconn *conn);
long update_one(struct client *client);
long update_one_unprepared(struct client *client);
long update_many(struct client *client);

/* For steps of one's own. */
const struct lease_token *next_token(struct client *client);
long execute(struct client *client, const char *statement, int n, const char *const *values);

/* -- sweeps ----------------------------------------------------------------------------------- */

/* As the sample configuration has it, but for a limit that no run of the bench comes to. */
void sweep_options(struct lease_sweep_options *options);
/* Workers take what a sweep requeued. */
void reopen_requeued(PGconn *conn);

/* -- the daemon ------------------------------------------------------------------------------- */

/* Starts it and waits until it has a connection to the database. */
void daemon_start(struct process *daemon, PGconn *conn, const char *conninfo);
void daemon_stop(struct process *daemon);

/* A number that follows a word in a process's file of /proc; "" for the first number. */
long long proc_number(const struct process *process, const char *file, const char *word);

#endif
