/* BART with a head for classes: weights under Hugging Face's names, input_ids and attention_mask [B,N], labels [B].
 *
 * Values, of the encoder with linear attention under ignore.* (padding takes part in it) and mask_keys.*, and with its
 * own softmax attention under vanilla.*:
 *
 *   enc.x0, dec.x0          the embeddings after their norms
 *   enc.attn{l}, dec.selfattn{l}, dec.cross{l}
 *                           the attentions of layer l after their last projection
 *   enc.ln_attn{l}          the norm after the attention
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

#include "tests/golden/bart_set.h"

enum { NAME_BYTES = 160 };

static bool recognises(const golden *g)
{
	return bart_set_recognises(g) && !golden_find(g, "lr"); /* bart_steps.c */
}

/* --- the runs --------------------------------------------------------------------------------------------- */

/* Append `more` masked tokens `pad` to each sequence. */
static status pad_texts(golden *g, const bart_texts *x, int64_t more, int32_t pad, bart_texts *out, error *err)
{
	const int64_t n = x->n + more;
	void *data[2];
	for (int i = 0; i < 2; i++) {
		const int32_t *from = i ? x->mask : x->ids;
		TRY(golden_memory(g, x->b * n, sizeof(int32_t), &data[i], err));
		for (int64_t r = 0; r < x->b * n; r++)
			((int32_t *)data[i])[r] = r % n < x->n ? from[r / n * x->n + r % n] : i ? 0 : pad;
	}
	*out = (bart_texts){.b = x->b, .n = n, .ids = data[0], .mask = data[1]};
	return STATUS_OK;
}

static status run(golden *g, const model *m, const bart_texts *x, forward_spec spec, plan **out, error *err)
{
	spec.batch = x->b;
	spec.length = x->n;
	spec.masked = true;
	TRY(golden_forward(g, m, &spec, out, err));
	TRY(bart_texts_feed(x, model_dimensions(m), *out));
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

/* True if the policy is at the end of the name of the file with gradients under the weights' names. */
static bool is_of_file(const golden *g, const char *weight, const char *policy)
{
	const char *path = golden_gradient_file(g, weight), *slash = path ? strrchr(path, '/') : NULL;
	const char *name = slash ? slash + 1 : path, *dot = name ? strrchr(name, '.') : NULL;
	const size_t length = dot ? (size_t)(dot - name) : name ? strlen(name) : 0, ending = strlen(policy);
	return length > ending && name[length - ending - 1] == '_' &&
	       memcmp(name + length - ending, policy, ending) == 0;
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
static status add_padded(golden *g, const model *m, const bart_texts *x, const char *policy, error *err)
{
	const model_dims *dims = model_dimensions(m);
	const json_t *pad = json_object_get(g->config, "pad");
	for (int64_t n = x->n + 1; n <= dims->positions; n++) {
		bart_texts padded;
		plan *p;
		if (!golden_find(g, "%s.logits_pad%d", policy, (int)n))
			continue;
		TRY(pad_texts(g, x, n - x->n, pad ? (int32_t)json_integer_value(pad) : 1, &padded, err));
		TRY(run(g, m, &padded, (forward_spec){.out.logits = LOGITS_LAST}, &p, err));
		TRY(golden_output(g, p, port_find(plan_graph(p), PORT_LOGITS), EXTENT(x->b, dims->outputs), err,
		                  "%s.logits_pad%d", policy, (int)n));
	}
	return STATUS_OK;
}

static status add_classes(golden *g, const model *m, const bart_texts *x, plan *p, const char *policy, error *err)
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
	const char *name = bart_policies[policy].name;
	model *m;
	plan *p;
	bart_texts in;
	TRY(bart_set_model(g, policy, decoder, &m, err));
	const model_dims *dims = model_dimensions(m);
	TRY(bart_set_texts(g, dims, &in, err));
	forward_spec spec = {.out.activations = true, .out.logits = decoder ? LOGITS_LAST : LOGITS_NONE};
	spec.train.loss = decoder && in.labels;
	spec.train.backward = spec.train.loss && g->options->spec.gradients;
	TRY(run(g, m, &in, spec, &p, err));
	extent e = EXTENT(in.b, in.n, dims->hidden);
	TRY(add_stack(g, p, "encoder", decoder ? dims->other_layers : dims->layers, e, name, err));
	if (!decoder)
		return STATUS_OK;
	TRY(add_stack(g, p, "decoder", dims->layers, e, name, err));
	return add_classes(g, m, &in, p, name, err);
}

static status evaluate(golden *g, error *err)
{
	const bool decoder = bart_set_has_decoder(g);
	for (int i = 0; i < (decoder ? BART_POLICIES : BART_LINEAR); i++)
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
