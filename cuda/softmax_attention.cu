/* softmax_attention: blocked online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
 *
 * A block has a tile of queries of one head and walks over the tiles of keys that any of them sees, so work is O(N ·
 * window). For each tile of keys:
 *   s = scale q kᵀ, -inf outside the window and at masked keys;  top' = max(top, max_j s_j)
 *   sum = e^{top - top'} sum + Σ_j e^{s_j - top'};  out = e^{top - top'} out + Σ_j drop(e^{s_j - top'}) v_j
 *
 * At the end y = out / ((1 - p) sum) and M = top + log sum, or 0 and -inf if no key was seen.
 *
 * mma (bf16): 4 warps of 16 or 32 queries. Out and scores stay in registers, and the result of the first product (an
 * accumulator) is the operand of the second. Keys and values are loaded 64 at a time, while the previous ones are used.
 * Exponentials are powers of 2. e^{s_j - top'} is rounded to bf16 for the product with v, not for the sum. Memory: qkv
 * and y once, 8 D bytes per token in bf16. In addition each tile of queries reads the keys and values that it sees,
 * which are expected in the L2 cache: 2 · (window + queries) / queries · 2 D bytes per token.
 *
 * plain (f32, and wide heads): a block also takes 64 channels of the result, and recomputes the scores for each 64.
 *
 * A query that sees no key gives zeros; with `uniform` another kernel gives it the mean of all values. */
#include "cuda/kernels.h"
#include "cuda/softmax_blind.cuh"
#include "cuda/softmax_online.cuh"

/* --- mma ------------------------------------------------------------------------------------ */

/* A warp has M times 16 queries: more where registers allow, because each uses the loaded keys. */
template <int W, int M> struct shape_of {
	enum {
		QUERIES = 4 * 16 * M,
		TILES = (QUERIES + 4 * ATTENTION_TILE) * W * (int)sizeof(bf16),
		BIAS = QUERIES + ATTENTION_TILE, /* per tile of keys */
		BIASED = TILES + 2 * BIAS * (int)sizeof(float)
	};
};

/* s = q kᵀ for a tile of keys. */
template <int W, int M>
__device__ __forceinline__ void score(float (&s)[M][8][4], const queries<W, M> &w, const bf16 *query, const bf16 *key)
{
#pragma unroll
	for (int i = 0; i < M * 32; i++)
		s[i / 32][i / 4 % 8][i % 4] = 0.0f;
#pragma unroll
	for (int k = 0; k < W / 16; k++) {
		unsigned a[M][4];
#pragma unroll
		for (int m = 0; m < M; m++)
			mma_a<W>(a[m], query, w.row + 16 * m, 16 * k);
#pragma unroll
		for (int n = 0; n < 8; n += 2) {
			unsigned b[4];
			mma_b<W>(b, key, 8 * n, 16 * k);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma_bf16(s[m][n], a[m], b);
				mma_bf16(s[m][n + 1], a[m], b + 2);
			}
		}
	}
}

/* One tile of keys for a warp. bias: from attention_load_bias, or NULL. */
template <bool drops, bool biased, int W, int M>
__device__ __forceinline__ void tile_of_keys(queries<W, M> &w, const attention &a, const attention_dropout &drop,
                                             int64_t row, int first, const bf16 *query, const bf16 *key,
                                             const bf16 *value, const float *bias)
{
	const uint64_t keys = attention_keys(a, row, first);
	float s[M][8][4];
	unsigned p[4][M][4], kept[M]; /* drawn first, while registers are free */
	draw<drops>(kept, w, a, drop, first);
	score(s, w, query, key);
	weigh<drops, biased>(p, s, kept, w, a, keys, first, bias);
#pragma unroll
	for (int n = 0; n < 4; n++)
		mma_accumulate<W, M>(w.out, p[n], value, 16 * n);
}

template <int W, int M, bool drops, bool biased>
__global__ void __launch_bounds__(MMA_THREADS, 2)
    attend_mma(attention a, const bf16 *q, const bf16 *k, const bf16 *v, bf16 *y, float *log_normalizer)
{
	constexpr int QUERIES = shape_of<W, M>::QUERIES, TILE = ATTENTION_TILE, BIAS = shape_of<W, M>::BIAS;
	bf16 *query = shared_memory<bf16>(), *keys = query + QUERIES * W, *values = keys + 2 * TILE * W;
	float *bias = shared_memory<float>(shape_of<W, M>::TILES);
	const attention_place at = attention_queries_here(a, QUERIES);
	const attention_dropout drop = attention_drop(a, attention_chain(a, at.sequence, at.head));
	const int head = at.head / a.group, place = at.first + a.shift;
	const int first = attention_begin(a, place),
	          past = attention_past(a, min(at.first + QUERIES, a.queries) - 1 + a.shift);
	k += at.key_row * a.k_row + (int64_t)head * a.dh;
	v += at.key_row * a.v_row + (int64_t)head * a.dv;
	auto fetch = [&](int key, int turn) {
		mma_load<W>(keys + turn * TILE * W, TILE, k + key * a.k_row, a.k_row, a.keys - key, a.dh);
		mma_load<W>(values + turn * TILE * W, TILE, v + key * a.v_row, a.v_row, a.keys - key, a.dv);
		if constexpr (biased)
			attention_load_bias(a, at.head, QUERIES, place, key, bias + turn * BIAS);
	};
	queries<W, M> w = {};
	begin(w, place);
	mma_load<W>(query, QUERIES, q + (at.row + at.first) * a.q_row + at.head * a.dh, a.q_row, a.queries - at.first,
	            a.dh);
	if (first < past)
		fetch(first, 0);
	copy_commit();
	for (int key = first, turn = 0; key < past; key += TILE, turn ^= 1) {
		if (key + TILE < past)
			fetch(key + TILE, turn ^ 1);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		if (attention_any(a, w.first, w.first + 16 * M - 1, key, key + TILE - 1))
			tile_of_keys<drops, biased>(w, a, drop, at.key_row, key, query, keys + turn * TILE * W,
			                            values + turn * TILE * W, bias + turn * BIAS);
		__syncthreads();
	}
	copy_wait<0>();
	__syncthreads();
	end(w, a, at, drop.factor, query, y, log_normalizer);
}

/* --- plain ------------------------------------------------------------------------------------ */

/* soften on a thread's 4 by 4; its rows are shared with the other 15 threads of its half warp. */
__device__ __forceinline__ void soften_plain(float (&s)[4][4], float (&top)[4], float (&sum)[4], float (&out)[4][4])
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const float best = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
		const float risen = fmaxf(top[i], warp_max<16>(best)), base = risen == -INFINITY ? 0.0f : risen;
		const float fade = expf(top[i] - base);
		top[i] = risen;
		float more = 0.0f;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			s[i][j] = expf(s[i][j] - base);
			more += s[i][j];
			out[i][j] *= fade;
		}
		sum[i] = sum[i] * fade + warp_sum<16>(more);
	}
}

/* Scale s and add the bias; -inf where the key is hidden. query: a position; row: index of the sequence's key 0. */
__device__ __forceinline__ void hide_plain(float (&s)[4][4], const attention &a, int head, int64_t row, int query,
                                           int key)
{
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int q = query + plain_row() + i / 4, k = key + plain_column() + i % 4;
		const float bias = a.bias ? attention_bias(a, head, q - k) : 0.0f;
		s[i / 4][i % 4] =
		    attention_sees(a, q, k) && attention_key(a, row, k) ? s[i / 4][i % 4] * a.scale + bias : -INFINITY;
	}
}

enum { PLAIN_SPACE = (2 * ATTENTION_TILE * PLAIN_PITCH + 2 * ATTENTION_TILE * PLAIN_WIDE) * (int)sizeof(float) };

template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS, 1)
    attend_plain(attention a, const T *q, const T *k, const T *v, T *y, float *log_normalizer)
{
	constexpr int TILE = ATTENTION_TILE;
	float *space = shared_memory<float>(), *p = space + 2 * TILE * PLAIN_PITCH, *value = p + TILE * PLAIN_WIDE;
	const attention_place at = attention_queries_here(a, TILE);
	const attention_dropout drop = attention_drop(a, attention_chain(a, at.sequence, at.head));
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, head = at.head / a.group, place = at.first + a.shift;
	const int past = attention_past(a, min(at.first + TILE, a.queries) - 1 + a.shift);
	q += (at.row + at.first) * a.q_row + at.head * a.dh;
	k += at.key_row * a.k_row + (int64_t)head * a.dh;
	v += at.key_row * a.v_row + (int64_t)head * a.dv + column;
	float s[4][4], out[4][4] = {}, top[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sum[4] = {};
	for (int key = attention_begin(a, place); key < past; key += TILE) {
		plain_products<T>(s, {q, a.q_row, a.queries - at.first}, {k + key * a.k_row, a.k_row, a.keys - key},
		                  a.dh, space);
		hide_plain(s, a, at.head, at.key_row, place, key);
		soften_plain(s, top, sum, out);
#pragma unroll
		for (int i = 0; i < 4 && a.rng; i++) {
			const unsigned kept = attention_kept(drop, at.first + plain_row() + i, key + plain_column());
#pragma unroll
			for (int j = 0; j < 4; j++)
				s[i][j] = kept >> j & 1 ? s[i][j] : 0.0f;
		}
		plain_keep(p, s);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(value, v + key * a.v_row, a.v_row, a.keys - key, a.dv - column);
		__syncthreads();
		plain_accumulate<false>(out, p, value);
		__syncthreads();
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int query = at.first + plain_row() + i;
		if (log_normalizer && blockIdx.y == 0 && threadIdx.x % 16 == 0 && query < a.queries)
			log_normalizer[(at.row + query) * a.heads + at.head] =
			    sum[i] == 0.0f ? -INFINITY : top[i] + logf(sum[i]);
#pragma unroll
		for (int j = 0; j < 4; j++)
			out[i][j] = sum[i] == 0.0f ? 0.0f : out[i][j] / sum[i];
	}
	if (y)
		plain_store(out, drop.factor, y + (at.row + at.first) * a.y_row + at.head * a.dv + column, a.y_row,
		            a.queries - at.first, a.dv - column);
}

/* --- uniform -------------------------------------------------------------------------------------- */

/* y and M of the queries that see no key: y = Σ_j drop(1 / S) v_j, M = log S. One sequence; a block per head and
 * some of its queries, a thread per channel. */
template <class T>
__device__ __forceinline__ void attend_blind_sequence(const attention &a, const int32_t *list, const T *v, T *y,
                                                      float *log_normalizer, unsigned sequence)
{
	const int head = (int)blockIdx.y, count = blind_count(a, list, sequence);
	const attention_dropout drop = attention_drop(a, attention_chain(a, (int)sequence, head));
	v += (int64_t)sequence * a.keys * a.v_row + (int64_t)(head / a.group) * a.dv;
	for (int n = (int)blockIdx.x; n < count; n += (int)gridDim.x) {
		const int query = blind_query(a, list, sequence, n);
		const int64_t row = (int64_t)sequence * a.queries + query;
		for (int c = (int)threadIdx.x; y && c < a.dv; c += BLIND_THREADS) {
			float sum = 0.0f;
			for (int j = 0; j < a.keys; j++)
				if (blind_keeps(a, drop, query, j))
					sum += load_real(v + j * a.v_row + c);
			store_real(y + row * a.y_row + (int64_t)head * a.dv + c, sum * drop.factor / (float)a.keys);
		}
		if (log_normalizer && threadIdx.x == 0)
			log_normalizer[row * a.heads + head] = logf((float)a.keys);
	}
}
template <class T>
__global__ void __launch_bounds__(BLIND_THREADS)
    attend_blind(attention a, unsigned batch, const int32_t *list, const T *v, T *y, float *log_normalizer)
{
	for (unsigned sequence = blockIdx.z; sequence < batch; sequence += gridDim.z)
		attend_blind_sequence(a, list, v, y, log_normalizer, sequence);
}

/* --- the op ------------------------------------------------------------------------------------- */

/* Bytes of the lists of softmax_blind.cuh. */
size_t cuda_softmax_attention_scratch(const backend *, const op_call *call)
{
	return blind_bytes(call);
}

template <class T> static status issue(backend *b, const op_call *call, const attention &a)
{
	const softmax_layout l = softmax_layout_of(call);
	const T *q = (const T *)call->in[0].data, *k = (const T *)call->in[l.k_input].data + l.k_offset,
	        *v = (const T *)call->in[l.v_input].data + l.v_offset;
	T *y = (T *)call->out[0].data;
	float *log_normalizer = (float *)call->out[1].data;
	if constexpr (std::is_same_v<T, bf16>) {
		if (cuda_softmax_may_wgmma(b, call, a))
			return cuda_softmax_wgmma(b, a, l.batch, q, k, v, y, log_normalizer);
		if (attention_mma(call, a))
			return attention_by_shape(a, [&](auto width, auto drops, auto biased) {
				constexpr int W = decltype(width)::value;
				constexpr bool D = decltype(drops)::value, B = decltype(biased)::value;
				constexpr int M = W <= 64 && !(D && B) ? 2 : 1;
				typedef shape_of<W, M> sizes;
				return cuda_launch(b, attend_mma<W, M, D, B>,
				                   attention_grid(l.batch, a.heads, a.queries, sizes::QUERIES),
				                   MMA_THREADS, B ? sizes::BIASED : sizes::TILES, a, q, k, v, y,
				                   log_normalizer);
			});
	}
	const dim3 grid(attention_grid(l.batch, a.heads, a.queries, ATTENTION_TILE), attention_slices(a.dv));
	return cuda_launch(b, attend_plain<T>, grid, PLAIN_THREADS, PLAIN_SPACE, a, q, k, v, y, log_normalizer);
}

status cuda_softmax_attention(backend *b, const op_call *call)
{
	const attention a = attention_of(call);
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		TRY(issue<T>(b, call, a));
		if (!((const softmax_params *)call->params)->uniform || a.keys == 0)
			return STATUS_OK;
		const softmax_layout l = softmax_layout_of(call);
		int32_t *list = (int32_t *)call->scratch;
		TRY(blind_issue(b, call, a, list));
		return cuda_launch(b, attend_blind<T>, blind_grid(BLIND_BLOCKS, a.heads, l.batch), BLIND_THREADS, 0, a,
		                   (unsigned)l.batch, list, (const T *)call->in[l.v_input].data + l.v_offset,
		                   (T *)call->out[0].data, (float *)call->out[1].data);
	});
}
