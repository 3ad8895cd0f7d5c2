/* decoder.h - the "decoder" of a tokenizer.json, token by token: the bytes of each token.
 *
 * A decoder works on a list of tokens, a stream has one at a time. Changes that depend on neighbouring tokens are
 * therefore supported in two cases only. The first token of a text may differ from the others. A mark, a token of one
 * character, may change the first character of the text after it (Replace of two characters by one, after Fuse).
 * Types: ByteLevel, WordPiece, BPEDecoder, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence. CTC, which joins
 * repeated tokens, is refused. Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_DECODER_H
#define ENGINE_TEXT_HUGGINGFACE_DECODER_H

#include "engine/text/huggingface/pieces.h"

enum { DECODER_MAX_STEPS = 16, DECODER_MAX_RAISED = 128 };

typedef struct decoder_step decoder_step;
struct decoder_step {
	/* Change the token in `text`. first: of a text. False: it becomes too long. */
	bool (*apply)(const decoder_step *step, bool first, char *text, size_t *bytes);
	char from[64], to[64]; /* the text to replace or strip */
	size_t from_bytes, to_bytes;
	int start, stop;
	bool keeps_first; /* Metaspace: the first token keeps its spaces */
};

typedef struct decoder {
	decoder_step steps[DECODER_MAX_STEPS];
	int count;
	bool fused, bytes; /* while reading: Fuse or ByteFallback has been read */
	bool first_differs;
	uint32_t mark; /* 0: there is none */
	struct {
		uint32_t from, to;
	} raised[DECODER_MAX_RAISED]; /* characters after the mark */
	int n_raised;
} decoder;

/* part NULL or null: tokens are joined by spaces. STATUS_UNSUPPORTED by name. */
status decoder_read(decoder *d, const json_t *part, error *err);
/* The bytes of a token, from its name: into out, which has room for TOKEN_MAX_BYTES. False: they are more. */
bool decoder_token(const decoder *d, const char *name, size_t bytes, bool first, char *out, size_t *count);
/* True if this is the mark's text. */
bool decoder_is_mark(const decoder *d, const char *text, size_t bytes);
/* The replacement for a character after the mark. */
uint32_t decoder_raise(const decoder *d, uint32_t c);

#endif
