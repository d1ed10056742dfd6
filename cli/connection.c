/*
 * connection.c - connecting: see connection.h for what it promises.
 */
#include "connection.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../daemon/config.h"
#include "failure.h"
#include "output.h"

/* Longest time for one host, in seconds, where nobody says otherwise. */
#define CONNECT_TIMEOUT "10"
#define PASSWORD_SIZE_MAX 4096

/* What is handed to libpq. */
struct target {
	char *conninfo; /* a connection string, a URI or a name; NULL: the environment's */
	char *password; /* of its own file; NULL: none */
	const char *place; /* what messages call the conninfo */
};

/* -- looking at a connection string, which must not be shown ---------------------------------- */

static bool is_uri(const char *text)
{
	return strncmp(text, "postgresql://", 13) == 0 || strncmp(text, "postgres://", 11) == 0;
}

/* As libpq decides (PQconnectdbParams, expand_dbname). */
static bool is_conninfo(const char *text)
{
	return is_uri(text) || strchr(text, '=');
}

/* libpq quotes from the string in its messages: this says the same without. */
static const char *explain_parse_error(const char *message)
{
	static const struct {
		const char *part, *text;
	} table[] = {
		{ "unterminated quoted string", "a single quote is not closed" },
		{ "missing \"=\"", "it must be keyword=value pairs, values with spaces in single "
				   "quotes" },
		{ "invalid connection option", "it holds a keyword that libpq does not know" },
		{ "percent",
		  "a '%' is not followed by two hexadecimal digits (write %25 for '%')" },
		{ "query parameter", "a parameter after '?' is unknown or not of the form "
				     "keyword=value" },
		{ "IPv6", "an IPv6 address must stand in brackets: [::1]" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (message && strstr(message, table[i].part))
			return table[i].text;
	return "libpq does not understand it";
}

static const char *option_value(const PQconninfoOption *options, const char *keyword)
{
	for (; options->keyword; options++)
		if (strcmp(options->keyword, keyword) == 0)
			return options->val;
	return NULL;
}

/*
 * libpq ends a URI's user and password at the first '@' or '/': a raw one within a password puts
 * the rest of it into the host's name, and so into messages. The same with a port that is none:
 * "postgresql://user:password/db", the host forgotten.
 */
static const char *find_displaced_password(const char *text, const PQconninfoOption *options)
{
	const char *port = option_value(options, "port");

	if (is_uri(text)) {
		const char *start = strstr(text, "://") + 3;
		const char *at = start + strcspn(start, "@/");
		const char *rest = *at == '@' ? at + 1 : start;

		if (memchr(rest, '@', strcspn(rest, "?")))
			return "a raw '@' or '/' stands within user, password, host or database "
			       "name (write %40 for '@', %2F for '/')";
	}
	if (port && port[strspn(port, "0123456789,")])
		return "the port is not a number";
	return NULL;
}

static int check_conninfo(const struct target *target, int exit_code)
{
	const char *text = target->conninfo;
	PQconninfoOption *options;
	char *message = NULL;
	const char *wrong;

	if (!is_conninfo(text)) {
		if (strchr(text, '@') && strpbrk(text, ":/"))
			return fail(exit_code, "%s: a URI begins with postgresql:// or postgres://",
				    target->place);
		return 0;
	}
	options = PQconninfoParse(text, &message);
	wrong = options ? find_displaced_password(text, options) : explain_parse_error(message);
	PQconninfoFree(options);
	PQfreemem(message);
	return wrong ? fail(exit_code, "%s: %s (the string is not shown, it may hold a password)",
			    target->place, wrong)
		     : 0;
}

/* -- the daemon's file ------------------------------------------------------------------------ */

/* The whole file is the password, but for the newline at its end. */
static int read_password(const char *path, char **ret)
{
	char buffer[PASSWORD_SIZE_MAX + 2];
	FILE *file = fopen(path, "re");
	size_t length;

	if (!file)
		return fail(EX_CONFIG, "%s: cannot read the password: %m", path);
	length = fread(buffer, 1, sizeof(buffer) - 1, file);
	if (ferror(file)) {
		fail(EX_CONFIG, "%s: cannot read the password: %m", path);
		fclose(file);
		return EX_CONFIG;
	}
	fclose(file);
	while (length > 0 && (buffer[length - 1] == '\n' || buffer[length - 1] == '\r'))
		length--;
	buffer[length] = '\0';
	if (length > PASSWORD_SIZE_MAX || strlen(buffer) != length || strchr(buffer, '\n'))
		return fail(EX_CONFIG, "%s: a password is one line of at most %d bytes", path,
			    PASSWORD_SIZE_MAX);
	*ret = xstrdup(buffer);
	explicit_bzero(buffer, sizeof(buffer));
	return 0;
}

static char *list_names(const struct config *config)
{
	char *list = xstrdup("");

	for (size_t i = 0; i < config->databases_count; i++) {
		char *longer = xasprintf("%s%s%s", list, i ? ", " : "", config->databases[i].name);

		free(list);
		list = longer;
	}
	return list;
}

static int choose_database(const struct connection_source *source, const struct config *config,
			   const struct config_database **ret)
{
	char *names;
	int r;

	if (!source->database && config->databases_count == 1) {
		*ret = &config->databases[0];
		return 0;
	}
	for (size_t i = 0; source->database && i < config->databases_count; i++)
		if (strcmp(config->databases[i].name, source->database) == 0) {
			*ret = &config->databases[i];
			return 0;
		}
	names = list_names(config);
	if (source->database)
		r = fail(EX_USAGE, "--database: %s names no database '%s'; there are: %s",
			 source->config, source->database, names);
	else
		r = fail(EX_USAGE, "%s names several databases: choose one with --database: %s",
			 source->config, names);
	free(names);
	return r;
}

static int target_from_config(const struct connection_source *source, struct target *target)
{
	const struct config_database *database = NULL;
	struct config *config = NULL;
	struct config_error error;
	int r = config_load(source->config, &config, &error);

	if (r < 0)
		return fail(-r, "%s", error.message);
	r = choose_database(source, config, &database);
	if (database) {
		target->place = "conninfo";
		target->conninfo = xstrdup(database->conninfo);
		r = check_conninfo(target, EX_CONFIG);
	}
	if (r == 0 && database && database->password_file)
		r = read_password(database->password_file, &target->password);
	config_free(config);
	return r;
}

int connection_list(const struct connection_source *source, char ***ret, size_t *ret_n)
{
	struct config *config = NULL;
	struct config_error error;
	char **names;
	int r = 0;

	if (source->config && !source->database)
		r = config_load(source->config, &config, &error);
	if (r < 0)
		return fail(-r, "%s", error.message);
	*ret_n = config ? config->databases_count : 1;
	*ret = names = xcalloc(*ret_n, sizeof(*names));
	for (size_t i = 0; config && i < *ret_n; i++)
		names[i] = xstrdup(config->databases[i].name);
	config_free(config);
	return 0;
}

void connection_free_names(char **names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
}

static enum lease_policy policy_of(enum config_policy policy)
{
	switch (policy) {
	case CONFIG_POLICY_RECORD:
		return LEASE_POLICY_RECORD;
	case CONFIG_POLICY_FAIL:
		return LEASE_POLICY_FAIL;
	case CONFIG_POLICY_REQUEUE:
		break;
	}
	return LEASE_POLICY_REQUEUE;
}

int connection_policy(const struct connection_source *source, enum lease_policy *ret_policy,
		      int *ret_max_lease_losses)
{
	const struct config_database *database = NULL;
	struct config *config = NULL;
	struct config_error error;
	int r;

	if (!source->config)
		return 0;
	r = config_load(source->config, &config, &error);
	if (r < 0)
		return fail(-r, "%s", error.message);
	r = choose_database(source, config, &database);
	if (database) {
		*ret_policy = policy_of(database->sweep.policy);
		*ret_max_lease_losses = database->sweep.max_lease_losses;
	}
	config_free(config);
	return r;
}

/* -- connecting ------------------------------------------------------------------------------- */

/* Whether conninfo, environment or a service may say how long connecting takes. */
static bool has_timeout(const char *conninfo)
{
	PQconninfoOption *defaults = PQconndefaults();
	PQconninfoOption *own = conninfo && is_conninfo(conninfo) ? PQconninfoParse(conninfo, NULL)
								  : NULL;
	bool has = (defaults && option_value(defaults, "connect_timeout")) ||
		   (own && (option_value(own, "connect_timeout") || option_value(own, "service")));

	PQconninfoFree(defaults);
	PQconninfoFree(own);
	return has;
}

static PGconn *connect_target(const struct target *target)
{
	const char *keywords[6], *values[6];
	size_t n = 0;

	/* what stands later wins, dbname with all that it expands to included */
	if (!has_timeout(target->conninfo)) {
		keywords[n] = "connect_timeout";
		values[n++] = CONNECT_TIMEOUT;
	}
	keywords[n] = "fallback_application_name";
	values[n++] = "leasectl";
	if (target->conninfo) {
		keywords[n] = "dbname";
		values[n++] = target->conninfo;
	}
	if (target->password) {
		keywords[n] = "password";
		values[n++] = target->password;
	}
	keywords[n] = "client_encoding";
	values[n++] = "UTF8";
	keywords[n] = NULL;
	values[n] = NULL;
	return PQconnectdbParams(keywords, values, 1);
}

/* A net below explain_parse_error: no message holds the password that was used. */
static char *hide_password(const char *message, const char *password)
{
	const char *found;
	char *hidden = xstrdup(message);

	if (!password || strlen(password) < 4)
		return hidden;
	while ((found = strstr(hidden, password))) {
		char *next = xasprintf("%.*s***%s", (int)(found - hidden), hidden,
				       found + strlen(password));

		free(hidden);
		hidden = next;
	}
	return hidden;
}

/* libpq hands on no SQLSTATE of a connection that failed; the words are the server's (class 28). */
static bool is_authentication(const char *message)
{
	static const char *const parts[] = { "authentication failed", "no pg_hba.conf entry",
					     "pg_hba.conf rejects", "FATAL:  role \"",
					     "permission denied for database" };

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (strstr(message, parts[i]))
			return true;
	return false;
}

static int fail_to_connect(const PGconn *conn)
{
	char *message = hide_password(PQerrorMessage(conn), PQpass(conn));
	size_t length = strlen(message);
	int r;

	while (length > 0 && message[length - 1] == '\n')
		message[--length] = '\0';
	if (PQconnectionNeedsPassword(conn))
		r = fail(EX_NOPERM,
			 "cannot connect: %s; put a password into ~/.pgpass, PGPASSWORD or "
			 "the configuration's password_file",
			 message);
	else if (is_authentication(message))
		r = fail(EX_NOPERM, "cannot connect: %s; check user, password and pg_hba.conf",
			 message);
	else
		r = fail(EX_UNAVAILABLE,
			 "cannot connect: %s; --dbname, --config or PGHOST, PGPORT and "
			 "PGDATABASE say where to",
			 message);
	free(message);
	return r;
}

static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

static int check_schema(PGconn *conn, enum connection_use use)
{
	struct lease_error error;
	int r;

	if (use == CONNECTION_RAW)
		return 0;
	r = lease_check_database(conn, 0, &error);
	/* on a standby the reading itself tells what is wrong with the schema */
	if (r == 0 || (r == LEASE_E_READ_ONLY && use == CONNECTION_READ))
		return 0;
	return fail_with_error("cannot use this database", &error);
}

int connection_open(const struct connection_source *source, enum connection_use use, PGconn **ret)
{
	struct target target = { .place = "--dbname" };
	PGconn *conn = NULL;
	int r = 0;

	if (source->config) {
		r = target_from_config(source, &target);
	} else if (source->dbname) {
		target.conninfo = xstrdup(source->dbname);
		r = check_conninfo(&target, EX_USAGE);
	}
	if (r == 0) {
		conn = connect_target(&target);
		if (!conn)
			r = fail(EX_OSERR, "out of memory");
		else if (PQstatus(conn) != CONNECTION_OK)
			r = fail_to_connect(conn);
	}
	free(target.conninfo);
	free(target.password);
	if (r == 0) {
		PQsetNoticeReceiver(conn, ignore_notice, NULL);
		r = check_schema(conn, use);
	}
	if (r == 0)
		*ret = conn;
	else
		PQfinish(conn);
	return r;
}
