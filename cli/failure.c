/*
 * failure.c - lines on standard error and exit codes: see failure.h.
 */
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"

/* Messages of libpq and the server have several lines, with tabs before them. */
static void make_one_line(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		char c = *from == '\n' || *from == '\t' ? ' ' : *from;

		if (c != ' ' || (to > text && to[-1] != ' '))
			*to++ = c;
	}
	*to = '\0';
}

static void write_line(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));

static void write_line(const char *format, va_list arguments)
{
	char *text = NULL, *escaped;

	if (vasprintf(&text, format, arguments) < 0)
		return;
	make_one_line(text);
	escaped = text_escape(text, locale_is_utf8());
	fprintf(stderr, "leasectl: %s\n", escaped);
	free(escaped);
	free(text);
}

int fail(int exit_code, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	write_line(format, arguments);
	va_end(arguments);
	return exit_code;
}

void note(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	write_line(format, arguments);
	va_end(arguments);
}

static bool is_permission(const char *sqlstate)
{
	return strcmp(sqlstate, "42501") == 0 || strncmp(sqlstate, "28", 2) == 0;
}

static int exit_code_of_server(const struct lease_error *error)
{
	if (is_permission(error->sqlstate))
		return EX_NOPERM;
	switch (lease_error_advice(error)) {
	case LEASE_ADVICE_FIX:
		return EX_SOFTWARE;
	case LEASE_ADVICE_SPLIT:
		return EX_DATAERR;
	case LEASE_ADVICE_RETRY:
	case LEASE_ADVICE_RECONNECT:
		return EX_TEMPFAIL;
	}
	return EX_SOFTWARE;
}

int exit_code_for(const struct lease_error *error)
{
	switch ((enum lease_errno)error->code) {
	case LEASE_E_INVALID:
		return EX_USAGE;
	case LEASE_E_MEMORY:
	case LEASE_E_SYSTEM:
		return EX_OSERR;
	case LEASE_E_CONNECTION:
	case LEASE_E_READ_ONLY:
		return EX_UNAVAILABLE;
	case LEASE_E_TIMEOUT:
		return EX_TEMPFAIL;
	case LEASE_E_SERVER:
		return exit_code_of_server(error);
	case LEASE_E_SCHEMA:
		return EX_CONFIG;
	case LEASE_E_BUSY:
	case LEASE_E_PROTOCOL:
		break;
	}
	return EX_SOFTWARE;
}

/* What a person can do, where the message does not say it already. */
static const char *advice_text(const struct lease_error *error, int exit_code)
{
	if (error->outcome_unknown)
		return "; whether it took effect is not known: the same command again does no harm "
		       "and tells";
	switch (exit_code) {
	case EX_NOPERM:
		return "; grant this role lease_reader (to look) or lease_worker (to change runs)";
	case EX_TEMPFAIL:
		return "; try again";
	case EX_UNAVAILABLE:
		return error->code == LEASE_E_CONNECTION ? "; try again" : "";
	default:
		return "";
	}
}

int fail_with_error(const char *what, const struct lease_error *error)
{
	int exit_code = exit_code_for(error);
	const char *sqlstate = error->sqlstate;

	return fail(exit_code, "%s: %s%s%s%s%s", what, error->message,
		    sqlstate[0] ? " (SQLSTATE " : "", sqlstate, sqlstate[0] ? ")" : "",
		    advice_text(error, exit_code));
}

struct lease_error error_from_result(const PGconn *conn, const PGresult *result)
{
	const char *sqlstate = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
	const char *message = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
	struct lease_error error = { .code = sqlstate ? LEASE_E_SERVER : LEASE_E_CONNECTION };
	size_t length;

	snprintf(error.sqlstate, sizeof(error.sqlstate), "%s", sqlstate ? sqlstate : "");
	snprintf(error.message, sizeof(error.message), "%s",
		 message ? message : PQerrorMessage(conn));
	length = strlen(error.message);
	while (length > 0 && error.message[length - 1] == '\n')
		error.message[--length] = '\0';
	return error;
}
