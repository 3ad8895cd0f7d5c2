/* job_state.c - items that are not in the ledger yet are kept in job.unwritten and are part of the next commit,
 * whatever its purpose. So events keep their order, and the ledger never has an event without the row that it
 * reports. */
#include "engine/daemon/jobs/job_state.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/death_log.h"
#include "engine/base/log.h"
#include "engine/daemon/queue/job_trace.h"
#include "engine/recipe/job_document.h"

enum { SECOND_NS = 1000000000 };

/* --- writing ------------------------------------------------------------------------- */

status job_state_note(job *j, json_t *item)
{
	if (json_array_size(j->unwritten) >= (size_t)2 * JOB_STATE_MAX_UNWRITTEN) {
		log_line(LOG_WARN, "an event of %s is lost: the ledger has stored none for too long", j->base.id);
		json_decref(item);
		return STATUS_OK;
	}
	return json_array_append_new(j->unwritten, item) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static status write_item(store *s, const char *id, json_t *item, error *err)
{
	const json_t *step = json_object_get(item, "step_number");
	return step ? store_checkpoint_add(s, id, json_integer_value(step), item, err)
	            : store_event_add(s, id, item, err);
}

static status job_state_write_all(store *s, const job *j, error *err)
{
	size_t i;
	json_t *item;
	const char *name = job_document_text(j->base.document, "status");
	if (j->stale)
		TRY(store_job_put(s, j->base.id, name ? name : "", j->base.document, err));
	json_array_foreach(j->unwritten, i, item) TRY(write_item(s, j->base.id, item, err));
	return STATUS_OK;
}

/* Commit the job's row, if it is stale, and the queued items, and serve the watches. On failure all of it stays
 * queued. */
static status write_job(jobs *all, job *j, error *err)
{
	store *s = all->queue.parts->store;
	status result = store_begin(s, err);
	if (result == STATUS_OK)
		result = store_end(s, job_state_write_all(s, j, err), err);
	if (result != STATUS_OK)
		return error_settle(err, result);
	json_array_clear(j->unwritten);
	j->stale = false;
	j->late_ns = 0;
	job_watch_pump(all->queue.watches, j->base.id);
	return STATUS_OK;
}

void job_state_write_soon(jobs *all, job *j)
{
	error err = ERROR_INIT;
	if (write_job(all, j, &err) == STATUS_OK)
		return;
	bool known = j->late_ns;
	j->late_ns = clock_ns() + SECOND_NS;
	if (!known)
		log_line(LOG_WARN, "the ledger cannot store the state of %s and will retry: %s", j->base.id,
		         error_message(&err));
}

/* --- changing ------------------------------------------------------------------------- */

static void truncate_to(json_t *array, size_t n)
{
	while (json_array_size(array) > n)
		json_array_remove(array, json_array_size(array) - 1);
}

status job_state_change(jobs *all, job *j, job_state state, json_t *next, json_t *events, error *err)
{
	size_t n = json_array_size(j->unwritten);
	json_t *before = j->base.document;
	job_state was = j->state;
	bool stale = j->stale;
	job_trace_follow(next);
	status s = next && events && json_array_extend(j->unwritten, events) == 0 ? STATUS_OK : STATUS_NOMEM;
	json_decref(events);
	if (s == STATUS_OK) {
		j->base.document = next;
		j->state = state;
		j->stale = true;
		s = write_job(all, j, err);
	}
	if (s == STATUS_OK) {
		json_decref(before);
		return s;
	}
	truncate_to(j->unwritten, n);
	j->base.document = before;
	j->state = was;
	j->stale = stale;
	json_decref(next);
	return error_settle(err, s);
}

status job_state_add(jobs *all, const char *id, json_t *document, json_t *events, error *err)
{
	job *j = (job *)job_queue_make(&all->queue, id, document);
	if (!j) {
		json_decref(events);
		return STATUS_NOMEM;
	}
	status s = job_state_change(all, j, JOB_QUEUED, json_incref(document), events, err);
	if (s == STATUS_OK)
		job_queue_append(&all->queue, &j->base);
	else
		job_queue_release(&all->queue, &j->base);
	return s;
}

status job_state_follow(jobs *all, job *j, job_state state, json_t *next, json_t *events)
{
	job_trace_follow(next);
	if (!next || !events || json_array_extend(j->unwritten, events) != 0) {
		json_decref(next);
		json_decref(events);
		return STATUS_NOMEM;
	}
	json_decref(events);
	json_decref(j->base.document);
	j->base.document = next;
	j->state = state;
	j->stale = true;
	job_state_write_soon(all, j);
	return STATUS_OK;
}

status job_state_end(jobs *all, job *j, json_t *next, json_t *events, error *err)
{
	TRY(job_state_change(all, j, j->state, next, events, err));
	death_log_forget(all->queue.parts->deaths, j->base.id);
	job_queue_remove(&all->queue, &j->base);
	all->sweep_ns = 0;
	return STATUS_OK;
}

/* --- failures --------------------------------------------------------------------------- */

/* True for a failure of the machine, which may be temporary; false for one of the job. */
static bool may_pass(status s)
{
	switch (s) {
	case STATUS_IO:
	case STATUS_FULL:
	case STATUS_NOMEM:
	case STATUS_DEVICE:
	case STATUS_STORAGE:
	case STATUS_BUSY:
	case STATUS_UNAVAILABLE:
		return true;
	default:
		return false;
	}
}

static int pause_seconds(int failures)
{
	int seconds = 1;
	for (int i = 1; i < failures && seconds < JOB_STATE_MAX_PAUSE_SECONDS; i++)
		seconds *= 2;
	return seconds < JOB_STATE_MAX_PAUSE_SECONDS ? seconds : JOB_STATE_MAX_PAUSE_SECONDS;
}

static bool same_reason(const error *a, const error *b)
{
	return a->status == b->status && strcmp(a->message, b->message) == 0;
}

/* Send one event for each new reason, not for each attempt. */
static void pause_for(jobs *all, job *j, const error *err)
{
	int seconds = pause_seconds(j->base.failures + 1);
	json_t *events = json_array();
	if (events && (j->unsettled || !same_reason(&j->reason, err)) &&
	    json_array_append_new(events, job_document_event("warn", "The job is paused and will be tried again: %s",
	                                                     error_message(err))) != 0) {
		json_decref(events);
		events = NULL;
	}
	json_t *next = job_document_paused(j->base.document, err, clock_unix() + seconds, j->device_failures);
	j->unsettled = job_state_follow(all, j, JOB_PAUSED, next, events) != STATUS_OK;
	j->reason = *err;
	if (j->unsettled)
		return;
	j->base.failures++;
	j->base.retry_ns = clock_ns() + (uint64_t)seconds * SECOND_NS;
	log_line(LOG_WARN, "%s is paused for %d s: %s", j->base.id, seconds, error_message(err));
}

/* False: the ledger refuses the commit. */
static bool end_failed(jobs *all, job *j, const error *reason, error *err)
{
	json_t *events = json_pack("[o]", job_document_event("error", "The job failed: %s", error_message(reason)));
	return job_state_end(all, j, job_document_ended(j->base.document, "failed", reason), events, err) == STATUS_OK;
}

void job_state_fail(jobs *all, job *j, const error *failure)
{
	error reason = *failure, err = ERROR_INIT;
	error_settle(&reason, STATUS_INTERNAL);
	if (reason.status == STATUS_DEVICE && !j->unsettled)
		j->device_failures++;
	bool for_good = reason.status == STATUS_DEVICE && j->device_failures > JOB_STATE_MAX_FAILURES;
	if (may_pass(reason.status) && !for_good)
		pause_for(all, j, &reason);
	else if (!end_failed(all, j, &reason, &err))
		pause_for(all, j, &err); /* its next run fails in the same way and can then be written */
}

bool job_state_quarantine(jobs *all, job *j)
{
	error err = ERROR_INIT;
	if (!death_log_poison(all->queue.parts->deaths, j->base.id))
		return false;
	error_set(&err, STATUS_INTERNAL, NULL,
	          "the engine died %d times in a row while the job ran, without progress; resume tries again",
	          death_log_count(all->queue.parts->deaths, j->base.id));
	json_t *next = job_document_paused(j->base.document, &err, 0, j->device_failures);
	json_t *events = json_pack("[o]", job_document_event("error", "The job is paused: %s", error_message(&err)));
	j->unsettled = job_state_follow(all, j, JOB_PAUSED, next, events) != STATUS_OK;
	j->reason = err;
	j->base.retry_ns = 0;
	log_line(LOG_ERROR, "%s is paused: %s", j->base.id, error_message(&err));
	return true;
}

void job_state_progress(jobs *all, job *j, int64_t step)
{
	death_log_progress(all->queue.parts->deaths, j->base.id, step);
	if (step <= j->best_step)
		return;
	j->best_step = step;
	j->base.failures = j->device_failures = 0;
	j->reason = (error)ERROR_INIT;
	job_document_forget_device_failures(j->base.document);
}

/* --- retries ------------------------------------------------------------------------------ */

static void retry(jobs *all, job *j)
{
	error err = ERROR_INIT;
	json_t *next = job_document_in_state(j->base.document, "queued");
	if (job_state_change(all, j, JOB_QUEUED, next, json_array(), &err) == STATUS_OK)
		j->base.retry_ns = 0;
	else
		pause_for(all, j, &err);
}

void job_state_tick(jobs *all)
{
	for (job *j = job_table_first(all), *next; j; j = next) {
		next = job_table_next(j); /* a failure may free j */
		error err = j->reason;
		if (j->unsettled)
			job_state_fail(all, j, &err);
		else if (j->state == JOB_PAUSED && j->base.retry_ns && clock_ns() >= j->base.retry_ns)
			retry(all, j);
		else if (j->late_ns && clock_ns() >= j->late_ns)
			job_state_write_soon(all, j);
	}
}
