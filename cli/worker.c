/*
 * worker.c - see worker.h.
 *
 * One loop: it waits for guards, signals and its own times, and calls liblease, which blocks for a
 * sixth of the lease at most. What must not wait for that, signal handlers and guards do.
 */
#include "worker.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "failure.h"
#include "guard.h"
#include "processes.h"
#include "refusal.h"

#define CALL_MIN LEASE_SECOND
#define CALL_MAX (10 * LEASE_SECOND)
#define RETRY_FIRST (100 * LEASE_MILLISECOND)
#define RETRY_MAX (5 * LEASE_SECOND)
#define IDLE_FIRST (100 * LEASE_MILLISECOND)
#define CLAIM_TRIES 5
/* So many releases double the delay; the longest one is reached long before. */
#define RELEASES_MAX 40

enum job_state {
	JOB_FREE,
	JOB_RUNNING,
	JOB_ENDED, /* its command has ended, the run has not yet */
};

struct job {
	enum job_state state;
	struct guard guard;
	struct lease_grant grant;
	int refusal; /* of a renewal or an end: the lease is lost; 0: it is not */
	bool cancelled; /* a cancel is requested, and the command was told */
	bool has_terminal;
	bool told_lost;
	/* once it has ended */
	int status; /* as of waitpid */
	int start_error; /* errno: it could not be started */
	bool unrenewed, unguarded;
	int64_t record_at;
	int record_tries;
};

struct worker {
	const struct worker_options *options;
	struct context *context;
	PGconn *conn;
	bool many;
	struct job *jobs;
	size_t n_jobs;
	int64_t timeout; /* of one call of liblease */
	int64_t renew_at, claim_at, connect_at;
	int renew_tries, claim_tries, connect_tries;
	int64_t idle_pause;
	bool broken; /* the connection is to be made anew */
	bool told_failure; /* a line about the outage was written */
	bool draining; /* no further claims */
	bool forced; /* the commands were told to end: a second signal */
	bool found_nothing;
	int exit_code;
};

/* -- signals: what handlers need, and so the only state outside of struct worker ---------------- */

static struct {
	int wake; /* an eventfd */
	bool many;
	atomic_int stops; /* signals that ask the program to end */
	atomic_int last; /* the newest of them */
	atomic_int sockets[WORKER_JOBS_MAX]; /* of the guards; -1: none */
} signals;

static bool asks_to_end(int number)
{
	return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT;
}

static void handle_signal(int number)
{
	int error = errno;
	uint64_t one = 1;

	if (asks_to_end(number)) {
		atomic_store(&signals.last, number);
		atomic_fetch_add(&signals.stops, 1);
	}
	for (size_t i = 0; i < WORKER_JOBS_MAX; i++) {
		int socket = atomic_load(&signals.sockets[i]);

		if (socket < 0)
			continue;
		if (number == SIGURG)
			guard_answer(socket);
		else if (!signals.many)
			guard_forward(socket, number);
	}
	(void)!write(signals.wake, &one, sizeof(one));
	errno = error;
}

/* What was ignored when the program began stays ignored (nohup). */
static void catch_signal(int number)
{
	struct sigaction old, action = { .sa_handler = handle_signal, .sa_flags = SA_RESTART };

	sigfillset(&action.sa_mask);
	if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
		sigaction(number, &action, NULL);
}

static int catch_signals(bool many)
{
	static const int ends[] = { SIGTERM, SIGINT, SIGHUP, SIGQUIT };
	static const int others[] = { SIGUSR1, SIGUSR2, SIGWINCH };

	signals.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (signals.wake < 0)
		return fail(EX_OSERR, "cannot make an eventfd: %s", strerror(errno));
	signals.many = many;
	for (size_t i = 0; i < WORKER_JOBS_MAX; i++)
		atomic_store(&signals.sockets[i], -1);
	signal(SIGURG, SIG_DFL);
	signal(SIGCHLD, SIG_DFL);
	catch_signal(SIGURG);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		catch_signal(ends[i]);
	for (size_t i = 0; !many && i < sizeof(others) / sizeof(others[0]); i++)
		catch_signal(others[i]);
	return 0;
}

/* -- times -------------------------------------------------------------------------------------- */

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* From half of it to all of it, so that many workers do not ask at the same moment. */
static int64_t with_jitter(int64_t pause)
{
	int64_t half = pause / 2;

	return half + (int64_t)((double)half * ((double)random() / 2147483647.0));
}

/* first, doubled `times` times, up to a limit */
static int64_t doubled(int64_t first, int64_t limit, int times)
{
	for (int i = 0; i < times && first < limit; i++)
		first *= 2;
	return smaller(first, limit);
}

static int64_t retry_pause(int tries)
{
	return with_jitter(doubled(RETRY_FIRST, RETRY_MAX, tries));
}

/* -- the database ------------------------------------------------------------------------------- */

/* Once an outage; what comes after it is told by database_answered. */
static void tell_failure(struct worker *worker, const char *what, const struct lease_error *error)
{
	if (!worker->told_failure)
		note("%s: %s%s%s%s; trying again", what, error->message,
		     error->sqlstate[0] ? " (SQLSTATE " : "", error->sqlstate,
		     error->sqlstate[0] ? ")" : "");
	worker->told_failure = true;
}

static void database_failed(struct worker *worker, const char *what,
			    const struct lease_error *error)
{
	tell_failure(worker, what, error);
	if (lease_error_advice(error) == LEASE_ADVICE_RECONNECT && !worker->broken) {
		worker->broken = true;
		worker->connect_at = 0;
	}
}

static void database_answered(struct worker *worker)
{
	if (worker->told_failure)
		note("the database answers again");
	worker->told_failure = false;
}

/* Whether there is a connection now; makes one when it is time for that. */
static bool is_connected(struct worker *worker)
{
	struct lease_error error;
	int r;

	if (!worker->broken && PQstatus(worker->conn) == CONNECTION_OK)
		return true;
	worker->broken = true;
	if (lease_clock_boottime() < worker->connect_at)
		return false;
	PQreset(worker->conn);
	if (PQstatus(worker->conn) == CONNECTION_OK) {
		r = lease_check_database(worker->conn, worker->timeout, &error);
	} else {
		r = error.code = LEASE_E_CONNECTION;
		error.sqlstate[0] = '\0';
		snprintf(error.message, sizeof(error.message), "%s", PQerrorMessage(worker->conn));
	}
	if (r == 0) {
		worker->broken = false;
		worker->connect_tries = 0;
		return true;
	}
	tell_failure(worker, "cannot connect", &error);
	worker->connect_at = lease_clock_boottime() + retry_pause(worker->connect_tries++);
	return false;
}

/* Whether another try may bring something else. */
static bool may_retry(const struct lease_error *error)
{
	enum lease_advice advice = lease_error_advice(error);

	return advice == LEASE_ADVICE_RETRY || advice == LEASE_ADVICE_RECONNECT;
}

/* -- commands ----------------------------------------------------------------------------------- */

static bool is_executable(const char *path)
{
	return access(path, X_OK) == 0;
}

/* As execvp looks for it. Before anything is claimed, so that a misspelt name costs no attempt. */
static int check_command(const char *name)
{
	const char *path = getenv("PATH");
	const char *end;

	if (strchr(name, '/')) {
		if (is_executable(name))
			return 0;
		return fail(errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE, "%s: %s", name,
			    strerror(errno));
	}
	if (!path)
		path = "/bin:/usr/bin";
	for (;; path = end + 1) {
		char *candidate;
		bool found;

		end = strchrnul(path, ':');
		candidate = xasprintf("%.*s/%s", (int)(end - path), end > path ? path : ".", name);
		found = is_executable(candidate);
		free(candidate);
		if (found)
			return 0;
		if (!*end)
			return fail(EXIT_NOT_FOUND, "%s: there is no such command in PATH", name);
	}
}

/* A terminal that is ours goes to the command, as a shell would give it, and comes back. */
static bool owns_terminal(const struct worker *worker)
{
	return !worker->many && isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp();
}

static void take_terminal_back(void)
{
	sigset_t set, old;

	sigemptyset(&set);
	sigaddset(&set, SIGTTOU);
	sigprocmask(SIG_BLOCK, &set, &old);
	tcsetpgrp(STDIN_FILENO, getpgrp());
	sigprocmask(SIG_SETMASK, &old, NULL);
}

/* The guard must not hold the connection, nor other guards' sockets, whose end they wait for. */
static int *list_own_descriptors(const struct worker *worker, size_t *ret_n)
{
	int *list = xcalloc(worker->n_jobs + 2, sizeof(*list));
	size_t n = 0;

	list[n++] = signals.wake;
	if (PQsocket(worker->conn) >= 0)
		list[n++] = PQsocket(worker->conn);
	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state == JOB_RUNNING)
			list[n++] = worker->jobs[i].guard.socket;
	*ret_n = n;
	return list;
}

static void start_job(struct worker *worker, struct job *job)
{
	const struct lease_token *token = &job->grant.token;
	char *environment[] = { xasprintf("LEASE_RUN_ID=%s", token->run_id),
				xasprintf("LEASE_ATTEMPT_NO=%" PRId32, token->attempt_no),
				xasprintf("LEASE_OWNER=%s", token->owner), NULL };
	struct guard_command command = {
		.argv = worker->options->argv,
		.environment = environment,
		.null_input = worker->many,
		.lease_end = job->grant.local_end,
		.grace = worker->options->grace,
	};
	int *own = list_own_descriptors(worker, &command.n_close);

	command.close = own;
	command.foreground = job->has_terminal = owns_terminal(worker);
	job->start_error = guard_start(&job->guard, &command);
	if (job->start_error == 0) {
		job->state = JOB_RUNNING;
		atomic_store(&signals.sockets[job - worker->jobs], job->guard.socket);
		/* one that came while the run was being claimed */
		if (!worker->many && atomic_load(&signals.stops) > 0)
			guard_forward(job->guard.socket, atomic_load(&signals.last));
	} else {
		job->state = JOB_ENDED;
	}
	free(own);
	for (size_t i = 0; environment[i]; i++)
		free(environment[i]);
}

/* The guard was killed: what it watched over are children of this process now. */
static void end_unguarded(struct worker *worker)
{
	pid_t *guards = xcalloc(worker->n_jobs, sizeof(*guards));
	size_t n = 0;
	bool left = true;

	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state == JOB_RUNNING)
			guards[n++] = worker->jobs[i].guard.pid;
	while (left) {
		siginfo_t info = { 0 };

		processes_signal(SIGKILL, 0, guards, n);
		left = false;
		while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid) {
			bool is_guard = false;

			for (size_t i = 0; i < n; i++)
				is_guard = is_guard || guards[i] == info.si_pid;
			if (is_guard)
				break;
			waitpid(info.si_pid, NULL, 0);
			left = true;
			info.si_pid = 0;
		}
	}
	free(guards);
}

static void job_ended(struct worker *worker, struct job *job)
{
	atomic_store(&signals.sockets[job - worker->jobs], -1);
	guard_done(&job->guard);
	job->state = JOB_ENDED;
	if (job->unguarded)
		end_unguarded(worker);
	if (job->has_terminal)
		take_terminal_back();
}

static void hear_guard(struct worker *worker, struct job *job)
{
	const char *run_id = job->grant.token.run_id;
	int value = 0;

	while (job->state == JOB_RUNNING) {
		switch (guard_read(&job->guard, &value)) {
		case GUARD_NOTHING:
			return;
		case GUARD_PAUSED:
			note("run %s: its lease ended before it was renewed: the command is "
			     "stopped until a renewal is granted",
			     run_id);
			if (!worker->told_failure)
				worker->renew_at = 0;
			break;
		case GUARD_CONTINUED:
			note("run %s: renewed, the command goes on", run_id);
			break;
		case GUARD_FAILED:
			job->start_error = value;
			job_ended(worker, job);
			break;
		case GUARD_UNRENEWED:
			job->unrenewed = true;
			job_ended(worker, job);
			break;
		case GUARD_ENDED:
			job->status = value;
			job_ended(worker, job);
			break;
		case GUARD_GONE:
			job->unguarded = true;
			job_ended(worker, job);
			break;
		}
	}
}

/* -- renewing ----------------------------------------------------------------------------------- */

static void tell_lost(struct job *job, const char *why, const char *what)
{
	if (!job->told_lost)
		note("run %s attempt %" PRId32 ": its lease is lost (%s): %s",
		     job->grant.token.run_id, job->grant.token.attempt_no, why, what);
	job->told_lost = true;
}

static void lose(struct job *job, int refusal)
{
	job->refusal = refusal;
	if (job->state != JOB_RUNNING)
		return;
	tell_lost(job, lease_refusal_name(refusal), "the command is ended");
	guard_end(&job->guard, true);
}

static void take_renewal(struct job *job, const struct lease_grant *grant, int result)
{
	if (result > 0) {
		lose(job, result);
		return;
	}
	job->grant.lease_expires_at = grant->lease_expires_at;
	job->grant.local_end = grant->local_end;
	if (job->state != JOB_RUNNING)
		return;
	guard_extend(&job->guard, grant->local_end);
	if (grant->cancel_requested && !job->cancelled) {
		note("run %s: a cancel is requested: the command is ended",
		     job->grant.token.run_id);
		job->cancelled = true;
		guard_end(&job->guard, false);
	}
}

/* All leases in one statement. */
static void renew_all(struct worker *worker)
{
	struct lease_token *tokens = xcalloc(worker->n_jobs, sizeof(*tokens));
	struct lease_grant *grants = xcalloc(worker->n_jobs, sizeof(*grants));
	size_t *positions = xcalloc(worker->n_jobs, sizeof(*positions));
	int *results = xcalloc(worker->n_jobs, sizeof(*results));
	int64_t began = lease_clock_boottime();
	struct lease_error error;
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state != JOB_FREE && !worker->jobs[i].refusal) {
			tokens[n] = worker->jobs[i].grant.token;
			positions[n++] = i;
		}
	if (n > 0)
		r = lease_renew_leases(worker->conn, tokens, n, worker->options->ttl,
				       worker->timeout, grants, results, &error);
	if (r < 0) {
		database_failed(worker, "cannot renew", &error);
		worker->renew_at = lease_clock_boottime() +
				   smaller(retry_pause(worker->renew_tries++),
					   worker->options->period);
	} else {
		for (size_t i = 0; i < n; i++)
			take_renewal(&worker->jobs[positions[i]], &grants[i], results[i]);
		worker->renew_at = began + worker->options->period;
		worker->renew_tries = 0;
		database_answered(worker);
	}
	free(tokens);
	free(grants);
	free(positions);
	free(results);
}

/* -- ending runs -------------------------------------------------------------------------------- */

/* What a command's end means for its run. */
struct ending {
	bool release;
	bool grows; /* the delay before the next attempt */
	enum lease_run_status status;
	char error_code[32]; /* "": none */
	int exit_code; /* of leasectl exec */
};

static void find_ending(const struct worker *worker, const struct job *job, struct ending *ret)
{
	bool exited = WIFEXITED(job->status);
	int value = exited ? WEXITSTATUS(job->status) : WTERMSIG(job->status);

	*ret = (struct ending){ .status = LEASE_RUN_FAILED,
				.exit_code = exited ? value : 128 + value };
	snprintf(ret->error_code, sizeof(ret->error_code), "%s_%d", exited ? "exit" : "signal",
		 value);
	if (job->start_error) {
		ret->release = true;
		ret->exit_code = job->start_error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
		snprintf(ret->error_code, sizeof(ret->error_code), "start_failed");
	} else if (job->unguarded) {
		ret->release = true;
		ret->exit_code = EX_OSERR;
		snprintf(ret->error_code, sizeof(ret->error_code), "guard_lost");
	}
	if (job->cancelled) {
		ret->release = false;
		ret->status = LEASE_RUN_CANCELLED;
	} else if (ret->release) {
		return;
	} else if (exited && value == 0) {
		ret->status = LEASE_RUN_COMPLETED;
		ret->error_code[0] = '\0';
	} else if (exited && value == EX_TEMPFAIL) {
		ret->release = ret->grows = true;
	} else if (worker->forced) { /* it was this worker that had to end */
		ret->release = true;
	}
}

/* How long the run is not due: longer with each release before this one, without a break. */
static int find_delay(struct worker *worker, const struct job *job, int64_t *ret,
		      struct lease_error *error)
{
	int releases = 0;
	int r = lease_count_releases(worker->conn, job->grant.token.run_id, RELEASES_MAX,
				     worker->timeout, &releases, error);

	if (r == 0)
		*ret = doubled(worker->options->retry_delay, worker->options->retry_max, releases);
	return r;
}

static int write_ending(struct worker *worker, const struct job *job, const struct ending *ending,
			int64_t *ret_delay, struct lease_error *error)
{
	const char *error_code = ending->error_code[0] ? ending->error_code : NULL;
	int r = 0;

	if (!ending->release)
		return lease_set_terminal_status(
			worker->conn,
			&(struct lease_finish){ .token = &job->grant.token,
						.status = ending->status,
						.error_code = error_code,
						.timeout = worker->timeout },
			NULL, error);
	if (ending->grows)
		r = find_delay(worker, job, ret_delay, error);
	if (r != 0)
		return r;
	return lease_release_lease_for_retry(worker->conn,
					     &(struct lease_release){ .token = job->grant.token,
								      .delay = *ret_delay,
								      .error_code = error_code,
								      .timeout = worker->timeout },
					     NULL, error);
}

static void tell_ending(const struct worker *worker, const struct job *job,
			const struct ending *ending, int64_t delay)
{
	const struct lease_token *token = &job->grant.token;
	char pause[TIME_SIZE];

	duration_format(delay, pause);
	if (job->start_error)
		note("%s: cannot be executed: %s", worker->options->argv[0],
		     strerror(job->start_error));
	if (job->unguarded)
		note("run %s: its guard was killed, and so was its command", token->run_id);
	if (ending->release)
		note("run %s attempt %" PRId32 ": released for retry (%s)%s%s", token->run_id,
		     token->attempt_no, ending->error_code, delay > 0 ? ", due in " : "",
		     delay > 0 ? pause : "");
	else if (worker->many || ending->status == LEASE_RUN_CANCELLED)
		note("run %s attempt %" PRId32 ": %s%s%s%s", token->run_id, token->attempt_no,
		     lease_run_status_name(ending->status), ending->error_code[0] ? " (" : "",
		     ending->error_code, ending->error_code[0] ? ")" : "");
}

/* The run's part is done, well or not. */
static void free_job(struct worker *worker, struct job *job, int exit_code)
{
	if (job->start_error || job->unguarded) {
		/* the next command would fare no better */
		worker->draining = true;
		worker->exit_code = exit_code;
	}
	if (!worker->many)
		worker->exit_code = exit_code;
	*job = (struct job){ .state = JOB_FREE };
	worker->claim_at = 0;
	worker->idle_pause = 0;
	worker->found_nothing = false;
}

static void free_lost_job(struct worker *worker, struct job *job)
{
	if (job->refusal)
		tell_lost(job, lease_refusal_name(job->refusal),
			  "how the command ended cannot be recorded");
	else
		tell_lost(job, "it was not renewed in time", "the command was killed");
	free_job(worker, job, EXIT_LEASE_LOST);
}

/* A second signal: nobody waits for the database any more, and the lease runs out. */
static bool is_given_up(const struct worker *worker)
{
	return worker->many ? worker->forced : atomic_load(&signals.stops) > 1;
}

static void give_up_endings(struct worker *worker)
{
	for (size_t i = 0; i < worker->n_jobs; i++) {
		struct job *job = &worker->jobs[i];

		if (job->state == JOB_ENDED)
			free_job(worker, job,
				 fail(EX_UNAVAILABLE,
				      "run %s attempt %" PRId32 ": how its command ended is not "
				      "recorded: no connection",
				      job->grant.token.run_id, job->grant.token.attempt_no));
	}
}

static void ending_failed(struct worker *worker, struct job *job, const struct lease_error *error)
{
	if (may_retry(error) && !is_given_up(worker)) {
		database_failed(worker, "cannot end a run", error);
		job->record_at = lease_clock_boottime() + retry_pause(job->record_tries++);
		return;
	}
	free_job(worker, job, fail_with_error("cannot end the run", error));
}

/* Ends the run as its command ended. */
static void record(struct worker *worker, struct job *job)
{
	struct lease_error error;
	struct ending ending;
	int64_t delay = 0;
	int r;

	if (job->refusal || job->unrenewed) {
		free_lost_job(worker, job);
		return;
	}
	find_ending(worker, job, &ending);
	r = write_ending(worker, job, &ending, &delay, &error);
	if (r == LEASE_CANCEL_REQUESTED && !job->cancelled) {
		job->cancelled = true; /* since the last renewal */
		find_ending(worker, job, &ending);
		r = write_ending(worker, job, &ending, &delay, &error);
	}
	if (r < 0) {
		ending_failed(worker, job, &error);
	} else if (r > 0) {
		job->refusal = r;
		free_lost_job(worker, job);
	} else {
		database_answered(worker);
		tell_ending(worker, job, &ending, delay);
		free_job(worker, job, ending.exit_code);
	}
}

/* -- claiming ----------------------------------------------------------------------------------- */

static int claim(struct worker *worker, const char *run_id, const char *owner,
		 struct lease_grant *ret, struct lease_error *error)
{
	const struct worker_options *options = worker->options;
	struct lease_claim claim = { .run_id = run_id,
				     .tenant_id = options->tenant,
				     .owner = owner,
				     .ttl = options->ttl,
				     .timeout = worker->timeout,
				     .take_over = !options->pending_only };

	return run_id ? lease_mark_running(worker->conn, &claim, ret, error)
		      : lease_claim_next(worker->conn, &claim, ret, error);
}

static struct job *find_free_job(struct worker *worker)
{
	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state == JOB_FREE)
			return &worker->jobs[i];
	return NULL;
}

static bool is_idle(const struct worker *worker)
{
	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state != JOB_FREE)
			return false;
	return true;
}

static void begin_job(struct worker *worker, struct job *job, const struct lease_grant *grant)
{
	if (is_idle(worker))
		worker->renew_at = lease_clock_boottime() + worker->options->period;
	*job = (struct job){ .grant = *grant, .cancelled = grant->cancel_requested };
	start_job(worker, job);
}

/* The next run that is due, for a job that is free. */
static void claim_next(struct worker *worker, struct job *job)
{
	char owner[LEASE_ID_MAX + 1];
	struct lease_grant grant;
	struct lease_error error;
	int r = lease_owner_generate(worker->options->identity, owner, &error);

	if (r == 0)
		r = claim(worker, NULL, owner, &grant, &error);
	if (r < 0 && !may_retry(&error)) {
		worker->exit_code = fail_with_error("cannot claim", &error);
		worker->draining = true;
		return;
	}
	if (r < 0) {
		database_failed(worker, "cannot claim", &error);
		worker->claim_at = lease_clock_boottime() + retry_pause(worker->claim_tries++);
		return;
	}
	database_answered(worker);
	worker->claim_tries = 0;
	worker->found_nothing = r > 0;
	if (r == 0) {
		worker->idle_pause = 0;
		worker->claim_at = 0;
		begin_job(worker, job, &grant);
	} else {
		worker->idle_pause = worker->idle_pause
					     ? smaller(2 * worker->idle_pause,
						       worker->options->idle)
					     : smaller(IDLE_FIRST, worker->options->idle);
		worker->claim_at = lease_clock_boottime() + with_jitter(worker->idle_pause);
	}
}

/* The run that was named. Repeating the claim as the same owner is safe. */
static int claim_named(struct worker *worker, const char *run_id)
{
	char owner[LEASE_ID_MAX + 1];
	struct lease_grant grant;
	struct lease_error error;
	int r = lease_owner_generate(worker->options->identity, owner, &error);

	for (int tries = 0; r == 0; tries++) {
		error = (struct lease_error){ .code = LEASE_E_CONNECTION };
		r = is_connected(worker) ? claim(worker, run_id, owner, &grant, &error)
					 : LEASE_E_CONNECTION;
		if (r >= 0 || tries == CLAIM_TRIES || !may_retry(&error) ||
		    atomic_load(&signals.stops) > 0)
			break;
		if (error.message[0]) /* else is_connected told */
			database_failed(worker, "cannot claim", &error);
		r = 0;
		poll(NULL, 0, (int)(retry_pause(tries) / 1000));
	}
	if (r < 0 && !error.message[0])
		return fail(EX_UNAVAILABLE, "cannot claim run %s: no connection", run_id);
	if (r < 0)
		return fail_with_error("cannot claim", &error);
	if (r > 0)
		return refuse(&worker->context->output, run_id, r);
	database_answered(worker);
	begin_job(worker, &worker->jobs[0], &grant);
	return 0;
}

/* -- the loop ----------------------------------------------------------------------------------- */

static void heed_signals(struct worker *worker)
{
	int stops = atomic_load(&signals.stops);

	if (!worker->many || stops == 0)
		return;
	if (!worker->draining)
		note("ending: no further run is claimed, those at work go on to their end");
	worker->draining = true;
	if (stops < 2 || worker->forced)
		return;
	note("ending: the commands are ended, and their runs released");
	worker->forced = true;
	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state == JOB_RUNNING)
			guard_end(&worker->jobs[i].guard, false);
}

static bool may_claim(struct worker *worker)
{
	return worker->many && !worker->draining && find_free_job(worker) != NULL;
}

/* Does what is due; the most urgent comes first, and all of it is short. */
static void act(struct worker *worker)
{
	bool idle = is_idle(worker);

	if (idle && !may_claim(worker))
		return;
	if (!is_connected(worker)) {
		if (is_given_up(worker))
			give_up_endings(worker);
		return;
	}
	if (!idle && lease_clock_boottime() >= worker->renew_at)
		renew_all(worker);
	for (size_t i = 0; i < worker->n_jobs; i++) {
		struct job *job = &worker->jobs[i];

		if (job->state == JOB_ENDED && lease_clock_boottime() >= job->record_at)
			record(worker, job);
	}
	if (!worker->broken && may_claim(worker) && lease_clock_boottime() >= worker->claim_at)
		claim_next(worker, find_free_job(worker));
}

/* When the loop has something to do by itself. */
static int64_t next_time(struct worker *worker)
{
	int64_t next = INT64_MAX;

	if (!is_idle(worker))
		next = worker->renew_at;
	for (size_t i = 0; i < worker->n_jobs; i++)
		if (worker->jobs[i].state == JOB_ENDED)
			next = smaller(next, worker->jobs[i].record_at);
	if (may_claim(worker))
		next = smaller(next, worker->claim_at);
	return worker->broken ? larger(next, worker->connect_at) : next;
}

static void wait_for_news(struct worker *worker)
{
	struct pollfd *fds = xcalloc(worker->n_jobs + 1, sizeof(*fds));
	int64_t left = next_time(worker) - lease_clock_boottime();
	uint64_t count;

	fds[0] = (struct pollfd){ .fd = signals.wake, .events = POLLIN };
	for (size_t i = 0; i < worker->n_jobs; i++)
		fds[i + 1] = (struct pollfd){ .fd = worker->jobs[i].state == JOB_RUNNING
							    ? worker->jobs[i].guard.socket
							    : -1,
					      .events = POLLIN };
	left = left <= 0 ? 0 : smaller((left + 999) / 1000, 3600000);
	poll(fds, (nfds_t)worker->n_jobs + 1, (int)left);
	free(fds);
	(void)!read(signals.wake, &count, sizeof(count));
}

static bool is_done(const struct worker *worker)
{
	if (!is_idle(worker))
		return false;
	return !worker->many || worker->draining ||
	       (worker->options->until_idle && worker->found_nothing);
}

static void run_loop(struct worker *worker)
{
	while (!is_done(worker)) {
		wait_for_news(worker);
		heed_signals(worker);
		for (size_t i = 0; i < worker->n_jobs; i++)
			hear_guard(worker, &worker->jobs[i]);
		act(worker);
	}
}

static int open_worker(struct worker *worker, struct context *context,
		       const struct worker_options *options, bool many)
{
	int r = check_command(options->argv[0]);

	*worker = (struct worker){
		.options = options,
		.context = context,
		.many = many,
		.n_jobs = many ? (size_t)options->jobs : 1,
		.timeout = smaller(larger(options->ttl / 6, CALL_MIN), CALL_MAX),
	};
	if (r == 0)
		r = connection_open(&context->source, CONNECTION_WRITE, &worker->conn);
	if (r == 0)
		r = catch_signals(many);
	if (r != 0)
		return r;
	srandom((unsigned)getpid() ^ (unsigned)lease_clock_boottime());
	worker->jobs = xcalloc(worker->n_jobs, sizeof(*worker->jobs));
	return 0;
}

static void close_worker(struct worker *worker)
{
	free(worker->jobs);
	PQfinish(worker->conn);
}

int worker_exec(struct context *context, const struct worker_options *options, const char *run_id)
{
	struct worker worker;
	int r = open_worker(&worker, context, options, false);

	if (r == 0)
		r = claim_named(&worker, run_id);
	if (r == 0) {
		run_loop(&worker);
		r = worker.exit_code;
	}
	close_worker(&worker);
	return r;
}

int worker_work(struct context *context, const struct worker_options *options)
{
	struct worker worker;
	int r = open_worker(&worker, context, options, true);

	if (r == 0) {
		run_loop(&worker);
		r = worker.exit_code;
	}
	close_worker(&worker);
	return r;
}
