/* Folders of x-transformers 1.6.0: the arguments of its constructors, and its tensor names. A model of this kind
 * computes what that version does ("compat" of the transformer).
 *
 *   {"model_type": "x-transformers", "TransformerWrapper": {…}, "Decoder" | "Encoder": {…}, "AutoregressiveWrapper":
 * {…}}
 *   {"model_type": "x-transformers", "XTransformer": {"dim": …, "enc_depth": …, "dec_depth": …, …}} */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/transformer/transformer.h"

#define PREFIX_LENGTH 4 /* length of "enc_" and "dec_" */

/* Arguments that do not affect what a model computes. */
static const char *const dropped[] = {"ignore_index", "pad_value", "return_only_embed", NULL};

/* Arguments of TransformerWrapper. */
static const char *const wrapper_keys[] = {
    "num_tokens",    "max_seq_len",    "emb_dim",     "use_abs_pos_emb",   "l2norm_embed",
    "post_emb_norm", "tie_embedding",  "emb_dropout", "num_memory_tokens", "emb_frac_gradient",
    "max_mem_len",   "shift_mem_down", NULL};
/* Arguments that XTransformer passes on to its two wrappers; num_memory_tokens only to the encoder's. */
static const char *const passed_keys[] = {"num_tokens", "max_seq_len", "emb_dropout", NULL};

static bool listed(const char *key, const char *const *keys)
{
	for (int i = 0; keys[i]; i++)
		if (strcmp(key, keys[i]) == 0)
			return true;
	return false;
}

static bool is_dropped(const char *key)
{
	return listed(key, dropped);
}

/* Check that each argument is given to the constructor that reads it. x-transformers ignores or refuses it
 * elsewhere. */
static void check_part(config_reader *r, const json_t *whole, const char *part)
{
	const bool wrapper = strcmp(part, "TransformerWrapper") == 0, loss = strcmp(part, "AutoregressiveWrapper") == 0;
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)json_object_get(whole, part), key, member)
	{
		const bool outer = listed(key, wrapper_keys), masks = strcmp(key, "mask_prob") == 0;
		const char *owner = outer   ? "TransformerWrapper"
		                    : masks ? "AutoregressiveWrapper"
		                            : "Decoder or Encoder";
		const bool fits = loss ? masks : wrapper ? outer : !outer && !masks;
		if (!fits && stack_options_key(key) && !json_is_null(member))
			config_fail(r, key, "%.64s is an argument of %s: %s ignores it", key, owner, part);
	}
}

static void check_prefixed(config_reader *r, const json_t *arguments)
{
	const char *key;
	json_t *member;
	json_object_foreach((json_t *)(uintptr_t)arguments, key, member)
	{
		const bool encoder = strncmp(key, "enc_", PREFIX_LENGTH) == 0;
		if ((!encoder && strncmp(key, "dec_", PREFIX_LENGTH) != 0) || json_is_null(member))
			continue;
		const char *name = key + PREFIX_LENGTH;
		const bool memory = encoder && strcmp(name, "num_memory_tokens") == 0;
		if ((listed(name, wrapper_keys) && !listed(name, passed_keys) && !memory) ||
		    strcmp(name, "mask_prob") == 0)
			config_fail(r, key, "%.64s is ignored by XTransformer, which gives its stacks no %.58s", key,
			            name);
	}
}

/* Add the arguments of a constructor whose names begin with `prefix`, without the prefix. */
static bool x_transformers_take(json_t *to, const json_t *from, const char *prefix)
{
	const char *key;
	json_t *member;
	size_t n = strlen(prefix);
	json_object_foreach((json_t *)(uintptr_t)from, key, member)
	{
		if (strncmp(key, prefix, n) == 0 && !is_dropped(key + n) && !json_is_null(member) &&
		    json_object_set(to, key + n, member) != 0)
			return false;
	}
	return true;
}

static json_t *single(const json_t *json)
{
	bool encoder = json_object_get(json, "Encoder") != NULL;
	json_t *out = json_pack("{s:s}", "stack", encoder ? "encoder" : "decoder");
	if (out && x_transformers_take(out, json_object_get(json, "TransformerWrapper"), "") &&
	    x_transformers_take(out, json_object_get(json, encoder ? "Encoder" : "Decoder"), "") &&
	    x_transformers_take(out, json_object_get(json, "AutoregressiveWrapper"), ""))
		return out;
	json_decref(out);
	return NULL;
}

/* Add an argument of both stacks. DeepNorm's constants are those of Wang et al. for encoder and decoder; the stacks
 * keep their norms first. */
static bool put_shared(json_t *out, json_t *encoder, json_t *decoder, const char *key, json_t *member)
{
	if (strcmp(key, "dim") == 0)
		return json_object_set(encoder, key, member) == 0 && json_object_set(decoder, key, member) == 0;
	if (strcmp(key, "cross_attn_tokens_dropout") == 0)
		return json_object_set(decoder, key, member) == 0;
	if (strcmp(key, "deepnorm") != 0)
		return json_object_set(out, key, member) == 0;
	double e = json_number_value(json_object_get(encoder, "depth")),
	       d = json_number_value(json_object_get(decoder, "depth"));
	return !json_is_true(member) ||
	       (json_object_set_new(encoder, "scale_residual", json_true()) == 0 &&
	        json_object_set_new(decoder, "scale_residual", json_true()) == 0 &&
	        json_object_set_new(encoder, "scale_residual_constant", json_real(0.81 * pow(pow(e, 4) * d, 0.0625))) ==
	            0 &&
	        json_object_set_new(decoder, "scale_residual_constant", json_real(pow(3 * d, 0.25))) == 0);
}

static json_t *both(const json_t *arguments)
{
	json_t *encoder = json_object(), *decoder = json_pack("{s:b}", "cross_attend", 1), *out = NULL;
	const char *key;
	json_t *member;
	bool fits = encoder && decoder && x_transformers_take(encoder, arguments, "enc_") &&
	            x_transformers_take(decoder, arguments, "dec_");
	if (fits)
		out = json_pack("{s:s, s:O, s:O}", "stack", "encoder_decoder", "encoder", encoder, "decoder", decoder);
	json_object_foreach((json_t *)(uintptr_t)arguments, key, member)
	{
		bool prefixed = strncmp(key, "enc_", PREFIX_LENGTH) == 0 || strncmp(key, "dec_", PREFIX_LENGTH) == 0;
		if (!out || prefixed || is_dropped(key))
			continue;
		if (!put_shared(out, encoder, decoder, key, member)) {
			json_decref(out);
			out = NULL;
		}
	}
	json_decref(encoder);
	json_decref(decoder);
	return out;
}

/* Replace the error's field by the given one that has a prefix. */
static void name_prefixed(const json_t *arguments, error *err)
{
	static const char *const prefixes[] = {"enc_", "dec_"};
	char key[sizeof err->param];
	for (int i = 0; i < 2 && err->param[0] && !json_object_get(arguments, err->param); i++) {
		snprintf(key, sizeof key, "%s%.*s", prefixes[i], (int)(sizeof key - PREFIX_LENGTH - 1), err->param);
		if (json_object_get(arguments, key))
			strcpy(err->param, key);
	}
}

static status x_transformers_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {"TransformerWrapper",    "Decoder",      "Encoder",
	                                   "AutoregressiveWrapper", "XTransformer", NULL};
	config_reader r = config_begin(json, &architecture_x_transformers, keys, err);
	const json_t *arguments = json_object_get(json, "XTransformer");
	if (!arguments && !json_object_get(json, "TransformerWrapper"))
		config_fail(&r, "TransformerWrapper", "TransformerWrapper or XTransformer must be there");
	check_part(&r, json, "TransformerWrapper");
	check_part(&r, json, "Decoder");
	check_part(&r, json, "Encoder");
	check_part(&r, json, "AutoregressiveWrapper");
	check_prefixed(&r, arguments);
	if (r.status != STATUS_OK)
		return r.status;
	json_t *own = arguments ? both(arguments) : single(json), *trained = json_object_get(json, CONFIG_TRAINED);
	status s = STATUS_NOMEM;
	if (own && (!trained || json_object_set(own, CONFIG_TRAINED, trained) == 0) &&
	    json_object_set_new(own, "compat", json_string(TRANSFORMER_COMPAT)) == 0)
		s = architecture_transformer.config_read(config, own, err);
	else
		error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s != STATUS_OK && arguments && err)
		name_prefixed(arguments, err);
	json_decref(own);
	return s;
}

/* Default to a decoder. */
static bool x_transformers_complete(json_t *json, const model_size *size)
{
	if (json_object_get(json, "XTransformer"))
		return true;
	const char *kind = json_object_get(json, "Encoder") ? "Encoder" : "Decoder";
	if (!config_set_missing(json, "TransformerWrapper", json_object()) ||
	    !config_set_missing(json, kind, json_object()))
		return false;
	json_t *wrapper = json_object_get(json, "TransformerWrapper"), *inner = json_object_get(json, kind);
	if (!json_is_object(wrapper) || !json_is_object(inner))
		return true;
	if (!config_set_size(wrapper, "num_tokens", size->inputs) ||
	    !config_set_size(wrapper, "max_seq_len", size->positions) || !config_set_size(inner, "dim", size->hidden) ||
	    !config_set_size(inner, "depth", size->layers) || !config_set_size(inner, "heads", size->heads) ||
	    (size->length < size->positions && !config_set_size(json, CONFIG_TRAINED, size->length)))
		return false;
	int64_t heads = json_integer_value(json_object_get(inner, "heads"));
	int64_t dim = json_integer_value(json_object_get(inner, "dim"));
	return (heads < 1 || dim < heads || config_set_size(inner, "attn_dim_head", dim / heads)) &&
	       config_set_dropout(wrapper, "emb_dropout", size->dropout) &&
	       config_set_dropout(inner, "attn_dropout", size->dropout) &&
	       config_set_dropout(inner, "ff_dropout", size->dropout);
}

/* Move the members of `from` that are (or are not) in `keys` to `to`. */
static bool x_transformers_split(json_t *to, json_t *from, const char *const *keys, bool named)
{
	const char *key;
	json_t *member;
	void *next;
	json_object_foreach_safe(from, next, key, member)
	{
		if (listed(key, keys) == named && json_object_set(to, key, member) != 0)
			return false;
	}
	return true;
}

/* Add members of `from` with the prefix "enc_" or "dec_". */
static bool put_prefixed(json_t *to, json_t *from, const char *prefix)
{
	const char *key;
	json_t *member;
	json_object_foreach(from, key, member)
	{
		char name[64];
		snprintf(name, sizeof name, "%s%.58s", prefix, key);
		if (strcmp(key, "cross_attend") != 0 && strcmp(key, "dim") != 0 &&
		    json_object_set(to, name, member) != 0)
			return false;
	}
	return true;
}

static json_t *x_transformers_write_config(const void *config)
{
	static const char *const outside[] = {"mask_prob", "model_type", "stack", "compat", CONFIG_TRAINED, NULL};
	const transformer_config *c = config;
	json_t *own = architecture_transformer.config_write(config), *json = NULL, *inner = json_object(),
	       *outer = json_object();
	bool fits = own && inner && outer;
	if (fits)
		json = json_pack("{s:s, s:I}", "model_type", architecture_x_transformers.model_type, CONFIG_TRAINED,
		                 (json_int_t)c->dims.trained);
	fits = fits && json;
	if (fits && c->arrangement == ARRANGED_BOTH) {
		fits = json_object_set(inner, "dim", json_object_get(json_object_get(own, "encoder"), "dim")) == 0 &&
		       put_prefixed(inner, json_object_get(own, "encoder"), "enc_") &&
		       put_prefixed(inner, json_object_get(own, "decoder"), "dec_") &&
		       json_object_set(inner, "tie_token_emb", json_object_get(own, "tie_token_emb")) == 0 &&
		       json_object_set(json, "XTransformer", inner) == 0;
	} else if (fits) {
		json_t *mask = json_object_get(own, "mask_prob");
		json_t *rest = json_object();
		fits = rest && x_transformers_split(outer, own, wrapper_keys, true) &&
		       x_transformers_split(rest, own, wrapper_keys, false) &&
		       x_transformers_split(inner, rest, outside, false) &&
		       json_object_set(json, "TransformerWrapper", outer) == 0 &&
		       json_object_set(json, c->arrangement == ARRANGED_ENCODER ? "Encoder" : "Decoder", inner) == 0 &&
		       (!mask ||
		        json_object_set_new(json, "AutoregressiveWrapper", json_pack("{s:O}", "mask_prob", mask)) == 0);
		json_decref(rest);
	}
	json_decref(own);
	json_decref(inner);
	json_decref(outer);
	if (fits)
		return json;
	json_decref(json);
	return NULL;
}

const architecture architecture_x_transformers = {
    .name = "x-transformers",
    .model_type = "x-transformers",
    .config_bytes = sizeof(transformer_config),
    .config_read = x_transformers_read_config,
    .complete = x_transformers_complete,
    .config_write = x_transformers_write_config,
    .parameters = transformer_parameters,
    .prefix = "net.",
    .ignores = transformer_ignores,
    .mixer = transformer_mixer,
    .source_attention = transformer_source_attention,
    .states = transformer_states,
    .carried = transformer_carried,
    .forward = transformer_forward,
};
