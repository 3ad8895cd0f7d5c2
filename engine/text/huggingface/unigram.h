/* unigram.h - the model "Unigram": it cuts a word into the tokens whose scores have the largest sum; if equal, the cut
 * found first, from left to right. A character that begins no token of its own length may be unknown, at a score of 10
 * below the lowest. Neighbouring unknown characters are one token, or bytes if the model has them.
 *
 * Time and memory are linear in the word. Memory is less if the best paths to neighbouring places share a beginning:
 * tokens that are certain whatever follows are returned every UNIGRAM_RUN bytes. Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_UNIGRAM_H
#define ENGINE_TEXT_HUGGINGFACE_UNIGRAM_H

#include <jansson.h>

#include "engine/text/huggingface/vocabulary.h"
#include "engine/text/huggingface/word_room.h"
#include "engine/text/trie.h"

enum { UNIGRAM_RUN = 1 << 12 };

typedef struct unigram {
	trie tokens;    /* tokens that text can become: all except special ones */
	double *scores; /* [names->size] */
	double unknown_score;
	int32_t unknown;    /* -1: what has no token is dropped */
	size_t longest;     /* token, in bytes */
	bool has_bytes;     /* an unknown character becomes the tokens of its bytes, */
	int32_t bytes[256]; /* ids of byte tokens */
} unigram;

/* Check what the model asks for before its vocabulary is made. */
status unigram_check(const json_t *model, error *err);
/* Read the "model" of a tokenizer.json, whose vocabulary is made. special: [ids]; read only here. After an error `u` is
 * to be freed too. */
status unigram_read(unigram *u, const json_t *model, const vocabulary *names, const bool *special, error *err);
void unigram_fini(unigram *u);
/* The tokens of a word. STATUS_NOMEM; STATUS_TOO_LARGE: 4 GB. */
status unigram_encode(const unigram *u, const char *word, size_t bytes, word_room *r);

#endif
