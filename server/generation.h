/* generation.h - generated text: the engine's events as OpenAI's completions or chat completions, whole or streamed.
 *
 * Used by /v1/completions, /v1/chat/completions and by sessions. In a stream the engine may be GENERATION_WINDOW events
 * ahead of the client. It gets more credit when the client has read everything, so a slow client delays only its own
 * generation. A refusal by the engine before its first event is a plain HTTP error; after it, an error event. */
#ifndef SERVER_GENERATION_H
#define SERVER_GENERATION_H

#include "server/request.h"

enum { GENERATION_WINDOW = 32 };

/* Call the row's engine_method with the request's body and answer. "stream" and "stream_options" are handled here and
 * removed. */
void generation_handle(request *r);
/* Like generation_handle, for chat completions. */
void generation_chat(request *r);

/* Record metrics for any request that generates: that tokens have come (*latest_ns: 0 before the first); and at the end
 * the engine's result. NULL: the request has been answered with an error. */
void generation_note_tokens(const request *r, uint64_t *latest_ns, size_t tokens);
json_t *generation_result(request *r, const frame *f);
/* Write a server-sent event of a stream; type and id may be NULL. json NULL: memory was short, and the request is
 * answered. */
void generation_write_event(request *r, const char *type, const char *id, const json_t *json);

#endif
