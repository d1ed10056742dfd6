/*
 * The guard: a small process between leasectl and a command, and the command's parent.
 *
 * It has no connection and does nothing slow, so it acts in time whatever leasectl is waiting for:
 * it stops the command and all that descends from it when the lease is over by CLOCK_BOOTTIME,
 * continues them when a renewal was granted, and ends them when it is told to, when leasectl is
 * gone, and when leasectl is stopped at the lease's end. Being a subreaper it stays an ancestor of
 * all that the command starts, setsid(2) or not. It ends when all of them have.
 *
 * Promises: past the lease's end nothing below the guard runs, but for the grace that a command has
 * which was told that its lease is lost. Must never: touch leasectl's connection.
 */
#ifndef LEASE_CLI_GUARD_H
#define LEASE_CLI_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct guard {
	pid_t pid;
	int socket;
};

struct guard_command {
	char *const *argv;
	char *const *environment; /* "NAME=value" to add, ends with NULL */
	bool null_input; /* standard input is /dev/null */
	bool foreground; /* the command's group becomes the terminal's foreground group */
	int64_t lease_end; /* local_end of the grant */
	int64_t grace; /* from SIGTERM to SIGKILL */
	const int *close; /* descriptors that the guard must not hold */
	size_t n_close;
};

enum guard_news {
	GUARD_NOTHING, /* for the moment */
	GUARD_PAUSED, /* the lease is over: the command is stopped */
	GUARD_CONTINUED,
	GUARD_FAILED, /* the command could not be started; value: errno */
	GUARD_ENDED, /* all has ended; value: the command's wait status */
	GUARD_UNRENEWED, /* the same, but the guard killed it: nobody renewed the lease */
	GUARD_GONE, /* the guard was killed */
};

/* 0, or an errno. */
int guard_start(struct guard *guard, const struct guard_command *command);

/* A lease was granted or renewed, up to `end`; a command that is stopped goes on. */
void guard_extend(const struct guard *guard, int64_t end);
/* SIGTERM, and SIGKILL after the grace. `lost`: the lease is, so its end does not matter any more. */
void guard_end(const struct guard *guard, bool lost);

/* These two may be called in signal handlers. */
void guard_forward(int socket, int signal_number);
/* The answer to SIGURG, by which the guard asks whether leasectl still runs. */
void guard_answer(int socket);

/* What it tells; never waits. */
enum guard_news guard_read(const struct guard *guard, int *ret_value);
/* After ENDED, UNRENEWED, FAILED or GONE. */
void guard_done(struct guard *guard);

#endif
