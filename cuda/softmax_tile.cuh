/* softmax_tile.cuh - softmax attention by chunks of keys: how the sums of chunks are merged, and how a warp computes
 * ROWS queries and a tile of 32 keys in shared memory.
 *
 * The warp has the order of sums of a kernel that reads keys for one query. The channels of a score are added along the
 * tree of warp_sum<LANES>, and the exponentials of a tile as warp_sum adds them. Each part of a warp adds its values in
 * the order of keys. Then come the parts. */
#ifndef CUDA_SOFTMAX_TILE_CUH
#define CUDA_SOFTMAX_TILE_CUH

#include "cuda/ptx.cuh"
#include "cuda/stream.cuh"

enum { TILE = WARP /* keys */ };

/* --- merging chunks ------------------------------------------------------------------------------------------------ */

/* The chunks of a query so far: their largest score, and z = Σ e^{s-top} relative to it. */
struct merged {
	float top, z;
};
static constexpr merged NOTHING_MERGED = {-INFINITY, 0.0f};

/* Merge a chunk's m and z. The sums of earlier chunks are then multiplied by the result's x, those of this one by its y;
 * if y is not above 0, they stay as they are. */
static __device__ __forceinline__ float2 merge_chunk(merged &all, float2 norm)
{
	const float top = fmaxf(all.top, norm.x);
	if (top == -INFINITY)
		return make_float2(1.0f, 0.0f);
	const float2 by = make_float2(expf(all.top - top), expf(norm.x - top));
	if (by.y > 0.0f)
		all.z = __fmaf_rn(by.y, norm.y, __fmul_rn(by.x, all.z));
	all.top = top;
	return by;
}

static __device__ __forceinline__ void merge_sums(quad &all, const quad &sum, float2 by)
{
#pragma unroll
	for (int e = 0; e < QUAD; e++)
		if (by.y > 0.0f)
			all.at[e] = __fmaf_rn(by.y, sum.at[e], __fmul_rn(by.x, all.at[e]));
}

/* Factor of the merged sums, 0 if nothing was seen. */
static __device__ __forceinline__ float inverse_of(const merged &all)
{
	return all.z > 0.0f ? __fdiv_rn(1.0f, all.z) : 0.0f;
}

static __device__ __forceinline__ float normalizer_of(const merged &all)
{
	return all.z > 0.0f ? all.top + logf(all.z) : -INFINITY;
}

static __device__ __forceinline__ quad answer_of(const quad &sum, float inverse)
{
	quad y;
#pragma unroll
	for (int e = 0; e < QUAD; e++)
		y.at[e] = inverse > 0.0f ? __fmul_rn(sum.at[e], inverse) : 0.0f;
	return y;
}

/* Add the parts of a warp: every part gets the sums. */
template <int LANES> static __device__ __forceinline__ void add_parts(quad &sum)
{
#pragma unroll
	for (int e = 0; e < QUAD; e++) {
#pragma unroll
		for (int flip = LANES; flip < WARP; flip *= 2)
			sum.at[e] += __shfl_xor_sync(ALL_LANES, sum.at[e], flip);
	}
}

/* --- a tile of keys for ROWS queries ------------------------------------------------------------------------------- */

enum {
	ROWS = 16,                    /* queries of a warp */
	OWN = 4,                      /* queries of a thread for scores */
	KEY_LANES = WARP / (ROWS / OWN),
	KEYS = TILE / KEY_LANES,      /* keys of a thread for scores, KEY_LANES apart */
	EXPONENTIAL_ROW = ROWS + QUAD /* floats of a key's exponentials: 8 keys are in different banks */
};

/* Floats of a key or a query in shared memory: 8 keys are in different banks. */
template <int LANES> static constexpr int ROW = LANES *QUAD + QUAD;

/* Row of query q of a warp: a thread's query b is row b · OWN + its group. */
static __device__ __forceinline__ int query_row(int q)
{
	return q % OWN * OWN + q / OWN;
}

/* Start to copy 32 rows of `width` channels for the block. Lane j of each warp has the address of row j. A row that is
 * NULL and channels past the last one are zeros. `any`: a valid address. */
template <int LANES>
static __device__ __forceinline__ void copy_rows(const float *own, int width, const float *any, float *to, int stride)
{
	const int d = threadIdx.x % LANES * QUAD;
#pragma unroll 1
	for (int key = threadIdx.x / LANES; key < TILE; key += blockDim.x / LANES) {
		const float *from = (const float *)__shfl_sync(ALL_LANES, (unsigned long long)own, key);
		const bool some = from && d < width;
		copy_async(to + key * stride + d, some ? from + d : any, some ? (int)sizeof(quad) : 0);
	}
	copy_commit();
}

/* Sums over the quads leaf, leaf + step, … of a thread's queries and keys, as warp_sum adds those of the lanes. */
template <int LANES, int leaf, int step>
static __device__ __forceinline__ void add_scores(const float *query, const float *key, float sum[OWN][KEYS])
{
	if constexpr (step == LANES) {
		quad k[KEYS];
#pragma unroll
		for (int a = 0; a < KEYS; a++)
			k[a] = load_pack(key + a * KEY_LANES * ROW<LANES> + leaf * QUAD);
#pragma unroll
		for (int b = 0; b < OWN; b++) {
			const quad q = load_pack(query + b * OWN * ROW<LANES> + leaf * QUAD);
#pragma unroll
			for (int a = 0; a < KEYS; a++)
				sum[b][a] = quad_dot(q, k[a], 0.0f);
		}
	} else {
		float other[OWN][KEYS];
		add_scores<LANES, leaf, 2 * step>(query, key, sum);
		if constexpr (8 * step <= LANES)
			__syncwarp(); /* the compiler does not load both halves' operands at once, for lack of registers */
		add_scores<LANES, leaf + step, 2 * step>(query, key, other);
#pragma unroll
		for (int b = 0; b < OWN; b++)
#pragma unroll
			for (int a = 0; a < KEYS; a++)
				sum[b][a] += other[b][a];
	}
}

/* Replace a query's scores by exponentials relative to the tile's largest score, or to `least` if that is larger.
 * `from` is then the number that was subtracted. Return that score and the sum of the exponentials. */
static __device__ __forceinline__ float2 soften(float score[KEYS], float least, float &from)
{
	float top = -INFINITY;
#pragma unroll
	for (int a = 0; a < KEYS; a++)
		top = fmaxf(top, score[a]);
	top = fmaxf(least, warp_max<KEY_LANES>(top));
	const bool none = top == -INFINITY;
	from = none ? 0.0f : top;
#pragma unroll
	for (int a = 0; a < KEYS; a++)
		score[a] = expf(score[a] - from);
	static_assert(KEYS == 4, "the first two steps of warp_sum");
	const float seen = (score[0] + score[2]) + (score[1] + score[3]);
	const float sum = none ? 0.0f : seen; /* the exponentials are 0, or those of scores that are NaN */
	return make_float2(top, warp_sum<KEY_LANES>(sum));
}

/* Store a thread's exponentials for add_values. to: [TILE][EXPONENTIAL_ROW] */
static __device__ __forceinline__ void store_exponentials(const float e[OWN][KEYS], float *to)
{
	const int lane = threadIdx.x % WARP, group = lane / KEY_LANES, own_key = lane % KEY_LANES;
#pragma unroll
	for (int a = 0; a < KEYS; a++)
		store_pack(to + (own_key + a * KEY_LANES) * EXPONENTIAL_ROW + group * OWN,
		           pack<float>{{e[0][a], e[1][a], e[2][a], e[3][a]}});
}

/* sum += Σ_j e_j v_j over the keys of the tile; each part of the warp adds its own keys. value: [TILE][LANES · QUAD] */
template <int LANES>
static __device__ __forceinline__ void add_values(const float *exponentials, const float *value, quad sum[ROWS])
{
	enum { PARTS = WARP / LANES };
	const int lane = threadIdx.x % WARP, part = lane / LANES, d = lane % LANES * QUAD;
#pragma unroll 2
	for (int key = part; key < TILE; key += PARTS) {
		const quad v = load_pack(value + key * LANES * QUAD + d);
#pragma unroll
		for (int q = 0; q < ROWS; q += OWN) {
			const quad exponential = load_pack(exponentials + key * EXPONENTIAL_ROW + q);
#pragma unroll
			for (int b = 0; b < OWN; b++)
#pragma unroll
				for (int e = 0; e < QUAD; e++)
					if (exponential.at[b] > 0.0f) /* the value of a masked token may be anything */
						sum[q + b].at[e] = __fmaf_rn(exponential.at[b], v.at[e], sum[q + b].at[e]);
		}
	}
}

#endif
