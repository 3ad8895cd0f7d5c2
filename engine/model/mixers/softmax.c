#include "engine/model/mixers/mixer.h"

static void softmax_linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, const char *prefix,
                                      const char *name)
{
	parameter_list_add_matrix(list, (float)std, n, k, true, "%s%s.weight", prefix, name);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s.bias", prefix, name);
}

static void softmax_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const softmax_options *o = options;
	softmax_linear_parameters(list, o->std, 3 * o->hidden, o->hidden, prefix, "c_attn");
	softmax_linear_parameters(list, o->residual_std, o->hidden, o->hidden, prefix, "c_proj");
}

static void softmax_states(const void *options, int layer, state_list *list)
{
	const softmax_options *o = options;
	state_list_add(list, STATE_CACHE, softmax_state_floats(o->hidden, o->hidden, o->window), "layers.%d.cache",
	               layer);
	state_list_set_ring(list, o->window, o->hidden, o->hidden, 1);
}

static value softmax_attend(builder *b, const softmax_options *o, int layer, value qkv)
{
	uint32_t site = builder_site(b);
	if (b->spec->explain.log)
		builder_output(b, qkv, "layers.%d.qkv", layer);
	if (forward_recurrent(b->spec)) {
		softmax_stream_params params = {
		    .heads = o->heads,
		    .window = o->window,
		    .offset = builder_state(b, "layers.%d.cache", layer),
		    .scale = (float)o->scale,
		};
		return op_softmax_stream(b->g, qkv, VALUE_NONE, VALUE_NONE, b->pool, b->slot, b->position, b->length,
		                         b->mask, b->start, VALUE_NONE, VALUE_NONE, VALUE_NONE, params);
	}
	softmax_params params = {.heads = o->heads, .window = o->window, .scale = (float)o->scale, .stream = site};
	if (b->rng != VALUE_NONE)
		params.p = (float)o->dropout;
	return op_softmax_attention(b->g, qkv, VALUE_NONE, VALUE_NONE, b->mask, VALUE_NONE,
	                            params.p > 0 ? b->rng : VALUE_NONE, params);
}

static value softmax_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	value qkv = builder_linear(b, x, "%sc_attn", prefix);
	return builder_linear(b, softmax_attend(b, options, layer, qkv), "%sc_proj", prefix);
}

const mixer mixer_softmax = {
    .name = "softmax",
    .parameters = softmax_parameters,
    .states = softmax_states,
    .forward = softmax_forward,
    .explainer = &softmax_explainer,
};
