/* trie.h - strings with numbers, walked byte by byte.
 *
 * A double array: a node's children are at its base, exclusive or their byte, and know their parent, so a step is one
 * access to memory. Nodes are numbered by their places; the root is 0. Immutable once built. */
#ifndef ENGINE_TEXT_TRIE_H
#define ENGINE_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct trie_unit {
	uint32_t base, parent; /* parent: its place + 1; 0: free */
	int32_t value;         /* -1: no string ends here */
	float score;
} trie_unit;

/* Zeroed: no strings; only trie_find, trie_prefix and trie_fini take it. */
typedef struct trie {
	trie_unit *units;
	uint32_t size; /* a multiple of 256; 0: there are no strings */
} trie;

enum { TRIE_MAX_BYTES = 4096 };
typedef struct trie_string {
	const char *text;
	uint32_t bytes; /* from 1 to TRIE_MAX_BYTES */
	int32_t value;  /* from 0 */
	float score;
} trie_string;

/* Build a trie of sorted strings; there may be none. STATUS_CONFLICT: strings[*same] equals the one before it.
 * STATUS_TOO_LARGE: a string is too long. STATUS_NOMEM. On error *out can be freed. */
status trie_build(trie *out, trie_string *strings, size_t count, size_t *same);
void trie_fini(trie *t);

/* The child of a node; 0: none. The trie must be built. */
static inline uint32_t trie_step(const trie *t, uint32_t node, unsigned char byte)
{
	uint32_t at = t->units[node].base ^ byte;
	return t->units[at].parent == node + 1 ? at : 0;
}

/* The number of a whole string, or -1. */
int32_t trie_find(const trie *t, const char *text, size_t bytes);
/* The longest string that `text` begins with: its length, or 0. */
size_t trie_prefix(const trie *t, const char *text, size_t bytes, int32_t *value);

#endif
