/* Launches of kernels: which ones start before the previous work has ended, and the limits of grids. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "tests/emulator/count.h"
#include "tests/unit/cuda/device.h"

static void *allocate(backend *b, size_t bytes)
{
	void *data = NULL;
	assert_int_equal(b->allocate(b, bytes, &data), STATUS_OK);
	return data;
}

/* --- early launches ------------------------------------------------------------------------------ */

enum { ROWS = 3, WIDTH = 32, BYTES = ROWS * WIDTH * sizeof(float) };

/* x and y of a layernorm, whose kernel may start early, and the target of a copy. */
typedef struct rows {
	float *x, *weight, *bias, *y, *copy;
} rows;

static rows rows_new(backend *b)
{
	return (rows){allocate(b, BYTES), allocate(b, BYTES), allocate(b, BYTES), allocate(b, BYTES),
	              allocate(b, BYTES)};
}

static void rows_free(backend *b, const rows *r)
{
	b->release(b, r->x);
	b->release(b, r->weight);
	b->release(b, r->bias);
	b->release(b, r->y);
	b->release(b, r->copy);
}

static void layernorm(backend *b, const rows *r)
{
	const layernorm_params p = {.eps = 1e-5f};
	const op_call call = {.params = &p,
	                      .n_in = 3,
	                      .n_out = 3,
	                      .in = {{r->x, DTYPE_F32, SHAPE2(ROWS, WIDTH)},
	                             {r->weight, DTYPE_F32, SHAPE1(WIDTH)},
	                             {r->bias, DTYPE_F32, SHAPE1(WIDTH)}},
	                      .out = {{r->y, DTYPE_F32, SHAPE2(ROWS, WIDTH)}}};
	assert_int_equal(b->kernel[OP_layernorm](b, &call), STATUS_OK);
}

/* [ROWS, WIDTH] times its own transpose, by the library. */
static void product(backend *b, const rows *r)
{
	const matmul_params p = {.trans_b = true, .alpha = 1};
	const op_call call = {.params = &p,
	                      .n_in = 2,
	                      .n_out = 1,
	                      .in = {{r->x, DTYPE_F32, SHAPE2(ROWS, WIDTH)}, {r->x, DTYPE_F32, SHAPE2(ROWS, WIDTH)}},
	                      .out = {{r->copy, DTYPE_F32, SHAPE2(ROWS, ROWS)}}};
	assert_int_equal(b->kernel[OP_matmul](b, &call), STATUS_OK);
}

static void copies(backend *b, const rows *r)
{
	assert_int_equal(b->copy(b, r->copy, r->x, BYTES), STATUS_OK);
}
static void clears(backend *b, const rows *r)
{
	assert_int_equal(b->clear(b, r->copy, BYTES), STATUS_OK);
}
static void uploads(backend *b, const rows *r)
{
	const float zeros[ROWS * WIDTH] = {0};
	assert_int_equal(b->upload(b, r->copy, zeros, BYTES), STATUS_OK);
}
static void fetches(backend *b, const rows *r)
{
	unsigned number;
	float back[ROWS * WIDTH];
	assert_int_equal(b->fetch(b, r->copy, BYTES, &number), STATUS_OK);
	assert_int_equal(b->fetch_take(b, number, back, BYTES), STATUS_OK);
}
static void allocates(backend *b, const rows *r)
{
	(void)r;
	b->release(b, allocate(b, BYTES));
}
static void copies_nothing(backend *b, const rows *r)
{
	assert_int_equal(b->copy(b, r->copy, r->x, 0), STATUS_OK);
	assert_int_equal(b->clear(b, r->copy, 0), STATUS_OK);
	b->release(b, NULL);
}

/* Number of layernorms that start early, of two; `between` runs after the first one unless NULL. */
static int early_around(backend *b, void (*between)(backend *b, const rows *r))
{
	const rows r = rows_new(b);
	const emulator_counter counter = emulator_counting();
	size_t n;
	int early = 0;
	if (!counter.begin)
		skip();
	counter.begin();
	layernorm(b, &r);
	if (between)
		between(b, &r);
	layernorm(b, &r);
	const emulator_work *w = counter.end(&n);
	for (size_t i = 0; i < n; i++)
		early += w[i].early;
	rows_free(b, &r);
	return early;
}

static void a_kernel_starts_early_only_after_a_kernel(void **state)
{
	(void)state;
	static const struct {
		void (*between)(backend *b, const rows *r);
		int early;
	} cases[] = {{NULL, 1},    {copies_nothing, 1}, {copies, 0},    {clears, 0},
	             {uploads, 0}, {fetches, 0},        {allocates, 0}, {product, 0}};
	backend *b = open_device();
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (early_around(b, cases[i].between) != cases[i].early)
			fail_msg("case %zu: of two kernels %d should begin early", i, cases[i].early);
	backend_close(b);
}

/* PTX for devices before 9.0 omits a kernel's wait, and a device of 9.0 or later compiles that PTX too. The emulated
 * device behaves like such code: if it were launched early, it would report a thread that never waits. */
static void a_kernel_starts_early_only_if_its_code_waits(void **state)
{
	(void)state;
	static const struct {
		const char *ptx;
		int early;
	} cases[] = {{"80", 0}, {"89", 0}, {"90", 1}, {"120", 1}, {"80:layernorm_kernel", 0}, {"80:narrow_kernel", 1}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		setenv("ADDITIVE_EMULATOR_PTX", cases[i].ptx, 1);
		backend *b = open_device();
		const int early = early_around(b, NULL), again = early_around(b, NULL);
		backend_close(b);
		unsetenv("ADDITIVE_EMULATOR_PTX");
		if (early != cases[i].early || again != cases[i].early)
			fail_msg("PTX %s: of two kernels %d begin early", cases[i].ptx, early);
	}
}

static void no_kernel_starts_early_when_that_is_switched_off(void **state)
{
	(void)state;
	setenv("ADDITIVE_CUDA_EARLY", "0", 1);
	backend *b = open_device();
	assert_int_equal(early_around(b, NULL), 0);
	backend_close(b);
	unsetenv("ADDITIVE_CUDA_EARLY");
}

/* --- grids ------------------------------------------------------------------------------------------ */

/* With a block for four rows, the low 32 bits of the number of blocks are 1, which is a valid grid. */
static void a_grid_of_more_blocks_than_cuda_allows_is_refused(void **state)
{
	(void)state;
	backend *b = open_device();
	const hide_keys_params p = {.batch = ((int64_t)1 << 40) + 1, .length = 1};
	const op_call call = {.params = &p,
	                      .n_in = 1,
	                      .n_out = 1,
	                      .in = {{NULL, DTYPE_I32, SHAPE1(4)}},
	                      .out = {{NULL, DTYPE_I32, SHAPE2(p.batch, 1)}}};
	assert_int_equal(b->kernel[OP_hide_keys](b, &call), STATUS_UNSUPPORTED);
	const int64_t logits = ((int64_t)1 << 32) + 1;
	const op_call sample = {.n_in = 1, .n_out = 1, .in = {{NULL, DTYPE_F32, SHAPE2(logits, 1)}}};
	assert_int_equal(b->kernel[OP_sample](b, &sample), STATUS_UNSUPPORTED);
	void *data = allocate(b, 100);
	assert_int_equal(b->synchronize(b), STATUS_OK); /* the device is not lost */
	b->release(b, data);
	backend_close(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_kernel_starts_early_only_after_a_kernel),
	    cmocka_unit_test(a_kernel_starts_early_only_if_its_code_waits),
	    cmocka_unit_test(no_kernel_starts_early_when_that_is_switched_off),
	    cmocka_unit_test(a_grid_of_more_blocks_than_cuda_allows_is_refused),
	};
	find_plugin();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
