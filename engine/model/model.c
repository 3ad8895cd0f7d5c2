/* model.c - a model is first described, without memory: configuration, parameters and their offsets in the arena. A new
 * one is then filled with initial values; model_loader.c reads an existing one. */
#include "engine/model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/base/workers.h"
#include "engine/model/adapter.h"
#include "engine/model/class_names.h"
#include "engine/model/config.h"
#include "engine/model/initial_values.h"
#include "engine/model/model_loader.h"
#include "engine/model/model_private.h"
#include "engine/model/safetensors.h"

enum { ALIGNMENT = 64, REAL_DIGITS = 15 };

void model_free(model *m)
{
	if (!m)
		return;
	if (m->backend) {
		m->backend->release(m->backend, m->bf16_weights);
		if (m->reserved)
			m->backend->unreserve(m->backend, m->arena, m->reserved);
		else
			m->backend->release(m->backend, m->arena);
	}
	parameter_list_free(&m->parameters);
	state_list_free(&m->states);
	state_list_free(&m->carried);
	free(m->offset);
	json_decref(m->class_names);
	json_decref(m->kept);
	json_decref(m->lora.targets);
	free(m->config);
	free(m);
}

/* --- configuration and layout ------------------------------------------------------- */

dtype model_stored_type(const model *m, const parameter_spec *p)
{
	return p->matrix ? m->weights : DTYPE_F32;
}

/* The limits of the configuration's keys keep this far from overflow. */
static size_t model_stored_bytes(const model *m, const parameter_spec *p)
{
	size_t bytes;
	bool fits = shape_bytes(p->shape, model_stored_type(m, p), &bytes);
	assert(fits);
	return bytes;
}

/* Append the fixed parameters, or all others, to the arena. */
static void model_place(model *m, bool fixed)
{
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		size_t blocks = (model_stored_bytes(m, p) + ALIGNMENT - 1) / ALIGNMENT;
		if (p->fixed != fixed)
			continue;
		m->offset[i] = m->floats;
		m->count += shape_count(p->shape);
		m->floats += (int64_t)(blocks * ALIGNMENT / sizeof(float));
	}
}

static status lay_out(model *m, error *err)
{
	if (m->lora.rank)
		TRY(lora_parameters(m->base, &m->lora, &m->parameters, err));
	else if (m->base)
		TRY(adapter_parameters(m->base, &m->parameters, err));
	else
		m->architecture->parameters(m->config, &m->parameters);
	architecture_states(m->architecture, m->config, &m->states);
	architecture_carried(m->architecture, m->config, &m->carried);
	m->offset = memory_new((size_t)m->parameters.count, sizeof *m->offset);
	if (m->parameters.status != STATUS_OK || m->states.status != STATUS_OK || m->carried.status != STATUS_OK ||
	    !m->offset)
		return error_no_memory(err, "a model");
	model_place(m, false);
	m->trained_floats = m->floats;
	model_place(m, true);
	return STATUS_OK;
}

/* base NULL: a model of its own. lora NULL: no low-rank adapter. */
static status describe_over(model **out, const architecture *a, const json_t *config, dtype weights, model *base,
                            const lora_options *lora, error *err)
{
	*out = NULL;
	model *m = memory_new(1, sizeof *m);
	status s = m && (m->config = memory_new(1, a->config_bytes)) ? STATUS_OK : error_no_memory(err, "a model");
	if (s == STATUS_OK)
		s = architecture_read(a, m->config, config, err);
	if (s == STATUS_OK) {
		m->architecture = a;
		m->base = base;
		m->lora = lora ? *lora : (lora_options){0};
		json_incref(m->lora.targets);
		m->weights = weights;
		m->dims = *architecture_dims(m->config);
		m->kept = json_pack("{}");
		if (!m->kept || !config_keep(m->kept, config) ||
		    (m->dims.form->head == HEAD_CLASSES &&
		     !(m->class_names = class_names_read(config, m->dims.outputs))))
			s = error_no_memory(err, "a model");
	}
	if (s == STATUS_OK)
		s = lay_out(m, err);
	if (s == STATUS_OK)
		*out = m;
	else
		model_free(m);
	return s;
}

status model_describe(model **out, const architecture *a, const json_t *config, dtype weights, error *err)
{
	return describe_over(out, a, config, weights, NULL, NULL, err);
}

static status model_allocate(model *m, backend *b, error *err)
{
	m->backend = b;
	status s = b->allocate(b, (size_t)m->floats * sizeof(float), (void **)&m->arena);
	if (s != STATUS_OK) {
		m->arena = NULL;
		error_set(err, s, NULL, "cannot allocate %" PRId64 " MiB for the weights on %s", m->floats >> 18,
		          b->name);
	}
	return s;
}

/* Allocate host memory for the largest parameter as plain floats; NULL: out of memory. */
static float *staging_new(const model *m)
{
	int64_t largest = 0;
	for (int i = 0; i < m->parameters.count; i++) {
		int64_t count = shape_count(m->parameters.items[i].shape);
		largest = count > largest ? count : largest;
	}
	return memory_new((size_t)largest, sizeof(float));
}

/* --- reading a folder ----------------------------------------------------------------- */

/* b may be NULL. */
static status open_folder(model **out, const char *folder, dtype weights, backend *b, error *err)
{
	model_loader *l;
	bool done = false;
	*out = NULL;
	TRY(model_loader_new(&l, folder, weights, b, err));
	status s = STATUS_OK;
	while (s == STATUS_OK && !done)
		s = model_loader_step(l, &done, err);
	if (s == STATUS_OK)
		*out = model_loader_take(l);
	model_loader_free(l);
	return s;
}

status model_open(model **out, const char *folder, dtype weights, backend *b, error *err)
{
	return open_folder(out, folder, weights, b, err);
}

status model_check(const char *folder, error *err)
{
	model *m;
	TRY(open_folder(&m, folder, DTYPE_F32, NULL, err));
	model_free(m);
	return STATUS_OK;
}

/* --- a fresh model ------------------------------------------------------------------------ */

status model_fill_new(model **out, model *m, uint64_t seed, backend *b, error *err)
{
	status s = model_allocate(m, b, err);
	float *values = s == STATUS_OK && !b->host_memory ? staging_new(m) : NULL;
	if (s == STATUS_OK && !b->host_memory && !values)
		s = error_no_memory(err, "a model");
	initial_values first;
	initial_values_begin(&first, seed, workers_threads(b->threads));
	for (int i = 0; i < m->parameters.count && s == STATUS_OK; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		float *at = m->arena + m->offset[i];
		initial_values_fill(&first, p, values ? values : at);
		if (values)
			s = b->upload(b, at, values, model_stored_bytes(m, p));
		if (s != STATUS_OK)
			error_set(err, s, NULL, "cannot copy the weights to %s", b->name);
	}
	free(values);
	if (s == STATUS_OK)
		*out = m;
	else
		model_free(m);
	return s;
}

status model_create(model **out, const architecture *a, const json_t *config, uint64_t seed, backend *b, error *err)
{
	model *m;
	*out = NULL;
	TRY(model_describe(&m, a, config, DTYPE_F32, err));
	return model_fill_new(out, m, seed, b, err);
}

/* Return the contents of config.json. New reference; NULL: out of memory. */
static json_t *whole_config(const model *m)
{
	json_t *json = m->architecture->config_write(m->config);
	if (json && (!m->class_names || class_names_write(json, m->class_names)) && config_keep(json, m->kept))
		return json;
	json_decref(json);
	return NULL;
}

/* Describe a model like m; of the base, it is an adapter. */
static status describe_like(model **out, const model *m, model *base, const lora_options *lora, error *err)
{
	*out = NULL;
	json_t *config = whole_config(m);
	const status s = config ? describe_over(out, m->architecture, config, DTYPE_F32, base, lora, err)
	                        : error_no_memory(err, "a model");
	json_decref(config);
	return s;
}

status model_describe_adapter(model **out, model *base, const lora_options *o, error *err)
{
	return describe_like(out, base, base, o, err);
}

status model_describe_twin(model **out, const model *m, error *err)
{
	return describe_like(out, m, NULL, NULL, err);
}

status model_fill_adapter(model **out, model *m, uint64_t seed, error *err)
{
	if (m->base->backend)
		return model_fill_new(out, m, seed, m->base->backend, err);
	*out = m;
	return STATUS_OK;
}

status model_new_adapter(model **out, model *base, error *err)
{
	model *m;
	*out = NULL;
	TRY(describe_like(&m, base, base, NULL, err));
	return model_fill_adapter(out, m, 0, err);
}

status model_copy(model **out, const model *m, error *err)
{
	*out = NULL;
	if (m->weights != DTYPE_F32)
		return error_set(err, STATUS_UNSUPPORTED, NULL, "a model whose weights are packed cannot be copied");
	backend *b = m->backend;
	model *copy;
	status s = describe_like(&copy, m, m->base, model_lora(m), err);
	if (s == STATUS_OK)
		s = model_allocate(copy, b, err);
	if (s == STATUS_OK)
		s = b->copy(b, copy->arena, m->arena, (size_t)m->floats * sizeof(float));
	if (s == STATUS_OK)
		*out = copy;
	else
		model_free(copy);
	return s;
}

status model_set_counts(model *m, const int64_t *counts, error *err)
{
	float *values = memory_new((size_t)m->dims.inputs, sizeof *values);
	status s = values ? STATUS_OK : error_no_memory(err, "a model");
	for (int64_t v = 0; v < m->dims.inputs && s == STATUS_OK; v++)
		values[v] = (float)log2((double)counts[v] + 0.5);
	for (int i = 0; i < m->parameters.count && s == STATUS_OK; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		if (!p->log_counts)
			continue;
		assert(shape_count(p->shape) == m->dims.inputs);
		s = m->backend->upload(m->backend, m->arena + m->offset[i], values, model_stored_bytes(m, p));
		if (s != STATUS_OK)
			error_set(err, s, NULL, "cannot copy the weights to %s", m->backend->name);
	}
	free(values);
	return s;
}

/* --- writing a folder ------------------------------------------------------------------------ */

static status model_write_config(const model *m, const char *folder, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, "config.json", err));
	json_t *json = whole_config(m);
	char *text = json_text(json, JSON_INDENT(2) | JSON_REAL_PRECISION(REAL_DIGITS));
	json_decref(json);
	if (!text)
		return error_no_memory(err, "a model");
	status s = file_write(path, (file_part[]){{text, strlen(text)}, {"\n", 1}}, 2, err);
	free(text);
	return s;
}

static safetensors_item item_of(const char *name, shape s, const float *data)
{
	safetensors_item item = {.name = name, .type = ST_F32, .rank = s.rank, .data = data};
	memcpy(item.dim, s.dim, (size_t)s.rank * sizeof *s.dim);
	return item;
}

/* Convert a host copy of the arena to the checkpoint's layout. */
static status store_all(const model *m, float *weights, error *err)
{
	float *values = staging_new(m);
	if (!values)
		return error_no_memory(err, "a model");
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		float *at = weights + m->offset[i];
		if (!p->transposed)
			continue;
		memcpy(values, at, model_stored_bytes(m, p));
		parameter_store(p, values, at);
	}
	free(values);
	return STATUS_OK;
}

/* `weights`: a host copy of the arena, which is modified. */
static status write_weights(const model *m, const char *folder, float *weights, error *err)
{
	char path[PATH_MAX];
	TRY(path_join(path, folder, "model.safetensors", err));
	TRY(store_all(m, weights, err));
	safetensors_item *items = memory_new(2 * (size_t)m->parameters.count, sizeof *items);
	json_t *metadata = json_pack("{s:s}", "format", "pt");
	int count = 0;
	for (int i = 0; i < m->parameters.count && items; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		shape stored = parameter_stored_shape(p);
		if (p->written != WRITE_ALIAS)
			items[count++] = item_of(p->name, stored, weights + m->offset[i]);
		if (p->written != WRITE_NAME)
			items[count++] = item_of(p->alias, stored, weights + m->offset[i]);
	}
	status s =
	    items && metadata ? safetensors_write(path, items, count, metadata, err) : error_no_memory(err, "a model");
	json_decref(metadata);
	free(items);
	return s;
}

status model_save(const model *m, const char *folder, error *err)
{
	if (m->base)
		return adapter_save(m, folder, err);
	if (m->weights != DTYPE_F32)
		return error_set(err, STATUS_UNSUPPORTED, NULL, "a model whose weights are packed cannot be saved");
	size_t bytes = (size_t)m->floats * sizeof(float);
	float *weights = memory_new(1, bytes);
	if (!weights)
		return error_no_memory(err, "a model");
	status s = m->backend->download(m->backend, weights, m->arena, bytes);
	if (s != STATUS_OK)
		error_set(err, s, NULL, "cannot copy the weights from %s", m->backend->name);
	if (s == STATUS_OK)
		s = write_weights(m, folder, weights, err);
	if (s == STATUS_OK)
		s = model_write_config(m, folder, err);
	free(weights);
	return s;
}

/* --- the bf16 copy ---------------------------------------------------------------------------- */

static status fill_bf16_weights(const model *m, error *err)
{
	plan *p;
	graph *g = graph_new();
	if (!g)
		return error_no_memory(err, "a model");
	value wide = graph_weight(g, "weights", DTYPE_F32, SHAPE1(m->floats)), narrow = op_cast(g, wide, DTYPE_BF16);
	TRY(plan_new(&p, g, m->backend, (plan_binding[]){{wide, m->arena}, {narrow, m->bf16_weights}}, 2, err));
	status s = plan_run(p);
	if (s == STATUS_OK)
		s = m->backend->synchronize(m->backend);
	plan_free(p);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot round the weights on %s", m->backend->name);
}

status model_update_bf16_copy(model *m, error *err)
{
	if (m->base)
		return model_update_bf16_copy(m->base, err);
	if (m->weights != DTYPE_F32)
		return error_set(err, STATUS_UNSUPPORTED, NULL, "packed weights have no bf16 copy");
	void *copy = m->bf16_weights;
	status s =
	    copy ? STATUS_OK : m->backend->allocate(m->backend, (size_t)m->floats * sizeof *m->bf16_weights, &copy);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "cannot allocate %" PRId64 " MiB for the bf16 weights on %s",
		                 m->floats >> 19, m->backend->name);
	m->bf16_weights = copy;
	return fill_bf16_weights(m, err);
}

/* --- properties of a model ---------------------------------------------------------------------- */

const model *model_base(const model *m)
{
	return m->base;
}

const architecture *model_architecture(const model *m)
{
	return m->architecture;
}

const void *model_config(const model *m)
{
	return m->config;
}

const model_dims *model_dimensions(const model *m)
{
	return &m->dims;
}

const json_t *model_class_names(const model *m)
{
	return m->class_names;
}

void model_train_on(model *m, int64_t length)
{
	assert(length <= m->dims.positions);
	architecture_train_on(m->config, length);
	m->dims = *architecture_dims(m->config);
}

backend *model_backend(const model *m)
{
	return m->backend;
}

int64_t model_scalar_count(const model *m)
{
	return m->count;
}

dtype model_weight_dtype(const model *m)
{
	return m->weights;
}

int64_t model_arena_floats(const model *m)
{
	return m->floats;
}

int64_t model_trained_floats(const model *m)
{
	return m->trained_floats;
}

uint64_t model_digest(const model *m)
{
	return m->digest;
}

float *model_arena(const model *m)
{
	return m->arena;
}

uint16_t *model_bf16_weights(const model *m)
{
	return m->bf16_weights;
}

int model_tensor_count(const model *m)
{
	return m->parameters.count;
}

const parameter_spec *model_parameter(const model *m, int index)
{
	return &m->parameters.items[index];
}

int64_t model_parameter_offset(const model *m, int index)
{
	return m->offset[index];
}

void model_row_spans(const model *m, row_span *spans, int64_t *tensors, int64_t *rows)
{
	*tensors = *rows = 0;
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		if (p->fixed)
			continue;
		spans[(*tensors)++] = (row_span){.row = (int32_t)*rows,
		                                 .place = (int32_t)(m->offset[i] / ROW_SPAN_UNIT),
		                                 .width = (int32_t)shape_last(p->shape),
		                                 .by_row = p->by_row};
		*rows += shape_rows(p->shape);
	}
}

const explainer *model_explainer(const model *m)
{
	return architecture_explainer(m->architecture, m->config);
}

const void *model_mixer_options(const model *m, int64_t layer)
{
	const void *options;
	m->architecture->mixer(m->config, layer, &options);
	return options;
}

const state_list *model_states(const model *m)
{
	return &m->states;
}

const state_list *model_carried(const model *m)
{
	return &m->carried;
}

int64_t model_state_floats(const model *m)
{
	return state_list_slot(&m->states);
}
