/*
 * Peers that are packages: their own code makes the schema and rescues, in a process of its own
 * (rescue.js, which lies beside them in the build folder); only the rows come from here. The ORM's
 * statements, which are emulated.c's, go through a client library that is a package, too.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peers.h"

enum { LONG_MS = 600000 };

static void start_node(struct process *process, const struct peer *peer, char *action,
		       const char *conninfo)
{
	/* for those that it does not concern they are there in vain */
	char *const *orm = (char *const *)orm_statements;
	char *script = test_program("tests/peers/rescue.js"), *name = strdup(peer->name);
	char *database = strdup(database_of(conninfo));

	if (!name || !database)
		die("out of memory");
	process_start(process,
		      ((char *const[]){ "node", script, name, action, database, orm[ORM_LOST],
					orm[ORM_CLOSE], orm[ORM_ATTEMPT], orm[ORM_MOVE], NULL }),
		      ((char *const[]){ "NODE_ENV=production", NULL }));
	free(script);
	free(name);
	free(database);
}

static void end_node(struct process *process, const struct peer *peer)
{
	if (process_wait(process, LONG_MS) != 0)
		die("%s: %s", peer->name, process_errors(process));
}

char *make_by_package(const struct peer *peer, long rows)
{
	char *conninfo = test_database_create_empty();
	struct process process;

	start_node(&process, peer, "make", conninfo);
	end_node(&process, peer);
	load_rows(peer, conninfo, rows);
	return conninfo;
}

double rescue_by_package(const struct peer *peer, const char *conninfo)
{
	static const char answer[] = "{\"seconds\":";
	struct process process;
	const char *found;

	start_node(&process, peer, "rescue", conninfo);
	process_wait_text(&process, "{\"ready\":true}", TEST_PATIENCE_MS);
	rescue_begins();
	process_signal(&process, SIGUSR2);
	end_node(&process, peer);
	found = strstr(process_output(&process), answer);
	if (!found)
		die("%s did not say how long it took", peer->name);
	return atof(found + strlen(answer));
}
