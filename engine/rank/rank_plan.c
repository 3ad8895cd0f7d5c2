#include "engine/rank/rank_plan.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/json_text.h"
#include "engine/base/memory.h"
#include "engine/model/model_folder.h"
#include "engine/recipe/job_check.h"
#include "engine/recipe/job_tokenizer.h"
#include "gen/schemas.h"

static const char run_file[] = "run.json";

const char *rank_plan_text(const json_t *document, const char *key)
{
	const char *text = json_string_value(json_object_get(document, key));
	return text ? text : "";
}

/* --- sources ------------------------------------------------------------------------------ */

static status find_file(void *context, const char *name, char id[STORE_ID_BYTES], error *err)
{
	const char *path = json_string_value(json_object_get(json_object_get(context, "files"), name));
	if (!path || access(path, R_OK) != 0)
		return error_set(err, STATUS_NOT_FOUND, NULL, "there is no file \"%.64s\"", name);
	snprintf(id, STORE_ID_BYTES, "%s", name);
	return STATUS_OK;
}

static void path_of(const void *context, const char *id, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "%s", rank_plan_text(json_object_get(context, "files"), id));
}

static status find_model(void *context, const char *name, job_base *out, error *err)
{
	const char *folder = rank_plan_text(context, "base");
	manifest *about;
	json_t *config;
	if (!folder[0] || access(folder, R_OK | X_OK) != 0)
		return error_set(err, STATUS_NOT_FOUND, "model", "there is no architecture and no folder \"%.64s\"",
		                 name);
	snprintf(out->folder, sizeof out->folder, "%s", folder);
	snprintf(out->id, sizeof out->id, "%s", name);
	TRY(manifest_open_folder(&about, folder, err));
	status s = model_folder_config(&out->architecture, &config, about, folder, err);
	manifest_free(about);
	TRY(s);
	out->parsed = memory_new(1, out->architecture->config_bytes);
	s = out->parsed ? model_folder_complete(&out->config, out->architecture, out->parsed, config, err)
	                : STATUS_NOMEM;
	json_decref(config);
	if (s == STATUS_OK)
		out->dims = *architecture_dims(out->parsed);
	else
		job_base_fini(out);
	return s;
}

job_sources rank_plan_sources(const json_t *document, int rank, const rank_device *d)
{
	job_sources s = {.find_file = find_file,
	                 .find_model = find_model,
	                 .context = (void *)(uintptr_t)document,
	                 .paths = {path_of, document},
	                 .cache = {rank_plan_text(document, "cache"),
	                           json_integer_value(json_object_get(document, "cache_bytes")), INT64_MAX},
	                 .backend_name = d->backend_name,
	                 .bf16 = d->bf16};
	snprintf(s.temporary, sizeof s.temporary, "%.4000s/rank-%d%s%d", s.cache.folder, rank, FILE_TEMPORARY,
	         (int)getpid());
	return s;
}

/* --- a recipe ------------------------------------------------------------------------------- */

/* Replace a path by an id, recording its file and name. */
static status name_file(json_t *object, const char *key, json_t *files)
{
	const char *given = json_string_value(json_object_get(object, key)), *id, *slash;
	char made[STORE_ID_BYTES], whole[PATH_MAX];
	json_t *other;
	if (!given)
		return STATUS_OK;
	const char *path = realpath(given, whole) ? whole : given; /* a missing file is reported later */
	json_object_foreach(files, id, other) if (strcmp(json_string_value(other), path) ==
	                                          0) return json_object_set_new(object, key, json_string(id)) == 0
	    ? STATUS_OK
	    : STATUS_NOMEM;
	slash = strrchr(path, '/');
	snprintf(made, sizeof made, "%zu-%.24s", json_object_size(files), slash ? slash + 1 : path);
	json_t *name = json_text_repaired(made);
	if (!name)
		return STATUS_NOMEM;
	json_object_set_new(files, json_string_value(name), json_string(path));
	return json_object_set_new(object, key, name) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static status name_files(json_t *recipe, json_t *files)
{
	json_t *ours = json_object_get(recipe, "additive"), *file;
	size_t i;
	TRY(name_file(recipe, "training_file", files));
	TRY(name_file(recipe, "validation_file", files));
	TRY(name_file(json_object_get(ours, "tokenizer"), "file", files));
	json_array_foreach(json_object_get(ours, "training_files"), i, file) TRY(name_file(file, "file", files));
	return STATUS_OK;
}

/* A model that is not an architecture is a folder, named by its last segment. */
static status name_base(json_t *recipe, json_t *document)
{
	const char *named = json_string_value(json_object_get(recipe, "model"));
	char name[STORE_ID_BYTES];
	if (!named || architecture_find(named))
		return json_object_set_new(document, "base", json_string("")) == 0 ? STATUS_OK : STATUS_NOMEM;
	if (json_object_set_new(document, "base", json_string(named)) != 0)
		return STATUS_NOMEM;
	const char *slash = strrchr(named, '/');
	snprintf(name, sizeof name, "%s", slash && slash[1] ? slash + 1 : named);
	return json_object_set_new(recipe, "model", json_text_repaired(name)) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static status check_schema(json_t *recipe, error *err)
{
	const schema_method *m = schema_methods;
	schema_error wrong;
	while (m->name && strcmp(m->name, "job.create") != 0)
		m++;
	if (!schema_check(m->params, recipe, &wrong))
		return error_set(err, STATUS_INVALID, wrong.param, "%s", wrong.message);
	if (!json_is_string(json_object_get(recipe, "training_file")))
		return error_set(err, STATUS_INVALID, "training_file", "'training_file' is required");
	return STATUS_OK;
}

/* Read the texts and compute what follows from them. */
static status rank_plan_settle(job_request *r, corpus *c, const job_sources *from, const json_t *recipe, error *err)
{
	const json_t *spec = json_object_get(json_object_get(recipe, "additive"), "tokenizer");
	const char *file = job_tokenizer_file(spec);
	char path[PATH_MAX];
	tokenizer *given = NULL;
	if (file) {
		from->paths.path(from->paths.context, file, path);
		status s = job_tokenizer_read(&given, path, file, err);
		error_prefix(err, "additive.tokenizer");
		TRY(s);
	}
	status s = job_request_read(r, from, recipe, given, err);
	if (s == STATUS_OK)
		job_request_corpus(r, from, c);
	c->texts.tokenizer = given;
	TRY(s);
	if (corpus_build(c) != STATUS_OK) {
		*err = c->error;
		return err->status;
	}
	return job_request_take_texts(r, recipe, c, err);
}

static status make_request(json_t *document, json_t *recipe, const rank_device *d, error *err)
{
	job_request r = {0};
	corpus c = {0};
	TRY(name_files(recipe, json_object_get(document, "files")));
	TRY(name_base(recipe, document));
	TRY(check_schema(recipe, err));
	if (!job_request_name_model(recipe))
		return STATUS_NOMEM;
	const job_sources from = rank_plan_sources(document, 0, d);
	status s = rank_plan_settle(&r, &c, &from, recipe, err);
	if (s == STATUS_OK && json_object_set_new(document, "request", job_request_write(&r, c.holdout)) != 0)
		s = STATUS_NOMEM;
	corpus_free(&c.texts);
	job_request_fini(&r);
	return s;
}

/* --- the folder of a run -------------------------------------------------------------------- */

static int64_t step_of(const char *name)
{
	const size_t digits = strncmp(name, "step-", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
	return digits > 0 && !name[5 + digits] ? strtoll(name + 5, NULL, 10) : -1;
}

/* Return the newest checkpoint before step `below`; -1: none. */
static int64_t newest(const char *folder, int64_t below)
{
	int64_t found = -1;
	DIR *d = opendir(folder);
	for (struct dirent *e; d && (e = readdir(d));)
		if (step_of(e->d_name) > found && step_of(e->d_name) < below)
			found = step_of(e->d_name);
	if (d)
		closedir(d);
	return found;
}

static status find_checkpoint(json_t *document, error *err)
{
	char folder[PATH_MAX] = "";
	const char *out = rank_plan_text(document, "folder");
	for (int64_t step = newest(out, INT64_MAX); step >= 0; step = newest(out, step)) {
		char name[32];
		error reason = ERROR_INIT;
		snprintf(name, sizeof name, "step-%lld", (long long)step);
		snprintf(folder, sizeof folder, "%.4000s/%s", out, name);
		status s = job_check_folder(folder, name, &reason);
		if (s == STATUS_OK)
			break;
		if (!job_check_is_damage(s))
			return error_set(err, s, NULL, "%s", error_message(&reason));
		folder[0] = 0;
	}
	return json_object_set_new(document, "resume", json_string(folder)) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static status read_json(json_t **out, const char *path, error *err)
{
	char *text;
	size_t bytes;
	json_error_t where;
	*out = NULL;
	TRY(file_read(path, RANK_PLAN_MAX_BYTES, &text, &bytes, err));
	status s = json_read(out, text, bytes, JSON_REJECT_DUPLICATES, &where);
	free(text);
	return s == STATUS_INVALID
	           ? error_set(err, s, NULL, "%s is not JSON: line %d: %s", path, where.line, where.text)
	           : error_settle(err, s);
}

/* Start a new run. Its plan is stored, so a later run has the same seed and defaults. */
static status rank_plan_begin(json_t *document, const json_t *recipe, const char *file, const rank_device *d,
                              error *err)
{
	json_t *named = json_deep_copy(recipe);
	status s = named ? make_request(document, named, d, err) : STATUS_NOMEM;
	json_decref(named);
	TRY(s);
	json_t *kept = json_pack("{s:O, s:O}", "recipe", recipe, "plan", document);
	char *text = json_text(kept, JSON_INDENT(1));
	s = text ? file_write(file, &(file_part){text, strlen(text)}, 1, err) : STATUS_NOMEM;
	free(text);
	json_decref(kept);
	return s;
}

static status go_on(json_t **document, const json_t *recipe, const char *file, error *err)
{
	json_t *kept;
	TRY(read_json(&kept, file, err));
	json_t *before = json_object_get(kept, "plan");
	const bool same = json_equal(json_object_get(kept, "recipe"), recipe) && json_is_object(before);
	if (same) {
		json_decref(*document);
		*document = json_incref(before);
	}
	json_decref(kept);
	return same ? STATUS_OK
	            : error_set(err, STATUS_CONFLICT, NULL,
	                        "--out holds a run of another recipe; %s in it has what that was made of", run_file);
}

static status rank_plan_make_plan(json_t **document, const json_t *recipe, const char *out, const rank_device *d,
                                  error *err)
{
	char path[PATH_MAX], cache[PATH_MAX];
	snprintf(path, sizeof path, "%.4000s/%s", out, run_file);
	snprintf(cache, sizeof cache, "%.4000s/cache", out);
	TRY(file_make_folders(cache, err));
	snprintf(cache, sizeof cache, "%.4000s/cache", out);
	char result[PATH_MAX];
	snprintf(result, sizeof result, "%.4000s/model", out);
	*document = json_pack("{s:{}, s:s, s:I, s:s, s:s}", "files", "cache", cache, "cache_bytes",
	                      (json_int_t)INT64_MAX, "folder", out, "result", result);
	if (!*document)
		return STATUS_NOMEM;
	TRY(access(path, F_OK) == 0 ? go_on(document, recipe, path, err)
	                            : rank_plan_begin(*document, recipe, path, d, err));
	return find_checkpoint(*document, err);
}

status rank_plan_of_object(json_t **document, const json_t *recipe, const char *out, const rank_device *d, error *err)
{
	*document = NULL;
	status s = rank_plan_make_plan(document, recipe, out, d, err);
	if (s != STATUS_OK) {
		json_decref(*document);
		*document = NULL;
	}
	return error_settle(err, s);
}

status rank_plan_of_recipe(json_t **document, const char *recipe, const char *out, const rank_device *d, error *err)
{
	json_t *read;
	*document = NULL;
	TRY(read_json(&read, recipe, err));
	status s = json_is_object(read) ? rank_plan_of_object(document, read, out, d, err)
	                                : error_set(err, STATUS_INVALID, NULL, "%s holds no object", recipe);
	json_decref(read);
	return s;
}

status rank_plan_read(json_t **document, const char *path, error *err)
{
	return read_json(document, path, err);
}
