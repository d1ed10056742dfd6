/*
 * leasectl status - where a database stands: runs by status, open and expired attempts; with
 * --watch again and again, with rates, and of all databases of a file of the daemon's.
 *
 * Must never: write to the database.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "table.h"

enum { STATUS_WATCH, STATUS_EVERY };

static const struct option status_options[] = {
	[STATUS_WATCH] = { "watch", 'w', OPTION_FLAG, NULL,
			   "again and again, with rates; of all databases that --config names" },
	[STATUS_EVERY] = { "every", 0, OPTION_DURATION, "DURATION",
			   "with --watch, how often (2s)" },
};

#define EVERY_DEFAULT (2 * LEASE_SECOND)
#define EVERY_MIN (100 * LEASE_MILLISECOND)

static void write_members(struct json *json, const char *database,
			  const struct lease_status *status)
{
	json_text(json, "database", database);
	json_time(json, "now", status->now);
	json_begin_object(json, "runs");
	json_number(json, lease_run_status_name(LEASE_RUN_PENDING), status->runs_pending);
	json_number(json, lease_run_status_name(LEASE_RUN_RUNNING), status->runs_running);
	json_number(json, lease_run_status_name(LEASE_RUN_WAITING), status->runs_waiting);
	json_end_object(json);
	json_begin_object(json, "attempts");
	json_number(json, "open", status->attempts_open);
	json_number(json, "expired", status->attempts_expired);
	json_end_object(json);
	json_time(json, "oldest_expired_at", status->oldest_expired_at);
	if (status->oldest_expired_at == LEASE_TIME_NONE)
		json_null(json, "oldest_expired_age_seconds");
	else
		json_seconds(json, "oldest_expired_age_seconds",
			     status->now - status->oldest_expired_at);
	json_time(json, "next_end_at", status->next_end_at);
	if (status->next_end_at == LEASE_TIME_NONE)
		json_null(json, "next_end_in_seconds");
	else
		json_seconds(json, "next_end_in_seconds", status->next_end_at - status->now);
}

static void write_json(const struct output *output, const PGconn *conn,
		       const struct lease_status *status)
{
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	write_members(&json, PQdb(conn), status);
	json_end_object(&json);
}

/* "4.2s ago (2024-02-29 12:00:00.000Z)", or "none" */
static void add_moment(struct table *table, enum style style, const char *name, int64_t time,
		       int64_t now)
{
	char duration[TIME_SIZE], moment[TIME_SIZE];

	table_add(table, STYLE_STRONG, name);
	if (time == LEASE_TIME_NONE) {
		table_add(table, STYLE_PLAIN, "none");
		return;
	}
	time_format(time, moment);
	duration_format(time > now ? time - now : now - time, duration);
	table_addf(table, style, time > now ? "in %s (%s)" : "%s ago (%s)", duration, moment);
}

static void print(const struct output *output, const PGconn *conn,
		  const struct lease_status *status)
{
	static const struct table_column columns[2] = { 0 };
	struct table *table = table_new(output, columns, 2);
	bool late = status->attempts_expired > 0;
	char now[TIME_SIZE];

	time_format(status->now, now);
	table_add(table, STYLE_STRONG, "database");
	table_addf(table, STYLE_PLAIN, "%s at %s", PQdb(conn), now);
	table_add(table, STYLE_STRONG, "unfinished runs");
	table_addf(table, STYLE_PLAIN,
		   "%" PRId64 " (%" PRId64 " %s, %" PRId64 " %s, %" PRId64 " %s)",
		   status->runs_pending + status->runs_running + status->runs_waiting,
		   status->runs_pending, lease_run_status_name(LEASE_RUN_PENDING),
		   status->runs_running, lease_run_status_name(LEASE_RUN_RUNNING),
		   status->runs_waiting, lease_run_status_name(LEASE_RUN_WAITING));
	table_add(table, STYLE_STRONG, "open attempts");
	table_addf(table, late ? STYLE_BAD : STYLE_PLAIN,
		   "%" PRId64 " (%" PRId64 " expired, not closed yet)", status->attempts_open,
		   status->attempts_expired);
	add_moment(table, STYLE_BAD, "oldest expired", status->oldest_expired_at, status->now);
	add_moment(table, STYLE_PLAIN, "next lease end", status->next_end_at, status->now);
	table_print(table);
	table_free(table);
}

static int read_once(struct context *context)
{
	struct lease_status status;
	struct lease_error error;
	PGconn *conn;
	int r = connection_open(&context->source, CONNECTION_READ, &conn);

	if (r)
		return r;
	r = lease_read_status(conn, &status, &error);
	if (r < 0)
		r = fail_with_error("cannot read where the database stands", &error);
	else if (context->output.json)
		write_json(&context->output, conn, &status);
	else
		print(&context->output, conn, &status);
	PQfinish(conn);
	return r;
}

/* -- watching ----------------------------------------------------------------------------------- */

struct watched {
	PGconn *conn;
	const char *name; /* in the file; NULL: the database's own */
	struct lease_status status;
	struct lease_activity activity; /* of the newest reading; now 0: there is none */
	int64_t period; /* from the reading before to this one; 0: there are no rates yet */
	struct lease_error error; /* code 0: none */
};

static const char *name_of(const struct watched *watched)
{
	return watched->name ? watched->name : PQdb(watched->conn);
}

static void read_watched(struct watched *watched)
{
	int64_t before = watched->activity.now;
	int64_t after = before ? watched->activity.event_id : INT64_MAX;
	int r;

	watched->error.code = 0;
	watched->period = 0;
	if (PQstatus(watched->conn) != CONNECTION_OK)
		PQreset(watched->conn);
	r = lease_read_status(watched->conn, &watched->status, &watched->error);
	if (r == 0)
		r = lease_read_activity(watched->conn, after, &watched->activity, &watched->error);
	if (r < 0) {
		watched->error.code = r;
		watched->activity.now = 0; /* no rate over a time that was not looked at */
		return;
	}
	watched->error.code = 0;
	if (before && watched->activity.now > before)
		watched->period = watched->activity.now - before;
}

static void write_rates(struct json *json, const struct watched *watched)
{
	const struct lease_activity *activity = &watched->activity;

	if (!watched->period) {
		json_null(json, "since");
		return;
	}
	json_begin_object(json, "since");
	json_seconds(json, "seconds", watched->period);
	json_number(json, "submitted", activity->submitted);
	json_number(json, "opened", activity->opened);
	for (int i = LEASE_OUTCOME_COMPLETED; i <= LEASE_OUTCOME_LEASE_EXPIRED; i++)
		json_number(json, lease_outcome_name((enum lease_outcome)i), activity->closed[i]);
	json_end_object(json);
}

static void write_watched(const struct output *output, const struct watched *watched)
{
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	if (watched->error.code) {
		json_text(&json, "database", name_of(watched));
		json_text(&json, "error", watched->error.message);
	} else {
		write_members(&json, name_of(watched), &watched->status);
		write_rates(&json, watched);
	}
	json_end_object(&json);
}

static void add_rate(struct table *table, const struct watched *watched, enum style style,
		     int64_t count)
{
	if (watched->period)
		table_addf(table, count > 0 ? style : STYLE_PLAIN, "%.1f",
			   (double)count * 1e6 / (double)watched->period);
	else
		table_add(table, STYLE_PLAIN, NULL);
}

/* How far a moment is from now. */
static void add_distance(struct table *table, enum style style, int64_t time, int64_t now)
{
	char distance[TIME_SIZE];

	if (time == LEASE_TIME_NONE) {
		table_add(table, STYLE_PLAIN, NULL);
		return;
	}
	duration_format(time > now ? time - now : now - time, distance);
	table_add(table, style, distance);
}

static void add_watched(struct table *table, const struct watched *watched)
{
	const struct lease_status *status = &watched->status;
	const int64_t *closed = watched->activity.closed;

	table_add(table, STYLE_STRONG, name_of(watched));
	if (watched->error.code) {
		table_add(table, STYLE_BAD, lease_errno_name(watched->error.code));
		for (int i = 0; i < 11; i++)
			table_add(table, STYLE_PLAIN, NULL);
		return;
	}
	table_addf(table, STYLE_PLAIN, "%" PRId64, status->runs_pending);
	table_addf(table, STYLE_PLAIN, "%" PRId64, status->runs_running);
	table_addf(table, STYLE_PLAIN, "%" PRId64, status->runs_waiting);
	table_addf(table, STYLE_PLAIN, "%" PRId64, status->attempts_open);
	table_addf(table, status->attempts_expired ? STYLE_BAD : STYLE_PLAIN, "%" PRId64,
		   status->attempts_expired);
	add_distance(table, STYLE_BAD, status->oldest_expired_at, status->now);
	add_rate(table, watched, STYLE_PLAIN, watched->activity.submitted);
	add_rate(table, watched, STYLE_PLAIN, watched->activity.opened);
	add_rate(table, watched, STYLE_GOOD, closed[LEASE_OUTCOME_COMPLETED]);
	add_rate(table, watched, STYLE_BAD, closed[LEASE_OUTCOME_FAILED]);
	add_rate(table, watched, STYLE_WARNING, closed[LEASE_OUTCOME_RETRY_RELEASED]);
	add_rate(table, watched, STYLE_BAD, closed[LEASE_OUTCOME_LEASE_EXPIRED]);
}

static void print_screen(const struct output *output, const struct watched *all, size_t n)
{
	static const struct table_column columns[] = {
		{ "database", false, true },  { "pending", true, false },
		{ "running", true, false },   { "waiting", true, false },
		{ "open", true, false },      { "expired", true, false },
		{ "oldest", true, false },    { "submitted/s", true, false },
		{ "claimed/s", true, false }, { "completed/s", true, false },
		{ "failed/s", true, false },  { "released/s", true, false },
		{ "lost/s", true, false },
	};
	struct table *table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < n; i++)
		add_watched(table, &all[i]);
	if (output->terminal) /* from the first line on, and nothing of the screen before */
		fputs("\033[H\033[J", output->file);
	table_print(table);
	for (size_t i = 0; i < n; i++)
		if (all[i].error.code) {
			char *message = text_escape(all[i].error.message, output->utf8);

			fprintf(output->file, "%s: %s\n", name_of(&all[i]), message);
			free(message);
		}
	if (!output->terminal)
		putc('\n', output->file);
	table_free(table);
}

/* Until a signal, or until nobody reads any more. */
static int watch_all(const struct output *output, struct watched *all, size_t n, int64_t every)
{
	for (;;) {
		int64_t next = lease_clock_boottime() + every, left;

		for (size_t i = 0; i < n; i++)
			read_watched(&all[i]);
		for (size_t i = 0; output->json && i < n; i++)
			write_watched(output, &all[i]);
		if (!output->json)
			print_screen(output, all, n);
		if (fflush(output->file) != 0)
			return EX_IOERR; /* main tells why */
		left = (next - lease_clock_boottime()) / 1000;
		poll(NULL, 0, left > 0 ? (int)(left < 3600000 ? left : 3600000) : 0);
	}
}

static int watch(struct context *context)
{
	const struct option_value *every = &context->values[STATUS_EVERY];
	struct watched *all;
	char **names;
	size_t n;
	int r;

	if (every->given && every->number < EVERY_MIN)
		return fail(EX_USAGE, "--every: at least 100ms");
	r = connection_list(&context->source, &names, &n);
	if (r)
		return r;
	all = xcalloc(n, sizeof(*all));
	for (size_t i = 0; r == 0 && i < n; i++) {
		struct connection_source source = context->source;

		all[i].name = names[i];
		source.database = names[i] ? names[i] : source.database;
		r = connection_open(&source, CONNECTION_READ, &all[i].conn);
	}
	if (r == 0)
		r = watch_all(&context->output, all, n,
			      every->given ? every->number : EVERY_DEFAULT);
	for (size_t i = 0; i < n; i++)
		PQfinish(all[i].conn);
	free(all);
	connection_free_names(names, n);
	return r;
}

static int run_status(struct context *context)
{
	if (context->values[STATUS_WATCH].given)
		return watch(context);
	if (context->values[STATUS_EVERY].given)
		return fail(EX_USAGE, "--every needs --watch");
	return read_once(context);
}

const struct command command_status = {
	.name = "status",
	.summary = "where a database stands: runs, open and expired attempts",
	.description =
		"Counts the unfinished runs by status and the open attempts, those whose lease is\n"
		"over apart: how long the oldest of them waits to be closed tells whether a\n"
		"reconciler is at work. And when the next lease ends. With --watch a line for each\n"
		"database, again and again, with what happens a second; with --json one object a line.",
	.options = status_options,
	.n_options = sizeof(status_options) / sizeof(status_options[0]),
	.run = run_status,
};
