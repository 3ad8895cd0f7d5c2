/* Norms over the channels of a row. */
#include "tests/unit/support/op_cases/family.h"

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

/* rows, width, groups, gain: 0 none, 1 one for all, 2 of each channel; the floor in tenths; frozen; eps in tenths */
static void normalize_inputs(graph *g, const int64_t *arg, value in[2], normalize_params *p)
{
	*p = (normalize_params){
	    .groups = arg[2], .scale = 3, .floor = arg[4] ? (float)arg[4] / 10 : 1e-5f, .eps = (float)arg[6] / 10};
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

static void build_normalize_grad(graph *g, const int64_t *arg) /* as normalize_inputs */
{
	normalize_params p;
	value in[2], y[2], grads[2];
	normalize_inputs(g, arg, in, &p);
	graph_apply(g, OP_normalize, in, 2, &p, y);
	p.frozen = arg[5];
	graph_apply(g, OP_normalize_grad, (value[]){in[0], in[1], y[1], real(g, arg, "dy", SHAPE2(arg[0], arg[1]))}, 4,
	            &p, grads);
}

/* clang-format off */
#define NORMALIZE(id, build, tolerance, step) \
	{id, "no row", build, {0, 3, 1, 2}, 0, 0, 0, 0, 0}, \
	{id, "one channel", build, {3, 1, 1, 2}, 0, 0, tolerance, tolerance, 0}, \
	{id, "odd", build, {3, NARROW, 1, 2}, 0, 0, tolerance, tolerance, step}, \
	{id, "odd, one gain", build, {3, 31, 1, 1}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups", build, {3, 33, 3, 0}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups of whole packs", build, {19, 96, 6, 0}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups, a gain for each channel", build, {7, 33, 3, 2}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups, one gain", build, {3, 33, 3, 1}, 0, 0, 2 * tolerance, tolerance, step}, \
	{id, "groups of whole packs, a gain for each channel", build, {19, 96, 6, 2}, 0, 0, tolerance, tolerance, step}, \
	{id, "groups of whole packs, one gain", build, {19, 96, 6, 1}, 0, 0, 5 * tolerance, tolerance, step}, \
	{id, "many rows of groups", build, {301, 40, 5, 2}, 0, 0, 10 * tolerance, tolerance, 0}, \
	{id, "few rows of many groups", build, {2, 1536, 192, 2}, 0, 0, tolerance, tolerance, 0}, \
	{id, "many rows of odd groups", build, {301, 21, 7, 2}, 0, 0, 10 * tolerance, tolerance, 0}, \
	{id, "eps", build, {3, NARROW, 1, 2, 0, 0, 40}, 0, 0, tolerance, tolerance, step}, \
	{id, "eps, groups of whole packs", build, {19, 96, 6, 2, 0, 0, 7}, 0, 0, tolerance, tolerance, step}, \
	{id, "eps, some below the floor", build, {9, 12, 3, 2, 20, 0, 10}, 0, 0, tolerance, tolerance, 0}, \
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

    NORMALIZE(OP_normalize, build_normalize, 3e-6, STEP / 8),
    NORMALIZE(OP_normalize_grad, build_normalize_grad, 1e-5, 0),
    {OP_normalize_grad, "frozen", build_normalize_grad, {3, NARROW, 1, 2, 0, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_normalize_grad, "frozen, groups", build_normalize_grad, {9, 96, 6, 2, 0, 1, 5}, 0, 0, 2e-5, 1e-5, 0},
    {OP_normalize_grad, "frozen, whole packs", build_normalize_grad, {99, 40, 1, 1, 0, 1}, 0, 0, 1e-4, 1e-5, 0},
};

const op_case_family op_cases_normalization = OP_CASES(cases);
