/*
 * See proxy.h. One thread, one poll loop; the main thread changes the routes' faults under a lock
 * and wakes it. It must never block on a connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sysexits.h>
#include <unistd.h>

#include "harness.h"
#include "proxy.h"

enum { CONNECTIONS = 96, BUFFER = 32768, PIECE = 48, PIECE_MS = 2 };

/* One direction of a connection: what was read and is to be written. */
struct flow {
	char buffer[BUFFER];
	size_t length;
	long long release_at; /* not written before */
	bool ended; /* the reading side has closed */
};

struct connection {
	int route; /* -1: free */
	int client, server;
	struct flow flows[2]; /* by enum proxy_direction */
	bool answered; /* the last bytes came from the server: the next are a new batch */
	int lose_batch; /* batches until answers vanish; 0: they do not */
	bool losing;
	int lose_ms;
	long long cut_at; /* 0: not */
};

struct route {
	int listener, port;
	int delay_ms;
	long long delay_until, trickle_until, silent_until[2];
	bool cut_after[2]; /* a silence ends with a cut */
	int lose_batch, lose_ms; /* for its connections, taken over by the thread */
};

struct torture_proxy {
	pthread_t thread;
	pthread_mutex_t lock;
	int wake[2];
	bool stop;
	struct sockaddr_un server;
	socklen_t server_length;
	int n_routes;
	struct route *routes;
	struct connection *connections;
};

static void give_up(const char *what)
{
	fprintf(stderr, "torture: proxy: %s: %s\n", what, strerror(errno));
	exit(EX_OSERR);
}

/* -- connections -------------------------------------------------------------------------------- */

static void close_connection(struct connection *c, bool reset)
{
	struct linger at_once = { .l_onoff = 1, .l_linger = 0 };

	if (reset)
		setsockopt(c->client, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
	close(c->client);
	close(c->server);
	c->route = -1;
}

static int connect_server(const struct torture_proxy *proxy)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	/* EAGAIN: its queue is full, which the client may take as a refusal */
	if (fd >= 0 &&
	    connect(fd, (const struct sockaddr *)&proxy->server, proxy->server_length) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

static void take_connection(struct torture_proxy *proxy, int route)
{
	struct connection *c = proxy->connections;
	int client = accept4(proxy->routes[route].listener, NULL, NULL,
			     SOCK_CLOEXEC | SOCK_NONBLOCK);
	int server = client < 0 ? -1 : connect_server(proxy);

	while (c < proxy->connections + CONNECTIONS && c->route >= 0)
		c++;
	if (server < 0 || c == proxy->connections + CONNECTIONS) {
		if (server >= 0)
			close(server);
		if (client >= 0)
			close(client);
		return;
	}
	memset(c, 0, sizeof(*c));
	c->route = route;
	c->client = client;
	c->server = server;
}

static bool is_silent(const struct route *route, int direction, long long now)
{
	return route->silent_until[direction] > now;
}

/* Counts the client's batches; from the chosen one on the answers vanish. */
static void count_batch(struct connection *c, int direction)
{
	if (direction == PROXY_TO_CLIENT) {
		c->answered = true;
		return;
	}
	if (c->answered && c->lose_batch > 0 && --c->lose_batch == 0)
		c->losing = true;
	c->answered = false;
}

/* False: the connection is over. */
static bool read_flow(const struct route *route, struct connection *c, int direction, long long now)
{
	struct flow *flow = &c->flows[direction];
	ssize_t n = read(direction == PROXY_TO_SERVER ? c->client : c->server, flow->buffer,
			 sizeof(flow->buffer));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0) {
		flow->ended = true;
		return true;
	}
	count_batch(c, direction);
	if (direction == PROXY_TO_CLIENT && c->losing) {
		if (!c->cut_at)
			c->cut_at = now + c->lose_ms;
		return true;
	}
	flow->length = (size_t)n;
	flow->release_at = route->delay_until > now ? now + route->delay_ms : now;
	return true;
}

static bool write_flow(const struct route *route, struct connection *c, int direction,
		       long long now)
{
	struct flow *flow = &c->flows[direction];
	bool trickles = direction == PROXY_TO_SERVER && route->trickle_until > now;
	size_t length = trickles && flow->length > PIECE ? PIECE : flow->length;
	ssize_t n = send(direction == PROXY_TO_SERVER ? c->server : c->client, flow->buffer, length,
			 MSG_NOSIGNAL);

	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	flow->length -= (size_t)n;
	memmove(flow->buffer, flow->buffer + n, flow->length);
	if (trickles)
		flow->release_at = now + PIECE_MS;
	return true;
}

/* What is to be waited for, and until when at the latest. */
static void plan_connection(const struct torture_proxy *proxy, const struct connection *c,
			    struct pollfd fds[2], long long now, long long *wake_at)
{
	const struct route *route = &proxy->routes[c->route];

	fds[0] = (struct pollfd){ .fd = c->client };
	fds[1] = (struct pollfd){ .fd = c->server };
	for (int direction = 0; direction < 2; direction++) {
		const struct flow *flow = &c->flows[direction];
		long long at = 0;

		if (flow->length == 0 && !flow->ended) {
			fds[direction].events |= POLLIN;
			continue;
		}
		if (is_silent(route, direction, now))
			at = route->silent_until[direction];
		else if (flow->release_at > now)
			at = flow->release_at;
		else if (flow->length > 0)
			fds[!direction].events |= POLLOUT;
		if (at && at < *wake_at)
			*wake_at = at;
	}
	if (c->cut_at && c->cut_at < *wake_at)
		*wake_at = c->cut_at;
	/* nothing to wait for on a side whose end came: poll would report it without pause */
	for (int side = 0; side < 2; side++)
		if (!fds[side].events)
			fds[side].fd = -1;
}

static void serve_connection(const struct torture_proxy *proxy, struct connection *c,
			     const struct pollfd fds[2], long long now)
{
	const struct route *route = &proxy->routes[c->route];
	bool alive = !(c->cut_at && c->cut_at <= now);

	for (int direction = 0; direction < 2 && alive; direction++) {
		struct flow *flow = &c->flows[direction];
		bool held = is_silent(route, direction, now) || flow->release_at > now;

		if (flow->length == 0 && !flow->ended && (fds[direction].revents & ~POLLOUT))
			alive = read_flow(route, c, direction, now);
		else if (flow->length > 0 && !held && (fds[!direction].revents & ~POLLIN))
			alive = write_flow(route, c, direction, now);
		if (flow->ended && flow->length == 0 && !is_silent(route, direction, now))
			alive = false;
	}
	if (!alive)
		close_connection(c, false);
}

/* Silences that are over and end with a cut; faults for connections that are there. */
static void see_to_routes(struct torture_proxy *proxy, long long now)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		struct connection *c = &proxy->connections[i];
		struct route *route = c->route < 0 ? NULL : &proxy->routes[c->route];

		if (route && route->lose_batch) {
			c->lose_batch = route->lose_batch;
			c->lose_ms = route->lose_ms;
		}
		for (int d = 0; route && d < 2 && c->route >= 0; d++)
			if (route->cut_after[d] && !is_silent(route, d, now))
				close_connection(c, true);
	}
	for (int i = 0; i < proxy->n_routes; i++) {
		proxy->routes[i].lose_batch = 0;
		for (int d = 0; d < 2; d++)
			if (!is_silent(&proxy->routes[i], d, now))
				proxy->routes[i].cut_after[d] = false;
	}
}

/* -- the thread --------------------------------------------------------------------------------- */

static void serve(struct torture_proxy *proxy, struct pollfd *fds)
{
	long long now = test_now_ms(), wake_at = now + 1000;
	nfds_t n = 1 + (nfds_t)proxy->n_routes;

	fds[0] = (struct pollfd){ .fd = proxy->wake[0], .events = POLLIN };
	for (int i = 0; i < proxy->n_routes; i++) {
		fds[1 + i] = (struct pollfd){ .fd = proxy->routes[i].listener, .events = POLLIN };
		for (int d = 0; d < 2; d++)
			if (proxy->routes[i].silent_until[d] > now &&
			    proxy->routes[i].silent_until[d] < wake_at)
				wake_at = proxy->routes[i].silent_until[d];
	}
	for (int i = 0; i < CONNECTIONS; i++, n += 2) {
		fds[n] = fds[n + 1] = (struct pollfd){ .fd = -1 };
		if (proxy->connections[i].route >= 0)
			plan_connection(proxy, &proxy->connections[i], &fds[n], now, &wake_at);
	}
	pthread_mutex_unlock(&proxy->lock);
	poll(fds, n, wake_at > now ? (int)(wake_at - now) : 0);
	pthread_mutex_lock(&proxy->lock);
	now = test_now_ms();
	/* what was asked for before the data came holds for the data */
	see_to_routes(proxy, now);
	n = 1 + (nfds_t)proxy->n_routes;
	for (int i = 0; i < CONNECTIONS; i++, n += 2)
		if (proxy->connections[i].route >= 0)
			serve_connection(proxy, &proxy->connections[i], &fds[n], now);
	for (int i = 0; i < proxy->n_routes; i++)
		if (fds[1 + i].revents)
			take_connection(proxy, i);
}

static void *run_proxy(void *argument)
{
	struct torture_proxy *proxy = argument;
	struct pollfd *fds = calloc(1 + (size_t)proxy->n_routes + 2 * (size_t)CONNECTIONS,
				    sizeof(*fds));
	char drained[64];

	if (!fds)
		give_up("memory");
	pthread_mutex_lock(&proxy->lock);
	while (!proxy->stop) {
		serve(proxy, fds);
		while (read(proxy->wake[0], drained, sizeof(drained)) > 0)
			;
	}
	for (int i = 0; i < CONNECTIONS; i++)
		if (proxy->connections[i].route >= 0)
			close_connection(&proxy->connections[i], false);
	pthread_mutex_unlock(&proxy->lock);
	free(fds);
	return NULL;
}

static void open_route(struct route *route)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);

	route->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (route->listener < 0 ||
	    bind(route->listener, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(route->listener, 16) < 0 ||
	    getsockname(route->listener, (struct sockaddr *)&address, &length) < 0)
		give_up("listening");
	route->port = ntohs(address.sin_port);
}

struct torture_proxy *torture_proxy_start(const char *server, int routes)
{
	struct torture_proxy *proxy = calloc(1, sizeof(*proxy));

	if (!proxy || !(proxy->routes = calloc((size_t)routes, sizeof(*proxy->routes))) ||
	    !(proxy->connections = calloc(CONNECTIONS, sizeof(*proxy->connections))))
		give_up("memory");
	proxy->server.sun_family = AF_UNIX;
	snprintf(proxy->server.sun_path, sizeof(proxy->server.sun_path), "%s", server);
	proxy->server_length = sizeof(proxy->server);
	if (server[0] == '@') { /* abstract: its length belongs to its name */
		proxy->server.sun_path[0] = '\0';
		proxy->server_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) +
						   strlen(server));
	}
	proxy->n_routes = routes;
	for (int i = 0; i < routes; i++)
		open_route(&proxy->routes[i]);
	for (int i = 0; i < CONNECTIONS; i++)
		proxy->connections[i].route = -1;
	pthread_mutex_init(&proxy->lock, NULL);
	if (pipe2(proxy->wake, O_CLOEXEC | O_NONBLOCK) < 0 ||
	    (errno = pthread_create(&proxy->thread, NULL, run_proxy, proxy)) != 0)
		give_up("starting");
	return proxy;
}

/* -- faults, from the main thread --------------------------------------------------------------- */

static struct route *begin_change(struct torture_proxy *proxy, int route)
{
	pthread_mutex_lock(&proxy->lock);
	return &proxy->routes[route];
}

static void end_change(struct torture_proxy *proxy)
{
	ssize_t written = write(proxy->wake[1], "", 1);

	(void)written; /* a full pipe wakes as well */
	pthread_mutex_unlock(&proxy->lock);
}

int torture_proxy_port(const struct torture_proxy *proxy, int route)
{
	return proxy->routes[route].port;
}

void torture_proxy_stop(struct torture_proxy *proxy)
{
	begin_change(proxy, 0);
	proxy->stop = true;
	end_change(proxy);
	pthread_join(proxy->thread, NULL);
	for (int i = 0; i < proxy->n_routes; i++)
		close(proxy->routes[i].listener);
	close(proxy->wake[0]);
	close(proxy->wake[1]);
	pthread_mutex_destroy(&proxy->lock);
	free(proxy->routes);
	free(proxy->connections);
	free(proxy);
}

/*
 * The thread may be between its poll and its look at what came of it: it looks at the connection
 * before it uses a descriptor, under the lock.
 */
void torture_proxy_cut(struct torture_proxy *proxy, int route, bool reset)
{
	begin_change(proxy, route);
	for (int i = 0; i < CONNECTIONS; i++)
		if (proxy->connections[i].route == route)
			close_connection(&proxy->connections[i], reset);
	end_change(proxy);
}

void torture_proxy_delay(struct torture_proxy *proxy, int route, int delay_ms, int for_ms)
{
	struct route *r = begin_change(proxy, route);

	r->delay_ms = delay_ms;
	r->delay_until = test_now_ms() + for_ms;
	end_change(proxy);
}

void torture_proxy_trickle(struct torture_proxy *proxy, int route, int for_ms)
{
	begin_change(proxy, route)->trickle_until = test_now_ms() + for_ms;
	end_change(proxy);
}

void torture_proxy_silence(struct torture_proxy *proxy, int route, enum proxy_direction direction,
			   int for_ms, bool cut)
{
	struct route *r = begin_change(proxy, route);

	r->silent_until[direction] = test_now_ms() + for_ms;
	r->cut_after[direction] = cut;
	end_change(proxy);
}

void torture_proxy_lose_answers(struct torture_proxy *proxy, int route, int batch, int after_ms)
{
	struct route *r = begin_change(proxy, route);

	r->lose_batch = batch;
	r->lose_ms = after_ms;
	end_change(proxy);
}

void torture_proxy_heal(struct torture_proxy *proxy)
{
	for (int i = 0; i < proxy->n_routes; i++) {
		struct route *r = begin_change(proxy, i);

		r->delay_until = r->trickle_until = 0;
		memset(r->silent_until, 0, sizeof(r->silent_until));
		end_change(proxy);
	}
}
