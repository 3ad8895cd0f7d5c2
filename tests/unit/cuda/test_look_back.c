/* Rounds of additive attention look back at what other blocks have published. So their bits are compared over many runs
 * beside a second stream, whose kernels take processors at other moments each time. On a GPU: two sequences of 262,144
 * tokens of 1,024 channels, 500 runs; an emulated device takes less of everything. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pthread.h>

#include "tests/unit/cuda/device.h"
#include "tests/unit/cuda/rounds.h"

static backend *device;

static int open_one(void **state)
{
	(void)state;
	device = open_device();
	return 0;
}

static int close_one(void **state)
{
	(void)state;
	backend_close(device);
	return 0;
}

static round_sizes sizes_here(void)
{
	return device_is_emulated(device) ? (round_sizes){2, 700, 64, 2, 0, 50}
	                                  : (round_sizes){2, 262144, 1024, 16, 0, 4096};
}

/* --- the other stream --------------------------------------------------------------------------- */

typedef struct beside {
	backend *b;
	round_sizes s;
	bool stop;
} beside;

static void *work_beside(void *context)
{
	beside *w = context;
	round_run r;
	round_open(&r, w->b, &w->s);
	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		round_issue(&r, w->b);
		assert_int_equal(w->b->synchronize(w->b), STATUS_OK);
	}
	round_close(&r, w->b);
	return NULL;
}

static void compare_runs(round_sizes s, int64_t window, int runs)
{
	round_run r;
	int made;
	s.window = window;
	round_open(&r, device, &s);
	assert_int_equal(rounds_differing(&r, device, runs, 0, &made), 0);
	assert_int_equal(made, runs);
	round_close(&r, device);
}

static void rounds_beside_other_work_have_the_same_bits(void **state)
{
	(void)state;
	const round_sizes s = sizes_here();
	const int runs = device_is_emulated(device) ? 3 : 500;
	const backend_options background = {.background = true};
	beside w = {.b = open_device_as(&background), .s = s};
	w.s.batch = 1;
	w.s.length = s.length / 7;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, work_beside, &w), 0);
	compare_runs(s, 0, runs);
	compare_runs(s, 256, runs / 10 + 1);
	__atomic_store_n(&w.stop, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	backend_close(w.b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rounds_beside_other_work_have_the_same_bits),
	};
	return cmocka_run_group_tests(tests, open_one, close_one);
}
