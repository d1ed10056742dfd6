/*
 * Any bytes as leasectl's command line: words that end with NUL bytes.
 *
 * What cannot be a command line is refused with 64; what can runs against a server that is not
 * there, and so ends with a code of sysexits.h. Commands that start another program or read files
 * are only parsed.
 */
#include "arguments.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"
#include "fuzz.h"

enum { WORDS_MAX = 64 };

static bool runs(const struct command *command)
{
	return command != &command_exec && command != &command_work &&
	       command != &command_content && command != &command_archive;
}

/* Their messages would drown libFuzzer's. */
static int silence(int fd)
{
	int kept = dup(fd), nothing = open("/dev/null", O_WRONLY);

	must(kept >= 0 && nothing >= 0);
	fflush(NULL);
	dup2(nothing, fd);
	close(nothing);
	return kept;
}

static void restore(int fd, int kept)
{
	fflush(NULL);
	dup2(kept, fd);
	close(kept);
}

static int run(int argc, char **argv)
{
	struct context context;
	const char *given;
	int r = arguments_parse(argc, argv, command_table, &context);

	must(r == ARGUMENTS_RUN || r == 0 || r == EX_USAGE);
	if (r == ARGUMENTS_RUN && runs(context.command)) {
		given = context.source.dbname;
		context.source = (struct connection_source){ .dbname = "host=/nonexistent" };
		r = context.command->run(&context);
		must(r == 0 || (r >= EX__BASE && r <= EX__MAX));
		context.source.dbname = given;
	}
	output_finish(&context.output);
	arguments_done(&context);
	return 0;
}

int fuzz_arguments(const uint8_t *data, size_t size)
{
	char *argv[WORDS_MAX + 2] = { "leasectl" };
	char *text = calloc(1, size + 1);
	int argc = 1, output, errors;

	must(text);
	memcpy(text, data, size);
	for (size_t i = 0; i < size && argc <= WORDS_MAX; i += strlen(text + i) + 1)
		argv[argc++] = text + i;
	output = silence(STDOUT_FILENO);
	errors = silence(STDERR_FILENO);
	run(argc, argv);
	restore(STDERR_FILENO, errors);
	restore(STDOUT_FILENO, output);
	free(text);
	return 0;
}
