#include "engine/serve/prefix_index.h"

#include <stdlib.h>

#include "engine/base/memory.h"

enum { BUCKETS = PREFIX_DISK_MOST };

static bool is_key(const prefix_key *a, const prefix_key *b)
{
	return a->hash == b->hash && a->tokens == b->tokens && a->model == b->model && a->owner == b->owner;
}

status prefix_index_init(prefix_index *x)
{
	*x = (prefix_index){.buckets = memory_new(BUCKETS, sizeof(prefix_entry *))};
	TAILQ_INIT(&x->uses);
	return x->buckets ? STATUS_OK : STATUS_NOMEM;
}

void prefix_index_fini(prefix_index *x)
{
	for (prefix_entry *e; (e = TAILQ_FIRST(&x->uses)); free(e))
		TAILQ_REMOVE(&x->uses, e, use);
	free(x->buckets);
}

static prefix_entry **bucket(const prefix_index *x, uint64_t hash)
{
	return &x->buckets[hash % BUCKETS];
}

static prefix_entry **find_link(const prefix_index *x, const prefix_key *key)
{
	prefix_entry **link = bucket(x, key->hash);
	while (*link && !is_key(&(*link)->key, key))
		link = &(*link)->next;
	return link;
}

prefix_entry *prefix_index_find(const prefix_index *x, const prefix_key *key)
{
	return *find_link(x, key);
}

prefix_entry *prefix_index_longest(const prefix_index *x, const prefix_key *key, const int32_t *ids, int64_t n,
                                   int64_t least)
{
	prefix_entry *found = NULL;
	prefix_key k = *key;
	for (int64_t i = 0; x->states > 0 && i < n - 1; i++) {
		k.hash = prefix_disk_hash(k.hash, ids[i]);
		k.tokens = i + 1;
		prefix_entry *e = k.tokens > least ? *find_link(x, &k) : NULL;
		found = e ? e : found;
	}
	return found;
}

prefix_entry *prefix_index_oldest(const prefix_index *x)
{
	return TAILQ_LAST(&x->uses, prefix_uses);
}

void prefix_index_touch(prefix_index *x, prefix_entry *e)
{
	TAILQ_REMOVE(&x->uses, e, use);
	TAILQ_INSERT_HEAD(&x->uses, e, use);
}

void prefix_index_add(prefix_index *x, prefix_entry *e)
{
	prefix_entry **to = bucket(x, e->key.hash);
	e->next = *to;
	*to = e;
	TAILQ_INSERT_HEAD(&x->uses, e, use);
	x->states++;
	x->bytes += e->bytes;
}

void prefix_index_remove(prefix_index *x, prefix_entry *e)
{
	prefix_entry **link = find_link(x, &e->key);
	*link = e->next;
	TAILQ_REMOVE(&x->uses, e, use);
	x->states--;
	x->bytes -= e->bytes;
}
