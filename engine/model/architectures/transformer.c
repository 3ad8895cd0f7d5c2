/* The transformer with the options of x-transformers (docs/architectures/transformer.md). Its configuration:
 *
 *   {"model_type": "transformer", "stack": "decoder" | "encoder", KEYS …}
 *   {"model_type": "transformer", "stack": "encoder_decoder", "encoder": {KEYS …}, "decoder": {KEYS …},
 *    "tie_token_emb": false}
 *
 * with the keys of transformer/options.def. "compat": "x-transformers-1.6.0" computes what that version does where
 * it differs. */
#include <string.h>

#include "engine/model/transformer/transformer.h"

#define LIST_KEYS "custom_layers", "shift_tokens", "layer_dropout"
#define OWN_KEYS "stack", "compat"

static const char *const stacks[] = {"decoder", "encoder", "encoder_decoder", NULL};

static const char *const single_keys[] = {
    OWN_KEYS,
    LIST_KEYS,
#define OPTION(type, key, fallback, min, max) #key,
#include "engine/model/transformer/options.def"
#undef OPTION
    NULL,
};
static const char *const both_keys[] = {OWN_KEYS, "encoder", "decoder", "tie_token_emb", NULL};

static bool is_both(const json_t *json)
{
	const char *name = json_string_value(json_object_get(json, "stack"));
	return name && strcmp(name, stacks[ARRANGED_BOTH]) == 0;
}

/* Read the options of "encoder" or "decoder". */
static void read_member(config_reader *r, const char *name, bool causal, bool compat, stack_options *out)
{
	json_t *json = json_object_get(r->json, name);
	if (!json_is_object(json))
		config_fail(r, name, "%s must be an object with the keys of a stack", name);
	for (void *i = json_object_iter(json); i; i = json_object_iter_next(json, i))
		if (!stack_options_key(json_object_iter_key(i)))
			config_fail(r, json_object_iter_key(i), "\"%.60s\" is not a key of a stack",
			            json_object_iter_key(i));
	if (r->status == STATUS_OK)
		stack_options_read(r, json, causal, compat, out);
}

static status transformer_read_config(void *config, const json_t *json, error *err)
{
	transformer_config *c = config;
	bool both = is_both(json);
	config_reader r = config_begin(json, &architecture_transformer, both ? both_keys : single_keys, err);
	static const char *const compats[] = {"none", TRANSFORMER_COMPAT, NULL};
	c->arrangement = (arrangement)config_choice(&r, "stack", stacks);
	c->compat = config_choice(&r, "compat", compats) == 1;
	if (both) {
		c->tie_token_emb = config_bool(&r, "tie_token_emb", false);
		read_member(&r, "encoder", false, c->compat, &c->encoder.options);
		read_member(&r, "decoder", true, c->compat, &c->decoder.options);
	} else if (r.status == STATUS_OK) {
		bool causal = c->arrangement == ARRANGED_DECODER;
		stack_options_read(&r, json, causal, c->compat, causal ? &c->decoder.options : &c->encoder.options);
	}
	transformer_finish(&r, c);
	return r.status;
}

/* RMSNorm and SwiGLU without biases, like most models today. Rotary positions only if a stack is alone: they leave no
 * trace in the rows of a source, where a decoder finds positions by their place. */
static bool complete_stack(json_t *json, const model_size *size, bool alone)
{
	static const char *const on[] = {"use_rmsnorm", "ff_glu",        "ff_swish",
	                                 "ff_no_bias",  "tie_embedding", "rotary_pos_emb"};
	const size_t n_on = sizeof on / sizeof *on - !alone;
	static const char *const chosen[] = {
	    "use_abs_pos_emb",    "rel_pos_bias", "alibi_pos_bias", "dynamic_pos_bias", "use_scalenorm",
	    "ff_relu_squared",    "emb_dim",      "ff_mult",        "ff_relu",          "use_unbiased_norm",
	    "sinusoidal_pos_emb", "final_norm"};
	bool plain = false;
	for (size_t i = 0; i < sizeof chosen / sizeof *chosen; i++)
		plain |= json_object_get(json, chosen[i]) != NULL;
	for (size_t i = 0; i < sizeof on / sizeof *on; i++)
		plain |= json_object_get(json, on[i]) != NULL;
	for (size_t i = 0; i < n_on && !plain; i++)
		if (!config_set_missing(json, on[i], json_true()))
			return false;
	if (!plain && !config_set_missing(json, "ff_mult", json_real(8.0 / 3)))
		return false;
	if (!config_set_size(json, "dim", size->hidden) || !config_set_size(json, "heads", size->heads) ||
	    !config_set_size(json, "depth", size->layers) || !config_set_size(json, "num_tokens", size->inputs) ||
	    !config_set_size(json, "max_seq_len", size->positions))
		return false;
	int64_t heads = json_integer_value(json_object_get(json, "heads"));
	int64_t dim = json_integer_value(json_object_get(json, "dim"));
	return (heads < 1 || dim < heads || config_set_size(json, "attn_dim_head", dim / heads)) &&
	       config_set_dropout(json, "emb_dropout", size->dropout) &&
	       config_set_dropout(json, "attn_dropout", size->dropout) &&
	       config_set_dropout(json, "ff_dropout", size->dropout);
}

static bool transformer_complete(json_t *json, const model_size *size)
{
	const arrangement needed = size->form == &form_masked ? ARRANGED_ENCODER : ARRANGED_BOTH;
	if ((size->form == &form_masked || size->form == &form_encoder_decoder) &&
	    !config_set_missing(json, "stack", json_string(stacks[needed])))
		return false;
	if (!is_both(json))
		return complete_stack(json, size, true) && config_set_positions(json, "max_seq_len", size);
	if (size->length < size->positions && !config_set_size(json, CONFIG_TRAINED, size->length))
		return false;
	for (int i = 0; i < 2; i++) {
		const char *name = i ? "decoder" : "encoder";
		if (!config_set_missing(json, name, json_object()))
			return false;
		json_t *member = json_object_get(json, name);
		model_size own = *size;
		if (i == 0 && size->source > 0)
			own.positions = size->source;
		if (json_is_object(member) && (!complete_stack(member, &own, false) ||
		                               !config_set_missing(member, "cross_attend", json_boolean(i))))
			return false;
	}
	return true;
}

static json_t *transformer_write_config(const void *config)
{
	const transformer_config *c = config;
	json_t *json = json_pack("{s:s, s:s, s:I}", "model_type", architecture_transformer.model_type, "stack",
	                         stacks[c->arrangement], CONFIG_TRAINED, (json_int_t)c->dims.trained);
	bool fits = json && (!c->compat || json_object_set_new(json, "compat", json_string(TRANSFORMER_COMPAT)) == 0);
	if (fits && c->arrangement != ARRANGED_BOTH)
		fits = stack_options_write(json, &transformer_head(c)->options, c->compat);
	if (fits && c->arrangement == ARRANGED_BOTH) {
		json_t *encoder = json_object(), *decoder = json_object();
		fits = encoder && decoder && stack_options_write(encoder, &c->encoder.options, c->compat) &&
		       stack_options_write(decoder, &c->decoder.options, c->compat) &&
		       json_object_set(json, "encoder", encoder) == 0 &&
		       json_object_set(json, "decoder", decoder) == 0 &&
		       json_object_set_new(json, "tie_token_emb", json_boolean(c->tie_token_emb)) == 0;
		json_decref(encoder);
		json_decref(decoder);
	}
	if (!fits) {
		json_decref(json);
		return NULL;
	}
	return json;
}

const architecture architecture_transformer = {
    .name = "transformer",
    .model_type = "transformer",
    .config_bytes = sizeof(transformer_config),
    .config_read = transformer_read_config,
    .complete = transformer_complete,
    .config_write = transformer_write_config,
    .parameters = transformer_parameters,
    .ignores = transformer_ignores,
    .mixer = transformer_mixer,
    .source_attention = transformer_source_attention,
    .states = transformer_states,
    .carried = transformer_carried,
    .forward = transformer_forward,
};
