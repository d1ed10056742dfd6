/*
 * What the daemon tells, by itself: fields for the journal, lines for stderr, limits.
 *
 * sd_journal_sendv is this program's own here and keeps what it is given: the tests need no
 * journald.
 */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include <errno.h>
#include <fcntl.h>
#include <systemd/sd-journal.h>

#include "daemon.h"
#include "journal.h"

static char sent[65536]; /* all fields, each with a newline at its end */
static int sent_entries;
static bool refusing;

int sd_journal_sendv(const struct iovec *iov, int n)
{
	size_t used = strlen(sent);

	if (refusing)
		return -ECONNREFUSED;
	for (int i = 0; i < n && used + iov[i].iov_len + 2 < sizeof(sent); i++) {
		memcpy(sent + used, iov[i].iov_base, iov[i].iov_len);
		used += iov[i].iov_len;
		sent[used++] = '\n';
		sent[used] = '\0';
	}
	sent_entries++;
	return 0;
}

/* ---- stderr, caught in a file ---- */

static char *caught_path;
static int real_stderr = -1;

static void catch_stderr(void)
{
	char *folder = test_tmpdir();
	int fd;

	if (asprintf(&caught_path, "%s/stderr", folder) < 0)
		abort();
	free(folder);
	fd = open(caught_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	real_stderr = dup(STDERR_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
}

/* What came since; stderr is the program's again. To be freed by the caller. */
static char *release_stderr(void)
{
	char *content;

	dup2(real_stderr, STDERR_FILENO);
	close(real_stderr);
	real_stderr = -1;
	content = read_file(caught_path);
	free(caught_path);
	return content;
}

static int reset(void **state)
{
	(void)state;
	sent[0] = '\0';
	sent_entries = 0;
	refusing = false;
	return 0;
}

static const struct lease_closed closed = {
	.run_id = "run\n1",
	.attempt_no = 3,
	.owner = "worker-7:cafe",
	.lease_expires_at = INT64_C(1700000000123456),
	.closed_at = INT64_C(1700000000127456),
	.moved = true,
	.status = LEASE_RUN_FAILED,
	.error_code = "lease_losses_exhausted",
};

/* ---- the table ---- */

static void every_event_has_an_identifier_of_its_own(void **state)
{
	(void)state;
	for (int i = 0; i < JOURNAL_EVENTS; i++) {
		const char *id = journal_event_id((enum journal_event)i);

		assert_non_null(journal_event_name((enum journal_event)i));
		assert_non_null(id);
		assert_int_equal(strlen(id), 32);
		assert_int_equal(strspn(id, "0123456789abcdef"), 32);
		for (int k = 0; k < i; k++) {
			assert_string_not_equal(id, journal_event_id((enum journal_event)k));
			assert_string_not_equal(journal_event_name((enum journal_event)i),
						journal_event_name((enum journal_event)k));
		}
	}
}

/* ---- the journal ---- */

static void a_closed_attempt_has_all_fields(void **state)
{
	struct journal journal = { .to_journal = true,
				   .level = CONFIG_LOG_INFO,
				   .closed_per_second = 10 };
	struct journal_summary summary = { 0 };

	(void)state;
	assert_true(journal_closed(&journal, "main", &closed, &summary));
	assert_int_equal(sent_entries, 1);
	assert_holds(sent, text("MESSAGE_ID=%s\n", journal_event_id(JOURNAL_ATTEMPT_CLOSED)));
	assert_holds(sent,
		     "MESSAGE=attempt 3 of run run\\x0a1 closed as lease_expired, 4 ms after its "
		     "lease ended; the run is now failed (lease_losses_exhausted)\n");
	assert_holds(sent, "PRIORITY=6\n");
	assert_holds(sent, "DATABASE=main\n");
	assert_holds(sent, "RUN_ID=run\n1\n"); /* the field has it as it is */
	assert_holds(sent, "ATTEMPT_NO=3\n");
	assert_holds(sent, "LEASE_OWNER=worker-7:cafe\n");
	assert_holds(sent, "OUTCOME=lease_expired\n");
	assert_holds(sent, "RUN_STATUS=failed\n");
	assert_holds(sent, "ERROR_CODE=lease_losses_exhausted\n");
	assert_holds(sent, "LEASE_EXPIRES_AT=2023-11-14T22:13:20.123456Z\n");
	assert_holds(sent, "DETECTION_LAG_USEC=4000\n");
	assert_lacks(sent, "SQLSTATE");
}

static void a_run_without_attempt_has_no_fields_of_one(void **state)
{
	struct journal journal = { .to_journal = true,
				   .level = CONFIG_LOG_INFO,
				   .closed_per_second = 10 };
	struct journal_summary summary = { 0 };
	struct lease_closed moved = closed;

	(void)state;
	moved.attempt_no = 0;
	moved.owner = NULL;
	moved.lease_expires_at = LEASE_TIME_NONE;
	moved.status = LEASE_RUN_PENDING;
	assert_true(journal_closed(&journal, "main", &moved, &summary));
	assert_holds(sent, text("MESSAGE_ID=%s\n", journal_event_id(JOURNAL_RUN_MOVED)));
	assert_holds(sent, "RUN_STATUS=pending\n");
	assert_lacks(sent, "ATTEMPT_NO");
	assert_lacks(sent, "OUTCOME");
	assert_lacks(sent, "LEASE_EXPIRES_AT");
	assert_lacks(sent, "DETECTION_LAG_USEC");
}

static void a_failure_has_its_sqlstate(void **state)
{
	struct journal journal = { .to_journal = true,
				   .level = CONFIG_LOG_INFO,
				   .closed_per_second = 10 };
	struct journal_summary summary = { 0 };
	struct lease_error error = { .code = LEASE_E_SERVER, .sqlstate = "P0001", .message = "no" };

	(void)state;
	assert_true(journal_skipped(&journal, "main", &(struct lease_skipped){ "r", &error },
				    &summary));
	assert_holds(sent, "SQLSTATE=P0001\n");
	assert_holds(sent, "RUN_ID=r\n");
	assert_holds(sent, "PRIORITY=4\n");
}

static void a_refusing_journal_gives_way_to_stderr(void **state)
{
	struct journal journal = { .to_journal = true, .level = CONFIG_LOG_INFO };
	char *lines;

	(void)state;
	refusing = true;
	catch_stderr();
	journal_write(&journal, JOURNAL_STARTED, NULL, "hello");
	lines = release_stderr();
	assert_one_line(lines);
	assert_holds(lines, " info hello\n");
	free(lines);
}

/* ---- stderr ---- */

static void a_line_has_time_level_and_database(void **state)
{
	struct journal journal = { .level = CONFIG_LOG_INFO };
	char *lines;
	int year, n = 0;

	(void)state;
	catch_stderr();
	journal_write(&journal, JOURNAL_SWEEP_FAILED,
		      &(struct journal_fields){ .database = "main" }, "it %s", "failed");
	journal_write(&journal, JOURNAL_PASS, NULL, "debug: below the level");
	lines = release_stderr();
	assert_one_line(lines);
	assert_int_equal(sscanf(lines, "%4d-%*2d-%*2dT%*2d:%*2d:%*2d.%*3dZ%n", &year, &n), 1);
	assert_string_equal(lines + n, " warning main: it failed\n");
	free(lines);
}

static void what_a_terminal_would_obey_is_escaped(void **state)
{
	struct journal journal = { .level = CONFIG_LOG_INFO };
	char *lines;

	(void)state;
	catch_stderr();
	/* C0, DEL, C1 (as UTF-8), broken, overlong, surrogate; and what is fine */
	journal_write(&journal, JOURNAL_STARTED, NULL, "%s",
		      "a\n\x1b\x7f|\xc2\x9b|\xff|\xc0\xaf|\xed\xa0\x80|\xe2\x82|\xf4\x90\x80\x80|"
		      "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
	lines = release_stderr();
	assert_one_line(lines);
	assert_holds(lines,
		     "a\\x0a\\x1b\\x7f|\\xc2\\x9b|\\xff|\\xc0\\xaf|\\xed\\xa0\\x80|\\xe2\\x82|"
		     "\\xf4\\x90\\x80\\x80|\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\n");
	free(lines);
}

static void a_long_text_is_cut_and_stays_a_line(void **state)
{
	struct journal journal = { .level = CONFIG_LOG_INFO };
	char *lines, *longest = malloc(20001);

	(void)state;
	memset(longest, '\x01', 20000);
	longest[20000] = '\0';
	catch_stderr();
	journal_write(&journal, JOURNAL_STARTED, NULL, "%s", longest);
	lines = release_stderr();
	assert_one_line(lines);
	assert_true(strlen(lines) <= 4096);
	free(lines);
	free(longest);
}

static void a_full_pipe_loses_lines_and_says_how_many(void **state)
{
	struct journal journal = { .level = CONFIG_LOG_INFO };
	char buffer[4096], all[200000] = "";
	int fds[2], saved = dup(STDERR_FILENO);
	ssize_t n;

	(void)state;
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	dup2(fds[1], STDERR_FILENO);
	for (int i = 0; i < 3000; i++)
		journal_write(&journal, JOURNAL_STARTED, NULL, "a line that fills the pipe %d", i);
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	while (read(fds[0], buffer, sizeof(buffer)) > 0)
		;
	journal_write(&journal, JOURNAL_STARTED, NULL, "after");
	dup2(saved, STDERR_FILENO);
	while ((n = read(fds[0], buffer, sizeof(buffer) - 1)) > 0) {
		buffer[n] = '\0';
		strcat(all, buffer);
	}
	assert_one_line(all);
	assert_holds(all, "after (");
	assert_holds(all, " lines lost before this one)");
	close(fds[0]);
	close(fds[1]);
	close(saved);
}

/* ---- limits ---- */

static void what_is_over_the_limit_is_summed_up(void **state)
{
	struct journal journal = { .to_journal = true,
				   .level = CONFIG_LOG_INFO,
				   .closed_per_second = 0 };
	struct journal_summary summary = { 0 };
	struct lease_closed later = closed;

	(void)state;
	later.closed_at += 2 * LEASE_SECOND;
	assert_false(journal_closed(&journal, "main", &closed, &summary));
	assert_false(journal_closed(&journal, "main", &later, &summary));
	assert_int_equal(sent_entries, 0);
	journal_summarize(&journal, "main", &summary);
	assert_int_equal(sent_entries, 1);
	assert_holds(sent, text("MESSAGE_ID=%s\n", journal_event_id(JOURNAL_ATTEMPTS_CLOSED)));
	assert_holds(sent,
		     "MESSAGE=closed 2 attempts more as lease_expired; 2 runs are failed now; at "
		     "most 2 s after their leases ended\n");
	/* what was told is told once */
	journal_summarize(&journal, "main", &summary);
	assert_int_equal(sent_entries, 1);
}

static void below_the_level_nothing_is_counted(void **state)
{
	struct journal journal = { .to_journal = true,
				   .level = CONFIG_LOG_WARNING,
				   .closed_per_second = 0 };
	struct journal_summary summary = { 0 };

	(void)state;
	assert_true(journal_closed(&journal, "main", &closed, &summary));
	journal_summarize(&journal, "main", &summary);
	assert_int_equal(sent_entries, 0);
}

static void durations_read_well(void **state)
{
	char buffer[DURATION_SIZE];

	(void)state;
	assert_string_equal(duration_text(0, buffer), "0 us");
	assert_string_equal(duration_text(999, buffer), "999 us");
	assert_string_equal(duration_text(4 * LEASE_MILLISECOND, buffer), "4 ms");
	assert_string_equal(duration_text(119 * LEASE_SECOND, buffer), "119 s");
	assert_string_equal(duration_text(120 * LEASE_SECOND, buffer), "2 min");
	assert_string_equal(duration_text(7500 * LEASE_SECOND, buffer), "2 h 5 min");
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_event_has_an_identifier_of_its_own),
		TEST(a_closed_attempt_has_all_fields),
		TEST(a_run_without_attempt_has_no_fields_of_one),
		TEST(a_failure_has_its_sqlstate),
		TEST(a_refusing_journal_gives_way_to_stderr),
		TEST(a_line_has_time_level_and_database),
		TEST(what_a_terminal_would_obey_is_escaped),
		TEST(a_long_text_is_cut_and_stays_a_line),
		TEST(a_full_pipe_loses_lines_and_says_how_many),
		TEST(what_is_over_the_limit_is_summed_up),
		TEST(below_the_level_nothing_is_counted),
		TEST(durations_read_well),
	};

	cmocka_set_test_filter(getenv("TEST_FILTER"));
	return cmocka_run_group_tests_name("journal", tests, NULL, NULL);
}
