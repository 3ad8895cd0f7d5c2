/* Steps of training BART (bart.c) on one batch: AdamW in the order of Hugging Face transformers, on all weights.
 *
 * Read beside weights and batch: lr [T], the rate of each step; in the config "recipe", an object whose keys have the
 * defaults of the fine-tuning on GLUE: "policy" ("ignore"), "weight_decay" (0.01), "clip" (1), "adam_eps" (1e-6),
 * "betas" ([0.9, 0.999]).
 *
 * Values: loss and grad_norm [T], of the weights before each step, the norm before it is clipped; and as the set asks
 * for them, in names like w5.NAME, weights after so many steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/eval/bart_set.h"
#include "engine/tensor/ops.h"

enum { MAX_STEPS = 1 << 16 };

typedef struct steps {
	int64_t count;
	const float *rates;
	int policy;
	adamw_params params;
} steps;

/* What a step runs and leaves. */
typedef struct trained {
	model *model;
	plan *backward, *update;
	value hyper, norm2;
	float *loss, *norm; /* results, [count] */
} trained;

static bool recognises(const golden *g)
{
	return bart_set_has_decoder(g) && golden_find(g, "lr");
}

/* --- the recipe ------------------------------------------------------------------------------------------ */

static status read_number(const json_t *x, const char *key, double fallback, float *out, error *err)
{
	const double given = x ? json_number_value(x) : fallback;
	*out = (float)given;
	return (!x || json_is_number(x)) && given >= 0
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, key, "the recipe's \"%s\" must be a number of at least 0", key);
}

static status read_policy(const json_t *x, int *out, error *err)
{
	const char *name = x ? json_string_value(x) : "ignore";
	for (*out = 0; name && *out < BART_POLICIES; ++*out)
		if (strcmp(bart_policies[*out].name, name) == 0)
			return STATUS_OK;
	return error_set(err, STATUS_INVALID, "policy", "the recipe's \"policy\" must be ignore, mask_keys or vanilla");
}

static status read_steps(golden *g, steps *out, error *err)
{
	const json_t *recipe = json_object_get(g->config, "recipe"), *betas = json_object_get(recipe, "betas");
	extent e;
	*out = (steps){.params.transformers = true};
	TRY(golden_rank(g, "lr", 1, &e, err));
	out->count = e.dim[0];
	if (out->count > MAX_STEPS)
		return error_set(err, STATUS_INVALID, "lr", "tensor \"lr\" has more than %d steps", MAX_STEPS);
	TRY(golden_floats(g, "lr", e, &out->rates, err));
	TRY(read_policy(json_object_get(recipe, "policy"), &out->policy, err));
	TRY(read_number(json_object_get(recipe, "weight_decay"), "weight_decay", 0.01, &out->params.decay, err));
	TRY(read_number(json_object_get(recipe, "clip"), "clip", 1, &out->params.clip, err));
	TRY(read_number(json_object_get(recipe, "adam_eps"), "adam_eps", 1e-6, &out->params.eps, err));
	TRY(read_number(json_array_get(betas, 0), "betas", 0.9, &out->params.beta1, err));
	return read_number(json_array_get(betas, 1), "betas", 0.999, &out->params.beta2, err);
}

/* --- the run --------------------------------------------------------------------------------------------- */

static status make_update(golden *g, const steps *s, trained *t, float *gradients, error *err)
{
	const shape all = SHAPE1(model_arena_floats(t->model));
	float *moments[2];
	for (int i = 0; i < 2; i++)
		TRY(golden_pool(g, all.dim[0], &moments[i], err));
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	value p = graph_state(made, "weights", all), m = graph_state(made, "m", all), v = graph_state(made, "v", all);
	value gradient = graph_input(made, "gradients", DTYPE_F32, all);
	t->hyper = graph_input(made, "hyper", DTYPE_F32, SHAPE1(2));
	t->norm2 = op_sum_squares(made, gradient);
	graph_output(made, t->norm2, "norm2");
	op_adamw(made, p, gradient, m, v, t->norm2, t->hyper, VALUE_NONE, s->params);
	const plan_binding bindings[] = {
	    {p, model_arena(t->model)}, {m, moments[0]}, {v, moments[1]}, {gradient, gradients}};
	return golden_bound_plan(g, made, bindings, 4, &t->update, err);
}

static status make(golden *g, const steps *s, trained *t, error *err)
{
	bart_texts in;
	float *gradients;
	TRY(bart_set_model(g, s->policy, true, &t->model, err));
	const model_dims *dims = model_dimensions(t->model);
	TRY(bart_set_texts(g, dims, &in, err));
	if (!in.labels)
		return error_set(err, STATUS_INVALID, "labels", "tensor \"labels\" is missing");
	TRY(golden_pool(g, model_arena_floats(t->model), &gradients, err));
	const forward_spec spec = {.batch = in.b, .length = in.n, .masked = true, .loss = true, .backward = true};
	TRY(golden_backward_into(g, t->model, &spec, gradients, &t->backward, err));
	TRY(bart_texts_feed(&in, dims, t->backward));
	TRY(make_update(g, s, t, gradients, err));
	TRY(golden_result(g, EXTENT(s->count), &t->loss, err, "loss"));
	return golden_result(g, EXTENT(s->count), &t->norm, err, "grad_norm");
}

/* Is that the name of a weight after so many steps: a word that ends in the number, a dot, the weight's name? */
static bool is_after(const char *name, int64_t count, const char *weight)
{
	const size_t length = strlen(name), tail = strlen(weight);
	if (length < tail + 2 || strcmp(name + length - tail, weight) != 0 || name[length - tail - 1] != '.')
		return false;
	const char *end = name + length - tail - 1, *digits = end;
	while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
		digits--;
	return digits > name && digits < end && strtoll(digits, NULL, 10) == count;
}

/* Those that the set asks for. */
static status add_weights(golden *g, const model *m, int64_t count, error *err)
{
	for (int i = 0; i < model_tensor_count(m); i++)
		for (int k = 0; k < g->count; k++) {
			const parameter_spec *spec = model_parameter(m, i);
			const char *name = g->tensors[k].entry->name;
			float *out;
			if (!is_after(name, count, spec->name))
				continue;
			TRY(golden_result(g, extent_of(parameter_stored_shape(spec)), &out, err, "%s", name));
			TRY(g->backend->download(g->backend, out, model_arena(m) + model_parameter_offset(m, i),
			                         (size_t)shape_count(spec->shape) * sizeof *out));
		}
	return STATUS_OK;
}

static status evaluate(golden *g, error *err)
{
	steps s;
	trained t = {0};
	TRY(read_steps(g, &s, err));
	TRY(make(g, &s, &t, err));
	for (int64_t i = 0; i < s.count; i++) {
		float norm2;
		TRY(plan_run(t.backward));
		TRY(plan_read(t.backward, port_find(plan_graph(t.backward), PORT_LOSS), &t.loss[i]));
		TRY(plan_write(t.update, t.hyper, (float[]){s.rates[i], (float)(i + 1)}));
		TRY(plan_run(t.update));
		TRY(plan_read(t.update, t.norm2, &norm2));
		t.norm[i] = sqrtf(norm2);
		TRY(add_weights(g, t.model, i + 1, err));
	}
	return STATUS_OK;
}

const golden_reader golden_reader_bart_steps = {
    .source = "steps of training BART",
    .recognises = recognises,
    .evaluate = evaluate,
};
