/*
 * The files of leasectl archive: lines of JSON through gzip.
 *
 *	{"lease_archive" : 1, …}            the header: format, schema, database, cut, columns of each table
 *	{"table":"runs","row":{…}}          a run, then the rest of its facts, then the next run …
 *	{"table":"run_events","row":{…}}    … as lease.run_facts (migrations/0006_archive.sql) gives them
 *	{"end":true,…,"sha256":"…"}         counts, and the SHA-256 of all bytes before this line
 *
 * Promises: a file shows up under its name only when it is whole, on the disk and was read back; none
 * takes the place of another; a file that is not whole, to the bit, is not read as if it were; memory is
 * bounded by the number of runs and the longest line.
 *
 * Must never: remove a file that has its name, or write to one.
 */
#ifndef LEASE_CLI_ARCHIVE_FILE_H
#define LEASE_CLI_ARCHIVE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARCHIVE_FORMAT 1
#define ARCHIVE_DIGEST_SIZE 65 /* SHA-256 in hexadecimal */

enum archive_table {
	ARCHIVE_RUNS,
	ARCHIVE_RUN_ATTEMPTS,
	ARCHIVE_NODES,
	ARCHIVE_OPERATIONS,
	ARCHIVE_CONTENTS,
	ARCHIVE_NODE_EXECUTIONS,
	ARCHIVE_CHECKPOINTS,
	ARCHIVE_RUN_EVENTS,
	ARCHIVE_TABLES
};

extern const char *const archive_table_names[ARCHIVE_TABLES];

struct archive_run {
	char *run_id;
	char digest[ARCHIVE_DIGEST_SIZE]; /* of its facts, as lease.remove_runs wants it */
};

/* What a file holds. */
struct archive_summary {
	char *header; /* the line */
	struct archive_run *runs; /* in the file's order */
	size_t n_runs;
	int64_t rows[ARCHIVE_TABLES];
	int64_t bytes; /* before compression, without the last line */
	char sha256[ARCHIVE_DIGEST_SIZE]; /* of these */
};

void archive_summary_done(struct archive_summary *summary);

/*
 * All functions below return 0 or an exit code after one line on standard error.
 */

/* -- writing ------------------------------------------------------------------------------------- */

struct archive_folder;
struct archive_writer;

/*
 * Opens a folder to write files to, for one process at a time where the file system can tell, and
 * removes what one that was killed left half written.
 */
int archive_folder_open(const char *path, struct archive_folder **ret);
void archive_folder_close(struct archive_folder *folder); /* NULL is fine */

/* Begins a file that nobody sees yet. */
int archive_writer_open(const struct archive_folder *folder, struct archive_writer **ret);
/* The header first, then the facts' lines, without their line ends. */
int archive_writer_add(struct archive_writer *writer, const char *line);
/*
 * Makes the file whole and durable, reads it back, and gives it its name: `stem`, a part made from
 * the facts it holds, and .jsonl.gz. The same facts are there already, whole: *ret_reused, and that
 * file is taken. *ret is what was read, for archive_summary_done; the path is the caller's.
 */
int archive_writer_finish(struct archive_writer *writer, const char *stem,
			  struct archive_summary *ret, char **ret_path, bool *ret_reused);
/* Removes the file if it has no name yet. NULL is fine. */
void archive_writer_free(struct archive_writer *writer);

/* -- reading ------------------------------------------------------------------------------------- */

/* A fact's line, which it may change; the file may yet turn out to be damaged further down. */
typedef int archive_take(void *arg, enum archive_table table, char *line);

/* Reads and checks a whole file; `take` may be NULL. */
int archive_read(const char *path, archive_take *take, void *arg, struct archive_summary *ret);

#endif
