/*
 * refusal.c - what a refusal means to a person: see refusal.h.
 */
#include "refusal.h"

#include "failure.h"
#include "json.h"

static const char *refusal_text(int refusal)
{
	switch ((enum lease_refusal)refusal) {
	case LEASE_NOT_FOUND:
		return "there is no such run in this database";
	case LEASE_HELD:
		return "its open attempt's lease still holds: try again when that is over";
	case LEASE_TERMINAL:
		return "it has ended and does not change any more ('leasectl history' shows how)";
	case LEASE_CANCEL_REQUESTED:
		return "a cancel is requested: it can only be cancelled now";
	case LEASE_DEADLINE:
		return "its deadline has passed: the reconciler ends it";
	case LEASE_NOT_BEFORE:
		return "it is not due yet";
	case LEASE_STALE_VERSION:
		return "its version is another by now: see 'leasectl history' and decide anew";
	case LEASE_ILLEGAL:
		return "its status does not allow that ('leasectl history' shows it)";
	case LEASE_NOT_OWNER:
		return "it has no such attempt of this owner";
	case LEASE_EXPIRED:
		return "the attempt is over: its lease ran out, or it was closed";
	case LEASE_OPERATION_CONFLICT:
		break;
	}
	return "the state machine refuses";
}

int refuse(const struct output *output, const char *run_id, int refusal)
{
	struct json json;

	if (output->json) {
		json_init(&json, output->file);
		json_begin_object(&json, NULL);
		json_text(&json, "run_id", run_id);
		json_bool(&json, "changed", false);
		json_text(&json, "refusal", lease_refusal_name(refusal));
		json_end_object(&json);
	}
	return fail(refusal == LEASE_NOT_FOUND ? EX_NOINPUT : EX_DATAERR,
		    "run %s: refused (%s): %s", run_id, lease_refusal_name(refusal),
		    refusal_text(refusal));
}
