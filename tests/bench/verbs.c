/*
 * Claims and ends of runs by the library, beside the same statements sent by pgbench.
 *
 * The script for pgbench is taken from the library itself: one call of the verb is listened to as it
 * hands its statements to libpq, batch by batch, and written down with the run as a variable. So the
 * script cannot drift from what the library sends. Both sides prepare the statements. Two things
 * differ: pgbench numbers a parameter anew each time that it is used, and asks for results as text. What the library does with the
 * results (it decides between the batches) is what the comparison shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { ROUNDS_MAX = 8, SIDES = 2, PGBENCH_MS = 120000 };
static const char owner[] = "bench:5b0c1f8e-6a3d-4f0e-9d55-0d1c5a7b9e42";

/* -- listening -------------------------------------------------------------------------------- */

enum { ARGUMENTS_MAX = 128 };

/* A script for pgbench, and the values of its variables. */
struct script {
	char *path;
	FILE *file;
	const char *run_id; /* of the call that is listened to */
	bool in_batch;
	char *arguments[ARGUMENTS_MAX]; /* "-D", "p1=…" */
	int n;
};

static struct script *listening; /* NULL: to nobody */

/* A value that stays the same becomes a variable of its own, so that it is sent as a parameter. */
static void write_value(struct script *script, const char *value)
{
	char array[LEASE_ID_MAX + 5];

	snprintf(array, sizeof(array), "{\"%s\"}", script->run_id);
	if (!value)
		fputs("NULL", script->file);
	else if (strcmp(value, script->run_id) == 0)
		fputs(":run", script->file);
	else if (strcmp(value, array) == 0)
		fputs("ARRAY[:run]", script->file);
	else {
		if (script->n + 2 >= ARGUMENTS_MAX)
			die("a verb sends too many parameters");
		fprintf(script->file, ":p%d", script->n);
		script->arguments[script->n] = strdup("-D");
		if (asprintf(&script->arguments[script->n + 1], "p%d=%s", script->n, value) < 0)
			die("out of memory");
		script->n += 2;
	}
}

static void write_statement(struct script *script, const char *text, const char *const *values)
{
	if (!script->in_batch)
		fputs("\\startpipeline\n", script->file);
	script->in_batch = true;
	for (const char *at = text; *at;) {
		char *end;
		long number = *at == '$' ? strtol(at + 1, &end, 10) : 0;

		if (number > 0) {
			write_value(script, values[number - 1]);
			at = end;
		} else
			fputc(*at++, script->file);
	}
	fputs(";\n", script->file);
}

/* The linker puts these between the library and libpq (-Wl,--wrap in the Makefile). */
int __real_PQsendQueryParams(PGconn *conn, const char *command, int n, const Oid *types,
			     const char *const *values, const int *lengths, const int *formats,
			     int result_format);
int __wrap_PQsendQueryParams(PGconn *conn, const char *command, int n, const Oid *types,
			     const char *const *values, const int *lengths, const int *formats,
			     int result_format);
int __real_PQpipelineSync(PGconn *conn);
int __wrap_PQpipelineSync(PGconn *conn);

int __wrap_PQsendQueryParams(PGconn *conn, const char *command, int n, const Oid *types,
			     const char *const *values, const int *lengths, const int *formats,
			     int result_format)
{
	if (listening)
		write_statement(listening, command, values);
	return __real_PQsendQueryParams(conn, command, n, types, values, lengths, formats,
					result_format);
}

int __wrap_PQpipelineSync(PGconn *conn)
{
	if (listening) {
		fputs("\\endpipeline\n", listening->file);
		listening->in_batch = false;
	}
	return __real_PQpipelineSync(conn);
}

/* -- the verbs -------------------------------------------------------------------------------- */

struct verb {
	const char *name;
	int (*call)(PGconn *conn, const struct lease_token *token, struct lease_error *reterr);
	const char *from, *to; /* the run's status before and after */
};

static int mark_running(PGconn *conn, const struct lease_token *token, struct lease_error *reterr)
{
	struct lease_claim claim = { .run_id = token->run_id, .owner = token->owner, .ttl = TTL };
	struct lease_grant grant;

	return lease_mark_running(conn, &claim, &grant, reterr);
}

static int complete(PGconn *conn, const struct lease_token *token, struct lease_error *reterr)
{
	struct lease_finish finish = { .token = token, .status = LEASE_RUN_COMPLETED };
	struct lease_change change;

	return lease_set_terminal_status(conn, &finish, &change, reterr);
}

static const struct verb verbs[] = {
	{ "lease_mark_running", mark_running, "pending", "running" },
	{ "lease_set_terminal_status", complete, "running", "completed" },
};
enum { VERBS = sizeof(verbs) / sizeof(verbs[0]) };

static void call_verb(const struct verb *verb, PGconn *conn, const struct lease_token *token)
{
	struct lease_error error;
	int r = verb->call(conn, token, &error);

	if (r != 0)
		die("%s of %s: %s", verb->name, token->run_id,
		    r < 0 ? error.message : lease_refusal_name(r));
}

/* Runs are numbered, because pgbench can count; each stands for one claim and one end. */
static void set_token(struct lease_token *token, long run)
{
	snprintf(token->run_id, sizeof(token->run_id), "%ld", run);
	snprintf(token->owner, sizeof(token->owner), "%s", owner);
	token->attempt_no = 1;
}

static void listen_to(struct script *script, const struct verb *verb, PGconn *conn, long run)
{
	struct lease_token token;
	char *folder = test_tmpdir();

	set_token(&token, run);
	*script = (struct script){ .run_id = token.run_id };
	if (asprintf(&script->path, "%s/script", folder) < 0)
		die("out of memory");
	free(folder);
	script->file = fopen(script->path, "w");
	if (!script->file)
		die("%s cannot be written", script->path);
	fputs("\\set run :first + :client_id * :count + :next\n\\set next :next + 1\n",
	      script->file);
	listening = script;
	call_verb(verb, conn, &token);
	listening = NULL;
	if (fclose(script->file) != 0)
		die("%s cannot be written", script->path);
}

static void free_script(struct script *script)
{
	for (int i = 0; i < script->n; i++)
		free(script->arguments[i]);
	free(script->path);
}

/* -- the two sides ---------------------------------------------------------------------------- */

static const struct verb *calling; /* by call_next */

static long call_next(struct client *client)
{
	if (client->next == client->n)
		return 0;
	call_verb(calling, client->conn, &client->tokens[client->next++]);
	return 1;
}

/* Runs a second; each of the clients takes `count` of them, from `first` on. */
static double time_library(const struct verb *verb, const char *conninfo, long first, long count)
{
	struct lease_token *tokens = calloc((size_t)(CLIENTS * count), sizeof(*tokens));
	struct client clients[CLIENTS];
	double seconds = 0;
	long rows;

	if (!tokens)
		die("out of memory");
	for (long i = 0; i < CLIENTS * count; i++)
		set_token(&tokens[i], first + i);
	clients_open(clients, conninfo, tokens, (size_t)(CLIENTS * count));
	calling = verb;
	clients_run(clients, call_next, FOR_EVER_S, &rows);
	for (int i = 0; i < CLIENTS; i++)
		seconds = clients[i].seconds > seconds ? clients[i].seconds : seconds;
	clients_close(clients);
	free(tokens);
	return (double)rows / seconds;
}

static char *pgbench_program(PGconn *conn)
{
	char *path = sql_text(conn, "SELECT setting || '/pgbench' FROM pg_config "
				    "WHERE name = 'BINDIR'");

	if (access(path, X_OK) != 0)
		die("%s is missing: it comes with the server", path);
	return path;
}

static double time_pgbench(struct script *script, PGconn *conn, const char *conninfo, long first,
			   long count)
{
	char *program = pgbench_program(conn), clients[16], transactions[24], *variables[2];
	char *argv[ARGUMENTS_MAX + 32];
	struct process pgbench;
	const char *rate;
	double per_s;
	int n = 0;

	snprintf(clients, sizeof(clients), "%d", CLIENTS);
	snprintf(transactions, sizeof(transactions), "%ld", count);
	if (asprintf(&variables[0], "first=%ld", first) < 0 ||
	    asprintf(&variables[1], "count=%ld", count) < 0)
		die("out of memory");
	for (char *const *at =
		     (char *const[]){ program, "-n", "-M", "prepared", "-c", clients, "-j", clients,
				      "-t", transactions, "-f", script->path, "-D", "next=0", "-D",
				      variables[0], "-D", variables[1], NULL };
	     *at; at++)
		argv[n++] = *at;
	memcpy(argv + n, script->arguments, (size_t)script->n * sizeof(*argv));
	n += script->n;
	argv[n++] = (char *)conninfo;
	argv[n] = NULL;
	process_start(&pgbench, argv, NULL);
	if (process_wait(&pgbench, PGBENCH_MS) != 0)
		die("pgbench: %s", process_errors(&pgbench));
	rate = strstr(process_output(&pgbench), "tps = ");
	per_s = rate ? atof(rate + strlen("tps = ")) : 0;
	free(variables[0]);
	free(variables[1]);
	free(program);
	return per_s;
}

/* What was not written would have been fast. */
static void check_status(PGconn *conn, const char *status, long first, long n)
{
	long found = (long)sql_number(conn,
				      "SELECT count(*) FROM generate_series(%ld, %ld) i "
				      "JOIN lease.runs r ON r.run_id = i::text COLLATE \"C\" "
				      "WHERE r.status = '%s'",
				      first, first + n - 1, status);

	if (found != n)
		die("%ld runs of %ld are %s", found, n, status);
}

/* A round: each side claims runs of its own, then each ends them. */
static void run_round(struct script scripts[VERBS], PGconn *conn, const char *conninfo, int round,
		      long first, long count, double per_s[VERBS][SIDES])
{
	for (int verb = 0; verb < VERBS; verb++)
		for (int i = 0; i < SIDES; i++) {
			int side = (i + round) % SIDES;
			long from = first + (long)side * CLIENTS * count;

			per_s[verb][side] = side == 0 ? time_library(&verbs[verb], conninfo, from,
								     count)
						      : time_pgbench(&scripts[verb], conn, conninfo,
								     from, count);
			check_status(conn, verbs[verb].to, from, CLIENTS * count);
		}
}

static void make_runs(PGconn *conn, long first, long n)
{
	sql(conn, "INSERT INTO lease.runs (run_id) SELECT i::text FROM generate_series(%ld, %ld) i",
	    first, first + n - 1);
}

/* Round 0 warms up. */
static void measure_rates(struct bench *bench, PGconn *conn, const char *conninfo)
{
	int rounds = bench->quick ? 2 : 3;
	long count = bench->quick ? 40 : 250, first = 1000000;
	double ratios[VERBS][ROUNDS_MAX], per_s[VERBS][ROUNDS_MAX];
	struct script scripts[VERBS];

	make_runs(conn, 1, 1);
	for (int i = 0; i < VERBS; i++)
		listen_to(&scripts[i], &verbs[i], conn, 1);
	for (int round = 0; round <= rounds; round++, first += (long)SIDES * CLIENTS * count) {
		double rates[VERBS][SIDES];

		make_runs(conn, first, (long)SIDES * CLIENTS * count);
		sql(conn, "ANALYZE lease.runs, lease.run_attempts");
		run_round(scripts, conn, conninfo, round, first, count, rates);
		for (int i = 0; round > 0 && i < VERBS; i++) {
			ratios[i][round - 1] = rates[i][0] / rates[i][1];
			per_s[i][round - 1] = rates[i][0];
		}
	}
	for (int i = 0; i < VERBS; i++)
		free_script(&scripts[i]);
	figure("mark_running_per_s", median(per_s[0], rounds), "runs/s", NO_AIM, 0,
	       "lease_mark_running on 8 connections, synchronous_commit off");
	figure("mark_running_vs_pgbench", median(ratios[0], rounds), "ratio", AT_LEAST, 0.7,
	       "the same / its statements scripted in pgbench");
	figure("set_terminal_status_per_s", median(per_s[1], rounds), "runs/s", NO_AIM, 0,
	       "lease_set_terminal_status likewise");
	figure("set_terminal_status_vs_pgbench", median(ratios[1], rounds), "ratio", AT_LEAST, 0.7,
	       "the same / its statements scripted in pgbench");
}

/* -- round trips ------------------------------------------------------------------------------ */

static int renew(PGconn *conn, const struct lease_token *token, struct lease_error *reterr)
{
	return lease_renew_lease(conn, token, TTL, LEASE_TIMEOUT_DEFAULT, NULL, reterr);
}

static int claim_next(PGconn *conn, const struct lease_token *token, struct lease_error *reterr)
{
	struct lease_claim claim = { .owner = token->owner, .ttl = TTL };
	struct lease_grant grant;

	return lease_claim_next(conn, &claim, &grant, reterr);
}

/* How often the server had the word after the client: in libpq's trace F is sent, B is received. */
static int count_turns(PGconn *conn, const struct verb *verb, long run)
{
	struct lease_token token;
	char *trace = NULL, before = 'B';
	size_t size = 0;
	FILE *file = open_memstream(&trace, &size);
	int turns = 0;

	if (!file)
		die("out of memory");
	set_token(&token, run);
	PQtrace(conn, file);
	PQsetTraceFlags(conn, PQTRACE_SUPPRESS_TIMESTAMPS);
	call_verb(verb, conn, &token);
	PQuntrace(conn);
	fclose(file);
	for (char *line = trace; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if ((line[0] != 'F' && line[0] != 'B') || line[1] != '\t')
			continue;
		turns += line[0] == 'B' && before == 'F';
		before = line[0];
	}
	free(trace);
	if (turns == 0)
		die("libpq traced nothing");
	return turns;
}

/* Of so many calls in a row, in the midst of which the library begins to prepare its statements. */
enum { CALLS = 10 };

static double most_turns(PGconn *conn, const struct verb *verb, long first)
{
	int most = 0;

	for (long run = first; run < first + CALLS; run++) {
		int turns = count_turns(conn, verb, run);

		most = turns > most ? turns : most;
	}
	return most;
}

static void measure_round_trips(PGconn *conn)
{
	static const struct verb renewal = { .name = "lease_renew_lease", .call = renew };
	static const struct verb claim = { .name = "lease_claim_next", .call = claim_next };

	make_runs(conn, 100, 2L * CALLS);
	figure("mark_running_round_trips", most_turns(conn, &verbs[0], 100), "", AT_MOST, 2,
	       "counted in libpq's trace, the most of ten calls");
	figure("renew_round_trips", most_turns(conn, &renewal, 100), "", AT_MOST, 1,
	       "the same for lease_renew_lease");
	figure("set_terminal_status_round_trips", most_turns(conn, &verbs[1], 100), "", AT_MOST, 2,
	       "the same for lease_set_terminal_status");
	figure("claim_next_round_trips", most_turns(conn, &claim, 100 + CALLS), "", NO_AIM, 0,
	       "the same for lease_claim_next, which has to find the run first");
}

void measure_verbs(struct bench *bench)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);
	char *database = sql_text(conn, "SELECT quote_ident(current_database())");

	/* for pgbench's connections, too: no wait for the disk hides the difference */
	sql(conn, "ALTER DATABASE %s SET synchronous_commit = off", database);
	free(database);
	progress("verbs: beside pgbench");
	measure_rates(bench, conn, conninfo);
	progress("verbs: round trips");
	measure_round_trips(conn);
	drop_database(conn, conninfo);
}
