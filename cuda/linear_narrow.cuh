/* linear_narrow.cuh - linear over panels for few rows. A block has one panel, cut into slices that its warps process in
 * parallel.
 *
 * Decode is many small kernels, so this kernel also does the operations around its product (panel_chain). It applies a
 * layernorm to x, or converts x to bytes; every block repeats that for its own rows. Products with the same x are side
 * by side in the grid. The thread that finishes an output applies the operations on y. The kernel begins early
 * (cuda_launch_early). Before it waits for the kernel that writes x it loads weights, each warp those of its slice: the
 * first AT_ONCE steps into registers, the rest into the L2 cache.
 *
 * Bytes that a block has in flight: all of its panel. Chains of instructions: a warp's slice, ⌈K / 128⌉ steps of two
 * dependent products in bf16 (about 33 clocks each), ⌈K / 256⌉ of one in int8. */
#ifndef CUDA_LINEAR_NARROW_CUH
#define CUDA_LINEAR_NARROW_CUH

#include "cuda/linear_ends.cuh"

enum { NARROW_THREADS = SLICES * WARP, F32_NARROW_THREADS = F32_SLICES * 4 };

/* --- x ------------------------------------------------------------------------------------------ */

/* Shared memory of a block: layernorm's weight and bias [K] each, two sums per warp of a row, and the largest
 * value per row and warp of the block. The sums of slices follow. */
struct narrow_space {
	float *weight, *bias, *sums, *squares;
	unsigned *tops;
	size_t bytes; /* their sum */
};

static inline __device__ __host__ narrow_space narrow_space_of(const row_norm &o, x_source source, bool bytes, int rows,
                                                               int warps, unsigned char *base)
{
	narrow_space s = {};
	const int width = source == X_NORM ? o.width : 0, sums = source == X_NORM ? rows * row_warps(o) : 0;
	s.weight = (float *)base;
	s.bias = s.weight + width;
	s.sums = s.bias + width;
	s.squares = s.sums + sums;
	s.tops = (unsigned *)(s.squares + sums);
	s.bytes = ((size_t)(2 * width + 2 * sums + (bytes ? rows * warps : 0)) * sizeof(float) + 15) / 16 * 16;
	return s;
}

/* Copy layernorm's weight and bias to shared memory, before x is complete. */
static __device__ __forceinline__ void bring_norm(const row_norm &o, const narrow_space &s)
{
	for (int i = 4 * threadIdx.x; i < o.width; i += 4 * blockDim.x) {
		copy_async(s.weight + i, o.weight + i);
		copy_async(s.bias + i, o.bias + i);
	}
	copy_commit();
}

/* Store each warp's share of the rows' sums; x [rows, width]. */
template <bool SQUARES>
static __device__ __forceinline__ void sum_rows(const row_norm &o, const narrow_space &s, const float *x, int rows)
{
	const int threads = rows * o.group, warps = row_warps(o);
	for (int i = threadIdx.x; i / WARP * WARP < threads; i += blockDim.x) { /* whole warps */
		const int row = i / o.group, at = i % o.group;
		const float *from = row < rows ? x + (int64_t)row * o.width : nullptr;
		float mean = 0.0f;
		if (SQUARES && from)
			mean = mean_of(sum_of_warps(s.sums + row * warps, warps), o.share);
		const float sum = warp_share<SQUARES>(o, from, at, mean);
		if (from && at % WARP == 0)
			(SQUARES ? s.squares : s.sums)[row * warps + at / WARP] = sum;
	}
	__syncthreads();
}

/* A row as this block's lanes see it. */
struct narrow_row {
	bool exists;
	const float *x;
	float mean, rstd, scale;
};

/* Row `row` of the block's `rows`, after sum_rows. first: the block's first row. */
template <x_source SOURCE>
static __device__ __forceinline__ narrow_row row_of(const panel_product &p, const row_norm &o, const narrow_space &s,
                                                    int64_t first, int row, int rows)
{
	narrow_row r = {row < rows, p.x + (first + row) * p.k, 0.0f, 0.0f, 0.0f};
	if (SOURCE == X_NORM && r.exists) {
		const int warps = row_warps(o);
		r.mean = mean_of(sum_of_warps(s.sums + row * warps, warps), o.share);
		r.rstd = rstd_of(sum_of_warps(s.squares + row * warps, warps), o);
	}
	return r;
}

/* x[k … k + 3], normalised if the call has a layernorm; zeros past the end. */
template <x_source SOURCE>
static __device__ __forceinline__ float4 four_of_row(const panel_product &p, const narrow_space &s, const narrow_row &r,
                                                     int k)
{
	if (!r.exists || k >= p.k)
		return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
	const float4 x = SOURCE == X_ODD ? four_of(p, r.x, k) : *(const float4 *)(r.x + k);
	if (SOURCE != X_NORM)
		return x;
	const numbers<4> y = normalised(numbers<4>{{x.x, x.y, x.z, x.w}}, r.mean, r.rstd, load<4>(s.weight + k),
	                                load<4>(s.bias + k));
	return make_float4(y.at[0], y.at[1], y.at[2], y.at[3]);
}

/* Store each warp's largest values of the rows that are converted to bytes. */
template <x_source SOURCE>
static __device__ __forceinline__ void find_tops(const panel_product &p, const row_norm &o, const narrow_space &s,
                                                 int64_t first, int rows)
{
	const int warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
	for (int row = 0; row < rows; row++) {
		const narrow_row r = row_of<SOURCE>(p, o, s, first, row, rows);
		unsigned top = 0;
		for (int k = 4 * threadIdx.x; k < p.k; k += 4 * blockDim.x)
			top = largest(top, four_of_row<SOURCE>(p, s, r, k));
		top = largest_of_lanes(top);
		if (threadIdx.x % WARP == 0)
			s.tops[row * warps + warp] = top;
	}
	__syncthreads();
}

template <x_source SOURCE>
static __device__ __forceinline__ float scale_of(const panel_product &p, const narrow_space &s, int64_t first, int row)
{
	if (SOURCE == X_READY)
		return p.row_scale[first + row];
	unsigned top = 0;
	for (int i = 0; i < NARROW_THREADS / WARP; i++)
		top = max(top, s.tops[row * (NARROW_THREADS / WARP) + i]);
	return row_scale_of(top, p.step);
}

/* Work of a block: its panel, in the product or a sibling, and its first row. */
struct narrow_place {
	unsigned block, blocks;
	int64_t row;
};

/* Store layernorm's result for other readers. Every block stores 16 columns; columns past the last block's are stored
 * by the next ones. */
static __device__ __forceinline__ void store_normalised(const panel_product &p, const panel_chain &c,
                                                        const narrow_space &s, const narrow_place &at, int rows)
{
	for (int i = threadIdx.x; i < rows * PANEL_WIDTH; i += blockDim.x) {
		const int row = i / PANEL_WIDTH;
		const narrow_row r = row_of<X_NORM>(p, c.norm, s, at.row, row, rows);
		for (int k = at.block * PANEL_WIDTH + i % PANEL_WIDTH; k < c.norm.width; k += at.blocks * PANEL_WIDTH)
			store(c.normalised + (at.row + row) * p.k + k,
			      normalised(load<1>(r.x + k), r.mean, r.rstd, load<1>(s.weight + k), load<1>(s.bias + k)));
	}
}

/* Compute the sums of x's rows and the values that depend on them alone, once x is complete. */
template <x_source SOURCE, bool BYTES>
static __device__ __forceinline__ void open_rows(const panel_product &p, const panel_chain &c, const narrow_space &s,
                                                 const narrow_place &at, int rows)
{
	if (SOURCE == X_NORM) {
		copy_wait<0>();
		sum_rows<false>(c.norm, s, p.x + at.row * p.k, rows);
		sum_rows<true>(c.norm, s, p.x + at.row * p.k, rows);
		if (c.normalised)
			store_normalised(p, c, s, at, rows);
	}
	if (BYTES && SOURCE != X_READY)
		find_tops<SOURCE>(p, c.norm, s, at.row, rows);
}

/* --- bf16 and int8 --------------------------------------------------------------------------------- */

/* A lane's share of a row in a step. */
template <class W, x_source SOURCE>
static __device__ __forceinline__ typename W::operand share_of(const panel_product &p, const narrow_space &s,
                                                               const narrow_row &r, int64_t row, int at)
{
	if constexpr ((int)W::GROUP == PANEL_PAIR)
		return W::make(four_of_row<SOURCE>(p, s, r, 4 * at));
	else if constexpr (SOURCE == X_READY)
		return W::load(p, row, at);
	else
		return make_uint2(four_bytes(four_of_row<SOURCE>(p, s, r, 8 * at), r.scale),
		                  four_bytes(four_of_row<SOURCE>(p, s, r, 8 * at + 4), r.scale));
}

/* A block's work: T · ROWS rows. */
template <class W, int T, x_source SOURCE>
static __device__ __forceinline__ void narrow_panel(const panel_product &whole, const panel_chain &c,
                                                    const narrow_place &place)
{
	typedef typename W::sum sum;
	enum {
		AT_ONCE = T > 2 ? 4 : 8, /* steps whose weights a lane holds or has requested */
		TAKEN = T > 1 ? 2 : 4,   /* steps whose x it holds */
		BYTES = (int)W::GROUP == PANEL_GROUP,
		FINISHED = (T * ROWS * PANEL_WIDTH + NARROW_THREADS - 1) / NARROW_THREADS, /* outputs per thread */
		STEP_BYTES = STEP_WORDS * PANEL_WIDTH * sizeof(unsigned)
	};
	const int lane = threadIdx.x % WARP, slice = threadIdx.x / WARP;
	int64_t panel;
	const panel_product p = panel_product_of<1>(whole, c.siblings, place.block, panel);
	const int64_t row = place.row;
	const int rows = (int)min(p.rows - row, (int64_t)T * ROWS);
	const int length = (int)p.slice, steps = (int)p.steps, slices = length ? (steps + length - 1) / length : 0;
	const int first = slice * length, last = min(first + length, steps);
	const narrow_space space = narrow_space_of(c.norm, SOURCE, BYTES && SOURCE != X_READY, T * ROWS, SLICES,
	                                           shared_memory<unsigned char>());
	unsigned a[AT_ONCE][4] = {};
	closing closings[FINISHED];
#pragma unroll
	for (int i = 0; i < AT_ONCE; i++)
		if (first + i < last)
			load_weights<W>(p, panel, first + i, a[i]);
	const int64_t held = W::HEADER + (int64_t)(first + AT_ONCE) * STEP_BYTES; /* bytes up to the rest */
	prefetch_bytes(p.panels + panel * p.panel_bytes + held,
	               min(W::HEADER + (int64_t)last * STEP_BYTES, p.panel_bytes) - held, lane, WARP);
	if (place.row == 0)
		bring_ahead(c.ahead, place.block);
	if (SOURCE == X_NORM)
		bring_norm(c.norm, space);
#pragma unroll
	for (int i = 0; i < FINISHED; i++)
		closings[i] = closing_of<BYTES>(p, panel, row, rows, threadIdx.x + i * NARROW_THREADS);
	wait_for_previous();
	let_next_begin();
#pragma unroll
	for (int i = 0; i < FINISHED; i++)
		read_operands(c, closings[i]);
	open_rows<SOURCE, BYTES>(p, c, space, place, rows);
	narrow_row r[T];
#pragma unroll
	for (int t = 0; t < T; t++) {
		r[t] = row_of<SOURCE>(p, c.norm, space, row, t * ROWS + lane / 4, rows);
		if (BYTES && SOURCE != X_READY && r[t].exists)
			r[t].scale = scale_of<SOURCE>(p, space, row, t * ROWS + lane / 4);
	}
	sum d[T][4] = {};
	for (int step = first; step < last; step += AT_ONCE)
#pragma unroll
		for (int at = 0; at < AT_ONCE; at += TAKEN) {
			typename W::operand x[TAKEN][T];
#pragma unroll
			for (int i = 0; i < TAKEN; i++)
#pragma unroll
				for (int t = 0; t < T; t++)
					x[i][t] = share_of<W, SOURCE>(p, space, r[t], row + t * ROWS + lane / 4,
					                              (step + at + i) * 4 + lane % 4);
#pragma unroll
			for (int i = 0; i < TAKEN; i++) {
				if (step + at + i >= last)
					continue;
#pragma unroll
				for (int t = 0; t < T; t++)
					W::product(d[t], a[at + i], x[i][t]);
				if (step + at + i + AT_ONCE < last)
					load_weights<W>(p, panel, step + at + i + AT_ONCE, a[at + i]);
			}
		}
	sum *sums = shared_memory<sum>(space.bytes); /* [slice][t][element][lane] */
#pragma unroll
	for (int t = 0; t < T; t++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			sums[((slice * T + t) * 4 + e) * WARP + lane] = d[t][e];
	__syncthreads();
#pragma unroll
	for (int i = 0; i < FINISHED; i++) {
		const closing &o = closings[i];
		if (!o.exists)
			continue;
		const int v = threadIdx.x + i * NARROW_THREADS, output = v % PANEL_WIDTH, side = o.row % ROWS;
		const sum *from = sums + (o.row / ROWS * 4 + output % 2 * 2 + side % 2) * WARP + output / 2 * 4 + side / 2;
		sum total = 0;
		for (int j = 0; j < slices; j++)
			total += from[j * T * 4 * WARP];
		if constexpr (BYTES)
			close(p, c, o, with_scales(total, scale_of<SOURCE>(p, space, row, o.row), o.scale));
		else
			close(p, c, o, total);
	}
}

/* Shared memory of a block, bytes. */
template <class W, int T, x_source SOURCE> static inline size_t narrow_bytes(const panel_chain &c)
{
	const bool bytes = (int)W::GROUP == PANEL_GROUP && SOURCE != X_READY;
	return narrow_space_of(c.norm, SOURCE, bytes, T * ROWS, SLICES, nullptr).bytes +
	       SLICES * T * 4 * WARP * sizeof(typename W::sum);
}

#endif
