/* mask_text.h - texts in which the name of the mask token stands for it, and nothing else is special. Any thread.
 *
 * The name is the one that the tokenizer gives the token, or MASK_TEXT_NAME where it has none. Where the tokenizer
 * knows it, it finds it, and white space that belongs to it (RoBERTa's takes the space before it) goes with it. Where
 * it does not, the text is tokenized on both sides of each mask as if it went on. Where the tokens of words begin with
 * the space before them, so does a mask: a space alone in front of one is part of it, as of the word that it stands
 * for. */
#ifndef ENGINE_DAEMON_GENERATION_MASK_TEXT_H
#define ENGINE_DAEMON_GENERATION_MASK_TEXT_H

#include "engine/daemon/catalog/catalog.h"
#include "engine/text/tokenizer.h"

#define MASK_TEXT_NAME "[MASK]"

/* How the texts of a model write the mask. */
typedef struct mask_name {
	int32_t id; /* TOKEN_NONE: the model has no mask */
	bool known; /* to the tokenizer */
	char text[TOKEN_MAX_BYTES];
	size_t bytes;
} mask_name;
mask_name mask_text_name(const model_entry *m);
/* Is token i of a list that mask_text_encode has made a mask? */
bool mask_text_is_mask(const mask_name *name, const token_list *tokens, size_t i);

/* The tokens of a text, with their spans; that of a mask is its name and the white space that is part of it. o: `begin`
 * and `end` alone. On error the list is empty. */
status mask_text_encode(const model_entry *m, const mask_name *name, const char *text, size_t bytes,
                        const encode_options *o, token_list *out, error *err);

/* The tokens alone. `begin` and `end` of `o` are also how the text of a source is read, by models that have one. */
status mask_text_read(const model_entry *m, const char *text, size_t bytes, encode_options o, token_list *out,
                      error *err);

#endif
