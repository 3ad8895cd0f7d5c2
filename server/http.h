/* http.h - libmicrohttpd inside the libuv loop: the listener, its connections, their deadlines, the end.
 *
 * A connection ("peer") lives as long as its socket and serves one request at a time. This file closes gaps that the
 * library leaves open:
 *
 * - It does not notice a resumed connection by itself: http_peer_wake makes it run.
 * - It does not see events on a suspended connection. Every connection is therefore watched for the client's leaving. A
 *   client that closes only its sending side and then has to wait counts as gone, since the two cannot be distinguished
 *   in time.
 * - Its timeout is reset by every byte: a peer has one deadline, moved only by real progress.
 * - It may end a request without a callback: the peer owns its request and frees it at the latest with itself.
 * - It may stop reading and wait without limit: the sweep finds input that stays unread, and ends the connection.
 * - Stopping it with suspended connections aborts the process: http_drain ends every request first. */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include <microhttpd.h>
#include <uv.h>

#include "server/address.h"
#include "server/server.h"

typedef struct http http;
typedef struct http_peer http_peer;
struct request;

/* Listen on an address of address_split (port 0: any). NULL, with a message on stderr, on failure. */
http *http_new(server *s, const char *listen);
/* The address as in a URL, "127.0.0.1:8080", with the real port. */
const char *http_address(const http *h);
bool http_on_loopback(const http *h);
/* Stop accepting, and let running requests end within grace_ms. The others end with an error in the last tenth of this
 * time, at most half a second. Half a second later every connection is cut, so a slow client delays the end only if
 * grace_ms is below 5 s. `done` is called when no connection is left. Calling it again makes the grace zero. */
void http_drain(http *h, uint64_t grace_ms, void (*done)(void *context), void *context);
/* Stop the library and close the handles, after `done`. Free after the loop has ended. */
void http_stop(http *h);
void http_free(http *h);

/* --- for the request on a connection ---------------------------------------------- */

http_peer *http_peer_of(struct MHD_Connection *connection);
/* The current request, or NULL. */
struct request *http_peer_request(const http_peer *p);
/* The client, as address_client writes it. */
void http_peer_client(const http_peer *p, char out[ADDRESS_TEXT_BYTES]);
/* The client's whole address, as address_text writes it. */
void http_peer_address(const http_peer *p, char out[ADDRESS_TEXT_BYTES]);
/* True if the address is one of --trusted-proxies. */
bool http_peer_trusted(const http_peer *p);
/* True if the connection came in on a loopback address. */
bool http_peer_loopback(const http_peer *p);
/* head_scan.h */
bool http_peer_head_is_odd(const http_peer *p);
bool http_peer_head_is_last(const http_peer *p);
/* True if the connection exceeds the limit of its address. */
bool http_peer_excess(const http_peer *p);
/* Close the socket unless something happens within ms; 0: never. */
void http_peer_deadline(http_peer *p, uint64_t ms);
/* Extend the remaining time by ms, up to cap ms from now. */
void http_peer_extend(http_peer *p, uint64_t ms, uint64_t cap);
/* The connection was suspended: request_gone is called when the client leaves, or has left. */
void http_peer_watch(http_peer *p);
/* The connection was resumed: let the library run before the loop sleeps. */
void http_peer_wake(http_peer *p);
/* Write bytes past the library and close the sending side, so that later writes of the library fail. The library must
 * not have begun an answer. */
void http_peer_send_last(http_peer *p, const void *data, size_t bytes);

#endif
