/* site.h - under which names this server may be addressed, and from which sites' pages.
 *
 * A page on the web can point a name of its own at an address that only its reader can reach ("DNS rebinding"), and its
 * requests then carry that name as Host. And any page can send simple requests to other addresses; those carry the
 * page's own site as Origin. Neither can know a key, so all this matters only without keys.
 *
 * A Host that is an IP address, localhost or *.localhost cannot be rebound and is always accepted. Another name is
 * accepted if it is on the list (--allow-host); without a list also if the connection came in on an
 * address that is not loopback: there the server is meant to be reached under names that it does not know, as in a
 * container. An Origin is accepted if it is the Host itself (name and port), or its name is on the list. */
#ifndef SERVER_SITE_H
#define SERVER_SITE_H

#include <stdbool.h>
#include <stddef.h>

/* Names from the command line, borrowed; "*" is every name. Zero: no list. */
typedef struct site_list {
	const char **names;
	size_t count;
} site_list;

/* A name as it may stand on the list: without scheme and port. */
bool site_name_valid(const char *name);
/* host: the header's value, NULL: there is none. loopback: the connection came in on a loopback address. */
bool site_allows_host(const site_list *list, const char *host, bool loopback);
/* origin: the header's value, not NULL. */
bool site_allows_origin(const site_list *list, const char *origin, const char *host);

#endif
