#include "engine/daemon/job_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/daemon/job_document.h"

/* Metrics events: at most two a second at first, and then ever fewer, so that a job of a week has some fifteen
 * thousand and not a million: the interval is the larger of half a second and a 2000th of the time so far. */
enum { METRICS_NS = 500000000, METRICS_SHARE = 2000 };

struct job_run {
	jobs *jobs;
	engine *engine;
	const job_run_listener *listener;
	char id[STORE_ID_BYTES];
	json_t *request; /* the document's; the corpus borrows from it */
	corpus corpus;
	uv_work_t work;
	training_plan plan;
	training *training; /* NULL while the corpus is built */
	bool stopping;
	uint64_t began_ns, metrics_ns;
};

static void run_free(job_run *r)
{
	corpus_fini(&r->corpus);
	if (r->plan.result[0])
		file_remove_tree(r->plan.result, NULL); /* what was not taken over */
	training_plan_fini(&r->plan);
	json_decref(r->request);
	free(r);
}

static void end(job_run *r, const char *result, const train_progress *p, const error *err)
{
	r->listener->ended(r->jobs, r->id, result, p, err);
	run_free(r);
}

/* --- reports --------------------------------------------------------------------- */

static void tell_metrics(job_run *r, const train_progress *p, bool evaluated)
{
	uint64_t now = clock_ns(), interval = (now - r->began_ns) / METRICS_SHARE;
	interval = interval < METRICS_NS ? METRICS_NS : interval;
	bool last = p->step == p->total_steps;
	r->listener->progress(r->jobs, r->id, p);
	if (!evaluated && !last && now - r->metrics_ns < interval)
		return;
	r->metrics_ns = now;
	r->listener->event(r->jobs, r->id, job_document_metrics(p, evaluated));
}

static void tell_start(job_run *r, const train_progress *p)
{
	char message[96];
	if (p->step > 0)
		snprintf(message, sizeof message, "Fine-tuning job goes on from the checkpoint at step %lld",
		         (long long)p->step);
	else
		snprintf(message, sizeof message, "Fine-tuning job started");
	r->listener->progress(r->jobs, r->id, p);
	r->listener->event(r->jobs, r->id, job_document_event("info", message));
}

static void tell_saved(job_run *r, const training_report *report)
{
	char message[512];
	if (report->error.status == STATUS_OK) {
		r->listener->checkpoint(r->jobs, r->id, &report->progress);
		return;
	}
	snprintf(message, sizeof message, "The checkpoint at step %lld could not be saved: %s",
	         (long long)report->progress.step, error_message(&report->error));
	r->listener->event(r->jobs, r->id, job_document_event("warn", message));
}

static void on_report(void *context, const training_report *report)
{
	job_run *r = context;
	switch (report->kind) {
	case TRAINING_STARTED:
		tell_start(r, &report->progress);
		break;
	case TRAINING_PROGRESS:
		tell_metrics(r, &report->progress, false);
		break;
	case TRAINING_EVALUATED:
		tell_metrics(r, &report->progress, true);
		break;
	case TRAINING_SAVED:
		tell_saved(r, report);
		break;
	case TRAINING_ENDED:
		training_free(r->training);
		end(r, report->finished ? r->plan.result : NULL, &report->progress, &report->error);
		break;
	}
}

/* --- beginning ------------------------------------------------------------------- */

static void pool_build(uv_work_t *work)
{
	job_run *r = work->data;
	corpus_build(&r->corpus);
}

static void built(uv_work_t *work, int cancelled)
{
	job_run *r = work->data;
	train_progress none = {0};
	error err = r->corpus.error;
	(void)cancelled; /* nothing cancels a request */
	if (err.status == STATUS_OK && !r->stopping) {
		r->plan.tokenizer = r->corpus.tokenizer;
		r->plan.train = r->corpus.train;
		r->plan.valid = r->corpus.valid;
		r->corpus.tokenizer = NULL;
		r->corpus.train = r->corpus.valid = NULL;
		status s = training_begin(&r->training, r->engine->executor, &r->plan);
		if (s == STATUS_OK)
			return;
		error_set(&err, s, NULL, "%s", status_text(s));
	}
	if (r->stopping)
		err = (error)ERROR_INIT;
	end(r, NULL, &none, &err);
}

static status describe(job_run *r, int64_t step, error *err)
{
	training_plan *p = &r->plan;
	const store *s = r->engine->store;
	char folder[PATH_MAX];
	const char *base = json_string_value(json_object_get(r->request, "base"));
	TRY(job_request_restore(r->request, r->engine, &r->corpus, &p->options, &p->architecture, err));
	p->config = json_deep_copy(json_object_get(r->request, "config"));
	p->save_ns = (uint64_t)json_integer_value(json_object_get(r->request, "save_seconds")) * 1000000000u;
	p->store = s;
	p->report = on_report;
	p->context = r;
	snprintf(p->job, sizeof p->job, "%s", r->id);
	store_temporary_path(r->engine->store, p->result);
	if (base)
		snprintf(p->base, sizeof p->base, "%s", r->corpus.folder);
	if (step >= 0)
		store_checkpoint_folder(s, r->id, step, p->resume);
	store_job_folder(s, r->id, folder);
	return p->config ? file_make_folders(folder, err) : STATUS_NOMEM;
}

status job_run_begin(job_run **out, jobs *all, engine *e, const job *j, int64_t step, const job_run_listener *listener,
                     error *err)
{
	*out = NULL;
	job_run *r = memory_new(1, sizeof *r);
	if (!r)
		return STATUS_NOMEM;
	r->jobs = all;
	r->engine = e;
	r->listener = listener;
	r->began_ns = clock_ns();
	r->work.data = r;
	r->request = json_incref(json_object_get(j->document, "request"));
	snprintf(r->id, sizeof r->id, "%s", j->id);
	status s = describe(r, step, err);
	if (s == STATUS_OK && uv_queue_work(&e->loop, &r->work, pool_build, built) != 0)
		s = STATUS_NOMEM;
	if (s != STATUS_OK) {
		run_free(r);
		return s;
	}
	*out = r;
	return STATUS_OK;
}

const char *job_run_id(const job_run *r)
{
	return r->id;
}

void job_run_stop(job_run *r, bool save)
{
	r->stopping = true;
	if (r->training)
		training_stop(r->training, save);
}
