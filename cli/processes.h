/*
 * Signals to all that descends from a process, whatever groups and sessions it went into.
 *
 * A process that is a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER) stays an ancestor of everything
 * that was started below it: what loses its parent becomes its child, setsid(2) or not. /proc tells
 * who descends from whom.
 *
 * Promises: no process is signalled that took over the number of one that has ended meanwhile.
 * Must never: wait, write anywhere.
 */
#ifndef LEASE_CLI_PROCESSES_H
#define LEASE_CLI_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Sends a signal to every descendant of this process but those in process group `group` (0: none is
 * left out) and those of its children in `spared` with all that is below them. SIGSTOP and SIGKILL
 * are sent until nothing new shows up, because processes may be forked meanwhile.
 */
void processes_signal(int signal_number, pid_t group, const pid_t *spared, size_t n_spared);

/* Whether a process is stopped by a signal, or has ended. */
bool process_is_stopped(pid_t pid);

#endif
