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

/* Load a word that others add to with add_release. After fence_acquire the thread sees their earlier writes. The fence
 * is weaker than __threadfence, which also orders all fences of the device. */
__device__ __forceinline__ unsigned poll_relaxed(const unsigned *at)
{
	unsigned x;
	asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
	return x;
}

__device__ __forceinline__ void fence_acquire(void)
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
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
/* Copy 8 bytes so, from and to multiples of 8. */
__device__ __forceinline__ void copy_async_8(void *shared, const void *global, int bytes = 8)
{
	unsigned at = (unsigned)__cvta_generic_to_shared(shared);
	asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(global), "r"(bytes) : "memory");
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

/* --- wgmma: products of four warps, and clusters, in code for sm_90a only ----------------------------------------- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { HAS_WGMMA = true };
#define SM90A(...) asm volatile(__VA_ARGS__)
#else
enum { HAS_WGMMA = false };
#define SM90A(...)
#endif

/* View of b [k 16, n] in shared memory (PTX ISA, matrix descriptor without swizzle). Eight columns of eight k are 128
 * bytes, 16 for each column. From k 0 to k 8 are `k_bytes`, from column 0 to column 8 `column_bytes`. Each is a
 * multiple of 16 below 2^18. A b of bytes is [k 32, n], with 16 k in place of eight. */
typedef uint64_t wgmma_view;
__device__ __forceinline__ wgmma_view wgmma_view_of(const void *shared, unsigned k_bytes, unsigned column_bytes)
{
	const unsigned at = (unsigned)__cvta_generic_to_shared(shared);
	return (at & 0x3ffff) >> 4 | (wgmma_view)(k_bytes >> 4) << 16 | (wgmma_view)(column_bytes >> 4) << 32;
}

/* wgmma_bf16(d, a, b, add) begins d = a b + (add ? d : 0) for four warps, the first a multiple of 4: a [64, 16],
 * b [16, N] bf16, d [64, N] f32. Warp i has rows 16 i … 16 i + 15 of a and d; its lanes hold them as in mma_bf16, d as
 * N / 8 products side by side. wgmma_int8 is the same for signed bytes, a [64, 32] and b [32, N] as in mma_int8.
 * wgmma_bf16_rows is wgmma_bf16 for a b whose rows are contiguous: the 128 bytes of eight k and eight columns have 16 for
 * each k.
 *
 * The product runs until wgmma_wait: until then nothing may touch d or change a or b. wgmma_fence comes before the
 * first product, and again after d or a was touched. Threads that write an operand in shared memory call wgmma_publish
 * before the barrier after which it is read. */
#define WGMMA_4(how, d, i) how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3])
#define WGMMA_16(how, d, i) WGMMA_4(how, d, i), WGMMA_4(how, d, i + 4), WGMMA_4(how, d, i + 8), WGMMA_4(how, d, i + 12)
#define WGMMA_32(how, d, i) WGMMA_16(how, d, i), WGMMA_16(how, d, i + 16)
#define WGMMA_64(how, d, i) WGMMA_32(how, d, i), WGMMA_32(how, d, i + 32)
#define WGMMA_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_64 \
	WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
	               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
/* A function for `n` sums per lane: name(sum (&d)[n], …). others: the names of a, b; add: the name of add. */
#define WGMMA_FUNCTION(name, sum, how, n, form, others, add_name, signs) \
	__device__ __forceinline__ void name(sum(&d)[n], const unsigned a[4], wgmma_view b, bool add) \
	{ \
		SM90A("{.reg .pred p; setp.ne.b32 p, " add_name ", 0; wgmma.mma_async.sync.aligned." form \
		      " {" WGMMA_NAMES_##n "}, " others ", p" signs ";}" \
		      : WGMMA_##n(how, d, 0) \
		      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add)); \
	}
#define WGMMA_FUNCTIONS(n, columns, others, add_name) \
	WGMMA_FUNCTION(wgmma_bf16, float, "+f", n, "m64n" columns "k16.f32.bf16.bf16", others, add_name, ", 1, 1, 0") \
	WGMMA_FUNCTION(wgmma_int8, int, "+r", n, "m64n" columns "k32.s32.s8.s8", others, add_name, "")
WGMMA_FUNCTIONS(16, "32", "{%16, %17, %18, %19}, %20", "%21")
WGMMA_FUNCTIONS(32, "64", "{%32, %33, %34, %35}, %36", "%37")
WGMMA_FUNCTIONS(64, "128", "{%64, %65, %66, %67}, %68", "%69")
WGMMA_FUNCTION(wgmma_bf16_rows, float, "+f", 32, "m64n64k16.f32.bf16.bf16", "{%32, %33, %34, %35}, %36", "%37", ", 1, 1, 1")
WGMMA_FUNCTION(wgmma_bf16_rows, float, "+f", 64, "m64n128k16.f32.bf16.bf16", "{%64, %65, %66, %67}, %68", "%69", ", 1, 1, 1")
/* wgmma_bf16 for an a in shared memory, whose view is that of a b with 64 columns. */
__device__ __forceinline__ void wgmma_bf16(float (&d)[32], wgmma_view a, wgmma_view b, bool add)
{
	SM90A("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
	      "{" WGMMA_NAMES_32 "}, %32, %33, p, 1, 1, 0, 0;}"
	      : WGMMA_32("+f", d, 0)
	      : "l"(a), "l"(b), "r"((int)add));
}
__device__ __forceinline__ void wgmma_fence(void)
{
	SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Commit the products since the last commit as a group. */
__device__ __forceinline__ void wgmma_commit(void)
{
	SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Keep the compiler from reading sums before this place. */
template <int n> __device__ __forceinline__ void wgmma_hold(float (&d)[n])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		SM90A("" : "+f"(d[i])::"memory");
}
template <int n> __device__ __forceinline__ void wgmma_hold(int (&d)[n])
{
#pragma unroll
	for (int i = 0; i < n; i++)
		SM90A("" : "+r"(d[i])::"memory");
}
/* Wait for all products, whose sums are d. */
template <class... D> __device__ __forceinline__ void wgmma_wait(D &...d)
{
	SM90A("wgmma.wait_group.sync.aligned 0;" ::: "memory");
	(wgmma_hold(d), ...);
}
/* Make this thread's earlier stores to shared memory visible to products after the next barrier. */
__device__ __forceinline__ void wgmma_publish(void)
{
	SM90A("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Set the registers of each thread of four warps, the first a multiple of 4: n, a multiple of 8, more or fewer than
 * before. All of them call it. more_registers waits until other warps of the block have given up as many. */
template <int n> __device__ __forceinline__ void more_registers(void)
{
	SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> __device__ __forceinline__ void fewer_registers(void)
{
	SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

/* Barrier of all threads of a cluster. They arrive and wait in turn. What a thread did before it arrived is visible to
 * all after their wait. A thread that has ended counts as arrived. */
__device__ __forceinline__ void cluster_arrive(void)
{
	SM90A("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait(void)
{
	SM90A("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* A barrier in shared memory that counts threads and bytes. A phase ends when `threads` calls of copy_barrier_expect or
 * copy_barrier_arrive were made and the expected bytes have arrived; they may arrive before the call. One thread calls
 * copy_barrier_init before a barrier of the block or the cluster, or wgmma_publish before its own copy_bulk.
 * copy_barrier_wait returns when the phase with this parity has ended, the first being 0. After the wait all that the
 * thread which arrived did or saw is visible; for products, what the threads that stored it published before. */
typedef uint64_t copy_barrier;
__device__ __forceinline__ void copy_barrier_init(copy_barrier *at, unsigned threads = 1)
{
	SM90A("mbarrier.init.shared::cta.b64 [%0], %1; fence.mbarrier_init.release.cluster;" ::"r"(
	          (unsigned)__cvta_generic_to_shared(at)),
	      "r"(threads)
	      : "memory");
}
__device__ __forceinline__ void copy_barrier_arrive(copy_barrier *at)
{
	SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((unsigned)__cvta_generic_to_shared(at)) : "memory");
}
__device__ __forceinline__ void copy_barrier_expect(copy_barrier *at, unsigned bytes)
{
	SM90A("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(at)),
	      "r"(bytes)
	      : "memory");
}
__device__ __forceinline__ void copy_barrier_wait(copy_barrier *at, unsigned parity)
{
	unsigned ended = HAS_WGMMA ? 0 : 1;
	do {
		SM90A("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
		      : "=r"(ended)
		      : "r"((unsigned)__cvta_generic_to_shared(at)), "r"(parity)
		      : "memory");
	} while (!ended);
}
/* Start to copy bytes (a multiple of 16, as the address) of this block's shared memory to the same place in the
 * cluster's block `rank`, which has begun. They count at that block's copy barrier at the same place as `at`. Threads
 * that stored them have called wgmma_publish before a barrier. Products may read them after copy_barrier_wait. Until
 * then no thread may change them here or read them there, and neither block may end. */
__device__ __forceinline__ void copy_to_block(void *from, unsigned bytes, copy_barrier *at, unsigned rank)
{
	SM90A("{.reg .b32 to, bar; mapa.shared::cluster.u32 to, %0, %3; mapa.shared::cluster.u32 bar, %2, %3;"
	      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [bar];}" ::"r"(
	          (unsigned)__cvta_generic_to_shared(from)),
	      "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(at)), "r"(rank)
	      : "memory");
}
/* Start to copy bytes of global to this block's shared memory; both addresses and `bytes` are multiples of 16. They
 * count at the copy barrier `at`. The block's threads may read them after copy_barrier_wait. Until then no thread may
 * touch them, and the block may not end. */
__device__ __forceinline__ void copy_bulk(void *to, const void *from, unsigned bytes, copy_barrier *at)
{
	SM90A("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
	          (unsigned)__cvta_generic_to_shared(to)),
	      "l"(from), "r"(bytes), "r"((unsigned)__cvta_generic_to_shared(at))
	      : "memory");
}
#undef WGMMA_FUNCTIONS
#undef WGMMA_FUNCTION
#undef WGMMA_NAMES_64
#undef WGMMA_NAMES_32
#undef WGMMA_NAMES_16
#undef WGMMA_64
#undef WGMMA_32
#undef WGMMA_16
#undef WGMMA_4
#undef SM90A

#endif

#endif
