#include "engine/model/mixers/token_shift.h"

#define STATE "layers.%d.%s"

void token_shift_parameters(parameter_list *list, int64_t mixtures, int64_t d, const char *prefix)
{
	parameter_list_add(list, INIT_CONSTANT, 0.5f, SHAPE1(mixtures * d), "%smu", prefix);
	parameter_list_stored(list, SHAPE2(mixtures, d));
}

void token_shift_states(state_list *list, int layer, const char *name, int64_t d)
{
	state_list_add(list, STATE_RECURRENT, shift_state_floats(d, 1), STATE, layer, name);
}

value token_shift_before(builder *b, int layer, const char *name, value n)
{
	if (b->pool == VALUE_NONE)
		return op_shift_rows(b->g, n, b->mask, (shift_params){.low = 1, .high = 1});
	shift_stream_params params = {.low = 1, .high = 1, .offset = builder_state(b, STATE, layer, name)};
	/* As the sums after it have it: an adapter's slot has zeros for the row before, and a backend may compute both
	 * in one kernel. */
	return op_shift_stream(b->g, n, b->pool, b->slot, b->started, b->length, b->mask, b->start, VALUE_NONE, params);
}

void token_shift_curve(parameter_list *list, int64_t d, parameter_curve curve, const char *prefix, const char *name)
{
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(d), "%s%s", prefix, name);
	parameter_list_curve(list, curve);
	parameter_list_stored(list, SHAPE3(1, 1, d));
}

value token_shift_towards(const builder *b, value before, value x, const char *prefix, const char *name)
{
	return op_mix_columns(b->g, before, x, builder_parameter(b, "%s%s", prefix, name), 0);
}

void token_shift(builder *b, int layer, const char *prefix, value n, int mixtures, value *out)
{
	const value mu = builder_parameter(b, "%smu", prefix);
	const value before = token_shift_before(b, layer, TOKEN_SHIFT_STATE, n);
	for (int i = 0; i < mixtures; i++)
		out[i] = op_mix_columns(b->g, n, before, mu, i);
}
