/* stop_filter.h - text up to the first stop sequence, as it streams.
 *
 * What could be the beginning of a stop sequence is held back until more text decides. The
 * sequence that is complete first ends the text (of two that end together, the longer), so the result
 * does not depend on how the text was cut into pieces. The stop sequence is not part of the text. */
#ifndef ENGINE_SERVE_STOP_FILTER_H
#define ENGINE_SERVE_STOP_FILTER_H

#include "engine/serve/scheduler.h"

typedef struct stop_filter {
	char stops[SCHEDULER_MAX_STOPS][SCHEDULER_MAX_STOP_BYTES];
	size_t length[SCHEDULER_MAX_STOPS];
	int count;
	bool found; /* nothing comes after this */
	char *text; /* given out, then held back */
	size_t given, used, capacity;
} stop_filter;

/* Copies the stops; STATUS_INVALID names "stop" when there are too many, or an empty or too long one. */
status stop_filter_init(stop_filter *f, const char *const *stops, int count, error *err);
void stop_filter_fini(stop_filter *f);

/* Append text. *out, *out_bytes: what can be said now; valid until the next call. flush: nothing more is
 * coming, so nothing is held back. STATUS_NOMEM leaves the filter as it was. */
status stop_filter_push(stop_filter *f, const char *text, size_t bytes, bool flush, const char **out,
                        size_t *out_bytes);

#endif
