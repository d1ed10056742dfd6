/*
 * leasectl runs - runs that fit some filters, the newest first.
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
#include "table.h"
#include "timeline.h"

#define LIMIT_DEFAULT 50
#define LIMIT_MAX 100000

enum {
	RUNS_STATUS,
	RUNS_TENANT,
	RUNS_OWNER,
	RUNS_ERROR,
	RUNS_EXPIRED,
	RUNS_CREATED_WITHIN,
	RUNS_LIMIT,
	RUNS_AFTER
};

static const struct option runs_options[] = {
	[RUNS_STATUS] = { "status", 0, OPTION_TEXT, "STATUS[,STATUS]...",
			  "pending, running, waiting, completed, failed, cancelled, interrupted" },
	[RUNS_TENANT] = { "tenant", 0, OPTION_TEXT, "TENANT", "runs of this tenant" },
	[RUNS_OWNER] = { "owner", 0, OPTION_TEXT, "OWNER",
			 "runs that this owner has, or this worker under any owner" },
	[RUNS_ERROR] = { "error", 0, OPTION_TEXT, "CODE", "runs that ended with this error code" },
	[RUNS_EXPIRED] = { "expired", 0, OPTION_FLAG, NULL,
			   "runs with an open attempt whose lease is over" },
	[RUNS_CREATED_WITHIN] = { "created-within", 0, OPTION_DURATION, "DURATION",
				  "runs that are no older" },
	[RUNS_LIMIT] = { "limit", 0, OPTION_NUMBER, "N", "at most so many (50)" },
	[RUNS_AFTER] = { "after", 0, OPTION_TEXT, "RUN", "go on after this run of a list before" },
};

/* "pending,running" as bits. */
static int parse_statuses(const char *text, unsigned *ret)
{
	char *copy = xstrdup(text), *rest = copy, *name;
	int r = 0;

	while (r == 0 && (name = strsep(&rest, ","))) {
		int status = lease_run_status_parse(name);

		if (status < 0)
			r = fail(EX_USAGE,
				 "--status: '%s' is none: pending, running, waiting, completed, "
				 "failed, cancelled, interrupted, several with commas between",
				 name);
		else
			*ret |= 1u << status;
	}
	free(copy);
	return r;
}

static void write_entry(struct json *json, const struct lease_run_entry *entry)
{
	bool open = entry->open_attempt_no > 0;

	json_begin_object(json, NULL);
	json_text(json, "run_id", entry->run.run_id);
	json_text(json, "tenant_id", entry->run.tenant_id);
	json_text(json, "status", lease_run_status_name(entry->run.status));
	json_number(json, "state_version", entry->run.state_version);
	json_time(json, "created_at", entry->run.created_at);
	json_time(json, "updated_at", entry->run.updated_at);
	json_time(json, "not_before", entry->run.not_before);
	json_time(json, "deadline_at", entry->run.deadline_at);
	json_time(json, "cancel_requested_at", entry->run.cancel_requested_at);
	json_time(json, "finished_at", entry->run.finished_at);
	json_text(json, "terminal_error_code", entry->run.terminal_error_code);
	json_number(json, "attempts", entry->attempts);
	json_number(json, "losses", entry->losses);
	if (open)
		json_number(json, "open_attempt_no", entry->open_attempt_no);
	else
		json_null(json, "open_attempt_no");
	json_text(json, "owner", open ? entry->owner : NULL);
	json_time(json, "lease_expires_at", open ? entry->lease_expires_at : LEASE_TIME_NONE);
	json_end_object(json);
}

static void write_json(const struct output *output, const struct lease_run_list *list)
{
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	json_time(&json, "now", list->n > 0 ? list->now : LEASE_TIME_NONE);
	json_begin_array(&json, "runs");
	for (size_t i = 0; i < list->n; i++)
		write_entry(&json, &list->runs[i]);
	json_end_array(&json);
	json_end_object(&json);
}

/* What a person wants to know next: when its lease ends, when it is due, why it ended. */
static void add_note(struct table *table, const struct lease_run_entry *entry, int64_t now)
{
	const struct lease_run *run = &entry->run;
	char distance[TIME_SIZE];

	if (entry->open_attempt_no > 0) {
		int64_t left = entry->lease_expires_at - now;

		duration_format(left > 0 ? left : -left, distance);
		table_addf(table, left > 0 ? STYLE_PLAIN : STYLE_BAD, "%s %s%s",
			   left > 0 ? "lease ends in" : "lease over for", distance,
			   run->cancel_requested_at != LEASE_TIME_NONE ? ", cancel requested" : "");
	} else if (!lease_run_status_is_terminal(run->status) &&
		   run->deadline_at != LEASE_TIME_NONE && run->deadline_at <= now) {
		table_add(table, STYLE_BAD, "deadline passed");
	} else if (run->status == LEASE_RUN_PENDING && run->not_before > now) {
		duration_format(run->not_before - now, distance);
		table_addf(table, STYLE_PLAIN, "due in %s", distance);
	} else if (run->status == LEASE_RUN_RUNNING) {
		table_add(table, STYLE_WARNING, "no open attempt");
	} else {
		table_add(table, STYLE_PLAIN, run->terminal_error_code);
	}
}

static void print(const struct output *output, const struct lease_run_list *list)
{
	static const struct table_column columns[] = {
		{ "run", false, true },    { "status", false, false },  { "tenant", false, true },
		{ "age", true, false },    { "attempts", true, false }, { "losses", true, false },
		{ "worker", false, true }, { "note", false, true },
	};
	struct table *table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < list->n; i++) {
		const struct lease_run_entry *entry = &list->runs[i];
		char *owner = entry->open_attempt_no > 0 ? owner_name(entry->owner) : NULL;
		char age[TIME_SIZE];

		duration_format(list->now - entry->run.created_at, age);
		table_add(table, STYLE_PLAIN, entry->run.run_id);
		table_add(table, status_style(entry->run.status),
			  lease_run_status_name(entry->run.status));
		table_add(table, STYLE_PLAIN, entry->run.tenant_id);
		table_add(table, STYLE_PLAIN, age);
		table_addf(table, STYLE_PLAIN, "%" PRId32, entry->attempts);
		table_addf(table, entry->losses > 0 ? STYLE_WARNING : STYLE_PLAIN, "%" PRId32,
			   entry->losses);
		table_add(table, STYLE_PLAIN, owner);
		add_note(table, entry, list->now);
		free(owner);
	}
	table_print(table);
	table_free(table);
}

static int read_filter(const struct context *context, struct lease_run_filter *ret)
{
	const struct option_value *values = context->values;
	int64_t limit = values[RUNS_LIMIT].given ? values[RUNS_LIMIT].number : LIMIT_DEFAULT;

	*ret = (struct lease_run_filter){ .tenant_id = values[RUNS_TENANT].text,
					  .error_code = values[RUNS_ERROR].text,
					  .owner = values[RUNS_OWNER].text,
					  .created_within = values[RUNS_CREATED_WITHIN].number,
					  .expired = values[RUNS_EXPIRED].given,
					  .after = values[RUNS_AFTER].text,
					  .limit = (int)limit };
	if (limit > LIMIT_MAX)
		return fail(EX_USAGE, "--limit: at most %d", LIMIT_MAX);
	return values[RUNS_STATUS].given ? parse_statuses(values[RUNS_STATUS].text, &ret->statuses)
					 : 0;
}

static int run_runs(struct context *context)
{
	struct lease_run_filter filter;
	struct lease_run_list *list = NULL;
	struct lease_error error;
	PGconn *conn;
	int r = read_filter(context, &filter);

	if (r == 0)
		r = connection_open(&context->source, CONNECTION_READ, &conn);
	if (r)
		return r;
	r = lease_list_runs(conn, &filter, &list, &error);
	if (r < 0)
		r = fail_with_error("cannot list runs", &error);
	else if (context->output.json)
		write_json(&context->output, list);
	else if (list->n == 0)
		fputs("no runs\n", context->output.file);
	else
		print(&context->output, list);
	if (r == 0 && list->n == (size_t)filter.limit)
		note("there may be more: --after '%s' goes on", list->runs[list->n - 1].run.run_id);
	lease_run_list_free(list);
	PQfinish(conn);
	return r;
}

const struct command command_runs = {
	.name = "runs",
	.summary = "list runs, by status, tenant, owner, error, age",
	.description =
		"Lists the runs that fit all that is given, the newest first. Unfinished ones are\n"
		"found by index; a list with finished ones reads all of them.",
	.options = runs_options,
	.n_options = sizeof(runs_options) / sizeof(runs_options[0]),
	.run = run_runs,
};
