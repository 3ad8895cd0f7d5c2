/* decoder.h - the "decoder" of a tokenizer.json, token by token: the bytes that each stands for.
 *
 * A decoder works on a list of tokens, a stream has one at a time. So what changes a token by its neighbours is
 * supported only where the first token of a text differs from the others, and where a mark, a token of one character,
 * changes the first character of the text behind it (Replace of two characters by one, behind Fuse). Immutable,
 * thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_DECODER_H
#define ENGINE_TEXT_HUGGINGFACE_DECODER_H

#include "engine/text/huggingface/pieces.h"

enum { DECODER_MAX_STEPS = 16, DECODER_MAX_RAISED = 128 };

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
	uint32_t mark; /* 0: there is none */
	struct {
		uint32_t from, to;
	} raised[DECODER_MAX_RAISED]; /* behind it */
	int n_raised;
} decoder;

/* part NULL or null: tokens are joined by spaces. STATUS_UNSUPPORTED by name. */
status decoder_read(decoder *d, const json_t *part, error *err);
/* The bytes of a token, from its name: into out, which has room for TOKEN_MAX_BYTES. False: they are more. */
bool decoder_token(const decoder *d, const char *name, size_t bytes, bool first, char *out, size_t *count);
/* Is this what the mark stands for? */
bool decoder_is_mark(const decoder *d, const char *text, size_t bytes);
/* What becomes of a character behind the mark. */
uint32_t decoder_raise(const decoder *d, uint32_t c);

#endif
