/*
 * error.c - filling and classifying struct lease_error. Never prints.
 */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *lease_errno_name(int code)
{
	switch ((enum lease_errno)code) {
	case LEASE_E_INVALID:
		return "invalid argument";
	case LEASE_E_MEMORY:
		return "out of memory";
	case LEASE_E_BUSY:
		return "connection busy";
	case LEASE_E_CONNECTION:
		return "connection lost";
	case LEASE_E_TIMEOUT:
		return "timeout";
	case LEASE_E_SERVER:
		return "server error";
	case LEASE_E_PROTOCOL:
		return "unexpected answer";
	case LEASE_E_READ_ONLY:
		return "read-only server";
	case LEASE_E_SCHEMA:
		return "wrong schema";
	case LEASE_E_SYSTEM:
		return "system error";
	}
	return "?";
}

/*
 * Messages of libpq and the server have newlines, and may quote what a user sent: one line of it,
 * without characters that would control a terminal.
 */
static void make_one_line(char *text)
{
	char *to = text;

	for (const unsigned char *from = (unsigned char *)text; *from; from++) {
		bool is_control = *from < ' ' || *from == 0x7f;
		char c = (char)(is_control ? ' ' : *from);

		if (c != ' ' || (to > text && to[-1] != ' '))
			*to++ = c;
	}
	while (to > text && to[-1] == ' ')
		to--;
	*to = '\0';
}

/* A text that was cut may end within a character of UTF-8: drops what is left of it. */
static void drop_cut_character(char *text)
{
	size_t length = strlen(text), start = length;

	while (start > 0 && length - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80)
		start--;
	if (start > 0 && (unsigned char)text[start - 1] >= 0xc0) {
		unsigned char lead = (unsigned char)text[start - 1];
		size_t whole = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;

		if (length - (start - 1) < whole)
			text[start - 1] = '\0';
	}
}

int lease_error_set(struct lease_error *reterr, int code, const char *format, ...)
{
	va_list arguments;
	int length;

	if (!reterr)
		return code;
	*reterr = (struct lease_error){ .code = code };
	va_start(arguments, format);
	length = vsnprintf(reterr->message, sizeof(reterr->message), format, arguments);
	va_end(arguments);
	if (length >= (int)sizeof(reterr->message))
		drop_cut_character(reterr->message);
	make_one_line(reterr->message);
	return code;
}

/* A relation, schema or column that is not there means that the schema is not what we know. */
static bool is_about_schema(const char *sqlstate)
{
	return strcmp(sqlstate, "42P01") == 0 || strcmp(sqlstate, "3F000") == 0 ||
	       strcmp(sqlstate, "42703") == 0;
}

int lease_error_from_result(struct lease_error *reterr, const PGresult *result)
{
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *primary = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	const char *detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL);
	int code = LEASE_E_SERVER;

	/* libpq makes results of its own without SQLSTATE, for a connection that broke */
	if (!sqlstate)
		return lease_error_set(reterr, LEASE_E_CONNECTION, "%s",
				       PQresultErrorMessage(result));
	if (is_about_schema(sqlstate))
		code = LEASE_E_SCHEMA;
	else if (strcmp(sqlstate, "25006") == 0)
		code = LEASE_E_READ_ONLY;
	lease_error_set(reterr, code, "%s%s%s%s", primary ? primary : PQresultErrorMessage(result),
			detail ? " (" : "", detail ? detail : "", detail ? ")" : "");
	if (reterr)
		snprintf(reterr->sqlstate, sizeof(reterr->sqlstate), "%s", sqlstate);
	return code;
}

int lease_error_from_connection(struct lease_error *reterr, const PGconn *conn)
{
	const char *message = PQerrorMessage(conn);

	return lease_error_set(reterr, LEASE_E_CONNECTION, "%s",
			       message && message[0] ? message : "the connection is closed");
}

/* Classes and codes: PostgreSQL manual, appendix A, "PostgreSQL Error Codes". */
static enum lease_advice advice_for(const char *sqlstate)
{
	static const struct {
		const char *prefix;
		enum lease_advice advice;
	} table[] = {
		{ "08", LEASE_ADVICE_RECONNECT }, /* connection exception */
		{ "57P", LEASE_ADVICE_RECONNECT }, /* shutdown, crash, cannot connect now */
		{ "25006", LEASE_ADVICE_RECONNECT }, /* read-only: another host may be writable */
		{ "25P03", LEASE_ADVICE_RECONNECT }, /* idle in transaction for too long */
		{ "25P04", LEASE_ADVICE_RECONNECT }, /* transaction_timeout */
		{ "22", LEASE_ADVICE_SPLIT }, /* data exception */
		{ "23", LEASE_ADVICE_SPLIT }, /* integrity constraint */
		{ "P0", LEASE_ADVICE_SPLIT }, /* raised by a trigger */
		{ "54", LEASE_ADVICE_SPLIT }, /* a limit, such as an index row's size */
		{ "XX001", LEASE_ADVICE_SPLIT }, /* a corrupted page */
		{ "XX002", LEASE_ADVICE_SPLIT }, /* a corrupted index */
		{ "40", LEASE_ADVICE_RETRY }, /* serialization failure, deadlock */
		{ "53", LEASE_ADVICE_RETRY }, /* too many connections, disk full */
		{ "55", LEASE_ADVICE_RETRY }, /* lock not available, object in use */
		{ "57", LEASE_ADVICE_RETRY }, /* query canceled: statement_timeout */
		{ "58", LEASE_ADVICE_RETRY }, /* system error */
		{ "XX", LEASE_ADVICE_RETRY }, /* internal error */
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (strncmp(sqlstate, table[i].prefix, strlen(table[i].prefix)) == 0)
			return table[i].advice;
	return LEASE_ADVICE_FIX;
}

enum lease_advice lease_error_advice(const struct lease_error *error)
{
	switch ((enum lease_errno)error->code) {
	case LEASE_E_CONNECTION:
	case LEASE_E_TIMEOUT:
	case LEASE_E_PROTOCOL:
	case LEASE_E_READ_ONLY:
		return LEASE_ADVICE_RECONNECT;
	case LEASE_E_MEMORY:
	case LEASE_E_SYSTEM:
		return LEASE_ADVICE_RETRY;
	case LEASE_E_SERVER:
		return advice_for(error->sqlstate);
	case LEASE_E_INVALID:
	case LEASE_E_BUSY:
	case LEASE_E_SCHEMA:
		break;
	}
	return LEASE_ADVICE_FIX;
}

const char *lease_version(void)
{
	return LEASE_VERSION_STRING;
}
