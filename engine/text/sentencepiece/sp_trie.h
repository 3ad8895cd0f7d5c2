/* sp_trie.h - strings with numbers, walked byte by byte.
 *
 * A double array: a node's children lie at its base, exclusive or their byte, and know their parent, so a step is one
 * access to memory. Nodes are numbered by their places; the root is 0. Immutable once built. */
#ifndef ENGINE_TEXT_SENTENCEPIECE_SP_TRIE_H
#define ENGINE_TEXT_SENTENCEPIECE_SP_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

typedef struct sp_unit {
	uint32_t base, parent; /* parent: its place + 1; 0: free */
	int32_t value;         /* -1: no string ends here */
	float score;
} sp_unit;

/* Zeroed: no strings. */
typedef struct sp_trie {
	sp_unit *units;
	uint32_t size; /* a multiple of 256 */
} sp_trie;

typedef struct sp_string {
	const char *text;
	uint32_t bytes; /* not 0 */
	int32_t value;  /* from 0 */
	float score;
} sp_string;

/* Build a trie of strings, which are sorted. STATUS_CONFLICT: two are the same; they are strings[*same] and the one
 * before it. STATUS_NOMEM. On error *out can be freed. */
status sp_trie_build(sp_trie *out, sp_string *strings, size_t count, size_t *same);
void sp_trie_fini(sp_trie *t);

/* The child of a node; 0: none. There must be strings. */
static inline uint32_t sp_trie_step(const sp_trie *t, uint32_t node, unsigned char byte)
{
	uint32_t at = t->units[node].base ^ byte;
	return t->units[at].parent == node + 1 ? at : 0;
}

/* The number of a whole string; -1: it is not there. */
int32_t sp_trie_find(const sp_trie *t, const char *text, size_t bytes);
/* The longest string that `text` begins with: its length, 0: none. */
size_t sp_trie_prefix(const sp_trie *t, const char *text, size_t bytes, int32_t *value);

#endif
