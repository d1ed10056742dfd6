/*
 * Any bytes as a text from a database, on its way to people and programs.
 *
 * JSON is one line of valid UTF-8 whose strings end where they should; an escaped text holds no
 * character that controls a terminal; a cut one is no wider than asked for; escape_text stays in
 * its buffer; a duration that is accepted is not negative, and formats to what is accepted again.
 */
#include <string.h>

#include "fuzz.h"
#include "journal.h"
#include "json.h"
#include "output.h"

static void check_utf8(const char *text, size_t size, bool only_ascii)
{
	while (size > 0) {
		uint32_t c;
		size_t length = utf8_decode(text, size, &c);

		must(length > 0 && c >= ' ' && c != 0x7f && !(c >= 0x80 && c < 0xa0));
		must(!only_ascii || c < 0x80);
		must(!character_is_invisible(c));
		text += length;
		size -= length;
	}
}

/* Past a string that begins at `c`. */
static const char *skip_string(const char *c)
{
	must(*c == '"');
	for (c++; *c != '"'; c++) {
		must(*c != '\0');
		if (*c != '\\')
			continue;
		c++;
		must(*c && strchr("\"\\nrtu", *c));
		if (*c == 'u')
			must(strspn(c + 1, "0123456789abcdef") >= 4);
	}
	return c + 1;
}

static void check_json(const char *text)
{
	char *written = NULL;
	const char *c;
	size_t size = 0;
	FILE *file = open_memstream(&written, &size);
	struct json json;

	must(file);
	json_init(&json, file);
	json_begin_object(&json, NULL);
	json_text(&json, text, text);
	json_end_object(&json);
	must(fclose(file) == 0);
	check_utf8(written, strcspn(written, "\n"), false);
	must(written[0] == '{');
	c = skip_string(written + 1);
	must(*c == ':');
	c = skip_string(c + 1);
	must(*c == '}' && (c[1] == '\0' || strcmp(c + 1, "\n") == 0));
	free(written);
}

static void check_escapes(const char *text, size_t columns)
{
	for (int utf8 = 0; utf8 <= 1; utf8++) {
		char *escaped = text_escape(text, utf8);
		char *cut = text_cut(escaped, (int)columns, utf8);

		check_utf8(escaped, strlen(escaped), !utf8);
		check_utf8(cut, strlen(cut), !utf8);
		must(text_columns(cut) <= (int)columns);
		free(cut);
		free(escaped);
	}
}

static void check_journal_text(const char *text, size_t size)
{
	char *to = malloc(size);

	must(to);
	escape_text(to, size, text);
	must(memchr(to, '\0', size) != NULL);
	for (const char *c = to; *c; c++)
		must((unsigned char)*c >= ' ' && *c != 0x7f);
	free(to);
}

static void check_duration(const char *text)
{
	char formatted[TIME_SIZE];
	int64_t duration;

	if (!duration_parse(text, &duration))
		return;
	must(duration >= 0);
	duration_format(duration, formatted);
	must(formatted[0] >= '0' && formatted[0] <= '9');
}

int fuzz_text(const uint8_t *data, size_t size)
{
	char *text;

	if (size < 1)
		return 0;
	text = calloc(1, size);
	must(text);
	memcpy(text, data + 1, size - 1);
	check_json(text);
	check_escapes(text, 4 + data[0]);
	check_journal_text(text, 1 + data[0]);
	check_duration(text);
	free(text);
	return 0;
}
