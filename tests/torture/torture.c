/*
 * The fault campaign: a fleet of workers and daemons on a PostgreSQL of its own, faults at random,
 * and a checker that reads the history. Run it by `make torture FAULTS=N SEED=S`; docs/torture.md
 * says what it does and what it has found.
 *
 * The faults are a function of the seed alone. The last line it prints is
 * `torture: faults=N operations=M violations=V`; exit code 1 if V is not 0. It leaves no process
 * and no file behind.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sysexits.h>

#include "checker.h"
#include "fleet.h"
#include "harness.h"
#include "schedule.h"

struct options {
	long faults;
	uint64_t seed;
	int workers, daemons;
	bool list; /* print the schedule, do nothing */
};

static void print_usage(FILE *file)
{
	fputs("Usage: torture [OPTION]…\n\n"
	      "  --faults N     how many (1000)\n"
	      "  --seed S       of the schedule (a new one each time)\n"
	      "  --workers N    1 to 32 (6)\n"
	      "  --daemons N    1 to 8 (2)\n"
	      "  --list         print the schedule and do nothing\n"
	      "  --help         this help\n",
	      file);
}

static uint64_t number(const char *name, const char *value, uint64_t least, uint64_t most)
{
	char *end;
	uint64_t result;

	errno = 0;
	result = strtoull(value, &end, 10);
	if (errno || end == value || *end || strchr(value, '-') || result < least ||
	    result > most) {
		fprintf(stderr, "torture: --%s %s: a number from %" PRIu64 " to %" PRIu64 "\n",
			name, value, least, most);
		exit(EX_USAGE);
	}
	return result;
}

static uint64_t new_seed(void)
{
	uint32_t seed; /* short, to be typed again */

	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		abort();
	return seed;
}

static struct options parse_options(int argc, char *argv[])
{
	static const struct option known[] = {
		{ "faults", required_argument, NULL, 'f' },
		{ "seed", required_argument, NULL, 's' },
		{ "workers", required_argument, NULL, 'w' },
		{ "daemons", required_argument, NULL, 'd' },
		{ "list", no_argument, NULL, 'l' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct options options = { .faults = 1000, .seed = new_seed(), .workers = 6, .daemons = 2 };

	for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;)
		switch (c) {
		case 'f':
			options.faults = (long)number("faults", optarg, 0, 10000000);
			break;
		case 's':
			options.seed = number("seed", optarg, 0, UINT64_MAX);
			break;
		case 'w':
			options.workers = (int)number("workers", optarg, 1, 32);
			break;
		case 'd':
			options.daemons = (int)number("daemons", optarg, 1, 8);
			break;
		case 'l':
			options.list = true;
			break;
		case 'h':
			print_usage(stdout);
			exit(EX_OK);
		default:
			print_usage(stderr);
			exit(EX_USAGE);
		}
	if (optind < argc) {
		print_usage(stderr);
		exit(EX_USAGE);
	}
	return options;
}

static struct fault next_fault(const struct options *options, uint64_t *state)
{
	return schedule_next(state, options->workers, options->daemons);
}

static void list_schedule(const struct options *options)
{
	uint64_t state = options->seed;

	for (long i = 0; i < options->faults; i++) {
		struct fault fault = next_fault(options, &state);

		printf("%ld %s target %d for %d ms detail %" PRIu32 ", then %d ms\n", i + 1,
		       fault_name(fault.kind), fault.target, fault.duration_ms, fault.detail,
		       fault.pause_ms);
	}
}

/* -- the campaign ------------------------------------------------------------------------------- */

enum { TELL_MS = 30000 };

/* On stderr, with the time since the first call. */
static void __attribute__((format(printf, 1, 2))) progress(const char *format, ...)
{
	static long long began;
	va_list arguments;

	if (!began)
		began = test_now_ms();
	fprintf(stderr, "%7.1f s  ", (double)(test_now_ms() - began) / 1000);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

struct counts {
	long injected[FAULT_KINDS], missed[FAULT_KINDS];
};

/* SIGTERM ends the faults; what there is by then is judged. (^C goes to all processes, and ends all.) */
static volatile sig_atomic_t stopped;

static void stop(int signal_number)
{
	(void)signal_number;
	stopped = 1;
}

/* Goes on until so many have hit something. */
static long inject(struct fleet *fleet, const struct options *options, struct counts *counts)
{
	long long due = test_now_ms(), told = due;
	uint64_t state = options->seed;
	long injected = 0;

	while (injected < options->faults && !stopped) {
		struct fault fault = next_fault(options, &state);

		while (test_now_ms() < due && !stopped)
			fleet_tend(fleet);
		if (fleet_hit(fleet, &fault)) {
			counts->injected[fault.kind]++;
			injected++;
		} else {
			counts->missed[fault.kind]++;
		}
		due = test_now_ms() + fault.pause_ms;
		if (test_now_ms() - told > TELL_MS) {
			told = test_now_ms();
			progress("%ld of %ld faults, %ld violations", injected, options->faults,
				 checker_violations(fleet_checker(fleet)));
		}
	}
	while (test_now_ms() < due)
		fleet_tend(fleet);
	return injected;
}

static void print_counts(const struct counts *counts)
{
	printf("\n%-18s %8s %8s\n", "fault", "injected", "missed");
	for (int kind = 0; kind < FAULT_KINDS; kind++)
		printf("%-18s %8ld %8ld  %s\n", fault_name((enum fault_kind)kind),
		       counts->injected[kind], counts->missed[kind],
		       fault_meaning((enum fault_kind)kind));
}

/* What came of it, in the history and in what the workers were told. */
static void print_figures(PGconn *conn, long long duration_ms)
{
	long long pardoned;
	char *figures = sql_text(
		conn,
		"select format('%%s runs (%%s), %%s attempts (%%s), %%s node executions, %%s checkpoints,"
		" %%s events', (select count(*) from lease.runs),"
		" (select string_agg(n || ' ' || status, ', ' order by n desc) from"
		"   (select status, count(*) as n from lease.runs group by status) s),"
		" (select count(*) from lease.run_attempts),"
		" (select string_agg(n || ' ' || outcome, ', ' order by n desc) from"
		"   (select coalesce(outcome, 'open') as outcome, count(*) as n"
		"      from lease.run_attempts group by 1) a),"
		" (select count(*) from lease.node_executions),"
		" (select count(*) from lease.checkpoints), (select count(*) from lease.run_events))");
	char *results = sql_text(
		conn, "select string_agg(n || ' ' || result, ', ' order by n desc) from"
		      " (select case when unknown then result || ' (outcome unknown)' else result"
		      "    end as result, count(*) as n"
		      "    from torture.acts where result <> 'sent' group by 1) r");

	pardoned = sql_number(
		conn, "select count(*) from (select now, lag(ends) over (partition by run_id,"
		      " attempt_no, owner order by now) as before from torture.acts"
		      " where result = 'ok' and ends is not null) g where now > before");
	printf("\n%s\ncalls: %s\nrenewals granted by an amnesty: %lld\n%lld s\n", figures,
	       results ? results : "none", pardoned, duration_ms / 1000);
	free(figures);
	free(results);
}

int main(int argc, char *argv[])
{
	struct options options = parse_options(argc, argv);
	struct counts counts = { 0 };
	long long began = test_now_ms();
	struct checker *checker;
	struct fleet *fleet;
	char seed[24];
	char *const *logs;
	long calls, violations, injected;
	int n_logs;

	if (options.list) {
		list_schedule(&options);
		return EX_OK;
	}
	snprintf(seed, sizeof(seed), "%" PRIu64, options.seed);
	printf("torture: seed %s, %ld faults, %d workers, %d daemons\n", seed, options.faults,
	       options.workers, options.daemons);
	fflush(stdout);
	progress("starting");
	fleet = fleet_start(options.seed, seed, options.workers, options.daemons);
	checker = fleet_checker(fleet);
	signal(SIGTERM, stop);
	progress("faults begin");
	injected = inject(fleet, &options, &counts);
	progress("faults end, the work goes on");
	fleet_heal(fleet);
	progress("the workers are killed, what they leave is to be closed");
	fleet_stop(fleet);
	progress("reading what the workers wrote down");
	logs = fleet_logs(fleet, &n_logs);
	calls = checker_finish(checker, logs, n_logs);
	print_counts(&counts);
	print_figures(checker_connection(checker), test_now_ms() - began);
	violations = checker_violations(checker);
	fleet_free(fleet);
	printf("seed %s\ntorture: faults=%ld operations=%ld violations=%ld\n", seed, injected,
	       calls, violations);
	return violations ? 1 : EX_OK;
}
