/* fuse: neighbours of a decode step as one kernel. That saves launches: a token of one session costs little more than
 * the starts of its kernels. A layer of the additive model then has six kernels, of GPT-2 five:
 *
 *   layernorm, linear × 3       n and its projections          layernorm, linear
 *   additive_stream                                            softmax_stream
 *   linear, gate                r = n + (P pq) ⊙ k             linear, add
 *   layernorm, stream, gate     u = r + A(LN(r)) ⊙ v
 *   layernorm, linear, gelu                                    layernorm, linear, gelu
 *   linear, add                                                linear, add
 *
 * Products are fused where they are narrow (linear_panels.cuh), a stream where it reads one token of each of a few
 * sessions (additive_stream.cu). Otherwise the calls run one by one, or as in fuse.cu. All kernels are templates or
 * share the functions that define the order of sums, so the bits are the same. */
#include "cuda/program.cuh"
#include "cuda/stream.cuh"

#include <utility>

enum { CHAIN_CALLS = 4 };

typedef struct chain {
	int n;
	op_id ids[CHAIN_CALLS];
} chain;

/* Entries with the same first ops are in order of length. */
static const chain chains[] = {
    {4, {OP_layernorm, OP_linear, OP_linear, OP_linear}},
    {3, {OP_layernorm, OP_additive_stream, OP_gate}},
    {3, {OP_layernorm, OP_linear, OP_linear}},
    {3, {OP_layernorm, OP_linear, OP_gelu}},
    {3, {OP_layernorm, OP_linear, OP_gate}},
    {3, {OP_layernorm, OP_linear, OP_add}},
    {3, {OP_linear, OP_linear, OP_linear}},
    {2, {OP_layernorm, OP_linear}},
    {2, {OP_linear, OP_linear}},
    {2, {OP_linear, OP_gelu}},
    {2, {OP_linear, OP_gate}},
    {2, {OP_linear, OP_add}},
};
enum { CHAINS = sizeof chains / sizeof chains[0] };

static const float *floats(const tensor &t)
{
	return (const float *)t.data;
}

/* Return the one of inputs `first` and `first` + 1 that is not `made`; NULL unless exactly one is. */
static const float *other_input(const op_call *call, int first, const void *made)
{
	const bool one = call->in[first].data == made, two = call->in[first + 1].data == made;
	return one == two ? nullptr : floats(call->in[first + one]);
}

/* Set the end from the last call, which uses y, the result of the only product. */
static bool end_of(op_id id, const op_call *call, const void *y, panel_chain_calls *c)
{
	c->y = (float *)call->out[0].data;
	if (id == OP_gelu) {
		c->end = ((const gelu_params *)call->params)->tanh ? END_GELU_TANH : END_GELU;
		return call->in[0].data == y;
	}
	c->end = id == OP_gate ? END_GATE : END_ADD;
	if (id == OP_gate) {
		c->base = floats(call->in[0]);
		c->factor = other_input(call, 1, y);
		return c->factor && c->base != y;
	}
	c->base = other_input(call, 0, y);
	return c->base;
}

/* True if an operand of the end is layernorm's result. No particular block stores that, or none at all, so only the
 * product may read it. */
static bool reads_norm(const op_call *norm, const float *base, const float *factor)
{
	return norm && (base == norm->out[0].data || factor == norm->out[0].data);
}

/* Convert the calls to a chain of linear_panels.cu; false if they do not form one. dead: calls whose results no other
 * call reads. */
static bool products_of(const chain *t, const op_call *const *calls, unsigned dead, panel_chain_calls *c)
{
	*c = {};
	int i = 0;
	if (t->ids[0] == OP_layernorm) {
		c->norm = calls[i++];
		c->keeps_norm = !(dead & 1);
	}
	for (; i < t->n && t->ids[i] == OP_linear; i++) {
		if (!dtype_is_panel(calls[i]->in[1].type) || (c->norm && calls[i]->in[0].data != c->norm->out[0].data))
			return false;
		c->product[c->products++] = calls[i];
	}
	if (i == t->n)
		return true;
	return (dead >> (i - 1) & 1) && end_of(t->ids[i], calls[i], calls[i - 1]->out[0].data, c) &&
	       !reads_norm(c->norm, c->base, c->factor);
}

/* Convert layernorm, stream, gate to a stream chain; false if they do not form one. */
static bool round_of(const op_call *const *calls, unsigned dead, stream_chain *c)
{
	const op_call *norm = calls[0], *stream = calls[1], *gate = calls[2];
	const void *g = stream->out[0].data;
	*c = {norm, stream, floats(gate->in[0]), other_input(gate, 1, g), (float *)gate->out[0].data};
	return (dead & 3) == 3 && stream->in[0].data == norm->out[0].data && c->factor && c->base != g &&
	       !reads_norm(norm, c->base, c->factor);
}

static bool is_round(const chain *t)
{
	return t->ids[1] == OP_additive_stream;
}

/* The chain, and whether other calls read the first call's result, as a function. */
template <size_t RUN> static status run(backend *b, const op_call *const *calls)
{
	const chain *t = &chains[RUN / 2];
	const unsigned dead = ~(unsigned)(RUN % 2);
	stream_chain s;
	panel_chain_calls c;
	if (is_round(t))
		return round_of(calls, dead, &s) ? cuda_stream_run_chain(b, &s) : STATUS_UNSUPPORTED;
	return products_of(t, calls, dead, &c) ? cuda_panels_run_chain(b, &c) : STATUS_UNSUPPORTED;
}

template <size_t... RUN> static backend_fused_kernel run_at(size_t i, std::index_sequence<RUN...>)
{
	static const backend_fused_kernel all[] = {run<RUN>...};
	return all[i];
}

static bool fits(const backend *b, const chain *t, const op_id *ids, const op_call *const *calls, int n, unsigned dead)
{
	if (n < t->n)
		return false;
	for (int i = 0; i < t->n; i++)
		if (ids[i] != t->ids[i] || calls[i]->in[0].type != DTYPE_F32 || !calls[i]->out[0].data)
			return false;
	stream_chain s;
	panel_chain_calls c;
	return is_round(t) ? round_of(calls, dead, &s) && cuda_stream_can_chain(b, &s)
	                   : products_of(t, calls, dead, &c) && cuda_panels_can_chain(b, &c);
}

static backend_fused_kernel kernel_of(size_t chain, unsigned dead)
{
	return run_at(2 * chain + !(dead & 1), std::make_index_sequence<2 * CHAINS>());
}

int cuda_fuse_serving(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
                      backend_fused_kernel *out)
{
	int layer = cuda_fuse_layer(b, ids, calls, n, dead, out);
	if (!layer)
		layer = cuda_fuse_rounds(b, ids, calls, n, dead, out);
	if (layer)
		return layer;
	for (size_t i = 0; i < CHAINS; i++)
		if (fits(b, &chains[i], ids, calls, n, dead)) {
			*out = kernel_of(i, dead);
			return chains[i].n;
		}
	return 0;
}

/* Bit i: no call from `first` to n - 1 reads the result of call i < first. */
static unsigned unread(const op_call *const *calls, int first, int n)
{
	unsigned dead = (1u << first) - 1;
	for (int j = first; j < n; j++)
		for (int in = 0; in < calls[j]->n_in; in++)
			for (int i = 0; i < first; i++)
				if (calls[j]->in[in].data == calls[i]->out[0].data)
					dead &= ~(1u << i);
	return dead;
}

status cuda_run_chains(backend *b, const op_id *ids, const op_call *const *calls, int n)
{
	for (int i = 0, count; i < n; i += count) {
		size_t t = 0;
		unsigned dead = 0;
		for (; t < CHAINS; t++) {
			dead = unread(calls + i, min(chains[t].n, n - i), n - i);
			if (fits(b, &chains[t], ids + i, calls + i, n - i, dead))
				break;
		}
		count = t < CHAINS ? chains[t].n : 1;
		TRY(t < CHAINS ? kernel_of(t, dead)(b, calls + i) : b->kernel[ids[i]](b, calls[i]));
	}
	return STATUS_OK;
}
