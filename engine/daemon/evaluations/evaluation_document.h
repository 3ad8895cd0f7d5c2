/* evaluation_document.h - evaluations and their events as JSON; new references, NULL when out of memory. And what the
 * files of this folder share. */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_DOCUMENT_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_DOCUMENT_H

#include "engine/daemon/evaluations/evaluation_sums.h"
#include "engine/recipe/corpus.h"
#include "engine/daemon/requests/job_queue.h"

#define EVALUATION_OBJECT "evaluation"

typedef struct evaluations evaluations;
struct evaluations {
	job_queue queue;
	struct evaluation_run *run; /* NULL: none */
	int creations;              /* requests under way */
};

/* How far a run is. seconds: since it began, at token `from`. */
typedef struct evaluation_progress {
	int64_t tokens, total, from;
	double seconds, nats; /* nats: mean loss so far; NaN: none */
} evaluation_progress;

/* A new job's document; settings are taken over. */
json_t *evaluation_document_new(const char *id, const json_t *params, json_t *settings, int64_t tokens);
json_t *evaluation_document_progress(const evaluation_progress *p);
/* A copy of a document with another progress and `run`; both are taken over, run NULL: json_null. */
json_t *evaluation_document_at(const json_t *document, json_t *progress, json_t *run);
json_t *evaluation_document_state_event(const char *state, const error *why);
json_t *evaluation_document_progress_event(const evaluation_progress *p);

/* Describe the tokens of a file as a model reads them; the tokenizer is the model's: take it out again before
 * corpus_free. Loop thread. */
void evaluation_document_corpus(corpus *out, engine *e, const model_entry *m, const char *file);
/* The tokens, which corpus names; errors name "file" or "model". Any thread. */
status evaluation_document_open(corpus *c, token_cache **out);

#endif
