/* fuse: neighbouring calls as one kernel, which saves bytes through memory.
 *
 * A chain is a list of ops, each of which reads output 0 of an earlier one. Forward: an add or a gate, with the dropout
 * before it and the layernorm after it. Backward: a layernorm_grad with the operations on its dx: the sums and products
 * in which gradients meet, and a dropout. The single kernels are the same templates with fewer parts, and values are
 * rounded where they would have been stored, so the bits are the same. Dead results (that no other call reads) are not
 * stored.
 *
 * A matrix product and the add that reads it (a residual; gradients that several layers contribute to) are one product
 * that starts from the other term: D = AB + C. Its sum is rounded once, not twice, so the bits differ there.
 *
 * Bytes per element in bf16, single and fused (the dropout of a gate is kept for the backward):
 *
 *   add, layernorm                         10   8     layernorm_grad, add                             12   8
 *   gate, layernorm                        12  10     layernorm_grad, add, dropout                    16  10
 *   dropout, add, layernorm                14   8     layernorm_grad, dropout                         10   8
 *   dropout, gate, layernorm               16  12     layernorm_grad, add, mul, mul                   24  16
 *   dropout, add                           10   6     layernorm_grad, add, mul, mul, dropout          28  16
 *   dropout, gate                          12  10     layernorm_grad, add, add, mul, mul              30  18
 *   matmul or linear, add (the result)      8   4
 *
 * A fused kernel's function gets only its calls. So the chain and its dead results are part of the function itself:
 * RUN. */
#include "cuda/gemm.h"
#include "cuda/layernorm.cuh"

#include <utility>

/* --- the chains ------------------------------------------------------------------------------- */

enum { CHAIN_CALLS = 5, CHAIN_MASKS = 1 << (CHAIN_CALLS - 1) /* the last call's result is always stored */ };

typedef struct chain {
	int n;
	op_id ids[CHAIN_CALLS];
} chain;

/* Entries with the same first ops are in order of length. */
static const chain chains[] = {
    {3, {OP_dropout, OP_add, OP_layernorm}},
    {3, {OP_dropout, OP_gate, OP_layernorm}},
    {2, {OP_dropout, OP_add}},
    {2, {OP_dropout, OP_gate}},
    {2, {OP_add, OP_layernorm}},
    {2, {OP_gate, OP_layernorm}},
    {5, {OP_layernorm_grad, OP_add, OP_add, OP_mul, OP_mul}},
    {5, {OP_layernorm_grad, OP_add, OP_mul, OP_mul, OP_dropout}},
    {4, {OP_layernorm_grad, OP_add, OP_mul, OP_mul}},
    {3, {OP_layernorm_grad, OP_add, OP_dropout}},
    {2, {OP_layernorm_grad, OP_add}},
    {2, {OP_layernorm_grad, OP_dropout}},
    {2, {OP_matmul, OP_add}},
    {2, {OP_linear, OP_add}},
};
enum { CHAINS = sizeof chains / sizeof chains[0] };

/* A chain found in a plan; dead: bits of its calls, except the last. */
typedef struct meeting {
	const chain *c;
	const op_call *const *calls;
	unsigned dead;
} meeting;

/* Address of output 0 of call i; NULL if it is dead. */
static void *stored(const meeting *m, int i)
{
	return m->dead >> i & 1 ? nullptr : m->calls[i]->out[0].data;
}

/* True if input `in` of this call reads output 0 of call i. */
static bool reads(const meeting *m, const op_call *call, int in, int i)
{
	return call->in[in].data && call->in[in].data == m->calls[i]->out[0].data;
}

/* Return the one of two inputs, from `first` on, that is not output 0 of call i; -1 unless exactly one is. */
static int other_input(const meeting *m, const op_call *call, int first, int i)
{
	const bool one = reads(m, call, first, i), two = reads(m, call, first + 1, i);
	return one == two ? -1 : one ? first + 1 : first;
}

/* --- forward -------------------------------------------------------------------------------------- */

/* Indices of the calls of dropout?, add or gate, layernorm?; -1: absent. */
typedef struct forward_chain {
	int drop, middle, norm;
	bool gate;
} forward_chain;

static forward_chain forward_of(const chain *c)
{
	forward_chain f;
	f.drop = c->ids[0] == OP_dropout ? 0 : -1;
	f.middle = f.drop + 1;
	f.norm = f.middle + 1 < c->n ? f.middle + 1 : -1;
	f.gate = c->ids[f.middle] == OP_gate;
	return f;
}

/* Set the inputs of add or gate as the front's a, b, c; b is the dropout's result. False if the dropout made another
 * input. */
static bool front_inputs(const meeting *m, const forward_chain *f, const void *in[3])
{
	const op_call *middle = m->calls[f->middle];
	for (int i = 0; i < 3; i++)
		in[i] = i < middle->n_in ? middle->in[i].data : nullptr;
	if (f->drop < 0)
		return true;
	const int first = f->gate ? 1 : 0, other = other_input(m, middle, first, f->drop);
	if (other < 0 || (f->gate && reads(m, middle, 0, f->drop)))
		return false;
	in[f->gate ? 2 : 0] = middle->in[other].data;
	in[1] = m->calls[f->drop]->in[0].data;
	return true;
}

template <class T, front_kind KIND, bool DROP>
static status run_front(backend *b, const meeting *m, const forward_chain *f, const void *const in[3])
{
	const op_call *middle = m->calls[f->middle];
	front<T, KIND, DROP> o = {};
	o.a = (const T *)in[0];
	o.b = (const T *)in[1];
	o.c = (const T *)in[2];
	if (DROP) {
		o.site = dropout_site_of(m->calls[f->drop]);
		o.left = (T *)stored(m, f->drop);
	}
	if (f->norm < 0)
		return cuda_elementwise(b, (T *)middle->out[0].data, o, shape_count(middle->out[0].shape));
	row_plan plan;
	if (!layernorm_plan(&plan, b, &m->calls[f->norm]->in[0]))
		return STATUS_UNSUPPORTED;
	return layernorm_launch<T>(b, m->calls[f->norm], &plan, o, stored(m, f->middle));
}

static status run_forward(backend *b, const meeting *m)
{
	const forward_chain f = forward_of(m->c);
	const void *in[3];
	if (!front_inputs(m, &f, in))
		return STATUS_UNSUPPORTED;
	return cuda_by_type(m->calls[f.middle]->out[0].type, [&](auto *type) {
		typedef std::remove_pointer_t<decltype(type)> T;
		if (f.drop >= 0)
			return f.gate ? run_front<T, FRONT_GATE, true>(b, m, &f, in)
			              : run_front<T, FRONT_ADD, true>(b, m, &f, in);
		return f.gate ? run_front<T, FRONT_GATE, false>(b, m, &f, in)
		              : run_front<T, FRONT_ADD, false>(b, m, &f, in);
	});
}

static bool fits_forward(const backend *b, const meeting *m)
{
	const forward_chain f = forward_of(m->c);
	const void *in[3];
	row_plan plan;
	if (!front_inputs(m, &f, in))
		return false;
	if (f.norm < 0)
		return true;
	const op_call *norm = m->calls[f.norm];
	return reads(m, norm, 0, f.middle) && layernorm_plan(&plan, b, &norm->in[0]);
}

/* --- backward ----------------------------------------------------------------------------------------- */

/* True if a call before call i produces `data`, which is then in registers and may not be in memory. */
static bool is_inside(const meeting *m, int i, const void *data)
{
	bool inside = false;
	for (int before = 0; before < i; before++)
		for (int out = 0; out < m->calls[before]->n_out; out++)
			inside = inside || m->calls[before]->out[out].data == data;
	return inside;
}

/* Return the operand that call i adds to output 0 of call `last`, or multiplies it by; NULL if it does something
 * else. */
static const void *operand(const meeting *m, int i, int last)
{
	const int other = other_input(m, m->calls[i], 0, last);
	const void *data = other < 0 ? nullptr : m->calls[i]->in[other].data;
	return is_inside(m, i, data) ? nullptr : data;
}

/* Fill the tail from the chain; false if a call reads something else. */
static bool tail_of(const meeting *m, grad_tail *t)
{
	const chain *c = m->c;
	int last = 0, i = 1; /* the call whose output is s, and the next one */
	*t = {};
	t->dx = stored(m, 0);
	if (c->ids[i] == OP_add) {
		t->add = operand(m, i, last);
		t->sum = stored(m, i);
		if (!t->add)
			return false;
		last = i++;
	}
	if (i < c->n && c->ids[i] == OP_add) {
		t->more = operand(m, i, last);
		t->total = m->calls[i]->out[0].data;
		if (!t->more)
			return false;
		i++;
	}
	if (i < c->n && c->ids[i] == OP_mul) {
		t->left = operand(m, i, last);
		t->right = operand(m, i + 1, last);
		t->to_left = stored(m, i);
		t->to_right = m->calls[i + 1]->out[0].data;
		if (!t->left || !t->right)
			return false;
		last = i;
		i += 2;
	}
	if (i < c->n) {
		if (!reads(m, m->calls[i], 0, last))
			return false;
		t->site = dropout_site_of(m->calls[i]);
		t->dropped = m->calls[i]->out[0].data;
	}
	return true;
}

static status run_backward(backend *b, const meeting *m)
{
	grad_tail tail;
	row_plan plan;
	if (!tail_of(m, &tail) || !layernorm_grad_plan(&plan, b, &m->calls[0]->in[0]))
		return STATUS_UNSUPPORTED;
	return layernorm_grad_launch(b, m->calls[0], &plan, &tail);
}

static bool fits_backward(const backend *b, const meeting *m)
{
	grad_tail tail;
	row_plan plan;
	return tail_of(m, &tail) && layernorm_grad_plan(&plan, b, &m->calls[0]->in[0]);
}

/* --- products ------------------------------------------------------------------------------------------- */

/* Return the other term of the sum. Packed weights are for serving, whose rows have a fixed order of sums
 * (linear_panels.h). */
static const void *product_term(const meeting *m)
{
	const bool packed = dtype_is_panel(m->calls[0]->in[1].type), kept = !(m->dead & 1);
	return packed || kept ? nullptr : operand(m, 1, 0);
}

static status run_product(backend *b, const meeting *m)
{
	const void *term = product_term(m);
	void *sum = m->calls[1]->out[0].data;
	if (!term)
		return STATUS_UNSUPPORTED;
	return m->c->ids[0] == OP_matmul ? cuda_matmul_plus(b, m->calls[0], term, sum)
	                                 : cuda_linear_plus(b, m->calls[0], term, sum);
}

static bool fits_product(const backend *b, const meeting *m)
{
	(void)b;
	return product_term(m);
}

/* --- fuse ----------------------------------------------------------------------------------------------- */

/* The kernel of chains that begin with this op. */
typedef struct family {
	bool (*fits)(const backend *b, const meeting *m);
	status (*run)(backend *b, const meeting *m);
} family;

static family family_of(const chain *c)
{
	const op_id first = c->ids[0];
	if (first == OP_layernorm_grad)
		return {fits_backward, run_backward};
	if (first == OP_matmul || first == OP_linear)
		return {fits_product, run_product};
	return {fits_forward, run_forward};
}

/* The chain with its dead results, as a function. */
template <size_t RUN> static status run(backend *b, const op_call *const *calls)
{
	const meeting m = {&chains[RUN / CHAIN_MASKS], calls, RUN % CHAIN_MASKS};
	return family_of(m.c).run(b, &m);
}

template <size_t... RUN> static backend_fused_kernel run_at(size_t i, std::index_sequence<RUN...>)
{
	static const backend_fused_kernel all[] = {run<RUN>...};
	return all[i];
}

/* True if ops, types and sizes agree. */
static bool is_chain(const chain *c, const op_id *ids, const op_call *const *calls, int n)
{
	const tensor *first = &calls[0]->out[0];
	if (n < c->n)
		return false;
	for (int i = 0; i < c->n; i++)
		if (ids[i] != c->ids[i] || !calls[i]->out[0].data || calls[i]->out[0].type != first->type ||
		    shape_count(calls[i]->out[0].shape) != shape_count(first->shape))
			return false;
	return true;
}

int cuda_fuse(const backend *b, const op_id *ids, const op_call *const *calls, int n, unsigned dead,
              backend_fused_kernel *out)
{
	if (!cuda_of(b)->fused)
		return 0;
	const int serving = cuda_fuse_serving(b, ids, calls, n, dead, out);
	if (serving)
		return serving;
	for (size_t i = 0; i < CHAINS; i++) {
		const chain *c = &chains[i];
		if (!is_chain(c, ids, calls, n))
			continue;
		const unsigned mask = dead & ((1u << (c->n - 1)) - 1);
		const meeting m = {c, calls, mask};
		if (!family_of(c).fits(b, &m))
			continue;
		*out = run_at(i * CHAIN_MASKS + mask, std::make_index_sequence<CHAINS * CHAIN_MASKS>());
		return c->n;
	}
	return 0;
}
