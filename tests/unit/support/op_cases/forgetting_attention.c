/* Additive attention that forgets: whole sequences, the recurrent form and the gradient. */
#include "tests/unit/support/op_cases/family.h"

/* arguments: batch, length, channels, heads, rate, masked, loud */
enum { NO_RATE, BY_TOKEN, BY_HEAD, BONUS = 4 /* added to the rate */ };

/* log σ of the input `name`, so that it is at most 0. */
static value rate(graph *g, const int64_t *arg, const char *name, shape tokens)
{
	tokens.dim[2] = arg[3];
	if (arg[4] % BONUS == NO_RATE)
		return VALUE_NONE;
	return op_activation(g, f32(g, name, arg[4] % BONUS == BY_HEAD ? SHAPE1(arg[3]) : tokens), ACTIVATION_LOG_SIGMOID);
}

/* With bonus a channel is a head. */
static value bonus(graph *g, const int64_t *arg)
{
	return arg[4] >= BONUS ? f32(g, "bonus", SHAPE1(arg[3])) : VALUE_NONE;
}

static value scores(graph *g, const int64_t *arg, const char *name, shape tokens)
{
	tokens.dim[2] = arg[3];
	return f32(g, name, tokens);
}

static void build_pooling(graph *g, const int64_t *arg)
{
	const shape tokens = SHAPE3(arg[0], arg[1], arg[2]);
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_forgetting_attention(g, real(g, arg, "x", tokens), scores(g, arg, arg[6] % FROZEN ? "a loud" : "a", tokens),
	                        rate(g, arg, "f wide", tokens), bonus(g, arg), mask);
}

static void build_pooling_grad(graph *g, const int64_t *arg)
{
	const shape tokens = SHAPE3(arg[0], arg[1], arg[2]);
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE, grads[4];
	value v = real(g, arg, "x", tokens), a = scores(g, arg, arg[6] % FROZEN ? "a loud" : "a", tokens), f = rate(g, arg, "f wide", tokens), own = bonus(g, arg);
	pooled_values y = op_forgetting_attention(g, v, a, f, own, mask);
	graph_apply(g, OP_forgetting_attention_grad,
	            (value[]){v, a, f, mask, y.pooled, y.log_normalizer, real(g, arg, "dg", tokens), own}, 8,
	            &(forgetting_params){arg[6] >= FROZEN}, grads);
}

/* all: every sequence reads all tokens, and earlier tokens have numbers of their own. */
static void pooling_stream(graph *g, const int64_t *arg, bool ragged, bool all)
{
	const shape tokens = stream_shape(arg, arg[2], false), now = stream_shape(arg, arg[2], ragged);
	const stream_values before =
	    stream_before(g, arg, STREAM_OFFSET + forgetting_state_floats(arg[2], arg[3]) + 1);
	op_forgetting_stream(g, f32(g, "x before", tokens), scores(g, arg, arg[6] ? "a before loud" : "a before", tokens),
	                     rate(g, arg, "f before", tokens), VALUE_NONE, before, STREAM_OFFSET);
	stream_values at = stream_now(g, arg, before, ragged);
	if (all)
		at.length = op_fill_integer(g, SHAPE1(arg[0]), (int32_t)arg[1]);
	op_forgetting_stream(g, f32(g, "x", now), scores(g, arg, arg[6] ? "a loud" : "a", now), rate(g, arg, "f wide", now), bonus(g, arg), at,
	                     STREAM_OFFSET);
}

static void build_pooling_stream(graph *g, const int64_t *arg)
{
	pooling_stream(g, arg, false, false);
}

static void build_pooling_stream_gradient(graph *g, const int64_t *arg)
{
	pooling_stream(g, arg, false, true);
}

static void build_ragged_pooling_stream(graph *g, const int64_t *arg)
{
	pooling_stream(g, arg, true, false);
}

/* clang-format off */
#define RATES(id, build, name, B, N, D, H, masked, loud, step) WITH_RATES(id, build, name, B, N, D, H, masked, loud, 0, step)
#define WITH_RATES(id, build, name, B, N, D, H, masked, loud, bonus, step) \
	{id, name, build, {B, N, D, H, NO_RATE + bonus, masked, loud}, 0, N, loud == 1 ? 2e-2 : 2e-5, 2e-5, step}, \
	{id, name ", forgetting", build, {B, N, D, H, BY_TOKEN + bonus, masked, loud}, 0, N, loud == 1 ? 2e-2 : 2e-5, 2e-5, step}, \
	{id, name ", one rate a head", build, {B, N, D, H, BY_HEAD + bonus, masked, loud}, 0, N, loud == 1 ? 2e-2 : 2e-5, 1e-4, step}
#define OWN(id, build, step) \
	WITH_RATES(id, build, "bonus", 2, 33, 5, 5, 0, 0, BONUS, step), \
	WITH_RATES(id, build, "bonus, masked", 2, 33, 3, 3, 1, 0, BONUS, step), \
	WITH_RATES(id, build, "bonus, many heads", 3, 70, 131, 131, 1, 0, BONUS, 0), \
	WITH_RATES(id, build, "bonus, loud scores", 2, 65, 32, 32, 1, 1, BONUS, 0), \
	WITH_RATES(id, build, "bonus, long", 1, 3000, 16, 16, 0, 0, BONUS, 0), \
	WITH_RATES(id, build, "bonus, no token", 2, 0, 4, 4, 1, 0, BONUS, 0)
#define POOLING(id, build, step) \
	RATES(id, build, "small", 2, 33, 6, 2, 0, 0, step), \
	RATES(id, build, "small, masked", 2, 33, 6, 2, 1, 0, step), \
	RATES(id, build, "heads of one channel", 2, 21, 37, 37, 1, 0, 0), \
	RATES(id, build, "heads of 8", 1, 300, 128, 16, 0, 0, 0), \
	RATES(id, build, "heads of 32, masked", 3, 70, 96, 3, 1, 0, 0), \
	RATES(id, build, "one head", 1, 100, 31, 1, 0, 0, 0), \
	RATES(id, build, "many heads", 2, 40, 272, 34, 0, 0, 0), \
	RATES(id, build, "one token", 1, 1, 4, 4, 0, 0, step), \
	RATES(id, build, "no token", 2, 0, 4, 2, 1, 0, 0), \
	RATES(id, build, "no sequence", 0, 5, 4, 2, 0, 0, 0), \
	RATES(id, build, "loud scores", 2, 65, 32, 2, 1, 1, 0), \
	RATES(id, build, "long", 1, 3000, 16, 2, 0, 0, 0)
#define RAGGED(name, B, N, D, H, masked, most) RAGGED_OWN(name, B, N, D, H, masked, most, 0)
#define RAGGED_OWN(name, B, N, D, H, masked, most, bonus) \
	{OP_forgetting_stream, "ragged, " name, build_ragged_pooling_stream, {B, N, D, H, BY_TOKEN + bonus, masked}, \
	 0, most, 1e-5, 1e-5, 0}
/* clang-format on */

static const op_case cases[] = {
    POOLING(OP_forgetting_attention, build_pooling, STEP),
    POOLING(OP_forgetting_attention_grad, build_pooling_grad, 0),
    OWN(OP_forgetting_attention, build_pooling, STEP),
    OWN(OP_forgetting_attention_grad, build_pooling_grad, 0),
    OWN(OP_forgetting_stream, build_pooling_stream, 0),
    WITH_RATES(OP_forgetting_attention_grad, build_pooling_grad, "bonus, frozen", 2, 33, 6, 6, 1, FROZEN, BONUS, 0),
    WITH_RATES(OP_forgetting_stream, build_pooling_stream_gradient, "bonus, gradient", 2, 9, 4, 4, 0, 0, BONUS, STEP),
    WITH_RATES(OP_forgetting_stream, build_pooling_stream_gradient, "bonus, gradient, masked", 2, 9, 3, 3, 1, 0, BONUS, STEP),
    RAGGED_OWN("bonus", 7, 97, 31, 31, 1, 97, BONUS),
    RATES(OP_forgetting_attention_grad, build_pooling_grad, "frozen", 2, 33, 6, 2, 1, FROZEN, 0),
    POOLING(OP_forgetting_stream, build_pooling_stream, 0),
    RATES(OP_forgetting_stream, build_pooling_stream_gradient, "gradient", 2, 9, 6, 2, 0, 0, STEP),
    RATES(OP_forgetting_stream, build_pooling_stream_gradient, "gradient, masked", 2, 9, 6, 3, 1, 0, STEP),
    RAGGED("one sequence", 1, 40, 6, 2, 0, 40),
    RAGGED("several", 7, 97, 31, 1, 0, 97),
    RAGGED("masked", 9, 200, 64, 4, 1, 60),
    RAGGED("many short", 64, 64, 24, 3, 0, 9),
    RAGGED("no token", 3, 0, 4, 2, 0, 0),
};

const op_case_family op_cases_forgetting_attention = OP_CASES(cases);
