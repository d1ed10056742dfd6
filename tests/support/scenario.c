/*
 * See scenario.h. The proxy's thread and the calls' threads use no cmocka: they keep what came of
 * it and the main thread judges.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "machine.h"
#include "scenario.h"

struct lease_error last_error;

static void *checked(void *memory)
{
	if (!memory)
		fail_msg("out of memory");
	return memory;
}

/* -- threads: what outlives a test that failed must not write to that test's stack --------------- */

struct running {
	struct call call;
	struct sweeper *sweeper; /* NULL: a call */
	pthread_t thread;
	struct running *next;
};

static struct running *all_running;

static bool threads_left(void)
{
	return all_running != NULL;
}

static struct running *start_thread(void *(*body)(void *), const struct running *given)
{
	struct running *running = checked(malloc(sizeof(*running)));

	*running = *given;
	running->next = all_running;
	if (pthread_create(&running->thread, NULL, body, running) != 0)
		fail_msg("no thread");
	all_running = running;
	return running;
}

/* Joins it and takes it from the list; the caller frees it. */
static void end_thread(struct running *running)
{
	struct running **place = &all_running;
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 3L * TEST_PATIENCE_MS / 1000;
	if (pthread_timedjoin_np(running->thread, NULL, &until) != 0)
		fail_msg("a thread does not end");
	while (*place != running)
		place = &(*place)->next;
	*place = running->next;
}

static void free_sweeper(struct sweeper *sweeper)
{
	lease_sweep_free(sweeper->sweep);
	PQfinish(sweeper->conn);
	free(sweeper);
}

static void join_threads_left(void)
{
	while (all_running) {
		struct running *running = all_running;

		if (running->sweeper)
			atomic_store(&running->sweeper->stop, true);
		end_thread(running);
		if (running->sweeper)
			free_sweeper(running->sweeper);
		free(running);
	}
}

/* -- databases ---------------------------------------------------------------------------------- */

/* One database serves all tests of a program, emptied after each; some need one of their own. */
static char *shared_database;

static void connect_all(struct scenario *s)
{
	s->admin = test_connect(s->conninfo);
	s->worker = test_connect(s->conninfo);
	s->other = test_connect(s->conninfo);
}

int scenario_open(void **state)
{
	struct scenario *s = checked(calloc(1, sizeof(*s)));

	if (!shared_database)
		shared_database = test_database_create();
	s->conninfo = shared_database;
	connect_all(s);
	*state = s;
	return 0;
}

int scenario_open_alone(void **state)
{
	struct scenario *s = checked(calloc(1, sizeof(*s)));

	s->conninfo = test_database_create();
	connect_all(s);
	*state = s;
	return 0;
}

/*
 * Only a superuser who changes the schema gets past the guards; they are as before afterwards.
 * What a migration has filled in stays: schema_migrations.
 */
void sql_unguarded(struct scenario *s, const char *statements)
{
	char *literal = PQescapeLiteral(s->admin, statements, strlen(statements));

	sql(s->admin,
	    "begin; do $$declare t text; g record; begin "
	    "create temp table guards on commit drop as select tgrelid::regclass::text as t, tgname "
	    "from pg_trigger where not tgisinternal and tgenabled = 'A' and tgrelid in "
	    "(select oid from pg_class where relnamespace = 'lease'::regnamespace); "
	    "create temp table filled on commit drop as select format('lease.%%I', relname) as t "
	    "from pg_class where relnamespace = 'lease'::regnamespace and relkind = 'r' "
	    "and relname <> 'schema_migrations'; "
	    "for t in select f.t from filled f loop "
	    "execute format('alter table %%s disable trigger all', t); end loop; "
	    "execute %s; "
	    "for t in select f.t from filled f loop "
	    "execute format('alter table %%s enable trigger all', t); end loop; "
	    "for g in select * from guards loop "
	    "execute format('alter table %%s enable always trigger %%I', g.t, g.tgname); end loop; "
	    "end$$; commit",
	    literal);
	PQfreemem(literal);
}

void scenario_empty(struct scenario *s)
{
	sql_unguarded(s, "do $do$declare t text; begin for t in select f.t from filled f loop "
			 "execute format('delete from %s', t); end loop; end$do$");
}

void let_ended_runs_age(struct scenario *s, const char *by)
{
	char *statements;

	if (asprintf(&statements,
		     "update lease.node_executions set started_at = started_at - interval '%s', "
		     "finished_at = finished_at - interval '%s' where run_id in (select run_id "
		     "from lease.runs where finished_at is not null); "
		     "update lease.run_attempts set started_at = started_at - interval '%s', "
		     "heartbeat_at = heartbeat_at - interval '%s', "
		     "lease_expires_at = lease_expires_at - interval '%s', "
		     "finished_at = finished_at - interval '%s' where run_id in (select run_id "
		     "from lease.runs where finished_at is not null); "
		     "update lease.run_events set at = at - interval '%s' where run_id in "
		     "(select run_id from lease.runs where finished_at is not null); "
		     "update lease.runs set created_at = created_at - interval '%s', "
		     "updated_at = updated_at - interval '%s', "
		     "finished_at = finished_at - interval '%s' where finished_at is not null",
		     by, by, by, by, by, by, by, by, by, by) < 0)
		abort();
	sql_unguarded(s, statements);
	free(statements);
}

int scenario_close(void **state)
{
	struct scenario *s = *state;

	/* a test that failed may have left a thread in the middle of a verb */
	if (threads_left())
		sql(s->admin, "select pg_terminate_backend(pid) from pg_stat_activity "
			      "where datname = current_database() and pid <> pg_backend_pid()");
	join_threads_left();
	PQfinish(s->worker);
	PQfinish(s->other);
	if (s->conninfo == shared_database) {
		scenario_empty(s);
		PQfinish(s->admin);
	} else {
		PQfinish(s->admin);
		test_database_drop(s->conninfo);
		free(s->conninfo);
	}
	free(s);
	return 0;
}

int scenario_end(void **state)
{
	(void)state;
	free(shared_database);
	shared_database = NULL;
	return 0;
}

/* -- verbs in short form ------------------------------------------------------------------------ */

static const char *name_of_result(int result)
{
	return result < 0 ? lease_errno_name(result) : lease_refusal_name(result);
}

void assert_result_at(int expected, int actual, const char *what, const char *file, int line)
{
	if (actual == expected)
		return;
	print_error("%s: %s instead of %s", what, name_of_result(actual), name_of_result(expected));
	if (actual < 0)
		print_error(" (SQLSTATE \"%s\": %s)", last_error.sqlstate, last_error.message);
	print_error("\n");
	_fail(file, line);
}

int submit(PGconn *conn, const char *run_id)
{
	return lease_submit(conn, &(struct lease_submission){ .run_id = run_id }, NULL, NULL,
			    &last_error);
}

int claim(PGconn *conn, const char *run_id, const char *owner, int64_t ttl, struct lease_grant *ret)
{
	struct lease_claim claim = { .run_id = run_id, .owner = owner, .ttl = ttl };
	struct lease_grant grant;

	return lease_mark_running(conn, &claim, ret ? ret : &grant, &last_error);
}

int claim_next(PGconn *conn, const char *owner, bool take_over, struct lease_grant *ret)
{
	struct lease_claim claim = { .owner = owner, .ttl = LONG, .take_over = take_over };
	struct lease_grant grant;

	return lease_claim_next(conn, &claim, ret ? ret : &grant, &last_error);
}

int renew(PGconn *conn, const struct lease_token *token, int64_t ttl, struct lease_grant *ret)
{
	return lease_renew_lease(conn, token, ttl, 0, ret, &last_error);
}

int release(PGconn *conn, const struct lease_token *token, int64_t delay, struct lease_change *ret)
{
	return lease_release_lease_for_retry(
		conn, &(struct lease_release){ .token = *token, .delay = delay }, ret, &last_error);
}

int suspend(PGconn *conn, const struct lease_token *token, struct lease_change *ret)
{
	return lease_suspend(conn, token, 0, ret, &last_error);
}

int finish(PGconn *conn, const struct lease_token *token, enum lease_run_status status,
	   const char *error_code, struct lease_change *ret)
{
	return lease_set_terminal_status(conn,
					 &(struct lease_finish){ .token = token,
								 .status = status,
								 .error_code = error_code },
					 ret, &last_error);
}

int give_up(PGconn *conn, const char *run_id, int64_t version, struct lease_change *ret)
{
	return lease_set_terminal_status(conn,
					 &(struct lease_finish){ .run_id = run_id,
								 .status = LEASE_RUN_FAILED,
								 .expected_version = version },
					 ret, &last_error);
}

int resume(PGconn *conn, const char *run_id, int64_t version, struct lease_change *ret)
{
	return lease_resume(conn, run_id, version, 0, ret, &last_error);
}

int request_cancel(PGconn *conn, const char *run_id, int64_t version, struct lease_change *ret)
{
	return lease_request_cancel(conn, run_id, version, 0, ret, &last_error);
}

int reconcile(PGconn *conn, enum lease_policy policy, int max_losses,
	      struct lease_sweep_figures *ret)
{
	struct lease_sweep_options options;

	lease_sweep_options_init(&options);
	options.policy = policy;
	options.max_lease_losses = max_losses;
	return lease_reconcile_expired_leases(conn, &options, NULL, ret, &last_error);
}

/* The verbs of a fencing token's owner. */
static int perform_as_owner(PGconn *conn, const struct lease_command *c, struct performed *ret)
{
	struct lease_token token = token_of(c->run_id, c->attempt_no, c->owner);

	switch (c->kind) {
	case COMMAND_RELEASE:
		return lease_release_lease_for_retry(
			conn,
			&(struct lease_release){
				.token = token, .delay = c->delay, .error_code = c->error_code },
			&ret->change, &last_error);
	case COMMAND_SUSPEND:
		return suspend(conn, &token, &ret->change);
	case COMMAND_FINISH:
		return finish(conn, &token, c->to, c->error_code, &ret->change);
	case COMMAND_START_NODE:
		return lease_node_start(conn,
					&(struct lease_node_start){ .token = token,
								    .node_id = c->node_id,
								    .operation_id = c->operation_id,
								    .input_ref = c->content_ref },
					&ret->execution, &last_error);
	case COMMAND_FINISH_NODE:
		return lease_node_finish(
			conn,
			&(struct lease_node_finish){ .token = token,
						     .node_id = c->node_id,
						     .execution_no = c->execution_no,
						     .status = c->execution_status,
						     .normalized_error = c->error_code,
						     .output_ref = c->content_ref },
			&ret->change, &last_error);
	case COMMAND_RECORD_CHECKPOINT:
		return lease_checkpoint_record(
			conn,
			&(struct lease_checkpoint){ .token = token,
						    .checkpoint_id = c->checkpoint_id,
						    .content_ref = c->content_ref,
						    .expected_version = c->expected_version },
			&ret->change, &last_error);
	case COMMAND_CHANGE_PLAN:
		return lease_plan_change(conn, &token, c->expected_version, 0, &ret->change,
					 &last_error);
	default:
		return renew(conn, &token, c->ttl, &ret->grant);
	}
}

int perform(PGconn *conn, const struct lease_command *c, struct performed *ret)
{
	int r;

	*ret = (struct performed){ .change.changed = true };
	switch (c->kind) {
	case COMMAND_MARK_RUNNING:
		r = claim(conn, c->run_id, c->owner, c->ttl, &ret->grant);
		break;
	case COMMAND_RECONCILE:
		r = reconcile(conn, c->policy, c->max_losses, &ret->figures);
		break;
	case COMMAND_RESUME:
		r = resume(conn, c->run_id, c->expected_version, &ret->change);
		break;
	case COMMAND_GIVE_UP:
		r = lease_set_terminal_status(
			conn,
			&(struct lease_finish){ .run_id = c->run_id,
						.status = c->to,
						.error_code = c->error_code,
						.expected_version = c->expected_version },
			&ret->change, &last_error);
		break;
	case COMMAND_REQUEST_CANCEL:
		r = request_cancel(conn, c->run_id, c->expected_version, &ret->change);
		break;
	default:
		r = perform_as_owner(conn, c, ret);
		break;
	}
	ret->changed = ret->change.changed;
	return r;
}

struct lease_token take_run(struct scenario *s, const char *run_id, const char *owner)
{
	struct lease_grant grant;

	assert_granted(submit(s->worker, run_id));
	assert_granted(claim(s->worker, run_id, owner, LONG, &grant));
	return grant.token;
}

static void register_content(struct scenario *s, const char *content_ref)
{
	struct lease_content content = { .size_bytes = 7, .schema_version = 1 };

	snprintf(content.content_ref, sizeof(content.content_ref), "%s", content_ref);
	snprintf(content.hash, sizeof(content.hash), "sha256:%064d", 7);
	snprintf(content.media_type, sizeof(content.media_type), "text/plain");
	assert_granted(lease_content_register(s->worker, &content, NULL, &last_error));
}

static int32_t start_node(struct scenario *s, const struct lease_token *token, const char *node_id,
			  const char *operation_id, const char *input_ref)
{
	struct lease_node_start start = { .token = *token,
					  .node_id = node_id,
					  .operation_id = operation_id,
					  .input_ref = input_ref,
					  .trace_id = "trace" };
	struct lease_node_execution execution = { 0 };

	assert_granted(lease_node_start(s->worker, &start, &execution, &last_error));
	return execution.execution_no;
}

void live_through(struct scenario *s, const char *run_id)
{
	struct lease_token token = take_run(s, run_id, "first:1");
	struct lease_node_finish failed = {
		.token = token,
		.node_id = "fetch",
		.status = LEASE_EXECUTION_FAILED,
		.normalized_error = "timeout",
		.error_message = "no \"answer\"\n\tfrom \\ M\u00fcnchen \u2603"
	};
	struct lease_node_finish succeeded = { .node_id = "fetch",
					       .status = LEASE_EXECUTION_SUCCEEDED };
	struct lease_checkpoint checkpoint = { 0 };
	char operation_id[LEASE_ID_MAX + 1], own[LEASE_ID_MAX + 1];

	snprintf(operation_id, sizeof(operation_id), "pay-%.200s", run_id);
	snprintf(own, sizeof(own), "file:///%.200s", run_id);
	register_content(s, own);
	register_content(s, "file:///shared");
	failed.execution_no = start_node(s, &token, "fetch", operation_id, "file:///shared");
	assert_granted(lease_node_finish(s->worker, &failed, NULL, &last_error));
	start_node(s, &token, "fetch", operation_id, NULL);
	end_lease(s, run_id);
	assert_granted(reconcile(s->worker, LEASE_POLICY_REQUEUE, 0, NULL));
	assert_granted(claim(s->worker, run_id, "second:2", LONG, &(struct lease_grant){ 0 }));
	token = succeeded.token = token_of(run_id, 2, "second:2");
	succeeded.execution_no = start_node(s, &token, "fetch", operation_id, NULL);
	succeeded.output_ref = own;
	assert_granted(lease_node_finish(s->worker, &succeeded, NULL, &last_error));
	checkpoint = (struct lease_checkpoint){ .token = token,
						.checkpoint_id = operation_id,
						.content_ref = own,
						.expected_version = 4 };
	assert_granted(lease_checkpoint_record(s->worker, &checkpoint, NULL, &last_error));
	assert_granted(lease_plan_change(s->worker, &token, 5, 0, NULL, &last_error));
	start_node(s, &token, "left", NULL, NULL);
	assert_granted(finish(s->worker, &token, LEASE_RUN_FAILED, "boom", NULL));
}

struct lease_token token_of(const char *run_id, int32_t attempt_no, const char *owner)
{
	struct lease_token token = { .attempt_no = attempt_no };

	snprintf(token.run_id, sizeof(token.run_id), "%s", run_id);
	snprintf(token.owner, sizeof(token.owner), "%s", owner);
	return token;
}

/* -- where a run stands ------------------------------------------------------------------------ */

void end_lease(struct scenario *s, const char *run_id)
{
	assert_sql(
		s->admin, "1",
		"with ended as (update lease.run_attempts "
		"set lease_expires_at = clock_timestamp() - interval '1 s' "
		"where run_id = '%s' and finished_at is null returning 1) select count(*) from ended",
		run_id);
}

char *run_text(struct scenario *s, const char *run_id)
{
	return sql_text(
		s->admin,
		"select r.status || ' v' || r.state_version "
		"|| coalesce(' ' || r.terminal_error_code, '') "
		"|| coalesce((select string_agg(format(' | %%s %%s %%s', a.attempt_no, a.owner, "
		"coalesce(a.outcome, 'open')) || coalesce(' ' || a.error_code, ''), '' "
		"order by a.attempt_no) from lease.run_attempts a where a.run_id = r.run_id), '') "
		"from lease.runs r where r.run_id = '%s'",
		run_id);
}

void assert_run_at(struct scenario *s, const char *run_id, const char *expected, const char *file,
		   int line)
{
	char *actual = run_text(s, run_id);

	if (strcmp(actual, expected) != 0) {
		print_error("run %s: \"%s\" instead of \"%s\"\n", run_id, actual, expected);
		_fail(file, line);
	}
	free(actual);
}

char *run_bytes(struct scenario *s, const char *run_id)
{
	return sql_text(
		s->admin,
		"select (select format('%%s %%s %%s', r.ctid, r.xmin, r) from lease.runs r "
		"where run_id = '%s') || coalesce((select string_agg(format(' | %%s %%s %%s', "
		"a.ctid, a.xmin, a), '' order by a.attempt_no) from lease.run_attempts a "
		"where run_id = '%s'), '')",
		run_id, run_id);
}

void assert_untouched_at(struct scenario *s, const char *run_id, char *before, const char *file,
			 int line)
{
	char *now = run_bytes(s, run_id);

	if (strcmp(before, now) != 0) {
		print_error("run %s was written to:\n%s\n%s\n", run_id, before, now);
		_fail(file, line);
	}
	free(now);
	free(before);
}

/* -- other threads ------------------------------------------------------------------------------ */

struct call call_of(int (*verb)(PGconn *conn, void *arg, struct lease_error *reterr), PGconn *conn,
		    void *arg)
{
	return (struct call){ .verb = verb, .conn = conn, .arg = arg };
}

static void *run_call(void *arg)
{
	struct running *running = arg;
	struct call *call = &running->call;

	call->result = call->verb(call->conn, call->arg, &call->error);
	return NULL;
}

void call_start(struct call *call)
{
	call->running = start_thread(run_call, &(struct running){ .call = *call });
}

int call_wait(struct call *call)
{
	struct running *running = call->running;

	end_thread(running);
	call->result = running->call.result;
	call->error = last_error = running->call.error;
	free(running);
	return call->result;
}

void wait_blocked(struct scenario *s, int sessions)
{
	wait_sql(s->admin,
		 "select count(*) = %d from pg_stat_activity "
		 "where datname = current_database() and wait_event_type = 'Lock'",
		 sessions);
}

void wait_blocked_session(struct scenario *s, PGconn *conn)
{
	wait_sql(
		s->admin,
		"select wait_event_type is not distinct from 'Lock' from pg_stat_activity where pid = %d",
		PQbackendPID(conn));
}

/* Where the sweep has nothing to do it is woken often enough to see the stop. */
static void wait_sweeper(struct sweeper *sweeper, int events)
{
	struct pollfd fd = {
		.fd = PQsocket(sweeper->conn),
		.events = (short)((events & LEASE_POLL_READ ? POLLIN : 0) |
				  (events & LEASE_POLL_WRITE ? POLLOUT : 0)),
	};
	struct timespec now;
	int64_t left;

	if (events) {
		poll(&fd, 1, 1000);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	left = lease_sweep_wake_at(sweeper->sweep) -
	       ((int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000);
	left = left / 1000 + 1;
	poll(NULL, 0, left < 1 ? 1 : left > 20 ? 20 : (int)left);
}

static void *run_sweeper(void *arg)
{
	struct sweeper *sweeper = ((struct running *)arg)->sweeper;
	struct lease_sweep_figures figures;

	for (;;) {
		struct lease_error error;
		int events;

		if (atomic_load(&sweeper->stop))
			lease_sweep_stop(sweeper->sweep);
		events = lease_sweep_poll(sweeper->sweep, sweeper->conn, &error);
		lease_sweep_read_figures(sweeper->sweep, &figures);
		atomic_store(&sweeper->passes, figures.passes);
		if (events < 0) {
			if (atomic_load(&sweeper->errors) == 0)
				sweeper->error = error;
			atomic_fetch_add(&sweeper->errors, 1);
		}
		if (atomic_load(&sweeper->stop) && events <= 0)
			return NULL;
		wait_sweeper(sweeper, events < 0 ? 0 : events);
	}
}

struct sweeper *sweeper_start(struct scenario *s, const struct lease_sweep_options *options,
			      const struct lease_sweep_callbacks *callbacks)
{
	struct sweeper *sweeper = checked(calloc(1, sizeof(*sweeper)));

	sweeper->conn = test_connect(s->conninfo);
	PQsetnonblocking(sweeper->conn, 1);
	assert_granted(lease_sweep_new(options, callbacks, &sweeper->sweep, &last_error));
	sweeper->running = start_thread(run_sweeper, &(struct running){ .sweeper = sweeper });
	return sweeper;
}

struct wanted_count {
	atomic_llong *count;
	long long least;
};

static bool has_reached(void *arg)
{
	struct wanted_count *wanted = arg;

	return atomic_load(wanted->count) >= wanted->least;
}

static void wait_for_count(atomic_llong *count, long long least, const char *what)
{
	if (!wait_until(has_reached, &(struct wanted_count){ count, least }, TEST_PATIENCE_MS))
		fail_msg("the sweeper made no %lld %s", least, what);
}

void wait_for_passes(struct sweeper *sweeper, int more)
{
	wait_for_count(&sweeper->passes, atomic_load(&sweeper->passes) + more, "passes");
}

void wait_for_failures(struct sweeper *sweeper, int failures)
{
	wait_for_count(&sweeper->errors, failures, "failures");
}

int sweeper_stop(struct sweeper *sweeper, struct lease_sweep_figures *ret)
{
	struct running *running = sweeper->running;
	int errors;

	atomic_store(&sweeper->stop, true);
	end_thread(running);
	errors = (int)sweeper->errors;
	last_error = sweeper->error;
	if (ret)
		lease_sweep_read_figures(sweeper->sweep, ret);
	free_sweeper(sweeper);
	free(running);
	return errors;
}

unsigned random_below(unsigned *seed, unsigned below)
{
	*seed = *seed * 1664525u + 1013904223u;
	return (unsigned)((uint64_t)(*seed >> 4) * below >> 28);
}

int test_rounds(int rounds)
{
	const char *given = getenv("LEASE_TEST_ROUNDS");

	return given && atoi(given) > 0 ? atoi(given) : rounds;
}

/* -- a proxy that cuts -------------------------------------------------------------------------- */

/* One direction of a connection: what was read and not yet passed on. */
struct stream {
	char bytes[1 << 16];
	size_t n;
};

struct passage {
	struct proxy *proxy;
	int client, server;
	struct stream out, back;
	bool started; /* the startup packet, which has no type byte, is through */
	bool silent; /* answers are thrown away, and the server's end is not passed on */
	bool ended; /* the server's side, in silence */
};

static bool write_all(int fd, const char *bytes, size_t n)
{
	while (n > 0) {
		ssize_t written = send(fd, bytes, n, MSG_NOSIGNAL);

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return false;
		bytes += written;
		n -= (size_t)written;
	}
	return true;
}

static bool read_more(int fd, struct stream *stream)
{
	ssize_t n;

	if (stream->n == sizeof(stream->bytes))
		return false;
	n = recv(fd, stream->bytes + stream->n, sizeof(stream->bytes) - stream->n, 0);
	if (n <= 0)
		return false;
	stream->n += (size_t)n;
	return true;
}

static void consume(struct stream *stream, size_t n)
{
	memmove(stream->bytes, stream->bytes + n, stream->n - n);
	stream->n -= n;
}

/* The length of the message at `at`, 0 when it is not whole yet. */
static size_t message_length(const struct stream *stream, size_t at, bool typed)
{
	const unsigned char *bytes = (const unsigned char *)stream->bytes + at + (typed ? 1 : 0);
	size_t length, left = stream->n - at;

	if (left < (typed ? 5u : 4u))
		return 0;
	length = (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | bytes[3];
	length += typed ? 1 : 0;
	return length <= left ? length : 0;
}

/* The server's answer to the batch has come whole: its last message is ReadyForQuery. */
static bool wait_ready(struct passage *p)
{
	for (;;) {
		size_t at = 0, length;

		while ((length = message_length(&p->back, at, true)) > 0) {
			if (p->back.bytes[at] == 'Z')
				return true;
			at += length;
		}
		consume(&p->back, at);
		if (!read_more(p->server, &p->back))
			return false;
	}
}

/* Passes the batch that ends at `end` on, or cuts. False: the connection is over. */
static bool pass_batch(struct passage *p, size_t end)
{
	struct proxy *proxy = p->proxy;
	int number = atomic_fetch_add(&proxy->batches, 1) + 1;
	enum cut how = atomic_load(&proxy->how);

	if (how == CUT_NEVER || number != atomic_load(&proxy->cut_at)) {
		if (!write_all(p->server, p->out.bytes, end))
			return false;
		consume(&p->out, end);
		return true;
	}
	if (how != CUT_REQUEST) {
		write_all(p->server, p->out.bytes, end);
		wait_ready(p);
	}
	consume(&p->out, end);
	p->silent = how == CUT_SILENCE;
	p->back.n = 0;
	atomic_store(&proxy->cut, true);
	return p->silent;
}

/* Passes on whole batches only; what has no Sync yet waits, but for the messages of the start. */
static bool pass_out(struct passage *p)
{
	size_t at = 0, length;

	while ((length = message_length(&p->out, at, p->started)) > 0) {
		char type = p->started ? p->out.bytes[at] : 0;

		p->started = true;
		at += length;
		if (type == 'S') {
			if (!pass_batch(p, at))
				return false;
			at = 0;
		} else if (type == 0 || type == 'p' || type == 'Q' || type == 'X') {
			if (!write_all(p->server, p->out.bytes, at))
				return false;
			consume(&p->out, at);
			at = 0;
		}
	}
	return true;
}

static void pass_connection(struct passage *p)
{
	while (!atomic_load(&p->proxy->stop)) {
		struct pollfd fds[2] = { { .fd = p->client, .events = POLLIN },
					 { .fd = p->ended ? -1 : p->server, .events = POLLIN } };

		if (poll(fds, 2, 20) <= 0)
			continue;
		if (fds[0].revents && (!read_more(p->client, &p->out) || !pass_out(p)))
			return;
		if (!fds[1].revents)
			continue;
		p->ended = !read_more(p->server, &p->back);
		if (p->ended && !p->silent)
			return;
		if (!p->silent && !write_all(p->client, p->back.bytes, p->back.n))
			return;
		p->back.n = 0;
	}
}

static int connect_server(const struct proxy *proxy)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, proxy->server, sizeof(address.sun_path));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static void *run_proxy(void *arg)
{
	struct proxy *proxy = arg;
	struct passage *p = malloc(sizeof(*p));

	while (p && !atomic_load(&proxy->stop)) {
		struct pollfd fd = { .fd = proxy->listener, .events = POLLIN };

		if (poll(&fd, 1, 20) <= 0)
			continue;
		memset(p, 0, sizeof(*p));
		p->proxy = proxy;
		p->client = accept4(proxy->listener, NULL, NULL, SOCK_CLOEXEC);
		p->server = connect_server(proxy);
		if (p->client >= 0 && p->server >= 0)
			pass_connection(p);
		close(p->client);
		close(p->server);
	}
	free(p);
	return NULL;
}

void proxy_open(struct proxy *proxy, const struct scenario *s)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *port = PQport(s->admin);
	int n;

	memset(proxy, 0, sizeof(*proxy));
	proxy->folder = test_tmpdir();
	n = snprintf(proxy->server, sizeof(proxy->server), "%s/.s.PGSQL.%s", PQhost(s->admin),
		     port);
	assert_true(n > 0 && (size_t)n < sizeof(proxy->server));
	n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/.s.PGSQL.%s", proxy->folder,
		     port);
	assert_true(n > 0 && (size_t)n < sizeof(address.sun_path));
	proxy->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (proxy->listener < 0 ||
	    bind(proxy->listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(proxy->listener, 8) < 0)
		fail_msg("%s: %s", address.sun_path, strerror(errno));
	if (asprintf(&proxy->conninfo, "host='%s' port=%s user=%s dbname=%s", proxy->folder, port,
		     PQuser(s->admin), PQdb(s->admin)) < 0)
		fail_msg("out of memory");
	if (pthread_create(&proxy->thread, NULL, run_proxy, proxy) != 0)
		fail_msg("no thread");
}

void proxy_close(struct proxy *proxy)
{
	atomic_store(&proxy->stop, true);
	pthread_join(proxy->thread, NULL); /* it looks at `stop` every few milliseconds */
	close(proxy->listener);
	free(proxy->conninfo);
	free(proxy->folder);
}

void proxy_arm(struct proxy *proxy, enum cut how, int at)
{
	atomic_store(&proxy->batches, 0);
	atomic_store(&proxy->cut, false);
	atomic_store(&proxy->cut_at, at);
	atomic_store(&proxy->how, how);
}

/* -- round trips -------------------------------------------------------------------------------- */

void round_trips_start(struct round_trips *trips, PGconn *conn)
{
	*trips = (struct round_trips){ .conn = conn };
	trips->file = checked(open_memstream(&trips->text, &trips->size));
	PQtrace(conn, trips->file);
	PQsetTraceFlags(conn, PQTRACE_SUPPRESS_TIMESTAMPS);
}

/* Each batch ends with a Sync; a query of the simple protocol would be a round trip as well. */
int round_trips_stop(struct round_trips *trips)
{
	int n = 0;

	PQuntrace(trips->conn);
	fclose(trips->file);
	for (const char *line = trips->text; line; line = strchr(line, '\n')) {
		char message[16];

		line += *line == '\n' ? 1 : 0;
		if (sscanf(line, "F\t%*d\t%15s", message) == 1)
			n += strcmp(message, "Sync") == 0 || strcmp(message, "Query") == 0;
	}
	free(trips->text);
	return n;
}
