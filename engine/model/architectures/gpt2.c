/* GPT-2 (Radford et al. 2019), as Hugging Face's GPT2LMHeadModel computes it.
 *
 *   h = dropout(E[token] + P[position])
 *   each layer:  h = h + dropout(softmax(LN(h)))     mixers/mixer.h
 *                h = h + dropout(gelu(LN(h) W_1ᵀ + b) W_2ᵀ + b)
 *   logits = LN(h) Eᵀ
 *
 * A session's state is the caches of its layers, each of the last n_positions tokens; a session that reads on past
 * n_positions (position policy clamp or wrap) attends to the last n_positions.
 *
 * Checkpoints hold linear weights as [inputs, outputs] (Conv1D); ours are [outputs, inputs]. Those
 * of the original release have no "transformer." before their names, and hold causal masks.
 *
 * Dropout sites (Philox streams): 0 the embedding; 1 + 3l, 2 + 3l, 3 + 3l in layer l the attention
 * weights, the attention's output and the feed-forward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"

enum {
	MAX_HIDDEN = 1 << 16,
	MAX_INNER = 1 << 18,
	MAX_ROWS = 1 << 24, /* vocabulary, positions */
	FEED_FORWARD = 4,   /* default inner width over hidden width */
	PREFIX_BYTES = 64,
	END_OF_TEXT = 50256 /* default first and last token of programs that read a config.json */
};
#define PREFIX "transformer."
#define LAYER PREFIX "h.%d."
#define ATTENTION LAYER "attn."

typedef struct gpt2_config {
	model_dims dims;
	int64_t inner;            /* n_inner; 0: null */
	int activation;           /* index in activations */
	double resid, embd, attn; /* dropout */
	double eps, std;
	bool scaled, scaled_by_layer;
	int cache; /* CONFIG_CACHE_… */
	attention_options layer[ARCHITECTURE_MAX_LAYERS];
} gpt2_config;

enum { GELU_EXACT = 2 };
static const char *const activations[] = {"gelu_new", "gelu_pytorch_tanh", [GELU_EXACT] = "gelu", NULL};

/* --- configuration ---------------------------------------------------------------- */

/* Number of scalars in all parameters; the limits of the keys keep this far from overflow. */
static int64_t gpt2_count_parameters(const gpt2_config *c, int64_t inner)
{
	int64_t d = c->dims.hidden, layer = 4 * d * d + 2 * d * inner + 9 * d + inner;
	return (c->dims.inputs + c->dims.positions) * d + 2 * d + c->dims.layers * layer;
}

static int64_t inner_width(const gpt2_config *c)
{
	return c->inner ? c->inner : FEED_FORWARD * c->dims.hidden;
}

/* Deviation for matrices that are added to the residual stream. */
static double residual_std(const gpt2_config *c)
{
	return c->std / sqrt(2 * (double)c->dims.layers);
}

static const attention_layout gpt2_attention = {
    .names = {[ATTENTION_QUERY] = "c_attn", [ATTENTION_OUTPUT] = "c_proj"},
    .bias = true,
    .transposed = true,
};

static void set_layers(gpt2_config *c)
{
	const model_dims *d = &c->dims;
	double scale = c->scaled ? 1 / sqrt((double)d->hidden / (double)d->heads) : 1;
	for (int64_t l = 0; l < d->layers; l++) {
		c->layer[l] = (attention_options){
		    .layout = &gpt2_attention,
		    .hidden = d->hidden,
		    .heads = d->heads,
		    .kv_heads = d->heads,
		    .key_width = d->hidden / d->heads,
		    .value_width = d->hidden / d->heads,
		    .causal = true,
		    .std = {.query = c->std, .value = c->std, .output = residual_std(c)},
		    .reach = {.capacity = d->positions, .bf16 = c->cache == CONFIG_CACHE_BF16},
		    .scoring = {.scale = c->scaled_by_layer ? scale / (double)(l + 1) : scale, .dropout = c->attn},
		};
	}
}

static status gpt2_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "vocab_size",
	    "n_positions",
	    "n_embd",
	    "n_layer",
	    "n_head",
	    "n_inner",
	    "activation_function",
	    "resid_pdrop",
	    "embd_pdrop",
	    "attn_pdrop",
	    "layer_norm_epsilon",
	    "initializer_range",
	    "scale_attn_weights",
	    "scale_attn_by_inverse_layer_idx",
	    CONFIG_CACHE,
	    /* Written by some versions of the ecosystem; unused here. */
	    "gradient_checkpointing",
	    "n_ctx",
	    "n_special",
	    "num_labels",
	    "predict_special_tokens",
	    "reorder_and_upcast_attn",
	    "summary_activation",
	    "summary_first_dropout",
	    "summary_proj_to_labels",
	    "summary_type",
	    "summary_use_proj",
	    NULL,
	};
	gpt2_config *c = config;
	config_reader r = config_begin(json, &architecture_gpt2, keys, err);
	c->dims.inputs = config_integer(&r, "vocab_size", 50257, 1, MAX_ROWS);
	c->dims.positions = config_integer(&r, "n_positions", 1024, 1, MAX_ROWS);
	c->dims.trained = config_trained(&r, c->dims.positions, c->dims.positions);
	c->dims.hidden = config_integer(&r, "n_embd", 768, 1, MAX_HIDDEN);
	c->dims.layers = config_integer(&r, "n_layer", 12, 1, ARCHITECTURE_MAX_LAYERS);
	c->dims.heads = config_integer(&r, "n_head", 12, 1, MAX_HIDDEN);
	if (!json_is_null(json_object_get(json, "n_inner")))
		c->inner = config_integer(&r, "n_inner", 0, 1, MAX_INNER);
	c->activation = config_choice(&r, "activation_function", activations);
	c->resid = config_number(&r, "resid_pdrop", 0.1, 0, 0.999);
	c->embd = config_number(&r, "embd_pdrop", 0.1, 0, 0.999);
	c->attn = config_number(&r, "attn_pdrop", 0.1, 0, 0.999);
	c->eps = config_number(&r, "layer_norm_epsilon", 1e-5, 1e-12, 1);
	c->std = config_number(&r, "initializer_range", 0.02, 0, 100);
	c->cache = config_choice(&r, CONFIG_CACHE, config_cache_dtypes);
	c->scaled = config_bool(&r, "scale_attn_weights", true);
	c->scaled_by_layer = config_bool(&r, "scale_attn_by_inverse_layer_idx", false);
	if (!config_bool(&r, "tie_word_embeddings", true))
		config_fail(&r, "tie_word_embeddings", "tie_word_embeddings must be true");
	if (config_bool(&r, "add_cross_attention", false))
		config_fail(&r, "add_cross_attention", "add_cross_attention must be false");
	config_check_heads(&r, &c->dims, "n_head", "n_embd");
	config_check_parameters(&r, gpt2_count_parameters(c, inner_width(c)));
	c->dims.outputs = c->dims.inputs;
	c->dims.form = &form_causal;
	c->dims.dropout = (float)fmax(c->resid, fmax(c->embd, c->attn));
	set_layers(c);
	return r.status;
}

static bool gpt2_complete(json_t *json, const model_size *size)
{
	return config_set_size(json, "n_embd", size->hidden) && config_set_size(json, "n_head", size->heads) &&
	       config_set_size(json, "n_layer", size->layers) && config_set_size(json, "vocab_size", size->inputs) &&
	       config_set_dropout(json, "embd_pdrop", size->dropout) &&
	       config_set_dropout(json, "resid_pdrop", size->dropout) &&
	       config_set_dropout(json, "attn_pdrop", size->dropout) && config_set_positions(json, "n_positions", size);
}

static json_t *gpt2_write_config(const void *config)
{
	const gpt2_config *c = config;
	json_t *json = json_pack(
	    "{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:f, s:f, s:f, s:f, s:f, s:b, s:b, s:b}",
	    "model_type", architecture_gpt2.model_type, "architectures", "GPT2LMHeadModel", "vocab_size",
	    (json_int_t)c->dims.inputs, "n_positions", (json_int_t)c->dims.positions, CONFIG_TRAINED,
	    (json_int_t)c->dims.trained, "n_embd", (json_int_t)c->dims.hidden, "n_layer", (json_int_t)c->dims.layers,
	    "n_head", (json_int_t)c->dims.heads, "n_inner", c->inner ? json_integer(c->inner) : json_null(),
	    "activation_function", activations[c->activation], "resid_pdrop", c->resid, "embd_pdrop", c->embd,
	    "attn_pdrop", c->attn, "layer_norm_epsilon", c->eps, "initializer_range", c->std, "scale_attn_weights",
	    c->scaled, "scale_attn_by_inverse_layer_idx", c->scaled_by_layer, "tie_word_embeddings", true);
	bool whole = json != NULL;
	/* Other programs would assume a token that this vocabulary lacks. */
	if (whole && c->dims.inputs <= END_OF_TEXT)
		whole = json_object_set_new(json, "bos_token_id", json_null()) == 0 &&
		        json_object_set_new(json, "eos_token_id", json_null()) == 0;
	if (whole && c->cache != CONFIG_CACHE_F32)
		whole = json_object_set_new(json, CONFIG_CACHE, json_string(config_cache_dtypes[c->cache])) == 0;
	if (whole)
		return json;
	json_decref(json);
	return NULL;
}

static const mixer *gpt2_layer_mixer(const void *config, int64_t layer, const void **options)
{
	*options = &((const gpt2_config *)config)->layer[layer];
	return &mixer_attention;
}

/* --- parameters ---------------------------------------------------------------------- */

static void gpt2_linear_parameters(parameter_list *list, double std, int64_t n, int64_t k, const char *name, int layer)
{
	parameter_list_add_matrix(list, (float)std, n, k, true, LAYER "%s.weight", layer, name);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(n), LAYER "%s.bias", layer, name);
}

static void gpt2_parameters(const void *config, parameter_list *list)
{
	const gpt2_config *c = config;
	int64_t d = c->dims.hidden, inner = inner_width(c);
	parameter_list_add_matrix(list, (float)c->std, c->dims.inputs, d, false, PREFIX "wte.weight");
	parameter_list_alias(list, "lm_head.weight", false);
	parameter_list_by_row(list);
	parameter_list_add(list, INIT_NORMAL, (float)c->std, SHAPE2(c->dims.positions, d), PREFIX "wpe.weight");
	for (int l = 0; l < c->dims.layers; l++) {
		builder_layernorm_parameters(list, d, LAYER "ln_1", l);
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		mixer_attention.parameters(&c->layer[l], prefix, list);
		builder_layernorm_parameters(list, d, LAYER "ln_2", l);
		gpt2_linear_parameters(list, c->std, inner, d, "mlp.c_fc", l);
		gpt2_linear_parameters(list, residual_std(c), d, inner, "mlp.c_proj", l);
	}
	builder_layernorm_parameters(list, d, PREFIX "ln_f");
}

static bool is_mask(const char *name)
{
	return parameter_name_ends(name, ".attn.bias") || parameter_name_ends(name, ".attn.masked_bias");
}

/* --- forward -------------------------------------------------------------------------- */

static value gpt2_layer_forward(builder *b, const gpt2_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	float eps = (float)c->eps, p = (float)c->resid;
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	value attended =
	    mixer_attention.forward(b, &c->layer[l], l, prefix, builder_layernorm(b, h, eps, LAYER "ln_1", l));
	h = op_add(b->g, h, builder_dropout(b, attended, p));
	if (l == c->dims.layers - 1)
		h = builder_needed_rows(b, h);
	value inner = builder_linear(b, builder_layernorm(b, h, eps, LAYER "ln_2", l), LAYER "mlp.c_fc", l);
	value outer = builder_linear(b, op_gelu(b->g, inner, c->activation != GELU_EXACT), LAYER "mlp.c_proj", l);
	return op_add(b->g, h, builder_dropout(b, outer, p));
}

static void gpt2_forward(const void *config, builder *b)
{
	const gpt2_config *c = config;
	value h = builder_embed(b, PREFIX "wte.weight", -1, 1, PREFIX "wpe.weight");
	h = builder_dropout(b, h, (float)c->embd);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = gpt2_layer_forward(b, c, l, h);
	h = builder_layernorm(b, h, (float)c->eps, PREFIX "ln_f");
	builder_vocabulary(b, h, builder_parameter(b, PREFIX "wte.weight"), VALUE_NONE, 1);
}

const architecture architecture_gpt2 = {
    .name = "gpt2",
    .model_type = "gpt2",
    .config_bytes = sizeof(gpt2_config),
    .config_read = gpt2_read_config,
    .complete = gpt2_complete,
    .config_write = gpt2_write_config,
    .parameters = gpt2_parameters,
    .prefix = PREFIX,
    .ignores = is_mask,
    .mixer = gpt2_layer_mixer,
    .forward = gpt2_forward,
};
