/*
 * A reader of JSON documents (RFC 8259) that lie in memory: what leasectl archive reads back.
 *
 * Promises: takes nothing that is no JSON, and no more than JSON_DEPTH_MAX levels. Numbers stay text, so
 * that none loses a digit. Must never: read a value that the text does not hold.
 */
#ifndef LEASE_CLI_JSON_READ_H
#define LEASE_CLI_JSON_READ_H

#include <stddef.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_ARRAY, JSON_OBJECT };

struct json_value {
	enum json_kind kind;
	const char *name; /* of a member of an object; NULL otherwise */
	const char *text; /* "true", "-1.5e3", a string's characters; NULL: null, array, object */
	struct json_value *first; /* member or element */
	struct json_value *next; /* beside it */
};

/*
 * The document that `text` is, or NULL if it is none. The text is changed, ends with '\0', and must
 * outlive the value, which is freed by json_value_free (NULL is fine).
 */
struct json_value *json_read(char *text);
void json_value_free(struct json_value *value);

/* The member of that name, or NULL; of NULL as well. */
const struct json_value *json_member(const struct json_value *object, const char *name);
/* Its text; NULL when it is not there or null. */
const char *json_member_text(const struct json_value *object, const char *name);

#endif
