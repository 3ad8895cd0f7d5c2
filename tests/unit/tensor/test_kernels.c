/* Known values: each op once against numbers computed elsewhere, for the reference and the fast kernels. They check the
 * reference itself. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/compare.h"

/* Run a graph whose values are bound to host arrays. Frees the graph. */
static void run(backend *b, graph *g, const plan_binding *bindings, int n)
{
	plan *p;
	error err = ERROR_INIT;
	if (plan_new(&p, g, b, bindings, n, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(plan_run(p), STATUS_OK);
	plan_free(p);
}

static void gelu_is_x_times_the_normal_distribution(void **state)
{
	const backends *b = *state;
	float x[] = {0, 1, -1, 2, -3, 10, -10, -40}, y[8];
	const float want[] = {0, 0.84134475f, -0.15865525f, 1.9544997f, -0.0040496939f, 10, -7.6198530e-23f, 0};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		value in = graph_input(g, "x", DTYPE_F32, SHAPE1(8)), out = op_gelu(g, in, false);
		run(b->each[i], g, (plan_binding[]){{in, x}, {out, y}}, 2);
		assert_true(compare_close("gelu", y, want, 8, 1e-7, 1e-6));
	}
}

static void the_tanh_form_of_gelu_is_that_of_gpt2(void **state)
{
	const backends *b = *state;
	float x[] = {0, 1, -1, 2, -3, 10, -10, -40}, y[8];
	const float want[] = {0, 0.841191991f, -0.158808009f, 1.95459769f, -0.00363739208f, 10, 0, 0};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		value in = graph_input(g, "x", DTYPE_F32, SHAPE1(8)), out = op_gelu(g, in, true);
		run(b->each[i], g, (plan_binding[]){{in, x}, {out, y}}, 2);
		assert_true(compare_close("gelu", y, want, 8, 1e-7, 1e-6));
	}
}

/* Where x is ±0 the slope is the given one, whatever y is; NaN stays NaN. */
static void a_secant_has_the_slope_through_zero(void **state)
{
	const backends *b = *state;
	float x[] = {0, -0.0f, 2, -4, 1e-30f, INFINITY, NAN}, y[] = {0, 7, 3, 1, -2e-30f, 1, 1},
	      dy[] = {3, 5, 10, 8, 1.5f, 2, 0}, dx[7];
	const float want[] = {1.5f, 2.5f, 15, -2, -3, 0};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		value in[] = {graph_input(g, "x", DTYPE_F32, SHAPE1(7)), graph_input(g, "y", DTYPE_F32, SHAPE1(7)),
		              graph_input(g, "dy", DTYPE_F32, SHAPE1(7))};
		value out = op_secant_grad(g, in[0], in[1], in[2], 0.5f);
		run(b->each[i], g, (plan_binding[]){{in[0], x}, {in[1], y}, {in[2], dy}, {out, dx}}, 4);
		assert_true(compare_close("slopes", dx, want, 6, 0, 1e-6));
		assert_true(isnan(dx[6]));
	}
}

static void rows_are_multiplied_by_rows_or_by_a_single_row(void **state)
{
	const backends *b = *state;
	float x[] = {1, 2, 3, 4, 5, 6}, z[] = {1, 0, -1, 2, 2, 2}, y[2];
	for (int i = 0; i < 4; i++) {
		graph *g = graph_new();
		value in = graph_input(g, "a", DTYPE_F32, SHAPE2(2, 3)),
		      with = graph_input(g, "b", DTYPE_F32, i / 2 ? SHAPE1(3) : SHAPE2(2, 3));
		value out = op_dot_rows(g, in, with, 0.5f);
		run(b->each[i % 2], g, (plan_binding[]){{in, x}, {with, z}, {out, y}}, 3);
		assert_true(compare_same("products", y, i / 2 ? (float[]){-1, -1} : (float[]){-1, 15}, 2));
	}
}

static void a_table_reads_zeros_outside_its_rows(void **state)
{
	const backends *b = *state;
	float table[] = {1, 2, 3, 4}, y[10];
	int32_t index[] = {1, 0, 2, -1, INT32_MIN};
	const float want[] = {3, 4, 1, 2, 0, 0, 0, 0, 0, 0};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		value t = graph_input(g, "table", DTYPE_F32, SHAPE2(2, 2)),
		      at = graph_input(g, "i", DTYPE_I32, SHAPE1(5));
		value out = op_gather(g, t, at, 0);
		run(b->each[i], g, (plan_binding[]){{t, table}, {at, index}, {out, y}}, 3);
		assert_true(compare_same("gather", y, want, 10));
	}
}

static void gradients_of_a_table_add_up(void **state)
{
	const backends *b = *state;
	float dy[] = {1, 2, 4, 8, 16}, d[4];
	int32_t index[] = {1, 0, 1, 7, -1};
	const float all[] = {2, 5, 0, 0}, padded[] = {2, 0, 0, 0};
	for (int i = 0; i < 4; i++) {
		graph *g = graph_new();
		value at = graph_input(g, "i", DTYPE_I32, SHAPE1(5)),
		      in = graph_input(g, "dy", DTYPE_F32, SHAPE2(5, 1));
		value out = op_gather_grad(g, at, in, 4, i < 2 ? -1 : 1);
		run(b->each[i % 2], g, (plan_binding[]){{at, index}, {in, dy}, {out, d}}, 3);
		assert_true(compare_same("gather_grad", d, i < 2 ? all : padded, 4));
	}
}

static void a_normalized_row_has_mean_zero_and_variance_one(void **state)
{
	const backends *b = *state;
	float x[] = {1, 2, 3, 4, 1e4f, 1e4f, 1e4f, 1e4f + 4}, w[] = {1, 1, 1, 2}, bias[] = {0, 0, 0, 1}, y[8];
	const float want[] = {-1.3416408f, -0.4472136f, 0.4472136f,  2 * 1.3416408f + 1,
	                      -0.5773503f, -0.5773503f, -0.5773503f, 2 * 1.7320508f + 1};
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		value in = graph_input(g, "x", DTYPE_F32, SHAPE2(2, 4)),
		      weight = graph_input(g, "w", DTYPE_F32, SHAPE1(4));
		value add = graph_input(g, "b", DTYPE_F32, SHAPE1(4)), out = op_layernorm(g, in, weight, add, 0);
		run(b->each[i], g, (plan_binding[]){{in, x}, {weight, w}, {add, bias}, {out, y}}, 4);
		assert_true(compare_close("layernorm", y, want, 8, 1e-6, 1e-6));
	}
}

/* Loss of the given logits: the weight is the identity. */
static void loss_of(backend *b, float *logits, int32_t *label, int64_t rows, int64_t classes, float smoothing,
                    float *loss, float *count)
{
	graph *g = graph_new();
	float identity[7 * 7] = {0};
	for (int64_t v = 0; v < classes; v++)
		identity[v * classes + v] = 1;
	value z = graph_input(g, "z", DTYPE_F32, SHAPE2(rows, classes)),
	      e = graph_input(g, "e", DTYPE_F32, SHAPE2(classes, classes)),
	      t = graph_input(g, "t", DTYPE_I32, SHAPE1(rows));
	linear_cross_entropy_values y =
	    op_linear_cross_entropy(g, z, e, VALUE_NONE, t, VALUE_NONE, (linear_cross_entropy_params){1, smoothing});
	run(b, g, (plan_binding[]){{z, logits}, {e, identity}, {t, label}, {y.loss, loss}, {y.count, count}}, 5);
}

static void equal_logits_cost_the_logarithm_of_the_classes(void **state)
{
	const backends *b = *state;
	float logits[2 * 7] = {0}, loss, count;
	int32_t label[] = {3, 6};
	for (int i = 0; i < 7; i++)
		logits[i] = 500;
	for (int i = 0; i < 4; i++) {
		loss_of(b->each[i % 2], logits, label, 2, 7, i < 2 ? 0 : 0.3f, &loss, &count);
		assert_true(fabs((double)loss - log(7)) <= 1e-5);
		assert_true(count == 2);
	}
}

static void label_smoothing_mixes_in_the_mean(void **state)
{
	const backends *b = *state;
	/* lse(0, ln 3) = ln 4; label 1: 0.8 (ln 4 - ln 3) + 0.2 (ln 4 - ln 3 / 2); the other row is ignored */
	float logits[] = {0, (float)log(3), 9, 9}, loss, count;
	int32_t label[] = {1, -1};
	for (int i = 0; i < 2; i++) {
		loss_of(b->each[i], logits, label, 2, 2, 0.2f, &loss, &count);
		assert_true(fabs((double)loss - (log(4) - 0.9 * log(3))) <= 1e-6);
		assert_true(count == 1);
	}
}

static void without_labels_the_loss_is_zero(void **state)
{
	const backends *b = *state;
	float logits[] = {1, 2, 3, 4}, loss, count;
	int32_t label[] = {-1, -100};
	for (int i = 0; i < 2; i++) {
		loss_of(b->each[i], logits, label, 2, 2, 0, &loss, &count);
		assert_true(loss == 0 && count == 0);
	}
}

static void dropout_keeps_the_elements_that_the_generator_selects(void **state)
{
	enum { N = 100003 };
	const backends *b = *state;
	static float x[N], y[N];
	int32_t rng[] = {(int32_t)0x89abcdef, 0x01234567, 42, 0};
	for (int i = 0; i < N; i++)
		x[i] = 3;
	for (int i = 0; i < 2; i++) {
		graph *g = graph_new();
		value in = graph_input(g, "x", DTYPE_F32, SHAPE1(N)), r = graph_input(g, "rng", DTYPE_I32, SHAPE1(4));
		value out = op_dropout(g, in, r, 0.25f, 9);
		run(b->each[i], g, (plan_binding[]){{in, x}, {r, rng}, {out, y}}, 3);
		int kept = 0;
		for (int e = 0; e < N; e++) {
			uint32_t word = philox(0x0123456789abcdef, 9, 42, (uint64_t)e / 4).word[e % 4];
			assert_true(fabs((double)y[e] - (philox_uniform(word) >= 0.25f ? 4 : 0)) <= 1e-6);
			kept += y[e] != 0;
		}
		assert_true(abs(kept - N * 3 / 4) < 600); /* 4 standard deviations */
	}
}

static void adamw_at(backend *b, float *p, float *grad, float *m, float *v, float norm2, float step)
{
	float hyper[] = {0.01f, step};
	graph *g = graph_new();
	shape s = SHAPE1(3);
	value values[] = {graph_state(g, "p", s),
	                  graph_input(g, "g", DTYPE_F32, s),
	                  graph_state(g, "m", s),
	                  graph_state(g, "v", s),
	                  graph_input(g, "n", DTYPE_F32, SHAPE0()),
	                  graph_input(g, "h", DTYPE_F32, SHAPE1(2))};
	op_adamw(g, values[0], values[1], values[2], values[3], values[4], values[5], VALUE_NONE, VALUE_NONE,
	         (adamw_params){0.9f, 0.999f, 1e-8f, 0.01f, 1, false});
	run(b, g,
	    (plan_binding[]){{values[0], p},
	                     {values[1], grad},
	                     {values[2], m},
	                     {values[3], v},
	                     {values[4], &norm2},
	                     {values[5], hyper}},
	    6);
}

/* Three steps of PyTorch's AdamW after clip_grad_norm_ to 1. */
static void adamw_takes_the_steps_of_pytorch(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 2; i++) {
		float p[] = {1, -2, 0.5f}, m[3] = {0}, v[3] = {0};
		float grads[3][3] = {{0.3f, -0.2f, 0}, {3, 4, 0}, {0.1f, 0.1f, -0.1f}};
		for (int t = 0; t < 3; t++) {
			float *g = grads[t];
			adamw_at(b->each[i], p, g, m, v, g[0] * g[0] + g[1] * g[1] + g[2] * g[2], (float)t + 1);
		}
		assert_true(compare_close("p", p, (float[]){0.971729398f, -2.000059366f, 0.506238103f}, 3, 1e-6, 0));
		assert_true(compare_close("m", m, (float[]){0.08829999f, 0.065799981f, -0.010000001f}, 3, 1e-7, 0));
		/* 1 - 0.999 is 1.3e-5 smaller in float than in PyTorch's double */
		assert_true(
		    compare_close("v", v, (float[]){4.594599886e-04f, 6.892798701e-04f, 1.000000066e-05f}, 3, 0, 2e-5));
	}
}

static void a_norm_that_is_not_finite_stops_the_step(void **state)
{
	const backends *b = *state;
	const float bad[] = {strtof("nan", NULL), strtof("inf", NULL)};
	for (int i = 0; i < 4; i++) {
		float p[] = {1, 2, 3}, g[] = {bad[i / 2], 0, 1}, m[] = {4, 5, 6}, v[] = {7, 8, 9};
		adamw_at(b->each[i % 2], p, g, m, v, bad[i / 2], 1);
		assert_true(compare_same("p", p, (float[]){1, 2, 3}, 3));
		assert_true(compare_same("m", m, (float[]){4, 5, 6}, 3));
		assert_true(compare_same("v", v, (float[]){7, 8, 9}, 3));
	}
}

static void sgd_at(backend *b, float *p, float *grad, float *m, float norm2, sgd_params params)
{
	float hyper[] = {0.1f, 1};
	graph *g = graph_new();
	shape s = SHAPE1(2);
	value values[] = {graph_state(g, "p", s), graph_input(g, "g", DTYPE_F32, s), graph_state(g, "m", s),
	                  graph_input(g, "n", DTYPE_F32, SHAPE0()), graph_input(g, "h", DTYPE_F32, SHAPE1(2))};
	op_sgd(g, values[0], values[1], values[2], values[3], values[4], VALUE_NONE, VALUE_NONE, params);
	void *const data[] = {p, grad, m, &norm2, hyper};
	plan_binding bindings[5];
	for (int i = 0; i < 5; i++)
		bindings[i] = (plan_binding){values[i], data[i]};
	run(b, g, bindings, 5);
}

static void sgd_follows_its_momentum_and_can_ignore_the_length_of_the_gradient(void **state)
{
	const backends *b = *state;
	/* norm 5: c is 1/5 for a clip of 1 and when normalized; m = 0.5 m + c g; p = p (1 - 0.1 · 0.2) - 0.1 m */
	static const sgd_params clipped = {0.5f, 0.2f, 1, false}, free = {0.5f, 0.2f, 0, false},
	                        normalized = {0.5f, 0.2f, 0, true};
	const sgd_params each[] = {clipped, normalized, free};
	for (int i = 0; i < 6; i++) {
		const float c = i / 2 == 2 ? 1 : 0.2f, m0 = 0.5f * 2 + c * 3, m1 = 0.5f * -4 + c * 4;
		float p[] = {1, -2}, m[] = {2, -4}, g[] = {3, 4}, nothing[] = {0, 0};
		sgd_at(b->each[i % 2], p, g, m, 25, each[i / 2]);
		assert_true(compare_close("m", m, (float[]){m0, m1}, 2, 1e-6, 1e-6));
		assert_true(compare_close("p", p, (float[]){0.98f - 0.1f * m0, -1.96f - 0.1f * m1}, 2, 1e-6, 1e-6));
		sgd_at(b->each[i % 2], p, nothing, m, 0, each[i / 2]);
		assert_true(compare_close("m", m, (float[]){0.5f * m0, 0.5f * m1}, 2, 1e-6, 1e-6));
		sgd_at(b->each[i % 2], p, g, m, strtof("inf", NULL), each[i / 2]);
		assert_true(compare_close("m", m, (float[]){0.5f * m0, 0.5f * m1}, 2, 1e-6, 1e-6));
	}
}

/* A table of two rows of 2, and a matrix of one row of 2. */
typedef struct normalized {
	float p[32], g[32], statistics[3], norm2, hyper[2];
} normalized;

static void normalized_sgd_at(backend *b, normalized *n, bool rms)
{
	static const row_span spans[] = {{0, 0, 2, 1}, {2, 1, 2, 0}};
	graph *g = graph_new();
	const shape all = SHAPE1(32);
	normalized_sgd_inputs in = {.p = graph_state(g, "p", all),
	                            .grad = graph_input(g, "g", DTYPE_F32, all),
	                            .statistics = graph_state(g, "s", SHAPE1(3)),
	                            .spans = graph_weight(g, "spans", DTYPE_I32, SHAPE2(2, ROW_SPAN_WORDS)),
	                            .norm2 = graph_input(g, "norm2", DTYPE_F32, SHAPE0()),
	                            .hyper = graph_input(g, "hyper", DTYPE_F32, SHAPE1(2)),
	                            .narrow = VALUE_NONE,
	                            .factors = VALUE_NONE};
	in.rows = op_row_squares(g, in.grad, in.spans, 3, &in.tensors);
	op_normalized_sgd(g, &in, (normalized_sgd_params){.row_decay = 0.5F, .decay = 0.5F, .rms = rms});
	row_span own[2];
	memcpy(own, spans, sizeof own);
	run(b, g,
	    (plan_binding[]){{in.p, n->p},
	                     {in.grad, n->g},
	                     {in.statistics, n->statistics},
	                     {in.spans, own},
	                     {in.norm2, &n->norm2},
	                     {in.hyper, n->hyper}},
	    6);
}

static void rows_of_a_table_and_matrices_have_their_own_step_lengths(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 4; i++) {
		const bool rms = i / 2;
		const float mean = rms ? 2 : 1, step = 0.1F * sqrtf(mean);
		normalized n = {.p = {1, 2, 3, 4, [16] = 5, 6},
		                .g = {3, 4, 0, 0, [16] = -30, 40},
		                .statistics = {0, 0, 7},
		                .norm2 = 1,
		                .hyper = {0.1F, 1}};
		/* Row 1 has no gradient, and only decays by 1 - 0.1 · 0.5. */
		normalized_sgd_at(b->each[i % 2], &n, rms);
		const float table[] = {0.95F - 0.6F * step, 1.9F - 0.8F * step, 2.85F, 3.8F};
		const float matrix[] = {4.75F + 0.6F * step, 5.7F - 0.8F * step};
		assert_true(compare_close("table", n.p, table, 4, 1e-6, 1e-6));
		assert_true(compare_close("matrix", n.p + 16, matrix, 2, 1e-6, 1e-6));
		assert_true(compare_close("statistics", n.statistics, (float[]){25 / mean, 0, 7}, 3, 1e-6, 1e-6));
		/* The second update: weights 1 + 0.5. Row 0 and the matrix have no gradient. */
		normalized again = {.g = {0, 0, 0, -2}, .norm2 = 1, .hyper = {0.1F, 2}};
		memcpy(again.statistics, n.statistics, sizeof n.statistics);
		normalized_sgd_at(b->each[i % 2], &again, rms);
		const float moved = 0.1F * 2 / sqrtf(4 / mean / 1.5F);
		assert_true(compare_close("table", again.p, (float[]){0, 0, 0, moved}, 4, 1e-6, 1e-6));
		assert_true(compare_close("matrix", again.p + 16, (float[]){0, 0}, 2, 0, 0));
		assert_true(
		    compare_close("statistics", again.statistics, (float[]){12.5F / mean, 4 / mean, 7}, 3, 1e-6, 1e-6));
		again.norm2 = strtof("inf", NULL);
		normalized before = again;
		normalized_sgd_at(b->each[i % 2], &again, rms);
		assert_memory_equal(&before, &again, sizeof again);
	}
}

static void all_four_products_are_the_same_product(void **state)
{
	const backends *b = *state;
	/* [1 2 3; 4 5 6] · [1 0; 2 1; 0 3] · 2 = [10 22; 28 46] */
	float a[] = {1, 2, 3, 4, 5, 6}, at[] = {1, 4, 2, 5, 3, 6}, c[4];
	float m[] = {1, 0, 2, 1, 0, 3}, mt[] = {1, 2, 0, 0, 1, 3};
	for (int i = 0; i < 8; i++) {
		bool ta = i & 1, tb = i & 2;
		graph *g = graph_new();
		value left = graph_input(g, "a", DTYPE_F32, ta ? SHAPE2(3, 2) : SHAPE2(2, 3));
		value right = graph_input(g, "b", DTYPE_F32, tb ? SHAPE2(2, 3) : SHAPE2(3, 2));
		value out = op_matmul(g, left, right, ta, tb, 2);
		run(b->each[i / 4], g, (plan_binding[]){{left, ta ? at : a}, {right, tb ? mt : m}, {out, c}}, 3);
		assert_true(compare_same("product", c, (float[]){10, 22, 28, 46}, 4));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(gelu_is_x_times_the_normal_distribution),
	    cmocka_unit_test(the_tanh_form_of_gelu_is_that_of_gpt2),
	    cmocka_unit_test(a_secant_has_the_slope_through_zero),
	    cmocka_unit_test(rows_are_multiplied_by_rows_or_by_a_single_row),
	    cmocka_unit_test(a_table_reads_zeros_outside_its_rows),
	    cmocka_unit_test(gradients_of_a_table_add_up),
	    cmocka_unit_test(a_normalized_row_has_mean_zero_and_variance_one),
	    cmocka_unit_test(equal_logits_cost_the_logarithm_of_the_classes),
	    cmocka_unit_test(label_smoothing_mixes_in_the_mean),
	    cmocka_unit_test(without_labels_the_loss_is_zero),
	    cmocka_unit_test(dropout_keeps_the_elements_that_the_generator_selects),
	    cmocka_unit_test(adamw_takes_the_steps_of_pytorch),
	    cmocka_unit_test(a_norm_that_is_not_finite_stops_the_step),
	    cmocka_unit_test(sgd_follows_its_momentum_and_can_ignore_the_length_of_the_gradient),
	    cmocka_unit_test(rows_of_a_table_and_matrices_have_their_own_step_lengths),
	    cmocka_unit_test(all_four_products_are_the_same_product),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
