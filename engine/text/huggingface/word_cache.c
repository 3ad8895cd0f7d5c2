#include "engine/text/huggingface/word_cache.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

status word_cache_init(word_cache *c)
{
	c->slots = memory_new(WORD_CACHE_SLOTS, sizeof *c->slots);
	atomic_init(&c->count, 0);
	return c->slots ? STATUS_OK : STATUS_NOMEM;
}

void word_cache_fini(word_cache *c)
{
	for (size_t i = 0; c->slots && i < WORD_CACHE_SLOTS; i++)
		free(atomic_load_explicit(&c->slots[i], memory_order_relaxed));
	free(c->slots);
	c->slots = NULL;
}

static bool word_cache_is_word(const cached_word *w, uint64_t hash, const char *word, size_t bytes)
{
	return w->hash == (uint32_t)hash && w->bytes == bytes &&
	       memcmp((const char *)(w->ids + w->count), word, bytes) == 0;
}

/* The upper half of the hash selects the slot; an entry keeps the lower one. */
static size_t slot_of(uint64_t hash)
{
	return (size_t)(hash >> 32) % WORD_CACHE_SLOTS;
}

const cached_word *word_cache_find(const word_cache *c, uint64_t hash, const char *word, size_t bytes)
{
	for (size_t at = slot_of(hash);; at = (at + 1) % WORD_CACHE_SLOTS) {
		const cached_word *w = atomic_load_explicit(&c->slots[at], memory_order_acquire);
		if (!w || word_cache_is_word(w, hash, word, bytes))
			return w;
	}
}

void word_cache_add(word_cache *c, uint64_t hash, const char *word, size_t bytes, const int32_t *ids, size_t count)
{
	if (atomic_fetch_add_explicit(&c->count, 1, memory_order_relaxed) >= WORD_CACHE_MOST) {
		atomic_store_explicit(&c->count, WORD_CACHE_MOST, memory_order_relaxed); /* it never overflows */
		return;
	}
	cached_word *w = malloc(sizeof *w + count * sizeof *w->ids + bytes);
	if (!w)
		return;
	*w = (cached_word){(uint32_t)hash, (uint16_t)bytes, (uint16_t)count};
	memcpy(w->ids, ids, count * sizeof *ids);
	memcpy(w->ids + count, word, bytes);
	for (size_t at = slot_of(hash);; at = (at + 1) % WORD_CACHE_SLOTS) {
		cached_word *current = NULL;
		if (atomic_compare_exchange_strong_explicit(&c->slots[at], &current, w, memory_order_acq_rel,
		                                            memory_order_acquire))
			return;
		if (word_cache_is_word(current, hash, word, bytes)) { /* by another thread, meanwhile */
			free(w);
			return;
		}
	}
}
