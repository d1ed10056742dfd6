/*
 * state_machine.c - writes docs/state-machine.md from the table in lib/machine.c.
 *
 * The page is what the table says: every row with its guard, and two pictures of the moves. It is
 * written by `make pages` and kept in the repository for readers; docs/check.sh compares the two,
 * so that a changed row cannot leave the page behind. Where a row leaves the status to the command
 * lease_decide() itself is asked which it grants.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"

#define N_STATUSES (LEASE_RUN_INTERRUPTED + 1)
#define N_OUTCOMES (LEASE_OUTCOME_LEASE_EXPIRED + 1)
#define MAX_LINES 16

/* What stands at one arrow: each line once. */
struct arrow {
	const char *commands[MAX_LINES], *guards[MAX_LINES];
	int n;
};

static bool is_terminal(int status)
{
	return lease_run_status_is_terminal((enum lease_run_status)status);
}

static void drop_lines(struct arrow *arrow, const char *command)
{
	int kept = 0;

	for (int i = 0; i < arrow->n; i++)
		if (strcmp(arrow->commands[i], command) != 0) {
			arrow->commands[kept] = arrow->commands[i];
			arrow->guards[kept++] = arrow->guards[i];
		}
	arrow->n = kept;
}

/* Where a command does it under several guards and without any, no guard is worth telling. */
static void add_line(struct arrow *arrow, const struct lease_rule *rule)
{
	const char *command = lease_command_name(rule->command);
	const char *guard = lease_guard_text(rule->guard);

	for (int i = 0; i < arrow->n; i++)
		if (strcmp(arrow->commands[i], command) == 0 &&
		    (!*arrow->guards[i] || strcmp(arrow->guards[i], guard) == 0))
			return;
	if (!*guard)
		drop_lines(arrow, command);
	if (arrow->n == MAX_LINES) {
		fprintf(stderr, "state_machine: more than %d lines at one arrow\n", MAX_LINES);
		exit(70);
	}
	arrow->commands[arrow->n] = command;
	arrow->guards[arrow->n++] = guard;
}

/* Labels are one line to mermaid, in which a semicolon or a colon more would end it. */
static void print_arrow(const char *from, const char *to, const struct arrow *arrow)
{
	if (!arrow->n)
		return;
	printf("    %s --> %s : ", from, to);
	for (int i = 0; i < arrow->n; i++)
		printf("%s%s%s%s%s", i ? "<br/>" : "", arrow->commands[i],
		       *arrow->guards[i] ? " (" : "", arrow->guards[i],
		       *arrow->guards[i] ? ")" : "");
	printf("\n");
}

/* Whether this row leads from one status to the other when the command asks for it. */
static bool grants(int row, int from, int to)
{
	static const char owner[] = "worker";

	for (int i = 0; i < 4; i++) {
		bool open = i & 1, cancel = i & 2;
		struct lease_command command = { .kind = lease_rules[row].command,
						 .run_id = "run",
						 .attempt_no = 1,
						 .owner = owner,
						 .to = (enum lease_run_status)to };
		struct lease_facts facts = { .now = 1,
					     .found = true,
					     .status = (enum lease_run_status)from,
					     .not_before = LEASE_TIME_NONE,
					     .deadline_at = LEASE_TIME_NONE,
					     .cancel_requested_at = cancel ? 1 : LEASE_TIME_NONE,
					     .named = { .attempt_no = 1, .owner = owner },
					     .last_attempt_no = 1 };
		struct lease_decision decision;

		if (open) {
			facts.open.attempt_no = 1;
			facts.open.owner = owner;
			facts.open.lease_expires_at = 2;
		}
		lease_decide(&facts, &command, &decision);
		if (decision.rule == row && decision.verdict == VERDICT_APPLY &&
		    (int)decision.to == to)
			return true;
	}
	return false;
}

static bool leads(int row, int from, int to)
{
	const struct lease_rule *rule = &lease_rules[row];

	if (rule->verdict != VERDICT_APPLY || !(rule->from & 1u << from))
		return false;
	if (rule->to == TO_COMMAND)
		return grants(row, from, to);
	if (rule->to == TO_SAME)
		return from == to && rule->from == 1u << from;
	return rule->to == to;
}

static void print_runs(void)
{
	printf("```mermaid\nstateDiagram-v2\n    [*] --> pending : submit\n");
	for (int from = 0; from < N_STATUSES; from++)
		for (int to = 0; to < N_STATUSES; to++) {
			struct arrow arrow = { .n = 0 };

			for (int row = 0; row < lease_rules_count; row++)
				if (leads(row, from, to))
					add_line(&arrow, &lease_rules[row]);
			print_arrow(lease_run_status_name((enum lease_run_status)from),
				    lease_run_status_name((enum lease_run_status)to), &arrow);
		}
	for (int status = 0; status < N_STATUSES; status++)
		if (is_terminal(status))
			printf("    %s --> [*]\n",
			       lease_run_status_name((enum lease_run_status)status));
	printf("```\n");
}

static bool opens(const struct lease_rule *rule)
{
	return rule->step == ATTEMPT_OPEN || rule->step == ATTEMPT_TAKE_OVER;
}

/* Whether this row closes an attempt with this outcome. */
static bool closes(int row, int outcome)
{
	const struct lease_rule *rule = &lease_rules[row];

	switch (rule->step) {
	case ATTEMPT_TAKE_OVER:
	case ATTEMPT_CLOSE_LOST:
		return (int)rule->outcome == outcome;
	case ATTEMPT_CLOSE:
		if (rule->to != TO_COMMAND)
			return (int)rule->outcome == outcome;
		for (int to = 0; to < N_STATUSES; to++)
			if (grants(row, LEASE_RUN_RUNNING, to) &&
			    strcmp(lease_run_status_name((enum lease_run_status)to),
				   lease_outcome_name((enum lease_outcome)outcome)) == 0)
				return true;
		return false;
	default:
		return false;
	}
}

static void print_attempts(void)
{
	struct arrow opening = { .n = 0 }, refreshing = { .n = 0 };
	const char *open = lease_outcome_name(LEASE_OUTCOME_NONE);

	printf("```mermaid\nstateDiagram-v2\n");
	for (int row = 0; row < lease_rules_count; row++) {
		if (opens(&lease_rules[row]))
			add_line(&opening, &lease_rules[row]);
		if (lease_rules[row].step == ATTEMPT_REFRESH)
			add_line(&refreshing, &lease_rules[row]);
	}
	print_arrow("[*]", open, &opening);
	print_arrow(open, open, &refreshing);
	for (int outcome = LEASE_OUTCOME_NONE + 1; outcome < N_OUTCOMES; outcome++) {
		const char *name = lease_outcome_name((enum lease_outcome)outcome);
		struct arrow arrow = { .n = 0 };

		for (int row = 0; row < lease_rules_count; row++)
			if (closes(row, outcome))
				add_line(&arrow, &lease_rules[row]);
		print_arrow(open, name, &arrow);
		printf("    %s --> [*]\n", name);
	}
	printf("```\n");
}

static void print_from(unsigned from)
{
	unsigned any = (1u << N_STATUSES) - 1, terminal = 0;
	const char *comma = "";

	for (int status = 0; status < N_STATUSES; status++)
		if (is_terminal(status))
			terminal |= 1u << status;
	if (from == any) {
		printf("any");
		return;
	}
	for (int status = 0; status < N_STATUSES; status++) {
		if (!(from & 1u << status) ||
		    ((from & terminal) == terminal && is_terminal(status)))
			continue;
		printf("%s`%s`", comma, lease_run_status_name((enum lease_run_status)status));
		comma = ", ";
	}
	if ((from & terminal) == terminal)
		printf("%sterminal", comma);
}

static void print_attempt(const struct lease_rule *rule)
{
	const char *outcome = lease_outcome_name(rule->outcome);

	switch (rule->step) {
	case ATTEMPT_KEEP:
		break;
	case ATTEMPT_OPEN:
		printf("opens");
		break;
	case ATTEMPT_TAKE_OVER:
		printf("the open one closes as `%s`, a new one opens", outcome);
		break;
	case ATTEMPT_REFRESH:
		printf("heartbeat and lease refreshed");
		break;
	case ATTEMPT_CLOSE:
		if (rule->outcome == LEASE_OUTCOME_NONE)
			printf("closes with the same word");
		else
			printf("closes as `%s`", outcome);
		break;
	case ATTEMPT_CLOSE_LOST:
		printf("the open one, if any, closes as `%s`", outcome);
		break;
	case ATTEMPT_MARK_CANCEL:
		printf("the request is noted on it and on the run");
		break;
	case EXECUTION_OPEN:
		printf("an execution of the node opens under it");
		break;
	case EXECUTION_CLOSE:
		printf("the execution closes");
		break;
	case CHECKPOINT_RECORD:
		printf("the checkpoint is recorded");
		break;
	case PLAN_CHANGE:
		printf("`plan_version` + 1");
		break;
	}
}

static void print_row(const struct lease_rule *rule)
{
	printf("| ");
	print_from(rule->from);
	printf(" | %s | ", lease_guard_text(rule->guard));
	if (rule->verdict == VERDICT_REFUSE) {
		printf("refused: `%s` | |\n", lease_refusal_name((int)rule->refusal));
		return;
	}
	if (rule->verdict == VERDICT_UNCHANGED) {
		printf("granted, nothing to write | |\n");
		return;
	}
	if (rule->to == TO_SAME)
		printf("stays");
	else if (rule->to == TO_COMMAND)
		printf("the status asked for");
	else
		printf("`%s`", lease_run_status_name((enum lease_run_status)rule->to));
	if (rule->run_error_code)
		printf(", `%s`", rule->run_error_code);
	printf(" | ");
	print_attempt(rule);
	printf(" |\n");
}

static void print_table(void)
{
	for (int kind = 0; kind < N_COMMANDS; kind++) {
		printf("\n### %s\n\n", lease_command_name((enum lease_command_kind)kind));
		printf("| from | if | the run | the attempt |\n|---|---|---|---|\n");
		for (int row = 0; row < lease_rules_count; row++)
			if ((int)lease_rules[row].command == kind)
				print_row(&lease_rules[row]);
	}
}

int main(void)
{
	printf("<!-- Written by `make pages` from lib/machine.c: change the table there. -->\n\n"
	       "# The state machine\n\n"
	       "What each command does to a run and to its attempt, as `lease_decide` in\n"
	       "`lib/machine.c` decides it. [How it works](how-it-works.md) explains the words\n"
	       "and the reasons.\n\n"
	       "## A run\n\n"
	       "In brackets stands what must hold besides; rows further up in the [table](#the-table)\n"
	       "may refuse first. What a reconciled run becomes under which policy stands there, too.\n"
	       "\n");
	print_runs();
	printf("\n## An attempt\n\n"
	       "A closed attempt never changes again.\n\n");
	print_attempts();
	printf("\n## The table\n\n"
	       "The rows of a command are tried from top to bottom; the first whose status and\n"
	       "condition fit decides. \"Its lease is over\" heeds an amnesty\n"
	       "([decision 0004](decisions/0004-amnesty.md)).\n");
	print_table();
	return fflush(stdout) || ferror(stdout) ? 74 : 0;
}
