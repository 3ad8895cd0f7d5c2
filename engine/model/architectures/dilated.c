/* A language model with dilated attention, as torchscale builds LongNet's decoder, or, with "bidirectional", its
 * encoder: then a token reads all of its segments, and the model fills in masks.
 *
 *   h = dropout(E[token] + P[position])           P: only with "position_embedding": "learned"
 *   each layer:  h = h + dropout(dilated(LN(h)))  mixers/mixer.h
 *                h = h + dropout(LN(gelu(LN(h) W1ᵀ + b)) W2ᵀ + b)
 *   logits = LN(h) Eᵀ
 *
 * The norms within the branches (before W2, and the mixer's before its last product) exist with "subln". The matrices
 * that the residual stream passes through then start √ln(2 layers) larger (Wang et al. 2022, Magneto).
 *
 * A causal model's session state is, for each layer, the keys and values of as many tokens as the longest segment has.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"

enum {
	DEFAULT_HIDDEN = 256,
	MAX_HIDDEN = 1 << 16,
	MAX_INNER = 1 << 18,
	MAX_ROWS = 1 << 24, /* vocabulary, positions, segments */
	FEED_FORWARD = 4,   /* default inner width over hidden width */
	PREFIX_BYTES = 64,
};
#define PREFIX "decoder."
#define LAYER PREFIX "layers.%d."
#define ATTENTION LAYER "self_attn."

typedef struct dilated_config {
	model_dims dims;
	int64_t positions; /* n_positions */
	int64_t inner;     /* ffn_size */
	bool learned;      /* has a position table */
	double dropout;
	dilated_options layer; /* for every layer */
} dilated_config;

static const dilated_pattern default_pattern = {
    .branches = 5, .segment = {64, 128, 256, 512, 1024}, .dilation = {1, 2, 4, 8, 16}};
static const char *const offsets[] = {[DILATED_BLOCK] = "block", [DILATED_MOD] = "mod", NULL};

/* --- configuration ---------------------------------------------------------------- */

/* Initial bound for a matrix with `inputs` inputs, as PyTorch's default, without the gain. */
static double matrix_std(int64_t inputs)
{
	return 1 / sqrt(3 * (double)inputs);
}

/* Number of scalars in all parameters; the limits of the keys keep this far from overflow. */
static int64_t dilated_count_parameters(const dilated_config *c)
{
	int64_t d = c->dims.hidden, layer = 4 * d * d + 2 * d * c->inner + 11 * d + 3 * c->inner;
	return c->dims.inputs * d + (c->learned ? c->positions * d : 0) + 2 * d + c->dims.layers * layer;
}

/* Read an array of 1 to DILATED_MAX_BRANCHES positive integers; if absent, out is unchanged. */
static void read_integers(config_reader *r, const char *key, int64_t *out, int64_t *count)
{
	const json_t *array = json_object_get(r->json, key);
	if (!array)
		return;
	*count = (int64_t)json_array_size(array);
	bool good = json_is_array(array) && *count >= 1 && *count <= DILATED_MAX_BRANCHES;
	for (int64_t i = 0; i < *count && good; i++) {
		const json_t *number = json_array_get(array, (size_t)i);
		out[i] = json_integer_value(number);
		good = json_is_integer(number) && out[i] >= 1 && out[i] <= MAX_ROWS;
	}
	if (!good)
		config_fail(r, key, "%s must be an array of 1 to %d integers from 1 to %d", key, DILATED_MAX_BRANCHES,
		            MAX_ROWS);
}

static void read_pattern(config_reader *r, dilated_pattern *p)
{
	*p = default_pattern;
	int64_t dilations = p->branches;
	read_integers(r, "segment_length", p->segment, &p->branches);
	read_integers(r, "dilated_ratio", p->dilation, &dilations);
	p->offset = (dilated_offset)config_choice(r, "dilated_head_offset", offsets);
	if (r->status != STATUS_OK)
		return;
	if (dilations != p->branches)
		config_fail(r, "dilated_ratio", "dilated_ratio must have as many numbers as segment_length");
	bool whole = false;
	for (int64_t i = 0; i < p->branches; i++)
		whole |= p->dilation[i] == 1;
	if (!whole)
		config_fail(r, "dilated_ratio", "dilated_ratio must contain 1, so that every token reads itself");
}

static status dilated_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "hidden_size",         "vocab_size",     "n_heads",        "n_positions",
	    "position_embedding",  "n_layer",        "ffn_size",       "hidden_dropout_prob",
	    "layer_norm_eps",      "subln",          "segment_length", "dilated_ratio",
	    "dilated_head_offset", "detach_weights", "bidirectional",  NULL,
	};
	dilated_config *c = config;
	config_reader r = config_begin(json, &architecture_dilated, keys, err);
	c->dims.hidden = config_integer(&r, "hidden_size", DEFAULT_HIDDEN, 1, MAX_HIDDEN);
	c->dims.inputs = config_integer(&r, "vocab_size", 259, 1, MAX_ROWS);
	c->dims.heads = config_integer(&r, "n_heads", 4, 1, MAX_HIDDEN);
	c->positions = config_integer(&r, "n_positions", 1024, 1, MAX_ROWS);
	c->learned = config_positions(&r, false);
	c->dims.positions = c->learned ? c->positions : MODEL_UNBOUNDED;
	c->dims.trained = config_trained(&r, c->positions, c->dims.positions);
	c->dims.layers = config_integer(&r, "n_layer", 4, 1, ARCHITECTURE_MAX_LAYERS);
	c->inner = config_integer(&r, "ffn_size", FEED_FORWARD * c->dims.hidden, 1, MAX_INNER);
	c->dropout = config_number(&r, "hidden_dropout_prob", 0, 0, 0.999);
	c->layer = (dilated_options){.hidden = c->dims.hidden, .heads = c->dims.heads};
	c->layer.eps = config_number(&r, "layer_norm_eps", 1e-5, 1e-12, 1);
	c->layer.subln = config_bool(&r, "subln", true);
	c->layer.detach_weights = config_bool(&r, "detach_weights", true);
	c->layer.causal = !config_bool(&r, "bidirectional", false);
	read_pattern(&r, &c->layer.pattern);
	config_check_heads(&r, &c->dims, "n_heads", "hidden_size");
	config_check_parameters(&r, dilated_count_parameters(c));
	c->layer.scale = 1 / sqrt((double)c->dims.hidden / (double)c->dims.heads);
	c->layer.std = matrix_std(c->dims.hidden);
	c->layer.gain = c->layer.subln ? sqrt(log(2 * (double)c->dims.layers)) : 1;
	c->dims.outputs = c->dims.inputs;
	c->dims.form = c->layer.causal ? &form_causal : &form_masked;
	c->dims.dropout = (float)c->dropout;
	return r.status;
}

static bool dilated_complete(json_t *json, const model_size *size)
{
	return config_set_size(json, "hidden_size", size->hidden) && config_set_size(json, "n_heads", size->heads) &&
	       config_set_size(json, "n_layer", size->layers) && config_set_size(json, "vocab_size", size->inputs) &&
	       config_set_dropout(json, "hidden_dropout_prob", size->dropout) &&
	       config_set_positions(json, "n_positions", size);
}

/* New reference; NULL: out of memory. */
static json_t *write_integers(const int64_t *numbers, int64_t count)
{
	json_t *array = json_array();
	for (int64_t i = 0; i < count && array; i++) {
		if (json_array_append_new(array, json_integer((json_int_t)numbers[i])) != 0) {
			json_decref(array);
			array = NULL;
		}
	}
	return array;
}

static json_t *dilated_write_config(const void *config)
{
	const dilated_config *c = config;
	const dilated_pattern *p = &c->layer.pattern;
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:f, s:f, s:b, s:b, s:b, s:o, s:o, s:s}",
	                 "model_type", architecture_dilated.model_type, "hidden_size", (json_int_t)c->dims.hidden,
	                 "vocab_size", (json_int_t)c->dims.inputs, "n_heads", (json_int_t)c->dims.heads, "n_positions",
	                 (json_int_t)c->positions, "position_embedding", c->learned ? "learned" : "none",
	                 CONFIG_TRAINED, (json_int_t)c->dims.trained, "n_layer", (json_int_t)c->dims.layers, "ffn_size",
	                 (json_int_t)c->inner, "hidden_dropout_prob", c->dropout, "layer_norm_eps", c->layer.eps,
	                 "subln", c->layer.subln, "detach_weights", c->layer.detach_weights, "bidirectional",
	                 !c->layer.causal, "segment_length", write_integers(p->segment, p->branches), "dilated_ratio",
	                 write_integers(p->dilation, p->branches), "dilated_head_offset", offsets[p->offset]);
}

static const mixer *dilated_layer_mixer(const void *config, int64_t layer, const void **options)
{
	(void)layer;
	*options = &((const dilated_config *)config)->layer;
	return &mixer_dilated;
}

/* --- parameters and forward ------------------------------------------------------------ */

static void dilated_linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, const char *name,
                                      int layer)
{
	parameter_list_add_matrix(list, (float)std, n, k, false, LAYER "%s.weight", layer, name);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), LAYER "%s.bias", layer, name);
}

static void dilated_parameters(const void *config, parameter_list *list)
{
	const dilated_config *c = config;
	const int64_t d = c->dims.hidden, inner = c->inner;
	const double gain = c->layer.gain;
	const float std = 1 / sqrtf((float)d);
	parameter_list_add_matrix(list, std, c->dims.inputs, d, false, PREFIX "embed_tokens.weight");
	parameter_list_by_row(list);
	if (c->learned)
		parameter_list_add(list, INIT_NORMAL, std, SHAPE2(c->positions, d), PREFIX "embed_positions.weight");
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		builder_layernorm_parameters(list, d, LAYER "self_attn_layer_norm", l);
		mixer_dilated.parameters(&c->layer, prefix, list);
		builder_layernorm_parameters(list, d, LAYER "final_layer_norm", l);
		dilated_linear_parameters(list, gain * matrix_std(d), inner, d, "ffn.fc1", l);
		if (c->layer.subln)
			builder_layernorm_parameters(list, inner, LAYER "ffn.ffn_layernorm", l);
		dilated_linear_parameters(list, gain * matrix_std(inner), d, inner, "ffn.fc2", l);
	}
	builder_layernorm_parameters(list, d, PREFIX "layer_norm");
}

static value feed_forward(builder *b, const dilated_config *c, int l, value h)
{
	const float eps = (float)c->layer.eps;
	value n = builder_layernorm(b, h, eps, LAYER "final_layer_norm", l);
	value inner = op_gelu(b->g, builder_linear(b, n, LAYER "ffn.fc1", l), false);
	if (c->layer.subln)
		inner = builder_layernorm(b, inner, eps, LAYER "ffn.ffn_layernorm", l);
	return builder_linear(b, inner, LAYER "ffn.fc2", l);
}

static value dilated_layer_forward(builder *b, const dilated_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	const float p = (float)c->dropout;
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	value n = builder_layernorm(b, h, (float)c->layer.eps, LAYER "self_attn_layer_norm", l);
	h = op_add(b->g, h, builder_dropout(b, mixer_dilated.forward(b, &c->layer, l, prefix, n), p));
	if (l == c->dims.layers - 1)
		h = builder_needed_rows(b, h);
	return op_add(b->g, h, builder_dropout(b, feed_forward(b, c, l, h), p));
}

static void dilated_forward(const void *config, builder *b)
{
	const dilated_config *c = config;
	value h =
	    builder_embed(b, PREFIX "embed_tokens.weight", -1, 1, c->learned ? PREFIX "embed_positions.weight" : NULL);
	h = builder_dropout(b, h, (float)c->dropout);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = dilated_layer_forward(b, c, l, h);
	h = builder_layernorm(b, h, (float)c->layer.eps, PREFIX "layer_norm");
	builder_vocabulary(b, h, builder_parameter(b, PREFIX "embed_tokens.weight"), VALUE_NONE, 1);
}

const architecture architecture_dilated = {
    .name = "dilated",
    .model_type = "dilated",
    .config_bytes = sizeof(dilated_config),
    .config_read = dilated_read_config,
    .complete = dilated_complete,
    .config_write = dilated_write_config,
    .parameters = dilated_parameters,
    .prefix = PREFIX,
    .mixer = dilated_layer_mixer,
    .forward = dilated_forward,
};
