/*
 * What the tests of `leasectl exec` and `leasectl work` share: starting them, commands that leave
 * traces in a folder, and whether processes run, are stopped or have ended.
 *
 * Nothing is asserted about how long anything takes; what has to happen is waited for.
 */
#ifndef LEASE_TEST_WORKER_H
#define LEASE_TEST_WORKER_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scenario.h"

#define HELPER static __attribute__((unused))
#define WORDS_MAX 40

static struct scenario *s; /* the running test's */
static char *folder; /* for traces: $D in commands */
static char *through; /* conninfo that leasectl uses instead; NULL: the scenario's */
static const char *built = "leasectl"; /* in LEASE_BUILD */

HELPER int begin(void **state, int (*open)(void **state))
{
	int r = open(state);

	s = *state;
	folder = test_tmpdir();
	through = NULL;
	return r;
}

HELPER int begin_test(void **state)
{
	return begin(state, scenario_open);
}

HELPER int begin_test_alone(void **state)
{
	return begin(state, scenario_open_alone);
}

/* Whether the database lets anybody in. */
HELPER void set_connections(const char *allowed)
{
	PGconn *conn = test_connect("dbname=postgres");

	sql(conn, "alter database %s allow_connections %s", PQdb(s->admin), allowed);
	PQfinish(conn);
}

/* An outage: nobody gets in, and who is in is thrown out. */
HELPER void shut_out(void)
{
	set_connections("false");
	wait_sql(s->admin, "select count(*) = 0 from (select pg_terminate_backend(pid, 5000) "
			   "from pg_stat_activity where application_name = 'leasectl' and "
			   "datname = current_database()) k");
}

/* Guards whose leasectl is killed here end what they watch over by themselves. */
HELPER int end_test(void **state)
{
	processes_kill_all(state);
	set_connections("true");
	free(folder);
	return scenario_close(state);
}

#define worker_test(function) cmocka_unit_test_setup_teardown(function, begin_test, end_test)
/* One that changes the schema. */
#define worker_test_alone(function)                                                                \
	cmocka_unit_test_setup_teardown(function, begin_test_alone, end_test)

/* leasectl with these words; a NULL ends them. The command finds the folder as $D. */
HELPER void start_words(struct process *process, const char *const words[])
{
	char *program = test_program(built), *variable;
	const char *argv[WORDS_MAX] = { program };
	int n = 1;

	for (; *words; words++) {
		assert_true(n < WORDS_MAX - 3);
		argv[n++] = *words;
		if (n == 2) { /* after the command's name */
			argv[n++] = "--dbname";
			argv[n++] = through ? through : s->conninfo;
		}
	}
	if (asprintf(&variable, "D=%s", folder) < 0)
		abort();
	process_start(process, (char *const *)argv, ((char *[]){ variable, "LC_ALL=C", NULL }));
	free(variable);
	free(program);
}

#define start(process, ...) start_words(process, (const char *const[]){ __VA_ARGS__, NULL })

#define ends_with(code, process) ends_with_at(code, process, __FILE__, __LINE__)
HELPER void ends_with_at(int code, struct process *process, const char *file, int line)
{
	int ended = process_wait(process, TEST_PATIENCE_MS);

	if (ended == code)
		return;
	print_error("exit code %d instead of %d\nstdout: %s\nstderr: %s\n", ended, code,
		    process_output(process), process_errors(process));
	_fail(file, line);
}

/* leasectl exec --run RUN … -- bash -c SCRIPT; options end with NULL. */
#define start_exec(process, run_id, script, ...)                                                   \
	start(process, "exec", "--run", run_id, ##__VA_ARGS__, "--", "bash", "-c", script)
/* The same to its end. */
#define exec_ends(code, run_id, script, ...)                                                       \
	do {                                                                                       \
		struct process process_;                                                           \
		start_exec(&process_, run_id, script, ##__VA_ARGS__);                              \
		ends_with(code, &process_);                                                        \
	} while (0)

#define said(process, part) said_at(process, part, __FILE__, __LINE__)
HELPER void said_at(struct process *process, const char *part, const char *file, int line)
{
	if (strstr(process_errors(process), part))
		return;
	print_error("\"%s\" is not in:\n%s\n", part, process_errors(process));
	_fail(file, line);
}

/* As assert_run, without the owners, who have a random part: "completed v3 | 1 completed". */
#define run_is(run_id, expected)                                                                   \
	assert_sql(s->admin, expected,                                                             \
		   "select r.status || ' v' || r.state_version || coalesce(' ' || "                \
		   "r.terminal_error_code, '') || coalesce((select string_agg(' | ' || "           \
		   "a.attempt_no || ' ' || coalesce(a.outcome, 'open') || coalesce(' ' || "        \
		   "a.error_code, ''), '' order by a.attempt_no) from lease.run_attempts a "       \
		   "where a.run_id = r.run_id), '') from lease.runs r where r.run_id = '%s'",      \
		   run_id)

/* -- traces -------------------------------------------------------------------------------------- */

HELPER char *trace_path(const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s", folder, name) < 0)
		abort();
	return path;
}

HELPER bool trace_is_there(const char *name)
{
	char *path = trace_path(name);
	bool there = access(path, F_OK) == 0;

	free(path);
	return there;
}

HELPER bool trace_is_there_(void *name)
{
	return trace_is_there(name);
}

/* A trace that a command makes, whole when it shows up: written elsewhere and renamed. */
#define wait_trace(name) wait_trace_at(name, __FILE__, __LINE__)
HELPER void wait_trace_at(const char *name, const char *file, int line)
{
	if (wait_until(trace_is_there_, (void *)name, TEST_PATIENCE_MS))
		return;
	print_error("%s did not show up\n", name);
	_fail(file, line);
}

HELPER void make_trace(const char *name)
{
	char *path = trace_path(name);

	write_file(path, "");
	free(path);
}

/* In scripts: `mark NAME TEXT` leaves a trace, `wait_for NAME` waits for one. */
#define SCRIPT                                                                                     \
	"mark() { echo \"$2\" >$D/.$1 && mv $D/.$1 $D/$1; }\n"                                     \
	"wait_for() { until [ -e $D/$1 ]; do sleep 0.02; done; }\n"

/* The number that a trace holds: a process id. */
HELPER pid_t trace_number(const char *name)
{
	char *path = trace_path(name), *content;
	pid_t number;

	wait_trace(name);
	content = read_file(path);
	number = (pid_t)atoi(content);
	free(content);
	free(path);
	assert_true(number > 1);
	return number;
}

/* -- processes ----------------------------------------------------------------------------------- */

/* A command with a child, and a child in a session of its own whose parent has ended. */
#define FAMILY                                                                                     \
	SCRIPT                                                                                     \
	"trap '' TERM HUP\n"                                                                       \
	"(while :; do sleep 0.05; done) & mark child $!\n"                                         \
	"setsid bash -c 'trap \"\" TERM HUP; (echo $BASHPID >$D/.gone && mv $D/.gone $D/gone;"     \
	" while :; do sleep 0.05; done) &'\n"                                                      \
	"mark command $$\n"                                                                        \
	"while :; do sleep 0.05; done\n"

struct family {
	pid_t pids[3];
};

HELPER struct family find_family(void)
{
	return (struct family){ { trace_number("command"), trace_number("child"),
				  trace_number("gone") } };
}

HELPER bool family_has_ended(void *argument)
{
	const struct family *family = argument;

	return !process_state(family->pids[0]) && !process_state(family->pids[1]) &&
	       !process_state(family->pids[2]);
}

HELPER bool family_is_stopped(void *argument)
{
	const struct family *family = argument;

	return process_state(family->pids[0]) == 'T' && process_state(family->pids[1]) == 'T' &&
	       process_state(family->pids[2]) == 'T';
}

HELPER bool family_runs(void *argument)
{
	const struct family *family = argument;

	for (int i = 0; i < 3; i++)
		if (!process_state(family->pids[i]) || process_state(family->pids[i]) == 'T')
			return false;
	return true;
}

/* Submits run r and begins a family under it; hands the family back when it is all there. */
#define start_family(process, ...)                                                                 \
	(submit(s->worker, "r"), start_exec(process, "r", FAMILY, ##__VA_ARGS__), find_family())
/* The same with a script, which says by the trace "ready" that it is there. */
#define start_ready(process, script, ...)                                                          \
	(submit(s->worker, "r"), start_exec(process, "r", script, ##__VA_ARGS__),                  \
	 wait_trace("ready"))

#define wait_family(condition, family)                                                             \
	wait_family_at(family_##condition, family, #condition, __FILE__, __LINE__)
HELPER void wait_family_at(bool (*condition)(void *), struct family *family, const char *what,
			   const char *file, int line)
{
	if (wait_until(condition, family, TEST_PATIENCE_MS))
		return;
	print_error("not \"%s\":", what);
	for (int i = 0; i < 3; i++)
		print_error(" %d is '%c'", family->pids[i],
			    process_state(family->pids[i]) ? process_state(family->pids[i]) : '-');
	print_error("\n");
	_fail(file, line);
}

#endif
