/* download.h - endpoints that stream bytes of the engine: files, weights, states. */
#ifndef SERVER_DOWNLOAD_H
#define SERVER_DOWNLOAD_H

#include "server/request.h"

/* Call the row's engine_method with the path's parameters and pass its DATA on as the client takes it. The first
 * EVENT's "bytes" becomes the Content-Length; without one the answer is chunked. */
void download_handle(request *r);

#endif
