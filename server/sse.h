/* sse.h - one server-sent event as text. */
#ifndef SERVER_SSE_H
#define SERVER_SSE_H

#include "server/buffer.h"

/* id NULL: none. Every line of data gets its own field, so data may hold anything but NUL. */
void sse_event(buffer *out, const char *id, const char *data, size_t bytes);

#endif
