/* The encoder of BART with linear attention: weights under Hugging Face's names, input_ids and attention_mask [B,N].
 * Values, under ignore.* (padding takes part in attention) and mask_keys.*: enc.x0, the embedding after its norm; and
 * of layer l enc.attn{l}, enc.ln_attn{l} and enc.x{l+1}: the attention after its last projection, the norm behind it
 * and the layer's output. Decoder, logits, loss and the softmax encoder (vanilla.*) are not computed. */
#include <stdio.h>
#include <string.h>

#include "engine/eval/golden.h"

enum { MAX_SIZE = 1 << 24, POSITION_OFFSET = 2 };

static bool recognises(const golden *g)
{
	return golden_find(g, "model.shared.weight") || golden_find(g, "model.encoder.embed_positions.weight") ||
	       golden_find(g, "encoder.embed_positions.weight") ||
	       (json_object_get(g->config, "encoder_layers") && json_object_get(g->config, "ffn"));
}

/* --- configuration ------------------------------------------------------------------------------ */

/* Keys of the source, and those of linear_encoder. */
static const struct {
	const char *from, *to;
} keys[] = {
    {"d_model", "d_model"},
    {"vocab", "vocab_size"},
    {"heads", "encoder_attention_heads"},
    {"max_positions", "max_position_embeddings"},
    {"encoder_layers", "encoder_layers"},
    {"ffn", "encoder_ffn_dim"},
    {"labels", "num_labels"},
};

/* What linear_encoder computes, and the source may not differ from. */
static status check_constants(golden *g, error *err)
{
	const json_t *act = json_object_get(g->config, "act"), *offset = json_object_get(g->config, "pos_offset");
	double eps;
	TRY(golden_config_number(g, "eps", 1e-5, &eps, err));
	if (eps != 1e-5)
		return error_set(err, STATUS_UNSUPPORTED, "eps", "the encoder's norms have eps 1e-05, not %g", eps);
	if (act && (!json_is_string(act) || strcmp(json_string_value(act), "gelu erf") != 0))
		return error_set(err, STATUS_UNSUPPORTED, "act", "the encoder's \"act\" must be \"gelu erf\"");
	if (offset && json_integer_value(offset) != POSITION_OFFSET)
		return error_set(err, STATUS_UNSUPPORTED, "pos_offset", "the encoder's \"pos_offset\" must be %d",
		                 POSITION_OFFSET);
	return STATUS_OK;
}

static status make_config(golden *g, const char *policy, json_t *out, error *err)
{
	bool done = json_object_set_new(out, "pad_policy", json_string(policy)) == 0;
	const json_t *pad = json_object_get(g->config, "pad");
	if (json_is_integer(pad))
		done &= json_object_set_new(out, "pad_token_id", json_integer(json_integer_value(pad))) == 0;
	for (size_t i = 0; i < sizeof keys / sizeof keys[0] && done; i++) {
		int64_t size;
		TRY(golden_config_integer(g, keys[i].from, MAX_SIZE, &size, err));
		done = json_object_set_new(out, keys[i].to, json_integer(size)) == 0;
	}
	return done ? STATUS_OK : error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

static status make_model(golden *g, const char *policy, model **out, error *err)
{
	json_t *config = json_object();
	status s = config ? make_config(g, policy, config, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s == STATUS_OK)
		s = golden_model(g, architecture_find("linear_encoder"), config, out, err);
	json_decref(config);
	return s;
}

/* --- the run ---------------------------------------------------------------------------------------- */

typedef struct texts {
	int64_t b, n;
	const int32_t *ids, *mask;
} texts;

static status read_texts(golden *g, const model_dims *dims, texts *out, error *err)
{
	extent e;
	TRY(golden_rank(g, "input_ids", 2, &e, err));
	out->b = e.dim[0], out->n = e.dim[1];
	if (out->n > dims->positions)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "tensor \"input_ids\" has more tokens per sequence than the model has positions");
	TRY(golden_integers(g, "input_ids", e, 0, (int32_t)dims->inputs - 1, &out->ids, err));
	return golden_integers(g, "attention_mask", e, 0, 1, &out->mask, err);
}

static status add_layer(golden *g, plan *p, int l, extent e, const char *prefix, error *err)
{
	static const struct {
		const char *output, *name;
		int next;
	} values[] = {{"attention", "attn", 0}, {"attention_norm", "ln_attn", 0}, {"output", "x", 1}};
	for (int i = 0; i < 3; i++) {
		char name[64];
		snprintf(name, sizeof name, "layers.%d.%s", l, values[i].output);
		TRY(golden_output(g, p, graph_find(plan_graph(p), name), e, err, "%s.enc.%s%d", prefix, values[i].name,
		                  l + values[i].next));
	}
	return STATUS_OK;
}

static status evaluate_policy(golden *g, const char *policy, error *err)
{
	model *m;
	plan *p;
	texts in;
	TRY(make_model(g, policy, &m, err));
	const model_dims *dims = model_dimensions(m);
	TRY(read_texts(g, dims, &in, err));
	forward_spec spec = {.batch = in.b, .length = in.n, .masked = true, .activations = true};
	TRY(golden_forward(g, m, &spec, &p, err));
	TRY(feed_write(p, PORT_TOKENS, in.ids));
	TRY(feed_write(p, PORT_MASK, in.mask));
	TRY(feed_positions(p, dims, POSITION_ERROR, 0));
	TRY(plan_run(p));
	extent e = EXTENT(in.b, in.n, dims->hidden);
	TRY(golden_output(g, p, graph_find(plan_graph(p), "layers.0.input"), e, err, "%s.enc.x0", policy));
	for (int l = 0; l < dims->layers; l++)
		TRY(add_layer(g, p, l, e, policy, err));
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	golden_tensor *labels = golden_find(g, "labels");
	if (labels)
		labels->known = true; /* an input of the decoder's loss */
	TRY(check_constants(g, err));
	TRY(evaluate_policy(g, "ignore", err));
	return evaluate_policy(g, "mask_keys", err);
}

const golden_reader golden_reader_bart = {
    .source = "the encoder of BART",
    .recognises = recognises,
    .evaluate = evaluate,
};
