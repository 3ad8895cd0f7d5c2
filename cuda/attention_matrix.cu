/* attention_scores, attention_apply, attention_apply_transposed, mix_heads, mix_heads_grad: products of many small
 * matrices (matrix_product), for ops that need the whole attention matrix.
 *
 * A block has a tile of 64 x 64 of C. Each thread has 4 x 4 of it, and A and B pass through shared memory, 16 of the
 * depth at a time. An element is one chain over terms and depth. Sums are f32, without tensor cores, since the matrix
 * is f32. Bytes: A once for 64 columns, B once for 64 rows, C once. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/attention_matrix.h"
}

enum { THREADS = 256, TILE = 64, DEPTH = 16, SIDE = 4, PITCH = TILE + 4 };

/* to [DEPTH, PITCH] = `count` of a matrix's TILE rows (columns), DEPTH of its depth, zeros outside. The lanes are along
 * the dimension that is contiguous in memory. */
template <class T>
static __device__ __forceinline__ void load_tile(const T *from, int64_t across, int64_t along, int64_t count,
                                                 int64_t depth, float *to)
{
	for (int e = threadIdx.x; e < DEPTH * TILE; e += THREADS) {
		const int d = along == 1 ? e % DEPTH : e / TILE, r = along == 1 ? e / DEPTH : e % TILE;
		to[d * PITCH + r] = r < count && d < depth ? load_real(from + r * across + d * along) : 0.0f;
	}
}

template <class A, class B, class C>
__global__ void __launch_bounds__(THREADS) matrix_product_kernel(matrix_product p, const A *a, const B *b, C *c)
{
	const int64_t down = (p.rows + TILE - 1) / TILE, across = (p.columns + TILE - 1) / TILE;
	const int64_t tile = blockIdx.x, column = tile % across * TILE, row = tile / across % down * TILE;
	const int64_t head = tile / across / down % p.heads, batch = tile / across / down / p.heads;
	const int x = threadIdx.x % (TILE / SIDE) * SIDE, y = threadIdx.x / (TILE / SIDE) * SIDE;
	const int64_t depth = matrix_product_depth(&p, head);
	float *tile_a = shared_memory<float>(), *tile_b = tile_a + DEPTH * PITCH;
	float sum[SIDE][SIDE] = {};
	a += batch * p.a_batch + head * p.a_head + row * p.a_row;
	b += batch * p.b_batch + head / p.b_share * p.b_head + column * p.b_column;
	for (int64_t s = 0; s < p.terms; s++) {
		for (int64_t d = 0; d < depth; d += DEPTH) {
			load_tile(a + s * p.a_term + d * p.a_step, p.a_row, p.a_step, p.rows - row, depth - d, tile_a);
			load_tile(b + s * p.b_term + d * p.b_row, p.b_column, p.b_row, p.columns - column, depth - d,
			          tile_b);
			__syncthreads();
#pragma unroll
			for (int k = 0; k < DEPTH; k++) {
				const pack<float> u = load_pack(tile_a + k * PITCH + y), v = load_pack(tile_b + k * PITCH + x);
#pragma unroll
				for (int i = 0; i < SIDE; i++)
#pragma unroll
					for (int j = 0; j < SIDE; j++)
						sum[i][j] = __fmaf_rn(u.at[i], v.at[j], sum[i][j]);
			}
			__syncthreads();
		}
	}
	c += batch * p.c_batch + head * p.c_head + (row + y) * p.c_row + column + x;
#pragma unroll
	for (int i = 0; i < SIDE; i++)
#pragma unroll
		for (int j = 0; j < SIDE; j++)
			if (row + y + i < p.rows && column + x + j < p.columns)
				store_real(c + i * p.c_row + j, p.factor * sum[i][j]);
}

template <class A, class B, class C>
static status multiply(backend *b, const matrix_product &p, const void *left, const void *right, void *out)
{
	const int64_t tiles = p.batches * p.heads * ((p.rows + TILE - 1) / TILE) * ((p.columns + TILE - 1) / TILE);
	return cuda_launch(b, matrix_product_kernel<A, B, C>, dim3(cuda_extent(tiles)), THREADS,
	                   2 * DEPTH * PITCH * sizeof(float), p, (const A *)left, (const B *)right, (C *)out);
}

status cuda_attention_scores(backend *b, const op_call *call)
{
	const matrix_product p = attention_scores_product(call);
	return cuda_by_type(call->in[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return multiply<T, T, float>(b, p, call->in[0].data, call->in[1].data, call->out[0].data);
	});
}

static status attention_matrix_apply(backend *b, const op_call *call, const matrix_product &p)
{
	return cuda_by_type(call->in[1].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		return multiply<float, T, T>(b, p, call->in[0].data, call->in[1].data, call->out[0].data);
	});
}

status cuda_attention_apply(backend *b, const op_call *call)
{
	return attention_matrix_apply(b, call, attention_apply_product(call));
}

status cuda_attention_apply_transposed(backend *b, const op_call *call)
{
	return attention_matrix_apply(b, call, attention_apply_transposed_product(call));
}

status cuda_mix_heads(backend *b, const op_call *call)
{
	return multiply<float, float, float>(b, mix_heads_product(call), call->in[1].data, call->in[0].data,
	                                     call->out[0].data);
}

/* out[e] = Σ_part parts[part][e], in order. */
static __global__ void __launch_bounds__(THREADS) sum_mix_parts(const float *parts, int64_t count, int64_t n, float *out)
{
	for (int64_t e = grid_first(); e < n; e += grid_stride()) {
		float sum = 0.0f;
		for (int64_t part = 0; part < count; part++)
			sum = __fadd_rn(sum, parts[part * n + e]);
		out[e] = sum;
	}
}

size_t cuda_mix_heads_grad_scratch(const backend *b, const op_call *call)
{
	(void)b;
	const matrix_product p = mix_heads_grad_product(call);
	return (size_t)(p.batches * p.c_batch) * sizeof(float);
}

status cuda_mix_heads_grad(backend *b, const op_call *call)
{
	const matrix_product p = mix_heads_grad_product(call);
	const int64_t n = p.rows * p.columns;
	TRY((multiply<float, float, float>(b, p, call->in[1].data, call->in[0].data, call->scratch)));
	return cuda_launch(b, sum_mix_parts, dim3(cuda_blocks(b, n, THREADS)), THREADS, 0, (const float *)call->scratch,
	                   p.batches * p.heads, n, (float *)call->out[0].data);
}
