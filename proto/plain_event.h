/* plain_event.h - an EVENT of a generation as nearly every one is: {"index":I,"text":"…","tokens":[…],"time_ms":T},
 * written just so.
 *
 * The engine writes it and the front end reads it without building a document, which both do for every token. An event
 * with more than that, or with keys in another order, is JSON like any other, and is left to the parser. No state. */
#ifndef PROTO_PLAIN_EVENT_H
#define PROTO_PLAIN_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* At most so many bytes of text and tokens are written as one; then it has at most PLAIN_EVENT_BYTES. */
enum {
	PLAIN_EVENT_TEXT = 256,
	PLAIN_EVENT_TOKENS = 8,
	PLAIN_EVENT_BYTES = 128 + 6 * PLAIN_EVENT_TEXT + 12 * PLAIN_EVENT_TOKENS
};

/* As it is written; no token is negative. */
typedef struct plain_event {
	int index;
	const char *text; /* UTF-8 */
	size_t text_bytes;
	const int32_t *tokens;
	int n_tokens;
	double time_ms;
} plain_event;

/* As it is read: parts of the text it was read from. */
typedef struct plain_event_view {
	const char *index; /* its digits */
	size_t index_bytes;
	const char *text; /* what is between the quotes, still escaped */
	size_t text_bytes;
	size_t n_tokens;
} plain_event_view;

/* Returns the bytes written, which no NUL ends. */
size_t plain_event_write(const plain_event *e, char json[PLAIN_EVENT_BYTES]);
/* False: it is not of this form, or has no tokens. *out is undefined then. */
bool plain_event_read(plain_event_view *out, const char *json, size_t bytes);

#endif
