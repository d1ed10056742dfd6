/*
 * See cluster.h. All of the work is done by tests/cluster.sh; it must never be given a folder that
 * this program did not make.
 */
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cluster.h"
#include "harness.h"

/* So many characters at the end of what it wrote: cmocka cuts longer messages. */
enum { SHOWN = 600, COMMAND_MS = 120000 };

void cluster_shell(const struct cluster *cluster, const char *line)
{
	char *script = test_source("tests/cluster.sh");
	struct process process;

	process_start(
		&process,
		((char *[]){ "bash", "-c", (char *)line, "bash", script, (char *)cluster->folder,
			     NULL }),
		((char *[]){ cluster->fsync ? "LEASE_CLUSTER_FSYNC=on" : "LEASE_CLUSTER_FSYNC=off",
			     NULL }));
	if (process_wait(&process, COMMAND_MS) != 0) {
		const char *errors = process_errors(&process);
		size_t length = strlen(errors);

		fail_msg("%s: %s", line, length > SHOWN ? errors + length - SHOWN : errors);
	}
	free(script);
}

void cluster_start(const struct cluster *cluster)
{
	cluster_shell(cluster, "exec \"$1\" start \"$2\"");
}

void cluster_stop(const struct cluster *cluster, const char *mode)
{
	char line[64];

	snprintf(line, sizeof(line), "exec \"$1\" stop \"$2\" %s", mode);
	cluster_shell(cluster, line);
}

void cluster_standby(const struct cluster *standby, const struct cluster *primary)
{
	char line[128];

	snprintf(line, sizeof(line), "exec \"$1\" standby \"$2\" %s", primary->folder);
	cluster_shell(standby, line);
}

void cluster_promote(const struct cluster *standby)
{
	cluster_shell(standby, "exec \"$1\" promote \"$2\"");
}

pid_t cluster_postmaster(const struct cluster *cluster)
{
	char path[128];
	int pid = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/data/postmaster.pid", cluster->folder);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%d", &pid) != 1)
		pid = 0;
	fclose(file);
	return pid;
}

/* The postmaster first: once stopped, it makes no further children. */
bool cluster_signal(const struct cluster *cluster, int number)
{
	pid_t postmaster = cluster_postmaster(cluster);
	const struct dirent *entry;
	DIR *processes;

	if (postmaster <= 1 || kill(postmaster, number) < 0)
		return false;
	processes = opendir("/proc");
	if (!processes)
		fail_msg("there is no /proc");
	while ((entry = readdir(processes)) != NULL) {
		pid_t pid = (pid_t)atoi(entry->d_name);

		if (pid > 1 && process_parent(pid) == postmaster)
			kill(pid, number);
	}
	closedir(processes);
	return true;
}

void cluster_prepare(struct cluster *cluster)
{
	char *script = test_source("tests/cluster.sh"), *command;

	*cluster = (struct cluster){ .folder = "/tmp/lease-own-XXXXXX" };
	if (!mkdtemp(cluster->folder))
		fail_msg("mkdtemp failed");
	chmod(cluster->folder, 0711);
	if (asprintf(&command,
		     "exec setsid bash -c 'cat >/dev/null; \"$1\" stop \"$2\" immediate;"
		     " rm -rf \"$2\"' bash '%s' '%s' >/dev/null 2>&1",
		     script, cluster->folder) < 0)
		abort();
	cluster->guard = popen(command, "we");
	if (!cluster->guard)
		fail_msg("no guard for %s", cluster->folder);
	free(command);
	free(script);
}

void cluster_remove(struct cluster *cluster)
{
	if (cluster->guard)
		pclose(cluster->guard);
	cluster->guard = NULL;
}

void cluster_use(const struct cluster *cluster)
{
	setenv("PGHOST", cluster->folder, 1);
	setenv("PGPORT", "5432", 1);
	setenv("PGUSER", "postgres", 1);
}
