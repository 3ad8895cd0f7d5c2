/* faithfulness_corpus.h - the texts of a file, as tokens: one on each line, or JSON lines with "text"; of models that
 * read a source JSON lines with "source" and "target", as for training. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CORPUS_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CORPUS_H

#include <limits.h>

#include "engine/daemon/faithfulness/faithfulness_settings.h"

typedef struct faithfulness_corpus {
	int64_t n;
	faithfulness_tokens *texts; /* [n] */
} faithfulness_corpus;

/* Take over the tokens of a text, which may be empty, as the model reads them: a decoder with a source begins with its
 * start. The list is freed also on error. STATUS_INVALID "model": there is no start; STATUS_NOMEM. */
status faithfulness_tokens_take(faithfulness_tokens *out, const model_entry *m, token_list *text, error *err);
/* Add the tokens of a source. STATUS_INVALID. */
status faithfulness_tokens_read_source(faithfulness_tokens *out, const model_entry *m, const faithfulness_settings *s,
                                       const char *text, size_t bytes, error *err);
/* The tokens of a text, which may name the mask of a model that fills it in. STATUS_INVALID. */
status faithfulness_tokens_read(faithfulness_tokens *out, const model_entry *m, const faithfulness_settings *s,
                                const char *text, size_t bytes, error *err);
void faithfulness_tokens_fini(faithfulness_tokens *t);

/* Read the file `id` at `path`: the first texts that have a position of the settings, each, and its source, cut to
 * settings.max_tokens.
 * STATUS_INVALID "file": it is not text, a line is wrong, it has no such text. STATUS_STORAGE: it is damaged.
 * STATUS_NOMEM. Any thread; faithfulness_corpus_fini is due also after an error. */
status faithfulness_corpus_read(faithfulness_corpus *out, const char *path, const char *id, const model_entry *m,
                                const faithfulness_settings *s, error *err);
void faithfulness_corpus_fini(faithfulness_corpus *c);

#endif
