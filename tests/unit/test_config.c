/*
 * The configuration: what is read, what is refused, and the words and places of every refusal.
 *
 * Promises: each message is compared whole. Needs no server; reads config/lease-reconciler.yaml
 * below LEASE_SOURCE (default: the current directory). LEASE_FUZZ_ROUNDS sets how many mutations of
 * that sample are tried.
 */
#include "../../daemon/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define DATABASE "databases:\n  - name: app\n    conninfo: host=/run/postgresql\n"
#define DATABASE_FOLDED "databases:\n  - name: app\n    conninfo: >-\n      %s\n"
#define SECOND INT64_C(1000000)

/* Parses a text that must be right. */
static struct config *parsed(const char *text)
{
	struct config *config = NULL;
	struct config_error error = { 0 };

	if (config_parse("t.yaml", text, strlen(text), false, &config, &error) != 0)
		fail_msg("refused: %s", error.message);
	return config;
}

static void refused_bytes(const char *text, size_t length, bool world_readable,
			  const char *expected)
{
	struct config *config = (struct config *)&config;
	struct config_error error = { 0 };
	char place[64];

	assert_int_equal(config_parse("t.yaml", text, length, world_readable, &config, &error),
			 CONFIG_E_CONTENT);
	assert_string_equal(error.message, expected);
	assert_int_equal(error.code, CONFIG_E_CONTENT);
	snprintf(place, sizeof(place), "t.yaml:%u:%u: ", error.line, error.column);
	assert_memory_equal(error.message, place, strlen(place));
	assert_ptr_equal(config, &config); /* untouched */
}

static void refused(const char *text, const char *expected)
{
	refused_bytes(text, strlen(text), false, expected);
}

/* The same within a database's entry, from its third line. */
static void refused_in_database(const char *line, const char *expected)
{
	char text[512];

	snprintf(text, sizeof(text), "databases:\n  - name: app\n    %s\n", line);
	refused(text, expected);
}

static char *printed(const struct config *config)
{
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	assert_non_null(file);
	config_print(file, config);
	assert_int_equal(fclose(file), 0);
	return text;
}

static char *sample_path(void)
{
	const char *source = getenv("LEASE_SOURCE");
	static char path[4096];

	snprintf(path, sizeof(path), "%s/config/lease-reconciler.yaml", source ? source : ".");
	return path;
}

static char *sample_read(size_t *ret_length)
{
	FILE *file = fopen(sample_path(), "r");
	char *text;

	if (!file) {
		fail_msg("%s cannot be opened; set LEASE_SOURCE", sample_path());
		*ret_length = 1; /* not every tool knows that it cannot come here */
		return NULL;
	}
	text = calloc(1, CONFIG_SIZE_MAX);
	assert_non_null(text);
	*ret_length = fread(text, 1, CONFIG_SIZE_MAX - 1, file);
	fclose(file);
	return text;
}

/* A file in a folder of its own, which file_remove takes away again. */
static char *file_make(const char *content, size_t length, mode_t mode)
{
	static char path[64];
	char folder[] = "/tmp/test-config-XXXXXX";
	FILE *file;

	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/t.yaml", folder);
	file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(content, 1, length, file), length);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(path, mode), 0);
	return path;
}

static void file_remove(char *path)
{
	assert_int_equal(unlink(path), 0);
	*strrchr(path, '/') = '\0';
	assert_int_equal(rmdir(path), 0);
}

static void defaults(void **state)
{
	struct config *config = parsed(DATABASE);

	(void)state;
	assert_int_equal(config->sweep.interval_us, 5 * SECOND);
	assert_int_equal(config->sweep.orphan_interval_us, 60 * SECOND);
	assert_int_equal(config->sweep.batch_size, 200);
	assert_int_equal(config->scan_page, 5000);
	assert_int_equal(config->due_limit, 10000);
	assert_int_equal(config->sweep.policy, CONFIG_POLICY_RECORD);
	assert_int_equal(config->sweep.max_lease_losses, 0);
	assert_int_equal(config->connect_timeout_us, 5 * SECOND);
	assert_int_equal(config->sweep.statement_timeout_us, 10 * SECOND);
	assert_int_equal(config->sweep.lock_timeout_us, 2 * SECOND);
	assert_int_equal(config->network_timeout_us, 15 * SECOND);
	assert_int_equal(config->reconnect_min_us, SECOND / 5);
	assert_int_equal(config->reconnect_max_us, 15 * SECOND);
	assert_int_equal(config->log.target, CONFIG_LOG_AUTO);
	assert_int_equal(config->log.level, CONFIG_LOG_INFO);
	assert_int_equal(config->log.closed_attempts_per_second, 20);
	assert_int_equal(config->databases_count, 1);
	assert_string_equal(config->databases[0].name, "app");
	assert_string_equal(config->databases[0].conninfo, "host=/run/postgresql");
	assert_string_equal(config->databases[0].conninfo_shown, "host=/run/postgresql");
	assert_null(config->databases[0].password_file);
	assert_memory_equal(&config->databases[0].sweep, &config->sweep, sizeof(config->sweep));
	config_free(config);
	config_free(NULL);
}

static void every_key_is_read(void **state)
{
	struct config *config = parsed(
		"\xef\xbb\xbf---\ninterval: 250ms\norphan_interval: 1d\nbatch_size: 1\n"
		"scan_page: 100000\ndue_limit: 100\npolicy: requeue\nmax_lease_losses: 4\n"
		"connect_timeout: 1.5s\nstatement_timeout: 1h\nlock_timeout: 1ms\n"
		"network_timeout: 1.25h\nreconnect_min: 10000us\nreconnect_max: 10ms\n"
		"\"log\": {target: stderr, level: debug, closed_attempts_per_second: 0}\n"
		"databases:\n- {name: A_b.c-9, conninfo: 'dbname=a', "
		"password_file: \"/a b\"}\n"
		"...\n");

	(void)state;
	assert_int_equal(config->sweep.interval_us, SECOND / 4);
	assert_int_equal(config->sweep.orphan_interval_us, 86400 * SECOND);
	assert_int_equal(config->sweep.batch_size, 1);
	assert_int_equal(config->scan_page, 100000);
	assert_int_equal(config->due_limit, 100);
	assert_int_equal(config->sweep.policy, CONFIG_POLICY_REQUEUE);
	assert_int_equal(config->sweep.max_lease_losses, 4);
	assert_int_equal(config->connect_timeout_us, 1500000);
	assert_int_equal(config->sweep.statement_timeout_us, 3600 * SECOND);
	assert_int_equal(config->sweep.lock_timeout_us, 1000);
	assert_int_equal(config->network_timeout_us, 4500 * SECOND);
	assert_int_equal(config->reconnect_min_us, 10000);
	assert_int_equal(config->reconnect_max_us, 10000);
	assert_int_equal(config->log.target, CONFIG_LOG_STDERR);
	assert_int_equal(config->log.level, CONFIG_LOG_DEBUG);
	assert_int_equal(config->log.closed_attempts_per_second, 0);
	assert_string_equal(config->databases[0].name, "A_b.c-9");
	assert_string_equal(config->databases[0].password_file, "/a b");
	config_free(config);
}

static void a_database_overrides_and_inherits(void **state)
{
	/* The databases stand first: what they inherit is read after them. */
	struct config *config = parsed("databases:\n"
				       "  - name: a\n    conninfo: dbname=a\n    interval: 1s\n"
				       "    orphan_interval: 2s\n    batch_size: 7\n"
				       "    policy: requeue\n    max_lease_losses: 9\n"
				       "    statement_timeout: 3s\n    lock_timeout: 500ms\n"
				       "  - name: b\n    conninfo: dbname=b\n"
				       "  - name: c\n    conninfo: dbname=c\n    policy: record\n"
				       "interval: 30s\npolicy: requeue\nmax_lease_losses: 3\n");
	const struct config_database *databases = config->databases;

	(void)state;
	assert_int_equal(config->databases_count, 3);
	assert_int_equal(databases[0].sweep.interval_us, SECOND);
	assert_int_equal(databases[0].sweep.orphan_interval_us, 2 * SECOND);
	assert_int_equal(databases[0].sweep.batch_size, 7);
	assert_int_equal(databases[0].sweep.max_lease_losses, 9);
	assert_int_equal(databases[0].sweep.statement_timeout_us, 3 * SECOND);
	assert_int_equal(databases[0].sweep.lock_timeout_us, SECOND / 2);
	assert_int_equal(databases[1].sweep.interval_us, 30 * SECOND);
	assert_int_equal(databases[1].sweep.policy, CONFIG_POLICY_REQUEUE);
	assert_int_equal(databases[1].sweep.max_lease_losses, 3);
	assert_int_equal(databases[2].sweep.policy, CONFIG_POLICY_RECORD);
	assert_int_equal(databases[2].sweep.max_lease_losses, 0);
	config_free(config);
}

static void a_credential_becomes_a_path(void **state)
{
	const char *text = DATABASE "    password_file: credential:db-1\n";
	struct config *config;

	(void)state;
	setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x.service", 1);
	config = parsed(text);
	assert_string_equal(config->databases[0].password_file, "/run/credentials/x.service/db-1");
	config_free(config);
	refused(DATABASE "    password_file: credential:..\n",
		"t.yaml:4:20: databases[1].password_file: the credential's name is not valid; "
		"allowed: 1 to 255 characters of A-Z a-z 0-9 _ . -, the first not a dot");
	unsetenv("CREDENTIALS_DIRECTORY");
	refused(text, "t.yaml:4:20: databases[1].password_file: a credential needs "
		      "$CREDENTIALS_DIRECTORY, which systemd sets for a service with "
		      "LoadCredential=; for a check by hand, set it to the absolute path of a "
		      "folder with such a file");
}

static void rules_between_keys(void **state)
{
	(void)state;
	refused(DATABASE "policy: fail\nmax_lease_losses: 3\n",
		"t.yaml:5:19: max_lease_losses: 3 has no meaning under policy fail; allowed: a "
		"number above 0 under policy requeue only");
	refused(DATABASE "    max_lease_losses: 1\n",
		"t.yaml:4:23: databases[1].max_lease_losses: 1 has no meaning under policy record; "
		"allowed: a number above 0 under policy requeue only");
	refused(DATABASE "lock_timeout: 10s\n",
		"t.yaml:4:15: lock_timeout: 10s is too large; allowed: less than "
		"statement_timeout, which is 10s");
	refused(DATABASE "    statement_timeout: 2s\n",
		"t.yaml:4:24: databases[1].statement_timeout: 2s is too small; allowed: more than "
		"lock_timeout, which is 2s");
	refused(DATABASE "    statement_timeout: 15s\n",
		"t.yaml:4:24: databases[1].statement_timeout: 15s is too large; allowed: less than "
		"network_timeout, which is 15s");
	refused(DATABASE "network_timeout: 10s\n",
		"t.yaml:4:18: network_timeout: 10s is too small; allowed: more than "
		"statement_timeout, which is 10s");
	refused(DATABASE "reconnect_min: 1m\n",
		"t.yaml:4:16: reconnect_min: 1m is too large; allowed: at most reconnect_max, "
		"which is 15s");
	refused(DATABASE "reconnect_max: 100ms\n",
		"t.yaml:4:16: reconnect_max: 100ms is too small; allowed: at least reconnect_min, "
		"which is 200ms");
	refused(DATABASE "amnesty_after: 30s\n",
		"t.yaml:4:16: amnesty_after: 30s is too large; allowed: at most a third of "
		"amnesty_grace, which is 1m, so that every worker can renew within it");
	refused(DATABASE "    amnesty_grace: 10s\n",
		"t.yaml:4:20: databases[1].amnesty_grace: 10s is too small; allowed: at least three "
		"times amnesty_after, which is 5s, so that every worker can renew within it");
}

static void databases_and_names(void **state)
{
	char text[65536] = "databases:\n";
	const char *many = "t.yaml:1002:5: databases: holds too many databases; allowed: a "
			   "sequence of 1 to 1000 databases, each a mapping";

	(void)state;
	refused("interval: 1s\n", "t.yaml:1:1: databases: is missing; needed: a sequence of 1 to "
				  "1000 databases, each a mapping");
	refused("databases: []\n", "t.yaml:1:12: databases: is empty; allowed: a sequence of 1 to "
				   "1000 databases, each a mapping");
	refused("databases:\n  - conninfo: dbname=a\n",
		"t.yaml:2:5: databases[1].name: is missing; needed: 1 to 63 characters of A-Z a-z "
		"0-9 _ . -");
	refused(DATABASE "  - name: b\n",
		"t.yaml:4:5: databases[2].conninfo: is missing; needed: a libpq connection string "
		"or URI, on one line");
	refused(DATABASE "  - name: app\n",
		"t.yaml:4:11: databases[2].name: 'app' is the name of databases[1] on line 2 too; "
		"every database needs a name of its own");
	refused("databases:\n  - name: a b\n",
		"t.yaml:2:11: databases[1].name: holds a character that is not allowed; allowed: 1 "
		"to 63 characters of A-Z a-z 0-9 _ . -");
	refused("databases: [{name: a23456789012345678901234567890123456789012345678901234567890abc"
		"d}]\n",
		"t.yaml:1:20: databases[1].name: is too long; allowed: 1 to 63 characters of A-Z "
		"a-z 0-9 _ . -");
	for (size_t i = 0; i < 1001; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text),
			 "  - {name: d%zu, conninfo: dbname=a}\n", i);
	refused(text, many);
	*strstr(text, "  - {name: d1000") = '\0';
	config_free(parsed(text));
}

static void connection_strings(void **state)
{
	(void)state;
	refused_in_database("conninfo: host=a password=my secret",
			    "t.yaml:3:15: databases[1].conninfo: must be keyword=value pairs (a "
			    "value with spaces in single quotes); allowed: a libpq connection "
			    "string or URI, on one line");
	refused_in_database("conninfo: host='a",
			    "t.yaml:3:15: databases[1].conninfo: has a single quote that is not "
			    "closed; allowed: a libpq connection string or URI, on one line");
	refused_in_database("conninfo: postgresql://u:se/cret@h/d",
			    "t.yaml:3:15: databases[1].conninfo: holds a raw '@' or '/' within "
			    "user, password, host or database name of the URI (write %40 for '@', "
			    "%2F for '/'); allowed: a libpq connection string or URI, on one line");
	refused_in_database("conninfo: postgres://h/d?secret",
			    "t.yaml:3:15: databases[1].conninfo: has a URI parameter without '='; "
			    "allowed: a libpq connection string or URI, on one line");
	refused_in_database("conninfo: \"host=a\\nuser=b\"",
			    "t.yaml:3:15: databases[1].conninfo: holds a control character (a line "
			    "break, tab or NUL); allowed: a libpq connection string or URI, on one "
			    "line");
	refused_in_database("conninfo: \"host=a\\0\"",
			    "t.yaml:3:15: databases[1].conninfo: holds a control character (a line "
			    "break, tab or NUL); allowed: a libpq connection string or URI, on one "
			    "line");
	refused_in_database("conninfo: ''",
			    "t.yaml:3:15: databases[1].conninfo: is empty; allowed: a libpq "
			    "connection string or URI, on one line");
	refused_in_database("conninfo: ~",
			    "t.yaml:3:15: databases[1].conninfo: has no value; allowed: a libpq "
			    "connection string or URI, on one line");
	refused_in_database("password_file: hunter2",
			    "t.yaml:3:20: databases[1].password_file: is not an absolute path; "
			    "allowed: an absolute path, or credential:NAME");
	refused(DATABASE "  - name: b\n    conninfo: password=x\n    password_file: /x\n",
		"t.yaml:6:20: databases[2].password_file: conninfo holds a password too; allowed: "
		"one of the two");
}

static void the_metrics_file_is_one_that_is_looked_for(void **state)
{
	char longest[1100] = "metrics_file: /";
	struct config *config, *again;
	char *shown;

	(void)state;
	config = parsed("metrics_file: off\n" DATABASE);
	assert_null(config->metrics_file);
	assert_int_equal(config->metrics_interval_us, 15 * SECOND);
	config_free(config);
	config = parsed("metrics_file: \"/run/it's.prom\"\nmetrics_interval: 1m\n" DATABASE);
	shown = printed(config);
	again = parsed(shown);
	assert_string_equal(again->metrics_file, "/run/it's.prom");
	assert_int_equal(again->metrics_interval_us, 60 * SECOND);
	free(shown);
	config_free(again);
	config_free(config);
#define ALLOWED "; allowed: off, or an absolute path that ends in .prom"
	refused("metrics_file: m.prom\n",
		"t.yaml:1:15: metrics_file: is not an absolute path" ALLOWED);
	refused("metrics_file: /run/metrics\n",
		"t.yaml:1:15: metrics_file: is not a name that node_exporter looks for" ALLOWED);
	refused("metrics_file: /run/.prom\n",
		"t.yaml:1:15: metrics_file: is not a name that node_exporter looks for" ALLOWED);
	refused("metrics_file: ~\n", "t.yaml:1:15: metrics_file: has no value" ALLOWED);
	refused("metrics_file: [/a.prom]\n",
		"t.yaml:1:15: metrics_file: must not be a sequence" ALLOWED);
	refused(DATABASE "    metrics_file: /a.prom\n",
		"t.yaml:4:5: databases[1].metrics_file: does not belong here; it is allowed at the "
		"top level");
	memset(longest + strlen(longest), 'x', 1050);
	strcat(longest, ".prom\n");
	refused(longest, "t.yaml:1:15: metrics_file: is too long" ALLOWED);
#undef ALLOWED
}

/* Each in pairs: a connection string, and how it is shown; the same text when it has no secret. */
static const char *const masks[][2] = {
	{ "host=a password=s3cret dbname=x", "host=a password=******** dbname=x" },
	{ "password = 's3 \\' cret'user=b", "password = ********user=b" },
	{ "user=a\\ b PASSWORD=s3\\ cret", "user=a\\ b PASSWORD=********" },
	{ "sslpassword=s3cret password=", "sslpassword=******** password=********" },
	{ "passfile=/a/b user=password", NULL },
	{ "application_name='password=x'", NULL },
	{ "postgresql://u:s3cret@h:5432,i:5433/d?a=b",
	  "postgresql://u:********@h:5432,i:5433/d?a=b" },
	{ "postgres://:@", "postgres://:********@" },
	{ "postgres://u:s3:c?ret@/", "postgres://u:********@/" },
	{ "postgres://h/d?pass%77ord=s3cret&x=y", "postgres://h/d?pass%77ord=********&x=y" },
	{ "postgres://h?user=b&sslpassword=s3cret", "postgres://h?user=b&sslpassword=********" },
	{ "postgresql://u@[::1]:5432/d?options=a%20b", NULL },
	{ "postgresql://h:5432/d?application_name=a@b", NULL },
};

static void secrets_are_masked_and_need_a_private_file(void **state)
{
	char text[512];
	struct config *config;
	char *output;

	(void)state;
	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		const char *shown = masks[i][1] ? masks[i][1] : masks[i][0];
		struct config_error error;

		snprintf(text, sizeof(text), DATABASE_FOLDED, masks[i][0]);
		config = parsed(text);
		assert_string_equal(config->databases[0].conninfo, masks[i][0]);
		assert_string_equal(config->databases[0].conninfo_shown, shown);
		output = printed(config);
		assert_null(strstr(output, "s3"));
		free(output);
		config_free(config);
		if (masks[i][1]) {
			refused_bytes(text, strlen(text), true,
				      "t.yaml:3:15: databases[1].conninfo: holds a password, and "
				      "everybody can read this file; use password_file with a path "
				      "or a systemd credential (credential:NAME), or take the read "
				      "permission from others (chmod o-r)");
		} else {
			assert_int_equal(
				config_parse("t.yaml", text, strlen(text), true, &config, &error),
				0);
			config_free(config);
		}
	}
}

static void case_32_unknown_keys(void **state)
{
	(void)state;
	refused("intervall: 1s\n", "t.yaml:1:1: intervall: unknown key, did you mean 'interval'?");
	refused("Interval: 1s\n", "t.yaml:1:1: Interval: unknown key, did you mean 'interval'?");
	refused("polcy: fail\n", "t.yaml:1:1: polcy: unknown key, did you mean 'policy'?");
	refused("batch-size: 1\n",
		"t.yaml:1:1: batch-size: unknown key, did you mean 'batch_size'?");
	refused("lgo: {}\n", "t.yaml:1:1: lgo: unknown key, did you mean 'log'?");
	refused("log:\n  lvel: info\n", "t.yaml:2:3: log.lvel: unknown key, did you mean 'level'?");
	refused("log:\n  colour: true\n", "t.yaml:2:3: log.colour: unknown key; allowed here: "
					  "target, level, closed_attempts_per_second");
	refused("level: info\n",
		"t.yaml:1:1: level: does not belong here; it is allowed under 'log'");
	refused("name: a\n", "t.yaml:1:1: name: does not belong here; it is allowed within an "
			     "entry of 'databases'");
	refused_in_database("scan_page: 100", "t.yaml:3:5: databases[1].scan_page: does not belong "
					      "here; it is allowed at the top level");
	/* What looks like a connection string in the wrong place is not repeated. */
	refused_in_database(
		"password=hunter2: x",
		"t.yaml:3:5: databases[1]: unknown key; allowed here: interval, "
		"orphan_interval, batch_size, policy, max_lease_losses, notify, amnesty, "
		"amnesty_after, amnesty_grace, max_clock_jump, "
		"statement_timeout, lock_timeout, name, conninfo, password_file");
	refused("? [a]\n: b\n",
		"t.yaml:1:3: file: a key must be a single word, not a mapping or a sequence");
	refused("<<: {}\n", "t.yaml:1:1: <<: merge keys are not allowed; write the keys out");
}

static void case_32_duplicate_keys(void **state)
{
	(void)state;
	refused("interval: 1s\npolicy: fail\ninterval: 1s\n",
		"t.yaml:3:1: interval: is given twice, first on line 1; allowed: once");
	refused(DATABASE DATABASE,
		"t.yaml:4:1: databases: is given twice, first on line 1; allowed: once");
	refused(DATABASE "    name: b\n",
		"t.yaml:4:5: databases[1].name: is given twice, first on line 2; allowed: once");
	refused("log: {level: info, level: info}\n",
		"t.yaml:1:20: log.level: is given twice, first on line 1; allowed: once");
}

static void case_32_anchors_aliases_tags_documents(void **state)
{
	(void)state;
	refused("interval: &a 1s\n",
		"t.yaml:1:11: yaml: anchors (&) are not allowed; write the value out");
	refused("&a log: {}\n",
		"t.yaml:1:1: yaml: anchors (&) are not allowed; write the value out");
	refused("log: &a {}\n",
		"t.yaml:1:6: yaml: anchors (&) are not allowed; write the value out");
	refused("interval: *a\n",
		"t.yaml:1:11: yaml: aliases (*) are not allowed; write the value out");
	refused("interval: !!str 1s\n",
		"t.yaml:1:11: yaml: tags (!) are not allowed; write the plain value");
	refused("databases: !x []\n",
		"t.yaml:1:12: yaml: tags (!) are not allowed; write the plain value");
	refused(DATABASE "---\n" DATABASE,
		"t.yaml:4:1: yaml: a second document starts here; allowed: one");
	refused("%YAML 1.1\n---\n" DATABASE,
		"t.yaml:1:1: yaml: directives (%) are not allowed; take the line out");
}

static void case_32_wrong_types(void **state)
{
	(void)state;
	refused("interval: [1s]\n", "t.yaml:1:11: interval: must not be a sequence; allowed: a "
				    "duration from 100ms to 1h, such as 5s");
	refused("batch_size: {a: b}\n", "t.yaml:1:13: batch_size: must not be a mapping; allowed: "
					"a whole number from 1 to 5000");
	refused("interval: '1s'\n", "t.yaml:1:11: interval: must be written without quotes; "
				    "allowed: a duration from 100ms to 1h, such as 5s");
	refused("interval:\npolicy: fail\n", "t.yaml:1:10: interval: has no value; allowed: a "
					     "duration from 100ms to 1h, such as 5s");
	refused("interval: true\n", "t.yaml:1:11: interval: 'true' is not a duration; allowed: a "
				    "duration from 100ms to 1h, such as 5s");
	refused("policy: retry\n", "t.yaml:1:9: policy: 'retry' is not known; allowed: one of "
				   "record, fail, requeue");
	refused("policy: u:p@h\n", "t.yaml:1:9: policy: the value is not known; allowed: one of "
				   "record, fail, requeue");
	refused("log: info\n", "t.yaml:1:6: log: must not be a single value; allowed: a mapping of "
			       "keys to values");
	refused("log:\n", "t.yaml:1:5: log: has no value; allowed: a mapping of keys to values");
	refused("databases: {}\n", "t.yaml:1:12: databases: must not be a mapping; allowed: a "
				   "sequence of 1 to 1000 databases, each a mapping");
	refused("databases:\n  - host=a password=b\n",
		"t.yaml:2:5: databases[1]: must not be a single value; allowed: a mapping with at "
		"least 'name' and 'conninfo'");
	refused("- a\n", "t.yaml:1:1: file: must be a mapping of keys to values, as in "
			 "'interval: 5s'");
	refused_in_database("conninfo: {host: a}",
			    "t.yaml:3:15: databases[1].conninfo: must not be a mapping; allowed: a "
			    "libpq connection string or URI, on one line");
}

/* A value of interval, and what the message says of it. */
static const char *const durations[][2] = {
	{ "5", "'5' needs a unit (us, ms, s, m, h or d)" },
	{ "1.5", "'1.5' needs a unit (us, ms, s, m, h or d)" },
	{ "-5s", "'-5s' must not be negative" },
	{ "+5s", "'+5s' is not a duration" },
	{ ".5s", "'.5s' is not a duration" },
	{ "5.s", "'5.s' is not a duration" },
	{ ".nan", "'.nan' is not a duration" },
	{ "nan", "'nan' is not a duration" },
	{ ".inf", "'.inf' is not a duration" },
	{ "5 s", "the value is not a duration (the units are us, ms, s, m, h and d)" },
	{ "5S", "'5S' is not a duration (the units are us, ms, s, m, h and d)" },
	{ "1e3s", "'1e3s' is not a duration (the units are us, ms, s, m, h and d)" },
	{ "1m30s", "'1m30s' is not a duration (the units are us, ms, s, m, h and d)" },
	{ "1.0000001s", "'1.0000001s' is finer than a microsecond" },
	{ "0.5us", "'0.5us' is finer than a microsecond" },
	{ "0s", "'0s' is too small" },
	{ "99999us", "'99999us' is too small" },
	{ "3600.000001s", "'3600.000001s' is too large" },
	{ "9223372036854775807us", "'9223372036854775807us' is too large" },
	{ "9223372036854775808us", "'9223372036854775808us' is too large" },
	{ "106751991.9d", "'106751991.9d' is too large" },
	{ "106751992d", "'106751992d' is too large" },
	{ "99999999999999999999999999999999999999s",
	  "'99999999999999999999999999999999999999s' is too large" },
};

static const char *const numbers[][2] = {
	{ "0", "'0' is too small" },
	{ "5001", "'5001' is too large" },
	{ "-1", "'-1' must not be negative" },
	{ "-99999999999999999999", "'-99999999999999999999' must not be negative" },
	{ "18446744073709551617", "'18446744073709551617' is too large" },
	{ "4294967297", "'4294967297' is too large" },
	{ "007", "'007' must not start with 0" },
	{ "0x10", "'0x10' is not a whole number" },
	{ "1_000", "'1_000' is not a whole number" },
	{ "1.0", "'1.0' is not a whole number" },
	{ "1e3", "'1e3' is not a whole number" },
	{ "5s", "'5s' is not a whole number" },
	{ ".NaN", "'.NaN' is not a whole number" },
	{ "null", "'null' is not a whole number" },
};

static void case_32_negative_and_overflowing_numbers(void **state)
{
	char text[128];
	char expected[256];

	(void)state;
	for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
		snprintf(text, sizeof(text), "interval: %s\n", durations[i][0]);
		snprintf(expected, sizeof(expected),
			 "t.yaml:1:11: interval: %s; allowed: a duration from 100ms to 1h, such as "
			 "5s",
			 durations[i][1]);
		refused(text, expected);
	}
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		snprintf(text, sizeof(text), "batch_size: %s\n", numbers[i][0]);
		snprintf(expected, sizeof(expected),
			 "t.yaml:1:13: batch_size: %s; allowed: a whole number from 1 to 5000",
			 numbers[i][1]);
		refused(text, expected);
	}
}

static void case_32_tabs_bytes_and_syntax(void **state)
{
	const char nul[] = "interval: 5s\npolicy: a\0b\n";
	const char *utf8 = "t.yaml:1:4: file: is not valid UTF-8; allowed: text in UTF-8";

	(void)state;
	refused("log:\n\tlevel: info\n",
		"t.yaml:2:1: file: holds a tab in the indentation; allowed: spaces");
	refused("log:\r\n  \tlevel: info\r\n",
		"t.yaml:2:3: file: holds a tab in the indentation; allowed: spaces");
	config_free(parsed("interval:\t1s\t# a tab elsewhere\r\n" DATABASE));
	refused_bytes(nul, sizeof(nul) - 1, false,
		      "t.yaml:2:10: file: holds a NUL byte; allowed: text in UTF-8");
	refused("# \xc3\xa4\x1b[0m\n",
		"t.yaml:1:4: file: holds a control character; allowed: text in UTF-8");
	refused("# \xc2\x85 next line\n",
		"t.yaml:1:3: file: holds a control character; allowed: text in UTF-8");
	refused("a: \xff\xfe\n", utf8);
	refused("a: \xc0\x80\n", utf8); /* overlong */
	refused("a: \xe0\x80\x80\n", utf8); /* overlong */
	refused("a: \xed\xa0\x80\n", utf8); /* a surrogate */
	refused("a: \xf4\x90\x80\x80\n", utf8); /* past the last character */
	refused("a: \xe2\x82", utf8); /* cut off */
	refused("# \xe2\x80\xa8\n", "t.yaml:1:3: file: holds an invisible character (U+2028, "
				    "U+2029, U+FEFF, U+FFFE or U+FFFF); allowed: visible text");
	refused("log:\n  level: info\n policy: fail\n",
		"t.yaml:3:2: yaml: not valid YAML: did not find expected key while parsing a block "
		"mapping; check indentation, colons and quotes");
	/* To YAML, the line that is too far in belongs to the value before. */
	refused("interval: 1s\n  policy\n",
		"t.yaml:1:11: interval: the value is not a duration (the units are us, ms, s, m, h "
		"and d); allowed: a duration from 100ms to 1h, such as 5s");
	refused("policy: @x\n",
		"t.yaml:1:9: yaml: not valid YAML: found character that cannot start any token "
		"while scanning for the next token; check indentation, colons and quotes");
	refused("policy: 'x\n",
		"t.yaml:2:1: yaml: not valid YAML: found unexpected end of stream while scanning a "
		"quoted scalar; check indentation, colons and quotes");
	refused("policy: [fail\n",
		"t.yaml:1:9: policy: must not be a sequence; allowed: one of record, fail, "
		"requeue");
}

static void case_32_empty_file(void **state)
{
	const char *empty = "t.yaml:1:1: file: is empty; needed: at least the key 'databases'";

	(void)state;
	refused("", empty);
	refused("\xef\xbb\xbf", empty);
	refused("# only\n\n  # comments\n", empty);
	refused("---\n", "t.yaml:2:1: file: must be a mapping of keys to values, as in "
			 "'interval: 5s'");
	refused("{}\n", "t.yaml:1:1: databases: is missing; needed: a sequence of 1 to 1000 "
			"databases, each a mapping");
}

static void case_32_deep_nesting(void **state)
{
	const size_t depth = 500000;
	char *text = malloc(2 * depth + 16);

	(void)state;
	assert_non_null(text);
	memcpy(text, "interval: ", 10);
	memset(text + 10, '[', depth);
	refused_bytes(text, depth + 10, false,
		      "t.yaml:1:11: interval: must not be a sequence; allowed: a duration from "
		      "100ms to 1h, such as 5s");
	memset(text, '{', depth);
	refused_bytes(text, depth, false,
		      "t.yaml:1:2: file: a key must be a single word, not a "
		      "mapping or a sequence");
	for (size_t i = 0; i < depth; i++)
		memcpy(text + 2 * i, "- ", 2);
	refused_bytes(text, 2 * depth, false,
		      "t.yaml:1:1: file: must be a mapping of keys to "
		      "values, as in 'interval: 5s'");
	free(text);
}

static void case_32_file_of_10_megabytes(void **state)
{
	size_t size = (size_t)10 * 1024 * 1024;
	char *text = malloc(size);
	char *path;
	char expected[256];
	struct config *config = NULL;
	struct config_error error;

	(void)state;
	assert_non_null(text);
	memset(text, '#', size);
	refused_bytes(text, CONFIG_SIZE_MAX + 1, false,
		      "t.yaml:1:1: file: is too large; allowed: at most 1048576 bytes");
	refused_bytes(text, CONFIG_SIZE_MAX, false,
		      "t.yaml:1:1: file: is empty; needed: at least the key 'databases'");
	path = file_make(text, size, 0600);
	free(text);
	assert_int_equal(config_load(path, &config, &error), CONFIG_E_CONTENT);
	snprintf(expected, sizeof(expected),
		 "%s:1:1: file: is too large; allowed: at most 1048576 bytes", path);
	assert_string_equal(error.message, expected);
	file_remove(path);
	assert_null(config);
}

static void file_refused(const char *path, const char *what)
{
	struct config *config = NULL;
	struct config_error error = { 0 };
	char expected[512];

	assert_int_equal(config_load(path, &config, &error), CONFIG_E_NOINPUT);
	snprintf(expected, sizeof(expected), "%s: cannot be read: %s", path, what);
	assert_string_equal(error.message, expected);
	assert_int_equal(error.line, 0);
	assert_null(config);
}

static void files_that_cannot_be_read(void **state)
{
	char *path = file_make("", 0, 0600);
	struct config *config = NULL;
	struct config_error error;

	(void)state;
	file_refused("/nonexistent/t.yaml",
		     "No such file or directory; needed: a file that this user may read");
	file_refused("/", "is a directory; needed: a regular file");
	file_refused("/dev/zero", "is no regular file; needed: one");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	file_refused(path, "is no regular file; needed: one"); /* and does not wait for a writer */
	file_remove(path);

	path = file_make(DATABASE, strlen(DATABASE), 0);
	if (geteuid() == 0) /* root may read everything; a symbolic link to itself stops root too */
		assert_int_equal(unlink(path) | symlink(path, path), 0);
	assert_int_equal(config_load(path, &config, &error), CONFIG_E_NOINPUT);
	file_remove(path);
	/* Control characters of a name do not break the one line. */
	assert_int_equal(config_load("/no\nsuch\x1b", &config, &error), CONFIG_E_NOINPUT);
	assert_null(strpbrk(error.message, "\n\x1b"));
}

static void a_password_needs_a_private_file(void **state)
{
	const char *text = "databases:\n  - name: a\n    conninfo: password=s3cret\n";
	struct config *config = NULL;
	struct config_error error;
	char *path = file_make(text, strlen(text), 0644);

	(void)state;
	assert_int_equal(config_load(path, &config, &error), CONFIG_E_CONTENT);
	assert_int_equal(error.line, 3);
	assert_int_equal(error.column, 15);
	assert_null(strstr(error.message, "s3cret"));
	assert_int_equal(chmod(path, 0640), 0);
	assert_int_equal(config_load(path, &config, &error), 0);
	config_free(config);
	file_remove(path);
}

static void a_long_name_leaves_the_place_readable(void **state)
{
	char name[4000];
	struct config *config = NULL;
	struct config_error error;

	(void)state;
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(config_parse(name, "a: b", 4, false, &config, &error), CONFIG_E_CONTENT);
	assert_memory_equal(error.message, "...x", 4);
	assert_non_null(strstr(error.message, "x:1:1: a: unknown key"));
	assert_non_null(strstr(error.message, ", databases")); /* the list's end */
}

static void what_is_printed_can_be_loaded(void **state)
{
	struct config *config = parsed("interval: 1.5s\npolicy: requeue\nmax_lease_losses: 2\n"
				       "log: {level: warning}\ndatabases:\n"
				       "  - name: a\n    conninfo: \"user='it\\\\'s' host=h\"\n"
				       "    password_file: \"/x/it's: \xc3\xa4 #1\"\n"
				       "  - name: b\n    conninfo: dbname=b\n    policy: fail\n");
	char *first = printed(config);
	struct config *again = parsed(first);
	char *second = printed(again);

	(void)state;
	assert_string_equal(first, second);
	assert_non_null(strstr(first, "\ninterval: 1500ms\n"));
	assert_string_equal(again->databases[0].password_file, "/x/it's: \xc3\xa4 #1");
	assert_int_equal(again->databases[1].sweep.policy, CONFIG_POLICY_FAIL);
	free(first);
	free(second);
	config_free(config);
	config_free(again);
}

/* Whether a line of the text is this key's, commented out or not, in a sequence or not. */
static bool names_key(const char *text, const char *key)
{
	for (const char *line = text; line; line = strchr(line, '\n')) {
		line += strspn(line, "\n #-");
		if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
			return true;
	}
	return false;
}

static void the_sample_names_every_key_and_loads(void **state)
{
	size_t length;
	size_t count = 0;
	char *text = sample_read(&length);
	struct config *config = NULL;
	struct config_error error;

	(void)state;
	for (; config_key_name(count); count++)
		if (!names_key(text, config_key_name(count)))
			fail_msg("%s does not name '%s'", sample_path(), config_key_name(count));
	assert_true(count > 20);
	assert_null(config_key_name(SIZE_MAX));
	free(text);
	if (config_load(sample_path(), &config, &error) != 0)
		fail_msg("%s", error.message);
	assert_int_equal(config->sweep.policy, CONFIG_POLICY_REQUEUE);
	assert_int_equal(config->sweep.max_lease_losses, 3);
	assert_string_equal(config->databases[0].conninfo,
			    "host=/run/postgresql dbname=app user=lease-reconciler");
	config_free(config);
}

/* The sample with every option taken out of its comment is still right, and shows the defaults. */
static void the_sample_comments_show_the_defaults(void **state)
{
	size_t length;
	size_t used = 0;
	char *text = sample_read(&length);
	char *live = calloc(1, length + 2);
	char *rest_of_text;
	char *shown;
	char *expected;
	struct config *config;

	(void)state;
	assert_non_null(live);
	for (char *line = strtok_r(text, "\n", &rest_of_text); line;
	     line = strtok_r(NULL, "\n", &rest_of_text)) {
		size_t indentation = strspn(line, " ");
		bool commented = line[indentation] == '#';
		const char *rest = line + indentation + (commented ? 1 : 0);

		if (commented && (*rest < 'a' || *rest > 'z'))
			continue;
		used += (size_t)sprintf(live + used, "%.*s%s\n", (int)indentation, line, rest);
	}
	config = parsed(live);
	shown = printed(config);
	config_free(config);
	config = parsed("policy: requeue\nmax_lease_losses: 3\ndatabases:\n  - name: app\n    "
			"conninfo: host=/run/postgresql dbname=app user=lease-reconciler\n");
	expected = printed(config);
	assert_string_equal(shown, expected);
	for (size_t i = 0; config_key_name(i); i++)
		if (strcmp(config_key_name(i), "password_file") != 0)
			assert_true(names_key(live, config_key_name(i)));
	config_free(config);
	free(expected);
	free(shown);
	free(live);
	free(text);
}

static uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Changes some bytes, takes some out, or copies a part of the text to another place. */
static size_t mutate(char *text, size_t length, uint64_t *random)
{
	static const char special[] = ":-#&*!|>'\"%@`{}[],?\t\n\r \\0\xff\xc3<=~9";
	size_t from = random_next(random) % length;
	size_t to = random_next(random) % length;
	size_t count = random_next(random) % 40;

	switch (random_next(random) % 5) {
	case 0:
		text[from] = (char)random_next(random);
		break;
	case 1:
		text[from] = special[random_next(random) % sizeof(special)];
		break;
	case 2:
		count = count < length - from ? count : length - from - 1;
		memmove(text + from, text + from + count, length - from - count);
		return length - count;
	case 3:
		count = count < length - from ? count : length - from;
		count = count < length - to ? count : length - to;
		memmove(text + to, text + from, count);
		break;
	default:
		return from > 0 && random_next(random) % 20 == 0 ? from : length;
	}
	return length;
}

static void case_32_no_mutation_of_the_sample_crashes(void **state)
{
	const char *wanted = getenv("LEASE_FUZZ_ROUNDS");
	long rounds = wanted ? atol(wanted) : 100000;
	size_t length;
	char *sample = sample_read(&length);
	uint64_t random = UINT64_C(0x9e3779b97f4a7c15);
	long accepted = 0;

	(void)state;
	for (long i = 0; i < rounds; i++) {
		struct config *config = NULL;
		struct config_error error = { 0 };
		size_t used = length;
		char *text = malloc(length); /* exact, so that a read past its end is seen */
		int result;

		assert_non_null(text);
		memcpy(text, sample, length);
		for (uint64_t n = 1 + random_next(&random) % 4; n > 0; n--)
			used = mutate(text, used, &random);
		result = config_parse("t.yaml", text, used, i % 2, &config, &error);
		free(text);
		if (result == 0) {
			free(printed(config));
			config_free(config);
			accepted++;
			continue;
		}
		assert_int_equal(result, CONFIG_E_CONTENT);
		assert_memory_equal(error.message, "t.yaml:", 7);
		assert_true(error.line > 0 && error.column > 0);
		assert_null(strchr(error.message, '\n'));
		assert_true(strlen(error.message) < sizeof(error.message) - 1);
	}
	free(sample);
	assert_true(accepted > 0 && accepted < rounds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults),
		cmocka_unit_test(every_key_is_read),
		cmocka_unit_test(a_database_overrides_and_inherits),
		cmocka_unit_test(a_credential_becomes_a_path),
		cmocka_unit_test(rules_between_keys),
		cmocka_unit_test(databases_and_names),
		cmocka_unit_test(connection_strings),
		cmocka_unit_test(the_metrics_file_is_one_that_is_looked_for),
		cmocka_unit_test(secrets_are_masked_and_need_a_private_file),
		cmocka_unit_test(case_32_unknown_keys),
		cmocka_unit_test(case_32_duplicate_keys),
		cmocka_unit_test(case_32_anchors_aliases_tags_documents),
		cmocka_unit_test(case_32_wrong_types),
		cmocka_unit_test(case_32_negative_and_overflowing_numbers),
		cmocka_unit_test(case_32_tabs_bytes_and_syntax),
		cmocka_unit_test(case_32_empty_file),
		cmocka_unit_test(case_32_deep_nesting),
		cmocka_unit_test(case_32_file_of_10_megabytes),
		cmocka_unit_test(files_that_cannot_be_read),
		cmocka_unit_test(a_password_needs_a_private_file),
		cmocka_unit_test(a_long_name_leaves_the_place_readable),
		cmocka_unit_test(what_is_printed_can_be_loaded),
		cmocka_unit_test(the_sample_names_every_key_and_loads),
		cmocka_unit_test(the_sample_comments_show_the_defaults),
		cmocka_unit_test(case_32_no_mutation_of_the_sample_crashes),
	};

	return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
