/* softmax_attention.cuh - helpers for the kernels of softmax_attention and its gradient: the blocks' work, the keys
 * that a query sees, dropout, and tiles in shared memory.
 *
 * There are two sets of kernels. "mma": bf16 with heads of at most MMA_WIDTH channels, on tensor cores, 128 threads,
 * tiles of 64 rows of W channels (dh, and zeros up to W). "plain": all other calls, in f32 arithmetic, 256 threads,
 * tiles of 64 by 64, heads in slices of channels, so that dh may have any value. */
#ifndef CUDA_SOFTMAX_ATTENTION_CUH
#define CUDA_SOFTMAX_ATTENTION_CUH

#include <type_traits>

#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "engine/base/philox.h"
#include "cuda/ptx.cuh"

extern "C" {
#include "engine/tensor/ops/softmax_attention.h"
}

enum {
	ATTENTION_TILE = 64,
	MMA_THREADS = 128,
	MMA_WIDTH = 128,
	PLAIN_THREADS = 256,
	PLAIN_COLUMNS = 64, /* channels of the result per block */
	PLAIN_SLICE = 32,   /* channels of a product at a time */
	PLAIN_PITCH = PLAIN_SLICE + 1,
	PLAIN_WIDE = ATTENTION_TILE + 4, /* a multiple of 16 bytes */
};
#define LOG2_E 1.4426950408889634f
#define LN_2 0.69314718055994531f

/* --- the call ----------------------------------------------------------------------------- */

/* Arguments of the call. Positions are among the keys: query i is at i + shift. */
struct attention {
	int queries, keys, shift, window, ahead, heads, group, dh, dv;
	int64_t chains;                     /* B · H */
	int64_t q_row, k_row, v_row, y_row; /* elements from one token to the next */
	const int32_t *mask;                /* may be NULL */
	const int32_t *rng;                 /* NULL: no dropout */
	const float *bias;                  /* may be NULL */
	int bias_first, bias_count;
	float scale, p;
	uint32_t stream;
};

static inline attention attention_of(const op_call *call)
{
	const softmax_params *p = (const softmax_params *)call->params;
	const softmax_layout l = softmax_layout_of(call);
	attention a = {};
	a.queries = (int)l.queries, a.keys = (int)l.keys, a.shift = (int)l.shift;
	a.window = (int)l.window, a.ahead = (int)l.ahead;
	a.chains = l.batch * l.heads;
	a.heads = (int)l.heads, a.group = (int)l.group, a.dh = (int)l.dh, a.dv = (int)l.dv;
	a.q_row = l.q_row, a.k_row = l.k_row, a.v_row = l.v_row, a.y_row = l.heads * l.dv;
	a.mask = (const int32_t *)cuda_optional(call, SOFTMAX_MASK);
	a.rng = p->p > 0 ? (const int32_t *)call->in[SOFTMAX_RNG].data : nullptr;
	a.bias = (const float *)cuda_optional(call, SOFTMAX_BIAS);
	a.bias_first = (int)p->bias_first;
	a.bias_count = a.bias ? (int)call->in[SOFTMAX_BIAS].shape.dim[0] : 0;
	a.scale = p->scale;
	a.p = p->p;
	a.stream = p->stream;
	return a;
}

static inline bool attention_mma(const op_call *call, const attention &a)
{
	return call->in[0].type == DTYPE_BF16 && a.dh > 0 && a.dv > 0 && a.dh <= MMA_WIDTH && a.dv <= MMA_WIDTH;
}

/* True if such a call is computed by wgmma (softmax_wgmma.cu), forward and backward. */
bool cuda_softmax_may_wgmma(const backend *b, const op_call *call, const attention &a);

/* Number of blocks: one per tile of `rows` of `count` tokens, head and sequence. */
static inline unsigned attention_grid(int64_t batch, int heads, int count, int rows)
{
	return cuda_extent(batch * heads * ((count + rows - 1) / rows));
}

/* Number of blocks that the channels of one result take, for the plain kernels. */
static inline unsigned attention_slices(int channels)
{
	return channels ? cuda_parts(channels, PLAIN_COLUMNS) : 1;
}

/* Call f with the width of a tile, whether there is dropout and whether there is a bias, as constant types. */
template <class F> status attention_by_shape(const attention &a, F f)
{
	auto biased = [&](auto width, auto drops) {
		return a.bias ? f(width, drops, std::true_type()) : f(width, drops, std::false_type());
	};
	auto with = [&](auto width) {
		return a.rng ? biased(width, std::true_type()) : biased(width, std::false_type());
	};
	const int widest = a.dh > a.dv ? a.dh : a.dv;
	if (widest <= 32)
		return with(std::integral_constant<int, 32>());
	if (widest <= 64)
		return with(std::integral_constant<int, 64>());
	return with(std::integral_constant<int, MMA_WIDTH>());
}

/* --- work of a block ------------------------------------------------------------------ */

struct attention_place {
	int64_t row, key_row;      /* index of the sequence's token 0 in [B·N] and in [B·S] */
	int sequence, head, first; /* first token of the tile */
};

/* The tile of this block: `rows` of `count` tokens of one of `of_heads` heads. Blocks go sequence by sequence, so that
 * its keys stay in the cache; the tiles with the most work come first. */
__device__ __forceinline__ attention_place attention_here(const attention &a, int count, int of_heads, int rows,
                                                          bool last_first)
{
	const unsigned tiles = (unsigned)((count + rows - 1) / rows), heads = (unsigned)of_heads;
	const unsigned sequence = blockIdx.x / (tiles * heads), rest = blockIdx.x % (tiles * heads);
	const unsigned tile = last_first ? tiles - 1 - rest / heads : rest / heads, head = rest % heads;
	return {(int64_t)sequence * a.queries, (int64_t)sequence * a.keys, (int)sequence, (int)head, (int)tile * rows};
}
__device__ __forceinline__ attention_place attention_queries_here(const attention &a, int rows)
{
	return attention_here(a, a.queries, a.heads, rows, true);
}

__device__ __forceinline__ attention_place attention_keys_here(const attention &a, int rows)
{
	return attention_here(a, a.keys, a.heads / a.group, rows, false);
}
/* Index of the head in [B·H]. */
__device__ __forceinline__ int64_t attention_chain(const attention &a, int sequence, int head)
{
	return (int64_t)sequence * a.heads + head;
}

/* First tile of keys that the query at `place` sees, and one past the last key that the query at `last` sees. */
__device__ __forceinline__ int attention_begin(const attention &a, int place)
{
	return place < a.window ? 0 : (place - a.window + 1) / ATTENTION_TILE * ATTENTION_TILE;
}
__device__ __forceinline__ int attention_past(const attention &a, int last)
{
	return a.ahead ? a.keys : last < 0 ? 0 : last + 1;
}
/* First tile of queries that see key `first`, and one past the last query that sees a key before `end`. */
__device__ __forceinline__ int attention_first_query(const attention &a, int first)
{
	return a.ahead || first < a.shift ? 0 : (first - a.shift) / ATTENTION_TILE * ATTENTION_TILE;
}
__device__ __forceinline__ int attention_end(const attention &a, int end)
{
	return end - 1 > a.keys - a.window ? a.queries : min(a.queries, max(0, end - 1 + a.window - a.shift));
}
/* True if the query sees the key, by the query's position. */
__device__ __forceinline__ bool attention_sees(const attention &a, int query, int key)
{
	return key - query <= a.ahead && query - key < a.window;
}
/* True if any query sees any key, apart from the mask; attention_all: if all see all. Both ranges are inclusive. */
__device__ __forceinline__ bool attention_any(const attention &a, int query, int last_query, int key, int last_key)
{
	return key - last_query <= a.ahead && query - last_key < a.window;
}
__device__ __forceinline__ bool attention_all(const attention &a, int query, int last_query, int key, int last_key)
{
	return last_key - query <= a.ahead && last_query - key < a.window;
}
/* True if the key exists and is not masked. row: index of the sequence's key 0. */
__device__ __forceinline__ bool attention_key(const attention &a, int64_t row, int key)
{
	return key < a.keys && (!a.mask || a.mask[row + key] != 0);
}
/* Bit l: key first + l exists and is not masked. For whole warps. */
__device__ __forceinline__ uint64_t attention_keys(const attention &a, int64_t row, int first)
{
	const int lane = threadIdx.x % WARP;
	unsigned low = __ballot_sync(ALL_LANES, attention_key(a, row, first + lane));
	unsigned high = __ballot_sync(ALL_LANES, attention_key(a, row, first + WARP + lane));
	return (uint64_t)high << WARP | low;
}

/* --- dropout ---------------------------------------------------------------------------------- */

struct attention_dropout {
	uint32_t seed[2], step, stream, least; /* least: a word below this is dropped */
	float factor;                          /* 1 / (1 - p) */
	uint64_t row; /* element (i, j) of this head is (row + i) · keys + j of [B, H, N, S] of all parts */
	int64_t keys;
};

__device__ __forceinline__ attention_dropout attention_drop(const attention &a, int64_t chain)
{
	attention_dropout drop = {};
	drop.factor = 1.0f;
	if (!a.rng)
		return drop;
	/* philox_uniform(word) >= p: the word's upper 24 bits are at least 2^24 p, both exact. */
	drop.least = (uint32_t)ceilf(a.p * 0x1p24f) << 8;
	drop.factor = 1.0f / (1.0f - a.p);
	drop.seed[0] = (uint32_t)a.rng[0], drop.seed[1] = (uint32_t)a.rng[1], drop.step = (uint32_t)a.rng[2];
	drop.stream = a.stream;
	drop.row = ((uint64_t)(uint32_t)a.rng[3] * (uint64_t)a.chains + (uint64_t)chain) * (uint64_t)a.queries;
	drop.keys = a.keys;
	return drop;
}

/* Bits of the four words of philox(seed, stream, step, index) whose elements are kept. */
__device__ __forceinline__ unsigned attention_kept_block(const attention_dropout &drop, uint64_t index)
{
	const philox_block random = philox((uint64_t)drop.seed[1] << 32 | drop.seed[0], drop.stream, drop.step, index);
	unsigned kept = 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		kept |= (unsigned)(random.word[i] >= drop.least) << i;
	return kept;
}

/* Bit l: (query, key + l) is kept, l < 4. Uses one block of words if S and key are multiples of 4. */
__device__ __forceinline__ unsigned attention_kept(const attention_dropout &drop, int query, int key)
{
	const uint64_t e = (drop.row + (uint64_t)query) * (uint64_t)drop.keys + (uint64_t)key;
	const unsigned past = (unsigned)(e % 4);
	unsigned kept = attention_kept_block(drop, e / 4);
	if (past)
		kept = (kept | attention_kept_block(drop, e / 4 + 1) << 4) >> past;
	return kept & 15;
}

/* Bit i: the element that this lane holds in d[i] of an mma's result is kept. Its rows are queries and its columns
 * keys, or the other way round. Each lane draws for one query and four keys, and ballots share the bits. */
template <bool transposed>
__device__ __forceinline__ unsigned attention_kept_mma(const attention_dropout &drop, int query, int key)
{
	const int lane = threadIdx.x % WARP, row = lane / 4, pair = lane % 4;
	const unsigned mine = transposed ? attention_kept(drop, query + lane % 8, key + lane / 8 * 4)
	                                 : attention_kept(drop, query + lane / 2, key + lane % 2 * 4);
	unsigned all[4]; /* for key % 4 */
#pragma unroll
	for (int i = 0; i < 4; i++)
		all[i] = __ballot_sync(ALL_LANES, (int)(mine >> i & 1));
	if (transposed) {
		const unsigned even = row % 2 ? all[1] : all[0], odd = row % 2 ? all[3] : all[2];
		const unsigned own = (row % 4 < 2 ? even : odd) >> (row / 4 * 8 + 2 * pair);
		return (own & 3) | (own >> 16 & 3) << 2;
	}
	const unsigned left = (pair % 2 ? all[2] : all[0]) >> (2 * row + pair / 2);
	const unsigned right = (pair % 2 ? all[3] : all[1]) >> (2 * row + pair / 2);
	return (left & 1) | (right & 1) << 1 | (left >> 16 & 1) << 2 | (right >> 16 & 1) << 3;
}

/* attention_kept_mma for `tiles` results side by side (columns rise), four bits each. */
template <bool transposed, int tiles>
__device__ __forceinline__ unsigned attention_kept_tiles(const attention_dropout &drop, int query, int key)
{
	unsigned kept = 0;
#pragma unroll 2
	for (int n = 0; n < tiles; n++)
		kept |= attention_kept_mma<transposed>(drop, query + (transposed ? 8 * n : 0),
		                                       key + (transposed ? 0 : 8 * n))
		        << 4 * n;
	return kept;
}

/* --- the bias ----------------------------------------------------------------------------------- */

/* The bias of a head at a distance; 0 at distances outside the table, which no visible pair has. */
__device__ __forceinline__ float attention_bias(const attention &a, int head, int distance)
{
	const int t = distance - a.bias_first;
	return t >= 0 && t < a.bias_count ? a.bias[(int64_t)t * a.heads + head] : 0.0f;
}

/* Load the biases of a tile of `rows` queries, the first at position `query`, and a tile of keys, in units of powers of
 * 2. The bias of row r and column c is at [r - c + ATTENTION_TILE - 1]. For MMA_THREADS threads. */
__device__ __forceinline__ void attention_load_bias(const attention &a, int head, int rows, int query, int key,
                                                    float *bias)
{
	for (int x = threadIdx.x; x < rows + ATTENTION_TILE - 1; x += MMA_THREADS)
		bias[x] = LOG2_E * attention_bias(a, head, query - key - (ATTENTION_TILE - 1) + x);
}

/* --- mma: tiles of bf16 in shared memory -------------------------------------------------------- */

/* Offset of element (row, column) in a tile of rows of W. 16-byte pieces are permuted within a row, so that the
 * piece of eight rows that a matrix load reads covers all banks. */
template <int W> __device__ __forceinline__ unsigned mma_at(unsigned row, unsigned column)
{
	const unsigned turn = W >= 64 ? row % 8 : row / 2 % 4;
	return row * W + (column ^ turn * 8);
}

/* Start to copy rows of dh channels into a tile, with zeros around them and from row `count` on. The caller waits. */
template <int W>
__device__ __forceinline__ void mma_load(bf16 *tile, int rows, const bf16 *from, int64_t stride, int count, int dh)
{
	if (dh % 8 == 0) {
		constexpr int STEP = MMA_THREADS / (W / 8); /* rows, a multiple of 8: keeps a row's permutation */
		const int first = (int)threadIdx.x / (W / 8), column = (int)threadIdx.x % (W / 8) * 8;
		bf16 *to = tile + mma_at<W>(first, column);
		const bf16 *source = from + first * stride + column;
		count = column < dh ? count - first : 0;
#pragma unroll 4
		for (int row = 0; row < rows; row += STEP, source += STEP * stride)
			copy_async(to + row * W, row < count ? source : from, row < count ? 16 : 0);
		return;
	}
	for (int i = threadIdx.x; i < rows * W; i += MMA_THREADS) {
		const int row = i / W, column = i % W;
		const bool exists = row < count && column < dh;
		tile[mma_at<W>(row, column)] = exists ? from[row * stride + column] : __float2bfloat16_rn(0.0f);
	}
}

/* Operands of an mma from a tile. a: rows from `row`, columns from `column`. b, for two results side by side: the tile
 * holds b's columns as its rows, or in mma_b_rows b's rows. row is a multiple of 8 and column of 16, so they do not
 * change the permutation. They are kept apart from the lane's place, since most are constants. */
template <int W> __device__ __forceinline__ void mma_a(unsigned a[4], const bf16 *tile, unsigned row, unsigned column)
{
	const unsigned lane = threadIdx.x % WARP;
	load_matrices(a, tile + (mma_at<W>(lane % 16, lane / 16 * 8) ^ column) + row * W);
}
template <int W> __device__ __forceinline__ void mma_b(unsigned b[4], const bf16 *tile, unsigned row, unsigned column)
{
	const unsigned lane = threadIdx.x % WARP;
	load_matrices(b, tile + (mma_at<W>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8) ^ column) + row * W);
}
template <int W>
__device__ __forceinline__ void mma_b_rows(unsigned b[4], const bf16 *tile, unsigned row, unsigned column)
{
	const unsigned lane = threadIdx.x % WARP;
	load_matrices_transposed(b, tile + (mma_at<W>(lane % 16, lane / 16 * 8) ^ column) + row * W);
}

/* Round two neighbouring results of an mma, 16 columns, to operand a of the next. */
__device__ __forceinline__ void mma_narrow(unsigned (&a)[4], const float (&left)[4], const float (&right)[4])
{
	a[0] = two_bf16(left[0], left[1]), a[1] = two_bf16(left[2], left[3]);
	a[2] = two_bf16(right[0], right[1]), a[3] = two_bf16(right[2], right[3]);
}

/* out [16, W] += a times 16 rows of a tile, for M pairs of out and a. */
template <int W, int M>
__device__ __forceinline__ void mma_accumulate(float (&out)[M][W / 8][4], const unsigned (&a)[M][4], const bf16 *tile,
                                               unsigned row)
{
#pragma unroll
	for (int n = 0; n < W / 8; n += 2) {
		unsigned b[4];
		mma_b_rows<W>(b, tile, row, 8 * n);
#pragma unroll
		for (int m = 0; m < M; m++) {
			mma_bf16(out[m][n], a[m], b);
			mma_bf16(out[m][n + 1], a[m], b + 2);
		}
	}
}

/* Store factor · out at `to`, with one factor for each of the lane's two rows. Uses the rows of a tile that belong to
 * this warp. */
template <int W>
__device__ __forceinline__ void mma_store(const float (&out)[W / 8][4], const float (&factor)[2], bf16 *tile, int row,
                                          bf16 *to, int64_t stride, int count, int dh)
{
	const int lane = threadIdx.x % WARP;
	__syncwarp();
#pragma unroll
	for (int n = 0; n < W / 8; n++)
#pragma unroll
		for (int half = 0; half < 2; half++)
			*(unsigned *)(tile + mma_at<W>(row + lane / 4 + 8 * half, 8 * n + lane % 4 * 2)) =
			    two_bf16(out[n][2 * half] * factor[half], out[n][2 * half + 1] * factor[half]);
	__syncwarp();
	if (dh % 8 == 0) {
		for (int i = lane; i < 16 * (W / 8); i += WARP) {
			const int r = row + i / (W / 8), column = i % (W / 8) * 8;
			if (r < count && column < dh)
				*(uint4 *)(to + r * stride + column) = *(const uint4 *)(tile + mma_at<W>(r, column));
		}
		return;
	}
	for (int i = lane; i < 16 * W; i += WARP) {
		const int r = row + i / W, column = i % W;
		if (r < count && column < dh)
			to[r * stride + column] = tile[mma_at<W>(r, column)];
	}
}

/* --- plain: products of 64 by 64, 4 by 4 of them a thread's --------------------------------------- */

/* First of this thread's four rows, and first of its four columns. */
__device__ __forceinline__ int plain_row()
{
	return (int)threadIdx.x / 16 * 4;
}
__device__ __forceinline__ int plain_column()
{
	return (int)threadIdx.x % 16 * 4;
}

/* Load a tile of `width` columns of rows as floats, with zeros outside. */
template <int width, int pitch, class T>
__device__ __forceinline__ void plain_load(float *tile, const T *from, int64_t stride, int count, int columns)
{
#pragma unroll 4
	for (int i = threadIdx.x; i < ATTENTION_TILE * width; i += PLAIN_THREADS) {
		const int row = i / width, column = i % width;
		tile[row * pitch + column] =
		    row < count && column < columns ? load_real(from + row * stride + column) : 0.0f;
	}
}

/* Rows of channels in global memory; `count` of them exist. */
template <class T> struct plain_rows {
	const T *at;
	int64_t stride;
	int count;
};

/* s = x yᵀ over dh channels; space: 2 · ATTENTION_TILE · PLAIN_PITCH floats. All threads; ends with a barrier. */
template <class T>
__device__ __forceinline__ void plain_products(float (&s)[4][4], plain_rows<T> x, plain_rows<T> y, int dh, float *space)
{
	float *a = space, *b = space + ATTENTION_TILE * PLAIN_PITCH;
	const float *row = a + plain_row() * PLAIN_PITCH, *column = b + plain_column() * PLAIN_PITCH;
#pragma unroll
	for (int i = 0; i < 16; i++)
		s[i / 4][i % 4] = 0.0f;
	for (int k = 0; k < dh; k += PLAIN_SLICE) {
		plain_load<PLAIN_SLICE, PLAIN_PITCH>(a, x.at + k, x.stride, x.count, dh - k);
		plain_load<PLAIN_SLICE, PLAIN_PITCH>(b, y.at + k, y.stride, y.count, dh - k);
		__syncthreads();
#pragma unroll 4
		for (int c = 0; c < PLAIN_SLICE; c++)
#pragma unroll
			for (int i = 0; i < 16; i++)
				s[i / 4][i % 4] += row[i / 4 * PLAIN_PITCH + c] * column[i % 4 * PLAIN_PITCH + c];
		__syncthreads();
	}
}

/* Store this thread's 4 by 4 of a tile for the other threads. */
__device__ __forceinline__ void plain_keep(float *tile, const float (&s)[4][4])
{
#pragma unroll
	for (int i = 0; i < 16; i++)
		tile[(plain_row() + i / 4) * PLAIN_WIDE + plain_column() + i % 4] = s[i / 4][i % 4];
}

/* out += p x, or pᵀ x, for tiles of 64 by 64 in shared memory of pitch PLAIN_WIDE. `depth`: columns of p (rows of pᵀ)
 * and rows of x that count. */
template <bool transposed>
__device__ __forceinline__ void plain_accumulate(float (&out)[4][4], const float *p, const float *x,
                                                 int depth = ATTENTION_TILE)
{
#pragma unroll 4
	for (int k = 0; k < depth; k++) {
		const float *row = transposed ? p + k * PLAIN_WIDE + plain_row() : p + plain_row() * PLAIN_WIDE + k;
		const float *column = x + k * PLAIN_WIDE + plain_column();
#pragma unroll
		for (int i = 0; i < 16; i++)
			out[i / 4][i % 4] += row[i / 4 * (transposed ? 1 : PLAIN_WIDE)] * column[i % 4];
	}
}

/* Store factor · out in rows of channels, from `column` on. */
template <class T>
__device__ __forceinline__ void plain_store(const float (&out)[4][4], float factor, T *to, int64_t stride, int count,
                                            int columns)
{
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int row = plain_row() + i / 4, column = plain_column() + i % 4;
		if (row < count && column < columns)
			store_real(to + row * stride + column, out[i / 4][i % 4] * factor);
	}
}

#endif
