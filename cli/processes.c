/*
 * processes.c - finding and signalling descendants: see processes.h.
 */
#include "processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "output.h"

/* Rounds of SIGSTOP or SIGKILL; a program that forks for ever is met again by the next call. */
#define ROUNDS_MAX 20

struct entry {
	pid_t pid, parent, group;
	unsigned long long started; /* clock ticks since boot: with pid, who it is */
	char state;
	bool descends;
};

struct list {
	struct entry *entries; /* by pid */
	size_t n, size;
};

/* proc(5), /proc/pid/stat: the name stands in parentheses and may hold any character. */
static bool read_entry(const char *name, struct entry *ret)
{
	char path[64], text[1024];
	const char *rest;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	rest = strrchr(text, ')');
	*ret = (struct entry){ .pid = (pid_t)atoi(text) };
	return rest && sscanf(rest + 1,
			      " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			      "%*d %*d %llu",
			      &ret->state, &ret->parent, &ret->group, &ret->started) == 4;
}

static int by_pid(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return (x->pid > y->pid) - (x->pid < y->pid);
}

static const struct entry *find(const struct list *list, pid_t pid)
{
	struct entry key = { .pid = pid };

	return list->n ? bsearch(&key, list->entries, list->n, sizeof(key), by_pid) : NULL;
}

static void read_list(struct list *list)
{
	DIR *directory = opendir("/proc");
	struct dirent *file;

	list->n = 0;
	while (directory && (file = readdir(directory))) {
		if (file->d_name[0] < '0' || file->d_name[0] > '9')
			continue;
		if (list->n == list->size) {
			list->size = list->size ? 2 * list->size : 256;
			list->entries = xreallocarray(list->entries, list->size,
						      sizeof(*list->entries));
		}
		if (read_entry(file->d_name, &list->entries[list->n]))
			list->n++;
	}
	if (directory)
		closedir(directory);
	if (list->n)
		qsort(list->entries, list->n, sizeof(*list->entries), by_pid);
}

static bool is_spared(pid_t pid, const pid_t *spared, size_t n_spared)
{
	for (size_t i = 0; i < n_spared; i++)
		if (spared[i] == pid)
			return true;
	return false;
}

static void mark_descendants(struct list *list, const pid_t *spared, size_t n_spared)
{
	pid_t self = getpid();
	bool more = true;

	while (more) {
		more = false;
		for (size_t i = 0; i < list->n; i++) {
			struct entry *entry = &list->entries[i];
			const struct entry *parent = find(list, entry->parent);

			if (entry->descends || is_spared(entry->pid, spared, n_spared) ||
			    !(entry->parent == self || (parent && parent->descends)))
				continue;
			entry->descends = more = true;
		}
	}
}

/* A descriptor stays with the process that it was opened for: looked at again, it is the right one. */
static void signal_entry(const struct entry *entry, int signal_number)
{
	int fd = (int)syscall(SYS_pidfd_open, entry->pid, 0);
	struct entry again;
	char name[24];

	snprintf(name, sizeof(name), "%d", entry->pid);
	if (fd < 0) { /* it has ended, or a kernel or a container does not know these calls */
		if (errno != ESRCH && read_entry(name, &again) && again.started == entry->started)
			kill(entry->pid, signal_number);
		return;
	}
	if (read_entry(name, &again) && again.started == entry->started)
		syscall(SYS_pidfd_send_signal, fd, signal_number, NULL, 0);
	close(fd);
}

/* Whether a round that has been made before reached this process already. */
static bool was_signalled(const struct list *before, const struct entry *entry)
{
	const struct entry *earlier = find(before, entry->pid);

	return earlier && earlier->descends && earlier->started == entry->started;
}

void processes_signal(int signal_number, pid_t group, const pid_t *spared, size_t n_spared)
{
	bool repeats = signal_number == SIGSTOP || signal_number == SIGKILL;
	struct list before = { 0 }, now = { 0 };
	bool more = true;

	for (int round = 0; more && round < ROUNDS_MAX; round++) {
		struct list swap = before;

		read_list(&now);
		mark_descendants(&now, spared, n_spared);
		/* what lost its parent while the first list was read is found in the second */
		more = repeats && round == 0;
		for (size_t i = 0; i < now.n; i++) {
			const struct entry *entry = &now.entries[i];

			if (!entry->descends || entry->state == 'Z' || entry->state == 'X' ||
			    (group && entry->group == group) || was_signalled(&before, entry))
				continue;
			signal_entry(entry, signal_number);
			more = repeats;
		}
		before = now;
		now = swap;
	}
	free(before.entries);
	free(now.entries);
}

bool process_is_stopped(pid_t pid)
{
	struct entry entry;
	char name[24];

	snprintf(name, sizeof(name), "%d", pid);
	return !read_entry(name, &entry) || strchr("TZX", entry.state);
}
