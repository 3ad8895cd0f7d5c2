/* RWKV-4 (Peng et al. 2023), as Hugging Face's RwkvForCausalLM computes it.
 *
 *   h = LN(E[token])
 *   each layer:  h = h + mix(LN(h))                                          mixer_rwkv
 *                n = LN(h);  n^s = m_s ⊙ n + (1 - m_s) ⊙ n_before, s = k, r
 *                h = h + σ(n^r W_rᵀ) ⊙ (max(n^k W_kᵀ, 0)² W_vᵀ)
 *   logits = LN(h) Hᵀ
 *
 * There are no positions: sequences have no limit, and context_length is the longest sequence of the training.
 *
 * transformers halves h after every rescale_every layers, and what later layers add to it, except in training. That is
 * for 16-bit floats, and all that it changes is ε of the norms of a row that has been halved n times: ε 4^n. So does
 * this model, except with gradients. New models have rescale_every 0, which never halves.
 *
 * ε of the last norm is not layer_norm_epsilon. */
#include <math.h>
#include <stdio.h>

#include "engine/model/architecture.h"
#include "engine/model/config.h"
#include "engine/model/mixers/token_shift.h"

enum {
	MAX_HIDDEN = 1 << 16,
	MAX_INNER = 1 << 18,
	MAX_VOCABULARY = 1 << 24,
	MAX_HALVINGS = 32,
	FEED_FORWARD = 4, /* default inner width over hidden width */
	PREFIX_BYTES = 64
};
#define LAST_EPSILON 1e-5
#define EMBEDDING_STD 1e-4f
#define PREFIX "rwkv."
#define LAYER PREFIX "blocks.%d."
#define ATTENTION LAYER "attention."
#define INNER LAYER "feed_forward."
#define INNER_STATE "inner_before"

typedef struct rwkv_config {
	model_dims dims;
	int64_t inner, rescale_every; /* rescale_every <= 0: never */
	int64_t begin, end;           /* token ids for other programs; -1: none */
	double eps;
	bool tied;
	rwkv_options layer[ARCHITECTURE_MAX_LAYERS];
} rwkv_config;

/* --- configuration ---------------------------------------------------------------- */

/* Return how many times a row is halved before layer l. */
static int64_t halvings(const rwkv_config *c, int64_t l)
{
	return c->rescale_every > 0 ? l / c->rescale_every : 0;
}

static void rwkv_set_layers(rwkv_config *c)
{
	const int64_t n = c->dims.layers;
	for (int64_t l = 0; l < n; l++)
		c->layer[l] = (rwkv_options){.hidden = c->dims.hidden,
		                             .channels = c->dims.heads,
		                             .late = n > 1 ? (double)l / (double)(n - 1) : 0,
		                             .early = 1 - (double)l / (double)n};
}

/* Number of scalars in all parameters, at most; the limits of the keys keep this far from overflow. */
static int64_t rwkv_count_parameters(const rwkv_config *c)
{
	const int64_t d = c->dims.hidden, n = c->dims.heads;
	return 2 * c->dims.inputs * d + c->dims.layers * (4 * n * d + 2 * c->inner * d + d * d + 2 * n + 11 * d);
}

/* Read a width that may be null. */
static int64_t read_width(config_reader *r, const char *key, int64_t fallback, int64_t max)
{
	return json_is_null(json_object_get(r->json, key)) ? fallback : config_integer(r, key, fallback, 1, max);
}

/* Read a token id or the first of a list; absent: 0. */
static int64_t read_token(const json_t *json, const char *key)
{
	const json_t *id = json_object_get(json, key);
	if (!id)
		return 0;
	id = json_is_array(id) ? json_array_get(id, 0) : id;
	return json_is_integer(id) ? json_integer_value(id) : -1;
}

static status rwkv_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    "vocab_size",        "context_length",        "hidden_size",
	    "num_hidden_layers", "attention_hidden_size", "intermediate_size",
	    "rescale_every",     "layer_norm_epsilon",    NULL,
	};
	rwkv_config *c = config;
	config_reader r = config_begin(json, &architecture_rwkv, keys, err);
	c->dims.hidden = config_integer(&r, "hidden_size", 4096, 1, MAX_HIDDEN);
	c->dims.inputs = c->dims.outputs = config_integer(&r, "vocab_size", 50277, 1, MAX_VOCABULARY);
	c->dims.layers = config_integer(&r, "num_hidden_layers", 32, 1, ARCHITECTURE_MAX_LAYERS);
	c->dims.heads = read_width(&r, "attention_hidden_size", c->dims.hidden, MAX_HIDDEN);
	c->inner = read_width(&r, "intermediate_size", FEED_FORWARD * c->dims.hidden, MAX_INNER);
	c->dims.positions = MODEL_UNBOUNDED;
	c->dims.trained =
	    config_trained(&r, config_integer(&r, "context_length", 1024, 1, MODEL_UNBOUNDED), MODEL_UNBOUNDED);
	c->rescale_every = config_integer(&r, "rescale_every", 6, INT32_MIN, INT32_MAX);
	c->eps = config_number(&r, "layer_norm_epsilon", 1e-5, 1e-12, 1);
	c->tied = config_bool(&r, "tie_word_embeddings", false);
	c->begin = read_token(json, "bos_token_id");
	c->end = read_token(json, "eos_token_id");
	if (halvings(c, c->dims.layers) > MAX_HALVINGS)
		config_fail(&r, "rescale_every", "rescale_every must not halve a row more than %d times", MAX_HALVINGS);
	config_check_parameters(&r, rwkv_count_parameters(c));
	c->dims.form = &form_causal;
	rwkv_set_layers(c);
	return r.status;
}

static bool rwkv_complete(json_t *json, const model_size *size)
{
	return config_set_size(json, "hidden_size", size->hidden) &&
	       config_set_size(json, "num_hidden_layers", size->layers) &&
	       config_set_size(json, "vocab_size", size->inputs) &&
	       config_set_size(json, "context_length", size->length) &&
	       config_set_missing(json, "rescale_every", json_integer(0)) &&
	       config_set_missing(json, "bos_token_id", json_null()) &&
	       config_set_missing(json, "eos_token_id", size->end < 0 ? json_null() : json_integer(size->end));
}

static json_t *token_or_null(int64_t id)
{
	return id < 0 ? json_null() : json_integer(id);
}

static json_t *rwkv_write_config(const void *config)
{
	const rwkv_config *c = config;
	return json_pack("{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:b, s:o, s:o}", "model_type",
	                 architecture_rwkv.model_type, "architectures", "RwkvForCausalLM", "vocab_size",
	                 (json_int_t)c->dims.inputs, "context_length", (json_int_t)c->dims.trained, CONFIG_TRAINED,
	                 (json_int_t)c->dims.trained, "hidden_size", (json_int_t)c->dims.hidden, "num_hidden_layers",
	                 (json_int_t)c->dims.layers, "attention_hidden_size", (json_int_t)c->dims.heads,
	                 "intermediate_size", (json_int_t)c->inner, "rescale_every", (json_int_t)c->rescale_every,
	                 "layer_norm_epsilon", c->eps, "tie_word_embeddings", c->tied, "bos_token_id",
	                 token_or_null(c->begin), "eos_token_id", token_or_null(c->end));
}

static const mixer *rwkv_layer_mixer(const void *config, int64_t layer, const void **options)
{
	*options = &((const rwkv_config *)config)->layer[layer];
	return &mixer_rwkv;
}

static void rwkv_inner_states(const void *config, state_list *list)
{
	const rwkv_config *c = config;
	for (int l = 0; l < c->dims.layers; l++)
		token_shift_states(list, l, INNER_STATE, c->dims.hidden);
}

/* --- parameters ---------------------------------------------------------------------- */

/* transformers begins with orthogonal matrices; these have numbers of the same variance. */
static void rwkv_inner_parameters(parameter_list *list, const rwkv_config *c, int l)
{
	const int64_t d = c->dims.hidden;
	const float std = (float)(1 / sqrt((double)d));
	const parameter_curve curve = {0, 1, (double)d, c->layer[l].early};
	char prefix[PREFIX_BYTES];
	snprintf(prefix, sizeof prefix, INNER, l);
	token_shift_curve(list, d, curve, prefix, "time_mix_key");
	token_shift_curve(list, d, curve, prefix, "time_mix_receptance");
	parameter_list_add_matrix(list, std, c->inner, d, false, "%skey.weight", prefix);
	parameter_list_add_matrix(list, std, d, d, false, "%sreceptance.weight", prefix);
	parameter_list_add_matrix(list, (float)(1 / sqrt((double)c->inner)), d, c->inner, false, "%svalue.weight",
	                          prefix);
}

static void rwkv_model_parameters(const void *config, parameter_list *list)
{
	const rwkv_config *c = config;
	const int64_t d = c->dims.hidden;
	parameter_list_add_matrix(list, EMBEDDING_STD, c->dims.inputs, d, false, PREFIX "embeddings.weight");
	if (c->tied)
		parameter_list_alias(list, "head.weight", false);
	parameter_list_by_row(list);
	builder_layernorm_parameters(list, d, LAYER "pre_ln", 0);
	for (int l = 0; l < c->dims.layers; l++) {
		char prefix[PREFIX_BYTES];
		builder_layernorm_parameters(list, d, LAYER "ln1", l);
		builder_layernorm_parameters(list, d, LAYER "ln2", l);
		snprintf(prefix, sizeof prefix, ATTENTION, l);
		mixer_rwkv.parameters(&c->layer[l], prefix, list);
		rwkv_inner_parameters(list, c, l);
	}
	builder_layernorm_parameters(list, d, PREFIX "ln_out");
	if (!c->tied) {
		parameter_list_add_matrix(list, (float)(0.5 / sqrt((double)d)), c->dims.outputs, d, false,
		                          "head.weight");
		parameter_list_head(list);
	}
}

/* --- forward -------------------------------------------------------------------------- */

/* Return ε for a row that transformers has halved n times. */
static float epsilon(const builder *b, double eps, int64_t n)
{
	return (float)ldexp(eps, b->spec->train.backward ? 0 : 2 * (int)n);
}

/* Append what the feed-forward layer adds to h. The rows that the logits need are selected after the shift. */
static value rwkv_inner_forward(builder *b, const rwkv_config *c, int l, value *h)
{
	graph *g = b->g;
	char prefix[PREFIX_BYTES];
	const float eps = epsilon(b, c->eps, halvings(c, l));
	snprintf(prefix, sizeof prefix, INNER, l);
	const value n = builder_layernorm(b, *h, eps, LAYER "ln2", l);
	const value before = token_shift_before(b, l, INNER_STATE, n);
	value from_k = token_shift_towards(b, before, n, prefix, "time_mix_key");
	value from_r = token_shift_towards(b, before, n, prefix, "time_mix_receptance");
	if (l == c->dims.layers - 1) {
		from_k = builder_needed_rows(b, from_k);
		from_r = builder_needed_rows(b, from_r);
		*h = builder_needed_rows(b, *h);
	}
	const value inner = op_activation(g, builder_product(b, from_k, "%skey.weight", prefix), ACTIVATION_RELU2);
	const value gate =
	    op_activation(g, builder_product(b, from_r, "%sreceptance.weight", prefix), ACTIVATION_SIGMOID);
	return op_mul(g, builder_product(b, inner, "%svalue.weight", prefix), gate);
}

static value rwkv_layer_forward(builder *b, const rwkv_config *c, int l, value h)
{
	char prefix[PREFIX_BYTES];
	const float eps = epsilon(b, c->eps, halvings(c, l));
	snprintf(prefix, sizeof prefix, ATTENTION, l);
	const value n = builder_layernorm(b, h, eps, LAYER "ln1", l);
	h = op_add(b->g, h, mixer_rwkv.forward(b, &c->layer[l], l, prefix, n));
	const value inner = rwkv_inner_forward(b, c, l, &h);
	return op_add(b->g, h, inner);
}

static void rwkv_model_forward(const void *config, builder *b)
{
	const rwkv_config *c = config;
	const char *const table = PREFIX "embeddings.weight";
	value h = builder_embed(b, table, -1, 1, NULL);
	builder_normed_words(b);
	h = builder_layernorm(b, h, epsilon(b, c->eps, 0), LAYER "pre_ln", 0);
	builder_boundary(b);
	for (int l = 0; l < c->dims.layers; l++, builder_boundary(b))
		h = rwkv_layer_forward(b, c, l, h);
	h = builder_layernorm(b, h, epsilon(b, LAST_EPSILON, halvings(c, c->dims.layers)), PREFIX "ln_out");
	builder_vocabulary(b, h, builder_parameter(b, c->tied ? table : "head.weight"), VALUE_NONE, 1);
}

const architecture architecture_rwkv = {
    .name = "rwkv",
    .model_type = "rwkv",
    .config_bytes = sizeof(rwkv_config),
    .config_read = rwkv_read_config,
    .complete = rwkv_complete,
    .config_write = rwkv_write_config,
    .parameters = rwkv_model_parameters,
    .prefix = PREFIX,
    .mixer = rwkv_layer_mixer,
    .states = rwkv_inner_states,
    .carries_states = true,
    .forward = rwkv_model_forward,
};
