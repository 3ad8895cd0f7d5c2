/* linear_encoder.c - the encoder of BART (engine/model/bart/bart.h) with linear attention and a class head, under the
 * names of Hugging Face's BartForSequenceClassification, whose decoder is skipped.
 *
 * The head reads the mean over the unmasked tokens or, with "pooling": "end", the last of them. With "pad_policy":
 * "ignore" masked tokens take part in attention, as in training of the swapped model's checkpoints. */
#include <string.h>

#include "engine/model/bart/bart.h"

static status linear_encoder_read_config(void *config, const json_t *json, error *err)
{
	static const char *const keys[] = {BART_KEYS, "pooling", NULL}, *const poolings[] = {"mean", "end", NULL};
	bart_config *c = config;
	config_reader r = config_begin(json, &architecture_linear_encoder, keys, err);
	bart_read(c, &r);
	c->linear = true;
	c->dims.pool = config_choice(&r, "pooling", poolings) == 1 ? POOL_LAST : POOL_MEAN;
	bart_finish(c, &r);
	return r.status;
}

static json_t *linear_encoder_write_config(const void *config)
{
	const bart_config *c = config;
	return bart_write(c, json_pack("{s:s, s:s}", "model_type", architecture_linear_encoder.model_type, "pooling",
	                               c->dims.pool == POOL_LAST ? "end" : "mean"));
}

static const mixer *linear_encoder_layer_mixer(const void *config, int64_t layer, const void **options)
{
	(void)layer;
	*options = &((const bart_config *)config)->linear_attention;
	return &mixer_linear;
}

/* True for the decoder and its second name of the embedding. */
static bool is_decoder(const char *name)
{
	const char *rest = strncmp(name, "model.", strlen("model.")) == 0 ? name + strlen("model.") : name;
	return strncmp(rest, "decoder.", strlen("decoder.")) == 0;
}

static void linear_encoder_forward(const void *config, builder *b)
{
	const bart_config *c = config;
	bart_classes(b, c, bart_encode(b, c, bart_words(b, c)));
}

const architecture architecture_linear_encoder = {
    .name = "linear_encoder",
    .model_type = "linear_encoder",
    .config_bytes = sizeof(bart_config),
    .config_read = linear_encoder_read_config,
    .complete = bart_complete,
    .config_write = linear_encoder_write_config,
    .parameters = bart_parameters,
    .prefix = "model.",
    .ignores = is_decoder,
    .mixer = linear_encoder_layer_mixer,
    .forward = linear_encoder_forward,
};
