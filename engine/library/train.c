/* train.c - one training run in a folder that rank_plan.h describes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json_read.h"
#include "engine/base/memory.h"
#include "engine/library/handles.h"
#include "engine/rank/rank_plan.h"
#include "engine/recipe/job_model.h"
#include "engine/train/trainer.h"

typedef struct training {
	additive_device *device;
	const char *folder;
	json_t *document; /* the plan */
	train_options options;
	corpus corpus;
	trainer *trainer;
	additive_progress_function progress;
	void *context;
} training;

/* --- the recipe ---------------------------------------------------------------------- */

static status parse_recipe(json_t **out, const char *text, const char *file, error *err)
{
	json_error_t where;
	status s = json_read(out, text, strlen(text), JSON_REJECT_DUPLICATES, &where);
	if (s == STATUS_INVALID)
		return error_set(err, s, "recipe", "is not JSON: line %d: %s", where.line, where.text);
	TRY(error_settle(err, s));
	if (!json_is_object(*out))
		return error_set(err, STATUS_INVALID, "recipe", "is no object");
	if (file && json_object_set_new(*out, "training_file", json_string(file)) != 0)
		return error_set(err, STATUS_INVALID, "text", "the path is not UTF-8");
	const json_t *spec = json_object_get(json_object_get(*out, "additive"), "tokenizer");
	return json_is_object(spec) && !json_object_get(spec, "file") && tokenizer_trains(spec)
	           ? error_set(err, STATUS_UNSUPPORTED, "additive.tokenizer.type",
	                       "the library trains no tokenizer; give the file of one as additive.tokenizer.file")
	           : STATUS_OK;
}

static status make_plan(training *t, const char *recipe, const char *file, error *err)
{
	json_t *read = NULL;
	const rank_device d = {t->device->backend->name, t->device->backend->bf16};
	status s = parse_recipe(&read, recipe, file, err);
	if (s == STATUS_OK)
		s = file_make_folders(t->folder, err);
	if (s == STATUS_OK)
		s = rank_plan_of_object(&t->document, read, t->folder, &d, err);
	json_decref(read);
	return s;
}

/* --- the run ------------------------------------------------------------------------- */

static status open_initial_model(training *t, const architecture *a, const char *folder, model **out, error *err)
{
	const json_t *request = json_object_get(t->document, "request");
	job_model from = {
	    .folder = folder, .architecture = a, .config = json_object_get(request, "config"), .seed = t->options.seed};
	int64_t *counts = NULL;
	if (!folder[0] && a->counts_tokens)
		TRY(corpus_count(&t->corpus.texts, t->corpus.vocab, &counts, err));
	from.counts = counts;
	status s = job_model_open(out, &from, t->device->backend, err);
	free(counts);
	return s;
}

static status open_training(training *t, error *err)
{
	const char *resume = rank_plan_text(t->document, "resume"), *base = rank_plan_text(t->document, "base");
	const rank_device d = {t->device->backend->name, t->device->backend->bf16};
	const job_sources from = rank_plan_sources(t->document, 0, &d);
	const architecture *a;
	model *m;
	TRY(job_request_restore(json_object_get(t->document, "request"), &from, &t->corpus, &t->options, &a, err));
	if (corpus_build(&t->corpus) != STATUS_OK) {
		*err = t->corpus.error;
		return err->status;
	}
	TRY(open_initial_model(t, a, resume[0] ? resume : base, &m, err));
	status s = trainer_new(&t->trainer, m, &t->options, t->corpus.texts.train, t->corpus.texts.valid, err);
	error_prefix(err, "additive");
	TRY(s);
	if (resume[0])
		return trainer_resume(t->trainer, resume, err);
	return base[0] ? trainer_continue(t->trainer, base, err) : STATUS_OK;
}

static bool is_stopped(const training *t, unsigned events)
{
	const train_progress *p = trainer_progress(t->trainer);
	const additive_progress now = {p->step,
	                               p->total_steps,
	                               p->tokens,
	                               p->train_loss,
	                               p->valid_loss,
	                               p->learning_rate,
	                               p->tokens_per_second,
	                               (events & TRAIN_EVAL) != 0};
	return (events & (TRAIN_STEP | TRAIN_EVAL)) && t->progress && t->progress(t->context, &now) != 0;
}

static status run_training(training *t, error *err)
{
	const char *result = rank_plan_text(t->document, "result");
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		TRY(trainer_advance(t->trainer, 0, &events, err));
		const bool stopped = is_stopped(t, events);
		if (events & TRAIN_CHECKPOINT_DUE || stopped) {
			char folder[PATH_MAX], name[32];
			TRY(trainer_settle(t->trainer, err));
			snprintf(name, sizeof name, "step-%lld", (long long)trainer_progress(t->trainer)->step);
			snprintf(folder, sizeof folder, "%.4000s/%s", t->folder, name);
			TRY(trainer_save(t->trainer, t->corpus.texts.tokenizer, folder, name, NULL, err));
		}
		if (stopped)
			return error_set(err, STATUS_CANCELLED, NULL, "stopped after step %lld",
			                 (long long)trainer_progress(t->trainer)->step);
	}
	TRY(trainer_conclude(t->trainer, err));
	TRY(file_make_folders(result, err));
	return trainer_save_model(t->trainer, t->corpus.texts.tokenizer, result, err);
}

additive_code additive_train(additive_device *device, const char *recipe, const char *text, const char *folder,
                             additive_progress_function progress, void *context, additive_error *failure)
{
	error err = ERROR_INIT;
	training *t = memory_new(1, sizeof *t);
	status s = t ? STATUS_OK : STATUS_NOMEM;
	if (t) {
		t->device = device;
		t->folder = folder;
		t->progress = progress;
		t->context = context;
		s = make_plan(t, recipe, text, &err);
		if (s == STATUS_OK)
			s = open_training(t, &err);
		if (s == STATUS_OK)
			s = run_training(t, &err);
		trainer_free(t->trainer);
		corpus_free(&t->corpus.texts);
		json_decref(t->document);
		free(t);
	}
	return handles_report(failure, s, &err);
}
