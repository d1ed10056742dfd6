/*
 * A run's attempts as lanes drawn to scale: who held the lease when, and how it ended.
 *
 * Promises: no line is wider than the output (80 columns where it has no width, 40 at least);
 * letters and signs of ASCII alone in a locale other than UTF-8.
 */
#ifndef LEASE_CLI_TIMELINE_H
#define LEASE_CLI_TIMELINE_H

#include "lease.h"
#include "output.h"

void timeline_print(const struct output *output, const struct lease_history *history);

/* An owner is a worker's name, a colon and a UUID: the name; to be freed by the caller. */
char *owner_name(const char *owner);

/* How an outcome is coloured. */
enum style outcome_style(enum lease_outcome outcome);

#endif
