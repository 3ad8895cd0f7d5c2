/* layernorm.cuh - layernorm and its gradient, with what stands before and after them in one kernel.
 *
 * A row belongs to a group of threads, whole warps or a power of two of lanes, each with the same PER packs of 16 bytes
 * of every row that the group takes, kept in registers between reading and writing; a block has as many groups as fit
 * ROW_THREADS threads, at least one. Groups within a warp sum by shuffles; larger ones through shared memory too. The
 * width and type of a row alone say how it is summed, so a row has the same bits in any batch and behind any front.
 *
 * Rows that are not a whole number of packs, or too wide, take kernels that go over memory again instead
 * (layernorm.cu). */
#ifndef CUDA_LAYERNORM_CUH
#define CUDA_LAYERNORM_CUH

#include "cuda/elementwise.cuh"

enum {
	ROW_THREADS = 256,
	NORM_PER = 2,     /* packs a thread holds of a row */
	NORM_LIMIT = 512, /* threads of a group, at most */
	GRAD_PER = 1,
	GRAD_LIMIT = 512,
	GRAD_BLOCKS = 4, /* per processor */
};

/* How rows are given to threads. */
struct row_plan {
	int group, groups; /* threads of a group, groups of a block */
	unsigned blocks;
};

/* False: these rows need the other kernels. */
static inline bool row_plan_of(row_plan *out, const backend *b, const tensor *x, int per, int limit, int blocks_each)
{
	const int64_t width = shape_last(x->shape), rows = shape_rows(x->shape);
	const int64_t packs = width * (int64_t)dtype_bytes(x->type) / 16, most_packs = (int64_t)per * limit;
	if (!cuda_packs(x->type, width) || packs == 0 || packs > most_packs)
		return false;
	int64_t group = 1;
	while (group < WARP && group * per < packs)
		group *= 2;
	if (group * per < packs)
		group = (packs + per * WARP - 1) / (per * WARP) * WARP;
	out->group = (int)group;
	out->groups = group < ROW_THREADS ? (int)(ROW_THREADS / group) : 1;
	const int64_t blocks = (rows + out->groups - 1) / out->groups,
	              most = (int64_t)cuda_of(b)->processors * blocks_each;
	out->blocks = (unsigned)(blocks < most ? blocks : most);
	return true;
}

static inline bool layernorm_plan(row_plan *out, const backend *b, const tensor *x)
{
	return row_plan_of(out, b, x, NORM_PER, NORM_LIMIT, 8);
}

/* No more blocks than run at once, since each leaves a partial sum of dweight and dbias. */
static inline bool layernorm_grad_plan(row_plan *out, const backend *b, const tensor *x)
{
	return row_plan_of(out, b, x, GRAD_PER, GRAD_LIMIT, GRAD_BLOCKS);
}

/* The thread's place: its group, and its number in it. */
struct row_place {
	int group, at;
};

static __device__ __forceinline__ row_place row_place_of(int group)
{
	return {(int)threadIdx.x / group, (int)threadIdx.x % group};
}

/* The sum over a group's lanes in this warp. */
static __device__ __forceinline__ float lanes_sum(float x, int group)
{
#pragma unroll
	for (int flip = WARP / 2; flip > 0; flip /= 2) {
		const float other = __shfl_xor_sync(ALL_LANES, x, flip);
		x += flip < group ? other : 0.0f;
	}
	return x;
}

/* Every thread of a group gets the group's sum. space: a float per warp; another one than in the call before. */
static __device__ __forceinline__ float group_sum(float x, int group, float *space)
{
	x = lanes_sum(x, group);
	if (group <= WARP)
		return x;
	const int warp = threadIdx.x / WARP, warps = group / WARP, first = warp / warps * warps;
	if (threadIdx.x % WARP == 0)
		space[warp] = x;
	__syncthreads();
	x = space[first];
	for (int i = 1; i < warps; i++)
		x += space[first + i];
	return x;
}

/* Both at once, for one barrier. space: two floats per warp; another one than in the call before. */
static __device__ __forceinline__ float2 group_sums(float x, float y, int group, float2 *space)
{
	float2 both = make_float2(lanes_sum(x, group), lanes_sum(y, group));
	if (group <= WARP)
		return both;
	const int warp = threadIdx.x / WARP, warps = group / WARP, first = warp / warps * warps;
	if (threadIdx.x % WARP == 0)
		space[warp] = both;
	__syncthreads();
	both = space[first];
	for (int i = 1; i < warps; i++) {
		both.x += space[first + i].x;
		both.y += space[first + i].y;
	}
	return both;
}

/* --- layernorm --------------------------------------------------------------------------------- */

struct layernorm_arguments {
	void *r, *y; /* what the front makes, and the result; NULL: not stored */
	float *mean, *rstd;
	const float *weight, *bias;
	float eps;
	int64_t rows;
	int width, group;
	float share; /* 1 / width */
};

static __device__ __forceinline__ float normalised(float x, float mean, float rstd)
{
	return __fmul_rn(x - mean, rstd);
}

/* r = front as stored, y = layernorm(r): the mean first, then the variance from the differences to it. */
template <class T, class F>
__global__ void __launch_bounds__(NORM_LIMIT, 2) layernorm_kernel(F f, layernorm_arguments o)
{
	enum { N = packed<T>::N };
	float *space = shared_memory<float>();
	const row_place place = row_place_of(o.group);
	const int groups = blockDim.x / o.group;
	for (int64_t first = (int64_t)blockIdx.x * groups; first < o.rows; first += (int64_t)gridDim.x * groups) {
		const int64_t row = first + place.group;
		numbers<N> x[NORM_PER] = {};
		bool mine[NORM_PER];
		float sum = 0.0f, squares = 0.0f;
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * o.group) * N;
			mine[i] = row < o.rows && column < o.width;
			if (!mine[i])
				continue;
			x[i] = rounded<T>(f.template at<N>(row * o.width + column));
			if (o.r)
				store((T *)o.r + row * o.width + column, x[i]);
#pragma unroll
			for (int j = 0; j < N; j++)
				sum = __fadd_rn(sum, x[i].at[j]);
		}
		const float mean = __fmul_rn(group_sum(sum, o.group, space), o.share);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++)
#pragma unroll
			for (int j = 0; j < N; j++)
				if (mine[i])
					squares = __fmaf_rn(x[i].at[j] - mean, x[i].at[j] - mean, squares);
		const float rstd = rsqrtf(__fmaf_rn(group_sum(squares, o.group, space + WARP), o.share, o.eps));
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			if (!mine[i] || !o.y)
				continue;
			const int column = (place.at + i * o.group) * N;
			const numbers<N> weight = load<N>(o.weight + column), bias = load<N>(o.bias + column);
#pragma unroll
			for (int j = 0; j < N; j++)
				x[i].at[j] = __fmaf_rn(weight.at[j], normalised(x[i].at[j], mean, rstd), bias.at[j]);
			store((T *)o.y + row * o.width + column, x[i]);
		}
		if (place.at == 0 && row < o.rows) {
			if (o.mean)
				o.mean[row] = mean;
			if (o.rstd)
				o.rstd[row] = rstd;
		}
	}
}

template <class T, class F>
status layernorm_launch(backend *b, const op_call *call, const row_plan *plan, const F &f, void *r)
{
	const shape x = call->in[0].shape;
	const layernorm_arguments o = {
	    r,
	    call->out[0].data,
	    (float *)call->out[1].data,
	    (float *)call->out[2].data,
	    (const float *)call->in[1].data,
	    (const float *)call->in[2].data,
	    ((const layernorm_params *)call->params)->eps,
	    shape_rows(x),
	    (int)shape_last(x),
	    plan->group,
	    1.0f / (float)shape_last(x),
	};
	return cuda_launch(b, layernorm_kernel<T, F>, plan->blocks, (unsigned)(plan->group * plan->groups),
	                   2 * WARP * sizeof(float), f, o);
}

/* --- layernorm_grad ----------------------------------------------------------------------------- */

/* What is done with dx at once; each step takes the former one's result as it was, or would have been, stored. A NULL
 * address: that is not there, or not stored. */
struct grad_tail {
	void *dx;
	const void *add; /* s = dx + add, or dx alone */
	void *sum;       /* s */
	const void *more;
	void *total; /* s + more */
	const void *left, *right;
	void *to_left, *to_right; /* s ⊙ left, s ⊙ right */
	void *dropped;            /* dropout of s, or of s ⊙ left where there is one */
	dropout_site site;
};

template <class T, int N> __device__ __forceinline__ void run_tail(const grad_tail &t, int64_t e, numbers<N> x)
{
	x = rounded<T>(x);
	if (t.dx)
		store((T *)t.dx + e, x);
	if (t.add) {
		x = rounded<T>(sum_of(load<N>((const T *)t.add + e), x));
		if (t.sum)
			store((T *)t.sum + e, x);
	}
	if (t.more)
		store((T *)t.total + e, sum_of(load<N>((const T *)t.more + e), x));
	if (t.left) {
		const numbers<N> right = product_of(x, load<N>((const T *)t.right + e));
		x = rounded<T>(product_of(x, load<N>((const T *)t.left + e)));
		if (t.to_left)
			store((T *)t.to_left + e, x);
		store((T *)t.to_right + e, right);
	}
	if (t.dropped)
		store((T *)t.dropped + e, dropped<N>(t.site, e, x));
}

/* The gradient of the layernorm of one call, and what comes after it; its partial sums are in the call's scratch. */
status layernorm_grad_launch(backend *b, const op_call *call, const row_plan *plan, const grad_tail *tail);

#endif
