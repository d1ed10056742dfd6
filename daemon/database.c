/*
 * See database.h. The states and what each waits for, by one io watcher and one timer:
 *
 *	PAUSED      timer: the next round over all hosts begins
 *	CONNECTING  io: PQconnectPoll goes on; timer: this host's deadline
 *	BUSY        io: the sweep goes on; timer: the deadline of the answer that is out
 *	IDLE        timer: the sweep wakes up; io: readable means that the server has gone
 *	STOPPED     nothing
 *
 * The traps of libpq that this file minds: the socket may change with every PQconnectPoll, so the
 * io watcher is stopped before it and set anew after; connect_timeout does nothing here; a
 * connection that PQconsumeInput finds closed stays readable for ever and must be dropped.
 */
#include "database.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libpq-fe.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define APPLICATION_NAME "lease-reconciler"
/* How often a failure that lasts is told again, and a run that is passed over each time. */
#define TROUBLE_RHYTHM (60 * LEASE_SECOND)
#define SKIPPED_RHYTHM (600 * LEASE_SECOND)
/* A run locked by somebody else is tried again within this: a quieter sweep waits for none. */
#define LOCKED_RETRY_MAX (300 * LEASE_MILLISECOND)
#define LATE_PATIENCE (5 * LEASE_SECOND)
#define FINISH_PATIENCE (1800 * LEASE_SECOND)
#define PASSWORD_MAX 4096
#define TEXT_SIZE 512

enum database_state {
	STATE_PAUSED,
	STATE_CONNECTING,
	STATE_BUSY,
	STATE_IDLE,
	STATE_STOPPED,
};

struct host {
	char *host; /* a name, a folder with a socket, or NULL: libpq's default */
	char *hostaddr;
	char *port;
};

/* One pass over all hosts, until one of them turns out to be good. */
struct round {
	PQconninfoOption *options;
	struct host *hosts;
	size_t n_hosts, next_host;
	struct addrinfo *addresses, *next_address; /* of the host at hand, where libpq has a name */
	const struct host *host;
};

/* What was told and need not be told again. */
struct said {
	uint64_t keys[32];
	unsigned next;
	int64_t since;
};

struct failure_counts {
	struct {
		char sqlstate[6];
		int64_t n;
	} by_sqlstate[8];
	int64_t others;
	int64_t total;
};

struct settings {
	int64_t connect_timeout, network_timeout, reconnect_min, reconnect_max;
	struct lease_sweep_options sweep;
};

struct once {
	int result;
	struct lease_sweep_figures *figures;
	char *message;
	size_t size;
};

struct database {
	const struct database_environment *environment;
	char *name, *conninfo, *password_file;
	struct settings settings;
	struct once *once; /* NULL in the daemon proper */
	struct metrics_counters *counters;

	enum database_state state;
	bool stopping;
	ev_io io;
	ev_timer timer;
	int64_t timer_at;

	struct round round;
	unsigned failed_rounds; /* in a row */
	uint64_t random;
	PGconn *conn;
	bool confirmed; /* the server at hand can be written to */
	int64_t confirmed_at;
	char fatal_sqlstate[6], fatal[TEXT_SIZE]; /* what the server said before it went */

	struct lease_sweep *sweep;
	struct lease_sweep_figures figures; /* as they were after its last step, */
	struct lease_sweep_figures rested; /* when it last came to rest, */
	struct lease_sweep_figures failed; /* when it last failed */
	int64_t finished_at; /* when something last came to its end */

	/* What is known of leases that are over: all that ended before `closed_until` are closed. */
	int64_t closed_until; /* 0: nothing is known */
	int64_t over_since; /* then: one that is over was seen at this time; 0: none was */
	int64_t passes_needed; /* before it is known again */
	bool waits_for_locked;

	/* trouble */
	int64_t trouble_since; /* 0: none */
	int64_t told_at;
	char trouble[TEXT_SIZE], trouble_sqlstate[6];
	struct failure_counts failures;
	struct said said, skipped;

	struct journal_summary summary;
	ev_timer summary_timer;
};

static void advance(struct database *database);
static void drive(struct database *database);
static void reconcile(struct database *database);

/* -- small things ----------------------------------------------------------------------------- */

static struct journal_fields fields_of(const struct database *database, const char *sqlstate)
{
	return (struct journal_fields){ .database = database->name, .sqlstate = sqlstate };
}

static void tell_change(const struct database *database)
{
	database->environment->changed(database->environment->arg);
}

static void stop_watching(struct database *database)
{
	ev_io_stop(database->environment->loop, &database->io);
}

/* The socket is asked for anew each time: it may be another one. */
static bool watch(struct database *database, int events)
{
	int fd = PQsocket(database->conn);

	stop_watching(database);
	if (fd < 0)
		return false;
	ev_io_set(&database->io, fd,
		  (events & LEASE_POLL_READ ? EV_READ : 0) |
			  (events & LEASE_POLL_WRITE ? EV_WRITE : 0));
	ev_io_start(database->environment->loop, &database->io);
	return true;
}

/* libev counts from the time at which it last woke up, which may be long ago within a callback. */
static void set_timer(struct database *database, int64_t at)
{
	struct ev_loop *loop = database->environment->loop;
	int64_t left = at - monotonic_now();

	ev_timer_stop(loop, &database->timer);
	database->timer_at = at;
	if (at == INT64_MAX)
		return;
	ev_now_update(loop);
	ev_timer_set(&database->timer, left > 0 ? (double)left / (double)LEASE_SECOND : 0., 0.);
	ev_timer_start(loop, &database->timer);
}

static uint64_t hash_of(const char *first, const char *second)
{
	uint64_t hash = UINT64_C(14695981039346656037);

	for (const char *c = first; *c; c++)
		hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
	hash = (hash ^ 0xff) * UINT64_C(1099511628211);
	for (const char *c = second; *c; c++)
		hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
	return hash;
}

/* True the first time only, within the rhythm. */
static bool is_news(struct said *said, uint64_t key, int64_t rhythm)
{
	const unsigned n = sizeof(said->keys) / sizeof(said->keys[0]);
	int64_t now = monotonic_now();

	if (said->since == 0 || now - said->since > rhythm)
		*said = (struct said){ .since = now };
	for (unsigned i = 0; i < n; i++)
		if (said->keys[i] == key)
			return false;
	said->keys[said->next++ % n] = key;
	return true;
}

static void count_failure(struct failure_counts *counts, const char *sqlstate)
{
	const size_t n = sizeof(counts->by_sqlstate) / sizeof(counts->by_sqlstate[0]);

	counts->total++;
	for (size_t i = 0; *sqlstate && i < n; i++) {
		if (counts->by_sqlstate[i].n == 0)
			snprintf(counts->by_sqlstate[i].sqlstate,
				 sizeof(counts->by_sqlstate[i].sqlstate), "%s", sqlstate);
		if (strcmp(counts->by_sqlstate[i].sqlstate, sqlstate) == 0) {
			counts->by_sqlstate[i].n++;
			return;
		}
	}
	counts->others++;
}

/* "7 failures (57P03: 3, others: 4)" */
static void failures_text(const struct failure_counts *counts, char *text, size_t size)
{
	const size_t n = sizeof(counts->by_sqlstate) / sizeof(counts->by_sqlstate[0]);
	size_t used = (size_t)snprintf(text, size, "%" PRId64 " failure%s", counts->total,
				       counts->total == 1 ? "" : "s");
	const char *separator = " (";

	for (size_t i = 0; i < n && counts->by_sqlstate[i].n > 0 && used < size; i++) {
		used += (size_t)snprintf(text + used, size - used, "%s%s: %" PRId64, separator,
					 counts->by_sqlstate[i].sqlstate, counts->by_sqlstate[i].n);
		separator = ", ";
	}
	if (used < size && separator[0] == ',')
		snprintf(text + used, size - used, counts->others ? ", others: %" PRId64 ")" : ")",
			 counts->others);
}

/* -- connection strings ----------------------------------------------------------------------- */

static const char *option_value(const PQconninfoOption *options, const char *keyword)
{
	for (; options->keyword; options++)
		if (strcmp(options->keyword, keyword) == 0)
			return options->val && options->val[0] ? options->val : NULL;
	return NULL;
}

static size_t count_elements(const char *list)
{
	size_t n = 1;

	for (; *list; list++)
		n += *list == ',';
	return n;
}

/* The element at `index` of a list with commas; NULL where it is empty or there is no memory. */
static char *list_element(const char *list, size_t index)
{
	for (; index > 0; index--)
		list += strcspn(list, ",") + 1;
	return *list && *list != ',' ? strndup(list, strcspn(list, ",")) : NULL;
}

/* What libpq would take: the string's own value, else the environment's. */
static const char *host_value(const PQconninfoOption *options, const char *keyword,
			      const char *variable)
{
	const char *value = option_value(options, keyword);

	return value ? value : getenv(variable);
}

static bool has_service(const PQconninfoOption *options)
{
	return host_value(options, "service", "PGSERVICE") != NULL;
}

struct host_lists {
	const char *host, *hostaddr, *port;
	size_t n;
};

/* libpq's own rules (PostgreSQL manual, "Specifying Multiple Hosts"). NULL, or what is wrong. */
static const char *read_host_lists(const PQconninfoOption *options, struct host_lists *ret)
{
	struct host_lists lists = { .n = 1 };
	size_t ports;

	/* a service file may name hosts as well: then libpq walks through them by itself */
	if (!has_service(options)) {
		lists.host = host_value(options, "host", "PGHOST");
		lists.hostaddr = host_value(options, "hostaddr", "PGHOSTADDR");
		lists.port = host_value(options, "port", "PGPORT");
	}
	if (lists.hostaddr)
		lists.n = count_elements(lists.hostaddr);
	else if (lists.host)
		lists.n = count_elements(lists.host);
	if (lists.host && count_elements(lists.host) != lists.n)
		return "host and hostaddr do not name equally many hosts";
	ports = lists.port ? count_elements(lists.port) : 1;
	if (ports != 1 && ports != lists.n)
		return "port holds neither one number nor one for each host";
	*ret = lists;
	return NULL;
}

static bool is_known_keyword(const PQconninfoOption *known, const char *keyword, size_t length)
{
	for (; known->keyword; known++)
		if (strlen(known->keyword) == length &&
		    strncmp(known->keyword, keyword, length) == 0)
			return true;
	return false;
}

static const char *skip_value(const char *c)
{
	bool quoted = *c == '\'';

	for (c += quoted; *c && (quoted ? *c != '\'' : *c != ' '); c++)
		if (*c == '\\' && c[1])
			c++;
	return *c ? c + 1 : c;
}

/*
 * Where libpq stumbles in "keyword=value" pairs, said by the known keyword before that place: the
 * place itself may hold a piece of a password with an unquoted blank.
 */
static void explain_pairs(const char *text, char *message, size_t size)
{
	PQconninfoOption *known = PQconndefaults();
	char last[64] = "";

	for (const char *c = text + strspn(text, " "); known && *c;) {
		size_t length = strcspn(c, " =");
		const char *value = c + length + strspn(c + length, " ");

		if (*value != '=' || !is_known_keyword(known, c, length))
			break;
		snprintf(last, sizeof(last), "%.*s", (int)length, c);
		value++;
		value += strspn(value, " ");
		c = skip_value(value);
		c += strspn(c, " ");
	}
	PQconninfoFree(known);
	snprintf(
		message, size,
		"conninfo: the keyword %s%s%s is not known to libpq; check its spelling, and put a "
		"value with blanks in single quotes",
		last[0] ? "after the value of '" : "at the beginning", last, last[0] ? "'" : "");
}

int database_check_conninfo(const struct config_database *entry, char *message, size_t size)
{
	char *secretive = NULL; /* may quote a piece of a password: never shown */
	PQconninfoOption *options = PQconninfoParse(entry->conninfo, &secretive);
	struct host_lists lists;
	const char *wrong;

	PQfreemem(secretive);
	if (!options) {
		if (strncmp(entry->conninfo, "postgres", 8) == 0 && strstr(entry->conninfo, "://"))
			snprintf(message, size,
				 "conninfo: libpq does not accept this URI; check its port, its "
				 "percent signs and the names of its parameters");
		else
			explain_pairs(entry->conninfo, message, size);
		return -1;
	}
	wrong = read_host_lists(options, &lists);
	PQconninfoFree(options);
	if (!wrong)
		return 0;
	snprintf(message, size, "conninfo: %s", wrong);
	return -1;
}

/* -- the round over all hosts ----------------------------------------------------------------- */

static void end_round(struct round *round)
{
	for (size_t i = 0; round->hosts && i < round->n_hosts; i++) {
		free(round->hosts[i].host);
		free(round->hosts[i].hostaddr);
		free(round->hosts[i].port);
	}
	free(round->hosts);
	if (round->addresses)
		freeaddrinfo(round->addresses);
	PQconninfoFree(round->options);
	*round = (struct round){ 0 };
}

static bool begin_round(struct database *database)
{
	struct round *round = &database->round;
	struct host_lists lists;
	char *secretive = NULL;

	end_round(round);
	round->options = PQconninfoParse(database->conninfo, &secretive);
	PQfreemem(secretive);
	if (!round->options || read_host_lists(round->options, &lists) != NULL)
		return false;
	round->hosts = calloc(lists.n, sizeof(*round->hosts));
	if (!round->hosts)
		return false;
	round->n_hosts = lists.n;
	for (size_t i = 0; i < lists.n; i++) {
		struct host *host = &round->hosts[i];
		bool one_port = lists.port && !strchr(lists.port, ',');

		host->host = lists.host ? list_element(lists.host, i) : NULL;
		host->hostaddr = lists.hostaddr ? list_element(lists.hostaddr, i) : NULL;
		host->port = lists.port ? list_element(lists.port, one_port ? 0 : i) : NULL;
	}
	return true;
}

static bool is_name(const struct host *host)
{
	return host->host && !host->hostaddr && host->host[0] != '/' && host->host[0] != '@';
}

/*
 * The next host, or the next address of a name: a name with several addresses would otherwise
 * spend its whole deadline on a first one that is dead, in every round. The look-up blocks, as
 * libpq's own would. False: the round is over.
 */
static bool next_target(struct round *round)
{
	struct addrinfo wanted = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };

	if (round->next_address) {
		round->next_address = round->next_address->ai_next;
		if (round->next_address)
			return true;
	}
	if (round->next_host == round->n_hosts)
		return false;
	round->host = &round->hosts[round->next_host++];
	if (round->addresses)
		freeaddrinfo(round->addresses);
	round->addresses = NULL;
	if (is_name(round->host) &&
	    getaddrinfo(round->host->host, NULL, &wanted, &round->addresses) != 0)
		round->addresses = NULL; /* libpq will say why */
	round->next_address = round->addresses;
	return true;
}

/* Reads the password into `buffer`. 0, or -1 with a line about it, that does not show it. */
static int read_password(const char *path, char *buffer, size_t size, char *message,
			 size_t message_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const char *wrong = NULL;
	struct stat status;
	ssize_t length = -1;

	if (fd < 0 || fstat(fd, &status) < 0)
		wrong = strerror(errno);
	else if (!S_ISREG(status.st_mode))
		wrong = "it is not a regular file";
	else if ((length = read(fd, buffer, size)) < 0)
		wrong = strerror(errno);
	if (fd >= 0)
		close(fd);
	if (!wrong) {
		if (length > 0 && buffer[length - 1] == '\n')
			length--;
		if (length > 0 && buffer[length - 1] == '\r')
			length--;
		if (length == 0)
			wrong = "it is empty";
		else if ((size_t)length >= size)
			wrong = "it is longer than a password may be";
		else if (memchr(buffer, '\0', (size_t)length))
			wrong = "it holds a NUL byte";
		else
			buffer[length] = '\0';
	}
	if (!wrong)
		return 0;
	snprintf(message, message_size, "password_file %s cannot be used: %s", path, wrong);
	return -1;
}

static void ignore_or_note_notice(void *argument, const PGresult *result)
{
	struct database *database = argument;
	const char *severity = PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
	const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
	struct journal_fields fields = fields_of(database, sqlstate);

	if (!severity || !message)
		return;
	if (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0) {
		snprintf(database->fatal, sizeof(database->fatal), "%s", message);
		snprintf(database->fatal_sqlstate, sizeof(database->fatal_sqlstate), "%s",
			 sqlstate ? sqlstate : "");
		return;
	}
	journal_write(database->environment->journal, JOURNAL_SERVER_NOTICE, &fields, "%s: %s",
		      severity, message);
}

/* Keywords for PQconnectStartParams; a later one overrides an earlier one. */
struct parameters {
	const char *keywords[72];
	const char *values[72];
	size_t n;
};

static void add_parameter(struct parameters *parameters, const char *keyword, const char *value)
{
	if (!value || parameters->n + 1 >= sizeof(parameters->keywords) / sizeof(char *))
		return;
	parameters->keywords[parameters->n] = keyword;
	parameters->values[parameters->n++] = value;
	parameters->keywords[parameters->n] = parameters->values[parameters->n] = NULL;
}

static bool is_replaced(const struct database *database, const char *keyword)
{
	if (database->password_file && strcmp(keyword, "password") == 0)
		return true;
	return !has_service(database->round.options) &&
	       (strcmp(keyword, "host") == 0 || strcmp(keyword, "hostaddr") == 0 ||
		strcmp(keyword, "port") == 0);
}

static PGconn *start_connection(const struct database *database, const char *password)
{
	const struct round *round = &database->round;
	struct parameters parameters = { .n = 0 };
	char address[NI_MAXHOST] = "";

	for (const PQconninfoOption *option = round->options; option->keyword; option++)
		if (!is_replaced(database, option->keyword))
			add_parameter(&parameters, option->keyword, option->val);
	if (round->next_address)
		getnameinfo(round->next_address->ai_addr, round->next_address->ai_addrlen, address,
			    sizeof(address), NULL, 0, NI_NUMERICHOST);
	add_parameter(&parameters, "host", round->host->host);
	add_parameter(&parameters, "hostaddr", address[0] ? address : round->host->hostaddr);
	add_parameter(&parameters, "port", round->host->port);
	add_parameter(&parameters, "password", password);
	add_parameter(&parameters, "fallback_application_name", APPLICATION_NAME);
	add_parameter(&parameters, "client_encoding", "UTF8");
	return PQconnectStartParams(parameters.keywords, parameters.values, 0);
}

/* -- what went wrong -------------------------------------------------------------------------- */

/* "host db1 (192.0.2.7) port 5432" */
static void server_label(const PGconn *conn, char *label, size_t size)
{
	const char *host = PQhost(conn), *address = PQhostaddr(conn);
	bool shown = address && *address && host && strcmp(host, address) != 0;

	snprintf(label, size, "%s %s%s%s%s port %s", host && host[0] == '/' ? "socket" : "host",
		 host && *host ? host : "(default)", shown ? " (" : "", shown ? address : "",
		 shown ? ")" : "", PQport(conn) ? PQport(conn) : "?");
}

/* The text never holds a password by itself; this is for what a server might echo. */
static void hide(char *text, const char *secret)
{
	size_t length = secret ? strlen(secret) : 0;

	for (char *at = text; length >= 4 && (at = strstr(at, secret)) != NULL; at += length)
		memset(at, '*', length);
}

/*
 * libpq keeps the SQLSTATE of a refused connection to itself; in a verbose message it stands after
 * the severity: "FATAL:  28P01: password …". The place in the server's source that is named there,
 * too, is left out.
 */
static void read_refusal(const PGconn *conn, char *text, size_t size, char sqlstate[6])
{
	const char *from = PQerrorMessage(conn);
	char *place;

	snprintf(text, size, "%s", from && *from ? from : "no reason given");
	while ((place = strstr(text, "\nLOCATION:")) != NULL) {
		char *end = place + 1 + strcspn(place + 1, "\n");

		memmove(place, end, strlen(end) + 1);
	}
	sqlstate[0] = '\0';
	for (const char *c = text; (c = strstr(c, ":  ")) != NULL; c += 3)
		if (strspn(c + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") == 5 && c[8] == ':')
			snprintf(sqlstate, 6, "%.5s", c + 3);
	for (char *c = text; (c = strchr(c, '\n')) != NULL; c++)
		*c = c[1] ? ';' : ' ';
	make_one_line(text);
	hide(text, PQpass(conn));
}

/* What a person can do about a refused connection; "" where the message says it all. */
static const char *hint_for(const char *sqlstate)
{
	static const struct {
		const char *prefix, *hint;
	} hints[] = {
		{ "28", "; check user, password_file and the server's pg_hba.conf" },
		{ "3D000", "; check dbname" },
		{ "42501", "; the role needs the right to connect, see lease_reconciler" },
		{ "53300", "; the server has no connection left, see max_connections" },
	};

	for (size_t i = 0; i < sizeof(hints) / sizeof(hints[0]); i++)
		if (strncmp(sqlstate, hints[i].prefix, strlen(hints[i].prefix)) == 0)
			return hints[i].hint;
	return "";
}

static void note_trouble(struct database *database, const char *sqlstate, const char *text)
{
	count_failure(&database->failures, sqlstate);
	metrics_count_failure(database->counters, sqlstate);
	database->finished_at = monotonic_now();
	if (database->trouble_since == 0)
		database->trouble_since = database->told_at = database->finished_at;
	snprintf(database->trouble, sizeof(database->trouble), "%s", text);
	snprintf(database->trouble_sqlstate, sizeof(database->trouble_sqlstate), "%s", sqlstate);
}

static void end_trouble(struct database *database)
{
	database->trouble_since = 0;
	database->failures = (struct failure_counts){ 0 };
	database->said = (struct said){ 0 };
}

/*
 * The age of the oldest expired lease that may be unclosed, as far as is known: at most, or at least
 * so much. -1: nothing is known.
 */
static int64_t oldest_unclosed(const struct database *database, bool *ret_is_bound)
{
	bool is_bound = database->closed_until != 0;
	int64_t since = is_bound ? database->closed_until : database->over_since;
	int64_t age = monotonic_now() - since;

	*ret_is_bound = is_bound;
	if (since == 0)
		return -1;
	return age > 0 ? age : 0;
}

static void age_text(const struct database *database, char *text, size_t size)
{
	bool is_bound;
	int64_t age = oldest_unclosed(database, &is_bound);
	char buffer[DURATION_SIZE];

	if (age < 0)
		snprintf(text, size, "unknown");
	else if (age < LEASE_SECOND && is_bound)
		snprintf(text, size, "0 s");
	else
		snprintf(text, size, "at %s %s", is_bound ? "most" : "least",
			 duration_text(age, buffer));
}

/* Tells of trouble that lasts, once in a while. */
static void tell_again(struct database *database, enum journal_event event, const char *what)
{
	struct journal_fields fields = fields_of(database, database->trouble_sqlstate);
	char since[DURATION_SIZE], age[64], failures[160];
	int64_t now = monotonic_now();

	if (now - database->told_at < TROUBLE_RHYTHM)
		return;
	database->told_at = now;
	age_text(database, age, sizeof(age));
	failures_text(&database->failures, failures, sizeof(failures));
	journal_write(
		database->environment->journal, event, &fields,
		"%s for %s, %s; age of the oldest unclosed expired lease: %s; the last failure: %s",
		what, duration_text(now - database->trouble_since, since), failures, age,
		database->trouble);
}

/* -- connecting ------------------------------------------------------------------------------- */

static void drop_connection(struct database *database)
{
	stop_watching(database);
	set_timer(database, INT64_MAX);
	PQfinish(database->conn);
	database->conn = NULL;
	database->confirmed = false;
	database->fatal[0] = database->fatal_sqlstate[0] = '\0';
	lease_sweep_reset(database->sweep);
	database->passes_needed = database->figures.passes + 1;
	database->waits_for_locked = false;
}

static void end(struct database *database)
{
	struct ev_loop *loop = database->environment->loop;

	drop_connection(database);
	end_round(&database->round);
	ev_timer_stop(loop, &database->summary_timer);
	journal_summarize(database->environment->journal, database->name, &database->summary);
	database->state = STATE_STOPPED;
	if (database->once)
		ev_break(loop, EVBREAK_ONE);
	tell_change(database);
}

static uint64_t next_random(struct database *database)
{
	database->random ^= database->random << 13;
	database->random ^= database->random >> 7;
	database->random ^= database->random << 17;
	return database->random;
}

/* Doubles with each round that failed; half of it at random, so that many do not come at once. */
static int64_t pause_length(struct database *database)
{
	const struct settings *settings = &database->settings;
	int64_t pause = settings->reconnect_min;

	for (unsigned i = 0; i < database->failed_rounds && pause < settings->reconnect_max; i++)
		pause *= 2;
	if (pause > settings->reconnect_max)
		pause = settings->reconnect_max;
	return pause / 2 + (int64_t)(next_random(database) % (uint64_t)(pause / 2 + 1));
}

static void pause_rounds(struct database *database)
{
	end_round(&database->round);
	database->state = STATE_PAUSED;
	set_timer(database, monotonic_now() + pause_length(database));
	tell_change(database);
}

static void note_failed_attempt(struct database *database, enum journal_event event,
				const char *sqlstate, const char *text)
{
	struct journal_fields fields = fields_of(database, sqlstate);
	struct once *once = database->once;
	uint64_t key = hash_of(sqlstate, text);
	size_t used;

	note_trouble(database, sqlstate, text);
	if (once) {
		used = strlen(once->message);
		snprintf(once->message + used, once->size - used, "%s%s", used ? "; " : "", text);
		once->result = LEASE_E_CONNECTION;
	} else if (is_news(&database->said, key, INT64_MAX)) {
		journal_write(database->environment->journal, event, &fields, "%s", text);
	}
}

/* The attempt at hand came to nothing. */
static void fail_attempt(struct database *database, const char *why)
{
	char text[TEXT_SIZE + 128], refusal[TEXT_SIZE], sqlstate[6] = "";

	if (!why)
		read_refusal(database->conn, refusal, sizeof(refusal), sqlstate);
	snprintf(text, sizeof(text), "cannot connect: %s%s", why ? why : refusal,
		 hint_for(sqlstate));
	drop_connection(database);
	note_failed_attempt(database, JOURNAL_CONNECT_FAILED, sqlstate, text);
}

/* Starts with the target at hand. False: it failed at once. */
static bool start_attempt(struct database *database)
{
	char password[PASSWORD_MAX], message[TEXT_SIZE];
	const char *file = database->password_file;

	if (file && read_password(file, password, sizeof(password), message, sizeof(message)) < 0) {
		fail_attempt(database, message);
		return false;
	}
	database->conn = start_connection(database, file ? password : NULL);
	explicit_bzero(password, sizeof(password));
	if (!database->conn) {
		fail_attempt(database, "out of memory");
		return false;
	}
	PQsetNoticeReceiver(database->conn, ignore_or_note_notice, database);
	PQsetErrorVerbosity(database->conn, PQERRORS_VERBOSE);
	if (PQstatus(database->conn) == CONNECTION_BAD || !watch(database, LEASE_POLL_WRITE)) {
		fail_attempt(database, NULL);
		return false;
	}
	database->state = STATE_CONNECTING;
	set_timer(database, monotonic_now() + database->settings.connect_timeout);
	return true;
}

/* To the next host, until one may answer, or to the pause before the next round. */
static void advance(struct database *database)
{
	while (next_target(&database->round))
		if (start_attempt(database))
			return;
	if (database->once) {
		end(database);
		return;
	}
	database->failed_rounds++;
	pause_rounds(database);
	tell_again(database, JOURNAL_UNREACHABLE, "unreachable");
}

static void connect_anew(struct database *database)
{
	if (!begin_round(database))
		note_failed_attempt(
			database, JOURNAL_CONNECT_FAILED, "",
			"cannot connect: out of memory, or conninfo cannot be read any more");
	advance(database);
}

static void fail_by_deadline(struct database *database)
{
	char label[320], text[TEXT_SIZE], after[DURATION_SIZE];

	server_label(database->conn, label, sizeof(label));
	snprintf(text, sizeof(text), "%s did not answer within connect_timeout (%s)", label,
		 duration_text(database->settings.connect_timeout, after));
	fail_attempt(database, text);
	advance(database);
}

/* The connection stands; whether it is of use is for the first check of the sweep to say. */
static void take_connection(struct database *database)
{
	PQsetErrorVerbosity(database->conn, PQERRORS_DEFAULT);
	if (PQsetnonblocking(database->conn, 1) != 0) {
		fail_attempt(database, NULL);
		advance(database);
		return;
	}
	if (database->once)
		reconcile(database);
	else
		drive(database);
}

static void connect_step(struct database *database)
{
	bool watched;

	stop_watching(database);
	switch (PQconnectPoll(database->conn)) {
	case PGRES_POLLING_READING:
		watched = watch(database, LEASE_POLL_READ);
		break;
	case PGRES_POLLING_WRITING:
		watched = watch(database, LEASE_POLL_WRITE);
		break;
	case PGRES_POLLING_OK:
		take_connection(database);
		return;
	default:
		watched = false;
		break;
	}
	if (watched)
		return;
	fail_attempt(database, NULL);
	advance(database);
}

/* -- sweeping --------------------------------------------------------------------------------- */

/* The server can be written to: the round is over, and so are its failures. */
static void confirm(struct database *database)
{
	struct journal_fields fields = fields_of(database, NULL);
	const char *version = PQparameterStatus(database->conn, "server_version");
	char label[320], since[DURATION_SIZE], failures[160] = "";
	size_t used;

	if (database->confirmed)
		return;
	database->confirmed = true;
	database->confirmed_at = monotonic_now();
	metrics_count_connection(database->counters);
	end_round(&database->round);
	if (database->failures.total > 0) {
		used = (size_t)snprintf(
			failures, sizeof(failures), ", after %s and ",
			duration_text(monotonic_now() - database->trouble_since, since));
		failures_text(&database->failures, failures + used, sizeof(failures) - used);
	}
	server_label(database->conn, label, sizeof(label));
	journal_write(database->environment->journal, JOURNAL_CONNECTED, &fields,
		      "connected to %s, database %s as %s, PostgreSQL %s%s", label,
		      PQdb(database->conn), PQuser(database->conn), version ? version : "?",
		      failures);
	end_trouble(database);
	tell_change(database);
}

/*
 * How long to pause is a question of how long the connection was good: a server that falls over
 * whenever it is asked for something is asked less and less often.
 */
static void count_short_life(struct database *database)
{
	if (monotonic_now() - database->confirmed_at >= database->settings.reconnect_max)
		database->failed_rounds = 0;
	else
		database->failed_rounds++;
}

/* The connection is of no use any more. */
static void lose(struct database *database, const char *sqlstate, const char *why)
{
	struct journal_fields fields;
	char text[TEXT_SIZE], refusal[TEXT_SIZE + 32], state[6], age[64];
	bool was_confirmed = database->confirmed;

	/* what the server said when it went is the better reason */
	snprintf(state, sizeof(state), "%s",
		 database->fatal[0] ? database->fatal_sqlstate : sqlstate);
	snprintf(text, sizeof(text), "%s", database->fatal[0] ? database->fatal : why);
	make_one_line(text);
	hide(text, PQpass(database->conn));
	drop_connection(database);
	if (database->stopping) {
		end(database);
		return;
	}
	if (!was_confirmed) {
		snprintf(refusal, sizeof(refusal), "cannot connect: %s", text);
		note_failed_attempt(database, JOURNAL_CONNECT_FAILED, state, refusal);
		advance(database);
		return;
	}
	note_trouble(database, state, text);
	age_text(database, age, sizeof(age));
	fields = fields_of(database, database->trouble_sqlstate);
	journal_write(
		database->environment->journal, JOURNAL_CONNECTION_LOST, &fields,
		"connection lost: %s%s%s; connecting anew; age of the oldest unclosed expired "
		"lease: %s",
		text, state[0] ? ", SQLSTATE " : "", state, age);
	count_short_life(database);
	pause_rounds(database);
}

static void leave_read_only(struct database *database, const struct lease_error *error)
{
	char label[320], text[TEXT_SIZE + 384];
	bool was_confirmed = database->confirmed;

	server_label(database->conn, label, sizeof(label));
	snprintf(text, sizeof(text), "%s: %s; connection dropped, trying the next host", label,
		 error->message);
	drop_connection(database);
	note_failed_attempt(database, JOURNAL_READ_ONLY, error->sqlstate, text);
	if (!was_confirmed) {
		advance(database);
		return;
	}
	count_short_life(database);
	pause_rounds(database);
}

static const char *advice_text(const struct lease_error *error)
{
	if (error->outcome_unknown)
		return "whether it took effect is not known, the next look will tell";
	switch (lease_error_advice(error)) {
	case LEASE_ADVICE_FIX:
		return "somebody must mend that; trying again";
	case LEASE_ADVICE_RECONNECT:
		return "connecting anew";
	case LEASE_ADVICE_RETRY:
	case LEASE_ADVICE_SPLIT:
		break;
	}
	return "trying again";
}

/* An operation failed. True: the connection is still there, the sweep will go on by itself. */
static bool handle_failure(struct database *database, const struct lease_error *error)
{
	struct journal_fields fields = fields_of(database, error->sqlstate);
	const char *key = error->sqlstate[0] ? "" : error->message;
	char text[sizeof(error->message) + 16];

	if (error->code == LEASE_E_READ_ONLY && !database->stopping) {
		leave_read_only(database, error);
		return false;
	}
	if (lease_error_advice(error) == LEASE_ADVICE_RECONNECT ||
	    PQstatus(database->conn) != CONNECTION_OK) {
		lose(database, error->sqlstate, error->message);
		return false;
	}
	confirm(database);
	database->failed = database->figures;
	snprintf(text, sizeof(text), "%s%s%s", error->message,
		 error->sqlstate[0] ? ", SQLSTATE " : "", error->sqlstate);
	note_trouble(database, error->sqlstate, text);
	if (is_news(&database->said, hash_of(error->sqlstate, key), INT64_MAX))
		journal_write(database->environment->journal, JOURNAL_SWEEP_FAILED, &fields,
			      "sweep failed: %s; %s", text, advice_text(error));
	else
		tell_again(database, JOURNAL_SWEEP_FAILING, "failing");
	return true;
}

/* Nothing that is over waits to be tried again; what is known will end later than that. */
static bool is_quiet(const struct database *database)
{
	return database->figures.due == 0 ||
	       lease_sweep_wake_at(database->sweep) > monotonic_now() + LOCKED_RETRY_MAX;
}

/* All that was over at the last scan is closed. */
static bool is_clean(const struct database *database)
{
	return database->figures.passes >= database->passes_needed && !database->waits_for_locked;
}

/* Keeps account of what is known to be closed, whenever the sweep comes to rest. */
static void account(struct database *database)
{
	const struct lease_sweep_figures *figures = &database->figures;
	const struct lease_sweep_figures *rested = &database->rested;
	int64_t now = monotonic_now(), wake_at = lease_sweep_wake_at(database->sweep);
	bool contended = figures->contended != rested->contended;

	/* a pass that a failure has interrupted says nothing: the next whole one does */
	if (figures->failures != rested->failures)
		database->passes_needed = figures->passes + 2;
	else if (figures->skipped != rested->skipped)
		database->passes_needed = figures->passes + 1;
	if (contended)
		database->waits_for_locked = true;
	if (is_quiet(database) || (figures->passes > rested->passes && !contended))
		database->waits_for_locked = false;
	if (is_clean(database))
		database->closed_until = wake_at > now && wake_at < INT64_MAX ? wake_at : now;
	else if (database->over_since == 0 && figures->passes > 0 && figures->expired > 0)
		database->over_since = now;
	database->rested = *figures;
}

static void tell_pass(struct database *database)
{
	const struct lease_sweep_figures *figures = &database->figures;
	struct journal_fields fields = fields_of(database, NULL);
	char scan[DURATION_SIZE], interval[DURATION_SIZE];
	char ttl[DURATION_SIZE], shortest[DURATION_SIZE];
	int64_t protected = 3 * database->settings.sweep.amnesty_after;

	journal_write(database->environment->journal, JOURNAL_PASS, &fields,
		      "scanned: %" PRId64 " open attempts, %" PRId64
		      " of them expired, %s in statements, the next scan in %s%s",
		      figures->open, figures->expired, duration_text(figures->scan_duration, scan),
		      duration_text(figures->next_interval, interval),
		      figures->stretched ? " (stretched: scanning takes long)" : "");
	if (figures->shortest_ttl > 0 && figures->shortest_ttl < protected &&
	    is_news(&database->said, hash_of("short leases", ""), INT64_MAX))
		journal_write(
			database->environment->journal, JOURNAL_SHORT_LEASES, &fields,
			"a lease of %s: the amnesty protects leases of %s and longer; lease for "
			"longer, or set a shorter amnesty_after",
			duration_text(figures->shortest_ttl, ttl),
			duration_text(protected, shortest));
}

static int64_t finished(const struct lease_sweep_figures *figures)
{
	return figures->passes + figures->closed + figures->failures + figures->skipped;
}

static void note_progress(struct database *database)
{
	struct lease_sweep_figures before = database->figures;

	lease_sweep_read_figures(database->sweep, &database->figures);
	if (finished(&database->figures) != finished(&before))
		database->finished_at = monotonic_now();
	if (database->figures.passes > before.passes) {
		metrics_count_sweeps(database->counters, database->figures.passes - before.passes);
		confirm(database);
		tell_pass(database);
		tell_change(database);
	}
}

/* What failed before goes well now: a run was closed, or a scan was and no run waits. */
static void recover(struct database *database)
{
	const struct lease_sweep_figures *figures = &database->figures;
	const struct lease_sweep_figures *failed = &database->failed;
	struct journal_fields fields = fields_of(database, NULL);
	char since[DURATION_SIZE], failures[160];

	if (database->trouble_since == 0 ||
	    (figures->closed == failed->closed &&
	     (figures->passes == failed->passes || !is_quiet(database))))
		return;
	failures_text(&database->failures, failures, sizeof(failures));
	journal_write(database->environment->journal, JOURNAL_SWEEP_RECOVERED, &fields,
		      "sweeping again, after %s and %s",
		      duration_text(monotonic_now() - database->trouble_since, since), failures);
	end_trouble(database);
}

static void rest(struct database *database)
{
	if (!watch(database, LEASE_POLL_READ)) {
		lose(database, "", "the connection has no socket any more");
		return;
	}
	database->state = STATE_IDLE;
	set_timer(database, lease_sweep_wake_at(database->sweep));
	tell_change(database);
}

/* Lets the sweep go on, and waits for what it asks for. */
static void drive(struct database *database)
{
	struct lease_error error;
	int events;

	stop_watching(database);
	events = lease_sweep_poll(database->sweep, database->conn, &error);
	note_progress(database);
	if (events > 0) {
		database->state = STATE_BUSY;
		set_timer(database, monotonic_now() + database->settings.network_timeout);
		if (!watch(database, events))
			lose(database, "", "the connection has no socket any more");
		return;
	}
	account(database);
	if (events < 0 && !handle_failure(database, &error))
		return;
	if (database->stopping) {
		end(database);
		return;
	}
	if (events == 0) {
		confirm(database);
		recover(database);
	}
	rest(database);
}

/* Nothing is asked for, and yet the server says something: mostly that it goes. */
static void listen_idle(struct database *database)
{
	PGnotify *notification;
	int consumed = PQconsumeInput(database->conn);

	while ((notification = PQnotifies(database->conn)) != NULL)
		PQfreemem(notification);
	if (!consumed || PQstatus(database->conn) != CONNECTION_OK)
		lose(database, "", PQerrorMessage(database->conn));
}

static void miss_answer(struct database *database)
{
	char text[TEXT_SIZE], after[DURATION_SIZE];

	snprintf(text, sizeof(text), "no answer within network_timeout (%s)",
		 duration_text(database->settings.network_timeout, after));
	lose(database, "", text);
}

/* -- what the sweep reports ------------------------------------------------------------------- */

static void arm_summary(struct database *database)
{
	if (!database->once && !ev_is_active(&database->summary_timer)) {
		ev_timer_set(&database->summary_timer, 1., 0.);
		ev_timer_start(database->environment->loop, &database->summary_timer);
	}
}

static void take_closed(void *argument, const struct lease_closed *closed)
{
	struct database *database = argument;

	if (!database->once)
		confirm(database);
	metrics_count_closed(database->counters, closed);
	if (!journal_closed(database->environment->journal, database->name, closed,
			    &database->summary))
		arm_summary(database);
}

/* A run that cannot be written comes up again with every scan: it is told once in a while. */
static void take_skipped(void *argument, const struct lease_skipped *skipped)
{
	struct database *database = argument;
	uint64_t key = hash_of(skipped->run_id, skipped->error->sqlstate);

	metrics_count_skipped(database->counters);
	if (!is_news(&database->skipped, key, SKIPPED_RHYTHM))
		return;
	if (!journal_skipped(database->environment->journal, database->name, skipped,
			     &database->summary))
		arm_summary(database);
}

static void take_amnesty(void *argument, int64_t until)
{
	struct database *database = argument;
	struct journal_fields fields = fields_of(database, NULL);
	struct lease_sweep_figures figures;
	char lasts[DURATION_SIZE], after[DURATION_SIZE];

	metrics_count_amnesty(database->counters);
	lease_sweep_read_figures(database->sweep, &figures);
	journal_write(database->environment->journal, JOURNAL_AMNESTY, &fields,
		      "no heartbeat for more than %s, or the clock jumped: nobody could renew, so "
		      "leases that ended meanwhile hold for another %s",
		      duration_text(database->settings.sweep.amnesty_after, after),
		      duration_text(until - figures.beat_at, lasts));
}

static void take_clock_jump(void *argument, int64_t by)
{
	struct database *database = argument;
	struct journal_fields fields = fields_of(database, NULL);
	char far[DURATION_SIZE];

	metrics_count_clock_jump(database->counters);
	journal_write(database->environment->journal, JOURNAL_CLOCK_JUMPED, &fields,
		      "the database's clock jumped %s by %s: nothing is swept before an amnesty is "
		      "granted; check the server's time synchronisation",
		      by < 0 ? "back" : "forward", duration_text(by < 0 ? -by : by, far));
}

/* -- watchers --------------------------------------------------------------------------------- */

static void on_io(struct ev_loop *loop, ev_io *watcher, int events)
{
	struct database *database = watcher->data;

	(void)loop;
	(void)events;
	switch (database->state) {
	case STATE_CONNECTING:
		connect_step(database);
		break;
	case STATE_BUSY:
		drive(database);
		break;
	case STATE_IDLE:
		listen_idle(database);
		break;
	case STATE_PAUSED:
	case STATE_STOPPED:
		break;
	}
}

static void on_timer(struct ev_loop *loop, ev_timer *watcher, int events)
{
	struct database *database = watcher->data;

	(void)loop;
	(void)events;
	switch (database->state) {
	case STATE_PAUSED:
		connect_anew(database);
		break;
	case STATE_CONNECTING:
		fail_by_deadline(database);
		break;
	case STATE_BUSY:
		miss_answer(database);
		break;
	case STATE_IDLE:
		drive(database);
		break;
	case STATE_STOPPED:
		break;
	}
}

static void on_summary(struct ev_loop *loop, ev_timer *watcher, int events)
{
	struct database *database = watcher->data;

	(void)loop;
	(void)events;
	journal_summarize(database->environment->journal, database->name, &database->summary);
}

/* -- life ------------------------------------------------------------------------------------- */

static enum lease_policy policy_of(enum config_policy policy)
{
	switch (policy) {
	case CONFIG_POLICY_FAIL:
		return LEASE_POLICY_FAIL;
	case CONFIG_POLICY_REQUEUE:
		return LEASE_POLICY_REQUEUE;
	case CONFIG_POLICY_RECORD:
		break;
	}
	return LEASE_POLICY_RECORD;
}

static void read_settings(struct settings *settings, const struct config *config,
			  const struct config_database *entry)
{
	const struct config_sweep *sweep = &entry->sweep;

	settings->connect_timeout = config->connect_timeout_us;
	settings->network_timeout = config->network_timeout_us;
	settings->reconnect_min = config->reconnect_min_us;
	settings->reconnect_max = config->reconnect_max_us;
	lease_sweep_options_init(&settings->sweep);
	settings->sweep.interval = sweep->interval_us;
	settings->sweep.orphan_interval = sweep->orphan_interval_us;
	settings->sweep.statement_timeout = sweep->statement_timeout_us;
	settings->sweep.lock_timeout = sweep->lock_timeout_us;
	settings->sweep.batch_size = sweep->batch_size;
	settings->sweep.scan_page = config->scan_page;
	settings->sweep.due_limit = config->due_limit;
	settings->sweep.policy = policy_of(sweep->policy);
	settings->sweep.max_lease_losses = sweep->max_lease_losses;
	settings->sweep.notify = sweep->notify != 0;
	settings->sweep.amnesty_after = sweep->amnesty ? sweep->amnesty_after_us
						       : LEASE_AMNESTY_OFF;
	settings->sweep.amnesty_grace = sweep->amnesty_grace_us;
	settings->sweep.max_clock_jump = sweep->amnesty ? sweep->max_clock_jump_us : 0;
}

static bool copy(const char *from, char **to)
{
	*to = from ? strdup(from) : NULL;
	return !from || *to;
}

/* Made, but not begun. */
static struct database *make(const struct database_environment *environment,
			     const struct config *config, const struct config_database *entry)
{
	struct database *database = calloc(1, sizeof(*database));
	struct lease_sweep_callbacks callbacks = {
		.closed = take_closed,
		.skipped = take_skipped,
		.amnesty = take_amnesty,
		.clock_jumped = take_clock_jump,
		.arg = database,
	};

	if (!database)
		return NULL;
	database->environment = environment;
	database->state = STATE_STOPPED;
	database->timer_at = INT64_MAX;
	ev_init(&database->io, on_io);
	ev_init(&database->timer, on_timer);
	ev_init(&database->summary_timer, on_summary);
	database->io.data = database->timer.data = database->summary_timer.data = database;
	read_settings(&database->settings, config, entry);
	if (getrandom(&database->random, sizeof(database->random), GRND_NONBLOCK) < 0)
		database->random = (uint64_t)monotonic_now();
	database->random |= 1; /* zero would stay zero */
	database->finished_at = monotonic_now();
	database->passes_needed = 1;
	database->counters = metrics_join(environment->metrics, entry->name);
	if (database->counters && copy(entry->name, &database->name) &&
	    copy(entry->conninfo, &database->conninfo) &&
	    copy(entry->password_file, &database->password_file) &&
	    lease_sweep_new(&database->settings.sweep, &callbacks, &database->sweep, NULL) == 0)
		return database;
	database_free(database);
	return NULL;
}

struct database *database_new(const struct database_environment *environment,
			      const struct config *config, const struct config_database *entry)
{
	struct database *database = make(environment, config, entry);

	if (database) {
		database->state = STATE_PAUSED;
		set_timer(database, monotonic_now());
	}
	return database;
}

static bool same_text(const char *a, const char *b)
{
	return a && b ? strcmp(a, b) == 0 : !a && !b;
}

bool database_matches(const struct database *database, const struct config_database *entry)
{
	return !database->stopping && same_text(database->name, entry->name) &&
	       same_text(database->conninfo, entry->conninfo) &&
	       same_text(database->password_file, entry->password_file);
}

void database_apply(struct database *database, const struct config *config,
		    const struct config_database *entry)
{
	struct settings before = database->settings;
	struct lease_error error;

	read_settings(&database->settings, config, entry);
	if (lease_sweep_set_options(database->sweep, &database->settings.sweep, &error) < 0) {
		journal_write(database->environment->journal, JOURNAL_RELOAD_REFUSED,
			      &(struct journal_fields){ .database = database->name },
			      "the new options are not in force: %s", error.message);
		database->settings.sweep = before.sweep;
	}
	if (database->state == STATE_IDLE)
		set_timer(database, lease_sweep_wake_at(database->sweep));
	else if (database->state == STATE_PAUSED && database->failed_rounds > 0)
		set_timer(database, monotonic_now() + pause_length(database));
}

void database_stop(struct database *database)
{
	if (database->stopping || database->state == STATE_STOPPED)
		return;
	database->stopping = true;
	if (database->state == STATE_BUSY)
		lease_sweep_stop(database->sweep);
	else
		end(database);
}

bool database_is_stopped(const struct database *database)
{
	return database->state == STATE_STOPPED;
}

void database_free(struct database *database)
{
	struct ev_loop *loop;

	if (!database)
		return;
	loop = database->environment->loop;
	ev_io_stop(loop, &database->io);
	ev_timer_stop(loop, &database->timer);
	ev_timer_stop(loop, &database->summary_timer);
	PQfinish(database->conn);
	end_round(&database->round);
	lease_sweep_free(database->sweep);
	metrics_leave(database->environment->metrics, database->counters);
	free(database->name);
	if (database->conninfo)
		explicit_bzero(database->conninfo, strlen(database->conninfo));
	free(database->conninfo);
	free(database->password_file);
	free(database);
}

/* -- what can be seen of it ------------------------------------------------------------------- */

const char *database_name(const struct database *database)
{
	return database->name;
}

bool database_is_connected(const struct database *database)
{
	return database->confirmed;
}

bool database_is_well(const struct database *database)
{
	return database->confirmed && database->trouble_since == 0;
}

/* What is over and not closed, by the last scan. */
static int64_t expired_unclosed(const struct database *database)
{
	return is_clean(database) ? 0 : database->figures.expired;
}

bool database_measure(const struct database *database, struct metrics_sample *ret)
{
	bool is_bound;

	if (database->stopping)
		return false;
	*ret = (struct metrics_sample){
		.counters = database->counters,
		.up = database->confirmed,
		.scanned = database->figures.passes > 0,
		.sweep = database->figures,
		.expired = expired_unclosed(database),
		.oldest_unclosed = oldest_unclosed(database, &is_bound),
	};
	return true;
}

static void describe_unreachable(const struct database *database, FILE *file)
{
	char since[DURATION_SIZE], next[DURATION_SIZE], age[64];
	int64_t now = monotonic_now();
	int64_t left = database->timer_at - now;

	age_text(database, age, sizeof(age));
	fprintf(file, "unreachable for %s, ", duration_text(now - database->trouble_since, since));
	if (database->state == STATE_PAUSED)
		fprintf(file, "retry in %s, ",
			duration_text(left > LEASE_SECOND ? left : LEASE_SECOND, next));
	else
		fputs("trying now, ", file);
	fprintf(file, "oldest unclosed expired lease %s (%.160s)", age, database->trouble);
}

static void describe_sweep(const struct database *database, FILE *file)
{
	const struct lease_sweep_figures *figures = &database->figures;
	char age[64], interval[DURATION_SIZE];

	age_text(database, age, sizeof(age));
	fprintf(file,
		"%" PRId64 " open, %" PRId64 " expired, oldest unclosed %s, %" PRId64 " closed",
		figures->open, expired_unclosed(database), age, figures->closed);
	if (figures->amnesty_until != LEASE_TIME_NONE)
		fprintf(file, ", amnesty for %s: %" PRId64 " kept",
			duration_text(figures->amnesty_until - figures->beat_at, interval),
			figures->pardoned);
	if (figures->stretched)
		fprintf(file, ", a scan every %s only, since scanning takes long",
			duration_text(figures->next_interval, interval));
}

bool database_describe(const struct database *database, FILE *file)
{
	char since[DURATION_SIZE], age[64];

	fprintf(file, "%s: ", database->name);
	if (!database->confirmed) {
		if (database->trouble_since == 0) {
			fputs("connecting", file);
			return false;
		}
		describe_unreachable(database, file);
		return true;
	}
	if (database->trouble_since != 0) {
		age_text(database, age, sizeof(age));
		fprintf(file, "failing for %s, oldest unclosed expired lease %s (%.160s)",
			duration_text(monotonic_now() - database->trouble_since, since), age,
			database->trouble);
		return true;
	}
	if (database->figures.passes == 0) {
		fputs("first scan under way", file);
		return false;
	}
	describe_sweep(database, file);
	return database->closed_until == 0 ||
	       monotonic_now() - database->closed_until >= LEASE_SECOND;
}

int64_t database_lateness(const struct database *database)
{
	int64_t now = monotonic_now(), late = 0;
	int64_t patience = FINISH_PATIENCE + 4 * database->settings.sweep.interval +
			   4 * database->figures.next_interval;

	if (database->state == STATE_STOPPED)
		return 0;
	if (now > database->timer_at && now - database->timer_at > LATE_PATIENCE)
		late = now - database->timer_at;
	if (database->confirmed && now - database->finished_at > patience &&
	    now - database->finished_at - patience > late)
		late = now - database->finished_at - patience;
	return late;
}

/* -- one sweep, for --once -------------------------------------------------------------------- */

static void reconcile(struct database *database)
{
	struct once *once = database->once;
	struct lease_error error;
	char label[320];

	once->result = lease_reconcile_expired_leases(
		database->conn, &database->settings.sweep,
		&(struct lease_sweep_callbacks){
			.closed = take_closed, .skipped = take_skipped, .arg = database },
		once->figures, &error);
	if (once->result >= 0) {
		end(database);
		return;
	}
	server_label(database->conn, label, sizeof(label));
	if (error.code == LEASE_E_READ_ONLY) {
		leave_read_only(database, &error);
		return;
	}
	hide(error.message, PQpass(database->conn));
	snprintf(once->message, once->size, "%s: %s%s%s", label, error.message,
		 error.sqlstate[0] ? ", SQLSTATE " : "", error.sqlstate);
	end(database);
}

int database_reconcile_once(const struct database_environment *environment,
			    const struct config *config, const struct config_database *entry,
			    struct lease_sweep_figures *ret_figures, char *message, size_t size)
{
	struct once once = { LEASE_E_CONNECTION, ret_figures, message, size };
	struct database *database = make(environment, config, entry);

	message[0] = '\0';
	if (!database) {
		snprintf(message, size, "out of memory");
		return LEASE_E_MEMORY;
	}
	database->once = &once;
	database->state = STATE_PAUSED;
	set_timer(database, monotonic_now());
	while (database->state != STATE_STOPPED)
		ev_run(environment->loop, 0);
	database_free(database);
	return once.result;
}
