/* roles.h - the ids that begin, end, pad, mask or mean unknown, from the files beside a tokenizer.json. */
#ifndef ENGINE_TEXT_HUGGINGFACE_ROLES_H
#define ENGINE_TEXT_HUGGINGFACE_ROLES_H

#include "engine/text/huggingface/added.h"
#include "engine/text/tokenizer_kind.h"

/* Set t->begin, end, pad, unknown, mask and the further ends. tokenizer_config.json says it, or
 * special_tokens_map.json; where both are silent, a special token of a well-known name. Further ends
 * are special tokens of well-known names. STATUS_INVALID: a file that is no JSON object, or a
 * role of a token that there is not. */
status roles_read(tokenizer *t, const vocabulary *names, const added *a, error *err);

#endif
