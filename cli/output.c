/*
 * output.c - the stream, colours, escaping, times and durations: see output.h for what it promises.
 */
#include "output.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "lease.h"

#define MINUTE (60 * LEASE_SECOND)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)

/* -- the stream ------------------------------------------------------------------------------- */

/* COLUMNS decides, then the terminal; a file or pipe has no width. */
static int find_width(int fd)
{
	const char *columns = getenv("COLUMNS");
	long width = columns ? strtol(columns, NULL, 10) : 0;
	struct winsize size;

	if (width > 0 && width <= 10000)
		return (int)width;
	if (!isatty(fd))
		return 0;
	return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* NO_COLOR counts when it is not empty (no-color.org). */
static bool find_colour(int fd)
{
	const char *no_color = getenv("NO_COLOR");
	const char *term = getenv("TERM");

	return isatty(fd) && !(no_color && no_color[0]) && term && strcmp(term, "dumb") != 0;
}

void output_init(struct output *output, bool json)
{
	*output = (struct output){
		.file = stdout,
		.json = json,
		.terminal = isatty(STDOUT_FILENO) == 1,
		.utf8 = locale_is_utf8(),
		.colour = !json && find_colour(STDOUT_FILENO),
		.width = find_width(STDOUT_FILENO),
	};
}

int output_finish(struct output *output)
{
	bool failed = ferror(output->file) != 0;

	errno = 0;
	if (fflush(output->file) == 0 && !failed)
		return 0;
	return errno ? errno : EIO;
}

/* -- colours ---------------------------------------------------------------------------------- */

const char *style_on(const struct output *output, enum style style)
{
	if (!output->colour)
		return "";
	switch (style) {
	case STYLE_PLAIN:
		return "";
	case STYLE_STRONG:
		return "\033[1m";
	case STYLE_FAINT:
		return "\033[2m";
	case STYLE_GOOD:
		return "\033[32m";
	case STYLE_WARNING:
		return "\033[33m";
	case STYLE_BAD:
		return "\033[31m";
	}
	return "";
}

const char *style_off(const struct output *output, enum style style)
{
	return output->colour && style != STYLE_PLAIN ? "\033[0m" : "";
}

/* -- text ------------------------------------------------------------------------------------- */

size_t utf8_decode(const char *text, size_t left, uint32_t *ret)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	const unsigned char *c = (const unsigned char *)text;
	size_t length;
	uint32_t value;

	if (left == 0)
		return 0;
	length = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
	if (length == 0 || length > left)
		return 0;
	value = length == 1 ? c[0] : c[0] & (0x7fU >> length);
	for (size_t i = 1; i < length; i++) {
		if ((c[i] & 0xc0) != 0x80)
			return 0;
		value = value << 6 | (c[i] & 0x3f);
	}
	if (value < smallest[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
		return 0;
	*ret = value;
	return length;
}

bool locale_is_utf8(void)
{
	return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

/* UAX #9, "Explicit Directional Formatting", and characters of no width. */
bool character_is_invisible(uint32_t c)
{
	return c == 0xad || c == 0x61c || (c >= 0x200b && c <= 0x200f) ||
	       (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
	       (c >= 0xe0000 && c <= 0xe0fff);
}

static bool is_shown(uint32_t c, bool utf8)
{
	if (c < 0x80)
		return c >= ' ' && c != 0x7f;
	return utf8 && !character_is_invisible(c) && wcwidth((wchar_t)c) >= 0;
}

/* At most 10 bytes. */
static int escape_character(char *to, uint32_t c)
{
	switch (c) {
	case '\n':
		return sprintf(to, "\\n");
	case '\r':
		return sprintf(to, "\\r");
	case '\t':
		return sprintf(to, "\\t");
	default:
		return sprintf(to,
			       c < 0x80      ? "\\x%02" PRIx32
			       : c <= 0xffff ? "\\u%04" PRIx32
					     : "\\U%08" PRIx32,
			       c);
	}
}

char *text_escape(const char *text, bool utf8)
{
	size_t left = strlen(text);
	char *escaped = xcalloc(left + 1, 10);
	char *to = escaped;

	while (left > 0) {
		uint32_t c = 0;
		size_t length = utf8_decode(text, left, &c);

		if (length == 0) {
			length = 1;
			to += sprintf(to, "\\x%02x", (unsigned char)*text);
		} else if (is_shown(c, utf8)) {
			memcpy(to, text, length);
			to += length;
		} else {
			to += escape_character(to, c);
		}
		text += length;
		left -= length;
	}
	return escaped;
}

/* The columns of the character at `text`, whose length goes to *ret_length. */
static int character_columns(const char *text, size_t *ret_length)
{
	uint32_t c = 0;
	size_t length = utf8_decode(text, strlen(text), &c);
	int columns = length > 1 ? wcwidth((wchar_t)c) : 1;

	*ret_length = length > 0 ? length : 1;
	return columns > 0 ? columns : 0;
}

int text_columns(const char *text)
{
	int columns = 0;
	size_t length;

	for (; *text; text += length)
		columns += character_columns(text, &length);
	return columns;
}

char *text_cut(const char *text, int columns, bool utf8)
{
	const char *mark = utf8 ? "\u2026" : "~";
	const char *end = text;
	int used = 0;

	if (text_columns(text) <= columns)
		return xstrdup(text);
	while (*end) {
		size_t length;
		int next = character_columns(end, &length);

		if (used + next > columns - 1)
			break;
		used += next;
		end += length;
	}
	return xasprintf("%.*s%s", (int)(end - text), text, columns > 0 ? mark : "");
}

/* -- times and durations ---------------------------------------------------------------------- */

/* The calendar's time and the microseconds past its second. */
static int64_t break_down(int64_t time, struct tm *ret)
{
	int64_t fraction = time % LEASE_SECOND;
	time_t seconds = (time_t)(time / LEASE_SECOND);

	if (fraction < 0) {
		fraction += LEASE_SECOND;
		seconds--;
	}
	gmtime_r(&seconds, ret);
	return fraction;
}

void time_format_json(int64_t time, char ret[TIME_SIZE])
{
	struct tm tm = { 0 };
	int64_t fraction = break_down(time, &tm);

	snprintf(ret, TIME_SIZE, "%04d-%02d-%02dT%02d:%02d:%02d.%06" PRId64 "Z", tm.tm_year + 1900,
		 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, fraction);
}

void time_format(int64_t time, char ret[TIME_SIZE])
{
	struct tm tm = { 0 };
	int64_t fraction;

	if (time == LEASE_TIME_NONE) {
		snprintf(ret, TIME_SIZE, "-");
		return;
	}
	fraction = break_down(time, &tm);
	snprintf(ret, TIME_SIZE, "%04d-%02d-%02d %02d:%02d:%02d.%03" PRId64 "Z", tm.tm_year + 1900,
		 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, fraction / 1000);
}

void duration_format(int64_t duration, char ret[TIME_SIZE])
{
	const char *sign = duration < 0 ? "-" : "";
	int64_t d = duration < 0 ? -duration : duration;

	if (d == 0)
		snprintf(ret, TIME_SIZE, "0s");
	else if (d < LEASE_MILLISECOND)
		snprintf(ret, TIME_SIZE, "%s%" PRId64 "us", sign, d);
	else if (d < LEASE_SECOND)
		snprintf(ret, TIME_SIZE, "%s%" PRId64 "ms", sign, d / LEASE_MILLISECOND);
	else if (d < MINUTE)
		snprintf(ret, TIME_SIZE, "%s%" PRId64 ".%" PRId64 "s", sign, d / LEASE_SECOND,
			 d % LEASE_SECOND / (LEASE_SECOND / 10));
	else if (d < HOUR)
		snprintf(ret, TIME_SIZE, "%s%" PRId64 "m%02" PRId64 "s", sign, d / MINUTE,
			 d % MINUTE / LEASE_SECOND);
	else if (d < DAY)
		snprintf(ret, TIME_SIZE, "%s%" PRId64 "h%02" PRId64 "m", sign, d / HOUR,
			 d % HOUR / MINUTE);
	else
		snprintf(ret, TIME_SIZE, "%s%" PRId64 "d%02" PRId64 "h", sign, d / DAY,
			 d % DAY / HOUR);
}

/* The digits before and after the point as microseconds of a unit; NULL or where they end. */
static const char *parse_digits(const char *text, int64_t *ret_whole, double *ret_fraction)
{
	double place = 0.1;

	*ret_whole = 0;
	*ret_fraction = 0;
	if (*text < '0' || *text > '9')
		return NULL;
	for (; *text >= '0' && *text <= '9'; text++)
		if (__builtin_mul_overflow(*ret_whole, 10, ret_whole) ||
		    __builtin_add_overflow(*ret_whole, *text - '0', ret_whole))
			return NULL;
	if (*text != '.')
		return text;
	if (text[1] < '0' || text[1] > '9')
		return NULL;
	for (text++; *text >= '0' && *text <= '9'; text++, place /= 10)
		*ret_fraction += place * (*text - '0');
	return text;
}

bool duration_parse(const char *text, int64_t *ret)
{
	static const struct {
		const char *name;
		int64_t length;
	} units[] = { { "us", 1 },           { "ms", LEASE_MILLISECOND },
		      { "s", LEASE_SECOND }, { "m", MINUTE },
		      { "h", HOUR },         { "d", DAY } };
	int64_t whole;
	double fraction;
	const char *unit = parse_digits(text, &whole, &fraction);

	for (size_t i = 0; unit && i < sizeof(units) / sizeof(units[0]); i++) {
		if (strcmp(unit, units[i].name) != 0)
			continue;
		if (__builtin_mul_overflow(whole, units[i].length, &whole) ||
		    whole > INT64_MAX - DAY)
			return false;
		*ret = whole + (int64_t)(fraction * (double)units[i].length + 0.5);
		return true;
	}
	return false;
}

/* -- memory ----------------------------------------------------------------------------------- */

static void *checked(void *memory)
{
	if (memory)
		return memory;
	fputs("leasectl: out of memory\n", stderr);
	exit(EX_OSERR);
}

void *xcalloc(size_t n, size_t size)
{
	return checked(calloc(n, size));
}

void *xreallocarray(void *memory, size_t n, size_t size)
{
	return checked(reallocarray(memory, n, size));
}

char *xstrdup(const char *text)
{
	return checked(strdup(text));
}

char *xasprintf(const char *format, ...)
{
	va_list arguments;
	char *text = NULL;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		text = NULL;
	va_end(arguments);
	return checked(text);
}
