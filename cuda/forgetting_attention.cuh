/* forgetting_attention.cuh - additive attention that forgets, token by token: forgetting_attention and
 * forgetting_stream. engine/tensor/ops/forgetting.h has the form of the running sum.
 *
 * A block works on a slab: neighbouring heads of one sequence, at most WARP. Several tokens pass three stages, a chunk
 * in each at a time: the helpers compute a token's terms and, after the sums, its weight and logarithm; warp 0 adds the
 * terms, one lane per head; the other threads add the values, V channels each. Only the sums are sequential: about 30
 * clocks a token. One token has no helpers. A head that is wider than a block is read in pieces one after another.
 * Heads of one channel have a thread each, for all stages (V = 0). Only these may have a bonus; the outputs are then
 * those of the state before each token, and what the token reads.
 *
 * The operations of a token and their order are the same in all kernels. So a stream has the same bits however it is
 * cut into calls. */
#ifndef CUDA_FORGETTING_ATTENTION_CUH
#define CUDA_FORGETTING_ATTENTION_CUH

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/ptx.cuh"
#include "engine/tensor/ops/forgetting.h"

enum {
	FORGETTING_CHUNK = 32,   /* tokens in a stage */
	FORGETTING_AHEAD = 8,    /* tokens requested before they are needed, in long sequences; divides a chunk */
	FORGETTING_LANES = 64,   /* threads for the channels of a slab of several heads */
	FORGETTING_THREADS = 256, /* most threads for the channels of one head */
	FORGETTING_HELPERS = 128,
	FORGETTING_SLAB = 8 /* most heads of a slab with helpers, which have two of its tokens each */
};

/* --- work of a block ----------------------------------------------------------------------------------------- */

typedef struct forgetting_cut {
	int64_t d, f_stride; /* f_stride 0: one rate per head */
	int heads, dh;
	int group, groups; /* heads in a slab; slabs */
	int pieces;        /* rounds of the block for a head that is wider; 1: it is not */
	int helpers;       /* threads; 0: a call of one token, heads of one channel, or the gradient */
	int threads;       /* per block */
} forgetting_cut;

/* A thread's part: the sum of head `head`, channels channel … channel + V - 1 of head first + slot. */
struct forgetting_part {
	bool scores, values;
	int head, slot;
	int64_t channel;
};

static inline forgetting_cut forgetting_cut_of(const op_call *call, int f)
{
	forgetting_cut c = {};
	c.d = call->in[0].shape.dim[2];
	c.heads = (int)shape_last(call->in[1].shape);
	c.dh = (int)(c.d / c.heads);
	c.f_stride = cuda_optional(call, f) && shape_count(call->in[f].shape) != c.heads ? c.heads : 0;
	return c;
}

/* Divide the heads into slabs for threads with `channels` each; 0: a thread per head. */
static inline void forgetting_divide(forgetting_cut *c, int channels)
{
	enum { OWN = 128 };
	c->pieces = 1;
	if (channels == 0) {
		c->helpers = 0;
		c->threads = c->group = OWN;
	} else {
		const int lanes = (c->dh + channels - 1) / channels, fit = (int)FORGETTING_LANES / lanes;
		const int most = c->helpers ? (int)FORGETTING_SLAB : (int)WARP;
		c->group = fit < 1 ? 1 : fit > most ? most : fit;
		if (c->group > c->heads)
			c->group = c->heads;
		const int all = c->group * lanes, held = all < (int)FORGETTING_THREADS ? all : (int)FORGETTING_THREADS;
		c->threads = WARP + c->helpers + (held + WARP - 1) / WARP * WARP;
		c->pieces = (all + FORGETTING_THREADS - 1) / FORGETTING_THREADS;
	}
	c->groups = (c->heads + c->group - 1) / c->group;
}

/* Call f with V: 4 channels per thread, one, or heads of one channel. */
template <int channels> struct forgetting_width {
	enum { V = channels, HELD = channels ? channels : 1 };
};
template <class F> status forgetting_by_width(forgetting_cut *c, F f)
{
	const int channels = c->dh == 1 ? 0 : c->dh % 4 ? 1 : 4;
	forgetting_divide(c, channels);
	if (channels == 0)
		return f(forgetting_width<0>());
	return channels == 1 ? f(forgetting_width<1>()) : f(forgetting_width<4>());
}

/* before: threads before those of the channels. */
template <int V>
static __device__ __forceinline__ forgetting_part forgetting_part_of(const forgetting_cut &c, int group, int piece,
                                                                     int before = WARP)
{
	const int first = group * c.group, heads = min(c.group, c.heads - first), thread = threadIdx.x;
	forgetting_part p;
	if constexpr (V == 0) {
		p.scores = p.values = thread < heads;
		p.slot = 0;
		p.head = first + thread;
		p.channel = p.head;
	} else {
		const int64_t own = ((int64_t)piece * FORGETTING_THREADS + thread - before) * V;
		p.scores = thread < heads;
		p.values = thread >= before && own < (int64_t)heads * c.dh;
		p.head = first + thread;
		p.slot = p.values ? (int)(own / c.dh) : 0;
		p.channel = (int64_t)first * c.dh + own;
	}
	return p;
}

/* Return the tokens of a tile, so that tiles of `slabs` sequences of n tokens fill the device; n if no tiles are
 * needed. */
static inline int forgetting_tile(const backend *b, int64_t slabs, int64_t n)
{
	enum { LEAST = 32, MOST = 256, BLOCKS = 8 /* per processor */ };
	const int64_t enough = (int64_t)cuda_of(b)->processors * BLOCKS;
	int tile = LEAST;
	while (tile < MOST && n / tile * slabs > enough)
		tile *= 2;
	return (int)(slabs >= enough || n <= tile ? n : tile);
}

/* --- a token --------------------------------------------------------------------------------------------------- */

/* rate: the sum of f of the tokens whose terms this thread has computed, since it was 0. */
struct forgetting_sum {
	int m;
	float s, rest, rate;
};

struct __align__(16) forgetting_terms
{
	int n;
	float less;
	int k;
	float more;
};

static __device__ __forceinline__ forgetting_sum forgetting_nothing()
{
	return {FORGETTING_FLOOR, 1.0f, 0.0f, 0.0f};
}

/* Return 2^e for e from -127 (here 0) to 127. */
static __device__ __forceinline__ float forgetting_two_to(int e)
{
	return __int_as_float((e << 23) + 0x3f800000);
}

/* e^x = 2^n (1 + less). Return n. The reduction is done twice, since the first product has no fraction left from 2^23
 * on. NaN gives less = NaN. */
static __device__ __forceinline__ int forgetting_power(float x, float &less)
{
	const float log2e = 0x1.715476p0f, high = 0x1.62e43p-1f, low = -0x1.05c61p-29f;
	const float n = rintf(__fmul_rn(x == x ? x : 0.0f, log2e)), near = __fmaf_rn(-n, low, __fmaf_rn(-n, high, x));
	const float more = rintf(__fmul_rn(x == x ? near : 0.0f, log2e));
	const float r = __fmaf_rn(-more, low, __fmaf_rn(-more, high, near));
	float p = 0.00138145976f;
	p = __fmaf_rn(p, r, 0.00836871658f);
	p = __fmaf_rn(p, r, 0.041668389f);
	p = __fmaf_rn(p, r, 0.166665211f);
	p = __fmaf_rn(p, r, 0.49999994f);
	less = __fmaf_rn(__fmul_rn(r, r), p, r);
	return (int)n + (int)more;
}

/* counts false: a token that changes nothing. */
static __device__ __forceinline__ forgetting_terms forgetting_terms_of(float a, float f, bool counts)
{
	forgetting_terms t;
	float more;
	t.n = forgetting_power(counts ? forgetting_bounded_rate(f) : 0.0f, t.less);
	const int k = forgetting_power(forgetting_bounded(a), more);
	const bool adds = counts && a != -INFINITY;
	t.k = adds ? k : (int)FORGETTING_HIDDEN;
	t.more = adds ? __fadd_rn(1.0f, more) : 0.0f;
	return t;
}

/* Add a token. */
static __device__ __forceinline__ void forgetting_add(forgetting_sum &S, const forgetting_terms &t)
{
	const int over = S.m + t.n - t.k, above = max(over, 0);
	const float old = forgetting_two_to(max(min(over, 0), -(int)FORGETTING_FAR));
	const float fresh = __fmul_rn(t.more, forgetting_two_to(-min(above, (int)FORGETTING_FAR)));
	const int exponent = (__float_as_int(S.s) >> 23) - 127;
	const bool still = t.more == 0.0f && t.n == 0 && t.less == 0.0f;
	const int e = still ? 0 : max(exponent + min(over, 0), -above);
	const float down = forgetting_two_to(-e), kept = __fmul_rn(S.s, old);
	const float grown = __fmaf_rn(__fmul_rn(S.rest, old), __fadd_rn(1.0f, t.less), fresh);
	const float added = __fmaf_rn(kept, t.less, grown), sum = __fadd_rn(kept, added);
	const float left = __fadd_rn(__fadd_rn(fmaxf(kept, added), -sum), fminf(kept, added));
	S.m = max(t.k + above + e, (int)FORGETTING_FLOOR);
	S.s = __fmul_rn(sum, down);
	S.rest = __fmul_rn(left, down);
}

/* Return the weight of a token in the sum total · 2^m: a quotient with one correction, so that a token alone has 1. */
static __device__ __forceinline__ float forgetting_weight(const forgetting_terms &t, float total, int m)
{
	const float own = __fmul_rn(t.more, forgetting_two_to(max(t.k - m, -127))), over = __frcp_rn(total);
	const float w = __fmul_rn(own, over);
	return __fmaf_rn(__fmaf_rn(-w, total, own), over, w);
}

/* Return l = log(total · 2^m). */
static __device__ __forceinline__ float forgetting_log(float total, int m)
{
	const float high = 0x1.62e43p-1f, low = -0x1.05c61p-29f, turns = (float)m;
	const float l = __fmaf_rn(turns, high, __fmaf_rn(turns, low, logf(total)));
	return m > (int)FORGETTING_FLOOR ? l : -INFINITY;
}

/* Return the sum whose logarithm is l. */
static __device__ __forceinline__ forgetting_sum forgetting_sum_at(float l)
{
	const forgetting_terms t = forgetting_terms_of(l, 0.0f, true);
	return l == -INFINITY ? forgetting_nothing() : forgetting_sum{t.k, t.more, 0.0f, 0.0f};
}

/* g += w (v - g). A token of weight 0 may have any value. */
static __device__ __forceinline__ float forgetting_add_value(float g, float w, float v)
{
	return w != 0.0f ? __fmaf_rn(w, __fadd_rn(v, -g), g) : g;
}

/* Return e^score / (S + e^score), the share of a token in what it reads itself. */
static __device__ __forceinline__ float forgetting_share(const forgetting_sum &S, float score)
{
	const forgetting_terms t = forgetting_terms_of(score, 0.0f, true);
	const int over = S.m - t.k, above = max(over, 0);
	const float own = __fmul_rn(t.more, forgetting_two_to(-min(above, (int)FORGETTING_FAR)));
	const float rest = __fmul_rn(__fadd_rn(S.s, S.rest),
	                             forgetting_two_to(max(over - above, -(int)FORGETTING_FAR)));
	return __fmul_rn(own, __frcp_rn(__fadd_rn(own, rest)));
}

/* Tokens in order, with pointers to the first one. */
template <class T> struct forgetting_tokens {
	const T *v;
	const float *a, *f;  /* f NULL: 0 */
	const int32_t *mask; /* NULL: no token is skipped */
	const float *bonus;  /* NULL: none */
	T *g;                /* NULL: not requested */
	float *l;            /* NULL: not requested */
	T *before;           /* NULL: not requested; with bonus: g of the state before the token */
	int64_t count;
};

/* Neighbouring channels as in memory. */
template <class T, int V> struct __align__(sizeof(T) * V) forgetting_channels
{
	T at[V];
};

/* Scores of the next tokens. */
template <int AHEAD> struct forgetting_scores {
	float a[AHEAD], f[AHEAD];
	unsigned counts; /* bits of tokens that are not skipped */
};

template <int AHEAD, class T>
static __device__ __forceinline__ void forgetting_fetch_scores(forgetting_scores<AHEAD> &to,
                                                               const forgetting_tokens<T> &k, const forgetting_cut &c,
                                                               int head, int64_t t)
{
	to.counts = 0;
#pragma unroll
	for (int i = 0; i < AHEAD; i++) {
		const bool counts = t + i < k.count && (!k.mask || k.mask[t + i]);
		to.counts |= (unsigned)counts << i;
		to.a[i] = counts ? k.a[(t + i) * c.heads + head] : 0.0f;
		to.f[i] = counts && k.f ? k.f[(t + i) * c.f_stride + head] : 0.0f;
	}
}

template <class T, int V, int AHEAD> struct forgetting_values {
	forgetting_channels<T, V> at[AHEAD];
};

template <class T, int V, int AHEAD>
static __device__ __forceinline__ void forgetting_fetch_values(forgetting_values<T, V, AHEAD> &to,
                                                               const forgetting_tokens<T> &k, int64_t d,
                                                               int64_t channel, int64_t t)
{
#pragma unroll
	for (int i = 0; i < AHEAD; i++)
		if (t + i < k.count)
			to.at[i] = *(const forgetting_channels<T, V> *)(k.v + (t + i) * d + channel);
}

template <class T, int V> static __device__ __forceinline__ void forgetting_store(T *to, const float (&g)[V])
{
	forgetting_channels<T, V> x;
#pragma unroll
	for (int e = 0; e < V; e++)
		store_real(&x.at[e], g[e]);
	*(forgetting_channels<T, V> *)to = x;
}

/* --- stages ---------------------------------------------------------------------------------------------------- */

struct forgetting_total {
	float total;
	int m;
};

/* Chunks between two stages, by the parity of their numbers. */
struct forgetting_board {
	forgetting_terms terms[2][FORGETTING_CHUNK][FORGETTING_SLAB];
	forgetting_total sums[2][FORGETTING_CHUNK][FORGETTING_SLAB];
	float weights[2][FORGETTING_CHUNK][FORGETTING_SLAB];
};

static inline size_t forgetting_shared_bytes(const forgetting_cut &c, int channels)
{
	return channels == 0 ? 0 : c.helpers ? sizeof(forgetting_board) : WARP * sizeof(float);
}

/* Helper `i`: weights and logarithms of chunk `chunk` - 2, then terms of chunk `chunk`. Both have one parity, and a
 * helper reads what it overwrites. */
template <class T>
static __device__ __forceinline__ void forgetting_help(const forgetting_tokens<T> &k, const forgetting_cut &c,
                                                       forgetting_board &board, int first, int heads, int i,
                                                       int64_t chunk, float &rate)
{
	enum { CHUNK = FORGETTING_CHUNK, SLAB = FORGETTING_SLAB, STRIDE = FORGETTING_HELPERS / SLAB, EACH = CHUNK / STRIDE };
	const int slot = i % SLAB, row = i / SLAB, head = first + slot;
	if (slot >= heads)
		return;
	float a[EACH], f[EACH];
	bool counts[EACH];
#pragma unroll
	for (int e = 0; e < EACH; e++) {
		const int64_t t = chunk * CHUNK + row + e * STRIDE;
		counts[e] = t < k.count && (!k.mask || k.mask[t]);
		a[e] = counts[e] ? k.a[t * c.heads + head] : 0.0f;
		f[e] = counts[e] && k.f ? k.f[t * c.f_stride + head] : 0.0f;
	}
#pragma unroll
	for (int e = 0; e < EACH; e++) {
		const int at = row + e * STRIDE;
		const int64_t t = (chunk - 2) * CHUNK + at;
		forgetting_terms &terms = board.terms[chunk % 2][at][slot];
		if (t >= 0 && t < k.count) {
			const forgetting_total sum = board.sums[chunk % 2][at][slot];
			board.weights[chunk % 2][at][slot] = forgetting_weight(terms, sum.total, sum.m);
			if (k.l)
				k.l[t * c.heads + head] = forgetting_log(sum.total, sum.m);
		}
		terms = forgetting_terms_of(a[e], f[e], counts[e]);
		rate = __fadd_rn(rate, f[e]);
	}
}

/* Return the helpers' sum of f, in the thread of a head. All threads of the block. */
static __device__ __forceinline__ float forgetting_rate(const forgetting_cut &c, float rate)
{
	enum { SLAB = FORGETTING_SLAB };
	float *parts = shared_memory<float>(), sum = 0.0f;
	const int helper = (int)threadIdx.x - WARP;
	if (helper >= 0 && helper < c.helpers)
		parts[helper] = rate;
	__syncthreads();
	for (int i = (int)threadIdx.x % SLAB; i < c.helpers; i += SLAB)
		sum = __fadd_rn(sum, parts[i]);
	__syncthreads();
	return sum;
}

/* Add the terms of `count` tokens, in the thread of a head. */
static __device__ __forceinline__ void forgetting_chain(const forgetting_terms (*terms)[FORGETTING_SLAB],
                                                        forgetting_total (*sums)[FORGETTING_SLAB], int slot, int count,
                                                        forgetting_sum &s)
{
	enum { AT_ONCE = 8 }; /* without a branch, so that integers of a token run beside the sums of the one before */
	int t = 0;
	auto add = [&](const forgetting_terms &term, int at) {
		forgetting_add(s, term);
		sums[at][slot] = {__fadd_rn(s.s, s.rest), s.m};
	};
#pragma unroll 1
	for (; t + AT_ONCE <= count; t += AT_ONCE) {
		forgetting_terms now[AT_ONCE];
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			now[i] = terms[t + i][slot];
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			add(now[i], t + i);
	}
#pragma unroll 1
	for (; t < count; t++)
		add(terms[t][slot], t);
}

/* Add the values of tokens first … first + CHUNK - 1. */
template <class T, int HELD, int AHEAD>
static __device__ __forceinline__ void
forgetting_add_values(const forgetting_tokens<T> &k, int64_t d, int64_t channel, int64_t first,
                      const float (*weights)[FORGETTING_SLAB], int slot, forgetting_values<T, HELD, AHEAD> &values,
                      float (&g)[HELD])
{
	const int count = (int)min((int64_t)FORGETTING_CHUNK, k.count - first);
	const T *from = k.v + (first + AHEAD) * d + channel;
	T *to = k.g ? k.g + first * d + channel : nullptr;
	int t = 0;
	auto add = [&](const forgetting_channels<T, HELD> &v, int at) {
		const float w = weights[at][slot];
#pragma unroll
		for (int e = 0; e < HELD; e++)
			g[e] = forgetting_add_value(g[e], w, load_real(&v.at[e]));
		if (to) {
			forgetting_store<T, HELD>(to, g);
			to += d;
		}
	};
	/* Whole groups without a branch, while the next one is whole too. */
#pragma unroll 1
	for (; t + AHEAD <= count && first + t + 2 * AHEAD <= k.count; t += AHEAD) {
		const forgetting_values<T, HELD, AHEAD> v = values;
#pragma unroll
		for (int i = 0; i < AHEAD; i++, from += d)
			values.at[i] = *(const forgetting_channels<T, HELD> *)from;
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			add(v.at[i], t + i);
	}
#pragma unroll 1
	for (; t < count; t += AHEAD) {
		const forgetting_values<T, HELD, AHEAD> v = values;
		forgetting_fetch_values(values, k, d, channel, first + t + AHEAD);
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			if (t + i < count)
				add(v.at[i], t + i);
	}
}

/* Read the tokens into s and g, in every thread of the block. AHEAD divides a chunk; 1: at most one token. BONUS:
 * k.bonus is given. */
template <int V, int AHEAD, bool BONUS = false, class T, int HELD>
static __device__ __forceinline__ void forgetting_read(const forgetting_tokens<T> &k, const forgetting_cut &c,
                                                       const forgetting_part &p, forgetting_sum &s, float (&g)[HELD])
{
	enum { CHUNK = FORGETTING_CHUNK };
	forgetting_values<T, HELD, AHEAD> values = {};
	if (p.values)
		forgetting_fetch_values(values, k, c.d, p.channel, 0);
	if constexpr (V == 0 || AHEAD == 1) {
		forgetting_scores<AHEAD> scores = {};
		const float bonus = BONUS && p.scores ? k.bonus[p.head] : 0.0f;
		float *weights = V ? shared_memory<float>() : nullptr;
		if (p.scores)
			forgetting_fetch_scores(scores, k, c, p.head, 0);
		for (int64_t t = 0; (p.scores || V) && t < k.count; t += AHEAD) {
			forgetting_terms terms[AHEAD];
			float score[AHEAD];
			const unsigned counts = scores.counts;
			const forgetting_values<T, HELD, AHEAD> v = values;
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				terms[i] = forgetting_terms_of(scores.a[i], scores.f[i], counts >> i & 1);
				s.rate = __fadd_rn(s.rate, scores.f[i]);
				score[i] = __fadd_rn(scores.a[i], bonus);
			}
			if (AHEAD > 1 && p.scores)
				forgetting_fetch_scores(scores, k, c, p.head, t + AHEAD);
			if (AHEAD > 1 && p.values)
				forgetting_fetch_values(values, k, c.d, p.channel, t + AHEAD);
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				float w = 0.0f, read = g[0];
				const float before = g[0], value = load_real(&v.at[i].at[0]);
				if (t + i >= k.count)
					break;
				if (BONUS && k.l)
					k.l[(t + i) * c.heads + p.head] = forgetting_log(__fadd_rn(s.s, s.rest), s.m);
				if (BONUS && counts >> i & 1)
					read = forgetting_add_value(before, forgetting_share(s, score[i]), value);
				if (p.scores) {
					forgetting_add(s, terms[i]);
					const float total = __fadd_rn(s.s, s.rest);
					w = forgetting_weight(terms[i], total, s.m);
					if (!BONUS && k.l)
						k.l[(t + i) * c.heads + p.head] = forgetting_log(total, s.m);
				}
				if constexpr (V != 0) {
					if (p.scores)
						weights[threadIdx.x] = w;
					__syncthreads();
					w = weights[p.slot];
				}
				if (p.values) {
#pragma unroll
					for (int e = 0; e < HELD; e++)
						g[e] = forgetting_add_value(g[e], w, load_real(&v.at[i].at[e]));
					if (k.g && BONUS)
						store_real(k.g + (t + i) * c.d + p.channel, read);
					else if (k.g)
						forgetting_store<T, HELD>(k.g + (t + i) * c.d + p.channel, g);
					if (BONUS && k.before)
						store_real(k.before + (t + i) * c.d + p.channel, before);
				}
				if constexpr (V != 0)
					__syncthreads();
			}
			if (AHEAD == 1)
				break;
		}
	} else {
		forgetting_board &board = *shared_memory<forgetting_board>();
		const int64_t chunks = (k.count + CHUNK - 1) / CHUNK;
		const int first = p.head - (int)threadIdx.x, heads = min(c.group, c.heads - first);
		const int helper = (int)threadIdx.x - WARP;
		for (int64_t step = 0; step < chunks + 3; step++) {
			const int64_t sums = step - 1, read = step - 3;
			if (p.scores && sums >= 0 && sums < chunks)
				forgetting_chain(board.terms[sums % 2], board.sums[sums % 2], threadIdx.x,
				                 (int)min((int64_t)CHUNK, k.count - sums * CHUNK), s);
			if (helper >= 0 && helper < c.helpers)
				forgetting_help(k, c, board, first, heads, helper, step, s.rate);
			if (p.values && read >= 0)
				forgetting_add_values<T, HELD, AHEAD>(k, c.d, p.channel, read * CHUNK,
				                                      board.weights[read % 2], p.slot, values, g);
			__syncthreads();
		}
	}
}

#endif
