/* Causal language models, under the names of their architectures: input_ids [B,N], attention_mask? and labels?, and a
 * second batch of the same tensors as padded.*. Values: logits, loss, layers.L.R.score, layers.L.R.pooled and
 * grad.NAME; values of the padded batch are 0 where masked.
 *
 * grad.NAME is the gradient for the first two padded rows, since the sets' reference gives NaN with more padding. It is
 * the gradient for input_ids if there is no padded batch or the metadata has "gradients": "input_ids". With "smoothing"
 * in the metadata, smoothed.loss and smoothed.grad.NAME are of input_ids with that label smoothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/golden/golden.h"

enum { NAME_BYTES = 64, GRADIENT_ROWS = 2 };

static bool recognises(const golden *g)
{
	const json_t *c = g->config;
	return architecture_of(c) &&
	       (json_object_get(c, "model_type") || json_object_get(c, "hidden_size") || json_object_get(c, "n_embd"));
}

/* An optional tensor. */
static const safetensors_entry *entry(const golden *g, const char *prefix, const char *name)
{
	golden_tensor *t = golden_find(g, "%s%s", prefix, name);
	if (t)
		t->known = true;
	return t ? t->entry : NULL;
}

static status read_batch(golden *g, const char *prefix, const model_dims *dims, batch *out, error *err)
{
	char name[NAME_BYTES];
	const golden_tensor *ids;
	snprintf(name, sizeof name, "%sinput_ids", prefix);
	TRY(golden_input(g, name, &ids, err));
	batch_source in = {ids->entry, entry(g, prefix, "attention_mask"), entry(g, prefix, "labels")};
	status s = batch_read(out, in, dims, g->options->spec.policy, err);
	const golden_tensor *wrong = s == STATUS_OK || !err ? NULL : golden_find(g, "%s", err->param);
	if (wrong)
		g->blame = g->options->golden[wrong->file];
	return s;
}

static bool ends(const char *text, const char *end)
{
	size_t n = strlen(text), k = strlen(end);
	return n >= k && strcmp(text + n - k, end) == 0;
}

/* True if the source has a value of that name. */
static bool is_value(const char *name)
{
	return strcmp(name, "logits") == 0 || strcmp(name, "loss") == 0 || strncmp(name, "grad.", 5) == 0 ||
	       ends(name, ".score") || ends(name, ".pooled");
}

/* One run of the model over a batch of the set. */
typedef struct language_run {
	const char *batch;  /* prefix of the names of the batch's tensors */
	int64_t rows;       /* number of rows to read, if the batch has more */
	const char *prefix; /* prefix of the values' names */
	const char *only;   /* values whose names begin with this */
	evaluation_spec spec;
} language_run;

/* Add the values computed for a batch, 0 in the rows of masked tokens. */
static status add_values(golden *g, const language_run *r, const batch *in, const results *from, error *err)
{
	for (int i = 0; i < from->count; i++) {
		const safetensors_item *item = &from->items[i];
		extent e = {.rank = item->rank};
		float *out;
		if (!is_value(item->name) || strncmp(item->name, r->only, strlen(r->only)) != 0)
			continue;
		memcpy(e.dim, item->dim, sizeof e.dim);
		TRY(golden_result(g, e, &out, err, "%s%s", r->prefix, item->name));
		memcpy(out, item->data, (size_t)extent_count(e) * sizeof *out);
		const bool by_row = e.rank == 3 && strncmp(item->name, "grad.", 5) != 0;
		for (int64_t row = 0; by_row && in->mask && row < in->sequences * in->length; row++)
			if (!in->mask[row])
				memset(out + row * e.dim[2], 0, (size_t)e.dim[2] * sizeof *out);
	}
	return STATUS_OK;
}

static status run(golden *g, model *m, language_run r, error *err)
{
	batch in = {0};
	results found = {0};
	status s = read_batch(g, r.batch, model_dimensions(m), &in, err);
	if (s == STATUS_OK) {
		in.sequences = in.sequences < r.rows ? in.sequences : r.rows;
		s = evaluation_run(&found, m, &in, &r.spec, err);
	}
	if (s == STATUS_OK)
		s = add_values(g, &r, &in, &found, err);
	results_free(&found);
	batch_free(&in);
	return s;
}

static status run_all(golden *g, model *m, error *err)
{
	evaluation_spec spec = g->options->spec, values = spec, scalars = spec;
	const char *of = golden_metadata(g, "gradients"), *smoothing = golden_metadata(g, "smoothing");
	bool padded = golden_find(g, "padded.input_ids");
	bool elsewhere = padded && !(of && strcmp(of, "input_ids") == 0);
	values.gradients = spec.gradients && !elsewhere;
	scalars.loss_only = true;
	TRY(run(g, m, (language_run){"", INT64_MAX, "", "", values}, err));
	values.gradients = false;
	if (padded)
		TRY(run(g, m, (language_run){"padded.", INT64_MAX, "padded.", "", values}, err));
	if (elsewhere && spec.gradients)
		TRY(run(g, m, (language_run){"padded.", GRADIENT_ROWS, "", "grad.", scalars}, err));
	if (!smoothing)
		return STATUS_OK;
	scalars.smoothing = strtod(smoothing, NULL);
	if (!(scalars.smoothing >= 0 && scalars.smoothing < 1))
		return error_set(err, STATUS_INVALID, "smoothing", "the metadata's smoothing is not from 0 to below 1");
	return run(g, m, (language_run){"", INT64_MAX, "smoothed.", "", scalars}, err);
}

static status evaluate(golden *g, error *err)
{
	model *m;
	TRY(golden_model(g, architecture_of(g->config), g->config, NULL, &m, err));
	if (model_dimensions(m)->form->head != HEAD_VOCABULARY)
		return error_set(err, STATUS_UNSUPPORTED, "config", "the config is not of a language model");
	return run_all(g, m, err);
}

static bool is_gradient(const char *name)
{
	return strncmp(name, "grad.", 5) == 0 || strncmp(name, "smoothed.grad.", 14) == 0;
}

const golden_reader golden_reader_language = {
    .source = "a language model",
    .recurrent = true,
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
