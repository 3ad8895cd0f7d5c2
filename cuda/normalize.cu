/* normalize, normalize_grad: rows cut into groups are more rows, of fewer channels each.
 *
 * Rows of whole packs stay in registers, divided among threads as in layernorm.cuh: x is read once. For dgain, a thread
 * has the same columns of every row that its group takes, so it sums them in registers. The block's groups are added in
 * shared memory, and the blocks' sums, GRAD_BLOCKS per processor, by cuda_sum_parts in order. A gain that is one number
 * has one column.
 *
 * Other rows: a block reads a row several times, through the caches, and sums columns in scratch.
 *
 * Bytes per element, f32 / bf16: normalize 8 / 4, normalize_grad 12 / 6; in addition 4 per group for its norm. */
#include "cuda/kernels.h"
#include "cuda/layernorm.cuh"
#include "cuda/reduce.cuh"

/* x as a tensor whose rows have one group each. */
static tensor normalize_parts_of(const op_call *call)
{
	const int64_t groups = ((const normalize_params *)call->params)->groups;
	tensor parts = call->in[0];
	parts.shape = SHAPE2(shape_rows(parts.shape) * groups, shape_last(parts.shape) / groups);
	return parts;
}

struct norm_arguments {
	const void *x, *dy;
	void *y; /* or dx; NULL: not requested */
	float *inverse;
	const float *gain;   /* per channel; may be NULL */
	const float *single; /* for all channels; may be NULL */
	float *sums;         /* [blocks, columns]: Σ dy x̂; NULL: not requested */
	float scale, floor;
	int64_t rows;
	int width, group, columns;
	bool frozen;
};

static norm_arguments norm_arguments_of(const op_call *call, const row_plan *plan)
{
	const normalize_params *p = (const normalize_params *)call->params;
	const tensor parts = normalize_parts_of(call);
	const float *gain = (const float *)cuda_optional(call, 1);
	const bool one = gain && shape_count(call->in[1].shape) == 1;
	norm_arguments o = {};
	o.x = call->in[0].data;
	o.y = call->out[0].data;
	o.gain = one ? nullptr : gain;
	o.single = one ? gain : nullptr;
	o.scale = p->scale;
	o.floor = p->floor;
	o.rows = shape_rows(parts.shape);
	o.width = (int)shape_last(parts.shape);
	o.group = plan->group;
	o.frozen = p->frozen;
	return o;
}

static __device__ __forceinline__ float inverse_of(float squares, float floor)
{
	return 1.0f / fmaxf(sqrtf(squares), floor);
}

/* Factor for all channels of a row. */
static __device__ __forceinline__ float factor_of(const norm_arguments &o, float inverse)
{
	return o.scale * inverse * (o.single ? __ldg(o.single) : 1.0f);
}

/* Factor of the norm's part in a row's gradient, with along = Σ gain dy x̂. */
static __device__ __forceinline__ float slope_of(const norm_arguments &o, float along, float inverse)
{
	return o.frozen || inverse >= 1.0f / o.floor ? 0.0f : along * inverse;
}

/* --- normalize ----------------------------------------------------------------------------------- */

template <class T> static __global__ void __launch_bounds__(NORM_LIMIT, 2) normalize_kernel(norm_arguments o)
{
	enum { N = packed<T>::N };
	float *space = shared_memory<float>();
	const int groups = blockDim.x / o.group;
	const row_place place = row_place_of(o.group);
	int turn = 0;
	wait_for_previous();
	let_next_begin();
	for (int64_t first = (int64_t)blockIdx.x * groups; first < o.rows;
	     first += (int64_t)gridDim.x * groups, turn ^= 1) {
		const int64_t row = first + place.group;
		numbers<N> x[NORM_PER] = {};
		float squares = 0.0f;
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * o.group) * N;
			if (row < o.rows && column < o.width)
				x[i] = load<N>((const T *)o.x + row * o.width + column);
			squares = plus_squares(squares, x[i], 0.0f);
		}
		/* The buffers alternate, so that no warp writes where another still reads. */
		const float inverse = inverse_of(group_sum(squares, o.group, space + turn * WARP), o.floor);
		const float factor = factor_of(o, inverse);
		if (row >= o.rows)
			continue;
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * o.group) * N;
			if (column >= o.width || !o.y)
				continue;
			numbers<N> gain;
			if (o.gain)
				gain = load<N>(o.gain + column);
#pragma unroll
			for (int j = 0; j < N; j++)
				x[i].at[j] *= o.gain ? factor * gain.at[j] : factor;
			store((T *)o.y + row * o.width + column, x[i]);
		}
		if (place.at == 0 && o.inverse)
			o.inverse[row] = inverse;
	}
}

/* One block per row. */
template <class T> static __global__ void __launch_bounds__(ROW_THREADS) normalize_any_kernel(norm_arguments o)
{
	float *space = shared_memory<float>();
	wait_for_previous();
	let_next_begin();
	for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x) {
		const T *x = (const T *)o.x + row * o.width;
		float squares = 0.0f;
		for (int j = threadIdx.x; j < o.width; j += ROW_THREADS)
			squares = __fmaf_rn(load_real(x + j), load_real(x + j), squares);
		const float inverse = inverse_of(block_sum(squares, space), o.floor), factor = factor_of(o, inverse);
		for (int j = threadIdx.x; j < o.width && o.y; j += ROW_THREADS)
			store_real((T *)o.y + row * o.width + j,
			           load_real(x + j) * (o.gain ? factor * o.gain[j] : factor));
		if (threadIdx.x == 0 && o.inverse)
			o.inverse[row] = inverse;
	}
}

status cuda_normalize(backend *b, const op_call *call)
{
	const tensor parts = normalize_parts_of(call);
	row_plan plan = {};
	const bool packs = layernorm_plan(&plan, b, &parts);
	norm_arguments o = norm_arguments_of(call, &plan);
	o.inverse = (float *)call->out[1].data;
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		if (packs)
			return cuda_launch_early(b, normalize_kernel<T>, plan.blocks,
			                         (unsigned)(plan.group * plan.groups), 2 * WARP * sizeof(float), o);
		return cuda_launch_early(b, normalize_any_kernel<T>, cuda_blocks(b, o.rows, 1), ROW_THREADS,
		                         WARP * sizeof(float), o);
	});
}

/* --- normalize_grad ------------------------------------------------------------------------------ */

/* Add the groups' sums of their columns, [groups, columns] in shared memory, in order. */
static __device__ __forceinline__ void add_groups(const norm_arguments &o, int groups)
{
	const float *all = shared_memory<float>();
	__syncthreads();
	for (int j = threadIdx.x; j < o.columns; j += blockDim.x) {
		float sum = all[j];
		for (int i = 1; i < groups; i++)
			sum += all[i * o.columns + j];
		o.sums[(int64_t)blockIdx.x * o.columns + j] = sum;
	}
}

template <class T> static __global__ void __launch_bounds__(GRAD_LIMIT, 2) normalize_grad_kernel(norm_arguments o)
{
	enum { N = packed<T>::N };
	float2 *space = shared_memory<float2>();
	const row_place place = row_place_of(o.group);
	const int groups = blockDim.x / o.group, column = place.at * N;
	const bool inside = column < o.width;
	numbers<N> dgain = {}, gain;
	float total = 0.0f; /* Σ dy x̂ over all rows of the group */
#pragma unroll
	for (int j = 0; j < N; j++)
		gain.at[j] = 1.0f;
	if (inside && o.gain)
		gain = load<N>(o.gain + column);
	int turn = 0;
	for (int64_t first = (int64_t)blockIdx.x * groups; first < o.rows;
	     first += (int64_t)gridDim.x * groups, turn ^= 1) {
		const int64_t row = first + place.group, e = row * o.width + column;
		const bool mine = inside && row < o.rows;
		numbers<N> x = {}, dy = {};
		float plain = 0.0f, along = 0.0f, inverse = 0.0f;
		if (mine) {
			x = load<N>((const T *)o.x + e), dy = load<N>((const T *)o.dy + e);
			inverse = o.inverse[row];
#pragma unroll
			for (int j = 0; j < N; j++) {
				const float product = dy.at[j] * (x.at[j] * inverse);
				plain += product;
				along = __fmaf_rn(gain.at[j], product, along);
				dgain.at[j] += product;
			}
		}
		/* The buffers alternate, so that no warp writes where another still reads. */
		const float2 both = group_sums(plain, along, o.group, space + turn * WARP);
		total += both.x;
		if (!mine || !o.y)
			continue;
		const float factor = factor_of(o, inverse), slope = slope_of(o, both.y, inverse);
#pragma unroll
		for (int j = 0; j < N; j++)
			x.at[j] = factor * __fmaf_rn(-x.at[j], slope, gain.at[j] * dy.at[j]);
		store((T *)o.y + e, x);
	}
	if (!o.sums)
		return;
	float *all = shared_memory<float>();
	__syncthreads();
	if (o.columns == 1 && place.at == 0)
		all[place.group] = total;
	if (o.columns > 1 && inside)
		store(all + place.group * o.columns + column, dgain);
	add_groups(o, groups);
}

/* One block per row; columns are summed in scratch, each by one thread. */
template <class T> static __global__ void __launch_bounds__(ROW_THREADS) normalize_grad_any_kernel(norm_arguments o)
{
	float *space = shared_memory<float>(), total = 0.0f;
	float *sums = o.sums ? o.sums + (int64_t)blockIdx.x * o.columns : nullptr;
	for (int j = threadIdx.x; j < o.columns && sums; j += ROW_THREADS)
		sums[j] = 0.0f;
	__syncthreads();
	for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x) {
		const T *x = (const T *)o.x + row * o.width, *dy = (const T *)o.dy + row * o.width;
		const float inverse = o.inverse[row];
		float plain = 0.0f, along = 0.0f;
		for (int j = threadIdx.x; j < o.width; j += ROW_THREADS) {
			const float product = load_real(dy + j) * (load_real(x + j) * inverse);
			plain += product;
			along += (o.gain ? o.gain[j] : 1.0f) * product;
			if (sums && o.columns > 1)
				sums[j] += product;
		}
		total += block_sum(plain, space);
		const float slope = slope_of(o, block_sum(along, space), inverse), factor = factor_of(o, inverse);
		for (int j = threadIdx.x; j < o.width && o.y; j += ROW_THREADS)
			store_real((T *)o.y + row * o.width + j,
			           factor *
			               ((o.gain ? o.gain[j] : 1.0f) * load_real(dy + j) - load_real(x + j) * slope));
	}
	if (sums && o.columns == 1 && threadIdx.x == 0)
		sums[0] = total;
}

static unsigned grad_blocks(const backend *b, const op_call *call)
{
	const tensor parts = normalize_parts_of(call);
	row_plan plan;
	if (layernorm_grad_plan(&plan, b, &parts))
		return plan.blocks;
	const int64_t rows = shape_rows(parts.shape), most = (int64_t)cuda_of(b)->processors * GRAD_BLOCKS;
	return (unsigned)(rows < most ? rows : most);
}

size_t cuda_normalize_grad_scratch(const backend *b, const op_call *call)
{
	return call->out[1].data ? sizeof(float) * grad_blocks(b, call) * (size_t)shape_count(call->out[1].shape) : 0;
}

status cuda_normalize_grad(backend *b, const op_call *call)
{
	const tensor parts = normalize_parts_of(call);
	row_plan plan = {};
	const bool packs = layernorm_grad_plan(&plan, b, &parts);
	norm_arguments o = norm_arguments_of(call, &plan);
	float *const dgain[] = {(float *)call->out[1].data};
	o.inverse = (float *)call->in[2].data;
	o.dy = call->in[3].data;
	o.columns = (int)shape_count(call->out[1].shape);
	o.sums = dgain[0] ? (float *)call->scratch : nullptr;
	const size_t row_sums = 2 * WARP * sizeof(float2);
	const size_t column_sums = o.sums ? (size_t)plan.groups * (size_t)o.columns * sizeof(float) : 0;
	TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		if (packs)
			return cuda_launch(b, normalize_grad_kernel<T>, plan.blocks,
			                   (unsigned)(plan.group * plan.groups),
			                   row_sums > column_sums ? row_sums : column_sums, o);
		return cuda_launch(b, normalize_grad_any_kernel<T>, grad_blocks(b, call), ROW_THREADS,
		                   WARP * sizeof(float), o);
	}));
	if (!dgain[0])
		return STATUS_OK;
	return cuda_sum_parts(b, dgain, 1, (const float *)call->scratch, grad_blocks(b, call), o.columns, o.scale);
}
