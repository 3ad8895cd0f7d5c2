/* exp, log and the normal tail of the kernels against the C library in double, over their full range. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/cpu/kernels/math.h"
#include "engine/tensor/ops/sample.h"

/* |got - want| in units of the last place of want. */
static double ulps(float got, double want)
{
	float rounded = fabsf((float)want);
	return fabs((double)got - want) / (double)(nextafterf(rounded, INFINITY) - rounded);
}

/* The largest error over every 701st positive float from `low` to `high`, and their negatives; NaN if any error is. */
static double worst(float (*function)(float), double (*exact)(double), float low, float high, int negative)
{
	double most = 0;
	for (uint32_t bits = math_bits(low); bits <= math_bits(high); bits += 701) {
		float x = negative ? -math_float(bits) : math_float(bits);
		double error = ulps(function(x), exact((double)x));
		if (!(error <= most))
			most = error;
	}
	return most;
}

static void exp_is_within_two_units_of_the_last_place(void **state)
{
	(void)state;
	assert_true(worst(math_exp, exp, 1e-30f, 88.37f, 0) <= 2);
	assert_true(worst(math_exp, exp, 1e-30f, 87.33f, 1) <= 2);
}

static void exp_is_exact_where_the_scan_relies_on_it(void **state)
{
	(void)state;
	assert_true(math_exp(0.0f) == 1.0f);
	assert_true(math_exp(-0.0f) == 1.0f);
	assert_true(math_exp(-INFINITY) == 0.0f);
	assert_true(math_exp(-3.4e38f) == 0.0f);
	assert_true(math_exp(-87.34f) == 0.0f);
	assert_true(math_exp(INFINITY) == INFINITY);
	assert_true(math_exp(89.0f) == INFINITY);
	assert_true(isnan(math_exp(NAN)));
}

/* Errors that the sampler's estimates allow: a relative error of 8.5e-8, and half a unit of a weight. */
static void exp_is_accurate_enough_for_the_weights_of_tokens(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < math_bits(31.0f); bits += 701) {
		const float t = math_float(bits);
		const double weight = (double)sample_weight(t) * 0x1p-39;
		if (!(fabs((double)math_exp_near(-t) - weight) <= 8.5e-8 * weight + 0x1p-40))
			fail_msg("e^-%.9g: %.9g for a weight of %.17g", (double)t, (double)math_exp_near(-t), weight);
	}
}

static void log_is_within_two_units_of_the_last_place(void **state)
{
	(void)state;
	assert_true(worst(math_log, log, 0x1p-126f, 3.4e38f, 0) <= 2);
	assert_true(math_log(1.0f) == 0.0f);
}

static double mills(double t)
{
	return 0.5 * erfc(t / sqrt(2)) * exp(t * t / 2);
}

static void the_normal_tail_is_within_nine_units_of_the_last_place(void **state)
{
	(void)state;
	assert_true(worst(math_mills, mills, 1e-30f, 13.3f, 0) <= 9);
	assert_true(fabsf(math_mills(0.0f) - 0.5f) <= 2e-7f);
	assert_true(math_mills(3.4e38f) >= 0.0f);
	assert_true(math_mills(INFINITY) == 0.0f);
	assert_true(isnan(math_mills(NAN)));
}

static float slightly_wrong(float x)
{
	return math_exp(x) * 1.0000004f;
}

static void the_measure_detects_a_small_error(void **state)
{
	(void)state;
	assert_false(worst(slightly_wrong, exp, 1e-30f, 88.0f, 0) <= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(exp_is_within_two_units_of_the_last_place),
	    cmocka_unit_test(exp_is_exact_where_the_scan_relies_on_it),
	    cmocka_unit_test(exp_is_accurate_enough_for_the_weights_of_tokens),
	    cmocka_unit_test(log_is_within_two_units_of_the_last_place),
	    cmocka_unit_test(the_normal_tail_is_within_nine_units_of_the_last_place),
	    cmocka_unit_test(the_measure_detects_a_small_error),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
