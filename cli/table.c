/*
 * table.c - tables for people: see table.h for what it promises.
 */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GAP 2
#define NARROWEST 8

struct cell {
	char *text; /* escaped */
	enum style style;
};

struct table {
	const struct output *output;
	const struct table_column *columns;
	size_t n_columns;
	struct cell *cells;
	size_t n_cells, allocated;
};

struct table *table_new(const struct output *output, const struct table_column *columns, size_t n)
{
	struct table *table = xcalloc(1, sizeof(*table));

	*table = (struct table){ .output = output, .columns = columns, .n_columns = n };
	return table;
}

void table_free(struct table *table)
{
	if (!table)
		return;
	for (size_t i = 0; i < table->n_cells; i++)
		free(table->cells[i].text);
	free(table->cells);
	free(table);
}

void table_add(struct table *table, enum style style, const char *text)
{
	if (table->n_cells == table->allocated) {
		table->allocated = table->allocated ? 2 * table->allocated : 64;
		table->cells = xreallocarray(table->cells, table->allocated, sizeof(*table->cells));
	}
	table->cells[table->n_cells++] = (struct cell){
		.text = text_escape(text ? text : "-", table->output->utf8),
		.style = style,
	};
}

void table_addf(struct table *table, enum style style, const char *format, ...)
{
	va_list arguments;
	char *text = NULL;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		text = NULL;
	va_end(arguments);
	table_add(table, style, text);
	free(text);
}

static int title_width(const struct table_column *column)
{
	return column->title ? text_columns(column->title) : 0;
}

/* Takes column by column from the widest that may shrink, until all fit. */
static void shrink(const struct table *table, int *widths)
{
	int total = GAP * ((int)table->n_columns - 1);

	for (size_t i = 0; i < table->n_columns; i++)
		total += widths[i];
	while (total > table->output->width) {
		size_t widest = table->n_columns;

		for (size_t i = 0; i < table->n_columns; i++)
			if (table->columns[i].shrinks && widths[i] > NARROWEST &&
			    widths[i] > title_width(&table->columns[i]) &&
			    (widest == table->n_columns || widths[i] > widths[widest]))
				widest = i;
		if (widest == table->n_columns)
			break;
		widths[widest]--;
		total--;
	}
}

static int *find_widths(const struct table *table)
{
	int *widths = xcalloc(table->n_columns, sizeof(*widths));

	for (size_t i = 0; i < table->n_columns; i++)
		widths[i] = title_width(&table->columns[i]);
	for (size_t row = 0; row < table->n_cells; row += table->n_columns)
		for (size_t i = 0; i < table->n_columns; i++) {
			int columns = text_columns(table->cells[row + i].text);

			if (columns > widths[i])
				widths[i] = columns;
		}
	if (table->output->width > 0)
		shrink(table, widths);
	return widths;
}

/* One cell and the gap after it; the last one of a line is not padded. */
static void print_cell(const struct table *table, size_t column, int width, enum style style,
		       const char *text)
{
	const struct output *output = table->output;
	char *shown = table->columns[column].shrinks && output->width > 0
			      ? text_cut(text, width, output->utf8)
			      : xstrdup(text);
	int padding = width - text_columns(shown);
	bool right = table->columns[column].right;
	bool last = column + 1 == table->n_columns;

	fprintf(output->file, "%*s%s%s%s", right && padding > 0 ? padding : 0, "",
		style_on(output, style), shown, style_off(output, style));
	if (last)
		putc('\n', output->file);
	else
		fprintf(output->file, "%*s", GAP + (right || padding < 0 ? 0 : padding), "");
	free(shown);
}

void table_print(const struct table *table)
{
	int *widths = find_widths(table);

	if (table->columns[0].title)
		for (size_t i = 0; i < table->n_columns; i++)
			print_cell(table, i, widths[i], STYLE_STRONG, table->columns[i].title);
	for (size_t row = 0; row < table->n_cells; row += table->n_columns)
		for (size_t i = 0; i < table->n_columns; i++) {
			const struct cell *cell = &table->cells[row + i];

			print_cell(table, i, widths[i], cell->style, cell->text);
		}
	free(widths);
}
