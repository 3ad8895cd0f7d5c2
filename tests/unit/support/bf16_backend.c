/* Widened arguments have memory of their own during a call. All inputs are read before an output is written, so an
 * output may overwrite an input. */
#include "tests/unit/support/bf16_backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/cpu/host.h"
#include "engine/tensor/panel.h"

typedef struct bf16_backend {
	backend base;
	backend *inner;
} bf16_backend;

/* True if the inner kernels take bf16 themselves. */
static bool is_native(op_id id)
{
	return id == OP_cast || id == OP_adamw || id == OP_sgd || id == OP_muon || id == OP_normalized_sgd;
}

/* The call that the inner kernel gets, still with the caller's addresses. */
static op_call f32_call(const op_call *call)
{
	op_call wide = *call;
	for (int i = 0; i < wide.n_in; i++)
		if (wide.in[i].type == DTYPE_BF16)
			wide.in[i].type = DTYPE_F32;
	for (int i = 0; i < wide.n_out; i++)
		if (wide.out[i].type == DTYPE_BF16)
			wide.out[i].type = DTYPE_F32;
	return wide;
}

/* Allocate f32 memory for a bf16 argument; NULL if the argument is absent. */
static float *room_for(const tensor *t)
{
	if (t->type != DTYPE_BF16 || !t->data)
		return NULL;
	size_t lines = (size_t)shape_count(t->shape) * sizeof(float) / HOST_ALIGNMENT + 1;
	float *room = aligned_alloc(HOST_ALIGNMENT, lines * HOST_ALIGNMENT);
	if (!room)
		abort();
	return room;
}

static void widen(const tensor *from, float *to)
{
	for (int64_t i = 0; i < shape_count(from->shape); i++)
		to[i] = panel_f32(((const uint16_t *)from->data)[i]);
}

static void narrow(const float *from, const tensor *to)
{
	for (int64_t i = 0; i < shape_count(to->shape); i++)
		((uint16_t *)to->data)[i] = panel_bf16(from[i]);
}

static status run(backend *b, op_id id, const op_call *call)
{
	backend *inner = ((bf16_backend *)b)->inner;
	if (is_native(id))
		return inner->kernel[id](inner, call);
	op_call wide = f32_call(call);
	float *in[OP_MAX_INPUTS] = {0}, *out[OP_MAX_OUTPUTS] = {0};
	for (int i = 0; i < call->n_in; i++) {
		in[i] = room_for(&call->in[i]);
		if (in[i]) {
			widen(&call->in[i], in[i]);
			wide.in[i].data = in[i];
		}
	}
	for (int i = 0; i < call->n_out; i++) {
		out[i] = room_for(&call->out[i]);
		if (out[i])
			wide.out[i].data = out[i];
	}
	status s = inner->kernel[id](inner, &wide);
	for (int i = 0; i < call->n_out; i++) {
		if (out[i] && s == STATUS_OK)
			narrow(out[i], &call->out[i]);
		free(out[i]);
	}
	for (int i = 0; i < call->n_in; i++)
		free(in[i]);
	return s;
}

static size_t scratch(const backend *b, op_id id, const op_call *call)
{
	const backend *inner = ((const bf16_backend *)b)->inner;
	op_call wide = f32_call(call);
	return inner->scratch[id] ? inner->scratch[id](inner, is_native(id) ? call : &wide) : 0;
}

/* A kernel does not know which op it runs, so each op has a kernel function of its own. */
#define OP(name, ...)                                                                                                  \
	static status run_##name(backend *b, const op_call *call)                                                      \
	{                                                                                                              \
		return run(b, OP_##name, call);                                                                        \
	}                                                                                                              \
	static size_t scratch_##name(const backend *b, const op_call *call)                                            \
	{                                                                                                              \
		return scratch(b, OP_##name, call);                                                                    \
	}
#include "engine/tensor/ops.def"
#undef OP

static void close_both(backend *b)
{
	backend_close(((bf16_backend *)b)->inner);
	free(b);
}

backend *bf16_backend_new(backend *inner)
{
	bf16_backend *w = calloc(1, sizeof *w);
	if (!w || !inner->host_memory)
		abort();
	w->inner = inner;
	w->base.name = "bf16";
	snprintf(w->base.device, sizeof w->base.device, "bf16 around %.80s", inner->device);
#define OP(name, ...)                                                                                                  \
	w->base.kernel[OP_##name] = run_##name;                                                                        \
	w->base.scratch[OP_##name] = scratch_##name;
#include "engine/tensor/ops.def"
#undef OP
	host_init(&w->base);
	w->base.bf16 = true;
	w->base.close = close_both;
	return &w->base;
}
