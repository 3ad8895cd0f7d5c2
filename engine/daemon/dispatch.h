/* dispatch.h - the table of methods: the list in PROTOCOL.md, as rows. */
#ifndef ENGINE_DAEMON_DISPATCH_H
#define ENGINE_DAEMON_DISPATCH_H

#include "engine/daemon/net/stream.h"

/* Check the request against its method's row, then call the handler or answer the error. */
void dispatch_request(stream *s, const char *method);

#endif
