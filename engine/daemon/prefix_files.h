/* prefix_files.h - the states of prompts on the disk (engine/serve/prefix_disk.h) of the data folder. */
#ifndef ENGINE_DAEMON_PREFIX_FILES_H
#define ENGINE_DAEMON_PREFIX_FILES_H

#include "engine/daemon/engine_parts.h"
#include "engine/serve/prefix_disk.h"

/* Open e->prefix_disk, without the states of models that the store does not have and of keys that are revoked, now or
 * later. A service works without it, so a fault is logged only. */
void prefix_files_open(engine *e);

#endif
