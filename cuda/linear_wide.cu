/* linear over panels for many rows: a block has 4 panels and 64 rows, and walks over K with x (f32: and the panels) in
 * shared memory, one stage ahead; it closes a slice when it comes to its end. */
#include "cuda/linear_panels.cuh"

enum {
	WIDE_ROWS = 64,                   /* of a block */
	WIDE_PANELS = 4,                  /* and its panels */
	WIDE_HALF = WIDE_ROWS / 2 / ROWS, /* products side by side of a warp */
	WIDE_THREADS = 8 * WARP,
	STAGE = 4,               /* steps */
	STAGE_WIDTH = 4 * STAGE, /* operands of a row */
	STAGE_STRIDE = 20,       /* no two lanes of a product in one bank */
	F32_WIDE_THREADS = 128,
	F32_STAGE = 16, /* inputs */
	F32_STAGE_STRIDE = 20,
	F32_WIDE_HELD = 8 /* rows of a thread */
};

/* What a thread brings of a stage: operands `threadIdx.x % STAGE_WIDTH` of four rows. */
enum { BROUGHT = WIDE_ROWS * STAGE_WIDTH / WIDE_THREADS };

template <class W>
static __device__ __forceinline__ void load_stage(const panel_product &p, int64_t row, int64_t panel, int64_t step,
                                                  typename W::raw x[BROUGHT], unsigned a[STAGE][4])
{
#pragma unroll
	for (int i = 0; i < BROUGHT; i++)
		x[i] = W::load(p, row + threadIdx.x / STAGE_WIDTH + i * (WIDE_THREADS / STAGE_WIDTH),
		               step * 4 + threadIdx.x % STAGE_WIDTH);
#pragma unroll
	for (int i = 0; i < STAGE; i++)
		load_weights<W>(p, panel, step + i, a[i]);
}

/* Block: rows from blockIdx.x · WIDE_ROWS, panels from blockIdx.y · WIDE_PANELS; a warp one panel and half of the rows.
 */
template <class W> __global__ void __launch_bounds__(WIDE_THREADS) wide_kernel(panel_product p)
{
	typedef typename W::sum sum;
	typedef typename W::operand operand;
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t row = (int64_t)blockIdx.x * WIDE_ROWS, panel = (int64_t)blockIdx.y * WIDE_PANELS + warp / 2;
	const int half = warp % 2 * WIDE_HALF * ROWS;
	operand *stages = shared_memory<operand>(); /* [2][WIDE_ROWS][STAGE_STRIDE] */
	typename W::raw next[BROUGHT];
	unsigned a[STAGE][4], after[STAGE][4];
	sum d[WIDE_HALF][4] = {}, total[WIDE_HALF][4] = {};
	int64_t left = p.slice; /* steps of the slice */
	load_stage<W>(p, row, panel, 0, next, after);
	for (int64_t step = 0; step < p.steps; step += STAGE) {
		operand *stage = stages + step / STAGE % 2 * WIDE_ROWS * STAGE_STRIDE;
#pragma unroll
		for (int i = 0; i < BROUGHT; i++)
			stage[(threadIdx.x / STAGE_WIDTH + i * (WIDE_THREADS / STAGE_WIDTH)) * STAGE_STRIDE +
			      threadIdx.x % STAGE_WIDTH] = W::make(next[i]);
#pragma unroll
		for (int i = 0; i < STAGE; i++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				a[i][e] = after[i][e];
		__syncthreads(); /* and nobody is in the stage before the last any more */
		load_stage<W>(p, row, panel, step + STAGE, next, after);
#pragma unroll
		for (int i = 0; i < STAGE; i++) {
			if (step + i >= p.steps)
				break;
#pragma unroll
			for (int t = 0; t < WIDE_HALF; t++)
				W::product(d[t], a[i],
				           stage[(half + t * ROWS + lane / 4) * STAGE_STRIDE + i * 4 + lane % 4]);
			if (--left > 0 && step + i + 1 < p.steps)
				continue;
			left = p.slice;
#pragma unroll
			for (int t = 0; t < WIDE_HALF; t++)
#pragma unroll
				for (int e = 0; e < 4; e++) {
					total[t][e] += d[t][e];
					d[t][e] = 0;
				}
		}
	}
	const int64_t output = panel * PANEL_WIDTH + 2 * (lane / 4);
#pragma unroll
	for (int t = 0; t < WIDE_HALF; t++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			W::store(p, row + half + t * ROWS + 2 * (lane % 4) + e % 2, output + e / 2, total[t][e]);
}

/* A stage of f32: weights [inputs][4 panels × 16], then x [rows][stride]. */
enum {
	F32_OUTPUTS = WIDE_PANELS * PANEL_WIDTH,
	F32_STAGE_FLOATS = F32_STAGE * F32_OUTPUTS + WIDE_ROWS * F32_STAGE_STRIDE
};

static __device__ __forceinline__ void load_f32_stage(const panel_product &p, int64_t row, int64_t panel, int64_t k,
                                                      float *stage)
{
	float *x = stage + F32_STAGE * F32_OUTPUTS;
#pragma unroll
	for (int i = 0; i < F32_STAGE * F32_OUTPUTS / 4 / F32_WIDE_THREADS; i++) {
		const int at = threadIdx.x + i * F32_WIDE_THREADS, input = at / (F32_OUTPUTS / 4),
		          c = at % (F32_OUTPUTS / 4);
		const bool there = panel + c / 4 < p.panel_count && k + input < p.k;
		const unsigned char *from = p.panels + (panel + c / 4) * p.panel_bytes;
		copy_async(stage + input * F32_OUTPUTS + c * 4,
		           there ? (const float *)from + (k + input) * PANEL_WIDTH + c % 4 * 4
		                 : (const float *)p.panels,
		           there ? 16 : 0);
	}
#pragma unroll
	for (int i = 0; i < WIDE_ROWS * F32_STAGE / 4 / F32_WIDE_THREADS; i++) {
		const int at = threadIdx.x + i * F32_WIDE_THREADS, r = at / (F32_STAGE / 4),
		          c = at % (F32_STAGE / 4) * 4;
		if (p.packed) {
			const bool there = row + r < p.rows && k + c < p.k;
			copy_async(x + r * F32_STAGE_STRIDE + c, there ? p.x + (row + r) * p.k + k + c : p.x,
			           there ? 16 : 0);
		} else {
			*(float4 *)(x + r * F32_STAGE_STRIDE + c) = four_of_x(p, row + r, k + c);
		}
	}
	copy_commit();
}

/* Block: rows from blockIdx.x · WIDE_ROWS, panels from blockIdx.y · WIDE_PANELS; a thread four outputs of every eighth
 * row. */
static __global__ void __launch_bounds__(F32_WIDE_THREADS) f32_wide_kernel(panel_product p)
{
	const int column = threadIdx.x % (F32_OUTPUTS / 4) * 4, first = threadIdx.x / (F32_OUTPUTS / 4);
	const int64_t row = (int64_t)blockIdx.x * WIDE_ROWS, panel = (int64_t)blockIdx.y * WIDE_PANELS;
	float *stages = shared_memory<float>();
	float sum[F32_WIDE_HELD][4] = {}, total[F32_WIDE_HELD][4] = {};
	int64_t left = p.slice; /* inputs of the slice */
	load_f32_stage(p, row, panel, 0, stages);
	for (int64_t k = 0; k < p.k; k += F32_STAGE) {
		const float *w = stages + k / F32_STAGE % 2 * F32_STAGE_FLOATS, *x = w + F32_STAGE * F32_OUTPUTS;
		copy_wait<0>();
		__syncthreads(); /* and nobody is in the other stage any more */
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
#pragma unroll
		for (int e = 0; e < 4; e++)
			finish(p, row + first + r * F32_WIDE_HELD, panel * PANEL_WIDTH + column + e, total[r][e]);
}

bool cuda_panels_is_wide(const backend *b, const panel_product &p)
{
	enum { WORTH = 3 };
	return p.rows > 2 * ROWS && panel_parts(p.rows, WIDE_ROWS) * panel_parts(p.panel_count, WIDE_PANELS) * WORTH >=
	                                cuda_of(b)->processors;
}

static dim3 wide_grid(const panel_product &p)
{
	return dim3((unsigned)panel_parts(p.rows, WIDE_ROWS), (unsigned)panel_parts(p.panel_count, WIDE_PANELS));
}

template <class W> static status words(backend *b, const panel_product &p)
{
	return cuda_launch(b, wide_kernel<W>, wide_grid(p), WIDE_THREADS,
	                   2 * WIDE_ROWS * STAGE_STRIDE * sizeof(typename W::operand), p);
}

status cuda_panels_wide(backend *b, const panel_product &p, dtype type)
{
	if (type == DTYPE_PANEL_BF16)
		return words<bf16_words>(b, p);
	if (type == DTYPE_PANEL_INT8)
		return words<int8_words>(b, p);
	return cuda_launch(b, f32_wide_kernel, wide_grid(p), F32_WIDE_THREADS, 2 * F32_STAGE_FLOATS * sizeof(float), p);
}
