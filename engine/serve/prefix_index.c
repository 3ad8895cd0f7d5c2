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
	return x->buckets ? STATUS_OK : STATUS_NOMEM;
}

void prefix_index_fini(prefix_index *x)
{
	for (prefix_entry *e = x->newest, *older; e; e = older) {
		older = e->older;
		free(e);
	}
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

static void unlink_use(prefix_index *x, prefix_entry *e)
{
	*(e->newer ? &e->newer->older : &x->newest) = e->older;
	*(e->older ? &e->older->newer : &x->oldest) = e->newer;
}

static void link_newest(prefix_index *x, prefix_entry *e)
{
	e->newer = NULL;
	e->older = x->newest;
	*(x->newest ? &x->newest->newer : &x->oldest) = e;
	x->newest = e;
}

void prefix_index_touch(prefix_index *x, prefix_entry *e)
{
	unlink_use(x, e);
	link_newest(x, e);
}

void prefix_index_add(prefix_index *x, prefix_entry *e)
{
	prefix_entry **to = bucket(x, e->key.hash);
	e->next = *to;
	*to = e;
	link_newest(x, e);
	x->states++;
	x->bytes += e->bytes;
}

void prefix_index_remove(prefix_index *x, prefix_entry *e)
{
	prefix_entry **link = find_link(x, &e->key);
	*link = e->next;
	unlink_use(x, e);
	x->states--;
	x->bytes -= e->bytes;
}
