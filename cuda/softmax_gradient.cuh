/* softmax_gradient.cuh - arguments of the forms of softmax_attention_grad, and p and ds of a warp's tile in registers. In
 * bf16 both forms add in the same order, so their bits are equal if those of mma.sync and wgmma are. */
#ifndef CUDA_SOFTMAX_GRADIENT_CUH
#define CUDA_SOFTMAX_GRADIENT_CUH

#include "cuda/softmax_attention.cuh"

/* Rows of q, k and v are as far apart as in the call. NULL: no gradient requested. */
template <class T> struct gradient {
	attention a;
	const T *q, *k, *v, *dy;
	const float *level, *along;
	T *dq, *dk, *dv;
};

/* Compute dq, dk and dv by wgmma (softmax_wgmma_grad.cu), for a call that cuda_softmax_may_wgmma allows. */
status cuda_softmax_wgmma_grad(backend *b, int64_t batch, const gradient<bf16> &g);

/* Rows of a head in a sequence, and its dropout. */
template <class T> struct of_head {
	const T *q, *k, *v, *dy;
	const float *level, *along;
	attention_dropout drop;
};

template <class T> __device__ __forceinline__ of_head<T> head_at(const gradient<T> &g, int sequence, int n)
{
	const attention &a = g.a;
	const int64_t row = (int64_t)sequence * a.queries, key = (int64_t)sequence * a.keys;
	const int64_t chain = attention_chain(a, sequence, n), head = n / a.group;
	return {g.q + row * a.q_row + (int64_t)n * a.dh,
	        g.k + key * a.k_row + head * a.dh,
	        g.v + key * a.v_row + head * a.dv,
	        g.dy + row * a.y_row + (int64_t)n * a.dv,
	        g.level + chain * a.queries,
	        g.along + chain * a.queries,
	        attention_drop(a, chain)};
}

/* level or along of a query; a query past the last one has p = 0. */
__device__ __forceinline__ float level_of(const attention &a, const of_head<bf16> &h, int query)
{
	return query < a.queries ? h.level[query] : INFINITY;
}
__device__ __forceinline__ float along_of(const attention &a, const of_head<bf16> &h, int query)
{
	return query < a.queries ? h.along[query] : 0.0f;
}

/* drop(dp) - D */
template <bool drops> __device__ __forceinline__ float centred(float dp, bool keep, float factor, float along)
{
	return drops ? __fmaf_rn(keep ? dp : 0.0f, factor, -along) : dp - along;
}

/* --- a warp's 16 keys: keys in rows, queries in columns ---------------------------------------------- */

/* Bits 0 and 1: the keys of this lane's rows exist and are not masked; bit 2: all of the warp's are so. */
struct own_keys {
	int first;
	unsigned present;
};
__device__ __forceinline__ own_keys own_keys_at(const attention &a, int64_t row, int first)
{
	const int key = first + (int)threadIdx.x % WARP / 4;
	const bool upper = attention_key(a, row, key), lower = attention_key(a, row, key + 8);
	const bool all = __all_sync(ALL_LANES, upper && lower) != 0;
	return {first, (unsigned)upper | (unsigned)lower << 1 | (unsigned)all << 2};
}

/* s, the products of keys and N tiles of 8 queries, becomes kept p, and t, those of v and dy, ds without its scale.
 * query: the first; level, along: of the queries from it on; bias: [column - row], not read unless `biased`. */
template <bool drops, bool biased, int N>
__device__ __forceinline__ void keys_by_queries(float (&s)[N][4], float (&t)[N][4], const attention &a, unsigned kept,
                                                float factor, const float *level, const float *along, int query,
                                                const own_keys &keys, const float *bias)
{
	const int lane = threadIdx.x % WARP, place = query + a.shift;
	const float scale = a.scale * LOG2_E;
#pragma unroll
	for (int i = 0; i < 4 * N; i++) {
		const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 % 2 * 8;
		const float least = biased ? level[column] - bias[column - row] : level[column];
		s[i / 4][i % 4] = exp2_approx(__fmaf_rn(s[i / 4][i % 4], scale, -least));
	}
	if (!(keys.present >> 2) || !attention_all(a, place, place + 8 * N - 1, keys.first, keys.first + 15)) {
#pragma unroll
		for (int i = 0; i < 4 * N; i++) {
			const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 % 2 * 8;
			if (!(keys.present >> i / 2 % 2 & 1) || !attention_sees(a, place + column, keys.first + row))
				s[i / 4][i % 4] = 0.0f;
		}
	}
#pragma unroll
	for (int i = 0; i < 4 * N; i++) {
		const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
		float &p = s[i / 4][i % 4], &ds = t[i / 4][i % 4];
		const bool keep = !drops || (kept >> i & 1);
		ds = p * centred<drops>(ds, keep, factor, along[column]);
		p = keep ? p : 0.0f;
	}
}

/* --- a warp's 16 queries: queries in rows, keys in columns --------------------------------------------- */

/* The numbers of this lane's rows. */
struct own_queries {
	int first;
	float level[2], along[2];
};
__device__ __forceinline__ own_queries own_queries_at(const attention &a, const of_head<bf16> &h, int first)
{
	const int query = first + (int)threadIdx.x % WARP / 4;
	return {first,
	        {level_of(a, h, query), level_of(a, h, query + 8)},
	        {along_of(a, h, query), along_of(a, h, query + 8)}};
}

/* t becomes ds without its scale. present: attention_keys, from key `key` on; bias: [row - column], not read unless
 * `biased`. */
template <bool drops, bool biased, int N>
__device__ __forceinline__ void queries_by_keys(float (&s)[N][4], float (&t)[N][4], const attention &a, unsigned kept,
                                                float factor, const own_queries &queries, int key, uint64_t present,
                                                const float *bias)
{
	const int lane = threadIdx.x % WARP, place = queries.first + a.shift;
	const float scale = a.scale * LOG2_E;
#pragma unroll
	for (int i = 0; i < 4 * N; i++) {
		const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 % 2 * 8;
		const float level = queries.level[i / 2 % 2], least = biased ? level - bias[row - column] : level;
		s[i / 4][i % 4] = exp2_approx(__fmaf_rn(s[i / 4][i % 4], scale, -least));
	}
	if (~present << (64 - 8 * N) || !attention_all(a, place, place + 15, key, key + 8 * N - 1)) {
#pragma unroll
		for (int i = 0; i < 4 * N; i++) {
			const int column = i / 4 * 8 + lane % 4 * 2 + i % 2, row = lane / 4 + i / 2 % 2 * 8;
			if (!(present >> column & 1) || !attention_sees(a, place + row, key + column))
				s[i / 4][i % 4] = 0.0f;
		}
	}
#pragma unroll
	for (int i = 0; i < 4 * N; i++) {
		float &ds = t[i / 4][i % 4];
		const bool keep = !drops || (kept >> i & 1);
		ds = s[i / 4][i % 4] * centred<drops>(ds, keep, factor, queries.along[i / 2 % 2]);
	}
}

#endif
