/* Rotary embeddings, tables of biases by distance, sinusoids. */
#include "tests/unit/support/op_cases/family.h"

enum { INTERLEAVED = 1, TRANSPOSED = 2, INVERSE = 4, XPOS = 8, POSITIONS = 16, SEGMENTS = 32 };

/* batch, length, heads, channels of a head, width, flags, first position */
static void build_rotary(graph *g, const int64_t *arg)
{
	const rotary_params p = {.heads = arg[2],
	                         .width = arg[4],
	                         .first = arg[6],
	                         .base = 10000,
	                         .xpos_base = arg[5] & XPOS ? 16 : 0,
	                         .xpos_center = 5,
	                         .inverse_scale = arg[5] & INVERSE,
	                         .interleaved = arg[5] & INTERLEAVED,
	                         .segment = arg[5] & SEGMENTS ? 6 : 0,
	                         .memory = 8,
	                         .transposed = arg[5] & TRANSPOSED};
	value x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2] * arg[3]));
	op_rotary(g, x, arg[5] & POSITIONS ? i32(g, "index", SHAPE2(arg[0], arg[1])) : VALUE_NONE, p);
}

static void build_t5_buckets(graph *g, const int64_t *arg) /* first, count, buckets, max_distance, bidirectional */
{
	op_t5_buckets(g, (t5_buckets_params){arg[0], arg[1], arg[2], arg[3], arg[4]});
}

static void build_distances(graph *g, const int64_t *arg) /* first, count, absolute, logarithmic */
{
	op_distances(g, (distances_params){arg[0], arg[1], arg[2], arg[3]});
}

static void build_sinusoids(graph *g, const int64_t *arg) /* batch, length, width, form */
{
	op_sinusoids(g, i32(g, "index", SHAPE2(arg[0], arg[1])), (sinusoids_params){arg[2], (sinusoids_form)arg[3]});
}

static void build_alibi(graph *g, const int64_t *arg) /* first, count, heads, with slopes of their own, learned */
{
	value log_slopes = arg[4] ? f32(g, "log slopes", SHAPE1(arg[2])) : VALUE_NONE;
	op_alibi(g, log_slopes, (alibi_params){arg[0], arg[1], arg[2], arg[3]});
}

static const op_case cases[] = {
    {OP_rotary, "no row", build_rotary, {0, 3, 2, 8, 8, 0}, 0, 0, 0, 0, 0},
    {OP_rotary, "nothing turns", build_rotary, {2, 3, 2, 5, 0, 0}, 0, 0, 0, 0, STEP},
    {OP_rotary, "halves", build_rotary, {2, 5, 3, 11, 6, 0, 7}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "halves, whole packs", build_rotary, {2, 9, 2, 48, 32, 0, 100}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "halves, whole heads", build_rotary, {1, 3, 2, 64, 64, 0, 0}, 0, 0, 1e-6, 1e-6, 0},
    {OP_rotary, "interleaved", build_rotary, {2, 5, 3, 11, 6, INTERLEAVED, 3}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "interleaved, whole packs", build_rotary, {2, 9, 2, 48, 32, INTERLEAVED}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "wide", build_rotary, {2, 3, 1, 300, 260, 0, 5}, 0, 0, 1e-6, 1e-6, 0},
    {OP_rotary, "many rows", build_rotary, {3, 700, 4, 16, 8, TRANSPOSED}, 0, 0, 1e-6, 1e-6, 0},
    {OP_rotary, "positions", build_rotary, {2, 7, 2, 8, 8, POSITIONS}, -1000, 1000, 1e-6, 1e-6, STEP},
    {OP_rotary, "positions, large", build_rotary, {3, 40, 2, 32, 32, POSITIONS}, 1000000, INT32_MAX, 2e-6, 1e-6, 0},
    {OP_rotary, "segments", build_rotary, {2, 40, 2, 11, 6, SEGMENTS | TRANSPOSED, 3}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_rotary, "xpos", build_rotary, {2, 15, 2, 12, 8, XPOS}, 0, 0, 2e-6, 2e-6, STEP},
    {OP_rotary, "xpos, keys", build_rotary, {2, 9, 2, 48, 32, XPOS | INVERSE | TRANSPOSED, 40}, 0, 0, 2e-6, 4e-6, STEP},
    {OP_rotary,
     "xpos, positions",
     build_rotary,
     {2, 9, 2, 8, 8, XPOS | POSITIONS | INTERLEAVED},
     0,
     300,
     2e-6,
     4e-6,
     0},

    {OP_t5_buckets, "nothing", build_t5_buckets, {0, 0, 32, 128, 0}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "one side", build_t5_buckets, {-5, 305, 32, 128, 0}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "both sides", build_t5_buckets, {-1000, 2001, 32, 128, 1}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "odd", build_t5_buckets, {-3, 203, 5, 77, 0}, 0, 0, 0, 0, 0},
    {OP_t5_buckets, "far", build_t5_buckets, {0, LONG, 200, 10000, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "nothing", build_distances, {0, 0, 0, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "signed", build_distances, {-17, 33, 0, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "absolute", build_distances, {-17, 33, 1, 0}, 0, 0, 0, 0, 0},
    {OP_distances, "logarithms", build_distances, {-1000, 3001, 0, 1}, 0, 0, 1e-7, 1e-7, 0},
    {OP_distances, "absolute logarithms", build_distances, {-17, 33, 1, 1}, 0, 0, 1e-7, 1e-7, 0},
    {OP_alibi, "nothing", build_alibi, {0, 0, 3, 3, 0}, 0, 0, 0, 0, 0},
    {OP_alibi, "twelve heads", build_alibi, {-7, 40, 12, 12, 0}, 0, 0, 0, 3e-7, 0},
    {OP_alibi, "some of the heads", build_alibi, {-7, 15, 5, 3, 0}, 0, 0, 0, 3e-7, 0},
    {OP_alibi, "learned", build_alibi, {-7, 15, 5, 5, 1}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_sinusoids, "nothing", build_sinusoids, {2, 0, 4, SINUSOIDS_EXACT}, 0, 0, 0, 0, 0},
    {OP_sinusoids, "exact", build_sinusoids, {2, 300, 6, SINUSOIDS_EXACT}, 0, 300, 2e-7, 0, 0},
    {OP_sinusoids, "exact, far", build_sinusoids, {3, 40, 130, SINUSOIDS_EXACT}, 1000000, INT32_MAX, 4e-7, 0, 0},
    {OP_sinusoids, "by exponentials", build_sinusoids, {3, 40, 34, SINUSOIDS_EXP}, 0, 1000000, 2e-7, 0, 0},
    {OP_sinusoids, "by powers", build_sinusoids, {3, 40, 34, SINUSOIDS_POW}, 0, 1000000, 2e-7, 0, 0},
    {OP_alibi, "learned, some", build_alibi, {-2, 9, 5, 3, 1}, 0, 0, 1e-6, 1e-6, STEP},
};

const op_case_family op_cases_position = OP_CASES(cases);
