/* Updates of parameters. */
#include "tests/unit/support/op_cases/family.h"

/* A rate and a decay for every 16 of n. */
static value factors_of(graph *g, int64_t n)
{
	return f32(g, "x", SHAPE2((n + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT, 2));
}

/* count, clip in percent, not a number, narrow, transformers, factors */
static void build_adamw(graph *g, const int64_t *arg)
{
	shape s = SHAPE1(arg[0]);
	adamw_params p = {0.9f, 0.999f, arg[4] ? 1e-3f : 1e-8f, arg[4] ? 0.5f : 0.01f, (float)arg[1] / 100, arg[4]};
	value grad = f32(g, "g", s), norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0());
	op_adamw(g, graph_state(g, "p", s), grad, graph_state(g, "m", s), graph_state(g, "v", s), norm2,
	         f32(g, "hyper", SHAPE1(2)), arg[3] ? graph_weight(g, "narrow", DTYPE_BF16, s) : VALUE_NONE,
	         arg[5] ? factors_of(g, arg[0]) : VALUE_NONE, p);
}

/* count, clip in percent, not a number, narrow, normalized, factors */
static void build_sgd(graph *g, const int64_t *arg)
{
	shape s = SHAPE1(arg[0]);
	sgd_params p = {0.9f, 0.01f, (float)arg[1] / 100, arg[4]};
	value grad = f32(g, "g", s), norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0());
	op_sgd(g, graph_state(g, "p", s), grad, graph_state(g, "m", s), norm2, f32(g, "hyper", SHAPE1(2)),
	       arg[3] ? graph_weight(g, "narrow", DTYPE_BF16, s) : VALUE_NONE,
	       arg[5] ? factors_of(g, arg[0]) : VALUE_NONE, p);
}

static void build_row_squares(graph *g, const int64_t *arg) /* tensors: none or all */
{
	value x = f32(g, "g", SHAPE1(arg[0] ? OP_CASE_SPAN_FLOATS : 0)), tensors;
	value spans = graph_input(g, "spans", DTYPE_I32, SHAPE2(arg[0], ROW_SPAN_WORDS));
	op_row_squares(g, x, spans, arg[0] ? OP_CASE_SPAN_ROWS : 0, &tensors);
}

/* tensors, rms, not a number, narrow, quiet rows, factors */
static void build_normalized_sgd(graph *g, const int64_t *arg)
{
	const shape all = SHAPE1(arg[0] ? OP_CASE_SPAN_FLOATS : 0), rows = SHAPE1(arg[0] ? OP_CASE_SPAN_ROWS : 0);
	normalized_sgd_inputs in = {.p = graph_state(g, "p", all),
	                            .grad = f32(g, "g", all),
	                            .statistics = graph_state(g, "v", rows),
	                            .spans = graph_input(g, "spans", DTYPE_I32, SHAPE2(arg[0], ROW_SPAN_WORDS)),
	                            .norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0()),
	                            .hyper = f32(g, "hyper", SHAPE1(2)),
	                            .narrow = arg[3] ? graph_weight(g, "narrow", DTYPE_BF16, all) : VALUE_NONE,
	                            .factors = arg[5] ? factors_of(g, OP_CASE_SPAN_FLOATS) : VALUE_NONE};
	in.rows = op_row_squares(g, in.grad, in.spans, shape_count(rows), &in.tensors);
	if (arg[4])
		in.rows = op_mul(g, in.rows, f32(g, "v zeros", rows));
	op_normalized_sgd(g, &in, (normalized_sgd_params){.row_decay = 0.9F, .decay = 0.5F, .rms = arg[1]});
}

static void build_muon_direction(graph *g, const int64_t *arg) /* count, first, rows, columns, clip in percent, zeros */
{
	const shape s = SHAPE1(arg[0]);
	value m = f32(g, "m", s), grad = f32(g, "g", s);
	if (arg[5])
		m = op_scale(g, m, 0), grad = op_scale(g, grad, 0);
	op_muon_direction(g, m, grad, f32(g, "norm2", SHAPE0()),
	                  (muon_direction_params){arg[1], arg[2], arg[3], 0.95f, (float)arg[4] / 100});
}

static void build_write_range(graph *g, const int64_t *arg) /* count, first, count of the part */
{
	op_write_range(g, f32(g, "x", SHAPE1(arg[0])), f32(g, "part", SHAPE2(1, arg[2])), arg[1]);
}

/* count, clip in percent, not a number, narrow, factors */
static void build_muon(graph *g, const int64_t *arg)
{
	const shape s = SHAPE1(arg[0]), units = SHAPE1((arg[0] + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT);
	const muon_inputs in = {.p = graph_state(g, "p", s),
	                        .grad = f32(g, "g", s),
	                        .m = graph_state(g, "m", s),
	                        .v = graph_state(g, "v", s),
	                        .direction = f32(g, "d", s),
	                        .norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0()),
	                        .hyper = f32(g, "hyper", SHAPE1(2)),
	                        .scales = f32(g, "v zeros", units),
	                        .narrow = arg[3] ? graph_weight(g, "narrow", DTYPE_BF16, s) : VALUE_NONE,
	                        .factors = arg[4] ? factors_of(g, arg[0]) : VALUE_NONE};
	op_muon(g, &in, (muon_params){{0.9f, 0.999f, 1e-8f, 0.01f, (float)arg[1] / 100, false}, 0.95f});
}

static const op_case cases[] = {
    {OP_muon_direction, "empty", build_muon_direction, {16, 16, 0, 5, 100}, 0, 0, 0, 0, 0},
    {OP_muon_direction, "clipped", build_muon_direction, {100, 16, 7, 11, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_muon_direction, "not clipped", build_muon_direction, {LONG, 32, 1, LONG - 40, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_muon_direction, "several parts", build_muon_direction, {12000, 1040, 100, 101, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_muon_direction, "zeros", build_muon_direction, {100, 16, 7, 11, 100, 1}, 0, 0, 0, 0, 0},
    {OP_write_range, "empty", build_write_range, {0, 0, 0}, 0, 0, 0, 0, 0},
    {OP_write_range, "no part", build_write_range, {33, 32, 0}, 0, 0, 0, 0, 0},
    {OP_write_range, "in the middle", build_write_range, {LONG, 32, 77}, 0, 0, 0, 0, 0},
    {OP_write_range, "up to the end", build_write_range, {99, 48, 51}, 0, 0, 0, 0, 0},
    {OP_muon, "empty", build_muon, {0, 100}, 0, 0, 0, 0, 0},
    {OP_muon, "clipped", build_muon, {131, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_muon, "not clipped", build_muon, {LONG, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_muon, "norm not finite", build_muon, {33, 100, 1}, 0, 0, 0, 0, 0},
    {OP_muon, "narrow", build_muon, {LONG, 100, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_muon, "narrow, norm not finite", build_muon, {33, 100, 1, 1}, 0, 0, 0, 0, 0},
    {OP_muon, "factors", build_muon, {131, 100, 0, 1, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "empty", build_adamw, {0, 100}, 0, 0, 0, 0, 0},
    {OP_adamw, "clipped", build_adamw, {31, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "not clipped", build_adamw, {LONG, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "in the order of transformers", build_adamw, {LONG, 100, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "norm not finite", build_adamw, {33, 100, 1}, 0, 0, 0, 0, 0},

    {OP_adamw, "factors", build_adamw, {31, 100, 0, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "factors, narrow, long", build_adamw, {LONG, 0, 0, 1, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "factors in the order of transformers", build_adamw, {LONG, 100, 0, 0, 1, 1}, 0, 0, 1e-6, 1e-6, 0},

    {OP_sgd, "empty", build_sgd, {0, 100}, 0, 0, 0, 0, 0},
    {OP_sgd, "clipped", build_sgd, {31, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "not clipped", build_sgd, {LONG, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "normalized", build_sgd, {33, 100, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "norm not finite", build_sgd, {33, 100, 1}, 0, 0, 0, 0, 0},

    {OP_sgd, "factors", build_sgd, {31, 100, 0, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_sgd, "factors, narrow, long", build_sgd, {LONG, 0, 0, 1, 0, 1}, 0, 0, 1e-6, 1e-6, 0},

    {OP_row_squares, "empty", build_row_squares, {0}, 0, 0, 0, 0, 0},
    {OP_row_squares, "tensors of all widths", build_row_squares, {OP_CASE_SPANS}, 0, 0, 0, 1e-6, 0},
    {OP_normalized_sgd, "empty", build_normalized_sgd, {0}, 0, 0, 0, 0, 0},
    {OP_normalized_sgd, "by norm", build_normalized_sgd, {OP_CASE_SPANS, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_normalized_sgd, "by rms", build_normalized_sgd, {OP_CASE_SPANS, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_normalized_sgd,
     "rows without gradients",
     build_normalized_sgd,
     {OP_CASE_SPANS, 1, 0, 0, 1},
     0,
     0,
     1e-6,
     1e-6,
     0},
    {OP_normalized_sgd, "norm not finite", build_normalized_sgd, {OP_CASE_SPANS, 1, 1}, 0, 0, 0, 0, 0},
    {OP_normalized_sgd, "narrow", build_normalized_sgd, {OP_CASE_SPANS, 1, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_normalized_sgd, "factors", build_normalized_sgd, {OP_CASE_SPANS, 1, 0, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_normalized_sgd, "narrow, norm not finite", build_normalized_sgd, {OP_CASE_SPANS, 1, 1, 1}, 0, 0, 0, 0, 0},

    {OP_adamw, "narrow, empty", build_adamw, {0, 100, 0, 1}, 0, 0, 0, 0, 0},
    {OP_adamw, "narrow", build_adamw, {31, 100, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "narrow, long", build_adamw, {LONG, 0, 0, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "narrow, norm not finite", build_adamw, {33, 100, 1, 1}, 0, 0, 0, 0, 0},
};

const op_case_family op_cases_optimizer = OP_CASES(cases);
