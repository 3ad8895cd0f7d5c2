#include "engine/daemon/queue/job_queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/queue/job_trace.h"
#include "engine/daemon/queue/trace_outbox.h"

enum { SECOND_NS = 1000000000, MAX_RETRY_SECONDS = 300, MAX_DEVICE_FAILURES = 3 };

/* Member of the ledger's row only: failures may end the process and are counted by the next one. */
static const char FAILURES[] = "failures";

static const char *member_text(const json_t *document, const char *key)
{
	return json_string_value(json_object_get(document, key));
}

static bool is_same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

/* --- the list ------------------------------------------------------------------------------------------ */

queued_job *job_queue_find(const job_queue *q, const char *id)
{
	queued_job *j = q->first;
	while (j && strcmp(j->id, id) != 0)
		j = j->next;
	return j;
}

queued_job *job_queue_make(const job_queue *q, const char *id, json_t *document)
{
	queued_job *j = memory_new(1, q->kind->job_bytes);
	if (!j)
		return NULL;
	snprintf(j->id, sizeof j->id, "%s", id);
	j->document = json_incref(document);
	j->failures = (int)json_integer_value(json_object_get(document, FAILURES));
	if (!q->kind->load || q->kind->load(j))
		return j;
	job_queue_release(q, j);
	return NULL;
}

void job_queue_release(const job_queue *q, queued_job *j)
{
	if (q->kind->release)
		q->kind->release(j);
	json_decref(j->document);
	free(j);
}

status job_queue_check_quota(const job_queue *q, const stream *s, const char *project, error *err)
{
	int64_t jobs = 0;
	for (const job_queue *k = q->parts->queues; k; k = k->sibling)
		for (const queued_job *j = k->first; j; j = j->next)
			jobs += strcmp(project_of(j->document), project) == 0;
	return project_check_quota(&s->scope, QUOTA_JOBS, jobs, 1, err);
}

void job_queue_append(job_queue *q, queued_job *j)
{
	queued_job **link = &q->first;
	while (*link)
		link = &(*link)->next;
	j->next = NULL;
	*link = j;
	q->active++;
}

void job_queue_take_out(job_queue *q, queued_job *j)
{
	queued_job **link = &q->first;
	while (*link != j)
		link = &(*link)->next;
	*link = j->next;
	q->active--;
}

/* Send the spans of a job that has ended. */
static void send_trace(const job_queue *q, const queued_job *j)
{
	json_t *shown = json_object_get(j->document, JOB_TRACE) ? job_queue_public(q, j->document) : NULL;
	const char *state = json_string_value(json_object_get(shown, "status"));
	if (state)
		trace_outbox_add(q->parts->traces, job_trace_spans(j->document, state));
	json_decref(shown);
}

void job_queue_remove(job_queue *q, queued_job *j)
{
	char id[STORE_ID_BYTES];
	memcpy(id, j->id, sizeof id);
	send_trace(q, j);
	job_queue_take_out(q, j);
	job_queue_release(q, j);
	job_watch_pump(q->watches, id);
}

/* True if a document of the queue has this value under the key. */
static bool any_document_has(const job_queue *q, const char *key, const char *id)
{
	for (const queued_job *j = q->first; j; j = j->next)
		if (is_same(member_text(j->document, key), id))
			return true;
	return false;
}

bool job_queue_uses_file(const job_queue *q, const char *id)
{
	return q->kind->uses_file ? q->kind->uses_file(q, id) : any_document_has(q, "file", id);
}

bool job_queue_uses_model(const job_queue *q, const char *id)
{
	return q->kind->uses_model ? q->kind->uses_model(q, id) : any_document_has(q, "model", id);
}

bool job_queue_runs(const job_queue *q, const char *id)
{
	return q->run && strcmp(q->run->id, id) == 0;
}

typedef struct opening {
	job_queue *queue;
	bool failed;
} opening;

static bool owns(const job_queue *q, const json_t *document)
{
	return q->kind->owns ? q->kind->owns(document) : is_same(member_text(document, "object"), q->kind->object);
}

static bool read_job(void *context, const json_t *document)
{
	opening *o = context;
	const char *id = member_text(document, "id");
	if (!owns(o->queue, document))
		return true;
	if (!id || !store_valid_name(id)) {
		log_line(LOG_WARN, "a job cannot be read from the ledger");
		return true;
	}
	json_t *copy = json_deep_copy(document);
	queued_job *j = copy ? job_queue_make(o->queue, id, copy) : NULL;
	json_decref(copy);
	o->failed = !j;
	if (j)
		job_queue_append(o->queue, j);
	return j;
}

status job_queue_new(job_queue **out, const job_parts *parts, const job_kind *kind, error *err)
{
	static const char *const states[] = {"running", "queued", "paused"};
	bool more;
	job_queue *q = *out = memory_new(1, kind->queue_bytes ? kind->queue_bytes : sizeof *q);
	if (!q)
		return STATUS_NOMEM;
	q->parts = parts;
	q->kind = kind;
	if (kind->init)
		kind->init(q);
	opening o = {.queue = q};
	for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
		store_page page = {.filter = states[i], .ascending = true};
		TRY(store_list(parts->store, STORE_JOBS, &page, read_job, &o, &more, err));
		if (o.failed)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

void job_queue_free(job_queue *q)
{
	while (q && q->first) {
		queued_job *j = q->first;
		job_queue_take_out(q, j);
		job_queue_release(q, j);
	}
	free(q);
}

/* --- documents -------------------------------------------------------------------------------------- */

json_t *job_queue_document_new(const job_queue *q, const char *id, json_t *params, json_t *own)
{
	json_t *document = json_pack("{s:s, s:s, s:I, s:n, s:s, s:O?, s:O}", "id", id, "object", q->kind->object,
	                             "created_at", (json_int_t)clock_unix(), "finished_at", "status", "queued", "model",
	                             json_object_get(params, "model"), "file", json_object_get(params, "file"));
	json_t *rest = json_pack("{s:n, s:n, s:O}", "error", "result", "request", params);
	const bool complete = json_object_update(document, own) == 0 && json_object_update(document, rest) == 0;
	json_decref(own);
	json_decref(rest);
	if (complete)
		return document;
	json_decref(document);
	return NULL;
}

json_t *job_queue_public(const job_queue *q, const json_t *document)
{
	if (q->kind->shown)
		return q->kind->shown(q, document);
	json_t *copy = json_copy((json_t *)(uintptr_t)document);
	for (size_t i = 0; copy && q->kind->hidden[i]; i++)
		json_object_del(copy, q->kind->hidden[i]);
	json_object_del(copy, FAILURES);
	json_object_del(copy, JOB_TRACE);
	return copy;
}

static json_t *error_object(const error *err)
{
	return err ? json_pack("{s:s, s:s, s:s?}", "code", status_name(err->status), "message", error_message(err),
	                       "param", err->param[0] ? err->param : NULL)
	           : json_null();
}

json_t *job_queue_in_state(const json_t *document, const char *state, bool ended, const error *err)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)document);
	if (json_object_set_new(copy, "status", json_string(state)) == 0 &&
	    json_object_set_new(copy, "finished_at", ended ? json_integer(clock_unix()) : json_null()) == 0 &&
	    json_object_set_new(copy, "error", error_object(err)) == 0)
		return copy;
	json_decref(copy);
	return NULL;
}

status job_queue_put(const job_queue *q, const json_t *document, error *err)
{
	return store_job_put(q->parts->store, member_text(document, "id"), member_text(document, "status"), document,
	                     err);
}

status job_queue_no_job(const job_queue *q, const char *id, error *err)
{
	return error_set(err, STATUS_NOT_FOUND, "id", "there is no %s \"%.64s\"", q->kind->noun, id);
}

status job_queue_document(const job_queue *q, const char *id, json_t **out, error *err)
{
	const queued_job *j = job_queue_find(q, id);
	*out = j ? json_incref(j->document) : NULL;
	if (j)
		return STATUS_OK;
	error reason = ERROR_INIT; /* names every kind "job" */
	status found = store_job_get(q->parts->store, id, out, &reason);
	if (found == STATUS_OK && owns(q, *out))
		return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	if (found != STATUS_OK && found != STATUS_NOT_FOUND)
		return error_set(err, found, NULL, "%s", error_message(&reason));
	return job_queue_no_job(q, id, err);
}

/* Commit a document and an event, which is taken over. event NULL: out of memory. */
static status put_with_event(const job_queue *q, const json_t *document, json_t *event, error *err)
{
	store *s = q->parts->store;
	status result = event ? store_begin(s, err) : STATUS_NOMEM;
	if (result == STATUS_OK) {
		result = store_event_add(s, member_text(document, "id"), event, err);
		if (result == STATUS_OK)
			result = job_queue_put(q, document, err);
		result = store_end(s, result, err);
	}
	json_decref(event);
	return result;
}

/* Commit a document and the event of its state. reason: of the state, or NULL. */
static status put_state(const job_queue *q, const json_t *document, const error *reason, error *err)
{
	return q->kind->event
	           ? put_with_event(q, document, q->kind->event(member_text(document, "status"), reason), err)
	           : job_queue_put(q, document, err);
}

/* Make a written document the job's. */
static void replace(job_queue *q, queued_job *j, json_t *next)
{
	json_decref(j->document);
	j->document = next;
	job_watch_pump(q->watches, j->id);
}

/* Replace the document by `next` if it was written; otherwise free it. */
static status replace_written(job_queue *q, queued_job *j, json_t *next, status written, error *err)
{
	if (written != STATUS_OK) {
		json_decref(next);
		return error_settle(err, written);
	}
	replace(q, j, next);
	return STATUS_OK;
}

static status change(job_queue *q, queued_job *j, json_t *next, const error *reason, error *err)
{
	job_trace_follow(next);
	return replace_written(q, j, next, next ? put_state(q, next, reason, err) : STATUS_NOMEM, err);
}

status job_queue_change(job_queue *q, queued_job *j, json_t *next, error *err)
{
	return change(q, j, next, NULL, err);
}

status job_queue_progress(job_queue *q, queued_job *j, json_t *next, json_t *event, error *err)
{
	death_log_forget(q->parts->deaths, j->id);
	j->failures = 0;
	json_object_del(j->document, FAILURES);
	json_object_del(next, FAILURES);
	if (!next)
		json_decref(event);
	return replace_written(q, j, next, next ? put_with_event(q, next, event, err) : STATUS_NOMEM, err);
}

status job_queue_succeed(job_queue *q, queued_job *j, json_t *next, json_t *result, error *err)
{
	json_t *ended = next ? job_queue_in_state(next, "succeeded", true, NULL) : NULL;
	json_decref(next);
	if (ended && json_object_set(ended, "result", result) != 0) {
		json_decref(ended);
		ended = NULL;
	}
	return change(q, j, ended, NULL, err);
}

/* --- the end of a run -------------------------------------------------------------------------------- */

static bool is_machine_failure(status s)
{
	switch (s) {
	case STATUS_BUSY:
	case STATUS_CANCELLED:
	case STATUS_NOMEM:
	case STATUS_UNAVAILABLE:
	case STATUS_IO:
	case STATUS_DEVICE:
	case STATUS_FULL:
		return true;
	default:
		return false;
	}
}

/* Queue the job again. If the ledger write fails, the change is kept in memory only; after a restart the job starts at
 * once. */
static void try_again(job_queue *q, queued_job *j, const error *err)
{
	error ignored = ERROR_INIT;
	json_t *next = job_queue_in_state(j->document, "queued", false, err);
	const int64_t seconds = j->failures < 8 ? (int64_t)1 << j->failures : MAX_RETRY_SECONDS;
	j->failures++;
	j->retry_ns = clock_ns() + (uint64_t)seconds * SECOND_NS;
	log_line(LOG_WARN, "%s is tried again in %lld s: %s", j->id, (long long)seconds, error_message(err));
	json_object_set_new(next, FAILURES, json_integer(j->failures)); /* without memory it is only known to this
	                                                                 * process */
	job_trace_follow(next);
	if (next && put_state(q, next, err, &ignored) != STATUS_OK)
		log_line(LOG_WARN, "the ledger cannot store the state of %s: %s", j->id, error_message(&ignored));
	if (next)
		replace(q, j, next);
}

static void job_queue_fail(job_queue *q, queued_job *j, const error *reason)
{
	error err = ERROR_INIT;
	json_t *next = job_queue_in_state(j->document, "failed", true, reason);
	if (change(q, j, next, reason, &err) == STATUS_OK)
		job_queue_remove(q, j);
	else
		try_again(q, j, &err);
}

static void settle(job_queue *q, const char *id, status s, error *err)
{
	queued_job *j = job_queue_find(q, id);
	error_settle(err, s);
	death_log_end(q->parts->deaths, id);
	if (!j || q->stopping)
		return;
	if (s == STATUS_OK)
		job_queue_remove(q, j);
	else if (is_machine_failure(s) && !(s == STATUS_DEVICE && j->failures >= MAX_DEVICE_FAILURES))
		try_again(q, j, err);
	else
		job_queue_fail(q, j, err);
}

/* Fail a job that makes the engine die. */
static void fail_poison(job_queue *q, queued_job *j)
{
	error err = ERROR_INIT;
	error_set(&err, STATUS_INTERNAL, NULL, "the engine died %d times in a row while the job ran, without progress",
	          death_log_count(q->parts->deaths, j->id));
	log_line(LOG_ERROR, "%s fails: %s", j->id, error_message(&err));
	job_queue_fail(q, j, &err);
}

/* Return the job to run now; NULL: none is waiting, or the queue is stopping. */
static queued_job *next_job(job_queue *q)
{
	queued_job *j = q->stopping ? NULL : q->first;
	for (queued_job *next; j; j = next) {
		next = j->next;
		if (j->retry_ns > clock_ns())
			continue;
		if (q->kind->settles_poison || !death_log_poison(q->parts->deaths, j->id))
			break;
		fail_poison(q, j);
	}
	if (j)
		death_log_begin(q->parts->deaths, j->id);
	return j;
}

/* --- runs ------------------------------------------------------------------------------------------------ */

static void free_run(queued_run *r)
{
	if (!r)
		return;
	r->queue->kind->run->fini(r);
	catalog_release(r->model);
	free(r);
}

static status begin_run(job_queue *q, queued_job *j, error *err)
{
	const queued_run_steps *steps = q->kind->run;
	const char *name = member_text(j->document, "model");
	queued_run *r = q->run = memory_new(1, steps->bytes);
	if (!r)
		return STATUS_NOMEM;
	r->queue = q;
	snprintf(r->id, sizeof r->id, "%s", j->id);
	if ((!name && !q->kind->without_model) || !member_text(j->document, "file"))
		return error_set(err, STATUS_CORRUPT, NULL, "the %s's record is damaged", q->kind->noun);
	if (!q->kind->without_model)
		TRY(catalog_open(q->parts->catalog, name, &r->model, err));
	TRY(steps->open(r, j, err));
	json_t *next = job_queue_in_state(j->document, "running", false, NULL);
	job_trace_run(next, q->kind->first_phase);
	TRY(job_queue_change(q, j, next, err));
	return steps->start(r, j);
}

/* End the waiting jobs whose time has passed. */
static void end_overdue(job_queue *q)
{
	for (queued_job *j = q->first, *next; j && q->kind->overdue; j = next) {
		error err = ERROR_INIT;
		json_t *ended = job_queue_runs(q, j->id) ? NULL : q->kind->overdue(j);
		next = j->next;
		if (ended && change(q, j, ended, NULL, &err) == STATUS_OK)
			job_queue_remove(q, j);
		else if (ended)
			log_line(LOG_WARN, "%s cannot expire yet: %s", j->id, error_message(&err));
	}
}

void job_queue_run_next(job_queue *q)
{
	queued_job *j;
	if (!q->stopping)
		end_overdue(q);
	while (!q->run && fleet_is_open(q->parts->fleet) && (j = next_job(q))) {
		error err = ERROR_INIT;
		status s = begin_run(q, j, &err);
		if (s == STATUS_OK)
			return;
		queued_run *r = q->run;
		q->run = NULL;
		settle(q, j->id, s, &err);
		free_run(r);
	}
}

void job_queue_end_run(queued_run *r, status s, error *err)
{
	job_queue *q = r->queue;
	q->run = NULL;
	settle(q, r->id, s, err);
	free_run(r);
	job_queue_run_next(q);
}

static void cancel_run(job_queue *q)
{
	q->run->cancelled = true;
	q->kind->run->cancel(q->run);
}

void job_queue_stop(job_queue *q)
{
	q->stopping = true;
	if (q->run)
		cancel_run(q);
}

status job_queue_cancel(job_queue *q, queued_job *j, json_t **answer, error *err)
{
	char id[STORE_ID_BYTES];
	json_t *next = job_queue_in_state(j->document, "cancelled", true, NULL);
	memcpy(id, j->id, sizeof id);
	for (size_t i = 0; next && q->kind->hidden[i]; i++)
		if (strcmp(q->kind->hidden[i], "request") != 0)
			json_object_del(next, q->kind->hidden[i]); /* belongs to a run that will not continue */
	*answer = next ? job_queue_public(q, next) : NULL;
	if (!*answer) {
		json_decref(next);
		next = NULL;
	}
	status s = job_queue_change(q, j, next, err);
	if (s != STATUS_OK) {
		json_decref(*answer);
		*answer = NULL;
		return s;
	}
	job_queue_remove(q, j);
	if (job_queue_runs(q, id))
		cancel_run(q);
	return STATUS_OK;
}
