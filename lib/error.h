/*
 * error.h - how the library says what went wrong: a code, the server's SQLSTATE, one line of text.
 *
 * Texts carry no secrets: they come from the server or from this library, never from a connection
 * string.
 */
#ifndef LEASE_ERROR_H
#define LEASE_ERROR_H

#include <libpq-fe.h>

#include "lease.h"

/* Fills *reterr (if it is not NULL) and returns `code`. */
int lease_error_set(struct lease_error *reterr, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same from what the server answered. */
int lease_error_from_result(struct lease_error *reterr, const PGresult *result);
/* The same from a connection that broke. */
int lease_error_from_connection(struct lease_error *reterr, const PGconn *conn);

#endif
