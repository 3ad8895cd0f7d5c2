/* attention.h - what the forward and the backward of a round share: how the work is cut,
 * and the scan of the scores of one block.
 *
 * A sequence is cut into blocks of `block` tokens, the window (everything, if global). The
 * window of token p of a block is a suffix of the block before and a prefix of its own,
 * so every block can be computed by itself. Heads are independent too. A unit of work is
 * a span of blocks of one sequence, for a group of neighbouring heads: enough channels
 * to use whole cache lines, few enough that x and g of a window stay in the cache. */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_H
#define ENGINE_CPU_KERNELS_ATTENTION_H

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/kernels/math.h"
#include "engine/tensor/ops/additive_stream.h"

enum {
	ATTENTION_COST = 8,
	ATTENTION_CHANNELS = 256,    /* of a group, unless one head is wider */
	ATTENTION_SPAN_TOKENS = 256, /* of a unit, unless one block is longer */
	ATTENTION_UNITS = 16         /* fewer than this: smaller groups */
};

typedef struct attention_cut {
	int64_t batch, length, d, heads, dh;
	int64_t block, blocks; /* tokens in a block, blocks in a sequence */
	int64_t span, spans;   /* blocks in a unit, units along a sequence */
	int64_t group, groups; /* heads in a unit, units along the heads */
} attention_cut;

/* Does not depend on the number of threads. */
static inline attention_cut attention_cut_of(const op_call *call)
{
	const attention_params *p = call->params;
	shape x = call->in[0].shape;
	attention_cut c = {.batch = x.dim[0], .length = x.dim[1], .d = x.dim[2], .heads = p->heads};
	c.dh = c.d / c.heads;
	c.block = p->window <= 0 || p->window > c.length ? c.length : p->window;
	c.blocks = c.length ? kernel_parts(c.length, c.block) : 0;
	c.span = c.block >= ATTENTION_SPAN_TOKENS || c.block == 0 ? 1 : ATTENTION_SPAN_TOKENS / c.block;
	c.spans = kernel_parts(c.blocks, c.span);
	/* The most heads that divide evenly, fit, and leave enough units. */
	for (c.group = c.heads; c.group > 1; c.group--) {
		if (c.heads % c.group == 0 && c.group * c.dh <= ATTENTION_CHANNELS &&
		    c.batch * c.spans * (c.heads / c.group) >= ATTENTION_UNITS)
			break;
	}
	c.groups = c.heads / c.group;
	return c;
}

/* One unit, and one block of it. */
typedef struct attention_unit {
	int64_t sequence, span, head, channel; /* first head and first channel of the group */
} attention_unit;

static inline attention_unit attention_unit_at(const attention_cut *c, int64_t index)
{
	int64_t group = index % c->groups, place = index / c->groups;
	return (attention_unit){.sequence = place / c->spans,
	                        .span = place % c->spans,
	                        .head = group * c->group,
	                        .channel = group * c->group * c->dh};
}

/* The online-softmax scan over the tokens of a block, in either direction, for the heads
 * of a group side by side: element i·group + h. With s the scores and v the values,
 *
 *   top_i = max(top_{i-1}, s_i)    keep_i = e^{top_{i-1} - top_i}    weight_i = e^{s_i - top_i}
 *   sum_i = keep_i sum_{i-1} + weight_i v_i
 *
 * and whoever carries vectors along scales them by keep and adds weight times the new one.
 * A score of -inf is a token that is not there: weight 0. top starts at STREAM_EMPTY, which
 * is finite, so no difference is NaN. The rows before the first and after the last token hold
 * the empty aggregate. */
typedef struct attention_scan {
	float *score, *top, *sum, *keep, *weight;
} attention_scan;

/* Floats of a scan over `rows` elements. */
static inline int64_t attention_scan_floats(int64_t tokens, int64_t group)
{
	return 5 * (tokens + 2) * group;
}

static inline attention_scan attention_scan_in(float *memory, int64_t tokens, int64_t group)
{
	int64_t stride = (tokens + 2) * group;
	float *first = memory + group; /* past the row before the first token */
	return (attention_scan){first, first + stride, first + 2 * stride, first + 3 * stride, first + 4 * stride};
}

/* Scan `tokens` tokens from the first to the last (step 1) or back (step -1). `values`
 * is laid out as score; NULL: ones. */
static inline void attention_scan_run(attention_scan s, int64_t tokens, int64_t group, int step, const float *values)
{
	int64_t count = tokens * group, back = -step * group;
	for (int64_t h = 0; h < group; h++) {
		s.top[h - group] = s.top[count + h] = STREAM_EMPTY;
		s.sum[h - group] = s.sum[count + h] = 0.0f;
	}
	for (int64_t t = 0; t < tokens; t++) {
		int64_t row = (step > 0 ? t : tokens - 1 - t) * group;
		for (int64_t e = row; e < row + group; e++)
			s.top[e] = s.top[e + back] > s.score[e] ? s.top[e + back] : s.score[e];
	}
#pragma omp simd
	for (int64_t e = 0; e < count; e++) {
		s.keep[e] = math_exp(s.top[e + back] - s.top[e]);
		s.weight[e] = math_exp(s.score[e] - s.top[e]);
	}
	for (int64_t t = 0; t < tokens; t++) {
		int64_t row = (step > 0 ? t : tokens - 1 - t) * group;
		for (int64_t e = row; e < row + group; e++)
			s.sum[e] = s.keep[e] * s.sum[e + back] + s.weight[e] * (values ? values[e] : 1.0f);
	}
}

/* A scan over nothing: empty aggregates everywhere. */
static inline void attention_scan_clear(attention_scan s, int64_t tokens, int64_t group)
{
	for (int64_t e = -group; e < (tokens + 1) * group; e++) {
		s.top[e] = STREAM_EMPTY;
		s.sum[e] = 0.0f;
	}
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

#endif
