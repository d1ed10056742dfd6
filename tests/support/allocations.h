/*
 * Memory that is refused on purpose, to programs that are linked with $(FAILING_ALLOCATIONS) of the
 * Makefile: the project's own calls are counted, and one of them gets NULL. Libraries get what they
 * ask for.
 *
 * A program that is not a test's own is told by LEASE_TEST_FAIL_ALLOCATION (which one, from 1; 0:
 * none) and writes how many there were into the file LEASE_TEST_ALLOCATIONS at its end.
 */
#ifndef LEASE_TEST_ALLOCATIONS_H
#define LEASE_TEST_ALLOCATIONS_H

#include <stdbool.h>

/* From now on: the allocation number `at` (from 1) fails, and no other. 0: none. */
void allocations_fail_at(long at);
/* Whether those that follow count: not while a test looks at what has happened. */
void allocations_count(bool on);
/* Whether it has come to that. */
bool allocations_failed(void);

#endif
