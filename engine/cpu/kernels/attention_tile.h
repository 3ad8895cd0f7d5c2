/* attention_tile.h - the sums of one tile of a march (attention.h), for the heads of a group side by side.
 *
 * Tokens have scores s and vectors v; an aggregate of tokens is (top, sum, vector) per head, top the largest score in
 * it, sum = Σ e^{s - top}·value, vector = Σ e^{s - top}·v. The forward has s = a, value = 1, v = x, the backward s =
 * -M, value = D, v = G. A score of -inf means that the token is absent. Nothing is ever subtracted and no exponent is
 * above 0.
 *
 *      far: the block before              near: the block of the march
 *   |-------|---t'--|-------|-------||-------|---t---|- - - - - - - -|
 *              u ttt ttttttt ttttttt  ttttttt tttt
 *                                                u = now
 *
 * The window of token u of tile t has three parts: the tokens after u in tile t', which is one window before; the tiles
 * between; and tile t up to u. The march keeps one aggregate of a tile it has left, in slot t. When a block begins, the
 * slots of the one before are folded in place: slot t becomes all that comes after tile t in its block. A tile
 * therefore begins with one merge,
 *
 *   seed = slot t (tiles after t') ⊕ running (tiles of the near block before t)
 *
 * and then S_u = seed ⊕ far tokens after u runs backwards through tile t', P_u = near tokens up to u forwards
 * through tile t, and the window is S_u ⊕ P_u. Vectors are read twice: from memory with their tile, and again when they
 * are far. For windows of up to some thousand tokens the second read comes from the cache. The memory grows with the
 * window (its scores, an aggregate per tile), never with the sequence.
 *
 * Where several windows fit a tile they are its segments; both scans restart in each, and the seed is empty. */
#ifndef ENGINE_CPU_KERNELS_ATTENTION_TILE_H
#define ENGINE_CPU_KERNELS_ATTENTION_TILE_H

#include "engine/cpu/kernels/attention.h"

#include <string.h>

typedef struct attention_aggregate {
	float *top, *sum; /* [group] */
	float *vector;    /* [group · dh] */
} attention_aggregate;

/* Rows of [group], one per token u of a tile:
 *
 *   top_u = max(top_v, s)   keep_u = e^{top_v - top_u}   weight_u = e^{s - top_u}
 *   sum_u = keep_u sum_v + weight_u value
 *
 * near: v = u - 1, with s and value of token u; far: v = u + 1, with those of token u + 1. */
typedef struct attention_scan {
	float *score, *value, *top, *sum, *keep, *weight;
} attention_scan;

/* The memory of one thread. */
typedef struct attention_march {
	attention_scan near, far;
	float *near_factor, *far_factor, *extra; /* rows of [group] */
	float *scores, *values;                  /* [window, group]: of the last window of tokens */
	float *left, *right;                     /* [group]: of a merge */
	attention_aggregate seed, running, spare;
	float *slots;
} attention_march;

/* The place of one tile. */
typedef struct attention_place {
	int64_t first, tokens; /* march positions */
	int64_t offset, slot;  /* in its block */
	int64_t far_tokens;    /* whole segments, also where the sequence ends inside a near one */
	int64_t segment;       /* tokens */
	int64_t ahead;         /* tokens of the next tile */
} attention_place;

static inline attention_place attention_place_of(const attention_cut *c, int64_t block, int64_t tile)
{
	attention_place p = {.offset = tile * c->tile, .slot = tile, .segment = kernel_min(c->window, c->tile)};
	p.first = block * c->block + p.offset;
	p.far_tokens = kernel_min(c->tile, c->block - p.offset);
	p.tokens = kernel_min(p.far_tokens, c->length - p.first);
	if (c->tiles == 1)
		p.far_tokens = kernel_parts(p.tokens, p.segment) * p.segment;
	p.ahead = kernel_min(c->tile, c->length - p.first - p.tokens);
	return p;
}

/* The tiles of the window before a block. */
static inline attention_place attention_place_before(const attention_cut *c, int64_t block, int64_t tile)
{
	attention_place p = {.first = block * c->block - c->window + tile * c->tile,
	                     .offset = tile * c->tile,
	                     .slot = tile,
	                     .segment = c->tile};
	p.tokens = kernel_min(c->tile, c->window - p.offset);
	return p;
}

/* --- memory ------------------------------------------------------------------------------ */

/* Loops with exponentials run over whole vectors, so a head gives the same bits at any index. */
enum { ATTENTION_LANES = 16 };

static inline int64_t attention_padded(int64_t count)
{
	return kernel_parts(count, ATTENTION_LANES) * ATTENTION_LANES;
}

/* True if blocks follow each other. */
static inline bool attention_windowed(const attention_cut *c)
{
	return c->window < c->length;
}

/* Aggregates of tiles that are kept for the next block. */
static inline int64_t attention_slots(const attention_cut *c)
{
	return attention_windowed(c) && c->tiles > 1 ? c->tiles : 0;
}

static inline int64_t attention_aggregate_floats(const attention_cut *c)
{
	return 2 * attention_padded(c->group) + attention_padded(c->group * c->dh);
}

static inline int64_t attention_row_floats(const attention_cut *c)
{
	return attention_padded((c->tile + 1) * c->group) + ATTENTION_LANES; /* a far scan looks one row on */
}

static inline int64_t attention_march_floats(const attention_cut *c)
{
	return 15 * attention_row_floats(c) + 2 * attention_windowed(c) * attention_padded(c->window * c->group) +
	       2 * attention_padded(c->group) + (3 + attention_slots(c)) * attention_aggregate_floats(c);
}

static inline float *attention_take(float **memory, int64_t floats)
{
	float *taken = *memory;
	*memory += floats;
	return taken;
}

static inline attention_scan attention_scan_in(float **memory, int64_t floats)
{
	attention_scan s;
	s.score = attention_take(memory, floats);
	s.value = attention_take(memory, floats);
	s.top = attention_take(memory, floats);
	s.sum = attention_take(memory, floats);
	s.keep = attention_take(memory, floats);
	s.weight = attention_take(memory, floats);
	return s;
}

static inline attention_aggregate attention_aggregate_in(const attention_cut *c, float *memory)
{
	int64_t heads = attention_padded(c->group);
	return (attention_aggregate){memory, memory + heads, memory + 2 * heads};
}

static inline attention_march attention_march_in(const attention_cut *c, float *memory)
{
	attention_march m;
	int64_t rows = attention_row_floats(c), aggregate = attention_aggregate_floats(c);
	int64_t window = attention_windowed(c) ? attention_padded(c->window * c->group) : 0;
	memset(memory, 0, (size_t)attention_march_floats(c) * sizeof *memory);
	m.near = attention_scan_in(&memory, rows);
	m.far = attention_scan_in(&memory, rows);
	m.near_factor = attention_take(&memory, rows);
	m.far_factor = attention_take(&memory, rows);
	m.extra = attention_take(&memory, rows);
	m.scores = attention_take(&memory, window);
	m.values = attention_take(&memory, window);
	m.left = attention_take(&memory, attention_padded(c->group));
	m.right = attention_take(&memory, attention_padded(c->group));
	m.seed = attention_aggregate_in(c, attention_take(&memory, aggregate));
	m.running = attention_aggregate_in(c, attention_take(&memory, aggregate));
	m.spare = attention_aggregate_in(c, attention_take(&memory, aggregate));
	m.slots = memory;
	return m;
}

static inline attention_aggregate attention_slot(const attention_cut *c, const attention_march *m, int64_t slot)
{
	return attention_aggregate_in(c, m->slots + slot * attention_aggregate_floats(c));
}

/* --- aggregates ---------------------------------------------------------------------------- */

static inline void attention_clear(const attention_cut *c, attention_aggregate a)
{
	for (int64_t h = 0; h < attention_padded(c->group); h++) {
		a.top[h] = STREAM_EMPTY;
		a.sum[h] = 0.0f;
	}
	memset(a.vector, 0, (size_t)(c->group * c->dh) * sizeof *a.vector);
}

/* left := left ⊕ right, except for the vectors, whose factors become m->left and m->right. */
static inline void attention_merge_heads(const attention_cut *c, const attention_march *m, attention_aggregate left,
                                         attention_aggregate right)
{
#pragma omp simd
	for (int64_t h = 0; h < attention_padded(c->group); h++) {
		attention_exps(left.top[h], right.top[h], &m->left[h], &m->right[h]);
		left.top[h] = left.top[h] > right.top[h] ? left.top[h] : right.top[h];
		left.sum[h] = m->left[h] * left.sum[h] + m->right[h] * right.sum[h];
	}
}

/* to := to ⊕ other. */
static inline void attention_merge(const attention_cut *c, const attention_march *m, attention_aggregate to,
                                   attention_aggregate other)
{
	attention_merge_heads(c, m, to, other);
	for (int64_t h = 0; h < c->group; h++) {
		const float left = m->left[h], right = m->right[h];
#pragma omp simd
		for (int64_t i = h * c->dh; i < (h + 1) * c->dh; i++)
			to.vector[i] = left * to.vector[i] + right * other.vector[i];
	}
}

static inline void attention_copy(const attention_cut *c, attention_aggregate to, attention_aggregate from)
{
	/* An aggregate is one piece of memory. */
	memcpy(to.top, from.top, (size_t)attention_aggregate_floats(c) * sizeof *to.top);
}

/* A block begins: each slot becomes what comes after its tile. */
static inline void attention_begin(const attention_cut *c, const attention_march *m)
{
	attention_clear(c, m->running);
	for (int64_t t = attention_slots(c) - 1; t >= 0; t--) {
		attention_aggregate slot = attention_slot(c, m, t);
		attention_copy(c, m->seed, m->running);
		attention_merge(c, m, m->running, slot);
		attention_copy(c, slot, m->seed);
	}
	attention_clear(c, m->running);
}

/* --- scans --------------------------------------------------------------------------------------- */

/* keep holds top_v; s of row u is in score. */
static inline void attention_weights(attention_scan s, const float *score, int64_t count)
{
#pragma omp simd
	for (int64_t e = 0; e < attention_padded(count); e++)
		attention_exps(s.keep[e], score[e], &s.keep[e], &s.weight[e]);
}

/* `ones`: all values are 1. */
ATTENTION_INLINE void attention_scan_near(const attention_march *m, int64_t tokens, int64_t segment, bool ones,
                                          const int64_t group)
{
	const attention_scan s = m->near;
	for (int64_t low = 0; low < tokens; low += segment) {
		int64_t high = kernel_min(tokens, low + segment);
		for (int64_t e = low * group; e < (low + 1) * group; e++) {
			s.keep[e] = STREAM_EMPTY;
			s.top[e] = s.keep[e] > s.score[e] ? s.keep[e] : s.score[e];
		}
		for (int64_t u = low + 1; u < high; u++) {
			for (int64_t e = u * group; e < (u + 1) * group; e++) {
				s.keep[e] = s.top[e - group];
				s.top[e] = s.keep[e] > s.score[e] ? s.keep[e] : s.score[e];
			}
		}
	}
	attention_weights(s, s.score, tokens * group);
	for (int64_t low = 0; low < tokens; low += segment) {
		int64_t high = kernel_min(tokens, low + segment);
		for (int64_t e = low * group; e < (low + 1) * group; e++)
			s.sum[e] = ones ? s.weight[e] : s.weight[e] * s.value[e];
		for (int64_t u = low + 1; u < high; u++)
			for (int64_t e = u * group; e < (u + 1) * group; e++)
				s.sum[e] =
				    s.keep[e] * s.sum[e - group] + (ones ? s.weight[e] : s.weight[e] * s.value[e]);
	}
}

ATTENTION_INLINE void attention_scan_far(const attention_march *m, int64_t tokens, int64_t segment, bool ones,
                                         const int64_t group)
{
	const attention_scan s = m->far;
	for (int64_t low = 0; low < tokens; low += segment) {
		int64_t last = (kernel_min(tokens, low + segment) - 1) * group;
		for (int64_t h = 0; h < group; h++)
			s.top[last + h] = s.keep[last + h] = m->seed.top[h];
		for (int64_t u = last - group; u >= low * group; u -= group) {
			for (int64_t e = u; e < u + group; e++) {
				s.keep[e] = s.top[e + group];
				s.top[e] = s.keep[e] > s.score[e + group] ? s.keep[e] : s.score[e + group];
			}
		}
	}
	attention_weights(s, s.score + group, tokens * group);
	for (int64_t low = 0; low < tokens; low += segment) {
		int64_t last = (kernel_min(tokens, low + segment) - 1) * group;
		for (int64_t h = 0; h < group; h++)
			s.sum[last + h] = m->seed.sum[h];
		for (int64_t u = last - group; u >= low * group; u -= group)
			for (int64_t e = u; e < u + group; e++)
				s.sum[e] = s.keep[e] * s.sum[e + group] +
				           (ones ? s.weight[e] : s.weight[e] * s.value[e + group]);
	}
}

/* Without far tokens S is the seed for every token. */
static inline void attention_scan_seed(const attention_march *m, int64_t tokens, int64_t group)
{
	for (int64_t e = 0; e < tokens * group; e++) {
		m->far.top[e] = m->seed.top[e % group];
		m->far.sum[e] = m->seed.sum[e % group];
	}
}

ATTENTION_INLINE void attention_scan_both(const attention_cut *c, const attention_march *m, const attention_place *p,
                                          bool ones, const int64_t group)
{
	attention_scan_near(m, p->tokens, p->segment, ones, group);
	if (attention_windowed(c))
		attention_scan_far(m, p->far_tokens, p->segment, ones, group);
	else
		attention_scan_seed(m, p->tokens, group);
}

/* Run both scans of a tile whose scores and values are computed. */
ATTENTION_INLINE void attention_scans(const attention_cut *c, const attention_march *m, const attention_place *p,
                                      bool ones)
{
	switch (c->group) { /* short rows: pass their length as a constant */
	case 4:
		attention_scan_both(c, m, p, ones, 4);
		break;
	case 8:
		attention_scan_both(c, m, p, ones, 8);
		break;
	case 16:
		attention_scan_both(c, m, p, ones, 16);
		break;
	default:
		attention_scan_both(c, m, p, ones, c->group);
	}
}

/* --- from tile to tile ------------------------------------------------------------------------------ */

/* Before the first token: nothing is far. */
static inline void attention_start(const attention_cut *c, const attention_march *m)
{
	for (int64_t e = 0; attention_windowed(c) && e < c->window * c->group; e++) {
		m->scores[e] = -INFINITY;
		m->values[e] = 0.0f;
	}
	for (int64_t t = 0; t < attention_slots(c); t++)
		attention_clear(c, attention_slot(c, m, t));
	attention_clear(c, m->seed);
	attention_clear(c, m->running);
}

/* Return the far row of the floats that the march keeps per token, and replace it by the near one. */
static inline void attention_exchange(const attention_cut *c, const attention_place *p, float *far, const float *near,
                                      float *kept)
{
	const size_t row = (size_t)c->group * sizeof *far;
	int64_t first = c->tiles == 1 ? 0 : p->offset, old = kernel_min(p->far_tokens, c->window - first);
	int64_t keep = kernel_min(p->tokens, c->window);
	memcpy(far, kept + first * c->group, (size_t)old * row);
	memcpy(far + old * c->group, near, (size_t)(p->far_tokens - old) * row); /* for earlier segments */
	memcpy(kept + first * c->group, near + (p->tokens - keep) * c->group, (size_t)keep * row);
}

/* A tile begins: the seed. */
static inline void attention_seed(const attention_cut *c, const attention_march *m, const attention_place *p)
{
	if (c->tiles == 1)
		return; /* empty for ever */
	attention_copy(c, m->seed, m->running);
	if (attention_slots(c))
		attention_merge(c, m, m->seed, attention_slot(c, m, p->slot));
}

/* The aggregate in which P accumulates. */
static inline attention_aggregate attention_carry(const attention_cut *c, const attention_march *m,
                                                  const attention_place *p)
{
	return attention_slots(c) ? attention_slot(c, m, p->slot) : m->spare;
}

/* A tile ends: the final P is its aggregate. */
static inline void attention_leave(const attention_cut *c, const attention_march *m, const attention_place *p)
{
	if (c->tiles == 1)
		return;
	attention_aggregate carry = attention_carry(c, m, p);
	const size_t row = (size_t)c->group * sizeof(float);
	memcpy(carry.top, m->near.top + (p->tokens - 1) * c->group, row);
	memcpy(carry.sum, m->near.sum + (p->tokens - 1) * c->group, row);
	attention_merge(c, m, m->running, carry);
}

/* --- vectors ------------------------------------------------------------------------------------------- */

/* S for the tokens of one segment, from its token `low` of the tile on: backwards over `far` rows of v, into `near`
 * rows of `out`. If the sequence ends inside the segment, the last row carries the sums that no token needs. */
ATTENTION_INLINE void attention_far(const attention_cut *c, const attention_march *m, int64_t low, int64_t near,
                                    int64_t far, const float *v, float *out, int64_t stride, const int64_t dh)
{
	const float *from = m->seed.vector;
	if (near == far)
		from = memcpy(out + (near - 1) * stride, from, (size_t)(c->group * dh) * sizeof *out);
	for (int64_t u = far - 2; u >= 0; u--) {
		float *to = out + kernel_min(u, near - 1) * stride;
		const float *next = v + (u + 1) * stride, *keeps = m->far.keep + (low + u) * c->group;
		const float *weights = m->far.weight + (low + u) * c->group;
		for (int64_t h = 0; h < c->group; h++) {
			const float keep = keeps[h], weight = weights[h];
#pragma omp simd
			for (int64_t i = h * dh; i < (h + 1) * dh; i++)
				to[i] = keep * from[i] + weight * next[i];
		}
		from = to;
	}
}

/* P over a whole tile that is not the near tile of any other. */
ATTENTION_INLINE void attention_absorb(const attention_cut *c, const attention_march *m, const attention_place *p,
                                       const float *v, int64_t stride, const int64_t dh)
{
	float *carry = attention_carry(c, m, p).vector;
	memset(carry, 0, (size_t)(c->group * dh) * sizeof *carry);
	for (int64_t u = 0; u < p->tokens; u++) {
		for (int64_t h = 0; h < c->group; h++) {
			const float keep = m->near.keep[u * c->group + h], weight = m->near.weight[u * c->group + h];
#pragma omp simd
			for (int64_t i = h * dh; i < (h + 1) * dh; i++)
				carry[i] = keep * carry[i] + weight * v[u * stride + i];
		}
	}
}

/* Prefetch a row of the next tile. A tile's work alternates between memory and cache, so without prefetching memory is
 * idle half of the time (forward, d 1024, global, one thread: 13.8 -> 8.4 ms; rows to be written: no gain). */
static inline void attention_prefetch(const float *row, int64_t floats)
{
	enum { LINE = 16 };
	for (int64_t i = 0; i < floats; i += LINE)
		__builtin_prefetch(row + i, 0, 2);
}

#endif
