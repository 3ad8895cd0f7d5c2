/* Jobs, their events and their checkpoints. A job's folder holds job.json, the job as of its last change of state, from
 * which a lost ledger is made again; the ledger's row is the truth. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/store/store_private.h"

/* A copy for the worst case: that it could not be written costs nothing as long as the ledger lives. */
void job_write_copy(store *s, const char *id)
{
	char folder[PATH_MAX], path[PATH_MAX + 16];
	error err = ERROR_INIT;
	store_row row;
	store_job_folder(s, id, folder);
	snprintf(path, sizeof path, "%s/job.json", folder);
	status result = row_find(s, STORE_JOBS, id, &row, &err);
	if (result == STATUS_OK)
		result = file_make_folders(folder, &err);
	if (result == STATUS_OK)
		result = manifest_write_document(path, store_kind(STORE_JOBS), id, row.document, &err);
	if (result != STATUS_OK && result != STATUS_NOT_FOUND)
		log_line(LOG_WARN, "the copy of %s is not up to date: %s", id, error_message(&err));
	row_fini(&row);
}

status store_job_put(store *s, const char *id, const char *job_status, const json_t *job, error *err)
{
	store_row row = {.document = (json_t *)(uintptr_t)job};
	if (!store_valid_name(id))
		return error_set(err, STATUS_INVALID, "id", "not a job's id");
	snprintf(row.id, sizeof row.id, "%s", id);
	snprintf(row.state, sizeof row.state, "%s", job_status);
	TRY(store_begin(s, err));
	status result = row_put(s, STORE_JOBS, &row, err);
	if (result == STATUS_OK)
		result = after_add(&s->copies, id, err);
	return store_end(s, result, err);
}

status store_job_get(store *s, const char *id, json_t **out, error *err)
{
	store_row row;
	status result = row_find(s, STORE_JOBS, id, &row, err);
	*out = result == STATUS_OK ? json_incref(row.document) : NULL;
	row_fini(&row);
	if (result == STATUS_NOT_FOUND)
		return error_set(err, STATUS_NOT_FOUND, "id", "there is no job \"%.64s\"", id);
	return result;
}

static status delete_children(store *s, const char *id, error *err)
{
	s->dirty = true;
	return ledger_run(s->db, NULL, err, "DELETE FROM objects WHERE kind IN ('event', 'checkpoint') AND parent=?",
	                  "t", id);
}

static status delete_job(store *s, const char *id, int64_t number, error *err)
{
	(void)number;
	char path[STORE_ID_BYTES + 8];
	bool found = false;
	snprintf(path, sizeof path, "jobs/%s", id);
	TRY(store_begin(s, err));
	status result = row_delete(s, STORE_JOBS, id, &found, err);
	if (result == STATUS_OK && !found)
		result = error_set(err, STATUS_NOT_FOUND, "id", "there is no job \"%.64s\"", id);
	if (result == STATUS_OK)
		result = delete_children(s, id, err);
	if (result == STATUS_OK)
		result = removal_queue(s, path, err);
	return store_end(s, result, err);
}

status store_job_delete(store *s, const char *id, error *err)
{
	return store_with_reserve(s, delete_job, id, 0, err);
}

static status next_number(store *s, const char *job, int64_t *out, error *err)
{
	sqlite3_stmt *row;
	status result;
	TRY(ledger_prepare(s->db, &row, err,
	                   "SELECT coalesce(max(number), 0) + 1 FROM objects WHERE kind='event' AND parent=?", "t",
	                   job));
	*out = ledger_step(s->db, row, &result, err) ? sqlite3_column_int64(row, 0) : 1;
	sqlite3_finalize(row);
	return result;
}

status store_event_add(store *s, const char *job, json_t *event, error *err)
{
	store_row row = {.document = event};
	store_new_id(row.id, "ftevent-");
	snprintf(row.parent, sizeof row.parent, "%s", job);
	if (json_object_set_new(event, "id", json_string(row.id)) != 0)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	TRY(next_number(s, job, &row.number, err));
	return row_put(s, STORE_EVENTS, &row, err);
}

status store_event_delete_first(store *s, const char *job, bool *found, error *err)
{
	TRY(store_begin(s, err));
	s->dirty = true;
	const status result = ledger_run(s->db, NULL, err,
	                                 "DELETE FROM objects WHERE seq=(SELECT min(seq) FROM objects WHERE "
	                                 "kind='event' AND parent=?)",
	                                 "t", job);
	*found = result == STATUS_OK && sqlite3_changes(s->db) > 0;
	return store_end(s, result, err);
}

status store_checkpoint_seal(const char *folder, const json_t *checkpoint, error *err)
{
	const char *id = json_string_value(json_object_get(checkpoint, "id"));
	return id ? manifest_write(folder, store_kind(STORE_CHECKPOINTS), id, checkpoint, err)
	          : error_set(err, STATUS_INVALID, "id", "a checkpoint has no id");
}

/* The manifest of the folder, made now if it has none that says what the row will. */
static status sealed(store_row *row, const char *folder, error *err)
{
	manifest *m;
	status result = manifest_open_folder(&m, folder, err);
	if (result == STATUS_OK && (!m || !json_equal(manifest_about(m), row->document))) {
		manifest_free(m);
		m = NULL;
		result = store_checkpoint_seal(folder, row->document, err);
		if (result == STATUS_OK)
			result = manifest_open_folder(&m, folder, err);
	}
	if (result == STATUS_OK) {
		row->manifest = strdup(manifest_text(m));
		row->bytes = manifest_bytes(m);
	}
	manifest_free(m);
	return result == STATUS_OK && !row->manifest ? STATUS_NOMEM : result;
}

/* A checkpoint that is written again keeps the dtype that was chosen for it. */
static status keep_state(store *s, store_row *row, error *err)
{
	store_row before;
	error cause = ERROR_INIT;
	snprintf(row->state, sizeof row->state, "fp32");
	status result = row_find(s, STORE_CHECKPOINTS, row->id, &before, &cause);
	if (result == STATUS_OK)
		snprintf(row->state, sizeof row->state, "%s", before.state);
	row_fini(&before);
	if (result == STATUS_OK || result == STATUS_NOT_FOUND || result == STATUS_STORAGE)
		return STATUS_OK;
	return error_set(err, result, NULL, "%s", error_message(&cause));
}

static status sync_parents(store *s, const char *job, error *err)
{
	char folder[PATH_MAX], parent[PATH_MAX];
	store_job_folder(s, job, folder);
	TRY(file_sync_folder(folder, err));
	snprintf(parent, sizeof parent, "%s/jobs", s->folder);
	return file_sync_folder(parent, err);
}

status store_checkpoint_add(store *s, const char *job, int64_t step, const json_t *checkpoint, error *err)
{
	char folder[PATH_MAX], path[STORE_ID_BYTES + 48];
	const char *id = json_string_value(json_object_get(checkpoint, "id"));
	store_row row = {.number = step, .document = (json_t *)(uintptr_t)checkpoint};
	if (!id)
		return error_set(err, STATUS_INVALID, "id", "a checkpoint has no id");
	snprintf(row.id, sizeof row.id, "%s", id);
	snprintf(row.parent, sizeof row.parent, "%s", job);
	store_checkpoint_folder(s, job, step, folder);
	status result = sealed(&row, folder, err);
	if (result == STATUS_OK)
		result = sync_parents(s, job, err);
	if (result == STATUS_OK)
		result = keep_state(s, &row, err);
	snprintf(path, sizeof path, "jobs/%s/step-%lld", job, (long long)step);
	if (result == STATUS_OK)
		result = removal_cancel(s, path, err);
	if (result == STATUS_OK)
		result = row_put(s, STORE_CHECKPOINTS, &row, err);
	free(row.manifest);
	return result;
}

static status delete_checkpoint(store *s, const char *job, int64_t step, error *err)
{
	char path[STORE_ID_BYTES + 48];
	int changes = 0;
	snprintf(path, sizeof path, "jobs/%s/step-%lld", job, (long long)step);
	TRY(store_begin(s, err));
	status result =
	    ledger_run(s->db, &changes, err, "DELETE FROM objects WHERE kind='checkpoint' AND parent=? AND number=?",
	               "ti", job, step);
	if (result == STATUS_OK && !changes)
		result =
		    error_set(err, STATUS_NOT_FOUND, "step", "the job has no checkpoint at step %lld", (long long)step);
	if (result == STATUS_OK)
		result = removal_queue(s, path, err);
	return store_end(s, result, err);
}

status store_checkpoint_delete(store *s, const char *job, int64_t step, error *err)
{
	return store_with_reserve(s, delete_checkpoint, job, step, err);
}
