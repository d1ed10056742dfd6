/*
 * How the library says what went wrong: one line of text, never too long, never half a character;
 * and what to do about each class of SQLSTATE.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "harness.h"

static struct lease_error server_error(const char *sqlstate)
{
	struct lease_error error = { .code = LEASE_E_SERVER };

	snprintf(error.sqlstate, sizeof(error.sqlstate), "%s", sqlstate);
	return error;
}

#define assert_advice(advice, sqlstate)                                                            \
	do {                                                                                       \
		struct lease_error error_ = server_error(sqlstate);                                \
		assert_int_equal(lease_error_advice(&error_), advice);                             \
	} while (0)

static void case_28_each_sqlstate_has_its_advice(void **state)
{
	(void)state;
	assert_advice(LEASE_ADVICE_RETRY, "57014"); /* statement_timeout */
	assert_advice(LEASE_ADVICE_RETRY, "40001"); /* serialization failure */
	assert_advice(LEASE_ADVICE_RETRY, "40P01"); /* deadlock */
	assert_advice(LEASE_ADVICE_RETRY, "53300"); /* too many connections */
	assert_advice(LEASE_ADVICE_RECONNECT, "57P01"); /* admin shutdown */
	assert_advice(LEASE_ADVICE_RECONNECT, "57P02"); /* crash shutdown */
	assert_advice(LEASE_ADVICE_RECONNECT, "57P03"); /* cannot connect now */
	assert_advice(LEASE_ADVICE_RETRY, "55P03"); /* lock not available */
}

static void advice_for_other_classes(void **state)
{
	(void)state;
	assert_advice(LEASE_ADVICE_RECONNECT, "08006"); /* connection failure */
	assert_advice(LEASE_ADVICE_RECONNECT, "08P01"); /* protocol violation */
	assert_advice(LEASE_ADVICE_RECONNECT, "25006"); /* read-only transaction */
	assert_advice(LEASE_ADVICE_RECONNECT, "25P03"); /* idle in transaction */
	assert_advice(LEASE_ADVICE_RECONNECT, "25P04"); /* transaction_timeout */
	assert_advice(LEASE_ADVICE_SPLIT, "22001"); /* string too long */
	assert_advice(LEASE_ADVICE_SPLIT, "23514"); /* check violation */
	assert_advice(LEASE_ADVICE_SPLIT, "23001"); /* restrict violation: the guards */
	assert_advice(LEASE_ADVICE_SPLIT, "P0001"); /* raise exception */
	assert_advice(LEASE_ADVICE_SPLIT, "54000"); /* program limit exceeded */
	assert_advice(LEASE_ADVICE_SPLIT, "XX001"); /* data corrupted */
	assert_advice(LEASE_ADVICE_SPLIT, "XX002"); /* index corrupted */
	assert_advice(LEASE_ADVICE_RETRY, "XX000"); /* internal error */
	assert_advice(LEASE_ADVICE_RETRY, "53100"); /* disk full */
	assert_advice(LEASE_ADVICE_RETRY, "58030"); /* I/O error */
	assert_advice(LEASE_ADVICE_FIX, "42501"); /* insufficient privilege */
	assert_advice(LEASE_ADVICE_FIX, "28P01"); /* wrong password */
	assert_advice(LEASE_ADVICE_FIX, "3D000"); /* no such database */
	assert_advice(LEASE_ADVICE_FIX, "0A000"); /* not supported */
	assert_advice(LEASE_ADVICE_FIX, "");
}

static void advice_for_the_librarys_own_codes(void **state)
{
	static const struct {
		int code;
		enum lease_advice advice;
	} table[] = {
		{ LEASE_E_INVALID, LEASE_ADVICE_FIX },
		{ LEASE_E_MEMORY, LEASE_ADVICE_RETRY },
		{ LEASE_E_BUSY, LEASE_ADVICE_FIX },
		{ LEASE_E_CONNECTION, LEASE_ADVICE_RECONNECT },
		{ LEASE_E_TIMEOUT, LEASE_ADVICE_RECONNECT },
		{ LEASE_E_PROTOCOL, LEASE_ADVICE_RECONNECT },
		{ LEASE_E_READ_ONLY, LEASE_ADVICE_RECONNECT },
		{ LEASE_E_SCHEMA, LEASE_ADVICE_FIX },
		{ LEASE_E_SYSTEM, LEASE_ADVICE_RETRY },
		{ 0, LEASE_ADVICE_FIX },
		{ -99, LEASE_ADVICE_FIX },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct lease_error error = { .code = table[i].code };

		assert_int_equal(lease_error_advice(&error), table[i].advice);
	}
}

static void every_code_has_a_name(void **state)
{
	(void)state;
	for (int code = LEASE_E_INVALID; code >= LEASE_E_SYSTEM; code--)
		assert_string_not_equal(lease_errno_name(code), "?");
	assert_string_equal(lease_errno_name(0), "?");
	assert_string_equal(lease_errno_name(LEASE_E_SYSTEM - 1), "?");
	assert_string_equal(lease_errno_name(LEASE_HELD), "?");
}

static void a_message_is_one_line(void **state)
{
	struct lease_error error;

	(void)state;
	assert_int_equal(lease_error_set(&error, LEASE_E_SERVER, "  a\n\tb\r\n  c %s\n\n", "d\ne"),
			 LEASE_E_SERVER);
	assert_string_equal(error.message, "a b c d e");
	lease_error_set(&error, LEASE_E_SERVER, "\n \t\r");
	assert_string_equal(error.message, "");
	lease_error_set(&error, LEASE_E_SERVER, "%s", "");
	assert_string_equal(error.message, "");
}

/* Run ids may hold any character, and errors quote them: none may move a terminal's cursor. */
static void a_message_has_no_control_characters(void **state)
{
	struct lease_error error;

	(void)state;
	lease_error_set(&error, LEASE_E_SERVER, "run \"%s\" failed", "a\033[2Jb\vc\fd\be\177f\001");
	for (const char *c = error.message; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			fail_msg("byte %d stands in \"%s\"", *c, error.message);
}

static void setting_an_error_clears_the_old_one(void **state)
{
	struct lease_error error = { LEASE_E_TIMEOUT, "40001", true, "old" };

	(void)state;
	lease_error_set(&error, LEASE_E_INVALID, "new");
	assert_int_equal(error.code, LEASE_E_INVALID);
	assert_string_equal(error.sqlstate, "");
	assert_false(error.outcome_unknown);
	assert_string_equal(error.message, "new");
}

static void nobody_needs_to_want_the_error(void **state)
{
	PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_FATAL_ERROR);

	(void)state;
	assert_int_equal(lease_error_set(NULL, LEASE_E_MEMORY, "out of %s", "memory"),
			 LEASE_E_MEMORY);
	assert_int_equal(lease_error_from_connection(NULL, NULL), LEASE_E_CONNECTION);
	assert_int_equal(lease_error_from_result(NULL, result), LEASE_E_CONNECTION);
	PQclear(result);
}

static void a_result_without_sqlstate_is_a_lost_connection(void **state)
{
	PGresult *result = PQmakeEmptyPGresult(NULL, PGRES_FATAL_ERROR);
	struct lease_error error = { .sqlstate = "40001" };

	(void)state;
	assert_int_equal(lease_error_from_result(&error, result), LEASE_E_CONNECTION);
	assert_int_equal(error.code, LEASE_E_CONNECTION);
	assert_string_equal(error.sqlstate, "");
	PQclear(result);
	assert_int_equal(lease_error_from_connection(&error, NULL), LEASE_E_CONNECTION);
	assert_true(error.message[0] != '\0');
	assert_null(strchr(error.message, '\n'));
}

/* The rest of a character that was cut must not stay: JSON and the journal take whole UTF-8 only. */
static bool is_whole_utf8(const char *text)
{
	while (*text) {
		unsigned char lead = (unsigned char)*text++;
		int more = lead < 0x80    ? 0
			   : lead >= 0xf0 ? 3
			   : lead >= 0xe0 ? 2
			   : lead >= 0xc0 ? 1
					  : -1;

		if (more < 0)
			return false;
		for (; more > 0; more--)
			if (((unsigned char)*text++ & 0xc0) != 0x80)
				return false;
	}
	return true;
}

static void a_long_message_is_cut_between_characters(void **state)
{
	char *long_text = malloc(3000);
	struct lease_error error;

	(void)state;
	for (int shift = 0; shift < 4; shift++) {
		size_t n = (size_t)shift;

		memset(long_text, 'x', n);
		for (; n < 2000; n += 4)
			memcpy(long_text + n, "\xf0\x9f\x98\x80", 4);
		long_text[n] = '\0';
		lease_error_set(&error, LEASE_E_SERVER, "%s", long_text);
		assert_true(strlen(error.message) >= sizeof(error.message) - 5);
		assert_true(strlen(error.message) < sizeof(error.message));
		assert_true(is_whole_utf8(error.message));
	}
	free(long_text);
}

static void the_version_is_told(void **state)
{
	int major, minor, patch;

	(void)state;
	assert_int_equal(sscanf(lease_version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(case_28_each_sqlstate_has_its_advice),
		cmocka_unit_test(advice_for_other_classes),
		cmocka_unit_test(advice_for_the_librarys_own_codes),
		cmocka_unit_test(every_code_has_a_name),
		cmocka_unit_test(a_message_is_one_line),
		cmocka_unit_test(a_message_has_no_control_characters),
		cmocka_unit_test(setting_an_error_clears_the_old_one),
		cmocka_unit_test(nobody_needs_to_want_the_error),
		cmocka_unit_test(a_result_without_sqlstate_is_a_lost_connection),
		cmocka_unit_test(a_long_message_is_cut_between_characters),
		cmocka_unit_test(the_version_is_told),
	};

	return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}
