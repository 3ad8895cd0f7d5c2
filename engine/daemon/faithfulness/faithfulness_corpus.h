/* faithfulness_corpus.h - the texts of a file, as tokens: one per line, or JSON lines with "text". For models that read
 * a source, JSON lines with "source" and "target", as for training. */
#ifndef ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CORPUS_H
#define ENGINE_DAEMON_FAITHFULNESS_FAITHFULNESS_CORPUS_H

#include <limits.h>

#include "engine/daemon/faithfulness/faithfulness_settings.h"

typedef struct faithfulness_corpus {
	int64_t n;
	faithfulness_tokens *texts; /* [n] */
} faithfulness_corpus;

/* Take over the tokens of a text, which may be empty, in the form in which the model reads them: a decoder with a
 * source begins with its start token. The list is freed also on error. STATUS_INVALID "model": no start token.
 * STATUS_NOMEM. */
status faithfulness_tokens_take(faithfulness_tokens *out, const model_entry *m, token_list *text, error *err);
/* Add the tokens of a source. STATUS_INVALID. */
status faithfulness_tokens_read_source(faithfulness_tokens *out, const model_entry *m, const faithfulness_settings *s,
                                       const char *text, size_t bytes, error *err);
/* Tokenize a text, which may contain the name of the mask for a model that fills masks. STATUS_INVALID. */
status faithfulness_tokens_read(faithfulness_tokens *out, const model_entry *m, const faithfulness_settings *s,
                                const char *text, size_t bytes, error *err);

/* Read the file `id` at `path`: the first texts that have a position of the settings. Each text and each source is cut
 * to settings.max_tokens. STATUS_INVALID "file": not text, a wrong line, or no such text. STATUS_STORAGE: damaged.
 * STATUS_NOMEM. Any thread. Call faithfulness_corpus_fini also after an error. */
status faithfulness_corpus_read(faithfulness_corpus *out, const char *path, const char *id, const model_entry *m,
                                const faithfulness_settings *s, error *err);
void faithfulness_corpus_fini(faithfulness_corpus *c);

#endif
