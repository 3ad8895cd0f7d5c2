/* One loop over chunks of the sequence drives both forms of the model. The parallel form is a single chunk of all N
 * tokens; the recurrent form reads chunks of a few tokens into B slots of a state pool. Before each chunk its columns
 * are copied from the inputs; the last chunk is padded with tokens that are not read. After it, rows of the outputs are
 * copied to their places. With loss_only only the chunk's part of the loss is kept. */
#include "tests/golden/evaluation.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/memory.h"

enum { NAME_BYTES = 160 };

typedef struct evaluation {
	const evaluation_spec *spec;
	const batch *batch;
	model *model;
	results *results;
	plan *plan;
	float *pool;   /* device memory; NULL in the parallel form */
	int64_t chunk; /* tokens per run */
	int per_token; /* results that have a row per token: the first ones */
	double loss_sum, loss_count;
} evaluation;

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* --- results ------------------------------------------------------------------------------ */

static int rounds_of(const model *m)
{
	const explainer *x = model_explainer(m);
	return x && x->scores ? x->n_rounds : 0;
}

/* The outputs that may have a row per token: logits, then three per layer and round. */
static int token_output_count(const evaluation *e)
{
	if (e->spec->loss_only)
		return 0;
	return 1 + (int)model_dimensions(e->model)->layers * rounds_of(e->model) * 3;
}

static void token_output_name(const model *m, int index, char name[NAME_BYTES])
{
	static const char *const kinds[] = {"score", "log_normalizer", "pooled"};
	const explainer *x = model_explainer(m);
	int i = index - 1;
	if (index == 0)
		snprintf(name, NAME_BYTES, "logits");
	else
		snprintf(name, NAME_BYTES, "layers.%d.%s.%s", i / 3 / x->n_rounds, x->rounds[i / 3 % x->n_rounds],
		         kinds[i % 3]);
}

/* The per-token outputs that the graph has. */
static status make_results(evaluation *e, error *err)
{
	const graph *g = plan_graph(e->plan);
	for (int i = 0; i < token_output_count(e); i++) {
		char name[NAME_BYTES];
		token_output_name(e->model, i, name);
		value v = graph_find(g, name);
		if (v == VALUE_NONE)
			continue;
		shape s = SHAPE3(e->batch->sequences, e->batch->length, shape_last(graph_value(g, v)->shape));
		if (shape_check(s) != STATUS_OK || !results_add(e->results, extent_of(s), name))
			return no_memory(err);
	}
	e->per_token = e->results->count;
	return STATUS_OK;
}

/* --- the run ------------------------------------------------------------------------------ */

static status make_plan(evaluation *e, error *err)
{
	const batch *in = e->batch;
	bool rounds = !e->spec->loss_only && rounds_of(e->model) > 0;
	forward_spec spec = {
	    .phase = e->spec->recurrent ? PHASE_STEP : PHASE_SCORE,
	    .batch = in->sequences,
	    .length = e->chunk,
	    .slots = in->sequences,
	    .masked = in->mask != NULL,
	    .train.loss = true,
	    .train.backward = e->spec->gradients,
	    .explain.log = rounds,
	    .out.activations = rounds,
	    .bf16 = e->spec->bf16,
	    .out.logits = e->spec->loss_only ? LOGITS_NONE : LOGITS_ALL,
	    .train.smoothing = (float)e->spec->smoothing,
	};
	size_t bytes = (size_t)model_state_floats(e->model) * sizeof(float), all;
	if (forward_recurrent(&spec)) {
		if (__builtin_mul_overflow(bytes, (size_t)spec.slots, &all))
			return no_memory(err);
		status s = model_backend(e->model)->allocate(model_backend(e->model), all, (void **)&e->pool);
		if (s != STATUS_OK)
			return error_set(err, s, NULL, "cannot allocate %zu bytes of recurrent state", all);
	}
	if (spec.bf16)
		TRY(model_update_bf16_copy(e->model, err));
	return model_plan(&e->plan, e->model, &spec, NULL, e->pool, err);
}

/* Tokens of the chunk that begins there. */
static int64_t chunk_length(const evaluation *e, int64_t begin)
{
	return e->spec->recurrent
	           ? model_dims_piece(model_dimensions(e->model), begin, e->batch->length - begin, e->chunk)
	           : e->batch->length - begin;
}

/* The chunk's columns of a [B,N] input, and `filling` after them; scratch holds [B,chunk]. */
static status write_columns(const evaluation *e, port_role role, const int32_t *from, int64_t begin, int32_t filling,
                            int32_t *scratch)
{
	int64_t n = chunk_length(e, begin);
	if (!from)
		return STATUS_OK;
	for (int64_t b = 0; b < e->batch->sequences; b++)
		for (int64_t i = 0; i < e->chunk; i++)
			scratch[b * e->chunk + i] = i < n ? from[b * e->batch->length + begin + i] : filling;
	return feed_write(e->plan, role, scratch);
}

static status write_chunk(const evaluation *e, int64_t begin, int32_t *scratch)
{
	TRY(write_columns(e, PORT_TOKENS, e->batch->ids, begin, 0, scratch));
	TRY(write_columns(e, PORT_MASK, e->batch->mask, begin, 0, scratch));
	TRY(write_columns(e, PORT_LABELS, e->batch->labels, begin, BATCH_IGNORED, scratch));
	TRY(feed_positions(e->plan, model_dimensions(e->model), e->spec->policy, begin));
	return e->spec->recurrent ? feed_step(e->plan, begin, chunk_length(e, begin)) : STATUS_OK;
}

/* Put the chunk's rows of every per-token output in their place; scratch holds the largest. */
static status read_chunk(evaluation *e, int64_t begin, float *scratch)
{
	const graph *g = plan_graph(e->plan);
	float loss, count;
	for (int i = 0; i < e->per_token; i++) {
		const safetensors_item *item = &e->results->items[i];
		int64_t width = item->dim[2];
		TRY(plan_read(e->plan, graph_find(g, item->name), scratch));
		for (int64_t b = 0; b < e->batch->sequences; b++)
			memcpy((float *)(uintptr_t)item->data + (b * e->batch->length + begin) * width,
			       scratch + b * e->chunk * width,
			       (size_t)(chunk_length(e, begin) * width) * sizeof *scratch);
	}
	TRY(plan_read(e->plan, port_find(g, PORT_LOSS), &loss));
	TRY(plan_read(e->plan, port_find(g, PORT_COUNT), &count));
	e->loss_sum += (double)loss * (double)count;
	e->loss_count += (double)count;
	return STATUS_OK;
}

static status run_chunks(evaluation *e, error *err)
{
	int64_t rows = e->batch->sequences * e->chunk, widest = 0;
	for (int i = 0; i < e->per_token; i++)
		widest = e->results->items[i].dim[2] > widest ? e->results->items[i].dim[2] : widest;
	float *scratch = memory_new((size_t)(rows * widest), sizeof *scratch);
	int32_t *columns = memory_new((size_t)rows, sizeof *columns);
	status s = scratch && columns ? STATUS_OK : no_memory(err);
	for (int64_t begin = 0; begin < e->batch->length && s == STATUS_OK; begin += chunk_length(e, begin)) {
		s = write_chunk(e, begin, columns);
		if (s == STATUS_OK)
			s = plan_run(e->plan);
		if (s == STATUS_OK)
			s = read_chunk(e, begin, scratch);
	}
	free(scratch);
	free(columns);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "the run failed on %s", model_backend(e->model)->name);
}

static status add_loss(evaluation *e, error *err)
{
	float *loss = results_add(e->results, extent_of(SHAPE0()), "loss"),
	      *count = results_add(e->results, extent_of(SHAPE0()), "count");
	if (!loss || !count)
		return no_memory(err);
	*loss = e->loss_count > 0 ? (float)(e->loss_sum / e->loss_count) : 0;
	*count = (float)e->loss_count;
	return STATUS_OK;
}

/* In the layout that the parameter has in a checkpoint. */
static status add_gradient(evaluation *e, const parameter_spec *p, error *err)
{
	char name[NAME_BYTES];
	snprintf(name, sizeof name, "grad.%s", p->name);
	value v = graph_find(plan_graph(e->plan), name);
	float *data = results_add(e->results, extent_of(parameter_stored_shape(p)), name);
	if (!data)
		return no_memory(err);
	if (v == VALUE_NONE)
		return STATUS_OK; /* the loss does not depend on it: zero */
	float *gradient = memory_new((size_t)shape_count(p->shape), sizeof *gradient);
	if (!gradient)
		return no_memory(err);
	status s = plan_read(e->plan, v, gradient);
	if (s == STATUS_OK)
		parameter_store(p, gradient, data);
	else
		error_set(err, s, NULL, "cannot read a gradient");
	free(gradient);
	return s;
}

static status add_gradients(evaluation *e, error *err)
{
	for (int i = 0; i < model_tensor_count(e->model); i++)
		TRY(add_gradient(e, model_parameter(e->model, i), err));
	return STATUS_OK;
}

/* --- all of it ----------------------------------------------------------------------------------- */

static status run(evaluation *e, error *err)
{
	TRY(make_plan(e, err));
	TRY(make_results(e, err));
	TRY(run_chunks(e, err));
	TRY(add_loss(e, err));
	return e->spec->gradients ? add_gradients(e, err) : STATUS_OK;
}

status evaluation_run(results *out, model *m, const batch *in, const evaluation_spec *spec, error *err)
{
	evaluation e = {.spec = spec, .batch = in, .model = m, .results = out, .chunk = spec->chunk ? spec->chunk : 1};
	if (!spec->recurrent || e.chunk > in->length)
		e.chunk = in->length;
	status s = run(&e, err);
	plan_free(e.plan);
	model_backend(m)->release(model_backend(m), e.pool);
	return s;
}
