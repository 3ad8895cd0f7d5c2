/* forward.h - endpoints that are one call of the engine and its answer, unchanged: most of them. */
#ifndef SERVER_FORWARD_H
#define SERVER_FORWARD_H

#include "server/request.h"

/* Call the row's engine_method with the body, the path's parameters and the query's, and answer with the RESULT. */
void forward_handle(request *r);

/* The endings every handler has: ERROR is answered and true returned; the caller answers with RESULT. */
bool forward_failed(request *r, const frame *f);
/* The body's fields and the request's parameters as one object; the body itself is let go. NULL (answered) when out
 * of memory. */
json_t *forward_params(request *r);
/* The frame's JSON object; NULL when it is none, which is answered as an engine fault. */
json_t *forward_json(request *r, const frame *f);
/* For calls that send no events. */
void forward_ignore(void *context, const frame *f);

#endif
