/* sp_sample.h - sentences to train a tokenizer on, out of texts of any length, in bounded memory.
 *
 * Sentences are lines with their line feeds, long ones cut. While all fit, all are kept; then those with the lowest
 * random numbers, which depend on nothing but a sentence's place. So the same texts give the same sentences. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_SAMPLE_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum { SP_SAMPLE_BYTES = 16 << 20, SP_SAMPLE_SENTENCE = 4096 };

typedef struct sp_sentence {
	uint32_t number; /* random */
	uint32_t at, bytes;
} sp_sentence;

/* Zero it. */
typedef struct sp_sample {
	char *text;
	sp_sentence *sentences;
	size_t bytes, bytes_room, count, count_room, next;
	uint64_t seen; /* sentences */
	int halvings;  /* number of times that the kept share was halved */
} sp_sample;

status sp_sample_add(sp_sample *s, const char *text, size_t bytes);
/* sp_train_next; context: the sample. */
bool sp_sample_next(void *context, const char **text, size_t *bytes);
void sp_sample_fini(sp_sample *s);

#endif
