/* hide_keys: a warp takes a row. The largest hidden word is found bit by bit, from the highest down, each time by
 * counting the words below a bound. Words are recomputed in each sweep. Integers only, so every backend hides the same
 * keys. */
#include "cuda/device.cuh"
#include "cuda/kernels.h"
#include "engine/tensor/ops/hide_keys.h"

enum { THREADS = 128, WARPS = THREADS / WARP };

struct key_row {
	hide_keys_params p;
	const int32_t *rng, *mask; /* for the row; NULL: nothing is masked */
	int64_t first;             /* index of its first key */
};

static __device__ __forceinline__ bool is_seen(const key_row &r, int64_t i)
{
	return i < r.p.length && (!r.mask || r.mask[i]);
}

/* Number of visible keys from `begin` on with a word below `bound`. */
static __device__ int64_t below(const key_row &r, int64_t begin, uint64_t bound)
{
	int64_t n = 0;
	for (int64_t i = begin; i < r.p.length; i += WARP) {
		const int64_t key = i + threadIdx.x % WARP;
		n += __popc(
		    __ballot_sync(ALL_LANES, is_seen(r, key) && hide_keys_word(&r.p, r.rng, r.first + key) < bound));
	}
	return n;
}

static __global__ void __launch_bounds__(THREADS)
    hide_keys_kernel(int32_t *out, const int32_t *rng, const int32_t *mask, hide_keys_params p)
{
	const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
	if (row >= p.batch)
		return;
	const key_row r = {p, rng, mask ? mask + row * p.length : NULL, row * p.length};
	const int64_t count = hide_keys_count(&p, below(r, 0, (uint64_t)1 << 32));
	uint64_t last = 0;
	for (int bit = 31; bit >= 0 && count; bit--) {
		const uint64_t bound = last | (uint64_t)1 << bit;
		if (below(r, p.first, bound) < count)
			last = bound;
	}
	int64_t equal = count ? count - below(r, p.first, last) : 0;
	for (int64_t i = 0; i < p.length; i += WARP) {
		const int64_t key = i + lane;
		const bool seen = is_seen(r, key), may = seen && key >= p.first && count;
		const uint32_t word = may ? hide_keys_word(&p, rng, r.first + key) : 0;
		const unsigned ties = __ballot_sync(ALL_LANES, may && word == last);
		const bool hidden = may && (word < last || (word == last && __popc(ties & ((1u << lane) - 1)) < equal));
		equal -= __popc(ties);
		if (key < p.length)
			out[r.first + key] = seen && !hidden;
	}
}

status cuda_hide_keys(backend *b, const op_call *call)
{
	const hide_keys_params *p = (const hide_keys_params *)call->params;
	const int32_t *rng = (const int32_t *)call->in[0].data;
	const int32_t *mask = call->n_in > 1 ? (const int32_t *)call->in[1].data : NULL;
	if (p->batch == 0 || p->length == 0)
		return STATUS_OK;
	return cuda_launch(b, hide_keys_kernel, cuda_parts(p->batch, WARPS), THREADS, 0,
	                   (int32_t *)call->out[0].data, rng, mask, *p);
}
