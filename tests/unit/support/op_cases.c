/* Shapes are small and odd, so that every vector width has a remainder: 0, 1, 3, 31, 33. */
#include "tests/unit/support/op_cases.h"

#include <stdio.h>
#include <string.h>

#include "engine/tensor/ops.h"
#include "tests/unit/support/random.h"

static value f32(graph *g, const char *name, shape s)
{
	return graph_input(g, name, DTYPE_F32, s);
}

static value i32(graph *g, const char *name, shape s)
{
	return graph_input(g, name, DTYPE_I32, s);
}

/* --- one builder per op; what arg means stands in its first line ------------------ */

static void build_gather(graph *g, const int64_t *arg) /* rows, width, indices, padding row */
{
	op_gather(g, f32(g, "table", SHAPE2(arg[0], arg[1])), i32(g, "index", SHAPE2(1, arg[2])), arg[3]);
}

static void build_gather_deep(graph *g, const int64_t *arg) /* batch, length, width, indices */
{
	op_gather(g, f32(g, "table", SHAPE3(arg[0], arg[1], arg[2])), i32(g, "index", SHAPE1(arg[3])), -1);
}

static void build_gather_grad(graph *g, const int64_t *arg) /* rows, width, indices, padding row */
{
	op_gather_grad(g, i32(g, "index", SHAPE1(arg[2])), f32(g, "dy", SHAPE2(arg[2], arg[1])), arg[0], arg[3]);
}

static void build_add(graph *g, const int64_t *arg) /* rows, width */
{
	op_add(g, f32(g, "a", SHAPE2(arg[0], arg[1])), f32(g, "b", SHAPE2(arg[0], arg[1])));
}

static void build_mul(graph *g, const int64_t *arg) /* rows, width */
{
	op_mul(g, f32(g, "a", SHAPE2(arg[0], arg[1])), f32(g, "b", SHAPE2(arg[0], arg[1])));
}

static void build_square(graph *g, const int64_t *arg) /* rows, width */
{
	value a = f32(g, "a", SHAPE2(arg[0], arg[1]));
	op_mul(g, a, a);
}

static void build_gate(graph *g, const int64_t *arg) /* rows, width */
{
	shape s = SHAPE3(1, arg[0], arg[1]);
	op_gate(g, f32(g, "a", s), f32(g, "b", s), f32(g, "c", s));
}

static void build_scale(graph *g, const int64_t *arg) /* rows, width */
{
	op_scale(g, f32(g, "x", SHAPE2(arg[0], arg[1])), -1.75f);
}

static void build_bias(graph *g, const int64_t *arg) /* rows, width */
{
	op_bias(g, f32(g, "x", SHAPE2(arg[0], arg[1])), f32(g, "b", SHAPE1(arg[1])), 0.3f);
}

static void build_sum_rows(graph *g, const int64_t *arg) /* rows, width */
{
	op_sum_rows(g, f32(g, "x", SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_matmul(graph *g, const int64_t *arg) /* M, N, K, trans_a, trans_b */
{
	shape a = arg[3] ? SHAPE2(arg[2], arg[0]) : SHAPE2(arg[0], arg[2]);
	shape b = arg[4] ? SHAPE2(arg[1], arg[2]) : SHAPE2(arg[2], arg[1]);
	op_matmul(g, f32(g, "a", a), f32(g, "b", b), arg[3], arg[4], 0.7f);
}

static void build_matmul_deep(graph *g, const int64_t *arg) /* batch, length, K, N */
{
	op_matmul(g, f32(g, "a", SHAPE3(arg[0], arg[1], arg[2])), f32(g, "b", SHAPE2(arg[3], arg[2])), false, true, 1);
}

static void build_layernorm(graph *g, const int64_t *arg) /* rows, width */
{
	op_layernorm(g, f32(g, "x", SHAPE2(arg[0], arg[1])), f32(g, "weight", SHAPE1(arg[1])),
	             f32(g, "bias", SHAPE1(arg[1])), 1e-5f);
}

static void build_layernorm_grad(graph *g, const int64_t *arg) /* rows, width */
{
	value x = f32(g, "x", SHAPE2(arg[0], arg[1])), weight = f32(g, "weight", SHAPE1(arg[1]));
	value bias = f32(g, "bias", SHAPE1(arg[1])), dy = f32(g, "dy", SHAPE2(arg[0], arg[1]));
	value y[3], grads[3];
	graph_apply(g, OP_layernorm, (value[]){x, weight, bias}, 3, &(layernorm_params){1e-5f}, y);
	graph_apply(g, OP_layernorm_grad, (value[]){x, weight, y[1], y[2], dy}, 5, NULL, grads);
}

static void build_gelu(graph *g, const int64_t *arg) /* rows, width */
{
	op_gelu(g, f32(g, "x wide", SHAPE2(arg[0], arg[1])));
}

static void build_gelu_grad(graph *g, const int64_t *arg) /* rows, width */
{
	value dx;
	value in[] = {f32(g, "x wide", SHAPE2(arg[0], arg[1])), f32(g, "dy", SHAPE2(arg[0], arg[1]))};
	graph_apply(g, OP_gelu_grad, in, 2, NULL, &dx);
}

static void build_dropout(graph *g, const int64_t *arg) /* rows, width, percent, stream */
{
	op_dropout(g, f32(g, "x", SHAPE2(arg[0], arg[1])), i32(g, "rng", SHAPE1(4)), (float)arg[2] / 100,
	           (uint32_t)arg[3]);
}

/* batch, length, channels, heads, window, masked, loud */
static void build_attention(graph *g, const int64_t *arg)
{
	value x = f32(g, "x", SHAPE3(arg[0], arg[1], arg[2]));
	value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2]));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_additive_attention(g, x, w, mask, arg[3], arg[4]);
}

static void build_attention_grad(graph *g, const int64_t *arg)
{
	value x = f32(g, "x", SHAPE3(arg[0], arg[1], arg[2]));
	value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2]));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	value dg = f32(g, "dg", SHAPE3(arg[0], arg[1], arg[2]));
	attention_values y = op_additive_attention(g, x, w, mask, arg[3], arg[4]);
	value grads[2];
	graph_apply(g, OP_additive_attention_grad, (value[]){x, w, mask, y.pooled, y.log_normalizer, dg}, 6,
	            &(attention_params){arg[3], arg[4]}, grads);
}

/* As attention. The op on trial continues from a state that has read `length` tokens;
 * slots are more than sequences, and the round's state starts at an offset. */
static void build_stream(graph *g, const int64_t *arg)
{
	enum { OFFSET = 5 };
	stream_params p = {arg[3], arg[4], OFFSET};
	shape tokens = SHAPE3(arg[0], arg[1], arg[2]);
	int64_t floats = OFFSET + attention_state_floats(arg[2], arg[3], arg[4]) + 1;
	value w = f32(g, arg[6] ? "w loud" : "w", SHAPE1(arg[2])), slot = i32(g, "slot", SHAPE1(arg[0]));
	value pool = graph_state(g, "pool", SHAPE2(arg[0] + 2, floats));
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_additive_stream(g, f32(g, "x before", tokens), w, pool, slot, i32(g, "position zero", SHAPE1(arg[0])),
	                   i32(g, "length before", SHAPE1(arg[0])), mask, p);
	op_additive_stream(g, f32(g, "x", tokens), w, pool, slot, i32(g, "position", SHAPE1(arg[0])),
	                   i32(g, "length", SHAPE1(arg[0])), mask, p);
}

static void build_cross_entropy(graph *g, const int64_t *arg) /* rows, classes, smoothing in percent */
{
	op_cross_entropy(g, f32(g, "logits wide", SHAPE3(1, arg[0], arg[1])), i32(g, "label", SHAPE2(1, arg[0])),
	                 (float)arg[2] / 100);
}

static void build_cross_entropy_grad(graph *g, const int64_t *arg)
{
	value logits = f32(g, "logits wide", SHAPE2(arg[0], arg[1])), label = i32(g, "label", SHAPE1(arg[0]));
	cross_entropy_params p = {(float)arg[2] / 100};
	cross_entropy_values y = op_cross_entropy(g, logits, label, p.smoothing);
	value in[] = {logits, label, y.lse, y.count, f32(g, "dloss", SHAPE0())}, dlogits;
	graph_apply(g, OP_cross_entropy_grad, in, 5, &p, &dlogits);
}

static void build_fill(graph *g, const int64_t *arg) /* rows, width */
{
	op_fill(g, SHAPE2(arg[0], arg[1]), 0.1f);
}

static void build_accumulate(graph *g, const int64_t *arg) /* rows, width */
{
	op_accumulate(g, graph_state(g, "sum", SHAPE2(arg[0], arg[1])), f32(g, "x", SHAPE2(arg[0], arg[1])), 0.3f);
}

static void build_sum_squares(graph *g, const int64_t *arg) /* count */
{
	op_sum_squares(g, f32(g, "x", SHAPE1(arg[0])));
}

static void build_adamw(graph *g, const int64_t *arg) /* count, clip in percent, not a number */
{
	shape s = SHAPE1(arg[0]);
	adamw_params p = {0.9f, 0.999f, 1e-8f, 0.01f, (float)arg[1] / 100};
	value grad = f32(g, "g", s), norm2 = f32(g, arg[2] ? "norm2 nan" : "norm2", SHAPE0());
	op_adamw(g, graph_state(g, "p", s), grad, graph_state(g, "m", s), graph_state(g, "v", s), norm2,
	         f32(g, "hyper", SHAPE1(2)), p);
}

/* --- the table ---------------------------------------------------------------------- */

enum { NARROW = 33, LONG = 20011 }; /* LONG: more than one thread's share of an elementwise op */
#define STEP (1.0 / 32)

/* clang-format off */
#define ELEMENTWISE(id, build, tolerance, step) \
	{id, "empty", build, {0, 3}, 0, 0, 0, 0, 0}, \
	{id, "one element", build, {1, 1}, 0, 0, tolerance, tolerance, step}, \
	{id, "odd", build, {3, 31}, 0, 0, tolerance, tolerance, step}, \
	{id, "long", build, {7, LONG}, 0, 0, tolerance, tolerance, 0}

#define WINDOW(id, build, B, N, D, H, window, masked, step) \
	{id, "window " #window " of " #N ", mask " #masked, build, {B, N, D, H, window, masked}, 0, N, 2e-5, 2e-5, step}
#define WINDOWS(id, build, B, N, D, H, masked, step) \
	WINDOW(id, build, B, N, D, H, 0, masked, step), \
	WINDOW(id, build, B, N, D, H, 1, masked, step), \
	WINDOW(id, build, B, N, D, H, 2, masked, step), \
	WINDOW(id, build, B, N, D, H, 3, masked, step), \
	WINDOW(id, build, B, N, D, H, 7, masked, step), \
	WINDOW(id, build, B, N, D, H, 32, masked, step), \
	WINDOW(id, build, B, N, D, H, 1000, masked, step)
#define ATTENTION(id, build, step) \
	WINDOWS(id, build, 2, 33, 6, 2, 0, step), \
	WINDOWS(id, build, 2, 33, 6, 2, 1, step), \
	WINDOWS(id, build, 1, 100, 31, 1, 1, 0), \
	WINDOWS(id, build, 3, 31, 99, 3, 0, 0), \
	WINDOWS(id, build, 1, 1, 4, 4, 0, step), \
	WINDOW(id, build, 2, 0, 4, 2, 3, 1, 0), \
	WINDOW(id, build, 0, 5, 4, 2, 3, 0, 0), \
	WINDOW(id, build, 1, 300, 64, 2, 64, 0, 0)
/* clang-format on */

static const op_case cases[] = {
    {OP_gather, "no index", build_gather, {5, 3, 0, -1}, 0, 4, 0, 0, 0},
    {OP_gather, "padding row, outside", build_gather, {5, 3, 40, 0}, -1, 5, 0, 0, STEP},
    {OP_gather, "wide", build_gather, {101, NARROW, 31, -1}, 0, 100, 0, 0, STEP},
    {OP_gather, "rows of a deep table", build_gather_deep, {2, 5, 31, 3}, 0, 9, 0, 0, STEP},
    {OP_gather_grad, "no index", build_gather_grad, {5, 3, 0, -1}, 0, 4, 1e-6, 1e-6, 0},
    {OP_gather_grad, "padding row, outside", build_gather_grad, {5, 3, 40, 0}, -1, 5, 1e-6, 1e-6, 0},
    {OP_gather_grad, "wide", build_gather_grad, {101, NARROW, 31, -1}, 0, 100, 1e-6, 1e-6, 0},
    {OP_gather_grad, "one row often", build_gather_grad, {2, 31, 3000, -1}, 0, 1, 1e-4, 1e-5, 0},

    ELEMENTWISE(OP_add, build_add, 0, STEP),
    ELEMENTWISE(OP_mul, build_mul, 1e-7, STEP),
    {OP_mul, "by itself", build_square, {3, 5}, 0, 0, 1e-7, 1e-7, STEP},
    ELEMENTWISE(OP_gate, build_gate, 3e-7, STEP),
    ELEMENTWISE(OP_scale, build_scale, 1e-7, STEP),
    ELEMENTWISE(OP_bias, build_bias, 3e-7, STEP),
    ELEMENTWISE(OP_gelu, build_gelu, 1e-6, STEP),
    ELEMENTWISE(OP_gelu_grad, build_gelu_grad, 2e-6, 0),
    ELEMENTWISE(OP_fill, build_fill, 0, 0),
    ELEMENTWISE(OP_accumulate, build_accumulate, 3e-7, 0),

    {OP_sum_rows, "no row", build_sum_rows, {0, 3}, 0, 0, 0, 0, 0},
    {OP_sum_rows, "odd", build_sum_rows, {31, NARROW}, 0, 0, 1e-5, 1e-6, 0},
    {OP_sum_rows, "tall", build_sum_rows, {5000, 3}, 0, 0, 1e-4, 1e-5, 0},
    {OP_sum_rows, "wide", build_sum_rows, {3, 5000}, 0, 0, 1e-6, 1e-6, 0},

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
    {OP_matmul, "leading dimensions", build_matmul_deep, {2, 3, 5, 4}, 0, 0, 1e-5, 1e-5, STEP},

    {OP_layernorm, "no row", build_layernorm, {0, 3}, 0, 0, 0, 0, 0},
    {OP_layernorm, "one channel", build_layernorm, {3, 1}, 0, 0, 1e-6, 1e-6, 0},
    {OP_layernorm, "odd", build_layernorm, {3, NARROW}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_layernorm, "many rows", build_layernorm, {301, 31}, 0, 0, 5e-6, 5e-6, 0},
    {OP_layernorm, "wide", build_layernorm, {5, 1025}, 0, 0, 5e-6, 5e-6, 0},
    {OP_layernorm_grad, "no row", build_layernorm_grad, {0, 3}, 0, 0, 0, 0, 0},
    {OP_layernorm_grad, "one channel", build_layernorm_grad, {3, 1}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "odd", build_layernorm_grad, {3, NARROW}, 0, 0, 1e-5, 1e-5, 0},
    {OP_layernorm_grad, "many rows", build_layernorm_grad, {301, 31}, 0, 0, 1e-4, 1e-5, 0},
    {OP_layernorm_grad, "wide", build_layernorm_grad, {5, 1025}, 0, 0, 1e-5, 1e-5, 0},

    {OP_dropout, "empty", build_dropout, {0, 3, 10, 0}, 0, 0, 0, 0, 0},
    {OP_dropout, "off", build_dropout, {3, 31, 0, 0}, 0, 0, 0, 0, STEP},
    {OP_dropout, "odd", build_dropout, {3, 31, 10, 7}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_dropout, "long", build_dropout, {7, LONG, 50, 1}, 0, 0, 1e-6, 1e-6, 0},

    ATTENTION(OP_additive_attention, build_attention, STEP),
    {OP_additive_attention, "loud scores", build_attention, {2, 65, 32, 2, 7, 0, 1}, 0, 0, 2e-2, 1e-5, 0},
    {OP_additive_attention, "loud scores, global", build_attention, {2, 65, 32, 2, 0, 1, 1}, 0, 0, 2e-2, 1e-5, 0},
    ATTENTION(OP_additive_attention_grad, build_attention_grad, 0),
    ATTENTION(OP_additive_stream, build_stream, 0),
    {OP_additive_stream, "loud scores", build_stream, {2, 65, 32, 2, 7, 1, 1}, 0, 65, 2e-2, 1e-5, 0},

    {OP_cross_entropy, "no row", build_cross_entropy, {0, 5, 0}, 0, 4, 0, 0, 0},
    {OP_cross_entropy, "all ignored", build_cross_entropy, {3, 5, 0}, -1, -1, 1e-6, 1e-6, 0},
    {OP_cross_entropy, "one class", build_cross_entropy, {3, 1, 10}, -1, 0, 1e-6, 1e-6, 0},
    {OP_cross_entropy, "odd", build_cross_entropy, {5, 7, 0}, -1, 7, 1e-6, 1e-6, 4 * STEP},
    {OP_cross_entropy, "smoothed", build_cross_entropy, {9, 7, 10}, -1, 7, 1e-6, 1e-6, 4 * STEP},
    {OP_cross_entropy, "many classes", build_cross_entropy, {33, 1025, 10}, -1, 1025, 1e-5, 1e-6, 0},
    {OP_cross_entropy_grad, "no row", build_cross_entropy_grad, {0, 5, 0}, 0, 4, 0, 0, 0},
    {OP_cross_entropy_grad, "all ignored", build_cross_entropy_grad, {3, 5, 0}, -1, -1, 0, 0, 0},
    {OP_cross_entropy_grad, "one class", build_cross_entropy_grad, {3, 1, 10}, -1, 0, 1e-6, 1e-6, 0},
    {OP_cross_entropy_grad, "odd", build_cross_entropy_grad, {5, 7, 0}, -1, 7, 1e-6, 1e-6, 0},
    {OP_cross_entropy_grad, "smoothed", build_cross_entropy_grad, {9, 7, 10}, -1, 7, 1e-6, 1e-6, 0},
    {OP_cross_entropy_grad, "many classes", build_cross_entropy_grad, {33, 1025, 10}, -1, 1025, 1e-6, 1e-6, 0},

    {OP_sum_squares, "empty", build_sum_squares, {0}, 0, 0, 0, 0, 0},
    {OP_sum_squares, "odd", build_sum_squares, {31}, 0, 0, 0, 1e-6, 0},
    {OP_sum_squares, "long", build_sum_squares, {7 * LONG}, 0, 0, 0, 1e-6, 0},

    {OP_adamw, "empty", build_adamw, {0, 100}, 0, 0, 0, 0, 0},
    {OP_adamw, "clipped", build_adamw, {31, 100}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "not clipped", build_adamw, {LONG, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_adamw, "norm not finite", build_adamw, {33, 100, 1}, 0, 0, 0, 0, 0},
};

int op_cases_count(void)
{
	return sizeof cases / sizeof cases[0];
}

const op_case *op_cases_at(int index)
{
	return &cases[index];
}

/* --- content ------------------------------------------------------------------------- */

/* A seed for a name, so that equal names have equal content in every case. */
static uint64_t seed_of(const char *name)
{
	uint64_t hash = 1469598103934665603u; /* FNV-1a */
	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 1099511628211u;
	return hash;
}

static void fill_f32(const char *name, float *x, int64_t count)
{
	double std = strstr(name, "loud") ? 400 : strstr(name, "wide") ? 3 : 1;
	random_normal(x, count, seed_of(name), std);
	if (strcmp(name, "hyper") == 0)
		x[0] = 1e-2f, x[1] = 3; /* learning rate, step */
	else if (strcmp(name, "norm2") == 0)
		x[0] = 4;
	else if (strcmp(name, "norm2 nan") == 0)
		memset(x, 0xff, sizeof *x);
	else if (strcmp(name, "v") == 0) /* a second moment is not negative */
		for (int64_t i = 0; i < count; i++)
			x[i] *= x[i];
}

static void fill_i32(const op_case *c, const char *name, int32_t *x, int64_t count)
{
	if (strcmp(name, "mask") == 0)
		random_integers(x, count, seed_of(name), 0, 1);
	else if (strcmp(name, "rng") == 0)
		random_integers(x, count, seed_of(name), INT32_MIN, INT32_MAX);
	else if (strcmp(name, "slot") == 0) /* distinct, and not in order */
		for (int64_t i = 0; i < count; i++)
			x[i] = (int32_t)(count - i);
	else if (strcmp(name, "position zero") == 0)
		memset(x, 0, (size_t)count * sizeof *x);
	else if (strcmp(name, "position") == 0) /* as many as were read before */
		random_integers(x, count, seed_of("length before"), c->low, c->high);
	else
		random_integers(x, count, seed_of(name), c->low, c->high);
}

void op_cases_fill(const op_case *c, const value_info *info, void *data)
{
	int64_t count = shape_count(info->shape);
	if (info->type == DTYPE_F32)
		fill_f32(info->name, data, count);
	else
		fill_i32(c, info->name, data, count);
}
