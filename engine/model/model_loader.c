/* model_loader.c - opening reads the configuration, lists the parameters with their offsets (a model without memory),
 * and checks every tensor's name and shape against the file. Only then does it allocate memory and read data. A small
 * hostile file therefore cannot cause the allocations that its configuration promises.
 *
 * Parameters are read in file order, so each chunk of the file is read and verified once. A piece is some rows of a
 * parameter. It is read, converted, packed and uploaded at once, while it is in the processor's cache. Two kinds of
 * matrices are read whole before their first piece. The rows of a transposed matrix are spread over the file; the
 * step of a quantised one depends on all weights.
 *
 * The arena is a reservation whose memory is mapped as it fills, because clearing an allocation of that size would be
 * one long step. */
#include "engine/model/model_loader.h"

#include <assert.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/model/model_folder.h"
#include "engine/model/model_private.h"
#include "engine/model/model_trial.h"
#include "engine/model/safetensors.h"
#include "engine/tensor/ops/quantize.h"
#include "engine/tensor/panel.h"

#define COMPILED "_orig_mod." /* prefix of all names in a module that PyTorch has compiled */

/* The arena grows by whole huge pages. */
enum { PIECE_FLOATS = 1 << 18, EXTEND_BYTES = 16 << 20 };

/* A parameter and its place in the file. */
typedef struct place {
	int parameter;
	const safetensors_entry *entry, *tied; /* tied: the same data under the other name, or NULL */
} place;

struct model_loader {
	manifest *manifest; /* NULL: do not verify */
	model *model;
	backend *backend; /* NULL: only check */
	safetensors *file;
	place *places;         /* in order of file offset */
	size_t extended;       /* bytes of the arena that have memory */
	int at;                /* index of the place being read */
	int64_t row;           /* its next row */
	int64_t staged;        /* floats in `whole` */
	float *whole;          /* buffer for the largest matrix that is read whole, as stored; or NULL */
	float step;            /* quantisation step of the matrix in `whole` */
	float *piece;          /* buffer for some rows */
	void *other;           /* these rows under their tied name; later the packed rows */
	digest_stream *digest; /* over the parameter being read, as uploaded */
	uint64_t *digests;     /* for the parameters read */
};

/* --- configuration ----------------------------------------------------------------------- */

/* Create the model that a folder's config.json describes. */
static status model_loader_read_config(model **out, const manifest *about, const char *folder, dtype weights,
                                       error *err)
{
	const architecture *a;
	json_t *json;
	*out = NULL;
	TRY(model_folder_config(&a, &json, about, folder, err));
	status s = model_describe(out, a, json, weights, err);
	json_decref(json);
	return s;
}

/* --- names and shapes ---------------------------------------------------------------------- */

static status check_entry(const parameter_spec *p, const safetensors_entry *e, error *err)
{
	shape stored = parameter_stored_shape(p);
	if (!(e->type == ST_F64 || e->type == ST_F32 || e->type == ST_F16 || e->type == ST_BF16))
		return error_set(err, STATUS_INVALID, e->name,
		                 "tensor \"%.100s\" holds %s, expected F32, F16, BF16 or F64", e->name,
		                 safetensors_type_name(e->type));
	bool same = e->rank == stored.rank;
	for (int i = 0; i < e->rank && same; i++)
		same = e->dim[i] == stored.dim[i];
	if (same)
		return STATUS_OK;
	char want[96], have[96] = "more dimensions";
	shape s = {e->rank, {0}};
	if (e->rank <= TENSOR_MAX_RANK) {
		memcpy(s.dim, e->dim, (size_t)e->rank * sizeof *s.dim);
		shape_text(s, have, sizeof have);
	}
	return error_set(err, STATUS_INVALID, e->name, "tensor \"%.100s\" has shape %s, the configuration needs %s",
	                 e->name, have, shape_text(stored, want, sizeof want));
}

/* Find a tensor by its name, by its name in a compiled PyTorch module, or by its name without the architecture's
 * prefix. */
static const safetensors_entry *model_loader_find(const model *m, const safetensors *st, const char *name)
{
	const char *prefix = m->architecture->prefix;
	char compiled[sizeof(((parameter_spec *)NULL)->name) + sizeof COMPILED];
	const safetensors_entry *e = name[0] ? safetensors_find(st, name) : NULL;
	if (!e && name[0]) {
		snprintf(compiled, sizeof compiled, COMPILED "%s", name);
		e = safetensors_find(st, compiled);
	}
	if (e || !prefix || strncmp(name, prefix, strlen(prefix)) != 0)
		return e;
	return safetensors_find(st, name + strlen(prefix));
}

static bool ignored(const model *m, const char *name)
{
	return m->architecture->ignores && m->architecture->ignores(name);
}

static status unknown_tensor(const model *m, const safetensors *st, error *err)
{
	for (int i = 0; i < safetensors_count(st); i++) {
		const safetensors_entry *e = safetensors_at(st, i);
		bool known = ignored(m, e->name);
		for (int j = 0; j < m->parameters.count && !known; j++)
			known = model_loader_find(m, st, m->parameters.items[j].name) == e ||
			        model_loader_find(m, st, m->parameters.items[j].alias) == e;
		if (!known)
			return error_set(err, STATUS_INVALID, e->name, "tensor \"%.100s\" is not one of this model's",
			                 e->name);
	}
	return STATUS_OK;
}

/* Check that every parameter exists with its shape, and that no other tensor does. */
static status check_names(const model *m, const safetensors *st, error *err)
{
	int found = 0;
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		const safetensors_entry *e[2] = {model_loader_find(m, st, p->name), model_loader_find(m, st, p->alias)};
		if (!e[0] && !e[1]) {
			char want[96];
			const char *name = p->written == WRITE_ALIAS ? p->alias : p->name;
			return error_set(err, STATUS_INVALID, name,
			                 "tensor \"%s\" is missing, the configuration needs it with shape %s", name,
			                 shape_text(parameter_stored_shape(p), want, sizeof want));
		}
		for (int k = 0; k < 2; k++) {
			if (!e[k])
				continue;
			TRY(check_entry(p, e[k], err));
			found++;
		}
	}
	for (int i = 0; i < safetensors_count(st); i++)
		found += ignored(m, safetensors_at(st, i)->name);
	return found == safetensors_count(st) ? STATUS_OK : unknown_tensor(m, st, err);
}

/* --- preparing ------------------------------------------------------------------------------ */

static int by_offset(const void *a, const void *b)
{
	const place *x = a, *y = b;
	return (x->entry->offset > y->entry->offset) - (x->entry->offset < y->entry->offset);
}

static status find_places(model_loader *l, error *err)
{
	const model *m = l->model;
	l->places = memory_new((size_t)m->parameters.count, sizeof *l->places);
	l->digests = memory_new((size_t)m->parameters.count, sizeof *l->digests);
	l->digest = digest_stream_new();
	if (!l->places || !l->digests || !l->digest)
		return error_no_memory(err, "a model");
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		const safetensors_entry *e = model_loader_find(m, l->file, p->name),
		                        *tied = model_loader_find(m, l->file, p->alias);
		l->places[i] = (place){i, e ? e : tied, e ? tied : NULL};
	}
	qsort(l->places, (size_t)m->parameters.count, sizeof *l->places, by_offset);
	return STATUS_OK;
}

/* True if it is packed from quantised weights. Plain ones are quantised when they are read (ops.h). */
static bool is_quantized(const model *m, const parameter_spec *p)
{
	return p->bits > 0 && p->bits < 32 && dtype_is_panel(model_stored_type(m, p));
}

static bool is_read_whole(const model *m, const parameter_spec *p)
{
	assert(!(p->transposed && is_quantized(m, p)));
	return p->transposed || is_quantized(m, p);
}

/* Return the rows of a parameter in a piece: whole panels, at least one. */
static int64_t piece_rows(const parameter_spec *p)
{
	int64_t k = shape_last(p->shape), rows = k ? PIECE_FLOATS / k / PANEL_WIDTH * PANEL_WIDTH : PANEL_WIDTH;
	int64_t all = shape_rows(p->shape);
	rows = rows < PANEL_WIDTH ? PANEL_WIDTH : rows;
	return rows < all ? rows : all;
}

static status make_staging(model_loader *l, error *err)
{
	const model *m = l->model;
	int64_t whole = 0, piece = 0;
	size_t packed = 0;
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		int64_t floats = piece_rows(p) * shape_last(p->shape);
		size_t bytes = (size_t)floats * sizeof(float);
		if (dtype_is_panel(model_stored_type(m, p)) &&
		    !panel_bytes(m->weights, piece_rows(p), shape_last(p->shape), &bytes))
			return error_no_memory(err, "a model");
		packed = bytes > packed ? bytes : packed;
		piece = floats > piece ? floats : piece;
		if (is_read_whole(m, p) && shape_count(p->shape) > whole)
			whole = shape_count(p->shape);
	}
	packed = packed > (size_t)piece * sizeof(float) ? packed : (size_t)piece * sizeof(float);
	l->piece = memory_new((size_t)piece, sizeof *l->piece);
	l->other = memory_new(packed, 1);
	l->whole = whole ? memory_new((size_t)whole, sizeof *l->whole) : NULL;
	return l->piece && l->other && (l->whole || !whole) ? STATUS_OK : error_no_memory(err, "a model");
}

static status no_room(const model *m, backend *b, status s, error *err)
{
	return error_set(err, s, NULL, "cannot allocate %" PRId64 " MiB for the weights on %s", m->floats >> 18,
	                 b->name);
}

static status model_loader_reserve(model_loader *l, error *err)
{
	model *m = l->model;
	backend *b = l->backend;
	size_t bytes = (size_t)m->floats * sizeof(float);
	void *arena = NULL;
	m->backend = b;
	status s = b->reserve ? b->reserve(b, bytes, &arena) : b->allocate(b, bytes, &arena);
	if (s != STATUS_OK)
		return no_room(m, b, s, err);
	m->arena = arena;
	m->reserved = b->reserve ? bytes : 0;
	l->extended = b->reserve ? 0 : bytes;
	return STATUS_OK;
}

/* Open the weights. An error in the header names the file. */
static status open_weights(model_loader *l, const char *path, error *err)
{
	error reason = ERROR_INIT;
	const status s = safetensors_open_verified(&l->file, path, l->manifest, &reason);
	if (s == STATUS_OK)
		return s;
	return error_set(err, s, reason.param, "%s%s", s == STATUS_CORRUPT ? "model.safetensors: " : "",
	                 error_message(&reason));
}

static status model_loader_prepare(model_loader *l, const char *folder, dtype weights, error *err)
{
	char path[PATH_MAX];
	if ((size_t)snprintf(path, sizeof path, "%s/model.safetensors", folder) >= sizeof path)
		return error_set(err, STATUS_INVALID, NULL, "path too long");
	TRY(manifest_open_folder(&l->manifest, folder, err));
	TRY(model_loader_read_config(&l->model, l->manifest, folder, weights, err));
	TRY(open_weights(l, path, err));
	TRY(check_names(l->model, l->file, err));
	TRY(model_trial(l->model, err));
	TRY(find_places(l, err));
	TRY(make_staging(l, err));
	return l->backend ? model_loader_reserve(l, err) : STATUS_OK;
}

status model_loader_new(model_loader **out, const char *folder, dtype weights, backend *b, error *err)
{
	assert(weights == DTYPE_F32 || dtype_is_panel(weights));
	*out = NULL;
	model_loader *l = memory_new(1, sizeof *l);
	if (!l)
		return error_no_memory(err, "a model");
	l->backend = b;
	status s = model_loader_prepare(l, folder, weights, err);
	if (s == STATUS_OK)
		*out = l;
	else
		model_loader_free(l);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "%s", status_text(s));
}

void model_loader_free(model_loader *l)
{
	if (!l)
		return;
	free(l->whole);
	free(l->piece);
	free(l->other);
	free(l->places);
	free(l->digests);
	digest_stream_free(l->digest);
	safetensors_close(l->file);
	model_free(l->model);
	manifest_free(l->manifest);
	free(l);
}

/* --- reading --------------------------------------------------------------------------------- */

static const parameter_spec *parameter_at(const model_loader *l, const place *from)
{
	return &l->model->parameters.items[from->parameter];
}

/* Refuse weights that make every answer not finite: NaN, infinity (also f64 beyond f32), and values so large that the
 * sum of squares of a row overflows. */
static status check_values(const parameter_spec *p, const safetensors_entry *e, int64_t first, int64_t count,
                           const float *x, error *err)
{
	const float limit = sqrtf(FLT_MAX / (float)shape_last(p->shape));
	bool good = true;
	int64_t i = 0;
	for (int64_t k = 0; k < count; k++)
		good &= fabsf(x[k]) <= limit; /* false for NaN */
	if (good)
		return STATUS_OK;
	while (fabsf(x[i]) <= limit)
		i++;
	return error_set(err, STATUS_INVALID, e->name, "element %" PRId64 " of tensor \"%.100s\" is %g, %s", first + i,
	                 e->name, (double)x[i],
	                 isfinite(x[i]) ? "which is too large: sums of products with it overflow"
	                                : "which is not a finite fp32 number");
}

/* Read elements first … first + count - 1 as stored; a tied name must agree bit for bit. */
static status read_stored(model_loader *l, const place *from, int64_t first, int64_t count, float *out, error *err)
{
	const parameter_spec *p = parameter_at(l, from);
	TRY(safetensors_load_f32(l->file, from->entry, first, count, out, err));
	TRY(check_values(p, from->entry, first, count, out, err));
	if (!from->tied)
		return STATUS_OK;
	TRY(safetensors_load_f32(l->file, from->tied, first, count, l->other, err));
	if (memcmp(l->other, out, (size_t)count * sizeof(float)) == 0)
		return STATUS_OK;
	return error_set(err, STATUS_INVALID, p->alias, "tensor \"%s\" differs from \"%s\", to which it is tied",
	                 p->alias, p->name);
}

/* Read more of a matrix into `whole`. */
static status stage(model_loader *l, const place *from, int64_t rows, error *err)
{
	const parameter_spec *p = parameter_at(l, from);
	int64_t all = shape_count(p->shape), left = all - l->staged, most = rows * shape_last(p->shape);
	int64_t count = left < most ? left : most;
	TRY(read_stored(l, from, l->staged, count, l->whole + l->staged, err));
	l->staged += count;
	return STATUS_OK;
}

/* Copy rows `row` to `row + rows` of the matrix whose transpose [inputs, outputs] is in `whole`. */
static void transpose(const model_loader *l, const parameter_spec *p, int64_t rows)
{
	int64_t n = p->shape.dim[0], k = p->shape.dim[1];
	for (int64_t i = 0; i < k; i++)
		for (int64_t j = 0; j < rows; j++)
			l->piece[j * k + i] = l->whole[i * n + l->row + j];
}

/* Copy the piece's rows from a matrix that was read whole, as products read them. */
static void take_rows(const model_loader *l, const parameter_spec *p, int64_t rows)
{
	const int64_t k = shape_last(p->shape);
	const float *from = l->whole + l->row * k;
	if (p->transposed)
		transpose(l, p, rows);
	else
		for (int64_t i = 0; i < rows * k; i++)
			l->piece[i] = quantize_value(from[i], l->step, p->bits);
}

/* Map memory of the arena up to byte `end`. */
static status extend(model_loader *l, size_t end, error *err)
{
	const model *m = l->model;
	size_t all = (size_t)m->floats * sizeof(float);
	if (end <= l->extended)
		return STATUS_OK;
	end = all - end < EXTEND_BYTES ? all : end + EXTEND_BYTES - end % EXTEND_BYTES;
	status s = l->backend->extend(l->backend, m->arena, end, &l->extended);
	return s == STATUS_OK ? s : no_room(m, l->backend, s, err);
}

/* Upload the piece's rows to the arena. */
static status upload(model_loader *l, const place *from, int64_t rows, error *err)
{
	const model *m = l->model;
	const parameter_spec *p = parameter_at(l, from);
	dtype type = model_stored_type(m, p);
	int64_t k = shape_last(p->shape);
	size_t bytes = (size_t)(rows * k) * sizeof(float), before = (size_t)(l->row * k) * sizeof(float);
	const void *data = l->piece;
	if (dtype_is_panel(type)) {
		bool fits = panel_bytes(type, rows, k, &bytes);
		assert(fits && l->row % PANEL_WIDTH == 0);
		before = (size_t)(l->row / PANEL_WIDTH) * panel_stride(type, k);
		panel_pack_codes(type, l->piece, rows, k, is_quantized(m, p) ? l->step : 0, l->other);
		data = l->other;
	}
	digest_stream_add(l->digest, data, bytes);
	size_t at = (size_t)m->offset[from->parameter] * sizeof(float) + before;
	TRY(extend(l, at + bytes, err));
	status s = l->backend->upload(l->backend, (char *)m->arena + at, data, bytes);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot copy the weights to %s", l->backend->name);
}

/* Read the next rows to `piece`; *rows 0: the matrix is not complete yet. */
static status read_piece(model_loader *l, const place *from, int64_t *rows, error *err)
{
	const parameter_spec *p = parameter_at(l, from);
	int64_t k = shape_last(p->shape), left = shape_rows(p->shape) - l->row, most = piece_rows(p);
	*rows = left < most ? left : most;
	if (!is_read_whole(l->model, p))
		return read_stored(l, from, l->row * k, *rows * k, l->piece, err);
	if (l->staged < shape_count(p->shape)) {
		int64_t more = *rows;
		*rows = 0;
		TRY(stage(l, from, more, err));
		if (l->staged == shape_count(p->shape) && !p->transposed)
			l->step = quantize_tensor_step(l->whole, l->staged);
		return STATUS_OK;
	}
	take_rows(l, p, *rows);
	return STATUS_OK;
}

status model_loader_step(model_loader *l, bool *done, error *err)
{
	model *m = l->model;
	int64_t rows;
	*done = false;
	if (l->at < m->parameters.count) {
		const place *from = &l->places[l->at];
		TRY(read_piece(l, from, &rows, err));
		if (rows && l->backend)
			TRY(upload(l, from, rows, err));
		l->row += rows;
		if (l->row == shape_rows(parameter_at(l, from)->shape)) {
			l->digests[from->parameter] = digest_stream_value(l->digest);
			digest_stream_reset(l->digest);
			l->at++;
			l->row = l->staged = 0;
		}
	}
	*done = l->at == m->parameters.count;
	if (*done)
		m->digest = digest_bytes(l->digests, (size_t)m->parameters.count * sizeof *l->digests);
	if (*done && l->backend) /* padding after the last parameter */
		TRY(extend(l, (size_t)m->floats * sizeof(float), err));
	return STATUS_OK;
}

model *model_loader_take(model_loader *l)
{
	model *m = l->backend ? l->model : NULL;
	assert(l->at == l->model->parameters.count);
	if (m)
		l->model = NULL;
	return m;
}
