/*
 * See schedule.h. It must never look at a clock or at anything but its arguments.
 */
#include <stdbool.h>

#include "schedule.h"

enum aim { AIM_WORKER, AIM_DAEMON, AIM_ANY };

static const struct {
	const char *name, *meaning;
	int weight; /* of a thousand */
	enum aim aim;
	int shortest_ms, longest_ms; /* duration */
} kinds[FAULT_KINDS] = {
	[FAULT_WORKER_KILL] = { "worker_kill", "SIGKILL of a worker", 130, AIM_WORKER, 0, 400 },
	[FAULT_WORKER_STOP] = { "worker_stop", "SIGSTOP of a worker, then SIGCONT", 100, AIM_WORKER,
				100, 3000 },
	[FAULT_DAEMON_KILL] = { "daemon_kill", "SIGKILL of a daemon", 60, AIM_DAEMON, 0, 1000 },
	[FAULT_DAEMON_STOP] = { "daemon_stop", "SIGSTOP of a daemon, then SIGCONT", 50, AIM_DAEMON,
				100, 2500 },
	[FAULT_SESSION_TERMINATE] = { "session_terminate", "pg_terminate_backend of a session", 90,
				      AIM_ANY, 0, 0 },
	[FAULT_SESSION_CANCEL] = { "session_cancel", "pg_cancel_backend of a session", 40, AIM_ANY,
				   0, 0 },
	[FAULT_BACKEND_KILL] = { "backend_kill", "SIGKILL of a backend: all of PostgreSQL restarts",
				 12, AIM_ANY, 0, 0 },
	[FAULT_SERVER_STOP] = { "server_stop", "pg_ctl stop -m immediate, then start", 18, AIM_ANY,
				0, 1500 },
	[FAULT_SERVER_FREEZE] = { "server_freeze", "SIGSTOP of all of PostgreSQL, then SIGCONT", 15,
				  AIM_ANY, 100, 3000 },
	[FAULT_CUT] = { "cut", "connections cut", 100, AIM_ANY, 0, 0 },
	[FAULT_DELAY] = { "delay", "data late, both ways", 70, AIM_ANY, 200, 2000 },
	[FAULT_TRICKLE] = { "trickle", "requests arrive in small pieces", 90, AIM_ANY, 200, 2000 },
	[FAULT_SILENCE] = { "silence", "nothing passes in one direction", 80, AIM_ANY, 100, 2500 },
	[FAULT_LOST_ANSWER] = { "lost_answer", "answers lost, of a commit too, then a cut", 100,
				AIM_ANY, 0, 300 },
	[FAULT_RELOAD] = { "reload", "SIGHUP of a daemon", 10, AIM_DAEMON, 0, 0 },
	[FAULT_BAD_RELOAD] = { "bad_reload", "SIGHUP of a daemon with a faulty file", 10,
			       AIM_DAEMON, 0, 0 },
	[FAULT_POLICY] = { "policy", "another policy, by reload", 40, AIM_DAEMON, 0, 0 },
};

const char *fault_name(enum fault_kind kind)
{
	return kinds[kind].name;
}

const char *fault_meaning(enum fault_kind kind)
{
	return kinds[kind].meaning;
}

uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static int below(uint64_t *state, int limit)
{
	return (int)(random_next(state) % (uint64_t)limit);
}

static enum fault_kind pick_kind(uint64_t *state)
{
	int sum = 0, at, kind = 0;

	for (int i = 0; i < FAULT_KINDS; i++)
		sum += kinds[i].weight;
	for (at = below(state, sum); at >= kinds[kind].weight; kind++)
		at -= kinds[kind].weight;
	return (enum fault_kind)kind;
}

/* Every number is drawn for every fault, so that one kind's needs do not shift what follows. */
struct fault schedule_next(uint64_t *state, int workers, int daemons)
{
	struct fault fault = { .kind = pick_kind(state) };
	int target = below(state, workers * daemons * (workers + daemons));
	int shortest = kinds[fault.kind].shortest_ms, longest = kinds[fault.kind].longest_ms;
	bool quiet;

	fault.duration_ms = shortest + below(state, longest - shortest + 1);
	fault.pause_ms = below(state, 300);
	quiet = below(state, 10) == 0; /* now and then enough to get on with the work */
	fault.detail = (uint32_t)random_next(state);
	if (quiet)
		fault.pause_ms += 700;
	if (kinds[fault.kind].aim == AIM_WORKER)
		fault.target = target % workers;
	else if (kinds[fault.kind].aim == AIM_DAEMON)
		fault.target = workers + target % daemons;
	else
		fault.target = target % (workers + daemons);
	return fault;
}
