#include "engine/daemon/evaluations/evaluation_document.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/daemon/jobs/job_store.h"

json_t *evaluation_document_new(const job_queue *q, const char *id, json_t *params, json_t *settings, int64_t tokens)
{
	const evaluation_progress none = {.total = tokens, .nats = NAN};
	json_t *own = json_pack("{s:o, s:o}", "settings", settings, "progress", evaluation_document_progress(&none));
	json_t *document = job_queue_document_new(q, id, params, own);
	if (json_object_set_new(document, "run", json_null()) == 0)
		return document;
	json_decref(document);
	return NULL;
}

static json_t *evaluation_document_number(double x)
{
	return isfinite(x) ? json_real(x) : json_null();
}

json_t *evaluation_document_progress(const evaluation_progress *p)
{
	const double speed = (double)(p->tokens - p->from) / p->seconds;
	return json_pack("{s:I, s:I, s:o, s:o, s:o}", "tokens", (json_int_t)p->tokens, "total_tokens",
	                 (json_int_t)p->total, "tokens_per_second", evaluation_document_number(speed), "eta_seconds",
	                 evaluation_document_number((double)(p->total - p->tokens) / speed), "nats_per_token",
	                 evaluation_document_number(p->nats));
}

json_t *evaluation_document_at(const json_t *document, json_t *progress, json_t *run)
{
	json_t *copy = json_copy((json_t *)(uintptr_t)document);
	const bool complete = json_object_set_new(copy, "progress", progress) == 0;
	if (json_object_set_new(copy, "run", run ? run : json_null()) == 0 && complete)
		return copy;
	json_decref(copy);
	return NULL;
}

/* --- events ---------------------------------------------------------------------------------------------- */

static json_t *event(const char *level, const char *type, const char *message, json_t *data)
{
	return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:o}", "id", "", "object", "evaluation.event", "created_at",
	                 (json_int_t)clock_unix(), "level", level, "message", message, "type", type, "data", data);
}

json_t *evaluation_document_state_event(const char *state, const error *err)
{
	char message[512];
	snprintf(message, sizeof message, "The evaluation is %s%s%s", state, err ? ": " : "",
	         err ? error_message(err) : "");
	const char *level = !err ? "info" : strcmp(state, "failed") == 0 ? "error" : "warn";
	return event(level, "message", message, json_null());
}

json_t *evaluation_document_progress_event(const evaluation_progress *p)
{
	char message[128];
	snprintf(message, sizeof message, "%lld of %lld tokens: %.4f nats a token", (long long)p->tokens,
	         (long long)p->total, p->nats);
	return event("info", "progress", message, evaluation_document_progress(p));
}

/* --- the text -------------------------------------------------------------------------------------------- */

void evaluation_document_corpus(corpus *out, const job_parts *parts, const model_entry *m, const char *file)
{
	*out = (corpus){.paths = job_store_paths(parts->store),
	                .cache = {parts->cache_folder, parts->cache_budget, 0},
	                .config = m->config,
	                .vocab = model_dims_ids(&m->dims),
	                .records = RECORD_BLOCK,
	                .n_training = 1,
	                .training = {{.weight = 1}},
	                .texts = {.tokenizer = m->tokenizer}};
	snprintf(out->training[0].id, sizeof out->training[0].id, "%s", file);
	store_cache_room(parts->store, &out->cache.room, NULL); /* without its ledger the store refuses the job in any
	                                                         * case */
	store_temporary_path(parts->store, out->temporary);
}

status evaluation_document_open(corpus *c, token_cache **out)
{
	status s = corpus_open_tokens(c, out);
	if (s == STATUS_OK && token_cache_tokens(*out) < 2) {
		token_cache_free(*out);
		*out = NULL;
		s = error_set(&c->error, STATUS_INVALID, "file", "it has fewer than two tokens");
	}
	if (strcmp(c->error.param, "training_file") == 0)
		strcpy(c->error.param, "file");
	else if (c->error.param[0] && strcmp(c->error.param, "file") != 0)
		strcpy(c->error.param, "model");
	return s;
}
