/* The kernels of additive_stream (additive_stream.cuh, additive_prompt.cuh), its phases of a program (program.cuh), and
 * its calls. */
#include "cuda/additive_prompt.cuh"

#include "cuda/kernels.h"
#include "cuda/program.cuh"

template <int LANES, bool PACKED, bool CHAINED>
__global__ void __launch_bounds__(STREAM_WARPS *WARP, 4) additive_stream_kernel(stream_call c)
{
	stream_block<LANES, PACKED, CHAINED>(c, blockIdx.x);
}

template <int LANES, bool PACKED, bool WINDOW>
__global__ void __launch_bounds__(PROMPT_THREADS, 2) additive_prompt_kernel(stream_call c)
{
	prompt_block<LANES, PACKED, WINDOW>(c);
}

/* Copy the state of a row's last stretch to its slot. COPY_BLOCKS blocks for each row. */
enum { COPY_THREADS = 256, COPY_BLOCKS = 32 };
static __global__ void __launch_bounds__(COPY_THREADS) additive_stream_end_kernel(stream_call c)
{
	const unsigned row = blockIdx.x / COPY_BLOCKS;
	wait_for_previous();
	let_next_begin();
	const unsigned length = (unsigned)c.length[row];
	int64_t copies = 0;
	for (unsigned stop = stretch_at(c, row).stop; stop < length; stop += c.stretch)
		copies++;
	if (copies == 0)
		return;
	const float *from = c.copies + (stretches_before(c, row) + copies - 1) * c.state_floats;
	float *to = c.pool + c.slot[row] * c.slot_floats + c.offset;
	for (int64_t i = blockIdx.x % COPY_BLOCKS * COPY_THREADS + threadIdx.x; i < c.state_floats; i += COPY_BLOCKS * COPY_THREADS)
		to[i] = from[i];
}

/* --- the call ----------------------------------------------------------------------------------------- */

/* Tokens of a stretch, whole blocks: few, since a stretch takes as long as its tokens and two blocks. 0: a call of n
 * tokens is not cut. */
static int64_t stretch_of(int64_t block, int64_t n)
{
	enum { LEAST = 16 };
	const int64_t length = block > 0 ? (LEAST + block - 1) / block * block : 0;
	return n > length && n > 2 * block ? length : 0;
}

/* Number of states of stretches that do not begin a row. */
static int64_t copies_of(const op_call *call, int64_t stretch)
{
	const shape x = call->in[0].shape;
	return stretch > 0 ? x.dim[0] * x.dim[1] / stretch : 0;
}

static int64_t aggregates_of(int64_t window)
{
	const int64_t block = stream_block(window);
	return block > 0 ? 2 + 2 * block : window == 1 ? 0 : 1;
}

size_t cuda_additive_stream_scratch(const backend *, const op_call *call)
{
	const additive_stream_params *p = (const additive_stream_params *)call->params;
	const shape x = call->in[0].shape;
	return (size_t)(copies_of(call, stretch_of(stream_block(p->window), x.dim[1])) * aggregates_of(p->window) *
	                stream_width(x.dim[2], p->heads)) *
	       sizeof(float);
}

static stream_call stream_call_of(const op_call *call)
{
	const additive_stream_params *p = (const additive_stream_params *)call->params;
	const shape x = call->in[0].shape;
	stream_call c = {};
	c.x = (const float *)call->in[0].data;
	c.w = (const float *)call->in[1].data;
	c.pool = (float *)call->in[2].data;
	c.slot = (const int32_t *)call->in[3].data;
	c.position = (const int32_t *)call->in[4].data;
	c.length = (const int32_t *)call->in[5].data;
	c.mask = (const int32_t *)cuda_optional(call, 6);
	c.start = (const int32_t *)cuda_optional(call, 7);
	c.g = (float *)call->out[0].data;
	c.score = (float *)call->out[1].data;
	c.log_normalizer = (float *)call->out[2].data;
	c.rows = call->in[3].shape.dim[0];
	c.n = x.dim[1];
	c.d = x.dim[2];
	c.heads = p->heads;
	c.dh = c.d / c.heads;
	c.window = p->window;
	c.block = stream_block(p->window);
	c.width = stream_width(c.d, c.heads);
	c.aggregates = aggregates_of(p->window);
	c.state_floats = c.aggregates * c.width;
	c.stretch = (unsigned)stretch_of(c.block, c.n);
	c.stretches = (unsigned)(c.rows + copies_of(call, c.stretch));
	c.copies = (float *)call->scratch;
	c.slot_floats = call->in[2].shape.dim[1];
	c.offset = p->offset;
	c.scale = 1.0f / sqrtf((float)c.dh);
	return c;
}

/* True if quads are whole and aligned. */
static bool is_packed(const stream_call &c)
{
	return c.dh % QUAD == 0 && 2 * c.heads % QUAD == 0 && c.slot_floats % QUAD == 0 && c.offset % QUAD == 0;
}

/* True if there are so few sessions that each warp has a quarter of a processor to itself. */
static bool is_sparse(const backend *b, const stream_call &c)
{
	return c.rows * c.groups < (int64_t)cuda_of(b)->processors * STREAM_WARPS;
}

template <int LANES> static int64_t groups_of(const stream_call &c)
{
	enum { HEADS = WARP / LANES };
	return (c.heads + HEADS - 1) / HEADS;
}

/* Number of blocks of c->warps warps. */
template <bool CHAINED> static int64_t cut_into_blocks(stream_call *c, int warps)
{
	c->warps = warps;
	c->padded_groups = CHAINED ? (c->groups + warps - 1) / warps * warps : c->groups;
	return (c->rows * c->padded_groups + warps - 1) / warps;
}

/* Shared memory of a block, bytes. */
template <int LANES, bool CHAINED> static size_t block_bytes(const stream_call &c)
{
	return c.warps * warp_bytes(WARP / LANES) + (CHAINED ? sizeof(row_sums) : 0);
}

template <int LANES, bool PACKED, bool CHAINED> static status launch(backend *b, stream_call c)
{
	/* Few sessions: one warp per block, or chained, the warps of one row. */
	const int warps = CHAINED ? (int)min(c.groups, (int64_t)STREAM_WARPS) : is_sparse(b, c) ? 1 : (int)STREAM_WARPS;
	const int64_t blocks = cut_into_blocks<CHAINED>(&c, warps);
	if (c.rows * c.padded_groups > INT32_MAX)
		return STATUS_UNSUPPORTED; /* the kernel counts in 32 bits */
	return cuda_launch_early(b, additive_stream_kernel<LANES, PACKED, CHAINED>, cuda_extent(blocks), warps * WARP,
	                         block_bytes<LANES, CHAINED>(c), c);
}

template <int LANES, bool PACKED> static status launch_prompt(backend *b, const stream_call &c)
{
	const unsigned blocks = cuda_extent(c.stretches * c.groups);
	const size_t bytes = sizeof(prompt_board<WARP / LANES>);
	if (c.stretches * c.groups > INT32_MAX || (c.start ? c.n : c.rows * c.n) > INT32_MAX / 2)
		return STATUS_UNSUPPORTED; /* the kernel counts in 32 bits */
	if (c.block == 0)
		return cuda_launch_early(b, additive_prompt_kernel<LANES, PACKED, false>, blocks, PROMPT_THREADS, bytes, c);
	TRY(cuda_launch_early(b, additive_prompt_kernel<LANES, PACKED, true>, blocks, PROMPT_THREADS, bytes, c));
	if (c.stretch == 0)
		return STATUS_OK;
	return cuda_launch_early(b, additive_stream_end_kernel, cuda_extent(c.rows * COPY_BLOCKS), COPY_THREADS, 0, c);
}

template <int LANES, bool CHAINED> static status launch_phase(backend *b, const program_phase &f)
{
	return launch<LANES, true, CHAINED>(b, f.stream);
}

/* The phase of a packed call of one token per row; returns the shared memory of a piece. */
template <int LANES, bool CHAINED> static size_t phase_of(const stream_call &c, program_phase *f)
{
	*f = {};
	f->kind = CHAINED ? PROGRAM_ROUND : PROGRAM_STREAM;
	f->lanes = LANES;
	f->stream = c;
	f->blocks = (unsigned)cut_into_blocks<CHAINED>(&f->stream, PROGRAM_WARPS);
	return block_bytes<LANES, CHAINED>(f->stream);
}

/* Issue the call of one token per row as a phase of a program if possible, else as a kernel. */
template <int LANES, bool PACKED, bool CHAINED> static status issue(backend *b, const stream_call &c)
{
	if (PACKED && c.rows <= ROWS) {
		program_phase f;
		const size_t shared = phase_of<LANES, CHAINED>(c, &f);
		if (cuda_program_add(b, f, shared, launch_phase<LANES, CHAINED>))
			return STATUS_OK;
	}
	return launch<LANES, PACKED, CHAINED>(b, c);
}

status cuda_additive_stream(backend *b, const op_call *call)
{
	stream_call c = stream_call_of(call);
	if (shape_count(call->in[0].shape) == 0)
		return STATUS_OK;
	return by_lanes(c.dh, [&](auto lanes) {
		enum { LANES = decltype(lanes)::N };
		c.groups = groups_of<LANES>(c);
		if (c.n > 1)
			return is_packed(c) ? launch_prompt<LANES, true>(b, c) : launch_prompt<LANES, false>(b, c);
		return is_packed(c) ? issue<LANES, true, false>(b, c) : issue<LANES, false, false>(b, c);
	});
}

bool cuda_stream_phase(const op_call *call, program_phase *out, size_t *shared)
{
	stream_call c = stream_call_of(call);
	if (c.rows < 1 || c.rows > ROWS || c.n != 1 || c.start || !is_packed(c))
		return false;
	return by_lanes(c.dh, [&](auto lanes) {
		       enum { LANES = decltype(lanes)::N };
		       c.groups = groups_of<LANES>(c);
		       *shared = phase_of<LANES, false>(c, out);
		       return STATUS_OK;
	       }) == STATUS_OK;
}

/* --- with the operations around it ------------------------------------------------------------------------ */

/* The chain's call; false if its calls must run one by one. */
static bool chained_call_of(const backend *b, const stream_chain *chain, stream_call *c)
{
	const op_call *norm = chain->norm;
	row_plan plan;
	*c = stream_call_of(chain->stream);
	if (norm->out[1].data || norm->out[2].data || c->rows == 0 || c->n != 1 || c->start || !is_packed(*c) ||
	    !layernorm_plan(&plan, b, &norm->in[0]))
		return false;
	c->norm = row_norm_of(norm, &plan);
	c->x = (const float *)norm->in[0].data;
	c->base = chain->base;
	c->factor = chain->factor;
	c->y = chain->y;
	return by_lanes(c->dh, [&](auto lanes) {
		       c->groups = groups_of<decltype(lanes)::N>(*c);
		       return is_sparse(b, *c) ? STATUS_OK : STATUS_UNSUPPORTED;
	       }) == STATUS_OK;
}

bool cuda_stream_chain_phase(const backend *b, const stream_chain *chain, program_phase *out, size_t *shared)
{
	stream_call c;
	return chained_call_of(b, chain, &c) && c.rows <= ROWS && by_lanes(c.dh, [&](auto lanes) {
		                                                          *shared = phase_of<decltype(lanes)::N, true>(c, out);
		                                                          return STATUS_OK;
	                                                          }) == STATUS_OK;
}

bool cuda_stream_can_chain(const backend *b, const stream_chain *chain)
{
	stream_call c;
	return chained_call_of(b, chain, &c);
}

status cuda_stream_run_chain(backend *b, const stream_chain *chain)
{
	stream_call c;
	if (!chained_call_of(b, chain, &c))
		return STATUS_UNSUPPORTED;
	return by_lanes(c.dh, [&](auto lanes) { return issue<decltype(lanes)::N, true, true>(b, c); });
}
