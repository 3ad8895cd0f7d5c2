#include "engine/model/mixers/attend.h"
#include "engine/model/mixers/mixer.h"

static void parameters(const void *options, const char *prefix, parameter_list *list)
{
	const linear_options *o = options;
	const double std[] = {o->std, o->std, o->std, o->residual_std};
	builder_projection_parameters(list, o->hidden, std, o->bias, prefix);
}

void linear_states(const linear_options *o, int layer, state_list *list)
{
	if (o->causal)
		state_list_add(list, STATE_RECURRENT, linear_state_floats(o->hidden, o->heads), "layers.%d.sums",
		               layer);
}

static void linear_mixer_states(const void *options, int layer, state_list *list)
{
	linear_states(options, layer, list);
}

value linear_attend(builder *b, const linear_options *o, int layer, value q, value k, value v)
{
	value mask = o->reads_padding ? VALUE_NONE : b->mask;
	linear_attention_values a;
	if (b->pool != VALUE_NONE) {
		linear_stream_params params = {
		    .heads = o->heads,
		    .offset = builder_state(b, "layers.%d.sums", layer),
		    .eps = LINEAR_ATTENTION_EPS,
		};
		a = op_linear_stream(b->g, q, k, v, b->pool, b->slot, b->position, b->length, mask, b->start,
		                     builder_pool_before(b), params);
	} else {
		linear_attention_params params = {.heads = o->heads, .causal = o->causal, .eps = LINEAR_ATTENTION_EPS};
		a = op_linear_attention(b->g, q, k, v, mask, params);
	}
	builder_log(b, b->place, layer, "query", q);
	builder_log(b, b->place, layer, "key", k);
	return a.y;
}

static value linear_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	/* Adjacent, so that a backend may merge them into one product. */
	value q = builder_linear(b, x, "%sq_proj", prefix);
	value k = builder_linear(b, x, "%sk_proj", prefix);
	value v = builder_linear(b, x, "%sv_proj", prefix);
	return builder_linear(b, linear_attend(b, options, layer, q, k, v), "%sout_proj", prefix);
}

const mixer mixer_linear = {
    .name = "linear",
    .parameters = parameters,
    .states = linear_mixer_states,
    .forward = linear_mixer_forward,
    .explainer = &linear_explainer,
};
