/* ptx.cuh - instructions that CUDA C has no name for. The emulator replaces these functions by its own when the
 * compiler is not a CUDA compiler. */
#ifndef CUDA_PTX_CUH
#define CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#ifndef __CUDACC__
#include <emulator_ptx.h>
#else

/* Words that blocks of a running kernel exchange. Each is read and written whole, and orders no other memory. If one
 * thread calls __threadfence and stores a word, and another loads that word and then calls __threadfence, the second
 * sees all earlier writes of the first. */
typedef unsigned long long exchange_word;
__device__ __forceinline__ void store_relaxed(exchange_word *at, exchange_word x)
{
	asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(x) : "memory");
}
__device__ __forceinline__ exchange_word load_relaxed(const exchange_word *at)
{
	exchange_word x;
	asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(at) : "memory");
	return x;
}

/* *at += x, as a release of this thread's writes. Later acquires of `at` also see the writes of earlier releases. */
__device__ __forceinline__ void add_release(unsigned *at, unsigned x)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned *at)
{
	unsigned x;
	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
	return x;
}

/* d += a b for one warp: a [16, 16], b [16, 8] bf16, d [16, 8] f32 (PTX ISA, mma.m16n8k16). Lane l holds of
 *   a: rows l/4 and l/4 + 8, columns 2 (l%4) + {0, 1} and + 8:   a[0] row, a[1] row + 8, a[2] row, columns + 8, a[3] both
 *   b: column l/4, rows 2 (l%4) + {0, 1}: b[0], and + 8: b[1];   d: rows as a, columns 2 (l%4) + {0, 1}: d[0..1], d[2..3] */
__device__ __forceinline__ void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2])
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	             "{%0, %1, %2, %3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8x8 matrices of bf16 from shared memory (ldmatrix). Lane l names row l%8 of matrix l/8, 16 aligned bytes, and
 * gets in d[i], from matrix i: row l/4, columns 2 (l%4) + {0, 1}; transposed: column l/4, rows 2 (l%4) + {0, 1}. */
__device__ __forceinline__ void load_matrices(unsigned d[4], const void *row)
{
	unsigned at = (unsigned)__cvta_generic_to_shared(row);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
	             : "r"(at)
	             : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned d[4], const void *row)
{
	unsigned at = (unsigned)__cvta_generic_to_shared(row);
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
	             : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
	             : "r"(at)
	             : "memory");
}

/* d += a b for one warp, exactly: a [16, 32], b [32, 8] signed bytes, d [16, 8] (PTX ISA, mma.m16n8k32). Operands are
 * as above with four bytes in place of two bf16: a: columns 4 (l%4) … + 3, and + 16; b: rows likewise. */
__device__ __forceinline__ void mma_int8(int d[4], const unsigned a[4], const unsigned b[2])
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
	             "{%0, %1, %2, %3};"
	             : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Start to copy 16 bytes from global to shared memory; `bytes` of them (0 or 16) are read, the rest are zeros. */
__device__ __forceinline__ void copy_async(void *shared, const void *global, int bytes = 16)
{
	unsigned at = (unsigned)__cvta_generic_to_shared(shared);
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global), "r"(bytes) : "memory");
}
/* Commit this thread's requests since the last commit as a group; wait until at most `n` groups are unfinished. */
__device__ __forceinline__ void copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int n> __device__ __forceinline__ void copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

/* 2^x with a relative error of 2^-22; a result below 2^-126 is 0. */
__device__ __forceinline__ float exp2_approx(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* 1 / x with a relative error of 2^-23, for a normal x. */
__device__ __forceinline__ float reciprocal_approx(float x)
{
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* Programmatic dependent launch (PTX ISA, griddepcontrol; cuda_launch_early). wait_for_previous returns when the kernel
 * launched before this one has ended and its writes are visible, at once if they are. let_next_begin: once every block
 * has called it or ended, the next kernel may begin. Call it only after wait_for_previous, so that no more than two
 * kernels overlap.
 *
 * Code for compute capabilities below 9.0 has both as no-ops, on whatever device it runs; early.cu keeps it from
 * beginning early. */
__device__ __forceinline__ void wait_for_previous(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Prefetch the 128 bytes around this address into the L2 cache. */
__device__ __forceinline__ void prefetch(const void *at)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
/* Prefetch `bytes` bytes into the L2 cache, none if negative; the address and `bytes` are multiples of 16. `threads`
 * threads share the work, and this is number `at`; from 9.0 on, the first issues a single instruction. */
__device__ __forceinline__ void prefetch_bytes(const unsigned char *from, int64_t bytes, int at, int threads)
{
#if __CUDA_ARCH__ >= 900
	if (at == 0 && bytes > 0)
		asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"((unsigned)bytes));
#else
	enum { LINE = 128 };
#pragma unroll 1
	for (int64_t i = at * LINE; i < bytes; i += threads * LINE)
		prefetch(from + i);
#endif
}

#endif

#endif
