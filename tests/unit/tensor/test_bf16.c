/* bf16 in graphs: the types that ops take and give, and those of gradients. Also the two uses of bf16 that every
 * backend has: cast and the optimizer's copy. test_ops.c tests kernels in bf16. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/panel.h"
#include "engine/tensor/plan.h"
#include "tests/unit/support/backends.h"
#include "tests/unit/support/bf16_backend.h"

#define F DTYPE_F32
#define H DTYPE_BF16
#define I DTYPE_I32

/* --- the types of every op ------------------------------------------------------------- */

enum { B = 2, N = 3, D = 4, HEADS = 2, V = 5 };

/* One application of an op: the types and shapes of its inputs (in order; type -1: absent), and the types of its
 * results or the argument that its error names. */
typedef struct typed {
	op_id id;
	const void *params;
	struct {
		int type;
		shape shape;
	} in[OP_MAX_INPUTS];
	const char *blames; /* NULL: accepted */
	dtype out[OP_MAX_OUTPUTS];
} typed;

#define MATRIX SHAPE2(B *N, D)
#define TOKENS SHAPE3(B, N, D)
#define QKV SHAPE3(B, N, 3 * D)
#define PER_HEAD SHAPE3(B, N, HEADS)
#define ROW SHAPE1(D)
#define ROWS SHAPE1(B *N)
#define INDEX SHAPE1(V)
#define NONE -1, SHAPE0()

static const gather_params gathered = {-1};
static const gather_grad_params scattered = {V, -1};
static const cast_params to_f32 = {F}, to_bf16 = {H}, to_i32 = {I}, to_panel = {DTYPE_PANEL_BF16};
static const scale_params scaled = {2};
static const matmul_params plain = {.alpha = 1}, transposed = {.trans_b = true, .alpha = 1},
                           wide = {true, false, true, 1};
static const layernorm_params normed = {.eps = 1e-5f};
static const layernorm_grad_params not_frozen = {0};
static const secant_params at_zero = {0.5f};
static const linear_params biased = {.alpha = 1};
static const gelu_params erf_form = {false};
static const dropout_params dropped = {0.1f, 1};
static const additive_attention_params pooled = {.heads = HEADS, .window = 2};
static const additive_stream_params streamed = {HEADS, 1, 0};
static const softmax_params softmax = {.heads = HEADS, .scale = 1};
static const softmax_stream_params cached = {.heads = HEADS, .window = 1, .scale = 1};
static const source_params encoded = {.heads = HEADS, .value_width = D, .capacity = N, .scale = 1};
static const dilated_params dilated = {.pattern = {1, {2}, {1}, DILATED_BLOCK}, .heads = HEADS, .scale = 1};
static const linear_attention_params attended = {HEADS, true, LINEAR_ATTENTION_EPS};
static const linear_stream_params summed = {HEADS, 0, LINEAR_ATTENTION_EPS};
static const linear_cross_entropy_params loss = {1, 0};
static const adamw_params adam = {0.9f, 0.999f, 1e-8f, 0, 0, false};
static const sgd_params descent = {0.9f, 0, 0, false};
static const normalized_sgd_params stepped = {0.99f, 0, false};
static const row_squares_params squared = {B};

/* clang-format off */
static const typed table[] = {
    {OP_gather, &gathered, {{H, MATRIX}, {I, INDEX}}, NULL, {H}},
    {OP_gather, &gathered, {{F, MATRIX}, {I, INDEX}}, NULL, {F}},
    {OP_gather, &gathered, {{DTYPE_PANEL_BF16, MATRIX}, {I, INDEX}}, NULL, {F}},
    {OP_gather, &gathered, {{I, MATRIX}, {I, INDEX}}, NULL, {I}},
    {OP_gather, &gathered, {{NONE}, {I, INDEX}}, "table", {0}},
    {OP_gather_grad, &scattered, {{I, INDEX}, {H, SHAPE2(V, D)}}, NULL, {F}},
    {OP_gather_grad, &scattered, {{I, INDEX}, {I, SHAPE2(V, D)}}, "dy", {0}},
    {OP_cast, &to_f32, {{H, MATRIX}}, NULL, {F}},
    {OP_cast, &to_bf16, {{F, MATRIX}}, NULL, {H}},
    {OP_cast, &to_bf16, {{H, MATRIX}}, NULL, {H}},
    {OP_cast, &to_f32, {{F, MATRIX}}, NULL, {F}},
    {OP_cast, &to_f32, {{I, MATRIX}}, "x", {0}},
    {OP_cast, &to_i32, {{F, MATRIX}}, "type", {0}},
    {OP_cast, &to_panel, {{F, MATRIX}}, "type", {0}},
    {OP_cast, &to_f32, {{DTYPE_PANEL_INT8, MATRIX}}, "x", {0}},
    {OP_add, NULL, {{H, MATRIX}, {H, MATRIX}}, NULL, {H}},
    {OP_add, NULL, {{H, MATRIX}, {F, MATRIX}}, "b", {0}},
    {OP_add, NULL, {{F, MATRIX}, {H, MATRIX}}, "b", {0}},
    {OP_add, NULL, {{I, MATRIX}, {I, MATRIX}}, "a", {0}},
    {OP_mul, NULL, {{H, MATRIX}, {H, MATRIX}}, NULL, {H}},
    {OP_mul, NULL, {{F, MATRIX}, {H, MATRIX}}, "b", {0}},
    {OP_gate, NULL, {{H, MATRIX}, {H, MATRIX}, {H, MATRIX}}, NULL, {H}},
    {OP_gate, NULL, {{H, MATRIX}, {H, MATRIX}, {F, MATRIX}}, "c", {0}},
    {OP_scale, &scaled, {{H, MATRIX}}, NULL, {H}},
    {OP_scale, &scaled, {{I, MATRIX}}, "x", {0}},
    {OP_scale_by, NULL, {{H, MATRIX}, {F, SHAPE0()}}, NULL, {H}},
    {OP_scale_by, NULL, {{H, MATRIX}, {H, SHAPE0()}}, "s", {0}},
    {OP_sum_rows, &scaled, {{H, MATRIX}}, NULL, {F}},
    {OP_sum_rows, &scaled, {{I, MATRIX}}, "x", {0}},
    {OP_matmul, &transposed, {{H, MATRIX}, {H, SHAPE2(V, D)}}, NULL, {H}},
    {OP_matmul, &transposed, {{H, MATRIX}, {F, SHAPE2(V, D)}}, "b", {0}},
    {OP_matmul, &transposed, {{I, MATRIX}, {F, SHAPE2(V, D)}}, "a", {0}},
    {OP_matmul, &plain, {{F, MATRIX}, {DTYPE_PANEL_BF16, SHAPE2(D, V)}}, NULL, {F}},
    {OP_matmul, &plain, {{H, MATRIX}, {DTYPE_PANEL_BF16, SHAPE2(D, V)}}, "b", {0}},
    {OP_matmul, &transposed, {{F, MATRIX}, {DTYPE_PANEL_BF16, SHAPE2(V, D)}}, "b", {0}},
    {OP_matmul, &wide, {{H, MATRIX}, {H, MATRIX}}, NULL, {F}},
    {OP_matmul, &wide, {{F, MATRIX}, {F, MATRIX}}, NULL, {F}},
    {OP_linear, &biased, {{H, MATRIX}, {H, SHAPE2(V, D)}, {F, SHAPE1(V)}}, NULL, {H}},
    {OP_linear, &biased, {{F, MATRIX}, {DTYPE_PANEL_INT8, SHAPE2(V, D)}, {F, SHAPE1(V)}}, NULL, {F}},
    {OP_linear, &biased, {{H, MATRIX}, {F, SHAPE2(V, D)}, {NONE}}, "weight", {0}},
    {OP_linear, &biased, {{F, MATRIX}, {H, SHAPE2(V, D)}, {NONE}}, "weight", {0}},
    {OP_linear, &biased, {{H, MATRIX}, {DTYPE_PANEL_BF16, SHAPE2(V, D)}, {NONE}}, "x", {0}},
    {OP_linear, &biased, {{H, MATRIX}, {H, SHAPE2(V, D)}, {H, SHAPE1(V)}}, "bias", {0}},
    {OP_layernorm, &normed, {{H, MATRIX}, {F, ROW}, {F, ROW}}, NULL, {H, F, F}},
    {OP_layernorm, &normed, {{H, MATRIX}, {H, ROW}, {F, ROW}}, "weight", {0}},
    {OP_layernorm, &normed, {{I, MATRIX}, {F, ROW}, {F, ROW}}, "x", {0}},
    {OP_layernorm_grad, &not_frozen, {{H, MATRIX}, {F, ROW}, {F, ROWS}, {F, ROWS}, {H, MATRIX}}, NULL, {H, F, F}},
    {OP_layernorm_grad, &not_frozen, {{H, MATRIX}, {F, ROW}, {H, ROWS}, {F, ROWS}, {H, MATRIX}}, "mean", {0}},
    {OP_layernorm_grad, &not_frozen, {{H, MATRIX}, {F, ROW}, {F, ROWS}, {F, ROWS}, {F, MATRIX}}, "dy", {0}},
    {OP_gelu, &erf_form, {{H, MATRIX}}, NULL, {H}},
    {OP_gelu, &erf_form, {{I, MATRIX}}, "x", {0}},
    {OP_gelu_grad, &erf_form, {{H, MATRIX}, {H, MATRIX}}, NULL, {H}},
    {OP_gelu_grad, &erf_form, {{H, MATRIX}, {F, MATRIX}}, "dy", {0}},
    {OP_dropout, &dropped, {{H, MATRIX}, {I, SHAPE1(4)}}, NULL, {H}},
    {OP_dropout, &dropped, {{I, MATRIX}, {I, SHAPE1(4)}}, "x", {0}},
    {OP_additive_attention, &pooled, {{H, TOKENS}, {F, ROW}}, NULL, {H, F, F}},
    {OP_additive_attention, &pooled, {{H, TOKENS}, {H, ROW}}, "w", {0}},
    {OP_additive_attention, &pooled, {{I, TOKENS}, {F, ROW}}, "x", {0}},
    {OP_additive_attention_grad, &pooled,
     {{H, TOKENS}, {F, ROW}, {NONE}, {H, TOKENS}, {F, PER_HEAD}, {H, TOKENS}}, NULL, {H, F}},
    {OP_additive_attention_grad, &pooled,
     {{H, TOKENS}, {F, ROW}, {NONE}, {F, TOKENS}, {F, PER_HEAD}, {H, TOKENS}}, "g", {0}},
    {OP_additive_attention_grad, &pooled,
     {{H, TOKENS}, {F, ROW}, {NONE}, {H, TOKENS}, {F, PER_HEAD}, {F, TOKENS}}, "dg", {0}},
    {OP_softmax_attention, &softmax, {{H, QKV}}, NULL, {H, F}},
    {OP_softmax_attention, &softmax, {{I, QKV}}, "qkv", {0}},
    {OP_softmax_attention, &softmax, {{H, TOKENS}, {F, TOKENS}, {H, TOKENS}}, "k", {0}},
    {OP_softmax_attention, &softmax, {{F, TOKENS}, {F, TOKENS}, {H, TOKENS}}, "v", {0}},
    {OP_softmax_attention, &softmax, {{H, QKV}, {NONE}, {NONE}, {NONE}, {H, SHAPE2(9, HEADS)}}, "bias", {0}},
    {OP_softmax_attention, &softmax, {{H, QKV}, {NONE}, {NONE}, {NONE}, {F, SHAPE2(9, HEADS)}}, NULL, {H, F}},
    {OP_softmax_attention_grad, &softmax,
     {{H, QKV}, {NONE}, {NONE}, {NONE}, {NONE}, {NONE}, {H, TOKENS}, {F, PER_HEAD}, {H, TOKENS}}, NULL, {H, H, H, F}},
    {OP_softmax_attention_grad, &softmax,
     {{H, QKV}, {NONE}, {NONE}, {NONE}, {NONE}, {NONE}, {F, TOKENS}, {F, PER_HEAD}, {H, TOKENS}}, "y", {0}},
    {OP_softmax_attention_grad, &softmax,
     {{H, QKV}, {NONE}, {NONE}, {NONE}, {NONE}, {NONE}, {H, TOKENS}, {F, PER_HEAD}, {F, TOKENS}}, "dy", {0}},
    {OP_dilated_attention, &dilated, {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}}, NULL, {H, F}},
    {OP_dilated_attention, &dilated, {{H, TOKENS}, {H, TOKENS}, {F, TOKENS}}, "v", {0}},
    {OP_dilated_attention, &dilated, {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}, {NONE}, {H, SHAPE1(1)}}, "mixture", {0}},
    {OP_linear_attention, &attended, {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}}, NULL, {H, F}},
    {OP_linear_attention, &attended, {{H, TOKENS}, {F, TOKENS}, {H, TOKENS}}, "k", {0}},
    {OP_linear_attention, &attended, {{H, TOKENS}, {H, TOKENS}, {F, TOKENS}}, "v", {0}},
    {OP_linear_attention, &attended, {{I, TOKENS}, {I, TOKENS}, {I, TOKENS}}, "q", {0}},
    {OP_linear_attention_grad, &attended,
     {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}, {NONE}, {H, TOKENS}, {F, PER_HEAD}, {H, TOKENS}}, NULL, {H, H, H}},
    {OP_linear_attention_grad, &attended,
     {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}, {NONE}, {H, TOKENS}, {H, PER_HEAD}, {H, TOKENS}}, "normalizer", {0}},
    {OP_linear_attention_grad, &attended,
     {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}, {NONE}, {H, TOKENS}, {F, PER_HEAD}, {F, TOKENS}}, "dy", {0}},
    {OP_linear_cross_entropy, &loss,
     {{H, MATRIX}, {H, SHAPE2(V, D)}, {F, SHAPE1(V)}, {I, ROWS}}, NULL, {F, F, H, F, F}},
    {OP_linear_cross_entropy, &loss, {{H, MATRIX}, {F, SHAPE2(V, D)}, {NONE}, {I, ROWS}}, "weight", {0}},
    {OP_linear_cross_entropy, &loss, {{H, MATRIX}, {DTYPE_PANEL_F32, SHAPE2(V, D)}, {NONE}, {I, ROWS}}, "hidden", {0}},
    {OP_linear_cross_entropy, &loss, {{I, MATRIX}, {F, SHAPE2(V, D)}, {NONE}, {I, ROWS}}, "hidden", {0}},
    /* ops that compute only in f32 */
    {OP_secant_grad, &at_zero, {{H, MATRIX}, {H, MATRIX}, {H, MATRIX}}, "x", {0}},
    {OP_secant_grad, &at_zero, {{F, MATRIX}, {H, MATRIX}, {F, MATRIX}}, "y", {0}},
    {OP_secant_grad, &at_zero, {{F, MATRIX}, {F, MATRIX}, {F, ROW}}, "dy", {0}},
    {OP_dot_rows, &scaled, {{H, MATRIX}, {H, MATRIX}}, "a", {0}},
    {OP_dot_rows, &scaled, {{F, MATRIX}, {H, ROW}}, "b", {0}},
    {OP_dot_rows, &scaled, {{F, MATRIX}, {F, SHAPE1(V)}}, "b", {0}},
    {OP_dot_rows, &scaled, {{F, TOKENS}, {F, MATRIX}}, NULL, {F}},
    {OP_sum_squares, NULL, {{H, MATRIX}}, "x", {0}},
    {OP_additive_stream, &streamed,
     {{H, TOKENS}, {F, ROW}, {F, SHAPE2(B, 1)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}}, "x", {0}},
    {OP_softmax_stream, &cached,
     {{H, QKV}, {NONE}, {NONE}, {F, SHAPE2(B, 99)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}}, "qkv", {0}},
    {OP_softmax_stream, &cached,
     {{F, TOKENS}, {H, TOKENS}, {F, TOKENS}, {F, SHAPE2(B, 99)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}}, "k", {0}},
    {OP_source_store, &encoded, {{F, TOKENS}, {H, TOKENS}, {F, SHAPE2(B, 999)}, {I, SHAPE1(B)}}, "v", {0}},
    {OP_source_attention, &encoded, {{H, TOKENS}, {F, SHAPE2(B, 999)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}}, "q", {0}},
    {OP_linear_stream, &summed,
     {{H, TOKENS}, {H, TOKENS}, {H, TOKENS}, {F, SHAPE2(B, 99)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}, {I, SHAPE1(B)}}, "q", {0}},
    {OP_linear_stream_grad, &summed, {{H, TOKENS}}, "q", {0}},
    {OP_accumulate, &scaled, {{F, MATRIX}, {H, MATRIX}}, "x", {0}},
    {OP_lerp, NULL, {{F, MATRIX}, {H, MATRIX}, {F, SHAPE0()}}, "x", {0}},
    {OP_lerp, NULL, {{F, MATRIX}, {F, MATRIX}, {F, SHAPE1(2)}}, "rate", {0}},
    {OP_adamw, &adam, {{F, ROW}, {F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}, {NONE}, {F, SHAPE1(99)}}, "factors", {0}},
    {OP_adamw, &adam, {{F, ROW}, {H, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}}, "g", {0}},
    {OP_adamw, &adam, {{H, ROW}, {F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}}, "p", {0}},
    {OP_adamw, &adam, {{F, ROW}, {F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}, {H, ROW}}, NULL, {0}},
    {OP_adamw, &adam, {{F, ROW}, {F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}, {F, ROW}}, "narrow", {0}},
    {OP_adamw, &adam,
     {{F, ROW}, {F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}, {H, SHAPE1(3)}}, "narrow", {0}},
    {OP_sgd, &descent, {{F, ROW}, {H, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}}, "g", {0}},
    {OP_sgd, &descent, {{F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}, {H, ROW}}, NULL, {0}},
    {OP_sgd, &descent, {{F, ROW}, {F, ROW}, {F, ROW}, {F, SHAPE0()}, {F, SHAPE1(2)}, {H, SHAPE1(3)}}, "narrow", {0}},
    {OP_row_squares, &squared, {{F, ROW}, {I, SHAPE2(1, 4)}}, NULL, {F, F}},
    {OP_row_squares, &squared, {{H, ROW}, {I, SHAPE2(1, 4)}}, "x", {0}},
    {OP_row_squares, &squared, {{F, ROW}, {I, SHAPE2(1, 3)}}, "spans", {0}},
    {OP_row_squares, &squared, {{F, ROW}, {I, SHAPE2(B + 1, 4)}}, "spans", {0}},
    {OP_normalized_sgd, &stepped,
     {{F, ROW}, {F, ROW}, {F, SHAPE1(2)}, {F, SHAPE1(2)}, {F, SHAPE1(1)}, {I, SHAPE2(1, 4)}, {F, SHAPE0()}, {F, SHAPE1(2)}, {H, ROW}}, NULL, {0}},
    {OP_normalized_sgd, &stepped,
     {{F, ROW}, {F, ROW}, {F, SHAPE1(2)}, {F, SHAPE1(3)}, {F, SHAPE1(1)}, {I, SHAPE2(1, 4)}, {F, SHAPE0()}, {F, SHAPE1(2)}}, "rows", {0}},
    {OP_normalized_sgd, &stepped,
     {{F, ROW}, {F, ROW}, {F, SHAPE1(2)}, {F, SHAPE1(2)}, {F, SHAPE1(2)}, {I, SHAPE2(1, 4)}, {F, SHAPE0()}, {F, SHAPE1(2)}}, "tensors", {0}},
};
/* clang-format on */

/* A check reads no data, so any address is a present argument. Inputs that a row does not list are zeroed, so optional
 * ones are absent. */
static op_call call_of(const typed *t)
{
	const op *o = op_get(t->id);
	op_call call = {.params = t->params, .n_in = o->max_in, .n_out = o->n_out};
	for (int i = 0; i < o->max_in; i++)
		if (t->in[i].type >= 0 && (t->in[i].type > 0 || t->in[i].shape.rank > 0 || i < o->min_in))
			call.in[i] = (tensor){&call, (dtype)t->in[i].type, t->in[i].shape};
	return call;
}

static void ops_keep_the_type_of_activations_and_refuse_a_mixture(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
		const typed *t = &table[i];
		error err = ERROR_INIT;
		op_call call = call_of(t);
		status s = op_get(t->id)->check(&call, &err);
		if (s != (t->blames ? STATUS_INVALID : STATUS_OK) || strcmp(err.param, t->blames ? t->blames : "") != 0)
			fail_msg("row %zu, %s: status %d, \"%s\" about \"%s\"", i, op_get(t->id)->name, (int)s,
			         err.message, err.param);
		assert_true(!t->blames || strstr(err.message, t->blames));
		for (int k = 0; k < call.n_out && !t->blames; k++)
			if (call.out[k].type != t->out[k])
				fail_msg("row %zu, %s: output %d is %s", i, op_get(t->id)->name, k,
				         dtype_name(call.out[k].type));
	}
}

static void the_error_of_a_mixture_names_both_types(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	graph *g = graph_new();
	op_linear(g, graph_input(g, "h", H, MATRIX), graph_input(g, "e", F, SHAPE2(V, D)), VALUE_NONE, 1);
	assert_int_equal(graph_status(g, &err), STATUS_INVALID);
	assert_string_equal(err.message, "linear: weight is f32, must be bf16 like x");
	graph_free(g);
}

/* --- gradients -------------------------------------------------------------------------------- */

static dtype gradient_type(const graph *g, value v)
{
	value gradient = graph_gradient(g, v);
	assert_int_not_equal(gradient, VALUE_NONE);
	assert_int_equal(graph_value(g, gradient)->type, graph_gradient_type(g, v));
	return graph_value(g, gradient)->type;
}

static int count_nodes(const graph *g, op_id id)
{
	int n = 0;
	for (int i = 0; i < graph_node_count(g); i++)
		n += graph_node(g, i)->id == id;
	return n;
}

/* Parameters: a table that is also the vocabulary product, a matrix and a vector; and an activation. */
static void a_parameters_gradient_is_f32_and_an_activations_has_its_type(void **state)
{
	(void)state;
	error err = ERROR_INIT;
	graph *g = graph_new();
	value words = graph_weight(g, "words", H, SHAPE2(V, D)), w = graph_weight(g, "w", H, SHAPE2(D, D));
	value bias = graph_weight(g, "bias", F, ROW), given = graph_input(g, "given", H, TOKENS);
	graph_want_gradient(g, given);
	value h = op_add(g, op_gather(g, words, graph_input(g, "ids", I, SHAPE2(B, N)), 0), given);
	value y = op_gelu(g, op_linear(g, h, w, bias, 1), false);
	value labels = graph_input(g, "labels", I, SHAPE2(B, N));
	linear_cross_entropy_values out = op_linear_cross_entropy(g, y, words, VALUE_NONE, labels, VALUE_NONE, loss);
	graph_backward(g, out.loss);
	assert_int_equal(graph_status(g, &err), STATUS_OK);
	assert_int_equal(gradient_type(g, words), F);
	assert_int_equal(gradient_type(g, w), F);
	assert_int_equal(gradient_type(g, bias), F);
	assert_int_equal(gradient_type(g, given), H);
	assert_int_equal(gradient_type(g, h), H);
	assert_int_equal(gradient_type(g, y), H);
	/* No gradient of a weight is rounded in between. */
	assert_int_equal(count_nodes(g, OP_cast), 0);
	/* The two uses of the table are added in f32. */
	const op_node *sum = graph_node(g, graph_value(g, graph_gradient(g, words))->producer);
	assert_int_equal(sum->id, OP_add);
	assert_int_equal(graph_value(g, sum->in[0])->type, F);
	graph_free(g);
}

static void a_product_of_parameters_has_wide_gradients(void **state)
{
	(void)state;
	for (int trans = 0; trans < 4; trans++) {
		graph *g = graph_new();
		value a = graph_weight(g, "a", H, SHAPE2(D, D)), b = graph_weight(g, "b", H, SHAPE2(D, D));
		value c = op_cast(g, op_matmul(g, a, b, trans & 1, trans & 2, 1), F);
		value u = graph_input(g, "u", F, SHAPE2(1, D)), v = graph_input(g, "v", F, SHAPE2(D, 1));
		graph_backward(g, op_matmul(g, op_matmul(g, u, c, false, false, 1), v, false, false, 1));
		assert_int_equal(graph_status(g, NULL), STATUS_OK);
		assert_int_equal(gradient_type(g, a), F);
		assert_int_equal(gradient_type(g, b), F);
		const op_node *da = graph_node(g, graph_value(g, graph_gradient(g, a))->producer);
		assert_int_equal(da->id, OP_matmul);
		assert_true(((const matmul_params *)da->params)->wide);
		graph_free(g);
	}
}

/* An activation used as a weight: its wide gradient is cast back to its type. */
static void a_wide_contribution_to_an_activation_is_cast(void **state)
{
	(void)state;
	graph *g = graph_new();
	value x = graph_input(g, "x", H, MATRIX), w = graph_input(g, "w", H, SHAPE2(V, D));
	value at = graph_input(g, "at", I, SHAPE1(2));
	graph_want_gradient(g, x);
	graph_want_gradient(g, w);
	value y = op_matmul_wide(g, op_gather(g, op_linear(g, x, w, VALUE_NONE, 1), at, -1), w, false, false, 1);
	value u = graph_input(g, "u", F, SHAPE2(1, 2)), v = graph_input(g, "v", F, SHAPE2(D, 1));
	graph_backward(g, op_matmul(g, op_matmul(g, u, y, false, false, 1), v, false, false, 1));
	assert_int_equal(graph_status(g, NULL), STATUS_OK);
	assert_int_equal(gradient_type(g, x), H);
	assert_int_equal(gradient_type(g, w), H);
	graph_free(g);
}

static void packed_weights_and_integers_have_no_gradient(void **state)
{
	(void)state;
	graph *g = graph_new();
	graph_want_gradient(g, graph_input(g, "ids", I, ROWS));
	assert_int_equal(graph_status(g, NULL), STATUS_INVALID);
	graph_free(g);
	g = graph_new();
	value w = graph_weight(g, "w", DTYPE_PANEL_BF16, SHAPE2(1, D));
	value x = graph_weight(g, "x", F, SHAPE2(1, D));
	graph_backward(g, op_linear(g, x, w, VALUE_NONE, 1));
	assert_int_equal(graph_gradient(g, w), VALUE_NONE);
	graph_free(g);
}

/* --- a backend without it ------------------------------------------------------------------------ */

static status plan_on(backend *b, void (*build)(graph *g), error *err)
{
	plan *p;
	graph *g = graph_new();
	build(g);
	status s = plan_new(&p, g, b, NULL, 0, err);
	plan_free(p);
	return s;
}

static void adds_in_bf16(graph *g)
{
	value x = graph_input(g, "x", H, MATRIX);
	graph_output(g, op_cast(g, op_add(g, x, x), F), "y");
}

static void narrows_before_it_computes(graph *g)
{
	value x = op_cast(g, graph_input(g, "x", F, MATRIX), H);
	graph_output(g, op_sum_rows(g, x, 1), "y");
}

static void only_casts(graph *g)
{
	value x = op_cast(g, graph_input(g, "x", F, MATRIX), H);
	graph_output(g, op_cast(g, x, F), "y");
	op_add(g, x, x); /* its result is not used */
}

static void a_backend_without_bf16_converts_and_refuses_to_compute(void **state)
{
	const backends *b = *state;
	void (*const refused[])(graph *) = {adds_in_bf16, narrows_before_it_computes};
	for (int i = 0; i < 2; i++) {
		assert_false(b->each[i]->bf16);
		for (int k = 0; k < 2; k++) {
			error err = ERROR_INIT;
			assert_int_equal(plan_on(b->each[i], refused[k], &err), STATUS_UNSUPPORTED);
			assert_string_equal(err.message, "the cpu backend computes in f32 only");
		}
		assert_int_equal(plan_on(b->each[i], only_casts, NULL), STATUS_OK);
	}
	backend *inner;
	assert_int_equal(cpu_reference_open(&inner, 0, NULL), STATUS_OK);
	backend *has_it = bf16_backend_new(inner);
	for (int k = 0; k < 2; k++)
		assert_int_equal(plan_on(has_it, refused[k], NULL), STATUS_OK);
	backend_close(has_it);
}

/* --- values ---------------------------------------------------------------------------------------- */

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static float float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* Ties go to the even neighbour, values that round above the largest number become infinite, and every NaN stays a
 * NaN. */
static void a_cast_rounds_to_the_nearest_even(void **state)
{
	const backends *b = *state;
	static const struct {
		uint32_t from;
		uint16_t to;
	} pairs[] = {
	    {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80},
	    {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81}, {0xbf808000, 0xbf80},
	    {0xbf818000, 0xbf82}, {0x7f7f0000, 0x7f7f}, {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80},
	    {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
	    {0x00008000, 0x0000}, {0x00018000, 0x0002}, {0x007fffff, 0x0080}, {0x00000001, 0x0000},
	};
	static const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0xffc00000, 0xff80ffff};
	enum { PAIRS = sizeof pairs / sizeof pairs[0], NANS = sizeof nans / sizeof nans[0], COUNT = PAIRS + NANS };
	for (int i = 0; i < 2; i++) {
		float x[COUNT], back[COUNT];
		uint16_t y[COUNT];
		for (int k = 0; k < COUNT; k++)
			x[k] = float_of(k < PAIRS ? pairs[k].from : nans[k - PAIRS]);
		graph *g = graph_new();
		value from = graph_input(g, "x", F, SHAPE1(COUNT)), to = op_cast(g, from, H);
		value again = op_cast(g, to, F);
		plan *p;
		assert_int_equal(
		    plan_new(&p, g, b->each[i], (plan_binding[]){{from, x}, {to, y}, {again, back}}, 3, NULL),
		    STATUS_OK);
		assert_int_equal(plan_run(p), STATUS_OK);
		plan_free(p);
		for (int k = 0; k < COUNT; k++) {
			assert_int_equal(bits_of(back[k]), (uint32_t)y[k] << 16);
			if (k < PAIRS)
				assert_int_equal(y[k], pairs[k].to);
			else
				assert_true(isnan(back[k]));
		}
	}
}

/* The copy has the rounded weights, also when the update was skipped. */
static void an_optimizer_writes_the_copy(void **state)
{
	const backends *b = *state;
	enum { COUNT = 37 };
	for (int i = 0; i < 8; i++) {
		float p[COUNT], grad[COUNT], m[COUNT] = {0}, v[COUNT] = {0}, hyper[] = {1e-2f, 1};
		float norm2 = i & 1 ? INFINITY : 1;
		uint16_t copy[COUNT + 1];
		memset(copy, 0xff, sizeof copy);
		for (int k = 0; k < COUNT; k++) {
			p[k] = 1.0f + (float)k * 0.0037f;
			grad[k] = (float)(k - 11);
		}
		graph *g = graph_new();
		value bound[] = {graph_state(g, "p", SHAPE1(COUNT)),    graph_input(g, "g", F, SHAPE1(COUNT)),
		                 graph_state(g, "m", SHAPE1(COUNT)),    graph_state(g, "v", SHAPE1(COUNT)),
		                 graph_input(g, "norm2", F, SHAPE0()),  graph_input(g, "hyper", F, SHAPE1(2)),
		                 graph_weight(g, "c", H, SHAPE1(COUNT))};
		if (i & 4)
			op_sgd(g, bound[0], bound[1], bound[2], bound[4], bound[5], bound[6], VALUE_NONE, descent);
		else
			op_adamw(g, bound[0], bound[1], bound[2], bound[3], bound[4], bound[5], bound[6], VALUE_NONE,
			         adam);
		void *data[] = {p, grad, m, v, &norm2, hyper, copy};
		plan_binding bindings[7];
		for (int k = 0; k < 7; k++)
			bindings[k] = (plan_binding){bound[k], data[k]};
		plan *update;
		assert_int_equal(plan_new(&update, g, b->each[i / 2 % 2], bindings, 7, NULL), STATUS_OK);
		assert_int_equal(plan_run(update), STATUS_OK);
		plan_free(update);
		assert_true(i & 1 ? p[0] == 1.0f : p[0] != 1.0f);
		for (int k = 0; k < COUNT; k++)
			assert_int_equal(copy[k], panel_bf16(p[k]));
		assert_int_equal(copy[COUNT], 0xffff);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(ops_keep_the_type_of_activations_and_refuse_a_mixture),
	    cmocka_unit_test(the_error_of_a_mixture_names_both_types),
	    cmocka_unit_test(a_parameters_gradient_is_f32_and_an_activations_has_its_type),
	    cmocka_unit_test(a_product_of_parameters_has_wide_gradients),
	    cmocka_unit_test(a_wide_contribution_to_an_activation_is_cast),
	    cmocka_unit_test(packed_weights_and_integers_have_no_gradient),
	    cmocka_unit_test(a_backend_without_bf16_converts_and_refuses_to_compute),
	    cmocka_unit_test(a_cast_rounds_to_the_nearest_even),
	    cmocka_unit_test(an_optimizer_writes_the_copy),
	};
	return cmocka_run_group_tests(tests, open_backends, close_backends);
}
