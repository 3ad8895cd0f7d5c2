/* Freed memory returns to the system: large blocks at once, others after a peak of requests. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/daemon/spare_memory.h"

enum { BLOCKS = 32768, BYTES = 2000, KEPT_EVERY = 64, PEAK = 100 };

typedef struct fixture {
	uv_loop_t loop;
	net net;
	spare_memory spare;
	void *blocks[BLOCKS];
} fixture;

static int setup(void **state)
{
	fixture *f = calloc(1, sizeof *f);
	assert_int_equal(uv_loop_init(&f->loop), 0);
	f->net.loop = &f->loop;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	fixture *f = *state;
	for (int i = 0; i < BLOCKS; i++)
		free(f->blocks[i]);
	assert_int_equal(uv_loop_close(&f->loop), 0);
	free(f);
	return 0;
}

static size_t resident(void)
{
	size_t all, pages;
	FILE *statm = fopen("/proc/self/statm", "re");
	assert_non_null(statm);
	assert_int_equal(fscanf(statm, "%zu %zu", &all, &pages), 2);
	fclose(statm);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Run a tick with `streams` requests; true: memory was returned. */
static bool tick(fixture *f, int streams)
{
	f->net.streams = streams;
	f->net.most_streams = streams > f->net.most_streams ? streams : f->net.most_streams;
	spare_memory_tick(&f->spare, &f->net);
	const bool runs = f->spare.runs;
	uv_run(&f->loop, UV_RUN_DEFAULT);
	assert_false(f->spare.runs);
	return runs;
}

static void memory_is_returned_once_after_each_peak(void **state)
{
	fixture *f = *state;
	assert_false(tick(f, 0));
	assert_false(tick(f, SPARE_MEMORY_REQUESTS - 1));
	assert_false(tick(f, 0)); /* too few */
	assert_false(tick(f, PEAK));
	assert_false(tick(f, PEAK / 2 + 1));
	assert_true(tick(f, PEAK / 2));
	assert_false(tick(f, PEAK / 2));
	assert_true(tick(f, PEAK / 4));
	assert_false(tick(f, 0)); /* the peak of 25 was too small */
	assert_false(tick(f, PEAK));
	assert_true(tick(f, 0));
}

static void a_search_that_runs_is_not_started_again(void **state)
{
	fixture *f = *state;
	f->net.most_streams = PEAK;
	spare_memory_tick(&f->spare, &f->net);
	assert_true(f->spare.runs);
	f->net.most_streams = PEAK;
	spare_memory_tick(&f->spare, &f->net);
	assert_int_equal(f->net.most_streams, PEAK); /* for a later tick */
	uv_run(&f->loop, UV_RUN_DEFAULT);
	assert_true(tick(f, 0));
}

static void pages_between_blocks_in_use_are_returned(void **state)
{
	fixture *f = *state;
	for (int i = 0; i < BLOCKS; i++) {
		f->blocks[i] = malloc(BYTES);
		assert_non_null(f->blocks[i]);
		memset(f->blocks[i], 1, BYTES);
	}
	for (int i = 0; i < BLOCKS; i++) {
		if (i % KEPT_EVERY) {
			free(f->blocks[i]);
			f->blocks[i] = NULL;
		}
	}
	tick(f, PEAK);
	const size_t before = resident();
	assert_true(tick(f, 0));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their allocators keep freed memory */
	assert_true(resident() + (size_t)BLOCKS * BYTES / 2 < before);
#else
	(void)before;
#endif
}

static void large_blocks_are_never_placed_between_others(void **state)
{
	(void)state;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their allocators count nothing */
	for (int i = 0; i < 3; i++) { /* freeing one raises the default limit */
		const size_t mapped = mallinfo2().hblks;
		void *large = calloc(1, SPARE_MEMORY_BLOCK + 1);
		assert_non_null(large);
		assert_int_equal(mallinfo2().hblks, mapped + 1);
		void *small = calloc(1, SPARE_MEMORY_BLOCK / 2);
		assert_non_null(small);
		assert_int_equal(mallinfo2().hblks, mapped + 1);
		free(small);
		free(large);
		assert_int_equal(mallinfo2().hblks, mapped);
	}
#endif
}

int main(void)
{
	spare_memory_init();
#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
	    CASE(memory_is_returned_once_after_each_peak),
	    CASE(a_search_that_runs_is_not_started_again),
	    CASE(pages_between_blocks_in_use_are_returned),
	    cmocka_unit_test(large_blocks_are_never_placed_between_others),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
