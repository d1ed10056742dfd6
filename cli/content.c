/*
 * leasectl content - registers what a payload is known by, and checks a payload against it.
 *
 * The bytes stay where they are; only their hash, size and type are sent.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "failure.h"
#include "json.h"
#include "refusal.h"

enum { CONTENT_REF, CONTENT_MEDIA_TYPE, CONTENT_SCHEMA_VERSION };

static const struct option content_options[] = {
	[CONTENT_REF] = { "ref", 0, OPTION_TEXT, "URI",
			  "where the bytes lie (s3://…); without it file:// and the path" },
	[CONTENT_MEDIA_TYPE] = { "media-type", 0, OPTION_TEXT, "TYPE",
				 "for add; without it application/octet-stream" },
	[CONTENT_SCHEMA_VERSION] = { "schema-version", 0, OPTION_NUMBER, "N",
				     "for add: the version of what the payload holds (1)" },
};

/* -- hashing ------------------------------------------------------------------------------------- */

static int hash_file(int fd, EVP_MD_CTX *digest, const char *path, struct lease_content *ret)
{
	unsigned char hash[EVP_MAX_MD_SIZE];
	static unsigned char buffer[1 << 16];
	unsigned length;
	ssize_t n;

	if (EVP_DigestInit_ex(digest, EVP_sha256(), NULL) != 1)
		return fail(EX_SOFTWARE, "libcrypto offers no SHA-256");
	while ((n = read(fd, buffer, sizeof(buffer))) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(EX_IOERR, "%s: cannot be read: %s", path, strerror(errno));
		if (EVP_DigestUpdate(digest, buffer, (size_t)n) != 1)
			return fail(EX_SOFTWARE, "libcrypto failed to hash");
		ret->size_bytes += n;
	}
	if (EVP_DigestFinal_ex(digest, hash, &length) != 1 || length != 32)
		return fail(EX_SOFTWARE, "libcrypto failed to hash");
	snprintf(ret->hash, sizeof(ret->hash), "sha256:");
	for (size_t i = 0; i < length; i++)
		snprintf(ret->hash + 7 + 2 * i, 3, "%02x", hash[i]);
	return 0;
}

/* Fills in hash and size. */
static int hash_path(const char *path, struct lease_content *ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	EVP_MD_CTX *digest;
	struct stat status;
	int r;

	if (fd < 0 || fstat(fd, &status) < 0) {
		r = fail(EX_NOINPUT, "%s: cannot be read: %s", path, strerror(errno));
	} else if (!S_ISREG(status.st_mode)) {
		r = fail(EX_NOINPUT, "%s: is not a regular file", path);
	} else {
		digest = EVP_MD_CTX_new();
		r = digest ? hash_file(fd, digest, path, ret) : fail(EX_OSERR, "out of memory");
		EVP_MD_CTX_free(digest);
	}
	if (fd >= 0)
		close(fd);
	return r;
}

/* The reference that was given, or the file's own. */
static int find_ref(const struct context *context, const char *path, struct lease_content *ret)
{
	const char *given = context->values[CONTENT_REF].text;
	char *absolute = given ? NULL : realpath(path, NULL);
	int length;

	if (!given && !absolute)
		return fail(EX_NOINPUT, "%s: cannot be read: %s", path, strerror(errno));
	length = snprintf(ret->content_ref, sizeof(ret->content_ref), "%s%s",
			  given ? "" : "file://", given ? given : absolute);
	free(absolute);
	if (length < 1 || length > LEASE_REF_MAX)
		return fail(EX_USAGE, "a reference must have 1 to %d bytes, this one has %d",
			    LEASE_REF_MAX, length);
	return 0;
}

/* -- the commands -------------------------------------------------------------------------------- */

static void write_content(const struct output *output, const struct lease_content *content,
			  const char *flag, bool value)
{
	struct json json;
	char *ref;

	if (output->json) {
		json_init(&json, output->file);
		json_begin_object(&json, NULL);
		json_text(&json, "content_ref", content->content_ref);
		json_text(&json, "hash", content->hash);
		json_text(&json, "media_type", content->media_type);
		json_number(&json, "size_bytes", content->size_bytes);
		json_number(&json, "schema_version", content->schema_version);
		json_bool(&json, flag, value);
		json_end_object(&json);
		return;
	}
	ref = text_escape(content->content_ref, output->utf8);
	fprintf(output->file, "%s  %s  %" PRId64 " bytes\n", content->hash, ref,
		content->size_bytes);
	free(ref);
}

static int add(const struct context *context, PGconn *conn, struct lease_content *content)
{
	struct lease_content there;
	struct lease_error error;
	bool changed;
	int r = lease_content_register(conn, content, &changed, &error);

	if (r < 0)
		return fail_with_error("cannot register the content", &error);
	if (r == 0) {
		write_content(&context->output, content, "changed", changed);
		if (!changed)
			note("%s was registered already, with the same hash", content->content_ref);
		return 0;
	}
	if (lease_content_lookup(conn, content->content_ref, &there, &error) != 0)
		return refuse(&context->output, content->content_ref, r);
	return fail(EX_DATAERR,
		    "%s is registered with %s, %" PRId64 " bytes, %s, version %" PRId32
		    ", and a registered content is immutable: give this one another reference",
		    there.content_ref, there.hash, there.size_bytes, there.media_type,
		    there.schema_version);
}

static int verify(const struct context *context, PGconn *conn, const struct lease_content *content)
{
	struct lease_content there;
	struct lease_error error;
	int r = lease_content_lookup(conn, content->content_ref, &there, &error);

	if (r < 0)
		return fail_with_error("cannot look the content up", &error);
	if (r == LEASE_NOT_FOUND)
		return fail(EX_NOINPUT, "no content is registered as %s", content->content_ref);
	if (strcmp(there.hash, content->hash) != 0 || there.size_bytes != content->size_bytes)
		return fail(EX_DATAERR,
			    "%s differs: %s, %" PRId64 " bytes here, %s, %" PRId64
			    " bytes registered",
			    content->content_ref, content->hash, content->size_bytes, there.hash,
			    there.size_bytes);
	write_content(&context->output, &there, "verified", true);
	return 0;
}

static int run_content(struct context *context)
{
	const char *verb = context->words[0], *path = context->words[1];
	const struct option_value *values = context->values;
	bool adds = strcmp(verb, "add") == 0;
	struct lease_content content = {
		.schema_version = values[CONTENT_SCHEMA_VERSION].given
					  ? (int32_t)values[CONTENT_SCHEMA_VERSION].number
					  : 1,
	};
	const char *media_type = values[CONTENT_MEDIA_TYPE].given ? values[CONTENT_MEDIA_TYPE].text
								  : "application/octet-stream";
	PGconn *conn;
	int r;

	if (!adds && strcmp(verb, "verify") != 0)
		return fail(EX_USAGE,
			    "content %s: it is 'content add FILE' or 'content verify FILE'", verb);
	if (strlen(media_type) > LEASE_ID_MAX || values[CONTENT_SCHEMA_VERSION].number > INT32_MAX)
		return fail(EX_USAGE, "--media-type or --schema-version is too long or too large");
	snprintf(content.media_type, sizeof(content.media_type), "%s", media_type);
	r = find_ref(context, path, &content);
	if (r == 0)
		r = hash_path(path, &content);
	if (r == 0)
		r = connection_open(&context->source, adds ? CONNECTION_WRITE : CONNECTION_READ,
				    &conn);
	if (r)
		return r;
	r = adds ? add(context, conn, &content) : verify(context, conn, &content);
	PQfinish(conn);
	return r;
}

const struct command command_content = {
	.name = "content",
	.summary = "register a payload's hash, or check a payload against it",
	.words = "add|verify FILE",
	.min_words = 2,
	.max_words = 2,
	.description =
		"'add' hashes FILE (SHA-256) and registers it under its reference; a registered content\n"
		"is immutable. 'verify' hashes FILE again and compares. The bytes are not sent anywhere.",
	.options = content_options,
	.n_options = sizeof(content_options) / sizeof(content_options[0]),
	.run = run_content,
};
