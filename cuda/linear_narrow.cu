/* linear over panels for few rows: a block has one panel, its slices side by side on warps. */
#include "cuda/linear_panels.cuh"

enum { NARROW_THREADS = SLICES * WARP, F32_NARROW_THREADS = F32_SLICES * 4 };

/* Block: panel blockIdx.x, rows from blockIdx.y · T · ROWS. */
template <class W, int T> __global__ void __launch_bounds__(NARROW_THREADS) narrow_kernel(panel_product p)
{
	typedef typename W::sum sum;
	enum { AT_ONCE = T > 2 ? 2 : 4 }; /* steps in flight */
	const int lane = threadIdx.x % WARP, slice = threadIdx.x / WARP;
	const int64_t panel = blockIdx.x, row = (int64_t)blockIdx.y * T * ROWS;
	const int64_t last = min((slice + 1) * p.slice, p.steps),
	              slices = p.slice ? (p.steps + p.slice - 1) / p.slice : 0;
	sum d[T][4] = {};
	for (int64_t step = slice * p.slice; step < last; step += AT_ONCE) {
		unsigned a[AT_ONCE][4] = {};
		typename W::raw x[AT_ONCE][T] = {};
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++) {
			if (step + i >= last)
				continue;
			load_weights<W>(p, panel, step + i, a[i]);
#pragma unroll
			for (int t = 0; t < T; t++)
				x[i][t] = W::load(p, row + t * ROWS + lane / 4, (step + i) * 4 + lane % 4);
		}
#pragma unroll
		for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
			for (int t = 0; t < T; t++)
				if (step + i < last)
					W::product(d[t], a[i], W::make(x[i][t]));
	}
	sum *sums = shared_memory<sum>(); /* [slice][t][element][lane] */
#pragma unroll
	for (int t = 0; t < T; t++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			sums[((slice * T + t) * 4 + e) * WARP + lane] = d[t][e];
	__syncthreads();
	for (int v = threadIdx.x; v < T * ROWS * PANEL_WIDTH; v += NARROW_THREADS) {
		const int output = v % PANEL_WIDTH, r = v / PANEL_WIDTH % ROWS, t = v / PANEL_WIDTH / ROWS;
		const sum *from = sums + (t * 4 + output % 2 * 2 + r % 2) * WARP + output / 2 * 4 + r / 2;
		sum total = 0;
		for (int s = 0; s < slices; s++)
			total += from[s * T * 4 * WARP];
		W::store(p, row + t * ROWS + r, panel * PANEL_WIDTH + output, total);
	}
}

/* Block: panel blockIdx.x, R rows from blockIdx.y · R. Four lanes for a slice, four outputs each. */
template <int R> __global__ void __launch_bounds__(F32_NARROW_THREADS, R > 4 ? 3 : 4) f32_narrow_kernel(panel_product p)
{
	const int slice = threadIdx.x / 4, column = threadIdx.x % 4 * 4;
	const int64_t panel = blockIdx.x, row = (int64_t)blockIdx.y * R;
	const int64_t last = min((slice + 1) * p.slice, p.k), slices = p.slice ? (p.k + p.slice - 1) / p.slice : 0;
	const float *from = (const float *)(p.panels + panel * p.panel_bytes) + column;
	float sum[R][4] = {};
#pragma unroll(R > 4 ? 1 : 2)
	for (int64_t k = slice * p.slice; k < last; k += 4) {
		float4 w[4];
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = k + i < p.k ? *(const float4 *)(from + (k + i) * PANEL_WIDTH)
			                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
		for (int r = 0; r < R; r++)
			add_four(sum[r], four_of_x(p, row + r, k), w);
	}
	float *sums = shared_memory<float>(); /* [slice][r][PANEL_WIDTH] */
#pragma unroll
	for (int r = 0; r < R; r++)
		*(float4 *)(sums + (slice * R + r) * PANEL_WIDTH + column) =
		    make_float4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
	__syncthreads();
	for (int v = threadIdx.x; v < R * PANEL_WIDTH; v += F32_NARROW_THREADS) {
		float total = 0.0f;
#pragma unroll 8
		for (int s = 0; s < slices; s++)
			total += sums[s * R * PANEL_WIDTH + v];
		finish(p, row + v / PANEL_WIDTH, panel * PANEL_WIDTH + v % PANEL_WIDTH, total);
	}
}

static dim3 narrow_grid(const panel_product &p, int rows)
{
	return dim3((unsigned)p.panel_count, (unsigned)panel_parts(p.rows, rows));
}

template <class W, int T> static status narrow(backend *b, const panel_product &p)
{
	return cuda_launch(b, narrow_kernel<W, T>, narrow_grid(p, T * ROWS), NARROW_THREADS,
	                   SLICES * T * 4 * WARP * sizeof(typename W::sum), p);
}

template <class W> static status words(backend *b, const panel_product &p)
{
	return p.rows <= ROWS ? narrow<W, 1>(b, p) : p.rows <= 2 * ROWS ? narrow<W, 2>(b, p) : narrow<W, 4>(b, p);
}

template <int R> static status f32_narrow(backend *b, const panel_product &p)
{
	return cuda_launch(b, f32_narrow_kernel<R>, narrow_grid(p, R), F32_NARROW_THREADS,
	                   F32_SLICES * R * PANEL_WIDTH * sizeof(float), p);
}

status cuda_panels_narrow(backend *b, const panel_product &p, dtype type)
{
	if (type == DTYPE_PANEL_BF16)
		return words<bf16_words>(b, p);
	if (type == DTYPE_PANEL_INT8)
		return words<int8_words>(b, p);
	return p.rows <= 1 ? f32_narrow<1>(b, p) : p.rows <= 4 ? f32_narrow<4>(b, p) : f32_narrow<16>(b, p);
}
