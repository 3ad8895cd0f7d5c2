/* pair_counts.h - counts of neighbouring tokens, and the words that contain them, while merges are learned. One thread.
 *
 * Pairs are returned by their count, the most frequent first, the one with the lowest ids if equal. The queue is lazy:
 * an entry is as old as the last call of pair_counts_push, and pair_counts_pop puts back entries whose count has
 * decreased. */
#ifndef ENGINE_TEXT_HUGGINGFACE_PAIR_COUNTS_H
#define ENGINE_TEXT_HUGGINGFACE_PAIR_COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct counted_pair {
	int32_t left, right;
	int64_t count;
	uint32_t *words; /* where it was found; a word may be there twice, or have lost it */
	size_t n_words, capacity;
	bool touched; /* since pair_counts_push */
} counted_pair;

typedef struct queued_pair {
	int64_t count;
	uint32_t pair;
} queued_pair;

/* Zero-initialise. */
typedef struct pair_counts {
	counted_pair *pairs;
	uint32_t *slots, *touched;
	size_t n, capacity, mask, n_touched, touched_capacity;
	queued_pair *queue;
	size_t n_queue, queue_capacity;
} pair_counts;

void pair_counts_fini(pair_counts *c);
/* Change a count by what happens in a word: more of it (word is noted), or less. STATUS_NOMEM. */
status pair_counts_add(pair_counts *c, int32_t left, int32_t right, int64_t change, uint32_t word);
/* Queue the pairs of which there has come more since the last call. STATUS_NOMEM. */
status pair_counts_push(pair_counts *c);
/* The number of the pair to merge, which leaves the queue; UINT32_MAX: there is none. */
uint32_t pair_counts_pop(pair_counts *c);

#endif
