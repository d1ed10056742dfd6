/*
 * leasectl archive --show: what a file of the archive holds.
 */
#ifndef LEASE_CLI_ARCHIVE_H
#define LEASE_CLI_ARCHIVE_H

#include "output.h"

/*
 * Checks the whole file, then shows its header and its runs, or with a run_id that run's story. 0 or
 * an exit code after one line on standard error; nothing is shown of a file that is not whole.
 */
int archive_show(const struct output *output, const char *path, const char *run_id);

#endif
