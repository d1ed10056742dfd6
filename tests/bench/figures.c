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

static struct figure figures[FIGURES_MAX];
static int n_figures;

void figure(const char *name, double value, const char *unit, enum aim aim, double bound,
	    const char *what)
{
	if (n_figures == FIGURES_MAX || !isfinite(value))
		die("%s: no room for it, or it is no number", name);
	figures[n_figures++] = (struct figure){ name, unit, what, value, bound, aim };
}

const struct figure *figures_all(int *ret_n)
{
	*ret_n = n_figures;
	return figures;
}

const struct figure *figure_find(const char *name)
{
	for (int i = 0; i < n_figures; i++)
		if (strcmp(figures[i].name, name) == 0)
			return &figures[i];
	return NULL;
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

bool figure_falls_short(const struct figure *figure)
{
	return (figure->aim == AT_LEAST && figure->value < figure->bound) ||
	       (figure->aim == AT_MOST && figure->value > figure->bound);
}

/* "" where there is none. */
static const char *aim_text(const struct figure *figure, const char *at_least, const char *at_most,
			    char text[48])
{
	char bound[32];

	text[0] = '\0';
	if (figure->aim != NO_AIM)
		snprintf(text, 48, "%s %s%s", figure->aim == AT_LEAST ? at_least : at_most,
			 number_text(figure->bound, bound),
			 figure_falls_short(figure) ? " SHORT" : "");
	return text;
}

void figures_print(void)
{
	char number[32], aim[48];

	printf("\n%-31s %10s  %-9s  %-14s  %s\n", "figure", "value", "unit", "aim", "what it is");
	for (int i = 0; i < n_figures; i++)
		printf("%-31s %10s  %-9s  %-14s  %s\n", figures[i].name,
		       number_text(figures[i].value, number), figures[i].unit,
		       aim_text(&figures[i], ">=", "<=", aim), figures[i].what);
}

void write_markdown(FILE *file)
{
	char number[32], aim[48];

	fputs("# Figures\n\nWritten by the bench; [README.md](README.md) says what is measured, and how. "
	      "SHORT: the aim is not reached.\n\n",
	      file);
	fputs("| figure | value | unit | aim | what it is |\n|---|--:|---|---|---|\n", file);
	for (int i = 0; i < n_figures; i++)
		fprintf(file, "| `%s` | %s | %s | %s | %s |\n", figures[i].name,
			number_text(figures[i].value, number), figures[i].unit,
			aim_text(&figures[i], "≥", "≤", aim), figures[i].what);
}

static void write_json(FILE *file)
{
	fputs("{\n", file);
	for (int i = 0; i < n_figures; i++)
		fprintf(file, "  \"%s\": %.6g%s\n", figures[i].name, figures[i].value,
			i + 1 < n_figures ? "," : "");
	fputs("}\n", file);
}

/* Under another name first: whoever reads the file finds all of it or the old one. */
void write_whole(const char *path, void (*write)(FILE *file))
{
	char *part;
	FILE *file;

	if (asprintf(&part, "%s.part", path) < 0)
		die("out of memory");
	file = fopen(part, "w");
	if (!file)
		die("%s: %s", part, strerror(errno));
	write(file);
	if (ferror(file) | (fclose(file) != 0) || rename(part, path) != 0)
		die("%s: %s", path, strerror(errno));
	free(part);
	printf("written to %s\n", path);
}

void figures_write(const char *path)
{
	putchar('\n');
	write_whole(path, write_json);
}
