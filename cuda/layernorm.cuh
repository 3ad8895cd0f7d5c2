/* layernorm.cuh - layernorm and its gradient, in one kernel with the operations before and after them.
 *
 * A row belongs to a group of threads: whole warps, or a power of two of lanes. A thread keeps the same PER 16-byte
 * packs of every row of its group in registers between reading and writing. A block has as many groups as fit
 * ROW_THREADS threads, at least one. Groups within a warp sum by shuffles; larger ones also through shared memory. The
 * width and type of a row alone define its tree of sums, so a row has the same bits in any batch and after any front.
 *
 * Rows that are not a whole number of packs, or too wide, use kernels that read memory several times (layernorm.cu). */
#ifndef CUDA_LAYERNORM_CUH
#define CUDA_LAYERNORM_CUH

#include "cuda/elementwise.cuh"
#include "cuda/ptx.cuh"

enum {
	ROW_THREADS = 256,
	NORM_PER = 2,     /* packs of a row per thread */
	NORM_LIMIT = 512, /* most threads in a group */
	GRAD_PER = 1,
	GRAD_LIMIT = 512,
	GRAD_BLOCKS = 4, /* blocks per processor */
};

/* Division of rows among threads. */
struct row_plan {
	int group, groups; /* threads in a group, groups in a block */
	unsigned blocks;
};

/* False if these rows need the other kernels. */
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

/* At most as many blocks as run at once, since each leaves a partial sum of dweight and dbias. */
static inline bool layernorm_grad_plan(row_plan *out, const backend *b, const tensor *x)
{
	return row_plan_of(out, b, x, GRAD_PER, GRAD_LIMIT, GRAD_BLOCKS);
}

/* The thread's group in the block, and its number in the group. */
struct row_place {
	int group, at;
};

static __device__ __forceinline__ row_place row_place_of(int group)
{
	return {(int)threadIdx.x / group, (int)threadIdx.x % group};
}

/* Sum over the lanes of a group in this warp. */
static __device__ __forceinline__ float lanes_sum(float x, int group)
{
#pragma unroll
	for (int flip = WARP / 2; flip > 0; flip /= 2) {
		const float other = __shfl_xor_sync(ALL_LANES, x, flip);
		x += flip < group ? other : 0.0f;
	}
	return x;
}

/* Sum over a group's warps, in order. */
static __device__ __forceinline__ float sum_of_warps(const float *sums, int warps)
{
	float x = sums[0];
#pragma unroll 1 /* a few warps: the setup of an unrolled loop would take longer */
	for (int i = 1; i < warps; i++)
		x += sums[i];
	return x;
}

/* Return the group's sum to each of its threads. space: a float per warp; successive calls use different ones. */
static __device__ __forceinline__ float group_sum(float x, int group, float *space)
{
	x = lanes_sum(x, group);
	if (group <= WARP)
		return x;
	const int warp = threadIdx.x / WARP, warps = group / WARP, first = warp / warps * warps;
	if (threadIdx.x % WARP == 0)
		space[warp] = x;
	__syncthreads();
	return sum_of_warps(space + first, warps);
}

/* Two group sums with one barrier. space: two floats per warp; successive calls use different ones. */
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

/* A row's sums are one tree in every kernel. Thread `at` of its group adds its packs at and at + group, number after
 * number. The lanes of each warp add up (lanes_sum), and then the warps' sums in order. The functions below are the
 * same tree for kernels that normalise a row of floats themselves (linear_narrow.cu, additive_stream.cu). */
template <int N> static __device__ __forceinline__ float plus(float sum, const numbers<N> &x)
{
#pragma unroll
	for (int j = 0; j < N; j++)
		sum = __fadd_rn(sum, x.at[j]);
	return sum;
}

template <int N> static __device__ __forceinline__ float plus_squares(float sum, const numbers<N> &x, float mean)
{
#pragma unroll
	for (int j = 0; j < N; j++)
		sum = __fmaf_rn(x.at[j] - mean, x.at[j] - mean, sum);
	return sum;
}

static __device__ __forceinline__ float mean_of(float sum, float share)
{
	return __fmul_rn(sum, share);
}

static __device__ __forceinline__ float normalised(float x, float mean, float rstd)
{
	return __fmul_rn(x - mean, rstd);
}

/* weight ⊙ (x - mean) rstd + bias */
template <int N>
static __device__ __forceinline__ numbers<N> normalised(numbers<N> x, float mean, float rstd, const numbers<N> &weight,
                                                        const numbers<N> &bias)
{
#pragma unroll
	for (int j = 0; j < N; j++)
		x.at[j] = __fmaf_rn(weight.at[j], normalised(x.at[j], mean, rstd), bias.at[j]);
	return x;
}

/* Parameters to normalise a row of floats in another kernel; weight NULL: no layernorm. */
struct row_norm {
	const float *weight, *bias;
	float eps, share, spread; /* share: 1 / width; spread: of the squares in the variance */
	int width, group;
	bool unbiased;
};

static __device__ __forceinline__ float rstd_of(float squares, const row_norm &o)
{
	return o.unbiased ? __fdiv_rn(1.0f, sqrtf(__fmul_rn(squares, o.spread)) + o.eps)
	                  : rsqrtf(__fmaf_rn(squares, o.spread, o.eps));
}

static inline row_norm row_norm_of(const op_call *call, const row_plan *plan)
{
	const layernorm_params *p = (const layernorm_params *)call->params;
	const int width = (int)shape_last(call->in[0].shape);
	return {(const float *)call->in[1].data,
	        (const float *)call->in[2].data,
	        p->eps,
	        1.0f / (float)width,
	        1.0f / (float)(p->unbiased ? width - 1 : width),
	        width,
	        plan->group,
	        p->unbiased};
}

/* Share of the row's sum that the warp with thread `at` of the row has. SQUARES: of the squared differences from the
 * mean. Lanes without a row pass NULL. */
template <bool SQUARES>
static __device__ __forceinline__ float warp_share(const row_norm &o, const float *row, int at, float mean = 0.0f)
{
	enum { N = packed<float>::N };
	float sum = 0.0f;
#pragma unroll
	for (int i = 0; i < NORM_PER; i++) {
		const int column = (at + i * o.group) * N;
		if (row && column < o.width)
			sum =
			    SQUARES ? plus_squares(sum, load<N>(row + column), mean) : plus(sum, load<N>(row + column));
	}
	return lanes_sum(sum, o.group);
}

/* Number of warps for a row. */
static inline __device__ __host__ int row_warps(const row_norm &o)
{
	return o.group < WARP ? 1 : o.group / WARP;
}

struct layernorm_arguments {
	void *r, *y; /* result of the front; result of the norm; NULL: not stored */
	float *mean, *rstd;
	row_norm norm;
	int64_t rows;
};

/* r = front as stored, y = layernorm(r): the mean first, then the variance from the differences to it. */
template <class T, class F>
__global__ void __launch_bounds__(NORM_LIMIT, 2) layernorm_kernel(F f, layernorm_arguments o)
{
	enum { N = packed<T>::N };
	float *space = shared_memory<float>();
	const int group = o.norm.group, width = o.norm.width, groups = blockDim.x / group;
	const row_place place = row_place_of(group);
	wait_for_previous();
	let_next_begin();
	for (int64_t first = (int64_t)blockIdx.x * groups; first < o.rows; first += (int64_t)gridDim.x * groups) {
		const int64_t row = first + place.group;
		numbers<N> x[NORM_PER] = {};
		bool mine[NORM_PER];
		float sum = 0.0f, squares = 0.0f;
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			const int column = (place.at + i * group) * N;
			mine[i] = row < o.rows && column < width;
			if (!mine[i])
				continue;
			x[i] = rounded<T>(f.template at<N>(row * width + column));
			if (o.r)
				store((T *)o.r + row * width + column, x[i]);
			sum = plus(sum, x[i]);
		}
		const float mean = mean_of(group_sum(sum, group, space), o.norm.share);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++)
			if (mine[i])
				squares = plus_squares(squares, x[i], mean);
		const float rstd = rstd_of(group_sum(squares, group, space + WARP), o.norm);
#pragma unroll
		for (int i = 0; i < NORM_PER; i++) {
			if (!mine[i] || !o.y)
				continue;
			const int column = (place.at + i * group) * N;
			store((T *)o.y + row * width + column,
			      normalised(x[i], mean, rstd, load<N>(o.norm.weight + column),
			                 load<N>(o.norm.bias + column)));
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
	const layernorm_arguments o = {r,
	                               call->out[0].data,
	                               (float *)call->out[1].data,
	                               (float *)call->out[2].data,
	                               row_norm_of(call, plan),
	                               shape_rows(call->in[0].shape)};
	return cuda_launch_early(b, layernorm_kernel<T, F>, plan->blocks, (unsigned)(plan->group * plan->groups),
	                         2 * WARP * sizeof(float), f, o);
}

/* --- layernorm_grad ----------------------------------------------------------------------------- */

/* Operations applied to dx in the same kernel. Each step uses the previous result as it was, or would have been,
 * stored. NULL: absent, or not stored. */
struct grad_tail {
	void *dx;
	const void *add; /* s = dx + add, or dx alone */
	void *sum;       /* s */
	const void *more;
	void *total; /* s + more */
	const void *left, *right;
	void *to_left, *to_right; /* s ⊙ left, s ⊙ right */
	void *dropped;            /* dropout of s, or of s ⊙ left if there is a left */
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

/* The gradient of the layernorm of one call, and the operations after it. Partial sums are in the call's scratch. */
status layernorm_grad_launch(backend *b, const op_call *call, const row_plan *plan, const grad_tail *tail);

#endif
