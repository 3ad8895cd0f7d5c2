/* rate_headers.h - the limits of a request's key, from a note of the engine to the headers of the answer. */
#ifndef SERVER_RATE_HEADERS_H
#define SERVER_RATE_HEADERS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/frame.h"

enum { RATE_KINDS = 2, RATE_HEADERS = 3 * RATE_KINDS };

typedef struct rate_state {
	bool known;
	int64_t limit, remaining;
	double reset; /* seconds until all of it can be used again */
} rate_state;

typedef struct rate_headers {
	rate_state kinds[RATE_KINDS]; /* requests, then tokens */
} rate_headers;

typedef struct rate_header {
	const char *name;
	char value[32];
} rate_header;

/* Read {"requests": [LIMIT, REMAINING, RESET]?, "tokens": […]?}. */
void rate_headers_read(rate_headers *h, const frame *note);
/* Write the headers; returns their number. */
int rate_headers_write(const rate_headers *h, rate_header out[RATE_HEADERS]);

#endif
