/*
 * Any bytes as the daemon's configuration.
 *
 * A refusal has one line of printable text that names the place; an accepted file has at least one
 * database, and what config_print makes of it is accepted again, unless it masks a secret.
 */
#include "config.h"

#include <string.h>

#include "fuzz.h"

/* the mask of secrets, as config_print writes it: an accepted file may hold one */
static int print_again(const struct config *config)
{
	struct config *again = NULL;
	struct config_error error;
	char *text = NULL;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);
	int r;

	must(file);
	config_print(file, config);
	must(fclose(file) == 0);
	r = config_parse("printed.yaml", text, size, false, &again, &error);
	if (r == 0) {
		must(again->databases_count == config->databases_count);
		config_free(again);
	} else if (!strstr(text, "*****") && !strstr(text, "password_file")) {
		fprintf(stderr, "%s\n%s", error.message, text);
		abort();
	}
	free(text);
	return 0;
}

int fuzz_config(const uint8_t *data, size_t size)
{
	struct config *config = NULL;
	struct config_error error = { 0 };
	/* exactly as long as it is, so that a look past its end is seen */
	char *text = malloc(size > 0 ? size : 1);
	int r;

	must(text);
	memcpy(text, data, size);
	r = config_parse("fuzz.yaml", text, size, size % 2 == 1, &config, &error);
	free(text);
	if (r == 0) {
		must(config && config->databases_count > 0);
		print_again(config);
		config_free(config);
		return 0;
	}
	must(!config);
	must(strncmp(error.message, "fuzz.yaml", 9) == 0);
	for (const char *c = error.message; *c; c++)
		must((unsigned char)*c >= ' ' && *c != 127);
	return 0;
}
