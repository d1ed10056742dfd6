/*
 * leasectl submit, cancel, resume, release - what applications and operators do with a run.
 *
 * Must never: change a run by other means than liblease's verbs.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "refusal.h"

static void write_change(const struct output *output, const char *run_id,
			 const struct lease_change *change)
{
	struct json json;

	json_init(&json, output->file);
	json_begin_object(&json, NULL);
	json_text(&json, "run_id", run_id);
	json_bool(&json, "changed", change->changed);
	json_text(&json, "status", lease_run_status_name(change->status));
	json_number(&json, "state_version", change->state_version);
	json_end_object(&json);
}

/* -- submit ----------------------------------------------------------------------------------- */

enum { SUBMIT_RUN, SUBMIT_TENANT, SUBMIT_DELAY, SUBMIT_DEADLINE };

static const struct option submit_options[] = {
	[SUBMIT_RUN] = { "run", 0, OPTION_TEXT, "ID", "the run's ID; without it one is made" },
	[SUBMIT_TENANT] = { "tenant", 0, OPTION_TEXT, "TENANT",
			    "whose run it is; without it 'default'" },
	[SUBMIT_DELAY] = { "delay", 0, OPTION_DURATION, "DURATION",
			   "nobody claims the run before (250ms, 30s, 5m, 2h, 7d)" },
	[SUBMIT_DEADLINE] = { "deadline", 0, OPTION_DURATION, "DURATION",
			      "the run fails if it has not ended by then; fixed from now on" },
};

/* The ID alone, for $(leasectl submit); people on a terminal see it as well. */
static void print_submitted(const struct output *output, const char *run_id,
			    const struct lease_change *change)
{
	char *escaped;

	if (output->json) {
		write_change(output, run_id, change);
		return;
	}
	escaped = output->terminal ? text_escape(run_id, output->utf8) : xstrdup(run_id);
	fprintf(output->file, "%s\n", escaped);
	free(escaped);
	if (!change->changed)
		note("run %s was there already (%s): left as it is", run_id,
		     lease_run_status_name(change->status));
}

static int fail_to_submit(const struct lease_submission *submission, struct lease_error *error)
{
	/* without an ID of its own, the same command again would add a second run */
	if (error->outcome_unknown && !submission->run_id)
		return fail(exit_code_for(error),
			    "cannot submit: %s; a run may have been added or not: "
			    "give --run an ID, then trying again does no harm",
			    error->message);
	return fail_with_error("cannot submit", error);
}

static int run_submit(struct context *context)
{
	const struct option_value *values = context->values;
	struct lease_submission submission = {
		.run_id = values[SUBMIT_RUN].text,
		.tenant_id = values[SUBMIT_TENANT].text,
		.delay = values[SUBMIT_DELAY].number,
		.deadline = values[SUBMIT_DEADLINE].number,
	};
	char run_id[LEASE_ID_MAX + 1];
	struct lease_change change;
	struct lease_error error;
	PGconn *conn;
	int r;

	if (values[SUBMIT_DEADLINE].given && submission.deadline == 0)
		return fail(EX_USAGE,
			    "--deadline: a run that must have ended at once cannot run: leave "
			    "the option out for no deadline");
	r = connection_open(&context->source, CONNECTION_WRITE, &conn);
	if (r)
		return r;
	r = lease_submit(conn, &submission, run_id, &change, &error);
	if (r < 0)
		r = fail_to_submit(&submission, &error);
	else
		print_submitted(&context->output, run_id, &change);
	PQfinish(conn);
	return r;
}

const struct command command_submit = {
	.name = "submit",
	.summary = "add a pending run",
	.description =
		"Adds a run that workers may claim, and writes its ID. A run of that ID that is\n"
		"there already is left as it is, so submitting again under one ID is safe.",
	.options = submit_options,
	.n_options = sizeof(submit_options) / sizeof(submit_options[0]),
	.run = run_submit,
};

/* -- cancel, resume --------------------------------------------------------------------------- */

enum { CHANGE_EXPECT };

static const struct option change_options[] = {
	[CHANGE_EXPECT] = { "expect", 0, OPTION_NUMBER, "VERSION",
			    "only if the run is still at this version ('leasectl history')" },
};

typedef int change_verb(PGconn *conn, const char *run_id, int64_t expected_version, int64_t timeout,
			struct lease_change *ret, struct lease_error *reterr);

static void print_change(const struct output *output, const char *run_id, const char *text,
			 const struct lease_change *change)
{
	char *escaped;

	if (output->json) {
		write_change(output, run_id, change);
		return;
	}
	escaped = text_escape(run_id, output->utf8);
	fprintf(output->file, "run %s: %s (version %" PRId64 ")\n", escaped, text,
		change->state_version);
	free(escaped);
}

/* Runs a verb on the run that the command names. */
static int change_run(struct context *context, change_verb *verb, const char *what,
		      const char *(*describe)(const struct lease_change *))
{
	const char *run_id = context->words[0];
	struct lease_change change;
	struct lease_error error;
	PGconn *conn;
	int r = connection_open(&context->source, CONNECTION_WRITE, &conn);

	if (r)
		return r;
	r = verb(conn, run_id, context->values[CHANGE_EXPECT].number, 0, &change, &error);
	if (r < 0)
		r = fail_with_error(what, &error);
	else if (r > 0)
		r = refuse(&context->output, run_id, r);
	else
		print_change(&context->output, run_id, describe(&change), &change);
	PQfinish(conn);
	return r;
}

static const char *describe_cancel(const struct lease_change *change)
{
	if (change->status == LEASE_RUN_CANCELLED)
		return change->changed ? "cancelled" : "was cancelled already";
	return change->changed ? "cancel requested: its worker learns of it at the next renewal"
			       : "a cancel was requested already";
}

static int run_cancel(struct context *context)
{
	return change_run(context, lease_request_cancel, "cannot cancel", describe_cancel);
}

const struct command command_cancel = {
	.name = "cancel",
	.summary = "cancel a run, or ask its worker to",
	.words = "RUN",
	.min_words = 1,
	.max_words = 1,
	.description =
		"A run that nobody works on is cancelled at once. A running one is marked: its\n"
		"worker learns of it at the next renewal, and if that worker is lost the\n"
		"reconciler cancels.",
	.options = change_options,
	.n_options = sizeof(change_options) / sizeof(change_options[0]),
	.run = run_cancel,
};

static const char *describe_resume(const struct lease_change *change)
{
	return change->changed ? "resumed, pending" : "was pending already";
}

static int run_resume(struct context *context)
{
	return change_run(context, lease_resume, "cannot resume", describe_resume);
}

const struct command command_resume = {
	.name = "resume",
	.summary = "let a waiting run go on",
	.words = "RUN",
	.min_words = 1,
	.max_words = 1,
	.description = "A waiting run becomes pending, so that a worker claims it.",
	.options = change_options,
	.n_options = sizeof(change_options) / sizeof(change_options[0]),
	.run = run_resume,
};

/* -- release ---------------------------------------------------------------------------------- */

enum { RELEASE_ATTEMPT, RELEASE_OWNER, RELEASE_DELAY, RELEASE_ERROR, RELEASE_MESSAGE };

static const struct option release_options[] = {
	[RELEASE_ATTEMPT] = { "attempt", 0, OPTION_NUMBER, "N",
			      "the attempt's number; without it LEASE_ATTEMPT_NO" },
	[RELEASE_OWNER] = { "owner", 0, OPTION_TEXT, "OWNER",
			    "its whole owner ('leasectl history --json'); without it LEASE_OWNER" },
	[RELEASE_DELAY] = { "delay", 0, OPTION_DURATION, "DURATION",
			    "nobody claims the run before" },
	[RELEASE_ERROR] = { "error", 0, OPTION_TEXT, "CODE", "why: the attempt's error code" },
	[RELEASE_MESSAGE] = { "message", 0, OPTION_TEXT, "TEXT", "the same in words" },
};

/* The attempt's number out of the environment; 0: there is none. */
static int64_t attempt_no_of_environment(void)
{
	const char *text = getenv("LEASE_ATTEMPT_NO");
	char *end;
	long long number = text ? strtoll(text, &end, 10) : 0;

	return text && *text && !*end && number > 0 ? number : 0;
}

/* The fencing token, of the options or of the environment that exec and work make. */
static int find_token(const struct context *context, struct lease_token *ret)
{
	const struct option_value *values = context->values;
	const char *environment_run = getenv("LEASE_RUN_ID");
	const char *run_id = context->n_words > 0 ? context->words[0] : environment_run;
	const char *owner = values[RELEASE_OWNER].text;
	int64_t attempt_no = values[RELEASE_ATTEMPT].number;

	if (!run_id)
		return fail(EX_USAGE, "release: RUN is missing, and LEASE_RUN_ID is not set");
	/* another run's token would be no good */
	if (environment_run && strcmp(run_id, environment_run) == 0) {
		owner = owner ? owner : getenv("LEASE_OWNER");
		attempt_no = attempt_no ? attempt_no : attempt_no_of_environment();
	}
	if (!owner || !attempt_no)
		return fail(EX_USAGE, "release: whose lease? Give --attempt and --owner "
				      "('leasectl history --json' shows them)");
	if (attempt_no > INT32_MAX)
		return fail(EX_USAGE, "--attempt: %" PRId64 " is no attempt's number", attempt_no);
	if (strlen(run_id) > LEASE_ID_MAX || strlen(owner) > LEASE_ID_MAX)
		return fail(EX_USAGE, "release: run and owner have at most %d bytes", LEASE_ID_MAX);
	*ret = (struct lease_token){ .attempt_no = (int32_t)attempt_no };
	snprintf(ret->run_id, sizeof(ret->run_id), "%s", run_id);
	snprintf(ret->owner, sizeof(ret->owner), "%s", owner);
	return 0;
}

static int run_release(struct context *context)
{
	const struct option_value *values = context->values;
	struct lease_release release = { .delay = values[RELEASE_DELAY].number,
					 .error_code = values[RELEASE_ERROR].text,
					 .error_message = values[RELEASE_MESSAGE].text };
	struct lease_change change;
	struct lease_error error;
	PGconn *conn;
	int r = find_token(context, &release.token);

	if (r == 0)
		r = connection_open(&context->source, CONNECTION_WRITE, &conn);
	if (r)
		return r;
	r = lease_release_lease_for_retry(conn, &release, &change, &error);
	if (r < 0)
		r = fail_with_error("cannot release", &error);
	else if (r > 0)
		r = refuse(&context->output, release.token.run_id, r);
	else
		print_change(&context->output, release.token.run_id,
			     change.changed ? "released for retry, pending"
					    : "had been released already",
			     &change);
	PQfinish(conn);
	return r;
}

const struct command command_release = {
	.name = "release",
	.summary = "give a run back for another attempt",
	.words = "[RUN]",
	.max_words = 1,
	.description =
		"Closes an open attempt as retry_released; the run is pending again. Only under the\n"
		"attempt's own lease, while that holds: the fencing token says whose it is. Within a\n"
		"command of 'leasectl exec' or 'work' run, attempt and owner are known from the\n"
		"environment; there, ending with exit code 75 does the same.",
	.options = release_options,
	.n_options = sizeof(release_options) / sizeof(release_options[0]),
	.run = run_release,
};
