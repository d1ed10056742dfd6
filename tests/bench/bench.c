/*
 * The bench: runs the measurements against a private cluster, prints their figures as a table and
 * writes them as a flat JSON object, a table in Markdown and a picture. Run it by `make bench`;
 * docs/bench/README.md says what the figures mean.
 *
 * It promises no verdict: a figure short of its aim is marked, and the exit code stays 0. What
 * could not be measured ends it with an error, and no file is written.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "bench.h"

static const struct measurement measurements[] = {
	{ "renewals", "renewals of single leases and of many at once", measure_renewals },
	{ "sweeps", "closing many expired leases, and how long rows stay locked", measure_sweeps },
	{ "verbs", "claims and ends of runs, beside the same statements sent by pgbench",
	  measure_verbs },
	{ "growth", "the same work with more and more closed attempts behind", measure_growth },
	{ "bloat", "tables and indexes after millions of renewals", measure_bloat },
	{ "held", "renewals and sweeps while somebody holds a snapshot open", measure_held },
	{ "detection", "from a lease's end to its attempt being closed by the daemon",
	  measure_detection },
	{ "storm", "very many leases over at once, workers beside it, two daemons", measure_storm },
	{ "idle", "what the daemon costs while nothing happens", measure_idle },
};

enum { MEASUREMENTS = sizeof(measurements) / sizeof(measurements[0]) };

/* -- options ---------------------------------------------------------------------------------- */

static void print_usage(FILE *file)
{
	fputs("usage: bench [--quick] [--only NAME] [--open N] [--history N] [--storm N] [FILE]\n"
	      "\n"
	      "Needs a PostgreSQL of its own: `make bench`, or tests/cluster.sh with build/tests/bench/bench.\n"
	      "\n"
	      "  --quick      fewer and shorter rounds, on 20,000 open leases and 100,000 closed attempts\n"
	      "  --only NAME  one measurement\n"
	      "  --open N     open leases (100000)\n"
	      "  --history N  closed attempts behind them (1000000)\n"
	      "  --storm N    leases that are over at once in a storm, and as many that hold (1000000)\n"
	      "  FILE         where to write the figures as JSON; beside it a table (.md) and a picture (.svg)\n"
	      "\n"
	      "measurements:\n",
	      file);
	for (int i = 0; i < MEASUREMENTS; i++)
		fprintf(file, "  %-12s %s\n", measurements[i].name, measurements[i].what);
}

static void __attribute__((noreturn)) usage_error(const char *what, const char *value)
{
	fprintf(stderr, "bench: %s '%s'\n", what, value);
	print_usage(stderr);
	exit(EX_USAGE);
}

static const char *parse_measurement(const char *name)
{
	for (int i = 0; i < MEASUREMENTS; i++)
		if (strcmp(measurements[i].name, name) == 0)
			return name;
	usage_error("no such measurement:", name);
}

static void parse_options(struct bench *bench, int argc, char **argv)
{
	static const struct option options[] = {
		{ "quick", no_argument, NULL, 'q' },
		{ "only", required_argument, NULL, 'n' },
		{ "open", required_argument, NULL, 'o' },
		{ "history", required_argument, NULL, 'h' },
		{ "storm", required_argument, NULL, 's' },
		{ "help", no_argument, NULL, '?' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'q')
			bench->quick = true;
		else if (option == 'n')
			bench->only = parse_measurement(optarg);
		else if (option == 'o')
			/* fewer than that would be renewed by all clients at once */
			bench->open = parse_count("--open", optarg, (long)CLIENTS * BATCH);
		else if (option == 'h')
			bench->history = parse_count("--history", optarg, 0);
		else if (option == 's')
			bench->storm = parse_count("--storm", optarg, (long)CLIENTS * BATCH);
		else if (strcmp(argv[optind - 1], "--help") == 0) {
			print_usage(stdout);
			exit(0);
		} else
			usage_error("unknown option, or one without its value:", argv[optind - 1]);
	}
	if (argc - optind > 1)
		usage_error("one FILE at most, not also", argv[optind + 1]);
	bench->json = argv[optind];
	if (!bench->open)
		bench->open = bench->quick ? 20000 : 100000;
	if (!bench->storm)
		bench->storm = bench->quick ? 20000 : 1000000;
	if (bench->history < 0)
		bench->history = bench->quick ? 100000 : 1000000;
}

/* What it took goes to stderr only: it is a matter of this program, not of what it measures. */
static void run_measurement(struct bench *bench, const struct measurement *measurement)
{
	int64_t began = clock_us();

	progress("%s: %s", measurement->name, measurement->what);
	measurement->run(bench);
	progress("%s: took %.1f s", measurement->name, (double)(clock_us() - began) / 1e6);
}

static int server_version(void)
{
	PGconn *conn = PQconnectdb("");
	int version = PQserverVersion(conn) / 10000;

	if (version == 0)
		die("no server: %s", PQerrorMessage(conn));
	PQfinish(conn);
	return version;
}

/* The table and the picture lie beside the JSON file, under its name. */
static void write_files(const char *json)
{
	static const struct {
		const char *ending;
		void (*write)(FILE *file);
	} forms[] = { { "md", write_markdown }, { "svg", write_picture } };
	const char *dot = strrchr(json, '.');
	int length = (int)(dot && !strchr(dot, '/') ? dot - json : (long)strlen(json));

	figures_write(json);
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		char *path;

		if (asprintf(&path, "%.*s.%s", length, json, forms[i].ending) < 0)
			die("out of memory");
		write_whole(path, forms[i].write);
		free(path);
	}
}

int main(int argc, char **argv)
{
	struct bench bench = { .history = -1 };

	parse_options(&bench, argc, argv);
	setvbuf(stdout, NULL, _IOLBF, 0);
	figure("cores", (double)sysconf(_SC_NPROCESSORS_ONLN), "", NO_AIM, 0,
	       "shared by server, clients and daemon");
	figure("postgresql", server_version(), "", NO_AIM, 0, "the server's major version");
	figure("open_leases", (double)bench.open, "", NO_AIM, 0, "open attempts in the database");
	figure("closed_attempts", (double)bench.history, "", NO_AIM, 0,
	       "closed ones behind them, two for each of half as many runs");
	for (int i = 0; i < MEASUREMENTS; i++)
		if (!bench.only || strcmp(bench.only, measurements[i].name) == 0)
			run_measurement(&bench, &measurements[i]);
	PQfinish(bench.conn);
	free(bench.conninfo);
	figures_print();
	if (bench.json)
		write_files(bench.json);
	return 0;
}
