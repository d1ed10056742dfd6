/*
 * machine.c - the transition table and the function that reads it.
 *
 * The rows of a command are tried from top to bottom, the first whose status and guard fit
 * decides: earlier rows are the exceptions, the last one is the rule. A status word is written
 * here and nowhere else in C. Pure: see machine.h.
 */
#include "machine.h"

#include <string.h>

const char LEASE_ERROR_WORKER_LOST[] = "worker_lease_expired";
const char LEASE_ERROR_DEADLINE[] = "deadline_exceeded";
const char LEASE_ERROR_LOSSES[] = "lease_losses_exhausted";
const char LEASE_ERROR_SUSPENDED[] = "suspended";

static const char *const status_names[] = {
	[LEASE_RUN_PENDING] = "pending",         [LEASE_RUN_RUNNING] = "running",
	[LEASE_RUN_WAITING] = "waiting",         [LEASE_RUN_COMPLETED] = "completed",
	[LEASE_RUN_FAILED] = "failed",           [LEASE_RUN_CANCELLED] = "cancelled",
	[LEASE_RUN_INTERRUPTED] = "interrupted",
};

static const char *const outcome_names[] = {
	[LEASE_OUTCOME_NONE] = "open",
	[LEASE_OUTCOME_COMPLETED] = "completed",
	[LEASE_OUTCOME_FAILED] = "failed",
	[LEASE_OUTCOME_CANCELLED] = "cancelled",
	[LEASE_OUTCOME_INTERRUPTED] = "interrupted",
	[LEASE_OUTCOME_RETRY_RELEASED] = "retry_released",
	[LEASE_OUTCOME_LEASE_EXPIRED] = "lease_expired",
};

static const char *const execution_status_names[] = {
	[LEASE_EXECUTION_RUNNING] = "running",
	[LEASE_EXECUTION_SUCCEEDED] = "succeeded",
	[LEASE_EXECUTION_FAILED] = "failed",
	[LEASE_EXECUTION_LEASE_EXPIRED] = "lease_expired",
	[LEASE_EXECUTION_ABANDONED] = "abandoned",
};

static const char *const refusal_names[] = {
	[0] = "granted",
	[LEASE_NOT_FOUND] = "not_found",
	[LEASE_HELD] = "held",
	[LEASE_NOT_OWNER] = "not_owner",
	[LEASE_EXPIRED] = "expired",
	[LEASE_TERMINAL] = "terminal",
	[LEASE_CANCEL_REQUESTED] = "cancel_requested",
	[LEASE_DEADLINE] = "deadline",
	[LEASE_NOT_BEFORE] = "not_before",
	[LEASE_STALE_VERSION] = "stale_version",
	[LEASE_OPERATION_CONFLICT] = "operation_conflict",
	[LEASE_ILLEGAL] = "illegal",
};

static const char *const policy_names[] = {
	[LEASE_POLICY_RECORD] = "record",
	[LEASE_POLICY_FAIL] = "fail",
	[LEASE_POLICY_REQUEUE] = "requeue",
};

static const char *const command_names[] = {
	[COMMAND_MARK_RUNNING] = "mark_running",
	[COMMAND_RENEW] = "renew_lease",
	[COMMAND_RELEASE] = "release_lease_for_retry",
	[COMMAND_SUSPEND] = "suspend",
	[COMMAND_RESUME] = "resume",
	[COMMAND_FINISH] = "set_terminal_status",
	[COMMAND_GIVE_UP] = "set_terminal_status without owner",
	[COMMAND_REQUEST_CANCEL] = "request_cancel",
	[COMMAND_RECONCILE] = "reconcile",
	[COMMAND_START_NODE] = "start_node",
	[COMMAND_FINISH_NODE] = "finish_node",
	[COMMAND_RECORD_CHECKPOINT] = "record_checkpoint",
	[COMMAND_CHANGE_PLAN] = "change_plan",
};

#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const char *name_of(const char *const names[], int n, int value)
{
	return value >= 0 && value < n && names[value] ? names[value] : "?";
}

static int value_of(const char *const names[], int n, const char *name)
{
	for (int i = 0; i < n; i++)
		if (name && names[i] && strcmp(names[i], name) == 0)
			return i;
	return -1;
}

const char *lease_run_status_name(enum lease_run_status status)
{
	return name_of(status_names, LENGTH(status_names), (int)status);
}

const char *lease_outcome_name(enum lease_outcome outcome)
{
	return name_of(outcome_names, LENGTH(outcome_names), (int)outcome);
}

const char *lease_refusal_name(int refusal)
{
	return name_of(refusal_names, LENGTH(refusal_names), refusal);
}

const char *lease_policy_name(enum lease_policy policy)
{
	return name_of(policy_names, LENGTH(policy_names), (int)policy);
}

const char *lease_command_name(enum lease_command_kind kind)
{
	return name_of(command_names, LENGTH(command_names), (int)kind);
}

const char *lease_execution_status_name(enum lease_execution_status status)
{
	return name_of(execution_status_names, LENGTH(execution_status_names), (int)status);
}

int lease_execution_status_parse(const char *name)
{
	return value_of(execution_status_names, LENGTH(execution_status_names), name);
}

enum lease_execution_status lease_execution_status_after(enum lease_outcome outcome)
{
	return outcome == LEASE_OUTCOME_LEASE_EXPIRED ? LEASE_EXECUTION_LEASE_EXPIRED
						      : LEASE_EXECUTION_ABANDONED;
}

bool lease_command_is_about_node(enum lease_command_kind kind)
{
	return kind == COMMAND_START_NODE || kind == COMMAND_FINISH_NODE;
}

int lease_run_status_parse(const char *name)
{
	return value_of(status_names, LENGTH(status_names), name);
}

int lease_outcome_parse(const char *name)
{
	return value_of(outcome_names, LENGTH(outcome_names), name);
}

int lease_policy_parse(const char *name)
{
	return value_of(policy_names, LENGTH(policy_names), name);
}

bool lease_run_status_is_terminal(enum lease_run_status status)
{
	return status >= LEASE_RUN_COMPLETED && status <= LEASE_RUN_INTERRUPTED;
}

/* -- guards ----------------------------------------------------------------------------------- */

static bool is_set(int64_t time)
{
	return time != LEASE_TIME_NONE;
}

static bool is_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

static bool has_open(const struct lease_facts *f)
{
	return f->open.attempt_no > 0;
}

/* Amnesty: nobody could renew. docs/decisions/0004-amnesty.md */
static bool is_pardoned(const struct lease_facts *f)
{
	return f->heartbeat.found && f->open.lease_expires_at > f->heartbeat.protect_from &&
	       !(is_set(f->deadline_at) && f->deadline_at <= f->now) &&
	       (f->heartbeat.amnesty_until > f->now ||
		f->heartbeat.beat_at < f->now - f->heartbeat.after);
}

static bool open_is_over(const struct lease_facts *f)
{
	return has_open(f) && f->open.lease_expires_at <= f->now && !is_pardoned(f);
}

static bool is_cancel_requested(const struct lease_facts *f)
{
	return is_set(f->cancel_requested_at);
}

static bool is_own_named(const struct lease_facts *f, const struct lease_command *c)
{
	return c->attempt_no > 0 && f->named.attempt_no == c->attempt_no &&
	       is_same(f->named.owner, c->owner);
}

/* A terminal status and the outcome of the attempt that leads to it are the same word. */
static enum lease_outcome outcome_of(enum lease_run_status status)
{
	return (enum lease_outcome)lease_outcome_parse(lease_run_status_name(status));
}

/* The named attempt was closed by this very command before. */
static bool is_repeated(const struct lease_facts *f, const struct lease_command *c)
{
	bool suspended = is_same(f->named.error_code, LEASE_ERROR_SUSPENDED);

	if (!is_own_named(f, c))
		return false;
	switch (c->kind) {
	case COMMAND_RELEASE:
		return f->named.outcome == LEASE_OUTCOME_RETRY_RELEASED;
	case COMMAND_SUSPEND:
		return f->named.outcome == LEASE_OUTCOME_INTERRUPTED && suspended;
	case COMMAND_FINISH:
		return f->named.outcome == outcome_of(c->to) && !suspended;
	default:
		return false;
	}
}

static bool is_exhausted(const struct lease_facts *f, const struct lease_command *c)
{
	int32_t losses = f->losses + (open_is_over(f) ? 1 : 0);

	return c->max_losses > 0 && losses >= c->max_losses;
}

/* X(name, text, expression over the facts f and the command c) */
#define GUARDS(X)                                                                                  \
	X(ALWAYS, "", true)                                                                        \
	X(MISSING, "there is no such run", !f->found)                                              \
	X(OWNER_CLOSED, "this owner stands on a closed attempt of the run", f->owner_closed)       \
	X(OWN_VALID, "the open attempt is this owner's and its lease holds",                       \
	  has_open(f) && !open_is_over(f) && is_same(f->open.owner, c->owner))                     \
	X(OWN_OVER, "the open attempt is this owner's and its lease is over",                      \
	  open_is_over(f) && is_same(f->open.owner, c->owner))                                     \
	X(OPEN, "an attempt is open", has_open(f))                                                 \
	X(OPEN_VALID, "an attempt is open and its lease holds", has_open(f) && !open_is_over(f))   \
	X(OPEN_OVER, "an attempt is open and its lease is over", open_is_over(f))                  \
	X(NOT_BEFORE, "not_before is ahead", is_set(f->not_before) && f->not_before > f->now)      \
	X(DEADLINE, "the deadline has passed", is_set(f->deadline_at) && f->deadline_at <= f->now) \
	X(CANCEL, "a cancel is requested", is_cancel_requested(f))                                 \
	X(CANCEL_OPEN, "a cancel is requested and an attempt is open",                             \
	  is_cancel_requested(f) && has_open(f))                                                   \
	X(NOT_OWNER, "the token names no attempt of this owner", !is_own_named(f, c))              \
	X(REPEATED, "this command closed the token's attempt before", is_repeated(f, c))           \
	X(NAMED_CLOSED, "the token's attempt is closed", f->named.outcome != LEASE_OUTCOME_NONE)   \
	X(TO_OPEN_END, "the status asked for is not terminal",                                     \
	  !lease_run_status_is_terminal(c->to))                                                    \
	X(TO_CANCELLED, "cancelled is asked for", c->to == LEASE_RUN_CANCELLED)                    \
	X(TO_CANCELLED_CANCEL, "cancelled is asked for and a cancel is requested",                 \
	  c->to == LEASE_RUN_CANCELLED && is_cancel_requested(f))                                  \
	X(NOT_TO_FAILED, "a status other than failed is asked for", c->to != LEASE_RUN_FAILED)     \
	X(STALE, "state_version is not the expected one",                                          \
	  c->expected_version && c->expected_version != f->state_version)                          \
	X(RECORD_OPEN, "policy record, and an attempt is open",                                    \
	  c->policy == LEASE_POLICY_RECORD && has_open(f))                                         \
	X(RECORD, "policy record", c->policy == LEASE_POLICY_RECORD)                               \
	X(FAIL, "policy fail", c->policy == LEASE_POLICY_FAIL)                                     \
	X(OPERATION_ELSEWHERE, "the operation belongs to another node or run",                     \
	  c->operation_id && f->node.operation_found && !f->node.operation_here)                   \
	X(NODE_RUNNING, "the node has an open execution",                                          \
	  f->node.last_execution_no && f->node.state == LEASE_EXECUTION_RUNNING)                   \
	X(NODE_SUCCEEDED, "the node, and so its operation, has succeeded",                         \
	  f->node.last_execution_no && f->node.state == LEASE_EXECUTION_SUCCEEDED)                 \
	X(NO_EXECUTION, "the node has no such execution", f->node.named_execution_no == 0)         \
	X(EXECUTION_ELSEWHERE, "the execution is another attempt's",                               \
	  f->node.named_run_attempt_no != c->attempt_no)                                           \
	X(EXECUTION_REPEATED, "the execution was closed with this status before",                  \
	  f->node.named_execution_no && f->node.named_run_attempt_no == c->attempt_no &&           \
		  f->node.named_status == c->execution_status)                                     \
	X(EXECUTION_CLOSED, "the execution is closed",                                             \
	  f->node.named_status != LEASE_EXECUTION_RUNNING)                                         \
	X(CHECKPOINT_REPEATED, "it is the run's current checkpoint",                               \
	  is_same(f->checkpoint_id, c->checkpoint_id))                                             \
	X(EXHAUSTED, "policy requeue, and the losses without a break reach max_lease_losses",      \
	  is_exhausted(f, c))

enum guard {
#define GUARD_ENUM(name, text, expression) GUARD_##name,
	GUARDS(GUARD_ENUM)
#undef GUARD_ENUM
};

static bool guard_holds(enum guard guard, const struct lease_facts *f,
			const struct lease_command *c)
{
	switch (guard) {
#define GUARD_CASE(name, text, expression)                                                         \
	case GUARD_##name:                                                                         \
		return (expression);
		GUARDS(GUARD_CASE)
#undef GUARD_CASE
	}
	return false;
}

const char *lease_guard_text(int guard)
{
	static const char *const texts[] = {
#define GUARD_TEXT(name, text, expression) text,
		GUARDS(GUARD_TEXT)
#undef GUARD_TEXT
	};
	return name_of(texts, LENGTH(texts), guard);
}

/* -- the table -------------------------------------------------------------------------------- */

#define P (1u << LEASE_RUN_PENDING)
#define R (1u << LEASE_RUN_RUNNING)
#define W (1u << LEASE_RUN_WAITING)
#define F (1u << LEASE_RUN_FAILED)
#define C (1u << LEASE_RUN_CANCELLED)
#define T                                                                                          \
	(1u << LEASE_RUN_COMPLETED | 1u << LEASE_RUN_FAILED | 1u << LEASE_RUN_CANCELLED |          \
	 1u << LEASE_RUN_INTERRUPTED)
#define ANY (P | R | W | T)

#define REFUSE(command, from, guard, why)                                                          \
	{                                                                                          \
		COMMAND_##command, from, GUARD_##guard, VERDICT_REFUSE, LEASE_##why, ATTEMPT_KEEP, \
			TO_SAME, LEASE_OUTCOME_NONE, NULL                                          \
	}
#define UNCHANGED(command, from, guard)                                                            \
	{                                                                                          \
		COMMAND_##command, from, GUARD_##guard, VERDICT_UNCHANGED, 0, ATTEMPT_KEEP,        \
			TO_SAME, LEASE_OUTCOME_NONE, NULL                                          \
	}
#define APPLY(command, from, guard, step, to, outcome, error)                                      \
	{                                                                                          \
		COMMAND_##command, from, GUARD_##guard, VERDICT_APPLY, 0, ATTEMPT_##step, to,      \
			LEASE_OUTCOME_##outcome, error                                             \
	}

/* Writes facts of a run without moving it. */
#define WRITE(command, from, guard, write)                                                         \
	{                                                                                          \
		COMMAND_##command, from, GUARD_##guard, VERDICT_APPLY, 0, write, TO_SAME,          \
			LEASE_OUTCOME_NONE, NULL                                                   \
	}
/* Whatever an owner does needs a token that is its own, ... */
#define TOKEN_IS_OWN(command)                                                                      \
	REFUSE(command, ANY, MISSING, NOT_FOUND), REFUSE(command, ANY, NOT_OWNER, NOT_OWNER)
/* ... a run that runs, an attempt that is open, and a lease that holds. */
#define LEASE_HOLDS(command)                                                                       \
	REFUSE(command, T, ALWAYS, TERMINAL), REFUSE(command, ANY, NAMED_CLOSED, EXPIRED),         \
		REFUSE(command, ANY, OPEN_OVER, EXPIRED), REFUSE(command, P | W, ALWAYS, ILLEGAL)

const struct lease_rule lease_rules[] = {
	REFUSE(MARK_RUNNING, ANY, MISSING, NOT_FOUND),
	REFUSE(MARK_RUNNING, ANY, OWNER_CLOSED, EXPIRED),
	REFUSE(MARK_RUNNING, T, ALWAYS, TERMINAL),
	REFUSE(MARK_RUNNING, W, ALWAYS, ILLEGAL),
	APPLY(MARK_RUNNING, R, OWN_VALID, REFRESH, TO_SAME, NONE, NULL),
	REFUSE(MARK_RUNNING, P | R, OWN_OVER, EXPIRED),
	REFUSE(MARK_RUNNING, R, OPEN, HELD),
	REFUSE(MARK_RUNNING, P, OPEN_VALID, HELD),
	REFUSE(MARK_RUNNING, P | R, CANCEL, CANCEL_REQUESTED),
	REFUSE(MARK_RUNNING, P | R, DEADLINE, DEADLINE),
	REFUSE(MARK_RUNNING, P, NOT_BEFORE, NOT_BEFORE),
	APPLY(MARK_RUNNING, P, OPEN_OVER, TAKE_OVER, LEASE_RUN_RUNNING, LEASE_EXPIRED, NULL),
	APPLY(MARK_RUNNING, P, ALWAYS, OPEN, LEASE_RUN_RUNNING, NONE, NULL),
	APPLY(MARK_RUNNING, R, ALWAYS, OPEN, TO_SAME, NONE, NULL),

	/* A renewal looks at the attempt alone: lib/sql/renew.sql is this row as one statement. */
	REFUSE(RENEW, ANY, MISSING, NOT_FOUND),
	REFUSE(RENEW, ANY, NOT_OWNER, NOT_OWNER),
	REFUSE(RENEW, T, NAMED_CLOSED, TERMINAL),
	REFUSE(RENEW, ANY, NAMED_CLOSED, EXPIRED),
	REFUSE(RENEW, ANY, OPEN_OVER, EXPIRED),
	APPLY(RENEW, ANY, ALWAYS, REFRESH, TO_SAME, NONE, NULL),

	TOKEN_IS_OWN(RELEASE),
	UNCHANGED(RELEASE, ANY, REPEATED),
	LEASE_HOLDS(RELEASE),
	REFUSE(RELEASE, R, CANCEL, CANCEL_REQUESTED),
	APPLY(RELEASE, R, ALWAYS, CLOSE, LEASE_RUN_PENDING, RETRY_RELEASED, NULL),

	TOKEN_IS_OWN(SUSPEND),
	UNCHANGED(SUSPEND, ANY, REPEATED),
	LEASE_HOLDS(SUSPEND),
	REFUSE(SUSPEND, R, CANCEL, CANCEL_REQUESTED),
	APPLY(SUSPEND, R, ALWAYS, CLOSE, LEASE_RUN_WAITING, INTERRUPTED, NULL),

	REFUSE(RESUME, ANY, MISSING, NOT_FOUND),
	REFUSE(RESUME, T, ALWAYS, TERMINAL),
	REFUSE(RESUME, ANY, STALE, STALE_VERSION),
	UNCHANGED(RESUME, P, ALWAYS),
	REFUSE(RESUME, R, ALWAYS, ILLEGAL),
	REFUSE(RESUME, W, DEADLINE, DEADLINE),
	APPLY(RESUME, W, ALWAYS, KEEP, LEASE_RUN_PENDING, NONE, NULL),

	TOKEN_IS_OWN(FINISH),
	REFUSE(FINISH, ANY, TO_OPEN_END, ILLEGAL),
	UNCHANGED(FINISH, ANY, REPEATED),
	LEASE_HOLDS(FINISH),
	APPLY(FINISH, R, TO_CANCELLED_CANCEL, CLOSE, TO_COMMAND, NONE, NULL),
	REFUSE(FINISH, R, TO_CANCELLED, ILLEGAL),
	REFUSE(FINISH, R, CANCEL, CANCEL_REQUESTED),
	APPLY(FINISH, R, ALWAYS, CLOSE, TO_COMMAND, NONE, NULL),

	/* An application gives up a run that nobody works on. */
	REFUSE(GIVE_UP, ANY, MISSING, NOT_FOUND),
	REFUSE(GIVE_UP, ANY, NOT_TO_FAILED, ILLEGAL),
	UNCHANGED(GIVE_UP, F, ALWAYS),
	REFUSE(GIVE_UP, T, ALWAYS, TERMINAL),
	REFUSE(GIVE_UP, ANY, STALE, STALE_VERSION),
	REFUSE(GIVE_UP, ANY, OPEN, HELD),
	APPLY(GIVE_UP, P | W | R, ALWAYS, KEEP, TO_COMMAND, NONE, NULL),

	REFUSE(REQUEST_CANCEL, ANY, MISSING, NOT_FOUND),
	UNCHANGED(REQUEST_CANCEL, C, ALWAYS),
	REFUSE(REQUEST_CANCEL, T, ALWAYS, TERMINAL),
	REFUSE(REQUEST_CANCEL, ANY, STALE, STALE_VERSION),
	UNCHANGED(REQUEST_CANCEL, R, CANCEL_OPEN),
	APPLY(REQUEST_CANCEL, R, OPEN, MARK_CANCEL, TO_SAME, NONE, NULL),
	REFUSE(REQUEST_CANCEL, P | W, OPEN_VALID, HELD),
	APPLY(REQUEST_CANCEL, P | W | R, ALWAYS, CLOSE_LOST, LEASE_RUN_CANCELLED, LEASE_EXPIRED,
	      NULL),

	REFUSE(RECONCILE, ANY, MISSING, NOT_FOUND),
	REFUSE(RECONCILE, ANY, OPEN_VALID, HELD),
	APPLY(RECONCILE, P | W, DEADLINE, CLOSE_LOST, LEASE_RUN_FAILED, LEASE_EXPIRED,
	      LEASE_ERROR_DEADLINE),
	APPLY(RECONCILE, P | W | T, OPEN, CLOSE_LOST, TO_SAME, LEASE_EXPIRED, NULL),
	UNCHANGED(RECONCILE, P | W | T, ALWAYS),
	APPLY(RECONCILE, R, CANCEL, CLOSE_LOST, LEASE_RUN_CANCELLED, LEASE_EXPIRED, NULL),
	APPLY(RECONCILE, R, DEADLINE, CLOSE_LOST, LEASE_RUN_FAILED, LEASE_EXPIRED,
	      LEASE_ERROR_DEADLINE),
	APPLY(RECONCILE, R, RECORD_OPEN, CLOSE_LOST, TO_SAME, LEASE_EXPIRED, NULL),
	UNCHANGED(RECONCILE, R, RECORD),
	APPLY(RECONCILE, R, FAIL, CLOSE_LOST, LEASE_RUN_FAILED, LEASE_EXPIRED,
	      LEASE_ERROR_WORKER_LOST),
	APPLY(RECONCILE, R, EXHAUSTED, CLOSE_LOST, LEASE_RUN_FAILED, LEASE_EXPIRED,
	      LEASE_ERROR_LOSSES),
	APPLY(RECONCILE, R, ALWAYS, CLOSE_LOST, LEASE_RUN_PENDING, LEASE_EXPIRED, NULL),

	/* A step of a run, under the owner's lease. */
	TOKEN_IS_OWN(START_NODE),
	LEASE_HOLDS(START_NODE),
	REFUSE(START_NODE, R, OPERATION_ELSEWHERE, OPERATION_CONFLICT),
	REFUSE(START_NODE, R, NODE_RUNNING, HELD),
	REFUSE(START_NODE, R, NODE_SUCCEEDED, TERMINAL),
	REFUSE(START_NODE, R, CANCEL, CANCEL_REQUESTED),
	WRITE(START_NODE, R, ALWAYS, EXECUTION_OPEN),

	TOKEN_IS_OWN(FINISH_NODE),
	UNCHANGED(FINISH_NODE, ANY, EXECUTION_REPEATED),
	LEASE_HOLDS(FINISH_NODE),
	REFUSE(FINISH_NODE, R, NO_EXECUTION, NOT_FOUND),
	REFUSE(FINISH_NODE, R, EXECUTION_ELSEWHERE, NOT_OWNER),
	REFUSE(FINISH_NODE, R, EXECUTION_CLOSED, EXPIRED),
	WRITE(FINISH_NODE, R, ALWAYS, EXECUTION_CLOSE),

	TOKEN_IS_OWN(RECORD_CHECKPOINT),
	UNCHANGED(RECORD_CHECKPOINT, ANY, CHECKPOINT_REPEATED),
	LEASE_HOLDS(RECORD_CHECKPOINT),
	REFUSE(RECORD_CHECKPOINT, R, STALE, STALE_VERSION),
	WRITE(RECORD_CHECKPOINT, R, ALWAYS, CHECKPOINT_RECORD),

	TOKEN_IS_OWN(CHANGE_PLAN),
	LEASE_HOLDS(CHANGE_PLAN),
	REFUSE(CHANGE_PLAN, R, STALE, STALE_VERSION),
	WRITE(CHANGE_PLAN, R, ALWAYS, PLAN_CHANGE),
};
const int lease_rules_count = LENGTH(lease_rules);

/* -- the decision ----------------------------------------------------------------------------- */

static const struct lease_rule *find_rule(const struct lease_facts *facts,
					  const struct lease_command *command)
{
	/* A run that is not there has no status: only the row for that fits, and it comes first. */
	unsigned status = 1u << (facts->found ? facts->status : LEASE_RUN_PENDING);

	for (int i = 0; i < lease_rules_count; i++) {
		const struct lease_rule *rule = &lease_rules[i];

		if (rule->command == command->kind && (rule->from & status) &&
		    guard_holds((enum guard)rule->guard, facts, command))
			return rule;
	}
	return NULL; /* unreachable: the rows of each command are complete, a test walks them all */
}

/* What the attempt's row is to say when it closes. */
static void decide_close(const struct lease_facts *facts, const struct lease_command *command,
			 struct lease_decision *ret)
{
	switch (ret->step) {
	case ATTEMPT_CLOSE_LOST:
		if (!has_open(facts)) {
			ret->step = ATTEMPT_KEEP;
			return;
		}
		ret->attempt_error_code = LEASE_ERROR_WORKER_LOST;
		break;
	case ATTEMPT_TAKE_OVER:
		ret->attempt_error_code = LEASE_ERROR_WORKER_LOST;
		break;
	case ATTEMPT_CLOSE:
		if (ret->outcome == LEASE_OUTCOME_NONE)
			ret->outcome = outcome_of(command->to);
		ret->attempt_error_code = command->kind == COMMAND_SUSPEND ? LEASE_ERROR_SUSPENDED
									   : command->error_code;
		ret->attempt_error_message = command->error_message;
		break;
	default:
		break;
	}
}

void lease_decide(const struct lease_facts *facts, const struct lease_command *command,
		  struct lease_decision *ret)
{
	const struct lease_rule *rule = find_rule(facts, command);

	*ret = (struct lease_decision){ .verdict = VERDICT_REFUSE, .refusal = LEASE_ILLEGAL };
	if (!rule)
		return;
	*ret = (struct lease_decision){
		.verdict = rule->verdict,
		.refusal = rule->refusal,
		.step = rule->step,
		.outcome = rule->outcome,
		.to = facts->status,
		.rule = (int)(rule - lease_rules),
	};
	if (rule->verdict != VERDICT_APPLY)
		return;
	decide_close(facts, command, ret);
	if (rule->to == TO_SAME)
		return;
	ret->move = true;
	ret->to = rule->to == TO_COMMAND ? command->to : (enum lease_run_status)rule->to;
	ret->delay = command->kind == COMMAND_RELEASE ? command->delay : 0;
	if (lease_run_status_is_terminal(ret->to)) {
		ret->run_error_code = rule->run_error_code ? rule->run_error_code
							   : command->error_code;
		ret->run_error_message = command->error_message;
	}
}
