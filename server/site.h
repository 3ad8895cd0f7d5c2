/* site.h - the names under which this server may be addressed, and the sites whose pages may send requests.
 *
 * A page on the web can point a name of its own at an address that only its reader can reach ("DNS rebinding"); its
 * requests then carry that name as Host. Any page can also send simple requests to other addresses; those carry the
 * page's own site as Origin. Neither can know a key, so these checks matter only without keys.
 *
 * A Host that is an IP address, localhost or *.localhost cannot be rebound and is always accepted. Another name is
 * accepted if it is on the list (--allow-host). Without a list it is also accepted if the connection came in on an
 * address that is not loopback, since a server in a container does not know its names. An Origin is accepted if it
 * equals the Host (name and port) or is on the list. Pages of origins on the list may also read the answers
 * (cors.h). */
#ifndef SERVER_SITE_H
#define SERVER_SITE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct site {
	char name[256]; /* without brackets; "*": every name */
	int port;       /* -1: any */
} site;

/* The list from the command line; zero: no list. */
typedef struct site_list {
	site *sites;
	size_t count;
} site_list;

/* Read "NAME", "NAME:PORT", "[V6]:PORT" or "*"; false if malformed. */
bool site_parse(site *out, const char *text);
/* host: the header's value, or NULL. loopback: the connection came in on a loopback address. */
bool site_allows_host(const site_list *list, const char *host, bool loopback);
/* origin: the header's value, not NULL. An origin without a port has that of its scheme. */
bool site_allows_origin(const site_list *list, const char *origin, const char *host);
bool site_lists_origin(const site_list *list, const char *origin);
/* True if "*" is on the list. */
bool site_lists_all(const site_list *list);

#endif
