/*
 * A writer of one JSON document (RFC 8259), member by member.
 *
 * Promises: what comes out is valid JSON in UTF-8 whatever the strings hold (bytes that are no
 * UTF-8 become U+FFFD), on one line that ends with a newline. The calls must nest properly;
 * `key` is the member's name within an object, and NULL within an array and at the top.
 *
 * Must never: look at the locale.
 */
#ifndef LEASE_CLI_JSON_H
#define LEASE_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 16

struct json {
	FILE *file;
	int depth;
	bool has_members[JSON_DEPTH_MAX];
};

void json_init(struct json *json, FILE *file);

void json_begin_object(struct json *json, const char *key);
void json_end_object(struct json *json);
void json_begin_array(struct json *json, const char *key);
void json_end_array(struct json *json);

void json_text(struct json *json, const char *key, const char *value); /* NULL: null */
void json_number(struct json *json, const char *key, int64_t value);
void json_bool(struct json *json, const char *key, bool value);
void json_null(struct json *json, const char *key);
/* ISO 8601; LEASE_TIME_NONE: null */
void json_time(struct json *json, const char *key, int64_t time);
/* microseconds as a number of seconds */
void json_seconds(struct json *json, const char *key, int64_t duration);

#endif
