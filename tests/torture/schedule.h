/*
 * Which faults come when: a function of the seed alone, so that a campaign can be run again.
 *
 * The schedule knows nothing of what becomes of its faults; where one finds nothing to hit
 * (a session that is gone, a process that is dead already), it stays in the schedule.
 */
#ifndef LEASE_TORTURE_SCHEDULE_H
#define LEASE_TORTURE_SCHEDULE_H

#include <stdint.h>

enum fault_kind {
	FAULT_WORKER_KILL,
	FAULT_WORKER_STOP,
	FAULT_DAEMON_KILL,
	FAULT_DAEMON_STOP,
	FAULT_SESSION_TERMINATE,
	FAULT_SESSION_CANCEL,
	FAULT_BACKEND_KILL,
	FAULT_SERVER_STOP,
	FAULT_SERVER_FREEZE,
	FAULT_CUT,
	FAULT_DELAY,
	FAULT_TRICKLE,
	FAULT_SILENCE,
	FAULT_LOST_ANSWER,
	FAULT_RELOAD,
	FAULT_BAD_RELOAD,
	FAULT_POLICY,
	FAULT_KINDS,
};

struct fault {
	enum fault_kind kind;
	int target; /* a worker, a daemon, or one of both, workers first */
	int duration_ms; /* of the fault, or until what was killed is started again */
	int pause_ms; /* until the next fault */
	uint32_t detail; /* any number: how exactly */
};

const char *fault_name(enum fault_kind kind);
const char *fault_meaning(enum fault_kind kind);

/* The next one; *state begins as the seed. */
struct fault schedule_next(uint64_t *state, int workers, int daemons);

/* splitmix64: the next of a sequence of numbers. */
uint64_t random_next(uint64_t *state);

#endif
