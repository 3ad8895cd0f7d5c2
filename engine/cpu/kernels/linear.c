/* linear: y = alpha (x Wᵀ + b).
 *
 * Plain weights, as in training, are multiplied by gemm. Panels, as in serving, use the tiles of linear_tile.h. They
 * need no packing at every call, one pass over the weight for up to 8 rows, and half or a quarter of the bytes. A
 * product is cut into panels for the threads and into blocks of rows for the caches; neither changes a bit of the
 * result.
 *
 * Microseconds, one thread of an AMD EPYC (Zen 5, AVX-512 VNNI), dnnl_sgemm / f32 / bf16 / int8:
 *
 *   n x k                  1 row             8 rows              64 rows               256 rows
 *   128 x 128     .5/.19/.15/.07    1.4/1.0/1.0/ .4       9/  8/  8/  3      33/  32/  32/ 13
 *   512 x 128    1.8/1.2/ .6/ .3    4.9/3.9/3.9/1.3      34/ 31/ 31/ 10     132/ 125/ 127/ 41
 *   8192 x 128    37/ 34/ 18/  8    110/ 67/ 63/ 21     775/507/500/160    2320/2040/2010/650
 *   1024 x 1024   35/ 33/ 18/  7    133/ 64/ 61/ 17     753/503/492/133    2300/2010/2000/541
 *
 * That is 260 GFLOP/s from 4 rows on (800 for int8), and with one row the speed of reading the weight. Two threads take
 * half of it. AVX2: 117 GFLOP/s, int8 100; without: 50 and 27. */
#include "engine/cpu/kernels/linear.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/cpu/gemm.h"
#include "engine/cpu/kernels/linear_tile.h"

/* Rows of one job: with 128 inputs they stay in the first cache while panels pass. */
enum { BLOCK_ROWS = 64, QUANTISE_COST = 2 };

/* --- int8: rows become bytes ------------------------------------------------------------ */

static int64_t quantised_inputs(int64_t k)
{
	return (k + PANEL_GROUP - 1) / PANEL_GROUP * PANEL_GROUP;
}

/* q = round(x / s) with s = max |x| / 127, or `step` where that is not 0; returns s. The largest |x| is found by its
 * bits, in which a NaN is the largest, so s is NaN if any x is. x is divided by s, not multiplied by 1/s: a product
 * could fuse with the rounding on some instruction sets only. */
static float quantise_row(const float *x, int64_t k, float step, quantised *q)
{
	uint32_t top = 0;
#pragma omp simd reduction(max : top)
	for (int64_t i = 0; i < k; i++) {
		uint32_t magnitude = math_bits(x[i]) & 0x7fffffffu;
		top = magnitude > top ? magnitude : top;
	}
	float s = math_float(top) / PANEL_INT8_MAX;
	s = s < FLT_MIN ? FLT_MIN : s; /* all x are zero or negligible */
	s = step > 0 && s < INFINITY ? step : s;
#pragma omp simd
	for (int64_t i = 0; i < k; i++)
		q[i] = quantised_input(x[i] / s + QUANTISE_SHIFT);
	for (int64_t i = k; i < quantised_inputs(k); i++)
		q[i] = quantised_input(QUANTISE_SHIFT);
	return s;
}

/* --- panels --------------------------------------------------------------------------------- */

/* Rows row … last_row - 1 by panels panel … last_panel - 1; a function for each type, so that each has its registers.
 */
typedef void (*block_fn)(const product *p, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel);

static void block_f32(const product *p, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel)
{
	block(p, DTYPE_PANEL_F32, row, last_row, panel, last_panel);
}

static void block_bf16(const product *p, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel)
{
	block(p, DTYPE_PANEL_BF16, row, last_row, panel, last_panel);
}

static void block_int8(const product *p, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel)
{
	block(p, DTYPE_PANEL_INT8, row, last_row, panel, last_panel);
}

static const block_fn blocks_of[DTYPE_COUNT] = {
    [DTYPE_PANEL_F32] = block_f32,
    [DTYPE_PANEL_BF16] = block_bf16,
    [DTYPE_PANEL_INT8] = block_int8,
};

/* Threads for a product: few rows take as long as reading the weight, as `least` rows would. While a step has few rows,
 * the kernels before and after run on one thread and the others sleep; waking them costs at least 50 µs. */
static int product_threads(const backend *b, dtype type, int64_t rows, int64_t weights)
{
	enum { WAKING_WORK = 5 * KERNEL_SERIAL_WORK };
	const bool bytes = type == DTYPE_PANEL_INT8;
	const int64_t least = type == DTYPE_PANEL_BF16 ? 2 : 4;
	const int64_t work = weights / (bytes ? 32 : 10) * (rows < least ? least : rows);
	return rows < BLOCK_ROWS && work < WAKING_WORK ? 1 : kernel_threads(b, work);
}

/* The rows of an int8 product as bytes, in scratch. */
static void quantise(product *p, const float *x, int64_t rows, float step, int threads, void *scratch)
{
	const int64_t k = p->k, inputs = quantised_inputs(k);
	quantised *q = scratch;
	float *scale = (float *)(q + rows * inputs);
	if (threads == 1) {
		for (int64_t r = 0; r < rows; r++)
			scale[r] = quantise_row(x + r * k, k, step, q + r * inputs);
	} else {
#pragma omp parallel for schedule(static) num_threads(threads)
		for (int64_t r = 0; r < rows; r++)
			scale[r] = quantise_row(x + r * k, k, step, q + r * inputs);
	}
	p->x = scratch;
	p->row_bytes = (size_t)inputs * sizeof *q;
	p->row_scale = scale;
}

/* Each thread has its own panels for all rows; many rows are cut too. */
static status panel_rows(const backend *b, const tensor *weight, const float *x, int64_t rows, float alpha, float step,
                         const float *bias, float *y, float *maxima, void *scratch)
{
	const dtype type = weight->type;
	const block_fn multiply = blocks_of[type];
	const int64_t n = weight->shape.dim[0], k = weight->shape.dim[1];
	product p = {.n = n,
	             .k = k,
	             .panels = weight->data,
	             .panel_bytes = panel_stride(type, k),
	             .x = (const unsigned char *)x,
	             .row_bytes = (size_t)k * sizeof *x,
	             .alpha = alpha,
	             .bias = bias,
	             .y = y,
	             .maxima = maxima};
	const int threads = product_threads(b, type, rows, n * k);
	if (type == DTYPE_PANEL_INT8)
		quantise(&p, x, rows, step, kernel_threads(b, rows * k * QUANTISE_COST), scratch);
	const int64_t panels = kernel_parts(n, PANEL_WIDTH), blocks = kernel_parts(rows, BLOCK_ROWS);
	if (threads == 1) {
		for (int64_t row = 0; row < rows; row += BLOCK_ROWS)
			multiply(&p, row, kernel_min(row + BLOCK_ROWS, rows), 0, panels);
		return STATUS_OK;
	}
	const int64_t whole = LINEAR_BLOCK / PANEL_WIDTH, share = kernel_parts(panels, threads * whole) * whole;
	const int64_t shares = kernel_parts(panels, share);
#pragma omp parallel for schedule(static) num_threads(threads)
	for (int64_t job = 0; job < shares * blocks; job++) {
		const int64_t panel = job / blocks * share, row = job % blocks * BLOCK_ROWS;
		multiply(&p, row, kernel_min(row + BLOCK_ROWS, rows), panel, kernel_min(panel + share, panels));
	}
	return STATUS_OK;
}

/* --- plain weights -------------------------------------------------------------------------- */

/* y starts as b in every row (as fast as adding b afterwards). */
static status plain_rows(const backend *b, const tensor *weight, const float *x, int64_t rows, float alpha,
                         const float *bias, float *y, float *maxima)
{
	const int64_t n = weight->shape.dim[0], k = weight->shape.dim[1];
	if (bias) {
		const int threads = kernel_threads(b, rows * n);
#pragma omp parallel for schedule(static) num_threads(threads)
		for (int64_t r = 0; r < rows; r++)
			memcpy(y + r * n, bias, (size_t)n * sizeof *y);
	}
	TRY(gemm(((const cpu *)b)->threads, false, true, rows, n, k, alpha, x, weight->data, bias ? alpha : 0, y));
	for (int64_t r = 0; maxima && r < rows; r++)
		maxima_of_blocks(y + r * n, n, maxima + r * kernel_parts(n, LINEAR_BLOCK));
	return STATUS_OK;
}

/* --- both ------------------------------------------------------------------------------------- */

size_t KERNEL(linear_rows_scratch)(const backend *b, const tensor *weight, int64_t rows)
{
	(void)b;
	if (weight->type != DTYPE_PANEL_INT8)
		return 0;
	return (size_t)rows * ((size_t)quantised_inputs(weight->shape.dim[1]) * sizeof(quantised) + sizeof(float));
}

static status any_rows(backend *b, const tensor *weight, const float *x, int64_t rows, float alpha, float step,
                       const float *bias, float *y, float *maxima, void *scratch)
{
	if (rows == 0 || weight->shape.dim[0] == 0)
		return STATUS_OK;
	if (weight->type == DTYPE_F32)
		return plain_rows(b, weight, x, rows, alpha, bias, y, maxima);
	return panel_rows(b, weight, x, rows, alpha, step, bias, y, maxima, scratch);
}

status KERNEL(linear_rows)(backend *b, const tensor *weight, const float *x, int64_t rows, float alpha,
                           const float *bias, float *y, float *maxima, void *scratch)
{
	return any_rows(b, weight, x, rows, alpha, 0, bias, y, maxima, scratch);
}

size_t KERNEL(linear_scratch)(const backend *b, const op_call *call)
{
	return KERNEL(linear_rows_scratch)(b, &call->in[1], shape_rows(call->in[0].shape));
}

status KERNEL(linear)(backend *b, const op_call *call)
{
	const linear_params *p = call->params;
	return any_rows(b, &call->in[1], call->in[0].data, shape_rows(call->in[0].shape), p->alpha, p->step,
	                kernel_optional(call, 2), call->out[0].data, p->maxima ? call->out[1].data : NULL,
	                call->scratch);
}
