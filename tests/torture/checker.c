/*
 * See checker.h. All that it remembers is in its own memory, where no fault reaches it; it must
 * never write to schema `lease`.
 */
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "checker.h"
#include "harness.h"
#include "lease.h"

enum {
	CHECKS = 64,
	LOOK_MS = 400,
	SHARE = 15, /* of the time, one in so many goes into the checks that read all */
	EVENTS = 5000,
};

/* A set of texts, by their hash. */
struct set {
	uint64_t *hashes;
	size_t n, room;
};

struct copy {
	char *kind, *run_id, *key, *row;
};

struct followed {
	int64_t event_id;
	char *run_id;
};

struct check {
	char *name, *sql;
};

struct checker {
	const char *conninfo, *seed;
	int stories;
	PGconn *conn;
	struct check checks[CHECKS];
	int n_checks;
	struct copy *copies;
	size_t n_copies, room_copies;
	struct set copied;
	char *copied_until; /* database time of the last look, less some */
	struct followed *followed;
	size_t n_followed, room_followed;
	char *cursor;
	long long next_look, next_full;
	struct set known; /* findings */
	long violations;
};

static void __attribute__((noreturn)) give_up(const char *what, const char *why)
{
	fprintf(stderr, "torture: %s: %s\n", what, why);
	exit(EX_SOFTWARE);
}

static void *checked(void *memory)
{
	if (!memory)
		give_up("memory", "there is none left");
	return memory;
}

/* Room for one more of an array's elements. */
static void *grown(void *array, size_t n, size_t *room, size_t size)
{
	if (n < *room)
		return array;
	*room = *room ? *room * 2 : 1024;
	return checked(reallocarray(array, *room, size));
}

/* -- sets --------------------------------------------------------------------------------------- */

/* FNV-1a, over the parts and a separator after each; never 0. */
static uint64_t hash_of(const char *a, const char *b, const char *c)
{
	const char *const parts[] = { a, b, c };
	uint64_t hash = UINT64_C(14695981039346656037);

	for (int i = 0; i < 3; i++) {
		for (const char *at = parts[i]; *at; at++)
			hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
		hash = (hash ^ 0xff) * UINT64_C(1099511628211);
	}
	return hash ? hash : 1;
}

static bool set_put(struct set *set, uint64_t hash)
{
	size_t at = set->room ? hash & (set->room - 1) : 0;

	if (set->n * 2 >= set->room) {
		struct set larger = { .room = set->room ? set->room * 2 : 4096 };

		larger.hashes = checked(calloc(larger.room, sizeof(*larger.hashes)));
		for (size_t i = 0; i < set->room; i++)
			if (set->hashes[i])
				set_put(&larger, set->hashes[i]);
		free(set->hashes);
		*set = larger;
		at = hash & (set->room - 1);
	}
	while (set->hashes[at] && set->hashes[at] != hash)
		at = (at + 1) & (set->room - 1);
	if (set->hashes[at])
		return false;
	set->hashes[at] = hash;
	set->n++;
	return true;
}

/* -- statements --------------------------------------------------------------------------------- */

static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

PGconn *checker_connection(struct checker *c)
{
	if (c->conn && PQstatus(c->conn) == CONNECTION_OK)
		return c->conn;
	PQfinish(c->conn);
	c->conn = PQconnectdb(c->conninfo);
	PQsetNoticeReceiver(c->conn, ignore_notice, NULL);
	if (PQstatus(c->conn) != CONNECTION_OK) {
		PQfinish(c->conn);
		c->conn = NULL;
	}
	return c->conn;
}

/* NULL: the server is away. */
static PGresult *ask(struct checker *c, const char *sql)
{
	PGconn *conn = checker_connection(c);
	PGresult *result = conn ? PQexec(conn, sql) : NULL;
	const char *state;

	if (PQresultStatus(result) == PGRES_TUPLES_OK ||
	    PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_COPY_IN)
		return result;
	state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
	/* 57: shut down or starting up; 08: lost. Without a code the connection is gone. */
	if (state && strncmp(state, "57", 2) != 0 && strncmp(state, "08", 2) != 0)
		give_up(sql, PQresultErrorMessage(result));
	PQclear(result);
	return NULL;
}

long long checker_number(struct checker *c, const char *sql)
{
	PGresult *result = ask(c, sql);
	long long number = result ? atoll(PQgetvalue(result, 0, 0)) : -1;

	PQclear(result);
	return number;
}

/* At the end the server is there to stay. */
static PGresult *must(struct checker *c, const char *sql)
{
	PGresult *result = ask(c, sql);

	if (!result)
		give_up(sql, "the server is away");
	return result;
}

/* -- findings ----------------------------------------------------------------------------------- */

/* The run as leasectl explains it: attempts, executions, operations, events. */
static void tell_story(const struct checker *c, const char *run_id)
{
	char *program = test_program("leasectl");
	struct process process;

	process_start(&process,
		      ((char *[]){ program, "explain", "--dbname", (char *)c->conninfo, "--",
				   (char *)run_id, NULL }),
		      NULL);
	process_wait(&process, TEST_PATIENCE_MS);
	printf("%s%s", process_output(&process), process_errors(&process));
	free(program);
}

void checker_report(struct checker *c, const char *check, const char *run_id, const char *what)
{
	if (!set_put(&c->known, hash_of(check, run_id ? run_id : "", run_id ? "" : what)))
		return;
	c->violations++;
	printf("\nVIOLATION %s: %s%s%s (seed %s)\n", check, run_id ? run_id : "",
	       run_id ? ": " : "", what, c->seed);
	if (run_id && c->violations <= c->stories)
		tell_story(c, run_id);
	fflush(stdout);
}

long checker_violations(const struct checker *c)
{
	return c->violations;
}

static void run_check(struct checker *c, const struct check *check)
{
	PGresult *result = ask(c, check->sql);

	for (int i = 0; i < PQntuples(result); i++)
		checker_report(c, check->name,
			       PQgetisnull(result, i, 0) ? NULL : PQgetvalue(result, i, 0),
			       PQgetvalue(result, i, 1));
	PQclear(result);
}

long checker_ask(struct checker *c, const char *name)
{
	long before = c->violations;

	for (int i = 0; i < c->n_checks; i++)
		if (strncmp(c->checks[i].name, name, strlen(name)) == 0)
			run_check(c, &c->checks[i]);
	return c->violations - before;
}

/* -- what is seen all the while ----------------------------------------------------------------- */

static void copy_closed(struct checker *c, const char *since)
{
	char sql[1024];
	PGresult *result;

	/* Closed some time before the last look and committed after it: nothing waits that long. */
	snprintf(
		sql, sizeof(sql),
		"SELECT 'attempt', run_id::text, attempt_no::text, a::text FROM lease.run_attempts a"
		" WHERE finished_at > '%s' UNION ALL "
		"SELECT 'execution', run_id, node_id || ' ' || attempt_no, e::text"
		"  FROM lease.node_executions e WHERE finished_at > '%s' UNION ALL "
		"SELECT NULL, NULL, NULL, (clock_timestamp() - interval '20 s')::text",
		since, since);
	result = ask(c, sql);
	for (int i = 0; i < PQntuples(result); i++) {
		struct copy *copy;

		if (PQgetisnull(result, i, 0)) {
			free(c->copied_until);
			c->copied_until = checked(strdup(PQgetvalue(result, i, 3)));
			continue;
		}
		if (!set_put(&c->copied, hash_of(PQgetvalue(result, i, 0), PQgetvalue(result, i, 1),
						 PQgetvalue(result, i, 2))))
			continue;
		c->copies = grown(c->copies, c->n_copies, &c->room_copies, sizeof(*c->copies));
		copy = &c->copies[c->n_copies++];
		copy->kind = checked(strdup(PQgetvalue(result, i, 0)));
		copy->run_id = checked(strdup(PQgetvalue(result, i, 1)));
		copy->key = checked(strdup(PQgetvalue(result, i, 2)));
		copy->row = checked(strdup(PQgetvalue(result, i, 3)));
	}
	PQclear(result);
}

/* As a consumer does it that keeps the cursor together with the events. */
static bool follow_events(struct checker *c)
{
	struct lease_event_batch *batch = NULL;
	struct lease_error error;
	PGconn *conn = checker_connection(c);
	size_t n;

	if (!conn)
		return false;
	if (lease_events_after(conn, c->cursor, EVENTS, &batch, &error) != 0) {
		if (lease_error_advice(&error) == LEASE_ADVICE_FIX)
			checker_report(c, "following events", NULL, error.message);
		PQfinish(c->conn);
		c->conn = NULL;
		return false;
	}
	n = batch->n;
	for (size_t i = 0; i < n; i++) {
		c->followed = grown(c->followed, c->n_followed, &c->room_followed,
				    sizeof(*c->followed));
		c->followed[c->n_followed++] = (struct followed){
			batch->events[i].event_id, checked(strdup(batch->events[i].run_id))
		};
	}
	free(c->cursor);
	c->cursor = checked(strdup(batch->cursor));
	lease_event_batch_free(batch);
	return n > 0;
}

static bool is_early(const struct check *check)
{
	return atoi(check->name) < 20;
}

void checker_look(struct checker *c)
{
	long long now = test_now_ms();

	if (now < c->next_look)
		return;
	copy_closed(c, c->copied_until ? c->copied_until : "-infinity");
	follow_events(c);
	if (now >= c->next_full) {
		for (int i = 0; i < c->n_checks; i++)
			if (is_early(&c->checks[i]))
				run_check(c, &c->checks[i]);
		c->next_full = test_now_ms() + (test_now_ms() - now) * SHARE;
	}
	c->next_look = test_now_ms() + LOOK_MS;
}

/* -- the end ------------------------------------------------------------------------------------ */

static void copy_text(FILE *line, const char *text, char end)
{
	for (; *text; text++)
		switch (*text) {
		case '\t':
			fputs("\\t", line);
			break;
		case '\n':
			fputs("\\n", line);
			break;
		case '\r':
			fputs("\\r", line);
			break;
		case '\\':
			fputs("\\\\", line);
			break;
		default:
			fputc(*text, line);
		}
	fputc(end, line);
}

static void copy_begin(struct checker *c, const char *table)
{
	char sql[128];

	snprintf(sql, sizeof(sql), "COPY torture.%s FROM STDIN", table);
	PQclear(must(c, sql));
}

static void copy_put(struct checker *c, const char *data, size_t length)
{
	if (PQputCopyData(c->conn, data, (int)length) != 1)
		give_up("COPY", PQerrorMessage(c->conn));
}

static void copy_end(struct checker *c)
{
	PGresult *result;

	if (PQputCopyEnd(c->conn, NULL) != 1)
		give_up("COPY", PQerrorMessage(c->conn));
	while ((result = PQgetResult(c->conn)) != NULL) {
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			give_up("COPY", PQresultErrorMessage(result));
		PQclear(result);
	}
}

/* A worker's file. Its last line may have been cut off with the worker. */
static void load_log(struct checker *c, const char *path)
{
	char *content = read_file(path), *end = strrchr(content, '\n');

	copy_begin(c, "acts");
	if (end)
		copy_put(c, content, (size_t)(end + 1 - content));
	copy_end(c);
	free(content);
}

void checker_prepare(struct checker *c)
{
	char *path = test_source("tests/torture/tables.sql"), *sql = read_file(path);

	PQclear(must(c, sql));
	free(path);
	free(sql);
}

/* What was seen, for the checks. */
static void keep(struct checker *c)
{
	char *line = NULL;
	size_t length = 0;
	FILE *memory;

	copy_begin(c, "copies");
	for (size_t i = 0; i < c->n_copies; i++) {
		memory = checked(open_memstream(&line, &length));
		copy_text(memory, c->copies[i].kind, '\t');
		copy_text(memory, c->copies[i].run_id, '\t');
		copy_text(memory, c->copies[i].key, '\t');
		copy_text(memory, c->copies[i].row, '\n');
		fclose(memory);
		copy_put(c, line, length);
		free(line);
	}
	copy_end(c);
	copy_begin(c, "followed");
	for (size_t i = 0; i < c->n_followed; i++) {
		memory = checked(open_memstream(&line, &length));
		fprintf(memory, "%zu\t%lld\t", i + 1, (long long)c->followed[i].event_id);
		copy_text(memory, c->followed[i].run_id, '\n');
		fclose(memory);
		copy_put(c, line, length);
		free(line);
	}
	copy_end(c);
}

long checker_finish(struct checker *c, char *const logs[], int n_logs)
{
	PGresult *result;
	long calls;

	copy_closed(c, "-infinity");
	while (follow_events(c))
		;
	keep(c);
	for (int i = 0; i < n_logs; i++)
		load_log(c, logs[i]);
	PQclear(must(c, "CREATE INDEX ON torture.acts (call);"
			"CREATE INDEX ON torture.followed (event_id);"
			"ANALYZE"));
	checker_ask(c, "");
	result = must(c, "SELECT count(*) FROM torture.acts WHERE result <> 'sent'"
			 "   AND (unknown OR result <> 'connection lost')");
	calls = atol(PQgetvalue(result, 0, 0));
	PQclear(result);
	return calls;
}

/* -- begin and end ------------------------------------------------------------------------------ */

/* In the order of their names. */
static void read_checks(struct checker *c)
{
	char *pattern = test_source("tests/torture/checks/*.sql");
	glob_t found;

	if (glob(pattern, 0, NULL, &found) != 0 || found.gl_pathc > CHECKS)
		give_up(pattern, "there are none, or too many");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *name = strrchr(found.gl_pathv[i], '/') + 1;

		c->checks[c->n_checks++] = (struct check){
			checked(strndup(name, strlen(name) - strlen(".sql"))),
			read_file(found.gl_pathv[i])
		};
	}
	globfree(&found);
	free(pattern);
}

struct checker *checker_new(const char *conninfo, const char *seed, int stories)
{
	struct checker *c = checked(calloc(1, sizeof(*c)));

	c->conninfo = conninfo;
	c->seed = seed;
	c->stories = stories;
	read_checks(c);
	return c;
}

void checker_free(struct checker *c)
{
	if (!c)
		return;
	PQfinish(c->conn);
	for (int i = 0; i < c->n_checks; i++) {
		free(c->checks[i].name);
		free(c->checks[i].sql);
	}
	for (size_t i = 0; i < c->n_copies; i++) {
		free(c->copies[i].kind);
		free(c->copies[i].run_id);
		free(c->copies[i].key);
		free(c->copies[i].row);
	}
	for (size_t i = 0; i < c->n_followed; i++)
		free(c->followed[i].run_id);
	free(c->copies);
	free(c->followed);
	free(c->copied.hashes);
	free(c->known.hashes);
	free(c->copied_until);
	free(c->cursor);
	free(c);
}
