/*
 * case 31: whatever is in an identifier or a message is stored and returned whole, or refused
 * clearly before anything is sent.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* What array literals, SQL strings, formats, JSON or C might stumble over. */
static const char *const odd[] = {
	"'",
	"''",
	"\"",
	"\\",
	"\\\\",
	"\\'",
	"{}",
	"{a,b}",
	"}",
	"{",
	",",
	"a,b",
	"NULL",
	"null",
	" ",
	" a ",
	"\t",
	"a\nb",
	"\r\n",
	"\\x00",
	"\\000",
	"\\u0000",
	"\\0",
	"%s%n%d",
	"$1",
	"$$",
	"--",
	"/*",
	"';DROP TABLE lease.runs;--",
	"\"\\\"",
	"(a,\"b\")",
	"\x01\x02\x1b[0m\x7f",
	"\xc3\xa9",
	"e\xcc\x81",
	"\xf0\x9f\x98\x80",
	"\xe2\x80\xae(abc)",
	"\xef\xbb\xbf",
	"\xf4\x8f\xbf\xbf",
};

/* A fixed value that is never put together from statements of SQL by the test itself. */
static char *value(PGconn *conn, const char *query, const char *parameter)
{
	PGresult *result = PQexecParams(conn, query, 1, NULL, &parameter, NULL, NULL, 0);
	char *text;

	if (PQresultStatus(result) != PGRES_TUPLES_OK || PQntuples(result) != 1)
		fail_msg("%s: %s", query, PQresultErrorMessage(result));
	text = PQgetisnull(result, 0, 0) ? NULL : strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	return text;
}

static void assert_value(PGconn *conn, const char *query, const char *parameter,
			 const char *expected)
{
	char *text = value(conn, query, parameter);

	assert_non_null(text);
	assert_string_equal(text, expected);
	free(text);
}

static void assert_history(PGconn *conn, const char *text)
{
	struct lease_history *history;

	assert_granted(lease_list_attempts(conn, text, &history, &last_error));
	assert_string_equal(history->run.run_id, text);
	assert_string_equal(history->run.tenant_id, text);
	assert_string_equal(history->run.terminal_error_code, text);
	assert_string_equal(history->run.terminal_error_message, text);
	assert_int_equal(history->n_attempts, 1);
	assert_string_equal(history->attempts[0].owner, text);
	assert_string_equal(history->attempts[0].trace_id, text);
	assert_string_equal(history->attempts[0].error_code, text);
	assert_string_equal(history->attempts[0].error_message, text);
	lease_history_free(history);
}

/* The same text as every string that a verb takes. */
static void use_everywhere(struct scenario *s, const char *text)
{
	struct lease_submission submission = { .run_id = text, .tenant_id = text };
	struct lease_claim given = { .run_id = text, .owner = text, .trace_id = text, .ttl = LONG };
	char run_id[LEASE_ID_MAX + 1];
	struct lease_grant grant, renewed;
	struct lease_finish finish = { .status = LEASE_RUN_FAILED,
				       .error_code = text,
				       .error_message = text };
	int result = -1;

	assert_granted(lease_submit(s->worker, &submission, run_id, NULL, &last_error));
	assert_string_equal(run_id, text);
	assert_granted(lease_mark_running(s->worker, &given, &grant, &last_error));
	assert_string_equal(grant.token.run_id, text);
	assert_string_equal(grant.token.owner, text);
	assert_granted(renew(s->worker, &grant.token, LONG, &renewed));
	assert_string_equal(renewed.token.run_id, text);
	assert_granted(lease_renew_leases(s->worker, &grant.token, 1, LONG, 0, &renewed, &result,
					  &last_error));
	assert_int_equal(result, 0);
	finish.token = &grant.token;
	assert_granted(lease_set_terminal_status(s->worker, &finish, NULL, &last_error));
	assert_value(s->admin, "select owner from lease.run_attempts where run_id = $1", text,
		     text);
	assert_value(s->admin, "select error_message from lease.run_attempts where run_id = $1",
		     text, text);
	assert_history(s->worker, text);
}

static void case_31_odd_texts_come_back_whole(void **state)
{
	struct scenario *s = *state;

	for (size_t i = 0; i < LENGTH(odd); i++)
		use_everywhere(s, odd[i]);
	assert_sql(s->admin, "t", "select count(*) = %d from lease.runs", (int)LENGTH(odd));
	assert_explained(s);
}

static void note_closed(void *arg, const struct lease_closed *closed)
{
	size_t *seen = arg;

	for (size_t i = 0; i < LENGTH(odd); i++)
		if (strcmp(closed->run_id, odd[i]) == 0 && strcmp(closed->owner, odd[i]) == 0)
			seen[i]++;
}

static void case_31_odd_texts_are_reconciled_together(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	size_t seen[LENGTH(odd)] = { 0 };
	struct lease_sweep_callbacks callbacks = { .closed = note_closed, .arg = seen };
	struct lease_token tokens[LENGTH(odd)];
	struct lease_grant grants[LENGTH(odd)];
	int results[LENGTH(odd)];

	for (size_t i = 0; i < LENGTH(odd); i++) {
		assert_granted(submit(s->worker, odd[i]));
		assert_granted(claim(s->worker, odd[i], odd[i], LONG, &grants[i]));
		tokens[i] = grants[i].token;
	}
	assert_granted(lease_renew_leases(s->worker, tokens, LENGTH(odd), LONG, 0, grants, results,
					  &last_error));
	for (size_t i = 0; i < LENGTH(odd); i++)
		assert_int_equal(results[i], 0);
	sql(s->admin, "update lease.run_attempts set lease_expires_at = clock_timestamp()");
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	options.scan_page = 7;
	assert_granted(lease_reconcile_expired_leases(s->worker, &options, &callbacks, &figures,
						      &last_error));
	assert_int_equal(figures.closed, LENGTH(odd));
	for (size_t i = 0; i < LENGTH(odd); i++)
		assert_int_equal(seen[i], 1);
	assert_explained(s);
}

/* -- lengths -------------------------------------------------------------------------------------------- */

static void fill(char *text, size_t n, const char *with)
{
	size_t length = strlen(with);

	for (size_t i = 0; i < n; i++)
		text[i] = with[i % length];
	text[n] = '\0';
}

static void case_31_the_longest_texts_come_back_whole(void **state)
{
	struct scenario *s = *state;
	char id[LEASE_ID_MAX + 1], *message = malloc(LEASE_MESSAGE_MAX + 1);
	struct lease_token token;
	struct lease_finish finish = { .status = LEASE_RUN_FAILED };

	fill(id, LEASE_ID_MAX, "x");
	use_everywhere(s, id);
	fill(id, LEASE_ID_MAX,
	     "\xf0\x9f\x98\x80"); /* 255 bytes: the last is cut, so make it whole */
	id[252] = 'a';
	id[253] = 'b';
	id[254] = '"';
	use_everywhere(s, id);
	fill(id, LEASE_ID_MAX, "\\\"");
	use_everywhere(s, id);

	token = take_run(s, "long", "w");
	fill(message, LEASE_MESSAGE_MAX, "'\"\\{},\n\xc3\xa9 ");
	memcpy(message + LEASE_MESSAGE_MAX - 2, "ab", 2);
	finish.token = &token;
	finish.error_message = message;
	assert_granted(lease_set_terminal_status(s->worker, &finish, NULL, &last_error));
	assert_value(s->admin, "select terminal_error_message from lease.runs where run_id = $1",
		     "long", message);
	free(message);
}

/* The call must be refused with E_INVALID, and not a byte may go to the server. */
#define assert_nothing_sent(s, call)                                                               \
	do {                                                                                       \
		struct round_trips trips_;                                                         \
		int result_;                                                                       \
		memset(&last_error, 0, sizeof(last_error));                                        \
		round_trips_start(&trips_, (s)->worker);                                           \
		result_ = call;                                                                    \
		assert_int_equal(round_trips_stop(&trips_), 0);                                    \
		assert_error(LEASE_E_INVALID, result_);                                            \
		assert_int_equal(last_error.code, LEASE_E_INVALID);                                \
		assert_true(last_error.message[0] != '\0');                                        \
		assert_int_equal(lease_error_advice(&last_error), LEASE_ADVICE_FIX);               \
	} while (0)

static void refuse_id(struct scenario *s, const char *id, bool is_null)
{
	struct lease_token token = token_of("r", 1, "w");
	struct lease_history *history;
	struct lease_change change;
	struct lease_grant grant;
	struct lease_claim claims[] = {
		{ .run_id = id, .owner = "w", .ttl = LONG },
		{ .run_id = "r", .owner = id, .ttl = LONG },
		{ .run_id = "r", .owner = "w", .ttl = LONG, .trace_id = id },
	};
	struct lease_claim next = { .owner = "w", .ttl = LONG, .tenant_id = id };
	struct lease_finish finish = { .token = &token,
				       .status = LEASE_RUN_FAILED,
				       .error_code = id };
	struct lease_release release = { .token = token, .error_code = id };

	assert_nothing_sent(s, lease_mark_running(s->worker, &claims[0], &grant, &last_error));
	assert_nothing_sent(s, lease_mark_running(s->worker, &claims[1], &grant, &last_error));
	assert_nothing_sent(s, lease_claim_next(s->worker, &claims[1], &grant, &last_error));
	assert_nothing_sent(s, lease_resume(s->worker, id, 0, 0, &change, &last_error));
	assert_nothing_sent(s, lease_request_cancel(s->worker, id, 0, 0, &change, &last_error));
	assert_nothing_sent(s, give_up(s->worker, id, 0, &change));
	assert_nothing_sent(s, lease_list_attempts(s->worker, id, &history, &last_error));
	if (is_null)
		return; /* elsewhere NULL stands for "none" */
	assert_nothing_sent(s, lease_mark_running(s->worker, &claims[2], &grant, &last_error));
	assert_nothing_sent(s, lease_claim_next(s->worker, &next, &grant, &last_error));
	assert_nothing_sent(s, submit(s->worker, id));
	assert_nothing_sent(
		s, lease_submit(s->worker,
				&(struct lease_submission){ .run_id = "x", .tenant_id = id }, NULL,
				NULL, &last_error));
	assert_nothing_sent(s, lease_set_terminal_status(s->worker, &finish, &change, &last_error));
	assert_nothing_sent(
		s, lease_release_lease_for_retry(s->worker, &release, &change, &last_error));
}

static void case_31_identifiers_out_of_range_are_refused_unsent(void **state)
{
	struct scenario *s = *state;
	char *huge = malloc(10001), id[257];

	fill(huge, 10000, "x");
	fill(id, 256, "x");
	refuse_id(s, "", false);
	refuse_id(s, id, false);
	refuse_id(s, huge, false);
	refuse_id(s, NULL, true);
	free(huge);
}

static void case_31_messages_out_of_range_are_refused_unsent(void **state)
{
	struct scenario *s = *state;
	char *message = malloc(LEASE_MESSAGE_MAX + 2);
	struct lease_token token = token_of("r", 1, "w");
	struct lease_finish finish = { .token = &token, .status = LEASE_RUN_FAILED };
	struct lease_release release = { .token = token };

	fill(message, LEASE_MESSAGE_MAX + 1, "x");
	finish.error_message = release.error_message = message;
	assert_nothing_sent(s, lease_set_terminal_status(s->worker, &finish, NULL, &last_error));
	assert_nothing_sent(s,
			    lease_release_lease_for_retry(s->worker, &release, NULL, &last_error));
	free(message);
}

static void tokens_out_of_range_are_refused_unsent(void **state)
{
	struct scenario *s = *state;
	struct lease_token good = token_of("r", 1, "w"), bad[4] = { good, good, good, good };

	bad[0].run_id[0] = '\0';
	bad[1].owner[0] = '\0';
	bad[2].attempt_no = 0;
	bad[3].attempt_no = -1;
	for (size_t i = 0; i < LENGTH(bad); i++) {
		struct lease_grant grant;
		int result;

		assert_nothing_sent(s, renew(s->worker, &bad[i], LONG, NULL));
		assert_nothing_sent(s, lease_renew_leases(s->worker, &bad[i], 1, LONG, 0, &grant,
							  &result, &last_error));
		assert_nothing_sent(s, release(s->worker, &bad[i], 0, NULL));
		assert_nothing_sent(s, suspend(s->worker, &bad[i], NULL));
		assert_nothing_sent(s, finish(s->worker, &bad[i], LEASE_RUN_COMPLETED, NULL, NULL));
	}
	assert_nothing_sent(s, renew(s->worker, NULL, LONG, NULL));
	assert_nothing_sent(s, suspend(s->worker, NULL, NULL));
}

static void durations_out_of_range_are_refused_unsent(void **state)
{
	static const int64_t bad[] = { -1, INT64_MIN, LEASE_DURATION_MAX + 1, INT64_MAX };
	struct scenario *s = *state;
	struct lease_token token = token_of("r", 1, "w");

	for (size_t i = 0; i < LENGTH(bad); i++) {
		struct lease_grant grant;
		int result;

		assert_nothing_sent(s, claim(s->worker, "r", "w", bad[i], NULL));
		assert_nothing_sent(s, renew(s->worker, &token, bad[i], NULL));
		assert_nothing_sent(s, lease_renew_leases(s->worker, &token, 1, bad[i], 0, &grant,
							  &result, &last_error));
		assert_nothing_sent(s, release(s->worker, &token, bad[i], NULL));
		assert_nothing_sent(s, lease_submit(s->worker,
						    &(struct lease_submission){ .run_id = "r",
										.delay = bad[i] },
						    NULL, NULL, &last_error));
		assert_nothing_sent(s, lease_submit(s->worker,
						    &(struct lease_submission){
							    .run_id = "r", .deadline = bad[i] },
						    NULL, NULL, &last_error));
	}
	assert_nothing_sent(s, claim(s->worker, "r", "w", 0, NULL));
	assert_nothing_sent(s, renew(s->worker, &token, 0, NULL));
}

static void a_status_that_is_no_end_is_refused_unsent(void **state)
{
	struct scenario *s = *state;
	struct lease_token token = token_of("r", 1, "w");

	assert_nothing_sent(s, finish(s->worker, &token, LEASE_RUN_PENDING, NULL, NULL));
	assert_nothing_sent(s, finish(s->worker, &token, LEASE_RUN_RUNNING, NULL, NULL));
	assert_nothing_sent(s, finish(s->worker, &token, LEASE_RUN_WAITING, NULL, NULL));
	assert_nothing_sent(s, finish(s->worker, &token, (enum lease_run_status)99, NULL, NULL));
	assert_nothing_sent(s, finish(s->worker, &token, (enum lease_run_status) - 1, NULL, NULL));
}

/* The library counts bytes; that they are UTF-8 is the server's to say. */
static void case_31_bytes_that_are_no_utf8_are_refused_by_the_server(void **state)
{
	struct scenario *s = *state;

	assert_error(LEASE_E_SERVER, submit(s->worker, "\xff\xfe"));
	assert_string_equal(last_error.sqlstate, "22021");
	assert_error(LEASE_E_SERVER, submit(s->worker, "a\xc3"));
	assert_string_equal(last_error.sqlstate, "22021");
	assert_granted(submit(s->worker, "good"));
}

/* "timeout" is any number of microseconds; one that never ends is none the less one. */
static void any_timeout_will_do(void **state)
{
	static const int64_t timeouts[] = { -1, INT64_MIN, LEASE_DURATION_MAX, INT64_MAX };
	struct scenario *s = *state;

	for (size_t i = 0; i < LENGTH(timeouts); i++) {
		char run_id[8];
		struct lease_submission submission = { .run_id = run_id, .timeout = timeouts[i] };
		struct lease_claim given = {
			.run_id = run_id, .owner = "w", .ttl = LONG, .timeout = timeouts[i]
		};
		struct lease_grant grant;

		snprintf(run_id, sizeof(run_id), "r%zu", i);
		assert_granted(lease_submit(s->worker, &submission, NULL, NULL, &last_error));
		assert_granted(lease_mark_running(s->worker, &given, &grant, &last_error));
		assert_granted(lease_renew_lease(s->worker, &grant.token, LONG, timeouts[i], &grant,
						 &last_error));
		assert_granted(lease_check_database(s->worker, timeouts[i], &last_error));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(case_31_odd_texts_come_back_whole),
		store_test(case_31_odd_texts_are_reconciled_together),
		store_test(case_31_the_longest_texts_come_back_whole),
		store_test(case_31_identifiers_out_of_range_are_refused_unsent),
		store_test(case_31_messages_out_of_range_are_refused_unsent),
		store_test(tokens_out_of_range_are_refused_unsent),
		store_test(durations_out_of_range_are_refused_unsent),
		store_test(a_status_that_is_no_end_is_refused_unsent),
		store_test(case_31_bytes_that_are_no_utf8_are_refused_by_the_server),
		store_test(any_timeout_will_do),
	};

	return cmocka_run_group_tests_name("strings", tests, NULL, scenario_end);
}
