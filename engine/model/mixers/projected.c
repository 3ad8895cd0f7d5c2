#include "engine/model/mixers/mixer.h"

#include <math.h>

static void projected_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const projected_options *o = options;
	const double std[] = {o->std, o->std, o->std, o->std};
	builder_projection_parameters(list, o->hidden, std, true, prefix);
}

/* There is no recurrent form. */
static void projected_states(const void *options, int layer, state_list *list)
{
	(void)options;
	(void)layer;
	(void)list;
}

value projected_forward(builder *b, const projected_options *o, int layer, const char *prefix, value x, value source,
                        value mask)
{
	value read = source == VALUE_NONE ? x : source;
	value q = builder_linear(b, x, "%sq_proj", prefix);
	value k = builder_linear(b, read, "%sk_proj", prefix);
	value v = builder_linear(b, read, "%sv_proj", prefix);
	const attention_place place = source == VALUE_NONE ? b->place : ATTENTION_TO_SOURCE;
	builder_log(b, place, layer, "query", q);
	builder_log(b, place, layer, "key", k);
	softmax_params params = {.heads = o->heads,
	                         .scale = (float)(1 / sqrt((double)o->hidden / (double)o->heads)),
	                         .stream = builder_site(b),
	                         .bidirectional = !o->causal};
	if (b->rng != VALUE_NONE)
		params.p = (float)o->dropout;
	value y = op_softmax_attention(b->g, q, k, v, mask, VALUE_NONE, params.p > 0 ? b->rng : VALUE_NONE, params);
	return builder_linear(b, y, "%sout_proj", prefix);
}

static value projected_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	return projected_forward(b, options, layer, prefix, x, VALUE_NONE, b->mask);
}

const mixer mixer_projected = {
    .name = "projected",
    .parameters = projected_parameters,
    .states = projected_states,
    .forward = projected_mixer_forward,
    .explainer = &projected_explainer,
};
