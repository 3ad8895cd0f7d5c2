/* answer_calls.h - calls of functions in one choice of an answer: the engine's events (PROTOCOL.md, Generation) in
 * OpenAI's form.
 *
 * The id of a call follows from its answer's id, its choice and its place. */
#ifndef PROTO_ANSWER_CALLS_H
#define PROTO_ANSWER_CALLS_H

#include "proto/grown_text.h"

/* Zero-initialise; free with answer_calls_fini. */
typedef struct answer_calls {
	json_t *list;         /* NULL: none so far; the last one is without its arguments */
	grown_text arguments; /* the last call's, so far */
} answer_calls;

/* Return the "tool_calls" of a chunk's delta, from those of an event (NULL: out of memory). The first part of a call has
 * its name, and gets its id. */
json_t *answer_calls_delta(const char *answer, json_int_t choice, const json_t *event_calls);
/* Add those of an event. False: out of memory. */
bool answer_calls_add(answer_calls *c, const char *answer, json_int_t choice, const json_t *event_calls);
/* Return the "tool_calls" of a message with the events so far (borrowed; NULL: none). */
json_t *answer_calls_list(answer_calls *c);
void answer_calls_fini(answer_calls *c);

#endif
