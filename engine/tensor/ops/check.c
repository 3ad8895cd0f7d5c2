#include "engine/tensor/ops/check.h"

#include <inttypes.h>

#include "engine/base/memory.h"
#include "engine/tensor/panel.h"

bool check_present(const op_call *call, int i)
{
	return i < call->n_in && call->in[i].data;
}

status check_type(const op_call *call, int i, const char *name, dtype type, error *err)
{
	if (!check_present(call, i))
		return error_set(err, STATUS_INVALID, name, "%s is missing", name);
	if (call->in[i].type != type)
		return error_set(err, STATUS_INVALID, name, "%s is %s, must be %s", name, dtype_name(call->in[i].type),
		                 dtype_name(type));
	return STATUS_OK;
}

status check_real(const op_call *call, int i, const char *name, error *err)
{
	if (check_present(call, i) && dtype_is_real(call->in[i].type))
		return STATUS_OK;
	if (!check_present(call, i))
		return error_set(err, STATUS_INVALID, name, "%s is missing", name);
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be f32 or bf16", name,
	                 dtype_name(call->in[i].type));
}

status check_like(const op_call *call, int i, const char *name, int j, const char *other, error *err)
{
	TRY(check_type(call, i, name, call->in[j].type, err));
	shape a = call->in[i].shape, b = call->in[j].shape;
	if (shape_rows(a) == shape_rows(b) && shape_last(a) == shape_last(b))
		return STATUS_OK;
	char mine[96], theirs[96];
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be %s like %s", name,
	                 shape_text(a, mine, sizeof mine), shape_text(b, theirs, sizeof theirs), other);
}

status check_shape(const op_call *call, int i, const char *name, dtype type, shape s, const char *reason, error *err)
{
	TRY(check_type(call, i, name, type, err));
	if (shape_equal(call->in[i].shape, s))
		return STATUS_OK;
	char mine[96], expected[96];
	return error_set(err, STATUS_INVALID, name, "%s is %s, must be %s (%s)", name,
	                 shape_text(call->in[i].shape, mine, sizeof mine), shape_text(s, expected, sizeof expected),
	                 reason);
}

status check_split(const op_call *call, const char *name, int64_t heads, error *err)
{
	const shape s = call->in[0].shape;
	char text[96];
	if (s.rank != 3)
		return error_set(err, STATUS_INVALID, name, "%s is %s, must be [batch, length, channels]", name,
		                 shape_text(s, text, sizeof text));
	if (heads < 1 || s.dim[2] < 1 || s.dim[2] % heads != 0)
		return error_set(err, STATUS_INVALID, "heads",
		                 "%" PRId64 " channels cannot be split into %" PRId64 " heads", s.dim[2], heads);
	return STATUS_OK;
}

status check_count(const op_call *call, int i, const char *name, dtype type, int64_t count, const char *reason,
                   error *err)
{
	TRY(check_type(call, i, name, type, err));
	if (shape_count(call->in[i].shape) == count)
		return STATUS_OK;
	char mine[96];
	return error_set(err, STATUS_INVALID, name, "%s is %s, must have %" PRId64 " elements (%s)", name,
	                 shape_text(call->in[i].shape, mine, sizeof mine), count, reason);
}

/* The types of an activation and of the weight it meets. */
static status check_weight_type(const tensor *x, const char *x_name, const tensor *w, error *err)
{
	if (dtype_is_panel(w->type) && x->type != DTYPE_F32)
		return error_set(err, STATUS_INVALID, x_name, "%s is %s, must be f32 where the weight is packed",
		                 x_name, dtype_name(x->type));
	if (dtype_is_panel(w->type) || w->type == x->type)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "weight", "weight is %s, must be %s like %s%s", dtype_name(w->type),
	                 dtype_name(x->type), x_name, x->type == DTYPE_F32 ? ", or panels" : "");
}

status check_weight(const op_call *call, int x, const char *x_name, int weight, int bias, error *err)
{
	const int64_t inputs = shape_last(call->in[x].shape);
	if (!check_present(call, weight))
		return error_set(err, STATUS_INVALID, "weight", "weight is missing");
	const tensor *w = &call->in[weight];
	TRY(check_weight_type(&call->in[x], x_name, w, err));
	char text[96];
	if (w->shape.rank != 2 || w->shape.dim[1] != inputs)
		return error_set(err, STATUS_INVALID, "weight",
		                 "weight is %s, must have 2 dimensions and %" PRId64 " inputs",
		                 shape_text(w->shape, text, sizeof text), inputs);
	if (w->type == DTYPE_PANEL_INT8 && inputs > PANEL_INT8_INPUTS)
		return error_set(err, STATUS_INVALID, "weight",
		                 "weight has %" PRId64 " inputs, in int8 at most %d can be summed", inputs,
		                 PANEL_INT8_INPUTS);
	if (!check_present(call, bias))
		return STATUS_OK;
	return check_shape(call, bias, "bias", DTYPE_F32, SHAPE1(w->shape.dim[0]), "one for each output", err);
}

status check_start(const op_call *call, int i, int64_t *count, error *err)
{
	const shape x = call->in[0].shape;
	*count = x.dim[0];
	if (!check_present(call, i))
		return STATUS_OK;
	TRY(check_type(call, i, "start", DTYPE_I32, err));
	const shape s = call->in[i].shape;
	char text[96];
	*count = s.dim[0];
	if (s.rank != 1 || x.dim[0] != 1 || (*count == 0 && x.dim[1] > 0))
		return error_set(err, STATUS_INVALID, "start",
		                 "start is %s, must be one for each sequence of a batch of 1",
		                 shape_text(s, text, sizeof text));
	return STATUS_OK;
}

status check_segment(int64_t segment, int64_t window, error *err)
{
	if (segment >= 0 && segment <= window)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "segment", "segment is %lld, must be from 0 to the window's %lld",
	                 (long long)segment, (long long)window);
}

status check_sequences(const op_call *call, int i, error *err)
{
	static const char *const names[] = {"slot", "position", "length"};
	const shape x = call->in[0].shape;
	const int mask = i + 3;
	int64_t count;
	TRY(check_start(call, i + 4, &count, err));
	for (int k = 0; k < 3; k++)
		TRY(check_shape(call, i + k, names[k], DTYPE_I32, SHAPE1(count), "one for each sequence", err));
	if (!check_present(call, mask))
		return STATUS_OK;
	return check_shape(call, mask, "mask", DTYPE_I32, SHAPE2(x.dim[0], x.dim[1]), "one for each token", err);
}

void check_output(op_call *call, int o, dtype type, shape s)
{
	call->out[o].type = type;
	call->out[o].shape = s;
}

void check_by_rows(op_call *call, unsigned inputs, unsigned outputs)
{
	call->row_inputs = inputs;
	call->row_outputs = outputs;
}

status check_stored(const op_call *call, int pool, slot_rows stored, int64_t width, int input, const char *name,
                    error *err)
{
	const int64_t room = call->in[pool].shape.dim[1];
	int64_t floats;
	if (stored.count == 0)
		return STATUS_OK;
	if (check_present(call, input))
		return error_set(err, STATUS_INVALID, name,
		                 "%s is given, and the slots hold %" PRId64 " rows in its place", name, stored.count);
	if (stored.count > 0 && stored.count <= INT32_MAX && memory_product(stored.count, width, &floats) &&
	    stored.offset >= 0 && stored.offset <= room && floats <= room - stored.offset)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, "stored",
	                 "a slot of the pool has no room at %" PRId64 " for %" PRId64 " rows of %" PRId64 " floats",
	                 stored.offset, stored.count, width);
}
