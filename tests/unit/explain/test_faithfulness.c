#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/explain/faithfulness.h"

enum { MOST = 64, ORDERS = 3, METRICS = 16, POINTS = 16, SETS = 1 + ORDERS * 80 };

/* The score without the absent tokens: reduced by the sum of their worths and, with `pairs`, of absent adjacent
 * pairs. */
static double score_without(const double *worth, double pairs, const bool *absent, int64_t n)
{
	double sum = -1;
	for (int64_t j = 0; j < n; j++)
		sum -= absent[j] ? worth[j] + (j > 0 && absent[j - 1] ? pairs : 0) : 0;
	return sum;
}

typedef struct outcome {
	double values[ORDERS * METRICS], reverse[ORDERS * METRICS];
	double deletion[ORDERS * POINTS], insertion[ORDERS * POINTS];
	double empty;
} outcome;

static void measure(const faithfulness_options *o, const double *numbers, int orders, const double *worth, double pairs,
                    int64_t n, outcome *out)
{
	faithfulness f;
	double without[SETS], singles[MOST];
	faithfulness_init(&f, o, n, n, 3);
	const int64_t sets = faithfulness_sets(&f, orders);
	bool *absent = calloc((size_t)(sets * (n + 1)), sizeof *absent), none[MOST + 1] = {false};
	assert_true(sets <= SETS && faithfulness_metrics(o) <= METRICS && o->grid < POINTS);
	assert_int_equal(faithfulness_write_sets(&f, numbers, orders, absent), STATUS_OK);
	for (int64_t s = 0; s < sets; s++) {
		assert_false(absent[s * (n + 1) + n]);
		without[s] = score_without(worth, pairs, absent + s * (n + 1), n);
	}
	for (int64_t j = 0; j < n; j++) {
		none[j] = true;
		singles[j] = score_without(worth, pairs, none, n);
		none[j] = false;
	}
	faithfulness_values v = {out->values, out->reverse, out->deletion, out->insertion, NAN};
	faithfulness_measure(&f, numbers, orders, -1, singles, without, &v);
	out->empty = v.empty;
	free(absent);
}

static void assert_all(const double *found, const double *expected, int n)
{
	for (int i = 0; i < n; i++)
		if (!(fabs(found[i] - expected[i]) < 1e-12))
			fail_msg("number %d: %g, must be %g", i, found[i], expected[i]);
}

/* Four tokens are worth 1, 2, 3 and 4; the order is 0, 2, 3, 1. */
static void every_metric_equals_the_value_computed_by_hand(void **state)
{
	(void)state;
	static const faithfulness_options o = {
	    .n_fractions = 2, .fractions = {0.25, 0.5}, .grid = 4, .soft = 3, .far = 2};
	static const double numbers[] = {4, -1, 3, 0}, worth[] = {1, 2, 3, 4};
	outcome x;
	measure(&o, numbers, 1, worth, 0, 4, &x);
	assert_int_equal(faithfulness_metrics(&o), 11);
	/* two of six pairs are in the order of their worth: tokens 1 and 2, 1 and 3 */
	static const double forward[] = {1, 4, 9, 6, -5.5, -6.5, 0, -2. / 6, 1};
	static const double backward[] = {2, 6, 8, 4, -6.5, -5.5, 1, 2. / 6, 2};
	assert_all(x.values, forward, 9);
	assert_all(x.reverse, backward, 9);
	static const double deletion[] = {-1, -2, -5, -9, -11}, insertion[] = {-11, -10, -7, -3, -1};
	assert_all(x.deletion, deletion, 5);
	assert_all(x.insertion, insertion, 5);
	assert_true(x.empty == -11);
	/* token 0 is always drawn, token 3 never */
	assert_true(x.values[9] >= 1 && x.values[9] <= 6 && fabs(x.values[9] + x.values[10] - 10) < 1e-12);
	assert_true(x.reverse[9] == x.values[10] && x.reverse[10] == x.values[9]);
}

static void the_reverse_is_the_order_of_the_negative_numbers(void **state)
{
	(void)state;
	static const faithfulness_options o = {
	    .n_fractions = 3, .fractions = {0.01, 0.3, 1}, .grid = 7, .far = 5, .seed = 9};
	static const int64_t lengths[] = {1, 2, 3, 7, 8, 33, 64};
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		const int64_t n = lengths[i];
		double numbers[2 * MOST], worth[MOST];
		outcome x;
		for (int64_t j = 0; j < n; j++) {
			const philox_block b = philox(5, 1, (uint32_t)n, (uint64_t)j);
			numbers[j] = (double)philox_uniform(b.word[0]) - 0.5;
			numbers[n + j] = -numbers[j];
			worth[j] = (double)philox_uniform(b.word[1]) - 0.3;
		}
		measure(&o, numbers, 2, worth, 0.25, n, &x);
		for (int m = 0; m < faithfulness_metrics(&o); m++) {
			const double a = x.reverse[m], b = x.values[faithfulness_metrics(&o) + m];
			if (!(fabs(a - b) < 1e-12) && !(isnan(a) && isnan(b)))
				fail_msg("%lld tokens, %s: %g, must be %g", (long long)n,
				         faithfulness_metric_at(&o, m).name, a, b);
		}
	}
}

static void the_order_by_true_worth_scores_best(void **state)
{
	(void)state;
	static const faithfulness_options o = {.n_fractions = 1, .fractions = {0.2}, .grid = 10, .far = 100};
	double numbers[ORDERS * MOST], worth[MOST];
	faithfulness f;
	outcome x;
	faithfulness_init(&f, &o, MOST, MOST, 0);
	for (int j = 0; j < MOST; j++)
		numbers[j] = worth[j] = j * 29 % MOST - 20;
	faithfulness_random(&f, numbers + MOST);
	faithfulness_recency(&f, numbers + 2 * MOST);
	measure(&o, numbers, 3, worth, 0, MOST, &x);
	const int metrics = faithfulness_metrics(&o), aopc = 4, kendall = 5, far = 6;
	assert_true(x.values[aopc] == 1 && x.reverse[aopc] == 0 && fabs(x.values[kendall] - 1) < 1e-12);
	for (int i = 1; i < 3; i++) {
		assert_true(x.values[i * metrics] < x.values[0]);
		assert_true(x.values[i * metrics + aopc] > 0 && x.values[i * metrics + aopc] < 1);
	}
	assert_true(isnan(x.values[far])); /* there are not that many tokens */
}

static void kendalls_tau_leaves_equal_numbers_out(void **state)
{
	(void)state;
	static const double x[] = {1, 2, 3, 4}, y[] = {1, 2, 2, 4}, z[] = {5, 5, 5, 5}, down[] = {9, 7, 5, 3};
	assert_true(fabs(faithfulness_kendall(x, y, 4) - 5 / sqrt(30)) < 1e-12);
	assert_true(faithfulness_kendall(x, down, 4) == -1);
	assert_true(isnan(faithfulness_kendall(x, z, 4)));
	assert_true(isnan(faithfulness_kendall(x, y, 1)));
}

static void an_interval_holds_the_percentiles_of_the_means_of_the_samples(void **state)
{
	(void)state;
	static const double sums[] = {6, 0, 4};
	static const int64_t counts[] = {2, 0, 1};
	/* means: 3, 4, 10 / 3, none, 4; sorted: 3, 10 / 3, 4, 4 */
	static const uint32_t draws[] = {0, 0, 0, 2, 2, 2, 0, 1, 2, 1, 1, 1, 2, 1, 2};
	double scratch[1000];
	faithfulness_interval x = faithfulness_estimate(sums, counts, 3, draws, 5, 0.5, scratch);
	assert_int_equal(x.count, 3);
	assert_true(fabs(x.mean - 10. / 3) < 1e-12 && fabs(x.low - (3 + 0.75 / 3)) < 1e-12 && x.high == 4);
	assert_true(isnan(faithfulness_estimate(sums + 1, counts + 1, 1, draws + 9, 0, 0.5, scratch).mean));
	x = faithfulness_estimate(sums, counts, 1, draws, 5, 0.5, scratch);
	assert_true(x.mean == 3 && isnan(x.low) && isnan(x.high)); /* one text gives no interval */
	uint32_t drawn[7000];
	int64_t seen[7] = {0};
	faithfulness_draw(1, 1000, 7, drawn);
	for (int i = 0; i < 7000; i++)
		seen[drawn[i]]++;
	for (int g = 0; g < 7; g++)
		assert_in_range(seen[g], 880, 1120);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_metric_equals_the_value_computed_by_hand),
	    cmocka_unit_test(the_reverse_is_the_order_of_the_negative_numbers),
	    cmocka_unit_test(the_order_by_true_worth_scores_best),
	    cmocka_unit_test(kendalls_tau_leaves_equal_numbers_out),
	    cmocka_unit_test(an_interval_holds_the_percentiles_of_the_means_of_the_samples),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
