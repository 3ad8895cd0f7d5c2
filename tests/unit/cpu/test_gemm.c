/* gemm against sums in double, for every transposition and for odd shapes. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "engine/cpu/gemm.h"
#include "tests/unit/support/buffer.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

typedef struct product {
	int64_t m, n, k;
	bool trans_a, trans_b;
	float alpha;
	float *a, *b, *c;
} product;

static product product_new(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b, float alpha)
{
	product p = {m, n, k, trans_a, trans_b, alpha, NULL, NULL, NULL};
	p.a = buffer_new((size_t)(m * k) * sizeof(float));
	p.b = buffer_new((size_t)(k * n) * sizeof(float));
	p.c = buffer_new((size_t)(m * n) * sizeof(float));
	random_normal(p.a, m * k, 11, 1);
	random_normal(p.b, k * n, 12, 1);
	return p;
}

static void product_free(product *p)
{
	buffer_free(p->a);
	buffer_free(p->b);
	buffer_free(p->c);
}

static status product_run(product *p, int threads)
{
	return gemm(threads, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, p->a, p->b, 0, p->c);
}

/* True if every element is near its sum in double. The bound is that of k roundings, with random sign, of partial sums
 * up to Σ|a b|. */
static bool product_is_right(const product *p)
{
	for (int64_t i = 0; i < p->m; i++) {
		for (int64_t j = 0; j < p->n; j++) {
			double sum = 0, size = 0;
			for (int64_t l = 0; l < p->k; l++) {
				double a = (double)(p->trans_a ? p->a[l * p->m + i] : p->a[i * p->k + l]);
				double b = (double)(p->trans_b ? p->b[j * p->k + l] : p->b[l * p->n + j]);
				sum += a * b;
				size += fabs(a * b);
			}
			double error = fabs((double)p->c[i * p->n + j] - (double)p->alpha * sum);
			if (!(error <= 6e-8 * (2 + sqrt((double)p->k)) * fabs((double)p->alpha) * size)) {
				printf("m %d n %d k %d trans %d %d alpha %g: [%d, %d] is off by %g\n", (int)p->m,
				       (int)p->n, (int)p->k, p->trans_a, p->trans_b, (double)p->alpha, (int)i, (int)j,
				       error);
				return false;
			}
		}
	}
	return buffer_intact(p->a) && buffer_intact(p->b) && buffer_intact(p->c);
}

static void every_transposition_of_every_shape_is_right(void **state)
{
	(void)state;
	static const int64_t sizes[] = {1, 2, 15, 16, 31, 33, 65};
	enum { SIZES = sizeof sizes / sizeof sizes[0] };
	for (int s = 0; s < SIZES * SIZES * SIZES; s++) {
		for (int trans = 0; trans < 4; trans++) {
			product p = product_new(sizes[s % SIZES], sizes[s / SIZES % SIZES], sizes[s / SIZES / SIZES],
			                        trans & 1, trans & 2, s % 2 ? 1.0f : -0.37f);
			assert_int_equal(product_run(&p, 2), STATUS_OK);
			assert_true(product_is_right(&p));
			product_free(&p);
		}
	}
}

static void the_check_detects_one_wrong_element(void **state)
{
	(void)state;
	product p = product_new(3, 5, 7, false, true, 1);
	assert_int_equal(product_run(&p, 1), STATUS_OK);
	assert_true(product_is_right(&p));
	p.c[14] += 1e-4f;
	assert_false(product_is_right(&p));
	p.c[14] = NAN;
	assert_false(product_is_right(&p));
	product_free(&p);
}

static void a_product_is_added_to_the_previous_content(void **state)
{
	(void)state;
	static const int64_t shapes[][3] = {{1, 1, 1}, {1, 33, 5}, {40, 31, 70}, {3, 5, 0}};
	static const float betas[] = {1, -0.5f};
	for (int s = 0; s < 4 * 2 * 4; s++) {
		const int64_t *shape = shapes[s % 4];
		const float beta = betas[s / 4 % 2];
		product p = product_new(shape[0], shape[1], shape[2], s / 8 & 1, s / 8 & 2, 0.5f);
		assert_int_equal(product_run(&p, 2), STATUS_OK);
		int64_t count = p.m * p.n;
		float *sum = buffer_new((size_t)count * sizeof *sum);
		random_normal(sum, count, 13, 1);
		for (int64_t i = 0; i < count; i++)
			p.c[i] += beta * sum[i];
		assert_int_equal(gemm(2, p.trans_a, p.trans_b, p.m, p.n, p.k, p.alpha, p.a, p.b, beta, sum), STATUS_OK);
		assert_true(buffer_intact(sum));
		assert_true(compare_close("sum", sum, p.c, count, 1e-5, 1e-6));
		buffer_free(sum);
		product_free(&p);
	}
}

static void an_empty_sum_gives_zeros_and_an_empty_result_is_legal(void **state)
{
	(void)state;
	static const int64_t shapes[][3] = {{5, 7, 0}, {0, 7, 3}, {5, 0, 3}, {0, 0, 0}};
	for (int s = 0; s < 4; s++) {
		for (int trans = 0; trans < 4; trans++) {
			product p = product_new(shapes[s][0], shapes[s][1], shapes[s][2], trans & 1, trans & 2, 1);
			assert_int_equal(product_run(&p, 2), STATUS_OK);
			for (int64_t i = 0; i < p.m * p.n; i++)
				assert_true(p.c[i] == 0.0f);
			assert_true(buffer_intact(p.c));
			product_free(&p);
		}
	}
}

static void a_product_has_the_same_bits_every_time(void **state)
{
	(void)state;
	static const int64_t shapes[][3] = {{512, 128, 128}, {128, 512, 512}, {24, 512, 128}, {1, 4096, 256}};
	for (int s = 0; s < 4; s++) {
		for (int trans = 0; trans < 4; trans++) {
			product p = product_new(shapes[s][0], shapes[s][1], shapes[s][2], trans & 1, trans & 2, 1);
			float *first = p.c;
			assert_int_equal(product_run(&p, 2), STATUS_OK);
			p.c = buffer_new((size_t)(p.m * p.n) * sizeof(float));
			for (int again = 0; again < 3; again++) {
				buffer_poison(p.c);
				assert_int_equal(product_run(&p, 2), STATUS_OK);
				assert_true(compare_same("product", p.c, first, p.m * p.n));
			}
			buffer_free(first);
			product_free(&p);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_transposition_of_every_shape_is_right),
	    cmocka_unit_test(the_check_detects_one_wrong_element),
	    cmocka_unit_test(a_product_is_added_to_the_previous_content),
	    cmocka_unit_test(an_empty_sum_gives_zeros_and_an_empty_result_is_legal),
	    cmocka_unit_test(a_product_has_the_same_bits_every_time),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
