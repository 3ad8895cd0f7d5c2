/* model_loader.c - opening reads the configuration, lists the parameters with their offsets (a model without memory),
 * and checks every tensor's name and shape against the file. Only then does it allocate memory and read data. A small
 * hostile file therefore cannot cause the allocations that its configuration promises.
 *
 * weight_pieces.c reads, verifies, converts and packs pieces of the file, in the order of the file, on all threads of
 * the backend. A step uploads one, and digests it if the file has no manifest. The memory of a host backend is mapped
 * before, so that the threads write to it. Memory of a device is mapped as it fills, because clearing all of it would
 * be one long step. */
#include "engine/model/model_loader.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/base/path.h"
#include "engine/base/workers.h"
#include "engine/model/model_folder.h"
#include "engine/model/model_private.h"
#include "engine/model/model_trial.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_pieces.h"

#define WEIGHTS "model.safetensors"
#define COMPILED "_orig_mod." /* prefix of all names in a module that PyTorch has compiled */

/* The arena grows by whole huge pages. */
enum { EXTEND_BYTES = 16 << 20 };

struct model_loader {
	manifest *manifest; /* NULL: do not verify */
	model *model;
	backend *backend; /* NULL: only check */
	safetensors *file;
	weight_place *places; /* in order of file offset */
	weight_pieces *pieces;
	size_t extended;       /* bytes of the arena that have memory */
	int read;              /* number of places that are read */
	digest_stream *digest; /* over the parameter being read, as uploaded; NULL: the manifest has a digest */
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
	const weight_place *x = a, *y = b;
	return (x->entry->offset > y->entry->offset) - (x->entry->offset < y->entry->offset);
}

static status find_places(model_loader *l, error *err)
{
	model *m = l->model;
	const bool listed = l->manifest && manifest_file_digest(l->manifest, WEIGHTS, &m->digest);
	l->places = memory_new((size_t)m->parameters.count, sizeof *l->places);
	l->digests = memory_new((size_t)m->parameters.count, sizeof *l->digests);
	l->digest = listed ? NULL : digest_stream_new();
	if (!l->places || !l->digests || (!l->digest && !listed))
		return error_no_memory(err, "a model");
	for (int i = 0; i < m->parameters.count; i++) {
		const parameter_spec *p = &m->parameters.items[i];
		const safetensors_entry *e = model_loader_find(m, l->file, p->name),
		                        *tied = model_loader_find(m, l->file, p->alias);
		l->places[i] = (weight_place){i, e ? e : tied, e ? tied : NULL};
	}
	qsort(l->places, (size_t)m->parameters.count, sizeof *l->places, by_offset);
	return STATUS_OK;
}

static status no_room(const model *m, backend *b, status s, error *err)
{
	return error_set(err, s, NULL, "cannot allocate %" PRId64 " MiB for the weights on %s", m->floats >> 18,
	                 b->name);
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
	return b->host_memory ? extend(l, bytes, err) : STATUS_OK;
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
	const backend *b = l->backend;
	TRY(path_join(path, folder, WEIGHTS, err));
	TRY(manifest_open_folder(&l->manifest, folder, err));
	TRY(model_loader_read_config(&l->model, l->manifest, folder, weights, err));
	TRY(open_weights(l, path, err));
	TRY(check_names(l->model, l->file, err));
	TRY(model_trial(l->model, err));
	TRY(find_places(l, err));
	if (b)
		TRY(model_loader_reserve(l, err));
	return weight_pieces_new(&l->pieces, l->model, l->file, l->places,
	                         b && b->host_memory ? (char *)l->model->arena : NULL,
	                         b ? workers_threads(b->threads) : 1, err);
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
	weight_pieces_free(l->pieces);
	free(l->places);
	free(l->digests);
	digest_stream_free(l->digest);
	safetensors_close(l->file);
	model_free(l->model);
	manifest_free(l->manifest);
	free(l);
}

/* --- reading --------------------------------------------------------------------------------- */

static status upload(model_loader *l, const weight_piece *piece, error *err)
{
	char *to = (char *)l->model->arena + piece->at;
	if (l->digest)
		digest_stream_add(l->digest, piece->data, piece->bytes);
	TRY(extend(l, piece->at + piece->bytes, err));
	status s = piece->data == to ? STATUS_OK : l->backend->upload(l->backend, to, piece->data, piece->bytes);
	return s == STATUS_OK ? s : error_set(err, s, NULL, "cannot copy the weights to %s", l->backend->name);
}

status model_loader_step(model_loader *l, bool *done, error *err)
{
	model *m = l->model;
	weight_piece piece;
	*done = false;
	if (l->read < m->parameters.count) {
		TRY(weight_pieces_next(l->pieces, &piece, err));
		if (piece.bytes && l->backend)
			TRY(upload(l, &piece, err));
		if (piece.last && l->digest) {
			l->digests[l->places[piece.place].parameter] = digest_stream_value(l->digest);
			digest_stream_reset(l->digest);
		}
		l->read += piece.last;
	}
	*done = l->read == m->parameters.count;
	if (*done && l->digest)
		m->digest = digest_bytes(l->digests, (size_t)m->parameters.count * sizeof *l->digests);
	if (*done && l->backend) /* padding after the last parameter */
		TRY(extend(l, (size_t)m->floats * sizeof(float), err));
	return STATUS_OK;
}

model *model_loader_take(model_loader *l)
{
	model *m = l->backend ? l->model : NULL;
	assert(l->read == l->model->parameters.count);
	if (m)
		l->model = NULL;
	return m;
}
