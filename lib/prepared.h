/*
 * prepared.h - which statements a connection keeps prepared.
 *
 * Parsing and planning are most of what a statement on one run costs the server. One that a
 * connection sends again and again is therefore prepared there, under a name, from its sixth use
 * on; but only on a connection that ends at the server itself. Behind a pooler the next transaction
 * may be in another session, which knows none of the names: poolers give their clients cancel keys of
 * their own, so PQbackendPID differs there from pg_backend_pid(), and nothing is ever prepared.
 *
 * What is known of a connection hangs on the connection (libpq's event procedures, manual 34.14): it
 * ends with PQfinish and is forgotten by PQreset. This file sends nothing.
 */
#ifndef LEASE_PREPARED_H
#define LEASE_PREPARED_H

#include <libpq-fe.h>
#include <stdbool.h>

enum prepared_use {
	PREPARED_NOT, /* send its text, unnamed */
	PREPARED_ASK, /* the same, and ask for pg_backend_pid() before */
	PREPARED_FIRST, /* prepare it under the name, and execute it */
	PREPARED_ALREADY, /* execute it by name */
};

/*
 * How a statement is to be sent that is about to be sent now. `sql` is one of the texts embedded
 * from lib/sql, known by its address. The name lives as long as the connection.
 */
enum prepared_use prepared_use(PGconn *conn, const char *sql, const char **ret_name);

/* The server's answers: its process, and whether a statement was prepared. */
void prepared_take_pid(PGconn *conn, int pid);
void prepared_take(PGconn *conn, const char *sql, bool was_prepared);

/*
 * Whether an error says that what was prepared is not to be used any more: somebody dropped it
 * (DISCARD, DEALLOCATE), or a migration changed its columns. Nothing is prepared on the connection
 * from then on; whoever sent the statement sends it anew.
 */
bool prepared_is_stale(PGconn *conn, const PGresult *error);

#endif
