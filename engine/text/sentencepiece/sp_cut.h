/* sp_cut.h - where a text can be cut in two that are encoded apart, to the tokens of the whole. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_CUT_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_CUT_H

#include "engine/text/sentencepiece/sp_model.h"

/* True if a cut before a single space after a letter is always safe. The second text must be encoded as one that
 * continues. */
bool sp_cut_is_safe(const sp_model *m);
/* The last such place before `bytes` with a character after the space; 0: none. */
size_t sp_cut_find(const sp_model *m, const char *text, size_t bytes);

#endif
