/* Ops that treat every element, or every channel of a row, independently. */
#include "tests/unit/support/op_cases/family.h"

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

static void build_axpby(graph *g, const int64_t *arg) /* rows, width */
{
	const shape s = SHAPE2(arg[0], arg[1]);
	op_axpby(g, real(g, arg, "x", s), real(g, arg, "b", s), 3.4445f, -0.75f);
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
	static const char *const contents[] = {"x wide feature", "x wide", "x with zeros", "x loud"};
	op_activation(g, real(g, arg, contents[arg[3]], SHAPE2(arg[0], arg[1])), (activation_kind)arg[2]);
}

static void build_activation_grad(graph *g, const int64_t *arg) /* rows, width, kind, frozen */
{
	value dx, x = real(g, arg, arg[3] ? "x with zeros" : "x wide", SHAPE2(arg[0], arg[1]));
	activation_params p = {(activation_kind)arg[2], arg[3]};
	graph_apply(g, OP_activation_grad, (value[]){x, real(g, arg, "dy", SHAPE2(arg[0], arg[1]))}, 2, &p, &dx);
}

static void build_glu(graph *g, const int64_t *arg) /* rows, width of a half, kind, gate first */
{
	value x = real(g, arg, "x wide feature", SHAPE3(1, arg[0], 2 * arg[1]));
	(arg[3] ? op_glu_gate_first : op_glu)(g, x, (activation_kind)arg[2]);
}

static void build_glu_grad(graph *g, const int64_t *arg) /* rows, width of a half, kind, frozen, gate first */
{
	value dx, x = real(g, arg, arg[3] ? "x with zeros" : "x wide", SHAPE3(1, arg[0], 2 * arg[1]));
	glu_params p = {(activation_kind)arg[2], arg[3], 0.3f, arg[4]};
	graph_apply(g, OP_glu_grad, (value[]){x, real(g, arg, "dy", SHAPE2(arg[0], arg[1]))}, 2, &p, &dx);
}

static void build_scale_gradient(graph *g, const int64_t *arg) /* rows, width */
{
	op_scale_gradient(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])),
	                  1); /* no other factor is the gradient of y = x */
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

static void build_fill(graph *g, const int64_t *arg) /* rows, width */
{
	op_fill(g, SHAPE2(arg[0], arg[1]), 0.1f);
}

static void build_fill_integer(graph *g, const int64_t *arg)
{
	op_fill_integer(g, SHAPE2(arg[0], arg[1]), -1234567);
}

static void build_accumulate(graph *g, const int64_t *arg) /* rows, width */
{
	op_accumulate(g, graph_state(g, "sum", SHAPE2(arg[0], arg[1])), f32(g, "x", SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_lerp(graph *g, const int64_t *arg) /* rows, width */
{
	op_lerp(g, graph_state(g, "p", SHAPE2(arg[0], arg[1])), f32(g, "x", SHAPE2(arg[0], arg[1])),
	        f32(g, "rate", SHAPE0()));
}

/* clang-format off */
#define ELEMENTWISE(id, build, tolerance, step) \
	{id, "empty", build, {0, 3}, 0, 0, 0, 0, 0}, \
	{id, "one element", build, {1, 1}, 0, 0, tolerance, tolerance, step}, \
	{id, "odd", build, {3, 31}, 0, 0, tolerance, tolerance, step}, \
	{id, "long", build, {7, LONG}, 0, 0, tolerance, tolerance, 0}
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
	{OP_glu_grad, name ", frozen", build_glu_grad, {3, 104, kind, 1}, 0, 0, 4e-6, 4e-6, 0}, \
	{OP_glu, name ", gate first", build_glu, {5, 24, kind, 1}, 0, 0, 2e-6, 2e-6, STEP}, \
	{OP_glu_grad, name ", gate first", build_glu_grad, {3, 31, kind, 0, 1}, 0, 0, 4e-6, 4e-6, 0}, \
	{OP_glu_grad, name ", frozen, gate first", build_glu_grad, {3, 104, kind, 1, 1}, 0, 0, 4e-6, 4e-6, 0}
/* clang-format on */

static const op_case cases[] = {
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
    ELEMENTWISE(OP_axpby, build_axpby, 1e-6, 0),
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
    {OP_fill, "integers", build_fill_integer, {7, 5}, 0, 0, 0, 0, 0},
    ELEMENTWISE(OP_accumulate, build_accumulate, 3e-7, 0),
    ELEMENTWISE(OP_lerp, build_lerp, 3e-7, 0),

    {OP_activation, "empty", build_activation, {0, 3, ACTIVATION_SILU}, 0, 0, 0, 0, 0},
    {OP_activation_grad, "empty", build_activation_grad, {0, 3, ACTIVATION_SILU}, 0, 0, 0, 0, 0},
    ACTIVATION("relu", ACTIVATION_RELU),
    ACTIVATION("relu2", ACTIVATION_RELU2),
    ACTIVATION("silu", ACTIVATION_SILU),
    ACTIVATION("sigmoid", ACTIVATION_SIGMOID),
    ACTIVATION("log sigmoid", ACTIVATION_LOG_SIGMOID),
    ACTIVATION("exp", ACTIVATION_EXP),
    {OP_activation, "log sigmoid, relative", build_activation, {7, LONG, ACTIVATION_LOG_SIGMOID, 1}, 0, 0, 0, 1e-6, 0},
    {OP_activation,
     "log sigmoid, extreme",
     build_activation,
     {7, LONG, ACTIVATION_LOG_SIGMOID, 3},
     0,
     0,
     2e-38,
     1e-6,
     0},
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

    ELEMENTWISE(OP_scale_gradient, build_scale_gradient, 0, STEP),

    {OP_gru, "no row", build_gru, {0, 3}, 0, 0, 0, 0, 0},
    {OP_gru, "odd", build_gru, {3, 31}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_gru, "whole packs", build_gru, {5, 24}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_gru_grad, "no row", build_gru_grad, {0, 3}, 0, 0, 0, 0, 0},
    {OP_gru_grad, "odd", build_gru_grad, {3, 31}, 0, 0, 4e-6, 4e-6, 0},
    {OP_gru_grad, "whole packs", build_gru_grad, {5, 24}, 0, 0, 4e-6, 4e-6, 0},
    {OP_gru_grad, "frozen", build_gru_grad, {5, 32, 1}, 0, 0, 4e-6, 4e-6, 0},

    {OP_dropout, "empty", build_dropout, {0, 3, 10, 0}, 0, 0, 0, 0, 0},
    {OP_dropout, "off", build_dropout, {3, 31, 0, 0}, 0, 0, 0, 0, STEP},
    {OP_dropout, "odd", build_dropout, {3, 31, 10, 7}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_dropout, "long", build_dropout, {7, LONG, 50, 1}, 0, 0, 1e-6, 1e-6, 0},
};

const op_case_family op_cases_elementwise = OP_CASES(cases);
