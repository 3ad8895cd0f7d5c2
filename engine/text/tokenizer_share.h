/* tokenizer_share.h - one tokenizer for all folders with the same files: those of a model's checkpoints, and of models
 * made of one tokenizer. Any thread. */
#ifndef ENGINE_TEXT_TOKENIZER_SHARE_H
#define ENGINE_TEXT_TOKENIZER_SHARE_H

#include "engine/text/tokenizer_kind.h"

/* An open tokenizer of the same files, byte for byte, with one user more; NULL: there is none. */
tokenizer *tokenizer_share_find(const tokenizer *files);
/* Let an open tokenizer be found, whose only user is the caller. Returns it, or the one that another thread has added
 * meanwhile, with one user more; then t is to be freed. */
tokenizer *tokenizer_share_add(tokenizer *t);
/* One user less. True: there is none left, nothing finds it any more and it is to be freed. */
bool tokenizer_share_leave(tokenizer *t);

#endif
