/* The methods that clients call. job_state.c changes states, job_runner.c runs jobs, job_removal.c deletes. */
#include "engine/daemon/jobs/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/jobs/job_creation.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/jobs/job_removal.h"
#include "engine/daemon/jobs/job_runner.h"
#include "engine/daemon/jobs/job_state.h"
#include "engine/daemon/jobs/job_table.h"
#include "engine/daemon/requests/listing.h"

enum { JOBS_MAX_ACTIVE = 1000, JOBS_MAX_CHECKING = 8 };

/* --- what others ask -------------------------------------------------------------------- */

bool jobs_use_file(const jobs *all, const char *id)
{
	return job_table_uses_file(all, id);
}

bool jobs_use_model(const jobs *all, const char *id)
{
	return job_table_uses_model(all, id);
}

int jobs_waiting(const jobs *all)
{
	int n = 0;
	for (const job *j = all->first; j; j = j->next)
		n += j->state == JOB_QUEUED;
	return n;
}

int jobs_running(const jobs *all)
{
	return all->run != NULL;
}

void jobs_each_begun(const jobs *all, void (*take)(void *context, const char *id, const json_t *progress),
                     void *context)
{
	for (const job *j = all->first; j; j = j->next)
		if (j->state != JOB_QUEUED)
			take(context, j->id, json_object_get(j->document, "additive"));
}

/* --- running --------------------------------------------------------------------------- */

void jobs_start(jobs *all)
{
	job_runner_next(all);
}

void jobs_tick(jobs *all)
{
	job_state_tick(all);
	job_removal_sweep(all);
	job_runner_next(all);
}

void jobs_stop(jobs *all)
{
	all->stopping = true;
	if (all->run)
		job_run_stop(all->run, true);
}

bool jobs_stopped(const jobs *all)
{
	return !all->run && !all->reservations;
}

static bool jobs_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

/* --- opening ------------------------------------------------------------------------------ */

typedef struct reading {
	jobs *jobs;
	bool failed;
} reading;

static bool read_job(void *context, const json_t *document)
{
	reading *r = context;
	const char *id = job_document_text(document, "id");
	if (!job_document_is(document))
		return true; /* a job of another kind */
	if (!id || !store_valid_name(id)) {
		log_line(LOG_WARN, "a job cannot be read from the ledger");
		return true;
	}
	json_t *copy = json_deep_copy(document);
	job *j = copy ? job_table_make(id, copy) : NULL;
	json_decref(copy);
	r->failed = !j;
	if (!j)
		return false;
	if (jobs_same(job_document_text(document, "status"), "paused")) {
		const json_t *reason = json_object_get(json_object_get(document, "additive"), "paused_reason");
		j->state = JOB_PAUSED;
		j->retry_ns = json_is_integer(json_object_get(reason, "retry_at")); /* a time in the past, so it is
		                                                                     * retried at once */
	}
	j->device_failures = job_document_device_failures(document);
	job_table_append(r->jobs, j);
	return true;
}

status jobs_new(jobs **out, engine *e, error *err)
{
	static const char *const states[] = {"running", "queued", "paused"};
	bool more;
	jobs *all = *out = memory_new(1, sizeof *all);
	if (!all)
		return STATUS_NOMEM;
	all->engine = e;
	all->began_ns = clock_ns();
	all->began_unix = clock_unix();
	reading r = {.jobs = all};
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		store_page page = {.filter = states[i], .ascending = true};
		TRY(store_list(e->store, STORE_JOBS, &page, read_job, &r, &more, err));
		if (r.failed)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

void jobs_free(jobs *all)
{
	if (!all)
		return;
	while (all->first) {
		job *j = all->first;
		job_table_take_out(all, j);
		job_table_release(j);
	}
	free(all);
}

/* --- the methods ------------------------------------------------------------------------------ */

void jobs_create(stream *s)
{
	jobs *all = s->engine->jobs;
	if (all->active >= JOBS_MAX_ACTIVE || all->reserved >= JOBS_MAX_CHECKING)
		stream_refuse(s, STATUS_BUSY, NULL, NULL, "too many jobs are waiting");
	else
		job_creation_begin(s);
}

void jobs_get(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	bool ended;
	if (job_table_document(s->engine->jobs, s->target, &document, &ended, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_result(s, job_document_public(document));
	json_decref(document);
}

static json_t *jobs_from_row(stream *s, const json_t *row)
{
	const job *j = job_table_find(s->engine->jobs, job_document_text(row, "id"));
	return job_document_public(j ? j->document : row);
}

void jobs_list(stream *s)
{
	listing_answer_of(s, STORE_JOBS, NULL, JOB_DOCUMENT_OBJECT, LISTING_JOBS, jobs_from_row);
}

/* Answer 404 if the job does not exist; false: answered. */
static bool exists(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	bool ended;
	status result = job_table_document(s->engine->jobs, s->target, &document, &ended, &err);
	json_decref(document);
	error_settle(&err, result);
	if (result != STATUS_OK)
		stream_error(s, &err, NULL);
	return result == STATUS_OK;
}

void jobs_events(stream *s)
{
	if (exists(s))
		listing_answer(s, STORE_EVENTS, s->target, LISTING_JOBS, NULL);
}

static json_t *shown_checkpoint(stream *s, const json_t *row)
{
	bool ended;
	json_t *document;
	job_table_document(s->engine->jobs, s->target, &document, &ended, NULL);
	json_t *shown = job_document_shown(row, document);
	json_decref(document);
	return shown;
}

void jobs_checkpoints(stream *s)
{
	if (exists(s))
		listing_answer(s, STORE_CHECKPOINTS, s->target, LISTING_CHECKPOINTS, shown_checkpoint);
}

static status find_watched(const void *context, const char *id, json_t **answer, bool *ended, error *err)
{
	json_t *document;
	*answer = NULL;
	TRY(job_table_document(context, id, &document, ended, err));
	*answer = *ended ? job_document_public(document) : NULL;
	json_decref(document);
	return STATUS_OK;
}

void jobs_watch(stream *s)
{
	job_watch_begin(s, &s->engine->jobs->watches, find_watched, s->engine->jobs);
}

static void refuse_state(stream *s, const char *verb)
{
	json_t *document;
	bool ended;
	error err = ERROR_INIT;
	if (job_table_document(s->engine->jobs, s->target, &document, &ended, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_refuse(s, STATUS_CONFLICT, "invalid_job_state", "id", "a job that is %s cannot be %s",
		              job_document_text(document, "status"), verb);
	json_decref(document);
}

/* An array with one event; NULL: out of memory. */
static json_t *event(const char *message)
{
	return json_pack("[o]", job_document_event("info", "%s", message));
}

void jobs_cancel(stream *s)
{
	jobs *all = s->engine->jobs;
	error err = ERROR_INIT;
	job *j = job_table_find(all, s->target);
	if (!j) {
		refuse_state(s, "cancelled");
		return;
	}
	json_t *next = job_document_ended(j->document, "cancelled", NULL);
	json_t *answer = next ? job_document_public(next) : NULL;
	status result = answer ? STATUS_OK : STATUS_NOMEM;
	if (!answer)
		json_decref(next);
	else
		result = job_state_end(all, j, next, event("The job was cancelled"), &err);
	if (result == STATUS_OK) {
		if (job_table_is_run_of(all, s->target))
			job_run_stop(all->run, false);
		stream_result(s, answer);
		return;
	}
	json_decref(answer);
	error_settle(&err, result);
	stream_error(s, &err, NULL);
}

/* Change the state of a job that has not ended, and answer. */
static bool change(stream *s, job *j, job_state state, const char *name, const char *message)
{
	error err = ERROR_INIT;
	json_t *next = job_document_in_state(j->document, name);
	job_document_forget_device_failures(next);
	if (job_state_change(s->engine->jobs, j, state, next, event(message), &err) != STATUS_OK) {
		error_settle(&err, STATUS_NOMEM);
		stream_error(s, &err, NULL);
		return false;
	}
	j->failures = j->device_failures = 0;
	j->retry_ns = 0;
	j->unsettled = false;
	j->reason = (error)ERROR_INIT;
	stream_result(s, job_document_public(j->document));
	return true;
}

/* A job paused by a failure becomes paused by the client, without retries. */
void jobs_pause(stream *s)
{
	jobs *all = s->engine->jobs;
	job *j = job_table_find(all, s->target);
	if (!j || (j->state == JOB_PAUSED && !j->retry_ns))
		refuse_state(s, "paused");
	else if (change(s, j, JOB_PAUSED, "paused", "The job was paused") && job_table_is_run_of(all, j->id))
		job_run_stop(all->run, true);
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

static status check_file_is_there(store *s, const char *key, const char *id, error *err)
{
	store_file file;
	if (!id || store_file_get(s, id, &file, NULL) == STATUS_OK)
		return STATUS_OK;
	return error_set(err, STATUS_CONFLICT, "id", "its %s %.64s has been deleted", key, id);
}

/* Check that the files of a stored request exist. */
static status check_files_are_there(store *s, const json_t *request, error *err)
{
	size_t i;
	json_t *file;
	TRY(check_file_is_there(s, "training_file", job_document_text(request, "training_file"), err));
	json_array_foreach(json_object_get(request, "training_files"), i, file)
	    TRY(check_file_is_there(s, "training file", job_document_text(file, "file"), err));
	return check_file_is_there(s, "validation_file", job_document_text(request, "validation_file"), err);
}

/* Check that an ended job has everything that it needs to resume. */
static status check_resumable(const jobs *all, const json_t *document, error *err)
{
	store *s = all->engine->store;
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
	TRY(check_files_are_there(s, request, err));
	if (base) {
		model_entry *from;
		TRY(catalog_open(all->engine->catalog, base, &from, err));
		catalog_release(from);
	}
	if (result && job_table_name_taken(all, result))
		return error_set(err, STATUS_CONFLICT, "id", "a model \"%.64s\" exists already", result);
	return all->active < JOBS_MAX_ACTIVE ? STATUS_OK
	                                     : error_set(err, STATUS_BUSY, NULL, "too many jobs are waiting");
}

/* Queue an ended job again. */
static void resume_ended(stream *s)
{
	jobs *all = s->engine->jobs;
	error err = ERROR_INIT;
	json_t *document;
	status result = job_table_stored(all, s->target, &document, &err);
	if (result == STATUS_OK)
		result = check_resumable(all, document, &err);
	job *j = result == STATUS_OK ? job_table_make(s->target, document) : NULL;
	json_decref(document);
	if (!j) {
		error_settle(&err, result == STATUS_OK ? STATUS_NOMEM : result);
		stream_error(s, &err, err.status == STATUS_CONFLICT ? "invalid_job_state" : NULL);
		return;
	}
	if (!change(s, j, JOB_QUEUED, "queued", "The job was resumed")) {
		job_table_release(j);
		return;
	}
	job_table_append(all, j);
	job_runner_next(all);
}

void jobs_resume(stream *s)
{
	jobs *all = s->engine->jobs;
	job *j = job_table_find(all, s->target);
	if (!j) {
		resume_ended(s);
	} else if (j->state != JOB_PAUSED) {
		refuse_state(s, "resumed");
	} else if (change(s, j, JOB_QUEUED, "queued", "The job was resumed")) {
		death_log_forget(all->engine->deaths, j->id);
		job_table_take_out(all, j); /* moves it to the end of the queue */
		job_table_append(all, j);
		job_runner_next(all);
	}
}

/* --- job.delete, checkpoint.delete ---------------------------------------------------------- */

void jobs_delete(stream *s)
{
	job_removal_delete(s);
}

void jobs_delete_checkpoint(stream *s)
{
	job_removal_delete_checkpoint(s);
}
