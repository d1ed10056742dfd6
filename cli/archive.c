/*
 * leasectl archive - exports runs that ended long ago into files, and only then removes them.
 *
 * A batch: its facts are read in one snapshot, written, made durable and read back; what was read
 * back is what lease.remove_runs gets to see, and it removes nothing else. So whatever ends this
 * program, a fact is in the database, or in a file, or in both. The next call goes on from the
 * oldest run that is left.
 *
 * Must never: remove a run that no file holds; hold a lock while it writes to the disk.
 */
#include "archive.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archive_file.h"
#include "command.h"
#include "failure.h"
#include "json.h"
#include "lease.h"
#include "table.h"

#define BATCH_DEFAULT 500
#define BATCH_MAX 10000
#define AGE_MIN (86400 * LEASE_SECOND)
#define STEM_DATABASE_MAX 40

enum {
	ARCHIVE_OLDER_THAN,
	ARCHIVE_TO,
	ARCHIVE_TENANT,
	ARCHIVE_BATCH,
	ARCHIVE_LIMIT,
	ARCHIVE_DRY_RUN,
	ARCHIVE_SHOW,
	ARCHIVE_RUN
};

static const struct option archive_options[] = {
	[ARCHIVE_OLDER_THAN] = { "older-than", 0, OPTION_DURATION, "TIME",
				 "runs that ended at least so long ago, as in 90d; 1d or more" },
	[ARCHIVE_TO] = { "to", 0, OPTION_TEXT, "DIR", "the folder for the files" },
	[ARCHIVE_TENANT] = { "tenant", 0, OPTION_TEXT, "TENANT", "only this tenant's runs" },
	[ARCHIVE_BATCH] = { "batch", 0, OPTION_NUMBER, "N",
			    "runs in a file and in a transaction (500; 10000 at most)" },
	[ARCHIVE_LIMIT] = { "limit", 0, OPTION_NUMBER, "N", "stop after so many runs" },
	[ARCHIVE_DRY_RUN] = { "dry-run", 0, OPTION_FLAG, NULL,
			      "say what would be archived, do nothing" },
	[ARCHIVE_SHOW] = { "show", 0, OPTION_TEXT, "FILE",
			   "check a file of the archive and show what it holds" },
	[ARCHIVE_RUN] = { "run", 0, OPTION_TEXT, "RUN",
			  "with --show: this run's story, as explain tells it" },
};

struct archive {
	const struct output *output;
	PGconn *conn;
	struct archive_folder *folder;
	const char *tenant_id; /* NULL: all */
	int64_t batch, limit;
	char *cut; /* runs that ended before this time, as the database writes it */
	char *stem; /* the beginning of the files' names */
	char *last_finished_at, *last_run_id; /* behind which the next batch begins */
	struct json json;
	bool shows_progress;
	int64_t looked_at, removed, files;
	int64_t left; /* exported, and yet not removed */
};

/* -- stopping ------------------------------------------------------------------------------------ */

static volatile sig_atomic_t stop_signal;

static void note_signal(int number)
{
	stop_signal = number;
}

/* A file that grows beyond a limit is an error like a full disk. */
static void catch_signals(void)
{
	struct sigaction action = { .sa_handler = note_signal };

	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGXFSZ, SIG_IGN);
}

/* -- statements ---------------------------------------------------------------------------------- */

static int fail_with_result(const struct archive *archive, const char *what, PGresult *result)
{
	struct lease_error error = error_from_result(archive->conn, result);
	int r = strcmp(error.sqlstate, "42501") == 0
			? fail(EX_NOPERM, "%s: %s (SQLSTATE 42501); grant this role lease_archive",
			       what, error.message)
			: fail_with_error(what, &error);

	PQclear(result);
	return r;
}

/* 0 and the rows, for PQclear, or an exit code. */
static int ask(const struct archive *archive, const char *what, const char *statement, int n,
	       const char *const values[], PGresult **ret)
{
	PGresult *result = PQexecParams(archive->conn, statement, n, NULL, values, NULL, NULL, 0);

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		return fail_with_result(archive, what, result);
	*ret = result;
	return 0;
}

static int run(const struct archive *archive, const char *what, const char *statements)
{
	PGresult *result = PQexec(archive->conn, statements);

	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		return fail_with_result(archive, what, result);
	PQclear(result);
	return 0;
}

/* What is asked within a transaction depends on no setting of the role or the database. */
#define SETTINGS                                                                                   \
	"SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO'; SET LOCAL lock_timeout = '5s'; " \
	"SET LOCAL statement_timeout = '10min'; "                                                  \
	"SET LOCAL idle_in_transaction_session_timeout = '2min'; SET LOCAL jit = off; "            \
	"SET LOCAL max_parallel_workers_per_gather = 0"

static int begin_snapshot(const struct archive *archive)
{
	return run(archive, "cannot begin a transaction",
		   "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; " SETTINGS);
}

/* Several texts as one parameter, a text[]; each is quoted. To be freed by the caller. */
static char *array_of(const struct archive_summary *summary, bool digests)
{
	size_t room = 3, length = 0;
	char *array;

	for (size_t i = 0; i < summary->n_runs; i++)
		room += 2 * strlen(digests ? summary->runs[i].digest : summary->runs[i].run_id) + 3;
	array = xcalloc(room, 1);
	array[length++] = '{';
	for (size_t i = 0; i < summary->n_runs; i++) {
		const char *text = digests ? summary->runs[i].digest : summary->runs[i].run_id;

		if (i > 0)
			array[length++] = ',';
		array[length++] = '"';
		for (; *text; text++) {
			if (*text == '"' || *text == '\\')
				array[length++] = '\\';
			array[length++] = *text;
		}
		array[length++] = '"';
	}
	array[length] = '}';
	return array;
}

/* -- before the first batch ---------------------------------------------------------------------- */

/* "lease-DATABASE": letters that are safe in a file's name. */
static char *make_stem(const PGconn *conn)
{
	char *stem = xasprintf("lease-%.*s", STEM_DATABASE_MAX, PQdb(conn));

	for (char *c = stem; *c; c++)
		if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", *c))
			*c = '_';
	return stem;
}

/* Fixes the cut, and finds out now rather than after the first file whether anything may go. */
static int prepare(struct archive *archive, int64_t older_than, bool dry_run)
{
	static const char statement[] =
		"SELECT pg_catalog.to_char((pg_catalog.clock_timestamp() - $1::interval) AT TIME ZONE "
		"'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', "
		"pg_catalog.has_function_privilege(p.oid, 'EXECUTE'), "
		"pg_catalog.pg_get_userbyid(p.proowner) = 'lease_remover' FROM pg_catalog.pg_proc p "
		"WHERE p.oid = 'lease.remove_runs(text[],text[],timestamptz)'::regprocedure";
	char age[48];
	const char *values[] = { age };
	PGresult *result = NULL;
	int r;

	/* facts are exported in UTF-8, whatever the locale here is */
	if (PQsetClientEncoding(archive->conn, "UTF8") != 0)
		return fail(EX_SOFTWARE, "the server does not give text as UTF-8");
	snprintf(age, sizeof(age), "%" PRId64 " microseconds", older_than);
	r = ask(archive, "cannot look at the archive's function", statement, 1, values, &result);
	if (r)
		return r;
	archive->cut = xstrdup(PQgetvalue(result, 0, 0));
	archive->stem = make_stem(archive->conn);
	if (PQgetvalue(result, 0, 2)[0] != 't')
		r = fail(
			EX_CONFIG,
			"function lease.remove_runs does not belong to role lease_remover, so that "
			"it can remove nothing: see 'The schema' in docs/running.md");
	else if (PQgetvalue(result, 0, 1)[0] != 't')
		r = fail(EX_NOPERM,
			 "this role may not remove archived runs: grant it lease_archive");
	PQclear(result);
	return dry_run ? 0 : r;
}

/* -- exporting a batch --------------------------------------------------------------------------- */

/* The next runs as text[] and how many, when the first ended and which was the last. */
static int next_runs(struct archive *archive, char **ret_run_ids, int64_t *ret_n, char **ret_stem)
{
	static const char statement[] =
		"SELECT pg_catalog.count(*), pg_catalog.array_agg(b.run_id), "
		"pg_catalog.to_char(pg_catalog.min(b.finished_at), 'YYYYMMDD\"T\"HH24MISSUS\"Z\"'), "
		"pg_catalog.max(b.finished_at)::text, "
		"(pg_catalog.array_agg(b.run_id ORDER BY b.finished_at DESC, b.run_id DESC))[1] "
		"FROM (SELECT r.run_id::text COLLATE \"C\" AS run_id, r.finished_at FROM lease.runs r "
		"WHERE r.finished_at IS NOT NULL AND r.finished_at < $1::timestamptz "
		"AND (r.finished_at, r.run_id) > ($2::timestamptz, $3::text) "
		"AND ($4::text IS NULL OR r.tenant_id = $4::text) "
		"ORDER BY r.finished_at, r.run_id LIMIT $5::int8) b";
	int64_t wanted = archive->batch;
	char limit[24];
	const char *values[] = { archive->cut, archive->last_finished_at, archive->last_run_id,
				 archive->tenant_id, limit };
	PGresult *result = NULL;
	int r;

	if (wanted > archive->limit - archive->looked_at)
		wanted = archive->limit - archive->looked_at;
	snprintf(limit, sizeof(limit), "%" PRId64, wanted);
	r = ask(archive, "cannot look for runs", statement, 5, values, &result);
	if (r)
		return r;
	*ret_n = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	if (*ret_n > 0) {
		*ret_run_ids = xstrdup(PQgetvalue(result, 0, 1));
		*ret_stem = xasprintf("%s-%s", archive->stem, PQgetvalue(result, 0, 2));
		free(archive->last_finished_at);
		free(archive->last_run_id);
		archive->last_finished_at = xstrdup(PQgetvalue(result, 0, 3));
		archive->last_run_id = xstrdup(PQgetvalue(result, 0, 4));
	}
	PQclear(result);
	return 0;
}

static int write_header(const struct archive *archive, struct archive_writer *writer)
{
	/* columns with the types that their domains stand on */
	static const char statement[] =
		"SELECT pg_catalog.json_build_object('lease_archive', $3::int4, "
		"'schema_version', (SELECT pg_catalog.max(m.version) FROM lease.schema_migrations m), "
		"'database', pg_catalog.current_database(), "
		"'server_version', pg_catalog.current_setting('server_version'), "
		"'created_at', pg_catalog.clock_timestamp(), "
		"'finished_before', $1::timestamptz, 'tenant_id', $2::text, "
		"'columns', (SELECT pg_catalog.json_object_agg(t.relname, t.columns) FROM ("
		"SELECT c.relname, (SELECT pg_catalog.json_object_agg(a.attname, "
		"pg_catalog.format_type(CASE WHEN y.typtype = 'd' THEN y.typbasetype ELSE y.oid END, "
		"NULL) ORDER BY a.attnum) FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y "
		"ON y.oid = a.atttypid WHERE a.attrelid = c.oid AND a.attnum > 0 "
		"AND NOT a.attisdropped) AS columns FROM pg_catalog.pg_class c "
		"WHERE c.relnamespace = 'lease'::regnamespace AND c.relname IN ('runs', "
		"'run_attempts', 'nodes', 'operations', 'contents', 'node_executions', "
		"'checkpoints', 'run_events')) t))::text";
	char format[8];
	const char *values[] = { archive->cut, archive->tenant_id, format };
	PGresult *result = NULL;
	int r;

	snprintf(format, sizeof(format), "%d", ARCHIVE_FORMAT);
	r = ask(archive, "cannot describe the tables", statement, 3, values, &result);
	if (r)
		return r;
	r = archive_writer_add(writer, PQgetvalue(result, 0, 0));
	PQclear(result);
	return r;
}

/* Lines as they come, one at a time in memory. */
static int write_facts(const struct archive *archive, const char *run_ids,
		       struct archive_writer *writer)
{
	const char *values[] = { run_ids };
	PGresult *result = NULL;
	int r = 0;

	if (!PQsendQueryParams(archive->conn, "SELECT f.line FROM lease.run_facts($1::text[]) f", 1,
			       NULL, values, NULL, NULL, 0) ||
	    !PQsetSingleRowMode(archive->conn))
		return fail_with_result(archive, "cannot read facts", NULL);
	while ((result = PQgetResult(archive->conn))) {
		ExecStatusType status = PQresultStatus(result);

		if (r == 0 && stop_signal)
			r = EX_TEMPFAIL; /* told of where the batch ends */
		if (r == 0 && status == PGRES_SINGLE_TUPLE)
			r = archive_writer_add(writer, PQgetvalue(result, 0, 0));
		else if (r == 0 && status != PGRES_TUPLES_OK)
			return fail_with_result(archive, "cannot read facts", result);
		PQclear(result);
		if (r)
			return r; /* the connection is given up with the rest of the rows */
	}
	return r;
}

struct batch {
	int64_t n; /* 0: there are no more */
	struct archive_summary summary;
	char *path;
	bool reused;
};

static void batch_done(struct batch *batch)
{
	archive_summary_done(&batch->summary);
	free(batch->path);
}

/* The batch's file, with its name, on the disk and read back. */
static int export_batch(struct archive *archive, struct batch *batch)
{
	struct archive_writer *writer = NULL;
	char *run_ids = NULL, *stem = NULL;
	int r = begin_snapshot(archive);

	if (r == 0)
		r = next_runs(archive, &run_ids, &batch->n, &stem);
	if (r == 0 && batch->n > 0)
		r = archive_writer_open(archive->folder, &writer);
	if (r == 0 && writer)
		r = write_header(archive, writer);
	if (r == 0 && writer)
		r = write_facts(archive, run_ids, writer);
	if (r == 0)
		r = run(archive, "cannot end the transaction", "COMMIT");
	if (r == 0 && writer)
		r = archive_writer_finish(writer, stem, &batch->summary, &batch->path,
					  &batch->reused);
	if (r == 0 && (int64_t)batch->summary.n_runs != batch->n)
		r = fail(EX_SOFTWARE, "%s: %zu runs were written instead of %" PRId64, batch->path,
			 batch->summary.n_runs, batch->n);
	archive_writer_free(writer);
	free(run_ids);
	free(stem);
	return r;
}

/* -- removing a batch ---------------------------------------------------------------------------- */

/* Why a run was left, for people. */
static const char *reason_of(const char *verdict)
{
	static const char *const reasons[][2] = {
		{ "gone", "another leasectl archive has removed it" },
		{ "locked", "somebody holds its row" },
		{ "open_attempt", "an attempt of it is open" },
		{ "open_execution", "a node execution of it is open" },
		{ "changed", "something was added to it after it was exported" },
	};

	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
		if (strcmp(reasons[i][0], verdict) == 0)
			return reasons[i][1];
	return verdict;
}

static void tell_left(const struct archive *archive, const char *run_id, const char *verdict)
{
	if (archive->shows_progress)
		fputs("\r\033[K", stderr);
	note("run %s was exported and not removed: %s", run_id, reason_of(verdict));
}

static void take_verdicts(struct archive *archive, const PGresult *result, int64_t *ret_removed)
{
	for (int i = 0; i < PQntuples(result); i++) {
		const char *verdict = PQgetvalue(result, i, 1);

		if (strcmp(verdict, "removed") == 0) {
			++*ret_removed;
			continue;
		}
		tell_left(archive, PQgetvalue(result, i, 0), verdict);
		if (strcmp(verdict, "gone") != 0)
			archive->left++;
	}
}

static int remove_batch(struct archive *archive, const struct batch *batch, int64_t *ret_removed)
{
	static const char what[] = "cannot remove what was exported";
	char *run_ids = array_of(&batch->summary, false),
	     *digests = array_of(&batch->summary, true);
	const char *values[] = { run_ids, digests, archive->cut };
	PGresult *result = NULL;
	int r = run(archive, what, "BEGIN ISOLATION LEVEL READ COMMITTED; " SETTINGS);

	if (r == 0)
		r = ask(archive, what,
			"SELECT v.run_id, v.verdict FROM lease.remove_runs($1::text[], $2::text[], "
			"$3::timestamptz) v ORDER BY v.run_id",
			3, values, &result);
	if (r == 0)
		r = run(archive, what, "COMMIT");
	if (r == 0)
		take_verdicts(archive, result, ret_removed);
	PQclear(result);
	free(run_ids);
	free(digests);
	return r;
}

/* -- the batches --------------------------------------------------------------------------------- */

static int64_t rows_of(const struct archive_summary *summary)
{
	int64_t rows = 0;

	for (int i = 0; i < ARCHIVE_TABLES; i++)
		rows += summary->rows[i];
	return rows;
}

static void show_progress(const struct archive *archive, bool last)
{
	if (!archive->shows_progress)
		return;
	if (last)
		fputs("\r\033[K", stderr);
	else
		fprintf(stderr, "\r%" PRId64 " runs archived", archive->removed);
	fflush(stderr);
}

static void tell_batch(struct archive *archive, const struct batch *batch, int64_t removed)
{
	const struct output *output = archive->output;
	char *path;

	if (output->json) {
		json_begin_object(&archive->json, NULL);
		json_text(&archive->json, "file", batch->path);
		json_bool(&archive->json, "was_there", batch->reused);
		json_text(&archive->json, "sha256", batch->summary.sha256);
		json_number(&archive->json, "runs", batch->n);
		json_number(&archive->json, "rows", rows_of(&batch->summary));
		json_number(&archive->json, "removed", removed);
		json_end_object(&archive->json);
		return;
	}
	path = text_escape(batch->path, output->utf8);
	show_progress(archive, true);
	fprintf(output->file, "%s  %" PRId64 " runs, %" PRId64 " rows%s\n", path, batch->n,
		rows_of(&batch->summary), batch->reused ? " (was there already)" : "");
	fflush(output->file);
	free(path);
}

static int archive_batch(struct archive *archive, bool *ret_more)
{
	struct batch batch = { 0 };
	int64_t removed = 0;
	int r = export_batch(archive, &batch);

	if (r == 0 && batch.n > 0)
		r = remove_batch(archive, &batch, &removed);
	if (r == 0 && batch.n > 0) {
		archive->files++;
		archive->looked_at += batch.n;
		archive->removed += removed;
		tell_batch(archive, &batch, removed);
		show_progress(archive, false);
	}
	*ret_more = batch.n == archive->batch && archive->looked_at < archive->limit;
	batch_done(&batch);
	return r;
}

static void begin(struct archive *archive)
{
	if (!archive->output->json)
		return;
	json_init(&archive->json, archive->output->file);
	json_begin_object(&archive->json, NULL);
	json_text(&archive->json, "database", PQdb(archive->conn));
	json_text(&archive->json, "finished_before", archive->cut);
	json_begin_array(&archive->json, "files");
}

static void end(struct archive *archive)
{
	const struct output *output = archive->output;

	show_progress(archive, true);
	if (output->json) {
		json_end_array(&archive->json);
		json_number(&archive->json, "runs", archive->looked_at);
		json_number(&archive->json, "removed", archive->removed);
		json_number(&archive->json, "left", archive->left);
		json_end_object(&archive->json);
		return;
	}
	fprintf(output->file, "%" PRId64 " runs archived in %" PRId64 " files", archive->removed,
		archive->files);
	if (archive->left > 0)
		fprintf(output->file, ", %" PRId64 " left", archive->left);
	putc('\n', output->file);
}

static int archive_all(struct archive *archive)
{
	bool more = true;
	int r = 0;

	begin(archive);
	while (r == 0 && more && !stop_signal)
		r = archive_batch(archive, &more);
	if (stop_signal && (r == EX_TEMPFAIL || (r == 0 && more))) {
		end(archive);
		return fail(EX_TEMPFAIL,
			    "stopped by %s after %" PRId64
			    " runs: the same command goes on from there",
			    stop_signal == SIGINT ? "SIGINT" : "SIGTERM", archive->removed);
	}
	show_progress(archive, true);
	if (r && archive->removed > 0)
		note("%" PRId64 " runs were archived before: the same command goes on from there",
		     archive->removed);
	if (r)
		return r;
	end(archive);
	if (archive->left > 0)
		return fail(EX_TEMPFAIL,
			    "%" PRId64 " runs were exported and not removed: try again",
			    archive->left);
	return 0;
}

/* -- --dry-run ----------------------------------------------------------------------------------- */

static void print_plan(struct archive *archive, const PGresult *result)
{
	const struct output *output = archive->output;
	int64_t n = strtoll(PQgetvalue(result, 0, 0), NULL, 10), files;

	if (n > archive->limit)
		n = archive->limit;
	files = (n + archive->batch - 1) / archive->batch;
	if (output->json) {
		json_init(&archive->json, output->file);
		json_begin_object(&archive->json, NULL);
		json_text(&archive->json, "database", PQdb(archive->conn));
		json_text(&archive->json, "finished_before", archive->cut);
		json_bool(&archive->json, "dry_run", true);
		json_number(&archive->json, "runs", n);
		json_number(&archive->json, "files", files);
		json_text(&archive->json, "oldest_finished_at",
			  PQgetisnull(result, 0, 1) ? NULL : PQgetvalue(result, 0, 1));
		json_end_object(&archive->json);
		return;
	}
	fprintf(output->file, "would archive %" PRId64 " runs in %" PRId64 " files", n, files);
	if (n > 0)
		fprintf(output->file, "; the oldest ended at %s", PQgetvalue(result, 0, 1));
	putc('\n', output->file);
}

static int plan(struct archive *archive)
{
	static const char statement[] =
		"SELECT pg_catalog.count(*), pg_catalog.to_char(pg_catalog.min(r.finished_at) AT TIME "
		"ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM lease.runs r "
		"WHERE r.finished_at IS NOT NULL AND r.finished_at < $1::timestamptz "
		"AND ($2::text IS NULL OR r.tenant_id = $2::text)";
	const char *values[] = { archive->cut, archive->tenant_id };
	PGresult *result = NULL;
	int r = ask(archive, "cannot count runs", statement, 2, values, &result);

	if (r)
		return r;
	print_plan(archive, result);
	PQclear(result);
	return 0;
}

/* -- the command --------------------------------------------------------------------------------- */

static int check_show(const struct context *context)
{
	const struct option_value *values = context->values;

	for (int i = ARCHIVE_OLDER_THAN; i <= ARCHIVE_DRY_RUN; i++)
		if (values[i].given)
			return fail(EX_USAGE, "--show reads a file: --%s does not go with it",
				    archive_options[i].name);
	return 0;
}

static int check_options(const struct context *context)
{
	const struct option_value *values = context->values;

	if (values[ARCHIVE_SHOW].given)
		return check_show(context);
	if (values[ARCHIVE_RUN].given)
		return fail(EX_USAGE, "--run goes with --show: runs are archived by their age");
	if (!values[ARCHIVE_OLDER_THAN].given)
		return fail(EX_USAGE,
			    "--older-than is missing: how long ago must a run have ended, "
			    "as in 90d?");
	if (values[ARCHIVE_OLDER_THAN].number < AGE_MIN)
		return fail(
			EX_USAGE,
			"--older-than: at least 1d: commands that are repeated and consumers of "
			"events need the facts of runs that ended just now");
	if (!values[ARCHIVE_TO].given && !values[ARCHIVE_DRY_RUN].given)
		return fail(EX_USAGE, "--to is missing: the folder for the files");
	if (values[ARCHIVE_BATCH].given && values[ARCHIVE_BATCH].number > BATCH_MAX)
		return fail(EX_USAGE, "--batch: at most %d", BATCH_MAX);
	return 0;
}

static int archive_or_plan(struct archive *archive, const struct context *context)
{
	const struct option_value *values = context->values;
	bool dry_run = values[ARCHIVE_DRY_RUN].given;
	int r = 0;

	archive->last_finished_at = xstrdup("-infinity");
	archive->last_run_id = xstrdup("");
	if (values[ARCHIVE_TO].given)
		r = archive_folder_open(values[ARCHIVE_TO].text, &archive->folder);
	if (r == 0)
		r = connection_open(&context->source, dry_run ? CONNECTION_READ : CONNECTION_WRITE,
				    &archive->conn);
	if (r == 0)
		r = prepare(archive, values[ARCHIVE_OLDER_THAN].number, dry_run);
	if (r == 0)
		r = dry_run ? plan(archive) : archive_all(archive);
	PQfinish(archive->conn);
	archive_folder_close(archive->folder);
	free(archive->cut);
	free(archive->stem);
	free(archive->last_finished_at);
	free(archive->last_run_id);
	return r;
}

static int run_archive(struct context *context)
{
	const struct option_value *values = context->values;
	struct archive archive = {
		.output = &context->output,
		.tenant_id = values[ARCHIVE_TENANT].text,
		.batch = values[ARCHIVE_BATCH].given ? values[ARCHIVE_BATCH].number : BATCH_DEFAULT,
		.limit = values[ARCHIVE_LIMIT].given ? values[ARCHIVE_LIMIT].number : INT64_MAX,
		.shows_progress = isatty(STDERR_FILENO) == 1,
	};
	int r = check_options(context);

	if (r)
		return r;
	if (values[ARCHIVE_SHOW].given)
		return archive_show(&context->output, values[ARCHIVE_SHOW].text,
				    values[ARCHIVE_RUN].text);
	catch_signals();
	return archive_or_plan(&archive, context);
}

const struct command command_archive = {
	.name = "archive",
	.summary = "move runs that ended long ago into files, and show these",
	.description =
		"Exports runs that ended at least --older-than ago, with all their facts, into\n"
		"compressed files in --to, checks each file, and only then removes its runs from the\n"
		"database. Interrupted at any point nothing is lost, and the same command goes on. Exit\n"
		"code 75 if it was stopped, or if runs were exported that could not be removed yet.\n"
		"\n"
		"With --show nothing is connected to: checks a file and lists its runs, or with --run\n"
		"tells the story of one of them. Exit code 65 if the file is damaged or incomplete.",
	.options = archive_options,
	.n_options = sizeof(archive_options) / sizeof(archive_options[0]),
	.run = run_archive,
};
