/* backend.h - the CUDA backend as its kernels see it, and how they are launched.
 *
 * A backend is one stream of one device, with its own staging memory, product library handle and workspace. What it
 * issues runs in order. Its kernels return as soon as they have issued; nothing in them waits, allocates or reads
 * device memory, since they are also recorded. */
#ifndef CUDA_BACKEND_H
#define CUDA_BACKEND_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"
}

/* Kernels that cuda_launch_early has asked about. */
enum { CUDA_EARLY_KERNELS = 256 };
typedef struct cuda_early_kernel {
	const void *kernel; /* NULL: a free place */
	bool may;
} cuda_early_kernel;

typedef struct cuda_backend {
	backend base;
	cudaStream_t stream;
	int device;
	int processors;             /* streaming multiprocessors */
	size_t shared_limit;        /* bytes of shared memory that a block may ask for */
	size_t memory_bytes;        /* for the whole device */
	bool early;                 /* kernels whose code waits may begin early (devices of 9.0 and later) */
	bool recorded, fused;       /* plans are recorded; neighbours are fused */
	bool each_waits;            /* for debugging: each launch waits for its end, so that a fault names its kernel */
	bool after_kernel;          /* was a kernel of ours what was issued last? */
	bool recording;             /* between record_begin and record_end */
	bool persistent;            /* recorded phases are one launch (program.cuh) */
	bool background;            /* opened to give way to the others on the device */
	bool *lost;                 /* shared by the backends of the device */
	struct cuda_memory *memory; /* memory.cu */
	struct cuda_products *products;                      /* gemm.cu */
	struct cuda_program *program;                        /* program.cu; NULL: none are made */
	struct cuda_group *group;                            /* collective.cu; NULL: in none */
	cuda_early_kernel early_kernels[CUDA_EARLY_KERNELS]; /* early.cu */
	/* Recordings. */
	cudaError_t refusal;   /* the first error of one */
	bool recorded_early;   /* kernels of the current recording begin early */
	bool recorded_program; /* the current recording has a program */
	bool record_plainly;   /* those of the next do not */
	bool early_otherwise;  /* `early` when nothing is recorded */
	bool single_logged, plain_logged,
	    direct_logged; /* that they fail with programs, with early launches, and without */
} cuda_backend;

static inline cuda_backend *cuda_of(const backend *b)
{
	return (cuda_backend *)b;
}

/* Did a call fail for good, of this backend or another of its device? Everything answers STATUS_DEVICE then. */
static inline bool cuda_lost(const cuda_backend *c)
{
	return __atomic_load_n(c->lost, __ATOMIC_ACQUIRE);
}
/* Mark the device as lost; the first one to do so is logged. */
void cuda_lose(cuda_backend *c, const char *what, const char *why);

/* Convert an answer of CUDA: STATUS_OK, STATUS_NOMEM, STATUS_UNSUPPORTED (a recording cannot contain this; during one,
 * any error except a final one), or STATUS_DEVICE, which marks the device as lost. */
status cuda_status(cuda_backend *c, cudaError_t e);
/* The same for a launch, `kernel` by its address; NULL: a product. With each_waits, after it has ended. */
status cuda_launched(cuda_backend *c, cudaError_t e, const void *kernel);
/* Before calls of CUDA: the thread's device is this one. STATUS_DEVICE when it is lost. */
status cuda_enter(cuda_backend *c);

/* Check that the device computes: STATUS_OK, or STATUS_DEVICE, which marks it as lost. Waits for the stream
 * (check.cu). */
status cuda_check(cuda_backend *c);
/* For tests, found by name in the plug-in: a kernel writes to an address that is no memory. Its launch succeeds; the
 * device is lost when it runs. */
extern "C" status additive_cuda_plant_fault(backend *b);

/* The parts of a backend: memory and its functions in the table; products. A close is legal after an open that failed,
 * or none. */
status cuda_memory_open(cuda_backend *c);
void cuda_memory_close(cuda_backend *c);
/* Memory in which blocks of one kernel exchange words, for kernels that number what they write
 * (additive_attention.cuh): `bytes` of it, at an address that stays until the backend is closed. It is zeros when it is
 * new, and is cleared once in CUDA_EXCHANGE_USES calls of cuda_exchange or cuda_exchange_use, in the order of the
 * stream, so that no number comes round while a word has it: a recording has fewer such kernels than 2^32 /
 * CUDA_EXCHANGE_USES. Errors: STATUS_NOMEM; STATUS_UNSUPPORTED: more than there is, while a recording is made;
 * STATUS_DEVICE. */
#ifdef __CUDACC__
enum { CUDA_EXCHANGE_USES = 1 << 16 };
#else
enum { CUDA_EXCHANGE_USES = 16 }; /* tests come to it */
#endif
status cuda_exchange(cuda_backend *c, size_t bytes, void **out);
/* Before a recording is replayed, which uses that memory as often as its kernels were recorded. */
status cuda_exchange_use(cuda_backend *c);
status cuda_products_open(cuda_backend *c);
void cuda_products_close(cuda_backend *c);

/* Programs of phases (program.cuh). A close is legal after an open that failed, or none. */
status cuda_program_open(cuda_backend *c);
void cuda_program_close(cuda_backend *c);
/* Launch the phases that were added, if there are any. Before anything else is issued to the stream while it is
 * recorded; a failure is one of the recording. */
status cuda_program_end(cuda_backend *c);

/* The table's functions for sums over processes. */
void cuda_collective_fill(backend *b);

/* Kernels for neighbours, the table's `fuse`. */
int cuda_fuse(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
              backend_fused_kernel *out);
/* Those of a decode step (fuse_serving.cu). */
int cuda_fuse_serving(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                      backend_fused_kernel *out);

/* True if the loaded code of this kernel contains wait_for_previous. PTX for devices before 9.0 does not, whatever
 * device it is compiled for. CUDA is queried the first time, which is legal during a recording. */
bool cuda_may_begin_early(cuda_backend *c, const void *kernel);

/* Blocks along one dimension of a grid: `count`, or of more than the 2^31 - 1 that x may have a number that
 * cuda_launch refuses. */
static inline unsigned cuda_extent(int64_t count)
{
	return count > INT32_MAX ? UINT32_MAX : (unsigned)count;
}
/* Blocks of `each` that cover `count`, as a dimension of a grid. */
static inline unsigned cuda_parts(int64_t count, int64_t each)
{
	return cuda_extent(count / each + (count % each != 0));
}
enum { CUDA_MOST_YZ = 65535 }; /* blocks along y and along z, at most */

/* One block of `threads` threads and `shared` bytes of shared memory per element of `grid`. Arguments are converted to
 * the kernel's parameters. An empty grid does nothing; one beyond CUDA's limits is STATUS_UNSUPPORTED. */
template <class... P, class... A>
status cuda_launch_as(backend *b, bool early, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared,
                      A &&...args)
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
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = dim3(threads);
	config.dynamicSmemBytes = shared;
	config.stream = c->stream;
	config.attrs = &attribute;
	/* no other work lets a kernel begin early; asked first, so that it is known before plans are recorded */
	config.numAttrs = early && c->early && cuda_may_begin_early(c, (const void *)kernel) && c->after_kernel;
	c->after_kernel = true;
	return cuda_launched(c, cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), (const void *)kernel);
}
template <class... P, class... A>
status cuda_launch(backend *b, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A &&...args)
{
	return cuda_launch_as(b, false, kernel, grid, threads, shared, (A &&) args...);
}
/* The same for a kernel that may begin before the one launched before it has ended: each of its threads calls
 * wait_for_previous (ptx.cuh) before it touches anything but its arguments and weights, and ends after that. */
template <class... P, class... A>
status cuda_launch_early(backend *b, void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, A &&...args)
{
	return cuda_launch_as(b, true, kernel, grid, threads, shared, (A &&) args...);
}

/* Blocks for `count` elements at `each` per block, as many as fill the device a few times over. */
static inline unsigned cuda_blocks(const backend *b, int64_t count, int64_t each)
{
	int64_t blocks = (count + each - 1) / each, most = (int64_t)cuda_of(b)->processors * 16;
	return (unsigned)(blocks < most ? blocks : most);
}

/* Call f with a null pointer of the type that is stored: (float *)0 or (bf16 *)0. */
template <class F> status cuda_by_type(dtype type, F f)
{
	return type == DTYPE_BF16 ? f((__nv_bfloat16 *)nullptr) : f((float *)nullptr);
}

/* True if rows of `width` elements of this type can be accessed 16 bytes at a time. */
static inline bool cuda_packs(dtype type, int64_t width)
{
	return width * (int64_t)dtype_bytes(type) % 16 == 0;
}

/* An optional argument, or NULL. */
static inline void *cuda_optional(const op_call *call, int i)
{
	return i < call->n_in ? call->in[i].data : nullptr;
}

#endif
