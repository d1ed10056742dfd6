/*
 * A TCP proxy before the server's Unix socket, with a port for each process that goes through it
 * (a route), so that a fault hits one process and nobody else.
 *
 * It runs in a thread of its own. What may happen to a route's connections: they are cut; their
 * bytes come late, in small pieces, or not at all in one direction for a while; or the server's
 * answers vanish from some batch on and the connection is cut after it. While a direction is
 * silent its end is not passed on either, as when packets are lost: the other side learns nothing.
 * Bytes are never changed or reordered.
 */
#ifndef LEASE_TORTURE_PROXY_H
#define LEASE_TORTURE_PROXY_H

#include <stdbool.h>

struct torture_proxy;

/* `server` is the path of the server's socket, or its abstract name with @ before it. Ends the program when it cannot work. */
struct torture_proxy *torture_proxy_start(const char *server, int routes);
void torture_proxy_stop(struct torture_proxy *proxy);
int torture_proxy_port(const struct torture_proxy *proxy, int route);

enum proxy_direction { PROXY_TO_SERVER, PROXY_TO_CLIENT };

/* All connections of the route end now; with `reset` by RST. */
void torture_proxy_cut(struct torture_proxy *proxy, int route, bool reset);
/* For so many milliseconds each piece of data is `delay_ms` late, both ways. */
void torture_proxy_delay(struct torture_proxy *proxy, int route, int delay_ms, int for_ms);
/* For so many milliseconds what the client sends arrives in pieces of a few dozen bytes. */
void torture_proxy_trickle(struct torture_proxy *proxy, int route, int for_ms);
/* Nothing passes in one direction; after that it arrives late, or, with `cut`, the connections end. */
void torture_proxy_silence(struct torture_proxy *proxy, int route, enum proxy_direction direction,
			   int for_ms, bool cut);
/*
 * From the client's batch number `batch` on (1 is the next one) the server does what it is asked
 * to and its answers vanish; `after_ms` later the connection is cut.
 */
void torture_proxy_lose_answers(struct torture_proxy *proxy, int route, int batch, int after_ms);
/* No fault is in force on any route from now on. */
void torture_proxy_heal(struct torture_proxy *proxy);

#endif
