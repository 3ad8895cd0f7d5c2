/* Ops on rows: known values, and frozen networks whose parts sum to their results. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

static void run(backend *b, graph *g, const plan_binding *bindings, int n)
{
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, bindings, n, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(plan_run(p), STATUS_OK);
	plan_free(p);
}

static void a_row_of_3_and_4_has_length_5(void **state)
{
	const backends *b = *state;
	float x[] = {3, -4, 0, 0}, gain[] = {2, 10}, y[4];
	const float want[] = {1.2f, -8, 0, 0};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		const value in = graph_input(g, "x", DTYPE_F32, SHAPE2(2, 2)),
		            w = graph_input(g, "gain", DTYPE_F32, SHAPE1(2));
		const value out = op_normalize(g, in, w, (normalize_params){.groups = 1, .scale = 1, .floor = 1e-5f});
		run(b->each[i], g, (plan_binding[]){{in, x}, {w, gain}, {out, y}}, 3);
		assert_true(compare_close("rows", y, want, 4, 1e-7, 1e-6));
	}
}

/* Position 10^6 at frequency 1: cos and sin of a million. */
static void a_rotation_is_exact_at_position_a_million(void **state)
{
	const backends *b = *state;
	float x[] = {1, 0, 0, 1}, y[4];
	const float c = 0.936752127533f, s = -0.349993502171f, want[] = {c, s, -s, c};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		const value in = graph_input(g, "x", DTYPE_F32, SHAPE3(2, 1, 2));
		const value out = op_rotary(g, in, VALUE_NONE,
		                            (rotary_params){.heads = 1, .width = 2, .first = 1000000, .base = 10000});
		run(b->each[i], g, (plan_binding[]){{in, x}, {out, y}}, 2);
		assert_true(compare_close("turned", y, want, 4, 3e-7, 0));
	}
}

/* Two of five channels are kept, two come from the previous row, and the last one is kept. */
static void shifted_channels_come_from_the_previous_row(void **state)
{
	const backends *b = *state;
	float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, y[10];
	const float want[] = {1, 2, 0, 0, 5, 6, 7, 3, 4, 10};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		const value in = graph_input(g, "x", DTYPE_F32, SHAPE3(1, 2, 5));
		const value out = op_shift_rows(g, in, VALUE_NONE, (shift_params){.high = 1});
		run(b->each[i], g, (plan_binding[]){{in, x}, {out, y}}, 2);
		assert_true(compare_close("shifted", y, want, 10, 0, 0));
	}
}

/* The gradient is scaled; a frozen network passes it on unscaled. */
static void a_scaled_gradient_is_scaled_and_its_contribution_is_not(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 4; i++) {
		float x[] = {1, 2}, dy[] = {8, 4}, dx[2];
		graph *g = graph_new();
		const value in = graph_input(g, "x", DTYPE_F32, SHAPE2(1, 2)),
		            by = graph_input(g, "dy", DTYPE_F32, SHAPE2(1, 2));
		const value source = op_scale(g, in, 1), y = op_scale_gradient(g, source, 0.25f);
		assert_int_equal(graph_pull_back(g, y, by, &source, 1, (graph_rule){.frozen = i / 2}), STATUS_OK);
		const value gradient = op_scale(g, graph_gradient(g, source), 1);
		run(b->each[i % 2], g, (plan_binding[]){{in, x}, {by, dy}, {gradient, dx}}, 3);
		assert_true(dx[0] == (i / 2 ? 8.0f : 2.0f) && dx[1] == (i / 2 ? 4.0f : 1.0f));
	}
}

/* --- frozen: ⟨dx, x⟩ and the biases sum to ⟨dy, y⟩ -------------------------------------------------- */

enum { ROWS = 5, D = 12, KINDS = ACTIVATION_GELU + 4 };

static value network(graph *g, int kind, value x)
{
	if (kind < ACTIVATION_GELU)
		return op_mul(g, x, op_activation(g, x, (activation_kind)kind));
	if (kind == ACTIVATION_GELU)
		return op_normalize(g, x, VALUE_NONE, (normalize_params){.groups = 3, .scale = 2, .floor = 1e-5f});
	if (kind == ACTIVATION_GELU + 1)
		return op_gru(g, x, op_scale(g, x, 0.5f),
		              op_linear(g, x, op_fill(g, SHAPE2(D / 3, D), 0.1f), VALUE_NONE, 1));
	return op_glu(g, x, kind == ACTIVATION_GELU + 2 ? ACTIVATION_SIGMOID : ACTIVATION_SILU);
}

static void the_parts_of_frozen_rows_sum_to_their_result(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 2 * KINDS; i++) {
		float from[ROWS * D], by[ROWS * D], words[ROWS], biases[ROWS] = {0}, score[ROWS];
		random_normal(from, ROWS * D, 7, 1.5);
		random_normal(by, ROWS * D, 8, 1);
		from[3] = 0;
		graph *g = graph_new();
		const value in = graph_input(g, "x", DTYPE_F32, SHAPE2(ROWS, D)), x = op_scale(g, in, 1);
		const value y = network(g, i / 2, x);
		const value dy = graph_input(g, "dy", DTYPE_F32, graph_value(g, y)->shape);
		const graph_rule rule = {.frozen = true, .share = 0.3f, .collects = true, .apart = VALUE_NONE};
		assert_int_equal(graph_pull_back(g, y, dy, &x, 1, rule), STATUS_OK);
		const value part = op_dot_rows(g, graph_gradient(g, x), x, 1), all = op_dot_rows(g, dy, y, 1);
		const value offset = graph_collected(g, SUM_BIASES, SHAPE1(ROWS), false);
		plan_binding bindings[] = {{in, from}, {dy, by}, {part, words}, {all, score}, {offset, biases}};
		assert_int_equal(offset != VALUE_NONE, i / 2 == ACTIVATION_SIGMOID || i / 2 == ACTIVATION_LOG_SIGMOID ||
		                                              i / 2 == ACTIVATION_EXP);
		run(b->each[i % 2], g, bindings, offset == VALUE_NONE ? 4 : 5);
		for (int r = 0; r < ROWS; r++)
			if (!(fabs((double)words[r] + (double)biases[r] - (double)score[r]) <=
			      1e-5 * (1 + fabs((double)score[r]))))
				fail_msg("network %d, row %d: %.9g and %.9g are not %.9g", i / 2, r, (double)words[r],
				         (double)biases[r], (double)score[r]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_row_of_3_and_4_has_length_5),
	    cmocka_unit_test(a_rotation_is_exact_at_position_a_million),
	    cmocka_unit_test(shifted_channels_come_from_the_previous_row),
	    cmocka_unit_test(a_scaled_gradient_is_scaled_and_its_contribution_is_not),
	    cmocka_unit_test(the_parts_of_frozen_rows_sum_to_their_result),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
