/*
 * archive_show.c - reading an archived run back: its rows become the story that leasectl explain
 * tells of a run in the database.
 *
 * Must never: show a file that is damaged; connect to a database.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "archive.h"
#include "archive_file.h"
#include "explain.h"
#include "failure.h"
#include "history.h"
#include "json.h"
#include "json_read.h"
#include "lease.h"
#include "table.h"

/* -- members of a row ---------------------------------------------------------------------------- */

static char *copy_member(const struct json_value *row, const char *name)
{
	const char *text = json_member_text(row, name);

	return text ? xstrdup(text) : NULL;
}

static void copy_id(char ret[LEASE_ID_MAX + 1], const struct json_value *row, const char *name)
{
	const char *text = json_member_text(row, name);

	snprintf(ret, LEASE_ID_MAX + 1, "%s", text ? text : "");
}

static int64_t number_of(const struct json_value *row, const char *name)
{
	const char *text = json_member_text(row, name);

	return text ? strtoll(text, NULL, 10) : 0;
}

/* "2026-11-30T05:27:36.123456+00:00", of as many decimals as are needed; always UTC. */
static int64_t time_parse(const char *text)
{
	struct tm tm = { 0 };
	int64_t fraction = 0, unit = LEASE_SECOND;
	int used = 0;

	if (!text || sscanf(text, "%d-%d-%dT%d:%d:%d%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
			    &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &used) < 6)
		return LEASE_TIME_NONE;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	text += used;
	if (*text == '.')
		for (text++; *text >= '0' && *text <= '9' && unit > 1; text++)
			fraction += (*text - '0') * (unit /= 10);
	return (int64_t)timegm(&tm) * LEASE_SECOND + fraction;
}

static int64_t time_of(const struct json_value *row, const char *name)
{
	return time_parse(json_member_text(row, name));
}

static enum lease_run_status status_of(const struct json_value *row)
{
	const char *name = json_member_text(row, "status");
	int status = name ? lease_run_status_parse(name) : -1;

	return status < 0 ? LEASE_RUN_FAILED : (enum lease_run_status)status;
}

static enum lease_outcome outcome_of(const struct json_value *row)
{
	const char *name = json_member_text(row, "outcome");
	int outcome = LEASE_OUTCOME_NONE;

	while (name && outcome < LEASE_OUTCOME_LEASE_EXPIRED &&
	       strcmp(lease_outcome_name((enum lease_outcome)outcome), name) != 0)
		outcome++;
	return (enum lease_outcome)outcome;
}

static enum lease_execution_status execution_status_of(const struct json_value *row)
{
	const char *name = json_member_text(row, "status");
	int status = LEASE_EXECUTION_RUNNING;

	while (name && status < LEASE_EXECUTION_ABANDONED &&
	       strcmp(lease_execution_status_name((enum lease_execution_status)status), name) != 0)
		status++;
	return (enum lease_execution_status)status;
}

/* -- the story of a run -------------------------------------------------------------------------- */

/* The array with one more element, zeroed. */
static void *extend(void *array, size_t *n, size_t size)
{
	char *longer = xreallocarray(array, *n + 1, size);

	memset(longer + *n * size, 0, size);
	++*n;
	return longer;
}

static void take_run(struct lease_story *story, const struct json_value *row)
{
	struct lease_run *run = &story->history->run;

	copy_id(run->run_id, row, "run_id");
	copy_id(run->tenant_id, row, "tenant_id");
	run->status = status_of(row);
	run->state_version = number_of(row, "state_version");
	run->plan_version = number_of(row, "plan_version");
	run->not_before = time_of(row, "not_before");
	run->deadline_at = time_of(row, "deadline_at");
	run->cancel_requested_at = time_of(row, "cancel_requested_at");
	run->created_at = time_of(row, "created_at");
	run->updated_at = time_of(row, "updated_at");
	run->finished_at = time_of(row, "finished_at");
	run->terminal_error_code = copy_member(row, "terminal_error_code");
	run->terminal_error_message = copy_member(row, "terminal_error_message");
	story->current_checkpoint_id = copy_member(row, "current_checkpoint_id");
}

static void take_attempt(struct lease_story *story, const struct json_value *row)
{
	struct lease_history *history = story->history;
	struct lease_attempt *attempt;

	history->attempts = extend(history->attempts, &history->n_attempts, sizeof(*attempt));
	attempt = &history->attempts[history->n_attempts - 1];
	attempt->attempt_no = (int32_t)number_of(row, "attempt_no");
	copy_id(attempt->owner, row, "owner");
	attempt->started_at = time_of(row, "started_at");
	attempt->heartbeat_at = time_of(row, "heartbeat_at");
	attempt->lease_expires_at = time_of(row, "lease_expires_at");
	attempt->deadline_at = time_of(row, "deadline_at");
	attempt->cancel_requested_at = time_of(row, "cancel_requested_at");
	attempt->finished_at = time_of(row, "finished_at");
	attempt->outcome = outcome_of(row);
	attempt->error_code = copy_member(row, "error_code");
	attempt->error_message = copy_member(row, "error_message");
	attempt->trace_id = copy_member(row, "trace_id");
}

/* Attempts stand before executions in a file. */
static const char *owner_of(const struct lease_history *history, int32_t attempt_no)
{
	for (size_t i = 0; i < history->n_attempts; i++)
		if (history->attempts[i].attempt_no == attempt_no)
			return history->attempts[i].owner;
	return "";
}

static void take_execution(struct lease_story *story, const struct json_value *row)
{
	struct lease_execution *execution;

	story->executions = extend(story->executions, &story->n_executions, sizeof(*execution));
	execution = &story->executions[story->n_executions - 1];
	copy_id(execution->node_id, row, "node_id");
	execution->execution_no = (int32_t)number_of(row, "attempt_no");
	execution->run_attempt_no = (int32_t)number_of(row, "run_attempt_no");
	snprintf(execution->owner, sizeof(execution->owner), "%s",
		 owner_of(story->history, execution->run_attempt_no));
	execution->status = execution_status_of(row);
	execution->started_at = time_of(row, "started_at");
	execution->finished_at = time_of(row, "finished_at");
	execution->operation_id = copy_member(row, "operation_id");
	execution->input_ref = copy_member(row, "input_ref");
	execution->output_ref = copy_member(row, "output_ref");
	execution->normalized_error = copy_member(row, "normalized_error");
	execution->error_message = copy_member(row, "error_message");
	execution->trace_id = copy_member(row, "trace_id");
}

static void take_checkpoint(struct lease_story *story, const struct json_value *row)
{
	struct lease_checkpoint_fact *checkpoint;

	story->checkpoints = extend(story->checkpoints, &story->n_checkpoints, sizeof(*checkpoint));
	checkpoint = &story->checkpoints[story->n_checkpoints - 1];
	copy_id(checkpoint->checkpoint_id, row, "checkpoint_id");
	checkpoint->run_attempt_no = (int32_t)number_of(row, "run_attempt_no");
	checkpoint->state_version = number_of(row, "state_version");
	checkpoint->plan_version = number_of(row, "plan_version");
	checkpoint->created_at = time_of(row, "created_at");
	checkpoint->content_ref = copy_member(row, "content_ref");
}

static void take_event(struct lease_story *story, const struct json_value *row)
{
	struct lease_event *event;

	story->events = extend(story->events, &story->n_events, sizeof(*event));
	event = &story->events[story->n_events - 1];
	event->event_id = number_of(row, "event_id");
	event->at = time_of(row, "at");
	event->kind = copy_member(row, "kind");
	event->run_id = copy_member(row, "run_id");
	event->attempt_no = (int32_t)number_of(row, "attempt_no");
	event->execution_no = (int32_t)number_of(row, "execution_no");
	event->node_id = copy_member(row, "node_id");
	event->from_status = copy_member(row, "from_status");
	event->to_status = copy_member(row, "to_status");
	event->outcome = copy_member(row, "outcome");
	event->owner = copy_member(row, "owner");
	event->error_code = copy_member(row, "error_code");
	event->reference = copy_member(row, "reference");
}

static void take_row(struct lease_story *story, enum archive_table table,
		     const struct json_value *row)
{
	switch (table) {
	case ARCHIVE_RUNS:
		take_run(story, row);
		break;
	case ARCHIVE_RUN_ATTEMPTS:
		take_attempt(story, row);
		break;
	case ARCHIVE_NODE_EXECUTIONS:
		take_execution(story, row);
		break;
	case ARCHIVE_CHECKPOINTS:
		take_checkpoint(story, row);
		break;
	case ARCHIVE_RUN_EVENTS:
		take_event(story, row);
		break;
	case ARCHIVE_NODES: /* what they say follows from the executions */
	case ARCHIVE_OPERATIONS:
	case ARCHIVE_CONTENTS:
	case ARCHIVE_TABLES:
		break;
	}
}

/* As a story from the database has them: by time. */
static int compare_executions(const void *a, const void *b)
{
	const struct lease_execution *x = a, *y = b;
	int names = strcmp(x->node_id, y->node_id);

	if (x->started_at != y->started_at)
		return x->started_at < y->started_at ? -1 : 1;
	return names ? names : x->execution_no - y->execution_no;
}

static int compare_checkpoints(const void *a, const void *b)
{
	const struct lease_checkpoint_fact *x = a, *y = b;

	if (x->created_at != y->created_at)
		return x->created_at < y->created_at ? -1 : 1;
	return strcmp(x->checkpoint_id, y->checkpoint_id);
}

/* -- reading a file ------------------------------------------------------------------------------ */

struct shown {
	const struct output *output;
	const char *run_id; /* whose story; NULL: the list of all */
	struct lease_story *story; /* NULL: not come by yet */
	bool within; /* the run's rows are being read */
	struct table *table;
	struct json json;
};

static void list_run(struct shown *shown, const struct json_value *row)
{
	char time[TIME_SIZE];

	if (shown->output->json) {
		json_begin_object(&shown->json, NULL);
		json_text(&shown->json, "run_id", json_member_text(row, "run_id"));
		json_text(&shown->json, "tenant_id", json_member_text(row, "tenant_id"));
		json_text(&shown->json, "status", json_member_text(row, "status"));
		json_time(&shown->json, "created_at", time_of(row, "created_at"));
		json_time(&shown->json, "finished_at", time_of(row, "finished_at"));
		json_text(&shown->json, "terminal_error_code",
			  json_member_text(row, "terminal_error_code"));
		json_end_object(&shown->json);
		return;
	}
	time_format(time_of(row, "finished_at"), time);
	table_add(shown->table, STYLE_PLAIN, json_member_text(row, "run_id"));
	table_add(shown->table, STYLE_PLAIN, json_member_text(row, "tenant_id"));
	table_add(shown->table, status_style(status_of(row)), json_member_text(row, "status"));
	table_add(shown->table, STYLE_PLAIN, time);
	table_add(shown->table, STYLE_PLAIN, json_member_text(row, "terminal_error_code"));
}

static int take_line(void *arg, enum archive_table table, char *line)
{
	struct shown *shown = arg;
	struct json_value *fact = NULL;
	const struct json_value *row;

	if (!shown->within && table != ARCHIVE_RUNS)
		return 0;
	fact = json_read(line);
	row = json_member(fact, "row");
	if (!row) {
		json_value_free(fact);
		return fail(EX_DATAERR, "a line of the file is no JSON");
	}
	if (!shown->run_id)
		list_run(shown, row);
	else if (table == ARCHIVE_RUNS)
		shown->within = strcmp(json_member_text(row, "run_id"), shown->run_id) == 0;
	if (shown->within && !shown->story) {
		shown->story = xcalloc(1, sizeof(*shown->story));
		shown->story->history = xcalloc(1, sizeof(*shown->story->history));
	}
	if (shown->within)
		take_row(shown->story, table, row);
	json_value_free(fact);
	return 0;
}

/* -- what comes out ------------------------------------------------------------------------------ */

static void write_head(struct json *json, const char *path, const struct archive_summary *summary,
		       const struct json_value *header)
{
	json_text(json, "file", path);
	json_number(json, "format", ARCHIVE_FORMAT);
	json_number(json, "schema_version", number_of(header, "schema_version"));
	json_text(json, "database", json_member_text(header, "database"));
	json_text(json, "tenant_id", json_member_text(header, "tenant_id"));
	json_time(json, "created_at", time_of(header, "created_at"));
	json_time(json, "finished_before", time_of(header, "finished_before"));
	json_text(json, "sha256", summary->sha256);
	json_number(json, "bytes", summary->bytes);
	json_begin_object(json, "rows");
	for (int i = 0; i < ARCHIVE_TABLES; i++)
		json_number(json, archive_table_names[i], summary->rows[i]);
	json_end_object(json);
}

static void print_head(const struct output *output, const char *path,
		       const struct archive_summary *summary, const struct json_value *header)
{
	static const struct table_column columns[2] = { 0 };
	struct table *table = table_new(output, columns, 2);
	const char *tenant_id = json_member_text(header, "tenant_id");
	char time[TIME_SIZE];

	table_add(table, STYLE_STRONG, "file");
	table_add(table, STYLE_GOOD, path);
	table_add(table, STYLE_STRONG, "from");
	table_addf(table, STYLE_PLAIN, "database %s, schema version %" PRId64 "%s%s",
		   json_member_text(header, "database"), number_of(header, "schema_version"),
		   tenant_id ? ", tenant " : "", tenant_id ? tenant_id : "");
	time_format(time_of(header, "created_at"), time);
	table_add(table, STYLE_STRONG, "written");
	table_add(table, STYLE_PLAIN, time);
	time_format(time_of(header, "finished_before"), time);
	table_add(table, STYLE_STRONG, "ended before");
	table_add(table, STYLE_PLAIN, time);
	table_add(table, STYLE_STRONG, "sha256");
	table_addf(table, STYLE_PLAIN, "%s (it fits)", summary->sha256);
	for (int i = 0; i < ARCHIVE_TABLES; i++) {
		table_add(table, STYLE_STRONG, archive_table_names[i]);
		table_addf(table, STYLE_PLAIN, "%" PRId64, summary->rows[i]);
	}
	table_print(table);
	table_free(table);
	putc('\n', output->file);
}

static int show_list(struct shown *shown, const char *path, const struct archive_summary *checked,
		     const struct json_value *header)
{
	static const struct table_column columns[] = {
		{ "run", false, true },       { "tenant", false, true }, { "status", false, false },
		{ "finished", false, false }, { "error", false, true },
	};
	struct archive_summary summary = { 0 };
	int r;

	if (shown->output->json) {
		json_init(&shown->json, shown->output->file);
		json_begin_object(&shown->json, NULL);
		write_head(&shown->json, path, checked, header);
		json_begin_array(&shown->json, "runs");
	} else {
		print_head(shown->output, path, checked, header);
		shown->table = table_new(shown->output, columns, 5);
	}
	r = archive_read(path, take_line, shown, &summary);
	archive_summary_done(&summary);
	if (shown->output->json) {
		json_end_array(&shown->json);
		json_end_object(&shown->json);
	} else {
		table_print(shown->table);
	}
	table_free(shown->table);
	return r;
}

static int show_story(struct shown *shown, const char *path, const struct json_value *header)
{
	struct archive_summary summary = { 0 };
	int r = archive_read(path, take_line, shown, &summary);
	struct lease_story *story = shown->story;

	archive_summary_done(&summary);
	if (r == 0 && !story)
		r = fail(EX_NOINPUT, "%s: does not hold run %s", path, shown->run_id);
	if (r == 0 && story) {
		story->history->now = time_of(header, "created_at");
		if (story->n_executions > 1)
			qsort(story->executions, story->n_executions, sizeof(*story->executions),
			      compare_executions);
		if (story->n_checkpoints > 1)
			qsort(story->checkpoints, story->n_checkpoints, sizeof(*story->checkpoints),
			      compare_checkpoints);
		if (shown->output->json)
			story_write_json(shown->output, story);
		else
			story_print(shown->output, story);
	}
	lease_story_free(story);
	return r;
}

int archive_show(const struct output *output, const char *path, const char *run_id)
{
	struct shown shown = { .output = output, .run_id = run_id };
	struct archive_summary summary = { 0 };
	struct json_value *header;
	char *copy;
	int r = archive_read(path, NULL, NULL, &summary);

	if (r)
		return r;
	copy = xstrdup(summary.header);
	header = json_read(copy);
	r = run_id ? show_story(&shown, path, header) : show_list(&shown, path, &summary, header);
	json_value_free(header);
	free(copy);
	archive_summary_done(&summary);
	return r;
}
