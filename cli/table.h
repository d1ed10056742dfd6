/*
 * Tables for people: columns as wide as they must be, cells escaped and of one line each.
 *
 * Promises: with an output width, cells of columns that may shrink are cut until the table fits or
 * they are as narrow as their titles; without one nothing is cut.
 */
#ifndef LEASE_CLI_TABLE_H
#define LEASE_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "output.h"

struct table_column {
	const char *title; /* NULL in all columns: no line of titles */
	bool right; /* aligned right: numbers */
	bool shrinks; /* may be cut when there is no room */
};

struct table;

/* The columns are borrowed until table_free. */
struct table *table_new(const struct output *output, const struct table_column *columns, size_t n);
/* Adds the next cell, row by row. The text is copied; NULL shows as "-". */
void table_add(struct table *table, enum style style, const char *text);
void table_addf(struct table *table, enum style style, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* All rows must be whole. */
void table_print(const struct table *table);
void table_free(struct table *table); /* NULL is fine */

#endif
