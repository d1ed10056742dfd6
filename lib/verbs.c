/*
 * verbs.c - see verbs.h.
 */
#include "verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* -- arguments -------------------------------------------------------------------------------- */

int check_id(const char *name, const char *value, struct lease_error *reterr)
{
	size_t length = value ? strlen(value) : 0;

	if (length >= 1 && length <= LEASE_ID_MAX)
		return 0;
	return lease_error_set(reterr, LEASE_E_INVALID, "%s must have 1 to %d bytes, it has %zu",
			       name, LEASE_ID_MAX, length);
}

int check_optional_id(const char *name, const char *value, struct lease_error *reterr)
{
	return value ? check_id(name, value, reterr) : 0;
}

int check_message(const char *value, struct lease_error *reterr)
{
	size_t length = value ? strlen(value) : 0;

	if (length <= LEASE_MESSAGE_MAX)
		return 0;
	return lease_error_set(reterr, LEASE_E_INVALID,
			       "error_message must have at most %d bytes, it has %zu",
			       LEASE_MESSAGE_MAX, length);
}

int check_duration(const char *name, int64_t value, int64_t min, struct lease_error *reterr)
{
	if (value >= min && value <= LEASE_DURATION_MAX)
		return 0;
	return lease_error_set(reterr, LEASE_E_INVALID,
			       "%s must be from %" PRId64 " to %" PRId64
			       " microseconds, it is %" PRId64,
			       name, min, LEASE_DURATION_MAX, value);
}

int check_optional_ref(const char *name, const char *value, struct lease_error *reterr)
{
	size_t length = value ? strlen(value) : 1;

	if (length >= 1 && length <= LEASE_REF_MAX)
		return 0;
	return lease_error_set(reterr, LEASE_E_INVALID, "%s must have 1 to %d bytes, it has %zu",
			       name, LEASE_REF_MAX, length);
}

int check_reason(const char *code, const char *message, struct lease_error *reterr)
{
	int r = check_optional_id("error_code", code, reterr);

	return r < 0 ? r : check_message(message, reterr);
}

int check_token(const struct lease_token *token, struct lease_error *reterr)
{
	int r;

	if (!token)
		return lease_error_set(reterr, LEASE_E_INVALID, "no fencing token is given");
	r = check_id("run_id", token->run_id, reterr);
	if (r == 0)
		r = check_id("owner", token->owner, reterr);
	if (r == 0 && token->attempt_no < 1)
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "attempt_no must be positive, it is %" PRId32,
				    token->attempt_no);
	return r;
}

int64_t effective_timeout(int64_t timeout)
{
	if (timeout <= 0)
		return LEASE_TIMEOUT_DEFAULT;
	return timeout < LEASE_DURATION_MAX ? timeout : LEASE_DURATION_MAX;
}

/* -- one command on one run ------------------------------------------------------------------- */

int run_txn(PGconn *conn, struct txn *txn, int64_t timeout, struct lease_error *reterr)
{
	timeout = effective_timeout(timeout);
	/* a lock that is not granted is to be told apart from a statement that is slow */
	txn->statement_timeout = timeout / 2;
	txn->lock_timeout = timeout / 3;
	return pump_run(conn, txn_operation(txn), timeout, reterr);
}

int result_of(const struct txn_item *item)
{
	switch (item->decision.verdict) {
	case VERDICT_REFUSE:
		return (int)item->decision.refusal;
	case VERDICT_UNCHANGED:
		return 0;
	case VERDICT_APPLY:
		break;
	}
	if (item->applied)
		return 0;
	switch (item->decision.step) {
	case ATTEMPT_OPEN:
	case ATTEMPT_TAKE_OVER:
	case ATTEMPT_CLOSE_LOST:
		return LEASE_HELD;
	case CHECKPOINT_RECORD:
	case PLAN_CHANGE:
		return LEASE_STALE_VERSION;
	default:
		return LEASE_EXPIRED;
	}
}

int run_change(PGconn *conn, const struct lease_command *command, int64_t timeout,
	       struct lease_change *ret, struct lease_error *reterr)
{
	struct txn_item item = { .command = *command };
	struct txn txn = { .lock = TXN_LOCK, .items = &item, .n = 1 };
	int r = run_txn(conn, &txn, timeout, reterr);

	if (r == 0)
		r = result_of(&item);
	if (r == 0 && ret)
		*ret = (struct lease_change){
			.changed = item.decision.verdict == VERDICT_APPLY,
			.status = item.decision.to,
			.state_version = item.state_version,
		};
	txn_done(&txn);
	return r;
}

void copy_id(char to[LEASE_ID_MAX + 1], const char *from)
{
	snprintf(to, LEASE_ID_MAX + 1, "%s", from ? from : "");
}

void copy_ref(char to[LEASE_REF_MAX + 1], const char *from)
{
	snprintf(to, LEASE_REF_MAX + 1, "%s", from ? from : "");
}
