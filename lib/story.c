/*
 * story.c - reading all facts of a run, and following the events of all runs.
 *
 * Never writes. The cursor of a consumer is "OLDER" or, within a window that is not read to its
 * end, "OLDER/NEWER/LOWEST/AFTER": two snapshots as PostgreSQL prints them, the lowest event_id
 * that open_window.sql gave (0: none), and the last event_id that was read.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "facts.h"
#include "sql.h"
#include "verbs.h"

static int no_memory(struct lease_error *reterr)
{
	return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
}

/* Copies texts of a row: columns[i] of the result to *rets[i], up to a NULL. */
static int copy_texts(const PGresult *result, int row, const int *columns, char **const *rets,
		      int n, struct lease_error *reterr)
{
	int r = 0;

	for (int i = 0; r == 0 && i < n; i++)
		r = copy_text(read_text(result, row, columns[i]), rets[i], reterr);
	return r;
}

#define COPY_TEXTS(result, row, reterr, columns, ...)                                              \
	copy_texts(result, row, columns, (char **const[]){ __VA_ARGS__ },                          \
		   (int)(sizeof((char **const[]){ __VA_ARGS__ }) / sizeof(char **)), reterr)

/* -- executions, checkpoints, events ------------------------------------------------------------ */

static int take_execution(struct lease_execution *execution, const PGresult *result, int row,
			  struct lease_error *reterr)
{
	const char *status = read_text(result, row, 4);
	int value = lease_execution_status_parse(status);

	if (value < 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "unknown execution status '%s'",
				       status ? status : "NULL");
	copy_id(execution->node_id, read_text(result, row, 0));
	execution->execution_no = (int32_t)read_int(result, row, 1);
	execution->run_attempt_no = (int32_t)read_int(result, row, 2);
	copy_id(execution->owner, read_text(result, row, 3));
	execution->status = (enum lease_execution_status)value;
	execution->started_at = read_time(result, row, 5);
	execution->finished_at = read_time(result, row, 6);
	return COPY_TEXTS(result, row, reterr, ((const int[]){ 7, 8, 9, 10, 11, 12 }),
			  &execution->operation_id, &execution->input_ref, &execution->output_ref,
			  &execution->normalized_error, &execution->error_message,
			  &execution->trace_id);
}

static int take_executions(struct lease_story *story, const PGresult *result,
			   struct lease_error *reterr)
{
	int n = PQntuples(result);
	int r = read_form(result, "tiittsstttttt", reterr);

	if (r < 0 || n == 0)
		return r;
	story->executions = calloc((size_t)n, sizeof(*story->executions));
	if (!story->executions)
		return no_memory(reterr);
	story->n_executions = (size_t)n;
	for (int row = 0; r == 0 && row < n; row++)
		r = take_execution(&story->executions[row], result, row, reterr);
	return r;
}

static int take_checkpoints(struct lease_story *story, const PGresult *result,
			    struct lease_error *reterr)
{
	int n = PQntuples(result);
	int r = read_form(result, "tillst", reterr);

	if (r < 0 || n == 0)
		return r;
	story->checkpoints = calloc((size_t)n, sizeof(*story->checkpoints));
	if (!story->checkpoints)
		return no_memory(reterr);
	story->n_checkpoints = (size_t)n;
	for (int row = 0; r == 0 && row < n; row++) {
		struct lease_checkpoint_fact *checkpoint = &story->checkpoints[row];

		copy_id(checkpoint->checkpoint_id, read_text(result, row, 0));
		checkpoint->run_attempt_no = (int32_t)read_int(result, row, 1);
		checkpoint->state_version = read_int(result, row, 2);
		checkpoint->plan_version = read_int(result, row, 3);
		checkpoint->created_at = read_time(result, row, 4);
		r = copy_text(read_text(result, row, 5), &checkpoint->content_ref, reterr);
	}
	return r;
}

static int take_event(struct lease_event *event, const PGresult *result, int row,
		      struct lease_error *reterr)
{
	event->event_id = read_int(result, row, 0);
	event->at = read_time(result, row, 1);
	event->attempt_no = (int32_t)read_int(result, row, 4);
	event->execution_no = (int32_t)read_int(result, row, 6);
	return COPY_TEXTS(result, row, reterr, ((const int[]){ 2, 3, 5, 7, 8, 9, 10, 11, 12 }),
			  &event->kind, &event->run_id, &event->node_id, &event->from_status,
			  &event->to_status, &event->outcome, &event->owner, &event->error_code,
			  &event->reference);
}

static int take_events(struct lease_event **events, size_t *n_events, const PGresult *result,
		       struct lease_error *reterr)
{
	int n = PQntuples(result);
	int r = read_form(result, "lsttititttttt", reterr);

	if (r < 0 || n == 0)
		return r;
	*events = calloc((size_t)n, sizeof(**events));
	if (!*events)
		return no_memory(reterr);
	*n_events = (size_t)n;
	for (int row = 0; r == 0 && row < n; row++)
		r = take_event(&(*events)[row], result, row, reterr);
	return r;
}

static void free_events(struct lease_event *events, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct lease_event *event = &events[i];
		char *texts[] = { event->kind,        event->run_id,     event->node_id,
				  event->from_status, event->to_status,  event->outcome,
				  event->owner,       event->error_code, event->reference };

		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			free(texts[k]);
	}
	free(events);
}

/* -- the story of a run ------------------------------------------------------------------------- */

void lease_story_free(struct lease_story *story)
{
	if (!story)
		return;
	for (size_t i = 0; i < story->n_executions; i++) {
		struct lease_execution *execution = &story->executions[i];
		char *texts[] = { execution->operation_id,  execution->input_ref,
				  execution->output_ref,    execution->normalized_error,
				  execution->error_message, execution->trace_id };

		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			free(texts[k]);
	}
	free(story->executions);
	for (size_t i = 0; i < story->n_checkpoints; i++)
		free(story->checkpoints[i].content_ref);
	free(story->checkpoints);
	free_events(story->events, story->n_events);
	free(story->current_checkpoint_id);
	free(story->unexplained);
	lease_history_free(story->history);
	free(story);
}

static void fill_story(const struct reading *reading, struct batch *batch)
{
	const char *const more[] = { lease_sql_read_executions, lease_sql_read_checkpoints,
				     lease_sql_read_run_events, lease_sql_read_explanation };

	fill_history(reading, batch);
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		batch_add(batch, more[i]);
		bind_text(batch, reading->run_id);
	}
}

static int take_explanation(struct lease_story *story, const PGresult *result,
			    struct lease_error *reterr)
{
	int r = read_form(result, "tt", reterr);

	if (r < 0 || PQntuples(result) == 0)
		return r;
	return COPY_TEXTS(result, 0, reterr, ((const int[]){ 0, 1 }), &story->current_checkpoint_id,
			  &story->unexplained);
}

static int take_story(struct reading *reading, int index, const PGresult *result,
		      struct lease_error *reterr)
{
	struct lease_story *story = reading->ret;
	struct reading history = *reading;
	int r;

	switch (index) {
	case 2:
		return take_executions(story, result, reterr);
	case 3:
		return take_checkpoints(story, result, reterr);
	case 4:
		return take_events(&story->events, &story->n_events, result, reterr);
	case 5:
		return take_explanation(story, result, reterr);
	default:
		history.ret = story->history;
		r = take_history(&history, index, result, reterr);
		reading->refusal = history.refusal;
		return r;
	}
}

int lease_read_story(PGconn *conn, const char *run_id, struct lease_story **ret,
		     struct lease_error *reterr)
{
	struct lease_story *story;
	struct reading reading = { .fill = fill_story, .take = take_story, .run_id = run_id };
	int r = check_id("run_id", run_id, reterr);

	if (r < 0)
		return r;
	reading.ret = story = calloc(1, sizeof(*story));
	if (story)
		story->history = calloc(1, sizeof(*story->history));
	if (!story || !story->history) {
		free(story);
		return no_memory(reterr);
	}
	r = run_reading(conn, &reading, reterr);
	if (r == 0)
		r = reading.refusal;
	if (r == 0)
		*ret = story;
	else
		lease_story_free(story);
	return r;
}

/* -- following events --------------------------------------------------------------------------- */

/* Everything is newer than this. */
#define FIRST_SNAPSHOT "1:1:"

struct following {
	struct lease_event_batch *batch;
	char *older, *newer; /* the window; newer NULL: it is to be opened */
	int64_t lowest; /* event_id, see open_window.sql; 0: none */
	int64_t after;
	int limit;
};

static void following_done(struct following *following)
{
	lease_event_batch_free(following->batch);
	free(following->older);
	free(following->newer);
}

static int bad_cursor(struct lease_error *reterr)
{
	return lease_error_set(reterr, LEASE_E_INVALID,
			       "the cursor is not one that lease_events_after gave");
}

/* "/NUMBER", and what follows it. */
static const char *parse_part(const char *text, int64_t *ret)
{
	char *end;

	if (text[0] != '/' || text[1] < '0' || text[1] > '9')
		return NULL;
	errno = 0;
	*ret = strtoll(text + 1, &end, 10);
	return errno ? NULL : end;
}

/* Parts of a cursor, see the head of the file. Whether they are snapshots, the server says. */
static int parse_cursor(struct following *following, const char *cursor, struct lease_error *reterr)
{
	const char *rest;
	size_t length;

	if (!cursor || !cursor[0])
		cursor = FIRST_SNAPSHOT;
	length = strspn(cursor, "0123456789:,");
	following->older = strndup(cursor, length);
	if (!following->older)
		return no_memory(reterr);
	if (!cursor[length])
		return 0;
	if (cursor[length] != '/')
		return bad_cursor(reterr);
	cursor += length + 1;
	length = strspn(cursor, "0123456789:,");
	following->newer = strndup(cursor, length);
	if (!following->newer)
		return no_memory(reterr);
	rest = parse_part(cursor + length, &following->lowest);
	if (rest)
		rest = parse_part(rest, &following->after);
	return rest && !*rest ? 0 : bad_cursor(reterr);
}

static void fill_window(const struct reading *reading, struct batch *batch)
{
	const struct following *following = reading->ret;

	batch_add(batch, lease_sql_open_window);
	bind_text(batch, following->older);
}

static int take_window(struct reading *reading, int index, const PGresult *result,
		       struct lease_error *reterr)
{
	struct following *following = reading->ret;
	int r = read_form(result, "tlbb", reterr);

	(void)index;
	if (r < 0)
		return r;
	if (PQntuples(result) != 1 || !read_text(result, 0, 0))
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "expected a snapshot");
	if (read_bool(result, 0, 2))
		return lease_error_set(reterr, LEASE_E_READ_ONLY,
				       "events cannot be followed on a standby, whose snapshots "
				       "do not tell what is in progress: connect to the primary");
	if (read_bool(result, 0, 3))
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "the cursor is of a later time than this database, which "
				       "may have been restored, or may be another one");
	following->lowest = read_int(result, 0, 1);
	following->after = 0;
	return copy_text(read_text(result, 0, 0), &following->newer, reterr);
}

/* A window that begins where the last one ended. */
static int open_window(PGconn *conn, struct following *following, struct lease_error *reterr)
{
	struct reading reading = { .fill = fill_window, .take = take_window, .ret = following };

	if (following->newer) {
		free(following->older);
		following->older = following->newer;
		following->newer = NULL;
	}
	return run_reading(conn, &reading, reterr);
}

static void fill_following(const struct reading *reading, struct batch *batch)
{
	const struct following *following = reading->ret;

	batch_add(batch, lease_sql_events_after);
	bind_text(batch, following->older);
	bind_text(batch, following->newer);
	if (following->lowest)
		bind_int(batch, following->lowest);
	else
		bind_text(batch, NULL);
	bind_int(batch, following->after);
	bind_int(batch, following->limit);
}

static int take_following(struct reading *reading, int index, const PGresult *result,
			  struct lease_error *reterr)
{
	struct following *following = reading->ret;

	(void)index;
	return take_events(&following->batch->events, &following->batch->n, result, reterr);
}

static int read_window(PGconn *conn, struct following *following, struct lease_error *reterr)
{
	struct reading reading = { .fill = fill_following,
				   .take = take_following,
				   .ret = following };

	return run_reading(conn, &reading, reterr);
}

/* A batch that is not full has come to the end of its window. */
static int make_cursor(struct following *following, struct lease_error *reterr)
{
	struct lease_event_batch *batch = following->batch;
	int r = 0;

	if (batch->n < (size_t)following->limit)
		batch->cursor = strdup(following->newer);
	else
		r = asprintf(&batch->cursor, "%s/%s/%" PRId64 "/%" PRId64, following->older,
			     following->newer, following->lowest,
			     batch->events[batch->n - 1].event_id);
	if (r >= 0 && batch->cursor)
		return 0;
	batch->cursor = NULL;
	return no_memory(reterr);
}

void lease_event_batch_free(struct lease_event_batch *batch)
{
	if (!batch)
		return;
	free_events(batch->events, batch->n);
	free(batch->cursor);
	free(batch);
}

static int follow(PGconn *conn, struct following *following, struct lease_error *reterr)
{
	int r = 0;

	if (following->newer)
		r = read_window(conn, following, reterr);
	/* without a window, or with one that was read to its end before: the next may hold some */
	if (r == 0 && following->batch->n == 0) {
		r = open_window(conn, following, reterr);
		if (r == 0)
			r = read_window(conn, following, reterr);
	}
	return r == 0 ? make_cursor(following, reterr) : r;
}

int lease_events_after(PGconn *conn, const char *cursor, int limit, struct lease_event_batch **ret,
		       struct lease_error *reterr)
{
	struct following following = { .limit = limit };
	struct lease_error error = { 0 };
	int r;

	if (limit < 1 || limit > 100000)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "limit must be from 1 to 100000, it is %d", limit);
	r = parse_cursor(&following, cursor, reterr);
	if (r < 0)
		goto out;
	following.batch = calloc(1, sizeof(*following.batch));
	if (!following.batch) {
		r = no_memory(reterr);
		goto out;
	}
	r = follow(conn, &following, &error);
	if (r == 0) {
		*ret = following.batch;
		following.batch = NULL;
	} else if (strcmp(error.sqlstate, "22P02") == 0) { /* one that is no snapshot */
		r = bad_cursor(reterr);
	} else if (reterr) {
		*reterr = error;
	}
out:
	following_done(&following);
	return r;
}
