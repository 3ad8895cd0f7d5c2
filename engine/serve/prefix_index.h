/* prefix_index.h - the states that prefix_disk.h has as files: a hash table by key, and an order by last use. The caller
 * locks it. */
#ifndef ENGINE_SERVE_PREFIX_INDEX_H
#define ENGINE_SERVE_PREFIX_INDEX_H

#include <sys/queue.h>

#include "engine/serve/prefix_disk.h"

typedef struct prefix_entry {
	struct prefix_entry *next; /* in its bucket; after its removal, free for the caller */
	TAILQ_ENTRY(prefix_entry) use;
	prefix_key key;
	int64_t bytes;
} prefix_entry;

typedef struct prefix_index {
	prefix_entry **buckets;
	TAILQ_HEAD(prefix_uses, prefix_entry) uses; /* most recent first; the index does not move */
	int64_t states, bytes;
} prefix_index;

/* STATUS_NOMEM. */
status prefix_index_init(prefix_index *x);
/* Free the index and its entries. */
void prefix_index_fini(prefix_index *x);

/* Return the least recently used entry; NULL: there is none. */
prefix_entry *prefix_index_oldest(const prefix_index *x);
/* Return the entry with this key, or NULL. */
prefix_entry *prefix_index_find(const prefix_index *x, const prefix_key *key);
/* Return the entry of the longest state with which ids [n] begin, as prefix_disk_find does; NULL: there is none. */
prefix_entry *prefix_index_longest(const prefix_index *x, const prefix_key *key, const int32_t *ids, int64_t n,
                                   int64_t least);
/* Add an entry from malloc as the most recently used one. No entry has its key. */
void prefix_index_add(prefix_index *x, prefix_entry *e);
/* Make an entry the most recently used one. */
void prefix_index_touch(prefix_index *x, prefix_entry *e);
/* Remove an entry, which the caller then owns. */
void prefix_index_remove(prefix_index *x, prefix_entry *e);

#endif
