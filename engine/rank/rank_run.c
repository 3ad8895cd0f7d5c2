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
#include "engine/recipe/model_card.h"

enum { SLICE_NS = 20000000, RESAVE_SECONDS = 30, STOP_SECONDS = 10, DIGEST_BYTES = 8 };

typedef struct run {
	const rank_run_options *o;
	train_options options;
	corpus corpus;
	trainer *trainer;
	uint64_t save_ns, saved_ns; /* save_ns 0: only when the trainer requests it */
	int64_t saved_step;
	bool unsaved; /* the last save failed */
	float digest[DIGEST_BYTES],
	    digests[DIGEST_BYTES]; /* for the weights, one byte in each; their sums over the ranks */
} run;

/* The loop polls for signals. A handler would run on a stack below which the code of matrix products keeps data, and
 * overwrite it. */
static int signals = -1;
static bool stopped;
static uint64_t stopped_ns;

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
	if (!stopped && read(signals, &info, sizeof info) > 0) {
		stopped = true;
		stopped_ns = clock_ns();
	}
	return stopped;
}

bool rank_run_got_signal(void)
{
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
	if (resume[0] && tokenizer_trains(r->corpus.spec)) /* a checkpoint has a copy */
		snprintf(r->corpus.folder, sizeof r->corpus.folder, "%s", resume);
	if (corpus_build(&r->corpus) != STATUS_OK) {
		*err = r->corpus.error;
		return err->status;
	}
	r->options.ranks = r->o->ranks->count > 1 ? r->o->ranks : NULL;
	r->options.shard_optimizer = json_is_true(json_object_get(request, "shard_optimizer"));
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

/* STATUS_CANCELLED: the reader of the reports is gone. */
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

static status rank_run_finish(run *r, error *err)
{
	const char *result = rank_plan_text(r->o->document, "result");
	json_t *card = json_object_get(r->o->document, "card");
	TRY(trainer_conclude(r->trainer, err));
	TRY(file_make_folders(result, err));
	TRY(trainer_save_model(r->trainer, r->corpus.texts.tokenizer, result, err));
	return card ? model_card_finish(card, trainer_progress(r->trainer), result, err) : STATUS_OK;
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

/* True if other ranks must not be waited for: a signal has arrived. Rank 0 cannot save a sharded optimiser without the
 * others, so they first have STOP_SECONDS to end the step together. */
static bool is_alone(const run *r)
{
	const bool shared = r->options.ranks && r->options.shard_optimizer;
	return is_stopped() && (!shared || clock_ns() - stopped_ns >= STOP_SECONDS * (uint64_t)1000000000);
}

/* True if the run must end where it is: by a signal, or because the reader of rank 0's reports is gone. */
static bool is_cut_short(const run *r)
{
	return is_alone(r) || (r->o->report && rank_report_wish(r->o->report) == WISH_STOP);
}

/* Wait for the sums in progress. STATUS_CANCELLED: the run must stop first. */
static status wait_for_sums(run *r)
{
	ranks *all = r->o->ranks;
	for (bool complete = false; !complete;) {
		TRY(all->poll(all, &complete));
		if (!complete && is_alone(r))
			return STATUS_CANCELLED;
	}
	return STATUS_OK;
}

/* Collect what rank 0 saves, after the same step on each rank. */
static status gather_states(run *r, error *err)
{
	for (bool complete = false; !complete;) {
		TRY(trainer_gather(r->trainer, &complete, err));
		if (!complete && is_alone(r))
			return STATUS_CANCELLED;
	}
	return STATUS_OK;
}

/* Compare the weights of all ranks, after the same step on each. */
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

/* True if all ranks do what one of them wants; a rank alone decides itself. */
static bool agreed(const run *r, bool all, bool own)
{
	return r->o->ranks->count > 1 ? all : own;
}

static status rank_run_attend(run *r, unsigned events, error *err)
{
	const ranks *all = r->o->ranks;
	const bool first = all->rank == 0;
	if (first)
		TRY(report(r, events));
	while (first && rank_report_waits(r->o->report))
		if (is_cut_short(r))
			return STATUS_CANCELLED;
	const bool saves =
	    events & TRAIN_CHECKPOINT_DUE || (events & TRAIN_STEP && agreed(r, all->save, all->wants_save));
	if (events & TRAIN_CHECKPOINT_DUE)
		TRY(compare_weights(r, err));
	if (saves || events & TRAIN_FINISHED)
		TRY(gather_states(r, err));
	return first && saves ? save(r) : STATUS_OK;
}

/* *stops: all ranks stop after this step. */
static status steps(run *r, bool *stops, error *err)
{
	ranks *all = r->o->ranks;
	for (unsigned events = 0; !(events & TRAIN_FINISHED);) {
		if (is_cut_short(r))
			return STATUS_CANCELLED;
		all->wants_stop = is_stopped() || (r->o->report && rank_report_wish(r->o->report) == WISH_SAVE);
		all->wants_save = all->rank == 0 && save_is_due(r);
		TRY(trainer_advance(r->trainer, SLICE_NS, &events, err));
		TRY(rank_run_attend(r, events, err));
		*stops = events & TRAIN_STEP && agreed(r, all->stop, all->wants_stop);
		if (*stops)
			return gather_states(r, err);
	}
	return STATUS_OK;
}

static status rank_run_train(run *r, bool *stops, error *err)
{
	const bool first = r->o->ranks->rank == 0;
	r->saved_ns = clock_ns();
	r->saved_step = trainer_progress(r->trainer)->step;
	if (first)
		TRY(said(rank_report_started(r->o->report, trainer_progress(r->trainer), r->o->sums)));
	status s = steps(r, stops, err);
	if (s == STATUS_OK && !*stops)
		return first ? rank_run_finish(r, err) : STATUS_OK;
	/* A sum that waits for a lost rank would occupy the device. The other ranks save nothing, and their leaving
	 * must not disturb rank 0. */
	if (first && s != STATUS_OK)
		device_sums_close(r->o->ranks, r->o->backend, true);
	/* The run was stopped, or another rank is lost: the weights are those of the last step that all ranks have
	 * made. */
	if (first && (s == STATUS_OK || s == STATUS_CANCELLED || s == STATUS_UNAVAILABLE) &&
	    rank_report_wish(r->o->report) != WISH_STOP)
		save(r);
	/* If the reader of the reports has not asked for the stop, a rank has received a signal. */
	const bool cancelled = first ? rank_report_wish(r->o->report) == WISH_NONE : is_stopped();
	return s == STATUS_OK && cancelled ? STATUS_CANCELLED : s;
}

status rank_run(const rank_run_options *o, error *err)
{
	run *r = memory_new(1, sizeof *r);
	if (!r)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	r->o = o;
	bool stops = false;
	status s = open_run(r, err);
	if (s == STATUS_OK)
		s = rank_run_train(r, &stops, err);
	error_settle(err, s);
	if (o->report)
		rank_report_ended(o->report, r->trainer ? trainer_progress(r->trainer) : NULL, s == STATUS_OK && !stops,
		                  err);
	/* Sums of a run that did not finish may still be written to. */
	if (s == STATUS_OK) {
		trainer_free(r->trainer);
		corpus_free(&r->corpus.texts);
		free(r);
	}
	return s;
}
