/*
 * due.h - the runs that the sweep is to look at, ordered by when: a bounded binary heap.
 *
 * When it is full it keeps the sooner half and remembers from when on it knows nothing any more;
 * whoever relies on it must scan again by then. It owns its strings.
 */
#ifndef LEASE_DUE_H
#define LEASE_DUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct due_entry {
	int64_t at; /* CLOCK_MONOTONIC, microseconds */
	char *run_id;
	int32_t tries; /* times that it was found locked or not over yet */
	uint32_t list; /* the scan that listed it */
};

struct due {
	struct due_entry *entries; /* a heap by `at` */
	size_t n, size, limit;
	int64_t known_until; /* INT64_MAX: nothing was dropped */
};

/* 0, or -1 when there is no memory for it (the entry is then dropped and known_until says so). */
int due_add(struct due *due, const char *run_id, int64_t at, int32_t tries, uint32_t list);
/* When the first one is due; INT64_MAX: there is none. */
int64_t due_next(const struct due *due);
/* Takes the first one out; its string is the caller's. False: there is none. */
bool due_take(struct due *due, struct due_entry *ret);
/* Drops what a scan listed: a newer one of its kind has listed it again, or it is dealt with. */
void due_forget(struct due *due, uint32_t list);
/*
 * Lets the entries of a list that are due by `until` begin with another of them, `places` after the
 * first one (modulo how many there are), and go on behind the last with the first.
 */
void due_rotate(struct due *due, uint32_t list, int64_t until, size_t places);
void due_clear(struct due *due);
void due_done(struct due *due);

#endif
