/*
 * leasectl status - where a database stands: runs by status, open and expired attempts.
 *
 * Must never: write to the database.
 */
#include <inttypes.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "table.h"

static void write_json(const struct output *output, const PGconn *conn,
		       const struct lease_status *status)
{
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	json_text(&json, "database", PQdb(conn));
	json_time(&json, "now", status->now);
	json_begin_object(&json, "runs");
	json_number(&json, lease_run_status_name(LEASE_RUN_PENDING), status->runs_pending);
	json_number(&json, lease_run_status_name(LEASE_RUN_RUNNING), status->runs_running);
	json_number(&json, lease_run_status_name(LEASE_RUN_WAITING), status->runs_waiting);
	json_end_object(&json);
	json_begin_object(&json, "attempts");
	json_number(&json, "open", status->attempts_open);
	json_number(&json, "expired", status->attempts_expired);
	json_end_object(&json);
	json_time(&json, "oldest_expired_at", status->oldest_expired_at);
	if (status->oldest_expired_at == LEASE_TIME_NONE)
		json_null(&json, "oldest_expired_age_seconds");
	else
		json_seconds(&json, "oldest_expired_age_seconds",
			     status->now - status->oldest_expired_at);
	json_time(&json, "next_end_at", status->next_end_at);
	if (status->next_end_at == LEASE_TIME_NONE)
		json_null(&json, "next_end_in_seconds");
	else
		json_seconds(&json, "next_end_in_seconds", status->next_end_at - status->now);
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

static int run_status(struct context *context)
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

const struct command command_status = {
	.name = "status",
	.summary = "where a database stands: runs, open and expired attempts",
	.description =
		"Counts the unfinished runs by status and the open attempts, those whose lease is\n"
		"over apart: how long the oldest of them waits to be closed tells whether a\n"
		"reconciler is at work. And when the next lease ends.",
	.run = run_status,
};
