/*
 * The figures as a picture: one SVG of its own, without fonts or scripts from elsewhere, readable on
 * a light and on a dark screen.
 *
 * Three parts, each left out when its figures are not there: what has an aim, as bars that reach
 * the aim's line or fall short of it; detection by the number of open leases; the costs of a history.
 * It says nothing that the table does not say, too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { WIDTH = 860, LEFT = 230, ROW = 19, BAR = 11 };

static const char head[] =
	"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
	"role=\"img\" aria-labelledby=\"title desc\">\n"
	"<title id=\"title\">Figures of lease-reconciler's bench</title>\n"
	"<desc id=\"desc\">Bars of figures against their aims, detection by open leases, and costs of a "
	"history. The same numbers stand in the table beside this picture.</desc>\n"
	"<style>\n"
	"text { font: 12px system-ui, sans-serif; fill: #0b0b0b }\n"
	".surface { fill: #fcfcfb }\n"
	".head { font-size: 15px; font-weight: 600 }\n"
	".muted { fill: #52514e }\n"
	".end { text-anchor: end }\n"
	".middle { text-anchor: middle }\n"
	".first { fill: #2a78d6; stroke: #2a78d6 }\n"
	".second { fill: #0f8a5f; stroke: #0f8a5f; stroke-dasharray: 5 3 }\n"
	".short { fill: #c8501c; stroke: #c8501c }\n"
	".grid { stroke: #dddcd7 }\n"
	".aim { stroke: #0b0b0b; stroke-dasharray: 3 3 }\n"
	".line { fill: none; stroke-width: 2 }\n"
	".bar { stroke: none }\n"
	"@media (prefers-color-scheme: dark) {\n"
	"text { fill: #ffffff }\n"
	".surface { fill: #1a1a19 }\n"
	".muted { fill: #c3c2b7 }\n"
	".first { fill: #5a9df0; stroke: #5a9df0 }\n"
	".second { fill: #35c48e; stroke: #35c48e }\n"
	".short { fill: #f08048; stroke: #f08048 }\n"
	".grid { stroke: #3d3d3a }\n"
	".aim { stroke: #ffffff }\n"
	".line { fill: none }\n"
	".bar { stroke: none }\n"
	"}\n"
	"</style>\n"
	"<rect width=\"100%%\" height=\"100%%\" class=\"surface\"/>\n";

static void __attribute__((format(printf, 5, 6)))
write_text(FILE *file, double x, double y, const char *class, const char *format, ...)
{
	char text[256];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
	for (const char *at = text; *at; at++)
		if (*at == '<' || *at == '&')
			fputs(*at == '<' ? "&lt;" : "&amp;", file);
		else
			fputc(*at, file);
	fputs("</text>\n", file);
}

static void write_line(FILE *file, double x1, double y1, double x2, double y2, const char *class)
{
	fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1,
		y1, x2, y2, class);
}

static void write_bar(FILE *file, double x, double y, double width, const char *class)
{
	fprintf(file,
		"<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" class=\"bar %s\"/>\n",
		x, y, width, BAR, class);
}

static void write_dot(FILE *file, double x, double y, const char *class)
{
	fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"%s bar\"/>\n", x, y, class);
}

/* -- aims ------------------------------------------------------------------------------------- */

/* How far it comes: 1 is the aim, more is better, and beyond two nobody needs to know. */
static double reach(const struct figure *figure)
{
	double reach = figure->aim == AT_LEAST ? figure->value / figure->bound
		       : figure->value > 0     ? figure->bound / figure->value
					       : 2;

	return reach < 2 ? reach : 2;
}

static double draw_aims(FILE *file, double y, const struct figure *figures, int n)
{
	const double full = 360, aim = LEFT + full / 2;
	double top = y + 26;
	char value[32], bound[32];

	write_text(file, 12, y + 12, "head", "Figures against their aims");
	write_text(file, aim, y + 28, "muted middle", "aim");
	write_text(file, LEFT + full, y + 28, "muted end", "twice as good, or better");
	y = top + 14;
	for (int i = 0; i < n; i++) {
		const struct figure *figure = &figures[i];
		bool falls_short = figure_falls_short(figure);

		if (figure->aim == NO_AIM)
			continue;
		write_text(file, LEFT - 8, y + 10, "end", "%s", figure->name);
		write_bar(file, LEFT, y, full / 2 * reach(figure), falls_short ? "short" : "first");
		write_text(file, LEFT + full + 10, y + 10, "", "%s %s",
			   number_text(figure->value, value), figure->unit);
		write_text(file, LEFT + full + 110, y + 10, "muted", "%s %s%s",
			   figure->aim == AT_LEAST ? "≥" : "≤", number_text(figure->bound, bound),
			   falls_short ? ": short" : "");
		y += ROW;
	}
	write_line(file, aim, top + 6, aim, y, "aim");
	return y + 24;
}

/* -- detection -------------------------------------------------------------------------------- */

static double draw_detection(FILE *file, double y)
{
	static const struct {
		const char *p50, *p99, *open;
	} sizes[] = {
		{ "detection_1k_ms_p50", "detection_1k_ms_p99", "1000" },
		{ "detection_ms_p50", "detection_ms_p99", NULL },
		{ "detection_1m_ms_p50", "detection_1m_ms_p99", "1000000" },
	};
	const double full = 360, aim = 50;
	double most = 60, top = y + 26;
	const struct figure *usual = figure_find("open_leases");
	char p50[32], p99[32], open[32];

	if (!usual || !figure_find("detection_ms_p99"))
		return y;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const struct figure *figure = figure_find(sizes[i].p99);

		if (figure && figure->value > most)
			most = figure->value;
	}
	write_text(file, 12, y + 12, "head",
		   "From a lease's end to its attempt's, by open leases (p50 and p99, ms)");
	write_text(file, LEFT + full * aim / most, y + 28, "muted middle", "aim of p99: %.0f", aim);
	y = top + 18;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		const struct figure *half = figure_find(sizes[i].p50);
		const struct figure *most_of = figure_find(sizes[i].p99);
		const char *class;

		if (!half || !most_of)
			continue;
		class = figure_falls_short(most_of) ? "short" : "first";
		write_text(file, LEFT - 8, y + 4, "end", "%s",
			   sizes[i].open ? sizes[i].open : number_text(usual->value, open));
		write_line(file, LEFT + full * half->value / most, y,
			   LEFT + full * most_of->value / most, y,
			   figure_falls_short(most_of) ? "line short" : "line first");
		write_dot(file, LEFT + full * half->value / most, y, class);
		write_dot(file, LEFT + full * most_of->value / most, y, class);
		write_text(file, LEFT + full + 10, y + 4, "", "%s, %s",
			   number_text(half->value, p50), number_text(most_of->value, p99));
		y += ROW + 5;
	}
	write_line(file, LEFT, top + 6, LEFT, y - 6, "grid");
	write_line(file, LEFT + full * aim / most, top + 6, LEFT + full * aim / most, y - 6, "aim");
	return y + 24;
}

/* -- growth ----------------------------------------------------------------------------------- */

enum { PANEL = 150, PANEL_HEIGHT = 110, POINTS = 3 };

/* The costs of one kind of work, and of one kind of run ids: 1 without history. */
static bool read_growth(const char *work, const char *const sizes[2], const char *kind,
			double points[POINTS])
{
	points[0] = 1;
	for (int i = 0; i < 2; i++) {
		char name[64];
		const struct figure *figure;

		snprintf(name, sizeof(name), "growth_%s_%s_%s", work, sizes[i], kind);
		figure = figure_find(name);
		if (!figure)
			return false;
		points[i + 1] = figure->value;
	}
	return true;
}

static void draw_panel(FILE *file, double x, double y, const char *work, const char *const sizes[2])
{
	static const char *const kinds[] = { "random", "ordered" }, *const classes[] = { "first",
											 "second" };
	const double step = 50, most = 2;
	double points[POINTS];

	write_text(file, x, y, "", "%s", work);
	y += 8;
	for (int tick = 0; tick <= 2; tick++) {
		double at = y + PANEL_HEIGHT * (1 - tick / most);

		write_line(file, x, at, x + step * 2, at, "grid");
		write_text(file, x + step * 2 + 6, at + 4, "muted", "%d", tick);
	}
	for (int i = 0; i < POINTS; i++)
		write_text(file, x + step * i, y + PANEL_HEIGHT + 16, "muted middle", "%s",
			   i == 0 ? "0" : sizes[i - 1]);
	for (int kind = 0; kind < 2; kind++) {
		if (!read_growth(work, sizes, kinds[kind], points))
			continue;
		fprintf(file, "<polyline class=\"%s line\" points=\"", classes[kind]);
		for (int i = 0; i < POINTS; i++)
			fprintf(file, "%s%.1f,%.1f", i ? " " : "", x + step * i,
				y + PANEL_HEIGHT *
						(1 - (points[i] < most ? points[i] : most) / most));
		fputs("\"/>\n", file);
	}
}

static double draw_growth(FILE *file, double y)
{
	static const char *const works[] = { "renew", "scan", "sweep", "claim", "claim_next" };
	static const char *const full[] = { "1m", "10m" }, *const quick[] = { "100k", "300k" };
	double points[POINTS];
	const char *const *sizes = read_growth("renew", full, "random", points) ? full : quick;

	if (!read_growth("renew", sizes, "random", points))
		return y;
	write_text(file, 12, y + 12, "head",
		   "Time with so many closed attempts behind / with none");
	write_line(file, LEFT + 260, y + 8, LEFT + 290, y + 8, "line first");
	write_text(file, LEFT + 296, y + 12, "muted", "random run ids");
	write_line(file, LEFT + 400, y + 8, LEFT + 430, y + 8, "line second");
	write_text(file, LEFT + 436, y + 12, "muted", "run ids that grow with time");
	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++)
		draw_panel(file, 24 + 168 * (double)i, y + 42, works[i], sizes);
	return y + 42 + PANEL_HEIGHT + 40;
}

void write_picture(FILE *file)
{
	const struct figure *figures;
	int n, height;
	char *text = NULL;
	size_t size;
	FILE *parts = open_memstream(&text, &size);
	double y = 12;

	if (!parts)
		die("out of memory");
	figures = figures_all(&n);
	y = draw_aims(parts, y, figures, n);
	y = draw_detection(parts, y);
	y = draw_growth(parts, y);
	if (fclose(parts) != 0)
		die("out of memory");
	height = (int)y;
	fprintf(file, head, WIDTH, height, WIDTH, height);
	fputs(text, file);
	fputs("</svg>\n", file);
	free(text);
}
