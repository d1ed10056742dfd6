/*
 * json_read.c - the JSON reader: see json_read.h for what it promises.
 *
 * Strings are decoded where they stand: what an escape stands for is never longer than the escape.
 */
#include "json_read.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "output.h"

struct reader {
	char *at;
	int depth;
};

static struct json_value *read_value(struct reader *reader);

static void skip_blanks(struct reader *reader)
{
	reader->at += strspn(reader->at, " \t\r\n");
}

static bool take(struct reader *reader, char c)
{
	if (*reader->at != c)
		return false;
	reader->at++;
	return true;
}

/* -- strings ------------------------------------------------------------------------------------- */

/* Four hexadecimal digits; -1 if they are none. */
static int32_t read_unit(const char *digits)
{
	int32_t unit = 0;

	for (int i = 0; i < 4; i++) {
		char c = digits[i];
		int digit = c >= '0' && c <= '9'   ? c - '0'
			    : c >= 'a' && c <= 'f' ? c - 'a' + 10
			    : c >= 'A' && c <= 'F' ? c - 'A' + 10
						   : -1;

		if (digit < 0)
			return -1;
		unit = unit * 16 + digit;
	}
	return unit;
}

static char *put_character(char *to, uint32_t c)
{
	if (c < 0x80) {
		*to++ = (char)c;
	} else if (c < 0x800) {
		*to++ = (char)(0xc0 | c >> 6);
	} else if (c < 0x10000) {
		*to++ = (char)(0xe0 | c >> 12);
		*to++ = (char)(0x80 | (c >> 6 & 0x3f));
	} else {
		*to++ = (char)(0xf0 | c >> 18);
		*to++ = (char)(0x80 | (c >> 12 & 0x3f));
		*to++ = (char)(0x80 | (c >> 6 & 0x3f));
	}
	if (c >= 0x80)
		*to++ = (char)(0x80 | (c & 0x3f));
	return to;
}

/* What follows "\u", a pair of surrogates included. A NUL ends strings in C and is refused. */
static bool read_unicode(struct reader *reader, char **to)
{
	int32_t unit = read_unit(reader->at), low = -1;

	if (unit <= 0)
		return false;
	reader->at += 4;
	if (unit >= 0xd800 && unit < 0xdc00) {
		if (reader->at[0] == '\\' && reader->at[1] == 'u')
			low = read_unit(reader->at + 2);
		if (low < 0xdc00 || low > 0xdfff)
			return false;
		reader->at += 6;
		unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
	} else if (unit >= 0xdc00 && unit < 0xe000) {
		return false;
	}
	*to = put_character(*to, (uint32_t)unit);
	return true;
}

static bool read_escape(struct reader *reader, char **to)
{
	static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
	char letter = *reader->at;
	const char *found = letter ? strchr(letters, letter) : NULL;

	if (letter)
		reader->at++;
	if (letter == 'u')
		return read_unicode(reader, to);
	if (!found)
		return false;
	*(*to)++ = meanings[found - letters];
	return true;
}

/* After the opening quote; NULL: it is no string. */
static char *read_string(struct reader *reader)
{
	char *text = reader->at, *to = text;

	while (*reader->at != '"') {
		if ((unsigned char)*reader->at < ' ') /* the end of the text among them */
			return NULL;
		if (take(reader, '\\')) {
			if (!read_escape(reader, &to))
				return NULL;
		} else {
			*to++ = *reader->at++;
		}
	}
	reader->at++;
	*to = '\0';
	return text;
}

/* -- values -------------------------------------------------------------------------------------- */

/* Elements, or members with their names, up to the closing bracket. */
static bool read_members(struct reader *reader, struct json_value *parent, char closing)
{
	struct json_value **last = &parent->first;

	skip_blanks(reader);
	if (take(reader, closing))
		return true;
	do {
		const char *name = NULL;

		skip_blanks(reader);
		if (parent->kind == JSON_OBJECT) {
			if (!take(reader, '"') || !(name = read_string(reader)))
				return false;
			skip_blanks(reader);
			if (!take(reader, ':'))
				return false;
		}
		*last = read_value(reader);
		if (!*last)
			return false;
		(*last)->name = name;
		last = &(*last)->next;
		skip_blanks(reader);
	} while (take(reader, ','));
	return take(reader, closing);
}

/*
 * A number or a word. Its text ends where a separator stands, which is read before it is
 * overwritten: so the value owns a copy.
 */
static bool read_plain(struct reader *reader, struct json_value *value)
{
	size_t length = strcspn(reader->at, ",]} \t\r\n");
	char *text = strndup(reader->at, length), *end;

	if (!text)
		return false;
	value->text = text;
	reader->at += length;
	if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
		value->kind = JSON_BOOL;
		return true;
	}
	if (strcmp(text, "null") == 0) {
		value->kind = JSON_NULL;
		value->text = NULL;
		free(text);
		return true;
	}
	value->kind = JSON_NUMBER;
	/* strtod takes more than JSON does: hexadecimal digits, "inf", a leading "+" */
	if (!*text || strspn(text, "-0123456789.eE+") != length || *text == '+')
		return false;
	strtod(text, &end);
	return !*end;
}

static struct json_value *read_value(struct reader *reader)
{
	struct json_value *value = xcalloc(1, sizeof(*value));
	bool good = ++reader->depth < JSON_DEPTH_MAX;

	skip_blanks(reader);
	if (!good) {
		/* too deep */
	} else if (take(reader, '"')) {
		value->kind = JSON_TEXT;
		value->text = read_string(reader);
		good = value->text != NULL;
	} else if (take(reader, '{')) {
		value->kind = JSON_OBJECT;
		good = read_members(reader, value, '}');
	} else if (take(reader, '[')) {
		value->kind = JSON_ARRAY;
		good = read_members(reader, value, ']');
	} else {
		good = read_plain(reader, value);
	}
	reader->depth--;
	if (good)
		return value;
	json_value_free(value);
	return NULL;
}

struct json_value *json_read(char *text)
{
	struct reader reader = { .at = text };
	struct json_value *value = read_value(&reader);

	skip_blanks(&reader);
	if (value && *reader.at) {
		json_value_free(value);
		return NULL;
	}
	return value;
}

void json_value_free(struct json_value *value)
{
	while (value) {
		struct json_value *next = value->next;

		if (value->kind == JSON_NUMBER || value->kind == JSON_BOOL)
			free((char *)value->text);
		json_value_free(value->first);
		free(value);
		value = next;
	}
}

const struct json_value *json_member(const struct json_value *object, const char *name)
{
	if (!object || object->kind != JSON_OBJECT)
		return NULL;
	for (const struct json_value *member = object->first; member; member = member->next)
		if (strcmp(member->name, name) == 0)
			return member;
	return NULL;
}

const char *json_member_text(const struct json_value *object, const char *name)
{
	const struct json_value *member = json_member(object, name);

	return member ? member->text : NULL;
}
