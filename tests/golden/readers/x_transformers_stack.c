/* A cross-attender of x-transformers by itself: rows x [B,N,D] attend to context [B,S,D]; mask? [B,N], context_mask?
 * [B,S]. Values: output; loss, the mean of its squares; grad.NAME. */
#include <stdio.h>
#include <string.h>

#include "tests/golden/golden.h"
#include "engine/model/transformer/stack.h"

static bool recognises(const golden *g)
{
	return json_object_get(g->config, "CrossAttender");
}

typedef struct attender {
	stack stack;
	parameter_list parameters;
	int64_t batch, rows, source;
	plan *plan;
	value y, dy;
} attender;

static status read_stack(const golden *g, attender *a, error *err)
{
	config_reader r = {NULL, err, STATUS_OK};
	json_t *keys = json_copy(json_object_get(g->config, "CrossAttender"));
	if (!keys || json_object_set_new(keys, "cross_attend", json_true()) != 0 ||
	    json_object_set_new(keys, "only_cross", json_true()) != 0) {
		json_decref(keys);
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	}
	stack_options_read(&r, keys, false, true, &a->stack.options);
	json_decref(keys);
	if (r.status == STATUS_OK)
		stack_prepare(&a->stack);
	return r.status;
}

/* Parameters are inputs here: the graph gives their gradients as it does those of x. */
static status build(golden *g, attender *a, error *err)
{
	int64_t d = a->stack.options.dim;
	const forward_spec spec = {
	    .batch = a->batch, .length = a->rows, .source = a->source, .masked = golden_find(g, "mask")};
	state_list none = {0};
	graph *made = graph_new();
	if (!made)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	for (int i = 0; i < a->parameters.count; i++)
		graph_input(made, a->parameters.items[i].name, DTYPE_F32, a->parameters.items[i].shape);
	builder b = builder_begin(made, &spec, &none);
	value source_mask = VALUE_NONE;
	if (golden_find(g, "context_mask"))
		source_mask = graph_input(made, "context_mask", DTYPE_I32, SHAPE2(a->batch, a->source));
	stack_rows in = {.x = graph_input(made, "x", DTYPE_F32, SHAPE3(a->batch, a->rows, d)),
	                 .mask = b.mask,
	                 .key_mask = VALUE_NONE,
	                 .visible = VALUE_NONE,
	                 .source_visible = VALUE_NONE,
	                 .source = graph_input(made, "context", DTYPE_F32, SHAPE3(a->batch, a->source, d)),
	                 .source_mask = source_mask};
	a->y = stack_forward(&b, &a->stack, in);
	graph_output(made, a->y, "y");
	a->dy = golden_backward(made, a->y);
	return golden_plan(g, made, NULL, &a->plan, err);
}

static status write_floats(golden *g, plan *p, const char *input, const char *name, shape stored, error *err)
{
	const float *x;
	TRY(golden_floats(g, name, extent_of(stored), &x, err));
	return plan_write(p, graph_find(plan_graph(p), input), x);
}

static status write_mask(golden *g, plan *p, const char *input, const char *name, extent e, error *err)
{
	const int32_t *mask;
	if (!golden_find(g, "%s", name))
		return STATUS_OK;
	TRY(golden_integers(g, name, e, 0, 1, &mask, err));
	return plan_write(p, graph_find(plan_graph(p), input), mask);
}

static status write_inputs(golden *g, const attender *a, error *err)
{
	int64_t d = a->stack.options.dim;
	for (int i = 0; i < a->parameters.count; i++) {
		const parameter_spec *p = &a->parameters.items[i];
		TRY(write_floats(g, a->plan, p->name, p->name, parameter_stored_shape(p), err));
	}
	TRY(write_floats(g, a->plan, "x", "x", SHAPE3(a->batch, a->rows, d), err));
	TRY(write_floats(g, a->plan, "context", "context", SHAPE3(a->batch, a->source, d), err));
	TRY(write_mask(g, a->plan, port_name(PORT_MASK), "mask", EXTENT(a->batch, a->rows), err));
	return write_mask(g, a->plan, "context_mask", "context_mask", EXTENT(a->batch, a->source), err);
}

/* The gradient of the mean of squares is 2 y / count at y. */
static status run(golden *g, const attender *a, error *err)
{
	float *y, *loss;
	void *dy;
	int64_t count = a->batch * a->rows * a->stack.options.dim;
	double sum = 0;
	TRY(golden_memory(g, count, sizeof(float), &dy, err));
	TRY(plan_write(a->plan, a->dy, dy));
	TRY(plan_run(a->plan));
	TRY(golden_result(g, EXTENT(a->batch, a->rows, a->stack.options.dim), &y, err, "output"));
	TRY(golden_result(g, EXTENT(1), &loss, err, "loss"));
	TRY(plan_read(a->plan, a->y, y));
	for (int64_t i = 0; i < count; i++) {
		sum += (double)y[i] * (double)y[i];
		((float *)dy)[i] = (float)(2 * (double)y[i] / (double)count);
	}
	loss[0] = (float)(sum / (double)count);
	TRY(plan_write(a->plan, a->dy, dy));
	return plan_run(a->plan);
}

static status add_gradients(golden *g, const attender *a, error *err)
{
	const graph *made = plan_graph(a->plan);
	for (int i = 0; i < a->parameters.count && g->options->spec.gradients; i++) {
		const parameter_spec *p = &a->parameters.items[i];
		value v = graph_gradient(made, graph_find(made, p->name));
		float *out;
		TRY(golden_result(g, extent_of(parameter_stored_shape(p)), &out, err, "grad.%s", p->name));
		if (v != VALUE_NONE)
			TRY(plan_read(a->plan, v, out));
	}
	return STATUS_OK;
}

static status read_and_run(golden *g, attender *a, error *err)
{
	extent x, context;
	TRY(golden_rank(g, "x", 3, &x, err));
	TRY(golden_rank(g, "context", 3, &context, err));
	a->batch = x.dim[0];
	a->rows = x.dim[1];
	a->source = context.dim[1];
	TRY(read_stack(g, a, err));
	stack_parameters(&a->stack, &a->parameters);
	if (a->parameters.status != STATUS_OK)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	TRY(build(g, a, err));
	TRY(write_inputs(g, a, err));
	TRY(run(g, a, err));
	return add_gradients(g, a, err);
}

static status evaluate(golden *g, error *err)
{
	attender a = {.plan = NULL};
	status s = read_and_run(g, &a, err);
	parameter_list_free(&a.parameters);
	return s;
}

static bool is_gradient(const char *name)
{
	return strncmp(name, "grad.", 5) == 0;
}

const golden_reader golden_reader_x_transformers_stack = {
    .source = "a stack of x-transformers",
    .recognises = recognises,
    .evaluate = evaluate,
    .is_gradient = is_gradient,
};
