/* metrics.h - the contents of /metrics, in the Prometheus text format; names additive_…, base units.
 *
 * Labels come from fixed sets only (routes, methods, status codes), so the number of series is bounded whatever clients
 * send. The engine's own metrics are appended, except those whose names are used here. */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <jansson.h>
#include <stdint.h>

#include "server/buffer.h"

struct route;
typedef struct metrics metrics;

metrics *metrics_new(void);
void metrics_free(metrics *m);

void metrics_connection_begins(metrics *m);
void metrics_connection_ends(metrics *m);
uint64_t metrics_connections(const metrics *m);
uint64_t metrics_requests(const metrics *m);
/* Called when a request is allocated, and when it is freed. */
void metrics_request_begins(metrics *m);
/* fitted: the row, or NULL if none fitted. status 0: ended without an answer, counted as 499. */
void metrics_request_ends(metrics *m, const struct route *fitted, int status, double seconds);
/* Times of a generation: from the request's start to its first text; between two events, over `tokens` tokens; in the
 * queue. */
void metrics_first_token(metrics *m, double seconds);
void metrics_next_tokens(metrics *m, double seconds, size_t tokens);
void metrics_queue(metrics *m, double seconds);

/* The spans of these requests, a number, were dropped. */
void metrics_traces_dropped(metrics *m, uint64_t requests);

/* Append everything. engine: RESULT of engine.metrics, or NULL while the engine is unavailable. */
void metrics_write(const metrics *m, bool engine_up, const json_t *engine, buffer *out);

#endif
