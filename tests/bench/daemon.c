/*
 * The real daemon on a database of its own connection: how soon it sees a lease's end, and what it
 * costs while nothing happens.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { STOP_MS = 5000 };

void daemon_start(struct process *daemon, PGconn *conn, const char *conninfo)
{
	char *folder = test_tmpdir(), *path, *text, *program = test_program("lease-reconciler");
	char *before = sql_text(conn, "SELECT clock_timestamp()");

	if (access(program, X_OK) != 0)
		die("%s is missing: make builds it", program);
	if (asprintf(&path, "%s/lease-reconciler.yaml", folder) < 0 ||
	    asprintf(&text,
		     "interval: 5s\npolicy: requeue\nmax_lease_losses: 3\nlog:\n  target: stderr\n"
		     "databases:\n  - name: bench\n    conninfo: \"%s\"\n",
		     conninfo) < 0)
		die("out of memory");
	write_file(path, text);
	process_start(daemon, ((char *const[]){ program, "--config", path, NULL }), NULL);
	wait_sql(conn,
		 "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
		 "AND backend_start > '%s' AND backend_type = 'client backend')",
		 before);
	free(before);
	free(folder);
	free(path);
	free(text);
	free(program);
}

void daemon_stop(struct process *daemon)
{
	process_signal(daemon, SIGTERM);
	if (process_wait(daemon, STOP_MS) != 0)
		die("the daemon ended badly:\n%s", process_errors(daemon));
}

long long proc_number(const struct process *process, const char *file, const char *word)
{
	char path[64], text[4096];
	const char *found;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)process->pid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (length < 0)
		die("%s cannot be read", path);
	close(fd);
	text[length] = '\0';
	found = strstr(text, word);
	if (!found)
		die("%s has no %s", path, word);
	return strtoll(found + strlen(word), NULL, 10);
}

/* -- detection -------------------------------------------------------------------------------- */

void measure_detection(struct bench *bench)
{
	long leases = bench->quick ? 200 : 1000;
	int spread = bench->quick ? 5 : 20;
	struct process daemon;
	char ttl[64];

	need_database(bench);
	daemon_start(&daemon, bench->conn, bench->conninfo);
	/* longer than the interval, as real ones are: a scan has listed each before it ends */
	snprintf(ttl, sizeof(ttl), "interval '8 s' + random() * interval '%d s'", spread);
	sql(bench->conn,
	    "CREATE TEMP TABLE ending AS "
	    "SELECT md5('ending ' || i)::uuid::text AS run_id FROM generate_series(1, %ld) i",
	    leases);
	open_leases(bench->conn, "ending", leases, ttl);
	progress("detection: %ld leases end within %d s", leases, 8 + spread);
	/* they are watched from another table's side, so that watching costs the daemon little */
	sleep((unsigned)(8 + spread));
	wait_sql(bench->conn, "SELECT NOT EXISTS (SELECT FROM ending e JOIN lease.run_attempts a "
			      "ON a.run_id = e.run_id WHERE a.finished_at IS NULL)");
	daemon_stop(&daemon);
	sql(bench->conn,
	    "CREATE TEMP TABLE lag AS "
	    "SELECT extract(epoch FROM a.finished_at - a.lease_expires_at) * 1000 AS ms "
	    "  FROM ending e JOIN lease.run_attempts a ON a.run_id = e.run_id "
	    " WHERE a.outcome = 'lease_expired' AND a.attempt_no = 1");
	if (sql_number(bench->conn, "SELECT count(*) FROM lag") != leases)
		die("not every lease that ended was closed as lease_expired");
	for (int i = 0; i < 3; i++) {
		static const struct {
			const char *name, *share, *what;
			enum aim aim;
		} points[] = {
			{ "detection_ms_p50", "0.5",
			  "from a lease's end to its attempt's, half of all", NO_AIM },
			{ "detection_ms_p99", "0.99", "the same, 99 of 100", AT_MOST },
			{ "detection_ms_max", "1", "the same, the longest", NO_AIM },
		};
		char *ms = sql_text(
			bench->conn,
			"SELECT percentile_cont(%s) WITHIN GROUP (ORDER BY ms) FROM lag",
			points[i].share);

		figure(points[i].name, atof(ms), "ms", points[i].aim, 50, points[i].what);
		free(ms);
	}
	sql(bench->conn, "DROP TABLE ending, lag");
}

/* -- idle ------------------------------------------------------------------------------------- */

/* How often it was woken and how long it ran, a second. */
static void observe(const struct process *daemon, unsigned seconds, double *ret_wakeups,
		    double *ret_cpu_percent)
{
	int64_t began = clock_us();
	long long woken = proc_number(daemon, "status", "\nvoluntary_ctxt_switches:");
	long long ran = proc_number(daemon, "schedstat", ""); /* nanoseconds */
	double elapsed;

	sleep(seconds);
	elapsed = (double)(clock_us() - began) / 1e6;
	woken = proc_number(daemon, "status", "\nvoluntary_ctxt_switches:") - woken;
	ran = proc_number(daemon, "schedstat", "") - ran;
	*ret_wakeups = (double)woken / elapsed;
	*ret_cpu_percent = (double)ran / 1e9 / elapsed * 100;
}

/* Some scans, so that memory and connection are what they will be. */
enum { SETTLE_S = 6 };

void measure_idle(struct bench *bench)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);
	unsigned seconds = bench->quick ? 6 : 20;
	struct process daemon;
	double wakeups, cpu;

	progress("idle: a database without leases");
	daemon_start(&daemon, conn, conninfo);
	sleep(SETTLE_S);
	observe(&daemon, seconds, &wakeups, &cpu);
	figure("rss_anon_kb", (double)proc_number(&daemon, "status", "\nRssAnon:"), "kB", AT_MOST,
	       3000, "the daemon's anonymous memory, no lease open");
	figure("idle_wakeups_per_s", wakeups, "1/s", AT_MOST, 2, "the same: how often it is woken");
	figure("idle_cpu_percent", cpu, "%", AT_MOST, 0.1, "the same: of one processor");
	daemon_stop(&daemon);
	PQfinish(conn);
	test_database_drop(conninfo);
	free(conninfo);

	need_database(bench);
	progress("idle: a database whose leases all hold");
	daemon_start(&daemon, bench->conn, bench->conninfo);
	sleep(SETTLE_S);
	observe(&daemon, seconds, &wakeups, &cpu);
	figure("watching_rss_anon_kb", (double)proc_number(&daemon, "status", "\nRssAnon:"), "kB",
	       NO_AIM, 0, "the daemon's anonymous memory, all leases open and none ending");
	figure("watching_wakeups_per_s", wakeups, "1/s", NO_AIM, 0,
	       "the same: how often it is woken");
	figure("watching_cpu_percent", cpu, "%", NO_AIM, 0, "the same: of one processor");
	daemon_stop(&daemon);
}
