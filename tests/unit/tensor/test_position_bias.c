/* Tables of position biases, compared with the numbers of the libraries whose models use them. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/compare.h"

/* Run a graph with one result bound to `out`; `in`: content of `input`, or NULL. */
static void run(backend *b, graph *g, value result, void *out, value input, void *in)
{
	plan *p;
	error err = ERROR_INIT;
	const plan_binding bindings[] = {{result, out}, {input, in}};
	if (plan_new(&p, g, b, bindings, in ? 2 : 1, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(plan_run(p), STATUS_OK);
	plan_free(p);
}

enum { FAR = 300, DISTANCES = 2 * FAR + 1, MOST = 32 };

/* x-transformers 1.6.0: the smallest distance, up to 300, in bucket 0, 1, … of a side; 0: no distance is in it. */
static const struct {
	int64_t buckets, max_distance;
	bool bidirectional;
	int starts[MOST];
} known[] = {
    {16, 20, true, {0, 1, 2, 3, 4, 6, 9, 14}},
    {16, 64, true, {0, 1, 2, 3, 4, 8, 16, 32}},
    {32, 1000, true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 27, 49, 90, 164, 300}},
    {32, 128, true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91}},
    {8, 20, true, {0, 1, 2, 7}},
    {16, 20, false, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 18}},
    {16, 64, false, {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 14, 18, 23, 30, 39, 50}},
    {32, 1000, false, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,  11,  12,  13,
                       14, 15, 16, 21, 27, 35, 45, 59, 76, 98, 127, 164, 213, 275}},
    {32, 128, false, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                      16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113}},
    {8, 20, false, {0, 1, 2, 3, 4, 6, 9, 14}},
};
enum { KNOWN = sizeof known / sizeof *known };

static int bucket_of(int table, int distance)
{
	int bucket = 0;
	for (int i = 1; i < MOST && known[table].starts[i]; i++)
		if (known[table].starts[i] <= distance)
			bucket = i;
	return bucket;
}

static void buckets_equal_those_of_the_library(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 2 * KNOWN; i++) {
		const int table = i / 2;
		const bool both = known[table].bidirectional;
		const int side = (int)known[table].buckets / (both ? 2 : 1);
		int32_t got[DISTANCES];
		graph *g = graph_new();
		const t5_buckets_params p = {-FAR, DISTANCES, known[table].buckets, known[table].max_distance, both};
		run(b->each[i % 2], g, op_t5_buckets(g, p), got, VALUE_NONE, NULL);
		for (int d = -FAR; d <= FAR; d++) {
			const int behind = both ? side + bucket_of(table, -d) : 0;
			assert_int_equal(got[d + FAR], d < 0 ? behind : bucket_of(table, d));
		}
	}
}

static void slopes_equal_those_of_the_paper_when_heads_are_no_power_of_two(void **state)
{
	const backends *b = *state;
	static const double five[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5};
	static const double twelve[] = {0.5,       0.25,       0.125,       0.0625,      0.03125,     0.015625,
	                                0.0078125, 0.00390625, 0.707106781, 0.353553391, 0.176776695, 0.0883883476};
	for (int i = 0; i < 4; i++) {
		const int heads = i / 2 ? 12 : 5;
		const double *slope = i / 2 ? twelve : five;
		float got[3][13], want[3][13] = {{0}};
		graph *g = graph_new();
		run(b->each[i % 2], g, op_alibi(g, VALUE_NONE, (alibi_params){-1, 3, heads + 1, heads}), got,
		    VALUE_NONE, NULL);
		for (int h = 0; h < heads; h++)
			((float *)want)[h] = ((float *)want)[2 * (heads + 1) + h] = (float)-slope[h];
		assert_true(compare_close("alibi", (float *)got, (float *)want, 3 * (heads + 1), 0, 1e-7));
	}
}

static void learned_slopes_are_the_exponentials_of_the_parameters(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 2; i++) {
		float logs[] = {0, logf(0.5f), 1}, got[6];
		graph *g = graph_new();
		const value in = graph_input(g, "log slopes", DTYPE_F32, SHAPE1(3));
		run(b->each[i], g, op_alibi(g, in, (alibi_params){2, 2, 3, 2}), got, in, logs);
		assert_true(compare_close("alibi", got, (const float[]){-2, -1, 0, -3, -1.5f, 0}, 6, 0, 3e-7));
	}
}

static void logarithmic_distances_keep_their_sign(void **state)
{
	const backends *b = *state;
	const double e = log(3);
	const float want[4][5] = {{-2, -1, 0, 1, 2},
	                          {2, 1, 0, 1, 2},
	                          {(float)-e, -0.693147181f, 0, 0.693147181f, (float)e},
	                          {(float)e, 0.693147181f, 0, 0.693147181f, (float)e}};
	for (int i = 0; i < 8; i++) {
		float got[5];
		graph *g = graph_new();
		const distances_params p = {-2, 5, i / 2 & 1, i / 2 & 2};
		run(b->each[i % 2], g, op_distances(g, p), got, VALUE_NONE, NULL);
		assert_true(compare_close("distances", got, want[i / 2], 5, 0, 1e-7));
	}
}

static void expect_error(graph *g, const char *parameter)
{
	error err = ERROR_INIT;
	assert_int_equal(graph_status(g, &err), STATUS_INVALID);
	assert_non_null(strstr(error_message(&err), parameter));
	graph_free(g);
}

static void an_impossible_table_names_its_parameter(void **state)
{
	(void)state;
	graph *g = graph_new();
	op_t5_buckets(g, (t5_buckets_params){0, 3, 7, 128, true});
	expect_error(g, "buckets");
	op_t5_buckets(g = graph_new(), (t5_buckets_params){0, 3, 32, 16, false});
	expect_error(g, "max_distance");
	op_distances(g = graph_new(), (distances_params){.count = -1});
	expect_error(g, "count");
	op_alibi(g = graph_new(), VALUE_NONE, (alibi_params){0, 3, 4, 5});
	expect_error(g, "alibi_heads");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(buckets_equal_those_of_the_library),
	    cmocka_unit_test(slopes_equal_those_of_the_paper_when_heads_are_no_power_of_two),
	    cmocka_unit_test(learned_slopes_are_the_exponentials_of_the_parameters),
	    cmocka_unit_test(logarithmic_distances_keep_their_sign),
	    cmocka_unit_test(an_impossible_table_names_its_parameter),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
