/* wordlevel.h - the model "WordLevel": a word is its token, or the unknown one. Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORDLEVEL_H
#define ENGINE_TEXT_HUGGINGFACE_WORDLEVEL_H

#include <jansson.h>
#include <stdbool.h>

#include "engine/text/huggingface/vocabulary.h"
#include "engine/text/huggingface/word_room.h"

typedef struct wordlevel {
	const vocabulary *names;
	const bool *special; /* [ids]: tokens that no text becomes */
	int32_t unknown;
} wordlevel;

/* Check the model's members before its vocabulary is made. */
status wordlevel_check(const json_t *model, error *err);
/* Read the "model" of a tokenizer.json, whose vocabulary is made. names and special must outlive it. */
status wordlevel_read(wordlevel *w, const json_t *model, const vocabulary *names, const bool *special, error *err);
/* The token of a word. STATUS_NOMEM; STATUS_TOO_LARGE: 4 GB. */
status wordlevel_encode(const wordlevel *w, const char *word, size_t bytes, word_room *r);

#endif
