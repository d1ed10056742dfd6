/*
 * Reads the history while the faults go on, and judges it: each file in checks/ is a promise, a
 * statement that gives what breaks it (run_id, what). Those numbered below 20 read the history
 * alone and are asked all the while; the others need what the workers wrote down, at the end.
 *
 * It looks through a connection of its own, straight to the server, and writes to a schema of its
 * own alone. That the server is away is no finding; a statement that is wrong ends the program.
 */
#ifndef LEASE_TORTURE_CHECKER_H
#define LEASE_TORTURE_CHECKER_H

#include <stdbool.h>
#include <libpq-fe.h>

struct checker;

/*
 * `seed` is printed with what is found; of the first `stories` findings the run's whole story is,
 * too. The strings must outlive it.
 */
struct checker *checker_new(const char *conninfo, const char *seed, int stories);
void checker_free(struct checker *checker);

/* Makes what tables.sql holds: once, before there is anything to see. */
void checker_prepare(struct checker *checker);

/* Its connection; NULL while the server cannot be reached. */
PGconn *checker_connection(struct checker *checker);
/* The number that a query gives; -1: the server is away. */
long long checker_number(struct checker *checker, const char *sql);

/* Looks again if it is time. Takes some ten milliseconds, and seldom a second. */
void checker_look(struct checker *checker);

/*
 * The end: everything is closed, nobody writes any more. Takes in the workers' files (the names are
 * freed by nobody) and asks all. Gives how many calls they made that reached the server, as far as
 * they could tell.
 */
long checker_finish(struct checker *checker, char *const logs[], int n_logs);

/* Asks these checks alone: those whose name begins with this. Gives how many findings are new. */
long checker_ask(struct checker *checker, const char *name);

/* A finding: prints it, with the run's whole story where there is one, unless it is known already. */
void checker_report(struct checker *checker, const char *check, const char *run_id,
		    const char *what);
long checker_violations(const struct checker *checker);

#endif
