/*
 * lease-reconciler: closes the attempts of runs whose lease timed out.
 *
 * What the program is made of, in the order in which it comes to life: options, configuration,
 * journal, databases, service. All state that is the program's own is in `self`, here and nowhere
 * else. Exit codes are those of sysexits.h.
 *
 * Must never: begin with half a configuration, keep going with half a new one, or leave with
 * anything but 0 when it was asked to.
 */
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "config.h"
#include "database.h"
#include "journal.h"
#include "metrics.h"
#include "service.h"

#define PROGRAM "lease-reconciler"
#ifndef LEASE_SYSCONFDIR
#define LEASE_SYSCONFDIR "/etc"
#endif
#define DEFAULT_CONFIG LEASE_SYSCONFDIR "/lease-reconciler.yaml"
/* How long what is in flight may take after SIGTERM; the whole is to be over within 2 s. */
#define STOP_SECONDS 1.5

static struct {
	const char *config_path;
	struct config *config;
	struct journal journal;
	struct service service;
	struct metrics metrics;
	struct ev_loop *loop;
	struct database_environment environment;
	struct database **databases;
	size_t n_databases;
	bool some_changed; /* one may have come to its end */
	bool stopping;
	ev_signal terminate, interrupt, hangup;
	ev_timer begin, stop_deadline;
	ev_prepare collect;
} self;

/* -- before the start ------------------------------------------------------------------------- */

/* One line to whoever started us: the journal with its fields, or a person. */
static int refuse(int code, const char *message)
{
	if (self.journal.to_journal)
		journal_write(&self.journal, JOURNAL_START_REFUSED, NULL, "%s", message);
	else
		fprintf(stderr, "%s\n", message);
	return code;
}

/* What the file says about connections is for libpq to judge. */
static int check_connections(const struct config *config, char *message, size_t size)
{
	char fault[512];

	for (size_t i = 0; i < config->databases_count; i++)
		if (database_check_conninfo(&config->databases[i], fault, sizeof(fault)) < 0) {
			snprintf(message, size, "%s: databases[%zu] ('%s'): %s", self.config_path,
				 i + 1, config->databases[i].name, fault);
			return -1;
		}
	return 0;
}

/* 0, or the exit code, with a line in `message`. */
static int load(struct config **ret, char *message, size_t size)
{
	struct config_error error;
	struct config *config;
	int r = config_load(self.config_path, &config, &error);

	if (r < 0) {
		snprintf(message, size, "%s", error.message);
		return -r;
	}
	if (check_connections(config, message, size) < 0) {
		config_free(config);
		return EX_CONFIG;
	}
	*ret = config;
	return 0;
}

/* A closed one would be taken by the first connection, and log lines would go to the server. */
static void open_standard_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

/* -- databases -------------------------------------------------------------------------------- */

static void note_change(void *arg)
{
	(void)arg;
	self.some_changed = true;
	service_changed(&self.service);
}

static void add_database(struct database *database)
{
	self.databases[self.n_databases++] = database;
}

/* Room for so many more. False: there is none. */
static bool reserve(size_t n)
{
	struct database **grown = reallocarray(self.databases, self.n_databases + n,
					       sizeof(struct database *));

	if (grown)
		self.databases = grown;
	return grown != NULL;
}

static struct database *find_database(const struct config_database *entry)
{
	for (size_t i = 0; i < self.n_databases; i++)
		if (database_matches(self.databases[i], entry))
			return self.databases[i];
	return NULL;
}

static bool is_configured(const struct database *database, const struct config *config)
{
	for (size_t i = 0; i < config->databases_count; i++)
		if (database_matches(database, &config->databases[i]))
			return true;
	return false;
}

/*
 * Makes the databases of `config` that are not there yet, all or none; they begin when the loop
 * goes on.
 */
static bool make_databases(const struct config *config)
{
	size_t before = self.n_databases;

	if (!reserve(config->databases_count))
		return false;
	for (size_t i = 0; i < config->databases_count; i++) {
		struct database *database;

		if (find_database(&config->databases[i]))
			continue;
		database = database_new(&self.environment, config, &config->databases[i]);
		if (!database) {
			while (self.n_databases > before)
				database_free(self.databases[--self.n_databases]);
			return false;
		}
		add_database(database);
	}
	return true;
}

static bool are_all_stopped(void)
{
	for (size_t i = 0; i < self.n_databases; i++)
		if (!database_is_stopped(self.databases[i]))
			return false;
	return true;
}

/*
 * Frees those that came to their end; nothing of theirs is running now. When the daemon stops they
 * stay for their last figures.
 */
static void on_collect(struct ev_loop *loop, ev_prepare *watcher, int events)
{
	size_t kept = 0;

	(void)watcher;
	(void)events;
	if (!self.some_changed)
		return;
	self.some_changed = false;
	if (self.stopping) {
		if (are_all_stopped())
			ev_break(loop, EVBREAK_ALL);
		return;
	}
	for (size_t i = 0; i < self.n_databases; i++) {
		struct database *database = self.databases[i];

		if (!database_is_stopped(database)) {
			self.databases[kept++] = database;
			continue;
		}
		journal_write(&self.journal, JOURNAL_DATABASE_REMOVED,
			      &(struct journal_fields){ .database = database_name(database) },
			      "left: it is not in the configuration any more, or connects "
			      "otherwise now");
		database_free(database);
	}
	self.n_databases = kept;
}

/* -- what the service tells ------------------------------------------------------------------- */

/* Those in trouble first: the text may be cut. */
static bool describe(void *arg, FILE *file)
{
	size_t connected = 0;
	bool goes_on = false;

	(void)arg;
	for (size_t i = 0; i < self.n_databases; i++)
		connected += database_is_connected(self.databases[i]);
	fprintf(file, "%zu database%s: %zu connected", self.n_databases,
		self.n_databases == 1 ? "" : "s", connected);
	for (int well = 0; well <= 1; well++)
		for (size_t i = 0; i < self.n_databases; i++) {
			if (database_is_well(self.databases[i]) != well)
				continue;
			fputs("; ", file);
			goes_on |= database_describe(self.databases[i], file);
		}
	return goes_on;
}

static size_t measure(void *arg, struct metrics_sample *samples, size_t size)
{
	struct metrics_sample sample;
	size_t n = 0;

	(void)arg;
	for (size_t i = 0; i < self.n_databases; i++)
		if (database_measure(self.databases[i], &sample)) {
			if (n < size)
				samples[n] = sample;
			n++;
		}
	return n;
}

static void configure_metrics(const struct config *config)
{
	metrics_configure(&self.metrics, config->metrics_file, config->metrics_interval_us);
}

static const char *find_late(void *arg, int64_t *ret_lateness)
{
	(void)arg;
	for (size_t i = 0; i < self.n_databases; i++) {
		*ret_lateness = database_lateness(self.databases[i]);
		if (*ret_lateness > 0)
			return database_name(self.databases[i]);
	}
	return NULL;
}

/* -- signals ---------------------------------------------------------------------------------- */

static void on_stop_deadline(struct ev_loop *loop, ev_timer *watcher, int events)
{
	(void)watcher;
	(void)events;
	ev_break(loop, EVBREAK_ALL);
}

static void on_terminate(struct ev_loop *loop, ev_signal *watcher, int events)
{
	(void)watcher;
	(void)events;
	if (self.stopping) { /* asked twice: at once */
		ev_break(loop, EVBREAK_ALL);
		return;
	}
	self.stopping = true;
	self.some_changed = true;
	service_stopping(&self.service);
	for (size_t i = 0; i < self.n_databases; i++)
		database_stop(self.databases[i]);
	ev_now_update(loop);
	ev_timer_start(loop, &self.stop_deadline);
}

/* Swaps the configurations; all that can fail was done before. */
static void put_in_force(struct config *config)
{
	for (size_t i = 0; i < self.n_databases; i++)
		if (!is_configured(self.databases[i], config))
			database_stop(self.databases[i]);
	for (size_t i = 0; i < config->databases_count; i++)
		database_apply(find_database(&config->databases[i]), config, &config->databases[i]);
	configure_metrics(config);
	config_free(self.config);
	self.config = config;
}

static void reload(void)
{
	struct config *config = NULL;
	char message[2048];

	load(&config, message, sizeof(message));
	if (config && !make_databases(config)) {
		config_free(config);
		config = NULL;
		snprintf(message, sizeof(message), "out of memory");
	}
	if (!config) {
		journal_write(&self.journal, JOURNAL_RELOAD_REFUSED, NULL,
			      "configuration not reloaded, the old one stays in force: %s",
			      message);
		return;
	}
	journal_open(&self.journal, &config->log);
	put_in_force(config);
	journal_write(&self.journal, JOURNAL_RELOADED, NULL,
		      "configuration reloaded: %zu database%s", self.config->databases_count,
		      self.config->databases_count == 1 ? "" : "s");
}

static void on_hangup(struct ev_loop *loop, ev_signal *watcher, int events)
{
	(void)loop;
	(void)watcher;
	(void)events;
	if (self.stopping)
		return;
	service_reloading(&self.service);
	reload();
	service_ready(&self.service);
}

/* -- the daemon ------------------------------------------------------------------------------- */

/* The first thing that the loop does. */
static void on_begin(struct ev_loop *loop, ev_timer *watcher, int events)
{
	(void)loop;
	(void)watcher;
	(void)events;
	journal_write(&self.journal, JOURNAL_STARTED, NULL, PROGRAM " %s started, %zu database%s",
		      lease_version(), self.n_databases, self.n_databases == 1 ? "" : "s");
	service_ready(&self.service);
}

static void start_watchers(void)
{
	ev_timer_init(&self.begin, on_begin, 0., 0.);
	ev_timer_init(&self.stop_deadline, on_stop_deadline, STOP_SECONDS, 0.);
	ev_prepare_init(&self.collect, on_collect);
	ev_signal_init(&self.terminate, on_terminate, SIGTERM);
	ev_signal_init(&self.interrupt, on_terminate, SIGINT);
	ev_signal_init(&self.hangup, on_hangup, SIGHUP);
	ev_timer_start(self.loop, &self.begin);
	ev_prepare_start(self.loop, &self.collect);
	ev_signal_start(self.loop, &self.terminate);
	ev_signal_start(self.loop, &self.interrupt);
	ev_signal_start(self.loop, &self.hangup);
}

static int run_daemon(void)
{
	start_watchers();
	service_init(&self.service, self.loop, &self.journal,
		     (struct service_source){ describe, find_late, NULL });
	metrics_init(&self.metrics, self.loop, &self.journal,
		     (struct metrics_source){ measure, NULL });
	if (!make_databases(self.config))
		return refuse(EX_OSERR, PROGRAM ": out of memory");
	configure_metrics(self.config);
	ev_run(self.loop, 0);
	metrics_stop(&self.metrics);
	journal_write(&self.journal, JOURNAL_STOPPED, NULL, "stopped%s",
		      are_all_stopped()
			      ? ""
			      : "; a transaction that was in flight is rolled back by the "
				"server");
	while (self.n_databases > 0)
		database_free(self.databases[--self.n_databases]);
	service_done(&self.service);
	return EX_OK;
}

/* -- the other modes -------------------------------------------------------------------------- */

static int check_config(bool verbose)
{
	if (verbose)
		config_print(stdout, self.config);
	else
		printf("%s: ok, %zu database%s\n", self.config_path, self.config->databases_count,
		       self.config->databases_count == 1 ? "" : "s");
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, PROGRAM ": cannot write to stdout: %s\n", strerror(errno));
		return EX_IOERR;
	}
	return EX_OK;
}

static void print_swept(const char *name, const struct lease_sweep_figures *figures)
{
	printf("%s: %" PRId64 " open, %" PRId64 " expired, %" PRId64 " closed", name, figures->open,
	       figures->expired, figures->closed);
	for (int status = 0; status <= LEASE_RUN_INTERRUPTED; status++)
		if (figures->moved[status] > 0)
			printf(", %" PRId64 " %s", figures->moved[status],
			       lease_run_status_name((enum lease_run_status)status));
	if (figures->due > 0)
		printf(", %" PRId64 " left (locked by somebody else)", figures->due);
	if (figures->skipped > 0)
		printf(", %" PRId64 " passed over (the database refused)", figures->skipped);
	putchar('\n');
}

static int run_once(void)
{
	int code = EX_OK;

	for (size_t i = 0; i < self.config->databases_count; i++) {
		const struct config_database *entry = &self.config->databases[i];
		struct lease_sweep_figures figures = { 0 };
		char message[1024];

		if (database_reconcile_once(&self.environment, self.config, entry, &figures,
					    message, sizeof(message)) < 0) {
			fflush(stdout);
			fprintf(stderr, "%s: failed: %s\n", entry->name, message);
			code = EX_TEMPFAIL;
			continue;
		}
		print_swept(entry->name, &figures);
		if (figures.due > 0 || figures.skipped > 0)
			code = EX_TEMPFAIL;
	}
	if (fflush(stdout) != 0)
		code = code ? code : EX_IOERR;
	return code;
}

/* -- options ---------------------------------------------------------------------------------- */

struct options {
	bool check, verbose, once, version, help;
};

static void print_help(void)
{
	printf("usage: " PROGRAM " [--config FILE]\n"
	       "       " PROGRAM " --check-config [--verbose] [--config FILE]\n"
	       "       " PROGRAM " --once [--config FILE]\n"
	       "\n"
	       "Closes the open attempts of runs whose lease timed out, as lease_expired, and moves\n"
	       "the runs on by policy.\n"
	       "\n"
	       "  --config FILE    the configuration (" DEFAULT_CONFIG ")\n"
	       "  --check-config   check the configuration, connect to nothing\n"
	       "  --verbose        with --check-config: print what is in force, passwords masked\n"
	       "  --once           one sweep of every database, one line each, then leave\n"
	       "  --version        print the version\n"
	       "  --help           print this\n"
	       "\n"
	       "SIGHUP reloads the configuration; SIGTERM and SIGINT end the daemon.\n"
	       "Exit codes: 0 well; 64 wrong usage; 66 the configuration cannot be read; 75 with\n"
	       "--once: a database failed or rows were left; 78 the configuration is wrong.\n");
}

static int refuse_usage(const char *what, const char *argument)
{
	fprintf(stderr, PROGRAM ": %s%s%s%s; see " PROGRAM " --help\n", what, argument ? " '" : "",
		argument ? argument : "", argument ? "'" : "");
	return EX_USAGE;
}

static int parse_options(int argc, char *argv[], struct options *options)
{
	enum { CONFIG = 256, CHECK, VERBOSE, ONCE, VERSION, HELP };
	static const struct option known[] = {
		{ "config", required_argument, NULL, CONFIG },
		{ "check-config", no_argument, NULL, CHECK },
		{ "verbose", no_argument, NULL, VERBOSE },
		{ "once", no_argument, NULL, ONCE },
		{ "version", no_argument, NULL, VERSION },
		{ "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 },
	};

	opterr = 0;
	for (;;) {
		int at = optind;

		switch (getopt_long(argc, argv, "+:", known, NULL)) {
		case CONFIG:
			self.config_path = optarg;
			continue;
		case CHECK:
			options->check = true;
			continue;
		case VERBOSE:
			options->verbose = true;
			continue;
		case ONCE:
			options->once = true;
			continue;
		case VERSION:
			options->version = true;
			continue;
		case HELP:
			options->help = true;
			continue;
		case ':':
			return refuse_usage("an argument is missing after", argv[at]);
		case '?':
			return refuse_usage(optopt >= CONFIG ? "no argument is allowed in"
							     : "unknown option",
					    argv[at]);
		default:
			break;
		}
		break;
	}
	if (optind < argc)
		return refuse_usage("unexpected argument", argv[optind]);
	if (options->check && options->once)
		return refuse_usage("--check-config and --once exclude each other", NULL);
	if (options->verbose && !options->check)
		return refuse_usage("--verbose goes with --check-config", NULL);
	return 0;
}

/* The work, once options and configuration are read. */
static int run(const struct options *options)
{
	int code;

	if (options->check)
		return check_config(options->verbose);
	self.loop = ev_default_loop(EVFLAG_AUTO | EVFLAG_NOENV);
	if (!self.loop)
		return refuse(EX_OSERR, PROGRAM ": the event loop cannot be made");
	self.environment = (struct database_environment){ self.loop, &self.journal, &self.metrics,
							  note_change, NULL };
	code = options->once ? run_once() : run_daemon();
	free(self.databases);
	ev_loop_destroy(self.loop);
	return code;
}

int main(int argc, char *argv[])
{
	struct options options = { .check = false };
	char message[2048];
	int code;

	open_standard_streams();
	signal(SIGPIPE, SIG_IGN);
	self.config_path = DEFAULT_CONFIG;
	code = parse_options(argc, argv, &options);
	if (code != 0)
		return code;
	if (options.help || options.version) {
		if (options.help)
			print_help();
		else
			printf(PROGRAM " %s\n", lease_version());
		return fflush(stdout) == 0 ? EX_OK : EX_IOERR;
	}
	journal_open(&self.journal, NULL);
	code = load(&self.config, message, sizeof(message));
	if (code != 0)
		return refuse(code, message);
	journal_open(&self.journal, &self.config->log);
	code = run(&options);
	config_free(self.config);
	return code;
}
