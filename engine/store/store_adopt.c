/* Rows made from the blobs' own descriptions: a manifest's `about` is the row's document. What a blob does not record
 * is what a user may have chosen since (a dtype) and a job's events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/store/store_private.h"

static status strange(error *err, store_table table, const char *name)
{
	return error_set(err, STATUS_STORAGE, NULL, "%s \"%.64s\" has no description", store_kind(table), name);
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

/* A row from a manifest, whose files below `base` must be whole. */
static status adopt(store *s, store_table table, const char *path, const char *base, const char *name, store_row *row,
                    error *err)
{
	manifest *m;
	status result = manifest_open(&m, path, err);
	if (result == STATUS_NOT_FOUND)
		return strange(err, table, name);
	TRY(result);
	const json_t *about = manifest_about(m);
	snprintf(row->id, sizeof row->id, "%s", text_of(about, "id"));
	bool named = table == STORE_CHECKPOINTS || strcmp(row->id, name) == 0; /* a checkpoint's place is its step */
	if (strcmp(manifest_kind(m), store_kind(table)) != 0 || !store_valid_name(row->id) || !named)
		result = strange(err, table, name);
	if (result == STATUS_OK)
		result = manifest_check(m, base, err);
	row->document = json_incref((json_t *)(uintptr_t)about);
	row->manifest = strdup(manifest_text(m));
	row->bytes = manifest_bytes(m);
	if (result == STATUS_OK && !row->manifest)
		result = STATUS_NOMEM;
	if (result == STATUS_OK)
		result = row_put(s, table, row, err);
	manifest_free(m);
	return result;
}

status adopt_file(store *s, const char *name, error *err)
{
	char path[PATH_MAX], base[PATH_MAX];
	store_row row = {0};
	snprintf(base, sizeof base, "%s/blobs", s->folder);
	snprintf(path, sizeof path, "%.*s/%.128s" MANIFEST_SUFFIX, PATH_MAX - 160, base, name);
	manifest *m;
	status opened = manifest_open(&m, path, NULL);
	if (opened != STATUS_OK)
		return opened == STATUS_NOMEM ? opened : strange(err, STORE_FILES, name);
	snprintf(row.state, sizeof row.state, "%s", text_of(manifest_about(m), "purpose"));
	row.number = json_integer_value(json_object_get(manifest_about(m), "expires"));
	manifest_free(m);
	status result = adopt(s, STORE_FILES, path, base, name, &row, err);
	row_fini(&row);
	return result;
}

static status adopt_folder(store *s, store_table table, const char *folder, const char *name, store_row *row,
                           error *err)
{
	char path[PATH_MAX + 32];
	snprintf(path, sizeof path, "%s/" MANIFEST_NAME, folder);
	if (table != STORE_ADAPTERS)
		snprintf(row->state, sizeof row->state, "fp32");
	status result = adopt(s, table, path, folder, name, row, err);
	row_fini(row);
	return result;
}

status adopt_folder_object(store *s, store_table table, const char *name, error *err)
{
	char folder[PATH_MAX];
	if (!store_valid_name(name))
		return strange(err, table, name);
	folder_path(s, table, name, folder);
	return adopt_folder(s, table, folder, name, &(store_row){0}, err);
}

status adopt_checkpoint(store *s, const char *job, const char *name, error *err)
{
	char folder[PATH_MAX];
	store_row row = {.number = checkpoint_name_step(name)};
	if (row.number < 0 || !store_valid_name(job))
		return strange(err, STORE_CHECKPOINTS, name);
	snprintf(row.parent, sizeof row.parent, "%s", job);
	store_checkpoint_folder(s, job, row.number, folder);
	return adopt_folder(s, STORE_CHECKPOINTS, folder, name, &row, err);
}

status adopt_job(store *s, const char *name, error *err)
{
	char folder[PATH_MAX], path[PATH_MAX + 32];
	store_row row = {0};
	manifest *m;
	if (!store_valid_name(name))
		return strange(err, STORE_JOBS, name);
	store_job_folder(s, name, folder);
	snprintf(path, sizeof path, "%s/job.json", folder);
	status result = manifest_open(&m, path, err);
	if (result == STATUS_NOT_FOUND)
		return strange(err, STORE_JOBS, name);
	TRY(result);
	snprintf(row.state, sizeof row.state, "%s", text_of(manifest_about(m), "status"));
	manifest_free(m);
	result = adopt(s, STORE_JOBS, path, folder, name, &row, err);
	row_fini(&row);
	return result;
}

/* Remove the snapshots without a file from a session's document: they were deleted after it was written. */
static void drop_missing_snapshots(const store *s, const char *id, json_t *document)
{
	char path[PATH_MAX];
	json_t *list = json_object_get(document, "snapshots");
	for (size_t i = json_array_size(list); i-- > 0;) {
		const int64_t version = json_integer_value(json_object_get(json_array_get(list, i), "version"));
		snprintf(path, sizeof path, "%s/sessions/%s.%lld", s->folder, id, (long long)version);
		if (access(path, F_OK) != 0)
			json_array_remove(list, i);
	}
}

status adopt_session(store *s, const char *name, error *err)
{
	char path[PATH_MAX];
	store_row row = {0};
	struct stat st;
	int64_t version;
	if (!session_file_name(name, row.id, &version))
		return strange(err, STORE_SESSIONS, name);
	snprintf(path, sizeof path, "%s/sessions/%.128s", s->folder, name);
	status result = session_file_document(path, &row.document, &row.number, err);
	if (result == STATUS_OK && row.number != version)
		result = strange(err, STORE_SESSIONS, name);
	if (result == STATUS_OK)
		drop_missing_snapshots(s, row.id, row.document);
	if (result == STATUS_OK && stat(path, &st) == 0)
		row.bytes = st.st_size + session_row_snapshot_bytes(&row);
	if (result == STATUS_OK)
		result = row_put(s, STORE_SESSIONS, &row, err);
	row_fini(&row);
	return result;
}
