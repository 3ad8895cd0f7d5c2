/* Over 600 lines: a table of cases, and the builder of the graph of each.
 * Shapes are small and odd, so that every vector width has a remainder: 0, 1, 3, 31, 33. */
#include "tests/unit/support/op_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/sample.h"
#include "engine/tensor/panel.h"
#include "tests/unit/support/random.h"

static value f32(graph *g, const char *name, shape s)
{
	return graph_input(g, name, DTYPE_F32, s);
}

/* A [real] input, of the case's type. */
static value real(graph *g, const int64_t *arg, const char *name, shape s)
{
	return graph_input(g, name, (dtype)arg[OP_CASE_REAL], s);
}

static value i32(graph *g, const char *name, shape s)
{
	return graph_input(g, name, DTYPE_I32, s);
}

/* --- one builder per op; what arg means stands in its first line ------------------ */

static void build_gather(graph *g, const int64_t *arg) /* rows, width, indices, padding row */
{
	op_gather(g, real(g, arg, "table", SHAPE2(arg[0], arg[1])), i32(g, "index", SHAPE2(1, arg[2])), arg[3]);
}

static void build_gather_deep(graph *g, const int64_t *arg) /* batch, length, width, indices */
{
	op_gather(g, real(g, arg, "table", SHAPE3(arg[0], arg[1], arg[2])), i32(g, "index", SHAPE1(arg[3])), -1);
}

static void build_gather_panels(graph *g, const int64_t *arg) /* rows, width, indices, type */
{
	op_gather(g, graph_weight(g, "table", (dtype)arg[3], SHAPE2(arg[0], arg[1])), i32(g, "index", SHAPE1(arg[2])),
	          -1);
}

static void build_gather_grad(graph *g, const int64_t *arg) /* rows, width, indices, padding row */
{
	op_gather_grad(g, i32(g, "index", SHAPE1(arg[2])), real(g, arg, "dy", SHAPE2(arg[2], arg[1])), arg[0], arg[3]);
}

static void build_gather_grad_deep(graph *g, const int64_t *arg) /* batch, length, width, indices */
{
	value out, table = real(g, arg, "table", SHAPE3(arg[0], arg[1], arg[2]));
	value in[] = {i32(g, "index", SHAPE1(arg[3])), real(g, arg, "dy", SHAPE2(arg[3], arg[2])), table};
	graph_apply(g, OP_gather_grad, in, 3, &(gather_grad_params){arg[0] * arg[1], -1}, &out);
}

static void build_cast(graph *g, const int64_t *arg) /* rows, width, to; from: OP_CASE_REAL */
{
	op_cast(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), (dtype)arg[2]);
}

static void build_add(graph *g, const int64_t *arg) /* rows, width */
{
	op_add(g, real(g, arg, "a", SHAPE2(arg[0], arg[1])), real(g, arg, "b", SHAPE2(arg[0], arg[1])));
}

static void build_mul(graph *g, const int64_t *arg) /* rows, width */
{
	op_mul(g, real(g, arg, "a", SHAPE2(arg[0], arg[1])), real(g, arg, "b", SHAPE2(arg[0], arg[1])));
}

static void build_square(graph *g, const int64_t *arg) /* rows, width */
{
	value a = real(g, arg, "a", SHAPE2(arg[0], arg[1]));
	op_mul(g, a, a);
}

static void build_gate(graph *g, const int64_t *arg) /* rows, width */
{
	shape s = SHAPE3(1, arg[0], arg[1]);
	op_gate(g, real(g, arg, "a", s), real(g, arg, "b", s), real(g, arg, "c", s));
}

static void build_scale(graph *g, const int64_t *arg) /* rows, width */
{
	op_scale(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), -1.75f);
}

static void build_tanh(graph *g, const int64_t *arg) /* rows, width */
{
	op_tanh(g, real(g, arg, "x wide", SHAPE2(arg[0], arg[1])));
}

static void build_secant_grad(graph *g, const int64_t *arg) /* rows, width */
{
	shape s = SHAPE2(arg[0], arg[1]);
	op_secant_grad(g, f32(g, "x with zeros", s), f32(g, "y", s), f32(g, "dy", s), 0.75f);
}

static void build_scale_by(graph *g, const int64_t *arg) /* rows, width */
{
	op_scale_by(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), f32(g, "s", SHAPE0()));
}

static void build_dot_rows(graph *g, const int64_t *arg) /* rows, width, b is one row */
{
	value a = f32(g, "a", SHAPE3(1, arg[0], arg[1]));
	op_dot_rows(g, a, f32(g, "b", arg[2] ? SHAPE1(arg[1]) : SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_sum_rows(graph *g, const int64_t *arg) /* rows, width */
{
	op_sum_rows(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_matmul(graph *g, const int64_t *arg) /* M, N, K, trans_a, trans_b */
{
	shape a = arg[3] ? SHAPE2(arg[2], arg[0]) : SHAPE2(arg[0], arg[2]);
	shape b = arg[4] ? SHAPE2(arg[1], arg[2]) : SHAPE2(arg[2], arg[1]);
	op_matmul(g, real(g, arg, "a", a), real(g, arg, "b", b), arg[3], arg[4], 0.7f);
}

static void build_matmul_panels(graph *g, const int64_t *arg) /* M, N, K, type of the packed b */
{
	op_matmul(g, f32(g, "a", SHAPE2(arg[0], arg[2])), graph_weight(g, "b", (dtype)arg[3], SHAPE2(arg[2], arg[1])),
	          false, false, 0.7f);
}

static void build_matmul_wide(graph *g, const int64_t *arg) /* M, N, K: of a weight's gradient */
{
	op_matmul_wide(g, real(g, arg, "a", SHAPE2(arg[2], arg[0])), real(g, arg, "b", SHAPE2(arg[2], arg[1])), true,
	               false, 0.7f);
}

static void build_matmul_deep(graph *g, const int64_t *arg) /* batch, length, K, N */
{
	value a = real(g, arg, "a", SHAPE3(arg[0], arg[1], arg[2])), b = real(g, arg, "b", SHAPE2(arg[3], arg[2]));
	op_matmul(g, a, b, false, true, 1);
}

static void build_linear(graph *g, const int64_t *arg) /* rows, outputs, inputs, biased, type of weight */
{
	value x = arg[4] == DTYPE_F32 ? real(g, arg, "x", SHAPE2(arg[0], arg[2])) : f32(g, "x", SHAPE2(arg[0], arg[2]));
	value weight = arg[4] == DTYPE_F32 ? real(g, arg, "weight", SHAPE2(arg[1], arg[2]))
	                                   : graph_weight(g, "weight", (dtype)arg[4], SHAPE2(arg[1], arg[2]));
	op_linear(g, x, weight, arg[3] ? f32(g, "bias", SHAPE1(arg[1])) : VALUE_NONE, -0.7f);
}

static void build_linear_deep(graph *g, const int64_t *arg) /* batch, length, inputs, outputs */
{
	value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2])), w = real(g, arg, "weight", SHAPE2(arg[3], arg[2]));
	op_linear(g, x, w, VALUE_NONE, 1);
}

static void build_layernorm(graph *g, const int64_t *arg) /* rows, width, 1: unbiased */
{
	value (*norm)(graph *, value, value, value, float) = arg[2] ? op_layernorm_unbiased : op_layernorm;
	norm(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), f32(g, "weight", SHAPE1(arg[1])),
	     f32(g, "bias", SHAPE1(arg[1])), 1e-5f);
}

static void build_layernorm_grad(graph *g, const int64_t *arg) /* rows, width, frozen, unbiased */
{
	value x = real(g, arg, "x", SHAPE2(arg[0], arg[1])), weight = f32(g, "weight", SHAPE1(arg[1]));
	value bias = f32(g, "bias", SHAPE1(arg[1])), dy = real(g, arg, "dy", SHAPE2(arg[0], arg[1]));
	value y[3], grads[3];
	graph_apply(g, OP_layernorm, (value[]){x, weight, bias}, 3, &(layernorm_params){1e-5f, arg[3]}, y);
	graph_apply(g, OP_layernorm_grad, (value[]){x, weight, y[1], y[2], dy}, 5,
	            &(layernorm_grad_params){arg[2], arg[3], 1e-5f}, grads);
}

/* rows, width, groups, gain: 0 none, 1 one for all, 2 of each channel; the floor in tenths */
static void normalize_inputs(graph *g, const int64_t *arg, value in[2], normalize_params *p)
{
	*p = (normalize_params){.groups = arg[2], .scale = 3, .floor = arg[4] ? (float)arg[4] / 10 : 1e-5f};
	in[0] = real(g, arg, "x", SHAPE2(arg[0], arg[1]));
	in[1] = arg[3] ? f32(g, "gain", SHAPE1(arg[3] == 1 ? 1 : arg[1])) : VALUE_NONE;
}

static void build_normalize(graph *g, const int64_t *arg)
{
	normalize_params p;
	value in[2];
	normalize_inputs(g, arg, in, &p);
	op_normalize(g, in[0], in[1], p);
}

static void build_normalize_grad(graph *g, const int64_t *arg) /* and frozen */
{
	normalize_params p;
	value in[2], y[2], grads[2];
	normalize_inputs(g, arg, in, &p);
	graph_apply(g, OP_normalize, in, 2, &p, y);
	p.frozen = arg[5];
	graph_apply(g, OP_normalize_grad, (value[]){in[0], in[1], y[1], real(g, arg, "dy", SHAPE2(arg[0], arg[1]))}, 4,
	            &p, grads);
}

static void build_gelu(graph *g, const int64_t *arg) /* rows, width, tanh form */
{
	op_gelu(g, real(g, arg, "x wide", SHAPE2(arg[0], arg[1])), arg[2]);
}

static void build_gelu_grad(graph *g, const int64_t *arg) /* rows, width, tanh form */
{
	value dx;
	value in[] = {real(g, arg, "x wide", SHAPE2(arg[0], arg[1])), real(g, arg, "dy", SHAPE2(arg[0], arg[1]))};
	graph_apply(g, OP_gelu_grad, in, 2, &(gelu_params){arg[2]}, &dx);
}

static void build_activation(graph *g, const int64_t *arg) /* rows, width, kind, content */
{
	static const char *const contents[] = {"x wide feature", "x wide", "x with zeros"};
	op_activation(g, real(g, arg, contents[arg[3]], SHAPE2(arg[0], arg[1])), (activation_kind)arg[2]);
}

static void build_activation_grad(graph *g, const int64_t *arg) /* rows, width, kind, frozen */
{
	value dx, x = real(g, arg, arg[3] ? "x with zeros" : "x wide", SHAPE2(arg[0], arg[1]));
	activation_params p = {(activation_kind)arg[2], arg[3]};
	graph_apply(g, OP_activation_grad, (value[]){x, real(g, arg, "dy", SHAPE2(arg[0], arg[1]))}, 2, &p, &dx);
}

static void build_glu(graph *g, const int64_t *arg) /* rows, width of a half, kind */
{
	op_glu(g, real(g, arg, "x wide feature", SHAPE3(1, arg[0], 2 * arg[1])), (activation_kind)arg[2]);
}

static void build_glu_grad(graph *g, const int64_t *arg) /* rows, width of a half, kind, frozen */
{
	value dx, x = real(g, arg, arg[3] ? "x with zeros" : "x wide", SHAPE3(1, arg[0], 2 * arg[1]));
	glu_params p = {(activation_kind)arg[2], arg[3], 0.3f};
	graph_apply(g, OP_glu_grad, (value[]){x, real(g, arg, "dy", SHAPE2(arg[0], arg[1]))}, 2, &p, &dx);
}

enum { INTERLEAVED = 1, TRANSPOSED = 2, INVERSE = 4, XPOS = 8, POSITIONS = 16 };

/* batch, length, heads, channels of a head, width, flags, first position */
static void build_rotary(graph *g, const int64_t *arg)
{
	const rotary_params p = {.heads = arg[2],
	                         .width = arg[4],
	                         .first = arg[6],
	                         .base = 10000,
	                         .xpos_base = arg[5] & XPOS ? 16 : 0,
	                         .xpos_center = 5,
	                         .inverse_scale = arg[5] & INVERSE,
	                         .interleaved = arg[5] & INTERLEAVED,
	                         .transposed = arg[5] & TRANSPOSED};
	value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2] * arg[3]));
	op_rotary(g, x, arg[5] & POSITIONS ? i32(g, "index", SHAPE2(arg[0], arg[1])) : VALUE_NONE, p);
}

enum { SHARED, EACH, BY_HEADS, INTEGERS }; /* kinds of a prefix */

/* batch, length, channels, rows before, kind; heads 3 */
static void build_join_rows(graph *g, const int64_t *arg)
{
	const shape x = SHAPE3(arg[0], arg[1], arg[2]), rows = SHAPE2(arg[3], arg[2]);
	const shape each = SHAPE3(arg[0], arg[3], arg[2]), by_heads = SHAPE3(3, arg[3], arg[2] / 3);
	const join_rows_params p = {.heads = arg[4] == BY_HEADS ? 3 : 0};
	if (arg[4] == INTEGERS)
		op_join_rows(g, i32(g, "prefix", rows), i32(g, "index", x), p);
	else if (arg[4] == EACH)
		op_join_rows(g, real(g, arg, "prefix", each), real(g, arg, "x", x), p);
	else
		op_join_rows(g, f32(g, "prefix", arg[4] == SHARED ? rows : by_heads), real(g, arg, "x", x), p);
}

static void build_join_rows_grad(graph *g, const int64_t *arg) /* batch, length in all, channels, rows before, kind */
{
	const shape s = SHAPE3(arg[0], arg[1], arg[2]);
	const join_rows_params p = {.heads = arg[4] == BY_HEADS ? 3 : 0, .rows = arg[3], .each = arg[4] == EACH};
	value grads[2], in[] = {real(g, arg, "dy", SHAPE2(arg[0] * arg[1], arg[2])), real(g, arg, "y", s)};
	graph_apply(g, OP_join_rows_grad, in, 2, &p, grads);
}

static void build_slice_rows(graph *g, const int64_t *arg) /* batch, length, channels, first, count, integers */
{
	const shape s = SHAPE3(arg[0], arg[1], arg[2]);
	op_slice_rows(g, arg[5] ? i32(g, "index", s) : real(g, arg, "x", s), arg[3], arg[4]);
}

static void build_slice_rows_grad(graph *g, const int64_t *arg) /* batch, length, channels, first, count */
{
	value dx, x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2]));
	value dy = real(g, arg, "dy", SHAPE3(arg[0], arg[4] == -1 ? arg[1] - arg[3] : arg[4], arg[2]));
	graph_apply(g, OP_slice_rows_grad, (value[]){dy, x}, 2, &(slice_rows_params){arg[3], arg[4]}, &dx);
}

static void build_pad_mask(graph *g, const int64_t *arg) /* batch, length, places before */
{
	op_pad_mask(g, i32(g, "mask", SHAPE2(arg[0], arg[1])), arg[2], 1);
}

static void build_mask_rows(graph *g, const int64_t *arg) /* batch, length, channels */
{
	op_mask_rows(g, real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2])), i32(g, "mask", SHAPE2(arg[0], arg[1])));
}

static void build_scale_columns(graph *g, const int64_t *arg) /* rows, width, group */
{
	op_scale_columns(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), f32(g, "w", SHAPE1(arg[1] / arg[2])), arg[2]);
}

static void build_scale_columns_grad(graph *g, const int64_t *arg) /* rows, width, group */
{
	value dw, in[] = {real(g, arg, "x", SHAPE2(arg[0], arg[1])), real(g, arg, "dy", SHAPE2(arg[0], arg[1]))};
	graph_apply(g, OP_scale_columns_grad, in, 2, &(scale_columns_params){arg[2]}, &dw);
}

static value ragged_mask(graph *g, const int64_t *arg)
{
	return arg[5] ? i32(g, "mask ragged", SHAPE2(1, arg[1])) : VALUE_NONE;
}

static void build_shift_rows(graph *g, const int64_t *arg) /* batch, length, channels, low, high, masked, transposed */
{
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_shift_rows(g, real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2])), mask,
	              (shift_params){arg[3], arg[4], arg[6]});
}

/* batch or sequences, length or tokens in all, channels, high, rows in front, masked; continuing from a state as in
 * stream */
static void shift_stream_case(graph *g, const int64_t *arg, bool ragged)
{
	enum { OFFSET = 5 };
	const shift_stream_params p = {arg[3], OFFSET};
	const shape tokens = SHAPE3(arg[0], arg[1], arg[2]), now = ragged ? SHAPE3(1, arg[1], arg[2]) : tokens;
	const int64_t floats = OFFSET + shift_state_floats(arg[2], p.high) + 1;
	value slot = i32(g, "slot", SHAPE1(arg[0])), pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, floats));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	value front = arg[4] ? f32(g, "front", SHAPE2(arg[4], arg[2])) : VALUE_NONE;
	op_shift_stream(g, f32(g, "x before", tokens), pool, slot, i32(g, "position zero", SHAPE1(arg[0])),
	                i32(g, "length before", SHAPE1(arg[0])), mask, VALUE_NONE, front, p);
	op_shift_stream(g, f32(g, "x", now), pool, slot, i32(g, "position", SHAPE1(arg[0])),
	                i32(g, ragged ? "length ragged" : "length", SHAPE1(arg[0])),
	                ragged ? ragged_mask(g, arg) : mask, ragged ? i32(g, "start", SHAPE1(arg[0])) : VALUE_NONE,
	                front, p);
}

static void build_shift_stream(graph *g, const int64_t *arg)
{
	shift_stream_case(g, arg, false);
}

static void build_ragged_shift_stream(graph *g, const int64_t *arg)
{
	shift_stream_case(g, arg, true);
}

static void build_scale_gradient(graph *g, const int64_t *arg) /* rows, width */
{
	op_scale_gradient(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])),
	                  1); /* any other factor is no gradient of y = x */
}

static void build_gru(graph *g, const int64_t *arg) /* rows, width */
{
	const shape gates = SHAPE2(arg[0], 3 * arg[1]);
	op_gru(g, real(g, arg, "a", gates), real(g, arg, "b", gates), real(g, arg, "h", SHAPE2(arg[0], arg[1])));
}

static void build_gru_grad(graph *g, const int64_t *arg) /* rows, width, frozen */
{
	const shape s = SHAPE2(arg[0], arg[1]), gates = SHAPE2(arg[0], 3 * arg[1]);
	const char *a = arg[2] ? "a with zeros" : "a", *b = arg[2] ? "b with zeros" : "b";
	value in[] = {real(g, arg, a, gates), real(g, arg, b, gates), real(g, arg, "h", s), real(g, arg, "dy", s)};
	value grads[3];
	graph_apply(g, OP_gru_grad, in, 4, &(gru_params){arg[2]}, grads);
}

static void build_dropout(graph *g, const int64_t *arg) /* rows, width, percent, stream */
{
	op_dropout(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), i32(g, "rng", SHAPE1(4)), (float)arg[2] / 100,
	           (uint32_t)arg[3]);
}

/* Added to the last argument of a gradient of attention. */
enum { FROZEN = 1000 };

/* batch, length, channels, heads, window, masked, loud */
static void build_attention(graph *g, const int64_t *arg)
{
	value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2]));
	value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2]));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_additive_attention(g, x, w, mask, arg[3], arg[4]);
}

static void build_attention_grad(graph *g, const int64_t *arg)
{
	value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2]));
	value w = f32(g, arg[6] % FROZEN ? "w loud" : "w", SHAPE1(arg[2]));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	value dg = real(g, arg, "dg", SHAPE3(arg[0], arg[1], arg[2]));
	attention_values y = op_additive_attention(g, x, w, mask, arg[3], arg[4]);
	value grads[2];
	graph_apply(g, OP_additive_attention_grad, (value[]){x, w, mask, y.pooled, y.log_normalizer, dg}, 6,
	            &(additive_attention_params){arg[3], arg[4], arg[6] >= FROZEN}, grads);
}

/* As attention. The op on trial continues from a state that has read `length` tokens;
 * slots are more than sequences, and the round's state starts at an offset. */
static void stream_case(graph *g, const int64_t *arg, bool ragged)
{
	enum { OFFSET = 5 };
	additive_stream_params p = {arg[3], arg[4], OFFSET};
	shape tokens = SHAPE3(arg[0], arg[1], arg[2]);
	int64_t floats = OFFSET + additive_state_floats(arg[2], arg[3], arg[4]) + 1;
	value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2])), slot = i32(g, "slot", SHAPE1(arg[0]));
	value pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, floats));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_additive_stream(g, f32(g, "x before", tokens), w, pool, slot, i32(g, "position zero", SHAPE1(arg[0])),
	                   i32(g, "length before", SHAPE1(arg[0])), mask, VALUE_NONE, p);
	value position = i32(g, "position", SHAPE1(arg[0]));
	if (ragged)
		op_additive_stream(g, f32(g, "x", SHAPE3(1, arg[1], arg[2])), w, pool, slot, position,
		                   i32(g, "length ragged", SHAPE1(arg[0])), ragged_mask(g, arg),
		                   i32(g, "start", SHAPE1(arg[0])), p);
	else
		op_additive_stream(g, f32(g, "x", tokens), w, pool, slot, position, i32(g, "length", SHAPE1(arg[0])),
		                   mask, VALUE_NONE, p);
}

static void build_stream(graph *g, const int64_t *arg)
{
	stream_case(g, arg, false);
}

/* sequences, tokens in all, … */
static void build_ragged_stream(graph *g, const int64_t *arg)
{
	stream_case(g, arg, true);
}

static void build_hide_keys(graph *g, const int64_t *arg) /* batch, length, percent, first, beyond, masked */
{
	op_hide_keys(g, i32(g, "rng", SHAPE1(4)), arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE,
	             (hide_keys_params){arg[0], arg[1], arg[3], arg[4], (double)arg[2] / 100, 3});
}

/* batch, length, channels, heads, window, masked, dropout in percent; negative: loud scores */
static value softmax_inputs(graph *g, const int64_t *arg, value *mask, value *rng, softmax_params *p)
{
	bool loud = arg[6] < 0;
	*p = (softmax_params){.heads = arg[3], .window = arg[4], .scale = 0.4f, .stream = 3};
	p->p = loud ? 0 : (float)(arg[6] % FROZEN) / 100;
	*mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	*rng = p->p > 0 ? i32(g, "rng", SHAPE1(4)) : VALUE_NONE;
	return real(g, arg, loud ? "qkv wide" : "qkv", SHAPE3(arg[0], arg[1], 3 * arg[2]));
}

static void build_softmax(graph *g, const int64_t *arg)
{
	softmax_params p;
	value mask, rng, qkv = softmax_inputs(g, arg, &mask, &rng, &p);
	op_softmax_attention(g, qkv, VALUE_NONE, VALUE_NONE, mask, VALUE_NONE, rng, p);
}

static void build_softmax_grad(graph *g, const int64_t *arg)
{
	softmax_params p;
	value in[9] = {VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE}, grads[4];
	in[0] = softmax_inputs(g, arg, &in[3], &in[5], &p);
	graph_apply(g, OP_softmax_attention, in, 6, &p, in + 6);
	in[8] = real(g, arg, "dy", SHAPE3(arg[0], arg[1], arg[2]));
	p.frozen = arg[6] >= FROZEN;
	graph_apply(g, OP_softmax_attention_grad, in, 9, &p, grads);
}

/* One of the forms of softmax attention with options. dv 0: queries, keys and values in one. */
typedef struct softmax_form {
	int64_t batch, queries, keys, dh, dv;
	const char *mask;
	int64_t bias; /* rows of the table */
	softmax_params p;
} softmax_form;

enum {
	SEPARATE,
	GROUPED,
	MULTI_QUERY,
	SEEN_BOTH_WAYS,
	BEHIND_OTHERS,
	BEFORE_OTHERS,
	CROSS,
	BLIND,
	ONE_BIASED,
	MANY_TILES,
	MANY_TILES_BOTH_WAYS,
	WIDE_HEADS,
	NO_KEY,
	NO_QUERY,
	SOFTMAX_FORMS
};

static const softmax_form softmax_forms[SOFTMAX_FORMS] = {
    [SEPARATE] = {2, 9, 9, 3, 3, NULL, 0, {.heads = 2}},
    [GROUPED] = {2, 13, 13, 3, 5, "mask", 0, {.heads = 4, .kv_heads = 2}},
    [MULTI_QUERY] = {1, 11, 11, 4, 2, "mask", 14, {.heads = 3, .kv_heads = 1, .p = 0.3f, .bias_first = -2}},
    [SEEN_BOTH_WAYS] = {2, 11, 11, 2, 3, NULL, 14, {.heads = 2, .window = 4, .bias_first = -10, .bidirectional = true}},
    [BEHIND_OTHERS] = {1, 5, 17, 3, 3, "mask", 6, {.heads = 2, .window = 6}},
    [BEFORE_OTHERS] = {2, 17, 5, 3, 2, "mask", 5, {.heads = 2, .kv_heads = 1, .uniform = true}},
    [CROSS] = {2, 7, 19, 3, 4, "mask", 0, {.heads = 2, .p = 0.3f, .bidirectional = true}},
    [BLIND] = {2,
               7,
               7,
               3,
               2,
               "mask all of the first",
               13,
               {.heads = 4, .kv_heads = 2, .p = 0.3f, .bias_first = -6, .bidirectional = true, .uniform = true}},
    [ONE_BIASED] = {2, 9, 9, 3, 0, "mask leading", 9, {.heads = 2, .p = 0.3f, .uniform = true}},
    [MANY_TILES] = {1,
                    130,
                    157,
                    36,
                    12,
                    "mask leading",
                    90,
                    {.heads = 4, .kv_heads = 2, .window = 90, .p = 0.3f, .uniform = true}},
    [MANY_TILES_BOTH_WAYS] = {2, 70, 133, 12, 40, "mask", 202, {.heads = 2, .bias_first = -69, .bidirectional = true}},
    [WIDE_HEADS] = {1, 67, 67, 129, 70, "mask", 67, {.heads = 2, .kv_heads = 1}},
    [NO_KEY] = {2, 3, 0, 2, 3, "mask", 0, {.heads = 2, .uniform = true}},
    [NO_QUERY] = {2, 0, 3, 2, 3, NULL, 1, {.heads = 2}},
};

/* form, keys, FROZEN or 0, 0, keys (which masks are made by) */
static softmax_params softmax_form_inputs(graph *g, const int64_t *arg, value in[6])
{
	const softmax_form *f = &softmax_forms[arg[0]];
	softmax_params p = f->p;
	const int64_t kv_heads = p.kv_heads ? p.kv_heads : p.heads;
	const bool one = f->dv == 0;
	p.scale = 0.4f;
	p.stream = 3;
	in[0] = real(g, arg, one ? "qkv" : "q", SHAPE3(f->batch, f->queries, (one ? 3 : 1) * p.heads * f->dh));
	in[1] = one ? VALUE_NONE : real(g, arg, "k", SHAPE3(f->batch, f->keys, kv_heads * f->dh));
	in[2] = one ? VALUE_NONE : real(g, arg, "value", SHAPE3(f->batch, f->keys, kv_heads * f->dv));
	in[3] = f->mask ? i32(g, f->mask, SHAPE2(f->batch, f->keys)) : VALUE_NONE;
	in[4] = f->bias ? f32(g, "bias", SHAPE2(f->bias, p.heads)) : VALUE_NONE;
	in[5] = p.p > 0 ? i32(g, "rng", SHAPE1(4)) : VALUE_NONE;
	return p;
}

static void build_softmax_form(graph *g, const int64_t *arg)
{
	value in[6];
	const softmax_params p = softmax_form_inputs(g, arg, in);
	op_softmax_attention(g, in[0], in[1], in[2], in[3], in[4], in[5], p);
}

static void build_softmax_form_grad(graph *g, const int64_t *arg)
{
	const softmax_form *f = &softmax_forms[arg[0]];
	value in[9], grads[4];
	softmax_params p = softmax_form_inputs(g, arg, in);
	graph_apply(g, OP_softmax_attention, in, 6, &p, in + 6);
	in[8] = real(g, arg, "dy", SHAPE3(f->batch, f->queries, p.heads * (f->dv ? f->dv : f->dh)));
	p.frozen = arg[2] >= FROZEN;
	graph_apply(g, OP_softmax_attention_grad, in, 9, &p, grads);
}

/* As softmax, continuing from a state as in stream; window 0: as long as both calls together. */
static void softmax_stream_case(graph *g, const int64_t *arg, bool ragged)
{
	enum { OFFSET = 5 };
	const int64_t window = arg[4] ? arg[4] : 2 * arg[1] + 1;
	softmax_stream_params p = {.heads = arg[3], .window = window, .offset = OFFSET, .scale = 0.4f};
	shape tokens = SHAPE3(arg[0], arg[1], 3 * arg[2]);
	int64_t floats = OFFSET + softmax_state_floats(arg[2], arg[2], p.window) + 1;
	value slot = i32(g, "slot", SHAPE1(arg[0])), pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, floats));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_softmax_stream(g, f32(g, "x before", tokens), VALUE_NONE, VALUE_NONE, pool, slot,
	                  i32(g, "position zero", SHAPE1(arg[0])), i32(g, "length before", SHAPE1(arg[0])), mask,
	                  VALUE_NONE, VALUE_NONE, VALUE_NONE, VALUE_NONE, p);
	value position = i32(g, "position", SHAPE1(arg[0]));
	if (ragged)
		op_softmax_stream(g, f32(g, "x", SHAPE3(1, arg[1], 3 * arg[2])), VALUE_NONE, VALUE_NONE, pool, slot,
		                  position, i32(g, "length ragged", SHAPE1(arg[0])), ragged_mask(g, arg),
		                  i32(g, "start", SHAPE1(arg[0])), VALUE_NONE, VALUE_NONE, VALUE_NONE, p);
	else
		op_softmax_stream(g, f32(g, arg[6] < 0 ? "x wide" : "x", tokens), VALUE_NONE, VALUE_NONE, pool, slot,
		                  position, i32(g, "length", SHAPE1(arg[0])), mask, VALUE_NONE, VALUE_NONE, VALUE_NONE,
		                  VALUE_NONE, p);
}

static void build_softmax_stream(graph *g, const int64_t *arg)
{
	softmax_stream_case(g, arg, false);
}

static void build_ragged_softmax_stream(graph *g, const int64_t *arg)
{
	softmax_stream_case(g, arg, true);
}

/* What the options of softmax_stream and source_attention are in a case's arg[6]. */
enum { GROUPS = 1, MEMORIES = 100, PAST = 10000, WITH_BIAS = 1000000, SEGMENT = 10000000 };
#define OPTIONS(groups, memories, past, biased)                                                                        \
	((groups)*GROUPS + (memories)*MEMORIES + (past)*PAST + (biased)*WITH_BIAS)

#define SEGMENTS(segment, groups, memories, past, biased) ((segment)*SEGMENT + OPTIONS(groups, memories, past, biased))

static value memories_of(graph *g, const int64_t *arg, const char *name, int64_t width)
{
	const int64_t count = arg[6] / MEMORIES % 100;
	return count ? f32(g, name, SHAPE2(count, width)) : VALUE_NONE;
}

/* sequences, tokens in all, channels of a key, heads, window, masked, OPTIONS; values have 3 channels more */
static void build_softmax_stream_options(graph *g, const int64_t *arg)
{
	enum { OFFSET = 4 };
	const int64_t heads = arg[3], groups = arg[6] % 100, memories = arg[6] / MEMORIES % 100;
	const softmax_stream_params p = {heads, arg[4], OFFSET, 0.4f, groups, arg[6] / PAST % 100, arg[6] / SEGMENT};
	const int64_t widths[] = {heads * arg[2], groups * arg[2], groups * (arg[2] + 3)};
	const int64_t floats = OFFSET + softmax_state_floats(widths[1], widths[2], p.window) + 4;
	value pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, (floats + 3) / 4 * 4));
	value slot = i32(g, "slot", SHAPE1(arg[0]));
	value memory_k = memories_of(g, arg, "memory_k", widths[1]),
	      memory_v = memories_of(g, arg, "memory_v", widths[2]);
	value bias = arg[6] / WITH_BIAS % 10 ? f32(g, "bias", SHAPE2(p.window + memories, heads)) : VALUE_NONE;
	const shape before = SHAPE3(arg[0], arg[1], 0), now = SHAPE3(1, arg[1], 0);
	value in[2][3];
	for (int i = 0; i < 6; i++) {
		static const char *const names[] = {"q before", "k before", "v before", "q", "k", "v"};
		shape s = i < 3 ? before : now;
		s.dim[2] = widths[i % 3];
		in[i / 3][i % 3] = f32(g, names[i], s);
	}
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_softmax_stream(g, in[0][0], in[0][1], in[0][2], pool, slot, i32(g, "position zero", SHAPE1(arg[0])),
	                  i32(g, "length before", SHAPE1(arg[0])), mask, VALUE_NONE, memory_k, memory_v, bias, p);
	op_softmax_stream(g, in[1][0], in[1][1], in[1][2], pool, slot, i32(g, "position", SHAPE1(arg[0])),
	                  i32(g, "length ragged", SHAPE1(arg[0])), ragged_mask(g, arg), i32(g, "start", SHAPE1(arg[0])),
	                  memory_k, memory_v, bias, p);
}

/* sources, tokens of the longest, channels of a key, heads, capacity, masked, OPTIONS; pool and slot too */
static source_params source_case(graph *g, const int64_t *arg, value *pool, value *slot)
{
	const int64_t groups = arg[6] % 100, key = groups * arg[2], values = groups * (arg[2] + 3);
	const source_params p = {arg[3], groups, values, arg[4], 4, 0.4f};
	const int64_t floats = p.offset + source_state_floats(key, values, p.capacity) + 4;
	*pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, (floats + 3) / 4 * 4));
	*slot = i32(g, "slot", SHAPE1(arg[0]));
	op_source_store(g, f32(g, "k", SHAPE3(arg[0], arg[1], key)), f32(g, "v", SHAPE3(arg[0], arg[1], values)), *pool,
	                *slot, arg[5] ? i32(g, "length", SHAPE1(arg[0])) : VALUE_NONE,
	                arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE, p);
	return p;
}

static void build_source_store(graph *g, const int64_t *arg)
{
	value pool, slot;
	source_case(g, arg, &pool, &slot);
}

/* As many queries as tokens of the longest source, one sequence's behind the other's. */
static void build_source_attention(graph *g, const int64_t *arg)
{
	value pool, slot;
	const source_params p = source_case(g, arg, &pool, &slot);
	op_source_attention(g, f32(g, "q", SHAPE3(1, arg[1], arg[3] * arg[2])), pool, slot,
	                    i32(g, "length ragged", SHAPE1(arg[0])), i32(g, "start", SHAPE1(arg[0])),
	                    memories_of(g, arg, "memory_k", p.kv_heads * arg[2]),
	                    memories_of(g, arg, "memory_v", p.value_width), p);
}

/* Of dilated attention: a pattern of the list, and of the call's kind. */
enum { DILATED_CAUSAL = 1, DILATED_ZERO_KEYS = 2, DILATED_EXACT = 4, DILATED_MIXED = 8 };

static const dilated_pattern dilated_patterns[] = {
    {1, {64}, {1}, DILATED_BLOCK},
    {2, {12, 24}, {1, 2}, DILATED_BLOCK},
    {2, {12, 24}, {1, 2}, DILATED_MOD},
    {2, {12, 24}, {2, 3}, DILATED_BLOCK}, /* leaves rows that no branch keeps */
    {2, {9, 14}, {1, 9}, DILATED_MOD},    /* heads without a row; no segment is a multiple */
    {3, {40, 100, 160}, {1, 1, 2}, DILATED_BLOCK},
    {2, {16, 64}, {1, 3}, DILATED_FIRST},
    {3, {4, 8, 16}, {1, 2, 4}, DILATED_BLOCK},
};

/* batch, length, channels, heads, pattern, masked, kind */
static void dilated_inputs(graph *g, const int64_t *arg, value in[5], dilated_params *p)
{
	const shape s = SHAPE3(arg[0], arg[1], arg[2]);
	*p = (dilated_params){.pattern = dilated_patterns[arg[4]],
	                      .heads = arg[3],
	                      .scale = 0.4f,
	                      .causal = arg[6] & DILATED_CAUSAL,
	                      .zero_keys = arg[6] & DILATED_ZERO_KEYS,
	                      .detach_weights = !(arg[6] & DILATED_EXACT)};
	in[0] = real(g, arg, "query", s);
	in[1] = real(g, arg, "key", s);
	in[2] = real(g, arg, "value", s);
	in[3] = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	in[4] = arg[6] & DILATED_MIXED ? f32(g, "mixture", SHAPE1(p->pattern.branches)) : VALUE_NONE;
}

static void build_dilated(graph *g, const int64_t *arg)
{
	dilated_params p;
	value in[5];
	dilated_inputs(g, arg, in, &p);
	op_dilated_attention(g, in[0], in[1], in[2], in[3], in[4], p);
}

static void build_dilated_grad(graph *g, const int64_t *arg)
{
	dilated_params p;
	value in[5], grads[4];
	dilated_inputs(g, arg, in, &p);
	dilated_values y = op_dilated_attention(g, in[0], in[1], in[2], in[3], in[4], p);
	value dy = real(g, arg, "dy", SHAPE3(arg[0], arg[1], arg[2]));
	graph_apply(g, OP_dilated_attention_grad,
	            (value[]){in[0], in[1], in[2], in[3], in[4], y.y, y.log_normalizer, dy}, 8, &p, grads);
}

/* As dilated, continuing from a state as in stream. */
static void dilated_stream_case(graph *g, const int64_t *arg, bool ragged)
{
	enum { OFFSET = 5 };
	dilated_stream_params p = {dilated_patterns[arg[4]], arg[3], OFFSET, 0.4f};
	shape before = SHAPE3(arg[0], arg[1], arg[2]), now = ragged ? SHAPE3(1, arg[1], arg[2]) : before;
	int64_t floats = OFFSET + dilated_state_floats(arg[2], &p.pattern) + 1;
	value slot = i32(g, "slot", SHAPE1(arg[0])), pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, floats));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_dilated_stream(g, f32(g, "query before", before), f32(g, "key before", before),
	                  f32(g, "value before", before), pool, slot, i32(g, "position zero", SHAPE1(arg[0])),
	                  i32(g, "length before", SHAPE1(arg[0])), mask, VALUE_NONE, p);
	value query = f32(g, "query", now), key = f32(g, "key", now), what = f32(g, "value", now);
	value position = i32(g, "position", SHAPE1(arg[0]));
	value length = i32(g, ragged ? "length ragged" : "length", SHAPE1(arg[0]));
	op_dilated_stream(g, query, key, what, pool, slot, position, length, ragged ? ragged_mask(g, arg) : mask,
	                  ragged ? i32(g, "start", SHAPE1(arg[0])) : VALUE_NONE, p);
}

static void build_dilated_stream(graph *g, const int64_t *arg)
{
	dilated_stream_case(g, arg, false);
}

static void build_ragged_dilated_stream(graph *g, const int64_t *arg)
{
	dilated_stream_case(g, arg, true);
}

/* batch, queries, channels, heads, keys (0: causal), kind of mask (0: none). Features are drawn away from 0, where φ'
 * has a bend. */
static void linear_attention_inputs(graph *g, const int64_t *arg, value in[4], linear_attention_params *p)
{
	static const char *const masks[] = {"", "mask", "mask leading", "mask trailing", "mask all of the first"};
	shape q = SHAPE3(arg[0], arg[1], arg[2]), k = SHAPE3(arg[0], arg[4] ? arg[4] : arg[1], arg[2]);
	*p = (linear_attention_params){.heads = arg[3], .causal = arg[4] == 0, .eps = LINEAR_ATTENTION_EPS};
	in[0] = real(g, arg, "query feature", q);
	in[1] = real(g, arg, "key feature", k);
	in[2] = real(g, arg, "value", k);
	in[3] = arg[5] ? i32(g, masks[arg[5]], SHAPE2(k.dim[0], k.dim[1])) : VALUE_NONE;
}

static void build_linear_attention(graph *g, const int64_t *arg)
{
	linear_attention_params p;
	value in[4];
	linear_attention_inputs(g, arg, in, &p);
	op_linear_attention(g, in[0], in[1], in[2], in[3], p);
}

static void build_linear_attention_grad(graph *g, const int64_t *arg)
{
	linear_attention_params p;
	value in[4], grads[3];
	linear_attention_inputs(g, arg, in, &p);
	linear_attention_values y = op_linear_attention(g, in[0], in[1], in[2], in[3], p);
	value dy = real(g, arg, "dy", SHAPE3(arg[0], arg[1], arg[2]));
	graph_apply(g, OP_linear_attention_grad, (value[]){in[0], in[1], in[2], in[3], y.y, y.normalizer, dy}, 7, &p,
	            grads);
}

/* As additive_stream, but for the window. */
static void linear_stream_case(graph *g, const int64_t *arg, bool ragged)
{
	enum { OFFSET = 5 };
	linear_stream_params p = {arg[3], OFFSET, LINEAR_ATTENTION_EPS};
	shape before = SHAPE3(arg[0], arg[1], arg[2]), now = ragged ? SHAPE3(1, arg[1], arg[2]) : before;
	int64_t floats = OFFSET + linear_state_floats(arg[2], arg[3]) + 1;
	value slot = i32(g, "slot", SHAPE1(arg[0])), pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, floats));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_linear_stream(g, f32(g, "query before", before), f32(g, "key before", before),
	                 f32(g, "value before", before), pool, slot, i32(g, "position zero", SHAPE1(arg[0])),
	                 i32(g, "length before", SHAPE1(arg[0])), mask, VALUE_NONE, p);
	value query = f32(g, "query", now), key = f32(g, "key", now), what = f32(g, "value", now);
	value position = i32(g, "position", SHAPE1(arg[0]));
	value length = i32(g, ragged ? "length ragged" : "length", SHAPE1(arg[0]));
	op_linear_stream(g, query, key, what, pool, slot, position, length, ragged ? ragged_mask(g, arg) : mask,
	                 ragged ? i32(g, "start", SHAPE1(arg[0])) : VALUE_NONE, p);
}

static void build_linear_stream(graph *g, const int64_t *arg)
{
	linear_stream_case(g, arg, false);
}

static void build_ragged_linear_stream(graph *g, const int64_t *arg)
{
	linear_stream_case(g, arg, true);
}

/* batch, queries, keys, heads, heads of keys, width of a head */
static attention_matrix_params matrix_params(const int64_t *arg)
{
	return (attention_matrix_params){.heads = arg[3], .kv_heads = arg[4] == arg[3] ? 0 : arg[4], .scale = 0.4f};
}

static void build_attention_scores(graph *g, const int64_t *arg)
{
	op_attention_scores(g, real(g, arg, "q", SHAPE3(arg[0], arg[1], arg[3] * arg[5])),
	                    real(g, arg, "k", SHAPE3(arg[0], arg[2], arg[4] * arg[5])), matrix_params(arg));
}

static void build_attention_apply(graph *g, const int64_t *arg)
{
	op_attention_apply(g, f32(g, "x", SHAPE4(arg[0], arg[3], arg[1], arg[2])),
	                   real(g, arg, "v", SHAPE3(arg[0], arg[2], arg[4] * arg[5])), matrix_params(arg));
}

static void build_attention_apply_transposed(graph *g, const int64_t *arg)
{
	value out, x = f32(g, "x", SHAPE4(arg[0], arg[3], arg[1], arg[2]));
	attention_matrix_params p = matrix_params(arg);
	graph_apply(g, OP_attention_apply_transposed,
	            (value[]){x, real(g, arg, "y", SHAPE3(arg[0], arg[1], arg[3] * arg[5]))}, 2, &p, &out);
}

/* Of the last argument of attention_weights. VISIBLE: 1, 2 or 3 of the trailing dimensions of its matrix but one. */
enum { MASKED = 1, VISIBLE = 2, BIASED = 8, BOTH_SIDES = 16, UNIFORM = 32, APART = 64 };

/* batch, heads, queries, keys, window, top_k, options */
static void weights_inputs(graph *g, const int64_t *arg, value in[4], attention_weights_params *p)
{
	const shape s = SHAPE4(arg[0], arg[1], arg[2], arg[3]);
	const shape parts[] = {SHAPE0(), SHAPE2(arg[2], arg[3]), SHAPE3(arg[1], arg[2], arg[3]), s};
	const int64_t how = arg[6], first = how & BOTH_SIDES ? -arg[2] : -1;
	*p = (attention_weights_params){arg[4], first, arg[5], how & BOTH_SIDES, how & UNIFORM};
	in[0] = f32(g, how & APART ? "scores apart" : "scores", s);
	in[1] = how & MASKED ? i32(g, how & UNIFORM ? "mask away" : "mask", SHAPE2(arg[0], arg[3])) : VALUE_NONE;
	in[2] = how / VISIBLE % 4 ? i32(g, "mask visible", parts[how / VISIBLE % 4]) : VALUE_NONE;
	in[3] = how & BIASED ? f32(g, "bias", SHAPE2(arg[3] - first, arg[1])) : VALUE_NONE;
}

static void build_attention_weights(graph *g, const int64_t *arg)
{
	value in[4];
	attention_weights_params p;
	weights_inputs(g, arg, in, &p);
	op_attention_weights(g, in[0], in[1], in[2], in[3], p);
}

static void build_attention_weights_grad(graph *g, const int64_t *arg)
{
	value in[4], y[2], grads[2];
	attention_weights_params p;
	weights_inputs(g, arg, in, &p);
	graph_apply(g, OP_attention_weights, in, 4, &p, y);
	value dy = f32(g, "dy", SHAPE4(arg[0], arg[1], arg[2], arg[3]));
	graph_apply(g, OP_attention_weights_grad, (value[]){y[0], dy, arg[6] & UNIFORM ? y[1] : VALUE_NONE, in[3]}, 4,
	            &p, grads);
}

static void build_mix_heads(graph *g, const int64_t *arg) /* batch, heads, of the result, queries, keys, transposed */
{
	value out, x = f32(g, "x", SHAPE4(arg[0], arg[1], arg[3], arg[4]));
	value p = f32(g, "p", arg[5] ? SHAPE2(arg[1], arg[2]) : SHAPE2(arg[2], arg[1]));
	graph_apply(g, OP_mix_heads, (value[]){x, p}, 2, &(mix_heads_params){arg[5]}, &out);
}

static void build_mix_heads_grad(graph *g, const int64_t *arg) /* the same */
{
	value dp, x = f32(g, "x", SHAPE4(arg[0], arg[1], arg[3], arg[4]));
	value dy = f32(g, "dy", SHAPE4(arg[0], arg[2], arg[3], arg[4]));
	graph_apply(g, OP_mix_heads_grad, (value[]){x, dy, f32(g, "p", SHAPE2(arg[2], arg[1]))}, 3, NULL, &dp);
}

/* sequences, tokens, width of a head of keys, heads, window, masked, 10000 times the segment, 100 times the heads of
 * keys and the memories */
typedef struct matrix_stream_case {
	matrix_stream_params p;
	stream_values at;
	shape tokens; /* but for the channels */
	int64_t memories;
} matrix_stream_case;

/* A state that has read tokens, as in stream. Values are a channel wider than keys. */
static matrix_stream_case matrix_stream_begin(graph *g, const int64_t *arg, bool ragged)
{
	enum { OFFSET = 5 };
	const int64_t heads = arg[6] / 100 % 100;
	matrix_stream_case c = {.p = {.heads = arg[3],
	                              .kv_heads = heads,
	                              .window = arg[4],
	                              .offset = OFFSET,
	                              .key_width = heads * arg[2],
	                              .value_width = heads * (arg[2] + 1),
	                              .scale = 0.4f,
	                              .segment = arg[6] / 10000},
	                        .tokens = SHAPE3(arg[0], arg[1], 0),
	                        .memories = arg[6] % 100};
	c.at.pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, OFFSET + matrix_stream_floats(c.p) + 1));
	c.at.slot = i32(g, "slot", SHAPE1(arg[0]));
	c.at.position = i32(g, "position zero", SHAPE1(arg[0]));
	c.at.length = i32(g, "length before", SHAPE1(arg[0]));
	c.at.mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	c.at.start = VALUE_NONE;
	op_stream_store(g, f32(g, "key before", SHAPE3(arg[0], arg[1], c.p.key_width)),
	                f32(g, "value before", SHAPE3(arg[0], arg[1], c.p.value_width)), c.at, c.p);
	c.at.position = i32(g, "position", SHAPE1(arg[0]));
	c.at.length = i32(g, ragged ? "length ragged" : "length", SHAPE1(arg[0]));
	if (ragged) {
		c.tokens.dim[0] = 1;
		c.at.mask = ragged_mask(g, arg);
		c.at.start = i32(g, "start", SHAPE1(arg[0]));
	}
	return c;
}

static value matrix_stream_tokens(graph *g, const matrix_stream_case *c, const char *name, int64_t width)
{
	return f32(g, name, SHAPE3(c->tokens.dim[0], c->tokens.dim[1], width));
}

static void stream_scores_case(graph *g, const int64_t *arg, bool ragged)
{
	const matrix_stream_case c = matrix_stream_begin(g, arg, ragged);
	value q = matrix_stream_tokens(g, &c, "q", arg[2] * arg[3]);
	value k = matrix_stream_tokens(g, &c, "k", c.p.key_width);
	value memory = c.memories ? f32(g, "memory", SHAPE2(c.memories, c.p.key_width)) : VALUE_NONE;
	op_stream_scores(g, q, k, memory, c.at, c.p);
}

static void build_stream_scores(graph *g, const int64_t *arg)
{
	stream_scores_case(g, arg, false);
}

static void build_ragged_stream_scores(graph *g, const int64_t *arg)
{
	stream_scores_case(g, arg, true);
}

static void stream_apply_case(graph *g, const int64_t *arg, bool ragged)
{
	const matrix_stream_case c = matrix_stream_begin(g, arg, ragged);
	const int64_t rows = c.tokens.dim[0] * c.tokens.dim[1];
	value v = matrix_stream_tokens(g, &c, "v", c.p.value_width);
	value memory = c.memories ? f32(g, "memory", SHAPE2(c.memories, c.p.value_width)) : VALUE_NONE;
	value weights = f32(g, "weights", SHAPE4(rows, arg[3], 1, c.memories + c.p.window));
	op_stream_apply(g, v, weights, memory, c.at, c.p);
}

static void build_stream_apply(graph *g, const int64_t *arg)
{
	stream_apply_case(g, arg, false);
}

static void build_ragged_stream_apply(graph *g, const int64_t *arg)
{
	stream_apply_case(g, arg, true);
}

static void stream_store_case(graph *g, const int64_t *arg, bool ragged)
{
	const matrix_stream_case c = matrix_stream_begin(g, arg, ragged);
	value k = matrix_stream_tokens(g, &c, "k", c.p.key_width);
	op_stream_store(g, k, matrix_stream_tokens(g, &c, "v", c.p.value_width), c.at, c.p);
}

static void build_stream_store(graph *g, const int64_t *arg)
{
	stream_store_case(g, arg, false);
}

static void build_ragged_stream_store(graph *g, const int64_t *arg)
{
	stream_store_case(g, arg, true);
}

static void build_t5_buckets(graph *g, const int64_t *arg) /* first, count, buckets, max_distance, bidirectional */
{
	op_t5_buckets(g, (t5_buckets_params){arg[0], arg[1], arg[2], arg[3], arg[4]});
}

static void build_distances(graph *g, const int64_t *arg) /* first, count, absolute, logarithmic */
{
	op_distances(g, (distances_params){arg[0], arg[1], arg[2], arg[3]});
}

static void build_sinusoids(graph *g, const int64_t *arg) /* batch, length, width, form */
{
	op_sinusoids(g, i32(g, "index", SHAPE2(arg[0], arg[1])), (sinusoids_params){arg[2], (sinusoids_form)arg[3]});
}

static void build_alibi(graph *g, const int64_t *arg) /* first, count, heads, with slopes of their own, learned */
{
	value log_slopes = arg[4] ? f32(g, "log slopes", SHAPE1(arg[2])) : VALUE_NONE;
	op_alibi(g, log_slopes, (alibi_params){arg[0], arg[1], arg[2], arg[3]});
}

/* rows, channels, classes, smoothing in percent, biased, loud */
static void build_linear_cross_entropy(graph *g, const int64_t *arg)
{
	linear_cross_entropy_params p = {0.6f, (float)arg[3] / 100};
	value hidden = real(g, arg, arg[5] ? "hidden loud" : "hidden", SHAPE3(1, arg[0], arg[1]));
	value weight = real(g, arg, "weight", SHAPE2(arg[2], arg[1]));
	value bias = arg[4] ? f32(g, "bias", SHAPE1(arg[2])) : VALUE_NONE;
	op_linear_cross_entropy(g, hidden, weight, bias, i32(g, "label", SHAPE2(1, arg[0])), p);
}

static void build_fill(graph *g, const int64_t *arg) /* rows, width */
{
	op_fill(g, SHAPE2(arg[0], arg[1]), 0.1f);
}

static void build_accumulate(graph *g, const int64_t *arg) /* rows, width */
{
	op_accumulate(g, graph_state(g, "sum", SHAPE2(arg[0], arg[1])), f32(g, "x", SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_sum_squares(graph *g, const int64_t *arg) /* count */
{
	op_sum_squares(g, f32(g, "x", SHAPE1(arg[0])));
}

static void build_adamw(graph *g, const int64_t *arg) /* count, clip in percent, not a number, narrow, transformers */
{
	shape s = SHAPE1(arg[0]);
	adamw_params p = {0.9f, 0.999f, arg[4] ? 1e-3f : 1e-8f, arg[4] ? 0.5f : 0.01f, (float)arg[1] / 100, arg[4]};
	value grad = f32(g, "g", s), norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0());
	op_adamw(g, graph_state(g, "p", s), grad, graph_state(g, "m", s), graph_state(g, "v", s), norm2,
	         f32(g, "hyper", SHAPE1(2)), arg[3] ? graph_weight(g, "narrow", DTYPE_BF16, s) : VALUE_NONE, p);
}

static void build_sgd(graph *g, const int64_t *arg) /* count, clip in percent, not a number, narrow, normalized */
{
	shape s = SHAPE1(arg[0]);
	sgd_params p = {0.9f, 0.01f, (float)arg[1] / 100, arg[4]};
	value grad = f32(g, "g", s), norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0());
	op_sgd(g, graph_state(g, "p", s), grad, graph_state(g, "m", s), norm2, f32(g, "hyper", SHAPE1(2)),
	       arg[3] ? graph_weight(g, "narrow", DTYPE_BF16, s) : VALUE_NONE, p);
}

static void build_sample(graph *g, const int64_t *arg) /* rows, vocabulary, rows of adjust */
{
	op_sample(g, f32(g, "logits wide", SHAPE2(arg[0], arg[1])), i32(g, "setting", SHAPE2(arg[0], SAMPLE_WORDS)),
	          i32(g, "adjust", SHAPE2(arg[2], 3)), VALUE_NONE);
}

/* --- the table ---------------------------------------------------------------------- */

enum { NARROW = 33, LONG = 20011 }; /* LONG: more than one thread's share of an elementwise op */
#define STEP (1.0 / 32)

/* clang-format off */
#define ELEMENTWISE(id, build, tolerance, step) \
	{id, "empty", build, {0, 3}, 0, 0, 0, 0, 0}, \
	{id, "one element", build, {1, 1}, 0, 0, tolerance, tolerance, step}, \
	{id, "odd", build, {3, 31}, 0, 0, tolerance, tolerance, step}, \
	{id, "long", build, {7, LONG}, 0, 0, tolerance, tolerance, 0}

/* Of few products. bf16 weights may be multiplied by an x that was cut to 16 bits: they have 8. */
#define FEW(type) ((type) == DTYPE_PANEL_BF16 ? 1e-4 : 1e-5)
#define LINEAR(id, name, type, step) \
	{id, name ", no row", build_linear, {0, 3, 4, 1, type}, 0, 0, 0, 0, 0}, \
	{id, name ", no output", build_linear, {3, 0, 4, 1, type}, 0, 0, 0, 0, 0}, \
	{id, name ", nothing to sum", build_linear, {3, 5, 0, 1, type}, 0, 0, 1e-6, 1e-6, 0}, \
	{id, name ", one element", build_linear, {1, 1, 1, 0, type}, 0, 0, 1e-6, 1e-6, step}, \
	{id, name ", odd", build_linear, {3, 5, 7, 0, type}, 0, 0, FEW(type), 1e-5, step}, \
	{id, name ", odd, biased", build_linear, {5, 33, 9, 1, type}, 0, 0, FEW(type), 1e-5, step}, \
	{id, name ", a row", build_linear, {1, 301, 257, 1, type}, 0, 0, 1e-4, 1e-5, 0}, \
	{id, name ", large", build_linear, {131, 1025, 66, 1, type}, 0, 0, 1e-4, 1e-5, 0}

#define PANELS(name, type) \
	{OP_matmul, name ", no row", build_matmul_panels, {0, 3, 4, type}, 0, 0, 0, 0, 0}, \
	{OP_matmul, name ", nothing to sum", build_matmul_panels, {3, 5, 0, type}, 0, 0, 0, 0, 0}, \
	{OP_matmul, name ", no column", build_matmul_panels, {3, 0, 5, type}, 0, 0, 0, 0, 0}, \
	{OP_matmul, name ", one element", build_matmul_panels, {1, 1, 1, type}, 0, 0, 1e-6, 1e-6, 0}, \
	{OP_matmul, name ", odd", build_matmul_panels, {3, 5, 7, type}, 0, 0, 1e-5, 1e-5, 0}, \
	{OP_matmul, name ", a row", build_matmul_panels, {1, 257, 301, type}, 0, 0, 1e-4, 1e-5, 0}, \
	{OP_matmul, name ", whole", build_matmul_panels, {8, 128, 256, type}, 0, 0, 1e-4, 1e-5, 0}, \
	{OP_matmul, name ", large", build_matmul_panels, {131, 66, 1025, type}, 0, 0, 1e-4, 1e-5, 0}
#define WINDOW(id, build, B, N, D, H, window, masked, step) \
	{id, "window " #window " of " #N ", mask " #masked, build, {B, N, D, H, window, masked}, 0, N, 2e-5, 2e-5, step}
#define WINDOWS(id, build, B, N, D, H, masked, step) \
	WINDOW(id, build, B, N, D, H, 0, masked, step), \
	WINDOW(id, build, B, N, D, H, 1, masked, step), \
	WINDOW(id, build, B, N, D, H, 2, masked, step), \
	WINDOW(id, build, B, N, D, H, 3, masked, step), \
	WINDOW(id, build, B, N, D, H, 7, masked, step), \
	WINDOW(id, build, B, N, D, H, 32, masked, step), \
	WINDOW(id, build, B, N, D, H, 1000, masked, step)
#define ATTENTION(id, build, step) \
	WINDOWS(id, build, 2, 33, 6, 2, 0, step), \
	WINDOWS(id, build, 2, 33, 6, 2, 1, step), \
	WINDOWS(id, build, 1, 100, 31, 1, 1, 0), \
	WINDOWS(id, build, 3, 31, 99, 3, 0, 0), \
	WINDOWS(id, build, 1, 1, 4, 4, 0, step), \
	WINDOW(id, build, 2, 0, 4, 2, 3, 1, 0), \
	WINDOW(id, build, 0, 5, 4, 2, 3, 0, 0), \
	WINDOW(id, build, 1, 300, 64, 2, 64, 0, 0)
#define FROZEN_ATTENTION(name, B, N, D, H, window, masked) \
	{OP_additive_attention_grad, "frozen, " name, build_attention_grad, {B, N, D, H, window, masked, FROZEN}, \
	 0, 0, 2e-5, 2e-5, 0}
#define FROZEN_SOFTMAX(name, B, N, D, H, window, masked, dropout) \
	{OP_softmax_attention_grad, "frozen, " name, build_softmax_grad, {B, N, D, H, window, masked, FROZEN + dropout}, \
	 0, 0, 2e-5, 2e-5, 0}
#define SOFTMAX(id, build, dropout, step) \
	{id, "one token", build, {1, 1, 4, 4, 0, 0, dropout}, 0, 1, 2e-6, 2e-6, step}, \
	{id, "global, dropout " #dropout, build, {2, 33, 6, 2, 0, 0, dropout}, 0, 33, 1e-5, 1e-5, step}, \
	{id, "masked, dropout " #dropout, build, {2, 21, 10, 2, 0, 1, dropout}, 0, 21, 1e-5, 1e-5, step}, \
	{id, "window 1, dropout " #dropout, build, {2, 19, 6, 2, 1, 0, dropout}, 0, 19, 1e-5, 1e-5, step}, \
	{id, "window 7, masked, dropout " #dropout, build, {2, 33, 6, 2, 7, 1, dropout}, 0, 33, 1e-5, 1e-5, step}, \
	{id, "one wide head, dropout " #dropout, build, {1, 70, 129, 1, 0, 0, dropout}, 0, 70, 2e-5, 2e-5, 0}, \
	{id, "tiles, dropout " #dropout, build, {2, 197, 64, 2, 0, 1, dropout}, 0, 197, 2e-5, 2e-5, 0}, \
	{id, "tiles, window 50, dropout " #dropout, build, {1, 263, 96, 3, 50, 0, dropout}, 0, 263, 2e-5, 2e-5, 0}, \
	{id, "tiles, window 129, dropout " #dropout, build, {1, 300, 35, 5, 129, 1, dropout}, 0, 300, 2e-5, 2e-5, 0}, \
	{id, "no token", build, {2, 0, 4, 2, 3, 1, dropout}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 5, 4, 2, 3, 0, dropout}, 0, 5, 0, 0, 0}
#define SOFTMAX_FORM(id, name, build, form, keys, frozen, tolerance, step) \
	{id, name, build, {form, keys, frozen, 0, keys}, 0, 0, tolerance, tolerance, step}
#define SOFTMAX_FORMS_OF(id, build, step) \
	SOFTMAX_FORM(id, "keys of their own", build, SEPARATE, 9, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "heads in groups, wider values", build, GROUPED, 13, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "one head of keys, bias, dropout", build, MULTI_QUERY, 11, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "bidirectional, window 4, bias", build, SEEN_BOTH_WAYS, 11, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "fewer queries, window 6, bias", build, BEHIND_OTHERS, 17, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "more queries, bias, uniform", build, BEFORE_OTHERS, 5, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "cross, masked, dropout", build, CROSS, 19, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "nothing to attend to, uniform, dropout", build, BLIND, 7, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "all in one, bias, uniform", build, ONE_BIASED, 9, 0, 1e-5, step), \
	SOFTMAX_FORM(id, "tiles, all options", build, MANY_TILES, 157, 0, 2e-5, 0), \
	SOFTMAX_FORM(id, "tiles, bidirectional, bias", build, MANY_TILES_BOTH_WAYS, 133, 0, 2e-5, 0), \
	SOFTMAX_FORM(id, "wide heads, one of keys, bias", build, WIDE_HEADS, 67, 0, 5e-5, 0), \
	SOFTMAX_FORM(id, "no key", build, NO_KEY, 0, 0, 0, 0), \
	SOFTMAX_FORM(id, "no query, but keys", build, NO_QUERY, 3, 0, 0, 0)
#define DILATED(id, build, step) \
	{id, "one token", build, {1, 1, 2, 2, 1, 0, DILATED_EXACT}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "one branch", build, {1, 33, 6, 2, 0, 0, DILATED_EXACT}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "blocks of heads", build, {2, 22, 6, 2, 1, 0, DILATED_EXACT}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "zero keys", build, {1, 22, 6, 2, 1, 0, DILATED_EXACT | DILATED_ZERO_KEYS}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, masked", build, {1, 29, 10, 2, 2, 1, DILATED_EXACT | DILATED_CAUSAL}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "rows without a branch, masked", build, {1, 22, 6, 2, 3, 1, DILATED_EXACT}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "no multiples, zero keys, masked", build, {1, 19, 9, 3, 4, 1, DILATED_EXACT | DILATED_ZERO_KEYS}, 0, 0, \
	 1e-5, 1e-5, step}, \
	{id, "mixed", build, {2, 20, 3, 1, 6, 0, DILATED_MIXED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "mixed, causal, masked", build, {1, 21, 10, 2, 1, 1, DILATED_MIXED | DILATED_CAUSAL}, 0, 0, 1e-5, 1e-5, \
	 step}, \
	{id, "tiles", build, {1, 170, 40, 1, 5, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "tiles, zero keys, masked", build, {1, 170, 70, 2, 5, 1, DILATED_ZERO_KEYS}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "tiles, causal", build, {1, 170, 40, 1, 5, 0, DILATED_CAUSAL}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "a wide head", build, {1, 20, 129, 1, 6, 0, DILATED_CAUSAL}, 0, 0, 1e-4, 2e-5, 0}, \
	{id, "detached", build, {1, 22, 12, 2, 1, 0, 0}, 0, 0, 1e-5, 1e-5, 0}, \
	{id, "no token", build, {2, 0, 4, 2, 1, 1, 0}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 5, 4, 2, 1, 0, DILATED_MIXED}, 0, 0, 0, 0, 0}
#define LINEAR_ATTENTION(id, build, step) \
	{id, "one token", build, {1, 1, 4, 4, 0, 0}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "causal, odd heads", build, {2, 9, 10, 2, 0, 0}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, masked", build, {2, 21, 10, 2, 0, 1}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, leading mask", build, {1, 13, 3, 1, 0, 2}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, trailing mask", build, {1, 13, 3, 1, 0, 3}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, nothing but a mask", build, {2, 7, 3, 1, 0, 4}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, chunks", build, {1, 150, 20, 2, 0, 1}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, heads of 1", build, {1, 70, 3, 3, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, heads of 8", build, {1, 67, 24, 3, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, heads of 32", build, {1, 40, 64, 2, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, a head of 64", build, {1, 66, 64, 1, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, a head of 129", build, {1, 5, 129, 1, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "one query, one key", build, {1, 1, 4, 4, 1, 0}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "all, odd heads", build, {2, 9, 10, 2, 9, 0}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "all, masked", build, {2, 21, 10, 2, 21, 1}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "all, leading mask", build, {1, 13, 3, 1, 13, 2}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "all, trailing mask", build, {1, 13, 3, 1, 13, 3}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "all, nothing but a mask", build, {2, 7, 3, 1, 7, 4}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "fewer keys", build, {2, 11, 6, 2, 4, 1}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "more keys", build, {2, 3, 6, 2, 17, 0}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "all, chunks", build, {1, 70, 20, 2, 150, 1}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "all, heads of 1", build, {1, 9, 3, 3, 9, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "all, a head of 128", build, {1, 5, 128, 1, 5, 3}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "no query", build, {2, 0, 4, 2, 3, 1}, 0, 0, 1e-6, 1e-6, 0}, \
	{id, "no token", build, {2, 0, 4, 2, 0, 1}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 5, 4, 2, 3, 0}, 0, 0, 0, 0, 0}
#define MATRIX(id, build, step) \
	{id, "one of each", build, {1, 1, 1, 1, 1, 1}, 0, 0, 1e-6, 1e-6, step}, \
	{id, "more keys", build, {2, 3, 7, 2, 2, 5}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "groups of heads", build, {2, 5, 4, 6, 2, 3}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "blocks", build, {1, 261, 67, 2, 1, 31}, 0, 0, 1e-4, 1e-5, 0}, \
	{id, "deep", build, {1, 9, 130, 1, 1, 129}, 0, 0, 1e-4, 1e-5, 0}, \
	{id, "whole tiles", build, {1, 64, 128, 2, 2, 64}, 0, 0, 1e-4, 1e-5, 0}, \
	{id, "no query", build, {2, 0, 3, 2, 2, 4}, 0, 0, 0, 0, 0}, \
	{id, "no key", build, {2, 3, 0, 2, 2, 4}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 3, 5, 2, 2, 4}, 0, 0, 0, 0, 0}
#define WEIGHTS(id, build, step) \
	{id, "one of each", build, {1, 1, 1, 1, 0, 0, 0}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "causal, biased", build, {2, 2, 7, 7, 0, 0, BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "more keys, masked", build, {2, 2, 5, 9, 0, 0, MASKED + BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "fewer keys", build, {2, 2, 9, 5, 0, 0, BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "window 3", build, {1, 2, 9, 9, 3, 0, BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "both sides, biased, window 3", build, {2, 3, 5, 7, 3, 0, BOTH_SIDES + BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "visible", build, {2, 2, 5, 7, 0, 0, BOTH_SIDES + VISIBLE + BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "visible of each head", build, {2, 3, 5, 7, 0, 0, BOTH_SIDES + 2 * VISIBLE}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "visible of each sequence", build, {2, 3, 5, 7, 0, 0, BOTH_SIDES + 3 * VISIBLE}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "the largest 3", build, {2, 2, 5, 9, 0, 3, BOTH_SIDES + APART}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "the largest 4, masked, biased", build, {2, 2, 31, 33, 20, 4, MASKED + BIASED}, 0, 0, 1e-5, 1e-5, 0}, \
	{id, "the largest 60", build, {1, 3, 7, 300, 0, 60, BIASED}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "nothing seen", build, {2, 2, 5, 7, 0, 0, MASKED + UNIFORM + BIASED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "long", build, {1, 2, 70, 263, 0, 0, MASKED + BIASED}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "no query", build, {2, 2, 0, 7, 0, 0, BIASED}, 0, 0, 0, 0, 0}, \
	{id, "no key", build, {2, 2, 3, 0, 0, 0, UNIFORM + BIASED}, 0, 0, 0, 0, 0}
#define MATRIX_STREAM(id, name) \
	{id, "one token", build_##name, {1, 1, 4, 1, 1, 0, 100}, 0, 1, 1e-5, 1e-5, 0}, \
	{id, "a ring of 5", build_##name, {3, 9, 5, 4, 5, 0, 200}, 0, 9, 1e-5, 1e-5, 0}, \
	{id, "memories", build_##name, {2, 7, 3, 2, 9, 1, 203}, 0, 7, 1e-5, 1e-5, 0}, \
	{id, "segments", build_ragged_##name, {4, 90, 5, 2, 29, 1, 200203}, 0, 60, 1e-5, 1e-5, 0}, \
	{id, "a long ring", build_##name, {2, 33, 31, 4, 70, 1, 102}, 0, 33, 2e-5, 2e-5, 0}, \
	{id, "tiles", build_##name, {1, 130, 3, 1, 140, 1, 101}, 100, 130, 2e-5, 2e-5, 0}, \
	{id, "ragged", build_ragged_##name, {5, 41, 6, 4, 8, 1, 202}, 0, 41, 1e-5, 1e-5, 0}, \
	{id, "ragged, no memory", build_ragged_##name, {9, 20, 33, 2, 40, 0, 200}, 0, 20, 1e-5, 1e-5, 0}, \
	{id, "ragged, no token", build_ragged_##name, {3, 0, 4, 2, 3, 0, 201}, 0, 0, 0, 0, 0}
#define ACTIVATION(name, kind) \
	{OP_activation, name, build_activation, {3, 31, kind}, 0, 0, 1e-6, 1e-6, STEP}, \
	{OP_activation, name ", long", build_activation, {7, LONG, kind, 1}, 0, 0, 1e-6, 1e-6, 0}, \
	{OP_activation, name ", zeros", build_activation, {3, 31, kind, 2}, 0, 0, 1e-6, 1e-6, 0}, \
	{OP_activation_grad, name, build_activation_grad, {3, 31, kind}, 0, 0, 2e-6, 2e-6, 0}, \
	{OP_activation_grad, name ", long", build_activation_grad, {7, LONG, kind}, 0, 0, 2e-6, 2e-6, 0}, \
	{OP_activation_grad, name ", frozen", build_activation_grad, {3, 300, kind, 1}, 0, 0, 2e-6, 2e-6, 0}
#define GLU(name, kind) \
	{OP_glu, name, build_glu, {3, 31, kind}, 0, 0, 2e-6, 2e-6, STEP}, \
	{OP_glu, name ", whole packs", build_glu, {5, 24, kind}, 0, 0, 2e-6, 2e-6, STEP}, \
	{OP_glu_grad, name, build_glu_grad, {3, 31, kind}, 0, 0, 4e-6, 4e-6, 0}, \
	{OP_glu_grad, name ", whole packs", build_glu_grad, {5, 24, kind}, 0, 0, 4e-6, 4e-6, 0}, \
	{OP_glu_grad, name ", frozen", build_glu_grad, {3, 104, kind, 1}, 0, 0, 4e-6, 4e-6, 0}
#define NORMALIZE(id, build, tolerance, step) \
	{id, "no row", build, {0, 3, 1, 2}, 0, 0, 0, 0, 0}, \
	{id, "one channel", build, {3, 1, 1, 2}, 0, 0, tolerance, tolerance, 0}, \
	{id, "odd", build, {3, NARROW, 1, 2}, 0, 0, tolerance, tolerance, step}, \
	{id, "odd, one gain", build, {3, 31, 1, 1}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups", build, {3, 33, 3, 0}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups of whole packs", build, {19, 96, 6, 0}, 0, 0, tolerance, tolerance, step}, \
	{id, "some below the floor", build, {9, 12, 3, 0, 20}, 0, 0, tolerance, tolerance, 0}, \
	{id, "all below the floor", build, {3, 40, 1, 2, 200}, 0, 0, tolerance, tolerance, step}, \
	{id, "whole packs", build, {99, 40, 1, 2}, 0, 0, 10 * tolerance, tolerance, 0}, \
	{id, "whole packs, one gain", build, {99, 40, 1, 1}, 0, 0, 10 * tolerance, tolerance, 0}, \
	{id, "many rows", build, {301, 31, 1, 2}, 0, 0, 10 * tolerance, tolerance, 0}, \
	{id, "wide", build, {5, 1025, 1, 2}, 0, 0, tolerance, tolerance, 0}, \
	{id, "wide, one gain", build, {5, 1025, 1, 1}, 0, 0, 5 * tolerance, tolerance, 0}, \
	{id, "several warps a row", build, {5, 1024, 1, 2}, 0, 0, tolerance, tolerance, 0}
/* clang-format on */

static const op_case cases[] = {
    {OP_gather, "no index", build_gather, {5, 3, 0, -1}, 0, 4, 0, 0, 0},
    {OP_gather, "padding row, outside", build_gather, {5, 3, 40, 0}, -1, 5, 0, 0, STEP},
    {OP_gather, "wide", build_gather, {101, NARROW, 31, -1}, 0, 100, 0, 0, STEP},
    {OP_gather, "rows of a deep table", build_gather_deep, {2, 5, 31, 3}, 0, 9, 0, 0, STEP},
    {OP_gather, "panels of f32", build_gather_panels, {37, 31, 19, DTYPE_PANEL_F32}, -1, 37, 0, 0, 0},
    {OP_gather, "panels of bf16", build_gather_panels, {37, 31, 19, DTYPE_PANEL_BF16}, -1, 37, 0, 0, 0},
    {OP_gather, "panels of int8", build_gather_panels, {37, 31, 19, DTYPE_PANEL_INT8}, -1, 37, 0, 0, 0},
    {OP_gather_grad, "no index", build_gather_grad, {5, 3, 0, -1}, 0, 4, 1e-6, 1e-6, 0},
    {OP_gather_grad, "padding row, outside", build_gather_grad, {5, 3, 40, 0}, -1, 5, 1e-6, 1e-6, 0},
    {OP_gather_grad, "wide", build_gather_grad, {101, NARROW, 31, -1}, 0, 100, 1e-6, 1e-6, 0},
    {OP_gather_grad, "rows of a deep table", build_gather_grad_deep, {2, 5, 31, 3}, 0, 9, 1e-6, 1e-6, 0},
    {OP_gather_grad, "one row often", build_gather_grad, {2, 31, 3000, -1}, 0, 1, 1e-4, 1e-5, 0},

    {OP_cast, "empty", build_cast, {0, 3, DTYPE_BF16}, 0, 0, 0, 0, 0},
    {OP_cast, "f32 to f32", build_cast, {3, 31, DTYPE_F32}, 0, 0, 0, 0, STEP},
    {OP_cast, "f32 to bf16", build_cast, {3, 31, DTYPE_BF16}, 0, 0, 0, 0, 0},
    {OP_cast, "f32 to bf16, long", build_cast, {7, LONG, DTYPE_BF16}, 0, 0, 0, 0, 0},
    {OP_cast, "bf16 to f32", build_cast, {3, 31, DTYPE_F32, [OP_CASE_REAL] = DTYPE_BF16}, 0, 0, 0, 0, 0},
    {OP_cast, "bf16 to f32, long", build_cast, {7, LONG, DTYPE_F32, [OP_CASE_REAL] = DTYPE_BF16}, 0, 0, 0, 0, 0},
    {OP_cast, "bf16 to bf16", build_cast, {3, 31, DTYPE_BF16, [OP_CASE_REAL] = DTYPE_BF16}, 0, 0, 0, 0, 0},

    ELEMENTWISE(OP_add, build_add, 0, STEP),
    ELEMENTWISE(OP_mul, build_mul, 1e-7, STEP),
    {OP_mul, "by itself", build_square, {3, 5}, 0, 0, 1e-7, 1e-7, STEP},
    ELEMENTWISE(OP_gate, build_gate, 3e-7, STEP),
    ELEMENTWISE(OP_scale, build_scale, 1e-7, STEP),
    ELEMENTWISE(OP_tanh, build_tanh, 1e-6, STEP),
    ELEMENTWISE(OP_secant_grad, build_secant_grad, 3e-7, 0),
    ELEMENTWISE(OP_scale_by, build_scale_by, 1e-7, 0),
    ELEMENTWISE(OP_gelu, build_gelu, 1e-6, STEP),
    ELEMENTWISE(OP_gelu_grad, build_gelu_grad, 2e-6, 0),
    {OP_gelu, "tanh form", build_gelu, {3, 31, 1}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_gelu, "tanh form, long", build_gelu, {7, LONG, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_gelu_grad, "tanh form", build_gelu_grad, {3, 31, 1}, 0, 0, 2e-6, 2e-6, 0},
    {OP_gelu_grad, "tanh form, long", build_gelu_grad, {7, LONG, 1}, 0, 0, 2e-6, 2e-6, 0},
    ELEMENTWISE(OP_fill, build_fill, 0, 0),
    ELEMENTWISE(OP_accumulate, build_accumulate, 3e-7, 0),

    {OP_dot_rows, "no row", build_dot_rows, {0, 3, 0}, 0, 0, 0, 0, 0},
    {OP_dot_rows, "nothing to sum", build_dot_rows, {3, 0, 1}, 0, 0, 0, 0, 0},
    {OP_dot_rows, "one element", build_dot_rows, {1, 1, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_dot_rows, "odd", build_dot_rows, {31, NARROW, 0}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "odd, with one row", build_dot_rows, {31, NARROW, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "even", build_dot_rows, {37, 136, 0}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "even, with one row", build_dot_rows, {37, 136, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "tall", build_dot_rows, {5000, 3, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "wide", build_dot_rows, {3, 5001, 0}, 0, 0, 1e-4, 1e-5, 0},

    {OP_sum_rows, "no row", build_sum_rows, {0, 3}, 0, 0, 0, 0, 0},
    {OP_sum_rows, "odd", build_sum_rows, {31, NARROW}, 0, 0, 1e-5, 1e-6, 0},
    {OP_sum_rows, "tall", build_sum_rows, {5000, 3}, 0, 0, 1e-4, 1e-5, 0},
    {OP_sum_rows, "wide", build_sum_rows, {3, 5000}, 0, 0, 1e-6, 1e-6, 0},

    {OP_matmul, "empty", build_matmul, {0, 3, 4, 0, 0}, 0, 0, 0, 0, 0},
    {OP_matmul, "nothing to sum", build_matmul, {2, 3, 0, 0, 1}, 0, 0, 0, 0, 0},
    {OP_matmul, "one element", build_matmul, {1, 1, 1, 0, 0}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_matmul, "plain", build_matmul, {3, 5, 7, 0, 0}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "b transposed", build_matmul, {3, 5, 7, 0, 1}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "a transposed", build_matmul, {3, 5, 7, 1, 0}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "both transposed", build_matmul, {3, 5, 7, 1, 1}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "large", build_matmul, {129, 65, 257, 0, 0}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "large, b transposed", build_matmul, {129, 65, 257, 0, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "large, a transposed", build_matmul, {129, 65, 257, 1, 0}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "large, both transposed", build_matmul, {129, 65, 257, 1, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "row vector", build_matmul, {1, 65, 257, 0, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "wide", build_matmul_wide, {33, 5, 67}, 0, 0, 1e-5, 1e-5, 0},
    {OP_matmul, "wide, nothing to sum", build_matmul_wide, {3, 5, 0}, 0, 0, 0, 0, 0},
    PANELS("panels of f32", DTYPE_PANEL_F32),
    PANELS("panels of bf16", DTYPE_PANEL_BF16),
    PANELS("panels of int8", DTYPE_PANEL_INT8),
    {OP_matmul, "leading dimensions", build_matmul_deep, {2, 3, 5, 4}, 0, 0, 1e-5, 1e-5, STEP},

    LINEAR(OP_linear, "f32", DTYPE_F32, STEP),
    LINEAR(OP_linear, "panels of f32", DTYPE_PANEL_F32, 0),
    LINEAR(OP_linear, "panels of bf16", DTYPE_PANEL_BF16, 0),
    LINEAR(OP_linear, "panels of int8", DTYPE_PANEL_INT8, 0),
    {OP_linear, "leading dimensions", build_linear_deep, {2, 3, 5, 4}, 0, 0, 1e-5, 1e-5, STEP},

    {OP_layernorm, "no row", build_layernorm, {0, 3}, 0, 0, 0, 0, 0},
    {OP_layernorm, "one channel", build_layernorm, {3, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_layernorm, "odd", build_layernorm, {3, NARROW}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_layernorm, "many rows", build_layernorm, {301, 31}, 0, 0, 5e-6, 5e-6, 0},
    {OP_layernorm, "wide", build_layernorm, {5, 1025}, 0, 0, 5e-6, 5e-6, 0},
    {OP_layernorm, "unbiased", build_layernorm, {3, NARROW, 1}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_layernorm, "unbiased, two channels", build_layernorm, {5, 2, 1}, 0, 0, 2e-6, 2e-6, 0},
    {OP_layernorm, "unbiased, whole packs", build_layernorm, {33, 40, 1}, 0, 0, 5e-6, 5e-6, 0},
    {OP_layernorm_grad, "unbiased", build_layernorm_grad, {3, NARROW, 0, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "unbiased, whole packs", build_layernorm_grad, {33, 40, 0, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_layernorm_grad, "unbiased, frozen", build_layernorm_grad, {3, NARROW, 1, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "no row", build_layernorm_grad, {0, 3}, 0, 0, 0, 0, 0},
    {OP_layernorm_grad, "one channel", build_layernorm_grad, {3, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "odd", build_layernorm_grad, {3, NARROW}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "many rows", build_layernorm_grad, {301, 31}, 0, 0, 1e-4, 1e-5, 0},
    {OP_layernorm_grad, "wide", build_layernorm_grad, {5, 1025}, 0, 0, 1e-5, 1e-5, 0},

    {OP_layernorm_grad, "frozen", build_layernorm_grad, {3, NARROW, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "frozen, whole packs", build_layernorm_grad, {99, 40, 1}, 0, 0, 1e-4, 1e-5, 0},

    {OP_activation, "empty", build_activation, {0, 3, ACTIVATION_SILU}, 0, 0, 0, 0, 0},
    {OP_activation_grad, "empty", build_activation_grad, {0, 3, ACTIVATION_SILU}, 0, 0, 0, 0, 0},
    ACTIVATION("relu", ACTIVATION_RELU),
    ACTIVATION("relu2", ACTIVATION_RELU2),
    ACTIVATION("silu", ACTIVATION_SILU),
    ACTIVATION("sigmoid", ACTIVATION_SIGMOID),
    {OP_glu, "no row", build_glu, {0, 3, ACTIVATION_SILU}, 0, 0, 0, 0, 0},
    {OP_glu, "long", build_glu, {67, 1027, ACTIVATION_SILU}, 0, 0, 2e-6, 2e-6, 0},
    {OP_glu_grad, "no row", build_glu_grad, {0, 3, ACTIVATION_SILU}, 0, 0, 0, 0, 0},
    {OP_glu_grad, "long", build_glu_grad, {67, 1027, ACTIVATION_SILU}, 0, 0, 4e-6, 4e-6, 0},
    GLU("relu", ACTIVATION_RELU),
    GLU("relu2", ACTIVATION_RELU2),
    GLU("silu", ACTIVATION_SILU),
    GLU("sigmoid", ACTIVATION_SIGMOID),
    GLU("gelu", ACTIVATION_GELU),
    GLU("gelu, tanh form", ACTIVATION_GELU_TANH),

    {OP_rotary, "no row", build_rotary, {0, 3, 2, 8, 8, 0}, 0, 0, 0, 0, 0},
    {OP_rotary, "nothing turns", build_rotary, {2, 3, 2, 5, 0, 0}, 0, 0, 0, 0, STEP},
    {OP_rotary, "halves", build_rotary, {2, 5, 3, 11, 6, 0, 7}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "halves, whole packs", build_rotary, {2, 9, 2, 48, 32, 0, 100}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "halves, whole heads", build_rotary, {1, 3, 2, 64, 64, 0, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_rotary, "interleaved", build_rotary, {2, 5, 3, 11, 6, INTERLEAVED, 3}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "interleaved, whole packs", build_rotary, {2, 9, 2, 48, 32, INTERLEAVED}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "wide", build_rotary, {2, 3, 1, 300, 260, 0, 5}, 0, 0, 1e-6, 1e-6, 0},
    {OP_rotary, "many rows", build_rotary, {3, 700, 4, 16, 8, TRANSPOSED}, 0, 0, 1e-6, 1e-6, 0},
    {OP_rotary, "positions", build_rotary, {2, 7, 2, 8, 8, POSITIONS}, -1000, 1000, 1e-6, 1e-6, STEP},
    {OP_rotary, "positions, large", build_rotary, {3, 40, 2, 32, 32, POSITIONS}, 1000000, INT32_MAX, 2e-6, 1e-6, 0},
    {OP_rotary, "xpos", build_rotary, {2, 15, 2, 12, 8, XPOS}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_rotary, "xpos, keys", build_rotary, {2, 9, 2, 48, 32, XPOS | INVERSE | TRANSPOSED, 40}, 0, 0, 2e-6, 4e-6, STEP},
    {OP_rotary,
     "xpos, positions",
     build_rotary,
     {2, 9, 2, 8, 8, XPOS | POSITIONS | INTERLEAVED},
     0,
     300,
     2e-6,
     4e-6,
     0},

    {OP_join_rows, "no sequence", build_join_rows, {0, 5, 6, 2, SHARED}, 0, 0, 0, 0, 0},
    {OP_join_rows, "no token", build_join_rows, {2, 0, 6, 2, SHARED}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "no row before", build_join_rows, {2, 3, 6, 0, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "shared", build_join_rows, {3, 5, 7, 2, SHARED}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "shared, whole packs", build_join_rows, {3, 5, 16, 4, SHARED}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "of each sequence", build_join_rows, {3, 5, 8, 2, EACH}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "by heads", build_join_rows, {2, 5, 9, 2, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "by heads, whole packs", build_join_rows, {2, 5, 24, 2, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "by heads, packs over heads", build_join_rows, {2, 5, 12, 2, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "integers", build_join_rows, {2, 5, 3, 2, INTEGERS}, 0, 9, 0, 0, 0},
    {OP_join_rows_grad, "no sequence", build_join_rows_grad, {0, 5, 6, 2, 0}, 0, 0, 0, 0, 0},
    {OP_join_rows_grad, "shared", build_join_rows_grad, {5, 7, 7, 3, 0}, 0, 0, 2e-6, 2e-6, 0},
    {OP_join_rows_grad, "of each sequence", build_join_rows_grad, {5, 7, 8, 3, EACH}, 0, 0, 2e-6, 2e-6, 0},
    {OP_join_rows_grad, "by heads", build_join_rows_grad, {5, 7, 24, 3, BY_HEADS}, 0, 0, 2e-6, 2e-6, 0},
    {OP_slice_rows, "no sequence", build_slice_rows, {0, 5, 6, 2, 1}, 0, 0, 0, 0, 0},
    {OP_slice_rows, "no row", build_slice_rows, {2, 5, 6, 2, 0}, 0, 0, 0, 0, 0},
    {OP_slice_rows, "in the middle", build_slice_rows, {2, 9, 7, 2, 4}, 0, 0, 0, 0, STEP},
    {OP_slice_rows, "to the end", build_slice_rows, {2, 9, 8, 3, -1}, 0, 0, 0, 0, STEP},
    {OP_slice_rows, "but the last", build_slice_rows, {2, 9, 8, 1, -2}, 0, 0, 0, 0, STEP},
    {OP_slice_rows, "integers", build_slice_rows, {2, 9, 3, 3, 2, 1}, 0, 9, 0, 0, 0},
    {OP_slice_rows_grad, "no sequence", build_slice_rows_grad, {0, 5, 6, 2, 1}, 0, 0, 0, 0, 0},
    {OP_slice_rows_grad, "in the middle", build_slice_rows_grad, {2, 9, 7, 2, 4}, 0, 0, 0, 0, 0},
    {OP_slice_rows_grad, "to the end", build_slice_rows_grad, {2, 9, 8, 3, -1}, 0, 0, 0, 0, 0},
    {OP_pad_mask, "no place", build_pad_mask, {3, 0, 0}, 0, 0, 0, 0, 0},
    {OP_pad_mask, "no token", build_pad_mask, {3, 0, 2}, 0, 0, 0, 0, 0},
    {OP_pad_mask, "odd", build_pad_mask, {3, 31, 5}, 0, 0, 0, 0, 0},
    {OP_mask_rows, "no row", build_mask_rows, {2, 0, 3}, 0, 0, 0, 0, 0},
    {OP_mask_rows, "odd", build_mask_rows, {2, 7, 5}, 0, 0, 0, 0, STEP},
    {OP_mask_rows, "whole packs", build_mask_rows, {2, 7, 24}, 0, 0, 0, 0, STEP},

    {OP_scale_columns, "no row", build_scale_columns, {0, 3, 1}, 0, 0, 0, 0, 0},
    {OP_scale_columns, "odd", build_scale_columns, {3, NARROW, 1}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns, "whole packs", build_scale_columns, {5, 40, 1}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns, "groups", build_scale_columns, {5, 33, 11}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns, "groups of whole packs", build_scale_columns, {5, 48, 16}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns_grad, "no row", build_scale_columns_grad, {0, 3, 1}, 0, 0, 0, 0, 0},
    {OP_scale_columns_grad, "odd", build_scale_columns_grad, {31, NARROW, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_scale_columns_grad, "groups", build_scale_columns_grad, {31, 33, 11}, 0, 0, 2e-5, 1e-6, 0},
    {OP_scale_columns_grad, "tall", build_scale_columns_grad, {2500, 6, 2}, 0, 0, 1e-4, 1e-5, 0},
    {OP_scale_columns_grad, "wide group", build_scale_columns_grad, {3, 1000, 1000}, 0, 0, 1e-4, 1e-5, 0},

    {OP_shift_rows, "no row", build_shift_rows, {2, 0, 6, 0, 1}, 0, 0, 0, 0, 0},
    {OP_shift_rows, "no shift", build_shift_rows, {2, 5, 6, 0, 0, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "causal", build_shift_rows, {2, 7, 7, 0, 2}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "causal, masked", build_shift_rows, {2, 7, 7, 0, 2, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "both ways", build_shift_rows, {2, 7, 11, -2, 2}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "both ways, masked", build_shift_rows, {2, 7, 11, -1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "whole packs", build_shift_rows, {3, 9, 56, -1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "further than there are rows", build_shift_rows, {2, 3, 40, 0, 9, 0}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "transposed, masked", build_shift_rows, {2, 7, 11, -1, 1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_stream, "no token", build_shift_stream, {3, 0, 4, 2}, 0, 0, 0, 0, 0},
    {OP_shift_stream, "nothing kept", build_shift_stream, {3, 5, 4, 0}, 0, 5, 0, 0, 0},
    {OP_shift_stream, "one token", build_shift_stream, {5, 1, 7, 2}, 0, 1, 0, 0, 0},
    {OP_shift_stream, "one token, masked", build_shift_stream, {5, 1, 7, 1, 0, 1}, 0, 1, 0, 0, 0},
    {OP_shift_stream, "many tokens", build_shift_stream, {3, 21, 13, 3}, 0, 21, 0, 0, 0},
    {OP_shift_stream, "many tokens, masked", build_shift_stream, {3, 21, 13, 3, 0, 1}, 0, 21, 0, 0, 0},
    {OP_shift_stream, "a long memory", build_shift_stream, {2, 5, 40, 30}, 0, 5, 0, 0, 0},
    {OP_shift_stream, "rows in front", build_shift_stream, {3, 9, 13, 4, 2, 1}, 0, 9, 0, 0, 0},
    {OP_shift_stream, "ragged", build_ragged_shift_stream, {7, 97, 31, 4}, 0, 97, 0, 0, 0},
    {OP_shift_stream, "ragged, rows in front", build_ragged_shift_stream, {7, 60, 15, 4, 6}, 0, 60, 0, 0, 0},
    {OP_shift_stream, "ragged, masked", build_ragged_shift_stream, {9, 200, 8, 2, 0, 1}, 0, 60, 0, 0, 0},
    {OP_shift_stream, "ragged, no token", build_ragged_shift_stream, {3, 0, 4, 2}, 0, 0, 0, 0, 0},
    ELEMENTWISE(OP_scale_gradient, build_scale_gradient, 0, STEP),

    {OP_gru, "no row", build_gru, {0, 3}, 0, 0, 0, 0, 0},
    {OP_gru, "odd", build_gru, {3, 31}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_gru, "whole packs", build_gru, {5, 24}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_gru_grad, "no row", build_gru_grad, {0, 3}, 0, 0, 0, 0, 0},
    {OP_gru_grad, "odd", build_gru_grad, {3, 31}, 0, 0, 4e-6, 4e-6, 0},
    {OP_gru_grad, "whole packs", build_gru_grad, {5, 24}, 0, 0, 4e-6, 4e-6, 0},
    {OP_gru_grad, "frozen", build_gru_grad, {5, 32, 1}, 0, 0, 4e-6, 4e-6, 0},

    NORMALIZE(OP_normalize, build_normalize, 3e-6, STEP / 8),
    NORMALIZE(OP_normalize_grad, build_normalize_grad, 1e-5, 0),
    {OP_normalize_grad, "frozen", build_normalize_grad, {3, NARROW, 1, 2, 0, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_normalize_grad, "frozen, whole packs", build_normalize_grad, {99, 40, 1, 1, 0, 1}, 0, 0, 1e-4, 1e-5, 0},

    {OP_dropout, "empty", build_dropout, {0, 3, 10, 0}, 0, 0, 0, 0, 0},
    {OP_dropout, "off", build_dropout, {3, 31, 0, 0}, 0, 0, 0, 0, STEP},
    {OP_dropout, "odd", build_dropout, {3, 31, 10, 7}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_dropout, "long", build_dropout, {7, LONG, 50, 1}, 0, 0, 1e-6, 1e-6, 0},

    {OP_hide_keys, "no key", build_hide_keys, {3, 0, 50, 0, 0, 0}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "none hidden", build_hide_keys, {3, 31, 0, 0, 0, 1}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "some", build_hide_keys, {5, 33, 15, 1, 1, 0}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "masked", build_hide_keys, {3, 100, 30, 0, 0, 1}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "all but one", build_hide_keys, {2, 7, 99, 1, 0, 0}, 0, 0, 0, 0, 0},

    ATTENTION(OP_additive_attention, build_attention, STEP),
    {OP_additive_attention, "loud scores", build_attention, {2, 65, 32, 2, 7, 0, 1}, 0, 0, 2e-2, 1e-5, 0},
    {OP_additive_attention, "loud scores, global", build_attention, {2, 65, 32, 2, 0, 1, 1}, 0, 0, 2e-2, 1e-5, 0},
    ATTENTION(OP_additive_attention_grad, build_attention_grad, 0),
    FROZEN_ATTENTION("no token", 2, 0, 4, 2, 3, 1),
    FROZEN_ATTENTION("global, masked", 2, 33, 6, 2, 0, 1),
    FROZEN_ATTENTION("window 7", 2, 70, 32, 2, 7, 0),
    FROZEN_ATTENTION("window 1000, masked", 1, 100, 31, 1, 1000, 1),
    FROZEN_ATTENTION("a head in pieces", 1, 21, 259, 1, 5, 1),
    ATTENTION(OP_additive_stream, build_stream, 0),
    {OP_additive_stream, "ragged, one sequence", build_ragged_stream, {1, 40, 6, 2, 5, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged", build_ragged_stream, {7, 97, 31, 1, 6, 0}, 0, 97, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, masked", build_ragged_stream, {9, 200, 64, 4, 16, 1}, 0, 60, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, global", build_ragged_stream, {5, 133, 32, 2, 0, 1}, 0, 20, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, many short", build_ragged_stream, {64, 64, 24, 2, 4, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, no token", build_ragged_stream, {3, 0, 4, 2, 3, 0}, 0, 0, 0, 0, 0},
    {OP_additive_stream, "loud scores", build_stream, {2, 65, 32, 2, 7, 1, 1}, 0, 65, 2e-2, 1e-5, 0},

    SOFTMAX(OP_softmax_attention, build_softmax, 0, STEP),
    SOFTMAX(OP_softmax_attention, build_softmax, 30, STEP),
    SOFTMAX_FORMS_OF(OP_softmax_attention, build_softmax_form, STEP),
    {OP_softmax_attention, "loud scores", build_softmax, {2, 80, 32, 2, 7, 1, -1}, 0, 0, 1e-4, 1e-5, 0},
    SOFTMAX(OP_softmax_attention_grad, build_softmax_grad, 0, 0),
    SOFTMAX(OP_softmax_attention_grad, build_softmax_grad, 30, 0),
    SOFTMAX_FORMS_OF(OP_softmax_attention_grad, build_softmax_form_grad, 0),
    SOFTMAX_FORM(OP_softmax_attention_grad, "frozen, groups", build_softmax_form_grad, GROUPED, 13, FROZEN, 1e-5, 0),
    SOFTMAX_FORM(OP_softmax_attention_grad, "frozen, uniform", build_softmax_form_grad, BLIND, 7, FROZEN, 1e-5, 0),
    SOFTMAX_FORM(OP_softmax_attention_grad, "frozen, bias", build_softmax_form_grad, MULTI_QUERY, 11, FROZEN, 1e-5, 0),
    FROZEN_SOFTMAX("no token", 2, 0, 4, 2, 3, 1, 0),
    FROZEN_SOFTMAX("global, masked", 2, 21, 10, 2, 0, 1, 0),
    FROZEN_SOFTMAX("window 7", 2, 33, 6, 2, 7, 0, 0),
    FROZEN_SOFTMAX("one wide head", 1, 21, 129, 1, 0, 0, 0),
    FROZEN_SOFTMAX("tiles, window 50, masked", 1, 133, 16, 1, 50, 1, 0),
    FROZEN_SOFTMAX("dropout 30", 2, 33, 6, 2, 0, 1, 30),
    SOFTMAX(OP_softmax_stream, build_softmax_stream, 0, 0),
    {OP_softmax_stream, "ragged, one sequence", build_ragged_softmax_stream, {1, 40, 6, 2, 5, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged", build_ragged_softmax_stream, {7, 97, 31, 1, 0, 0}, 0, 97, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged, masked", build_ragged_softmax_stream, {9, 200, 64, 4, 50, 1}, 0, 60, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged, tiles", build_ragged_softmax_stream, {4, 300, 96, 3, 129, 0}, 0, 200, 2e-5, 2e-5, 0},
    {OP_softmax_stream, "ragged, many short", build_ragged_softmax_stream, {64, 64, 24, 2, 4, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_softmax_stream, "ragged, no token", build_ragged_softmax_stream, {3, 0, 4, 2, 3, 0}, 0, 0, 0, 0, 0},
    {OP_softmax_stream, "loud scores", build_softmax_stream, {2, 80, 32, 2, 7, 1, -1}, 0, 80, 1e-4, 1e-5, 0},
    {OP_softmax_stream,
     "apart",
     build_softmax_stream_options,
     {3, 40, 5, 2, 9, 0, OPTIONS(2, 0, 0, 0)},
     0,
     40,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "grouped",
     build_softmax_stream_options,
     {5, 120, 13, 6, 70, 1, OPTIONS(2, 0, 0, 0)},
     0,
     90,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "biased",
     build_softmax_stream_options,
     {3, 150, 16, 2, 80, 0, OPTIONS(2, 0, 0, 1)},
     0,
     99,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "memories",
     build_softmax_stream_options,
     {3, 60, 9, 2, 17, 1, OPTIONS(1, 3, 0, 0)},
     0,
     40,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "many memories",
     build_softmax_stream_options,
     {2, 90, 33, 3, 5, 0, OPTIONS(3, 70, 72, 1)},
     0,
     40,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "near past",
     build_softmax_stream_options,
     {3, 90, 8, 4, 30, 1, OPTIONS(4, 0, 6, 0)},
     0,
     60,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "every option",
     build_softmax_stream_options,
     {3, 160, 61, 4, 40, 1, OPTIONS(2, 5, 20, 1)},
     0,
     60,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "segments",
     build_softmax_stream_options,
     {3, 90, 8, 4, 29, 1, SEGMENTS(20, 4, 0, 0, 0)},
     0,
     60,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "segments of one token",
     build_softmax_stream_options,
     {2, 40, 5, 2, 4, 0, SEGMENTS(1, 1, 2, 0, 1)},
     0,
     30,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "segments alone",
     build_softmax_stream_options,
     {4, 60, 6, 2, 7, 1, SEGMENTS(7, 2, 0, 0, 0)},
     0,
     40,
     1e-5,
     1e-5,
     0},
    {OP_softmax_stream,
     "segments, every option",
     build_softmax_stream_options,
     {3, 160, 61, 4, 70, 1, SEGMENTS(37, 2, 5, 45, 1)},
     0,
     90,
     1e-5,
     1e-5,
     0},
    {OP_source_store, "plain", build_source_store, {3, 21, 5, 2, 30, 0, OPTIONS(2, 0, 0, 0)}, 0, 0, 0, 0, 0},
    {OP_source_store,
     "masked, of any length",
     build_source_store,
     {6, 75, 5, 4, 75, 1, OPTIONS(2, 0, 0, 0)},
     0,
     75,
     0,
     0,
     0},
    {OP_source_store, "no token", build_source_store, {2, 0, 4, 2, 3, 0, OPTIONS(1, 0, 0, 0)}, 0, 0, 0, 0, 0},
    {OP_source_attention,
     "plain",
     build_source_attention,
     {3, 21, 5, 2, 30, 0, OPTIONS(2, 0, 0, 0)},
     0,
     0,
     1e-5,
     1e-5,
     0},
    {OP_source_attention,
     "grouped, masked",
     build_source_attention,
     {4, 130, 13, 6, 130, 1, OPTIONS(2, 0, 0, 0)},
     9,
     130,
     1e-5,
     1e-5,
     0},
    {OP_source_attention,
     "memories",
     build_source_attention,
     {2, 90, 33, 3, 99, 1, OPTIONS(3, 70, 0, 0)},
     1,
     90,
     1e-5,
     1e-5,
     0},
    {OP_source_attention, "no token", build_source_attention, {2, 0, 4, 2, 3, 0, OPTIONS(1, 0, 0, 0)}, 0, 0, 0, 0, 0},

    DILATED(OP_dilated_attention, build_dilated, STEP),
    DILATED(OP_dilated_attention_grad, build_dilated_grad, 0),
    {OP_dilated_stream, "one token", build_dilated_stream, {1, 1, 4, 4, 7, 0}, 0, 1, 2e-6, 2e-6, 0},
    {OP_dilated_stream, "one branch", build_dilated_stream, {2, 33, 10, 2, 0, 0}, 0, 33, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "single tokens", build_dilated_stream, {3, 4, 12, 4, 7, 0}, 0, 4, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "blocks of heads", build_dilated_stream, {3, 37, 12, 4, 7, 0}, 0, 37, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "heads in turn, masked", build_dilated_stream, {3, 21, 24, 3, 2, 1}, 0, 21, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "rows without a branch", build_dilated_stream, {2, 31, 12, 4, 3, 1}, 0, 31, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "no multiples", build_dilated_stream, {2, 19, 9, 3, 4, 0}, 0, 19, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "tiles", build_dilated_stream, {2, 170, 64, 2, 5, 1}, 0, 170, 2e-5, 2e-5, 0},
    {OP_dilated_stream, "a wide head", build_dilated_stream, {1, 70, 129, 1, 6, 0}, 0, 70, 2e-5, 2e-5, 0},
    {OP_dilated_stream, "ragged, one sequence", build_ragged_dilated_stream, {1, 40, 6, 2, 1, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "ragged", build_ragged_dilated_stream, {7, 97, 31, 1, 2, 0}, 0, 97, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "ragged, masked", build_ragged_dilated_stream, {9, 200, 64, 4, 5, 1}, 0, 60, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "ragged, many short", build_ragged_dilated_stream, {64, 64, 24, 2, 7, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_dilated_stream, "ragged, no token", build_ragged_dilated_stream, {3, 0, 4, 2, 1, 0}, 0, 0, 0, 0, 0},

    LINEAR_ATTENTION(OP_linear_attention, build_linear_attention, STEP),
    {OP_linear_attention, "all, many keys", build_linear_attention, {1, 5, 2, 1, 1100, 1}, 0, 0, 2e-5, 2e-5, 0},
    LINEAR_ATTENTION(OP_linear_attention_grad, build_linear_attention_grad, 0),
    {OP_linear_stream, "one token", build_linear_stream, {1, 1, 4, 4, 0, 0}, 0, 1, 2e-6, 2e-6, 0},
    {OP_linear_stream, "heads of 5", build_linear_stream, {2, 33, 10, 2, 0, 0}, 0, 33, 1e-5, 1e-5, 0},
    {OP_linear_stream, "heads of 8, masked", build_linear_stream, {3, 21, 24, 3, 0, 1}, 0, 21, 1e-5, 1e-5, 0},
    {OP_linear_stream, "heads of 32", build_linear_stream, {5, 40, 128, 4, 0, 0}, 0, 40, 2e-5, 2e-5, 0},
    {OP_linear_stream, "heads of 64, masked", build_linear_stream, {2, 70, 128, 2, 0, 1}, 0, 70, 2e-5, 2e-5, 0},
    {OP_linear_stream, "a head of 128", build_linear_stream, {2, 20, 128, 1, 0, 0}, 0, 20, 2e-5, 2e-5, 0},
    {OP_linear_stream, "a head of 129", build_linear_stream, {1, 20, 129, 1, 0, 0}, 0, 20, 2e-5, 2e-5, 0},
    {OP_linear_stream, "ragged, one sequence", build_ragged_linear_stream, {1, 40, 6, 2, 0, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_linear_stream, "ragged", build_ragged_linear_stream, {7, 97, 31, 1, 0, 0}, 0, 97, 2e-5, 2e-5, 0},
    {OP_linear_stream, "ragged, masked", build_ragged_linear_stream, {9, 200, 64, 4, 0, 1}, 0, 60, 2e-5, 2e-5, 0},
    {OP_linear_stream, "ragged, many short", build_ragged_linear_stream, {64, 64, 24, 2, 0, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_linear_stream, "ragged, no token", build_ragged_linear_stream, {3, 0, 4, 2, 0, 0}, 0, 0, 0, 0, 0},

    MATRIX(OP_attention_scores, build_attention_scores, STEP),
    MATRIX(OP_attention_apply, build_attention_apply, STEP),
    MATRIX(OP_attention_apply_transposed, build_attention_apply_transposed, 0),
    WEIGHTS(OP_attention_weights, build_attention_weights, STEP),
    WEIGHTS(OP_attention_weights_grad, build_attention_weights_grad, 0),
    {OP_mix_heads, "one head", build_mix_heads, {1, 1, 1, 1, 1, 0}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_mix_heads, "three of two", build_mix_heads, {2, 2, 3, 5, 7, 0}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_mix_heads, "transposed", build_mix_heads, {2, 2, 3, 5, 7, 1}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_mix_heads, "many", build_mix_heads, {2, 33, 31, 9, 67, 0}, 0, 0, 1e-5, 1e-5, 0},
    {OP_mix_heads, "no query", build_mix_heads, {2, 2, 3, 0, 7, 0}, 0, 0, 0, 0, 0},
    {OP_mix_heads_grad, "three of two", build_mix_heads_grad, {2, 2, 3, 5, 7}, 0, 0, 1e-5, 1e-5, 0},
    {OP_mix_heads_grad, "parts", build_mix_heads_grad, {2, 3, 8, 70, 71}, 0, 0, 2e-4, 1e-5, 0},
    {OP_mix_heads_grad, "no query", build_mix_heads_grad, {2, 2, 3, 0, 7}, 0, 0, 0, 0, 0},
    {OP_mix_heads_grad, "no sequence", build_mix_heads_grad, {0, 2, 3, 5, 7}, 0, 0, 0, 0, 0},
    MATRIX_STREAM(OP_stream_scores, stream_scores),
    MATRIX_STREAM(OP_stream_apply, stream_apply),
    MATRIX_STREAM(OP_stream_store, stream_store),
    {OP_t5_buckets, "nothing", build_t5_buckets, {0, 0, 32, 128, 0}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "one side", build_t5_buckets, {-5, 305, 32, 128, 0}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "both sides", build_t5_buckets, {-1000, 2001, 32, 128, 1}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "odd", build_t5_buckets, {-3, 203, 5, 77, 0}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "far", build_t5_buckets, {0, LONG, 200, 10000, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "nothing", build_distances, {0, 0, 0, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "signed", build_distances, {-17, 33, 0, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "absolute", build_distances, {-17, 33, 1, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "logarithms", build_distances, {-1000, 3001, 0, 1}, 0, 0, 1e-7, 1e-7, 0},
    {OP_distances, "absolute logarithms", build_distances, {-17, 33, 1, 1}, 0, 0, 1e-7, 1e-7, 0},
    {OP_alibi, "nothing", build_alibi, {0, 0, 3, 3, 0}, 0, 0, 0, 0, 0},
    {OP_alibi, "twelve heads", build_alibi, {-7, 40, 12, 12, 0}, 0, 0, 0, 3e-7, 0},
    {OP_alibi, "some of the heads", build_alibi, {-7, 15, 5, 3, 0}, 0, 0, 0, 3e-7, 0},
    {OP_alibi, "learned", build_alibi, {-7, 15, 5, 5, 1}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_sinusoids, "nothing", build_sinusoids, {2, 0, 4, SINUSOIDS_EXACT}, 0, 0, 0, 0, 0},
    {OP_sinusoids, "exact", build_sinusoids, {2, 300, 6, SINUSOIDS_EXACT}, 0, 300, 2e-7, 0, 0},
    {OP_sinusoids, "exact, far", build_sinusoids, {3, 40, 130, SINUSOIDS_EXACT}, 1000000, INT32_MAX, 4e-7, 0, 0},
    {OP_sinusoids, "by exponentials", build_sinusoids, {3, 40, 34, SINUSOIDS_EXP}, 0, 1000000, 2e-7, 0, 0},
    {OP_sinusoids, "by powers", build_sinusoids, {3, 40, 34, SINUSOIDS_POW}, 0, 1000000, 2e-7, 0, 0},
    {OP_alibi, "learned, some", build_alibi, {-2, 9, 5, 3, 1}, 0, 0, 1e-6, 1e-6, STEP},

    {OP_linear_cross_entropy, "no row", build_linear_cross_entropy, {0, 3, 5, 0, 1}, 0, 4, 0, 0, 0},
    {OP_linear_cross_entropy, "all ignored", build_linear_cross_entropy, {3, 4, 5, 0, 1}, -1, -1, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "no channel", build_linear_cross_entropy, {3, 0, 5, 10, 1}, -1, 5, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "one class", build_linear_cross_entropy, {3, 4, 1, 10, 1}, -1, 0, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "plain", build_linear_cross_entropy, {5, 3, 7, 0, 0}, -1, 7, 2e-6, 2e-6, STEP},
    {OP_linear_cross_entropy,
     "biased, smoothed",
     build_linear_cross_entropy,
     {9, 4, 7, 10, 1},
     -1,
     7,
     2e-6,
     2e-6,
     STEP},
    {OP_linear_cross_entropy,
     "smoothed to the last",
     build_linear_cross_entropy,
     {5, 4, 6, 100, 1},
     0,
     5,
     2e-6,
     2e-6,
     STEP},
    {OP_linear_cross_entropy,
     "many classes",
     build_linear_cross_entropy,
     {33, 31, 1025, 10, 1},
     -1,
     1025,
     1e-5,
     1e-5,
     0},
    {OP_linear_cross_entropy, "chunks of rows", build_linear_cross_entropy, {2100, 5, 3, 0, 1}, -1, 3, 1e-5, 1e-5, 0},
    {OP_linear_cross_entropy, "loud", build_linear_cross_entropy, {7, 33, 130, 10, 1, 1}, -1, 130, 2e-3, 1e-5, 0},

    {OP_sum_squares, "empty", build_sum_squares, {0}, 0, 0, 0, 0, 0},
    {OP_sum_squares, "odd", build_sum_squares, {31}, 0, 0, 0, 1e-6, 0},
    {OP_sum_squares, "long", build_sum_squares, {7 * LONG}, 0, 0, 0, 1e-6, 0},

    {OP_adamw, "empty", build_adamw, {0, 100}, 0, 0, 0, 0, 0},
    {OP_adamw, "clipped", build_adamw, {31, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "not clipped", build_adamw, {LONG, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "in the order of transformers", build_adamw, {LONG, 100, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "norm not finite", build_adamw, {33, 100, 1}, 0, 0, 0, 0, 0},

    {OP_sgd, "empty", build_sgd, {0, 100}, 0, 0, 0, 0, 0},
    {OP_sgd, "clipped", build_sgd, {31, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "not clipped", build_sgd, {LONG, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "normalized", build_sgd, {33, 100, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "norm not finite", build_sgd, {33, 100, 1}, 0, 0, 0, 0, 0},

    {OP_sample, "no row", build_sample, {0, 3, 0}, 0, 0, 0, 0, 0},
    {OP_sample, "one token", build_sample, {3, 1, 0}, 0, 0, 0, 0, 0},
    {OP_sample, "odd", build_sample, {31, 33, 0}, 0, 0, 0, 0, 0},
    {OP_sample, "adjusted", build_sample, {24, 257, 24 * 5}, 0, 0, 0, 0, 0},
    {OP_sample, "many rows", build_sample, {129, 1025, 129 * 3}, 0, 0, 0, 0, 0},
    {OP_sample, "wide", build_sample, {7, LONG, 7 * 100}, 0, 0, 0, 0, 0},
    {OP_adamw, "narrow, empty", build_adamw, {0, 100, 0, 1}, 0, 0, 0, 0, 0},
    {OP_adamw, "narrow", build_adamw, {31, 100, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "narrow, long", build_adamw, {LONG, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "narrow, norm not finite", build_adamw, {33, 100, 1, 1}, 0, 0, 0, 0, 0},
};

int op_cases_count(void)
{
	return sizeof cases / sizeof cases[0];
}

const op_case *op_cases_at(int index)
{
	return &cases[index];
}

bool op_cases_bf16(const op_case *c, op_case *out)
{
	*out = *c;
	out->arg[OP_CASE_REAL] = DTYPE_BF16;
	out->step = 0; /* a difference of rounded numbers is not one */
	if (c->arg[OP_CASE_REAL] == DTYPE_BF16)
		return false;
	graph *g = graph_new();
	if (!g)
		abort();
	out->build(g, out->arg);
	bool found = false;
	for (value v = 0; v < graph_value_count(g); v++)
		found |= graph_value(g, v)->role == ROLE_INPUT && graph_value(g, v)->type == DTYPE_BF16;
	graph_free(g);
	return found;
}
