/* The CUDA backend's host side: memory, streams and recordings. On the emulated device, issued work runs as late as
 * possible. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

#define MIB ((size_t)1 << 20)

static backend *open_stream(bool background)
{
	return open_device_as(&(backend_options){.background = background});
}

static int open_one(void **state)
{
	*state = open_stream(false);
	return 0;
}

static int close_one(void **state)
{
	backend_close(*state);
	return 0;
}

static void *allocate(backend *b, size_t bytes)
{
	void *data = NULL;
	assert_int_equal(b->allocate(b, bytes, &data), STATUS_OK);
	assert_non_null(data);
	return data;
}

/* Bytes that differ by place and by seed. */
static unsigned char pattern(size_t i, unsigned seed)
{
	return (unsigned char)((i * 2654435761u + seed * 40503u) >> 7);
}

static unsigned char *filled(size_t bytes, unsigned seed)
{
	unsigned char *data = malloc(bytes + 1);
	assert_non_null(data);
	for (size_t i = 0; i < bytes; i++)
		data[i] = pattern(i, seed);
	return data;
}

static void assert_pattern(backend *b, const void *device, size_t bytes, unsigned seed)
{
	unsigned char *back = malloc(bytes + 1), *want = filled(bytes, seed);
	assert_non_null(back);
	assert_int_equal(b->download(b, back, device, bytes), STATUS_OK);
	assert_memory_equal(back, want, bytes);
	free(back);
	free(want);
}

static void assert_zeros(backend *b, const void *device, size_t bytes)
{
	unsigned char *back = malloc(bytes + 1);
	assert_non_null(back);
	assert_int_equal(b->download(b, back, device, bytes), STATUS_OK);
	for (size_t i = 0; i < bytes; i++)
		assert_int_equal(back[i], 0);
	free(back);
}

/* --- faults ---------------------------------------------------------------------------------- */

/* The emulated runtime is called by name, and this program's symbols take precedence. */
static struct {
	int count;           /* result of cudaGetDeviceCount; 0: success */
	int devices, driver; /* number of devices, and version of the driver */
	bool reset;          /* the device was reset */
} fault;

static void *of_plugin(const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/additive-cuda.so", getenv("ADDITIVE_PLUGIN_DIR"));
	void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD), *function = plugin ? dlsym(plugin, name) : NULL;
	assert_non_null(function);
	dlclose(plugin);
	return function;
}

int cudaGetDeviceCount(int *count);
int cudaGetDeviceCount(int *count)
{
	if (!fault.count && !fault.driver)
		return ((int (*)(int *))of_plugin("cudaGetDeviceCount"))(count);
	*count = fault.devices;
	return fault.count;
}

int cudaDriverGetVersion(int *version);
int cudaDriverGetVersion(int *version)
{
	*version = fault.driver;
	return 0;
}

int cudaDeviceReset(void);
int cudaDeviceReset(void)
{
	fault.reset = true;
	return ((int (*)(void))of_plugin("cudaDeviceReset"))();
}

/* --- opening ------------------------------------------------------------------------------ */

static void the_name_has_the_device_its_memory_and_its_kind(void **state)
{
	backend *b = *state;
	assert_string_equal(b->name, "cuda");
	assert_non_null(strstr(b->device, " GiB, sm_"));
	assert_false(b->host_memory);
	assert_true(b->bf16);
}

static void a_missing_device_is_named(void **state)
{
	(void)state;
	static const int missing[] = {1000, -1};
	for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
		backend *b;
		error err = ERROR_INIT;
		const backend_options options = {.device = missing[i]};
		assert_int_equal(backend_open(&b, "cuda", &options, cpu_open, 0, &err), STATUS_UNAVAILABLE);
		assert_null(b);
		char words[64];
		snprintf(words, sizeof words, "there is no CUDA device %d, there ", missing[i]);
		assert_non_null(strstr(err.message, words));
	}
}

static void expect_unavailable(int answer, int devices, int driver, const char *words)
{
	backend *b;
	error err = ERROR_INIT;
	fault.count = answer;
	fault.devices = devices;
	fault.driver = driver;
	assert_int_equal(backend_open(&b, "cuda", NULL, cpu_open, 0, &err), STATUS_UNAVAILABLE);
	fault.count = fault.driver = 0;
	if (!strstr(err.message, words))
		fail_msg("%s", err.message);
}

static void an_unavailable_device_is_refused_with_the_missing_part(void **state)
{
	(void)state;
	skip_unless_emulated();
	enum { INITIALIZATION_ERROR = 3, INSUFFICIENT_DRIVER = 35, NO_DEVICE = 100 };
	expect_unavailable(INSUFFICIENT_DRIVER, 0, 0, "there is no NVIDIA driver");
	expect_unavailable(INSUFFICIENT_DRIVER, 0, 11040, "the NVIDIA driver serves CUDA 11.4, this program needs ");
	expect_unavailable(NO_DEVICE, 0, 13000, "there is no CUDA device");
	expect_unavailable(0, 0, 13000, "there is no CUDA device");
	expect_unavailable(INITIALIZATION_ERROR, 0, 13000, "CUDA cannot be started: ");
	backend_close(open_stream(false));
}

static void a_device_can_be_opened_again(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		backend *b = open_stream(false);
		void *data = allocate(b, 100);
		assert_zeros(b, data, 100);
		if (i > 0)
			b->release(b, data); /* unreleased memory is freed when the process ends */
		backend_close(b);
	}
}

/* --- memory --------------------------------------------------------------------------------- */

static void memory_is_aligned_and_zeroed(void **state)
{
	backend *b = *state;
	static const size_t sizes[] = {0, 1, 63, 64, 65, 100000};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		unsigned char *host = filled(sizes[i], 1);
		void *data = allocate(b, sizes[i]);
		assert_int_equal((uintptr_t)data % 64, 0);
		assert_zeros(b, data, sizes[i]);
		assert_int_equal(b->upload(b, data, host, sizes[i]), STATUS_OK);
		assert_pattern(b, data, sizes[i], 1);
		assert_int_equal(b->clear(b, data, sizes[i]), STATUS_OK);
		assert_zeros(b, data, sizes[i]);
		b->release(b, data);
		free(host);
	}
	b->release(b, NULL);
}

static void too_much_memory_is_a_status_and_the_device_continues(void **state)
{
	backend *b = *state;
	void *data = b;
	assert_int_equal(b->allocate(b, SIZE_MAX, &data), STATUS_NOMEM);
	assert_null(data);
	assert_int_equal(b->allocate(b, (size_t)1 << 50, &data), STATUS_NOMEM);
	data = allocate(b, 10);
	assert_zeros(b, data, 10);
	b->release(b, data);
}

static void an_upload_larger_than_the_staging_memory_is_complete(void **state)
{
	backend *b = *state;
	const size_t bytes = 37 * MIB + 13;
	unsigned char *host = filled(bytes, 2);
	void *data = allocate(b, bytes), *copy = allocate(b, bytes);
	assert_int_equal(b->upload(b, data, host, bytes), STATUS_OK);
	memset(host, 0, bytes); /* the host may change it again */
	assert_int_equal(b->copy(b, copy, data, bytes), STATUS_OK);
	assert_int_equal(b->clear(b, data, bytes), STATUS_OK);
	assert_pattern(b, copy, bytes, 2);
	b->release(b, data);
	b->release(b, copy);
	free(host);
}

static void many_uploads_from_the_same_buffer_keep_their_content(void **state)
{
	enum { MOST = 20000, UPLOADS = 3000 };
	backend *b = *state;
	const size_t bytes = 24 * MIB;
	unsigned char *want = filled(bytes, 3), host[MOST];
	void *data = allocate(b, bytes);
	uint64_t seed = 5;
	size_t at = 0, sent = 0;
	for (int i = 0; i < UPLOADS; i++) {
		size_t n = (size_t)random_next(&seed, 0, MOST);
		n = n < bytes - at ? n : bytes - at;
		memcpy(host, want + at, n);
		assert_int_equal(b->upload(b, (char *)data + at, host, n), STATUS_OK);
		memset(host, 0xaa, sizeof host);
		at += n;
		sent += n;
	}
	assert_true(sent > 20 * MIB); /* more than once around the ring */
	assert_pattern(b, data, sent, 3);
	b->release(b, data);
	free(want);
}

static void released_memory_is_zeroed_when_it_is_used_again(void **state)
{
	backend *b = *state;
	unsigned char *host = filled(MIB, 4);
	for (int i = 0; i < 50; i++) {
		void *data = allocate(b, MIB);
		if (i % 10 == 0)
			assert_zeros(b, data, MIB);
		assert_int_equal(b->upload(b, data, host, MIB), STATUS_OK);
		b->release(b, data); /* before any wait */
	}
	assert_int_equal(b->synchronize(b), STATUS_OK);
	free(host);
}

/* --- reservations ----------------------------------------------------------------------------- */

static void reserved_memory_grows_in_place(void **state)
{
	backend *b = *state;
	const size_t reserved = 64 * MIB;
	size_t have = 0, before;
	void *data;
	assert_int_equal(b->reserve(b, reserved, &data), STATUS_OK);
	assert_int_equal(b->extend(b, data, 1, &have), STATUS_OK);
	assert_true(have >= 1 && have <= reserved);
	assert_zeros(b, data, have);
	unsigned char *host = filled(have, 6);
	assert_int_equal(b->upload(b, data, host, have), STATUS_OK);
	for (size_t bytes = 3 * MIB; bytes <= 11 * MIB; bytes += 4 * MIB) {
		size_t first = have;
		assert_int_equal(b->extend(b, data, bytes, &have), STATUS_OK);
		assert_true(have >= bytes);
		assert_zeros(b, (char *)data + first, have - first);
	}
	size_t first = b->extend(b, data, 1, &before) == STATUS_OK ? before : 0;
	assert_int_equal(first, have); /* a smaller size has no effect */
	assert_int_equal(b->extend(b, data, reserved + 1, &before), STATUS_NOMEM);
	assert_int_equal(before, have);
	assert_int_equal(b->extend(b, data, reserved, &have), STATUS_OK);
	assert_true(have >= reserved);
	assert_pattern(b, data, MIB, 6);
	assert_int_equal(b->retract(b, data, have, 7 * MIB, &before), STATUS_OK);
	assert_true(before >= 7 * MIB && before < 12 * MIB);
	assert_pattern(b, data, MIB, 6);
	assert_int_equal(b->retract(b, data, before, before, &first), STATUS_OK);
	assert_int_equal(first, before);
	assert_int_equal(b->extend(b, data, reserved, &have), STATUS_OK);
	assert_zeros(b, (char *)data + before, have - before);
	free(host);
	b->unreserve(b, data, reserved);
	b->unreserve(b, NULL, 0);
}

static void more_than_the_device_has_leaves_a_reservation_unchanged(void **state)
{
	backend *b = *state;
	const size_t reserved = (size_t)1 << 42;
	size_t have = 0, before;
	void *data, *other;
	assert_int_equal(b->reserve(b, SIZE_MAX, &data), STATUS_NOMEM);
	assert_null(data);
	assert_int_equal(b->reserve(b, reserved, &data), STATUS_OK);
	assert_int_equal(b->reserve(b, 1, &other), STATUS_OK);
	assert_int_equal(b->extend(b, data, MIB, &before), STATUS_OK);
	unsigned char *host = filled(MIB, 7);
	assert_int_equal(b->upload(b, data, host, MIB), STATUS_OK);
	assert_int_equal(b->extend(b, data, reserved, &have), STATUS_NOMEM);
	assert_int_equal(have, before);
	assert_pattern(b, data, MIB, 7);
	assert_int_equal(b->extend(b, other, 1, &have), STATUS_OK);
	assert_zeros(b, other, 1);
	free(host);
	b->unreserve(b, data, reserved);
	b->unreserve(b, other, 1);
}

/* --- streams -------------------------------------------------------------------------------------- */

static void two_backends_are_two_streams_of_one_memory(void **state)
{
	backend *front = *state, *back = open_stream(true);
	unsigned char *host = filled(MIB, 8);
	void *data = allocate(front, MIB), *copy = allocate(back, MIB);
	assert_int_equal(front->upload(front, data, host, MIB), STATUS_OK);
	assert_int_equal(front->synchronize(front), STATUS_OK);
	assert_int_equal(back->copy(back, copy, data, MIB), STATUS_OK);
	assert_int_equal(back->synchronize(back), STATUS_OK);
	assert_pattern(front, copy, MIB, 8);
	back->release(back, copy);
	backend_close(back);
	assert_pattern(front, data, MIB, 8); /* continues without the other */
	front->release(front, data);
	free(host);
}

/* As many fetches as can be in flight. Each gets the content at the time of its issue, and they are taken in any
 * order. */
static void a_fetch_is_not_delayed_by_later_work(void **state)
{
	backend *b = *state;
	unsigned number[BACKEND_FETCHES];
	int *data = allocate(b, BACKEND_FETCH_BYTES);
	for (int round = 0; round < 2; round++) { /* so that the fetch buffers are used again */
		for (int i = 0; i < BACKEND_FETCHES; i++) {
			int numbers[] = {round, i};
			assert_int_equal(b->upload(b, data, numbers, sizeof numbers), STATUS_OK);
			assert_int_equal(b->fetch(b, data, i ? sizeof numbers : BACKEND_FETCH_BYTES, &number[i]),
			                 STATUS_OK);
		}
		for (int i = BACKEND_FETCHES - 1; i >= 0; i--) {
			int numbers[2];
			assert_int_equal(b->fetch_take(b, number[i], numbers, sizeof numbers), STATUS_OK);
			assert_true(numbers[0] == round && numbers[1] == i && b->fetched(b, number[i]));
		}
	}
	b->release(b, data);
}

static void a_backend_is_busy_until_its_work_is_done(void **state)
{
	backend *b = *state;
	void *data = allocate(b, MIB);
	assert_int_equal(b->synchronize(b), STATUS_OK);
	assert_false(b->busy(b));
	int looks = 0;
	for (int i = 0; i < 10; i++)
		assert_int_equal(b->clear(b, data, MIB), STATUS_OK);
	while (b->busy(b))
		looks++;
	assert_true(looks > 0);
	assert_false(b->busy(b));
	b->release(b, data);
}

/* --- recordings ----------------------------------------------------------------------------------------- */

static int replays;
static status (*replay)(backend *b, void *recording);
static status count_and_replay(backend *b, void *recording)
{
	replays++;
	return replay(b, recording);
}

enum { ROWS = 9, WIDTH = 20 };

/* y = gelu(2 x Wᵀ + x) */
static plan *small_plan(backend *b, const float *weight)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, WIDTH)),
	      w = graph_input(g, "w", DTYPE_F32, SHAPE2(WIDTH, WIDTH));
	graph_output(g, op_gelu(g, op_add(g, op_matmul(g, x, w, false, true, 2), x), false), "y");
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, NULL, 0, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(plan_write(p, w, weight), STATUS_OK);
	return p;
}

static void write_x(plan *p, const float *x)
{
	assert_int_equal(plan_write(p, graph_find(plan_graph(p), "x"), x), STATUS_OK);
}

static void read_y(plan *p, float *y)
{
	assert_int_equal(plan_read(p, graph_find(plan_graph(p), "y"), y), STATUS_OK);
}

static void replays_give_the_bits_of_direct_runs(void **state)
{
	backend *b = *state, *cpu;
	float w[WIDTH * WIDTH], x[ROWS * WIDTH], y[ROWS * WIDTH], stepped[ROWS * WIDTH], want[ROWS * WIDTH];
	assert_int_equal(cpu_reference_open(&cpu, 0, NULL), STATUS_OK);
	random_normal(w, WIDTH * WIDTH, 1, 0.3);
	replays = 0;
	replay = b->replay;
	b->replay = count_and_replay;
	plan *p = small_plan(b, w), *steps = small_plan(b, w), *reference = small_plan(cpu, w);
	for (int run = 0; run < 4; run++) {
		random_normal(x, ROWS * WIDTH, 10 + (uint64_t)run, 1);
		write_x(p, x);
		write_x(steps, x);
		write_x(reference, x);
		assert_int_equal(plan_run(p), STATUS_OK);
		assert_int_equal(plan_run(reference), STATUS_OK);
		for (int cursor = 0; cursor < plan_node_count(steps);)
			assert_int_equal(plan_step(steps, &cursor), STATUS_OK);
		read_y(p, y);
		read_y(steps, stepped);
		read_y(reference, want);
		assert_true(compare_close("y", y, want, ROWS * WIDTH, 1e-5, 1e-5));
		assert_true(compare_same("y", y, stepped, ROWS * WIDTH));
	}
	assert_int_equal(replays, 3);
	plan_free(p);
	plan_free(steps);
	plan_free(reference);
	backend_close(cpu);
}

static void only_kernels_are_recorded(void **state)
{
	backend *b = *state;
	unsigned char *host = filled(100, 9);
	size_t have;
	void *data = allocate(b, 100), *more, *recording;
	assert_int_equal(b->record_begin(b), STATUS_OK);
	assert_int_equal(b->upload(b, data, host, 100), STATUS_INTERNAL);
	assert_int_equal(b->download(b, host, data, 100), STATUS_INTERNAL);
	assert_int_equal(b->allocate(b, 100, &more), STATUS_INTERNAL);
	assert_int_equal(b->reserve(b, 100, &more), STATUS_INTERNAL);
	assert_int_equal(b->extend(b, data, 100, &have), STATUS_INVALID); /* not a reservation */
	assert_int_equal(b->retract(b, data, 100, 0, &have), STATUS_INVALID);
	assert_int_equal(b->record_end(b, &recording), STATUS_OK);
	assert_int_equal(b->upload(b, data, host, 100), STATUS_OK);
	assert_int_equal(b->replay(b, recording), STATUS_OK); /* an empty recording */
	b->forget(b, recording);
	b->forget(b, NULL);
	assert_pattern(b, data, 100, 9);
	b->release(b, data);
	free(host);
}

/* --- losing the device ---------------------------------------------------------------------------------- */

static void expect_lost(backend *b, void *data, plan *p)
{
	char host[16] = {0};
	void *out = b;
	size_t have;
	assert_int_equal(b->allocate(b, 16, &out), STATUS_DEVICE);
	assert_null(out);
	assert_int_equal(b->upload(b, data, host, 16), STATUS_DEVICE);
	assert_int_equal(b->download(b, host, data, 16), STATUS_DEVICE);
	unsigned number;
	assert_int_equal(b->fetch(b, data, 16, &number), STATUS_DEVICE);
	assert_true(b->fetched(b, 0));
	assert_int_equal(b->fetch_take(b, 0, host, 16), STATUS_DEVICE);
	assert_int_equal(b->copy(b, data, data, 16), STATUS_DEVICE);
	assert_int_equal(b->clear(b, data, 16), STATUS_DEVICE);
	assert_int_equal(b->synchronize(b), STATUS_DEVICE);
	assert_int_equal(b->reserve(b, 16, &out), STATUS_DEVICE);
	assert_int_equal(b->record_begin(b), STATUS_DEVICE);
	assert_int_equal(plan_run(p), STATUS_DEVICE);
	int cursor = 0;
	assert_int_equal(plan_step(p, &cursor), STATUS_DEVICE);
	assert_false(b->busy(b));
	assert_int_equal(b->extend(b, NULL, 16, &have), STATUS_INVALID);
}

static void lose_and_open_again(int runs, const char *what)
{
	backend *front = open_stream(false), *back = open_stream(true), *third;
	float w[WIDTH * WIDTH], x[ROWS * WIDTH] = {0};
	random_normal(w, WIDTH * WIDTH, 1, 0.3);
	plan *p = small_plan(front, w), *q = small_plan(back, w);
	void *data = allocate(front, 16), *reserved;
	size_t have;
	assert_int_equal(front->reserve(front, MIB, &reserved), STATUS_OK);
	assert_int_equal(front->extend(front, reserved, MIB, &have), STATUS_OK);
	write_x(p, x);
	for (int run = 0; run < runs; run++)
		assert_int_equal(plan_run(p), STATUS_OK);

	setenv("ADDITIVE_EMULATOR_FAULT", what, 1);
	status issued = plan_run(p), done = front->synchronize(front);
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	assert_true(issued == STATUS_OK || issued == STATUS_DEVICE);
	assert_int_equal(done, STATUS_DEVICE);
	expect_lost(front, data, p);
	expect_lost(back, data, q);
	error err = ERROR_INIT;
	assert_int_equal(backend_open(&third, "cuda", NULL, cpu_open, 0, &err), STATUS_DEVICE);
	assert_non_null(strstr(err.message, "is lost, and still in use"));

	plan_free(p);
	plan_free(q);
	front->release(front, data);
	front->unreserve(front, reserved, MIB);
	fault.reset = false;
	backend_close(front);
	assert_false(fault.reset);
	backend_close(back);
	assert_true(fault.reset);
	fault.reset = false;
	front = open_stream(false);
	p = small_plan(front, w);
	write_x(p, x);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(front->synchronize(front), STATUS_OK);
	plan_free(p);
	backend_close(front);
	assert_false(fault.reset); /* the device was intact */
}

static void a_lost_device_reports_it_until_all_backends_are_closed(void **state)
{
	(void)state;
	skip_unless_emulated();
	lose_and_open_again(0, "launch:1"); /* a direct run */
	lose_and_open_again(1, "launch:2"); /* while recording, or the first replay */
	lose_and_open_again(3, "launch:1"); /* a replay */
}

static void an_allocation_waits_when_memory_is_short_for_a_moment(void **state)
{
	skip_unless_emulated();
	backend *b = *state;
	setenv("ADDITIVE_EMULATOR_FAULT", "malloc:1", 1);
	void *data = allocate(b, MIB);
	unsetenv("ADDITIVE_EMULATOR_FAULT");
	assert_zeros(b, data, MIB);
	b->release(b, data);
}

int main(void)
{
#define ON_ONE(test) cmocka_unit_test_setup_teardown(test, open_one, close_one)
	const struct CMUnitTest tests[] = {
	    ON_ONE(the_name_has_the_device_its_memory_and_its_kind),
	    cmocka_unit_test(a_missing_device_is_named),
	    cmocka_unit_test(an_unavailable_device_is_refused_with_the_missing_part),
	    cmocka_unit_test(a_device_can_be_opened_again),
	    ON_ONE(memory_is_aligned_and_zeroed),
	    ON_ONE(too_much_memory_is_a_status_and_the_device_continues),
	    ON_ONE(an_allocation_waits_when_memory_is_short_for_a_moment),
	    ON_ONE(an_upload_larger_than_the_staging_memory_is_complete),
	    ON_ONE(many_uploads_from_the_same_buffer_keep_their_content),
	    ON_ONE(released_memory_is_zeroed_when_it_is_used_again),
	    ON_ONE(reserved_memory_grows_in_place),
	    ON_ONE(more_than_the_device_has_leaves_a_reservation_unchanged),
	    ON_ONE(two_backends_are_two_streams_of_one_memory),
	    ON_ONE(a_fetch_is_not_delayed_by_later_work),
	    ON_ONE(a_backend_is_busy_until_its_work_is_done),
	    ON_ONE(replays_give_the_bits_of_direct_runs),
	    ON_ONE(only_kernels_are_recorded),
	    cmocka_unit_test(a_lost_device_reports_it_until_all_backends_are_closed),
	};
#undef ON_ONE
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
