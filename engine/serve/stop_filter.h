/* stop_filter.h - text up to the first stop sequence, as it streams.
 *
 * Text that could be the start of a stop sequence is held back until more text decides. The sequence that is complete
 * first ends the text; of two that end together, the longer. The result therefore does not depend on how the text was
 * cut. The stop sequence is not part of the text. */
#ifndef ENGINE_SERVE_STOP_FILTER_H
#define ENGINE_SERVE_STOP_FILTER_H

#include "engine/serve/scheduler.h"

typedef struct stop_filter {
	char stops[SCHEDULER_MAX_STOPS][SCHEDULER_MAX_STOP_BYTES];
	size_t length[SCHEDULER_MAX_STOPS];
	int count;
	bool found; /* a stop sequence was found; no more text follows */
	char *text; /* [used] the `given` bytes that the last call returned, then text held back */
	size_t given, used, capacity;
} stop_filter;

/* Copy the stops. STATUS_INVALID "stop": too many, or one is empty or too long. */
status stop_filter_init(stop_filter *f, const char *const *stops, int count, error *err);
void stop_filter_fini(stop_filter *f);

/* Append text. *out [*out_bytes] is the text that is final now, valid until the next call. flush: no more text follows,
 * so nothing is held back. STATUS_NOMEM leaves the filter unchanged. */
status stop_filter_push(stop_filter *f, const char *text, size_t bytes, bool flush, const char **out,
                        size_t *out_bytes);

#endif
