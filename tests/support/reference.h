/*
 * The reference that the property test compares a real database with: a few runs in memory, with
 * their attempts, nodes, checkpoints and events, which stand where lease_decide says.
 *
 * It decides nothing itself. It makes the facts of a command from what it remembers, and writes
 * down what a decision says. Of time it knows what a decision depends on: whether a moment is
 * ahead or has passed; how far ahead, only for the ends of leases, which the database told it.
 *
 * Names are short and made from numbers: run r0, owner w3, node n1, operation op2, checkpoint cp4.
 * Everything is of a fixed size: a sequence of REFERENCE_STEPS commands fits. It uses no database.
 */
#ifndef LEASE_TEST_REFERENCE_H
#define LEASE_TEST_REFERENCE_H

#include "machine.h"

enum {
	REFERENCE_STEPS = 100,
	REFERENCE_RUNS = 3,
	REFERENCE_NODES = 2,
	REFERENCE_OPERATIONS = 3,
};

enum reference_time { TIME_UNSET, TIME_AHEAD, TIME_PASSED };

struct reference_attempt {
	const char *owner;
	enum lease_outcome outcome; /* NONE: open */
	const char *error_code;
	bool over; /* counts while it is open */
	int64_t lease_expires_at;
	bool cancel;
};

struct reference_execution {
	int32_t run_attempt_no;
	enum lease_execution_status status;
	const char *operation_id, *output_ref, *error;
};

struct reference_node {
	struct reference_execution executions[REFERENCE_STEPS]; /* from 0: number 1 */
	int n;
	int64_t state_version;
	char events[REFERENCE_STEPS * 80];
};

struct reference_run {
	bool found;
	int order; /* of submission */
	enum lease_run_status status;
	int64_t state_version, plan_version;
	enum reference_time not_before, deadline;
	int64_t deadline_at; /* LEASE_TIME_NONE: none */
	bool cancel;
	const char *error_code;
	const char *checkpoint_id;
	struct reference_attempt attempts[REFERENCE_STEPS]; /* from 0: number 1 */
	int n;
	struct reference_node nodes[REFERENCE_NODES];
	char checkpoints[REFERENCE_STEPS * 24];
	char events[REFERENCE_STEPS * 80];
	bool written; /* by the newest command */
};

struct reference {
	struct reference_run runs[REFERENCE_RUNS];
	int submitted;
	struct {
		bool found;
		int run, node;
	} operations[REFERENCE_OPERATIONS];
	bool checkpoints[REFERENCE_STEPS + 1]; /* ids in use */
};

/* "r0", "w12" …: lives as long as the program. `number` is below REFERENCE_STEPS + 1. */
const char *reference_name(const char *prefix, int number);
/* The run that a command names; every command but a sweep's names one. */
struct reference_run *reference_run_of(struct reference *reference, const char *run_id);
/* The open attempt; NULL: there is none. */
struct reference_attempt *reference_open(struct reference_run *run);

/* What a look would find. The strings are the reference's. */
struct lease_facts reference_facts(struct reference *reference,
				   const struct lease_command *command);
/* Which run lease_claim_next takes; NULL: none is due. */
const char *reference_next(struct reference *reference, bool take_over);

/* Forgets what the newest command wrote. */
void reference_begin(struct reference *reference);
void reference_submit(struct reference *reference, int run, bool delayed, int64_t deadline_at);
/* Writes down a decision; `lease_expires_at` of the attempt that it opens or refreshes. */
void reference_apply(struct reference *reference, const struct lease_command *command,
		     const struct lease_decision *decision, int64_t lease_expires_at);
/* An attempt that a writer without manners left open on a run, whatever the run's status. */
void reference_leave_open(struct reference_run *run, const char *owner, bool over,
			  int64_t lease_expires_at);

/* All of a run in one line, to be freed: what REFERENCE_SQL gives for each run of a database. */
char *reference_text(const struct reference_run *run);
/* Rows by run_id: run_id, the text above, a digest that every write to the run changes. */
extern const char REFERENCE_SQL[];

#endif
