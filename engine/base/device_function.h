/* device_function.h - what the functions of a header are declared as that CUDA's kernels call too, so that the
 * arithmetic is written once. They are C17, and call nothing else than each other. */
#ifndef ENGINE_BASE_DEVICE_FUNCTION_H
#define ENGINE_BASE_DEVICE_FUNCTION_H

#ifdef __CUDACC__
#define DEVICE_FUNCTION static __host__ __device__ inline
#else
#define DEVICE_FUNCTION static inline
#endif

#endif
