/* The kernels of linear over panels for few rows (linear_narrow.cuh), and their phases of a program (program.cuh). */
#include "cuda/linear_narrow.cuh"

#include "cuda/linear_row.cuh"
#include "cuda/program.cuh"

/* Block: panel blockIdx.x, counted through the product and its siblings; rows from blockIdx.y · T · ROWS. */
template <class W, int T, x_source SOURCE>
__global__ void __launch_bounds__(NARROW_THREADS, 2) narrow_kernel(panel_product whole, panel_chain c)
{
	narrow_panel<W, T, SOURCE>(whole, c, {blockIdx.x, gridDim.x, (int64_t)blockIdx.y * T * ROWS});
}

/* --- f32 ------------------------------------------------------------------------------------------------ */

/* Load four inputs' weights, zeros past K. */
static __device__ __forceinline__ void load_four(float4 w[4], const float *from, int64_t k, int64_t end)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		w[i] =
		    k + i < end ? *(const float4 *)(from + (k + i) * PANEL_WIDTH) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* Block: panel blockIdx.x, R rows from blockIdx.y · R. Four lanes per slice, four outputs each. */
template <int R, x_source SOURCE>
__global__ void __launch_bounds__(F32_NARROW_THREADS, R > 4 ? 3 : 4)
    f32_narrow_kernel(panel_product whole, panel_chain c)
{
	enum { FINISHED = (R * PANEL_WIDTH + F32_NARROW_THREADS - 1) / F32_NARROW_THREADS };
	const int slice = threadIdx.x / 4, column = threadIdx.x % 4 * 4;
	int64_t panel;
	const panel_product p = panel_product_of<1>(whole, c.siblings, blockIdx.x, panel);
	const int64_t row = (int64_t)blockIdx.y * R;
	const int rows = (int)min(p.rows - row, (int64_t)R);
	const int length = (int)p.slice, slices = length ? ((int)p.k + length - 1) / length : 0;
	const int64_t first = slice * p.slice, last = min(first + p.slice, p.k);
	const unsigned char *weights = p.panels + panel * p.panel_bytes;
	const float *from = (const float *)weights + column;
	const narrow_space space =
	    narrow_space_of(c.norm, SOURCE, false, R, F32_NARROW_THREADS / WARP, shared_memory<unsigned char>());
	float4 w[4];
	closing closings[FINISHED];
	load_four(w, from, first, last);
	prefetch_bytes(weights, p.panel_bytes, threadIdx.x, F32_NARROW_THREADS);
	if (SOURCE == X_NORM)
		bring_norm(c.norm, space);
#pragma unroll
	for (int i = 0; i < FINISHED; i++)
		closings[i] = closing_of<false>(p, panel, row, rows, threadIdx.x + i * F32_NARROW_THREADS);
	wait_for_previous();
	let_next_begin();
#pragma unroll
	for (int i = 0; i < FINISHED; i++)
		read_operands(c, closings[i]);
	open_rows<SOURCE, false>(p, c, space, {blockIdx.x, gridDim.x, row}, rows);
	narrow_row r[R > 4 ? 1 : R]; /* more than 4 are recomputed where used, in one product without layernorm */
#pragma unroll
	for (int i = 0; i < R && R <= 4; i++)
		r[i] = row_of<SOURCE>(p, c.norm, space, row, i, rows);
	float sum[R][4] = {};
#pragma unroll 1
	for (int64_t k = first; k < last; k += 4) {
		float4 next[4];
		load_four(next, from, k + 4, last);
#pragma unroll
		for (int i = 0; i < R; i++) {
			const narrow_row one =
			    R > 4 ? row_of<SOURCE>(p, c.norm, space, row, i, rows) : r[R > 4 ? 0 : i];
			add_four(sum[i], four_of_row<SOURCE>(p, space, one, (int)k), w);
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
			w[i] = next[i];
	}
	float *sums = shared_memory<float>(space.bytes); /* [slice][row][PANEL_WIDTH] */
#pragma unroll
	for (int i = 0; i < R; i++)
		*(float4 *)(sums + (slice * R + i) * PANEL_WIDTH + column) =
		    make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
	__syncthreads();
#pragma unroll
	for (int i = 0; i < FINISHED; i++) {
		if (!closings[i].exists)
			continue;
		float total = 0.0f;
#pragma unroll 8
		for (int j = 0; j < slices; j++)
			total += sums[j * R * PANEL_WIDTH + threadIdx.x + i * F32_NARROW_THREADS];
		close(p, c, closings[i], total);
	}
}

/* --- launches -------------------------------------------------------------------------------------------- */

static dim3 narrow_grid(const panel_product &p, const panel_chain &c, int rows)
{
	return dim3(cuda_extent(panel_blocks<1>(p, c.siblings)), cuda_parts(p.rows, rows));
}

template <class W, int T, x_source SOURCE>
static status narrow(backend *b, const panel_product &p, const panel_chain &c)
{
	return cuda_launch_early(b, narrow_kernel<W, T, SOURCE>, narrow_grid(p, c, T * ROWS), NARROW_THREADS,
	                         narrow_bytes<W, T, SOURCE>(c), p, c);
}

/* Kernels that compute their own x have at most MADE_ROWS rows. */
template <class W, x_source SOURCE> static status made(backend *b, const panel_product &p, const panel_chain &c)
{
	return p.rows <= ROWS ? narrow<W, 1, SOURCE>(b, p, c) : narrow<W, 2, SOURCE>(b, p, c);
}

template <class W> static status words(backend *b, const panel_product &p, const panel_chain &c)
{
	return p.rows <= 2 * ROWS ? made<W, X_READY>(b, p, c) : narrow<W, 4, X_READY>(b, p, c);
}

template <int R, x_source SOURCE> static status f32_narrow(backend *b, const panel_product &p, const panel_chain &c)
{
	const size_t before = narrow_space_of(c.norm, SOURCE, false, R, F32_NARROW_THREADS / WARP, nullptr).bytes;
	return cuda_launch_early(b, f32_narrow_kernel<R, SOURCE>, narrow_grid(p, c, R), F32_NARROW_THREADS,
	                         before + F32_SLICES * R * PANEL_WIDTH * sizeof(float), p, c);
}

static status launch_narrow(backend *b, const panel_product &p, const panel_chain &c, dtype type)
{
	const bool norm = c.norm.weight;
	if (cuda_panels_is_row(p, c, type))
		return cuda_panels_row(b, p, c, type);
	if (!p.packed && type == DTYPE_PANEL_BF16)
		return narrow<bf16_words, 2, X_ODD>(b, p, c);
	if (!p.packed && type == DTYPE_PANEL_F32)
		return f32_narrow<4, X_ODD>(b, p, c);
	if (type == DTYPE_PANEL_BF16)
		return norm ? made<bf16_words, X_NORM>(b, p, c) : words<bf16_words>(b, p, c);
	if (type == DTYPE_PANEL_INT8)
		return norm      ? made<int8_words, X_NORM>(b, p, c)
		       : p.bytes ? words<int8_words>(b, p, c)
		                 : made<int8_words, X_BYTES>(b, p, c);
	if (norm)
		return p.rows <= 1 ? f32_narrow<1, X_NORM>(b, p, c) : f32_narrow<F32_MADE_ROWS, X_NORM>(b, p, c);
	return p.rows <= 1   ? f32_narrow<1, X_READY>(b, p, c)
	       : p.rows <= 4 ? f32_narrow<4, X_READY>(b, p, c)
	                     : f32_narrow<16, X_READY>(b, p, c);
}

static status launch_phase(backend *b, const program_phase &f)
{
	return launch_narrow(b, f.linear.product, f.linear.chain, f.linear.product.type);
}

/* Bytes of shared memory for a piece of the phase. */
template <class W> static size_t phase_bytes(const program_phase &f)
{
	const panel_chain &c = f.linear.chain;
	const x_source plain = W::EXACT ? X_BYTES : X_READY;
	if (f.kind == PROGRAM_ROW)
		return row_bytes<W>(f.linear.product) + SLICES * PANEL_WIDTH * sizeof(typename W::sum);
	return c.norm.weight ? narrow_bytes<W, 1, X_NORM>(c) : narrow_bytes<W, 1, plain>(c);
}

static size_t f32_phase_bytes(const program_phase &f)
{
	const panel_chain &c = f.linear.chain;
	const int rows = f.linear.product.rows == 1 ? 1 : F32_MADE_ROWS;
	return narrow_space_of(c.norm, c.norm.weight ? X_NORM : X_READY, false, rows, PROGRAM_WARPS, nullptr).bytes +
	       F32_SLICES * rows * PANEL_WIDTH * sizeof(float);
}

/* Not if another kernel converts x to bytes. */
bool cuda_panels_phase_of(const panel_product &p, const panel_chain &c, dtype type, program_phase *out, size_t *shared)
{
	const int64_t blocks = panel_blocks<1>(p, c.siblings);
	if (p.bytes || !cuda_program_streams(p) || blocks > INT32_MAX)
		return false;
	program_phase f = {};
	f.kind = cuda_panels_is_row(p, c, type) ? PROGRAM_ROW : PROGRAM_NARROW;
	f.blocks = (unsigned)blocks;
	f.linear.product = p;
	f.linear.chain = c;
	*shared = type == DTYPE_PANEL_F32    ? f32_phase_bytes(f)
	          : type == DTYPE_PANEL_BF16 ? phase_bytes<bf16_words>(f)
	                                     : phase_bytes<int8_words>(f);
	*out = f;
	return true;
}

static bool add_phase(backend *b, const panel_product &p, const panel_chain &c, dtype type)
{
	program_phase f;
	size_t shared;
	return cuda_panels_phase_of(p, c, type, &f, &shared) && cuda_program_add(b, f, shared, launch_phase);
}

status cuda_panels_narrow(backend *b, const panel_product &p, const panel_chain &c, dtype type)
{
	return add_phase(b, p, c, type) ? STATUS_OK : launch_narrow(b, p, c, type);
}
