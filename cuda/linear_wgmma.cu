/* linear over bf16 and int8 panels for many rows, by wgmma (compute capability 9.0).
 *
 * The tree of sums is that of the other kernels (linear_panels.cu). A step of bf16 adds the products of x's low terms,
 * then those of its high terms. A slice is one chain of steps, and the slices are added in order. A wgmma has the k of
 * 16 that mma has, and lanes hold a warp's a and d in the same way. No document says whether its bits are equal too. So
 * cuda_wgmma_check compares both when a backend is opened; if any bit differs, these kernels are not used. int8 has
 * bytes of x and exact sums (linear_panels.cu), so only a wrong operand could differ.
 *
 * A warp group has 64 outputs, one panel for each of its warps, and all rows of the block. The weights are a: every warp
 * loads its panel's words from global memory straight into registers, since no other warp of the block reads them. x is
 * b, in shared memory: a thread loads floats (int8: bytes), makes terms of them and stores these. A stage is up to STAGE
 * steps of one slice. While the tensor cores multiply stage i, the same warps convert x of stage i + 1, which arrived
 * during stage i - 1, and request x and weights of stage i + 2. So a stage has one barrier, and a request has as long as
 * a stage takes.
 *
 * A pair is two blocks of a cluster with the same rows and neighbouring panels. Each loads and converts half of the rows
 * and copies the terms to the other block (copy_to_block). So x of a stage is converted two stages before its products
 * and copied one stage before them, in three places of shared memory. When a block's copy of stage i has arrived, that
 * block has ended its products of stage i - 2. So the copy also says that the place of stage i + 1 is free there.
 *
 * Per step and block of outputs x rows           128 x 128   in a pair   64 x 64, 4 parts   in a pair   64 x 32, 4 parts
 *   clocks by tensor cores (2,048 sums a clock)        256         256                 64          64                 32
 *   bytes from L2                                   12,288       8,192              6,144       4,096              4,096
 *   clocks by L2, 24 bytes a clock if all are busy     512         341                256         171                171
 *   clocks by L2, 64 bytes a clock if few are          192         128                 96          64                 64
 *   bytes from the other block                           -       4,096                  -       2,048                  -
 *   clocks by these, 14 bytes a clock                    -         293                  -         146                  -
 *   bytes of shared memory, written and read        24,576      28,672              8,192      10,240              4,096
 *   clocks by shared memory, 128 bytes a clock         192         224                 64          80                 32
 *   clocks by instructions, 4 a clock                  215         222                108         119                 86
 *   registers per thread                               234         223                119         124                119
 *
 * So L2 is the bound, in a pair the tensor cores with their barriers nearly as much, or instructions if few blocks run.
 * A block has 48 KB in flight (in a pair 32), enough for 800 clocks of latency at 60 bytes a clock. In the kernels of
 * mma.sync every warp converts x for its own outputs, and waits for its loads and products; here the tensor cores run
 * meanwhile. Registers limit the large tile: a thread has 64 sums of the slice and 64 of the earlier ones. It also has 32
 * floats of x (in a pair 16) and the weights of two stages. The other tiles are for calls with too few large ones for the
 * device. Each of the four parts of a block has two slices. Sums pass from part to part in the slices' order.
 *
 * A step of int8 has 32 inputs, half of the bytes of x, one product instead of two, and 153, 186, 71, 98 and 66 clocks by
 * instructions.
 *
 * What the blocks of a cluster could share, per step of a 128 x 128 tile:
 *                                              nothing   x as terms   weights   x as floats   x, four blocks
 *   bytes from L2                               12,288        8,192    10,240         8,192            6,144
 *   bytes from other blocks                          -        4,096     2,048             -            6,144
 *   bytes of shared memory, written and read    24,576       28,672    34,816        40,960           30,720
 *   floats of x that a thread converts               8            4         8             8                2
 *   barriers of a stage: block, copies            1, 0         1, 1      1, 1          1, 2             1, 1
 * x as floats would be a multicast copy from L2 that both blocks still read and convert: 320 clocks by shared memory.
 * Between four blocks 11 bytes a clock arrive: 559 clocks. Stores to the other block (st.shared::cluster) need a cluster
 * barrier for each stage. The compiler puts a fence of the whole device before the barrier and before the products.
 * Copies of shared memory have none.
 *
 * Shared memory: an 8 x 8 part of b is 128 contiguous bytes, without a swizzle. A warp stores a word of each of eight
 * rows and four pieces of k at once, 128 contiguous bytes too. */
#include "cuda/linear_panels.cuh"

#include <stdlib.h>

enum { CLUSTER_CLOCK = 14 /* bytes per clock that a processor receives from another */ };
enum { GROUP_WARPS = 4, STEP_BYTES = STEP_WORDS * PANEL_WIDTH * 4 /* per panel */ };

/* A block: PARTS parts of K, each with ACROSS warp groups side by side. A warp group has 4 panels and a warp has one;
 * all have the block's rows. BLOCKS: 2 for a pair, else 1. *_ISSUE: clocks by instructions of a step, counted in the
 * machine code. */
template <int ROWS_, int ACROSS_, int PARTS_, int STAGE_, int BLOCKS_, int BF16_ISSUE_, int INT8_ISSUE_>
struct wgmma_tile {
	enum {
		ROWS_HELD = ROWS_,
		PANELS = ACROSS_ * GROUP_WARPS,
		PARTS = PARTS_,
		STAGE = STAGE_, /* most steps per stage */
		BLOCKS = BLOCKS_,
		AHEAD = BLOCKS_, /* stages between the conversion and the products of a stage */
		STAGES = AHEAD + 1, /* in shared memory */
		BF16_ISSUE = BF16_ISSUE_,
		INT8_ISSUE = INT8_ISSUE_,
		TILES = ROWS_ / ROWS,
		WARPS = PANELS, /* per part */
		MEMBERS = WARPS * WARP,
		THREADS = MEMBERS * PARTS,
		TILES_APART = WARPS * BLOCKS_,
		TILES_EACH = TILES / TILES_APART, /* a warp converts these in each step */
		VIEW_WORDS = ROWS_ * STEP_WORDS,  /* one term of a step */
		SUMS = ROWS_ / 2                  /* per thread */
	};
};
typedef wgmma_tile<128, 2, 1, 4, 1, 215, 153> large_tile;
typedef wgmma_tile<128, 2, 1, 4, 2, 222, 186> large_pair;
typedef wgmma_tile<64, 1, 4, 2, 1, 108, 71> middle_tile;
typedef wgmma_tile<64, 1, 4, 2, 2, 119, 98> middle_pair;
typedef wgmma_tile<32, 1, 4, 4, 1, 86, 66> small_tile;

template <class W, class T> struct wgmma_memory {
	enum {
		STAGE_WORDS = W::TERMS * T::STAGE * T::VIEW_WORDS,         /* [term][step][tile][k / 8][row][4] */
		PART_WORDS = T::STAGES * STAGE_WORDS,
		PASSED = T::MEMBERS * (T::ROWS_HELD / 2) * (T::PARTS > 1), /* sums passed from part to part */
		WORDS = T::PARTS * PART_WORDS > PASSED ? T::PARTS * PART_WORDS : PASSED,
		BARRIERS = T::BLOCKS > 1 ? T::PARTS * T::STAGES : 0, /* after the words */
		BYTES = 4 * WORDS + BARRIERS * (int)sizeof(copy_barrier)
	};
};

/* Steps of a stage: count of them from `first` on, all in one slice. */
struct wgmma_stage {
	int first, count;
	bool opens, closes; /* begins, ends a slice */
};

/* The stages of a part, one after another; empty ones at the end. */
struct wgmma_stages {
	int at, slice, slice_end, end, most;

	__device__ __forceinline__ wgmma_stage next(void)
	{
		const int last = min(slice_end, end), count = min(most, last - at);
		const wgmma_stage s = {at, count, at == slice_end - slice, count > 0 && at + count == last};
		at += count;
		if (at == slice_end)
			slice_end += slice;
		return s;
	}
};

/* A thread's operands from global memory: its warp's panel, and raws of x in some rows. */
template <class W, class T> struct wgmma_sources {
	typedef typename W::raw raw;
	const unsigned char *weights;
	const raw *x;
	int apart[T::TILES_EACH]; /* raws from the first tile's row to another's */
	int raws, words;          /* along K, from the thread's first on; a raw of bf16 has the inputs of two words */

	/* tile: the first that the warp converts */
	__device__ __forceinline__ wgmma_sources(const panel_product &p, int64_t panel, int64_t row, int tile)
	{
		const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
		const int row_raws = (int)(W::EXACT ? 4 * p.steps : p.k / 4);
		weights = p.panels + W::HEADER + min(panel, p.panel_count - 1) * p.panel_bytes +
		          (2 * q * PANEL_WIDTH + 2 * g) * sizeof(unsigned);
		const int64_t first = min(row + tile * ROWS + g, p.rows - 1);
		x = (W::EXACT ? (const raw *)p.bytes : (const raw *)p.x) + first * row_raws + q;
#pragma unroll
		for (int i = 0; i < T::TILES_EACH; i++)
			apart[i] = i ? (int)(min(first + i * T::TILES_APART * ROWS, p.rows - 1) - first) * row_raws : 0;
		raws = row_raws - q;
		words = (int)((p.k + W::GROUP - 1) / W::GROUP) - 2 * q;
	}
	__device__ __forceinline__ void load_weights(const wgmma_stage &s, unsigned a[T::STAGE][4]) const
	{
#pragma unroll
		for (int i = 0; i < T::STAGE; i++) {
			const unsigned char *from = weights + (int64_t)(s.first + i) * STEP_BYTES;
			const int at = s.first + i, left = W::EXACT ? words - at * STEP_WORDS : raws - at * 4;
			const uint2 none = make_uint2(0, 0), one = i < s.count && left > 0 ? *(const uint2 *)from : none,
			            two = i < s.count && left > W::EXACT ? *(const uint2 *)(from + PANEL_WIDTH * sizeof(unsigned)) : none;
			a[i][0] = one.x;
			a[i][1] = one.y;
			a[i][2] = two.x;
			a[i][3] = two.y;
		}
	}
	__device__ __forceinline__ void load_x(const wgmma_stage &s, raw to[T::STAGE][T::TILES_EACH]) const
	{
#pragma unroll
		for (int i = 0; i < T::STAGE; i++) {
			const bool exists = i < s.count && (s.first + i) * 4 < raws;
#pragma unroll
			for (int t = 0; t < T::TILES_EACH; t++)
				to[i][t] = exists ? x[(s.first + i) * 4 + apart[t]] : raw{};
		}
	}
};

/* Store a stage's x as terms. The words of a row that one lane makes are 128 bytes apart, so no bank is hit twice. */
template <class W, class T>
static __device__ __forceinline__ void make_terms(const wgmma_stage &s,
                                                  const typename W::raw raw[T::STAGE][T::TILES_EACH],
                                                  unsigned *stage, int tile)
{
	enum { NEXT_K = ROWS * 4 };
#pragma unroll
	for (int i = 0; i < T::STAGE; i++) {
		if (i >= s.count)
			break;
#pragma unroll
		for (int t = 0; t < T::TILES_EACH; t++) {
			const typename W::operand o = W::make(raw[i][t]);
			unsigned *at = stage + i * T::VIEW_WORDS + (tile + t * T::TILES_APART) * ROWS * STEP_WORDS +
			               threadIdx.x % WARP;
#pragma unroll
			for (int term = 0; term < W::TERMS; term++) {
				const uint2 w = W::words(o, term);
				at[term * T::STAGE * T::VIEW_WORDS] = w.x;
				at[term * T::STAGE * T::VIEW_WORDS + NEXT_K] = w.y;
			}
		}
	}
	wgmma_publish();
}

/* Copy this block's terms of a stage to the other block of a pair, and expect those of the other. Each of the part's
 * first lanes copies one step of a term. */
template <class W, class T>
static __device__ __forceinline__ void exchange_terms(const wgmma_stage &s, unsigned *stage, copy_barrier *arrived,
                                                      unsigned rank)
{
	enum { HALF_WORDS = T::VIEW_WORDS / T::BLOCKS };
	const int member = threadIdx.x % T::MEMBERS, term = member / T::STAGE, i = member % T::STAGE;
	if (member == 0)
		copy_barrier_expect(arrived, s.count * W::TERMS * HALF_WORDS * sizeof(unsigned));
	if (term < W::TERMS && i < s.count)
		copy_to_block(stage + member * T::VIEW_WORDS + rank * HALF_WORDS, HALF_WORDS * sizeof(unsigned), arrived,
		              rank ^ 1);
}

/* Begin a stage's products, COUNT or fewer steps. Each number of steps has its own code, since products that are issued
 * on several branches need more fences. */
template <class W, class T, int COUNT>
static __device__ __forceinline__ void begin_products(typename W::sum (&d)[T::SUMS], const wgmma_stage &s,
                                                      const unsigned a[T::STAGE][4], const unsigned *stage)
{
	if constexpr (COUNT > 0) {
		if (s.count < COUNT) {
			begin_products<W, T, COUNT - 1>(d, s, a, stage);
			return;
		}
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < COUNT; i++)
#pragma unroll
			for (int term = 0; term < W::TERMS; term++)
				W::group_term(d, a[i],
				              wgmma_view_of(stage + (term * T::STAGE + i) * T::VIEW_WORDS, ROWS * 16,
				                            ROWS * STEP_WORDS * 4),
				              i > 0 || term > 0 || !s.opens);
		wgmma_commit();
	}
}

template <class T, class S> static __device__ __forceinline__ void add_sums(S total[T::SUMS], const S d[T::SUMS])
{
#pragma unroll
	for (int e = 0; e < T::SUMS; e++)
		total[e] += d[e];
}

/* Add the sums of the slices, one part after another: total is a part's first slice, d its second, if it has two. */
template <class T, class S>
static __device__ __forceinline__ void pass_sums(S total[T::SUMS], const S d[T::SUMS], bool two, int part, int member)
{
	struct alignas(16) four {
		S at[4];
	};
	static_assert(SLICES / T::PARTS == 2);
	four *pass = shared_memory<four>() + member; /* [SUMS / 4][MEMBERS] */
	for (int i = 0; i < T::PARTS; i++) {
		__syncthreads();
		if (i != part)
			continue;
		if (i > 0) {
#pragma unroll
			for (int e = 0; e < T::SUMS; e += 4) {
				const four before = pass[e / 4 * T::MEMBERS];
#pragma unroll
				for (int j = 0; j < 4; j++)
					total[e + j] += before.at[j];
			}
		}
		if (two)
			add_sums<T>(total, d);
		if (i < T::PARTS - 1) {
#pragma unroll
			for (int e = 0; e < T::SUMS; e += 4)
				pass[e / 4 * T::MEMBERS] = {{total[e], total[e + 1], total[e + 2], total[e + 3]}};
		}
	}
}

template <class W, class T>
static __device__ __forceinline__ void store_sums(const panel_product &p, int64_t panel, int64_t row,
                                                  const typename W::sum total[T::SUMS])
{
	const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
	const int64_t output = panel * PANEL_WIDTH + 2 * g;
	float bias[2], scale[2];
#pragma unroll
	for (int e = 0; e < 2; e++) {
		const bool exists = output + e < p.n;
		bias[e] = p.bias && exists ? p.bias[output + e] : 0.0f;
		scale[e] = W::EXACT && exists ? ((const panel_header *)(p.panels + panel * p.panel_bytes))->scale[2 * g + e] : 0.0f;
	}
#pragma unroll
	for (int t = 0; t < T::TILES; t++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int64_t to = row + t * ROWS + 2 * q + e;
			const float row_scale = W::EXACT && to < p.rows ? p.row_scale[to] : 0.0f;
			const float two[2] = {with_bias(p, W::real(total[4 * t + e], row_scale, scale[0]), bias[0]),
			                      with_bias(p, W::real(total[4 * t + 2 + e], row_scale, scale[1]), bias[1])};
			store_outputs<2>(p, to, output, two);
		}
}

/* Block: T::PANELS panels of the product or a sibling by blockIdx.y, rows from blockIdx.x · T::ROWS_HELD. The blocks of
 * a pair are neighbours along y. */
template <class W, class T>
__global__ void __launch_bounds__(T::THREADS, 1) wgmma_kernel(panel_product whole, panel_siblings siblings)
{
	typedef wgmma_memory<W, T> memory;
	const int warps = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0), part = T::PARTS > 1 ? warps / T::WARPS : 0,
	          warp = warps % T::WARPS, rank = blockIdx.y % T::BLOCKS, tile = warp + rank * T::WARPS;
	const int64_t row = (int64_t)blockIdx.x * T::ROWS_HELD;
	int64_t panel;
	const panel_product p = panel_product_of<T::PANELS>(whole, siblings, blockIdx.y, panel);
	const int slice = (int)p.slice, steps = (int)p.steps, first = part * (SLICES / T::PARTS) * slice,
	          slice_stages = (slice + T::STAGE - 1) / T::STAGE, most = (slice + slice_stages - 1) / slice_stages,
	          count = SLICES / T::PARTS * slice_stages;
	unsigned *const stages = shared_memory<unsigned>() + part * memory::PART_WORDS;
	copy_barrier *const barriers = (copy_barrier *)(shared_memory<unsigned>() + memory::WORDS) + part * T::STAGES;
	wgmma_stages order = {first, slice, first + slice, max(first, min(first + SLICES / T::PARTS * slice, steps)), most};
	const wgmma_sources<W, T> from(p, panel + warp, row, tile);
	typename W::sum d[T::SUMS] = {}, total[T::SUMS] = {};
	unsigned a[T::STAGE][4], next_a[T::STAGE][4], parities = 0;
	typename W::raw raw[T::STAGE][T::TILES_EACH];
	wgmma_stage at[T::AHEAD + 2]; /* from the one whose products run to the one whose x is loaded */
#pragma unroll
	for (int i = 0; i <= T::AHEAD; i++)
		at[i] = order.next();
	if constexpr (T::BLOCKS > 1) {
		if (threadIdx.x % T::MEMBERS == 0)
			for (int i = 0; i < T::STAGES; i++)
				copy_barrier_init(barriers + i);
		__syncwarp();
		cluster_arrive();
	}
	from.load_weights(at[0], a);
	from.load_weights(at[1], next_a);
	wait_for_previous();
	let_next_begin();
	if constexpr (HAS_WGMMA) {
		int place = 0; /* place of the stage whose products run */
#pragma unroll
		for (int i = 0; i < T::AHEAD; i++) {
			from.load_x(at[i], raw);
			make_terms<W, T>(at[i], raw, stages + i * memory::STAGE_WORDS, tile);
		}
		from.load_x(at[T::AHEAD], raw);
		if constexpr (T::BLOCKS > 1) {
			cluster_wait(); /* the barriers of the other block exist */
			__syncthreads();
			exchange_terms<W, T>(at[0], stages, barriers, rank);
		}
		for (int i = 0; i < count; i++) {
			const int next = place + 1 < T::STAGES ? place + 1 : 0, made = place > 0 ? place - 1 : T::STAGES - 1;
			__syncthreads(); /* this block's x of the next stage that is sent or multiplied is complete, one stage is free */
			if constexpr (T::BLOCKS > 1) {
				copy_barrier_wait(barriers + place, parities >> place & 1);
				parities ^= 1u << place;
				if (i + 1 < count)
					exchange_terms<W, T>(at[1], stages + next * memory::STAGE_WORDS, barriers + next, rank);
				__syncwarp();
			}
			begin_products<W, T, T::STAGE>(d, at[0], a, stages + place * memory::STAGE_WORDS);
			make_terms<W, T>(at[T::AHEAD], raw, stages + made * memory::STAGE_WORDS, tile);
			if (T::BLOCKS > 1 && i + 1 == count)
				cluster_arrive(); /* all copies to this block have arrived */
			at[T::AHEAD + 1] = order.next();
			from.load_x(at[T::AHEAD + 1], raw);
			wgmma_wait(d);
			if (at[0].closes && (T::PARTS == 1 || i < slice_stages)) /* a part's second slice waits for other parts */
				add_sums<T>(total, d);
#pragma unroll
			for (int s = 0; s < T::STAGE; s++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					a[s][e] = next_a[s][e];
			from.load_weights(at[2], next_a);
#pragma unroll
			for (int s = 0; s <= T::AHEAD; s++)
				at[s] = at[s + 1];
			place = next;
		}
		if constexpr (T::BLOCKS > 1)
			cluster_wait();
		if constexpr (T::PARTS > 1) {
			pass_sums<T>(total, d, first + slice < steps, part, threadIdx.x % T::MEMBERS);
			if (part < T::PARTS - 1)
				return;
		}
		store_sums<W, T>(p, panel + warp, row, total);
	}
}

/* --- the call -------------------------------------------------------------------------------------- */

template <class... T> struct wgmma_tiles {};
typedef wgmma_tiles<large_tile, large_pair, middle_tile, middle_pair, small_tile> all_tiles;

bool cuda_panels_may_wgmma(const backend *b, const panel_product &p)
{
	return cuda_of(b)->wgmma && p.steps > 0 &&
	       (p.type == DTYPE_PANEL_INT8 || (p.type == DTYPE_PANEL_BF16 && p.packed));
}

/* True if a product may have this tile: blocks along y that are pairs, where they are. */
template <class T> static bool may_have(const backend *b, int64_t panel_blocks)
{
	return T::BLOCKS == 1 || (cuda_of(b)->clusters && panel_blocks % T::BLOCKS == 0);
}

/* Minimum clocks of a product with a tile: those of a block until the last one has ended, or those of all copies from
 * L2 or between blocks. A block's are those of the tensor cores, 5/4 per product, of its instructions or copies, or of a
 * trip to L2 per stage. A pair's first products have a second stage before them. */
template <class W, class T>
static int64_t clocks_of(const backend *b, const panel_product &p, const panel_siblings &siblings)
{
	enum {
		PRODUCTS = T::PANELS * T::TILES * W::TERMS,
		ISSUE = W::EXACT ? T::INT8_ISSUE : T::BF16_ISSUE,
		X_BYTES = T::ROWS_HELD * 4 * (int)sizeof(typename W::raw),
		BYTES = T::PANELS * STEP_BYTES + X_BYTES / T::BLOCKS,
		COPIED = T::BLOCKS > 1 ? X_BYTES / 2 : 0,
		TRIP = 500
	};
	const int64_t processors = cuda_of(b)->processors, across = panel_blocks<T::PANELS>(p, siblings),
	              blocks = panel_parts(p.rows, T::ROWS_HELD) * across;
	const int64_t stages = SLICES / T::PARTS * panel_parts(p.slice, T::STAGE);
	const int64_t step = max(max(PRODUCTS * 5 / 4, (int)ISSUE), BYTES / L1_CLOCK);
	const int64_t block = max(p.steps * step, stages * TRIP) + (T::AHEAD - 1) * TRIP;
	if (!may_have<T>(b, across))
		return INT64_MAX;
	const int64_t copies =
	    max(blocks * p.steps * BYTES / (L2_CLOCK * processors), blocks * p.steps * COPIED / (CLUSTER_CLOCK * processors));
	return max(panel_parts(blocks, processors) * block, copies);
}

template <class W, class... T>
static int64_t least_clocks(const backend *b, const panel_product &p, const panel_siblings &siblings, wgmma_tiles<T...>)
{
	int64_t least = INT64_MAX;
	for (const int64_t clocks : {clocks_of<W, T>(b, p, siblings)...})
		least = min(least, clocks);
	return least;
}

int64_t cuda_panels_wgmma_clocks(const backend *b, const panel_product &p, const panel_siblings &siblings)
{
	return p.type == DTYPE_PANEL_INT8 ? least_clocks<int8_words>(b, p, siblings, all_tiles())
	                                  : least_clocks<bf16_words>(b, p, siblings, all_tiles());
}

template <class W, class T> static status run(backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const dim3 grid(cuda_parts(p.rows, T::ROWS_HELD), cuda_extent(panel_blocks<T::PANELS>(p, siblings)));
	return cuda_launch_early_clusters(b, wgmma_kernel<W, T>, T::BLOCKS, grid, T::THREADS, wgmma_memory<W, T>::BYTES, p,
	                                  siblings);
}

/* Run the first tile that takes the least clocks. */
template <class W, class First, class... More>
static status run_best(backend *b, const panel_product &p, const panel_siblings &siblings, int64_t least,
                       wgmma_tiles<First, More...>)
{
	if constexpr (sizeof...(More) > 0)
		if (clocks_of<W, First>(b, p, siblings) != least)
			return run_best<W>(b, p, siblings, least, wgmma_tiles<More...>());
	return run<W, First>(b, p, siblings);
}

status cuda_panels_wgmma(backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const int64_t least = cuda_panels_wgmma_clocks(b, p, siblings);
	return p.type == DTYPE_PANEL_INT8 ? run_best<int8_words>(b, p, siblings, least, all_tiles())
	                                  : run_best<bf16_words>(b, p, siblings, least, all_tiles());
}

/* --- the check -------------------------------------------------------------------------------------- */

/* True if the device has room for a cluster of this kernel. */
template <class W, class T> static bool cluster_fits(cuda_backend *c)
{
	int clusters = 0;
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};
	attribute.id = cudaLaunchAttributeClusterDimension;
	attribute.val.clusterDim = {1, T::BLOCKS, 1};
	config.gridDim = dim3(1, T::BLOCKS);
	config.blockDim = dim3(T::THREADS);
	config.dynamicSmemBytes = wgmma_memory<W, T>::BYTES;
	config.stream = c->stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	const bool fits = cudaFuncSetAttribute(wgmma_kernel<W, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
	                                       wgmma_memory<W, T>::BYTES) == cudaSuccess &&
	                  cudaOccupancyMaxActiveClusters(&clusters, wgmma_kernel<W, T>, &config) == cudaSuccess;
	if (!fits)
		(void)cudaGetLastError();
	return fits && clusters > 0;
}

bool cuda_wgmma_fits_clusters(cuda_backend *c)
{
	return cluster_fits<bf16_words, large_pair>(c) && cluster_fits<bf16_words, middle_pair>(c) &&
	       cluster_fits<int8_words, large_pair>(c) && cluster_fits<int8_words, middle_pair>(c);
}

struct check_size {
	int64_t rows, n, k;
};
/* Each kind of pair has an even number of blocks somewhere. */
#ifdef __CUDACC__
static const check_size check_sizes[] = {{200, 336, 132}, {33, 464, 772}, {130, 208, 3076}};
#else
static const check_size check_sizes[] = {{40, 208, 580}}; /* slices of five steps; the emulator multiplies slowly */
#endif
enum { TILE_KINDS = 5, RESULTS = TILE_KINDS + 1 };

static unsigned scrambled(uint64_t i)
{
	i = (i + 1) * 0x9e3779b97f4a7c15u;
	i = (i ^ i >> 29) * 0xbf58476d1ce4e5b9u;
	return (unsigned)(i >> 32);
}
/* ±[1, 2) · 2^exponent */
static float signed_power(unsigned random, int exponent)
{
	return ldexpf((random & 1 ? -1.0f : 1.0f) * (1.0f + (float)(random >> 8) / (1 << 24)), exponent);
}

/* Values of x and w in rows of four kinds: of one size; of many sizes; of pairs, whose products cancel where both are of
 * this kind; and tiny, with subnormal products. */
static float check_value(int64_t row, int64_t k, bool is_weight)
{
	const unsigned random = scrambled((uint64_t)(row << 20 | k) * 2 + is_weight);
	switch (row % 4) {
	case 0:
		return signed_power(random, 0);
	case 1:
		return signed_power(random, (int)(random >> 3) % 24 - 12);
	case 2: {
		const float first = signed_power(scrambled((uint64_t)(row << 20 | k / 2) * 2 + is_weight), k % 7 == 6 ? -9 : 1);
		return is_weight || k % 2 == 0 ? first : -first;
	}
	default:
		return signed_power(random, is_weight ? -20 : -118 - (int)(random >> 3) % 8);
	}
}

/* Describe a product of the check and return its size in 4-byte words. `space`, if not NULL, has its operands one after
 * another: x (int8: bytes, then the scales of rows), panels, results. */
static size_t check_words(const check_size &size, dtype type, panel_product *p, unsigned char *space)
{
	const int64_t group = type == DTYPE_PANEL_INT8 ? PANEL_GROUP : PANEL_PAIR;
	*p = {};
	p->rows = size.rows;
	p->n = size.n;
	p->k = size.k;
	p->type = type;
	p->steps = panel_parts(size.k, STEP_WORDS * group);
	p->slice = panel_parts(p->steps, SLICES);
	p->panel_bytes = (int64_t)panel_stride(type, size.k);
	p->panel_count = size.n / PANEL_WIDTH;
	p->alpha = 1.0f;
	p->packed = true;
	const int64_t scales = size.rows * p->steps * STEP_WORDS * 4, /* places of operands, in bytes */
	    panels = panel_parts(type == DTYPE_PANEL_INT8 ? scales + size.rows * 4 : size.rows * size.k * 4, 64) * 64,
	              y = panels + p->panel_count * p->panel_bytes;
	if (space) {
		p->x = (const float *)space;
		p->bytes = (uint2 *)space;
		p->row_scale = (float *)(space + scales);
		p->panels = space + panels;
		p->y = (float *)(space + y);
	}
	return (size_t)(y / 4 + RESULTS * size.rows * size.n);
}

/* Fill in a product's operands on the host. */
static void check_fill(const panel_product &p)
{
	unsigned *w = (unsigned *)p.panels;
	const int64_t panel_words = p.panel_bytes / 4;
	if (p.type == DTYPE_PANEL_INT8) {
		for (int64_t i = 0; i < p.rows * p.steps * STEP_WORDS; i++)
			((unsigned *)p.bytes)[i] = scrambled((uint64_t)i);
		for (int64_t i = 0; i < p.rows; i++)
			p.row_scale[i] = check_value(4 * i, 0, false);
		for (int64_t i = 0; i < p.panel_count * panel_words; i++)
			w[i] = scrambled((uint64_t)i << 1);
		for (int64_t i = 0; i < p.n; i++)
			((panel_header *)(w + i / PANEL_WIDTH * panel_words))->scale[i % PANEL_WIDTH] = check_value(4 * i, 0, true);
		return;
	}
	for (int64_t i = 0; i < p.rows * p.k; i++)
		((float *)p.x)[i] = check_value(i / p.k, i % p.k, false);
	for (int64_t i = 0; i < p.panel_count * panel_words; i++) {
		const int64_t at = i / PANEL_WIDTH % (p.k / PANEL_PAIR) * PANEL_PAIR,
		              output = i / panel_words * PANEL_WIDTH + i % PANEL_WIDTH;
		w[i] = (unsigned)panel_bf16(check_value(output, at, true)) |
		       (unsigned)panel_bf16(check_value(output, at + 1, true)) << 16;
	}
}

/* Run a product by mma.sync and with every tile that it may have by wgmma. Returns the number of results. */
template <class W, class... T>
static status run_all(backend *b, panel_product p, int *results, wgmma_tiles<T...>)
{
	const int64_t count = p.rows * p.n;
	status s = cuda_panels_wide(b, p, {}, p.type);
	*results = 1;
	const auto one = [&](auto tile) {
		typedef decltype(tile) kind;
		if (s != STATUS_OK || !may_have<kind>(b, panel_blocks<kind::PANELS>(p, {})))
			return;
		p.y += count;
		(*results)++;
		s = run<W, kind>(b, p, {});
	};
	(one(T()), ...);
	return s;
}

/* Compare a product's results. Sets `same` to false if any bits differ. space: device memory for the operands and
 * results; host: likewise. */
static status check_product(backend *b, const check_size &size, dtype type, unsigned char *host, unsigned char *space,
                            bool *same)
{
	panel_product p, here;
	const size_t words = check_words(size, type, &p, space);
	(void)check_words(size, type, &here, host);
	const int64_t count = p.rows * p.n;
	unsigned *y = (unsigned *)here.y;
	int results;
	check_fill(here);
	for (int64_t i = 0; i < RESULTS * count; i++)
		y[i] = 0xffffffffu - (unsigned)(i / count); /* not equal if a kernel does nothing */
	TRY(b->upload(b, space, host, words * 4));
	TRY(type == DTYPE_PANEL_INT8 ? run_all<int8_words>(b, p, &results, all_tiles())
	                             : run_all<bf16_words>(b, p, &results, all_tiles()));
	TRY(b->download(b, host, space, words * 4));
	for (int64_t i = 0; i < count; i++)
		for (int t = 1; t < results; t++)
			*same &= y[i] == y[t * count + i];
	return STATUS_OK;
}

status cuda_wgmma_check(cuda_backend *c, bool *same)
{
	static const dtype types[] = {DTYPE_PANEL_BF16, DTYPE_PANEL_INT8};
	size_t bytes = 0;
	panel_product p;
	for (const check_size &size : check_sizes)
		for (const dtype type : types) {
			const size_t each = 4 * check_words(size, type, &p, NULL);
			bytes = each > bytes ? each : bytes;
		}
	backend *b = &c->base;
	void *space;
	unsigned char *host = (unsigned char *)malloc(bytes);
	status s = host ? b->allocate(b, bytes, &space) : STATUS_NOMEM;
	*same = true;
	if (s != STATUS_OK) {
		free(host);
		return s;
	}
	c->wgmma = false; /* cuda_panels_wide uses mma.sync */
	for (const check_size &size : check_sizes)
		for (const dtype type : types)
			if (s == STATUS_OK)
				s = check_product(b, size, type, host, (unsigned char *)space, same);
	b->release(b, space);
	free(host);
	return s;
}
