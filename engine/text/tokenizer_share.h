/* tokenizer_share.h - share one tokenizer between all folders with the same files, such as a model's checkpoints and
 * models with the same tokenizer. Any thread. */
#ifndef ENGINE_TEXT_TOKENIZER_SHARE_H
#define ENGINE_TEXT_TOKENIZER_SHARE_H

#include "engine/text/tokenizer_kind.h"

/* Find an open tokenizer with the same files, byte for byte, and add a user; NULL: there is none. */
tokenizer *tokenizer_share_find(const tokenizer *files);
/* Register an open tokenizer, whose only user is the caller. Returns it, or, with a user added, the one that another
 * thread has registered meanwhile; the caller then frees t. */
tokenizer *tokenizer_share_add(tokenizer *t);
/* Remove a user. True: none is left, the tokenizer is no longer registered and must be freed. */
bool tokenizer_share_leave(tokenizer *t);

#endif
