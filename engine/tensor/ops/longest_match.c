/* longest_match, longest_match_stream, and the size of its state. */
#include "engine/tensor/ops/longest_match.h"

#include <inttypes.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

value op_longest_match(graph *g, value tokens, value mask, longest_match_params params)
{
	return graph_apply_one(g, OP_longest_match, (value[]){tokens, mask}, 2, &params);
}

value op_longest_match_stream(graph *g, value tokens, value pool, value slot, value position, value length, value mask,
                              value start, longest_match_params params)
{
	return graph_apply_one(g, OP_longest_match_stream, (value[]){tokens, pool, slot, position, length, mask, start},
	                       7, &params);
}

int64_t longest_match_state_floats(int64_t window)
{
	return window;
}

/* Check the tokens and set the output, for both forms. */
static status longest_match_check_tokens(op_call *call, error *err)
{
	const longest_match_params *p = call->params;
	char text[96];
	TRY(check_type(call, 0, "tokens", DTYPE_I32, err));
	const shape s = call->in[0].shape;
	if (s.rank != 2)
		return error_set(err, STATUS_INVALID, "tokens", "tokens is %s, must be [batch, length]",
		                 shape_text(s, text, sizeof text));
	if (p->window < 2 || p->window > LONGEST_MATCH_MAX_WINDOW)
		return error_set(err, STATUS_INVALID, "window", "window is %" PRId64 ", must be from 2 to %d",
		                 p->window, LONGEST_MATCH_MAX_WINDOW);
	if (p->length < 1 || p->length >= p->window)
		return error_set(err, STATUS_INVALID, "length",
		                 "length is %" PRId64 ", must be at least 1 and below the window", p->length);
	check_output(call, 0, DTYPE_I32, s);
	return STATUS_OK;
}

status op_longest_match_check(op_call *call, error *err)
{
	TRY(longest_match_check_tokens(call, err));
	if (!check_present(call, 1))
		return STATUS_OK;
	return check_shape(call, 1, "mask", DTYPE_I32, call->in[0].shape, "one for each token", err);
}

status op_longest_match_stream_check(op_call *call, error *err)
{
	const longest_match_params *p = call->params;
	TRY(longest_match_check_tokens(call, err));
	TRY(check_type(call, 1, "pool", DTYPE_F32, err));
	const shape pool = call->in[1].shape;
	if (pool.rank != 2 || p->offset < 0 || p->offset > pool.dim[1] || p->window > pool.dim[1] - p->offset)
		return error_set(err, STATUS_INVALID, "pool",
		                 "a slot of the pool has no room for %" PRId64 " tokens at %" PRId64, p->window,
		                 p->offset);
	return check_sequences(call, 2, err);
}
