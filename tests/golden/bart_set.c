#include "tests/golden/bart_set.h"

#include <string.h>

enum { MAX_SIZE = 1 << 24, POSITION_OFFSET = 2 };

bool bart_set_has_decoder(const golden *g)
{
	return golden_find(g, "model.decoder.embed_positions.weight") ||
	       golden_find(g, "decoder.embed_positions.weight");
}

bool bart_set_recognises(const golden *g)
{
	return bart_set_has_decoder(g) || golden_find(g, "model.shared.weight") ||
	       golden_find(g, "model.encoder.embed_positions.weight") ||
	       golden_find(g, "encoder.embed_positions.weight") ||
	       (json_object_get(g->config, "encoder_layers") && json_object_get(g->config, "ffn"));
}

/* --- configuration ------------------------------------------------------------------------------ */

const bart_policy bart_policies[BART_POLICIES] = {
    {"ignore", "linear", "ignore"}, {"mask_keys", "linear", "mask_keys"}, {"vanilla", "softmax", "mask_keys"}};

/* Keys of the source, and the architectures'. */
static const struct {
	const char *from, *to;
	bool decoder;
} keys[] = {
    {"d_model", "d_model", false},
    {"vocab", "vocab_size", false},
    {"heads", "encoder_attention_heads", false},
    {"max_positions", "max_position_embeddings", false},
    {"encoder_layers", "encoder_layers", false},
    {"ffn", "encoder_ffn_dim", false},
    {"labels", "num_labels", false},
    {"decoder_layers", "decoder_layers", true},
    {"heads", "decoder_attention_heads", true},
    {"ffn", "decoder_ffn_dim", true},
};
/* Token ids, which have the defaults of BART. */
static const struct {
	const char *from, *to;
	bool decoder;
} ids[] = {
    {"pad", "pad_token_id", false}, {"eos", "eos_token_id", true}, {"decoder_start", "decoder_start_token_id", true}};

/* Check the keys whose value the architectures fix. */
static status check_constants(golden *g, error *err)
{
	const json_t *act = json_object_get(g->config, "act"), *offset = json_object_get(g->config, "pos_offset");
	double eps;
	TRY(golden_config_number(g, "eps", 1e-5, &eps, err));
	if (eps != 1e-5)
		return error_set(err, STATUS_UNSUPPORTED, "eps", "the norms have eps 1e-05, not %g", eps);
	if (act && (!json_is_string(act) || strcmp(json_string_value(act), "gelu erf") != 0))
		return error_set(err, STATUS_UNSUPPORTED, "act", "the config's \"act\" must be \"gelu erf\"");
	if (offset && json_integer_value(offset) != POSITION_OFFSET)
		return error_set(err, STATUS_UNSUPPORTED, "pos_offset", "the config's \"pos_offset\" must be %d",
		                 POSITION_OFFSET);
	return STATUS_OK;
}

static status make_config(golden *g, int policy, bool decoder, json_t *out, error *err)
{
	bool done = json_object_set_new(out, "pad_policy", json_string(bart_policies[policy].padding)) == 0;
	if (decoder)
		done &=
		    json_object_set_new(out, "encoder_attention", json_string(bart_policies[policy].attention)) == 0;
	for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
		json_t *id = json_object_get(g->config, ids[i].from);
		if (json_is_integer(id) && (decoder || !ids[i].decoder))
			done &= json_object_set(out, ids[i].to, id) == 0;
	}
	for (size_t i = 0; i < sizeof keys / sizeof keys[0] && done; i++) {
		int64_t size;
		if (keys[i].decoder && !decoder)
			continue;
		TRY(golden_config_integer(g, keys[i].from, MAX_SIZE, &size, err));
		done = json_object_set_new(out, keys[i].to, json_integer(size)) == 0;
	}
	return done ? STATUS_OK : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

status bart_set_model(golden *g, int policy, bool decoder, model **out, error *err)
{
	TRY(check_constants(g, err));
	json_t *config = json_object();
	status s =
	    config ? make_config(g, policy, decoder, config, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s == STATUS_OK)
		s = golden_model(g, architecture_find(decoder ? "bart" : "linear_encoder"), config, NULL, out, err);
	json_decref(config);
	return s;
}

/* --- inputs ----------------------------------------------------------------------------------------- */

status bart_set_texts(golden *g, const model_dims *dims, bart_texts *out, error *err)
{
	extent e;
	*out = (bart_texts){0};
	TRY(golden_rank(g, "input_ids", 2, &e, err));
	out->b = e.dim[0], out->n = e.dim[1];
	if (out->n > dims->positions)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "tensor \"input_ids\" has more tokens per sequence than the model has positions");
	TRY(golden_integers(g, "input_ids", e, 0, (int32_t)dims->inputs - 1, &out->ids, err));
	TRY(golden_integers(g, "attention_mask", e, 0, 1, &out->mask, err));
	for (int64_t b = 0; b < out->b; b++)
		if (dims->form->row(dims, out->ids + b * out->n, out->n) < 0)
			return error_set(err, STATUS_INVALID, "input_ids",
			                 "row %lld of tensor \"input_ids\" lacks the token %lld, at which it is read",
			                 (long long)b, (long long)dims->end);
	if (golden_find(g, "labels"))
		TRY(golden_integers(g, "labels", EXTENT(out->b), 0, (int32_t)dims->outputs - 1, &out->labels, err));
	return STATUS_OK;
}

status bart_texts_feed(const bart_texts *x, const model_dims *dims, plan *p)
{
	TRY(feed_write(p, PORT_TOKENS, x->ids));
	TRY(feed_write(p, PORT_MASK, x->mask));
	TRY(feed_write(p, PORT_LABELS, x->labels));
	TRY(feed_positions(p, dims, POSITION_ERROR, 0));
	return feed_last(p, dims, x->ids, NULL);
}
