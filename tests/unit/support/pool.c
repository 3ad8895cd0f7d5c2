#include "tests/unit/support/pool.h"

#include <stdlib.h>
#include <uv.h>

static uv_loop_t own;
static uv_work_t block;
static uv_sem_t entered, left;

void pool_setup(void)
{
	setenv("UV_THREADPOOL_SIZE", "1", 1);
	if (uv_loop_init(&own) != 0 || uv_sem_init(&entered, 0) != 0 || uv_sem_init(&left, 0) != 0)
		abort();
}

void pool_teardown(void)
{
	uv_loop_close(&own);
	uv_sem_destroy(&entered);
	uv_sem_destroy(&left);
}

static void wait_inside(uv_work_t *work)
{
	(void)work;
	uv_sem_post(&entered);
	uv_sem_wait(&left);
}

void pool_hold(void)
{
	if (uv_queue_work(&own, &block, wait_inside, NULL) != 0)
		abort();
	uv_sem_wait(&entered);
}

void pool_release(void)
{
	uv_sem_post(&left);
	uv_run(&own, UV_RUN_DEFAULT);
}
