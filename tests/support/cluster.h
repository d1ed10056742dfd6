/*
 * A PostgreSQL cluster of a test program's own, which it may stop, kill and start again.
 *
 * It promises that nothing of it is left when the program ends, even by SIGKILL: a guard process
 * stops the server and removes the folder then. A step that does not work fails the test.
 */
#ifndef LEASE_TEST_CLUSTER_H
#define LEASE_TEST_CLUSTER_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct cluster {
	char folder[64]; /* its socket is in there, too: host= */
	FILE *guard; /* the cluster is stopped and removed when this closes, however that happens */
	bool fsync; /* set it before the first start, to survive a loss of power; false at first */
};

/* A folder for it. */
void cluster_prepare(struct cluster *cluster);
void cluster_remove(struct cluster *cluster);

void cluster_start(const struct cluster *cluster);
/* `mode` is fast or immediate. */
void cluster_stop(const struct cluster *cluster, const char *mode);

/*
 * A copy of `primary` that follows it, asynchronously as long as the primary names nobody in its
 * synchronous_standby_names. Prepared, and not started before.
 */
void cluster_standby(const struct cluster *standby, const struct cluster *primary);
/* It can be written to when this returns. */
void cluster_promote(const struct cluster *standby);

/* To all of its processes, to freeze it or let it go on. False: it does not run. */
bool cluster_signal(const struct cluster *cluster, int number);
/* The pid of its first process, whose children all others are; 0: it does not run. */
pid_t cluster_postmaster(const struct cluster *cluster);

/* Runs a line of bash with $1 = cluster.sh and $2 = the cluster's folder; it must end with 0. */
void cluster_shell(const struct cluster *cluster, const char *line);

/* The harness's databases are made in this cluster from now on. */
void cluster_use(const struct cluster *cluster);

#endif
