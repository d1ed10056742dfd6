/*
 * Replays the corpora of the fuzz targets: whatever was found once stays mended.
 *
 * LEASE_FUZZ_RECORD=FOLDER writes seeds for the target `results` there instead, from the answers
 * of the real server.
 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fuzz.h"
#include "scenario.h"
#include "all_verbs.h"

static void replay(const char *name, fuzz_target *target)
{
	char *folder, path[4096];
	struct dirent **files;
	int n, size;

	snprintf(path, sizeof(path), "tests/fuzz/corpus/%s", name);
	folder = test_source(path);
	n = scandir(folder, &files, NULL, alphasort);
	if (n < 0)
		fail_msg("%s cannot be read", folder);
	for (int i = 0; i < n; i++) {
		static uint8_t bytes[1 << 20];
		FILE *file;

		snprintf(path, sizeof(path), "%s/%s", folder, files[i]->d_name);
		if (files[i]->d_name[0] != '.') {
			file = fopen(path, "r");
			assert_non_null(file);
			size = (int)fread(bytes, 1, sizeof(bytes), file);
			fclose(file);
			target(bytes, (size_t)size);
		}
		free(files[i]);
	}
	free(files);
	assert_true(n > 2 + 10);
	free(folder);
}

static void the_corpus_of_configurations(void **state)
{
	(void)state;
	replay("config", fuzz_config);
}

static void the_corpus_of_answers(void **state)
{
	(void)state;
	replay("results", fuzz_results);
}

static void the_corpus_of_command_lines(void **state)
{
	(void)state;
	replay("arguments", fuzz_arguments);
}

static void the_corpus_of_texts(void **state)
{
	(void)state;
	replay("text", fuzz_text);
}

/* -- recording ----------------------------------------------------------------------------------- */

struct relay {
	int listener;
	char server[108];
	pthread_t thread;
	FILE *volatile record; /* where the server's messages go; NULL: nowhere */
};

static bool read_all(int fd, void *to, size_t size)
{
	return recv(fd, to, size, MSG_WAITALL) == (ssize_t)size;
}

/* One message of the server: on to the client, and into the record as results.c wants it. */
static bool pass_message(struct relay *relay, int server, int client)
{
	static uint8_t body[1 << 16];
	uint8_t head[5];
	size_t size;

	if (!read_all(server, head, sizeof(head)))
		return false;
	size = ((size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4]) - 4;
	if (size > sizeof(body) || !read_all(server, body, size))
		return false;
	if (relay->record) {
		putc(head[0], relay->record);
		putc((int)(size >> 8), relay->record);
		putc((int)(size & 255), relay->record);
		fwrite(body, 1, size, relay->record);
	}
	return send(client, head, 5, 0) == 5 && send(client, body, size, 0) == (ssize_t)size;
}

static void *relay_on(void *arg)
{
	struct relay *relay = arg;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int client = accept(relay->listener, NULL, NULL);
	int server = socket(AF_UNIX, SOCK_STREAM, 0);

	memcpy(address.sun_path, relay->server, sizeof(address.sun_path));
	if (connect(server, (struct sockaddr *)&address, sizeof(address)) == 0)
		for (;;) {
			struct pollfd ready[] = { { .fd = client, .events = POLLIN },
						  { .fd = server, .events = POLLIN } };
			char buffer[65536];
			ssize_t n;

			poll(ready, 2, -1);
			if (ready[0].revents) {
				n = recv(client, buffer, sizeof(buffer), 0);
				if (n <= 0 || send(server, buffer, (size_t)n, 0) != n)
					break;
				if (relay->record) /* the next answers come late */
					fwrite("\2\0\0", 1, 3, relay->record);
			}
			if (ready[1].revents && !pass_message(relay, server, client))
				break;
		}
	close(client);
	close(server);
	return NULL;
}

static void record_answers(void **state)
{
	struct scenario *s = *state;
	const char *folder = getenv("LEASE_FUZZ_RECORD");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct relay relay = { .listener = socket(AF_UNIX, SOCK_STREAM, 0) };
	struct lease_error error;
	char *place, path[4096];
	PGconn *conn;

	snprintf(relay.server, sizeof(relay.server), "%s/.s.PGSQL.%s", PQhost(s->admin),
		 PQport(s->admin));
	place = test_tmpdir();
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/.s.PGSQL.5432", place);
	assert_int_equal(bind(relay.listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(relay.listener, 1), 0);
	assert_int_equal(pthread_create(&relay.thread, NULL, relay_on, &relay), 0);
	snprintf(path, sizeof(path), "host=%s port=5432 user=%s dbname=%s sslmode=disable", place,
		 PQuser(s->admin), PQdb(s->admin));
	conn = PQconnectdb(path);
	assert_int_equal(PQstatus(conn), CONNECTION_OK);
	for (int i = 0; all_verbs[i].name; i++) {
		FILE *file;
		int r;

		if (strcmp(all_verbs[i].name, "reconcile") == 0)
			end_lease(s, "run");
		snprintf(path, sizeof(path), "%s/real-%s", folder, all_verbs[i].name);
		file = fopen(path, "w");
		assert_non_null(file);
		fprintf(file, "%c%c", i, 0);
		relay.record = file;
		r = all_verbs[i].call(conn, 0, &error);
		relay.record = NULL;
		fclose(file);
		print_message("%s: %s\n", all_verbs[i].name,
			      r < 0 ? error.message
			      : r   ? lease_refusal_name(r)
				    : "done");
	}
	PQfinish(conn);
	pthread_join(relay.thread, NULL);
	close(relay.listener);
}

int main(void)
{
	const struct CMUnitTest recording[] = { store_test(record_answers) };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_corpus_of_configurations),
		cmocka_unit_test(the_corpus_of_answers),
		cmocka_unit_test(the_corpus_of_command_lines),
		cmocka_unit_test(the_corpus_of_texts),
	};

	if (getenv("LEASE_FUZZ_RECORD"))
		return cmocka_run_group_tests(recording, NULL, scenario_end);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
