/*
 * Where a command's answer goes: standard output, for people or for programs.
 *
 * Promises: text from the database never controls the terminal (control and invisible characters,
 * and in a locale other than UTF-8 everything that is not ASCII, come out as escapes); nothing is
 * taken for written until output_finish says so.
 *
 * Must never: write to standard error, or exit (but for xmalloc's family, which ends the program
 * when there is no memory).
 */
#ifndef LEASE_CLI_OUTPUT_H
#define LEASE_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct output {
	FILE *file;
	bool json; /* one JSON document instead of text for people */
	bool terminal;
	bool utf8; /* the locale's character set is UTF-8 */
	bool colour; /* a terminal that shows colours, and NO_COLOR is not set */
	int width; /* columns to keep to; 0: any */
};

/* Looks at standard output, the locale, and COLUMNS, NO_COLOR and TERM. */
void output_init(struct output *output, bool json);

/* Writes out what is left. 0, or the errno of what went wrong since the start. */
int output_finish(struct output *output);

/* -- colours ---------------------------------------------------------------------------------- */

enum style { STYLE_PLAIN, STYLE_STRONG, STYLE_FAINT, STYLE_GOOD, STYLE_WARNING, STYLE_BAD };

/* Sequences to switch a style on and off: "" without colours and for STYLE_PLAIN. */
const char *style_on(const struct output *output, enum style style);
const char *style_off(const struct output *output, enum style style);

/* -- text ------------------------------------------------------------------------------------- */

/*
 * One character of UTF-8 (RFC 3629: no overlong forms, no surrogates) from the `left` bytes at
 * `text`: its length in bytes, or 0 when it is none.
 */
size_t utf8_decode(const char *text, size_t left, uint32_t *ret);

/* Marks that reorder or hide what stands around them on a terminal. */
bool character_is_invisible(uint32_t c);

/* Whether the locale's character set is UTF-8 (setlocale was called before). */
bool locale_is_utf8(void);

/* A copy that is safe on a terminal and has one line; to be freed by the caller. */
char *text_escape(const char *text, bool utf8);

/* The columns that an escaped text takes on a terminal. */
int text_columns(const char *text);

/* An escaped text cut to so many columns, with a mark where it was cut; freed by the caller. */
char *text_cut(const char *text, int columns, bool utf8);

/* -- times and durations: microseconds -------------------------------------------------------- */

#define TIME_SIZE 48

/* ISO 8601, UTC, microseconds: 2024-02-29T12:00:00.000000Z */
void time_format_json(int64_t time, char ret[TIME_SIZE]);
/* For people: 2024-02-29 12:00:00.000Z, or "-" for LEASE_TIME_NONE. */
void time_format(int64_t time, char ret[TIME_SIZE]);
/* For people, two units at most: 0s, 250ms, 4.2s, 3m12s, 2h05m, 3d04h. */
void duration_format(int64_t duration, char ret[TIME_SIZE]);

/* "30s", "1.5m", "250ms": a number and one of us ms s m h d. False when it is none. */
bool duration_parse(const char *text, int64_t *ret);

/* -- memory ----------------------------------------------------------------------------------- */

/* These end the program with EX_OSERR and a line on standard error when there is no memory. */
void *xcalloc(size_t n, size_t size);
void *xreallocarray(void *memory, size_t n, size_t size);
char *xstrdup(const char *text);
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
