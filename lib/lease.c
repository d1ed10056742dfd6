/*
 * lease.c - the public verbs, blocking, on the caller's connection.
 *
 * Each checks its arguments, runs one operation through the pump and hands out what came of it.
 * Decisions are machine.c's, transactions txn.c's. Nothing here waits but in pump_run.
 */
#include "lease.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "sql.h"
#include "verbs.h"

/* -- grants ----------------------------------------------------------------------------------- */

int64_t lease_clock_boottime(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000;
}

/* The end on the worker's clock; `sent` is when the request had not been sent yet. */
static int64_t local_end(int64_t sent, int64_t now, int64_t lease_expires_at)
{
	int64_t remaining = lease_expires_at - now;

	return sent + remaining - remaining / 100;
}

static void grant_from_item(const struct txn_item *item, int64_t sent, struct lease_grant *ret)
{
	bool refreshed = item->decision.step == ATTEMPT_REFRESH;

	*ret = (struct lease_grant){
		.token.attempt_no = refreshed ? item->facts.open.attempt_no
					      : item->facts.last_attempt_no + 1,
		.state_version = item->state_version,
		.now = item->now,
		.lease_expires_at = item->lease_expires_at,
		.deadline_at = item->deadline_at,
		.local_end = local_end(sent, item->now, item->lease_expires_at),
		.cancel_requested = item->cancel_requested_at != LEASE_TIME_NONE,
		.new_attempt = !refreshed,
	};
	copy_id(ret->token.run_id, item->command.run_id);
	copy_id(ret->token.owner, item->command.owner);
}

/* How often another run is looked for when each one found was taken meanwhile. */
#define CLAIM_TRIES 10

static int claim(PGconn *conn, const struct lease_claim *claim, enum txn_lock lock,
		 struct lease_grant *ret, struct lease_error *reterr)
{
	struct txn_item item = {
		.command = { .kind = COMMAND_MARK_RUNNING,
			     .run_id = lock == TXN_LOCK_NEXT ? NULL : claim->run_id,
			     .owner = claim->owner,
			     .ttl = claim->ttl,
			     .trace_id = claim->trace_id },
	};
	struct txn txn = { .lock = lock,
			   .tenant_id = claim->tenant_id,
			   .take_over = claim->take_over,
			   .items = &item,
			   .n = 1 };
	int64_t sent = lease_clock_boottime();
	int r = check_id("owner", claim->owner, reterr);

	if (r == 0)
		r = check_optional_id("trace_id", claim->trace_id, reterr);
	if (r == 0)
		r = check_duration("ttl", claim->ttl, 1, reterr);
	if (r < 0)
		return r;
	r = run_txn(conn, &txn, claim->timeout, reterr);
	if (r == 0)
		r = result_of(&item);
	if (r == 0)
		grant_from_item(&item, sent, ret);
	txn_done(&txn);
	return r;
}

int lease_mark_running(PGconn *conn, const struct lease_claim *given, struct lease_grant *ret,
		       struct lease_error *reterr)
{
	int r = check_id("run_id", given->run_id, reterr);

	return r < 0 ? r : claim(conn, given, TXN_LOCK, ret, reterr);
}

int lease_claim_next(PGconn *conn, const struct lease_claim *given, struct lease_grant *ret,
		     struct lease_error *reterr)
{
	int r = check_optional_id("tenant_id", given->tenant_id, reterr);

	if (r < 0)
		return r;
	/*
	 * Another worker may take the run between the snapshot that chose it and the lock: then the
	 * look refuses, and another run is looked for. Only an owner who cannot have a new attempt
	 * is told so.
	 */
	for (int tries = 0; tries < CLAIM_TRIES; tries++) {
		r = claim(conn, given, TXN_LOCK_NEXT, ret, reterr);
		if (r <= 0 || r == LEASE_NOT_FOUND || r == LEASE_EXPIRED)
			return r;
	}
	return LEASE_NOT_FOUND;
}

int lease_ttl_check(int64_t ttl, int64_t period, struct lease_error *reterr)
{
	int r = check_duration("ttl", ttl, 1, reterr);

	if (r == 0)
		r = check_duration("renewal period", period, 1, reterr);
	if (r == 0 && period > ttl / 3)
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "a renewal period of %.3f s is longer than a third of the "
				    "lease of %.3f s: renew at least every %.3f s, or lease for "
				    "at least %.3f s",
				    (double)period / 1e6, (double)ttl / 1e6, (double)ttl / 3e6,
				    (double)period * 3 / 1e6);
	return r;
}

/* -- renewals: the one shortcut, a guarded statement on the attempt alone ------------------------ */

struct renewal {
	const struct lease_token **tokens; /* sorted by run_id */
	size_t n;
	int64_t ttl, statement_timeout;
	const struct lease_token *first; /* the caller's order */
	struct lease_grant *grants; /* in the caller's order, as `results` */
	int *results;
	int64_t sent;
	bool strict; /* of one, by the clock alone: renew.sql */
	int statement; /* index of the renewal in the batch */
};

static void add_renewal_of_one(const struct renewal *renewal, struct batch *batch)
{
	const struct lease_token *token = renewal->tokens[0];

	batch_add_often(batch, lease_sql_renew);
	bind_text(batch, token->run_id);
	bind_int(batch, token->attempt_no);
	bind_text(batch, token->owner);
	bind_int(batch, renewal->ttl);
}

/* In a transaction with the settings that keep the order of locks. */
static void add_renewal_of_many(struct renewal *renewal, struct batch *batch)
{
	struct array column[4] = { 0 };

	for (size_t i = 0; i < renewal->n; i++) {
		array_add_text(&column[0], renewal->tokens[i]->run_id);
		array_add_int(&column[1], renewal->tokens[i]->attempt_no);
		array_add_text(&column[2], renewal->tokens[i]->owner);
		array_add_int(&column[3], renewal->ttl);
	}
	batch_add(batch, lease_sql_begin);
	batch_add_often(batch, lease_sql_settings);
	bind_settings(batch, &(struct settings){ .statement_timeout = renewal->statement_timeout,
						 .lock_timeout = renewal->statement_timeout,
						 .hash_joins = true });
	renewal->statement = batch->n;
	batch_add_often(batch, lease_sql_renew_many);
	for (size_t i = 0; i < 4; i++)
		bind_array(batch, &column[i]);
	batch_add(batch, "COMMIT");
}

static void fill_renewal(void *self, struct batch *batch)
{
	struct renewal *renewal = self;

	renewal->statement = 0;
	if (renewal->strict)
		add_renewal_of_one(renewal, batch);
	else
		add_renewal_of_many(renewal, batch);
	batch->commits = true;
}

static int take_renewed(struct renewal *renewal, const PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "issss", reterr);

	for (int row = 0; r == 0 && row < PQntuples(result); row++) {
		int64_t position = read_int(result, row, 0);
		const struct lease_token *token;
		struct lease_grant *grant;

		if (position < 1 || (size_t)position > renewal->n)
			return lease_error_set(reterr, LEASE_E_PROTOCOL,
					       "the server renewed a lease that was not named");
		token = renewal->tokens[position - 1];
		grant = &renewal->grants[token - renewal->first];
		*grant = (struct lease_grant){
			.token = *token,
			.now = read_time(result, row, 1),
			.lease_expires_at = read_time(result, row, 2),
			.deadline_at = read_time(result, row, 3),
			.cancel_requested = !PQgetisnull(result, row, 4),
		};
		grant->local_end = local_end(renewal->sent, grant->now, grant->lease_expires_at);
		renewal->results[token - renewal->first] = 0;
	}
	return r;
}

static int take_renewal(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct renewal *renewal = self;

	return index == renewal->statement ? take_renewed(renewal, result, reterr) : 0;
}

static size_t count_refused(const struct renewal *renewal)
{
	size_t refused = 0;

	for (size_t i = 0; i < renewal->n; i++)
		refused += renewal->results[i] < 0;
	return refused;
}

/* Finds out why tokens were not renewed; `results` holds -1 for them, so many of them. */
static int explain_refusals(PGconn *conn, const struct renewal *renewal, size_t refused,
			    int64_t timeout, struct lease_error *reterr)
{
	struct txn_item *items = calloc(refused, sizeof(*items));
	struct txn txn = { .lock = TXN_LOOK, .items = items };
	int r;

	if (!items)
		return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	for (size_t i = 0; i < renewal->n; i++) {
		const struct lease_token *token = renewal->tokens[i];

		if (renewal->results[token - renewal->first] < 0)
			items[txn.n++].command = (struct lease_command){
				.kind = COMMAND_RENEW,
				.run_id = token->run_id,
				.attempt_no = token->attempt_no,
				.owner = token->owner,
				.ttl = renewal->ttl,
			};
	}
	r = run_txn(conn, &txn, timeout, reterr);
	for (size_t i = 0, k = 0; r == 0 && i < renewal->n; i++) {
		int *result = &renewal->results[renewal->tokens[i] - renewal->first];

		/* the statement that counts found no lease that holds, whatever a later look says */
		if (*result < 0) {
			const struct lease_decision *decision = &items[k++].decision;

			*result = decision->verdict == VERDICT_REFUSE ? (int)decision->refusal
								      : LEASE_EXPIRED;
		}
	}
	txn_done(&txn);
	free(items);
	return r;
}

static int renew_once(PGconn *conn, struct renewal *renewal, int64_t limit,
		      struct lease_error *reterr)
{
	return exchange_run(conn, (struct exchange){ fill_renewal, take_renewal, renewal }, limit,
			    reterr);
}

/*
 * The statement for one lease knows no amnesty: that it may have to be read would cost each renewal
 * in time a third more, for planning alone. What it does not renew the statement for many tries,
 * whose guard is whole.
 */
static int renew(PGconn *conn, struct renewal *renewal, int64_t timeout, struct lease_error *reterr)
{
	int64_t limit = effective_timeout(timeout > 0 ? timeout : renewal->ttl);
	size_t refused;
	int r;

	for (size_t i = 0; i < renewal->n; i++)
		renewal->results[i] = -1;
	renewal->statement_timeout = limit / 2;
	renewal->sent = lease_clock_boottime();
	renewal->strict = renewal->n == 1;
	r = renew_once(conn, renewal, limit, reterr);
	if (r == 0 && renewal->strict && renewal->results[0] < 0) {
		renewal->strict = false;
		r = renew_once(conn, renewal, limit, reterr);
	}
	if (r < 0)
		return r;
	refused = count_refused(renewal);
	if (refused > 0)
		r = explain_refusals(conn, renewal, refused, limit, reterr);
	/* those that were renewed stay so */
	if (r < 0 && refused < renewal->n && reterr)
		reterr->outcome_unknown = true;
	return r;
}

int lease_renew_lease(PGconn *conn, const struct lease_token *token, int64_t ttl, int64_t timeout,
		      struct lease_grant *ret, struct lease_error *reterr)
{
	struct lease_grant grant = { 0 };
	int result = -1;
	struct renewal renewal = { .tokens = &token,
				   .n = 1,
				   .ttl = ttl,
				   .first = token,
				   .grants = &grant,
				   .results = &result };
	int r = check_token(token, reterr);

	if (r == 0)
		r = check_duration("ttl", ttl, 1, reterr);
	if (r == 0)
		r = renew(conn, &renewal, timeout, reterr);
	if (r < 0)
		return r;
	if (result == 0 && ret)
		*ret = grant;
	return result;
}

static int by_run_id(const void *a, const void *b)
{
	const struct lease_token *const *x = a, *const *y = b;

	return strcmp((*x)->run_id, (*y)->run_id);
}

static int sort_tokens(const struct lease_token *tokens, size_t n,
		       const struct lease_token **sorted, struct lease_error *reterr)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		sorted[i] = &tokens[i];
		r = check_token(&tokens[i], reterr);
	}
	if (r < 0)
		return r;
	qsort(sorted, n, sizeof(*sorted), by_run_id);
	for (size_t i = 1; i < n; i++)
		if (strcmp(sorted[i - 1]->run_id, sorted[i]->run_id) == 0)
			return lease_error_set(reterr, LEASE_E_INVALID,
					       "run %s is named twice in one renewal",
					       sorted[i]->run_id);
	return 0;
}

/* The caller's grants stay as they are until all is known: after an error they still count. */
static int renew_sorted(PGconn *conn, struct renewal *renewal, int64_t timeout,
			struct lease_grant *grants, int *results, struct lease_error *reterr)
{
	size_t n = renewal->n;
	int r = LEASE_E_MEMORY;

	renewal->grants = calloc(n, sizeof(*grants));
	renewal->results = calloc(n, sizeof(*results));
	if (renewal->grants && renewal->results)
		r = renew(conn, renewal, timeout, reterr);
	else
		lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	if (r == 0) {
		memcpy(grants, renewal->grants, n * sizeof(*grants));
		memcpy(results, renewal->results, n * sizeof(*results));
	}
	free(renewal->grants);
	free(renewal->results);
	return r;
}

int lease_renew_leases(PGconn *conn, const struct lease_token *tokens, size_t n, int64_t ttl,
		       int64_t timeout, struct lease_grant *grants, int *results,
		       struct lease_error *reterr)
{
	const struct lease_token **sorted;
	struct renewal renewal = { .n = n, .ttl = ttl, .first = tokens };
	int r = check_duration("ttl", ttl, 1, reterr);

	if (r < 0)
		return r;
	if (n < 1 || n > 10000)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "1 to 10000 leases can be renewed at once, not %zu", n);
	renewal.tokens = sorted = calloc(n, sizeof(*sorted));
	if (!sorted)
		return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	r = sort_tokens(tokens, n, sorted, reterr);
	if (r == 0)
		r = renew_sorted(conn, &renewal, timeout, grants, results, reterr);
	free(sorted);
	return r;
}

/* -- the other verbs -------------------------------------------------------------------------- */

int lease_release_lease_for_retry(PGconn *conn, const struct lease_release *release,
				  struct lease_change *ret, struct lease_error *reterr)
{
	struct lease_command command = {
		.kind = COMMAND_RELEASE,
		.run_id = release->token.run_id,
		.attempt_no = release->token.attempt_no,
		.owner = release->token.owner,
		.delay = release->delay,
		.error_code = release->error_code,
		.error_message = release->error_message,
	};
	int r = check_token(&release->token, reterr);

	if (r == 0)
		r = check_duration("delay", release->delay, 0, reterr);
	if (r == 0)
		r = check_reason(release->error_code, release->error_message, reterr);
	return r < 0 ? r : run_change(conn, &command, release->timeout, ret, reterr);
}

int lease_suspend(PGconn *conn, const struct lease_token *token, int64_t timeout,
		  struct lease_change *ret, struct lease_error *reterr)
{
	int r = check_token(token, reterr);

	if (r < 0)
		return r;
	return run_change(conn,
			  &(struct lease_command){ .kind = COMMAND_SUSPEND,
						   .run_id = token->run_id,
						   .attempt_no = token->attempt_no,
						   .owner = token->owner },
			  timeout, ret, reterr);
}

int lease_set_terminal_status(PGconn *conn, const struct lease_finish *finish,
			      struct lease_change *ret, struct lease_error *reterr)
{
	const struct lease_token *token = finish->token;
	struct lease_command command = {
		.kind = token ? COMMAND_FINISH : COMMAND_GIVE_UP,
		.run_id = token ? token->run_id : finish->run_id,
		.attempt_no = token ? token->attempt_no : 0,
		.owner = token ? token->owner : NULL,
		.to = finish->status,
		.error_code = finish->error_code,
		.error_message = finish->error_message,
		.expected_version = token ? 0 : finish->expected_version,
	};
	int r = token ? check_token(token, reterr) : check_id("run_id", finish->run_id, reterr);

	if (r == 0 && !lease_run_status_is_terminal(finish->status))
		r = lease_error_set(reterr, LEASE_E_INVALID, "'%s' is not a terminal status",
				    lease_run_status_name(finish->status));
	if (r == 0)
		r = check_reason(finish->error_code, finish->error_message, reterr);
	/* or the attempt would look like one that was suspended */
	if (r == 0 && finish->status == LEASE_RUN_INTERRUPTED && finish->error_code &&
	    strcmp(finish->error_code, LEASE_ERROR_SUSPENDED) == 0)
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "the error_code '%s' of an interrupted run is reserved",
				    LEASE_ERROR_SUSPENDED);
	return r < 0 ? r : run_change(conn, &command, finish->timeout, ret, reterr);
}

static int change_by_version(PGconn *conn, enum lease_command_kind kind, const char *run_id,
			     int64_t expected_version, int64_t timeout, struct lease_change *ret,
			     struct lease_error *reterr)
{
	int r = check_id("run_id", run_id, reterr);

	if (r < 0)
		return r;
	return run_change(conn,
			  &(struct lease_command){ .kind = kind,
						   .run_id = run_id,
						   .expected_version = expected_version },
			  timeout, ret, reterr);
}

int lease_resume(PGconn *conn, const char *run_id, int64_t expected_version, int64_t timeout,
		 struct lease_change *ret, struct lease_error *reterr)
{
	return change_by_version(conn, COMMAND_RESUME, run_id, expected_version, timeout, ret,
				 reterr);
}

int lease_request_cancel(PGconn *conn, const char *run_id, int64_t expected_version,
			 int64_t timeout, struct lease_change *ret, struct lease_error *reterr)
{
	return change_by_version(conn, COMMAND_REQUEST_CANCEL, run_id, expected_version, timeout,
				 ret, reterr);
}

/* -- names ------------------------------------------------------------------------------------ */

static int random_bytes(unsigned char *bytes, size_t n, struct lease_error *reterr)
{
	if (getrandom(bytes, n, 0) == (ssize_t)n)
		return 0;
	return lease_error_set(reterr, LEASE_E_SYSTEM, "getrandom gave no random bytes");
}

/* RFC 9562: version and variant, then the text form. */
static void format_uuid(unsigned char bytes[16], unsigned version, char ret[37])
{
	char *to = ret;

	bytes[6] = (unsigned char)(version << 4 | (bytes[6] & 0x0f));
	bytes[8] = (unsigned char)(0x80 | (bytes[8] & 0x3f));
	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*to++ = '-';
		to += snprintf(to, 3, "%02x", bytes[i]);
	}
}

int lease_owner_generate(const char *identity, char ret[LEASE_ID_MAX + 1],
			 struct lease_error *reterr)
{
	size_t length = identity ? strlen(identity) : 0;
	unsigned char bytes[16];
	char uuid[37];
	int r;

	if (length < 1 || length > 200)
		return lease_error_set(reterr, LEASE_E_INVALID,
				       "a worker's identity must have 1 to 200 bytes, it has %zu",
				       length);
	r = random_bytes(bytes, sizeof(bytes), reterr);
	if (r < 0)
		return r;
	format_uuid(bytes, 4, uuid);
	snprintf(ret, LEASE_ID_MAX + 1, "%s:%s", identity, uuid);
	return 0;
}

/* Version 7: it begins with the time, so that new runs fall on neighbouring index pages. */
static int generate_run_id(char ret[LEASE_ID_MAX + 1], struct lease_error *reterr)
{
	unsigned char bytes[16];
	struct timespec now;
	uint64_t milliseconds;
	int r = random_bytes(bytes, sizeof(bytes), reterr);

	if (r < 0)
		return r;
	clock_gettime(CLOCK_REALTIME, &now);
	milliseconds = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
	for (int i = 0; i < 6; i++)
		bytes[i] = (unsigned char)(milliseconds >> (40 - 8 * i));
	format_uuid(bytes, 7, ret);
	return 0;
}

/* -- submit: one statement --------------------------------------------------------------------- */

struct submission {
	const struct lease_submission *given;
	const char *run_id;
	bool answered;
	struct lease_change change;
};

static void fill_submission(void *self, struct batch *batch)
{
	struct submission *submission = self;
	const struct lease_submission *given = submission->given;

	batch_add(batch, lease_sql_submit);
	bind_text(batch, submission->run_id);
	bind_text(batch, given->tenant_id ? given->tenant_id : "default");
	bind_text(batch, lease_run_status_name(LEASE_RUN_PENDING));
	bind_int(batch, given->delay);
	bind_int(batch, given->deadline);
	batch->commits = true;
}

static int take_submission(void *self, int index, const PGresult *result,
			   struct lease_error *reterr)
{
	struct submission *submission = self;
	int r = read_form(result, "btl", reterr);

	(void)index;
	if (r < 0 || PQntuples(result) == 0)
		return r;
	submission->answered = true;
	submission->change = (struct lease_change){
		.changed = read_bool(result, 0, 0),
		.status = (enum lease_run_status)lease_run_status_parse(read_text(result, 0, 1)),
		.state_version = read_int(result, 0, 2),
	};
	return 0;
}

int lease_submit(PGconn *conn, const struct lease_submission *given,
		 char ret_run_id[LEASE_ID_MAX + 1], struct lease_change *ret,
		 struct lease_error *reterr)
{
	char generated[LEASE_ID_MAX + 1];
	struct submission submission = { .given = given, .run_id = given->run_id };
	int r = check_optional_id("run_id", given->run_id, reterr);

	if (r == 0)
		r = check_optional_id("tenant_id", given->tenant_id, reterr);
	if (r == 0)
		r = check_duration("delay", given->delay, 0, reterr);
	if (r == 0)
		r = check_duration("deadline", given->deadline, 0, reterr);
	if (r == 0 && !given->run_id) {
		r = generate_run_id(generated, reterr);
		submission.run_id = generated;
	}
	/* a run that another session added after this statement's snapshot shows up the next time */
	for (int tries = 0; r == 0 && !submission.answered; tries++) {
		if (tries == 3)
			return lease_error_set(reterr, LEASE_E_PROTOCOL,
					       "run %s is there but cannot be read",
					       submission.run_id);
		r = exchange_run(conn,
				 (struct exchange){ fill_submission, take_submission, &submission },
				 effective_timeout(given->timeout), reterr);
	}
	if (r < 0)
		return r;
	if (ret)
		*ret = submission.change;
	if (ret_run_id)
		copy_id(ret_run_id, submission.run_id);
	return 0;
}
