#include "engine/daemon/library/adapter_methods.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/path.h"
#include "engine/base/tar.h"
#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/keys/keys.h"
#include "engine/daemon/library/library.h"
#include "engine/daemon/requests/download.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/listing.h"
#include "engine/daemon/requests/upload.h"
#include "engine/model/adapter.h"
#include "engine/model/lora.h"

enum { LISTED = 10000 };
enum { ADAPTER_MAX_BYTES = 1 << 30 };

static bool may_use(const stream *s, const json_t *adapter)
{
	return adapters_are_of(adapter, s->scope.all ? NULL : s->scope.project) &&
	       keys_allow_model(s, json_string_value(json_object_get(adapter, "base")));
}

/* --- adapter.list ----------------------------------------------------------------- */

static bool is_listed(const void *context, const json_t *row)
{
	const stream *s = context;
	const char *project = json_string_value(json_object_get(s->params, "project"));
	return may_use(s, row) && project_lists(&(project_scope){.all = true}, project, project_of(row));
}

static bool collect_adapter(void *context, const json_t *row)
{
	json_t **data = context;
	if (json_array_append(*data, (json_t *)(uintptr_t)row) == 0)
		return true;
	json_decref(*data);
	*data = NULL;
	return false;
}

void adapter_methods_list(stream *s)
{
	const listing_page asked = listing_read(s->params, LISTED);
	const store_page page = {.after = asked.after,
	                         .limit = asked.limit,
	                         .ascending = asked.ascending,
	                         .match = is_listed,
	                         .match_context = s};
	error err = ERROR_INIT;
	bool more = false;
	json_t *data = json_array();
	status result =
	    data ? store_list(library_of(s)->store, STORE_ADAPTERS, &page, collect_adapter, &data, &more, &err)
	         : STATUS_NOMEM;
	if (result == STATUS_OK && data) {
		stream_result(s, listing_object(data, more));
		return;
	}
	json_decref(data);
	error_settle(&err, data ? result : STATUS_NOMEM);
	stream_error(s, &err, NULL);
}

/* --- the others ------------------------------------------------------------------- */

/* Return the adapter of the request's id, a new reference; NULL: answered. */
static json_t *find_target(stream *s)
{
	error err = ERROR_INIT;
	json_t *adapter;
	status result = store_adapter_get(library_of(s)->store, s->target, &adapter, &err);
	if (result == STATUS_OK && may_use(s, adapter))
		return adapter;
	json_decref(adapter);
	if (result == STATUS_OK || result == STATUS_NOT_FOUND)
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no adapter \"%.64s\"", s->target);
	else
		stream_error(s, &err, NULL);
	return NULL;
}

void adapter_methods_get(stream *s)
{
	json_t *adapter = find_target(s);
	if (adapter)
		stream_result(s, adapter);
}

void adapter_methods_delete(stream *s)
{
	error err = ERROR_INIT;
	/* A damaged row does not tell its project: an admin can delete it. */
	json_t *adapter = s->scope.all ? NULL : find_target(s);
	if (!s->scope.all && !adapter)
		return;
	json_decref(adapter);
	if (sessions_use_adapter(library_of(s)->sessions, s->target)) {
		stream_refuse(s, STATUS_CONFLICT, "adapter_in_use", "id", "a session uses it");
		return;
	}
	if (store_adapter_delete(library_of(s)->store, s->target, &err) == STATUS_OK)
		stream_result(s, json_pack("{s:s, s:s, s:b}", "id", s->target, "object", "adapter", "deleted", 1));
	else if (err.status == STATUS_NOT_FOUND)
		stream_refuse(s, STATUS_NOT_FOUND, NULL, "id", "there is no adapter \"%.64s\"", s->target);
	else
		stream_error(s, &err, NULL);
}

/* Set *out to what precedes LORA_FILE in an archive: LORA_CONFIG_FILE, and both headers. */
static status read_before(const char *folder, const manifest *about, char **out, size_t *bytes, error *err)
{
	char *text;
	size_t n;
	TRY(manifest_read(about, folder, LORA_CONFIG_FILE, LORA_CONFIG_BYTES, &text, &n, err));
	const size_t padded = n + (size_t)tar_padding((int64_t)n);
	*bytes = 2 * TAR_BLOCK + padded;
	*out = calloc(1, *bytes);
	if (*out) {
		tar_header((unsigned char *)*out, LORA_CONFIG_FILE, (int64_t)n);
		memcpy(*out + TAR_BLOCK, text, n);
		tar_header((unsigned char *)*out + TAR_BLOCK + padded, LORA_FILE,
		           manifest_file_bytes(about, LORA_FILE));
	}
	free(text);
	return *out ? STATUS_OK : error_no_memory(err, "an archive");
}

/* Send a tar archive of the two files that PEFT reads. about: taken over. */
static void send_archive(stream *s, const char *folder, manifest *about)
{
	char path[PATH_MAX], name[STORE_ID_BYTES + 16], *before;
	size_t bytes;
	error err = ERROR_INIT;
	const int64_t weights = manifest_file_bytes(about, LORA_FILE);
	if (weights < 0)
		error_set(&err, STATUS_STORAGE, NULL, "%s is missing", LORA_FILE);
	if (weights < 0 || path_join(path, folder, LORA_FILE, &err) != STATUS_OK ||
	    read_before(folder, about, &before, &bytes, &err) != STATUS_OK) {
		manifest_free(about);
		if (err.status == STATUS_STORAGE)
			store_note_damage(library_of(s)->store, STORE_ADAPTERS, s->target, err.message);
		stream_error(s, &err, NULL);
		return;
	}
	snprintf(name, sizeof name, "%s.tar", s->target);
	download_within(s, path, before, bytes, (size_t)tar_padding(weights) + TAR_END, name, "application/x-tar",
	                STORE_ADAPTERS, about);
}

void adapter_methods_content(stream *s)
{
	char path[PATH_MAX + 32], name[STORE_ID_BYTES + 16];
	error err = ERROR_INIT;
	manifest *about;
	json_t *adapter = find_target(s);
	if (!adapter)
		return;
	const char *kind = json_string_value(json_object_get(adapter, "kind"));
	const bool lora = kind && strcmp(kind, "lora") == 0;
	json_decref(adapter);
	if (store_manifest(library_of(s)->store, STORE_ADAPTERS, s->target, &about, &err) != STATUS_OK) {
		log_request(LOG_ERROR, s->request_id, "the adapter \"%s\" is damaged: %s", s->target,
		            error_message(&err));
		stream_error(s, &err, NULL);
		return;
	}
	store_adapter_folder(library_of(s)->store, s->target, path);
	if (lora) {
		send_archive(s, path, about);
		return;
	}
	snprintf(path + strlen(path), sizeof path - strlen(path), "/" ADAPTER_FILE);
	snprintf(name, sizeof name, "%s.safetensors", s->target);
	download_file(s, path, name, "application/octet-stream", STORE_ADAPTERS, about);
}

/* --- adapter.import --------------------------------------------------------------- */

static int64_t accepts(const char *file)
{
	static const struct {
		const char *name;
		int64_t most;
	} files[] = {
	    {ADAPTER_FILE, ADAPTER_MAX_BYTES}, {LORA_FILE, ADAPTER_MAX_BYTES}, {LORA_CONFIG_FILE, LORA_CONFIG_BYTES}};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		if (strcmp(files[i].name, file) == 0)
			return files[i].most;
	return -1;
}

static const char *base_of(const stream *s)
{
	return json_string_value(json_object_get(s->params, "model"));
}

/* Pool thread. */
static status check_import(const stream *s, const char *folder, error *err)
{
	char id[STORE_ID_BYTES];
	store_new_id(id, ADAPTER_ID_PREFIX);
	const adapter_origin from = {.id = id, .base = base_of(s), .project = s->scope.project};
	return adapters_check(library_of(s)->store, &from, folder, err);
}

static status add_imported(const stream *s, const char *folder, json_t **object, error *err)
{
	manifest *about;
	store_model base;
	*object = NULL;
	TRY(store_model_get(library_of(s)->store, base_of(s), &base, err)); /* it may have been deleted meanwhile */
	TRY(manifest_open_folder(&about, folder, err));
	*object = about ? json_deep_copy(manifest_about(about)) : NULL;
	manifest_free(about);
	return *object ? adapters_add(library_of(s)->store, folder, err) : STATUS_NOMEM;
}

static void imported(stream *s, const char *folder)
{
	error err = ERROR_INIT;
	json_t *object = NULL;
	status result = idempotency_begin(s, &err);
	if (result == STATUS_OK) {
		result = add_imported(s, folder, &object, &err);
		result = idempotency_commit(s, result, object, &err);
	}
	if (result == STATUS_OK) {
		stream_result(s, object);
		return;
	}
	json_decref(object);
	error_set(&err, result, NULL, "%s", status_text(result));
	stream_error(s, &err, NULL);
}

void adapter_methods_import(stream *s)
{
	static const upload_part parts[] = {{.name = "file", .kind = UPLOAD_NAMED},
	                                    {.name = "archive", .limit = ADAPTER_MAX_BYTES, .kind = UPLOAD_ARCHIVE},
	                                    {0}};
	static const upload_plan what = {
	    .parts = parts, .accepts = accepts, .check = check_import, .finished = imported};
	error err = ERROR_INIT;
	model_entry *c;
	if (catalog_open_generative(library_of(s)->catalog, base_of(s), &c, &err) != STATUS_OK) {
		stream_error(s, &err, NULL);
		return;
	}
	catalog_release(c);
	upload_begin(s, &what);
}
