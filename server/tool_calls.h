/* tool_calls.h - calls of functions in an answer: the engine's events (PROTOCOL.md, Generation) in OpenAI's form. */
#ifndef SERVER_TOOL_CALLS_H
#define SERVER_TOOL_CALLS_H

#include <jansson.h>

#include "server/buffer.h"

/* Calls of one choice, from events. */
typedef struct tool_calls {
	json_t *list;     /* NULL: none so far */
	buffer arguments; /* arguments of the last one, so far */
} tool_calls;

/* The "tool_calls" of a chunk's delta, from those of an event. Each call gets an id with its name. NULL: out of memory.
 */
json_t *tool_calls_delta(const json_t *event_calls);
/* Add those of an event. False: out of memory. */
bool tool_calls_add(tool_calls *c, const json_t *event_calls);
/* The "tool_calls" of a message, once the last event was added; NULL: none, or out of memory. Borrowed. */
json_t *tool_calls_finish(tool_calls *c);
void tool_calls_fini(tool_calls *c);

#endif
