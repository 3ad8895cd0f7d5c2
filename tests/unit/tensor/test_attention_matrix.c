/* Attention with its matrix in memory: the largest scores, rows without visible keys, and a comparison with attention
 * that stores no matrix. */
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
#include "tests/unit/support/random.h"

static plan *open_plan(backend *b, graph *g, const plan_binding *bindings, int n)
{
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, bindings, n, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	return p;
}

/* Weights of one row of scores. */
static void weights_of(backend *b, const float *scores, int n, const int32_t *mask, attention_weights_params params,
                       float *weights)
{
	graph *g = graph_new();
	const value x = graph_input(g, "scores", DTYPE_F32, SHAPE4(1, 1, 1, n));
	const value m = graph_input(g, "mask", DTYPE_I32, SHAPE2(1, n));
	const value w = op_attention_weights(g, x, m, VALUE_NONE, VALUE_NONE, params);
	graph_output(g, w, "weights");
	plan *p = open_plan(b, g, NULL, 0);
	assert_int_equal(plan_write(p, x, scores), STATUS_OK);
	assert_int_equal(plan_write(p, m, mask), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, w, weights), STATUS_OK);
	plan_free(p);
}

/* --- the largest scores ------------------------------------------------------------------------------------------ */

enum { ROW = 5 };

static void only_the_largest_scores_and_their_ties_have_weight(void **state)
{
	const backends *b = *state;
	static const struct {
		float scores[ROW], want[ROW];
		int32_t mask[ROW];
		int64_t k;
	} rows[] = {
	    {{3, -1, 7, 2, 5}, {0, 0, 1, 0, 0}, {1, 1, 1, 1, 1}, 1},
	    {{0, -9, -0.0f, -8, 0}, {1 / 3.0f, 0, 1 / 3.0f, 0, 1 / 3.0f}, {1, 1, 1, 1, 1}, 1},
	    {{-2, -1, -2, -3, -4}, {0.5f, 0, 0.5f, 0, 0}, {1, 0, 1, 1, 1}, 2},
	    {{1, 1, 1, 1, 1}, {0.5f, 0, 0, 0.5f, 0}, {1, 0, 0, 1, 0}, 4}, /* fewer are visible */
	    {{1, 1, 1, 1, 1}, {0.2f, 0.2f, 0.2f, 0.2f, 0.2f}, {1, 1, 1, 1, 1}, 9},
	};
	for (int i = 0; i < 2 * (int)(sizeof rows / sizeof *rows); i++) {
		float got[ROW];
		weights_of(b->each[i % 2], rows[i / 2].scores, ROW, rows[i / 2].mask,
		           (attention_weights_params){.top_k = rows[i / 2].k}, got);
		assert_true(compare_close("weights", got, rows[i / 2].want, ROW, 0, 1e-6));
	}
}

static void a_row_without_visible_keys_is_zero_or_uniform(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 4; i++) {
		float got[ROW], want[ROW];
		for (int j = 0; j < ROW; j++)
			want[j] = i / 2 ? 0.2f : 0;
		weights_of(b->each[i % 2], (const float[ROW]){1, 2, 3, 4, 5}, ROW, (const int32_t[ROW]){0},
		           (attention_weights_params){.uniform = i / 2}, got);
		assert_true(compare_close("weights", got, want, ROW, 0, 1e-6));
	}
}

static void a_bias_that_lacks_an_occurring_distance_is_refused(void **state)
{
	(void)state;
	static const struct {
		int64_t rows, first, window;
		bool bidirectional, fits;
	} tables[] = {{7, 0, 0, false, true},  {6, 0, 0, false, false}, {3, 0, 3, false, true},
	              {7, 1, 0, false, false}, {11, -4, 0, true, true}, {10, -4, 0, true, false},
	              {11, -3, 0, true, false}};
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
		graph *g = graph_new();
		op_attention_weights(g, graph_input(g, "scores", DTYPE_F32, SHAPE4(1, 2, 5, 7)), VALUE_NONE, VALUE_NONE,
		                     graph_input(g, "table", DTYPE_F32, SHAPE2(tables[i].rows, 2)),
		                     (attention_weights_params){.bias_first = tables[i].first,
		                                                .window = tables[i].window,
		                                                .bidirectional = tables[i].bidirectional});
		error err = ERROR_INIT;
		assert_int_equal(graph_status(g, &err) == STATUS_OK, tables[i].fits);
		if (!tables[i].fits)
			assert_non_null(strstr(error_message(&err), "bias"));
		graph_free(g);
	}
}

/* --- against attention without a matrix ------------------------------------------------------------------------- */

static void without_options_it_is_softmax_attention(void **state)
{
	const backends *b = *state;
	enum { B = 2, N = 37, D = 12, HEADS = 3 };
	static float q[B * N * D], k[B * N * D], v[B * N * D], qkv[B * N * 3 * D], y[2][B * N * D];
	int32_t mask[B * N];
	random_normal(q, B * N * D, 1, 1);
	random_normal(k, B * N * D, 2, 1);
	random_normal(v, B * N * D, 3, 1);
	random_integers(mask, B * N, 4, 0, 2);
	for (int i = 0; i < B * N; i++) {
		memcpy(qkv + 3 * i * D, q + i * D, D * sizeof *q);
		memcpy(qkv + (3 * i + 1) * D, k + i * D, D * sizeof *q);
		memcpy(qkv + (3 * i + 2) * D, v + i * D, D * sizeof *q);
	}
	for (int i = 0; i < 4; i++) {
		const int64_t window = i / 2 ? 7 : 0;
		graph *g = graph_new();
		const value m = graph_input(g, "mask", DTYPE_I32, SHAPE2(B, N));
		const value in[] = {graph_input(g, "q", DTYPE_F32, SHAPE3(B, N, D)),
		                    graph_input(g, "k", DTYPE_F32, SHAPE3(B, N, D)),
		                    graph_input(g, "v", DTYPE_F32, SHAPE3(B, N, D)),
		                    graph_input(g, "qkv", DTYPE_F32, SHAPE3(B, N, 3 * D))};
		const attention_matrix_params p = {.heads = HEADS, .scale = 0.7f};
		const value weights = op_attention_weights(g, op_attention_scores(g, in[0], in[1], p), m, VALUE_NONE,
		                                           VALUE_NONE, (attention_weights_params){.window = window});
		graph_output(g, op_attention_apply(g, weights, in[2], p), "y0");
		graph_output(g,
		             op_softmax_attention(g, in[3], VALUE_NONE, VALUE_NONE, m, VALUE_NONE, VALUE_NONE,
		                                  (softmax_params){.heads = HEADS, .window = window, .scale = 0.7f}),
		             "y1");
		plan *run = open_plan(b->each[i % 2], g,
		                      (plan_binding[]){{m, mask}, {in[0], q}, {in[1], k}, {in[2], v}, {in[3], qkv}}, 5);
		assert_int_equal(plan_run(run), STATUS_OK);
		assert_int_equal(plan_read(run, graph_find(g, "y0"), y[0]), STATUS_OK);
		assert_int_equal(plan_read(run, graph_find(g, "y1"), y[1]), STATUS_OK);
		plan_free(run);
		assert_true(compare_close("y", y[0], y[1], B * N * D, 1e-5, 1e-5));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(only_the_largest_scores_and_their_ties_have_weight),
	    cmocka_unit_test(a_row_without_visible_keys_is_zero_or_uniform),
	    cmocka_unit_test(a_bias_that_lacks_an_occurring_distance_is_refused),
	    cmocka_unit_test(without_options_it_is_softmax_attention),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
