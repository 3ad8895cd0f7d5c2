/* cuda_runtime.h of the emulator: enough of CUDA's kernel language and runtime for cuda/, on a CPU, with an ordinary
 * C++ compiler. Names, types and meanings are those of the CUDA C++ programming guide. Unsupported uses (see README.md)
 * do not compile, or are reported at run time.
 *
 * Inside a kernel every thread is a fibre: it runs until it waits for others (a barrier, a shuffle, a poll) and then
 * yields. threadIdx and similar variables are those of the running fibre. */
#ifndef EMULATOR_CUDA_RUNTIME_H
#define EMULATOR_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <utility>

#define CUDART_VERSION 13000

/* --- the kernel language -------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __grid_constant__
#define __noinline__ /* empty, since headers of the C++ library write __attribute__((__noinline__)) */
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
	unsigned x, y, z;
};

#define EMULATOR_VECTOR2(name, type)                                                                                   \
	struct __attribute__((aligned(2 * sizeof(type)))) name {                                                       \
		type x, y;                                                                                             \
	};                                                                                                             \
	static inline name make_##name(type x, type y)                                                                 \
	{                                                                                                              \
		return {x, y};                                                                                         \
	}
#define EMULATOR_VECTOR4(name, type)                                                                                   \
	struct __attribute__((aligned(4 * sizeof(type) > 16 ? 16 : 4 * sizeof(type)))) name {                          \
		type x, y, z, w;                                                                                       \
	};                                                                                                             \
	static inline name make_##name(type x, type y, type z, type w)                                                 \
	{                                                                                                              \
		return {x, y, z, w};                                                                                   \
	}
EMULATOR_VECTOR2(float2, float)
EMULATOR_VECTOR4(float4, float)
EMULATOR_VECTOR2(int2, int)
EMULATOR_VECTOR4(int4, int)
EMULATOR_VECTOR2(uint2, unsigned)
EMULATOR_VECTOR4(uint4, unsigned)
EMULATOR_VECTOR2(double2, double)
#undef EMULATOR_VECTOR2
#undef EMULATOR_VECTOR4

namespace emulator {

/* Indexes of the running fibre. The compiler may keep them, since a fibre is one thread of one block throughout. */
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
dim3 block_dimension() __attribute__((const));
dim3 grid_dimension() __attribute__((const));
unsigned char *shared_address() __attribute__((const));

/* The shared memory of the running fibre's block. */
struct shared_memory_type {
	explicit operator unsigned char *() const
	{
		return shared_address();
	}
};
constexpr shared_memory_type shared = {};

/* Dimensions are not macros, since a launch's configuration has fields of these names. */
template <dim3 (*get)(), unsigned dim3::*part> struct dimension {
	operator unsigned() const
	{
		return get().*part;
	}
};
template <dim3 (*get)()> struct dimensions {
	dimension<get, &dim3::x> x;
	dimension<get, &dim3::y> y;
	dimension<get, &dim3::z> z;
};

void barrier();
/* All lanes of the mask meet, and see the others' earlier writes. */
void sync_warp(unsigned mask);
/* All lanes of the mask meet, which orders no memory. in: this lane's bytes; out: those of lane `from` (each lane names
 * its own), after all have met. */
void exchange(unsigned mask, const char *what, const void *in, void *out, size_t bytes, int from);
/* exchange with every lane's bytes in `all` [32][bytes]. */
void gather(unsigned mask, const char *what, const void *in, void *all, size_t bytes);
void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]);
/* b of a product: bf16 with contiguous columns or rows; bytes, with integers as sums. d: a lane's columns / 2 sums. */
enum b_form { B_COLUMNS, B_ROWS, B_BYTES };
void wgmma(float *d, int columns, const unsigned a[4], uint64_t view, bool add, b_form form);
void wgmma(float *d, int columns, uint64_t a_view, uint64_t view, bool add, b_form form);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait();
void wgmma_publish();
uint64_t shared_offset(const void *at);
/* The barrier of all threads of a cluster, in two halves; copies to the same place in its block `rank`. */
void cluster_arrive();
void cluster_wait();
void copy_barrier_init(void *at, unsigned threads);
void copy_barrier_arrive(void *at);
void copy_barrier_expect(void *at, unsigned bytes);
void copy_barrier_wait(void *at, unsigned parity);
void copy_to_block(void *from, unsigned bytes, void *barrier, unsigned rank);
void copy_bulk(void *to, const void *from, unsigned bytes, void *barrier);
/* Yield; called by polls of memory, which sleep in between. */
void poll();
void store_relaxed(unsigned long long *at, unsigned long long x);
unsigned long long load_relaxed(const unsigned long long *at);
void release_add(unsigned *at, unsigned x);
unsigned acquire(const unsigned *at);
unsigned poll_relaxed(const unsigned *at);
void fence();
/* Read the old value; write the new one. Fibres yield only where they wait, so the pair is atomic. */
void atomic(void *at, void *old, size_t bytes);
void atomic_end(void *at, const void *value, size_t bytes);
/* cp.async: bytes arrive when their thread waits for their group, not before. */
void copy_async(void *shared, const void *global, int bytes, int size = 16);
void copy_commit();
void copy_wait(int groups);
/* Bulk prefetch: moves nothing. Fails unless all bytes are live device memory, in whole pieces of 16. */
void prefetch_bytes(const void *from, int64_t bytes);
/* Programmatic dependent launch. */
void wait_for_previous();
void let_next_begin();
/* For functions of the emulator that read or write memory on a kernel's behalf. */
void touch_read(const void *at, size_t bytes);
void touch_write(void *at, size_t bytes);
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace emulator

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
constexpr emulator::dimensions<emulator::block_dimension> blockDim = {};
constexpr emulator::dimensions<emulator::grid_dimension> gridDim = {};
enum { warpSize = 32 };

static inline void __syncthreads()
{
	emulator::barrier();
}
static inline int emulator_lane()
{
	return (int)(threadIdx.x % 32);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
	emulator::sync_warp(mask);
}
template <class T> static inline T emulator_shuffle(unsigned mask, const char *what, T x, int from)
{
	T out;
	emulator::exchange(mask, what, &x, &out, sizeof x, from);
	return out;
}
/* Lanes form groups of `width`; a read from outside the group gives the lane's own value. */
template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
	int lane = emulator_lane();
	return emulator_shuffle(mask, "__shfl_sync", x, lane / width * width + (from & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int flip, int width = 32)
{
	int lane = emulator_lane(), from = lane ^ flip;
	return emulator_shuffle(mask, "__shfl_xor_sync", x, from / width > lane / width ? lane : from);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
	int lane = emulator_lane(), from = lane - (int)by;
	return emulator_shuffle(mask, "__shfl_up_sync", x, from < lane / width * width ? lane : from);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
	int lane = emulator_lane(), from = lane + (int)by;
	return emulator_shuffle(mask, "__shfl_down_sync", x, from >= (lane / width + 1) * width ? lane : from);
}
static inline unsigned __ballot_sync(unsigned mask, int yes)
{
	int all[32];
	unsigned ballot = 0;
	emulator::gather(mask, "__ballot_sync", &yes, all, sizeof yes);
	for (int i = 0; i < 32; i++)
		ballot |= mask >> i & 1 && all[i] ? 1u << i : 0;
	return ballot;
}
static inline int __any_sync(unsigned mask, int yes)
{
	return __ballot_sync(mask, yes) != 0;
}
static inline int __all_sync(unsigned mask, int yes)
{
	return __ballot_sync(mask, yes) == mask;
}

#define EMULATOR_ATOMIC(name, expression)                                                                              \
	template <class T, class U> static inline T name(T *at, U by_)                                                 \
	{                                                                                                              \
		static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics have 4 or 8 bytes");                          \
		T old, by = (T)by_;                                                                                    \
		emulator::atomic(at, &old, sizeof old);                                                                \
		T changed = (T)(expression);                                                                           \
		emulator::atomic_end(at, &changed, sizeof changed);                                                    \
		return old;                                                                                            \
	}
EMULATOR_ATOMIC(atomicAdd, old + by)
EMULATOR_ATOMIC(atomicSub, old - by)
EMULATOR_ATOMIC(atomicMax, old > by ? old : by)
EMULATOR_ATOMIC(atomicMin, old < by ? old : by)
EMULATOR_ATOMIC(atomicOr, old | by)
EMULATOR_ATOMIC(atomicAnd, old & by)
EMULATOR_ATOMIC(atomicXor, old ^ by)
EMULATOR_ATOMIC(atomicExch, by)
EMULATOR_ATOMIC(atomicInc, old >= by ? 0 : old + 1)
#undef EMULATOR_ATOMIC
template <class T> static inline T atomicCAS(T *at, T expected, T desired)
{
	static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics have 4 or 8 bytes");
	T old;
	emulator::atomic(at, &old, sizeof old);
	emulator::atomic_end(at, old == expected ? &desired : &old, sizeof old);
	return old;
}
static inline void __threadfence()
{
	emulator::fence();
}
static inline void __threadfence_block()
{
	emulator::fence();
}
static inline void __nanosleep(unsigned)
{
	emulator::poll();
}

/* --- device functions ------------------------------------------------------------------ */

template <class T> static inline T __ldg(const T *p)
{
	return *p;
}
template <class T> static inline T __ldcs(const T *p)
{
	return *p;
}
template <class T> static inline T __ldcg(const T *p)
{
	return *p;
}
template <class T> static inline void __stcs(T *p, T x)
{
	*p = x;
}
template <class T> static inline void __stwb(T *p, T x)
{
	*p = x;
}
static inline float __int_as_float(int x)
{
	float f;
	__builtin_memcpy(&f, &x, sizeof f);
	return f;
}
static inline int __float_as_int(float x)
{
	int i;
	__builtin_memcpy(&i, &x, sizeof i);
	return i;
}
static inline float __uint_as_float(unsigned x)
{
	return __int_as_float((int)x);
}
static inline unsigned __float_as_uint(float x)
{
	return (unsigned)__float_as_int(x);
}
static inline float __fmaf_rn(float a, float b, float c)
{
	return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
	return a * b;
}
static inline float __fadd_rn(float a, float b)
{
	return a + b;
}
static inline float __fdiv_rn(float a, float b)
{
	return a / b;
}
static inline double __dmul_rn(double a, double b)
{
	return a * b;
}
static inline double __dadd_rn(double a, double b)
{
	return a + b;
}
static inline float __fdividef(float a, float b)
{
	return a / b;
}
/* glibc has functions of these names, for vectors. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
static inline float rsqrtf(float x)
{
	return 1.0f / sqrtf(x);
}
static inline float __frcp_rn(float x)
{
	return 1.0f / x;
}
static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}
static inline unsigned __brev(unsigned x)
{
	unsigned reversed = 0;
	for (int i = 0; i < 32; i++)
		reversed |= (x >> i & 1) << (31 - i);
	return reversed;
}
static inline int __clz(int x)
{
	return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
	return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
	return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
	return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __float2int_rn(float x)
{
	return (int)rintf(x);
}
static inline int __float2int_rd(float x)
{
	return (int)floorf(x);
}
static inline long long __double2ll_rn(double x)
{
	return (long long)rint(x);
}
/* Σ of four products of bytes, onto c. */
static inline int __dp4a(int a, int b, int c)
{
	for (int i = 0; i < 4; i++)
		c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
	return c;
}
template <class T> static inline T max(T a, T b)
{
	return a < b ? b : a;
}
template <class T> static inline T min(T a, T b)
{
	return b < a ? b : a;
}

/* --- the runtime --------------------------------------------------------------------------- */

enum cudaError_t {
#define CUDA_ERROR(name, value, text) name = value,
#include <emulator_errors.def>
#undef CUDA_ERROR
};
enum cudaMemcpyKind {
	cudaMemcpyHostToHost,
	cudaMemcpyHostToDevice,
	cudaMemcpyDeviceToHost,
	cudaMemcpyDeviceToDevice,
	cudaMemcpyDefault
};
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed };
enum { cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaEnableDefault = 0 };
enum cudaDriverEntryPointQueryResult {
	cudaDriverEntryPointSuccess = 0,
	cudaDriverEntryPointSymbolNotFound = 1,
	cudaDriverEntryPointVersionNotSufficent = 2
};
enum cudaMemPoolAttr { cudaMemPoolReuseAllowInternalDependencies = 3, cudaMemPoolAttrReleaseThreshold = 4 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

typedef struct emulator_stream *cudaStream_t;
typedef struct emulator_event *cudaEvent_t;
typedef struct emulator_pool *cudaMemPool_t;
typedef struct emulator_graph *cudaGraph_t;
typedef struct emulator_graph *cudaGraphExec_t;

struct cudaFuncAttributes {
	int ptxVersion, binaryVersion; /* the loaded code's source and binary: 10 major + minor */
};
struct cudaUUID_t {
	char bytes[16];
};
struct cudaDeviceProp {
	char name[256];
	cudaUUID_t uuid;
	size_t totalGlobalMem, sharedMemPerBlockOptin;
	int major, minor, multiProcessorCount, l2CacheSize, maxThreadsPerMultiProcessor, cooperativeLaunch;
};
enum {
	cudaLaunchAttributeCooperative = 2,
	cudaLaunchAttributeClusterDimension = 4,
	cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
	int id;
	union {
		int cooperative, programmaticStreamSerializationAllowed;
		uint3 clusterDim;
	} val;
};
struct cudaLaunchConfig_t {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	cudaLaunchAttribute *attrs;
	unsigned numAttrs;
};

extern "C" {
const char *cudaGetErrorName(cudaError_t e);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaFuncGetName(const char **name, const void *kernel); /* the real function returns a mangled name */
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *data, cudaStream_t stream);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t least);
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *data);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result = nullptr);
}

namespace emulator {

/* Copies the arguments; each thread of the kernel runs call(copy). */
cudaError_t launch_kernel(const cudaLaunchConfig_t *c, const void *kernel, void (*call)(const void *arguments),
                          const void *arguments, size_t bytes);

/* Every kernel instantiates this, so it includes nothing of the standard library. */
template <class... P> cudaError_t launch_converted(const cudaLaunchConfig_t *c, void (*kernel)(P...), P... args)
{
	auto bound = [=] { kernel(args...); };
	static_assert(__is_trivially_copyable(decltype(bound)), "a kernel takes what can be copied byte by byte");
	return launch_kernel(
	    c, (const void *)kernel, [](const void *p) { (*(const decltype(bound) *)p)(); }, &bound, sizeof bound);
}
cudaError_t set_shared_limit(const void *kernel, cudaFuncAttribute attribute, int value);
/* Number of blocks of a cooperative launch that fit a processor. */
cudaError_t count_resident(int *out, const void *kernel, int threads, size_t shared);
cudaError_t count_clusters(int *out, const cudaLaunchConfig_t *c);

} // namespace emulator

template <class F> static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute attribute, int value)
{
	return emulator::set_shared_limit((const void *)kernel, attribute, value);
}

template <class F>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, F *kernel, int threads, size_t shared)
{
	return emulator::count_resident(out, (const void *)kernel, threads, shared);
}

template <class F>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *out, F *, const cudaLaunchConfig_t *c)
{
	return emulator::count_clusters(out, c);
}

/* Arguments are converted to the kernel's parameters and copied now, as a launch does. */
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A &&...args)
{
	return emulator::launch_converted<P...>(c, kernel, static_cast<P>(args)...);
}

#endif
