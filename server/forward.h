/* forward.h - endpoints that forward one call to the engine and return its answer unchanged. Most endpoints do. */
#ifndef SERVER_FORWARD_H
#define SERVER_FORWARD_H

#include "server/request.h"

/* Call the row's engine_method with the parameters of body, path and query, and answer with the RESULT. */
void forward_handle(request *r);

/* Handle the endings common to all handlers: if the frame is an ERROR, answer it and return true. The caller answers a
 * RESULT. */
bool forward_failed(request *r, const frame *f);
/* The body's fields and the request's parameters as one object; the body itself is released. NULL (answered) when out
 * of memory. */
json_t *forward_params(request *r);
/* The frame's JSON object; NULL if it has none, which is answered as an engine fault. */
json_t *forward_json(request *r, const frame *f);
/* For calls that send no events. */
void forward_ignore(void *context, const frame *f);

#endif
