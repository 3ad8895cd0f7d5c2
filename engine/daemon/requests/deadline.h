/* deadline.h - ends requests that are not answered in the time that they allow.
 *
 * A request whose time is over is cancelled, also if it would continue without its client. Its handler then answers with
 * what it has, or STATUS_CANCELLED, which stream_error turns into STATUS_TIMEOUT. One timer serves all. Loop thread. */
#ifndef ENGINE_DAEMON_REQUESTS_DEADLINE_H
#define ENGINE_DAEMON_REQUESTS_DEADLINE_H

#include "engine/daemon/net/stream.h"

/* Start the time of s: the "timeout" of its params, or that of its REQUEST; of both the shorter. None: no limit.
 * stream_end removes it. */
void deadline_begin(stream *s);

#endif
