/*
 * See metrics.h. One table says what there is: name, type, help, and the function that writes the
 * lines of one database; the text is made from it in one place, metrics_render.
 *
 * The format is that of Prometheus' "text-based exposition format", version 0.0.4.
 */
#include "metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX "lease_reconciler_"
/* SQLSTATEs with a series of their own, for each database; those that come later are "other". */
#define SQLSTATES 16

/* What became of a run that the reconciler wrote to. */
enum result {
	RESULT_UNCHANGED,
	RESULT_REQUEUED,
	RESULT_FAILED,
	RESULT_LOSSES_EXHAUSTED,
	RESULT_DEADLINE,
	RESULT_CANCELLED,
	RESULTS,
};

static const char *const result_names[RESULTS] = {
	[RESULT_UNCHANGED] = "unchanged",
	[RESULT_REQUEUED] = "requeued",
	[RESULT_FAILED] = "failed",
	[RESULT_LOSSES_EXHAUSTED] = "lease_losses_exhausted",
	[RESULT_DEADLINE] = "deadline_exceeded",
	[RESULT_CANCELLED] = "cancelled",
};

/* Upper bounds of the detection lag, microseconds: usual are some milliseconds. */
static const int64_t lag_bounds[] = {
	1 * LEASE_MILLISECOND,    2500,
	5 * LEASE_MILLISECOND,    10 * LEASE_MILLISECOND,
	25 * LEASE_MILLISECOND,   50 * LEASE_MILLISECOND,
	100 * LEASE_MILLISECOND,  250 * LEASE_MILLISECOND,
	500 * LEASE_MILLISECOND,  1 * LEASE_SECOND,
	2500 * LEASE_MILLISECOND, 5 * LEASE_SECOND,
	10 * LEASE_SECOND,        30 * LEASE_SECOND,
	60 * LEASE_SECOND,        300 * LEASE_SECOND,
};
#define LAG_BOUNDS (sizeof(lag_bounds) / sizeof(lag_bounds[0]))

struct metrics_counters {
	struct metrics_counters *next;
	char *database;
	unsigned holders;

	int64_t sweeps, skipped, connections, amnesties, clock_jumps;
	int64_t swept_at; /* as struct metrics, started_at; 0: not yet */
	int64_t closed[RESULTS], moved[RESULTS];
	int64_t lags[LAG_BOUNDS + 1]; /* those within a bound and above the one before it */
	int64_t lag_sum;
	struct {
		char sqlstate[6];
		int64_t n;
	} failures[SQLSTATES];
	int64_t failures_without, failures_other;
};

static int64_t wall_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000;
}

/* -- counting --------------------------------------------------------------------------------- */

struct metrics_counters *metrics_join(struct metrics *metrics, const char *database)
{
	struct metrics_counters *counters = metrics->counters;

	while (counters && strcmp(counters->database, database) != 0)
		counters = counters->next;
	if (!counters) {
		counters = calloc(1, sizeof(*counters));
		if (!counters)
			return NULL;
		counters->database = strdup(database);
		if (!counters->database) {
			free(counters);
			return NULL;
		}
		counters->next = metrics->counters;
		metrics->counters = counters;
	}
	counters->holders++;
	return counters;
}

void metrics_leave(struct metrics *metrics, struct metrics_counters *counters)
{
	struct metrics_counters **link = &metrics->counters;

	if (!counters || --counters->holders > 0)
		return;
	while (*link != counters)
		link = &(*link)->next;
	*link = counters->next;
	free(counters->database);
	free(counters);
}

void metrics_count_sweeps(struct metrics_counters *counters, int64_t n)
{
	counters->sweeps += n;
	counters->swept_at = wall_clock();
}

/* A pooler or a server may say anything. */
static bool is_sqlstate(const char *text)
{
	return strlen(text) == 5 && strspn(text, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5;
}

void metrics_count_failure(struct metrics_counters *counters, const char *sqlstate)
{
	if (!*sqlstate) {
		counters->failures_without++;
		return;
	}
	for (size_t i = 0; is_sqlstate(sqlstate) && i < SQLSTATES; i++) {
		if (counters->failures[i].n == 0)
			memcpy(counters->failures[i].sqlstate, sqlstate, 6);
		if (strcmp(counters->failures[i].sqlstate, sqlstate) == 0) {
			counters->failures[i].n++;
			return;
		}
	}
	counters->failures_other++;
}

static enum result result_of(const struct lease_closed *closed)
{
	const char *code = closed->error_code ? closed->error_code : "";

	if (!closed->moved)
		return RESULT_UNCHANGED;
	if (closed->status == LEASE_RUN_CANCELLED)
		return RESULT_CANCELLED;
	if (closed->status != LEASE_RUN_FAILED)
		return RESULT_REQUEUED;
	if (strcmp(code, result_names[RESULT_LOSSES_EXHAUSTED]) == 0)
		return RESULT_LOSSES_EXHAUSTED;
	if (strcmp(code, result_names[RESULT_DEADLINE]) == 0)
		return RESULT_DEADLINE;
	return RESULT_FAILED;
}

void metrics_count_closed(struct metrics_counters *counters, const struct lease_closed *closed)
{
	enum result result = result_of(closed);
	int64_t lag = closed->closed_at - closed->lease_expires_at;
	size_t i = 0;

	if (!closed->attempt_no) {
		counters->moved[result]++;
		return;
	}
	counters->closed[result]++;
	if (lag < 0)
		lag = 0;
	while (i < LAG_BOUNDS && lag > lag_bounds[i])
		i++;
	counters->lags[i]++;
	counters->lag_sum += lag;
}

void metrics_count_skipped(struct metrics_counters *counters)
{
	counters->skipped++;
}

void metrics_count_connection(struct metrics_counters *counters)
{
	counters->connections++;
}

void metrics_count_amnesty(struct metrics_counters *counters)
{
	counters->amnesties++;
}

void metrics_count_clock_jump(struct metrics_counters *counters)
{
	counters->clock_jumps++;
}

/* -- the text --------------------------------------------------------------------------------- */

/* Microseconds as seconds, exactly. */
static void write_seconds(FILE *file, int64_t duration)
{
	fprintf(file, "%" PRId64 ".%06" PRId64, duration / LEASE_SECOND, duration % LEASE_SECOND);
}

/* A label's value: backslash, quote and line break are escaped. */
static void write_escaped(FILE *file, const char *text)
{
	for (; *text; text++) {
		if (*text == '\n')
			fputs("\\n", file);
		else if (*text == '\\' || *text == '"')
			fprintf(file, "\\%c", *text);
		else
			putc(*text, file);
	}
}

/* All of a line but its value; `label` may be NULL. */
static void begin_line(FILE *file, const char *name, const char *suffix,
		       const struct metrics_sample *sample, const char *label, const char *value)
{
	fprintf(file, "%s%s{database=\"", name, suffix);
	write_escaped(file, sample->counters->database);
	if (value) {
		fprintf(file, "\",%s=\"", label);
		write_escaped(file, value);
	}
	fputs("\"} ", file);
}

static void write_number(FILE *file, const char *name, const struct metrics_sample *sample,
			 const char *label, const char *value, int64_t number)
{
	begin_line(file, name, "", sample, label, value);
	fprintf(file, "%" PRId64 "\n", number);
}

static void write_duration(FILE *file, const char *name, const struct metrics_sample *sample,
			   int64_t duration)
{
	begin_line(file, name, "", sample, NULL, NULL);
	write_seconds(file, duration);
	putc('\n', file);
}

static void write_results(FILE *file, const char *name, const struct metrics_sample *sample,
			  const int64_t numbers[RESULTS])
{
	for (int result = 0; result < RESULTS; result++)
		write_number(file, name, sample, "result", result_names[result], numbers[result]);
}

#define WRITER(function)                                                                           \
	static void function(FILE *file, const char *name, const struct metrics_sample *sample)

WRITER(write_up)
{
	write_number(file, name, sample, NULL, NULL, sample->up);
}

WRITER(write_sweeps)
{
	write_number(file, name, sample, NULL, NULL, sample->counters->sweeps);
}

WRITER(write_swept_at)
{
	if (sample->counters->swept_at > 0)
		write_duration(file, name, sample, sample->counters->swept_at);
}

WRITER(write_scan_duration)
{
	if (sample->scanned)
		write_duration(file, name, sample, sample->sweep.scan_duration);
}

WRITER(write_scan_interval)
{
	if (sample->scanned)
		write_duration(file, name, sample, sample->sweep.next_interval);
}

/* Those without and "other" are always there, so that the first of them is an increase. */
WRITER(write_failures)
{
	const struct metrics_counters *counters = sample->counters;

	write_number(file, name, sample, "sqlstate", "none", counters->failures_without);
	write_number(file, name, sample, "sqlstate", "other", counters->failures_other);
	for (size_t i = 0; i < SQLSTATES && counters->failures[i].n > 0; i++)
		write_number(file, name, sample, "sqlstate", counters->failures[i].sqlstate,
			     counters->failures[i].n);
}

WRITER(write_connections)
{
	write_number(file, name, sample, NULL, NULL, sample->counters->connections);
}

WRITER(write_closed)
{
	write_results(file, name, sample, sample->counters->closed);
}

WRITER(write_moved)
{
	write_results(file, name, sample, sample->counters->moved);
}

WRITER(write_skipped)
{
	write_number(file, name, sample, NULL, NULL, sample->counters->skipped);
}

/* 2500 us as "0.0025", 60 s as "60". */
static void bound_text(int64_t bound, char text[32])
{
	snprintf(text, 32, "%g", (double)bound / (double)LEASE_SECOND);
}

WRITER(write_lags)
{
	const struct metrics_counters *counters = sample->counters;
	int64_t n = 0;
	char bound[32];

	for (size_t i = 0; i <= LAG_BOUNDS; i++) {
		n += counters->lags[i];
		if (i < LAG_BOUNDS)
			bound_text(lag_bounds[i], bound);
		else
			snprintf(bound, sizeof(bound), "+Inf");
		begin_line(file, name, "_bucket", sample, "le", bound);
		fprintf(file, "%" PRId64 "\n", n);
	}
	begin_line(file, name, "_sum", sample, NULL, NULL);
	write_seconds(file, counters->lag_sum);
	putc('\n', file);
	begin_line(file, name, "_count", sample, NULL, NULL);
	fprintf(file, "%" PRId64 "\n", n);
}

WRITER(write_open)
{
	if (sample->scanned)
		write_number(file, name, sample, NULL, NULL, sample->sweep.open);
}

WRITER(write_expired)
{
	if (sample->scanned)
		write_number(file, name, sample, NULL, NULL, sample->expired);
}

WRITER(write_kept)
{
	if (sample->scanned)
		write_number(file, name, sample, NULL, NULL, sample->sweep.pardoned);
}

WRITER(write_oldest)
{
	if (sample->oldest_unclosed >= 0)
		write_duration(file, name, sample, sample->oldest_unclosed);
}

WRITER(write_amnesty)
{
	if (sample->up)
		write_number(file, name, sample, NULL, NULL,
			     sample->sweep.amnesty_until != LEASE_TIME_NONE);
}

WRITER(write_amnesties)
{
	write_number(file, name, sample, NULL, NULL, sample->counters->amnesties);
}

WRITER(write_clock_jumps)
{
	write_number(file, name, sample, NULL, NULL, sample->counters->clock_jumps);
}

/* What is said of the daemon as a whole. */
#define INFO PREFIX "info"
#define STARTED PREFIX "start_time_seconds"
#define WRITTEN PREFIX "written_timestamp_seconds"

/* The names are promised: dashboards and alerts know them. docs/observing.md has them all. */
static const struct family {
	const char *name, *type, *help;
	void (*write)(FILE *file, const char *name, const struct metrics_sample *sample);
} families[] = {
	{ PREFIX "database_up", "gauge",
	  "1: connected to a server of this database that can be written to.", write_up },
	{ PREFIX "sweeps_total", "counter", "Scans of all open attempts that came to their end.",
	  write_sweeps },
	{ PREFIX "last_sweep_timestamp_seconds", "gauge",
	  "When the last scan came to its end, by this machine's clock.", write_swept_at },
	{ PREFIX "scan_duration_seconds", "gauge", "How long the statements of the last scan took.",
	  write_scan_duration },
	{ PREFIX "scan_interval_seconds", "gauge", "Time from one scan to the next, in force now.",
	  write_scan_interval },
	{ PREFIX "failures_total", "counter",
	  "Connections and operations that failed, by SQLSTATE; none: without one.",
	  write_failures },
	{ PREFIX "connections_total", "counter",
	  "Connections made to a server that can be written to.", write_connections },
	{ PREFIX "attempts_closed_total", "counter",
	  "Attempts closed as lease_expired, by what became of the run.", write_closed },
	{ PREFIX "runs_moved_total", "counter",
	  "Runs without an open attempt that were moved, by what became of them.", write_moved },
	{ PREFIX "runs_skipped_total", "counter",
	  "Times that a run was passed over because the database refused to write it.",
	  write_skipped },
	{ PREFIX "detection_lag_seconds", "histogram",
	  "From the end of a lease to the close of its attempt, by the database's clock.",
	  write_lags },
	{ PREFIX "open_leases", "gauge", "Open attempts at the last scan.", write_open },
	{ PREFIX "expired_leases", "gauge",
	  "Leases that were over at the last scan and are not known to be closed.", write_expired },
	{ PREFIX "kept_leases", "gauge", "Leases that only an amnesty kept at the last scan.",
	  write_kept },
	{ PREFIX "oldest_unclosed_lease_age_seconds", "gauge",
	  "Age of the oldest lease that is over and may be unclosed, as far as is known.",
	  write_oldest },
	{ PREFIX "amnesty_active", "gauge", "1: an amnesty is in force.", write_amnesty },
	{ PREFIX "amnesties_total", "counter", "Amnesties granted or prolonged.", write_amnesties },
	{ PREFIX "clock_jumps_total", "counter",
	  "Jumps of the database's clock beyond max_clock_jump.", write_clock_jumps },
};

static void begin_family(FILE *file, const char *name, const char *type, const char *help)
{
	fprintf(file, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void render_daemon(const struct metrics *metrics, FILE *file)
{
	begin_family(file, INFO, "gauge", "The daemon's version.");
	fputs(INFO "{version=\"", file);
	write_escaped(file, lease_version());
	fputs("\"} 1\n", file);
	begin_family(file, STARTED, "gauge", "When the daemon started.");
	fputs(STARTED " ", file);
	write_seconds(file, metrics->started_at);
	putc('\n', file);
	begin_family(file, WRITTEN, "gauge", "When this file was written: the daemon's last sign.");
	fputs(WRITTEN " ", file);
	write_seconds(file, wall_clock());
	putc('\n', file);
}

/* As the source, where there is nothing more to measure: all that was counted. */
static size_t measure_counters(void *arg, struct metrics_sample *samples, size_t size)
{
	const struct metrics *metrics = arg;
	size_t n = 0;

	for (const struct metrics_counters *c = metrics->counters; c; c = c->next, n++)
		if (n < size)
			samples[n] = (struct metrics_sample){ .counters = c };
	return n;
}

/* Without memory for the samples: of the daemon alone. */
static struct metrics_sample *take_samples(struct metrics_source source, size_t *ret_n)
{
	size_t n = source.measure(source.arg, NULL, 0);
	struct metrics_sample *samples = n > 0 ? calloc(n, sizeof(*samples)) : NULL;

	*ret_n = samples ? n : 0;
	if (samples)
		source.measure(source.arg, samples, n);
	return samples;
}

void metrics_render(struct metrics *metrics, FILE *file, bool now)
{
	struct metrics_source counters = { measure_counters, metrics };
	size_t n;
	struct metrics_sample *samples = take_samples(now ? metrics->source : counters, &n);

	render_daemon(metrics, file);
	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		const struct family *family = &families[i];

		if (!now && strcmp(family->type, "gauge") == 0)
			continue;
		begin_family(file, family->name, family->type, family->help);
		for (size_t k = 0; k < n; k++)
			family->write(file, family->name, &samples[k]);
	}
	free(samples);
}

/* -- the file --------------------------------------------------------------------------------- */

static bool write_whole(int fd, const char *text, size_t length)
{
	while (length > 0) {
		ssize_t written = write(fd, text, length);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return false;
		text += written;
		length -= (size_t)written;
	}
	return true;
}

/*
 * A name of its own until it is whole, in the same folder because rename does not cross file
 * systems. It does not end in .prom, so no reader takes it. There is no fsync: what a crash of the
 * machine leaves is of no interest. 0, or an errno.
 */
static int replace_file(const char *path, const char *text, size_t length)
{
	char *temporary = NULL;
	int fd, error = 0;

	if (asprintf(&temporary, "%s.XXXXXX", path) < 0)
		return ENOMEM;
	fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0) {
		error = errno;
		free(temporary);
		return error;
	}
	/* node_exporter runs as another user, and the unit's umask lets nobody read */
	if (fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH) < 0 || !write_whole(fd, text, length))
		error = errno;
	if (close(fd) < 0 && !error)
		error = errno;
	if (!error && rename(temporary, path) < 0)
		error = errno;
	if (error)
		unlink(temporary);
	free(temporary);
	return error;
}

/* 0, or an errno. */
static int write_metrics(struct metrics *metrics, bool now)
{
	char *text = NULL;
	size_t length = 0;
	FILE *file = open_memstream(&text, &length);
	int error;

	if (!file)
		return ENOMEM;
	metrics_render(metrics, file, now);
	error = fclose(file) == 0 ? replace_file(metrics->path, text, length) : ENOMEM;
	free(text);
	return error;
}

static void publish(struct metrics *metrics, bool now)
{
	int error;

	if (!metrics->path)
		return;
	error = write_metrics(metrics, now);
	if (error && !metrics->failing)
		journal_write(metrics->journal, JOURNAL_METRICS_FAILED, NULL,
			      "metrics_file %s cannot be written: %s; sweeping goes on",
			      metrics->path, strerror(error));
	else if (!error && metrics->failing)
		journal_write(metrics->journal, JOURNAL_METRICS_RECOVERED, NULL,
			      "metrics_file %s is written again", metrics->path);
	metrics->failing = error != 0;
}

static void on_timer(struct ev_loop *loop, ev_timer *watcher, int events)
{
	(void)loop;
	(void)events;
	publish(watcher->data, true);
}

void metrics_init(struct metrics *metrics, struct ev_loop *loop, struct journal *journal,
		  struct metrics_source source)
{
	metrics->loop = loop;
	metrics->journal = journal;
	metrics->source = source;
	metrics->started_at = wall_clock();
	ev_init(&metrics->timer, on_timer);
	metrics->timer.data = metrics;
}

void metrics_configure(struct metrics *metrics, const char *path, int64_t interval)
{
	bool same = path && metrics->path && strcmp(path, metrics->path) == 0;

	ev_timer_stop(metrics->loop, &metrics->timer);
	if (metrics->path && !same) {
		unlink(metrics->path);
		metrics->failing = false;
	}
	metrics->path = path;
	if (path) {
		ev_timer_set(&metrics->timer, 0., (double)interval / (double)LEASE_SECOND);
		ev_timer_start(metrics->loop, &metrics->timer);
	}
}

void metrics_stop(struct metrics *metrics)
{
	ev_timer_stop(metrics->loop, &metrics->timer);
	publish(metrics, false);
}
