#include "tests/golden/golden.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json_read.h"
#include "engine/base/memory.h"
#include "engine/tensor/ops.h"

enum { NAME_BYTES = 192, SHAPE_BYTES = 160 };

static const golden_reader *const readers[] = {
#define GOLDEN_READER(name) &golden_reader_##name,
#include "gen/golden_readers.def"
#undef GOLDEN_READER
};

static status no_memory(error *err)
{
	return error_set(err, STATUS_NOMEM, NULL, "out of memory");
}

/* A failure about one tensor of the set. */
static status blame(golden *g, const golden_tensor *t, status s)
{
	if (s != STATUS_OK)
		g->blame = g->options->golden[t->file];
	return s;
}

/* --- memory of the set ------------------------------------------------------------------------ */

struct golden_owned {
	void *data;
	void (*release)(golden *g, void *data);
};

static void release_memory(golden *g, void *data)
{
	(void)g;
	free(data);
}

static void release_pool(golden *g, void *data)
{
	g->backend->release(g->backend, data);
}

static void release_plan(golden *g, void *data)
{
	(void)g;
	plan_free(data);
}

static void release_model(golden *g, void *data)
{
	(void)g;
	model_free(data);
}

/* Take over `data`, also on failure. */
static status own(golden *g, void *data, void (*release)(golden *g, void *data), error *err)
{
	if (g->n_owned == g->owned_capacity) {
		int capacity = g->owned_capacity ? 2 * g->owned_capacity : 64;
		struct golden_owned *owned = realloc(g->owned, (size_t)capacity * sizeof *owned);
		if (!owned) {
			release(g, data);
			return no_memory(err);
		}
		g->owned = owned;
		g->owned_capacity = capacity;
	}
	g->owned[g->n_owned++] = (struct golden_owned){data, release};
	return STATUS_OK;
}

status golden_memory(golden *g, int64_t count, size_t size, void **out, error *err)
{
	*out = memory_new((size_t)count, size);
	return *out ? own(g, *out, release_memory, err) : no_memory(err);
}

/* --- the set ---------------------------------------------------------------------------------- */

static extent extent_of_entry(const safetensors_entry *e)
{
	extent found = {.rank = e->rank};
	memcpy(found.dim, e->dim, sizeof found.dim);
	return found;
}

static int by_name(const void *a, const void *b)
{
	const golden_tensor *x = a, *y = b;
	return strcmp(x->entry->name, y->entry->name);
}

/* True if one file has values of several steps and the other the value of the first. */
static bool are_steps(const safetensors_entry *a, const safetensors_entry *b)
{
	return a->type == ST_F64 && b->type == ST_F64 && a->rank == 1 && b->rank == 1 &&
	       (a->count == 1) != (b->count == 1);
}

/* True if two files have the same tensor. */
static bool are_alike(const safetensors_entry *a, const safetensors_entry *b)
{
	return a->type == b->type && extent_equal(extent_of_entry(a), extent_of_entry(b)) &&
	       memcmp(a->data, b->data, a->bytes) == 0;
}

/* Join tensors of one name: equal tensors, a weight and its gradient, values of several steps and of the first. */
static status join_gradients(golden *g, error *err)
{
	int n = 0;
	for (int i = 0; i < g->count; i++) {
		golden_tensor t = g->tensors[i], *before = n > 0 ? &g->tensors[n - 1] : NULL;
		if (!before || by_name(before, &t) != 0) {
			g->tensors[n++] = t;
			continue;
		}
		if (are_alike(before->entry, t.entry))
			continue;
		if (!before->gradient && are_steps(before->entry, t.entry)) {
			*before = t.entry->count > 1 ? t : *before;
			continue;
		}
		const bool swapped = before->entry->type == ST_F64;
		const golden_tensor gradient = swapped ? *before : t, weight = swapped ? t : *before;
		if (before->gradient || weight.entry->type != ST_F32 || gradient.entry->type != ST_F64)
			return blame(g, before,
			             error_set(err, STATUS_INVALID, t.entry->name, "tensor \"%.100s\" is in %.200s too",
			                       t.entry->name, g->options->golden[t.file]));
		*before = weight;
		before->gradient = gradient.entry;
		before->gradient_file = gradient.file;
	}
	g->count = n;
	return STATUS_OK;
}

static status merge_tensors(golden *g, error *err)
{
	const eval_options *o = g->options;
	for (int f = 0; f < o->n_golden; f++)
		g->count += safetensors_count(g->files[f]);
	g->tensors = memory_new((size_t)g->count, sizeof *g->tensors);
	if (!g->tensors)
		return no_memory(err);
	golden_tensor *at = g->tensors;
	for (int f = 0; f < o->n_golden; f++)
		for (int i = 0; i < safetensors_count(g->files[f]); i++)
			*at++ = (golden_tensor){.entry = safetensors_at(g->files[f], i), .file = f};
	qsort(g->tensors, (size_t)g->count, sizeof *g->tensors, by_name);
	return join_gradients(g, err);
}

/* Add the keys of a file's config. */
static status merge_config(golden *g, int file, error *err)
{
	const char *text = safetensors_metadata(g->files[file], "config"), *key;
	json_t *json, *member;
	if (!text)
		return STATUS_OK;
	g->blame = g->options->golden[file];
	status s = json_read(&json, text, strlen(text), JSON_REJECT_DUPLICATES, NULL);
	if (s == STATUS_NOMEM)
		return no_memory(err);
	if (!json_is_object(json)) {
		json_decref(json);
		return error_set(err, STATUS_INVALID, "config", "the metadata's config is not a JSON object");
	}
	s = STATUS_OK;
	json_object_foreach(json, key, member)
	{
		const json_t *have = json_object_get(g->config, key);
		if (have && !json_equal(have, member))
			s = error_set(err, STATUS_INVALID, key, "the config has another \"%.64s\" than in another file",
			              key);
		else if (json_object_set(g->config, key, member) != 0)
			s = no_memory(err);
		if (s != STATUS_OK)
			break;
	}
	json_decref(json);
	return s;
}

static status open_files(golden *g, error *err)
{
	g->config = json_object();
	if (!g->config)
		return no_memory(err);
	for (int f = 0; f < g->options->n_golden; f++) {
		g->blame = g->options->golden[f];
		TRY(safetensors_open(&g->files[f], g->options->golden[f], err));
		TRY(merge_config(g, f, err));
	}
	g->blame = g->options->golden_names;
	return merge_tensors(g, err);
}

static void close_files(golden *g)
{
	while (g->n_owned > 0) {
		struct golden_owned *last = &g->owned[--g->n_owned];
		last->release(g, last->data);
	}
	free(g->owned);
	free(g->tensors);
	json_decref(g->config);
	for (int f = 0; f < g->options->n_golden; f++)
		safetensors_close(g->files[f]);
}

/* --- tensors ------------------------------------------------------------------------------------ */

static golden_tensor *find(const golden *g, const char *name)
{
	safetensors_entry entry = {.name = name};
	golden_tensor key = {.entry = &entry};
	return bsearch(&key, g->tensors, (size_t)g->count, sizeof key, by_name);
}

golden_tensor *golden_find(const golden *g, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	return find(g, name);
}

const char *golden_metadata(const golden *g, const char *key)
{
	const char *found = NULL;
	for (int f = 0; f < g->options->n_golden && !found; f++)
		found = safetensors_metadata(g->files[f], key);
	return found;
}

const char *golden_gradient_file(const golden *g, const char *name)
{
	const golden_tensor *t = find(g, name);
	return t && t->gradient ? g->options->golden[t->gradient_file] : NULL;
}

status golden_input(golden *g, const char *name, const golden_tensor **out, error *err)
{
	golden_tensor *t = find(g, name);
	*out = t;
	if (!t)
		return error_set(err, STATUS_INVALID, name, "tensor \"%.100s\" is missing", name);
	t->known = true;
	return STATUS_OK;
}

static status check_shape(golden *g, const golden_tensor *t, extent want, error *err)
{
	char have[SHAPE_BYTES], need[SHAPE_BYTES];
	extent e = extent_of_entry(t->entry);
	if (extent_equal(e, want))
		return STATUS_OK;
	return blame(g, t,
	             error_set(err, STATUS_INVALID, t->entry->name,
	                       "tensor \"%.100s\" has shape %s, and %s is what the rest of the set needs",
	                       t->entry->name, extent_text(e, have, sizeof have),
	                       extent_text(want, need, sizeof need)));
}

status golden_rank(golden *g, const char *name, int rank, extent *out, error *err)
{
	const golden_tensor *t;
	char have[SHAPE_BYTES];
	*out = (extent){0};
	TRY(golden_input(g, name, &t, err));
	*out = extent_of_entry(t->entry);
	if (out->rank == rank && t->entry->count > 0)
		return STATUS_OK;
	return blame(g, t,
	             error_set(err, STATUS_INVALID, name, "tensor \"%.100s\" has shape %s, which is %s", name,
	                       extent_text(*out, have, sizeof have), out->rank == rank ? "empty" : "of another rank"));
}

static status read_floats(golden *g, const golden_tensor *t, const float **out, error *err)
{
	const safetensors_entry *e = t->entry;
	void *data;
	TRY(golden_memory(g, e->count, sizeof(float), &data, err));
	float *x = data;
	TRY(blame(g, t, safetensors_read_f32(e, x, err)));
	for (int64_t i = 0; i < e->count; i++)
		if (!isfinite(x[i]))
			return blame(g, t,
			             error_set(err, STATUS_INVALID, e->name,
			                       "element %" PRId64
			                       " of tensor \"%.100s\" is %g, which is not a finite fp32 number",
			                       i, e->name, (double)x[i]));
	*out = x;
	return STATUS_OK;
}

status golden_floats(golden *g, const char *name, extent e, const float **out, error *err)
{
	const golden_tensor *t;
	*out = NULL;
	TRY(golden_input(g, name, &t, err));
	TRY(check_shape(g, t, e, err));
	return read_floats(g, t, out, err);
}

status golden_integers(golden *g, const char *name, extent e, int32_t min, int32_t max, const int32_t **out, error *err)
{
	const golden_tensor *t;
	void *data;
	*out = NULL;
	TRY(golden_input(g, name, &t, err));
	TRY(check_shape(g, t, e, err));
	TRY(golden_memory(g, t->entry->count, sizeof(int32_t), &data, err));
	int32_t *x = data;
	TRY(blame(g, t, safetensors_read_i32(t->entry, x, err)));
	for (int64_t i = 0; i < t->entry->count; i++)
		if (x[i] < min || x[i] > max)
			return blame(g, t,
			             error_set(err, STATUS_INVALID, name,
			                       "element %" PRId64 " of tensor \"%.100s\" is %" PRId32
			                       ", which is not from %" PRId32 " to %" PRId32,
			                       i, name, x[i], min, max));
	*out = x;
	return STATUS_OK;
}

status golden_visible(golden *g, const int32_t *pairs, bool of_each, shape all, const int32_t **out, error *err)
{
	const int64_t heads = all.dim[0] * all.dim[1], count = all.dim[2] * all.dim[3];
	void *data;
	TRY(golden_memory(g, heads * count, sizeof(int32_t), &data, err));
	for (int64_t i = 0; i < heads; i++)
		memcpy((int32_t *)data + i * count, pairs + (of_each ? i / all.dim[1] * count : 0),
		       (size_t)count * sizeof(int32_t));
	*out = data;
	return STATUS_OK;
}

status golden_config_integer(golden *g, const char *key, int64_t max, int64_t *out, error *err)
{
	const json_t *found = json_object_get(g->config, key);
	*out = json_integer_value(found);
	if (json_is_integer(found) && *out >= 1 && *out <= max)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, key, "the config %s, an integer from 1 to %" PRId64 ": \"%.64s\"",
	                 found ? "has a wrong value for" : "lacks", max, key);
}

status golden_config_number(golden *g, const char *key, double fallback, double *out, error *err)
{
	const json_t *found = json_object_get(g->config, key);
	*out = found ? json_number_value(found) : fallback;
	if ((!found || json_is_number(found)) && *out >= 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, key, "the config's \"%.64s\" must be a number of at least 0", key);
}

/* --- models and plans ---------------------------------------------------------------------------- */

/* Return the tensor of that name, or of the name without the architecture's prefix. */
static golden_tensor *find_weight(const golden *g, const architecture *a, const char *name)
{
	golden_tensor *t = name[0] ? find(g, name) : NULL;
	if (t || !a->prefix || strncmp(name, a->prefix, strlen(a->prefix)) != 0)
		return t;
	return find(g, name + strlen(a->prefix));
}

/* The first rows of a table that may have more. */
static status read_first_rows(golden *g, golden_tensor *t, shape want, const float **out, error *err)
{
	extent e = extent_of(want);
	const extent have = extent_of_entry(t->entry);
	if (have.rank == e.rank && e.rank > 0 && have.dim[0] > e.dim[0])
		e.dim[0] = have.dim[0];
	return golden_floats(g, t->entry->name, e, out, err);
}

/* A parameter's values as they are stored; both its names must hold the same. */
static status read_weight(golden *g, const architecture *a, const parameter_spec *p, const float **out, error *err)
{
	golden_tensor *named[2] = {find_weight(g, a, p->name), find_weight(g, a, p->alias)};
	extent stored = extent_of(parameter_stored_shape(p));
	*out = NULL;
	const float *values[2] = {NULL, NULL};
	if (!named[0] && !named[1])
		return error_set(err, STATUS_INVALID, p->name, "tensor \"%s\" is missing", p->name);
	for (int i = 0; i < 2; i++)
		if (named[i])
			TRY(golden_floats(g, named[i]->entry->name, stored, &values[i], err));
	*out = values[0] ? values[0] : values[1];
	if (values[0] && values[1] && memcmp(values[0], values[1], (size_t)extent_count(stored) * sizeof(float)) != 0)
		return blame(g, named[1],
		             error_set(err, STATUS_INVALID, p->alias,
		                       "tensor \"%s\" differs from \"%s\", to which it is tied", p->alias, p->name));
	return STATUS_OK;
}

static status load_weight(golden *g, model *m, int index, const char *cut, error *err)
{
	const parameter_spec *p = model_parameter(m, index);
	golden_tensor *longer = cut && strcmp(p->name, cut) == 0 ? find(g, cut) : NULL;
	const float *stored;
	void *values;
	size_t bytes = (size_t)shape_count(p->shape) * sizeof(float);
	TRY(longer ? read_first_rows(g, longer, parameter_stored_shape(p), &stored, err)
	           : read_weight(g, model_architecture(m), p, &stored, err));
	TRY(golden_memory(g, shape_count(p->shape), sizeof(float), &values, err));
	parameter_load(p, stored, values);
	return g->backend->upload(g->backend, model_arena(m) + model_parameter_offset(m, index), values, bytes);
}

status golden_new_model(golden *g, const architecture *a, const json_t *config, model **out, error *err)
{
	TRY(model_create(out, a, config, 0, g->backend, err));
	return own(g, *out, release_model, err);
}

status golden_model(golden *g, const architecture *a, const json_t *config, const char *cut, model **out, error *err)
{
	TRY(golden_new_model(g, a, config, out, err));
	for (int i = 0; i < model_tensor_count(*out); i++)
		TRY(load_weight(g, *out, i, cut, err));
	for (int i = 0; i < g->count; i++)
		g->tensors[i].known |= a->ignores && a->ignores(g->tensors[i].entry->name);
	return STATUS_OK;
}

status golden_pool(golden *g, int64_t floats, float **out, error *err)
{
	void *pool;
	status s = g->backend->allocate(g->backend, (size_t)floats * sizeof(float), &pool);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "cannot allocate recurrent state");
	*out = pool;
	return own(g, pool, release_pool, err);
}

value golden_backward(graph *made, value y)
{
	shape s = y == VALUE_NONE ? SHAPE0() : graph_value(made, y)->shape;
	int count = graph_value_count(made);
	for (value v = 0; v < count; v++)
		if (graph_value(made, v)->role == ROLE_INPUT && graph_value(made, v)->type == DTYPE_F32)
			graph_want_gradient(made, v);
	value dy = graph_input(made, "dy", DTYPE_F32, s);
	value rows = op_fill(made, SHAPE2(1, shape_rows(s)), 1), columns = op_fill(made, SHAPE2(shape_last(s), 1), 1);
	value sums = op_matmul(made, rows, op_mul(made, y, dy), false, false, 1);
	graph_backward(made, op_matmul(made, sums, columns, false, false, 1));
	for (value v = 0; v < count; v++)
		if (graph_value(made, v)->role == ROLE_INPUT && graph_gradient(made, v) != VALUE_NONE)
			graph_output(made, graph_gradient(made, v), "grad.%s", graph_value(made, v)->name);
	return dy;
}

status golden_bound_plan(golden *g, graph *made, const plan_binding *bindings, int n, plan **out, error *err)
{
	TRY(plan_new(out, made, g->backend, bindings, n, err));
	return own(g, *out, release_plan, err);
}

status golden_plan(golden *g, graph *made, float *pool, plan **out, error *err)
{
	plan_binding state = {pool ? graph_find(made, "pool") : VALUE_NONE, pool};
	return golden_bound_plan(g, made, &state, pool ? 1 : 0, out, err);
}

status golden_backward_into(golden *g, const model *m, const forward_spec *spec, float *gradients, plan **out,
                            error *err)
{
	float *pool = NULL;
	if (forward_recurrent(spec))
		TRY(golden_pool(g, spec->slots * model_state_floats(m), &pool, err));
	TRY(model_plan(out, m, spec, gradients, pool, err));
	return own(g, *out, release_plan, err);
}

status golden_pooled_forward(golden *g, const model *m, const forward_spec *spec, float *pool, plan **out, error *err)
{
	TRY(model_plan(out, m, spec, NULL, pool, err));
	return own(g, *out, release_plan, err);
}

status golden_forward(golden *g, const model *m, const forward_spec *spec, plan **out, error *err)
{
	return golden_backward_into(g, m, spec, NULL, out, err);
}

/* --- results ---------------------------------------------------------------------------------------- */

/* Mark the set's tensor of that name, if it exists, as computed. */
static status claim(golden *g, extent e, const char *name, error *err)
{
	golden_tensor *t = find(g, name);
	if (!t)
		return STATUS_OK;
	if (!t->gradient) {
		t->known = true;
		return check_shape(g, t, e, err);
	}
	const golden_tensor gradient = {.entry = t->gradient, .file = t->gradient_file};
	t->gradient_known = true;
	return check_shape(g, &gradient, e, err);
}

static status add_result(golden *g, extent e, float **out, error *err, const char *format, va_list args)
{
	char name[NAME_BYTES];
	vsnprintf(name, sizeof name, format, args);
	TRY(claim(g, e, name, err));
	*out = results_add(g->results, e, name);
	return *out ? STATUS_OK : no_memory(err);
}

status golden_result(golden *g, extent e, float **out, error *err, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	status s = add_result(g, e, out, err, format, args);
	va_end(args);
	return s;
}

status golden_result_integers(golden *g, extent e, int64_t **out, error *err, const char *format, ...)
{
	char name[NAME_BYTES];
	va_list args;
	va_start(args, format);
	vsnprintf(name, sizeof name, format, args);
	va_end(args);
	TRY(claim(g, e, name, err));
	*out = results_add_integers(g->results, e, name);
	return *out ? STATUS_OK : no_memory(err);
}

status golden_output(golden *g, plan *p, value v, extent e, error *err, const char *format, ...)
{
	float *data;
	va_list args;
	va_start(args, format);
	status s = add_result(g, e, &data, err, format, args);
	va_end(args);
	return s == STATUS_OK ? plan_read(p, v, data) : s;
}

/* --- all of it --------------------------------------------------------------------------------------- */

static const golden_reader *find_reader(const golden *g)
{
	for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
		if (readers[i]->recognises(g))
			return readers[i];
	return NULL;
}

/* One line with the names of the values that are left. */
static void list_unknown(const golden *g, const golden_reader *r)
{
	const char *before = "additive-eval: note: not computed: ";
	for (int i = 0; i < g->count; i++) {
		const golden_tensor *t = &g->tensors[i];
		const char *name = t->entry->name;
		const bool gradients = g->options->spec.gradients;
		if ((t->known || (!gradients && r->is_gradient && r->is_gradient(name))) &&
		    (!t->gradient || t->gradient_known || !gradients))
			continue;
		fprintf(stderr, "%s%s", before, name);
		before = ", ";
	}
	if (before[0] == ',')
		fputc('\n', stderr);
}

static status evaluate(golden *g, error *err)
{
	TRY(open_files(g, err));
	const golden_reader *r = find_reader(g);
	if (!r)
		return error_set(err, STATUS_INVALID, NULL, "no reader recognises this set of golden numbers");
	if (g->options->spec.recurrent && !r->recurrent)
		return error_set(err, STATUS_UNSUPPORTED, "recurrent", "%s has no recurrent form", r->source);
	TRY(r->evaluate(g, err));
	list_unknown(g, r);
	return STATUS_OK;
}

status golden_evaluate(results *out, const eval_options *o, backend *b, const char **blamed, error *err)
{
	golden g = {.options = o, .backend = b, .results = out, .blame = o->golden_names};
	status s = evaluate(&g, err);
	*blamed = g.blame;
	close_files(&g);
	return s;
}
