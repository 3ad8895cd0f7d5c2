/* dilated_attention.cuh - helpers for the kernels of dilated_attention and its gradient: the rows of a block, and the
 * log-normalizers of a row.
 *
 * The rows of a segment that a head keeps form a dense attention whose rows are r · D apart. So they go through the
 * tiles of softmax_attention.cuh ("plain": f32 arithmetic, 256 threads, 64 by 64) with another stride. There is a
 * launch for each branch, in order; a block has a tile of the rows of one segment of one head. */
#ifndef CUDA_DILATED_ATTENTION_CUH
#define CUDA_DILATED_ATTENTION_CUH

#include "cuda/softmax_attention.cuh"

extern "C" {
#include "engine/tensor/ops/dilated.h"
}

enum { DILATED_SPACE = (2 * ATTENTION_TILE * PLAIN_PITCH + 2 * ATTENTION_TILE * PLAIN_WIDE) * (int)sizeof(float) };

struct dilated_call {
	dilated_pattern pattern;
	int64_t batch, length, heads, dh, d;
	const int32_t *mask;  /* may be NULL */
	const float *mixture; /* may be NULL */
	float scale;
	bool causal, zero_keys;
	float *log_normalizer; /* [branches, B, N, H] */
	int branch;
};

static inline dilated_call dilated_call_of(const op_call *call, float *log_normalizer)
{
	const dilated_params *p = (const dilated_params *)call->params;
	const shape s = call->in[0].shape;
	dilated_call c = {};
	c.pattern = p->pattern;
	c.batch = s.dim[0];
	c.length = s.dim[1];
	c.heads = p->heads;
	c.d = s.dim[2];
	c.dh = c.d / c.heads;
	c.mask = (const int32_t *)cuda_optional(call, 3);
	c.mixture = (const float *)cuda_optional(call, 4);
	c.scale = p->scale;
	c.causal = p->causal;
	c.zero_keys = p->zero_keys && !p->causal;
	c.log_normalizer = log_normalizer;
	return c;
}

/* Tokens in a segment of the branch; tiles of its rows; segments in a sequence. */
static inline __host__ __device__ int64_t dilated_length(const dilated_call &c)
{
	return min(c.pattern.segment[c.branch], c.length);
}
static inline __host__ __device__ int64_t dilated_tiles(const dilated_call &c)
{
	const int64_t r = c.pattern.dilation[c.branch], rows = (dilated_length(c) + r - 1) / r;
	return (rows + ATTENTION_TILE - 1) / ATTENTION_TILE;
}
static inline __host__ __device__ int64_t dilated_segments(const dilated_call &c)
{
	return (c.length + dilated_length(c) - 1) / dilated_length(c);
}

/* One block for each tile of rows, and along y for each slice of a result's channels. */
static inline dim3 dilated_grid(const dilated_call &c)
{
	return dim3(cuda_extent(c.batch * dilated_segments(c) * c.heads * dilated_tiles(c)),
	            cuda_parts(c.dh, PLAIN_COLUMNS));
}

/* The rows of a block. */
struct dilated_place {
	int64_t token, step;       /* index of the segment's row 0 over all sequences; tokens from row to row */
	int64_t at, stride;        /* in elements, at the head's first channel */
	int64_t norm, norm_stride; /* in log-normalizers of a branch */
	int count, first;          /* rows of the segment; the first of the tile */
	float zeros;               /* number of keys that are zeros */
};

__device__ __forceinline__ dilated_place dilated_here(const dilated_call &c)
{
	const int64_t tiles = dilated_tiles(c), w = dilated_length(c), r = c.pattern.dilation[c.branch];
	const int64_t tile = blockIdx.x % tiles, head = blockIdx.x / tiles % c.heads;
	const int64_t segment = blockIdx.x / tiles / c.heads, segments = dilated_segments(c);
	const int64_t start = segment % segments * w, first = dilated_first(&c.pattern, c.branch, c.heads, head);
	dilated_place p;
	p.token = segment / segments * c.length + start + first;
	p.step = r;
	p.at = p.token * c.d + head * c.dh;
	p.stride = r * c.d;
	p.norm = p.token * c.heads + head;
	p.norm_stride = r * c.heads;
	p.count = (int)dilated_kept(min(w, c.length - start), first, r);
	p.first = (int)tile * ATTENTION_TILE;
	p.zeros = c.zero_keys ? (float)((w + r - 1) / r - p.count) : 0.0f;
	return p;
}

/* True if row `query` reads row `key` of the same segment. */
__device__ __forceinline__ bool dilated_sees(const dilated_call &c, const dilated_place &p, int query, int key)
{
	return key < p.count && query < p.count && (!c.causal || key <= query) &&
	       (!c.mask || c.mask[p.token + key * p.step] != 0);
}

/* L of a row in branch i. */
__device__ __forceinline__ float *dilated_normalizer(const dilated_call &c, const dilated_place &p, int i, int row)
{
	return c.log_normalizer + i * c.batch * c.length * c.heads + p.norm + row * p.norm_stride;
}

/* log Σ e^L of a row over branches 0 … end - 1. */
__device__ __forceinline__ float dilated_sum(const dilated_call &c, const dilated_place &p, int end, int row)
{
	float top = -INFINITY, sum = 0.0f;
	for (int i = 0; i < end; i++)
		top = fmaxf(top, *dilated_normalizer(c, p, i, row));
	for (int i = 0; i < end && top > -INFINITY; i++)
		sum += expf(*dilated_normalizer(c, p, i, row) - top);
	return top == -INFINITY ? top : top + logf(sum);
}

/* c_i of the mixture. */
__device__ __forceinline__ float dilated_weight(const dilated_call &c, int i)
{
	float top = -INFINITY, sum = 0.0f;
	for (int l = 0; l < c.pattern.branches; l++)
		top = fmaxf(top, c.mixture[l]);
	for (int l = 0; l < c.pattern.branches; l++)
		sum += expf(c.mixture[l] - top);
	return expf(c.mixture[i] - top) / sum;
}

/* x = value, count floats. */
static __global__ void __launch_bounds__(PLAIN_THREADS) dilated_fill(float *x, int64_t count, float value)
{
	for (int64_t i = grid_first(); i < count; i += grid_stride())
		x[i] = value;
}

/* to = from, rounded. */
template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS) dilated_round(const float *from, int64_t count, T *to)
{
	for (int64_t i = grid_first(); i < count; i += grid_stride())
		store_real(to + i, from[i]);
}

static inline unsigned dilated_blocks(int64_t count)
{
	return (unsigned)min((count + PLAIN_THREADS - 1) / PLAIN_THREADS, (int64_t)4096);
}

static inline status dilated_set(backend *b, float *x, int64_t count, float value)
{
	return x ? cuda_launch(b, dilated_fill, dilated_blocks(count), PLAIN_THREADS, 0, x, count, value) : STATUS_OK;
}

#endif
