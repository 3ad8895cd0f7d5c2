/* The methods that clients call. job_state.c changes states, job_runner.c runs jobs, job_removal.c deletes. */
#include "engine/daemon/jobs/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/daemon/jobs/job_creation.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/jobs/job_removal.h"
#include "engine/daemon/jobs/job_runner.h"
#include "engine/daemon/jobs/job_schedule.h"
#include "engine/daemon/jobs/job_state.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/queue/job_machine.h"
#include "engine/daemon/requests/listing.h"

enum { JOBS_MAX_ACTIVE = 1000 };

/* --- what others ask -------------------------------------------------------------------- */

jobs *jobs_of(const job_machine *m)
{
	return (jobs *)job_machine_queue(m, &training_jobs);
}

int jobs_waiting(const jobs *all)
{
	int n = 0;
	for (const job *j = job_table_first(all); j; j = job_table_next(j))
		n += j->state == JOB_QUEUED;
	return n;
}

int jobs_running(const jobs *all)
{
	return all->queue.run != NULL;
}

void jobs_each_started(const jobs *all, void (*take)(void *context, const char *id, const json_t *progress),
                       void *context)
{
	for (const job *j = job_table_first(all); j; j = job_table_next(j))
		if (j->state != JOB_QUEUED)
			take(context, j->base.id, json_object_get(j->base.document, "additive"));
}

/* --- the queue ------------------------------------------------------------------------- */

static void jobs_init(job_queue *q)
{
	jobs *all = (jobs *)q;
	all->began_ns = clock_ns();
	all->began_unix = clock_unix();
}

static void jobs_tick(job_queue *q)
{
	jobs *all = (jobs *)q;
	job_state_tick(all);
	job_removal_sweep(all);
	job_runner_next(all);
}

/* The engine stops: the run saves a checkpoint. */
static void save_and_stop(queued_run *r)
{
	job_run_stop(r, true);
}

static bool jobs_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

/* --- the methods ------------------------------------------------------------------------------ */

static json_t *shown_checkpoint(stream *s, const json_t *row)
{
	json_t *document;
	job_queue_document(s->context, s->target, &document, NULL);
	json_t *shown = job_document_shown(row, document);
	json_decref(document);
	return shown;
}

static void jobs_checkpoints(stream *s, job_queue *q)
{
	json_t *document = job_machine_find_document(s, q);
	json_decref(document);
	if (!document)
		return;
	s->context = q;
	listing_answer(s, STORE_CHECKPOINTS, s->target, LISTING_CHECKPOINTS, shown_checkpoint);
}

/* An array with one event; NULL: out of memory. */
static json_t *event(const char *message)
{
	return json_pack("[o]", job_document_event("info", "%s", message));
}

static void jobs_cancel(stream *s, job_queue *q)
{
	jobs *all = (jobs *)q;
	error err = ERROR_INIT;
	job *j = job_table_find(all, s->target);
	if (!j) {
		job_machine_refuse_state(s, q, "cancelled");
		return;
	}
	json_t *next = job_document_ended(j->base.document, "cancelled", NULL);
	json_t *answer = next ? job_queue_public(q, next) : NULL;
	status result = answer ? STATUS_OK : STATUS_NOMEM;
	if (!answer)
		json_decref(next);
	else
		result = job_state_end(all, j, next, event("The job was cancelled"), &err);
	if (result == STATUS_OK) {
		if (job_queue_runs(&all->queue, s->target))
			job_run_stop(q->run, false);
		stream_result(s, answer);
		return;
	}
	json_decref(answer);
	error_settle(&err, result);
	stream_error(s, &err, NULL);
}

/* Change the state of a job that has not ended. False: the request is answered with the reason. */
static bool change(stream *s, jobs *all, job *j, job_state state, const char *name, const char *message)
{
	error err = ERROR_INIT;
	json_t *next = job_document_in_state(j->base.document, name);
	job_document_forget_device_failures(next);
	if (job_state_change(all, j, state, next, event(message), &err) != STATUS_OK) {
		error_settle(&err, STATUS_NOMEM);
		stream_error(s, &err, NULL);
		return false;
	}
	j->base.failures = j->device_failures = 0;
	j->base.retry_ns = 0;
	j->unsettled = false;
	j->reason = (error)ERROR_INIT;
	return true;
}

static void answer_job(stream *s, const jobs *all, const job *j)
{
	stream_result(s, job_queue_public(&all->queue, j->base.document));
}

/* A job paused by a failure becomes paused by the client, without retries. */
static void jobs_pause(stream *s, job_queue *q)
{
	jobs *all = (jobs *)q;
	job *j = job_table_find(all, s->target);
	if (!j || (j->state == JOB_PAUSED && !j->base.retry_ns)) {
		job_machine_refuse_state(s, q, "paused");
	} else if (change(s, all, j, JOB_PAUSED, "paused", "The job was paused")) {
		answer_job(s, all, j);
		if (job_queue_runs(&all->queue, j->base.id))
			job_run_stop(q->run, true);
	}
}

/* --- job.resume ----------------------------------------------------------------------------- */

typedef struct search {
	const json_t *job;
	bool found;
} search;

static bool is_intact(void *context, const json_t *row)
{
	search *s = context;
	s->found = !job_document_damage(s->job, json_integer_value(json_object_get(row, "step_number")));
	return !s->found;
}

static status check_file_exists(store *s, const char *key, const char *id, error *err)
{
	store_file file;
	if (!id || store_file_get(s, id, &file, NULL) == STATUS_OK)
		return STATUS_OK;
	return error_set(err, STATUS_CONFLICT, "id", "its %s %.64s has been deleted", key, id);
}

/* Check that the files of a stored request exist. */
static status check_files_exist(store *s, const json_t *request, error *err)
{
	size_t i;
	json_t *file;
	TRY(check_file_exists(s, "training_file", job_document_text(request, "training_file"), err));
	json_array_foreach(json_object_get(request, "training_files"), i, file)
	    TRY(check_file_exists(s, "training file", job_document_text(file, "file"), err));
	return check_file_exists(s, "validation_file", job_document_text(request, "validation_file"), err);
}

/* Check that an ended job has everything that it needs to resume. */
static status check_resumable(const jobs *all, const json_t *document, error *err)
{
	store *s = all->queue.parts->store;
	store_page page = {.parent = job_document_text(document, "id")};
	const json_t *request = json_object_get(document, "request");
	const char *base = job_document_text(request, "base"), *result = job_document_text(request, "result");
	search intact = {.job = document};
	bool more;
	if (jobs_same(job_document_text(document, "status"), "succeeded"))
		return error_set(err, STATUS_CONFLICT, "id", "a job that has succeeded cannot be resumed");
	TRY(store_list(s, STORE_CHECKPOINTS, &page, is_intact, &intact, &more, err));
	if (!intact.found)
		return error_set(err, STATUS_CONFLICT, "id", "a job that is %s and has no checkpoint cannot be resumed",
		                 job_document_text(document, "status"));
	TRY(check_files_exist(s, request, err));
	if (base) {
		model_entry *from;
		TRY(catalog_open(all->queue.parts->catalog, base, &from, err));
		catalog_release(from);
	}
	if (result && job_table_name_taken(all, result))
		return error_set(err, STATUS_CONFLICT, "id", "a model \"%.64s\" exists already", result);
	return all->queue.active < JOBS_MAX_ACTIVE ? STATUS_OK
	                                           : error_set(err, STATUS_BUSY, NULL, "too many jobs are waiting");
}

/* Queue an ended job again. */
static void resume_ended(stream *s, jobs *all)
{
	error err = ERROR_INIT;
	json_t *document;
	status result = job_queue_document(&all->queue, s->target, &document, &err);
	if (result == STATUS_OK)
		result = check_resumable(all, document, &err);
	if (result == STATUS_OK)
		result = job_queue_check_quota(&all->queue, s, project_of(document), &err);
	job *j = result == STATUS_OK ? (job *)job_queue_make(&all->queue, s->target, document) : NULL;
	json_decref(document);
	if (!j) {
		error_settle(&err, result == STATUS_OK ? STATUS_NOMEM : result);
		stream_error(s, &err, err.status == STATUS_CONFLICT ? "invalid_job_state" : NULL);
		return;
	}
	if (!change(s, all, j, JOB_QUEUED, "queued", "The job was resumed")) {
		job_queue_release(&all->queue, &j->base);
		return;
	}
	job_queue_append(&all->queue, &j->base);
	answer_job(s, all, j);
	job_runner_next(all);
}

static void jobs_resume(stream *s, job_queue *q)
{
	jobs *all = (jobs *)q;
	job *j = job_table_find(all, s->target);
	if (!j) {
		resume_ended(s, all);
	} else if (j->state != JOB_PAUSED) {
		job_machine_refuse_state(s, q, "resumed");
	} else if (change(s, all, j, JOB_QUEUED, "queued", "The job was resumed")) {
		death_log_forget(all->queue.parts->deaths, j->base.id);
		job_queue_take_out(&all->queue, &j->base); /* moves it to the end of the queue */
		job_queue_append(&all->queue, &j->base);
		answer_job(s, all, j);
		job_runner_next(all);
	}
}

/* --- the kind -------------------------------------------------------------------------------- */

static bool uses_file(const job_queue *q, const char *id)
{
	return job_table_uses_file((const jobs *)q, id);
}

static bool uses_model(const job_queue *q, const char *id)
{
	return job_table_uses_model((const jobs *)q, id);
}

static const job_method methods[] = {
    {"job.create", job_creation_begin, true},
    {"job.cancel", jobs_cancel, false},
    {"job.pause", jobs_pause, false},
    {"job.resume", jobs_resume, false},
    {"job.delete", job_removal_delete, false},
    {"job.checkpoints", jobs_checkpoints, false},
    {"checkpoint.delete", job_removal_delete_checkpoint, false},
    {0},
};

static const queued_run_steps run_steps = {.cancel = save_and_stop};

const job_kind training_jobs = {
    .name = "job",
    .object = JOB_DOCUMENT_OBJECT,
    .noun = "job",
    .prefix = JOB_ID_PREFIX,
    .first_phase = "preparing",
    .use = "a job that has not ended starts from it",
    .max_active = JOBS_MAX_ACTIVE,
    .max_drafts = 8,
    .job_bytes = sizeof(job),
    .load = job_table_load,
    .release = job_table_release,
    .methods = methods,
    .run = &run_steps,
    .queue_bytes = sizeof(jobs),
    .init = jobs_init,
    .tick = jobs_tick,
    .owns = job_document_is,
    .shown = job_schedule_show,
    .uses_file = uses_file,
    .uses_model = uses_model,
};
