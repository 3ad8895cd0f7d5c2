/* kernels.h - shared by the CPU kernels.
 *
 * The sources of this folder are compiled once per instruction set, with CPU_ISA
 * naming it. Only KERNEL(...) symbols are visible outside their file, so that two instruction sets never share a
 * function; table.c collects them in one cpu_kernels per instruction set and cpu.c picks one when the backend is
 * opened.
 *
 * Results must not depend on scheduling. Loops are cut into parts of fixed size, and partial sums are added in the
 * order of the parts. A kernel therefore gives the same bits at any number of threads (matrix products: at a fixed
 * number).
 *
 * Loops are plain C with `omp simd`; the compiler's vectors are as wide as the
 * instruction set has them. Contraction to fused multiply-adds is on, reassociation is
 * allowed only where a `reduction` clause says so. */
#ifndef ENGINE_CPU_KERNELS_KERNELS_H
#define ENGINE_CPU_KERNELS_KERNELS_H

#include "engine/tensor/backend.h"
#include "engine/tensor/ops.h"

enum { CPU_MAX_THREADS = 1024 };

/* The backend as kernels see it. */
typedef struct cpu {
	backend base;
	int threads; /* threads of matrix products, on which their bits depend; scratch has this many parts */
	int sharing; /* maximum threads of loops; set by use_threads */
} cpu;

/* One instruction set's kernels. */
typedef struct cpu_kernels {
	backend_kernel kernel[OP_COUNT];
	backend_scratch scratch[OP_COUNT];
} cpu_kernels;

extern const cpu_kernels cpu_kernels_baseline;
/* NULL in a program that is linked without them. */
extern const cpu_kernels cpu_kernels_avx2 __attribute__((weak)), cpu_kernels_avx512 __attribute__((weak));
/* VNNI multiplies integers, which linear.c alone does, and linear_cross_entropy.c by it. */
__attribute__((weak)) status cpu_linear_avx512vnni(backend *b, const op_call *call);
__attribute__((weak)) size_t cpu_linear_scratch_avx512vnni(const backend *b, const op_call *call);
__attribute__((weak)) status cpu_linear_cross_entropy_avx512vnni(backend *b, const op_call *call);
__attribute__((weak)) size_t cpu_linear_cross_entropy_scratch_avx512vnni(const backend *b, const op_call *call);

#ifdef CPU_ISA

/* For example, the name cpu_NAME_avx512. */
#define KERNEL_PASTE(name, isa) cpu_##name##_##isa
#define KERNEL_NAME(name, isa) KERNEL_PASTE(name, isa)
#define KERNEL(name) KERNEL_NAME(name, CPU_ISA)

#define OP(name, ...) status KERNEL(name)(backend * b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP

/* Scratch of the kernels that need some; NULL if undefined. */
#define OP(name, ...) __attribute__((weak)) size_t KERNEL(name##_scratch)(const backend *b, const op_call *call);
#include "engine/tensor/ops.def"
#undef OP

#endif

/* Threads for a loop of `work`, in elements of an addition (kernels that do more per element multiply by their COST,
 * measured by tests/bench/bench_ops.c). Waking threads that sleep and waiting for the last one costs 5 to 10 µs; one
 * core does this many in 10 µs. */
enum { KERNEL_SERIAL_WORK = 131072 };

static inline int kernel_threads(const backend *b, int64_t work)
{
	return work < KERNEL_SERIAL_WORK ? 1 : ((const cpu *)b)->sharing;
}

/* Return the number of threads regardless of use_threads, for kernels that cut their scratch by it. */
static inline int kernel_fixed_threads(const backend *b, int64_t work)
{
	return work < KERNEL_SERIAL_WORK ? 1 : ((const cpu *)b)->threads;
}

/* Run a loop with independent iterations: fn runs iterations first … last - 1 of `count`, which cost `work` in all. A
 * single thread calls it directly, because entering a parallel region costs 230 ns, as much as a whole kernel of a
 * decoding step. */
typedef void (*kernel_range)(const op_call *call, int64_t first, int64_t last);

static inline status kernel_for(const backend *b, const op_call *call, int64_t count, int64_t work, kernel_range fn)
{
	enum { LINE = 16 }; /* floats: no two threads write to the same cache line */
	const int threads = kernel_threads(b, work);
	if (threads == 1) {
		fn(call, 0, count);
		return STATUS_OK;
	}
	const int64_t share = (count / threads / LINE + 1) * LINE;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
	for (int64_t first = 0; first < count; first += share)
		fn(call, first, first + share < count ? first + share : count);
	return STATUS_OK;
}

/* Run the loop over the elements of output 0, at `cost` each. */
static inline status kernel_elements(const backend *b, const op_call *call, int64_t cost, kernel_range fn)
{
	int64_t count = shape_count(call->out[0].shape);
	return kernel_for(b, call, count, count * cost, fn);
}

/* Division of a sum over rows into parts: at least 64 rows each, at most 64 parts, independent of the number of
 * threads. */
enum { KERNEL_PART_ROWS = 64, KERNEL_MAX_PARTS = 64 };

/* Return the number of parts of `size` elements for `count` elements. */
static inline int64_t kernel_parts(int64_t count, int64_t size)
{
	return (count + size - 1) / size;
}

static inline int64_t kernel_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t kernel_part_rows(int64_t rows)
{
	int64_t size = kernel_parts(rows, KERNEL_MAX_PARTS);
	return size < KERNEL_PART_ROWS ? KERNEL_PART_ROWS : size;
}

/* An optional input, or NULL. */
static inline const void *kernel_optional(const op_call *call, int i)
{
	return i < call->n_in ? call->in[i].data : NULL;
}

/* Kernels that write an output even if it is not requested keep it in scratch. These return the floats to allocate, and
 * the address of output i; *scratch advances if the output is in it. */
static inline int64_t kernel_spare_floats(const op_call *call, int i)
{
	return call->out[i].data ? 0 : shape_count(call->out[i].shape);
}

static inline float *kernel_output(const op_call *call, int i, float **scratch)
{
	if (call->out[i].data)
		return call->out[i].data;
	float *spare = *scratch;
	*scratch += kernel_spare_floats(call, i);
	return spare;
}

/* out[j] = factor · Σ_part parts[part][j] over rows of d floats, in order. */
static inline void kernel_sum_parts(float *out, const float *parts, int64_t count, int64_t d, float factor)
{
	for (int64_t j = 0; j < d; j++)
		out[j] = 0.0f;
	for (int64_t i = 0; i < count; i++) {
#pragma omp simd
		for (int64_t j = 0; j < d; j++)
			out[j] += parts[i * d + j];
	}
#pragma omp simd
	for (int64_t j = 0; j < d; j++)
		out[j] *= factor;
}

#endif
