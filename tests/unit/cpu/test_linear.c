/* linear on every instruction set: against the reference at odd shapes, and the guarantees of ops.h about packed
 * weights. These are bits that do not depend on the batch, and exact sums of bytes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "engine/tensor/panel.h"
#include "tests/unit/cpu/fixture.h"

static const char *const isas[] = {"baseline", "avx2", "avx512", "avx512vnni"};
static const dtype types[] = {DTYPE_F32, DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
enum { ISAS = 4, TYPES = 4 };

static backend *open_isa(int isa, int threads)
{
	assert_int_equal(setenv("ADDITIVE_CPU_ISA", isas[isa], 1), 0);
	backend *b = fixture_open(threads);
	assert_int_equal(unsetenv("ADDITIVE_CPU_ISA"), 0);
	return b;
}

static tensor pack(dtype type, const float *w, int64_t n, int64_t k)
{
	size_t bytes;
	tensor t = {NULL, type, SHAPE2(n, k)};
	assert_true(shape_bytes(t.shape, type, &bytes));
	t.data = buffer_new(bytes);
	if (type == DTYPE_F32)
		memcpy(t.data, w, bytes);
	else
		panel_pack(type, w, n, k, t.data);
	return t;
}

static tensor random_weight(dtype type, int64_t n, int64_t k)
{
	tensor w = fixture_normal(SHAPE2(n, k), 72, 0.5), t = pack(type, w.data, n, k);
	buffer_free(w.data);
	return t;
}

static const linear_params params = {.alpha = -0.37f};

static op_call call_of(tensor x, tensor weight, tensor bias)
{
	return (op_call){.params = &params, .n_in = 3, .in = {x, weight, bias}};
}

static void every_instruction_set_agrees_with_the_reference(void **state)
{
	(void)state;
	static const int64_t outputs[] = {1, 15, 16, 17, 300}, inputs[] = {1, 3, 4, 31, 128, 129, 512},
	                     rows[] = {0, 1, 2, 3, 7, 8, 9, 33, 256};
	backend *reference, *b[ISAS];
	assert_int_equal(cpu_reference_open(&reference, 0, NULL), STATUS_OK);
	for (int isa = 0; isa < ISAS; isa++)
		b[isa] = open_isa(isa, 2);
	for (int i = 0; i < 5 * 7 * 9 * TYPES; i++) {
		int64_t n = outputs[i % 5], k = inputs[i / 5 % 7], m = rows[i / 35 % 9];
		dtype type = types[i / 315];
		if (m * n * k > 5000000 && n % 16 == 0)
			continue; /* the reference is slow */
		tensor bias = i % 2 ? fixture_normal(SHAPE1(n), 73, 1) : (tensor){0};
		op_call want = call_of(fixture_normal(SHAPE2(m, k), 71, 1), random_weight(type, n, k), bias);
		fixture_run(reference, OP_linear, &want);
		for (int isa = 0; isa < ISAS; isa++) {
			op_call got = want;
			fixture_run(b[isa], OP_linear, &got);
			/* int8 sums are exact: only the roundings of a few products remain */
			double allowed = type == DTYPE_PANEL_INT8 ? 1e-6 : 1e-7 * (2 + (double)k / 4);
			assert_true(compare_close(isas[isa], got.out[0].data, want.out[0].data, m * n, allowed, 1e-6));
			fixture_free_outputs(&got);
		}
		fixture_free(&want);
	}
	for (int isa = 0; isa < ISAS; isa++)
		backend_close(b[isa]);
	backend_close(reference);
}

/* Run rows first … first + m - 1 of x; true if they have the bits of the same rows of `whole`. */
static bool rows_are_those_of(backend *b, const op_call *whole, int64_t first, int64_t m)
{
	const int64_t k = shape_last(whole->in[0].shape), n = shape_last(whole->out[0].shape);
	op_call part = *whole;
	part.in[0] = fixture_tensor(DTYPE_F32, SHAPE2(m, k));
	memcpy(part.in[0].data, (const float *)whole->in[0].data + first * k, (size_t)(m * k) * sizeof(float));
	fixture_run(b, OP_linear, &part);
	bool same = compare_same("rows", part.out[0].data, (const float *)whole->out[0].data + first * n, m * n);
	buffer_free(part.in[0].data);
	fixture_free_outputs(&part);
	return same;
}

static void a_row_has_the_same_bits_in_any_batch_and_on_any_threads(void **state)
{
	(void)state;
	enum { ROWS = 150, N = 1000, K = 131 };
	static const int threads[] = {1, 2, 3, 5};
	static const int64_t batches[][2] = {{0, 1},  {149, 1}, {77, 1},  {3, 2},  {10, 3},  {20, 4},
	                                     {31, 5}, {40, 7},  {60, 16}, {1, 64}, {5, 130}, {0, ROWS}};
	for (int isa = 0; isa < ISAS; isa++) {
		for (int t = 1; t < TYPES; t++) {
			op_call whole = call_of(fixture_normal(SHAPE2(ROWS, K), 74, 1), random_weight(types[t], N, K),
			                        fixture_normal(SHAPE1(N), 75, 1));
			backend *one = open_isa(isa, 1);
			fixture_run(one, OP_linear, &whole);
			backend_close(one);
			for (int i = 0; i < 4; i++) {
				backend *b = open_isa(isa, threads[i]);
				for (int j = 0; j < 12; j++)
					assert_true(rows_are_those_of(b, &whole, batches[j][0], batches[j][1]));
				backend_close(b);
			}
			fixture_free(&whole);
		}
	}
}

static void a_tall_weight_has_the_same_bits_on_any_threads(void **state)
{
	(void)state;
	enum { N = 60011, K = 65 };
	for (int t = 1; t < TYPES; t++) {
		op_call whole =
		    call_of(fixture_normal(SHAPE2(9, K), 74, 1), random_weight(types[t], N, K), (tensor){0});
		backend *one = fixture_open(1), *five = fixture_open(5);
		fixture_run(one, OP_linear, &whole);
		assert_true(rows_are_those_of(five, &whole, 0, 9));
		assert_true(rows_are_those_of(five, &whole, 4, 1));
		fixture_free(&whole);
		backend_close(one);
		backend_close(five);
	}
}

/* y of one row by the formula of ops.h, with the integer sum. */
static float int8_output(const float *x, const tensor *weight, int64_t n, float bias)
{
	const int64_t k = weight->shape.dim[1];
	const unsigned char *panel =
	    (const unsigned char *)weight->data + (size_t)(n / PANEL_WIDTH) * panel_stride(DTYPE_PANEL_INT8, k);
	const panel_header *header = (const panel_header *)panel;
	const int8_t *q = (const int8_t *)(panel + sizeof *header);
	float top = 0;
	for (int64_t i = 0; i < k; i++)
		top = fmaxf(top, fabsf(x[i]));
	const float s = fmaxf(top / PANEL_INT8_MAX, FLT_MIN);
	int64_t sum = 0;
	for (int64_t i = 0; i < k; i++) {
		int64_t u = lrintf(x[i] / s) + 128;
		assert_in_range(u, 1, 255);
		sum += u * q[(i / 4 * 16 + n % 16) * 4 + i % 4];
	}
	sum -= 128 * (int64_t)header->sum[n % 16];
	const volatile float product = s * header->scale[n % 16] * (float)sum; /* rounded before the bias is added */
	return params.alpha * (product + bias);
}

static void int8_has_the_bits_of_the_integer_formula(void **state)
{
	(void)state;
	/* inputs past 1024, and the most allowed: all sums are exact */
	static const struct {
		int64_t rows, n, k;
	} shapes[] = {{5, 33, 131}, {2, 17, 1024}, {3, 16, 1025}, {2, 5, 5003}, {1, 3, PANEL_INT8_INPUTS}};
	for (int isa = 0; isa < ISAS; isa++) {
		backend *b = open_isa(isa, 2);
		for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
			int64_t rows = shapes[s].rows, n = shapes[s].n, k = shapes[s].k;
			tensor x = fixture_normal(SHAPE2(rows, k), 76, 1), bias = fixture_normal(SHAPE1(n), 77, 1);
			op_call call = call_of(x, random_weight(DTYPE_PANEL_INT8, n, k), bias);
			fixture_run(b, OP_linear, &call);
			float *want = buffer_new((size_t)(rows * n) * sizeof *want);
			for (int64_t i = 0; i < rows * n; i++)
				want[i] = int8_output((float *)x.data + i / n * k, &call.in[1], i % n,
				                      ((float *)bias.data)[i % n]);
			assert_true(compare_same(isas[isa], call.out[0].data, want, rows * n));
			buffer_free(want);
			fixture_free(&call);
		}
		backend_close(b);
	}
}

/* All bytes are at their limits, where a sum of pairs in 16 bits would saturate and a sum in float would round. */
static void int8_sums_do_not_overflow(void **state)
{
	(void)state;
	enum { K = PANEL_INT8_INPUTS };
	for (int isa = 0; isa < ISAS; isa++) {
		backend *b = open_isa(isa, 1);
		tensor x = fixture_tensor(DTYPE_F32, SHAPE2(1, K)), w = fixture_tensor(DTYPE_F32, SHAPE2(2, K));
		for (int64_t k = 0; k < K; k++) {
			((float *)x.data)[k] = 127;
			((float *)w.data)[k] = 127;
			((float *)w.data)[K + k] = k == 0 ? -126 : -127;
		}
		op_call call = call_of(x, pack(DTYPE_PANEL_INT8, w.data, 2, K), (tensor){0});
		fixture_run(b, OP_linear, &call);
		const float *y = call.out[0].data;
		assert_true(y[0] == params.alpha * (127.0f * 127.0f * K));
		assert_true(y[1] == params.alpha * (float)(127 - 127 * 127 * K));
		buffer_free(w.data);
		fixture_free(&call);
		backend_close(b);
	}
}

static void rows_of_zeros_and_of_large_and_tiny_values_are_right(void **state)
{
	(void)state;
	enum { ROWS = 4, N = 17, K = 31 };
	static const float sizes[ROWS] = {0, 1e30f, 1e-30f, 1e-42f};
	for (int isa = 0; isa < ISAS; isa++) {
		backend *b = open_isa(isa, 1), *reference;
		assert_int_equal(cpu_reference_open(&reference, 0, NULL), STATUS_OK);
		for (int t = 0; t < TYPES; t++) {
			tensor x = fixture_normal(SHAPE2(ROWS, K), 78, 1);
			for (int64_t i = 0; i < ROWS * K; i++)
				((float *)x.data)[i] *= sizes[i / K];
			op_call call = call_of(x, random_weight(types[t], N, K), (tensor){0}), want = call;
			fixture_run(b, OP_linear, &call);
			fixture_run(reference, OP_linear, &want);
			for (int64_t r = 0; r < ROWS; r++)
				assert_true(compare_close("row", (float *)call.out[0].data + r * N,
				                          (float *)want.out[0].data + r * N, N,
				                          1e-5 * (double)sizes[r] + 1e-43, 1e-6));
			for (int64_t i = 0; i < N; i++)
				assert_true(((float *)call.out[0].data)[i] == 0);
			fixture_free_outputs(&want);
			fixture_free(&call);
		}
		backend_close(reference);
		backend_close(b);
	}
}

static void a_row_that_is_not_finite_affects_only_itself(void **state)
{
	(void)state;
	enum { ROWS = 9, N = 20, K = 37 };
	for (int isa = 0; isa < ISAS; isa++) {
		backend *b = open_isa(isa, 1);
		for (int t = 1; t < TYPES; t++) {
			tensor x = fixture_normal(SHAPE2(ROWS, K), 79, 1);
			((float *)x.data)[2 * K] = NAN; /* reached by reading a step too far from the previous row */
			((float *)x.data)[7 * K + 6] = INFINITY;
			op_call call = call_of(x, random_weight(types[t], N, K), (tensor){0});
			fixture_run(b, OP_linear, &call);
			for (int64_t i = 0; i < ROWS * N; i++)
				assert_int_equal(isfinite(((float *)call.out[0].data)[i]) != 0,
				                 i / N != 2 && i / N != 7);
			fixture_free(&call);
		}
		backend_close(b);
	}
}

static void more_inputs_than_a_sum_of_bytes_can_hold_are_an_error(void **state)
{
	(void)state;
	float some[16] = {0};
	op_call call = {.params = &params,
	                .n_in = 2,
	                .in = {{some, DTYPE_F32, SHAPE2(0, PANEL_INT8_INPUTS + 1)},
	                       {some, DTYPE_PANEL_INT8, SHAPE2(0, PANEL_INT8_INPUTS + 1)}}};
	error err = ERROR_INIT;
	assert_int_equal(op_get(OP_linear)->check(&call, &err), STATUS_INVALID);
	assert_string_equal(err.param, "weight");
	assert_non_null(strstr(err.message, "65537"));
	call.in[1].type = DTYPE_PANEL_BF16;
	assert_int_equal(op_get(OP_linear)->check(&call, NULL), STATUS_OK);
}

static void the_largest_finite_output_of_each_block_is_returned(void **state)
{
	(void)state;
	enum { SIZES = 8, HEIGHTS = 5 };
	static const int64_t outputs[SIZES] = {1, 31, 33, 48, 128, 208, 300, 1025}, rows[HEIGHTS] = {1, 2, 3, 5, 70};
	static const linear_params with_maxima = {.alpha = -0.37f, .maxima = true};
	for (int isa = 0; isa <= ISAS; isa++) {
		backend *b;
		if (isa < ISAS)
			b = open_isa(isa, 3);
		else
			assert_int_equal(cpu_reference_open(&b, 0, NULL), STATUS_OK);
		for (int i = 0; i < SIZES * HEIGHTS * TYPES; i++) {
			const int64_t n = outputs[i % SIZES], m = rows[i / SIZES % HEIGHTS],
			              blocks = (n + LINEAR_BLOCK - 1) / LINEAR_BLOCK;
			tensor bias = fixture_normal(SHAPE1(n), 81, 1);
			for (int64_t j = 0; j < n; j++) /* some outputs, and all outputs of one block, are not finite */
				if (j % 50 == 7 || j / LINEAR_BLOCK == 3)
					((float *)bias.data)[j] = j % 3 == 0 ? NAN : j % 3 == 1 ? INFINITY : -INFINITY;
			op_call call = call_of(fixture_normal(SHAPE2(m, 9), 79, 1),
			                       random_weight(types[i / SIZES / HEIGHTS], n, 9), bias);
			call.params = &with_maxima;
			fixture_run(b, OP_linear, &call);
			assert_true(shape_equal(call.out[1].shape, SHAPE2(m, blocks)));
			const float *y = call.out[0].data, *maxima = call.out[1].data;
			for (int64_t at = 0; at < m * blocks; at++) {
				float most = -INFINITY;
				for (int64_t j = at % blocks * LINEAR_BLOCK; j < n && j / LINEAR_BLOCK == at % blocks;
				     j++) {
					const float one = y[at / blocks * n + j];
					most = isfinite(one) && one > most ? one : most;
				}
				assert_true(maxima[at] == most);
			}
			fixture_free(&call);
		}
		backend_close(b);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_instruction_set_agrees_with_the_reference),
	    cmocka_unit_test(a_row_has_the_same_bits_in_any_batch_and_on_any_threads),
	    cmocka_unit_test(a_tall_weight_has_the_same_bits_on_any_threads),
	    cmocka_unit_test(int8_has_the_bits_of_the_integer_formula),
	    cmocka_unit_test(int8_sums_do_not_overflow),
	    cmocka_unit_test(the_largest_finite_output_of_each_block_is_returned),
	    cmocka_unit_test(rows_of_zeros_and_of_large_and_tiny_values_are_right),
	    cmocka_unit_test(a_row_that_is_not_finite_affects_only_itself),
	    cmocka_unit_test(more_inputs_than_a_sum_of_bytes_can_hold_are_an_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
