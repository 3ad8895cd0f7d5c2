/* word_cache.h - cached tokens of words.
 *
 * A hash table that only grows, up to a bound, and that any number of threads read and write without a lock. An entry
 * is immutable, and is published by one compare-and-swap on its slot. The contents never change a result. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORD_CACHE_H
#define ENGINE_TEXT_HUGGINGFACE_WORD_CACHE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum {
	WORD_CACHE_SLOTS = 1 << 17,
	WORD_CACHE_MOST = 1 << 16 /* words */,
	WORD_CACHE_MAX_BYTES = 64 /* bytes of one
	                           * word */
};

typedef struct cached_word {
	uint32_t hash;
	uint16_t bytes, count;
	int32_t ids[]; /* [count], followed by the word */
} cached_word;

typedef struct word_cache {
	_Atomic(cached_word *) *slots;
	atomic_int count;
} word_cache;

status word_cache_init(word_cache *c);
void word_cache_fini(word_cache *c);
/* NULL: it is not there. hash: the word's. */
const cached_word *word_cache_find(const word_cache *c, uint64_t hash, const char *word, size_t bytes);
/* Keep the tokens of a word of at most WORD_CACHE_MAX_BYTES, if there is room and memory. */
void word_cache_add(word_cache *c, uint64_t hash, const char *word, size_t bytes, const int32_t *ids, size_t count);

#endif
