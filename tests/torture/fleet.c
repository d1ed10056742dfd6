/*
 * See fleet.h. One thread; what takes long (the server's stop and start) is waited for here, while
 * the workers and the daemons go on by themselves.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "fleet.h"
#include "harness.h"
#include "proxy.h"

enum {
	INTERVAL_MS = 1000, /* of the daemons' scans */
	TEND_MS = 10,
	ENDLESS_MS = 60000, /* a lease and an amnesty end before that */
	LINES = 20, /* of the server's log, at most */
	STORIES = 10, /* told in full; of further ones the finding alone */
	STOP_MS = 5000, /* longest time from SIGTERM to a daemon's end */
};

struct member {
	bool is_daemon;
	int route; /* its number in the fleet, too */
	char name[32];
	char *file; /* a worker's log, a daemon's configuration */
	char *config; /* what stands in that */
	long generation;
	struct process process;
	bool runs;
	struct notify_socket notify; /* a daemon's */
	bool ready;
	long long start_at, continue_at; /* 0: not */
};

struct fleet {
	uint64_t random; /* for the workers' seeds */
	struct cluster cluster;
	char *conninfo; /* superuser, straight to the server */
	const char *database;
	struct torture_proxy *proxy;
	struct checker *checker;
	bool frozen; /* the server: whoever asks it waits */
	int workers, daemons;
	struct member *members;
	char **logs;
};

static char *__attribute__((format(printf, 1, 2))) text_of(const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		abort();
	va_end(arguments);
	return text;
}

static int members_of(const struct fleet *fleet)
{
	return fleet->workers + fleet->daemons;
}

/* -- members ------------------------------------------------------------------------------------ */

static char *conninfo_of(const struct fleet *fleet, const struct member *member)
{
	return text_of("host=127.0.0.1 port=%d user=%s dbname=%s application_name=%s "
		       "sslmode=disable gssencmode=disable connect_timeout=2",
		       torture_proxy_port(fleet->proxy, member->route),
		       member->is_daemon ? "torture_reconciler" : "torture_worker", fleet->database,
		       member->name);
}

static void write_config(struct member *member)
{
	replace_file(member->file, member->config);
}

/* Of four reloads one switches the amnesty off; the others may change how long it lasts. */
static void choose_policy(struct fleet *fleet, struct member *member, uint32_t detail)
{
	static const char *const policies[] = { "record", "fail", "requeue", "requeue" };
	static const char *const amnesties[] = { "amnesty: off\n",
						 "amnesty_after: 1s\namnesty_grace: 3s\n",
						 "amnesty_after: 1s\namnesty_grace: 3s\n",
						 "amnesty_after: 700ms\namnesty_grace: 2100ms\n" };
	const char *policy = policies[detail % 4];
	char *conninfo = conninfo_of(fleet, member), losses[64] = "";

	if (strcmp(policy, "requeue") == 0)
		snprintf(losses, sizeof(losses), "max_lease_losses: %u\n", detail / 4 % 5);
	free(member->config);
	member->config = text_of(
		"interval: %dms\norphan_interval: 1s\npolicy: %s\n%s%sbatch_size: %u\n"
		"connect_timeout: 1s\nstatement_timeout: 700ms\nlock_timeout: 300ms\n"
		"network_timeout: 1200ms\nreconnect_min: 20ms\nreconnect_max: 500ms\n"
		"log:\n  target: stderr\ndatabases:\n  - name: torture\n    conninfo: \"%s\"\n",
		INTERVAL_MS, policy, losses, amnesties[detail / 2048 % 4], 1 + detail / 32 % 50,
		conninfo);
	free(conninfo);
}

static void start_worker(struct fleet *fleet, struct member *member)
{
	char *program = test_program("tests/torture/torture-worker");
	char *conninfo = conninfo_of(fleet, member), name[32], seed[24];

	snprintf(name, sizeof(name), "%d.%ld", member->route, member->generation);
	snprintf(seed, sizeof(seed), "%llu", (unsigned long long)random_next(&fleet->random) >> 1);
	process_start(&member->process,
		      ((char *[]){ program, name, seed, member->file, conninfo, NULL }), NULL);
	free(program);
	free(conninfo);
}

static void start_daemon(struct member *member)
{
	char *program = test_program("lease-reconciler");
	char *environment = text_of("NOTIFY_SOCKET=%s", member->notify.path);

	write_config(member);
	notify_forget(&member->notify);
	process_start(&member->process, ((char *[]){ program, "--config", member->file, NULL }),
		      ((char *[]){ environment, NULL }));
	free(program);
	free(environment);
}

static void start(struct fleet *fleet, struct member *member)
{
	member->generation++;
	member->start_at = 0;
	member->ready = false;
	if (member->is_daemon)
		start_daemon(member);
	else
		start_worker(fleet, member);
	member->runs = true;
}

static void kill_member(struct member *member, int restart_ms)
{
	if (member->runs) {
		process_signal(&member->process, SIGKILL);
		process_wait(&member->process, TEST_PATIENCE_MS);
	}
	member->runs = false;
	member->continue_at = 0;
	member->start_at = test_now_ms() + restart_ms;
}

static void go_on(struct member *member)
{
	member->continue_at = 0;
	if (member->runs)
		process_signal(&member->process, SIGCONT);
}

/* Of a process that ended: by a signal or a code of its own, with what it said last. */
static void report_end(struct fleet *fleet, struct member *member)
{
	const char *errors = process_errors(&member->process);
	size_t length = strlen(errors);
	char *what = text_of("%s ended by itself with %d: %s", member->name,
			     process_wait(&member->process, 0),
			     length > 2000 ? errors + length - 2000 : errors);

	checker_report(fleet->checker, "fleet", NULL, what);
	free(what);
	member->runs = false;
	member->start_at = test_now_ms();
}

void fleet_tend(struct fleet *fleet)
{
	long long now = test_now_ms();

	for (int i = 0; i < members_of(fleet); i++) {
		struct member *member = &fleet->members[i];

		if (member->runs && process_ended(&member->process))
			report_end(fleet, member);
		if (member->start_at && now >= member->start_at)
			start(fleet, member);
		if (member->continue_at && now >= member->continue_at)
			go_on(member);
		if (member->is_daemon && !member->ready)
			member->ready = notify_saw(&member->notify, "READY=1", 0);
		else if (member->is_daemon)
			notify_forget(&member->notify);
	}
	if (!fleet->frozen)
		checker_look(fleet->checker);
	poll(NULL, 0, TEND_MS);
}

static void tend_for(struct fleet *fleet, int duration_ms)
{
	long long until = test_now_ms() + duration_ms;

	do
		fleet_tend(fleet);
	while (test_now_ms() < until);
}

/* -- faults ------------------------------------------------------------------------------------- */

static bool stop_member(struct member *member, int duration_ms)
{
	long long until = test_now_ms() + duration_ms;

	if (!member->runs)
		return false;
	process_signal(&member->process, SIGSTOP);
	if (until > member->continue_at)
		member->continue_at = until;
	return true;
}

/* Calls `function` (terminate or cancel) on the member's sessions, or gives one's process. */
static bool hit_session(struct fleet *fleet, const struct member *member, const char *function)
{
	PGconn *conn = checker_connection(fleet->checker);
	char *sql = text_of("SELECT %s FROM pg_stat_activity WHERE application_name = '%s'",
			    function, member->name);
	PGresult *result = conn ? PQexec(conn, sql) : NULL;
	bool found = PQntuples(result) > 0;

	if (found && strcmp(function, "pid") == 0)
		found = kill((pid_t)atol(PQgetvalue(result, 0, 0)), SIGKILL) == 0;
	PQclear(result);
	free(sql);
	return found;
}

static bool stop_server(struct fleet *fleet, int duration_ms)
{
	cluster_stop(&fleet->cluster, "immediate");
	tend_for(fleet, duration_ms);
	cluster_start(&fleet->cluster);
	return true;
}

static bool freeze_server(struct fleet *fleet, int duration_ms)
{
	fleet->frozen = true;
	cluster_signal(&fleet->cluster, SIGSTOP);
	tend_for(fleet, duration_ms);
	cluster_signal(&fleet->cluster, SIGCONT);
	fleet->frozen = false;
	return true;
}

/* A daemon that has not yet said that it is ready would die of the signal, as any program. */
static bool reload(struct member *member)
{
	if (!member->runs || !member->ready)
		return false;
	process_signal(&member->process, SIGHUP);
	return true;
}

static bool bad_reload(struct fleet *fleet, struct member *member)
{
	bool done;

	if (!member->runs || !member->ready)
		return false;
	write_file(member->file, "policy: perhaps\n");
	done = reload(member);
	tend_for(fleet, 100);
	write_config(member);
	return done;
}

static bool change_policy(struct fleet *fleet, struct member *member, uint32_t detail)
{
	choose_policy(fleet, member, detail);
	write_config(member);
	return reload(member);
}

bool fleet_hit(struct fleet *fleet, const struct fault *fault)
{
	struct member *member = &fleet->members[fault->target];
	int route = member->route;
	uint32_t detail = fault->detail;

	switch (fault->kind) {
	case FAULT_WORKER_KILL:
	case FAULT_DAEMON_KILL:
		kill_member(member, fault->duration_ms);
		return true;
	case FAULT_WORKER_STOP:
	case FAULT_DAEMON_STOP:
		return stop_member(member, fault->duration_ms);
	case FAULT_SESSION_TERMINATE:
		return hit_session(fleet, member, "pg_terminate_backend(pid)");
	case FAULT_SESSION_CANCEL:
		return hit_session(fleet, member, "pg_cancel_backend(pid)");
	case FAULT_BACKEND_KILL:
		return hit_session(fleet, member, "pid");
	case FAULT_SERVER_STOP:
		return stop_server(fleet, fault->duration_ms);
	case FAULT_SERVER_FREEZE:
		return freeze_server(fleet, fault->duration_ms);
	case FAULT_CUT:
		torture_proxy_cut(fleet->proxy, route, detail % 2);
		return true;
	case FAULT_DELAY:
		torture_proxy_delay(fleet->proxy, route, 1 + (int)(detail % 300),
				    fault->duration_ms);
		return true;
	case FAULT_TRICKLE:
		torture_proxy_trickle(fleet->proxy, route, fault->duration_ms);
		return true;
	case FAULT_SILENCE:
		torture_proxy_silence(fleet->proxy, route,
				      detail % 2 ? PROXY_TO_SERVER : PROXY_TO_CLIENT,
				      fault->duration_ms, detail / 2 % 2);
		return true;
	case FAULT_LOST_ANSWER:
		torture_proxy_lose_answers(fleet->proxy, route, 1 + (int)(detail % 3),
					   fault->duration_ms);
		return true;
	case FAULT_RELOAD:
		return reload(member);
	case FAULT_BAD_RELOAD:
		return bad_reload(fleet, member);
	case FAULT_POLICY:
		return change_policy(fleet, member, detail);
	case FAULT_KINDS:
		break;
	}
	return false;
}

/* -- the end ------------------------------------------------------------------------------------ */

/* Two scans, and as long as an amnesty may last that began with the last fault. */
static int patience_ms(struct fleet *fleet)
{
	return 2 * INTERVAL_MS +
	       (int)sql_number(
		       checker_connection(fleet->checker),
		       "select coalesce(max(extract(epoch from after + grace) * 1000)::int, 0)"
		       " from lease.heartbeat");
}

void fleet_heal(struct fleet *fleet)
{
	char *overdue;

	torture_proxy_heal(fleet->proxy);
	for (int i = 0; i < members_of(fleet); i++) {
		go_on(&fleet->members[i]);
		if (!fleet->members[i].runs)
			start(fleet, &fleet->members[i]);
	}
	for (long long until = test_now_ms() + TEST_PATIENCE_MS;
	     !checker_connection(fleet->checker) && test_now_ms() < until;)
		fleet_tend(fleet);
	tend_for(fleet, patience_ms(fleet));
	/*
	 * The workers go on, so there are always some that ended just now. A slow machine may still
	 * make gaps between beats: what an amnesty holds, or held until just now, is not overdue.
	 */
	overdue = sql_text(
		checker_connection(fleet->checker),
		"select string_agg(format('%%s, attempt %%s', run_id, attempt_no), '; ')"
		" from lease.run_attempts a, (select clock_timestamp() as now) c"
		" where finished_at is null and lease_expires_at < c.now - %1$d * interval '1 ms'"
		" and not exists (select from lease.heartbeat h"
		"   where a.lease_expires_at > h.protect_from"
		"     and (h.amnesty_until > c.now - %1$d * interval '1 ms'"
		"          or h.beat_at + h.after < c.now))",
		2 * INTERVAL_MS);
	if (overdue)
		checker_report(fleet->checker, "left open after the faults", NULL, overdue);
	free(overdue);
}

/* Waits, and gives whether there are still leases that hold, by themselves or by an amnesty. */
static bool leases_hold(struct fleet *fleet)
{
	fleet_tend(fleet);
	return sql_number(checker_connection(fleet->checker),
			  "select count(*) from lease.run_attempts a where a.finished_at is null"
			  " and (a.lease_expires_at > clock_timestamp()"
			  "   or exists (select from lease.heartbeat h"
			  "     where a.lease_expires_at > h.protect_from"
			  "       and (h.amnesty_until > clock_timestamp()"
			  "            or h.beat_at + h.after < clock_timestamp())))") > 0;
}

static bool nothing_is_open(void *argument)
{
	struct fleet *fleet = argument;

	fleet_tend(fleet);
	return sql_number(checker_connection(fleet->checker),
			  "select count(*) from lease.run_attempts where finished_at is null") == 0;
}

static void stop_daemons(struct fleet *fleet)
{
	for (int i = fleet->workers; i < members_of(fleet); i++) {
		struct member *member = &fleet->members[i];

		process_signal(&member->process, SIGTERM);
		if (process_wait(&member->process, STOP_MS) != 0)
			report_end(fleet, member);
		member->runs = false;
	}
}

/*
 * What the server refused: a guard of the schema that had to step in, a deadlock, an internal error
 * mean that something else went wrong before. The log's lines begin with the SQLSTATE.
 */
static void judge_server_log(struct fleet *fleet)
{
	static const char *const wrong[] = { "22", "23", "42", "0A", "40P01", "XX" };
	char *path = text_of("%s/log", fleet->cluster.folder), *log = read_file(path), *next;
	int n = 0;

	for (char *line = log; line && *line; line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (!strstr(line, "ERROR:") && !strstr(line, "PANIC:"))
			continue;
		for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
			if (strncmp(line, wrong[i], strlen(wrong[i])) == 0 && n++ < LINES)
				checker_report(fleet->checker, "server log", NULL, line);
	}
	free(log);
	free(path);
}

void fleet_stop(struct fleet *fleet)
{
	long long until = test_now_ms() + ENDLESS_MS;

	for (int i = 0; i < fleet->workers; i++) {
		kill_member(&fleet->members[i], 0);
		fleet->members[i].start_at = 0;
	}
	/* 27_left_open tells what is left when they have ended; an amnesty without end is found so */
	while (leases_hold(fleet) && test_now_ms() < until)
		;
	wait_until(nothing_is_open, fleet, 2 * INTERVAL_MS);
	stop_daemons(fleet);
	judge_server_log(fleet);
}

char *const *fleet_logs(const struct fleet *fleet, int *ret_n)
{
	*ret_n = fleet->workers;
	return fleet->logs;
}

/* -- the beginning ------------------------------------------------------------------------------ */

static void make_cluster(struct fleet *fleet)
{
	PGconn *conn;

	cluster_prepare(&fleet->cluster);
	fleet->cluster.fsync = true;
	cluster_shell(&fleet->cluster, "exec \"$1\" start \"$2\" -c log_line_prefix='%e %m %a '"
				       " -c log_min_messages=error -c log_checkpoints=off");
	cluster_use(&fleet->cluster);
	fleet->conninfo = test_database_create();
	conn = test_connect(fleet->conninfo);
	sql(conn, "create role torture_worker login in role lease_worker;"
		  "create role torture_reconciler login in role lease_reconciler");
	PQfinish(conn);
	fleet->database = strstr(fleet->conninfo, "dbname=") + strlen("dbname=");
}

static void make_member(struct fleet *fleet, int i, const char *folder)
{
	struct member *member = &fleet->members[i];

	member->route = i;
	member->is_daemon = i >= fleet->workers;
	snprintf(member->name, sizeof(member->name), "%s-%d",
		 member->is_daemon ? "daemon" : "worker", i);
	member->file = text_of("%s/%s.%s", folder, member->name,
			       member->is_daemon ? "yaml" : "log");
	if (member->is_daemon) {
		notify_open(&member->notify);
		choose_policy(fleet, member, 2 + 4 * 3 + 2048);
	} else {
		fleet->logs[i] = member->file;
		write_file(member->file, "");
	}
}

struct fleet *fleet_start(uint64_t seed, const char *seed_text, int workers, int daemons)
{
	struct fleet *fleet = calloc(1, sizeof(*fleet));
	char *folder = test_tmpdir(), *server;

	if (!fleet ||
	    !(fleet->members = calloc((size_t)workers + (size_t)daemons, sizeof(struct member))) ||
	    !(fleet->logs = calloc((size_t)workers, sizeof(*fleet->logs))))
		abort();
	fleet->random = seed;
	fleet->workers = workers;
	fleet->daemons = daemons;
	make_cluster(fleet);
	fleet->checker = checker_new(fleet->conninfo, seed_text, STORIES);
	checker_prepare(fleet->checker);
	server = text_of("%s/.s.PGSQL.5432", fleet->cluster.folder);
	fleet->proxy = torture_proxy_start(server, members_of(fleet));
	for (int i = 0; i < members_of(fleet); i++) {
		make_member(fleet, i, folder);
		start(fleet, &fleet->members[i]);
	}
	for (int i = workers; i < members_of(fleet); i++)
		while (!fleet->members[i].ready)
			fleet_tend(fleet);
	free(folder);
	free(server);
	return fleet;
}

struct checker *fleet_checker(struct fleet *fleet)
{
	return fleet->checker;
}

void fleet_free(struct fleet *fleet)
{
	processes_kill_all(NULL);
	torture_proxy_stop(fleet->proxy);
	checker_free(fleet->checker);
	for (int i = 0; i < members_of(fleet); i++) {
		notify_close(&fleet->members[i].notify);
		free(fleet->members[i].file);
		free(fleet->members[i].config);
	}
	free(fleet->members);
	free(fleet->logs);
	free(fleet->conninfo);
	cluster_remove(&fleet->cluster);
	free(fleet);
}
