/*
 * A command that the state machine refused: nothing was changed.
 */
#ifndef LEASE_CLI_REFUSAL_H
#define LEASE_CLI_REFUSAL_H

#include "output.h"

/*
 * Says so in one line on standard error, with what to do, and with --json as the document
 * {"run_id":…,"changed":false,"refusal":"…"}. Returns the exit code: 66 for not_found, else 65.
 */
int refuse(const struct output *output, const char *run_id, int refusal);

#endif
