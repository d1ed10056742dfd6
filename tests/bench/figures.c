/*
 * What the programs of measurements share: figures, kept as they are measured, printed as a table,
 * written as a flat JSON object; the words said meanwhile; a number among the arguments.
 *
 * It judges nothing: a figure short of its aim is marked, and that is all.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

#include "bench.h"

enum { FIGURES_MAX = 128 };

static struct {
	const char *name, *unit, *what;
	double value, bound;
	enum aim aim;
} figures[FIGURES_MAX];
static int n_figures;

void figure(const char *name, double value, const char *unit, enum aim aim, double bound,
	    const char *what)
{
	if (n_figures == FIGURES_MAX || !isfinite(value))
		die("%s: no room for it, or it is no number", name);
	figures[n_figures].name = name;
	figures[n_figures].value = value;
	figures[n_figures].unit = unit;
	figures[n_figures].aim = aim;
	figures[n_figures].bound = bound;
	figures[n_figures++].what = what;
}

void progress(const char *format, ...)
{
	static int64_t began;
	va_list arguments;

	if (!began)
		began = clock_us();
	fprintf(stderr, "%6.1f s  ", (double)(clock_us() - began) / 1e6);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
}

void die(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(EX_SOFTWARE);
}

long parse_count(const char *option, const char *text, long min)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	if (errno || end == text || *end || value < min || value > 100000000) {
		fprintf(stderr, "%s: %s takes a number from %ld to 100000000, not '%s'\n",
			program_invocation_short_name, option, min, text);
		exit(EX_USAGE);
	}
	return value;
}

/* -- output ----------------------------------------------------------------------------------- */

const char *number_text(double value, char text[32])
{
	double size = fabs(value);

	snprintf(text, 32, "%.*f",
		 size >= 1000 || value == floor(value) ? 0
		 : size >= 100                         ? 1
		 : size >= 10                          ? 2
						       : 3,
		 value);
	return text;
}

static bool falls_short(int i)
{
	return (figures[i].aim == AT_LEAST && figures[i].value < figures[i].bound) ||
	       (figures[i].aim == AT_MOST && figures[i].value > figures[i].bound);
}

void figures_print(void)
{
	char number[32], bound[32], aim[48];

	printf("\n%-31s %10s  %-9s  %-14s  %s\n", "figure", "value", "unit", "aim", "what it is");
	for (int i = 0; i < n_figures; i++) {
		aim[0] = '\0';
		if (figures[i].aim != NO_AIM)
			snprintf(aim, sizeof(aim), "%s %s%s",
				 figures[i].aim == AT_LEAST ? ">=" : "<=",
				 number_text(figures[i].bound, bound),
				 falls_short(i) ? " SHORT" : "");
		printf("%-31s %10s  %-9s  %-14s  %s\n", figures[i].name,
		       number_text(figures[i].value, number), figures[i].unit, aim,
		       figures[i].what);
	}
}

/* Under another name first: whoever reads the file finds all of it or the old one. */
void figures_write(const char *path)
{
	char *part;
	FILE *file;

	if (asprintf(&part, "%s.part", path) < 0)
		die("out of memory");
	file = fopen(part, "w");
	if (!file)
		die("%s: %s", part, strerror(errno));
	fputs("{\n", file);
	for (int i = 0; i < n_figures; i++)
		fprintf(file, "  \"%s\": %.6g%s\n", figures[i].name, figures[i].value,
			i + 1 < n_figures ? "," : "");
	fputs("}\n", file);
	if (ferror(file) | (fclose(file) != 0) || rename(part, path) != 0)
		die("%s: %s", path, strerror(errno));
	free(part);
	printf("\nwritten to %s\n", path);
}
