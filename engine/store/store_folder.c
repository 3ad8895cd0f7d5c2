/* Objects with a folder of their own: models and adapters. A folder is filled elsewhere (DATA/tmp), then moved in
 * whole. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

static status no_object(error *err, store_table table, const char *id)
{
	return error_set(err, STATUS_NOT_FOUND, store_kind(table), "there is no %s \"%.64s\"", store_kind(table), id);
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

status folder_seal(store_table table, const json_t *document, const char *folder, error *err)
{
	const char *id = json_string_value(json_object_get(document, "id"));
	TRY(sync_tree(folder, err));
	return manifest_write(folder, store_kind(table), id ? id : "", document, err);
}

/* The manifest of a folder that says the same as the row will; sealed now if it does not. */
static status sealed(store_table table, const json_t *document, const char *folder, manifest **out, error *err)
{
	TRY(manifest_open_folder(out, folder, err));
	if (*out && json_equal(manifest_about(*out), document))
		return STATUS_OK;
	manifest_free(*out);
	*out = NULL;
	TRY(folder_seal(table, document, folder, err));
	return manifest_open_folder(out, folder, err);
}

static status fill_row(store_row *row, store_table table, const char *folder, error *err)
{
	manifest *seal;
	TRY(sealed(table, row->document, folder, &seal, err));
	row->manifest = strdup(manifest_text(seal));
	row->bytes = manifest_bytes(seal);
	manifest_free(seal);
	return row->manifest ? STATUS_OK : STATUS_NOMEM;
}

/* Clear the object's place if it has no row: it holds the rest of a deleted object, or a stray. */
static status clear_place(store *s, store_table table, const char *id, const char *folder, error *err)
{
	char path[STORE_ID_BYTES + 16];
	bool pending;
	snprintf(path, sizeof path, "%s/%s", folder_of_table(table), id);
	if (access(folder, F_OK) != 0)
		return removal_cancel(s, path, err); /* unlinked already, but listed until the next sweep */
	TRY(removal_pending(s, path, &pending, err));
	if (!pending)
		return lost_keep(s, table, folder, id, err);
	char aside[PATH_MAX];
	store_temporary_path(s, aside);
	if (rename(folder, aside) != 0)
		return file_error(err, folder, "cannot remove");
	file_remove_tree(aside, NULL);
	return removal_cancel(s, path, err);
}

static status move_in(store *s, store_table table, const char *id, const char *temporary, error *err)
{
	char folder[PATH_MAX], parent[PATH_MAX];
	folder_path(s, table, id, folder);
	TRY(clear_place(s, table, id, folder, err));
	TRY(commit_rename(s, temporary, folder, err));
	snprintf(parent, sizeof parent, "%s/%s", s->folder, folder_of_table(table));
	return file_sync_folder(parent, err);
}

status folder_add(store *s, store_table table, const char *id, const char *state, const json_t *document,
                  const char *temporary, error *err)
{
	store_row row = {0};
	const char *kind = store_kind(table);
	if (!store_valid_name(id))
		return error_set(err, STATUS_INVALID, "id",
		                 "%s %s's id is 1 to 63 of A-Z a-z 0-9 . _ : - and begins with a letter or digit",
		                 strchr("aeiou", kind[0]) ? "an" : "a", kind);
	error cause = ERROR_INIT;
	status result = row_find(s, table, id, &row, &cause);
	row_fini(&row);
	if (result == STATUS_OK || result == STATUS_STORAGE)
		return error_set(err, STATUS_CONFLICT, "id", "%s %s \"%s\" exists already",
		                 strchr("aeiou", kind[0]) ? "an" : "a", kind, id);
	/* A failure can have ended the transaction that a caller has begun: nothing may be written now. */
	if (result != STATUS_NOT_FOUND)
		return error_set(err, result, NULL, "%s", error_message(&cause));
	snprintf(row.id, sizeof row.id, "%s", id);
	snprintf(row.state, sizeof row.state, "%s", state);
	row.document = json_incref((json_t *)(uintptr_t)document);
	result = fill_row(&row, table, temporary, err);
	if (result == STATUS_OK)
		result = store_check_room(s, row.bytes, err);
	if (result == STATUS_OK)
		result = store_begin(s, err);
	if (result == STATUS_OK) {
		result = move_in(s, table, id, temporary, err);
		if (result == STATUS_OK)
			result = row_put(s, table, &row, err);
		result = store_end(s, result, err);
	}
	row_fini(&row);
	return result;
}

status folder_find(store *s, store_table table, const char *id, store_row *out, error *err)
{
	const status result = row_find(s, table, id, out, err);
	return result == STATUS_NOT_FOUND ? no_object(err, table, id) : result;
}

static status delete_object(store *s, store_table table, const char *id, error *err)
{
	char path[STORE_ID_BYTES + 16];
	bool found = false;
	if (!store_valid_name(id))
		return no_object(err, table, id);
	snprintf(path, sizeof path, "%s/%s", folder_of_table(table), id);
	TRY(store_begin(s, err));
	status result = row_delete(s, table, id, &found, err);
	if (result == STATUS_OK && !found)
		result = no_object(err, table, id);
	if (result == STATUS_OK)
		result = removal_queue(s, path, err);
	return store_end(s, result, err);
}

/* number: the table. */
static status delete_numbered(store *s, const char *id, int64_t number, error *err)
{
	return delete_object(s, (store_table)number, id, err);
}

status folder_delete(store *s, store_table table, const char *id, error *err)
{
	return store_with_reserve(s, delete_numbered, id, table, err);
}
