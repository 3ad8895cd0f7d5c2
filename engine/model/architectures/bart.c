/* BART with a class head (engine/model/bart/bart.h): Hugging Face's BartForSequenceClassification, whose encoder may
 * have linear attention instead of its own.
 *
 *   "encoder_attention": "softmax" as published, or "linear". The six projections have the same names and shapes in
 *                        both, so a checkpoint does not distinguish them.
 *   "pad_policy":        with linear attention, "mask_keys", or "ignore": masked tokens take part in it
 *
 * The head reads the decoder's row at the last "eos_token_id" of the tokens. There the decoder has read all tokens
 * before it, and the encoder's rows are of all of them. */
#include <string.h>

#include "engine/model/bart/bart.h"

enum { MAX_INNER = 1 << 18 };

/* Check keys of published configurations that support a single value. */
static void check_fixed(config_reader *r, int64_t encoder_layers)
{
	static const struct {
		const char *key;
		bool value;
	} flags[] = {
	    {"add_bias_logits", false},    {"add_final_layer_norm", false},       {"normalize_before", false},
	    {"normalize_embedding", true}, {"static_position_embeddings", false}, {"tie_word_embeddings", true},
	};
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
		if (config_bool(r, flags[i].key, flags[i].value) != flags[i].value)
			config_fail(r, flags[i].key, "%s must be %s", flags[i].key, flags[i].value ? "true" : "false");
	config_choice(r, "activation_function", (const char *const[]){"gelu", NULL});
	config_number(r, "encoder_layerdrop", 0, 0, 0);
	config_number(r, "decoder_layerdrop", 0, 0, 0);
	config_integer(r, "num_hidden_layers", encoder_layers, encoder_layers, encoder_layers);
}

static status bart_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {
	    BART_KEYS,
	    "decoder_attention_heads",
	    "decoder_layers",
	    "decoder_ffn_dim",
	    "attention_dropout",
	    "encoder_attention",
	    "eos_token_id",
	    "decoder_start_token_id",
	    "add_bias_logits",
	    "add_final_layer_norm",
	    "normalize_before",
	    "normalize_embedding",
	    "static_position_embeddings",
	    "activation_function",
	    "encoder_layerdrop",
	    "decoder_layerdrop",
	    "num_hidden_layers",
	    /* Written by some versions of the ecosystem; unused here. */
	    "classif_dropout",
	    "gradient_checkpointing",
	    NULL,
	};
	static const char *const kinds[] = {"softmax", "linear", NULL};
	bart_config *c = config;
	config_reader r = config_begin(json, &architecture_bart, keys, err);
	bart_read(c, &r);
	c->decoder.heads = config_integer(&r, "decoder_attention_heads", c->encoder.heads, 1, c->dims.hidden);
	c->decoder.layers = config_integer(&r, "decoder_layers", c->encoder.layers, 1, ARCHITECTURE_MAX_LAYERS);
	c->decoder.inner = config_integer(&r, "decoder_ffn_dim", c->encoder.inner, 1, MAX_INNER);
	c->weight_dropout = config_number(&r, "attention_dropout", 0, 0, 0.999);
	c->linear = config_choice(&r, "encoder_attention", kinds) == 1;
	c->dims.end = config_integer(&r, "eos_token_id", 2, 0, c->dims.inputs - 1);
	c->start = config_integer(&r, "decoder_start_token_id", 2, 0, c->dims.inputs - 1);
	check_fixed(&r, c->encoder.layers);
	if (c->dims.hidden % c->decoder.heads != 0)
		config_fail(&r, "decoder_attention_heads", "decoder_attention_heads must divide d_model");
	if (c->dims.reads_padding && !c->linear)
		config_fail(&r, "pad_policy", "pad_policy \"ignore\" is of linear encoder_attention only");
	c->dims.pool = POOL_END;
	c->dims.shifted = true;
	bart_finish(c, &r);
	return r.status;
}

static bool bart_complete_config(json_t *json, const model_size *size)
{
	return bart_complete(json, size) && config_set_size(json, "decoder_attention_heads", size->heads) &&
	       config_set_size(json, "decoder_layers", size->layers) &&
	       (size->end < 0 || (config_set_missing(json, "eos_token_id", json_integer(size->end)) &&
	                          config_set_missing(json, "decoder_start_token_id", json_integer(size->end))));
}

static json_t *bart_write_config(const void *config)
{
	const bart_config *c = config;
	return bart_write(c, json_pack("{s:s, s:[s], s:b, s:s, s:I, s:I, s:I, s:f, s:s, s:I, s:I}", "model_type",
	                               architecture_bart.model_type, "architectures", "BartForSequenceClassification",
	                               "is_encoder_decoder", true, "activation_function", "gelu",
	                               "decoder_attention_heads", (json_int_t)c->decoder.heads, "decoder_layers",
	                               (json_int_t)c->decoder.layers, "decoder_ffn_dim", (json_int_t)c->decoder.inner,
	                               "attention_dropout", c->weight_dropout, "encoder_attention",
	                               c->linear ? "linear" : "softmax", "eos_token_id", (json_int_t)c->dims.end,
	                               "decoder_start_token_id", (json_int_t)c->start));
}

/* Mixer of the decoder, whose rows the head reads. */
static const mixer *bart_layer_mixer(const void *config, int64_t layer, const void **options)
{
	(void)layer;
	*options = &((const bart_config *)config)->self_attention;
	return &mixer_attention;
}

/* The encoder reads the same tokens; they are the decoder's source. */
static bool source_attention(const void *config, attention_place place, int64_t layer, attention_site *out)
{
	const bart_config *c = config;
	const bart_stack *s = place == ATTENTION_TO_SOURCE ? &c->decoder : &c->encoder;
	if (place == ATTENTION_TO_SOURCE)
		*out = (attention_site){&attention_source_explainer, &c->cross_attention, s->heads};
	else if (c->linear)
		*out = (attention_site){&linear_explainer, &c->linear_attention, s->heads};
	else
		*out = (attention_site){&attention_explainer, &c->softmax_attention, s->heads};
	return layer < s->layers;
}

/* True for tensors of other heads and further names of the embedding. */
static bool is_of_another_head(const char *name)
{
	static const char *const names[] = {"model.decoder.embed_tokens.weight", "decoder.embed_tokens.weight",
	                                    "final_logits_bias", "lm_head.weight"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

static void bart_forward(const void *config, builder *b)
{
	const bart_config *c = config;
	value words = bart_words(b, c);
	bart_classes(b, c, bart_decode(b, c, words, bart_encode(b, c, words)));
}

const architecture architecture_bart = {
    .name = "bart",
    .model_type = "bart",
    .config_bytes = sizeof(bart_config),
    .config_read = bart_read_config,
    .complete = bart_complete_config,
    .config_write = bart_write_config,
    .parameters = bart_parameters,
    .prefix = "model.",
    .ignores = is_of_another_head,
    .mixer = bart_layer_mixer,
    .source_attention = source_attention,
    .forward = bart_forward,
};
