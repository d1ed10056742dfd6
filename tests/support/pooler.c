/* See pooler.h. pgbouncer gives up root for the user of the test cluster's server. */
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pooler.h"

static char *__attribute__((format(printf, 1, 2))) text_of(const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		abort();
	va_end(arguments);
	return text;
}

/* Where prepare.sh puts it, then where packages do. */
static char *find_program(void)
{
	static const char *const places[] = { "/usr/sbin/pgbouncer", "/usr/bin/pgbouncer",
					      "/usr/local/sbin/pgbouncer",
					      "/usr/local/bin/pgbouncer" };
	char *own = test_program("tools/pgbouncer");

	if (access(own, X_OK) == 0)
		return own;
	free(own);
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		if (access(places[i], X_OK) == 0)
			return text_of("%s", places[i]);
	fail_msg("pgbouncer is not there: run tests/prepare.sh, which brings it");
	return NULL;
}

static const char *value_of(const PQconninfoOption *options, const char *keyword)
{
	while (options->keyword && strcmp(options->keyword, keyword) != 0)
		options++;
	return options->keyword && options->val ? options->val : "";
}

static char *write_settings(const char *server, const char *folder, int sessions)
{
	PQconninfoOption *options = PQconninfoParse(server, NULL);
	char *tmpdir = test_tmpdir(), *path = text_of("%s/pgbouncer.ini", tmpdir), *text;

	if (!options)
		fail_msg("no conninfo: %s", server);
	text = text_of("[databases]\npooled = host=%s port=%s user=%s dbname=%s\n"
		       "[pgbouncer]\nlisten_addr =\nunix_socket_dir = %s\nlisten_port = 6432\n"
		       "auth_type = any\npool_mode = transaction\ndefault_pool_size = %d\n"
		       "server_reset_query =\nlogfile =\npidfile =\n",
		       value_of(options, "host"), value_of(options, "port"),
		       value_of(options, "user"), value_of(options, "dbname"), folder, sessions);
	write_file(path, text);
	free(text);
	free(tmpdir);
	PQconninfoFree(options);
	return path;
}

static bool accepts(void *argument)
{
	struct pooler *pooler = argument;
	PGconn *conn;
	bool accepted;

	if (process_ended(&pooler->process))
		fail_msg("pgbouncer ended: %s", process_errors(&pooler->process));
	conn = PQconnectdb(pooler->conninfo);
	accepted = PQstatus(conn) == CONNECTION_OK;
	PQfinish(conn);
	return accepted;
}

void pooler_restart(struct pooler *pooler)
{
	char *program = find_program(), *user = getpwnam("postgres") ? "postgres" : "nobody";
	bool root = geteuid() == 0;

	process_start(&pooler->process,
		      ((char *[]){ program, root ? "-u" : pooler->settings, root ? user : NULL,
				   pooler->settings, NULL }),
		      NULL);
	if (!wait_until(accepts, pooler, TEST_PATIENCE_MS))
		fail_msg("pgbouncer takes no client: %s", process_errors(&pooler->process));
	free(program);
}

void pooler_start(struct pooler *pooler, const char *server, int sessions)
{
	static int number;
	char *folder = text_of("@lease-test-%d-%d", (int)getpid(), number++);

	pooler->socket = text_of("%s/.s.PGSQL.6432", folder);
	pooler->conninfo = text_of("host=%s port=6432 user=client dbname=pooled", folder);
	pooler->settings = write_settings(server, folder, sessions);
	pooler_restart(pooler);
	free(folder);
}

void pooler_stop(struct pooler *pooler)
{
	process_signal(&pooler->process, SIGTERM);
	process_wait(&pooler->process, TEST_PATIENCE_MS);
	free(pooler->settings);
	free(pooler->socket);
	free(pooler->conninfo);
}
