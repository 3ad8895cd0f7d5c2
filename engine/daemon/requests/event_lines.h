/* event_lines.h - the events of one answer as JSON texts, one a line, so that they can be sent later.
 *
 * Zero-initialise. Free `data`. Loop thread only. */
#ifndef ENGINE_DAEMON_REQUESTS_EVENT_LINES_H
#define ENGINE_DAEMON_REQUESTS_EVENT_LINES_H

#include "engine/daemon/net/stream.h"

typedef struct event_lines {
	char *data;
	size_t bytes, capacity;
} event_lines;

/* Return the bytes by which the buffer grows if an event of `bytes` is added; 0: there is room. */
size_t event_lines_growth(const event_lines *l, size_t bytes);
/* Append an event. False: out of memory. */
bool event_lines_add(event_lines *l, const char *json, size_t bytes);
/* Fill an empty buffer with whole lines. False: out of memory. */
bool event_lines_set(event_lines *l, const char *lines, size_t bytes);
/* Release the room that growth has left unused, and return its bytes. */
size_t event_lines_fit(event_lines *l);
/* Send the events from byte `at` on, while s accepts them. Returns the byte of the next event; l->bytes: all are sent.
 */
size_t event_lines_send(const event_lines *l, stream *s, size_t at);

#endif
