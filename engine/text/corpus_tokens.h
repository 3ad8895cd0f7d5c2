/* corpus_tokens.h - from a text of any size to its cached tokens, on several threads.
 *
 * The text is read piece by piece (corpus_reader.h); pieces are tokenized side by side and written in their order.
 * Where plain text may be cut is the tokenizer's to say (tokenizer_cut), so neither the number of threads nor the speed
 * of any of them changes a token. A text and every document of JSON lines begins with the tokens that the tokenizer
 * puts before a text (a conversation: as its template says), as prompts do; every document ends with its end token, if
 * it has one.
 *
 * Memory: a few pieces for each thread. */
#ifndef ENGINE_TEXT_CORPUS_TOKENS_H
#define ENGINE_TEXT_CORPUS_TOKENS_H

#include <stdatomic.h>

#include "engine/text/conversation.h"
#include "engine/text/corpus_reader.h"
#include "engine/text/token_cache.h"

typedef struct corpus_tokens_options {
	const char *path; /* of the cache's file, which must not exist; NULL: memory */
	int64_t most;     /* bytes that it may have; 0: any number */
	uint64_t key;
	int threads;                       /* 0: one for each core, at most 16 */
	const atomic_bool *cancel;         /* set: end with STATUS_CANCELLED; may be NULL */
	const conversation_template *chat; /* NULL: messages are written in the plain form */
	size_t piece_bytes;                /* 0: 1 MiB */
} corpus_tokens_options;

/* Takes ownership of the source, also on failure. STATUS_INVALID: bytes that are not UTF-8 or a damaged compression
 * (see corpus_reader.h), or a bad line, by its number. After a failure nothing is left of the file. */
status corpus_tokens_build(token_cache **out, byte_source *source, const tokenizer *t, const corpus_tokens_options *o,
                           error *err);

#endif
