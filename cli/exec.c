/*
 * leasectl exec and work - commands under leases; what they do is worker.c's.
 *
 * Here are their options, and what is refused before anything is claimed.
 */
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "failure.h"
#include "lease.h"
#include "worker.h"

#define TTL_DEFAULT (30 * LEASE_SECOND)
#define TTL_MIN (100 * LEASE_MILLISECOND)
#define GRACE_DEFAULT (10 * LEASE_SECOND)
#define RETRY_DELAY_DEFAULT LEASE_SECOND
#define RETRY_MAX_DEFAULT (300 * LEASE_SECOND)
#define IDLE_DEFAULT (5 * LEASE_SECOND)
#define IDENTITY_MAX 200

/* What both take, first in both tables. */
enum {
	LEASE_TTL,
	LEASE_RENEW_EVERY,
	LEASE_OWNER,
	LEASE_GRACE,
	LEASE_RETRY_DELAY,
	LEASE_RETRY_MAX,
	N_LEASE_OPTIONS
};

/* clang-format off */
#define LEASE_OPTIONS                                                                              \
	[LEASE_TTL] = { "ttl", 0, OPTION_DURATION, "DURATION",                                     \
			"how long a lease lasts without a renewal (30s)" },                        \
	[LEASE_RENEW_EVERY] = { "renew-every", 0, OPTION_DURATION, "DURATION",                     \
				"renew so often; at most a third of --ttl, which is the default" },\
	[LEASE_OWNER] = { "owner", 0, OPTION_TEXT, "NAME",                                         \
			  "this worker's name, the stable part of the owner; without it the\n"     \
			  "host's name" },                                                         \
	[LEASE_GRACE] = { "grace", 0, OPTION_DURATION, "DURATION",                                 \
			  "from SIGTERM to SIGKILL when a command has to end (10s)" },             \
	[LEASE_RETRY_DELAY] = { "retry-delay", 0, OPTION_DURATION, "DURATION",                     \
				"after exit code 75 the run is not due for so long, doubled with\n"\
				"each 75 in a row (1s)" },                                         \
	[LEASE_RETRY_MAX] = { "retry-max", 0, OPTION_DURATION, "DURATION",                         \
			      "and at most for so long (5m)" }
/* clang-format on */

static int64_t duration_of(const struct option_value *value, int64_t otherwise)
{
	return value->given ? value->number : otherwise;
}

/* The lease's times make sense together, or a line says why not. */
static int check_times(const struct worker_options *options)
{
	struct lease_error error;

	if (options->ttl < TTL_MIN)
		return fail(EX_USAGE, "--ttl: a lease must last for 100ms at least");
	if (lease_ttl_check(options->ttl, options->period, &error) < 0)
		return fail(EX_USAGE, "--renew-every: %s", error.message);
	if (options->retry_max < options->retry_delay)
		return fail(EX_USAGE, "--retry-max: it must not be shorter than --retry-delay");
	return 0;
}

/* `host` is where the default name may be put. */
static int find_identity(const struct option_value *value, char host[IDENTITY_MAX + 1],
			 const char **ret)
{
	if (value->given) {
		size_t length = strlen(value->text);

		if (length < 1 || length > IDENTITY_MAX)
			return fail(EX_USAGE, "--owner: a name has 1 to %d bytes, this one %zu",
				    IDENTITY_MAX, length);
		*ret = value->text;
		return 0;
	}
	if (gethostname(host, IDENTITY_MAX) < 0 || !host[0])
		return fail(EX_OSERR, "the host has no name: give one with --owner");
	*ret = host;
	return 0;
}

static int read_options(const struct context *context, char host[IDENTITY_MAX + 1],
			struct worker_options *ret)
{
	const struct option_value *values = context->values;
	int r;

	*ret = (struct worker_options){
		.argv = context->words,
		.ttl = duration_of(&values[LEASE_TTL], TTL_DEFAULT),
		.grace = duration_of(&values[LEASE_GRACE], GRACE_DEFAULT),
		.retry_delay = duration_of(&values[LEASE_RETRY_DELAY], RETRY_DELAY_DEFAULT),
	};
	ret->period = duration_of(&values[LEASE_RENEW_EVERY], ret->ttl / 3);
	ret->retry_max = duration_of(&values[LEASE_RETRY_MAX], ret->retry_delay > RETRY_MAX_DEFAULT
								       ? ret->retry_delay
								       : RETRY_MAX_DEFAULT);
	r = check_times(ret);
	return r ? r : find_identity(&values[LEASE_OWNER], host, &ret->identity);
}

/* -- exec --------------------------------------------------------------------------------------- */

enum { EXEC_RUN = N_LEASE_OPTIONS };

static const struct option exec_options[] = {
	LEASE_OPTIONS,
	[EXEC_RUN] = { "run", 0, OPTION_TEXT, "ID", "the run to claim" },
};

static int run_exec(struct context *context)
{
	char host[IDENTITY_MAX + 1] = "";
	struct worker_options options;
	int r;

	if (!context->values[EXEC_RUN].given)
		return fail(EX_USAGE, "exec: which run? Give --run ID ('leasectl work' takes "
				      "whichever is due)");
	r = read_options(context, host, &options);
	return r ? r : worker_exec(context, &options, context->values[EXEC_RUN].text);
}

const struct command command_exec = {
	.name = "exec",
	.summary = "run a command under the lease of a run",
	.words = "-- COMMAND [ARGUMENT]...",
	.min_words = 1,
	.max_words = INT32_MAX,
	.description =
		"Claims the run, runs the command, renews the lease while it lives, and ends the run\n"
		"by how the command ended: 0 completed; 75 released, for another attempt later; any\n"
		"other code or a signal failed. The command finds LEASE_RUN_ID, LEASE_ATTEMPT_NO and\n"
		"LEASE_OWNER in its environment. It never works without a lease: when that is over\n"
		"before a renewal was granted, the command and all that it started are stopped; a\n"
		"granted renewal continues them, a refused one ends them. A cancel request ends them\n"
		"as well. Signals are handed on to the command.\n\n"
		"The exit code is the command's, or 128 and the signal that ended it; 76 when the\n"
		"lease was lost; 126 and 127 when the command cannot be executed.",
	.options = exec_options,
	.n_options = sizeof(exec_options) / sizeof(exec_options[0]),
	.run = run_exec,
};

/* -- work --------------------------------------------------------------------------------------- */

enum { WORK_TENANT = N_LEASE_OPTIONS, WORK_JOBS, WORK_PENDING_ONLY, WORK_UNTIL_IDLE, WORK_IDLE };

static const struct option work_options[] = {
	LEASE_OPTIONS,
	[WORK_TENANT] = { "tenant", 0, OPTION_TEXT, "TENANT", "only runs of this tenant" },
	[WORK_JOBS] = { "jobs", 'j', OPTION_NUMBER, "N", "so many runs at a time (1)" },
	[WORK_PENDING_ONLY] = { "pending-only", 0, OPTION_FLAG, NULL,
				"do not look for running runs whose worker was lost" },
	[WORK_UNTIL_IDLE] = { "until-idle", 0, OPTION_FLAG, NULL, "end when no run is due" },
	[WORK_IDLE] = { "idle", 0, OPTION_DURATION, "DURATION",
			"longest pause between two looks when no run is due (5s)" },
};

static int run_work(struct context *context)
{
	const struct option_value *values = context->values;
	char host[IDENTITY_MAX + 1] = "";
	struct worker_options options;
	int r = read_options(context, host, &options);

	if (r)
		return r;
	if (values[WORK_JOBS].given && values[WORK_JOBS].number > WORKER_JOBS_MAX)
		return fail(EX_USAGE, "--jobs: at most %d at a time", WORKER_JOBS_MAX);
	if (values[WORK_IDLE].given && values[WORK_IDLE].number < LEASE_MILLISECOND)
		return fail(EX_USAGE, "--idle: a pause has 1ms at least");
	options.tenant = values[WORK_TENANT].text;
	options.jobs = values[WORK_JOBS].given ? (int)values[WORK_JOBS].number : 1;
	options.pending_only = values[WORK_PENDING_ONLY].given;
	options.until_idle = values[WORK_UNTIL_IDLE].given;
	options.idle = duration_of(&values[WORK_IDLE], IDLE_DEFAULT);
	return worker_work(context, &options);
}

const struct command command_work = {
	.name = "work",
	.summary = "run a command for each run that is due, again and again",
	.words = "-- COMMAND [ARGUMENT]...",
	.min_words = 1,
	.max_words = INT32_MAX,
	.description =
		"Claims the oldest run that is due, or a running one whose worker was lost, and runs\n"
		"the command for it as 'leasectl exec' does, with standard input empty; then the next.\n"
		"All leases are renewed in one statement. SIGTERM or SIGINT: no further run is\n"
		"claimed, those at work go on to their end; a second one ends the commands, and runs\n"
		"whose command did not complete are released for others.",
	.options = work_options,
	.n_options = sizeof(work_options) / sizeof(work_options[0]),
	.run = run_work,
};
