/* generation.h - text as it is generated: the engine's events as OpenAI's completions or chat completions, whole or
 * streamed.
 *
 * Used by /v1/completions, /v1/chat/completions and by sessions. Streamed: the engine may be GENERATION_WINDOW events
 * ahead of the client; it is granted more when the client has taken everything, so a slow client parks its own
 * generation and nothing else. A refusal by the engine before its first event is a plain HTTP error; after it, an error
 * event. */
#ifndef SERVER_GENERATION_H
#define SERVER_GENERATION_H

#include "server/request.h"

enum { GENERATION_WINDOW = 32 };

/* Call the row's engine_method with the request's body ("stream" and "stream_options" removed, which are ours) and
 * answer. */
void generation_handle(request *r);
/* The same as chat completions. */
void generation_chat(request *r);

/* Of anything that generates, also for the metrics: tokens have come (*latest_ns: 0 before the first); and the engine's
 * result at the end, NULL: the request is answered with what failed. */
void generation_note_tokens(const request *r, uint64_t *latest_ns, size_t tokens);
json_t *generation_result(request *r, const frame *f);
/* A server-sent event of a stream; type and id may be NULL. json NULL: memory was short, and the request is answered.
 */
void generation_write_event(request *r, const char *type, const char *id, const json_t *json);

#endif
