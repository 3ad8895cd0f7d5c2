/* linear over bf16 panels for many rows, by wgmma (compute capability 9.0).
 *
 * The tree of sums is that of the other kernels (linear_panels.cu). A step adds the products of the low and then of the
 * high terms of x; a slice is one chain of steps; the slices are added in order. A wgmma has the k of 16 that mma has,
 * and lanes hold a warp's a and d in the same way. No document says whether its bits are equal too. So cuda_wgmma_check
 * compares both when a backend is opened; if any bit differs, these kernels are not used.
 *
 * A warp group has 64 outputs, one panel for each of its warps, and all rows of the block. The weights are a: every warp
 * loads its panel's words from global memory straight into registers, since no other warp of the block reads them. x is
 * b, in shared memory: a thread loads floats, cuts them into two terms and stores these. A stage is up to STAGE steps of
 * one slice. While the tensor cores multiply stage i, the same warps convert x of stage i + 1, which arrived during
 * stage i - 1, and request x and weights of stage i + 2. So a stage has one barrier, and a request has as long as
 * a stage takes.
 *
 * Per step and block of outputs x rows           128 x 128    64 x 64, 4 parts    64 x 32, 4 parts
 *   clocks by tensor cores (2,048 sums a clock)        256                  64                  32
 *   bytes from L2                                   12,288               6,144               4,096
 *   clocks by L2, 24 bytes a clock if all are busy     512                 256                 171
 *   clocks by L2, 64 bytes a clock if few are          192                  96                  64
 *   bytes of shared memory, written and read        24,576               8,192               4,096
 *   clocks by shared memory, 128 bytes a clock         192                  64                  32
 *   clocks by instructions, 4 a clock                  216                 120                  85
 *   registers per thread                               235                 122                 121
 *
 * So L2 is the bound, or instructions if few blocks run. A block has 48 KB in flight, enough for 800 clocks of latency
 * at 60 bytes a clock. In the kernels of mma.sync every warp converts x for its own outputs, and waits for its loads and
 * products; here the tensor cores run meanwhile. Registers limit the large tile: a thread has 64 sums of the slice and
 * 64 of the earlier ones, 32 floats of x and the weights of two stages. The other tiles are for calls with too few large
 * ones for the device. Each of the four parts of a block has two slices. Sums pass from part to part in the slices'
 * order.
 *
 * Shared memory: an 8 x 8 part of b is 128 contiguous bytes, without a swizzle. A warp stores a word of each of eight
 * rows and four pieces of k at once, 128 contiguous bytes too. */
#include "cuda/linear_panels.cuh"

#include <stdlib.h>

enum { GROUP_WARPS = 4, STEP_BYTES = STEP_WORDS * PANEL_WIDTH * 4 /* per panel */ };

/* A block: PARTS parts of K, each with ACROSS warp groups side by side. A warp group has 4 panels and
 * a warp has one; all have the block's rows. ISSUE: clocks by instructions of a step, counted in the machine code. */
template <int ROWS_, int ACROSS_, int PARTS_, int STAGE_, int ISSUE_> struct wgmma_tile {
	enum {
		ROWS_HELD = ROWS_,
		PANELS = ACROSS_ * GROUP_WARPS,
		PARTS = PARTS_,
		STAGE = STAGE_, /* most steps per stage */
		ISSUE = ISSUE_,
		TILES = ROWS_ / ROWS,
		WARPS = PANELS, /* per part */
		MEMBERS = WARPS * WARP,
		THREADS = MEMBERS * PARTS,
		TILES_EACH = TILES / WARPS,                                /* a warp converts these in each step */
		VIEW_WORDS = ROWS_ * STEP_WORDS,                           /* one term of a step */
		STAGE_WORDS = bf16_words::TERMS * STAGE * VIEW_WORDS,      /* [term][step][tile][k / 8][row][4] */
		PART_WORDS = 2 * STAGE_WORDS,                              /* two stages */
		PASSED = MEMBERS * (ROWS_ / 2) * (PARTS > 1),              /* sums passed from part to part */
		BYTES = 4 * (PARTS * PART_WORDS > PASSED ? PARTS * PART_WORDS : PASSED),
		SUMS = ROWS_ / 2 /* per thread */
	};
};
typedef wgmma_tile<128, 2, 1, 4, 216> large_tile;
typedef wgmma_tile<64, 1, 4, 2, 120> middle_tile;
typedef wgmma_tile<32, 1, 4, 4, 85> small_tile;

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
template <class T> struct wgmma_sources {
	const unsigned char *weights;
	const float *x;
	int apart[T::TILES_EACH]; /* floats from the first tile's row to another's */
	int raws; /* along K, from the thread's first on; each has the inputs of two words */

	__device__ __forceinline__ wgmma_sources(const panel_product &p, int64_t panel, int64_t row, int warp)
	{
		const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
		weights = p.panels + min(panel + warp, p.panel_count - 1) * p.panel_bytes +
		          (2 * q * PANEL_WIDTH + 2 * g) * sizeof(unsigned);
		const int64_t first = min(row + warp * ROWS + g, p.rows - 1);
		x = p.x + first * p.k + 4 * q;
#pragma unroll
		for (int i = 0; i < T::TILES_EACH; i++)
			apart[i] = i ? (int)(min(first + i * T::WARPS * ROWS, p.rows - 1) - first) * (int)p.k : 0;
		raws = (int)(p.k / 4) - q;
	}
	__device__ __forceinline__ void load_weights(const wgmma_stage &s, unsigned a[T::STAGE][4]) const
	{
#pragma unroll
		for (int i = 0; i < T::STAGE; i++) {
			const unsigned char *from = weights + (int64_t)(s.first + i) * STEP_BYTES;
			const bool exists = i < s.count && (s.first + i) * 4 < raws;
			const uint2 none = make_uint2(0, 0), one = exists ? *(const uint2 *)from : none,
			            two = exists ? *(const uint2 *)(from + PANEL_WIDTH * sizeof(unsigned)) : none;
			a[i][0] = one.x;
			a[i][1] = one.y;
			a[i][2] = two.x;
			a[i][3] = two.y;
		}
	}
	__device__ __forceinline__ void load_x(const wgmma_stage &s, float4 raw[T::STAGE][T::TILES_EACH]) const
	{
#pragma unroll
		for (int i = 0; i < T::STAGE; i++) {
			const bool exists = i < s.count && (s.first + i) * 4 < raws;
#pragma unroll
			for (int t = 0; t < T::TILES_EACH; t++)
				raw[i][t] = exists ? *(const float4 *)(x + (int64_t)(s.first + i) * 16 + apart[t])
				                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
		}
	}
};

/* Store a stage's x as two terms. The words of a row that one lane makes are 128 bytes apart, so no bank is hit twice. */
template <class T>
static __device__ __forceinline__ void make_terms(const wgmma_stage &s, const float4 raw[T::STAGE][T::TILES_EACH],
                                                  unsigned *stage, int warp)
{
	enum { HIGH = T::STAGE * T::VIEW_WORDS, NEXT_K = ROWS * 4 };
#pragma unroll
	for (int i = 0; i < T::STAGE; i++) {
		if (i >= s.count)
			break;
#pragma unroll
		for (int t = 0; t < T::TILES_EACH; t++) {
			const uint4 o = bf16_words::make(raw[i][t]);
			unsigned *to = stage + i * T::VIEW_WORDS + (warp + t * T::WARPS) * ROWS * STEP_WORDS +
			               threadIdx.x % WARP;
			to[0] = o.z;
			to[NEXT_K] = o.w;
			to[HIGH] = o.x;
			to[HIGH + NEXT_K] = o.y;
		}
	}
	wgmma_publish();
}

/* Begin a stage's products, COUNT or fewer steps. Each number of steps has its own code, since products that are issued
 * on several branches need more fences. */
template <class T, int COUNT>
static __device__ __forceinline__ void begin_products(float (&d)[T::SUMS], const wgmma_stage &s,
                                                      const unsigned a[T::STAGE][4], const unsigned *stage)
{
	if constexpr (COUNT > 0) {
		if (s.count < COUNT) {
			begin_products<T, COUNT - 1>(d, s, a, stage);
			return;
		}
		wgmma_fence();
#pragma unroll
		for (int i = 0; i < COUNT; i++)
#pragma unroll
			for (int term = 0; term < bf16_words::TERMS; term++)
				wgmma_bf16(d, a[i],
				           wgmma_view_of(stage + (term * T::STAGE + i) * T::VIEW_WORDS, ROWS * 16,
				                         ROWS * STEP_WORDS * 4),
				           i > 0 || term > 0 || !s.opens);
		wgmma_commit();
	}
}

template <class T> static __device__ __forceinline__ void add_sums(float total[T::SUMS], const float d[T::SUMS])
{
#pragma unroll
	for (int e = 0; e < T::SUMS; e++)
		total[e] += d[e];
}

/* Add the sums of the slices, one part after another: total is a part's first slice, d its second, if it has two. */
template <class T>
static __device__ __forceinline__ void pass_sums(float total[T::SUMS], const float d[T::SUMS], bool two, int part,
                                                 int member)
{
	static_assert(SLICES / T::PARTS == 2);
	float4 *pass = shared_memory<float4>() + member; /* [SUMS / 4][MEMBERS] */
	for (int i = 0; i < T::PARTS; i++) {
		__syncthreads();
		if (i != part)
			continue;
		if (i > 0) {
#pragma unroll
			for (int e = 0; e < T::SUMS; e += 4) {
				const float4 before = pass[e / 4 * T::MEMBERS];
				total[e] += before.x;
				total[e + 1] += before.y;
				total[e + 2] += before.z;
				total[e + 3] += before.w;
			}
		}
		if (two)
			add_sums<T>(total, d);
		if (i < T::PARTS - 1) {
#pragma unroll
			for (int e = 0; e < T::SUMS; e += 4)
				pass[e / 4 * T::MEMBERS] = make_float4(total[e], total[e + 1], total[e + 2], total[e + 3]);
		}
	}
}

template <class T>
static __device__ __forceinline__ void store_sums(const panel_product &p, int64_t panel, int64_t row,
                                                  const float total[T::SUMS])
{
	const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
	const int64_t output = panel * PANEL_WIDTH + 2 * g;
	const float bias[2] = {p.bias && output < p.n ? p.bias[output] : 0.0f,
	                       p.bias && output + 1 < p.n ? p.bias[output + 1] : 0.0f};
#pragma unroll
	for (int t = 0; t < T::TILES; t++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const float two[2] = {with_bias(p, total[4 * t + e], bias[0]),
			                      with_bias(p, total[4 * t + 2 + e], bias[1])};
			store_outputs<2>(p, row + t * ROWS + 2 * q + e, output, two);
		}
}

/* Block: T::PANELS panels of the product or a sibling by blockIdx.y, rows from blockIdx.x · T::ROWS_HELD. */
template <class T>
__global__ void __launch_bounds__(T::THREADS, 1) wgmma_kernel(panel_product whole, panel_siblings siblings)
{
	const int warps = __shfl_sync(ALL_LANES, threadIdx.x / WARP, 0), part = T::PARTS > 1 ? warps / T::WARPS : 0,
	          warp = warps % T::WARPS;
	const int64_t row = (int64_t)blockIdx.x * T::ROWS_HELD;
	int64_t panel;
	const panel_product p = panel_product_of<T::PANELS>(whole, siblings, blockIdx.y, panel);
	const int slice = (int)p.slice, steps = (int)p.steps, first = part * (SLICES / T::PARTS) * slice,
	          slice_stages = (slice + T::STAGE - 1) / T::STAGE, most = (slice + slice_stages - 1) / slice_stages,
	          count = SLICES / T::PARTS * slice_stages;
	unsigned *stages = shared_memory<unsigned>() + part * T::PART_WORDS;
	wgmma_stages order = {first, slice, first + slice, max(first, min(first + SLICES / T::PARTS * slice, steps)), most};
	const wgmma_sources<T> from(p, panel, row, warp);
	float d[T::SUMS] = {}, total[T::SUMS] = {};
	unsigned a[T::STAGE][4], next_a[T::STAGE][4];
	float4 raw[T::STAGE][T::TILES_EACH];
	wgmma_stage now = order.next(), next = order.next();
	from.load_weights(now, a);
	from.load_weights(next, next_a);
	wait_for_previous();
	let_next_begin();
	if constexpr (HAS_WGMMA) {
		from.load_x(now, raw);
		make_terms<T>(now, raw, stages, warp);
		from.load_x(next, raw);
		for (int i = 0; i < count; i++) {
			__syncthreads(); /* the stage's x is complete, and the other stage is free */
			begin_products<T, T::STAGE>(d, now, a, stages + i % 2 * T::STAGE_WORDS);
			make_terms<T>(next, raw, stages + (i + 1) % 2 * T::STAGE_WORDS, warp);
			const wgmma_stage ahead = order.next();
			from.load_x(ahead, raw);
			wgmma_wait(d);
			if (now.closes && (T::PARTS == 1 || i < slice_stages)) /* a part's second slice waits for other parts */
				add_sums<T>(total, d);
#pragma unroll
			for (int s = 0; s < T::STAGE; s++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					a[s][e] = next_a[s][e];
			from.load_weights(ahead, next_a);
			now = next;
			next = ahead;
		}
		if constexpr (T::PARTS > 1) {
			pass_sums<T>(total, d, first + slice < steps, part, threadIdx.x % T::MEMBERS);
			if (part < T::PARTS - 1)
				return;
		}
		store_sums<T>(p, panel + warp, row, total);
	}
}

/* --- the call -------------------------------------------------------------------------------------- */

bool cuda_panels_may_wgmma(const backend *b, const panel_product &p)
{
	return cuda_of(b)->wgmma && p.type == DTYPE_PANEL_BF16 && p.packed && p.steps > 0;
}

/* Minimum clocks of a product with a tile: those of a block until the last one has ended, or those of all copies from
 * L2. A block's are those of the tensor cores, 5/4 per product, of its instructions or copies, or of a trip to L2 per stage. */
template <class T>
static int64_t clocks_of(const backend *b, const panel_product &p, const panel_siblings &siblings)
{
	enum {
		PRODUCTS = T::PANELS * T::TILES * bf16_words::TERMS,
		BYTES = T::PANELS * STEP_BYTES + T::ROWS_HELD * STEP_WORDS * PANEL_PAIR * (int)sizeof(float),
		TRIP = 500
	};
	const int64_t processors = cuda_of(b)->processors,
	              blocks = panel_parts(p.rows, T::ROWS_HELD) * panel_blocks<T::PANELS>(p, siblings);
	const int64_t stages = SLICES / T::PARTS * panel_parts(p.slice, T::STAGE);
	const int64_t step = max(max(PRODUCTS * 5 / 4, (int)T::ISSUE), BYTES / L1_CLOCK);
	const int64_t block = max(p.steps * step, stages * TRIP);
	return max(panel_parts(blocks, processors) * block, blocks * p.steps * BYTES / (L2_CLOCK * processors));
}

int64_t cuda_panels_wgmma_clocks(const backend *b, const panel_product &p, const panel_siblings &siblings)
{
	return min(min(clocks_of<large_tile>(b, p, siblings), clocks_of<middle_tile>(b, p, siblings)),
	           clocks_of<small_tile>(b, p, siblings));
}

template <class T> static status run(backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const dim3 grid(cuda_parts(p.rows, T::ROWS_HELD), cuda_extent(panel_blocks<T::PANELS>(p, siblings)));
	return cuda_launch_early(b, wgmma_kernel<T>, grid, T::THREADS, T::BYTES, p, siblings);
}

status cuda_panels_wgmma(backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const int64_t least = cuda_panels_wgmma_clocks(b, p, siblings);
	if (clocks_of<large_tile>(b, p, siblings) == least)
		return run<large_tile>(b, p, siblings);
	if (clocks_of<middle_tile>(b, p, siblings) == least)
		return run<middle_tile>(b, p, siblings);
	return run<small_tile>(b, p, siblings);
}

/* --- the check -------------------------------------------------------------------------------------- */

struct check_size {
	int64_t rows, n, k;
};
#ifdef __CUDACC__
static const check_size check_sizes[] = {{200, 320, 132}, {33, 336, 772}, {130, 80, 3076}};
#else
static const check_size check_sizes[] = {{40, 80, 580}}; /* slices of five steps; the emulator multiplies slowly */
#endif
enum { TILE_KINDS = 3, RESULTS = TILE_KINDS + 1 };

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

/* Run a product by mma.sync and with every tile by wgmma. Sets `same` to false if any bits differ. space: device
 * memory for the operands and RESULTS results. */
static status check_product(backend *b, const check_size &size, unsigned char *host, unsigned char *space, bool *same)
{
	const int64_t x_count = size.rows * size.k, words = size.n * size.k / PANEL_PAIR, count = size.rows * size.n;
	float *x = (float *)host;
	unsigned *w = (unsigned *)(x + x_count), *y = w + words;
	for (int64_t i = 0; i < x_count; i++)
		x[i] = check_value(i / size.k, i % size.k, false);
	for (int64_t i = 0; i < words; i++) {
		const int64_t at = i / PANEL_WIDTH % (size.k / PANEL_PAIR) * PANEL_PAIR,
		              output = i / PANEL_WIDTH / (size.k / PANEL_PAIR) * PANEL_WIDTH + i % PANEL_WIDTH;
		w[i] = (unsigned)panel_bf16(check_value(output, at, true)) |
		       (unsigned)panel_bf16(check_value(output, at + 1, true)) << 16;
	}
	for (int64_t i = 0; i < RESULTS * count; i++)
		y[i] = 0xffffffffu - (unsigned)(i / count); /* not equal if a kernel does nothing */
	const size_t bytes = (size_t)(x_count + words + RESULTS * count) * 4;
	TRY(b->upload(b, space, host, bytes));
	panel_product p = {};
	p.rows = size.rows;
	p.n = size.n;
	p.k = size.k;
	p.x = (const float *)space;
	p.panels = space + x_count * 4;
	p.panel_bytes = size.k / PANEL_PAIR * PANEL_WIDTH * 4;
	p.panel_count = size.n / PANEL_WIDTH;
	p.alpha = 1.0f;
	p.type = DTYPE_PANEL_BF16;
	p.steps = panel_parts(size.k, STEP_WORDS * PANEL_PAIR);
	p.slice = panel_parts(p.steps, SLICES);
	p.packed = true;
	p.y = (float *)(space + (x_count + words) * 4);
	TRY(cuda_panels_wide(b, p, {}, p.type));
	p.y += count;
	TRY(run<large_tile>(b, p, {}));
	p.y += count;
	TRY(run<middle_tile>(b, p, {}));
	p.y += count;
	TRY(run<small_tile>(b, p, {}));
	TRY(b->download(b, host, space, bytes));
	for (int64_t i = 0; i < count; i++)
		for (int t = 1; t < RESULTS; t++)
			*same &= y[i] == y[t * count + i];
	return STATUS_OK;
}

status cuda_wgmma_check(cuda_backend *c, bool *same)
{
	size_t bytes = 0;
	for (const check_size &s : check_sizes) {
		const size_t each = (size_t)(s.rows * s.k + s.n * s.k / PANEL_PAIR + RESULTS * s.rows * s.n) * 4;
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
		if (s == STATUS_OK)
			s = check_product(b, size, host, (unsigned char *)space, same);
	b->release(b, space);
	free(host);
	return s;
}
