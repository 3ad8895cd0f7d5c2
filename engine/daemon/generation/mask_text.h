/* mask_text.h - texts in which the name of the mask token represents it, and nothing else is special. Any thread.
 *
 * The name is the tokenizer's own name of the token, or MASK_TEXT_NAME if it has none. A tokenizer that knows the name
 * finds it, together with white space that belongs to it (RoBERTa's includes the space before it). Otherwise the text
 * is tokenized on both sides of each mask as if it continued. If tokens of words begin with the space before them, so
 * does a mask: a single space before it is part of it. */
#ifndef ENGINE_DAEMON_GENERATION_MASK_TEXT_H
#define ENGINE_DAEMON_GENERATION_MASK_TEXT_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/text/tokenizer.h"

#define MASK_TEXT_NAME "[MASK]"

/* The name of the mask in the texts of a model. */
typedef struct mask_name {
	int32_t id; /* TOKEN_NONE: the model has no mask */
	bool known; /* the tokenizer knows the name */
	char text[TOKEN_MAX_BYTES];
	size_t bytes;
} mask_name;
mask_name mask_text_name(const model_entry *m);
/* True if token i of a list from mask_text_encode is a mask. */
bool mask_text_is_mask(const mask_name *name, const token_list *tokens, size_t i);

/* Encode a text with spans; a mask's span is its name and the white space that is part of it. Of `o` only `begin` and
 * `end` are used. On error the list is empty. */
status mask_text_encode(const model_entry *m, const mask_name *name, const char *text, size_t bytes,
                        const encode_options *o, token_list *out, error *err);

/* Encode without spans. `begin` and `end` of `o` also apply to the text of a source, in models that read one. */
status mask_text_read(const model_entry *m, const char *text, size_t bytes, encode_options o, token_list *out,
                      error *err);

#endif
