/*
 * lease.h - runs, their execution attempts, and the leases that workers hold on them.
 *
 * A *run* is a logical piece of work. A worker takes it by claiming a *lease*, which opens an
 * *attempt*: one immutable-once-closed row that says who owned the run, from when to when, and how
 * it ended. The worker renews the lease while it works and ends the attempt when it is done. When
 * it vanishes, a reconciler closes the attempt as `lease_expired` and moves the run on by policy.
 *
 * What holds for every function here:
 *
 * - It returns 0 when it did what was asked (or when that had been done before, see `changed`), a
 *   positive enum lease_refusal when the state machine refuses, and a negative enum lease_errno
 *   when something failed. A refusal changes nothing. After an error the outcome is "nothing
 *   changed", unless `reterr->outcome_unknown` is set: then the commit may have taken place, and
 *   calling the same verb again with the same arguments is safe and tells.
 * - Outputs come last and are untouched on error. `reterr` may be NULL.
 * - A connection must be idle: no transaction open, no pipeline, no COPY. The functions open and
 *   end their own transactions and leave the connection as they found it, but for prepared statements
 *   named `lease_1`, `lease_2` …, which verbs and sweeps keep from their sixth use on: parsing and
 *   planning are most of what a verb costs. Behind a pooler, which is told by its cancel key, nothing is
 *   prepared and nothing kept in the session: transaction pooling is fine. DISCARD and DEALLOCATE
 *   are, too; nothing is prepared on that connection afterwards. One connection serves one thread
 *   at a time; there is no global state.
 * - `timeout` is how long a call may take in all. Half of it is set as statement_timeout on the
 *   server and a third as lock_timeout, so that a slow server or a lock mostly ends as LEASE_E_SERVER
 *   on a connection that stays usable; after LEASE_E_TIMEOUT the connection must be closed. Half of
 *   it is idle_in_transaction_session_timeout too: a caller that is stopped within a call, or whose
 *   network is gone, holds up nobody for longer; its session is then closed by the server.
 * - All durations are microseconds (LEASE_SECOND is one million of them). All times are
 *   microseconds since 1970-01-01 00:00 UTC by the *database's* clock; LEASE_TIME_NONE stands for
 *   SQL NULL. The one exception is `local_end`, see struct lease_grant.
 * - Identifiers (run_id, owner, tenant_id, node_id, operation_id, trace_id, error_code …) are 1 to LEASE_ID_MAX bytes of
 *   UTF-8 without NUL, content references 1 to LEASE_REF_MAX; error messages are at most
 *   LEASE_MESSAGE_MAX bytes. Longer ones are refused with LEASE_E_INVALID before anything is sent.
 * - The library never logs, never exits, installs no signal handler and starts no thread.
 */
#ifndef LEASE_H
#define LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LEASE_PUBLIC __attribute__((visibility("default")))

/* The same declaration as in libpq-fe.h; this header needs no other. */
typedef struct pg_conn PGconn;

#define LEASE_MILLISECOND INT64_C(1000)
#define LEASE_SECOND INT64_C(1000000)
#define LEASE_TIME_NONE INT64_MIN
#define LEASE_ID_MAX 255
#define LEASE_MESSAGE_MAX 16384
#define LEASE_REF_MAX 1024
/* The longest ttl, delay or deadline: ten years. */
#define LEASE_DURATION_MAX (INT64_C(3650) * 86400 * LEASE_SECOND)
/* What `timeout` means when it is 0. */
#define LEASE_TIMEOUT_DEFAULT (10 * LEASE_SECOND)
/* The newest migration that this library knows; it works with exactly this schema. */
#define LEASE_SCHEMA_VERSION 8

/* -- words ------------------------------------------------------------------------------------ */

enum lease_run_status {
	LEASE_RUN_PENDING,
	LEASE_RUN_RUNNING,
	LEASE_RUN_WAITING,
	LEASE_RUN_COMPLETED, /* this and the following are terminal */
	LEASE_RUN_FAILED,
	LEASE_RUN_CANCELLED,
	LEASE_RUN_INTERRUPTED,
};

enum lease_outcome {
	LEASE_OUTCOME_NONE, /* the attempt is open */
	LEASE_OUTCOME_COMPLETED,
	LEASE_OUTCOME_FAILED,
	LEASE_OUTCOME_CANCELLED,
	LEASE_OUTCOME_INTERRUPTED,
	LEASE_OUTCOME_RETRY_RELEASED,
	LEASE_OUTCOME_LEASE_EXPIRED,
};

/* Of a node execution, and so of its node. */
enum lease_execution_status {
	LEASE_EXECUTION_RUNNING,
	LEASE_EXECUTION_SUCCEEDED,
	LEASE_EXECUTION_FAILED,
	LEASE_EXECUTION_LEASE_EXPIRED, /* its worker was lost: whether it took effect is unknown */
	LEASE_EXECUTION_ABANDONED, /* its attempt ended otherwise: unknown as well */
};

enum lease_refusal {
	LEASE_NOT_FOUND = 1, /* no such run; for lease_claim_next: no run is due */
	LEASE_HELD, /* another attempt is open on the run */
	LEASE_NOT_OWNER, /* the fencing token names no attempt of this owner */
	LEASE_EXPIRED, /* the owner's attempt is over: its lease ran out, or it was closed */
	LEASE_TERMINAL, /* the run has ended */
	LEASE_CANCEL_REQUESTED, /* only `cancelled` may end this run now */
	LEASE_DEADLINE, /* the run's deadline has passed */
	LEASE_NOT_BEFORE, /* the run is not due yet */
	LEASE_STALE_VERSION, /* state_version is not the expected one */
	LEASE_OPERATION_CONFLICT, /* the operation_id belongs to another node or run */
	LEASE_ILLEGAL, /* the command does not fit the run's status */
};

enum lease_policy {
	LEASE_POLICY_RECORD, /* close the attempt, leave the run as it is: whoever may, claims it */
	LEASE_POLICY_FAIL, /* the run becomes failed, `worker_lease_expired` */
	LEASE_POLICY_REQUEUE, /* the run becomes pending, up to max_lease_losses in a row */
};

enum lease_errno {
	LEASE_E_INVALID = -1, /* an argument; nothing was sent */
	LEASE_E_MEMORY = -2, /* out of memory */
	LEASE_E_BUSY = -3, /* the connection is not idle; nothing was sent */
	LEASE_E_CONNECTION = -4, /* the connection is not there or was lost; see outcome_unknown */
	LEASE_E_TIMEOUT = -5, /* no answer within `timeout`; the connection must be closed */
	LEASE_E_SERVER = -6, /* the server refused; sqlstate tells why */
	LEASE_E_PROTOCOL = -7, /* the answer has not the form that this library expects */
	LEASE_E_READ_ONLY = -8, /* the server is a standby or read-only */
	LEASE_E_SCHEMA = -9, /* schema `lease` is missing, too old or too new */
	LEASE_E_SYSTEM = -10, /* the operating system refused (clock, random numbers) */
};

/* What to do after an error; lease_error_advice tells. */
enum lease_advice {
	LEASE_ADVICE_FIX, /* asking again will not help: a person must change something */
	LEASE_ADVICE_RETRY, /* ask again, at once or a little later */
	LEASE_ADVICE_RECONNECT, /* ask again on a new connection */
	LEASE_ADVICE_SPLIT, /* the data of one of several runs is at fault */
};

struct lease_error {
	int code; /* enum lease_errno */
	char sqlstate[6]; /* "" where there is none */
	bool outcome_unknown;
	char message[512]; /* one line, no secrets; truncated where it must be */
};

/* The words as they stand in the tables. Never NULL: an unknown value gives "?". */
LEASE_PUBLIC const char *lease_run_status_name(enum lease_run_status status);
LEASE_PUBLIC const char *lease_outcome_name(enum lease_outcome outcome); /* NONE: "open" */
LEASE_PUBLIC const char *lease_execution_status_name(enum lease_execution_status status);
LEASE_PUBLIC const char *lease_refusal_name(int refusal);
LEASE_PUBLIC const char *lease_policy_name(enum lease_policy policy);
/* A name back to its value; -1 when it is none. */
LEASE_PUBLIC int lease_run_status_parse(const char *name);
LEASE_PUBLIC int lease_policy_parse(const char *name);
LEASE_PUBLIC bool lease_run_status_is_terminal(enum lease_run_status status);

LEASE_PUBLIC const char *lease_errno_name(int code);
LEASE_PUBLIC enum lease_advice lease_error_advice(const struct lease_error *error);
LEASE_PUBLIC const char *lease_version(void);

/* -- a worker's lease ------------------------------------------------------------------------- */

/* The fencing token: every write by a worker carries it. */
struct lease_token {
	char run_id[LEASE_ID_MAX + 1];
	int32_t attempt_no;
	char owner[LEASE_ID_MAX + 1];
};

/*
 * A granted or renewed lease.
 *
 * `local_end` is its end on this machine's CLOCK_BOOTTIME, counted from before the request was
 * sent and one hundredth of the remaining time early (clocks drift, and the answer took time).
 * Past it the worker must not touch anything outside until a renewal is granted: it may have been
 * stopped, and the run may have another owner by now. CLOCK_BOOTTIME goes on while the machine is
 * suspended (clock_gettime(2)); wall clocks are never compared.
 */
struct lease_grant {
	struct lease_token token;
	int64_t state_version; /* the run's; 0 from a renewal, which does not look at the run */
	int64_t now; /* database time of the grant */
	int64_t lease_expires_at; /* database time */
	int64_t deadline_at; /* LEASE_TIME_NONE: no deadline */
	int64_t local_end; /* microseconds of CLOCK_BOOTTIME, see above */
	bool cancel_requested; /* end the run with `cancelled` as soon as possible */
	bool new_attempt; /* false: this owner had the lease, and it was refreshed */
};

struct lease_claim {
	const char *run_id; /* ignored by lease_claim_next */
	const char *tenant_id; /* lease_claim_next only; NULL: any */
	const char *owner; /* see lease_owner_generate */
	int64_t ttl; /* > 0; renew at a third of it, see lease_ttl_check */
	const char *trace_id; /* NULL: none */
	int64_t timeout; /* for the whole call; 0: LEASE_TIMEOUT_DEFAULT */
	bool take_over; /* lease_claim_next only: running runs without an open attempt, too */
};

/*
 * Makes an owner token: `identity` (a stable name of the worker; 1 to 200 bytes), a colon, and a
 * random UUID. A worker makes a new one for each claim: an owner whose attempt has been closed
 * never gets another on the same run. Errors: LEASE_E_INVALID, LEASE_E_SYSTEM.
 */
LEASE_PUBLIC int lease_owner_generate(const char *identity, char ret[LEASE_ID_MAX + 1],
				      struct lease_error *reterr);

/*
 * Checks that a renewal period leaves room for two lost renewals: period <= ttl / 3. Workers call
 * it once with what they are configured to do. LEASE_E_INVALID with a message that says what to
 * change.
 */
LEASE_PUBLIC int lease_ttl_check(int64_t ttl, int64_t period, struct lease_error *reterr);

/* This machine's CLOCK_BOOTTIME in microseconds, to compare with `local_end`. */
LEASE_PUBLIC int64_t lease_clock_boottime(void);

/*
 * mark_running: claims the run for `claim->owner`. Opens attempt number max + 1, closing a
 * leftover open attempt of a pending run as lease_expired first if its lease is over. The owner
 * who already holds the valid lease gets it refreshed instead (no new attempt).
 * Two round trips. Refusals: not_found held expired terminal cancel_requested deadline not_before
 * illegal (waiting).
 */
LEASE_PUBLIC int lease_mark_running(PGconn *conn, const struct lease_claim *claim,
				    struct lease_grant *ret, struct lease_error *reterr);

/*
 * Claims the oldest pending run that is due, passing over rows that others are claiming at this
 * moment. With `take_over`, where no pending run is due, also a running one that has no open
 * attempt: workers need that under the policy record, and it reads all running runs. Three round
 * trips, one more with `take_over`. After outcome_unknown the call claims another run; a lease that
 * was granted unseen runs out. Refusal: not_found (nothing is due).
 */
LEASE_PUBLIC int lease_claim_next(PGconn *conn, const struct lease_claim *claim,
				  struct lease_grant *ret, struct lease_error *reterr);

/*
 * renew_lease: the lease now ends `ttl` from now, but not past the run's deadline and never
 * earlier than before. One round trip when it is granted. It is the database's answer that counts:
 * on a refusal the worker stops; on an error it may go on until `local_end` of its last grant and
 * try again meanwhile. `timeout` 0 means `ttl` here. Refusals: not_found not_owner expired
 * terminal.
 */
LEASE_PUBLIC int lease_renew_lease(PGconn *conn, const struct lease_token *token, int64_t ttl,
				   int64_t timeout, struct lease_grant *ret,
				   struct lease_error *reterr);

/*
 * Renews `n` leases (1 to 10,000) for `ttl` in one statement. `results[i]` is 0 or the refusal of
 * tokens[i], `grants[i]` its grant (zeroed when refused). Each run at most once in `tokens`; any
 * order. Refused tokens cost one more round trip for all of them together.
 */
LEASE_PUBLIC int lease_renew_leases(PGconn *conn, const struct lease_token *tokens, size_t n,
				    int64_t ttl, int64_t timeout, struct lease_grant *grants,
				    int *results, struct lease_error *reterr);

/* What the verbs below tell. */
struct lease_change {
	bool changed; /* false: this very command had taken effect before, nothing was written */
	enum lease_run_status status; /* the run's, afterwards */
	int64_t state_version; /* the run's, afterwards */
};

struct lease_release {
	struct lease_token token;
	int64_t delay; /* the run is not due before now + delay; 0: due at once */
	const char *error_code; /* why; NULL: none */
	const char *error_message; /* NULL: none */
	int64_t timeout;
};

/*
 * release_lease_for_retry: closes the owner's attempt as retry_released; the run becomes pending
 * and is due after `delay`. Two round trips.
 * Refusals: not_found not_owner expired terminal cancel_requested.
 */
LEASE_PUBLIC int lease_release_lease_for_retry(PGconn *conn, const struct lease_release *release,
					       struct lease_change *ret,
					       struct lease_error *reterr);

/*
 * suspend: the run becomes `waiting` (for a person, for another system); the owner's attempt
 * closes as interrupted with error_code `suspended`. Two round trips. Refusals as for release.
 */
LEASE_PUBLIC int lease_suspend(PGconn *conn, const struct lease_token *token, int64_t timeout,
			       struct lease_change *ret, struct lease_error *reterr);

struct lease_finish {
	const char *run_id; /* used when `token` is NULL */
	const struct lease_token *token;
	enum lease_run_status status; /* one of the terminal ones */
	const char *error_code; /* NULL: none */
	const char *error_message; /* NULL: none */
	int64_t expected_version; /* without token only; 0: any */
	int64_t timeout;
};

/*
 * set_terminal_status: ends the run; the owner's attempt closes with the same word. With a cancel
 * request only `cancelled` is accepted, without one `cancelled` is illegal. The error_code
 * `suspended` of an interrupted run is reserved (LEASE_E_INVALID). Without token (an
 * application gives up a run that nobody works on) only `failed`, on a run that is pending or
 * waiting or running without an open attempt. Two round trips.
 * Refusals: not_found not_owner expired terminal cancel_requested stale_version held illegal.
 */
LEASE_PUBLIC int lease_set_terminal_status(PGconn *conn, const struct lease_finish *finish,
					   struct lease_change *ret, struct lease_error *reterr);

/* -- steps of a run: nodes, operations, contents, checkpoints ---------------------------------- */

struct lease_node_start {
	struct lease_token token;
	const char *node_id;
	const char *operation_id; /* the idempotency key of its side effect; NULL: it has none */
	const char *input_ref; /* a registered content; NULL: none */
	const char *trace_id; /* NULL: none */
	int64_t timeout;
};

struct lease_node_execution {
	int32_t execution_no; /* numbered within (run, node) */
	int64_t state_version; /* the node's */
	int64_t started_at;
	bool succeeded; /* refusal terminal: the node has succeeded, with output_ref; not the run */
	char output_ref[LEASE_REF_MAX + 1]; /* "": none */
};

/*
 * Opens execution n + 1 of a node under the owner's lease. An operation_id names an outside side
 * effect: it stays the same across retries, belongs to one node of one run, and is to be looked up
 * (lease_operation_lookup) before it is tried again. Two round trips.
 * Refusals: not_found not_owner expired illegal cancel_requested operation_conflict; held: the node
 * has an open execution, `ret->execution_no` says which (if the token is its attempt's, an earlier
 * call took effect and this execution is yours); terminal: the run has ended, or, with
 * `ret->succeeded`, the node has succeeded and `ret->output_ref` is its result.
 * `ret` is filled in with 0, held and terminal.
 */
LEASE_PUBLIC int lease_node_start(PGconn *conn, const struct lease_node_start *start,
				  struct lease_node_execution *ret, struct lease_error *reterr);

struct lease_node_finish {
	struct lease_token token;
	const char *node_id;
	int32_t execution_no;
	enum lease_execution_status status; /* SUCCEEDED or FAILED */
	const char *normalized_error; /* FAILED, there obligatory: `timeout`, `rate_limited` … */
	const char *error_message; /* NULL: none */
	const char *output_ref; /* a registered content; NULL: none */
	int64_t timeout;
};

/*
 * Closes an execution and moves the node with it. A failed one stays on record; the next start
 * opens another. Two round trips.
 * Refusals: not_found (run or execution) not_owner expired terminal illegal.
 */
LEASE_PUBLIC int lease_node_finish(PGconn *conn, const struct lease_node_finish *finish,
				   struct lease_change *ret, struct lease_error *reterr);

enum lease_operation_state {
	LEASE_OPERATION_NEVER_TRIED,
	LEASE_OPERATION_RUNNING, /* an execution that carries it is open */
	LEASE_OPERATION_UNKNOWN, /* an execution was lost or abandoned: reconcile before retrying */
	LEASE_OPERATION_FAILED, /* tried, and every end is known */
	LEASE_OPERATION_SUCCEEDED, /* with output_ref */
};

struct lease_operation {
	enum lease_operation_state state;
	char run_id[LEASE_ID_MAX + 1], node_id[LEASE_ID_MAX + 1]; /* "" when never tried */
	int32_t executions; /* that carry it */
	int32_t unknown; /* of these, lost or abandoned */
	char output_ref[LEASE_REF_MAX + 1]; /* "": none */
	char normalized_error[LEASE_ID_MAX + 1]; /* of the newest failed one; "": none */
};

LEASE_PUBLIC const char *lease_operation_state_name(enum lease_operation_state state);

/* What is known of an operation: before retrying, a worker asks. One round trip. */
LEASE_PUBLIC int lease_operation_lookup(PGconn *conn, const char *operation_id,
					struct lease_operation *ret, struct lease_error *reterr);

/* What a payload is known by; the bytes lie in the store that `content_ref` names. */
struct lease_content {
	char content_ref[LEASE_REF_MAX + 1]; /* file://…, s3://… */
	char hash[72]; /* "sha256:" and 64 lower case hexadecimal digits */
	char media_type[LEASE_ID_MAX + 1];
	int64_t size_bytes;
	int32_t schema_version; /* of what the payload holds, from 1 */
};

/*
 * Registers a content. Once registered it is immutable: the same again changes nothing (`changed`
 * false), another under the same reference is refused as illegal. One round trip.
 */
LEASE_PUBLIC int lease_content_register(PGconn *conn, const struct lease_content *content,
					bool *ret_changed, struct lease_error *reterr);
/* Refusal: not_found. */
LEASE_PUBLIC int lease_content_lookup(PGconn *conn, const char *content_ref,
				      struct lease_content *ret, struct lease_error *reterr);

struct lease_checkpoint {
	struct lease_token token;
	const char *checkpoint_id; /* new; the same again is a repetition */
	const char *content_ref; /* a registered content; NULL: none */
	int64_t expected_version; /* state_version that the caller built on; > 0 */
	int64_t timeout;
};

/*
 * Records a boundary from which the run can be resumed: current_checkpoint_id and state_version
 * move together, or, when the expected version is stale, nothing does. Two round trips.
 * Refusals: not_found not_owner expired terminal illegal stale_version.
 */
LEASE_PUBLIC int lease_checkpoint_record(PGconn *conn, const struct lease_checkpoint *checkpoint,
					 struct lease_change *ret, struct lease_error *reterr);

/* plan_version grows by one, under an expected state_version as above. */
LEASE_PUBLIC int lease_plan_change(PGconn *conn, const struct lease_token *token,
				   int64_t expected_version, int64_t timeout,
				   struct lease_change *ret, struct lease_error *reterr);

/* -- applications and operators ---------------------------------------------------------------- */

struct lease_submission {
	const char *run_id; /* NULL: a time-ordered UUID (version 7) is made */
	const char *tenant_id; /* NULL: "default" */
	int64_t delay; /* not before now + delay; 0: at once */
	int64_t deadline; /* deadline_at = now + deadline, fixed from here on; 0: none */
	int64_t timeout;
};

/*
 * submit: adds a pending run. A run of that id that is already there is left as it is
 * (`changed` false): submitting again after a lost answer is safe, but with run_id NULL it adds a
 * second run. `ret_run_id` may be NULL. One round trip.
 */
LEASE_PUBLIC int lease_submit(PGconn *conn, const struct lease_submission *submission,
			      char ret_run_id[LEASE_ID_MAX + 1], struct lease_change *ret,
			      struct lease_error *reterr);

/*
 * resume: a waiting run becomes pending. `expected_version` 0: any.
 * Refusals: not_found terminal deadline stale_version illegal.
 */
LEASE_PUBLIC int lease_resume(PGconn *conn, const char *run_id, int64_t expected_version,
			      int64_t timeout, struct lease_change *ret,
			      struct lease_error *reterr);

/*
 * request_cancel: a run that nobody works on is cancelled at once; a running one is marked, its
 * worker learns of it at the next renewal, and if that worker is lost the reconciler cancels.
 * Refusals: not_found terminal stale_version, and held for a pending or waiting run on which an
 * attempt was left open whose lease still holds.
 */
LEASE_PUBLIC int lease_request_cancel(PGconn *conn, const char *run_id, int64_t expected_version,
				      int64_t timeout, struct lease_change *ret,
				      struct lease_error *reterr);

/* -- reading ----------------------------------------------------------------------------------- */

struct lease_run {
	char run_id[LEASE_ID_MAX + 1];
	char tenant_id[LEASE_ID_MAX + 1];
	enum lease_run_status status;
	int64_t state_version, plan_version;
	int64_t not_before, deadline_at, cancel_requested_at;
	int64_t created_at, updated_at, finished_at;
	char *terminal_error_code; /* NULL: none */
	char *terminal_error_message; /* NULL: none */
};

struct lease_attempt {
	int32_t attempt_no;
	char owner[LEASE_ID_MAX + 1];
	int64_t started_at, heartbeat_at, lease_expires_at;
	int64_t deadline_at, cancel_requested_at;
	int64_t finished_at; /* LEASE_TIME_NONE: open */
	enum lease_outcome outcome;
	char *error_code, *error_message, *trace_id; /* NULL: none */
};

struct lease_history {
	struct lease_run run;
	struct lease_attempt *attempts; /* by attempt_no */
	size_t n_attempts;
	int64_t now; /* database time of the reading */
};

/*
 * Reads a run and all its attempts, in one snapshot. The history belongs to the caller, who frees
 * it with lease_history_free (NULL is fine). Refusal: not_found.
 */
LEASE_PUBLIC int lease_list_attempts(PGconn *conn, const char *run_id, struct lease_history **ret,
				     struct lease_error *reterr);
LEASE_PUBLIC void lease_history_free(struct lease_history *history);

/*
 * How many of a run's newest closed attempts were released for retry, without a break and counting
 * to `limit` (1 to 1,000) at most: what a growing delay is made from, with no state but the facts.
 * A run that is not there has none. One round trip.
 */
LEASE_PUBLIC int lease_count_releases(PGconn *conn, const char *run_id, int limit, int64_t timeout,
				      int *ret, struct lease_error *reterr);

/* -- the whole story of a run ------------------------------------------------------------------ */

struct lease_execution {
	char node_id[LEASE_ID_MAX + 1];
	int32_t execution_no, run_attempt_no;
	char owner[LEASE_ID_MAX + 1]; /* of that attempt: the worker */
	enum lease_execution_status status;
	int64_t started_at, finished_at;
	char *operation_id, *input_ref, *output_ref, *normalized_error, *error_message, *trace_id;
};

struct lease_checkpoint_fact {
	char checkpoint_id[LEASE_ID_MAX + 1];
	int32_t run_attempt_no;
	int64_t state_version, plan_version, created_at;
	char *content_ref; /* NULL: none */
};

struct lease_event {
	int64_t event_id;
	int64_t at;
	char *kind, *run_id;
	int32_t attempt_no; /* 0: none */
	int32_t execution_no; /* 0: none */
	char *node_id, *from_status, *to_status, *outcome, *owner, *error_code, *reference;
};

/* All facts of a run, in one snapshot. */
struct lease_story {
	struct lease_history *history;
	struct lease_execution *executions; /* by started_at */
	size_t n_executions;
	struct lease_checkpoint_fact *checkpoints; /* by created_at */
	size_t n_checkpoints;
	struct lease_event *events; /* by event_id */
	size_t n_events;
	char *current_checkpoint_id; /* NULL: none */
	char *unexplained; /* why the attempts do not explain the status; NULL: they do */
};

/* The story belongs to the caller. Refusal: not_found. */
LEASE_PUBLIC int lease_read_story(PGconn *conn, const char *run_id, struct lease_story **ret,
				  struct lease_error *reterr);
LEASE_PUBLIC void lease_story_free(struct lease_story *story);

/*
 * Events, after a cursor. A cursor is text that the consumer keeps with what it made of the events
 * (a few dozen bytes, more with many open transactions); NULL or "" means from the beginning. It stands for a
 * snapshot: a batch holds what has become visible since, so every event comes exactly once, those
 * of one run in the order in which they happened, and an open transaction elsewhere holds nothing
 * up. `limit` is 1 to 100,000; a batch of none says that there is nothing new. Consumers need no
 * more than to read, but on the primary: a standby's snapshots do not tell what is in progress
 * (LEASE_E_READ_ONLY). A cursor that is none, or that is ahead of a database restored to an earlier
 * time, is refused with LEASE_E_INVALID. To be woken, LISTEN on channel lease_events (see
 * lease.notify in the manual). One round trip within a window, two where one begins.
 */
struct lease_event_batch {
	struct lease_event *events;
	size_t n;
	char *cursor; /* after this batch */
};

LEASE_PUBLIC int lease_events_after(PGconn *conn, const char *cursor, int limit,
				    struct lease_event_batch **ret, struct lease_error *reterr);
LEASE_PUBLIC void lease_event_batch_free(struct lease_event_batch *batch);

/* Where a database stands, by one pass over its open attempts and its unfinished runs. */
struct lease_status {
	int64_t now;
	int64_t runs_pending, runs_running, runs_waiting;
	int64_t attempts_open; /* expired ones included */
	int64_t attempts_expired; /* open, and the lease is over */
	int64_t attempts_pardoned; /* open, and only an amnesty keeps the lease */
	int64_t oldest_expired_at; /* end of the lease that is over for longest; LEASE_TIME_NONE */
	int64_t next_end_at; /* the next end of a lease that still holds; LEASE_TIME_NONE */
	int64_t beat_at; /* a reconciler's last beat; LEASE_TIME_NONE: no amnesty here */
	int64_t amnesty_until; /* LEASE_TIME_NONE: none is in force */
};

LEASE_PUBLIC int lease_read_status(PGconn *conn, struct lease_status *ret,
				   struct lease_error *reterr);

/*
 * What happened after an event: `event_id` is the newest one that is visible, to ask from there on
 * the next time; INT64_MAX asks for nothing but that. For rates, not for counting: transactions in
 * progress may add events below it.
 */
struct lease_activity {
	int64_t now;
	int64_t event_id; /* 0: there is none */
	int64_t submitted, opened; /* runs, attempts */
	int64_t closed[LEASE_OUTCOME_LEASE_EXPIRED + 1]; /* attempts by outcome */
};

LEASE_PUBLIC int lease_read_activity(PGconn *conn, int64_t after_event_id,
				     struct lease_activity *ret, struct lease_error *reterr);

/* Which runs to list: those that fit all of it. Zeroed, with a limit, it fits all. */
struct lease_run_filter {
	unsigned statuses; /* bits 1 << enum lease_run_status; 0: all */
	const char *tenant_id, *error_code; /* NULL: any */
	const char *
		owner; /* of the open attempt: all of it or what stands before the UUID; NULL: any */
	int64_t created_within; /* the last so many microseconds; 0: ever */
	bool expired; /* only those with an open attempt whose lease is over */
	const char *after; /* only those that come after this run; NULL: from the newest on */
	int limit; /* 1 to 100,000 */
};

struct lease_run_entry {
	struct lease_run run; /* without plan_version and terminal_error_message */
	int32_t attempts, losses; /* losses: those that ended as lease_expired */
	int32_t open_attempt_no; /* 0: none */
	char owner[LEASE_ID_MAX + 1]; /* of the open attempt; "": none */
	int64_t lease_expires_at; /* LEASE_TIME_NONE: none */
};

struct lease_run_list {
	struct lease_run_entry *runs; /* the newest first */
	size_t n;
	int64_t now; /* database time of the reading; 0 where n is 0 */
};

/* The list belongs to the caller. Unfinished runs are found by index; finished ones are all read. */
LEASE_PUBLIC int lease_list_runs(PGconn *conn, const struct lease_run_filter *filter,
				 struct lease_run_list **ret, struct lease_error *reterr);
LEASE_PUBLIC void lease_run_list_free(struct lease_run_list *list);

/* A run, or a node of one, that its facts do not explain. */
struct lease_unexplained {
	char run_id[LEASE_ID_MAX + 1];
	char node_id[LEASE_ID_MAX + 1]; /* "": the run's own status */
	int32_t newest_no; /* its newest attempt, the node's newest execution; 0: none */
	char *status; /* the run's, or the node's state */
	char *newest_outcome; /* of that attempt, or the execution's status; NULL: open, none */
	char *reason;
};

struct lease_audit_page {
	char last_run_id[LEASE_ID_MAX + 1]; /* "": the page is empty */
	int64_t runs; /* in the page; fewer than the limit: it is the last one */
	int64_t legacy; /* of these, without attempts, and nothing says how they got where they are */
	struct lease_unexplained *unexplained; /* by run_id; must be none */
	size_t n;
};

/*
 * Looks at `limit` (1 to 100,000) runs that come after run_id `after` (NULL or "": from the
 * beginning), in order of run_id, for such whose status their attempts do not explain. The page
 * belongs to the caller.
 */
LEASE_PUBLIC int lease_read_audit(PGconn *conn, const char *after, int limit,
				  struct lease_audit_page **ret, struct lease_error *reterr);
LEASE_PUBLIC void lease_audit_page_free(struct lease_audit_page *page);

/*
 * Checks what a program needs before it works on a connection: a writable primary
 * (LEASE_E_READ_ONLY) and schema `lease` in version LEASE_SCHEMA_VERSION (LEASE_E_SCHEMA; the
 * message says what to do).
 */
LEASE_PUBLIC int lease_check_database(PGconn *conn, int64_t timeout, struct lease_error *reterr);

/* -- reconciling --------------------------------------------------------------------------------*/

struct lease_sweep_options {
	int64_t interval; /* from one horizon scan to the next; a ceiling, see below */
	int64_t orphan_interval; /* from one look for orphans and passed deadlines to the next */
	int64_t statement_timeout; /* set in each transaction, for being idle in it as well */
	int64_t lock_timeout; /* set in each transaction */
	int batch_size; /* the most runs closed in one transaction; fewer where that would take long */
	int scan_page; /* open attempts read by one statement */
	int due_limit; /* ends of leases kept in memory */
	enum lease_policy policy;
	int max_lease_losses; /* with requeue; 0: no limit */
	bool notify; /* NOTIFY lease_events, once a transaction */
	/*
	 * Amnesty: while nobody could beat the heartbeat for longer than `after`, the database was
	 * away and no owner could renew; leases that ended meanwhile hold for `grace` more. `after`
	 * must be shorter than (ttl - renewal period) of the shortest lease, grace at least 3 * after.
	 * 0: obey the heartbeat, and never write it, as lease_reconcile_expired_leases always does.
	 * LEASE_AMNESTY_OFF: remove it. docs/decisions/0004-amnesty.md has the rule.
	 * With an amnesty no statement may take longer than a part of `after`: the timeouts are cut.
	 */
	int64_t amnesty_after, amnesty_grace;
	/*
	 * With an amnesty: the most by which the database's clock may run ahead of CLOCK_MONOTONIC, or
	 * back, from one beat to the next. Beyond it nothing is swept before an amnesty is granted.
	 * 0: not watched.
	 */
	int64_t max_clock_jump;
};
#define LEASE_AMNESTY_OFF (-1)

/* Interval 5 s, orphans 60 s, timeouts 10 s and 2 s, 200, 5000, 10000, record, notify, 0, 0, 0. */
LEASE_PUBLIC void lease_sweep_options_init(struct lease_sweep_options *options);

/* One run that the reconciler wrote to. Strings are borrowed for the call. */
struct lease_closed {
	const char *run_id;
	int32_t attempt_no; /* 0: the run had no open attempt, only its row moved */
	const char *owner; /* NULL when attempt_no is 0 */
	int64_t lease_expires_at;
	int64_t closed_at; /* closed_at - lease_expires_at is the detection lag */
	bool moved; /* the run's status changed */
	enum lease_run_status status; /* the run's, afterwards */
	const char *error_code; /* the run's terminal_error_code, else the attempt's error_code */
};

/* A run that was passed over because the database refused to write it. */
struct lease_skipped {
	const char *run_id;
	const struct lease_error *error;
};

struct lease_sweep_callbacks {
	void (*closed)(void *arg, const struct lease_closed *closed); /* may be NULL */
	void (*skipped)(void *arg, const struct lease_skipped *skipped); /* may be NULL */
	/* an amnesty has begun, or lasts longer now: until this database time; may be NULL */
	void (*amnesty)(void *arg, int64_t until);
	/* the database's clock jumped by so many microseconds, back if negative; may be NULL */
	void (*clock_jumped)(void *arg, int64_t by);
	void *arg;
};

struct lease_sweep_figures {
	/* since lease_sweep_new */
	int64_t passes; /* horizon scans that came to their end */
	int64_t failures; /* operations that failed */
	int64_t closed; /* attempts closed as lease_expired */
	int64_t moved[LEASE_RUN_INTERRUPTED + 1]; /* runs moved, by the status they went to */
	int64_t skipped; /* runs passed over because of an error of their own */
	int64_t contended; /* times that a run was locked by somebody else */
	/* of the last complete pass */
	int64_t open, expired; /* open attempts, and those of them whose lease was over */
	int64_t pardoned; /* those whose lease only an amnesty keeps */
	int64_t oldest_expired_at; /* LEASE_TIME_NONE */
	int64_t scan_duration; /* spent in scan statements */
	int64_t next_interval; /* the interval in force */
	bool stretched; /* it is longer than asked for, because scanning takes long */
	int64_t shortest_ttl; /* of the open attempts' leases; 0: there are none */
	/* now */
	int64_t due; /* ends waiting in memory */
	int64_t beat_at; /* database time of the last beat; LEASE_TIME_NONE */
	int64_t amnesty_until; /* database time; LEASE_TIME_NONE: none is in force */
	int64_t passed_at; /* CLOCK_MONOTONIC of the last complete pass; 0: none yet */
};

/*
 * The reconciler of one database, as a resumable object that never blocks: the caller's event loop
 * gives it a connection and waits where it says.
 *
 *	for (;;) {
 *		int events = lease_sweep_poll(sweep, conn, &error);
 *		if (events < 0)   -> log; if PQstatus(conn) is bad: reconnect, lease_sweep_reset
 *		else if (events)  -> wait for LEASE_POLL_READ / LEASE_POLL_WRITE on PQsocket(conn)
 *		else              -> wait until lease_sweep_wake_at(sweep)
 *	}
 *
 * It scans the open attempts every `interval` for leases that are over or end before the next
 * scan, closes what is over at once, and wakes at each listed end, so an expired lease is closed
 * within milliseconds. The interval shrinks to two thirds of the shortest ttl seen and stretches
 * so that scanning stays under a twentieth of the time; the stretch wins. A run that somebody has
 * locked is tried again after some milliseconds. A batch that fails on data is halved until the
 * run at fault stands alone; it is reported and passed over until the next scan.
 * After an error the sweep waits, longer each time, and goes on by itself.
 */
struct lease_sweep;

#define LEASE_POLL_READ 1
#define LEASE_POLL_WRITE 2

/* The options and callbacks are copied. LEASE_E_INVALID, LEASE_E_MEMORY. */
LEASE_PUBLIC int lease_sweep_new(const struct lease_sweep_options *options,
				 const struct lease_sweep_callbacks *callbacks,
				 struct lease_sweep **ret, struct lease_error *reterr);
LEASE_PUBLIC void lease_sweep_free(struct lease_sweep *sweep);

/* Options for what starts from now on; a transaction in flight ends under the old ones. */
LEASE_PUBLIC int lease_sweep_set_options(struct lease_sweep *sweep,
					 const struct lease_sweep_options *options,
					 struct lease_error *reterr);

/*
 * Goes on. Positive: the LEASE_POLL_… events to wait for on PQsocket(conn), read anew each time.
 * 0: nothing is in flight; call again at lease_sweep_wake_at. Negative: an operation failed, its
 * transaction is rolled back or gone with the connection; nothing is in flight.
 * The connection must be in non-blocking mode (PQsetnonblocking) and used by nobody else.
 */
LEASE_PUBLIC int lease_sweep_poll(struct lease_sweep *sweep, PGconn *conn,
				  struct lease_error *reterr);
/* When to call lease_sweep_poll again, in microseconds of CLOCK_MONOTONIC; INT64_MAX: never. */
LEASE_PUBLIC int64_t lease_sweep_wake_at(const struct lease_sweep *sweep);
/* The connection is gone: forget what was in flight, begin with a check and a full scan. */
LEASE_PUBLIC void lease_sweep_reset(struct lease_sweep *sweep);
/* Begin no further transaction; poll returns 0 as soon as the one in flight has ended. */
LEASE_PUBLIC void lease_sweep_stop(struct lease_sweep *sweep);
/* Scan now rather than at the next interval. */
LEASE_PUBLIC void lease_sweep_hurry(struct lease_sweep *sweep);
LEASE_PUBLIC void lease_sweep_read_figures(const struct lease_sweep *sweep,
					   struct lease_sweep_figures *ret);

/*
 * reconcile_expired_leases: one whole sweep, blocking: every open attempt whose lease is over is
 * closed, orphans and passed deadlines are handled, by the policy in `options`. Rows locked by
 * others are tried again for up to a second and then left to the next sweep (`contended`).
 * `callbacks` may be NULL. `ret` may be NULL.
 */
LEASE_PUBLIC int lease_reconcile_expired_leases(PGconn *conn,
						const struct lease_sweep_options *options,
						const struct lease_sweep_callbacks *callbacks,
						struct lease_sweep_figures *ret,
						struct lease_error *reterr);

/*
 * What a sweep would write at this moment, under `policy` and `max_lease_losses` of the options:
 * `callbacks->closed` is called for each run, `closed_at` is when it was looked at. Locks nothing
 * and writes nothing; the decisions are those of the reconciler. `ret_n` (may be NULL): how many.
 */
LEASE_PUBLIC int lease_preview_sweep(PGconn *conn, const struct lease_sweep_options *options,
				     const struct lease_sweep_callbacks *callbacks, int64_t *ret_n,
				     struct lease_error *reterr);

#ifdef __cplusplus
}
#endif

#endif
