/* Gradients of graphs; test_ops.c has the gradient of each op alone. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/compare.h"
#include "tests/unit/support/random.h"

static int open_backend(void **state)
{
	backend *b;
	if (cpu_reference_open(&b, 0, NULL) != STATUS_OK)
		return 1;
	*state = b;
	return 0;
}

static int close_backend(void **state)
{
	backend_close(*state);
	return 0;
}

/* --- a small language model with every differentiable op ----------------------------------- */

enum {
	BATCH = 2,
	LENGTH = 9,
	HIDDEN = 6,
	HEADS = 2,
	VOCAB = 11,
	WINDOW = 3,
	PARAMETERS = 7,
	LARGEST = 2 * HIDDEN * HIDDEN
};

static const struct {
	const char *name;
	shape shape;
} parameters[PARAMETERS] = {
    {"embedding", {2, {VOCAB, HIDDEN}}}, {"norm.weight", {1, {HIDDEN}}},    {"norm.bias", {1, {HIDDEN}}},
    {"attention", {1, {HIDDEN}}},        {"up", {2, {2 * HIDDEN, HIDDEN}}}, {"down", {2, {2 * HIDDEN, HIDDEN}}},
    {"logits.bias", {1, {VOCAB}}},
};

/* The embedding is used twice (look-up and output), h three times. */
static value build_model(graph *g)
{
	value p[PARAMETERS];
	for (int i = 0; i < PARAMETERS; i++)
		p[i] = graph_parameter(g, parameters[i].name, parameters[i].shape);
	value tokens = graph_input(g, "tokens", DTYPE_I32, SHAPE2(BATCH, LENGTH));
	value labels = graph_input(g, "labels", DTYPE_I32, SHAPE2(BATCH, LENGTH));
	value mask = graph_input(g, "mask", DTYPE_I32, SHAPE2(BATCH, LENGTH));
	value rng = graph_input(g, "rng", DTYPE_I32, SHAPE1(4));
	value h = op_layernorm(g, op_gather(g, p[0], tokens, 0), p[1], p[2], 1e-5f);
	value pooled = op_additive_attention(g, h, p[3], mask, HEADS, WINDOW).pooled;
	value gated = op_gate(g, h, op_dropout(g, pooled, rng, 0.2f, 3), op_scale(g, op_mul(g, h, h), 0.5f));
	value inner = op_gelu(g, op_matmul(g, gated, p[4], false, true, 1), false);
	value out = op_add(g, gated, op_matmul(g, inner, p[5], false, false, 1));
	return op_linear_cross_entropy(g, out, p[0], p[6], labels, VALUE_NONE, (linear_cross_entropy_params){0.4f, 0.1f}).loss;
}

typedef struct model {
	plan *p;
	float weights[PARAMETERS][LARGEST];
	float gradients[PARAMETERS][LARGEST];
} model;

static void model_open(model *m, backend *b)
{
	graph *g = graph_new();
	value loss = build_model(g);
	assert_int_equal(graph_backward(g, loss), STATUS_OK);
	graph_output(g, loss, "loss");
	plan_binding bindings[2 * PARAMETERS];
	for (int i = 0; i < PARAMETERS; i++) {
		value w = graph_find(g, parameters[i].name), dw = graph_gradient(g, w);
		bindings[2 * i] = (plan_binding){w, m->weights[i]};
		bindings[2 * i + 1] = (plan_binding){dw, m->gradients[i]};
		random_normal(m->weights[i], LARGEST, 10 + (uint64_t)i, 0.5);
	}
	assert_int_equal(plan_new(&m->p, g, b, bindings, 2 * PARAMETERS, NULL), STATUS_OK);
	int32_t tokens[BATCH * LENGTH], labels[BATCH * LENGTH], mask[BATCH * LENGTH], rng[4] = {1, 2, 3, 0};
	random_integers(tokens, BATCH * LENGTH, 1, 1,
	                VOCAB - 1); /* without 0, whose look-up has no gradient by design */
	random_integers(labels, BATCH * LENGTH, 2, -1, VOCAB - 1);
	random_integers(mask, BATCH * LENGTH, 3, 0, 3);
	assert_int_equal(plan_write(m->p, graph_find(g, "tokens"), tokens), STATUS_OK);
	assert_int_equal(plan_write(m->p, graph_find(g, "labels"), labels), STATUS_OK);
	assert_int_equal(plan_write(m->p, graph_find(g, "mask"), mask), STATUS_OK);
	assert_int_equal(plan_write(m->p, graph_find(g, "rng"), rng), STATUS_OK);
}

static double loss_at(model *m, float *weight, double at)
{
	float before = *weight, loss;
	*weight = (float)at;
	assert_int_equal(plan_run(m->p), STATUS_OK);
	assert_int_equal(plan_read(m->p, graph_find(plan_graph(m->p), "loss"), &loss), STATUS_OK);
	*weight = before;
	return (double)loss;
}

static void a_model_has_the_gradients_of_its_finite_differences(void **state)
{
	static const double step = 1.0 / 16;
	static model m;
	model_open(&m, *state);
	for (int i = 0; i < PARAMETERS; i++) {
		int64_t count = shape_count(parameters[i].shape);
		float gradient[LARGEST];
		assert_int_equal(plan_run(m.p), STATUS_OK);
		memcpy(gradient, m.gradients[i], sizeof gradient);
		double allowed = 2e-5 + 1e-3 * compare_magnitude(gradient, count);
		for (int64_t e = 0; e < count; e += 5) {
			float *w = &m.weights[i][e];
			double x = (double)*w,
			       expected = (8 * (loss_at(&m, w, x + step) - loss_at(&m, w, x - step)) -
			                   (loss_at(&m, w, x + 2 * step) - loss_at(&m, w, x - 2 * step))) /
			                  (12 * step);
			if (!(fabs((double)gradient[e] - expected) <= allowed))
				fail_msg("%s[%d]: %.9g, finite difference %.9g, allowed %.3g", parameters[i].name,
				         (int)e, (double)gradient[e], expected, allowed);
		}
	}
	plan_free(m.p);
}

/* --- the rules --------------------------------------------------------------------------------- */

/* A scalar: u x v with vectors of ones. */
static value total(graph *g, value x, shape s)
{
	value u = op_fill(g, SHAPE2(1, shape_rows(s)), 1), v = op_fill(g, SHAPE2(shape_last(s), 1), 1);
	return op_matmul(g, op_matmul(g, u, x, false, false, 1), v, false, false, 1);
}

static void contributions_are_added(void **state)
{
	graph *g = graph_new();
	shape s = SHAPE2(1, 3);
	value x = graph_input(g, "x", DTYPE_F32, s);
	graph_want_gradient(g, x);
	value y = op_add(g, op_add(g, op_scale(g, x, 2), x), op_mul(g, x, x)); /* 3x + x² */
	assert_int_equal(graph_backward(g, total(g, y, s)), STATUS_OK);
	graph_output(g, graph_gradient(g, x), "dx");
	plan *p;
	assert_int_equal(plan_new(&p, g, *state, NULL, 0, NULL), STATUS_OK);
	float dx[3];
	assert_int_equal(plan_write(p, x, (float[]){1, -2, 0.5f}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, graph_find(g, "dx"), dx), STATUS_OK);
	assert_true(compare_same("3 + 2x", dx, (float[]){5, -1, 4}, 3));
	plan_free(p);
}

static void contributions_of_different_ranks_are_added(void **state)
{
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE3(1, 2, 2)),
	      index = graph_input(g, "index", DTYPE_I32, SHAPE1(2));
	graph_want_gradient(g, x);
	value twice = op_gather(g, x, index, -1); /* its gradient is [2, 2] */
	value y = op_add(g, op_scale(g, x, 10), twice);
	assert_int_equal(graph_backward(g, total(g, y, SHAPE2(2, 2))), STATUS_OK);
	graph_output(g, graph_gradient(g, x), "dx");
	plan *p;
	assert_int_equal(plan_new(&p, g, *state, NULL, 0, NULL), STATUS_OK);
	float dx[4];
	assert_int_equal(plan_write(p, index, (int32_t[]){1, 1}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, graph_find(g, "dx"), dx), STATUS_OK);
	assert_true(compare_same("10 + places", dx, (float[]){10, 10, 12, 12}, 4));
	plan_free(p);
}

/* The loss times `factor`, with the gradient of hidden [2, 3] in dh. */
static void scaled_loss(backend *b, float factor, float *dh)
{
	graph *g = graph_new();
	value h = graph_input(g, "h", DTYPE_F32, SHAPE2(2, 3)), w = graph_input(g, "w", DTYPE_F32, SHAPE2(4, 3)),
	      t = graph_input(g, "t", DTYPE_I32, SHAPE1(2));
	graph_want_gradient(g, h);
	value loss = op_linear_cross_entropy(g, h, w, VALUE_NONE, t, VALUE_NONE, (linear_cross_entropy_params){1, 0}).loss;
	assert_int_equal(graph_backward(g, factor == 1 ? loss : op_scale(g, loss, factor)), STATUS_OK);
	graph_output(g, graph_gradient(g, h), "dh");
	plan *p;
	float weight[12];
	random_normal(weight, 12, 31, 1);
	assert_int_equal(plan_new(&p, g, b, (plan_binding[]){{w, weight}}, 1, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, h, (float[]){1, -2, 0.5f, 3, 0, -1}), STATUS_OK);
	assert_int_equal(plan_write(p, t, (int32_t[]){3, 0}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, graph_find(g, "dh"), dh), STATUS_OK);
	plan_free(p);
}

/* Its gradients are computed in the forward, before the use of the loss is known. */
static void a_scaled_loss_has_scaled_gradients(void **state)
{
	float once[6], four_times[6];
	scaled_loss(*state, 1, once);
	scaled_loss(*state, 4, four_times);
	assert_true(compare_magnitude(once, 6) > 0.1);
	for (int i = 0; i < 6; i++)
		assert_true(four_times[i] == 4 * once[i]);
}

static void a_value_that_the_loss_does_not_depend_on_has_no_gradient(void **state)
{
	(void)state;
	graph *g = graph_new();
	shape s = SHAPE2(2, 3);
	value x = graph_input(g, "x", DTYPE_F32, s), w = graph_parameter(g, "w", s),
	      unused = graph_parameter(g, "unused", s);
	value dead = op_gelu(g, unused, false), y = op_mul(g, x, w);
	int forward = graph_node_count(g);
	assert_int_equal(graph_backward(g, total(g, y, s)), STATUS_OK);
	assert_int_not_equal(graph_gradient(g, w), VALUE_NONE);
	assert_int_equal(graph_gradient(g, x), VALUE_NONE);
	assert_int_equal(graph_gradient(g, unused), VALUE_NONE);
	assert_int_equal(graph_gradient(g, dead), VALUE_NONE);
	assert_int_equal(graph_gradient(g, VALUE_NONE), VALUE_NONE);
	for (int i = forward; i < graph_node_count(g); i++) /* and no node is added for it */
		assert_int_not_equal(graph_node(g, i)->id, OP_gelu_grad);
	graph_free(g);
}

static void the_padding_row_gets_no_gradient(void **state)
{
	graph *g = graph_new();
	value table = graph_parameter(g, "table", SHAPE2(4, 2)), index = graph_input(g, "index", DTYPE_I32, SHAPE1(4));
	value y = op_gather(g, table, index, 0);
	assert_int_equal(graph_backward(g, total(g, y, SHAPE2(4, 2))), STATUS_OK);
	graph_output(g, graph_gradient(g, table), "d");
	float weights[8] = {0}, d[8];
	plan *p;
	assert_int_equal(plan_new(&p, g, *state, (plan_binding[]){{table, weights}}, 1, NULL), STATUS_OK);
	assert_int_equal(plan_write(p, index, (int32_t[]){0, 2, 2, 3}), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, graph_find(g, "d"), d), STATUS_OK);
	assert_true(compare_same("counts", d, (float[]){0, 0, 0, 0, 2, 2, 1, 1}, 8));
	plan_free(p);
}

/* --- errors --------------------------------------------------------------------------------------- */

static void expect_error(graph *g, status s, const char *words)
{
	error err = ERROR_INIT;
	assert_int_equal(graph_status(g, &err), s);
	assert_non_null(strstr(err.message, words));
	graph_free(g);
}

static void an_op_without_gradient_in_the_path_is_an_error(void **state)
{
	(void)state;
	graph *g = graph_new();
	value w = graph_parameter(g, "w", SHAPE2(2, 3));
	assert_int_equal(graph_backward(g, op_sum_squares(g, w)), STATUS_UNSUPPORTED);
	expect_error(g, STATUS_UNSUPPORTED, "sum_squares has no gradient");
}

static void a_loss_of_by_products_is_an_error(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", DTYPE_F32, SHAPE3(1, 4, 6)), w = graph_parameter(g, "w", SHAPE1(6));
	attention_values a = op_additive_attention(g, x, w, VALUE_NONE, 2, 0);
	assert_int_equal(graph_backward(g, total(g, a.score, SHAPE3(1, 4, 2))), STATUS_UNSUPPORTED);
	expect_error(g, STATUS_UNSUPPORTED, "output 1 of additive_attention has no gradient");
}

static void the_loss_must_have_one_element(void **state)
{
	(void)state;
	graph *g = graph_new();
	assert_int_equal(graph_backward(g, graph_parameter(g, "w", SHAPE1(2))), STATUS_INVALID);
	expect_error(g, STATUS_INVALID, "one element");
	g = graph_new();
	assert_int_equal(graph_backward(g, VALUE_NONE), STATUS_INVALID);
	expect_error(g, STATUS_INVALID, "one element");
}

static void a_graph_is_differentiated_once(void **state)
{
	(void)state;
	graph *g = graph_new();
	value loss = op_scale(g, graph_parameter(g, "w", SHAPE0()), 2);
	assert_int_equal(graph_backward(g, loss), STATUS_OK);
	assert_int_equal(graph_backward(g, loss), STATUS_INVALID);
	expect_error(g, STATUS_INVALID, "once");
}

static void only_real_inputs_can_have_a_gradient(void **state)
{
	(void)state;
	graph *g = graph_new();
	graph_want_gradient(g, graph_input(g, "index", DTYPE_I32, SHAPE1(2)));
	expect_error(g, STATUS_INVALID, "f32 or bf16 input");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_model_has_the_gradients_of_its_finite_differences),
	    cmocka_unit_test(contributions_are_added),
	    cmocka_unit_test(contributions_of_different_ranks_are_added),
	    cmocka_unit_test(a_scaled_loss_has_scaled_gradients),
	    cmocka_unit_test(a_value_that_the_loss_does_not_depend_on_has_no_gradient),
	    cmocka_unit_test(the_padding_row_gets_no_gradient),
	    cmocka_unit_test(an_op_without_gradient_in_the_path_is_an_error),
	    cmocka_unit_test(a_loss_of_by_products_is_an_error),
	    cmocka_unit_test(the_loss_must_have_one_element),
	    cmocka_unit_test(a_graph_is_differentiated_once),
	    cmocka_unit_test(only_real_inputs_can_have_a_gradient),
	};
	return cmocka_run_group_tests(tests, open_backend, close_backend);
}
