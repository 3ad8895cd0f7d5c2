#include "server/site.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

enum { SITE_NAME_BYTES = 256 };

/* The name of "NAME", "NAME:PORT" or "[V6]:PORT", without brackets and a last dot; false when it is none. */
static bool site_name(const char *authority, char out[SITE_NAME_BYTES])
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
	if (bytes == 0 || bytes >= SITE_NAME_BYTES)
		return false;
	memcpy(out, authority + first, bytes);
	out[bytes] = '\0';
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

static bool site_is_listed(const site_list *list, const char *name)
{
	for (size_t i = 0; i < list->count; i++)
		if (strcmp(list->names[i], "*") == 0 || strcasecmp(list->names[i], name) == 0)
			return true;
	return false;
}

bool site_name_valid(const char *name)
{
	char plain[SITE_NAME_BYTES];
	return name[0] && !strpbrk(name, ":/[] ,") && site_name(name, plain) && strcmp(name, plain) == 0;
}

bool site_allows_host(const site_list *list, const char *host, bool loopback)
{
	char name[SITE_NAME_BYTES];
	if (!host) /* HTTP/1.0, which no browser speaks */
		return true;
	if (!site_name(host, name))
		return site_is_listed(list, "");
	return site_is_fixed(name) || site_is_listed(list, name) || (list->count == 0 && !loopback);
}

bool site_allows_origin(const site_list *list, const char *origin, const char *host)
{
	char name[SITE_NAME_BYTES];
	const char *authority = strstr(origin, "://");
	if (!authority)
		return site_is_listed(list, ""); /* "null": a page without a site */
	authority += 3;
	return (host && strcasecmp(authority, host) == 0) || (site_name(authority, name) && site_is_listed(list, name));
}
