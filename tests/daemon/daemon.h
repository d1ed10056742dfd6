/*
 * What the end-to-end tests of the daemon have in common: configurations, the daemon as a process,
 * runs with leases.
 *
 * All waiting is for conditions; TEST_PATIENCE_MS is a deadline, not a measure. TEST_FILTER='case_0*'
 * in the environment runs some tests of a program only.
 */
#ifndef LEASE_TEST_DAEMON_H
#define LEASE_TEST_DAEMON_H

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cluster.h"
#include "harness.h"
#include "lease.h"

#define HELPER static __attribute__((unused))

/* A formatted string that lives until the end of the program's test: freed by nobody, reused. */
HELPER __attribute__((format(printf, 1, 2))) const char *text(const char *format, ...)
{
	static char buffers[16][8192];
	static unsigned next;
	char *buffer = buffers[next++ % 16];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(buffer, sizeof(buffers[0]), format, arguments);
	va_end(arguments);
	return buffer;
}

/* The end of a log: cmocka cuts its messages, and a cut one hides which test failed. */
HELPER const char *tail(const char *log)
{
	size_t length = strlen(log), shown = 600;

	return length > shown ? log + length - shown : log;
}

/* ---- configurations ---- */

/* Writes a configuration into a new folder; the path is to be freed by the caller. */
HELPER char *write_config(const char *content)
{
	char *folder = test_tmpdir(), *path;

	if (asprintf(&path, "%s/lease-reconciler.yaml", folder) < 0)
		abort();
	free(folder);
	write_file(path, content);
	chmod(path, 0600);
	return path;
}

/* An entry of `databases`; `more` are further lines, indented by four blanks, or "". */
HELPER const char *entry(const char *name, const char *conninfo, const char *more)
{
	return text("  - name: %s\n    conninfo: \"%s\"\n%s", name, conninfo, more);
}

/* Longer than any test waits: what a lock holds up is not ended by a timeout of its own. */
#define LONG_TIMEOUTS "statement_timeout: 10m\nlock_timeout: 5m\nnetwork_timeout: 20m\n"

/* ---- the daemon ---- */

struct daemon {
	struct process process;
	struct notify_socket notify;
	char *config_path;
};

/* Starts it with a notification socket; `config` is the file's content. */
HELPER void daemon_start(struct daemon *daemon, const char *config)
{
	char *program = test_program("lease-reconciler");
	char *environment[2] = { NULL, NULL };

	daemon->config_path = write_config(config);
	notify_open(&daemon->notify);
	if (asprintf(&environment[0], "NOTIFY_SOCKET=%s", daemon->notify.path) < 0)
		abort();
	process_start(&daemon->process,
		      ((char *[]){ program, "--config", daemon->config_path, NULL }), environment);
	free(environment[0]);
	free(program);
}

HELPER void daemon_start_ready(struct daemon *daemon, const char *config)
{
	daemon_start(daemon, config);
	if (!notify_saw(&daemon->notify, "READY=1", TEST_PATIENCE_MS))
		fail_msg("not ready: %s", tail(process_errors(&daemon->process)));
}

HELPER void daemon_done(struct daemon *daemon)
{
	notify_close(&daemon->notify);
	free(daemon->config_path);
	daemon->config_path = NULL;
}

/* SIGTERM, and it must leave with 0. The two seconds that it has are counted by the test's caller. */
HELPER void daemon_stop(struct daemon *daemon)
{
	process_signal(&daemon->process, SIGTERM);
	if (process_wait(&daemon->process, TEST_PATIENCE_MS) != 0)
		fail_msg("exit code %d: %s", process_wait(&daemon->process, 0),
			 tail(process_errors(&daemon->process)));
	daemon_done(daemon);
}

HELPER void daemon_wait_log(struct daemon *daemon, const char *what)
{
	process_wait_text(&daemon->process, what, TEST_PATIENCE_MS);
}

HELPER unsigned count_text(const char *where, const char *what)
{
	unsigned n = 0;

	while ((where = strstr(where, what)) != NULL) {
		n++;
		where += strlen(what);
	}
	return n;
}

HELPER unsigned daemon_count_log(struct daemon *daemon, const char *what)
{
	return count_text(process_errors(&daemon->process), what);
}

struct wanted_status {
	struct daemon *daemon;
	const char *what;
};

HELPER bool status_says(void *argument)
{
	struct wanted_status *wanted = argument;
	char *status = notify_value(&wanted->daemon->notify, "STATUS");
	bool found = status && strstr(status, wanted->what);

	free(status);
	return found;
}

/* Waits until the newest STATUS= holds the text. */
HELPER void daemon_wait_status(struct daemon *daemon, const char *what)
{
	struct wanted_status wanted = { daemon, what };
	char *status;

	if (wait_until(status_says, &wanted, TEST_PATIENCE_MS))
		return;
	status = notify_value(&daemon->notify, "STATUS");
	fail_msg("STATUS never said '%s': %.200s; log: %s", what, status ? status : "(none)",
		 tail(process_errors(&daemon->process)));
}

/* Runs the program to its end; output and errors are found in *process. */
HELPER int run_program(struct process *process, char *const arguments[])
{
	char *program = test_program("lease-reconciler");
	char *argv[8] = { program };

	for (int i = 0; i < 6 && arguments[i]; i++)
		argv[i + 1] = arguments[i];
	process_start(process, argv, NULL);
	free(program);
	return process_wait(process, TEST_PATIENCE_MS);
}

HELPER void assert_one_line(const char *written)
{
	size_t length = strlen(written);

	if (length < 2 || strchr(written, '\n') != written + length - 1)
		fail_msg("not one line: '%s'", tail(written));
}

HELPER void assert_holds(const char *where, const char *what)
{
	if (!strstr(where, what))
		fail_msg("'%s' is not in: %s", what, tail(where));
}

HELPER void assert_lacks(const char *where, const char *what)
{
	if (strstr(where, what))
		fail_msg("'%s' is in: %s", what, tail(strstr(where, what)));
}

/* ---- runs ---- */

/*
 * Adds `n` running runs "NAME-00001" … whose first attempt's lease ends `ends_ms` from now (negative:
 * it is over). The lease was taken `ttl_ms` before its end.
 */
HELPER void add_leases(PGconn *conn, const char *name, int n, int ends_ms, int ttl_ms)
{
	sql(conn,
	    "begin;"
	    "insert into lease.runs (run_id, status, state_version)"
	    "  select '%s-' || lpad(i::text, 5, '0'), 'running', 2 from generate_series(1, %d) i;"
	    "insert into lease.run_attempts (run_id, attempt_no, owner, started_at, heartbeat_at,"
	    "  lease_expires_at)"
	    "  select '%s-' || lpad(i::text, 5, '0'), 1, 'w:' || i, at, at,"
	    "    at + %d * interval '1 ms'"
	    "  from generate_series(1, %d) i,"
	    "    (select clock_timestamp() + (%d - %d) * interval '1 ms' as at) x;"
	    "commit",
	    name, n, name, ttl_ms, n, ends_ms, ttl_ms);
}

struct wanted_closed {
	struct process *process;
	PGconn *conn;
	int n;
};

HELPER bool are_closed(void *argument)
{
	struct wanted_closed *wanted = argument;

	if (process_ended(wanted->process))
		fail_msg("ended with %d; log: %s", process_wait(wanted->process, 0),
			 tail(process_errors(wanted->process)));
	return sql_number(wanted->conn, "select count(*) from lease.run_attempts"
					" where outcome = 'lease_expired'") == wanted->n;
}

/* Waits until exactly so many attempts are closed as lease_expired. */
HELPER void wait_closed(struct process *process, PGconn *conn, int n)
{
	struct wanted_closed wanted = { process, conn, n };

	if (!wait_until(are_closed, &wanted, TEST_PATIENCE_MS))
		fail_msg("never %d attempts closed; log: %s", n, tail(process_errors(process)));
}

/* Keeps a row of its own for each close of an attempt, whoever closes it. */
HELPER void record_closes(PGconn *conn)
{
	sql(conn, "create table public.closes (run_id text, attempt_no int);"
		  "grant insert on public.closes to public;"
		  "create function public.record_close() returns trigger language plpgsql as"
		  " 'begin insert into public.closes values (new.run_id, new.attempt_no);"
		  "  return null; end';"
		  "create trigger record_close after update on lease.run_attempts for each row"
		  " when (old.finished_at is null and new.finished_at is not null)"
		  " execute function public.record_close()");
}

/* So many attempts were closed since record_closes, each of them once. */
HELPER void assert_closed_once(PGconn *conn, int n)
{
	assert_sql(conn, text("%d %d", n, n),
		   "select count(*) || ' ' || count(distinct (run_id, attempt_no))"
		   " from public.closes");
}

/* How many lines of a daemon's log tell of one closed attempt. */
HELPER unsigned lines_of_closed(struct daemon *daemon)
{
	return daemon_count_log(daemon, " closed as lease_expired, ");
}

/* Runs and attempts agree, whatever happened. */
HELPER void assert_explained(PGconn *conn)
{
	assert_sql(conn, "0", "select count(*) from lease.unexplained_runs");
}

/* Waits until `n` connections of daemons to this database wait for a lock. */
HELPER void wait_daemon_blocked(PGconn *conn, int n)
{
	wait_sql(conn,
		 "select count(*) = %d from pg_stat_activity where datname = current_database()"
		 " and application_name = 'lease-reconciler' and wait_event_type = 'Lock'",
		 n);
}

HELPER void wait_daemon_gone(PGconn *conn)
{
	wait_sql(conn,
		 "select count(*) = 0 from pg_stat_activity where datname = current_database()"
		 " and application_name = 'lease-reconciler'");
}

/* ---- a socket that takes connections and never answers ---- */

struct black_hole {
	int fd;
	char *folder; /* for host= */
};

HELPER void black_hole_open(struct black_hole *hole)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	hole->folder = test_tmpdir();
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/.s.PGSQL.5432", hole->folder);
	hole->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (hole->fd < 0 || bind(hole->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(hole->fd, 64) < 0)
		fail_msg("no black hole at %s", address.sun_path);
}

HELPER void black_hole_close(struct black_hole *hole)
{
	close(hole->fd);
	free(hole->folder);
}

#endif
