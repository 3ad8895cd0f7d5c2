/* evaluation_corpus.h - the texts of a file, as tokens: one on each line, or JSON lines with "text". */
#ifndef ENGINE_DAEMON_EVALUATIONS_EVALUATION_CORPUS_H
#define ENGINE_DAEMON_EVALUATIONS_EVALUATION_CORPUS_H

#include <limits.h>

#include "engine/daemon/evaluations/evaluation_settings.h"

typedef struct evaluation_tokens {
	int32_t *ids;
	int64_t count;
} evaluation_tokens;

typedef struct evaluation_corpus {
	int64_t n;
	evaluation_tokens *texts; /* [n] */
} evaluation_corpus;

/* Read the file `id` at `path`: the first texts that have a position of the settings, each cut to settings.max_tokens.
 * STATUS_INVALID "file": it is not text, a line is wrong, it has no such text. STATUS_STORAGE: it is damaged.
 * STATUS_NOMEM. Any thread; evaluation_corpus_fini is due also after an error. */
status evaluation_corpus_read(evaluation_corpus *out, const char *path, const char *id, const model_entry *m,
                              const evaluation_settings *s, error *err);
void evaluation_corpus_fini(evaluation_corpus *c);

#endif
