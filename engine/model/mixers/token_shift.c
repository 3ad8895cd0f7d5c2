#include "engine/model/mixers/token_shift.h"

#define STATE "layers.%d.before"

void token_shift_parameters(parameter_list *list, int64_t mixtures, int64_t d, const char *prefix)
{
	parameter_list_add(list, INIT_CONSTANT, 0.5f, SHAPE2(mixtures, d), "%smu", prefix);
}

void token_shift_states(state_list *list, int layer, int64_t d)
{
	state_list_add(list, STATE_RECURRENT, shift_state_floats(d, 1), STATE, layer);
}

static value rows_before(builder *b, int layer, value n)
{
	if (b->pool == VALUE_NONE)
		return op_shift_rows(b->g, n, b->mask, (shift_params){.low = 1, .high = 1});
	shift_stream_params params = {.low = 1, .high = 1, .offset = builder_state(b, STATE, layer)};
	return op_shift_stream(b->g, n, b->pool, b->slot, b->position, b->length, b->mask, b->start, VALUE_NONE, params);
}

void token_shift(builder *b, int layer, const char *prefix, value n, int mixtures, value *out)
{
	const value stored = builder_parameter(b, "%smu", prefix), before = rows_before(b, layer, n);
	const value mu = b->spec->bf16 ? op_cast(b->g, stored, DTYPE_F32) : stored;
	for (int i = 0; i < mixtures; i++)
		out[i] = op_mix_columns(b->g, n, before, mu, i);
}
