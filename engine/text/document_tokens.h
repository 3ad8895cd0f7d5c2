/* document_tokens.h - the pieces of documents (documents.h) as tokens.
 *
 * A document begins with the tokens that the tokenizer adds before a text, as prompts do; a conversation begins as its
 * template says. It ends with the end token, if the tokenizer has one. */
#ifndef ENGINE_TEXT_DOCUMENT_TOKENS_H
#define ENGINE_TEXT_DOCUMENT_TOKENS_H

#include "engine/text/tokenizer.h"

/* Zero but for the tokenizer, before the first document. */
typedef struct document_tokens {
	const tokenizer *t;
	bool started; /* the document has a token */
	int32_t last; /* its last one */
} document_tokens;

/* Encode a piece with the arguments of a document_piece, on the calling thread alone. out: to be freed. */
status document_tokens_encode(document_tokens *d, const char *text, size_t bytes, const encode_options *how, int kind,
                              token_list *out, error *err);

#endif
