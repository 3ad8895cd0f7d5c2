#include <math.h>
#include <stdio.h>

#include "engine/model/mixers/mixer.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/ops/softmax_stream.h"
#include "engine/tensor/ops/trilinear.h"

enum { NAME_BYTES = 96 };
#define NORM_FLOOR 1e-12f /* below every vector's length that is not 0 */

static void add_matrix(const trilinear_options *o, const char *prefix, const char *name, int64_t n, int64_t k,
                       double std, parameter_list *list)
{
	parameter_list_add_matrix(list, (float)std, n, k, false, "%s%s.weight", prefix, name);
	parameter_list_quantized(list, o->weight_bits);
	if (o->sequence && std > 0)
		parameter_list_sequence(list, 0);
}

static void trilinear_mixer_parameters(const void *options, const char *prefix, parameter_list *list)
{
	const trilinear_options *o = options;
	const int64_t d = o->hidden;
	add_matrix(o, prefix, "query", o->key_size, d, o->std, list);
	add_matrix(o, prefix, "key", o->key_size, d, o->std, list);
	add_matrix(o, prefix, "gate", o->value_size, d, o->std, list);
	add_matrix(o, prefix, "value", o->value_size, d, o->std, list);
	add_matrix(o, prefix, "combiner", d, TRILINEAR_TAPS * o->value_size, o->combiner_std, list);
}

/* True if keys and values are codes, which the ring then holds. */
static bool has_codes(const trilinear_options *o)
{
	return o->vector_bits != 32;
}

static void trilinear_mixer_states(const void *options, int layer, state_list *list)
{
	const trilinear_options *o = options;
	if (o->bidirectional)
		return;
	const bool codes = has_codes(o);
	const softmax_store ring =
	    softmax_store_of(o->key_size, o->value_size, o->reach + 1, softmax_format_of(codes, false));
	state_list_add(list, STATE_CACHE, decay_state_floats(o->key_size, o->value_size, o->reach, codes),
	               "layers.%d.cache", layer);
	state_list_set_ring(list, ring.places, ring.key_width, ring.value_width, 1);
}

value trilinear_weight(const builder *b, int bits, const char *name)
{
	value w = builder_parameter(b, "%s.weight", name);
	if (bits == 32 || w == VALUE_NONE || dtype_is_panel(graph_value(b->g, w)->type))
		return w;
	return op_quantize(b->g, w, (quantize_params){QUANTIZE_TENSOR, bits});
}

static value quantize(const builder *b, int bits, quantize_mode mode, value x)
{
	return bits == 32 ? x : op_quantize(b->g, x, (quantize_params){mode, bits});
}

value trilinear_normalize(const builder *b, int vector_bits, value x)
{
	const int64_t width = x == VALUE_NONE ? 1 : shape_last(graph_value(b->g, x)->shape);
	const normalize_params params = {.groups = 1, .scale = sqrtf((float)width), .floor = NORM_FLOOR};
	return quantize(b, vector_bits, QUANTIZE_FIXED, op_normalize(b->g, x, VALUE_NONE, params));
}

/* x: codes with the fixed step, if vectors are quantised. */
static value project(const builder *b, const trilinear_options *o, value x, value weight)
{
	return op_linear_codes(b->g, x, weight, o->vector_bits == 32 ? 0 : QUANTIZE_FIXED_STEP, (float)o->input_scale);
}

static value find_weight(const builder *b, const trilinear_options *o, const char *prefix, const char *name)
{
	char whole[NAME_BYTES];
	snprintf(whole, sizeof whole, "%s%s", prefix, name);
	return trilinear_weight(b, o->weight_bits, whole);
}

/* Keys, with their steps if they are codes, and values, from the products of x with their matrices. */
static quantize_values key_of(const builder *b, const trilinear_options *o, value product)
{
	if (!has_codes(o))
		return (quantize_values){product, VALUE_NONE};
	return op_quantize_with_step(b->g, product, (quantize_params){QUANTIZE_ROWS, o->vector_bits});
}

static value value_of(const builder *b, const trilinear_options *o, value product)
{
	return trilinear_normalize(b, o->vector_bits, product);
}

static decay_values trilinear_attend(builder *b, const trilinear_options *o, int layer, value q, quantize_values k,
                                     value v, value first_k, value first_v)
{
	const decay_params params = {.heads = o->heads,
	                             .window = o->reach,
	                             .scale = (float)o->score_scale,
	                             .slope = (float)o->slope,
	                             .hyper = (float)o->hyper,
	                             .bidirectional = o->bidirectional};
	if (!forward_recurrent(b->spec))
		return op_decay_attention(b->g, q, k.y, v, first_k, first_v, b->mask, VALUE_NONE, params);
	const stream_values at = {b->pool, b->slot, b->position, b->length, b->mask, b->start};
	const bool narrow = o->key_size / o->heads <= SOFTMAX_MOST_CODES;
	const decay_codes codes = {k.step, QUANTIZE_FIXED_STEP, narrow ? QUANTIZE_FIXED_STEP : 0};
	return op_decay_stream(b->g, q, k.y, v, first_k, first_v, codes, at, builder_positions(b), VALUE_NONE,
	                       builder_state(b, "layers.%d.cache", layer), params);
}

static value trilinear_mixer_forward(builder *b, const void *options, int layer, const char *prefix, value x)
{
	const trilinear_options *o = options;
	const value w_k = find_weight(b, o, prefix, "key"), w_v = find_weight(b, o, prefix, "value");
	/* Adjacent, so that a backend may merge them into one product. */
	value q = project(b, o, x, find_weight(b, o, prefix, "query")), k_product = project(b, o, x, w_k);
	value gate = project(b, o, x, find_weight(b, o, prefix, "gate")), v = project(b, o, x, w_v);
	value first_k = key_of(b, o, project(b, o, b->first, w_k)).y,
	      first_v = value_of(b, o, project(b, o, b->first, w_v));
	q = trilinear_normalize(b, o->vector_bits, q);
	const quantize_values k = key_of(b, o, k_product);
	gate = trilinear_normalize(b, o->vector_bits, gate);
	v = value_of(b, o, v);
	const decay_values a = trilinear_attend(b, o, layer, q, k, v, first_k, first_v);
	value products = op_trilinear(b->g, gate, a.u);
	if (b->spec->explain.log || b->spec->out.activations) {
		builder_output(b, q, "layers.%d.query", layer);
		builder_output(b, k.y, "layers.%d.key", layer);
		builder_output(b, a.log_normalizer, "layers.%d.log_normalizer", layer);
	}
	if (b->spec->out.activations) {
		builder_output(b, gate, "layers.%d.gate", layer);
		builder_output(b, v, "layers.%d.value", layer);
		builder_output(b, a.u, "layers.%d.pooled", layer);
		builder_output(b, products, "layers.%d.products", layer);
	}
	return op_linear(b->g, products, find_weight(b, o, prefix, "combiner"), VALUE_NONE, (float)o->combiner_scale);
}

const mixer mixer_trilinear = {
    .name = "trilinear",
    .parameters = trilinear_mixer_parameters,
    .states = trilinear_mixer_states,
    .forward = trilinear_mixer_forward,
    .explainer = &trilinear_explainer,
};
