/* Which kernels may begin early.
 *
 * The wait of a kernel that begins early (ptx.cuh) is in code for 9.0 and later alone, and what the driver loads may be
 * PTX of an earlier one, compiled for a later device. So what was loaded is asked: cudaFuncAttributes.ptxVersion is the
 * architecture whose PTX the code was made of, here or by nvcc; binaryVersion is the device's in either case. */
#include "cuda/backend.h"

enum { WAITS_SINCE = 90 };

/* The kernel's place in the table, or a free one; NULL: there is neither. */
static cuda_early_kernel *find_place(cuda_backend *c, const void *kernel)
{
	const size_t first = (size_t)((uintptr_t)kernel * 0x9e3779b97f4a7c15u >> 32);
	for (size_t i = 0; i < CUDA_EARLY_KERNELS; i++) {
		cuda_early_kernel *at = &c->early_kernels[(first + i) % CUDA_EARLY_KERNELS];
		if (!at->kernel || at->kernel == kernel)
			return at;
	}
	return nullptr;
}

bool cuda_may_begin_early(cuda_backend *c, const void *kernel)
{
	cuda_early_kernel *at = find_place(c, kernel);
	if (at && at->kernel)
		return at->may;
	cudaFuncAttributes loaded = {};
	if (cudaFuncGetAttributes(&loaded, kernel) != cudaSuccess) {
		(void)cudaGetLastError(); /* the launch reports the error */
		return false;
	}
	const bool may = loaded.ptxVersion >= WAITS_SINCE;
	if (at)
		*at = {kernel, may};
	return may;
}
