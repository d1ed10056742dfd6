/*
 * prepared.c - see prepared.h.
 */
#include "prepared.h"

#include <libpq-events.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Uses before a statement is prepared: as many as JDBC's driver waits for (prepareThreshold). */
#define USES_BEFORE 5
/* More kinds of statements than the verbs have; the server's memory for a plan is some 100 kB. */
#define STATEMENTS_MAX 24

enum session {
	SESSION_UNKNOWN,
	SESSION_OWN, /* all that is sent reaches one session of the server */
	SESSION_SHARED, /* or nobody can tell: prepare nothing */
};

struct prepared {
	enum session session;
	int n;
	struct {
		const char *sql;
		int uses;
		bool is_prepared; /* or will be, by what is on its way */
		char name[24];
	} statements[STATEMENTS_MAX];
};

static int on_event(PGEventId id, void *info, void *unused)
{
	const PGEventConnDestroy *destroyed = info;
	const PGEventConnReset *reset = info;
	struct prepared *prepared;

	(void)unused;
	if (id == PGEVT_CONNDESTROY)
		free(PQinstanceData(destroyed->conn, on_event));
	if (id == PGEVT_CONNRESET) {
		prepared = PQinstanceData(reset->conn, on_event);
		if (prepared)
			*prepared = (struct prepared){ 0 };
	}
	return 1;
}

/* NULL: there is no memory for it. */
static struct prepared *prepared_of(PGconn *conn)
{
	struct prepared *prepared = PQinstanceData(conn, on_event);

	if (prepared)
		return prepared;
	prepared = calloc(1, sizeof(*prepared));
	if (!prepared)
		return NULL;
	/* refused when an earlier call got no further than this */
	PQregisterEventProc(conn, on_event, "liblease", NULL);
	if (PQsetInstanceData(conn, on_event, prepared))
		return prepared;
	free(prepared);
	return NULL;
}

/* Its position; -1: there is no room for it. */
static int find(struct prepared *prepared, const char *sql)
{
	int i = 0;

	while (i < prepared->n && prepared->statements[i].sql != sql)
		i++;
	if (i == STATEMENTS_MAX)
		return -1;
	if (i == prepared->n) {
		prepared->statements[i].sql = sql;
		snprintf(prepared->statements[i].name, sizeof(prepared->statements[i].name),
			 "lease_%d", i + 1);
		prepared->n++;
	}
	return i;
}

enum prepared_use prepared_use(PGconn *conn, const char *sql, const char **ret_name)
{
	struct prepared *prepared = prepared_of(conn);
	int i = prepared && prepared->session != SESSION_SHARED ? find(prepared, sql) : -1;

	if (i < 0)
		return PREPARED_NOT;
	if (prepared->statements[i].uses < USES_BEFORE) {
		prepared->statements[i].uses++;
		return PREPARED_NOT;
	}
	if (prepared->session == SESSION_UNKNOWN)
		return PREPARED_ASK;
	*ret_name = prepared->statements[i].name;
	if (prepared->statements[i].is_prepared)
		return PREPARED_ALREADY;
	prepared->statements[i].is_prepared = true;
	return PREPARED_FIRST;
}

void prepared_take_pid(PGconn *conn, int pid)
{
	struct prepared *prepared = prepared_of(conn);

	if (prepared)
		prepared->session = pid == PQbackendPID(conn) ? SESSION_OWN : SESSION_SHARED;
}

void prepared_take(PGconn *conn, const char *sql, bool was_prepared)
{
	struct prepared *prepared = prepared_of(conn);
	int i = prepared ? find(prepared, sql) : -1;

	if (i >= 0)
		prepared->statements[i].is_prepared = was_prepared;
}

bool prepared_is_stale(PGconn *conn, const PGresult *error)
{
	static const char *const states[] = {
		"26000", /* invalid_sql_statement_name: there is no such prepared statement */
		"42P05", /* duplicate_prepared_statement: the name is somebody else's */
		"0A000", /* feature_not_supported: "cached plan must not change result type" */
	};
	const char *state = PQresultErrorField(error, PG_DIAG_SQLSTATE);
	struct prepared *prepared = prepared_of(conn);

	for (size_t i = 0; state && prepared && i < sizeof(states) / sizeof(states[0]); i++)
		if (strcmp(state, states[i]) == 0) {
			prepared->session = SESSION_SHARED;
			return true;
		}
	return false;
}
