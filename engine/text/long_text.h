/* long_text.h - one long text on several threads: in pieces, where its tokenizer knows cuts that change no token. */
#ifndef ENGINE_TEXT_LONG_TEXT_H
#define ENGINE_TEXT_LONG_TEXT_H

#include "engine/text/tokenizer_kind.h"

enum { LONG_TEXT_BYTES = 256 << 10 };

/* As tokenizer_kind.encode, for a kind with a cut and a text without trusted ranges. The threads of one call at a time
 * have workers; others work alone meanwhile. */
status long_text_encode(const tokenizer *t, const char *text, size_t bytes, const encode_options *o, token_list *out,
                        error *err);

#endif
