/* net.h - what all connections of a process share: the loop, the counters, and what belongs to the rooms above.
 *
 * The owner fills in what is marked, zeroes the rest, and keeps it in place until the loop has ended. Loop thread
 * only. */
#ifndef ENGINE_DAEMON_NET_NET_H
#define ENGINE_DAEMON_NET_NET_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct connection;
struct stream;

typedef struct net {
	/* The owner's: */
	uv_loop_t *loop;
	void (*request)(struct stream *s, const char *method); /* a REQUEST has come; answers s, at once or later */
	struct engine *engine;                                 /* handed on to streams */
	const char *backend, *device;                          /* sent in HELLO */
	struct death_log *deaths;                              /* counts requests that compute; NULL: not counted */
	bool draining;                                         /* the engine stops, */
	bool device_lost;                                      /* since its device is lost, and begins anew */
	/* Read by the owner: */
	uint64_t requests, failures; /* answered with RESULT, with ERROR */
	int streams;                 /* not yet answered, of connections that have gone too */
	/* Private: */
	struct connection *unflushed; /* connections that have gathered frames */
	struct connection *broken;    /* connections to drop */
	char read_buffer[64 << 10];   /* all connections read through it */
} net;

#endif
