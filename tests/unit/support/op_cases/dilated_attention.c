/* Dilated attention, over complete sequences and continued from a state. */
#include "tests/unit/support/op_cases/family.h"

/* Flags of dilated attention: those of the pattern in the list, and those of the call's kind. */
enum { DILATED_CAUSAL = 1, DILATED_ZERO_KEYS = 2, DILATED_EXACT = 4, DILATED_MIXED = 8 };

static const dilated_pattern dilated_patterns[] = {
    {1, {64}, {1}, DILATED_BLOCK},
    {2, {12, 24}, {1, 2}, DILATED_BLOCK},
    {2, {12, 24}, {1, 2}, DILATED_MOD},
    {2, {12, 24}, {2, 3}, DILATED_BLOCK}, /* no branch keeps some of the rows */
    {2, {9, 14}, {1, 9}, DILATED_MOD},    /* heads without a row; the length is no multiple of a segment */
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

/* As dilated_inputs, of a stream. */
static void dilated_stream_case(graph *g, const int64_t *arg, bool ragged)
{
	const dilated_stream_params p = {dilated_patterns[arg[4]], arg[3], STREAM_OFFSET, 0.4f};
	const stream_values before =
	    stream_before(g, arg, STREAM_OFFSET + dilated_state_floats(arg[2], &p.pattern) + 1);
	const shape then = stream_shape(arg, arg[2], false), now = stream_shape(arg, arg[2], ragged);
	op_dilated_stream(g, f32(g, "query before", then), f32(g, "key before", then), f32(g, "value before", then),
	                  before.pool, before.slot, before.position, before.length, before.mask, before.start, p);
	const stream_values at = stream_now(g, arg, before, ragged);
	op_dilated_stream(g, f32(g, "query", now), f32(g, "key", now), f32(g, "value", now), at.pool, at.slot,
	                  at.position, at.length, at.mask, at.start, p);
}

static void build_dilated_stream(graph *g, const int64_t *arg)
{
	dilated_stream_case(g, arg, false);
}

static void build_ragged_dilated_stream(graph *g, const int64_t *arg)
{
	dilated_stream_case(g, arg, true);
}

/* clang-format off */
#define DILATED(id, build, step) \
	{id, "one token", build, {1, 1, 2, 2, 1, 0, DILATED_EXACT}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "one branch", build, {1, 33, 6, 2, 0, 0, DILATED_EXACT}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "blocks of heads", build, {2, 22, 6, 2, 1, 0, DILATED_EXACT}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "zero keys", build, {1, 22, 6, 2, 1, 0, DILATED_EXACT | DILATED_ZERO_KEYS}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "mixed, causal, masked", build, {1, 21, 10, 2, 1, 1, DILATED_MIXED | DILATED_CAUSAL}, 0, 0, 1e-5, 1e-5, \
	 step}, \
	{id, "rows without a branch, masked", build, {1, 22, 6, 2, 3, 1, DILATED_EXACT}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "no multiples, zero keys, masked", build, {1, 19, 9, 3, 4, 1, DILATED_EXACT | DILATED_ZERO_KEYS}, 0, 0, \
	 1e-5, 1e-5, step}, \
	{id, "mixed", build, {2, 20, 3, 1, 6, 0, DILATED_MIXED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "causal, masked", build, {1, 29, 10, 2, 2, 1, DILATED_EXACT | DILATED_CAUSAL}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "tiles", build, {1, 170, 40, 1, 5, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "tiles, zero keys, masked", build, {1, 170, 70, 2, 5, 1, DILATED_ZERO_KEYS}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "tiles, causal", build, {1, 170, 40, 1, 5, 0, DILATED_CAUSAL}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "a wide head", build, {1, 20, 129, 1, 6, 0, DILATED_CAUSAL}, 0, 0, 1e-4, 2e-5, 0}, \
	{id, "detached", build, {1, 22, 12, 2, 1, 0, 0}, 0, 0, 1e-5, 1e-5, 0}, \
	{id, "no token", build, {2, 0, 4, 2, 1, 1, 0}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 5, 4, 2, 1, 0, DILATED_MIXED}, 0, 0, 0, 0, 0}
/* clang-format on */

static const op_case cases[] = {
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
};

const op_case_family op_cases_dilated_attention = OP_CASES(cases);
