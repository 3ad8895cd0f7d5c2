/* models.c - a change first asks the executors, because only they know whether sessions or generations use the weights.
 * Until it is over the entry is closed, so no request starts to use them (catalog.h). Tasks run in order, so a request
 * that started before counts as a user. */
#include "engine/daemon/library/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/checksum.h"
#include "engine/base/log.h"
#include "engine/base/manifest.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/compute/device.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/library/model_files.h"
#include "engine/daemon/requests/background.h"
#include "engine/daemon/requests/download.h"
#include "engine/daemon/library/library.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/upload.h"
#include "engine/daemon/sessions/sessions.h"
#include "engine/model/model_folder.h"
#include "engine/recipe/model_card.h"

enum { MODELS_MAX_TOKENIZER = 64 << 20 };
#define MODELS_MAX_BYTES ((int64_t)64 << 30)

/* NULL: out of memory. */
static json_t *model_object(const library *lib, const model_entry *c)
{
	const bool loaded = fleet_has_loaded(lib->fleet, c->id);
	if (c->problem[0])
		return json_pack("{s:s, s:s, s:I, s:s, s:{s:s, s:b, s:s*}}", "id", c->id, "object", "model", "created",
		                 (json_int_t)c->created, "owned_by", c->owned_by, "additive", "damaged", c->problem,
		                 "loaded", 0, "project", project_member(c->project));
	json_t *object = json_pack(
	    "{s:s, s:s, s:I, s:s, s:{s:s, s:I, s:O, s:{s:s, s:i}, s:o, s:I, s:I, s:s, s:s, s:b, s:s*}}", "id", c->id,
	    "object", "model", "created", (json_int_t)c->created, "owned_by", c->owned_by, "additive", "architecture",
	    c->architecture->name, "parameters", (json_int_t)c->parameters, "config", c->config, "tokenizer", "type",
	    tokenizer_type(c->tokenizer), "vocab_size", (int)tokenizer_size(c->tokenizer), "n_positions",
	    c->dims.positions == MODEL_UNBOUNDED ? json_null() : json_integer((json_int_t)c->dims.positions),
	    "trained_length", (json_int_t)c->dims.trained, "state_bytes", (json_int_t)c->state_bytes, "dtype",
	    catalog_dtype_name(c->weights), "backend", fleet_backend_name(lib->fleet), "loaded", loaded, "project",
	    project_member(c->project));
	const char *problem = catalog_problem(c);
	if (object && problem &&
	    json_object_set_new(json_object_get(object, "additive"), "damaged", json_string(problem)) != 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

/* Return the entry of the request's id; NULL: answered. */
static model_entry *open_target(stream *s)
{
	error err = ERROR_INIT;
	model_entry *c;
	if (catalog_open(library_of(s)->catalog, s->target, &c, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	return c;
}

model_entry *models_inspect(stream *s)
{
	error err = ERROR_INIT;
	model_entry *c;
	if (catalog_inspect(library_of(s)->catalog, s->target, &c, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	return c;
}

/* --- model.list, model.get ------------------------------------------------------- */

static bool collect_id(void *context, const json_t *row)
{
	json_t **ids = context;
	if (json_array_append(*ids, json_object_get(row, "id")) == 0)
		return true;
	json_decref(*ids);
	*ids = NULL;
	return false;
}

/* True if the request may use the model. */
static bool may_use(const stream *s, const char *id)
{
	return keys_allow_model(s, id) &&
	       (s->scope.all ||
	        catalog_check_project(library_of(s)->catalog, id, s->scope.project, NULL) == STATUS_OK);
}

/* Append the object of a model, unless it is being deleted or the request lists another project. */
static status list_model(const stream *s, const char *id, json_t *data, error *err)
{
	const library *lib = library_of(s);
	const char *filter = json_string_value(json_object_get(s->params, "project"));
	error reason = ERROR_INIT;
	model_entry *c;
	status found = catalog_inspect(lib->catalog, id, &c, &reason);
	if (found == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (found != STATUS_OK)
		return error_set(err, found, reason.param, "%s", reason.message);
	if (project_lists(&(project_scope){.all = true}, filter, c->project))
		found = json_array_append_new(data, model_object(lib, c)) == 0 ? STATUS_OK : STATUS_NOMEM;
	catalog_release(c);
	return found;
}

void models_list(stream *s)
{
	error err = ERROR_INIT;
	bool more;
	json_t *ids = json_array(), *data = json_array();
	store_page page = {.ascending = true};
	status result = ids && data
	                    ? store_list(library_of(s)->store, STORE_MODELS, &page, collect_id, &ids, &more, &err)
	                    : STATUS_NOMEM;
	if (result == STATUS_OK && !ids)
		result = STATUS_NOMEM;
	for (size_t i = 0; result == STATUS_OK && i < json_array_size(ids); i++) {
		const char *id = json_string_value(json_array_get(ids, i));
		if (may_use(s, id))
			result = list_model(s, id, data, &err);
	}
	json_decref(ids);
	if (result == STATUS_OK) {
		stream_result(s, json_pack("{s:s, s:o}", "object", "list", "data", data));
		return;
	}
	json_decref(data);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

void models_get(stream *s)
{
	model_entry *c = models_inspect(s);
	if (!c)
		return;
	json_t *object = model_object(library_of(s), c);
	catalog_release(c);
	stream_result(s, object);
}

/* --- model.load, model.unload, model.delete -------------------------------------- */

/* Work on a model on every device. */
typedef struct device_task {
	fleet_round round;
	stream *stream;
	model_entry *model;
	bool loads;      /* counted in the entry's loads */
	bool closes;     /* the entry is closed until the answer */
	bool deleted;    /* the store has deleted the model */
	bool chosen;     /* load: the request named the weights */
	dtype weights;   /* load: the weights to load */
	dtype before;    /* change: those before */
	unsigned loaded; /* change: bit i: device i had the model loaded before */
	error error;
} device_task;

/* Name the device in an error, if there are several. */
static status name_device(device_task *a, const device *d, status s, const error *reason)
{
	if (s == STATUS_OK)
		return s;
	const char *words = reason->message[0] ? reason->message : status_text(s);
	return fleet_count(a->round.fleet) == 1
	           ? error_set(&a->error, s, reason->param, "%s", words)
	           : error_set(&a->error, s, reason->param, "%.400s (device %d)", words, device_number(d));
}

static status check_idle(fleet_round *r, device *d)
{
	device_task *a = (device_task *)r;
	return device_check_idle(d, a->model->id, &a->error);
}

static bool prepare_load(fleet_round *r, device *d)
{
	return catalog_prepare(((device_task *)r)->model, d);
}

static status run_load(fleet_round *r, device *d)
{
	device_task *a = (device_task *)r;
	served_model *loaded;
	error reason = ERROR_INIT;
	return name_device(a, d, catalog_model(a->model, d, &loaded, &reason), &reason);
}

static status commit_load(fleet_round *r)
{
	device_task *a = (device_task *)r;
	if (a->chosen && !a->closes && a->weights != a->model->weights)
		return error_set(&a->error, STATUS_CONFLICT, "dtype", "another request has changed the model");
	return a->chosen ? catalog_set_weights(library_of(a->stream)->catalog, a->model, a->weights, &a->error)
	                 : STATUS_OK;
}

static bool is_loaded(const device *d, const char *id)
{
	return device_scheduler(d) && scheduler_model_loaded(device_scheduler(d), id);
}

/* A load that has begun is completed first. */
static bool prepare_change(fleet_round *r, device *d)
{
	const device_task *a = (device_task *)r;
	const char *id = a->model->id;
	if (r->stage == FLEET_RUN)
		return device_prepare(d, id, a->model->folder, a->weights);
	const bool loads = r->stage == FLEET_CHECK
	                       ? device_scheduler(d) && scheduler_model_loading(device_scheduler(d), id)
	                       : a->loaded & 1u << r->at;
	return !loads || device_prepare(d, id, a->model->folder, a->before);
}

static status check_change(fleet_round *r, device *d)
{
	device_task *a = (device_task *)r;
	a->loaded |= (unsigned)is_loaded(d, a->model->id) << r->at;
	return check_idle(r, d);
}

static status run_change(fleet_round *r, device *d)
{
	device_task *a = (device_task *)r;
	served_model *loaded;
	error reason = ERROR_INIT;
	return name_device(a, d, catalog_load(a->model, d, a->weights, &loaded, &reason), &reason);
}

static void undo_change(fleet_round *r, device *d)
{
	const device_task *a = (device_task *)r;
	served_model *loaded;
	error err = ERROR_INIT;
	const status s = a->loaded & 1u << r->at ? catalog_load(a->model, d, a->before, &loaded, &err)
	                                         : device_unload(d, a->model->id, &err);
	if (s != STATUS_OK)
		log_line(LOG_WARN, "the model \"%s\" is loaded again only when it is used: %s", a->model->id,
		         error_message(&err));
}

static status run_unload(fleet_round *r, device *d)
{
	device_task *a = (device_task *)r;
	return device_unload(d, a->model->id, &a->error);
}

static status commit_delete(fleet_round *r)
{
	device_task *a = (device_task *)r;
	TRY(store_model_delete(library_of(a->stream)->store, a->model->id, &a->error));
	catalog_forget(library_of(a->stream)->catalog, a->model->id);
	a->deleted = true;
	return STATUS_OK;
}

static json_t *device_task_object(const device_task *a)
{
	return a->deleted ? json_pack("{s:s, s:s, s:b}", "id", a->model->id, "object", "model", "deleted", 1)
	                  : model_object(library_of(a->stream), a->model);
}

static void device_task_refuse(device_task *a, status result)
{
	error_set(&a->error, result, NULL, "%s", status_text(result));
	stream_error(a->stream, &a->error, result == STATUS_CONFLICT ? "model_in_use" : NULL);
}

static void device_task_free(device_task *a)
{
	if (a->closes)
		catalog_reopen(a->model, a->deleted);
	a->model->loads -= a->loads;
	catalog_release(a->model);
	free(a);
}

static void device_task_done(fleet_round *r)
{
	device_task *a = (device_task *)r;
	if (r->result == STATUS_OK)
		stream_result(a->stream, device_task_object(a));
	else
		device_task_refuse(a, r->result);
	device_task_free(a);
}

/* Begin work on the entry, which is taken over. `like`: the members that differ between methods. purpose: with
 * `closes`. */
static void device_task_begin(stream *s, model_entry *c, const device_task *like, model_closing purpose)
{
	device_task *a = memory_new(1, sizeof *a);
	if (!a) {
		catalog_release(c);
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	*a = *like;
	a->stream = s;
	a->model = c;
	a->round.done = device_task_done;
	c->loads += a->loads;
	status result = like->closes ? catalog_close(c, purpose, &a->error) : STATUS_OK;
	a->closes &= result == STATUS_OK;
	if (result == STATUS_OK && !fleet_begin_round(library_of(s)->fleet, &a->round))
		result = error_set(&a->error, STATUS_BUSY, NULL, "too many requests are waiting");
	if (result == STATUS_OK)
		return;
	device_task_refuse(a, result);
	device_task_free(a);
}

void models_load(stream *s)
{
	const char *name = json_string_value(json_object_get(s->params, "dtype"));
	device_task load = {
	    .round = {.prepare = prepare_load, .run = run_load, .commit = commit_load, .only_open = true}};
	model_entry *c = open_target(s);
	if (!c)
		return;
	load.chosen = name && catalog_find_dtype(name, &load.weights);
	load.before = c->weights;
	load.closes = load.chosen && load.weights != load.before;
	/* The state of a durable session depends on the type of weights, also while it is only stored. */
	if (load.closes && sessions_use_model(library_of(s)->sessions, c->id)) {
		catalog_release(c);
		stream_refuse(s, STATUS_CONFLICT, "model_in_use", "dtype",
		              "the model's dtype cannot be changed: a session uses it");
		return;
	}
	if (load.closes)
		load.round = (fleet_round){.prepare = prepare_change,
		                           .check = check_change,
		                           .run = run_change,
		                           .undo = undo_change,
		                           .commit = commit_load,
		                           .only_open = true};
	load.loads = !load.closes;
	device_task_begin(s, c, &load, CLOSE_TO_CHANGE);
}

void models_unload(stream *s)
{
	const device_task unload = {.round = {.check = check_idle, .run = run_unload}, .closes = true};
	model_entry *c = open_target(s);
	if (c)
		device_task_begin(s, c, &unload, CLOSE_TO_UNLOAD);
}

void models_delete(stream *s)
{
	const device_task delete = {.round = {.check = check_idle, .run = run_unload, .commit = commit_delete},
	                            .closes = true};
	char of[STORE_ID_BYTES];
	int64_t step;
	error err = ERROR_INIT;
	bool adapted;
	model_entry *c = models_inspect(s);
	if (!c)
		return;
	if (adapters_of_model(library_of(s)->store, c->id, &adapted, &err) != STATUS_OK) {
		catalog_release(c);
		stream_error(s, &err, NULL);
		return;
	}
	const char *user = catalog_parse_checkpoint(c->id, of, &step) ? "it is a checkpoint and belongs to its job"
	                   : adapted ? "an adapter belongs to it"
	                   : sessions_use_model(library_of(s)->sessions, c->id)
	                       ? "a session uses it"
	                       : job_machine_use_of_model(library_of(s)->jobs, c->id);
	if (user) {
		catalog_release(c);
		stream_refuse(s, STATUS_CONFLICT, "model_in_use", "id", "the model cannot be deleted: %s", user);
		return;
	}
	device_task_begin(s, c, &delete, CLOSE_TO_DELETE);
}

/* --- model.import, model.file, model.files ------------------------------------------------------ */

static status add_imported(stream *s, const char *folder, json_t **object, error *err)
{
	model_entry *c;
	TRY(catalog_add(library_of(s)->catalog, s->target, folder, s->scope.project, err));
	TRY(catalog_open(library_of(s)->catalog, s->target, &c, err));
	*object = model_object(library_of(s), c);
	catalog_release(c);
	return *object ? STATUS_OK : STATUS_NOMEM;
}

static void imported(stream *s, const char *folder)
{
	error err = ERROR_INIT;
	json_t *object = NULL;
	status result = idempotency_begin(s, &err);
	if (result == STATUS_OK) {
		result = add_imported(s, folder, &object, &err);
		result = idempotency_commit(s, result, object, &err);
		if (result != STATUS_OK)
			catalog_forget(library_of(s)->catalog, s->target);
	}
	if (result == STATUS_OK) {
		stream_result(s, object);
		return;
	}
	json_decref(object);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, result == STATUS_CONFLICT ? "model_exists" : NULL);
}

/* Pool thread. */
static status check_import(const stream *s, const char *folder, error *err)
{
	static const char *const names[] = {
#define MODEL_FILE(name, type, most) name,
#include "proto/model_files.def"
#undef MODEL_FILE
	    NULL};
	TRY(model_files_prepare(folder, err));
	TRY(model_check(folder, err));
	TRY(model_card_import(s->target, folder, names, err));
	return catalog_seal(s->target, folder, s->scope.project, err);
}

void models_import(stream *s)
{
	static const upload_part parts[] = {
	    {.name = "config", .file = "config.json", .limit = MODEL_FOLDER_MAX_CONFIG},
	    {.name = "weights", .file = "model.safetensors", .limit = MODELS_MAX_BYTES},
	    {.name = "tokenizer", .file = "tokenizer.json", .limit = MODELS_MAX_TOKENIZER},
	    {.name = "file", .kind = UPLOAD_NAMED},
	    {.name = "archive", .limit = MODELS_MAX_BYTES, .kind = UPLOAD_ARCHIVE},
	    {0}};
	static const upload_plan what = {.parts = parts,
	                                 .accepts = model_files_accept,
	                                 .decides = model_files_decides,
	                                 .check = check_import,
	                                 .finished = imported};
	char of[STORE_ID_BYTES];
	int64_t step;
	store_model taken;
	if (!store_valid_name(s->target) || catalog_parse_checkpoint(s->target, of, &step) ||
	    architecture_find(s->target))
		stream_refuse(
		    s, STATUS_INVALID, "invalid_value", "id",
		    "a model's id is 1 to 63 of A-Z a-z 0-9 . _ : -, begins with a letter or digit, and is not the "
		    "name of an architecture or checkpoint");
	else if (store_model_get(library_of(s)->store, s->target, &taken, NULL) == STATUS_OK)
		stream_refuse(s, STATUS_CONFLICT, "model_exists", "id", "a model \"%s\" exists already", s->target);
	else
		upload_begin(s, &what);
}

static const char no_file[] = "the model has no file \"%.64s\"";

/* True if the model has this file. about: its manifest, or NULL. A file that the manifest lists and the disk lacks is
 * damage. */
static bool has_file(const manifest *about, const char *path, const char *name)
{
	return (about && manifest_file_bytes(about, name) >= 0) || access(path, F_OK) == 0;
}

/* Send a file; the entry is taken over. */
static void send_file(stream *s, model_entry *c, const model_file *f)
{
	char path[PATH_MAX + 32];
	manifest *about;
	error err = ERROR_INIT;
	snprintf(path, sizeof path, "%s/%s", c->folder, f->name);
	store_table table = catalog_table(c);
	status result = store_manifest(library_of(s)->store, table, c->id, &about, &err);
	catalog_release(c);
	if (result != STATUS_OK) {
		log_request(LOG_ERROR, s->request_id, "the model \"%s\" is damaged: %s", s->target, error_message(&err));
		stream_error(s, &err, NULL);
	} else if (!has_file(about, path, f->name)) {
		manifest_free(about);
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "name", no_file, f->name);
	} else {
		download_file(s, path, f->name, f->type, table, about);
	}
}

void models_file(stream *s)
{
	const char *name = json_string_value(json_object_get(s->params, "name"));
	const model_file *f = model_file_find(name);
	model_entry *c = open_target(s);
	if (!c)
		return;
	if (f) {
		send_file(s, c, f);
		return;
	}
	catalog_release(c);
	stream_refuse(s, STATUS_NOT_FOUND, NULL, "name", no_file, name);
}

typedef struct file_list {
	model_entry *model;
	manifest *about; /* NULL: no manifest */
} file_list;

/* Get size and SHA-256 of a file; a file in the manifest is verified. STATUS_NOT_FOUND: the model lacks it. */
static status describe_file(const file_list *l, const char *name, int64_t *bytes, char sum[CHECKSUM_TEXT_BYTES],
                            error *err)
{
	char path[PATH_MAX + 32];
	struct stat st;
	*bytes = l->about ? manifest_file_bytes(l->about, name) : -1;
	if (*bytes >= 0)
		return manifest_checksum(l->about, l->model->folder, name, sum, err);
	snprintf(path, sizeof path, "%s/%s", l->model->folder, name);
	if (stat(path, &st) != 0)
		return STATUS_NOT_FOUND;
	*bytes = st.st_size;
	return checksum_file(path, sum, err);
}

/* Append the object of a file, unless the model lacks it. */
static status list_file(const file_list *l, const model_file *f, json_t *data, error *err)
{
	char sum[CHECKSUM_TEXT_BYTES];
	int64_t bytes;
	error reason = ERROR_INIT;
	status s = describe_file(l, f->name, &bytes, sum, &reason);
	if (s == STATUS_NOT_FOUND)
		return STATUS_OK;
	if (s == STATUS_STORAGE)
		log_line(LOG_ERROR, "the model \"%s\" is damaged: %s", l->model->id, error_message(&reason));
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", error_message(&reason));
	json_t *object = json_pack("{s:s, s:s, s:I, s:s}", "object", "model.file", "name", f->name, "bytes",
	                           (json_int_t)bytes, "sha256", sum);
	return json_array_append_new(data, object) == 0 ? STATUS_OK : error_settle(err, STATUS_NOMEM);
}

static json_t *make_list(void *context, error *err)
{
	json_t *data = json_array();
	status s = data ? STATUS_OK : error_settle(err, STATUS_NOMEM);
	const model_file *f;
	for (int i = 0; s == STATUS_OK && (f = model_file_at(i)); i++)
		s = list_file(context, f, data, err);
	if (s == STATUS_OK)
		return json_pack("{s:s, s:o}", "object", "list", "data", data);
	json_decref(data);
	return NULL;
}

static void release_list(void *context)
{
	file_list *l = context;
	catalog_release(l->model);
	manifest_free(l->about);
	free(l);
}

void models_files(stream *s)
{
	error err = ERROR_INIT;
	model_entry *c = open_target(s);
	if (!c)
		return;
	file_list *l = memory_new(1, sizeof *l);
	status result =
	    l ? store_manifest(library_of(s)->store, catalog_table(c), c->id, &l->about, &err) : STATUS_NOMEM;
	if (result == STATUS_OK) {
		l->model = c;
		background_answer(s, &(background_work){.make = make_list, .release = release_list, .context = l});
		return;
	}
	catalog_release(c);
	free(l);
	error_settle(&err, result);
	stream_error(s, &err, NULL);
}
