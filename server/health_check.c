/* The status line is all that matters, so one read loop until it is there will do. */
#include "server/health_check.h"

#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

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

int health_check(const char *listen)
{
	static const char question[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
	static const char wanted[] = "HTTP/1.1 200 ";
	char host[96], port[8], answer[sizeof wanted] = "";
	if (!address_split(listen, host, sizeof host, port, sizeof port))
		return 1;
	if (strcmp(host, "0.0.0.0") == 0)
		strcpy(host, "127.0.0.1");
	else if (strcmp(host, "::") == 0)
		strcpy(host, "::1");
	int fd = health_check_connect(host, port);
	if (fd < 0)
		return 1;
	size_t got = 0;
	bool sent = send(fd, question, sizeof question - 1, MSG_NOSIGNAL) == (ssize_t)sizeof question - 1;
	while (sent && got < sizeof wanted - 1) {
		ssize_t n = recv(fd, answer + got, sizeof wanted - 1 - got, 0);
		if (n <= 0)
			break;
		got += (size_t)n;
	}
	close(fd);
	return memcmp(answer, wanted, sizeof wanted - 1) != 0;
}
