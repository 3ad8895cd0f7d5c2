/* t5_buckets, distances, alibi. */
#include "engine/tensor/ops/position_bias.h"

#include <inttypes.h>

#include "engine/tensor/ops.h"
#include "engine/tensor/ops/check.h"
#include "engine/tensor/ops/table.h"

static status check_distances(int64_t first, int64_t count, error *err)
{
	if (count < 0 || count > INT32_MAX)
		return error_set(err, STATUS_INVALID, "count", "count is %" PRId64 ", must be from 0 to %d", count,
		                 INT32_MAX);
	if (first < -(int64_t)INT32_MAX || first > INT32_MAX)
		return error_set(err, STATUS_INVALID, "first", "first is %" PRId64 ", must be from -%d to %d", first,
		                 INT32_MAX, INT32_MAX);
	return STATUS_OK;
}

value op_t5_buckets(graph *g, t5_buckets_params params)
{
	return graph_apply_one(g, OP_t5_buckets, NULL, 0, &params);
}

status op_t5_buckets_check(op_call *call, error *err)
{
	const t5_buckets_params *p = call->params;
	const int64_t least = p->bidirectional ? 4 : 2;
	TRY(check_distances(p->first, p->count, err));
	if (p->buckets < least || p->buckets > INT32_MAX || (p->bidirectional && p->buckets % 2 != 0))
		return error_set(err, STATUS_INVALID, "buckets", "buckets is %" PRId64 ", must be%s at least %" PRId64,
		                 p->buckets, p->bidirectional ? " even and" : "", least);
	const int64_t exact = p->buckets / (p->bidirectional ? 4 : 2);
	if (p->max_distance <= exact || p->max_distance > INT32_MAX)
		return error_set(err, STATUS_INVALID, "max_distance",
		                 "max_distance is %" PRId64 ", must be from %" PRId64 " to %d", p->max_distance,
		                 exact + 1, INT32_MAX);
	check_output(call, 0, DTYPE_I32, SHAPE1(p->count));
	return STATUS_OK;
}

value op_distances(graph *g, distances_params params)
{
	return graph_apply_one(g, OP_distances, NULL, 0, &params);
}

status op_distances_check(op_call *call, error *err)
{
	const distances_params *p = call->params;
	TRY(check_distances(p->first, p->count, err));
	check_output(call, 0, DTYPE_F32, SHAPE2(p->count, 1));
	return STATUS_OK;
}

value op_alibi(graph *g, value log_slopes, alibi_params params)
{
	return graph_apply_one(g, OP_alibi, &log_slopes, 1, &params);
}

status op_alibi_check(op_call *call, error *err)
{
	const alibi_params *p = call->params;
	TRY(check_distances(p->first, p->count, err));
	if (p->heads < 1)
		return error_set(err, STATUS_INVALID, "heads", "heads is %" PRId64 ", must be at least 1", p->heads);
	if (p->alibi_heads < 0 || p->alibi_heads > p->heads)
		return error_set(err, STATUS_INVALID, "alibi_heads",
		                 "alibi_heads is %" PRId64 ", must be from 0 to %" PRId64 " heads", p->alibi_heads,
		                 p->heads);
	if (check_present(call, 0))
		TRY(check_shape(call, 0, "log_slopes", DTYPE_F32, SHAPE1(p->heads), "one for each head", err));
	check_output(call, 0, DTYPE_F32, SHAPE2(p->count, p->heads));
	return STATUS_OK;
}

/* d(-e^s |d|)/ds is the bias itself. */
status op_alibi_backward(graph *g, const op_node *node)
{
	const value dy = graph_output_gradient(g, node, 0);
	if (node->n_in > 0 && graph_needs_gradient(g, node->in[0]))
		graph_accumulate(g, node->in[0], op_sum_rows(g, op_mul(g, dy, node->out[0]), 1));
	return STATUS_OK;
}
