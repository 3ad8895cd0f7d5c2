/* softmax_attention in bf16 by wgmma (compute capability 9.0).
 *
 * A block has two groups of four warps and 64 queries each, and four warps that load. Keys and values pass through a ring in
 * shared memory. A stage has the keys of tile i and the values of tile i - 1, the operands that a group multiplies
 * together:
 *   out += p v of tile i - 1;  s = q kᵀ of tile i;  wait;  free the stage;  p = softmax of s (softmax_online.cuh)
 * While one group waits for its products, the other computes exponentials. Queries and p are operands in registers. The
 * sums are added in the order of attend_mma, so y and log_normalizer have its bits.
 *
 * Shared memory: 16-byte pieces of eight channels. Those of a tile's rows follow each other, as an 8 x 8 part of an
 * operand wants them. The next eight channels are PITCH bytes further, which puts the pieces of a row in different banks.
 * For s the columns of b, the keys, are contiguous, for out its rows.
 *
 * The loading warps use cp.async, since a bulk copy would keep a row's channels together. They request a stage as soon as
 * both groups have freed its place, and publish it once the next one is requested. */
#include "cuda/softmax_online.cuh"

template <int W> struct wgmma_attention {
	enum {
		TILE = ATTENTION_TILE,
		GROUPS = 2,
		GROUP_QUERIES = 64,
		QUERIES = GROUPS * GROUP_QUERIES,
		WARPS = 4 * GROUPS, /* those that multiply; then those that load */
		LOADING_WARPS = 4,
		THREADS = (WARPS + LOADING_WARPS) * WARP,
		LOADING_REGISTERS = 40,
		REGISTERS = 232, /* the block has 65,536 */
		PIECE = 16,
		PITCH = TILE * PIECE + PIECE,
		TILE_BYTES = W / 8 * PITCH,
		STAGES = 4,
		RING = QUERIES * W * (int)sizeof(bf16), /* after the results */
		BARRIERS = RING + STAGES * 2 * TILE_BYTES,
		BYTES = BARRIERS + 2 * STAGES * (int)sizeof(copy_barrier)
	};
};

/* A place in the ring, as a thread passes through it. */
template <int W> struct wgmma_ring {
	typedef wgmma_attention<W> sizes;
	int place;
	unsigned parity;

	__device__ __forceinline__ copy_barrier *full() const
	{
		return shared_memory<copy_barrier>(sizes::BARRIERS) + place;
	}
	__device__ __forceinline__ copy_barrier *free() const
	{
		return full() + sizes::STAGES;
	}
	__device__ __forceinline__ unsigned char *keys() const
	{
		return shared_memory<unsigned char>(sizes::RING) + place * 2 * sizes::TILE_BYTES;
	}
	__device__ __forceinline__ unsigned char *values() const
	{
		return keys() + sizes::TILE_BYTES;
	}
	__device__ __forceinline__ void next()
	{
		if (++place == sizes::STAGES) {
			place = 0;
			parity ^= 1;
		}
	}
	__device__ __forceinline__ void wait_full() const
	{
		copy_barrier_wait(full(), parity);
	}
	/* Say that the warp has filled or read the place, and go to the next. */
	__device__ __forceinline__ void pass(copy_barrier *at)
	{
		__syncwarp();
		if (threadIdx.x % WARP == 0)
			copy_barrier_arrive(at);
		next();
	}
	__device__ __forceinline__ void fill()
	{
		pass(full());
	}
	__device__ __forceinline__ void release()
	{
		pass(free());
	}
};

/* Start to copy a tile's rows of dh channels, with zeros around them and from row `count` on. For the loading warps. */
template <int W>
__device__ __forceinline__ void load_tile(unsigned char *to, const bf16 *from, int64_t stride, int count, int dh)
{
	typedef wgmma_attention<W> sizes;
	enum { PIECES = W / 8, ROWS = sizes::LOADING_WARPS * WARP / PIECES };
	const int thread = (int)threadIdx.x - sizes::WARPS * WARP, piece = thread % PIECES, row = thread / PIECES;
	const bf16 *source = from + row * stride + piece * 8;
	to += piece * sizes::PITCH + row * sizes::PIECE;
	count = piece * 8 < dh ? count - row : 0;
#pragma unroll
	for (int i = 0; i < sizes::TILE; i += ROWS, source += ROWS * stride)
		copy_async(to + i * sizes::PIECE, i < count ? source : from, i < count ? 16 : 0);
}

/* A loading warp's part of keys and values, from the block's first tile on. */
template <int W>
__device__ __forceinline__ void load_ring(wgmma_ring<W> ring, const attention &a, int first, int tiles, const bf16 *k,
                                          const bf16 *v)
{
	typedef wgmma_attention<W> sizes;
	wgmma_ring<W> requested = ring;
	for (int i = 0; i <= tiles + 1; i++) {
		if (i <= tiles) {
			const int key = first + i * sizes::TILE, before = key - sizes::TILE;
			if (i >= sizes::STAGES)
				copy_barrier_wait(requested.free(), requested.parity ^ 1);
			if (i < tiles)
				load_tile<W>(requested.keys(), k + key * a.k_row, a.k_row, a.keys - key, a.dh);
			if (i > 0)
				load_tile<W>(requested.values(), v + before * a.v_row, a.v_row, a.keys - before, a.dv);
			requested.next();
		}
		copy_commit();
		if (i > 0) {
			copy_wait<1>();
			wgmma_publish();
			ring.fill();
		}
	}
}

/* The 16 queries of a warp as operands. `from`: its first; `count` of them exist. */
template <int W>
__device__ __forceinline__ void load_queries(unsigned (&q)[W / 16][4], const bf16 *from, int64_t stride, int count, int dh)
{
	const int lane = threadIdx.x % WARP;
#pragma unroll
	for (int i = 0; i < W / 4; i++) {
		const int row = lane / 4 + i % 2 * 8, column = i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
		q[i / 4][i % 4] = row < count && column < dh ? *(const unsigned *)(from + row * stride + column) : 0;
	}
}

/* Registers of tiles side by side, as sums of a product. */
template <int n> __device__ __forceinline__ float (&flat(float (&tiles)[n][4]))[4 * n]
{
	return reinterpret_cast<float(&)[4 * n]>(tiles);
}

template <int W>
__device__ __forceinline__ void begin_scores(float (&s)[8][4], const unsigned (&q)[W / 16][4], const unsigned char *keys)
{
	enum { PITCH = wgmma_attention<W>::PITCH, PART = 128 };
#pragma unroll
	for (int k = 0; k < W / 16; k++)
		wgmma_bf16(flat(s), q[k], wgmma_view_of(keys + 2 * k * PITCH, PITCH, PART), k > 0);
}
template <int W>
__device__ __forceinline__ void begin_values(float (&out)[W / 8][4], const unsigned (&p)[4][1][4],
                                             const unsigned char *values)
{
	enum { PITCH = wgmma_attention<W>::PITCH, PART = 128 };
#pragma unroll
	for (int k = 0; k < 4; k++)
		wgmma_bf16_rows(flat(out), p[k][0], wgmma_view_of(values + 2 * k * PART, PART, PITCH), true);
}

template <int W, bool drops>
__global__ void __launch_bounds__(wgmma_attention<W>::THREADS, 1)
    attend_wgmma(attention a, const bf16 *q, const bf16 *k, const bf16 *v, bf16 *y, float *log_normalizer)
{
	typedef wgmma_attention<W> sizes;
	enum { TILE = sizes::TILE };
	const int warp = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0);
	const attention_place at = attention_queries_here(a, sizes::QUERIES);
	const int head = at.head / a.group, place = at.first + a.shift, first = attention_begin(a, place);
	/* Number of tiles from the first on that some of the queries before `end` see. */
	const auto tiles_before = [&](int end) {
		return (max(attention_past(a, min(end, a.queries) - 1 + a.shift) - first, 0) + TILE - 1) / TILE;
	};
	const int tiles = tiles_before(at.first + sizes::QUERIES);
	wgmma_ring<W> ring = {};
	if (threadIdx.x < sizes::STAGES) {
		ring.place = (int)threadIdx.x;
		copy_barrier_init(ring.full(), sizes::LOADING_WARPS);
		copy_barrier_init(ring.free(), sizes::WARPS);
		ring.place = 0;
	}
	__syncthreads();
	if constexpr (HAS_WGMMA) {
		if (warp >= sizes::WARPS) {
			fewer_registers<sizes::LOADING_REGISTERS>();
			load_ring(ring, a, first, tiles, k + at.key_row * a.k_row + (int64_t)head * a.dh,
			          v + at.key_row * a.v_row + (int64_t)head * a.dv);
			return;
		}
		more_registers<sizes::REGISTERS>();
		const int group = warp / 4 * sizes::GROUP_QUERIES, end_tile = tiles_before(at.first + group + sizes::GROUP_QUERIES);
		const attention_dropout drop = attention_drop(a, attention_chain(a, at.sequence, at.head));
		queries<W, 1> w = {};
		unsigned operand[W / 16][4], p[4][1][4], kept[1];
		float s[1][8][4];
		int tile = 0, key = first;
		const auto pass = [&] {
			ring.wait_full();
			ring.release();
			tile++;
			key += TILE;
		};
		begin(w, place);
		load_queries<W>(operand, q + (at.row + at.first + w.row) * a.q_row + at.head * a.dh, a.q_row,
		                a.queries - at.first - w.row, a.dh);
		while (tile < end_tile && key < attention_begin(a, place + group))
			pass();
		if (at.first + group < a.queries && tile < end_tile) {
			uint64_t keys;
			const auto prepare = [&] { /* while products run */
				draw<drops>(kept, w, a, drop, key);
				keys = attention_keys(a, at.key_row, key);
			};
			ring.wait_full();
			wgmma_fence();
			begin_scores<W>(s[0], operand, ring.keys());
			wgmma_commit();
			prepare();
			wgmma_wait(flat(s[0]));
			ring.release();
			for (;;) {
				weigh<drops, false>(p, s, kept, w, a, keys, key, NULL);
				tile++;
				key += TILE;
				ring.wait_full();
				wgmma_fence();
				begin_values<W>(w.out[0], p, ring.values());
				if (tile == end_tile)
					break;
				begin_scores<W>(s[0], operand, ring.keys());
				wgmma_commit();
				prepare();
				wgmma_wait(flat(s[0]), flat(w.out[0]));
				ring.release();
			}
			wgmma_commit();
			wgmma_wait(flat(w.out[0]));
			ring.release();
			tile++;
		}
		while (tile <= tiles)
			pass();
		end(w, a, at, drop.factor, shared_memory<bf16>(), y, log_normalizer);
	}
}

bool cuda_softmax_may_wgmma(const backend *b, const op_call *call, const attention &a)
{
	const int widest = a.dh > a.dv ? a.dh : a.dv;
	return cuda_of(b)->wgmma_attention && attention_mma(call, a) && !a.bias && a.dh % 8 == 0 && a.dv % 8 == 0 &&
	       widest > 32;
}

status cuda_softmax_wgmma(backend *b, const attention &a, int64_t batch, const bf16 *q, const bf16 *k, const bf16 *v,
                          bf16 *y, float *log_normalizer)
{
	return attention_by_shape(a, [&](auto width, auto drops, auto biased) {
		constexpr int W = decltype(width)::value;
		typedef wgmma_attention<W> sizes;
		if constexpr (W <= 32 || decltype(biased)::value)
			return STATUS_UNSUPPORTED;
		else
			return cuda_launch(b, attend_wgmma<W, decltype(drops)::value>,
			                   attention_grid(batch, a.heads, a.queries, sizes::QUERIES), sizes::THREADS,
			                   sizes::BYTES, a, q, k, v, y, log_normalizer);
	});
}
