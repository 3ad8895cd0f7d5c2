/* attention.h - the division of a round of additive attention into units of work, forward and backward.
 *
 * Both march over a sequence, the forward from the first token to the last, the backward from the last to the first. In
 * either direction token r of the march sees the k tokens r-k+1 … r, where k is the window. March positions
 * come in blocks, and those in tiles:
 *
 *   k > ATTENTION_TILE   a block is one window, cut into equal tiles of up to ATTENTION_TILE tokens
 *   k <= ATTENTION_TILE  a block is one tile, of as many windows as it holds
 *
 * A unit of work is a span of blocks of one sequence for a group of neighbouring heads. Neither groups nor spans change
 * a bit of the result, because a unit recomputes what it needs from the window before its span. They therefore follow
 * the number of threads. Whole rows of memory are best. A thread that takes half of every 4 KB row uses half of the
 * cache's sets, and the processor fetches the other half in vain. That makes the forward of d 1024 on one thread 1.3 to
 * 1.5 times slower. So long windowed sequences are cut into spans first, and heads are split where that does not give
 * every thread its share. A global window is one block, and so one span. */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_H
#define ENGINE_CPU_KERNELS_ATTENTION_H

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/tensor/ops/additive_stream.h"

enum {
	ATTENTION_COST = 8,
	ATTENTION_TILE = 32,         /* 16 and 64 were slower at d 1024 */
	ATTENTION_CHANNELS = 1024,   /* for a group, unless one head is wider; a tile's rows then stay in the cache */
	ATTENTION_NARROW = 32,       /* channels that a group has at least, two cache lines */
	ATTENTION_PART_TOKENS = 1024 /* minimum tokens for one part of dw */
};

typedef struct attention_cut {
	int64_t batch, length, d, heads, dh;
	int64_t window;        /* k, at most length */
	int64_t block, blocks; /* tokens in a block, blocks in a sequence */
	int64_t tile, tiles;   /* tokens in a tile (the last of a block: maybe fewer), tiles in a block */
	int64_t part, parts;   /* blocks in one part of dw; parts of a sequence; independent of the threads */
	int64_t group, groups; /* heads in a unit, units along the heads */
	int64_t span, spans;   /* parts in a unit, units along a sequence */
	int threads;
} attention_cut;

/* True if `units` equal pieces of work keep all threads busy to the end. */
static inline bool attention_balanced(int64_t units, int threads)
{
	return units % threads == 0 || units >= 4 * (int64_t)threads;
}

/* Return the number of heads of a group: the widest that fits, or with `balance` the widest that also keeps all threads
 * busy, unless that is too narrow. */
static inline int64_t attention_group(const attention_cut *c, bool balance)
{
	int64_t best = 0;
	for (int64_t group = c->heads; group > 0; group--) {
		if (c->heads % group != 0 || (group > 1 && group * c->dh > ATTENTION_CHANNELS))
			continue;
		if (best && group * c->dh < ATTENTION_NARROW)
			break;
		best = group;
		if (!balance || attention_balanced(c->batch * (c->heads / group), c->threads))
			break;
	}
	return best;
}

/* Cut into equal spans, at most as many as threads need and none shorter than `windows` windows. True if that is
 * enough. */
static inline bool attention_cut_spans(attention_cut *c, int64_t windows)
{
	c->groups = c->heads / c->group;
	for (int64_t spans = 1; spans <= c->parts; spans++) {
		int64_t span = kernel_parts(c->parts, spans);
		if (span * c->part * c->block < windows * c->window)
			return false;
		c->span = span;
		c->spans = kernel_parts(c->parts, span);
		if (attention_balanced(c->batch * c->groups * c->spans, c->threads))
			return true;
	}
	return false;
}

static inline attention_cut attention_cut_of(const backend *b, const op_call *call)
{
	enum { WORTHWHILE = 4 }; /* windows in a span: one more is read before it */
	const additive_attention_params *p = call->params;
	shape x = call->in[0].shape;
	attention_cut c = {.batch = x.dim[0], .length = x.dim[1], .d = x.dim[2], .heads = p->heads};
	c.threads = kernel_fixed_threads(b, shape_count(x) * ATTENTION_COST);
	c.dh = c.d / c.heads;
	c.window = p->window <= 0 || p->window > c.length ? c.length : p->window;
	if (c.window == 0)
		return c; /* no tokens */
	if (c.window > ATTENTION_TILE) {
		c.block = c.window;
		c.tile = kernel_parts(c.block, kernel_parts(c.block, ATTENTION_TILE));
	} else {
		c.block = c.tile = ATTENTION_TILE / c.window * c.window;
	}
	c.tiles = kernel_parts(c.block, c.tile);
	c.blocks = kernel_parts(c.length, c.block);
	c.part = kernel_parts(ATTENTION_PART_TOKENS, c.block);
	c.parts = kernel_parts(c.blocks, c.part);
	c.span = c.parts;
	c.spans = 1;
	c.group = attention_group(&c, false);
	if (!attention_cut_spans(&c, WORTHWHILE)) {
		c.group = attention_group(&c, true);
		c.span = c.parts;
		c.spans = 1;
		attention_cut_spans(&c, 1);
	}
	return c;
}

/* One unit. */
typedef struct attention_unit {
	int64_t sequence, head, channel; /* first head and first channel of the group */
	int64_t span, block, end;        /* its blocks: block … end - 1 */
} attention_unit;

static inline int64_t attention_units(const attention_cut *c)
{
	return c->length ? c->batch * c->spans * c->groups : 0;
}

static inline attention_unit attention_unit_at(const attention_cut *c, int64_t index)
{
	int64_t group = index % c->groups, place = index / c->groups, span = place % c->spans;
	return (attention_unit){.sequence = place / c->spans,
	                        .head = group * c->group,
	                        .channel = group * c->group * c->dh,
	                        .span = span,
	                        .block = span * c->span * c->part,
	                        .end = kernel_min(c->blocks, (span + 1) * c->span * c->part)};
}

/* e^{left - top} and e^{right - top} for top = max(left, right): one of them is 1. */
static inline void attention_exps(float left, float right, float *left_factor, float *right_factor)
{
	const float less = math_exp(-fabsf(left - right));
	*left_factor = right > left ? less : 1.0f;
	*right_factor = right > left ? 1.0f : less;
}

/* x·y over n floats. */
static inline float attention_dot(const float *x, const float *y, int64_t n)
{
	float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
	for (int64_t i = 0; i < n; i++)
		sum += x[i] * y[i];
	return sum;
}

/* Code for the usual widths of a head is made with the width known: call f(…, dh). */
#define ATTENTION_INLINE static inline __attribute__((always_inline))
#define ATTENTION_WIDTHS(dh, f, ...)                                                                                   \
	((dh) == 32 ? f(__VA_ARGS__, 32) : (dh) == 64 ? f(__VA_ARGS__, 64) : f(__VA_ARGS__, dh))

#endif
