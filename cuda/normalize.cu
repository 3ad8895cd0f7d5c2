/* normalize, normalize_grad: rows cut into groups are more rows, of fewer channels each.
 *
 * Rows of whole packs stay in registers, divided among threads as in layernorm.cuh: x is read once. For dgain, a thread
 * has the same columns of every row that its group takes, so it sums them in registers. The block's groups are added in
 * shared memory, and the blocks' sums, GRAD_BLOCKS per processor, by cuda_sum_parts in order. A gain that is one number
 * has one column. With a gain for each channel of several parts, the groups of all blocks are a multiple of the parts.
 * Each group of threads then has the same part of all its rows, and its own sums in scratch.
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
	float scale, floor, eps;
	int64_t rows; /* each is one part of a row of x */
	int width, group, columns;
	int parts; /* with a gain per channel: parts of a row of x; otherwise 1 */
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
	o.eps = p->eps;
	o.parts = o.gain ? (int)p->groups : 1;
	o.rows = shape_rows(parts.shape);
	o.width = (int)shape_last(parts.shape);
	o.group = plan->group;
	o.frozen = p->frozen;
	return o;
}

static __device__ __forceinline__ float inverse_of(const norm_arguments &o, float squares)
{
	return 1.0f / fmaxf(sqrtf(squares + o.eps), o.floor);
}

/* The gains of part i of a row of x. */
static __device__ __forceinline__ const float *gain_of(const norm_arguments &o, int i)
{
	return o.gain ? o.gain + (int64_t)i * o.width : nullptr;
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
	const int step = (int)(gridDim.x * groups % o.parts);
	int turn = 0, part = (int)((blockIdx.x * groups + place.group) % o.parts);
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
		const float inverse = inverse_of(o, group_sum(squares, o.group, space + turn * WARP));
		const float factor = factor_of(o, inverse), *gains = gain_of(o, part);
		part += step - (part + step >= o.parts ? o.parts : 0);
		if (row >= o.rows)
			continue;
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * o.group) * N;
			if (column >= o.width || !o.y)
				continue;
			numbers<N> gain;
			if (gains)
				gain = load<N>(gains + column);
#pragma unroll
			for (int j = 0; j < N; j++)
				x[i].at[j] *= gains ? factor * gain.at[j] : factor;
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
		const float inverse = inverse_of(o, block_sum(squares, space)), factor = factor_of(o, inverse);
		const float *gain = gain_of(o, (int)(row % o.parts));
		for (int j = threadIdx.x; j < o.width && o.y; j += ROW_THREADS)
			store_real((T *)o.y + row * o.width + j, load_real(x + j) * (gain ? factor * gain[j] : factor));
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
	const int64_t number = (int64_t)blockIdx.x * groups + place.group; /* index of the group and of its first row */
	if (inside && o.gain)
		gain = load<N>(gain_of(o, (int)(number % o.parts)) + column);
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
	if (o.parts > 1) {
		if (inside)
			store(o.sums + number * o.width + column, dgain);
		return;
	}
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
	float *all = o.sums ? o.sums + (int64_t)blockIdx.x * o.columns : nullptr;
	for (int j = threadIdx.x; j < o.columns && all; j += ROW_THREADS)
		all[j] = 0.0f;
	__syncthreads();
	for (int64_t row = blockIdx.x; row < o.rows; row += gridDim.x) {
		const T *x = (const T *)o.x + row * o.width, *dy = (const T *)o.dy + row * o.width;
		const float inverse = o.inverse[row], *gain = gain_of(o, (int)(row % o.parts));
		float *sums = all && o.columns > 1 ? all + row % o.parts * o.width : nullptr;
		float plain = 0.0f, along = 0.0f;
		for (int j = threadIdx.x; j < o.width; j += ROW_THREADS) {
			const float product = load_real(dy + j) * (load_real(x + j) * inverse);
			plain += product;
			along += (gain ? gain[j] : 1.0f) * product;
			if (sums)
				sums[j] += product;
		}
		total += block_sum(plain, space);
		const float slope = slope_of(o, block_sum(along, space), inverse), factor = factor_of(o, inverse);
		for (int j = threadIdx.x; j < o.width && o.y; j += ROW_THREADS)
			store_real((T *)o.y + row * o.width + j,
			           factor * ((gain ? gain[j] : 1.0f) * load_real(dy + j) - load_real(x + j) * slope));
	}
	if (all && o.columns == 1 && threadIdx.x == 0)
		all[0] = total;
}

/* Parts of a row that have gains of their own. */
static int64_t gain_parts(const op_call *call)
{
	const bool each = cuda_optional(call, 1) && shape_count(call->in[1].shape) != 1;
	return each ? ((const normalize_params *)call->params)->groups : 1;
}

/* The division of rows, with as many groups of threads as a multiple of the parts. False: normalize_grad_any_kernel,
 * a block at a time. */
static bool grad_plan(row_plan *plan, const backend *b, const op_call *call)
{
	const tensor parts = normalize_parts_of(call);
	const bool packs = layernorm_grad_plan(plan, b, &parts);
	if (!packs) {
		const int64_t rows = shape_rows(parts.shape), most = (int64_t)cuda_of(b)->processors * GRAD_BLOCKS;
		*plan = (row_plan){ROW_THREADS, 1, (unsigned)(rows < most ? rows : most)};
		return false;
	}
	int64_t unit = gain_parts(call), rest = plan->groups;
	while (rest != 0) { /* unit: the greatest common divisor in the end */
		const int64_t left = unit % rest;
		unit = rest, rest = left;
	}
	unit = gain_parts(call) / unit;
	const int64_t units = plan->blocks / unit;
	plan->blocks = plan->blocks ? (unsigned)((units ? units : 1) * unit) : 0;
	return true;
}

/* Rows of partial sums of dgain: a block's, or those of as many groups of threads as there are parts. */
static int64_t grad_sums(const row_plan *plan, const op_call *call, bool packs)
{
	const int64_t parts = gain_parts(call);
	return packs && parts > 1 ? (int64_t)plan->blocks * plan->groups / parts : plan->blocks;
}

size_t cuda_normalize_grad_scratch(const backend *b, const op_call *call)
{
	row_plan plan;
	const bool packs = grad_plan(&plan, b, call);
	const int64_t numbers = grad_sums(&plan, call, packs) * shape_count(call->out[1].shape);
	return call->out[1].data ? sizeof(float) * (size_t)numbers : 0;
}

status cuda_normalize_grad(backend *b, const op_call *call)
{
	row_plan plan;
	const bool packs = grad_plan(&plan, b, call);
	norm_arguments o = norm_arguments_of(call, &plan);
	float *const dgain[] = {(float *)call->out[1].data};
	o.inverse = (float *)call->in[2].data;
	o.dy = call->in[3].data;
	o.columns = (int)shape_count(call->out[1].shape);
	o.sums = dgain[0] ? (float *)call->scratch : nullptr;
	const size_t row_sums = 2 * WARP * sizeof(float2);
	const size_t column_sums = o.sums && o.parts == 1 ? (size_t)plan.groups * (size_t)o.columns * sizeof(float) : 0;
	TRY(cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		if (packs)
			return cuda_launch(b, normalize_grad_kernel<T>, plan.blocks,
			                   (unsigned)(plan.group * plan.groups),
			                   row_sums > column_sums ? row_sums : column_sums, o);
		return cuda_launch(b, normalize_grad_any_kernel<T>, plan.blocks, ROW_THREADS, WARP * sizeof(float), o);
	}));
	if (!dgain[0])
		return STATUS_OK;
	return cuda_sum_parts(b, dgain, 1, (const float *)call->scratch, grad_sums(&plan, call, packs), o.columns,
	                      o.scale);
}
