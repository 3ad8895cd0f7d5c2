/* program_group.cuh - helpers for groups of phases (program_layer.cu, program_rounds.cu): links between calls, and
 * products whose x their blocks compute. */
#ifndef CUDA_PROGRAM_GROUP_CUH
#define CUDA_PROGRAM_GROUP_CUH

#include "cuda/kernels.h"
#include "cuda/program.cuh"

enum { MOST_OF_GROUP = 8 };

struct group_phases {
	int count;
	size_t shared; /* most bytes of a piece */
	program_phase at[MOST_OF_GROUP];
};

static inline const float *floats(const tensor &t)
{
	return (const float *)t.data;
}

static inline bool reads(const op_call *call, int in, const op_call *made)
{
	return call->in[in].data == made->out[0].data;
}

/* Return the one of inputs `first` and `first` + 1 that `made` has not produced; NULL unless it has produced exactly
 * one. */
static inline const float *other_input(const op_call *call, int first, const op_call *made)
{
	const bool one = reads(call, first, made), two = reads(call, first + 1, made);
	return one == two ? nullptr : floats(call->in[first + one]);
}

/* Add a product. With a source, its blocks compute x from the arguments of phase `from` of the group, and need `space`
 * floats for that. */
static inline bool group_add_product(const backend *b, group_phases *to, const panel_chain_calls &c,
                                     program_source source = SOURCE_MEMORY, int from = 0, int64_t space = 0)
{
	enum { ALIGNED = 16 };
	program_phase *f = &to->at[to->count];
	size_t shared;
	if (!dtype_is_panel(c.product[0]->in[1].type) || !cuda_panels_phase(b, &c, f, &shared))
		return false;
	f->source = source;
	if (source != SOURCE_MEMORY) {
		const panel_product &p = f->linear.product;
		f->arguments = from - to->count;
		f->made = (unsigned)((shared + ALIGNED - 1) / ALIGNED * ALIGNED);
		shared = f->made + (size_t)(p.rows * p.k + space) * sizeof(float);
	}
	to->count++;
	to->shared = shared > to->shared ? shared : to->shared;
	return shared <= PROGRAM_SHARED;
}

/* True if these are the ops, their tensors have memory, and no other call reads a result but the last one. */
static inline bool group_matches(const op_id *of_group, int count, const op_id *ids, const op_call *const *calls, int n,
                                 unsigned dead)
{
	const unsigned inner = (1u << (count - 1)) - 1;
	bool same = n >= count && (dead & inner) == inner;
	for (int i = 0; same && i < count; i++)
		same = ids[i] == of_group[i] && calls[i]->in[0].type == DTYPE_F32 && calls[i]->out[0].data;
	return same;
}

#endif
