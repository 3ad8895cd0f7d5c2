#include <stdio.h>

#include "engine/model/mixers/attend.h"
#include "engine/model/mixers/mixer.h"

#include "engine/tensor/ops/additive_stream.h"

#define LAYERNORM_EPS 1e-5f
#define STATE "layers.%d.%s"
#define INITIAL_SCORE "layers.%d.%s.initial.score"
#define INITIAL_MEAN "layers.%d.%s.initial.mean"

static const char *const rounds[] = {"query", "key"};
enum { ROUND_QUERY, ROUND_KEY, ROUND_COUNT };

void additive_rounds_parameters(const additive_options *o, const char *prefix, parameter_list *list)
{
	int64_t d = o->hidden;
	parameter_list_add_matrix(list, (float)o->std, d, d, false, "%sattn_proj.weight", prefix);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(d), "%squery_attn", prefix);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(d), "%skey_attn", prefix);
}

static void additive_mixer_parameters(const void *options, const char *prefix, parameter_list *list)
{
	static const char *const square[] = {"Wquery", "Wkeys", "Wvalues"};
	const additive_options *o = options;
	int64_t d = o->hidden;
	for (int i = 0; i < 3; i++)
		parameter_list_add_matrix(list, (float)o->std, d, d, false, "%s%s.weight", prefix, square[i]);
	additive_rounds_parameters(o, prefix, list);
	builder_layernorm_parameters(list, d, "%sattn_norm", prefix);
	builder_layernorm_parameters(list, d, "%smid_norm", prefix);
}

void additive_rounds_states(const additive_options *o, int layer, state_list *list)
{
	for (int i = 0; i < ROUND_COUNT; i++)
		state_list_add(list, STATE_RECURRENT, additive_state_floats(o->hidden, o->heads, o->window), STATE,
		               layer, rounds[i]);
}

static void additive_mixer_states(const void *options, int layer, state_list *list)
{
	additive_rounds_states(options, layer, list);
}

/* A token before all others, of each round: its score in each head, and the channels. */
static void additive_initial_parameters(const void *options, int layer, parameter_list *list)
{
	const additive_options *o = options;
	for (int i = 0; i < ROUND_COUNT; i++) {
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(o->heads), INITIAL_SCORE, layer, rounds[i]);
		parameter_list_add(list, INIT_ZERO, 0, SHAPE1(o->hidden), INITIAL_MEAN, layer, rounds[i]);
	}
}

static void additive_initial_states(const void *options, int layer, const float *const *values,
                                    const state_list *states, float *slot)
{
	const additive_options *o = options;
	for (int i = 0; i < ROUND_COUNT; i++) {
		char name[sizeof states->items->name];
		snprintf(name, sizeof name, STATE, layer, rounds[i]);
		additive_state_of_token(values[2 * i], values[2 * i + 1], o->hidden, o->heads,
		                        slot + state_list_find(states, name)->offset);
	}
}

/* The state of a window has no place for a token that stays. */
static bool additive_initial_exists(const void *options)
{
	return stream_is_global(((const additive_options *)options)->window);
}

static const mixer_initial additive_initial = {2 * ROUND_COUNT, additive_initial_exists, additive_initial_parameters,
                                               additive_initial_states};

/* One round of additive attention over x, scored by w. */
static value additive_attend(builder *b, const additive_options *o, int layer, int round, value x, value w)
{
	attention_values a;
	if (b->pool != VALUE_NONE) {
		additive_stream_params params = {o->heads, o->window, builder_state(b, STATE, layer, rounds[round])};
		/* A window follows the position, and a global round only needs to know whether its state is empty. */
		const value position = stream_is_global(o->window) ? b->started : b->position;
		a = op_additive_stream(b->g, x, w, b->pool, b->slot, position, b->length, b->mask, b->start, params);
	} else {
		a = op_additive_attention(b->g, x, w, b->mask, o->heads, o->window);
		const value score = builder_parameter(b, INITIAL_SCORE, layer, rounds[round]);
		if (score != VALUE_NONE)
			a = op_additive_initial(
			    b->g, a, score, builder_parameter(b, INITIAL_MEAN, layer, rounds[round]), x, w, b->mask);
	}
	if (b->spec->explain.log) {
		graph_output(b->g, a.score, "layers.%d.%s.score", layer, rounds[round]);
		graph_output(b->g, a.log_normalizer, "layers.%d.%s.log_normalizer", layer, rounds[round]);
	}
	if (b->spec->out.activations)
		builder_output(b, a.pooled, "layers.%d.%s.pooled", layer, rounds[round]);
	return a.pooled;
}

value additive_rounds(builder *b, const additive_options *o, int layer, const char *prefix, value n, value q, value k,
                      value v)
{
	graph *g = b->g;
	float p = (float)o->dropout;
	/* Adjacent, so that a backend may merge them: dropout, gate and norm. */
	value pooled = builder_dropout(
	    b, additive_attend(b, o, layer, ROUND_QUERY, q, builder_parameter(b, "%squery_attn", prefix)), p);
	value r = op_gate(g, n, builder_linear(b, pooled, "%sattn_proj", prefix), k);
	value middle = builder_layernorm(b, r, LAYERNORM_EPS, "%smid_norm", prefix);
	pooled = additive_attend(b, o, layer, ROUND_KEY, middle, builder_parameter(b, "%skey_attn", prefix));
	return op_gate(g, r, builder_dropout(b, pooled, p), v);
}

static value additive_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	value n = builder_layernorm(b, x, LAYERNORM_EPS, "%sattn_norm", prefix);
	/* Adjacent, so that a backend may merge them into one product. */
	value q = builder_linear(b, n, "%sWquery", prefix);
	value k = builder_linear(b, n, "%sWkeys", prefix);
	value v = builder_linear(b, n, "%sWvalues", prefix);
	return additive_rounds(b, options, layer, prefix, n, q, k, v);
}

const mixer mixer_additive = {
    .name = "additive",
    .parameters = additive_mixer_parameters,
    .states = additive_mixer_states,
    .initial = &additive_initial,
    .forward = additive_mixer_forward,
    .explainer = &additive_explainer,
    .any_pieces = true,
};
