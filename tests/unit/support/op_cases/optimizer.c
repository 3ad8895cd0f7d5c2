/* Updates of parameters. */
#include "tests/unit/support/op_cases/family.h"

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

static const op_case cases[] = {
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

    {OP_adamw, "narrow, empty", build_adamw, {0, 100, 0, 1}, 0, 0, 0, 0, 0},
    {OP_adamw, "narrow", build_adamw, {31, 100, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "narrow, long", build_adamw, {LONG, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "narrow, norm not finite", build_adamw, {33, 100, 1, 1}, 0, 0, 0, 0, 0},
};

const op_case_family op_cases_optimizer = OP_CASES(cases);
