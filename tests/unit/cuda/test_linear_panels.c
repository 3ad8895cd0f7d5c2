/* linear over panels: within the error that cuda/linear_panels.h states, at the edges of panels, steps, slices and
 * blocks, and the promises of ops.h: bits that do not depend on the batch, exact sums of bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>

#include "engine/tensor/panel.h"
#include "tests/unit/cuda/call.h"
#include "tests/unit/cuda/device.h"
#include "tests/unit/support/compare.h"

static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
enum { TYPES = 3 };
static const linear_params params = {-0.37f};

static int open_it(void **state)
{
	*state = open_device();
	return 0;
}

static int close_it(void **state)
{
	backend_close(*state);
	return 0;
}

static tensor pack(dtype type, const float *w, int64_t n, int64_t k)
{
	tensor t = call_tensor(type, SHAPE2(n, k));
	panel_pack(type, w, n, k, t.data);
	return t;
}

static tensor random_weight(dtype type, int64_t n, int64_t k)
{
	tensor w = call_normal(SHAPE2(n, k), 72, 0.5), t = pack(type, w.data, n, k);
	buffer_free(w.data);
	return t;
}

static op_call call_of(tensor x, tensor weight, tensor bias)
{
	return (op_call){.params = &params, .n_in = 3, .in = {x, weight, bias}};
}

/* --- against exact sums -------------------------------------------------------------------- */

/* What is allowed of Σ |x w| with K inputs, relative: f32 sums round at every step of the longest chain, at worst. */
static double allowed(dtype type, int64_t k)
{
	const double rounding = ldexp(1, -23);
	if (type == DTYPE_PANEL_F32)
		return rounding * ((double)k / 32 + 40);
	return ldexp(1, -16) + rounding * ((double)k / 128 + 20);
}

static void check_sums(const op_call *call, dtype type)
{
	const int64_t rows = shape_rows(call->in[0].shape), k = shape_last(call->in[0].shape),
	              n = call->in[1].shape.dim[0];
	const float *x = call->in[0].data, *bias = call->in[2].data, *y = call->out[0].data;
	float *w = buffer_new((size_t)k * sizeof *w);
	for (int64_t j = 0; j < n; j++) {
		(void)panel_stored(type, call->in[1].data, k, j, w);
		for (int64_t i = 0; i < rows; i++) {
			double sum = 0, size = 0;
			for (int64_t l = 0; l < k; l++) {
				sum += (double)x[i * k + l] * (double)w[l];
				size += fabs((double)x[i * k + l] * (double)w[l]);
			}
			const double b = bias ? (double)bias[j] : 0, want = (double)params.alpha * (sum + b);
			const double most =
			    fabs((double)params.alpha) * (allowed(type, k) * size + 1e-7 * (fabs(b) + fabs(want)));
			if (!(fabs((double)y[i * n + j] - want) <= most))
				fail_msg("%s, %d rows, N %d, K %d: y[%d, %d] is %.9g, should be %.9g ± %.2g",
				         dtype_name(type), (int)rows, (int)n, (int)k, (int)i, (int)j,
				         (double)y[i * n + j], want, most);
		}
	}
	buffer_free(w);
}

/* y as ops.h has it for int8, each operation rounded. */
static void check_bytes(const op_call *call)
{
	const int64_t rows = shape_rows(call->in[0].shape), k = shape_last(call->in[0].shape),
	              n = call->in[1].shape.dim[0];
	const float *bias = call->in[2].data;
	float *q = buffer_new((size_t)k * sizeof *q), *want = buffer_new((size_t)(rows * n) * sizeof *want);
	for (int64_t i = 0; i < rows; i++) {
		const float *x = (const float *)call->in[0].data + i * k;
		float top = 0;
		for (int64_t l = 0; l < k; l++)
			top = fmaxf(top, fabsf(x[l]));
		const float s = fmaxf(top / PANEL_INT8_MAX, FLT_MIN);
		for (int64_t j = 0; j < n; j++) {
			const float scale = panel_stored(DTYPE_PANEL_INT8, call->in[1].data, k, j, q);
			int64_t sum = 0;
			for (int64_t l = 0; l < k; l++)
				sum += (lrintf(x[l] / s) + 128) * (int64_t)q[l] - 128 * (int64_t)q[l];
			const volatile float product = s * scale * (float)sum; /* rounded before the bias */
			want[i * n + j] = params.alpha * (product + (bias ? bias[j] : 0));
		}
	}
	assert_true(compare_same("int8", call->out[0].data, want, rows * n));
	buffer_free(want);
	buffer_free(q);
}

static void check_shape_of(backend *b, dtype type, int64_t rows, int64_t n, int64_t k, bool biased)
{
	tensor bias = biased ? call_normal(SHAPE1(n), 73, 1) : (tensor){0};
	op_call call = call_of(call_normal(SHAPE2(rows, k), 71, 1), random_weight(type, n, k), bias);
	call_run(b, OP_linear, &call);
	if (type == DTYPE_PANEL_INT8)
		check_bytes(&call);
	else
		check_sums(&call, type);
	call_free(&call);
}

static void odd_shapes_are_right(void **state)
{
	static const int64_t sizes[] = {1, 15, 16, 17, 131, 260};
	static const int64_t rows[] = {1, 2, 7, 8, 9, 16, 17, 33};
	for (int i = 0; i < 6 * 6 * TYPES; i++)
		check_shape_of(*state, types[i / 36], rows[(i + i / 6) % 8], sizes[i % 6], sizes[i / 6 % 6], i % 2);
}

static void every_number_of_rows_is_right(void **state)
{
	for (int t = 0; t < TYPES; t++)
		for (int64_t rows = 1; rows <= 40; rows++)
			check_shape_of(*state, types[t], rows, 17, 35, rows % 2);
}

static void long_sums_and_many_outputs_are_right(void **state)
{
	for (int t = 0; t < TYPES; t++) {
		check_shape_of(*state, types[t], 3, 17, 4099, true);
		check_shape_of(*state, types[t], 17, 16, 4096, false);
		check_shape_of(*state, types[t], 2, 4099, 17, true);
	}
}

/* Enough blocks for the wide kernels on up to 150 processors: rows and outputs past a block's, K past stages and
 * slices. */
static void large_products_are_right(void **state)
{
	static const int64_t inputs[] = {1, 16, 64, 65, 132, 515};
	for (int i = 0; i < 6 * TYPES; i++)
		check_shape_of(*state, types[i / 6], i % 2 ? 129 : 192, 1025, inputs[i % 6], i % 2);
}

/* --- batches ---------------------------------------------------------------------------------- */

/* Rows first … first + count - 1 of x: the same bits as those rows of `whole`? */
static bool rows_are_those_of(backend *b, const op_call *whole, int64_t first, int64_t count)
{
	const int64_t k = shape_last(whole->in[0].shape), n = shape_last(whole->out[0].shape);
	op_call part = *whole;
	part.in[0] = call_tensor(DTYPE_F32, SHAPE2(count, k));
	memcpy(part.in[0].data, (const float *)whole->in[0].data + first * k, (size_t)(count * k) * sizeof(float));
	call_run(b, OP_linear, &part);
	bool same = compare_same("rows", part.out[0].data, (const float *)whole->out[0].data + first * n, count * n);
	buffer_free(part.in[0].data);
	call_free_outputs(&part);
	return same;
}

static void a_row_has_the_same_bits_in_any_batch(void **state)
{
	enum { ROWS = 150, N = 1030 };
	static const int64_t inputs[] = {131, 300};
	static const int64_t batches[][2] = {{0, 1},  {149, 1}, {77, 1},  {3, 2},   {20, 4}, {40, 7},
	                                     {31, 8}, {31, 9},  {60, 16}, {60, 17}, {1, 64}, {20, 130}};
	for (int i = 0; i < 2 * TYPES; i++) {
		const int64_t k = inputs[i % 2];
		op_call whole = call_of(call_normal(SHAPE2(ROWS, k), 74, 1), random_weight(types[i / 2], N, k),
		                        call_normal(SHAPE1(N), 75, 1));
		call_run(*state, OP_linear, &whole);
		for (int j = 0; j < 12; j++)
			assert_true(rows_are_those_of(*state, &whole, batches[j][0], batches[j][1]));
		call_free(&whole);
	}
}

/* --- values at the ends ------------------------------------------------------------------------- */

/* All bytes at their ends, where a sum in float would round. */
static void sums_of_bytes_do_not_overflow(void **state)
{
	enum { K = PANEL_INT8_INPUTS };
	tensor x = call_tensor(DTYPE_F32, SHAPE2(1, K)), w = call_tensor(DTYPE_F32, SHAPE2(2, K));
	for (int64_t k = 0; k < K; k++) {
		((float *)x.data)[k] = 127;
		((float *)w.data)[k] = 127;
		((float *)w.data)[K + k] = k == 0 ? -126 : -127;
	}
	op_call call = call_of(x, pack(DTYPE_PANEL_INT8, w.data, 2, K), (tensor){0});
	call_run(*state, OP_linear, &call);
	const float *y = call.out[0].data;
	assert_true(y[0] == params.alpha * (127.0f * 127.0f * K));
	assert_true(y[1] == params.alpha * (float)(127 - 127 * 127 * K));
	buffer_free(w.data);
	call_free(&call);
}

static void rows_of_zeros_and_of_large_and_tiny_values_are_right(void **state)
{
	enum { ROWS = 3, N = 17, K = 31 };
	static const float sizes[ROWS] = {0, 1e30f, 1e-30f};
	for (int t = 0; t < TYPES; t++) {
		tensor x = call_normal(SHAPE2(ROWS, K), 78, 1);
		for (int64_t i = 0; i < ROWS * K; i++)
			((float *)x.data)[i] *= sizes[i / K];
		op_call call = call_of(x, random_weight(types[t], N, K), (tensor){0});
		call_run(*state, OP_linear, &call);
		if (types[t] == DTYPE_PANEL_INT8)
			check_bytes(&call);
		else
			check_sums(&call, types[t]);
		for (int64_t i = 0; i < N; i++)
			assert_true(((float *)call.out[0].data)[i] == 0);
		call_free(&call);
	}
}

static void a_row_that_is_not_finite_spoils_itself_only(void **state)
{
	enum { N = 1030, K = 37 };
	static const int64_t rows[] = {9, 70};
	for (int i = 0; i < 2 * TYPES; i++) {
		tensor x = call_normal(SHAPE2(rows[i % 2], K), 79, 1);
		((float *)x.data)[2 * K] = NAN; /* where a step too far from the row before would be */
		((float *)x.data)[7 * K + 6] = INFINITY;
		op_call call = call_of(x, random_weight(types[i / 2], N, K), (tensor){0});
		call_run(*state, OP_linear, &call);
		for (int64_t e = 0; e < rows[i % 2] * N; e++)
			assert_int_equal(isfinite(((float *)call.out[0].data)[e]) != 0, e / N != 2 && e / N != 7);
		call_free(&call);
	}
}

/* The weights of output 3 are not finite; for int8 its scale says so. */
static void an_output_that_is_not_finite_spoils_itself_only(void **state)
{
	enum { ROWS = 9, N = 20, K = 37 };
	for (int t = 0; t < TYPES; t++) {
		tensor w = call_normal(SHAPE2(N, K), 80, 1);
		((float *)w.data)[3 * K + K - 1] = NAN;
		((float *)w.data)[19 * K] = INFINITY;
		op_call call = call_of(call_normal(SHAPE2(ROWS, K), 81, 1), pack(types[t], w.data, N, K), (tensor){0});
		call_run(*state, OP_linear, &call);
		for (int64_t e = 0; e < ROWS * N; e++)
			assert_int_equal(isfinite(((float *)call.out[0].data)[e]) != 0, e % N != 3 && e % N != 19);
		buffer_free(w.data);
		call_free(&call);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(odd_shapes_are_right),
	    cmocka_unit_test(every_number_of_rows_is_right),
	    cmocka_unit_test(long_sums_and_many_outputs_are_right),
	    cmocka_unit_test(large_products_are_right),
	    cmocka_unit_test(a_row_has_the_same_bits_in_any_batch),
	    cmocka_unit_test(sums_of_bytes_do_not_overflow),
	    cmocka_unit_test(rows_of_zeros_and_of_large_and_tiny_values_are_right),
	    cmocka_unit_test(a_row_that_is_not_finite_spoils_itself_only),
	    cmocka_unit_test(an_output_that_is_not_finite_spoils_itself_only),
	};
	return cmocka_run_group_tests(tests, open_it, close_it);
}
