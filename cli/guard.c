/*
 * guard.c - both ends of the guard: see guard.h for what it promises.
 *
 * Everything from guard_main on down to guard_start runs in the guard's process.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lease.h"
#include "processes.h"

/* A leasectl that is not stopped and yet silent for so long past the lease's end is given up. */
#define PATIENCE (5 * LEASE_SECOND)
#define ASK_EVERY (200 * LEASE_MILLISECOND)
/* SIGKILL again, for what was forked meanwhile; less and less often, for what cannot be killed. */
#define KILL_AGAIN (20 * LEASE_MILLISECOND)
#define KILL_AGAIN_MAX LEASE_SECOND
#define NEVER INT64_MAX

enum order { ORDER_EXTEND, ORDER_END, ORDER_LOST, ORDER_SIGNAL, ORDER_ANSWER };

/* Both ways. */
struct message {
	int32_t kind; /* enum order, or enum guard_news */
	int32_t value;
	int64_t time;
};

static void send_message(int socket, int kind, int value, int64_t time)
{
	struct message message = { .kind = kind, .value = value, .time = time };

	/* who is not there any more needs no message, and nobody waits for a full buffer */
	(void)!send(socket, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* -- within the guard --------------------------------------------------------------------------- */

struct watch {
	int socket, signals, timer;
	pid_t leasectl, command;
	int64_t grace, lease_end;
	bool command_ended;
	int status; /* the command's, once it has ended */
	bool paused, orphaned, killing;
	bool unrenewed; /* killed because nobody renewed */
	int64_t kill_at, kill_pause, ask_at, patient_until;
};

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* The group at once, then what has left it. A group outlives its leader, but not for sure. */
static void signal_all(const struct watch *watch, int signal_number)
{
	pid_t group = watch->command_ended ? 0 : watch->command;

	if (group)
		kill(-group, signal_number);
	processes_signal(signal_number, group, NULL, 0);
}

static void kill_all(struct watch *watch, int64_t now)
{
	watch->killing = true;
	signal_all(watch, SIGKILL);
	watch->kill_pause = watch->kill_pause ? earlier(2 * watch->kill_pause, KILL_AGAIN_MAX)
					      : KILL_AGAIN;
	watch->kill_at = now + watch->kill_pause;
}

static void pause_all(struct watch *watch, int64_t now)
{
	signal_all(watch, SIGSTOP);
	watch->paused = true;
	watch->ask_at = now;
	watch->patient_until = now + PATIENCE;
	send_message(watch->socket, GUARD_PAUSED, 0, 0);
}

static void continue_all(struct watch *watch)
{
	if (!watch->paused)
		return;
	watch->paused = false;
	signal_all(watch, SIGCONT);
}

/* SIGTERM is there when what is stopped goes on, so that it does nothing else before. */
static void end_all(struct watch *watch, int64_t now)
{
	watch->kill_at = earlier(watch->kill_at, now + watch->grace);
	if (watch->grace > 0)
		signal_all(watch, SIGTERM);
}

static void take_order(struct watch *watch, const struct message *message, int64_t now)
{
	switch ((enum order)message->kind) {
	case ORDER_EXTEND:
		watch->lease_end = message->time;
		if (watch->paused && now < message->time) {
			continue_all(watch);
			send_message(watch->socket, GUARD_CONTINUED, 0, 0);
		}
		break;
	case ORDER_END:
		end_all(watch, now);
		break;
	case ORDER_LOST:
		end_all(watch, now);
		watch->lease_end = NEVER;
		if (watch->grace > 0)
			continue_all(watch);
		break;
	case ORDER_SIGNAL:
		if (message->value == SIGUSR1 || message->value == SIGUSR2 ||
		    message->value == SIGWINCH) {
			if (!watch->command_ended)
				kill(watch->command, message->value);
			break;
		}
		signal_all(watch, message->value);
		/* one that is stopped cannot heed it */
		if (watch->paused)
			watch->kill_at = earlier(watch->kill_at, now + watch->grace);
		break;
	case ORDER_ANSWER:
		watch->patient_until = now + PATIENCE;
		break;
	}
}

/* Nobody renews any more: it ends before the lease does, or at once when that is over. */
static void become_orphan(struct watch *watch, int64_t now)
{
	watch->orphaned = true;
	close(watch->socket);
	watch->socket = -1;
	if (watch->paused || now >= watch->lease_end) {
		kill_all(watch, now);
		return;
	}
	end_all(watch, now); /* the lease's end is looked for as before */
}

static void take_orders(struct watch *watch, int64_t now)
{
	struct message message;
	ssize_t length;

	while (!watch->orphaned) {
		length = recv(watch->socket, &message, sizeof(message), MSG_DONTWAIT);
		if (length == (ssize_t)sizeof(message))
			take_order(watch, &message, now);
		else if (length == 0 || (errno != EAGAIN && errno != EINTR))
			become_orphan(watch, now);
		else if (errno == EAGAIN)
			return;
	}
}

/* Whether leasectl is still there to ask for a renewal. */
static void ask(struct watch *watch, int64_t now)
{
	if (process_is_stopped(watch->leasectl) || now >= watch->patient_until) {
		watch->unrenewed = true;
		kill_all(watch, now);
		return;
	}
	if (getppid() == watch->leasectl)
		kill(watch->leasectl, SIGURG);
	watch->ask_at = now + ASK_EVERY;
}

static void take_time(struct watch *watch, int64_t now)
{
	if (now >= watch->lease_end && !watch->paused && !watch->killing) {
		if (watch->orphaned)
			kill_all(watch, now);
		else
			pause_all(watch, now);
	}
	if (watch->paused && !watch->orphaned && !watch->killing && now >= watch->ask_at)
		ask(watch, now);
	if (now >= watch->kill_at)
		kill_all(watch, now);
}

/* Ctrl-Z at a terminal that is the command's: nobody is there who could continue it. */
static void continue_suspended(const struct watch *watch)
{
	siginfo_t info = { 0 };

	while (waitid(P_ALL, 0, &info, WSTOPPED | WNOHANG) == 0 && info.si_pid != 0) {
		if (info.si_status == SIGTSTP && !watch->paused && !watch->killing)
			kill(-watch->command, SIGCONT);
		info.si_pid = 0;
	}
}

/* True: nothing is left below this process. */
static bool reap(struct watch *watch, int64_t now)
{
	bool just_ended = false;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0 || (pid < 0 && errno == EINTR)) {
		if (pid != watch->command)
			continue;
		watch->command_ended = just_ended = true;
		watch->status = status;
	}
	if (pid < 0)
		return true;
	/* what the command left behind has no lease to work under once the run has ended */
	if (just_ended && (watch->paused || watch->grace == 0))
		kill_all(watch, now);
	else if (just_ended)
		end_all(watch, now);
	return false;
}

static void set_timer(const struct watch *watch)
{
	int64_t next = watch->kill_at;
	struct itimerspec spec = { 0 };

	if (!watch->paused && !watch->killing)
		next = earlier(next, watch->lease_end);
	if (watch->paused && !watch->orphaned && !watch->killing)
		next = earlier(next, watch->ask_at);
	if (next < NEVER) { /* a time that has passed is one, zero would be none */
		spec.it_value.tv_sec = next > 0 ? next / LEASE_SECOND : 0;
		spec.it_value.tv_nsec = next > 0 ? next % LEASE_SECOND * 1000 : 1;
		if (spec.it_value.tv_sec == 0 && spec.it_value.tv_nsec == 0)
			spec.it_value.tv_nsec = 1;
	}
	timerfd_settime(watch->timer, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void drain(int fd)
{
	char buffer[512];

	while (read(fd, buffer, sizeof(buffer)) > 0)
		;
}

static _Noreturn void keep_watch(struct watch *watch)
{
	struct pollfd fds[3] = { { .fd = watch->signals, .events = POLLIN },
				 { .fd = watch->timer, .events = POLLIN },
				 { .fd = watch->socket, .events = POLLIN } };

	for (;;) {
		set_timer(watch);
		fds[2].fd = watch->socket;
		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			kill_all(watch, lease_clock_boottime());
		drain(watch->signals);
		drain(watch->timer);
		take_orders(watch, lease_clock_boottime());
		take_time(watch, lease_clock_boottime());
		continue_suspended(watch);
		if (reap(watch, lease_clock_boottime()))
			break;
	}
	send_message(watch->socket, watch->unrenewed ? GUARD_UNRENEWED : GUARD_ENDED, watch->status,
		     0);
	_exit(0);
}

/* -- the command -------------------------------------------------------------------------------- */

/* What leasectl handles is the command's own matter; what was ignored before it stays ignored. */
static void reset_handlers(void)
{
	for (int number = 1; number < NSIG; number++) {
		struct sigaction action;

		if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN &&
		    action.sa_handler != SIG_DFL)
			signal(number, SIG_DFL);
	}
	signal(SIGPIPE, SIG_DFL);
}

/* Becomes the command; a failure goes into `report`. */
static _Noreturn void become_command(const struct guard_command *command, pid_t guard, int report,
				     const sigset_t *mask)
{
	int error, null;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != guard)
		_exit(127);
	if (command->foreground) /* SIGTTOU is blocked here */
		tcsetpgrp(STDIN_FILENO, getpgrp());
	if (command->null_input) {
		null = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (null >= 0)
			dup2(null, STDIN_FILENO);
	}
	for (char *const *variable = command->environment; *variable; variable++)
		putenv(*variable);
	reset_handlers();
	sigprocmask(SIG_SETMASK, mask, NULL);
	execvp(command->argv[0], command->argv);
	error = errno;
	(void)!write(report, &error, sizeof(error));
	_exit(127);
}

/* 0, or the errno with which the command could not be started. */
static int start_command(struct watch *watch, const struct guard_command *command,
			 const sigset_t *mask)
{
	pid_t self = getpid();
	int report[2], error = 0;

	if (pipe2(report, O_CLOEXEC) < 0)
		return errno;
	watch->command = fork();
	if (watch->command < 0)
		return errno;
	if (watch->command == 0)
		become_command(command, self, report[1], mask);
	setpgid(watch->command, watch->command); /* whoever is first */
	close(report[1]);
	if (read(report[0], &error, sizeof(error)) != (ssize_t)sizeof(error))
		error = 0;
	close(report[0]);
	return error;
}

static _Noreturn void guard_main(int socket, pid_t leasectl, const struct guard_command *command,
				 const sigset_t *mask)
{
	struct watch watch = { .socket = socket,
			       .leasectl = leasectl,
			       .grace = command->grace,
			       .lease_end = command->lease_end,
			       .kill_at = NEVER };
	sigset_t set;
	int error;

	signal(SIGCHLD, SIG_DFL); /* ignored, it would keep no status */
	setpgid(0, 0);
	prctl(PR_SET_NAME, "lease-guard");
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (size_t i = 0; i < command->n_close; i++)
		close(command->close[i]);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	watch.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	watch.timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	error = watch.signals < 0 || watch.timer < 0 ? errno : 0;
	if (!error)
		error = start_command(&watch, command, mask);
	if (error) {
		send_message(socket, GUARD_FAILED, error, 0);
		_exit(0);
	}
	keep_watch(&watch);
}

/* -- within leasectl ---------------------------------------------------------------------------- */

/* Signals are blocked from before the fork: leasectl's handlers must not run in the guard. */
int guard_start(struct guard *guard, const struct guard_command *command)
{
	pid_t self = getpid();
	sigset_t all, mask;
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		return errno;
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &mask);
	guard->pid = fork();
	if (guard->pid == 0) {
		close(sockets[0]);
		guard_main(sockets[1], self, command, &mask);
	}
	sigprocmask(SIG_SETMASK, &mask, NULL);
	close(sockets[1]);
	guard->socket = sockets[0];
	if (guard->pid > 0)
		return 0;
	close(sockets[0]);
	return errno;
}

void guard_extend(const struct guard *guard, int64_t end)
{
	send_message(guard->socket, ORDER_EXTEND, 0, end);
}

void guard_end(const struct guard *guard, bool lost)
{
	send_message(guard->socket, lost ? ORDER_LOST : ORDER_END, 0, 0);
}

void guard_forward(int socket, int signal_number)
{
	send_message(socket, ORDER_SIGNAL, signal_number, 0);
}

void guard_answer(int socket)
{
	send_message(socket, ORDER_ANSWER, 0, 0);
}

enum guard_news guard_read(const struct guard *guard, int *ret_value)
{
	struct message message;
	ssize_t length;

	/* a reset says that the guard left with an order unread; what it sent before is still there */
	do
		length = recv(guard->socket, &message, sizeof(message), MSG_DONTWAIT);
	while (length < 0 && (errno == EINTR || errno == ECONNRESET));
	if (length == (ssize_t)sizeof(message)) {
		*ret_value = message.value;
		return (enum guard_news)message.kind;
	}
	return length < 0 && errno == EAGAIN ? GUARD_NOTHING : GUARD_GONE;
}

void guard_done(struct guard *guard)
{
	close(guard->socket);
	while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
		;
	guard->socket = -1;
	guard->pid = 0;
}
