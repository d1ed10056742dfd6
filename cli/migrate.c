/*
 * leasectl migrate - brings schema `lease` to the newest migration that this program holds.
 *
 * Promises: each migration is one transaction, taken whole or not at all, and applied once however
 * many do this at one moment: under an advisory lock that lives as long as the transaction, the
 * record in lease.schema_migrations is read anew. A record that does not fit the migrations held
 * here (changed, unknown, with a gap) is refused before anything is done.
 *
 * Must never: go back, change the record of an applied migration, or wait for a lock so long that
 * the leases of a working system run out behind it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "migrations.h"
#include "table.h"

/*
 * The key of the advisory lock: the bytes of "leasemig". It is one per database (PostgreSQL manual,
 * "Advisory Locks"); what databases of one cluster share, the roles, migration 0003 makes in a way
 * that bears others at the same work.
 */
#define LOCK_KEY INT64_C(0x6c656173656d6967)

enum { OPTION_STATUS, OPTION_DRY_RUN };

static const struct option options[] = {
	[OPTION_STATUS] = { "status", 0, OPTION_FLAG, NULL,
			    "list all migrations, applied or not; change nothing" },
	[OPTION_DRY_RUN] = { "dry-run", 0, OPTION_FLAG, NULL,
			     "say what would be applied; change nothing" },
};

/* A row of lease.schema_migrations. */
struct applied {
	int version;
	char *name, *checksum;
	int64_t applied_at;
};

struct record {
	struct applied *rows; /* by version */
	size_t n;
};

struct migrate {
	struct output *output;
	PGconn *conn;
	char **notes; /* what migrations had to say */
	size_t n_notes;
	int *done; /* versions applied by this call */
	size_t n_done;
};

/* -- statements ------------------------------------------------------------------------------- */

/* Nobody who was granted lease_reader or lease_worker may migrate, so say what does help. */
static int fail_with_result(const struct migrate *migrate, const char *what, const PGresult *result)
{
	struct lease_error error = error_from_result(migrate->conn, result);
	int exit_code = exit_code_for(&error);

	if (exit_code != EX_NOPERM)
		return fail_with_error(what, &error);
	return fail(exit_code,
		    "%s: %s (SQLSTATE %s); migrate as the owner of the database, of schema "
		    "lease, or as a superuser",
		    what, error.message, error.sqlstate);
}

static bool succeeded(const PGresult *result)
{
	return PQresultStatus(result) == PGRES_COMMAND_OK ||
	       PQresultStatus(result) == PGRES_TUPLES_OK;
}

/* Runs a statement; *ret_result may be NULL. 0 or an exit code. */
static int run(const struct migrate *migrate, const char *what, const char *statement,
	       PGresult **ret_result)
{
	PGresult *result = PQexec(migrate->conn, statement);

	if (!succeeded(result)) {
		int r = fail_with_result(migrate, what, result);

		PQclear(result);
		return r;
	}
	if (ret_result)
		*ret_result = result;
	else
		PQclear(result);
	return 0;
}

/* Runs a statement that gives one boolean. */
static int ask(const struct migrate *migrate, const char *what, const char *statement, bool *ret)
{
	PGresult *result = NULL;
	int r = run(migrate, what, statement, &result);

	if (r)
		return r;
	*ret = strcmp(PQgetvalue(result, 0, 0), "t") == 0;
	PQclear(result);
	return 0;
}

/* -- the record ------------------------------------------------------------------------------- */

static void record_done(struct record *record)
{
	for (size_t i = 0; i < record->n; i++) {
		free(record->rows[i].name);
		free(record->rows[i].checksum);
	}
	free(record->rows);
	*record = (struct record){ 0 };
}

static void record_fill(struct record *record, const PGresult *result)
{
	record->n = (size_t)PQntuples(result);
	record->rows = xcalloc(record->n + 1, sizeof(*record->rows));
	for (int row = 0; row < PQntuples(result); row++)
		record->rows[row] = (struct applied){
			.version = atoi(PQgetvalue(result, row, 0)),
			.name = xstrdup(PQgetvalue(result, row, 1)),
			.checksum = xstrdup(PQgetvalue(result, row, 2)),
			.applied_at = PQgetisnull(result, row, 3)
					      ? LEASE_TIME_NONE
					      : strtoll(PQgetvalue(result, row, 3), NULL, 10),
		};
}

/*
 * The table is there only after the first migration. to_regclass would not do: it looks into this
 * session's cache, which a lock that is no table's does not bring up to date, so that what another
 * session made while this one waited would still be missing.
 */
static int record_read(const struct migrate *migrate, struct record *ret)
{
	static const char what[] = "cannot read which migrations are applied";
	PGresult *result = NULL;
	bool is_there;
	int r;

	record_done(ret);
	r = ask(migrate, what,
		"SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
		" ON n.oid = c.relnamespace"
		" WHERE n.nspname = 'lease' AND c.relname = 'schema_migrations')",
		&is_there);
	if (r || !is_there)
		return r;
	r = run(migrate, what,
		"SELECT m.version, m.name, m.checksum, CASE WHEN isfinite(m.applied_at) THEN"
		" (extract(epoch FROM m.applied_at) * 1000000)::int8 END"
		" FROM lease.schema_migrations m ORDER BY m.version",
		&result);
	if (r)
		return r;
	record_fill(ret, result);
	PQclear(result);
	return 0;
}

static const struct applied *record_find(const struct record *record, int version)
{
	for (size_t i = 0; i < record->n; i++)
		if (record->rows[i].version == version)
			return &record->rows[i];
	return NULL;
}

static int record_version(const struct record *record)
{
	return record->n > 0 ? record->rows[record->n - 1].version : 0;
}

static const struct lease_migration *find_migration(int version)
{
	for (int i = 0; i < lease_migrations_count; i++)
		if (lease_migrations[i].version == version)
			return &lease_migrations[i];
	return NULL;
}

static int newest_version(void)
{
	return lease_migrations_count > 0 ? lease_migrations[lease_migrations_count - 1].version
					  : 0;
}

static int refuse_unknown(const struct applied *applied)
{
	if (applied->version > newest_version())
		return fail(EX_DATAERR,
			    "this database has migration %d (%s), this leasectl knows them "
			    "up to %d: install a newer one; nothing was done",
			    applied->version, applied->name, newest_version());
	return fail(EX_DATAERR,
		    "this database records migration %d (%s), which this leasectl does not "
		    "know: use the leasectl that applied it; nothing was done",
		    applied->version, applied->name);
}

/* Whether the record fits the migrations held here: 0 or an exit code. */
static int record_check(const struct record *record)
{
	for (size_t i = 0; i < record->n; i++) {
		const struct applied *applied = &record->rows[i];
		const struct lease_migration *known = find_migration(applied->version);

		if (!known)
			return refuse_unknown(applied);
		if (strcmp(known->checksum, applied->checksum) != 0)
			return fail(EX_DATAERR,
				    "migration %s was changed after it had been applied: "
				    "its checksum is %.12s, this database records %.12s; "
				    "use the leasectl that applied it; nothing was done",
				    known->name, known->checksum, applied->checksum);
	}
	for (int i = 0; i < lease_migrations_count; i++)
		if (lease_migrations[i].version < record_version(record) &&
		    !record_find(record, lease_migrations[i].version))
			return fail(EX_DATAERR,
				    "migration %s is not recorded although %d is: "
				    "lease.schema_migrations has a gap; put the lost row "
				    "back; nothing was done",
				    lease_migrations[i].name, record_version(record));
	return 0;
}

/* -- applying one ----------------------------------------------------------------------------- */

/* Migrations speak by notices and warnings; the server's own ("already exists") are noise. */
static void take_notice(void *argument, const PGresult *result)
{
	struct migrate *migrate = argument;
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	bool own = message && strncmp(message, "lease: ", 7) == 0;

	if (!message || !severity || (!own && strcmp(severity, "WARNING") != 0))
		return;
	migrate->notes = xreallocarray(migrate->notes, migrate->n_notes + 1,
				       sizeof(*migrate->notes));
	migrate->notes[migrate->n_notes++] = xstrdup(own ? message + 7 : message);
}

/* The line of the n-th character (from 1; a position as PostgreSQL counts them). */
static int line_of(const char *text, long position)
{
	int line = 1;

	for (; *text && position > 1; text++) {
		if ((*text & 0xc0) != 0x80)
			position--;
		line += *text == '\n';
	}
	return line;
}

/* Where in the file it went wrong: the line if the server says, else the statement's number. */
static char *describe_place(const struct lease_migration *migration, const PGresult *result,
			    int statement)
{
	const char *position = PQresultErrorField(result, PG_DIAG_STATEMENT_POSITION);
	const char *context = PQresultErrorField(result, PG_DIAG_CONTEXT);

	if (position)
		return xasprintf("line %d", line_of(migration->sql, atol(position)));
	if (context)
		return xasprintf("statement %d (%.*s)", statement, (int)strcspn(context, "\n"),
				 context);
	return xasprintf("statement %d", statement);
}

static int fail_in_file(const struct migrate *migrate, const struct lease_migration *migration,
			const PGresult *result, int statement)
{
	struct lease_error error = error_from_result(migrate->conn, result);
	int exit_code = exit_code_for(&error);
	char *place;

	if (error.code == LEASE_E_CONNECTION)
		return fail(exit_code, "migration %s: %s; nothing of it was applied: try again",
			    migration->name, error.message);
	place = describe_place(migration, result, statement);
	/* what is wrong is mostly something in the database that is in the way */
	if (exit_code == EX_SOFTWARE)
		exit_code = EX_DATAERR;
	fail(exit_code, "migration %s.sql, %s: %s (SQLSTATE %s); it was rolled back%s",
	     migration->name, place, error.message, error.sqlstate,
	     exit_code == EX_TEMPFAIL ? ": try again"
	     : exit_code == EX_NOPERM
		     ? ": migrate as the owner of the database, of schema lease, or "
		       "as a superuser"
	     : migrate->n_done > 0 ? ", the earlier ones stay"
				   : "");
	free(place);
	return exit_code;
}

/* The file as one simple query, statement by statement answered. */
static int run_file(const struct migrate *migrate, const struct lease_migration *migration)
{
	PGresult *result, *failed = NULL;
	int statement = 1, r = 0;

	if (!PQsendQuery(migrate->conn, migration->sql))
		return fail_in_file(migrate, migration, NULL, 0);
	while ((result = PQgetResult(migrate->conn))) {
		ExecStatusType status = PQresultStatus(result);

		if (status == PGRES_COPY_IN || status == PGRES_COPY_OUT) {
			PQclear(result);
			return fail(EX_SOFTWARE, "migration %s.sql uses COPY, which it must not",
				    migration->name);
		}
		if (!failed && (status == PGRES_FATAL_ERROR || status == PGRES_BAD_RESPONSE)) {
			failed = result;
			continue;
		}
		statement += !failed;
		PQclear(result);
	}
	if (failed)
		r = fail_in_file(migrate, migration, failed, statement);
	else if (PQtransactionStatus(migrate->conn) != PQTRANS_INTRANS)
		r = fail(EX_SOFTWARE,
			 "migration %s.sql ends its transaction itself, which it must not",
			 migration->name);
	PQclear(failed);
	return r;
}

static int write_record(const struct migrate *migrate, const struct lease_migration *migration)
{
	char version[16];
	const char *values[] = { version, migration->name, migration->checksum };
	PGresult *result = NULL;
	int r = 0;

	snprintf(version, sizeof(version), "%d", migration->version);
	result = PQexecParams(migrate->conn,
			      "INSERT INTO lease.schema_migrations (version, name, checksum)"
			      " VALUES ($1::int4, $2::text, $3::text)",
			      3, NULL, values, NULL, NULL, 0);
	if (!succeeded(result))
		r = fail_with_result(migrate, "cannot record the migration", result);
	PQclear(result);
	return r;
}

/*
 * READ COMMITTED, whatever the default: what is read after the lock must be newer than the lock.
 * The settings keep those of a role or database from changing what a file means or how it ends.
 */
static const char begin_statement[] = "BEGIN ISOLATION LEVEL READ COMMITTED;"
				      "SET LOCAL search_path = pg_catalog, pg_temp;"
				      "SET LOCAL standard_conforming_strings = on;"
				      "SET LOCAL client_min_messages = notice;"
				      "SET LOCAL statement_timeout = 0;"
				      "SET LOCAL idle_in_transaction_session_timeout = 0;"
				      "SET LOCAL lock_timeout = '60s'";

/* Another one at work is told of, and waited for. */
static int take_lock(const struct migrate *migrate)
{
	static const char what[] = "cannot take the lock that migrations are applied under";
	char statement[96];
	bool taken = false;
	int r;

	snprintf(statement, sizeof(statement),
		 "SELECT pg_catalog.pg_try_advisory_xact_lock(%" PRId64 ")", LOCK_KEY);
	r = ask(migrate, what, statement, &taken);
	if (r || taken)
		return r;
	note("another leasectl migrates this database: waiting for it");
	snprintf(statement, sizeof(statement),
		 "SELECT pg_catalog.pg_advisory_xact_lock(%" PRId64 ")", LOCK_KEY);
	return run(migrate, what, statement, NULL);
}

static int commit(struct migrate *migrate, const struct lease_migration *migration)
{
	PGresult *result = NULL;
	int r = run(migrate, "cannot commit the migration", "COMMIT", &result);

	if (r)
		return r;
	/* a transaction that failed without a word answers COMMIT with ROLLBACK */
	if (strcmp(PQcmdStatus(result), "COMMIT") != 0)
		r = fail(EX_SOFTWARE, "migration %s was rolled back by the server",
			 migration->name);
	PQclear(result);
	if (r == 0)
		migrate->done[migrate->n_done++] = migration->version;
	return r;
}

/* In the open transaction, under the lock. */
static int apply_locked(struct migrate *migrate, const struct lease_migration *migration)
{
	struct record record = { 0 };
	bool is_applied = false;
	int r = record_read(migrate, &record);

	if (r == 0)
		r = record_check(&record);
	if (r == 0)
		is_applied = record_find(&record, migration->version) != NULL;
	record_done(&record);
	if (r || is_applied)
		return r ? r : run(migrate, "cannot end the transaction", "ROLLBACK", NULL);
	/* others' leases wait behind a lock on a table: rather try again than hold them up */
	r = run(migrate, "cannot set a timeout", "SET LOCAL lock_timeout = '5s'", NULL);
	if (r == 0)
		r = run_file(migrate, migration);
	if (r == 0)
		r = write_record(migrate, migration);
	return r ? r : commit(migrate, migration);
}

static int apply(struct migrate *migrate, const struct lease_migration *migration)
{
	int r = run(migrate, "cannot begin a transaction", begin_statement, NULL);

	if (r == 0)
		r = take_lock(migrate);
	if (r == 0)
		r = apply_locked(migrate, migration);
	if (r && PQtransactionStatus(migrate->conn) != PQTRANS_IDLE)
		PQclear(PQexec(migrate->conn, "ROLLBACK"));
	return r;
}

/* -- migrate ---------------------------------------------------------------------------------- */

static int check_writable(const struct migrate *migrate)
{
	bool read_only;
	int r = ask(migrate, "cannot use this database",
		    "SELECT pg_catalog.pg_is_in_recovery()"
		    " OR pg_catalog.current_setting('transaction_read_only') = 'on'",
		    &read_only);

	if (r || !read_only)
		return r;
	return fail(EX_UNAVAILABLE,
		    "this server is a standby or read-only: connect to the primary");
}

/* The notes since the last call. */
static void print_notes(const struct migrate *migrate, size_t from)
{
	const struct output *output = migrate->output;

	for (size_t i = from; !output->json && i < migrate->n_notes; i++) {
		char *text = text_escape(migrate->notes[i], output->utf8);

		fprintf(output->file, "%snote:%s %s\n", style_on(output, STYLE_WARNING),
			style_off(output, STYLE_WARNING), text);
		free(text);
	}
}

static void print_summary(const struct migrate *migrate)
{
	struct json json;

	if (!migrate->output->json) {
		fprintf(migrate->output->file, "schema lease is at version %d%s\n",
			newest_version(), migrate->n_done == 0 ? ": nothing to apply" : "");
		return;
	}
	json_init(&json, migrate->output->file);
	json_begin_object(&json, NULL);
	json_text(&json, "database", PQdb(migrate->conn));
	json_number(&json, "version", newest_version());
	json_begin_array(&json, "applied");
	for (size_t i = 0; i < migrate->n_done; i++)
		json_text(&json, NULL, find_migration(migrate->done[i])->name);
	json_end_array(&json);
	json_begin_array(&json, "notes");
	for (size_t i = 0; i < migrate->n_notes; i++)
		json_text(&json, NULL, migrate->notes[i]);
	json_end_array(&json);
	json_end_object(&json);
}

static int apply_pending(struct migrate *migrate, const struct record *record)
{
	int r = 0;

	if (record_version(record) < newest_version())
		r = check_writable(migrate);
	for (int i = 0; r == 0 && i < lease_migrations_count; i++) {
		const struct lease_migration *migration = &lease_migrations[i];
		size_t n_done = migrate->n_done, n_notes = migrate->n_notes;

		if (record_find(record, migration->version))
			continue;
		r = apply(migrate, migration);
		if (migrate->n_done == n_done || migrate->output->json)
			continue;
		fprintf(migrate->output->file, "applied %s\n", migration->name);
		print_notes(migrate, n_notes);
		fflush(migrate->output->file);
	}
	if (r == 0)
		print_summary(migrate);
	return r;
}

/* -- migrate --dry-run ------------------------------------------------------------------------ */

static void print_plan(const struct migrate *migrate, const struct record *record)
{
	struct json json;
	int pending = 0;

	json_init(&json, migrate->output->file);
	if (migrate->output->json) {
		json_begin_object(&json, NULL);
		json_text(&json, "database", PQdb(migrate->conn));
		json_number(&json, "version", record_version(record));
		json_begin_array(&json, "would_apply");
	}
	for (int i = 0; i < lease_migrations_count; i++) {
		if (record_find(record, lease_migrations[i].version))
			continue;
		pending++;
		if (migrate->output->json)
			json_text(&json, NULL, lease_migrations[i].name);
		else
			fprintf(migrate->output->file, "would apply %s\n",
				lease_migrations[i].name);
	}
	if (migrate->output->json) {
		json_end_array(&json);
		json_end_object(&json);
	} else if (pending == 0) {
		fprintf(migrate->output->file, "schema lease is at version %d: nothing to apply\n",
			record_version(record));
	}
}

/* -- migrate --status ------------------------------------------------------------------------- */

/* What --status tells of one migration. */
struct line {
	int version;
	const char *name, *checksum, *state;
	int64_t applied_at;
	enum style style;
};

static struct line describe_pending(const struct lease_migration *known)
{
	return (struct line){ .version = known->version,
			      .name = known->name,
			      .checksum = known->checksum,
			      .applied_at = LEASE_TIME_NONE,
			      .state = "pending",
			      .style = STYLE_WARNING };
}

static struct line describe_applied(const struct applied *applied)
{
	const struct lease_migration *known = find_migration(applied->version);
	struct line line = { .version = applied->version,
			     .name = applied->name,
			     .checksum = applied->checksum,
			     .applied_at = applied->applied_at,
			     .state = "applied",
			     .style = STYLE_GOOD };

	if (!known)
		line.state = "UNKNOWN";
	else if (strcmp(known->checksum, applied->checksum) != 0)
		line.state = "CHANGED";
	else
		return line;
	line.style = STYLE_BAD;
	return line;
}

/* All that are known or recorded, by version; the caller frees the array. */
static size_t list_lines(const struct record *record, struct line **ret)
{
	size_t n_known = (size_t)lease_migrations_count;
	struct line *lines = xcalloc(n_known + record->n + 1, sizeof(*lines));
	size_t n = 0, i = 0, row = 0;

	while (i < n_known || row < record->n) {
		if (row == record->n ||
		    (i < n_known && lease_migrations[i].version < record->rows[row].version)) {
			lines[n++] = describe_pending(&lease_migrations[i++]);
		} else {
			i += i < n_known &&
			     lease_migrations[i].version == record->rows[row].version;
			lines[n++] = describe_applied(&record->rows[row++]);
		}
	}
	*ret = lines;
	return n;
}

static void print_lines(const struct output *output, const struct line *lines, size_t n)
{
	static const struct table_column columns[] = { { "version", true, false },
						       { "name", false, true },
						       { "applied at", false, false },
						       { "state", false, false } };
	struct table *table = table_new(output, columns, 4);
	char time[TIME_SIZE];

	for (size_t i = 0; i < n; i++) {
		time_format(lines[i].applied_at, time);
		table_addf(table, STYLE_PLAIN, "%d", lines[i].version);
		table_add(table, STYLE_PLAIN, lines[i].name);
		table_add(table, STYLE_PLAIN, time);
		table_add(table, lines[i].style, lines[i].state);
	}
	table_print(table);
	table_free(table);
}

static void write_lines(const struct migrate *migrate, const struct record *record,
			const struct line *lines, size_t n)
{
	struct json json;

	json_init(&json, migrate->output->file);
	json_begin_object(&json, NULL);
	json_text(&json, "database", PQdb(migrate->conn));
	json_number(&json, "version", record_version(record));
	json_number(&json, "known_version", newest_version());
	json_begin_array(&json, "migrations");
	for (size_t i = 0; i < n; i++) {
		json_begin_object(&json, NULL);
		json_number(&json, "version", lines[i].version);
		json_text(&json, "name", lines[i].name);
		json_text(&json, "checksum", lines[i].checksum);
		json_time(&json, "applied_at", lines[i].applied_at);
		json_text(&json, "state", lines[i].state);
		json_end_object(&json);
	}
	json_end_array(&json);
	json_end_object(&json);
}

static void print_status(const struct migrate *migrate, const struct record *record)
{
	struct line *lines;
	size_t n = list_lines(record, &lines);

	if (migrate->output->json)
		write_lines(migrate, record, lines, n);
	else
		print_lines(migrate->output, lines, n);
	free(lines);
}

/* -- the command ------------------------------------------------------------------------------ */

static int run_migrate(struct context *context)
{
	struct migrate migrate = { .output = &context->output };
	struct record record = { 0 };
	int r;

	if (context->values[OPTION_STATUS].given && context->values[OPTION_DRY_RUN].given)
		return fail(EX_USAGE,
			    "--status and --dry-run exclude each other: give one of them");
	r = connection_open(&context->source, CONNECTION_RAW, &migrate.conn);
	if (r)
		return r;
	PQsetNoticeReceiver(migrate.conn, take_notice, &migrate);
	migrate.done = xcalloc((size_t)lease_migrations_count + 1, sizeof(*migrate.done));
	r = record_read(&migrate, &record);
	if (r == 0 && context->values[OPTION_STATUS].given)
		print_status(&migrate, &record);
	else if (r == 0)
		r = record_check(&record);
	if (r == 0 && context->values[OPTION_DRY_RUN].given)
		print_plan(&migrate, &record);
	else if (r == 0 && !context->values[OPTION_STATUS].given)
		r = apply_pending(&migrate, &record);
	record_done(&record);
	for (size_t i = 0; i < migrate.n_notes; i++)
		free(migrate.notes[i]);
	free(migrate.notes);
	free(migrate.done);
	PQfinish(migrate.conn);
	return r;
}

const struct command command_migrate = {
	.name = "migrate",
	.summary = "make or update schema lease in a database",
	.description =
		"Applies the migrations that the database lacks, each in a transaction\n"
		"of its own. Safe to run again and from several machines at once. Refuses a\n"
		"database whose applied migrations are not the ones that this program holds.",
	.options = options,
	.n_options = sizeof(options) / sizeof(options[0]),
	.run = run_migrate,
};
