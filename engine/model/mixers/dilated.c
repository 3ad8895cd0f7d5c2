#include "engine/model/mixers/mixer.h"

static void dilated_mixer_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const dilated_options *o = options;
	const double std[] = {o->std, o->gain * o->std, o->std, o->gain * o->std};
	builder_projection_parameters(list, o->hidden, std, true, prefix);
	if (o->subln)
		builder_layernorm_parameters(list, o->hidden, "%sinner_attn_ln", prefix);
}

static void dilated_states(const void *options, int layer, state_list *list)
{
	const dilated_options *o = options;
	if (o->causal)
		state_list_add(list, STATE_CACHE, dilated_state_floats(o->hidden, &o->pattern), "layers.%d.cache",
		               layer);
}

static value dilated_mixer_attend(builder *b, const dilated_options *o, int layer, value q, value k, value v)
{
	if (b->spec->explain.log) {
		builder_output(b, q, "layers.%d.query", layer);
		builder_output(b, k, "layers.%d.key", layer);
	}
	if (forward_recurrent(b->spec)) {
		dilated_stream_params params = {
		    .pattern = o->pattern,
		    .heads = o->heads,
		    .offset = builder_state(b, "layers.%d.cache", layer),
		    .scale = (float)o->scale,
		};
		return op_dilated_stream(b->g, q, k, v, b->pool, b->slot, b->position, b->length, b->mask, b->start,
		                         params);
	}
	dilated_params params = {
	    .pattern = o->pattern,
	    .heads = o->heads,
	    .scale = (float)o->scale,
	    .causal = o->causal,
	    /* Gradients for explanations are those of the function. */
	    .detach_weights = o->detach_weights && b->spec->explain.attribution == ATTRIBUTION_NONE,
	};
	return op_dilated_attention(b->g, q, k, v, b->mask, VALUE_NONE, params).y;
}

static value dilated_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const dilated_options *o = options;
	/* Adjacent, so that a backend may merge them into one product. */
	value q = builder_linear(b, x, "%sq_proj", prefix);
	value k = builder_linear(b, x, "%sk_proj", prefix);
	value v = builder_linear(b, x, "%sv_proj", prefix);
	value y = dilated_mixer_attend(b, o, layer, q, k, v);
	if (o->subln)
		y = builder_layernorm(b, y, (float)o->eps, "%sinner_attn_ln", prefix);
	return builder_linear(b, y, "%sout_proj", prefix);
}

const mixer mixer_dilated = {
    .name = "dilated",
    .parameters = dilated_mixer_parameters,
    .states = dilated_states,
    .forward = dilated_mixer_forward,
    .explainer = &dilated_explainer,
};
