/* Steps of training BART (bart.c) on one batch, as training.h reads and runs them: AdamW in the order of Hugging Face
 * transformers. The recipe in the config is an object "recipe", which has "policy" ("ignore") too; its defaults are
 * those of the fine-tuning on GLUE: "weight_decay" 0.01, "clip" 1, "adam_eps" 1e-6, "betas" [0.9, 0.999]. */
#include <string.h>

#include "tests/golden/bart_set.h"
#include "tests/golden/training.h"

static bool recognises(const golden *g)
{
	return bart_set_has_decoder(g) && golden_find(g, "lr");
}

static status read_policy(const json_t *x, int *out, error *err)
{
	const char *name = x ? json_string_value(x) : "ignore";
	for (*out = 0; name && *out < BART_POLICIES; ++*out)
		if (strcmp(bart_policies[*out].name, name) == 0)
			return STATUS_OK;
	return error_set(err, STATUS_INVALID, "policy", "the recipe's \"policy\" must be ignore, mask_keys or vanilla");
}

static status evaluate(golden *g, error *err)
{
	training t = {
	    .params = {.transformers = true, .decay = 0.01F, .clip = 1, .eps = 1e-6F, .beta1 = 0.9F, .beta2 = 0.999F}};
	int policy;
	model *m;
	bart_texts in;
	TRY(training_read(g, &t, err));
	TRY(read_policy(json_object_get(json_object_get(g->config, "recipe"), "policy"), &policy, err));
	TRY(bart_set_model(g, policy, true, &m, err));
	const model_dims *dims = model_dimensions(m);
	TRY(bart_set_texts(g, dims, &in, err));
	if (!in.labels)
		return error_set(err, STATUS_INVALID, "labels", "tensor \"labels\" is missing");
	TRY(training_begin(g, m, &t, err));
	const forward_spec spec = {
	    .batch = in.b, .length = in.n, .masked = true, .train.loss = true, .train.backward = true};
	TRY(golden_backward_into(g, m, &spec, t.gradients, &t.backward, err));
	TRY(bart_texts_feed(&in, dims, t.backward));
	return training_run(g, &t, err);
}

const golden_reader golden_reader_bart_steps = {
    .source = "steps of training BART",
    .recognises = recognises,
    .evaluate = evaluate,
};
