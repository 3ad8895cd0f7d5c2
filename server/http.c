/* One uv_poll watches the library's own epoll descriptor; MHD_run does what is ready. A uv_prepare runs before every
 * sleep: it lets the library act on resumed connections, and asks for another turn when the library says that work is
 * left. The library's own timeouts are off; a sweep looks at every peer's deadline. */
#include "server/http.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/address.h"
#include "server/head_scan.h"
#include "server/log.h"
#include "server/request.h"
#include "server/tls.h"

/* Level 1 is as strict as the RFCs let a server be: no NUL, no folded header, no line that ends with CR or LF alone. */
#if HEAD_SCAN_IS_NEEDED
#define HTTP_STRICTNESS MHD_OPTION_STRICT_FOR_CLIENT
#else
#define HTTP_STRICTNESS MHD_OPTION_CLIENT_DISCIPLINE_LVL
#endif

enum {
	HTTP_BACKLOG = 512,
	HTTP_UNSENT_BYTES = 128 << 10, /* unsent bytes of a stream in the kernel above which its client counts as
	                                * slow */
	HTTP_PROBE_SECONDS = 60,     /* a waiting client on a machine that has stopped is detected after some minutes */
	HTTP_OTHER_DESCRIPTORS = 63, /* settings.c leaves 64 beside the connections' */
	HTTP_STEP_MS = 1000,
	HTTP_DRAINING_STEP_MS = 50,
	HTTP_LAST_MS = 500,   /* for the errors of requests that a stop has ended; then their connections are cut */
	HTTP_EXCESS_MS = 2000 /* for the request of a connection that is only there to be refused */
};

struct http_peer {
	http *http;
	int fd;
	gnutls_session_t tls;  /* NULL: the connection is not encrypted */
	address_bytes address; /* the client's */
	bool counted;          /* in http.counts */
	bool excess;           /* one more than its address may have when it was accepted */
	bool loopback;         /* it came in on a loopback address */
	request *request;      /* owned; NULL between two requests */
	int unsent;            /* bytes that the client has not acknowledged, at the latest sweep */
	uint64_t seen_bytes;   /* body bytes at the latest sweep that found input waiting */
	bool waiting;          /* that sweep was the latest one */
	uint64_t deadline;     /* loop time; 0: none */
	uv_poll_t poll;        /* for the client's leaving, which the library misses */
	bool polling;          /* the handle is initialised and must be closed */
	bool left;             /* the client sends no more */
	http_peer *previous, *next;
};

struct http {
	server *server;
	struct MHD_Daemon *daemon;
	int listener;
	char address[128];
	uv_poll_t poll;
	uv_prepare_t prepare;
	uv_timer_t again, sweep;
	bool must_run; /* the library has work: a resumed connection, or more than one turn took */
	http_peer *peers;
	address_counts counts; /* connections per client address */
	bool loopback;         /* the listener's address */
	void (*drained)(void *context);
	void *drained_context;
	uint64_t drain_began, abort_at; /* loop time; draining only */
	uint64_t cut_at;                /* UINT64_MAX until requests are aborted */
};

/* --- the listener --------------------------------------------------------------------- */

static int http_bind(const struct addrinfo *at)
{
	int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
	int one = 1, unsent = HTTP_UNSENT_BYTES, idle = HTTP_PROBE_SECONDS, interval = HTTP_PROBE_SECONDS / 4;
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	/* Every connection inherits these options. */
	setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
	if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, HTTP_BACKLOG) == 0)
		return fd;
	int error = errno;
	close(fd);
	errno = error;
	return -1;
}

static bool http_listen(http *h, const char *listen_address)
{
	char host[96], port[8];
	if (!address_split(listen_address, host, sizeof host, port, sizeof port)) {
		log_line(LOG_ERROR,
		         "--listen %s: expected HOST:PORT, or PORT for 127.0.0.1; 0.0.0.0:PORT or [::]:PORT listen on "
		         "every address",
		         listen_address);
		return false;
	}
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
	int error = getaddrinfo(host, port, &hints, &found);
	if (error) {
		log_line(LOG_ERROR, "--listen %s: %s", listen_address, gai_strerror(error));
		return false;
	}
	h->listener = http_bind(found);
	if (h->listener < 0)
		log_line(LOG_ERROR, "--listen %s: %s", listen_address, strerror(errno));
	freeaddrinfo(found);
	struct sockaddr_storage real;
	socklen_t bytes = sizeof real;
	if (h->listener < 0 || getsockname(h->listener, (struct sockaddr *)&real, &bytes) != 0)
		return false;
	unsigned real_port = real.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&real)->sin6_port)
	                                                : ntohs(((struct sockaddr_in *)&real)->sin_port);
	address_bytes bound = address_of((struct sockaddr *)&real);
	h->loopback = address_is_loopback(&bound);
	snprintf(h->address, sizeof h->address, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, real_port);
	return true;
}

/* --- the library's callbacks --------------------------------------------------------------- */

static void http_peer_end_request(http_peer *p)
{
	request *r = p->request;
	p->request = NULL;
	if (!r)
		return;
	request_over(r);
	p->waiting = false;
	http_peer_deadline(p, p->http->server->limits.request_ms); /* for the next request */
}

/* After this call the library may end the request without http_on_completed, for instance when a second error follows a
 * first one. So the peer owns the request: it ends at the latest with the connection. */
static void *http_on_target(void *context, const char *target, struct MHD_Connection *connection)
{
	http *h = context;
	http_peer *p = http_peer_of(connection);
	if (p) {
		http_peer_end_request(p);
		p->request = request_new(h->server, p, connection, target);
	}
	char *mark = target ? strchr(target, '?') : NULL;
	if (mark)
		mark[1] = '\0';
	return NULL;
}

static enum MHD_Result http_on_access(void *context, struct MHD_Connection *connection, const char *url,
                                      const char *method, const char *version, const char *data, size_t *bytes,
                                      void **state)
{
	(void)context;
	(void)url;
	(void)state;
	const http_peer *p = http_peer_of(connection);
	return p && p->request ? request_access(p->request, method, version, data, bytes) : MHD_NO;
}

static void http_on_completed(void *context, struct MHD_Connection *connection, void **state,
                              enum MHD_RequestTerminationCode code)
{
	(void)context;
	(void)state;
	(void)code;
	http_peer *p = http_peer_of(connection);
	if (p)
		http_peer_end_request(p);
}

static void http_peer_closed(uv_handle_t *handle)
{
	free(handle->data);
}

static void http_peer_end(http_peer *p)
{
	http *h = p->http;
	http_peer_end_request(p);
	head_scan_end(p->fd);
	if (p->counted)
		address_counts_remove(&h->counts, &p->address);
	metrics_connection_ends(h->server->metrics);
	if (p->previous)
		p->previous->next = p->next;
	else
		h->peers = p->next;
	if (p->next)
		p->next->previous = p->previous;
	/* The handle lets go of the descriptor now, before the library closes it; its memory goes later. */
	if (p->polling)
		uv_close((uv_handle_t *)&p->poll, http_peer_closed);
	else
		free(p);
}

/* The client has closed its sending side. A request that waits for the engine stops. A request that is being received
 * is read to the end. The library uses edge-triggered readiness and treats a short read as the last, so it may have
 * missed an end of stream that arrived together with data. Shutting down our receiving side makes it check again. */
static void http_on_leave(uv_poll_t *poll, int status, int events)
{
	http_peer *p = poll->data;
	if (status == 0 && !(events & UV_DISCONNECT))
		return;
	uv_poll_stop(poll);
	p->left = true;
	if (p->request && p->request->suspended)
		request_gone(p->request);
	else
		shutdown(p->fd, SHUT_RD);
}

/* An address has up to twice as many connections as it may use, so that those beyond its limit can be refused in words;
 * further ones are closed at once. */
static enum MHD_Result http_on_accept(void *context, const struct sockaddr *name, socklen_t bytes)
{
	const http *h = context;
	address_bytes a = address_of(name);
	unsigned limit = h->server->limits.connections_per_address;
	(void)bytes;
	return limit == 0 || address_counts_get(&h->counts, &a) / 2 < limit ? MHD_YES : MHD_NO;
}

static void http_peer_locate(http_peer *p, struct MHD_Connection *connection)
{
	struct sockaddr_storage local;
	socklen_t bytes = sizeof local;
	unsigned limit = p->http->server->limits.connections_per_address;
	p->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
	if (p->http->server->tls)
		p->tls = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session;
	head_scan_begin(p->fd, p->tls != NULL);
	p->address = address_of(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr);
	p->counted = limit > 0 && address_counts_add(&p->http->counts, &p->address);
	p->excess = p->counted && address_counts_get(&p->http->counts, &p->address) > limit;
	if (getsockname(p->fd, (struct sockaddr *)&local, &bytes) == 0) {
		address_bytes a = address_of((struct sockaddr *)&local);
		p->loopback = address_is_loopback(&a);
	}
}

static void http_on_connection(void *context, struct MHD_Connection *connection, void **peer_at,
                               enum MHD_ConnectionNotificationCode what)
{
	http *h = context;
	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		h->must_run = true; /* at its limit of connections the library accepts again only in its next run */
		if (*peer_at)
			http_peer_end(*peer_at);
		*peer_at = NULL;
		return;
	}
	http_peer *p = calloc(1, sizeof *p);
	*peer_at = p;
	if (!p)
		return; /* its requests are refused by http_on_access */
	p->http = h;
	http_peer_locate(p, connection);
	p->poll.data = p;
	p->next = h->peers;
	if (p->next)
		p->next->previous = p;
	h->peers = p;
	metrics_connection_begins(h->server->metrics);
	uint64_t patience = h->server->limits.request_ms;
	http_peer_deadline(p, p->excess && patience > HTTP_EXCESS_MS ? HTTP_EXCESS_MS : patience);
	p->polling = uv_poll_init(h->server->loop, &p->poll, p->fd) == 0;
	if (p->polling)
		uv_poll_start(&p->poll, UV_DISCONNECT, http_on_leave);
}

/* Targets are decoded by uri.c, from the raw text. */
static size_t http_leave_escaped(void *context, struct MHD_Connection *connection, char *text)
{
	(void)context;
	(void)connection;
	return strlen(text);
}

/* --- the loop's callbacks --------------------------------------------------------------------- */

static void http_on_again(uv_timer_t *timer)
{
	http *h = timer->data;
	h->must_run = true;
}

static void http_on_prepare(uv_prepare_t *prepare)
{
	http *h = prepare->data;
	if (h->must_run) {
		h->must_run = false;
		MHD_run(h->daemon);
	}
	MHD_UNSIGNED_LONG_LONG wait;
	if (h->must_run || (MHD_get_timeout(h->daemon, &wait) == MHD_YES && wait == 0))
		uv_timer_start(&h->again, http_on_again, 0, 0);
}

static void http_on_ready(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	http *h = poll->data;
	MHD_run(h->daemon);
}

/* True if the library appears to be reading. */
static bool http_peer_reading(const http_peer *p)
{
	const request *r = p->request;
	return !r || ((r->phase == REQUEST_HEAD || r->phase == REQUEST_BODY) && !r->suspended && !r->linger);
}

/* A reading library consumes available input. If input still waits at two sweeps and no body has grown, the library
 * lacks room for data that it must see as a whole. An example is the extension of a chunk. It will never have room. */
static bool http_peer_stuck(http_peer *p, bool unread)
{
	uint64_t body = p->request ? p->request->body_bytes : 0;
	bool waiting = p->request && unread && http_peer_reading(p);
	bool stuck = waiting && p->waiting && p->seen_bytes == body;
	p->waiting = waiting;
	p->seen_bytes = body;
	return stuck;
}

/* A client reads if the kernel's queue of unacknowledged bytes has shrunk. The engine is told. If a stream is not read,
 * it may give the place to another client (admission.h). */
static void http_sweep_peer(http_peer *p, uint64_t now)
{
	int before = p->unsent;
	bool takes = ioctl(p->fd, SIOCOUTQ, &p->unsent) == 0 && p->unsent < before;
	int unread = 0;
	bool known = ioctl(p->fd, FIONREAD, &unread) == 0;
	if (p->tls && gnutls_record_check_pending(p->tls) > 0) /* decrypted already */
		unread = 1;
	if (p->deadline && now >= p->deadline)
		shutdown(p->fd, SHUT_RDWR); /* the library sees the end and cleans up */
	else if (p->left && known && unread == 0 && http_peer_reading(p))
		shutdown(p->fd, SHUT_RDWR); /* it has missed the end of the input; see http_on_leave */
	else if (http_peer_stuck(p, known && unread > 0))
		request_stuck(p->request);
	else if (p->request)
		reply_tick(p->request, takes);
}

/* Draining: end idle connections and endless streams at once, at abort_at everything; then report the end. A client
 * that has not read its error HTTP_LAST_MS later is cut off. */
static void http_sweep_draining(http *h, uint64_t now)
{
	const bool abort_now = now >= h->abort_at && h->cut_at == UINT64_MAX;
	if (abort_now)
		h->cut_at = now + HTTP_LAST_MS;
	for (http_peer *p = h->peers, *next; p; p = next) {
		next = p->next;
		const bool endless = p->request && p->request->endless;
		if (!p->request || now >= (endless ? h->drain_began + HTTP_LAST_MS : h->cut_at))
			shutdown(p->fd, SHUT_RDWR);
		else if (abort_now || endless)
			request_abort(p->request);
	}
	if (!h->peers && h->drained) {
		void (*drained)(void *) = h->drained;
		h->drained = NULL;
		drained(h->drained_context);
	}
}

/* Milliseconds between two sweeps. */
static uint64_t http_sweep_step(const http *h)
{
	const uint64_t step = h->server->limits.request_ms / 4;
	return h->server->draining ? HTTP_DRAINING_STEP_MS : step < HTTP_STEP_MS ? step : HTTP_STEP_MS;
}

static void http_on_sweep(uv_timer_t *timer)
{
	http *h = timer->data;
	uint64_t now = uv_now(h->server->loop);
	uv_timer_set_repeat(timer, http_sweep_step(h));
	MHD_run(h->daemon); /* so that what is unread afterwards is what the library leaves */
	for (http_peer *p = h->peers; p; p = p->next)
		http_sweep_peer(p, now);
	if (h->server->draining)
		http_sweep_draining(h, now);
}

/* --- peers ---------------------------------------------------------------------------------------- */

http_peer *http_peer_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

request *http_peer_request(const http_peer *p)
{
	return p->request;
}

void http_peer_client(const http_peer *p, char out[ADDRESS_TEXT_BYTES])
{
	address_client(&p->address, out);
}

void http_peer_address(const http_peer *p, char out[ADDRESS_TEXT_BYTES])
{
	address_text(&p->address, out);
}

bool http_peer_trusted(const http_peer *p)
{
	const server *s = p->http->server;
	for (int i = 0; i < s->n_proxies; i++)
		if (address_range_has(&s->proxies[i], &p->address))
			return true;
	return false;
}

bool http_peer_loopback(const http_peer *p)
{
	return p->loopback;
}

bool http_peer_head_is_odd(const http_peer *p)
{
	return head_scan_is_odd(p->fd);
}

bool http_peer_head_is_last(const http_peer *p)
{
	return head_scan_is_last(p->fd);
}

bool http_peer_excess(const http_peer *p)
{
	const unsigned limit = p->http->server->limits.connections_per_address;
	return p->excess && limit > 0 && address_counts_get(&p->http->counts, &p->address) > limit;
}

void http_peer_deadline(http_peer *p, uint64_t ms)
{
	p->deadline = ms ? uv_now(p->http->server->loop) + ms : 0;
}

void http_peer_extend(http_peer *p, uint64_t ms, uint64_t cap)
{
	uint64_t latest = uv_now(p->http->server->loop) + cap;
	if (p->deadline)
		p->deadline = p->deadline + ms < latest ? p->deadline + ms : latest;
}

void http_peer_watch(http_peer *p)
{
	if (p->left && p->polling)
		uv_poll_start(&p->poll, UV_DISCONNECT, http_on_leave); /* says so again at once */
}

void http_peer_wake(http_peer *p)
{
	p->http->must_run = true;
}

void http_peer_send_last(http_peer *p, const void *data, size_t bytes)
{
	/* A kilobyte fits into an empty send buffer; a client that does not take it misses the reason only. */
	ssize_t sent =
	    p->tls ? gnutls_record_send(p->tls, data, bytes) : send(p->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent > 0 && p->tls)
		gnutls_bye(p->tls, GNUTLS_SHUT_WR);
	shutdown(p->fd, SHUT_WR);
}

/* --- life -------------------------------------------------------------------------------------------- */

static void http_on_reserved(uv_poll_t *poll, int status, int events)
{
	(void)poll;
	(void)status;
	(void)events;
}

static bool http_start_library(http *h)
{
	const server_limits *limits = &h->server->limits;
	const bool tls = h->server->tls;
	h->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (tls ? MHD_USE_TLS : 0), 0,
	                             http_on_accept, h, http_on_access, h, MHD_OPTION_LISTEN_SOCKET, h->listener,
	                             MHD_OPTION_CONNECTION_LIMIT, limits->connections, MHD_OPTION_CONNECTION_TIMEOUT,
	                             0u, HTTP_STRICTNESS, 1, MHD_OPTION_URI_LOG_CALLBACK, http_on_target, h,
	                             MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
	                             http_on_connection, h, MHD_OPTION_UNESCAPE_CALLBACK, http_leave_escaped, h,
	                             /* the options after the first END are not read */
	                             tls ? MHD_OPTION_HTTPS_CERT_CALLBACK2 : MHD_OPTION_END, tls_retrieve,
	                             MHD_OPTION_HTTPS_PRIORITIES, TLS_PRIORITIES, MHD_OPTION_END);
	if (!h->daemon)
		log_line(LOG_ERROR, "libmicrohttpd does not start");
	return h->daemon != NULL;
}

/* libuv aborts the process when its table of watched descriptors cannot grow, so it grows once, here: the table is as
 * long as the highest descriptor ever watched. */
static void http_reserve_watchers(http *h)
{
	uv_poll_t highest;
	int fd = fcntl(h->listener, F_DUPFD_CLOEXEC, (int)h->server->limits.connections + HTTP_OTHER_DESCRIPTORS);
	if (fd < 0 || uv_poll_init(h->server->loop, &highest, fd) != 0) {
		close(fd);
		return;
	}
	uv_poll_start(&highest, UV_READABLE, http_on_reserved);
	uv_close((uv_handle_t *)&highest, NULL);
	uv_run(h->server->loop, UV_RUN_NOWAIT);
	close(fd);
}

http *http_new(server *s, const char *listen_address)
{
	http *h = calloc(1, sizeof *h);
	if (!h)
		return NULL;
	h->server = s;
	h->listener = -1;
	if (!head_scan_reserve((int)s->limits.connections + HTTP_OTHER_DESCRIPTORS + 1) ||
	    !http_listen(h, listen_address) || !http_start_library(h)) {
		if (h->listener >= 0)
			close(h->listener);
		free(h);
		return NULL;
	}
	http_reserve_watchers(h);
	int fd = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
	uv_poll_init(s->loop, &h->poll, fd);
	uv_prepare_init(s->loop, &h->prepare);
	uv_timer_init(s->loop, &h->again);
	uv_timer_init(s->loop, &h->sweep);
	h->poll.data = h->prepare.data = h->again.data = h->sweep.data = h;
	uv_poll_start(&h->poll, UV_READABLE, http_on_ready);
	uv_prepare_start(&h->prepare, http_on_prepare);
	uv_timer_start(&h->sweep, http_on_sweep, http_sweep_step(h), http_sweep_step(h));
	return h;
}

const char *http_address(const http *h)
{
	return h->address;
}

bool http_on_loopback(const http *h)
{
	return h->loopback;
}

void http_drain(http *h, uint64_t grace_ms, void (*done)(void *context), void *context)
{
	uint64_t now = uv_now(h->server->loop);
	if (h->server->draining) {
		h->abort_at = now;
		return;
	}
	h->server->draining = true;
	h->drain_began = now;
	h->abort_at = now + grace_ms - (grace_ms / 10 < HTTP_LAST_MS ? grace_ms / 10 : HTTP_LAST_MS);
	h->cut_at = UINT64_MAX;
	/* Name what a stop waits for: without the line, the grace time would look like a program that hangs. */
	int running = 0;
	for (const http_peer *p = h->peers; p; p = p->next)
		running += p->request && !p->request->endless;
	if (running > 0 && grace_ms > 0)
		log_line(LOG_INFO, "stopping: %d running request%s may take another %g s; a second signal ends %s",
		         running, running == 1 ? "" : "s", (double)grace_ms / 1000, running == 1 ? "it" : "them");
	h->drained = done;
	h->drained_context = context;
	MHD_quiesce_daemon(h->daemon); /* hands the listener back */
	close(h->listener);
	h->listener = -1;
	uv_timer_start(&h->sweep, http_on_sweep, 0, HTTP_DRAINING_STEP_MS);
}

void http_stop(http *h)
{
	uv_close((uv_handle_t *)&h->poll, NULL);
	uv_close((uv_handle_t *)&h->prepare, NULL);
	uv_close((uv_handle_t *)&h->again, NULL);
	uv_close((uv_handle_t *)&h->sweep, NULL);
	MHD_stop_daemon(h->daemon);
	h->daemon = NULL;
}

void http_free(http *h)
{
	free(h);
}
