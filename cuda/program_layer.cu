/* A layer of additive2 as phases of a program (program.cuh), four waits for its 21 calls:
 *
 *   v, (a, f), gate    products of x = n + mixture (n of the previous token - n), n = normalize(h)
 *   h + product        x = normalize(what the heads pool) ⊙ SiLU(gate); each block adds the token to what it pools
 *   u | q              x = normalize(h)
 *   h + product        x = q ⊙ SiLU(u); another block for each row writes the state, which all have read by then
 *
 * These calls are one group of the plan, so nothing that they read is overwritten before the last of them. Where
 * another call is between attention and feed-forward, in the last layer, they are two groups, and writing the state has
 * a phase of its own. The logits, a product of normalize(h), are a group too. Without a recording the calls run kernel by
 * kernel, as with options that need other calls. */
#include "cuda/program_group.cuh"
#include "cuda/program_rows.cuh"

/* Calls of a layer. */
enum {
	BEFORE,
	SHIFT,
	MIX,
	V = MIX + 3,
	A,
	F,
	RATE,
	STREAM,
	POOLED,
	GATE,
	SILU,
	GATED,
	OUT,
	ADD,
	AFTER, /* feed-forward */
	UP,
	GLU,
	DOWN,
	LAST,
	CALLS,
	MIXTURES = V - MIX
};
static const op_id ids_of_layer[CALLS] = {
    OP_normalize, OP_shift_stream, OP_mix_columns, OP_mix_columns,       OP_mix_columns, OP_linear, OP_linear,
    OP_linear,    OP_activation,   OP_forgetting_stream, OP_normalize,   OP_linear,      OP_activation, OP_mul,
    OP_linear,    OP_add,          OP_normalize,   OP_linear,            OP_glu,         OP_linear, OP_add,
};

/* Calls `first` … `last` - 1 of a layer. */
enum group_kind { WHOLE, ATTENTION, FEED_FORWARD, NORMED /* also the logits */, KINDS };
static const struct {
	int first, last;
} groups[KINDS] = {{BEFORE, CALLS}, {BEFORE, AFTER}, {AFTER, CALLS}, {AFTER, GLU}};

static bool is_activation(const op_call *call, const op_call *made, activation_kind kind)
{
	return ((const activation_params *)call->params)->kind == kind && reads(call, 0, made);
}

/* Set the norm from its call; false if a program cannot have it. */
static bool set_norm(const backend *b, const op_call *call, rms_norm *o)
{
	const normalize_params *p = (const normalize_params *)call->params;
	const int64_t width = shape_last(call->in[0].shape);
	tensor part = call->in[0];
	row_plan plan;
	part.shape = SHAPE2(shape_rows(part.shape) * p->groups, width / p->groups);
	if (call->out[1].data || !cuda_optional(call, 1) || shape_count(call->in[1].shape) != width || width == 1 ||
	    !layernorm_plan(&plan, b, &part) || plan.group > PROGRAM_THREADS)
		return false;
	*o = {floats(call->in[0]), floats(call->in[1]), p->scale, p->floor, p->eps, (int)shape_last(part.shape), (int)p->groups,
	      plan.group};
	return true;
}

/* Add a product, or two of the same x, which their blocks compute. base: added to y; NULL: nothing. */
static bool add_product(const backend *b, group_phases *to, program_source source, const op_call *const *product, int count,
                        const float *base, float *y)
{
	const forgetting_layer &l = to->at[0].layer_arguments;
	panel_chain_calls c = {};
	c.products = count;
	for (int i = 0; i < count; i++)
		c.product[i] = product[i];
	c.end = base ? END_ADD : END_NONE;
	c.base = base;
	c.y = y;
	return group_add_product(b, to, c, source, 0, rows_space(l.rows, l.heads));
}

/* Add a product of a mixture. */
static bool add_mixed(const backend *b, group_phases *to, const op_call *const *calls, int product, int count)
{
	int mixture = 0;
	while (mixture < MIXTURES && !reads(calls[product], 0, calls[MIX + mixture]))
		mixture++;
	if (mixture == MIXTURES)
		return false;
	program_phase *f = &to->at[to->count];
	if (!add_product(b, to, SOURCE_SHIFT, calls + product, count, nullptr, nullptr))
		return false;
	f->mixture = (int)((const mix_columns_params *)calls[MIX + mixture]->params)->row;
	f->joins = to->count > 2;
	return true;
}

static void add_keep(group_phases *to, bool joins)
{
	const forgetting_layer &l = to->at[0].layer_arguments;
	program_phase *f = &to->at[to->count];
	f->kind = PROGRAM_KEEP;
	f->arguments = -to->count++;
	f->joins = joins;
	f->blocks = (unsigned)l.rows;
}

/* Set what the phases read of the slots; false if the calls are those of other steps than a token of each session. */
static bool set_slots(const op_call *const *calls, forgetting_layer *l)
{
	const op_call *shift = calls[SHIFT], *stream = calls[STREAM];
	const shift_stream_params *p = (const shift_stream_params *)shift->params;
	enum { POOL = 2, MASK = 6, START = 7, F_OF = 8, BONUS = 9, PACK = 4 };
	const shape v = stream->in[0].shape;
	for (int i = POOL; i <= START; i++) /* shift_stream has them one place earlier */
		if (cuda_optional(stream, i) != cuda_optional(shift, i - 1))
			return false;
	if (p->low != 1 || p->high != 1 || p->stored.count > 0 || cuda_optional(shift, 7) || cuda_optional(stream, START) ||
	    cuda_optional(stream, BONUS) || !cuda_optional(stream, F_OF) || stream->out[1].data || v.dim[1] != 1 ||
	    stream->in[3].shape.dim[0] != l->rows)
		return false;
	l->pool = (float *)stream->in[POOL].data;
	l->slot = (const int32_t *)stream->in[3].data;
	l->position = (const int32_t *)stream->in[4].data;
	l->length = (const int32_t *)stream->in[5].data;
	l->mask = (const int32_t *)cuda_optional(stream, MASK);
	l->slot_floats = stream->in[POOL].shape.dim[1];
	l->ring = p->offset;
	l->state = ((const forgetting_stream_params *)stream->params)->offset;
	l->segment = p->segment;
	l->heads = (int)shape_last(stream->in[1].shape);
	return l->slot_floats % PACK == 0 && l->ring % PACK == 0 && (l->state + 3 * l->heads) % PACK == 0 &&
	       shape_count(stream->in[F_OF].shape) == (int64_t)l->rows * l->heads && reads(stream, F_OF, calls[RATE]) &&
	       reads(stream, 0, calls[V]) && reads(stream, 1, calls[A]);
}

static bool add_attention(const backend *b, const op_call *const *calls, group_phases *to)
{
	forgetting_layer *l = &to->at[0].layer_arguments;
	if (!set_norm(b, calls[BEFORE], &l->before) || l->before.parts != 1 || !set_norm(b, calls[POOLED], &l->pooled) ||
	    !set_slots(calls, l) || l->pooled.parts != l->heads || !reads(calls[SHIFT], 0, calls[BEFORE]) ||
	    !reads(calls[POOLED], 0, calls[STREAM]) || !is_activation(calls[RATE], calls[F], ACTIVATION_LOG_SIGMOID) ||
	    !is_activation(calls[SILU], calls[GATE], ACTIVATION_SILU) ||
	    other_input(calls[GATED], 0, calls[SILU]) != calls[POOLED]->out[0].data || !reads(calls[OUT], 0, calls[GATED]))
		return false;
	for (int i = 0; i < MIXTURES; i++)
		if (!reads(calls[MIX + i], 0, calls[BEFORE]) || !reads(calls[MIX + i], 1, calls[SHIFT]) ||
		    calls[MIX + i]->in[2].data != calls[MIX]->in[2].data)
			return false;
	l->mixtures = floats(calls[MIX]->in[2]);
	l->v = floats(calls[V]->out[0]);
	l->a = floats(calls[A]->out[0]);
	l->f = floats(calls[F]->out[0]);
	l->gate = floats(calls[GATE]->out[0]);
	const float *base = other_input(calls[ADD], 0, calls[OUT]);
	return base && add_mixed(b, to, calls, V, 1) && add_mixed(b, to, calls, A, 2) && add_mixed(b, to, calls, GATE, 1) &&
	       add_product(b, to, SOURCE_ROUND, calls + OUT, 1, base, (float *)calls[ADD]->out[0].data);
}

static bool add_normed(const backend *b, const op_call *const *calls, group_phases *to)
{
	rms_norm *norm = &to->at[0].layer_arguments.after;
	return set_norm(b, calls[AFTER], norm) && norm->parts == 1 && reads(calls[UP], 0, calls[AFTER]) &&
	       add_product(b, to, SOURCE_NORM, calls + UP, 1, nullptr, nullptr);
}

/* keep: the state of the attention before it. */
static bool add_feed_forward(const backend *b, const op_call *const *calls, bool keep, group_phases *to)
{
	forgetting_layer *l = &to->at[0].layer_arguments;
	const glu_params *p = (const glu_params *)calls[GLU]->params;
	const float *base = other_input(calls[LAST], 0, calls[DOWN]);
	if (!reads(calls[GLU], 0, calls[UP]) || !reads(calls[DOWN], 0, calls[GLU]) || p->kind != ACTIVATION_SILU || !base ||
	    !add_normed(b, calls, to))
		return false;
	l->inner = floats(calls[UP]->out[0]);
	l->inner_width = (int)shape_last(calls[GLU]->out[0].shape);
	l->gate_first = p->gate_first;
	if (!add_product(b, to, SOURCE_GLU, calls + DOWN, 1, base, (float *)calls[LAST]->out[0].data))
		return false;
	if (keep)
		add_keep(to, true);
	return true;
}

/* Set the phases of a group; false if it is no such group. */
static bool phases_of(const backend *b, group_kind kind, const op_call *const *group, group_phases *to)
{
	const op_call *calls[CALLS] = {};
	const int64_t rows = shape_rows(group[0]->in[0].shape);
	*to = {};
	for (int i = groups[kind].first; i < groups[kind].last; i++)
		calls[i] = group[i - groups[kind].first];
	if (rows < 1 || rows > ROWS)
		return false;
	to->at[to->count++].kind = PROGRAM_LAYER;
	to->at[0].layer_arguments.rows = (int)rows;
	if (kind == NORMED)
		return add_normed(b, calls, to);
	if (kind == FEED_FORWARD)
		return add_feed_forward(b, calls, false, to);
	if (!add_attention(b, calls, to))
		return false;
	if (kind == ATTENTION)
		add_keep(to, false);
	return kind == ATTENTION || add_feed_forward(b, calls, true, to);
}

template <group_kind KIND> static status run_each(backend *b, const op_call *const *calls)
{
	return cuda_run_chains(b, ids_of_layer + groups[KIND].first, calls, groups[KIND].last - groups[KIND].first);
}

template <group_kind KIND> static status run(backend *b, const op_call *const *calls)
{
	group_phases phases;
	if (cuda_of(b)->recording && cuda_of(b)->persistent > 0 && phases_of(b, KIND, calls, &phases) &&
	    cuda_program_add_group(b, phases.at, phases.count, phases.shared, {run_each<KIND>, calls}))
		return STATUS_OK;
	return run_each<KIND>(b, calls);
}

int cuda_fuse_layer(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                    backend_fused_kernel *out)
{
	static const backend_fused_kernel kernels[KINDS] = {run<WHOLE>, run<ATTENTION>, run<FEED_FORWARD>, run<NORMED>};
	if (cuda_of(b)->persistent == 0)
		return 0;
	for (int kind = 0; kind < KINDS; kind++) {
		const int count = groups[kind].last - groups[kind].first;
		group_phases phases;
		if (group_matches(ids_of_layer + groups[kind].first, count, ids, calls, n, dead) &&
		    phases_of(b, (group_kind)kind, calls, &phases)) {
			*out = kernels[kind];
			return count;
		}
	}
	return 0;
}
