/* spare_memory.h - returns freed memory to the system.
 *
 * A block of SPARE_MEMORY_BLOCK bytes or more is a mapping of its own, which ends when the block is freed. By default
 * malloc places blocks up to 32 MiB between others once a block of such a size has been freed. The device asks for huge
 * pages for its large blocks (cpu/host.c). Small blocks that later use the same addresses would take huge pages too: a
 * training job left several times the memory in use. The device's blocks are zeroed, which costs the same in a new
 * mapping.
 *
 * malloc keeps the pages that are freed between smaller blocks in use. After many requests at once these pages would
 * stay resident for as long as the process lives. They are returned once at most half of the requests of the peak are
 * unanswered. A smaller peak than SPARE_MEMORY_REQUESTS leaves too little to search for. The search takes a thread of
 * libuv's pool, since it lasts milliseconds. Loop thread only. */
#ifndef ENGINE_DAEMON_SPARE_MEMORY_H
#define ENGINE_DAEMON_SPARE_MEMORY_H

#include "engine/daemon/net/net.h"

enum { SPARE_MEMORY_REQUESTS = 32, SPARE_MEMORY_BLOCK = 2 << 20 };

/* Set what malloc maps. Called once, before threads are started. */
void spare_memory_init(void);

/* Zero-initialise. Stays in place until the loop has ended. */
typedef struct spare_memory {
	uv_work_t work;
	bool runs;
} spare_memory;

/* Return memory if a peak of n is over, and begin to look for the next peak. Called at intervals. */
void spare_memory_tick(spare_memory *x, net *n);

#endif
