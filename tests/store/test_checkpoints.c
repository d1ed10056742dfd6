/*
 * Checkpoints and plans on a real PostgreSQL: they move with state_version, under the fencing token
 * and an expected version, and a stale one changes nothing.
 */
#include "facts.h"

/* The run's state_version, plan_version and current checkpoint. */
#define assert_run(conn, run_id, expected)                                                         \
	assert_sql(conn, expected,                                                                 \
		   "select concat_ws(' ', state_version, plan_version, current_checkpoint_id) "    \
		   "from lease.runs where run_id = '%s'",                                          \
		   run_id)

#define assert_facts(conn, expected)                                                               \
	assert_sql(conn, expected,                                                                 \
		   "select (select count(*) from lease.checkpoints) || ' ' || "                    \
		   "(select count(*) from lease.run_events where kind in "                         \
		   "('checkpoint_recorded', 'plan_changed'))")

static void checkpoint_and_state_version_move_together(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_change change;

	assert_int_equal(grant.state_version, 2);
	register_content(f->conn, "file:///state-1");
	expect(0,
	       lease_checkpoint_record(f->conn,
				       &(struct lease_checkpoint){ .token = grant.token,
								   .checkpoint_id = "c-1",
								   .content_ref = "file:///state-1",
								   .expected_version = 2 },
				       &change, &failure));
	assert_true(change.changed);
	assert_int_equal(change.state_version, 3);
	assert_int_equal(change.status, LEASE_RUN_RUNNING);
	assert_run(f->conn, "run", "3 1 c-1");
	expect(0, lease_plan_change(f->conn, &grant.token, 3, 0, &change, &failure));
	assert_true(change.changed);
	assert_int_equal(change.state_version, 4);
	assert_run(f->conn, "run", "4 2 c-1");
	expect(0, checkpoint_as(f->conn, &grant.token, "c-2", 4, &change));
	assert_run(f->conn, "run", "5 2 c-2");
	assert_sql(
		f->conn, "c-1 1 3 1 file:///state-1, c-2 1 5 2",
		"select string_agg(concat_ws(' ', checkpoint_id, run_attempt_no, state_version, "
		"plan_version, content_ref), ', ' order by state_version) from lease.checkpoints");
	/* a renewal and a cancel request leave the version alone */
	expect(0, lease_renew_lease(f->conn, &grant.token, LONG_TTL, 0, NULL, &failure));
	expect(0, lease_request_cancel(f->conn, "run", 5, 0, NULL, &failure));
	expect(0, checkpoint_as(f->conn, &grant.token, "c-3", 5, &change));
	assert_run(f->conn, "run", "6 2 c-3");
}

static void stale_version_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_change change = { .state_version = 77 };

	for (int64_t version = 1; version <= 3; version += 2) { /* older and newer */
		expect(LEASE_STALE_VERSION,
		       checkpoint_as(f->conn, &grant.token, "c-1", version, &change));
		expect(LEASE_STALE_VERSION,
		       lease_plan_change(f->conn, &grant.token, version, 0, &change, &failure));
	}
	assert_int_equal(change.state_version, 77);
	assert_run(f->conn, "run", "2 1");
	assert_facts(f->conn, "0 0");
	/* whoever built on the version before a plan change is stale after it */
	expect(0, lease_plan_change(f->conn, &grant.token, 2, 0, NULL, &failure));
	expect(LEASE_STALE_VERSION, checkpoint_as(f->conn, &grant.token, "c-1", 2, NULL));
	expect(LEASE_STALE_VERSION, lease_plan_change(f->conn, &grant.token, 2, 0, NULL, &failure));
	assert_run(f->conn, "run", "3 2");
	assert_facts(f->conn, "0 1");
}

static void recording_the_same_again_changes_nothing_and_says_so(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_change change;

	expect(0, checkpoint_as(f->conn, &grant.token, "c-1", 2, NULL));
	expect(0,
	       checkpoint_as(f->conn, &grant.token, "c-1", 2, &change)); /* the answer was lost */
	assert_false(change.changed);
	assert_int_equal(change.state_version, 3);
	expect(0, end_as(f->conn, &grant.token, LEASE_RUN_COMPLETED));
	expect(0, checkpoint_as(f->conn, &grant.token, "c-1", 2, &change));
	assert_false(change.changed);
	assert_int_equal(change.status, LEASE_RUN_COMPLETED);
	assert_facts(f->conn, "1 1");
}

/* A checkpoint_id is new, or it is the current one's: anything else would say two things. */
static void checkpoint_id_that_was_used_is_refused(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_grant other = submit_and_claim(f->conn, "other");

	expect(0, checkpoint_as(f->conn, &grant.token, "c-1", 2, NULL));
	expect(LEASE_E_SERVER, checkpoint_as(f->conn, &other.token, "c-1", 2, NULL));
	assert_string_equal(failure.sqlstate, "23505");
	assert_false(failure.outcome_unknown);
	expect(0, checkpoint_as(f->conn, &grant.token, "c-2", 3, NULL));
	expect(LEASE_STALE_VERSION, checkpoint_as(f->conn, &grant.token, "c-1", 2, NULL));
	expect(LEASE_E_SERVER, checkpoint_as(f->conn, &grant.token, "c-1", 4, NULL));
	assert_string_equal(failure.sqlstate, "23505");
	assert_run(f->conn, "run", "4 1 c-2");
	assert_run(f->conn, "other", "2 1");
	assert_facts(f->conn, "2 2");
}

static void next_attempt_resumes_from_the_checkpoint(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_story *story;

	expect(0, checkpoint_as(f->conn, &grant.token, "c-1", grant.state_version, NULL));
	let_lease_end(f->conn, "run");
	reconcile(f->conn, LEASE_POLICY_REQUEUE);
	grant = claim(f->conn, "run", "worker-2");
	expect(0, lease_read_story(f->conn, "run", &story, &failure));
	assert_string_equal(story->current_checkpoint_id, "c-1");
	lease_story_free(story);
	expect(0, checkpoint_as(f->conn, &grant.token, "c-2", grant.state_version, NULL));
	assert_sql(f->conn, "c-1 1, c-2 2",
		   "select string_agg(checkpoint_id || ' ' || run_attempt_no, ', ' order by "
		   "checkpoint_id) "
		   "from lease.checkpoints");
}

static void checkpoint_and_plan_are_refused_without_a_lease_that_holds(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_token token = grant.token;

#define refuse(expected, version)                                                                  \
	expect(expected, checkpoint_as(f->conn, &token, "c", version, NULL));                      \
	expect(expected, lease_plan_change(f->conn, &token, version, 0, NULL, &failure))

	snprintf(token.run_id, sizeof(token.run_id), "nowhere");
	refuse(LEASE_NOT_FOUND, 2);
	token = grant.token;
	token.attempt_no = 2;
	refuse(LEASE_NOT_OWNER, 2);
	token = grant.token;
	snprintf(token.owner, sizeof(token.owner), "somebody:else");
	refuse(LEASE_NOT_OWNER, 2);
	token = grant.token;
	refuse(LEASE_E_INVALID, 0);
	refuse(LEASE_E_INVALID, -1);
	let_lease_end(f->conn, "run");
	refuse(LEASE_EXPIRED, 2);
	reconcile(f->conn, LEASE_POLICY_REQUEUE);
	refuse(LEASE_EXPIRED, 3);
	claim(f->conn, "run", "worker-2");
	refuse(LEASE_EXPIRED, 4);
	expect(0, lease_request_cancel(f->conn, "run", 0, 0, NULL, &failure));
	let_lease_end(f->conn, "run");
	reconcile(f->conn, LEASE_POLICY_REQUEUE);
	refuse(LEASE_TERMINAL, 5);
#undef refuse
	assert_facts(f->conn, "0 0");
}

static void unregistered_content_is_refused_and_nothing_is_written(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct lease_checkpoint checkpoint = { .token = grant.token,
					       .checkpoint_id = "c-1",
					       .content_ref = "file:///never-registered",
					       .expected_version = 2 };

	expect(LEASE_E_SERVER, lease_checkpoint_record(f->conn, &checkpoint, NULL, &failure));
	assert_string_equal(failure.sqlstate, "23503");
	assert_run(f->conn, "run", "2 1");
	assert_facts(f->conn, "0 0");
	checkpoint.checkpoint_id = NULL;
	expect(LEASE_E_INVALID, lease_checkpoint_record(f->conn, &checkpoint, NULL, &failure));
	checkpoint.checkpoint_id = "c-1";
	checkpoint.content_ref = "";
	expect(LEASE_E_INVALID, lease_checkpoint_record(f->conn, &checkpoint, NULL, &failure));
}

/* -- two writers with one old version ---------------------------------------------------------- */

enum { ROUNDS = 200 };

struct writer {
	PGconn *conn;
	pthread_barrier_t *barrier;
	const struct lease_token *token;
	bool plans; /* changes the plan; records a checkpoint otherwise */
	int number;
	struct {
		int result;
		bool changed;
		int64_t state_version;
	} rounds[ROUNDS];
};

/* Both begin each round with the version that the round before left, at the barrier. */
static void *write_rounds(void *argument)
{
	struct writer *writer = argument;

	for (int round = 0; round < ROUNDS; round++) {
		struct lease_change change = { 0 };
		struct lease_error error;
		char checkpoint_id[64];
		int64_t version = 2 + round;
		int r;

		snprintf(checkpoint_id, sizeof(checkpoint_id), "c-%d-%d", round, writer->number);
		pthread_barrier_wait(writer->barrier);
		if (writer->plans && round % 2)
			r = lease_plan_change(writer->conn, writer->token, version, 0, &change,
					      &error);
		else
			r = lease_checkpoint_record(
				writer->conn,
				&(struct lease_checkpoint){ .token = *writer->token,
							    .checkpoint_id = checkpoint_id,
							    .expected_version = version },
				&change, &error);
		writer->rounds[round].result = r;
		writer->rounds[round].changed = change.changed;
		writer->rounds[round].state_version = change.state_version;
		pthread_barrier_wait(writer->barrier);
	}
	return NULL;
}

static void of_two_writers_with_one_old_version_exactly_one_succeeds_200_rounds(void **state)
{
	struct fixture *f = *state;
	struct lease_grant grant = submit_and_claim(f->conn, "run");
	struct writer *writers = calloc(2, sizeof(*writers));
	pthread_barrier_t barrier;
	pthread_t threads[2];
	int wins[2] = { 0, 0 };

	pthread_barrier_init(&barrier, NULL, 2);
	for (int i = 0; i < 2; i++) {
		writers[i] = (struct writer){ .conn = test_connect(f->conninfo),
					      .barrier = &barrier,
					      .token = &grant.token,
					      .plans = i == 1,
					      .number = i };
		pthread_create(&threads[i], NULL, write_rounds, &writers[i]);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int round = 0; round < ROUNDS; round++) {
		int winner = writers[0].rounds[round].result == 0 ? 0 : 1;

		assert_int_equal(writers[winner].rounds[round].result, 0);
		assert_true(writers[winner].rounds[round].changed);
		assert_int_equal(writers[winner].rounds[round].state_version, 3 + round);
		assert_int_equal(writers[!winner].rounds[round].result, LEASE_STALE_VERSION);
		wins[winner]++;
	}
	print_message("of %d rounds one writer won %d, the other %d\n", ROUNDS, wins[0], wins[1]);
	for (int i = 0; i < 2; i++)
		PQfinish(writers[i].conn);
	free(writers);
	pthread_barrier_destroy(&barrier);
	assert_int_equal(sql_number(f->conn, "select state_version from lease.runs"), 2 + ROUNDS);
	assert_int_equal(sql_number(f->conn,
				    "select count(*) + (select plan_version - 1 from lease.runs) "
				    "from lease.checkpoints"),
			 ROUNDS);
	assert_sql(f->conn, "t",
		   "select current_checkpoint_id = (select checkpoint_id from lease.checkpoints "
		   "order by state_version desc limit 1) from lease.runs");
	assert_int_equal(sql_number(f->conn,
				    "select count(*) from lease.run_events "
				    "where kind in ('checkpoint_recorded', 'plan_changed')"),
			 ROUNDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(checkpoint_and_state_version_move_together),
		fixture_test(stale_version_changes_nothing),
		fixture_test(recording_the_same_again_changes_nothing_and_says_so),
		fixture_test(checkpoint_id_that_was_used_is_refused),
		fixture_test(next_attempt_resumes_from_the_checkpoint),
		fixture_test(checkpoint_and_plan_are_refused_without_a_lease_that_holds),
		fixture_test(unregistered_content_is_refused_and_nothing_is_written),
		fixture_test(of_two_writers_with_one_old_version_exactly_one_succeeds_200_rounds),
	};

	return cmocka_run_group_tests_name("checkpoints", tests, NULL, NULL);
}
