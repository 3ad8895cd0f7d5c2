/* forward.h - endpoints that forward one call to the engine and return its answer unchanged. Most endpoints do. */
#ifndef SERVER_FORWARD_H
#define SERVER_FORWARD_H

#include "server/request.h"

/* Call the row's engine_method with the parameters of body, path and query, and answer with the RESULT. */
void forward_handle(request *r);

/* Handle the endings common to all handlers: if the frame is an ERROR, answer it and return true. The caller answers a
 * RESULT. */
bool forward_failed(request *r, const frame *f);
/* Return the body's fields and the request's parameters as one object (new reference); the body is released. NULL: out
 * of memory, which has been answered. */
json_t *forward_params(request *r);
/* Return the frame's JSON object (new reference). NULL: it has none, or memory is out;
 * the request has been answered. */
json_t *forward_json(request *r, const frame *f);
/* Ignore an event; for calls whose engine method sends none. */
void forward_ignore(void *context, const frame *f);

#endif
