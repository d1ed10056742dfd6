/*
 * nodes.c - the verbs about steps of a run: nodes and their executions, operations, contents,
 * checkpoints and plans.
 *
 * What changes a run goes through the same transaction as everything else (txn.c); what only
 * registers or looks up is one statement.
 */
#include <stdio.h>
#include <string.h>

#include "sql.h"
#include "verbs.h"

/* -- nodes ------------------------------------------------------------------------------------ */

static void node_execution_from_item(const struct txn_item *item, int refusal,
				     struct lease_node_execution *ret)
{
	const struct lease_facts *facts = &item->facts;
	bool is_last = refusal == LEASE_HELD || refusal == LEASE_TERMINAL;

	*ret = (struct lease_node_execution){
		.execution_no = facts->node.last_execution_no + (is_last ? 0 : 1),
		.state_version = item->node_version,
		.started_at = item->now,
		.succeeded = refusal == LEASE_TERMINAL && facts->node.last_execution_no > 0 &&
			     facts->node.state == LEASE_EXECUTION_SUCCEEDED,
	};
	if (ret->succeeded)
		copy_ref(ret->output_ref, facts->node.output_ref);
}

static int start_node(PGconn *conn, const struct lease_node_start *start,
		      struct lease_node_execution *ret, struct lease_error *reterr)
{
	struct txn_item item = {
		.command = { .kind = COMMAND_START_NODE,
			     .run_id = start->token.run_id,
			     .attempt_no = start->token.attempt_no,
			     .owner = start->token.owner,
			     .node_id = start->node_id,
			     .operation_id = start->operation_id,
			     .content_ref = start->input_ref,
			     .trace_id = start->trace_id },
	};
	struct txn txn = { .lock = TXN_LOCK, .items = &item, .n = 1 };
	int r = run_txn(conn, &txn, start->timeout, reterr);

	if (r == 0)
		r = result_of(&item);
	if (ret && (r == 0 || r == LEASE_HELD || r == LEASE_TERMINAL))
		node_execution_from_item(&item, r, ret);
	txn_done(&txn);
	return r;
}

int lease_node_start(PGconn *conn, const struct lease_node_start *start,
		     struct lease_node_execution *ret, struct lease_error *reterr)
{
	struct lease_error error;
	int r = check_token(&start->token, reterr);

	if (r == 0)
		r = check_id("node_id", start->node_id, reterr);
	if (r == 0)
		r = check_optional_id("operation_id", start->operation_id, reterr);
	if (r == 0)
		r = check_optional_ref("input_ref", start->input_ref, reterr);
	if (r == 0)
		r = check_optional_id("trace_id", start->trace_id, reterr);
	if (r < 0)
		return r;
	r = start_node(conn, start, ret, &error);
	/*
	 * Another run may have registered the operation between our look and our write: the foreign
	 * key refuses, and a second look finds the conflict. An input_ref that is not registered
	 * fails again.
	 */
	if (r == LEASE_E_SERVER && strcmp(error.sqlstate, "23503") == 0 && start->operation_id)
		r = start_node(conn, start, ret, &error);
	if (r < 0 && reterr)
		*reterr = error;
	return r;
}

int lease_node_finish(PGconn *conn, const struct lease_node_finish *finish,
		      struct lease_change *ret, struct lease_error *reterr)
{
	bool failed = finish->status == LEASE_EXECUTION_FAILED;
	struct lease_command command = {
		.kind = COMMAND_FINISH_NODE,
		.run_id = finish->token.run_id,
		.attempt_no = finish->token.attempt_no,
		.owner = finish->token.owner,
		.node_id = finish->node_id,
		.execution_no = finish->execution_no,
		.execution_status = finish->status,
		.error_code = finish->normalized_error,
		.error_message = finish->error_message,
		.content_ref = finish->output_ref,
	};
	int r = check_token(&finish->token, reterr);

	if (r == 0)
		r = check_id("node_id", finish->node_id, reterr);
	if (r == 0)
		r = check_optional_ref("output_ref", finish->output_ref, reterr);
	if (r == 0)
		r = check_reason(finish->normalized_error, finish->error_message, reterr);
	if (r == 0 && !failed && finish->status != LEASE_EXECUTION_SUCCEEDED)
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "a node is finished as succeeded or failed, not as %s",
				    lease_execution_status_name(finish->status));
	if (r == 0 && failed != (finish->normalized_error != NULL))
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "a failed execution needs a normalized_error, a succeeded one "
				    "has none");
	if (r == 0 && finish->execution_no < 1)
		r = lease_error_set(reterr, LEASE_E_INVALID, "execution_no must be positive");
	return r < 0 ? r : run_change(conn, &command, finish->timeout, ret, reterr);
}

/* -- checkpoints and plans -------------------------------------------------------------------- */

static int check_version(int64_t expected_version, struct lease_error *reterr)
{
	if (expected_version >= 1)
		return 0;
	return lease_error_set(reterr, LEASE_E_INVALID,
			       "expected_version must be the state_version that this builds on");
}

int lease_checkpoint_record(PGconn *conn, const struct lease_checkpoint *checkpoint,
			    struct lease_change *ret, struct lease_error *reterr)
{
	struct lease_command command = {
		.kind = COMMAND_RECORD_CHECKPOINT,
		.run_id = checkpoint->token.run_id,
		.attempt_no = checkpoint->token.attempt_no,
		.owner = checkpoint->token.owner,
		.checkpoint_id = checkpoint->checkpoint_id,
		.content_ref = checkpoint->content_ref,
		.expected_version = checkpoint->expected_version,
	};
	int r = check_token(&checkpoint->token, reterr);

	if (r == 0)
		r = check_id("checkpoint_id", checkpoint->checkpoint_id, reterr);
	if (r == 0)
		r = check_optional_ref("content_ref", checkpoint->content_ref, reterr);
	if (r == 0)
		r = check_version(checkpoint->expected_version, reterr);
	return r < 0 ? r : run_change(conn, &command, checkpoint->timeout, ret, reterr);
}

int lease_plan_change(PGconn *conn, const struct lease_token *token, int64_t expected_version,
		      int64_t timeout, struct lease_change *ret, struct lease_error *reterr)
{
	int r = check_token(token, reterr);

	if (r == 0)
		r = check_version(expected_version, reterr);
	if (r < 0)
		return r;
	return run_change(conn,
			  &(struct lease_command){ .kind = COMMAND_CHANGE_PLAN,
						   .run_id = token->run_id,
						   .attempt_no = token->attempt_no,
						   .owner = token->owner,
						   .expected_version = expected_version },
			  timeout, ret, reterr);
}

/* -- operations and contents: one statement each ------------------------------------------------- */

struct lookup {
	const void *key;
	void *ret;
	bool found, changed;
};

const char *lease_operation_state_name(enum lease_operation_state state)
{
	switch (state) {
	case LEASE_OPERATION_NEVER_TRIED:
		return "never_tried";
	case LEASE_OPERATION_RUNNING:
		return "running";
	case LEASE_OPERATION_UNKNOWN:
		return "unknown";
	case LEASE_OPERATION_FAILED:
		return "failed";
	case LEASE_OPERATION_SUCCEEDED:
		return "succeeded";
	}
	return "?";
}

static void fill_operation(void *self, struct batch *batch)
{
	const struct lookup *lookup = self;

	batch_add(batch, lease_sql_read_operation);
	bind_text(batch, lookup->key);
	bind_text(batch, lease_execution_status_name(LEASE_EXECUTION_RUNNING));
	bind_text(batch, lease_execution_status_name(LEASE_EXECUTION_SUCCEEDED));
	bind_text(batch, lease_execution_status_name(LEASE_EXECUTION_FAILED));
}

static int take_operation(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct lookup *lookup = self;
	struct lease_operation *operation = lookup->ret;
	int r = read_form(result, "ttibibtt", reterr);

	(void)index;
	*operation = (struct lease_operation){ .state = LEASE_OPERATION_NEVER_TRIED };
	if (r < 0 || PQntuples(result) == 0)
		return r;
	copy_id(operation->run_id, read_text(result, 0, 0));
	copy_id(operation->node_id, read_text(result, 0, 1));
	operation->executions = (int32_t)read_int(result, 0, 2);
	operation->unknown = (int32_t)read_int(result, 0, 4);
	copy_ref(operation->output_ref, read_text(result, 0, 6));
	copy_id(operation->normalized_error, read_text(result, 0, 7));
	/* an end that nobody knows stays unknown, whatever failed for sure later */
	operation->state = read_bool(result, 0, 5)   ? LEASE_OPERATION_SUCCEEDED
			   : read_bool(result, 0, 3) ? LEASE_OPERATION_RUNNING
			   : operation->unknown > 0  ? LEASE_OPERATION_UNKNOWN
						     : LEASE_OPERATION_FAILED;
	return 0;
}

int lease_operation_lookup(PGconn *conn, const char *operation_id, struct lease_operation *ret,
			   struct lease_error *reterr)
{
	struct lease_operation operation = { 0 };
	struct lookup lookup = { .key = operation_id, .ret = &operation };
	int r = check_id("operation_id", operation_id, reterr);

	if (r == 0)
		r = exchange_run(conn, (struct exchange){ fill_operation, take_operation, &lookup },
				 LEASE_TIMEOUT_DEFAULT, reterr);
	if (r == 0)
		*ret = operation;
	return r;
}

static int take_content(void *self, int index, const PGresult *result, struct lease_error *reterr)
{
	struct lookup *lookup = self;
	struct lease_content *content = lookup->ret;
	const char *hash;
	int r = read_form(result, "btttli", reterr);

	(void)index;
	lookup->found = r == 0 && PQntuples(result) > 0;
	if (!lookup->found)
		return r;
	lookup->changed = read_bool(result, 0, 0);
	*content = (struct lease_content){
		.size_bytes = read_int(result, 0, 4),
		.schema_version = (int32_t)read_int(result, 0, 5),
	};
	copy_ref(content->content_ref, read_text(result, 0, 1));
	hash = read_text(result, 0, 2);
	snprintf(content->hash, sizeof(content->hash), "%s", hash ? hash : "");
	copy_id(content->media_type, read_text(result, 0, 3));
	return 0;
}

static void fill_content_lookup(void *self, struct batch *batch)
{
	const struct lookup *lookup = self;

	batch_add(batch, lease_sql_read_content);
	bind_text(batch, lookup->key);
}

int lease_content_lookup(PGconn *conn, const char *content_ref, struct lease_content *ret,
			 struct lease_error *reterr)
{
	struct lease_content content;
	struct lookup lookup = { .key = content_ref, .ret = &content };
	int r = check_optional_ref("content_ref", content_ref ? content_ref : "", reterr);

	if (r == 0)
		r = exchange_run(conn,
				 (struct exchange){ fill_content_lookup, take_content, &lookup },
				 LEASE_TIMEOUT_DEFAULT, reterr);
	if (r < 0)
		return r;
	if (!lookup.found)
		return LEASE_NOT_FOUND;
	*ret = content;
	return 0;
}

static void fill_content_register(void *self, struct batch *batch)
{
	const struct lookup *lookup = self;
	const struct lease_content *content = lookup->key;

	batch_add(batch, lease_sql_register_content);
	bind_text(batch, content->content_ref);
	bind_text(batch, content->hash);
	bind_text(batch, content->media_type);
	bind_int(batch, content->size_bytes);
	bind_int(batch, content->schema_version);
	batch->commits = true;
}

static bool is_hash(const char *hash)
{
	return strncmp(hash, "sha256:", 7) == 0 && strlen(hash) == 71 &&
	       strspn(hash + 7, "0123456789abcdef") == 64;
}

static int check_content(const struct lease_content *content, struct lease_error *reterr)
{
	int r = check_optional_ref("content_ref", content->content_ref, reterr);

	if (r == 0)
		r = check_id("media_type", content->media_type, reterr);
	if (r == 0 && !is_hash(content->hash))
		r = lease_error_set(reterr, LEASE_E_INVALID,
				    "a hash is 'sha256:' and 64 lower case hexadecimal digits");
	if (r == 0 && content->size_bytes < 0)
		r = lease_error_set(reterr, LEASE_E_INVALID, "size_bytes must not be negative");
	if (r == 0 && content->schema_version < 1)
		r = lease_error_set(reterr, LEASE_E_INVALID, "schema_version must be positive");
	return r;
}

static bool is_same_content(const struct lease_content *a, const struct lease_content *b)
{
	return strcmp(a->hash, b->hash) == 0 && strcmp(a->media_type, b->media_type) == 0 &&
	       a->size_bytes == b->size_bytes && a->schema_version == b->schema_version;
}

int lease_content_register(PGconn *conn, const struct lease_content *content, bool *ret_changed,
			   struct lease_error *reterr)
{
	struct lease_content there = { 0 };
	struct lookup lookup = { .key = content, .ret = &there };
	int r = check_content(content, reterr);

	/* one that another session registered after this statement's snapshot shows up next time */
	for (int tries = 0; r == 0 && !lookup.found; tries++) {
		if (tries == 3)
			return lease_error_set(reterr, LEASE_E_PROTOCOL,
					       "content %s is there but cannot be read",
					       content->content_ref);
		r = exchange_run(conn,
				 (struct exchange){ fill_content_register, take_content, &lookup },
				 LEASE_TIMEOUT_DEFAULT, reterr);
	}
	if (r < 0)
		return r;
	if (!is_same_content(content, &there))
		return LEASE_ILLEGAL;
	if (ret_changed)
		*ret_changed = lookup.changed;
	return 0;
}
