#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/mixers/mixer.h"
#include "engine/model/mixers/token_shift.h"
#include "engine/tensor/ops/forgetting.h"

#define STATE "layers.%d.pooled"
#define INITIAL_SCORE "layers.%d.initial.score"
#define INITIAL_MEAN "layers.%d.initial.mean"
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

/* The state after a token with this score and these values. With norms the first mean, 0, changes nothing. */
static void forgetting_initial_parameters(const void *options, int layer, parameter_list *list)
{
	const forgetting_options *o = options;
	parameter_list_add(list, INIT_ZERO, 0, SHAPE2(1, o->heads), INITIAL_SCORE, layer);
	parameter_list_stored(list, SHAPE1(o->heads));
	parameter_list_add(list, INIT_ZERO, 0, SHAPE2(1, o->hidden), INITIAL_MEAN, layer);
	parameter_list_stored(list, SHAPE1(o->hidden));
}

static void forgetting_initial_states(const void *options, int layer, const float *const *values,
                                      const state_list *states, float *slot)
{
	const forgetting_options *o = options;
	char name[sizeof states->items->name];
	snprintf(name, sizeof name, STATE, layer);
	float *sums = slot + state_list_find(states, name)->offset;
	for (int64_t h = 0; h < o->heads; h++)
		forgetting_sum_of_log((double)forgetting_bounded(values[0][h]), sums + h, o->heads);
	memcpy(sums + 3 * o->heads, values[1], (size_t)o->hidden * sizeof *sums);
}

static const mixer_initial forgetting_initial = {2, NULL, forgetting_initial_parameters,
                                                 forgetting_initial_states};

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
	                        ? forgetting_f32(b, builder_affine(b, x, builder_parameter(b, "%sbeta", prefix), "%sWf",
	                                                           prefix))
	                        : op_scale(b->g, builder_parameter(b, "%stheta", prefix), -1);
	return op_activation(b->g, logit, ACTIVATION_LOG_SIGMOID);
}

/* Pool after the initial state, as a row before the tokens. Its rate has no effect. */
static pooled_values forgetting_pool_after(builder *b, value score, value mean, value v, value a, value f)
{
	graph *g = b->g;
	const join_rows_params shared = {0};
	if (f != VALUE_NONE && graph_value(g, f)->shape.rank == 3)
		f = op_join_rows(g, op_fill(g, graph_value(g, score)->shape, 0), f, shared);
	const value mask = b->mask == VALUE_NONE ? VALUE_NONE : op_pad_mask(g, b->mask, 1, 1);
	const pooled_values all = op_forgetting_attention(g, op_join_rows(g, mean, v, shared),
	                                                  op_join_rows(g, score, a, shared), f, VALUE_NONE, mask);
	return (pooled_values){op_slice_rows(g, all.pooled, 1, -1), op_slice_rows(g, all.log_normalizer, 1, -1)};
}

static pooled_values forgetting_pool(builder *b, int layer, value v, value a, value f)
{
	const value score = builder_parameter(b, INITIAL_SCORE, layer);
	if (b->pool == VALUE_NONE && score != VALUE_NONE)
		return forgetting_pool_after(b, score, builder_parameter(b, INITIAL_MEAN, layer), v, a, f);
	if (b->pool == VALUE_NONE)
		return op_forgetting_attention(b->g, v, a, f, VALUE_NONE, b->mask);
	const stream_values at = {b->pool, b->slot, b->started, b->length, b->mask, b->start};
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
    .initial = &forgetting_initial,
    .forward = forgetting_forward,
    .explainer = &forgetting_explainer,
    .any_pieces = true,
};
