/*
 * A worker of the fault campaign: it claims runs and does all that workers and clients do, at
 * random, and writes down in its own file what it came to believe.
 *
 * The file holds one line for each call before it is sent and one for its result, tab-separated as
 * COPY reads them; tables.sql names the columns. What is not in there the worker was never
 * told: it may be killed at any moment. A write carries an identity of its own (`call`) into the
 * database, so that the checks find it there, or do not.
 *
 * It never decides whether something is right, and it never uses anything but liblease.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#include "lease.h"
#include "schedule.h"

enum {
	LEASES = 4, /* held at once */
	NODES = 3, /* a run has so many, n1, n2 … */
	RECENT = 24, /* runs that it has heard of */
	OLD = 8, /* tokens that it should not use any more, and does */
	TRIES = 4, /* of a call whose outcome is unknown */
};

#define VERB_TIMEOUT (1200 * LEASE_MILLISECOND)

struct node {
	int32_t execution_no; /* 0: none of ours is open */
	bool done;
};

struct held {
	struct lease_grant grant; /* token.run_id "": free */
	int64_t ttl;
	int64_t renew_at; /* CLOCK_BOOTTIME */
	int64_t version; /* the run's state_version as far as it knows */
	bool neglected; /* it will not renew: a worker that hangs */
	struct node nodes[NODES];
};

struct worker {
	const char *conninfo;
	const char *name; /* "3.17": the place in the fleet, and how often it was started there */
	int log;
	uint64_t random;
	PGconn *conn;
	long calls;
	struct held held[LEASES];
	char recent[RECENT][LEASE_ID_MAX + 1];
	struct lease_token old[OLD];
};

/* One call of a verb, with what may come back; `id` stays the same when it is tried again. */
struct call {
	const char *verb;
	char id[64];
	int tries;
	struct lease_token token; /* where there is one; run_id alone otherwise */
	/* arguments */
	int64_t ttl, version, delay, deadline;
	bool take_over;
	enum lease_run_status status;
	char node_id[16], operation_id[LEASE_ID_MAX + 1];
	int32_t execution_no;
	bool failed; /* node_finish */
	/* results */
	struct lease_grant grant;
	struct lease_change change;
	struct lease_node_execution execution;
	struct lease_operation operation;
};

/* -- chance ------------------------------------------------------------------------------------- */

static int below(struct worker *worker, int limit)
{
	return (int)(random_next(&worker->random) % (uint64_t)limit);
}

static bool chance(struct worker *worker, int percent)
{
	return below(worker, 100) < percent;
}

static void rest(int64_t duration)
{
	struct timespec pause = { .tv_sec = duration / LEASE_SECOND,
				  .tv_nsec = duration % LEASE_SECOND * 1000 };

	if (duration > 0)
		nanosleep(&pause, NULL);
}

/* -- what it writes down ------------------------------------------------------------------------ */

/* A value for COPY: NULL where there is none, no tabs, newlines or backslashes. */
static const char *field(const char *value, char buffer[256])
{
	if (!value || !*value)
		return "\\N";
	snprintf(buffer, 256, "%s", value);
	for (char *c = buffer; *c; c++)
		if (*c == '\t' || *c == '\n' || *c == '\r' || *c == '\\')
			*c = ' ';
	return buffer;
}

static const char *number(int64_t value, char buffer[32])
{
	if (value == LEASE_TIME_NONE)
		return "\\N";
	snprintf(buffer, 32, "%" PRId64, value);
	return buffer;
}

static const char *word_of(const struct call *call)
{
	if (*call->node_id)
		return call->node_id;
	if (strcmp(call->verb, "finish") == 0 || strcmp(call->verb, "give_up") == 0)
		return lease_run_status_name(call->status);
	return NULL;
}

/* One write: a line is whole or not there, whenever the worker is killed. */
static void note(struct worker *worker, const struct call *call, int64_t sent, const char *result,
		 bool changed, const struct lease_error *error)
{
	char line[2048], b[8][256], n[6][32];
	bool granted = call->grant.token.run_id[0] && strcmp(result, "ok") == 0;
	int length = snprintf(
		line, sizeof(line),
		"%s\t%s\t%" PRId64
		"\t%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s"
		"\t%s\n",
		worker->name, number(lease_clock_boottime(), n[0]), sent, call->id, call->tries,
		call->verb, field(call->token.run_id, b[0]), (int)call->token.attempt_no,
		field(call->token.owner, b[1]), result,
		error ? (error->outcome_unknown ? "t" : "f") : "\\N", changed ? "t" : "f",
		granted ? number(call->grant.now, n[1]) : "\\N",
		granted ? number(call->grant.lease_expires_at, n[2]) : "\\N",
		granted ? number(call->grant.local_end, n[3]) : "\\N", field(word_of(call), b[2]),
		field(error ? error->sqlstate : NULL, b[3]), (int)call->execution_no,
		error ? (lease_error_advice(error) == LEASE_ADVICE_RETRY       ? "retry"
			 : lease_error_advice(error) == LEASE_ADVICE_RECONNECT ? "reconnect"
									       : "fix")
		      : "\\N",
		field(error ? error->message : NULL, b[4]));

	if (length >= (int)sizeof(line)) {
		length = (int)sizeof(line) - 1;
		line[length - 1] = '\n';
	}
	if (write(worker->log, line, (size_t)length) != length)
		_exit(EX_IOERR);
}

/* -- the connection ----------------------------------------------------------------------------- */

static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

static void reconnect(struct worker *worker)
{
	PQfinish(worker->conn);
	worker->conn = PQconnectdb(worker->conninfo);
	PQsetNoticeReceiver(worker->conn, ignore_notice, NULL);
}

static void recover(struct worker *worker, const struct lease_error *error)
{
	rest(10 * LEASE_MILLISECOND);
	if (lease_error_advice(error) != LEASE_ADVICE_RECONNECT)
		return;
	reconnect(worker);
	if (PQstatus(worker->conn) != CONNECTION_OK)
		rest(90 * LEASE_MILLISECOND);
}

/* -- the verbs ---------------------------------------------------------------------------------- */

typedef int verb_function(PGconn *conn, struct call *call, struct lease_error *reterr);

static int verb_claim(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_claim claim = {
		.run_id = call->token.run_id,
		.owner = call->token.owner,
		.ttl = call->ttl,
		.trace_id = call->id,
		.timeout = VERB_TIMEOUT,
		.take_over = call->take_over,
	};

	return *call->token.run_id ? lease_mark_running(conn, &claim, &call->grant, reterr)
				   : lease_claim_next(conn, &claim, &call->grant, reterr);
}

static int verb_renew(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	return lease_renew_lease(conn, &call->token, call->ttl, VERB_TIMEOUT, &call->grant, reterr);
}

static int verb_release(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_release release = { .token = call->token,
					 .delay = call->delay,
					 .error_code = call->id,
					 .timeout = VERB_TIMEOUT };

	return lease_release_lease_for_retry(conn, &release, &call->change, reterr);
}

static int verb_suspend(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	return lease_suspend(conn, &call->token, VERB_TIMEOUT, &call->change, reterr);
}

static int verb_finish(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_finish finish = { .token = &call->token,
				       .status = call->status,
				       .error_code = call->id,
				       .timeout = VERB_TIMEOUT };

	return lease_set_terminal_status(conn, &finish, &call->change, reterr);
}

static int verb_give_up(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_finish finish = { .run_id = call->token.run_id,
				       .status = call->status,
				       .error_code = call->id,
				       .timeout = VERB_TIMEOUT };

	return lease_set_terminal_status(conn, &finish, &call->change, reterr);
}

static int verb_node_start(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_node_start start = { .token = call->token,
					  .node_id = call->node_id,
					  .operation_id = call->operation_id,
					  .trace_id = call->id,
					  .timeout = VERB_TIMEOUT };

	return lease_node_start(conn, &start, &call->execution, reterr);
}

static int verb_node_finish(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_node_finish finish = {
		.token = call->token,
		.node_id = call->node_id,
		.execution_no = call->execution_no,
		.status = call->failed ? LEASE_EXECUTION_FAILED : LEASE_EXECUTION_SUCCEEDED,
		.normalized_error = call->failed ? "torture" : NULL,
		.error_message = call->id,
		.timeout = VERB_TIMEOUT,
	};

	return lease_node_finish(conn, &finish, &call->change, reterr);
}

static int verb_checkpoint(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_checkpoint checkpoint = { .token = call->token,
					       .checkpoint_id = call->id,
					       .expected_version = call->version,
					       .timeout = VERB_TIMEOUT };

	return lease_checkpoint_record(conn, &checkpoint, &call->change, reterr);
}

static int verb_plan(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	return lease_plan_change(conn, &call->token, call->version, VERB_TIMEOUT, &call->change,
				 reterr);
}

static int verb_submit(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_submission submission = { .run_id = call->token.run_id,
					       .delay = call->delay,
					       .deadline = call->deadline,
					       .timeout = VERB_TIMEOUT };

	return lease_submit(conn, &submission, NULL, &call->change, reterr);
}

static int verb_cancel(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	return lease_request_cancel(conn, call->token.run_id, 0, VERB_TIMEOUT, &call->change,
				    reterr);
}

static int verb_resume(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	return lease_resume(conn, call->token.run_id, 0, VERB_TIMEOUT, &call->change, reterr);
}

static int verb_lookup(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	return lease_operation_lookup(conn, call->operation_id, &call->operation, reterr);
}

static int verb_story(PGconn *conn, struct call *call, struct lease_error *reterr)
{
	struct lease_story *story = NULL;
	int r = lease_read_story(conn, call->token.run_id, &story, reterr);

	/* A reader sees one snapshot: at no moment may a run be unexplained in it. */
	if (r == 0 && story->unexplained) {
		snprintf(reterr->message, sizeof(reterr->message), "unexplained: %.400s",
			 story->unexplained);
		reterr->code = LEASE_E_PROTOCOL;
		reterr->outcome_unknown = false;
		reterr->sqlstate[0] = '\0';
		r = reterr->code;
	}
	lease_story_free(story);
	return r;
}

static struct call call_of(struct worker *worker, const char *verb)
{
	struct call call = { .verb = verb };

	snprintf(call.id, sizeof(call.id), "%s-%ld", worker->name, ++worker->calls);
	return call;
}

static struct call call_with(struct worker *worker, const char *verb,
			     const struct lease_token *token)
{
	struct call call = call_of(worker, verb);

	call.token = *token;
	return call;
}

/*
 * Calls until the outcome is known, or up to TRIES times: a repetition with the same arguments must
 * be safe, and tell. 0, a refusal, or the error.
 */
static int settle(struct worker *worker, struct call *call, verb_function *function)
{
	struct lease_error error;
	int r;

	do {
		int64_t sent = lease_clock_boottime();

		call->tries++;
		memset(&error, 0, sizeof(error));
		note(worker, call, sent, "sent", false, NULL);
		r = function(worker->conn, call, &error);
		if (r == 0 && call->grant.token.run_id[0])
			call->token = call->grant.token;
		if (r == 0 && call->execution.execution_no)
			call->execution_no = call->execution.execution_no;
		note(worker, call, sent,
		     r == 0  ? "ok"
		     : r > 0 ? lease_refusal_name(r)
			     : lease_errno_name(r),
		     r == 0 && (call->change.changed || call->grant.new_attempt ||
				call->execution.execution_no),
		     r < 0 ? &error : NULL);
		if (r < 0)
			recover(worker, &error);
	} while (r < 0 && call->tries < TRIES && !chance(worker, 20));
	return r;
}

/* -- leases ------------------------------------------------------------------------------------- */

static void remember_run(struct worker *worker, const char *run_id)
{
	snprintf(worker->recent[below(worker, RECENT)], LEASE_ID_MAX + 1, "%s", run_id);
}

static const char *recent_run(struct worker *worker)
{
	return worker->recent[below(worker, RECENT)];
}

static void drop(struct worker *worker, struct held *held)
{
	worker->old[below(worker, OLD)] = held->grant.token;
	memset(held, 0, sizeof(*held));
}

/* When to renew: mostly at a third; sometimes at the last moment, a little early or late. */
static void plan_renewal(struct worker *worker, struct held *held, int64_t sent)
{
	held->renew_at = sent + held->ttl / 3;
	if (chance(worker, 25))
		held->renew_at = sent + (held->grant.lease_expires_at - held->grant.now) -
				 below(worker, 12) * LEASE_MILLISECOND;
}

/* Where the lease on a run is kept; "": a free place. NULL: there is none. */
static struct held *find_held(struct worker *worker, const char *run_id)
{
	for (int i = 0; i < LEASES; i++)
		if (strcmp(worker->held[i].grant.token.run_id, run_id) == 0)
			return &worker->held[i];
	return NULL;
}

static void take(struct worker *worker, struct held *held, const struct call *call, int64_t sent)
{
	struct held *former = find_held(worker, call->grant.token.run_id);

	/* a lease on this run that it lost, and did not yet know */
	if (former)
		drop(worker, former);
	*held = (struct held){ .grant = call->grant,
			       .ttl = call->ttl,
			       .version = call->grant.state_version,
			       .neglected = chance(worker, 6) };
	plan_renewal(worker, held, sent);
	remember_run(worker, held->grant.token.run_id);
}

static int64_t some_ttl(struct worker *worker)
{
	return (400 + below(worker, 1600)) * LEASE_MILLISECOND;
}

/* The oldest run that is due, or this one. */
static void claim(struct worker *worker, const char *run_id)
{
	struct call call = call_of(worker, *run_id ? "claim" : "claim_next");
	struct held *same = *run_id ? find_held(worker, run_id) : NULL;
	struct held *held = find_held(worker, "");
	int64_t sent = lease_clock_boottime();
	struct lease_error error;

	if (!same && !held)
		return;

	snprintf(call.token.run_id, sizeof(call.token.run_id), "%s", run_id);
	if (lease_owner_generate(worker->name, call.token.owner, &error) != 0)
		_exit(EX_OSERR);
	call.ttl = some_ttl(worker);
	call.take_over = chance(worker, 50);
	/* its own run: the owner who has the lease gets it refreshed */
	if (same)
		memcpy(call.token.owner, same->grant.token.owner, sizeof(call.token.owner));
	if (settle(worker, &call, verb_claim) != 0)
		return;
	if (same && call.grant.token.attempt_no == same->grant.token.attempt_no)
		same->grant = call.grant;
	else
		take(worker, same ? same : held, &call, sent);
}

static void renew(struct worker *worker, struct held *held)
{
	struct call call = call_with(worker, "renew", &held->grant.token);
	int64_t sent = lease_clock_boottime();
	int r;

	call.ttl = held->ttl;
	r = settle(worker, &call, verb_renew);
	if (r == 0) {
		held->grant = call.grant;
		plan_renewal(worker, held, sent);
	} else if (r > 0 || sent > held->grant.local_end + 3 * LEASE_SECOND) {
		drop(worker, held);
	}
}

/* All leases at once, in one statement. */
static void renew_all(struct worker *worker)
{
	struct lease_token tokens[LEASES];
	struct lease_grant grants[LEASES];
	struct held *of[LEASES];
	int results[LEASES], n = 0, r;
	int64_t sent = lease_clock_boottime();
	struct lease_error error = { 0 };
	struct call call = call_of(worker, "renew_many");

	for (int i = 0; i < LEASES; i++) {
		struct held *held = &worker->held[i];

		if (!held->grant.token.run_id[0] || held->neglected)
			continue;
		of[n] = held;
		tokens[n++] = held->grant.token;
	}
	if (n == 0)
		return;
	r = lease_renew_leases(worker->conn, tokens, (size_t)n, some_ttl(worker), VERB_TIMEOUT,
			       grants, results, &error);
	for (int i = 0; i < n; i++) {
		call.token = tokens[i];
		call.grant = grants[i];
		call.tries = i + 1;
		if (r < 0)
			note(worker, &call, sent, lease_errno_name(r), false, &error);
		else
			note(worker, &call, sent,
			     results[i] ? lease_refusal_name(results[i]) : "ok", false, NULL);
		if (r == 0 && results[i] == 0) {
			of[i]->grant = grants[i];
			plan_renewal(worker, of[i], sent);
		} else if (r == 0) {
			drop(worker, of[i]);
		}
	}
	if (r < 0)
		recover(worker, &error);
}

/* -- work under a lease ------------------------------------------------------------------------- */

static void operation_of(struct call *call, int node)
{
	snprintf(call->node_id, sizeof(call->node_id), "n%d", node + 1);
	snprintf(call->operation_id, sizeof(call->operation_id), "%.200s/%s", call->token.run_id,
		 call->node_id);
}

static void start_node(struct worker *worker, struct held *held, int index)
{
	struct call call = call_with(worker, "operation_lookup", &held->grant.token);
	int r;

	operation_of(&call, index);
	if (settle(worker, &call, verb_lookup) != 0)
		return;
	call = call_with(worker, "node_start", &held->grant.token);
	operation_of(&call, index);
	r = settle(worker, &call, verb_node_start);
	/* held: an earlier try, whose answer was lost, took effect */
	if (r == 0 || (r == LEASE_HELD && call.tries > 1))
		held->nodes[index].execution_no = call.execution.execution_no;
	else if (r == LEASE_TERMINAL && call.execution.succeeded)
		held->nodes[index].done = true;
	else if (r == LEASE_EXPIRED || r == LEASE_NOT_OWNER || r == LEASE_TERMINAL)
		drop(worker, held);
}

static void finish_node(struct worker *worker, struct held *held, int index)
{
	struct call call = call_with(worker, "node_finish", &held->grant.token);
	int r;

	operation_of(&call, index);
	call.execution_no = held->nodes[index].execution_no;
	call.failed = chance(worker, 25);
	r = settle(worker, &call, verb_node_finish);
	if (r >= 0)
		held->nodes[index] = (struct node){ .done = r == 0 && !call.failed };
}

static void work_on_node(struct worker *worker, struct held *held)
{
	int index = below(worker, NODES);

	if (held->nodes[index].execution_no)
		finish_node(worker, held, index);
	else if (!held->nodes[index].done)
		start_node(worker, held, index);
}

static void change_version(struct worker *worker, struct held *held)
{
	bool plan = chance(worker, 30);
	struct call call = call_with(worker, plan ? "plan_change" : "checkpoint",
				     &held->grant.token);

	/* now and then a version that somebody else has left behind */
	call.version = held->version > 1 && chance(worker, 10) ? held->version - 1 : held->version;
	if (settle(worker, &call, plan ? verb_plan : verb_checkpoint) == 0)
		held->version = call.change.state_version;
}

static void end_run(struct worker *worker, struct held *held)
{
	static const enum lease_run_status ends[] = { LEASE_RUN_COMPLETED, LEASE_RUN_COMPLETED,
						      LEASE_RUN_COMPLETED, LEASE_RUN_FAILED,
						      LEASE_RUN_INTERRUPTED };
	struct call call;
	int how = below(worker, 10), r;

	if (held->grant.cancel_requested || how < 5) {
		call = call_with(worker, "finish", &held->grant.token);
		call.status = held->grant.cancel_requested ? LEASE_RUN_CANCELLED
							   : ends[below(worker, 5)];
		r = settle(worker, &call, verb_finish);
	} else if (how < 8) {
		call = call_with(worker, "release", &held->grant.token);
		call.delay = below(worker, 300) * LEASE_MILLISECOND;
		r = settle(worker, &call, verb_release);
	} else {
		call = call_with(worker, "suspend", &held->grant.token);
		r = settle(worker, &call, verb_suspend);
	}
	if (r == LEASE_CANCEL_REQUESTED)
		held->grant.cancel_requested = true;
	else
		drop(worker, held);
}

static void work(struct worker *worker, struct held *held)
{
	int what = below(worker, 100);

	/* past its end a worker does nothing but ask for a renewal, see see_to_leases */
	if (lease_clock_boottime() >= held->grant.local_end)
		return;
	if (held->grant.cancel_requested || what < 22)
		end_run(worker, held);
	else if (what < 40)
		change_version(worker, held);
	else
		work_on_node(worker, held);
}

/* -- what clients do, and what nobody should do --------------------------------------------------- */

static void submit(struct worker *worker)
{
	struct call call = call_of(worker, "submit");

	snprintf(call.token.run_id, sizeof(call.token.run_id), "r%.60s", call.id);
	if (chance(worker, 20))
		call.delay = below(worker, 800) * LEASE_MILLISECOND;
	if (chance(worker, 25))
		call.deadline = call.delay + (1 + below(worker, 5000)) * LEASE_MILLISECOND;
	if (settle(worker, &call, verb_submit) == 0)
		remember_run(worker, call.token.run_id);
}

static void be_client(struct worker *worker)
{
	static const struct {
		const char *verb;
		verb_function *function;
		int weight;
	} verbs[] = {
		{ "cancel", verb_cancel, 3 },
		{ "resume", verb_resume, 8 },
		{ "give_up", verb_give_up, 1 },
		{ "story", verb_story, 3 },
	};
	int what = below(worker, 15), i = 0;
	struct call call;

	while (what >= verbs[i].weight)
		what -= verbs[i++].weight;
	call = call_of(worker, verbs[i].verb);
	call.status = LEASE_RUN_FAILED;
	snprintf(call.token.run_id, sizeof(call.token.run_id), "%s", recent_run(worker));
	if (*call.token.run_id)
		settle(worker, &call, verbs[i].function);
}

/* A worker that woke up late: it goes on with a token that it has lost. */
static void be_late(struct worker *worker)
{
	static const struct {
		const char *verb;
		verb_function *function;
	} verbs[] = { { "renew", verb_renew },
		      { "finish", verb_finish },
		      { "release", verb_release },
		      { "suspend", verb_suspend },
		      { "node_start", verb_node_start },
		      { "checkpoint", verb_checkpoint },
		      { "node_finish", verb_node_finish } };
	const struct lease_token *token = &worker->old[below(worker, OLD)];
	int which = below(worker, (int)(sizeof(verbs) / sizeof(verbs[0])));
	struct call call = call_with(worker, verbs[which].verb, token);

	if (!*token->run_id)
		return;
	call.ttl = some_ttl(worker);
	call.status = LEASE_RUN_COMPLETED;
	call.version = 1 + below(worker, 6);
	call.execution_no = 1;
	if (strncmp(call.verb, "node_", 5) == 0)
		operation_of(&call, below(worker, NODES));
	settle(worker, &call, verbs[which].function);
}

/* -- the loop ----------------------------------------------------------------------------------- */

static void see_to_leases(struct worker *worker)
{
	int64_t now = lease_clock_boottime();

	for (int i = 0; i < LEASES; i++) {
		struct held *held = &worker->held[i];

		if (!held->grant.token.run_id[0])
			continue;
		if (held->neglected) {
			if (now > held->grant.local_end)
				drop(worker, held);
		} else if (now >= held->renew_at) {
			if (chance(worker, 30))
				renew_all(worker);
			else
				renew(worker, held);
		}
	}
}

/* No longer than until the next renewal: those at the last moment are to come at the last moment. */
static int64_t pause_before_next(struct worker *worker)
{
	int64_t now = lease_clock_boottime();
	int64_t pause = (5 + below(worker, 40)) * LEASE_MILLISECOND;

	for (int i = 0; i < LEASES; i++)
		if (worker->held[i].grant.token.run_id[0] && worker->held[i].renew_at < now + pause)
			pause = worker->held[i].renew_at - now;
	return pause < LEASE_MILLISECOND ? LEASE_MILLISECOND : pause;
}

static void step(struct worker *worker)
{
	struct held *held = &worker->held[below(worker, LEASES)];
	int what = below(worker, 100);

	see_to_leases(worker);
	if (what < 8)
		be_client(worker);
	else if (what < 12)
		be_late(worker);
	else if (what < 16)
		claim(worker, recent_run(worker));
	else if (held->grant.token.run_id[0])
		work(worker, held);
	else if (what < 40)
		submit(worker);
	else
		claim(worker, "");
}

static long number_of(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	if (end == text || *end) {
		fprintf(stderr, "torture-worker: %s is not a number\n", text);
		exit(EX_USAGE);
	}
	return value;
}

int main(int argc, char *argv[])
{
	struct worker worker = { 0 };
	int log;

	if (argc != 5) {
		fprintf(stderr, "usage: torture-worker NAME SEED LOG CONNINFO\n");
		return EX_USAGE;
	}
	worker.name = argv[1];
	worker.random = (uint64_t)number_of(argv[2]);
	worker.conninfo = argv[4];
	log = open(argv[3], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log < 0) {
		perror(argv[3]);
		return EX_CANTCREAT;
	}
	worker.log = log;
	signal(SIGPIPE, SIG_IGN);
	reconnect(&worker);
	for (;;) {
		step(&worker);
		rest(pause_before_next(&worker));
	}
}
