/*
 * arguments.c - the command line: see arguments.h for what it promises.
 */
#include "arguments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"
#include "lease.h"

#ifndef LEASE_VERSION_STRING
#error "build with -DLEASE_VERSION_STRING"
#endif

enum common {
	COMMON_DBNAME,
	COMMON_CONFIG,
	COMMON_DATABASE,
	COMMON_JSON,
	COMMON_HELP,
	COMMON_VERSION,
	COMMON_COUNT
};

static const struct option common_options[COMMON_COUNT] = {
	[COMMON_DBNAME] = { "dbname", 'd', OPTION_SECRET, "CONNINFO",
			    "connection string, URI or database name; without it and without\n"
			    "--config as libpq does: PGHOST, PGDATABASE, PGSERVICE and so on" },
	[COMMON_CONFIG] = { "config", 0, OPTION_TEXT, "FILE",
			    "connect to a database of this file of lease-reconciler's" },
	[COMMON_DATABASE] = { "database", 0, OPTION_TEXT, "NAME",
			      "which of that file's databases, when it names several" },
	[COMMON_JSON] = { "json", 0, OPTION_FLAG, NULL, "write one JSON document instead of text" },
	[COMMON_HELP] = { "help", 'h', OPTION_FLAG, NULL, "write this help" },
	[COMMON_VERSION] = { "version", 'V', OPTION_FLAG, NULL, "write the version" },
};

struct parser {
	char **argv;
	int argc, next;
	const struct command *const *commands;
	struct option_value common[COMMON_COUNT];
	struct context *context;
};

/* -- help ------------------------------------------------------------------------------------- */

static void print_option(const struct option *option)
{
	char head[64];
	char letter[] = { '-', option->letter, ',', ' ', '\0' };
	const char *help = option->help;

	snprintf(head, sizeof(head), "%s--%s%s%s", option->letter ? letter : "    ", option->name,
		 option->argument ? " " : "", option->argument ? option->argument : "");
	printf("  %-24s", head);
	for (const char *end; (end = strchr(help, '\n')); help = end + 1)
		printf("%.*s\n  %-24s", (int)(end - help), help, "");
	printf("%s\n", help);
}

static int print_command_help(const struct command *command)
{
	printf("Usage: leasectl %s%s%s%s\n\n%s\n", command->name,
	       command->n_options ? " [OPTION]..." : "", command->words ? " " : "",
	       command->words ? command->words : "", command->description);
	if (command->n_options)
		puts("\nOptions:");
	for (size_t i = 0; i < command->n_options; i++)
		print_option(&command->options[i]);
	puts("\nOptions of all commands:");
	for (size_t i = 0; i < COMMON_COUNT; i++)
		print_option(&common_options[i]);
	return 0;
}

static int print_general_help(const struct command *const *commands)
{
	puts("Usage: leasectl COMMAND [OPTION]... [WORD]...\n\n"
	     "Looks at runs, attempts and leases in PostgreSQL; changes them by liblease's\n"
	     "rules.\n\n"
	     "Commands (leasectl COMMAND --help tells more):");
	for (; *commands; commands++)
		printf("  %-10s %s\n", (*commands)->name, (*commands)->summary);
	puts("\nOptions of all commands:");
	for (size_t i = 0; i < COMMON_COUNT; i++)
		print_option(&common_options[i]);
	puts("\nExit codes: 0 done, 64 usage, 65 refused, 66 no such run, 69 no connection,\n"
	     "70 fault of server or program, 71 no memory, 73 file not made, 74 output not written,\n"
	     "75 try again, 76 lease lost, 77 no permission, 78 wrong configuration or schema;\n"
	     "exec: its command's, 126 or 127 if that cannot be executed.");
	return 0;
}

static int print_version(void)
{
	printf("leasectl %s (schema version %d)\n", LEASE_VERSION_STRING, LEASE_SCHEMA_VERSION);
	return 0;
}

/* -- options ---------------------------------------------------------------------------------- */

/* "leasectl migrate" or "leasectl": where the help for what is wrong is found. */
static const char *command_name(const struct parser *parser)
{
	return parser->context->command ? parser->context->command->name : "";
}

static int unknown_option(const struct parser *parser, const char *text)
{
	const char *name = command_name(parser);

	/* a value in it may be a password */
	return fail(EX_USAGE, "%s%sunknown option '%.*s': see 'leasectl %s%s--help'", name,
		    *name ? ": " : "", (int)strcspn(text, "="), text, name, *name ? " " : "");
}

static bool option_matches(const struct option *option, const char *name, size_t length,
			   char letter)
{
	if (letter)
		return option->letter == letter;
	return strlen(option->name) == length && strncmp(option->name, name, length) == 0;
}

static const struct option *find_option(struct parser *parser, const char *name, size_t length,
					char letter, struct option_value **ret_value)
{
	const struct command *command = parser->context->command;

	for (size_t i = 0; i < COMMON_COUNT; i++)
		if (option_matches(&common_options[i], name, length, letter)) {
			*ret_value = &parser->common[i];
			return &common_options[i];
		}
	for (size_t i = 0; command && i < command->n_options; i++)
		if (option_matches(&command->options[i], name, length, letter)) {
			*ret_value = &parser->context->values[i];
			return &command->options[i];
		}
	return NULL;
}

/* A connection string may hold a password: takes it out of what ps shows. */
static const char *take_secret(char *text)
{
	char *copy = xstrdup(text);

	if (strpbrk(text, "=:@"))
		memset(text, '*', strlen(text));
	return copy;
}

static int take_value(const struct option *option, char *text, struct option_value *value)
{
	char *end;

	value->given = true;
	switch (option->kind) {
	case OPTION_FLAG:
	case OPTION_TEXT:
		break;
	case OPTION_SECRET:
		free((char *)value->text);
		value->text = take_secret(text);
		return 0;
	case OPTION_DURATION:
		if (!duration_parse(text, &value->number) || value->number > LEASE_DURATION_MAX)
			return fail(EX_USAGE,
				    "--%s: '%s' is no duration: write a number and a unit, "
				    "as in 250ms, 30s, 5m, 2h, 7d (at most 3650d)",
				    option->name, text);
		break;
	case OPTION_NUMBER:
		errno = 0;
		value->number = strtoll(text, &end, 10);
		if (errno || *text < '0' || *text > '9' || *end || value->number < 1)
			return fail(EX_USAGE, "--%s: '%s' is no whole number from 1", option->name,
				    text);
		break;
	}
	value->text = text;
	return 0;
}

/* One option at parser->next - 1, its value attached or the next argument. */
static int parse_option(struct parser *parser, char *text)
{
	bool is_long = text[1] == '-';
	char *name = text + (is_long ? 2 : 1);
	size_t length = is_long ? strcspn(name, "=") : 1;
	char *attached = name[length] ? name + length + (is_long ? 1 : 0) : NULL;
	struct option_value *value = NULL;
	const struct option *option = find_option(parser, name, length, is_long ? 0 : *name,
						  &value);

	if (!option)
		return unknown_option(parser, text);
	if (option->kind == OPTION_FLAG) {
		if (attached && !is_long)
			return unknown_option(parser, text);
		if (attached)
			return fail(EX_USAGE, "--%s takes no value", option->name);
		return take_value(option, text, value);
	}
	if (!attached) {
		if (parser->next == parser->argc)
			return fail(EX_USAGE, "--%s needs a value: %s", option->name,
				    option->argument);
		attached = parser->argv[parser->next++];
	}
	return take_value(option, attached, value);
}

/* -- words ------------------------------------------------------------------------------------ */

/* A connection string in the wrong place: it may hold a password. */
static const char *show_word(const char *word)
{
	return strpbrk(word, "=@") ? "..." : word;
}

static int parse_command(struct parser *parser, const char *word)
{
	for (size_t i = 0; parser->commands[i]; i++)
		if (strcmp(parser->commands[i]->name, word) == 0) {
			parser->context->command = parser->commands[i];
			return 0;
		}
	return fail(EX_USAGE, "unknown command '%s': see 'leasectl --help'", show_word(word));
}

static int parse_word(struct parser *parser, char *word)
{
	struct context *context = parser->context;

	if (!context->command && strcmp(word, "help") == 0) {
		parser->common[COMMON_HELP].given = true;
		return 0;
	}
	if (!context->command)
		return parse_command(parser, word);
	context->words[context->n_words++] = word;
	return 0;
}

static int check_words(const struct context *context)
{
	const struct command *command = context->command;

	if (context->n_words < command->min_words)
		return fail(EX_USAGE, "%s: %s is missing: see 'leasectl %s --help'", command->name,
			    command->words, command->name);
	if (context->n_words > command->max_words)
		return fail(EX_USAGE, "%s: '%s' is one word too many: see 'leasectl %s --help'",
			    command->name, show_word(context->words[command->max_words]),
			    command->name);
	return 0;
}

static int check_source(const struct connection_source *source)
{
	if (source->dbname && source->config)
		return fail(EX_USAGE, "--dbname and --config exclude each other: give one of them");
	if (source->database && !source->config)
		return fail(EX_USAGE,
			    "--database names an entry of a file: give --config as well, or "
			    "--dbname for a database by its own name");
	return 0;
}

static int parse_all(struct parser *parser)
{
	bool only_words = false;
	int r = 0;

	while (r == 0 && parser->next < parser->argc) {
		char *text = parser->argv[parser->next++];

		if (!only_words && strcmp(text, "--") == 0)
			only_words = true;
		else if (!only_words && text[0] == '-' && text[1])
			r = parse_option(parser, text);
		else
			r = parse_word(parser, text);
	}
	return r;
}

/* What was asked for beside running the command. */
static int finish(struct parser *parser)
{
	struct context *context = parser->context;
	int r;

	if (parser->common[COMMON_HELP].given)
		return context->command ? print_command_help(context->command)
					: print_general_help(parser->commands);
	if (parser->common[COMMON_VERSION].given)
		return print_version();
	if (!context->command)
		return fail(EX_USAGE, "which command? See 'leasectl --help'");
	r = check_words(context);
	return r ? r : ARGUMENTS_RUN;
}

int arguments_parse(int argc, char **argv, const struct command *const *commands,
		    struct context *ret)
{
	struct parser parser = {
		.argc = argc, .argv = argv, .next = 1, .commands = commands, .context = ret
	};
	int r;

	*ret = (struct context){ .words = xcalloc((size_t)argc + 1, sizeof(*ret->words)) };
	r = parse_all(&parser);
	ret->source = (struct connection_source){
		.dbname = parser.common[COMMON_DBNAME].text,
		.config = parser.common[COMMON_CONFIG].text,
		.database = parser.common[COMMON_DATABASE].text,
	};
	if (r == 0)
		r = finish(&parser);
	if (r == ARGUMENTS_RUN) {
		int wrong = check_source(&ret->source);

		r = wrong ? wrong : ARGUMENTS_RUN;
	}
	output_init(&ret->output, parser.common[COMMON_JSON].given);
	return r;
}

void arguments_done(struct context *context)
{
	free(context->words);
	free((char *)context->source.dbname);
	context->source.dbname = NULL;
}
