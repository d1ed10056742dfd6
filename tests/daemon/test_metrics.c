/*
 * The metrics file: what is counted, as numbers of the module itself and as a real daemon writes
 * them; that a reader never sees a part of a file; and that the sample alerts ask for metrics that
 * there are.
 */
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <yaml.h>

#include "fixture.h"
#include "metrics.h"

/* ---- reading the format ---- */

/* The value of a series, by its whole name with labels, in the text; NAN: it is not there. */
static double value_in(const char *metrics, const char *series)
{
	size_t length = strlen(series);

	for (const char *line = metrics; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, series, length) == 0 && line[length] == ' ')
			return strtod(line + length, NULL);
	}
	return NAN;
}

static void assert_value_in(const char *metrics, const char *series, double expected)
{
	double value = value_in(metrics, series);

	if (value != expected && !(isnan(value) && isnan(expected)))
		fail_msg("%s is %g, not %g, in: %s", series, value, expected, tail(metrics));
}

/* Every line is a comment that belongs to the lines after it, or a series with a number; no series twice. */
static void assert_well_formed(const char *metrics)
{
	char *copy = strdup(metrics), *rest = copy, *line, family[128] = "", seen[65536] = "";
	size_t length = strlen(metrics);

	assert_true(length > 0 && metrics[length - 1] == '\n');
	while ((line = strsep(&rest, "\n")) != NULL && rest) {
		char *blank = strrchr(line, ' '), *end, whole[512];

		if (sscanf(line, "# TYPE %127s", family) == 1 || strncmp(line, "# HELP ", 7) == 0)
			continue;
		if (!blank || strncmp(line, family, strlen(family)) != 0)
			fail_msg("out of place below %s: %s", family, line);
		strtod(blank + 1, &end);
		if (*end || end == blank + 1)
			fail_msg("no number: %s", line);
		*blank = '\0';
		snprintf(whole, sizeof(whole), "\n%s\n", line);
		if (strstr(seen, whole))
			fail_msg("twice: %s", line);
		strcat(seen, whole);
	}
	free(copy);
}

/* ---- the module ---- */

static struct metrics_sample sample;

static size_t measure_one(void *arg, struct metrics_sample *samples, size_t size)
{
	(void)arg;
	if (size > 0)
		samples[0] = sample;
	return 1;
}

/* To be freed by the caller. */
static char *rendered(struct metrics *metrics)
{
	char *result = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&result, &size);

	metrics_render(metrics, file, true);
	fclose(file);
	assert_well_formed(result);
	return result;
}

static void close_one(struct metrics_counters *counters, bool moved, enum lease_run_status status,
		      const char *error_code, int32_t attempt_no, int64_t lag)
{
	metrics_count_closed(counters, &(struct lease_closed){ .run_id = "r",
							       .attempt_no = attempt_no,
							       .lease_expires_at = 1000000,
							       .closed_at = 1000000 + lag,
							       .moved = moved,
							       .status = status,
							       .error_code = error_code });
}

static void what_became_of_runs_is_counted_apart(void **state)
{
	struct metrics metrics = { .source = { measure_one, NULL } };
	struct metrics_counters *c = metrics_join(&metrics, "m");
	char *result;

	(void)state;
	close_one(c, false, LEASE_RUN_RUNNING, "worker_lease_expired", 1, 900);
	close_one(c, false, LEASE_RUN_FAILED, "anything that a worker wrote", 1, 1000);
	close_one(c, true, LEASE_RUN_PENDING, "worker_lease_expired", 1, 1001);
	close_one(c, true, LEASE_RUN_FAILED, "worker_lease_expired", 1, 4 * LEASE_MILLISECOND);
	close_one(c, true, LEASE_RUN_FAILED, "lease_losses_exhausted", 1, 61 * LEASE_SECOND);
	close_one(c, true, LEASE_RUN_FAILED, "deadline_exceeded", 1, 3600 * LEASE_SECOND);
	close_one(c, true, LEASE_RUN_CANCELLED, NULL, 1, -5);
	close_one(c, true, LEASE_RUN_FAILED, "deadline_exceeded", 0, 0);
	sample = (struct metrics_sample){ .counters = c, .oldest_unclosed = -1 };
	result = rendered(&metrics);
#define CLOSED(result)                                                                             \
	"lease_reconciler_attempts_closed_total{database=\"m\",result=\"" result "\"}"
#define LAGS(le) "lease_reconciler_detection_lag_seconds_bucket{database=\"m\",le=\"" le "\"}"
	assert_value_in(result, CLOSED("unchanged"), 2);
	assert_value_in(result, CLOSED("requeued"), 1);
	assert_value_in(result, CLOSED("failed"), 1);
	assert_value_in(result, CLOSED("lease_losses_exhausted"), 1);
	assert_value_in(result, CLOSED("deadline_exceeded"), 1);
	assert_value_in(result, CLOSED("cancelled"), 1);
	assert_value_in(
		result,
		"lease_reconciler_runs_moved_total{database=\"m\",result=\"deadline_exceeded\"}",
		1);
	/* a bound belongs to its bucket */
	assert_value_in(result, LAGS("0.001"), 3);
	assert_value_in(result, LAGS("0.0025"), 4);
	assert_value_in(result, LAGS("0.005"), 5);
	assert_value_in(result, LAGS("60"), 5);
	assert_value_in(result, LAGS("300"), 6);
	assert_value_in(result, LAGS("+Inf"), 7);
	assert_value_in(result, "lease_reconciler_detection_lag_seconds_count{database=\"m\"}", 7);
	assert_value_in(result, "lease_reconciler_detection_lag_seconds_sum{database=\"m\"}",
			3661.006901);
	free(result);
	metrics_leave(&metrics, c);
}

static void the_series_of_failures_are_few(void **state)
{
	struct metrics metrics = { .source = { measure_one, NULL } };
	struct metrics_counters *c = metrics_join(&metrics, "m");
	char *result;

	(void)state;
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 500; i++)
			metrics_count_failure(c, text("%05d", i));
	metrics_count_failure(c, "");
	metrics_count_failure(c, "\"}\n\\");
	metrics_count_failure(c, "57P01 and more");
	sample = (struct metrics_sample){ .counters = c, .oldest_unclosed = -1 };
	result = rendered(&metrics);
#define FAILURES(state) "lease_reconciler_failures_total{database=\"m\",sqlstate=\"" state "\"}"
	assert_value_in(result, FAILURES("00000"), 2);
	assert_value_in(result, FAILURES("00015"), 2);
	assert_value_in(result, FAILURES("00016"), NAN);
	assert_value_in(result, FAILURES("none"), 1);
	assert_value_in(result, FAILURES("other"), 2 * (500 - 16) + 2);
	assert_int_equal(count_text(result, "lease_reconciler_failures_total{"), 18);
	free(result);
	metrics_leave(&metrics, c);
}

static void labels_are_escaped(void **state)
{
	struct metrics metrics = { .source = { measure_one, NULL } };
	struct metrics_counters *c = metrics_join(&metrics, "a\"b\\c\nd");
	char *result;

	(void)state;
	sample = (struct metrics_sample){ .counters = c, .oldest_unclosed = -1 };
	result = rendered(&metrics);
	assert_value_in(result, "lease_reconciler_sweeps_total{database=\"a\\\"b\\\\c\\nd\"}", 0);
	free(result);
	metrics_leave(&metrics, c);
}

/* As when a database connects otherwise after a reload: the old connection ends beside the new one. */
static void counters_of_one_name_are_one(void **state)
{
	struct metrics metrics = { .source = { measure_one, NULL } };
	struct metrics_counters *first = metrics_join(&metrics, "m");
	struct metrics_counters *other = metrics_join(&metrics, "other");
	struct metrics_counters *second = metrics_join(&metrics, "m");

	(void)state;
	assert_ptr_equal(first, second);
	assert_ptr_not_equal(first, other);
	metrics_leave(&metrics, first);
	metrics_leave(&metrics, other);
	assert_ptr_equal(metrics.counters, second);
	metrics_leave(&metrics, second);
	assert_null(metrics.counters);
}

/* ---- the daemon ---- */

static char *folder, *path;

static int create_with_folder(void **state)
{
	folder = test_tmpdir();
	if (asprintf(&path, "%s/lease-reconciler.prom", folder) < 0)
		abort();
	return create(state);
}

static int drop_with_folder(void **state)
{
	free(path);
	free(folder);
	return drop(state);
}

static const char *config_with(const char *options, const char *databases)
{
	return text("interval: 200ms\namnesty: off\nreconnect_max: 200ms\n%s\ndatabases:\n%s",
		    options, databases);
}

static const char *writing(const char *more)
{
	return text("metrics_file: %s\nmetrics_interval: 100ms\n%s", path, more);
}

/* The file as it is now; NULL: there is none. To be freed. */
static char *metrics_now(void)
{
	char *metrics = access(path, R_OK) == 0 ? read_file(path) : NULL;

	if (metrics)
		assert_well_formed(metrics);
	return metrics;
}

struct wanted_value {
	const char *series;
	double least, most;
};

static bool has_value(void *argument)
{
	struct wanted_value *wanted = argument;
	char *metrics = metrics_now();
	double value = metrics ? value_in(metrics, wanted->series) : NAN;

	free(metrics);
	return isnan(wanted->least) ? metrics && isnan(value)
				    : value >= wanted->least && value <= wanted->most;
}

static void wait_between(struct daemon *daemon, const char *series, double least, double most)
{
	char *metrics;

	if (wait_until(has_value, &(struct wanted_value){ series, least, most }, TEST_PATIENCE_MS))
		return;
	metrics = metrics_now();
	fail_msg("%s is %g, never %g to %g; log: %s", series,
		 metrics ? value_in(metrics, series) : NAN, least, most,
		 tail(process_errors(&daemon->process)));
}

static void wait_value(struct daemon *daemon, const char *series, double value)
{
	wait_between(daemon, series, value, value);
}

#define OF(database, name) "lease_reconciler_" name "{database=\"" database "\"}"
#define MAIN(name) OF("main", name)

static bool is_there(void *argument)
{
	return (access(path, F_OK) == 0) == *(bool *)argument;
}

static void wait_file(struct daemon *daemon, bool there)
{
	if (!wait_until(is_there, &there, TEST_PATIENCE_MS))
		fail_msg("%s is %s; log: %s", path, there ? "missing" : "still there",
			 tail(process_errors(&daemon->process)));
}

/* Nothing of a half-written file stays. */
static void assert_alone_in_folder(void)
{
	glob_t found;

	assert_int_equal(glob(text("%s/*", folder), 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	assert_string_equal(found.gl_pathv[0], path);
	globfree(&found);
}

static void an_expiry_is_counted(void **state)
{
	struct daemon daemon;
	struct stat status;
	char *metrics;
	double at;

	(void)state;
	add_leases(conn, "over", 3, -1000, 5000);
	add_leases(conn, "held", 4, 3600000, 3600000);
	daemon_start_ready(&daemon,
			   config_with(writing("policy: requeue"), entry("main", conninfo, "")));
	wait_value(&daemon,
		   "lease_reconciler_attempts_closed_total{database=\"main\",result=\"requeued\"}",
		   3);
	wait_value(&daemon, MAIN("expired_leases"), 0);
	wait_value(&daemon, MAIN("open_leases"), 4);
	wait_between(&daemon, MAIN("sweeps_total"), 2, INFINITY);
	metrics = metrics_now();
	assert_value_in(metrics, MAIN("database_up"), 1);
	assert_value_in(metrics, MAIN("oldest_unclosed_lease_age_seconds"), 0);
	assert_value_in(metrics, MAIN("connections_total"), 1);
	assert_value_in(metrics, MAIN("detection_lag_seconds_count"), 3);
	assert_value_in(
		metrics,
		"lease_reconciler_detection_lag_seconds_bucket{database=\"main\",le=\"+Inf\"}", 3);
	/* they were over for a second already */
	assert_value_in(
		metrics,
		"lease_reconciler_detection_lag_seconds_bucket{database=\"main\",le=\"0.5\"}", 0);
	assert_true(value_in(metrics, MAIN("detection_lag_seconds_sum")) >= 3);
	assert_value_in(metrics, text("lease_reconciler_info{version=\"%s\"}", lease_version()), 1);
	at = value_in(metrics, MAIN("last_sweep_timestamp_seconds"));
	assert_true(at >= value_in(metrics, "lease_reconciler_start_time_seconds"));
	assert_true(at <= value_in(metrics, "lease_reconciler_written_timestamp_seconds"));
	free(metrics);
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_mode & 07777, 0644);
	daemon_stop(&daemon);
	/* the last file: what was counted stays, what was so is not known any more */
	metrics = metrics_now();
	assert_value_in(metrics, MAIN("detection_lag_seconds_count"), 3);
	assert_value_in(metrics, MAIN("database_up"), NAN);
	assert_value_in(metrics, MAIN("oldest_unclosed_lease_age_seconds"), NAN);
	free(metrics);
	assert_alone_in_folder();
}

static void counters_go_on_through_a_reconnect(void **state)
{
	struct daemon daemon;
	char *metrics;

	(void)state;
	add_leases(conn, "before", 2, -100, 5000);
	daemon_start_ready(&daemon, config_with(writing(""), entry("main", conninfo, "")));
	wait_value(&daemon, MAIN("detection_lag_seconds_count"), 2);
	sql(conn, "select pg_terminate_backend(pid) from pg_stat_activity"
		  " where datname = current_database() and application_name = 'lease-reconciler'");
	wait_value(&daemon, MAIN("connections_total"), 2);
	add_leases(conn, "after", 3, -100, 5000);
	wait_value(&daemon, MAIN("detection_lag_seconds_count"), 5);
	metrics = metrics_now();
	assert_value_in(metrics,
			"lease_reconciler_failures_total{database=\"main\",sqlstate=\"57P01\"}", 1);
	assert_value_in(
		metrics,
		"lease_reconciler_attempts_closed_total{database=\"main\",result=\"unchanged\"}",
		5);
	free(metrics);
	daemon_stop(&daemon);
}

static void a_database_that_is_down_is_seen_and_harms_no_other(void **state)
{
	struct daemon daemon;
	const char *nowhere = text("host=%s dbname=nowhere", folder);

	(void)state;
	daemon_start_ready(&daemon,
			   config_with(writing(""), text("%s%s", entry("main", conninfo, ""),
							 entry("down", nowhere, ""))));
	wait_value(&daemon, MAIN("database_up"), 1);
	wait_value(&daemon, OF("down", "database_up"), 0);
	wait_between(&daemon,
		     "lease_reconciler_failures_total{database=\"down\",sqlstate=\"none\"}", 2,
		     INFINITY);
	wait_value(&daemon, OF("down", "open_leases"), NAN);
	wait_value(&daemon, OF("down", "oldest_unclosed_lease_age_seconds"), NAN);
	wait_between(&daemon, MAIN("sweeps_total"), 2, INFINITY);
	wait_value(&daemon, "lease_reconciler_failures_total{database=\"main\",sqlstate=\"none\"}",
		   0);
	daemon_stop(&daemon);
}

/* While its database is away nothing is known of it but that it gets worse. */
static void the_age_grows_while_nothing_can_be_closed(void **state)
{
	struct daemon daemon;

	(void)state;
	daemon_start_ready(&daemon,
			   config_with(writing(LONG_TIMEOUTS), entry("main", conninfo, "")));
	wait_value(&daemon, MAIN("oldest_unclosed_lease_age_seconds"), 0);
	sql(conn, "begin; lock table lease.run_attempts in access exclusive mode");
	wait_daemon_blocked(conn, 1);
	wait_between(&daemon, MAIN("oldest_unclosed_lease_age_seconds"), 1, TEST_PATIENCE_MS);
	sql(conn, "rollback");
	wait_value(&daemon, MAIN("oldest_unclosed_lease_age_seconds"), 0);
	daemon_stop(&daemon);
}

static bool was_replaced(void *argument)
{
	struct stat *before = argument, now;

	return stat(path, &now) == 0 && now.st_ino != before->st_ino;
}

/* A file that somebody has open never changes: the next one takes its place as a whole. */
static void a_reader_never_sees_a_part(void **state)
{
	struct daemon daemon;
	char *before, *again, buffer[65536];

	(void)state;
	daemon_start_ready(&daemon, config_with(writing(""), entry("main", conninfo, "")));
	wait_file(&daemon, true);
	for (int i = 0; i < 5; i++) {
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		struct stat status;
		ssize_t length;

		assert_true(fd >= 0 && fstat(fd, &status) == 0);
		length = pread(fd, buffer, sizeof(buffer) - 1, 0);
		assert_true(length > 0);
		buffer[length] = '\0';
		assert_well_formed(buffer);
		assert_holds(buffer, MAIN("clock_jumps_total") " 0\n");
		before = strdup(buffer);
		if (!wait_until(was_replaced, &status, TEST_PATIENCE_MS))
			fail_msg("not written anew");
		length = pread(fd, buffer, sizeof(buffer) - 1, 0);
		buffer[length > 0 ? length : 0] = '\0';
		assert_string_equal(buffer, before);
		again = metrics_now();
		assert_string_not_equal(again, before);
		free(again);
		free(before);
		close(fd);
	}
	daemon_stop(&daemon);
	assert_alone_in_folder();
}

static void a_file_that_cannot_be_written_is_told_of_once(void **state)
{
	struct daemon daemon;
	char *there = path;

	(void)state;
	if (asprintf(&path, "%s/missing/lease-reconciler.prom", folder) < 0)
		abort();
	daemon_start_ready(
		&daemon, config_with(writing("log:\n  level: debug"), entry("main", conninfo, "")));
	daemon_wait_log(&daemon,
			text("metrics_file %s cannot be written: No such file or directory", path));
	add_leases(conn, "r", 3, -100, 5000);
	wait_closed(&daemon.process, conn, 3);
	assert_int_equal(mkdir(text("%s/missing", folder), 0755), 0);
	daemon_wait_log(&daemon, "is written again");
	wait_value(&daemon, MAIN("detection_lag_seconds_count"), 3);
	assert_int_equal(daemon_count_log(&daemon, "cannot be written"), 1);
	daemon_stop(&daemon);
	unlink(path);
	rmdir(text("%s/missing", folder));
	free(there);
}

static void reload(struct daemon *daemon, const char *config)
{
	write_file(daemon->config_path, config);
	process_signal(&daemon->process, SIGHUP);
}

static void a_reload_switches_it_on_and_off(void **state)
{
	struct daemon daemon;
	char *other = test_database_create();
	const char *first = entry("main", conninfo, ""), *second = entry("other", other, "");
	/* what text() gives does not live as long as this test */
	char *main_alone = strdup(first), *both = strdup(text("%s%s", first, second));

	(void)state;
	daemon_start_ready(&daemon, config_with("", both));
	daemon_wait_status(&daemon, "2 connected");
	wait_file(&daemon, false);
	reload(&daemon, config_with(writing(""), both));
	wait_value(&daemon, MAIN("database_up"), 1);
	wait_between(&daemon, OF("other", "sweeps_total"), 2, INFINITY);
	/* a database that is let go vanishes; one that connects otherwise is there once and counts on */
	reload(&daemon,
	       config_with(writing(""), entry("main", text("%s connect_timeout=9", conninfo), "")));
	wait_value(&daemon, OF("other", "sweeps_total"), NAN);
	wait_value(&daemon, MAIN("connections_total"), 2);
	reload(&daemon, config_with("metrics_file: off", main_alone));
	wait_file(&daemon, false);
	assert_lacks(process_errors(&daemon.process), "not reloaded");
	daemon_stop(&daemon);
	assert_int_equal(access(path, F_OK), -1);
	test_database_drop(other);
	free(other);
	free(main_alone);
	free(both);
}

/* ---- the sample alerts ---- */

/* Each name of a metric in `expression` has to be in `metrics`, with or without the histogram's suffix. */
static int check_expression(const char *expression, const char *metrics)
{
	int n = 0;

	while ((expression = strstr(expression, "lease_reconciler_")) != NULL) {
		size_t length = strspn(expression, "abcdefghijklmnopqrstuvwxyz_");
		const char *name = text("\n%.*s{", (int)length, expression);
		const char *plain = text("\n%.*s ", (int)length, expression);

		if (!strstr(metrics, name) && !strstr(metrics, plain))
			fail_msg("no such metric: %.*s", (int)length, expression);
		expression += length;
		n++;
	}
	return n;
}

/* As Prometheus will read them: scalars that follow the key. */
static int check_rules(const char *rules, const char *metrics)
{
	yaml_parser_t parser;
	yaml_event_t event;
	bool is_expression = false, ended = false;
	int n = 0;

	yaml_parser_initialize(&parser);
	yaml_parser_set_input_string(&parser, (const unsigned char *)rules, strlen(rules));
	while (!ended) {
		if (!yaml_parser_parse(&parser, &event))
			fail_msg("line %zu: %s", parser.problem_mark.line + 1, parser.problem);
		ended = event.type == YAML_STREAM_END_EVENT;
		if (event.type == YAML_SCALAR_EVENT) {
			const char *value = (const char *)event.data.scalar.value;

			if (is_expression && check_expression(value, metrics) == 0)
				fail_msg("asks for no metric: %s", value);
			n += is_expression;
			is_expression = !is_expression && strcmp(value, "expr") == 0;
		}
		yaml_event_delete(&event);
	}
	yaml_parser_delete(&parser);
	return n;
}

static void the_sample_alerts_ask_for_metrics_that_there_are(void **state)
{
	struct daemon daemon;
	char *rules_path = test_source("config/lease-reconciler.rules.yaml");
	char *rules = read_file(rules_path), *metrics;

	(void)state;
	daemon_start_ready(&daemon, config_with(writing(""), entry("main", conninfo, "")));
	wait_between(&daemon, MAIN("sweeps_total"), 1, INFINITY);
	wait_value(&daemon, MAIN("expired_leases"), 0);
	wait_between(&daemon, MAIN("oldest_unclosed_lease_age_seconds"), 0, INFINITY);
	metrics = metrics_now();
	assert_int_equal(check_rules(rules, metrics), count_text(rules, "- alert: "));
	assert_true(count_text(rules, "- alert: ") > 5);
	free(metrics);
	free(rules);
	free(rules_path);
	daemon_stop(&daemon);
}

#define DAEMON_TEST(name)                                                                          \
	cmocka_unit_test_setup_teardown(name, create_with_folder, drop_with_folder)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_became_of_runs_is_counted_apart),
		cmocka_unit_test(the_series_of_failures_are_few),
		cmocka_unit_test(labels_are_escaped),
		cmocka_unit_test(counters_of_one_name_are_one),
		DAEMON_TEST(an_expiry_is_counted),
		DAEMON_TEST(counters_go_on_through_a_reconnect),
		DAEMON_TEST(a_database_that_is_down_is_seen_and_harms_no_other),
		DAEMON_TEST(the_age_grows_while_nothing_can_be_closed),
		DAEMON_TEST(a_reader_never_sees_a_part),
		DAEMON_TEST(a_file_that_cannot_be_written_is_told_of_once),
		DAEMON_TEST(a_reload_switches_it_on_and_off),
		DAEMON_TEST(the_sample_alerts_ask_for_metrics_that_there_are),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
