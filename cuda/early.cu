/* Kernels that may begin early.
 *
 * Only code for 9.0 and later contains the wait of a kernel that begins early (ptx.cuh). The driver may have loaded PTX
 * for an earlier architecture, compiled for a later device, so the loaded code is queried. cudaFuncAttributes.ptxVersion
 * is the architecture of the PTX from which the code was compiled, by nvcc or by the driver. binaryVersion is the
 * device's in either case. */
#include "cuda/backend.h"

enum { WAITS_SINCE = 90 };

/* Return the kernel's place in the table, or a free one; NULL if neither exists. */
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
