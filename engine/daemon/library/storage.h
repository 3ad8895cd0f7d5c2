/* storage.h - the API's view of the data folder: its size, whether it is usable, what is damaged. Loop thread only. */
#ifndef ENGINE_DAEMON_LIBRARY_STORAGE_H
#define ENGINE_DAEMON_LIBRARY_STORAGE_H

#include "engine/daemon/library/library.h"

typedef struct storage storage;

/* The library is borrowed. STATUS_NOMEM. */
status storage_new(storage **out, const library *lib, const lost_limits *lost);
void storage_free(storage *x);
/* Return the member "storage" of engine.status: {"ok", "problem", "damaged", "lost"}. NULL: out of memory. */
json_t *storage_state(const storage *x);
/* Return the number of blobs in lost/. */
int64_t storage_lost(const storage *x);
/* At intervals, collect objects found damaged, and warn when the data budget is nearly used up. */
void storage_tick(storage *x, uv_loop_t *loop);

void storage_usage(stream *s);

#endif
