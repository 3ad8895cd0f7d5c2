/* Jobs, their events and their checkpoints. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/store/store_private.h"

status store_job_put(store *s, const char *id, const char *job_status, const json_t *job, error *err)
{
	char *text = store_text(job);
	if (!text)
		return STATUS_NOMEM;
	status result = ledger_run(s->db, NULL, err,
	                           "INSERT INTO jobs(id, status, document) VALUES(?,?,?) "
	                           "ON CONFLICT(id) DO UPDATE SET status=excluded.status, document=excluded.document",
	                           "ttt", id, job_status, text);
	free(text);
	return result;
}

status store_job_get(store *s, const char *id, json_t **out, error *err)
{
	sqlite3_stmt *row;
	*out = NULL;
	TRY(ledger_prepare(s->db, &row, err, "SELECT document FROM jobs WHERE id=?", "t", id));
	status result;
	if (ledger_step(s->db, row, &result, err)) {
		*out = ledger_document(row, 0);
		result = *out ? STATUS_OK : STATUS_NOMEM;
	} else if (result == STATUS_OK) {
		result = error_set(err, STATUS_NOT_FOUND, "id", "there is no job \"%.64s\"", id);
	}
	sqlite3_finalize(row);
	return result;
}

status store_job_delete(store *s, const char *id, error *err)
{
	char folder[PATH_MAX];
	int changes = 0;
	status result = store_begin(s, err);
	if (result == STATUS_OK)
		result = ledger_run(s->db, NULL, err, "DELETE FROM events WHERE job=?", "t", id);
	if (result == STATUS_OK)
		result = ledger_run(s->db, NULL, err, "DELETE FROM checkpoints WHERE job=?", "t", id);
	if (result == STATUS_OK)
		result = ledger_run(s->db, &changes, err, "DELETE FROM jobs WHERE id=?", "t", id);
	if (result == STATUS_OK && !changes)
		result = error_set(err, STATUS_NOT_FOUND, "id", "there is no job \"%.64s\"", id);
	if (result != STATUS_OK) {
		store_rollback(s);
		return result;
	}
	TRY(store_commit(s, err));
	store_job_folder(s, id, folder);
	file_remove_tree(folder, NULL);
	return STATUS_OK;
}

status store_event_add(store *s, const char *job, json_t *event, error *err)
{
	char id[STORE_ID_BYTES];
	store_new_id(id, "ftevent-");
	if (json_object_set_new(event, "id", json_string(id)) != 0)
		return STATUS_NOMEM;
	char *text = store_text(event);
	if (!text)
		return STATUS_NOMEM;
	status result = ledger_run(s->db, NULL, err,
	                           "INSERT INTO events(job, number, id, document) "
	                           "SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3 FROM events WHERE job=?1",
	                           "ttt", job, id, text);
	free(text);
	return result;
}

status store_checkpoint_add(store *s, const char *job, int64_t step, const json_t *checkpoint, error *err)
{
	char folder[PATH_MAX], parent[PATH_MAX];
	const char *id = json_string_value(json_object_get(checkpoint, "id"));
	if (!id)
		return error_set(err, STATUS_INVALID, "id", "a checkpoint has no id");
	store_job_folder(s, job, folder);
	TRY(file_sync_folder(folder, err));
	snprintf(parent, sizeof parent, "%s/jobs", s->folder);
	TRY(file_sync_folder(parent, err));
	char *text = store_text(checkpoint);
	if (!text)
		return STATUS_NOMEM;
	status result = ledger_run(s->db, NULL, err,
	                           "INSERT INTO checkpoints(job, step, id, document) VALUES(?,?,?,?) "
	                           "ON CONFLICT(job, step) DO UPDATE SET id=excluded.id, document=excluded.document",
	                           "titt", job, step, id, text);
	free(text);
	return result;
}

status store_checkpoint_delete(store *s, const char *job, int64_t step, error *err)
{
	char folder[PATH_MAX];
	int changes;
	TRY(ledger_run(s->db, &changes, err, "DELETE FROM checkpoints WHERE job=? AND step=?", "ti", job, step));
	if (!changes)
		return error_set(err, STATUS_NOT_FOUND, "step", "the job has no checkpoint at step %lld",
		                 (long long)step);
	store_checkpoint_folder(s, job, step, folder);
	file_remove_tree(folder, NULL); /* a failure leaves garbage that the next start removes */
	return STATUS_OK;
}
