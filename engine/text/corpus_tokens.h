/* corpus_tokens.h - tokenize a text of any size into a cache, on several threads.
 *
 * The text is read piece by piece (corpus_reader.h); pieces are tokenized in parallel and written in order. The
 * tokenizer determines where plain text may be cut (tokenizer_cut), so tokens depend neither on the number of threads
 * nor on their speed. A text begins with the tokens that the tokenizer adds before a text, as prompts do;
 * document_tokens.h says how documents begin and end.
 *
 * Memory: a few pieces for each thread. */
#ifndef ENGINE_TEXT_CORPUS_TOKENS_H
#define ENGINE_TEXT_CORPUS_TOKENS_H

#include <stdatomic.h>

#include "engine/text/conversation.h"
#include "engine/text/corpus_reader.h"
#include "engine/text/token_cache.h"

typedef struct corpus_tokens_options {
	const char *path; /* path of the cache's file, which must not exist; NULL: memory */
	int64_t most;     /* limit of its bytes; 0: none */
	uint64_t key;
	int threads;                       /* 0: one for each core, at most 16 */
	const atomic_bool *cancel;         /* set: end with STATUS_CANCELLED; may be NULL */
	const conversation_template *chat; /* NULL: messages are written in the plain form */
	size_t piece_bytes;                /* 0: 1 MiB */
} corpus_tokens_options;

/* Takes ownership of the source, even on failure. STATUS_INVALID: bytes that are not UTF-8 or damaged compression (see
 * corpus_reader.h), or a bad line, by its number. A failure leaves no file. */
status corpus_tokens_build(token_cache **out, byte_source *source, const tokenizer *t, const corpus_tokens_options *o,
                           error *err);

#endif
