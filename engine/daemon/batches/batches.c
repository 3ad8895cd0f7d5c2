/* batches.c - batches of requests over a file, as a kind of jobs: OpenAI's /v1/batches.
 *
 * The lines are requests that the engine sends to itself (net/local_request.h), because the result is a file and must
 * survive any stop; a front end keeps no state. Both processes give generated text its form with
 * proto/generation_answer.h. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/daemon/batches/batch_document.h"
#include "engine/daemon/batches/batch_input.h"
#include "engine/daemon/batches/batch_run.h"
#include "engine/daemon/queue/job_draft.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/requests/owned_file.h"

/* --- the request ---------------------------------------------------------------------------------------- */

static status check_batch(job_draft *d, error *err)
{
	json_t *params = d->stream->params, *input = json_object_get(params, "input_file_id");
	store_file file;
	if (batch_window_seconds(json_string_value(json_object_get(params, "completion_window"))) == 0)
		return error_set(err, STATUS_INVALID, "completion_window",
		                 "must be a number and a unit (s, m, h or d), at most 30 days, such as \"24h\"");
	if (!batch_endpoint_find(json_string_value(json_object_get(params, "endpoint"))))
		return error_set(err, STATUS_INVALID, "endpoint", "is not available in batches");
	if (json_object_set(params, "file", input) != 0 || /* its name in all jobs */
	    json_object_set_new(params, "key", json_string(d->stream->access_id)) != 0)
		return STATUS_NOMEM;
	TRY(owned_file_use(d->stream, json_string_value(input), "input_file_id", &file, err));
	if (strcmp(file.purpose, "batch") != 0)
		return error_set(err, STATUS_INVALID, "input_file_id", "must be a file with the purpose \"batch\"");
	return store_check_room(d->queue->parts->store, 1, err);
}

static json_t *draft_document(job_draft *d, const char *id)
{
	return batch_document_new(d->queue, id, d->stream->params);
}

/* --- cancellation ------------------------------------------------------------------------------------------ */

/* A batch with results ends when they are in its files. */
static status cancel(job_queue *q, queued_job *j, json_t **answer, error *err)
{
	const bool runs = job_queue_runs(q, j->id);
	if (!runs && batch_document_progress(j->document).done == 0)
		return job_queue_cancel(q, j, answer, err);
	if (!batch_document_has(j->document, "cancelling_at"))
		TRY(job_queue_change(
		    q, j,
		    batch_document_with(j->document, json_pack("{s:I}", "cancelling_at", (json_int_t)clock_unix())),
		    err));
	*answer = batch_document_public(j->document);
	j->retry_ns = 0;
	if (runs)
		batch_run_cancel(q->run);
	else
		job_queue_run_next(q);
	return *answer ? STATUS_OK : error_settle(err, STATUS_NOMEM);
}

static void cancel_batch(stream *s, job_queue *q)
{
	error err = ERROR_INIT;
	json_t *answer = NULL;
	queued_job *j = job_queue_find(q, s->target);
	if (!j)
		job_machine_refuse_state(s, q, "cancelled");
	else if (cancel(q, j, &answer, &err) == STATUS_OK)
		stream_result(s, answer);
	else
		stream_error(s, &err, NULL);
}

/* --- expiry ------------------------------------------------------------------------------------------------ */

/* A batch that has begun expires in its run, which writes its files. */
static json_t *overdue(const queued_job *j)
{
	if (clock_unix() < json_integer_value(json_object_get(j->document, "expires_at")) ||
	    batch_document_has(j->document, "in_progress_at"))
		return NULL;
	json_t *next = batch_document_with(
	    j->document, json_pack("{s:[{s:s, s:s, s:n, s:n}]}", "problems", "code", "batch_expired", "message",
	                           "the completion window passed before the batch began; no request ran", "param",
	                           "line"));
	json_t *ended = next ? batch_document_ended(next, "expired") : NULL;
	json_decref(next);
	return ended;
}

/* --- the kind ------------------------------------------------------------------------------------------------- */

static json_t *shown(const job_queue *q, const json_t *document)
{
	(void)q;
	return batch_document_public(document);
}

static void tick(job_queue *q)
{
	if (q->run)
		batch_run_tick(q->run);
	job_queue_run_next(q);
}

static const job_method methods[] = {{"batch.cancel", cancel_batch, false}, {0}};
static const job_draft_steps draft_steps = {.bytes = sizeof(job_draft), .check = check_batch, .document = draft_document};

const job_kind batch_jobs = {
    .name = "batch",
    .object = "batch",
    .noun = "batch",
    .prefix = "batch_",
    .first_phase = "validating",
    .use = "a batch that has not ended uses it",
    .max_active = 100,
    .max_drafts = 8,
    .job_bytes = sizeof(queued_job),
    .without_model = true,
    .overdue = overdue,
    .settles_poison = true,
    .methods = methods,
    .draft = &draft_steps,
    .run = &batch_run_steps,
    .tick = tick,
    .shown = shown,
};
