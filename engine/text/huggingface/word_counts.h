/* word_counts.h - the words of a text, and how often each occurs. One thread. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORD_COUNTS_H
#define ENGINE_TEXT_HUGGINGFACE_WORD_COUNTS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct counted_word {
	uint64_t hash;
	size_t first; /* its bytes in `text` */
	uint32_t bytes;
	int64_t count;
} counted_word;

/* Zero-initialise. */
typedef struct word_counts {
	counted_word *words; /* [n], in the order of their first occurrence */
	uint32_t *slots;     /* a hash table of their numbers; UINT32_MAX: free */
	size_t n, capacity, mask;
	char *text; /* all words, concatenated */
	size_t used, room;
} word_counts;

void word_counts_fini(word_counts *c);
/* Count a word once more. STATUS_NOMEM. */
status word_counts_add(word_counts *c, const char *word, size_t bytes);

#endif
