/* optimizer.c - updates are counted, not steps. A step whose gradients are not finite leaves the state unchanged, so
 * Adam's bias correction must not count it. */
#include "engine/train/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/train/optimizer_kind.h"
#include "engine/train/parameter_depth.h"
#include "engine/train/ranks.h"

enum { LAYOUTS = 3 };

struct optimizer {
	backend *backend;
	int64_t floats;
	const optimizer_kind *kind;
	const char *measure;
	float *gradients, *mean;            /* device; mean is NULL if a step is one micro-batch */
	ranks *ranks;                       /* NULL: not sharded */
	int rank, count;                    /* index of this share; number of shares */
	int64_t *bounds[LAYOUTS];           /* for each layout of a state, those of the shares: count + 1 */
	float *state[OPTIMIZER_MAX_STATES]; /* device: of this share */
	float *whole;                       /* host: the states of all shares, one after another; NULL: not gathered */
	bool is_gathered;                   /* `whole` is complete */
	int32_t *spans; /* device: of this share's parameters, [tensors, ROW_SPAN_WORDS]; NULL: elementwise */
	float *factors; /* device: step_factors for each ROW_SPAN_UNIT weights; NULL: all are 1 */
	float *scales;  /* device: matrix_scale for each ROW_SPAN_UNIT weights; NULL: not read by the kind */
	float *small2;  /* device: mean of the micro-batches' norm2; NULL without gradient_noise */
	plan *gather, *update;
	plan *round; /* makes the bf16 copy of the weights of all shares; NULL: not sharded, or no copy */
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

/* Return the first number of this share in a vector of a layout, and the numbers of the share. */
static int64_t first_of(const optimizer *o, optimizer_layout layout)
{
	return o->bounds[layout][o->rank];
}

static int64_t count_of(const optimizer *o, optimizer_layout layout)
{
	return o->bounds[layout][o->rank + 1] - first_of(o, layout);
}

static int64_t units_of(const optimizer *o)
{
	return (count_of(o, STATE_PER_SCALAR) + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT;
}

/* matrices: those of list_matrices. A share without weights only computes the norm. */
static status optimizer_build_update(optimizer *o, model *m, const train_options *options,
                                     const optimizer_matrix *matrices, int n_matrices, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	const int64_t first = first_of(o, STATE_PER_SCALAR), floats = count_of(o, STATE_PER_SCALAR);
	const shape own = SHAPE1(floats);
	float *gradients = optimizer_step_gradients(o);
	plan_binding bindings[8 + OPTIMIZER_MAX_STATES];
	int n = 0;
	const value all = graph_input(g, "all_gradients", DTYPE_F32, SHAPE1(o->floats));
	bindings[n++] = (plan_binding){all, gradients};
	o->hyper = graph_input(g, "hyper", DTYPE_F32, SHAPE1(2));
	o->norm2 = op_sum_squares(g, all);
	graph_output(g, o->norm2, "norm2");
	if (floats == 0)
		return plan_new(&o->update, g, o->backend, bindings, n, err);
	optimizer_values v = {.weights = graph_state(g, "weights", own),
	                      .gradients = all,
	                      .norm2 = o->norm2,
	                      .hyper = o->hyper,
	                      .spans = VALUE_NONE,
	                      .rows = count_of(o, STATE_PER_ROW),
	                      .bf16 = VALUE_NONE,
	                      .factors = VALUE_NONE,
	                      .matrices = matrices,
	                      .n_matrices = n_matrices,
	                      .scales = VALUE_NONE};
	bindings[n++] = (plan_binding){v.weights, model_arena(m) + first};
	for (int i = 0; o->kind->states[i].name; i++) {
		v.state[i] = graph_state(g, o->kind->states[i].name, SHAPE1(count_of(o, o->kind->states[i].layout)));
		bindings[n++] = (plan_binding){v.state[i], o->state[i]};
	}
	if (floats < o->floats) {
		v.gradients = graph_input(g, "gradients", DTYPE_F32, own);
		bindings[n++] = (plan_binding){v.gradients, gradients + first};
	}
	if (o->spans) {
		v.spans = graph_weight(g, "spans", DTYPE_I32, SHAPE2(count_of(o, STATE_PER_TENSOR), ROW_SPAN_WORDS));
		bindings[n++] = (plan_binding){v.spans, o->spans};
	}
	if (o->factors) {
		v.factors = graph_weight(g, "factors", DTYPE_F32, SHAPE2(units_of(o), 2));
		bindings[n++] = (plan_binding){v.factors, o->factors};
	}
	if (o->scales) {
		v.scales = graph_weight(g, "scales", DTYPE_F32, SHAPE1(units_of(o)));
		bindings[n++] = (plan_binding){v.scales, o->scales};
	}
	if (model_bf16_weights(m) && !o->ranks) {
		v.bf16 = graph_weight(g, "narrow", DTYPE_BF16, own);
		bindings[n++] = (plan_binding){v.bf16, model_bf16_weights(m)};
	}
	o->kind->build_update(g, &v, options);
	return plan_new(&o->update, g, o->backend, bindings, n, err);
}

static status build_round(optimizer *o, model *m, error *err)
{
	graph *g = graph_new();
	if (!g)
		return STATUS_NOMEM;
	const value weights = graph_weight(g, "weights", DTYPE_F32, SHAPE1(o->floats));
	const value narrow = op_cast(g, weights, DTYPE_BF16);
	const plan_binding bindings[] = {{weights, model_arena(m)}, {narrow, model_bf16_weights(m)}};
	return plan_new(&o->round, g, o->backend, bindings, 2, err);
}

static status optimizer_allocate(optimizer *o, int64_t floats, float **out)
{
	void *data = NULL;
	status s = o->backend->allocate(o->backend, (size_t)floats * sizeof(float), &data);
	*out = data;
	return s;
}

/* True if the update of a number depends on no other number of its tensor. */
static bool is_elementwise(const optimizer_kind *kind)
{
	for (const optimizer_state *s = kind->states; s->name; s++)
		if (s->layout != STATE_PER_SCALAR)
			return false;
	return !kind->matrix_scale;
}

/* Set the bounds of the shares: all are equal, or begin with the first parameter after an equal share's begin. */
static void cut_shares(optimizer *o, const row_span *spans, int64_t tensors, int64_t rows)
{
	int64_t k = 0;
	for (int i = 0; i <= o->count; i++) {
		int64_t first = i == o->count ? o->floats : o->floats * i / o->count / ROW_SPAN_UNIT * ROW_SPAN_UNIT;
		while (k < tensors && (int64_t)spans[k].place * ROW_SPAN_UNIT < first)
			k++;
		if (!is_elementwise(o->kind))
			first = k < tensors ? (int64_t)spans[k].place * ROW_SPAN_UNIT : o->floats;
		o->bounds[STATE_PER_SCALAR][i] = first;
		o->bounds[STATE_PER_TENSOR][i] = k;
		o->bounds[STATE_PER_ROW][i] = k < tensors ? spans[k].row : rows;
	}
}

/* Upload where the parameters of this share and their rows are, from the share's begin. */
static status upload_spans(optimizer *o, row_span *spans)
{
	row_span *own = spans + first_of(o, STATE_PER_TENSOR);
	const int64_t tensors = count_of(o, STATE_PER_TENSOR);
	const size_t bytes = (size_t)tensors * sizeof *own;
	void *data = NULL;
	for (int64_t i = 0; i < tensors; i++) {
		own[i].row -= (int32_t)first_of(o, STATE_PER_ROW);
		own[i].place -= (int32_t)(first_of(o, STATE_PER_SCALAR) / ROW_SPAN_UNIT);
	}
	status s = o->backend->allocate(o->backend, bytes, &data);
	o->spans = data;
	return s == STATUS_OK ? o->backend->upload(o->backend, data, own, bytes) : s;
}

/* Divide the trained parameters into shares. */
static status make_shares(optimizer *o, const model *m)
{
	int64_t tensors, rows;
	for (int i = 0; i < LAYOUTS; i++) {
		o->bounds[i] = memory_new((size_t)o->count + 1, sizeof *o->bounds[i]);
		if (!o->bounds[i])
			return STATUS_NOMEM;
	}
	row_span *spans = memory_new((size_t)model_tensor_count(m), sizeof *spans);
	if (!spans)
		return STATUS_NOMEM;
	model_row_spans(m, spans, &tensors, &rows);
	cut_shares(o, spans, tensors, rows);
	status s = STATUS_OK;
	if (!is_elementwise(o->kind) && count_of(o, STATE_PER_TENSOR) > 0)
		s = upload_spans(o, spans);
	free(spans);
	return s;
}

/* Factor of the decay of a parameter: 1 for matrices and tables, 0 for vectors. */
static float decay_factor(const train_options *options, const parameter_spec *p)
{
	return options->decayed == DECAYED_ALL || p->shape.rank > 1 ? 1 : 0;
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

/* Copy numbers for the units of all weights to the device, `width` for each unit; those of this share. */
static status upload_units(optimizer *o, const float *units, int64_t width, float **out)
{
	TRY(optimizer_allocate(o, units_of(o) * width, out));
	return o->backend->upload(o->backend, *out, units + first_of(o, STATE_PER_SCALAR) / ROW_SPAN_UNIT * width,
	                          (size_t)(units_of(o) * width) * sizeof *units);
}

/* Make the device vectors that have numbers for each 16 weights: those of their parameter. */
static status make_factors(optimizer *o, const model *m, const train_options *options)
{
	const size_t units = (size_t)((o->floats + ROW_SPAN_UNIT - 1) / ROW_SPAN_UNIT);
	const bool factors = options->decayed == DECAYED_MATRICES || options->layer_rate_decay < 1;
	step_factors *steps = memory_new(units, sizeof *steps);
	float *scales = memory_new(units, sizeof *scales);
	const parameter_depths depths = parameter_depths_of(m);
	for (int i = 0; i < model_tensor_count(m) && steps && scales; i++) {
		const parameter_spec *p = model_parameter(m, i);
		const int64_t first = model_parameter_offset(m, i), last = first + shape_count(p->shape);
		const float rate = (float)pow(options->layer_rate_decay, parameter_layers_above(&depths, m, i));
		for (int64_t at = first; at < last && !p->fixed; at += ROW_SPAN_UNIT) {
			steps[at / ROW_SPAN_UNIT] = (step_factors){rate, decay_factor(options, p)};
			scales[at / ROW_SPAN_UNIT] = o->kind->matrix_scale ? scale_factor(o, p) : 0;
		}
	}
	status s = steps && scales ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK && factors)
		s = upload_units(o, &steps->rate, 2, &o->factors);
	if (s == STATUS_OK && o->kind->matrix_scale)
		s = upload_units(o, scales, 1, &o->scales);
	free(scales);
	free(steps);
	return s;
}

/* Return this share's matrices, of a kind with matrix_scale; freed by the caller. */
static optimizer_matrix *list_matrices(const optimizer *o, const model *m, int *count)
{
	const int64_t first = first_of(o, STATE_PER_SCALAR), end = first + count_of(o, STATE_PER_SCALAR);
	optimizer_matrix *list = memory_new((size_t)model_tensor_count(m), sizeof *list);
	*count = 0;
	for (int i = 0; list && i < model_tensor_count(m); i++) {
		const parameter_spec *p = model_parameter(m, i);
		const int64_t at = model_parameter_offset(m, i);
		if (is_matrix(p) && at >= first && at < end)
			list[(*count)++] = (optimizer_matrix){at - first, p->shape.dim[0], p->shape.dim[1]};
	}
	return list;
}

static status optimizer_build(optimizer *o, model *m, const train_options *options, error *err)
{
	if (model_bf16_weights(m) && !o->kind->bf16_copy)
		return error_set(err, STATUS_UNSUPPORTED, "precision", "the optimizer %s trains in fp32 only",
		                 o->kind->name);
	TRY(optimizer_allocate(o, o->floats, &o->gradients));
	TRY(make_shares(o, m));
	const bool owns = count_of(o, STATE_PER_SCALAR) > 0;
	if (owns)
		TRY(make_factors(o, m, options));
	for (int i = 0; owns && o->kind->states[i].name; i++)
		TRY(optimizer_allocate(o, count_of(o, o->kind->states[i].layout), &o->state[i]));
	if (o->ranks && model_bf16_weights(m))
		TRY(build_round(o, m, err));
	if (options->gradient_accumulation > 1) {
		TRY(optimizer_allocate(o, o->floats, &o->mean));
		if (options->gradient_noise)
			TRY(optimizer_allocate(o, 1, &o->small2));
		TRY(build_gather(o, options, err));
	}
	int count = 0;
	optimizer_matrix *matrices = o->kind->matrix_scale ? list_matrices(o, m, &count) : NULL;
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
	o->ranks = options->shard_optimizer ? options->ranks : NULL;
	o->rank = o->ranks ? o->ranks->rank : 0;
	o->count = o->ranks ? o->ranks->count : 1;
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
	plan_free(o->round);
	o->backend->release(o->backend, o->gradients);
	o->backend->release(o->backend, o->mean);
	o->backend->release(o->backend, o->spans);
	o->backend->release(o->backend, o->factors);
	o->backend->release(o->backend, o->scales);
	o->backend->release(o->backend, o->small2);
	for (int i = 0; i < OPTIMIZER_MAX_STATES; i++)
		o->backend->release(o->backend, o->state[i]);
	for (int i = 0; i < LAYOUTS; i++)
		free(o->bounds[i]);
	free(o->whole);
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

/* --- shares -------------------------------------------------------------------------- */

const int64_t *optimizer_shares(const optimizer *o)
{
	return o->ranks ? o->bounds[STATE_PER_SCALAR] : NULL;
}

status optimizer_exchanged(optimizer *o)
{
	return o->round ? plan_run(o->round) : STATUS_OK;
}

/* Copy this share's part of a state from the device into the whole vector. */
static status download_share(const optimizer *o, int i, float *state)
{
	const optimizer_layout layout = o->kind->states[i].layout;
	const size_t bytes = (size_t)count_of(o, layout) * sizeof *state;
	return bytes ? o->backend->download(o->backend, state + first_of(o, layout), o->state[i], bytes) : STATUS_OK;
}

/* Return the offset of a state in `whole`; the offset of the end of the list is the length. */
static int64_t offset_of(const optimizer *o, int state)
{
	int64_t floats = 0;
	for (int i = 0; i < state && o->kind->states[i].name; i++)
		floats += optimizer_state_floats(o, i);
	return floats;
}

static status begin_gather(optimizer *o)
{
	o->whole = memory_new((size_t)offset_of(o, OPTIMIZER_MAX_STATES), sizeof *o->whole);
	if (!o->whole)
		return STATUS_NOMEM;
	for (int i = 0; o->kind->states[i].name; i++) {
		float *state = o->whole + offset_of(o, i);
		TRY(download_share(o, i, state));
		TRY(o->ranks->begin_gather(o->ranks, state, o->bounds[o->kind->states[i].layout]));
	}
	return STATUS_OK;
}

status optimizer_gather(optimizer *o, bool *complete)
{
	*complete = optimizer_is_whole(o);
	if (*complete)
		return STATUS_OK;
	if (!o->whole)
		TRY(begin_gather(o));
	TRY(o->ranks->poll(o->ranks, complete));
	if (*complete && o->ranks->rank != 0) { /* rank 0 saves */
		free(o->whole);
		o->whole = NULL;
	}
	o->is_gathered = *complete;
	return STATUS_OK;
}

bool optimizer_is_whole(const optimizer *o)
{
	return !o->ranks || o->is_gathered;
}

/* The states change, or this share's do. */
static void forget_whole(optimizer *o)
{
	free(o->whole);
	o->whole = NULL;
	o->is_gathered = false;
}

/* --- a step -------------------------------------------------------------------------- */

status optimizer_begin(optimizer *o)
{
	if (o->small2)
		TRY(o->backend->clear(o->backend, o->small2, sizeof *o->small2));
	return o->mean ? o->backend->clear(o->backend, o->mean, (size_t)o->floats * sizeof(float)) : STATUS_OK;
}

status optimizer_prepare(optimizer *o, double learning_rate)
{
	const float hyper[2] = {(float)learning_rate, (float)(o->updates + 1)};
	forget_whole(o);
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
	return o->bounds[o->kind->states[i].layout][o->count];
}

status optimizer_download(const optimizer *o, int i, float *state)
{
	if (!o->ranks)
		return download_share(o, i, state);
	if (!o->is_gathered)
		return STATUS_UNAVAILABLE;
	memcpy(state, o->whole + offset_of(o, i), (size_t)optimizer_state_floats(o, i) * sizeof *state);
	return STATUS_OK;
}

status optimizer_upload(optimizer *o, int i, const float *state)
{
	const optimizer_layout layout = o->kind->states[i].layout;
	const size_t bytes = (size_t)count_of(o, layout) * sizeof *state;
	forget_whole(o);
	return bytes ? o->backend->upload(o->backend, o->state[i], state + first_of(o, layout), bytes) : STATUS_OK;
}
