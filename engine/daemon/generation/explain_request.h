/* explain_request.h - the methods explain and session.alpha, and the explanations of classified texts. Loop thread,
 * except where said. */
#ifndef ENGINE_DAEMON_GENERATION_EXPLAIN_REQUEST_H
#define ENGINE_DAEMON_GENERATION_EXPLAIN_REQUEST_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/net/stream.h"

void explain_request_create(stream *s);  /* explain */
void explain_request_session(stream *s); /* session.alpha */

/* Return {"tokens","position","aggregate"} for a sequence that a classifier has read, computed from its log: the mean
 * over all layers, rounds and heads, for the positions that the head reads. New reference; NULL without err: out of
 * memory. Any thread. */
json_t *explain_request_classified(const model_entry *m, const int32_t *ids, int64_t n, const float *log, error *err);

#endif
