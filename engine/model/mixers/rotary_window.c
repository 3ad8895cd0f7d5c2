#include <math.h>

#include "engine/model/mixers/mixer.h"
#include "engine/model/mixers/token_shift.h"

#define STATE "layers.%d.cache"

enum { SHIFT_QUERY, SHIFT_KEY, SHIFT_VALUE, SHIFT_GATE, SHIFT_COUNT };

static void rotary_window_parameters(const void *options, const char *prefix, parameter_list *list)
{
	static const char *const square[] = {"Wq", "Wk", "Wv", "Wg"};
	const rotary_window_options *o = options;
	const int64_t d = o->attention.hidden;
	for (int i = 0; i < (o->gate ? 4 : 3); i++)
		parameter_list_add_matrix(list, (float)(1 / sqrt((double)d)), d, d, false, "%s%s", prefix, square[i]);
	parameter_list_add_matrix(list, 0, d, d, false, "%sWo", prefix);
	if (o->shift)
		token_shift_parameters(list, o->gate ? SHIFT_COUNT : SHIFT_GATE, d, prefix);
}

static void rotary_window_states(const void *options, int layer, state_list *list)
{
	const rotary_window_options *o = options;
	const int64_t d = o->attention.hidden, window = o->attention.reach.capacity;
	state_list_add(list, STATE_CACHE, softmax_state_floats(d, d, window), STATE, layer);
	state_list_set_ring(list, window, d, d, 1);
	if (o->shift)
		token_shift_states(list, layer, TOKEN_SHIFT_STATE, d);
}

static value rotary_window_attend(builder *b, const rotary_window_options *o, int layer, value q, value k, value v)
{
	const attention_options *a = &o->attention;
	if (b->pool == VALUE_NONE) {
		softmax_params params = {
		    .heads = a->heads, .window = a->reach.capacity, .scale = (float)a->scoring.scale};
		return op_softmax_attention(b->g, q, k, v, b->mask, VALUE_NONE, VALUE_NONE, params);
	}
	softmax_stream_params params = {.heads = a->heads,
	                                .window = a->reach.capacity,
	                                .offset = builder_state(b, STATE, layer),
	                                .scale = (float)a->scoring.scale};
	return op_softmax_stream(b->g, q, k, v, b->pool, b->slot, b->position, b->length, b->mask, b->start, VALUE_NONE,
	                         VALUE_NONE, VALUE_NONE, params);
}

static value rotary_window_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const rotary_window_options *o = options;
	const attention_options *a = &o->attention;
	const rotary_params turn = {.heads = a->heads, .width = a->key_width, .base = (float)o->base};
	value from[SHIFT_COUNT] = {x, x, x, x};
	if (o->shift)
		token_shift(b, layer, prefix, x, o->gate ? SHIFT_COUNT : SHIFT_GATE, from);
	const value positions = b->pool == VALUE_NONE ? VALUE_NONE : builder_positions(b);
	const value q = op_rotary(b->g, builder_product(b, from[SHIFT_QUERY], "%sWq", prefix), positions, turn);
	const value k = op_rotary(b->g, builder_product(b, from[SHIFT_KEY], "%sWk", prefix), positions, turn);
	builder_log(b, b->place, layer, "query", q);
	builder_log(b, b->place, layer, "key", k);
	value y = rotary_window_attend(b, o, layer, q, k, builder_product(b, from[SHIFT_VALUE], "%sWv", prefix));
	if (o->gate)
		y = op_mul(b->g, y,
		           op_activation(b->g, builder_product(b, from[SHIFT_GATE], "%sWg", prefix), ACTIVATION_SILU));
	return builder_product(b, y, "%sWo", prefix);
}

const mixer mixer_rotary_window = {
    .name = "rotary_window",
    .parameters = rotary_window_parameters,
    .states = rotary_window_states,
    .forward = rotary_window_forward,
    .explainer = &attention_explainer,
};
