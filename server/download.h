/* download.h - endpoints that stream bytes from the engine: files, weights, states. */
#ifndef SERVER_DOWNLOAD_H
#define SERVER_DOWNLOAD_H

#include "server/request.h"

/* Call the row's engine_method with the path's parameters and forward its DATA as fast as the client reads. The first
 * EVENT's "bytes" becomes the Content-Length; without one the answer is chunked. */
void download_handle(request *r);
/* Like download_handle, with these params, which are taken over. type: content type of the answer; NULL: the engine's.
 * With a type, a RESULT alone is the answer, as JSON, and only bytes with a file name are an attachment. */
void download_call(request *r, json_t *params, const char *type);

#endif
