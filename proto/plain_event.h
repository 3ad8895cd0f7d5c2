/* plain_event.h - the common EVENT of a generation, in one fixed form: {"index":I,"text":"…","tokens":[…],"time_ms":T}.
 *
 * The engine writes it and the front end reads it without building a document, since both do so for every token. An
 * event with other keys or another order is left to the JSON parser. No state. */
#ifndef PROTO_PLAIN_EVENT_H
#define PROTO_PLAIN_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limits on text and tokens of a plain event; within them it has at most PLAIN_EVENT_BYTES. */
enum {
	PLAIN_EVENT_TEXT = 256,
	PLAIN_EVENT_TOKENS = 8,
	PLAIN_EVENT_BYTES = 128 + 6 * PLAIN_EVENT_TEXT + 12 * PLAIN_EVENT_TOKENS
};

/* The event to be written; no token is negative. */
typedef struct plain_event {
	int index;
	const char *text; /* UTF-8 */
	size_t text_bytes;
	const int32_t *tokens;
	int n_tokens;
	double time_ms;
} plain_event;

/* The event as read; the pointers refer to the text it was read from. */
typedef struct plain_event_view {
	const char *index; /* digits of the index */
	size_t index_bytes;
	const char *text; /* contents of the string, still escaped */
	size_t text_bytes;
	size_t n_tokens;
} plain_event_view;

/* Returns the number of bytes written, without a NUL. */
size_t plain_event_write(const plain_event *e, char json[PLAIN_EVENT_BYTES]);
/* False if the event is not of this form or has no tokens; *out is undefined then. */
bool plain_event_read(plain_event_view *out, const char *json, size_t bytes);

#endif
