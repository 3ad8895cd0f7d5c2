/* BART with a head for classes: weights under Hugging Face's names, input_ids and attention_mask [B,N], labels [B].
 *
 * Values, of the encoder with linear attention under ignore.* (padding takes part in it) and mask_keys.*, and with its
 * own softmax attention under vanilla.*:
 *
 *   enc.x0, dec.x0          the embeddings after their norms
 *   enc.attn{l}, dec.selfattn{l}, dec.cross{l}
 *                           the attentions of layer l after their last projection
 *   enc.ln_attn{l}          the norm behind the attention
 *   enc.x{l+1}, dec.x{l+1}  the output of layer l
 *   logits, loss            the mean cross entropy
 *   logits_pad{n}           if the set holds them: the logits of the batch padded to n tokens
 *   grad.NAME               the gradient of the loss for every weight
 *
 * A further file with gradients under the weights' own names has the policy at the end of its name
 * (…_mask_keys.safetensors). A set without weights of a decoder is of the encoder alone: linear_encoder computes
 * ignore.enc.* and mask_keys.enc.* of it. */
#include <stdio.h>
#include <string.h>

#include "engine/eval/golden.h"

enum { MAX_SIZE = 1 << 24, POSITION_OFFSET = 2, NAME_BYTES = 160 };

static bool has_decoder(const golden *g)
{
	return golden_find(g, "model.decoder.embed_positions.weight") ||
	       golden_find(g, "decoder.embed_positions.weight");
}

static bool recognises(const golden *g)
{
	return has_decoder(g) || golden_find(g, "model.shared.weight") ||
	       golden_find(g, "model.encoder.embed_positions.weight") ||
	       golden_find(g, "encoder.embed_positions.weight") ||
	       (json_object_get(g->config, "encoder_layers") && json_object_get(g->config, "ffn"));
}

/* --- configuration ------------------------------------------------------------------------------ */

static const struct {
	const char *name, *attention, *padding; /* of bart */
} policies[] = {
    {"ignore", "linear", "ignore"}, {"mask_keys", "linear", "mask_keys"}, {"vanilla", "softmax", "mask_keys"}};
enum { POLICIES = sizeof policies / sizeof *policies, LINEAR = 2 };

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

/* What the architectures compute, and the source may not differ from. */
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
	bool done = json_object_set_new(out, "pad_policy", json_string(policies[policy].padding)) == 0;
	if (decoder)
		done &= json_object_set_new(out, "encoder_attention", json_string(policies[policy].attention)) == 0;
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

static status make_model(golden *g, int policy, bool decoder, model **out, error *err)
{
	json_t *config = json_object();
	status s =
	    config ? make_config(g, policy, decoder, config, err) : error_set(err, STATUS_NOMEM, NULL, "out of memory");
	if (s == STATUS_OK)
		s = golden_model(g, architecture_find(decoder ? "bart" : "linear_encoder"), config, out, err);
	json_decref(config);
	return s;
}

/* --- inputs ----------------------------------------------------------------------------------------- */

typedef struct texts {
	int64_t b, n;
	const int32_t *ids, *mask, *labels; /* labels NULL: there are none */
} texts;

static status read_texts(golden *g, const model_dims *dims, texts *out, error *err)
{
	extent e;
	*out = (texts){0};
	TRY(golden_rank(g, "input_ids", 2, &e, err));
	out->b = e.dim[0], out->n = e.dim[1];
	if (out->n > dims->positions)
		return error_set(err, STATUS_INVALID, "input_ids",
		                 "tensor \"input_ids\" has more tokens per sequence than the model has positions");
	TRY(golden_integers(g, "input_ids", e, 0, (int32_t)dims->inputs - 1, &out->ids, err));
	TRY(golden_integers(g, "attention_mask", e, 0, 1, &out->mask, err));
	for (int64_t b = 0; b < out->b; b++)
		if (feed_row(dims, out->ids + b * out->n, out->n) < 0)
			return error_set(err, STATUS_INVALID, "input_ids",
			                 "row %lld of tensor \"input_ids\" lacks the token %lld, at which it is read",
			                 (long long)b, (long long)dims->end);
	if (golden_find(g, "labels"))
		TRY(golden_integers(g, "labels", EXTENT(out->b), 0, (int32_t)dims->outputs - 1, &out->labels, err));
	return STATUS_OK;
}

/* Behind each sequence `more` masked tokens `pad`. */
static status pad_texts(golden *g, const texts *x, int64_t more, int32_t pad, texts *out, error *err)
{
	const int64_t n = x->n + more;
	void *data[2];
	for (int i = 0; i < 2; i++) {
		const int32_t *from = i ? x->mask : x->ids;
		TRY(golden_memory(g, x->b * n, sizeof(int32_t), &data[i], err));
		for (int64_t r = 0; r < x->b * n; r++)
			((int32_t *)data[i])[r] = r % n < x->n ? from[r / n * x->n + r % n] : i ? 0 : pad;
	}
	*out = (texts){.b = x->b, .n = n, .ids = data[0], .mask = data[1]};
	return STATUS_OK;
}

/* --- the runs ----------------------------------------------------------------------------------------- */

static status run(golden *g, const model *m, const texts *x, forward_spec spec, plan **out, error *err)
{
	const model_dims *dims = model_dimensions(m);
	spec.batch = x->b;
	spec.length = x->n;
	spec.masked = true;
	TRY(golden_forward(g, m, &spec, out, err));
	TRY(feed_write(*out, PORT_TOKENS, x->ids));
	TRY(feed_write(*out, PORT_MASK, x->mask));
	TRY(feed_write(*out, PORT_LABELS, x->labels));
	TRY(feed_positions(*out, dims, POSITION_ERROR, 0));
	TRY(feed_last(*out, dims, x->ids, NULL));
	return plan_run(*out);
}

static status add_stack(golden *g, plan *p, const char *stack, int64_t layers, extent e, const char *policy, error *err)
{
	static const struct {
		const char *output, *encoder, *decoder;
		int next;
	} values[] = {{"attention", "attn", "selfattn", 0},
	              {"cross_attention", NULL, "cross", 0},
	              {"attention_norm", "ln_attn", NULL, 0},
	              {"output", "x", "x", 1}};
	const bool encoder = strcmp(stack, "encoder") == 0;
	const char *words = encoder ? "enc" : "dec";
	char name[NAME_BYTES];
	snprintf(name, sizeof name, "%s.embedding", stack);
	TRY(golden_output(g, p, graph_find(plan_graph(p), name), e, err, "%s.%s.x0", policy, words));
	for (int l = 0; l < layers; l++)
		for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
			const char *as = encoder ? values[i].encoder : values[i].decoder;
			snprintf(name, sizeof name, "%s.layers.%d.%s", stack, l, values[i].output);
			if (as)
				TRY(golden_output(g, p, graph_find(plan_graph(p), name), e, err, "%s.%s.%s%d", policy,
				                  words, as, l + values[i].next));
		}
	return STATUS_OK;
}

/* Is the policy at the end of the name of the file that holds gradients under the weights' names? */
static bool is_of_file(const golden *g, const char *weight, const char *policy)
{
	const char *path = golden_gradient_file(g, weight), *slash = path ? strrchr(path, '/') : NULL;
	const char *name = slash ? slash + 1 : path, *dot = name ? strrchr(name, '.') : NULL;
	const size_t length = dot ? (size_t)(dot - name) : name ? strlen(name) : 0, wanted = strlen(policy);
	return length > wanted && name[length - wanted - 1] == '_' &&
	       memcmp(name + length - wanted, policy, wanted) == 0;
}

static status add_gradients(golden *g, const model *m, plan *p, const char *policy, error *err)
{
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *spec = model_parameter(m, i);
		const extent e = extent_of(parameter_stored_shape(spec));
		const value gradient = graph_gradient(plan_graph(p), graph_find(plan_graph(p), spec->name));
		TRY(golden_output(g, p, gradient, e, err, "%s.grad.%s", policy, spec->name));
		if (is_of_file(g, spec->name, policy))
			TRY(golden_output(g, p, gradient, e, err, "%s", spec->name));
	}
	return STATUS_OK;
}

/* Values logits_pad{n} that the set asks for. */
static status add_padded(golden *g, const model *m, const texts *x, const char *policy, error *err)
{
	const model_dims *dims = model_dimensions(m);
	const json_t *pad = json_object_get(g->config, "pad");
	for (int64_t n = x->n + 1; n <= dims->positions; n++) {
		texts padded;
		plan *p;
		if (!golden_find(g, "%s.logits_pad%d", policy, (int)n))
			continue;
		TRY(pad_texts(g, x, n - x->n, pad ? (int32_t)json_integer_value(pad) : 1, &padded, err));
		TRY(run(g, m, &padded, (forward_spec){.logits = LOGITS_LAST}, &p, err));
		TRY(golden_output(g, p, port_find(plan_graph(p), PORT_LOGITS), EXTENT(x->b, dims->outputs), err,
		                  "%s.logits_pad%d", policy, (int)n));
	}
	return STATUS_OK;
}

static status add_classes(golden *g, const model *m, const texts *x, plan *p, const char *policy, error *err)
{
	const graph *made = plan_graph(p);
	TRY(golden_output(g, p, port_find(made, PORT_LOGITS), EXTENT(x->b, model_dimensions(m)->outputs), err,
	                  "%s.logits", policy));
	if (x->labels)
		TRY(golden_output(g, p, port_find(made, PORT_LOSS), EXTENT(1), err, "%s.loss", policy));
	if (x->labels && g->options->spec.gradients)
		TRY(add_gradients(g, m, p, policy, err));
	return add_padded(g, m, x, policy, err);
}

static status evaluate_policy(golden *g, int policy, bool decoder, error *err)
{
	const char *name = policies[policy].name;
	model *m;
	plan *p;
	texts in;
	TRY(make_model(g, policy, decoder, &m, err));
	const model_dims *dims = model_dimensions(m);
	TRY(read_texts(g, dims, &in, err));
	forward_spec spec = {.activations = true, .logits = decoder ? LOGITS_LAST : LOGITS_NONE};
	spec.loss = decoder && in.labels;
	spec.backward = spec.loss && g->options->spec.gradients;
	TRY(run(g, m, &in, spec, &p, err));
	extent e = EXTENT(in.b, in.n, dims->hidden);
	TRY(add_stack(g, p, "encoder", dims->layers, e, name, err));
	if (!decoder)
		return STATUS_OK;
	int64_t layers;
	TRY(golden_config_integer(g, "decoder_layers", MAX_SIZE, &layers, err));
	TRY(add_stack(g, p, "decoder", layers, e, name, err));
	return add_classes(g, m, &in, p, name, err);
}

static status evaluate(golden *g, error *err)
{
	const bool decoder = has_decoder(g);
	TRY(check_constants(g, err));
	for (int i = 0; i < (decoder ? POLICIES : LINEAR); i++)
		TRY(evaluate_policy(g, i, decoder, err));
	return STATUS_OK;
}

static bool is_gradient(const char *name)
{
	return strstr(name, ".grad.") != NULL;
}

const golden_reader golden_reader_bart = {
    .source = "BART with a head for classes",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
