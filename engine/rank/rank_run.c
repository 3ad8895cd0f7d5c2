#include "engine/rank/rank_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/memory.h"
#include "engine/rank/device_sums.h"
#include "engine/rank/rank_plan.h"
#include "engine/recipe/job_document.h"
#include "engine/recipe/job_model.h"
#include "engine/recipe/job_preview.h"

enum { SLICE_NS = 20000000, RESAVE_SECONDS = 30, DIGEST_BYTES = 8 };

typedef struct run {
	const rank_run_options *o;
	train_options options;
	corpus corpus;
	trainer *trainer;
	uint64_t save_ns, saved_ns; /* save_ns 0: only when the trainer says so */
	int64_t saved_step;
	bool unsaved; /* the last save failed */
	float digest[DIGEST_BYTES],
	    digests[DIGEST_BYTES]; /* digest of the weights, a byte in each; their sums over the ranks */
} run;

/* A signal is taken where the loop looks for it. A handler would run on a stack below which the code of matrix products
 * keeps what it writes over. */
static int signals = -1;
static bool stopped;

void rank_run_hold_signals(void)
{
	sigset_t held;
	sigemptyset(&held);
	sigaddset(&held, SIGTERM);
	sigaddset(&held, SIGINT);
	sigprocmask(SIG_BLOCK, &held, NULL);
	signals = signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool is_stopped(void)
{
	struct signalfd_siginfo info;
	stopped = stopped || read(signals, &info, sizeof info) > 0;
	return stopped;
}

/* --- beginning ----------------------------------------------------------------------------- */

static status open_model(run *r, const architecture *a, const json_t *request, model **out, error *err)
{
	const json_t *document = r->o->document;
	const char *resume = rank_plan_text(document, "resume"), *base = rank_plan_text(document, "base");
	job_model from = {.folder = resume[0] ? resume : base,
	                  .architecture = a,
	                  .config = json_object_get(request, "config"),
	                  .seed = r->options.seed};
	int64_t *counts = NULL;
	if (!from.folder[0] && a->counts_tokens)
		TRY(corpus_count(&r->corpus.texts, r->corpus.vocab, &counts, err));
	from.counts = counts;
	status s = job_model_open(out, &from, r->o->backend, err);
	free(counts);
	return s;
}

static status open_run(run *r, error *err)
{
	const json_t *document = r->o->document, *request = json_object_get(document, "request");
	const char *resume = rank_plan_text(document, "resume"), *base = rank_plan_text(document, "base");
	const rank_device d = {r->o->backend->name, r->o->backend->bf16};
	const job_sources from = rank_plan_sources(document, r->o->ranks->rank, &d);
	const architecture *a;
	model *m;
	TRY(job_request_restore(request, &from, &r->corpus, &r->options, &a, err));
	if (resume[0] && tokenizer_trains(r->corpus.spec)) /* a checkpoint has it */
		snprintf(r->corpus.folder, sizeof r->corpus.folder, "%s", resume);
	if (corpus_build(&r->corpus) != STATUS_OK) {
		*err = r->corpus.error;
		return err->status;
	}
	r->options.ranks = r->o->ranks->count > 1 ? r->o->ranks : NULL;
	r->save_ns = (uint64_t)json_integer_value(json_object_get(request, "save_seconds")) * 1000000000u;
	TRY(open_model(r, a, request, &m, err));
	status s = trainer_new(&r->trainer, m, &r->options, r->corpus.texts.train, r->corpus.texts.valid, err);
	error_prefix(err, "additive");
	TRY(s);
	if (resume[0])
		return trainer_resume(r->trainer, resume, err);
	return base[0] ? trainer_continue(r->trainer, base, err) : STATUS_OK;
}

/* --- what rank 0 does -------------------------------------------------------------------------- */

/* STATUS_CANCELLED: the reader of the reports has gone. */
static status said(bool ok)
{
	return ok ? STATUS_OK : STATUS_CANCELLED;
}

static status save(run *r)
{
	char folder[PATH_MAX], name[32], id[STORE_ID_BYTES];
	const char *job = rank_plan_text(r->o->document, "job");
	json_t *row = NULL;
	error err = ERROR_INIT;
	status s = trainer_settle(r->trainer, &err);
	const train_progress *p = trainer_progress(r->trainer);
	r->saved_ns = clock_ns();
	r->unsaved = s != STATUS_OK || p->step != r->saved_step;
	if (!r->unsaved)
		return STATUS_OK;
	snprintf(name, sizeof name, "step-%lld", (long long)p->step);
	snprintf(folder, sizeof folder, "%.4000s/%s", rank_plan_text(r->o->document, "folder"), name);
	if (job[0]) {
		job_document_checkpoint_name(job, p->step, id);
		row = job_document_checkpoint(job, id, p);
	}
	if (s == STATUS_OK && rank_report_rows_missing(r->o->report))
		s = job_document_refuse_checkpoint(&err);
	if (s == STATUS_OK)
		s = job[0] && !row
		        ? STATUS_NOMEM
		        : trainer_save(r->trainer, r->corpus.texts.tokenizer, folder, row ? id : name, row, &err);
	if (s == STATUS_OK) {
		r->saved_step = p->step;
		r->unsaved = false;
	}
	error_settle(&err, s);
	const bool ok = rank_report_saved(r->o->report, p, row, &err);
	json_decref(row);
	return said(ok);
}

static bool save_is_due(const run *r)
{
	const uint64_t again = (uint64_t)RESAVE_SECONDS * 1000000000u;
	const uint64_t wait = r->unsaved && (r->save_ns == 0 || r->save_ns > again) ? again : r->save_ns;
	return wait && clock_ns() - r->saved_ns >= wait;
}

static status finish(run *r, error *err)
{
	const char *result = rank_plan_text(r->o->document, "result");
	TRY(trainer_conclude(r->trainer, err));
	TRY(file_make_folders(result, err));
	return trainer_save_model(r->trainer, r->corpus.texts.tokenizer, result, err);
}

static status report(run *r, unsigned events)
{
	rank_report *out = r->o->report;
	const train_progress *p = trainer_progress(r->trainer);
	if (events & TRAIN_EVAL) {
		json_t *preview = job_preview(r->trainer, r->corpus.texts.tokenizer);
		const bool ok = rank_report_evaluated(out, p, preview);
		json_decref(preview);
		return said(ok);
	}
	return events & TRAIN_STEP ? said(rank_report_progress(out, p)) : STATUS_OK;
}

/* --- the loop ---------------------------------------------------------------------------------- */

/* True if the run must end now: because of a signal, or since the reader of rank 0's reports is gone. */
static bool is_cut_short(const run *r)
{
	return is_stopped() || (r->o->report && rank_report_wish(r->o->report) == WISH_STOP);
}

/* All sums that have begun. STATUS_CANCELLED: the run is to stop before. */
static status wait_for_sums(run *r)
{
	ranks *all = r->o->ranks;
	for (bool complete = false; !complete;) {
		TRY(all->poll(all, &complete));
		if (!complete && is_stopped())
			return STATUS_CANCELLED;
	}
	return STATUS_OK;
}

/* Check that all ranks have the same weights. All call this after the same step. */
static status compare_weights(run *r, error *err)
{
	const model *m = trainer_model(r->trainer);
	const size_t bytes = (size_t)model_arena_floats(m) * sizeof(float);
	ranks *all = r->o->ranks;
	if (all->count == 1)
		return STATUS_OK;
	float *weights = malloc(bytes);
	if (!weights)
		return STATUS_NOMEM;
	status s = trainer_settle(r->trainer, err);
	if (s == STATUS_OK)
		s = r->o->backend->download(r->o->backend, weights, model_arena(m), bytes);
	const uint64_t digest = digest_bytes(weights, bytes);
	free(weights);
	TRY(s);
	for (int i = 0; i < DIGEST_BYTES; i++)
		r->digests[i] = r->digest[i] = (float)(digest >> (8 * i) & 255);
	TRY(all->begin_sum(all, r->digests, DIGEST_BYTES));
	TRY(wait_for_sums(r));
	for (int i = 0; i < DIGEST_BYTES; i++)
		if (r->digests[i] != r->digest[i] * (float)all->count)
			return error_set(err, STATUS_DEVICE, NULL,
			                 "rank %d has other weights than the others after step %lld", all->rank,
			                 (long long)trainer_progress(r->trainer)->step);
	return STATUS_OK;
}

static status attend(run *r, unsigned events, error *err)
{
	const bool first = r->o->ranks->rank == 0;
	if (first)
		TRY(report(r, events));
	while (first && rank_report_waits(r->o->report))
		if (is_cut_short(r))
			return STATUS_CANCELLED;
	if (events & TRAIN_CHECKPOINT_DUE)
		TRY(compare_weights(r, err));
	if (first && (events & TRAIN_CHECKPOINT_DUE || (events & TRAIN_STEP && save_is_due(r))))
		TRY(save(r));
	return STATUS_OK;
}

/* *agreed: all ranks stop after this step. */
static status steps(run *r, bool *agreed, error *err)
{
	ranks *all = r->o->ranks;
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		if (is_cut_short(r))
			return STATUS_CANCELLED;
		all->wants_stop = r->o->report && rank_report_wish(r->o->report) == WISH_SAVE;
		TRY(trainer_advance(r->trainer, SLICE_NS, &events, err));
		TRY(attend(r, events, err));
		*agreed = events & TRAIN_STEP && (all->stop || (all->count == 1 && all->wants_stop));
		if (*agreed)
			return STATUS_OK;
	}
	return STATUS_OK;
}

static status train(run *r, bool *agreed, error *err)
{
	const bool first = r->o->ranks->rank == 0;
	r->saved_ns = clock_ns();
	r->saved_step = trainer_progress(r->trainer)->step;
	if (first)
		TRY(said(rank_report_started(r->o->report, trainer_progress(r->trainer), r->o->sums)));
	status s = steps(r, agreed, err);
	if (s == STATUS_OK && !*agreed)
		return first ? finish(r, err) : STATUS_OK;
	/* A sum that waits for a rank that is gone would occupy the device. The other ranks save nothing, and their
	 * leaving must not disturb rank 0. */
	if (first && s != STATUS_OK)
		device_sums_close(r->o->ranks, r->o->backend, true);
	/* Stopped, or another rank is lost: the weights are those of the last step that all have made. */
	if (first && (s == STATUS_OK || s == STATUS_CANCELLED || s == STATUS_UNAVAILABLE) &&
	    rank_report_wish(r->o->report) != WISH_STOP)
		save(r);
	return s;
}

status rank_run(const rank_run_options *o, error *err)
{
	run *r = memory_new(1, sizeof *r);
	if (!r)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	r->o = o;
	bool agreed = false;
	status s = open_run(r, err);
	if (s == STATUS_OK)
		s = train(r, &agreed, err);
	error_settle(err, s);
	if (o->report)
		rank_report_ended(o->report, r->trainer ? trainer_progress(r->trainer) : NULL,
		                  s == STATUS_OK && !agreed, err);
	/* The sums of a run that did not finish may still be written to. */
	if (s == STATUS_OK) {
		trainer_free(r->trainer);
		corpus_free(&r->corpus.texts);
		free(r);
	}
	return s;
}
