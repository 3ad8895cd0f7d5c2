/* What the trilinear model is made of: quantised numbers, products of channels. */
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

/* clang-format off */
#define TRILINEAR(id, build, step) \
	{id, "one block", build, {1, 16}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "three blocks", build, {5, 48}, 0, 0, 2e-6, 2e-6, step}, \
	{id, "many rows", build, {333, 32}, 0, 0, 2e-6, 2e-6, 0}, \
	{id, "no row", build, {0, 16}, 0, 0, 0, 0, 0}, \
	{id, "no channel", build, {3, 0}, 0, 0, 0, 0, 0}
/* clang-format on */

/* Codes and steps have to be the same bits: no tolerance. A difference over two whole steps is exactly that of x, so
 * that finite differences see the gradient. */
static const op_case cases[] = {
    {OP_quantize, "a tensor", build_quantize, {3, 33, QUANTIZE_TENSOR, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor, 4 bits", build_quantize, {31, 33, QUANTIZE_TENSOR, 4}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor, 2 bits", build_quantize, {32, 32, QUANTIZE_TENSOR, 2}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor of parts", build_quantize, {7, 5003, QUANTIZE_TENSOR, 8}, 0, 0, 0, 0, 0},
    {OP_quantize, "a tensor of parts of parts", build_quantize, {3, 400003, QUANTIZE_TENSOR, 8}, 0, 0, 0, 0, 0},
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
};

const op_case_family op_cases_trilinear = OP_CASES(cases);
