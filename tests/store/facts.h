/*
 * What the tests of runtime facts share: a database for each test, verbs with few arguments, and
 * the check that whatever a test did left nothing unexplained.
 *
 * Each test gets a struct fixture; its teardown fails the test when a run or a node is not
 * explained, so that no test need ask. Threads must not use what fails a test (see harness.h): they
 * call liblease and hand results back.
 */
#ifndef LEASE_TEST_FACTS_H
#define LEASE_TEST_FACTS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "lease.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define LONG_TTL (600 * LEASE_SECOND)

struct fixture {
	char *conninfo;
	PGconn *conn; /* a superuser's */
	bool inconsistent; /* the test planted what nothing explains */
};

/* The error of the newest call within expect(). */
static struct lease_error failure;

static inline void expect_at(int expected, int result, const char *call, const char *file, int line)
{
	if (result == expected)
		return;
	print_error("%s\ngave %d (%s), not %d (%s): %s %s\n", call, result,
		    result < 0 ? lease_errno_name(result) : lease_refusal_name(result), expected,
		    expected < 0 ? lease_errno_name(expected) : lease_refusal_name(expected),
		    result < 0 ? failure.sqlstate : "", result < 0 ? failure.message : "");
	_fail(file, line);
}

/* Fails the test unless the call, which reports to &failure, gives this result. */
#define expect(expected, call) expect_at(expected, call, #call, __FILE__, __LINE__)

static inline int fixture_setup(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));

	fixture->conninfo = test_database_create();
	fixture->conn = test_connect(fixture->conninfo);
	*state = fixture;
	return 0;
}

static inline void assert_explained(PGconn *conn)
{
	assert_sql(conn, NULL,
		   "select string_agg(run_id || ': ' || reason, '; ') from lease.unexplained_runs");
	assert_sql(conn, NULL,
		   "select string_agg(run_id || '/' || node_id || ': ' || reason, '; ') "
		   "from lease.unexplained_nodes");
}

static inline int fixture_teardown(void **state)
{
	struct fixture *fixture = *state;

	if (!fixture->inconsistent)
		assert_explained(fixture->conn);
	PQfinish(fixture->conn);
	test_database_drop(fixture->conninfo);
	free(fixture->conninfo);
	free(fixture);
	return 0;
}

#define fixture_test(function)                                                                     \
	cmocka_unit_test_setup_teardown(function, fixture_setup, fixture_teardown)

/* Verbs. */

static inline void submit(PGconn *conn, const char *run_id)
{
	expect(0, lease_submit(conn, &(struct lease_submission){ .run_id = run_id }, NULL, NULL,
			       &failure));
}

static inline int claim_as(PGconn *conn, const char *run_id, const char *worker, int64_t ttl,
			   struct lease_grant *grant)
{
	char owner[LEASE_ID_MAX + 1];

	expect(0, lease_owner_generate(worker, owner, &failure));
	return lease_mark_running(
		conn, &(struct lease_claim){ .run_id = run_id, .owner = owner, .ttl = ttl }, grant,
		&failure);
}

static inline struct lease_grant claim(PGconn *conn, const char *run_id, const char *worker)
{
	struct lease_grant grant = { 0 };

	expect(0, claim_as(conn, run_id, worker, LONG_TTL, &grant));
	return grant;
}

static inline struct lease_grant submit_and_claim(PGconn *conn, const char *run_id)
{
	submit(conn, run_id);
	return claim(conn, run_id, "worker-1");
}

static inline int start_as(PGconn *conn, const struct lease_token *token, const char *node_id,
			   const char *operation_id, struct lease_node_execution *execution)
{
	return lease_node_start(conn,
				&(struct lease_node_start){ .token = *token,
							    .node_id = node_id,
							    .operation_id = operation_id },
				execution, &failure);
}

/* The number of the execution. */
static inline int32_t start(PGconn *conn, const struct lease_token *token, const char *node_id,
			    const char *operation_id)
{
	struct lease_node_execution execution = { 0 };

	expect(0, start_as(conn, token, node_id, operation_id, &execution));
	return execution.execution_no;
}

static inline int succeed_as(PGconn *conn, const struct lease_token *token, const char *node_id,
			     int32_t execution_no, struct lease_change *change)
{
	return lease_node_finish(conn,
				 &(struct lease_node_finish){ .token = *token,
							      .node_id = node_id,
							      .execution_no = execution_no,
							      .status = LEASE_EXECUTION_SUCCEEDED },
				 change, &failure);
}

static inline int fail_as(PGconn *conn, const struct lease_token *token, const char *node_id,
			  int32_t execution_no, const char *error, struct lease_change *change)
{
	return lease_node_finish(conn,
				 &(struct lease_node_finish){ .token = *token,
							      .node_id = node_id,
							      .execution_no = execution_no,
							      .status = LEASE_EXECUTION_FAILED,
							      .normalized_error = error },
				 change, &failure);
}

static inline int release_as(PGconn *conn, const struct lease_token *token,
			     struct lease_change *change)
{
	return lease_release_lease_for_retry(conn, &(struct lease_release){ .token = *token },
					     change, &failure);
}

static inline int end_as(PGconn *conn, const struct lease_token *token,
			 enum lease_run_status status)
{
	return lease_set_terminal_status(
		conn, &(struct lease_finish){ .token = token, .status = status }, NULL, &failure);
}

static inline int checkpoint_as(PGconn *conn, const struct lease_token *token,
				const char *checkpoint_id, int64_t expected_version,
				struct lease_change *change)
{
	return lease_checkpoint_record(
		conn,
		&(struct lease_checkpoint){ .token = *token,
					    .checkpoint_id = checkpoint_id,
					    .expected_version = expected_version },
		change, &failure);
}

/* The worker is lost: its lease ends now, and nobody has noticed yet. */
static inline void let_lease_end(PGconn *conn, const char *run_id)
{
	sql(conn,
	    "update lease.run_attempts set lease_expires_at = clock_timestamp() "
	    "where run_id = '%s' and finished_at is null",
	    run_id);
}

static inline struct lease_sweep_figures reconcile(PGconn *conn, enum lease_policy policy)
{
	struct lease_sweep_options options;
	struct lease_sweep_figures figures = { 0 };

	lease_sweep_options_init(&options);
	options.policy = policy;
	options.notify = false;
	expect(0, lease_reconcile_expired_leases(conn, &options, NULL, &figures, &failure));
	return figures;
}

/* A content of this reference whose bytes are nobody's business. */
static inline struct lease_content content_of(const char *content_ref)
{
	struct lease_content content = { .size_bytes = 42, .schema_version = 1 };

	snprintf(content.content_ref, sizeof(content.content_ref), "%.*s", LEASE_REF_MAX,
		 content_ref);
	snprintf(content.media_type, sizeof(content.media_type), "application/json");
	snprintf(content.hash, sizeof(content.hash), "sha256:%064d", 7);
	return content;
}

static inline void register_content(PGconn *conn, const char *content_ref)
{
	struct lease_content content = content_of(content_ref);

	expect(0, lease_content_register(conn, &content, NULL, &failure));
}

/* A worker's connection waits for a lock that somebody else has. */
#define wait_blocked(observer, pid)                                                                \
	wait_sql(observer, "select wait_event_type = 'Lock' from pg_stat_activity where pid = %d", \
		 pid)

#endif
