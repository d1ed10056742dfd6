/*
 * The tests' own ground: see harness.h for what it promises.
 *
 * All state is in one static struct, because it is what the program must clean up at its end. It
 * must never touch a database, process or file that it did not make itself.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "migrations.h"

/* Any number, the same in all test programs: roles belong to the cluster, so one migrates at a time. */
#define TEST_MIGRATION_LOCK "7236471"

enum { POLL_MS = 4, PIECE = 512, END = 1500 };

struct child {
	pid_t pid;
	bool ended;
	int status;
	char *output;
	char *errors;
};

static struct {
	pid_t owner; /* a forked child must not clean up */
	char *folder;
	unsigned int folders;
	struct child *children;
	int children_count;
	char template_name[64];
	char (*databases)[64];
	size_t databases_count;
} harness;

static void __attribute__((noreturn, format(printf, 3, 4)))
fail_at(const char *file, int line, const char *format, ...)
{
	char text[4096];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	/* In pieces: cmocka cuts a longer one, and the newline before its verdict with it. */
	for (const char *at = text; *at; at += strnlen(at, PIECE))
		print_error("%.*s", PIECE, at);
	print_error("\n");
	_fail(file, line);
	abort();
}

static void *checked(void *memory)
{
	if (!memory)
		fail_at(__FILE__, __LINE__, "out of memory");
	return memory;
}

static char *__attribute__((format(printf, 1, 0)))
format_text(const char *format, va_list arguments)
{
	char *text;

	if (vasprintf(&text, format, arguments) < 0)
		fail_at(__FILE__, __LINE__, "out of memory");
	return text;
}

static char *__attribute__((format(printf, 1, 2))) text_of(const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	text = format_text(format, arguments);
	va_end(arguments);
	return text;
}

/* The end of the program. */

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *place)
{
	(void)status;
	(void)kind;
	(void)place;
	remove(path);
	return 0;
}

static void drop_database(PGconn *admin, const char *name)
{
	char *statement = text_of("drop database if exists \"%s\" with (force)", name);

	PQclear(PQexec(admin, statement));
	free(statement);
}

static void drop_databases(void)
{
	PGconn *admin;

	if (!harness.databases_count && !harness.template_name[0])
		return;
	admin = PQconnectdb("dbname=postgres");
	if (PQstatus(admin) == CONNECTION_OK) {
		PQclear(PQexec(admin, "set client_min_messages = error"));
		for (size_t i = 0; i < harness.databases_count; i++)
			drop_database(admin, harness.databases[i]);
		if (harness.template_name[0])
			drop_database(admin, harness.template_name);
	}
	PQfinish(admin);
	free(harness.databases);
}

static void clean_up(void)
{
	if (harness.owner != getpid())
		return;
	processes_kill_all(NULL);
	free(harness.children);
	drop_databases();
	if (harness.folder)
		nftw(harness.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	free(harness.folder);
}

static void prepare(void)
{
	if (harness.owner)
		return;
	harness.owner = getpid();
	atexit(clean_up);
}

/* Databases. */

static void ignore_notice(void *argument, const PGresult *result)
{
	(void)argument;
	(void)result;
}

PGconn *test_connect_at(const char *conninfo, const char *file, int line)
{
	PGconn *conn = PQconnectdb(conninfo);

	if (PQstatus(conn) != CONNECTION_OK) {
		char *message = text_of("%s", PQerrorMessage(conn));

		PQfinish(conn);
		fail_at(file, line, "connecting with \"%s\": %s", conninfo, message);
	}
	PQsetNoticeReceiver(conn, ignore_notice, NULL);
	return conn;
}

static PGconn *connect_admin(void)
{
	if (!getenv("PGHOST"))
		fail_at(__FILE__, __LINE__,
			"no cluster: run the tests with `make check`, or this program "
			"with `tests/cluster.sh with %s`",
			program_invocation_name);
	return test_connect("dbname=postgres");
}

static const char *setting(const char *name, const char *otherwise)
{
	const char *value = getenv(name);

	return value && *value ? value : otherwise;
}

/* A value within a conninfo string: quoted, so that spaces and quotes may be in it. */
static char *conninfo_of(const char *database)
{
	const char *host = setting("PGHOST", "");
	char *quoted = checked(malloc(2 * strlen(host) + 1));
	char *conninfo, *end = quoted;

	for (; *host; host++) {
		if (*host == '\'' || *host == '\\')
			*end++ = '\\';
		*end++ = *host;
	}
	*end = '\0';
	conninfo = text_of("host='%s' port=%s user=%s dbname=%s", quoted, setting("PGPORT", "5432"),
			   setting("PGUSER", "postgres"), database);
	free(quoted);
	return conninfo;
}

static void apply_migrations(const char *database)
{
	char *conninfo = conninfo_of(database);
	PGconn *conn = test_connect(conninfo);

	for (int i = 0; i < lease_migrations_count; i++) {
		const struct lease_migration *migration = &lease_migrations[i];
		PGresult *result;

		sql(conn, "begin");
		result = PQexec(conn, migration->sql);
		if (PQresultStatus(result) != PGRES_COMMAND_OK &&
		    PQresultStatus(result) != PGRES_TUPLES_OK)
			fail_at(__FILE__, __LINE__, "migration %s: %s", migration->name,
				PQresultErrorMessage(result));
		PQclear(result);
		sql(conn,
		    "insert into lease.schema_migrations (version, name, checksum) "
		    "values (%d, '%s', '%s')",
		    migration->version, migration->name, migration->checksum);
		sql(conn, "commit");
	}
	PQfinish(conn);
	free(conninfo);
}

static void make_template(PGconn *admin)
{
	char name[sizeof(harness.template_name)];

	snprintf(name, sizeof(name), "lease_template_%d", (int)getpid());
	sql(admin, "drop database if exists %s with (force)", name);
	memcpy(harness.template_name, name, sizeof(name));
	sql(admin, "select pg_advisory_lock(" TEST_MIGRATION_LOCK ")");
	sql(admin, "create database %s template template0", name);
	apply_migrations(name);
	sql(admin, "select pg_advisory_unlock(" TEST_MIGRATION_LOCK ")");
}

/* A database name that no earlier program with the same process number can have left behind. */
static const char *new_database_name(void)
{
	struct timespec now;
	char *name;

	harness.databases = checked(reallocarray(harness.databases, harness.databases_count + 1,
						 sizeof(*harness.databases)));
	name = harness.databases[harness.databases_count++];
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(name, sizeof(*harness.databases), "lease_test_%d_%zu_%llx", (int)getpid(),
		 harness.databases_count, (unsigned long long)now.tv_sec);
	return name;
}

/* The template must have no connection left, and a backend needs a moment to go: the server waits 5 s. */
static char *create_database(const char *template_name)
{
	PGconn *admin = connect_admin();
	const char *name;

	prepare();
	if (!template_name) {
		if (!harness.template_name[0])
			make_template(admin);
		template_name = harness.template_name;
	}
	name = new_database_name();
	sql(admin, "create database %s template %s", name, template_name);
	PQfinish(admin);
	return conninfo_of(name);
}

char *test_database_create(void)
{
	return create_database(NULL);
}

char *test_database_create_empty(void)
{
	return create_database("template0");
}

/* NULL: no database of the harness. */
static const char *name_in(const char *conninfo)
{
	const char *found = conninfo ? strstr(conninfo, "dbname=lease_test_") : NULL;

	return found ? found + strlen("dbname=") : NULL;
}

char *test_database_copy(const char *conninfo)
{
	const char *name = name_in(conninfo);

	if (!name)
		fail_at(__FILE__, __LINE__, "no database of the harness: \"%s\"", conninfo);
	return create_database(name);
}

void test_database_drop(const char *conninfo)
{
	const char *name = name_in(conninfo);
	PGconn *admin;

	if (!name)
		return;
	admin = connect_admin();
	sql(admin, "drop database if exists %s with (force)", name);
	PQfinish(admin);
}

/* Statements. */

static bool succeeded(const PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	return status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
}

static PGresult *run_statement(PGconn *conn, const char *file, int line, const char *format,
			       va_list arguments) __attribute__((format(printf, 4, 0)));

static PGresult *run_statement(PGconn *conn, const char *file, int line, const char *format,
			       va_list arguments)
{
	char *statement = format_text(format, arguments);
	PGresult *result = PQexec(conn, statement);

	if (!succeeded(result)) {
		const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

		fail_at(file, line, "SQLSTATE %s: %s\n%s", state ? state : "none",
			PQerrorMessage(conn), statement);
	}
	free(statement);
	return result;
}

void sql_at(PGconn *conn, const char *file, int line, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	PQclear(run_statement(conn, file, line, format, arguments));
	va_end(arguments);
}

static char *first_value(PGconn *conn, const char *file, int line, const char *format,
			 va_list arguments) __attribute__((format(printf, 4, 0)));

static char *first_value(PGconn *conn, const char *file, int line, const char *format,
			 va_list arguments)
{
	PGresult *result = run_statement(conn, file, line, format, arguments);
	char *value = NULL;

	if (PQntuples(result) < 1 || PQnfields(result) < 1) {
		PQclear(result);
		fail_at(file, line, "no row came back: %s", format);
	}
	if (!PQgetisnull(result, 0, 0))
		value = checked(strdup(PQgetvalue(result, 0, 0)));
	PQclear(result);
	return value;
}

char *sql_text_at(PGconn *conn, const char *file, int line, const char *format, ...)
{
	va_list arguments;
	char *value;

	va_start(arguments, format);
	value = first_value(conn, file, line, format, arguments);
	va_end(arguments);
	return value;
}

long long sql_number_at(PGconn *conn, const char *file, int line, const char *format, ...)
{
	va_list arguments;
	long long number;
	char *value, *end;

	va_start(arguments, format);
	value = first_value(conn, file, line, format, arguments);
	va_end(arguments);
	if (!value)
		fail_at(file, line, "NULL is not a number: %s", format);
	errno = 0;
	number = strtoll(value, &end, 10);
	if (errno || end == value || *end)
		fail_at(file, line, "\"%s\" is not a whole number: %s", value, format);
	free(value);
	return number;
}

void assert_sql_at(PGconn *conn, const char *expected, const char *file, int line,
		   const char *format, ...)
{
	va_list arguments;
	char *value;

	va_start(arguments, format);
	value = first_value(conn, file, line, format, arguments);
	va_end(arguments);
	if (!value != !expected || (value && strcmp(value, expected) != 0))
		fail_at(file, line, "\"%s\" instead of \"%s\": %s", value ? value : "NULL",
			expected ? expected : "NULL", format);
	free(value);
}

void sql_fails_at(PGconn *conn, const char *sqlstate, const char *file, int line,
		  const char *format, ...)
{
	bool in_transaction = PQtransactionStatus(conn) == PQTRANS_INTRANS;
	char *statement, *state, *message;
	va_list arguments;
	PGresult *result;

	va_start(arguments, format);
	statement = format_text(format, arguments);
	va_end(arguments);
	if (in_transaction)
		sql_at(conn, file, line, "savepoint before_refusal");
	result = PQexec(conn, statement);
	if (succeeded(result))
		fail_at(file, line, "accepted, instead of SQLSTATE %s: %s", sqlstate, statement);
	state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	message = PQresultErrorMessage(result);
	if (!state || strcmp(state, sqlstate) != 0)
		fail_at(file, line, "SQLSTATE %s instead of %s: %s\n%s", state ? state : "none",
			sqlstate, message, statement);
	PQclear(result);
	free(statement);
	if (in_transaction)
		sql_at(conn, file, line, "rollback to before_refusal; release before_refusal");
	else if (PQtransactionStatus(conn) == PQTRANS_INERROR)
		sql_at(conn, file, line, "rollback");
}

void wait_sql_at(PGconn *conn, const char *file, int line, const char *format, ...)
{
	long long deadline = test_now_ms() + TEST_PATIENCE_MS;
	va_list arguments;
	char *value;

	for (;;) {
		bool holds;

		va_start(arguments, format);
		value = first_value(conn, file, line, format, arguments);
		va_end(arguments);
		holds = value && strcmp(value, "t") == 0;
		if (holds || test_now_ms() >= deadline)
			break;
		free(value);
		poll(NULL, 0, POLL_MS);
	}
	if (!value || strcmp(value, "t") != 0)
		fail_at(file, line, "still \"%s\" after %d ms: %s", value ? value : "NULL",
			TEST_PATIENCE_MS, format);
	free(value);
}

/* Waiting. */

long long test_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool wait_until(bool (*condition)(void *), void *argument, int timeout_ms)
{
	long long deadline = test_now_ms() + timeout_ms;

	for (;;) {
		bool last_look = test_now_ms() >= deadline;

		if (condition(argument))
			return true;
		if (last_look)
			return false;
		poll(NULL, 0, POLL_MS);
	}
}

/* Processes. */

static struct child *child_of(const struct process *process)
{
	if (process->number < 0 || process->number >= harness.children_count ||
	    harness.children[process->number].pid != process->pid)
		fail_at(__FILE__, __LINE__, "this process was never started");
	return &harness.children[process->number];
}

static char *child_file(int number, const char *kind)
{
	return text_of("%s/process-%d.%s", harness.folder, number, kind);
}

/* environ with "NAME=value" entries replaced or added and "NAME" ones removed; free the array only. */
static char **environment_with(char *const extra[])
{
	size_t count = 0, extra_count = 0;
	char **result;

	while (environ[count])
		count++;
	while (extra && extra[extra_count])
		extra_count++;
	result = checked(calloc(count + extra_count + 1, sizeof(*result)));
	count = 0;
	for (char **entry = environ; *entry; entry++) {
		size_t name_length = strcspn(*entry, "=");
		bool replaced = false;

		for (size_t i = 0; i < extra_count && !replaced; i++)
			replaced = strcspn(extra[i], "=") == name_length &&
				   strncmp(extra[i], *entry, name_length) == 0;
		if (!replaced)
			result[count++] = *entry;
	}
	for (size_t i = 0; i < extra_count; i++)
		if (strchr(extra[i], '='))
			result[count++] = extra[i];
	return result;
}

/* Between fork and exec: async-signal-safe calls only. Reports errno through the pipe if exec fails. */
static void __attribute__((noreturn))
become(char *const argv[], char *const envp[], pid_t parent, const int streams[3], int report)
{
	sigset_t none;
	int error;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(127);
	for (int i = 0; i < 3; i++)
		dup2(streams[i], i);
	for (int i = 1; i < NSIG; i++)
		signal(i, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execvpe(argv[0], argv, envp);
	error = errno;
	_exit(write(report, &error, sizeof(error)) == sizeof(error) ? 127 : 126);
}

static int open_capture(int number, const char *kind)
{
	char *path = child_file(number, kind);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);

	if (fd < 0)
		fail_at(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	free(path);
	return fd;
}

static void make_folder(void)
{
	const char *parent = getenv("TMPDIR");

	prepare();
	if (harness.folder)
		return;
	harness.folder = text_of("%s/lease-test-XXXXXX", parent && *parent ? parent : "/tmp");
	if (!mkdtemp(harness.folder))
		fail_at(__FILE__, __LINE__, "%s: %s", harness.folder, strerror(errno));
}

void process_start_at(struct process *process, char *const argv[], char *const extra_env[],
		      const char *file, int line)
{
	char **envp = environment_with(extra_env);
	int streams[3], report[2], error = 0;
	pid_t parent = getpid();

	make_folder();
	process->number = harness.children_count;
	harness.children = checked(reallocarray(
		harness.children, (size_t)harness.children_count + 1, sizeof(*harness.children)));
	streams[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	streams[1] = open_capture(process->number, "out");
	streams[2] = open_capture(process->number, "err");
	if (pipe2(report, O_CLOEXEC) < 0)
		fail_at(file, line, "pipe: %s", strerror(errno));
	process->pid = fork();
	if (process->pid < 0)
		fail_at(file, line, "fork: %s", strerror(errno));
	if (process->pid == 0)
		become(argv, envp, parent, streams, report[1]);
	harness.children[harness.children_count++] = (struct child){ .pid = process->pid };
	free(envp);
	for (int i = 0; i < 3; i++)
		close(streams[i]);
	close(report[1]);
	if (read(report[0], &error, sizeof(error)) == sizeof(error))
		fail_at(file, line, "cannot execute %s: %s", argv[0], strerror(error));
	close(report[0]);
}

void process_signal(struct process *process, int signal_number)
{
	struct child *child = child_of(process);

	if (!child->ended)
		kill(child->pid, signal_number);
}

static bool reap(struct child *child, int options)
{
	int status;

	if (child->ended)
		return true;
	if (waitpid(child->pid, &status, options) != child->pid)
		return false;
	child->ended = true;
	child->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	return true;
}

bool process_ended(struct process *process)
{
	return reap(child_of(process), WNOHANG);
}

static bool has_ended(void *process)
{
	return process_ended(process);
}

static bool read_stat(pid_t pid, char *ret_state, int *ret_parent)
{
	char path[64], text[512] = "";
	const char *rest;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	/* the name stands in parentheses and may hold any character */
	rest = strrchr(text, ')');
	return rest && sscanf(rest + 1, " %c %d", ret_state, ret_parent) == 2;
}

char process_state(pid_t pid)
{
	char state;
	int parent;

	return read_stat(pid, &state, &parent) && state != 'Z' && state != 'X' ? state : 0;
}

pid_t process_parent(pid_t pid)
{
	char state;
	int parent;

	return read_stat(pid, &state, &parent) ? parent : 0;
}

int process_wait_at(struct process *process, int timeout_ms, const char *file, int line)
{
	if (!wait_until(has_ended, process, timeout_ms))
		fail_at(file, line, "process %d still runs after %d ms; stdout: %s\nstderr: %s",
			(int)process->pid, timeout_ms, process_output(process),
			process_errors(process));
	return child_of(process)->status;
}

const char *process_output(struct process *process)
{
	struct child *child = child_of(process);
	char *path = child_file(process->number, "out");

	free(child->output);
	child->output = read_file(path);
	free(path);
	return child->output;
}

const char *process_errors(struct process *process)
{
	struct child *child = child_of(process);
	char *path = child_file(process->number, "err");

	free(child->errors);
	child->errors = read_file(path);
	free(path);
	return child->errors;
}

/* The end of what a process wrote: why it did not go on stands there. */
static const char *end_of(const char *written)
{
	size_t length = strlen(written);

	return length > END ? written + length - END : written;
}

void process_wait_text_at(struct process *process, const char *text, int timeout_ms,
			  const char *file, int line)
{
	long long deadline = test_now_ms() + timeout_ms;

	for (;;) {
		bool last_look = process_ended(process) || test_now_ms() >= deadline;

		if (strstr(process_output(process), text) || strstr(process_errors(process), text))
			return;
		if (last_look)
			break;
		poll(NULL, 0, POLL_MS);
	}
	fail_at(file, line, "process %d (%s) never wrote \"%s\"; stdout: %s\nstderr: %s",
		(int)process->pid, process_ended(process) ? "ended" : "running", text,
		end_of(process_output(process)), end_of(process_errors(process)));
}

int processes_kill_all(void **state)
{
	(void)state;
	for (int i = 0; i < harness.children_count; i++) {
		struct child *child = &harness.children[i];

		if (!child->ended)
			kill(child->pid, SIGKILL);
		while (!reap(child, 0) && errno == EINTR)
			;
		free(child->output);
		free(child->errors);
		child->output = child->errors = NULL;
	}
	return 0;
}

char *test_program(const char *name)
{
	const char *folder = getenv("LEASE_BUILD");

	return text_of("%s/%s", folder ? folder : "build", name);
}

char *test_source(const char *name)
{
	const char *folder = getenv("LEASE_SOURCE");

	return text_of("%s/%s", folder ? folder : ".", name);
}

/* What a service tells its manager (sd_notify). */

void notify_open(struct notify_socket *notify)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char *folder = test_tmpdir();

	*notify = (struct notify_socket){ .path = text_of("%s/notify", folder) };
	free(folder);
	if (strlen(notify->path) >= sizeof(address.sun_path))
		fail_at(__FILE__, __LINE__,
			"%s is too long for a socket: set TMPDIR to a shorter path", notify->path);
	memcpy(address.sun_path, notify->path, strlen(notify->path) + 1);
	notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (notify->fd < 0 || bind(notify->fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		fail_at(__FILE__, __LINE__, "%s: %s", notify->path, strerror(errno));
}

void notify_close(struct notify_socket *notify)
{
	if (!notify->path)
		return;
	close(notify->fd);
	unlink(notify->path);
	free(notify->path);
	free(notify->record);
	*notify = (struct notify_socket){ .fd = -1 };
}

bool notify_next(struct notify_socket *notify, char *message, size_t size, int timeout_ms)
{
	struct pollfd waiting = { .fd = notify->fd, .events = POLLIN };
	char buffer[8192];
	ssize_t length;

	if (poll(&waiting, 1, timeout_ms) != 1)
		return false;
	length = recv(notify->fd, buffer, sizeof(buffer), 0);
	if (length < 0)
		fail_at(__FILE__, __LINE__, "%s: %s", notify->path, strerror(errno));
	notify->record = checked(realloc(notify->record, notify->length + (size_t)length + 2));
	memcpy(notify->record + notify->length, buffer, (size_t)length);
	notify->length += (size_t)length;
	notify->record[notify->length++] = '\n';
	notify->record[notify->length] = '\0';
	if (message)
		snprintf(message, size, "%.*s", (int)length, buffer);
	return true;
}

/* The last line that begins with this text. */
static const char *newest_line(const struct notify_socket *notify, const char *text)
{
	const char *line = notify->record, *found = NULL;

	while (line && *line) {
		if (strncmp(line, text, strlen(text)) == 0)
			found = line;
		line = strchr(line, '\n') + 1;
	}
	return found;
}

static void take_in(struct notify_socket *notify)
{
	while (notify_next(notify, NULL, 0, 0))
		;
}

bool notify_saw(struct notify_socket *notify, const char *text, int timeout_ms)
{
	long long deadline = test_now_ms() + timeout_ms;

	take_in(notify);
	while (!newest_line(notify, text)) {
		long long left = deadline - test_now_ms();

		if (left <= 0 || !notify_next(notify, NULL, 0, (int)left))
			break;
	}
	return newest_line(notify, text) != NULL;
}

char *notify_value(struct notify_socket *notify, const char *name)
{
	char *start = text_of("%s=", name);
	const char *line, *value;

	take_in(notify);
	line = newest_line(notify, start);
	value = line ? line + strlen(start) : NULL;
	free(start);
	return value ? checked(strndup(value, strcspn(value, "\n"))) : NULL;
}

void notify_forget(struct notify_socket *notify)
{
	take_in(notify);
	notify->length = 0;
	if (notify->record)
		notify->record[0] = '\0';
}

/* Files. */

char *test_tmpdir(void)
{
	char *path;

	make_folder();
	path = text_of("%s/%u", harness.folder, harness.folders++);
	if (mkdir(path, 0700) < 0)
		fail_at(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	return path;
}

void write_file(const char *path, const char *content)
{
	FILE *file = fopen(path, "we");
	bool written = file && fputs(content, file) >= 0;

	if (file && fclose(file) != 0)
		written = false;
	if (!written)
		fail_at(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
}

void replace_file(const char *path, const char *content)
{
	char *part;

	if (asprintf(&part, "%s.part", path) < 0)
		fail_at(__FILE__, __LINE__, "out of memory");
	write_file(part, content);
	if (rename(part, path) != 0)
		fail_at(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	free(part);
}

char *read_file(const char *path)
{
	FILE *file = fopen(path, "re");
	char *content = NULL, buffer[4096];
	size_t size = 0, length;
	FILE *memory;

	if (!file)
		fail_at(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	memory = checked(open_memstream(&content, &size));
	while ((length = fread(buffer, 1, sizeof(buffer), file)) > 0)
		fwrite(buffer, 1, length, memory);
	if (ferror(file) || fclose(memory) != 0)
		fail_at(__FILE__, __LINE__, "%s: cannot be read", path);
	fclose(file);
	return content;
}
