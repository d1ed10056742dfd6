/*
 * The due list: the soonest first, never more than its limit, and honest about what it dropped.
 * By hand, and at random against a naive list that forgets nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "due.h"
#include "harness.h"

static struct due new_due(size_t limit)
{
	return (struct due){ .limit = limit, .known_until = INT64_MAX };
}

static void add(struct due *due, const char *run_id, int64_t at)
{
	assert_int_equal(due_add(due, run_id, at, 0, 1), 0);
}

static void take(struct due *due, const char *run_id, int64_t at)
{
	struct due_entry entry;

	assert_int_equal(due_next(due), at);
	assert_true(due_take(due, &entry));
	assert_int_equal(entry.at, at);
	assert_string_equal(entry.run_id, run_id);
	free(entry.run_id);
}

static void an_empty_list_has_nothing_due(void **state)
{
	struct due due = new_due(4);
	struct due_entry entry;

	(void)state;
	assert_int_equal(due_next(&due), INT64_MAX);
	assert_false(due_take(&due, &entry));
	due_forget(&due, 1);
	due_clear(&due);
	due_done(&due);
	due_done(&due);
}

static void the_soonest_comes_first(void **state)
{
	struct due due = new_due(100);
	struct due_entry entry;

	(void)state;
	add(&due, "c", 30);
	add(&due, "a", 10);
	add(&due, "d", 40);
	add(&due, "b", 20);
	take(&due, "a", 10);
	take(&due, "b", 20);
	add(&due, "aa", 5);
	take(&due, "aa", 5);
	take(&due, "c", 30);
	take(&due, "d", 40);
	assert_false(due_take(&due, &entry));
	due_done(&due);
}

static void an_entry_keeps_what_it_was_given(void **state)
{
	struct due due = new_due(4);
	struct due_entry entry;
	char name[] = "run";

	(void)state;
	assert_int_equal(due_add(&due, name, 7, 3, 9), 0);
	name[0] = 'X'; /* the list has a copy of its own */
	assert_true(due_take(&due, &entry));
	assert_string_equal(entry.run_id, "run");
	assert_int_equal(entry.at, 7);
	assert_int_equal(entry.tries, 3);
	assert_int_equal(entry.list, 9);
	free(entry.run_id);
	due_done(&due);
}

static void a_full_list_keeps_the_sooner_half(void **state)
{
	struct due due = new_due(4);

	(void)state;
	add(&due, "d", 40);
	add(&due, "a", 10);
	add(&due, "c", 30);
	add(&due, "b", 20);
	assert_int_equal(due.known_until, INT64_MAX);
	add(&due, "ab", 15);
	assert_int_equal(due.n, 3);
	assert_int_equal(due.known_until, 30); /* from here on it knows nothing */
	add(&due, "e", 30);
	add(&due, "f", 50);
	assert_int_equal(due.n, 3); /* neither is known of any more */
	add(&due, "g", 29);
	take(&due, "a", 10);
	take(&due, "ab", 15);
	take(&due, "b", 20);
	take(&due, "g", 29);
	assert_int_equal(due_next(&due), INT64_MAX);
	assert_int_equal(due.known_until, 30);
	due_done(&due);
}

static void a_limit_of_one_holds(void **state)
{
	struct due due = new_due(1);

	(void)state;
	add(&due, "b", 20);
	add(&due, "a", 10);
	assert_int_equal(due.n, 1);
	take(&due, "a", 10);
	assert_int_equal(due.known_until, 20);
	due_done(&due);
}

static void a_smaller_limit_takes_effect(void **state)
{
	struct due due = new_due(1000);

	(void)state;
	for (int i = 0; i < 500; i++)
		add(&due, "run", i);
	due.limit = 10;
	for (int i = 0; i < 500; i++)
		add(&due, "run", 0);
	assert_true(due.n <= 10);
	assert_true(due.known_until < 500);
	due_done(&due);
}

static void what_a_scan_listed_is_forgotten(void **state)
{
	struct due due = new_due(100);

	(void)state;
	for (int i = 0; i < 40; i++)
		assert_int_equal(due_add(&due, i % 2 ? "new" : "old", 100 - i, 0, i % 2 ? 2 : 1),
				 0);
	due_forget(&due, 1);
	assert_int_equal(due.n, 20);
	for (int at = 61; at <= 99; at += 2)
		take(&due, "new", at);
	assert_int_equal(due_next(&due), INT64_MAX);
	due_done(&due);
}

/* Others, and what is not due yet, stay where they are. */
static void a_list_goes_on_from_another_place(void **state)
{
	static const char *const names[] = { "r0", "r1", "r2", "r3", "r4" };
	struct due due = new_due(100);

	(void)state;
	for (int i = 4; i >= 0; i--)
		assert_int_equal(due_add(&due, names[i], 10 + i, 0, 2), 0);
	assert_int_equal(due_add(&due, "other", 20, 0, 1), 0);
	assert_int_equal(due_add(&due, "later", 90, 0, 2), 0);
	due_rotate(&due, 2, 50, 5 + 3);
	take(&due, "r3", due_next(&due));
	take(&due, "r4", due_next(&due));
	take(&due, "r0", 10);
	take(&due, "r1", 11);
	take(&due, "r2", 12);
	due_rotate(&due, 2, 50, 1);
	take(&due, "other", 20);
	take(&due, "later", 90);
	due_rotate(&due, 2, 50, 1);
	due_done(&due);
}

static void clearing_forgets_that_something_was_dropped(void **state)
{
	struct due due = new_due(2);

	(void)state;
	add(&due, "a", 10);
	add(&due, "b", 20);
	add(&due, "c", 5);
	assert_true(due.known_until < INT64_MAX);
	due_clear(&due);
	assert_int_equal(due.n, 0);
	assert_int_equal(due.known_until, INT64_MAX);
	add(&due, "z", 99);
	take(&due, "z", 99);
	due_done(&due);
}

/* -- at random --------------------------------------------------------------------------------- */

#define NAIVE 4000

struct naive {
	struct {
		int64_t at;
		uint32_t list;
		bool there;
	} entries[NAIVE];
	int n;
};

static int number_of(const struct due_entry *entry)
{
	return atoi(entry->run_id);
}

static int64_t soonest(const struct naive *naive)
{
	int64_t at = INT64_MAX;

	for (int i = 0; i < naive->n; i++)
		if (naive->entries[i].there && naive->entries[i].at < at)
			at = naive->entries[i].at;
	return at;
}

/* The list holds nothing that was not added, and all that lies before known_until. */
static void assert_agrees(const struct due *due, const struct naive *naive)
{
	bool listed[NAIVE] = { false };

	assert_true(due->n <= due->limit);
	for (size_t i = 0; i < due->n; i++) {
		int number = number_of(&due->entries[i]);

		assert_true(number >= 0 && number < naive->n);
		assert_false(listed[number]);
		assert_true(naive->entries[number].there);
		assert_int_equal(naive->entries[number].at, due->entries[i].at);
		listed[number] = true;
	}
	for (int i = 0; i < naive->n; i++)
		if (naive->entries[i].there && naive->entries[i].at < due->known_until)
			assert_true(listed[i]);
	if (soonest(naive) < due->known_until)
		assert_int_equal(due_next(due), soonest(naive));
}

static unsigned random_number(unsigned *seed, unsigned below)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (*seed >> 8) % below;
}

static void add_random(struct due *due, struct naive *naive, unsigned *seed, uint32_t list)
{
	int64_t at = random_number(seed, 200);
	char name[16];

	snprintf(name, sizeof(name), "%d", naive->n);
	assert_int_equal(due_add(due, name, at, 0, list), 0);
	naive->entries[naive->n].at = at;
	naive->entries[naive->n].list = list;
	naive->entries[naive->n++].there = true;
}

static void take_one(struct due *due, struct naive *naive)
{
	struct due_entry entry;
	int64_t next = due_next(due);

	assert_int_equal(due_take(due, &entry), next != INT64_MAX);
	if (next == INT64_MAX)
		return;
	assert_int_equal(entry.at, next);
	naive->entries[number_of(&entry)].there = false;
	free(entry.run_id);
}

static void forget_list(struct due *due, struct naive *naive, uint32_t list)
{
	due_forget(due, list);
	for (int i = 0; i < naive->n; i++)
		if (naive->entries[i].list == list)
			naive->entries[i].there = false;
}

static void at_random_it_agrees_with_a_naive_list(void **state)
{
	static const size_t limits[] = { 1, 2, 3, 5, 16, 100, 5000 };
	struct naive *naive = malloc(sizeof(*naive));

	(void)state;
	assert_non_null(naive);
	for (unsigned round = 0; round < 70; round++) {
		struct due due = new_due(limits[round % 7]);
		unsigned seed = round * 7919 + 1;
		uint32_t list = 1;

		naive->n = 0;
		for (int step = 0; step < 300; step++) {
			switch (random_number(&seed, 20)) {
			default:
				add_random(&due, naive, &seed, list);
				break;
			case 0 ... 5:
				take_one(&due, naive);
				break;
			case 6:
				list++;
				forget_list(&due, naive, list - 1 - random_number(&seed, 2));
				break;
			}
			assert_agrees(&due, naive);
		}
		while (due.n > 0)
			take_one(&due, naive);
		due_done(&due);
	}
	free(naive);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_list_has_nothing_due),
		cmocka_unit_test(the_soonest_comes_first),
		cmocka_unit_test(an_entry_keeps_what_it_was_given),
		cmocka_unit_test(a_full_list_keeps_the_sooner_half),
		cmocka_unit_test(a_limit_of_one_holds),
		cmocka_unit_test(a_smaller_limit_takes_effect),
		cmocka_unit_test(what_a_scan_listed_is_forgotten),
		cmocka_unit_test(a_list_goes_on_from_another_place),
		cmocka_unit_test(clearing_forgets_that_something_was_dropped),
		cmocka_unit_test(at_random_it_agrees_with_a_naive_list),
	};

	return cmocka_run_group_tests_name("due", tests, NULL, NULL);
}
