/* Rows that are gathered, joined, cut, shifted, hidden and scaled by columns. */
#include "tests/unit/support/op_cases/family.h"

static void build_gather(graph *g, const int64_t *arg) /* rows, width, indices, padding row */
{
	op_gather(g, real(g, arg, "table", SHAPE2(arg[0], arg[1])), i32(g, "index", SHAPE2(1, arg[2])), arg[3]);
}

static void build_gather_deep(graph *g, const int64_t *arg) /* batch, length, width, indices */
{
	op_gather(g, real(g, arg, "table", SHAPE3(arg[0], arg[1], arg[2])), i32(g, "index", SHAPE1(arg[3])), -1);
}

static void build_gather_panels(graph *g, const int64_t *arg) /* rows, width, indices, type */
{
	op_gather(g, graph_weight(g, "table", (dtype)arg[3], SHAPE2(arg[0], arg[1])), i32(g, "index", SHAPE1(arg[2])),
	          -1);
}

static void build_gather_grad(graph *g, const int64_t *arg) /* rows, width, indices, padding row */
{
	op_gather_grad(g, i32(g, "index", SHAPE1(arg[2])), real(g, arg, "dy", SHAPE2(arg[2], arg[1])), arg[0], arg[3]);
}

static void build_gather_grad_deep(graph *g, const int64_t *arg) /* batch, length, width, indices */
{
	value out, table = real(g, arg, "table", SHAPE3(arg[0], arg[1], arg[2]));
	value in[] = {i32(g, "index", SHAPE1(arg[3])), real(g, arg, "dy", SHAPE2(arg[3], arg[2])), table};
	graph_apply(g, OP_gather_grad, in, 3, &(gather_grad_params){arg[0] * arg[1], -1}, &out);
}

enum { SHARED, EACH, BY_HEADS, INTEGERS }; /* kinds of prefixes */

/* batch, length, channels, rows before, kind; heads 3 */
static void build_join_rows(graph *g, const int64_t *arg)
{
	const shape x = SHAPE3(arg[0], arg[1], arg[2]), rows = SHAPE2(arg[3], arg[2]);
	const shape each = SHAPE3(arg[0], arg[3], arg[2]), by_heads = SHAPE3(3, arg[3], arg[2] / 3);
	const join_rows_params p = {.heads = arg[4] == BY_HEADS ? 3 : 0};
	if (arg[4] == INTEGERS)
		op_join_rows(g, i32(g, "prefix", rows), i32(g, "index", x), p);
	else if (arg[4] == EACH)
		op_join_rows(g, real(g, arg, "prefix", each), real(g, arg, "x", x), p);
	else
		op_join_rows(g, f32(g, "prefix", arg[4] == SHARED ? rows : by_heads), real(g, arg, "x", x), p);
}

static void build_join_rows_grad(graph *g, const int64_t *arg) /* batch, total length, channels, rows before, kind */
{
	const shape s = SHAPE3(arg[0], arg[1], arg[2]);
	const join_rows_params p = {.heads = arg[4] == BY_HEADS ? 3 : 0, .rows = arg[3], .each = arg[4] == EACH};
	value grads[2], in[] = {real(g, arg, "dy", SHAPE2(arg[0] * arg[1], arg[2])), real(g, arg, "y", s)};
	graph_apply(g, OP_join_rows_grad, in, 2, &p, grads);
}

static void build_slice_rows(graph *g, const int64_t *arg) /* batch, length, channels, first, count, integers */
{
	const shape s = SHAPE3(arg[0], arg[1], arg[2]);
	op_slice_rows(g, arg[5] ? i32(g, "index", s) : real(g, arg, "x", s), arg[3], arg[4]);
}

static void build_slice_rows_grad(graph *g, const int64_t *arg) /* batch, length, channels, first, count */
{
	value dx, x = real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2]));
	value dy = real(g, arg, "dy", SHAPE3(arg[0], arg[4] == -1 ? arg[1] - arg[3] : arg[4], arg[2]));
	graph_apply(g, OP_slice_rows_grad, (value[]){dy, x}, 2, &(slice_rows_params){arg[3], arg[4]}, &dx);
}

static void build_segment_rows(graph *g, const int64_t *arg) /* batch, length, segment, rows before */
{
	op_segment_rows(g, i32(g, "position", SHAPE2(arg[0], arg[1])), (segment_rows_params){arg[2], arg[3]});
}

static void build_segment_begin(graph *g, const int64_t *arg) /* batch, segment, front */
{
	op_segment_begin(g, i32(g, "position", SHAPE1(arg[0])), i32(g, "length", SHAPE1(arg[0])),
	                 (segment_rows_params){arg[1], arg[2]});
}

static void build_hash_rows(graph *g, const int64_t *arg) /* batch, length, first, round */
{
	op_hash_rows(g, i32(g, "index", SHAPE2(arg[0], arg[1])), (hash_rows_params){arg[2], arg[3]});
}

static void build_longest_match(graph *g, const int64_t *arg) /* batch, length, window, of a match, -, masked */
{
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_longest_match(g, i32(g, "tokens", SHAPE2(arg[0], arg[1])), mask, (longest_match_params){arg[2], arg[3], 0});
}

/* sequences, tokens, window, of a match, -, masked; of a stream */
static void longest_match_case(graph *g, const int64_t *arg, bool ragged)
{
	const longest_match_params p = {arg[2], arg[3], STREAM_OFFSET};
	const stream_values before = stream_before(g, arg, STREAM_OFFSET + longest_match_state_floats(p.window));
	op_longest_match_stream(g, i32(g, "tokens before", SHAPE2(arg[0], arg[1])), before.pool, before.slot,
	                        before.position, before.length, before.mask, before.start, p);
	const stream_values at = stream_now(g, arg, before, ragged);
	op_longest_match_stream(g, i32(g, "tokens", SHAPE2(ragged ? 1 : arg[0], arg[1])), at.pool, at.slot, at.position,
	                        at.length, at.mask, at.start, p);
}

static void build_longest_match_stream(graph *g, const int64_t *arg)
{
	longest_match_case(g, arg, false);
}

static void build_ragged_longest_match_stream(graph *g, const int64_t *arg)
{
	longest_match_case(g, arg, true);
}

static void build_pad_mask(graph *g, const int64_t *arg) /* batch, length, places before */
{
	op_pad_mask(g, i32(g, "mask", SHAPE2(arg[0], arg[1])), arg[2], 1);
}

static void build_mask_rows(graph *g, const int64_t *arg) /* batch, length, channels */
{
	op_mask_rows(g, real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2])), i32(g, "mask", SHAPE2(arg[0], arg[1])));
}

static void build_scale_columns(graph *g, const int64_t *arg) /* rows, width, group */
{
	op_scale_columns(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), f32(g, "w", SHAPE1(arg[1] / arg[2])), arg[2]);
}

static void build_scale_columns_grad(graph *g, const int64_t *arg) /* rows, width, group */
{
	value dw, in[] = {real(g, arg, "x", SHAPE2(arg[0], arg[1])), real(g, arg, "dy", SHAPE2(arg[0], arg[1]))};
	graph_apply(g, OP_scale_columns_grad, in, 2, &(scale_columns_params){arg[2]}, &dw);
}

static void build_mix_columns(graph *g, const int64_t *arg) /* rows, width, row of w, its rows */
{
	op_mix_columns(g, real(g, arg, "x", SHAPE2(arg[0], arg[1])), real(g, arg, "other", SHAPE2(arg[0], arg[1])),
	               f32(g, "w", SHAPE2(arg[3], arg[1])), arg[2]);
}

static void build_mix_columns_grad(graph *g, const int64_t *arg) /* rows, width, row of w, its rows */
{
	const shape s = SHAPE2(arg[0], arg[1]);
	value in[] = {real(g, arg, "x", s), real(g, arg, "other", s), f32(g, "w", SHAPE2(arg[3], arg[1])),
	              real(g, arg, "dy", s)};
	value grads[3];
	graph_apply(g, OP_mix_columns_grad, in, 4, &(mix_columns_params){arg[2]}, grads);
}

static void build_shift_rows(graph *g, const int64_t *arg) /* batch, length, channels, low, high, masked, transposed */
{
	value mask = arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE;
	op_shift_rows(g, real(g, arg, "x", SHAPE3(arg[0], arg[1], arg[2])), mask,
	              (shift_params){arg[3], arg[4], arg[6]});
}

/* A stream: sequences, tokens, channels, high, rows in front (negative: in the slots), masked, segment, low. all: every
 * sequence reads all tokens. */
static void shift_stream_case(graph *g, const int64_t *arg, bool ragged, bool all)
{
	const int64_t end = STREAM_OFFSET + shift_state_floats(arg[2], arg[3]), stored = arg[4] < 0 ? -arg[4] : 0;
	const shift_stream_params p = {arg[7], arg[3], STREAM_OFFSET, arg[6], {stored, end}};
	const stream_values before = stream_before(g, arg, end + source_state_floats(arg[2], 0, stored));
	if (stored)
		op_source_store(g, f32(g, "rows in front", SHAPE3(arg[0], stored, arg[2])),
		                f32(g, "nothing", SHAPE3(arg[0], stored, 0)), before.pool, before.slot, VALUE_NONE,
		                VALUE_NONE, (source_params){.heads = 1, .capacity = stored, .offset = end});
	value front = arg[4] > 0 ? f32(g, "front", SHAPE2(arg[4], arg[2])) : VALUE_NONE;
	op_shift_stream(g, f32(g, "x before", stream_shape(arg, arg[2], false)), before.pool, before.slot,
	                before.position, before.length, before.mask, before.start, front, p);
	stream_values at = stream_now(g, arg, before, ragged);
	if (all)
		at.length = op_fill_integer(g, SHAPE1(arg[0]), (int32_t)arg[1]);
	op_shift_stream(g, f32(g, "x", stream_shape(arg, arg[2], ragged)), at.pool, at.slot, at.position, at.length,
	                at.mask, at.start, front, p);
}

static void build_shift_stream(graph *g, const int64_t *arg)
{
	shift_stream_case(g, arg, false, false);
}

static void build_ragged_shift_stream(graph *g, const int64_t *arg)
{
	shift_stream_case(g, arg, true, false);
}

static void build_shift_stream_gradient(graph *g, const int64_t *arg)
{
	shift_stream_case(g, arg, false, true);
}

static void build_hide_keys(graph *g, const int64_t *arg) /* batch, length, percent, first, beyond, masked */
{
	op_hide_keys(g, i32(g, "rng", SHAPE1(4)), arg[5] ? i32(g, "mask", SHAPE2(arg[0], arg[1])) : VALUE_NONE,
	             (hide_keys_params){arg[0], arg[1], arg[3], arg[4], (double)arg[2] / 100, 3});
}

static const op_case cases[] = {
    {OP_gather, "no index", build_gather, {5, 3, 0, -1}, 0, 4, 0, 0, 0},
    {OP_gather, "padding row, outside", build_gather, {5, 3, 40, 0}, -1, 5, 0, 0, STEP},
    {OP_gather, "wide", build_gather, {101, NARROW, 31, -1}, 0, 100, 0, 0, STEP},
    {OP_gather, "rows of a deep table", build_gather_deep, {2, 5, 31, 3}, 0, 9, 0, 0, STEP},
    {OP_gather, "panels of f32", build_gather_panels, {37, 31, 19, DTYPE_PANEL_F32}, -1, 37, 0, 0, 0},
    {OP_gather, "panels of bf16", build_gather_panels, {37, 31, 19, DTYPE_PANEL_BF16}, -1, 37, 0, 0, 0},
    {OP_gather, "panels of int8", build_gather_panels, {37, 31, 19, DTYPE_PANEL_INT8}, -1, 37, 0, 0, 0},
    {OP_gather_grad, "no index", build_gather_grad, {5, 3, 0, -1}, 0, 4, 1e-6, 1e-6, 0},
    {OP_gather_grad, "padding row, outside", build_gather_grad, {5, 3, 40, 0}, -1, 5, 1e-6, 1e-6, 0},
    {OP_gather_grad, "wide", build_gather_grad, {101, NARROW, 31, -1}, 0, 100, 1e-6, 1e-6, 0},
    {OP_gather_grad, "rows of a deep table", build_gather_grad_deep, {2, 5, 31, 3}, 0, 9, 1e-6, 1e-6, 0},
    {OP_gather_grad, "one row often", build_gather_grad, {2, 31, 3000, -1}, 0, 1, 1e-4, 1e-5, 0},

    {OP_join_rows, "no sequence", build_join_rows, {0, 5, 6, 2, SHARED}, 0, 0, 0, 0, 0},
    {OP_join_rows, "no token", build_join_rows, {2, 0, 6, 2, SHARED}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "no row before", build_join_rows, {2, 3, 6, 0, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "shared", build_join_rows, {3, 5, 7, 2, SHARED}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "shared, whole packs", build_join_rows, {3, 5, 16, 4, SHARED}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "of each sequence", build_join_rows, {3, 5, 8, 2, EACH}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "by heads", build_join_rows, {2, 5, 9, 2, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "by heads, whole packs", build_join_rows, {2, 5, 24, 2, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "by heads, packs over heads", build_join_rows, {2, 5, 12, 2, BY_HEADS}, 0, 0, 0, 0, STEP},
    {OP_join_rows, "integers", build_join_rows, {2, 5, 3, 2, INTEGERS}, 0, 9, 0, 0, 0},
    {OP_join_rows_grad, "no sequence", build_join_rows_grad, {0, 5, 6, 2, 0}, 0, 0, 0, 0, 0},
    {OP_join_rows_grad, "shared", build_join_rows_grad, {5, 7, 7, 3, 0}, 0, 0, 2e-6, 2e-6, 0},
    {OP_join_rows_grad, "of each sequence", build_join_rows_grad, {5, 7, 8, 3, EACH}, 0, 0, 2e-6, 2e-6, 0},
    {OP_join_rows_grad, "by heads", build_join_rows_grad, {5, 7, 24, 3, BY_HEADS}, 0, 0, 2e-6, 2e-6, 0},
    {OP_slice_rows, "no sequence", build_slice_rows, {0, 5, 6, 2, 1}, 0, 0, 0, 0, 0},
    {OP_slice_rows, "no row", build_slice_rows, {2, 5, 6, 2, 0}, 0, 0, 0, 0, 0},
    {OP_slice_rows, "in the middle", build_slice_rows, {2, 9, 7, 2, 4}, 0, 0, 0, 0, STEP},
    {OP_slice_rows, "to the end", build_slice_rows, {2, 9, 8, 3, -1}, 0, 0, 0, 0, STEP},
    {OP_slice_rows, "but the last", build_slice_rows, {2, 9, 8, 1, -2}, 0, 0, 0, 0, STEP},
    {OP_slice_rows, "integers", build_slice_rows, {2, 9, 3, 3, 2, 1}, 0, 9, 0, 0, 0},
    {OP_slice_rows_grad, "no sequence", build_slice_rows_grad, {0, 5, 6, 2, 1}, 0, 0, 0, 0, 0},
    {OP_slice_rows_grad, "in the middle", build_slice_rows_grad, {2, 9, 7, 2, 4}, 0, 0, 0, 0, 0},
    {OP_slice_rows_grad, "to the end", build_slice_rows_grad, {2, 9, 8, 3, -1}, 0, 0, 0, 0, 0},
    {OP_segment_rows, "nothing", build_segment_rows, {3, 0, 4, 2}, 0, 9, 0, 0, 0},
    {OP_segment_rows, "some segments", build_segment_rows, {3, 31, 4, 2}, 0, 40, 0, 0, 0},
    {OP_segment_rows, "large", build_segment_rows, {3, 300, 1000, 7}, 0, 2000000000, 0, 0, 0},
    {OP_segment_begin, "nothing", build_segment_begin, {0, 4, 2}, 0, 9, 0, 0, 0},
    {OP_segment_begin, "at some", build_segment_begin, {31, 2, 3}, 0, 9, 0, 0, 0},
    {OP_segment_begin, "at all", build_segment_begin, {300, 1, 1}, 0, 3, 0, 0, 0},
    {OP_hash_rows, "nothing", build_hash_rows, {3, 0, 2, 0}, 0, 0, 0, 0, 0},
    {OP_hash_rows, "some below 0", build_hash_rows, {3, 31, 2, 1}, -5, 5, 0, 0, 0},
    {OP_hash_rows, "large", build_hash_rows, {3, 300, INT32_MAX, 2}, 0, INT32_MAX, 0, 0, 0},
    {OP_longest_match, "nothing", build_longest_match, {3, 0, 9, 4}, 0, 0, 0, 0, 0},
    {OP_longest_match, "short", build_longest_match, {3, 31, 64, 32}, 0, 3, 0, 0, 0},
    {OP_longest_match, "a narrow window", build_longest_match, {3, 200, 9, 4}, 0, 2, 0, 0, 0},
    {OP_longest_match, "masked, some below 0", build_longest_match, {5, 150, 70, 32, 0, 1}, -1, 4, 0, 0, 0},
    {OP_longest_match, "long matches", build_longest_match, {2, 300, 299, 5}, 0, 1, 0, 0, 0},
    {OP_longest_match_stream, "no token", build_longest_match_stream, {3, 0, 9, 4}, 0, 0, 0, 0, 0},
    {OP_longest_match_stream, "one token", build_longest_match_stream, {9, 1, 4, 2}, 0, 1, 0, 0, 0},
    {OP_longest_match_stream, "some tokens", build_longest_match_stream, {9, 5, 40, 3}, 0, 5, 0, 0, 0},
    {OP_longest_match_stream, "past the window", build_longest_match_stream, {9, 7, 6, 3}, 0, 7, 0, 0, 0},
    {OP_longest_match_stream, "masked", build_longest_match_stream, {9, 7, 40, 3, 0, 1}, 0, 7, 0, 0, 0},
    {OP_longest_match_stream, "ragged", build_ragged_longest_match_stream, {7, 97, 31, 4}, 0, 97, 0, 0, 0},
    {OP_longest_match_stream,
     "ragged, masked",
     build_ragged_longest_match_stream,
     {9, 200, 8, 2, 0, 1},
     0,
     60,
     0,
     0,
     0},
    {OP_pad_mask, "no place", build_pad_mask, {3, 0, 0}, 0, 0, 0, 0, 0},
    {OP_pad_mask, "no token", build_pad_mask, {3, 0, 2}, 0, 0, 0, 0, 0},
    {OP_pad_mask, "odd", build_pad_mask, {3, 31, 5}, 0, 0, 0, 0, 0},
    {OP_mask_rows, "no row", build_mask_rows, {2, 0, 3}, 0, 0, 0, 0, 0},
    {OP_mask_rows, "odd", build_mask_rows, {2, 7, 5}, 0, 0, 0, 0, STEP},
    {OP_mask_rows, "whole packs", build_mask_rows, {2, 7, 24}, 0, 0, 0, 0, STEP},

    {OP_scale_columns, "no row", build_scale_columns, {0, 3, 1}, 0, 0, 0, 0, 0},
    {OP_scale_columns, "odd", build_scale_columns, {3, NARROW, 1}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns, "whole packs", build_scale_columns, {5, 40, 1}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns, "groups", build_scale_columns, {5, 33, 11}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns, "groups of whole packs", build_scale_columns, {5, 48, 16}, 0, 0, 1e-7, 1e-7, STEP},
    {OP_scale_columns_grad, "no row", build_scale_columns_grad, {0, 3, 1}, 0, 0, 0, 0, 0},
    {OP_scale_columns_grad, "odd", build_scale_columns_grad, {31, NARROW, 1}, 0, 0, 1e-5, 1e-6, 0},
    {OP_scale_columns_grad, "groups", build_scale_columns_grad, {31, 33, 11}, 0, 0, 2e-5, 1e-6, 0},
    {OP_scale_columns_grad, "tall", build_scale_columns_grad, {2500, 6, 2}, 0, 0, 1e-4, 1e-5, 0},
    {OP_scale_columns_grad, "wide group", build_scale_columns_grad, {3, 1000, 1000}, 0, 0, 1e-4, 1e-5, 0},

    {OP_mix_columns, "no row", build_mix_columns, {0, 3, 0, 1}, 0, 0, 0, 0, 0},
    {OP_mix_columns, "odd", build_mix_columns, {31, NARROW, 2, 3}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_mix_columns, "whole packs", build_mix_columns, {5, 136, 1, 3}, 0, 0, 1e-6, 1e-6, STEP},
    {OP_mix_columns, "tall", build_mix_columns, {2500, 6, 0, 2}, 0, 0, 1e-6, 1e-6, 0},
    {OP_mix_columns_grad, "no row", build_mix_columns_grad, {0, 3, 0, 2}, 0, 0, 0, 0, 0},
    {OP_mix_columns_grad, "odd", build_mix_columns_grad, {31, NARROW, 2, 3}, 0, 0, 1e-5, 1e-6, 0},
    {OP_mix_columns_grad, "whole packs", build_mix_columns_grad, {5, 264, 1, 3}, 0, 0, 1e-5, 1e-6, 0},
    {OP_mix_columns_grad, "tall", build_mix_columns_grad, {2500, 6, 0, 2}, 0, 0, 1e-4, 1e-5, 0},
    {OP_mix_columns_grad, "tall, whole packs", build_mix_columns_grad, {1300, 40, 0, 1}, 0, 0, 1e-4, 1e-5, 0},

    {OP_shift_rows, "no row", build_shift_rows, {2, 0, 6, 0, 1}, 0, 0, 0, 0, 0},
    {OP_shift_rows, "no shift", build_shift_rows, {2, 5, 6, 0, 0, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "causal", build_shift_rows, {2, 7, 7, 0, 2}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "causal, masked", build_shift_rows, {2, 7, 7, 0, 2, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "both ways", build_shift_rows, {2, 7, 11, -2, 2}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "both ways, masked", build_shift_rows, {2, 7, 11, -1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "the row before", build_shift_rows, {2, 7, 8, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "the row before, masked", build_shift_rows, {2, 7, 5, 1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "two and three rows before", build_shift_rows, {2, 7, 5, 2, 3, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "whole packs", build_shift_rows, {3, 9, 56, -1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "further than there are rows", build_shift_rows, {2, 3, 40, 0, 9, 0}, 0, 0, 0, 0, STEP},
    {OP_shift_rows, "transposed, masked", build_shift_rows, {2, 7, 11, -1, 1, 1, 1}, 0, 0, 0, 0, STEP},
    {OP_shift_stream, "no token", build_shift_stream, {3, 0, 4, 2}, 0, 0, 0, 0, 0},
    {OP_shift_stream, "nothing kept", build_shift_stream, {3, 5, 4, 0}, 0, 5, 0, 0, 0},
    {OP_shift_stream, "one token", build_shift_stream, {5, 1, 7, 2}, 0, 1, 0, 0, 0},
    {OP_shift_stream, "one token, masked", build_shift_stream, {5, 1, 7, 1, 0, 1}, 0, 1, 0, 0, 0},
    {OP_shift_stream, "many tokens", build_shift_stream, {3, 21, 13, 3}, 0, 21, 0, 0, 0},
    {OP_shift_stream, "many tokens, masked", build_shift_stream, {3, 21, 13, 3, 0, 1}, 0, 21, 0, 0, 0},
    {OP_shift_stream, "the row before", build_shift_stream, {3, 21, 13, 1, 0, 1, 0, 1}, 0, 21, 0, 0, 0},
    {OP_shift_stream, "one token, the row before", build_shift_stream, {5, 1, 8, 1, 0, 0, 0, 1}, 0, 1, 0, 0, 0},
    {OP_shift_stream, "ragged, the row before", build_ragged_shift_stream, {7, 97, 31, 1, 0, 0, 0, 1}, 0, 97, 0, 0, 0},
    {OP_shift_stream, "ragged, two and three", build_ragged_shift_stream, {7, 97, 31, 3, 0, 1, 0, 2}, 0, 97, 0, 0, 0},
    {OP_shift_stream, "gradient", build_shift_stream_gradient, {3, 6, 5, 2}, 0, 6, 0, 0, STEP},
    {OP_shift_stream, "gradient, masked", build_shift_stream_gradient, {3, 6, 5, 1, 0, 1, 0, 1}, 0, 6, 0, 0, STEP},
    {OP_shift_stream, "a long memory", build_shift_stream, {2, 5, 40, 30}, 0, 5, 0, 0, 0},
    {OP_shift_stream, "rows in front", build_shift_stream, {3, 9, 13, 4, 2, 1}, 0, 9, 0, 0, 0},
    {OP_shift_stream, "rows in the slots", build_shift_stream, {3, 9, 13, 4, -2, 1}, 0, 9, 0, 0, 0},
    {OP_shift_stream, "segments", build_shift_stream, {3, 21, 13, 3, 0, 1, 5}, 0, 21, 0, 0, 0},
    {OP_shift_stream, "one token, segments", build_shift_stream, {9, 1, 7, 2, 0, 0, 2}, 0, 1, 0, 0, 0},
    {OP_shift_stream, "ragged, segments", build_ragged_shift_stream, {7, 97, 31, 4, 0, 0, 3}, 0, 97, 0, 0, 0},
    {OP_shift_stream, "ragged", build_ragged_shift_stream, {7, 97, 31, 4}, 0, 97, 0, 0, 0},
    {OP_shift_stream, "ragged, rows in front", build_ragged_shift_stream, {7, 60, 15, 4, 6}, 0, 60, 0, 0, 0},
    {OP_shift_stream, "ragged, masked", build_ragged_shift_stream, {9, 200, 8, 2, 0, 1}, 0, 60, 0, 0, 0},
    {OP_shift_stream, "ragged, no token", build_ragged_shift_stream, {3, 0, 4, 2}, 0, 0, 0, 0, 0},

    {OP_hide_keys, "no key", build_hide_keys, {3, 0, 50, 0, 0, 0}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "none hidden", build_hide_keys, {3, 31, 0, 0, 0, 1}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "some", build_hide_keys, {5, 33, 15, 1, 1, 0}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "masked", build_hide_keys, {3, 100, 30, 0, 0, 1}, 0, 0, 0, 0, 0},
    {OP_hide_keys, "all but one", build_hide_keys, {2, 7, 99, 1, 0, 0}, 0, 0, 0, 0, 0},
};

const op_case_family op_cases_rows = OP_CASES(cases);
