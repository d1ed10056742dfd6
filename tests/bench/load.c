/*
 * Connections that work on leases: as fast as they can, or paced as workers are.
 *
 * The steps are what they do: renewals by the library, and the bare UPDATEs that renewals are measured
 * against. None of them may fail: a renewal that is refused ends the bench.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

void clients_open(struct client clients[CLIENTS], const char *conninfo,
		  const struct lease_token *tokens, size_t n)
{
	for (size_t i = 0; i < CLIENTS; i++) {
		size_t from = n * i / CLIENTS, to = n * (i + 1) / CLIENTS;

		clients[i] = (struct client){
			.conn = test_connect(conninfo),
			.tokens = tokens + from,
			.n = to - from,
		};
	}
}

void clients_close(struct client clients[CLIENTS])
{
	for (int i = 0; i < CLIENTS; i++) {
		PQfinish(clients[i].conn);
		free(clients[i].latency);
	}
}

void clients_set(struct client clients[CLIENTS], const char *setting)
{
	for (int i = 0; i < CLIENTS; i++)
		sql(clients[i].conn, "SET %s", setting);
}

double clients_server_us(struct client clients[CLIENTS])
{
	double sum = 0;

	for (int i = 0; i < CLIENTS; i++)
		sum += server_us(clients[i].conn);
	return sum;
}

/* -- running ---------------------------------------------------------------------------------- */

static void wait_for_pace(int64_t due)
{
	int64_t ahead = due - clock_us();

	if (ahead > 0)
		nanosleep(&(struct timespec){ ahead / 1000000, ahead % 1000000 * 1000 }, NULL);
}

static void *run_client(void *argument)
{
	struct client *client = argument;
	int64_t began, due, now;
	long rows;

	if (client->start)
		pthread_barrier_wait(client->start);
	began = clock_us();
	due = began + client->offset_us;
	do {
		if (client->pace_us)
			wait_for_pace(due);
		rows = client->step(client);
		client->rows += rows;
		now = clock_us();
		if (client->pace_us && client->calls < LATENCIES_MAX)
			client->latency[client->calls++] = (double)(now - due) / 1000;
		due += client->pace_us;
	} while (rows > 0 && now < client->until && !atomic_load(&client->stop));
	client->seconds = (double)(now - began) / 1e6;
	return NULL;
}

void client_start(struct client *client, long (*step)(struct client *), double seconds)
{
	if (client->pace_us && !client->latency)
		client->latency = calloc(LATENCIES_MAX, sizeof(*client->latency));
	if (client->pace_us && !client->latency)
		die("out of memory");
	client->step = step;
	client->rows = client->calls = 0;
	client->until = clock_us() + (int64_t)(seconds * 1e6);
	atomic_store(&client->stop, false);
	errno = pthread_create(&client->thread, NULL, run_client, client);
	if (errno)
		die("starting a thread: %s", strerror(errno));
}

void client_stop(struct client *client)
{
	atomic_store(&client->stop, true);
	pthread_join(client->thread, NULL);
}

double clients_run(struct client clients[CLIENTS], long (*step)(struct client *), double seconds,
		   long *ret_rows)
{
	pthread_barrier_t start;
	double rate = 0;

	*ret_rows = 0;
	pthread_barrier_init(&start, NULL, CLIENTS);
	for (int i = 0; i < CLIENTS; i++) {
		clients[i].start = &start;
		client_start(&clients[i], step, seconds);
	}
	for (int i = 0; i < CLIENTS; i++) {
		pthread_join(clients[i].thread, NULL);
		clients[i].start = NULL;
		rate += (double)clients[i].rows / clients[i].seconds;
		*ret_rows += clients[i].rows;
	}
	pthread_barrier_destroy(&start);
	return rate;
}

/* -- renewals --------------------------------------------------------------------------------- */

const struct lease_token *next_token(struct client *client)
{
	if (client->next >= client->n)
		client->next = 0;
	return &client->tokens[client->next++];
}

/* As a worker does it. */
long renew_lease(struct client *client)
{
	const struct lease_token *token = next_token(client);
	struct lease_error error;
	int r = lease_renew_lease(client->conn, token, TTL, LEASE_TIMEOUT_DEFAULT, NULL, &error);

	if (r != 0)
		die("renewing %s: %s", token->run_id,
		    r < 0 ? error.message : lease_refusal_name(r));
	return 1;
}

/* A hundred at a time, without a turn over the end of the client's leases. */
static const struct lease_token *next_batch(struct client *client)
{
	const struct lease_token *tokens;

	if (client->next + BATCH > client->n)
		client->next = 0;
	tokens = &client->tokens[client->next];
	client->next += BATCH;
	return tokens;
}

long renew_leases(struct client *client)
{
	const struct lease_token *tokens = next_batch(client);
	struct lease_grant grants[BATCH];
	struct lease_error error;
	int results[BATCH];
	int r = lease_renew_leases(client->conn, tokens, BATCH, TTL, LEASE_TIMEOUT_DEFAULT, grants,
				   results, &error);

	if (r < 0)
		die("renewing many: %s", error.message);
	for (int i = 0; i < BATCH; i++)
		if (results[i] != 0)
			die("renewing %s: %s", tokens[i].run_id, lease_refusal_name(results[i]));
	return BATCH;
}

/* -- what renewals are measured against ------------------------------------------------------- */

void make_floor(PGconn *conn)
{
	sql(conn, "CREATE SCHEMA bench");
	sql(conn,
	    "CREATE TABLE bench.floor (run_id text COLLATE \"C\", attempt_no integer, owner text, "
	    "started_at timestamptz, heartbeat_at timestamptz, lease_expires_at timestamptz, "
	    "deadline_at timestamptz, cancel_requested_at timestamptz, finished_at timestamptz, "
	    "outcome text, error_code text, error_message text, trace_id text, "
	    "PRIMARY KEY (run_id, attempt_no)) WITH (fillfactor = 80)");
	sql(conn,
	    "INSERT INTO bench.floor SELECT * FROM lease.run_attempts WHERE finished_at IS NULL");
	sql(conn, "VACUUM (FREEZE, ANALYZE) bench.floor");
	sql(conn, "CHECKPOINT");
}

static long take_rows(struct client *client, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);
	long rows = atol(PQcmdTuples(result));

	if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
		die("%s", PQerrorMessage(client->conn));
	PQclear(result);
	return rows;
}

long execute(struct client *client, const char *statement, int n, const char *const *values)
{
	return take_rows(client,
			 PQexecParams(client->conn, statement, n, NULL, values, NULL, NULL, 1));
}

static const char floor_statement[] =
	"UPDATE bench.floor SET heartbeat_at = clock_timestamp(), "
	"lease_expires_at = clock_timestamp() + $3::int8 * interval '1 microsecond' "
	"WHERE run_id = $1 AND attempt_no = $2::int4";

static long update_next(struct client *client, bool prepared)
{
	const struct lease_token *token = next_token(client);
	char attempt_no[16];
	const char *values[] = { token->run_id, attempt_no, TTL_TEXT };
	long rows;

	snprintf(attempt_no, sizeof(attempt_no), "%" PRId32, token->attempt_no);
	if (prepared)
		rows = take_rows(client,
				 PQexecPrepared(client->conn, "floor", 3, values, NULL, NULL, 1));
	else
		rows = execute(client, floor_statement, 3, values);
	if (rows != 1)
		die("bench.floor: %s was not updated", token->run_id);
	return 1;
}

long update_one(struct client *client)
{
	if (!client->is_prepared)
		take_rows(client, PQprepare(client->conn, "floor", floor_statement, 0, NULL));
	client->is_prepared = true;
	return update_next(client, true);
}

long update_one_unprepared(struct client *client)
{
	return update_next(client, false);
}

long update_many(struct client *client)
{
	const struct lease_token *tokens = next_batch(client);
	char run_ids[BATCH * (LEASE_ID_MAX + 4)], *end = run_ids;
	const char *values[] = { run_ids, TTL_TEXT };

	for (int i = 0; i < BATCH; i++)
		end += sprintf(end, "%c\"%s\"", i == 0 ? '{' : ',', tokens[i].run_id);
	strcpy(end, "}");
	if (execute(client,
		    "UPDATE bench.floor SET heartbeat_at = clock_timestamp(), "
		    "lease_expires_at = clock_timestamp() + $2::int8 * interval '1 microsecond' "
		    "WHERE run_id = ANY ($1::text[])",
		    2, values) != BATCH)
		die("bench.floor: not all rows of a batch were updated");
	return BATCH;
}
