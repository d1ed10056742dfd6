/*
 * Reading the daemon's configuration: libyaml's events against one table of keys.
 *
 * The table says name, type, place, default, range and meaning of every key; parsing, defaults,
 * the "allowed" part of messages, and config_print all follow it. The grammar is three levels deep
 * and anything else is refused at its first event, so no nesting in a file can make this recurse.
 *
 * Must never: put a value that could hold a secret into a message (see show_value), follow anchors
 * or tags, or guess what was meant.
 */
#include "config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#define MILLISECOND INT64_C(1000)
#define SECOND (1000 * MILLISECOND)
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)

#define NAME_LENGTH_MAX 63
#define MASK "********"
/* What node_exporter's textfile collector looks for; and room for the name of a file in the making. */
#define METRICS_ENDING ".prom"
#define METRICS_FILE_LENGTH_MAX 1000
#define NO_FILE "off"

enum key_type {
	TYPE_DURATION,
	TYPE_INTEGER,
	TYPE_WORD,
	TYPE_NAME,
	TYPE_CONNINFO,
	TYPE_PASSWORD_FILE,
	TYPE_METRICS_FILE,
	TYPE_LOG,
	TYPE_DATABASES,
};

/* Where a key may stand. SWEEP keys stand in both places; the database's own value wins. */
enum {
	SCOPE_TOP = 1,
	SCOPE_LOG = 2,
	SCOPE_DATABASE = 4,
	SCOPE_SWEEP = SCOPE_TOP | SCOPE_DATABASE,
};

struct word {
	const char *name;
	int value;
};

static const struct word policy_words[] = {
	{ "record", CONFIG_POLICY_RECORD },
	{ "fail", CONFIG_POLICY_FAIL },
	{ "requeue", CONFIG_POLICY_REQUEUE },
	{ NULL, 0 },
};

static const struct word boolean_words[] = {
	{ "true", true },
	{ "false", false },
	{ NULL, 0 },
};

static const struct word switch_words[] = {
	{ "on", true },
	{ "off", false },
	{ NULL, 0 },
};

static const struct word target_words[] = {
	{ "auto", CONFIG_LOG_AUTO },
	{ "journal", CONFIG_LOG_JOURNAL },
	{ "stderr", CONFIG_LOG_STDERR },
	{ NULL, 0 },
};

static const struct word level_words[] = {
	{ "error", CONFIG_LOG_ERROR },   { "warning", CONFIG_LOG_WARNING },
	{ "notice", CONFIG_LOG_NOTICE }, { "info", CONFIG_LOG_INFO },
	{ "debug", CONFIG_LOG_DEBUG },   { NULL, 0 },
};

struct config_key {
	const char *name;
	enum key_type type;
	unsigned scope;
	size_t offset; /* durations, numbers, words: in struct config_sweep or config, by scope */
	int64_t initial;
	int64_t min;
	int64_t max;
	const struct word *words; /* TYPE_WORD only */
	bool required;
	const char *doc;
};

enum key_id {
	KEY_INTERVAL,
	KEY_ORPHAN_INTERVAL,
	KEY_BATCH_SIZE,
	KEY_SCAN_PAGE,
	KEY_DUE_LIMIT,
	KEY_POLICY,
	KEY_MAX_LEASE_LOSSES,
	KEY_NOTIFY,
	KEY_AMNESTY,
	KEY_AMNESTY_AFTER,
	KEY_AMNESTY_GRACE,
	KEY_MAX_CLOCK_JUMP,
	KEY_CONNECT_TIMEOUT,
	KEY_STATEMENT_TIMEOUT,
	KEY_LOCK_TIMEOUT,
	KEY_NETWORK_TIMEOUT,
	KEY_RECONNECT_MIN,
	KEY_RECONNECT_MAX,
	KEY_METRICS_FILE,
	KEY_METRICS_INTERVAL,
	KEY_LOG,
	KEY_LOG_TARGET,
	KEY_LOG_LEVEL,
	KEY_LOG_CLOSED_ATTEMPTS,
	KEY_DATABASES,
	KEY_NAME,
	KEY_CONNINFO,
	KEY_PASSWORD_FILE,
	KEY_COUNT,
};

#define IN_CONFIG(field) offsetof(struct config, field)
#define IN_SWEEP(field) offsetof(struct config_sweep, field)

/* clang-format off */
static const struct config_key keys[KEY_COUNT] = {
	[KEY_INTERVAL] = { "interval", TYPE_DURATION, SCOPE_SWEEP, IN_SWEEP(interval_us),
		5 * SECOND, 100 * MILLISECOND, HOUR, NULL, false,
		"longest time from one horizon scan of a database to the next" },
	[KEY_ORPHAN_INTERVAL] = { "orphan_interval", TYPE_DURATION, SCOPE_SWEEP,
		IN_SWEEP(orphan_interval_us), MINUTE, SECOND, DAY, NULL, false,
		"time from one look for runs without an open attempt to the next" },
	[KEY_BATCH_SIZE] = { "batch_size", TYPE_INTEGER, SCOPE_SWEEP, IN_SWEEP(batch_size),
		200, 1, 5000, NULL, false, "runs closed in one transaction" },
	[KEY_SCAN_PAGE] = { "scan_page", TYPE_INTEGER, SCOPE_TOP, IN_CONFIG(scan_page),
		5000, 100, 100000, NULL, false, "open attempts read by one scan statement" },
	[KEY_DUE_LIMIT] = { "due_limit", TYPE_INTEGER, SCOPE_TOP, IN_CONFIG(due_limit),
		10000, 100, 1000000, NULL, false, "lease ends kept in memory for a database" },
	[KEY_POLICY] = { "policy", TYPE_WORD, SCOPE_SWEEP, IN_SWEEP(policy),
		CONFIG_POLICY_RECORD, 0, 0, policy_words, false,
		"what becomes of a run whose lease was lost" },
	[KEY_MAX_LEASE_LOSSES] = { "max_lease_losses", TYPE_INTEGER, SCOPE_SWEEP,
		IN_SWEEP(max_lease_losses), 0, 0, 1000000, NULL, false,
		"leases lost in a row before requeue gives a run up; 0: no limit" },
	[KEY_NOTIFY] = { "notify", TYPE_WORD, SCOPE_SWEEP, IN_SWEEP(notify),
		true, 0, 0, boolean_words, false,
		"wake up consumers of events: NOTIFY lease_events, once a transaction" },
	[KEY_AMNESTY] = { "amnesty", TYPE_WORD, SCOPE_SWEEP, IN_SWEEP(amnesty),
		true, 0, 0, switch_words, false,
		"after an outage of the database leases hold until their workers could renew" },
	[KEY_AMNESTY_AFTER] = { "amnesty_after", TYPE_DURATION, SCOPE_SWEEP,
		IN_SWEEP(amnesty_after_us), 5 * SECOND, 100 * MILLISECOND, HOUR, NULL, false,
		"so long without a heartbeat is an outage; a third of the shortest lease at most" },
	[KEY_AMNESTY_GRACE] = { "amnesty_grace", TYPE_DURATION, SCOPE_SWEEP,
		IN_SWEEP(amnesty_grace_us), MINUTE, 300 * MILLISECOND, DAY, NULL, false,
		"how long the leases hold after the outage" },
	[KEY_MAX_CLOCK_JUMP] = { "max_clock_jump", TYPE_DURATION, SCOPE_SWEEP,
		IN_SWEEP(max_clock_jump_us), MINUTE, 100 * MILLISECOND, DAY, NULL, false,
		"a jump of the database's clock beyond this is an alarm, and an amnesty" },
	[KEY_CONNECT_TIMEOUT] = { "connect_timeout", TYPE_DURATION, SCOPE_TOP,
		IN_CONFIG(connect_timeout_us), 5 * SECOND, 100 * MILLISECOND, 5 * MINUTE, NULL,
		false,
		"deadline for connecting to one host" },
	[KEY_STATEMENT_TIMEOUT] = { "statement_timeout", TYPE_DURATION, SCOPE_SWEEP,
		IN_SWEEP(statement_timeout_us), 10 * SECOND, 10 * MILLISECOND, HOUR, NULL, false,
		"the server ends a statement that takes longer" },
	[KEY_LOCK_TIMEOUT] = { "lock_timeout", TYPE_DURATION, SCOPE_SWEEP,
		IN_SWEEP(lock_timeout_us), 2 * SECOND, MILLISECOND, HOUR, NULL, false,
		"the server ends a statement that waits longer for a lock" },
	[KEY_NETWORK_TIMEOUT] = { "network_timeout", TYPE_DURATION, SCOPE_TOP,
		IN_CONFIG(network_timeout_us), 15 * SECOND, 100 * MILLISECOND, 2 * HOUR, NULL,
		false,
		"the daemon drops a connection that answers nothing for so long" },
	[KEY_RECONNECT_MIN] = { "reconnect_min", TYPE_DURATION, SCOPE_TOP,
		IN_CONFIG(reconnect_min_us), 200 * MILLISECOND, 10 * MILLISECOND, HOUR, NULL, false,
		"pause before the first new try to connect" },
	[KEY_RECONNECT_MAX] = { "reconnect_max", TYPE_DURATION, SCOPE_TOP,
		IN_CONFIG(reconnect_max_us), 15 * SECOND, 10 * MILLISECOND, HOUR, NULL, false,
		"longest pause between two tries to connect" },
	[KEY_METRICS_FILE] = { "metrics_file", TYPE_METRICS_FILE, SCOPE_TOP, 0, 0, 0, 0, NULL, false,
		"the file for node_exporter's textfile collector" },
	[KEY_METRICS_INTERVAL] = { "metrics_interval", TYPE_DURATION, SCOPE_TOP,
		IN_CONFIG(metrics_interval_us), 15 * SECOND, 100 * MILLISECOND, 5 * MINUTE, NULL,
		false,
		"time from one metrics file to the next" },
	[KEY_LOG] = { "log", TYPE_LOG, SCOPE_TOP, 0, 0, 0, 0, NULL, false,
		"what is logged, and where" },
	[KEY_LOG_TARGET] = { "target", TYPE_WORD, SCOPE_LOG, IN_CONFIG(log.target),
		CONFIG_LOG_AUTO, 0, 0, target_words, false,
		"auto: the journal when there is one, else stderr" },
	[KEY_LOG_LEVEL] = { "level", TYPE_WORD, SCOPE_LOG, IN_CONFIG(log.level),
		CONFIG_LOG_INFO, 0, 0, level_words, false,
		"the least urgent messages that are logged" },
	[KEY_LOG_CLOSED_ATTEMPTS] = { "closed_attempts_per_second", TYPE_INTEGER, SCOPE_LOG,
		IN_CONFIG(log.closed_attempts_per_second), 20, 0, 10000, NULL, false,
		"closed attempts logged singly; above it, one summary a second" },
	[KEY_DATABASES] = { "databases", TYPE_DATABASES, SCOPE_TOP, 0,
		0, 1, (int64_t)CONFIG_DATABASES_MAX, NULL, true, "the databases that are swept" },
	[KEY_NAME] = { "name", TYPE_NAME, SCOPE_DATABASE, 0,
		0, 0, 0, NULL, true, "the database's name in messages; unique" },
	[KEY_CONNINFO] = { "conninfo", TYPE_CONNINFO, SCOPE_DATABASE, 0,
		0, 0, 0, NULL, true, "how libpq reaches it" },
	[KEY_PASSWORD_FILE] = { "password_file", TYPE_PASSWORD_FILE, SCOPE_DATABASE,
		0, 0, 0, 0, NULL, false,
		"the file that holds the password" },
};
/* clang-format on */

_Static_assert(KEY_COUNT <= 64, "struct section keeps the keys seen in 64 bits");
_Static_assert(sizeof(enum config_policy) == sizeof(int) &&
		       sizeof(enum config_log_target) == sizeof(int) &&
		       sizeof(enum config_log_level) == sizeof(int),
	       "words are stored as int");

const char *config_key_name(size_t index)
{
	return index < KEY_COUNT ? keys[index].name : NULL;
}

/* A position in the file, both from 1. */
struct mark {
	unsigned line;
	unsigned column;
};

/* One mapping of the file: which keys it holds, and where, for faults found only at the end. */
struct section {
	unsigned scope;
	size_t number; /* of the database, from 1 */
	struct mark start;
	uint64_t seen;
	unsigned lines[KEY_COUNT]; /* of the keys */
	struct mark marks[KEY_COUNT]; /* of the values */
};

struct reader {
	const char *name;
	bool world_readable;
	yaml_parser_t parser;
	yaml_event_t event; /* the newest; next_event frees it */
	struct config *config;
	struct section top;
	struct section log;
	struct section *databases; /* beside config->databases */
	size_t databases_allocated;
	struct config_error *error;
};

/* How a database's or the log's key is called in a message: databases[2].name, log.level. */
static void key_path(const struct section *section, const char *key, char *path, size_t size)
{
	if (section && section->scope == SCOPE_DATABASE)
		snprintf(path, size, "databases[%zu]%s%s", section->number, *key ? "." : "", key);
	else if (section && section->scope == SCOPE_LOG)
		snprintf(path, size, "log%s%s", *key ? "." : "", key);
	else
		snprintf(path, size, "%s", *key ? key : "file");
}

/* The file's name as it may stand in a message: its end, if it is long. */
static const char *short_name(const char *name, const char **ellipsis)
{
	const size_t shown = 255;
	size_t length = strlen(name);

	*ellipsis = "";
	if (length <= shown)
		return name;
	*ellipsis = "...";
	name += length - shown;
	while (((unsigned char)*name & 0xc0) == 0x80)
		name++;
	return name;
}

static void one_line(char *message)
{
	for (unsigned char *c = (unsigned char *)message; *c; c++)
		if (*c < ' ' || *c == 0x7f)
			*c = '?';
}

/* Fills the error; section and key tell what the message is about. Returns CONFIG_E_CONTENT. */
__attribute__((format(printf, 5, 6))) static int refuse(struct reader *reader, struct mark mark,
							const struct section *section,
							const char *key, const char *format, ...)
{
	struct config_error *error = reader->error;
	const char *ellipsis;
	const char *name = short_name(reader->name, &ellipsis);
	char path[128];
	char what[640];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(what, sizeof(what), format, arguments);
	va_end(arguments);
	key_path(section, key, path, sizeof(path));
	error->code = CONFIG_E_CONTENT;
	error->line = mark.line;
	error->column = mark.column;
	snprintf(error->message, sizeof(error->message), "%s%s:%u:%u: %s: %s", ellipsis, name,
		 mark.line, mark.column, path, what);
	one_line(error->message);
	return error->code;
}

/* A fault that is not the content's, so without a place in the file. */
static int fail_file(const char *path, int code, const char *what, struct config_error *reterr)
{
	const char *ellipsis;
	const char *name = short_name(path, &ellipsis);

	reterr->code = code;
	reterr->line = 0;
	reterr->column = 0;
	snprintf(reterr->message, sizeof(reterr->message), "%s%s: %s", ellipsis, name, what);
	one_line(reterr->message);
	return code;
}

static int out_of_memory(struct reader *reader)
{
	return fail_file(reader->name, CONFIG_E_MEMORY, "out of memory", reader->error);
}

/*
 * A value or an unknown key as a message may show it, in quotes. What has other characters than
 * harmless ones might be a connection string or a password that got into the wrong line.
 */
static const char *show_value(const char *value, size_t length, char *buffer, size_t size)
{
	const char *harmless = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-";

	if (length == 0 || length > 40 || strlen(value) != length ||
	    strspn(value, harmless) != length)
		return NULL;
	snprintf(buffer, size, "'%s'", value);
	return buffer;
}

struct unit {
	const char *name;
	int64_t us;
};

static const struct unit units[] = {
	{ "d", DAY },          { "h", HOUR }, { "m", MINUTE }, { "s", SECOND },
	{ "ms", MILLISECOND }, { "us", 1 },   { NULL, 0 },
};

/* In the largest unit that leaves no fraction. */
static void duration_format(int64_t us, char *buffer, size_t size)
{
	const struct unit *unit = units;

	while (us % unit->us != 0 || us < unit->us)
		unit++;
	snprintf(buffer, size, "%" PRId64 "%s", us / unit->us, unit->name);
}

static const char *word_name(const struct word *words, int value)
{
	while (words->name && words->value != value)
		words++;
	return words->name ? words->name : "?";
}

static void words_describe(const struct word *words, char *buffer, size_t size)
{
	size_t used;

	snprintf(buffer, size, "one of ");
	for (const struct word *word = words; word->name; word++) {
		used = strlen(buffer);
		snprintf(buffer + used, size - used, "%s%s", word == words ? "" : ", ", word->name);
	}
}

/* What is allowed for a key, in words, for messages. */
static void allowed_describe(const struct config_key *key, char *buffer, size_t size)
{
	char min[32];
	char max[32];
	char initial[32];

	switch (key->type) {
	case TYPE_DURATION:
		duration_format(key->min, min, sizeof(min));
		duration_format(key->max, max, sizeof(max));
		duration_format(key->initial, initial, sizeof(initial));
		snprintf(buffer, size, "a duration from %s to %s, such as %s", min, max, initial);
		break;
	case TYPE_INTEGER:
		snprintf(buffer, size, "a whole number from %" PRId64 " to %" PRId64, key->min,
			 key->max);
		break;
	case TYPE_WORD:
		words_describe(key->words, buffer, size);
		break;
	case TYPE_NAME:
		snprintf(buffer, size, "1 to %d characters of A-Z a-z 0-9 _ . -", NAME_LENGTH_MAX);
		break;
	case TYPE_CONNINFO:
		snprintf(buffer, size, "a libpq connection string or URI, on one line");
		break;
	case TYPE_PASSWORD_FILE:
		snprintf(buffer, size, "an absolute path, or credential:NAME");
		break;
	case TYPE_METRICS_FILE:
		snprintf(buffer, size,
			 NO_FILE ", or an absolute path that ends in " METRICS_ENDING);
		break;
	case TYPE_LOG:
		snprintf(buffer, size, "a mapping of keys to values");
		break;
	case TYPE_DATABASES:
		snprintf(buffer, size,
			 "a sequence of %" PRId64 " to %" PRId64 " databases, each a mapping",
			 key->min, key->max);
		break;
	}
}

/* Refuses a value: what is wrong with it, and from the table what is allowed. */
static int refuse_value(struct reader *reader, const struct section *section,
			const struct config_key *key, struct mark mark, const char *wrong)
{
	char allowed[160];

	allowed_describe(key, allowed, sizeof(allowed));
	return refuse(reader, mark, section, key->name, "%s; allowed: %s", wrong, allowed);
}

static struct mark mark_from(yaml_mark_t mark)
{
	/* The text is at most CONFIG_SIZE_MAX bytes, so both fit. */
	return (struct mark){ (unsigned)mark.line + 1, (unsigned)mark.column + 1 };
}

static struct mark event_mark(const struct reader *reader)
{
	return mark_from(reader->event.start_mark);
}

static int refuse_syntax(struct reader *reader)
{
	yaml_parser_t *parser = &reader->parser;
	const char *problem = parser->problem ? parser->problem : "cannot be understood";

	if (parser->error == YAML_MEMORY_ERROR)
		return out_of_memory(reader);
	return refuse(reader, mark_from(parser->problem_mark), NULL, "yaml",
		      "not valid YAML: %s%s%s; check indentation, colons and quotes", problem,
		      parser->context ? " " : "", parser->context ? parser->context : "");
}

/* Anchors, aliases and tags are refused wherever they stand. */
static int refuse_extras(struct reader *reader)
{
	const yaml_event_t *event = &reader->event;
	const yaml_char_t *anchor = NULL;
	const yaml_char_t *tag = NULL;

	if (event->type == YAML_ALIAS_EVENT)
		return refuse(reader, event_mark(reader), NULL, "yaml",
			      "aliases (*) are not allowed; write the value out");
	if (event->type == YAML_SCALAR_EVENT) {
		anchor = event->data.scalar.anchor;
		tag = event->data.scalar.tag;
	} else if (event->type == YAML_SEQUENCE_START_EVENT) {
		anchor = event->data.sequence_start.anchor;
		tag = event->data.sequence_start.tag;
	} else if (event->type == YAML_MAPPING_START_EVENT) {
		anchor = event->data.mapping_start.anchor;
		tag = event->data.mapping_start.tag;
	}
	if (anchor)
		return refuse(reader, event_mark(reader), NULL, "yaml",
			      "anchors (&) are not allowed; write the value out");
	if (tag)
		return refuse(reader, event_mark(reader), NULL, "yaml",
			      "tags (!) are not allowed; write the plain value");
	return 0;
}

static int next_event(struct reader *reader)
{
	yaml_event_delete(&reader->event);
	if (!yaml_parser_parse(&reader->parser, &reader->event))
		return refuse_syntax(reader);
	return refuse_extras(reader);
}

/* What stands there instead of what was expected. */
static const char *event_noun(const yaml_event_t *event)
{
	switch (event->type) {
	case YAML_MAPPING_START_EVENT:
		return "must not be a mapping";
	case YAML_SEQUENCE_START_EVENT:
		return "must not be a sequence";
	case YAML_SCALAR_EVENT:
		if (event->data.scalar.length == 0 &&
		    event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
			return "has no value";
		return "must not be a single value";
	default:
		return "is out of place";
	}
}

/* The place of a duration, number or word: in the database's sweep if a database is given. */
static const void *key_value(const struct config *config, const struct config_database *database,
			     const struct config_key *key)
{
	if (key->scope == SCOPE_SWEEP)
		return (const char *)(database ? &database->sweep : &config->sweep) + key->offset;
	return (const char *)config + key->offset;
}

/* The same while the configuration is still being built. */
static void *key_field(struct config *config, struct config_database *database,
		       const struct config_key *key)
{
	return (void *)(uintptr_t)key_value(config, database, key);
}

/* Decimal digits as a number, false when it does not fit. */
static bool digits_parse(const char *digits, size_t count, int64_t *ret)
{
	int64_t value = 0;

	for (size_t i = 0; i < count; i++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, digits[i] - '0', &value))
			return false;
	*ret = value;
	return true;
}

/* Digits after the point as a part of the unit, false when that is not whole microseconds. */
static bool fraction_parse(const char *digits, size_t count, int64_t unit_us, int64_t *ret)
{
	int64_t value = 0;

	for (size_t i = 0; i < count; i++) {
		if (digits[i] != '0' && unit_us % 10 != 0)
			return false;
		unit_us /= 10;
		value += (digits[i] - '0') * unit_us;
	}
	*ret = value;
	return true;
}

/*
 * Decimal digits, a fraction if need be, a unit; whole microseconds. Returns what is wrong, or NULL
 * and the value.
 */
static const char *duration_parse(const char *text, int64_t *ret)
{
	const char *digits = "0123456789";
	size_t whole_length = strspn(text, digits);
	size_t fraction_length = 0;
	const char *c = text + whole_length;
	const struct unit *unit;
	int64_t whole;
	int64_t fraction = 0;

	if (*text == '-')
		return "must not be negative";
	if (*c == '.') {
		fraction_length = strspn(c + 1, digits);
		c += 1 + fraction_length;
	}
	if (whole_length == 0 || (c[-1] == '.' && fraction_length == 0))
		return "is not a duration";
	if (!*c)
		return "needs a unit (us, ms, s, m, h or d)";
	for (unit = units; unit->name && strcmp(unit->name, c) != 0; unit++)
		;
	if (!unit->name)
		return "is not a duration (the units are us, ms, s, m, h and d)";
	if (!fraction_parse(text + whole_length + 1, fraction_length, unit->us, &fraction))
		return "is finer than a microsecond";
	if (!digits_parse(text, whole_length, &whole) ||
	    __builtin_mul_overflow(whole, unit->us, &whole) ||
	    __builtin_add_overflow(whole, fraction, &whole))
		return "is too large";
	*ret = whole;
	return NULL;
}

static const char *integer_parse(const char *text, int64_t *ret)
{
	size_t length = strspn(text, "0123456789");

	if (text[0] == '-' && text[1 + strspn(text + 1, "0123456789")] == '\0')
		return "must not be negative";
	if (length == 0 || text[length])
		return "is not a whole number";
	if (length > 1 && text[0] == '0')
		return "must not start with 0";
	return digits_parse(text, length, ret) ? NULL : "is too large";
}

static const char *word_parse(const struct word *words, const char *text, int64_t *ret)
{
	for (const struct word *word = words; word->name; word++)
		if (strcmp(word->name, text) == 0) {
			*ret = word->value;
			return NULL;
		}
	return "is not known";
}

/* A typed value (duration, number, word) from the plain scalar that is the event at hand. */
static int typed_read(struct reader *reader, const struct section *section,
		      const struct config_key *key, void *field)
{
	const char *text = (const char *)reader->event.data.scalar.value;
	size_t length = reader->event.data.scalar.length;
	struct mark mark = event_mark(reader);
	const char *wrong = NULL;
	const char *shown;
	char buffer[48];
	char message[128];
	int64_t value = 0;

	if (reader->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		return refuse_value(reader, section, key, mark, "must be written without quotes");
	if (length == 0)
		return refuse_value(reader, section, key, mark, "has no value");
	if (key->type == TYPE_DURATION)
		wrong = duration_parse(text, &value);
	else if (key->type == TYPE_INTEGER)
		wrong = integer_parse(text, &value);
	else
		wrong = word_parse(key->words, text, &value);
	if (!wrong && key->type != TYPE_WORD && value < key->min)
		wrong = "is too small";
	if (!wrong && key->type != TYPE_WORD && value > key->max)
		wrong = "is too large";
	if (wrong) {
		shown = show_value(text, length, buffer, sizeof(buffer));
		snprintf(message, sizeof(message), "%s %s", shown ? shown : "the value", wrong);
		return refuse_value(reader, section, key, mark, message);
	}
	if (key->type == TYPE_DURATION)
		*(int64_t *)field = value;
	else
		*(int *)field = (int)value;
	return 0;
}

/* What no text may be: empty, YAML's null, of several lines. NULL if it is none of these. */
static const char *text_fault(const struct reader *reader)
{
	const char *text = (const char *)reader->event.data.scalar.value;
	size_t length = reader->event.data.scalar.length;

	if (reader->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
	    (strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0))
		return "has no value";
	if (length == 0)
		return "is empty";
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			return "holds a control character (a line break, tab or NUL)";
	return NULL;
}

static bool name_characters(const char *text, size_t length)
{
	const char *allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";

	return length > 0 && strspn(text, allowed) == length;
}

static int name_read(struct reader *reader, const struct section *section,
		     struct config_database *database)
{
	const char *text = (const char *)reader->event.data.scalar.value;
	size_t length = reader->event.data.scalar.length;
	struct mark mark = event_mark(reader);

	if (length > NAME_LENGTH_MAX)
		return refuse_value(reader, section, &keys[KEY_NAME], mark, "is too long");
	if (!name_characters(text, length))
		return refuse_value(reader, section, &keys[KEY_NAME], mark,
				    "holds a character that is not allowed");
	for (size_t i = 0; i + 1 < section->number; i++)
		if (strcmp(reader->config->databases[i].name, text) == 0)
			return refuse(reader, mark, section, "name",
				      "'%s' is the name of databases[%zu] on line %u too; every "
				      "database needs a name of its own",
				      text, i + 1, reader->databases[i].marks[KEY_NAME].line);
	database->name = strdup(text);
	return database->name ? 0 : out_of_memory(reader);
}

static int password_file_read(struct reader *reader, const struct section *section,
			      struct config_database *database)
{
	static const char credential[] = "credential:";
	const char *text = (const char *)reader->event.data.scalar.value;
	struct mark mark = event_mark(reader);
	const char *credential_name = text + strlen(credential);
	const char *directory;
	size_t size;

	if (strncmp(text, credential, strlen(credential)) != 0) {
		/* Shown to nobody: it may be the password itself. */
		if (text[0] != '/')
			return refuse_value(reader, section, &keys[KEY_PASSWORD_FILE], mark,
					    "is not an absolute path");
		database->password_file = strdup(text);
		return database->password_file ? 0 : out_of_memory(reader);
	}
	if (!name_characters(credential_name, strlen(credential_name)) ||
	    strlen(credential_name) > 255 || credential_name[0] == '.')
		return refuse(reader, mark, section, "password_file",
			      "the credential's name is not valid; allowed: 1 to 255 characters of "
			      "A-Z a-z 0-9 _ . -, the first not a dot");
	directory = getenv("CREDENTIALS_DIRECTORY");
	if (!directory || directory[0] != '/')
		return refuse(reader, mark, section, "password_file",
			      "a credential needs $CREDENTIALS_DIRECTORY, which systemd sets for a "
			      "service with LoadCredential=; for a check by hand, set it to the "
			      "absolute path of a folder with such a file");
	size = strlen(directory) + strlen("/") + strlen(credential_name) + 1;
	database->password_file = malloc(size);
	if (!database->password_file)
		return out_of_memory(reader);
	snprintf(database->password_file, size, "%s/%s", directory, credential_name);
	return 0;
}

static int metrics_file_read(struct reader *reader, const struct section *section)
{
	const struct config_key *key = &keys[KEY_METRICS_FILE];
	const char *text = (const char *)reader->event.data.scalar.value;
	size_t length = reader->event.data.scalar.length, ending = strlen(METRICS_ENDING);
	struct mark mark = event_mark(reader);

	if (strcmp(text, NO_FILE) == 0)
		return 0;
	if (text[0] != '/')
		return refuse_value(reader, section, key, mark, "is not an absolute path");
	if (length > METRICS_FILE_LENGTH_MAX)
		return refuse_value(reader, section, key, mark, "is too long");
	if (length <= ending || strcmp(text + length - ending, METRICS_ENDING) != 0 ||
	    text[length - ending - 1] == '/')
		return refuse_value(reader, section, key, mark,
				    "is not a name that node_exporter looks for");
	reader->config->metrics_file = strdup(text);
	return reader->config->metrics_file ? 0 : out_of_memory(reader);
}

static bool secret_keyword(const char *keyword, size_t length)
{
	static const char *const secrets[] = { "password", "sslpassword", "oauth_client_secret",
					       "scram_client_key", "scram_server_key" };

	for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++)
		if (strlen(secrets[i]) == length && strncasecmp(secrets[i], keyword, length) == 0)
			return true;
	return false;
}

/* Copies length bytes and returns the new end of the copy. */
static char *append(char *end, const char *text, size_t length)
{
	memcpy(end, text, length);
	end[length] = '\0';
	return end + length;
}

/* The end of a value of "keyword = value", by libpq's rules of quotes and backslashes, or NULL. */
static const char *pair_value_end(const char *c)
{
	bool quoted = *c == '\'';

	if (quoted)
		c++;
	for (; *c; c++) {
		if (*c == '\\' && c[1])
			c++;
		else if (quoted ? *c == '\'' : *c == ' ')
			break;
	}
	if (!quoted)
		return c;
	return *c ? c + 1 : NULL;
}

/* "keyword = value" pairs (PostgreSQL manual, "Keyword/Value Connection Strings"). */
static const char *pairs_mask(const char *text, char *masked, bool *secret)
{
	const char *copied = text;
	const char *c = text;

	for (;;) {
		const char *keyword;
		size_t length;
		const char *end;

		c += strspn(c, " ");
		if (!*c)
			break;
		keyword = c;
		length = strcspn(c, " =");
		c += length;
		c += strspn(c, " ");
		if (length == 0 || *c != '=')
			return "must be keyword=value pairs (a value with spaces in single quotes)";
		c++;
		c += strspn(c, " ");
		end = pair_value_end(c);
		if (!end)
			return "has a single quote that is not closed";
		if (secret_keyword(keyword, length)) {
			*secret = true;
			masked = append(masked, copied, (size_t)(c - copied));
			masked = append(masked, MASK, strlen(MASK));
			copied = end;
		}
		c = end;
	}
	append(masked, copied, strlen(copied));
	return NULL;
}

static int hex_digit(char c)
{
	const char *digits = "0123456789abcdef";
	const char *digit = c ? strchr(digits, c | 0x20) : NULL;

	return digit ? (int)(digit - digits) : -1;
}

/* A URI's keyword may hide behind percent signs: decodes up to size bytes of it. */
static size_t percent_decode(const char *text, size_t length, char *decoded, size_t size)
{
	size_t used = 0;

	for (size_t i = 0; i < length && used < size; i++) {
		decoded[used] = text[i];
		if (text[i] == '%' && i + 2 < length && hex_digit(text[i + 1]) >= 0 &&
		    hex_digit(text[i + 2]) >= 0) {
			decoded[used] = (char)(hex_digit(text[i + 1]) * 16 +
					       hex_digit(text[i + 2]));
			i += 2;
		}
		used++;
	}
	return used;
}

/* The part after the question mark. */
static const char *parameters_mask(const char *c, char *masked, bool *secret)
{
	while (*c) {
		size_t whole = strcspn(c, "&");
		size_t length = strcspn(c, "=&");
		char keyword[64];

		if (length == whole)
			return "has a URI parameter without '='";
		if (secret_keyword(keyword, percent_decode(c, length, keyword, sizeof(keyword)))) {
			*secret = true;
			masked = append(masked, c, length + 1);
			masked = append(masked, MASK, strlen(MASK));
		} else {
			masked = append(masked, c, whole);
		}
		c += whole;
		if (*c)
			masked = append(masked, c++, 1);
	}
	return NULL;
}

/*
 * "postgresql://user:password@host/…" (PostgreSQL manual, "Connection URIs"). libpq ends the
 * authority at its first '@' or '/': a raw one within a password would put the rest of the password
 * into the host's name and so into messages.
 */
static const char *uri_mask(const char *text, char *masked, bool *secret)
{
	const char *start = strstr(text, "://") + 3;
	const char *at = start + strcspn(start, "@/");
	const char *rest = *at == '@' ? at + 1 : start;
	const char *colon = start + strcspn(start, ":");
	const char *question = rest + strcspn(rest, "?");

	if (memchr(rest, '@', (size_t)(question - rest)))
		return "holds a raw '@' or '/' within user, password, host or database name of the "
		       "URI (write %40 for '@', %2F for '/')";
	if (*at == '@' && colon < at) {
		*secret = true;
		masked = append(masked, text, (size_t)(colon + 1 - text));
		masked = append(masked, MASK, strlen(MASK));
		text = at;
	}
	if (!*question) {
		append(masked, text, strlen(text));
		return NULL;
	}
	masked = append(masked, text, (size_t)(question + 1 - text));
	return parameters_mask(question + 1, masked, secret);
}

static bool is_uri(const char *text)
{
	return strncmp(text, "postgresql://", 13) == 0 || strncmp(text, "postgres://", 11) == 0;
}

static int conninfo_read(struct reader *reader, const struct section *section,
			 struct config_database *database)
{
	const struct config_key *key = &keys[KEY_CONNINFO];
	const char *text = (const char *)reader->event.data.scalar.value;
	struct mark mark = event_mark(reader);
	bool secret = false;
	const char *wrong;

	database->conninfo = strdup(text);
	/* A mask is never longer than twice what it hides and the keyword before that. */
	database->conninfo_shown = calloc(2, strlen(text) + sizeof(MASK));
	if (!database->conninfo || !database->conninfo_shown)
		return out_of_memory(reader);
	if (is_uri(text))
		wrong = uri_mask(text, database->conninfo_shown, &secret);
	else
		wrong = pairs_mask(text, database->conninfo_shown, &secret);
	if (wrong)
		return refuse_value(reader, section, key, mark, wrong);
	if (secret && reader->world_readable)
		return refuse(reader, mark, section, key->name,
			      "holds a password, and everybody can read this file; use "
			      "password_file with a path or a systemd credential "
			      "(credential:NAME), or take the read permission from others "
			      "(chmod o-r)");
	return 0;
}

/* Changes of one letter (also two swapped neighbours) from one word to the other, cases alike. */
static unsigned edit_distance(const char *a, const char *b)
{
	enum { LONGEST = 32 };
	unsigned rows[3][LONGEST + 1];
	size_t a_length = strlen(a);
	size_t b_length = strlen(b);

	if (a_length > LONGEST || b_length > LONGEST)
		return LONGEST + 1;
	for (unsigned j = 0; j <= b_length; j++)
		rows[0][j] = j;
	for (unsigned i = 1; i <= a_length; i++) {
		unsigned *row = rows[i % 3];
		const unsigned *above = rows[(i + 2) % 3];
		const unsigned *above2 = rows[(i + 1) % 3];

		row[0] = i;
		for (unsigned j = 1; j <= b_length; j++) {
			bool same = strncasecmp(a + i - 1, b + j - 1, 1) == 0;
			unsigned best = above[j - 1] + (same ? 0 : 1);

			if (above[j] + 1 < best)
				best = above[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			if (i > 1 && j > 1 && strncasecmp(a + i - 1, b + j - 2, 1) == 0 &&
			    strncasecmp(a + i - 2, b + j - 1, 1) == 0 && above2[j - 2] + 1 < best)
				best = above2[j - 2] + 1;
			row[j] = best;
		}
	}
	return rows[a_length % 3][b_length];
}

/* The known key of this section that is nearest to an unknown one, or NULL if none is near. */
static const char *key_nearest(unsigned scope, const char *name)
{
	const char *nearest = NULL;
	unsigned best = strlen(name) <= 4 ? 2 : 3;

	for (size_t i = 0; i < KEY_COUNT; i++) {
		unsigned distance = edit_distance(name, keys[i].name);

		if ((keys[i].scope & scope) && distance < best) {
			best = distance;
			nearest = keys[i].name;
		}
	}
	return nearest;
}

static const char *scope_place(unsigned scope)
{
	switch (scope) {
	case SCOPE_LOG:
		return "under 'log'";
	case SCOPE_DATABASE:
		return "within an entry of 'databases'";
	default:
		return "at the top level";
	}
}

static int refuse_unknown_key(struct reader *reader, const struct section *section,
			      const char *name, size_t length)
{
	char shown[48];
	char list[400] = "";
	struct mark mark = event_mark(reader);
	const char *nearest;

	if (strcmp(name, "<<") == 0 && length == 2)
		return refuse(reader, mark, section, "<<",
			      "merge keys are not allowed; write the keys out");
	for (size_t i = 0; i < KEY_COUNT; i++) {
		if (strcmp(keys[i].name, name) == 0 && strlen(name) == length)
			return refuse(reader, mark, section, name,
				      "does not belong here; it is allowed %s",
				      scope_place(keys[i].scope));
		if (keys[i].scope & section->scope)
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%s",
				 *list ? ", " : "", keys[i].name);
	}
	if (!show_value(name, length, shown, sizeof(shown)))
		return refuse(reader, mark, section, "", "unknown key; allowed here: %s", list);
	nearest = key_nearest(section->scope, name);
	if (nearest)
		return refuse(reader, mark, section, name, "unknown key, did you mean '%s'?",
			      nearest);
	return refuse(reader, mark, section, name, "unknown key; allowed here: %s", list);
}

/* Which key the event at hand is, in this section and for the first time. */
static int key_read(struct reader *reader, struct section *section, const struct config_key **ret)
{
	const yaml_event_t *event = &reader->event;
	const char *name = (const char *)event->data.scalar.value;
	size_t length = event->data.scalar.length;

	if (event->type != YAML_SCALAR_EVENT)
		return refuse(reader, event_mark(reader), section, "",
			      "a key must be a single word, not a mapping or a sequence");
	for (size_t i = 0; i < KEY_COUNT; i++) {
		const struct config_key *key = &keys[i];

		if (!(key->scope & section->scope) || strlen(name) != length ||
		    strcmp(key->name, name) != 0)
			continue;
		if (section->seen & (UINT64_C(1) << i))
			return refuse(reader, event_mark(reader), section, key->name,
				      "is given twice, first on line %u; allowed: once",
				      section->lines[i]);
		section->seen |= UINT64_C(1) << i;
		section->lines[i] = event_mark(reader).line;
		*ret = key;
		return 0;
	}
	return refuse_unknown_key(reader, section, name, length);
}

static int databases_read(struct reader *reader);
static int section_read(struct reader *reader, struct section *section,
			struct config_database *database);

static int collection_read(struct reader *reader, struct section *section,
			   const struct config_key *key)
{
	yaml_event_type_t type = reader->event.type;

	if (key->type == TYPE_LOG && type == YAML_MAPPING_START_EVENT) {
		reader->log = (struct section){ .scope = SCOPE_LOG, .start = event_mark(reader) };
		return section_read(reader, &reader->log, NULL);
	}
	if (key->type == TYPE_DATABASES && type == YAML_SEQUENCE_START_EVENT)
		return databases_read(reader);
	return refuse_value(reader, section, key, event_mark(reader), event_noun(&reader->event));
}

/* The value of a key, which is the event at hand. */
static int value_read(struct reader *reader, struct section *section, const struct config_key *key,
		      struct config_database *database)
{
	const char *fault;

	if (key->type == TYPE_LOG || key->type == TYPE_DATABASES)
		return collection_read(reader, section, key);
	if (reader->event.type != YAML_SCALAR_EVENT)
		return refuse_value(reader, section, key, event_mark(reader),
				    event_noun(&reader->event));
	if (key->type == TYPE_DURATION || key->type == TYPE_INTEGER || key->type == TYPE_WORD)
		return typed_read(reader, section, key, key_field(reader->config, database, key));
	fault = text_fault(reader);
	if (fault)
		return refuse_value(reader, section, key, event_mark(reader), fault);
	if (key->type == TYPE_METRICS_FILE)
		return metrics_file_read(reader, section);
	assert(database); /* only a database has keys of these types */
	if (key->type == TYPE_NAME)
		return name_read(reader, section, database);
	if (key->type == TYPE_CONNINFO)
		return conninfo_read(reader, section, database);
	return password_file_read(reader, section, database);
}

/* A mapping, from after its start to its end. */
static int section_read(struct reader *reader, struct section *section,
			struct config_database *database)
{
	const struct config_key *key = NULL;
	char allowed[160];
	int error;

	for (;;) {
		error = next_event(reader);
		if (error)
			return error;
		if (reader->event.type == YAML_MAPPING_END_EVENT)
			break;
		error = key_read(reader, section, &key);
		if (!error)
			error = next_event(reader);
		if (error)
			return error;
		assert(key); /* there was no error */
		section->marks[key - keys] = event_mark(reader);
		error = value_read(reader, section, key, database);
		if (error)
			return error;
	}
	for (size_t i = 0; i < KEY_COUNT; i++)
		if (keys[i].required && (keys[i].scope & section->scope) &&
		    !(section->seen & (UINT64_C(1) << i))) {
			allowed_describe(&keys[i], allowed, sizeof(allowed));
			return refuse(reader, section->start, section, keys[i].name,
				      "is missing; needed: %s", allowed);
		}
	return 0;
}

/* Room for one database more, cleared. */
static int database_add(struct reader *reader)
{
	struct config *config = reader->config;
	size_t count = config->databases_count;
	size_t allocated = reader->databases_allocated;
	struct config_database *databases;
	struct section *sections;

	if (count == allocated) {
		allocated = allocated ? 2 * allocated : 4;
		databases = reallocarray(config->databases, allocated, sizeof(*databases));
		if (!databases)
			return out_of_memory(reader);
		config->databases = databases;
		sections = reallocarray(reader->databases, allocated, sizeof(*sections));
		if (!sections)
			return out_of_memory(reader);
		reader->databases = sections;
		reader->databases_allocated = allocated;
	}
	config->databases[count] = (struct config_database){ 0 };
	reader->databases[count] = (struct section){
		.scope = SCOPE_DATABASE,
		.number = count + 1,
		.start = event_mark(reader),
	};
	config->databases_count = count + 1;
	return 0;
}

/* The sequence of databases, from after its start to its end. */
static int databases_read(struct reader *reader)
{
	const struct config_key *key = &keys[KEY_DATABASES];
	struct config *config = reader->config;
	int error;

	for (;;) {
		struct mark mark;
		size_t index = config->databases_count;

		error = next_event(reader);
		if (error)
			return error;
		mark = event_mark(reader);
		if (reader->event.type == YAML_SEQUENCE_END_EVENT)
			break;
		if (index == CONFIG_DATABASES_MAX)
			return refuse_value(reader, &reader->top, key, mark,
					    "holds too many databases");
		error = database_add(reader);
		if (error)
			return error;
		if (reader->event.type != YAML_MAPPING_START_EVENT)
			return refuse(reader, mark, &reader->databases[index], "",
				      "%s; allowed: a mapping with at least 'name' and 'conninfo'",
				      event_noun(&reader->event));
		error = section_read(reader, &reader->databases[index], &config->databases[index]);
		if (error)
			return error;
	}
	if (config->databases_count == 0)
		return refuse_value(reader, &reader->top, key, reader->top.marks[KEY_DATABASES],
				    "is empty");
	return 0;
}

static bool written(const struct section *section, enum key_id id)
{
	return section->seen & (UINT64_C(1) << id);
}

/* Refuses two durations in the wrong order, at that one of the two that stands here. */
static int order_check(struct reader *reader, const struct section *section, enum key_id smaller,
		       int64_t smaller_us, enum key_id larger, int64_t larger_us, bool may_be_equal)
{
	char small_text[32];
	char large_text[32];

	if (smaller_us < larger_us || (may_be_equal && smaller_us == larger_us))
		return 0;
	duration_format(smaller_us, small_text, sizeof(small_text));
	duration_format(larger_us, large_text, sizeof(large_text));
	if (written(section, smaller))
		return refuse(reader, section->marks[smaller], section, keys[smaller].name,
			      "%s is too large; allowed: %s %s, which is %s", small_text,
			      may_be_equal ? "at most" : "less than", keys[larger].name,
			      large_text);
	return refuse(reader, section->marks[larger], section, keys[larger].name,
		      "%s is too small; allowed: %s %s, which is %s", large_text,
		      may_be_equal ? "at least" : "more than", keys[smaller].name, small_text);
}

/* Every worker must be able to renew within the grace. Refused at that key of the two that stands here. */
static int amnesty_check(struct reader *reader, const struct section *section,
			 const struct config_sweep *sweep)
{
	char after[32];
	char grace[32];

	if (sweep->amnesty_grace_us >= 3 * sweep->amnesty_after_us)
		return 0;
	duration_format(sweep->amnesty_after_us, after, sizeof(after));
	duration_format(sweep->amnesty_grace_us, grace, sizeof(grace));
	if (written(section, KEY_AMNESTY_AFTER) && !written(section, KEY_AMNESTY_GRACE))
		return refuse(
			reader, section->marks[KEY_AMNESTY_AFTER], section,
			keys[KEY_AMNESTY_AFTER].name,
			"%s is too large; allowed: at most a third of amnesty_grace, which is "
			"%s, so that every worker can renew within it",
			after, grace);
	return refuse(reader, section->marks[KEY_AMNESTY_GRACE], section,
		      keys[KEY_AMNESTY_GRACE].name,
		      "%s is too small; allowed: at least three times amnesty_after, which is %s, "
		      "so that every worker can renew within it",
		      grace, after);
}

/* The rules between the values of one sweep, at the top level or of a database. */
static int sweep_check(struct reader *reader, const struct section *section,
		       const struct config_sweep *sweep)
{
	int error;

	if (sweep->max_lease_losses > 0 && sweep->policy != CONFIG_POLICY_REQUEUE)
		return refuse(reader, section->marks[KEY_MAX_LEASE_LOSSES], section,
			      keys[KEY_MAX_LEASE_LOSSES].name,
			      "%d has no meaning under policy %s; allowed: a number above 0 under "
			      "policy requeue only",
			      sweep->max_lease_losses, word_name(policy_words, (int)sweep->policy));
	error = amnesty_check(reader, section, sweep);
	if (!error)
		error = order_check(reader, section, KEY_LOCK_TIMEOUT, sweep->lock_timeout_us,
				    KEY_STATEMENT_TIMEOUT, sweep->statement_timeout_us, false);
	if (!error)
		error = order_check(reader, section, KEY_STATEMENT_TIMEOUT,
				    sweep->statement_timeout_us, KEY_NETWORK_TIMEOUT,
				    reader->config->network_timeout_us, false);
	return error;
}

/* Gives a database what it does not set itself. */
static void database_inherit(struct config *config, struct config_database *database,
			     const struct section *section)
{
	for (size_t i = 0; i < KEY_COUNT; i++)
		if (keys[i].scope == SCOPE_SWEEP && !(section->seen & (UINT64_C(1) << i)))
			memcpy(key_field(config, database, &keys[i]),
			       key_value(config, NULL, &keys[i]),
			       keys[i].type == TYPE_DURATION ? sizeof(int64_t) : sizeof(int));
	/* A limit that belongs to the top level's requeue does not bind another policy. */
	if (!written(section, KEY_MAX_LEASE_LOSSES) &&
	    database->sweep.policy != CONFIG_POLICY_REQUEUE)
		database->sweep.max_lease_losses = 0;
}

static int whole_check(struct reader *reader)
{
	struct config *config = reader->config;
	int error;

	error = order_check(reader, &reader->top, KEY_RECONNECT_MIN, config->reconnect_min_us,
			    KEY_RECONNECT_MAX, config->reconnect_max_us, true);
	if (!error)
		error = sweep_check(reader, &reader->top, &config->sweep);
	for (size_t i = 0; !error && i < config->databases_count; i++) {
		struct config_database *database = &config->databases[i];
		const struct section *section = &reader->databases[i];

		database_inherit(config, database, section);
		error = sweep_check(reader, section, &database->sweep);
		if (!error && database->password_file &&
		    strcmp(database->conninfo, database->conninfo_shown) != 0)
			error = refuse(reader, section->marks[KEY_PASSWORD_FILE], section,
				       keys[KEY_PASSWORD_FILE].name,
				       "conninfo holds a password too; allowed: one of the two");
	}
	return error;
}

static int document_start_check(struct reader *reader)
{
	const yaml_event_t *event = &reader->event;

	if (event->type == YAML_STREAM_END_EVENT)
		return refuse(reader, (struct mark){ 1, 1 }, NULL, "file",
			      "is empty; needed: at least the key 'databases'");
	if (event->data.document_start.version_directive ||
	    event->data.document_start.tag_directives.start !=
		    event->data.document_start.tag_directives.end)
		return refuse(reader, event_mark(reader), NULL, "yaml",
			      "directives (%%) are not allowed; take the line out");
	return 0;
}

static int stream_read(struct reader *reader)
{
	int error = next_event(reader); /* the stream's start */

	if (!error)
		error = next_event(reader);
	if (!error)
		error = document_start_check(reader);
	if (!error)
		error = next_event(reader);
	if (error)
		return error;
	if (reader->event.type != YAML_MAPPING_START_EVENT)
		return refuse(reader, event_mark(reader), NULL, "file",
			      "must be a mapping of keys to values, as in 'interval: 5s'");
	reader->top = (struct section){ .scope = SCOPE_TOP, .start = event_mark(reader) };
	error = section_read(reader, &reader->top, NULL);
	if (!error)
		error = next_event(reader); /* the document's end */
	if (!error)
		error = next_event(reader);
	if (error)
		return error;
	if (reader->event.type != YAML_STREAM_END_EVENT)
		return refuse(reader, event_mark(reader), NULL, "yaml",
			      "a second document starts here; allowed: one");
	return whole_check(reader);
}

/* One character of UTF-8 (RFC 3629: no overlong forms, no surrogates): its length, or 0. */
static size_t utf8_decode(const unsigned char *c, size_t left, uint32_t *ret)
{
	static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
	size_t length = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
	uint32_t value = length == 1 ? c[0] : c[0] & (0x7fU >> length);

	if (length == 0 || length > left)
		return 0;
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

/*
 * Why a character may not stand in the file, or NULL. Among those refused are the line breaks that
 * only YAML knows (U+0085, U+2028, U+2029): an editor would count other lines than the messages do.
 */
static const char *character_fault(uint32_t c, bool indentation)
{
	if (c == 0)
		return "holds a NUL byte; allowed: text in UTF-8";
	if (c == '\t' && indentation)
		return "holds a tab in the indentation; allowed: spaces";
	if ((c < ' ' && c != '\t' && c != '\n' && c != '\r') || (c >= 0x7f && c < 0xa0))
		return "holds a control character; allowed: text in UTF-8";
	if (c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff)
		return "holds an invisible character (U+2028, U+2029, U+FEFF, U+FFFE or U+FFFF); "
		       "allowed: visible text";
	return NULL;
}

/* Looks at every byte before libyaml does: its own messages about bytes have no line and column. */
static int characters_check(struct reader *reader, const char *text, size_t length)
{
	const unsigned char *c = (const unsigned char *)text;
	const unsigned char *end = c + length;
	struct mark mark = { 1, 1 };
	bool indentation = true;

	while (c < end) {
		uint32_t character = 0;
		size_t step = utf8_decode(c, (size_t)(end - c), &character);
		const char *fault = step == 0 ? "is not valid UTF-8; allowed: text in UTF-8"
					      : character_fault(character, indentation);

		if (fault)
			return refuse(reader, mark, NULL, "file", "%s", fault);
		if (*c == '\n' || (*c == '\r' && !(c + 1 < end && c[1] == '\n'))) {
			mark = (struct mark){ mark.line + 1, 1 };
			indentation = true;
		} else {
			mark.column++;
			indentation = indentation && (*c == ' ' || *c == '\r');
		}
		c += step;
	}
	return 0;
}

static void defaults_set(struct config *config)
{
	for (size_t i = 0; i < KEY_COUNT; i++) {
		const struct config_key *key = &keys[i];

		if (key->type == TYPE_DURATION)
			*(int64_t *)key_field(config, NULL, key) = key->initial;
		else if (key->type == TYPE_INTEGER || key->type == TYPE_WORD)
			*(int *)key_field(config, NULL, key) = (int)key->initial;
	}
}

static int too_large(struct reader *reader)
{
	return refuse(reader, (struct mark){ 1, 1 }, NULL, "file",
		      "is too large; allowed: at most %zu bytes", CONFIG_SIZE_MAX);
}

int config_parse(const char *name, const char *text, size_t length, bool world_readable,
		 struct config **ret, struct config_error *reterr)
{
	struct reader reader = { .name = name, .world_readable = world_readable, .error = reterr };
	int error;

	if (length > CONFIG_SIZE_MAX)
		return too_large(&reader);
	if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* the byte order mark */
		text += 3;
		length -= 3;
	}
	error = characters_check(&reader, text, length);
	if (error)
		return error;
	if (!yaml_parser_initialize(&reader.parser))
		return out_of_memory(&reader);
	yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
	reader.config = calloc(1, sizeof(*reader.config));
	if (reader.config) {
		defaults_set(reader.config);
		error = stream_read(&reader);
	} else {
		error = out_of_memory(&reader);
	}
	yaml_event_delete(&reader.event);
	yaml_parser_delete(&reader.parser);
	free(reader.databases);
	if (error)
		config_free(reader.config);
	else
		*ret = reader.config;
	return error;
}

static int fail_read(const char *path, int system_error, struct config_error *reterr)
{
	char what[160];

	snprintf(what, sizeof(what), "cannot be read: %s; needed: a file that this user may read",
		 strerror(system_error));
	return fail_file(path, CONFIG_E_NOINPUT, what, reterr);
}

/* Reads until the end or one byte past the limit. Returns 0 or an errno value. */
static int read_whole(int fd, char *buffer, size_t size, size_t *ret)
{
	size_t used = 0;

	while (used < size) {
		ssize_t got = read(fd, buffer + used, size - used);

		if (got == 0)
			break;
		if (got > 0)
			used += (size_t)got;
		else if (errno != EINTR)
			return errno;
	}
	*ret = used;
	return 0;
}

static int load_open(const char *path, int fd, struct config **ret, struct config_error *reterr)
{
	struct reader reader = { .name = path, .error = reterr };
	struct stat status;
	char *text;
	size_t length = 0;
	int error;

	if (fstat(fd, &status) < 0)
		return fail_read(path, errno, reterr);
	if (!S_ISREG(status.st_mode))
		return fail_file(path, CONFIG_E_NOINPUT,
				 S_ISDIR(status.st_mode)
					 ? "cannot be read: is a directory; needed: a regular file"
					 : "cannot be read: is no regular file; needed: one",
				 reterr);
	if (status.st_size > (off_t)CONFIG_SIZE_MAX)
		return too_large(&reader);
	text = malloc(CONFIG_SIZE_MAX + 1);
	if (!text)
		return out_of_memory(&reader);
	error = read_whole(fd, text, CONFIG_SIZE_MAX + 1, &length);
	if (error)
		error = fail_read(path, error, reterr);
	else
		error = config_parse(path, text, length, status.st_mode & S_IROTH, ret, reterr);
	free(text);
	return error;
}

int config_load(const char *path, struct config **ret, struct config_error *reterr)
{
	/* Without O_NONBLOCK, opening a FIFO would wait for a writer. */
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	int error;

	if (fd < 0)
		return fail_read(path, errno, reterr);
	error = load_open(path, fd, ret, reterr);
	close(fd);
	return error;
}

void config_free(struct config *config)
{
	if (!config)
		return;
	for (size_t i = 0; i < config->databases_count; i++) {
		free(config->databases[i].name);
		free(config->databases[i].conninfo);
		free(config->databases[i].conninfo_shown);
		free(config->databases[i].password_file);
	}
	free(config->databases);
	free(config->metrics_file);
	free(config);
}

/* Texts hold no control characters, so YAML's single quotes hold every one of them. */
static void text_print(FILE *file, const char *key, const char *text)
{
	fprintf(file, "%s: '", key);
	for (; *text; text++) {
		if (*text == '\'')
			putc('\'', file);
		putc(*text, file);
	}
	fputs("'\n", file);
}

static void typed_print(FILE *file, const struct config_key *key, const void *field)
{
	char duration[32];

	if (key->type == TYPE_DURATION) {
		duration_format(*(const int64_t *)field, duration, sizeof(duration));
		fprintf(file, "%s: %s\n", key->name, duration);
	} else if (key->type == TYPE_INTEGER) {
		fprintf(file, "%s: %d\n", key->name, *(const int *)field);
	} else {
		fprintf(file, "%s: %s\n", key->name, word_name(key->words, *(const int *)field));
	}
}

static void database_print(FILE *file, const struct config *config,
			   const struct config_database *database)
{
	fputs("  - ", file);
	text_print(file, keys[KEY_NAME].name, database->name);
	fputs("    ", file);
	text_print(file, keys[KEY_CONNINFO].name, database->conninfo_shown);
	if (database->password_file) {
		fputs("    ", file);
		text_print(file, keys[KEY_PASSWORD_FILE].name, database->password_file);
	}
	for (size_t i = 0; i < KEY_COUNT; i++)
		if (keys[i].scope == SCOPE_SWEEP) {
			fputs("    ", file);
			typed_print(file, &keys[i], key_value(config, database, &keys[i]));
		}
}

void config_print(FILE *file, const struct config *config)
{
	for (size_t i = 0; i < KEY_COUNT; i++) {
		const struct config_key *key = &keys[i];

		if (key->scope == SCOPE_DATABASE)
			continue;
		fprintf(file, "%s# %s\n%s", key->scope == SCOPE_LOG ? "  " : "", key->doc,
			key->scope == SCOPE_LOG ? "  " : "");
		if (key->type == TYPE_LOG || key->type == TYPE_DATABASES)
			fprintf(file, "%s:\n", key->name);
		else if (key->type != TYPE_METRICS_FILE)
			typed_print(file, key, key_value(config, NULL, key));
		else if (config->metrics_file)
			text_print(file, key->name, config->metrics_file);
		else
			fprintf(file, "%s: " NO_FILE "\n", key->name);
	}
	for (size_t i = 0; i < config->databases_count; i++)
		database_print(file, config, &config->databases[i]);
}
