/*
 * See journal.h. A message is formatted and escaped once; then it goes out as fields or as a line.
 */
#define SD_JOURNAL_SUPPRESS_LOCATION
#include "journal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>
#include <time.h>
#include <unistd.h>

#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define MESSAGE_SIZE 2048
/* A line of at most this much is written to a pipe whole or not at all (pipe(7)). */
#define LINE_SIZE PIPE_BUF

/* The identifiers are fixed for ever: catalogs and people's filters name them. */
static const struct {
	const char *name;
	const char *id;
	int priority;
} events[JOURNAL_EVENTS] = {
	[JOURNAL_START_REFUSED] = { "start-refused", "ae56c72ab54b412093ee688262bcaf18", 3 },
	[JOURNAL_STARTED] = { "started", "94ec83c3f97b4897bafe76b276fef9e8", 6 },
	[JOURNAL_STOPPED] = { "stopped", "597b8585000948d9a08f70f3fb2bafd0", 6 },
	[JOURNAL_RELOADED] = { "reloaded", "ae3ee38b75b34d4d9c26880148b4b675", 6 },
	[JOURNAL_RELOAD_REFUSED] = { "reload-refused", "4a7f95fb14d24e5ab69aefb5a06a19fc", 3 },
	[JOURNAL_CONNECTED] = { "connected", "dd268da3157541eea33c73aa70467f0c", 6 },
	[JOURNAL_CONNECT_FAILED] = { "connect-failed", "bf54dbcb2c1c4b43a12cce86ce0425fe", 4 },
	[JOURNAL_UNREACHABLE] = { "unreachable", "e9c4a7333fb64f30816daf8221243f79", 4 },
	[JOURNAL_CONNECTION_LOST] = { "connection-lost", "e5b0ecc2fdf0468fadb43ef08f2449a8", 4 },
	[JOURNAL_READ_ONLY] = { "read-only", "df020f00729c4bceab392cc5af7c3fc9", 4 },
	[JOURNAL_SWEEP_FAILED] = { "sweep-failed", "3bbf8fca7d644a3186c23454292a0f83", 4 },
	[JOURNAL_SWEEP_FAILING] = { "sweep-failing", "8c6fbdaaf5444e449e75b65774ce4ecc", 4 },
	[JOURNAL_SWEEP_RECOVERED] = { "sweep-recovered", "ee4ea39ed7c745c1b1748e315c408674", 5 },
	[JOURNAL_ATTEMPT_CLOSED] = { "attempt-closed", "f4eaa5cceb4b4d17bd172889553ab02d", 6 },
	[JOURNAL_RUN_MOVED] = { "run-moved", "cefef2cec8e44e44ab2f922b5336b4a1", 6 },
	[JOURNAL_ATTEMPTS_CLOSED] = { "attempts-closed", "96a3f75dd722447faaa0d5d44fc1cdb4", 6 },
	[JOURNAL_RUN_SKIPPED] = { "run-skipped", "cafc70f0a7884183a09dcc8ff1c5ab3c", 4 },
	[JOURNAL_AMNESTY] = { "amnesty", "eee681822b87474aa5ea6b6fab78fd5b", 4 },
	[JOURNAL_CLOCK_JUMPED] = { "clock-jumped", "6899c12ec2ee4cffaf98df9602bd8078", 2 },
	[JOURNAL_SHORT_LEASES] = { "short-leases", "aa345d40acc04bdeb1d7081666e11954", 4 },
	[JOURNAL_PASS] = { "pass", "0d17d97d5e3942b5829a9bbe84963678", 7 },
	[JOURNAL_SERVER_NOTICE] = { "server-notice", "7fd723a5bcef4eadaeffb40b8f8b0fa2", 7 },
	[JOURNAL_DATABASE_REMOVED] = { "database-removed", "be32a2c2331446e7b0768988dc788f41", 6 },
	[JOURNAL_WATCHDOG_WITHHELD] = { "watchdog-withheld", "f77c73c82738433a9b530a25087c771e",
					3 },
	[JOURNAL_METRICS_FAILED] = { "metrics-failed", "1797042205a34fa489a05415d153c106", 4 },
	[JOURNAL_METRICS_RECOVERED] = { "metrics-recovered", "e0a884f4a65a4755adc92db946a9ba99",
					5 },
};

const char *journal_event_id(enum journal_event event)
{
	return events[event].id;
}

const char *journal_event_name(enum journal_event event)
{
	return events[event].name;
}

int64_t monotonic_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000;
}

const char *duration_text(int64_t duration, char buffer[DURATION_SIZE])
{
	const int64_t minute = 60 * LEASE_SECOND;
	int64_t minutes = duration / minute;

	if (duration < LEASE_MILLISECOND)
		snprintf(buffer, DURATION_SIZE, "%" PRId64 " us", duration);
	else if (duration < LEASE_SECOND)
		snprintf(buffer, DURATION_SIZE, "%" PRId64 " ms", duration / LEASE_MILLISECOND);
	else if (duration < 2 * minute)
		snprintf(buffer, DURATION_SIZE, "%" PRId64 " s", duration / LEASE_SECOND);
	else if (minutes < 120)
		snprintf(buffer, DURATION_SIZE, "%" PRId64 " min", minutes);
	else
		snprintf(buffer, DURATION_SIZE, "%" PRId64 " h %" PRId64 " min", minutes / 60,
			 minutes % 60);
	return buffer;
}

void make_one_line(char *text)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		char c = *from == '\n' || *from == '\r' || *from == '\t' ? ' ' : *from;

		if (c != ' ' || (to > text && to[-1] != ' '))
			*to++ = c;
	}
	while (to > text && to[-1] == ' ')
		to--;
	*to = '\0';
}

/* -- the target ------------------------------------------------------------------------------- */

/* Whether stderr is the stream that systemd connected to the journal: "device:inode". */
static bool stderr_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat status;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(STDERR_FILENO, &status) == 0 && status.st_dev == (dev_t)device &&
	       status.st_ino == (ino_t)inode;
}

void journal_open(struct journal *journal, const struct config_log *log)
{
	enum config_log_target target = log ? log->target : CONFIG_LOG_AUTO;

	journal->level = log ? (int)log->level : CONFIG_LOG_INFO;
	journal->closed_per_second = log ? log->closed_attempts_per_second : 0;
	/* without journald sd_journal_sendv drops what it is given and says that all is well */
	journal->to_journal = target != CONFIG_LOG_STDERR &&
			      (target == CONFIG_LOG_JOURNAL || stderr_is_journal()) &&
			      access(JOURNAL_SOCKET, W_OK) == 0;
}

/* -- text ------------------------------------------------------------------------------------- */

/* The length of the UTF-8 character at `text`; 0: it is none, or a control character. */
static size_t character_length(const unsigned char *text)
{
	static const unsigned char first_min[] = { 0, 0, 0xc2, 0xe0, 0xf0 };
	static const unsigned char first_max[] = { 0, 0, 0xdf, 0xef, 0xf4 };

	if (*text < 0x80)
		return *text >= ' ' && *text != 0x7f;
	for (size_t length = 2; length <= 4; length++) {
		if (*text < first_min[length] || *text > first_max[length])
			continue;
		for (size_t i = 1; i < length; i++)
			if ((text[i] & 0xc0) != 0x80)
				return 0;
		if ((text[0] == 0xc2 && text[1] < 0xa0) || (text[0] == 0xe0 && text[1] < 0xa0) ||
		    (text[0] == 0xed && text[1] >= 0xa0) || (text[0] == 0xf0 && text[1] < 0x90) ||
		    (text[0] == 0xf4 && text[1] >= 0x90))
			return 0;
		return length;
	}
	return 0;
}

void escape_text(char *to, size_t size, const char *from)
{
	const char *end = to + size - 1;

	while (*from) {
		size_t length = character_length((const unsigned char *)from);

		if (length == 0) {
			if (end - to < 4)
				break;
			to += sprintf(to, "\\x%02x", (unsigned char)*from++);
			continue;
		}
		if ((size_t)(end - to) < length)
			break;
		memcpy(to, from, length);
		to += length;
		from += length;
	}
	*to = '\0';
}

/* ISO 8601, UTC; `digits` of the second's fraction. */
static void format_time(char *buffer, size_t size, int64_t time, int digits)
{
	time_t seconds = (time_t)(time / LEASE_SECOND);
	int64_t fraction = time % LEASE_SECOND;
	char date[48];
	struct tm tm;

	if (!gmtime_r(&seconds, &tm) || !strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm)) {
		snprintf(buffer, size, "%" PRId64, time);
		return;
	}
	for (int i = digits; i < 6; i++)
		fraction /= 10;
	snprintf(buffer, size, "%s.%0*" PRId64 "Z", date, digits, fraction);
}

/* -- writing ---------------------------------------------------------------------------------- */

static const char *level_name(int priority)
{
	switch (priority) {
	case CONFIG_LOG_ERROR:
		return "error";
	case CONFIG_LOG_WARNING:
		return "warning";
	case CONFIG_LOG_NOTICE:
		return "notice";
	case CONFIG_LOG_INFO:
		return "info";
	default:
		return "debug";
	}
}

/* A pipe with room takes a short line at once; one that is full would hold up everything. */
static bool stderr_has_room(void)
{
	struct pollfd fd = { .fd = STDERR_FILENO, .events = POLLOUT };

	return poll(&fd, 1, 0) == 1 && (fd.revents & POLLOUT);
}

static void write_line(struct journal *journal, int priority, const char *database,
		       const char *message)
{
	struct timespec now;
	char time[64], lost[64] = "", line[LINE_SIZE];
	int length;

	if (!stderr_has_room()) {
		journal->lost++;
		return;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	format_time(time, sizeof(time), (int64_t)now.tv_sec * LEASE_SECOND + now.tv_nsec / 1000, 3);
	if (journal->lost > 0)
		snprintf(lost, sizeof(lost), " (%" PRId64 " lines lost before this one)",
			 journal->lost);
	length = snprintf(line, sizeof(line), "%s %s %s%s%s%s\n", time, level_name(priority),
			  database ? database : "", database ? ": " : "", message, lost);
	if (length >= (int)sizeof(line)) {
		length = (int)sizeof(line) - 1;
		line[length - 1] = '\n';
	}
	if (write(STDERR_FILENO, line, (size_t)length) == length)
		journal->lost = 0;
}

/* The fields of one entry in the making; texts live in `space`. */
struct entry {
	struct iovec vectors[16];
	int n;
	char space[8192];
	size_t used;
};

static void add_field(struct entry *entry, const char *name, const char *value)
{
	size_t room = sizeof(entry->space) - entry->used;
	char *start = entry->space + entry->used;
	int length;

	if (!value || !*value || entry->n == sizeof(entry->vectors) / sizeof(entry->vectors[0]))
		return;
	length = snprintf(start, room, "%s=%s", name, value);
	if (length < 0 || (size_t)length >= room)
		return;
	entry->vectors[entry->n++] = (struct iovec){ start, (size_t)length };
	entry->used += (size_t)length + 1;
}

static void add_number(struct entry *entry, const char *name, int64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRId64, value);
	add_field(entry, name, text);
}

static bool send_entry(enum journal_event event, const struct journal_fields *fields,
		       const char *message)
{
	struct entry entry = { .n = 0 };
	char time[64];

	add_field(&entry, "MESSAGE", message);
	add_field(&entry, "MESSAGE_ID", events[event].id);
	add_number(&entry, "PRIORITY", events[event].priority);
	add_field(&entry, "DATABASE", fields->database);
	add_field(&entry, "SQLSTATE", fields->sqlstate);
	add_field(&entry, "RUN_ID", fields->run_id);
	if (fields->attempt_no > 0)
		add_number(&entry, "ATTEMPT_NO", fields->attempt_no);
	add_field(&entry, "LEASE_OWNER", fields->owner);
	add_field(&entry, "OUTCOME", fields->outcome);
	add_field(&entry, "RUN_STATUS", fields->run_status);
	add_field(&entry, "ERROR_CODE", fields->error_code);
	if (fields->lease_expires_at != LEASE_TIME_NONE && fields->lease_expires_at != 0) {
		format_time(time, sizeof(time), fields->lease_expires_at, 6);
		add_field(&entry, "LEASE_EXPIRES_AT", time);
		if (fields->detection_lag != LEASE_TIME_NONE)
			add_number(&entry, "DETECTION_LAG_USEC", fields->detection_lag);
	}
	return sd_journal_sendv(entry.vectors, entry.n) >= 0;
}

void journal_write(struct journal *journal, enum journal_event event,
		   const struct journal_fields *fields, const char *format, ...)
{
	static const struct journal_fields none;
	char text[MESSAGE_SIZE], message[MESSAGE_SIZE];
	va_list arguments;

	if (events[event].priority > journal->level)
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	escape_text(message, sizeof(message), text);
	if (!fields)
		fields = &none;
	if (!journal->to_journal || !send_entry(event, fields, message))
		write_line(journal, events[event].priority, fields->database, message);
}

/* -- many at once ----------------------------------------------------------------------------- */

static bool within_budget(struct journal *journal)
{
	int64_t now = monotonic_now();

	if (now - journal->second >= LEASE_SECOND) {
		journal->second = now;
		journal->in_second = 0;
	}
	if (journal->in_second >= journal->closed_per_second)
		return false;
	journal->in_second++;
	return true;
}

static void write_closed(struct journal *journal, const char *database,
			 const struct lease_closed *closed)
{
	int64_t lag = closed->attempt_no ? closed->closed_at - closed->lease_expires_at
					 : LEASE_TIME_NONE;
	struct journal_fields fields = {
		.database = database,
		.run_id = closed->run_id,
		.attempt_no = closed->attempt_no,
		.owner = closed->owner,
		.outcome = closed->attempt_no ? lease_outcome_name(LEASE_OUTCOME_LEASE_EXPIRED)
					      : NULL,
		.run_status = lease_run_status_name(closed->status),
		.error_code = closed->error_code,
		.lease_expires_at = closed->lease_expires_at,
		.detection_lag = lag,
	};
	bool failed = closed->moved && closed->status == LEASE_RUN_FAILED && closed->error_code;
	char run[320], after[DURATION_SIZE];

	snprintf(run, sizeof(run), "the run %s %s%s%s%s", closed->moved ? "is now" : "stays",
		 fields.run_status, failed ? " (" : "", failed ? closed->error_code : "",
		 failed ? ")" : "");
	if (!closed->attempt_no)
		journal_write(journal, JOURNAL_RUN_MOVED, &fields, "run %s had no open attempt; %s",
			      closed->run_id, run);
	else
		journal_write(journal, JOURNAL_ATTEMPT_CLOSED, &fields,
			      "attempt %" PRId32
			      " of run %s closed as %s, %s after its lease ended; %s",
			      closed->attempt_no, closed->run_id, fields.outcome,
			      duration_text(lag, after), run);
}

bool journal_closed(struct journal *journal, const char *database,
		    const struct lease_closed *closed, struct journal_summary *summary)
{
	int64_t lag = closed->closed_at - closed->lease_expires_at;

	if (events[JOURNAL_ATTEMPT_CLOSED].priority > journal->level)
		return true;
	if (within_budget(journal)) {
		write_closed(journal, database, closed);
		return true;
	}
	if (closed->attempt_no) {
		summary->attempts++;
		if (lag > summary->lag_max)
			summary->lag_max = lag;
	}
	if (closed->moved)
		summary->moved[closed->status]++;
	return false;
}

bool journal_skipped(struct journal *journal, const char *database,
		     const struct lease_skipped *skipped, struct journal_summary *summary)
{
	struct journal_fields fields = {
		.database = database,
		.sqlstate = skipped->error->sqlstate,
		.run_id = skipped->run_id,
	};

	if (events[JOURNAL_RUN_SKIPPED].priority > journal->level)
		return true;
	if (!within_budget(journal)) {
		summary->skipped++;
		return false;
	}
	journal_write(
		journal, JOURNAL_RUN_SKIPPED, &fields,
		"run %s passed over until the next scan: the database refused to write it: %s%s%s",
		skipped->run_id, skipped->error->message,
		skipped->error->sqlstate[0] ? ", SQLSTATE " : "", skipped->error->sqlstate);
	return true;
}

void journal_summarize(struct journal *journal, const char *database,
		       struct journal_summary *summary)
{
	char text[512], lag[DURATION_SIZE];
	size_t used;

	if (!summary->attempts && !summary->skipped &&
	    !memcmp(summary->moved, (int64_t[LEASE_RUN_INTERRUPTED + 1]){ 0 },
		    sizeof(summary->moved)))
		return;
	used = (size_t)snprintf(text, sizeof(text), "closed %" PRId64 " attempts more as %s",
				summary->attempts, lease_outcome_name(LEASE_OUTCOME_LEASE_EXPIRED));
	for (int status = 0; status <= LEASE_RUN_INTERRUPTED; status++)
		if (summary->moved[status] > 0)
			used += (size_t)snprintf(
				text + used, sizeof(text) - used, "; %" PRId64 " runs are %s now",
				summary->moved[status],
				lease_run_status_name((enum lease_run_status)status));
	if (summary->skipped > 0)
		used += (size_t)snprintf(text + used, sizeof(text) - used,
					 "; %" PRId64 " runs passed over until the next scan",
					 summary->skipped);
	snprintf(text + used, sizeof(text) - used, "; at most %s after their leases ended",
		 duration_text(summary->lag_max, lag));
	journal_write(journal, summary->skipped > 0 ? JOURNAL_RUN_SKIPPED : JOURNAL_ATTEMPTS_CLOSED,
		      &(struct journal_fields){ .database = database }, "%s", text);
	*summary = (struct journal_summary){ 0 };
}
