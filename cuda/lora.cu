/* lora: z = y + B (A x), with matrices that each row chooses.
 *
 * A block takes a row. Its warps take the rows of A in turn, then its threads the columns of Bᵀ. A block whose row has
 * no adapter only copies, and nothing at all where z overwrites y. Rows of a prompt read the same matrices again, from
 * the L2 cache. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

struct lora_rows {
	const float *y, *x, *bank;
	float *z;
	const int32_t *entry, *rank, *strip;
	int64_t n, k, entries, parts, width, strips, floats; /* width: of a row of strip */
	lora_params p;
};

static __global__ void __launch_bounds__(THREADS) lora_kernel(lora_rows o)
{
	const float **strip = shared_memory<const float *>(); /* [LORA_MAX_RANK]; NULL: it does not exist */
	float *inner = shared_memory<float>(LORA_MAX_RANK * sizeof *strip); /* [LORA_MAX_RANK] */
	const int64_t row = blockIdx.x, e = o.entry[row];
	const float *y = o.y + row * o.n, *x = o.x + row * o.k;
	float *z = o.z + row * o.n;
	const int given = e < 0 || e >= o.entries ? 0 : o.rank[e * o.parts + o.p.part];
	const int rank = given < 0 || given > LORA_MAX_RANK ? 0 : given;
	if (rank == 0 && z == y)
		return;
	for (int j = threadIdx.x / WARP; j < rank; j += WARPS) {
		const int64_t s = o.strip[e * o.width + j];
		const float *a = s < 0 || s >= o.strips ? NULL : o.bank + s * o.floats + o.p.offset;
		float sum = 0.0f;
		for (int64_t i = threadIdx.x % WARP; a && i < o.k; i += WARP)
			sum = __fmaf_rn(a[i], x[i], sum);
		sum = warp_sum(sum);
		if (threadIdx.x % WARP == 0) {
			inner[j] = sum;
			strip[j] = a;
		}
	}
	__syncthreads();
	for (int64_t i = threadIdx.x; i < o.n; i += THREADS) {
		float sum = y[i];
		for (int j = 0; j < rank; j++)
			if (strip[j])
				sum = __fmaf_rn(strip[j][o.k + i], inner[j], sum);
		z[i] = sum;
	}
}

status cuda_lora(backend *b, const op_call *call)
{
	const shape y = call->in[0].shape, rank = call->in[3].shape, bank = call->in[5].shape;
	const int64_t rows = shape_rows(y);
	if (shape_count(y) == 0)
		return STATUS_OK;
	const lora_rows o = {(const float *)call->in[0].data,
	                     (const float *)call->in[1].data,
	                     (const float *)call->in[5].data,
	                     (float *)call->out[0].data,
	                     (const int32_t *)call->in[2].data,
	                     (const int32_t *)call->in[3].data,
	                     (const int32_t *)call->in[4].data,
	                     shape_last(y),
	                     shape_last(call->in[1].shape),
	                     rank.dim[0],
	                     rank.dim[1],
	                     call->in[4].shape.dim[1],
	                     bank.dim[0],
	                     bank.dim[1],
	                     *(const lora_params *)call->params};
	return cuda_launch(b, lora_kernel, dim3(cuda_extent(rows)), THREADS,
	                   LORA_MAX_RANK * (sizeof(float *) + sizeof(float)), o);
}
