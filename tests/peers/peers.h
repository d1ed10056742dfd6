/*
 * What the comparison with others consists of: peers, each with a database full of lost workers'
 * rows and its own way to rescue them, and what is measured of every one by the same means.
 *
 * Nothing that measures knows which peer runs: no peer has a clock, a counter or a lock's length of
 * its own making, but for the seconds of a rescue, which only the side that asks for it can see.
 */
#ifndef LEASE_PEERS_H
#define LEASE_PEERS_H

#include "bench.h"

/* What is left of an attempt whose worker was lost, once its run is rescued. */
enum kept {
	KEPT_NOTHING, /* or only what the next rescue writes over */
	KEPT_IN_ROW, /* an entry in the job's own row, and gone with it */
	KEPT_AS_ROW, /* a row of its own */
};

struct peer {
	const char *name; /* in figures */
	const char *title;
	const char *file; /* SQL that fills its tables; NULL: the library's schema */
	enum kept kept;
	long batch; /* rows that its rescue takes at a time, where it is told so */
	/* Makes the tables and `rows` rows of each kind in a database without any. */
	char *(*make)(const struct peer *peer, long rows);
	/* Rescues all, having called rescue_begins when it is connected. Gives the seconds it took. */
	double (*rescue)(const struct peer *peer, const char *conninfo);
	const char *left; /* SQL: rows that a lost worker still holds */
	const char *facts; /* SQL: lost attempts that can still be told; NULL: none can */
};

/* From here on statements count: what a peer says to get connected is left out. */
void rescue_begins(void);

/* The name of the database that a string of the harness leads to. */
const char *database_of(const char *conninfo);

/* Runs the peer's file, with `rows` rows of each kind. */
void load_rows(const struct peer *peer, const char *conninfo, long rows);

/* -- the peers -------------------------------------------------------------------------------- */

char *make_leases(const struct peer *peer, long rows);
double rescue_by_sweep(const struct peer *peer, const char *conninfo);
double rescue_by_daemon(const struct peer *peer, const char *conninfo);

/* The packages' own code, by rescue.js; it sends the ORM's statements by one of them, too. */
char *make_by_package(const struct peer *peer, long rows);
double rescue_by_package(const struct peer *peer, const char *conninfo);

/* Shapes of others' statements, written anew. */
char *make_emulated(const struct peer *peer, long rows);
double rescue_as_oban(const struct peer *peer, const char *conninfo);
double rescue_as_river(const struct peer *peer, const char *conninfo);
double rescue_as_absurd(const struct peer *peer, const char *conninfo);
double rescue_as_orm(const struct peer *peer, const char *conninfo);

/* What an ORM's reconcile sends: all lost runs; for one of them its close, its attempt, its move. */
enum { ORM_LOST, ORM_CLOSE, ORM_ATTEMPT, ORM_MOVE, ORM_STATEMENTS };
extern const char *const orm_statements[ORM_STATEMENTS];

/* -- how long rows stay locked ---------------------------------------------------------------- */

struct watch;

/*
 * Watches every transaction of the cluster that may lock rows, on a thread and a connection of its
 * own; the connection stays the caller's.
 */
struct watch *watch_start(PGconn *conn);
/* The longest such transaction, in microseconds, and the longest time between two looks. */
int64_t watch_stop(struct watch *watch, int64_t *ret_gap);

#endif
