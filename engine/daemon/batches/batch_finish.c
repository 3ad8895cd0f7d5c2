/* The end of a run. Results are deleted from the ledger one event at a time: SQLite overwrites what it deletes, so a
 * large file would block the loop. The pool's turn in between lets the loop serve others. */
#include "engine/base/clock.h"
#include "engine/daemon/batches/batch_run_private.h"
#include "engine/daemon/queue/job_trace.h"

static void collect(batch_run *r);

/* Return the document that names the files. */
static json_t *joined_document(const batch_run *r, const json_t *document)
{
	static const char *const members[BATCH_FILES] = {"output_file_id", "error_file_id"};
	json_t *files = json_pack("{s:I}", "joined_at", (json_int_t)clock_unix());
	bool whole = files;
	for (int i = 0; whole && i < BATCH_FILES; i++)
		if (r->output.files[i].id[0])
			whole = json_object_set_new(files, members[i], json_string(r->output.files[i].id)) == 0;
	if (whole)
		return batch_document_with(document, files);
	json_decref(files);
	return NULL;
}

/* Commit the files and the row that names them. */
static status keep_files(batch_run *r, queued_job *j, error *err)
{
	store *s = r->base.queue->parts->store;
	json_t *next = joined_document(r, j->document);
	if (!next)
		return STATUS_NOMEM;
	status result = store_begin(s, err);
	if (result == STATUS_OK) {
		result = batch_output_commit(&r->output, err);
		if (result == STATUS_OK)
			result = job_queue_put(r->base.queue, next, err);
		result = store_end(s, result, err);
	}
	json_decref(result == STATUS_OK ? j->document : next);
	if (result == STATUS_OK)
		j->document = next;
	return result;
}

static status finish(const batch_run *r, queued_job *j, error *err)
{
	const char *state = batch_document_has(j->document, "cancelling_at") ? "cancelled"
	                    : r->progress.expired                            ? "expired"
	                                                                     : "succeeded";
	return job_queue_change(r->base.queue, j, batch_document_ended(j->document, state), err);
}

static void pool_nothing(uv_work_t *work)
{
	((batch_run *)work->data)->result = STATUS_OK;
}

static void discarded(uv_work_t *work, int cancelled);

void batch_run_discard(batch_run *r)
{
	error err = ERROR_INIT;
	bool found;
	status s = store_event_delete_first(r->base.queue->parts->store, r->base.id, &found, &err);
	if (s == STATUS_OK && found) {
		batch_run_on_pool(r, pool_nothing, discarded);
		return;
	}
	if (s == STATUS_OK)
		s = finish(r, batch_run_job(r), &err);
	batch_run_end(r, s, &err);
}

static void discarded(uv_work_t *work, int cancelled)
{
	batch_run *r = work->data;
	(void)cancelled; /* cannot be cancelled */
	if (batch_run_returned(r))
		batch_run_discard(r);
}

static void batch_run_pool_write(uv_work_t *work)
{
	batch_run *r = work->data;
	r->result = r->more ? batch_output_write(&r->output, &r->error) : batch_output_seal(&r->output, &r->error);
}

static void batch_run_written(uv_work_t *work, int cancelled)
{
	batch_run *r = work->data;
	error err = ERROR_INIT;
	(void)cancelled; /* cannot be cancelled */
	if (!batch_run_returned(r))
		return;
	if (r->more) {
		collect(r);
		return;
	}
	const status s = keep_files(r, batch_run_job(r), &err);
	if (s == STATUS_OK)
		batch_run_discard(r);
	else
		batch_run_end(r, s, &err);
}

static void collect(batch_run *r)
{
	error err = ERROR_INIT;
	const status s = batch_output_next(&r->output, &r->more, &err);
	if (s == STATUS_OK)
		batch_run_on_pool(r, batch_run_pool_write, batch_run_written);
	else
		batch_run_end(r, s, &err);
}

void batch_run_finalize(batch_run *r, queued_job *j)
{
	error err = ERROR_INIT;
	status s = STATUS_OK;
	job_trace_phase(j->document, "finalizing");
	if (r->ending != BATCH_CANCELS && !batch_document_has(j->document, "finalizing_at"))
		s = job_queue_change(
		    r->base.queue, j,
		    batch_document_with(j->document, json_pack("{s:I}", "finalizing_at", (json_int_t)clock_unix())),
		    &err);
	if (s != STATUS_OK) {
		batch_run_end(r, s, &err);
		return;
	}
	batch_output_begin(&r->output, r->base.queue->parts->store, r->base.id, project_of(j->document));
	collect(r);
}
