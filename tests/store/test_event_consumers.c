/*
 * Following events on a real PostgreSQL: a consumer that keeps nothing but its cursor sees every
 * event exactly once and those of a run in their order, whatever commits in which order, and reads
 * no more of the table than it is given.
 */
#include <poll.h>
#include <stdatomic.h>

#include "facts.h"
#include "sql.h"

/* -- step by step ------------------------------------------------------------------ */

/* What a consumer keeps: its cursor, as text. */
struct consumer {
	PGconn *conn;
	char *cursor;
};

/* One batch as text: the run ids, in order. */
static char *read_batch(struct consumer *consumer, int limit)
{
	struct lease_event_batch *batch;
	char *text;
	size_t size;
	FILE *stream = open_memstream(&text, &size);

	expect(0, lease_events_after(consumer->conn, consumer->cursor, limit, &batch, &failure));
	assert_true(batch->n <= (size_t)limit);
	for (size_t i = 0; i < batch->n; i++) {
		assert_true(i == 0 || batch->events[i].event_id > batch->events[i - 1].event_id);
		fprintf(stream, "%s%s", i ? " " : "", batch->events[i].run_id);
	}
	fclose(stream);
	free(consumer->cursor);
	consumer->cursor = strdup(batch->cursor);
	lease_event_batch_free(batch);
	return text;
}

#define assert_batch(consumer, limit, expected)                                                    \
	do {                                                                                       \
		char *text = read_batch(consumer, limit);                                          \
                                                                                                   \
		assert_string_equal(text, expected);                                               \
		free(text);                                                                        \
	} while (0)

/* What lease_submit does, by its own statement, in a transaction of the caller. */
static bool submit_within(PGconn *conn, const char *run_id)
{
	const char *const values[] = { run_id, "default", "pending", "0", "0" };
	PGresult *result = PQexecParams(conn, lease_sql_submit, 5, NULL, values, NULL, NULL, 0);
	bool done = PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1;

	PQclear(result);
	return done;
}

static void consumer_reads_on_from_where_it_was(void **state)
{
	struct fixture *f = *state;
	struct consumer consumer = { .conn = f->conn };

	assert_batch(&consumer, 10, "");
	submit(f->conn, "a");
	submit(f->conn, "b");
	submit(f->conn, "c");
	assert_batch(&consumer, 2, "a b");
	submit(f->conn, "d");
	assert_batch(&consumer, 2, "c");
	assert_batch(&consumer, 2, "d");
	assert_batch(&consumer, 2, "");
	submit(f->conn, "e");
	submit(f->conn, "f");
	assert_batch(&consumer, 2, "e f"); /* a window that ends with a full batch */
	assert_batch(&consumer, 2, "");
	submit(f->conn, "g");
	assert_batch(&consumer, 2, "g");
	/* a new consumer begins at the beginning, by NULL or by "" */
	free(consumer.cursor);
	consumer.cursor = NULL;
	assert_batch(&consumer, 100000, "a b c d e f g");
	free(consumer.cursor);
	consumer.cursor = strdup("");
	assert_batch(&consumer, 1, "a");
	free(consumer.cursor);
}

/*
 * The cursor also says where the part of its window begins that no old transaction wrote: without
 * it the next batch would search all events since the old one's.
 */
static void assert_cursor_lies_before(const struct consumer *consumer, const char *run_id)
{
	long long lowest, after;

	assert_int_equal(sscanf(consumer->cursor, "%*[^/]/%*[^/]/%lld/%lld", &lowest, &after), 2);
	assert_true(after < lowest);
	assert_int_equal(lowest,
			 sql_number(consumer->conn,
				    "select event_id from lease.run_events where run_id = '%s'",
				    run_id));
}

static void open_transaction_holds_nothing_up_and_its_events_come_later(void **state)
{
	struct fixture *f = *state;
	struct consumer consumer = { .conn = f->conn };
	PGconn *holder = test_connect(f->conninfo), *failing = test_connect(f->conninfo);

	sql(holder, "begin");
	sql(failing, "begin");
	assert_true(submit_within(holder, "late-1"));
	assert_true(submit_within(failing, "never"));
	submit(f->conn, "a");
	assert_true(submit_within(holder, "late-2"));
	submit(f->conn, "b");
	assert_batch(&consumer, 10, "a b");
	assert_batch(&consumer, 10, "");
	submit(f->conn, "c");
	assert_batch(&consumer, 10, "c");
	sql(holder, "commit");
	sql(failing, "rollback");
	submit(f->conn, "d");
	submit(f->conn, "e");
	/* both below and between what was read before; in batches of one within one window */
	assert_batch(&consumer, 1, "late-1");
	assert_cursor_lies_before(&consumer, "d");
	submit(f->conn, "f");
	assert_batch(&consumer, 1, "late-2");
	assert_batch(&consumer, 1, "d");
	assert_batch(&consumer, 3, "e");
	assert_batch(&consumer, 3, "f");
	assert_batch(&consumer, 3, "");
	free(consumer.cursor);
	PQfinish(holder);
	PQfinish(failing);
}

/*
 * A snapshot's xmax is one past the last transaction that ended, not past the last that began: one
 * in progress may lie beyond it, with events that are older than some that were read already.
 */
static void events_of_a_transaction_beyond_the_snapshot_are_not_lost(void **state)
{
	struct fixture *f = *state;
	struct consumer consumer = { .conn = f->conn };
	PGconn *earlier = test_connect(f->conninfo), *later = test_connect(f->conninfo);

	sql(earlier, "begin; select pg_current_xact_id()");
	sql(later, "begin; select pg_current_xact_id()");
	assert_true(submit_within(later, "low"));
	assert_true(submit_within(earlier, "high"));
	sql(earlier, "commit");
	assert_batch(&consumer, 1, "high");
	assert_batch(&consumer, 10, "");
	assert_true(submit_within(later, "low-2"));
	sql(later, "commit");
	submit(f->conn, "next");
	assert_batch(&consumer, 1, "low");
	assert_batch(&consumer, 10, "low-2 next");
	assert_batch(&consumer, 10, "");
	free(consumer.cursor);
	PQfinish(earlier);
	PQfinish(later);
}

static void events_come_back_whole(void **state)
{
	struct fixture *f = *state;
	struct lease_event_batch *batch;
	struct lease_grant grant;
	const struct lease_event *event;

	submit(f->conn, "it's \"a\" \\run {\xf0\x9f\x90\x98}");
	grant = claim(f->conn, "it's \"a\" \\run {\xf0\x9f\x90\x98}", "worker-1");
	start(f->conn, &grant.token, "n", "op");
	expect(0, fail_as(f->conn, &grant.token, "n", 1, "timeout", NULL));
	expect(0, lease_events_after(f->conn, NULL, 100, &batch, &failure));
	assert_int_equal(batch->n, 4);
	event = &batch->events[0];
	assert_string_equal(event->kind, "run_submitted");
	assert_string_equal(event->run_id, grant.token.run_id);
	assert_null(event->from_status);
	assert_string_equal(event->to_status, "pending");
	assert_int_equal(event->attempt_no, 0);
	assert_int_equal(event->execution_no, 0);
	assert_null(event->owner);
	event = &batch->events[3];
	assert_string_equal(event->kind, "node_finished");
	assert_string_equal(event->node_id, "n");
	assert_int_equal(event->attempt_no, 1);
	assert_int_equal(event->execution_no, 1);
	assert_string_equal(event->from_status, "running");
	assert_string_equal(event->to_status, "failed");
	assert_null(event->outcome);
	assert_string_equal(event->owner, grant.token.owner);
	assert_string_equal(event->error_code, "timeout");
	assert_string_equal(event->reference, "op");
	for (size_t i = 0; i < batch->n; i++)
		assert_sql(f->conn, "t",
			   "select (extract(epoch from at) * 1000000)::int8 = %lld from "
			   "lease.run_events "
			   "where event_id = %lld",
			   (long long)batch->events[i].at, (long long)batch->events[i].event_id);
	lease_event_batch_free(batch);
	lease_event_batch_free(NULL);
}

static void cursors_that_are_none_are_refused(void **state)
{
	static const char *const cursors[] = {
		"x",
		" ",
		"1",
		"1:1",
		"5:3:",
		"0:1:",
		"1:1: ",
		"1:1:\n",
		"1:1:x",
		"1:5:7",
		"1:5:3,2",
		":",
		"/",
		"1:1:/",
		"1:1:/2:2:",
		"1:1:/2:2:/",
		"1:1:/2:2:/1",
		"1:1:/2:2:/1/",
		"1:1:/2:2:/1/x",
		"1:1:/2:2:/x/1",
		"1:1:/2:2:/-1/1",
		"1:1:/2:2:/1/-1",
		"1:1:/2:2:/ 1/1",
		"1:1:/2:2:/1/1/",
		"1:1:/2:2:/1/1/1",
		"1:1:/2:2:/1/1 ",
		"1:1:/2:2:/1/9223372036854775808",
		"1:1:/2:2:/99999999999999999999/1",
		"1:1:/5:3:/1/1",
		"5:3:/2:2:/1/1",
		"/1:1:/1/1",
		"1:1://1/1",
		"1:1:'; drop schema lease cascade; --",
		"99999999999999999999999:99999999999999999999999:",
	};
	static const int limits[] = { 0, -1, 100001, INT32_MIN };
	struct fixture *f = *state;
	struct lease_event_batch *batch = (struct lease_event_batch *)-1;

	submit(f->conn, "a");
	for (size_t i = 0; i < LENGTH(cursors); i++) {
		int r = lease_events_after(f->conn, cursors[i], 10, &batch, &failure);

		if (r != LEASE_E_INVALID)
			fail_msg("cursor \"%s\": %d %s", cursors[i], r, failure.message);
		assert_non_null(strstr(failure.message, "cursor"));
		assert_int_equal(PQtransactionStatus(f->conn), PQTRANS_IDLE);
	}
	for (size_t i = 0; i < LENGTH(limits); i++)
		expect(LEASE_E_INVALID,
		       lease_events_after(f->conn, NULL, limits[i], &batch, &failure));
	assert_ptr_equal(batch, (struct lease_event_batch *)-1);
	expect(LEASE_E_INVALID, lease_events_after(f->conn, "x", 10, &batch, NULL));
	expect(0, lease_events_after(f->conn, "1:1:", 10, &batch, &failure));
	assert_int_equal(batch->n, 1);
	lease_event_batch_free(batch);
}

/* A database restored to an earlier time would let such a consumer wait, and then skip events. */
static void cursor_of_a_later_time_than_the_database_is_refused(void **state)
{
	struct fixture *f = *state;
	struct lease_event_batch *batch;
	char *cursor = sql_text(
		f->conn, "select n || ':' || n || ':' from (select "
			 "pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 1000000 as n) x");

	expect(LEASE_E_INVALID, lease_events_after(f->conn, cursor, 10, &batch, &failure));
	assert_non_null(strstr(failure.message, "later"));
	free(cursor);
}

/* A consumer that sleeps until it is woken finds what woke it. */
static void what_wakes_a_consumer_is_there_to_be_read(void **state)
{
	struct fixture *f = *state;
	PGconn *listener = test_connect(f->conninfo);
	struct consumer consumer = { .conn = listener };
	struct lease_sweep_options options;
	PGnotify *notify;

	sql(listener, "listen lease_events");
	lease_sweep_options_init(&options);
	submit_and_claim(f->conn, "run");
	let_lease_end(f->conn, "run");
	assert_batch(&consumer, 10, "run run");
	assert_batch(&consumer, 10, "");
	expect(0, lease_reconcile_expired_leases(f->conn, &options, NULL, NULL, &failure));
	while (!(notify = PQnotifies(listener))) {
		struct pollfd fd = { .fd = PQsocket(listener), .events = POLLIN };

		assert_int_equal(poll(&fd, 1, TEST_PATIENCE_MS), 1);
		assert_int_equal(PQconsumeInput(listener), 1);
	}
	PQfreemem(notify);
	assert_batch(&consumer, 10, "run");
	free(consumer.cursor);
	PQfinish(listener);
}

/* -- a consumer that stops and starts 100 times while 8 workers write -------------------------- */

enum { WORKERS = 8, HOLDERS = 3, RESTARTS = 100, READS_A_START = 4 };

struct traffic {
	const char *conninfo;
	atomic_bool stop;
	atomic_int restarts;
	atomic_llong newest; /* event_id that the consumer has seen */
};

struct worker {
	struct traffic *traffic;
	int number;
	unsigned seed;
	PGconn *conn;
	int submitted, serial;
	int steps;
	struct lease_error error; /* code 0: all went well */
};

static int pick(struct worker *worker, int n)
{
	return (int)(rand_r(&worker->seed) / 7u % (unsigned)n);
}

/* Keeps the first error; refusals are what happens when several work on the same runs. */
static bool is_well(struct worker *worker, int result, const struct lease_error *error)
{
	if (result < 0 && worker->error.code == 0)
		worker->error = *error;
	return result == 0;
}

/* One of the runs that some worker has submitted. */
static void pick_run(struct worker *worker, char run_id[64])
{
	int count = worker->submitted > 0 ? worker->submitted : 1;

	snprintf(run_id, 64, "run-%d-%d", pick(worker, WORKERS), pick(worker, count));
}

static void submit_one(struct worker *worker)
{
	struct lease_error error;
	char run_id[64];

	snprintf(run_id, sizeof(run_id), "run-%d-%d", worker->number, worker->submitted++);
	is_well(worker,
		lease_submit(worker->conn,
			     &(struct lease_submission){
				     .run_id = run_id,
				     .deadline = pick(worker, 20) ? 0 : 50 * LEASE_MILLISECOND },
			     NULL, NULL, &error),
		&error);
}

static void execute_node(struct worker *worker, const struct lease_token *token)
{
	struct lease_node_execution execution;
	struct lease_error error;
	bool failed = pick(worker, 2);
	char node_id[32];

	snprintf(node_id, sizeof(node_id), "node-%d", pick(worker, 3));
	if (!is_well(worker,
		     lease_node_start(
			     worker->conn,
			     &(struct lease_node_start){ .token = *token, .node_id = node_id },
			     &execution, &error),
		     &error) ||
	    pick(worker, 4) == 0)
		return; /* it stays open */
	is_well(worker,
		lease_node_finish(worker->conn,
				  &(struct lease_node_finish){
					  .token = *token,
					  .node_id = node_id,
					  .execution_no = execution.execution_no,
					  .status = failed ? LEASE_EXECUTION_FAILED
							   : LEASE_EXECUTION_SUCCEEDED,
					  .normalized_error = failed ? "timeout" : NULL },
				  NULL, &error),
		&error);
}

static void work_on(struct worker *worker, struct lease_grant *grant)
{
	struct lease_grant renewed;
	struct lease_change change = { 0 };
	struct lease_error error;
	char checkpoint_id[64];
	int result;

	switch (pick(worker, 5)) {
	case 0:
	case 1:
		execute_node(worker, &grant->token);
		break;
	case 2:
		snprintf(checkpoint_id, sizeof(checkpoint_id), "c-%d-%d", worker->number,
			 worker->serial++);
		if (is_well(worker,
			    lease_checkpoint_record(
				    worker->conn,
				    &(struct lease_checkpoint){
					    .token = grant->token,
					    .checkpoint_id = checkpoint_id,
					    .expected_version = grant->state_version },
				    &change, &error),
			    &error))
			grant->state_version = change.state_version;
		break;
	case 3:
		if (is_well(worker,
			    lease_plan_change(worker->conn, &grant->token, grant->state_version, 0,
					      &change, &error),
			    &error))
			grant->state_version = change.state_version;
		break;
	case 4:
		is_well(worker,
			lease_renew_leases(worker->conn, &grant->token, 1, LONG_TTL, 0, &renewed,
					   &result, &error),
			&error);
		break;
	}
}

static void let_go(struct worker *worker, const struct lease_token *token)
{
	static const enum lease_run_status ends[] = { LEASE_RUN_COMPLETED, LEASE_RUN_FAILED,
						      LEASE_RUN_INTERRUPTED, LEASE_RUN_CANCELLED };
	struct lease_error error;
	int what = pick(worker, 10);

	if (what < 5) {
		struct lease_finish finish = { .token = token, .status = ends[what % 4] };

		is_well(worker, lease_set_terminal_status(worker->conn, &finish, NULL, &error),
			&error);
	} else if (what < 8) {
		is_well(worker,
			lease_release_lease_for_retry(worker->conn,
						      &(struct lease_release){ .token = *token },
						      NULL, &error),
			&error);
	} else if (what < 9) {
		is_well(worker, lease_suspend(worker->conn, token, 0, NULL, &error), &error);
	} /* else it is lost */
}

static void claim_and_work(struct worker *worker)
{
	struct lease_error error;
	struct lease_grant grant;
	struct lease_claim claim = { .take_over = true,
				     .ttl = pick(worker, 6) ? 20 * LEASE_SECOND
							    : LEASE_MILLISECOND };
	char owner[LEASE_ID_MAX + 1];

	snprintf(owner, sizeof(owner), "worker-%d:%d", worker->number, worker->serial++);
	claim.owner = owner;
	if (!is_well(worker, lease_claim_next(worker->conn, &claim, &grant, &error), &error))
		return;
	for (int i = pick(worker, 5); i > 0; i--)
		work_on(worker, &grant);
	let_go(worker, &grant.token);
}

static void sweep(struct worker *worker)
{
	static const enum lease_policy policies[] = { LEASE_POLICY_REQUEUE, LEASE_POLICY_REQUEUE,
						      LEASE_POLICY_RECORD, LEASE_POLICY_FAIL };
	struct lease_sweep_options options;
	struct lease_error error;

	lease_sweep_options_init(&options);
	options.policy = policies[pick(worker, 4)];
	options.max_lease_losses = 3;
	options.notify = pick(worker, 2);
	options.batch_size = 1 + pick(worker, 50);
	is_well(worker, lease_reconcile_expired_leases(worker->conn, &options, NULL, NULL, &error),
		&error);
}

static void step(struct worker *worker)
{
	struct lease_error error;
	char run_id[64];

	pick_run(worker, run_id);
	switch (pick(worker, 12)) {
	case 0:
	case 1:
	case 2:
		submit_one(worker);
		break;
	case 3:
		is_well(worker, lease_request_cancel(worker->conn, run_id, 0, 0, NULL, &error),
			&error);
		break;
	case 4:
		is_well(worker, lease_resume(worker->conn, run_id, 0, 0, NULL, &error), &error);
		break;
	case 5:
		if (pick(worker, 3) == 0)
			sweep(worker);
		else
			is_well(worker,
				lease_set_terminal_status(
					worker->conn,
					&(struct lease_finish){ .run_id = run_id,
								.status = LEASE_RUN_FAILED },
					NULL, &error),
				&error);
		break;
	default:
		claim_and_work(worker);
		break;
	}
	worker->steps++;
}

static void *run_worker(void *argument)
{
	struct worker *worker = argument;

	while (!atomic_load(&worker->traffic->stop) && worker->error.code == 0) {
		step(worker);
		poll(NULL, 0, pick(worker, 5)); /* leaves the consumer some of the processor */
	}
	return NULL;
}

/* A transaction of somebody's own, with events that stay invisible while the consumer goes on. */
struct holder {
	struct traffic *traffic;
	int number;
	PGconn *conn;
	int committed, rolled_back;
	bool failed;
};

/* Until the consumer has passed what this transaction wrote, and has been started anew since. */
static void hold(struct holder *holder, long long event_id, int restarts)
{
	int from = atomic_load(&holder->traffic->restarts);

	while (!atomic_load(&holder->traffic->stop) &&
	       (atomic_load(&holder->traffic->newest) <= event_id ||
		atomic_load(&holder->traffic->restarts) < from + restarts))
		poll(NULL, 0, 1);
}

static long long newest_own_event(PGconn *conn)
{
	PGresult *result = PQexec(conn, "select max(event_id) from lease.run_events "
					"where txid = pg_current_xact_id()");
	long long event_id = PQntuples(result) ? atoll(PQgetvalue(result, 0, 0)) : INT64_MAX;

	PQclear(result);
	return event_id;
}

static void *run_holder(void *argument)
{
	struct holder *holder = argument;

	for (int i = 0; !atomic_load(&holder->traffic->stop) && !holder->failed; i++) {
		bool commits = i % 3 != 2;
		char run_id[64];
		PGresult *result;

		PQclear(PQexec(holder->conn, "begin"));
		for (int k = 0; k < 3; k++) {
			snprintf(run_id, sizeof(run_id), "held-%d-%d-%d", holder->number, i, k);
			holder->failed |= !submit_within(holder->conn, run_id);
		}
		hold(holder, newest_own_event(holder->conn), 1 + 4 * holder->number);
		result = PQexec(holder->conn, commits ? "commit" : "rollback");
		holder->failed |= PQresultStatus(result) != PGRES_COMMAND_OK;
		PQclear(result);
		*(commits ? &holder->committed : &holder->rolled_back) += 1;
	}
	return NULL;
}

/* What the consumer has seen, in the order in which it came. */
struct seen {
	int64_t *event_ids;
	size_t n, size;
};

static void see(struct seen *seen, const struct lease_event_batch *batch)
{
	for (size_t i = 0; i < batch->n; i++) {
		if (seen->n == seen->size) {
			seen->size = seen->size ? 2 * seen->size : 4096;
			seen->event_ids = realloc(seen->event_ids, seen->size * sizeof(int64_t));
			assert_non_null(seen->event_ids);
		}
		seen->event_ids[seen->n++] = batch->events[i].event_id;
	}
}

/* Starts, reads some batches, stops; the cursor is all that stays. Returns whether any came. */
static bool consume(struct traffic *traffic, char cursor[4096], struct seen *seen, unsigned *seed)
{
	PGconn *conn = test_connect(traffic->conninfo);
	int reads = 1 + (int)(rand_r(seed) / 7u % READS_A_START);
	bool any = false;

	for (int i = 0; i < reads; i++) {
		int limit = 1 + (int)(rand_r(seed) / 7u % 50);
		struct lease_event_batch *batch;

		expect(0, lease_events_after(conn, cursor, limit, &batch, &failure));
		assert_true(batch->n <= (size_t)limit);
		assert_true(strlen(batch->cursor) < 4096);
		strcpy(cursor, batch->cursor);
		see(seen, batch);
		any |= batch->n > 0;
		if (batch->n > 0 &&
		    batch->events[batch->n - 1].event_id > atomic_load(&traffic->newest))
			atomic_store(&traffic->newest, batch->events[batch->n - 1].event_id);
		lease_event_batch_free(batch);
	}
	PQfinish(conn);
	atomic_fetch_add(&traffic->restarts, 1);
	return any;
}

static void load_seen(PGconn *conn, const struct seen *seen)
{
	PGresult *result;

	sql(conn, "create temporary table seen (place bigint primary key, event_id bigint)");
	result = PQexec(conn, "copy seen from stdin");
	assert_int_equal(PQresultStatus(result), PGRES_COPY_IN);
	PQclear(result);
	for (size_t i = 0; i < seen->n; i++) {
		char line[64];
		int length = snprintf(line, sizeof(line), "%zu\t%lld\n", i,
				      (long long)seen->event_ids[i]);

		assert_int_equal(PQputCopyData(conn, line, length), 1);
	}
	assert_int_equal(PQputCopyEnd(conn, NULL), 1);
	while ((result = PQgetResult(conn))) {
		assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
		PQclear(result);
	}
	sql(conn, "create index on seen (event_id); analyze seen");
}

static void assert_seen_exactly_once_and_in_order(PGconn *conn)
{
	assert_sql(conn, "0", "select count(*) - count(distinct event_id) from seen");
	assert_sql(conn, "0 0",
		   "select count(*) filter (where s.event_id is null) || ' ' || "
		   "count(*) filter (where v.event_id is null) "
		   "from seen s full join lease.run_events v using (event_id)");
	/* of each run: ascending, and each transition begins where the one before it ended */
	assert_sql(
		conn, "0",
		"select count(*) from (select v.event_id < lag(v.event_id) over (partition by "
		"v.run_id "
		"order by s.place) as wrong from seen s join lease.run_events v using (event_id)) "
		"x where wrong");
	assert_sql(
		conn, "0",
		"select count(*) from (select v.from_status is distinct from lag(v.to_status) over "
		"(partition by v.run_id order by s.place) as wrong "
		"from seen s join lease.run_events v using (event_id) where v.node_id is null) x "
		"where wrong");
	assert_sql(
		conn, "0",
		"select count(*) from (select v.from_status is distinct from lag(v.to_status) over "
		"(partition by v.run_id, v.node_id order by s.place) as wrong "
		"from seen s join lease.run_events v using (event_id) where v.node_id is not null) "
		"x where wrong");
}

/* One event for each fact, and no event without. */
static void assert_events_match_facts(PGconn *conn)
{
	static const char *const none[] = {
		/* runs */
		"lease.runs r full join (select * from lease.run_events where kind = "
		"'run_submitted') v "
		"using (run_id) where r.run_id is null or v.run_id is null or v.to_status <> "
		"'pending'",
		/* attempts opened */
		"lease.run_attempts a full join (select * from lease.run_events where kind = "
		"'attempt_opened') v "
		"using (run_id, attempt_no, owner) where a.run_id is null or v.run_id is null",
		/* attempts closed */
		"(select * from lease.run_attempts where finished_at is not null) a full join "
		"(select * from lease.run_events where kind = 'attempt_closed') v "
		"using (run_id, attempt_no, owner, outcome) where a.run_id is null or v.run_id is "
		"null",
		/* executions started */
		"lease.node_executions e full join (select run_id, node_id, execution_no as "
		"attempt_no, "
		"attempt_no as run_attempt_no from lease.run_events where kind = 'node_started') v "
		"using (run_id, node_id, attempt_no, run_attempt_no) where e.run_id is null or "
		"v.run_id is null",
		/* executions closed */
		"(select * from lease.node_executions where finished_at is not null) e full join "
		"(select run_id, node_id, execution_no as attempt_no, attempt_no as "
		"run_attempt_no, "
		"to_status as status from lease.run_events where kind = 'node_finished') v "
		"using (run_id, node_id, attempt_no, run_attempt_no, status) "
		"where e.run_id is null or v.run_id is null",
		/* checkpoints */
		"lease.checkpoints c full join (select run_id, attempt_no as run_attempt_no, "
		"reference as checkpoint_id from lease.run_events where kind = "
		"'checkpoint_recorded') v "
		"using (run_id, run_attempt_no, checkpoint_id) where c.run_id is null or v.run_id "
		"is null",
		/* plans, cancel requests, versions, and the status in which each run is now */
		"lease.runs r join lateral (select count(*) filter (where kind = 'plan_changed') "
		"as plans, "
		"count(*) filter (where kind = 'cancel_requested') as cancels, "
		"count(*) filter (where kind in ('plan_changed', 'checkpoint_recorded') or "
		"from_status <> to_status) as versions, "
		"(array_agg(to_status order by event_id desc))[1] as status "
		"from lease.run_events v where v.run_id = r.run_id and v.node_id is null) v on "
		"true "
		"where plans <> plan_version - 1 or cancels <> (cancel_requested_at is not "
		"null)::int "
		"or versions <> state_version - 1 or v.status <> r.status",
	};

	for (size_t i = 0; i < LENGTH(none); i++)
		assert_sql(conn, "0", "select count(*) from %s", none[i]);
}

static void consumer_started_100_times_sees_every_event_of_8_workers_exactly_once(void **state)
{
	struct fixture *f = *state;
	struct traffic traffic = { .conninfo = f->conninfo };
	struct worker workers[WORKERS];
	struct holder holders[HOLDERS];
	pthread_t threads[WORKERS + HOLDERS];
	struct seen seen = { 0 };
	char cursor[4096] = "";
	unsigned seed = (unsigned)test_now_ms();
	long long while_running;
	int steps = 0;

	memset(workers, 0, sizeof(workers));
	memset(holders, 0, sizeof(holders));
	print_message("seed %u\n", seed);
	for (int i = 0; i < WORKERS; i++) {
		workers[i] = (struct worker){ .traffic = &traffic,
					      .number = i,
					      .seed = seed + (unsigned)i,
					      .conn = test_connect(f->conninfo) };
		pthread_create(&threads[i], NULL, run_worker, &workers[i]);
	}
	for (int i = 0; i < HOLDERS; i++) {
		holders[i] = (struct holder){ .traffic = &traffic,
					      .number = i,
					      .conn = test_connect(f->conninfo) };
		pthread_create(&threads[WORKERS + i], NULL, run_holder, &holders[i]);
	}
	while (atomic_load(&traffic.restarts) < RESTARTS)
		consume(&traffic, cursor, &seen, &seed);
	while_running = (long long)seen.n;
	atomic_store(&traffic.stop, true);
	for (int i = 0; i < WORKERS + HOLDERS; i++)
		pthread_join(threads[i], NULL);
	while (consume(&traffic, cursor, &seen, &seed))
		;

	for (int i = 0; i < WORKERS; i++) {
		if (workers[i].error.code)
			fail_msg("worker %d: %s %s", i, workers[i].error.sqlstate,
				 workers[i].error.message);
		assert_true(workers[i].steps > 0);
		steps += workers[i].steps;
		PQfinish(workers[i].conn);
	}
	for (int i = 0; i < HOLDERS; i++) {
		assert_false(holders[i].failed);
		assert_true(holders[i].committed > 0);
		PQfinish(holders[i].conn);
	}
	assert_true(holders[0].rolled_back > 0);
	load_seen(f->conn, &seen);
	free(seen.event_ids);
	assert_seen_exactly_once_and_in_order(f->conn);
	assert_events_match_facts(f->conn);
	/* the transactions that were held open came late, and so out of the order of event_id */
	assert_true(
		sql_number(f->conn,
			   "select count(*) from (select event_id < max(event_id) over "
			   "(order by place rows unbounded preceding exclude current row) as late "
			   "from seen) x where late") > 0);
	print_message("%d steps, %zu events, %lld of them seen in the first %d starts\n", steps,
		      seen.n, while_running, RESTARTS);
}

/* -- what reading a batch costs ---------------------------------------------------------------- */

enum { EVENTS = 120000, BLOCKS_A_BATCH = 60 };

/* The blocks that a statement touches, under the settings of lease_events_after. */
static long long blocks_of(PGconn *conn, const char *statement, const char *const values[], int n)
{
	char *explain;
	const char *hit, *read;
	long long blocks;
	PGresult *result;

	sql(conn, "begin isolation level repeatable read read only");
	sql(conn, "set local jit = off; set local max_parallel_workers_per_gather = 0;"
		  "set local enable_seqscan = off; set local enable_bitmapscan = off");
	assert_true(asprintf(&explain, "explain (analyze, buffers, format json) %s", statement) >
		    0);
	result = PQexecParams(conn, explain, n, NULL, values, NULL, NULL, 0);
	free(explain);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail_msg("%s", PQerrorMessage(conn));
	/* the first of each are those of the whole plan */
	hit = strstr(PQgetvalue(result, 0, 0), "\"Shared Hit Blocks\": ");
	read = strstr(PQgetvalue(result, 0, 0), "\"Shared Read Blocks\": ");
	assert_non_null(hit);
	assert_non_null(read);
	blocks = atoll(hit + strlen("\"Shared Hit Blocks\": ")) +
		 atoll(read + strlen("\"Shared Read Blocks\": "));
	PQclear(result);
	sql(conn, "commit");
	return blocks;
}

static void assert_cheap_batch(PGconn *conn, const char *older, const char *lowest,
			       const char *after)
{
	/* a newer snapshot in which all planted transactions have ended */
	const char *values[] = { older, "1000000:1000000:", lowest, after, "100" };
	long long blocks = blocks_of(conn, lease_sql_events_after, values, 5);

	if (blocks > BLOCKS_A_BATCH)
		fail_msg("a batch after %s (%s, %s) touches %lld blocks", older,
			 lowest ? lowest : "none", after, blocks);
}

static void assert_cheap_window(PGconn *conn, const char *older)
{
	long long blocks = blocks_of(conn, lease_sql_open_window, &older, 1);

	if (blocks > BLOCKS_A_BATCH)
		fail_msg("a window after %s touches %lld blocks", older, blocks);
}

static void assert_batches_are_cheap(PGconn *conn)
{
	/* three events a transaction: 100001 … 140000 */
	assert_cheap_batch(conn, "1:1:", "1", "0"); /* the beginning, */
	assert_cheap_batch(conn, "1:1:", "1", "60000"); /* in the midst, */
	assert_cheap_batch(conn, "100100:100100:", "299", "60000"); /* the same, from far back, */
	assert_cheap_batch(conn, "1:1:", "1", "119990"); /* at the end */
	assert_cheap_batch(conn, "139990:139990:", "119968", "0"); /* newly opened, near the end */
	assert_cheap_batch(conn, "139990:139990:", "119968", "119990");
	assert_cheap_batch(conn, "100010:139990:100010,120000", "119968",
			   "0"); /* one was open long */
	assert_cheap_batch(conn, "100010:139990:100010,120000", "119968", "30");
	assert_cheap_batch(conn, "100010:140001:100010", NULL, "0");
	assert_cheap_batch(conn, "140001:140001:", NULL, "0"); /* nothing new */
	assert_cheap_window(conn, "1:1:");
	assert_cheap_window(conn, "139990:139990:");
	assert_cheap_window(conn, "100010:139990:100010,120000");
	assert_cheap_window(conn, "140001:140001:");
}

static void batch_reads_what_it_returns_and_not_the_whole_table(void **state)
{
	struct fixture *f = *state;
	long long all;

	f->inconsistent = true;
	sql(f->conn, "alter table lease.run_events set (autovacuum_enabled = off)");
	sql(f->conn,
	    "insert into lease.run_events (txid, kind, run_id, from_status, to_status, owner) "
	    "select (100001 + (i - 1) / 3)::text::xid8, 'attempt_opened', 'run-' || i %% 5000, "
	    "'pending', "
	    "'running', 'worker-1:' || i from generate_series(1, %d) i",
	    EVENTS);
	all = sql_number(f->conn, "select pg_table_size('lease.run_events') / 8192");
	assert_true(all > 20LL * BLOCKS_A_BATCH);
	assert_batches_are_cheap(f->conn); /* without statistics */
	sql(f->conn, "vacuum analyze lease.run_events");
	assert_batches_are_cheap(f->conn);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(consumer_reads_on_from_where_it_was),
		fixture_test(open_transaction_holds_nothing_up_and_its_events_come_later),
		fixture_test(events_of_a_transaction_beyond_the_snapshot_are_not_lost),
		fixture_test(events_come_back_whole),
		fixture_test(cursors_that_are_none_are_refused),
		fixture_test(cursor_of_a_later_time_than_the_database_is_refused),
		fixture_test(what_wakes_a_consumer_is_there_to_be_read),
		fixture_test(consumer_started_100_times_sees_every_event_of_8_workers_exactly_once),
		fixture_test(batch_reads_what_it_returns_and_not_the_whole_table),
	};

	return cmocka_run_group_tests_name("event_consumers", tests, NULL, NULL);
}
