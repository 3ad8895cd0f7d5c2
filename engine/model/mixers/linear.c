#include <stdio.h>

#include "engine/model/mixers/attend.h"
#include "engine/model/mixers/mixer.h"
#include "engine/tensor/ops/linear_attention.h"

#define STATE "layers.%d.sums"
#define INITIAL_KEYS "layers.%d.initial.keys"
#define INITIAL_VALUES "layers.%d.initial.values"

static void parameters(const void *options, const char *prefix, parameter_list *list)
{
	const linear_options *o = options;
	const double std[] = {o->std, o->std, o->std, o->residual_std};
	builder_projection_parameters(list, o->hidden, std, o->bias, prefix);
}

void linear_states(const linear_options *o, int layer, state_list *list)
{
	if (o->causal)
		state_list_add(list, STATE_RECURRENT, linear_state_floats(o->hidden, o->heads), STATE, layer);
}

static void linear_mixer_states(const void *options, int layer, state_list *list)
{
	linear_states(options, layer, list);
}

/* The sums of tokens that no text has, as many as a head has channels: those can be any sums with positive z. */
static void linear_initial_parameters(const void *options, int layer, parameter_list *list)
{
	const linear_options *o = options;
	const int64_t count = o->hidden / o->heads;
	parameter_list_add(list, INIT_NORMAL, 1, SHAPE2(count, o->hidden), INITIAL_KEYS, layer);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE2(count, o->hidden), INITIAL_VALUES, layer);
}

static void linear_initial_states(const void *options, int layer, const float *const *values, const state_list *states,
                                  float *slot)
{
	const linear_options *o = options;
	char name[sizeof states->items->name];
	snprintf(name, sizeof name, STATE, layer);
	linear_state_of_tokens(values[0], values[1], o->hidden / o->heads, o->hidden, o->heads,
	                       slot + state_list_find(states, name)->offset);
}

static bool linear_initial_exists(const void *options)
{
	return ((const linear_options *)options)->causal;
}

static const mixer_initial linear_initial = {2, linear_initial_exists, linear_initial_parameters,
                                             linear_initial_states};

/* Attend after the initial tokens, as rows before the others. */
static value attend_after(builder *b, value keys, value values, value q, value k, value v, value mask,
                          linear_attention_params params)
{
	graph *g = b->g;
	const join_rows_params shared = {0};
	const shape rows = graph_value(g, keys)->shape;
	if (mask != VALUE_NONE)
		mask = op_pad_mask(g, mask, rows.dim[0], 1);
	const linear_attention_values all =
	    op_linear_attention(g, op_join_rows(g, op_fill(g, rows, 0), q, shared), op_join_rows(g, keys, k, shared),
	                        op_join_rows(g, values, v, shared), mask, params);
	return op_slice_rows(g, all.y, rows.dim[0], -1);
}

value linear_attend(builder *b, const linear_options *o, int layer, value q, value k, value v)
{
	value mask = o->reads_padding ? VALUE_NONE : b->mask;
	const value keys = builder_parameter(b, INITIAL_KEYS, layer);
	value y;
	if (b->pool != VALUE_NONE) {
		linear_stream_params params = {
		    .heads = o->heads,
		    .offset = builder_state(b, STATE, layer),
		    .eps = LINEAR_ATTENTION_EPS,
		};
		y = op_linear_stream(b->g, q, k, v, b->pool, b->slot, b->started, b->length, mask, b->start,
		                     builder_pool_before(b), params)
		        .y;
	} else {
		linear_attention_params params = {.heads = o->heads, .causal = o->causal, .eps = LINEAR_ATTENTION_EPS};
		y = keys == VALUE_NONE
		        ? op_linear_attention(b->g, q, k, v, mask, params).y
		        : attend_after(b, keys, builder_parameter(b, INITIAL_VALUES, layer), q, k, v, mask, params);
	}
	builder_log(b, b->place, layer, "query", q);
	builder_log(b, b->place, layer, "key", k);
	return y;
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
    .initial = &linear_initial,
    .forward = linear_mixer_forward,
    .explainer = &linear_explainer,
};
