/* added.h - the "added_tokens" of a tokenizer.json: tokens that are found in a text before it is cut into words.
 *
 * A special one is found only where the text is trusted (encode_options). Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_ADDED_H
#define ENGINE_TEXT_HUGGINGFACE_ADDED_H

#include "engine/text/huggingface/normalizer.h"
#include "engine/text/huggingface/pieces.h"
#include "engine/text/huggingface/vocabulary.h"

typedef struct added_token {
	char *text; /* the text to search for: the name, normalized if the text is */
	size_t bytes;
	int32_t id;
	bool special, single_word, left, right; /* left, right: white space there belongs to it */
	bool normalized;                        /* searched for in the normalized text */
} added_token;

/* Tokens by their text, and with which bytes they begin. */
typedef struct added_set {
	added_token *tokens;
	size_t count;
	bool begins[256];
	bool plain; /* one of them is not special */
} added_set;

typedef struct added {
	added_set sets[2]; /* searched for in the text as it is, and in the normalized text */
	pattern *word;     /* a character of words, where a token is a single word */
} added;

/* Check the list, and count: ids below *size, bytes of names. */
status added_measure(const json_t *list, int32_t *size, size_t *bytes, error *err);
/* Read the list. Those that the vocabulary does not know are added to it, with the ids that follow. After an error `a`
 * is to be freed too. */
status added_read(added *a, const json_t *list, vocabulary *names, const normalizer *n, error *err);
void added_fini(added *a);

/* Receives the results of a search, in order: text without a token (token NULL), or a token. */
typedef status (*added_each)(void *context, const text_piece *p, const added_token *token);
/* Search a piece for the tokens of one set. */
status added_search(const added *a, bool normalized, const text_piece *p, const encode_options *o,
                    pattern_search *search, added_each each, void *context);

/* True if an added token searched in plain text can affect a place between a letter and a space followed by a letter,
 * other than by ending or beginning there. A space may be a SPACE_MARK. */
bool added_cross_spaces(const added *a);

#endif
