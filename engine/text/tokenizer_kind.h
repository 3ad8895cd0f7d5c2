/* tokenizer_kind.h - what a type of tokenizer gives.
 *
 * A type is one source with a const tokenizer_kind, and a row in tokenizer.c. The kind
 * says what differs between types; reading and writing tokenizer.json and checking the
 * vocabulary is done once, in tokenizer.c. */
#ifndef ENGINE_TEXT_TOKENIZER_KIND_H
#define ENGINE_TEXT_TOKENIZER_KIND_H

#include "engine/text/tokenizer.h"

typedef struct tokenizer_kind {
	const char *name; /* the "type" of a spec */
	/* Read the spec's further keys (an unknown one is an error naming it) and set
	 * t->size, t->pad and t->end; t->data is the type's own. folder: where the type's files lie, or NULL. */
	status (*open)(tokenizer *t, const json_t *spec, const char *folder, error *err);
	/* Optional: free t->data, which may be NULL. */
	void (*close)(tokenizer *t);
	/* Optional: add keys to tokenizer.json's object and write files of its own. */
	status (*save)(const tokenizer *t, json_t *spec, const char *folder, error *err);
	/* As tokenizer_encode; STATUS_NOMEM leaves *ids NULL. */
	status (*encode)(const tokenizer *t, const char *text, size_t bytes, int32_t **ids, size_t *count, error *err);
	/* As tokenizer_token_bytes, for 0 <= id < size. */
	size_t (*token_bytes)(const tokenizer *t, int32_t id, char *out, size_t size);
} tokenizer_kind;

struct tokenizer {
	const tokenizer_kind *kind;
	int32_t size, pad, end;
	void *data;
};

extern const tokenizer_kind bytes_kind;

#endif
