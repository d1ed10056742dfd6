/*
 * The state machine of runs and attempts on a real database: every row of its table. States of a run are made by hand
 * at random, lease_decide says what a command is to do, the verb does it, and the rows must then be
 * exactly what the decision says: refused and repeated commands write nothing.
 *
 * What the decisions themselves must be is tests/unit/test_machine.c's matter.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "scenario.h"

/* The commands that move a run or take its lease. */
#define N_TRIED (COMMAND_RECONCILE + 1)

static const char OWN[] = "own", OTHER[] = "other";

/* How often each row is to decide on the database. */
#define TIMES_EACH 6

/* -- a state ------------------------------------------------------------------------------------ */

struct past_attempt {
	enum lease_outcome outcome;
	bool own, suspended;
};

struct run_state {
	bool missing;
	enum lease_run_status status;
	struct past_attempt past[3];
	int n_past;
	bool open, own, valid;
	bool cancel;
	int deadline, not_before; /* 0 none, 1 ahead, 2 passed */
};

struct trial {
	struct run_state run;
	struct lease_command command;
	struct lease_decision decision;
	struct lease_facts facts;
};

static struct run_state random_run(unsigned *seed)
{
	struct run_state run = {
		.missing = random_below(seed, 30) == 0,
		.status = (enum lease_run_status)random_below(seed, 7),
		.n_past = (int)random_below(seed, 4),
		.open = random_below(seed, 2),
		.own = random_below(seed, 2),
		.valid = random_below(seed, 2),
		.cancel = random_below(seed, 3) == 0,
		.deadline = (int)random_below(seed, 3),
		.not_before = (int)random_below(seed, 3),
	};

	for (int i = 0; i < run.n_past; i++) {
		run.past[i].outcome = random_below(seed, 2)
					      ? LEASE_OUTCOME_LEASE_EXPIRED
					      : (enum lease_outcome)(random_below(seed, 6) + 1);
		run.past[i].own = random_below(seed, 2);
		run.past[i].suspended = run.past[i].outcome == LEASE_OUTCOME_INTERRUPTED &&
					random_below(seed, 2);
	}
	return run;
}

static struct lease_command random_command(unsigned *seed)
{
	enum lease_command_kind kind = (enum lease_command_kind)random_below(seed, N_TRIED);
	bool token = kind == COMMAND_RENEW || kind == COMMAND_RELEASE || kind == COMMAND_SUSPEND ||
		     kind == COMMAND_FINISH;
	bool versioned = kind == COMMAND_RESUME || kind == COMMAND_GIVE_UP ||
			 kind == COMMAND_REQUEST_CANCEL;
	bool ends = kind == COMMAND_FINISH || kind == COMMAND_GIVE_UP;

	return (struct lease_command){
		.kind = kind,
		.attempt_no = token ? (int32_t)random_below(seed, 4) + 1 : 0,
		.owner = token || kind == COMMAND_MARK_RUNNING ? OWN : NULL,
		.ttl = LONG,
		.delay = kind == COMMAND_RELEASE && random_below(seed, 2) ? LONG : 0,
		.to = ends ? (enum lease_run_status)(LEASE_RUN_COMPLETED + random_below(seed, 4))
			   : LEASE_RUN_PENDING,
		.error_code = ends || kind == COMMAND_RELEASE ? "my_code" : NULL,
		.expected_version = versioned ? (int64_t)random_below(seed, 4) : 0,
		.policy = (enum lease_policy)random_below(seed, 3),
		.max_losses = (int32_t)random_below(seed, 4),
	};
}

static int64_t version_of(const struct run_state *run)
{
	return run->status == LEASE_RUN_PENDING ? 1 : 2;
}

/* What a look finds, with hours between now and every other time. */
static struct lease_facts facts_of(const struct run_state *run, const struct lease_command *command)
{
	static const int64_t times[] = { LEASE_TIME_NONE, 1, -1 };
	struct lease_facts facts = {
		.now = 0,
		.found = true,
		.status = run->status,
		.state_version = version_of(run),
		.not_before = times[run->not_before],
		.deadline_at = times[run->deadline],
		.cancel_requested_at = run->cancel ? -1 : LEASE_TIME_NONE,
		.last_attempt_no = run->n_past + (run->open ? 1 : 0),
	};

	if (run->missing)
		return (struct lease_facts){ .now = 0 };
	if (run->open) {
		facts.open.attempt_no = run->n_past + 1;
		facts.open.owner = run->own ? OWN : OTHER;
		facts.open.lease_expires_at = run->valid ? 1 : -1;
	}
	for (int i = 0; i < run->n_past; i++) {
		const struct past_attempt *past = &run->past[i];

		facts.losses = past->outcome == LEASE_OUTCOME_LEASE_EXPIRED ? facts.losses + 1 : 0;
		if (command->kind == COMMAND_MARK_RUNNING && past->own)
			facts.owner_closed = true;
		if (command->attempt_no != i + 1)
			continue;
		facts.named.attempt_no = i + 1;
		facts.named.owner = past->own ? OWN : OTHER;
		facts.named.outcome = past->outcome;
		facts.named.error_code = past->suspended ? "suspended" : NULL;
	}
	if (run->open && command->attempt_no == run->n_past + 1) {
		facts.named.attempt_no = command->attempt_no;
		facts.named.owner = facts.open.owner;
	}
	return facts;
}

static void insert_run(struct scenario *s, const char *run_id, const struct run_state *run)
{
	static const char *const times[] = { "null", "clock_timestamp() + interval '5 h'",
					     "clock_timestamp() - interval '5 h'" };
	bool ended = lease_run_status_is_terminal(run->status);

	if (run->missing)
		return;
	sql(s->admin,
	    "begin; insert into lease.runs (run_id, deadline_at, not_before) values ('%s', %s, %s)",
	    run_id, times[run->deadline], times[run->not_before]);
	for (int i = 0; i < run->n_past + (run->open ? 1 : 0); i++) {
		bool open = i == run->n_past, own = open ? run->own : run->past[i].own;

		sql(s->admin,
		    "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, deadline_at, "
		    "cancel_requested_at) select run_id, %d, '%s', clock_timestamp() + interval '%s', "
		    "deadline_at, %s from lease.runs where run_id = '%s'",
		    i + 1, own ? OWN : OTHER, open && run->valid ? "2 h" : "-2 h",
		    open && run->cancel ? "clock_timestamp()" : "null", run_id);
		if (!open)
			sql(s->admin,
			    "update lease.run_attempts set finished_at = clock_timestamp(), outcome = '%s', "
			    "error_code = %s where run_id = '%s' and attempt_no = %d",
			    lease_outcome_name(run->past[i].outcome),
			    run->past[i].suspended ? "'suspended'" : "null", run_id, i + 1);
	}
	sql(s->admin,
	    "update lease.runs set status = '%s', state_version = %d, finished_at = %s, "
	    "cancel_requested_at = %s where run_id = '%s'; commit",
	    lease_run_status_name(run->status), (int)version_of(run),
	    ended ? "clock_timestamp()" : "null", run->cancel ? "clock_timestamp()" : "null",
	    run_id);
}

/* -- doing it -------------------------------------------------------------------------------------- */

static void append(char *text, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

static void append(char *text, size_t size, const char *format, ...)
{
	size_t length = strlen(text);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text + length, size - length, format, arguments);
	va_end(arguments);
}

static void append_attempt(char *text, size_t size, int number, const char *owner,
			   enum lease_outcome outcome, const char *error_code)
{
	append(text, size, " | %d %s %s%s%s", number, owner, lease_outcome_name(outcome),
	       error_code ? " " : "", error_code ? error_code : "");
}

/* The run as assert_run puts it, after the decision was applied. */
static void expect(const struct trial *t, char *text, size_t size)
{
	const struct run_state *run = &t->run;
	const struct lease_decision *d = &t->decision;
	bool closes = d->step == ATTEMPT_CLOSE || d->step == ATTEMPT_CLOSE_LOST ||
		      d->step == ATTEMPT_TAKE_OVER;
	int n = run->n_past;

	*text = '\0';
	append(text, size, "%s v%d%s%s", lease_run_status_name(d->to),
	       (int)version_of(run) + (d->move ? 1 : 0), d->run_error_code ? " " : "",
	       d->run_error_code ? d->run_error_code : "");
	for (int i = 0; i < n; i++)
		append_attempt(text, size, i + 1, run->past[i].own ? OWN : OTHER,
			       run->past[i].outcome, run->past[i].suspended ? "suspended" : NULL);
	if (run->open)
		append_attempt(text, size, ++n, run->own ? OWN : OTHER,
			       closes ? d->outcome : LEASE_OUTCOME_NONE,
			       closes ? d->attempt_error_code : NULL);
	if (d->step == ATTEMPT_OPEN || d->step == ATTEMPT_TAKE_OVER)
		append_attempt(text, size, n + 1, t->command.owner, LEASE_OUTCOME_NONE, NULL);
}

/* What the status line does not show. */
static void check_details(struct scenario *s, const struct trial *t)
{
	const struct lease_decision *d = &t->decision;
	const char *run_id = t->command.run_id;

	if (d->step == ATTEMPT_MARK_CANCEL)
		assert_sql(
			s->admin, "t",
			"select r.cancel_requested_at is not null and r.cancel_requested_at = "
			"a.cancel_requested_at from lease.runs r join lease.run_attempts a using (run_id) "
			"where run_id = '%s' and a.finished_at is null",
			run_id);
	if (d->move && t->command.kind == COMMAND_RELEASE && t->command.delay)
		assert_sql(
			s->admin, "t",
			"select not_before between clock_timestamp() + interval '59 min' "
			"and clock_timestamp() + interval '1 h' from lease.runs where run_id = '%s'",
			run_id);
	if (d->step == ATTEMPT_OPEN || d->step == ATTEMPT_TAKE_OVER || d->step == ATTEMPT_REFRESH)
		assert_sql(
			s->admin, "t",
			"select a.lease_expires_at > clock_timestamp() and a.heartbeat_at > "
			"clock_timestamp() - interval '1 min' and a.deadline_at is not distinct from "
			"r.deadline_at and (a.attempt_no > 1 or a.started_at <= a.heartbeat_at) "
			"from lease.runs r join lease.run_attempts a using (run_id) "
			"where run_id = '%s' and a.finished_at is null",
			run_id);
}

static void try_it(struct scenario *s, const struct trial *t)
{
	const struct lease_decision *d = &t->decision;
	const char *run_id = t->command.run_id;
	bool quiet = d->verdict != VERDICT_APPLY;
	struct performed performed;
	char *before = NULL, expected[512];
	int r;

	insert_run(s, run_id, &t->run);
	if (!t->run.missing)
		before = run_bytes(s, run_id);
	r = perform(s->worker, &t->command, &performed);
	if (t->command.kind == COMMAND_RECONCILE)
		assert_granted(r); /* it tells of no single run */
	else
		assert_refused(d->verdict == VERDICT_REFUSE ? (int)d->refusal : 0, r);
	if (r == 0 && t->command.kind != COMMAND_RECONCILE)
		assert_int_equal(performed.changed, !quiet);
	if (t->run.missing) {
		assert_sql(s->admin, "0", "select count(*) from lease.runs where run_id = '%s'",
			   run_id);
	} else if (quiet) {
		assert_untouched(s, run_id, before);
	} else {
		free(before);
		expect(t, expected, sizeof(expected));
		assert_run(s, run_id, expected);
		check_details(s, t);
	}
}

static void describe(const struct trial *t, int number)
{
	const struct lease_rule *rule = &lease_rules[t->decision.rule];

	print_error("trial %d: %s, row %d (%s), run %s, %d attempts before%s%s\n", number,
		    lease_command_name(t->command.kind), t->decision.rule,
		    lease_guard_text(rule->guard),
		    t->run.missing ? "missing" : lease_run_status_name(t->run.status),
		    t->run.n_past, t->run.open ? ", one open" : "",
		    t->run.cancel ? ", cancel requested" : "");
}

/*
 * The verbs never ask for this: they refuse the argument before anything is sent. What an owner
 * writes under its lease is test_nodes.c's and test_checkpoints.c's.
 */
static bool is_out_of_reach(const struct lease_rule *rule)
{
	if (rule->command >= N_TRIED)
		return true;
	return rule->command == COMMAND_FINISH &&
	       strcmp(lease_guard_text(rule->guard), "the status asked for is not terminal") == 0;
}

static int current_trial;
static struct trial current;

static int tell_where(void **state)
{
	(void)state;
	if (current_trial)
		describe(&current, current_trial);
	return scenario_close(state);
}

static void every_row_of_the_table_on_a_real_database(void **state)
{
	struct scenario *s = *state;
	int *reached = calloc((size_t)lease_rules_count, sizeof(*reached));
	unsigned seed = 4242;
	int missed = 0;

	for (int i = 0; i < 400000; i++) {
		char run_id[16];
		struct trial *t = &current;

		*t = (struct trial){ .run = random_run(&seed), .command = random_command(&seed) };
		t->facts = facts_of(&t->run, &t->command);
		lease_decide(&t->facts, &t->command, &t->decision);
		if (reached[t->decision.rule]++ >= TIMES_EACH)
			continue;
		snprintf(run_id, sizeof(run_id), "r%d", i);
		t->command.run_id = run_id;
		current_trial = i + 1;
		try_it(s, t);
	}
	current_trial = 0;
	for (int i = 0; i < lease_rules_count; i++)
		if (lease_rules[i].command <= COMMAND_RECONCILE && reached[i] == 0 &&
		    !is_out_of_reach(&lease_rules[i])) {
			print_error("row %d is never reached: %s, %s\n", i,
				    lease_command_name(lease_rules[i].command),
				    lease_guard_text(lease_rules[i].guard));
			missed++;
		}
	free(reached);
	assert_int_equal(missed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(every_row_of_the_table_on_a_real_database,
						scenario_open, tell_where),
	};

	return cmocka_run_group_tests_name("table", tests, NULL, scenario_end);
}
