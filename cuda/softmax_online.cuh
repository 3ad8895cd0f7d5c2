/* softmax_online.cuh - the online softmax of a warp's queries in registers, and the forms of bf16 softmax_attention that
 * have it. Both add in the same order, so their bits are equal if those of mma.sync and wgmma are. */
#ifndef CUDA_SOFTMAX_ONLINE_CUH
#define CUDA_SOFTMAX_ONLINE_CUH

#include "cuda/softmax_attention.cuh"

/* Compute y and log_normalizer by wgmma (softmax_wgmma.cu), for a call that cuda_softmax_may_wgmma allows. */
status cuda_softmax_wgmma(backend *b, const attention &a, int64_t batch, const bf16 *q, const bf16 *k, const bf16 *v,
                          bf16 *y, float *log_normalizer);

/* A warp's queries: M times 16 rows, two of which belong to each lane. */
template <int W, int M> struct queries {
	int first;                                    /* position of the first */
	int row;                                      /* its place in the block's tile */
	float out[M][W / 8][4], top[M][2], sum[M][2]; /* sum: over this lane's columns */
};

/* Set up the queries of this warp. place: position of the block's first. */
template <int W, int M> __device__ __forceinline__ void begin(queries<W, M> &w, int place)
{
	w.row = (int)threadIdx.x / WARP * 16 * M;
	w.first = place + w.row;
#pragma unroll
	for (int m = 0; m < M; m++)
		w.top[m][0] = w.top[m][1] = -INFINITY;
}

/* The bits of dropout of a tile of keys. */
template <bool drops, int W, int M>
__device__ __forceinline__ void draw(unsigned (&kept)[M], const queries<W, M> &w, const attention &a,
                                     const attention_dropout &drop, int first)
{
#pragma unroll
	for (int m = 0; m < M && drops; m++)
		kept[m] = attention_kept_tiles<false, 8>(drop, w.first - a.shift + 16 * m, first);
}

/* bias: at row 0 and the last column of the tile of keys. */
__device__ __forceinline__ void add_bias(float (&s)[8][4], const float *bias)
{
	const int lane = threadIdx.x % WARP;
#pragma unroll
	for (int i = 0; i < 32; i++) {
		const int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
		s[i / 4][i % 4] += bias[row - column + ATTENTION_TILE - 1];
	}
}

/* -inf where a query, by its position, does not see a key. keys: attention_keys. */
__device__ __forceinline__ void hide(float (&s)[8][4], const attention &a, int query, int key, uint64_t keys)
{
	const int lane = threadIdx.x % WARP;
#pragma unroll
	for (int i = 0; i < 32; i++) {
		const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
		if (!(keys >> column & 1) || !attention_sees(a, query + lane / 4 + i / 2 % 2 * 8, key + column))
			s[i / 4][i % 4] = -INFINITY;
	}
}

/* s becomes 2^{s - top}. sum and out are rescaled where top has risen. */
template <int W>
__device__ __forceinline__ void soften(float (&s)[8][4], float (&top)[2], float (&sum)[2], float (&out)[W / 8][4])
{
	float best[2] = {-INFINITY, -INFINITY}, fade[2];
#pragma unroll
	for (int i = 0; i < 32; i++)
		best[i / 2 % 2] = fmaxf(best[i / 2 % 2], s[i / 4][i % 4]);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const float risen = fmaxf(top[half], warp_max<4>(best[half]));
		best[half] = risen == -INFINITY ? 0.0f : risen;
		fade[half] = exp2_approx(top[half] - best[half]);
		sum[half] *= fade[half];
		top[half] = risen;
	}
#pragma unroll
	for (int i = 0; i < 32; i++) {
		s[i / 4][i % 4] = exp2_approx(s[i / 4][i % 4] - best[i / 2 % 2]);
		sum[i / 2 % 2] += s[i / 4][i % 4];
	}
#pragma unroll
	for (int i = 0; i < W / 2; i++)
		out[i / 4][i % 4] *= fade[i / 2 % 2];
}

/* p becomes bf16 of drop(2^{s - top}), four operands of 16 keys. s: the products of queries and keys; keys:
 * attention_keys; bias: from attention_load_bias, or NULL. */
template <bool drops, bool biased, int W, int M>
__device__ __forceinline__ void weigh(unsigned (&p)[4][M][4], float (&s)[M][8][4], const unsigned (&kept)[M],
                                      queries<W, M> &w, const attention &a, uint64_t keys, int first,
                                      const float *bias)
{
	const int last = first + ATTENTION_TILE - 1, last_query = w.first + 16 * M - 1;
	const float scale = a.scale * LOG2_E;
#pragma unroll
	for (int m = 0; m < M; m++) {
#pragma unroll
		for (int i = 0; i < 32; i++)
			s[m][i / 4][i % 4] *= scale;
		if constexpr (biased)
			add_bias(s[m], bias + w.row + 16 * m);
		if (~keys || !attention_all(a, w.first, last_query, first, last))
			hide(s[m], a, w.first + 16 * m, first, keys);
		soften<W>(s[m], w.top[m], w.sum[m], w.out[m]);
#pragma unroll
		for (int i = 0; i < 32 && drops; i++)
			s[m][i / 4][i % 4] = kept[m] >> i & 1 ? s[m][i / 4][i % 4] : 0.0f;
#pragma unroll
		for (int n = 0; n < 4; n++)
			mma_narrow(p[n][m], s[m][2 * n], s[m][2 * n + 1]);
	}
}

/* Store y and M of the warp's queries. tile: QUERIES rows of W; those of this warp are overwritten. */
template <int W, int M>
__device__ __forceinline__ void end(queries<W, M> &w, const attention &a, const attention_place &at, float factor,
                                    bf16 *tile, bf16 *y, float *log_normalizer)
{
	const int lane = threadIdx.x % WARP;
#pragma unroll
	for (int m = 0; m < M; m++) {
		float inverse[2];
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const float sum = warp_sum<4>(w.sum[m][half]);
			const int query = at.first + w.row + 16 * m + lane / 4 + 8 * half;
			inverse[half] = sum == 0.0f ? 0.0f : factor / sum;
			if (log_normalizer && lane % 4 == 0 && query < a.queries)
				log_normalizer[(at.row + query) * a.heads + at.head] =
				    sum == 0.0f ? -INFINITY : (w.top[m][half] + log2f(sum)) * LN_2;
		}
		if (y)
			mma_store<W>(w.out[m], inverse, tile, w.row + 16 * m,
			             y + (at.row + at.first) * a.y_row + at.head * a.dv, a.y_row, a.queries - at.first,
			             a.dv);
	}
}

#endif
