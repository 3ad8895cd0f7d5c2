/* shift_rows, shift_stream, and the size of its state. */
#include "engine/tensor/graph_internal.h"
#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

#include <inttypes.h>

#include "engine/base/memory.h"

static value shift(graph *g, value x, value mask, value like, shift_params params)
{
	return graph_apply_one(g, OP_shift_rows, (value[]){x, mask, like}, 3, &params);
}

value op_shift_rows(graph *g, value x, value mask, shift_params params)
{
	return shift(g, x, mask, VALUE_NONE, params);
}

static status check_segments(int64_t low, int64_t high, int64_t channels, error *err)
{
	if (low > high || high < 0 || low < -INT32_MAX || high > INT32_MAX || high - low + 1 > channels)
		return error_set(err, STATUS_INVALID, "high",
		                 "shifts from %" PRId64 " to %" PRId64
		                 " must ascend to 0 or more, with a channel each of %" PRId64,
		                 low, high, channels);
	return STATUS_OK;
}

status op_shift_rows_check(op_call *call, error *err)
{
	const shift_params *p = call->params;
	TRY(check_real(call, 0, "x", err));
	if (check_present(call, 2))
		TRY(check_like(call, 2, "like", 0, "x", err));
	const shape x = call->in[0].shape, s = check_present(call, 2) ? call->in[2].shape : x;
	char text[96];
	if (s.rank != 3)
		return error_set(err, STATUS_INVALID, "x", "x is %s, must be [batch, length, channels]",
		                 shape_text(s, text, sizeof text));
	TRY(check_segments(p->low, p->high, s.dim[2], err));
	if (check_present(call, 1))
		TRY(check_shape(call, 1, "mask", DTYPE_I32, SHAPE2(s.dim[0], s.dim[1]), "one for each row", err));
	check_output(call, 0, call->in[0].type, s);
	return STATUS_OK;
}

status op_shift_rows_backward(graph *g, const op_node *node)
{
	shift_params params = *(const shift_params *)node->params;
	params.transposed = !params.transposed;
	graph_accumulate(g, node->in[0],
	                 shift(g, graph_output_gradient(g, node, 0), node->in[1], node->out[0], params));
	return STATUS_OK;
}

int64_t shift_state_floats(int64_t d, int64_t high)
{
	return high * d;
}

value op_shift_stream(graph *g, value x, value pool, value slot, value position, value length, value mask, value start,
                      value before, shift_stream_params params)
{
	value out;
	graph_apply(g, OP_shift_stream, (value[]){x, pool, slot, position, length, mask, start, before}, 8, &params,
	            &out);
	return out;
}

status op_shift_stream_check(op_call *call, error *err)
{
	const shift_stream_params *p = call->params;
	TRY(check_type(call, 0, "x", DTYPE_F32, err));
	TRY(check_type(call, 1, "pool", DTYPE_F32, err));
	const shape x = call->in[0].shape, pool = call->in[1].shape;
	char text[96];
	int64_t floats;
	if (x.rank != 3)
		return error_set(err, STATUS_INVALID, "x", "x is %s, must be [batch, length, channels]",
		                 shape_text(x, text, sizeof text));
	if (p->low < 0)
		return error_set(err, STATUS_INVALID, "low", "low is %" PRId64 ", must be at least 0", p->low);
	TRY(check_segments(p->low, p->high, x.dim[2], err));
	if (!memory_product(p->high, x.dim[2], &floats) || pool.rank != 2 || p->offset < 0 || p->offset > pool.dim[1] ||
	    floats > pool.dim[1] - p->offset)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for %" PRId64 " rows at %" PRId64, p->high, p->offset);
	TRY(check_sequences(call, 2, err));
	if (p->segment < 0 || p->segment > INT32_MAX || (p->segment && (check_present(call, 7) || p->stored.count)))
		return error_set(err, STATUS_INVALID, "segment",
		                 "segment is %" PRId64 ", must be from 0 to %d, and 0 with rows before", p->segment,
		                 INT32_MAX);
	if (check_present(call, 7)) {
		TRY(check_type(call, 7, "before", DTYPE_F32, err));
		if (shape_last(call->in[7].shape) != x.dim[2])
			return error_set(err, STATUS_INVALID, "before", "before is %s, must have %" PRId64 " channels",
			                 shape_text(call->in[7].shape, text, sizeof text), x.dim[2]);
	}
	TRY(check_stored(call, 1, p->stored, x.dim[2], 7, "before", err));
	check_output(call, 0, DTYPE_F32, x);
	return STATUS_OK;
}

status op_shift_stream_backward(graph *g, const op_node *node)
{
	const shift_stream_params *p = node->params;
	const value mask = node->n_in > 5 ? node->in[5] : VALUE_NONE;
	if ((node->n_in > 6 && node->in[6] != VALUE_NONE) || (node->n_in > 7 && node->in[7] != VALUE_NONE) ||
	    p->segment || p->stored.count)
		return graph_fail(g, STATUS_UNSUPPORTED, "start",
		                  "sequences of different lengths, segments and rows before have no gradient");
	graph_accumulate(g, node->in[0],
	                 shift(g, graph_output_gradient(g, node, 0), mask, node->out[0],
	                       (shift_params){.low = p->low, .high = p->high, .transposed = true}));
	return STATUS_OK;
}
