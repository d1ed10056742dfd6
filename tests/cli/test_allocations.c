/*
 * leasectl without memory: each of its own allocations fails once, in one command after another.
 *
 * It says so in one line and ends with the exit code for it, or it does all that it was asked to. It
 * never crashes. LEASE_TEST_ROUNDS=1 tries all allocations instead of each 31st.
 */
#include "worker.h"

#include <sysexits.h>

enum { ALLOCATIONS_MAX = 2000, WORDS = 12 };

/* Every command that talks to a database; RUN stands for a run of its own. */
static const char *const lines[][WORDS] = {
	{ "migrate" },
	{ "submit", "RUN", "--tenant", "t" },
	{ "cancel", "RUN" },
	{ "release", "RUN", "--json" },
	{ "exec", "--run", "RUN", "--", "true" },
	{ "status", "--json" },
	{ "runs", "--json", "--status", "running,pending" },
	{ "runs" },
	{ "history", "lived" },
	{ "explain", "lived" },
	{ "events", "--json" },
	{ "sweep", "--dry-run", "--json" },
	{ "audit" },
	{ "archive", "--older-than", "0s", "--to", "FOLDER", "--dry-run" },
};

static char *counted; /* the file where it says how many there were */

static void start_starved(struct process *process, const char *const *line, const char *run_id,
			  long at)
{
	const char *words[WORDS + 1] = { NULL };
	char number[24];

	for (int i = 0; i < WORDS && line[i]; i++)
		words[i] = strcmp(line[i], "RUN") == 0      ? run_id
			   : strcmp(line[i], "FOLDER") == 0 ? folder
							    : line[i];
	snprintf(number, sizeof(number), "%ld", at);
	setenv("LEASE_TEST_FAIL_ALLOCATION", number, 1);
	setenv("LEASE_TEST_ALLOCATIONS", counted, 1);
	start_words(process, words);
}

/* Whether there was an allocation of that number. */
static bool ends_well_without(const char *const *line, long at)
{
	struct process process;
	char run_id[32], *text;
	long allocations = 0;
	int code;

	snprintf(run_id, sizeof(run_id), "%s-%ld", line[0], at);
	if (strcmp(line[0], "submit") != 0)
		assert_granted(submit(s->worker, run_id));
	write_file(counted, "0");
	start_starved(&process, line, run_id, at);
	code = process_wait(&process, TEST_PATIENCE_MS);
	if (code == EX_OSERR && strstr(process_errors(&process), "memory"))
		return true;
	if (code >= 128 || code == EX_SOFTWARE)
		fail_msg("leasectl %s without allocation %ld: exit code %d: %s", line[0], at, code,
			 process_errors(&process));
	text = read_file(counted);
	allocations = atol(text);
	free(text);
	return allocations >= at;
}

static void every_allocation_of_every_command(void **state)
{
	long step = getenv("LEASE_TEST_ROUNDS") ? 1 : 31;

	(void)state;
	built = "tests/cli/starved-leasectl";
	if (asprintf(&counted, "%s/counted", folder) < 0)
		abort();
	live_through(s, "lived");
	for (size_t i = 0; i < LENGTH(lines); i++) {
		long at = 1 + (long)i % step;

		while (at < ALLOCATIONS_MAX && ends_well_without(lines[i], at))
			at += step;
		print_message("%s: %ld\n", lines[i][0], at);
		assert_in_range(at, 2, ALLOCATIONS_MAX - 1);
	}
	free(counted);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		worker_test(every_allocation_of_every_command),
	};

	return cmocka_run_group_tests_name("leasectl without memory", tests, NULL, scenario_end);
}
