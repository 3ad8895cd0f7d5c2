/* A layer of additive as phases of a program (program.cuh), four waits for its 15 calls:
 *
 *   q, k, v            products of n = LN(h)
 *   r = n + (P x) ⊙ k  x = A(q); each block computes the round
 *   gelu(W1 LN(u))     u = r + A(LN(r)) ⊙ v; each block computes u, and one of them also stores LN(r) and u
 *   u + W2 x           other blocks write the states of both rounds, which all have read by then
 *
 * These calls are one group of the plan, so nothing that they read is overwritten before the last of them. In the last
 * layer another call may be between attention and feed-forward. Then attention alone is a group. Its second round is a
 * phase, and the state of the first is written beside it.
 *
 * Each block reads the state, 44 bytes a channel with the weights of both rounds. So the limit is the number of channels
 * that a block holds while it waits (program_rounds.cuh). By count both rounds then take 2.9 µs, where two waits and the
 * rounds' own phases take 7.2. With twice as many channels they would take more than 8 (BENCHMARKS.md). */
#include "cuda/program_group.cuh"
#include "cuda/program_rounds.cuh"

/* Calls of a layer. */
enum { BEFORE, Q, K, V, POOL, PROJECT, GATE, MIDDLE, POOL_AGAIN, GATE_AGAIN, AFTER, UP, GELU, DOWN, ADD, CALLS };
static const op_id ids_of_layer[CALLS] = {
    OP_layernorm, OP_linear, OP_linear,    OP_linear,          OP_additive_stream,
    OP_linear,    OP_gate,   OP_layernorm, OP_additive_stream, OP_gate,
    OP_layernorm, OP_linear, OP_gelu,      OP_linear,          OP_add,
};

/* Phases of a layer. */
enum { THREE, PROJECTED, INNER, OUTER, KEPT, KEPT_AGAIN, /* attention alone */ ROUND = PROJECTED + 1, ROUND_KEPT };

enum { MOST_CHANNELS = 2048 }; /* sum over the rows */

/* True if the gate is base + made ⊙ factor, and base and factor are these calls' results. */
static bool is_gate(const op_call *gate, const op_call *base, const op_call *made, const op_call *factor)
{
	return reads(gate, 0, base) && other_input(gate, 1, made) == floats(factor->out[0]);
}

/* Products of the same x are checked where they become one. */
static bool is_attention(const op_call *const *calls)
{
	return reads(calls[Q], 0, calls[BEFORE]) && reads(calls[POOL], 0, calls[Q]) && reads(calls[PROJECT], 0, calls[POOL]) &&
	       is_gate(calls[GATE], calls[BEFORE], calls[PROJECT], calls[K]) && reads(calls[MIDDLE], 0, calls[GATE]) &&
	       reads(calls[POOL_AGAIN], 0, calls[MIDDLE]) &&
	       is_gate(calls[GATE_AGAIN], calls[GATE], calls[POOL_AGAIN], calls[V]);
}

static bool is_feed_forward(const op_call *const *calls)
{
	return reads(calls[AFTER], 0, calls[GATE_AGAIN]) && reads(calls[UP], 0, calls[AFTER]) &&
	       reads(calls[GELU], 0, calls[UP]) && reads(calls[DOWN], 0, calls[GELU]) &&
	       other_input(calls[ADD], 0, calls[DOWN]) == floats(calls[GATE_AGAIN]->out[0]);
}

static bool add_phase(const program_phase &f, size_t shared, group_phases *to)
{
	to->at[to->count++] = f;
	to->shared = shared > to->shared ? shared : to->shared;
	return shared <= PROGRAM_SHARED;
}

/* Add a phase that writes the state of a round. */
static bool add_keep(const op_call *stream, int64_t rows, group_phases *to)
{
	program_phase f;
	size_t shared;
	if (!cuda_stream_phase(stream, &f, &shared) || f.stream.rows != rows)
		return false;
	f.stream.g = nullptr; /* the blocks of the product have it */
	f.joins = true;
	return add_phase(f, shared, to);
}

/* Add the second round as a phase of its own. */
static bool add_round(const backend *b, const op_call *const *calls, group_phases *to)
{
	const stream_chain chain = {calls[MIDDLE], calls[POOL_AGAIN], floats(calls[GATE]->out[0]),
	                            floats(calls[V]->out[0]), (float *)calls[GATE_AGAIN]->out[0].data};
	program_phase f;
	size_t shared;
	return cuda_stream_chain_phase(b, &chain, &f, &shared) && add_phase(f, shared, to);
}

/* Set the layernorm from its call; false if a block cannot have it. */
static bool set_norm(const backend *b, const op_call *call, row_norm *o)
{
	row_plan plan;
	if (call->out[1].data || call->out[2].data || !layernorm_plan(&plan, b, &call->in[0]))
		return false;
	*o = row_norm_of(call, &plan);
	return true;
}

static panel_chain_calls chain_of(const op_call *product, panel_end end, const op_call *last)
{
	panel_chain_calls c = {};
	c.products = 1;
	c.product[0] = product;
	c.end = end;
	c.y = (float *)last->out[0].data;
	return c;
}

/* Set the phases of attention; false if the calls are not attention, or a program cannot have it. kept: the index of
 * the phase that will write the state of the first round. */
static bool add_attention(const backend *b, const op_call *const *calls, int kept, group_phases *to)
{
	const panel_chain_calls three = {calls[BEFORE], true,    3,       {calls[Q], calls[K], calls[V]},
	                                 END_NONE,      nullptr, nullptr, nullptr};
	panel_chain_calls projected = chain_of(calls[PROJECT], END_GATE, calls[GATE]);
	projected.base = floats(calls[BEFORE]->out[0]);
	projected.factor = floats(calls[K]->out[0]);
	return is_attention(calls) && group_add_product(b, to, three) &&
	       group_add_product(b, to, projected, SOURCE_POOLED, kept);
}

/* Set the phases of attention and feed-forward, or of attention alone. */
static bool phases_of(const backend *b, const op_call *const *calls, bool whole, group_phases *to)
{
	const int64_t rows = shape_rows(calls[0]->in[0].shape), d = shape_last(calls[0]->in[0].shape);
	*to = {};
	if (rows < 1 || rows > ROWS || rows * d > MOST_CHANNELS ||
	    !add_attention(b, calls, whole ? KEPT : ROUND_KEPT, to))
		return false;
	if (!whole)
		return add_round(b, calls, to) && add_keep(calls[POOL], rows, to);
	panel_chain_calls inner = chain_of(calls[UP], END_GELU, calls[GELU]),
	                  outer = chain_of(calls[DOWN], END_ADD, calls[ADD]);
	row_norm norm;
	inner.end = ((const gelu_params *)calls[GELU]->params)->tanh ? END_GELU_TANH : END_GELU;
	inner.norm = calls[AFTER];
	outer.base = floats(calls[GATE_AGAIN]->out[0]);
	if (!is_feed_forward(calls) || !set_norm(b, calls[MIDDLE], &norm) ||
	    !group_add_product(b, to, inner, SOURCE_GATED, KEPT_AGAIN, round_space(rows, norm)) ||
	    !group_add_product(b, to, outer) || !add_keep(calls[POOL], rows, to) ||
	    !add_keep(calls[POOL_AGAIN], rows, to))
		return false;
	stream_call &again = to->at[KEPT_AGAIN].stream;
	again.norm = norm;
	again.base = floats(calls[GATE]->out[0]);
	again.factor = floats(calls[V]->out[0]);
	again.y = (float *)calls[GATE_AGAIN]->out[0].data;
	again.normed = (float *)calls[MIDDLE]->out[0].data;
	return true;
}

template <bool WHOLE> static status run_each(backend *b, const op_call *const *calls)
{
	return cuda_run_chains(b, ids_of_layer, calls, WHOLE ? CALLS : AFTER);
}

template <bool WHOLE> static status run(backend *b, const op_call *const *calls)
{
	group_phases phases;
	if (cuda_of(b)->recording && cuda_of(b)->persistent > 0 && phases_of(b, calls, WHOLE, &phases) &&
	    cuda_program_add_group(b, phases.at, phases.count, phases.shared, {run_each<WHOLE>, calls}))
		return STATUS_OK;
	return run_each<WHOLE>(b, calls);
}

int cuda_fuse_rounds(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                     backend_fused_kernel *out)
{
	group_phases phases;
	if (cuda_of(b)->persistent == 0)
		return 0;
	for (int whole = 1; whole >= 0; whole--) {
		const int count = whole ? CALLS : AFTER;
		if (group_matches(ids_of_layer, count, ids, calls, n, dead) && phases_of(b, calls, whole, &phases)) {
			*out = whole ? run<true> : run<false>;
			return count;
		}
	}
	return 0;
}
