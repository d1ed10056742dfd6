/*
 * leasectl archive, end to end: what was in the database before is in the files or in the database
 * afterwards, to the last column, wherever it was killed or whatever it met on its way.
 *
 * To catch it between the export and the removal of a batch, lease.runs is locked so that it can be
 * read and no row of it can be locked.
 */
#include "worker.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sysexits.h>

static struct process ran;

#define leasectl(code, ...)                                                                        \
	do {                                                                                       \
		start(&ran, __VA_ARGS__);                                                          \
		ends_with(code, &ran);                                                             \
	} while (0)
#define archive(code, ...)                                                                         \
	leasectl(code, "archive", "--older-than", "90d", "--to", folder, ##__VA_ARGS__)

static const char *const tables[] = { "runs",     "run_attempts",    "nodes",       "operations",
				      "contents", "node_executions", "checkpoints", "run_events" };

/* -- a history, and that nothing of it is lost ---------------------------------------------------- */

#define ODD_RUN "odd \"{\\,}%NULL"

/* `n` runs old-1 … that ended 100 days ago, and runs of all other kinds; keeps what there is. */
static void make_history(int n)
{
	char run_id[32];

	for (int i = 1; i <= n; i++) {
		snprintf(run_id, sizeof(run_id), "old-%d", i);
		live_through(s, run_id);
	}
	let_ended_runs_age(s, "100 days");
	live_through(s, "young");
	take_run(s, "running", "w:1");
	assert_granted(submit(s->worker, "pending"));
	sql(s->admin, "drop schema if exists kept cascade; create schema kept");
	for (size_t i = 0; i < LENGTH(tables); i++)
		sql(s->admin, "create table kept.%s as select * from lease.%s", tables[i],
		    tables[i]);
}

/* The names in the folder, hidden ones as well; the pattern counts, see fnmatch(3). */
static int count_files(const char *part)
{
	DIR *names = opendir(folder);
	const struct dirent *entry;
	int n = 0;

	assert_non_null(names);
	while ((entry = readdir(names)))
		n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		     strstr(entry->d_name, part) != NULL;
	closedir(names);
	return n;
}

/* The path of the first file by name, of the n-th; static. */
static const char *file_no(int n)
{
	static char path[1024];
	struct dirent **names;
	int count = scandir(folder, &names, NULL, alphasort), found = 0;

	path[0] = '\0';
	for (int i = 0; i < count; i++) {
		if (strstr(names[i]->d_name, ".jsonl.gz") && ++found == n)
			snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);
		free(names[i]);
	}
	free(names);
	if (!path[0])
		fail_msg("there is no file %d in %s", n, folder);
	return path;
}

static void run_bash(int code, const char *script, const char *argument)
{
	process_start(&ran,
		      ((char *[]){ "bash", "-c", (char *)script, "bash", (char *)argument, NULL }),
		      NULL);
	ends_with(code, &ran);
}

/* All facts of the folder's files into kept.filed. */
static void load_files(void)
{
	const char *values[1];
	PGresult *result;

	sql(s->admin, "drop table if exists kept.filed; "
		      "create table kept.filed (name text, fact jsonb)");
	if (count_files(".jsonl.gz") == 0)
		return;
	run_bash(0, "exec zcat \"$1\"/*.jsonl.gz", folder);
	values[0] = process_output(&ran);
	result = PQexecParams(s->admin,
			      "insert into kept.filed select l::jsonb->>'table', l::jsonb->'row' "
			      "from regexp_split_to_table($1, '\\n') l where l like '{\"table\"%'",
			      1, NULL, values, NULL, NULL, 0);
	assert_int_equal(PQresultStatus(result), PGRES_COMMAND_OK);
	PQclear(result);
}

/* Every row that was there is in a file or in the database as it was, and no other is. */
static void nothing_is_lost(void)
{
	load_files();
	for (size_t i = 0; i < LENGTH(tables); i++) {
		const char *t = tables[i];

		assert_sql(s->admin, "0",
			   "with now as (select * from lease.%s union select "
			   "(jsonb_populate_record(null::kept.%s, fact)).* from kept.filed "
			   "where name = '%s') select count(*) from ("
			   "(select * from kept.%s except select * from now) union all "
			   "(select * from now except select * from kept.%s)) d",
			   t, t, t, t, t);
	}
}

static void old_runs_are_gone(void)
{
	assert_sql(s->admin, "pending running young",
		   "select string_agg(run_id, ' ' order by run_id) from lease.runs");
	for (size_t i = 1; i < LENGTH(tables); i++)
		if (strcmp(tables[i], "contents") != 0)
			assert_sql(s->admin, "0",
				   "select count(*) from lease.%s where run_id not in "
				   "('pending', 'running', 'young')",
				   tables[i]);
	leasectl(0, "audit");
}

/* -- what it does ---------------------------------------------------------------------------------- */

static void runs_are_moved_whole(void **state)
{
	struct stat status;
	char *odd_settings;

	(void)state;
	live_through(s, ODD_RUN);
	make_history(6);
	/* runs without attempts: legacy, and cancelled before anybody claimed it */
	sql(s->admin, "insert into lease.runs (run_id, status, finished_at) values ('legacy', "
		      "'failed', clock_timestamp() - interval '1000 days'); "
		      "insert into kept.runs select * from lease.runs where run_id = 'legacy'");
	/* whatever the role's or the database's settings are */
	if (asprintf(&odd_settings,
		     "%s options='-c TimeZone=Asia/Tokyo -c DateStyle=German -c "
		     "client_encoding=LATIN1 -c standard_conforming_strings=off "
		     "-c default_transaction_isolation=serializable -c search_path=pg_temp'",
		     s->conninfo) < 0)
		abort();
	through = odd_settings;
	archive(0, "--dry-run", "--batch", "3");
	assert_non_null(
		strstr(process_output(&ran), "would archive 8 runs in 3 files; the oldest"));
	assert_int_equal(count_files(""), 0);
	archive(0, "--batch", "3");
	assert_non_null(strstr(process_output(&ran), "8 runs archived in 3 files\n"));
	assert_string_equal(process_errors(&ran), "");
	through = NULL;
	free(odd_settings);
	assert_int_equal(count_files(""), 3);
	assert_int_equal(count_files("lease-"), 3);
	assert_int_equal(stat(file_no(1), &status), 0);
	assert_int_equal(status.st_mode & 07777, 0600);
	nothing_is_lost();
	old_runs_are_gone();
	for (int i = 1; i <= 3; i++)
		leasectl(0, "archive", "--show", file_no(i));
	archive(0);
	assert_string_equal(process_output(&ran), "0 runs archived in 0 files\n");
	assert_int_equal(count_files(""), 3);
}

static void part_of_them_can_be_archived(void **state)
{
	(void)state;
	live_through(s, "other");
	sql_unguarded(s, "update lease.runs set tenant_id = 'a' where run_id = 'other'");
	make_history(5);
	archive(0, "--tenant", "a", "--json");
	assert_int_equal(count_files(""), 1);
	assert_sql(s->admin, "0", "select count(*) from lease.runs where run_id = 'other'");
	archive(0, "--limit", "3", "--batch", "2");
	assert_non_null(strstr(process_output(&ran), "3 runs archived in 2 files\n"));
	archive(0, "--limit", "2", "--batch", "2");
	assert_non_null(strstr(process_output(&ran), "2 runs archived in 1 files\n"));
	nothing_is_lost();
	old_runs_are_gone();
}

/* The story from the file is the one that the database told, but for when it was told. */
static void show_tells_the_story_that_explain_told(void **state)
{
	const char *values[2];
	PGresult *result;
	char *told;

	(void)state;
	make_history(2);
	leasectl(0, "explain", "--json", "old-2");
	told = strdup(process_output(&ran));
	archive(0);
	leasectl(EX_NOINPUT, "explain", "old-2");
	leasectl(0, "archive", "--show", file_no(1), "--run", "old-2", "--json");
	values[0] = told;
	values[1] = process_output(&ran);
	result = PQexecParams(s->admin,
			      "select $1::text::jsonb - 'now' = $2::text::jsonb - 'now', "
			      "length($1::text) > 3000",
			      2, NULL, values, NULL, NULL, 0);
	assert_int_equal(PQresultStatus(result), PGRES_TUPLES_OK);
	if (PQgetvalue(result, 0, 0)[0] != 't')
		fail_msg("%s\nis not\n%s", values[1], told);
	assert_string_equal(PQgetvalue(result, 0, 1), "t");
	PQclear(result);
	free(told);
	leasectl(0, "archive", "--show", file_no(1), "--run", "old-1");
	assert_non_null(strstr(process_output(&ran), "boom"));
	leasectl(EX_NOINPUT, "archive", "--show", file_no(1), "--run", "old");
	leasectl(0, "archive", "--show", file_no(1), "--json");
	assert_non_null(strstr(process_output(&ran), "\"rows\":{\"runs\":2,"));
}

/* -- interrupted ----------------------------------------------------------------------------------- */

/* Lets exports by and holds removals up, on s->other. */
static void hold_removals(void)
{
	sql(s->other, "begin; lock table lease.runs in exclusive mode");
}

static void wait_at(const char *query)
{
	wait_sql(
		s->admin,
		"select count(*) > 0 from pg_stat_activity where datname = current_database() and "
		"application_name = 'leasectl' and wait_event_type = 'Lock' and query like '%%%s%%'",
		query);
}

static void kill_it(struct process *process)
{
	process_signal(process, SIGKILL);
	ends_with(128 + SIGKILL, process);
}

static void wait_gone(void)
{
	wait_sql(s->admin, "select count(*) = 0 from pg_stat_activity where datname = "
			   "current_database() and application_name = 'leasectl'");
}

static void start_archive(struct process *process, const char *to)
{
	start(process, "archive", "--older-than", "90d", "--to", to, "--batch", "2");
}

/* A history of `n` old runs, and an archive that has exported its first batch and removed nothing. */
static void start_until_removal(struct process *process, int n)
{
	make_history(n);
	hold_removals();
	start_archive(process, folder);
	wait_at("remove_runs");
}

static void killed_while_it_writes(void **state)
{
	struct process process;

	(void)state;
	make_history(4);
	sql(s->other, "begin; lock table lease.run_events in access exclusive mode");
	start_archive(&process, folder);
	wait_at("run_facts");
	assert_int_equal(count_files(".tmp"), 1);
	kill_it(&process);
	sql(s->other, "rollback");
	wait_gone();
	assert_int_equal(count_files(".jsonl.gz"), 0);
	nothing_is_lost();
	archive(0, "--batch", "2");
	assert_int_equal(count_files(".tmp"), 0);
	assert_int_equal(count_files(""), 2);
	nothing_is_lost();
	old_runs_are_gone();
}

static void killed_before_it_removes(void **state)
{
	struct process process;

	(void)state;
	start_until_removal(&process, 4);
	assert_int_equal(count_files(".jsonl.gz"), 1);
	kill_it(&process);
	sql(s->other, "rollback");
	wait_gone();
	assert_sql(s->admin, "7", "select count(*) from lease.runs");
	nothing_is_lost();
	/* takes the file that is there; and exported into another one it does no harm either */
	archive(0, "--batch", "2", "--limit", "2");
	assert_non_null(strstr(process_output(&ran), "(was there already)"));
	assert_int_equal(count_files(""), 1);
	archive(0);
	nothing_is_lost();
	old_runs_are_gone();
}

/* The removal has taken effect, and nobody was told. */
static void killed_while_it_commits(void **state)
{
	struct process process;

	(void)state;
	make_history(2);
	sql(s->admin,
	    "create function kept.wait() returns trigger language plpgsql as "
	    "'begin perform pg_advisory_xact_lock(6); return null; end'; "
	    "create constraint trigger wait after delete on lease.runs deferrable initially deferred "
	    "for each row execute function kept.wait()");
	sql(s->other, "select pg_advisory_lock(6)");
	start_archive(&process, folder);
	wait_at("COMMIT");
	kill_it(&process);
	sql(s->other, "select pg_advisory_unlock(6)");
	wait_gone();
	nothing_is_lost();
	old_runs_are_gone();
	archive(0);
	assert_string_equal(process_output(&ran), "0 runs archived in 0 files\n");
}

/* The server goes away under it: at the export, and at the removal. */
static void the_connection_is_lost(void **state)
{
	static const char *const locks[] = { "lease.run_events in access exclusive mode",
					     "lease.runs in exclusive mode" };
	struct process process;
	int code;

	(void)state;
	make_history(4);
	for (size_t i = 0; i < LENGTH(locks); i++) {
		sql(s->other, "begin; lock table %s", locks[i]);
		start_archive(&process, folder);
		wait_at(i == 0 ? "run_facts" : "remove_runs");
		sql(s->admin,
		    "select pg_terminate_backend(pid) from pg_stat_activity where datname "
		    "= current_database() and application_name = 'leasectl'");
		code = process_wait(&process, TEST_PATIENCE_MS);
		assert_true(code == EX_TEMPFAIL || code == EX_UNAVAILABLE);
		sql(s->other, "rollback");
		assert_int_equal(count_files(".tmp"), 0);
		assert_int_equal(count_files(".jsonl.gz"), (int)i);
		nothing_is_lost();
	}
	archive(0);
	nothing_is_lost();
	old_runs_are_gone();
}

static void a_signal_stops_it_behind_a_batch(void **state)
{
	struct process process;

	(void)state;
	start_until_removal(&process, 6);
	process_signal(&process, SIGTERM);
	sql(s->other, "rollback");
	ends_with(EX_TEMPFAIL, &process);
	said(&process, "stopped by SIGTERM after 2 runs: the same command goes on from there");
	assert_sql(s->admin, "7", "select count(*) from lease.runs");
	nothing_is_lost();
	/* in the middle of an export nothing is left of it */
	sql(s->other, "begin; lock table lease.run_events in access exclusive mode");
	start_archive(&process, folder);
	wait_at("run_facts");
	process_signal(&process, SIGINT);
	sql(s->other, "rollback");
	ends_with(EX_TEMPFAIL, &process);
	said(&process, "stopped by SIGINT after 0 runs");
	assert_int_equal(count_files(""), 1);
	archive(0, "--batch", "2");
	nothing_is_lost();
	old_runs_are_gone();
}

/* -- what stays ------------------------------------------------------------------------------------ */

static void a_run_that_changed_since_the_export_stays(void **state)
{
	struct process process;

	(void)state;
	start_until_removal(&process, 2);
	sql(s->admin, "insert into lease.run_events (kind, run_id) values ('cancel_requested', "
		      "'old-2'); insert into kept.run_events select * from lease.run_events where "
		      "event_id not in (select event_id from kept.run_events)");
	sql(s->other, "rollback");
	ends_with(EX_TEMPFAIL, &process);
	said(&process, "run old-2 was exported and not removed: something was added to it");
	said(&process, "1 runs were exported and not removed: try again");
	assert_sql(s->admin, "old-2 pending running young",
		   "select string_agg(run_id, ' ' order by run_id) from lease.runs");
	nothing_is_lost();
	archive(0);
	assert_int_equal(count_files(""), 2);
	nothing_is_lost();
	old_runs_are_gone();
}

static void a_locked_run_stays_and_holds_nothing_up(void **state)
{
	(void)state;
	make_history(3);
	sql(s->other, "begin; select from lease.runs where run_id = 'old-2' for key share");
	archive(EX_TEMPFAIL, "--json");
	said(&ran, "run old-2 was exported and not removed: somebody holds its row");
	assert_non_null(strstr(process_output(&ran), "\"runs\":3,\"removed\":2,\"left\":1}"));
	sql(s->other, "rollback");
	archive(0);
	nothing_is_lost();
	old_runs_are_gone();
}

static void two_at_once_do_no_harm(void **state)
{
	struct process first, second;
	char *other_folder = test_tmpdir(), *script;

	(void)state;
	start_until_removal(&first, 4);
	archive(EX_TEMPFAIL);
	said(&ran, "another leasectl archive writes to it: try again");
	start_archive(&second, other_folder);
	wait_sql(s->admin,
		 "select count(*) = 2 from pg_stat_activity where wait_event_type = 'Lock' "
		 "and datname = current_database() and query like '%%remove_runs%%'");
	sql(s->other, "rollback");
	process_wait(&first, TEST_PATIENCE_MS);
	process_wait(&second, TEST_PATIENCE_MS);
	archive(0);
	/* each folder has whatever it removed; together they have all */
	old_runs_are_gone();
	if (asprintf(&script, "cp -n \"$1\"/* %s", folder) < 0)
		abort();
	run_bash(0, script, other_folder);
	free(script);
	nothing_is_lost();
	free(other_folder);
}

/* -- disks and folders ----------------------------------------------------------------------------- */

static void a_full_disk_removes_nothing(void **state)
{
	char *program = test_program("leasectl"), *script;

	(void)state;
	make_history(8);
	/* no file grows beyond 1 KiB */
	if (asprintf(&script,
		     "ulimit -f 1; exec %s archive --dbname \"%s\" --older-than 90d --to %s",
		     program, s->conninfo, folder) < 0)
		abort();
	run_bash(EX_IOERR, script, "");
	said(&ran, "a file cannot be written: File too large");
	assert_int_equal(count_files(""), 0);
	assert_sql(s->admin, "11", "select count(*) from lease.runs");
	nothing_is_lost();
	free(script);
	free(program);
}

static void a_folder_must_be_one(void **state)
{
	char *path = trace_path("file");

	(void)state;
	make_history(1);
	write_file(path, "");
	leasectl(EX_CANTCREAT, "archive", "--older-than", "90d", "--to", path);
	said(&ran, "is no folder to write to");
	leasectl(EX_CANTCREAT, "archive", "--older-than", "90d", "--to", "/nowhere");
	leasectl(EX_CANTCREAT, "archive", "--older-than", "90d", "--to", "/proc");
	said(&ran, "no file can be made in it");
	unlink(path);
	free(path);
	nothing_is_lost();
	assert_sql(s->admin, "4", "select count(*) from lease.runs");
}

/* A file with the batch's own name that is damaged is neither taken nor overwritten. */
static void a_damaged_file_in_the_way_stops_it(void **state)
{
	struct process process;

	(void)state;
	start_until_removal(&process, 2);
	kill_it(&process);
	sql(s->other, "rollback");
	wait_gone();
	run_bash(0, "printf x >>\"$1\"", file_no(1));
	archive(EX_DATAERR);
	said(&ran, "is damaged: it goes on behind its end");
	assert_sql(s->admin, "5", "select count(*) from lease.runs");
	run_bash(0, "mv \"$1\" \"${1%.jsonl.gz}\"", file_no(1));
	archive(0);
	run_bash(0, "rm $(dirname \"$1\")/*[0-9a-f]", file_no(1));
	nothing_is_lost();
	old_runs_are_gone();
}

/* -- damaged files --------------------------------------------------------------------------------- */

static void is_refused(const char *what, const char *path)
{
	start(&ran, "archive", "--show", path);
	if (process_wait(&ran, TEST_PATIENCE_MS) != EX_DATAERR || process_output(&ran)[0])
		fail_msg("%s: exit code %d, %s", what, process_wait(&ran, 0), process_output(&ran));
}

static void a_damaged_file_is_told(void **state)
{
	static const struct {
		const char *how, *says;
	} changes[] = {
		{ "zcat $1 | sed s/boom/bomb/ | gzip", "its checksum or its counts" },
		{ "zcat $1 | sed '$s/\"sha256\":\"./&0/' | gzip", "its checksum or its counts" },
		{ "zcat $1 | sed '$s/\"runs\":2/\"runs\":3/' | gzip",
		  "its checksum or its counts" },
		{ "zcat $1 | sed 3d | gzip", "its checksum or its counts" },
		{ "zcat $1 | sed '3{h;p;}' | gzip", "its checksum or its counts" },
		{ "zcat $1 | sed '3{h;d;};4{G;}' | gzip", "its checksum or its counts" },
		{ "zcat $1 | sed '2d' | gzip", "a line is none" },
		{ "zcat $1 | sed '3s/run_attempts/attempts/' | gzip", "a line is none" },
		{ "zcat $1 | sed 1d | gzip", "is no file of leasectl archive" },
		{ "zcat $1 | sed '1s/archive\" : 1/archive\" : 2/' | gzip", "has format 2" },
		{ "zcat $1 | sed '$d' | gzip", "is incomplete" },
		{ "zcat $1 | head -c -1 | gzip", "is incomplete" },
		{ "(zcat $1; zcat $1) | gzip", "goes on behind its last line" },
		{ "(zcat $1; echo) | gzip", "goes on behind its last line" },
		{ "zcat $1 | sed '3s/x*/\\x00/' | gzip", "NUL" },
		{ "cat $1 $1", "goes on behind its end" },
		{ "cat $1; echo", "goes on behind its end" },
		{ "zcat $1", "is no file of leasectl archive" },
		{ "head -c 0 $1", "is incomplete" },
		{ "head -c 10 $1", "is incomplete" },
		{ "head -c -1 $1", "is incomplete" },
		{ "head -c -8 $1", "is incomplete" },
		{ "head -c 600 $1", "is incomplete" },
		{ "head -c 700 /dev/zero", "is no file of leasectl archive" },
		{ "head -c 40000000 /dev/zero | gzip", "a line has no end" },
	};
	char *script = strdup("set -e; cd \"$(dirname \"$1\")\"\n");

	(void)state;
	make_history(2);
	archive(0);
	for (size_t i = 0; i < LENGTH(changes); i++) {
		char *longer;

		if (asprintf(&longer, "%s(%s) >copy-%zu\n", script, changes[i].how, i) < 0)
			abort();
		free(script);
		script = longer;
	}
	run_bash(0, script, file_no(1));
	free(script);
	for (size_t i = 0; i < LENGTH(changes); i++) {
		char name[16], *copy;

		snprintf(name, sizeof(name), "copy-%zu", i);
		copy = trace_path(name);
		is_refused(changes[i].how, copy);
		said(&ran, changes[i].says);
		free(copy);
	}
	leasectl(EX_NOINPUT, "archive", "--show", "/nowhere/file");
	leasectl(0, "archive", "--show", file_no(1));
}

/*
 * A bit that is wrong anywhere, but for those that say nothing (RFC 1951, 1952): the time and the like
 * in gzip's header, and what fills up the last byte of the compressed data.
 */
static void a_wrong_bit_is_told(void **state)
{
	char *copy = trace_path("copy");
	unsigned char bytes[16384];
	FILE *file;
	size_t length;

	(void)state;
	make_history(2);
	archive(0);
	file = fopen(file_no(1), "r");
	assert_non_null(file);
	length = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	assert_true(length > 1000 && length < sizeof(bytes));
	for (size_t i = 0; i < length; i += i < 4 || i + 12 > length ? 1 : 151) {
		char what[32];

		if ((i >= 4 && i < 10) || i + 9 == length)
			continue;
		bytes[i] ^= (unsigned char)(1 << i % 8);
		file = fopen(copy, "w");
		assert_int_equal(fwrite(bytes, 1, length, file), length);
		fclose(file);
		bytes[i] ^= (unsigned char)(1 << i % 8);
		snprintf(what, sizeof(what), "byte %zu", i);
		is_refused(what, copy);
	}
	free(copy);
}

/* -- who may --------------------------------------------------------------------------------------- */

static void as_role(const char *role, const char *member_of)
{
	static char conninfo[1024];

	sql(s->admin, "drop role if exists %s; create role %s login in role %s", role, role,
	    member_of);
	snprintf(conninfo, sizeof(conninfo), "%s user=%s", s->conninfo, role);
	through = conninfo;
}

static void only_the_archive_role_may(void **state)
{
	static const char *const others[] = { "lease_reader", "lease_worker", "lease_reconciler" };

	(void)state;
	make_history(2);
	for (size_t i = 0; i < LENGTH(others); i++) {
		as_role("lease_test_other", others[i]);
		archive(EX_NOPERM);
		said(&ran, "grant it lease_archive");
		archive(0, "--dry-run");
		assert_int_equal(count_files(""), 0);
	}
	as_role("lease_test_archive", "lease_archive");
	archive(0);
	through = NULL;
	sql(s->admin, "drop role lease_test_other; drop role lease_test_archive");
	nothing_is_lost();
	old_runs_are_gone();
}

static void without_its_owner_the_function_is_not_tried(void **state)
{
	(void)state;
	make_history(1);
	sql(s->admin, "alter function lease.remove_runs(text[], text[], timestamptz) owner to "
		      "lease_owner");
	archive(EX_CONFIG);
	said(&ran, "does not belong to role lease_remover");
	assert_int_equal(count_files(""), 0);
	nothing_is_lost();
}

/* -- beside others --------------------------------------------------------------------------------- */

/* Workers live, attempts are lost and closed while it is at work, and none of them minds. */
static void workers_and_reconcilers_go_on_beside_it(void **state)
{
	struct lease_sweep_options options;
	struct sweeper *sweeper;
	struct process process;
	struct lease_token token;
	char run_id[32];
	int lived = 0;

	(void)state;
	sql(s->admin, "insert into lease.runs (run_id, status, finished_at, created_at) "
		      "select 'bulk-' || n, 'completed', clock_timestamp() - interval '200 days', "
		      "clock_timestamp() - interval '201 days' from generate_series(1, 30) n");
	make_history(6);
	token = token_of("running", 1, "w:1");
	lease_sweep_options_init(&options);
	options.policy = LEASE_POLICY_REQUEUE;
	sweeper = sweeper_start(s, &options, NULL);
	start(&process, "archive", "--older-than", "90d", "--to", folder, "--batch", "4");
	do {
		snprintf(run_id, sizeof(run_id), "live-%d", ++lived);
		live_through(s, run_id);
		assert_granted(renew(s->worker, &token, LONG, NULL));
	} while (!process_ended(&process));
	ends_with(0, &process);
	assert_int_equal(sweeper_stop(sweeper, NULL), 0);
	assert_sql(s->admin, "0", "select count(*) from lease.runs where run_id ~ '^(old|bulk)'");
	sql(s->admin, "delete from kept.runs where run_id = 'running'");
	assert_sql(s->admin, "t",
		   "select count(*) = %d from lease.runs where run_id like 'live-%%' and status = "
		   "'failed'",
		   lived);
	load_files();
	assert_sql(s->admin, "36 36",
		   "select count(*) || ' ' || count(distinct fact->>'run_id') from kept.filed "
		   "where name = 'runs'");
	leasectl(0, "audit");
}

/* -- usage ----------------------------------------------------------------------------------------- */

static void what_makes_no_sense_is_refused(void **state)
{
	(void)state;
	leasectl(EX_USAGE, "archive", "--to", folder);
	said(&ran, "--older-than is missing");
	leasectl(EX_USAGE, "archive", "--to", folder, "--older-than", "23h");
	said(&ran, "at least 1d");
	leasectl(EX_USAGE, "archive", "--older-than", "90d");
	said(&ran, "--to is missing");
	archive(EX_USAGE, "--batch", "10001");
	archive(EX_USAGE, "--run", "r");
	archive(EX_USAGE, "--show", "file");
	said(&ran, "--older-than does not go with it");
	archive(EX_USAGE, "word");
	assert_int_equal(count_files(""), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		worker_test(runs_are_moved_whole),
		worker_test(part_of_them_can_be_archived),
		worker_test(show_tells_the_story_that_explain_told),
		worker_test(killed_while_it_writes),
		worker_test(killed_before_it_removes),
		worker_test_alone(killed_while_it_commits),
		worker_test(the_connection_is_lost),
		worker_test(a_signal_stops_it_behind_a_batch),
		worker_test(a_run_that_changed_since_the_export_stays),
		worker_test(a_locked_run_stays_and_holds_nothing_up),
		worker_test(two_at_once_do_no_harm),
		worker_test(a_full_disk_removes_nothing),
		worker_test(a_folder_must_be_one),
		worker_test(a_damaged_file_in_the_way_stops_it),
		worker_test(a_damaged_file_is_told),
		worker_test(a_wrong_bit_is_told),
		worker_test(only_the_archive_role_may),
		worker_test_alone(without_its_owner_the_function_is_not_tried),
		worker_test(workers_and_reconcilers_go_on_beside_it),
		worker_test(what_makes_no_sense_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, scenario_end);
}
