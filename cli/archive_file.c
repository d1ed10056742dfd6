/*
 * archive_file.c - writing, checking and reading the files of leasectl archive: see archive_file.h
 * for what it promises.
 */
#include "archive_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <zlib.h>

#include "failure.h"
#include "json_read.h"
#include "output.h"

#define CHUNK 65536
#define GZIP_WINDOW (15 + 16) /* zlib.h: the largest window, with a gzip header and trailer */
#define LINE_MAX_BYTES (16 << 20) /* no fact is nearly as long: what is longer is none */
#define TEMPORARY_HEAD ".lease-archive-"
#define TEMPORARY_TAIL ".tmp"
#define FACT_HEAD "{\"table\":\""
#define END_HEAD "{\"end\":true,"

const char *const archive_table_names[ARCHIVE_TABLES] = {
	[ARCHIVE_RUNS] = "runs",
	[ARCHIVE_RUN_ATTEMPTS] = "run_attempts",
	[ARCHIVE_NODES] = "nodes",
	[ARCHIVE_OPERATIONS] = "operations",
	[ARCHIVE_CONTENTS] = "contents",
	[ARCHIVE_NODE_EXECUTIONS] = "node_executions",
	[ARCHIVE_CHECKPOINTS] = "checkpoints",
	[ARCHIVE_RUN_EVENTS] = "run_events",
};

void archive_summary_done(struct archive_summary *summary)
{
	for (size_t i = 0; i < summary->n_runs; i++)
		free(summary->runs[i].run_id);
	free(summary->runs);
	free(summary->header);
	*summary = (struct archive_summary){ 0 };
}

/* -- hashing ------------------------------------------------------------------------------------- */

/* libcrypto fails where there is no memory, or no SHA-256, which no program survives either. */
static void must(int result)
{
	if (result != 1)
		exit(fail(EX_OSERR, "libcrypto failed to hash"));
}

static EVP_MD_CTX *hash_new(void)
{
	EVP_MD_CTX *hash = EVP_MD_CTX_new();

	must(hash != NULL);
	must(EVP_DigestInit_ex(hash, EVP_sha256(), NULL));
	return hash;
}

/* The digest, and the hash begins anew. */
static void hash_take(EVP_MD_CTX *hash, unsigned char ret[32])
{
	must(EVP_DigestFinal_ex(hash, ret, NULL));
	must(EVP_DigestInit_ex(hash, EVP_sha256(), NULL));
}

static void hash_take_text(EVP_MD_CTX *hash, char ret[ARCHIVE_DIGEST_SIZE])
{
	unsigned char digest[32];

	hash_take(hash, digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}

/* -- the tally: what the lines of a file amount to, for its writer and for its reader ------------- */

struct tally {
	struct archive_summary summary;
	EVP_MD_CTX *all, *run, *line;
	size_t room; /* in summary.runs */
};

static struct tally tally_new(void)
{
	return (struct tally){ .all = hash_new(), .run = hash_new(), .line = hash_new() };
}

static void tally_done(struct tally *tally)
{
	archive_summary_done(&tally->summary);
	EVP_MD_CTX_free(tally->all);
	EVP_MD_CTX_free(tally->run);
	EVP_MD_CTX_free(tally->line);
}

/* The table that a line is of; -1: it is no fact. */
static int table_of(const char *line)
{
	const char *name = line + strlen(FACT_HEAD);

	if (strncmp(line, FACT_HEAD, strlen(FACT_HEAD)) != 0)
		return -1;
	for (int i = 0; i < ARCHIVE_TABLES; i++) {
		size_t length = strlen(archive_table_names[i]);

		if (strncmp(name, archive_table_names[i], length) == 0 && name[length] == '"')
			return i;
	}
	return -1;
}

static bool begin_run(struct tally *tally, const char *line)
{
	struct archive_summary *summary = &tally->summary;
	char *copy = xstrdup(line);
	struct json_value *fact = json_read(copy);
	const char *run_id = json_member_text(json_member(fact, "row"), "run_id");

	if (run_id) {
		if (summary->n_runs == tally->room) {
			tally->room = tally->room ? 2 * tally->room : 64;
			summary->runs = xreallocarray(summary->runs, tally->room,
						      sizeof(*summary->runs));
		}
		summary->runs[summary->n_runs++] = (struct archive_run){ .run_id = xstrdup(
										 run_id) };
	}
	json_value_free(fact);
	free(copy);
	return run_id != NULL;
}

static void end_run(struct tally *tally)
{
	struct archive_summary *summary = &tally->summary;

	if (summary->n_runs > 0)
		hash_take_text(tally->run, summary->runs[summary->n_runs - 1].digest);
}

/* The header or a fact; false: the line is neither, or stands where it must not. */
static bool tally_add(struct tally *tally, const char *line, size_t length)
{
	struct archive_summary *summary = &tally->summary;
	unsigned char digest[32];
	int table = table_of(line);

	must(EVP_DigestUpdate(tally->all, line, length));
	must(EVP_DigestUpdate(tally->all, "\n", 1));
	summary->bytes += (int64_t)length + 1;
	if (!summary->header) {
		summary->header = xstrdup(line);
		return table < 0;
	}
	if (table < 0 || (table != ARCHIVE_RUNS && summary->n_runs == 0))
		return false;
	if (table == ARCHIVE_RUNS) {
		end_run(tally);
		if (!begin_run(tally, line))
			return false;
	}
	must(EVP_DigestUpdate(tally->line, line, length));
	hash_take(tally->line, digest);
	must(EVP_DigestUpdate(tally->run, digest, sizeof(digest)));
	summary->rows[table]++;
	return true;
}

/* The last line, to be freed by the caller. */
static char *tally_end(struct tally *tally)
{
	const struct archive_summary *summary = &tally->summary;
	char *counts = xstrdup(""), *line;

	end_run(tally);
	hash_take_text(tally->all, tally->summary.sha256);
	for (int i = 0; i < ARCHIVE_TABLES; i++) {
		char *longer = xasprintf("%s%s\"%s\":%" PRId64, counts, i ? "," : "",
					 archive_table_names[i], summary->rows[i]);

		free(counts);
		counts = longer;
	}
	line = xasprintf(END_HEAD "\"rows\":{%s},\"bytes\":%" PRId64 ",\"sha256\":\"%s\"}", counts,
			 summary->bytes, summary->sha256);
	free(counts);
	return line;
}

/* Takes the summary out of a tally that has ended. */
static struct archive_summary tally_take(struct tally *tally)
{
	struct archive_summary summary = tally->summary;

	tally->summary = (struct archive_summary){ 0 };
	return summary;
}

/* Whether two files hold the same facts, whatever their headers say. */
static bool same_facts(const struct archive_summary *a, const struct archive_summary *b)
{
	if (a->n_runs != b->n_runs)
		return false;
	for (size_t i = 0; i < a->n_runs; i++)
		if (strcmp(a->runs[i].run_id, b->runs[i].run_id) != 0 ||
		    strcmp(a->runs[i].digest, b->runs[i].digest) != 0)
			return false;
	return true;
}

/* -- reading ------------------------------------------------------------------------------------- */

struct reader {
	const char *path;
	archive_take *take;
	void *arg;
	struct tally tally;
	char *line; /* the beginning of one */
	size_t length, room;
	bool ended; /* the last line was there */
};

static int damaged(const struct reader *reader, const char *how)
{
	return fail(EX_DATAERR, "%s: %s", reader->path, how);
}

static int check_header(const struct reader *reader, const char *line)
{
	char *copy = xstrdup(line);
	struct json_value *header = json_read(copy);
	const char *format = json_member_text(header, "lease_archive");
	int r = 0;

	if (!format)
		r = damaged(reader, "is no file of leasectl archive");
	else if (strtol(format, NULL, 10) != ARCHIVE_FORMAT)
		r = fail(EX_DATAERR, "%s: has format %s, this program reads format %d",
			 reader->path, format, ARCHIVE_FORMAT);
	json_value_free(header);
	free(copy);
	return r;
}

static int take_end(struct reader *reader, const char *line)
{
	char *expected = tally_end(&reader->tally);
	bool same = strcmp(expected, line) == 0;

	free(expected);
	reader->ended = true;
	if (same)
		return 0;
	return damaged(reader, "is damaged: its checksum or its counts do not fit what it holds");
}

static int take_line(struct reader *reader, char *line, size_t length)
{
	bool first = !reader->tally.summary.header;
	int r = 0;

	if (reader->ended)
		return damaged(reader, "is damaged: it goes on behind its last line");
	if (strlen(line) != length)
		return damaged(reader, "is damaged: it holds a NUL");
	if (first)
		r = check_header(reader, line);
	else if (strncmp(line, END_HEAD, strlen(END_HEAD)) == 0)
		return take_end(reader, line);
	if (r)
		return r;
	if (!tally_add(&reader->tally, line, length))
		return damaged(reader, "is damaged: a line is none that leasectl archive writes");
	if (first || !reader->take)
		return 0;
	return reader->take(reader->arg, (enum archive_table)table_of(line), line);
}

/* Bytes as they come out of the decompression. */
static int take_bytes(struct reader *reader, const char *bytes, size_t n)
{
	int r = 0;

	while (r == 0 && n > 0) {
		const char *end = memchr(bytes, '\n', n);
		size_t length = end ? (size_t)(end - bytes) : n;

		if (reader->length + length > LINE_MAX_BYTES)
			return damaged(reader, "is damaged: a line has no end");
		if (reader->length + length + 1 > reader->room) {
			reader->room = 2 * (reader->length + length + 1);
			reader->line = xreallocarray(reader->line, reader->room, 1);
		}
		memcpy(reader->line + reader->length, bytes, length);
		reader->length += length;
		reader->line[reader->length] = '\0';
		bytes += length + (end != NULL);
		n -= length + (end != NULL);
		if (end) {
			r = take_line(reader, reader->line, reader->length);
			reader->length = 0;
		}
	}
	return r;
}

/* What the compressed bytes in `stream` hold; *ret_end at the end of the compressed data. */
static int inflate_chunk(struct reader *reader, z_stream *stream, bool *ret_end)
{
	static unsigned char out[CHUNK];
	int r = 0, state = Z_OK;

	while (r == 0 && state != Z_STREAM_END &&
	       (stream->avail_in > 0 || stream->avail_out == 0)) {
		stream->next_out = out;
		stream->avail_out = sizeof(out);
		state = inflate(stream, Z_NO_FLUSH);
		if (state == Z_BUF_ERROR) /* needs more than is there */
			break;
		if (state != Z_OK && state != Z_STREAM_END)
			return damaged(reader, stream->total_out == 0
						       ? "is no file of leasectl archive"
						       : "is damaged: it cannot be decompressed");
		r = take_bytes(reader, (const char *)out, sizeof(out) - stream->avail_out);
	}
	*ret_end = state == Z_STREAM_END;
	return r;
}

static int read_all(struct reader *reader, int fd, z_stream *stream)
{
	static unsigned char in[CHUNK];
	bool end = false;
	int r = 0;

	while (r == 0) {
		ssize_t n = read(fd, in, sizeof(in));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return fail(EX_IOERR, "%s: cannot be read: %s", reader->path,
				    strerror(errno));
		if (n == 0)
			break;
		stream->next_in = in;
		stream->avail_in = (unsigned)n;
		if (!end)
			r = inflate_chunk(reader, stream, &end);
		if (r == 0 && stream->avail_in > 0 && end)
			r = damaged(reader, "is damaged: it goes on behind its end");
	}
	if (r == 0 && (!end || !reader->ended || reader->length > 0))
		r = damaged(reader, "is incomplete");
	return r;
}

static int read_file(struct reader *reader, int fd)
{
	z_stream stream = { 0 };
	int r;

	if (inflateInit2(&stream, GZIP_WINDOW) != Z_OK)
		return fail(EX_OSERR, "out of memory");
	r = read_all(reader, fd, &stream);
	inflateEnd(&stream);
	return r;
}

int archive_read(const char *path, archive_take *take, void *arg, struct archive_summary *ret)
{
	struct reader reader = { .path = path, .take = take, .arg = arg };
	int fd = open(path, O_RDONLY | O_CLOEXEC), r;

	if (fd < 0)
		return fail(EX_NOINPUT, "%s: cannot be read: %s", path, strerror(errno));
	reader.tally = tally_new();
	r = read_file(&reader, fd);
	close(fd);
	if (r == 0)
		*ret = tally_take(&reader.tally);
	tally_done(&reader.tally);
	free(reader.line);
	return r;
}

/* -- the folder ---------------------------------------------------------------------------------- */

struct archive_folder {
	int fd;
	char *path;
};

static bool is_temporary(const char *name)
{
	size_t length = strlen(name), tail = strlen(TEMPORARY_TAIL);

	return strncmp(name, TEMPORARY_HEAD, strlen(TEMPORARY_HEAD)) == 0 && length > tail &&
	       strcmp(name + length - tail, TEMPORARY_TAIL) == 0;
}

/* Nobody else writes here: what is half written was left by one that was killed. */
static void remove_leftovers(const struct archive_folder *folder)
{
	DIR *names = opendir(folder->path);
	const struct dirent *entry;

	while (names && (entry = readdir(names)))
		if (is_temporary(entry->d_name))
			unlinkat(folder->fd, entry->d_name, 0);
	if (names)
		closedir(names);
}

int archive_folder_open(const char *path, struct archive_folder **ret)
{
	struct archive_folder *folder = xcalloc(1, sizeof(*folder));
	int r = 0;

	folder->path = xstrdup(path);
	folder->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder->fd < 0)
		r = fail(EX_CANTCREAT, "%s: is no folder to write to: %s", path, strerror(errno));
	else if (faccessat(folder->fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		r = fail(EX_CANTCREAT, "%s: cannot be written to: %s", path, strerror(errno));
	else if (flock(folder->fd, LOCK_EX | LOCK_NB) == 0)
		remove_leftovers(folder);
	else if (errno == EWOULDBLOCK)
		r = fail(EX_TEMPFAIL, "%s: another leasectl archive writes to it: try again", path);
	/* where it cannot be locked, as on some network file systems, leftovers stay */
	if (r == 0)
		*ret = folder;
	else
		archive_folder_close(folder);
	return r;
}

void archive_folder_close(struct archive_folder *folder)
{
	if (!folder)
		return;
	if (folder->fd >= 0)
		close(folder->fd);
	free(folder->path);
	free(folder);
}

/* -- writing ------------------------------------------------------------------------------------- */

struct archive_writer {
	const struct archive_folder *folder;
	struct tally tally;
	z_stream stream;
	int fd;
	char *path; /* of the half written file; NULL: it has its name */
};

static int cannot_write(const struct archive_writer *writer)
{
	return fail(EX_IOERR, "%s: a file cannot be written: %s", writer->folder->path,
		    strerror(errno));
}

int archive_writer_open(const struct archive_folder *folder, struct archive_writer **ret)
{
	struct archive_writer *writer = xcalloc(1, sizeof(*writer));

	if (deflateInit2(&writer->stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, GZIP_WINDOW, 8,
			 Z_DEFAULT_STRATEGY) != Z_OK) {
		free(writer);
		return fail(EX_OSERR, "out of memory");
	}
	writer->folder = folder;
	writer->tally = tally_new();
	writer->path = xasprintf("%s/" TEMPORARY_HEAD "XXXXXX" TEMPORARY_TAIL, folder->path);
	writer->fd = mkostemps(writer->path, (int)strlen(TEMPORARY_TAIL), O_CLOEXEC); /* 0600 */
	if (writer->fd < 0) {
		int r = fail(EX_CANTCREAT, "%s: no file can be made in it: %s", folder->path,
			     strerror(errno));

		free(writer->path);
		writer->path = NULL;
		archive_writer_free(writer);
		return r;
	}
	*ret = writer;
	return 0;
}

static int write_bytes(struct archive_writer *writer, const unsigned char *bytes, size_t n)
{
	while (n > 0) {
		ssize_t written = write(writer->fd, bytes, n);

		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0)
			return cannot_write(writer);
		bytes += written;
		n -= (size_t)written;
	}
	return 0;
}

/* Z_NO_FLUSH, or Z_FINISH for the end. */
static int deflate_bytes(struct archive_writer *writer, const char *bytes, size_t n, int flush)
{
	static unsigned char out[CHUNK];
	z_stream *stream = &writer->stream;
	int r = 0;

	stream->next_in = (unsigned char *)bytes; /* zlib only reads */
	stream->avail_in = (unsigned)n;
	do {
		stream->next_out = out;
		stream->avail_out = sizeof(out);
		deflate(stream, flush);
		r = write_bytes(writer, out, sizeof(out) - stream->avail_out);
	} while (r == 0 && stream->avail_out == 0);
	return r;
}

static int write_line(struct archive_writer *writer, const char *line, size_t length)
{
	int r = deflate_bytes(writer, line, length, Z_NO_FLUSH);

	return r ? r : deflate_bytes(writer, "\n", 1, Z_NO_FLUSH);
}

int archive_writer_add(struct archive_writer *writer, const char *line)
{
	size_t length = strlen(line);

	if (length > LINE_MAX_BYTES || strchr(line, '\n') ||
	    !tally_add(&writer->tally, line, length))
		return fail(EX_SOFTWARE, "the database gave a fact that cannot be archived: %.60s",
			    line);
	return write_line(writer, line, length);
}

static int end_file(struct archive_writer *writer)
{
	char *line = tally_end(&writer->tally);
	int r = write_line(writer, line, strlen(line));

	free(line);
	if (r == 0)
		r = deflate_bytes(writer, "", 0, Z_FINISH);
	if (r == 0 && fsync(writer->fd) < 0)
		r = cannot_write(writer);
	/* so that what is read back comes from the disk, where the kernel lets it */
	if (r == 0)
		posix_fadvise(writer->fd, 0, 0, POSIX_FADV_DONTNEED);
	return r;
}

static int read_back(const struct archive_writer *writer, struct archive_summary *ret)
{
	int r = archive_read(writer->path, NULL, NULL, ret);

	if (r)
		return EX_IOERR;
	if (same_facts(ret, &writer->tally.summary))
		return 0;
	archive_summary_done(ret);
	return fail(EX_IOERR, "%s: what was written reads back as something else", writer->path);
}

/* "STEM-0123456789abcdef.jsonl.gz": the same facts always have the same name. */
static char *make_path(const struct archive_writer *writer, const char *stem,
		       const struct archive_summary *summary)
{
	EVP_MD_CTX *hash = hash_new();
	char digest[ARCHIVE_DIGEST_SIZE];

	for (size_t i = 0; i < summary->n_runs; i++) {
		must(EVP_DigestUpdate(hash, summary->runs[i].run_id,
				      strlen(summary->runs[i].run_id) + 1));
		must(EVP_DigestUpdate(hash, summary->runs[i].digest, ARCHIVE_DIGEST_SIZE));
	}
	hash_take_text(hash, digest);
	EVP_MD_CTX_free(hash);
	return xasprintf("%s/%s-%.16s.jsonl.gz", writer->folder->path, stem, digest);
}

/* A rename that never takes a place; the second way is for file systems without the first. */
static int give_name(const char *from, const char *to)
{
	if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -1;
	if (link(from, to) < 0)
		return -1;
	unlink(from);
	return 0;
}

/* The file that has the name may have been left by a crash before it was durable. */
static int take_existing(const char *path, const struct archive_summary *summary)
{
	struct archive_summary existing = { 0 };
	int r = archive_read(path, NULL, NULL, &existing), fd;

	if (r == 0 && !same_facts(&existing, summary))
		r = fail(EX_DATAERR, "%s: holds other facts than its name says: move it away",
			 path);
	archive_summary_done(&existing);
	if (r)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		r = fail(EX_IOERR, "%s: cannot be made durable: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	return r;
}

static int publish(struct archive_writer *writer, const char *path,
		   const struct archive_summary *summary, bool *ret_reused)
{
	bool reused = give_name(writer->path, path) < 0;
	int r = 0;

	if (reused && errno != EEXIST)
		return fail(EX_IOERR, "%s: cannot be made: %s", path, strerror(errno));
	if (reused)
		r = take_existing(path, summary);
	if (r == 0 && fsync(writer->folder->fd) < 0)
		r = fail(EX_IOERR, "%s: cannot be made durable: %s", writer->folder->path,
			 strerror(errno));
	if (r == 0 && !reused) {
		free(writer->path);
		writer->path = NULL;
	}
	*ret_reused = reused;
	return r;
}

int archive_writer_finish(struct archive_writer *writer, const char *stem,
			  struct archive_summary *ret, char **ret_path, bool *ret_reused)
{
	struct archive_summary summary = { 0 };
	char *path = NULL;
	int r = end_file(writer);

	if (r == 0)
		r = read_back(writer, &summary);
	if (r == 0) {
		path = make_path(writer, stem, &summary);
		r = publish(writer, path, &summary, ret_reused);
	}
	if (r) {
		archive_summary_done(&summary);
		free(path);
		return r;
	}
	*ret = summary;
	*ret_path = path;
	return 0;
}

void archive_writer_free(struct archive_writer *writer)
{
	if (!writer)
		return;
	if (writer->path)
		unlink(writer->path);
	free(writer->path);
	if (writer->fd >= 0)
		close(writer->fd);
	deflateEnd(&writer->stream);
	tally_done(&writer->tally);
	free(writer);
}
