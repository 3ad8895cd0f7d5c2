#include "engine/daemon/catalog/adapters.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/manifest.h"
#include "engine/base/path.h"
#include "engine/model/adapter.h"
#include "engine/model/lora.h"
#include "engine/model/model_folder.h"

/* base: hash of the base's weights. */
static json_t *adapters_describe(const model *adapter, uint64_t base, const adapter_origin *from)
{
	char digest[20];
	snprintf(digest, sizeof digest, "%016llx", (unsigned long long)base);
	const lora_options *o = model_lora(adapter);
	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:I, s:s*, s:s*, s:o*, s:o*, s:O*}", "id", from->id, "object",
	                 "adapter", "created_at", (json_int_t)clock_unix(), "base", from->base, "base_digest", digest,
	                 "kind", o ? "lora" : "state", "parameters", (json_int_t)model_scalar_count(adapter), "job",
	                 from->job, "project", from->project[0] ? from->project : NULL, "rank",
	                 o ? json_integer(o->rank) : NULL, "alpha", o ? json_real(o->alpha) : NULL, "targets",
	                 o ? o->targets : NULL);
}

static status seal(const model *adapter, uint64_t base, const adapter_origin *from, const char *folder, error *err)
{
	json_t *document = adapters_describe(adapter, base, from);
	const status s = document ? store_adapter_seal(document, folder, err) : STATUS_NOMEM;
	json_decref(document);
	return s;
}

status adapters_write(const model *adapter, const adapter_origin *from, const char *folder, error *err)
{
	TRY(adapter_save(adapter, folder, err));
	return seal(adapter, model_digest(model_base(adapter)), from, folder, err);
}

/* Describe the stored model. */
static status describe_base(const store *s, const char *id, model **out, uint64_t *digest, error *err)
{
	char folder[PATH_MAX];
	const architecture *a;
	manifest *about;
	json_t *config = NULL;
	store_model_folder(s, id, folder);
	if (access(folder, F_OK) != 0)
		return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
	TRY(manifest_open_folder(&about, folder, err));
	status result = about && manifest_file_digest(about, "model.safetensors", digest)
	                    ? model_folder_config(&a, &config, about, folder, err)
	                    : error_set(err, STATUS_STORAGE, "model", "the model \"%.64s\" has no manifest", id);
	manifest_free(about);
	if (result == STATUS_OK)
		result = model_describe(out, a, config, DTYPE_F32, err);
	json_decref(config);
	return result;
}

static bool has_file(const char *folder, const char *name)
{
	char path[PATH_MAX];
	return path_join(path, folder, name, NULL) == STATUS_OK && access(path, F_OK) == 0;
}

/* Read the files of the folder as an adapter of the base. */
static status check_files(model **out, model *base, const char *folder, error *err)
{
	const bool state = has_file(folder, ADAPTER_FILE), lora = has_file(folder, LORA_FILE);
	char path[PATH_MAX];
	*out = NULL;
	if (state == lora)
		return error_set(err, STATUS_INVALID, "file",
		                 "must be " ADAPTER_FILE ", or " LORA_FILE " with " LORA_CONFIG_FILE);
	if (lora && !has_file(folder, LORA_CONFIG_FILE))
		return error_set(err, STATUS_INVALID, LORA_CONFIG_FILE, "is missing");
	if (lora) {
		TRY(lora_check_sessions(base, err));
		return lora_open(out, base, folder, NULL, err);
	}
	TRY(path_join(path, folder, ADAPTER_FILE, err));
	TRY(model_new_adapter(out, base, err));
	return adapter_read(*out, path, NULL, err);
}

status adapters_check(const store *s, const adapter_origin *from, const char *folder, error *err)
{
	model *base = NULL, *adapter = NULL;
	uint64_t digest;
	TRY(describe_base(s, from->base, &base, &digest, err));
	status result = check_files(&adapter, base, folder, err);
	if (result == STATUS_CORRUPT || result == STATUS_STORAGE) /* the fault is the upload's */
		result = err->status = STATUS_INVALID;
	if (result == STATUS_OK)
		result = seal(adapter, digest, from, folder, err);
	model_free(adapter);
	model_free(base);
	return result;
}

static const char *adapter_text(const json_t *adapter, const char *key)
{
	const char *text = json_string_value(json_object_get(adapter, key));
	return text ? text : "";
}

bool adapters_are_of(const json_t *adapter, const char *project)
{
	const char *own = adapter_text(adapter, "project");
	return !project || !own[0] || strcmp(own, project) == 0;
}

status adapters_find(store *s, const char *id, const char *project, const char *base, adapter_ref *out, error *err)
{
	json_t *adapter;
	status result = store_adapter_get(s, id, &adapter, err);
	if (result == STATUS_NOT_FOUND || (result == STATUS_OK && !adapters_are_of(adapter, project)))
		result = error_set(err, STATUS_NOT_FOUND, "adapter", "there is no adapter \"%.64s\"", id);
	else if (result == STATUS_OK && strcmp(adapter_text(adapter, "base"), base) != 0)
		result =
		    error_set(err, STATUS_INVALID, "adapter", "the adapter \"%.64s\" belongs to the model \"%.64s\"",
		              id, adapter_text(adapter, "base"));
	if (result == STATUS_OK) {
		*out = (adapter_ref){.store = s, .base = strtoull(adapter_text(adapter, "base_digest"), NULL, 16)};
		snprintf(out->id, sizeof out->id, "%s", id);
	}
	json_decref(adapter);
	return result;
}

status adapters_open(const adapter_ref *a, const served_model *m, device *d, served_adapter **out, error *err)
{
	char folder[PATH_MAX];
	*out = NULL;
	if (model_digest(served_model_model(m)) != a->base)
		return error_set(err, STATUS_INVALID, "adapter",
		                 "the adapter \"%s\" belongs to other weights of the model", a->id);
	store_adapter_folder(a->store, a->id, folder);
	if (access(folder, F_OK) != 0)
		return error_set(err, STATUS_NOT_FOUND, "adapter", "there is no adapter \"%s\"", a->id);
	return adapter_cache_get(device_adapters(d), m, a->id, folder, out, err);
}

static bool belongs_to(const void *id, const json_t *adapter)
{
	return strcmp(adapter_text(adapter, "base"), id) == 0;
}

static bool note_found(void *found, const json_t *adapter)
{
	(void)adapter;
	*(bool *)found = true;
	return false;
}

status adapters_of_model(store *s, const char *id, bool *found, error *err)
{
	const store_page page = {.match = belongs_to, .match_context = id};
	bool more;
	*found = false;
	return store_list(s, STORE_ADAPTERS, &page, note_found, found, &more, err);
}

status adapters_add(store *s, const char *folder, error *err)
{
	manifest *about;
	TRY(manifest_open_folder(&about, folder, err));
	if (!about)
		return error_set(err, STATUS_STORAGE, NULL, "the adapter has no manifest");
	const status result = store_adapter_add(s, manifest_about(about), folder, err);
	manifest_free(about);
	return result;
}
