/* embeddings.h - the method embed. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_EMBEDDINGS_H
#define ENGINE_DAEMON_GENERATION_EMBEDDINGS_H

#include "engine/daemon/net/stream.h"

void embeddings_create(stream *s);

#endif
