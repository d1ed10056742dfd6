/*
 * How many runs go into a transaction: an eighth of the most on a new connection, then as many as its
 * server locks and looks at in time.
 */
#include "harness.h"
#include "pace.h"

static struct pace new_pace(size_t limit)
{
	struct pace pace = { 0 };

	pace_set_limit(&pace, limit);
	pace_reset(&pace);
	return pace;
}

/* A transaction as large as may be, on a server that takes `each` microseconds for a run. */
static void look(struct pace *pace, int64_t each)
{
	pace_note(pace, pace->runs, each * (int64_t)pace->runs);
}

static void a_fast_server_gets_twice_as_many_each_time(void **state)
{
	struct pace pace = new_pace(200);

	(void)state;
	assert_int_equal(pace.runs, 25);
	look(&pace, 20);
	assert_int_equal(pace.runs, 50);
	look(&pace, 20);
	assert_int_equal(pace.runs, 100);
	look(&pace, 20);
	assert_int_equal(pace.runs, 200);
	pace_set_limit(&pace, 1000);
	look(&pace, 10);
	assert_int_equal(pace.runs, 400);
}

static void a_slow_server_gets_what_it_does_in_time(void **state)
{
	struct pace pace = new_pace(1000);

	(void)state;
	for (int i = 0; i < 10; i++)
		look(&pace, 80);
	assert_int_equal(pace.runs, PACE_LOOK / 80);
	/* it becomes slower, and so slow that fewer would not be worth a transaction */
	look(&pace, 160);
	assert_int_equal(pace.runs, PACE_LOOK / 160);
	look(&pace, 100000);
	assert_int_equal(pace.runs, PACE_LEAST);
	/* and recovers */
	for (int i = 0; i < 10; i++)
		look(&pace, 10);
	assert_int_equal(pace.runs, PACE_LOOK / 10);
}

static void a_transaction_with_little_to_do_says_little(void **state)
{
	struct pace pace = new_pace(200);

	(void)state;
	for (int i = 0; i < 4; i++)
		look(&pace, 20);
	assert_int_equal(pace.runs, 200);
	pace_note(&pace, 1, 1000000); /* one slow run */
	assert_int_equal(pace.runs, 200);
	pace_note(&pace, 40, 800); /* twice as many would be fewer than now */
	assert_int_equal(pace.runs, 200);
	pace_note(&pace, 40, 40 * 400); /* but 40 that are too slow are */
	assert_int_equal(pace.runs, PACE_LEAST);
}

static void the_limit_holds(void **state)
{
	struct pace pace = new_pace(7);

	(void)state;
	assert_int_equal(pace.runs, 7);
	look(&pace, 1);
	assert_int_equal(pace.runs, 7);
	look(&pace, 1000000);
	assert_int_equal(pace.runs, 7);
	pace_set_limit(&pace, 100);
	assert_int_equal(pace.runs, PACE_LEAST);
	look(&pace, 1);
	look(&pace, 1);
	assert_int_equal(pace.runs, 100);
	pace_set_limit(&pace, 60);
	assert_int_equal(pace.runs, 60);
	pace_set_limit(&pace, 1);
	assert_int_equal(pace.runs, 1);
	look(&pace, 1);
	assert_int_equal(pace.runs, 1);
}

static void nothing_overflows(void **state)
{
	struct pace pace = new_pace(100000);

	(void)state;
	for (int i = 0; i < 4; i++)
		look(&pace, 0);
	assert_int_equal(pace.runs, 100000);
	pace_note(&pace, 100000, INT64_MAX);
	assert_int_equal(pace.runs, PACE_LEAST);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fast_server_gets_twice_as_many_each_time),
		cmocka_unit_test(a_slow_server_gets_what_it_does_in_time),
		cmocka_unit_test(a_transaction_with_little_to_do_says_little),
		cmocka_unit_test(the_limit_holds),
		cmocka_unit_test(nothing_overflows),
	};

	return cmocka_run_group_tests_name("pace", tests, NULL, NULL);
}
