/* server.h - what every part of the front end shares: one process, one loop thread (and a pool thread for large
 * bodies, which sees nothing of this), no locks. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <uv.h>

#include "server/auth.h"
#include "server/engine_link.h"
#include "server/metrics.h"
#include "server/site.h"

typedef struct server_limits {
	unsigned connections;             /* open at once */
	unsigned connections_per_address; /* 0: no limit of its own; answered with 429 beyond it */
	uint64_t request_ms;     /* a request must have arrived by then; a long body must keep a minimum rate */
	uint64_t stall_ms;       /* a client that takes nothing of its stream for so long is given up */
	uint64_t ping_ms;        /* after so long a silence a stream gets a comment */
	uint64_t json_bytes;     /* one JSON body */
	uint64_t buffered_bytes; /* all JSON bodies being read */
	uint64_t upload_bytes;   /* one upload */
} server_limits;

typedef struct server {
	uv_loop_t *loop;
	server_limits limits;
	engine_link *engine;
	metrics *metrics;
	const auth *auth;  /* NULL: no keys, every request may */
	site_list sites;   /* allowed as Host and Origin, without keys; their pages may read answers */
	double generation_ms; /* how long generations have taken lately, from request to answer */
	uint64_t buffered; /* bytes of JSON bodies in memory now */
	bool draining;     /* shutting down: running requests may end, new ones are refused */
	bool access_log;
} server;

#endif
