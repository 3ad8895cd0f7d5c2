/* gated.c - attentions of other architectures between the token shift and the gate of additive2. */
#include <math.h>
#include <stdio.h>

#include "engine/model/mixers/attend.h"
#include "engine/model/mixers/mixer.h"
#include "engine/model/mixers/token_shift.h"

#define CACHE "layers.%d.cache"

enum { PREFIX_BYTES = 128 };
enum { QUERY, KEY, VALUE, GATE, ROWS };

static int mixtures_of(const gated_options *o)
{
	return o->gate ? ROWS : GATE;
}

/* --- the shift, the products and the gate ------------------------------------------------------------------ */

static void gated_parameters(const void *options, const char *prefix, parameter_list *list)
{
	static const char *const square[] = {"Wq", "Wk", "Wv", "Wg"};
	const gated_options *o = options;
	const int64_t d = o->hidden;
	for (int i = 0; i < mixtures_of(o); i++)
		parameter_list_add_matrix(list, (float)(1 / sqrt((double)d)), d, d, false, "%s%s", prefix, square[i]);
	parameter_list_add_matrix(list, 0, d, d, false, "%sWo", prefix);
	if (o->shift)
		token_shift_parameters(list, mixtures_of(o), d, prefix);
}

static void gated_states(const gated_options *o, int layer, state_list *list)
{
	if (o->shift)
		token_shift_states(list, layer, TOKEN_SHIFT_STATE, o->hidden);
}

/* Append queries, keys and values of x; `from`: the rows that they read, and the one of the gate. */
static void gated_products(builder *b, const gated_options *o, int layer, const char *prefix, value x, value from[ROWS],
                           value out[GATE])
{
	static const char *const names[] = {"%sWq", "%sWk", "%sWv"};
	for (int i = 0; i < ROWS; i++)
		from[i] = x;
	if (o->shift)
		token_shift(b, layer, prefix, x, mixtures_of(o), from);
	for (int i = 0; i < GATE; i++)
		out[i] = builder_product(b, from[i], names[i], prefix);
}

static value gated_output(builder *b, const gated_options *o, const char *prefix, value y, value n)
{
	if (o->gate)
		y = op_mul(b->g, y, op_activation(b->g, builder_product(b, n, "%sWg", prefix), ACTIVATION_SILU));
	return builder_product(b, y, "%sWo", prefix);
}

/* --- softmax attention over a window ----------------------------------------------------------------------- */

static void softmax_states(const void *options, int layer, state_list *list)
{
	const gated_options *o = options;
	const int64_t window = o->of.softmax.reach.capacity;
	state_list_add(list, STATE_CACHE, softmax_state_floats(o->hidden, o->hidden, window), CACHE, layer);
	state_list_set_ring(list, window, o->hidden, o->hidden, 1);
	gated_states(o, layer, list);
}

static value softmax_attend(builder *b, const attention_options *a, int layer, value q, value k, value v)
{
	if (b->pool == VALUE_NONE) {
		softmax_params params = {
		    .heads = a->heads, .window = a->reach.capacity, .scale = (float)a->scoring.scale};
		return op_softmax_attention(b->g, q, k, v, b->mask, VALUE_NONE, VALUE_NONE, params);
	}
	softmax_stream_params params = {.heads = a->heads,
	                                .window = a->reach.capacity,
	                                .offset = builder_state(b, CACHE, layer),
	                                .scale = (float)a->scoring.scale};
	return op_softmax_stream(b->g, q, k, v, b->pool, b->slot, b->position, b->length, b->mask, b->start, VALUE_NONE,
	                         VALUE_NONE, VALUE_NONE, params);
}

static value softmax_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const gated_options *o = options;
	const attention_options *a = &o->of.softmax;
	const rotary_params turn = {.heads = a->heads, .width = a->key_width, .base = (float)o->base};
	const value positions = b->pool == VALUE_NONE ? VALUE_NONE : builder_positions(b);
	value from[ROWS], p[GATE];
	gated_products(b, o, layer, prefix, x, from, p);
	const value q = op_rotary(b->g, p[QUERY], positions, turn), k = op_rotary(b->g, p[KEY], positions, turn);
	builder_log(b, b->place, layer, "query", q);
	builder_log(b, b->place, layer, "key", k);
	return gated_output(b, o, prefix, softmax_attend(b, a, layer, q, k, p[VALUE]), from[GATE]);
}

const mixer mixer_gated_softmax = {
    .name = "gated_softmax",
    .parameters = gated_parameters,
    .states = softmax_states,
    .forward = softmax_forward,
    .explainer = &attention_explainer,
};

/* --- linear attention --------------------------------------------------------------------------------------- */

static void gated_linear_states(const void *options, int layer, state_list *list)
{
	const gated_options *o = options;
	linear_states(&o->of.linear, layer, list);
	gated_states(o, layer, list);
}

static value gated_linear_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const gated_options *o = options;
	value from[ROWS], p[GATE];
	gated_products(b, o, layer, prefix, x, from, p);
	const value y = linear_attend(b, &o->of.linear, layer, p[QUERY], p[KEY], p[VALUE]);
	return gated_output(b, o, prefix, y, from[GATE]);
}

const mixer mixer_gated_linear = {
    .name = "gated_linear",
    .parameters = gated_parameters,
    .states = gated_linear_states,
    .forward = gated_linear_forward,
    .explainer = &linear_explainer,
};

/* --- two rounds of additive attention ----------------------------------------------------------------------- */

static void rounds_prefix(char out[PREFIX_BYTES], const char *prefix)
{
	snprintf(out, PREFIX_BYTES, "%srounds.", prefix);
}

static void gated_additive_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const gated_options *o = options;
	char rounds[PREFIX_BYTES];
	rounds_prefix(rounds, prefix);
	gated_parameters(options, prefix, list);
	additive_rounds_parameters(&o->of.additive, rounds, list);
	builder_layernorm_parameters(list, o->hidden, "%smid_norm", rounds);
}

static void gated_additive_states(const void *options, int layer, state_list *list)
{
	const gated_options *o = options;
	additive_rounds_states(&o->of.additive, layer, list);
	gated_states(o, layer, list);
}

static value gated_additive_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const gated_options *o = options;
	char rounds[PREFIX_BYTES];
	value from[ROWS], p[GATE];
	rounds_prefix(rounds, prefix);
	gated_products(b, o, layer, prefix, x, from, p);
	const value y = additive_rounds(b, &o->of.additive, layer, rounds, x, p[QUERY], p[KEY], p[VALUE]);
	return gated_output(b, o, prefix, y, from[GATE]);
}

const mixer mixer_gated_additive = {
    .name = "gated_additive",
    .parameters = gated_additive_parameters,
    .states = gated_additive_states,
    .forward = gated_additive_forward,
    .explainer = &additive_explainer,
    .any_pieces = true,
};
