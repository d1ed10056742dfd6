/*
 * How long rows stay locked, by one means for every peer.
 *
 * A transaction gets an id with its first row lock or write, and gives it up at its end, when its
 * locks go; until then pg_locks shows that it holds the id. So a connection that looks every
 * two milliseconds sees every transaction that is longer than that, from its first lock to its end,
 * and neither waits for a row nor touches one. Counted is from the look before the first that showed
 * it to the one that did not: never less than the truth, and more by two looks at most.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "peers.h"

enum { PACE_NS = 2000000, HELD_MAX = 64 };

static const char look[] =
	"SELECT transactionid::text FROM pg_locks "
	"WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted";

struct held {
	char id[16];
	int64_t since;
	bool seen;
};

struct watch {
	PGconn *conn;
	pthread_t thread;
	atomic_bool stop;
	struct held held[HELD_MAX];
	int n;
	int64_t looked; /* when the last look began */
	int64_t longest, gap;
};

static void see(struct watch *watch, const char *id)
{
	for (int i = 0; i < watch->n; i++)
		if (strcmp(watch->held[i].id, id) == 0) {
			watch->held[i].seen = true;
			return;
		}
	if (watch->n == HELD_MAX)
		die("more transactions at once than there are peers");
	watch->held[watch->n] = (struct held){ .since = watch->looked, .seen = true };
	strncpy(watch->held[watch->n++].id, id, sizeof(watch->held[0].id) - 1);
}

/* Those that were not seen this time have ended. */
static void forget_ended(struct watch *watch, int64_t now)
{
	int left = 0;

	for (int i = 0; i < watch->n; i++) {
		struct held *held = &watch->held[i];

		if (now - held->since > watch->longest)
			watch->longest = now - held->since;
		if (held->seen) {
			held->seen = false;
			watch->held[left++] = *held;
		}
	}
	watch->n = left;
}

static void look_once(struct watch *watch)
{
	int64_t began = clock_us();
	PGresult *result = PQexecPrepared(watch->conn, "look", 0, NULL, NULL, NULL, 0);

	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		die("the watch: %s", PQerrorMessage(watch->conn));
	for (int i = 0; i < PQntuples(result); i++)
		see(watch, PQgetvalue(result, i, 0));
	PQclear(result);
	forget_ended(watch, clock_us());
	if (began - watch->looked > watch->gap)
		watch->gap = began - watch->looked;
	watch->looked = began;
}

static void *run_watch(void *argument)
{
	struct watch *watch = argument;

	while (!atomic_load(&watch->stop)) {
		look_once(watch);
		nanosleep(&(struct timespec){ 0, PACE_NS }, NULL);
	}
	return NULL;
}

struct watch *watch_start(PGconn *conn)
{
	struct watch *watch = calloc(1, sizeof(*watch));

	if (!watch)
		die("out of memory");
	watch->conn = conn;
	PQclear(PQprepare(watch->conn, "look", look, 0, NULL));
	watch->looked = clock_us();
	errno = pthread_create(&watch->thread, NULL, run_watch, watch);
	if (errno)
		die("starting a thread: %s", strerror(errno));
	return watch;
}

int64_t watch_stop(struct watch *watch, int64_t *ret_gap)
{
	int64_t longest;

	atomic_store(&watch->stop, true);
	pthread_join(watch->thread, NULL);
	longest = watch->longest;
	*ret_gap = watch->gap;
	sql(watch->conn, "DEALLOCATE look");
	free(watch);
	return longest;
}
