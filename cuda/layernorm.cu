/* layernorm, layernorm_grad.
 *
 * Rows of whole packs stay in registers (layernorm.cuh): x is read once. For dweight and dbias, a thread has the same
 * columns of every row that its group takes, so it sums them in registers. The block's groups are added in shared
 * memory, and the blocks' sums, GRAD_BLOCKS per processor, by cuda_sum_parts in order.
 *
 * Other rows: a block reads a row several times, through the caches, and sums columns in scratch.
 *
 * Bytes per element, f32 / bf16: layernorm 8 / 4, layernorm_grad 12 / 6. In addition there are 16 bytes per column and
 * block for the partial sums, and the statistics. */
#include "cuda/layernorm.cuh"

#include "cuda/kernels.h"
#include "cuda/reduce.cuh"

/* --- rows of any width --------------------------------------------------------------------------- */

template <class T>
static __global__ void __launch_bounds__(ROW_THREADS) layernorm_any_kernel(const T *x, layernorm_arguments o)
{
	float *space = shared_memory<float>();
	const row_norm &norm = o.norm;
	wait_for_previous();
	let_next_begin();
	for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x) {
		const T *from = x + row * norm.width;
		float sum = 0.0f, squares = 0.0f;
		for (int j = threadIdx.x; j < norm.width; j += ROW_THREADS)
			sum += load_real(from + j);
		const float mean = block_sum(sum, space) * norm.share;
		for (int j = threadIdx.x; j < norm.width; j += ROW_THREADS) {
			const float off = load_real(from + j) - mean;
			squares += off * off;
		}
		const float rstd = rstd_of(block_sum(squares, space), norm);
		for (int j = threadIdx.x; j < norm.width && o.y; j += ROW_THREADS)
			store_real(
			    (T *)o.y + row * norm.width + j,
			    __fmaf_rn(norm.weight[j], normalised(load_real(from + j), mean, rstd), norm.bias[j]));
		if (threadIdx.x == 0 && o.mean)
			o.mean[row] = mean;
		if (threadIdx.x == 0 && o.rstd)
			o.rstd[row] = rstd;
	}
}

template <class T> static status layernorm_any(backend *b, const op_call *call)
{
	const row_plan none = {};
	const layernorm_arguments o = {nullptr,
	                               call->out[0].data,
	                               (float *)call->out[1].data,
	                               (float *)call->out[2].data,
	                               row_norm_of(call, &none),
	                               shape_rows(call->in[0].shape)};
	return cuda_launch_early(b, layernorm_any_kernel<T>, cuda_blocks(b, o.rows, 1), ROW_THREADS,
	                         WARP * sizeof(float), (const T *)call->in[0].data, o);
}

status cuda_layernorm(backend *b, const op_call *call)
{
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		row_plan plan;
		if (!layernorm_plan(&plan, b, &call->in[0]))
			return layernorm_any<T>(b, call);
		front<T, FRONT_PLAIN, false> f = {};
		f.a = (const T *)call->in[0].data;
		return layernorm_launch<T>(b, call, &plan, f, nullptr);
	});
}

/* --- layernorm_grad ---------------------------------------------------------------------------------- */

struct grad_arguments {
	const void *x, *dy;
	const float *weight, *mean, *rstd;
	float *parts; /* [blocks, 2, width]: Σ dy x̂, Σ dy */
	int64_t rows;
	int width, group;
	float share; /* 1 / width */
	float slope; /* factor of the deviation's part, over 1 - eps rstd; 0 if rstd is a constant */
	float eps;   /* 0 in the biased form */
};

/* Factor of x̂ Σ y' x̂. */
static __device__ __forceinline__ float slope_of(const grad_arguments &o, float rstd)
{
	const float rest = 1.0f - __fmul_rn(o.eps, rstd);
	return rest > 0.0f ? __fdiv_rn(o.slope, rest) : 0.0f;
}

/* Add the groups' sums of their columns in order, as this block's parts. */
template <int N>
static __device__ __forceinline__ void store_parts(const grad_arguments &o, row_place place, const numbers<N> &dweight,
                                                   const numbers<N> &dbias)
{
	float *sums = shared_memory<float>(); /* [groups, 2, width] */
	const int groups = blockDim.x / o.group, column = place.at * N;
	__syncthreads(); /* the memory of the last row's sums is free */
	if (column < o.width) {
		store(sums + (2 * place.group) * o.width + column, dweight);
		store(sums + (2 * place.group + 1) * o.width + column, dbias);
	}
	__syncthreads();
	for (int j = threadIdx.x; j < 2 * o.width; j += blockDim.x) {
		float sum = sums[j];
		for (int i = 1; i < groups; i++)
			sum += sums[2 * i * o.width + j];
		o.parts[(int64_t)blockIdx.x * 2 * o.width + j] = sum;
	}
}

template <class T>
static __global__ void __launch_bounds__(GRAD_LIMIT, 2) layernorm_grad_kernel(grad_arguments o, grad_tail tail)
{
	enum { N = packed<T>::N };
	float2 *space = shared_memory<float2>();
	const row_place place = row_place_of(o.group);
	const int groups = blockDim.x / o.group, column = place.at * N;
	const bool inside = column < o.width;
	numbers<N> dweight = {}, dbias = {}, weight = {};
	if (inside)
		weight = load<N>(o.weight + column);
	int turn = 0;
	for (int64_t first = (int64_t)blockIdx.x * groups; first < o.rows;
	     first += (int64_t)gridDim.x * groups, turn ^= 1) {
		const int64_t row = first + place.group, e = row * o.width + column;
		const bool mine = inside && row < o.rows;
		numbers<N> unit = {}, scaled = {}; /* x̂ and y' = weight ⊙ dy */
		float sum = 0.0f, along = 0.0f, rstd = 0.0f;
		if (mine) {
			const numbers<N> x = load<N>((const T *)o.x + e), dy = load<N>((const T *)o.dy + e);
			const float mean = o.mean[row];
			rstd = o.rstd[row];
#pragma unroll
			for (int j = 0; j < N; j++) {
				unit.at[j] = normalised(x.at[j], mean, rstd);
				scaled.at[j] = __fmul_rn(weight.at[j], dy.at[j]);
				sum = __fadd_rn(sum, scaled.at[j]);
				along = __fmaf_rn(scaled.at[j], unit.at[j], along);
				dweight.at[j] = __fmaf_rn(dy.at[j], unit.at[j], dweight.at[j]);
				dbias.at[j] = __fadd_rn(dbias.at[j], dy.at[j]);
			}
		}
		/* The buffers alternate, so that no warp writes where another still reads. */
		const float2 both = group_sums(sum, along, o.group, space + turn * WARP);
		if (!mine)
			continue;
		sum = __fmul_rn(both.x, o.share);
		along = __fmul_rn(both.y, slope_of(o, rstd));
#pragma unroll
		for (int j = 0; j < N; j++)
			unit.at[j] = __fmul_rn(rstd, __fmaf_rn(-unit.at[j], along, scaled.at[j] - sum));
		run_tail<T>(tail, e, unit);
	}
	if (o.parts)
		store_parts(o, place, dweight, dbias);
}

/* The gradient with a block per row, and columns summed in scratch, each by one thread. */
template <class T>
static __global__ void __launch_bounds__(ROW_THREADS) layernorm_grad_any_kernel(grad_arguments o, T *dx)
{
	float *space = shared_memory<float>();
	float *dweight = o.parts ? o.parts + (int64_t)blockIdx.x * 2 * o.width : nullptr;
	for (int j = threadIdx.x; j < 2 * o.width && dweight; j += ROW_THREADS)
		dweight[j] = 0.0f;
	__syncthreads();
	for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x) {
		const T *x = (const T *)o.x + row * o.width, *dy = (const T *)o.dy + row * o.width;
		const float mean = o.mean[row], rstd = o.rstd[row];
		float sum = 0.0f, along = 0.0f;
		for (int j = threadIdx.x; j < o.width; j += ROW_THREADS) {
			const float by = load_real(dy + j), unit = normalised(load_real(x + j), mean, rstd);
			sum += o.weight[j] * by;
			along += o.weight[j] * by * unit;
			if (dweight) {
				dweight[j] += by * unit;
				dweight[o.width + j] += by;
			}
		}
		sum = block_sum(sum, space) * o.share;
		along = block_sum(along, space) * slope_of(o, rstd);
		for (int j = threadIdx.x; j < o.width && dx; j += ROW_THREADS) {
			const float unit = normalised(load_real(x + j), mean, rstd);
			store_real(dx + row * o.width + j,
			           rstd * (o.weight[j] * load_real(dy + j) - sum - unit * along));
		}
	}
}

static unsigned grad_blocks(const backend *b, const op_call *call)
{
	row_plan plan;
	if (layernorm_grad_plan(&plan, b, &call->in[0]))
		return plan.blocks;
	const int64_t rows = shape_rows(call->in[0].shape), most = (int64_t)cuda_of(b)->processors * GRAD_BLOCKS;
	return (unsigned)(rows < most ? rows : most);
}

static bool has_sums(const op_call *call)
{
	return call->out[1].data || call->out[2].data;
}

size_t cuda_layernorm_grad_scratch(const backend *b, const op_call *call)
{
	return has_sums(call) ? 2 * sizeof(float) * grad_blocks(b, call) * (size_t)shape_last(call->in[0].shape) : 0;
}

static grad_arguments grad_arguments_of(const op_call *call)
{
	grad_arguments o = {};
	o.x = call->in[0].data;
	o.weight = (const float *)call->in[1].data;
	o.mean = (const float *)call->in[2].data;
	o.rstd = (const float *)call->in[3].data;
	o.dy = call->in[4].data;
	o.parts = has_sums(call) ? (float *)call->scratch : nullptr;
	o.rows = shape_rows(call->in[0].shape);
	o.width = (int)shape_last(call->in[0].shape);
	o.share = 1.0f / (float)shape_last(call->in[0].shape);
	const layernorm_grad_params *p = (const layernorm_grad_params *)call->params;
	const float freedom = (float)(p->unbiased ? o.width - 1 : o.width);
	o.slope = p->frozen ? 0.0f : 1.0f / freedom;
	o.eps = p->unbiased ? p->eps : 0.0f;
	return o;
}

static status finish_sums(backend *b, const op_call *call)
{
	float *const out[2] = {(float *)call->out[1].data, (float *)call->out[2].data};
	if (!has_sums(call))
		return STATUS_OK;
	return cuda_sum_parts(b, out, 2, (const float *)call->scratch, grad_blocks(b, call),
	                      shape_last(call->in[0].shape), 1.0f);
}

status layernorm_grad_launch(backend *b, const op_call *call, const row_plan *plan, const grad_tail *tail)
{
	grad_arguments o = grad_arguments_of(call);
	o.group = plan->group;
	const size_t row_sums = 2 * WARP * sizeof(float2);
	const size_t column_sums = o.parts ? (size_t)plan->groups * 2 * (size_t)o.width * sizeof(float) : 0;
	TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
		return cuda_launch(b, layernorm_grad_kernel<std::remove_pointer_t<decltype(type)>>, plan->blocks,
		                   (unsigned)(plan->group * plan->groups),
		                   row_sums > column_sums ? row_sums : column_sums, o, *tail);
	}));
	return finish_sums(b, call);
}

status cuda_layernorm_grad(backend *b, const op_call *call)
{
	row_plan plan;
	if (layernorm_grad_plan(&plan, b, &call->in[0])) {
		grad_tail tail = {};
		tail.dx = call->out[0].data;
		return layernorm_grad_launch(b, call, &plan, &tail);
	}
	const grad_arguments o = grad_arguments_of(call);
	TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return cuda_launch(b, layernorm_grad_any_kernel<T>, grad_blocks(b, call), ROW_THREADS,
		                   WARP * sizeof(float), o, (T *)call->out[0].data);
	}));
	return finish_sums(b, call);
}
