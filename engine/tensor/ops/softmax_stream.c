/* softmax_stream, and the size of its state. */
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/softmax.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

#include "engine/base/memory.h"

int64_t softmax_state_floats(int64_t d, int64_t window)
{
	return (2 * d + 1) * window;
}

status check_qkv(const op_call *call, int64_t heads, error *err)
{
	TRY(check_real(call, 0, "qkv", err));
	shape qkv = call->in[0].shape;
	char text[96];
	if (qkv.rank != 3 || qkv.dim[2] % 3 != 0)
		return error_set(err, STATUS_INVALID, "qkv", "qkv is %s, must be [batch, length, 3 * channels]",
		                 shape_text(qkv, text, sizeof text));
	if (heads < 1 || qkv.dim[2] / 3 % heads != 0)
		return error_set(err, STATUS_INVALID, "heads", "%" PRId64 " heads do not divide %" PRId64 " channels",
		                 heads, qkv.dim[2] / 3);
	return STATUS_OK;
}

value op_softmax_stream(graph *g, value qkv, value pool, value slot, value position, value length, value mask,
                        value start, softmax_stream_params params)
{
	value out;
	graph_apply(g, OP_softmax_stream, (value[]){qkv, pool, slot, position, length, mask, start}, 7, &params, &out);
	return out;
}

status op_softmax_stream_check(op_call *call, error *err)
{
	const softmax_stream_params *p = call->params;
	TRY(check_type(call, 0, "qkv", DTYPE_F32, err));
	TRY(check_qkv(call, p->heads, err));
	TRY(check_type(call, 1, "pool", DTYPE_F32, err));
	shape qkv = call->in[0].shape, pool = call->in[1].shape;
	int64_t d = qkv.dim[2] / 3, floats;
	if (p->window < 1 || p->window > INT32_MAX || !memory_product(p->window, 2 * d + 1, &floats))
		return error_set(err, STATUS_INVALID, "window", "window is %" PRId64 ", must be from 1 to %d",
		                 p->window, INT32_MAX);
	if (pool.rank != 2 || p->offset < 0 || p->offset > pool.dim[1] || floats > pool.dim[1] - p->offset)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for %" PRId64 " floats at %" PRId64, floats,
		                 p->offset);
	TRY(check_sequences(call, 2, err));
	check_output(call, 0, DTYPE_F32, SHAPE3(qkv.dim[0], qkv.dim[1], d));
	return STATUS_OK;
}
