/*
 * The real daemon on a database of its own connection: how soon it sees a lease's end, and what it
 * costs while nothing happens.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { STOP_MS = 5000, SCAN_MS = 60000 };

/* `keys` are further lines of the configuration. */
static void start_with(struct process *daemon, PGconn *conn, const char *conninfo, const char *keys)
{
	char *folder = test_tmpdir(), *path, *text, *program = test_program("lease-reconciler");
	char *before = sql_text(conn, "SELECT clock_timestamp()");

	if (access(program, X_OK) != 0)
		die("%s is missing: make builds it", program);
	if (asprintf(&path, "%s/lease-reconciler.yaml", folder) < 0 ||
	    asprintf(
		    &text,
		    "interval: 5s\npolicy: requeue\nmax_lease_losses: 3\nlog:\n  target: stderr\n%s"
		    "databases:\n  - name: bench\n    conninfo: \"%s\"\n",
		    keys, conninfo) < 0)
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

void daemon_start(struct process *daemon, PGconn *conn, const char *conninfo)
{
	start_with(daemon, conn, conninfo, "");
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

/* -- metrics ---------------------------------------------------------------------------------- */

/* A daemon that writes its metrics. */
struct measured {
	struct process daemon;
	char *path;
};

/* What one of them says now; negative: the daemon does not know, or has not written yet. */
static double metric(const struct measured *measured, const char *name)
{
	FILE *file = fopen(measured->path, "r");
	char line[512];
	double value = -1;

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == '{')
			value = atof(strrchr(line, ' '));
	if (file)
		fclose(file);
	return value;
}

static bool has_scanned(void *argument)
{
	return metric(argument, "lease_reconciler_sweeps_total") >= 1;
}

/* Until it has scanned all leases once. */
static void measured_start(struct measured *measured, PGconn *conn, const char *conninfo)
{
	char *folder = test_tmpdir(), *keys;

	if (asprintf(&measured->path, "%s/lease-reconciler.prom", folder) < 0 ||
	    asprintf(&keys, "metrics_file: %s\nmetrics_interval: 200ms\n", measured->path) < 0)
		die("out of memory");
	start_with(&measured->daemon, conn, conninfo, keys);
	if (!wait_until(has_scanned, measured, SCAN_MS))
		die("the daemon has not scanned within %d s", SCAN_MS / 1000);
	free(folder);
	free(keys);
}

static void measured_stop(struct measured *measured)
{
	daemon_stop(&measured->daemon);
	free(measured->path);
}

/* -- detection -------------------------------------------------------------------------------- */

/* In the names of figures: "" is 100,000 open leases, or --open. */
static const char *detection_name(const char *size, const char *share)
{
	char *name;

	if (asprintf(&name, "detection_%s%sms_%s", size, *size ? "_" : "", share) < 0)
		die("out of memory");
	return name;
}

static const char *detection_what(const char *what, long open)
{
	char *text;

	if (asprintf(&text, "from a lease's end to its attempt's, %ld open: %s", open, what) < 0)
		die("out of memory");
	return text;
}

/* The leases that the table `ending` lists, each of which was closed. */
static void make_figures(PGconn *conn, const char *size, long open)
{
	static const struct {
		const char *name, *share, *what;
		enum aim aim;
	} points[] = {
		{ "p50", "0.5", "half of all", NO_AIM },
		{ "p99", "0.99", "99 of 100", AT_MOST },
		{ "max", "1", "the longest", NO_AIM },
	};

	sql(conn, "CREATE TEMP TABLE lag AS "
		  "SELECT extract(epoch FROM a.finished_at - a.lease_expires_at) * 1000 AS ms "
		  "  FROM ending e JOIN lease.run_attempts a ON a.run_id = e.run_id "
		  " WHERE a.outcome = 'lease_expired' AND a.attempt_no = 1");
	if (sql_number(conn, "SELECT count(*) FROM lag") !=
	    sql_number(conn, "SELECT count(*) FROM ending"))
		die("not every lease that ended was closed as lease_expired");
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		char *ms = sql_text(
			conn, "SELECT percentile_cont(%s) WITHIN GROUP (ORDER BY ms) FROM lag",
			points[i].share);

		figure(detection_name(size, points[i].name), atof(ms), "ms", points[i].aim, 50,
		       detection_what(points[i].what, open));
		free(ms);
	}
	sql(conn, "DROP TABLE ending, lag");
}

/* `leases` of `open` end at random times. */
static void detect(PGconn *conn, const char *conninfo, const char *size, long open, long leases,
		   int spread, struct measured *measured)
{
	double scan;
	char ttl[64];
	int least;

	measured_start(measured, conn, conninfo);
	scan = metric(measured, "lease_reconciler_scan_duration_seconds");
	measured_stop(measured);
	/*
	 * As those of live workers they are listed by a scan before they end. The second scan does so
	 * at the latest; the first looks no further than the interval as it is without stretching.
	 */
	least = 8 + (int)(3 * scan);
	snprintf(ttl, sizeof(ttl), "interval '%d s' + random() * interval '%d s'", least, spread);
	sql(conn,
	    "CREATE TEMP TABLE ending AS "
	    "SELECT md5('ending ' || i)::uuid::text COLLATE \"C\" AS run_id "
	    "  FROM generate_series(1, %ld) i",
	    leases);
	sql(conn, "ANALYZE ending");
	open_leases(conn, "ending", leases, ttl);
	measured_start(measured, conn, conninfo);
	progress("detection: %ld open leases, of which %ld end within %d s", open, leases,
		 least + spread);
	/* they are watched from another table's side, so that watching costs the daemon little */
	sleep((unsigned)(least + spread));
	wait_sql(conn, "SELECT NOT EXISTS (SELECT FROM ending e JOIN lease.run_attempts a "
		       "ON a.run_id = e.run_id WHERE a.finished_at IS NULL)");
	make_figures(conn, size, open);
}

/* Of the last scan, by the daemon's own figures. */
static void make_scan_figures(const struct measured *measured)
{
	double took = metric(measured, "lease_reconciler_scan_duration_seconds");
	double interval = metric(measured, "lease_reconciler_scan_interval_seconds");

	figure("scan_open_leases", metric(measured, "lease_reconciler_open_leases"), "", NO_AIM, 0,
	       "open leases that the daemon scanned for the next three");
	figure("scan_ms", took * 1000, "ms", NO_AIM, 0, "what a scan of them took");
	figure("scan_interval_s", interval, "s", NO_AIM, 0, "time from one scan to the next");
	figure("scan_share", round(took / interval * 1e5) / 1000, "%", AT_MOST, 5,
	       "scanning, of the time: the interval stretches");
}

/* Of no other leases. */
static void detect_alone(long leases, int spread)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);
	struct measured measured;

	detect(conn, conninfo, "1k", leases, leases, spread, &measured);
	measured_stop(&measured);
	drop_database(conn, conninfo);
}

void measure_detection(struct bench *bench)
{
	long leases = bench->quick ? 200 : 1000;
	int spread = bench->quick ? 3 : 8;
	struct measured measured;

	if (!bench->quick)
		detect_alone(leases, spread);
	need_database(bench);
	detect(bench->conn, bench->conninfo, "", bench->open, leases, spread, &measured);
	if (!bench->quick) {
		struct bench *large = need_large(bench);

		measured_stop(&measured);
		detect(large->conn, large->conninfo, "1m", large->open, leases, spread, &measured);
	}
	make_scan_figures(&measured);
	measured_stop(&measured);
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

/* Some scans, so that memory and connection are what they will be; one when it is to be quick. */
static void let_settle(const struct bench *bench)
{
	sleep(bench->quick ? 1 : 6);
}

void measure_idle(struct bench *bench)
{
	char *conninfo = test_database_create();
	PGconn *conn = test_connect(conninfo);
	unsigned seconds = bench->quick ? 3 : 8;
	struct process daemon;
	double wakeups, cpu;

	progress("idle: a database without leases");
	daemon_start(&daemon, conn, conninfo);
	let_settle(bench);
	observe(&daemon, seconds, &wakeups, &cpu);
	figure("rss_anon_kb", (double)proc_number(&daemon, "status", "\nRssAnon:"), "kB", AT_MOST,
	       3000, "the daemon's anonymous memory, no lease open");
	figure("idle_wakeups_per_s", wakeups, "1/s", AT_MOST, 2, "the same: how often it is woken");
	figure("idle_cpu_percent", cpu, "%", AT_MOST, 0.1, "the same: of one processor");
	daemon_stop(&daemon);
	drop_database(conn, conninfo);

	need_database(bench);
	progress("idle: a database whose leases all hold");
	daemon_start(&daemon, bench->conn, bench->conninfo);
	let_settle(bench);
	observe(&daemon, seconds, &wakeups, &cpu);
	figure("watching_rss_anon_kb", (double)proc_number(&daemon, "status", "\nRssAnon:"), "kB",
	       NO_AIM, 0, "the daemon's anonymous memory, all leases open and none ending");
	figure("watching_wakeups_per_s", wakeups, "1/s", NO_AIM, 0,
	       "the same: how often it is woken");
	figure("watching_cpu_percent", cpu, "%", NO_AIM, 0, "the same: of one processor");
	daemon_stop(&daemon);
}
