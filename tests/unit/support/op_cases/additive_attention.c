/* Additive attention, over complete sequences and continued from a state. */
#include "tests/unit/support/op_cases/family.h"

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

/* build_attention after an initial state; window is 0. */
static attention_values initial(graph *g, const int64_t *arg)
{
	const value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2]));
	const value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2]));
	const value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	const attention_values pooled = op_additive_attention(g, x, w, mask, arg[3], 0);
	return op_additive_initial(g, pooled, f32(g, "score", SHAPE1(arg[3])), f32(g, "mean", SHAPE1(arg[2])), x, w,
	                           mask);
}

static void build_initial(graph *g, const int64_t *arg)
{
	initial(g, arg);
}

static void build_initial_grad(graph *g, const int64_t *arg)
{
	const attention_values y = initial(g, arg);
	const value dg = real(g, arg, "dg", SHAPE3(arg[0], arg[1], arg[2]));
	value grads[2];
	graph_apply(g, OP_additive_initial_grad,
	            (value[]){graph_find(g, "score"), graph_find(g, "mean"), y.pooled, y.log_normalizer, dg}, 5, NULL,
	            grads);
}

/* As build_attention, of a stream. own: tokens read earlier have scores of their own, which w does not change. */
static void stream_case(graph *g, const int64_t *arg, bool ragged, bool own)
{
	const additive_stream_params p = {arg[3], arg[4], STREAM_OFFSET};
	const stream_values before =
	    stream_before(g, arg, STREAM_OFFSET + additive_state_floats(arg[2], arg[3], arg[4]) + 1);
	value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2]));
	value earlier = own ? f32(g, "w before", SHAPE1(arg[2])) : w;
	op_additive_stream(g, f32(g, "x before", stream_shape(arg, arg[2], false)), earlier, before.pool, before.slot,
	                   before.position, before.length, before.mask, before.start, p);
	stream_values at = stream_now(g, arg, before, ragged);
	if (own)
		at.length = op_fill_integer(g, SHAPE1(arg[0]), (int32_t)arg[1]);
	op_additive_stream(g, f32(g, "x", stream_shape(arg, arg[2], ragged)), w, at.pool, at.slot, at.position,
	                   at.length, at.mask, at.start, p);
}

static void build_stream_gradient(graph *g, const int64_t *arg)
{
	stream_case(g, arg, false, true);
}

static void build_stream(graph *g, const int64_t *arg)
{
	stream_case(g, arg, false, false);
}

static void build_ragged_stream(graph *g, const int64_t *arg)
{
	stream_case(g, arg, true, false);
}

/* clang-format off */
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
#define INITIAL(id, build, step) \
	{id, "", build, {2, 33, 6, 2}, 0, 0, 2e-5, 2e-5, step}, \
	{id, "masked", build, {2, 33, 6, 2, 0, 1}, 0, 0, 2e-5, 2e-5, step}, \
	{id, "a head", build, {1, 100, 31, 1, 0, 1}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "heads of a channel", build, {3, 31, 99, 99, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "long", build, {3, 300, 64, 2, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "loud scores", build, {2, 65, 32, 2, 0, 1, 1}, 0, 0, 2e-2, 1e-5, 0}, \
	{id, "no token", build, {2, 0, 4, 2, 0, 0}, 0, 0, 2e-5, 2e-5, 0}, \
	{id, "no sequence", build, {0, 5, 4, 2, 0, 0}, 0, 0, 2e-5, 2e-5, 0}
/* clang-format on */

static const op_case cases[] = {
    ATTENTION(OP_additive_attention, build_attention, STEP),
    {OP_additive_attention, "loud scores", build_attention, {2, 65, 32, 2, 7, 0, 1}, 0, 0, 2e-2, 1e-5, 0},
    {OP_additive_attention, "loud scores, global", build_attention, {2, 65, 32, 2, 0, 1, 1}, 0, 0, 2e-2, 1e-5, 0},
    ATTENTION(OP_additive_attention_grad, build_attention_grad, 0),
    FROZEN_ATTENTION("no token", 2, 0, 4, 2, 3, 1),
    FROZEN_ATTENTION("global, masked", 2, 33, 6, 2, 0, 1),
    FROZEN_ATTENTION("window 7", 2, 70, 32, 2, 7, 0),
    FROZEN_ATTENTION("window 1000, masked", 1, 100, 31, 1, 1000, 1),
    FROZEN_ATTENTION("a head in pieces", 1, 21, 259, 1, 5, 1),
    INITIAL(OP_additive_initial, build_initial, STEP),
    INITIAL(OP_additive_initial_grad, build_initial_grad, 0),
    ATTENTION(OP_additive_stream, build_stream, 0),
    {OP_additive_stream, "gradient, window", build_stream_gradient, {2, 9, 6, 2, 5, 1}, 0, 9, 1e-5, 1e-5, STEP},
    {OP_additive_stream, "gradient, global", build_stream_gradient, {3, 7, 4, 1, 0, 0}, 0, 7, 1e-5, 1e-5, STEP},
    {OP_additive_stream, "ragged, one sequence", build_ragged_stream, {1, 40, 6, 2, 5, 0}, 0, 40, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged", build_ragged_stream, {7, 97, 31, 1, 6, 0}, 0, 97, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, masked", build_ragged_stream, {9, 200, 64, 4, 16, 1}, 0, 60, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, global", build_ragged_stream, {5, 133, 32, 2, 0, 1}, 0, 20, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, many short", build_ragged_stream, {64, 64, 24, 2, 4, 0}, 0, 9, 1e-5, 1e-5, 0},
    {OP_additive_stream, "ragged, no token", build_ragged_stream, {3, 0, 4, 2, 3, 0}, 0, 0, 0, 0, 0},
    {OP_additive_stream, "loud scores", build_stream, {2, 65, 32, 2, 7, 1, 1}, 0, 65, 2e-2, 1e-5, 0},
};

const op_case_family op_cases_additive_attention = OP_CASES(cases);
