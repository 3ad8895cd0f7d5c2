/* vocabulary.h - the names of tokens and their ids, both ways. Immutable once made. */
#ifndef ENGINE_TEXT_HUGGINGFACE_VOCABULARY_H
#define ENGINE_TEXT_HUGGINGFACE_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum {
	VOCABULARY_MAX_IDS = 1 << 24,
	VOCABULARY_MAX_NAME = 2 << 10, /* bytes: a token's, each spelled by a character of two */
	/* Memory is proportional to ids, so ids without a token are bounded by the tokens: */
	VOCABULARY_GAPS = 1 << 16,
	VOCABULARY_SPARSE = 8
};

typedef struct vocabulary {
	int32_t size; /* ids are below it */
	char *text;   /* all names, concatenated */
	size_t used, room;
	uint32_t *first;  /* [size]: where a name begins in text */
	uint32_t *length; /* [size]: its bytes; UINT32_MAX: the id has no name */
	int32_t *slots;   /* a hash table of ids; -1: free */
	size_t mask;
} vocabulary;

/* Room for ids below `size` with names of `bytes` bytes in all. STATUS_NOMEM. */
status vocabulary_init(vocabulary *v, int32_t size, size_t bytes);
void vocabulary_fini(vocabulary *v);
/* The id must have no name, id < size and the room not used up. findable: vocabulary_find knows the name, which must be
 * new then; a token that the model does not know is not findable. */
void vocabulary_add(vocabulary *v, const char *name, size_t bytes, int32_t id, bool findable);
/* -1: there is none. */
int32_t vocabulary_find(const vocabulary *v, const char *name, size_t bytes);
/* Not NUL-terminated; NULL: the id has none. */
const char *vocabulary_name(const vocabulary *v, int32_t id, size_t *bytes);

#endif
