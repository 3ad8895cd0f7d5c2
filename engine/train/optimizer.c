/* Adam's t counts the updates made, not the steps: a step whose gradients are not finite
 * leaves the moments alone, and then the bias correction must not run ahead of them. */
#include "engine/train/optimizer.h"

#include <math.h>

#include "engine/base/memory.h"

struct optimizer {
	backend *backend;
	int64_t floats;
	float *gradients, *mean, *m, *v; /* device; mean is NULL when a step is one micro-batch */
	plan *gather, *update;
	value hyper, norm2;
	int64_t updates;
};

static status build_gather(optimizer *o, int64_t accumulation, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	value mean = graph_state(g, "mean", SHAPE1(o->floats));
	value gradients = graph_input(g, "gradients", DTYPE_F32, SHAPE1(o->floats));
	op_accumulate(g, mean, gradients, (float)(1.0 / (double)accumulation));
	const plan_binding bindings[] = {{mean, o->mean}, {gradients, o->gradients}};
	return plan_new(&o->gather, g, o->backend, bindings, 2, err);
}

static status build_update(optimizer *o, model *m, const train_options *options, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	value weights = graph_state(g, "weights", SHAPE1(o->floats));
	value first = graph_state(g, "m", SHAPE1(o->floats));
	value second = graph_state(g, "v", SHAPE1(o->floats));
	value gradients = graph_input(g, "gradients", DTYPE_F32, SHAPE1(o->floats));
	value narrow = model_narrowed(m) ? graph_weight(g, "narrow", DTYPE_BF16, SHAPE1(o->floats)) : VALUE_NONE;
	o->hyper = graph_input(g, "hyper", DTYPE_F32, SHAPE1(2));
	o->norm2 = op_sum_squares(g, gradients);
	graph_output(g, o->norm2, "norm2");
	op_adamw(g, weights, gradients, first, second, o->norm2, o->hyper, narrow,
	         (adamw_params){.beta1 = (float)options->betas[0],
	                        .beta2 = (float)options->betas[1],
	                        .eps = (float)options->eps,
	                        .decay = (float)options->weight_decay,
	                        .clip = (float)options->clip});
	const plan_binding bindings[] = {{weights, model_arena(m)},
	                                 {first, o->m},
	                                 {second, o->v},
	                                 {gradients, o->mean ? o->mean : o->gradients},
	                                 {narrow, model_narrowed(m)}};
	return plan_new(&o->update, g, o->backend, bindings, narrow == VALUE_NONE ? 4 : 5, err);
}

static status allocate(optimizer *o, float **out)
{
	void *data = NULL;
	status s = o->backend->allocate(o->backend, (size_t)o->floats * sizeof(float), &data);
	*out = data;
	return s;
}

static status build(optimizer *o, model *m, const train_options *options, error *err)
{
	TRY(allocate(o, &o->gradients));
	TRY(allocate(o, &o->m));
	TRY(allocate(o, &o->v));
	if (options->gradient_accumulation > 1) {
		TRY(allocate(o, &o->mean));
		TRY(build_gather(o, options->gradient_accumulation, err));
	}
	return build_update(o, m, options, err);
}

status optimizer_new(optimizer **out, model *m, const train_options *options, error *err)
{
	*out = NULL;
	optimizer *o = memory_new(1, sizeof *o);
	if (!o)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	o->backend = model_backend(m);
	o->floats = model_arena_floats(m);
	status s = build(o, m, options, err);
	if (s != STATUS_OK) {
		optimizer_free(o);
		return error_set(err, s, NULL, "the optimiser of %lld weights: %s", (long long)model_arena_floats(m),
		                 status_text(s));
	}
	*out = o;
	return STATUS_OK;
}

void optimizer_free(optimizer *o)
{
	if (!o)
		return;
	plan_free(o->gather);
	plan_free(o->update);
	o->backend->release(o->backend, o->gradients);
	o->backend->release(o->backend, o->mean);
	o->backend->release(o->backend, o->m);
	o->backend->release(o->backend, o->v);
	free(o);
}

float *optimizer_gradients(const optimizer *o)
{
	return o->gradients;
}

plan *optimizer_gather_plan(const optimizer *o)
{
	return o->gather;
}

plan *optimizer_update_plan(const optimizer *o)
{
	return o->update;
}

status optimizer_begin(optimizer *o)
{
	return o->mean ? o->backend->clear(o->backend, o->mean, (size_t)o->floats * sizeof(float)) : STATUS_OK;
}

status optimizer_prepare(optimizer *o, double learning_rate)
{
	const float hyper[2] = {(float)learning_rate, (float)(o->updates + 1)};
	return plan_write(o->update, o->hyper, hyper);
}

const float *optimizer_norm2(const optimizer *o)
{
	return plan_data(o->update, o->norm2);
}

double optimizer_count(optimizer *o, float norm2)
{
	if (isfinite(norm2))
		o->updates++;
	return sqrt((double)norm2);
}

status optimizer_finish(optimizer *o, double *norm)
{
	float norm2;
	TRY(plan_read(o->update, o->norm2, &norm2));
	*norm = optimizer_count(o, norm2);
	return STATUS_OK;
}

int64_t optimizer_updates(const optimizer *o)
{
	return o->updates;
}

status optimizer_download(const optimizer *o, float *m, float *v)
{
	size_t bytes = (size_t)o->floats * sizeof(float);
	TRY(o->backend->download(o->backend, m, o->m, bytes));
	return o->backend->download(o->backend, v, o->v, bytes);
}

status optimizer_upload(optimizer *o, const float *m, const float *v, int64_t updates)
{
	size_t bytes = (size_t)o->floats * sizeof(float);
	TRY(o->backend->upload(o->backend, o->m, m, bytes));
	TRY(o->backend->upload(o->backend, o->v, v, bytes));
	o->updates = updates;
	return STATUS_OK;
}
