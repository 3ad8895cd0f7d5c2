/* device_function.h - the specifier for functions of a header that CUDA kernels call too, so that the arithmetic is
 * written once. Such functions are C17 and call only each other. */
#ifndef ENGINE_BASE_DEVICE_FUNCTION_H
#define ENGINE_BASE_DEVICE_FUNCTION_H

#ifdef __CUDACC__
#define DEVICE_FUNCTION static __host__ __device__ inline
#else
#define DEVICE_FUNCTION static inline
#endif

#endif
