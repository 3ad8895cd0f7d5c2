/* decoder.h - the "decoder" of a tokenizer.json, token by token: the bytes that each stands for.
 *
 * A decoder works on a list of tokens, a stream has one at a time. So what changes a token by its neighbours is
 * supported only where the first token of a text differs from the others. Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_DECODER_H
#define ENGINE_TEXT_HUGGINGFACE_DECODER_H

#include "engine/text/huggingface/pieces.h"

enum { DECODER_MAX_STEPS = 16 };

typedef struct decoder_step decoder_step;
struct decoder_step {
	/* Change the token in `text`. first: of a text. False: it becomes too long. */
	bool (*apply)(const decoder_step *step, bool first, char *text, size_t *bytes);
	char from[64], to[64]; /* what is replaced or stripped */
	size_t from_bytes, to_bytes;
	int start, stop;
	bool keeps_first; /* of Metaspace: the first token keeps its spaces */
};

typedef struct decoder {
	decoder_step steps[DECODER_MAX_STEPS];
	int count;
	bool fused, bytes; /* while reading: Fuse or ByteFallback has been read */
	bool first_differs;
} decoder;

/* part NULL or null: tokens are joined by spaces. STATUS_UNSUPPORTED by name. */
status decoder_read(decoder *d, const json_t *part, error *err);
/* The bytes of a token, from its name: into out, which has room for TOKEN_MAX_BYTES. False: they are more. */
bool decoder_token(const decoder *d, const char *name, size_t bytes, bool first, char *out, size_t *count);

#endif
