/*
 * How events are shown, alone and within the story of a run.
 */
#ifndef LEASE_CLI_EVENTS_H
#define LEASE_CLI_EVENTS_H

#include <stddef.h>

#include "json.h"
#include "lease.h"
#include "output.h"

/* The events of one run: a line each. */
void events_print_story(const struct output *output, const struct lease_event *events, size_t n);
void event_write_json(struct json *json, const char *key, const struct lease_event *event);

#endif
