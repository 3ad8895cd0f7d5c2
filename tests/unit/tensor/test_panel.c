/* Packed weights: sizes, layout, rounding. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/panel.h"
#include "tests/unit/support/buffer.h"
#include "tests/unit/support/random.h"

static const dtype types[] = {DTYPE_PANEL_F32, DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
static const int64_t outputs[] = {0, 1, 15, 16, 17, 33}, inputs[] = {0, 1, 2, 3, 4, 5, 31, 128};

enum {
	TYPES = sizeof types / sizeof types[0],
	OUTPUTS = sizeof outputs / sizeof outputs[0],
	INPUTS = sizeof inputs / sizeof inputs[0]
};

static float from_bits(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static size_t bytes_of(dtype type, int64_t n, int64_t k)
{
	size_t bytes;
	assert_true(panel_bytes(type, n, k, &bytes));
	return bytes;
}

/* Pack W; also returns W itself if `weight` is not NULL. */
static void *packed(dtype type, int64_t n, int64_t k, float **weight)
{
	float *w = buffer_new((size_t)(n * k) * sizeof *w);
	random_normal(w, n * k, 21, 1);
	void *panels = buffer_new(bytes_of(type, n, k));
	panel_pack(type, w, n, k, panels);
	assert_true(buffer_intact(panels) && buffer_intact(w));
	if (weight)
		*weight = w;
	else
		buffer_free(w);
	return panels;
}

static void sizes_follow_the_formula_of_the_header(void **state)
{
	(void)state;
	assert_int_equal(panel_stride(DTYPE_PANEL_F32, 5), 5 * 64);
	assert_int_equal(panel_stride(DTYPE_PANEL_BF16, 5), 3 * 64);
	assert_int_equal(panel_stride(DTYPE_PANEL_INT8, 5), 128 + 2 * 64);
	assert_int_equal(panel_stride(DTYPE_PANEL_F32, 0), 0);
	assert_int_equal(panel_stride(DTYPE_PANEL_INT8, 0), 128);
	for (int t = 0; t < TYPES; t++) {
		assert_int_equal(bytes_of(types[t], 0, 100), 0);
		assert_int_equal(bytes_of(types[t], 16, 100), panel_stride(types[t], 100));
		assert_int_equal(bytes_of(types[t], 17, 100), 2 * panel_stride(types[t], 100));
	}
}

static void a_size_that_overflows_is_refused(void **state)
{
	(void)state;
	static const int64_t shapes[][2] = {
	    {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_C(1) << 40, INT64_C(1) << 40}, {INT64_MAX, INT64_MAX}};
	for (int t = 0; t < TYPES; t++) {
		size_t bytes;
		for (int s = 0; s < 4; s++)
			assert_false(panel_bytes(types[t], shapes[s][0], shapes[s][1], &bytes));
		assert_true(panel_bytes(types[t], INT64_C(1) << 31, INT64_C(1) << 20, &bytes));
		assert_true(bytes >= (size_t)1 << 51);
	}
}

/* Largest difference between a packed weight and its original. */
static double tolerance(dtype type, double w, double top)
{
	if (type == DTYPE_PANEL_F32)
		return 0;
	if (type == DTYPE_PANEL_BF16)
		return fabs(w) / 256;
	return top / PANEL_INT8_MAX / 2 * (1 + 1e-5);
}

static void every_row_is_unpacked_as_packed(void **state)
{
	(void)state;
	for (int i = 0; i < TYPES * OUTPUTS * INPUTS; i++) {
		dtype type = types[i % TYPES];
		int64_t n = outputs[i / TYPES % OUTPUTS], k = inputs[i / TYPES / OUTPUTS];
		float *w, *row = buffer_new((size_t)k * sizeof *row);
		void *panels = packed(type, n, k, &w);
		for (int64_t r = 0; r < n; r++) {
			double top = 0;
			for (int64_t j = 0; j < k; j++)
				top = fmax(top, fabs((double)w[r * k + j]));
			buffer_poison(row);
			panel_row(type, panels, k, r, row);
			for (int64_t j = 0; j < k; j++) {
				double want = (double)w[r * k + j];
				assert_true(fabs((double)row[j] - want) <= tolerance(type, want, top));
			}
			assert_true(buffer_intact(row));
		}
		buffer_free(panels);
		buffer_free(row);
		buffer_free(w);
	}
}

static void a_panel_has_the_documented_layout(void **state)
{
	(void)state;
	enum { N = 20, K = 7 };
	float *w;
	const float *f = packed(DTYPE_PANEL_F32, N, K, &w);
	const uint16_t *half = packed(DTYPE_PANEL_BF16, N, K, NULL);
	const unsigned char *bytes = packed(DTYPE_PANEL_INT8, N, K, NULL);
	for (int64_t r = 0; r < N; r++) {
		const int64_t panel = r / 16, j = r % 16;
		const unsigned char *third = bytes + (size_t)panel * panel_stride(DTYPE_PANEL_INT8, K);
		const panel_header *header = (const panel_header *)third;
		for (int64_t k = 0; k < K; k++) {
			float x = w[r * K + k];
			assert_true(f[panel * 16 * K + k * 16 + j] == x);
			assert_int_equal(half[panel * 16 * 8 + (k / 2 * 16 + j) * 2 + k % 2], panel_bf16(x));
			int8_t q = ((const int8_t *)third)[128 + (k / 4 * 16 + j) * 4 + k % 4];
			assert_true(fabsf(header->scale[j] * q - x) <= header->scale[j] * 0.50001f);
		}
	}
	buffer_free((void *)f);
	buffer_free((void *)half);
	buffer_free((void *)bytes);
	buffer_free(w);
}

static void padding_past_the_end_is_zero(void **state)
{
	(void)state;
	for (int t = 0; t < TYPES; t++) {
		void *panels = packed(types[t], 18, 5, NULL);
		float row[5], sum = 0;
		for (int64_t r = 18; r < 32; r++) {
			panel_row(types[t], panels, 5, r, row);
			for (int k = 0; k < 5; k++)
				sum += fabsf(row[k]);
		}
		assert_true(sum == 0);
		buffer_free(panels);
	}
	const size_t stride = panel_stride(DTYPE_PANEL_INT8, 5), half = panel_stride(DTYPE_PANEL_BF16, 5);
	const int8_t *bytes = packed(DTYPE_PANEL_INT8, 18, 5, NULL);
	const uint16_t *pairs = packed(DTYPE_PANEL_BF16, 18, 5, NULL);
	for (size_t panel = 0; panel < 2; panel++)
		for (size_t j = 0; j < 16; j++) {
			for (size_t k = 5; k < 8; k++)
				assert_int_equal(bytes[panel * stride + 128 + (16 + j) * 4 + k % 4], 0);
			assert_int_equal(pairs[panel * half / 2 + (2 * 16 + j) * 2 + 1], 0);
		}
	buffer_free((void *)bytes);
	buffer_free((void *)pairs);
}

static void an_int8_row_uses_its_full_range_and_stores_its_sum(void **state)
{
	(void)state;
	enum { N = 33, K = 100 };
	const unsigned char *panels = packed(DTYPE_PANEL_INT8, N, K, NULL);
	for (int64_t r = 0; r < N; r++) {
		const panel_header *header =
		    (const panel_header *)(panels + (size_t)(r / 16) * panel_stride(DTYPE_PANEL_INT8, K));
		float q[K], top = 0;
		assert_true(panel_stored(DTYPE_PANEL_INT8, panels, K, r, q) == header->scale[r % 16]);
		int32_t sum = 0;
		for (int k = 0; k < K; k++) {
			assert_true(q[k] == truncf(q[k]));
			top = fmaxf(top, fabsf(q[k]));
			sum += (int32_t)q[k];
		}
		assert_true(top == PANEL_INT8_MAX);
		assert_int_equal(header->sum[r % 16], sum);
	}
	buffer_free((void *)panels);
}

static void rows_that_cannot_be_scaled_are_zero_or_nan(void **state)
{
	(void)state;
	enum { K = 3, N = 6 };
	float w[N][K] = {{0, 0, 0},        {1e-42f, -1e-42f, 0}, {1e38f, -1e38f, 1},
	                 {INFINITY, 1, 2}, {1, NAN, 2},          {FLT_MIN, -FLT_MIN, 0}};
	void *panels = buffer_new(bytes_of(DTYPE_PANEL_INT8, N, K));
	panel_pack(DTYPE_PANEL_INT8, w[0], N, K, panels);
	float row[K];
	for (int r = 0; r < N; r++) {
		panel_row(DTYPE_PANEL_INT8, panels, K, r, row);
		for (int k = 0; k < K; k++) {
			if (r == 3 || r == 4)
				assert_true(isnan(row[k]));
			else
				assert_true(fabsf(row[k] - w[r][k]) <= fabsf(w[r][0]) / 100 + FLT_MIN);
		}
	}
	buffer_free(panels);
}

static void bf16_rounds_to_the_nearest_even(void **state)
{
	(void)state;
	static const uint32_t cases[][2] = {
	    {0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
	    {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81}, {0xbf818000, 0xbf82}, {0x00000000, 0x0000},
	    {0x80000000, 0x8000}, {0x00000001, 0x0000}, {0x00008000, 0x0000}, {0x00008001, 0x0001},
	    {0x00018000, 0x0002}, {0x007fffff, 0x0080}, {0x7f7fffff, 0x7f80}, {0x7f7f7fff, 0x7f7f},
	    {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_int_equal(panel_bf16(from_bits(cases[i][0])), cases[i][1]);
	static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0xff80ffff, 0x7fffffff, 0xffffffff};
	for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++)
		assert_true(isnan(panel_f32(panel_bf16(from_bits(nans[i])))));
}

static void every_bf16_is_exact_as_a_float(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x10000; h++) {
		float x = panel_f32((uint16_t)h);
		if (isnan(x))
			assert_true(isnan(panel_f32(panel_bf16(x))));
		else
			assert_int_equal(panel_bf16(x), h);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(sizes_follow_the_formula_of_the_header),
	    cmocka_unit_test(a_size_that_overflows_is_refused),
	    cmocka_unit_test(every_row_is_unpacked_as_packed),
	    cmocka_unit_test(a_panel_has_the_documented_layout),
	    cmocka_unit_test(padding_past_the_end_is_zero),
	    cmocka_unit_test(an_int8_row_uses_its_full_range_and_stores_its_sum),
	    cmocka_unit_test(rows_that_cannot_be_scaled_are_zero_or_nan),
	    cmocka_unit_test(bf16_rounds_to_the_nearest_even),
	    cmocka_unit_test(every_bf16_is_exact_as_a_float),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
