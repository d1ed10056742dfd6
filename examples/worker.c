/*
 * worker.c - a whole worker on liblease: the example to copy.
 *
 * It claims the oldest run that is due, works on it in small steps, renews its lease while it
 * works, and ends the run; then it claims the next one. One thread, one connection, no event loop:
 * what it takes is that a step is short compared to the lease, for it looks at the lease between
 * steps and only there.
 *
 * What it promises:
 * - it begins no step past the end of its lease (`local_end`, on a clock of its own machine), and
 *   after that end it goes on only when a renewal has been granted
 * - it stops working on a run at once when a renewal is refused
 * - SIGTERM and SIGINT give the run back for a retry before the program ends
 *
 * What it must never do: trust a wall clock, or go on because "the database is surely just slow".
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>

#include <libpq-fe.h>

#include "lease.h"

/* How long it waits before it asks again: for work, and after an error. */
#define IDLE_WAIT (200 * LEASE_MILLISECOND)
#define RETRY_WAIT (500 * LEASE_MILLISECOND)

struct options {
	const char *conninfo; /* libpq connection string or URI; "": libpq's environment */
	const char *name; /* stable name of this worker; each claim adds a random part */
	const char *tenant; /* NULL: any */
	int64_t ttl; /* how long a lease lasts; renewed at a third of it */
	int64_t step_time; /* how long a step takes at least */
	int64_t steps; /* how many steps a run has */
	bool take_over; /* see lease_claim_next */
	bool until_empty; /* end when no run is left, rather than wait for more */
};

struct worker {
	const struct options *options;
	PGconn *conn;
	char trouble[1024]; /* the failure that was told last; "": all is well */
};

/* A run in work: the lease, and when to see to it. */
struct work {
	struct lease_grant lease;
	int64_t renew_at; /* CLOCK_BOOTTIME */
	bool paused;
	int64_t primes; /* what the node at hand has found so far */
};

/* What keep_lease returns, beside 0 and enum lease_refusal. */
#define STOP_REQUESTED (-1)

static volatile sig_atomic_t stop_requested;

static void request_stop(int signal_number)
{
	(void)signal_number;
	stop_requested = 1;
}

/* One line, in one write, so that the lines of several workers in one file stay whole. */
__attribute__((format(printf, 2, 3))) static void say(const struct worker *worker,
						      const char *format, ...)
{
	char line[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	printf("%s %s\n", worker->options->name, line);
	fflush(stdout);
}

/* A signal ends the wait early; the loops look at stop_requested first thing. */
static void wait_for(int64_t duration)
{
	struct timespec pause = { .tv_sec = duration / LEASE_SECOND,
				  .tv_nsec = duration % LEASE_SECOND * 1000 };

	if (duration > 0 && !stop_requested)
		nanosleep(&pause, NULL);
}

/* -- the connection --------------------------------------------------------------------------- */

/* What the server says beside its answers; libpq would print it as it is. */
static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

static bool connect_database(struct worker *worker)
{
	/* What comes last counts: these two are defaults, the conninfo may say otherwise. */
	const char *const names[] = { "connect_timeout", "fallback_application_name", "dbname",
				      NULL };
	const char *const values[] = { "5", worker->options->name, worker->options->conninfo,
				       NULL };

	PQfinish(worker->conn);
	worker->conn = PQconnectdbParams(names, values, 1);
	PQsetNoticeReceiver(worker->conn, ignore_notice, NULL);
	return PQstatus(worker->conn) == CONNECTION_OK;
}

/*
 * After an error: tells it, and makes a new connection where that is needed. False: asking again
 * would bring the same error, a person must change something.
 */
static bool recover(struct worker *worker, const char *verb, const struct lease_error *error)
{
	enum lease_advice advice = lease_error_advice(error);
	char trouble[sizeof(worker->trouble)];

	/* Told once, not at every try of a long outage. */
	snprintf(trouble, sizeof(trouble), "%s failed: %s%s%s%s", verb, error->message,
		 *error->sqlstate ? " [" : "", error->sqlstate, *error->sqlstate ? "]" : "");
	if (strcmp(trouble, worker->trouble) != 0)
		say(worker, "%s", trouble);
	snprintf(worker->trouble, sizeof(worker->trouble), "%s", trouble);
	if (advice == LEASE_ADVICE_RECONNECT)
		connect_database(worker); /* where this fails, the next verb fails and tells why */
	return advice == LEASE_ADVICE_RETRY || advice == LEASE_ADVICE_RECONNECT;
}

static void recovered(struct worker *worker)
{
	if (*worker->trouble)
		say(worker, "has the database back");
	*worker->trouble = '\0';
}

/* -- the lease -------------------------------------------------------------------------------- */

/* A third of the ttl: two renewals may get lost before the lease is in danger. */
static int64_t renewal_period(const struct options *options)
{
	return options->ttl / 3;
}

/* 0, LEASE_NOT_FOUND when nothing is due, or an error. */
static int claim_next(struct worker *worker, struct work *ret, struct lease_error *reterr)
{
	char owner[LEASE_ID_MAX + 1];
	struct lease_claim claim = {
		.tenant_id = worker->options->tenant,
		.owner = owner,
		.ttl = worker->options->ttl,
		.take_over = worker->options->take_over,
	};
	int64_t asked_at = lease_clock_boottime();
	/*
	 * A new owner for each claim, repeated ones included. If the answer to a claim gets lost,
	 * the run may be leased to an owner that nobody knows: that lease runs out untouched, and
	 * the reconciler sees to the run.
	 */
	int r = lease_owner_generate(worker->options->name, owner, reterr);

	*ret = (struct work){ 0 };
	if (r == 0)
		r = lease_claim_next(worker->conn, &claim, &ret->lease, reterr);
	if (r >= 0)
		recovered(worker);
	/* Counted from before the request: how long the answer took is part of the lease. */
	ret->renew_at = asked_at + renewal_period(worker->options);
	return r;
}

static int renew(struct worker *worker, struct work *work, struct lease_error *reterr)
{
	int64_t period = renewal_period(worker->options);
	int64_t asked_at = lease_clock_boottime();
	/* No longer than a period: a request that hangs must leave time for another. */
	int r = lease_renew_lease(worker->conn, &work->lease.token, worker->options->ttl, period,
				  &work->lease, reterr);

	if (r >= 0)
		recovered(worker);
	work->renew_at = asked_at + period;
	return r;
}

/*
 * Called before every step. 0: the lease holds, the step may begin. A refusal: the run is no longer
 * this worker's. STOP_REQUESTED: a signal came. It comes back late when the database cannot be
 * reached: until local_end the work goes on and renewing is tried between steps, past it the work
 * rests right here.
 */
static int keep_lease(struct worker *worker, struct work *work)
{
	const char *run_id = work->lease.token.run_id;
	struct lease_error error;

	while (!stop_requested) {
		int64_t now = lease_clock_boottime();
		bool is_over = now >= work->lease.local_end;
		int r;

		if (is_over && !work->paused)
			say(worker, "pauses on %s: its lease may be over, asking", run_id);
		if (!is_over && work->paused)
			say(worker, "goes on with %s: its lease was renewed", run_id);
		work->paused = is_over;
		if (!is_over && now < work->renew_at)
			return 0;

		r = renew(worker, work, &error);
		if (r > 0) {
			say(worker, "lost its lease on %s (%s): stopped", run_id,
			    lease_refusal_name(r));
			return r;
		}
		/*
		 * An error is no refusal: the lease is what it was. The work goes on while it
		 * lasts, and the next renewal is tried soon rather than a period later.
		 */
		if (r < 0) {
			recover(worker, "renewing", &error);
			work->renew_at = lease_clock_boottime() + RETRY_WAIT;
		}
		/* Granted and yet over: no lease reaches past the run's deadline. */
		if (lease_clock_boottime() >= work->lease.local_end)
			wait_for(RETRY_WAIT);
	}
	return STOP_REQUESTED;
}

/* -- the work itself ---------------------------------------------------------------------------- */

#define NUMBERS_PER_STEP 1000

static bool is_prime(uint32_t number)
{
	if (number % 2 == 0)
		return number == 2;
	for (uint32_t divisor = 3; (uint64_t)divisor * divisor <= number; divisor += 2)
		if (number % divisor == 0)
			return false;
	return number > 1;
}

/* Where a run's numbers begin: a function of its id alone, so that every attempt finds the same. */
static uint32_t first_number(const char *run_id)
{
	uint32_t hash = 2166136261u; /* FNV-1a */

	for (; *run_id; run_id++)
		hash = (hash ^ (unsigned char)*run_id) * 16777619u;
	return 1000000000u + hash % 1000000000u;
}

/* Counts the primes among the step's numbers, and rests until the step's time is over. */
static void do_step(const struct worker *worker, struct work *work, int64_t step)
{
	int64_t end = lease_clock_boottime() + worker->options->step_time;
	uint32_t first = first_number(work->lease.token.run_id) + (uint32_t)step * NUMBERS_PER_STEP;

	for (uint32_t i = 0; i < NUMBERS_PER_STEP; i++)
		work->primes += is_prime(first + i);
	wait_for(end - lease_clock_boottime());
}

/* -- the end of a run --------------------------------------------------------------------------- */

/*
 * Ends the run. After an error the commit may have taken place or not (`outcome_unknown`):
 * asking again with the same arguments is safe, and tells.
 */
static int finish(struct worker *worker, const struct work *work, enum lease_run_status status)
{
	struct lease_finish finish = { .token = &work->lease.token, .status = status };
	struct lease_change change;
	struct lease_error error;
	int r = lease_set_terminal_status(worker->conn, &finish, &change, &error);

	while (r < 0 && recover(worker, "ending the run", &error) && !stop_requested) {
		wait_for(RETRY_WAIT);
		r = lease_set_terminal_status(worker->conn, &finish, &change, &error);
	}
	if (r == 0)
		say(worker, "%s %s", lease_run_status_name(change.status),
		    work->lease.token.run_id);
	else if (r > 0)
		say(worker, "could not end %s as %s: %s", work->lease.token.run_id,
		    lease_run_status_name(status), lease_refusal_name(r));
	return r;
}

/* Gives the run back, so that another worker can have it at once and not only after the ttl. */
static void release(struct worker *worker, const struct work *work)
{
	struct lease_release release = {
		.token = work->lease.token,
		.error_code = "worker_stopped",
		.timeout = 2 * LEASE_SECOND, /* whoever sent SIGTERM does not wait for ever */
	};
	struct lease_change change;
	struct lease_error error;
	int r = lease_release_lease_for_retry(worker->conn, &release, &change, &error);

	if (r == LEASE_CANCEL_REQUESTED)
		finish(worker, work, LEASE_RUN_CANCELLED);
	else if (r == 0)
		say(worker, "released %s for a retry", release.token.run_id);
	else
		say(worker, "could not release %s (%s): its lease will run out",
		    release.token.run_id, r < 0 ? error.message : lease_refusal_name(r));
}

/* Steps of a run that are on record one by one. A retry begins where the last attempt got to. */
static const char *const nodes[] = { "fetch", "compute", "publish" };
#define NODES ((int64_t)(sizeof(nodes) / sizeof(nodes[0])))

/*
 * The identity of what a node does outside: the same in every attempt, so that the other side can
 * tell a retry from a second order.
 */
static void operation_of(const char *run_id, const char *node, char ret[LEASE_ID_MAX + 1])
{
	snprintf(ret, LEASE_ID_MAX + 1, "%.200s/%s", run_id, node);
}

/* 0: execute it; LEASE_TERMINAL: its result is there already; another refusal, STOP_REQUESTED. */
static int start_node(struct worker *worker, const struct work *work, const char *node,
		      struct lease_node_execution *ret)
{
	const struct lease_token *token = &work->lease.token;
	char operation_id[LEASE_ID_MAX + 1];
	struct lease_node_start start = { .token = *token,
					  .node_id = node,
					  .operation_id = operation_id };
	struct lease_operation known;
	struct lease_error error;
	int r;

	operation_of(token->run_id, node, operation_id);
	do {
		r = lease_operation_lookup(worker->conn, operation_id, &known, &error);
		/*
		 * Here a worker with real side effects asks the other side, under the same
		 * operation_id, whether they took place. Counting primes can simply be done again.
		 */
		if (r == 0 && known.state == LEASE_OPERATION_UNKNOWN)
			say(worker, "finds %s tried before, end unknown: does it again",
			    operation_id);
		if (r == 0)
			r = lease_node_start(worker->conn, &start, ret, &error);
		if (r >= 0)
			break;
		if (!recover(worker, "starting a node", &error))
			return LEASE_ILLEGAL;
		wait_for(RETRY_WAIT);
	} while (!stop_requested);
	if (r == LEASE_HELD) /* an earlier try, whose answer was lost, took effect */
		return 0;
	if (r == LEASE_TERMINAL && ret->succeeded)
		return LEASE_TERMINAL;
	return r < 0 ? STOP_REQUESTED : r == LEASE_TERMINAL ? LEASE_EXPIRED : r;
}

static int finish_node(struct worker *worker, const struct work *work, const char *node,
		       int32_t execution_no)
{
	struct lease_node_finish finish = {
		.token = work->lease.token,
		.node_id = node,
		.execution_no = execution_no,
		.status = LEASE_EXECUTION_SUCCEEDED,
	};
	struct lease_change change;
	struct lease_error error;
	int r = lease_node_finish(worker->conn, &finish, &change, &error);

	while (r < 0 && recover(worker, "finishing a node", &error) && !stop_requested) {
		wait_for(RETRY_WAIT);
		r = lease_node_finish(worker->conn, &finish, &change, &error);
	}
	return r < 0 ? STOP_REQUESTED : r;
}

/* 0: it is done. A refusal: the run is no longer this worker's, or is to be cancelled. */
static int do_node(struct worker *worker, struct work *work, int64_t index)
{
	const char *run_id = work->lease.token.run_id;
	int64_t steps = worker->options->steps;
	int64_t first = steps * index / NODES, end = steps * (index + 1) / NODES;
	struct lease_node_execution execution;
	int r = start_node(worker, work, nodes[index], &execution);

	if (r == LEASE_TERMINAL) {
		say(worker, "skips %s of %s: it succeeded in an earlier attempt", nodes[index],
		    run_id);
		return 0;
	}
	work->primes = 0;
	for (int64_t step = first; r == 0 && step < end; step++) {
		r = keep_lease(worker, work);
		if (r == 0 && work->lease.cancel_requested)
			r = LEASE_CANCEL_REQUESTED;
		if (r == 0)
			do_step(worker, work, step);
	}
	if (r == 0)
		r = finish_node(worker, work, nodes[index], execution.execution_no);
	if (r == 0)
		say(worker, "works on %s: %s done, %" PRId64 " primes", run_id, nodes[index],
		    work->primes);
	return r;
}

static void work_on(struct worker *worker, struct work *work)
{
	int r = 0;

	say(worker, "claimed %s attempt %" PRId32, work->lease.token.run_id,
	    work->lease.token.attempt_no);
	for (int64_t index = 0; r == 0 && index < NODES; index++)
		r = do_node(worker, work, index);
	if (r == STOP_REQUESTED)
		release(worker, work);
	else if (r == LEASE_CANCEL_REQUESTED)
		finish(worker, work, LEASE_RUN_CANCELLED);
	else if (r == 0 && finish(worker, work, LEASE_RUN_COMPLETED) == LEASE_CANCEL_REQUESTED)
		finish(worker, work, LEASE_RUN_CANCELLED); /* it came after the last renewal */
	/* otherwise another's by now: not a word more to the database, no clean-up outside */
}

/* -- the loop ----------------------------------------------------------------------------------- */

static bool is_empty(struct worker *worker)
{
	struct lease_status status;

	return lease_read_status(worker->conn, &status, NULL) == 0 &&
	       status.runs_pending + status.runs_running + status.runs_waiting == 0;
}

static int work_until_stopped(struct worker *worker)
{
	struct lease_error error;
	struct work work;

	while (!stop_requested) {
		int r = claim_next(worker, &work, &error);

		if (r == 0)
			work_on(worker, &work);
		else if (r < 0 && !recover(worker, "claiming", &error))
			return EX_UNAVAILABLE;
		else if (r > 0 && worker->options->until_empty && is_empty(worker))
			break;
		else
			wait_for(r > 0 ? IDLE_WAIT : RETRY_WAIT);
	}
	say(worker, stop_requested ? "ends: it was told to" : "ends: no run is left");
	return EX_OK;
}

static int run(const struct options *options)
{
	struct worker worker = { .options = options };
	struct lease_error error;
	int r = EX_UNAVAILABLE;

	/* Where it cannot connect at the start, the check tells why. */
	connect_database(&worker);
	if (lease_check_database(worker.conn, 0, &error) == 0)
		r = work_until_stopped(&worker);
	else
		say(&worker, "cannot work on this database: %s", error.message);
	PQfinish(worker.conn);
	return r;
}

/* -- options ------------------------------------------------------------------------------------ */

static const char usage[] =
	"usage: worker [OPTION …]\n"
	"Claims runs, works on them (counts primes), renews its leases, ends the runs.\n"
	"\n"
	"  --conninfo STRING    libpq connection string or URI (default: PGHOST, PGDATABASE …)\n"
	"  --name NAME          stable name of this worker (default: worker)\n"
	"  --tenant ID          only runs of this tenant (default: any)\n"
	"  --ttl DURATION       how long a lease lasts, renewed at a third of it (default: 30s)\n"
	"  --steps NUMBER       steps of a run (default: 100)\n"
	"  --step-time DURATION how long a step takes at least (default: 40ms)\n"
	"  --take-over          claim running runs that have no open attempt, too (policy record)\n"
	"  --until-empty        end when no run is left, instead of waiting for more\n"
	"  --help\n"
	"\n"
	"A DURATION is a number and a unit: us, ms, s, m, h (1.5s, 250ms).\n"
	"SIGTERM and SIGINT release the run in work for a retry and end the program.\n";

__attribute__((format(printf, 1, 2), noreturn)) static void fail_usage(const char *format, ...)
{
	va_list arguments;

	fputs("worker: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputs("; see worker --help\n", stderr);
	exit(EX_USAGE);
}

static int64_t parse_duration(const char *option, const char *text)
{
	static const struct {
		const char *unit;
		double microseconds;
	} units[] = { { "us", 1 }, { "ms", 1e3 }, { "s", 1e6 }, { "m", 60e6 }, { "h", 3600e6 } };
	char *unit;
	double value = strtod(text, &unit);

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		double microseconds = value * units[i].microseconds;

		if (unit != text && strcmp(unit, units[i].unit) == 0 && microseconds >= 0 &&
		    microseconds <= (double)LEASE_DURATION_MAX)
			return (int64_t)microseconds;
	}
	fail_usage("%s: '%s' is no duration such as 250ms or 1.5s", option, text);
}

static int64_t parse_number(const char *option, const char *text)
{
	char *end;
	long long value;

	errno = 0;
	value = strtoll(text, &end, 10);
	if (errno || end == text || *end || value < 1 || value > 1000000)
		fail_usage("%s: '%s' is no number from 1 to 1000000", option, text);
	return value;
}

static void parse_options(int argc, char *argv[], struct options *ret)
{
	static const struct option known[] = {
		{ "conninfo", required_argument, NULL, 'c' },
		{ "name", required_argument, NULL, 'n' },
		{ "tenant", required_argument, NULL, 'T' },
		{ "ttl", required_argument, NULL, 't' },
		{ "steps", required_argument, NULL, 's' },
		{ "step-time", required_argument, NULL, 'd' },
		{ "take-over", no_argument, NULL, 'o' },
		{ "until-empty", no_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 'c':
			ret->conninfo = optarg;
			break;
		case 'n':
			ret->name = optarg;
			break;
		case 'T':
			ret->tenant = optarg;
			break;
		case 't':
			ret->ttl = parse_duration("--ttl", optarg);
			break;
		case 's':
			ret->steps = parse_number("--steps", optarg);
			break;
		case 'd':
			ret->step_time = parse_duration("--step-time", optarg);
			break;
		case 'o':
			ret->take_over = true;
			break;
		case 'e':
			ret->until_empty = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(EX_OK);
		default:
			exit(EX_USAGE); /* getopt_long has told */
		}
	}
	if (optind < argc)
		fail_usage("'%s' is no option", argv[optind]);
}

int main(int argc, char *argv[])
{
	struct options options = {
		.conninfo = "",
		.name = "worker",
		.ttl = 30 * LEASE_SECOND,
		.steps = 100,
		.step_time = 40 * LEASE_MILLISECOND,
	};
	/* No SA_RESTART: a signal ends the wait between steps. */
	struct sigaction action = { .sa_handler = request_stop };
	char owner[LEASE_ID_MAX + 1];
	struct lease_error error;

	parse_options(argc, argv, &options);
	if (lease_ttl_check(options.ttl, renewal_period(&options), &error) < 0)
		fail_usage("--ttl: %s", error.message);
	if (lease_owner_generate(options.name, owner, &error) < 0)
		fail_usage("--name: %s", error.message);
	/* The lease is looked at between steps: one step must fit well into it. */
	if (options.step_time > renewal_period(&options))
		fail_usage("--step-time: a step must not take longer than a third of the ttl");
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
	return run(&options);
}
