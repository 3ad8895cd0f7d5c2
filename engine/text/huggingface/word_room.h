/* word_room.h - the tokens of a word and the number of bytes of each, with working memory for a model that is reused
 * from word to word. Zero-initialise. */
#ifndef ENGINE_TEXT_HUGGINGFACE_WORD_ROOM_H
#define ENGINE_TEXT_HUGGINGFACE_WORD_ROOM_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct word_room {
	int32_t *ids;
	uint32_t *lengths;
	size_t count, capacity;
	size_t bytes;              /* length of the text of these tokens */
	uint32_t *next, *previous; /* BPE: neighbours, */
	uint64_t *heap;            /* pairs that may merge, */
	char *name;                /* the spelling of a whole word */
	void *nodes;               /* Unigram: the best paths to each place */
	size_t nodes_bytes;
} word_room;

void word_room_fini(word_room *r);
/* Make room for `count` tokens; the contents are lost when it grows. STATUS_NOMEM. */
status word_room_reserve(word_room *r, size_t count);

static inline void word_room_add(word_room *r, int32_t id, uint32_t length)
{
	r->ids[r->count] = id;
	r->lengths[r->count++] = length;
}

#endif
