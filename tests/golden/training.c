#include "tests/golden/training.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1 << 16 };

/* --- names ------------------------------------------------------------------------------------------------- */

/* The number of steps in a name like w5.NAME, a word that ends in digits before the dot `dot`; 0: it is none. */
static int64_t steps_before(const char *name, const char *dot)
{
	const char *digits = dot;
	while (digits > name && isdigit((unsigned char)digits[-1]))
		digits--;
	return digits > name && digits < dot ? strtoll(digits, NULL, 10) : 0;
}

bool training_is_asked(const golden *g)
{
	for (int i = 0; i < g->count; i++) {
		const char *name = g->tensors[i].entry->name;
		for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
			if (steps_before(name, dot) > 0 && golden_find(g, "%s", dot + 1))
				return true;
	}
	return false;
}

static bool is_after(const char *name, int64_t count, const char *weight)
{
	const size_t length = strlen(name), tail = strlen(weight);
	if (tail == 0 || length < tail + 2 || strcmp(name + length - tail, weight) != 0)
		return false;
	const char *dot = name + length - tail - 1;
	return *dot == '.' && steps_before(name, dot) == count;
}

/* The name of the losses. */
static const char *loss_name(const golden *g)
{
	return golden_find(g, "losses") ? "losses" : "loss";
}

/* --- the recipe -------------------------------------------------------------------------------------------- */

static const json_t *find_recipe(const golden *g)
{
	static const char *const keys[] = {"recipe", "adam", "optimizer"};
	for (int i = 0; i < 3; i++)
		if (json_is_object(json_object_get(g->config, keys[i])))
			return json_object_get(g->config, keys[i]);
	return g->config;
}

static status read_number(const json_t *x, const char *key, float *out, error *err)
{
	if (!x)
		return STATUS_OK;
	*out = (float)json_number_value(x);
	return json_is_number(x) && *out >= 0
	           ? STATUS_OK
	           : error_set(err, STATUS_INVALID, key, "the recipe's \"%s\" must be a number of at least 0", key);
}

/* Fill the rates, all equal, for as many steps as the recipe gives or the set has losses. */
static status make_rates(golden *g, const json_t *recipe, training *t, error *err)
{
	const json_t *steps = json_object_get(recipe, "steps");
	const golden_tensor *losses = golden_find(g, "%s", loss_name(g));
	void *rates;
	TRY(read_number(json_object_get(recipe, "lr"), "lr", &t->rate, err));
	t->count = steps ? json_integer_value(steps) : losses ? losses->entry->count : 0;
	if (t->count < 1 || t->count > MAX_STEPS)
		return error_set(err, STATUS_INVALID, "steps", "the recipe's \"steps\" must be from 1 to %d",
		                 MAX_STEPS);
	TRY(golden_memory(g, t->count, sizeof(float), &rates, err));
	for (int64_t i = 0; i < t->count; i++)
		((float *)rates)[i] = t->rate;
	t->rates = rates;
	return STATUS_OK;
}

static status read_rates(golden *g, training *t, error *err)
{
	extent e;
	TRY(golden_rank(g, "lr", 1, &e, err));
	t->count = e.dim[0];
	if (t->count > MAX_STEPS)
		return error_set(err, STATUS_INVALID, "lr", "tensor \"lr\" has more than %d steps", MAX_STEPS);
	return golden_floats(g, "lr", e, &t->rates, err);
}

status training_read(golden *g, training *t, error *err)
{
	const json_t *recipe = find_recipe(g), *betas = json_object_get(recipe, "betas");
	TRY(read_number(json_object_get(recipe, "weight_decay"), "weight_decay", &t->params.decay, err));
	TRY(read_number(json_object_get(recipe, "clip"), "clip", &t->params.clip, err));
	if (recipe != g->config) /* in the config itself "eps" is that of the norms */
		TRY(read_number(json_object_get(recipe, "eps"), "eps", &t->params.eps, err));
	TRY(read_number(json_object_get(recipe, "adam_eps"), "adam_eps", &t->params.eps, err));
	TRY(read_number(json_array_get(betas, 0), "betas", &t->params.beta1, err));
	TRY(read_number(json_array_get(betas, 1), "betas", &t->params.beta2, err));
	return golden_find(g, "lr") ? read_rates(g, t, err) : make_rates(g, recipe, t, err);
}

/* --- the run ----------------------------------------------------------------------------------------------- */

/* The update's graph, and its bound memory: weights and gradients, followed by the optimiser's own state. */
typedef struct update {
	graph *graph;
	value weights, gradients;
	plan_binding bindings[4];
} update;

static status add_adamw(golden *g, training *t, update *u, error *err)
{
	const shape all = SHAPE1(model_trained_floats(t->model));
	float *mean, *square;
	TRY(golden_pool(g, all.dim[0], &mean, err));
	TRY(golden_pool(g, all.dim[0], &square, err));
	u->bindings[2] = (plan_binding){graph_state(u->graph, "m", all), mean};
	u->bindings[3] = (plan_binding){graph_state(u->graph, "v", all), square};
	op_adamw(u->graph, u->weights, u->gradients, u->bindings[2].v, u->bindings[3].v, t->norm2, t->hyper, VALUE_NONE,
	         VALUE_NONE, t->params);
	return STATUS_OK;
}

static status add_normalized(golden *g, training *t, update *u, error *err)
{
	int64_t tensors, rows;
	void *spans;
	float *table;
	TRY(golden_memory(g, model_tensor_count(t->model), sizeof(row_span), &spans, err));
	model_row_spans(t->model, spans, &tensors, &rows);
	TRY(golden_pool(g, tensors * ROW_SPAN_WORDS, &table, err));
	TRY(golden_pool(g, rows, &t->statistics, err));
	status s = g->backend->upload(g->backend, table, spans, (size_t)tensors * sizeof(row_span));
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "cannot copy to %s", g->backend->name);
	normalized_sgd_inputs in = {.p = u->weights,
	                            .grad = u->gradients,
	                            .statistics = graph_state(u->graph, "statistics", SHAPE1(rows)),
	                            .spans =
	                                graph_weight(u->graph, "spans", DTYPE_I32, SHAPE2(tensors, ROW_SPAN_WORDS)),
	                            .norm2 = t->norm2,
	                            .hyper = t->hyper,
	                            .narrow = VALUE_NONE,
	                            .factors = VALUE_NONE};
	u->bindings[2] = (plan_binding){in.statistics, t->statistics};
	u->bindings[3] = (plan_binding){in.spans, table};
	in.rows = op_row_squares(u->graph, u->gradients, in.spans, rows, &in.tensors);
	op_normalized_sgd(u->graph, &in, t->normalized);
	return STATUS_OK;
}

status training_begin(golden *g, const model *m, training *t, error *err)
{
	const shape all = SHAPE1(model_trained_floats(m));
	TRY(golden_pool(g, all.dim[0], &t->gradients, err));
	t->model = m;
	update u = {.graph = graph_new()};
	if (!u.graph)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	u.weights = graph_state(u.graph, "weights", all);
	u.gradients = graph_input(u.graph, "gradients", DTYPE_F32, all);
	u.bindings[0] = (plan_binding){u.weights, model_arena(m)};
	u.bindings[1] = (plan_binding){u.gradients, t->gradients};
	t->hyper = graph_input(u.graph, "hyper", DTYPE_F32, SHAPE1(2));
	t->norm2 = op_sum_squares(u.graph, u.gradients);
	graph_output(u.graph, t->norm2, "norm2");
	status s = t->by_norm ? add_normalized(g, t, &u, err) : add_adamw(g, t, &u, err);
	if (s != STATUS_OK) {
		graph_free(u.graph);
		return s;
	}
	return golden_bound_plan(g, u.graph, u.bindings, 4, &t->update, err);
}

/* Those that the set asks for. */
static status add_weights(golden *g, const model *m, int64_t count, error *err)
{
	for (int i = 0; i < model_tensor_count(m); i++)
		for (int k = 0; k < g->count; k++) {
			const parameter_spec *spec = model_parameter(m, i);
			const char *name = g->tensors[k].entry->name;
			float *out;
			if (!is_after(name, count, spec->name) && !is_after(name, count, spec->alias))
				continue;
			TRY(golden_result(g, extent_of(parameter_stored_shape(spec)), &out, err, "%s", name));
			TRY(g->backend->download(g->backend, out, model_arena(m) + model_parameter_offset(m, i),
			                         (size_t)shape_count(spec->shape) * sizeof *out));
		}
	return STATUS_OK;
}

status training_step(training *t, int64_t i, float *loss, float *norm)
{
	TRY(plan_run(t->backward));
	TRY(plan_read(t->backward, port_find(plan_graph(t->backward), PORT_LOSS), loss));
	TRY(plan_write(t->update, t->hyper, (float[]){t->rates[i], (float)(i + 1)}));
	TRY(plan_run(t->update));
	TRY(plan_read(t->update, t->norm2, norm));
	*norm = sqrtf(*norm);
	return STATUS_OK;
}

status training_run(golden *g, training *t, error *err)
{
	float *loss, *norm;
	TRY(golden_result(g, EXTENT(t->count), &loss, err, "%s", loss_name(g)));
	TRY(golden_result(g, EXTENT(t->count), &norm, err, "grad_norm"));
	for (int64_t i = 0; i < t->count; i++) {
		TRY(training_step(t, i, &loss[i], &norm[i]));
		TRY(add_weights(g, t->model, i + 1, err));
	}
	return STATUS_OK;
}
