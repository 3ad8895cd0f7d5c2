/* Sums over rows. */
#include "tests/unit/support/op_cases/family.h"

static void build_dot_rows(graph *g, const int64_t *arg) /* rows, width, b is one row */
{
	value a = f32(g, "a", SHAPE3(1, arg[0], arg[1]));
	op_dot_rows(g, a, f32(g, "b", arg[2] ? SHAPE1(arg[1]) : SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_sum_rows(graph *g, const int64_t *arg) /* rows, width */
{
	op_sum_rows(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_sum_squares(graph *g, const int64_t *arg) /* count */
{
	op_sum_squares(g, f32(g, "x", SHAPE1(arg[0])));
}

static const op_case cases[] = {
    {OP_dot_rows, "no row", build_dot_rows, {0, 3, 0}, 0, 0, 0, 0, 0},
    {OP_dot_rows, "nothing to sum", build_dot_rows, {3, 0, 1}, 0, 0, 0, 0, 0},
    {OP_dot_rows, "one element", build_dot_rows, {1, 1, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_dot_rows, "odd", build_dot_rows, {31, NARROW, 0}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "odd, with one row", build_dot_rows, {31, NARROW, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "even", build_dot_rows, {37, 136, 0}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "even, with one row", build_dot_rows, {37, 136, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "tall", build_dot_rows, {5000, 3, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_dot_rows, "wide", build_dot_rows, {3, 5001, 0}, 0, 0, 1e-4, 1e-5, 0},

    {OP_sum_rows, "no row", build_sum_rows, {0, 3}, 0, 0, 0, 0, 0},
    {OP_sum_rows, "odd", build_sum_rows, {31, NARROW}, 0, 0, 1e-5, 1e-6, 0},
    {OP_sum_rows, "tall", build_sum_rows, {5000, 3}, 0, 0, 1e-4, 1e-5, 0},
    {OP_sum_rows, "wide", build_sum_rows, {3, 5000}, 0, 0, 1e-6, 1e-6, 0},

    {OP_sum_squares, "empty", build_sum_squares, {0}, 0, 0, 0, 0, 0},
    {OP_sum_squares, "odd", build_sum_squares, {31}, 0, 0, 0, 1e-6, 0},
    {OP_sum_squares, "long", build_sum_squares, {7 * LONG}, 0, 0, 0, 1e-6, 0},
};

const op_case_family op_cases_reduction = OP_CASES(cases);
