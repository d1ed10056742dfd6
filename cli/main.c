/*
 * leasectl: the operators' and workers' command line.
 *
 * main reads the command line, runs one command of the table, and makes sure that what it wrote
 * has arrived. State changes go through liblease alone; the record of migrations is migrate's.
 */
#include <fcntl.h>
#include <locale.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "failure.h"

/*
 * With standard output closed, the next file or socket that is opened would be taken for it. A
 * stand-in that cannot be read or written keeps the number and the error.
 */
static void occupy_standard_files(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
		    open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
			_exit(EX_OSERR);
}

static int finish_output(struct output *output, int exit_code)
{
	int error = output_finish(output);

	if (error == 0 || exit_code != 0)
		return exit_code;
	/* whoever closed the pipe has read enough and needs no words */
	if (error == EPIPE)
		return EX_IOERR;
	return fail(EX_IOERR, "cannot write to standard output: %s", strerror(error));
}

int main(int argc, char **argv)
{
	struct context context;
	int r;

	occupy_standard_files();
	signal(SIGPIPE, SIG_IGN);
	/* messages stay English, numbers and sorting the program's own */
	setlocale(LC_CTYPE, "");
	r = arguments_parse(argc, argv, command_table, &context);
	if (r == ARGUMENTS_RUN)
		r = context.command->run(&context);
	r = finish_output(&context.output, r);
	arguments_done(&context);
	return r;
}
