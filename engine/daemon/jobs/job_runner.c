/* job_runner.c - when a job succeeds, the model or adapter is stored first, then the job's row. After a crash between the two the
 * job is still "running"; its resumed run gives the same one, and finding it already stored is a success. If either
 * cannot be stored, the job is paused and its end is repeated from its newest checkpoint, usually that of the last
 * step. */
#include "engine/daemon/jobs/job_runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/death_log.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/memory.h"
#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/catalog/catalog.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/jobs/job_removal.h"
#include "engine/daemon/jobs/job_state.h"
#include "engine/daemon/queue/job_trace.h"

/* Return the job of the current run. It may be paused: its run has been stopped but may have made steps since. */
static job *find_of_run(const jobs *all, const char *id)
{
	job *j = job_queue_runs(&all->queue, id) ? job_table_find(all, id) : NULL;
	return j && !j->unsettled ? j : NULL;
}

/* --- reports --------------------------------------------------------------------------- */

static void note(jobs *all, job *j, json_t *event)
{
	if (job_state_note(j, event) == STATUS_OK)
		job_state_write_soon(all, j);
}

/* Report steps that changed no weight: each report that counts more steps with numbers that are not finite, and the
 * first one with steps that had no target. */
static void note_idle_steps(jobs *all, job *j, const train_progress *p)
{
	const json_t *before = json_object_get(j->base.document, "additive");
	if (p->skipped_steps > json_integer_value(json_object_get(before, "skipped_steps")))
		note(all, j,
		     job_document_event("warn",
		                        "Up to step %lld, %lld steps had a loss or gradient that was not finite, and "
		                        "changed no weight",
		                        (long long)p->step, (long long)p->skipped_steps));
	if (p->empty_steps > 0 && json_integer_value(json_object_get(before, "empty_steps")) == 0)
		note(all, j,
		     job_document_event("warn",
		                        "The blocks of step %lld hold prompts alone. Steps without a target have no "
		                        "loss and change no weight; empty_steps counts them. Longer blocks, or "
		                        "reset_at_document, avoid them.",
		                        (long long)p->step));
}

static void on_progress(void *context, const char *id, const train_progress *p)
{
	jobs *all = context;
	job *j = find_of_run(all, id);
	if (!j)
		return;
	job_state_progress(all, j, p->step);
	note_idle_steps(all, j, p);
	job_document_progress(j->base.document, p); /* without memory the document keeps the previous progress */
}

static void note_event(jobs *all, const char *id, json_t *event)
{
	job *j = find_of_run(all, id);
	if (!j) {
		json_decref(event);
		return;
	}
	if (job_state_note(j, event) == STATUS_OK)
		job_state_write_soon(all, j);
	else
		log_line(LOG_WARN, "an event of %s is lost: out of memory", id);
}

static void on_phase(void *context, const char *id, const char *name)
{
	job *j = find_of_run(context, id);
	if (!j || j->state != JOB_RUNNING || !json_object_get(j->base.document, JOB_TRACE))
		return;
	job_trace_phase(j->base.document, name);
	j->stale = true;
}

/* The ledger gets it with the next state or checkpoint. What a crash loses, the next run repeats. */
static void on_span(void *context, const char *id, const char *name, int64_t step, uint64_t ns)
{
	job *j = find_of_run(context, id);
	if (j && ns > 0) /* otherwise unknown */
		job_trace_step(j->base.document, name, step, ns);
}

static void on_event(void *context, const char *id, json_t *event)
{
	note_event(context, id, event);
}

/* A run that continues from a checkpoint repeats steps with the same numbers; each step is reported once. */
static void on_metrics(void *context, const char *id, const train_progress *p, bool evaluated, json_t *preview)
{
	jobs *all = context;
	job *j = find_of_run(all, id);
	if (!j || p->step <= j->metrics_step || json_array_size(j->unwritten) >= JOB_STATE_MAX_UNWRITTEN)
		return;
	j->metrics_step = p->step;
	note_event(all, id, job_document_metrics(p, evaluated, preview));
}

static bool is_written(void *context, const char *id)
{
	const job *j = find_of_run(context, id);
	return !j || json_array_size(j->unwritten) == 0;
}

static status keep_checkpoint(jobs *all, const char *id, int64_t step, json_t *row, error *err)
{
	job *j = job_table_find(all, id);
	if (!j) /* the job was cancelled in between; the checkpoint is valid nevertheless */
		return store_checkpoint_add(all->queue.parts->store, id, step, row, err);
	TRY(job_state_note(j, json_incref(row)));
	TRY(job_state_note(j, job_document_event("info", "Checkpoint created at step %lld: %s", (long long)step,
	                                         job_document_text(row, "id"))));
	job_document_set_damage(j->base.document, step, NULL);
	j->stale = true; /* keeps the progress for after a crash */
	job_state_write_soon(all, j);
	if (!j->stale)
		job_removal_prune(all, j);
	return STATUS_OK;
}

static void on_checkpoint(void *context, const char *id, json_t *row)
{
	jobs *all = context;
	error err = ERROR_INIT;
	int64_t step = json_integer_value(json_object_get(row, "step_number"));
	if (error_settle(&err, keep_checkpoint(all, id, step, row, &err)) == STATUS_OK)
		death_log_forget(all->queue.parts->deaths, id); /* the next run starts further on */
	else
		log_line(LOG_WARN, "the checkpoint of %s at step %lld is lost: %s", id, (long long)step,
		         error_message(&err));
	catalog_forget(all->queue.parts->catalog, job_document_text(row, "id")); /* it may replace a checkpoint of the
	                                                                          * same step */
}

static status on_damaged(void *context, const char *id, int64_t step, const error *err)
{
	jobs *all = context;
	char name[STORE_ID_BYTES];
	job *j = find_of_run(all, id);
	if (!j)
		return STATUS_OK;
	job_document_checkpoint_name(id, step, name);
	store_note_damage(all->queue.parts->store, STORE_CHECKPOINTS, name, error_message(err));
	if (!job_document_set_damage(j->base.document, step, error_message(err)))
		return STATUS_NOMEM;
	status s = job_state_note(j, job_document_event("warn", "The checkpoint at step %lld is damaged: %s",
	                                                (long long)step, error_message(err)));
	j->stale = true;
	job_state_write_soon(all, j);
	return s;
}

/* --- the end ----------------------------------------------------------------------------- */

/* Describe why a run ended before its last step, or why its weights are not the last ones; NULL: neither. */
static json_t *describe_end(const train_progress *p)
{
	const bool early = p->step < p->total_steps;
	if (isfinite(p->suggested_rate))
		return job_document_event(
		    "info",
		    "The range test ended at a rate of %.3g, step %lld of %lld; the training loss fell fastest at %.3g",
		    p->learning_rate, (long long)p->step, (long long)p->total_steps, p->suggested_rate);
	if (!early && p->result_step == p->step)
		return NULL;
	return job_document_event("info",
	                          "%s step %lld of %lld; the lowest validation loss, %.4f, was that of step %lld%s",
	                          early ? "Stopped early, after" : "Ended after", (long long)p->step,
	                          (long long)p->total_steps, p->best_valid_loss, (long long)p->best_step,
	                          p->result_step == p->step ? "" : ", whose weights the model has");
}

/* The weights of a range test are not kept; its report is the result. */
static status end_range_test(jobs *all, job *j, const char *folder, const train_progress *p, error *err)
{
	error ignored = ERROR_INIT;
	json_t *events =
	    json_pack("[o*, o]", describe_end(p), job_document_event("info", "The job has successfully completed"));
	TRY(job_state_end(all, j, job_document_succeeded(j->base.document, NULL, p), events, err));
	if (file_remove_tree(folder, &ignored) != STATUS_OK)
		log_line(LOG_WARN, "%s", error_message(&ignored));
	return STATUS_OK;
}

static status succeed(jobs *all, job *j, const char *folder, const train_progress *p, error *err)
{
	if (job_document_is_range_test(j->base.document))
		return end_range_test(all, j, folder, p, err);
	const char *name = job_document_text(json_object_get(j->base.document, "request"), "result");
	error reason = ERROR_INIT;
	if (!name)
		return error_set(err, STATUS_CORRUPT, NULL, "the job's record is damaged");
	const bool adapter = job_document_is_adapter(j->base.document);
	const job_parts *parts = all->queue.parts;
	status s = adapter ? adapters_add(parts->store, folder, &reason)
	                   : catalog_add(parts->catalog, name, folder, project_of(j->base.document), &reason);
	if (s != STATUS_OK && s != STATUS_CONFLICT) {
		error_settle(&reason, s);
		return error_set(err, s, NULL, "the %s could not be kept: %s", adapter ? "adapter" : "model",
		                 error_message(&reason));
	}
	json_t *events = json_pack("[o*, o, o]", describe_end(p),
	                           job_document_event("info", "New %s created: %s", adapter ? "adapter" : "fine-tuned model",
	                                              name),
	                           job_document_event("info", "The job has successfully completed"));
	return job_state_end(all, j, job_document_succeeded(j->base.document, name, p), events, err);
}

/* Queue a job again whose run has found its checkpoint damaged and has recorded that. It starts from another one. */
static void queue_again(jobs *all, job *j)
{
	json_t *next = job_document_in_state(j->base.document, "queued");
	status s = job_state_follow(all, j, JOB_QUEUED, next, json_array());
	if (s != STATUS_OK)
		job_state_fail(all, j, &(error){.status = s});
}

static void on_ended(void *context, const char *id, const char *result, const train_progress *p, const error *err)
{
	jobs *all = context;
	job *j = find_of_run(all, id);
	error reason = *err;
	all->queue.run = NULL;
	death_log_end(all->queue.parts->deaths, id);
	j = j && j->state == JOB_RUNNING ? j : NULL;
	if (j && result)
		error_settle(&reason, succeed(all, j, result, p, &reason));
	if (j && reason.status != STATUS_OK)
		job_state_fail(all, j, &reason);
	else if (j && !result && !all->queue.stopping)
		queue_again(all, j);
	job_runner_next(all);
}

static const job_run_listener listener = {on_progress, on_metrics,    is_written, on_phase, on_span,
                                          on_event,    on_checkpoint, on_damaged, on_ended};

/* --- beginning --------------------------------------------------------------------------- */

typedef struct collection {
	const json_t *job;
	job_run_from *from;
	bool failed;
} collection;

static bool collect_step(void *context, const json_t *row)
{
	collection *c = context;
	int64_t step = json_integer_value(json_object_get(row, "step_number"));
	if (job_document_damage(c->job, step)) {
		c->from->damaged = true;
		return true;
	}
	int64_t *more = realloc(c->from->steps, (c->from->n + 1) * sizeof *more);
	c->failed = !more;
	if (!more)
		return false;
	c->from->steps = more;
	more[c->from->n++] = step;
	return true;
}

static int by_step(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x < y) - (x > y);
}

static status find_checkpoints(const jobs *all, const job *j, job_run_from *from, error *err)
{
	bool more;
	collection c = {.job = j->base.document, .from = from};
	status s = store_list(all->queue.parts->store, STORE_CHECKPOINTS, &(store_page){.parent = j->base.id},
	                      collect_step, &c, &more, err);
	s = c.failed ? STATUS_NOMEM : s;
	if (s == STATUS_OK && from->n > 1)
		qsort(from->steps, from->n, sizeof *from->steps, by_step);
	return s;
}

static bool read_metrics_step(void *context, const json_t *event)
{
	const json_t *step = json_object_get(json_object_get(event, "data"), "step");
	if (step)
		*(int64_t *)context = json_integer_value(step);
	return !step;
}

/* Look up the last metrics step of a job that has run in another process. */
static status find_metrics_step(const jobs *all, job *j, error *err)
{
	bool more;
	int64_t step = 0;
	if (j->metrics_step >= 0)
		return STATUS_OK;
	TRY(store_list(all->queue.parts->store, STORE_EVENTS, &(store_page){.parent = j->base.id}, read_metrics_step,
	               &step, &more, err));
	j->metrics_step = step;
	return STATUS_OK;
}

/* Start the run of j. Its state is written first, so a job with a run is "running" also after a crash. */
static status job_runner_begin(jobs *all, job *j, error *err)
{
	job_run_from from = {0};
	TRY(find_metrics_step(all, j, err));
	json_t *next = job_document_in_state(j->base.document, "running");
	job_trace_run(next, all->queue.kind->first_phase);
	TRY(job_state_change(all, j, JOB_RUNNING, next, json_array(), err));
	status s = find_checkpoints(all, j, &from, err);
	if (s != STATUS_OK) {
		free(from.steps);
		return s;
	}
	death_log_begin(all->queue.parts->deaths, j->base.id);
	s = job_run_begin(&all->queue, &j->base, &from, &j->texts, &listener, err);
	if (s != STATUS_OK)
		death_log_end(all->queue.parts->deaths, j->base.id);
	return s;
}

void job_runner_next(jobs *all)
{
	while (!all->queue.run && !all->queue.stopping) {
		error err = ERROR_INIT;
		job *j = job_table_first(all);
		while (j && (j->state != JOB_QUEUED || j->unsettled))
			j = job_table_next(j);
		if (!j)
			return;
		if (job_state_quarantine(all, j))
			continue;
		status s = job_runner_begin(all, j, &err);
		if (s == STATUS_OK)
			return;
		error_settle(&err, s);
		job_state_fail(all, j, &err);
	}
}
