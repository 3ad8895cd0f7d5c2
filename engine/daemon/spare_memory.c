#include "engine/daemon/spare_memory.h"

#include <malloc.h>

void spare_memory_init(void)
{
	mallopt(M_MMAP_THRESHOLD, SPARE_MEMORY_BLOCK);
	/* A fixed threshold also fixes the free bytes that malloc keeps at the end of a heap, at 128 KiB. malloc's own
	 * choice is twice the largest block that is no mapping. */
	mallopt(M_TRIM_THRESHOLD, 2 * SPARE_MEMORY_BLOCK);
}

static void pool_trim(uv_work_t *work)
{
	(void)work;
	malloc_trim(0);
}

static void trimmed(uv_work_t *work, int failed)
{
	(void)failed;
	((spare_memory *)work->data)->runs = false;
}

void spare_memory_tick(spare_memory *x, net *n)
{
	if (x->runs || n->most_streams < SPARE_MEMORY_REQUESTS || n->streams > n->most_streams / 2)
		return;
	n->most_streams = n->streams;
	x->work.data = x;
	x->runs = uv_queue_work(n->loop, &x->work, pool_trim, trimmed) == 0;
}
