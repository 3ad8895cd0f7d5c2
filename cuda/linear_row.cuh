/* linear_row.cuh - products over panels for one row: how a block turns the row into operands, for the kernels of
 * linear_row.cu and for programs (program.cu).
 *
 * With one row a kernel takes as long as the instructions that a warp executes one after another, some five clocks
 * each. So nothing is computed twice. Each number of x belongs to one thread: it is normalised and converted to
 * operands once, and stored in shared memory in the form that products take. layernorm's weights are in registers
 * before x is complete, and x is read once for both sums. A product has 8 rows, of which only the first is used: 4
 * lanes load operands, and 8 lanes have results.
 *
 * Unsupported: rows that are not whole packs or too long, a layernorm with more threads than a block has, and f32. */
#ifndef CUDA_LINEAR_ROW_CUH
#define CUDA_LINEAR_ROW_CUH

#include "cuda/linear_ends.cuh"

enum {
	ROW_BLOCK = SLICES * WARP,
	HELD = 8, /* steps whose weights a lane holds */
	STEP_BYTES = STEP_WORDS * PANEL_WIDTH * 4,
	MOST_OPERANDS = 44 << 10 /* bytes */
};

/* Shared memory: sums of the slices, then the values of the row that warps exchange, then its operands [steps · 4]. */
template <class W> struct row_space {
	typename W::sum sums[SLICES][PANEL_WIDTH];
	float sum[SLICES], squares[SLICES];
	unsigned top[SLICES], spare[SLICES];
};

/* Store four inputs as operands; pack i has inputs 4i … 4i + 3. */
template <class W>
static __device__ __forceinline__ void put_pack(typename W::operand *operands, int pack, float4 x, float scale)
{
	if constexpr (W::EXACT)
		((unsigned *)operands)[pack] = four_bytes(x, scale);
	else
		operands[pack] = W::make(x);
}

/* Store zeros past K up to a whole step. */
template <class W>
static __device__ __forceinline__ void put_padding(const panel_product &p, typename W::operand *operands)
{
	enum { PACKS = STEP_WORDS * (int)W::GROUP / 4 };
	const int pack = (int)p.k / 4 + (int)threadIdx.x;
	if (pack < (int)p.steps * PACKS)
		put_pack<W>(operands, pack, make_float4(0.0f, 0.0f, 0.0f, 0.0f), 1.0f);
}

/* The scale of the row, from each warp's largest value. */
template <class W>
static __device__ __forceinline__ float scale_of_warps(const panel_product &p, row_space<W> *s, unsigned top)
{
	top = largest_of_lanes(top);
	if (threadIdx.x % WARP == 0)
		s->top[threadIdx.x / WARP] = top;
	__syncthreads();
	top = 0;
#pragma unroll
	for (int i = 0; i < SLICES; i++)
		top = max(top, s->top[i]);
	return row_scale_of(top, p.step);
}

/* The thread's packs of a row with a layernorm, and layernorm's weights for them. The sums follow the tree of
 * layernorm.cuh. */
struct norm_share {
	bool exists[NORM_PER];
	numbers<4> weight[NORM_PER], bias[NORM_PER];
};

static __device__ __forceinline__ norm_share norm_share_of(const row_norm &o)
{
	norm_share m;
#pragma unroll
	for (int i = 0; i < NORM_PER; i++) {
		const int column = ((int)threadIdx.x + i * o.group) * 4;
		m.exists[i] = (int)threadIdx.x < o.group && column < o.width;
		if (!m.exists[i])
			continue;
		m.weight[i] = load<4>(o.weight + column);
		m.bias[i] = load<4>(o.bias + column);
	}
	return m;
}

template <class W>
static __device__ __forceinline__ float make_normalised(const panel_product &p, const panel_chain &c,
                                                        const norm_share &m, unsigned block, row_space<W> *s,
                                                        typename W::operand *operands)
{
	const row_norm &o = c.norm;
	const int warps = row_warps(o), warp = threadIdx.x / WARP;
	numbers<4> x[NORM_PER] = {};
	float sum = 0.0f, squares = 0.0f, scale = 0.0f;
	unsigned top = 0;
	if (warp < warps) {
#pragma unroll
		for (int i = 0; i < NORM_PER; i++)
			if (m.exists[i])
				x[i] = load<4>(p.x + (threadIdx.x + i * o.group) * 4);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++)
			if (m.exists[i])
				sum = plus(sum, x[i]);
		sum = lanes_sum(sum, o.group);
		if (threadIdx.x % WARP == 0)
			s->sum[warp] = sum;
	}
	__syncthreads();
	if (warp < warps) {
		const float mean = mean_of(sum_of_warps(s->sum, warps), o.share);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++)
			if (m.exists[i])
				squares = plus_squares(squares, x[i], mean);
		squares = lanes_sum(squares, o.group);
		if (threadIdx.x % WARP == 0)
			s->squares[warp] = squares;
	}
	__syncthreads();
	if (warp < warps) {
		const float mean = mean_of(sum_of_warps(s->sum, warps), o.share),
		            rstd = rstd_of(sum_of_warps(s->squares, warps), o);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++)
			if (m.exists[i]) {
				const int column = (threadIdx.x + i * o.group) * 4;
				x[i] = normalised(x[i], mean, rstd, m.weight[i], m.bias[i]);
				if (c.normalised && block == 0)
					store(c.normalised + column, x[i]);
				top = largest(top, make_float4(x[i].at[0], x[i].at[1], x[i].at[2], x[i].at[3]));
			}
	}
	if (W::EXACT)
		scale = scale_of_warps<W>(p, s, top);
#pragma unroll
	for (int i = 0; i < NORM_PER; i++)
		if (m.exists[i])
			put_pack<W>(operands, threadIdx.x + i * o.group,
			            make_float4(x[i].at[0], x[i].at[1], x[i].at[2], x[i].at[3]), scale);
	put_padding<W>(p, operands);
	__syncthreads();
	return scale;
}

template <class W>
static __device__ __forceinline__ float make_bytes(const panel_product &p, row_space<W> *s,
                                                   typename W::operand *operands)
{
	const int packs = (int)p.k / 4;
	unsigned top = 0;
	for (int i = threadIdx.x; i < packs; i += ROW_BLOCK)
		top = largest(top, *(const float4 *)(p.x + 4 * i));
	const float scale = scale_of_warps<W>(p, s, top);
	for (int i = threadIdx.x; i < packs; i += ROW_BLOCK)
		put_pack<W>(operands, i, *(const float4 *)(p.x + 4 * i), scale);
	put_padding<W>(p, operands);
	__syncthreads();
	return scale;
}

/* Store packs first … last - 1, the warp's own. */
template <class W>
static __device__ __forceinline__ void bring_packs(const panel_product &p, typename W::operand *operands, int first,
                                                   int last)
{
	enum { AT_ONCE = 4 };
	const int packs = (int)p.k / 4;
	for (int at = first + (int)threadIdx.x % WARP; at < last; at += AT_ONCE * WARP) {
		float4 x[AT_ONCE];
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			x[i] = at + i * WARP < min(last, packs) ? *(const float4 *)(p.x + 4 * (at + i * WARP))
			                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
			if (at + i * WARP < last)
				put_pack<W>(operands, at + i * WARP, x[i], 0.0f);
	}
	__syncwarp();
}

/* Begin with a panel: load the operands of the thread's output, and once wait() has returned, store x as operands. A
 * warp has packs first … last - 1. Return the scale of x. */
template <class W, x_source SOURCE, class WAIT>
static __device__ __forceinline__ float open_row(const panel_product &p, const panel_chain &c, int64_t panel,
                                                 unsigned block, int first, int last, row_space<W> *s,
                                                 typename W::operand *operands, const WAIT &wait, closing &o)
{
	norm_share m;
	if (SOURCE == X_NORM)
		m = norm_share_of(c.norm);
	if (threadIdx.x < PANEL_WIDTH)
		o = closing_of<W::EXACT>(p, panel, 0, 1, threadIdx.x);
	wait();
	if (threadIdx.x < PANEL_WIDTH)
		read_operands(c, o);
	if constexpr (SOURCE == X_NORM) {
		return make_normalised<W>(p, c, m, block, s, operands);
	} else if constexpr (SOURCE == X_BYTES) {
		return make_bytes<W>(p, s, operands);
	} else {
		bring_packs<W>(p, operands, first, last);
		return 0.0f;
	}
}

/* End a panel: add the slices, of which this warp's sums are d, and finish the thread's output. */
template <class W>
static __device__ __forceinline__ void close_row(const panel_product &p, const panel_chain &c, const closing &o,
                                                 float scale, const typename W::sum d[4],
                                                 typename W::sum (*sums)[PANEL_WIDTH])
{
	const int lane = threadIdx.x % WARP, slice = threadIdx.x / WARP;
	if (lane % 4 == 0) { /* column 0 of the product; its rows i and i + 8 are outputs 2i and 2i + 1 */
		sums[slice][lane / 2] = d[0];
		sums[slice][lane / 2 + 1] = d[2];
	}
	__syncthreads();
	if (!o.exists)
		return;
	typename W::sum total = 0;
	for (int j = 0; j < SLICES && j * (int)p.slice < (int)p.steps; j++)
		total += sums[j][threadIdx.x];
	if constexpr (W::EXACT)
		close(p, c, o, with_scales(total, scale, o.scale));
	else
		close(p, c, o, total);
}

/* Shared memory of a block, bytes. */
template <class W> static inline size_t row_bytes(const panel_product &p)
{
	return sizeof(row_space<W>) + p.steps * 4 * sizeof(typename W::operand);
}

#endif
