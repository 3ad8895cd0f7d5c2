/* pre_tokenizer.h - the "pre_tokenizer" of a tokenizer.json: where a text is cut into words, which tokens never cross.
 *
 * A chain of steps: each cuts or changes a piece and hands its parts to the next one, so no list of pieces is ever
 * made. Immutable; each thread has a run of its own.
 *
 * Types: ByteLevel, Split, Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit, BertPreTokenizer,
 * CharDelimiterSplit, FixedLength, Sequence. No step may follow ByteLevel. */
#ifndef ENGINE_TEXT_HUGGINGFACE_PRE_TOKENIZER_H
#define ENGINE_TEXT_HUGGINGFACE_PRE_TOKENIZER_H

#include "engine/text/huggingface/normalizer.h"
#include "engine/text/huggingface/word_pattern.h"

enum { PRE_TOKENIZER_MAX_STEPS = 16 };

typedef enum split_behavior {
	SPLIT_REMOVED,
	SPLIT_ISOLATED,
	SPLIT_MERGED_WITH_PREVIOUS,
	SPLIT_MERGED_WITH_NEXT,
	SPLIT_CONTIGUOUS
} split_behavior;

typedef struct pre_tokenizer_run pre_tokenizer_run;
typedef struct pre_tokenizer_step pre_tokenizer_step;
struct pre_tokenizer_step {
	status (*apply)(pre_tokenizer_run *run, int step, const text_piece *p);
	pattern *pattern;
	split_behavior behavior;
	bool invert;         /* swap matches and the text between them */
	int scheme;          /* Metaspace */
	char replacement[4]; /* Metaspace: a character */
	size_t replacement_bytes;
	division spaces, marks; /* its effect before a space, and before SPACE_MARK */
};

typedef struct pre_tokenizer {
	pre_tokenizer_step steps[PRE_TOKENIZER_MAX_STEPS];
	int count;
	bool byte_level; /* words are bytes, which the vocabulary spells with one character for each */
} pre_tokenizer;

/* State of one thread. Zero except for the first five members. */
struct pre_tokenizer_run {
	const pre_tokenizer *steps;
	pattern_search *search;
	status (*word)(void *context, const text_piece *word); /* every word, in order; none is empty */
	void *context;
	size_t limit; /* on the bytes of a changed piece (text_buffer); 0: none */
	text_buffer changed[PRE_TOKENIZER_MAX_STEPS]; /* by the step of this number */
};

/* part NULL or null: none. STATUS_UNSUPPORTED by name. After an error `t` is to be freed too. */
status pre_tokenizer_read(pre_tokenizer *t, const json_t *part, error *err);
void pre_tokenizer_fini(pre_tokenizer *t);
/* Cut a piece into words. mapped: make maps of what is changed. */
status pre_tokenizer_apply(pre_tokenizer_run *run, const text_piece *p, bool mapped);
void pre_tokenizer_run_fini(pre_tokenizer_run *run);

/* Division of a text by the steps before a space with a letter on either side. *space: the normalizer's result for the
 * space, then the steps' result. */
division pre_tokenizer_divides(const pre_tokenizer *t, space_form *space);

#endif
