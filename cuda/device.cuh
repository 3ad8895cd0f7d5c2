/* device.cuh - types, 16-byte loads, shared memory, and sums over warps and blocks, for all kernels.
 *
 * Rules that every kernel follows and the emulator in tests/ relies on: blocks are one-dimensional and a multiple of 32
 * threads. The launch sets the size of shared memory, and kernels reach it through shared_memory(). Whole warps take
 * part in shuffles, which order no memory (that is for __syncwarp). Instructions that CUDA C lacks are in ptx.cuh. */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <float.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* --- numbers: computed as floats, stored as float or bf16 ---------------------------- */

__device__ __forceinline__ float load_real(const float *p)
{
	return *p;
}
__device__ __forceinline__ float load_real(const bf16 *p)
{
	return __bfloat162float(*p);
}
__device__ __forceinline__ void store_real(float *p, float x)
{
	*p = x;
}
__device__ __forceinline__ void store_real(bf16 *p, float x)
{
	*p = __float2bfloat16_rn(x);
}
/* Return x as it reads back after it was stored as T. */
template <class T> __device__ __forceinline__ float round_real(float x);
template <> __device__ __forceinline__ float round_real<float>(float x)
{
	return x;
}
template <> __device__ __forceinline__ float round_real<bf16>(float x)
{
	return __bfloat162float(__float2bfloat16_rn(x));
}

/* 16 bytes at once, from 16-byte aligned addresses: 4 floats or 8 bf16. */
template <class T> struct pack;
template <> struct pack<float> {
	enum { N = 4 };
	float at[N];
};
template <> struct pack<bf16> {
	enum { N = 8 };
	float at[N];
};
__device__ __forceinline__ pack<float> load_pack(const float *p)
{
	float4 v = *(const float4 *)p;
	return {{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ pack<bf16> load_pack(const bf16 *p)
{
	uint4 v = *(const uint4 *)p;
	unsigned word[4] = {v.x, v.y, v.z, v.w};
	pack<bf16> out;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		out.at[2 * i] = __uint_as_float(word[i] << 16);
		out.at[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
	}
	return out;
}
__device__ __forceinline__ unsigned two_bf16(float low, float high)
{
	union {
		__nv_bfloat162 pair;
		unsigned word;
	} u = {__floats2bfloat162_rn(low, high)};
	return u.word;
}
__device__ __forceinline__ void store_pack(float *p, const pack<float> &x)
{
	*(float4 *)p = make_float4(x.at[0], x.at[1], x.at[2], x.at[3]);
}
__device__ __forceinline__ void store_pack(bf16 *p, const pack<bf16> &x)
{
	*(uint4 *)p = make_uint4(two_bf16(x.at[0], x.at[1]), two_bf16(x.at[2], x.at[3]), two_bf16(x.at[4], x.at[5]),
	                         two_bf16(x.at[6], x.at[7]));
}

/* --- shared memory --------------------------------------------------------------------- */

/* The block's shared memory from byte `offset`; the launch sets its size. */
#ifdef __CUDACC__
extern __shared__ __align__(128) unsigned char cuda_shared_bytes[];
template <class T> __device__ __forceinline__ T *shared_memory(size_t offset = 0)
{
	return (T *)(cuda_shared_bytes + offset);
}
#else
template <class T> static inline T *shared_memory(size_t offset = 0)
{
	return (T *)((unsigned char *)emulator::shared + offset);
}
#endif

/* --- sums --------------------------------------------------------------------------------- */

/* Return the sum to every lane of a group of `lanes` (a power of two), always added in the same order. */
template <int lanes = WARP, class T> __device__ __forceinline__ T warp_sum(T x)
{
#pragma unroll
	for (int flip = lanes / 2; flip > 0; flip /= 2)
		x += __shfl_xor_sync(ALL_LANES, x, flip);
	return x;
}
template <int lanes = WARP> __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
	for (int flip = lanes / 2; flip > 0; flip /= 2)
		x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, flip));
	return x;
}
/* Return the sum to every thread of the block. space: WARP floats of shared memory, free again on return. */
__device__ __forceinline__ float block_sum(float x, float *space)
{
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
	x = warp_sum(x);
	if (lane == 0)
		space[warp] = x;
	__syncthreads();
	x = warp_sum(lane < warps ? space[lane] : 0.0f);
	__syncthreads();
	return x;
}

/* A class and its logit. */
struct best_class {
	float z;
	int at;
};

/* Return the larger one; of two equals, the one with the lower class. */
__device__ __forceinline__ best_class better(best_class a, best_class b)
{
	return b.z > a.z || (b.z == a.z && b.at < a.at) ? b : a;
}

/* First index and step of a loop over elements that works with any grid. */
__device__ __forceinline__ int64_t grid_first(void)
{
	return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t grid_stride(void)
{
	return (int64_t)gridDim.x * blockDim.x;
}

#endif
