/*
 * The state machine: every row of its table is reached, every combination of facts and command
 * keeps the invariants, and a table of expectations written out by hand says what each command
 * does from each status.
 *
 * The expectations are the design's, not copied from machine.c: a row that is changed there must
 * fail here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "machine.h"

#define NOW INT64_C(1000000)
#define PAST (NOW - 1)
#define AHEAD (NOW + 1)
#define NONE LEASE_TIME_NONE
#define VERSION 7

static const char OWN[] = "worker:own", OTHER[] = "worker:other";

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* -- every combination ------------------------------------------------------------------------ */

struct open_attempt {
	const char *owner; /* NULL: none is open */
	int64_t ends;
};

static const struct open_attempt open_attempts[] = {
	{ NULL, 0 }, { OWN, AHEAD }, { OWN, NOW }, { OTHER, AHEAD }, { OTHER, PAST },
};

/* The reconciler's heartbeat: two that pardon a lease that is over, none, two that do not. */
struct heartbeat {
	bool found;
	int64_t beat_at, protect_from, amnesty_until, after;
};

#define PARDONS 2
static const struct heartbeat heartbeats[] = {
	{ true, NOW - 1, PAST - 1, AHEAD, 5 }, /* an amnesty is in force */
	{ true, NOW - 6, PAST - 1, PAST, 5 }, /* no beat came for too long */
	{ false, NONE, NONE, NONE, 0 },
	{ true, NOW - 6, NOW, AHEAD, 5 }, /* the lease had ended before */
	{ true, NOW - 5, PAST - 1, NOW, 5 }, /* all is well */
};
#define NO_HEARTBEAT 2

static void set_heartbeat(struct lease_facts *facts, size_t i)
{
	const struct heartbeat *h = &heartbeats[i];

	facts->heartbeat.found = h->found;
	facts->heartbeat.beat_at = h->beat_at;
	facts->heartbeat.protect_from = h->protect_from;
	facts->heartbeat.amnesty_until = h->amnesty_until;
	facts->heartbeat.after = h->after;
}

/* What the token names: nothing, the open attempt, or a closed one. */
struct named_attempt {
	bool exists, is_open;
	const char *owner;
	enum lease_outcome outcome;
	const char *error_code;
};

static size_t list_named(const struct open_attempt *open, struct named_attempt named[32])
{
	const char *const owners[] = { OWN, OTHER };
	size_t n = 0;

	named[n++] = (struct named_attempt){ 0 };
	if (open->owner)
		named[n++] = (struct named_attempt){ true, true, open->owner, LEASE_OUTCOME_NONE,
						     NULL };
	for (size_t i = 0; i < 2; i++)
		for (int o = LEASE_OUTCOME_COMPLETED; o <= LEASE_OUTCOME_LEASE_EXPIRED; o++)
			for (int suspended = 0; suspended < 2; suspended++)
				named[n++] = (struct named_attempt){
					true,
					false,
					owners[i],
					(enum lease_outcome)o,
					suspended ? LEASE_ERROR_SUSPENDED : NULL,
				};
	return n;
}

typedef void check_decision(const struct lease_facts *facts, const struct lease_command *command,
			    const struct lease_decision *decision);

/* Which numbers of a command can make a difference to it. */
struct variations {
	int statuses, versions, policies, losses;
};

static struct variations variations_of(enum lease_command_kind kind)
{
	switch (kind) {
	case COMMAND_FINISH:
		return (struct variations){ 7, 1, 1, 1 };
	case COMMAND_GIVE_UP:
		return (struct variations){ 7, 3, 1, 1 };
	case COMMAND_RESUME:
	case COMMAND_REQUEST_CANCEL:
		return (struct variations){ 1, 3, 1, 1 };
	case COMMAND_RECONCILE:
		return (struct variations){ 1, 1, 3, 4 };
	case COMMAND_RECORD_CHECKPOINT:
	case COMMAND_CHANGE_PLAN:
		return (struct variations){ 1, 3, 1, 1 };
	default:
		return (struct variations){ 1, 1, 1, 1 };
	}
}

/* What can be known of a node, as far as it makes a difference to the command. */
static int count_nodes(enum lease_command_kind kind)
{
	return kind == COMMAND_START_NODE          ? 6 * 3
	       : kind == COMMAND_FINISH_NODE       ? 11 * 2
	       : kind == COMMAND_RECORD_CHECKPOINT ? 2
						   : 1;
}

static void vary_node(int i, struct lease_facts *facts, struct lease_command *command)
{
	switch (command->kind) {
	case COMMAND_START_NODE:
		facts->node.last_execution_no = i % 6 ? 2 : 0;
		facts->node.state = (enum lease_execution_status)(i % 6 ? i % 6 - 1 : 0);
		facts->node.operation_found = i / 6 > 0;
		facts->node.operation_here = i / 6 > 1;
		command->operation_id = "operation";
		break;
	case COMMAND_FINISH_NODE:
		command->execution_no = 2;
		command->execution_status = i % 2 ? LEASE_EXECUTION_SUCCEEDED
						  : LEASE_EXECUTION_FAILED;
		if (i / 2 == 0)
			break;
		facts->node.named_execution_no = 2;
		facts->node.named_run_attempt_no = (i / 2 - 1) / 5 ? 3 : 2;
		facts->node.named_status = (enum lease_execution_status)((i / 2 - 1) % 5);
		break;
	case COMMAND_RECORD_CHECKPOINT:
		command->checkpoint_id = "checkpoint";
		facts->checkpoint_id = i ? "checkpoint" : NULL;
		break;
	default:
		break;
	}
}

static bool is_by_token(int kind)
{
	return kind == COMMAND_RENEW || kind == COMMAND_RELEASE || kind == COMMAND_SUSPEND ||
	       kind == COMMAND_FINISH || kind >= COMMAND_START_NODE;
}

static void decide_and_check(const struct lease_facts *facts, const struct lease_command *command,
			     check_decision *check)
{
	struct lease_decision decision;

	memset(&decision, 0x5a, sizeof(decision));
	lease_decide(facts, command, &decision);
	check(facts, command, &decision);
}

static void each_command(const struct lease_facts *facts, check_decision *check)
{
	static const int64_t versions[] = { 0, VERSION, VERSION - 1 };

	for (int kind = 0; kind < N_COMMANDS; kind++) {
		struct variations n = variations_of((enum lease_command_kind)kind);
		bool token = is_by_token(kind);

		for (int i = 0; i < n.statuses * n.versions * n.policies * n.losses; i++) {
			struct lease_command command = {
				.kind = (enum lease_command_kind)kind,
				.run_id = "run",
				.attempt_no = token ? 3 : 0,
				.owner = token || kind == COMMAND_MARK_RUNNING ? OWN : NULL,
				.ttl = 5,
				.delay = 9,
				.to = (enum lease_run_status)(i % n.statuses),
				.expected_version = versions[i / n.statuses % n.versions],
				.policy = (enum lease_policy)(i / n.statuses / n.versions %
							      n.policies),
				.max_losses = i / n.statuses / n.versions / n.policies,
				.error_code = "code",
				.error_message = "message",
			};

			for (int k = 0; k < count_nodes(command.kind); k++) {
				struct lease_facts varied = *facts;

				vary_node(k, &varied, &command);
				decide_and_check(&varied, &command, check);
			}
		}
	}
}

static void each_time(struct lease_facts *facts, check_decision *check)
{
	static const int64_t times[] = { NONE, PAST, NOW, AHEAD };

	for (size_t i = 0; i < 4UL * 4 * 2 * 2 * 4; i++) {
		facts->deadline_at = times[i % 4];
		facts->not_before = times[i / 4 % 4];
		facts->cancel_requested_at = i / 16 % 2 ? PAST : NONE;
		facts->owner_closed = i / 32 % 2;
		facts->losses = (int32_t)(i / 64);
		each_command(facts, check);
	}
}

/* All facts that can be, with all commands: some ten million. */
static void each_combination(check_decision *check)
{
	struct named_attempt named[32];

	for (int status = 0; status <= LEASE_RUN_INTERRUPTED; status++)
		for (size_t i = 0; i < LENGTH(open_attempts); i++) {
			const struct open_attempt *open = &open_attempts[i];
			size_t n = list_named(open, named);

			for (size_t k = 0; k < n; k++) {
				struct lease_facts facts = {
					.now = NOW,
					.found = true,
					.status = (enum lease_run_status)status,
					.state_version = VERSION,
					.open = { open->owner ? named[k].is_open ? 3 : 4 : 0,
						  open->owner, open->ends },
					.named = { named[k].exists ? 3 : 0, named[k].owner,
						   named[k].outcome, named[k].error_code },
					.last_attempt_no = 4,
				};

				for (size_t h = 0; h < LENGTH(heartbeats); h++) {
					set_heartbeat(&facts, h);
					if (h == NO_HEARTBEAT || (open->owner && open->ends <= NOW))
						each_time(&facts, check);
				}
			}
		}
	each_command(&(struct lease_facts){ .now = NOW }, check);
}

/* -- invariants ------------------------------------------------------------------------------- */

#define IMPLIES(a, b) (!(a) || (b))

static bool has_open(const struct lease_facts *f)
{
	return f->open.attempt_no > 0;
}

static bool is_pardoned(const struct lease_facts *f)
{
	bool in_time = f->deadline_at == NONE || f->now < f->deadline_at;
	bool was_well = f->open.lease_expires_at <= f->heartbeat.protect_from;
	bool amnesty = f->now < f->heartbeat.amnesty_until;
	bool silence = f->heartbeat.beat_at + f->heartbeat.after < f->now;

	return f->heartbeat.found && in_time && !was_well && (amnesty || silence);
}

static bool is_over(const struct lease_facts *f)
{
	return has_open(f) && f->open.lease_expires_at <= f->now && !is_pardoned(f);
}

static bool is_own(const struct lease_facts *f)
{
	return has_open(f) && strcmp(f->open.owner, OWN) == 0;
}

static bool is_cancelling(const struct lease_facts *f)
{
	return f->cancel_requested_at != NONE;
}

static bool is_past_deadline(const struct lease_facts *f)
{
	return f->deadline_at != NONE && f->deadline_at <= f->now;
}

static bool applies(const struct lease_decision *d)
{
	return d->verdict == VERDICT_APPLY;
}

static bool closes_open_one(const struct lease_decision *d)
{
	return d->step == ATTEMPT_CLOSE || d->step == ATTEMPT_CLOSE_LOST ||
	       d->step == ATTEMPT_TAKE_OVER;
}

static bool finds_a_row(const struct lease_facts *f, const struct lease_command *c,
			const struct lease_decision *d)
{
	return d->rule >= 0 && d->rule < lease_rules_count &&
	       lease_rules[d->rule].command == c->kind &&
	       (lease_rules[d->rule].from & 1u << f->status);
}

static bool opens_no_second(const struct lease_facts *f, const struct lease_command *c,
			    const struct lease_decision *d)
{
	(void)c;
	return IMPLIES(d->step == ATTEMPT_OPEN, !has_open(f)) &&
	       IMPLIES(d->step == ATTEMPT_TAKE_OVER,
		       is_over(f) && d->outcome == LEASE_OUTCOME_LEASE_EXPIRED);
}

static bool keeps_closed(const struct lease_facts *f, const struct lease_command *c,
			 const struct lease_decision *d)
{
	(void)c;
	return IMPLIES(lease_run_status_is_terminal(f->status), !d->move && d->to == f->status) &&
	       IMPLIES(closes_open_one(d) || d->step == ATTEMPT_REFRESH, has_open(f)) &&
	       IMPLIES(d->step == ATTEMPT_CLOSE || d->step == ATTEMPT_REFRESH,
		       f->open.attempt_no == f->named.attempt_no ||
			       c->kind == COMMAND_MARK_RUNNING);
}

static bool needs_the_lease(const struct lease_facts *f, const struct lease_command *c,
			    const struct lease_decision *d)
{
	return IMPLIES(is_by_token(c->kind) && applies(d),
		       is_own(f) && !is_over(f) && f->open.attempt_no == c->attempt_no) &&
	       IMPLIES(d->step == ATTEMPT_REFRESH || d->step == ATTEMPT_CLOSE,
		       is_own(f) && !is_over(f));
}

static bool spares_valid_leases(const struct lease_facts *f, const struct lease_command *c,
				const struct lease_decision *d)
{
	return IMPLIES(has_open(f) && !is_over(f) && c->kind == COMMAND_RECONCILE,
		       d->verdict == VERDICT_REFUSE && d->refusal == LEASE_HELD) &&
	       IMPLIES(d->step == ATTEMPT_CLOSE_LOST || d->step == ATTEMPT_TAKE_OVER, is_over(f)) &&
	       IMPLIES(has_open(f) && !is_over(f) && !is_own(f), !closes_open_one(d));
}

static bool puts_cancel_and_deadline_first(const struct lease_facts *f,
					   const struct lease_command *c,
					   const struct lease_decision *d)
{
	if (c->kind != COMMAND_RECONCILE || !f->found || f->status != LEASE_RUN_RUNNING ||
	    (has_open(f) && !is_over(f)))
		return true;
	if (is_cancelling(f))
		return applies(d) && d->move && d->to == LEASE_RUN_CANCELLED;
	if (is_past_deadline(f))
		return applies(d) && d->move && d->to == LEASE_RUN_FAILED &&
		       strcmp(d->run_error_code, LEASE_ERROR_DEADLINE) == 0;
	switch (c->policy) {
	case LEASE_POLICY_RECORD:
		return !d->move && applies(d) == has_open(f);
	case LEASE_POLICY_FAIL:
		return d->move && d->to == LEASE_RUN_FAILED &&
		       strcmp(d->run_error_code, LEASE_ERROR_WORKER_LOST) == 0;
	case LEASE_POLICY_REQUEUE:
		return d->move;
	}
	return false;
}

static bool counts_losses(const struct lease_facts *f, const struct lease_command *c,
			  const struct lease_decision *d)
{
	bool exhausted = c->max_losses > 0 && f->losses + (is_over(f) ? 1 : 0) >= c->max_losses;

	if (c->kind != COMMAND_RECONCILE || c->policy != LEASE_POLICY_REQUEUE || !applies(d) ||
	    f->status != LEASE_RUN_RUNNING || is_cancelling(f) || is_past_deadline(f))
		return true;
	return exhausted ? d->to == LEASE_RUN_FAILED &&
				   strcmp(d->run_error_code, LEASE_ERROR_LOSSES) == 0
			 : d->to == LEASE_RUN_PENDING && !d->run_error_code && d->delay == 0;
}

static bool was_done_before(const struct lease_facts *f, const struct lease_command *c)
{
	bool own = f->named.attempt_no == c->attempt_no && f->named.owner &&
		   strcmp(f->named.owner, OWN) == 0;
	bool suspended = f->named.error_code &&
			 strcmp(f->named.error_code, LEASE_ERROR_SUSPENDED) == 0;

	switch (c->kind) {
	case COMMAND_MARK_RUNNING:
	case COMMAND_RENEW:
	case COMMAND_START_NODE:
	case COMMAND_CHANGE_PLAN:
	case N_COMMANDS:
		return false;
	case COMMAND_FINISH_NODE:
		return own && f->node.named_execution_no == c->execution_no &&
		       f->node.named_run_attempt_no == c->attempt_no &&
		       f->node.named_status == c->execution_status;
	case COMMAND_RECORD_CHECKPOINT:
		return own && f->checkpoint_id && strcmp(f->checkpoint_id, c->checkpoint_id) == 0;
	case COMMAND_RELEASE:
		return own && f->named.outcome == LEASE_OUTCOME_RETRY_RELEASED;
	case COMMAND_SUSPEND:
		return own && f->named.outcome == LEASE_OUTCOME_INTERRUPTED && suspended;
	case COMMAND_FINISH:
		return own && !suspended &&
		       strcmp(lease_outcome_name(f->named.outcome), lease_run_status_name(c->to)) ==
			       0;
	case COMMAND_RESUME:
		return f->status == LEASE_RUN_PENDING;
	case COMMAND_GIVE_UP:
		return f->status == LEASE_RUN_FAILED && c->to == LEASE_RUN_FAILED;
	case COMMAND_REQUEST_CANCEL:
		return f->status == LEASE_RUN_CANCELLED ||
		       (f->status == LEASE_RUN_RUNNING && is_cancelling(f) && has_open(f));
	case COMMAND_RECONCILE:
		if (has_open(f))
			return false;
		if (lease_run_status_is_terminal(f->status))
			return true;
		if (f->status != LEASE_RUN_RUNNING)
			return !is_past_deadline(f);
		return c->policy == LEASE_POLICY_RECORD && !is_cancelling(f) &&
		       !is_past_deadline(f);
	}
	return false;
}

static bool is_unchanged_only_when_done(const struct lease_facts *f, const struct lease_command *c,
					const struct lease_decision *d)
{
	return IMPLIES(d->verdict == VERDICT_UNCHANGED, was_done_before(f, c)) &&
	       IMPLIES(d->verdict != VERDICT_APPLY, d->step == ATTEMPT_KEEP && !d->move) &&
	       IMPLIES(d->verdict != VERDICT_APPLY && f->found, d->to == f->status);
}

static bool says_which_refusal(const struct lease_facts *f, const struct lease_command *c,
			       const struct lease_decision *d)
{
	bool missing = !f->found ||
		       (c->kind == COMMAND_FINISH_NODE && f->node.named_execution_no == 0);

	if (d->verdict != VERDICT_REFUSE)
		return f->found && d->refusal == 0;
	return d->refusal >= LEASE_NOT_FOUND && d->refusal <= LEASE_ILLEGAL &&
	       IMPLIES(d->refusal == LEASE_NOT_FOUND, missing) &&
	       IMPLIES(!f->found, d->refusal == LEASE_NOT_FOUND);
}

/* A run that leaves running has no open attempt afterwards, and a terminal one never has. */
static bool leaves_no_attempt_behind(const struct lease_facts *f, const struct lease_command *c,
				     const struct lease_decision *d)
{
	(void)c;
	return IMPLIES(d->move && has_open(f) &&
			       (f->status == LEASE_RUN_RUNNING ||
				lease_run_status_is_terminal(d->to)),
		       d->step == ATTEMPT_CLOSE || d->step == ATTEMPT_CLOSE_LOST) &&
	       IMPLIES(d->move, d->to != f->status) &&
	       IMPLIES(d->move && d->to == LEASE_RUN_RUNNING,
		       d->step == ATTEMPT_OPEN || d->step == ATTEMPT_TAKE_OVER);
}

static bool heeds_cancel(const struct lease_facts *f, const struct lease_command *c,
			 const struct lease_decision *d)
{
	if (!is_cancelling(f) || !applies(d))
		return true;
	switch (c->kind) {
	case COMMAND_MARK_RUNNING:
		return d->step == ATTEMPT_REFRESH;
	case COMMAND_RELEASE:
	case COMMAND_SUSPEND:
	case COMMAND_START_NODE:
		return false;
	case COMMAND_FINISH:
		return c->to == LEASE_RUN_CANCELLED;
	default:
		return true;
	}
}

static bool heeds_versions(const struct lease_facts *f, const struct lease_command *c,
			   const struct lease_decision *d)
{
	return IMPLIES(c->expected_version && c->expected_version != f->state_version, !applies(d));
}

static bool claims_only_what_is_due(const struct lease_facts *f, const struct lease_command *c,
				    const struct lease_decision *d)
{
	bool opens = d->step == ATTEMPT_OPEN || d->step == ATTEMPT_TAKE_OVER;

	return IMPLIES(opens, c->kind == COMMAND_MARK_RUNNING && !is_past_deadline(f) &&
				      !is_cancelling(f) && !f->owner_closed) &&
	       IMPLIES(opens && f->status == LEASE_RUN_PENDING,
		       f->not_before == NONE || f->not_before <= f->now) &&
	       IMPLIES(opens, f->status == LEASE_RUN_PENDING || f->status == LEASE_RUN_RUNNING);
}

/* A node has one open execution, an operation one node, and what succeeded is not done again. */
static bool executes_once(const struct lease_facts *f, const struct lease_command *c,
			  const struct lease_decision *d)
{
	bool executed = f->node.last_execution_no > 0;

	return IMPLIES(d->step == EXECUTION_OPEN,
		       c->kind == COMMAND_START_NODE &&
			       !(executed && (f->node.state == LEASE_EXECUTION_RUNNING ||
					      f->node.state == LEASE_EXECUTION_SUCCEEDED)) &&
			       !(f->node.operation_found && !f->node.operation_here)) &&
	       IMPLIES(d->step == EXECUTION_CLOSE,
		       c->kind == COMMAND_FINISH_NODE && f->node.named_execution_no > 0 &&
			       f->node.named_run_attempt_no == c->attempt_no &&
			       f->node.named_status == LEASE_EXECUTION_RUNNING) &&
	       IMPLIES(d->step >= EXECUTION_OPEN, !d->move && f->status == LEASE_RUN_RUNNING);
}

/* Error codes go to a run only when it ends, and to an attempt only when it closes. */
static bool says_why_only_at_the_end(const struct lease_facts *f, const struct lease_command *c,
				     const struct lease_decision *d)
{
	bool ends = d->move && lease_run_status_is_terminal(d->to);
	bool lost = d->step == ATTEMPT_CLOSE_LOST || d->step == ATTEMPT_TAKE_OVER;

	(void)f;
	(void)c;
	return IMPLIES(d->run_error_code || d->run_error_message, ends) &&
	       IMPLIES(d->attempt_error_code || d->attempt_error_message, closes_open_one(d)) &&
	       IMPLIES(closes_open_one(d), d->outcome != LEASE_OUTCOME_NONE) &&
	       IMPLIES(lost, d->outcome == LEASE_OUTCOME_LEASE_EXPIRED && d->attempt_error_code &&
				     strcmp(d->attempt_error_code, LEASE_ERROR_WORKER_LOST) == 0);
}

#define INVARIANTS(X)                                                                              \
	X(finds_a_row)                                                                             \
	X(opens_no_second)                                                                         \
	X(keeps_closed)                                                                            \
	X(needs_the_lease)                                                                         \
	X(spares_valid_leases)                                                                     \
	X(puts_cancel_and_deadline_first)                                                          \
	X(counts_losses)                                                                           \
	X(is_unchanged_only_when_done)                                                             \
	X(says_which_refusal)                                                                      \
	X(leaves_no_attempt_behind)                                                                \
	X(heeds_cancel)                                                                            \
	X(heeds_versions)                                                                          \
	X(claims_only_what_is_due)                                                                 \
	X(executes_once)                                                                           \
	X(says_why_only_at_the_end)

#define INVARIANT_NUMBER(name) NUMBER_##name,
enum { INVARIANTS(INVARIANT_NUMBER) N_INVARIANTS };

/* All are looked at in one pass over the combinations; the tests read what it found. */
static struct {
	long combinations;
	long *reached; /* a counter for each row */
	struct {
		long count;
		struct lease_facts facts;
		struct lease_command command;
		struct lease_decision decision;
	} broken[N_INVARIANTS];
} pass;

static void note(int number, bool holds, const struct lease_facts *f, const struct lease_command *c,
		 const struct lease_decision *d)
{
	if (holds || pass.broken[number].count++ > 0)
		return;
	pass.broken[number].facts = *f;
	pass.broken[number].command = *c;
	pass.broken[number].decision = *d;
}

static void check_all(const struct lease_facts *f, const struct lease_command *c,
		      const struct lease_decision *d)
{
	pass.combinations++;
	if (d->rule >= 0 && d->rule < lease_rules_count)
		pass.reached[d->rule]++;
#define INVARIANT_NOTE(name) note(NUMBER_##name, name(f, c, d), f, c, d);
	INVARIANTS(INVARIANT_NOTE)
}

static int pass_over_all(void **state)
{
	(void)state;
	pass.reached = calloc((size_t)lease_rules_count, sizeof(*pass.reached));
	if (!pass.reached)
		return -1;
	each_combination(check_all);
	return 0;
}

static int forget_pass(void **state)
{
	(void)state;
	free(pass.reached);
	return 0;
}

static void print_case(const struct lease_facts *f, const struct lease_command *c,
		       const struct lease_decision *d)
{
	print_error("%s to %s, policy %s, max_losses %d, version %d; run %s, open %d %s %s, "
		    "named %d %s %s %s, cancel %d, deadline %d, losses %d -> row %d, verdict %d, "
		    "refusal %s, step %d, to %s\n",
		    lease_command_name(c->kind), lease_run_status_name(c->to),
		    lease_policy_name(c->policy), c->max_losses, (int)c->expected_version,
		    f->found ? lease_run_status_name(f->status) : "missing", f->open.attempt_no,
		    f->open.owner ? f->open.owner : "-",
		    f->open.lease_expires_at > NOW ? "valid" : "over", f->named.attempt_no,
		    f->named.owner ? f->named.owner : "-", lease_outcome_name(f->named.outcome),
		    f->named.error_code ? f->named.error_code : "-", f->cancel_requested_at != NONE,
		    (int)(f->deadline_at == NONE ? 0 : f->deadline_at), f->losses, d->rule,
		    (int)d->verdict, lease_refusal_name((int)d->refusal), (int)d->step,
		    lease_run_status_name(d->to));
}

static void always(int number)
{
	assert_true(pass.combinations > 1000000);
	if (pass.broken[number].count == 0)
		return;
	print_case(&pass.broken[number].facts, &pass.broken[number].command,
		   &pass.broken[number].decision);
	fail_msg("broken by %ld of %ld combinations", pass.broken[number].count, pass.combinations);
}

#define INVARIANT_TEST(name)                                                                       \
	static void always_##name(void **state)                                                    \
	{                                                                                          \
		(void)state;                                                                       \
		always(NUMBER_##name);                                                             \
	}
INVARIANTS(INVARIANT_TEST)

static void every_row_of_the_table_is_reached(void **state)
{
	int missed = 0;

	(void)state;
	for (int i = 0; i < lease_rules_count; i++)
		if (pass.reached[i] == 0) {
			print_error("row %d is never reached: %s, %s\n", i,
				    lease_command_name(lease_rules[i].command),
				    lease_guard_text(lease_rules[i].guard));
			missed++;
		}
	assert_int_equal(missed, 0);
}

/* -- the design's table, row by row ------------------------------------------------------------ */

enum { NO_ATTEMPT, OWN_VALID, OWN_OVER, OTHER_VALID, OTHER_OVER };
/* What the token names, where the command carries one. */
enum { NAMES_OPEN, NAMES_NOTHING, NAMES_OTHERS, NAMES_CLOSED };

struct expectation {
	const char *name;
	/* given */
	enum lease_run_status status;
	int open;
	int named;
	enum lease_outcome outcome; /* of the closed attempt that is named */
	bool suspended; /* its error_code */
	bool missing, cancel, owner_closed;
	int64_t deadline, not_before; /* 0: none */
	int32_t losses;
	/* the command */
	enum lease_command_kind kind;
	enum lease_run_status to;
	int64_t version;
	enum lease_policy policy;
	int32_t max_losses;
	/* expected: a refusal, or unchanged, or a step and where the run goes */
	enum lease_refusal refusal;
	bool unchanged;
	enum lease_step step;
	enum lease_run_status becomes; /* given status: it stays */
	enum lease_outcome closes_as;
	const char *attempt_code, *run_code;
};

#define PENDING LEASE_RUN_PENDING
#define RUNNING LEASE_RUN_RUNNING
#define WAITING LEASE_RUN_WAITING
#define COMPLETED LEASE_RUN_COMPLETED
#define FAILED LEASE_RUN_FAILED
#define CANCELLED LEASE_RUN_CANCELLED
#define INTERRUPTED LEASE_RUN_INTERRUPTED
#define LOST LEASE_OUTCOME_LEASE_EXPIRED, "worker_lease_expired"

#define CLAIM(from, attempt) .status = from, .open = attempt, .kind = COMMAND_MARK_RUNNING
#define RENEW(from, attempt) .status = from, .open = attempt, .kind = COMMAND_RENEW
#define RELEASE(from, attempt) .status = from, .open = attempt, .kind = COMMAND_RELEASE
#define SUSPEND(from, attempt) .status = from, .open = attempt, .kind = COMMAND_SUSPEND
#define RESUME(from) .status = from, .kind = COMMAND_RESUME
#define FINISH(from, attempt, word)                                                                \
	.status = from, .open = attempt, .kind = COMMAND_FINISH, .to = word
#define GIVE_UP(from, attempt)                                                                     \
	.status = from, .open = attempt, .kind = COMMAND_GIVE_UP, .to = FAILED
#define CANCEL(from, attempt) .status = from, .open = attempt, .kind = COMMAND_REQUEST_CANCEL
#define SWEEP(from, attempt) .status = from, .open = attempt, .kind = COMMAND_RECONCILE

#define REFUSED(why) .refusal = LEASE_##why
#define UNCHANGED .unchanged = true
#define OPENS .step = ATTEMPT_OPEN, .becomes = RUNNING
#define TAKES_OVER                                                                                 \
	.step = ATTEMPT_TAKE_OVER, .becomes = RUNNING, .closes_as = LEASE_OUTCOME_LEASE_EXPIRED,   \
	.attempt_code = "worker_lease_expired"
#define REFRESHES(status) .step = ATTEMPT_REFRESH, .becomes = status
#define CLOSES(status, word, code)                                                                 \
	.step = ATTEMPT_CLOSE, .becomes = status, .closes_as = LEASE_OUTCOME_##word,               \
	.attempt_code = code
#define CLOSES_LOST(status)                                                                        \
	.step = ATTEMPT_CLOSE_LOST, .becomes = status, .closes_as = LEASE_OUTCOME_LEASE_EXPIRED,   \
	.attempt_code = "worker_lease_expired"
#define MOVES(status) .step = ATTEMPT_KEEP, .becomes = status
#define BOTH(code) .run_code = code

/* clang-format off */
static const struct expectation expectations[] = {
	{ "mark_running: pending, nothing in the way", CLAIM(PENDING, NO_ATTEMPT), OPENS },
	{ "mark_running: not_before is now", CLAIM(PENDING, NO_ATTEMPT), .not_before = NOW, OPENS },
	{ "mark_running: not_before is ahead", CLAIM(PENDING, NO_ATTEMPT), .not_before = AHEAD, REFUSED(NOT_BEFORE) },
	{ "mark_running: pending, deadline is ahead", CLAIM(PENDING, NO_ATTEMPT), .deadline = AHEAD, OPENS },
	{ "mark_running: pending, deadline is now", CLAIM(PENDING, NO_ATTEMPT), .deadline = NOW, REFUSED(DEADLINE) },
	{ "mark_running: pending, leftover attempt whose lease is over", CLAIM(PENDING, OTHER_OVER), TAKES_OVER },
	{ "mark_running: pending, leftover attempt whose lease holds", CLAIM(PENDING, OTHER_VALID), REFUSED(HELD) },
	{ "mark_running: pending, own leftover attempt whose lease is over", CLAIM(PENDING, OWN_OVER), REFUSED(EXPIRED) },
	{ "mark_running: running, same owner, valid", CLAIM(RUNNING, OWN_VALID), REFRESHES(RUNNING) },
	{ "mark_running: running, same owner, cancel requested", CLAIM(RUNNING, OWN_VALID), .cancel = true, REFRESHES(RUNNING) },
	{ "mark_running: running, same owner, its lease is over", CLAIM(RUNNING, OWN_OVER), REFUSED(EXPIRED) },
	{ "mark_running: running without open attempt (take-over)", CLAIM(RUNNING, NO_ATTEMPT), OPENS },
	{ "mark_running: take-over of a run whose not_before is ahead", CLAIM(RUNNING, NO_ATTEMPT), .not_before = AHEAD, OPENS },
	{ "mark_running: take-over, cancel requested", CLAIM(RUNNING, NO_ATTEMPT), .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "mark_running: take-over, deadline passed", CLAIM(RUNNING, NO_ATTEMPT), .deadline = PAST, REFUSED(DEADLINE) },
	{ "mark_running: running, another's lease holds", CLAIM(RUNNING, OTHER_VALID), REFUSED(HELD) },
	{ "mark_running: running, another's lease is over", CLAIM(RUNNING, OTHER_OVER), REFUSED(HELD) },
	{ "mark_running: pending, this owner stands on a closed attempt", CLAIM(PENDING, NO_ATTEMPT), .owner_closed = true, REFUSED(EXPIRED) },
	{ "mark_running: running, this owner stands on a closed attempt", CLAIM(RUNNING, NO_ATTEMPT), .owner_closed = true, REFUSED(EXPIRED) },
	{ "mark_running: completed, this owner stands on a closed attempt", CLAIM(COMPLETED, NO_ATTEMPT), .owner_closed = true, REFUSED(EXPIRED) },
	{ "mark_running: waiting", CLAIM(WAITING, NO_ATTEMPT), REFUSED(ILLEGAL) },
	{ "mark_running: completed", CLAIM(COMPLETED, NO_ATTEMPT), REFUSED(TERMINAL) },
	{ "mark_running: failed", CLAIM(FAILED, NO_ATTEMPT), REFUSED(TERMINAL) },
	{ "mark_running: cancelled", CLAIM(CANCELLED, NO_ATTEMPT), REFUSED(TERMINAL) },
	{ "mark_running: interrupted", CLAIM(INTERRUPTED, NO_ATTEMPT), REFUSED(TERMINAL) },
	{ "mark_running: no such run", CLAIM(PENDING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },

	{ "renew_lease: valid owner", RENEW(RUNNING, OWN_VALID), REFRESHES(RUNNING) },
	{ "renew_lease: valid owner, cancel requested", RENEW(RUNNING, OWN_VALID), .cancel = true, REFRESHES(RUNNING) },
	{ "renew_lease: the attempt alone counts", RENEW(PENDING, OWN_VALID), REFRESHES(PENDING) },
	{ "renew_lease: the lease is over", RENEW(RUNNING, OWN_OVER), REFUSED(EXPIRED) },
	{ "renew_lease: the attempt is closed", RENEW(RUNNING, OTHER_VALID), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_LEASE_EXPIRED, REFUSED(EXPIRED) },
	{ "renew_lease: the run has ended", RENEW(COMPLETED, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_COMPLETED, REFUSED(TERMINAL) },
	{ "renew_lease: another's attempt", RENEW(RUNNING, OTHER_VALID), .named = NAMES_OTHERS, REFUSED(NOT_OWNER) },
	{ "renew_lease: no such attempt", RENEW(RUNNING, OTHER_VALID), .named = NAMES_NOTHING, REFUSED(NOT_OWNER) },
	{ "renew_lease: no such run", RENEW(RUNNING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },

	{ "release: valid owner", RELEASE(RUNNING, OWN_VALID), CLOSES(PENDING, RETRY_RELEASED, "code") },
	{ "release: cancel requested", RELEASE(RUNNING, OWN_VALID), .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "release: the lease is over", RELEASE(RUNNING, OWN_OVER), REFUSED(EXPIRED) },
	{ "release: the attempt was lost", RELEASE(PENDING, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_LEASE_EXPIRED, REFUSED(EXPIRED) },
	{ "release: repeated", RELEASE(PENDING, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_RETRY_RELEASED, UNCHANGED },
	{ "release: repeated, and another took the run", RELEASE(RUNNING, OTHER_VALID), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_RETRY_RELEASED, UNCHANGED },
	{ "release: suspended before", RELEASE(WAITING, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_INTERRUPTED, .suspended = true, REFUSED(EXPIRED) },
	{ "release: completed before", RELEASE(COMPLETED, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_COMPLETED, REFUSED(TERMINAL) },
	{ "release: another's attempt", RELEASE(RUNNING, OTHER_VALID), .named = NAMES_OTHERS, REFUSED(NOT_OWNER) },
	{ "release: no such attempt", RELEASE(RUNNING, OWN_VALID), .named = NAMES_NOTHING, REFUSED(NOT_OWNER) },
	{ "release: a leftover attempt of a pending run", RELEASE(PENDING, OWN_VALID), REFUSED(ILLEGAL) },
	{ "release: no such run", RELEASE(RUNNING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },

	{ "suspend: valid owner", SUSPEND(RUNNING, OWN_VALID), CLOSES(WAITING, INTERRUPTED, "suspended") },
	{ "suspend: cancel requested", SUSPEND(RUNNING, OWN_VALID), .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "suspend: the lease is over", SUSPEND(RUNNING, OWN_OVER), REFUSED(EXPIRED) },
	{ "suspend: repeated", SUSPEND(WAITING, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_INTERRUPTED, .suspended = true, UNCHANGED },
	{ "suspend: interrupted before", SUSPEND(INTERRUPTED, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_INTERRUPTED, REFUSED(TERMINAL) },
	{ "suspend: the attempt was lost", SUSPEND(PENDING, NO_ATTEMPT), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_LEASE_EXPIRED, REFUSED(EXPIRED) },
	{ "suspend: another's attempt", SUSPEND(RUNNING, OTHER_OVER), .named = NAMES_OTHERS, REFUSED(NOT_OWNER) },
	{ "suspend: a leftover attempt of a waiting run", SUSPEND(WAITING, OWN_VALID), REFUSED(ILLEGAL) },
	{ "suspend: no such run", SUSPEND(RUNNING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },

	{ "resume: waiting", RESUME(WAITING), MOVES(PENDING) },
	{ "resume: the expected version", RESUME(WAITING), .version = VERSION, MOVES(PENDING) },
	{ "resume: a stale version", RESUME(WAITING), .version = VERSION - 1, REFUSED(STALE_VERSION) },
	{ "resume: deadline passed", RESUME(WAITING), .deadline = NOW, REFUSED(DEADLINE) },
	{ "resume: deadline ahead", RESUME(WAITING), .deadline = AHEAD, MOVES(PENDING) },
	{ "resume: pending already", RESUME(PENDING), UNCHANGED },
	{ "resume: running", RESUME(RUNNING), REFUSED(ILLEGAL) },
	{ "resume: completed", RESUME(COMPLETED), REFUSED(TERMINAL) },
	{ "resume: no such run", RESUME(WAITING), .missing = true, REFUSED(NOT_FOUND) },

	{ "finish: completed", FINISH(RUNNING, OWN_VALID, COMPLETED), CLOSES(COMPLETED, COMPLETED, "code"), BOTH("code") },
	{ "finish: failed", FINISH(RUNNING, OWN_VALID, FAILED), CLOSES(FAILED, FAILED, "code"), BOTH("code") },
	{ "finish: interrupted", FINISH(RUNNING, OWN_VALID, INTERRUPTED), CLOSES(INTERRUPTED, INTERRUPTED, "code"), BOTH("code") },
	{ "finish: cancelled, cancel requested", FINISH(RUNNING, OWN_VALID, CANCELLED), .cancel = true, CLOSES(CANCELLED, CANCELLED, "code"), BOTH("code") },
	{ "finish: cancelled, no cancel requested", FINISH(RUNNING, OWN_VALID, CANCELLED), REFUSED(ILLEGAL) },
	{ "finish: completed, cancel requested", FINISH(RUNNING, OWN_VALID, COMPLETED), .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "finish: failed, cancel requested", FINISH(RUNNING, OWN_VALID, FAILED), .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "finish: interrupted, cancel requested", FINISH(RUNNING, OWN_VALID, INTERRUPTED), .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "finish: the lease is over", FINISH(RUNNING, OWN_OVER, COMPLETED), REFUSED(EXPIRED) },
	{ "finish: the lease is over, cancel requested", FINISH(RUNNING, OWN_OVER, CANCELLED), .cancel = true, REFUSED(EXPIRED) },
	{ "finish: the attempt was lost", FINISH(PENDING, NO_ATTEMPT, COMPLETED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_LEASE_EXPIRED, REFUSED(EXPIRED) },
	{ "finish: the attempt was lost, another has the run", FINISH(RUNNING, OTHER_VALID, COMPLETED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_LEASE_EXPIRED, REFUSED(EXPIRED) },
	{ "finish: completed, repeated", FINISH(COMPLETED, NO_ATTEMPT, COMPLETED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_COMPLETED, UNCHANGED },
	{ "finish: failed, repeated", FINISH(FAILED, NO_ATTEMPT, FAILED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_FAILED, UNCHANGED },
	{ "finish: interrupted, repeated", FINISH(INTERRUPTED, NO_ATTEMPT, INTERRUPTED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_INTERRUPTED, UNCHANGED },
	{ "finish: interrupted, but it was suspended", FINISH(WAITING, NO_ATTEMPT, INTERRUPTED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_INTERRUPTED, .suspended = true, REFUSED(EXPIRED) },
	{ "finish: completed, but it had failed", FINISH(FAILED, NO_ATTEMPT, COMPLETED), .named = NAMES_CLOSED, .outcome = LEASE_OUTCOME_FAILED, REFUSED(TERMINAL) },
	{ "finish: another's attempt", FINISH(RUNNING, OTHER_VALID, COMPLETED), .named = NAMES_OTHERS, REFUSED(NOT_OWNER) },
	{ "finish: no such attempt", FINISH(RUNNING, OWN_VALID, COMPLETED), .named = NAMES_NOTHING, REFUSED(NOT_OWNER) },
	{ "finish: a leftover attempt of a pending run", FINISH(PENDING, OWN_VALID, COMPLETED), REFUSED(ILLEGAL) },
	{ "finish: running is no end", FINISH(RUNNING, OWN_VALID, RUNNING), REFUSED(ILLEGAL) },
	{ "finish: no such run", FINISH(RUNNING, NO_ATTEMPT, COMPLETED), .missing = true, REFUSED(NOT_FOUND) },

	{ "give up: pending", GIVE_UP(PENDING, NO_ATTEMPT), MOVES(FAILED), .run_code = "code" },
	{ "give up: waiting", GIVE_UP(WAITING, NO_ATTEMPT), MOVES(FAILED), .run_code = "code" },
	{ "give up: running without open attempt", GIVE_UP(RUNNING, NO_ATTEMPT), MOVES(FAILED), .run_code = "code" },
	{ "give up: running, a lease holds", GIVE_UP(RUNNING, OTHER_VALID), REFUSED(HELD) },
	{ "give up: running, a lease is over", GIVE_UP(RUNNING, OTHER_OVER), REFUSED(HELD) },
	{ "give up: the expected version", GIVE_UP(PENDING, NO_ATTEMPT), .version = VERSION, MOVES(FAILED), .run_code = "code" },
	{ "give up: a stale version", GIVE_UP(PENDING, NO_ATTEMPT), .version = VERSION + 1, REFUSED(STALE_VERSION) },
	{ "give up: failed already", GIVE_UP(FAILED, NO_ATTEMPT), UNCHANGED },
	{ "give up: completed", GIVE_UP(COMPLETED, NO_ATTEMPT), REFUSED(TERMINAL) },
	{ "give up: no such run", GIVE_UP(PENDING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },

	{ "request_cancel: pending", CANCEL(PENDING, NO_ATTEMPT), MOVES(CANCELLED) },
	{ "request_cancel: waiting", CANCEL(WAITING, NO_ATTEMPT), MOVES(CANCELLED) },
	{ "request_cancel: running without open attempt", CANCEL(RUNNING, NO_ATTEMPT), MOVES(CANCELLED) },
	{ "request_cancel: running", CANCEL(RUNNING, OTHER_VALID), .step = ATTEMPT_MARK_CANCEL, .becomes = RUNNING },
	{ "request_cancel: running, its lease is over", CANCEL(RUNNING, OTHER_OVER), .step = ATTEMPT_MARK_CANCEL, .becomes = RUNNING },
	{ "request_cancel: running, requested before", CANCEL(RUNNING, OTHER_VALID), .cancel = true, UNCHANGED },
	{ "request_cancel: cancelled already", CANCEL(CANCELLED, NO_ATTEMPT), UNCHANGED },
	{ "request_cancel: completed", CANCEL(COMPLETED, NO_ATTEMPT), REFUSED(TERMINAL) },
	{ "request_cancel: a stale version", CANCEL(PENDING, NO_ATTEMPT), .version = VERSION + 1, REFUSED(STALE_VERSION) },
	{ "request_cancel: the expected version", CANCEL(PENDING, NO_ATTEMPT), .version = VERSION, MOVES(CANCELLED) },
	{ "request_cancel: pending, a leftover attempt holds", CANCEL(PENDING, OTHER_VALID), REFUSED(HELD) },
	{ "request_cancel: pending, a leftover attempt is over", CANCEL(PENDING, OTHER_OVER), CLOSES_LOST(CANCELLED) },
	{ "request_cancel: no such run", CANCEL(PENDING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },

	{ "reconcile: running, the lease holds", SWEEP(RUNNING, OTHER_VALID), REFUSED(HELD) },
	{ "reconcile: running, the lease ends now, record", SWEEP(RUNNING, OWN_OVER), CLOSES_LOST(RUNNING) },
	{ "reconcile: running, over, fail", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_FAIL, CLOSES_LOST(FAILED), .run_code = "worker_lease_expired" },
	{ "reconcile: running, over, requeue", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_REQUEUE, CLOSES_LOST(PENDING) },
	{ "reconcile: requeue, second loss of three", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_REQUEUE, .max_losses = 3, .losses = 1, CLOSES_LOST(PENDING) },
	{ "reconcile: requeue, third loss of three", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_REQUEUE, .max_losses = 3, .losses = 2, CLOSES_LOST(FAILED), .run_code = "lease_losses_exhausted" },
	{ "reconcile: requeue without limit", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_REQUEUE, .losses = 100, CLOSES_LOST(PENDING) },
	{ "reconcile: running, over, cancel before fail", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_FAIL, .cancel = true, .deadline = PAST, CLOSES_LOST(CANCELLED) },
	{ "reconcile: running, over, cancel before record", SWEEP(RUNNING, OTHER_OVER), .cancel = true, CLOSES_LOST(CANCELLED) },
	{ "reconcile: running, over, deadline before requeue", SWEEP(RUNNING, OTHER_OVER), .policy = LEASE_POLICY_REQUEUE, .deadline = NOW, CLOSES_LOST(FAILED), .run_code = "deadline_exceeded" },
	{ "reconcile: running, over, deadline before record", SWEEP(RUNNING, OTHER_OVER), .deadline = NOW, CLOSES_LOST(FAILED), .run_code = "deadline_exceeded" },
	{ "reconcile: running without open attempt, record", SWEEP(RUNNING, NO_ATTEMPT), UNCHANGED },
	{ "reconcile: running without open attempt, fail", SWEEP(RUNNING, NO_ATTEMPT), .policy = LEASE_POLICY_FAIL, MOVES(FAILED), .run_code = "worker_lease_expired" },
	{ "reconcile: running without open attempt, requeue", SWEEP(RUNNING, NO_ATTEMPT), .policy = LEASE_POLICY_REQUEUE, MOVES(PENDING) },
	{ "reconcile: running without open attempt, record, cancel requested", SWEEP(RUNNING, NO_ATTEMPT), .cancel = true, MOVES(CANCELLED) },
	{ "reconcile: running without open attempt, record, deadline passed", SWEEP(RUNNING, NO_ATTEMPT), .deadline = PAST, MOVES(FAILED), .run_code = "deadline_exceeded" },
	{ "reconcile: pending, nothing to do", SWEEP(PENDING, NO_ATTEMPT), .deadline = AHEAD, UNCHANGED },
	{ "reconcile: pending, deadline passed", SWEEP(PENDING, NO_ATTEMPT), .deadline = NOW, MOVES(FAILED), .run_code = "deadline_exceeded" },
	{ "reconcile: waiting, deadline passed", SWEEP(WAITING, NO_ATTEMPT), .deadline = NOW, MOVES(FAILED), .run_code = "deadline_exceeded" },
	{ "reconcile: pending, leftover attempt is over", SWEEP(PENDING, OTHER_OVER), CLOSES_LOST(PENDING) },
	{ "reconcile: waiting, leftover attempt is over", SWEEP(WAITING, OTHER_OVER), CLOSES_LOST(WAITING) },
	{ "reconcile: completed, leftover attempt is over", SWEEP(COMPLETED, OTHER_OVER), .policy = LEASE_POLICY_FAIL, CLOSES_LOST(COMPLETED) },
	{ "reconcile: pending, leftover attempt over and deadline passed", SWEEP(PENDING, OTHER_OVER), .deadline = PAST, CLOSES_LOST(FAILED), .run_code = "deadline_exceeded" },
	{ "reconcile: completed, nothing to do", SWEEP(COMPLETED, NO_ATTEMPT), .deadline = PAST, UNCHANGED },
	{ "reconcile: no such run", SWEEP(RUNNING, NO_ATTEMPT), .missing = true, REFUSED(NOT_FOUND) },
};
/* clang-format on */

static struct lease_facts facts_of(const struct expectation *e)
{
	struct lease_facts facts = {
		.now = NOW,
		.found = !e->missing,
		.status = e->status,
		.state_version = VERSION,
		.not_before = e->not_before ? e->not_before : NONE,
		.deadline_at = e->deadline ? e->deadline : NONE,
		.cancel_requested_at = e->cancel ? PAST : NONE,
		.owner_closed = e->owner_closed,
		.last_attempt_no = 4,
		.losses = e->losses,
	};

	if (e->missing)
		return (struct lease_facts){ .now = NOW };
	if (e->open != NO_ATTEMPT) {
		facts.open.attempt_no = 3;
		facts.open.owner = e->open == OWN_VALID || e->open == OWN_OVER ? OWN : OTHER;
		facts.open.lease_expires_at = e->open == OWN_VALID || e->open == OTHER_VALID ? AHEAD
											     : NOW;
	}
	switch (e->named) {
	case NAMES_OPEN:
	case NAMES_OTHERS:
		facts.named.attempt_no = facts.open.attempt_no;
		facts.named.owner = facts.open.owner;
		break;
	case NAMES_CLOSED:
		facts.open.attempt_no += facts.open.attempt_no ? 1 : 0;
		facts.named.attempt_no = 3;
		facts.named.owner = OWN;
		facts.named.outcome = e->outcome;
		facts.named.error_code = e->suspended ? "suspended" : NULL;
		break;
	default:
		break;
	}
	return facts;
}

static void assert_text(const char *expected, const char *actual)
{
	assert_string_equal(expected ? expected : "(none)", actual ? actual : "(none)");
}

static void check_decision_of(const struct expectation *e, const struct lease_facts *facts)
{
	struct lease_command command = {
		.kind = e->kind,
		.run_id = "run",
		.attempt_no = 3,
		.owner = OWN,
		.delay = 9,
		.to = e->to,
		.expected_version = e->version,
		.policy = e->policy,
		.max_losses = e->max_losses,
		.error_code = "code",
		.error_message = "message",
	};
	struct lease_decision d;
	bool moves = !e->refusal && !e->unchanged && e->becomes != e->status;

	if (e->kind == COMMAND_REQUEST_CANCEL || e->kind == COMMAND_RECONCILE)
		command.error_code = command.error_message = NULL;
	lease_decide(facts, &command, &d);
	assert_string_equal(lease_refusal_name((int)e->refusal),
			    lease_refusal_name((int)d.refusal));
	assert_int_equal(e->refusal     ? VERDICT_REFUSE
			 : e->unchanged ? VERDICT_UNCHANGED
					: VERDICT_APPLY,
			 d.verdict);
	assert_int_equal(e->step, d.step);
	assert_int_equal(moves, d.move);
	if (!e->refusal && !e->unchanged)
		assert_string_equal(lease_run_status_name(e->becomes), lease_run_status_name(d.to));
	if (e->step == ATTEMPT_CLOSE || e->step == ATTEMPT_CLOSE_LOST ||
	    e->step == ATTEMPT_TAKE_OVER)
		assert_string_equal(lease_outcome_name(e->closes_as),
				    lease_outcome_name(d.outcome));
	assert_text(e->attempt_code, d.attempt_error_code);
	assert_text(e->run_code, d.run_error_code);
	assert_int_equal(d.delay, e->kind == COMMAND_RELEASE && moves ? 9 : 0);
}

/*
 * Whatever is expected of a lease that holds is expected of one that only an amnesty keeps; and a
 * heartbeat that pardons nothing changes nothing.
 */
static void check_expectation(void **state)
{
	const struct expectation *e = *state;
	struct lease_facts facts = facts_of(e);
	bool holds = facts.open.attempt_no > 0 && facts.open.lease_expires_at > NOW;
	bool in_time = facts.deadline_at == NONE || facts.deadline_at > NOW;

	for (size_t i = PARDONS; i < LENGTH(heartbeats); i++) {
		set_heartbeat(&facts, i);
		check_decision_of(e, &facts);
	}
	if (holds)
		facts.open.lease_expires_at = PAST;
	for (size_t i = 0; i < PARDONS && holds && in_time; i++) {
		set_heartbeat(&facts, i);
		check_decision_of(e, &facts);
	}
}

/* -- steps of a run: what the design says of nodes, operations, checkpoints and plans ----------- */

enum node_state { NEVER, EXECUTING, DONE, FAILED_ONCE, LOST_ONCE };

struct step_expectation {
	const char *name;
	enum lease_command_kind kind;
	enum lease_run_status status;
	int open, named; /* as above */
	bool cancel;
	enum node_state node;
	bool operation_elsewhere;
	/* the execution that finish_node names */
	int32_t execution_of; /* its run attempt; 0: there is none */
	enum lease_execution_status was, becomes;
	int64_t version; /* expected */
	bool is_current_checkpoint;
	enum lease_refusal refusal;
	bool unchanged;
	enum lease_step step;
};

#define START .kind = COMMAND_START_NODE, .status = RUNNING, .open = OWN_VALID
#define FINISH_AS(word)                                                                            \
	.kind = COMMAND_FINISH_NODE, .status = RUNNING, .open = OWN_VALID,                         \
	.becomes = LEASE_EXECUTION_##word
#define CHECKPOINT .kind = COMMAND_RECORD_CHECKPOINT, .status = RUNNING, .open = OWN_VALID
#define PLAN .kind = COMMAND_CHANGE_PLAN, .status = RUNNING, .open = OWN_VALID

/* clang-format off */
static const struct step_expectation step_expectations[] = {
	{ "start_node: never executed", START, .step = EXECUTION_OPEN },
	{ "start_node: again after a failure", START, .node = FAILED_ONCE, .step = EXECUTION_OPEN },
	{ "start_node: again after a loss", START, .node = LOST_ONCE, .step = EXECUTION_OPEN },
	{ "start_node: one execution is open", START, .node = EXECUTING, REFUSED(HELD) },
	{ "start_node: it has succeeded", START, .node = DONE, REFUSED(TERMINAL) },
	{ "start_node: the operation is another node's", START, .operation_elsewhere = true, REFUSED(OPERATION_CONFLICT) },
	{ "start_node: a cancel is requested", START, .cancel = true, REFUSED(CANCEL_REQUESTED) },
	{ "start_node: the lease is over", .kind = COMMAND_START_NODE, .status = RUNNING, .open = OWN_OVER, REFUSED(EXPIRED) },
	{ "start_node: another's token", .kind = COMMAND_START_NODE, .status = RUNNING, .open = OTHER_VALID, .named = NAMES_OTHERS, REFUSED(NOT_OWNER) },
	{ "start_node: the run has ended", .kind = COMMAND_START_NODE, .status = COMPLETED, .named = NAMES_CLOSED, REFUSED(TERMINAL) },
	{ "start_node: taken over by another", .kind = COMMAND_START_NODE, .status = RUNNING, .open = OTHER_VALID, .named = NAMES_CLOSED, REFUSED(EXPIRED) },
	{ "finish_node: open", FINISH_AS(SUCCEEDED), .execution_of = 3, .step = EXECUTION_CLOSE },
	{ "finish_node: failed", FINISH_AS(FAILED), .execution_of = 3, .step = EXECUTION_CLOSE },
	{ "finish_node: while a cancel is requested", FINISH_AS(SUCCEEDED), .cancel = true, .execution_of = 3, .step = EXECUTION_CLOSE },
	{ "finish_node: the same again", FINISH_AS(SUCCEEDED), .execution_of = 3, .was = LEASE_EXECUTION_SUCCEEDED, UNCHANGED },
	{ "finish_node: closed otherwise", FINISH_AS(SUCCEEDED), .execution_of = 3, .was = LEASE_EXECUTION_FAILED, REFUSED(EXPIRED) },
	{ "finish_node: no such execution", FINISH_AS(SUCCEEDED), REFUSED(NOT_FOUND) },
	{ "finish_node: another attempt's", FINISH_AS(SUCCEEDED), .execution_of = 2, REFUSED(NOT_OWNER) },
	{ "finish_node: the lease is over", .kind = COMMAND_FINISH_NODE, .status = RUNNING, .open = OWN_OVER, .becomes = LEASE_EXECUTION_SUCCEEDED, .execution_of = 3, REFUSED(EXPIRED) },
	{ "record_checkpoint: expected version", CHECKPOINT, .version = VERSION, .step = CHECKPOINT_RECORD },
	{ "record_checkpoint: stale version", CHECKPOINT, .version = VERSION - 1, REFUSED(STALE_VERSION) },
	{ "record_checkpoint: the same again", CHECKPOINT, .version = VERSION - 1, .is_current_checkpoint = true, UNCHANGED },
	{ "record_checkpoint: the lease is over", .kind = COMMAND_RECORD_CHECKPOINT, .status = RUNNING, .open = OWN_OVER, .version = VERSION, REFUSED(EXPIRED) },
	{ "change_plan: expected version", PLAN, .version = VERSION, .step = PLAN_CHANGE },
	{ "change_plan: stale version", PLAN, .version = VERSION + 1, REFUSED(STALE_VERSION) },
	{ "change_plan: another's token", .kind = COMMAND_CHANGE_PLAN, .status = RUNNING, .open = OTHER_VALID, .named = NAMES_OTHERS, .version = VERSION, REFUSED(NOT_OWNER) },
};
/* clang-format on */

static struct lease_facts step_facts(const struct step_expectation *e)
{
	static const enum lease_execution_status states[] = {
		[NEVER] = LEASE_EXECUTION_RUNNING,           [EXECUTING] = LEASE_EXECUTION_RUNNING,
		[DONE] = LEASE_EXECUTION_SUCCEEDED,          [FAILED_ONCE] = LEASE_EXECUTION_FAILED,
		[LOST_ONCE] = LEASE_EXECUTION_LEASE_EXPIRED,
	};
	const struct expectation run = {
		.status = e->status,
		.open = e->open,
		.named = e->named,
		.outcome = LEASE_OUTCOME_COMPLETED,
		.cancel = e->cancel,
	};
	struct lease_facts facts = facts_of(&run);

	facts.node.last_execution_no = e->node == NEVER ? 0 : 2;
	facts.node.state = states[e->node];
	facts.node.operation_found = e->operation_elsewhere;
	facts.node.named_execution_no = e->execution_of ? 2 : 0;
	facts.node.named_run_attempt_no = e->execution_of;
	facts.node.named_status = e->was;
	facts.checkpoint_id = e->is_current_checkpoint ? "checkpoint" : "older";
	return facts;
}

static void check_step(void **state)
{
	const struct step_expectation *e = *state;
	struct lease_facts facts = step_facts(e);
	struct lease_command command = {
		.kind = e->kind,
		.run_id = "run",
		.attempt_no = 3,
		.owner = OWN,
		.node_id = "node",
		.operation_id = e->kind == COMMAND_START_NODE ? "operation" : NULL,
		.execution_no = 2,
		.execution_status = e->becomes,
		.checkpoint_id = "checkpoint",
		.expected_version = e->version,
	};
	struct lease_decision d;

	lease_decide(&facts, &command, &d);
	assert_string_equal(lease_refusal_name((int)e->refusal),
			    lease_refusal_name((int)d.refusal));
	assert_int_equal(e->refusal     ? VERDICT_REFUSE
			 : e->unchanged ? VERDICT_UNCHANGED
					: VERDICT_APPLY,
			 d.verdict);
	assert_int_equal(e->step, d.step);
	assert_false(d.move);
}

/* -- words ------------------------------------------------------------------------------------ */

static void words_are_the_tables(void **state)
{
	static const char *const statuses[] = { "pending", "running",   "waiting",    "completed",
						"failed",  "cancelled", "interrupted" };
	static const char *const outcomes[] = { "open",         "completed",   "failed",
						"cancelled",    "interrupted", "retry_released",
						"lease_expired" };
	static const char *const policies[] = { "record", "fail", "requeue" };
	static const char *const refusals[] = { "granted",
						"not_found",
						"held",
						"not_owner",
						"expired",
						"terminal",
						"cancel_requested",
						"deadline",
						"not_before",
						"stale_version",
						"operation_conflict",
						"illegal" };

	(void)state;
	for (int i = 0; i < (int)LENGTH(statuses); i++) {
		assert_string_equal(lease_run_status_name((enum lease_run_status)i), statuses[i]);
		assert_int_equal(lease_run_status_parse(statuses[i]), i);
		assert_int_equal(lease_run_status_is_terminal((enum lease_run_status)i), i >= 3);
	}
	for (int i = 0; i < (int)LENGTH(outcomes); i++) {
		assert_string_equal(lease_outcome_name((enum lease_outcome)i), outcomes[i]);
		assert_int_equal(lease_outcome_parse(outcomes[i]), i);
	}
	for (int i = 0; i < (int)LENGTH(policies); i++) {
		assert_string_equal(lease_policy_name((enum lease_policy)i), policies[i]);
		assert_int_equal(lease_policy_parse(policies[i]), i);
	}
	for (int i = 0; i < (int)LENGTH(refusals); i++)
		assert_string_equal(lease_refusal_name(i), refusals[i]);
	for (int i = 0; i < N_COMMANDS; i++)
		assert_string_not_equal(lease_command_name((enum lease_command_kind)i), "?");
}

static void unknown_words_are_told(void **state)
{
	(void)state;
	assert_string_equal(lease_run_status_name((enum lease_run_status)99), "?");
	assert_string_equal(lease_run_status_name((enum lease_run_status) - 1), "?");
	assert_string_equal(lease_outcome_name((enum lease_outcome)7), "?");
	assert_string_equal(lease_policy_name((enum lease_policy)3), "?");
	assert_string_equal(lease_refusal_name(12), "?");
	assert_string_equal(lease_refusal_name(-1), "?");
	assert_string_equal(lease_command_name(N_COMMANDS), "?");
	assert_string_equal(lease_guard_text(-1), "?");
	assert_int_equal(lease_run_status_parse("Pending"), -1);
	assert_int_equal(lease_run_status_parse(""), -1);
	assert_int_equal(lease_run_status_parse(NULL), -1);
	assert_int_equal(lease_outcome_parse(NULL), -1);
	assert_int_equal(lease_policy_parse("requeue "), -1);
	assert_int_equal(lease_policy_parse(NULL), -1);
	assert_false(lease_run_status_is_terminal((enum lease_run_status)99));
}

static void every_guard_has_a_text(void **state)
{
	(void)state;
	for (int i = 0; i < lease_rules_count; i++)
		assert_string_not_equal(lease_guard_text(lease_rules[i].guard), "?");
}

#define INVARIANT_ENTRY(name) cmocka_unit_test(always_##name),

int main(void)
{
	static const struct CMUnitTest fixed[] = {
		cmocka_unit_test(every_row_of_the_table_is_reached),
		INVARIANTS(INVARIANT_ENTRY) cmocka_unit_test(words_are_the_tables),
		cmocka_unit_test(unknown_words_are_told),
		cmocka_unit_test(every_guard_has_a_text),
	};
	struct CMUnitTest tests[LENGTH(fixed) + LENGTH(expectations) + LENGTH(step_expectations)];
	struct CMUnitTest *steps = tests + LENGTH(fixed) + LENGTH(expectations);

	memcpy(tests, fixed, sizeof(fixed));
	for (size_t i = 0; i < LENGTH(expectations); i++)
		tests[LENGTH(fixed) + i] = (struct CMUnitTest){
			.name = expectations[i].name,
			.test_func = check_expectation,
			.initial_state = (void *)(uintptr_t)&expectations[i],
		};
	for (size_t i = 0; i < LENGTH(step_expectations); i++)
		steps[i] = (struct CMUnitTest){
			.name = step_expectations[i].name,
			.test_func = check_step,
			.initial_state = (void *)(uintptr_t)&step_expectations[i],
		};
	return cmocka_run_group_tests_name("machine", tests, pass_over_all, forget_pass);
}
