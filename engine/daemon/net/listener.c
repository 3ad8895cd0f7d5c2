#include "engine/daemon/net/listener.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/memory.h"

enum { LISTENER_BACKLOG = 128 };

struct listener {
	net *net;
	union {
		uv_handle_t handle;
		uv_stream_t stream;
		uv_pipe_t pipe;
		uv_tcp_t tcp;
	} socket;
	bool local; /* Unix socket */
	bool open, waiting;
	char address[LISTENER_ADDRESS_BYTES];
	connection *first;
	int connections;
};

static status listener_fail(error *err, const char *what, int code)
{
	return error_set(err, code == UV_EADDRINUSE ? STATUS_CONFLICT : STATUS_IO, "socket", "%s: %s", what,
	                 uv_strerror(code));
}

/* --- Unix ---------------------------------------------------------------------- */

/* Remove a socket on which no process listens. */
static status remove_stale(const char *path, error *err)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	struct stat st;
	if (lstat(path, &st) != 0)
		return errno == ENOENT ? STATUS_OK : listener_fail(err, "cannot look at the socket", -errno);
	if (!S_ISSOCK(st.st_mode))
		return error_set(err, STATUS_CONFLICT, "socket", "the socket's path is taken by another kind of file");
	strcpy(name.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return listener_fail(err, "cannot make a socket", -errno);
	bool dead = connect(fd, (const struct sockaddr *)&name, sizeof name) != 0 && errno == ECONNREFUSED;
	close(fd);
	if (!dead)
		return error_set(err, STATUS_CONFLICT, "socket", "another process listens on the socket");
	return unlink(path) == 0 ? STATUS_OK : listener_fail(err, "cannot remove a stale socket", -errno);
}

static status bind_unix(listener *l, const char *path, error *err)
{
	if (!path[0] || strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
		return error_set(err, STATUS_INVALID, "socket", "the path of a Unix socket has 1 to %zu bytes",
		                 sizeof((struct sockaddr_un *)0)->sun_path - 1);
	TRY(remove_stale(path, err));
	l->local = true;
	uv_pipe_init(l->net->loop, &l->socket.pipe, 0);
	l->open = true;
	mode_t before = umask(0177); /* the socket is created with its mode, so it is never open to others */
	int rc = uv_pipe_bind(&l->socket.pipe, path);
	umask(before);
	return rc == 0 ? STATUS_OK : listener_fail(err, "cannot bind the socket", rc);
}

/* --- TCP ----------------------------------------------------------------------- */

static status resolve(uv_loop_t *loop, const char *host, const char *port, struct sockaddr_storage *out, error *err)
{
	uv_getaddrinfo_t request;
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	int rc = uv_getaddrinfo(loop, &request, NULL, host, port, &hints);
	if (rc != 0)
		return error_set(err, STATUS_INVALID, "socket", "cannot resolve \"%.64s:%.16s\": %s", host, port,
		                 uv_strerror(rc));
	memcpy(out, request.addrinfo->ai_addr, request.addrinfo->ai_addrlen);
	uv_freeaddrinfo(request.addrinfo);
	return STATUS_OK;
}

static bool is_loopback(const struct sockaddr_storage *name)
{
	const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)name;
	if (name->ss_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
	return ntohl(((const struct sockaddr_in *)name)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static void describe_tcp(listener *l)
{
	struct sockaddr_storage name;
	char host[64] = "";
	int bytes = sizeof name;
	uv_tcp_getsockname(&l->socket.tcp, (struct sockaddr *)&name, &bytes);
	bool six = name.ss_family == AF_INET6;
	uv_ip_name((const struct sockaddr *)&name, host, sizeof host);
	unsigned port =
	    ntohs(six ? ((struct sockaddr_in6 *)&name)->sin6_port : ((struct sockaddr_in *)&name)->sin_port);
	snprintf(l->address, sizeof l->address, six ? "[%s]:%u" : "%s:%u", host, port);
}

static status bind_tcp(listener *l, const char *address, bool allow_remote, error *err)
{
	char host[LISTENER_ADDRESS_BYTES];
	struct sockaddr_storage name;
	const char *colon = strrchr(address, ':');
	if (!colon || colon == address || !colon[1] || strlen(address) >= sizeof host)
		return error_set(err, STATUS_INVALID, "socket",
		                 "an address is unix:PATH or HOST:PORT, for example 127.0.0.1:9000");
	bool brackets = address[0] == '[' && colon[-1] == ']';
	snprintf(host, sizeof host, "%.*s", (int)(colon - address) - 2 * brackets, address + brackets);
	TRY(resolve(l->net->loop, host, colon + 1, &name, err));
	if (!allow_remote && !is_loopback(&name))
		return error_set(
		    err, STATUS_INVALID, "socket",
		    "%.64s can be reached from other machines, and the engine has no authentication: listen on "
		    "a Unix socket or on loopback, or allow it with --allow-remote",
		    address);
	uv_tcp_init(l->net->loop, &l->socket.tcp);
	l->open = true;
	int rc = uv_tcp_bind(&l->socket.tcp, (const struct sockaddr *)&name, 0);
	return rc == 0 ? STATUS_OK : listener_fail(err, "cannot bind the socket", rc);
}

/* --- accepting ------------------------------------------------------------------- */

static void on_gone(connection *c)
{
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	c->listener->connections--;
	free(c);
}

static void on_connection(uv_stream_t *socket, int failed)
{
	listener *l = socket->data;
	connection *c = failed ? NULL : memory_new(1, sizeof *c);
	if (!c) {
		l->waiting = !failed; /* libuv keeps the peer until it is accepted; the tick retries */
		return;
	}
	c->net = l->net;
	c->listener = l;
	c->gone = on_gone;
	c->next = l->first;
	c->link = &l->first;
	if (l->first)
		l->first->link = &c->next;
	l->first = c;
	l->connections++;
	if (l->local)
		uv_pipe_init(l->net->loop, &c->socket.pipe, 0);
	else
		uv_tcp_init(l->net->loop, &c->socket.tcp);
	c->socket.handle.data = c;
	if (uv_accept(socket, &c->socket.stream) != 0) {
		connection_close(c);
		return;
	}
	if (!l->local)
		uv_tcp_nodelay(&c->socket.tcp, 1);
	if (l->connections > LISTENER_MAX_CONNECTIONS)
		connection_refuse(c, 503, "too_many_connections", "the engine has reached its limit of connections");
	else
		connection_begin(c);
}

status listener_open(listener **out, net *n, const char *address, bool allow_remote, error *err)
{
	*out = NULL;
	listener *l = memory_new(1, sizeof *l);
	if (!l)
		return STATUS_NOMEM;
	l->net = n;
	bool local = strncmp(address, "unix:", 5) == 0;
	snprintf(l->address, sizeof l->address, "%s", address);
	status s = local ? bind_unix(l, address + 5, err) : bind_tcp(l, address, allow_remote, err);
	int rc = 0;
	if (s == STATUS_OK) {
		l->socket.handle.data = l;
		rc = uv_listen(&l->socket.stream, LISTENER_BACKLOG, on_connection);
	}
	if (rc != 0)
		s = listener_fail(err, "cannot listen", rc);
	if (s == STATUS_OK && !local)
		describe_tcp(l);
	*out = l; /* also on failure, because only the loop can close an open handle */
	return s;
}

const char *listener_address(const listener *l)
{
	return l->address;
}

void listener_drain(listener *l)
{
	if (l->open)
		uv_close(&l->socket.handle, NULL); /* also removes the file of a Unix socket */
	l->open = false;
	for (connection *c = l->first, *next; c; c = next) {
		next = c->next;
		connection_cancel_streams(c);
	}
}

void listener_close(listener *l)
{
	for (connection *c = l->first, *next; c; c = next) {
		next = c->next;
		connection_close(c);
	}
}

int listener_connections(const listener *l)
{
	return l->connections;
}

void listener_tick(listener *l)
{
	uint64_t now = uv_now(l->net->loop);
	if (l->waiting && l->open) {
		l->waiting = false;
		on_connection(&l->socket.stream, 0);
	}
	for (connection *c = l->first, *next; c; c = next) {
		next = c->next;
		connection_tick(c, now);
	}
}

void listener_free(listener *l)
{
	free(l);
}
