#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "engine/base/philox.h"
#include "engine/model/initial_values.h"

/* 3Lin of width 32, queries of 24, values of 32, 11 tokens and three layers: the first and the last numbers of some of
 * its matrices. Each of them depends on all earlier draws. */
static void one_sequence_of_draws_fills_all_parameters_as_in_3lin(void **state)
{
	(void)state;
	const float std = (float)sqrt(1.0 / 32);
	const struct {
		int64_t rows, columns;
		float std;         /* 0: INIT_ONE, which makes no draws */
		float first, last; /* 0: unknown */
	} each[] = {
	    {13, 32, 1, -0x1.ba287ap-3F, 0x1.c3408cp-4F},
	    {24, 32, std, 0x1.0e8202p-3F, -0x1.2e98cap-3F},
	    {24, 32, std, 0, 0},
	    {32, 32, std, 0, 0},
	    {1, 32, 0, 1, 1},
	    {32, 32, std, -0x1.a02204p-4F, -0x1.dd9af4p-3F},
	    {32, 512, 0.25F, 0, 0},
	    {24, 32, std, 0, 0},
	    {24, 32, std, 0, 0},
	    {32, 32, std, -0x1.c599b8p-3F, 0x1.0cd754p-2F},
	    {32, 32, std, 0, 0},
	    {32, 512, 0.25F, 0, 0},
	    {24, 32, std, 0, 0},
	    {24, 32, std, -0x1.59ba9ep-2F, -0x1.7b8934p-3F},
	    {32, 32, std, 0, 0},
	    {32, 32, std, 0, 0},
	    {32, 512, 0.25F, 0, 0},
	    {11, 32, 4 * std, 0x1.79cf0ap-3F, -0x1.332148p-1F},
	};
	initial_values values;
	float *x = malloc(32 * 512 * sizeof *x);
	initial_values_begin(&values, 1313, 1);
	for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
		const int64_t count = each[i].rows * each[i].columns;
		const parameter_spec spec = {.shape = SHAPE2(each[i].rows, each[i].columns),
		                             .init = each[i].std > 0 ? INIT_NORMAL_SEQUENCE : INIT_ONE,
		                             .std = each[i].std};
		initial_values_fill(&values, &spec, x);
		if (each[i].first == 0)
			continue;
		assert_true(fabsf(x[0] - each[i].first) <= 1e-7F * fabsf(each[i].first));
		assert_true(fabsf(x[count - 1] - each[i].last) <= 1e-7F * fabsf(each[i].last));
	}
	parameter_spec table = {.shape = SHAPE2(13, 32),
	                        .init = INIT_NORMAL_SEQUENCE,
	                        .std = 1,
	                        .drawn_first = 2}; /* rows of the start and the unknown token */
	initial_values_begin(&values, 1313, 1);
	initial_values_fill(&values, &table, x);
	assert_true(x[12 * 32] == each[0].first && x[10 * 32 + 31] == each[0].last);
	free(x);
}

/* Element i of the second parameter: a function of its index alone. */
static float expected_value(parameter_init init, double std, int64_t i)
{
	const philox_block random = philox(7, PHILOX_STREAM_INIT + 1, 0, (uint64_t)i / 4);
	const double plain = (double)philox_uniform(random.word[i % 4]);
	const double u = 1 - (double)philox_uniform(random.word[i & 2]);
	const double angle = 2 * M_PI * (double)philox_uniform(random.word[i % 4 | 1]);
	if (init == INIT_UNIFORM)
		return (float)(sqrt(3) * std * (2 * plain - 1));
	return (float)(std * sqrt(-2 * log(u)) * (i & 1 ? sin(angle) : cos(angle)));
}

static void the_number_of_threads_changes_no_value(void **state)
{
	(void)state;
	enum { COUNT = 3 * 33334 + 1, GUARD = 8 }; /* several pieces, the last of which ends within a block of four */
	const parameter_init kinds[] = {INIT_NORMAL, INIT_UNIFORM};
	float *x = malloc((COUNT + GUARD) * sizeof *x);
	for (int k = 0; k < 2; k++)
		for (int threads = 1; threads <= 5; threads += 2) {
			const parameter_spec one = {.shape = SHAPE1(1), .init = INIT_ONE};
			const parameter_spec spec = {.shape = SHAPE1(COUNT), .init = kinds[k], .std = 0.5F};
			initial_values values;
			for (int64_t i = 0; i < COUNT + GUARD; i++)
				x[i] = NAN;
			initial_values_begin(&values, 7, threads);
			initial_values_fill(&values, &one, x);
			initial_values_fill(&values, &spec, x);
			for (int64_t i = 0; i < COUNT; i++)
				assert_true(x[i] == expected_value(kinds[k], 0.5, i));
			for (int64_t i = COUNT; i < COUNT + GUARD; i++)
				assert_true(isnan(x[i]));
		}
	free(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_sequence_of_draws_fills_all_parameters_as_in_3lin),
	    cmocka_unit_test(the_number_of_threads_changes_no_value),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
