/* server.h - state shared by all parts of the front end: one process, one loop thread, no locks. A pool thread parses
 * large bodies and does not access this state. settings.h lists what SIGHUP changes in it. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include <uv.h>

#include "server/address.h"
#include "server/engine_keys.h"
#include "server/engine_link.h"
#include "server/metrics.h"
#include "server/site.h"

typedef struct server_limits {
	unsigned connections;             /* maximum number of open connections */
	unsigned connections_per_address; /* 0: no limit; answered with 429 beyond it */
	uint64_t request_ms;              /* time limit for a request to arrive; a long body must keep a minimum rate */
	uint64_t stall_ms;       /* a client that reads nothing from its stream for this long is disconnected */
	uint64_t ping_ms;        /* a stream that is silent for this long gets a comment */
	uint64_t grace_ms;       /* time for running requests after SIGTERM */
	uint64_t json_bytes;     /* limit for one JSON body */
	uint64_t buffered_bytes; /* limit for all JSON bodies being read */
	uint64_t upload_bytes;   /* limit for one upload */
} server_limits;

typedef struct server {
	uv_loop_t *loop;
	server_limits limits;
	engine_link *engine;
	metrics *metrics;
	struct trace *trace;  /* NULL: none */
	bool tls;             /* connections are encrypted (tls.h) */
	auth *auth;           /* keys of the file; NULL: there is none */
	engine_keys keys;     /* without a file and without these, every request is allowed */
	site_list sites;      /* allowed as Host and Origin, without keys; their pages may read answers */
	address_range *proxies; /* peers that may name a tenant (call_headers.h) */
	int n_proxies;
	double generation_ms; /* mean duration of recent generations, from request to answer */
	uint64_t buffered;    /* bytes of JSON bodies in memory now */
	bool draining;        /* shutting down: running requests may end, new ones are refused */
	bool access_log;
	bool web; /* serve the page at / */
} server;

#endif
