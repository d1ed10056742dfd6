/*
 * leasectl events - the record of transitions, once or as it grows.
 *
 * Promises: every event is written exactly once and, with --cursor-file, also across restarts: the
 * cursor is stored, atomically, after the events before it were written out.
 *
 * Must never: write to the database.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "events.h"
#include "failure.h"
#include "json.h"
#include "table.h"

#define BATCH_LIMIT 1000
#define CURSOR_SIZE_MAX (1 << 20)

enum { EVENTS_FOLLOW, EVENTS_AFTER, EVENTS_CURSOR_FILE, EVENTS_RUN, EVENTS_POLL };

static const struct option events_options[] = {
	[EVENTS_FOLLOW] = { "follow", 'f', OPTION_FLAG, NULL,
			    "go on with new events as they come" },
	[EVENTS_AFTER] = { "after", 0, OPTION_TEXT, "CURSOR",
			   "only what came after this cursor; without it from the beginning" },
	[EVENTS_CURSOR_FILE] = { "cursor-file", 0, OPTION_TEXT, "FILE",
				 "read the cursor from here, if it is there, and keep it here" },
	[EVENTS_RUN] = { "run", 0, OPTION_TEXT, "RUN", "only the events of this run" },
	[EVENTS_POLL] = { "poll", 0, OPTION_DURATION, "DURATION",
			  "with --follow, look at least this often (1s)" },
};

/* -- writing events ------------------------------------------------------------------------------ */

static void write_json(const struct output *output, const struct lease_event *event)
{
	struct json json;

	json_init(&json, output->file);
	event_write_json(&json, NULL, event);
}

static void add_number(struct table *table, int32_t number)
{
	if (number > 0)
		table_addf(table, STYLE_PLAIN, "%" PRId32, number);
	else
		table_add(table, STYLE_FAINT, NULL);
}

/* What moved: "running -> pending", or the one status that it has. */
static void add_move(struct table *table, const struct lease_event *event)
{
	const char *from = event->from_status, *to = event->to_status;

	if (from && to && strcmp(from, to) != 0)
		table_addf(table, STYLE_PLAIN, "%s -> %s", from, to);
	else
		table_add(table, STYLE_PLAIN, to ? to : from);
}

static void add_row(struct table *table, const struct lease_event *event)
{
	char at[TIME_SIZE];

	time_format(event->at, at);
	table_addf(table, STYLE_FAINT, "%" PRId64, event->event_id);
	table_add(table, STYLE_PLAIN, at);
	table_add(table, STYLE_PLAIN, event->run_id);
	table_add(table, STYLE_STRONG, event->kind);
	add_number(table, event->attempt_no);
	if (event->node_id)
		table_addf(table, STYLE_PLAIN, "%s #%" PRId32, event->node_id, event->execution_no);
	else
		table_add(table, STYLE_FAINT, NULL);
	add_move(table, event);
	table_add(table, STYLE_PLAIN, event->outcome);
	table_add(table, STYLE_PLAIN, event->error_code);
	table_add(table, STYLE_PLAIN, event->owner);
}

static void print_table(const struct output *output, const struct lease_event *events, size_t n)
{
	static const struct table_column columns[] = {
		{ "event", true, false },   { "at", false, false },      { "run", false, true },
		{ "kind", false, false },   { "attempt", true, false },  { "node", false, true },
		{ "status", false, false }, { "outcome", false, false }, { "error", false, true },
		{ "owner", false, true },
	};
	struct table *table = table_new(output, columns, sizeof(columns) / sizeof(columns[0]));

	for (size_t i = 0; i < n; i++)
		add_row(table, &events[i]);
	table_print(table);
	table_free(table);
}

void event_write_json(struct json *json, const char *key, const struct lease_event *event)
{
	json_begin_object(json, key);
	json_number(json, "event_id", event->event_id);
	json_time(json, "at", event->at);
	json_text(json, "kind", event->kind);
	json_text(json, "run_id", event->run_id);
	if (event->attempt_no > 0)
		json_number(json, "attempt_no", event->attempt_no);
	else
		json_null(json, "attempt_no");
	json_text(json, "node_id", event->node_id);
	if (event->execution_no > 0)
		json_number(json, "execution_no", event->execution_no);
	else
		json_null(json, "execution_no");
	json_text(json, "from_status", event->from_status);
	json_text(json, "to_status", event->to_status);
	json_text(json, "outcome", event->outcome);
	json_text(json, "owner", event->owner);
	json_text(json, "error_code", event->error_code);
	json_text(json, "reference", event->reference);
	json_end_object(json);
}

/* " name text", where there is one */
static void print_named(const struct output *output, const char *name, const char *text)
{
	char *escaped;

	if (!text)
		return;
	escaped = text_escape(text, output->utf8);
	fprintf(output->file, "  %s %s", name, escaped);
	free(escaped);
}

/* Lines rather than a table while following: the next event is not known yet. */
static void print_line(const struct output *output, const struct lease_event *event, bool with_run)
{
	const char *from = event->from_status, *to = event->to_status;
	char at[TIME_SIZE];

	time_format(event->at, at);
	fprintf(output->file, "%s  %s%s%s", at, style_on(output, STYLE_STRONG), event->kind,
		style_off(output, STYLE_STRONG));
	if (with_run)
		print_named(output, "run", event->run_id);
	if (event->attempt_no > 0)
		fprintf(output->file, "  attempt %" PRId32, event->attempt_no);
	print_named(output, "node", event->node_id);
	if (event->execution_no > 0)
		fprintf(output->file, " #%" PRId32, event->execution_no);
	if (from && to && strcmp(from, to) != 0)
		fprintf(output->file, "  %s -> %s", from, to);
	else if (to && !from)
		fprintf(output->file, "  -> %s", to);
	print_named(output, "outcome", event->outcome);
	print_named(output, "error", event->error_code);
	print_named(output, event->node_id ? "operation" : "checkpoint", event->reference);
	print_named(output, "owner", event->owner);
	putc('\n', output->file);
}

void events_print_story(const struct output *output, const struct lease_event *events, size_t n)
{
	for (size_t i = 0; i < n; i++)
		print_line(output, &events[i], false);
}

/* -- the cursor ---------------------------------------------------------------------------------- */

/* 0 with *ret NULL when there is no file yet. */
static int read_cursor(const char *path, char **ret)
{
	FILE *file = fopen(path, "re");
	char *line = NULL;
	size_t size = 0;
	ssize_t length;

	*ret = NULL;
	if (!file && errno == ENOENT)
		return 0;
	if (!file)
		return fail(EX_NOINPUT, "%s: cannot be read: %s", path, strerror(errno));
	length = getline(&line, &size, file);
	fclose(file);
	if (length > 0 && line[length - 1] == '\n')
		line[--length] = '\0';
	if (length <= 0 || length > CURSOR_SIZE_MAX) {
		free(line);
		return fail(EX_DATAERR, "%s: holds no cursor: remove it to begin anew", path);
	}
	*ret = line;
	return 0;
}

/* A new file takes the old one's place, so that a crash leaves one of them whole. */
static int write_cursor(const char *path, const char *cursor)
{
	char *fresh = xasprintf("%s.new", path);
	FILE *file = fopen(fresh, "we");
	bool written = file && fprintf(file, "%s\n", cursor) > 0 && fflush(file) == 0 &&
		       fsync(fileno(file)) == 0;
	int error = errno;
	int r = 0;

	if (file && fclose(file) != 0)
		written = false;
	if (written && rename(fresh, path) != 0) {
		written = false;
		error = errno;
	}
	if (!written)
		r = fail(EX_CANTCREAT, "%s: the cursor cannot be kept: %s", path, strerror(error));
	free(fresh);
	return r;
}

/* -- following ----------------------------------------------------------------------------------- */

struct following {
	struct context *context;
	PGconn *conn;
	char *cursor; /* NULL: the beginning */
	bool follows;
};

static int write_batch(struct following *following, const struct lease_event_batch *batch)
{
	const struct output *output = &following->context->output;
	const struct option_value *values = following->context->values;
	const char *run_id = values[EVENTS_RUN].text;
	struct lease_event *wanted = xcalloc(batch->n + 1, sizeof(*wanted));
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < batch->n; i++)
		if (!run_id || strcmp(batch->events[i].run_id, run_id) == 0)
			wanted[n++] = batch->events[i];
	for (size_t i = 0; i < n && (output->json || following->follows); i++) {
		if (output->json)
			write_json(output, &wanted[i]);
		else
			print_line(output, &wanted[i], true);
	}
	if (n > 0 && !output->json && !following->follows)
		print_table(output, wanted, n);
	free(wanted);
	if (fflush(output->file) != 0)
		return EX_IOERR; /* main tells why */
	free(following->cursor);
	following->cursor = xstrdup(batch->cursor);
	if (values[EVENTS_CURSOR_FILE].given)
		r = write_cursor(values[EVENTS_CURSOR_FILE].text, following->cursor);
	return r;
}

/* Everything that there is. */
static int read_on(struct following *following)
{
	struct lease_event_batch *batch;
	struct lease_error error;
	bool more = true;
	int r = 0;

	while (r == 0 && more) {
		r = lease_events_after(following->conn, following->cursor, BATCH_LIMIT, &batch,
				       &error);
		if (r < 0)
			return fail_with_error("cannot read events", &error);
		more = batch->n > 0;
		r = write_batch(following, batch);
		lease_event_batch_free(batch);
	}
	return r;
}

/* Waits for a notification, or for the time to look anyway: a pooler carries no notifications. */
static int wait_for_events(struct following *following)
{
	const struct option_value *poll_option = &following->context->values[EVENTS_POLL];
	int64_t wait = poll_option->given ? poll_option->number : LEASE_SECOND;
	struct pollfd fd = { .fd = PQsocket(following->conn), .events = POLLIN };
	PGnotify *notification;

	wait = (wait + 999) / 1000;
	poll(&fd, 1, wait > 3600000 ? 3600000 : wait < 10 ? 10 : (int)wait);
	if (!PQconsumeInput(following->conn))
		return fail(EX_UNAVAILABLE, "the connection was lost: start again%s",
			    following->context->values[EVENTS_CURSOR_FILE].given
				    ? ", the cursor is kept"
				    : "");
	while ((notification = PQnotifies(following->conn)) != NULL)
		PQfreemem(notification);
	return 0;
}

static int follow(struct following *following)
{
	int r = 0;

	if (following->follows)
		PQclear(PQexec(following->conn, "LISTEN lease_events"));
	for (;;) {
		r = read_on(following);
		if (r != 0 || !following->follows)
			return r;
		r = wait_for_events(following);
		if (r != 0)
			return r;
	}
}

static int run_events(struct context *context)
{
	const struct option_value *values = context->values;
	struct following following = { .context = context, .follows = values[EVENTS_FOLLOW].given };
	int r = 0;

	if (values[EVENTS_AFTER].given && values[EVENTS_CURSOR_FILE].given)
		return fail(EX_USAGE, "--after and --cursor-file exclude each other");
	if (values[EVENTS_AFTER].given)
		following.cursor = xstrdup(values[EVENTS_AFTER].text);
	if (values[EVENTS_CURSOR_FILE].given)
		r = read_cursor(values[EVENTS_CURSOR_FILE].text, &following.cursor);
	if (r == 0)
		r = connection_open(&context->source, CONNECTION_READ, &following.conn);
	if (r == 0) {
		r = follow(&following);
		if (r == 0 && !values[EVENTS_CURSOR_FILE].given && following.cursor)
			note("cursor: %s", following.cursor);
		PQfinish(following.conn);
	}
	free(following.cursor);
	return r;
}

const struct command command_events = {
	.name = "events",
	.summary = "the record of transitions, once or as it grows",
	.description =
		"Writes events in an order that is right for each run; with --json one object a line.\n"
		"The cursor that it ends with stands on standard error: pass it to --after to go on from\n"
		"there, or let --cursor-file keep it. With --follow it wakes up on notifications of the\n"
		"channel lease_events and looks every --poll besides.",
	.options = events_options,
	.n_options = sizeof(events_options) / sizeof(events_options[0]),
	.run = run_events,
};
