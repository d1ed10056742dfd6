/*
 * What the tests stand on: databases, statements, processes, notifications, files, waiting.
 *
 * Promises: every database has a unique name and all migrations; every process, database and
 * folder made here is gone when the program ends, however the test ended (a crash leaves them to
 * tests/run.sh). Nothing waits without a deadline, and nothing sleeps for luck.
 *
 * A helper that cannot do its work fails the running cmocka test, with the caller's line. cmocka
 * can do that on the main thread only: in other threads use plain libpq and hand results back.
 *
 * The cluster is found by PGHOST, PGPORT and PGUSER: tests/run.sh sets them; by hand:
 *	LEASE_BUILD=build tests/cluster.sh with build/tests/store/test_x
 */
#ifndef LEASE_TEST_HARNESS_H
#define LEASE_TEST_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>
#include <libpq-fe.h>

/* It jumps out of the test, which cmocka's own declaration does not tell the compiler. */
void _fail(const char *file, int line) __attribute__((noreturn));

/* The deadline of helpers that take none, in milliseconds: long, because only a failure waits. */
enum { TEST_PATIENCE_MS = 20000 };

/* Databases. */

/*
 * Creates a database with all migrations applied and recorded; returns its conninfo string, to be
 * freed by the caller. The first call in a program makes a template, later ones copy it (~50 ms).
 */
char *test_database_create(void);

/* The same without any migration: no schema "lease". */
char *test_database_create_empty(void);

/* A copy of one of these, which must have no connection. */
char *test_database_copy(const char *conninfo);

/* Drops it now, also under open connections; NULL is fine. Does not free the string. */
void test_database_drop(const char *conninfo);

/* An open connection, NOTICEs silenced; the caller closes it with PQfinish. */
#define test_connect(conninfo) test_connect_at(conninfo, __FILE__, __LINE__)
PGconn *test_connect_at(const char *conninfo, const char *file, int line);

/*
 * Statements, built as by printf (so a literal % is written %%). Each fails the test with the
 * server's message, SQLSTATE and the statement if the server refuses it.
 */

/* One or several statements whose results do not matter. */
#define sql(conn, ...) sql_at(conn, __FILE__, __LINE__, __VA_ARGS__)
void sql_at(PGconn *conn, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The first value of the first row, to be freed by the caller; NULL for SQL NULL; no row fails. */
#define sql_text(conn, ...) sql_text_at(conn, __FILE__, __LINE__, __VA_ARGS__)
char *sql_text_at(PGconn *conn, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* The same as a number; NULL and anything but a whole number fail. */
#define sql_number(conn, ...) sql_number_at(conn, __FILE__, __LINE__, __VA_ARGS__)
long long sql_number_at(PGconn *conn, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Fails the test unless the first value is exactly `expected` (NULL expects SQL NULL). */
#define assert_sql(conn, expected, ...)                                                            \
	assert_sql_at(conn, expected, __FILE__, __LINE__, __VA_ARGS__)
void assert_sql_at(PGconn *conn, const char *expected, const char *file, int line,
		   const char *format, ...) __attribute__((format(printf, 5, 6)));

/*
 * Expects a refusal with this SQLSTATE ("23505"). Inside a transaction of the caller the refused
 * statement is undone alone (savepoint), so that the transaction goes on.
 */
#define sql_fails(conn, sqlstate, ...) sql_fails_at(conn, sqlstate, __FILE__, __LINE__, __VA_ARGS__)
void sql_fails_at(PGconn *conn, const char *sqlstate, const char *file, int line,
		  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Asks again and again until the first value is 't'; fails after TEST_PATIENCE_MS. */
#define wait_sql(conn, ...) wait_sql_at(conn, __FILE__, __LINE__, __VA_ARGS__)
void wait_sql_at(PGconn *conn, const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* Waiting. */

/* Milliseconds on the monotonic clock. */
long long test_now_ms(void);

/* Polls every few milliseconds; false when the time is over and the condition still does not hold. */
bool wait_until(bool (*condition)(void *), void *argument, int timeout_ms);

/* Processes. */

/* Anybody's, by /proc/PID/stat (proc(5)). 0: it has ended, or only waits to be reaped. */
char process_state(pid_t pid);
/* 0: it has ended. */
pid_t process_parent(pid_t pid);

/*
 * A child of the test, with stdout and stderr caught in files. Start it on the main thread: it is
 * killed by the kernel when the thread that started it ends.
 */
struct process {
	pid_t pid;
	int number; /* the harness's own */
};

/*
 * argv[0] is a path or looked up in PATH; extra_env is NULL or a NULL-terminated list of "NAME=value"
 * added to the environment ("NAME" alone removes it). A program that cannot be executed fails the test.
 */
#define process_start(process, argv, extra_env)                                                    \
	process_start_at(process, argv, extra_env, __FILE__, __LINE__)
void process_start_at(struct process *process, char *const argv[], char *const extra_env[],
		      const char *file, int line);

/* Sends a signal; nothing happens when the process was waited for already. */
void process_signal(struct process *process, int signal_number);

/* True once it ended; never blocks. */
bool process_ended(struct process *process);

/*
 * The exit code, or 128 + signal. Still running after timeout_ms: the test fails, and its output
 * is shown. May be called again.
 */
#define process_wait(process, timeout_ms) process_wait_at(process, timeout_ms, __FILE__, __LINE__)
int process_wait_at(struct process *process, int timeout_ms, const char *file, int line);

/* What it wrote so far; the string lives until the next call for this process or the teardown. */
const char *process_output(struct process *process); /* stdout */
const char *process_errors(struct process *process); /* stderr */

/* Waits until its stdout or stderr holds the text; fails when it ends before, or after timeout_ms. */
#define process_wait_text(process, text, timeout_ms)                                               \
	process_wait_text_at(process, text, timeout_ms, __FILE__, __LINE__)
void process_wait_text_at(struct process *process, const char *text, int timeout_ms,
			  const char *file, int line);

/* SIGKILL for whatever still runs; a cmocka teardown (returns 0). Happens at exit, too. */
int processes_kill_all(void **state);

/* "LEASE_BUILD/name": the path of a built program, to be freed by the caller. */
char *test_program(const char *name);
/* "LEASE_SOURCE/name", to be freed by the caller. */
char *test_source(const char *name);

/* What a service tells its manager (sd_notify). */

struct notify_socket {
	int fd;
	char *path; /* for NOTIFY_SOCKET= */
	char *record; /* all messages since open or forget, each with a newline at its end */
	size_t length;
};

void notify_open(struct notify_socket *notify);
void notify_close(struct notify_socket *notify); /* may be called twice */

/* The next message, cut to size; false when none came in time. */
bool notify_next(struct notify_socket *notify, char *message, size_t size, int timeout_ms);

/* Waits until a line that begins with this text ("READY=1", "STATUS=") came since open or forget. */
bool notify_saw(struct notify_socket *notify, const char *text, int timeout_ms);

/* The newest value of "NAME" among what came so far, to be freed by the caller; NULL if none. */
char *notify_value(struct notify_socket *notify, const char *name);

/* Takes in what has come and forgets all of it. */
void notify_forget(struct notify_socket *notify);

/* Files. */

/* A new, empty folder at each call, removed at exit; the path is to be freed by the caller. */
char *test_tmpdir(void);

void write_file(const char *path, const char *content);
/* Under another name first: whoever reads it meanwhile finds all of the old one or of the new. */
void replace_file(const char *path, const char *content);
char *read_file(const char *path); /* to be freed by the caller; fails if unreadable */

#endif
