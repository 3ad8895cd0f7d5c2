/* adamw, sgd: clipping, moments, decay, step and the bf16 copy in one pass over the arenas.
 *
 * The norm is read from the device, so nothing waits for the host. Two threads of each block, one per moment, compute
 * the constants that all elements share: the clip factor, and the bias corrections, 1 - β^t = -expm1(t log β) in
 * double. Every thread then takes four elements at a time. If the norm is not finite, p, m and v stay unchanged, but
 * the copy is written.
 *
 * Bytes per parameter, adamw: p, g, m, v read, p, m, v written, 28; with the bf16 copy 30. sgd: 20; with the copy 22.
 * Factors of the decay: 1/4 more.
 *
 * row_squares: a warp takes a row, finds its tensor by bisection, and sums in double; then a block takes a tensor and
 * sums its rows. 4 bytes per parameter. normalized_sgd: a warp takes a row: p, g read, p written, 12; with the
 * copy 14. */
#include "cuda/elementwise.cuh"
#include "cuda/kernels.h"

#include <math.h>

enum { TURNS = 16 }; /* groups of four elements per thread, in the background */

/* Number of blocks for a pass over an arena. A large model's arena takes milliseconds, and as many blocks as the device
 * holds would keep every processor that long. In the background there are more blocks, and each ends after TURNS turns,
 * so that served work gets processors in between. No bit depends on the number. The gradients' norm is not cut: it
 * reads a seventh of adamw's bytes. */
static unsigned arena_blocks(const backend *b, int64_t elements)
{
	const unsigned few = cuda_blocks(b, elements, ELEMENT_THREADS * 4);
	const int64_t each = ELEMENT_THREADS * 4 * TURNS, many = (elements + each - 1) / each;
	return cuda_of(b)->background && many > few ? (unsigned)many : few;
}

struct adamw_arguments {
	float *p, *m, *v;
	const float *g, *norm2, *hyper;
	const step_factors *factors;
	bf16 *narrow;
	adamw_params h;
	double log_beta1, log_beta2;
	int64_t n;
};

/* Constants shared by all elements. */
struct adamw_step {
	float clip, decay, rate, root, eps;
	int skip;
};

/* Factors of element e of the arena; N neighbours of a unit have the same. */
static __device__ __forceinline__ step_factors factors_of(const step_factors *factors, int64_t e)
{
	return factors ? factors[e / ROW_SPAN_UNIT] : step_factors{1.0f, 1.0f};
}

/* Run by two threads, 0 and 1. The order of operations in transformers is the same expression with other constants. */
static __device__ void prepare_step(const adamw_arguments &o, adamw_step *s)
{
	const bool second = threadIdx.x;
	const double correction = -expm1((double)o.hyper[1] * (second ? o.log_beta2 : o.log_beta1));
	if (second) {
		s->root = (float)(1.0 / sqrt(correction));
		s->eps = o.h.transformers ? o.h.eps * s->root : o.h.eps;
		return;
	}
	const float norm2 = *o.norm2, norm = sqrtf(norm2), lr = o.hyper[0];
	s->skip = !isfinite(norm2);
	s->clip = o.h.clip > 0.0f && norm > o.h.clip ? o.h.clip / (norm + 1e-6f) : 1.0f;
	s->decay = lr * o.h.decay;
	s->rate = (float)((double)lr / correction);
}

template <int N> static __device__ __forceinline__ void update(const adamw_arguments &o, const adamw_step &s, int64_t e)
{
	numbers<N> p = load<N>(o.p + e);
	if (!s.skip) {
		const numbers<N> g = load<N>(o.g + e);
		numbers<N> m = load<N>(o.m + e), v = load<N>(o.v + e);
		const step_factors f = factors_of(o.factors, e);
		const float shrink = 1.0f - s.decay * f.rate * f.decay;
		const float step = s.rate * f.rate * (o.h.transformers ? shrink : 1.0f);
#pragma unroll
		for (int i = 0; i < N; i++) {
			const float grad = s.clip * g.at[i];
			m.at[i] = o.h.beta1 * m.at[i] + (1.0f - o.h.beta1) * grad;
			v.at[i] = o.h.beta2 * v.at[i] + (1.0f - o.h.beta2) * grad * grad;
			p.at[i] = p.at[i] * shrink - step * m.at[i] / (sqrtf(v.at[i]) * s.root + s.eps);
		}
		store(o.m + e, m);
		store(o.v + e, v);
		store(o.p + e, p);
	}
	if (o.narrow)
		store(o.narrow + e, p);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) adamw_kernel(adamw_arguments o)
{
	enum { N = 4 };
	adamw_step *shared = shared_memory<adamw_step>();
	if (threadIdx.x < 2)
		prepare_step(o, shared);
	__syncthreads();
	const adamw_step s = *shared;
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N)
		update<N>(o, s, i);
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		update<1>(o, s, last);
}

status cuda_adamw(backend *b, const op_call *call)
{
	adamw_arguments o = {};
	o.p = (float *)call->in[0].data;
	o.g = (const float *)call->in[1].data;
	o.m = (float *)call->in[2].data;
	o.v = (float *)call->in[3].data;
	o.norm2 = (const float *)call->in[4].data;
	o.hyper = (const float *)call->in[5].data;
	o.narrow = (bf16 *)cuda_optional(call, 6);
	o.factors = (const step_factors *)cuda_optional(call, 7);
	o.h = *(const adamw_params *)call->params;
	o.log_beta1 = log((double)o.h.beta1);
	o.log_beta2 = log((double)o.h.beta2);
	o.n = shape_count(call->in[0].shape);
	return cuda_launch(b, adamw_kernel, arena_blocks(b, o.n), ELEMENT_THREADS, sizeof(adamw_step), o);
}

struct sgd_arguments {
	float *p, *m;
	const float *g, *norm2, *hyper;
	const step_factors *factors;
	bf16 *narrow;
	sgd_params h;
	int64_t n;
};

/* Constants shared by all elements. */
struct sgd_step {
	float factor, decay, rate;
	bool skip;
};

static __device__ __forceinline__ sgd_step prepare_step(const sgd_arguments &o)
{
	const float norm2 = *o.norm2, norm = sqrtf(norm2), rate = *o.hyper;
	const float clip = o.h.clip > 0.0f && norm > o.h.clip ? o.h.clip / (norm + 1e-6f) : 1.0f;
	const float unit = norm > 0.0f ? 1.0f / norm : 0.0f;
	return {o.h.normalize ? unit : clip, rate * o.h.decay, rate, !isfinite(norm2)};
}

template <int N> static __device__ __forceinline__ void update(const sgd_arguments &o, const sgd_step &s, int64_t e)
{
	numbers<N> p = load<N>(o.p + e);
	if (!s.skip) {
		const numbers<N> g = load<N>(o.g + e);
		numbers<N> m = load<N>(o.m + e);
		const step_factors f = factors_of(o.factors, e);
		const float rate = s.rate * f.rate, shrink = 1.0f - s.decay * f.rate * f.decay;
#pragma unroll
		for (int i = 0; i < N; i++) {
			m.at[i] = o.h.momentum * m.at[i] + s.factor * g.at[i];
			p.at[i] = p.at[i] * shrink - rate * m.at[i];
		}
		store(o.m + e, m);
		store(o.p + e, p);
	}
	if (o.narrow)
		store(o.narrow + e, p);
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) sgd_kernel(sgd_arguments o)
{
	enum { N = 4 };
	const sgd_step s = prepare_step(o);
	for (int64_t i = grid_first() * N; i + N <= o.n; i += grid_stride() * N)
		update<N>(o, s, i);
	const int64_t last = o.n / N * N + grid_first();
	if (last < o.n)
		update<1>(o, s, last);
}

status cuda_sgd(backend *b, const op_call *call)
{
	sgd_arguments o = {};
	o.p = (float *)call->in[0].data;
	o.g = (const float *)call->in[1].data;
	o.m = (float *)call->in[2].data;
	o.norm2 = (const float *)call->in[3].data;
	o.hyper = (const float *)call->in[4].data;
	o.narrow = (bf16 *)cuda_optional(call, 5);
	o.factors = (const step_factors *)cuda_optional(call, 6);
	o.h = *(const sgd_params *)call->params;
	o.n = shape_count(call->in[0].shape);
	return cuda_launch(b, sgd_kernel, arena_blocks(b, o.n), ELEMENT_THREADS, 0, o);
}

/* --- by tensors and rows of an arena ----------------------------------------------------------- */

struct row_spans {
	const row_span *each;
	int count, rows;
};

static row_spans spans_of(const op_call *call, int input, int64_t rows)
{
	return {(const row_span *)call->in[input].data, (int)shape_rows(call->in[input].shape), (int)rows};
}

static __device__ __forceinline__ int end_of(const row_spans &s, int k)
{
	return k + 1 < s.count ? s.each[k + 1].row : s.rows;
}

/* Index of the tensor that has a row. */
static __device__ __forceinline__ int find_span(const row_spans &s, int row)
{
	int low = 0, high = s.count;
	while (high - low > 1) {
		const int middle = (low + high) / 2;
		if (s.each[middle].row <= row)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Offset of a row of a tensor. */
static __device__ __forceinline__ int64_t place_of(const row_span &s, int row)
{
	return (int64_t)ROW_SPAN_UNIT * s.place + (int64_t)(row - s.row) * s.width;
}

template <int N> static __device__ __forceinline__ double square_row(const float *row, int width, int lane)
{
	double sum = 0.0;
	for (int i = lane * N; i < width; i += WARP * N) {
		const numbers<N> v = load<N>(row + i);
#pragma unroll
		for (int j = 0; j < N; j++)
			sum += (double)v.at[j] * (double)v.at[j];
	}
	return sum;
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) square_rows_kernel(float *rows, const float *x, row_spans s)
{
	const int lane = threadIdx.x % WARP;
	for (int64_t r = grid_first() / WARP; r < s.rows; r += grid_stride() / WARP) {
		const row_span span = s.each[find_span(s, (int)r)];
		const float *row = x + place_of(span, (int)r);
		const double sum = warp_sum(span.width % 4 ? square_row<1>(row, span.width, lane)
		                                           : square_row<4>(row, span.width, lane));
		if (lane == 0)
			rows[r] = (float)sum;
	}
}

/* A block takes every gridDim.x-th tensor. */
static __global__ void __launch_bounds__(ELEMENT_THREADS)
    square_tensors_kernel(float *tensors, const float *rows, row_spans s)
{
	double *space = shared_memory<double>();
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	for (int k = blockIdx.x; k < s.count; k += gridDim.x) {
		double sum = 0.0;
		for (int r = s.each[k].row + threadIdx.x; r < end_of(s, k); r += ELEMENT_THREADS)
			sum += (double)rows[r];
		sum = warp_sum(sum);
		if (lane == 0)
			space[warp] = sum;
		__syncthreads();
		for (int i = 1; i < ELEMENT_THREADS / WARP && threadIdx.x == 0; i++)
			sum += space[i];
		if (threadIdx.x == 0)
			tensors[k] = (float)sum;
		__syncthreads();
	}
}

size_t cuda_row_squares_scratch(const backend *b, const op_call *call)
{
	(void)b;
	return call->out[0].data ? 0 : (size_t)shape_count(call->out[0].shape) * sizeof(float);
}

status cuda_row_squares(backend *b, const op_call *call)
{
	const row_spans s = spans_of(call, 1, shape_count(call->out[0].shape));
	float *rows = (float *)(call->out[0].data ? call->out[0].data : call->scratch);
	float *tensors = (float *)call->out[1].data;
	TRY(cuda_launch(b, square_rows_kernel, cuda_blocks(b, s.rows, ELEMENT_THREADS / WARP), ELEMENT_THREADS, 0, rows,
	                (const float *)call->in[0].data, s));
	return tensors ? cuda_launch(b, square_tensors_kernel, cuda_blocks(b, s.count, 1), ELEMENT_THREADS,
	                             ELEMENT_THREADS / WARP * sizeof(double), tensors, (const float *)rows, s)
	               : STATUS_OK;
}

struct normalized_sgd_arguments {
	float *p, *statistics;
	const float *g, *rows, *tensors, *norm2, *hyper;
	const step_factors *factors;
	bf16 *narrow;
	normalized_sgd_params h;
	row_spans spans;
};

/* Constants shared by all rows. */
struct normalized_sgd_step {
	double rate, weights;
	float decay;
	bool skip;
};

static __device__ __forceinline__ normalized_sgd_step prepare_step(const normalized_sgd_arguments &o)
{
	const double rho = (double)o.h.row_decay;
	return {(double)o.hyper[0], (1.0 - pow(rho, (double)o.hyper[1])) / (1.0 - rho), o.hyper[0] * o.h.decay,
	        !isfinite(*o.norm2)};
}

/* Factor of a row's gradient; lane 0 updates the row's statistics. */
static __device__ __forceinline__ float row_rate(const normalized_sgd_arguments &o, const normalized_sgd_step &s, int k,
                                                 int row, int lane)
{
	const row_span span = o.spans.each[k];
	const double count = (double)span.width * (span.by_row ? 1 : end_of(o.spans, k) - span.row);
	const double squares = (double)(span.by_row ? o.rows[row] : o.tensors[k]);
	double c = o.h.rms ? squares / count : squares;
	if (span.by_row && !s.skip) {
		const float kept = (float)((double)o.h.row_decay * (double)o.statistics[row] + c);
		__syncwarp();
		if (lane == 0)
			o.statistics[row] = kept;
		c = (double)kept / s.weights;
	}
	return squares > 0.0 && c > 0.0 ? (float)(s.rate / sqrt(c)) : 0.0f;
}

template <int N>
static __device__ __forceinline__ void step_row(const normalized_sgd_arguments &o, const normalized_sgd_step &s,
                                                float rate, float shrink, int64_t at, int width, int lane)
{
	for (int i = lane * N; i < width; i += WARP * N) {
		numbers<N> p = load<N>(o.p + at + i);
		if (!s.skip) {
			const numbers<N> g = load<N>(o.g + at + i);
#pragma unroll
			for (int j = 0; j < N; j++)
				p.at[j] = p.at[j] * shrink - rate * g.at[j];
			store(o.p + at + i, p);
		}
		if (o.narrow)
			store(o.narrow + at + i, p);
	}
}

static __global__ void __launch_bounds__(ELEMENT_THREADS) normalized_sgd_kernel(normalized_sgd_arguments o)
{
	const normalized_sgd_step s = prepare_step(o);
	const int lane = threadIdx.x % WARP;
	for (int64_t r = grid_first() / WARP; r < o.spans.rows; r += grid_stride() / WARP) {
		const int k = find_span(o.spans, (int)r);
		const step_factors f = factors_of(o.factors, (int64_t)ROW_SPAN_UNIT * o.spans.each[k].place);
		const float rate = row_rate(o, s, k, (int)r, lane) * f.rate;
		const int64_t at = place_of(o.spans.each[k], (int)r);
		const float shrink = 1.0f - s.decay * f.rate * f.decay;
		const int width = o.spans.each[k].width;
		if (width % 4)
			step_row<1>(o, s, rate, shrink, at, width, lane);
		else
			step_row<4>(o, s, rate, shrink, at, width, lane);
	}
}

status cuda_normalized_sgd(backend *b, const op_call *call)
{
	normalized_sgd_arguments o = {};
	o.p = (float *)call->in[0].data;
	o.g = (const float *)call->in[1].data;
	o.statistics = (float *)call->in[2].data;
	o.rows = (const float *)call->in[3].data;
	o.tensors = (const float *)call->in[4].data;
	o.spans = spans_of(call, 5, shape_count(call->in[2].shape));
	o.norm2 = (const float *)call->in[6].data;
	o.hyper = (const float *)call->in[7].data;
	o.narrow = (bf16 *)cuda_optional(call, 8);
	o.factors = (const step_factors *)cuda_optional(call, 9);
	o.h = *(const normalized_sgd_params *)call->params;
	return cuda_launch(b, normalized_sgd_kernel, cuda_blocks(b, o.spans.rows, ELEMENT_THREADS / WARP),
	                   ELEMENT_THREADS, 0, o);
}
