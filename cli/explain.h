/*
 * How the whole story of a run is told, from the database or from a file of the archive.
 */
#ifndef LEASE_CLI_EXPLAIN_H
#define LEASE_CLI_EXPLAIN_H

#include "lease.h"
#include "output.h"

void story_print(const struct output *output, const struct lease_story *story);
void story_write_json(const struct output *output, const struct lease_story *story);

#endif
