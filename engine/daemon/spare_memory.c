#include "engine/daemon/spare_memory.h"

#include <malloc.h>

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
