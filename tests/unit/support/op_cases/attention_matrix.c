/* Attention whose matrix of weights is a tensor, over complete sequences and continued from a state. */
#include "tests/unit/support/op_cases/family.h"

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

/* Options in the last argument of attention_weights. VISIBLE: 1, 2 or 3 of the trailing dimensions of its matrix but
 * one. */
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

static void build_mix_heads(graph *g, const int64_t *arg) /* batch, heads, heads out, queries, keys, transposed */
{
	value out, x = f32(g, "x", SHAPE4(arg[0], arg[1], arg[3], arg[4]));
	value p = f32(g, "p", arg[5] ? SHAPE2(arg[1], arg[2]) : SHAPE2(arg[2], arg[1]));
	graph_apply(g, OP_mix_heads, (value[]){x, p}, 2, &(mix_heads_params){arg[5]}, &out);
}

static void build_mix_heads_grad(graph *g, const int64_t *arg) /* as build_mix_heads */
{
	value dp, x = f32(g, "x", SHAPE4(arg[0], arg[1], arg[3], arg[4]));
	value dy = f32(g, "dy", SHAPE4(arg[0], arg[2], arg[3], arg[4]));
	graph_apply(g, OP_mix_heads_grad, (value[]){x, dy, f32(g, "p", SHAPE2(arg[2], arg[1]))}, 3, NULL, &dp);
}

/* sequences, tokens, width of a head of keys, heads, window, masked, 1e8 times `far`, 1e7 times `near`, 10000 times the
 * segment, 100 times the heads of keys and the memories */
typedef struct matrix_stream_case {
	matrix_stream_params p;
	stream_values at;
	int64_t memories;
} matrix_stream_case;

/* Values have one channel more than keys. */
static matrix_stream_case matrix_stream_begin(graph *g, const int64_t *arg, bool ragged)
{
	const int64_t heads = arg[6] / 100 % 100;
	matrix_stream_case c = {.p = {.heads = arg[3],
	                              .kv_heads = heads,
	                              .window = arg[4],
	                              .offset = STREAM_OFFSET,
	                              .key_width = heads * arg[2],
	                              .value_width = heads * (arg[2] + 1),
	                              .scale = 0.4f,
	                              .segment = arg[6] / 10000 % 1000,
	                              .near = arg[6] / 10000000 % 10,
	                              .far = arg[6] / 100000000},
	                        .memories = arg[6] % 100};
	const stream_values before = stream_before(g, arg, STREAM_OFFSET + matrix_stream_floats(c.p) + 1);
	op_stream_store(g, f32(g, "key before", stream_shape(arg, c.p.key_width, false)),
	                f32(g, "value before", stream_shape(arg, c.p.value_width, false)), before, c.p);
	c.at = stream_now(g, arg, before, ragged);
	return c;
}

static void stream_scores_case(graph *g, const int64_t *arg, bool ragged)
{
	const matrix_stream_case c = matrix_stream_begin(g, arg, ragged);
	value q = f32(g, "q", stream_shape(arg, arg[2] * arg[3], ragged));
	value k = f32(g, "k", stream_shape(arg, c.p.key_width, ragged));
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
	const int64_t rows = ragged ? arg[1] : arg[0] * arg[1];
	value v = f32(g, "v", stream_shape(arg, c.p.value_width, ragged));
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
	value k = f32(g, "k", stream_shape(arg, c.p.key_width, ragged));
	op_stream_store(g, k, f32(g, "v", stream_shape(arg, c.p.value_width, ragged)), c.at, c.p);
}

/* sequences, tokens, width of a head of keys, heads, capacity, masked, 1000 times the memories in the slots, 100 times
 * the heads of keys and the memories given; of a stored source. The queries of all sequences are concatenated, as many
 * in all as the longest source has tokens. */
static matrix_stream_case matrix_source(graph *g, const int64_t *arg)
{
	const int64_t heads = arg[6] / 100 % 10, keys = heads * arg[2], values = heads * (arg[2] + 1);
	matrix_stream_case c = {.p = {.heads = arg[3],
	                              .kv_heads = heads,
	                              .window = arg[4],
	                              .offset = STREAM_OFFSET,
	                              .key_width = keys,
	                              .value_width = values,
	                              .scale = 0.4f,
	                              .source = true},
	                        .memories = arg[6] % 100};
	const int64_t count = arg[6] / 1000, behind = STREAM_OFFSET + source_state_floats(keys, values, arg[4]);
	const source_params source = {arg[3], heads, values, arg[4], STREAM_OFFSET, 0.4f};
	const source_params stored = {arg[3], heads, values, count, behind, 0.4f};
	const stream_values at = stream_before(g, arg, behind + source_state_floats(keys, values, count));
	value mask = arg[5] ? i32(g, "mask source", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_source_store(g, f32(g, "k", SHAPE3(arg[0], arg[1], keys)), f32(g, "v", SHAPE3(arg[0], arg[1], values)),
	                at.pool, at.slot, i32(g, "length", SHAPE1(arg[0])), mask, source);
	if (count) {
		c.p.stored = (slot_rows){count, behind};
		op_source_store(g, f32(g, "memory k", SHAPE3(arg[0], count, keys)),
		                f32(g, "memory v", SHAPE3(arg[0], count, values)), at.pool, at.slot, VALUE_NONE,
		                VALUE_NONE, stored);
	}
	c.at = stream_now(g, arg, at, true);
	c.at.mask = VALUE_NONE;
	return c;
}

static void build_source_scores(graph *g, const int64_t *arg)
{
	const matrix_stream_case c = matrix_source(g, arg);
	value memory = c.memories ? f32(g, "memory", SHAPE2(c.memories, c.p.key_width)) : VALUE_NONE;
	op_stream_scores(g, f32(g, "q", stream_shape(arg, arg[2] * arg[3], true)), VALUE_NONE, memory, c.at, c.p);
}

static void build_source_apply(graph *g, const int64_t *arg)
{
	const matrix_stream_case c = matrix_source(g, arg);
	value memory = c.memories ? f32(g, "memory", SHAPE2(c.memories, c.p.value_width)) : VALUE_NONE;
	value weights = f32(g, "weights", SHAPE4(arg[1], arg[3], 1, c.memories + c.p.stored.count + c.p.window));
	op_stream_apply(g, f32(g, "q", stream_shape(arg, 1, true)), weights, memory, c.at, c.p);
}

static void build_stream_store(graph *g, const int64_t *arg)
{
	stream_store_case(g, arg, false);
}

static void build_ragged_stream_store(graph *g, const int64_t *arg)
{
	stream_store_case(g, arg, true);
}

/* clang-format off */
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
#define MATRIX_PARTS(id, name) \
	{id, "the own segment", build_##name, {3, 3, 5, 4, 29, 1, 100110203}, 0, 3, 1e-5, 1e-5, 0}, \
	{id, "earlier segments, ragged", build_ragged_##name, {4, 90, 5, 2, 29, 1, 10110203}, 0, 60, 1e-5, 1e-5, 0}, \
	{id, "the segment before", build_##name, {2, 33, 31, 4, 70, 1, 210070102}, 0, 33, 2e-5, 2e-5, 0}
#define MATRIX_SOURCE(id, build) \
	{id, "a source", build, {3, 21, 5, 4, 30, 0, 200}, 0, 21, 1e-5, 1e-5, 0}, \
	{id, "a source, masked, memories", build, {4, 90, 13, 3, 99, 1, 103}, 0, 60, 2e-5, 2e-5, 0}, \
	{id, "a source, memories in the slots", build, {2, 33, 6, 4, 70, 1, 5200}, 0, 33, 1e-5, 1e-5, 0}, \
	{id, "a source, short", build, {5, 7, 4, 2, 9, 1, 3200}, 0, 3, 1e-5, 1e-5, 0}
/* clang-format on */

static const op_case cases[] = {
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
    MATRIX_PARTS(OP_stream_scores, stream_scores),
    MATRIX_SOURCE(OP_stream_scores, build_source_scores),
    MATRIX_STREAM(OP_stream_apply, stream_apply),
    MATRIX_PARTS(OP_stream_apply, stream_apply),
    MATRIX_SOURCE(OP_stream_apply, build_source_apply),
    MATRIX_STREAM(OP_stream_store, stream_store),
};

const op_case_family op_cases_attention_matrix = OP_CASES(cases);
