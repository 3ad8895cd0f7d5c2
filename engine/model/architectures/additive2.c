/* Additive attention that forgets, in a block with RMS norms and SwiGLU.
 *
 *   h = dropout(E[token])
 *   each layer:  h = h + dropout(mix(RMS(h; norm1)))
 *                h = h + dropout((SiLU(u) ⊙ q) W2ᵀ),  u | q = RMS(h; norm2) W1ᵀ
 *   logits = RMS(h; norm) Eᵀ
 *
 * mix is mixer_forgetting, mixer_gated_softmax in window_layers, mixer_gated_linear in linear_layers, or with
 * window_sizes mixer_gated_additive in all layers.
 *
 *   {"model_type": "additive2", "hidden_size": 128, "vocab_size": 259, "n_heads": 16, "n_layer": 6,
 *    "intermediate_size": 384, "forget": "data" | "const" | "none", "tau": [2, 512], "shift": true, "gate": true,
 *    "group_norm": true, "dropout": 0.1, "window_layers": [2, 5], "window": 128, "window_heads": 4,
 *    "rotary_base": 10000, "linear_layers": [], "window_sizes": []}
 *
 * tau: the time constants, in tokens, with which a new model's first and last head forget; those between are geometric.
 *
 * window_heads: of all layers with another mixer than mixer_forgetting. window_sizes: the window of each layer; 0: all
 * tokens; an empty list: no layer has that mixer.
 *
 * W_o and W_2 start as zeros, so that a layer begins as the identity, and scores start equal. There are no positions:
 * sequences have no limit.
 *
 * Dropout sites (Philox streams), in this order: the embedding; in each layer those of mixer_gated_additive, the mixer,
 * the feed-forward. */
#include <math.h>
#include <stdio.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"

enum {
	MAX_HIDDEN = 1 << 16,
	MAX_VOCABULARY = 1 << 24,
	MAX_WINDOW = 1 << 20,
	HEAD_WIDTH = 8, /* channels of a head of a new model */
	USUAL_LENGTH = 1024,
	PREFIX_BYTES = 64,
};
#define EPSILON 1e-6
#define LAYER "layers.%d."

static const char *const forgets[] = {"data", "const", "none", NULL};

/* Mixers in the place of mixer_forgetting, and the keys that list their layers. */
static const struct {
	const char *key;
	const mixer *mixer;
} kinds[] = {{"window_layers", &mixer_gated_softmax}, {"linear_layers", &mixer_gated_linear}};
enum { SOFTMAX, LINEAR, KINDS };

typedef struct additive2_config {
	model_dims dims;
	int64_t inner;
	double dropout, shortest, longest; /* time constants */
	int64_t window, other_heads;
	double rotary_base;
	forgetting_options forgetting;
	const mixer *mixers[ARCHITECTURE_MAX_LAYERS]; /* NULL: mixer_forgetting */
	gated_options others[ARCHITECTURE_MAX_LAYERS];
	int64_t windows[ARCHITECTURE_MAX_LAYERS]; /* for mixer_gated_additive */
} additive2_config;

/* --- configuration --------------------------------------------------------------------------------------- */

static void read_layers(additive2_config *c, config_reader *r, int kind)
{
	const char *key = kinds[kind].key;
	const json_t *list = json_object_get(r->json, key), *layer;
	size_t i;
	if (list && !json_is_null(list) && !json_is_array(list))
		config_fail(r, key, "%s must be a list of layers, the first of which is 0", key);
	json_array_foreach(list, i, layer)
	{
		const json_int_t l = json_integer_value(layer);
		if (!json_is_integer(layer) || l < 0 || l >= c->dims.layers)
			config_fail(r, key, "every layer of %s must be an integer from 0 to %lld", key,
			            (long long)c->dims.layers - 1);
		else if (c->mixers[l] && c->mixers[l] != kinds[kind].mixer)
			config_fail(r, key, "layer %lld has another attention", (long long)l);
		else
			c->mixers[l] = kinds[kind].mixer;
	}
}

/* An explanation has the same rounds in all layers, so either all layers have two or none. */
static void read_window_sizes(additive2_config *c, config_reader *r)
{
	const json_t *sizes = json_object_get(r->json, "window_sizes");
	if (!sizes || json_is_null(sizes) || (json_is_array(sizes) && json_array_size(sizes) == 0))
		return;
	if (!json_is_array(sizes) || (int64_t)json_array_size(sizes) != c->dims.layers)
		config_fail(r, "window_sizes", "window_sizes must be a list of n_layer integers");
	for (size_t l = 0; l < json_array_size(sizes) && r->status == STATUS_OK; l++) {
		const json_t *size = json_array_get(sizes, l);
		c->windows[l] = json_integer_value(size);
		if (!json_is_integer(size) || c->windows[l] < 0 || c->windows[l] > MAX_WINDOW)
			config_fail(r, "window_sizes", "every window must be an integer from 0 (all tokens) to %d",
			            MAX_WINDOW);
		else if (c->mixers[l])
			config_fail(r, "window_sizes",
			            "window_sizes is for all layers, and layer %zu has another attention", l);
		c->mixers[l] = &mixer_gated_additive;
	}
}

static void read_tau(additive2_config *c, config_reader *r)
{
	const json_t *tau = json_object_get(r->json, "tau");
	c->shortest = 2;
	c->longest = 512;
	if (!tau)
		return;
	c->shortest = json_number_value(json_array_get(tau, 0));
	c->longest = json_number_value(json_array_get(tau, 1));
	if (json_array_size(tau) != 2 || !(c->shortest >= 0.1) || !(c->longest >= c->shortest) || !(c->longest <= 1e9))
		config_fail(r, "tau", "tau must be two ascending numbers from 0.1 to 1e9");
}

/* Set the initial rates: σ(β) = e^{-1/τ} and softplus(θ) = 1/τ. */
static void set_rates(additive2_config *c)
{
	forgetting_options *o = &c->forgetting;
	for (int64_t h = 0; h < o->heads; h++) {
		const double part = (double)h / (double)(o->heads > 1 ? o->heads - 1 : 1);
		const double logit = log(expm1(1 / (c->shortest * pow(c->longest / c->shortest, part))));
		o->rate[h] = (float)(o->forget == FORGET_DATA ? -logit : logit);
	}
}

static gated_options other_options(const additive2_config *c, int64_t layer)
{
	static const attention_layout layout = {.names = {"Wq", "Wk", "Wv", "Wo"}};
	const int64_t d = c->dims.hidden, heads = c->other_heads, width = d / heads;
	const forgetting_options *f = &c->forgetting;
	gated_options o = {.hidden = d, .shift = f->shift, .gate = f->gate, .base = c->rotary_base};
	if (c->mixers[layer] == &mixer_gated_linear)
		o.of.linear = (linear_options){.hidden = d, .heads = heads, .causal = true};
	else if (c->mixers[layer] == &mixer_gated_additive)
		o.of.additive = (additive_options){.hidden = d,
		                                   .heads = heads,
		                                   .window = c->windows[layer],
		                                   .dropout = c->dropout,
		                                   .std = 1 / sqrt((double)d)};
	else
		o.of.softmax = (attention_options){.layout = &layout,
		                                   .hidden = d,
		                                   .heads = heads,
		                                   .kv_heads = heads,
		                                   .key_width = width,
		                                   .value_width = width,
		                                   .causal = true,
		                                   .reach.capacity = c->window,
		                                   .scoring.scale = 1 / sqrt((double)width)};
	return o;
}

static void set_mixers(additive2_config *c, config_reader *r)
{
	const int64_t d = c->dims.hidden, heads = c->other_heads;
	for (int64_t l = 0; l < c->dims.layers; l++) {
		if (!c->mixers[l])
			continue;
		if (d % heads != 0)
			config_fail(r, "window_heads", "window_heads must divide hidden_size");
		else if (c->mixers[l] == &mixer_gated_softmax && d / heads % 2 != 0)
			config_fail(r, "window_heads",
			            "window_heads must divide hidden_size into heads of an even width");
		c->others[l] = other_options(c, l);
		/* Weights are given for each head of the layer that has most. */
		if (heads > c->dims.heads)
			c->dims.heads = heads;
	}
	set_rates(c);
}

/* Number of scalars in all parameters, at most; the limits of the keys keep this far from overflow. */
static int64_t additive2_count_parameters(const additive2_config *c)
{
	const int64_t d = c->dims.hidden;
	return c->dims.inputs * d + c->dims.layers * (6 * d * d + 2 * c->dims.heads * d + 3 * c->inner * d + 12 * d);
}

static status additive2_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "hidden_size",  "vocab_size",  "n_heads", "n_layer",       "intermediate_size", "forget",
	    "tau",          "shift",       "gate",    "group_norm",    "window_layers",     "window",
	    "window_heads", "rotary_base", "dropout", "linear_layers", "window_sizes",      NULL,
	};
	additive2_config *c = config;
	forgetting_options *o = &c->forgetting;
	config_reader r = config_begin(json, &architecture_additive2, keys, err);
	c->dims.hidden = o->hidden = config_integer(&r, "hidden_size", 128, 1, MAX_HIDDEN);
	c->dims.inputs = c->dims.outputs = config_integer(&r, "vocab_size", 8000, 1, MAX_VOCABULARY);
	c->dims.heads = o->heads = config_integer(&r, "n_heads", 16, 1, FORGETTING_MAX_HEADS);
	c->dims.layers = config_integer(&r, "n_layer", 6, 1, ARCHITECTURE_MAX_LAYERS);
	c->inner = config_integer(&r, "intermediate_size", 402, 1, MAX_HIDDEN);
	c->dims.positions = MODEL_UNBOUNDED;
	c->dims.trained = config_trained(&r, USUAL_LENGTH, MODEL_UNBOUNDED);
	o->forget = (forget_kind)config_choice(&r, "forget", forgets);
	read_tau(c, &r);
	o->shift = config_bool(&r, "shift", true);
	o->gate = config_bool(&r, "gate", true);
	o->norm = config_bool(&r, "group_norm", true);
	c->dropout = config_number(&r, "dropout", 0.1, 0, 0.999);
	for (int kind = 0; kind < KINDS; kind++)
		read_layers(c, &r, kind);
	read_window_sizes(c, &r);
	c->window = config_integer(&r, "window", 128, 1, MAX_WINDOW);
	c->other_heads = config_integer(&r, "window_heads", 4, 1, MAX_HIDDEN);
	c->rotary_base = config_number(&r, "rotary_base", 10000, 1, 1e9);
	config_check_heads(&r, &c->dims, "n_heads", "hidden_size");
	config_check_parameters(&r, additive2_count_parameters(c));
	c->dims.form = &form_causal;
	c->dims.scale_free = true;
	c->dims.dropout = (float)c->dropout;
	set_mixers(c, &r);
	return r.status;
}

/* The inner width with which a layer has 12 d² parameters, as model_size counts them, in whole vectors. */
static int64_t usual_inner(int64_t d, int64_t heads)
{
	enum { VECTOR = 16 };
	const int64_t inner = (9 * d - 2 * heads) / 3 / VECTOR * VECTOR;
	return inner > VECTOR ? inner : VECTOR;
}

static bool additive2_complete(json_t *json, const model_size *size)
{
	if (!config_set_size(json, "hidden_size", size->hidden) || !config_set_size(json, "n_layer", size->layers) ||
	    !config_set_size(json, "vocab_size", size->inputs) ||
	    !config_set_size(json, CONFIG_TRAINED, size->length) || !config_set_dropout(json, "dropout", size->dropout))
		return false;
	const json_int_t d = json_integer_value(json_object_get(json, "hidden_size"));
	const json_int_t heads = size->usual_heads && d % HEAD_WIDTH == 0 && d / HEAD_WIDTH <= FORGETTING_MAX_HEADS
	                             ? d / HEAD_WIDTH
	                             : size->heads;
	return config_set_size(json, "n_heads", heads) &&
	       config_set_size(json, "intermediate_size", usual_inner(d, heads));
}

/* The layers of a mixer, or their windows. NULL: out of memory. */
static json_t *write_layers(const additive2_config *c, const mixer *m, bool windows)
{
	json_t *list = json_array();
	for (int64_t l = 0; list && l < c->dims.layers; l++)
		if (c->mixers[l] == m && json_array_append_new(list, json_integer(windows ? c->windows[l] : l)) != 0) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static json_t *additive2_write_config(const void *config)
{
	const additive2_config *c = config;
	const forgetting_options *o = &c->forgetting;
	return json_pack(
	    "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:[f, f], s:b, s:b, s:b, s:f, s:o, s:I, s:I, s:f, s:o, s:o}",
	    "model_type", architecture_additive2.model_type, "hidden_size", (json_int_t)o->hidden, "vocab_size",
	    (json_int_t)c->dims.inputs, "n_heads", (json_int_t)o->heads, "n_layer", (json_int_t)c->dims.layers,
	    "intermediate_size", (json_int_t)c->inner, CONFIG_TRAINED, (json_int_t)c->dims.trained, "forget",
	    forgets[o->forget], "tau", c->shortest, c->longest, "shift", o->shift, "gate", o->gate, "group_norm",
	    o->norm, "dropout", c->dropout, kinds[SOFTMAX].key, write_layers(c, kinds[SOFTMAX].mixer, false), "window",
	    (json_int_t)c->window, "window_heads", (json_int_t)c->other_heads, "rotary_base", c->rotary_base,
	    kinds[LINEAR].key, write_layers(c, kinds[LINEAR].mixer, false), "window_sizes",
	    write_layers(c, &mixer_gated_additive, true));
}

static const mixer *additive2_layer_mixer(const void *config, int64_t layer, const void **options)
{
	const additive2_config *c = config;
	*options = c->mixers[layer] ? (const void *)&c->others[layer] : &c->forgetting;
	return c->mixers[layer] ? c->mixers[layer] : &mixer_forgetting;
}

/* --- parameters and forward ------------------------------------------------------------------------------- */

static void additive2_parameters(const void *config, parameter_list *list)
{
	const additive2_config *c = config;
	const int64_t d = c->dims.hidden;
	const float std = (float)(1 / sqrt((double)d));
	parameter_list_add_matrix(list, std, c->dims.inputs, d, false, "embedding.weight");
	parameter_list_alias(list, "embedding", false);
	parameter_list_by_row(list);
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		const void *options;
		snprintf(prefix, sizeof prefix, LAYER "mix.", l);
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(d), LAYER "norm1", l);
		additive2_layer_mixer(c, l, &options)->parameters(options, prefix, list);
		parameter_list_add(list, INIT_ONE, 0, SHAPE1(d), LAYER "norm2", l);
		parameter_list_add_matrix(list, std, 2 * c->inner, d, false, LAYER "W1", l);
		parameter_list_add_matrix(list, 0, d, c->inner, false, LAYER "W2", l);
	}
	parameter_list_add(list, INIT_ONE, 0, SHAPE1(d), "norm");
}

static value additive2_layer_forward(builder *b, const additive2_config *c, int l, value h)
{
	const float p = (float)c->dropout;
	char prefix[PREFIX_BYTES];
	const void *options;
	snprintf(prefix, sizeof prefix, LAYER "mix.", l);
	const mixer *m = additive2_layer_mixer(c, l, &options);
	const value n = builder_rms(b, h, 1, EPSILON, LAYER "norm1", l);
	h = op_add(b->g, h, builder_dropout(b, m->forward(b, options, l, prefix, n), p));
	if (l == c->dims.layers - 1)
		h = builder_needed_rows(b, h);
	const value inner = builder_product(b, builder_rms(b, h, 1, EPSILON, LAYER "norm2", l), LAYER "W1", l);
	const value outer = builder_product(b, op_glu_gate_first(b->g, inner, ACTIVATION_SILU), LAYER "W2", l);
	return op_add(b->g, h, builder_dropout(b, outer, p));
}

static void additive2_forward(const void *config, builder *b)
{
	const additive2_config *c = config;
	value h = builder_embed(b, "embedding.weight", -1, 1, NULL);
	builder_normed_words(b);
	h = builder_dropout(b, h, (float)c->dropout);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = additive2_layer_forward(b, c, l, h);
	builder_vocabulary(b, builder_rms(b, h, 1, EPSILON, "norm"), builder_parameter(b, "embedding.weight"),
	                   VALUE_NONE, 1);
}

const architecture architecture_additive2 = {
    .name = "additive2",
    .model_type = "additive2",
    .config_bytes = sizeof(additive2_config),
    .config_read = additive2_read_config,
    .complete = additive2_complete,
    .config_write = additive2_write_config,
    .parameters = additive2_parameters,
    .mixer = additive2_layer_mixer,
    .carries_states = true,
    .forward = additive2_forward,
};
