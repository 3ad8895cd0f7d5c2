/* graph_pull_back: attribute a score to its terms, through the frozen network and by its gradient. */
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
#include "tests/unit/support/random.h"

enum { B = 2, N = 7, D = 8, HEADS = 2, VOCAB = 5, ROWS = B * N };

#define TOKENS SHAPE3(B, N, D)

/* --- a network with every op of the models' forwards ------------------------------------------ */

typedef struct network {
	value words, places, rows /* rows: gathered from the last layer */, y, dy;
	bool recomputes;
} network;

static value parameter(graph *g, const char *name, shape s)
{
	const value v = graph_find(g, name);
	return v != VALUE_NONE ? v : graph_parameter(g, name, s);
}

static value product(graph *g, value x, int64_t outputs, const char *name, const char *bias)
{
	const int64_t inputs = shape_last(graph_value(g, x)->shape);
	return op_linear(g, x, parameter(g, name, SHAPE2(outputs, inputs)), parameter(g, bias, SHAPE1(outputs)), 0.5f);
}

static value norm(graph *g, value x)
{
	return op_layernorm(g, x, parameter(g, "norm.weight", SHAPE1(D)), parameter(g, "norm.bias", SHAPE1(D)), 1e-5f);
}

static void boundary(graph *g, const network *n)
{
	if (n->recomputes)
		graph_checkpoint(g);
}

static value additive_layer(graph *g, value h, value mask)
{
	const value x = norm(g, h);
	const value pooled = op_additive_attention(g, x, parameter(g, "w", SHAPE1(D)), mask, HEADS, 3).pooled;
	const value r = op_gate(g, x, pooled, product(g, x, D, "key", "key.bias"));
	const value inner = op_gelu(g, product(g, norm(g, r), 2 * D, "up", "up.bias"), false);
	return op_add(g, r, product(g, inner, D, "down", "down.bias"));
}

static value softmax_layer(graph *g, value h, value mask)
{
	const value qkv = product(g, norm(g, h), 3 * D, "qkv", "qkv.bias");
	const value y = op_softmax_attention(g, qkv, VALUE_NONE, VALUE_NONE, mask, VALUE_NONE, VALUE_NONE,
	                                     (softmax_params){.heads = HEADS, .scale = 0.5f});
	return op_add(g, h, product(g, y, D, "out", "out.bias"));
}

static const dilated_params dilated = {
    .pattern = {2, {2, 4}, {1, 2}, DILATED_MOD}, .heads = HEADS, .scale = 0.5f, .causal = true, .detach_weights = true};

static value linear_layer(graph *g, value h, value mask)
{
	const linear_attention_params p = {HEADS, true, LINEAR_ATTENTION_EPS};
	const value q = product(g, h, D, "key", "key.bias"), k = product(g, h, D, "out", "out.bias"),
	            v = product(g, h, D, "down 2", "down.bias");
	h = op_add(g, h, op_linear_attention(g, q, k, v, mask, p).y);
	return op_add(g, h, op_dilated_attention(g, k, v, q, mask, VALUE_NONE, dilated).y);
}

/* Attention with its matrix: q, k, v, and heads that are mixed before and after the softmax. */
static value matrix_attention(graph *g, value q, value k, value v, value mask)
{
	const attention_matrix_params p = {.heads = HEADS, .scale = 0.5f};
	const value mix = parameter(g, "mix", SHAPE2(HEADS, HEADS));
	const value scores = op_mix_heads(g, op_attention_scores(g, q, k, p), mix);
	const value weights =
	    op_attention_weights(g, scores, mask, VALUE_NONE, VALUE_NONE, (attention_weights_params){.top_k = 5});
	return op_attention_apply(g, op_mix_heads(g, weights, mix), v, p);
}

static value matrix_layer(graph *g, value h, value mask)
{
	const value q = product(g, h, D, "key", "key.bias"), k = product(g, h, D, "out", "out.bias");
	return op_add(g, h, matrix_attention(g, q, k, product(g, h, D, "down 2", "down.bias"), mask));
}

/* Append the forward and the input dy. The last norm comes before the gather of the picked rows, so its dy is the
 * gradient of a gather. */
static network build(graph *g, bool recomputes)
{
	network n = {.recomputes = recomputes};
	const value mask = graph_input(g, "mask", DTYPE_I32, SHAPE2(B, N));
	n.words = op_gather(g, parameter(g, "words", SHAPE2(11, D)), graph_input(g, "ids", DTYPE_I32, SHAPE2(B, N)), 0);
	n.places =
	    op_gather(g, parameter(g, "places", SHAPE2(N, D)), graph_input(g, "at", DTYPE_I32, SHAPE2(B, N)), -1);
	value h = op_add(g, op_scale(g, n.words, 2), n.places);
	boundary(g, &n);
	h = additive_layer(g, h, mask);
	boundary(g, &n);
	h = softmax_layer(g, h, mask);
	boundary(g, &n);
	h = matrix_layer(g, h, mask);
	boundary(g, &n);
	h = norm(g, linear_layer(g, h, mask));
	boundary(g, &n);
	n.rows = op_gather(g, h, graph_input(g, "last", DTYPE_I32, SHAPE1(B)), -1);
	const value inner = op_tanh(g, product(g, n.rows, D, "inner", "inner.bias"));
	n.y = product(g, inner, VOCAB, "classes", "classes.bias");
	n.dy = graph_input(g, "dy", DTYPE_F32, SHAPE2(B, VOCAB));
	return n;
}

/* --- running it ---------------------------------------------------------------------------- */

static void fill_i32(plan *p, const char *name, const int32_t *x)
{
	assert_int_equal(plan_write(p, graph_find(plan_graph(p), name), x), STATUS_OK);
}

/* Parameters are drawn in the order of their names. */
static plan *open_plan(backend *b, graph *g)
{
	enum { MOST = 40, LARGEST = 3 * D * D };
	static float weights[MOST][LARGEST];
	plan_binding bindings[MOST];
	plan *p;
	error err = ERROR_INIT;
	int n = 0;
	for (value v = 0; v < graph_value_count(g); v++) {
		const value_info *info = graph_value(g, v);
		if (info->role != ROLE_PARAMETER)
			continue;
		assert_true(n < MOST && shape_count(info->shape) <= LARGEST);
		random_normal(weights[n], shape_count(info->shape), 40 + (uint64_t)n, 0.7);
		bindings[n] = (plan_binding){v, weights[n]};
		n++;
	}
	if (plan_new(&p, g, b, bindings, n, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	int32_t ids[ROWS], at[ROWS], mask[ROWS];
	float dy[B * VOCAB];
	random_integers(ids, ROWS, 1, 1, 10);
	random_integers(mask, ROWS, 3, 0, 3);
	for (int i = 0; i < ROWS; i++)
		at[i] = i % N;
	random_normal(dy, B * VOCAB, 4, 1);
	fill_i32(p, "ids", ids);
	fill_i32(p, "at", at);
	fill_i32(p, "mask", mask);
	fill_i32(p, "last", (int32_t[]){N - 1, 2 * N - 2});
	assert_int_equal(plan_write(p, graph_find(g, "dy"), dy), STATUS_OK);
	assert_int_equal(plan_run(p), STATUS_OK);
	return p;
}

static void read(plan *p, const char *name, float *out)
{
	const value v = graph_find(plan_graph(p), name);
	if (v == VALUE_NONE)
		fail_msg("no output %s", name);
	assert_int_equal(plan_read(p, v, out), STATUS_OK);
}

/* --- the frozen network -------------------------------------------------------------------- */

typedef struct parts {
	float words[ROWS], places[ROWS], biases[ROWS], head[B], score[B];
} parts;

static void part(graph *g, value v, const char *name)
{
	graph_output(g, op_dot_rows(g, graph_gradient(g, v), v, 1), "%s", name);
}

/* The parts of ⟨dy, y⟩ for each sequence. */
static parts parts_of(backend *b, float share, bool recomputes)
{
	parts out;
	graph *g = graph_new();
	const network n = build(g, recomputes);
	const value sources[] = {n.words, n.places};
	const graph_rule rule = {.frozen = true, .share = share, .collects = true, .apart = n.rows};
	assert_int_equal(graph_pull_back(g, n.y, n.dy, sources, 2, rule), STATUS_OK);
	part(g, n.words, "words part");
	part(g, n.places, "places part");
	graph_output(g, graph_collected(g, SUM_BIASES, SHAPE1(ROWS), false), "biases part");
	graph_output(g, graph_collected(g, SUM_BIASES, SHAPE1(B), true), "head part");
	graph_output(g, op_dot_rows(g, n.dy, n.y, 1), "score");
	plan *p = open_plan(b, g);
	read(p, "words part", out.words);
	read(p, "places part", out.places);
	read(p, "biases part", out.biases);
	read(p, "head part", out.head);
	read(p, "score", out.score);
	plan_free(p);
	return out;
}

static const float shares[] = {0, 0.25f, 0.5f, 1};
enum { SHARES = sizeof shares / sizeof *shares };

static void the_parts_of_a_frozen_network_sum_to_the_score(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 2 * SHARES; i++) {
		const parts p = parts_of(b->each[i % 2], shares[i / 2], false);
		for (int s = 0; s < B; s++) {
			double sum = (double)p.head[s], size = 0;
			for (int j = s * N; j < (s + 1) * N; j++) {
				sum += (double)p.words[j] + (double)p.places[j] + (double)p.biases[j];
				size +=
				    fabs((double)p.words[j]) + fabs((double)p.places[j]) + fabs((double)p.biases[j]);
			}
			assert_true(size > 0.1);
			if (!(fabs(sum - (double)p.score[s]) <= 2e-6 * (1 + size)))
				fail_msg("share %g: the parts sum to %.9g, the score is %.9g", (double)shares[i / 2],
				         sum, (double)p.score[s]);
		}
	}
}

static void the_share_of_gates_changes_the_tokens_parts(void **state)
{
	const backends *b = *state;
	const parts none = parts_of(b->each[0], 0, false), half = parts_of(b->each[0], 0.5f, false);
	double apart = 0;
	for (int j = 0; j < ROWS; j++)
		apart += fabs((double)none.words[j] - (double)half.words[j]);
	assert_true(apart > 1e-2);
	assert_memory_equal(none.head, half.head, sizeof none.head); /* the head comes after all gates */
}

static void parts_are_the_same_with_recomputed_activations(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 2; i++) {
		const parts kept = parts_of(b->each[i], 0.5f, false), again = parts_of(b->each[i], 0.5f, true);
		assert_memory_equal(&kept, &again, sizeof kept);
	}
}

/* --- the gradient -------------------------------------------------------------------------- */

/* Gradients of Σ dy ⊙ y at words and places; pulls: by graph_pull_back, otherwise by graph_backward. */
static void gradients(backend *b, bool pulls, float words[ROWS * D], float places[ROWS * D])
{
	graph *g = graph_new();
	const network n = build(g, false);
	if (pulls) {
		const value sources[] = {n.words, n.places};
		assert_int_equal(graph_pull_back(g, n.y, n.dy, sources, 2, (graph_rule){0}), STATUS_OK);
		assert_int_equal(graph_gradient(g, graph_find(g, "norm.weight")), VALUE_NONE);
		assert_int_equal(graph_collected(g, SUM_BIASES, SHAPE1(ROWS), false), VALUE_NONE);
	} else {
		const value u = op_fill(g, SHAPE2(1, B), 1), v = op_fill(g, SHAPE2(VOCAB, 1), 1);
		const value sums = op_matmul(g, u, op_mul(g, n.y, n.dy), false, false, 1);
		assert_int_equal(graph_backward(g, op_matmul(g, sums, v, false, false, 1)), STATUS_OK);
	}
	graph_output(g, graph_gradient(g, n.words), "dwords");
	graph_output(g, graph_gradient(g, n.places), "dplaces");
	plan *p = open_plan(b, g);
	read(p, "dwords", words);
	read(p, "dplaces", places);
	plan_free(p);
}

static void without_freezing_the_result_is_the_gradient_of_the_score(void **state)
{
	const backends *b = *state;
	static float words[2][ROWS * D], places[2][ROWS * D];
	for (int i = 0; i < 2; i++) {
		gradients(b->each[i], true, words[0], places[0]);
		gradients(b->each[i], false, words[1], places[1]);
		assert_true(words[0][(N - 1) * D] != 0);
		assert_memory_equal(words[0], words[1], sizeof words[0]);
		assert_memory_equal(places[0], places[1], sizeof places[0]);
	}
}

/* Σ_j ⟨Σ_i p_ij dg_i, x_j⟩ = Σ_i ⟨dg_i, g_i⟩ in every kind of attention. */
static void parts_passed_back_through_attention_weights_sum_to_those_received(void **state)
{
	const backends *b = *state;
	for (int i = 0; i < 10; i++) {
		graph *g = graph_new();
		const value x = op_scale(g, graph_input(g, "x", DTYPE_F32, TOKENS), 1), none = VALUE_NONE;
		const value dy = graph_input(g, "dy", DTYPE_F32, TOKENS);
		value y, qkv = VALUE_NONE;
		if (i / 2 == 0) {
			y = op_additive_attention(g, x, graph_parameter(g, "w", SHAPE1(D)), none, HEADS, 3).pooled;
		} else if (i / 2 == 1) {
			qkv = op_linear(g, x, graph_parameter(g, "w", SHAPE2(3 * D, D)), none, 1);
			y = op_softmax_attention(g, qkv, none, none, none, none, none,
			                         (softmax_params){.heads = HEADS, .scale = 0.5f});
		} else if (i / 2 == 2) {
			const value w = graph_parameter(g, "w", SHAPE2(D, D));
			const attention_matrix_params p = {.heads = HEADS, .scale = 0.5f};
			const value scores = op_attention_scores(g, op_linear(g, x, w, none, 1), x, p);
			y = op_attention_apply(
			    g, op_attention_weights(g, scores, none, none, none, (attention_weights_params){0}), x, p);
		} else if (i / 2 == 3) {
			y = op_dilated_attention(g, x, x, x, none, none, dilated).y;
		} else {
			y = op_linear_attention(g, x, x, x, none,
			                        (linear_attention_params){HEADS, true, LINEAR_ATTENTION_EPS})
			        .y;
		}
		assert_int_equal(graph_pull_back(g, y, dy, &x, 1, (graph_rule){.collects = true}), STATUS_OK);
		graph_output(g, graph_collected(g, SUM_ATTENTION, SHAPE1(ROWS), false), "passed");
		graph_output(g, op_dot_rows(g, dy, y, 1), "given");
		plan *p;
		static float weight[3 * D * D];
		random_normal(weight, 3 * D * D, 49, 0.8);
		assert_int_equal(
		    plan_new(&p, g, b->each[i % 2], (plan_binding[]){{graph_find(g, "w"), weight}}, i / 2 < 3, NULL),
		    STATUS_OK);
		for (value v = 0; v < graph_value_count(g); v++) {
			float content[3 * D * D];
			if (graph_value(g, v)->role != ROLE_INPUT)
				continue;
			random_normal(content, 3 * D * D, 50 + (uint64_t)v, 0.8);
			assert_int_equal(plan_write(p, v, content), STATUS_OK);
		}
		assert_int_equal(plan_run(p), STATUS_OK);
		float passed[ROWS], given[ROWS];
		read(p, "passed", passed);
		read(p, "given", given);
		double off = 0, size = 0;
		for (int j = 0; j < ROWS; j++) {
			off += (double)passed[j] - (double)given[j];
			size += fabs((double)given[j]);
		}
		assert_true(size > 1 && fabs(off) <= 1e-5 * size);
		plan_free(p);
	}
}

/* --- errors -------------------------------------------------------------------------------- */

static void expect_error(graph *g, status s, const char *words)
{
	error err = ERROR_INIT;
	assert_int_equal(graph_status(g, &err), s);
	assert_non_null(strstr(err.message, words));
	graph_free(g);
}

static void a_graph_is_pulled_back_once(void **state)
{
	(void)state;
	graph *g = graph_new();
	const value x = op_scale(g, graph_input(g, "x", DTYPE_F32, SHAPE1(2)), 2), y = op_tanh(g, x);
	assert_int_equal(graph_pull_back(g, y, y, &x, 1, (graph_rule){0}), STATUS_OK);
	assert_int_equal(graph_pull_back(g, y, y, &x, 1, (graph_rule){0}), STATUS_INVALID);
	expect_error(g, STATUS_INVALID, "once");
}

static void dy_must_have_the_shape_of_the_score(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		graph *g = graph_new();
		const value x = op_scale(g, graph_input(g, "x", DTYPE_F32, SHAPE1(2)), 2), y = op_tanh(g, x);
		const value dy[] = {VALUE_NONE, graph_input(g, "short", DTYPE_F32, SHAPE1(1)),
		                    graph_input(g, "integers", DTYPE_I32, SHAPE1(2))};
		assert_int_equal(graph_pull_back(g, y, dy[i], &x, 1, (graph_rule){0}), STATUS_INVALID);
		expect_error(g, STATUS_INVALID, "of one shape");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_parts_of_a_frozen_network_sum_to_the_score),
	    cmocka_unit_test(the_share_of_gates_changes_the_tokens_parts),
	    cmocka_unit_test(parts_are_the_same_with_recomputed_activations),
	    cmocka_unit_test(without_freezing_the_result_is_the_gradient_of_the_score),
	    cmocka_unit_test(parts_passed_back_through_attention_weights_sum_to_those_received),
	    cmocka_unit_test(a_graph_is_pulled_back_once),
	    cmocka_unit_test(dy_must_have_the_shape_of_the_score),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
