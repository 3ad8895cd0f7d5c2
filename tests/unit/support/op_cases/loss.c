/* The loss. */
#include "tests/unit/support/op_cases/family.h"

/* rows, channels, classes, smoothing in percent, biased, loud, rows have weights */
static void build_loss(graph *g, const int64_t *arg)
{
	linear_cross_entropy_params p = {0.6f, (float)arg[3] / 100};
	value hidden = real(g, arg, arg[5] ? "hidden loud" : "hidden", SHAPE3(1, arg[0], arg[1]));
	value weight = real(g, arg, "weight", SHAPE2(arg[2], arg[1]));
	value bias = arg[4] ? f32(g, "bias", SHAPE1(arg[2])) : VALUE_NONE;
	const value row_weight = arg[6] ? f32(g, "row weight", SHAPE1(arg[0])) : VALUE_NONE;
	op_linear_cross_entropy(g, hidden, weight, bias, i32(g, "label", SHAPE2(1, arg[0])), row_weight, p);
}

static const op_case cases[] = {
    {OP_linear_cross_entropy, "no row", build_loss, {0, 3, 5, 0, 1}, 0, 4, 0, 0, 0},
    {OP_linear_cross_entropy, "all ignored", build_loss, {3, 4, 5, 0, 1}, -1, -1, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "no channel", build_loss, {3, 0, 5, 10, 1}, -1, 5, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "one class", build_loss, {3, 4, 1, 10, 1}, -1, 0, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "plain", build_loss, {5, 3, 7, 0, 0}, -1, 7, 2e-6, 2e-6, STEP},
    {OP_linear_cross_entropy, "biased, smoothed", build_loss, {9, 4, 7, 10, 1}, -1, 7, 2e-6, 2e-6, STEP},
    {OP_linear_cross_entropy, "smoothed to the last", build_loss, {5, 4, 6, 100, 1}, 0, 5, 2e-6, 2e-6, STEP},
    {OP_linear_cross_entropy, "many classes", build_loss, {33, 31, 1025, 10, 1}, -1, 1025, 1e-5, 1e-5, 0},
    {OP_linear_cross_entropy, "chunks of rows", build_loss, {2100, 5, 3, 0, 1}, -1, 3, 1e-5, 1e-5, 0},
    {OP_linear_cross_entropy, "loud", build_loss, {7, 33, 130, 10, 1, 1}, -1, 130, 2e-3, 1e-5, 0},
    {OP_linear_cross_entropy, "weighted", build_loss, {9, 4, 7, 10, 1, 0, 1}, -1, 7, 2e-6, 2e-6, STEP},
    {OP_linear_cross_entropy, "weighted, smoothed", build_loss, {33, 31, 1025, 10, 0, 0, 1}, -1, 1025, 1e-5, 1e-5, 0},
    {OP_linear_cross_entropy, "weighted, chunks of rows", build_loss, {2100, 5, 3, 0, 1, 0, 1}, -1, 3, 1e-5, 1e-5, 0},
    {OP_linear_cross_entropy, "weighted, all ignored", build_loss, {3, 4, 5, 0, 1, 0, 1}, -1, -1, 1e-6, 1e-6, 0},
    {OP_linear_cross_entropy, "weighted, no row", build_loss, {0, 3, 5, 0, 1, 0, 1}, 0, 4, 0, 0, 0},
};

const op_case_family op_cases_loss = OP_CASES(cases);
