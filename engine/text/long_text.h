/* long_text.h - tokenize one long text on several threads, in pieces, if its tokenizer knows cuts that change no
 * token. */
#ifndef ENGINE_TEXT_LONG_TEXT_H
#define ENGINE_TEXT_LONG_TEXT_H

#include "engine/text/tokenizer_kind.h"

enum { LONG_TEXT_BYTES = 256 << 10 };

/* Like tokenizer_kind.encode, for a kind with a cut and a text without trusted ranges. Only one call at a time has
 * workers; concurrent calls work alone. */
status long_text_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                        error *err);

#endif
