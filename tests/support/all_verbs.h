/*
 * Every function of the library that talks to a database, called with fixed arguments: for tests
 * that do something to all of them (failing allocations, a server that answers nonsense).
 *
 * In the table's order, on an empty database, each finds something to do. Each frees what it was
 * handed. Nothing here uses cmocka: it works in any thread and any program.
 */
#ifndef LEASE_TEST_ALL_VERBS_H
#define LEASE_TEST_ALL_VERBS_H

#include <libpq-fe.h>

#include "lease.h"

struct verb {
	const char *name;
	int (*call)(PGconn *conn, int64_t timeout, struct lease_error *reterr);
};

/* Ends with a NULL name. */
extern const struct verb all_verbs[];

#endif
