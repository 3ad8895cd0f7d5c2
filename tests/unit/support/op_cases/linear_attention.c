/* Linear attention, over complete sequences and continued from a state. */
#include "tests/unit/support/op_cases/family.h"

/* batch, queries, channels, heads, keys (0: causal), kind of mask (0: none). Features are drawn away from 0, where φ'
 * has a kink. */
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

/* sequences, tokens, channels, heads, 0, masked; of a stream */
static void linear_stream_case(graph *g, const int64_t *arg, bool ragged, bool kept)
{
	const linear_stream_params p = {arg[3], STREAM_OFFSET, LINEAR_ATTENTION_EPS};
	const stream_values before = stream_before(g, arg, STREAM_OFFSET + linear_state_floats(arg[2], arg[3]) + 1);
	const shape then = stream_shape(arg, arg[2], false), now = stream_shape(arg, arg[2], ragged);
	op_linear_stream(g, f32(g, "query before", then), f32(g, "key before", then), f32(g, "value before", then),
	                 before.pool, before.slot, before.position, before.length, before.mask, before.start,
	                 VALUE_NONE, p);
	const value pool = kept ? op_scale(g, before.pool, 1) : VALUE_NONE;
	const stream_values at = stream_now(g, arg, before, ragged);
	op_linear_stream(g, f32(g, "query", now), f32(g, "key", now), f32(g, "value", now), at.pool, at.slot,
	                 at.position, at.length, at.mask, at.start, pool, p);
}

/* sequences, tokens of each, channels, heads */
static void build_linear_stream_grad(graph *g, const int64_t *arg)
{
	const linear_stream_params p = {arg[3], STREAM_OFFSET, LINEAR_ATTENTION_EPS};
	const shape s = SHAPE3(arg[0], arg[1], arg[2]), normals = SHAPE3(arg[0], arg[1], arg[3]);
	const value in[] = {
	    f32(g, "query", s),
	    f32(g, "before", SHAPE2(arg[0] + 2, STREAM_OFFSET + linear_state_floats(arg[2], arg[3]))),
	    i32(g, "slot", SHAPE1(arg[0])),
	    i32(g, "position", SHAPE1(arg[0])),
	    f32(g, "y", s),
	    op_add(g, f32(g, "v", normals), op_fill(g, normals, 1)),
	    f32(g, "dy", s),
	};
	value out;
	graph_apply(g, OP_linear_stream_grad, in, 7, &p, &out);
	graph_output(g, out, "dq");
}

static void build_linear_stream(graph *g, const int64_t *arg)
{
	linear_stream_case(g, arg, false, false);
}

static void build_linear_stream_gradient(graph *g, const int64_t *arg)
{
	linear_stream_case(g, arg, false, true);
}

static void build_ragged_linear_stream(graph *g, const int64_t *arg)
{
	linear_stream_case(g, arg, true, false);
}

/* clang-format off */
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
	{id, "no sequence", build, {0, 5, 4, 2, 3, 0}, 0, 0, 0, 0, 0}, \
	{id, "causal, many chunks, leading mask", build, {1, 600, 2, 1, 0, 2}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, many chunks", build, {1, 600, 2, 1, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "causal, many chunks, masked", build, {1, 600, 2, 1, 0, 1}, 0, 0, 2e-5, 2e-5, 0}
/* clang-format on */

static const op_case cases[] = {
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
    {OP_linear_stream_grad, "no token", build_linear_stream_grad, {2, 0, 4, 2}, 0, 0, 0, 0, 0},
    {OP_linear_stream_grad, "heads of 5", build_linear_stream_grad, {3, 7, 10, 2}, 0, 7, 1e-5, 1e-5, 0},
    {OP_linear_stream_grad, "heads of 32", build_linear_stream_grad, {5, 40, 128, 4}, 0, 40, 2e-5, 2e-5, 0},
    {OP_linear_stream_grad, "a head of 129", build_linear_stream_grad, {1, 20, 129, 1}, 0, 20, 2e-5, 2e-5, 0},
    {OP_linear_stream, "gradient", build_linear_stream_gradient, {2, 9, 6, 2, 0, 1}, 0, 9, 1e-5, 1e-5, STEP},
    {OP_linear_stream,
     "gradient of one head",
     build_linear_stream_gradient,
     {3, 5, 5, 1, 0, 0},
     0,
     5,
     1e-5,
     1e-5,
     STEP},
    {OP_linear_stream, "ragged, one sequence", build_ragged_linear_stream, {1, 40, 6, 2, 0, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_linear_stream, "ragged", build_ragged_linear_stream, {7, 97, 31, 1, 0, 0}, 0, 97, 2e-5, 2e-5, 0},
    {OP_linear_stream, "ragged, masked", build_ragged_linear_stream, {9, 200, 64, 4, 0, 1}, 0, 60, 2e-5, 2e-5, 0},
    {OP_linear_stream, "ragged, many short", build_ragged_linear_stream, {64, 64, 24, 2, 0, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_linear_stream, "ragged, no token", build_ragged_linear_stream, {3, 0, 4, 2, 0, 0}, 0, 0, 0, 0, 0},
};

const op_case_family op_cases_linear_attention = OP_CASES(cases);
