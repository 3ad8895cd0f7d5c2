/* normalizer.h - the "normalizer" of a tokenizer.json: changes of the text before it is cut. Immutable, thread-safe.
 *
 * Types: NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents, Nmt, ByteLevel, BertNormalizer,
 * Precompiled, Sequence. */
#ifndef ENGINE_TEXT_HUGGINGFACE_NORMALIZER_H
#define ENGINE_TEXT_HUGGINGFACE_NORMALIZER_H

#include "engine/text/charsmap.h"
#include "engine/text/huggingface/pattern.h"
#include "engine/text/huggingface/pieces.h"

enum { NORMALIZER_MAX_STEPS = 80 };

typedef struct normalizer_step normalizer_step;
struct normalizer_step {
	status (*apply)(const normalizer_step *step, pattern_search *search, const text_piece *p, text_buffer *out);
	int option;       /* a form, or the sides to strip */
	pattern *pattern; /* Replace */
	char *text;       /* Prepend and Replace; Precompiled: the table of `rules` */
	size_t bytes;
	charsmap rules;    /* Precompiled */
	bool marks_spaces; /* Replace: a space becomes SPACE_MARK */
};

typedef struct normalizer {
	normalizer_step steps[NORMALIZER_MAX_STEPS];
	int count;
} normalizer;

/* part NULL or null: none. STATUS_UNSUPPORTED by name. After an error `n` is to be freed too. */
status normalizer_read(normalizer *n, const json_t *part, error *err);
void normalizer_fini(normalizer *n);
/* Normalize a piece, by way of two buffers that hold the result until they change. STATUS_NOMEM; STATUS_INVALID: past
 * their limit; STATUS_TOO_LARGE: of a pattern. */
status normalizer_apply(const normalizer *n, pattern_search *search, const text_piece *p, text_buffer room[2],
                        text_piece *out);

/* The result for a space between two kept characters (normalizer_keeps), if the texts on both sides do not affect each
 * other. */
typedef enum space_form { SPACE_UNKNOWN, SPACE_KEPT, SPACE_MARKED /* SPACE_MARK */ } space_form;
space_form normalizer_space(const normalizer *n);
/* True if text is added before each text. */
bool normalizer_prepends(const normalizer *n);
/* True if every step keeps a letter unchanged, except for composing it with following marks. */
bool normalizer_keeps(const normalizer *n, uint32_t c);

/* forms.c: Unicode's normalization forms. */
typedef enum form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD } form;

/* Append the form of a piece to `out`. Linear in its length, whatever its marks. STATUS_NOMEM. */
status forms_append(form f, const text_piece *p, text_buffer *out);
/* True if the character has no decomposition in this form. */
bool forms_keeps(form f, uint32_t c);

#endif
