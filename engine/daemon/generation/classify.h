/* classify.h - the method classify. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_CLASSIFY_H
#define ENGINE_DAEMON_GENERATION_CLASSIFY_H

#include "engine/daemon/net/stream.h"

void classify_create(stream *s);

#endif
