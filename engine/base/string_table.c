/* Chained buckets, a power of two of them, doubled when there are more nodes than buckets. When there is no memory for
 * that, the chains grow instead: only the first allocation can fail. */
#include "engine/base/string_table.h"

#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/memory.h"

enum { FIRST_BUCKETS = 64 };

static void push(string_table *t, string_node *n)
{
	size_t i = n->hash & (t->n_buckets - 1);
	n->next = t->buckets[i];
	t->buckets[i] = n;
	t->first = i < t->first ? i : t->first;
}

static void string_table_grow(string_table *t)
{
	string_table bigger = {.n_buckets = t->n_buckets ? 2 * t->n_buckets : FIRST_BUCKETS, .count = t->count};
	bigger.buckets = memory_new(bigger.n_buckets, sizeof(string_node *));
	if (!bigger.buckets)
		return;
	for (size_t i = 0; i < t->n_buckets; i++) {
		for (string_node *n = t->buckets[i], *next; n; n = next) {
			next = n->next;
			push(&bigger, n);
		}
	}
	free(t->buckets);
	*t = bigger;
}

string_node *string_table_find(const string_table *t, const char *key)
{
	if (t->count == 0)
		return NULL;
	uint64_t hash = digest_bytes(key, strlen(key));
	string_node *n = t->buckets[hash & (t->n_buckets - 1)];
	while (n && (n->hash != hash || strcmp(n->key, key) != 0))
		n = n->next;
	return n;
}

status string_table_add(string_table *t, string_node *n, const char *key)
{
	if (t->count >= t->n_buckets)
		string_table_grow(t);
	if (!t->buckets)
		return STATUS_NOMEM;
	*n = (string_node){.key = key, .hash = digest_bytes(key, strlen(key))};
	push(t, n);
	t->count++;
	return STATUS_OK;
}

void string_table_remove(string_table *t, string_node *n)
{
	string_node **link = &t->buckets[n->hash & (t->n_buckets - 1)];
	while (*link != n)
		link = &(*link)->next;
	*link = n->next;
	t->count--;
}

string_node *string_table_any(string_table *t)
{
	while (t->count && !t->buckets[t->first])
		t->first++;
	return t->count ? t->buckets[t->first] : NULL;
}

string_node *string_table_next(const string_table *t, const string_node *n)
{
	if (n && n->next)
		return n->next;
	size_t i = n ? (n->hash & (t->n_buckets - 1)) + 1 : t->first;
	while (i < t->n_buckets && !t->buckets[i])
		i++;
	return i < t->n_buckets ? t->buckets[i] : NULL;
}

void string_table_fini(string_table *t)
{
	free(t->buckets);
	*t = (string_table){0};
}
