/* source_store: the unmasked tokens of a source, stored contiguously in a slot.
 *
 * A block has TOKENS neighbouring tokens of a source. It counts the earlier tokens that are stored, which costs 4 bytes
 * for each. Then it copies its own, one warp per token: 8 bytes for every channel of keys and values. */
#include "cuda/backend.h"
#include "cuda/device.cuh"
#include "cuda/kernels.h"

extern "C" {
#include "engine/tensor/ops/softmax_stream.h"
}

enum { WARPS = 4, TOKENS = 32 };

struct store_call {
	const float *k, *v;
	float *pool;
	const int32_t *slot, *length, *mask; /* the last two may be NULL */
	softmax_store store;
	int64_t n, slot_floats, offset;
	unsigned blocks; /* per source */
};

/* Number of tokens first … last - 1 of a source that are stored, in all lanes of a warp. */
static __device__ __forceinline__ int stored(const int32_t *mask, int64_t first, int64_t last)
{
	int count = 0;
	if (!mask)
		return (int)(last - first);
	for (int64_t i = first + threadIdx.x % WARP; i - threadIdx.x % WARP < last; i += WARP)
		count += __popc(__ballot_sync(ALL_LANES, i < last && mask[i] != 0));
	return count;
}

__global__ void __launch_bounds__(WARPS *WARP) source_store_kernel(store_call c)
{
	const int lane = threadIdx.x % WARP;
	const unsigned row = blockIdx.x / c.blocks;
	const int64_t first = (int64_t)(blockIdx.x % c.blocks) * TOKENS, length = c.length ? c.length[row] : c.n;
	const int64_t last = min(first + TOKENS, length);
	const int32_t *mask = c.mask ? c.mask + row * c.n : nullptr;
	float *state = c.pool + c.slot[row] * c.slot_floats + c.offset;
	if (first >= length)
		return;
	int place = stored(mask, 0, first);
	for (int64_t i = first; i < last; i++) {
		if (mask && mask[i] == 0)
			continue;
		if (i % WARPS == threadIdx.x / WARP) {
			const float *k = c.k + (row * c.n + i) * c.store.key_width;
			const float *v = c.v + (row * c.n + i) * c.store.value_width;
			for (int64_t d = lane; d < c.store.key_width; d += WARP)
				state[softmax_key(c.store, place) + d] = k[d];
			for (int64_t d = lane; d < c.store.value_width; d += WARP)
				state[softmax_value(c.store, place) + d] = v[d];
		}
		place++;
	}
	if (last == length && threadIdx.x == 0)
		state[source_count_at(c.store)] = (float)place;
}

status cuda_source_store(backend *b, const op_call *call)
{
	const source_params *p = (const source_params *)call->params;
	const shape k = call->in[0].shape;
	store_call c = {};
	c.k = (const float *)call->in[0].data;
	c.v = (const float *)call->in[1].data;
	c.pool = (float *)call->in[2].data;
	c.slot = (const int32_t *)call->in[3].data;
	c.length = (const int32_t *)cuda_optional(call, 4);
	c.mask = (const int32_t *)cuda_optional(call, 5);
	c.store = softmax_store_of(k.dim[2], p->value_width, p->capacity, SOFTMAX_F32);
	c.n = k.dim[1];
	c.slot_floats = call->in[2].shape.dim[1];
	c.offset = p->offset;
	c.blocks = (unsigned)((c.n + TOKENS - 1) / TOKENS);
	if (shape_count(k) == 0)
		return STATUS_OK;
	return cuda_launch(b, source_store_kernel, cuda_extent(k.dim[0] * c.blocks), WARPS * WARP, 0, c);
}
