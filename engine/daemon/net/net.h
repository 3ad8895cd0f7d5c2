/* net.h - data that all connections of a process share: the loop, the counters, and links to the rooms above.
 *
 * The owner fills in the marked fields, zeroes the rest, and keeps the struct in place until the loop has ended. Loop
 * thread only. */
#ifndef ENGINE_DAEMON_NET_NET_H
#define ENGINE_DAEMON_NET_NET_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "engine/base/status.h"

struct connection;
struct stream;
struct store;
struct idempotency;
struct responses;

typedef struct net {
	/* Set by the owner: */
	uv_loop_t *loop;
	void (*request)(struct stream *s, const char *method); /* called for a REQUEST; answers s at once or later */
	void (*answered)(struct stream *s, status result, const char *text); /* called before s is answered; text:
	                                                                      * RESULT or ERROR, or NULL */
	void *owner;                                                         /* for `request` and `answered` */
	struct store *store;                                   /* the ledger and the blobs */
	struct idempotency *idempotency;                       /* repeatable requests */
	struct responses *responses;                           /* generations kept under an id */
	const char *backend, *device;                          /* sent in HELLO */
	struct death_log *deaths;                              /* counts requests that compute; NULL: none */
	bool draining;                                         /* the engine is stopping, */
	bool device_lost;                                      /* because its device is lost; it will re-execute
	                                                        * itself */
	/* Read by the owner: */
	uint64_t requests, failures; /* answered with RESULT, with ERROR */
	int streams;                 /* unanswered, including those of closed connections */
	/* Private: */
	struct stream *deadlines;     /* those with a limit of time (deadline.h) */
	uv_timer_t deadline;          /* set up by the owner, its data being this struct */
	struct connection *unflushed; /* connections that have gathered frames */
	struct connection *broken;    /* connections to drop */
	char read_buffer[64 << 10];   /* shared by all reads */
} net;

#endif
