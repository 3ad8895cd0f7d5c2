#include "engine/daemon/queue/job_draft.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/base/reserve.h"
#include "engine/daemon/queue/job_trace.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/owned_file.h"

static const job_draft_steps *steps_of(const job_draft *d)
{
	return d->queue->kind->draft;
}

void job_draft_free(job_draft *d)
{
	if (steps_of(d)->fini)
		steps_of(d)->fini(d);
	catalog_release(d->model);
	d->queue->drafts--;
	free(d);
}

void job_draft_refuse(job_draft *d, status result, error *err)
{
	error_settle(err, result);
	stream_error(d->stream, err, NULL);
	job_draft_free(d);
}

static const char *file_id(const job_draft *d)
{
	return json_string_value(json_object_get(d->stream->params, "file"));
}

status job_draft_find_file(const job_draft *d, char *path, error *err)
{
	store *s = d->queue->parts->store;
	store_file file;
	TRY(owned_file_use(d->stream, file_id(d), "file", &file, err));
	TRY(store_check_room(s, 1, err));
	if (path)
		store_blob_path(s, file.id, path);
	return STATUS_OK;
}

/* --- the job --------------------------------------------------------------------------------------------- */

static status write_job(const job_draft *d, const char *id, const json_t *document, error *err)
{
	const job_queue *q = d->queue;
	store *s = q->parts->store;
	store_file file; /* may have been deleted meanwhile */
	TRY(store_file_get(s, file_id(d), &file, err));
	TRY(job_queue_put(q, document, err));
	if (!q->kind->event)
		return STATUS_OK;
	json_t *event = q->kind->event("queued", NULL);
	const status result = event ? store_event_add(s, id, event, err) : STATUS_NOMEM;
	json_decref(event);
	return result;
}

static status add_job(job_draft *d, char id[STORE_ID_BYTES], json_t **document, json_t **answer, error *err)
{
	TRY(job_queue_check_quota(d->queue, d->stream, d->stream->scope.project, err));
	store_new_id(id, d->queue->kind->prefix);
	*document = steps_of(d)->document(d, id);
	job_trace_begin(*document, d->stream);
	*answer = project_mark(&d->stream->scope, *document) ? job_queue_public(d->queue, *document) : NULL;
	TRY(idempotency_begin(d->stream, err));
	return idempotency_commit(d->stream, *answer ? write_job(d, id, *document, err) : STATUS_NOMEM, *answer, err);
}

static void create_job(job_draft *d)
{
	char id[STORE_ID_BYTES];
	json_t *document = NULL, *answer = NULL;
	error err = ERROR_INIT;
	job_queue *q = d->queue;
	const status s = add_job(d, id, &document, &answer, &err);
	/* Without memory for the job it starts at the next restart. */
	queued_job *j = s == STATUS_OK ? job_queue_make(q, id, document) : NULL;
	if (j)
		job_queue_append(q, j);
	if (j && steps_of(d)->hand_over)
		steps_of(d)->hand_over(d, j);
	json_decref(document);
	if (s != STATUS_OK) {
		json_decref(answer);
		job_draft_refuse(d, s, &err);
		return;
	}
	stream_result(d->stream, answer);
	job_draft_free(d);
	job_queue_run_next(q);
}

/* --- the request ----------------------------------------------------------------------------------------- */

static void pool_read(uv_work_t *work)
{
	job_draft *d = work->data;
	reserve_forget();
	d->result = steps_of(d)->read(d, &d->error);
}

static void read_done(uv_work_t *work, int cancelled)
{
	job_draft *d = work->data;
	(void)cancelled; /* cannot be cancelled */
	d->stream->watch = NULL;
	if (d->result == STATUS_OK && d->stream->cancelled)
		d->result = STATUS_CANCELLED;
	if (d->result != STATUS_OK)
		job_draft_refuse(d, d->result, &d->error);
	else if (!steps_of(d)->answer || !steps_of(d)->answer(d))
		create_job(d);
}

static void on_cancel(stream *s)
{
	job_draft *d = s->context;
	steps_of(d)->cancel(d);
}

static status start(job_draft *d, error *err)
{
	static const stream_watch watch = {.cancel = on_cancel};
	TRY(steps_of(d)->check(d, err));
	if (!steps_of(d)->read) {
		create_job(d);
		return STATUS_OK;
	}
	d->work.data = d;
	if (uv_queue_work(d->queue->parts->loop, &d->work, pool_read, read_done) != 0)
		return STATUS_NOMEM;
	d->stream->context = d;
	if (steps_of(d)->cancel)
		d->stream->watch = &watch;
	return STATUS_OK;
}

bool job_draft_admit(stream *s, const job_queue *q)
{
	const job_kind *kind = q->kind;
	if (q->active < kind->max_active && q->drafts < kind->max_drafts)
		return true;
	stream_refuse(s, STATUS_BUSY, NULL, NULL, "too many %ss are waiting", kind->noun);
	return false;
}

void job_draft_begin(stream *s, job_queue *q)
{
	error err = ERROR_INIT;
	if (!job_draft_admit(s, q))
		return;
	job_draft *d = memory_new(1, q->kind->draft->bytes);
	if (!d) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	d->stream = s;
	d->queue = q;
	q->drafts++;
	const status result = start(d, &err);
	if (result != STATUS_OK)
		job_draft_refuse(d, result, &err);
}
