/*
 * A pgbouncer in transaction mode, between clients and the test cluster: each transaction may meet
 * another session of the server, and prepared statements are not there.
 *
 * It listens on an abstract socket, because it gives up root, and then could write to none of our
 * folders. Whoever connects reaches the one database under the one role of `server`. A machine without pgbouncer fails the test: tests/prepare.sh
 * brings it.
 */
#ifndef LEASE_TEST_POOLER_H
#define LEASE_TEST_POOLER_H

#include "harness.h"

struct pooler {
	struct process process;
	char *socket; /* its name, with @ before it */
	char *settings;
	char *conninfo; /* to connect through it */
};

/* `server` is a conninfo string of one host and one role; `sessions` of it serve all clients. */
void pooler_start(struct pooler *pooler, const char *server, int sessions);
/* After its end, at the same place. */
void pooler_restart(struct pooler *pooler);
void pooler_stop(struct pooler *pooler);

#endif
