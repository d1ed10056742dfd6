/*
 * What most of the daemon's tests begin and end with: a database of their own, and a connection to it.
 */
#ifndef LEASE_TEST_FIXTURE_H
#define LEASE_TEST_FIXTURE_H

#include "daemon.h"

static char *conninfo;
static PGconn *conn;

HELPER int create(void **state)
{
	(void)state;
	conninfo = test_database_create();
	conn = test_connect(conninfo);
	return 0;
}

HELPER int drop(void **state)
{
	processes_kill_all(state);
	PQfinish(conn);
	conn = NULL;
	test_database_drop(conninfo);
	free(conninfo);
	return 0;
}

#endif
