/* sse.h - server-sent events out of bytes that arrive in any pieces (WHATWG HTML, 9.2).
 *
 * Zero-initialise; free with sse_free. Of the fields, `data` and `id` are kept; `event` and
 * `retry` have no meaning in this API. */
#ifndef CLI_SSE_H
#define CLI_SSE_H

#include "clients/cli/text.h"

enum { SSE_ID_BYTES = 128, SSE_MAX_BYTES = 64 << 20 };

typedef struct sse {
	text line, data;
	char id[SSE_ID_BYTES]; /* id of the latest event that had one; kept between events */
	bool after_cr, has_data, started;
} sse;

/* data: NUL-terminated, valid during the call. False: stop. */
typedef bool (*sse_event)(void *context, const char *id, const char *data, size_t bytes);

typedef enum sse_result { SSE_OK, SSE_STOPPED, SSE_TOO_LARGE } sse_result;

/* Calls `each` for every event that these bytes complete. SSE_TOO_LARGE also when out of memory. */
sse_result sse_feed(sse *s, const char *bytes, size_t n, sse_event each, void *context);
void sse_free(sse *s);

#endif
