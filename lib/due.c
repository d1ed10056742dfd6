/*
 * due.c - see due.h.
 */
#include "due.h"

#include <stdlib.h>
#include <string.h>

static void swap(struct due_entry *a, struct due_entry *b)
{
	struct due_entry held = *a;

	*a = *b;
	*b = held;
}

static void sift_up(struct due *due, size_t i)
{
	while (i > 0 && due->entries[i].at < due->entries[(i - 1) / 2].at) {
		swap(&due->entries[i], &due->entries[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
}

static void sift_down(struct due *due, size_t i)
{
	for (;;) {
		size_t least = i;

		for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < due->n; child++)
			if (due->entries[child].at < due->entries[least].at)
				least = child;
		if (least == i)
			return;
		swap(&due->entries[i], &due->entries[least]);
		i = least;
	}
}

static int by_time(const void *a, const void *b)
{
	const struct due_entry *x = a, *y = b;

	return (x->at > y->at) - (x->at < y->at);
}

/* Keeps the sooner half. A sorted array is a heap. */
static void drop_later_half(struct due *due)
{
	size_t keep = due->n / 2;

	qsort(due->entries, due->n, sizeof(*due->entries), by_time);
	if (due->entries[keep].at < due->known_until)
		due->known_until = due->entries[keep].at;
	while (due->n > keep)
		free(due->entries[--due->n].run_id);
}

static int grow(struct due *due)
{
	size_t size = due->size ? due->size * 2 : 64;
	struct due_entry *entries;

	if (size > due->limit)
		size = due->limit > 0 ? due->limit : 1;
	entries = realloc(due->entries, size * sizeof(*entries));
	if (!entries)
		return -1;
	due->entries = entries;
	due->size = size;
	return 0;
}

static int forget(struct due *due, int64_t at)
{
	if (at < due->known_until)
		due->known_until = at;
	return -1;
}

int due_add(struct due *due, const char *run_id, int64_t at, int32_t tries, uint32_t list)
{
	char *copy;

	if (at >= due->known_until)
		return 0;
	if (due->n >= due->limit)
		drop_later_half(due);
	if (at >= due->known_until)
		return 0;
	if (due->n == due->size && grow(due) < 0)
		return forget(due, at);
	copy = strdup(run_id);
	if (!copy)
		return forget(due, at);
	due->entries[due->n++] = (struct due_entry){ at, copy, tries, list };
	sift_up(due, due->n - 1);
	/* cppcheck-suppress memleak; the list owns the copy */
	return 0;
}

int64_t due_next(const struct due *due)
{
	return due->n > 0 ? due->entries[0].at : INT64_MAX;
}

bool due_take(struct due *due, struct due_entry *ret)
{
	if (due->n == 0)
		return false;
	*ret = due->entries[0];
	due->entries[0] = due->entries[--due->n];
	sift_down(due, 0);
	return true;
}

static void make_heap(struct due *due)
{
	for (size_t i = due->n / 2 + 1; i-- > 0;)
		sift_down(due, i);
}

void due_forget(struct due *due, uint32_t list)
{
	size_t kept = 0;

	for (size_t i = 0; i < due->n; i++) {
		if (due->entries[i].list == list)
			free(due->entries[i].run_id);
		else
			due->entries[kept++] = due->entries[i];
	}
	due->n = kept;
	make_heap(due);
}

static bool is_listed(const struct due_entry *entry, uint32_t list, int64_t until)
{
	return entry->list == list && entry->at <= until;
}

/* What is to come first is put before all the others. A sorted array is a heap, this one is none. */
void due_rotate(struct due *due, uint32_t list, int64_t until, size_t places)
{
	size_t n = 0, place = 0, last = 0;
	int64_t span;

	qsort(due->entries, due->n, sizeof(*due->entries), by_time);
	for (size_t i = 0; i < due->n; i++)
		if (is_listed(&due->entries[i], list, until)) {
			last = i;
			n++;
		}
	if (n == 0)
		return;
	span = due->entries[last].at - due_next(due) + 1;
	places %= n;
	for (size_t i = 0; i < due->n; i++)
		if (is_listed(&due->entries[i], list, until) && place++ >= places)
			due->entries[i].at -= span;
	make_heap(due);
}

void due_clear(struct due *due)
{
	while (due->n > 0)
		free(due->entries[--due->n].run_id);
	due->known_until = INT64_MAX;
}

void due_done(struct due *due)
{
	due_clear(due);
	free(due->entries);
	due->entries = NULL;
	due->size = 0;
}
