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
#define MAX_PARAMETERS ((int64_t)1 << 34)
#define LAYERNORM_EPS 1e-5f
#define PREFIX "model."
#define LAYER PREFIX "layers.%d."
#define ATTENTION LAYER "attention."

typedef struct linear_config {
	int64_t hidden, vocab, heads, positions, layers, trained;
	bool learned; /* has a position table */
	double dropout, std;
	linear_options layer; /* of every layer */
} linear_config;

/* --- configuration ---------------------------------------------------------------- */

static double residual_std(const linear_config *c)
{
	return c->std / sqrt(2 * (double)c->layers);
}

/* Scalars of all parameters; the bounds of the keys keep this far from overflow. */
static int64_t count_parameters(const linear_config *c)
{
	int64_t d = c->hidden, layer = (4 + 2 * FEED_FORWARD) * d * d + 4 * d;
	return c->vocab * d + (c->learned ? c->positions * d : 0) + 2 * d + c->layers * layer;
}

static status read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "hidden_size", "vocab_size",          "n_heads",           "n_positions", "position_embedding",
	    "n_layer",     "hidden_dropout_prob", "initializer_range", NULL,
	};
	linear_config *c = config;
	config_reader r = config_begin(json, &architecture_linear, keys, err);
	c->hidden = config_integer(&r, "hidden_size", DEFAULT_HIDDEN, 1, MAX_HIDDEN);
	c->vocab = config_integer(&r, "vocab_size", 259, 1, MAX_ROWS);
	c->heads = config_integer(&r, "n_heads", 4, 1, MAX_HIDDEN);
	c->positions = config_integer(&r, "n_positions", 1024, 1, MAX_ROWS);
	c->learned = config_positions(&r, false);
	c->trained = config_trained(&r, c->positions, c->learned ? c->positions : MODEL_UNBOUNDED);
	c->layers = config_integer(&r, "n_layer", 4, 1, ARCHITECTURE_MAX_LAYERS);
	c->dropout = config_number(&r, "hidden_dropout_prob", 0.1, 0, 0.999);
	c->std = config_number(&r, "initializer_range", 1 / sqrt((double)c->hidden), 0, 100);
	if (c->hidden % c->heads != 0)
		config_fail(&r, "n_heads", "n_heads must divide hidden_size");
	if (count_parameters(c) > MAX_PARAMETERS)
		config_fail(&r, NULL, "the configuration is too large: more than %lld parameters",
		            (long long)MAX_PARAMETERS);
	c->layer = (linear_options){
	    .hidden = c->hidden, .heads = c->heads, .causal = true, .std = c->std, .residual_std = residual_std(c)};
	return r.status;
}

static bool complete(json_t *json, const model_size *size)
{
	return config_set_size(json, "hidden_size", size->hidden) && config_set_size(json, "n_heads", size->heads) &&
	       config_set_size(json, "n_layer", size->layers) && config_set_size(json, "vocab_size", size->inputs) &&
	       config_set_dropout(json, "hidden_dropout_prob", size->dropout) &&
	       config_set_positions(json, "n_positions", size);
}

static json_t *write_config(const void *config)
{
	const linear_config *c = config;
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:f, s:f}", "model_type",
	                 architecture_linear.model_type, "hidden_size", (json_int_t)c->hidden, "vocab_size",
	                 (json_int_t)c->vocab, "n_heads", (json_int_t)c->heads, "n_positions", (json_int_t)c->positions,
	                 "position_embedding", c->learned ? "learned" : "none", CONFIG_TRAINED, (json_int_t)c->trained,
	                 "n_layer", (json_int_t)c->layers, "hidden_dropout_prob", c->dropout, "initializer_range",
	                 c->std);
}

static void dims(const void *config, model_dims *out)
{
	const linear_config *c = config;
	*out = (model_dims){
	    .inputs = c->vocab,
	    .outputs = c->vocab,
	    .hidden = c->hidden,
	    .layers = c->layers,
	    .heads = c->heads,
	    .head = HEAD_VOCABULARY,
	    .causal = true,
	    .positions = c->learned ? c->positions : MODEL_UNBOUNDED,
	    .trained = c->trained,
	    .dropout = (float)c->dropout,
	};
}

static void train_on(void *config, int64_t length)
{
	linear_config *c = config;
	c->trained = length > c->trained ? length : c->trained;
}

static const mixer *layer_mixer(const void *config, int64_t layer, const void **options)
{
	(void)layer;
	*options = &((const linear_config *)config)->layer;
	return &mixer_linear;
}

/* --- parameters and forward ------------------------------------------------------------ */

static void parameters(const void *config, parameter_list *list)
{
	const linear_config *c = config;
	int64_t d = c->hidden, inner = FEED_FORWARD * d;
	float std = (float)c->std, residual = (float)residual_std(c);
	parameter_list_add_matrix(list, std, c->vocab, d, false, PREFIX "embedding.weight");
	if (c->learned)
		parameter_list_add(list, INIT_NORMAL, std, SHAPE2(c->positions, d), PREFIX "positions.weight");
	for (int l = 0; l < c->layers; l++) {
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

static value layer_forward(builder *b, const linear_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	float p = (float)c->dropout;
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	value n = builder_layernorm(b, h, LAYERNORM_EPS, LAYER "attention_norm", l);
	h = op_add(b->g, h, builder_dropout(b, mixer_linear.forward(b, &c->layer, l, prefix, n), p));
	value inner =
	    builder_linear(b, builder_layernorm(b, h, LAYERNORM_EPS, LAYER "inner_norm", l), LAYER "inner", l);
	value outer = builder_linear(b, op_gelu(b->g, inner, false), LAYER "outer", l);
	return op_add(b->g, h, builder_dropout(b, outer, p));
}

static void forward(const void *config, builder *b)
{
	const linear_config *c = config;
	value h = builder_embed(b, PREFIX "embedding.weight", -1, 1, c->learned ? PREFIX "positions.weight" : NULL);
	h = builder_dropout(b, h, (float)c->dropout);
	builder_boundary(b);
	for (int l = 0; l < c->layers; l++, builder_boundary(b))
		h = layer_forward(b, c, l, h);
	h = builder_layernorm(b, h, LAYERNORM_EPS, PREFIX "norm");
	builder_vocabulary(b, h, builder_parameter(b, PREFIX "embedding.weight"), VALUE_NONE, 1);
}

const architecture architecture_linear = {
    .name = "linear",
    .model_type = "linear",
    .config_bytes = sizeof(linear_config),
    .config_read = read_config,
    .complete = complete,
    .config_write = write_config,
    .dims = dims,
    .train_on = train_on,
    .parameters = parameters,
    .prefix = PREFIX,
    .mixer = layer_mixer,
    .forward = forward,
};
