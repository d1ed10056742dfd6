/*
 * What the database refuses by itself, by any statement of anybody: a plain user with all rights,
 * the tables' owner, a superuser, also one who plays a replica. And what each role may do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

/* -- who tries ---------------------------------------------------------------------------------- */

enum { OWNER, SUPERUSER, REPLICA, N_WRITERS };

/* Runs in a transaction of its own; sql_fails undoes the refused statement alone. */
static void become(struct scenario *s, int writer)
{
	static const char *const statements[N_WRITERS] = {
		[OWNER] = "set role lease_owner",
		[SUPERUSER] = "reset role",
		[REPLICA] = "set session_replication_role = 'replica'",
	};

	sql(s->other, "reset role; set session_replication_role = 'origin'; %s",
	    statements[writer]);
}

/* One closed attempt and one open one of run r; a completed run "done"; a pending one "idle". */
static void make_facts(struct scenario *s)
{
	struct lease_token token = take_run(s, "r", "w1");

	assert_granted(release(s->worker, &token, 0, NULL));
	assert_granted(claim(s->worker, "r", "w2", LONG, NULL));
	token = take_run(s, "done", "w1");
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_granted(submit(s->worker, "idle"));
	assert_sql(
		s->admin, "lease_owner",
		"select string_agg(distinct tableowner, ',') from pg_tables where schemaname = 'lease'");
}

/* -- attempts ------------------------------------------------------------------------------------ */

static const struct {
	const char *sqlstate, *statement;
} attempt_refusals[] = {
	/* a closed attempt never changes, not even to what it is */
	{ "23001",
	  "update lease.run_attempts set error_code = 'x' where run_id = 'r' and attempt_no = 1" },
	{ "23001",
	  "update lease.run_attempts set attempt_no = attempt_no where run_id = 'r' and attempt_no = 1" },
	{ "23001",
	  "update lease.run_attempts set finished_at = null, outcome = null, error_code = null "
	  "where run_id = 'done'" },
	{ "23001", "update lease.run_attempts set outcome = 'failed' where run_id = 'done'" },
	{ "23001",
	  "update lease.run_attempts set heartbeat_at = clock_timestamp() where run_id = 'done'" },
	{ "23001",
	  "update lease.run_attempts set lease_expires_at = clock_timestamp() where run_id = 'done'" },
	{ "23001",
	  "merge into lease.run_attempts a using (values ('done')) v (id) on a.run_id = v.id "
	  "when matched then update set trace_id = 'x'" },
	{ "23001", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('done', 1, 'x', clock_timestamp()) "
		   "on conflict (run_id, attempt_no) do update set owner = 'x'" },
	/* identity */
	{ "23001",
	  "update lease.run_attempts set owner = 'x' where run_id = 'r' and attempt_no = 2" },
	{ "23001",
	  "update lease.run_attempts set attempt_no = 9 where run_id = 'r' and attempt_no = 2" },
	{ "23001",
	  "update lease.run_attempts set run_id = 'idle' where run_id = 'r' and attempt_no = 2" },
	{ "23001", "update lease.run_attempts set started_at = clock_timestamp() "
		   "where run_id = 'r' and attempt_no = 2" },
	/* history is neither removed nor made up */
	{ "23001", "delete from lease.run_attempts where run_id = 'done'" },
	{ "23001", "delete from lease.run_attempts where run_id = 'r' and attempt_no = 2" },
	{ "23001", "truncate lease.run_attempts cascade" },
	{ "23001", "truncate lease.runs cascade" },
	{ "23001",
	  "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, finished_at, "
	  "outcome) values ('idle', 1, 'w', clock_timestamp(), clock_timestamp(), 'completed')" },
	/* the unique index, the key, the words */
	{ "23505", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('r', 3, 'w3', clock_timestamp() + interval '1 h')" },
	{ "23505", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('done', 1, 'w3', clock_timestamp() + interval '1 h')" },
	{ "23514", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('idle', 0, 'w', clock_timestamp())" },
	{ "23514",
	  "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, outcome) "
	  "values ('idle', 1, 'w', clock_timestamp(), 'completed')" },
	{ "23514",
	  "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, error_code) "
	  "values ('idle', 1, 'w', clock_timestamp(), 'x')" },
	{ "23514",
	  "update lease.run_attempts set finished_at = clock_timestamp(), outcome = 'lost' "
	  "where finished_at is null" },
	{ "23514",
	  "update lease.run_attempts set finished_at = clock_timestamp() where finished_at is null" },
	{ "23514",
	  "update lease.run_attempts set outcome = 'completed' where finished_at is null" },
	{ "23514", "update lease.run_attempts set error_code = 'x' where finished_at is null" },
	{ "23514",
	  "update lease.run_attempts set lease_expires_at = 'infinity' where finished_at is null" },
	{ "23502", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('idle', 1, null, clock_timestamp())" },
	{ "23514", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('idle', 1, '', clock_timestamp())" },
	{ "23514", "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('idle', 1, repeat('x', 256), clock_timestamp())" },
};

static void attempts_are_guarded_against(struct scenario *s, int writer)
{
	char *before;

	make_facts(s);
	before = run_bytes(s, "r");
	become(s, writer);
	for (size_t i = 0; i < LENGTH(attempt_refusals); i++) {
		if (strstr(attempt_refusals[i].statement, "merge into") &&
		    PQserverVersion(s->other) < 150000)
			continue;
		sql_fails(s->other, attempt_refusals[i].sqlstate, "%s",
			  attempt_refusals[i].statement);
	}
	assert_untouched(s, "r", before);
	assert_run(s, "done", "completed v3 | 1 w1 completed");
	/* and what a renewal and a close do is not in their way */
	sql(s->other, "update lease.run_attempts set heartbeat_at = clock_timestamp(), "
		      "lease_expires_at = clock_timestamp() where finished_at is null");
	sql(s->other, "update lease.run_attempts set finished_at = clock_timestamp(), "
		      "outcome = 'lease_expired', error_code = 'x', error_message = 'y' "
		      "where finished_at is null");
}

static void attempts_are_guarded_against_the_owner(void **state)
{
	attempts_are_guarded_against(*state, OWNER);
}

static void attempts_are_guarded_against_a_superuser(void **state)
{
	attempts_are_guarded_against(*state, SUPERUSER);
}

static void attempts_are_guarded_against_a_replica(void **state)
{
	attempts_are_guarded_against(*state, REPLICA);
}

/* Foreign keys are triggers that a replica does not fire, so this is for the others alone. */
static void an_attempt_needs_its_run(void **state)
{
	struct scenario *s = *state;

	make_facts(s);
	for (int writer = OWNER; writer <= SUPERUSER; writer++) {
		become(s, writer);
		sql_fails(
			s->other, "23503",
			"insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
			"values ('nothing', 1, 'w', clock_timestamp())");
		sql_fails(s->other, "23503", "delete from lease.runs where run_id = 'done'");
	}
}

/* -- runs ----------------------------------------------------------------------------------------- */

static const struct {
	const char *sqlstate, *statement;
} run_refusals[] = {
	/* the version goes up by one with a change of status, and by nothing else */
	{ "23514", "update lease.runs set status = 'waiting' where run_id = 'idle'" },
	{ "23514", "update lease.runs set status = 'waiting', state_version = state_version + 2 "
		   "where run_id = 'idle'" },
	{ "23514", "update lease.runs set status = 'waiting', state_version = state_version - 1 "
		   "where run_id = 'idle'" },
	{ "23514",
	  "update lease.runs set state_version = state_version + 1 where run_id = 'idle'" },
	{ "23514",
	  "update lease.runs set updated_at = clock_timestamp(), state_version = 7 where run_id = 'idle'" },
	{ "23514", "update lease.runs set plan_version = plan_version + 1 where run_id = 'idle'" },
	/* not away from running while an attempt is open */
	{ "23001",
	  "update lease.runs set status = 'pending', state_version = state_version + 1 where run_id = 'r'" },
	{ "23001",
	  "update lease.runs set status = 'waiting', state_version = state_version + 1 where run_id = 'r'" },
	{ "23001", "update lease.runs set status = 'failed', state_version = state_version + 1, "
		   "finished_at = clock_timestamp() where run_id = 'r'" },
	{ "23001", "update lease.runs set status = 'completed', state_version = state_version + 1, "
		   "finished_at = clock_timestamp() where run_id = 'r'" },
	/* what has ended stays */
	{ "23001", "update lease.runs set status = 'running', state_version = state_version + 1, "
		   "finished_at = null where run_id = 'done'" },
	{ "23001",
	  "update lease.runs set status = 'failed', state_version = state_version + 1 where run_id = 'done'" },
	{ "23001", "update lease.runs set terminal_error_code = 'x' where run_id = 'done'" },
	{ "23001", "update lease.runs set updated_at = clock_timestamp() where run_id = 'done'" },
	{ "23001",
	  "update lease.runs set cancel_requested_at = clock_timestamp() where run_id = 'done'" },
	/* what is fixed once it is set */
	{ "23001", "update lease.runs set run_id = 'x' where run_id = 'idle'" },
	{ "23001", "update lease.runs set created_at = clock_timestamp() where run_id = 'idle'" },
	{ "23001", "update lease.runs set deadline_at = clock_timestamp() where run_id = 'idle'" },
	{ "23001",
	  "update lease.runs set cancel_requested_at = clock_timestamp() where run_id = 'marked'" },
	{ "23001", "update lease.runs set cancel_requested_at = null where run_id = 'marked'" },
	/* words and their fields */
	{ "23514",
	  "update lease.runs set status = 'Pending', state_version = state_version + 1 where run_id = 'idle'" },
	{ "23514",
	  "update lease.runs set status = 'failed', state_version = state_version + 1 where run_id = 'idle'" },
	{ "23514", "update lease.runs set finished_at = clock_timestamp() where run_id = 'idle'" },
	{ "23514", "update lease.runs set terminal_error_code = 'x' where run_id = 'idle'" },
	{ "23514", "insert into lease.runs (run_id, status) values ('x', 'completed')" },
	{ "23514", "insert into lease.runs (run_id, status) values ('x', '')" },
	{ "23514", "insert into lease.runs (run_id) values ('')" },
	{ "23514", "insert into lease.runs (run_id) values (repeat('x', 256))" },
	{ "23514", "insert into lease.runs (run_id, tenant_id) values ('x', '')" },
	{ "23514", "insert into lease.runs (run_id, state_version) values ('x', 0)" },
	{ "23514", "insert into lease.runs (run_id, not_before) values ('x', 'infinity')" },
	{ "23514", "insert into lease.runs (run_id, deadline_at) values ('x', '-infinity')" },
	{ "23505", "insert into lease.runs (run_id) values ('idle')" },
};

static void runs_are_guarded_against(struct scenario *s, int writer)
{
	char *before;

	make_facts(s);
	take_run(s, "marked", "w");
	assert_granted(request_cancel(s->worker, "marked", 0, NULL));
	before = run_bytes(s, "r");
	become(s, writer);
	for (size_t i = 0; i < LENGTH(run_refusals); i++)
		sql_fails(s->other, run_refusals[i].sqlstate, "%s", run_refusals[i].statement);
	assert_untouched(s, "r", before);
	assert_run(s, "idle", "pending v1");
	sql(s->other,
	    "update lease.runs set updated_at = clock_timestamp(), not_before = clock_timestamp() "
	    "where run_id = 'idle'");
	sql(s->other, "update lease.runs set status = 'waiting', plan_version = 2, "
		      "state_version = 2 where run_id = 'idle'");
}

static void runs_are_guarded_against_the_owner(void **state)
{
	runs_are_guarded_against(*state, OWNER);
}

static void runs_are_guarded_against_a_superuser(void **state)
{
	runs_are_guarded_against(*state, SUPERUSER);
}

static void runs_are_guarded_against_a_replica(void **state)
{
	runs_are_guarded_against(*state, REPLICA);
}

/* The close and the move may come in one statement, in either order, as close_and_move.sql does. */
static void a_run_may_leave_running_in_the_statement_that_closes(void **state)
{
	struct scenario *s = *state;

	take_run(s, "r", "w");
	sql(s->other,
	    "with closed as (update lease.run_attempts set finished_at = clock_timestamp(), "
	    "outcome = 'completed' returning run_id) "
	    "update lease.runs r set status = 'completed', state_version = state_version + 1, "
	    "finished_at = clock_timestamp() from closed where r.run_id = closed.run_id");
	assert_explained(s);
}

static int move_verb(PGconn *conn, void *arg, struct lease_error *reterr)
{
	PGresult *result = PQexec(conn,
				  "update lease.runs set status = 'pending', state_version = 3");
	const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

	(void)arg;
	reterr->sqlstate[0] = '\0';
	if (state)
		snprintf(reterr->sqlstate, sizeof(reterr->sqlstate), "%s", state);
	PQclear(result);
	return 0;
}

/* Two sessions that know nothing of liblease: one opens an attempt while the other moves the run. */
static void a_run_cannot_leave_running_behind_an_attempt_that_is_just_being_opened(void **state)
{
	struct scenario *s = *state;
	struct call call = call_of(move_verb, s->worker, NULL);

	sql(s->admin,
	    "insert into lease.runs (run_id, status, state_version) values ('r', 'running', 2)");
	sql(s->other,
	    "begin; insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
	    "values ('r', 1, 'w', clock_timestamp() + interval '1 h')");
	call_start(&call);
	wait_sql(s->admin,
		 "select wait_event_type is not distinct from 'Lock' or (state = 'idle' "
		 "and query like 'update lease.runs%%') from pg_stat_activity where pid = %d",
		 PQbackendPID(s->worker));
	sql(s->other, "commit");
	call_wait(&call);
	assert_explained(s);
}

/* -- the guards themselves -------------------------------------------------------------------------- */

static void guards_are_always_on_and_pin_their_search_path(void **state)
{
	struct scenario *s = *state;

	assert_sql(s->admin, "t",
		   "select bool_and(tgenabled = 'A') and count(*) >= 5 from pg_trigger "
		   "where not tgisinternal and tgname <> 'event_notify' "
		   "and tgrelid::regclass::text like 'lease.%%'");
	assert_sql(s->admin, "0",
		   "select count(*) from pg_proc where pronamespace = 'lease'::regnamespace "
		   "and not coalesce(proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']");
	/* no row trigger before a write: it would lock the row first, and cost a record of WAL */
	assert_sql(s->admin, "0",
		   "select count(*) from pg_trigger where not tgisinternal and tgtype & 3 = 3 "
		   "and tgrelid::regclass::text like 'lease.%%'");
	assert_sql(s->admin, "0",
		   "select count(*) from pg_constraint where connamespace = 'lease'::regnamespace "
		   "and contype = 'f' and (confdeltype <> 'a' or confupdtype <> 'a')");
	assert_sql(s->admin, "C",
		   "select string_agg(distinct c.collname, ',') from pg_attribute a "
		   "join pg_collation c on c.oid = a.attcollation "
		   "where a.attrelid = any (array['lease.runs', 'lease.run_attempts']::regclass[]) "
		   "and a.attname ~ '(_id|owner|status|outcome|code)$'");
}

static void guards_cannot_be_led_astray_by_a_search_path(void **state)
{
	struct scenario *s = *state;

	make_facts(s);
	sql(s->admin, "create schema evil; grant usage on schema evil to public; "
		      "create table evil.run_attempts (run_id text, finished_at timestamptz); "
		      "grant select on evil.run_attempts to public");
	sql(s->other, "set search_path = evil, pg_temp, lease; create temp table run_attempts "
		      "(run_id text, finished_at timestamptz)");
	sql_fails(s->other, "23001",
		  "update lease.runs set status = 'pending', "
		  "state_version = state_version + 1 where run_id = 'r'");
	sql_fails(s->other, "23001", "delete from lease.run_attempts");
}

static void the_owner_cannot_log_in(void **state)
{
	struct scenario *s = *state;

	assert_sql(
		s->admin, "6",
		"select count(*) from pg_roles where not rolcanlogin and not rolsuper and rolname in "
		"('lease_owner', 'lease_reader', 'lease_worker', 'lease_reconciler', "
		"'lease_archive', 'lease_remover')");
	assert_sql(s->admin, "lease_owner",
		   "select nspowner::regrole::text from pg_namespace where nspname = 'lease'");
}

/* -- roles ------------------------------------------------------------------------------------------- */

static void may_not(struct scenario *s, const char *statement)
{
	sql_fails(s->other, "42501", "%s", statement);
}

static void a_reader_only_looks(void **state)
{
	struct scenario *s = *state;
	struct lease_status status;
	struct lease_history *history;

	make_facts(s);
	sql(s->other, "set role lease_reader");
	assert_sql(s->other, "3", "select count(*) from lease.runs");
	assert_sql(s->other, "0", "select count(*) from lease.unexplained_runs");
	assert_granted(lease_read_status(s->other, &status, &last_error));
	assert_int_equal(status.attempts_open, 1);
	assert_granted(lease_list_attempts(s->other, "r", &history, &last_error));
	assert_int_equal(history->n_attempts, 2);
	lease_history_free(history);
	assert_granted(lease_check_database(s->other, 0, &last_error));
	may_not(s, "insert into lease.runs (run_id) values ('x')");
	may_not(s, "update lease.runs set updated_at = clock_timestamp()");
	may_not(s, "select from lease.runs for update");
	may_not(s, "delete from lease.run_attempts");
	may_not(s, "truncate lease.run_attempts");
	may_not(s, "update lease.run_attempts set heartbeat_at = clock_timestamp()");
	may_not(s, "update lease.schema_migrations set name = 'x'");
	may_not(s, "create table lease.x ()");
}

static void a_worker_uses_every_verb(void **state)
{
	struct scenario *s = *state;
	struct lease_token token;
	struct lease_grant grant;
	struct lease_history *history;

	sql(s->worker, "set role lease_worker");
	token = take_run(s, "r", "w1");
	assert_granted(renew(s->worker, &token, LONG, NULL));
	assert_granted(lease_renew_leases(s->worker, &token, 1, LONG, 0, &grant, (int[1]){ 0 },
					  &last_error));
	assert_granted(release(s->worker, &token, LONG, NULL));
	assert_refused(LEASE_NOT_BEFORE, claim(s->worker, "r", "w2", LONG, NULL));
	assert_granted(give_up(s->worker, "r", 0, NULL));
	token = take_run(s, "s", "w1");
	assert_granted(suspend(s->worker, &token, NULL));
	assert_granted(resume(s->worker, "s", 0, NULL));
	assert_granted(claim_next(s->worker, "w2", true, &grant));
	assert_granted(request_cancel(s->worker, "s", 0, NULL));
	assert_granted(finish(s->worker, &grant.token, LEASE_RUN_CANCELLED, "stopped", NULL));
	token = take_run(s, "t", "w1");
	assert_granted(finish(s->worker, &token, LEASE_RUN_COMPLETED, NULL, NULL));
	assert_granted(lease_list_attempts(s->worker, "s", &history, &last_error));
	lease_history_free(history);
	assert_granted(lease_check_database(s->worker, 0, &last_error));
	/* a leftover attempt of a pending run */
	sql(s->admin,
	    "insert into lease.runs (run_id) values ('left'); insert into lease.run_attempts "
	    "(run_id, attempt_no, owner, lease_expires_at) values ('left', 1, 'w', clock_timestamp())");
	assert_granted(claim(s->worker, "left", "w2", LONG, NULL));
	assert_explained(s);
}

static void a_worker_may_do_no_more(void **state)
{
	struct scenario *s = *state;

	make_facts(s);
	sql(s->other, "set role lease_worker");
	may_not(s, "delete from lease.runs");
	may_not(s, "delete from lease.run_attempts");
	may_not(s, "truncate lease.runs, lease.run_attempts");
	may_not(s, "update lease.runs set deadline_at = null");
	may_not(s, "update lease.runs set created_at = clock_timestamp()");
	may_not(s, "update lease.runs set tenant_id = 'x'");
	may_not(s, "update lease.run_attempts set owner = 'x'");
	may_not(s, "update lease.run_attempts set deadline_at = null");
	may_not(s, "update lease.run_attempts set started_at = clock_timestamp()");
	may_not(s,
		"insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at, finished_at, "
		"outcome) values ('idle', 1, 'w', clock_timestamp(), clock_timestamp(), 'completed')");
	may_not(s, "insert into lease.runs (run_id, state_version) values ('x', 9)");
	may_not(s,
		"insert into lease.schema_migrations (version, name, checksum) values (99, 'x', 'x')");
	may_not(s, "create table lease.x ()");
	may_not(s, "alter table lease.run_attempts disable trigger all");
	may_not(s, "drop view lease.unexplained_runs");
}

static void a_reconciler_reconciles(void **state)
{
	struct scenario *s = *state;
	struct lease_sweep_figures figures;

	for (int policy = LEASE_POLICY_RECORD; policy <= LEASE_POLICY_REQUEUE; policy++) {
		const char *run_id = lease_policy_name((enum lease_policy)policy);

		take_run(s, run_id, "w");
		end_lease(s, run_id);
		sql(s->admin,
		    "insert into lease.runs (run_id, deadline_at) "
		    "values ('late%d', clock_timestamp() - interval '1 s')",
		    policy);
		sql(s->other, "set role lease_reconciler");
		assert_granted(reconcile(s->other, (enum lease_policy)policy, 3, &figures));
		assert_int_equal(figures.closed, 1);
	}
	/* the second sweep failed what the first had left running */
	assert_sql(s->admin, "failed failed failed failed failed pending",
		   "select string_agg(status, ' ' order by status) from lease.runs");
	assert_explained(s);
}

static void a_reconciler_may_do_no_more(void **state)
{
	struct scenario *s = *state;

	make_facts(s);
	sql(s->other, "set role lease_reconciler");
	may_not(s, "insert into lease.run_attempts (run_id, attempt_no, owner, lease_expires_at) "
		   "values ('idle', 1, 'w', clock_timestamp())");
	may_not(s, "delete from lease.run_attempts");
	may_not(s, "truncate lease.run_attempts");
	may_not(s, "update lease.run_attempts set lease_expires_at = clock_timestamp()");
	may_not(s, "update lease.run_attempts set heartbeat_at = clock_timestamp()");
	may_not(s, "update lease.run_attempts set owner = 'x'");
	may_not(s, "insert into lease.runs (run_id) values ('x')");
	may_not(s, "delete from lease.runs");
	may_not(s, "update lease.runs set deadline_at = null");
	may_not(s, "update lease.runs set cancel_requested_at = clock_timestamp()");
	may_not(s, "update lease.runs set plan_version = 2");
	may_not(s, "update lease.schema_migrations set name = 'x'");
	may_not(s, "create table lease.x ()");
}

static void everybody_else_may_nothing(void **state)
{
	struct scenario *s = *state;

	sql(s->admin, "do $$begin create role lease_test_nobody; exception when duplicate_object "
		      "or unique_violation then null; end$$");
	sql(s->other, "set role lease_test_nobody");
	may_not(s, "select from lease.runs");
	may_not(s, "select from lease.unexplained_runs");
	may_not(s, "select lease.guard_run()");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(attempts_are_guarded_against_the_owner),
		store_test(attempts_are_guarded_against_a_superuser),
		store_test(attempts_are_guarded_against_a_replica),
		store_test(an_attempt_needs_its_run),
		store_test(runs_are_guarded_against_the_owner),
		store_test(runs_are_guarded_against_a_superuser),
		store_test(runs_are_guarded_against_a_replica),
		store_test(a_run_may_leave_running_in_the_statement_that_closes),
		store_test(a_run_cannot_leave_running_behind_an_attempt_that_is_just_being_opened),
		store_test_alone(guards_are_always_on_and_pin_their_search_path),
		store_test_alone(guards_cannot_be_led_astray_by_a_search_path),
		store_test(the_owner_cannot_log_in),
		store_test(a_reader_only_looks),
		store_test(a_worker_uses_every_verb),
		store_test(a_worker_may_do_no_more),
		store_test(a_reconciler_reconciles),
		store_test(a_reconciler_may_do_no_more),
		store_test(everybody_else_may_nothing),
	};

	return cmocka_run_group_tests_name("guards", tests, NULL, scenario_end);
}
