/* linear over panels for many rows, without wgmma (linear_wgmma.cu).
 *
 * bf16 and int8: a warp has 64 outputs by 32 rows, and a block several warps side by side. A block walks over K with
 * its packed weights and its x in shared memory, up to RING stages ahead (cp.async). It closes a slice when the next
 * one begins. x stays f32 (int8: bytes) until a lane has its share in registers, where it is cut into hi + lo. That
 * takes 12 instructions for 8 products, which take a tensor core 51 clocks. A kernel that prepared these operands would
 * save the instructions, but they have 4 bytes per element too, and it would cost a launch.
 *
 * A product (16 outputs by 8 rows by a step) takes a multiprocessor 1.6 clocks on Hopper (mma.sync, 60 % of wgmma's
 * speed). It is bounded by the bytes that it needs, which depend on a block's tile, outputs x rows:
 *
 *                                                  bf16  128 x 128  128 x 64  64 x 64      int8  128 x 128
 *   read from shared memory                                    128       128      128                  192
 *   written to it                                               48        64       96                   64
 *   clocks by shared memory, 128 bytes a clock                 1.4       1.5     1.75                    2
 *   clocks by L2, 24 bytes a clock if all are busy               2       2.7        4                  2.7
 *
 * Hence the large tile. Registers limit its size: a thread has 64 sums of the current slice and 64 of the earlier ones.
 * The other tiles are for calls with too few large ones for the device. A tensor core needs two warps, since one waits
 * for its own loads. So the 64 x 64 tile has four groups of two warps. A group has two slices, and sums are passed from
 * group to group in the slices' order.
 *
 * Shared memory has 16-byte pieces, laid out without bank conflicts among lanes that are served together. A step of a
 * panel is four rows of 128 bytes (row q: words 2q and 2q + 1); piece c of row q is at c ^ 2q. A stage of x is
 * [step][row][4 raws]; odd steps have rows 2i and 2i + 1 exchanged, to avoid conflicts in the copy.
 *
 * f32: a thread has 8 rows and 4 outputs. For 4 inputs, 128 of about 145 instructions are products and 12 are loads
 * from shared memory, of which 8 have one address for 16 lanes. So the multiply-adds are the bound. */
#include "cuda/linear_panels.cuh"

enum {
	WARP_PANELS = 4,
	WARP_TILES = 4,                           /* in ROWS rows each */
	RING = 4,                                 /* stages of shared memory */
	STEP_BYTES = STEP_WORDS * PANEL_WIDTH * 4 /* per panel */
};

/* A block: GROUPS groups, each of ACROSS (outputs) x DOWN (rows) warps; STAGE steps per stage. */
template <int ACROSS, int DOWN, int GROUPS_, int STAGE_> struct wide_tile {
	enum {
		PANELS = ACROSS * WARP_PANELS,
		ROWS_HELD = DOWN * WARP_TILES * ROWS,
		WARPS_ACROSS = ACROSS,
		GROUPS = GROUPS_,
		STAGE = STAGE_,
		MEMBERS = ACROSS * DOWN * WARP, /* threads per group */
		THREADS = MEMBERS * GROUPS,
		WEIGHT_BYTES = PANELS * STAGE * STEP_BYTES /* per stage */
	};
};
template <class W, class T> struct wide_stage {
	enum { BYTES = T::WEIGHT_BYTES + T::ROWS_HELD * T::STAGE * 4 * (int)sizeof(typename W::raw) };
};
typedef wide_tile<2, 4, 1, 2> large_tile;
typedef wide_tile<2, 2, 1, 2> middle_tile;
typedef wide_tile<1, 2, 4, 1> small_tile;

/* --- stages ---------------------------------------------------------------------------------------- */

/* Offset of raw q of a row and step. */
template <class T> static __device__ __forceinline__ int raw_place(int row, int step, int q)
{
	return (step * T::ROWS_HELD + (row ^ (step & 1))) * 4 + q;
}

/* A thread's share of every stage: a piece of some panels and a piece of some rows, the same in each. Panels and rows
 * past the last repeat the last (their results are not stored); inputs past K are zeros. */
template <class W, class T> struct stage_copy {
	typedef typename W::raw raw;
	enum {
		EACH = 16 / sizeof(raw), /* raws per piece */
		PANEL_PIECES = T::STAGE * STEP_BYTES / 16,
		ROW_PIECES = T::STAGE * 4 / EACH,
		PANELS_APART = T::MEMBERS / PANEL_PIECES,
		ROWS_APART = T::MEMBERS / ROW_PIECES
	};
	const unsigned char *panel[T::PANELS / PANELS_APART], *row[T::ROWS_HELD / ROWS_APART];
	int panel_to, row_to; /* in a stage */
	int words, raws;      /* left along K, from the piece on */

	__device__ __forceinline__ stage_copy(const panel_product &p, int64_t first_panel, int64_t first_row, int step,
	                                      int member)
	{
		const int piece = member % PANEL_PIECES, of = member % ROW_PIECES * EACH;
		const int held_panel = member / PANEL_PIECES, held_row = member / ROW_PIECES;
		const unsigned char *x = W::EXACT ? (const unsigned char *)p.bytes : (const unsigned char *)p.x;
		const int64_t row_bytes = W::EXACT ? p.steps * 4 * sizeof(raw) : p.k * sizeof(float);
#pragma unroll
		for (int i = 0; i < T::PANELS / PANELS_APART; i++)
			panel[i] = p.panels + W::HEADER + (int64_t)step * STEP_BYTES + piece * 16 +
			           min(first_panel + held_panel + i * PANELS_APART, p.panel_count - 1) * p.panel_bytes;
#pragma unroll
		for (int i = 0; i < T::ROWS_HELD / ROWS_APART; i++)
			row[i] = x + ((int64_t)step * 4 + of) * sizeof(raw) +
			         min(first_row + held_row + i * ROWS_APART, p.rows - 1) * row_bytes;
		panel_to = held_panel * T::STAGE * STEP_BYTES + piece / 8 * 128 + (piece % 8 ^ piece / 8 % 4 * 2) * 16;
		row_to = T::WEIGHT_BYTES + raw_place<T>(held_row, of / 4, of % 4) * (int)sizeof(raw);
		words = (int)((p.k + W::GROUP - 1) / W::GROUP) - step * STEP_WORDS - piece / 4;
		raws = (int)(W::EXACT ? 4 * p.steps : (p.k + 3) / 4) - step * 4 - of;
	}

	/* Start to copy the next stage's weights. */
	__device__ __forceinline__ void bring_weights(unsigned char *stage)
	{
#pragma unroll
		for (int i = 0; i < T::PANELS / PANELS_APART; i++) {
			copy_async(stage + panel_to + i * PANELS_APART * T::STAGE * STEP_BYTES, panel[i],
			           words > 0 ? 16 : 0);
			panel[i] += T::STAGE * STEP_BYTES;
		}
		words -= T::STAGE * STEP_WORDS;
	}
	__device__ __forceinline__ void bring_x(const panel_product &p, unsigned char *stage)
	{
		enum { APART = ROWS_APART * 4 * sizeof(raw) };
		if (W::EXACT || p.packed) {
#pragma unroll
			for (int i = 0; i < T::ROWS_HELD / ROWS_APART; i++)
				copy_async(stage + row_to + i * APART, row[i], raws > 0 ? 16 : 0);
		} else {
			for (int e = 0; e < 4; e++) {
				const bool exists = raws > 1 || (raws == 1 && e < (p.k + 3) % 4 + 1);
#pragma unroll
				for (int i = 0; i < T::ROWS_HELD / ROWS_APART; i++)
					((float *)(stage + row_to + i * APART))[e] =
					    exists ? ((const float *)row[i])[e] : 0.0f;
			}
		}
#pragma unroll
		for (int i = 0; i < T::ROWS_HELD / ROWS_APART; i++)
			row[i] += T::STAGE * 4 * sizeof(raw);
		raws -= T::STAGE * 4;
	}
};

/* --- products -------------------------------------------------------------------------------------- */

template <class W> struct wide_sums {
	typename W::sum at[WARP_PANELS][WARP_TILES][4]; /* [product's outputs][rows][lane's sums] */
};

/* d += the products of a step of the stage. The warp's panels and rows begin at `panel` and `row` of the block's. */
template <class W, class T>
static __device__ __forceinline__ void linear_wide_add_step(wide_sums<W> &d, const unsigned char *stage, int panel,
                                                            int row, int step)
{
	const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4, piece = g / 2 ^ 2 * q;
	const unsigned char *weights =
	    stage + (panel * T::STAGE + step) * STEP_BYTES + q * 128 + piece * 16 + g % 2 * 8;
	const typename W::raw *x = (const typename W::raw *)(stage + T::WEIGHT_BYTES) + raw_place<T>(row + g, step, q);
	const int other = q < 2 ? 64 : -64; /* from a piece to the next word's: piece ^ 4 */
	unsigned a[WARP_PANELS][4];
	typename W::operand o[WARP_TILES];
#pragma unroll
	for (int t = 0; t < WARP_TILES; t++)
		o[t] = W::make(x[t * ROWS * 4]);
#pragma unroll
	for (int m = 0; m < WARP_PANELS; m++) {
		const uint2 one = *(const uint2 *)(weights + m * T::STAGE * STEP_BYTES);
		const uint2 two = *(const uint2 *)(weights + m * T::STAGE * STEP_BYTES + other);
		a[m][0] = one.x;
		a[m][1] = one.y;
		a[m][2] = two.x;
		a[m][3] = two.y;
	}
#pragma unroll
	for (int i = 0; i < W::TERMS; i++)
#pragma unroll
		for (int t = 0; t < WARP_TILES; t++)
#pragma unroll
			for (int m = 0; m < WARP_PANELS; m++)
				W::term(d.at[m][t], a[m], o[t], i);
}

/* total += d, element by element. */
template <class W> static __device__ __forceinline__ void add_sums(wide_sums<W> &total, const wide_sums<W> &d)
{
#pragma unroll
	for (int m = 0; m < WARP_PANELS; m++)
#pragma unroll
		for (int t = 0; t < WARP_TILES; t++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				total.at[m][t][e] += d.at[m][t][e];
}

/* --- ends ------------------------------------------------------------------------------------------- */

/* Finish and store COUNT neighbouring outputs of a row. */
template <int COUNT, class S>
static __device__ __forceinline__ void store_some(const panel_product &p, int64_t row, int64_t output, const S *sum)
{
	float y[COUNT];
	if (row >= p.rows)
		return;
#pragma unroll
	for (int e = 0; e < COUNT; e++)
		y[e] = output + e < p.n ? finished(p, output + e, real_sum(p, row, output + e, sum[e])) : 0.0f;
	store_outputs<COUNT>(p, row, output, y);
}

template <class W>
static __device__ __forceinline__ void store_sums(const panel_product &p, int64_t panel, int64_t row,
                                                  const wide_sums<W> &total)
{
	const int lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
#pragma unroll
	for (int m = 0; m < WARP_PANELS; m++)
#pragma unroll
		for (int t = 0; t < WARP_TILES; t++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				const typename W::sum two[2] = {total.at[m][t][e], total.at[m][t][2 + e]};
				store_some<2>(p, row + t * ROWS + 2 * q + e, (panel + m) * PANEL_WIDTH + 2 * g, two);
			}
}

/* A lane's share of a warp's sums, passed from group to group. `pass` has the same layout, lanes side by side. */
template <class W> struct alignas(16) passed_sums {
	typename W::sum at[4];
};
template <class W> static __device__ __forceinline__ void give_sums(passed_sums<W> *pass, const wide_sums<W> &total)
{
#pragma unroll
	for (int i = 0; i < WARP_PANELS * WARP_TILES; i++) {
		const typename W::sum *of = total.at[i / WARP_TILES][i % WARP_TILES];
		pass[i * WARP] = {{of[0], of[1], of[2], of[3]}};
	}
}
/* d += the sums in `pass`. */
template <class W> static __device__ __forceinline__ void take_sums(wide_sums<W> &d, const passed_sums<W> *pass)
{
#pragma unroll
	for (int i = 0; i < WARP_PANELS * WARP_TILES; i++) {
		const passed_sums<W> before = pass[i * WARP];
#pragma unroll
		for (int e = 0; e < 4; e++)
			d.at[i / WARP_TILES][i % WARP_TILES][e] += before.at[e];
	}
}

/* Block: T::PANELS panels of the product or a sibling by blockIdx.y, rows from blockIdx.x · T::ROWS_HELD. */
template <class W, class T>
__global__ void __launch_bounds__(T::THREADS) wide_kernel(panel_product whole, panel_siblings siblings)
{
	enum { STAGE_BYTES = wide_stage<W, T>::BYTES };
	const int member = threadIdx.x % T::MEMBERS, group = threadIdx.x / T::MEMBERS, warp = member / WARP;
	const int64_t row = (int64_t)blockIdx.x * T::ROWS_HELD;
	int64_t panel;
	const panel_product p = panel_product_of<T::PANELS>(whole, siblings, blockIdx.y, panel);
	const int first_panel = warp % T::WARPS_ACROSS * WARP_PANELS,
	          first_row = warp / T::WARPS_ACROSS * WARP_TILES * ROWS;
	const int slice = (int)p.slice, each = min(SLICES / T::GROUPS * slice, (int)p.steps), /* steps per group */
	    first = group * each, mine = max(min(each, (int)p.steps - first), 0),
	          stages = (each + T::STAGE - 1) / T::STAGE;
	unsigned char *ring = shared_memory<unsigned char>() + group * RING * STAGE_BYTES;
	wide_sums<W> d = {}, total = {};
	stage_copy<W, T> copy(p, panel, row, first, member);
	for (int i = 0; i < RING - 1 && i < stages; i++)
		copy.bring_weights(ring + i * STAGE_BYTES);
	wait_for_previous();
	let_next_begin();
	for (int i = 0; i < RING - 1; i++) {
		if (i < stages)
			copy.bring_x(p, ring + i * STAGE_BYTES);
		copy_commit();
	}
	int left = slice; /* steps left in the slice */
	for (int i = 0; i < stages; i++) {
		copy_wait<RING - 2>();
		__syncthreads(); /* also: all threads have left the previous stage */
		const int next = i + RING - 1;
		if (next < stages) {
			copy.bring_weights(ring + next % RING * STAGE_BYTES);
			copy.bring_x(p, ring + next % RING * STAGE_BYTES);
		}
		copy_commit();
#pragma unroll
		for (int s = 0; s < T::STAGE; s++) {
			if (i * T::STAGE + s >= mine)
				break;
			if (!W::EXACT && left-- == 0) {
				add_sums(total, d);
				d = {};
				left = slice - 1;
			}
			linear_wide_add_step<W, T>(d, ring + i % RING * STAGE_BYTES, first_panel, first_row, s);
		}
	}
	if (T::GROUPS > 1) { /* one group after another: total += its slices */
		passed_sums<W> *pass =
		    shared_memory<passed_sums<W>>() + warp * WARP_PANELS * WARP_TILES * WARP + threadIdx.x % WARP;
		copy_wait<0>();
		for (int g = 0; g < T::GROUPS; g++) {
			__syncthreads();
			if (g != group)
				continue;
			if (g > 0)
				take_sums(total, pass);
			add_sums(total, d);
			if (g < T::GROUPS - 1)
				give_sums(pass, total);
		}
		if (group < T::GROUPS - 1)
			return;
	} else {
		add_sums(total, d);
	}
	store_sums<W>(p, panel + first_panel, row + first_row, total);
}

/* --- f32 ------------------------------------------------------------------------------------------ */

enum {
	F32_WIDE_ROWS = 64,  /* per block */
	F32_WIDE_PANELS = 4, /* panels per block */
	F32_WIDE_THREADS = 128,
	F32_STAGE = 16, /* inputs */
	F32_STAGE_STRIDE = 20,
	F32_WIDE_HELD = 8 /* rows per thread */
};

/* A stage of f32: weights [inputs][4 panels × 16], then x [rows][stride]. */
enum {
	F32_OUTPUTS = F32_WIDE_PANELS * PANEL_WIDTH,
	F32_STAGE_FLOATS = F32_STAGE * F32_OUTPUTS + F32_WIDE_ROWS * F32_STAGE_STRIDE
};

static __device__ __forceinline__ void load_f32_stage(const panel_product &p, int64_t row, int64_t panel, int64_t k,
                                                      float *stage)
{
	float *x = stage + F32_STAGE * F32_OUTPUTS;
#pragma unroll
	for (int i = 0; i < F32_STAGE * F32_OUTPUTS / 4 / F32_WIDE_THREADS; i++) {
		const int at = threadIdx.x + i * F32_WIDE_THREADS, input = at / (F32_OUTPUTS / 4),
		          c = at % (F32_OUTPUTS / 4);
		const bool exists = panel + c / 4 < p.panel_count && k + input < p.k;
		const unsigned char *from = p.panels + (panel + c / 4) * p.panel_bytes;
		copy_async(stage + input * F32_OUTPUTS + c * 4,
		           exists ? (const float *)from + (k + input) * PANEL_WIDTH + c % 4 * 4
		                 : (const float *)p.panels,
		           exists ? 16 : 0);
	}
#pragma unroll
	for (int i = 0; i < F32_WIDE_ROWS * F32_STAGE / 4 / F32_WIDE_THREADS; i++) {
		const int at = threadIdx.x + i * F32_WIDE_THREADS, r = at / (F32_STAGE / 4),
		          c = at % (F32_STAGE / 4) * 4;
		if (p.packed) {
			const bool exists = row + r < p.rows && k + c < p.k;
			copy_async(x + r * F32_STAGE_STRIDE + c, exists ? p.x + (row + r) * p.k + k + c : p.x,
			           exists ? 16 : 0);
		} else {
			*(float4 *)(x + r * F32_STAGE_STRIDE + c) = four_of_x(p, row + r, k + c);
		}
	}
	copy_commit();
}

/* Block: rows from blockIdx.x · F32_WIDE_ROWS, F32_WIDE_PANELS panels of the product or a sibling by blockIdx.y. A
 * thread has 4 outputs of every eighth row. */
static __global__ void __launch_bounds__(F32_WIDE_THREADS) f32_wide_kernel(panel_product whole, panel_siblings siblings)
{
	const int column = threadIdx.x % (F32_OUTPUTS / 4) * 4, first = threadIdx.x / (F32_OUTPUTS / 4);
	const int64_t row = (int64_t)blockIdx.x * F32_WIDE_ROWS;
	int64_t panel;
	const panel_product p = panel_product_of<F32_WIDE_PANELS>(whole, siblings, blockIdx.y, panel);
	float *stages = shared_memory<float>();
	float sum[F32_WIDE_HELD][4] = {}, total[F32_WIDE_HELD][4] = {};
	int64_t left = p.slice; /* inputs left in the slice */
	wait_for_previous();
	let_next_begin();
	load_f32_stage(p, row, panel, 0, stages);
	for (int64_t k = 0; k < p.k; k += F32_STAGE) {
		const float *w = stages + k / F32_STAGE % 2 * F32_STAGE_FLOATS, *x = w + F32_STAGE * F32_OUTPUTS;
		copy_wait<0>();
		__syncthreads(); /* also: all threads have left the other stage */
		load_f32_stage(p, row, panel, k + F32_STAGE, stages + (k / F32_STAGE + 1) % 2 * F32_STAGE_FLOATS);
		for (int i = 0; i < F32_STAGE && k + i < p.k; i += 4) {
			float4 weight[4];
#pragma unroll
			for (int e = 0; e < 4; e++)
				weight[e] = *(const float4 *)(w + (i + e) * F32_OUTPUTS + column);
#pragma unroll
			for (int r = 0; r < F32_WIDE_HELD; r++)
				add_four(sum[r],
				         *(const float4 *)(x + (first + r * F32_WIDE_HELD) * F32_STAGE_STRIDE + i),
				         weight);
			left -= 4;
			if (left > 0 && k + i + 4 < p.k)
				continue;
			left = p.slice;
#pragma unroll
			for (int r = 0; r < F32_WIDE_HELD; r++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					total[r][e] += sum[r][e];
					sum[r][e] = 0.0f;
				}
		}
	}
	copy_wait<0>();
#pragma unroll
	for (int r = 0; r < F32_WIDE_HELD; r++)
		store_some<4>(p, row + first + r * F32_WIDE_HELD, panel * PANEL_WIDTH + column, total[r]);
}

/* --- the call -------------------------------------------------------------------------------------- */

/* Bytes of x that a row needs for a step. */
static int64_t step_bytes_of_x(const panel_product &p)
{
	return p.type == DTYPE_PANEL_BF16 ? STEP_WORDS * PANEL_PAIR * sizeof(float) : STEP_WORDS * PANEL_GROUP;
}

/* Minimum clocks of a product with a tile: those of the tensor cores until the last block has ended, 7/4 per product,
 * or those of the copies from L2. */
template <class T>
static int64_t clocks_of(const backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const int64_t processors = cuda_of(b)->processors, terms = p.type == DTYPE_PANEL_BF16 ? 2 : 1;
	const int64_t blocks = panel_parts(p.rows, T::ROWS_HELD) * panel_blocks<T::PANELS>(p, siblings);
	const int64_t products = panel_parts(blocks, processors) * p.steps * T::PANELS * (T::ROWS_HELD / ROWS) * terms;
	const int64_t bytes = blocks * p.steps * (T::PANELS * STEP_BYTES + T::ROWS_HELD * step_bytes_of_x(p));
	return max(products * 7 / 4, bytes / (L2_CLOCK * processors));
}

static int64_t tile_clocks(const backend *b, const panel_product &p, const panel_siblings &siblings)
{
	return min(min(clocks_of<large_tile>(b, p, siblings), clocks_of<middle_tile>(b, p, siblings)),
	           clocks_of<small_tile>(b, p, siblings));
}

/* Minimum clocks of the narrow kernels, with blocks of a panel by 32 rows, which load everything through L1. x stays in
 * L1 if these rows fit. */
static int64_t narrow_clocks(const backend *b, const panel_product &p)
{
	enum { NARROW_ROWS = 4 * ROWS, KEPT = 128 << 10 };
	const int64_t x = NARROW_ROWS * step_bytes_of_x(p), from_l2 = x * p.steps > KEPT ? x : 0;
	const int64_t steps = panel_parts(p.rows, NARROW_ROWS) * p.panel_count * p.steps;
	return steps * max((STEP_BYTES + x) / L1_CLOCK, (STEP_BYTES + from_l2) / L2_CLOCK) / cuda_of(b)->processors;
}

/* A narrow product is often one kernel with its neighbours in the plan, which saves a launch of 1.3 µs. An H100 took
 * three times these minima for narrow kernels, and for those of mma.sync. A warp of wgmma does not wait for its
 * products; WGMMA_ENDS clocks are its first loads and last sums. */
bool cuda_panels_is_wide(const backend *b, const panel_product &p)
{
	enum { LAUNCH = 2300, WGMMA_ENDS = 3000, NARROW_FACTOR = 3, F32_WORTH = 3 };
	const int64_t f32_blocks = panel_parts(p.rows, F32_WIDE_ROWS) * panel_parts(p.panel_count, F32_WIDE_PANELS);
	if (p.rows <= 2 * ROWS)
		return false;
	if (cuda_panels_may_wgmma(b, p))
		return cuda_panels_wgmma_clocks(b, p, {}) + WGMMA_ENDS + LAUNCH < NARROW_FACTOR * narrow_clocks(b, p);
	return p.type == DTYPE_PANEL_F32 ? f32_blocks * F32_WORTH >= cuda_of(b)->processors
	                                 : tile_clocks(b, p, {}) + LAUNCH < narrow_clocks(b, p);
}

template <class W, class T> static status words(backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const dim3 grid(cuda_parts(p.rows, T::ROWS_HELD), cuda_extent(panel_blocks<T::PANELS>(p, siblings)));
	return cuda_launch_early(b, wide_kernel<W, T>, grid, T::THREADS, T::GROUPS * RING * wide_stage<W, T>::BYTES, p,
	                         siblings);
}

template <class W> static status words(backend *b, const panel_product &p, const panel_siblings &siblings)
{
	const int64_t least = tile_clocks(b, p, siblings);
	if (clocks_of<large_tile>(b, p, siblings) == least)
		return words<W, large_tile>(b, p, siblings);
	if (clocks_of<middle_tile>(b, p, siblings) == least)
		return words<W, middle_tile>(b, p, siblings);
	return words<W, small_tile>(b, p, siblings);
}

status cuda_panels_wide(backend *b, const panel_product &p, const panel_siblings &siblings, dtype type)
{
	if (cuda_panels_may_wgmma(b, p))
		return cuda_panels_wgmma(b, p, siblings);
	if (type == DTYPE_PANEL_BF16)
		return words<bf16_words>(b, p, siblings);
	if (type == DTYPE_PANEL_INT8)
		return words<int8_words>(b, p, siblings);
	const dim3 grid(cuda_parts(p.rows, F32_WIDE_ROWS), cuda_extent(panel_blocks<F32_WIDE_PANELS>(p, siblings)));
	return cuda_launch_early(b, f32_wide_kernel, grid, F32_WIDE_THREADS, 2 * F32_STAGE_FLOATS * sizeof(float), p,
	                         siblings);
}
