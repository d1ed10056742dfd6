/*
 * Contents on a real PostgreSQL: a large payload is known by its reference alone, which never
 * changes its meaning, and however large it is, the state of its run stays small.
 */
#include <unistd.h>

#include "facts.h"

/* -- register and look up ---------------------------------------------------------------------- */

static void content_is_found_as_it_was_registered(void **state)
{
	static const char *const references[] = { "file:///var/results/1.json",
						  "s3://bucket/it's a \"key\" \\ {x,NULL}",
						  "\xf0\x9f\x90\x98", "relative and odd", "%2F?#" };
	struct fixture *f = *state;

	for (size_t i = 0; i < LENGTH(references); i++) {
		struct lease_content content = content_of(references[i]), found;
		bool changed = false;

		content.size_bytes = i == 0 ? 0 : INT64_MAX;
		content.schema_version = i == 0 ? 1 : INT32_MAX;
		expect(LEASE_NOT_FOUND,
		       lease_content_lookup(f->conn, references[i], &found, &failure));
		expect(0, lease_content_register(f->conn, &content, &changed, &failure));
		assert_true(changed);
		expect(0, lease_content_lookup(f->conn, references[i], &found, &failure));
		assert_string_equal(found.content_ref, content.content_ref);
		assert_string_equal(found.hash, content.hash);
		assert_string_equal(found.media_type, content.media_type);
		assert_true(found.size_bytes == content.size_bytes);
		assert_int_equal(found.schema_version, content.schema_version);
	}
	assert_sql(f->conn, "t",
		   "select bool_and(created_at <= clock_timestamp()) from lease.contents");
}

static void registering_the_same_again_changes_nothing(void **state)
{
	struct fixture *f = *state;
	struct lease_content content = content_of("file:///a");
	bool changed;
	char *before;

	expect(0, lease_content_register(f->conn, &content, &changed, &failure));
	before = sql_text(f->conn, "select c::text || xmin || ctid from lease.contents c");
	for (int i = 0; i < 3; i++) {
		changed = true;
		expect(0, lease_content_register(f->conn, &content, &changed, &failure));
		assert_false(changed);
	}
	expect(0, lease_content_register(f->conn, &content, NULL, &failure));
	assert_sql(f->conn, before, "select c::text || xmin || ctid from lease.contents c");
	free(before);
}

static void another_content_under_a_registered_reference_is_refused(void **state)
{
	struct fixture *f = *state;
	struct lease_content content = content_of("file:///a"), other, found;
	bool changed = true;

	expect(0, lease_content_register(f->conn, &content, NULL, &failure));
	other = content;
	other.hash[70] = 'a';
	expect(LEASE_ILLEGAL, lease_content_register(f->conn, &other, &changed, &failure));
	other = content;
	other.size_bytes++;
	expect(LEASE_ILLEGAL, lease_content_register(f->conn, &other, &changed, &failure));
	other = content;
	other.schema_version++;
	expect(LEASE_ILLEGAL, lease_content_register(f->conn, &other, &changed, &failure));
	other = content;
	snprintf(other.media_type, sizeof(other.media_type), "text/plain");
	expect(LEASE_ILLEGAL, lease_content_register(f->conn, &other, &changed, &failure));
	assert_true(changed); /* a refusal fills in nothing */
	expect(0, lease_content_lookup(f->conn, "file:///a", &found, &failure));
	assert_memory_equal(found.hash, content.hash, sizeof(found.hash));
	assert_int_equal(found.size_bytes, 42);
}

/* There is no connection: it is not even looked at. */
static void bad_contents_are_refused_before_anything_is_sent(void **state)
{
	struct fixture *f = *state;
	struct lease_content good = content_of("file:///a"), bad, found;
	char reference[LEASE_REF_MAX + 2];

#define refuse(...)                                                                                \
	bad = good;                                                                                \
	__VA_ARGS__;                                                                               \
	expect(LEASE_E_INVALID, lease_content_register(NULL, &bad, NULL, &failure));               \
	assert_true(failure.message[0] != '\0')

	refuse(bad.content_ref[0] = '\0');
	refuse(bad.media_type[0] = '\0');
	refuse(bad.size_bytes = -1);
	refuse(bad.schema_version = 0);
	refuse(bad.hash[0] = '\0');
	refuse(bad.hash[70] = '\0'); /* a digit short */
	refuse(bad.hash[70] = 'A');
	refuse(bad.hash[70] = 'g');
	refuse(memcpy(bad.hash, "sha512:", 7));
#undef refuse
	expect(LEASE_E_INVALID, lease_content_lookup(NULL, NULL, &found, &failure));
	expect(LEASE_E_INVALID, lease_content_lookup(NULL, "", &found, &failure));
	memset(reference, 'x', sizeof(reference) - 1);
	reference[LEASE_REF_MAX + 1] = '\0';
	expect(LEASE_E_INVALID, lease_content_lookup(NULL, reference, &found, &failure));
	/* the longest that is allowed is stored whole */
	reference[LEASE_REF_MAX] = '\0';
	register_content(f->conn, reference);
	expect(0, lease_content_lookup(f->conn, reference, &found, &failure));
	assert_string_equal(found.content_ref, reference);
}

static void database_refuses_contents_that_are_none(void **state)
{
	struct fixture *f = *state;

	sql_fails(f->conn, "23514", "insert into lease.contents values ('r', 'md5:0', 't', 1, 1)");
	sql_fails(
		f->conn, "23514",
		"insert into lease.contents values ('r', 'sha256:' || repeat('A', 64), 't', 1, 1)");
	sql_fails(f->conn, "23514",
		  "insert into lease.contents values ('r', 'sha256:' || repeat('a', 64), 't', -1, "
		  "1)");
	sql_fails(
		f->conn, "23514",
		"insert into lease.contents values ('r', 'sha256:' || repeat('a', 64), 't', 1, 0)");
	sql_fails(
		f->conn, "23514",
		"insert into lease.contents values ('', 'sha256:' || repeat('a', 64), 't', 1, 1)");
	sql_fails(f->conn, "23514",
		  "insert into lease.contents values (repeat('x', 1025), 'sha256:' || repeat('a', "
		  "64), 't', 1, 1)");
}

/* -- at the same moment ------------------------------------------------------------------------ */

struct registrar {
	PGconn *conn;
	pthread_barrier_t *barrier; /* NULL: at once */
	struct lease_content content;
	int result;
	bool changed;
	struct lease_error error;
};

static void *run_register(void *argument)
{
	struct registrar *registrar = argument;

	if (registrar->barrier)
		pthread_barrier_wait(registrar->barrier);
	registrar->result = lease_content_register(registrar->conn, &registrar->content,
						   &registrar->changed, &registrar->error);
	return NULL;
}

/* Four connections, all with one content or each with its own, under one reference. */
static void register_at_once(struct fixture *f, bool same)
{
	enum { REGISTRARS = 4, ROUNDS = 50 };
	struct registrar registrars[REGISTRARS];
	pthread_barrier_t barrier;

	memset(registrars, 0, sizeof(registrars));
	pthread_barrier_init(&barrier, NULL, REGISTRARS);
	for (int i = 0; i < REGISTRARS; i++)
		registrars[i] = (struct registrar){ .conn = test_connect(f->conninfo),
						    .barrier = &barrier };
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t threads[REGISTRARS];
		int changed = 0, unchanged = 0, refused = 0;
		char reference[64];

		snprintf(reference, sizeof(reference), "file:///%d/%d", same, round);
		for (int i = 0; i < REGISTRARS; i++) {
			registrars[i].content = content_of(reference);
			registrars[i].content.size_bytes += same ? 0 : i;
			registrars[i].changed = false;
			pthread_create(&threads[i], NULL, run_register, &registrars[i]);
		}
		for (int i = 0; i < REGISTRARS; i++) {
			pthread_join(threads[i], NULL);
			changed += registrars[i].result == 0 && registrars[i].changed;
			unchanged += registrars[i].result == 0 && !registrars[i].changed;
			refused += registrars[i].result == LEASE_ILLEGAL;
		}
		assert_int_equal(changed, 1);
		assert_int_equal(unchanged, same ? REGISTRARS - 1 : 0);
		assert_int_equal(refused, same ? 0 : REGISTRARS - 1);
	}
	for (int i = 0; i < REGISTRARS; i++)
		PQfinish(registrars[i].conn);
	pthread_barrier_destroy(&barrier);
}

static void one_of_many_who_register_at_once_adds_it(void **state)
{
	register_at_once(*state, true);
	register_at_once(*state, false);
}

static void register_behind_an_uncommitted_one(struct fixture *f, const char *end, int64_t size,
					       int expected, bool changed)
{
	struct registrar registrar = { .conn = test_connect(f->conninfo) };
	PGconn *holder = test_connect(f->conninfo);
	char reference[64];
	pthread_t thread;

	snprintf(reference, sizeof(reference), "file:///%s/%d", end, (int)size);
	registrar.content = content_of(reference);
	registrar.content.size_bytes = size;
	sql(holder, "begin");
	sql(holder,
	    "insert into lease.contents (content_ref, hash, media_type, size_bytes) "
	    "values ('%s', '%s', '%s', 42)",
	    reference, registrar.content.hash, registrar.content.media_type);
	pthread_create(&thread, NULL, run_register, &registrar);
	wait_blocked(f->conn, PQbackendPID(registrar.conn));
	sql(holder, "%s", end);
	pthread_join(thread, NULL);
	assert_int_equal(registrar.result, expected);
	if (expected == 0)
		assert_int_equal(registrar.changed, changed);
	PQfinish(holder);
	PQfinish(registrar.conn);
}

static void register_waits_for_another_that_is_registering(void **state)
{
	register_behind_an_uncommitted_one(*state, "commit", 42, 0, false);
	register_behind_an_uncommitted_one(*state, "rollback", 42, 0, true);
	register_behind_an_uncommitted_one(*state, "commit", 43, LEASE_ILLEGAL, false);
	register_behind_an_uncommitted_one(*state, "rollback", 43, 0, true);
}

/* -- a result of 10 MB ------------------------------------------------------------------------- */

enum { PAYLOAD_BYTES = 10 * 1024 * 1024, STATE_CHANGES = 50, GROWTH_BYTES = 256 * 1024 };

static void write_payload(const char *path)
{
	FILE *file = fopen(path, "we");
	uint32_t number = 1;

	assert_non_null(file);
	for (size_t i = 0; i < PAYLOAD_BYTES / sizeof(number); i++) { /* nothing that compresses */
		number = number * 1664525u + 1013904223u;
		assert_int_equal(fwrite(&number, sizeof(number), 1, file), 1);
	}
	assert_int_equal(fclose(file), 0);
}

/* "sha256:" and the hash of a file's bytes, by a program that knows nothing of ours. */
static void hash_file(const char *path, char hash[72])
{
	char *argv[] = { "sha256sum", (char *)path, NULL };
	struct process process;

	process_start(&process, argv, NULL);
	assert_int_equal(process_wait(&process, TEST_PATIENCE_MS), 0);
	snprintf(hash, 72, "sha256:%.64s", process_output(&process));
}

static long long state_bytes(PGconn *conn)
{
	return sql_number(conn, "select sum(pg_total_relation_size(c.oid))::int8 from pg_class c "
				"where c.relnamespace = 'lease'::regnamespace and c.relkind = 'r'");
}

/* Fifty changes of the state of a run whose nodes read and write the large content. */
static void change_state(PGconn *conn, const char *run_id, const char *content_ref)
{
	int64_t version;
	int changes = 0;

	submit(conn, run_id);
	while (changes < STATE_CHANGES) {
		struct lease_grant grant = claim(conn, run_id, "worker-1");
		struct lease_node_execution execution;
		struct lease_change change;
		char checkpoint_id[LEASE_ID_MAX + 1];

		version = grant.state_version;
		snprintf(checkpoint_id, sizeof(checkpoint_id), "%s-%d", run_id, changes);
		expect(0,
		       lease_node_start(conn,
					&(struct lease_node_start){ .token = grant.token,
								    .node_id = checkpoint_id,
								    .operation_id = checkpoint_id,
								    .input_ref = content_ref },
					&execution, &failure));
		expect(0, lease_node_finish(conn,
					    &(struct lease_node_finish){
						    .token = grant.token,
						    .node_id = checkpoint_id,
						    .execution_no = execution.execution_no,
						    .status = LEASE_EXECUTION_SUCCEEDED,
						    .output_ref = content_ref },
					    NULL, &failure));
		expect(0, lease_checkpoint_record(
				  conn,
				  &(struct lease_checkpoint){ .token = grant.token,
							      .checkpoint_id = checkpoint_id,
							      .content_ref = content_ref,
							      .expected_version = version },
				  &change, &failure));
		expect(0, lease_plan_change(conn, &grant.token, change.state_version, 0, NULL,
					    &failure));
		expect(0, release_as(conn, &grant.token, NULL));
		changes += 6; /* the claim is one, too */
	}
}

/*
 * WAL is the whole cluster's: what other tests write meanwhile only adds to it, so the first round
 * that stays within the bound proves it. A payload in a state table, or copied with a change of
 * state, would put every round past it.
 */
static void state_of_a_run_with_a_result_of_10_mb_stays_small(void **state)
{
	struct fixture *f = *state;
	char *folder = test_tmpdir(), path[4096], hash[72];
	struct lease_content content = { .size_bytes = PAYLOAD_BYTES, .schema_version = 1 }, found;
	long long deadline = test_now_ms() + 3LL * TEST_PATIENCE_MS;
	long long tables, wal;
	int round = 0;

	snprintf(path, sizeof(path), "%s/result.bin", folder);
	write_payload(path);
	hash_file(path, content.hash);
	snprintf(content.content_ref, sizeof(content.content_ref), "file://%.1000s", path);
	snprintf(content.media_type, sizeof(content.media_type), "application/octet-stream");
	expect(0, lease_content_register(f->conn, &content, NULL, &failure));

	/* the tables' and indexes' first pages, and what the catalog is told of them */
	change_state(f->conn, "run", content.content_ref);
	do {
		char run_id[64];
		char *from = sql_text(f->conn, "select pg_current_wal_insert_lsn()");

		snprintf(run_id, sizeof(run_id), "run-%d", round++);
		tables = state_bytes(f->conn);
		change_state(f->conn, run_id, content.content_ref);
		tables = state_bytes(f->conn) - tables;
		wal = sql_number(f->conn,
				 "select (pg_current_wal_insert_lsn() - '%s'::pg_lsn)::int8", from);
		free(from);
		assert_true(tables <= GROWTH_BYTES);
	} while (wal > GROWTH_BYTES && test_now_ms() < deadline);
	print_message(
		"%d state changes beside a result of %d bytes: tables +%lld, WAL +%lld bytes\n",
		STATE_CHANGES, PAYLOAD_BYTES, tables, wal);
	assert_true(wal <= GROWTH_BYTES);
	assert_true(sql_number(f->conn,
			       "select count(*) from lease.run_events where run_id = 'run-0'") >=
		    STATE_CHANGES);

	/* and the bytes are what the reference says, for who looks it up */
	expect(0, lease_content_lookup(f->conn, content.content_ref, &found, &failure));
	hash_file(found.content_ref + strlen("file://"), hash);
	assert_string_equal(found.hash, hash);
	free(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		fixture_test(content_is_found_as_it_was_registered),
		fixture_test(registering_the_same_again_changes_nothing),
		fixture_test(another_content_under_a_registered_reference_is_refused),
		fixture_test(bad_contents_are_refused_before_anything_is_sent),
		fixture_test(database_refuses_contents_that_are_none),
		fixture_test(one_of_many_who_register_at_once_adds_it),
		fixture_test(register_waits_for_another_that_is_registering),
		fixture_test(state_of_a_run_with_a_result_of_10_mb_stays_small),
	};

	return cmocka_run_group_tests_name("contents", tests, NULL, NULL);
}
