#include <math.h>

#include "engine/model/mixers/mixer.h"
#include "engine/model/mixers/token_shift.h"

#define STATE "layers.%d.pooled"
#define EPSILON 1e-6 /* for the norm of a head */

enum { SHIFT_VALUES, SHIFT_SCORES, SHIFT_GATE, SHIFT_COUNT };

static void forgetting_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const forgetting_options *o = options;
	const int64_t d = o->hidden;
	const float std = (float)(1 / sqrt((double)d));
	parameter_list_add_matrix(list, std, d, d, false, "%sWv", prefix);
	parameter_list_add_matrix(list, 0, d, d, false, "%sWo", prefix);
	parameter_list_add_matrix(list, 0, o->heads, d, false, "%sWa", prefix);
	if (o->forget == FORGET_DATA)
		parameter_list_add_matrix(list, 0, o->heads, d, false, "%sWf", prefix);
	if (o->forget != FORGET_NONE) {
		parameter_list_add(list, INIT_VALUES, 0, SHAPE1(o->heads), "%s%s", prefix,
		                   o->forget == FORGET_DATA ? "beta" : "theta");
		parameter_list_values(list, o->rate);
	}
	if (o->shift)
		token_shift_parameters(list, SHIFT_COUNT, d, prefix);
	if (o->gate)
		parameter_list_add_matrix(list, std, d, d, false, "%sWg", prefix);
	if (o->norm)
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(d), "%sgain", prefix);
}

static void forgetting_states(const void *options, int layer, state_list *list)
{
	const forgetting_options *o = options;
	state_list_add(list, STATE_RECURRENT, forgetting_state_floats(o->hidden, o->heads), STATE, layer);
	state_list_set_sums(list, o->heads);
	if (o->shift)
		token_shift_states(list, layer, TOKEN_SHIFT_STATE, o->hidden);
}

static value forgetting_f32(const builder *b, value x)
{
	return b->spec->bf16 ? op_cast(b->g, x, DTYPE_F32) : x;
}

/* The log of what a step keeps of the state: [B, N, H], or [H] for a constant rate. */
static value forgetting_rate(const builder *b, const forgetting_options *o, const char *prefix, value x)
{
	if (o->forget == FORGET_NONE)
		return VALUE_NONE;
	const value logit = o->forget == FORGET_DATA
	                        ? forgetting_f32(b, op_linear(b->g, x, builder_parameter(b, "%sWf", prefix),
	                                                      builder_parameter(b, "%sbeta", prefix), 1))
	                        : op_scale(b->g, builder_parameter(b, "%stheta", prefix), -1);
	return op_activation(b->g, logit, ACTIVATION_LOG_SIGMOID);
}

static pooled_values forgetting_pool(builder *b, int layer, value v, value a, value f)
{
	if (b->pool == VALUE_NONE)
		return op_forgetting_attention(b->g, v, a, f, VALUE_NONE, b->mask);
	const stream_values at = {b->pool, b->slot, b->position, b->length, b->mask, b->start};
	return op_forgetting_stream(b->g, v, a, f, VALUE_NONE, at, builder_state(b, STATE, layer));
}

/* Output what the explainer reads, with a rate for each token. */
static void forgetting_log(const builder *b, const forgetting_options *o, int layer, value a, value f, value l)
{
	if (!b->spec->explain.log)
		return;
	if (o->forget == FORGET_NONE)
		f = op_fill(b->g, SHAPE1(shape_last(graph_value(b->g, a)->shape)), 0);
	if (o->forget != FORGET_DATA)
		f = builder_repeat_row(b, f, a);
	builder_log(b, b->place, layer, "score", a);
	builder_log(b, b->place, layer, "forget", f);
	builder_log(b, b->place, layer, "log_normalizer", l);
}

static value forgetting_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const forgetting_options *o = options;
	value from[SHIFT_COUNT] = {x, x, x};
	if (o->shift)
		token_shift(b, layer, prefix, x, SHIFT_COUNT, from);
	const value v = builder_product(b, from[SHIFT_VALUES], "%sWv", prefix);
	const value a = forgetting_f32(b, builder_product(b, from[SHIFT_SCORES], "%sWa", prefix));
	const value f = forgetting_rate(b, o, prefix, from[SHIFT_SCORES]);
	const pooled_values pooled = forgetting_pool(b, layer, v, a, f);
	forgetting_log(b, o, layer, a, f, pooled.log_normalizer);
	value y = pooled.pooled;
	if (b->spec->out.activations)
		builder_output(b, y, "layers.%d.pooled", layer);
	if (o->norm)
		y = builder_rms(b, y, o->heads, EPSILON, "%sgain", prefix);
	if (o->gate)
		y = op_mul(b->g, y,
		           op_activation(b->g, builder_product(b, from[SHIFT_GATE], "%sWg", prefix), ACTIVATION_SILU));
	return builder_product(b, y, "%sWo", prefix);
}

const mixer mixer_forgetting = {
    .name = "forgetting",
    .parameters = forgetting_parameters,
    .states = forgetting_states,
    .forward = forgetting_forward,
    .explainer = &forgetting_explainer,
    .any_pieces = true,
};
