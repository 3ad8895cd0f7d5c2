/* After opening, folders and rows are compared. Findings and actions:
 *
 *   a temporary name                                    unlinked
 *   a path in `removals`                                unlinked, since its row was deleted; kept during a backup
 *   a checkpoint without a row, of a job with one       adopted if intact: it was finished
 *   a session's newer version, the row's own damaged    adopted if intact: the ledger is older than the state
 *   any other blob without a row                        set aside in lost/, with a warning
 *   a manifest that differs from the ledger's copy      written again, if the files match the copy
 *   a row whose blob is missing or of another size      recorded as damaged; an error when it is used
 *
 * Contents are verified when they are read, not here. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store_private.h"

/* --- names without rows -------------------------------------------------------------------- */

typedef status (*name_each)(store *s, const char *parent, const char *name, error *err);

/* A path that is removed at the end of a backup. */
static bool is_pending(store *s, const char *folder, const char *name)
{
	char path[PATH_MAX];
	bool pending = false;
	if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path)
		removal_pending(s, path, &pending, NULL);
	return pending;
}

/* Call `each` for every entry of DATA/folder that is not to be removed. A missing folder is an empty one. */
static status walk_folder(store *s, const char *folder, const char *parent, name_each each, error *err)
{
	char path[PATH_MAX];
	struct dirent **names;
	snprintf(path, sizeof path, "%s/%s", s->folder, folder);
	int n = scandir(path, &names, NULL, alphasort); /* the folder changes while its names are handled */
	if (n < 0)
		return errno == ENOENT ? STATUS_OK : file_error(err, path, "cannot open folder");
	status result = STATUS_OK;
	for (int i = 0; i < n; i++) {
		const char *name = names[i]->d_name;
		if (result == STATUS_OK && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
		    !is_pending(s, folder, name))
			result = each(s, parent, name, err);
		free(names[i]);
	}
	free(names);
	return result;
}

static status remove_name(store *s, const char *folder, const char *name, error *err)
{
	char path[PATH_MAX];
	if ((size_t)snprintf(path, sizeof path, "%s/%s/%s", s->folder, folder, name) >= sizeof path)
		return STATUS_OK;
	return file_remove_tree(path, err);
}

static bool is_temporary(const char *name)
{
	const char *mark = strstr(name, FILE_TEMPORARY);
	return mark && strlen(mark) == strlen(FILE_TEMPORARY) + 6;
}

/* *found: a row with the id exists. A damaged one counts. */
static status has_row(store *s, store_table table, const char *id, bool *found, error *err)
{
	*found = false;
	store_row row;
	error ignored = ERROR_INIT;
	status result = row_find(s, table, id, &row, &ignored);
	row_fini(&row);
	*found = result == STATUS_OK || result == STATUS_STORAGE;
	if (*found || result == STATUS_NOT_FOUND)
		return STATUS_OK;
	return error_set(err, result, NULL, "%s", error_message(&ignored));
}

/* A name below DATA/folder that no row names. */
static status set_aside(store *s, store_table table, const char *folder, const char *name, const char *kept, error *err)
{
	char path[PATH_MAX];
	if (is_temporary(name))
		return remove_name(s, folder, name, err);
	if ((size_t)snprintf(path, sizeof path, "%s/%s/%s", s->folder, folder, name) >= sizeof path)
		return STATUS_OK;
	return lost_keep(s, table, path, kept, err);
}

static status arrange_temporary(store *s, const char *parent, const char *name, error *err)
{
	return remove_name(s, parent, name, err);
}

static status arrange_blob(store *s, const char *parent, const char *name, error *err)
{
	bool known;
	char id[256];
	size_t length = strlen(name), suffix = strlen(MANIFEST_SUFFIX);
	bool is_manifest = length > suffix && strcmp(name + length - suffix, MANIFEST_SUFFIX) == 0;
	snprintf(id, sizeof id, "%.*s", (int)(is_manifest ? length - suffix : length), name);
	TRY(has_row(s, STORE_FILES, id, &known, err));
	if (known)
		return STATUS_OK;
	char path[PATH_MAX];
	struct stat st;
	snprintf(path, sizeof path, "%s/blobs/%s", s->folder, name);
	if (lstat(path, &st) != 0) /* a manifest that went with its file */
		return STATUS_OK;
	return set_aside(s, STORE_FILES, parent, name, name, err);
}

static status arrange_folder(store *s, store_table table, const char *name, error *err)
{
	bool known;
	TRY(has_row(s, table, name, &known, err));
	return known ? STATUS_OK : set_aside(s, table, folder_of_table(table), name, name, err);
}

static status arrange_model(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	return arrange_folder(s, STORE_MODELS, name, err);
}

static status arrange_adapter(store *s, const char *parent, const char *name, error *err)
{
	(void)parent;
	return arrange_folder(s, STORE_ADAPTERS, name, err);
}

/* A state whose row names another version. */
static status arrange_version(store *s, const char *name, const store_row *row, int64_t version, error *err)
{
	char path[PATH_MAX];
	json_t *document;
	int64_t current;
	error ignored = ERROR_INIT;
	TRY(store_session_path(s, row->id, path, err));
	status now = session_file_document(path, &document, &current, &ignored);
	json_decref(document);
	if (now != STATUS_STORAGE || version < row->number)
		return set_aside(s, STORE_SESSIONS, "sessions", name, name, err);
	ignored = (error)ERROR_INIT;
	if (adopt_session(s, name, &ignored) != STATUS_OK)
		return set_aside(s, STORE_SESSIONS, "sessions", name, name, err);
	log_line(LOG_WARN, "session %s continues from %s: the state that the ledger names is missing", row->id, name);
	return STATUS_OK;
}

static status arrange_session(store *s, const char *parent, const char *name, error *err)
{
	char id[STORE_ID_BYTES];
	int64_t version;
	store_row row;
	if (!session_file_name(name, id, &version))
		return set_aside(s, STORE_SESSIONS, parent, name, name, err);
	status result = row_find(s, STORE_SESSIONS, id, &row, NULL);
	if (result == STATUS_NOT_FOUND)
		result = set_aside(s, STORE_SESSIONS, parent, name, name, err);
	else if (result == STATUS_OK && !session_row_has(&row, version))
		result = arrange_version(s, name, &row, version, err);
	else if (result == STATUS_STORAGE)
		result = STATUS_OK; /* the row is damaged: the state waits for it */
	row_fini(&row);
	return result;
}

static status arrange_checkpoint(store *s, const char *job, const char *name, error *err)
{
	char folder[2 * STORE_ID_BYTES], kept[2 * STORE_ID_BYTES + 256];
	int64_t step = checkpoint_name_step(name);
	bool known;
	if (strcmp(name, "job.json") == 0)
		return STATUS_OK;
	snprintf(folder, sizeof folder, "jobs/%s", job);
	snprintf(kept, sizeof kept, "%s.%s", job, name);
	if (step < 0)
		return set_aside(s, STORE_CHECKPOINTS, folder, name, kept, err);
	TRY(row_has_number(s, STORE_CHECKPOINTS, job, step, &known, err));
	if (known)
		return STATUS_OK;
	error ignored = ERROR_INIT;
	if (adopt_checkpoint(s, job, name, &ignored) != STATUS_OK)
		return set_aside(s, STORE_CHECKPOINTS, folder, name, kept, err);
	log_line(LOG_INFO, "checkpoint %s of %s, which was finished, is kept", name, job);
	return STATUS_OK;
}

static status arrange_job(store *s, const char *parent, const char *name, error *err)
{
	bool known;
	char folder[2 * STORE_ID_BYTES];
	TRY(has_row(s, STORE_JOBS, name, &known, err));
	if (!known)
		return set_aside(s, STORE_JOBS, parent, name, name, err);
	snprintf(folder, sizeof folder, "jobs/%.63s", name);
	return walk_folder(s, folder, name, arrange_checkpoint, err);
}

/* --- rows and their blobs ---------------------------------------------------------------------- */

/* The manifest on the disk is missing, damaged or another's. The ledger's copy decides what the files should be. */
static status heal_manifest(store *s, store_table table, const store_row *row, const manifest *copy, error *err)
{
	char path[PATH_MAX], base[PATH_MAX];
	store_manifest_base(s, table, row, base);
	store_manifest_path(s, table, row, path);
	TRY(manifest_check(copy, base, err));
	log_line(LOG_WARN, "the manifest of %s \"%s\" was missing or damaged: it is written again", store_kind(table),
	         row->id);
	return file_write(path, &(file_part){row->manifest, strlen(row->manifest)}, 1, err);
}

status row_check_blob(store *s, store_table table, const store_row *row, bool contents, error *err)
{
	char base[PATH_MAX];
	manifest *copy;
	if (!row->manifest)
		return STATUS_OK;
	store_manifest_base(s, table, row, base);
	TRY(manifest_parse(&copy, row->manifest, strlen(row->manifest), "the ledger's copy of a manifest", err));
	status result = contents ? manifest_check(copy, base, err) : manifest_check_sizes(copy, base, err);
	if (result == STATUS_OK && !verify_manifest(s, table, row))
		result = heal_manifest(s, table, row, copy, err);
	manifest_free(copy);
	return result;
}

typedef struct visit {
	store *store;
	store_table table;
} visit;

static status check_row(void *context, const store_row *row, error *err)
{
	visit *v = context;
	error cause = ERROR_INIT;
	status result = row_check_blob(v->store, v->table, row, false, &cause);
	if (result == STATUS_STORAGE)
		store_note_damage(v->store, v->table, row->id, error_message(&cause));
	else if (result != STATUS_OK)
		log_line(LOG_WARN, "%s \"%s\": %s", store_kind(v->table), row->id, error_message(&cause));
	(void)err;
	return STATUS_OK;
}

/* Check the file of version i of a session's row. */
static void check_version(store *s, const store_row *row, size_t i)
{
	char path[PATH_MAX];
	struct stat st;
	const json_t *snapshot = i ? json_array_get(json_object_get(row->document, "snapshots"), i - 1) : NULL;
	const int64_t bytes = snapshot ? json_integer_value(json_object_get(snapshot, "bytes"))
	                               : row->bytes - session_row_snapshot_bytes(row);
	snprintf(path, sizeof path, "%s/sessions/%s.%lld", s->folder, row->id, (long long)session_row_version(row, i));
	if (stat(path, &st) != 0)
		store_note_damage(s, STORE_SESSIONS, row->id,
		                  i ? "the state of a snapshot is missing" : "its state is missing");
	else if (st.st_size != bytes)
		store_note_damage(s, STORE_SESSIONS, row->id,
		                  i ? "the state of a snapshot has another length than was written"
		                    : "its state has another length than was written");
}

static status check_session(void *context, const store_row *row, error *err)
{
	(void)err;
	for (size_t i = 0; session_row_version(row, i) > 0; i++)
		check_version(((const visit *)context)->store, row, i);
	return STATUS_OK;
}

/* The copy is missing after a crash between the commit and the copy. */
static status check_job(void *context, const store_row *row, error *err)
{
	store *s = context;
	char path[PATH_MAX + 16];
	manifest *copy;
	(void)err;
	store_job_folder(s, row->id, path);
	strcat(path, "/job.json");
	if (manifest_open(&copy, path, NULL) != STATUS_OK)
		job_write_copy(s, row->id);
	manifest_free(copy);
	return STATUS_OK;
}

static status check_rows(store *s, store_table table, row_each check, error *err)
{
	visit v = {s, table};
	return row_walk(s, table, NULL, check, &v, err);
}

status store_arrange(store *s, error *err)
{
	TRY(walk_folder(s, "tmp", "tmp", arrange_temporary, err));
	TRY(removal_sweep(s, err));
	TRY(walk_folder(s, "jobs", "jobs", arrange_job, err));
	TRY(walk_folder(s, "sessions", "sessions", arrange_session, err));
	TRY(walk_folder(s, "blobs", "blobs", arrange_blob, err));
	TRY(walk_folder(s, "models", "models", arrange_model, err));
	TRY(walk_folder(s, "adapters", "adapters", arrange_adapter, err));
	TRY(check_rows(s, STORE_FILES, check_row, err));
	TRY(check_rows(s, STORE_MODELS, check_row, err));
	TRY(check_rows(s, STORE_ADAPTERS, check_row, err));
	TRY(check_rows(s, STORE_CHECKPOINTS, check_row, err));
	TRY(row_walk(s, STORE_JOBS, NULL, check_job, s, err));
	return check_rows(s, STORE_SESSIONS, check_session, err);
}
