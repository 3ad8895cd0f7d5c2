#include "server/site.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SITE_NO_PORT = -1, SITE_MAX_PORT = 65535, SITE_HTTP = 80, SITE_HTTPS = 443 };

/* Read "NAME", "NAME:PORT" or "[V6]:PORT": the name without brackets and a last dot; the port or SITE_NO_PORT. */
static bool site_read(site *out, const char *authority)
{
	const char *end = authority[0] == '[' ? strchr(authority, ']') : strchr(authority, ':');
	size_t first = authority[0] == '[', bytes;
	if (!end)
		end = first ? authority : authority + strlen(authority);
	const char *port = end + (*end == ']');
	if (end < authority + first || (*port && (*port != ':' || port[1 + strspn(port + 1, "0123456789")])))
		return false;
	bytes = (size_t)(end - authority) - first;
	if (bytes > 1 && !first && end[-1] == '.')
		bytes--;
	if (bytes == 0 || bytes >= sizeof out->name)
		return false;
	memcpy(out->name, authority + first, bytes);
	out->name[bytes] = '\0';
	long number = *port && port[1] ? strtol(port + 1, NULL, 10) : SITE_NO_PORT;
	out->port = number > SITE_MAX_PORT ? SITE_MAX_PORT + 1 : (int)number;
	return true;
}

/* Read "SCHEME://AUTHORITY"; an origin without a port has that of its scheme. */
static bool site_read_origin(site *out, const char *origin)
{
	const char *authority = strstr(origin, "://");
	if (!authority || !site_read(out, authority + 3))
		return false;
	if (out->port == SITE_NO_PORT && strncasecmp(origin, "https:", 6) == 0)
		out->port = SITE_HTTPS;
	else if (out->port == SITE_NO_PORT && strncasecmp(origin, "http:", 5) == 0)
		out->port = SITE_HTTP;
	return true;
}

static bool site_is_fixed(const char *name)
{
	static const char localhost[] = ".localhost";
	struct in6_addr address;
	size_t bytes = strlen(name), suffix = sizeof localhost - 1;
	return strcasecmp(name, localhost + 1) == 0 ||
	       (bytes > suffix && strcasecmp(name + bytes - suffix, localhost) == 0) ||
	       inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
}

/* A Host without a port has that of either scheme: a proxy may have taken https off. */
static bool site_has_port(const site *listed, const site *given)
{
	return listed->port == SITE_NO_PORT || listed->port == given->port ||
	       (given->port == SITE_NO_PORT && (listed->port == SITE_HTTP || listed->port == SITE_HTTPS));
}

static bool site_is_listed(const site_list *list, const site *given)
{
	for (size_t i = 0; i < list->count; i++)
		if (strcasecmp(list->sites[i].name, given->name) == 0 && site_has_port(&list->sites[i], given))
			return true;
	return site_lists_all(list);
}

bool site_parse(site *out, const char *text)
{
	size_t bytes = strlen(text);
	bool whole = bytes > 0 && !strpbrk(text, "/ ,@") && text[bytes - 1] != ':' && text[bytes - 1] != '.';
	return whole && site_read(out, text) && out->port <= SITE_MAX_PORT && out->port != 0 &&
	       (strcmp(out->name, "*") != 0 || out->port == SITE_NO_PORT);
}

bool site_lists_all(const site_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		if (strcmp(list->sites[i].name, "*") == 0)
			return true;
	return false;
}

bool site_allows_host(const site_list *list, const char *host, bool loopback)
{
	site given;
	if (!host) /* HTTP/1.0, which no browser speaks */
		return true;
	if (!site_read(&given, host))
		return site_lists_all(list);
	return site_is_fixed(given.name) || site_is_listed(list, &given) || (list->count == 0 && !loopback);
}

bool site_lists_origin(const site_list *list, const char *origin)
{
	site given;
	return site_read_origin(&given, origin) ? site_is_listed(list, &given)
	                                        : site_lists_all(list); /* "null": a page without a site */
}

bool site_allows_origin(const site_list *list, const char *origin, const char *host)
{
	const char *authority = strstr(origin, "://");
	return (authority && host && strcasecmp(authority + 3, host) == 0) || site_lists_origin(list, origin);
}
