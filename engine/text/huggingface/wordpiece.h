/* wordpiece.h - the model "WordPiece": from left to right it takes the longest token that the rest of a word begins
 * with. After the first token only tokens count whose names begin with a prefix, which is not part of their text. A
 * word with a part without a token, or with too many characters, is unknown as a whole.
 *
 * Time is a word's bytes times the longest token's. Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORDPIECE_H
#define ENGINE_TEXT_HUGGINGFACE_WORDPIECE_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/text/huggingface/vocabulary.h"
#include "engine/text/huggingface/word_room.h"
#include "engine/text/trie.h"

typedef struct wordpiece {
	trie begins, inside; /* tokens that begin a word, and those that continue one, without the prefix; no special
	                      * tokens */
	bool byte_level;     /* a word's bytes are its characters */
	int32_t unknown;
	size_t most; /* characters of a word */
} wordpiece;

/* Check what the model asks for before its vocabulary is made. */
status wordpiece_check(const json_t *model, error *err);
/* Read the "model" of a tokenizer.json, whose vocabulary is made. special: [ids]; both are read only here. After an
 * error `w` is to be freed too. */
status wordpiece_read(wordpiece *w, const json_t *model, const vocabulary *names, const bool *special, bool byte_level,
                      error *err);
void wordpiece_fini(wordpiece *w);
/* The tokens of a word: r->ids and r->lengths, r->count of them. STATUS_NOMEM; STATUS_TOO_LARGE: 4 GB. */
status wordpiece_encode(const wordpiece *w, const char *word, size_t bytes, word_room *r);

#endif
