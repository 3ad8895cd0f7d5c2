/* The additive-attention language model.
 *
 *   h = dropout(LN(E[token] + P[position]))          P: only with "position_embedding": "learned"
 *   each layer:  u = additive(h)                     mixers/mixer.h, with its own norm and residual
 *                h = u + dropout(gelu(LN(u) W1ᵀ) W2ᵀ)
 *   logits = (h Eᵀ + b) / √d
 *
 * There is no final LayerNorm. A window that reaches over all n_positions is global: it needs no ring of tokens, and
 * sequences that go past n_positions keep everything they have read in such a layer.
 *
 * The windows already give the order of the tokens, so P can be omitted ("none"). Sequences then have no limit, and
 * n_positions only states the length of those in training.
 *
 * Dropout sites (Philox streams): 0 the embedding; 1 + 3l, 2 + 3l, 3 + 3l in layer l the
 * query round, the key round and the feed-forward. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"

enum {
	DEFAULT_HIDDEN = 256,
	MAX_HIDDEN = 1 << 16,
	MAX_ROWS = 1 << 24, /* vocabulary, positions */
	MAX_WINDOW = 1 << 30,
	FEED_FORWARD = 4, /* inner width over hidden width */
	PREFIX_BYTES = 64,
};
#define LAYERNORM_EPS 1e-5f
#define LAYER "fastformer_model.decoders.%d."
#define ATTENTION LAYER "attention."
#define POSITION_TABLE "fastformer_model.position_embeddings.weight"

typedef struct additive_config {
	model_dims dims;
	int64_t positions;  /* n_positions */
	bool local, listed; /* some windows are local; window_sizes lists them */
	int64_t padding;    /* row of the word vectors whose look-up has no gradient; -1: none */
	bool learned;       /* has a position table */
	int64_t windows[ARCHITECTURE_MAX_LAYERS];
	double dropout, std;
	additive_options layer[ARCHITECTURE_MAX_LAYERS];
} additive_config;

/* --- configuration ---------------------------------------------------------------- */

static void read_windows(additive_config *c, config_reader *r)
{
	const json_t *list = json_object_get(r->json, "window_sizes");
	c->listed = list && !json_is_null(list);
	for (int64_t l = 0; l < c->dims.layers; l++)
		c->windows[l] = c->local && l < c->dims.layers - 1 ? (int64_t)4 << (l < 28 ? l : 28) : c->positions;
	if (!c->listed)
		return;
	if (!c->local)
		config_fail(r, "window_sizes", "window_sizes must be null when use_local_att is false");
	else if (!json_is_array(list) || (int64_t)json_array_size(list) != c->dims.layers)
		config_fail(r, "window_sizes", "window_sizes must be null or a list of n_layer integers");
	for (int64_t l = 0; l < c->dims.layers && r->status == STATUS_OK; l++) {
		const json_t *window = json_array_get(list, (size_t)l);
		c->windows[l] = json_integer_value(window);
		if (!json_is_integer(window) || c->windows[l] < 1 || c->windows[l] > MAX_WINDOW)
			config_fail(r, "window_sizes", "every window must be an integer from 1 to %d", MAX_WINDOW);
	}
}

/* Number of scalars in all parameters; the limits of the keys keep this far from overflow. */
static int64_t additive_count_parameters(const additive_config *c)
{
	int64_t d = c->dims.hidden, layer = (4 + 2 * FEED_FORWARD) * d * d + 8 * d;
	return c->dims.inputs * (d + 1) + (c->learned ? c->positions * d : 0) + 2 * d + c->dims.layers * layer;
}

static void set_layers(additive_config *c)
{
	for (int64_t l = 0; l < c->dims.layers; l++)
		c->layer[l] = (additive_options){
		    .hidden = c->dims.hidden,
		    .heads = c->dims.heads,
		    .window = c->windows[l] < c->positions ? c->windows[l] : 0,
		    .dropout = c->dropout,
		    .std = c->std,
		};
}

static status additive_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "hidden_size",         "vocab_size",        "n_heads",       "n_positions",
	    "position_embedding",  "n_layer",           "use_local_att", "window_sizes",
	    "hidden_dropout_prob", "initializer_range", "padding_row",   NULL,
	};
	additive_config *c = config;
	config_reader r = config_begin(json, &architecture_additive, keys, err);
	c->dims.hidden = config_integer(&r, "hidden_size", DEFAULT_HIDDEN, 1, MAX_HIDDEN);
	c->dims.inputs = config_integer(&r, "vocab_size", 32100, 1, MAX_ROWS);
	c->dims.heads = config_integer(&r, "n_heads", 4, 1, MAX_HIDDEN);
	c->positions = config_integer(&r, "n_positions", 1024, 1, MAX_ROWS);
	c->learned = config_positions(&r, true); /* the reference's models have the table but not the key */
	c->dims.positions = c->learned ? c->positions : MODEL_UNBOUNDED;
	c->dims.trained = config_trained(&r, c->positions, c->dims.positions);
	c->dims.layers = config_integer(&r, "n_layer", 4, 1, ARCHITECTURE_MAX_LAYERS);
	c->local = config_bool(&r, "use_local_att", true);
	read_windows(c, &r);
	c->dropout = config_number(&r, "hidden_dropout_prob", 0.1, 0, 0.999);
	c->std = config_number(&r, "initializer_range", 0.02, 0, 100);
	c->padding = config_integer(&r, "padding_row", 0, -1, c->dims.inputs - 1); /* the reference's value */
	config_check_heads(&r, &c->dims, "n_heads", "hidden_size");
	config_check_parameters(&r, additive_count_parameters(c));
	c->dims.outputs = c->dims.inputs;
	c->dims.form = &form_causal;
	c->dims.dropout = (float)c->dropout;
	set_layers(c);
	return r.status;
}

/* Without a position table the model learns better and has no limit (tests/bench/positions.py).
 *
 * The reference's initialisation of 0.02 makes embeddings so small that the first steps of Adam, whose size is the rate
 * for any gradient, make the embeddings of all tokens alike. For some hundred steps, longer at a higher rate, the model
 * knows frequencies only. With 1/√d a row has norm 1. Bits per byte after 200 steps of 8 × 128 bytes, d 128, 6 layers:
 * at a rate of 5e-4, 4.64 with 0.02 and 3.51 with 0.1; at 2e-3, 3.31 with 0.1. */
static bool additive_complete(json_t *json, const model_size *size)
{
	if (!config_set_size(json, "hidden_size", size->hidden) || !config_set_size(json, "n_heads", size->heads) ||
	    !config_set_size(json, "n_layer", size->layers) || !config_set_size(json, "vocab_size", size->inputs) ||
	    !config_set_dropout(json, "hidden_dropout_prob", size->dropout) ||
	    !config_set_positions(json, "n_positions", size))
		return false;
	if (size->padding != 0 && !config_set_missing(json, "padding_row", json_integer(size->padding)))
		return false;
	double d = json_number_value(json_object_get(json, "hidden_size"));
	return config_set_missing(json, "position_embedding", json_string("none")) &&
	       (d < 1 || config_set_missing(json, "initializer_range", json_real(1 / sqrt(d))));
}

static json_t *additive_write_config(const void *config)
{
	const additive_config *c = config;
	json_t *windows = c->listed ? json_array() : json_null();
	for (int64_t l = 0; c->listed && l < c->dims.layers; l++) {
		if (json_array_append_new(windows, json_integer(c->windows[l])) != 0) {
			json_decref(windows);
			return NULL;
		}
	}
	/* Row 0, which every model had before the key existed, is not written. */
	json_t *padding = c->padding == 0 ? NULL : json_integer((json_int_t)c->padding);
	if (c->padding != 0 && !padding) {
		json_decref(windows);
		return NULL;
	}
	return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:b, s:o, s:f, s:f, s:o*}", "model_type",
	                 architecture_additive.model_type, "hidden_size", (json_int_t)c->dims.hidden, "vocab_size",
	                 (json_int_t)c->dims.inputs, "n_heads", (json_int_t)c->dims.heads, "n_positions",
	                 (json_int_t)c->positions, "position_embedding", c->learned ? "learned" : "none",
	                 CONFIG_TRAINED, (json_int_t)c->dims.trained, "n_layer", (json_int_t)c->dims.layers,
	                 "use_local_att", c->local, "window_sizes", windows, "hidden_dropout_prob", c->dropout,
	                 "initializer_range", c->std, "padding_row", padding);
}

static const mixer *additive_layer_mixer(const void *config, int64_t layer, const void **options)
{
	*options = &((const additive_config *)config)->layer[layer];
	return &mixer_additive;
}

/* One float, so the state is never empty: a window of 1 remembers nothing. */
static void additive_states(const void *config, state_list *list)
{
	(void)config;
	state_list_add(list, STATE_RECURRENT, 1, "spare");
}

/* --- parameters ---------------------------------------------------------------------- */

static void additive_parameters(const void *config, parameter_list *list)
{
	const additive_config *c = config;
	int64_t d = c->dims.hidden, inner = FEED_FORWARD * d;
	float std = (float)c->std;
	parameter_list_add_matrix(list, std, c->dims.inputs, d, false, "word_embedding.weight");
	parameter_list_alias(list, "proj_logits.weight", true);
	parameter_list_by_row(list);
	parameter_list_add(list, INIT_ZERO, 0, SHAPE1(c->dims.inputs), "proj_logits.bias");
	if (c->learned)
		parameter_list_add(list, INIT_NORMAL, std, SHAPE2(c->positions, d), POSITION_TABLE);
	builder_layernorm_parameters(list, d, "fastformer_model.LayerNorm");
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		mixer_additive.parameters(&c->layer[l], prefix, list);
		builder_layernorm_parameters(list, d, LAYER "boom_norm", l);
		parameter_list_add_matrix(list, std, inner, d, false, LAYER "boom.weight", l);
		parameter_list_add_matrix(list, std, d, inner, false, LAYER "unboom.weight", l);
	}
}

/* --- forward -------------------------------------------------------------------------- */

static value additive_layer_forward(builder *b, const additive_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	value u = mixer_additive.forward(b, &c->layer[l], l, prefix, h);
	if (l == c->dims.layers - 1)
		u = builder_needed_rows(b, u);
	value inner = builder_linear(b, builder_layernorm(b, u, LAYERNORM_EPS, LAYER "boom_norm", l), LAYER "boom", l);
	value outer = builder_linear(b, op_gelu(b->g, inner, false), LAYER "unboom", l);
	return op_add(b->g, u, builder_dropout(b, outer, (float)c->dropout));
}

static void additive_forward(const void *config, builder *b)
{
	const additive_config *c = config;
	value h = builder_embed(b, "word_embedding.weight", c->padding, 1, c->learned ? POSITION_TABLE : NULL);
	if (!c->learned)
		builder_normed_words(b);
	h = builder_layernorm(b, h, LAYERNORM_EPS, "fastformer_model.LayerNorm");
	h = builder_dropout(b, h, (float)c->dropout);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = additive_layer_forward(b, c, l, h);
	builder_vocabulary(b, h, builder_parameter(b, "word_embedding.weight"),
	                   builder_parameter(b, "proj_logits.bias"), (float)(1 / sqrt((double)c->dims.hidden)));
}

const architecture architecture_additive = {
    .name = "additive",
    .model_type = "FastformerForCausalLM",
    .config_bytes = sizeof(additive_config),
    .config_read = additive_read_config,
    .complete = additive_complete,
    .config_write = additive_write_config,
    .parameters = additive_parameters,
    .mixer = additive_layer_mixer,
    .carries_states = true,
    .states = additive_states,
    .forward = additive_forward,
};
