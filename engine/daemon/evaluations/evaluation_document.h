/* evaluation_document.h - evaluations and their events as JSON (new references; NULL: out of memory). */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_DOCUMENT_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_DOCUMENT_H

#include "engine/daemon/evaluations/evaluation_sums.h"
#include "engine/recipe/corpus.h"
#include "engine/daemon/queue/job_queue.h"

/* Progress of a run. seconds: since it started, at token `from`. */
typedef struct evaluation_progress {
	int64_t tokens, total, from;
	double seconds, nats; /* nats: mean loss so far; NaN: none */
} evaluation_progress;

/* Return the document of a new job; settings are taken over. */
json_t *evaluation_document_new(const job_queue *q, const char *id, json_t *params, json_t *settings, int64_t tokens);
json_t *evaluation_document_progress(const evaluation_progress *p);
/* Return a copy of a document with another progress and `run`. Both are taken over; run NULL becomes json_null. */
json_t *evaluation_document_at(const json_t *document, json_t *progress, json_t *run);
json_t *evaluation_document_state_event(const char *state, const error *err);
json_t *evaluation_document_progress_event(const evaluation_progress *p);

/* Describe the tokens of a file as a model reads them. The tokenizer belongs to the model: remove it again before
 * corpus_free. Loop thread. */
void evaluation_document_corpus(corpus *out, const job_parts *parts, const model_entry *m, const char *file);
/* Open the tokens that corpus describes. Errors name "file" or "model". Any thread. */
status evaluation_document_open(corpus *c, token_cache **out);

#endif
