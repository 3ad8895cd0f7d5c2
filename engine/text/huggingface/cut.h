/* cut.h - where a text can be cut in two that are encoded apart, to the tokens of the whole. */
#ifndef ENGINE_TEXT_HUGGINGFACE_CUT_H
#define ENGINE_TEXT_HUGGINGFACE_CUT_H

#include "engine/text/huggingface/added.h"
#include "engine/text/huggingface/pre_tokenizer.h"
#include "engine/text/huggingface/word_model.h"

/* True if a cut before a space between two letters is always safe. The second text must be encoded as one that
 * continues. */
bool cut_is_safe(const normalizer *n, const added *a, const pre_tokenizer *words, const word_model *model);
/* The last space between two letters that the normalizer keeps, both before `bytes`; 0: there is none. */
size_t cut_find(const normalizer *n, const char *text, size_t bytes);

#endif
