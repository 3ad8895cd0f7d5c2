#include <math.h>

#include "engine/model/mixers/mixer.h"
#include "engine/model/mixers/token_shift.h"

#define STATE "layers.%d.pooled"

static void add_numbers(parameter_list *list, int64_t n, parameter_curve curve, const char *prefix, const char *name)
{
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s", prefix, name);
	parameter_list_curve(list, curve);
}

static void rwkv_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const rwkv_options *o = options;
	const int64_t d = o->hidden, n = o->channels;
	const double early = o->early;
	const float std = (float)(1 / sqrt((double)d));
	add_numbers(list, n, (parameter_curve){-5, 8, (double)(n > 1 ? n - 1 : 1), 0.7 + 1.3 * o->late}, prefix,
	            "time_decay");
	add_numbers(list, n, (parameter_curve){1, 0, 1, 1}, prefix, "time_first");
	token_shift_curve(list, d, (parameter_curve){0, 1, (double)d, early}, prefix, "time_mix_key");
	token_shift_curve(list, d, (parameter_curve){0.3 * o->late, 1, (double)d, early}, prefix, "time_mix_value");
	token_shift_curve(list, d, (parameter_curve){0, 1, (double)d, 0.5 * early}, prefix, "time_mix_receptance");
	parameter_list_add_matrix(list, std, n, d, false, "%skey.weight", prefix);
	parameter_list_add_matrix(list, std, n, d, false, "%svalue.weight", prefix);
	parameter_list_add_matrix(list, std, n, d, false, "%sreceptance.weight", prefix);
	parameter_list_add_matrix(list, (float)(1 / sqrt((double)n)), d, n, false, "%soutput.weight", prefix);
}

static void rwkv_states(const void *options, int layer, state_list *list)
{
	const rwkv_options *o = options;
	state_list_add(list, STATE_RECURRENT, forgetting_state_floats(o->channels, o->channels), STATE, layer);
	state_list_set_sums(list, o->channels);
	token_shift_states(list, layer, TOKEN_SHIFT_STATE, o->hidden);
}

static value rwkv_pool(builder *b, int layer, value v, value k, value f, value bonus)
{
	if (b->pool == VALUE_NONE)
		return op_forgetting_attention(b->g, v, k, f, bonus, b->mask).pooled;
	const stream_values at = {b->pool, b->slot, b->position, b->length, b->mask, b->start};
	return op_forgetting_stream(b->g, v, k, f, bonus, at, builder_state(b, STATE, layer)).pooled;
}

/* Output what the explainer reads, with a decay and a bonus for each token. */
static void rwkv_log(const builder *b, int layer, value k, value f, value bonus)
{
	if (!b->spec->explain.log)
		return;
	builder_log(b, b->place, layer, "score", k);
	builder_log(b, b->place, layer, "forget", builder_repeat_row(b, f, k));
	builder_log(b, b->place, layer, "bonus", builder_repeat_row(b, bonus, k));
}

static value rwkv_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	(void)options;
	graph *g = b->g;
	const value before = token_shift_before(b, layer, TOKEN_SHIFT_STATE, x);
	const value from_k = token_shift_towards(b, before, x, prefix, "time_mix_key");
	const value from_v = token_shift_towards(b, before, x, prefix, "time_mix_value");
	const value from_r = token_shift_towards(b, before, x, prefix, "time_mix_receptance");
	const value product = builder_product(b, from_k, "%skey.weight", prefix);
	const value k = b->spec->bf16 ? op_cast(g, product, DTYPE_F32) : product;
	const value v = builder_product(b, from_v, "%svalue.weight", prefix);
	const value decay = builder_parameter(b, "%stime_decay", prefix);
	const value f = op_scale(g, op_activation(g, decay, ACTIVATION_EXP), -1);
	const value bonus = builder_parameter(b, "%stime_first", prefix);
	const value y = rwkv_pool(b, layer, v, k, f, bonus);
	rwkv_log(b, layer, k, f, bonus);
	if (b->spec->out.activations)
		builder_output(b, y, "layers.%d.pooled", layer);
	const value receptance = builder_product(b, from_r, "%sreceptance.weight", prefix);
	return builder_product(b, op_mul(g, y, op_activation(g, receptance, ACTIVATION_SIGMOID)), "%soutput.weight",
	                       prefix);
}

const mixer mixer_rwkv = {
    .name = "rwkv",
    .parameters = rwkv_parameters,
    .states = rwkv_states,
    .forward = rwkv_forward,
    .explainer = &rwkv_explainer,
    .any_pieces = true,
};
