/*
 * See service.h. The protocol is that of sd_notify(3), but sd_notify itself waits while the
 * manager's queue is full (ten messages by default): a manager that hangs would hold up the sweeps.
 */
#include "service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

/* A path, or "@" and a name in the abstract namespace. -1: no such socket. */
static int connect_manager(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = strlen(path);
	int fd;

	if ((path[0] != '/' && path[0] != '@') || length < 2 || length >= sizeof(address.sun_path))
		return -1;
	memcpy(address.sun_path, path, length);
	if (path[0] == '@')
		address.sun_path[0] = '\0';
	else
		length++;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address,
			       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* False: the manager has no room for it now. What cannot be sent at all counts as sent. */
static bool send_message(const char *message)
{
	const char *path = getenv("NOTIFY_SOCKET");
	int fd = path ? connect_manager(path) : -1;
	bool sent;

	if (fd < 0)
		return true;
	sent = send(fd, message, strlen(message), MSG_NOSIGNAL) >= 0 || errno != EAGAIN;
	close(fd);
	return sent;
}

/*
 * The status as a string of the caller's; NULL: no memory. The manager drops a status that is not
 * UTF-8, and a server may speak anything before its client is known.
 */
static char *describe(struct service *service, bool *ret_goes_on)
{
	char *text = NULL, *status;
	size_t size = 0;
	FILE *file = open_memstream(&text, &size);

	if (!file)
		return NULL;
	*ret_goes_on = service->source.describe(service->source.arg, file);
	status = fclose(file) == 0 ? malloc(SERVICE_STATUS_MAX) : NULL;
	if (status) {
		bool is_cut = size >= SERVICE_STATUS_MAX;

		escape_text(status, SERVICE_STATUS_MAX - (is_cut ? strlen("...") : 0), text);
		if (is_cut)
			memcpy(status + strlen(status), "...", sizeof("..."));
	}
	free(text);
	return status;
}

static void arm(struct service *service, double seconds)
{
	ev_timer_stop(service->loop, &service->status_timer);
	ev_timer_set(&service->status_timer, seconds, 0.);
	ev_timer_start(service->loop, &service->status_timer);
}

/* Sends the status, if it is news, and READY=1, if that is due. What has no room comes again. */
static void send_status(struct service *service)
{
	bool goes_on = false;
	char *status = describe(service, &goes_on);
	bool news = status && (!service->status || strcmp(status, service->status) != 0);
	char message[SERVICE_STATUS_MAX + 64];
	bool sent = true;

	service->described_at = monotonic_now();
	snprintf(message, sizeof(message), "%s%s%s", service->ready_is_due ? "READY=1\n" : "",
		 news ? "STATUS=" : "", news ? status : "");
	if (message[0])
		sent = send_message(message);
	if (sent)
		service->ready_is_due = false;
	if (sent && news) {
		free(service->status);
		service->status = status;
	} else {
		free(status);
	}
	ev_timer_stop(service->loop, &service->status_timer);
	if (goes_on || !sent)
		arm(service, 1.);
}

static void on_status(struct ev_loop *loop, ev_timer *watcher, int events)
{
	(void)loop;
	(void)events;
	send_status(watcher->data);
}

static void on_watchdog(struct ev_loop *loop, ev_timer *watcher, int events)
{
	struct service *service = watcher->data;
	char text[DURATION_SIZE];
	int64_t lateness;
	const char *late = service->source.find_late(service->source.arg, &lateness);

	(void)loop;
	(void)events;
	if (!late)
		send_message("WATCHDOG=1");
	else if (!service->withheld)
		journal_write(service->journal, JOURNAL_WATCHDOG_WITHHELD,
			      &(struct journal_fields){ .database = late },
			      "late by %s with its own next step: the watchdog is not fed",
			      duration_text(lateness, text));
	service->withheld = late != NULL;
}

void service_init(struct service *service, struct ev_loop *loop, struct journal *journal,
		  struct service_source source)
{
	uint64_t watchdog = 0;
	double half = 0.;

	*service = (struct service){ .loop = loop, .journal = journal, .source = source };
	service->listened_to = getenv("NOTIFY_SOCKET") != NULL;
	if (service->listened_to && sd_watchdog_enabled(0, &watchdog) > 0)
		half = (double)watchdog / 2. / (double)LEASE_SECOND;
	ev_timer_init(&service->watchdog, on_watchdog, half, half);
	ev_init(&service->status_timer, on_status);
	service->watchdog.data = service->status_timer.data = service;
}

void service_ready(struct service *service)
{
	if (!service->listened_to || service->stopping)
		return;
	service->ready_is_due = true;
	send_status(service);
	if (service->watchdog.repeat > 0. && !ev_is_active(&service->watchdog))
		ev_timer_start(service->loop, &service->watchdog);
}

void service_changed(struct service *service)
{
	int64_t since = monotonic_now() - service->described_at;

	if (!service->listened_to || service->stopping || service->described_at == 0)
		return;
	if (since >= LEASE_SECOND)
		send_status(service);
	else if (!ev_is_active(&service->status_timer))
		arm(service, 1. - (double)since / (double)LEASE_SECOND);
}

void service_reloading(struct service *service)
{
	char message[64];

	if (!service->listened_to || service->stopping)
		return;
	snprintf(message, sizeof(message), "RELOADING=1\nMONOTONIC_USEC=%" PRId64, monotonic_now());
	send_message(message);
}

void service_stopping(struct service *service)
{
	service->stopping = true;
	ev_timer_stop(service->loop, &service->status_timer);
	if (service->listened_to)
		send_message("STOPPING=1\nSTATUS=stopping");
}

void service_done(struct service *service)
{
	ev_timer_stop(service->loop, &service->status_timer);
	ev_timer_stop(service->loop, &service->watchdog);
	free(service->status);
	service->status = NULL;
}
