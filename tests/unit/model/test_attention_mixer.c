/* The softmax mixer: its parameters under an architecture's layout, and one product against three. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/cpu/cpu.h"
#include "engine/model/mixers/mixer.h"
#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/random.h"

enum { N = 9, H = 3, DH = 5, D = H * DH, MOST = 3 * D * D };

static const attention_layout separate = {.names = {"wq", "wk", "wv", "wo"},
                                          .order = {ATTENTION_VALUE, ATTENTION_QUERY, ATTENTION_KEY},
                                          .bias = true},
                              one_product = {.names = {[ATTENTION_QUERY] = "qkv", [ATTENTION_OUTPUT] = "wo"},
                                             .bias = true,
                                             .transposed = true};

static attention_options options_of(const attention_layout *layout)
{
	return (attention_options){.layout = layout,
	                           .hidden = D,
	                           .heads = H,
	                           .kv_heads = H,
	                           .key_width = DH,
	                           .value_width = DH,
	                           .causal = true,
	                           .std = {.query = 0.5, .value = 0.25, .output = 0},
	                           .reach.capacity = 4,
	                           .scoring.scale = 0.4};
}

static void parameters_have_the_names_order_and_deviations_of_the_options(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		int64_t rows, columns; /* columns 0: a bias */
		float std;
	} expected[2][8] = {
	    {{"p.wv.weight", D, D, 0.25f},
	     {"p.wv.bias", D, 0, 0},
	     {"p.wq.weight", D, D, 0.5f},
	     {"p.wq.bias", D, 0, 0},
	     {"p.wk.weight", D, D, 0.5f},
	     {"p.wk.bias", D, 0, 0},
	     {"p.wo.weight", D, D, 0},
	     {"p.wo.bias", D, 0, 0}},
	    {{"p.qkv.weight", 3 * D, D, 0.5f},
	     {"p.qkv.bias", 3 * D, 0, 0},
	     {"p.wo.weight", D, D, 0},
	     {"p.wo.bias", D, 0, 0}},
	};
	for (int l = 0; l < 2; l++) {
		const attention_options o = options_of(l ? &one_product : &separate);
		parameter_list list = {0};
		mixer_attention.parameters(&o, "p.", &list);
		assert_int_equal(list.count, l ? 4 : 8);
		for (int i = 0; i < list.count; i++) {
			const parameter_spec *p = &list.items[i];
			const bool matrix = expected[l][i].columns > 0;
			assert_string_equal(p->name, expected[l][i].name);
			assert_int_equal(p->shape.dim[0], expected[l][i].rows);
			assert_int_equal(p->shape.rank, matrix ? 2 : 1);
			assert_int_equal(p->init, matrix ? INIT_NORMAL : INIT_ZERO);
			assert_true(p->std == expected[l][i].std);
			assert_int_equal(p->transposed, matrix && l);
		}
		parameter_list_free(&list);
	}
}

/* Floats of a parameter: a part of one set of weights for both layouts. */
static void fill(const char *name, const float *weights, const float *biases, float *out)
{
	static const char *const parts[] = {"wq", "wk", "wv", "wo"};
	const bool bias = strstr(name, ".bias");
	const float *from = bias ? biases : weights;
	const int64_t one = bias ? D : D * D;
	if (strncmp(name, "qkv", 3) == 0)
		memcpy(out, from, (size_t)(3 * one) * sizeof *out);
	for (int i = 0; i < 4; i++)
		if (strncmp(name, parts[i], 2) == 0)
			memcpy(out, from + i * one, (size_t)one * sizeof *out);
}

/* y [N, D] and the parts of the log. */
static void attend(const attention_layout *layout, const float *weights, const float *biases, const float *x, float *y,
                   float log[N][2 * D])
{
	const forward_spec spec = {.batch = 1, .length = N, .explain.log = true};
	const attention_options o = options_of(layout);
	const state_list states = {0};
	parameter_list list = {0};
	log_part parts[EXPLAINER_MAX_PARTS];
	backend *b;
	plan *p;
	graph *g = graph_new();
	mixer_attention.parameters(&o, "", &list);
	for (int i = 0; i < list.count; i++)
		graph_input(g, list.items[i].name, DTYPE_F32, list.items[i].shape);
	value in = graph_input(g, "x", DTYPE_F32, SHAPE3(1, N, D));
	builder made = builder_begin(g, &spec, &states);
	value out = mixer_attention.forward(&made, &o, 0, "", in);
	graph_output(g, out, "y");
	assert_int_equal(cpu_reference_open(&b, 1, NULL), STATUS_OK);
	assert_int_equal(plan_new(&p, g, b, NULL, 0, NULL), STATUS_OK);
	for (int i = 0; i < list.count; i++) {
		float data[MOST];
		fill(list.items[i].name, weights, biases, data);
		assert_int_equal(plan_write(p, graph_find(g, list.items[i].name), data), STATUS_OK);
	}
	assert_int_equal(plan_write(p, in, x), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	assert_int_equal(plan_read(p, out, y), STATUS_OK);
	const int n = mixer_attention.explainer->parts(&o, parts);
	int64_t first = 0;
	for (int i = 0; i < n; i++) {
		float rows[N * 3 * D];
		char name[64];
		snprintf(name, sizeof name, "layers.0.%s", parts[i].name);
		const value part = graph_find(g, name);
		const int64_t width = shape_last(graph_value(g, part)->shape);
		assert_int_equal(plan_read(p, part, rows), STATUS_OK);
		for (int64_t t = 0; t < N; t++)
			memcpy(log[t] + first, rows + t * width, (size_t)parts[i].width * sizeof *rows);
		first += parts[i].width;
	}
	assert_int_equal(first, 2 * D);
	parameter_list_free(&list);
	plan_free(p);
	backend_close(b);
}

static void one_product_attends_and_logs_as_three_do(void **state)
{
	(void)state;
	static float weights[4 * D * D], biases[4 * D], x[N * D], y[2][N * D], log[2][N][2 * D];
	random_normal(weights, 4 * D * D, 1, 0.4);
	random_normal(biases, 4 * D, 2, 0.3);
	random_normal(x, N * D, 3, 1);
	memset(y, 0xff, sizeof y);
	memset(log, 0xff, sizeof log);
	for (int l = 0; l < 2; l++)
		attend(l ? &one_product : &separate, weights, biases, x, y[l], log[l]);
	for (int i = 0; i < N * D; i++)
		assert_true(fabsf(y[0][i] - y[1][i]) <= 1e-5f);
	for (int t = 0; t < N; t++)
		for (int i = 0; i < 2 * D; i++)
			assert_true(fabsf(log[0][t][i] - log[1][t][i]) <= 1e-5f);
	assert_true(fabsf(y[0][0]) > 1e-3f);
}

static void without_a_cache_there_is_no_state(void **state)
{
	(void)state;
	attention_options o = options_of(&separate);
	state_list list = {0};
	o.reach.capacity = 0;
	mixer_attention.states(&o, 0, &list);
	assert_int_equal(list.count, 0);
	o.reach.capacity = 4;
	mixer_attention.states(&o, 0, &list);
	assert_int_equal(list.count, 1);
	assert_string_equal(list.items[0].name, "layers.0.cache");
	assert_int_equal(list.items[0].places, 4);
	state_list_free(&list);
}

static void weights_with_a_cache_of_bf16_are_those_of_rounded_keys(void **state)
{
	(void)state;
	attention_options o = options_of(&one_product);
	float exact[N * 2 * D], rounded[N * 2 * D];
	double alpha[N], want[N];
	random_normal(exact, N * 2 * D, 5, 2);
	for (int i = 0; i < N * 2 * D; i++)
		rounded[i] = i / D % 2 ? panel_f32(panel_bf16(exact[i])) : exact[i];
	for (int head = 0; head < H; head++) {
		explain_site s = {.options = &o, .log = rounded, .stride = 2 * D, .tokens = N, .head = head};
		o.reach.bf16 = false;
		assert_int_equal(attention_explainer.row(&s, N - 1, want), STATUS_OK);
		s.log = exact;
		o.reach.bf16 = true;
		assert_int_equal(attention_explainer.row(&s, N - 1, alpha), STATUS_OK);
		for (int i = 0; i < 4; i++)
			assert_true(fabs(alpha[i] - want[i]) < 1e-12);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(parameters_have_the_names_order_and_deviations_of_the_options),
	    cmocka_unit_test(one_product_attends_and_logs_as_three_do),
	    cmocka_unit_test(without_a_cache_there_is_no_state),
	    cmocka_unit_test(weights_with_a_cache_of_bf16_are_those_of_rounded_keys),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
