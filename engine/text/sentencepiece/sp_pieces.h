/* sp_pieces.h - cut normalised text into pieces with the model's algorithm.
 *
 * The text comes in runs (sp_normalizer.h). Each algorithm cuts the part of a run that is certain whatever follows, so
 * the pieces equal those of the whole text, in memory that does not grow with it. Text that stays undecided for more
 * than SP_RUN_MAX bytes is cut anyway. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_PIECES_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_PIECES_H

#include "engine/text/sentencepiece/sp_model.h"

enum { SP_RUN = 1 << 14, SP_RUN_MAX = 1 << 20 };

typedef struct sp_cut {
	size_t bytes;
	int32_t id;
} sp_cut;

typedef struct sp_pieces {
	const sp_model *model;
	sp_cut *cuts; /* cuts of the last run, from its beginning */
	size_t count, room;
	float score;   /* unigram: of the best way through all text so far */
	void *scratch; /* working memory of the algorithm */
	size_t scratch_bytes;
} sp_pieces;

/* Zero it and set model. */
void sp_pieces_fini(sp_pieces *p);
/* Cut the beginning of a run; the cuts' bytes add up to what was used, which can be nothing unless `last` (the run ends
 * the text) or the run is longer than SP_RUN_MAX. STATUS_NOMEM. */
status sp_pieces_cut(sp_pieces *p, const char *text, size_t bytes, bool last);

/* For the algorithms. */
status sp_pieces_add(sp_pieces *p, size_t bytes, int32_t id);
/* At least `bytes` bytes of scratch, kept from run to run; NULL: memory is short. */
void *sp_pieces_scratch(sp_pieces *p, size_t bytes);
status sp_unigram_cut(sp_pieces *p, const char *text, size_t bytes, bool last);
status sp_bpe_cut(sp_pieces *p, const char *text, size_t bytes, bool last);

#endif
