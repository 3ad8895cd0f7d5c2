/* Models: a folder is filled elsewhere (DATA/tmp), then moved in whole. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status no_model(error *err, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, "model", "there is no model \"%.64s\"", id);
}

static json_t *document_of(const store_model *m)
{
	return json_pack("{s:s, s:s, s:s, s:I, s:I, s:s*}", "id", m->id, "owned_by", m->owned_by, "architecture",
	                 m->architecture, "parameters", (json_int_t)m->parameters, "created", (json_int_t)m->created,
	                 "project", store_project_member(m->project));
}

/* fsync every file of a folder, then the folder. */
static status sync_tree(const char *folder, error *err)
{
	DIR *dir = opendir(folder);
	if (!dir)
		return file_error(err, folder, "cannot open folder");
	status result = STATUS_OK;
	for (struct dirent *e; result == STATUS_OK && (e = readdir(dir));) {
		if (e->d_name[0] == '.')
			continue;
		int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (fd < 0 || fsync(fd) != 0)
			result = file_error(err, e->d_name, "cannot sync");
		if (fd >= 0)
			close(fd);
	}
	closedir(dir);
	return result == STATUS_OK ? file_sync_folder(folder, err) : result;
}

status store_model_seal(const store_model *m, const char *folder, error *err)
{
	TRY(sync_tree(folder, err));
	json_t *about = document_of(m);
	status result =
	    about ? manifest_write(folder, store_kind(STORE_MODELS), m->id, about, err) : STATUS_NOMEM;
	json_decref(about);
	return result;
}

/* The manifest of a folder that says the same as the row will; sealed now if it does not. */
static status sealed(const store_model *m, const json_t *document, const char *folder, manifest **out, error *err)
{
	TRY(manifest_open_folder(out, folder, err));
	if (*out && json_equal(manifest_about(*out), document))
		return STATUS_OK;
	manifest_free(*out);
	*out = NULL;
	TRY(store_model_seal(m, folder, err));
	return manifest_open_folder(out, folder, err);
}

static status fill_row(store_row *row, const store_model *m, const char *folder, error *err)
{
	manifest *seal;
	snprintf(row->id, sizeof row->id, "%s", m->id);
	snprintf(row->state, sizeof row->state, "fp32");
	row->document = document_of(m);
	if (!row->document)
		return STATUS_NOMEM;
	TRY(sealed(m, row->document, folder, &seal, err));
	row->manifest = strdup(manifest_text(seal));
	row->bytes = manifest_bytes(seal);
	manifest_free(seal);
	return row->manifest ? STATUS_OK : STATUS_NOMEM;
}

/* Clear the model's place if it has no row: it holds the rest of a deleted model, or a stray. */
static status clear_place(store *s, const char *id, const char *folder, error *err)
{
	char path[STORE_ID_BYTES + 8];
	bool pending;
	snprintf(path, sizeof path, "models/%s", id);
	if (access(folder, F_OK) != 0)
		return removal_cancel(s, path, err); /* unlinked already, but listed until the next sweep */
	TRY(removal_pending(s, path, &pending, err));
	if (!pending)
		return lost_keep(s, STORE_MODELS, folder, id, err);
	char aside[PATH_MAX];
	store_temporary_path(s, aside);
	if (rename(folder, aside) != 0)
		return file_error(err, folder, "cannot remove");
	file_remove_tree(aside, NULL);
	return removal_cancel(s, path, err);
}

static status move_in(store *s, const char *id, const char *temporary, const char *folder, error *err)
{
	char parent[PATH_MAX];
	TRY(clear_place(s, id, folder, err));
	TRY(commit_rename(s, temporary, folder, err));
	snprintf(parent, sizeof parent, "%s/models", s->folder);
	return file_sync_folder(parent, err);
}

status store_model_add(store *s, const store_model *m, const char *temporary_folder, error *err)
{
	char folder[PATH_MAX];
	store_row row = {0};
	if (!store_valid_name(m->id))
		return error_set(err, STATUS_INVALID, "id",
		                 "a model's id is 1 to 63 of A-Z a-z 0-9 . _ : - and begins with a letter or digit");
	error cause = ERROR_INIT;
	status result = row_find(s, STORE_MODELS, m->id, &row, &cause);
	row_fini(&row);
	if (result == STATUS_OK || result == STATUS_STORAGE)
		return error_set(err, STATUS_CONFLICT, "id", "a model \"%s\" exists already", m->id);
	/* A failure can have ended the transaction that a caller has begun: nothing may be written now. */
	if (result != STATUS_NOT_FOUND)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	store_model_folder(s, m->id, folder);
	result = fill_row(&row, m, temporary_folder, err);
	if (result == STATUS_OK)
		result = store_check_room(s, row.bytes, err);
	if (result == STATUS_OK)
		result = store_begin(s, err);
	if (result == STATUS_OK) {
		result = move_in(s, m->id, temporary_folder, folder, err);
		if (result == STATUS_OK)
			result = row_put(s, STORE_MODELS, &row, err);
		result = store_end(s, result, err);
	}
	row_fini(&row);
	return result;
}

status store_model_get(store *s, const char *id, store_model *out, error *err)
{
	store_row row;
	*out = (store_model){0};
	status result = row_find(s, STORE_MODELS, id, &row, err);
	if (result == STATUS_OK) {
		const char *owner = json_string_value(json_object_get(row.document, "owned_by"));
		const char *architecture = json_string_value(json_object_get(row.document, "architecture"));
		snprintf(out->id, sizeof out->id, "%s", row.id);
		snprintf(out->owned_by, sizeof out->owned_by, "%s", owner ? owner : "");
		store_read_project(row.document, out->project);
		snprintf(out->architecture, sizeof out->architecture, "%s", architecture ? architecture : "");
		out->parameters = json_integer_value(json_object_get(row.document, "parameters"));
		out->created = json_integer_value(json_object_get(row.document, "created"));
	}
	row_fini(&row);
	return result == STATUS_NOT_FOUND ? no_model(err, id) : result;
}

static status delete_model(store *s, const char *id, int64_t number, error *err)
{
	(void)number;
	char path[STORE_ID_BYTES + 8];
	bool found = false;
	if (!store_valid_name(id))
		return no_model(err, id);
	snprintf(path, sizeof path, "models/%s", id);
	TRY(store_begin(s, err));
	status result = row_delete(s, STORE_MODELS, id, &found, err);
	if (result == STATUS_OK && !found)
		result = no_model(err, id);
	if (result == STATUS_OK)
		result = removal_queue(s, path, err);
	return store_end(s, result, err);
}

status store_model_delete(store *s, const char *id, error *err)
{
	return store_with_reserve(s, delete_model, id, 0, err);
}

/* No model has the name of a checkpoint, so one id is one row of the two tables together. */
status store_dtype_get(store *s, const char *id, char out[STORE_DTYPE_BYTES], error *err)
{
	store_row row;
	status result = row_find(s, STORE_MODELS, id, &row, err);
	if (result == STATUS_NOT_FOUND) {
		row_fini(&row);
		result = row_find(s, STORE_CHECKPOINTS, id, &row, err);
	}
	snprintf(out, STORE_DTYPE_BYTES, "%.*s", STORE_DTYPE_BYTES - 1, row.state);
	row_fini(&row);
	return result == STATUS_NOT_FOUND ? no_model(err, id) : result;
}

status store_dtype_put(store *s, const char *id, const char *dtype, error *err)
{
	bool found;
	TRY(row_set_state(s, STORE_MODELS, id, dtype, &found, err));
	if (!found)
		TRY(row_set_state(s, STORE_CHECKPOINTS, id, dtype, &found, err));
	return found ? STATUS_OK : no_model(err, id);
}
