#include "engine/daemon/jobs/job_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/recipe/job_check.h"
#include "engine/train/objective.h"
#include "engine/recipe/job_tokenizer.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/catalog/model_cards.h"
#include "engine/daemon/jobs/job_store.h"
#include "engine/daemon/jobs/rank_training.h"

/* Interval of metrics events: the larger of half a second and a 2000th of the run's time. A job of a week then has
 * about fifteen thousand events, not a million. */
enum { METRICS_NS = 500000000, METRICS_SHARE = 2000 };
/* Minimum seconds between two reports of saves that fail for the same reason. */
enum { UNSAVED_SECONDS = TRAINING_RESAVE_SECONDS, SECOND_NS = 1000000000 };

/* A checkpoint that the pool found damaged. */
typedef struct finding {
	int64_t step;
	error err;
} finding;

struct job_run {
	queued_run base;
	const job_run_listener *listener;
	json_t *request; /* borrowed from the document; the corpus borrows from it */
	corpus corpus;
	job_run_from from;
	finding *found; /* one for each damaged checkpoint, of from.n */
	size_t n_found;
	uv_work_t work;
	training_plan plan;
	training *training;   /* NULL while the corpus is built or if `ranks` is set */
	int at;               /* number of the device that trains; with `training` */
	rank_training *ranks; /* a run of several processes; NULL otherwise */
	bool stopping;
	bool warned; /* the warning about loss at chance level was sent */
	uint64_t began_ns, metrics_ns, unsaved_ns;
	status unsaved; /* status of the last save, if it failed */
};

static void job_run_run_free(job_run *r)
{
	corpus_free(&r->corpus.texts);
	if (r->plan.result[0])
		file_remove_tree(r->plan.result, NULL); /* files that were not taken over */
	training_plan_fini(&r->plan);
	json_decref(r->request);
	free(r->from.steps);
	free(r->found);
	free(r);
}

static void job_run_end(job_run *r, const char *result, const train_progress *p, const error *err)
{
	r->listener->ended(r->base.queue, r->base.id, result, p, err);
	job_run_run_free(r);
}

/* --- reports --------------------------------------------------------------------- */

/* True if an evaluation of this step follows; its event then reports both. */
static bool will_be_evaluated(const job_run *r, const train_progress *p)
{
	int64_t every = r->plan.options.eval_every;
	return r->plan.valid && (p->step == p->total_steps || (every > 0 && p->step % every == 0));
}

/* Warn at the first and the last evaluation if the second half of a run has learned nothing. */
static void warn_of_chance(job_run *r, const train_progress *p)
{
	const objective *o = r->plan.options.objective;
	const bool late = 2 * p->step >= p->total_steps, last = p->step == p->total_steps;
	if (!o->at_chance || !late || !o->at_chance(p) || (r->warned && !last) ||
	    r->plan.options.schedule == SCHEDULE_RANGE_TEST)
		return;
	r->warned = true;
	r->listener->event(r->base.queue, r->base.id,
	                   job_document_event("warn",
	                                      "Step %lld: the validation is no better than chance. A lower "
	                                      "learning_rate, more steps or more data may help",
	                                      (long long)p->step));
}

/* Report metrics; preview as in training_report. */
static void report_metrics(job_run *r, const train_progress *p, bool evaluated, json_t *preview)
{
	uint64_t now = clock_ns(), interval = (now - r->began_ns) / METRICS_SHARE;
	interval = interval < METRICS_NS ? METRICS_NS : interval;
	bool last = p->step == p->total_steps, early = !last && now - r->metrics_ns < interval;
	r->listener->progress(r->base.queue, r->base.id, p);
	if (!evaluated && (early || will_be_evaluated(r, p)))
		return;
	r->metrics_ns = now;
	r->listener->metrics(r->base.queue, r->base.id, p, evaluated, preview);
	if (evaluated)
		warn_of_chance(r, p);
}

static void report_start(job_run *r, const train_progress *p)
{
	json_t *event =
	    p->step > 0 ? job_document_event("info", "Fine-tuning job continues from the checkpoint at step %lld",
	                                     (long long)p->step)
	    : r->from.damaged || r->n_found > 0
	        ? job_document_event("warn", "Fine-tuning job starts again at step 0: no checkpoint is intact")
	    : !isfinite(p->byte_entropy)
	        ? job_document_event("info", "Fine-tuning job started")
	        : job_document_event("info",
	                             "Fine-tuning job started; by their frequencies alone the bytes of its text have "
	                             "%.2f bits each, which a model has to beat",
	                             p->byte_entropy);
	r->listener->progress(r->base.queue, r->base.id, p);
	r->listener->phase(r->base.queue, r->base.id, "training");
	r->listener->event(r->base.queue, r->base.id, event);
}

static void report_saved(job_run *r, const training_report *report)
{
	status result = report->error.status, before = r->unsaved;
	uint64_t now = clock_ns();
	r->unsaved = result;
	if (result == STATUS_OK) {
		r->listener->span(r->base.queue, r->base.id, "checkpoint", report->progress.step, report->took_ns);
		r->listener->checkpoint(r->base.queue, r->base.id, report->checkpoint);
		return;
	}
	if (result == before && now - r->unsaved_ns < (uint64_t)UNSAVED_SECONDS * SECOND_NS && !r->stopping)
		return;
	r->unsaved_ns = now;
	r->listener->event(
	    r->base.queue, r->base.id,
	    job_document_event("warn", "The checkpoint at step %lld could not be saved; it is tried again later: %s",
	                       (long long)report->progress.step, error_message(&report->error)));
}

/* Name the file that has changed. */
static void name_data(const job_run *r, error *err)
{
	const char *key = strcmp(err->param, "training_data") == 0     ? "training_file"
	                  : strcmp(err->param, "validation_data") == 0 ? "validation_file"
	                                                               : NULL;
	const char *id = key ? json_string_value(json_object_get(r->request, key)) : NULL;
	if (!key || err->status != STATUS_STORAGE)
		return;
	id = id ? id : json_string_value(json_object_get(r->request, "training_file"));
	snprintf(err->message, sizeof err->message, "the file %s is not the one that the checkpoint was trained on",
	         id ? id : "");
	snprintf(err->param, sizeof err->param, "%s", key);
}

static void on_ended(job_run *r, const training_report *report)
{
	error err = report->error;
	if (r->training)
		fleet_leave_training(r->base.queue->parts->fleet, r->at);
	training_free(r->training);
	rank_training_free(r->ranks);
	name_data(r, &err);
	if (report->damaged) {
		status s = r->listener->damaged(r->base.queue, r->base.id, r->from.steps[r->n_found], &err);
		err = (error)ERROR_INIT;
		error_settle(&err, s);
	}
	job_run_end(r, report->finished ? r->plan.result : NULL, &report->progress, &err);
}

static bool on_report(void *context, const training_report *report)
{
	job_run *r = context;
	switch (report->kind) {
	case TRAINING_STARTED:
		report_start(r, &report->progress);
		break;
	case TRAINING_PROGRESS:
		report_metrics(r, &report->progress, false, NULL);
		break;
	case TRAINING_EVALUATED:
		r->listener->span(r->base.queue, r->base.id, "validation", report->progress.step, report->took_ns);
		report_metrics(r, &report->progress, true, report->preview);
		return r->listener->written(r->base.queue, r->base.id);
	case TRAINING_SAVED:
		report_saved(r, report);
		break;
	case TRAINING_ENDED:
		on_ended(r, report);
		break;
	}
	return true;
}

/* --- beginning ------------------------------------------------------------------- */

static const char *name_of(const job_run *r, const char *key)
{
	const char *name = json_string_value(json_object_get(r->request, key));
	return name ? name : "";
}

/* Check the files that the job was created from. */
static status check_sources(job_run *r, error *err)
{
	const corpus *c = &r->corpus;
	char path[PATH_MAX];
	for (size_t i = 0; i < c->n_training; i++) {
		c->paths.path(c->paths.context, c->training[i].id, path);
		TRY(job_check_file(path, c->training[i].id, err));
	}
	if (c->validation[0]) {
		c->paths.path(c->paths.context, c->validation, path);
		TRY(job_check_file(path, c->validation, err));
	}
	if (!r->plan.base[0])
		return STATUS_OK;
	status s = job_check_folder(r->plan.base, name_of(r, "base"), err);
	return job_check_blame(err, s, "model", name_of(r, "base"));
}

/* Find the newest intact checkpoint, if any: from.steps[n_found]. */
static status check_checkpoints(job_run *r, error *err)
{
	char name[32];
	for (; r->n_found < r->from.n; r->n_found++) {
		finding *f = &r->found[r->n_found];
		*f = (finding){.step = r->from.steps[r->n_found]};
		snprintf(name, sizeof name, "step-%lld", (long long)f->step);
		store_checkpoint_folder(r->plan.store, r->base.id, f->step, r->plan.resume);
		status s = job_check_folder(r->plan.resume, name, &f->err);
		if (s == STATUS_OK)
			return s;
		if (!job_check_is_damage(s))
			return error_set(err, s, NULL, "%s", error_message(&f->err));
	}
	r->plan.resume[0] = 0;
	return STATUS_OK;
}

/* Return the model or file that the tokenizer comes from. */
static const char *tokenizer_owner(const job_run *r)
{
	const char *file = job_tokenizer_file(r->corpus.spec), *base = name_of(r, "base");
	return file ? file : base[0] ? base : r->base.id;
}

/* Count how often each token occurs in all texts, for a new model whose options need it. */
static status count_tokens(job_run *r, error *err)
{
	training_plan *p = &r->plan;
	if (p->resume[0] || p->base[0] || p->counts || !p->architecture->counts_tokens)
		return STATUS_OK;
	return corpus_count(&r->corpus.texts, r->corpus.vocab, &p->counts, err);
}

/* Build the corpus. The texts were readable when the job was created, so a failure means damage. */
static status job_run_build(job_run *r, error *err)
{
	TRY(check_sources(r, err));
	TRY(check_checkpoints(r, err));
	if (r->plan.resume[0] && tokenizer_trains(r->corpus.spec)) /* a checkpoint has a copy */
		snprintf(r->corpus.folder, sizeof r->corpus.folder, "%s", r->plan.resume);
	status s = corpus_build(&r->corpus);
	if (s == STATUS_OK)
		return count_tokens(r, err);
	*err = r->corpus.error;
	if (strstr(err->param, "tokenizer"))
		return job_check_blame(err, s, "tokenizer of", tokenizer_owner(r));
	bool validation = strcmp(err->param, "validation_file") == 0;
	return job_check_blame(err, s, "file", name_of(r, validation ? "validation_file" : "training_file"));
}

static void pool_build(uv_work_t *work)
{
	job_run *r = work->data;
	error err = ERROR_INIT;
	error_settle(&err, job_run_build(r, &err));
	r->corpus.error = err;
}

static status train_on_device(job_run *r)
{
	fleet *f = r->base.queue->parts->fleet;
	r->at = fleet_enter_training(f);
	const status s = training_begin(&r->training, r->base.queue->parts->loop, fleet_executor(f, r->at), &r->plan);
	if (s != STATUS_OK)
		fleet_leave_training(f, r->at);
	return s;
}

static status job_run_train(job_run *r, error *err)
{
	for (size_t i = 0; i < r->n_found; i++)
		TRY(r->listener->damaged(r->base.queue, r->base.id, r->found[i].step, &r->found[i].err));
	r->plan.tokenizer = r->corpus.texts.tokenizer;
	r->plan.train = r->corpus.texts.train;
	r->plan.valid = r->corpus.texts.valid;
	r->corpus.texts = (corpus_texts){0};
	const int64_t ranks = json_integer_value(json_object_get(r->request, "ranks"));
	return ranks > 1
	           ? rank_training_begin(&r->ranks, r->base.queue->parts, &r->plan, ranks, r->request, &r->corpus, err)
	           : train_on_device(r);
}

static void built(uv_work_t *work, int cancelled)
{
	job_run *r = work->data;
	train_progress none = {0};
	error err = r->corpus.error;
	(void)cancelled; /* cannot be cancelled */
	if (err.status == STATUS_OK && !r->stopping) {
		status s = job_run_train(r, &err);
		if (s == STATUS_OK)
			return;
		error_settle(&err, s);
	}
	if (r->stopping)
		err = (error)ERROR_INIT;
	job_run_end(r, NULL, &none, &err);
}

static status job_run_describe(job_run *r, const json_t *document, error *err)
{
	training_plan *p = &r->plan;
	const store *s = r->base.queue->parts->store;
	const job_store_view all = {.parts = r->base.queue->parts};
	const job_sources from = job_store_sources(&all);
	char folder[PATH_MAX];
	const char *base = json_string_value(json_object_get(r->request, "base"));
	const char *result = json_string_value(json_object_get(r->request, "result"));
	TRY(job_request_restore(r->request, &from, &r->corpus, &p->options, &p->architecture, err));
	p->config = json_deep_copy(json_object_get(r->request, "config"));
	p->save_ns = (uint64_t)json_integer_value(json_object_get(r->request, "save_seconds")) * 1000000000u;
	p->store = s;
	p->report = on_report;
	p->context = r;
	snprintf(p->job, sizeof p->job, "%s", r->base.id);
	snprintf(p->name, sizeof p->name, "%s", result ? result : "");
	store_temporary_path(r->base.queue->parts->store, p->result);
	if (base)
		snprintf(p->base, sizeof p->base, "%s", r->corpus.folder);
	const json_t *lora = json_object_get(r->request, "lora");
	p->adapter = job_document_is_adapter(document);
	p->lora = lora ? json_deep_copy(lora) : NULL;
	if (lora && !p->lora)
		return STATUS_NOMEM;
	snprintf(p->base_id, sizeof p->base_id, "%s", base ? base : "");
	TRY(model_cards_of_job(&p->card, r->base.queue->parts->store, p->name, document, err));
	store_job_folder(s, r->base.id, folder);
	r->found = memory_new(r->from.n, sizeof *r->found);
	return p->config && r->found ? file_make_folders(folder, err) : STATUS_NOMEM;
}

status job_run_begin(job_queue *q, const queued_job *j, const job_run_from *from, corpus_texts *texts,
                     const job_run_listener *listener, error *err)
{
	job_run *r = memory_new(1, sizeof *r);
	if (!r) {
		free(from->steps);
		return STATUS_NOMEM;
	}
	r->from = *from;
	r->base.queue = q;
	r->listener = listener;
	r->began_ns = clock_ns();
	r->work.data = r;
	r->request = json_incref(json_object_get(j->document, "request"));
	snprintf(r->base.id, sizeof r->base.id, "%s", j->id);
	snprintf(r->plan.project, sizeof r->plan.project, "%s", project_of(j->document));
	status s = job_run_describe(r, j->document, err);
	r->corpus.texts = *texts;
	*texts = (corpus_texts){0};
	if (s == STATUS_OK && uv_queue_work(q->parts->loop, &r->work, pool_build, built) != 0)
		s = STATUS_NOMEM;
	if (s != STATUS_OK) {
		job_run_run_free(r);
		return s;
	}
	q->run = &r->base;
	return STATUS_OK;
}

void job_run_stop(queued_run *base, bool save)
{
	job_run *r = (job_run *)base;
	r->stopping = true;
	atomic_store(&r->corpus.cancel, true);
	const bool rows_written = r->listener->written(r->base.queue, r->base.id);
	if (r->training)
		training_stop(r->training, save, rows_written);
	if (r->ranks)
		rank_training_stop(r->ranks, save, rows_written);
}
