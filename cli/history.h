/*
 * How a run and its attempts are shown, alone and within the story of a run.
 */
#ifndef LEASE_CLI_HISTORY_H
#define LEASE_CLI_HISTORY_H

#include "json.h"
#include "lease.h"
#include "output.h"

/* The colour of a run's status. */
enum style status_style(enum lease_run_status status);

/* The members "now", "run" and "attempts" of an object that is begun. */
void history_write_members(struct json *json, const struct lease_history *history);
void history_print_run(const struct output *output, const struct lease_history *history);
/* The table of attempts and their timeline, or a line that there are none. */
void history_print_attempts(const struct output *output, const struct lease_history *history);

#endif
