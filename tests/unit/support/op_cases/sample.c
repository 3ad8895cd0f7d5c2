/* Drawing tokens. */
#include "engine/tensor/ops/sample.h"
#include "tests/unit/support/op_cases/family.h"

static void build_sample(graph *g, const int64_t *arg) /* rows, vocabulary, rows of adjust */
{
	op_sample(g, f32(g, "logits wide", SHAPE2(arg[0], arg[1])), i32(g, "setting", SHAPE2(arg[0], SAMPLE_WORDS)),
	          i32(g, "adjust", SHAPE2(arg[2], 3)), VALUE_NONE);
}

static const op_case cases[] = {
    {OP_sample, "no row", build_sample, {0, 3, 0}, 0, 0, 0, 0, 0},
    {OP_sample, "one token", build_sample, {3, 1, 0}, 0, 0, 0, 0, 0},
    {OP_sample, "odd", build_sample, {31, 33, 0}, 0, 0, 0, 0, 0},
    {OP_sample, "adjusted", build_sample, {24, 257, 24 * 5}, 0, 0, 0, 0, 0},
    {OP_sample, "many rows", build_sample, {129, 1025, 129 * 3}, 0, 0, 0, 0, 0},
    {OP_sample, "wide", build_sample, {7, LONG, 7 * 100}, 0, 0, 0, 0, 0},
};

const op_case_family op_cases_sample = OP_CASES(cases);
