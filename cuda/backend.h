/* backend.h - the CUDA backend as its kernels see it, and how they are launched.
 *
 * A backend is one stream of one device, with its own staging memory, product library handle and workspace. Its work
 * runs in the order of issue. A kernel function returns as soon as it has issued its work. It never waits, allocates or
 * reads device memory, since it may be part of a recording. The exception is the first product of a shape in training,
 * outside of a recording, whose algorithms are timed (gemm.cu).
 *
 * Types. Training in bf16 keeps activations and the matrices that products read in bf16. Weights, moments, gradients of
 * weights, scores, carries, statistics and losses stay fp32. Serving computes in fp32 from packed weights.
 *
 * Bits. Two runs on one device are bitwise equal: no floating-point atomics, fixed orders of summation, one library
 * algorithm per shape (gemm.cu). A served row has the same bits in any batch.
 *
 * Serving and training are two streams of one device; serving has the higher priority. A background backend therefore
 * uses short blocks, since a processor that a block leaves goes to the stream with the higher priority. Two places
 * need more than that: products of the library (gemm.cu) and passes over all parameters (optimizer.cu). Outside
 * programs a block waits only for blocks of lower index, which begin earlier, so a kernel ends whatever is served. */
#ifndef CUDA_BACKEND_H
#define CUDA_BACKEND_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"
}

/* Kernels that cuda_launch_early has looked up. */
enum { CUDA_EARLY_KERNELS = 256 };
typedef struct cuda_early_kernel {
	const void *kernel; /* NULL: a free slot */
	bool may;
} cuda_early_kernel;

typedef struct cuda_backend {
	backend base;
	cudaStream_t stream;
	int device;
	int processors;             /* streaming multiprocessors of the stream */
	size_t shared_limit;        /* bytes of shared memory that a block may ask for */
	size_t memory_bytes;        /* the whole device's */
	int64_t cache_bytes;        /* size of the L2 cache */
	bool early;                 /* kernels that contain the wait may begin early (devices from 9.0 on) */
	bool wgmma;                 /* products use wgmma, which has shown mma.sync's bits (linear_wgmma.cu) */
	bool wgmma_attention;       /* so do softmax_attention and its gradient (softmax_wgmma.cuh) */
	bool clusters;              /* some of these products use clusters */
	bool recorded, fused;       /* plans are recorded; neighbours are fused */
	bool ahead;                 /* products of few rows prefetch the weights of the product after the next */
	bool each_waits;            /* for debugging: each launch waits for its end, so that a fault names its kernel */
	bool after_kernel;          /* the work issued last was one of our kernels */
	bool recording;             /* between record_begin and record_end */
	int persistent;             /* most blocks of a program (program.cuh); 0: no programs */
	bool checks;                /* after a refused call, check that the device computes; set while it is open */
	bool background;            /* opened to give way to the device's other users */
	bool *lost;                 /* shared by the backends of the device */
	struct cuda_memory *memory; /* memory.cu */
	struct cuda_partition *partition;                    /* partition.cu; NULL: the stream has all processors */
	struct cuda_products *products;                      /* gemm.cu */
	struct cuda_program *program;                        /* program.cu; NULL: no programs */
	struct cuda_group *group;                            /* collective.cu; NULL: not in a group */
	cuda_early_kernel early_kernels[CUDA_EARLY_KERNELS]; /* early.cu */
	/* State of recordings. */
	cudaError_t refusal;          /* first error of a recording */
	bool recorded_early;          /* kernels of the current recording may begin early */
	bool recorded_program;        /* the current recording has a program */
	bool record_plainly;          /* the next recording has no early launches */
	bool early_without_recording; /* value of `early` outside recordings */
	/* Logged once each: recordings failed with programs, with early launches, without. */
	bool single_logged, plain_logged, direct_logged;
} cuda_backend;

static inline cuda_backend *cuda_of(const backend *b)
{
	return (cuda_backend *)b;
}

/* True if a call failed for good, of this backend or another of its device. Every call then returns STATUS_DEVICE. */
static inline bool cuda_lost(const cuda_backend *c)
{
	return __atomic_load_n(c->lost, __ATOMIC_ACQUIRE);
}
/* Mark the device as lost; only the first call for a device logs the reason. */
void cuda_lose(cuda_backend *c, const char *what, const char *reason);

/* Convert a CUDA error: STATUS_OK, STATUS_NOMEM, STATUS_UNSUPPORTED (a recording cannot contain this; during one, any
 * error except a final one), or STATUS_DEVICE. The device is lost if the error is a final one, or if it does not
 * compute afterwards; otherwise it has refused only this call. */
status cuda_status(cuda_backend *c, cudaError_t e);
/* Handle a refused call: check the device, log the reason if it computes. STATUS_DEVICE. Waits for the stream. */
status cuda_refuse(cuda_backend *c, const char *name, const char *reason);
/* Convert the result of a launch. kernel: its address; NULL: a product. With each_waits, first wait for its end. */
status cuda_launched(cuda_backend *c, cudaError_t e, const void *kernel);
/* Make this device the thread's current one, before CUDA calls. STATUS_DEVICE if it is lost. */
status cuda_enter(cuda_backend *c);

/* Check that the device computes: STATUS_OK, or STATUS_DEVICE, which marks it as lost. Waits for the stream
 * (check.cu). */
status cuda_check(cuda_backend *c);
/* Set `same` to true if wgmma and mma.sync give equal bits here, on several products. STATUS_NOMEM, STATUS_DEVICE.
 * Waits for the stream. Clears c->wgmma. Needs compute capability 9.0 (linear_wgmma.cu). */
status cuda_wgmma_check(cuda_backend *c, bool *same);
/* True if the device has room for the clusters of these products. */
bool cuda_wgmma_fits_clusters(cuda_backend *c);
/* For tests, looked up by name in the plug-in: launch a kernel that writes to an invalid address. The launch succeeds;
 * the device is lost when the kernel runs. */
extern "C" status additive_cuda_plant_fault(backend *b);

/* Parts of a backend: memory with its functions in the table; products. A close is legal after an open that failed or
 * never ran. */
status cuda_memory_open(cuda_backend *c);
void cuda_memory_close(cuda_backend *c);
/* Memory in which blocks of one kernel exchange words. The kernels number what they write (additive_attention.cuh). It
 * has `bytes` bytes, at an address that is stable until the backend is closed, and is zero when new.
 *
 * It is cleared, in stream order, once in CUDA_EXCHANGE_USES calls of cuda_exchange or cuda_exchange_use. So a launch
 * number never wraps around to one that a word still holds, if a recording has fewer such kernels than 2^32 /
 * CUDA_EXCHANGE_USES. Errors: STATUS_NOMEM; STATUS_UNSUPPORTED: more than is allocated, during a recording;
 * STATUS_DEVICE. */
#ifdef __CUDACC__
enum { CUDA_EXCHANGE_USES = 1 << 16 };
#else
enum { CUDA_EXCHANGE_USES = 16 }; /* small enough for tests to reach */
#endif
status cuda_exchange(cuda_backend *c, size_t bytes, void **out);
/* Count a replay as one use: call this before a recording is replayed. */
status cuda_exchange_use(cuda_backend *c);
/* Open the stream on part of the processors, without at least `kept` of them. Sets stream, processors and partition.
 * Where the driver cannot do that, it says so in the log and they are unchanged. */
status cuda_partition_open(cuda_backend *c, int kept, int priority);
void cuda_partition_close(cuda_backend *c); /* after the stream is destroyed */
status cuda_products_open(cuda_backend *c);
void cuda_products_close(cuda_backend *c);

/* Programs of phases (program.cuh). A close is legal after an open that failed or never ran. */
status cuda_program_open(cuda_backend *c);
void cuda_program_close(cuda_backend *c);
/* Launch the phases that were added, if any. Called before other work is issued to the stream while it is recorded; a
 * failure makes the recording fail. */
status cuda_program_end(cuda_backend *c);

/* Fill in the table's functions for sums over processes. */
void cuda_collective_fill(backend *b);

/* Fuse neighbouring ops: the table's `fuse`. */
int cuda_fuse(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
              backend_fused_kernel *out);
/* Fuse the ops of a decode step (fuse_serving.cu). */
int cuda_fuse_serving(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                      backend_fused_kernel *out);

/* True if the loaded code of this kernel contains wait_for_previous. PTX for compute capabilities before 9.0 never
 * does, even compiled for a later device. The first call per kernel queries CUDA, which is legal during a recording. */
bool cuda_may_begin_early(cuda_backend *c, const void *kernel);

/* Extent of a grid's x dimension: `count`, or above 2^31 - 1 a number that cuda_launch refuses. */
static inline unsigned cuda_extent(int64_t count)
{
	return count > INT32_MAX ? UINT32_MAX : (unsigned)count;
}
/* Number of blocks of `each` that cover `count`, as a grid's extent. */
static inline unsigned cuda_parts(int64_t count, int64_t each)
{
	return cuda_extent(count / each + (count % each != 0));
}
enum { CUDA_MOST_YZ = 65535 }; /* most blocks along y and along z */

typedef struct cuda_launch_form {
	bool early;       /* see cuda_launch_early */
	unsigned cluster; /* blocks of a cluster, neighbours along y */
} cuda_launch_form;

/* Launch a grid with `threads` threads and `shared` bytes of shared memory per block. Arguments are converted to the
 * kernel's parameters. An empty grid does nothing; one beyond CUDA's limits is STATUS_UNSUPPORTED. */
template <class... P, class... A>
status cuda_launch_as(backend *b, cuda_launch_form form, void (*kernel)(P...), dim3 grid, unsigned threads,
                      size_t shared, A &&...args)
{
	cuda_backend *c = cuda_of(b);
	TRY(cuda_enter(c));
	if (grid.x == 0 || grid.y == 0 || grid.z == 0)
		return STATUS_OK;
	TRY(cuda_program_end(c));
	if (grid.x > INT32_MAX || grid.y > CUDA_MOST_YZ || grid.z > CUDA_MOST_YZ)
		return STATUS_UNSUPPORTED;
	if (shared > 48 << 10) {
		status s = cuda_status(
		    c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
		if (s != STATUS_OK)
			return s;
	}
	cudaLaunchAttribute attributes[2] = {};
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = c->stream;
	config.attrs = attributes;
	/* only a kernel of ours lets the next one begin early; looked up first, so that it is known before plans are
	 * recorded */
	if (form.early && c->early && cuda_may_begin_early(c, (const void *)kernel) && c->after_kernel) {
		attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
		attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
	}
	if (form.cluster > 1) {
		attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
		attributes[config.numAttrs++].val.clusterDim = {1, form.cluster, 1};
	}
	c->after_kernel = true;
	return cuda_launched(c, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), (const void *)kernel);
}
template <class... P, class... A>
status cuda_launch(backend *b, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A &&...args)
{
	return cuda_launch_as(b, {false, 1}, kernel, grid, threads, shared, (A &&) args...);
}
/* Launch a kernel that may begin before the previous one has ended. Each of its threads calls wait_for_previous
 * (ptx.cuh) before it touches anything but its arguments and weights, and ends after that. */
template <class... P, class... A>
status cuda_launch_early(backend *b, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A &&...args)
{
	return cuda_launch_as(b, {true, 1}, kernel, grid, threads, shared, (A &&) args...);
}
/* Launch early, in clusters of `cluster` blocks that are neighbours along y; 1: none. */
template <class... P, class... A>
status cuda_launch_early_clusters(backend *b, void (*kernel)(P...), unsigned cluster, dim3 grid, unsigned threads,
                                  size_t shared, A &&...args)
{
	return cuda_launch_as(b, {true, cluster}, kernel, grid, threads, shared, (A &&) args...);
}

/* Number of blocks for `count` elements at `each` per block, at most 16 for each processor. */
static inline unsigned cuda_blocks(const backend *b, int64_t count, int64_t each)
{
	int64_t blocks = (count + each - 1) / each, most = (int64_t)cuda_of(b)->processors * 16;
	return (unsigned)(blocks < most ? blocks : most);
}

/* Call f with a null pointer of the stored type: (float *)0 or (bf16 *)0. */
template <class F> status cuda_by_type(dtype type, F f)
{
	return type == DTYPE_BF16 ? f((__nv_bfloat16 *)nullptr) : f((float *)nullptr);
}

/* True if rows of `width` elements of this type can be accessed 16 bytes at a time. */
static inline bool cuda_packs(dtype type, int64_t width)
{
	return width * (int64_t)dtype_bytes(type) % 16 == 0;
}

/* Return an optional argument, or NULL. */
static inline void *cuda_optional(const op_call *call, int i)
{
	return i < call->n_in ? call->in[i].data : nullptr;
}

#endif
