/*
 * json.c - the JSON writer: see json.h for what it promises.
 */
#include "json.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "lease.h"
#include "output.h"

void json_init(struct json *json, FILE *file)
{
	*json = (struct json){ .file = file };
}

static void write_escaped(FILE *file, uint32_t c)
{
	switch (c) {
	case '"':
		fputs("\\\"", file);
		break;
	case '\\':
		fputs("\\\\", file);
		break;
	case '\n':
		fputs("\\n", file);
		break;
	case '\r':
		fputs("\\r", file);
		break;
	case '\t':
		fputs("\\t", file);
		break;
	default:
		if (c > 0xffff) /* a surrogate pair */
			fprintf(file, "\\u%04" PRIx32, 0xd800 + ((c - 0x10000) >> 10));
		fprintf(file, "\\u%04" PRIx32, c > 0xffff ? 0xdc00 + (c & 0x3ff) : c);
	}
}

/* RFC 8259 asks for quote, backslash and C0; the others would control a terminal. */
static bool must_escape(uint32_t c)
{
	return c < ' ' || c == '"' || c == '\\' || (c >= 0x7f && c < 0xa0) ||
	       character_is_invisible(c);
}

static void write_string(FILE *file, const char *text)
{
	size_t left = strlen(text);

	putc('"', file);
	while (left > 0) {
		uint32_t c = 0;
		size_t length = utf8_decode(text, left, &c);

		if (length == 0) {
			length = 1;
			fputs("\\ufffd", file);
		} else if (must_escape(c)) {
			write_escaped(file, c);
		} else {
			fwrite(text, 1, length, file);
		}
		text += length;
		left -= length;
	}
	putc('"', file);
}

/* The comma and the name before a value. */
static void begin_value(struct json *json, const char *key)
{
	if (json->has_members[json->depth])
		putc(',', json->file);
	json->has_members[json->depth] = true;
	if (!key)
		return;
	write_string(json->file, key);
	putc(':', json->file);
}

static void open_level(struct json *json, const char *key, char bracket)
{
	begin_value(json, key);
	putc(bracket, json->file);
	json->depth++;
	assert(json->depth < JSON_DEPTH_MAX);
	json->has_members[json->depth] = false;
}

/* The top level's end is the document's. */
static void close_level(struct json *json, char bracket)
{
	assert(json->depth > 0);
	putc(bracket, json->file);
	json->depth--;
	if (json->depth == 0)
		putc('\n', json->file);
}

void json_begin_object(struct json *json, const char *key)
{
	open_level(json, key, '{');
}

void json_end_object(struct json *json)
{
	close_level(json, '}');
}

void json_begin_array(struct json *json, const char *key)
{
	open_level(json, key, '[');
}

void json_end_array(struct json *json)
{
	close_level(json, ']');
}

void json_null(struct json *json, const char *key)
{
	begin_value(json, key);
	fputs("null", json->file);
}

void json_text(struct json *json, const char *key, const char *value)
{
	if (!value) {
		json_null(json, key);
		return;
	}
	begin_value(json, key);
	write_string(json->file, value);
}

void json_number(struct json *json, const char *key, int64_t value)
{
	begin_value(json, key);
	fprintf(json->file, "%" PRId64, value);
}

void json_bool(struct json *json, const char *key, bool value)
{
	begin_value(json, key);
	fputs(value ? "true" : "false", json->file);
}

void json_time(struct json *json, const char *key, int64_t time)
{
	char text[TIME_SIZE];

	if (time == LEASE_TIME_NONE) {
		json_null(json, key);
		return;
	}
	time_format_json(time, text);
	json_text(json, key, text);
}

void json_seconds(struct json *json, const char *key, int64_t duration)
{
	int64_t d = duration < 0 ? -duration : duration;

	begin_value(json, key);
	fprintf(json->file, "%s%" PRId64 ".%06" PRId64, duration < 0 ? "-" : "", d / LEASE_SECOND,
		d % LEASE_SECOND);
}
