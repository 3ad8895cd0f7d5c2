/* generation.h - text as it is generated: the engine's events as OpenAI completions, whole or streamed.
 *
 * Used by /v1/completions and by sessions. Streamed: the engine may be GENERATION_WINDOW events ahead of the client; it
 * is granted more when the client has taken everything, so a slow client parks its own generation and nothing else. A
 * refusal by the engine before its first event is a plain HTTP error; after it, an error event. */
#ifndef SERVER_GENERATION_H
#define SERVER_GENERATION_H

#include "server/request.h"

enum { GENERATION_WINDOW = 32 };

/* Call the row's engine_method with the request's body ("stream" and "stream_options" removed, which are ours) and
 * answer. */
void generation_handle(request *r);

#endif
