/*
 * Random sequences of commands on a real database, against lease_decide.
 *
 * A reference in memory (tests/support/reference.h) goes from state to state by what lease_decide
 * says. After each command the verb's result, what it handed back, and all rows of all runs must
 * be what the reference says; a run that the reference did not write must not have been touched.
 * A sequence that fails is shrunk: steps are taken out and numbers made smaller as long as it goes
 * on failing. What is left is printed, with its seed, as text that the test reads again:
 *
 *	make property ROUNDS=500 SEED=7
 *	make property REPLAY=FILE         the printed steps, one a line
 *
 * Here one connection does one thing after the other. What happens between two connections is the
 * model's matter (docs/model.md), test_races.c's and the fault campaign's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"
#include "scenario.h"

enum {
	ROUNDS = 40, /* in `make check` */
	STEPS = 60, /* of a sequence */
	OWNERS = 40,
	CHECKPOINTS = 40,
	SHRINKING_RUNS = 600, /* at most so many */
};

/* -- steps ------------------------------------------------------------------------------------- */

/*
 * What a step may say, in numbers. A step names an attempt, an execution or a version as seen from
 * where the run stands then, so that steps before it can be taken out without changing its meaning.
 */
enum field {
	RUN,
	OWNER,
	BACK, /* the token's attempt: 0 the newest, 1 the one before; before the first: none */
	STRANGER, /* the token's owner is not that attempt's */
	TTL, /* hours */
	DELAY, /* 0, or an hour */
	DEADLINE, /* the same */
	VERSION, /* the expected one: 0 any, 1 the run's, 2 another */
	STATUS, /* enum lease_run_status */
	POLICY,
	LIMIT, /* max_lease_losses */
	NODE,
	EXECUTION, /* of the node: as BACK */
	OPERATION, /* from 1; 0: none */
	FAILS,
	OUTPUT,
	CHECKPOINT,
	TAKE_OVER,
	OVER,
	N_FIELDS,
};

static const char *const field_names[] = {
	[RUN] = "run",
	[OWNER] = "owner",
	[BACK] = "back",
	[STRANGER] = "stranger",
	[TTL] = "ttl",
	[DELAY] = "delay",
	[DEADLINE] = "deadline",
	[VERSION] = "version",
	[STATUS] = "status",
	[POLICY] = "policy",
	[LIMIT] = "limit",
	[NODE] = "node",
	[EXECUTION] = "execution",
	[OPERATION] = "operation",
	[FAILS] = "fails",
	[OUTPUT] = "output",
	[CHECKPOINT] = "checkpoint",
	[TAKE_OVER] = "take_over",
	[OVER] = "over",
};

static const int field_least[N_FIELDS] = { [TTL] = 1, [STATUS] = LEASE_RUN_COMPLETED };

enum step_kind {
	SUBMIT,
	CLAIM,
	CLAIM_NEXT,
	RENEW,
	RENEW_ALL, /* the open attempts of all runs, in one statement */
	RELEASE,
	SUSPEND,
	RESUME,
	FINISH,
	GIVE_UP,
	CANCEL,
	RECONCILE,
	START_NODE,
	FINISH_NODE,
	RECORD_CHECKPOINT,
	CHANGE_PLAN,
	/* not commands: what time does, and a writer without manners */
	LEASE_ENDS,
	BECOMES_DUE,
	DEADLINE_PASSES,
	LEFT_OPEN,
	N_STEP_KINDS,
};

#define F(field) (1u << (field))
#define TOKEN (F(RUN) | F(BACK) | F(STRANGER))

static const struct {
	const char *name;
	unsigned fields;
	int weight; /* how often it comes, of all weights together */
	int command; /* enum lease_command_kind, -1: none */
} kinds[] = {
	[SUBMIT] = { "submit", F(RUN) | F(DELAY) | F(DEADLINE), 5, -1 },
	[CLAIM] = { "claim", F(RUN) | F(OWNER) | F(TTL), 10, COMMAND_MARK_RUNNING },
	[CLAIM_NEXT] = { "claim_next", F(OWNER) | F(TTL) | F(TAKE_OVER), 6, -1 },
	[RENEW] = { "renew", TOKEN | F(TTL), 6, COMMAND_RENEW },
	[RENEW_ALL] = { "renew_all", F(TTL), 2, -1 },
	[RELEASE] = { "release", TOKEN | F(DELAY), 6, COMMAND_RELEASE },
	[SUSPEND] = { "suspend", TOKEN, 6, COMMAND_SUSPEND },
	[RESUME] = { "resume", F(RUN) | F(VERSION), 6, COMMAND_RESUME },
	[FINISH] = { "finish", TOKEN | F(STATUS), 6, COMMAND_FINISH },
	[GIVE_UP] = { "give_up", F(RUN) | F(VERSION), 3, COMMAND_GIVE_UP },
	[CANCEL] = { "cancel", F(RUN) | F(VERSION), 3, COMMAND_REQUEST_CANCEL },
	[RECONCILE] = { "reconcile", F(POLICY) | F(LIMIT), 9, COMMAND_RECONCILE },
	[START_NODE] = { "start_node", TOKEN | F(NODE) | F(OPERATION), 12, COMMAND_START_NODE },
	[FINISH_NODE] = { "finish_node", TOKEN | F(NODE) | F(EXECUTION) | F(FAILS) | F(OUTPUT), 10,
			  COMMAND_FINISH_NODE },
	[RECORD_CHECKPOINT] = { "checkpoint", TOKEN | F(CHECKPOINT) | F(VERSION), 5,
				COMMAND_RECORD_CHECKPOINT },
	[CHANGE_PLAN] = { "change_plan", TOKEN | F(VERSION), 5, COMMAND_CHANGE_PLAN },
	[LEASE_ENDS] = { "lease_ends", F(RUN), 10, -1 },
	[BECOMES_DUE] = { "becomes_due", F(RUN), 3, -1 },
	[DEADLINE_PASSES] = { "deadline_passes", F(RUN), 3, -1 },
	[LEFT_OPEN] = { "left_open", F(RUN) | F(OWNER) | F(OVER), 2, -1 },
};

struct step {
	enum step_kind kind;
	int field[N_FIELDS];
};

struct sequence {
	struct step steps[REFERENCE_STEPS];
	int n;
};

static void print_step(FILE *file, const struct step *step)
{
	fputs(kinds[step->kind].name, file);
	for (int i = 0; i < N_FIELDS; i++) {
		if (!(kinds[step->kind].fields & F(i)))
			continue;
		fprintf(file, " %s=", field_names[i]);
		if (i == STATUS)
			fputs(lease_run_status_name((enum lease_run_status)step->field[i]), file);
		else if (i == POLICY)
			fputs(lease_policy_name((enum lease_policy)step->field[i]), file);
		else
			fprintf(file, "%d", step->field[i]);
	}
	fputc('\n', file);
}

static int read_value(int field, const char *text)
{
	return field == STATUS   ? lease_run_status_parse(text)
	       : field == POLICY ? lease_policy_parse(text)
				 : atoi(text);
}

static bool is_within(const struct step *step)
{
	static const int most[N_FIELDS] = {
		[RUN] = REFERENCE_RUNS - 1,
		[OWNER] = OWNERS,
		[TTL] = 9,
		[STATUS] = LEASE_RUN_INTERRUPTED,
		[NODE] = REFERENCE_NODES - 1,
		[OPERATION] = REFERENCE_OPERATIONS,
		[CHECKPOINT] = CHECKPOINTS,
	};

	for (int i = 0; i < N_FIELDS; i++)
		if ((kinds[step->kind].fields & F(i)) &&
		    (step->field[i] < field_least[i] || (most[i] && step->field[i] > most[i])))
			return false;
	return true;
}

/* A line as print_step makes it. False: it is none. */
static bool read_step(char *line, struct step *ret)
{
	char *save, *word = strtok_r(line, " \t\n", &save);
	int kind = 0;

	*ret = (struct step){ 0 };
	while (word && kind < N_STEP_KINDS && strcmp(kinds[kind].name, word) != 0)
		kind++;
	if (!word || kind == N_STEP_KINDS)
		return false;
	ret->kind = (enum step_kind)kind;
	while ((word = strtok_r(NULL, " \t\n", &save))) {
		char *value = strchr(word, '=');
		int field = 0;

		if (!value)
			return false;
		*value++ = '\0';
		while (field < N_FIELDS && strcmp(field_names[field], word) != 0)
			field++;
		if (field == N_FIELDS)
			return false;
		ret->field[field] = read_value(field, value);
	}
	return is_within(ret);
}

/* -- what is compared -------------------------------------------------------------------------- */

struct property {
	struct scenario *scenario;
	struct reference reference;
	char digests[REFERENCE_RUNS][40]; /* as of the newest look; "": no such run */
	bool left_open; /* then a run need not be explained by its attempts */
	bool mistaken; /* the reference is wrong on purpose: see the last test */
	char difference[8192]; /* "": none yet */
};

static void differs(struct property *p, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Keeps the first difference. */
static void differs(struct property *p, const char *format, ...)
{
	va_list arguments;

	if (p->difference[0])
		return;
	va_start(arguments, format);
	vsnprintf(p->difference, sizeof(p->difference), format, arguments);
	va_end(arguments);
}

static void expect_number(struct property *p, const char *what, long long expected,
			  long long actual)
{
	if (expected != actual)
		differs(p, "%s is %lld instead of %lld", what, actual, expected);
}

static void expect_status(struct property *p, enum lease_run_status expected,
			  enum lease_run_status actual)
{
	if (expected != actual)
		differs(p, "the status handed back is %s instead of %s",
			lease_run_status_name(actual), lease_run_status_name(expected));
}

static const char *result_name(int result)
{
	return result < 0 ? lease_errno_name(result) : lease_refusal_name(result);
}

static void expect_result(struct property *p, int expected, int actual)
{
	if (expected == actual)
		return;
	differs(p, "the result is %s instead of %s%s%s", result_name(actual), result_name(expected),
		actual < 0 ? ": " : "", actual < 0 ? last_error.message : "");
}

static int expected_result(const struct lease_decision *decision)
{
	return decision->verdict == VERDICT_REFUSE ? (int)decision->refusal : 0;
}

/* One run: its text, and whether it was written to. */
static void compare_run(struct property *p, const char *run_id, const char *actual,
			const char *digest)
{
	struct reference_run *run = reference_run_of(&p->reference, run_id);
	char *known = p->digests[run - p->reference.runs];
	char *expected;

	if (!run->found) {
		differs(p, "there is a run %s: %s", run_id, actual);
		return;
	}
	expected = reference_text(run);
	if (strcmp(expected, actual) != 0)
		differs(p, "%s is\n%s\ninstead of\n%s", run_id, actual, expected);
	else if (!run->written && strcmp(known, digest) != 0)
		differs(p, "%s was written to: %s", run_id, actual);
	free(expected);
	snprintf(known, sizeof(p->digests[0]), "%s", digest);
}

static void compare_all(struct property *p)
{
	PGresult *result = PQexec(p->scenario->admin, REFERENCE_SQL);
	int found = 0;

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail_msg("%s", PQresultErrorMessage(result));
	for (int row = 0; row < PQntuples(result); row++)
		compare_run(p, PQgetvalue(result, row, 0), PQgetvalue(result, row, 1),
			    PQgetvalue(result, row, 2));
	for (int i = 0; i < REFERENCE_RUNS; i++)
		found += p->reference.runs[i].found;
	if (found != PQntuples(result))
		differs(p, "there are %d runs instead of %d", PQntuples(result), found);
	PQclear(result);
}

/* -- commands ---------------------------------------------------------------------------------- */

static const char *step_run(const struct step *step)
{
	return reference_name("r", step->field[RUN]);
}

/* Number `back` before the newest of n; one that is not there where there are not so many. */
static int number_back(int n, int back)
{
	return back < n ? n - back : n + 1;
}

static int64_t version_of(const struct reference_run *run, const struct step *step)
{
	bool any = !(kinds[step->kind].fields & F(BACK)); /* an owner has to name one */
	int64_t other = run->state_version > 1 ? run->state_version - 1 : run->state_version + 1;

	if (!(kinds[step->kind].fields & F(VERSION)) || (any && step->field[VERSION] == 0))
		return 0;
	return step->field[VERSION] == 2 || !run->found ? other : run->state_version;
}

static const char *owner_of(const struct reference_run *run, const struct step *step)
{
	int number = number_back(run->n, step->field[BACK]);

	if (!(kinds[step->kind].fields & F(BACK)))
		return kinds[step->kind].fields & F(OWNER) ? reference_name("w", step->field[OWNER])
							   : NULL;
	return step->field[STRANGER] || number > run->n ? "stranger"
							: run->attempts[number - 1].owner;
}

static struct lease_command command_of(const struct property *p, const struct step *step)
{
	const struct reference_run *run = &p->reference.runs[step->field[RUN]];
	const int *field = step->field;
	unsigned has = kinds[step->kind].fields;
	bool fails = step->kind == FINISH_NODE && field[FAILS];

	return (struct lease_command){
		.kind = (enum lease_command_kind)kinds[step->kind].command,
		.run_id = step_run(step),
		.attempt_no = has & F(BACK) ? number_back(run->n, field[BACK]) : 0,
		.owner = owner_of(run, step),
		.ttl = field[TTL] * LONG,
		.delay = field[DELAY] * LONG,
		.to = step->kind == FINISH    ? (enum lease_run_status)field[STATUS]
		      : step->kind == GIVE_UP ? LEASE_RUN_FAILED
					      : LEASE_RUN_PENDING,
		.error_code = fails || (step->kind == FINISH && field[STATUS] == LEASE_RUN_FAILED)
				      ? "broken"
				      : NULL,
		.expected_version = version_of(run, step),
		.policy = (enum lease_policy)field[POLICY],
		.max_losses = field[LIMIT],
		.node_id = has & F(NODE) ? reference_name("n", field[NODE]) : NULL,
		.execution_no = has & F(EXECUTION)
					? number_back(run->nodes[field[NODE]].n, field[EXECUTION])
					: 0,
		.execution_status = fails ? LEASE_EXECUTION_FAILED : LEASE_EXECUTION_SUCCEEDED,
		.operation_id = field[OPERATION] ? reference_name("op", field[OPERATION] - 1)
						 : NULL,
		.content_ref = has & F(OUTPUT) && field[OUTPUT] ? "mem:output" : NULL,
		.checkpoint_id = has & F(CHECKPOINT) ? reference_name("cp", field[CHECKPOINT])
						     : NULL,
	};
}

static struct lease_decision decide(struct property *p, const struct lease_command *command)
{
	struct lease_facts facts = reference_facts(&p->reference, command);
	struct lease_command asked = *command;
	struct lease_decision decision;

	if (p->mistaken && command->kind == COMMAND_RELEASE)
		asked.kind = COMMAND_SUSPEND;
	lease_decide(&facts, &asked, &decision);
	return decision;
}

/*
 * A granted lease never ends earlier than before, never past the deadline, and otherwise ttl after
 * the grant. A minute is more than lies between two readings of the clock in one statement; all
 * times here are hours apart.
 */
static void check_grant(struct property *p, const struct reference_run *run, int64_t ttl,
			int64_t before, const struct lease_grant *grant)
{
	const int64_t minute = 60 * LEASE_SECOND;
	int64_t end = grant->now + ttl;

	if (run->deadline_at != LEASE_TIME_NONE && end > run->deadline_at)
		end = run->deadline_at;
	if (end < before)
		end = before;
	if (grant->lease_expires_at < end - minute || grant->lease_expires_at > end + minute ||
	    grant->lease_expires_at < before)
		differs(p, "the lease ends at %lld instead of %lld",
			(long long)grant->lease_expires_at, (long long)end);
	expect_number(p, "the grant's deadline", run->deadline_at, grant->deadline_at);
}

/* A claim or a renewal that lease_decide grants; and then the reference grants it as well. */
static void take_grant(struct property *p, const struct lease_command *command,
		       const struct lease_decision *decision, const struct lease_grant *grant)
{
	struct reference_run *run = reference_run_of(&p->reference, command->run_id);
	bool refreshed = decision->step == ATTEMPT_REFRESH;
	struct reference_attempt *open;

	check_grant(p, run, command->ttl, refreshed ? reference_open(run)->lease_expires_at : 0,
		    grant);
	reference_apply(&p->reference, command, decision, grant->lease_expires_at);
	open = reference_open(run);
	expect_number(p, "the grant's attempt", open - run->attempts + 1, grant->token.attempt_no);
	expect_number(p, "the grant's cancel request", open->cancel, grant->cancel_requested);
	if (strcmp(grant->token.owner, open->owner) != 0)
		differs(p, "the grant is for owner %s", grant->token.owner);
	if (command->kind == COMMAND_RENEW)
		return;
	expect_number(p, "the grant's new_attempt", !refreshed, grant->new_attempt);
	expect_number(p, "the grant's state_version", run->state_version, grant->state_version);
}

static void check_change(struct property *p, const struct lease_command *command,
			 const struct lease_decision *decision, const struct lease_change *change)
{
	const struct reference_run *run = reference_run_of(&p->reference, command->run_id);

	expect_number(p, "changed", decision->verdict == VERDICT_APPLY, change->changed);
	expect_status(p, run->status, change->status);
	expect_number(p, "the state_version handed back", run->state_version,
		      change->state_version);
}

static void check_execution(struct property *p, const struct lease_command *command, int result,
			    const struct lease_node_execution *execution)
{
	const struct reference_run *run = reference_run_of(&p->reference, command->run_id);
	const struct reference_node
		*node = &run->nodes[strcmp(command->node_id, reference_name("n", 0)) == 0 ? 0 : 1];
	const struct reference_execution *last = node->n ? &node->executions[node->n - 1] : NULL;
	bool succeeded = result == LEASE_TERMINAL && last &&
			 last->status == LEASE_EXECUTION_SUCCEEDED;

	if (result != 0 && result != LEASE_HELD && result != LEASE_TERMINAL)
		return;
	expect_number(p, "the execution", node->n, execution->execution_no);
	expect_number(p, "succeeded", succeeded, execution->succeeded);
	if (strcmp(execution->output_ref, succeeded && last->output_ref ? last->output_ref : "") !=
	    0)
		differs(p, "the node's output is \"%s\"", execution->output_ref);
	if (result == 0)
		expect_number(p, "the node's state_version", node->state_version,
			      execution->state_version);
}

/* A checkpoint_id belongs to one checkpoint for ever: the database itself refuses a second. */
static bool is_taken(const struct property *p, const struct step *step,
		     const struct lease_decision *decision)
{
	return decision->verdict == VERDICT_APPLY && decision->step == CHECKPOINT_RECORD &&
	       p->reference.checkpoints[step->field[CHECKPOINT]];
}

static void do_command(struct property *p, const struct step *step)
{
	struct lease_command command = command_of(p, step);
	struct lease_decision decision = decide(p, &command);
	int expected = is_taken(p, step, &decision) ? LEASE_E_SERVER : expected_result(&decision);
	struct performed performed;
	int r = perform(p->scenario->worker, &command, &performed);

	expect_result(p, expected, r);
	if (p->difference[0] || r < 0)
		return;
	if (r == 0 && (step->kind == CLAIM || step->kind == RENEW)) {
		take_grant(p, &command, &decision, &performed.grant);
		return;
	}
	reference_apply(&p->reference, &command, &decision, 0);
	if (step->kind == START_NODE)
		check_execution(p, &command, r, &performed.execution);
	else if (r == 0)
		check_change(p, &command, &decision, &performed.change);
}

/* A time that the database chose; LEASE_TIME_NONE where it is NULL. */
static int64_t time_of(struct property *p, const char *column, const char *table,
		       const char *run_id)
{
	char *text = sql_text(p->scenario->admin,
			      "select (extract(epoch from %s) * 1000000)::int8 from lease.%s "
			      "where run_id = '%s' order by finished_at desc nulls first limit 1",
			      column, table, run_id);
	int64_t time = text ? strtoll(text, NULL, 10) : LEASE_TIME_NONE;

	free(text);
	return time;
}

static int64_t open_lease_end(struct property *p, const char *run_id)
{
	return time_of(p, "lease_expires_at", "run_attempts", run_id);
}

static void do_submit(struct property *p, const struct step *step)
{
	struct reference_run *run = &p->reference.runs[step->field[RUN]];
	bool added = !run->found;
	/* between one ttl and the next, so that some leases are cut short */
	struct lease_submission submission = { .run_id = step_run(step),
					       .delay = step->field[DELAY] * LONG,
					       .deadline = step->field[DEADLINE] * LONG * 3 / 2 };
	struct lease_change change;

	expect_result(p, 0,
		      lease_submit(p->scenario->worker, &submission, NULL, &change, &last_error));
	if (p->difference[0])
		return;
	if (added)
		reference_submit(&p->reference, step->field[RUN], submission.delay > 0,
				 time_of(p, "deadline_at", "runs", submission.run_id));
	expect_number(p, "changed", added, change.changed);
	expect_status(p, run->status, change.status);
	expect_number(p, "the state_version handed back", run->state_version, change.state_version);
}

static void do_claim_next(struct property *p, const struct step *step)
{
	const char *next = reference_next(&p->reference, step->field[TAKE_OVER]);
	struct lease_command command = { .kind = COMMAND_MARK_RUNNING,
					 .run_id = next,
					 .owner = reference_name("w", step->field[OWNER]),
					 .ttl = step->field[TTL] * LONG };
	struct lease_claim claim = { .owner = command.owner,
				     .ttl = command.ttl,
				     .take_over = step->field[TAKE_OVER] };
	struct lease_decision decision = { .verdict = VERDICT_REFUSE, .refusal = LEASE_NOT_FOUND };
	struct lease_grant grant;
	int r = lease_claim_next(p->scenario->worker, &claim, &grant, &last_error);

	if (next)
		decision = decide(p, &command);
	expect_result(p, expected_result(&decision), r);
	if (p->difference[0] || r != 0)
		return;
	if (!next || strcmp(grant.token.run_id, next) != 0)
		differs(p, "%s was claimed instead of %s", grant.token.run_id,
			next ? next : "none");
	else
		take_grant(p, &command, &decision, &grant);
}

static void do_renew_all(struct property *p, const struct step *step)
{
	struct lease_token tokens[REFERENCE_RUNS];
	struct lease_grant grants[REFERENCE_RUNS];
	int results[REFERENCE_RUNS];

	for (int i = 0; i < REFERENCE_RUNS; i++) {
		struct reference_run *run = &p->reference.runs[i];
		struct reference_attempt *open = reference_open(run);

		tokens[i] = token_of(reference_name("r", i),
				     open ? (int32_t)(open - run->attempts) + 1 : 1,
				     open     ? open->owner
				     : run->n ? run->attempts[0].owner
					      : "nobody");
	}
	expect_result(p, 0,
		      lease_renew_leases(p->scenario->worker, tokens, REFERENCE_RUNS,
					 step->field[TTL] * LONG, 0, grants, results, &last_error));
	for (int i = 0; !p->difference[0] && i < REFERENCE_RUNS; i++) {
		struct lease_command command = { .kind = COMMAND_RENEW,
						 .run_id = reference_name("r", i),
						 .attempt_no = tokens[i].attempt_no,
						 .owner = tokens[i].owner,
						 .ttl = step->field[TTL] * LONG };
		struct lease_decision decision = decide(p, &command);

		expect_result(p, expected_result(&decision), results[i]);
		if (!p->difference[0] && results[i] == 0)
			take_grant(p, &command, &decision, &grants[i]);
	}
}

/* A sweep finds all there is to do: each run goes where lease_decide says. */
static void do_reconcile(struct property *p, const struct step *step)
{
	struct lease_command command = command_of(p, step);
	struct performed performed;
	int64_t moved[LEASE_RUN_INTERRUPTED + 1] = { 0 }, closed = 0;

	expect_result(p, 0, perform(p->scenario->worker, &command, &performed));
	for (int i = 0; i < REFERENCE_RUNS; i++) {
		struct lease_decision decision;

		command.run_id = reference_name("r", i);
		decision = decide(p, &command);
		reference_apply(&p->reference, &command, &decision, 0);
		if (decision.verdict != VERDICT_APPLY)
			continue;
		closed += decision.step == ATTEMPT_CLOSE_LOST;
		moved[decision.to] += decision.move;
	}
	expect_number(p, "the figure of closed attempts", closed, performed.figures.closed);
	for (int i = 0; i <= LEASE_RUN_INTERRUPTED; i++)
		expect_number(p, "a figure of moved runs", moved[i], performed.figures.moved[i]);
}

/* -- time, and others -------------------------------------------------------------------------- */

static void end_open_lease(struct property *p, const struct step *step)
{
	struct reference_attempt *open = reference_open(&p->reference.runs[step->field[RUN]]);

	if (!open)
		return;
	end_lease(p->scenario, step_run(step));
	open->over = true;
	open->lease_expires_at = open_lease_end(p, step_run(step));
}

static bool has_ended(const struct reference_run *run)
{
	return !run->found || lease_run_status_is_terminal(run->status);
}

static void become_due(struct property *p, const struct step *step)
{
	struct reference_run *run = &p->reference.runs[step->field[RUN]];

	if (has_ended(run) || run->not_before != TIME_AHEAD)
		return;
	sql(p->scenario->admin,
	    "update lease.runs set not_before = clock_timestamp() - interval '1 s' "
	    "where run_id = '%s'",
	    step_run(step));
	run->not_before = TIME_PASSED;
}

/* A deadline is fixed once it is set: only who switches the guard off makes it pass before its time. */
static void pass_deadline(struct property *p, const struct step *step)
{
	struct reference_run *run = &p->reference.runs[step->field[RUN]];
	struct reference_attempt *open = reference_open(run);

	if (has_ended(run) || run->deadline != TIME_AHEAD)
		return;
	sql(p->scenario->admin,
	    "begin; alter table lease.runs disable trigger run_guard; "
	    "update lease.runs set deadline_at = clock_timestamp() - interval '1 s' "
	    "where run_id = '%s'; alter table lease.runs enable always trigger run_guard; "
	    "update lease.run_attempts a set deadline_at = r.deadline_at, "
	    "lease_expires_at = least(a.lease_expires_at, r.deadline_at) from lease.runs r "
	    "where r.run_id = '%s' and a.run_id = r.run_id and a.finished_at is null; commit",
	    step_run(step), step_run(step));
	run->deadline = TIME_PASSED;
	run->deadline_at = time_of(p, "deadline_at", "runs", step_run(step));
	if (open && open->lease_expires_at > run->deadline_at)
		open->lease_expires_at = run->deadline_at;
	if (open)
		open->over = true;
}

static void leave_open(struct property *p, const struct step *step)
{
	struct reference_run *run = &p->reference.runs[step->field[RUN]];
	const char *owner = reference_name("w", step->field[OWNER]);
	bool over = step->field[OVER] || run->deadline == TIME_PASSED;

	if (!run->found || reference_open(run))
		return;
	sql(p->scenario->admin,
	    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, "
	    "deadline_at) select run_id, %d, '%s', least(clock_timestamp() + interval '%s', "
	    "deadline_at), deadline_at from lease.runs where run_id = '%s'",
	    run->n + 1, owner, over ? "-1 s" : "1 h", step_run(step));
	reference_leave_open(run, owner, over, open_lease_end(p, step_run(step)));
	p->left_open = true;
}

/* -- a sequence -------------------------------------------------------------------------------- */

static void do_step(struct property *p, const struct step *step)
{
	void (*const others[])(struct property * p, const struct step *step) = {
		[SUBMIT] = do_submit,
		[CLAIM_NEXT] = do_claim_next,
		[RENEW_ALL] = do_renew_all,
		[RECONCILE] = do_reconcile,
		[LEASE_ENDS] = end_open_lease,
		[BECOMES_DUE] = become_due,
		[DEADLINE_PASSES] = pass_deadline,
		[LEFT_OPEN] = leave_open,
	};

	reference_begin(&p->reference);
	if (step->kind >= LEASE_ENDS)
		p->reference.runs[step->field[RUN]].written = true;
	(others[step->kind] ? others[step->kind] : do_command)(p, step);
	if (!p->difference[0])
		compare_all(p);
}

static void begin(struct property *p)
{
	static const struct lease_content content = {
		.content_ref = "mem:output",
		.hash = "sha256:0000000000000000000000000000000000000000000000000000000000000000",
		.media_type = "text/plain",
		.size_bytes = 1,
		.schema_version = 1,
	};

	if (PQtransactionStatus(p->scenario->worker) != PQTRANS_IDLE)
		PQreset(p->scenario->worker);
	scenario_empty(p->scenario);
	memset(&p->reference, 0, sizeof(p->reference));
	memset(p->digests, 0, sizeof(p->digests));
	p->left_open = false;
	p->difference[0] = '\0';
	assert_granted(lease_content_register(p->scenario->worker, &content, NULL, &last_error));
}

/* Every status follows from what happened, unless somebody left an attempt where none belongs. */
static void check_explained(struct property *p)
{
	if (p->difference[0] || p->left_open)
		return;
	expect_number(p, "the number of unexplained runs and nodes", 0,
		      sql_number(p->scenario->admin,
				 "select (select count(*) from lease.unexplained_runs) + "
				 "(select count(*) from lease.unexplained_nodes)"));
}

/* True when it fails; then only the steps up to the one that fails are left. */
static bool fails(struct property *p, struct sequence *sequence)
{
	begin(p);
	for (int i = 0; i < sequence->n; i++) {
		do_step(p, &sequence->steps[i]);
		if (p->difference[0])
			sequence->n = i + 1;
	}
	check_explained(p);
	return p->difference[0] != '\0';
}

/* -- random steps ------------------------------------------------------------------------------ */

static enum step_kind random_kind(unsigned *seed)
{
	int sum = 0, left;

	for (int i = 0; i < N_STEP_KINDS; i++)
		sum += kinds[i].weight;
	left = (int)random_below(seed, (unsigned)sum);
	for (int i = 0; i < N_STEP_KINDS; i++) {
		left -= kinds[i].weight;
		if (left < 0)
			return (enum step_kind)i;
	}
	return SUBMIT;
}

/* A small number, and mostly `usual`. */
static int mostly(unsigned *seed, int usual, unsigned below)
{
	return random_below(seed, 6) > 0 ? usual : (int)random_below(seed, below);
}

/* An owner that has an attempt already, now and then. */
static int random_owner(const struct reference_run *run, unsigned *seed)
{
	if (run->n > 0 && random_below(seed, 5) == 0)
		return atoi(run->attempts[run->n - 1].owner + 1);
	return (int)random_below(seed, OWNERS);
}

static int random_checkpoint(unsigned *seed, int *newest)
{
	if (*newest < CHECKPOINTS && random_below(seed, 6) > 0)
		++*newest;
	return *newest;
}

static struct step any_step(const struct property *p, unsigned *seed)
{
	int number = (int)random_below(seed, REFERENCE_RUNS);
	const struct reference_run *run = &p->reference.runs[number];
	struct step step = { .kind = random_kind(seed),
			     .field = {
				     [RUN] = number,
				     [OWNER] = random_owner(run, seed),
				     [BACK] = mostly(seed, 0, 4),
				     [STRANGER] = mostly(seed, 0, 2),
				     [TTL] = 1 + (int)random_below(seed, 2),
				     [DELAY] = mostly(seed, 0, 2),
				     [DEADLINE] = (int)random_below(seed, 2),
				     [VERSION] = mostly(seed, 1, 3),
				     [STATUS] = LEASE_RUN_COMPLETED + (int)random_below(seed, 4),
				     [POLICY] = (int)random_below(seed, 3),
				     [LIMIT] = (int)random_below(seed, 4),
				     [NODE] = (int)random_below(seed, REFERENCE_NODES),
				     [EXECUTION] = mostly(seed, 0, 3),
				     [OPERATION] = (int)random_below(seed,
								     REFERENCE_OPERATIONS + 1),
				     [FAILS] = (int)random_below(seed, 2),
				     [OUTPUT] = (int)random_below(seed, 2),
				     [TAKE_OVER] = (int)random_below(seed, 2),
				     [OVER] = (int)random_below(seed, 2),
			     } };

	if (!run->found && random_below(seed, 4) > 0)
		step.kind = SUBMIT;
	return step;
}

/* What a sequence has had of each kind and of each row of the table. */
struct seen {
	int kinds[N_STEP_KINDS];
	int rules[256];
	int checkpoints;
};

/* How little a step would add: more of the same, a refusal, an end after which there is nothing. */
static int dullness(struct property *p, const struct seen *seen, const struct step *step)
{
	struct reference_attempt *open = reference_open(&p->reference.runs[step->field[RUN]]);
	struct lease_decision decision;
	struct lease_command command;

	if (step->kind == LEASE_ENDS && (!open || open->over))
		return 100;
	if (step->kind == RECONCILE)
		return seen->kinds[RECONCILE] + 4 * (step->field[POLICY] == LEASE_POLICY_FAIL);
	if (kinds[step->kind].command < 0)
		return seen->kinds[step->kind];
	command = command_of(p, step);
	decision = decide(p, &command);
	return 2 * seen->rules[decision.rule] + (decision.verdict == VERDICT_REFUSE) +
	       4 * (decision.move && lease_run_status_is_terminal(decision.to));
}

/* The least dull of a few. */
static struct step random_step(struct property *p, unsigned *seed, struct seen *seen)
{
	struct step best = any_step(p, seed);
	int least = dullness(p, seen, &best);

	for (int i = 0; i < 5; i++) {
		struct step step = any_step(p, seed);
		int dull = dullness(p, seen, &step);

		if (dull < least) {
			best = step;
			least = dull;
		}
	}
	seen->kinds[best.kind]++;
	if (kinds[best.kind].command >= 0 && best.kind != RECONCILE) {
		struct lease_command command = command_of(p, &best);

		seen->rules[decide(p, &command).rule]++;
	}
	if (best.kind == RECORD_CHECKPOINT)
		best.field[CHECKPOINT] = random_checkpoint(seed, &seen->checkpoints);
	return best;
}

/* Seeds next to each other begin sequences that have nothing in common (the end of MurmurHash3). */
static unsigned scramble(unsigned seed)
{
	seed = (seed ^ seed >> 16) * 0x85ebca6bu;
	seed = (seed ^ seed >> 13) * 0xc2b2ae35u;
	return seed ^ seed >> 16;
}

/* Makes a sequence and does it, for the next step depends on where the runs stand. */
static bool find_failure(struct property *p, unsigned seed, struct sequence *ret)
{
	struct seen seen = { 0 };

	seed = scramble(seed);
	begin(p);
	for (ret->n = 0; ret->n < STEPS && !p->difference[0]; ret->n++) {
		ret->steps[ret->n] = random_step(p, &seed, &seen);
		do_step(p, &ret->steps[ret->n]);
	}
	check_explained(p);
	return p->difference[0] != '\0';
}

/* -- shrinking --------------------------------------------------------------------------------- */

/* Keeps the candidate when it fails as well. */
static bool keep_if_fails(struct property *p, const struct sequence *candidate,
			  struct sequence *sequence, int *runs_left)
{
	struct sequence tried = *candidate;

	if (--*runs_left < 0 || !fails(p, &tried))
		return false;
	*sequence = tried;
	return true;
}

static bool take_out_steps(struct property *p, struct sequence *sequence, int *runs_left)
{
	bool smaller = false;

	for (int length = sequence->n / 2 + 1; length >= 1; length /= 2)
		for (int at = sequence->n - length; at >= 0;) {
			struct sequence candidate = *sequence;

			memmove(&candidate.steps[at], &candidate.steps[at + length],
				(size_t)(candidate.n - at - length) * sizeof(candidate.steps[0]));
			candidate.n -= length;
			smaller |= keep_if_fails(p, &candidate, sequence, runs_left);
			at -= length;
			at = at > sequence->n - length ? sequence->n - length : at;
		}
	return smaller;
}

static bool make_numbers_smaller(struct property *p, struct sequence *sequence, int *runs_left)
{
	bool smaller = false;

	for (int i = 0; i < sequence->n; i++)
		for (int k = 0; k < N_FIELDS && i < sequence->n; k++) {
			struct sequence candidate = *sequence;

			if (!(kinds[candidate.steps[i].kind].fields & F(k)) ||
			    candidate.steps[i].field[k] <= field_least[k])
				continue;
			candidate.steps[i].field[k] = field_least[k];
			smaller |= keep_if_fails(p, &candidate, sequence, runs_left);
		}
	return smaller;
}

static bool is_named(const struct sequence *sequence, enum field field, int number)
{
	for (int i = 0; i < sequence->n; i++)
		if ((kinds[sequence->steps[i].kind].fields & F(field)) &&
		    sequence->steps[i].field[field] == number)
			return true;
	return false;
}

/* Gives a run, an owner, a node or a checkpoint the first number that is free, in all steps. */
static bool rename_all(struct property *p, struct sequence *sequence, enum field field,
		       int *runs_left)
{
	bool smaller = false;
	int unused = 0;

	for (int number = 0; number <= REFERENCE_STEPS; number++) {
		struct sequence candidate = *sequence;

		if (!is_named(sequence, field, number))
			continue;
		while (unused < number && is_named(sequence, field, unused))
			unused++;
		if (unused == number)
			continue;
		for (int i = 0; i < candidate.n; i++)
			if (candidate.steps[i].field[field] == number)
				candidate.steps[i].field[field] = unused;
		smaller |= keep_if_fails(p, &candidate, sequence, runs_left);
	}
	return smaller;
}

static bool make_names_smaller(struct property *p, struct sequence *sequence, int *runs_left)
{
	static const enum field names[] = { RUN, OWNER, NODE, CHECKPOINT };
	bool smaller = false;

	for (size_t i = 0; i < LENGTH(names); i++)
		smaller |= rename_all(p, sequence, names[i], runs_left);
	return smaller;
}

static void shrink(struct property *p, struct sequence *sequence)
{
	int runs_left = SHRINKING_RUNS;

	while (take_out_steps(p, sequence, &runs_left) ||
	       make_names_smaller(p, sequence, &runs_left) ||
	       make_numbers_smaller(p, sequence, &runs_left)) {
	}
	fails(p, sequence); /* the difference that is left is this one's */
}

static char *sequence_text(const struct sequence *sequence)
{
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	for (int i = 0; i < sequence->n; i++)
		print_step(file, &sequence->steps[i]);
	fclose(file);
	return text;
}

static void tell(const struct property *p, const struct sequence *sequence)
{
	char *text = sequence_text(sequence);

	print_error("the last of these %d steps goes wrong:\n%s%s\n", sequence->n, text,
		    p->difference);
	free(text);
}

/* -- the tests --------------------------------------------------------------------------------- */

static unsigned first_seed(void)
{
	const char *given = getenv("LEASE_TEST_SEED");

	return given && *given ? (unsigned)strtoul(given, NULL, 10) : 1;
}

static void random_sequences_go_as_lease_decide_says(void **state)
{
	struct property *p = calloc(1, sizeof(*p));
	unsigned seed = first_seed(), end = seed + (unsigned)test_rounds(ROUNDS);
	struct sequence sequence;

	p->scenario = *state;
	for (; seed < end; seed++) {
		if (!find_failure(p, seed, &sequence))
			continue;
		print_error("seed %u: after %d steps: %s\n", seed, sequence.n, p->difference);
		shrink(p, &sequence);
		tell(p, &sequence);
		free(p);
		fail();
	}
	free(p);
}

/* The steps of the file LEASE_TEST_REPLAY, as they were printed. */
static void a_printed_sequence(void **state)
{
	const char *path = getenv("LEASE_TEST_REPLAY");
	struct sequence sequence = { 0 };
	struct property *p;
	char *text, *save, *line;

	text = read_file(path);
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *copy = strdup(line);

		if (sequence.n == REFERENCE_STEPS ||
		    !read_step(copy, &sequence.steps[sequence.n++]))
			fail_msg("%s: \"%s\" is no step", path, line);
		free(copy);
	}
	free(text);
	p = calloc(1, sizeof(*p));
	p->scenario = *state;
	if (fails(p, &sequence)) {
		tell(p, &sequence);
		free(p);
		fail();
	}
	free(p);
}

/* Proves that the test above bites: what is wrong is found, shrunk, and can be read again. */
static void a_wrong_reference_is_found_and_shrunk(void **state)
{
	struct property *p = calloc(1, sizeof(*p));
	struct sequence sequence, again = { 0 };
	char *text, *save, *line;
	unsigned seed = 1;

	p->scenario = *state;
	p->mistaken = true; /* takes a release for a suspend */
	while (!find_failure(p, seed, &sequence))
		assert_in_range(++seed, 1, 20);
	shrink(p, &sequence);
	assert_int_equal(sequence.n, 3);
	assert_int_equal(sequence.steps[0].kind, SUBMIT);
	assert_true(sequence.steps[1].kind == CLAIM || sequence.steps[1].kind == CLAIM_NEXT);
	assert_int_equal(sequence.steps[2].kind, RELEASE);
	text = sequence_text(&sequence);
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		assert_true(read_step(line, &again.steps[again.n++]));
	free(text);
	assert_true(fails(p, &again));
	assert_non_null(strstr(p->difference, "pending instead of waiting"));
	free(p);
}

int main(void)
{
	const char *replay = getenv("LEASE_TEST_REPLAY");
	const struct CMUnitTest printed[] = { store_test(a_printed_sequence) };
	const struct CMUnitTest tests[] = {
		store_test(random_sequences_go_as_lease_decide_says),
		store_test(a_wrong_reference_is_found_and_shrunk),
	};

	if (replay && *replay)
		return cmocka_run_group_tests_name("property", printed, NULL, scenario_end);
	return cmocka_run_group_tests_name("property", tests, NULL, scenario_end);
}
