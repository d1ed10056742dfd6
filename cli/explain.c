/*
 * leasectl explain - the whole story of a run: why it has the status it has, its attempts, nodes,
 * operations, checkpoints, and what happened in order.
 *
 * Must never: write to the database; guess where the facts say nothing.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "events.h"
#include "explain.h"
#include "failure.h"
#include "history.h"
#include "json.h"
#include "refusal.h"
#include "table.h"
#include "timeline.h"

/* -- why ----------------------------------------------------------------------------------------- */

static const struct lease_attempt *newest_attempt(const struct lease_history *history)
{
	return history->n_attempts ? &history->attempts[history->n_attempts - 1] : NULL;
}

/* Newest attempts without a break that were lost. */
static size_t count_losses(const struct lease_history *history)
{
	size_t n = 0;

	while (n < history->n_attempts && history->attempts[history->n_attempts - 1 - n].outcome ==
						  LEASE_OUTCOME_LEASE_EXPIRED)
		n++;
	return n;
}

/* How the newest attempt ended: "attempt 2 (worker-1) was lost: its lease ended …". */
static char *ending_text(const struct lease_attempt *attempt)
{
	char *name = owner_name(attempt->owner), *text;
	char at[TIME_SIZE];

	time_format(attempt->finished_at, at);
	if (attempt->outcome == LEASE_OUTCOME_LEASE_EXPIRED)
		text = xasprintf("attempt %" PRId32 " (%s) was lost: nobody renewed its lease; "
				 "closed at %s",
				 attempt->attempt_no, name, at);
	else
		text = xasprintf("attempt %" PRId32 " (%s) ended as %s at %s", attempt->attempt_no,
				 name, lease_outcome_name(attempt->outcome), at);
	free(name);
	return text;
}

static char *why_running(const struct lease_history *history)
{
	const struct lease_attempt *newest = newest_attempt(history);
	char *name, *ending, *text;

	if (!newest)
		return xstrdup("it is running without any attempt on record: a legacy run, of "
			       "which nothing more is known");
	if (newest->outcome == LEASE_OUTCOME_NONE) {
		char distance[TIME_SIZE];
		int64_t left = newest->lease_expires_at - history->now;

		duration_format(left > 0 ? left : -left, distance);
		name = owner_name(newest->owner);
		text = xasprintf(left > 0 ? "attempt %" PRId32 " (%s) holds its lease for %s more"
					  : "attempt %" PRId32
					    " (%s) let its lease end %s ago; the "
					    "reconciler has not closed it yet",
				 newest->attempt_no, name, distance);
		free(name);
		return text;
	}
	ending = ending_text(newest);
	text = xasprintf(
		"%s; the policy record leaves the run running until somebody takes it over",
		ending);
	free(ending);
	return text;
}

static char *why_pending(const struct lease_history *history)
{
	const struct lease_attempt *newest = newest_attempt(history);
	const struct lease_run *run = &history->run;
	bool waits = run->not_before != LEASE_TIME_NONE && run->not_before > history->now;
	char *ending, *text, at[TIME_SIZE] = "";

	if (waits)
		time_format(run->not_before, at);
	if (!newest)
		return xasprintf("nobody has claimed it yet%s%s",
				 waits ? "; it is not due before " : "", at);
	ending = ending_text(newest);
	text = xasprintf("%s; it waits to be claimed again%s%s", ending,
			 waits ? ", not before " : "", at);
	free(ending);
	return text;
}

static char *why_ended(const struct lease_history *history)
{
	const struct lease_attempt *newest = newest_attempt(history);
	const char *code = history->run.terminal_error_code;
	char *ending, *text;
	size_t losses = count_losses(history);

	if (!newest)
		return xasprintf("it ended as %s without any attempt on record%s%s",
				 lease_run_status_name(history->run.status), code ? ", " : "",
				 code ? code : "");
	ending = ending_text(newest);
	if (losses > 1)
		text = xasprintf("%s, the last of %zu lost without a break; the run became %s%s%s",
				 ending, losses, lease_run_status_name(history->run.status),
				 code ? ", " : "", code ? code : "");
	else
		text = xasprintf("%s; the run became %s%s%s", ending,
				 lease_run_status_name(history->run.status), code ? ", " : "",
				 code ? code : "");
	free(ending);
	return text;
}

/* One sentence, from the facts alone; to be freed by the caller. */
static char *explanation(const struct lease_story *story)
{
	const struct lease_history *history = story->history;

	if (story->unexplained)
		return xasprintf("the facts do not explain it: %s", story->unexplained);
	switch (history->run.status) {
	case LEASE_RUN_RUNNING:
		return why_running(history);
	case LEASE_RUN_PENDING:
		return why_pending(history);
	case LEASE_RUN_WAITING:
		return xstrdup("its worker suspended it; it waits to be resumed");
	case LEASE_RUN_COMPLETED:
	case LEASE_RUN_FAILED:
	case LEASE_RUN_CANCELLED:
	case LEASE_RUN_INTERRUPTED:
		break;
	}
	return why_ended(history);
}

/* -- operations: what the executions say of them --------------------------------------------------- */

struct operation_fact {
	const char *operation_id, *node_id, *output_ref;
	int32_t executions, unknown;
	bool running, succeeded;
};

static struct operation_fact *find_operation(struct operation_fact *operations, size_t *n,
					     const struct lease_execution *execution)
{
	for (size_t i = 0; i < *n; i++)
		if (strcmp(operations[i].operation_id, execution->operation_id) == 0)
			return &operations[i];
	operations[*n] = (struct operation_fact){ .operation_id = execution->operation_id,
						  .node_id = execution->node_id };
	return &operations[(*n)++];
}

/* To be freed by the caller. */
static struct operation_fact *collect_operations(const struct lease_story *story, size_t *ret_n)
{
	struct operation_fact *operations = xcalloc(story->n_executions + 1, sizeof(*operations));

	*ret_n = 0;
	for (size_t i = 0; i < story->n_executions; i++) {
		const struct lease_execution *execution = &story->executions[i];
		struct operation_fact *operation;

		if (!execution->operation_id)
			continue;
		operation = find_operation(operations, ret_n, execution);
		operation->executions++;
		switch (execution->status) {
		case LEASE_EXECUTION_RUNNING:
			operation->running = true;
			break;
		case LEASE_EXECUTION_SUCCEEDED:
			operation->succeeded = true;
			operation->output_ref = execution->output_ref;
			break;
		case LEASE_EXECUTION_FAILED:
			break;
		case LEASE_EXECUTION_LEASE_EXPIRED:
		case LEASE_EXECUTION_ABANDONED:
			operation->unknown++;
			break;
		}
	}
	return operations;
}

static const char *operation_state(const struct operation_fact *operation)
{
	return lease_operation_state_name(operation->succeeded ? LEASE_OPERATION_SUCCEEDED
					  : operation->running ? LEASE_OPERATION_RUNNING
					  : operation->unknown ? LEASE_OPERATION_UNKNOWN
							       : LEASE_OPERATION_FAILED);
}

/* -- for programs --------------------------------------------------------------------------------- */

static void write_execution(struct json *json, const struct lease_execution *execution)
{
	json_begin_object(json, NULL);
	json_text(json, "node_id", execution->node_id);
	json_number(json, "execution_no", execution->execution_no);
	json_number(json, "run_attempt_no", execution->run_attempt_no);
	json_text(json, "owner", execution->owner);
	json_text(json, "status", lease_execution_status_name(execution->status));
	json_time(json, "started_at", execution->started_at);
	json_time(json, "finished_at", execution->finished_at);
	json_text(json, "operation_id", execution->operation_id);
	json_text(json, "input_ref", execution->input_ref);
	json_text(json, "output_ref", execution->output_ref);
	json_text(json, "normalized_error", execution->normalized_error);
	json_text(json, "error_message", execution->error_message);
	json_text(json, "trace_id", execution->trace_id);
	json_end_object(json);
}

static void write_operations(struct json *json, const struct lease_story *story)
{
	size_t n;
	struct operation_fact *operations = collect_operations(story, &n);

	json_begin_array(json, "operations");
	for (size_t i = 0; i < n; i++) {
		json_begin_object(json, NULL);
		json_text(json, "operation_id", operations[i].operation_id);
		json_text(json, "node_id", operations[i].node_id);
		json_text(json, "state", operation_state(&operations[i]));
		json_number(json, "executions", operations[i].executions);
		json_number(json, "unknown", operations[i].unknown);
		json_text(json, "output_ref", operations[i].output_ref);
		json_end_object(json);
	}
	json_end_array(json);
	free(operations);
}

static void write_checkpoint(struct json *json, const struct lease_checkpoint_fact *checkpoint)
{
	json_begin_object(json, NULL);
	json_text(json, "checkpoint_id", checkpoint->checkpoint_id);
	json_number(json, "run_attempt_no", checkpoint->run_attempt_no);
	json_number(json, "state_version", checkpoint->state_version);
	json_number(json, "plan_version", checkpoint->plan_version);
	json_time(json, "created_at", checkpoint->created_at);
	json_text(json, "content_ref", checkpoint->content_ref);
	json_end_object(json);
}

void story_write_json(const struct output *output, const struct lease_story *story)
{
	char *why = explanation(story);
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	json_text(&json, "why", why);
	json_bool(&json, "explained", story->unexplained == NULL);
	history_write_members(&json, story->history);
	json_text(&json, "current_checkpoint_id", story->current_checkpoint_id);
	json_begin_array(&json, "executions");
	for (size_t i = 0; i < story->n_executions; i++)
		write_execution(&json, &story->executions[i]);
	json_end_array(&json);
	write_operations(&json, story);
	json_begin_array(&json, "checkpoints");
	for (size_t i = 0; i < story->n_checkpoints; i++)
		write_checkpoint(&json, &story->checkpoints[i]);
	json_end_array(&json);
	json_begin_array(&json, "events");
	for (size_t i = 0; i < story->n_events; i++)
		event_write_json(&json, NULL, &story->events[i]);
	json_end_array(&json);
	json_end_object(&json);
	free(why);
}

/* -- for people ----------------------------------------------------------------------------------- */

static void print_title(const struct output *output, const char *title)
{
	fprintf(output->file, "\n%s%s%s\n", style_on(output, STYLE_STRONG), title,
		style_off(output, STYLE_STRONG));
}

static enum style execution_style(enum lease_execution_status status)
{
	switch (status) {
	case LEASE_EXECUTION_SUCCEEDED:
		return STYLE_GOOD;
	case LEASE_EXECUTION_FAILED:
		return STYLE_BAD;
	case LEASE_EXECUTION_LEASE_EXPIRED:
	case LEASE_EXECUTION_ABANDONED:
		return STYLE_WARNING;
	case LEASE_EXECUTION_RUNNING:
		break;
	}
	return STYLE_PLAIN;
}

static void print_executions(const struct output *output, const struct lease_story *story)
{
	static const struct table_column columns[] = {
		{ "node", false, true },   { "execution", true, false }, { "attempt", true, false },
		{ "worker", false, true }, { "lasted", true, false },    { "status", false, false },
		{ "error", false, true },  { "operation", false, true }, { "output", false, true },
	};
	struct table *table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < story->n_executions; i++) {
		const struct lease_execution *e = &story->executions[i];
		bool is_open = e->status == LEASE_EXECUTION_RUNNING;
		char *name = owner_name(e->owner), lasted[TIME_SIZE];

		duration_format((is_open ? story->history->now : e->finished_at) - e->started_at,
				lasted);
		table_add(table, STYLE_PLAIN, e->node_id);
		table_addf(table, STYLE_PLAIN, "%" PRId32, e->execution_no);
		table_addf(table, STYLE_PLAIN, "%" PRId32, e->run_attempt_no);
		table_add(table, STYLE_PLAIN, name);
		table_add(table, STYLE_PLAIN, lasted);
		table_add(table, execution_style(e->status),
			  lease_execution_status_name(e->status));
		table_add(table, STYLE_PLAIN, e->normalized_error);
		table_add(table, STYLE_PLAIN, e->operation_id);
		table_add(table, STYLE_PLAIN, e->output_ref);
		free(name);
	}
	table_print(table);
	table_free(table);
}

static void print_operations(const struct output *output, const struct lease_story *story)
{
	static const struct table_column columns[] = {
		{ "operation", false, true }, { "node", false, true },   { "tried", true, false },
		{ "unknown", true, false },   { "state", false, false }, { "output", false, true },
	};
	size_t n;
	struct operation_fact *operations = collect_operations(story, &n);
	struct table *table;

	if (n > 0) {
		print_title(output, "operations");
		table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));
		for (size_t i = 0; i < n; i++) {
			table_add(table, STYLE_PLAIN, operations[i].operation_id);
			table_add(table, STYLE_PLAIN, operations[i].node_id);
			table_addf(table, STYLE_PLAIN, "%" PRId32, operations[i].executions);
			table_addf(table, STYLE_PLAIN, "%" PRId32, operations[i].unknown);
			table_add(table, STYLE_PLAIN, operation_state(&operations[i]));
			table_add(table, STYLE_PLAIN, operations[i].output_ref);
		}
		table_print(table);
		table_free(table);
	}
	free(operations);
}

static void print_checkpoints(const struct output *output, const struct lease_story *story)
{
	static const struct table_column columns[] = {
		{ "checkpoint", false, true },    { "attempt", true, false },
		{ "state version", true, false }, { "plan version", true, false },
		{ "recorded", false, false },     { "content", false, true },
	};
	struct table *table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < story->n_checkpoints; i++) {
		const struct lease_checkpoint_fact *checkpoint = &story->checkpoints[i];
		bool current = story->current_checkpoint_id &&
			       strcmp(story->current_checkpoint_id, checkpoint->checkpoint_id) == 0;
		char at[TIME_SIZE];

		time_format(checkpoint->created_at, at);
		table_addf(table, current ? STYLE_STRONG : STYLE_PLAIN, "%s%s",
			   checkpoint->checkpoint_id, current ? " (current)" : "");
		table_addf(table, STYLE_PLAIN, "%" PRId32, checkpoint->run_attempt_no);
		table_addf(table, STYLE_PLAIN, "%" PRId64, checkpoint->state_version);
		table_addf(table, STYLE_PLAIN, "%" PRId64, checkpoint->plan_version);
		table_add(table, STYLE_PLAIN, at);
		table_add(table, STYLE_PLAIN, checkpoint->content_ref);
	}
	table_print(table);
	table_free(table);
}

void story_print(const struct output *output, const struct lease_story *story)
{
	char *why = explanation(story), *escaped = text_escape(why, output->utf8);

	history_print_run(output, story->history);
	fprintf(output->file, "%swhy%s       %s\n", style_on(output, STYLE_STRONG),
		style_off(output, STYLE_STRONG), escaped);
	free(escaped);
	free(why);
	print_title(output, "attempts");
	history_print_attempts(output, story->history);
	if (story->n_executions > 0) {
		print_title(output, "node executions");
		print_executions(output, story);
	}
	print_operations(output, story);
	if (story->n_checkpoints > 0) {
		print_title(output, "checkpoints");
		print_checkpoints(output, story);
	}
	if (story->n_events > 0) {
		print_title(output, "what happened, in order");
		events_print_story(output, story->events, story->n_events);
	}
}

static int run_explain(struct context *context)
{
	const char *run_id = context->words[0];
	struct lease_story *story = NULL;
	struct lease_error error;
	PGconn *conn;
	int r = connection_open(&context->source, CONNECTION_READ, &conn);

	if (r)
		return r;
	r = lease_read_story(conn, run_id, &story, &error);
	if (r < 0)
		r = fail_with_error("cannot read the run", &error);
	else if (r > 0)
		r = refuse(&context->output, run_id, r);
	else if (context->output.json)
		story_write_json(&context->output, story);
	else
		story_print(&context->output, story);
	lease_story_free(story);
	PQfinish(conn);
	return r;
}

const struct command command_explain = {
	.name = "explain",
	.summary = "the whole story of a run, and why it has the status it has",
	.words = "RUN",
	.min_words = 1,
	.max_words = 1,
	.description =
		"Says in a sentence why the run is where it is, then shows its attempts, the executions\n"
		"of its nodes with the worker of each, its operations and whether their end is known, its\n"
		"checkpoints, and what happened in order.",
	.run = run_explain,
};
