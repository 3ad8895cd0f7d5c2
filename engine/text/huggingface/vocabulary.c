#include "engine/text/huggingface/vocabulary.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/base/memory.h"

status vocabulary_init(vocabulary *v, int32_t size, size_t bytes)
{
	size_t slots = 16;
	while (slots < 2 * (size_t)size)
		slots *= 2;
	*v = (vocabulary){.size = size, .room = bytes, .mask = slots - 1};
	v->text = memory_new(bytes, 1);
	v->first = memory_new((size_t)size, sizeof *v->first);
	v->length = memory_new((size_t)size, sizeof *v->length);
	v->slots = memory_new(slots, sizeof *v->slots);
	if (!v->text || !v->first || !v->length || !v->slots)
		return STATUS_NOMEM;
	memset(v->length, 0xFF, (size_t)size * sizeof *v->length);
	memset(v->slots, 0xFF, slots * sizeof *v->slots);
	return STATUS_OK;
}

void vocabulary_fini(vocabulary *v)
{
	free(v->text);
	free(v->first);
	free(v->length);
	free(v->slots);
	*v = (vocabulary){0};
}

/* The slot of a name, or the free one where it belongs. */
static size_t find_slot(const vocabulary *v, const char *name, size_t bytes)
{
	size_t at = (size_t)XXH3_64bits(name, bytes) & v->mask;
	for (; v->slots[at] >= 0; at = (at + 1) & v->mask) {
		const int32_t id = v->slots[at];
		if (v->length[id] == bytes && memcmp(v->text + v->first[id], name, bytes) == 0)
			break;
	}
	return at;
}

void vocabulary_add(vocabulary *v, const char *name, size_t bytes, int32_t id, bool findable)
{
	if (findable)
		v->slots[find_slot(v, name, bytes)] = id;
	v->first[id] = (uint32_t)v->used;
	v->length[id] = (uint32_t)bytes;
	memcpy(v->text + v->used, name, bytes);
	v->used += bytes;
}

int32_t vocabulary_find(const vocabulary *v, const char *name, size_t bytes)
{
	return v->slots[find_slot(v, name, bytes)];
}

const char *vocabulary_name(const vocabulary *v, int32_t id, size_t *bytes)
{
	if (id < 0 || id >= v->size || v->length[id] == UINT32_MAX)
		return NULL;
	*bytes = v->length[id];
	return v->text + v->first[id];
}
