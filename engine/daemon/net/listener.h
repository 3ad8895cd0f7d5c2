/* listener.h - the listening socket and its connections.
 *
 * At most LISTENER_MAX_CONNECTIONS peers are served; further ones receive an error and are closed. A Unix socket has
 * mode 0600 and replaces one that a dead process left. The TCP form has no authentication of its own: it is meant for
 * loopback, and allows other addresses only by option. Loop thread only. */
#ifndef ENGINE_DAEMON_NET_LISTENER_H
#define ENGINE_DAEMON_NET_LISTENER_H

#include <uv.h>

#include "engine/daemon/net/connection.h"

enum { LISTENER_MAX_CONNECTIONS = 64, LISTENER_ADDRESS_BYTES = 256 };

typedef struct listener listener;

/* Listen on "unix:PATH" or "HOST:PORT" (port 0: any). STATUS_CONFLICT: in use. STATUS_INVALID: not an address, or
 * reachable from other machines without allow_remote. */
status listener_open(listener **out, net *n, const char *address, bool allow_remote, error *err);
/* Return the address in the client's notation, with the actual port. */
const char *listener_address(const listener *l);
/* Stop accepting and cancel running requests; connections stay open until the answers are sent. */
void listener_drain(listener *l);
/* Close every connection once its queue is written. */
void listener_close(listener *l);
/* Return the number of connections not yet closed. */
int listener_connections(const listener *l);
void listener_tick(listener *l);
/* Free, after the loop has ended. */
void listener_free(listener *l);

#endif
