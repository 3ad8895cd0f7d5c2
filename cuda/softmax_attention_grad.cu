/* softmax_attention_grad: the probabilities are made again from the scores and log_normalizer (Dao et al. 2022).
 *
 *   D_i = dy_i·y_i, and p_ij = e^{s_ij - M_i} with M = +inf for an empty window, so that its p are 0
 *   ds_ij = p_ij (drop(dy_i·v_j) - D_i);  dq_i = scale Σ_j ds_ij k_j
 *   dk_j = scale Σ_i ds_ij q_i;  dv_j = Σ_i drop(p_ij) dy_i
 *
 * Three launches, without atomics, so that two runs give the same bits: D and M in the order [B, H, N] into the
 * scratch; dk and dv, a block per tile of keys that goes through the tiles of queries which see it; dq, a block per
 * tile of queries that goes through the tiles of keys it sees. Scores and dy vᵀ are made twice, 7 products instead of
 * 5: the price of having no sums over blocks. Work is O(N · window).
 *
 * mma (bf16): 4 warps of 16 keys (of sᵀ = k qᵀ) or 16 queries; the other side comes 64 rows at a time, the next while
 * these are used, and is multiplied 32 at a time. p and ds are rounded to bf16 for the last products; every sum is f32.
 * Memory: qkv, y, dy and dqkv once, 16 D bytes per token in bf16, plus for each tile the tiles of the other side, which
 * are expected in the L2 cache.
 *
 * plain (f32, and wide heads): a block also takes 64 channels of the result, and makes the scores anew for each 64.
 *
 * frozen (ds = 0): the plain kernel of keys without the products of ds, which writes the zeros of dq and dk too, for
 * any type. Frozen networks are f32. */
#include "cuda/kernels.h"
#include "cuda/softmax_attention.cuh"

/* --- D and M -------------------------------------------------------------------------------- */

enum { PREPARE_THREADS = 256, GROUP = 8 /* lanes of one row of one head */ };

/* level = unit · M, along = D, both [B, H, N]. */
template <class T, bool packs>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare(attention a, int64_t rows, const T *y, const T *dy, const float *log_normalizer, float unit, float *level,
            float *along)
{
	const int64_t count = rows * a.heads;
	for (int64_t first = (int64_t)blockIdx.x * (PREPARE_THREADS / GROUP); first < count;
	     first += (int64_t)gridDim.x * (PREPARE_THREADS / GROUP)) {
		const int64_t i = first + threadIdx.x / GROUP; /* of [B, N, H] */
		const int lane = threadIdx.x % GROUP;
		const T *left = y + i * a.dh, *right = dy + i * a.dh;
		float sum = 0.0f;
		if (packs) {
			for (int c = lane * pack<T>::N; i < count && c < a.dh; c += GROUP * pack<T>::N) {
				const pack<T> u = load_pack(left + c), v = load_pack(right + c);
#pragma unroll
				for (int k = 0; k < pack<T>::N; k++)
					sum += u.at[k] * v.at[k];
			}
		} else {
			for (int c = lane; i < count && c < a.dh; c += GROUP)
				sum += load_real(left + c) * load_real(right + c);
		}
		sum = warp_sum<GROUP>(sum);
		if (lane == 0 && i < count) {
			const int64_t token = i / a.heads,
			              to = ((token / a.length) * a.heads + i % a.heads) * a.length + token % a.length;
			const float m = log_normalizer[i];
			level[to] = m == -INFINITY ? INFINITY : m * unit;
			along[to] = sum;
		}
	}
}

/* --- mma -------------------------------------------------------------------------------------- */

enum { HALF = ATTENTION_TILE / 2 };

/* 16 rows of a tile from `row` on as an operand, in registers from `hold` on where there are enough. */
template <int W> struct held {
	enum { HOLDS = W <= 64 };
	const bf16 *tile;
	int row;
	unsigned at[HOLDS ? W / 16 : 1][4];
};

template <int W> __device__ __forceinline__ void hold(held<W> &h)
{
#pragma unroll
	for (int k = 0; k < W / 16 && held<W>::HOLDS; k++)
		mma_a<W>(h.at[k], h.tile, h.row, 16 * k);
}

/* s = x yᵀ: 16 rows by 32, of tile y from `row` on. */
template <int W> __device__ __forceinline__ void score(float (&s)[4][4], const held<W> &x, const bf16 *y, int row)
{
#pragma unroll
	for (int i = 0; i < 16; i++)
		s[i / 4][i % 4] = 0.0f;
#pragma unroll
	for (int k = 0; k < W / 16; k++) {
		unsigned a[4];
		if (!held<W>::HOLDS)
			mma_a<W>(a, x.tile, x.row, 16 * k);
#pragma unroll
		for (int n = 0; n < 4; n += 2) {
			unsigned b[4];
			mma_b<W>(b, y, row + 8 * n, 16 * k);
			mma_bf16(s[n], held<W>::HOLDS ? x.at[k % (W / 16)] : a, b);
			mma_bf16(s[n + 1], held<W>::HOLDS ? x.at[k % (W / 16)] : a, b + 2);
		}
	}
}

/* Keys in rows, queries in columns: s becomes kept p, t becomes ds without its scale. queries: level and along. */
struct query_numbers {
	const float *level, *along; /* of the tile's queries, in shared memory */
};

template <bool drops>
__device__ __forceinline__ void keys_by_queries(float (&s)[4][4], float (&t)[4][4], const attention &a,
                                                const attention_dropout &drop, query_numbers numbers, int query,
                                                int key, const bool (&there)[2])
{
	const int lane = threadIdx.x % WARP;
	const unsigned kept = drops ? attention_kept_tiles<true, 4>(drop, query, key) : ~0u;
#pragma unroll
	for (int n = 0; n < 4; n++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int column = 8 * n + lane % 4 * 2 + i % 2;
			const bool seen = there[i / 2] && attention_sees(a, query + column, key + lane / 4 + i / 2 * 8);
			const float p = seen ? exp2f(s[n][i] * (a.scale * LOG2_E) - numbers.level[column]) : 0.0f;
			const bool keep = kept >> (4 * n + i) & 1;
			s[n][i] = keep ? p : 0.0f;
			t[n][i] = p * ((keep ? drop.factor * t[n][i] : 0.0f) - numbers.along[column]);
		}
	}
}

/* Queries in rows, keys in columns: t becomes ds without its scale. */
template <bool drops>
__device__ __forceinline__ void queries_by_keys(const float (&s)[4][4], float (&t)[4][4], const attention &a,
                                                const attention_dropout &drop, const float (&level)[2],
                                                const float (&along)[2], int query, int key, unsigned there)
{
	const int lane = threadIdx.x % WARP;
	const unsigned kept = drops ? attention_kept_tiles<false, 4>(drop, query, key) : ~0u;
#pragma unroll
	for (int n = 0; n < 4; n++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int column = 8 * n + lane % 4 * 2 + i % 2;
			const bool seen =
			    (there >> column & 1) && attention_sees(a, query + lane / 4 + i / 2 * 8, key + column);
			const float p = seen ? exp2f(s[n][i] * (a.scale * LOG2_E) - level[i / 2]) : 0.0f;
			t[n][i] = p * ((kept >> (4 * n + i) & 1 ? drop.factor * t[n][i] : 0.0f) - along[i / 2]);
		}
	}
}

/* out += sᵀ-like [16, 32] times 32 rows of a tile. */
template <int W>
__device__ __forceinline__ void accumulate(float (&out)[1][W / 8][4], const float (&s)[4][4], const bf16 *tile, int row)
{
#pragma unroll
	for (int n = 0; n < 4; n += 2) {
		unsigned a[1][4];
		mma_narrow(a[0], s[n], s[n + 1]);
		mma_accumulate<W, 1>(out, a, tile, row + 8 * n);
	}
}

template <int W> struct space_of {
	enum {
		TILES = 6 * ATTENTION_TILE * W * (int)sizeof(bf16),
		BYTES = TILES + 4 * ATTENTION_TILE * (int)sizeof(float)
	};
};

struct gradient {
	attention a;
	const bf16 *qkv, *dy;
	const float *level, *along;
	bf16 *dqkv;
};

template <int W, bool drops> __global__ void __launch_bounds__(MMA_THREADS, 2) keys_mma(gradient g)
{
	constexpr int TILE = ATTENTION_TILE, SIZE = TILE * W;
	const attention &a = g.a;
	bf16 *key = shared_memory<bf16>(), *value = key + SIZE, *queries = value + SIZE,
	     *gradients = queries + 2 * SIZE;
	float *numbers = shared_memory<float>(space_of<W>::TILES); /* level and along, twice */
	const attention_place at = attention_here(a, TILE, false);
	const attention_dropout drop = attention_drop(a, at.chain);
	const int64_t stride = 3 * a.d, channel = (int64_t)at.head * a.dh;
	const bf16 *from = g.qkv + at.row * stride + channel, *dy = g.dy + at.row * a.d + channel;
	const int row = (int)threadIdx.x / WARP * 16, first = at.first + row, lane = threadIdx.x % WARP;
	const int past = attention_end(a, min(at.first + TILE, a.length));
	const bool there[2] = {attention_key(a, at.row, first + lane / 4),
	                       attention_key(a, at.row, first + lane / 4 + 8)};
	auto fetch = [&](int query, int turn) {
		mma_load<W>(queries + turn * SIZE, TILE, from + query * stride, stride, a.length - query, a.dh);
		mma_load<W>(gradients + turn * SIZE, TILE, dy + query * a.d, a.d, a.length - query, a.dh);
		const int i = threadIdx.x % TILE, q = query + i, along = (int)threadIdx.x / TILE;
		numbers[(2 * turn + along) * TILE + i] =
		    q >= a.length ? along ? 0.0f : INFINITY : (along ? g.along : g.level)[at.chain * a.length + q];
	};
	float dk[1][W / 8][4] = {}, dv[1][W / 8][4] = {};
	held<W> k = {key, row, {}}, v = {value, row, {}};
	mma_load<W>(key, TILE, from + at.first * stride + a.d, stride, a.length - at.first, a.dh);
	mma_load<W>(value, TILE, from + at.first * stride + 2 * a.d, stride, a.length - at.first, a.dh);
	fetch(at.first, 0);
	copy_commit();
	for (int query = at.first, turn = 0; query < past; query += TILE, turn ^= 1) {
		if (query + TILE < past)
			fetch(query + TILE, turn ^ 1);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		if (query == at.first)
			hold(k), hold(v);
#pragma unroll 1
		for (int half = 0; half < TILE; half += HALF) {
			if (!attention_any(a, query + half, query + half + HALF - 1, first, first + 15))
				continue;
			const float *level = numbers + 2 * turn * TILE + half;
			float s[4][4], t[4][4];
			score<W>(s, k, queries + turn * SIZE, half);
			score<W>(t, v, gradients + turn * SIZE, half);
			keys_by_queries<drops>(s, t, a, drop, {level, level + TILE}, query + half, first, there);
			accumulate<W>(dv, s, gradients + turn * SIZE, half);
			accumulate<W>(dk, t, queries + turn * SIZE, half);
		}
		__syncthreads();
	}
	bf16 *to = g.dqkv + (at.row + at.first) * stride + channel;
	mma_store<W>(dk[0], {a.scale, a.scale}, key, row, to + a.d, stride, a.length - at.first, a.dh);
	mma_store<W>(dv[0], {drop.factor, drop.factor}, value, row, to + 2 * a.d, stride, a.length - at.first, a.dh);
}

template <int W, bool drops> __global__ void __launch_bounds__(MMA_THREADS, 2) queries_mma(gradient g)
{
	constexpr int TILE = ATTENTION_TILE, SIZE = TILE * W;
	const attention &a = g.a;
	bf16 *query = shared_memory<bf16>(), *dy = query + SIZE, *keys = dy + SIZE, *values = keys + 2 * SIZE;
	const attention_place at = attention_here(a, TILE, true);
	const attention_dropout drop = attention_drop(a, at.chain);
	const int64_t stride = 3 * a.d, channel = (int64_t)at.head * a.dh;
	const bf16 *from = g.qkv + at.row * stride + channel;
	const int row = (int)threadIdx.x / WARP * 16, first = at.first + row, lane = threadIdx.x % WARP;
	const int begin = attention_begin(a, at.first), past = min(at.first + TILE, a.length);
	auto fetch = [&](int key, int turn) {
		const bf16 *k = from + key * stride + a.d;
		mma_load<W>(keys + turn * SIZE, TILE, k, stride, a.length - key, a.dh);
		mma_load<W>(values + turn * SIZE, TILE, k + a.d, stride, a.length - key, a.dh);
	};
	float dq[1][W / 8][4] = {}, level[2], along[2];
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int i = first + lane / 4 + 8 * half;
		level[half] = i < a.length ? g.level[at.chain * a.length + i] : INFINITY;
		along[half] = i < a.length ? g.along[at.chain * a.length + i] : 0.0f;
	}
	held<W> q = {query, row, {}}, d = {dy, row, {}};
	mma_load<W>(query, TILE, from + at.first * stride, stride, a.length - at.first, a.dh);
	mma_load<W>(dy, TILE, g.dy + (at.row + at.first) * a.d + channel, a.d, a.length - at.first, a.dh);
	fetch(begin, 0);
	copy_commit();
	for (int key = begin, turn = 0; key < past; key += TILE, turn ^= 1) {
		if (key + TILE < past)
			fetch(key + TILE, turn ^ 1);
		copy_commit();
		copy_wait<1>();
		__syncthreads();
		if (key == begin)
			hold(q), hold(d);
		const uint64_t there = attention_keys(a, at.row, key);
#pragma unroll 1
		for (int half = 0; half < TILE; half += HALF) {
			if (!attention_any(a, first, first + 15, key + half, key + half + HALF - 1))
				continue;
			float s[4][4], t[4][4];
			score<W>(s, q, keys + turn * SIZE, half);
			score<W>(t, d, values + turn * SIZE, half);
			queries_by_keys<drops>(s, t, a, drop, level, along, first, key + half,
			                       (unsigned)(there >> half));
			accumulate<W>(dq, t, keys + turn * SIZE, half);
		}
		__syncthreads();
	}
	mma_store<W>(dq[0], {a.scale, a.scale}, query, row, g.dqkv + (at.row + at.first) * stride + channel, stride,
	             a.length - at.first, a.dh);
}

/* --- plain -------------------------------------------------------------------------------------- */

template <class T> struct plain_gradient {
	attention a;
	const T *qkv, *dy;
	const float *level, *along;
	T *dqkv;
};

enum { PLAIN_SPACE = (2 * ATTENTION_TILE * PLAIN_PITCH + 3 * ATTENTION_TILE * PLAIN_WIDE) * (int)sizeof(float) };

/* Kept p and ds (without its scale; frozen: not at all) of a tile of queries and one of keys: this thread's 4 by 4. */
template <class T, bool FROZEN>
__device__ __forceinline__ void plain_probabilities(float (&p)[4][4], float (&ds)[4][4], const plain_gradient<T> &g,
                                                    const attention_dropout &drop, const attention_place &at, int query,
                                                    int key, float *space)
{
	const attention &a = g.a;
	const int64_t stride = 3 * a.d, channel = (int64_t)at.head * a.dh;
	const T *from = g.qkv + at.row * stride + channel, *dy = g.dy + (at.row + query) * a.d + channel;
	plain_products<T>(p, {from + query * stride, stride, a.length - query},
	                  {from + key * stride + a.d, stride, a.length - key}, a.dh, space);
	if constexpr (!FROZEN)
		plain_products<T>(ds, {dy, a.d, a.length - query},
		                  {from + key * stride + 2 * a.d, stride, a.length - key}, a.dh, space);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = query + plain_row() + i, column = key + plain_column();
		const int64_t number = at.chain * a.length + row;
		const float level = row < a.length ? g.level[number] : INFINITY,
		            along = row < a.length ? g.along[number] : 0.0f;
		const unsigned kept = a.rng ? attention_kept(drop, row, column) : 15;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const bool seen = attention_sees(a, row, column + j) && attention_key(a, at.row, column + j);
			const float probability = seen ? expf(a.scale * p[i][j] - level) : 0.0f;
			const bool keep = kept >> j & 1;
			p[i][j] = keep ? probability : 0.0f;
			if constexpr (!FROZEN)
				ds[i][j] = probability * ((keep ? drop.factor * ds[i][j] : 0.0f) - along);
		}
	}
}

template <class T, bool FROZEN> __global__ void __launch_bounds__(PLAIN_THREADS, 1) keys_plain(plain_gradient<T> g)
{
	constexpr int TILE = ATTENTION_TILE;
	const attention &a = g.a;
	float *space = shared_memory<float>(), *p = space + 2 * TILE * PLAIN_PITCH, *ds = p + TILE * PLAIN_WIDE,
	      *rows = ds + TILE * PLAIN_WIDE;
	const attention_place at = attention_here(a, TILE, false);
	const attention_dropout drop = attention_drop(a, at.chain);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, past = attention_end(a, min(at.first + TILE, a.length));
	const int64_t stride = 3 * a.d, channel = (int64_t)at.head * a.dh + column;
	float dk[4][4] = {}, dv[4][4] = {};
	for (int query = at.first; query < past; query += TILE) {
		float s[4][4], t[4][4];
		plain_probabilities<T, FROZEN>(s, t, g, drop, at, query, at.first, space);
		plain_keep(p, s);
		if constexpr (!FROZEN)
			plain_keep(ds, t);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, g.dy + (at.row + query) * a.d + channel, a.d,
		                                      a.length - query, a.dh - column);
		__syncthreads();
		plain_accumulate<true>(dv, p, rows);
		__syncthreads();
		if constexpr (FROZEN)
			continue;
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, g.qkv + (at.row + query) * stride + channel, stride,
		                                      a.length - query, a.dh - column);
		__syncthreads();
		plain_accumulate<true>(dk, ds, rows);
		__syncthreads();
	}
	T *to = g.dqkv + (at.row + at.first) * stride + channel;
	if constexpr (FROZEN)
		plain_store(dk, 0.0f, to, stride, a.length - at.first, a.dh - column);
	plain_store(dk, a.scale, to + a.d, stride, a.length - at.first, a.dh - column);
	plain_store(dv, drop.factor, to + 2 * a.d, stride, a.length - at.first, a.dh - column);
}

template <class T> __global__ void __launch_bounds__(PLAIN_THREADS, 1) queries_plain(plain_gradient<T> g)
{
	constexpr int TILE = ATTENTION_TILE;
	const attention &a = g.a;
	float *space = shared_memory<float>(), *ds = space + 2 * TILE * PLAIN_PITCH, *rows = ds + TILE * PLAIN_WIDE;
	const attention_place at = attention_here(a, TILE, true);
	const attention_dropout drop = attention_drop(a, at.chain);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, past = min(at.first + TILE, a.length);
	const int64_t stride = 3 * a.d, channel = (int64_t)at.head * a.dh + column;
	float dq[4][4] = {};
	for (int key = attention_begin(a, at.first); key < past; key += TILE) {
		float s[4][4], t[4][4];
		plain_probabilities<T, false>(s, t, g, drop, at, at.first, key, space);
		plain_keep(ds, t);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, g.qkv + (at.row + key) * stride + a.d + channel, stride,
		                                      a.length - key, a.dh - column);
		__syncthreads();
		plain_accumulate<false>(dq, ds, rows);
		__syncthreads();
	}
	plain_store(dq, a.scale, g.dqkv + (at.row + at.first) * stride + channel, stride, a.length - at.first,
	            a.dh - column);
}

/* --- the op --------------------------------------------------------------------------------------- */

/* level and along, [B, H, N] each. */
size_t cuda_softmax_attention_grad_scratch(const backend *, const op_call *call)
{
	return 2 * (size_t)shape_count(call->in[4].shape) * sizeof(float);
}

template <class T>
static status issue_prepare(backend *b, const op_call *call, const attention &a, float unit, float *level, float *along)
{
	const int64_t rows = shape_rows(call->in[3].shape);
	auto kernel = cuda_packs(call->in[3].type, a.dh) ? prepare<T, true> : prepare<T, false>;
	return cuda_launch(b, kernel, cuda_blocks(b, rows * a.heads, PREPARE_THREADS / GROUP), PREPARE_THREADS, 0, a,
	                   rows, (const T *)call->in[3].data, (const T *)call->in[5].data,
	                   (const float *)call->in[4].data, unit, level, along);
}

template <class T>
static status issue_plain(backend *b, const op_call *call, const attention &a, float *level, float *along)
{
	const plain_gradient<T> g = {a,     (const T *)call->in[0].data, (const T *)call->in[5].data, level,
	                             along, (T *)call->out[0].data};
	const dim3 grid(attention_grid(call, a, ATTENTION_TILE), attention_slices(a));
	TRY(issue_prepare<T>(b, call, a, 1.0f, level, along));
	if (((const softmax_params *)call->params)->frozen)
		return cuda_launch(b, keys_plain<T, true>, grid, PLAIN_THREADS, PLAIN_SPACE, g);
	TRY(cuda_launch(b, keys_plain<T, false>, grid, PLAIN_THREADS, PLAIN_SPACE, g));
	return cuda_launch(b, queries_plain<T>, grid, PLAIN_THREADS, PLAIN_SPACE, g);
}

static status issue_mma(backend *b, const op_call *call, const attention &a, float *level, float *along)
{
	const gradient g = {a,     (const bf16 *)call->in[0].data, (const bf16 *)call->in[5].data, level,
	                    along, (bf16 *)call->out[0].data};
	const unsigned grid = attention_grid(call, a, ATTENTION_TILE);
	TRY(issue_prepare<bf16>(b, call, a, LOG2_E, level, along));
	return attention_by_shape(a, [&](auto width, auto drops) {
		constexpr int W = decltype(width)::value;
		constexpr bool D = decltype(drops)::value;
		TRY(cuda_launch(b, keys_mma<W, D>, grid, MMA_THREADS, space_of<W>::BYTES, g));
		return cuda_launch(b, queries_mma<W, D>, grid, MMA_THREADS, space_of<W>::TILES, g);
	});
}

status cuda_softmax_attention_grad(backend *b, const op_call *call)
{
	const attention a = attention_of(call);
	float *level = (float *)call->scratch, *along = level + shape_count(call->in[4].shape);
	if (!call->out[0].data || a.dh == 0)
		return STATUS_OK;
	if (attention_mma(call, a) && !((const softmax_params *)call->params)->frozen)
		return issue_mma(b, call, a, level, along);
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		return issue_plain<std::remove_pointer_t<decltype(type)>>(b, call, a, level, along);
	});
}
