/* Rounds of additive attention look back at results that other blocks have published. So their bits are compared over
 * many runs beside a second stream, whose kernels occupy processors at varying times.
 * On a GPU: two sequences of 262,144 tokens of 1,024 channels, 500 runs; an emulated device uses smaller numbers. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <pthread.h>

#include "tests/emulator/count.h"
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

/* --- words of earlier launches --------------------------------------------------------------------- */

/* Chains of a few tiles and of many supers, global and windowed. */
static const round_sizes kinds[] = {
    {2, 300, 64, 2, 0, 50}, {1, 2100, 3, 1, 0, 50}, {1, 2150, 3, 1, 2090, 50}, {3, 90, 6, 2, 0, 50}, {2, 200, 6, 2, 100, 50}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int turns_here(void)
{
	return device_is_emulated(device) ? 8 : 500;
}

/* Results of r, g and then log_normalizer; the caller frees them. */
static unsigned char *round_read(const round_run *r, backend *b, size_t *bytes)
{
	const tensor g = r->call.out[0], m = r->call.out[2];
	const size_t first = (size_t)shape_count(g.shape) * dtype_bytes(g.type),
	             second = (size_t)shape_count(m.shape) * dtype_bytes(m.type);
	unsigned char *read = tensors_room(first + second);
	assert_int_equal(b->download(b, read, g.data, first), STATUS_OK);
	assert_int_equal(b->download(b, read + first, m.data, second), STATUS_OK);
	*bytes = first + second;
	return read;
}

/* Also on an emulated device, some blocks run before those that they wait for. */
static int blocks_in_any_order(void **state)
{
	(void)state;
	return setenv("ADDITIVE_EMULATOR_ORDER", "shuffle", 0);
}

/* Compare calls on newly opened backends with the same calls on one backend. There each finds smaller and larger words
 * that earlier calls left, and the moment at which all words are cleared. */
static void rounds_that_alternate_have_the_bits_of_first_ones(void **state)
{
	(void)state;
	backend *fresh[KINDS];
	round_run first[KINDS], turns[KINDS];
	unsigned char *want[KINDS];
	size_t bytes;
	for (int i = 0; i < KINDS; i++) {
		fresh[i] = open_device();
		round_open(&first[i], fresh[i], &kinds[i]);
		round_open(&turns[i], device, &kinds[i]);
		round_issue(&first[i], fresh[i]);
	}
	for (int i = 0; i < KINDS; i++)
		want[i] = round_read(&first[i], fresh[i], &bytes);
	for (int turn = 0; turn < turns_here(); turn++) {
		const int i = turn * 2 % KINDS;
		round_issue(&turns[i], device);
		unsigned char *got = round_read(&turns[i], device, &bytes);
		if (memcmp(got, want[i], bytes) != 0)
			fail_msg("turn %d, of kind %d", turn, i);
		free(got);
	}
	for (int i = 0; i < KINDS; i++) {
		round_close(&first[i], fresh[i]);
		round_close(&turns[i], device);
		backend_close(fresh[i]);
		free(want[i]);
	}
}

static void *record(backend *b, round_run *runs, int n)
{
	void *recording;
	assert_int_equal(b->record_begin(b), STATUS_OK);
	for (int i = 0; i < n; i++)
		round_issue(&runs[i], b);
	assert_int_equal(b->record_end(b, &recording), STATUS_OK);
	return recording;
}

/* A replay uses the numbers of its own launches, not those of the recording; other rounds run between two replays. */
static void replayed_rounds_have_the_bits_of_first_ones(void **state)
{
	(void)state;
	round_run runs[KINDS];
	unsigned char *want[KINDS];
	size_t bytes[KINDS];
	if (!device->record_begin)
		skip();
	for (int i = 0; i < KINDS; i++) {
		round_open(&runs[i], device, &kinds[i]);
		round_issue(&runs[i], device);
		want[i] = round_read(&runs[i], device, &bytes[i]);
	}
	void *recording = record(device, runs, KINDS);
	for (int turn = 0; turn < turns_here(); turn++) {
		for (int i = 0; i < KINDS; i++)
			assert_int_equal(device->clear(device, runs[i].call.out[0].data, dtype_bytes(DTYPE_BF16)), STATUS_OK);
		assert_int_equal(device->replay(device, recording), STATUS_OK);
		for (int i = 0; i < KINDS; i++) {
			size_t same;
			unsigned char *got = round_read(&runs[i], device, &same);
			if (memcmp(got, want[i], bytes[i]) != 0)
				fail_msg("replay %d, of kind %d", turn, i);
			free(got);
		}
		round_issue(&runs[turn % KINDS], device);
	}
	device->forget(device, recording);
	for (int i = 0; i < KINDS; i++) {
		round_close(&runs[i], device);
		free(want[i]);
	}
}

/* Words are not cleared for each launch, but for all of them from time to time. */
static void many_launches_share_one_clear(void **state)
{
	(void)state;
	enum { USES = 16 }; /* CUDA_EXCHANGE_USES of an emulated device */
	const emulator_counter counter = emulator_counting();
	round_run r;
	size_t n, sets = 0;
	if (!counter.begin)
		skip();
	round_open(&r, device, &kinds[3]);
	round_issue(&r, device);
	counter.begin();
	for (int i = 0; i < 2 * USES; i++)
		round_issue(&r, device);
	const emulator_work *w = counter.end(&n);
	for (size_t i = 0; i < n; i++)
		sets += w[i].kind == EMULATOR_SET;
	assert_int_equal(n, 2 * USES + 2);
	assert_int_equal(sets, 2);
	round_close(&r, device);
}

/* Memory cannot grow in a recording, so the plan runs it directly once more. */
static void a_recording_that_needs_more_memory_is_unsupported(void **state)
{
	(void)state;
	backend *fresh = open_device();
	round_run r;
	void *recording = NULL;
	if (!fresh->record_begin)
		skip();
	round_open(&r, fresh, &kinds[1]);
	assert_int_equal(fresh->record_begin(fresh), STATUS_OK);
	assert_int_equal(fresh->kernel[OP_additive_attention](fresh, &r.call), STATUS_UNSUPPORTED);
	(void)fresh->record_end(fresh, &recording);
	fresh->forget(fresh, recording);
	round_issue(&r, fresh);
	recording = record(fresh, &r, 1);
	assert_int_equal(fresh->replay(fresh, recording), STATUS_OK);
	fresh->forget(fresh, recording);
	round_close(&r, fresh);
	backend_close(fresh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(rounds_beside_other_work_have_the_same_bits),
	    cmocka_unit_test_setup(rounds_that_alternate_have_the_bits_of_first_ones, blocks_in_any_order),
	    cmocka_unit_test_setup(replayed_rounds_have_the_bits_of_first_ones, blocks_in_any_order),
	    cmocka_unit_test(many_launches_share_one_clear),
	    cmocka_unit_test(a_recording_that_needs_more_memory_is_unsupported),
	};
	return cmocka_run_group_tests(tests, open_one, close_one);
}
