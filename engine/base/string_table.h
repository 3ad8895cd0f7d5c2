/* string_table.h - a hash table from strings to the objects that embed its nodes.
 *
 * A node is a member of its object, so the table itself only allocates buckets. Keys are borrowed and must not change
 * while their node is in the table. Not thread-safe. */
#ifndef ENGINE_BASE_STRING_TABLE_H
#define ENGINE_BASE_STRING_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

typedef struct string_node {
	struct string_node *next; /* in its bucket */
	const char *key;
	uint64_t hash;
} string_node;

/* Zero-initialise; free with _fini. */
typedef struct string_table {
	string_node **buckets;
	size_t n_buckets, count;
	size_t first; /* the buckets before this one are empty */
} string_table;

/* The object that contains a node; NULL for NULL. */
#define STRING_TABLE_OWNER(node, type, member) ((node) ? (type *)((char *)(node)-offsetof(type, member)) : (type *)NULL)

/* The node with this key, or NULL. */
string_node *string_table_find(const string_table *t, const char *key);
/* Add a node whose key is not in the table yet. On STATUS_NOMEM the table is unchanged. */
status string_table_add(string_table *t, string_node *n, const char *key);
/* Remove a node that is in the table. */
void string_table_remove(string_table *t, string_node *n);
/* Any node; NULL when the table is empty. */
string_node *string_table_any(string_table *t);
/* The node after `n` in an arbitrary order; the first one for NULL; NULL at the end. */
string_node *string_table_next(const string_table *t, const string_node *n);
/* Free the buckets. The nodes belong to their owners. */
void string_table_fini(string_table *t);

#endif
