/*
 * The way to a database: --dbname, or a file of the daemon's with --config, or libpq's environment
 * and service files.
 *
 * Promises: no password comes out in a message, not even a piece of one out of a connection string
 * that is wrong. Must never: ask for a password on the terminal.
 */
#ifndef LEASE_CLI_CONNECTION_H
#define LEASE_CLI_CONNECTION_H

#include <libpq-fe.h>

struct connection_source {
	const char *dbname; /* a connection string, a URI or a name; NULL: as libpq does */
	const char *config; /* a file of the daemon's; NULL: none */
	const char *database; /* which of that file's databases; NULL: its only one */
};

enum connection_use {
	CONNECTION_RAW, /* the schema is the command's own matter */
	CONNECTION_READ, /* the schema must be the right one; a standby is good enough */
	CONNECTION_WRITE, /* and a server that takes writes */
};

/*
 * Connects. 0 and a connection that the caller ends with PQfinish, or an exit code after one line
 * on standard error. Notices of the server are dropped.
 */
int connection_open(const struct connection_source *source, enum connection_use use, PGconn **ret);

#endif
