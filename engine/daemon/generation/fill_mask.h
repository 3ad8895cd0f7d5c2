/* fill_mask.h - the method fill_mask. Loop thread. */
#ifndef ENGINE_DAEMON_GENERATION_FILL_MASK_H
#define ENGINE_DAEMON_GENERATION_FILL_MASK_H

#include "engine/daemon/net/stream.h"

void fill_mask_create(stream *s);

#endif
