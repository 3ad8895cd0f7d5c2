/* download.h - endpoints that stream bytes of the engine: files, weights, states. */
#ifndef SERVER_DOWNLOAD_H
#define SERVER_DOWNLOAD_H

#include "server/request.h"

/* Call the row's engine_method with the path's parameters and pass its DATA on as the client takes it. The first
 * EVENT's "bytes" becomes the Content-Length; without one the answer is chunked. */
void download_handle(request *r);
/* The same with these params, which are stolen. type: of the answer; NULL: what the engine says. With one a RESULT
 * alone is the answer, as JSON, and only bytes with a file name are an attachment. */
void download_call(request *r, json_t *params, const char *type);

#endif
