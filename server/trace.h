/* trace.h - spans of requests, sent to an OpenTelemetry collector as OTLP/HTTP with JSON.
 *
 * A request is a span. The engine's work on it is another within it, "engine", from the times that the engine reports
 * with its answer. A generation has three more within that: queue, prefill and decode. Spans hold names of endpoints, statuses, ids and times, never anything that a client wrote but
 * its ids.
 *
 * A request only adds a record to a ring of fixed size. Once a second a timer sends the records, over a connection of its
 * own. Records that find the ring full, and those that the collector does not take, are dropped and counted. The engine
 * makes the spans of jobs (job_spans.h); they are sent again until the collector takes or refuses them. Loop thread
 * only. */
#ifndef SERVER_TRACE_H
#define SERVER_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "server/metrics.h"

struct engine_link;
struct request;
typedef struct trace trace;

enum { TRACE_PARENT_BYTES = 56 };

/* The place of a request in a trace (W3C Trace Context). */
typedef struct trace_ids {
	unsigned char trace[16], parent[8], span[8];
	bool has_parent;
	bool sampled; /* it is to be sent */
} trace_ids;

/* Send to "http://HOST:PORT" or "http://HOST:PORT/PATH"; without a path, to /v1/traces. NULL, with a message logged,
 * if the endpoint is malformed or its name cannot be resolved. */
trace *trace_new(uv_loop_t *loop, metrics *m, const char *endpoint);
/* Also send the spans of the engine's jobs. l must outlive the loop's run. */
void trace_follow_jobs(trace *t, struct engine_link *l);
/* Send what is left, for a second at most, and close the handles. Free after the loop has ended. */
void trace_close(trace *t);
void trace_free(trace *t);

/* Write the header that makes a call part of the request's span. */
void trace_write_parent(const trace_ids *ids, char out[TRACE_PARENT_BYTES]);
/* Set the ids of a new request. traceparent: the header; without a valid one, a new trace begins. */
void trace_begin(trace_ids *ids, const char *traceparent);
/* Add the record of a request that has ended. */
void trace_end(trace *t, const struct request *r);

#endif
