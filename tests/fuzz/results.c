/*
 * Any bytes as a server's answers to any function of the library that asks one.
 *
 * The input: which function, how the connection is to be treated, then messages: a type, a length
 * in two bytes, a body. The server sends them with a right length, as they stand in the input; but
 *	0x01  the body as it is, no message around it (truncated, nonsense)
 *	0x02  waits until the client has asked something (late answers; all else comes early)
 *	0x03  the type in the body's first byte, with a length of a gigabyte and no more (huge)
 * and at the end closes its side.
 *
 * Nothing hangs; the answer is 0, a refusal that there is, or an error with its line of text; and
 * a connection that is said to be good after it is idle.
 *
 * LEASE_FUZZ_RECORD=FOLDER makes the corpus instead: test_corpora.c.
 */
#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "fuzz.h"
#include "all_verbs.h"

enum { RAW = 1, WAIT = 2, HUGE_ONE = 3 };

struct server {
	int listener;
	char folder[64];
	char conninfo[256];
};

/* what a server says before it is ready */
static const char greeting[] = "R\0\0\0\x08\0\0\0\0"
			       "S\0\0\0\x19"
			       "client_encoding\0UTF8\0"
			       "S\0\0\0\x18"
			       "server_version\0"
			       "15.0\0"
			       "K\0\0\0\x0c\0\0\0\1\0\0\0\1"
			       "Z\0\0\0\5I";

static struct server server = { .listener = -1 };

static void close_server(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/.s.PGSQL.5432", server.folder);
	unlink(path);
	rmdir(server.folder);
}

static void open_server(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	signal(SIGPIPE, SIG_IGN);
	snprintf(server.folder, sizeof(server.folder), "/tmp/lease-fuzz-XXXXXX");
	must(mkdtemp(server.folder));
	atexit(close_server);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/.s.PGSQL.5432", server.folder);
	server.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(bind(server.listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	must(listen(server.listener, 8) == 0);
	snprintf(server.conninfo, sizeof(server.conninfo),
		 "host=%s port=5432 user=u dbname=d sslmode=disable gssencmode=disable",
		 server.folder);
}

static void send_all(int fd, const void *bytes, size_t size)
{
	const char *next = bytes;

	while (size > 0) {
		ssize_t n = send(fd, next, size, MSG_NOSIGNAL);

		if (n <= 0)
			return; /* the client left */
		next += n;
		size -= (size_t)n;
	}
}

/* Takes in what the client asked; after some milliseconds without a question it goes on. */
static void await_question(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	char buffer[65536];

	if (poll(&ready, 1, 5) > 0)
		while (recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) == (ssize_t)sizeof(buffer))
			;
}

struct script {
	int fd;
	const uint8_t *data;
	size_t size;
};

static void send_message(int fd, uint8_t type, const uint8_t *body, size_t length)
{
	uint32_t size = (uint32_t)(type == HUGE_ONE ? 1 << 30 : length + 4);
	uint8_t head[5] = { type == HUGE_ONE ? (length > 0 ? body[0] : 'D') : type,
			    (uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8),
			    (uint8_t)size };

	if (type == WAIT) {
		await_question(fd);
		return;
	}
	if (type != RAW)
		send_all(fd, head, sizeof(head));
	send_all(fd, body, length);
}

static void *play(void *arg)
{
	const struct script *script = arg;
	const uint8_t *next = script->data, *end = script->data + script->size;

	while (end - next >= 3) {
		size_t length = (size_t)(next[1] << 8 | next[2]);

		if (length > (size_t)(end - next - 3))
			length = (size_t)(end - next - 3);
		send_message(script->fd, next[0], next + 3, length);
		next += 3 + length;
	}
	shutdown(script->fd, SHUT_WR);
	/* so that the client's questions find room, until it leaves */
	for (char buffer[65536]; recv(script->fd, buffer, sizeof(buffer), 0) > 0;)
		;
	return NULL;
}

/* A client that is through the greeting, and the server's end of its connection. */
static PGconn *connect_client(int *ret_fd)
{
	PGconn *conn = PQconnectStart(server.conninfo);
	char startup[4096];

	must(conn && PQstatus(conn) != CONNECTION_BAD);
	*ret_fd = accept(server.listener, NULL, NULL);
	must(*ret_fd >= 0);
	send_all(*ret_fd, greeting, sizeof(greeting) - 1);
	for (int i = 0; PQconnectPoll(conn) != PGRES_POLLING_OK; i++)
		must(i < 100 && PQstatus(conn) != CONNECTION_BAD);
	must(recv(*ret_fd, startup, sizeof(startup), 0) > 0);
	return conn;
}

static void drop_notice(void *arg, const PGresult *result)
{
	(void)arg;
	(void)result;
}

static void check_answer(PGconn *conn, const char *name, int r, const struct lease_error *error)
{
	if (r > 0)
		must(strcmp(lease_refusal_name(r), "?") != 0);
	if (r < 0) {
		must(error->code == r && error->message[0]);
		must(strcmp(lease_errno_name(r), "?") != 0);
		must(strpbrk(error->message, "\r\n") == NULL);
	}
	if (PQstatus(conn) == CONNECTION_OK && r != LEASE_E_TIMEOUT &&
	    PQpipelineStatus(conn) != PQ_PIPELINE_OFF && r >= 0) {
		fprintf(stderr, "%s: %d, and the connection is not idle\n", name, r);
		abort();
	}
}

int fuzz_results(const uint8_t *data, size_t size)
{
	struct script script = { 0 };
	struct lease_error error = { 0 };
	size_t n = 0;
	pthread_t thread;
	PGconn *conn;
	int r;

	if (size < 2)
		return 0;
	if (server.listener < 0)
		open_server();
	do
		n++;
	while (all_verbs[n].name);
	conn = connect_client(&script.fd);
	PQsetNoticeReceiver(conn, drop_notice, NULL);
	PQsetnonblocking(conn, data[1] & 1);
	script.data = data + 2;
	script.size = size - 2;
	must(pthread_create(&thread, NULL, play, &script) == 0);
	r = all_verbs[data[0] % n].call(conn, 2 * LEASE_SECOND, &error);
	check_answer(conn, all_verbs[data[0] % n].name, r, &error);
	PQfinish(conn);
	pthread_join(thread, NULL);
	close(script.fd);
	return 0;
}
