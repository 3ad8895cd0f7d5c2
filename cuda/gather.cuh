/* gather.cuh - rows of a table: y[i] = table[index[i]], zeros if the index is out of range. A warp copies a row. */
#ifndef CUDA_GATHER_CUH
#define CUDA_GATHER_CUH

#include "cuda/device.cuh"

enum { GATHER_THREADS = 256, GATHER_WARPS = GATHER_THREADS / WARP };

/* n rows of y from a table of `rows`; a row of either has `units` units. */
template <class U> struct gather_call {
	U *y;
	const U *table;
	const int32_t *index;
	int64_t n, rows, units;
};

/* Copy the rows of this warp, number `warp` of `warps`. */
template <class U>
static __device__ __forceinline__ void gather_rows(const gather_call<U> &c, int64_t warp, int64_t warps)
{
	for (int64_t i = warp; i < c.n; i += warps) {
		const int64_t row = c.index[i];
		const bool exists = row >= 0 && row < c.rows;
		for (int64_t j = threadIdx.x % WARP; j < c.units; j += WARP)
			c.y[i * c.units + j] = exists ? c.table[row * c.units + j] : U{};
	}
}

#endif
