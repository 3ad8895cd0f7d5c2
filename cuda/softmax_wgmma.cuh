/* softmax_wgmma.cuh - a block's warps, its ring of tiles in shared memory, and products of its rows and a tile, for the
 * kernels of softmax attention by wgmma (softmax_wgmma.cu, softmax_wgmma_grad.cu).
 *
 * A block has two groups of four warps and 64 rows each, and four warps that load. Tiles of 64 rows of the other side pass
 * through the ring, two to a stage.
 *
 * Shared memory: 16-byte pieces of eight channels. Those of a tile's rows follow each other, as an 8 x 8 part of an
 * operand wants them. The next eight channels are PITCH bytes further, which puts the pieces of a row in different banks.
 * Products over channels have the tile's rows as columns of b, products over rows have them as rows.
 *
 * The loading warps use cp.async, since a bulk copy would keep a row's channels together. They request a stage as soon as
 * both groups have freed its place, and publish it once the next one is requested. */
#ifndef CUDA_SOFTMAX_WGMMA_CUH
#define CUDA_SOFTMAX_WGMMA_CUH

#include "cuda/softmax_attention.cuh"

template <int W> struct wgmma_attention {
	enum {
		TILE = ATTENTION_TILE,
		GROUPS = 2,
		GROUP_ROWS = 64,
		ROWS = GROUPS * GROUP_ROWS,
		WARPS = 4 * GROUPS, /* those that multiply; then those that load */
		LOADING_WARPS = 4,
		THREADS = (WARPS + LOADING_WARPS) * WARP,
		LOADING_REGISTERS = 40,
		REGISTERS = 232, /* the block has 65,536 */
		PIECE = 16,
		PITCH = TILE * PIECE + PIECE,
		PART = 8 * PIECE,
		TILE_BYTES = W / 8 * PITCH,
		RESULTS = ROWS * W * (int)sizeof(bf16)
	};
};

/* Number of tiles from key `first` on that some of the queries before `end` see. */
__device__ __forceinline__ int wgmma_tiles(const attention &a, int first, int end)
{
	return (max(attention_past(a, min(end, a.queries) - 1 + a.shift) - first, 0) + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

/* Call f with the width of a tile and whether there is dropout, as constant types. */
template <class F> status wgmma_by_shape(const attention &a, F f)
{
	return attention_by_shape(a, [&](auto width, auto drops, auto biased) {
		if constexpr (decltype(width)::value <= 32 || decltype(biased)::value)
			return STATUS_UNSUPPORTED;
		else
			return f(width, drops);
	});
}

/* A place in the ring, as a thread passes through it. The ring follows `BEFORE` bytes of shared memory. A stage is two
 * tiles and NUMBERS floats. */
template <int W, int BEFORE, int NUMBERS = 0> struct wgmma_ring {
	typedef wgmma_attention<W> sizes;
	enum {
		STAGES = 4,
		STAGE = 2 * sizes::TILE_BYTES + NUMBERS * (int)sizeof(float),
		BARRIERS = BEFORE + STAGES * STAGE,
		BYTES = BARRIERS + 2 * STAGES * (int)sizeof(copy_barrier)
	};
	int place;
	unsigned parity;

	__device__ __forceinline__ copy_barrier *full() const
	{
		return shared_memory<copy_barrier>(BARRIERS) + place;
	}
	__device__ __forceinline__ copy_barrier *free() const
	{
		return full() + STAGES;
	}
	__device__ __forceinline__ unsigned char *tile(int i) const
	{
		return shared_memory<unsigned char>(BEFORE) + place * STAGE + i * sizes::TILE_BYTES;
	}
	__device__ __forceinline__ float *numbers() const
	{
		return (float *)tile(2);
	}
	/* Set up the barriers, for the block. */
	__device__ __forceinline__ void begin()
	{
		if (threadIdx.x < STAGES) {
			place = (int)threadIdx.x;
			copy_barrier_init(full(), sizes::LOADING_WARPS);
			copy_barrier_init(free(), sizes::WARPS);
			place = 0;
		}
		__syncthreads();
	}
	__device__ __forceinline__ void next()
	{
		if (++place == STAGES) {
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
	__device__ __forceinline__ void skip()
	{
		wait_full();
		release();
	}

	/* A loading warp's part of all stages. request(place, i) begins to load stage i. */
	template <class F> __device__ __forceinline__ void load(int stages, F request)
	{
		wgmma_ring requested = *this;
		for (int i = 0; i <= stages; i++) {
			if (i < stages) {
				if (i >= STAGES)
					copy_barrier_wait(requested.free(), requested.parity ^ 1);
				request(requested, i);
				requested.next();
			}
			copy_commit();
			if (i > 0) {
				copy_wait<1>();
				wgmma_publish();
				fill();
			}
		}
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

/* A warp's 16 rows as operands. `from`: the first; `count` of them exist. */
template <int W>
__device__ __forceinline__ void load_rows(unsigned (&a)[W / 16][4], const bf16 *from, int64_t stride, int count, int dh)
{
	const int lane = threadIdx.x % WARP;
#pragma unroll
	for (int i = 0; i < W / 4; i++) {
		const int row = lane / 4 + i % 2 * 8, column = i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
		a[i / 4][i % 4] = row < count && column < dh ? *(const unsigned *)(from + row * stride + column) : 0;
	}
}

/* Registers of tiles side by side, as sums of a product. */
template <int n> __device__ __forceinline__ float (&flat(float (&tiles)[n][4]))[4 * n]
{
	return reinterpret_cast<float(&)[4 * n]>(tiles);
}

/* Begin s = rows tileᵀ, a product over channels. */
template <int W>
__device__ __forceinline__ void begin_scores(float (&s)[8][4], const unsigned (&rows)[W / 16][4],
                                             const unsigned char *tile)
{
	enum { PITCH = wgmma_attention<W>::PITCH, PART = wgmma_attention<W>::PART };
#pragma unroll
	for (int k = 0; k < W / 16; k++)
		wgmma_bf16(flat(s), rows[k], wgmma_view_of(tile + 2 * k * PITCH, PITCH, PART), k > 0);
}

/* The rows are a tile too. */
template <int W>
__device__ __forceinline__ void begin_scores(float (&s)[8][4], const unsigned char *rows, const unsigned char *tile)
{
	enum { PITCH = wgmma_attention<W>::PITCH, PART = wgmma_attention<W>::PART };
#pragma unroll
	for (int k = 0; k < W / 16; k++)
		wgmma_bf16(flat(s), wgmma_view_of(rows + 2 * k * PITCH, PITCH, PART),
		           wgmma_view_of(tile + 2 * k * PITCH, PITCH, PART), k > 0);
}

/* Begin out += p tile, a product over the tile's rows. */
template <int W>
__device__ __forceinline__ void begin_sums(float (&out)[W / 8][4], const unsigned (&p)[4][1][4],
                                           const unsigned char *tile)
{
	enum { PITCH = wgmma_attention<W>::PITCH, PART = wgmma_attention<W>::PART };
#pragma unroll
	for (int k = 0; k < 4; k++)
		wgmma_bf16_rows(flat(out), p[k][0], wgmma_view_of(tile + 2 * k * PART, PART, PITCH), true);
}

#endif
