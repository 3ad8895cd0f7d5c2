#include "engine/model/feed.h"

#include <stdlib.h>

#include "engine/base/memory.h"

status feed_write(plan *p, port_role role, const void *data)
{
	value v = port_find(plan_graph(p), role);
	return v == VALUE_NONE ? STATUS_OK : plan_write(p, v, data);
}

/* Write data[i] = first + step · (i mod period); as position rows, clamped or wrapped, if `d` is given. */
static status write_series(plan *p, port_role role, int64_t first, int64_t step, int64_t period, const model_dims *d,
                           position_policy policy)
{
	value v = port_find(plan_graph(p), role);
	if (v == VALUE_NONE)
		return STATUS_OK;
	int64_t count = shape_count(graph_value(plan_graph(p), v)->shape);
	int32_t few[64], *many = count > 64 ? memory_new((size_t)count, sizeof *many) : NULL;
	int32_t *data = count > 64 ? many : few;
	if (!data)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < count; i++) {
		int64_t x = first + step * (i % period);
		data[i] = d ? position_row(d, policy, x) : (int32_t)x;
	}
	status s = plan_write(p, v, data);
	free(many);
	return s;
}

static int64_t tokens_of(const plan *p)
{
	return shape_last(graph_value(plan_graph(p), port_find(plan_graph(p), PORT_TOKENS))->shape);
}

status feed_positions(plan *p, const model_dims *d, position_policy policy, int64_t first)
{
	value source = port_find(plan_graph(p), PORT_SOURCE_POSITIONS);
	if (source != VALUE_NONE)
		TRY(write_series(p, PORT_SOURCE_POSITIONS, 0, 1, shape_last(graph_value(plan_graph(p), source)->shape),
		                 NULL, POSITION_ERROR));
	if (port_find(plan_graph(p), PORT_TOKENS) == VALUE_NONE)
		return STATUS_OK;
	return write_series(p, PORT_POSITIONS, first, 1, tokens_of(p), d, policy);
}

status feed_last(plan *p, const model_dims *d, const int32_t *ids, const int32_t *mask)
{
	const graph *g = plan_graph(p);
	value v = port_find(g, PORT_LAST);
	int64_t n = tokens_of(p);
	if (v == VALUE_NONE)
		return STATUS_OK;
	int64_t batch = shape_count(graph_value(g, v)->shape);
	int32_t *last = memory_new((size_t)batch, sizeof *last);
	if (!last)
		return STATUS_NOMEM;
	for (int64_t b = 0; b < batch; b++) {
		int64_t i = n - 1;
		while (i > 0 && mask && !mask[b * n + i])
			i--;
		const int64_t row = d->form->row(d, ids + b * n, i + 1);
		last[b] = (int32_t)(b * n + (row < 0 ? i : row));
	}
	status s = plan_write(p, v, last);
	free(last);
	return s;
}

status feed_step(plan *p, int64_t first, int64_t count)
{
	TRY(write_series(p, PORT_SLOT, 0, 1, INT64_MAX, NULL, POSITION_ERROR));
	TRY(write_series(p, PORT_POSITION, first, 0, 1, NULL, POSITION_ERROR));
	TRY(write_series(p, PORT_STARTED, first > 0 ? first : 1, 0, 1, NULL, POSITION_ERROR));
	TRY(write_series(p, PORT_LENGTH, count, 0, 1, NULL, POSITION_ERROR));
	return write_series(p, PORT_LAST, count - 1, tokens_of(p), INT64_MAX, NULL, POSITION_ERROR);
}

/* Rows that are carried into each row of a batch. */
static int64_t memory_of(const plan *p)
{
	const value v = port_find(plan_graph(p), PORT_MEMORY);
	return v == VALUE_NONE ? 0 : graph_value(plan_graph(p), v)->shape.dim[1];
}

/* Rows before `position` tokens in blocks of `length`, each with `front` rows of memory tokens. */
static int64_t rows_before(int64_t position, int64_t length, int64_t front)
{
	return position + (position + length - 1) / length * front;
}

/* The last carried columns hold a row for each token read before and, before each block, the rows of its memory tokens.
 * Their columns are between the carried rows and the tokens. */
status feed_carried(plan *p, const int32_t *position)
{
	value v = port_find(plan_graph(p), PORT_MEMORY_MASK);
	TRY(feed_write(p, PORT_POSITION, position));
	TRY(write_series(p, PORT_SLOT, 0, 1, INT64_MAX, NULL, POSITION_ERROR));
	TRY(write_series(p, PORT_LENGTH, tokens_of(p), 0, 1, NULL, POSITION_ERROR));
	if (v == VALUE_NONE)
		return STATUS_OK;
	const shape s = graph_value(plan_graph(p), v)->shape;
	const int64_t tokens = tokens_of(p), front = s.dim[1] - tokens - memory_of(p), memory = memory_of(p);
	int32_t *mask = memory_new((size_t)shape_count(s), sizeof *mask);
	if (!mask)
		return STATUS_NOMEM;
	for (int64_t i = 0; i < shape_count(s); i++)
		mask[i] = i % s.dim[1] >= memory - rows_before(position[i / s.dim[1]], tokens, front);
	status result = plan_write(p, v, mask);
	free(mask);
	return result;
}

status feed_baseline(plan *p, const float *baseline)
{
	const int64_t width = port_width(plan_graph(p), PORT_BASELINE);
	if (baseline || width == 0)
		return feed_write(p, PORT_BASELINE, baseline);
	float *zeros = memory_new((size_t)width, sizeof *zeros);
	const status s = zeros ? feed_write(p, PORT_BASELINE, zeros) : STATUS_NOMEM;
	free(zeros);
	return s;
}
