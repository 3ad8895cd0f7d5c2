/* A bidirectional encoder with linear attention and a head for classes: the encoder of BART (Lewis et al. 2019) with
 * its self-attention replaced, under the names of Hugging Face's BartForSequenceClassification, whose decoder is
 * skipped.
 *
 *   h = dropout(LN(s E[token] + P[position + 2]))     s = √d with "scale_embedding", else 1
 *   each layer:  h = LN(h + dropout(linear(h)))       mixers/mixer.h, over the whole sequence, with biases
 *                h = LN(h + dropout(dropout(gelu(h W1ᵀ + b)) W2ᵀ + b))
 *   logits = dropout(tanh(dropout(p) Wdᵀ + b)) Woᵀ + b
 *
 * p is the mean over the unmasked tokens, or with "pooling": "end" the last of them. "pad_policy": "ignore" lets masked
 * tokens take part in attention, as the checkpoints of the swapped model were trained.
 *
 * Dropout sites (Philox streams): 0 the embedding; 1 + 3l, 2 + 3l, 3 + 3l in layer l the attention, the inner and the
 * outer of the feed-forward; then two of the head. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"

enum {
	MAX_HIDDEN = 1 << 16,
	MAX_INNER = 1 << 18,
	MAX_ROWS = 1 << 24, /* vocabulary, positions */
	MAX_CLASSES = 1 << 16,
	FIRST_POSITION_ROW = 2, /* the rows before it are never used */
	PREFIX_BYTES = 64,
};
#define LAYERNORM_EPS 1e-5f
#define ENCODER "model.encoder."
#define LAYER ENCODER "layers.%d."
#define ATTENTION LAYER "self_attn."

typedef struct encoder_config {
	model_dims dims;
	int64_t inner; /* width of the feed-forward */
	int64_t pad;   /* token id */
	bool scaled;
	double dropout, inner_dropout, head_dropout, std;
	linear_options layer; /* of every layer */
} encoder_config;

/* --- configuration ---------------------------------------------------------------- */

/* Scalars of all parameters; the bounds of the keys keep this far from overflow. */
static int64_t count_parameters(const encoder_config *c)
{
	int64_t d = c->dims.hidden, layer = 4 * d * d + 2 * d * c->inner + 9 * d + c->inner;
	return (c->dims.inputs + c->dims.positions + FIRST_POSITION_ROW + c->dims.outputs + d + 3) * d +
	       c->dims.outputs + c->dims.layers * layer;
}

static status read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "d_model",
	    "vocab_size",
	    "encoder_attention_heads",
	    "max_position_embeddings",
	    "encoder_layers",
	    "encoder_ffn_dim",
	    "num_labels",
	    "pad_token_id",
	    "scale_embedding",
	    "pad_policy",
	    "pooling",
	    "dropout",
	    "activation_dropout",
	    "classifier_dropout",
	    "init_std",
	    NULL,
	};
	static const char *const policies[] = {"mask_keys", "ignore", NULL}, *const poolings[] = {"mean", "end", NULL};
	encoder_config *c = config;
	config_reader r = config_begin(json, &architecture_linear_encoder, keys, err);
	c->dims.hidden = config_integer(&r, "d_model", 768, 1, MAX_HIDDEN);
	c->dims.inputs = config_integer(&r, "vocab_size", 50265, 1, MAX_ROWS);
	c->dims.heads = config_integer(&r, "encoder_attention_heads", 12, 1, MAX_HIDDEN);
	c->dims.positions = config_integer(&r, "max_position_embeddings", 1024, 1, MAX_ROWS);
	c->dims.trained = config_trained(&r, c->dims.positions, c->dims.positions);
	c->dims.layers = config_integer(&r, "encoder_layers", 6, 1, ARCHITECTURE_MAX_LAYERS);
	c->inner = config_integer(&r, "encoder_ffn_dim", 4 * c->dims.hidden, 1, MAX_INNER);
	c->dims.outputs = config_classes(&r, MAX_CLASSES);
	c->pad = config_integer(&r, "pad_token_id", 1, -1, MAX_ROWS);
	c->scaled = config_bool(&r, "scale_embedding", false);
	c->dims.reads_padding = config_choice(&r, "pad_policy", policies) == 1;
	c->dims.pool = config_choice(&r, "pooling", poolings) == 1 ? POOL_LAST : POOL_MEAN;
	c->dropout = config_number(&r, "dropout", 0.1, 0, 0.999);
	c->inner_dropout = config_number(&r, "activation_dropout", 0, 0, 0.999);
	c->head_dropout = config_number(&r, "classifier_dropout", 0, 0, 0.999);
	c->std = config_number(&r, "init_std", 0.02, 0, 100);
	config_check_heads(&r, &c->dims, "encoder_attention_heads", "d_model");
	config_check_parameters(&r, count_parameters(c));
	c->dims.head = HEAD_CLASSES;
	c->dims.first_row = FIRST_POSITION_ROW;
	c->dims.dropout = (float)fmax(c->dropout, fmax(c->inner_dropout, c->head_dropout));
	c->layer = (linear_options){.hidden = c->dims.hidden,
	                            .heads = c->dims.heads,
	                            .bias = true,
	                            .reads_padding = c->dims.reads_padding,
	                            .std = c->std,
	                            .residual_std = c->std};
	return r.status;
}

/* Rows of norm 1 learn faster than the reference's small ones, as in the additive model. */
static bool complete(json_t *json, const model_size *size)
{
	if (!config_set_size(json, "d_model", size->hidden) ||
	    !config_set_size(json, "encoder_attention_heads", size->heads) ||
	    !config_set_size(json, "encoder_layers", size->layers) ||
	    !config_set_size(json, "vocab_size", size->inputs) || !config_set_size(json, "num_labels", size->classes) ||
	    !config_set_missing(json, "pad_token_id", json_integer(size->padding)) ||
	    !config_set_dropout(json, "dropout", size->dropout) ||
	    !config_set_positions(json, "max_position_embeddings", size))
		return false;
	double d = json_number_value(json_object_get(json, "d_model"));
	return d < 1 || config_set_missing(json, "init_std", json_real(1 / sqrt(d)));
}

static json_t *write_config(const void *config)
{
	const encoder_config *c = config;
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:s, s:f, s:f, s:f, s:f}",
	                 "model_type", architecture_linear_encoder.model_type, "d_model", (json_int_t)c->dims.hidden,
	                 "vocab_size", (json_int_t)c->dims.inputs, "encoder_attention_heads", (json_int_t)c->dims.heads,
	                 "max_position_embeddings", (json_int_t)c->dims.positions, CONFIG_TRAINED,
	                 (json_int_t)c->dims.trained, "encoder_layers", (json_int_t)c->dims.layers, "encoder_ffn_dim",
	                 (json_int_t)c->inner, "num_labels", (json_int_t)c->dims.outputs, "pad_token_id",
	                 (json_int_t)c->pad, "scale_embedding", c->scaled, "pad_policy",
	                 c->dims.reads_padding ? "ignore" : "mask_keys", "pooling",
	                 c->dims.pool == POOL_LAST ? "end" : "mean", "dropout", c->dropout, "activation_dropout",
	                 c->inner_dropout, "classifier_dropout", c->head_dropout, "init_std", c->std);
}

static const mixer *layer_mixer(const void *config, int64_t layer, const void **options)
{
	(void)layer;
	*options = &((const encoder_config *)config)->layer;
	return &mixer_linear;
}

/* --- parameters ------------------------------------------------------------------------ */

/* NAME.weight [n, k] and NAME.bias [n]. */
static void linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, const char *prefix,
                              const char *name)
{
	parameter_list_add_matrix(list, (float)std, n, k, false, "%s%s.weight", prefix, name);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s.bias", prefix, name);
}

static void parameters(const void *config, parameter_list *list)
{
	const encoder_config *c = config;
	int64_t d = c->dims.hidden;
	parameter_list_add_matrix(list, (float)c->std, c->dims.inputs, d, false, "model.shared.weight");
	parameter_list_alias(list, ENCODER "embed_tokens.weight", false);
	parameter_list_add(list, INIT_NORMAL, (float)c->std, SHAPE2(c->dims.positions + FIRST_POSITION_ROW, d),
	                   ENCODER "embed_positions.weight");
	builder_layernorm_parameters(list, d, ENCODER "layernorm_embedding");
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		mixer_linear.parameters(&c->layer, prefix, list);
		snprintf(prefix, sizeof prefix, LAYER, l);
		builder_layernorm_parameters(list, d, "%sself_attn_layer_norm", prefix);
		linear_parameters(list, c->std, c->inner, d, prefix, "fc1");
		linear_parameters(list, c->std, d, c->inner, prefix, "fc2");
		builder_layernorm_parameters(list, d, "%sfinal_layer_norm", prefix);
	}
	linear_parameters(list, c->std, d, d, "classification_head.", "dense");
	linear_parameters(list, c->std, c->dims.outputs, d, "classification_head.", "out_proj");
}

/* The decoder, and a second name of the embedding in it. */
static bool is_decoder(const char *name)
{
	const char *rest = strncmp(name, "model.", strlen("model.")) == 0 ? name + strlen("model.") : name;
	return strncmp(rest, "decoder.", strlen("decoder.")) == 0;
}

/* --- forward ------------------------------------------------------------------------------ */

static void name_activation(const builder *b, value v, const char *name, int l)
{
	if (b->spec->activations)
		builder_output(b, v, "layers.%d.%s", l, name);
}

static value layer_forward(builder *b, const encoder_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	float p = (float)c->dropout;
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	name_activation(b, h, "input", l);
	value attended = mixer_linear.forward(b, &c->layer, l, prefix, h);
	name_activation(b, attended, "attention", l);
	snprintf(prefix, sizeof prefix, LAYER, l);
	h = builder_layernorm(b, op_add(b->g, h, builder_dropout(b, attended, p)), LAYERNORM_EPS,
	                      "%sself_attn_layer_norm", prefix);
	name_activation(b, h, "attention_norm", l);
	value inner = op_gelu(b->g, builder_linear(b, h, "%sfc1", prefix), false);
	value outer = builder_linear(b, builder_dropout(b, inner, (float)c->inner_dropout), "%sfc2", prefix);
	h = builder_layernorm(b, op_add(b->g, h, builder_dropout(b, outer, p)), LAYERNORM_EPS, "%sfinal_layer_norm",
	                      prefix);
	name_activation(b, h, "output", l);
	return h;
}

static void forward(const void *config, builder *b)
{
	const encoder_config *c = config;
	float scale = c->scaled ? (float)sqrt((double)c->dims.hidden) : 1;
	value h = builder_embed(b, "model.shared.weight", c->pad, scale, ENCODER "embed_positions.weight");
	h = builder_layernorm(b, h, LAYERNORM_EPS, ENCODER "layernorm_embedding");
	h = builder_dropout(b, h, (float)c->dropout);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = layer_forward(b, c, l, h);
	builder_classes(b, h, c->dims.pool, (float)c->head_dropout, "classification_head.dense",
	                "classification_head.out_proj");
}

const architecture architecture_linear_encoder = {
    .name = "linear_encoder",
    .model_type = "linear_encoder",
    .config_bytes = sizeof(encoder_config),
    .config_read = read_config,
    .complete = complete,
    .config_write = write_config,
    .parameters = parameters,
    .prefix = "model.",
    .ignores = is_decoder,
    .mixer = layer_mixer,
    .forward = forward,
};
