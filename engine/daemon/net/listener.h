/* listener.h - the listening socket and the connections it accepted.
 *
 * At most LISTENER_MAX_CONNECTIONS peers are served; further ones get an error and are closed. A
 * Unix socket is made with mode 0600, and one that a dead process left behind is
 * replaced; the TCP form has no authentication of its own, so it is for loopback, and for other addresses only
 * by option. Loop thread only. */
#ifndef ENGINE_DAEMON_NET_LISTENER_H
#define ENGINE_DAEMON_NET_LISTENER_H

#include <uv.h>

#include "engine/daemon/net/connection.h"

enum { LISTENER_MAX_CONNECTIONS = 64, LISTENER_ADDRESS_BYTES = 256 };

typedef struct listener listener;

/* Listen on "unix:PATH" or "HOST:PORT" (port 0: any). STATUS_CONFLICT when it is in use, STATUS_INVALID when it is no
 * address or reachable from other machines without allow_remote. */
status listener_open(listener **out, net *n, const char *address, bool allow_remote, error *err);
/* The address as a client writes it, with the port chosen. */
const char *listener_address(const listener *l);
/* Stop accepting and cancel what runs; connections stay until the answers are sent. */
void listener_drain(listener *l);
/* Close every connection once its queue is written. */
void listener_close(listener *l);
/* Not yet closed. */
int listener_connections(const listener *l);
void listener_tick(listener *l);
/* After the loop has ended. */
void listener_free(listener *l);

#endif
