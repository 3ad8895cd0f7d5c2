/* faithfulness_creation.h - the method faithfulness.create: an evaluation of an input, or a new job. Loop thread. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CREATION_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CREATION_H

#include "engine/daemon/net/stream.h"

void faithfulness_creation_begin(stream *s);

#endif
