/* forgetting_attention.cuh - additive attention that forgets, token by token: forgetting_attention and
 * forgetting_stream.
 *
 * A block works on a slab: neighbouring heads of one sequence, at most WARP. Warp 0 computes the weights of a chunk of
 * tokens, one lane per head. Meanwhile the other threads add the values of the chunk before, V channels each. So a
 * token costs the longer of the two, which is an exponential and a logarithm. A head that is wider than a block is read
 * in pieces one after another. Heads of one channel have a thread each, for weight and value (V = 0). Only these may
 * have a bonus; the outputs are then those of the state before each token, and what the token reads.
 *
 * The operations of a token and their order are the same in all kernels. So a stream has the same bits however it is
 * cut into calls. */
#ifndef CUDA_FORGETTING_ATTENTION_CUH
#define CUDA_FORGETTING_ATTENTION_CUH

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/ptx.cuh"

enum {
	FORGETTING_CHUNK = 32,   /* tokens whose weights are in shared memory at a time */
	FORGETTING_AHEAD = 8,    /* tokens requested before they are needed, in long sequences; divides a chunk */
	FORGETTING_LANES = 64,   /* threads for the channels of a slab of several heads */
	FORGETTING_THREADS = 256 /* most threads for the channels of one head */
};

/* --- work of a block ----------------------------------------------------------------------------------------- */

typedef struct forgetting_cut {
	int64_t d, f_stride; /* f_stride 0: one rate per head */
	int heads, dh;
	int group, groups; /* heads in a slab; slabs */
	int pieces;        /* rounds of the block for a head that is wider; 1: it is not */
	int threads;       /* per block */
} forgetting_cut;

/* A thread's part: the log-sum of head `head`, channels channel … channel + V - 1 of head first + slot. */
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
		c->threads = c->group = OWN;
	} else {
		const int lanes = (c->dh + channels - 1) / channels, fit = (int)FORGETTING_LANES / lanes;
		c->group = fit < 1 ? 1 : fit > (int)WARP ? (int)WARP : fit;
		if (c->group > c->heads)
			c->group = c->heads;
		const int all = c->group * lanes, held = all < (int)FORGETTING_THREADS ? all : (int)FORGETTING_THREADS;
		c->threads = WARP + (held + WARP - 1) / WARP * WARP;
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

template <int V>
static __device__ __forceinline__ forgetting_part forgetting_part_of(const forgetting_cut &c, int group, int piece)
{
	const int first = group * c.group, heads = min(c.group, c.heads - first), thread = threadIdx.x;
	forgetting_part p;
	if constexpr (V == 0) {
		p.scores = p.values = thread < heads;
		p.slot = 0;
		p.head = first + thread;
		p.channel = p.head;
	} else {
		const int64_t own = ((int64_t)piece * FORGETTING_THREADS + thread - WARP) * V;
		p.scores = thread < heads;
		p.values = thread >= WARP && own < (int64_t)heads * c.dh;
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

/* Bytes of shared memory: weights of two chunks. */
static inline size_t forgetting_shared_bytes(int channels)
{
	return channels ? 2 * (size_t)FORGETTING_CHUNK * WARP * sizeof(float) : 0;
}

/* --- a token --------------------------------------------------------------------------------------------------- */

/* l is the sum of l and rest; rate is the sum of f since it was 0. */
struct forgetting_sum {
	float l, rest, rate;
};

/* Return what the rounding of sum = a + b has left (Knuth's two-sum). */
static __device__ __forceinline__ float forgetting_rest(float a, float b, float sum)
{
	const float added = __fadd_rn(sum, -a);
	return __fadd_rn(__fadd_rn(a, -__fadd_rn(sum, -added)), __fadd_rn(b, -added));
}

/* l := log(e^{l + f} + e^a). Return the token's weight. */
static __device__ __forceinline__ float forgetting_add_score(forgetting_sum &s, float a, float f)
{
	const float p = __fadd_rn(s.l, f);
	const bool empty = p == -INFINITY;
	const float p_rest = empty ? 0.0f : __fadd_rn(s.rest, forgetting_rest(s.l, f, p));
	const float over = empty ? -INFINITY : __fadd_rn(__fadd_rn(p, -a), p_rest);
	const bool above = over > 0.0f;
	const float e = expf(-fabsf(over)), share = __frcp_rn(__fadd_rn(1.0f, e));
	const float top = above ? p : a, more = __fadd_rn(log1pf(e), above ? p_rest : 0.0f);
	s.l = __fadd_rn(top, more);
	s.rest = s.l == -INFINITY ? 0.0f : forgetting_rest(top, more, s.l);
	s.rate = __fadd_rn(s.rate, f);
	return above ? __fmul_rn(e, share) : share;
}

/* g += w (v - g). A token of weight 0 may have any value. */
static __device__ __forceinline__ float forgetting_add_value(float g, float w, float v)
{
	return w != 0.0f ? __fmaf_rn(w, __fadd_rn(v, -g), g) : g;
}

/* Return σ(score - l), the share of a token in what it reads itself. */
static __device__ __forceinline__ float forgetting_share(const forgetting_sum &s, float score)
{
	const float over = __fadd_rn(__fadd_rn(s.l, -score), s.rest), e = expf(-fabsf(over));
	const float share = __frcp_rn(__fadd_rn(1.0f, e));
	return over > 0.0f ? __fmul_rn(e, share) : share;
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

/* Read the tokens into s and g, in every thread of the block. AHEAD divides a chunk. BONUS: k.bonus is given. */
template <int V, int AHEAD, bool BONUS = false, class T, int HELD>
static __device__ __forceinline__ void forgetting_read(const forgetting_tokens<T> &k, const forgetting_cut &c,
                                                       const forgetting_part &p, forgetting_sum &s, float (&g)[HELD])
{
	enum { CHUNK = FORGETTING_CHUNK };
	forgetting_scores<AHEAD> scores = {};
	forgetting_values<T, HELD, AHEAD> values = {};
	if (p.scores)
		forgetting_fetch_scores(scores, k, c, p.head, 0);
	if (p.values)
		forgetting_fetch_values(values, k, c.d, p.channel, 0);
	if constexpr (V == 0) {
		const float bonus = BONUS && p.scores ? k.bonus[p.head] : 0.0f;
		for (int64_t t = 0; p.scores && t < k.count; t += AHEAD) {
			const forgetting_scores<AHEAD> now = scores;
			const forgetting_values<T, HELD, AHEAD> v = values;
			forgetting_fetch_scores(scores, k, c, p.head, t + AHEAD);
			forgetting_fetch_values(values, k, c.d, p.channel, t + AHEAD);
#pragma unroll
			for (int i = 0; i < AHEAD; i++) {
				const float value = load_real(&v.at[i].at[0]), before = g[0], l = s.l;
				float read = before;
				if (now.counts >> i & 1) {
					if (BONUS)
						read = forgetting_add_value(
						    before, forgetting_share(s, __fadd_rn(now.a[i], bonus)), value);
					const float w = forgetting_add_score(s, now.a[i], now.f[i]);
					g[0] = forgetting_add_value(before, w, value);
				}
				if (t + i < k.count && k.g)
					store_real(k.g + (t + i) * c.d + p.channel, BONUS ? read : g[0]);
				if (t + i < k.count && k.l)
					k.l[(t + i) * c.heads + p.head] = BONUS ? l : s.l;
				if (BONUS && t + i < k.count && k.before)
					store_real(k.before + (t + i) * c.d + p.channel, before);
			}
		}
		return;
	}
	float *weights = shared_memory<float>();
	const int64_t chunks = (k.count + CHUNK - 1) / CHUNK;
	for (int64_t chunk = 0; chunk <= chunks; chunk++) {
		if (p.scores && chunk < chunks) {
			float *to = weights + chunk % 2 * CHUNK * WARP + threadIdx.x;
			const int64_t stop = min((chunk + 1) * CHUNK, k.count);
#pragma unroll 1
			for (int64_t t = chunk * CHUNK; t < stop; t += AHEAD) {
				const forgetting_scores<AHEAD> now = scores;
				forgetting_fetch_scores(scores, k, c, p.head, t + AHEAD);
#pragma unroll
				for (int i = 0; i < AHEAD; i++) {
					const bool counts = now.counts >> i & 1;
					const float w = counts ? forgetting_add_score(s, now.a[i], now.f[i]) : 0.0f;
					to[(t % CHUNK + i) * WARP] = w;
					if (t + i < stop && k.l)
						k.l[(t + i) * c.heads + p.head] = s.l;
				}
			}
		}
		if (p.values && chunk > 0) {
			const float *from = weights + (chunk - 1) % 2 * CHUNK * WARP + p.slot;
			const int64_t stop = min(chunk * CHUNK, k.count);
#pragma unroll 1
			for (int64_t t = (chunk - 1) * CHUNK; t < stop; t += AHEAD) {
				const forgetting_values<T, HELD, AHEAD> v = values;
				forgetting_fetch_values(values, k, c.d, p.channel, t + AHEAD);
#pragma unroll
				for (int i = 0; i < AHEAD; i++) {
					if (t + i >= stop)
						break;
					const float w = from[(t % CHUNK + i) * WARP];
#pragma unroll
					for (int e = 0; e < HELD; e++)
						g[e] = forgetting_add_value(g[e], w, load_real(&v.at[i].at[e]));
					if (k.g)
						forgetting_store<T, HELD>(k.g + (t + i) * c.d + p.channel, g);
				}
			}
		}
		__syncthreads();
	}
}

#endif
