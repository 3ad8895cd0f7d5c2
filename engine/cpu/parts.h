/* parts.h - parts of a step that run at the same time, on threads with a core each. */
#ifndef ENGINE_CPU_PARTS_H
#define ENGINE_CPU_PARTS_H

#include "engine/tensor/backend.h"

/* backend.side_by_side of the CPU. Loops within a part have one thread. */
status parts_run(backend *b, int n, status (*part)(void *context, int i), void *context);

#endif
