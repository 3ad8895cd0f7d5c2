/* dilated_attention_grad: one branch after another (dilated_attention.cuh). The probabilities are recomputed from the
 * scores and log_normalizer (Dao et al. 2022):
 *
 *   P_tj = e^{s_tj - m},  m = L_i(t) - log c_i(t);   ds_tj = P_tj (dy_t·v_j - D_t)
 *   dq_t += scale Σ_j ds_tj k_j;   dk_j += scale Σ_t ds_tj q_t;   dv_j += Σ_t P_tj dy_t
 *
 * Two launches for each branch. A block per tile of queries finds D (dy·y, or where c is a constant dy·o_i by one pass
 * over the keys) and computes dq; a block per tile of keys computes dk and dv. Blocks of a launch have different rows
 * and launches run in order, so there are no atomics, and two runs give the same bits. In bf16 the sums stay in f32 in
 * scratch until the last branch.
 *
 * If dq, dk and dmixture are not requested (frozen weights), only P and dv are computed. */
#include "cuda/dilated_attention.cuh"
#include "cuda/kernels.h"

struct dilated_gradient {
	dilated_call c;
	bool exact;          /* D = dy·y */
	bool frozen;         /* ds is not needed */
	float *along;        /* D, [branches, B, N, H]; 0 where a branch does not keep the row */
	float *dq, *dk, *dv; /* sums in f32; may be NULL */
};

/* m of a row; +inf where the branch has no weight there, so that probabilities are 0. */
__device__ __forceinline__ float dilated_level(const dilated_call &c, const dilated_place &p, int row)
{
	const float l = row < p.count ? *dilated_normalizer(c, p, c.branch, row) : -INFINITY;
	if (l == -INFINITY)
		return INFINITY;
	if (!c.mixture)
		return dilated_sum(c, p, (int)c.pattern.branches, row);
	const float weight = dilated_weight(c, c.branch);
	return weight > 0.0f ? l - logf(weight) : INFINITY;
}

__device__ __forceinline__ float *dilated_along(const dilated_gradient &g, const dilated_place &p, int row)
{
	return g.along + (dilated_normalizer(g.c, p, g.c.branch, row) - g.c.log_normalizer);
}

/* s = e^{scale s - m} for the queries from `query` on and the keys from `key` on. */
__device__ __forceinline__ void dilated_weigh(float (&s)[4][4], const dilated_call &c, const dilated_place &p,
                                              int query, int key, const float (&m)[4])
{
#pragma unroll
	for (int i = 0; i < 16; i++)
		s[i / 4][i % 4] = dilated_sees(c, p, query + plain_row() + i / 4, key + plain_column() + i % 4)
		                      ? expf(s[i / 4][i % 4] * c.scale - m[i / 4])
		                      : 0.0f;
}

/* Find D of this thread's four rows. */
template <class T>
__device__ __forceinline__ void dilated_find_along(const dilated_gradient &g, const dilated_place &p, int end,
                                                   const T *q, const T *k, const T *v, const T *y, const T *dy,
                                                   float *space, float (&along)[4])
{
	const dilated_call &c = g.c;
	const int64_t first = p.at + p.first * p.stride;
	const int dh = (int)c.dh;
	float s[4][4], u[4][4], l[4];
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = p.first + plain_row() + i;
		along[i] = 0.0f;
		l[i] = row < p.count ? *dilated_normalizer(c, p, c.branch, row) : -INFINITY;
		l[i] = l[i] == -INFINITY ? INFINITY : l[i];
		for (int64_t d = threadIdx.x % 16; g.exact && row < p.count && d < dh; d += 16)
			along[i] +=
			    load_real(y + p.at + row * p.stride + d) * load_real(dy + p.at + row * p.stride + d);
	}
	for (int key = 0; key < end && !g.exact; key += ATTENTION_TILE) {
		const int64_t at = p.at + key * p.stride;
		plain_products<T>(s, {q + first, p.stride, p.count - p.first}, {k + at, p.stride, p.count - key}, dh,
		                  space);
		plain_products<T>(u, {dy + first, p.stride, p.count - p.first}, {v + at, p.stride, p.count - key}, dh,
		                  space);
		dilated_weigh(s, c, p, p.first, key, l);
#pragma unroll
		for (int i = 0; i < 16; i++)
			along[i / 4] += s[i / 4][i % 4] * u[i / 4][i % 4];
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		along[i] = warp_sum<16>(along[i]);
}

/* Add out, this thread's 4 by 4, to the sums of rows from `row` on (`count` exist) and columns from `column` on. */
__device__ __forceinline__ void dilated_add(float *sums, const dilated_call &c, const dilated_place &p,
                                            const float (&out)[4][4], float factor, int column)
{
#pragma unroll
	for (int i = 0; i < 16; i++) {
		const int row = p.first + plain_row() + i / 4, d = column + plain_column() + i % 4;
		if (row < p.count && d < c.dh)
			sums[p.at + row * p.stride + d] += factor * out[i / 4][i % 4];
	}
}

template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS, 1)
    dilated_queries(dilated_gradient g, const T *q, const T *k, const T *v, const T *y, const T *dy)
{
	float *space = shared_memory<float>(), *tile = space + 2 * ATTENTION_TILE * PLAIN_PITCH,
	      *rows = tile + ATTENTION_TILE * PLAIN_WIDE;
	const dilated_call &c = g.c;
	const dilated_place p = dilated_here(c);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, dh = (int)c.dh;
	const int end = c.causal ? min(p.first + ATTENTION_TILE, p.count) : p.count;
	const int64_t first = p.at + p.first * p.stride;
	float s[4][4], u[4][4], out[4][4] = {}, along[4], m[4];
	if (p.first >= p.count)
		return;
	dilated_find_along(g, p, end, q, k, v, y, dy, space, along);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		const int row = p.first + plain_row() + i;
		m[i] = dilated_level(c, p, row);
		if (blockIdx.y == 0 && threadIdx.x % 16 == 0 && row < p.count)
			*dilated_along(g, p, row) = along[i];
	}
	for (int key = 0; key < end && g.dq; key += ATTENTION_TILE) {
		const int64_t at = p.at + key * p.stride;
		plain_products<T>(s, {q + first, p.stride, p.count - p.first}, {k + at, p.stride, p.count - key}, dh,
		                  space);
		plain_products<T>(u, {dy + first, p.stride, p.count - p.first}, {v + at, p.stride, p.count - key}, dh,
		                  space);
		dilated_weigh(s, c, p, p.first, key, m);
#pragma unroll
		for (int i = 0; i < 16; i++)
			s[i / 4][i % 4] *= u[i / 4][i % 4] - along[i / 4];
		plain_keep(tile, s);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, k + at + column, p.stride, p.count - key, dh - column);
		__syncthreads();
		plain_accumulate<false>(out, tile, rows);
		__syncthreads();
	}
	if (g.dq)
		dilated_add(g.dq, c, p, out, c.scale, column);
}

template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS, 1)
    dilated_keys(dilated_gradient g, const T *q, const T *k, const T *v, const T *dy)
{
	float *space = shared_memory<float>(), *tile = space + 2 * ATTENTION_TILE * PLAIN_PITCH,
	      *rows = tile + ATTENTION_TILE * PLAIN_WIDE;
	const dilated_call &c = g.c;
	const dilated_place p = dilated_here(c);
	const int column = (int)blockIdx.y * PLAIN_COLUMNS, dh = (int)c.dh;
	const int64_t key = p.at + p.first * p.stride;
	float s[4][4], u[4][4], out_k[4][4] = {}, out_v[4][4] = {}, m[4];
	if (p.first >= p.count)
		return;
	for (int query = c.causal ? p.first : 0; query < p.count; query += ATTENTION_TILE) {
		const int64_t at = p.at + query * p.stride;
		const int count = p.count - query;
#pragma unroll
		for (int i = 0; i < 4; i++)
			m[i] = dilated_level(c, p, query + plain_row() + i);
		plain_products<T>(s, {q + at, p.stride, count}, {k + key, p.stride, p.count - p.first}, dh, space);
		if (!g.frozen)
			plain_products<T>(u, {dy + at, p.stride, count}, {v + key, p.stride, p.count - p.first}, dh,
			                  space);
		dilated_weigh(s, c, p, query, p.first, m);
		plain_keep(tile, s);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, dy + at + column, p.stride, count, dh - column);
		__syncthreads();
		plain_accumulate<true>(out_v, tile, rows);
		__syncthreads();
		if (g.frozen)
			continue;
#pragma unroll
		for (int i = 0; i < 16; i++) {
			const int row = query + plain_row() + i / 4;
			s[i / 4][i % 4] *= row < p.count ? u[i / 4][i % 4] - *dilated_along(g, p, row) : 0.0f;
		}
		plain_keep(tile, s);
		plain_load<PLAIN_COLUMNS, PLAIN_WIDE>(rows, q + at + column, p.stride, count, dh - column);
		__syncthreads();
		plain_accumulate<true>(out_k, tile, rows);
		__syncthreads();
	}
	if (g.dk)
		dilated_add(g.dk, c, p, out_k, c.scale, column);
	if (g.dv)
		dilated_add(g.dv, c, p, out_v, 1.0f, column);
}

/* Block: part blockIdx.x of branch blockIdx.y. part [branches, parts]: sums of `each` values of along [branches, count],
 * or of all of them if one block has them all. */
static __global__ void __launch_bounds__(PLAIN_THREADS)
    dilated_sum_along(float *part, const float *along, int64_t count, int64_t each)
{
	const int64_t first = blockIdx.x * each, past = min(first + each, count);
	float sum = 0.0f;
	for (int64_t e = first + threadIdx.x; e < past; e += PLAIN_THREADS)
		sum += along[blockIdx.y * count + e];
	sum = block_sum(sum, shared_memory<float>());
	if (threadIdx.x == 0)
		part[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

/* One block: dmixture_i = c_i (a_i - Σ_l c_l a_l), where a_i is the sum of a branch's D, the sum of its parts. */
static __global__ void __launch_bounds__(PLAIN_THREADS)
    dilated_mixture(dilated_call c, const float *part, int parts, float *dmixture)
{
	float *space = shared_memory<float>(), own[DILATED_MAX_BRANCHES], mean = 0.0f;
	for (int i = 0; i < c.pattern.branches; i++) {
		own[i] = block_sum((int)threadIdx.x < parts ? part[i * parts + threadIdx.x] : 0.0f, space);
		mean += dilated_weight(c, i) * own[i];
	}
	for (int i = 0; i < c.pattern.branches && threadIdx.x == 0; i++)
		dmixture[i] = dilated_weight(c, i) * (own[i] - mean);
}

/* --- the op ------------------------------------------------------------------------------------- */

enum {
#ifdef __CUDACC__
	MIXTURE_EACH = 16 * PLAIN_THREADS, /* minimum values per part */
#else
	MIXTURE_EACH = 16, /* so that the emulator has parts too */
#endif
	MIXTURE_PARTS = PLAIN_THREADS /* maximum */
};

/* Values of a branch's D per part. */
static int64_t mixture_each(const dilated_call &c)
{
	const int64_t each = (c.batch * c.length * c.heads + MIXTURE_PARTS - 1) / MIXTURE_PARTS;
	return each > MIXTURE_EACH ? each : (int64_t)MIXTURE_EACH;
}

/* Bytes of D of all branches, of the sums of its parts, and in bf16 of the sums of those of dq, dk and dv that are
 * requested. */
size_t cuda_dilated_attention_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	int64_t floats = shape_count(call->in[6].shape) + DILATED_MAX_BRANCHES * MIXTURE_PARTS;
	for (int i = 0; i < 3; i++)
		floats += call->in[0].type == DTYPE_BF16 && call->out[i].data ? shape_count(call->in[0].shape) : 0;
	return (size_t)floats * sizeof(float);
}

template <class T> static status dilated_grad_as(backend *b, const op_call *call)
{
	constexpr bool rounds = !std::is_same<T, float>::value;
	const dilated_params *params = (const dilated_params *)call->params;
	const int64_t count = shape_count(call->in[0].shape), norms = shape_count(call->in[6].shape);
	const T *q = (T *)call->in[0].data, *k = (T *)call->in[1].data, *v = (T *)call->in[2].data,
	        *y = (T *)call->in[5].data, *dy = (T *)call->in[7].data;
	dilated_gradient g = {};
	g.c = dilated_call_of(call, (float *)call->in[6].data);
	g.exact = !g.c.mixture && !params->detach_weights;
	g.frozen = !call->out[0].data && !call->out[1].data && !(g.c.mixture && call->out[3].data);
	g.along = (float *)call->scratch;
	float **const sums[] = {&g.dq, &g.dk, &g.dv}, *scratch = g.along + norms + DILATED_MAX_BRANCHES * MIXTURE_PARTS;
	TRY(dilated_set(b, g.along, norms, 0.0f));
	for (int i = 0; i < 3; i++) {
		*sums[i] = rounds && call->out[i].data ? scratch : (float *)call->out[i].data;
		scratch += rounds && call->out[i].data ? count : 0;
		TRY(dilated_set(b, *sums[i], count, 0.0f));
	}
	for (g.c.branch = 0; g.c.branch < g.c.pattern.branches; g.c.branch++) {
		const dim3 grid = dilated_grid(g.c);
		if (!g.frozen)
			TRY(cuda_launch(b, dilated_queries<T>, grid, PLAIN_THREADS, DILATED_SPACE, g, q, k, v, y, dy));
		if (g.dk || g.dv)
			TRY(cuda_launch(b, dilated_keys<T>, grid, PLAIN_THREADS, DILATED_SPACE, g, q, k, v, dy));
	}
	for (int i = 0; i < 3 && rounds; i++)
		if (call->out[i].data)
			TRY(cuda_launch(b, dilated_round<T>, dilated_blocks(count), PLAIN_THREADS, 0, *sums[i], count,
			                (T *)call->out[i].data));
	return STATUS_OK;
}

status cuda_dilated_attention_grad(backend *b, const op_call *call)
{
	const bool mixed = cuda_optional(call, 4) && call->out[3].data;
	if (shape_count(call->in[0].shape) == 0)
		return mixed ? dilated_set(b, (float *)call->out[3].data, shape_count(call->out[3].shape), 0.0f)
		             : STATUS_OK;
	TRY(cuda_by_type(call->in[0].type,
	                 [&](auto *type) { return dilated_grad_as<std::remove_pointer_t<decltype(type)>>(b, call); }));
	if (!mixed)
		return STATUS_OK;
	const dilated_call c = dilated_call_of(call, (float *)call->in[6].data);
	const int64_t count = c.batch * c.length * c.heads, each = mixture_each(c), parts = (count + each - 1) / each;
	float *along = (float *)call->scratch, *part = along + shape_count(call->in[6].shape);
	TRY(cuda_launch(b, dilated_sum_along, dim3(cuda_extent(parts), (unsigned)c.pattern.branches), PLAIN_THREADS,
	                WARP * sizeof(float), part, along, count, each));
	return cuda_launch(b, dilated_mixture, 1, PLAIN_THREADS, WARP * sizeof(float), c, part, (int)parts,
	                   (float *)call->out[3].data);
}
