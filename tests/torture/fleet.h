/*
 * The fleet under torture: a cluster of its own, a proxy before it, workers and daemons behind the
 * proxy, each with a route of its own; and the faults that are done to them.
 *
 * Workers log in with a role that has lease_worker and nothing else, daemons with one that has
 * lease_reconciler and nothing else. Who ends without having been told to is a finding.
 */
#ifndef LEASE_TORTURE_FLEET_H
#define LEASE_TORTURE_FLEET_H

#include <stdbool.h>
#include <stdint.h>

#include "checker.h"
#include "cluster.h"
#include "schedule.h"

struct fleet;

/* Starts it all and waits until the daemons are ready. */
struct fleet *fleet_start(uint64_t seed, const char *seed_text, int workers, int daemons);
struct checker *fleet_checker(struct fleet *fleet);

/* Sees to what is due: who is to be started or continued again, who has ended. Never blocks long. */
void fleet_tend(struct fleet *fleet);

/* False: there was nothing to hit. May take seconds, where the server is stopped. */
bool fleet_hit(struct fleet *fleet, const struct fault *fault);

/* No fault is in force any more, all run. Then the work goes on for a while undisturbed. */
void fleet_heal(struct fleet *fleet);

/* Kills the workers, waits for what they leave to be closed, ends the daemons, judges the logs. */
void fleet_stop(struct fleet *fleet);

/* The workers' files; a list that lives as long as the fleet. */
char *const *fleet_logs(const struct fleet *fleet, int *ret_n);

/* Removes the cluster. */
void fleet_free(struct fleet *fleet);

#endif
