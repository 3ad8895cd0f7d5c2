/* Programs (program.cuh): their kernel and its launch.
 *
 * A phase costs each block that works in it a barrier and an addition to memory, and each block of the next phase a
 * poll and a barrier. So there are two trips to the L2 cache between the last sum of a phase and the first load of the
 * next. A block copies a phase (312 bytes) to shared memory before it waits. Arguments at an address known only at run
 * time cannot be operands of instructions, as those of the single kernels are.
 *
 * There are two blocks per processor, so that a phase of 192 panels (768 x 3072) has a block for each on 132
 * processors. That leaves 128 registers. The bodies save some to memory when they are called, before they wait, and
 * restore them at the end. */
#include "cuda/program.cuh"

#include <stdlib.h>

#include "cuda/linear_narrow.cuh"
#include "cuda/linear_row.cuh"

enum {
	LEAST_PHASES = 8,      /* for one launch; fewer are launched as kernels */
	MOST_ARGUMENTS = 32764 /* bytes per kernel (CUDA 12.1 and later) */
};

enum { MOST_PHASES = (MOST_ARGUMENTS - 64) / sizeof(program_phase) };

struct program {
	int count;
	unsigned shared; /* bytes of shared memory that the phases request; the running phase is stored after them */
	program_phase phase[MOST_PHASES];
};

struct cuda_program {
	unsigned *arrived; /* device memory: blocks that ended each of MOST_PHASES, then the program; zeros between launches */
	status (*launch[MOST_PHASES])(backend *b, const program_phase &phase);
	program list;
};

/* --- the kernel ------------------------------------------------------------------------------- */

/* Wait until `workers` blocks have arrived; 0: do not wait. */
struct phase_wait {
	const unsigned *arrived;
	unsigned workers;

	__device__ __forceinline__ void operator()(void) const
	{
		if (workers == 0)
			return;
		if (threadIdx.x == 0)
			while (load_acquire(arrived) < workers)
				;
		__syncthreads();
	}
};

/* The bodies are called and not inlined, since together they need more registers than a thread has. at: offset of the
 * phase in shared memory. */
template <class W, x_source SOURCE>
static __device__ __noinline__ void run_row(unsigned at, unsigned block, phase_wait wait)
{
	const program_phase &f = *shared_memory<program_phase>(at);
	row_panel<W, SOURCE>(f.linear.product, f.linear.chain, block, wait);
}
template <class W, x_source SOURCE>
static __device__ __noinline__ void run_narrow(unsigned at, unsigned block, phase_wait wait)
{
	const program_phase &f = *shared_memory<program_phase>(at);
	narrow_panel<W, 1, SOURCE>(f.linear.product, f.linear.chain, {block, f.blocks, 0}, wait);
}
template <int LANES, bool CHAINED>
static __device__ __noinline__ void run_stream(unsigned at, unsigned block, phase_wait wait)
{
	const program_phase &f = *shared_memory<program_phase>(at);
	stream_block<LANES, true, CHAINED>(f.stream, block, wait);
}

static __device__ __noinline__ void run_gather(unsigned at, unsigned block, phase_wait wait)
{
	const program_phase &f = *shared_memory<program_phase>(at);
	wait();
	gather_rows(f.gather, (int64_t)block * PROGRAM_WARPS + threadIdx.x / WARP, (int64_t)f.blocks * PROGRAM_WARPS);
}

template <class W>
static __device__ __forceinline__ void run_linear(unsigned at, unsigned block, phase_wait wait)
{
	const program_phase &f = *shared_memory<program_phase>(at);
	const x_source plain = W::EXACT ? X_BYTES : X_READY;
	const bool norm = f.linear.chain.norm.weight;
	if (f.kind == PROGRAM_ROW && norm)
		run_row<W, X_NORM>(at, block, wait);
	else if (f.kind == PROGRAM_ROW)
		run_row<W, plain>(at, block, wait);
	else if (norm)
		run_narrow<W, X_NORM>(at, block, wait);
	else
		run_narrow<W, plain>(at, block, wait);
}

template <bool CHAINED>
static __device__ __forceinline__ void run_heads(unsigned at, unsigned block, phase_wait wait)
{
	const int lanes = shared_memory<program_phase>(at)->lanes;
	if (lanes == 4)
		run_stream<4, CHAINED>(at, block, wait);
	else if (lanes == 8)
		run_stream<8, CHAINED>(at, block, wait);
	else if (lanes == 16)
		run_stream<16, CHAINED>(at, block, wait);
	else
		run_stream<32, CHAINED>(at, block, wait);
}

static __device__ __forceinline__ void run_phase(unsigned at, unsigned block, phase_wait wait)
{
	const program_phase &f = *shared_memory<program_phase>(at);
	if (f.kind == PROGRAM_STREAM)
		run_heads<false>(at, block, wait);
	else if (f.kind == PROGRAM_ROUND)
		run_heads<true>(at, block, wait);
	else if (f.kind == PROGRAM_GATHER)
		run_gather(at, block, wait);
	else if (f.linear.product.type == DTYPE_PANEL_BF16)
		run_linear<bf16_words>(at, block, wait);
	else
		run_linear<int8_words>(at, block, wait);
}

/* Prefetch the weights of a later piece of a product into the L2 cache. */
static __device__ __forceinline__ void prefetch_piece(const program_phase &f, unsigned block)
{
	int64_t panel;
	const panel_product p = panel_product_of<1>(f.linear.product, f.linear.chain.siblings, block, panel);
	prefetch_bytes(p.panels + panel * p.panel_bytes, p.panel_bytes, threadIdx.x, PROGRAM_THREADS);
}

/* Called by a block that ends; the last one clears the counters. The fences order its writes after the additions of all
 * others. */
static __device__ __forceinline__ void leave(unsigned *arrived, int phases)
{
	if (threadIdx.x > 0)
		return;
	__threadfence();
	const unsigned before = atomicAdd(arrived + MOST_PHASES, 1u);
	__threadfence();
	if (before < gridDim.x - 1)
		return;
	for (int i = 0; i < phases; i++)
		arrived[i] = 0;
	arrived[MOST_PHASES] = 0;
}

static __global__ void __launch_bounds__(PROGRAM_THREADS, 2)
    program_kernel(const __grid_constant__ program p, unsigned *arrived)
{
	program_phase *f = shared_memory<program_phase>(p.shared);
	for (int i = 0; i < p.count; i++) {
		const unsigned first = p.phase[i].first, blocks = p.phase[i].blocks;
		const unsigned piece = blockIdx.x + (blockIdx.x < first ? gridDim.x : 0) - first;
		if (piece >= blocks)
			continue;
		if (threadIdx.x < sizeof *f / sizeof(unsigned))
			((unsigned *)f)[threadIdx.x] = ((const unsigned *)&p.phase[i])[threadIdx.x];
		phase_wait wait = {arrived + i - 1, i > 0 ? p.phase[i - 1].workers : 0};
		__syncthreads();
		for (unsigned block = piece; block < blocks; block += gridDim.x) {
			if ((f->kind == PROGRAM_ROW || f->kind == PROGRAM_NARROW) && blocks - block > gridDim.x)
				prefetch_piece(*f, block + gridDim.x);
			run_phase(p.shared, block, wait);
			wait.workers = 0;
			__syncthreads(); /* results are written, and shared memory is free again */
		}
		if (threadIdx.x == 0)
			add_release(arrived + i, 1);
	}
	leave(arrived, p.count);
}

/* --- the host's side ------------------------------------------------------------------------------ */

status cuda_program_open(cuda_backend *c)
{
	c->program = (cuda_program *)calloc(1, sizeof *c->program);
	if (!c->program)
		return STATUS_NOMEM;
	return c->base.allocate(&c->base, (MOST_PHASES + 1) * sizeof(unsigned), (void **)&c->program->arrived);
}

void cuda_program_close(cuda_backend *c)
{
	if (c->program)
		c->base.release(&c->base, c->program->arrived);
	free(c->program);
	c->program = nullptr;
}

bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase))
{
	cuda_backend *c = cuda_of(b);
	cuda_program *p = c->program;
	if (!c->recording || !c->persistent || p->list.count == MOST_PHASES || shared > PROGRAM_SHARED)
		return false;
	if (shared > p->list.shared)
		p->list.shared = (unsigned)(shared + 15) / 16 * 16;
	p->launch[p->list.count] = launch;
	p->list.phase[p->list.count++] = phase;
	return true;
}

/* Give the pieces of all phases to `grid` blocks. */
static void share_out(program *p, unsigned grid)
{
	unsigned first = 0;
	for (int i = 0; i < p->count; i++) {
		program_phase *f = &p->phase[i];
		f->first = first;
		f->workers = f->blocks < grid ? f->blocks : grid;
		first = (first + f->blocks % grid) % grid;
	}
}

static status launch_program(cuda_backend *c, program *list)
{
	const size_t shared = list->shared + sizeof(program_phase);
	int per_processor = 0;
	int64_t grid = 0;
	c->recorded_program = true;
	TRY(cuda_status(c, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, program_kernel,
	                                                                 PROGRAM_THREADS, shared)));
	for (int i = 0; i < list->count; i++)
		grid = list->phase[i].blocks > grid ? list->phase[i].blocks : grid;
	grid = min(grid, (int64_t)per_processor * c->processors);
	if (grid == 0)
		return cuda_status(c, cudaErrorCooperativeLaunchTooLarge);
	share_out(list, (unsigned)grid);
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeCooperative;
	attribute.val.cooperative = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3((unsigned)grid);
	config.blockDim = dim3(PROGRAM_THREADS);
	config.dynamicSmemBytes = shared;
	config.stream = c->stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	c->after_kernel = false; /* the next launch does not begin early */
	return cuda_launched(c, cudaLaunchKernelEx(&config, program_kernel, *list, c->program->arrived),
	                     (const void *)program_kernel);
}

status cuda_program_end(cuda_backend *c)
{
	cuda_program *p = c->program;
	if (!p || p->list.count == 0)
		return STATUS_OK;
	status s = STATUS_OK;
	const int count = p->list.count;
	if (count >= LEAST_PHASES)
		s = launch_program(c, &p->list);
	p->list.count = 0; /* reset also for the launches below, which end the program before them */
	p->list.shared = 0;
	for (int i = 0; i < count && count < LEAST_PHASES && s == STATUS_OK; i++)
		s = p->launch[i](&c->base, p->list.phase[i]);
	return s;
}
