/*
 * timeline.c - lanes drawn to scale: see timeline.h for what it promises.
 */
#include "timeline.h"

#include <stdlib.h>
#include <string.h>

#define WIDTH_DEFAULT 80
#define WIDTH_MIN 40
#define LABEL_MAX 24
/* The newest ones are drawn; a table beside it has them all. */
#define LANES_MAX 50

/* What a cell of a lane shows; a later one covers an earlier one. From MARK_END on: an outcome. */
enum mark {
	MARK_NONE,
	MARK_OVER, /* the lease is over, the attempt is not closed yet */
	MARK_SILENT, /* the lease holds; no renewal came after this */
	MARK_HELD, /* renewed, at work */
	MARK_END,
	MARK_COUNT = MARK_END + LEASE_OUTCOME_LEASE_EXPIRED + 1,
};

static const struct {
	const char *utf8, *ascii;
} marks[MARK_COUNT] = {
	[MARK_NONE] = { " ", " " },
	[MARK_OVER] = { "\u00b7", "." },
	[MARK_SILENT] = { "\u2591", "-" },
	[MARK_HELD] = { "\u2588", "#" },
	[MARK_END + LEASE_OUTCOME_NONE] = { "\u25b6", ">" },
	[MARK_END + LEASE_OUTCOME_COMPLETED] = { "\u2714", "C" },
	[MARK_END + LEASE_OUTCOME_FAILED] = { "\u2716", "F" },
	[MARK_END + LEASE_OUTCOME_CANCELLED] = { "\u25a0", "K" },
	[MARK_END + LEASE_OUTCOME_INTERRUPTED] = { "\u25c6", "I" },
	[MARK_END + LEASE_OUTCOME_RETRY_RELEASED] = { "\u21ba", "R" },
	[MARK_END + LEASE_OUTCOME_LEASE_EXPIRED] = { "\u2020", "X" },
};

static const char *meaning_of(int mark)
{
	switch (mark) {
	case MARK_OVER:
		return "lease over, not closed yet";
	case MARK_SILENT:
		return "leased, after the last renewal";
	case MARK_HELD:
		return "leased";
	default:
		return lease_outcome_name((enum lease_outcome)(mark - MARK_END));
	}
}

struct timeline {
	const struct output *output;
	const struct lease_history *history;
	size_t first; /* index of the first attempt drawn */
	int64_t start, end;
	int width, label_width, lane_width;
	bool used[MARK_COUNT];
};

enum style outcome_style(enum lease_outcome outcome)
{
	switch (outcome) {
	case LEASE_OUTCOME_COMPLETED:
		return STYLE_GOOD;
	case LEASE_OUTCOME_FAILED:
	case LEASE_OUTCOME_LEASE_EXPIRED:
		return STYLE_BAD;
	case LEASE_OUTCOME_CANCELLED:
	case LEASE_OUTCOME_INTERRUPTED:
	case LEASE_OUTCOME_RETRY_RELEASED:
		return STYLE_WARNING;
	case LEASE_OUTCOME_NONE:
		break;
	}
	return STYLE_PLAIN;
}

static int64_t min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Where an attempt ended, or, while it is open, where it has come to. */
static int64_t attempt_end(const struct lease_history *history, const struct lease_attempt *attempt)
{
	int64_t end = attempt->finished_at;

	return max(end == LEASE_TIME_NONE ? history->now : end, attempt->started_at);
}

char *owner_name(const char *owner)
{
	const char *colon = strrchr(owner, ':');
	bool has_uuid = colon && colon > owner && strlen(colon + 1) == 36;

	return has_uuid ? xasprintf("%.*s", (int)(colon - owner), owner) : xstrdup(owner);
}

static char *make_label(const struct timeline *timeline, size_t i)
{
	const struct lease_attempt *attempt = &timeline->history->attempts[i];
	bool utf8 = timeline->output->utf8;
	char *name = owner_name(attempt->owner);
	char *escaped = text_escape(name, utf8);
	char *cut = text_cut(escaped, LABEL_MAX, utf8);
	char *label = xasprintf("%d %s", attempt->attempt_no, cut);

	free(name);
	free(escaped);
	free(cut);
	return label;
}

static void measure(struct timeline *timeline)
{
	const struct lease_history *history = timeline->history;

	timeline->first = history->n_attempts > LANES_MAX ? history->n_attempts - LANES_MAX : 0;
	timeline->start = INT64_MAX;
	timeline->end = INT64_MIN;
	for (size_t i = timeline->first; i < history->n_attempts; i++) {
		char *label = make_label(timeline, i);

		timeline->start = min(timeline->start, history->attempts[i].started_at);
		timeline->end = max(timeline->end, attempt_end(history, &history->attempts[i]));
		timeline->label_width = (int)max(timeline->label_width, text_columns(label));
		free(label);
	}
	timeline->width = timeline->output->width > 0 ? timeline->output->width : WIDTH_DEFAULT;
	if (timeline->width < WIDTH_MIN)
		timeline->width = WIDTH_MIN;
	timeline->label_width = (int)min(timeline->label_width, timeline->width / 2);
	/* a gap and two bars */
	timeline->lane_width = timeline->width - timeline->label_width - 3;
}

/* The cell of a moment, from 0 to lane_width - 1. */
static int cell_of(const struct timeline *timeline, int64_t time)
{
	double span = (double)(timeline->end - timeline->start);
	double past = (double)(min(max(time, timeline->start), timeline->end) - timeline->start);

	return span > 0 ? (int)(past * (timeline->lane_width - 1) / span) : 0;
}

static void fill(const struct timeline *timeline, unsigned char *lane, int64_t from, int64_t to,
		 enum mark mark)
{
	for (int cell = cell_of(timeline, from); from <= to && cell <= cell_of(timeline, to);
	     cell++)
		if (lane[cell] < mark)
			lane[cell] = (unsigned char)mark;
}

/* From the last renewal on, an owner that did not end its attempt itself may have been gone. */
static void draw(const struct timeline *timeline, const struct lease_attempt *attempt,
		 unsigned char *lane)
{
	int64_t end = attempt_end(timeline->history, attempt);
	bool ended_by_owner = attempt->outcome != LEASE_OUTCOME_NONE &&
			      attempt->outcome != LEASE_OUTCOME_LEASE_EXPIRED;
	int64_t heard = ended_by_owner ? end : min(attempt->heartbeat_at, end);
	int64_t leased = ended_by_owner ? end : min(attempt->lease_expires_at, end);

	fill(timeline, lane, leased, end, MARK_OVER);
	fill(timeline, lane, heard, leased, MARK_SILENT);
	fill(timeline, lane, attempt->started_at, heard, MARK_HELD);
	lane[cell_of(timeline, end)] = (unsigned char)(MARK_END + (int)attempt->outcome);
}

static const char *sign_of(const struct timeline *timeline, int mark)
{
	return timeline->output->utf8 ? marks[mark].utf8 : marks[mark].ascii;
}

static void print_lane(struct timeline *timeline, size_t i, unsigned char *lane)
{
	const struct lease_attempt *attempt = &timeline->history->attempts[i];
	const struct output *output = timeline->output;
	const char *bar = output->utf8 ? "\u2502" : "|";
	enum style style = outcome_style(attempt->outcome);
	char *label = make_label(timeline, i);
	char *cut = text_cut(label, timeline->label_width, output->utf8);

	memset(lane, MARK_NONE, (size_t)timeline->lane_width);
	draw(timeline, attempt, lane);
	fprintf(output->file, "%s%*s %s%s", cut, timeline->label_width - text_columns(cut), "", bar,
		style_on(output, style));
	for (int cell = 0; cell < timeline->lane_width; cell++) {
		timeline->used[lane[cell]] = true;
		fputs(sign_of(timeline, lane[cell]), output->file);
	}
	fprintf(output->file, "%s%s\n", style_off(output, style), bar);
	free(label);
	free(cut);
}

/* The first line: what the lanes span, and what one cell stands for. */
static void print_scale(const struct timeline *timeline)
{
	int64_t span = timeline->end - timeline->start;
	char start[TIME_SIZE], length[TIME_SIZE], cell[TIME_SIZE];
	char *text, *cut;

	time_format(timeline->start, start);
	duration_format(span, length);
	duration_format(span / (timeline->lane_width > 1 ? timeline->lane_width - 1 : 1), cell);
	text = xasprintf("timeline from %s, %s long, %s a cell%s", start, length, cell,
			 timeline->first > 0 ? ", newest attempts only" : "");
	cut = text_cut(text, timeline->width, timeline->output->utf8);
	fprintf(timeline->output->file, "%s%s%s\n", style_on(timeline->output, STYLE_STRONG), cut,
		style_off(timeline->output, STYLE_STRONG));
	free(text);
	free(cut);
}

/* The marks that were used, as many in a line as there is room for. */
static void print_legend(const struct timeline *timeline)
{
	FILE *file = timeline->output->file;
	int used = 0;

	for (int mark = MARK_COUNT - 1; mark > MARK_NONE; mark--) {
		int columns = 2 + (int)strlen(meaning_of(mark));

		if (!timeline->used[mark])
			continue;
		if (used > 0 && used + 2 + columns > timeline->width) {
			putc('\n', file);
			used = 0;
		}
		fprintf(file, "%s%s %s", used > 0 ? "  " : "", sign_of(timeline, mark),
			meaning_of(mark));
		used += columns + (used > 0 ? 2 : 0);
	}
	putc('\n', file);
}

void timeline_print(const struct output *output, const struct lease_history *history)
{
	struct timeline timeline = { .output = output, .history = history };
	unsigned char *lane;

	if (history->n_attempts == 0)
		return;
	measure(&timeline);
	lane = xcalloc((size_t)timeline.lane_width, sizeof(*lane));
	print_scale(&timeline);
	for (size_t i = timeline.first; i < history->n_attempts; i++)
		print_lane(&timeline, i, lane);
	print_legend(&timeline);
	free(lane);
}
