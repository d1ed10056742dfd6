/*
 * This project's side of the comparison: the library's sweep on a connection, and the daemon as it
 * is installed.
 */
#include <poll.h>
#include <stdlib.h>

#include "peers.h"

char *make_leases(const struct peer *peer, long rows)
{
	struct bench own = { .open = rows, .history = rows };

	(void)peer;
	need_database(&own);
	open_leases(own.conn, "lost", rows, "interval '-1 s'");
	PQfinish(own.conn);
	return own.conninfo;
}

double rescue_by_sweep(const struct peer *peer, const char *conninfo)
{
	PGconn *conn = test_connect(conninfo);
	struct lease_sweep_options options;
	struct lease_sweep_figures figures;
	struct lease_error error;
	int64_t began;

	(void)peer;
	sweep_options(&options);
	rescue_begins();
	began = clock_us();
	if (lease_reconcile_expired_leases(conn, &options, NULL, &figures, &error) != 0)
		die("the sweep: %s", error.message);
	began = clock_us() - began;
	PQfinish(conn);
	return (double)began / 1e6;
}

/* A sweep goes by run_id: the last one is asked for, which costs little, and then all of them. */
static void wait_until_closed(const struct peer *peer, PGconn *conn)
{
	char *last = sql_text(conn, "SELECT max(run_id) FROM lease.run_attempts "
				    "WHERE finished_at IS NULL AND lease_expires_at <= now()");

	while (sql_number(conn,
			  "SELECT count(*) FROM lease.run_attempts "
			  "WHERE run_id = '%s' AND finished_at IS NULL",
			  last) > 0)
		poll(NULL, 0, 20);
	while (sql_number(conn, "%s", peer->left) > 0)
		poll(NULL, 0, 20);
	free(last);
}

/* From the start of the process: connecting, its checks and the scan are in it, too. */
double rescue_by_daemon(const struct peer *peer, const char *conninfo)
{
	PGconn *conn = test_connect(conninfo);
	struct process daemon;
	int64_t began;

	sql(conn, "SET pg_stat_statements.track = none");
	rescue_begins();
	began = clock_us();
	daemon_start(&daemon, conn, conninfo);
	wait_until_closed(peer, conn);
	began = clock_us() - began;
	daemon_stop(&daemon);
	PQfinish(conn);
	return (double)began / 1e6;
}
