/* softmax_attention_grad: the probabilities are recomputed from the scores and log_normalizer (Dao et al. 2022).
 *
 *   D_i = dy_i·y_i, and p_ij = e^{s_ij - M_i} with M = +inf for a query that sees nothing, so that its p are 0
 *   ds_ij = p_ij (drop(dy_i·v_j) - D_i);  dq_i = scale Σ_j ds_ij k_j;  dbias[t] = Σ_{t_i - j = t} ds_ij
 *   dk_j = scale Σ_i ds_ij q_i;  dv_j = Σ_i drop(p_ij) dy_i
 *
 * Over 600 lines, since its launches share their walks over tiles. What runs by wgmma is in softmax_wgmma_grad.cu.
 *
 * There are three launches, without atomics, so that two runs give the same bits. The first stores D and M as [B, H, N]
 * in scratch. For dk and dv, a block per tile of keys walks over the tiles of queries that see it, in every head that
 * reads the keys. For dq, a block per tile of queries walks over the tiles of keys that it sees. Scores and dy vᵀ are
 * computed twice, 7 products instead of 5, so that no sum spans blocks. Work is O(N · window).
 *
 * A bias needs them once more. A block per BAND distances of a head walks over its part of the tiles of queries. It
 * reads each with the keys at these distances (BAND of BAND + ATTENTION_TILE count), and sums diagonals. The parts are
 * added in order. With `uniform` a last kernel adds dy / S to dv for the queries that see nothing.
 *
 * mma (bf16): 4 warps of 16 keys (of sᵀ = k qᵀ) or 16 queries. The other side is loaded 64 rows at a time, while the
 * previous ones are used, and multiplied 32 at a time. p is exp2.approx of one fma of the score, here and by wgmma. p
 * and ds are rounded to bf16 for the last products; every sum is f32. Memory: qkv, y, dy and dqkv once, 16 D bytes per
 * token in bf16. In addition each tile reads the tiles of the other side, which are expected in the L2 cache.
 *
 * plain (f32, and wide heads): a block also takes 64 channels of the result, and recomputes the scores for each 64.
 *
 * frozen (ds = 0): the plain kernel of keys without the products of ds, for any type, and zeros. Frozen networks are
 * f32. */
#include "cuda/kernels.h"
#include "cuda/softmax_blind.cuh"
#include "cuda/softmax_gradient.cuh"

/* --- D and M -------------------------------------------------------------------------------- */

enum { PREPARE_THREADS = 256, GROUP = 8 /* lanes per row of a head */ };

/* level = unit · M, along = D, both [B, H, N]. */
template <class T, bool packs>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare(attention a, int64_t rows, const T *y, const T *dy, const float *log_normalizer, float unit, float *level,
            float *along)
{
	const int64_t count = rows * a.heads;
	for (int64_t first = (int64_t)blockIdx.x * (PREPARE_THREADS / GROUP); first < count;
	     first += (int64_t)gridDim.x * (PREPARE_THREADS / GROUP)) {
		const int64_t i = first + threadIdx.x / GROUP; /* index in [B, N, H] */
		const int lane = threadIdx.x % GROUP;
		const T *left = y + i * a.dv, *right = dy + i * a.dv;
		float sum = 0.0f;
		if (packs) {
			for (int c = lane * pack<T>::N; i < count && c < a.dv; c += GROUP * pack<T>::N) {
				const pack<T> u = load_pack(left + c), v = load_pack(right + c);
#pragma unroll
				for (int k = 0; k < pack<T>::N; k++)
					sum += u.at[k] * v.at[k];
			}
		} else {
			for (int c = lane; i < count && c < a.dv; c += GROUP)
				sum += load_real(left + c) * load_real(right + c);
		}
		sum = warp_sum<GROUP>(sum);
		if (lane == 0 && i < count) {
			const int64_t token = i / a.heads,
			              to =
			                  ((token / a.queries) * a.heads + i % a.heads) * a.queries + token % a.queries;
			const float m = log_normalizer[i];
			level[to] = m == -INFINITY ? INFINITY : m * unit;
			along[to] = sum;
		}
	}
}

/* --- mma -------------------------------------------------------------------------------------- */

enum { HALF = ATTENTION_TILE / 2 };

/* 16 rows of a tile from `row` on as an operand; kept in registers from `hold` on where there are enough. */
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

/* s = x yᵀ: 16 rows by 32 rows of tile y from `row` on. */
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

/* out += s (as sᵀ) [16, 32] times 32 rows of a tile. */
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

enum { BIAS = 2 * ATTENTION_TILE /* biases of a pair of tiles, floats */ };

template <int W> struct space_of {
	enum {
		TILES = 6 * ATTENTION_TILE * W * (int)sizeof(bf16),
		NUMBERS = TILES + 4 * ATTENTION_TILE * (int)sizeof(float),
		MORE = 2 * BIAS * (int)sizeof(float) /* added by a bias */
	};
};

template <int W, bool drops, bool biased> __global__ void __launch_bounds__(MMA_THREADS, 2) keys_mma(gradient<bf16> g)
{
	constexpr int TILE = ATTENTION_TILE, SIZE = TILE * W;
	const attention &a = g.a;
	bf16 *key = shared_memory<bf16>(), *value = key + SIZE, *queries = value + SIZE,
	     *gradients = queries + 2 * SIZE;
	float *numbers = shared_memory<float>(space_of<W>::TILES); /* level and along, twice */
	float *bias = shared_memory<float>(space_of<W>::NUMBERS);
	const attention_place at = attention_keys_here(a, TILE);
	attention_dropout drop = {};
	drop.factor = 1.0f;
	const int row = (int)threadIdx.x / WARP * 16, first = at.first + row;
	const int begin = attention_first_query(a, at.first), past = attention_end(a, min(at.first + TILE, a.keys));
	const own_keys own = own_keys_at(a, at.key_row, first);
	auto fetch = [&](int n, int query, int turn) {
		const of_head<bf16> h = head_at(g, at.sequence, n);
		mma_load<W>(queries + turn * SIZE, TILE, h.q + query * a.q_row, a.q_row, a.queries - query, a.dh);
		mma_load<W>(gradients + turn * SIZE, TILE, h.dy + query * a.y_row, a.y_row, a.queries - query, a.dv);
		const int i = threadIdx.x % TILE, along = (int)threadIdx.x / TILE;
		numbers[(2 * turn + along) * TILE + i] = along ? along_of(a, h, query + i) : level_of(a, h, query + i);
		if constexpr (biased)
			attention_load_bias(a, n, TILE, query + a.shift, at.first, bias + turn * BIAS);
	};
	float dk[1][W / 8][4] = {}, dv[1][W / 8][4] = {};
	held<W> k = {key, row, {}}, v = {value, row, {}};
	const int64_t to = at.key_row + at.first;
	mma_load<W>(key, TILE, g.k + to * a.k_row + at.head * a.dh, a.k_row, a.keys - at.first, a.dh);
	mma_load<W>(value, TILE, g.v + to * a.v_row + at.head * a.dv, a.v_row, a.keys - at.first, a.dv);
#pragma unroll 1
	for (int n = at.head * a.group; n < (at.head + 1) * a.group; n++) {
		if constexpr (drops)
			drop = attention_drop(a, attention_chain(a, at.sequence, n));
		if (begin < past)
			fetch(n, begin, 0);
		copy_commit();
		for (int query = begin, turn = 0; query < past; query += TILE, turn ^= 1) {
			if (query + TILE < past)
				fetch(n, query + TILE, turn ^ 1);
			copy_commit();
			copy_wait<1>();
			__syncthreads();
			if (query == begin && n == at.head * a.group)
				hold(k), hold(v);
#pragma unroll 1
			for (int half = 0; half < TILE; half += HALF) {
				const int place = query + half + a.shift;
				if (!attention_any(a, place, place + HALF - 1, first, first + 15))
					continue;
				const float *level = numbers + 2 * turn * TILE + half;
				float s[4][4], t[4][4];
				score<W>(s, k, queries + turn * SIZE, half);
				score<W>(t, v, gradients + turn * SIZE, half);
				const unsigned kept =
				    drops ? attention_kept_tiles<true, 4>(drop, query + half, first) : 0;
				keys_by_queries<drops, biased>(s, t, a, kept, drop.factor, level, level + TILE,
				                               query + half, own,
				                               bias + turn * BIAS + TILE - 1 + half - row);
				accumulate<W>(dv, s, gradients + turn * SIZE, half);
				accumulate<W>(dk, t, queries + turn * SIZE, half);
			}
			__syncthreads();
		}
	}
	copy_wait<0>();
	__syncthreads();
	if (g.dk)
		mma_store<W>(dk[0], {a.scale, a.scale}, key, row, g.dk + to * a.k_row + at.head * a.dh, a.k_row,
		             a.keys - at.first, a.dh);
	if (g.dv)
		mma_store<W>(dv[0], {drop.factor, drop.factor}, value, row, g.dv + to * a.v_row + at.head * a.dv,
		             a.v_row, a.keys - at.first, a.dv);
}

template <int W, bool drops, bool biased>
__global__ void __launch_bounds__(MMA_THREADS, 2) queries_mma(gradient<bf16> g)
{
	constexpr int TILE = ATTENTION_TILE, SIZE = TILE * W;
	const attention &a = g.a;
	bf16 *query = shared_memory<bf16>(), *dy = query + SIZE, *keys = dy + SIZE, *values = keys + 2 * SIZE;
	float *bias = shared_memory<float>(space_of<W>::TILES);
	const attention_place at = attention_queries_here(a, TILE);
	const of_head<bf16> h = head_at(g, at.sequence, at.head);
	const int row = (int)threadIdx.x / WARP * 16, first = at.first + row, place = at.first + a.shift;
	const int begin = attention_begin(a, place),
	          past = attention_past(a, min(at.first + TILE, a.queries) - 1 + a.shift);
	auto fetch = [&](int key, int turn) {
		mma_load<W>(keys + turn * SIZE, TILE, h.k + key * a.k_row, a.k_row, a.keys - key, a.dh);
		mma_load<W>(values + turn * SIZE, TILE, h.v + key * a.v_row, a.v_row, a.keys - key, a.dv);
		if constexpr (biased)
			attention_load_bias(a, at.head, TILE, place, key, bias + turn * BIAS);
	};
	const own_queries own = own_queries_at(a, h, first);
	float dq[1][W / 8][4] = {};
	held<W> q = {query, row, {}}, d = {dy, row, {}};
	mma_load<W>(query, TILE, h.q + at.first * a.q_row, a.q_row, a.queries - at.first, a.dh);
	mma_load<W>(dy, TILE, h.dy + at.first * a.y_row, a.y_row, a.queries - at.first, a.dv);
	if (begin < past)
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
		const uint64_t present = attention_keys(a, at.key_row, key);
#pragma unroll 1
		for (int half = 0; half < TILE; half += HALF) {
			if (!attention_any(a, place + row, place + row + 15, key + half, key + half + HALF - 1))
				continue;
			float s[4][4], t[4][4];
			score<W>(s, q, keys + turn * SIZE, half);
			score<W>(t, d, values + turn * SIZE, half);
			const unsigned kept = drops ? attention_kept_tiles<false, 4>(h.drop, first, key + half) : 0;
			queries_by_keys<drops, biased>(s, t, a, kept, h.drop.factor, own, key + half, present >> half,
			                               bias + turn * BIAS + TILE - 1 + row - half);
			accumulate<W>(dq, t, keys + turn * SIZE, half);
		}
		__syncthreads();
	}
	copy_wait<0>();
	__syncthreads();
	mma_store<W>(dq[0], {a.scale, a.scale}, query, row, g.dq + (at.row + at.first) * a.q_row + at.head * a.dh,
	             a.q_row, a.queries - at.first, a.dh);
}

/* --- dbias ---------------------------------------------------------------------------------------- */

enum { BAND = 3 * ATTENTION_TILE, BAND_PARTS = 1024 /* number of blocks to aim at */ };

/* A block's distances `first` … first + BAND - 1. begin, past: the keys that a tile of queries at `place` has at
 * them. */
struct band {
	int first, begin, past;
};
__device__ __forceinline__ band band_at(const attention &a, int place, int last)
{
	band b = {a.bias_first + (int)blockIdx.x * BAND, 0, 0};
	b.begin = max(max(0, place - b.first - BAND + 1), place - a.window + 1);
	b.past = min(last - b.first + 1, min(a.keys, attention_past(a, last)));
	return b;
}

/* sums[t] += the elements of a tile [rows, columns] at distance first + t; element (0, 0) is at `distance`. This is
 * lane `lane` of `lanes`. */
__device__ __forceinline__ void sum_diagonals(const float *tile, int pitch, int rows, int columns, int distance,
                                              int first, int lane, int lanes, float *sums)
{
	for (int x = lane; x < rows + columns - 1; x += lanes) {
		const int t = distance - (columns - 1) + x - first; /* row - column = x - (columns - 1) */
		float sum = 0.0f;
		for (int r = max(0, x - columns + 1); r < min(rows, x + 1); r++)
			sum += tile[r * pitch + r + columns - 1 - x];
		if (t >= 0 && t < BAND)
			sums[t] += sum;
	}
}

/* Store the block's part of dbias, from `groups` of sums, after a barrier. */
__device__ __forceinline__ void store_band(const attention &a, const float *sums, int groups, float *to)
{
	for (int x = (int)threadIdx.x; x < BAND; x += (int)blockDim.x) {
		const int t = (int)blockIdx.x * BAND + x;
		float sum = 0.0f;
		for (int i = 0; i < groups; i++)
			sum += sums[i * BAND + x];
		if (t < a.bias_count)
			to[((int64_t)blockIdx.z * a.bias_count + t) * a.heads + blockIdx.y] = sum;
	}
}

template <int W> struct band_space {
	enum {
		TILES = 4 * ATTENTION_TILE * W * (int)sizeof(bf16),
		WARPS = MMA_THREADS / WARP,
		PITCH = HALF + 1,
		BYTES = TILES + (BIAS + WARPS * (BAND + 16 * PITCH)) * (int)sizeof(float)
	};
};

template <int W, bool drops>
__global__ void __launch_bounds__(MMA_THREADS, 2) bias_mma(gradient<bf16> g, int sequences, float *to)
{
	constexpr int TILE = ATTENTION_TILE, SIZE = TILE * W, WARPS = band_space<W>::WARPS,
	              PITCH = band_space<W>::PITCH;
	const attention &a = g.a;
	bf16 *query = shared_memory<bf16>(), *dy = query + SIZE, *keys = dy + SIZE, *values = keys + SIZE;
	float *bias = shared_memory<float>(band_space<W>::TILES), *sums = bias + BIAS;
	const int warp = (int)threadIdx.x / WARP, lane = threadIdx.x % WARP, row = warp * 16;
	float *mine = sums + WARPS * BAND + warp * 16 * PITCH;
	const int head = (int)blockIdx.y, tiles = (a.queries + TILE - 1) / TILE;
	for (int i = (int)threadIdx.x; i < WARPS * BAND; i += MMA_THREADS)
		sums[i] = 0.0f;
	for (int item = (int)blockIdx.z; item < sequences * tiles; item += (int)gridDim.z) {
		const int sequence = item / tiles, from = item % tiles * TILE, place = from + a.shift;
		const band b = band_at(a, place, min(from + TILE, a.queries) - 1 + a.shift);
		const of_head<bf16> h = head_at(g, sequence, head);
		const own_queries own = own_queries_at(a, h, from + row);
		held<W> q = {query, row, {}}, d = {dy, row, {}};
		for (int key = b.begin; key < b.past; key += TILE) {
			__syncthreads();
			if (key == b.begin) {
				mma_load<W>(query, TILE, h.q + from * a.q_row, a.q_row, a.queries - from, a.dh);
				mma_load<W>(dy, TILE, h.dy + from * a.y_row, a.y_row, a.queries - from, a.dv);
			}
			mma_load<W>(keys, TILE, h.k + key * a.k_row, a.k_row, a.keys - key, a.dh);
			mma_load<W>(values, TILE, h.v + key * a.v_row, a.v_row, a.keys - key, a.dv);
			attention_load_bias(a, head, TILE, place, key, bias);
			copy_commit();
			copy_wait<0>();
			__syncthreads();
			if (key == b.begin)
				hold(q), hold(d);
			const uint64_t present = attention_keys(a, (int64_t)sequence * a.keys, key);
#pragma unroll 1
			for (int half = 0; half < TILE; half += HALF) {
				if (!attention_any(a, place + row, place + row + 15, key + half, key + half + HALF - 1))
					continue;
				float s[4][4], t[4][4];
				score<W>(s, q, keys, half);
				score<W>(t, d, values, half);
				const unsigned kept =
				    drops ? attention_kept_tiles<false, 4>(h.drop, from + row, key + half) : 0;
				queries_by_keys<drops, true>(s, t, a, kept, h.drop.factor, own, key + half, present >> half,
				                             bias + TILE - 1 + row - half);
#pragma unroll
				for (int i = 0; i < 16; i++)
					mine[(lane / 4 + i / 2 % 2 * 8) * PITCH + i / 4 * 8 + lane % 4 * 2 + i % 2] =
					    t[i / 4][i % 4];
				__syncwarp();
				sum_diagonals(mine, PITCH, 16, HALF, place + row - key - half, b.first, lane, WARP,
				              sums + warp * BAND);
				__syncwarp();
			}
		}
	}
	__syncthreads();
	store_band(a, sums, WARPS, to);
}

/* dbias = the sum of the parts. */
static __global__ void __launch_bounds__(PREPARE_THREADS) sum_parts(const float *parts, int n, int64_t count, float *to)
{
	for (int64_t i = (int64_t)blockIdx.x * PREPARE_THREADS + threadIdx.x; i < count;
	     i += (int64_t)gridDim.x * PREPARE_THREADS) {
		float sum = 0.0f;
		for (int part = 0; part < n; part++)
			sum += parts[part * count + i];
		to[i] = sum;
	}
}

/* --- plain -------------------------------------------------------------------------------------- */

enum { PLAIN_SPACE = (2 * ATTENTION_TILE * PLAIN_PITCH + 3 * ATTENTION_TILE * PLAIN_WIDE) * (int)sizeof(float) };

/* Kept p and ds (without its scale; not with frozen) of a tile of queries and one of keys: this thread's 4 by 4.
 * key_row: index of the sequence's key 0. */
template <class T, bool FROZEN>
__device__ __forceinline__ void plain_probabilities(float (&p)[4][4], float (&ds)[4][4], const attention &a,
                                                    const of_head<T> &h, int head, int64_t key_row, int query, int key,
                                                    float *space)
{
	plain_products<T>(p, {h.q + query * a.q_row, a.q_row, a.queries - query},
	                  {h.k + key * a.k_row, a.k_row, a.keys - key}, a.dh, space);
	if constexpr (!FROZEN)
		plain_products<T>(ds, {h.dy + query * a.y_row, a.y_row, a.queries - query},
		                  {h.v + key * a.v_row, a.v_row, a.keys - key}, a.dv, space);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = query + plain_row() + i, place = row + a.shift, column = key + plain_column();
		const float level = row < a.queries ? h.level[row] : INFINITY,
		            along = row < a.queries ? h.along[row] : 0.0f;
		const unsigned kept = a.rng ? attention_kept(h.drop, row, column) : 15;
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const bool seen = attention_sees(a, place, column + j) && attention_key(a, key_row, column + j);
			const float bias = a.bias ? attention_bias(a, head, place - column - j) : 0.0f;
			const float probability = seen ? expf(a.scale * p[i][j] + bias - level) : 0.0f;
			const bool keep = kept >> j & 1;
			p[i][j] = keep ? probability : 0.0f;
			if constexpr (!FROZEN)
				ds[i][j] = probability * ((keep ? h.drop.factor * ds[i][j] : 0.0f) - along);
		}
	}
}

template <class T, bool FROZEN> __global__ void __launch_bounds__(PLAIN_THREADS, 1) keys_plain(gradient<T> g)
{
	constexpr int TILE = ATTENTION_TILE;
	const attention &a = g.a;
	float *space = shared_memory<float>(), *p = space + 2 * TILE * PLAIN_PITCH, *ds = p + TILE * PLAIN_WIDE,
	      *rows = ds + TILE * PLAIN_WIDE;
	const attention_place at = attention_keys_here(a, TILE);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, past = attention_end(a, min(at.first + TILE, a.keys));
	float dk[4][4] = {}, dv[4][4] = {}, factor = 1.0f;
	for (int n = at.head * a.group; n < (at.head + 1) * a.group; n++) {
		const of_head<T> h = head_at(g, at.sequence, n);
		factor = h.drop.factor;
		for (int query = attention_first_query(a, at.first); query < past; query += TILE) {
			float s[4][4], t[4][4];
			plain_probabilities<T, FROZEN>(s, t, a, h, n, at.key_row, query, at.first, space);
			plain_keep(p, s);
			if constexpr (!FROZEN)
				plain_keep(ds, t);
			plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, h.dy + query * a.y_row + column, a.y_row,
			                                      a.queries - query, a.dv - column);
			__syncthreads();
			plain_accumulate<true>(dv, p, rows);
			__syncthreads();
			if constexpr (FROZEN)
				continue;
			plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, h.q + query * a.q_row + column, a.q_row,
			                                      a.queries - query, a.dh - column);
			__syncthreads();
			plain_accumulate<true>(dk, ds, rows);
			__syncthreads();
		}
	}
	const int64_t to = at.key_row + at.first;
	if (g.dk)
		plain_store(dk, a.scale, g.dk + to * a.k_row + (int64_t)at.head * a.dh + column, a.k_row,
		            a.keys - at.first, a.dh - column);
	if (g.dv)
		plain_store(dv, factor, g.dv + to * a.v_row + (int64_t)at.head * a.dv + column, a.v_row,
		            a.keys - at.first, a.dv - column);
}

/* ZERO: dq is zero, so only zeros are stored. */
template <class T, bool ZERO> __global__ void __launch_bounds__(PLAIN_THREADS, 1) queries_plain(gradient<T> g)
{
	constexpr int TILE = ATTENTION_TILE;
	const attention &a = g.a;
	float *space = shared_memory<float>(), *ds = space + 2 * TILE * PLAIN_PITCH, *rows = ds + TILE * PLAIN_WIDE;
	const attention_place at = attention_queries_here(a, TILE);
	const of_head<T> h = head_at(g, at.sequence, at.head);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, place = at.first + a.shift;
	const int past = ZERO ? 0 : attention_past(a, min(at.first + TILE, a.queries) - 1 + a.shift);
	float dq[4][4] = {};
	for (int key = attention_begin(a, place); key < past; key += TILE) {
		float s[4][4], t[4][4];
		plain_probabilities<T, false>(s, t, a, h, at.head, at.key_row, at.first, key, space);
		plain_keep(ds, t);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, h.k + key * a.k_row + column, a.k_row, a.keys - key,
		                                      a.dh - column);
		__syncthreads();
		plain_accumulate<false>(dq, ds, rows);
		__syncthreads();
	}
	plain_store(dq, a.scale, g.dq + (at.row + at.first) * a.q_row + (int64_t)at.head * a.dh + column, a.q_row,
	            a.queries - at.first, a.dh - column);
}

enum { BAND_GROUPS = PLAIN_THREADS / (2 * ATTENTION_TILE) /* rows of a tile, whose diagonals are summed separately */ };

/* ZERO: dbias is zero, so only zeros are stored. */
template <class T, bool ZERO>
__global__ void __launch_bounds__(PLAIN_THREADS, 1) bias_plain(gradient<T> g, int sequences, float *to)
{
	constexpr int TILE = ATTENTION_TILE, LANES = 2 * TILE, ROWS = TILE / BAND_GROUPS;
	const attention &a = g.a;
	float *space = shared_memory<float>(), *ds = space + 2 * TILE * PLAIN_PITCH, *sums = ds + TILE * PLAIN_WIDE;
	const int head = (int)blockIdx.y, tiles = (a.queries + TILE - 1) / TILE, group = (int)threadIdx.x / LANES;
	for (int i = (int)threadIdx.x; i < BAND_GROUPS * BAND; i += PLAIN_THREADS)
		sums[i] = 0.0f;
	__syncthreads();
	for (int item = (int)blockIdx.z; item < sequences * tiles && !ZERO; item += (int)gridDim.z) {
		const int sequence = item / tiles, from = item % tiles * TILE, place = from + a.shift;
		const band b = band_at(a, place, min(from + TILE, a.queries) - 1 + a.shift);
		const of_head<T> h = head_at(g, sequence, head);
		for (int key = b.begin; key < b.past; key += TILE) {
			float s[4][4], t[4][4];
			plain_probabilities<T, false>(s, t, a, h, head, (int64_t)sequence * a.keys, from, key, space);
			plain_keep(ds, t);
			__syncthreads();
			sum_diagonals(ds + group * ROWS * PLAIN_WIDE, PLAIN_WIDE, ROWS, TILE,
			              place + group * ROWS - key, b.first, (int)threadIdx.x % LANES, LANES,
			              sums + group * BAND);
			__syncthreads();
		}
	}
	store_band(a, sums, BAND_GROUPS, to);
}

/* --- uniform -------------------------------------------------------------------------------------- */

/* dv_j += Σ_i drop(1 / S) dy_i over the queries that see nothing. One sequence; a block per key and head of keys, a
 * thread per channel. */
template <class T>
__device__ __forceinline__ void values_blind_sequence(const gradient<T> &g, const int32_t *list, unsigned sequence)
{
	const attention &a = g.a;
	const int head = (int)blockIdx.y, count = blind_count(a, list, sequence);
	for (int j = (int)blockIdx.x; j < a.keys && count; j += (int)gridDim.x) {
		for (int c = (int)threadIdx.x; c < a.dv; c += BLIND_THREADS) {
			float sum = 0.0f, factor = 1.0f;
			for (int m = 0; m < a.group; m++) {
				const of_head<T> h = head_at(g, (int)sequence, head * a.group + m);
				factor = h.drop.factor;
				for (int n = 0; n < count; n++) {
					const int query = blind_query(a, list, sequence, n);
					if (blind_keeps(a, h.drop, query, j))
						sum += load_real(h.dy + query * a.y_row + c);
				}
			}
			T *to = g.dv + ((int64_t)sequence * a.keys + j) * a.v_row + (int64_t)head * a.dv + c;
			store_real(to, load_real(to) + sum * factor / (float)a.keys);
		}
	}
}
template <class T>
__global__ void __launch_bounds__(BLIND_THREADS) values_blind(gradient<T> g, unsigned batch, const int32_t *list)
{
	for (unsigned sequence = blockIdx.z; sequence < batch; sequence += gridDim.z)
		values_blind_sequence(g, list, sequence);
}

/* --- the op --------------------------------------------------------------------------------------- */

/* Number of bands, and number of parts into which a band's tiles of queries are divided, by the shapes alone. */
static int64_t bias_bands(const attention &a)
{
	return (a.bias_count + BAND - 1) / BAND;
}
static int64_t bias_parts(const op_call *call, const attention &a)
{
	const int64_t blocks = bias_bands(a) * a.heads, batch = call->in[0].shape.dim[0];
	const int64_t items = batch * ((a.queries + ATTENTION_TILE - 1) / ATTENTION_TILE);
	const int64_t parts = blocks ? (BAND_PARTS + blocks - 1) / blocks : 1;
	return items < 1 ? 1 : parts < items ? parts : items;
}

/* Bytes of level and along, [B, H, N] each. The parts of dbias and the lists of softmax_blind.cuh follow in scratch. */
static size_t numbers_bytes(const op_call *call)
{
	return 2 * (size_t)shape_count(call->in[SOFTMAX_LOG_NORMALIZER].shape) * sizeof(float);
}
static size_t parts_bytes(const op_call *call, const attention &a)
{
	return (size_t)(bias_parts(call, a) * a.bias_count * a.heads) * sizeof(float);
}
size_t cuda_softmax_attention_grad_scratch(const backend *, const op_call *call)
{
	return numbers_bytes(call) + parts_bytes(call, attention_of(call)) + blind_bytes(call);
}

template <class T> static status issue_prepare(backend *b, const op_call *call, const gradient<T> &g, float unit)
{
	const attention &a = g.a;
	const int64_t rows = shape_rows(call->in[SOFTMAX_Y].shape);
	auto kernel = cuda_packs(call->in[SOFTMAX_Y].type, a.dv) ? prepare<T, true> : prepare<T, false>;
	return cuda_launch(b, kernel, cuda_blocks(b, rows * a.heads, PREPARE_THREADS / GROUP), PREPARE_THREADS, 0, a,
	                   rows, (const T *)call->in[SOFTMAX_Y].data, g.dy,
	                   (const float *)call->in[SOFTMAX_LOG_NORMALIZER].data, unit, (float *)g.level,
	                   (float *)g.along);
}

/* kernel: computes the parts; dbias: their sum. */
template <class T, class F>
static status issue_bias(backend *b, const op_call *call, const gradient<T> &g, float *dbias, F kernel,
                         unsigned threads, size_t space)
{
	const attention &a = g.a;
	const int64_t parts = bias_parts(call, a), count = (int64_t)a.bias_count * a.heads;
	float *to = parts > 1 ? (float *)((char *)call->scratch + numbers_bytes(call)) : dbias;
	const dim3 grid(cuda_extent(bias_bands(a)), (unsigned)a.heads, cuda_extent(parts));
	TRY(cuda_launch(b, kernel, grid, threads, space, g, (int)call->in[0].shape.dim[0], to));
	if (parts == 1)
		return STATUS_OK;
	return cuda_launch(b, sum_parts, cuda_blocks(b, count, PREPARE_THREADS), PREPARE_THREADS, 0, to, (int)parts,
	                   count, dbias);
}

template <class T, bool FROZEN>
static status issue_plain(backend *b, const op_call *call, const gradient<T> &g, float *dbias)
{
	const attention &a = g.a;
	const int64_t batch = call->in[0].shape.dim[0];
	TRY(issue_prepare<T>(b, call, g, 1.0f));
	if (g.dk || g.dv) {
		const dim3 grid(attention_grid(batch, a.heads / a.group, a.keys, ATTENTION_TILE),
		                attention_slices(a.dh > a.dv ? a.dh : a.dv));
		TRY(cuda_launch(b, keys_plain<T, FROZEN>, grid, PLAIN_THREADS, PLAIN_SPACE, g));
	}
	if (g.dq) {
		const dim3 grid(attention_grid(batch, a.heads, a.queries, ATTENTION_TILE), attention_slices(a.dh));
		TRY(cuda_launch(b, queries_plain<T, FROZEN>, grid, PLAIN_THREADS, PLAIN_SPACE, g));
	}
	return dbias ? issue_bias(b, call, g, dbias, bias_plain<T, FROZEN>, PLAIN_THREADS, PLAIN_SPACE) : STATUS_OK;
}

static status issue_mma(backend *b, const op_call *call, const gradient<bf16> &g, float *dbias)
{
	const attention &a = g.a;
	const int64_t batch = call->in[0].shape.dim[0];
	TRY(issue_prepare<bf16>(b, call, g, LOG2_E));
	if (cuda_softmax_may_wgmma(b, call, a))
		return cuda_softmax_wgmma_grad(b, batch, g);
	return attention_by_shape(a, [&](auto width, auto drops, auto biased) {
		constexpr int W = decltype(width)::value;
		constexpr bool D = decltype(drops)::value, B = decltype(biased)::value;
		constexpr size_t more = B ? space_of<W>::MORE : 0;
		if (g.dk || g.dv)
			TRY(cuda_launch(b, keys_mma<W, D, B>,
			                attention_grid(batch, a.heads / a.group, a.keys, ATTENTION_TILE), MMA_THREADS,
			                space_of<W>::NUMBERS + more, g));
		if (g.dq)
			TRY(cuda_launch(b, queries_mma<W, D, B>,
			                attention_grid(batch, a.heads, a.queries, ATTENTION_TILE), MMA_THREADS,
			                space_of<W>::TILES + more, g));
		if constexpr (B) {
			if (dbias)
				return issue_bias(b, call, g, dbias, bias_mma<W, D>, MMA_THREADS, band_space<W>::BYTES);
		}
		return STATUS_OK;
	});
}

static status issue_whole(backend *b, const op_call *call, const gradient<bf16> &g, float *dbias)
{
	return attention_mma(call, g.a) ? issue_mma(b, call, g, dbias) : issue_plain<bf16, false>(b, call, g, dbias);
}
static status issue_whole(backend *b, const op_call *call, const gradient<float> &g, float *dbias)
{
	return issue_plain<float, false>(b, call, g, dbias);
}

template <class T> static T *output(const op_call *call, int o, int64_t offset)
{
	return call->out[o].data ? (T *)call->out[o].data + offset : nullptr;
}

template <class T> static status issue(backend *b, const op_call *call)
{
	const softmax_params *p = (const softmax_params *)call->params;
	const softmax_layout l = softmax_layout_of(call);
	const float *level = (const float *)call->scratch;
	const gradient<T> g = {attention_of(call),
	                       (const T *)call->in[0].data,
	                       (const T *)call->in[l.k_input].data + l.k_offset,
	                       (const T *)call->in[l.v_input].data + l.v_offset,
	                       (const T *)call->in[SOFTMAX_DY].data,
	                       level,
	                       level + shape_count(call->in[SOFTMAX_LOG_NORMALIZER].shape),
	                       output<T>(call, 0, 0),
	                       output<T>(call, l.k_input, l.k_offset),
	                       output<T>(call, l.v_input, l.v_offset)};
	float *dbias = g.a.bias ? (float *)call->out[3].data : nullptr;
	TRY((p->frozen ? issue_plain<T, true>(b, call, g, dbias) : issue_whole(b, call, g, dbias)));
	if (!p->uniform || !g.dv || g.a.keys == 0)
		return STATUS_OK;
	int32_t *list = (int32_t *)((char *)call->scratch + numbers_bytes(call) + parts_bytes(call, g.a));
	TRY(blind_issue(b, call, g.a, list));
	const unsigned keys = (unsigned)(g.a.keys < BLIND_KEYS ? g.a.keys : BLIND_KEYS);
	return cuda_launch(b, values_blind<T>, blind_grid(keys, (int)l.kv_heads, l.batch), BLIND_THREADS, 0, g,
	                   (unsigned)l.batch, list);
}

status cuda_softmax_attention_grad(backend *b, const op_call *call)
{
	return cuda_by_type(call->in[0].type,
	                    [&](auto *type) { return issue<std::remove_pointer_t<decltype(type)>>(b, call); });
}
