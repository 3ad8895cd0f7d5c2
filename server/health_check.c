/* The answer is short and the server closes the connection after it, so one read loop to the end suffices. */
#include "server/health_check.h"

#include <gnutls/gnutls.h>
#include <jansson.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "proto/json_memory.h"
#include "server/address.h"

enum { HEALTH_CHECK_SECONDS = 2 };

static int health_check_connect(const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	if (getaddrinfo(host, port, &hints, &found) != 0)
		return -1;
	struct timeval patience = {.tv_sec = HEALTH_CHECK_SECONDS};
	int fd = -1;
	for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
		if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	return fd;
}

/* The peer is a server on this machine, so its certificate is not verified. */
static gnutls_session_t health_check_encrypt(int fd, gnutls_certificate_credentials_t credentials)
{
	gnutls_session_t session;
	int failed = gnutls_init(&session, GNUTLS_CLIENT);
	if (failed)
		return NULL;
	gnutls_set_default_priority(session);
	gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials);
	gnutls_transport_set_int(session, fd);
	gnutls_handshake_set_timeout(session, HEALTH_CHECK_SECONDS * 1000);
	gnutls_record_set_timeout(session, HEALTH_CHECK_SECONDS * 1000);
	do
		failed = gnutls_handshake(session);
	while (failed < 0 && !gnutls_error_is_fatal(failed));
	if (!failed)
		return session;
	gnutls_deinit(session);
	return NULL;
}

/* A record without data, such as a session ticket, ends gnutls_record_recv with an error that is not fatal. Silence
 * ends it with one that is, GNUTLS_E_TIMEDOUT. */
static ssize_t health_check_receive(int fd, gnutls_session_t session, char *answer, size_t room)
{
	ssize_t n;
	do
		n = session ? gnutls_record_recv(session, answer, room) : recv(fd, answer, room, 0);
	while (session && n < 0 && !gnutls_error_is_fatal((int)n));
	return n;
}

/* Write the whole answer into `answer`, cut at `size` - 1 bytes, and return its length. session: NULL for plain HTTP.
 */
static size_t health_check_exchange(int fd, gnutls_session_t session, char *answer, size_t size)
{
	static const char question[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	const size_t bytes = sizeof question - 1;
	size_t got = 0;
	ssize_t n = session ? gnutls_record_send(session, question, bytes) : send(fd, question, bytes, MSG_NOSIGNAL);
	bool more = n == (ssize_t)bytes;
	while (more && got < size - 1) {
		n = health_check_receive(fd, session, answer + got, size - 1 - got);
		more = n > 0;
		got += more ? (size_t)n : 0;
	}
	answer[got] = '\0';
	return got;
}

/* As health_check_exchange, on a connection of its own. */
static size_t health_check_connect_and_ask(const char *host, const char *port, bool encrypted, char *answer,
                                           size_t size)
{
	gnutls_certificate_credentials_t credentials = NULL;
	gnutls_session_t session = NULL;
	size_t got = 0;
	int fd = health_check_connect(host, port);
	if (fd < 0)
		return 0;
	if (encrypted && gnutls_certificate_allocate_credentials(&credentials) == 0)
		session = health_check_encrypt(fd, credentials);
	if (session || !encrypted)
		got = health_check_exchange(fd, session, answer, size);
	if (session)
		gnutls_deinit(session);
	if (credentials)
		gnutls_certificate_free_credentials(credentials);
	close(fd);
	return got;
}

/* The caller does not know whether the server speaks TLS. Such a server closes a plain connection without an answer. */
static bool health_check_ask(const char *listen, char *answer, size_t size)
{
	char host[96], port[8];
	if (!address_split(listen, host, sizeof host, port, sizeof port))
		return false;
	if (strcmp(host, "0.0.0.0") == 0)
		strcpy(host, "127.0.0.1");
	else if (strcmp(host, "::") == 0)
		strcpy(host, "::1");
	return health_check_connect_and_ask(host, port, false, answer, size) > 0 ||
	       health_check_connect_and_ask(host, port, true, answer, size) > 0;
}

static int health_check_backend(const json_t *state, const char *required)
{
	const char *backend = json_string_value(json_object_get(state, "backend"));
	const char *device = json_string_value(json_object_get(state, "device"));
	if (backend)
		printf("backend %s, device %s\n", backend, device ? device : "unknown");
	else
		puts("no backend: the engine is unavailable");
	if (!required || (backend && strcmp(backend, required) == 0))
		return 0;
	fprintf(stderr, "additive-httpd: the backend must be %s\n", required);
	return 1;
}

int health_check(const char *listen, const char *required_backend)
{
	static const char expected[] = "HTTP/1.1 200 ";
	char answer[4096];
	if (!health_check_ask(listen, answer, sizeof answer)) {
		fprintf(stderr, "additive-httpd: no server answers at %s\n", listen);
		return 1;
	}
	if (strncmp(answer, expected, sizeof expected - 1) != 0) {
		fprintf(stderr, "additive-httpd: the answer of %s is not 200: %.*s\n", listen,
		        (int)strcspn(answer, "\r\n"), answer);
		return 1;
	}
	const char *body = strstr(answer, "\r\n\r\n");
	json_t *state = body ? json_memory_parse(body, strlen(body), 0, NULL) : NULL;
	int status = health_check_backend(state, required_backend);
	json_decref(state);
	return status;
}
