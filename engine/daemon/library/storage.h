/* storage.h - the API's view of the data folder: how much it holds, whether it can be relied on, what is damaged. Loop
 * thread only. */
#ifndef ENGINE_DAEMON_LIBRARY_STORAGE_H
#define ENGINE_DAEMON_LIBRARY_STORAGE_H

#include "engine/daemon/net/stream.h"
#include "engine/daemon/requests/engine.h"

/* The member "storage" of engine.status: {"ok", "problem", "damaged", "lost"}. NULL when out of memory. */
json_t *storage_state(engine *e);
/* Now and then: collect what was found damaged, warn when the data budget is nearly used up. */
void storage_tick(engine *e);

void storage_usage(stream *s);

#endif
