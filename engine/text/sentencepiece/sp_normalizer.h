/* sp_normalizer.h - text as a SentencePiece model wants it: its rules of normalisation, its rules about spaces.
 *
 * It works in pieces: fill makes some more of the normalised text, drop forgets the beginning, so a text of any length
 * takes bounded memory. One text, one thread. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_NORMALIZER_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_NORMALIZER_H

#include "engine/text/sentencepiece/sp_model.h"

typedef struct sp_normalizer {
	const sp_model *model;
	const char *text; /* borrowed */
	size_t bytes, at; /* at: the next byte to read */
	char *out;        /* normalised text */
	size_t *origin;   /* NULL: not asked for; [count + 1]: the place in text that each byte of out comes from; the
	                     last   once the text has ended */
	size_t count, room, last; /* last: where the latest bytes begin */
	size_t settled; /* bytes that are final, and whose successors' origins are known; equals `used` once the text
	                 * has ended */
	size_t *budget; /* bytes that may still be made */
	bool track, continues, started, after_space, ended;
} sp_normalizer;

/* continues: the text continues another one, so nothing is added before it and its first spaces are kept. */
void sp_normalizer_init(sp_normalizer *n, const sp_model *m, const char *text, size_t bytes, bool track,
                        bool continues, size_t *budget);
/* Until there are `goal` bytes or the text ends. STATUS_NOMEM; STATUS_INVALID: past the budget. */
status sp_normalizer_fill(sp_normalizer *n, size_t goal);
/* Forget the first bytes of out. */
void sp_normalizer_drop(sp_normalizer *n, size_t bytes);
void sp_normalizer_fini(sp_normalizer *n);

#endif
