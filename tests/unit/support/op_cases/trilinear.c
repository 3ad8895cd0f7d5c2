/* The trilinear model's ops: quantized numbers, products of channels, attention that decays with distance. */
#include "tests/unit/support/op_cases/family.h"

/* rows, channels, mode, bits */
static void build_quantize(graph *g, const int64_t *arg)
{
	const char *name = arg[4] ? "zeros" : "x";
	op_quantize(g, f32(g, name, SHAPE2(arg[0], arg[1])), (quantize_params){(quantize_mode)arg[2], arg[3]});
}

/* rows, channels */
static void build_trilinear(graph *g, const int64_t *arg)
{
	const shape s = SHAPE2(arg[0], arg[1]);
	op_trilinear(g, real(g, arg, "k", s), real(g, arg, "u", s));
}

static void build_trilinear_grad(graph *g, const int64_t *arg)
{
	const shape s = SHAPE2(arg[0], arg[1]);
	value grads[2],
	    in[] = {real(g, arg, "k", s), real(g, arg, "u", s), real(g, arg, "dp", SHAPE2(arg[0], 16 * arg[1]))};
	graph_apply(g, OP_trilinear_grad, in, 3, NULL, grads);
}

/* count, heads; slope and hyper in hundredths; first distance */
static void build_decay_biases(graph *g, const int64_t *arg)
{
	op_decay_biases(g, (decay_biases_params){.count = arg[0],
	                                         .heads = arg[1],
	                                         .slope = (float)arg[2] / 100,
	                                         .hyper = (float)arg[3] / 100,
	                                         .first = arg[4]});
}

enum { KEY_CHANNELS = 6, VALUE_CHANNELS = 4, MASKED = 1, PLACED = 2, DECAYS = 4, BOTH_WAYS = 8 };

static decay_params decay_of(const int64_t *arg)
{
	const bool decays = arg[4] & DECAYS;
	return (decay_params){.heads = arg[2],
	                      .window = arg[3],
	                      .scale = 0.4f,
	                      .slope = decays ? 0.25f : 0,
	                      .hyper = decays ? 20.0f / 3 : 0,
	                      .bidirectional = arg[4] & BOTH_WAYS};
}

/* batch, length, heads, window, flags, channels of a head of keys and of values (0: KEY_CHANNELS and VALUE_CHANNELS) */
static void decay_inputs(graph *g, const int64_t *arg, value in[6])
{
	const int64_t keys = arg[2] * (arg[5] ? arg[5] : KEY_CHANNELS),
	              values = arg[2] * (arg[6] ? arg[6] : VALUE_CHANNELS);
	in[0] = real(g, arg, "query", SHAPE3(arg[0], arg[1], keys));
	in[1] = real(g, arg, "key", SHAPE3(arg[0], arg[1], keys));
	in[2] = real(g, arg, "value", SHAPE3(arg[0], arg[1], values));
	in[3] = real(g, arg, "first key", SHAPE1(keys));
	in[4] = real(g, arg, "first value", SHAPE1(values));
	in[5] = arg[4] & MASKED ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
}

static void build_decay_attention(graph *g, const int64_t *arg)
{
	value in[6];
	decay_inputs(g, arg, in);
	op_decay_attention(g, in[0], in[1], in[2], in[3], in[4], in[5], VALUE_NONE, decay_of(arg));
}

static void build_decay_merge_grad(graph *g, const int64_t *arg)
{
	value in[6], grads[3];
	decay_inputs(g, arg, in);
	const decay_params p = decay_of(arg);
	const decay_values a = op_decay_attention(g, in[0], in[1], in[2], in[3], in[4], in[5], VALUE_NONE, p);
	const shape u = graph_value(g, a.u)->shape;
	const value positions = arg[4] & PLACED ? i32(g, "index", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	graph_apply(g, OP_decay_merge_grad,
	            (value[]){in[0], in[3], in[4], a.u, a.log_normalizer, real(g, arg, "dy", u), positions}, 7, &p,
	            grads);
}

/* Rows have positions of their own, as in a stream. */
static void build_decay_merge(graph *g, const int64_t *arg)
{
	value in[6], out[2];
	decay_inputs(g, arg, in);
	const decay_params p = decay_of(arg);
	const value rest[] = {in[0],
	                      in[3],
	                      in[4],
	                      in[2],
	                      f32(g, "wide", SHAPE3(arg[0], arg[1], arg[2])),
	                      i32(g, "index", SHAPE2(arg[0], arg[1]))};
	graph_apply(g, OP_decay_merge, rest, 6, &p, out);
}

/* clang-format off */
#define DECAY(id, build, step) \
	{id, "one token", build, {1, 1, 1, 0, DECAYS}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "all before, heads", build, {2, 9, 3, 0, 0}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "all before, decays", build, {2, 9, 2, 0, DECAYS}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "window 1", build, {2, 7, 1, 1, 0}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "window 4, decays, masked", build, {2, 21, 2, 4, DECAYS | MASKED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "tiles, masked", build, {1, 150, 1, 100, DECAYS | MASKED, 24, 32}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "tiles, all before", build, {1, 133, 2, 0, DECAYS, 33, 16}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "many rows", build, {3, 301, 1, 5, DECAYS, 16, 16}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "both ways, one token", build, {2, 1, 1, 0, BOTH_WAYS}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "both ways, decays, masked", build, {2, 11, 2, 0, BOTH_WAYS | DECAYS | MASKED}, 0, 0, 1e-5, 1e-5, step}, \
	{id, "tiles, both ways", build, {1, 133, 2, 0, BOTH_WAYS, 33, 16}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "no token, both ways", build, {2, 0, 1, 0, BOTH_WAYS}, 0, 0, 0, 0, 0}, \
	{id, "no token", build, {2, 0, 1, 3, 0}, 0, 0, 0, 0, 0}, \
	{id, "no sequence", build, {0, 4, 1, 3, DECAYS}, 0, 0, 0, 0, 0}
#define TRILINEAR(id, build, step) \
	{id, "one block", build, {1, 16}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "three blocks", build, {5, 48}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "many rows", build, {333, 32}, 0, 0, 2e-6, 2e-6, 0}, \
	{id, "no row", build, {0, 16}, 0, 0, 0, 0, 0}, \
	{id, "no channel", build, {3, 0}, 0, 0, 0, 0, 0}
/* clang-format on */

/* Codes and steps must be bit-exact: no tolerance. A difference over two steps is exactly that of x, so finite
 * differences see the gradient. */
static const op_case cases[] = {
    {OP_quantize, "a tensor", build_quantize, {3, 33, QUANTIZE_TENSOR, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor, 4 bits", build_quantize, {31, 33, QUANTIZE_TENSOR, 4}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor, 2 bits", build_quantize, {32, 32, QUANTIZE_TENSOR, 2}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor of parts", build_quantize, {7, 5003, QUANTIZE_TENSOR, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor of zeros", build_quantize, {1, 1, QUANTIZE_TENSOR, 2, 1}, 0, 0, 0, 0, 0},
    {OP_quantize, "no element", build_quantize, {0, 7, QUANTIZE_TENSOR, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "rows", build_quantize, {5, 33, QUANTIZE_ROWS, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "rows of zeros", build_quantize, {5, 1, QUANTIZE_ROWS, 8, 1}, 0, 0, 0, 0, 0},
    {OP_quantize, "rows of parts", build_quantize, {3, 70001, QUANTIZE_ROWS, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "many rows", build_quantize, {700, 64, QUANTIZE_ROWS, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "no row", build_quantize, {0, 7, QUANTIZE_ROWS, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "a fixed step", build_quantize, {5, 33, QUANTIZE_FIXED, 8}, 0, 0, 0, 0, STEP},
    {OP_quantize, "a fixed step, many", build_quantize, {1, LONG, QUANTIZE_FIXED, 8}, 0, 0, 0, 0, 0},
    TRILINEAR(OP_trilinear, build_trilinear, STEP),
    TRILINEAR(OP_trilinear_grad, build_trilinear_grad, 0),
    {OP_decay_biases, "no distance", build_decay_biases, {0, 1, 50, 0}, 0, 0, 0, 0, 0},
    {OP_decay_biases, "the token itself", build_decay_biases, {1, 3, 50, 0}, 0, 0, 0, 0, 0},
    {OP_decay_biases, "slope and hyper", build_decay_biases, {65, 3, 25, 667}, 0, 0, 1e-7, 1e-7, 0},
    {OP_decay_biases, "both ways", build_decay_biases, {65, 3, 25, 667, -32}, 0, 0, 1e-7, 1e-7, 0},
    {OP_decay_biases, "far", build_decay_biases, {LONG, 1, 50, 2000}, 0, 0, 1e-7, 1e-7, 0},
    DECAY(OP_decay_merge, build_decay_attention, STEP),
    {OP_decay_merge, "positions", build_decay_merge, {2, 9, 2, 4, DECAYS}, 0, 300, 1e-5, 1e-5, 0},
    {OP_decay_merge, "positions, many rows", build_decay_merge, {1, 900, 4, 4, DECAYS, 32, 16}, 0, 300, 1e-5, 1e-5, 0},
    DECAY(OP_decay_merge_grad, build_decay_merge_grad, 0),
    {OP_decay_merge_grad, "positions", build_decay_merge_grad, {2, 9, 2, 4, DECAYS | PLACED}, 0, 30, 1e-5, 1e-5, 0},
};

const op_case_family op_cases_trilinear = OP_CASES(cases);
