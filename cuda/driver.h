/* driver.h - calls of the CUDA driver. They are looked up by name, so that the plug-in loads without a driver. */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <cuda.h>

#include "cuda/backend.h"

/* Look up a function as it is in this version of CUDA (12000: 12.0). False: the driver does not have it. */
template <class F> bool cuda_find_function(const char *name, unsigned version, F *out)
{
	cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
	return cudaGetDriverEntryPointByVersion(name, (void **)out, version, cudaEnableDefault, &result) == cudaSuccess &&
	       result == cudaDriverEntryPointSuccess;
}

/* Convert a result; driver and runtime have the same numbers. */
static inline status cuda_driver_status(cuda_backend *c, CUresult r)
{
	return cuda_status(c, (cudaError_t)r);
}

#endif
