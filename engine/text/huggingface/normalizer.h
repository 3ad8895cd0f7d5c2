/* normalizer.h - the "normalizer" of a tokenizer.json: changes of the text before it is cut. Immutable, thread-safe. */
#ifndef ENGINE_TEXT_HUGGINGFACE_NORMALIZER_H
#define ENGINE_TEXT_HUGGINGFACE_NORMALIZER_H

#include "engine/text/charsmap.h"
#include "engine/text/huggingface/pattern.h"
#include "engine/text/huggingface/pieces.h"

enum { NORMALIZER_MAX_STEPS = 16 };

typedef struct normalizer_step normalizer_step;
struct normalizer_step {
	status (*apply)(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out);
	int option;       /* a form, or the sides to strip */
	pattern *pattern; /* of Replace */
	char *text;       /* of Prepend and Replace; of Precompiled the table of `rules` */
	size_t bytes;
	charsmap rules; /* of Precompiled */
};

typedef struct normalizer {
	normalizer_step steps[NORMALIZER_MAX_STEPS];
	int count;
} normalizer;

/* part NULL or null: none. STATUS_UNSUPPORTED by name. After an error `n` is to be freed too. */
status normalizer_read(normalizer *n, const json_t *part, error *err);
void normalizer_fini(normalizer *n);
/* Normalize a piece, by way of two buffers that hold the result until they change. */
status normalizer_apply(const normalizer *n, pattern_search *search, const text_piece *p, text_buffer room[2],
                        text_piece *out);

#endif
