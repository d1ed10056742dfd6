/*
 * txn.c - see txn.h.
 */
#include "txn.h"

#include <stdlib.h>
#include <string.h>

#include "sql.h"

enum step {
	STEP_LOCK, /* and look, in one round trip: the runs are known */
	STEP_LOCK_NEXT,
	STEP_LOCK_NEXT_RUNNING,
	STEP_LOOK, /* of its own, after the lock chose the run */
	STEP_DECIDE, /* and write nothing */
	STEP_APPLY,
	STEP_END,
};

/* The statements of a batch, so that a result finds its reader. */
enum role {
	ROLE_OTHER,
	ROLE_SETTINGS,
	ROLE_LOCK,
	ROLE_NEXT,
	ROLE_LOOK,
	ROLE_LOOK_NODE,
	ROLE_CLOSE,
	ROLE_OPEN,
	ROLE_REFRESH,
	ROLE_FACT, /* one that belongs to a run: an execution, a checkpoint, a plan */
};

/* Index into txn.position: one list a statement over arrays. */
enum { LIST_CLOSE, LIST_OPEN, LIST_REFRESH };

static void add(struct txn *txn, struct batch *batch, enum role role, const char *sql)
{
	if (batch->n < BATCH_STATEMENTS)
		txn->role[batch->n] = (int)role;
	/* a plan that is kept must be one that was made under the settings of a transaction */
	if (txn->lock == TXN_LOOK)
		batch_add(batch, sql);
	else
		batch_add_often(batch, sql);
}

/* BEGIN, COMMIT, ROLLBACK: there is nothing to plan in them. */
static void add_control(struct txn *txn, struct batch *batch, const char *sql)
{
	txn->role[batch->n] = ROLE_OTHER;
	batch_add(batch, sql);
}

static void add_begin(struct txn *txn, struct batch *batch)
{
	add_control(txn, batch, lease_sql_begin);
	add(txn, batch, ROLE_SETTINGS, lease_sql_settings);
	bind_settings(batch, &(struct settings){ .statement_timeout = txn->statement_timeout,
						 .lock_timeout = txn->lock_timeout,
						 .notify = txn->notify });
	if (txn->lock == TXN_LOCK_SKIP)
		batch_answer_so_far(batch);
}

static void add_lock(struct txn *txn, struct batch *batch)
{
	struct array run_ids = { 0 };

	for (size_t i = 0; i < txn->n; i++)
		array_add_text(&run_ids, txn->items[i].command.run_id);
	add(txn, batch, ROLE_LOCK,
	    txn->lock == TXN_LOCK_SKIP ? lease_sql_lock_runs_skip : lease_sql_lock_runs);
	bind_array(batch, &run_ids);
}

static void add_look(struct txn *txn, struct batch *batch)
{
	struct array run_ids = { 0 }, attempts = { 0 }, owners = { 0 };
	int64_t losses = 0;

	for (size_t i = 0; i < txn->n; i++) {
		const struct lease_command *command = &txn->items[i].command;

		array_add_text(&run_ids, command->run_id);
		if (command->attempt_no > 0)
			array_add_int(&attempts, command->attempt_no);
		else
			array_add_text(&attempts, NULL);
		array_add_text(&owners, command->owner);
		if (command->kind == COMMAND_RECONCILE && command->max_losses > losses)
			losses = command->max_losses;
	}
	add(txn, batch, ROLE_LOOK, lease_sql_look);
	bind_array(batch, &run_ids);
	bind_array(batch, &attempts);
	bind_array(batch, &owners);
	bind_int(batch, losses);
	bind_text(batch, lease_outcome_name(LEASE_OUTCOME_LEASE_EXPIRED));
}

static void add_look_node(struct txn *txn, struct batch *batch)
{
	const struct lease_command *command = &txn->items[0].command;

	if (!lease_command_is_about_node(command->kind))
		return;
	add(txn, batch, ROLE_LOOK_NODE, lease_sql_look_node);
	bind_text(batch, command->run_id);
	bind_text(batch, command->node_id);
	bind_int(batch, command->execution_no);
	bind_text(batch, command->operation_id);
}

/* -- apply ------------------------------------------------------------------------------------ */

static bool closes(const struct lease_decision *decision)
{
	return decision->step == ATTEMPT_CLOSE || decision->step == ATTEMPT_CLOSE_LOST ||
	       decision->step == ATTEMPT_TAKE_OVER;
}

static bool opens(const struct lease_decision *decision)
{
	return decision->step == ATTEMPT_OPEN || decision->step == ATTEMPT_TAKE_OVER;
}

/* Opening moves the run by itself; what else moves goes with the closes. */
static bool closes_or_moves(const struct lease_decision *decision)
{
	return closes(decision) || (decision->move && !opens(decision));
}

static bool refreshes(const struct lease_decision *decision)
{
	return decision->step == ATTEMPT_REFRESH;
}

static bool marks_cancel(const struct lease_decision *decision)
{
	return decision->step == ATTEMPT_MARK_CANCEL;
}

/* Lists the items to apply whose decision is of a kind. Negative: out of memory. */
static int list_items(struct txn *txn, int list, bool (*is)(const struct lease_decision *))
{
	free(txn->position[list]);
	txn->n_position[list] = 0;
	txn->position[list] = calloc(txn->n, sizeof(size_t));
	if (!txn->position[list])
		return LEASE_E_MEMORY;
	for (size_t i = 0; i < txn->n; i++)
		if (txn->items[i].locked && txn->items[i].decision.verdict == VERDICT_APPLY &&
		    is(&txn->items[i].decision))
			txn->position[list][txn->n_position[list]++] = i;
	return 0;
}

static void add_close_and_move(struct txn *txn, struct batch *batch)
{
	struct array column[13] = { 0 };

	for (size_t k = 0; k < txn->n_position[LIST_CLOSE]; k++) {
		const struct txn_item *item = &txn->items[txn->position[LIST_CLOSE][k]];
		const struct lease_decision *decision = &item->decision;
		bool close = closes(decision), move = decision->move && !opens(decision);
		bool owner = decision->step == ATTEMPT_CLOSE;

		array_add_text(&column[0], item->command.run_id);
		if (close)
			array_add_int(&column[1], item->facts.open.attempt_no);
		else
			array_add_text(&column[1], NULL);
		array_add_text(&column[2], owner ? item->command.owner : NULL);
		array_add_text(&column[3], close ? lease_outcome_name(decision->outcome) : NULL);
		array_add_text(&column[4], decision->attempt_error_code);
		array_add_text(&column[5], decision->attempt_error_message);
		array_add_text(&column[6], move ? lease_run_status_name(decision->to) : NULL);
		array_add_bool(&column[7], move && lease_run_status_is_terminal(decision->to));
		array_add_int(&column[8], decision->delay);
		array_add_text(&column[9], decision->run_error_code);
		array_add_text(&column[10], decision->run_error_message);
		array_add_text(&column[11], lease_run_status_name(item->facts.status));
		array_add_text(&column[12],
			       lease_execution_status_name(
				       lease_execution_status_after(decision->outcome)));
	}
	add(txn, batch, ROLE_CLOSE, lease_sql_close_and_move);
	for (size_t i = 0; i < 13; i++)
		bind_array(batch, &column[i]);
	bind_text(batch, lease_execution_status_name(LEASE_EXECUTION_RUNNING));
}

static void add_open(struct txn *txn, struct batch *batch)
{
	struct array column[5] = { 0 }, status_before = { 0 };

	for (size_t k = 0; k < txn->n_position[LIST_OPEN]; k++) {
		const struct txn_item *item = &txn->items[txn->position[LIST_OPEN][k]];

		array_add_text(&column[0], item->command.run_id);
		array_add_int(&column[1], item->facts.last_attempt_no + 1);
		array_add_text(&column[2], item->command.owner);
		array_add_int(&column[3], item->command.ttl);
		array_add_text(&column[4], item->command.trace_id);
		array_add_text(&status_before, lease_run_status_name(item->facts.status));
	}
	add(txn, batch, ROLE_OPEN, lease_sql_open_attempts);
	for (size_t i = 0; i < 5; i++)
		bind_array(batch, &column[i]);
	bind_text(batch, lease_run_status_name(LEASE_RUN_RUNNING));
	bind_array(batch, &status_before);
}

static void add_refresh(struct txn *txn, struct batch *batch)
{
	struct array column[4] = { 0 };

	for (size_t k = 0; k < txn->n_position[LIST_REFRESH]; k++) {
		const struct txn_item *item = &txn->items[txn->position[LIST_REFRESH][k]];

		array_add_text(&column[0], item->command.run_id);
		array_add_int(&column[1], item->facts.open.attempt_no);
		array_add_text(&column[2], item->command.owner);
		array_add_int(&column[3], item->command.ttl);
	}
	add(txn, batch, ROLE_REFRESH, lease_sql_renew_many);
	for (size_t i = 0; i < 4; i++)
		bind_array(batch, &column[i]);
}

static void add_mark_cancel(struct txn *txn, struct batch *batch)
{
	struct array run_ids = { 0 };

	for (size_t i = 0; i < txn->n; i++) {
		struct txn_item *item = &txn->items[i];

		if (!item->locked || item->decision.verdict != VERDICT_APPLY ||
		    !marks_cancel(&item->decision))
			continue;
		array_add_text(&run_ids, item->command.run_id);
		item->applied = true; /* its run is locked and is there */
	}
	if (run_ids.length == 0)
		return;
	add(txn, batch, ROLE_OTHER, lease_sql_mark_cancel);
	bind_array(batch, &run_ids);
}

static void add_start_node(struct batch *batch, const struct txn_item *item)
{
	const struct lease_command *command = &item->command;
	const struct lease_facts *facts = &item->facts;

	batch_add_often(batch, lease_sql_start_node);
	bind_text(batch, command->run_id);
	bind_text(batch, command->node_id);
	bind_int(batch, facts->node.last_execution_no + 1);
	bind_int(batch, command->attempt_no);
	bind_text(batch, command->operation_id);
	bind_text(batch, command->content_ref);
	bind_text(batch, command->trace_id);
	bind_text(batch, lease_execution_status_name(LEASE_EXECUTION_RUNNING));
	bind_text(batch, facts->node.last_execution_no
				 ? lease_execution_status_name(facts->node.state)
				 : NULL);
	bind_text(batch, command->owner);
}

static void add_finish_node(struct batch *batch, const struct txn_item *item)
{
	const struct lease_command *command = &item->command;

	batch_add_often(batch, lease_sql_finish_node);
	bind_text(batch, command->run_id);
	bind_text(batch, command->node_id);
	bind_int(batch, command->execution_no);
	bind_int(batch, command->attempt_no);
	bind_text(batch, lease_execution_status_name(command->execution_status));
	bind_text(batch, command->error_code);
	bind_text(batch, command->error_message);
	bind_text(batch, command->content_ref);
	bind_text(batch, lease_execution_status_name(LEASE_EXECUTION_RUNNING));
	bind_text(batch, command->owner);
}

static void add_record_checkpoint(struct batch *batch, const struct txn_item *item)
{
	const struct lease_command *command = &item->command;

	batch_add_often(batch, lease_sql_record_checkpoint);
	bind_text(batch, command->run_id);
	bind_text(batch, command->checkpoint_id);
	bind_int(batch, command->attempt_no);
	bind_int(batch, command->expected_version);
	bind_text(batch, command->content_ref);
	bind_text(batch, command->owner);
}

static void add_change_plan(struct batch *batch, const struct txn_item *item)
{
	const struct lease_command *command = &item->command;

	batch_add_often(batch, lease_sql_change_plan);
	bind_text(batch, command->run_id);
	bind_int(batch, command->attempt_no);
	bind_int(batch, command->expected_version);
	bind_text(batch, command->owner);
}

/* What belongs to a run is written for one run at a time. */
static void add_fact(struct txn *txn, struct batch *batch)
{
	const struct txn_item *item = &txn->items[0];

	if (!item->locked || item->decision.verdict != VERDICT_APPLY)
		return;
	txn->role[batch->n] = ROLE_FACT;
	switch (item->decision.step) {
	case EXECUTION_OPEN:
		add_start_node(batch, item);
		break;
	case EXECUTION_CLOSE:
		add_finish_node(batch, item);
		break;
	case CHECKPOINT_RECORD:
		add_record_checkpoint(batch, item);
		break;
	case PLAN_CHANGE:
		add_change_plan(batch, item);
		break;
	default:
		break;
	}
}

static void decide(struct txn *txn)
{
	for (size_t i = 0; i < txn->n; i++)
		lease_decide(&txn->items[i].facts, &txn->items[i].command, &txn->items[i].decision);
}

/* The second round trip: what was decided and the commit, or a rollback when there is nothing. */
static int add_apply(struct txn *txn, struct batch *batch, struct lease_error *reterr)
{
	decide(txn);
	if (list_items(txn, LIST_CLOSE, closes_or_moves) < 0 ||
	    list_items(txn, LIST_OPEN, opens) < 0 || list_items(txn, LIST_REFRESH, refreshes) < 0)
		return lease_error_set(reterr, LEASE_E_MEMORY, "out of memory");
	if (txn->n_position[LIST_CLOSE] > 0)
		add_close_and_move(txn, batch);
	if (txn->n_position[LIST_OPEN] > 0)
		add_open(txn, batch);
	if (txn->n_position[LIST_REFRESH] > 0)
		add_refresh(txn, batch);
	add_mark_cancel(txn, batch);
	add_fact(txn, batch);
	batch->commits = batch->n > 0;
	add_control(txn, batch, batch->commits ? "COMMIT" : "ROLLBACK");
	return 1;
}

/* -- results ---------------------------------------------------------------------------------- */

/* The item at a position (from 1) that a statement gave back; NULL: out of range. */
static struct txn_item *item_at(const struct txn *txn, int64_t position)
{
	return position >= 1 && (size_t)position <= txn->n ? &txn->items[position - 1] : NULL;
}

static struct txn_item *listed_at(const struct txn *txn, int list, int64_t position)
{
	return position >= 1 && (size_t)position <= txn->n_position[list]
		       ? &txn->items[txn->position[list][position - 1]]
		       : NULL;
}

static int bad_position(struct lease_error *reterr)
{
	return lease_error_set(reterr, LEASE_E_PROTOCOL,
			       "the server answered with a row that was not asked for");
}

static int take_lock(struct txn *txn, const PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "i", reterr);

	for (int row = 0; r == 0 && row < PQntuples(result); row++) {
		struct txn_item *item = item_at(txn, read_int(result, row, 0));

		if (!item)
			return bad_position(reterr);
		item->locked = true;
	}
	return r;
}

static int take_next(struct txn *txn, PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "t", reterr);

	if (r < 0 || PQntuples(result) == 0)
		return r;
	txn->next_run = result;
	txn->items[0].command.run_id = read_text(result, 0, 0);
	txn->items[0].locked = true;
	return 0;
}

static int read_facts(const PGresult *result, int row, struct lease_facts *ret,
		      struct lease_error *reterr)
{
	const char *status = read_text(result, row, 2), *outcome = read_text(result, row, 12);

	*ret = (struct lease_facts){
		.now = read_time(result, row, 1),
		.found = true,
		.status = (enum lease_run_status)lease_run_status_parse(status),
		.state_version = read_int(result, row, 3),
		.not_before = read_time(result, row, 4),
		.deadline_at = read_time(result, row, 5),
		.cancel_requested_at = read_time(result, row, 6),
		.open = { (int32_t)read_int(result, row, 7), read_text(result, row, 8),
			  read_time(result, row, 9) },
		.named = { (int32_t)read_int(result, row, 10), read_text(result, row, 11),
			   outcome ? (enum lease_outcome)lease_outcome_parse(outcome)
				   : LEASE_OUTCOME_NONE,
			   read_text(result, row, 13) },
		.owner_closed = read_bool(result, row, 14),
		.last_attempt_no = (int32_t)read_int(result, row, 15),
		.losses = (int32_t)read_int(result, row, 16),
		.checkpoint_id = read_text(result, row, 17),
		.heartbeat = { !PQgetisnull(result, row, 18), read_time(result, row, 18),
			       read_time(result, row, 19), read_time(result, row, 20),
			       read_int(result, row, 21) },
	};
	if (lease_run_status_parse(status) < 0 || (outcome && lease_outcome_parse(outcome) < 0))
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "unknown status or outcome '%s'",
				       outcome  ? outcome
				       : status ? status
						: "NULL");
	return 0;
}

/* Keeps the result: the facts borrow its strings. */
static int take_look(struct txn *txn, PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "istlsssitsitttbiitsssl", reterr);

	PQclear(txn->looked);
	txn->looked = result;
	for (int row = 0; r == 0 && row < PQntuples(result); row++) {
		struct txn_item *item = item_at(txn, read_int(result, row, 0));

		if (!item)
			return bad_position(reterr);
		if (txn->lock == TXN_LOOK)
			item->locked = true;
		if (item->locked)
			r = read_facts(result, row, &item->facts, reterr);
		item->state_version = item->facts.state_version;
	}
	return r;
}

static int read_execution_status(const PGresult *result, int column,
				 enum lease_execution_status *ret, struct lease_error *reterr)
{
	const char *name = read_text(result, 0, column);
	int status = name ? lease_execution_status_parse(name) : LEASE_EXECUTION_RUNNING;

	if (status < 0)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "unknown execution status '%s'",
				       name);
	*ret = (enum lease_execution_status)status;
	return 0;
}

/* Keeps the result as well. */
static int take_look_node(struct txn *txn, PGresult *result, struct lease_error *reterr)
{
	struct lease_facts *facts = &txn->items[0].facts;
	int r = read_form(result, "ittbbiit", reterr);

	PQclear(txn->looked_node);
	txn->looked_node = result;
	if (r < 0)
		return r;
	if (PQntuples(result) != 1)
		return lease_error_set(reterr, LEASE_E_PROTOCOL, "expected one row");
	facts->node.last_execution_no = (int32_t)read_int(result, 0, 0);
	facts->node.output_ref = read_text(result, 0, 2);
	facts->node.operation_found = read_bool(result, 0, 3);
	facts->node.operation_here = read_bool(result, 0, 4);
	facts->node.named_execution_no = (int32_t)read_int(result, 0, 5);
	facts->node.named_run_attempt_no = (int32_t)read_int(result, 0, 6);
	r = read_execution_status(result, 1, &facts->node.state, reterr);
	return r < 0 ? r : read_execution_status(result, 7, &facts->node.named_status, reterr);
}

/* The time of the write and the new version: the node's for an execution, else the run's. */
static int take_fact(struct txn *txn, const PGresult *result, struct lease_error *reterr)
{
	struct txn_item *item = &txn->items[0];
	int r = read_form(result, "sl", reterr);

	if (r < 0 || PQntuples(result) == 0)
		return r;
	item->applied = true;
	item->now = read_time(result, 0, 0);
	if (lease_command_is_about_node(item->command.kind))
		item->node_version = read_int(result, 0, 1);
	else
		item->state_version = read_int(result, 0, 1);
	return 0;
}

static int take_close(struct txn *txn, const PGresult *result, struct lease_error *reterr)
{
	int r = read_form(result, "issl", reterr);

	for (int row = 0; r == 0 && row < PQntuples(result); row++) {
		struct txn_item *item = listed_at(txn, LIST_CLOSE, read_int(result, row, 0));

		if (!item)
			return bad_position(reterr);
		if (!PQgetisnull(result, row, 3)) {
			item->state_version = read_int(result, row, 3);
			item->applied = true;
			continue;
		}
		item->now = read_time(result, row, 1);
		item->lease_expires_at = read_time(result, row, 2);
		/* a take-over is applied when its new attempt is open */
		item->applied = !opens(&item->decision);
	}
	return r;
}

/* Attempts opened or refreshed. */
static int take_grants(struct txn *txn, int list, const PGresult *result,
		       struct lease_error *reterr)
{
	int r = read_form(result, "issss", reterr);

	for (int row = 0; r == 0 && row < PQntuples(result); row++) {
		struct txn_item *item = listed_at(txn, list, read_int(result, row, 0));

		if (!item)
			return bad_position(reterr);
		item->now = read_time(result, row, 1);
		item->lease_expires_at = read_time(result, row, 2);
		item->deadline_at = read_time(result, row, 3);
		item->cancel_requested_at = read_time(result, row, 4);
		item->state_version = item->facts.state_version + (item->decision.move ? 1 : 0);
		item->applied = true;
	}
	return r;
}

static int take(void *self, int index, PGresult *result, struct lease_error *reterr)
{
	struct txn *txn = self;
	int r = 0;

	switch ((enum role)txn->role[index]) {
	case ROLE_LOCK:
		r = take_lock(txn, result, reterr);
		break;
	case ROLE_NEXT:
		r = take_next(txn, result, reterr);
		if (txn->next_run == result)
			return r;
		break;
	case ROLE_LOOK:
		txn->look_took = clock_monotonic() - txn->began_at;
		return take_look(txn, result, reterr);
	case ROLE_LOOK_NODE:
		return take_look_node(txn, result, reterr);
	case ROLE_FACT:
		r = take_fact(txn, result, reterr);
		break;
	case ROLE_CLOSE:
		r = take_close(txn, result, reterr);
		break;
	case ROLE_OPEN:
		r = take_grants(txn, LIST_OPEN, result, reterr);
		break;
	case ROLE_REFRESH:
		r = take_grants(txn, LIST_REFRESH, result, reterr);
		break;
	case ROLE_SETTINGS:
		txn->began_at = clock_monotonic();
		break;
	case ROLE_OTHER:
		break;
	}
	PQclear(result);
	return r;
}

/* -- the steps -------------------------------------------------------------------------------- */

/* The lock chose no run. */
static int next_nothing_due(struct txn *txn, struct batch *batch)
{
	decide(txn);
	txn->step = STEP_END;
	add_control(txn, batch, "ROLLBACK");
	return 1;
}

static int next(void *self, struct batch *batch, struct lease_error *reterr)
{
	struct txn *txn = self;

	switch ((enum step)txn->step) {
	case STEP_LOCK:
		add_begin(txn, batch);
		add_lock(txn, batch);
		add_look(txn, batch);
		add_look_node(txn, batch);
		txn->step = STEP_APPLY;
		return 1;
	case STEP_LOCK_NEXT:
		add_begin(txn, batch);
		add(txn, batch, ROLE_NEXT, lease_sql_lock_next);
		bind_text(batch, txn->tenant_id);
		txn->step = txn->take_over ? STEP_LOCK_NEXT_RUNNING : STEP_LOOK;
		return 1;
	case STEP_LOCK_NEXT_RUNNING:
		txn->step = STEP_LOOK;
		if (txn->items[0].locked)
			return next(txn, batch, reterr);
		add(txn, batch, ROLE_NEXT, lease_sql_lock_next_running);
		bind_text(batch, txn->tenant_id);
		return 1;
	case STEP_LOOK:
		if (txn->lock == TXN_LOCK_NEXT && !txn->items[0].locked)
			return next_nothing_due(txn, batch);
		add_look(txn, batch);
		txn->step = txn->lock == TXN_LOOK ? STEP_DECIDE : STEP_APPLY;
		return 1;
	case STEP_DECIDE:
		decide(txn);
		return 0;
	case STEP_APPLY:
		txn->step = STEP_END;
		return add_apply(txn, batch, reterr);
	case STEP_END:
		break;
	}
	return 0;
}

struct lease_command txn_reconcile_command(const struct lease_sweep_options *options,
					   const char *run_id)
{
	bool requeues = options->policy == LEASE_POLICY_REQUEUE;

	return (struct lease_command){
		.kind = COMMAND_RECONCILE,
		.run_id = run_id,
		.policy = options->policy,
		.max_losses = requeues ? options->max_lease_losses : 0,
	};
}

struct lease_closed txn_closed(const struct txn_item *item)
{
	const struct lease_decision *decision = &item->decision;
	const struct lease_facts *facts = &item->facts;
	bool closes = decision->step == ATTEMPT_CLOSE_LOST;
	int64_t lease_end = item->applied ? item->lease_expires_at : facts->open.lease_expires_at;

	return (struct lease_closed){
		.run_id = item->command.run_id,
		.attempt_no = closes ? facts->open.attempt_no : 0,
		.owner = closes ? facts->open.owner : NULL,
		.lease_expires_at = closes ? lease_end : LEASE_TIME_NONE,
		.closed_at = closes && item->applied ? item->now : facts->now,
		.moved = decision->move,
		.status = decision->to,
		.error_code = decision->move && decision->run_error_code
				      ? decision->run_error_code
				      : decision->attempt_error_code,
	};
}

static void begin_anew(void *self)
{
	struct txn *txn = self;

	txn_done(txn);
	txn->step = txn->lock == TXN_LOOK        ? STEP_LOOK
		    : txn->lock == TXN_LOCK_NEXT ? STEP_LOCK_NEXT
						 : STEP_LOCK;
	for (size_t i = 0; i < txn->n; i++) {
		struct txn_item *item = &txn->items[i];

		*item = (struct txn_item){ .command = item->command };
		if (txn->lock == TXN_LOCK_NEXT)
			item->command.run_id = NULL; /* of the lock that chose it */
	}
}

struct operation txn_operation(struct txn *txn)
{
	begin_anew(txn);
	return (struct operation){ next, take, txn, begin_anew };
}

bool txn_is_applying(const struct txn *txn)
{
	return txn->step == STEP_END;
}

void txn_done(struct txn *txn)
{
	PQclear(txn->looked);
	PQclear(txn->looked_node);
	PQclear(txn->next_run);
	txn->looked = txn->looked_node = txn->next_run = NULL;
	for (int i = 0; i < 3; i++) {
		free(txn->position[i]);
		txn->position[i] = NULL;
		txn->n_position[i] = 0;
	}
}
