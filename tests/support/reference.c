/*
 * See reference.h. What is written down here follows lib/sql/: close_and_move, open_attempts,
 * renew_many, mark_cancel, start_node, finish_node, record_checkpoint, change_plan.
 */
#include "reference.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

/* -- names ------------------------------------------------------------------------------------- */

const char *reference_name(const char *prefix, int number)
{
	static const char *const prefixes[] = { "r", "w", "n", "op", "cp" };
	static char names[5][REFERENCE_STEPS + 1][8];

	for (int i = 0; i < 5; i++)
		if (strcmp(prefixes[i], prefix) == 0) {
			snprintf(names[i][number], sizeof(names[i][number]), "%s%d", prefix,
				 number);
			return names[i][number];
		}
	fail_msg("no name begins with \"%s\"", prefix);
	return NULL;
}

static int number_of(const char *name)
{
	return atoi(name + strcspn(name, "0123456789"));
}

static bool is_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

struct reference_run *reference_run_of(struct reference *reference, const char *run_id)
{
	return &reference->runs[number_of(run_id)];
}

struct reference_attempt *reference_open(struct reference_run *run)
{
	for (int i = 0; i < run->n; i++)
		if (run->attempts[i].outcome == LEASE_OUTCOME_NONE)
			return &run->attempts[i];
	return NULL;
}

static int32_t number_in(const struct reference_run *run, const struct reference_attempt *attempt)
{
	return (int32_t)(attempt - run->attempts) + 1;
}

/* -- facts ------------------------------------------------------------------------------------- */

static int64_t moment(enum reference_time time)
{
	return time == TIME_UNSET ? LEASE_TIME_NONE : time == TIME_AHEAD ? 1 : -1;
}

static void find_attempts(struct reference_run *run, const struct lease_command *command,
			  struct lease_facts *facts)
{
	for (int i = 0; i < run->n; i++) {
		const struct reference_attempt *attempt = &run->attempts[i];
		bool open = attempt->outcome == LEASE_OUTCOME_NONE;

		if (open) {
			facts->open.attempt_no = i + 1;
			facts->open.owner = attempt->owner;
			facts->open.lease_expires_at = attempt->over ? -1 : 1;
		} else {
			facts->losses = attempt->outcome == LEASE_OUTCOME_LEASE_EXPIRED
						? facts->losses + 1
						: 0;
			if (command->attempt_no == 0 && is_same(attempt->owner, command->owner))
				facts->owner_closed = true;
		}
		if (command->attempt_no == i + 1) {
			facts->named.attempt_no = i + 1;
			facts->named.owner = attempt->owner;
			facts->named.outcome = attempt->outcome;
			facts->named.error_code = attempt->error_code;
		}
	}
	facts->last_attempt_no = run->n;
}

static void find_node(const struct reference *reference, const struct reference_run *run,
		      const struct lease_command *command, struct lease_facts *facts)
{
	const struct reference_node *node = &run->nodes[number_of(command->node_id)];

	if (node->n > 0) {
		facts->node.last_execution_no = node->n;
		facts->node.state = node->executions[node->n - 1].status;
		facts->node.output_ref = node->executions[node->n - 1].output_ref;
	}
	if (command->execution_no >= 1 && command->execution_no <= node->n) {
		const struct reference_execution
			*named = &node->executions[command->execution_no - 1];

		facts->node.named_execution_no = command->execution_no;
		facts->node.named_run_attempt_no = named->run_attempt_no;
		facts->node.named_status = named->status;
	}
	if (command->operation_id) {
		int number = number_of(command->operation_id);

		facts->node.operation_found = reference->operations[number].found;
		facts->node.operation_here = reference->operations[number].run ==
						     (int)(run - reference->runs) &&
					     reference->operations[number].node ==
						     (int)(node - run->nodes);
	}
}

struct lease_facts reference_facts(struct reference *reference, const struct lease_command *command)
{
	struct reference_run *run = reference_run_of(reference, command->run_id);
	struct lease_facts facts = {
		.now = 0,
		.found = run->found,
		.status = run->status,
		.state_version = run->state_version,
		.not_before = moment(run->not_before),
		.deadline_at = moment(run->deadline),
		.cancel_requested_at = run->cancel ? -1 : LEASE_TIME_NONE,
		.checkpoint_id = run->checkpoint_id,
	};

	if (!run->found)
		return (struct lease_facts){ .now = 0 };
	find_attempts(run, command, &facts);
	if (lease_command_is_about_node(command->kind))
		find_node(reference, run, command, &facts);
	return facts;
}

static bool is_claimable(struct reference_run *run, enum lease_run_status status)
{
	const struct reference_attempt *open = reference_open(run);

	if (!run->found || run->status != status || run->cancel || run->deadline == TIME_PASSED)
		return false;
	if (status == LEASE_RUN_PENDING)
		return run->not_before != TIME_AHEAD && !(open && !open->over);
	return !open;
}

const char *reference_next(struct reference *reference, bool take_over)
{
	int next = -1;

	for (int i = 0; i < REFERENCE_RUNS; i++)
		if (is_claimable(&reference->runs[i], LEASE_RUN_PENDING) &&
		    (next < 0 || reference->runs[i].order < reference->runs[next].order))
			next = i;
	for (int i = 0; next < 0 && take_over && i < REFERENCE_RUNS; i++)
		if (is_claimable(&reference->runs[i], LEASE_RUN_RUNNING))
			next = i;
	return next < 0 ? NULL : reference_name("r", next);
}

/* -- writing down ------------------------------------------------------------------------------ */

static const char *or_dash(const char *text)
{
	return text ? text : "-";
}

static const char *status_name(const struct reference_run *run)
{
	return lease_run_status_name(run->status);
}

struct reference_event {
	const char *kind;
	int32_t attempt_no, execution_no; /* 0: none */
	const char *from, *to, *outcome, *owner, *error_code, *reference;
};

static const char *number_text(char text[12], int32_t number)
{
	snprintf(text, 12, "%d", number);
	return number ? text : "-";
}

#define add_event(events, ...)                                                                     \
	append_event(events, sizeof(events), &(struct reference_event){ __VA_ARGS__ })

static void append_event(char *events, size_t size, const struct reference_event *event)
{
	size_t length = strlen(events);
	char attempt[12], execution[12];
	int n = snprintf(events + length, size - length, " %s:%s:%s:%s:%s:%s:%s:%s:%s", event->kind,
			 number_text(attempt, event->attempt_no),
			 number_text(execution, event->execution_no), or_dash(event->from),
			 or_dash(event->to), or_dash(event->outcome), or_dash(event->owner),
			 or_dash(event->error_code), or_dash(event->reference));

	assert_true(n > 0 && (size_t)n < size - length);
}

void reference_begin(struct reference *reference)
{
	for (int i = 0; i < REFERENCE_RUNS; i++)
		reference->runs[i].written = false;
}

void reference_submit(struct reference *reference, int number, bool delayed, int64_t deadline_at)
{
	struct reference_run *run = &reference->runs[number];

	run->found = run->written = true;
	run->order = reference->submitted++;
	run->status = LEASE_RUN_PENDING;
	run->state_version = run->plan_version = 1;
	run->not_before = delayed ? TIME_AHEAD : TIME_UNSET;
	run->deadline = deadline_at == LEASE_TIME_NONE ? TIME_UNSET : TIME_AHEAD;
	run->deadline_at = deadline_at;
	add_event(run->events, .kind = "run_submitted", .to = status_name(run));
}

/* Executions that are open under an attempt close with it. */
static void close_executions(struct reference_run *run, int32_t attempt_no, const char *owner,
			     enum lease_execution_status status)
{
	for (int i = 0; i < REFERENCE_NODES; i++) {
		struct reference_node *node = &run->nodes[i];
		struct reference_execution *last = &node->executions[node->n > 0 ? node->n - 1 : 0];

		if (node->n == 0 || last->status != LEASE_EXECUTION_RUNNING ||
		    last->run_attempt_no != attempt_no)
			continue;
		last->status = status;
		node->state_version++;
		add_event(node->events, .kind = "node_finished", .attempt_no = attempt_no,
			  .execution_no = node->n,
			  .from = lease_execution_status_name(LEASE_EXECUTION_RUNNING),
			  .to = lease_execution_status_name(status), .owner = owner,
			  .reference = last->operation_id);
	}
}

/* `to`: the run's status afterwards. */
static void close_attempt(struct reference_run *run, const struct lease_decision *decision,
			  enum lease_run_status to)
{
	struct reference_attempt *attempt = reference_open(run);
	int32_t number = number_in(run, attempt);

	attempt->outcome = decision->outcome;
	attempt->error_code = decision->attempt_error_code;
	add_event(run->events, .kind = "attempt_closed", .attempt_no = number,
		  .from = status_name(run), .to = lease_run_status_name(to),
		  .outcome = lease_outcome_name(attempt->outcome), .owner = attempt->owner,
		  .error_code = decision->run_error_code ? decision->run_error_code
							 : attempt->error_code);
	close_executions(run, number, attempt->owner,
			 lease_execution_status_after(attempt->outcome));
}

static void move_run(struct reference_run *run, const struct lease_decision *decision)
{
	if (!decision->move)
		return;
	run->status = decision->to;
	run->state_version++;
	run->error_code = decision->run_error_code;
	if (decision->delay)
		run->not_before = TIME_AHEAD;
}

static void open_attempt(struct reference_run *run, const struct lease_command *command,
			 const struct lease_decision *decision, int64_t lease_expires_at)
{
	run->attempts[run->n++] = (struct reference_attempt){
		.owner = command->owner,
		.lease_expires_at = lease_expires_at,
		.cancel = run->cancel,
	};
	add_event(run->events, .kind = "attempt_opened", .attempt_no = run->n,
		  .from = status_name(run), .to = lease_run_status_name(decision->to),
		  .owner = command->owner);
}

static void mark_cancel(struct reference_run *run)
{
	struct reference_attempt *open = reference_open(run);

	run->cancel = open->cancel = true;
	add_event(run->events, .kind = "cancel_requested", .attempt_no = number_in(run, open),
		  .from = status_name(run), .to = status_name(run), .owner = open->owner);
}

static void open_execution(struct reference *reference, struct reference_run *run,
			   const struct lease_command *command)
{
	struct reference_node *node = &run->nodes[number_of(command->node_id)];
	const char *before = node->n ? lease_execution_status_name(
					       node->executions[node->n - 1].status)
				     : NULL;

	node->executions[node->n++] = (struct reference_execution){
		.run_attempt_no = command->attempt_no,
		.status = LEASE_EXECUTION_RUNNING,
		.operation_id = command->operation_id,
	};
	node->state_version++;
	if (command->operation_id) {
		int number = number_of(command->operation_id);

		reference->operations[number].found = true;
		reference->operations[number].run = (int)(run - reference->runs);
		reference->operations[number].node = (int)(node - run->nodes);
	}
	add_event(node->events, .kind = "node_started", .attempt_no = command->attempt_no,
		  .execution_no = node->n, .from = before,
		  .to = lease_execution_status_name(LEASE_EXECUTION_RUNNING),
		  .owner = command->owner, .reference = command->operation_id);
}

static void close_execution(struct reference_run *run, const struct lease_command *command)
{
	struct reference_node *node = &run->nodes[number_of(command->node_id)];
	struct reference_execution *execution = &node->executions[command->execution_no - 1];

	execution->status = command->execution_status;
	execution->error = command->error_code;
	execution->output_ref = command->content_ref;
	node->state_version++;
	add_event(node->events, .kind = "node_finished", .attempt_no = command->attempt_no,
		  .execution_no = command->execution_no,
		  .from = lease_execution_status_name(LEASE_EXECUTION_RUNNING),
		  .to = lease_execution_status_name(execution->status), .owner = command->owner,
		  .error_code = execution->error, .reference = execution->operation_id);
}

static void record_checkpoint(struct reference *reference, struct reference_run *run,
			      const struct lease_command *command)
{
	size_t length = strlen(run->checkpoints);

	run->checkpoint_id = command->checkpoint_id;
	run->state_version++;
	reference->checkpoints[number_of(command->checkpoint_id)] = true;
	snprintf(run->checkpoints + length, sizeof(run->checkpoints) - length, " %s@%d v%lld p%lld",
		 command->checkpoint_id, command->attempt_no, (long long)run->state_version,
		 (long long)run->plan_version);
	add_event(run->events, .kind = "checkpoint_recorded", .attempt_no = command->attempt_no,
		  .from = status_name(run), .to = status_name(run), .owner = command->owner,
		  .reference = command->checkpoint_id);
}

static void change_plan(struct reference_run *run, const struct lease_command *command)
{
	run->plan_version++;
	run->state_version++;
	add_event(run->events, .kind = "plan_changed", .attempt_no = command->attempt_no,
		  .from = status_name(run), .to = status_name(run), .owner = command->owner);
}

void reference_apply(struct reference *reference, const struct lease_command *command,
		     const struct lease_decision *decision, int64_t lease_expires_at)
{
	struct reference_run *run = reference_run_of(reference, command->run_id);

	if (decision->verdict != VERDICT_APPLY)
		return;
	run->written = true;
	switch (decision->step) {
	case ATTEMPT_KEEP:
		add_event(run->events, .kind = "run_moved", .from = status_name(run),
			  .to = lease_run_status_name(decision->to),
			  .error_code = decision->run_error_code);
		break;
	case ATTEMPT_TAKE_OVER:
		close_attempt(run, decision, run->status);
		open_attempt(run, command, decision, lease_expires_at);
		break;
	case ATTEMPT_OPEN:
		open_attempt(run, command, decision, lease_expires_at);
		break;
	case ATTEMPT_REFRESH:
		reference_open(run)->lease_expires_at = lease_expires_at;
		break;
	case ATTEMPT_CLOSE:
	case ATTEMPT_CLOSE_LOST:
		close_attempt(run, decision, decision->to);
		break;
	case ATTEMPT_MARK_CANCEL:
		mark_cancel(run);
		break;
	case EXECUTION_OPEN:
		open_execution(reference, run, command);
		break;
	case EXECUTION_CLOSE:
		close_execution(run, command);
		break;
	case CHECKPOINT_RECORD:
		record_checkpoint(reference, run, command);
		break;
	case PLAN_CHANGE:
		change_plan(run, command);
		break;
	}
	move_run(run, decision);
}

void reference_leave_open(struct reference_run *run, const char *owner, bool over,
			  int64_t lease_expires_at)
{
	run->attempts[run->n++] = (struct reference_attempt){
		.owner = owner,
		.over = over,
		.lease_expires_at = lease_expires_at,
	};
	run->written = true;
}

/* -- as text ----------------------------------------------------------------------------------- */

static const char *time_name(enum reference_time time)
{
	return time == TIME_UNSET ? "none" : time == TIME_AHEAD ? "ahead" : "passed";
}

static void print_attempt(FILE *file, int number, const struct reference_attempt *attempt)
{
	bool open = attempt->outcome == LEASE_OUTCOME_NONE;

	fprintf(file, " | %d %s %s %s%s%s until %lld", number, attempt->owner,
		lease_outcome_name(attempt->outcome), or_dash(attempt->error_code),
		attempt->cancel ? " cancel" : "",
		!open           ? ""
		: attempt->over ? " over"
				: " valid",
		(long long)attempt->lease_expires_at);
}

static void print_node(FILE *file, const char *node_id, const struct reference_node *node)
{
	if (node->n == 0)
		return;
	fprintf(file, " / %s %s v%lld", node_id,
		lease_execution_status_name(node->executions[node->n - 1].status),
		(long long)node->state_version);
	for (int i = 0; i < node->n; i++) {
		const struct reference_execution *execution = &node->executions[i];

		fprintf(file, " [%d@%d %s %s %s %s]", i + 1, execution->run_attempt_no,
			lease_execution_status_name(execution->status),
			or_dash(execution->operation_id), or_dash(execution->output_ref),
			or_dash(execution->error));
	}
	fputs(node->events, file);
}

char *reference_text(const struct reference_run *run)
{
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	fprintf(file, "%s v%lld p%lld %s due %s deadline %s%s %s", status_name(run),
		(long long)run->state_version, (long long)run->plan_version,
		or_dash(run->checkpoint_id), time_name(run->not_before), time_name(run->deadline),
		run->cancel ? " cancel" : "", or_dash(run->error_code));
	for (int i = 0; i < run->n; i++)
		print_attempt(file, i + 1, &run->attempts[i]);
	for (int i = 0; i < REFERENCE_NODES; i++)
		print_node(file, reference_name("n", i), &run->nodes[i]);
	fprintf(file, " *%s !%s", run->checkpoints, run->events);
	fclose(file);
	return text;
}

#define EVENT_TEXT                                                                                 \
	"concat_ws(':', ' ' || e.kind, coalesce(e.attempt_no::text, '-'), "                        \
	"coalesce(e.execution_no::text, '-'), coalesce(e.from_status, '-'), "                      \
	"coalesce(e.to_status, '-'), coalesce(e.outcome, '-'), coalesce(e.owner, '-'), "           \
	"coalesce(e.error_code, '-'), coalesce(e.reference, '-'))"

/* A moment is ahead, or it has passed; a time that is set wrongly shows as neither. */
#define TIME_TEXT(column)                                                                          \
	"case when " column " is null then 'none' when " column                                    \
	" > c.now then 'ahead' else 'passed' end"

#define ROWS(table)                                                                                \
	"(select string_agg(format('%s %s %s', x.ctid, x.xmin, x), '|' order by x.ctid) "          \
	"from lease." table " x where x.run_id = r.run_id)"

const char REFERENCE_SQL[] =
	"select r.run_id, r.status || ' v' || r.state_version || ' p' || r.plan_version || ' ' "
	"|| coalesce(r.current_checkpoint_id, '-') || ' due ' || " TIME_TEXT("r.not_before") " || ' deadline ' || " TIME_TEXT(
		"r.deadline_at") " || case when r.cancel_requested_at is null then '' else ' cancel' end || ' ' "
				 "|| coalesce(r.terminal_error_code, '-') "
				 /* attempts */
				 "|| coalesce((select string_agg(format(' | %s %s %s %s%s%s until %s', a.attempt_no, a.owner, "
				 "coalesce(a.outcome, 'open'), coalesce(a.error_code, '-'), "
				 "case when a.cancel_requested_at is not null then ' cancel' end, "
				 "case when a.finished_at is not null then '' "
				 "when a.deadline_at is distinct from r.deadline_at then ' with another deadline' "
				 "when a.lease_expires_at > c.now then ' valid' else ' over' end, "
				 "(extract(epoch from a.lease_expires_at) * 1000000)::int8), '' order by a.attempt_no) "
				 "from lease.run_attempts a where a.run_id = r.run_id), '') "
				 /* nodes, their executions and their events */
				 "|| coalesce((select string_agg(format(' / %s %s v%s%s%s', n.node_id, n.state, "
				 "n.state_version, (select string_agg(format(' [%s@%s %s %s %s %s]', x.attempt_no, "
				 "x.run_attempt_no, x.status, coalesce(x.operation_id, '-'), coalesce(x.output_ref, '-'), "
				 "coalesce(x.normalized_error, '-')), '' order by x.attempt_no) from lease.node_executions x "
				 "where x.run_id = n.run_id and x.node_id = n.node_id), "
				 "(select string_agg(" EVENT_TEXT
				 ", '' order by e.event_id) from lease.run_events e "
				 "where e.run_id = n.run_id and e.node_id = n.node_id)), '' order by n.node_id) "
				 "from lease.nodes n where n.run_id = r.run_id), '') "
				 /* checkpoints, and the run's events */
				 "|| ' *' || coalesce((select string_agg(format(' %s@%s v%s p%s', k.checkpoint_id, "
				 "k.run_attempt_no, k.state_version, k.plan_version), '' order by k.state_version) "
				 "from lease.checkpoints k where k.run_id = r.run_id), '') "
				 "|| ' !' || coalesce((select string_agg(" EVENT_TEXT
				 ", '' order by e.event_id) "
				 "from lease.run_events e where e.run_id = r.run_id and e.node_id is null), ''), "
				 "md5(concat(r.ctid, r.xmin, r, " ROWS("run_attempts") ", " ROWS("nodes") ", " ROWS(
					 "node_executions") ", " ROWS("checkpoints") ", " ROWS("run_events") ")) "
													     "from lease.runs r cross join (select clock_timestamp() as now) c order by r.run_id";
