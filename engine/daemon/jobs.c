/* Every change of a job's state is written to the ledger before anyone hears of it. The order when a job
 * succeeds is model, then job: a crash between the two leaves a running job, whose resumed run ends with the same
 * model; finding it there already is then a success. */
#include "engine/daemon/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/job_creation.h"
#include "engine/daemon/job_document.h"
#include "engine/daemon/job_run.h"
#include "engine/daemon/job_watch.h"
#include "engine/daemon/listing.h"
#include "engine/daemon/sessions.h"

enum { JOBS_MAX_ACTIVE = 1000, JOBS_MAX_CHECKING = 8, JOBS_MAX_DEVICE_FAILURES = 3 };

struct jobs {
	engine *engine;
	job *first; /* those that have not ended, in the order they will run */
	job_run *run;
	job_creation *creations; /* not jobs yet */
	job_watch *watches;
	int active;
	bool stopping;
};

static const char *const state_names[] = {[JOB_QUEUED] = "queued", [JOB_RUNNING] = "running", [JOB_PAUSED] = "paused"};

/* --- the table -------------------------------------------------------------------- */

static job *find(const jobs *all, const char *id)
{
	job *j = all->first;
	while (j && strcmp(j->id, id) != 0)
		j = j->next;
	return j;
}

static void append(jobs *all, job *j)
{
	job **link = &all->first;
	while (*link)
		link = &(*link)->next;
	j->next = NULL;
	*link = j;
	all->active++;
}

static void take_out(jobs *all, job *j)
{
	job **link = &all->first;
	while (*link != j)
		link = &(*link)->next;
	*link = j->next;
	all->active--;
}

static void job_free(job *j)
{
	json_decref(j->document);
	free(j);
}

static const char *text_of(const json_t *document, const char *key)
{
	return json_string_value(json_object_get(document, key));
}

static bool same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

status jobs_document(const jobs *all, const char *id, json_t **out, bool *ended, error *err)
{
	const job *j = find(all, id);
	*ended = !j;
	*out = NULL;
	if (!j)
		return store_job_get(all->engine->store, id, out, err);
	*out = json_incref(j->document);
	return STATUS_OK;
}

bool jobs_use_file(const jobs *all, const char *id)
{
	for (const job *j = all->first; j; j = j->next)
		if (same(text_of(j->document, "training_file"), id) ||
		    same(text_of(j->document, "validation_file"), id))
			return true;
	return job_creation_uses_file(all->creations, id);
}

bool jobs_use_model(const jobs *all, const char *id)
{
	for (const job *j = all->first; j; j = j->next)
		if (same(text_of(json_object_get(j->document, "request"), "base"), id))
			return true;
	return job_creation_uses_model(all->creations, id);
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

/* --- telling ------------------------------------------------------------------------ */

static void note_event(jobs *all, const char *id, json_t *event)
{
	error err = ERROR_INIT;
	if (!event || store_event_add(all->engine->store, id, event, &err) != STATUS_OK)
		log_line(LOG_WARN, "an event of %s is lost: %s", id, event ? error_message(&err) : "out of memory");
	json_decref(event);
}

static void add_event(jobs *all, const char *id, json_t *event)
{
	note_event(all, id, event);
	job_watch_pump(all->watches, id);
}

void jobs_say(jobs *all, const char *id, const char *level, const char *format, ...)
{
	char message[512];
	va_list args;
	va_start(args, format);
	vsnprintf(message, sizeof message, format, args);
	va_end(args);
	add_event(all, id, job_document_event(level, message));
}

/* --- changes of state ---------------------------------------------------------------- */

/* Write a job that has not ended in a new state. */
static status put_state(jobs *all, job *j, job_state state, error *err)
{
	json_t *before = json_incref(json_object_get(j->document, "status"));
	status s =
	    json_object_set_new(j->document, "status", json_string(state_names[state])) == 0 ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = store_job_put(all->engine->store, j->id, state_names[state], j->document, err);
	if (s == STATUS_OK)
		j->state = state;
	else
		json_object_set(j->document, "status", before);
	json_decref(before);
	return s;
}

/* End a job. why: NULL unless it failed. */
static status put_end(jobs *all, job *j, const char *name, const error *why, error *err)
{
	json_t *before = json_deep_copy(j->document);
	status s = before && job_document_end(j->document, name, why) ? STATUS_OK : STATUS_NOMEM;
	if (s == STATUS_OK)
		s = store_job_put(all->engine->store, j->id, name, j->document, err);
	if (s == STATUS_OK) {
		take_out(all, j);
		json_decref(before);
	} else if (before) {
		json_decref(j->document);
		j->document = before;
	}
	return s;
}

static void fail(jobs *all, job *j, const error *why)
{
	error err = ERROR_INIT;
	if (put_end(all, j, "failed", why, &err) != STATUS_OK) {
		/* It stays as it was, and is tried again at the next start. */
		log_line(LOG_ERROR, "cannot note that %s failed: %s", j->id, error_message(&err));
		j->state = JOB_PAUSED;
		return;
	}
	jobs_say(all, j->id, "error", "The job failed: %s", error_message(why));
	job_free(j);
}

static status keep_result(jobs *all, job *j, const char *folder, const char *name, error *err)
{
	error why = ERROR_INIT;
	status s = cards_add(all->engine->cards, name, folder, "user", &why);
	if (s == STATUS_OK || s == STATUS_CONFLICT)
		return STATUS_OK;
	jobs_say(all, j->id, "error", "The model could not be kept: %s", error_message(&why));
	return error_set(err, s, NULL, "%s", error_message(&why));
}

static void succeed(jobs *all, job *j, const char *folder, const train_progress *p)
{
	error err = ERROR_INIT;
	const char *name = text_of(json_object_get(j->document, "request"), "result");
	status s = keep_result(all, j, folder, name, &err);
	if (s == STATUS_OK) {
		job_document_progress(j->document, p);
		json_object_set_new(j->document, "fine_tuned_model", json_string(name));
		json_object_set_new(j->document, "trained_tokens", json_integer(p->tokens));
		s = put_end(all, j, "succeeded", NULL, &err);
	}
	if (s != STATUS_OK) {
		error_set(&err, s, NULL, "%s", status_text(s));
		json_object_set_new(j->document, "fine_tuned_model", json_null());
		fail(all, j, &err);
		return;
	}
	char created[128];
	snprintf(created, sizeof created, "New fine-tuned model created: %s", name);
	note_event(all, j->id, job_document_event("info", created)); /* a watch ends when it hears of an ended job */
	jobs_say(all, j->id, "info", "The job has successfully completed");
	job_free(j);
}

/* --- what a run tells ------------------------------------------------------------------ */

static void on_progress(jobs *all, const char *id, const train_progress *p)
{
	job *j = find(all, id);
	if (j && j->state == JOB_RUNNING) {
		if (p->step > json_integer_value(json_object_get(json_object_get(j->document, "additive"), "step")))
			j->device_failures = 0;
		job_document_progress(j->document, p);
	}
}

static void on_event(jobs *all, const char *id, json_t *event)
{
	const job *j = find(all, id);
	if (j && j->state == JOB_RUNNING)
		add_event(all, id, event);
	else
		json_decref(event);
}

/* Steps and names of a job's checkpoints. */
static bool collect(void *context, const json_t *row)
{
	return json_array_append(context, (json_t *)(uintptr_t)row) == 0;
}

static void prune(jobs *all, const char *id, size_t keep)
{
	bool more;
	json_t *rows = json_array();
	store_page page = {.parent = id, .ascending = true};
	store_list(all->engine->store, STORE_CHECKPOINTS, &page, collect, rows, &more, NULL);
	size_t n = json_array_size(rows);
	for (size_t i = 0; i + keep < n; i++) {
		const json_t *row = json_array_get(rows, i);
		const char *name = text_of(row, "id");
		if (sessions_use_model(all->engine->sessions, name) || jobs_use_model(all, name))
			continue; /* the next checkpoint tries again */
		store_checkpoint_delete(all->engine->store, id, json_integer_value(json_object_get(row, "step_number")),
		                        NULL);
		cards_forget(all->engine->cards, name);
	}
	json_decref(rows);
}

static void on_checkpoint(jobs *all, const char *id, const train_progress *p)
{
	error err = ERROR_INIT;
	char name[STORE_ID_BYTES];
	const job *j = find(all, id);
	cards_checkpoint_name(id, p->step, name);
	json_t *row = job_document_checkpoint(id, name, p);
	status s = row ? store_checkpoint_add(all->engine->store, id, p->step, row, &err) : STATUS_NOMEM;
	json_decref(row);
	if (s != STATUS_OK) {
		jobs_say(all, id, "warn", "The checkpoint at step %lld is lost: %s", (long long)p->step,
		         error_message(&err));
		return;
	}
	if (!j)
		return;
	json_int_t keep =
	    json_integer_value(json_object_get(json_object_get(j->document, "request"), "keep_checkpoints"));
	store_job_put(all->engine->store, id, text_of(j->document, "status"), j->document,
	              NULL); /* its progress, for after a crash */
	jobs_say(all, id, "info", "Checkpoint created at step %lld: %s", (long long)p->step, name);
	prune(all, id, keep > 0 ? (size_t)keep : 1);
}

static void on_ended(jobs *all, const char *id, const char *result, const train_progress *p, const error *err)
{
	job *j = find(all, id);
	all->run = NULL;
	if (j && j->state == JOB_RUNNING) {
		if (result) {
			succeed(all, j, result, p);
		} else if (err->status == STATUS_DEVICE && ++j->device_failures <= JOBS_MAX_DEVICE_FAILURES) {
			j->state = JOB_QUEUED;
			jobs_say(all, id, "warn",
			         "The compute device failed; the job goes on from its last checkpoint");
		} else if (err->status != STATUS_OK) {
			fail(all, j, err);
		}
	}
	jobs_start(all);
}

static const job_run_listener listener = {on_progress, on_event, on_checkpoint, on_ended};

/* --- running --------------------------------------------------------------------------- */

static bool read_step(void *context, const json_t *row)
{
	*(int64_t *)context = json_integer_value(json_object_get(row, "step_number"));
	return false;
}

/* Begin the run of j. Its state is written first: a job whose run begins is "running", also after a crash. */
static status begin(jobs *all, job *j, error *err)
{
	bool more;
	int64_t step = -1;
	TRY(store_list(all->engine->store, STORE_CHECKPOINTS, &(store_page){.parent = j->id, .limit = 1}, read_step,
	               &step, &more, err));
	TRY(put_state(all, j, JOB_RUNNING, err));
	return job_run_begin(&all->run, all, all->engine, j, step, &listener, err);
}

void jobs_start(jobs *all)
{
	while (!all->run && !all->stopping) {
		error err = ERROR_INIT;
		job *j = all->first;
		while (j && j->state != JOB_QUEUED)
			j = j->next;
		if (!j)
			return;
		status s = begin(all, j, &err);
		if (s == STATUS_OK)
			return;
		error_set(&err, s, NULL, "%s", status_text(s));
		fail(all, j, &err);
	}
}

void jobs_stop(jobs *all)
{
	all->stopping = true;
	if (all->run)
		job_run_stop(all->run, true);
}

bool jobs_stopped(const jobs *all)
{
	return !all->run && !all->creations;
}

/* --- opening ------------------------------------------------------------------------------ */

static bool read_job(void *context, const json_t *document)
{
	jobs *all = context;
	const char *id = text_of(document, "id");
	job *j = id ? memory_new(1, sizeof *j) : NULL;
	if (!j) {
		log_line(LOG_WARN, "a job cannot be read from the ledger");
		return true;
	}
	snprintf(j->id, sizeof j->id, "%s", id);
	j->document = json_deep_copy(document);
	j->state = same(text_of(document, "status"), "paused") ? JOB_PAUSED : JOB_QUEUED;
	append(all, j);
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
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		store_page page = {.filter = states[i], .ascending = true};
		TRY(store_list(e->store, STORE_JOBS, &page, read_job, all, &more, err));
	}
	return STATUS_OK;
}

void jobs_free(jobs *all)
{
	if (!all)
		return;
	while (all->first) {
		job *j = all->first;
		take_out(all, j);
		job_free(j);
	}
	free(all);
}

/* --- the methods ------------------------------------------------------------------------------ */

bool jobs_name_taken(const jobs *all, const char *result)
{
	store_model taken;
	for (const job *j = all->first; j; j = j->next)
		if (same(text_of(json_object_get(j->document, "request"), "result"), result))
			return true;
	return store_model_get(all->engine->store, result, &taken, NULL) == STATUS_OK;
}

status jobs_add(jobs *all, const char *id, json_t *document, error *err)
{
	job *j = memory_new(1, sizeof *j);
	if (!j)
		return STATUS_NOMEM;
	snprintf(j->id, sizeof j->id, "%s", id);
	j->document = json_incref(document);
	status s = put_state(all, j, JOB_QUEUED, err);
	if (s != STATUS_OK) {
		job_free(j);
		return s;
	}
	append(all, j);
	return STATUS_OK;
}

void jobs_discard(jobs *all, const char *id)
{
	job *j = find(all, id);
	if (!j)
		return;
	take_out(all, j);
	job_free(j);
}

void jobs_create(stream *s)
{
	jobs *all = s->engine->jobs;
	if (all->active >= JOBS_MAX_ACTIVE || job_creation_count(all->creations) >= JOBS_MAX_CHECKING)
		stream_refuse(s, STATUS_BUSY, NULL, NULL, "too many jobs are waiting");
	else
		job_creation_begin(&all->creations, s);
}

void jobs_get(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	bool ended;
	if (jobs_document(s->engine->jobs, s->target, &document, &ended, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_result(s, job_document_public(document));
	json_decref(document);
}

static json_t *from_row(stream *s, const json_t *row)
{
	const job *j = find(s->engine->jobs, text_of(row, "id"));
	return job_document_public(j ? j->document : row);
}

void jobs_list(stream *s)
{
	listing_answer(s, STORE_JOBS, NULL, LISTING_JOBS, from_row);
}

/* Answer 404 for a job that does not exist; false: answered. */
static bool exists(stream *s)
{
	error err = ERROR_INIT;
	json_t *document;
	bool ended;
	status result = jobs_document(s->engine->jobs, s->target, &document, &ended, &err);
	json_decref(document);
	if (result != STATUS_OK)
		stream_error(s, &err, NULL);
	return result == STATUS_OK;
}

void jobs_events(stream *s)
{
	if (exists(s))
		listing_answer(s, STORE_EVENTS, s->target, LISTING_JOBS, NULL);
}

void jobs_checkpoints(stream *s)
{
	if (exists(s))
		listing_answer(s, STORE_CHECKPOINTS, s->target, LISTING_CHECKPOINTS, NULL);
}

void jobs_watch(stream *s)
{
	job_watch_begin(&s->engine->jobs->watches, s);
}

static void refuse_state(stream *s, const char *verb)
{
	json_t *document;
	bool ended;
	error err = ERROR_INIT;
	if (jobs_document(s->engine->jobs, s->target, &document, &ended, &err) != STATUS_OK)
		stream_error(s, &err, NULL);
	else
		stream_refuse(s, STATUS_CONFLICT, "invalid_job_state", "id", "a job that is %s cannot be %s",
		              text_of(document, "status"), verb);
	json_decref(document);
}

/* Is the run on the executor this job's? */
static bool is_run_of(const jobs *all, const job *j)
{
	return all->run && strcmp(job_run_id(all->run), j->id) == 0;
}

static void answer_change(stream *s, job *j, status result, const error *err)
{
	if (result == STATUS_OK)
		stream_result(s, job_document_public(j->document));
	else
		stream_error(s, err, NULL);
}

void jobs_cancel(stream *s)
{
	jobs *all = s->engine->jobs;
	error err = ERROR_INIT;
	job *j = find(all, s->target);
	if (!j) {
		refuse_state(s, "cancelled");
		return;
	}
	bool runs = is_run_of(all, j);
	status result = put_end(all, j, "cancelled", NULL, &err);
	answer_change(s, j, result, &err);
	if (result != STATUS_OK)
		return;
	if (runs)
		job_run_stop(all->run, false);
	jobs_say(all, j->id, "info", "The job was cancelled");
	job_free(j);
}

void jobs_pause(stream *s)
{
	jobs *all = s->engine->jobs;
	error err = ERROR_INIT;
	job *j = find(all, s->target);
	if (!j || j->state == JOB_PAUSED) {
		refuse_state(s, "paused");
		return;
	}
	status result = put_state(all, j, JOB_PAUSED, &err);
	answer_change(s, j, result, &err);
	if (result != STATUS_OK)
		return;
	if (is_run_of(all, j))
		job_run_stop(all->run, true);
	jobs_say(all, j->id, "info", "The job was paused");
}

void jobs_resume(stream *s)
{
	jobs *all = s->engine->jobs;
	error err = ERROR_INIT;
	job *j = find(all, s->target);
	if (!j || j->state != JOB_PAUSED) {
		refuse_state(s, "resumed");
		return;
	}
	status result = put_state(all, j, JOB_QUEUED, &err);
	answer_change(s, j, result, &err);
	if (result != STATUS_OK)
		return;
	take_out(all, j); /* behind those that waited meanwhile */
	append(all, j);
	jobs_say(all, j->id, "info", "The job was resumed");
	jobs_start(all);
}
