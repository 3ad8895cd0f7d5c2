/* choice_events.h - the events of one choice as JSON (PROTOCOL.md, Generation).
 *
 * Log-probabilities and importance weights refer to positions in the text, so a choice's events share its earlier text.
 * An event without either, the usual case, is written to a buffer without building a document. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_CHOICE_EVENTS_H
#define ENGINE_DAEMON_GENERATION_CHOICE_EVENTS_H

#include <jansson.h>

#include "engine/serve/scheduler.h"
#include "proto/plain_event.h"

typedef struct choice_events {
	/* Set by the caller before the first event: */
	const tokenizer *tokenizer;
	int index;           /* number of the choice in the answer */
	bool chat;           /* log-probabilities as chat completions have them */
	const char *model;   /* named by the next event; NULL: omitted */
	const int32_t *echo; /* the prompt, with which the text begins; NULL: it does not, or has been sent */
	int64_t n_echo;
	const json_t *echo_text; /* NULL: the text of the tokens */
	/* Private, zero before the first event: */
	text_stream text;   /* logprobs: the text of the sampled tokens */
	int64_t characters; /* number of characters of that text */
	int32_t *ids;       /* alpha: the sequence so far */
	int64_t *offsets;   /* bytes of text before each token, and after the last */
	int64_t n_ids, ids_capacity;
	text_stream sequence; /* alpha: text of `ids` */
} choice_events;

void choice_events_fini(choice_events *c);
/* True for a plain event (proto/plain_event.h). */
bool choice_events_plain(const choice_events *c, const generation_event *e);
/* Write a plain event and return its bytes; no NUL is added. */
size_t choice_events_write(const choice_events *c, const generation_event *e, char json[PLAIN_EVENT_BYTES]);
/* Return any event as a document; NULL: out of memory. */
json_t *choice_events_object(choice_events *c, const generation_event *e);
/* Append these tokens to the sequence that importance weights index by position. STATUS_NOMEM. */
status choice_events_remember(choice_events *c, const int32_t *ids, int64_t n);

#endif
