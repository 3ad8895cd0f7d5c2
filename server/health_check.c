/* The answer is short and the server closes the connection after it, so one read loop to the end suffices. */
#include "server/health_check.h"

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

static int health_check_connect(const char *host, const char *port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	if (getaddrinfo(host, port, &hints, &found) != 0)
		return -1;
	struct timeval patience = {.tv_sec = 2};
	int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, found->ai_protocol);
	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
		if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	return fd;
}

/* The whole answer into `answer`, cut at `size` - 1 bytes. False: there is none. */
static bool health_check_ask(const char *listen, char *answer, size_t size)
{
	static const char question[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	char host[96], port[8];
	if (!address_split(listen, host, sizeof host, port, sizeof port))
		return false;
	if (strcmp(host, "0.0.0.0") == 0)
		strcpy(host, "127.0.0.1");
	else if (strcmp(host, "::") == 0)
		strcpy(host, "::1");
	int fd = health_check_connect(host, port);
	if (fd < 0)
		return false;
	size_t got = 0;
	bool sent = send(fd, question, sizeof question - 1, MSG_NOSIGNAL) == (ssize_t)sizeof question - 1;
	while (sent && got < size - 1) {
		ssize_t n = recv(fd, answer + got, size - 1 - got, 0);
		if (n <= 0)
			break;
		got += (size_t)n;
	}
	close(fd);
	answer[got] = '\0';
	return got > 0;
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
