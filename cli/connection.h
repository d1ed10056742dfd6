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
#include <stddef.h>

#include "lease.h"

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

/*
 * The names of the databases that --config gives, each for source->database; one NULL where there
 * is but one to choose. 0, or an exit code after one line. Freed by connection_free_names.
 */
int connection_list(const struct connection_source *source, char ***ret, size_t *ret_n);
void connection_free_names(char **names, size_t n);

/* The policy that the daemon follows in the database, from --config; untouched without. */
int connection_policy(const struct connection_source *source, enum lease_policy *ret_policy,
		      int *ret_max_lease_losses);

#endif
