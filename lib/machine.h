/*
 * machine.h - the state machine of a run and its attempts: one table, pure.
 *
 * lease_decide() takes what is known of a run (the facts, the time among them) and a command, and
 * says what is to be written, or which refusal to give. It does no I/O, reads no clock, allocates
 * nothing, and knows neither SQL nor libpq. Every writer of the system, worker verbs and
 * reconciler alike, goes through it.
 */
#ifndef LEASE_MACHINE_H
#define LEASE_MACHINE_H

#include "lease.h"

enum lease_command_kind {
	COMMAND_MARK_RUNNING,
	COMMAND_RENEW,
	COMMAND_RELEASE,
	COMMAND_SUSPEND,
	COMMAND_RESUME,
	COMMAND_FINISH, /* set_terminal_status by the owner */
	COMMAND_GIVE_UP, /* set_terminal_status of a run that nobody works on */
	COMMAND_REQUEST_CANCEL,
	COMMAND_RECONCILE,
	COMMAND_START_NODE,
	COMMAND_FINISH_NODE,
	COMMAND_RECORD_CHECKPOINT,
	COMMAND_CHANGE_PLAN,
	N_COMMANDS,
};

/* Strings are borrowed; they must outlive the command. */
struct lease_command {
	enum lease_command_kind kind;
	const char *run_id;
	int32_t attempt_no; /* the fencing token's; 0: none */
	const char *owner; /* the fencing token's or the claimant's; NULL: none */
	int64_t ttl; /* mark_running, renew */
	int64_t delay; /* release */
	enum lease_run_status to; /* finish */
	const char *error_code, *error_message;
	const char *trace_id;
	int64_t expected_version; /* 0: any */
	enum lease_policy policy; /* reconcile */
	int32_t max_losses; /* reconcile, policy requeue; 0: no limit */
	const char *node_id;
	int32_t execution_no; /* finish_node */
	enum lease_execution_status execution_status; /* finish_node */
	const char *operation_id; /* start_node; NULL: no side effect */
	const char *content_ref; /* a node's input or output, a checkpoint's content; NULL: none */
	const char *checkpoint_id;
};

/* What the look found. Strings are borrowed. */
struct lease_facts {
	int64_t now;
	bool found; /* the run is there; otherwise nothing below counts */
	enum lease_run_status status;
	int64_t state_version;
	int64_t not_before, deadline_at, cancel_requested_at;
	struct {
		int32_t attempt_no; /* 0: the run has no open attempt */
		const char *owner;
		int64_t lease_expires_at;
	} open;
	struct {
		int32_t attempt_no; /* the attempt that the token names; 0: there is none */
		const char *owner;
		enum lease_outcome outcome;
		const char *error_code;
	} named;
	/* the reconciler's; not found where the lease holds by the clock, or there is none */
	struct {
		bool found;
		int64_t beat_at, protect_from, amnesty_until, after;
	} heartbeat;
	bool owner_closed; /* the owner stands on a closed attempt of the run */
	int32_t last_attempt_no; /* the highest; 0: none; looked for when the command has an owner */
	int32_t losses; /* newest closed attempts without a break that are lease_expired */
	const char *checkpoint_id; /* the run's current one */
	/* of the node that the command names */
	struct {
		int32_t last_execution_no; /* 0: it was never executed */
		enum lease_execution_status state; /* of its newest execution */
		const char *output_ref; /* the same */
		bool operation_found, operation_here; /* known; and of this node and run */
		int32_t named_execution_no; /* the execution that the command names; 0: none */
		int32_t named_run_attempt_no;
		enum lease_execution_status named_status;
	} node;
};

enum lease_verdict {
	VERDICT_APPLY, /* write what the decision says */
	VERDICT_UNCHANGED, /* it is so already: write nothing, report success */
	VERDICT_REFUSE,
};

enum lease_step {
	ATTEMPT_KEEP,
	ATTEMPT_OPEN, /* open last_attempt_no + 1 */
	ATTEMPT_TAKE_OVER, /* close the open one as lease_expired, then open last_attempt_no + 1 */
	ATTEMPT_REFRESH, /* heartbeat and lease */
	ATTEMPT_CLOSE, /* by its owner */
	ATTEMPT_CLOSE_LOST, /* the open one, if any, as lease_expired: its lease is over */
	ATTEMPT_MARK_CANCEL, /* cancel_requested_at on run and open attempt */
	EXECUTION_OPEN, /* last_execution_no + 1 of the node, under the open attempt */
	EXECUTION_CLOSE,
	CHECKPOINT_RECORD,
	PLAN_CHANGE,
};

struct lease_decision {
	enum lease_verdict verdict;
	enum lease_refusal refusal; /* VERDICT_REFUSE */
	enum lease_step step;
	bool move; /* the run's status changes to `to` */
	enum lease_run_status to; /* the run's status afterwards, moved or not */
	int64_t delay; /* moved to pending: not_before = now + delay; 0: as it is */
	enum lease_outcome outcome; /* of the attempt that closes */
	const char *attempt_error_code, *attempt_error_message;
	const char *run_error_code, *run_error_message; /* moved to a terminal status */
	int rule; /* index of the row that decided */
};

/* Decides. Always finds a row. */
void lease_decide(const struct lease_facts *facts, const struct lease_command *command,
		  struct lease_decision *ret);

/* The table, for tests and for the page that is generated from it. */
struct lease_rule {
	enum lease_command_kind command;
	unsigned from; /* bit mask over enum lease_run_status */
	int guard; /* index for lease_guard_text */
	enum lease_verdict verdict;
	enum lease_refusal refusal;
	enum lease_step step;
	int to; /* enum lease_run_status, or one of the two below */
	enum lease_outcome outcome; /* NONE with ATTEMPT_CLOSE: the word of `to` */
	const char *run_error_code;
};
#define TO_SAME (-1) /* the run's status stays */
#define TO_COMMAND (-2) /* the status that the command names */

extern const struct lease_rule lease_rules[];
extern const int lease_rules_count;
const char *lease_guard_text(int guard);
const char *lease_command_name(enum lease_command_kind kind);
bool lease_command_is_about_node(enum lease_command_kind kind);
/* What executions that are open under an attempt become when it closes. */
enum lease_execution_status lease_execution_status_after(enum lease_outcome outcome);
int lease_outcome_parse(const char *name); /* -1: none of them */
int lease_execution_status_parse(const char *name); /* -1: none of them */

/* Words that others must not spell. */
extern const char LEASE_ERROR_WORKER_LOST[]; /* worker_lease_expired */
extern const char LEASE_ERROR_DEADLINE[]; /* deadline_exceeded */
extern const char LEASE_ERROR_LOSSES[]; /* lease_losses_exhausted */
extern const char LEASE_ERROR_SUSPENDED[]; /* suspended */

#endif
