/* Products with a matrix, also with packed weights. */
#include "tests/unit/support/op_cases/family.h"

static void build_matmul(graph *g, const int64_t *arg) /* M, N, K, trans_a, trans_b */
{
	shape a = arg[3] ? SHAPE2(arg[2], arg[0]) : SHAPE2(arg[0], arg[2]);
	shape b = arg[4] ? SHAPE2(arg[1], arg[2]) : SHAPE2(arg[2], arg[1]);
	op_matmul(g, real(g, arg, "a", a), real(g, arg, "b", b), arg[3], arg[4], 0.7f);
}

static void build_matmul_panels(graph *g, const int64_t *arg) /* M, N, K, type of the packed b */
{
	op_matmul(g, f32(g, "a", SHAPE2(arg[0], arg[2])), graph_weight(g, "b", (dtype)arg[3], SHAPE2(arg[2], arg[1])),
	          false, false, 0.7f);
}

static void build_matmul_wide(graph *g, const int64_t *arg) /* M, N, K: shapes of a weight's gradient */
{
	op_matmul_wide(g, real(g, arg, "a", SHAPE2(arg[2], arg[0])), real(g, arg, "b", SHAPE2(arg[2], arg[1])), true,
	               false, 0.7f);
}

static void build_matmul_deep(graph *g, const int64_t *arg) /* batch, length, K, N */
{
	value a = real(g, arg, "a", SHAPE3(arg[0], arg[1], arg[2])), b = real(g, arg, "b", SHAPE2(arg[3], arg[2]));
	op_matmul(g, a, b, false, true, 1);
}

static void build_linear(graph *g, const int64_t *arg) /* rows, outputs, inputs, biased, type of weight */
{
	value x = arg[4] == DTYPE_F32 ? real(g, arg, "x", SHAPE2(arg[0], arg[2])) : f32(g, "x", SHAPE2(arg[0], arg[2]));
	value weight = arg[4] == DTYPE_F32 ? real(g, arg, "weight", SHAPE2(arg[1], arg[2]))
	                                   : graph_weight(g, "weight", (dtype)arg[4], SHAPE2(arg[1], arg[2]));
	op_linear(g, x, weight, arg[3] ? f32(g, "bias", SHAPE1(arg[1])) : VALUE_NONE, -0.7f);
}

static void build_linear_codes(graph *g, const int64_t *arg) /* rows, outputs, inputs, type of weight */
{
	value x = op_quantize(g, f32(g, "x", SHAPE2(arg[0], arg[2])), (quantize_params){QUANTIZE_FIXED, 8});
	value weight = graph_weight(g, "weight", (dtype)arg[3], SHAPE2(arg[1], arg[2]));
	op_linear_codes(g, x, weight, 1.0f / 32, 0.7f);
}

static void build_linear_deep(graph *g, const int64_t *arg) /* batch, length, inputs, outputs */
{
	value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2])), w = real(g, arg, "weight", SHAPE2(arg[3], arg[2]));
	op_linear(g, x, w, VALUE_NONE, 1);
}

static void build_lora(graph *g, const int64_t *arg) /* rows, outputs, inputs, entries, parts, part, offset */
{
	const int64_t floats = arg[6] + arg[1] + arg[2] + 3;
	op_lora(g, f32(g, "y", SHAPE2(arg[0], arg[1])), f32(g, "x", SHAPE2(arg[0], arg[2])),
	        i32(g, "entry", SHAPE1(arg[0])), i32(g, "rank", SHAPE2(arg[3], arg[4])),
	        i32(g, "strip", SHAPE2(arg[3], LORA_MAX_RANK)), f32(g, "bank", SHAPE2(arg[3], floats)),
	        (lora_params){arg[5], arg[6]});
}

/* clang-format off */
/* Tolerance of sums of few products. bf16 weights have 8 bits and may be multiplied by an x that was cut to 16 bits. */
#define FEW(type) ((type) == DTYPE_PANEL_BF16 ? 1e-4 : 1e-5)
#define LINEAR(id, name, type, step) \
	{id, name ", no row", build_linear, {0, 3, 4, 1, type}, 0, 0, 0, 0, 0}, \
	{id, name ", no output", build_linear, {3, 0, 4, 1, type}, 0, 0, 0, 0, 0}, \
	{id, name ", nothing to sum", build_linear, {3, 5, 0, 1, type}, 0, 0, 1e-6, 1e-6, 0}, \
	{id, name ", one element", build_linear, {1, 1, 1, 0, type}, 0, 0, 1e-6, 1e-6, step}, \
	{id, name ", odd", build_linear, {3, 5, 7, 0, type}, 0, 0, FEW(type), 1e-5, step}, \
	{id, name ", odd, biased", build_linear, {5, 33, 9, 1, type}, 0, 0, FEW(type), 1e-5, step}, \
	{id, name ", a row", build_linear, {1, 301, 257, 1, type}, 0, 0, 1e-4, 1e-5, 0}, \
	{id, name ", large", build_linear, {131, 1025, 66, 1, type}, 0, 0, 1e-4, 1e-5, 0}

#define PANELS(name, type) \
	{OP_matmul, name ", no row", build_matmul_panels, {0, 3, 4, type}, 0, 0, 0, 0, 0}, \
	{OP_matmul, name ", nothing to sum", build_matmul_panels, {3, 5, 0, type}, 0, 0, 0, 0, 0}, \
	{OP_matmul, name ", no column", build_matmul_panels, {3, 0, 5, type}, 0, 0, 0, 0, 0}, \
	{OP_matmul, name ", one element", build_matmul_panels, {1, 1, 1, type}, 0, 0, 1e-6, 1e-6, 0}, \
	{OP_matmul, name ", odd", build_matmul_panels, {3, 5, 7, type}, 0, 0, 1e-5, 1e-5, 0}, \
	{OP_matmul, name ", a row", build_matmul_panels, {1, 257, 301, type}, 0, 0, 1e-4, 1e-5, 0}, \
	{OP_matmul, name ", whole", build_matmul_panels, {8, 128, 256, type}, 0, 0, 1e-4, 1e-5, 0}, \
	{OP_matmul, name ", large", build_matmul_panels, {131, 66, 1025, type}, 0, 0, 1e-4, 1e-5, 0}
/* clang-format on */

static const op_case cases[] = {
    {OP_matmul, "empty", build_matmul, {0, 3, 4, 0, 0}, 0, 0, 0, 0, 0},
    {OP_matmul, "nothing to sum", build_matmul, {2, 3, 0, 0, 1}, 0, 0, 0, 0, 0},
    {OP_matmul, "one element", build_matmul, {1, 1, 1, 0, 0}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_matmul, "plain", build_matmul, {3, 5, 7, 0, 0}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "b transposed", build_matmul, {3, 5, 7, 0, 1}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "a transposed", build_matmul, {3, 5, 7, 1, 0}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "both transposed", build_matmul, {3, 5, 7, 1, 1}, 0, 0, 1e-5, 1e-5, STEP},
    {OP_matmul, "large", build_matmul, {129, 65, 257, 0, 0}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "large, b transposed", build_matmul, {129, 65, 257, 0, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "large, a transposed", build_matmul, {129, 65, 257, 1, 0}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "large, both transposed", build_matmul, {129, 65, 257, 1, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "row vector", build_matmul, {1, 65, 257, 0, 1}, 0, 0, 1e-4, 1e-5, 0},
    {OP_matmul, "wide", build_matmul_wide, {33, 5, 67}, 0, 0, 1e-5, 1e-5, 0},
    {OP_matmul, "wide, nothing to sum", build_matmul_wide, {3, 5, 0}, 0, 0, 0, 0, 0},
    PANELS("panels of f32", DTYPE_PANEL_F32),
    PANELS("panels of bf16", DTYPE_PANEL_BF16),
    PANELS("panels of int8", DTYPE_PANEL_INT8),
    {OP_matmul, "leading dimensions", build_matmul_deep, {2, 3, 5, 4}, 0, 0, 1e-5, 1e-5, STEP},

    LINEAR(OP_linear, "f32", DTYPE_F32, STEP),
    LINEAR(OP_linear, "panels of f32", DTYPE_PANEL_F32, 0),
    LINEAR(OP_linear, "panels of bf16", DTYPE_PANEL_BF16, 0),
    LINEAR(OP_linear, "panels of int8", DTYPE_PANEL_INT8, 0),
    {OP_linear, "codes, panels of f32", build_linear_codes, {5, 33, 9, DTYPE_PANEL_F32}, 0, 0, 1e-5, 1e-5, 0},
    {OP_linear, "codes, panels of int8", build_linear_codes, {5, 33, 9, DTYPE_PANEL_INT8}, 0, 0, 1e-6, 1e-6, 0},
    {OP_linear,
     "codes, panels of int8, a row",
     build_linear_codes,
     {1, 301, 257, DTYPE_PANEL_INT8},
     0,
     0,
     1e-5,
     1e-6,
     0},
    {OP_linear,
     "codes, panels of int8, large",
     build_linear_codes,
     {131, 1025, 66, DTYPE_PANEL_INT8},
     0,
     0,
     1e-5,
     1e-6,
     0},
    {OP_lora, "no row", build_lora, {0, 3, 4, 2, 1, 0, 0}, 0, 1, 0, 0, 0},
    {OP_lora, "no output", build_lora, {3, 0, 4, 2, 1, 0, 0}, 0, 1, 0, 0, 0},
    {OP_lora, "nothing to sum", build_lora, {3, 5, 0, 2, 1, 0, 0}, 0, 1, 0, 0, 0},
    {OP_lora, "a row", build_lora, {1, 301, 257, 2, 1, 0, 0}, 1, 1, 1e-3, 1e-5, 0},
    {OP_lora, "none", build_lora, {5, 33, 9, 3, 2, 1, 7}, -2, 0, 0, 0, 0},
    {OP_lora, "rows of several, of one and of none", build_lora, {97, 33, 31, 4, 3, 2, 7}, -1, 5, 1e-4, 1e-5, 0},
    {OP_lora, "the largest ranks, and larger", build_lora, {200, 5, 3, 70, 2, 1, 16}, 60, 70, 1e-4, 1e-5, 0},
    {OP_linear, "leading dimensions", build_linear_deep, {2, 3, 5, 4}, 0, 0, 1e-5, 1e-5, STEP},
};

const op_case_family op_cases_matmul = OP_CASES(cases);
