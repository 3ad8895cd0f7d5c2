/* storage.h - the API's view of the data folder: its size, whether it is usable, what is damaged. Loop thread only. */
#ifndef ENGINE_DAEMON_LIBRARY_STORAGE_H
#define ENGINE_DAEMON_LIBRARY_STORAGE_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

/* Return the member "storage" of engine.status: {"ok", "problem", "damaged", "lost"}. NULL: out of memory. */
json_t *storage_state(engine *e);
/* At intervals, collect objects found damaged, and warn when the data budget is nearly used up. */
void storage_tick(engine *e);

void storage_usage(stream *s);

#endif
