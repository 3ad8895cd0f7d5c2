#include "engine/text/huggingface/word_counts.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/memory.h"

enum { FIRST_WORDS = 4096, FIRST_BYTES = 64 << 10 };

void word_counts_fini(word_counts *c)
{
	free(c->words);
	free(c->slots);
	free(c->text);
	*c = (word_counts){0};
}

/* Twice as many words, and four slots for each two of them. */
static status word_counts_grow(word_counts *c)
{
	const size_t capacity = c->capacity ? 2 * c->capacity : FIRST_WORDS, slots = 2 * capacity;
	if (capacity >= UINT32_MAX)
		return STATUS_NOMEM;
	counted_word *words = realloc(c->words, capacity * sizeof *words);
	if (!words)
		return STATUS_NOMEM;
	c->words = words;
	uint32_t *table = malloc(slots * sizeof *table);
	if (!table)
		return STATUS_NOMEM;
	memset(table, 0xFF, slots * sizeof *table);
	for (size_t i = 0; i < c->n; i++) {
		size_t at = (size_t)words[i].hash & (slots - 1);
		while (table[at] != UINT32_MAX)
			at = (at + 1) & (slots - 1);
		table[at] = (uint32_t)i;
	}
	free(c->slots);
	c->slots = table;
	c->mask = slots - 1;
	c->capacity = capacity;
	return STATUS_OK;
}

static status word_counts_keep(word_counts *c, const char *word, size_t bytes)
{
	if (!MEMORY_ROOM(c->text, c->room, c->used + bytes))
		return STATUS_NOMEM;
	memcpy(c->text + c->used, word, bytes);
	c->used += bytes;
	return STATUS_OK;
}

status word_counts_add(word_counts *c, const char *word, size_t bytes)
{
	if (c->n == c->capacity)
		TRY(word_counts_grow(c));
	const uint64_t hash = XXH3_64bits(word, bytes);
	size_t at = (size_t)hash & c->mask;
	for (; c->slots[at] != UINT32_MAX; at = (at + 1) & c->mask) {
		counted_word *w = &c->words[c->slots[at]];
		if (w->hash == hash && w->bytes == bytes && memcmp(c->text + w->first, word, bytes) == 0) {
			w->count++;
			return STATUS_OK;
		}
	}
	TRY(word_counts_keep(c, word, bytes));
	c->slots[at] = (uint32_t)c->n;
	c->words[c->n++] = (counted_word){hash, c->used - bytes, (uint32_t)bytes, 1};
	return STATUS_OK;
}
