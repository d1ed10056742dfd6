/*
 * What the service manager is told (sd_notify(3)): READY, STATUS, RELOADING, STOPPING, WATCHDOG.
 *
 * Promises: STATUS= says what is so, within a second, and is sent only when it changes; WATCHDOG=1
 * goes out at half of its time, and only while no database is late (see database_lateness).
 *
 * Must never: do anything where nobody listens (no $NOTIFY_SOCKET), wait for a manager that does
 * not read, or wake up for nothing.
 */
#ifndef LEASE_DAEMON_SERVICE_H
#define LEASE_DAEMON_SERVICE_H

#include <ev.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "journal.h"

/* The longest STATUS: the manager drops notifications of more than 4,096 bytes. */
#define SERVICE_STATUS_MAX 3000

struct service_source {
	/* Writes the status, one line. True when it says something else as time goes by. */
	bool (*describe)(void *arg, FILE *file);
	/* The name of a database that is late, and how late in microseconds, or NULL. */
	const char *(*find_late)(void *arg, int64_t *ret_lateness);
	void *arg;
};

struct service {
	struct ev_loop *loop;
	struct journal *journal;
	struct service_source source;
	bool listened_to;
	bool ready_is_due;
	bool stopping;
	bool withheld; /* the last WATCHDOG=1 was */
	ev_timer watchdog;
	ev_timer status_timer;
	int64_t described_at;
	char *status; /* as it was sent last */
};

void service_init(struct service *service, struct ev_loop *loop, struct journal *journal,
		  struct service_source source);
/* The loop runs: READY=1 and the first status; from here on the watchdog is fed. */
void service_ready(struct service *service);
/* The status may be another now. Cheap; it is looked at once a second at most. */
void service_changed(struct service *service);
/* At once on the request; service_ready follows, whatever came of it. */
void service_reloading(struct service *service);
void service_stopping(struct service *service);
void service_done(struct service *service);

#endif
