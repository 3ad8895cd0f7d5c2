/* Programs (program.cuh): which phases they have, and their launch. program_phases.cuh is their kernel. */
#include "cuda/program_phases.cuh"

#include <stdlib.h>

enum { LEAST_PHASES = 8 /* for one launch; fewer are launched as kernels */ };

struct cuda_program {
	unsigned *arrived; /* device memory: blocks that ended each of MOST_PHASES, then the program; zeros between launches */
	status (*launch[MOST_PHASES])(backend *b, const program_phase &phase); /* NULL: the phase is in a group */
	program_calls calls[MOST_PHASES]; /* run NULL: no group begins here */
	unsigned shared; /* most bytes of a piece */
	bool issuing;    /* phases are launched as kernels, which must not be added again */
	program list;
};

template <class W> static status load_kernels(cuda_backend *c)
{
	void (*const kernels[])(program, unsigned *) = {program_kernel<W, 4>, program_kernel<W, 8>, program_kernel<W, 16>,
	                                                program_kernel<W, 32>};
	cudaFuncAttributes loaded;
	for (const auto kernel : kernels)
		TRY(cuda_status(c, cudaFuncGetAttributes(&loaded, (const void *)kernel)));
	return STATUS_OK;
}

status cuda_program_open(cuda_backend *c)
{
	backend *b = &c->base;
	unsigned exists = 0;
	c->program = (cuda_program *)calloc(1, sizeof *c->program);
	if (!c->program)
		return STATUS_NOMEM;
	c->program->list.type = DTYPE_F32;
	unsigned **arrived = &c->program->arrived;
	TRY(b->allocate(b, (MOST_PHASES + 1) * APART * sizeof(unsigned), (void **)arrived));
	TRY(cuda_launch(b, program_exists_kernel, 1, 1, 0, *arrived));
	TRY(b->download(b, &exists, *arrived, sizeof exists));
	c->persistent = exists ? c->persistent : 0;
	if (exists) { /* code that is loaded later would be loaded within a recording */
		TRY(load_kernels<f32_words>(c));
		TRY(load_kernels<bf16_words>(c));
		TRY(load_kernels<int8_words>(c));
	}
	return b->clear(b, *arrived, sizeof exists);
}

void cuda_program_close(cuda_backend *c)
{
	if (c->program)
		c->base.release(&c->base, c->program->arrived);
	free(c->program);
	c->program = nullptr;
}

static bool is_stream(const program_phase &f)
{
	return f.kind == PROGRAM_STREAM || f.kind == PROGRAM_ROUND;
}

bool cuda_program_streams(const panel_product &p)
{
	const int64_t inputs = p.type == DTYPE_PANEL_F32    ? 1
	                       : p.type == DTYPE_PANEL_INT8 ? 2 * PANEL_GROUP /* a lane's words of a step */
	                                                    : STEP_WORDS * PANEL_PAIR;
	return p.packed && p.k > 0 && p.k % inputs == 0 && p.rows <= (p.type == DTYPE_PANEL_F32 ? F32_MADE_ROWS : ROWS);
}

/* Begin another program if the phases do not fit the current one. */
static bool fits_program(backend *b, const program_phase *phases, int count, size_t shared)
{
	cuda_backend *c = cuda_of(b);
	cuda_program *p = c->program;
	dtype type = DTYPE_F32;
	int lanes = 0;
	if (!c->recording || c->persistent == 0 || p->issuing || shared > PROGRAM_SHARED || count > MOST_PHASES)
		return false;
	for (int i = 0; i < count; i++) {
		type = is_product(phases[i]) ? phases[i].linear.product.type : type;
		lanes = is_stream(phases[i]) ? phases[i].lanes : lanes;
	}
	program *list = &p->list;
	if (list->count + count > MOST_PHASES || (type != DTYPE_F32 && list->type != DTYPE_F32 && type != list->type) ||
	    (lanes != 0 && list->lanes != 0 && lanes != list->lanes))
		(void)cuda_program_end(c); /* a failure ends the recording */
	list->type = type != DTYPE_F32 ? type : list->type;
	list->lanes = lanes != 0 ? lanes : list->lanes;
	p->shared = shared > p->shared ? (unsigned)shared : p->shared;
	return true;
}

bool cuda_program_add(backend *b, const program_phase &phase, size_t shared,
                      status (*launch)(backend *b, const program_phase &phase))
{
	cuda_program *p = cuda_of(b)->program;
	if (!fits_program(b, &phase, 1, shared))
		return false;
	p->launch[p->list.count] = launch;
	p->list.phase[p->list.count++] = phase;
	return true;
}

bool cuda_program_add_group(backend *b, const program_phase *phases, int count, size_t shared, const program_calls &calls)
{
	cuda_program *p = cuda_of(b)->program;
	if (!fits_program(b, phases, count, shared))
		return false;
	for (int i = 0; i < count; i++) {
		p->launch[p->list.count] = nullptr;
		p->calls[p->list.count] = i == 0 ? calls : program_calls{};
		p->list.phase[p->list.count++] = phases[i];
	}
	return true;
}

/* Give the pieces of all phases to `grid` blocks, and the phases to counters. */
static void share_out(program *p, unsigned grid)
{
	unsigned first = 0, before = 0, running = 0; /* additions to the previous counter and to the current one */
	int counter = 0;
	for (int i = 0; i < p->count; i++) {
		program_phase *f = &p->phase[i];
		if (!f->joins && running > 0) {
			before = running;
			running = 0;
			counter++;
		}
		f->first = first;
		f->counter = counter;
		f->arrivals = before;
		running += f->blocks < grid ? f->blocks : grid;
		first = (first + f->blocks % grid) % grid;
	}
}

template <class W, int LANES> static status launch_heads(cuda_backend *c, const program &p, unsigned grid, size_t shared)
{
	void (*const kernel)(program, unsigned *) = program_kernel<W, LANES>;
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeCooperative;
	attribute.val.cooperative = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3(grid);
	config.blockDim = dim3(PROGRAM_THREADS);
	config.dynamicSmemBytes = shared;
	config.stream = c->stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	TRY(cuda_status(c, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared)));
	c->after_kernel = false; /* the next kernel does not begin early */
	return cuda_launched(c, cudaLaunchKernelEx(&config, kernel, p, c->program->arrived), (const void *)kernel);
}

template <class W> static status launch_as(cuda_backend *c, const program &p, unsigned grid, size_t shared)
{
	return p.lanes == 4    ? launch_heads<W, 4>(c, p, grid, shared)
	       : p.lanes == 8  ? launch_heads<W, 8>(c, p, grid, shared)
	       : p.lanes == 16 ? launch_heads<W, 16>(c, p, grid, shared)
	                       : launch_heads<W, 32>(c, p, grid, shared);
}

static status launch_program(cuda_backend *c, cuda_program *all)
{
	enum { ALIGNED = 128, STAGE_OF_ALL = PROGRAM_WARPS * (STAGE_BYTES + sizeof(copy_barrier)) };
	program *p = &all->list;
	unsigned grid = 0;
	for (int i = 0; i < p->count; i++)
		grid = p->phase[i].blocks > grid ? p->phase[i].blocks : grid;
	grid = grid < (unsigned)c->persistent ? grid : (unsigned)c->persistent;
	p->rings = (unsigned)((all->shared + sizeof(program_phase) + ALIGNED - 1) / ALIGNED * ALIGNED);
	p->stages = (int)((c->shared_limit - p->rings) / STAGE_OF_ALL);
	p->stages = p->stages < MOST_STAGES ? p->stages : (int)MOST_STAGES;
	c->recorded_program = true;
	share_out(p, grid);
	const size_t shared = p->rings + p->stages * STAGE_OF_ALL;
	return p->type == DTYPE_PANEL_F32    ? launch_as<f32_words>(c, *p, grid, shared)
	       : p->type == DTYPE_PANEL_INT8 ? launch_as<int8_words>(c, *p, grid, shared)
	                                     : launch_as<bf16_words>(c, *p, grid, shared);
}

status cuda_program_end(cuda_backend *c)
{
	cuda_program *p = c->program;
	if (!p || p->list.count == 0)
		return STATUS_OK;
	status s = STATUS_OK;
	const int count = p->list.count;
	if (count >= LEAST_PHASES)
		s = launch_program(c, p);
	p->list.count = 0; /* also for launches below, which end the program before them */
	p->list.type = DTYPE_F32;
	p->list.lanes = 0;
	p->shared = 0;
	p->issuing = true;
	for (int i = 0; i < count && count < LEAST_PHASES && s == STATUS_OK; i++)
		if (p->launch[i])
			s = p->launch[i](&c->base, p->list.phase[i]);
		else if (p->calls[i].run)
			s = p->calls[i].run(&c->base, p->calls[i].calls);
	p->issuing = false;
	return s;
}
