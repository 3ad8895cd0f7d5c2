#include "engine/daemon/jobs/job_creation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/daemon/catalog/adapters.h"
#include "engine/daemon/compute/training_speed.h"
#include "engine/recipe/job_document.h"
#include "engine/daemon/jobs/job_runner.h"
#include "engine/daemon/jobs/job_schedule.h"
#include "engine/daemon/jobs/job_state.h"
#include "engine/daemon/jobs/job_store.h"
#include "engine/daemon/queue/job_draft.h"
#include "engine/daemon/queue/job_trace.h"
#include "engine/recipe/job_tokenizer.h"
#include "engine/daemon/requests/idempotency.h"
#include "engine/daemon/requests/owned_file.h"

enum { SUFFIX_BYTES = 32 };

typedef struct job_creation {
	jobs *jobs;
	job_reservation reservation; /* reserves what `request` names */
	uv_work_t work;
	stream *stream;
	job_request request;
	corpus corpus;
	double speed; /* measured operations per second of training; 0: unknown */
	bool dry_run;
} job_creation;

static void creation_free(job_creation *c)
{
	job_table_end_reservation(c->jobs, &c->reservation);
	job_request_fini(&c->request);
	corpus_free(&c->corpus.texts);
	free(c);
}

static void job_creation_refuse(job_creation *c, status result, error *err)
{
	error_settle(err, result);
	stream_error(c->stream, err, NULL);
	creation_free(c);
}

/* "adapter-…", or "ft:additive:suffix:1a2b3c4d": the last part is the first random digits of the job's id. */
static void result_name(char out[STORE_ID_BYTES], const char *id, const job_creation *c)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	char suffix[SUFFIX_BYTES + 1] = "";
	const char *requested = json_string_value(json_object_get(c->stream->params, "suffix"));
	if (c->request.adapter) {
		store_new_id(out, ADAPTER_ID_PREFIX);
		return;
	}
	for (int i = 0; requested && requested[i] && i < SUFFIX_BYTES; i++)
		suffix[i] = strchr(plain, requested[i]) ? requested[i] : '-';
	snprintf(out, STORE_ID_BYTES, "ft:%.12s:%s%s%.8s", c->request.architecture->name, suffix, suffix[0] ? ":" : "",
	         id + strlen("ftjob-"));
}

static const char *held_back(double share, char *out, size_t size)
{
	if (share == CORPUS_HOLDOUT)
		return ", the last tenth held back for validation";
	snprintf(out, size, ", the last %.3g %% held back for validation", 100 * share);
	return share > 0 ? out : "";
}

/* An event that tells how the tokenizer was made; NULL: nothing to report. */
static json_t *tokenizer_event(const job_creation *c)
{
	const tokenizer *t = c->corpus.texts.tokenizer;
	const char *file = job_tokenizer_file(c->request.tokenizer);
	if (tokenizer_trains(c->request.tokenizer))
		return job_document_event("info", "Tokenizer trained: %s, %d tokens", tokenizer_type(t),
		                          (int)tokenizer_size(t));
	return file ? job_document_event("info", "Tokenizer of %s: %s, %d tokens", file, tokenizer_type(t),
	                                 (int)tokenizer_size(t))
	            : NULL;
}

/* An event with the size of the job and its expected time. */
static json_t *size_event(const job_creation *c, const job_estimate *e)
{
	const train_options *o = &c->request.options;
	char time[32], rows[64];
	if (o->objective->form->source)
		snprintf(rows, sizeof rows, "%lld + %lld", (long long)train_options_source(o),
		         (long long)o->sequence_length);
	else
		snprintf(rows, sizeof rows, "%lld", (long long)o->sequence_length);
	job_estimate_text(e, time);
	return job_document_event("info", "%.0f parameters, %lld steps of %lld rows of %s tokens, rate %.2g%s%s%s",
	                          e->parameters, (long long)o->max_steps,
	                          (long long)(o->batch_size * o->gradient_accumulation), rows, o->learning_rate,
	                          time[0] ? ": " : "", time, time[0] ? " on this machine" : "");
}

/* A warning that the training data are cut, or NULL. */
static json_t *cut_event(const job_creation *c)
{
	return c->corpus.cut == 0
	           ? NULL
	           : job_document_event(
	                 "warn",
	                 "%lld of %lld records are longer than a row and lose their end; sequence_length "
	                 "makes rows longer",
	                 (long long)c->corpus.cut, (long long)dataset_records(c->corpus.texts.train));
}

/* A warning that the job is too short, or NULL. */
static json_t *few_event(const job_creation *c)
{
	const job_request *r = &c->request;
	if (job_defaults_few(&r->options, &r->given))
		return job_document_event(
		    "warn",
		    "%lld epochs of this data are %lld steps, which is little to learn from: give "
		    "more n_epochs, or a smaller batch_size or sequence_length",
		    (long long)r->epochs, (long long)r->options.max_steps);
	if (r->epochs * JOB_DEFAULTS_FEW_SHARE < r->usual_epochs)
		return job_document_event(
		    "warn",
		    "%lld epochs of a small amount of data may not be enough to learn it: without n_epochs "
		    "the job takes %lld",
		    (long long)r->epochs, (long long)r->usual_epochs);
	return NULL;
}

/* A warning that options are not used, or NULL. */
static json_t *unused_event(const job_creation *c)
{
	char text[256];
	job_request_unused(c->stream->params, text, sizeof text);
	return text[0] ? job_document_event("warn", "%s", text) : NULL;
}

/* Compute the settings that follow from the texts. */
static status job_creation_settle(job_creation *c, job_estimate *e, error *err)
{
	TRY(job_request_take_texts(&c->request, c->stream->params, &c->corpus, err));
	return job_estimate_make(e, &c->request, c->corpus.texts.valid, c->speed);
}

static status create(job_creation *c, char id[STORE_ID_BYTES], json_t **document, error *err)
{
	jobs *all = c->jobs;
	char result[STORE_ID_BYTES], part[64];
	job_estimate estimate;
	TRY(job_creation_settle(c, &estimate, err));
	do {
		store_new_id(id, "ftjob-");
		result_name(result, id, c);
	} while (job_table_name_taken(all, result));
	*document = job_document_new(id, c->stream->params, &c->request, c->corpus.holdout, &estimate);
	if (!project_mark(&c->stream->scope, *document) ||
	    json_object_set_new(json_object_get(*document, "request"), "result", json_string(result)) != 0)
		return STATUS_NOMEM;
	job_trace_begin(*document, c->stream);
	json_t *events = json_pack("[o, o*, o, o, o*, o*, o*, o*]",
	                           job_document_event("info", "Created fine-tuning job: %s", id), tokenizer_event(c),
	                           job_document_event("info", "Files validated: %lld tokens to train on%s",
	                                              (long long)dataset_tokens(c->corpus.texts.train),
	                                              held_back(c->corpus.holdout, part, sizeof part)),
	                           size_event(c, &estimate), cut_event(c), few_event(c), unused_event(c),
	                           job_schedule_event(&all->queue));
	return job_state_add(all, id, *document, events, err);
}

/* The job, its first events and the stored answer are one commit. */
static status job_creation_add(job_creation *c, char id[STORE_ID_BYTES], json_t **document, json_t **object, error *err)
{
	jobs *all = c->jobs;
	TRY(job_queue_check_quota(&all->queue, c->stream, c->stream->scope.project, err));
	TRY(idempotency_begin(c->stream, err));
	status result = create(c, id, document, err);
	bool added = result == STATUS_OK;
	if (added)
		*object = job_queue_public(&all->queue, *document);
	result = idempotency_commit(c->stream, result, *object, err);
	if (result == STATUS_OK)
		return STATUS_OK;
	if (added)
		job_table_discard(all, id);
	json_decref(*object);
	*object = NULL;
	return result;
}

/* Answer a dry run. tokens, resolved: NULL without a training file. */
static void answer_dry_run(job_creation *c, json_t *tokens, json_t *resolved)
{
	stream_result(c->stream, json_pack("{s:s, s:b, s:s, s:o?, s:o?}", "object", "fine_tuning.job", "dry_run", 1,
	                                   "model", json_string_value(json_object_get(c->stream->params, "model")),
	                                   "tokens", tokens, "resolved", resolved));
	creation_free(c);
}

static void settle_dry_run(job_creation *c)
{
	error err = ERROR_INIT;
	job_estimate estimate;
	status result = job_creation_settle(c, &estimate, &err);
	if (result == STATUS_OK)
		answer_dry_run(c, json_integer(dataset_tokens(c->corpus.texts.train)),
		               job_document_resolved(&c->request, &estimate));
	else
		job_creation_refuse(c, result, &err);
}

static void pool_check(uv_work_t *work)
{
	job_creation *c = work->data;
	const job_parts *parts = c->jobs->queue.parts;
	c->speed = training_speed(fleet_backend_name(parts->fleet), parts->threads);
	corpus_build(&c->corpus);
}

static void checked(uv_work_t *work, int cancelled)
{
	job_creation *c = work->data;
	jobs *all = c->jobs;
	char id[STORE_ID_BYTES];
	error err = c->corpus.error;
	json_t *document = NULL;
	(void)cancelled; /* cannot be cancelled */
	if (err.status == STATUS_OK && c->stream->cancelled)
		error_set(&err, STATUS_CANCELLED, NULL, "cancelled");
	if (err.status == STATUS_OK && c->dry_run) {
		settle_dry_run(c);
		return;
	}
	json_t *object = NULL;
	status result = err.status == STATUS_OK ? job_creation_add(c, id, &document, &object, &err) : err.status;
	json_decref(document);
	if (result != STATUS_OK) {
		job_creation_refuse(c, result, &err);
		return;
	}
	stream_result(c->stream, object);
	job_table_keep_texts(all, id, &c->corpus.texts);
	creation_free(c);
	job_runner_next(all);
}

static status job_creation_prepare(job_creation *c, error *err)
{
	const job_parts *parts = c->jobs->queue.parts;
	const job_store_view view = {parts, c->stream};
	const job_sources from = job_store_sources(&view);
	status s = job_request_read(&c->request, &from, c->stream->params, c->corpus.texts.tokenizer, err);
	c->reservation.base = c->request.base ? c->request.base->id : NULL;
	TRY(s);
	TRY(store_check_room(parts->store, 1, err)); /* its later size is not known yet */
	if (c->request.n_training == 0) {
		answer_dry_run(c, NULL, NULL);
		return STATUS_OK;
	}
	corpus_texts texts = c->corpus.texts;
	job_request_corpus(&c->request, &from, &c->corpus);
	c->corpus.texts = texts;
	c->work.data = c;
	return uv_queue_work(parts->loop, &c->work, pool_check, checked) == 0 ? STATUS_OK : STATUS_NOMEM;
}

static void job_creation_start(job_creation *c)
{
	error err = ERROR_INIT;
	status result = c->stream->cancelled ? STATUS_CANCELLED : job_creation_prepare(c, &err);
	if (result != STATUS_OK)
		job_creation_refuse(c, result, &err);
}

/* --- a tokenizer out of a file -------------------------------------------------------------- */

static void job_creation_pool_read(uv_work_t *work)
{
	job_creation *c = work->data;
	char path[PATH_MAX];
	store_blob_path(c->jobs->queue.parts->store, c->reservation.tokenizer, path);
	job_tokenizer_read(&c->corpus.texts.tokenizer, path, c->reservation.tokenizer, &c->corpus.error);
}

static void tokenizer_read(uv_work_t *work, int cancelled)
{
	job_creation *c = work->data;
	error err = c->corpus.error;
	(void)cancelled; /* cannot be cancelled */
	if (err.status == STATUS_OK) {
		job_creation_start(c);
		return;
	}
	error_prefix(&err, "additive.tokenizer");
	job_creation_refuse(c, err.status, &err);
}

/* Read a file that `params` name. A type or a base model is given elsewhere. */
static status begin_with_file(job_creation *c, const char *file, error *err)
{
	const job_parts *parts = c->jobs->queue.parts;
	store_file found;
	error reason = ERROR_INIT;
	status s = owned_file_use(c->stream, file, "", &found, &reason);
	if (s == STATUS_NOT_FOUND)
		return error_set(err, s, "additive.tokenizer.file", "there is no file \"%.64s\"", file);
	if (s != STATUS_OK)
		return error_set(err, s, NULL, "%s", error_message(&reason));
	c->work.data = c;
	return uv_queue_work(parts->loop, &c->work, job_creation_pool_read, tokenizer_read) == 0 ? STATUS_OK
	                                                                                         : STATUS_NOMEM;
}

/* --- the request ----------------------------------------------------------------------------- */

/* Called when the client leaves; reading the texts may take minutes. */
static void cancelled(stream *s)
{
	job_creation *c = s->context;
	atomic_store(&c->corpus.cancel, true);
}

static const stream_watch creation_watch = {.cancel = cancelled};

void job_creation_begin(stream *s, job_queue *q)
{
	error err = ERROR_INIT;
	if (!job_draft_admit(s, q))
		return;
	bool dry_run = json_is_true(json_object_get(s->params, "dry_run"));
	if (!dry_run && !json_is_string(json_object_get(s->params, "training_file"))) {
		stream_refuse(s, STATUS_INVALID, "missing_parameter", "training_file", "'training_file' is required");
		return;
	}
	job_creation *c = job_request_name_model(s->params) ? memory_new(1, sizeof *c) : NULL;
	if (!c) {
		stream_refuse(s, STATUS_NOMEM, NULL, NULL, "out of memory");
		return;
	}
	c->stream = s;
	s->context = c;
	s->watch = &creation_watch;
	c->dry_run = dry_run;
	c->reservation.training = c->request.training;
	c->reservation.n_training = CORPUS_MAX_FILES; /* files not read yet are "" */
	c->reservation.validation = c->request.validation;
	c->jobs = (jobs *)q;
	c->reservation.tokenizer =
	    job_tokenizer_file(json_object_get(json_object_get(s->params, "additive"), "tokenizer"));
	job_table_reserve(c->jobs, &c->reservation);
	if (!c->reservation.tokenizer) {
		job_creation_start(c);
		return;
	}
	status result = begin_with_file(c, c->reservation.tokenizer, &err);
	if (result != STATUS_OK)
		job_creation_refuse(c, result, &err);
}
