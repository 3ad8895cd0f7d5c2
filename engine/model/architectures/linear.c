/* A causal language model with linear attention.
 *
 *   h = dropout(E[token] + P[position])          P: only with "position_embedding": "learned"
 *   each layer:  h = h + dropout(linear(LN(h)))  mixers/mixer.h, causal, without biases
 *                h = h + dropout(gelu(LN(h) W1ᵀ) W2ᵀ)
 *   logits = LN(h) Eᵀ
 *
 * A session's state is S and z of every head, of a size that depends on the width only. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"

enum {
	DEFAULT_HIDDEN = 256,
	MAX_HIDDEN = 1 << 16,
	MAX_ROWS = 1 << 24, /* vocabulary, positions */
	FEED_FORWARD = 4,   /* inner width over hidden width */
	PREFIX_BYTES = 64,
};
#define LAYERNORM_EPS 1e-5f
#define PREFIX "model."
#define LAYER PREFIX "layers.%d."
#define ATTENTION LAYER "attention."

typedef struct linear_config {
	model_dims dims;
	int64_t positions; /* n_positions */
	bool learned;      /* has a position table */
	double dropout, std;
	linear_options layer; /* for every layer */
} linear_config;

/* --- configuration ---------------------------------------------------------------- */

static double residual_std(const linear_config *c)
{
	return c->std / sqrt(2 * (double)c->dims.layers);
}

/* Number of scalars in all parameters; the limits of the keys keep this far from overflow. */
static int64_t linear_count_parameters(const linear_config *c)
{
	int64_t d = c->dims.hidden, layer = (4 + 2 * FEED_FORWARD) * d * d + 4 * d;
	return c->dims.inputs * d + (c->learned ? c->positions * d : 0) + 2 * d + c->dims.layers * layer;
}

static status linear_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "hidden_size", "vocab_size",          "n_heads",           "n_positions", "position_embedding",
	    "n_layer",     "hidden_dropout_prob", "initializer_range", NULL,
	};
	linear_config *c = config;
	config_reader r = config_begin(json, &architecture_linear, keys, err);
	c->dims.hidden = config_integer(&r, "hidden_size", DEFAULT_HIDDEN, 1, MAX_HIDDEN);
	c->dims.inputs = config_integer(&r, "vocab_size", 259, 1, MAX_ROWS);
	c->dims.heads = config_integer(&r, "n_heads", 4, 1, MAX_HIDDEN);
	c->positions = config_integer(&r, "n_positions", 1024, 1, MAX_ROWS);
	c->learned = config_positions(&r, false);
	c->dims.positions = c->learned ? c->positions : MODEL_UNBOUNDED;
	c->dims.trained = config_trained(&r, c->positions, c->dims.positions);
	c->dims.layers = config_integer(&r, "n_layer", 4, 1, ARCHITECTURE_MAX_LAYERS);
	c->dropout = config_number(&r, "hidden_dropout_prob", 0.1, 0, 0.999);
	c->std = config_number(&r, "initializer_range", 1 / sqrt((double)c->dims.hidden), 0, 100);
	config_check_heads(&r, &c->dims, "n_heads", "hidden_size");
	config_check_parameters(&r, linear_count_parameters(c));
	c->dims.outputs = c->dims.inputs;
	c->dims.form = &form_causal;
	c->dims.dropout = (float)c->dropout;
	c->layer = (linear_options){.hidden = c->dims.hidden,
	                            .heads = c->dims.heads,
	                            .causal = true,
	                            .std = c->std,
	                            .residual_std = residual_std(c)};
	return r.status;
}

static bool linear_complete(json_t *json, const model_size *size)
{
	return config_set_size(json, "hidden_size", size->hidden) && config_set_size(json, "n_heads", size->heads) &&
	       config_set_size(json, "n_layer", size->layers) && config_set_size(json, "vocab_size", size->inputs) &&
	       config_set_dropout(json, "hidden_dropout_prob", size->dropout) &&
	       config_set_positions(json, "n_positions", size);
}

static json_t *linear_write_config(const void *config)
{
	const linear_config *c = config;
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:f, s:f}", "model_type",
	                 architecture_linear.model_type, "hidden_size", (json_int_t)c->dims.hidden, "vocab_size",
	                 (json_int_t)c->dims.inputs, "n_heads", (json_int_t)c->dims.heads, "n_positions",
	                 (json_int_t)c->positions, "position_embedding", c->learned ? "learned" : "none",
	                 CONFIG_TRAINED, (json_int_t)c->dims.trained, "n_layer", (json_int_t)c->dims.layers,
	                 "hidden_dropout_prob", c->dropout, "initializer_range", c->std);
}

static const mixer *linear_layer_mixer(const void *config, int64_t layer, const void **options)
{
	(void)layer;
	*options = &((const linear_config *)config)->layer;
	return &mixer_linear;
}

/* --- parameters and forward ------------------------------------------------------------ */

static void linear_model_parameters(const void *config, parameter_list *list)
{
	const linear_config *c = config;
	int64_t d = c->dims.hidden, inner = FEED_FORWARD * d;
	float std = (float)c->std, residual = (float)residual_std(c);
	parameter_list_add_matrix(list, std, c->dims.inputs, d, false, PREFIX "embedding.weight");
	parameter_list_by_row(list);
	if (c->learned)
		parameter_list_add(list, INIT_NORMAL, std, SHAPE2(c->positions, d), PREFIX "positions.weight");
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		builder_layernorm_parameters(list, d, LAYER "attention_norm", l);
		mixer_linear.parameters(&c->layer, prefix, list);
		builder_layernorm_parameters(list, d, LAYER "inner_norm", l);
		parameter_list_add_matrix(list, std, inner, d, false, LAYER "inner.weight", l);
		parameter_list_add_matrix(list, residual, d, inner, false, LAYER "outer.weight", l);
	}
	builder_layernorm_parameters(list, d, PREFIX "norm");
}

static value linear_layer_forward(builder *b, const linear_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	float p = (float)c->dropout;
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	value n = builder_layernorm(b, h, LAYERNORM_EPS, LAYER "attention_norm", l);
	h = op_add(b->g, h, builder_dropout(b, mixer_linear.forward(b, &c->layer, l, prefix, n), p));
	if (l == c->dims.layers - 1)
		h = builder_needed_rows(b, h);
	value inner =
	    builder_linear(b, builder_layernorm(b, h, LAYERNORM_EPS, LAYER "inner_norm", l), LAYER "inner", l);
	value outer = builder_linear(b, op_gelu(b->g, inner, false), LAYER "outer", l);
	return op_add(b->g, h, builder_dropout(b, outer, p));
}

static void linear_forward(const void *config, builder *b)
{
	const linear_config *c = config;
	value h = builder_embed(b, PREFIX "embedding.weight", -1, 1, c->learned ? PREFIX "positions.weight" : NULL);
	h = builder_dropout(b, h, (float)c->dropout);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = linear_layer_forward(b, c, l, h);
	h = builder_layernorm(b, h, LAYERNORM_EPS, PREFIX "norm");
	builder_vocabulary(b, h, builder_parameter(b, PREFIX "embedding.weight"), VALUE_NONE, 1);
}

const architecture architecture_linear = {
    .name = "linear",
    .model_type = "linear",
    .config_bytes = sizeof(linear_config),
    .config_read = linear_read_config,
    .complete = linear_complete,
    .config_write = linear_write_config,
    .parameters = linear_model_parameters,
    .prefix = PREFIX,
    .mixer = linear_layer_mixer,
    .carries_states = true,
    .forward = linear_forward,
};
