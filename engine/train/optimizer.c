/* optimizer.c - updates are counted, not steps. A step whose gradients are not finite leaves the state unchanged, so
 * Adam's bias correction must not count it. */
#include "engine/train/optimizer.h"

#include <math.h>

#include "engine/base/memory.h"
#include "engine/train/optimizer_kind.h"

struct optimizer {
	backend *backend;
	int64_t floats;
	const optimizer_kind *kind;
	const char *measure;
	float *gradients, *mean; /* device; mean is NULL if a step is one micro-batch */
	float *state[OPTIMIZER_MAX_STATES];
	int64_t state_floats[OPTIMIZER_MAX_STATES];
	int64_t tensors, rows; /* for the trained parameters */
	int32_t *spans;        /* device: [tensors, ROW_SPAN_WORDS] */
	float *decays;         /* device: for each ROW_SPAN_UNIT weights; NULL: all weights decay */
	float *scales;         /* device: matrix_scale for each ROW_SPAN_UNIT weights; NULL: not read by the kind */
	float *small2;         /* device: mean of the micro-batches' norm2; NULL without gradient_noise */
	plan *gather, *update;
	value hyper, norm2, weight; /* weight: input of the accumulate plan, or VALUE_NONE */
	int64_t updates;
};

static status build_gather(optimizer *o, const train_options *options, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	value mean = graph_state(g, "mean", SHAPE1(o->floats));
	value gradients = graph_input(g, "gradients", DTYPE_F32, SHAPE1(o->floats));
	value added = gradients;
	if (train_options_uneven(options)) {
		o->weight = graph_input(g, "weight", DTYPE_F32, SHAPE0());
		added = op_scale_by(g, gradients, o->weight);
	}
	const float share = (float)(1.0 / (double)options->gradient_accumulation);
	op_accumulate(g, mean, added, share);
	plan_binding bindings[3] = {{mean, o->mean}, {gradients, o->gradients}};
	if (o->small2) {
		bindings[2] = (plan_binding){graph_state(g, "small2", SHAPE0()), o->small2};
		op_accumulate(g, bindings[2].v, op_sum_squares(g, gradients), share);
	}
	return plan_new(&o->gather, g, o->backend, bindings, o->small2 ? 3 : 2, err);
}

static int64_t units_of(const optimizer *o)
{
	return (o->floats + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT;
}

/* matrices: those of list_matrices. */
static status optimizer_build_update(optimizer *o, model *m, const train_options *options,
                                     const optimizer_matrix *matrices, int n_matrices, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	const shape all = SHAPE1(o->floats);
	plan_binding bindings[6 + OPTIMIZER_MAX_STATES];
	int n = 0;
	optimizer_values v = {.weights = graph_state(g, "weights", all),
	                      .rows = o->rows,
	                      .bf16 = VALUE_NONE,
	                      .decays = VALUE_NONE,
	                      .matrices = matrices,
	                      .n_matrices = n_matrices,
	                      .scales = VALUE_NONE};
	bindings[n++] = (plan_binding){v.weights, model_arena(m)};
	for (int i = 0; o->kind->states[i].name; i++) {
		v.state[i] = graph_state(g, o->kind->states[i].name, SHAPE1(o->state_floats[i]));
		bindings[n++] = (plan_binding){v.state[i], o->state[i]};
	}
	v.gradients = graph_input(g, "gradients", DTYPE_F32, all);
	bindings[n++] = (plan_binding){v.gradients, optimizer_step_gradients(o)};
	v.spans = graph_weight(g, "spans", DTYPE_I32, SHAPE2(o->tensors, ROW_SPAN_WORDS));
	bindings[n++] = (plan_binding){v.spans, o->spans};
	if (o->decays) {
		v.decays = graph_weight(g, "decays", DTYPE_F32, SHAPE1(units_of(o)));
		bindings[n++] = (plan_binding){v.decays, o->decays};
	}
	if (o->scales) {
		v.scales = graph_weight(g, "scales", DTYPE_F32, SHAPE1(units_of(o)));
		bindings[n++] = (plan_binding){v.scales, o->scales};
	}
	if (model_bf16_weights(m)) {
		v.bf16 = graph_weight(g, "narrow", DTYPE_BF16, all);
		bindings[n++] = (plan_binding){v.bf16, model_bf16_weights(m)};
	}
	v.hyper = o->hyper = graph_input(g, "hyper", DTYPE_F32, SHAPE1(2));
	v.norm2 = o->norm2 = op_sum_squares(g, v.gradients);
	graph_output(g, o->norm2, "norm2");
	o->kind->build_update(g, &v, options);
	return plan_new(&o->update, g, o->backend, bindings, n, err);
}

static status optimizer_allocate(optimizer *o, int64_t floats, float **out)
{
	void *data = NULL;
	status s = o->backend->allocate(o->backend, (size_t)floats * sizeof(float), &data);
	*out = data;
	return s;
}

/* Compute where the trained parameters and their rows are stored. */
static status make_spans(optimizer *o, const model *m)
{
	row_span *spans = memory_new((size_t)model_tensor_count(m), sizeof *spans);
	if (!spans)
		return STATUS_NOMEM;
	model_row_spans(m, spans, &o->tensors, &o->rows);
	const size_t bytes = (size_t)o->tensors * sizeof *spans;
	void *data = NULL;
	status s = o->backend->allocate(o->backend, bytes, &data);
	o->spans = data;
	if (s == STATUS_OK)
		s = o->backend->upload(o->backend, data, spans, bytes);
	free(spans);
	return s;
}

/* Factor of the decay of a parameter: 1 for matrices and tables, 0 for vectors. */
static float decay_factor(const optimizer *o, const parameter_spec *p)
{
	(void)o;
	return p->shape.rank > 1 ? 1 : 0;
}

/* True for an optimizer_matrix. */
static bool is_matrix(const parameter_spec *p)
{
	return p->hidden && !p->fixed && p->shape.rank == 2 && p->shape.dim[0] > 1 && p->shape.dim[1] > 1;
}

static float scale_factor(const optimizer *o, const parameter_spec *p)
{
	return is_matrix(p) ? o->kind->matrix_scale(p->shape.dim[0], p->shape.dim[1]) : 0;
}

/* Make a device vector of a factor for each 16 weights, that of their parameter. */
static status make_factors(optimizer *o, const model *m, float (*factor)(const optimizer *, const parameter_spec *),
                           float **out)
{
	float *factors = memory_new((size_t)units_of(o), sizeof *factors);
	if (!factors)
		return STATUS_NOMEM;
	for (int i = 0; i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const int64_t first = model_parameter_offset(m, i), last = first + shape_count(p->shape);
		for (int64_t at = first; at < last && !p->fixed; at += ROW_SPAN_UNIT)
			factors[at / ROW_SPAN_UNIT] = factor(o, p);
	}
	status s = optimizer_allocate(o, units_of(o), out);
	if (s == STATUS_OK)
		s = o->backend->upload(o->backend, *out, factors, (size_t)units_of(o) * sizeof *factors);
	free(factors);
	return s;
}

/* Return the matrices of a kind with matrix_scale, freed by the caller. */
static optimizer_matrix *list_matrices(const model *m, int *count)
{
	optimizer_matrix *list = memory_new((size_t)model_tensor_count(m), sizeof *list);
	*count = 0;
	for (int i = 0; list && i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		if (is_matrix(p))
			list[(*count)++] =
			    (optimizer_matrix){model_parameter_offset(m, i), p->shape.dim[0], p->shape.dim[1]};
	}
	return list;
}

static status optimizer_build(optimizer *o, model *m, const train_options *options, error *err)
{
	if (model_bf16_weights(m) && !o->kind->bf16_copy)
		return error_set(err, STATUS_UNSUPPORTED, "precision", "the optimizer %s trains in fp32 only",
		                 o->kind->name);
	TRY(optimizer_allocate(o, o->floats, &o->gradients));
	TRY(make_spans(o, m));
	if (options->decayed == DECAYED_MATRICES)
		TRY(make_factors(o, m, decay_factor, &o->decays));
	if (o->kind->matrix_scale)
		TRY(make_factors(o, m, scale_factor, &o->scales));
	for (int i = 0; o->kind->states[i].name; i++) {
		o->state_floats[i] = o->kind->states[i].layout == STATE_PER_SCALAR   ? o->floats
		                     : o->kind->states[i].layout == STATE_PER_TENSOR ? o->tensors
		                                                                     : o->rows;
		TRY(optimizer_allocate(o, o->state_floats[i], &o->state[i]));
	}
	if (options->gradient_accumulation > 1) {
		TRY(optimizer_allocate(o, o->floats, &o->mean));
		if (options->gradient_noise)
			TRY(optimizer_allocate(o, 1, &o->small2));
		TRY(build_gather(o, options, err));
	}
	int count = 0;
	optimizer_matrix *matrices = o->kind->matrix_scale ? list_matrices(m, &count) : NULL;
	status s = o->kind->matrix_scale && !matrices ? STATUS_NOMEM
	                                              : optimizer_build_update(o, m, options, matrices, count, err);
	free(matrices);
	return s;
}

status optimizer_new(optimizer **out, model *m, const train_options *options, error *err)
{
	*out = NULL;
	optimizer *o = memory_new(1, sizeof *o);
	if (!o)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	o->backend = model_backend(m);
	o->floats = model_trained_floats(m);
	o->kind = options->optimizer;
	o->measure = o->kind->measure ? o->kind->measure(options) : NULL;
	o->weight = VALUE_NONE;
	status s = optimizer_build(o, m, options, err);
	if (s != STATUS_OK) {
		optimizer_free(o);
		return error_set(err, s, NULL, "the optimiser of %lld weights: %s", (long long)model_trained_floats(m),
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
	o->backend->release(o->backend, o->spans);
	o->backend->release(o->backend, o->decays);
	o->backend->release(o->backend, o->scales);
	o->backend->release(o->backend, o->small2);
	for (int i = 0; i < OPTIMIZER_MAX_STATES; i++)
		o->backend->release(o->backend, o->state[i]);
	free(o);
}

float *optimizer_gradients(const optimizer *o)
{
	return o->gradients;
}

float *optimizer_step_gradients(const optimizer *o)
{
	return o->mean ? o->mean : o->gradients;
}

plan *optimizer_accumulate_plan(const optimizer *o)
{
	return o->gather;
}

status optimizer_weigh(optimizer *o, float weight)
{
	return o->weight == VALUE_NONE ? STATUS_OK : plan_write(o->gather, o->weight, &weight);
}

plan *optimizer_update_plan(const optimizer *o)
{
	return o->update;
}

status optimizer_begin(optimizer *o)
{
	if (o->small2)
		TRY(o->backend->clear(o->backend, o->small2, sizeof *o->small2));
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

const float *optimizer_small2(const optimizer *o)
{
	return o->small2;
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

void optimizer_set_updates(optimizer *o, int64_t updates)
{
	o->updates = updates;
}

const char *optimizer_name(const optimizer *o)
{
	return o->kind->name;
}

const char *optimizer_measure(const optimizer *o)
{
	return o->measure;
}

const char *optimizer_state_name(const optimizer *o, int i)
{
	return o->kind->states[i].name;
}

int64_t optimizer_state_floats(const optimizer *o, int i)
{
	return o->state_floats[i];
}

status optimizer_download(const optimizer *o, int i, float *state)
{
	return o->backend->download(o->backend, state, o->state[i], (size_t)o->state_floats[i] * sizeof *state);
}

status optimizer_upload(optimizer *o, int i, const float *state)
{
	return o->backend->upload(o->backend, o->state[i], state, (size_t)o->state_floats[i] * sizeof *state);
}
