#include "engine/model/bart/bart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
	MAX_HIDDEN = 1 << 16,
	MAX_INNER = 1 << 18,
	MAX_ROWS = 1 << 24, /* vocabulary, positions */
	MAX_CLASSES = 1 << 16,
	FIRST_POSITION_ROW = 2, /* earlier rows are never used */
	PREFIX_BYTES = 64,
};
#define LAYERNORM_EPS 1e-5f
#define WORDS "model.shared.weight"

/* --- configuration ---------------------------------------------------------------- */

void bart_read(bart_config *c, config_reader *r)
{
	static const char *const policies[] = {"mask_keys", "ignore", NULL};
	c->dims.hidden = config_integer(r, "d_model", 768, 1, MAX_HIDDEN);
	c->dims.inputs = config_integer(r, "vocab_size", 50265, 1, MAX_ROWS);
	c->encoder.heads = config_integer(r, "encoder_attention_heads", 12, 1, MAX_HIDDEN);
	c->dims.positions = config_integer(r, "max_position_embeddings", 1024, 1, MAX_ROWS);
	c->dims.trained = config_trained(r, c->dims.positions, c->dims.positions);
	c->encoder.layers = config_integer(r, "encoder_layers", 6, 1, ARCHITECTURE_MAX_LAYERS);
	c->encoder.inner = config_integer(r, "encoder_ffn_dim", 4 * c->dims.hidden, 1, MAX_INNER);
	c->dims.outputs = config_classes(r, MAX_CLASSES);
	c->pad = config_integer(r, "pad_token_id", 1, -1, MAX_ROWS);
	c->scaled = config_bool(r, "scale_embedding", false);
	c->dims.reads_padding = config_choice(r, "pad_policy", policies) == 1;
	c->dropout = config_number(r, "dropout", 0.1, 0, 0.999);
	c->inner_dropout = config_number(r, "activation_dropout", 0, 0, 0.999);
	c->head_dropout = config_number(r, "classifier_dropout", 0, 0, 0.999);
	c->std = config_number(r, "init_std", 0.02, 0, 100);
	c->dims.heads = c->encoder.heads;
	c->dims.layers = c->encoder.layers;
	c->dims.form = &form_classifier;
	c->dims.first_row = FIRST_POSITION_ROW;
}

/* Number of scalars in a stack with `attentions` attentions per layer; the limits of the keys keep this far from
 * overflow. */
static int64_t count_stack(const bart_config *c, const bart_stack *s, int64_t attentions)
{
	int64_t d = c->dims.hidden, layer = attentions * (4 * d * d + 6 * d) + (2 * d + 1) * s->inner + 3 * d;
	return s->layers > 0 ? (c->dims.positions + FIRST_POSITION_ROW + 2) * d + s->layers * layer : 0;
}

static int64_t bart_count_parameters(const bart_config *c)
{
	int64_t d = c->dims.hidden;
	return c->dims.inputs * d + count_stack(c, &c->encoder, 1) + count_stack(c, &c->decoder, 2) + (d + 1) * d +
	       c->dims.outputs * (d + 1);
}

static const attention_layout bart_attention = {
    .names = {"q_proj", "k_proj", "v_proj", "out_proj"},
    .order = {ATTENTION_KEY, ATTENTION_VALUE, ATTENTION_QUERY},
    .bias = true,
};

/* Softmax attention of a stack, in the parallel form alone. */
static attention_options softmax_attention(const bart_config *c, const bart_stack *s)
{
	const int64_t d = c->dims.hidden, heads = s->heads > 0 ? s->heads : 1; /* no heads: there is no such stack */
	return (attention_options){
	    .layout = &bart_attention,
	    .hidden = d,
	    .heads = heads,
	    .kv_heads = heads,
	    .key_width = d / heads,
	    .value_width = d / heads,
	    .std = {.query = c->std, .value = c->std, .output = c->std},
	    .scoring = {.scale = 1 / sqrt((double)d / (double)heads), .dropout = c->weight_dropout},
	};
}

void bart_finish(bart_config *c, config_reader *r)
{
	config_check_heads(r, &c->dims, "encoder_attention_heads", "d_model");
	if (c->decoder.layers > 0) { /* the head reads the decoder's rows */
		c->dims.other_layers = c->encoder.layers;
		c->dims.layers = c->decoder.layers;
		c->dims.heads = c->decoder.heads;
	}
	config_check_parameters(r, bart_count_parameters(c));
	c->dims.dropout = (float)fmax(fmax(c->dropout, c->weight_dropout), fmax(c->inner_dropout, c->head_dropout));
	c->linear_attention = (linear_options){.hidden = c->dims.hidden,
	                                       .heads = c->encoder.heads,
	                                       .bias = true,
	                                       .reads_padding = c->dims.reads_padding,
	                                       .std = c->std,
	                                       .residual_std = c->std};
	c->softmax_attention = softmax_attention(c, &c->encoder);
	c->self_attention = c->cross_attention = softmax_attention(c, &c->decoder);
	c->self_attention.causal = true;
	c->cross_attention.cross = true;
}

/* Rows of norm 1 learn faster than the reference's small ones, as in the additive model. */
bool bart_complete(json_t *json, const model_size *size)
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

json_t *bart_write(const bart_config *c, json_t *own)
{
	json_t *json =
	    json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:s, s:f, s:f, s:f, s:f}", "d_model",
	              (json_int_t)c->dims.hidden, "vocab_size", (json_int_t)c->dims.inputs, "encoder_attention_heads",
	              (json_int_t)c->encoder.heads, "max_position_embeddings", (json_int_t)c->dims.positions,
	              CONFIG_TRAINED, (json_int_t)c->dims.trained, "encoder_layers", (json_int_t)c->encoder.layers,
	              "encoder_ffn_dim", (json_int_t)c->encoder.inner, "num_labels", (json_int_t)c->dims.outputs,
	              "pad_token_id", (json_int_t)c->pad, "scale_embedding", c->scaled, "pad_policy",
	              c->dims.reads_padding ? "ignore" : "mask_keys", "dropout", c->dropout, "activation_dropout",
	              c->inner_dropout, "classifier_dropout", c->head_dropout, "init_std", c->std);
	bool whole = json && own && json_object_update(json, own) == 0;
	json_decref(own);
	if (whole)
		return json;
	json_decref(json);
	return NULL;
}

/* --- parameters ------------------------------------------------------------------------ */

/* NAME.weight [n, k] and NAME.bias [n]. */
static void bart_linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, const char *prefix,
                                   const char *name)
{
	parameter_list_add_matrix(list, (float)std, n, k, false, "%s%s.weight", prefix, name);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), "%s%s.bias", prefix, name);
}

static void layer_prefix(char out[PREFIX_BYTES], const char *stack, int l, const char *part)
{
	snprintf(out, PREFIX_BYTES, "model.%s.layers.%d.%s", stack, l, part);
}

/* Parameters of an attention NAME and the norm after it; those of linear attention have the same names and shapes. */
static void bart_attention_parameters(const attention_options *o, parameter_list *list, const char *stack, int l,
                                      const char *name)
{
	char prefix[PREFIX_BYTES];
	layer_prefix(prefix, stack, l, name);
	builder_layernorm_parameters(list, o->hidden, "%s_layer_norm", prefix);
	snprintf(prefix + strlen(prefix), sizeof prefix - strlen(prefix), ".");
	mixer_attention.parameters(o, prefix, list);
}

static void stack_parameters(const bart_config *c, parameter_list *list, const bart_stack *s, const char *stack)
{
	int64_t d = c->dims.hidden;
	char prefix[PREFIX_BYTES];
	if (s->layers == 0)
		return;
	parameter_list_add(list, INIT_NORMAL, (float)c->std, SHAPE2(c->dims.positions + FIRST_POSITION_ROW, d),
	                   "model.%s.embed_positions.weight", stack);
	builder_layernorm_parameters(list, d, "model.%s.layernorm_embedding", stack);
	for (int l = 0; l < s->layers; l++) {
		const bool decodes = s == &c->decoder;
		bart_attention_parameters(decodes ? &c->self_attention : &c->softmax_attention, list, stack, l,
		                          "self_attn");
		if (decodes)
			bart_attention_parameters(&c->cross_attention, list, stack, l, "encoder_attn");
		layer_prefix(prefix, stack, l, "");
		bart_linear_parameters(list, c->std, s->inner, d, prefix, "fc1");
		bart_linear_parameters(list, c->std, d, s->inner, prefix, "fc2");
		builder_layernorm_parameters(list, d, "%sfinal_layer_norm", prefix);
	}
}

void bart_parameters(const void *config, parameter_list *list)
{
	const bart_config *c = config;
	int64_t d = c->dims.hidden;
	parameter_list_add_matrix(list, (float)c->std, c->dims.inputs, d, false, WORDS);
	parameter_list_alias(list, "model.encoder.embed_tokens.weight", false);
	parameter_list_by_row(list);
	stack_parameters(c, list, &c->encoder, "encoder");
	stack_parameters(c, list, &c->decoder, "decoder");
	bart_linear_parameters(list, c->std, d, d, "classification_head.", "dense");
	parameter_list_add_matrix(list, (float)c->std, c->dims.outputs, d, false,
	                          "classification_head.out_proj.weight");
	parameter_list_head(list);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(c->dims.outputs), "classification_head.out_proj.bias");
}

/* --- forward ------------------------------------------------------------------------------ */

static void name_activation(const builder *b, value v, const char *stack, int l, const char *name)
{
	if (b->spec->out.activations)
		builder_output(b, v, "%s.layers.%d.%s", stack, l, name);
}

value bart_words(builder *b, const bart_config *c)
{
	return builder_words(b, WORDS, c->pad);
}

static value embed(builder *b, const bart_config *c, value words, const char *stack)
{
	char places[PREFIX_BYTES];
	snprintf(places, sizeof places, "model.%s.embed_positions.weight", stack);
	if (c->scaled)
		words = op_scale(b->g, words, sqrtf((float)c->dims.hidden));
	value h = builder_layernorm(b, op_add(b->g, words, builder_places(b, places)), LAYERNORM_EPS,
	                            "model.%s.layernorm_embedding", stack);
	if (b->spec->out.activations)
		builder_output(b, h, "%s.embedding", stack);
	return builder_dropout(b, h, (float)c->dropout);
}

/* Return h plus the output of attention NAME, normalised. */
static value bart_join(builder *b, const bart_config *c, value h, value attended, const char *stack, int l,
                       const char *name)
{
	char prefix[PREFIX_BYTES];
	layer_prefix(prefix, stack, l, name);
	h = op_add(b->g, h, builder_dropout(b, attended, (float)c->dropout));
	return builder_layernorm(b, h, LAYERNORM_EPS, "%s_layer_norm", prefix);
}

static value feed_forward(builder *b, const bart_config *c, value h, const char *stack, int l)
{
	char prefix[PREFIX_BYTES];
	layer_prefix(prefix, stack, l, "");
	value inner = op_gelu(b->g, builder_linear(b, h, "%sfc1", prefix), false);
	value outer = builder_linear(b, builder_dropout(b, inner, (float)c->inner_dropout), "%sfc2", prefix);
	h = builder_layernorm(b, op_add(b->g, h, builder_dropout(b, outer, (float)c->dropout)), LAYERNORM_EPS,
	                      "%sfinal_layer_norm", prefix);
	name_activation(b, h, stack, l, "output");
	return h;
}

static value encoder_layer(builder *b, const bart_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	layer_prefix(prefix, "encoder", l, "self_attn.");
	value attended = c->linear ? mixer_linear.forward(b, &c->linear_attention, l, prefix, h)
	                           : mixer_attention.forward(b, &c->softmax_attention, l, prefix, h);
	name_activation(b, attended, "encoder", l, "attention");
	h = bart_join(b, c, h, attended, "encoder", l, "self_attn");
	name_activation(b, h, "encoder", l, "attention_norm");
	return feed_forward(b, c, h, "encoder", l);
}

value bart_encode(builder *b, const bart_config *c, value words)
{
	value h = embed(b, c, words, "encoder");
	builder_boundary(b);
	b->place = c->decoder.layers > 0 ? ATTENTION_OF_SOURCE : ATTENTION_OF_TOKENS;
	for (int l = 0; l < c->encoder.layers; l++, builder_boundary(b))
		h = encoder_layer(b, c, l, h);
	b->place = ATTENTION_OF_TOKENS;
	return h;
}

static value decoder_layer(builder *b, const bart_config *c, int l, value h, value encoded)
{
	char prefix[PREFIX_BYTES];
	layer_prefix(prefix, "decoder", l, "self_attn.");
	attention_rows own = attention_rows_of(b, h);
	own.key_mask = VALUE_NONE;
	value attended = attention_forward(b, &c->self_attention, l, l, prefix, &own);
	name_activation(b, attended, "decoder", l, "attention");
	h = bart_join(b, c, h, attended, "decoder", l, "self_attn");
	name_activation(b, h, "decoder", l, "attention_norm");
	layer_prefix(prefix, "decoder", l, "encoder_attn.");
	attention_rows cross = attention_rows_of(b, h);
	cross.source = encoded;
	cross.place = ATTENTION_TO_SOURCE;
	attended = attention_forward(b, &c->cross_attention, l, l, prefix, &cross);
	name_activation(b, attended, "decoder", l, "cross_attention");
	h = bart_join(b, c, h, attended, "decoder", l, "encoder_attn");
	return feed_forward(b, c, h, "decoder", l);
}

value bart_decode(builder *b, const bart_config *c, value words, value encoded)
{
	value h = embed(b, c, builder_words_shifted(b, WORDS, c->start, c->pad, words), "decoder");
	builder_boundary(b);
	for (int l = 0; l < c->decoder.layers; l++, builder_boundary(b))
		h = decoder_layer(b, c, l, h, encoded);
	return h;
}

void bart_classes(builder *b, const bart_config *c, value h)
{
	builder_classes(b, h, c->dims.pool, (float)c->head_dropout, "classification_head.dense",
	                "classification_head.out_proj");
}
