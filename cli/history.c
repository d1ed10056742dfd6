/*
 * leasectl history - a run and all its attempts, as a table and as a timeline.
 *
 * Must never: write to the database.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "failure.h"
#include "history.h"
#include "json.h"
#include "refusal.h"
#include "table.h"
#include "timeline.h"

/* From so many columns on there is room for whole owners. */
#define WIDE 140

/* -- for programs ----------------------------------------------------------------------------- */

static void write_attempt(struct json *json, const struct lease_attempt *attempt)
{
	json_begin_object(json, NULL);
	json_number(json, "attempt_no", attempt->attempt_no);
	json_text(json, "owner", attempt->owner);
	json_time(json, "started_at", attempt->started_at);
	json_time(json, "heartbeat_at", attempt->heartbeat_at);
	json_time(json, "lease_expires_at", attempt->lease_expires_at);
	json_time(json, "deadline_at", attempt->deadline_at);
	json_time(json, "cancel_requested_at", attempt->cancel_requested_at);
	json_time(json, "finished_at", attempt->finished_at);
	json_text(json, "outcome",
		  attempt->outcome == LEASE_OUTCOME_NONE ? NULL
							 : lease_outcome_name(attempt->outcome));
	json_text(json, "error_code", attempt->error_code);
	json_text(json, "error_message", attempt->error_message);
	json_text(json, "trace_id", attempt->trace_id);
	json_end_object(json);
}

static void write_run(struct json *json, const struct lease_run *run)
{
	json_begin_object(json, "run");
	json_text(json, "run_id", run->run_id);
	json_text(json, "tenant_id", run->tenant_id);
	json_text(json, "status", lease_run_status_name(run->status));
	json_number(json, "state_version", run->state_version);
	json_number(json, "plan_version", run->plan_version);
	json_time(json, "not_before", run->not_before);
	json_time(json, "deadline_at", run->deadline_at);
	json_time(json, "cancel_requested_at", run->cancel_requested_at);
	json_time(json, "created_at", run->created_at);
	json_time(json, "updated_at", run->updated_at);
	json_time(json, "finished_at", run->finished_at);
	json_text(json, "terminal_error_code", run->terminal_error_code);
	json_text(json, "terminal_error_message", run->terminal_error_message);
	json_end_object(json);
}

void history_write_members(struct json *json, const struct lease_history *history)
{
	json_time(json, "now", history->now);
	write_run(json, &history->run);
	json_begin_array(json, "attempts");
	for (size_t i = 0; i < history->n_attempts; i++)
		write_attempt(json, &history->attempts[i]);
	json_end_array(json);
}

static void write_json(const struct output *output, const struct lease_history *history)
{
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	history_write_members(&json, history);
	json_end_object(&json);
}

/* -- for people ------------------------------------------------------------------------------- */

enum style status_style(enum lease_run_status status)
{
	switch (status) {
	case LEASE_RUN_COMPLETED:
		return STYLE_GOOD;
	case LEASE_RUN_FAILED:
		return STYLE_BAD;
	case LEASE_RUN_CANCELLED:
	case LEASE_RUN_INTERRUPTED:
		return STYLE_WARNING;
	case LEASE_RUN_PENDING:
	case LEASE_RUN_RUNNING:
	case LEASE_RUN_WAITING:
		break;
	}
	return STYLE_PLAIN;
}

/* A moment of the run and how far it is from now; nothing where there is none. */
static void add_moment(struct table *table, const char *name, int64_t time, int64_t now)
{
	char moment[TIME_SIZE], distance[TIME_SIZE];

	if (time == LEASE_TIME_NONE)
		return;
	time_format(time, moment);
	duration_format(time > now ? time - now : now - time, distance);
	table_add(table, STYLE_STRONG, name);
	table_addf(table, STYLE_PLAIN, time > now ? "%s (in %s)" : "%s (%s ago)", moment, distance);
}

static void add_error(struct table *table, enum style style, const char *code, const char *message)
{
	table_addf(table, style, "%s%s%s", code ? code : "", code && message ? ": " : "",
		   message ? message
		   : code  ? ""
			   : "-");
}

void history_print_run(const struct output *output, const struct lease_history *history)
{
	static const struct table_column columns[2] = { 0 };
	const struct lease_run *run = &history->run;
	struct table *table = table_new(output, columns, 2);

	table_add(table, STYLE_STRONG, "run");
	table_add(table, STYLE_PLAIN, run->run_id);
	table_add(table, STYLE_STRONG, "status");
	table_addf(table, status_style(run->status), "%s, version %" PRId64 ", tenant %s",
		   lease_run_status_name(run->status), run->state_version, run->tenant_id);
	if (run->terminal_error_code || run->terminal_error_message) {
		table_add(table, STYLE_STRONG, "error");
		add_error(table, STYLE_BAD, run->terminal_error_code, run->terminal_error_message);
	}
	add_moment(table, "created", run->created_at, history->now);
	if (run->status == LEASE_RUN_PENDING)
		add_moment(table, "not before", run->not_before, history->now);
	add_moment(table, "cancel requested", run->cancel_requested_at, history->now);
	add_moment(table, "deadline", run->deadline_at, history->now);
	add_moment(table, "finished", run->finished_at, history->now);
	table_print(table);
	table_free(table);
}

/* What an open attempt has instead of an error. */
static void add_lease_end(struct table *table, const struct lease_attempt *attempt, int64_t now)
{
	int64_t left = attempt->lease_expires_at - now;
	char distance[TIME_SIZE];

	duration_format(left > 0 ? left : -left, distance);
	if (left > 0)
		table_addf(table, STYLE_PLAIN, "lease ends in %s", distance);
	else
		table_addf(table, STYLE_BAD, "lease over for %s, not closed yet", distance);
}

/* Where columns are scarce, what the lines above say already is left out: date and UUID. */
struct brevity {
	bool one_day; /* all attempts began on the day on which the run was created */
	bool names; /* owners without their UUID */
};

static struct brevity find_brevity(const struct output *output, const struct lease_history *history)
{
	const int64_t day = 86400 * LEASE_SECOND;
	struct brevity brevity = {
		.one_day = output->width > 0,
		.names = output->width > 0 && output->width < WIDE,
	};

	for (size_t i = 0; i < history->n_attempts; i++)
		if (history->attempts[i].started_at / day != history->run.created_at / day)
			brevity.one_day = false;
	return brevity;
}

static void add_attempt(struct table *table, const struct lease_attempt *attempt, int64_t now,
			struct brevity brevity)
{
	bool is_open = attempt->outcome == LEASE_OUTCOME_NONE;
	char *owner = brevity.names ? owner_name(attempt->owner) : xstrdup(attempt->owner);
	char started[TIME_SIZE], lasted[TIME_SIZE];

	time_format(attempt->started_at, started);
	duration_format((is_open ? now : attempt->finished_at) - attempt->started_at, lasted);
	table_addf(table, STYLE_PLAIN, "%" PRId32, attempt->attempt_no);
	table_add(table, STYLE_PLAIN, owner);
	table_add(table, STYLE_PLAIN, brevity.one_day ? strchr(started, ' ') + 1 : started);
	table_add(table, STYLE_PLAIN, lasted);
	table_add(table, outcome_style(attempt->outcome), lease_outcome_name(attempt->outcome));
	if (is_open)
		add_lease_end(table, attempt, now);
	else
		add_error(table, STYLE_PLAIN, attempt->error_code, attempt->error_message);
	free(owner);
}

static void print_attempts(const struct output *output, const struct lease_history *history)
{
	static const struct table_column columns[] = {
		{ "attempt", true, false },  { "owner", false, true },
		{ "started", false, false }, { "lasted", true, false },
		{ "outcome", false, false }, { "error", false, true }
	};
	struct table *table = table_new(output, columns, 6);
	struct brevity brevity = find_brevity(output, history);

	for (size_t i = 0; i < history->n_attempts; i++)
		add_attempt(table, &history->attempts[i], history->now, brevity);
	table_print(table);
	table_free(table);
}

void history_print_attempts(const struct output *output, const struct lease_history *history)
{
	if (history->n_attempts == 0) {
		fputs("no attempts\n", output->file);
		return;
	}
	print_attempts(output, history);
	putc('\n', output->file);
	timeline_print(output, history);
}

static void print(const struct output *output, const struct lease_history *history)
{
	history_print_run(output, history);
	putc('\n', output->file);
	history_print_attempts(output, history);
}

static int run_history(struct context *context)
{
	const char *run_id = context->words[0];
	struct lease_history *history = NULL;
	struct lease_error error;
	PGconn *conn;
	int r = connection_open(&context->source, CONNECTION_READ, &conn);

	if (r)
		return r;
	r = lease_list_attempts(conn, run_id, &history, &error);
	if (r < 0)
		r = fail_with_error("cannot read the history", &error);
	else if (r > 0)
		r = refuse(&context->output, run_id, r);
	else if (context->output.json)
		write_json(&context->output, history);
	else
		print(&context->output, history);
	lease_history_free(history);
	PQfinish(conn);
	return r;
}

const struct command command_history = {
	.name = "history",
	.summary = "a run and its attempts: who held it when, and how it ended",
	.words = "RUN",
	.min_words = 1,
	.max_words = 1,
	.description =
		"Shows the run, all its attempts, and a timeline of them drawn to scale. Long\n"
		"owners and errors are cut to the terminal's width; --json gives everything whole.",
	.run = run_history,
};
