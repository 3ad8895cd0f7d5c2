#include "engine/text/grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* A token and its bytes. */
typedef struct entry {
	const char *bytes;
	size_t count;
	int32_t id;
} entry;

static int by_bytes(const void *pa, const void *pb)
{
	const entry *a = pa, *b = pb;
	const size_t n = a->count < b->count ? a->count : b->count;
	const int order = memcmp(a->bytes, b->bytes, n);
	if (order != 0 || a->count != b->count)
		return order != 0 ? order : a->count < b->count ? -1 : 1;
	return (a->id > b->id) - (a->id < b->id);
}

static size_t common(const entry *a, const entry *b)
{
	size_t n = 0;
	while (n < a->count && n < b->count && a->bytes[n] == b->bytes[n])
		n++;
	return n;
}

/* Nodes of sorted entries. path: room for the nodes above the current one. */
static void token_trie_fill(token_trie *t, const entry *all, int32_t n, int32_t *path)
{
	size_t depth = 0;
	t->nodes[0] = (token_trie_node){0};
	t->n_nodes = 1;
	for (int32_t i = 0; i < n; i++) {
		const size_t shared = i > 0 ? common(&all[i - 1], &all[i]) : 0;
		for (; depth > shared; depth--)
			t->nodes[path[depth]].end = t->n_nodes;
		for (; depth < all[i].count; depth++) {
			path[depth + 1] = t->n_nodes;
			t->nodes[t->n_nodes++] =
			    (token_trie_node){.tokens = i, .byte = (unsigned char)all[i].bytes[depth]};
		}
		t->tokens[i] = all[i].id;
	}
	path[0] = 0;
	for (size_t k = 0; k <= depth; k++)
		t->nodes[path[k]].end = t->n_nodes;
	t->nodes[t->n_nodes] = (token_trie_node){.tokens = n};
	for (int32_t i = t->n_nodes - 1; i >= 0; i--)
		for (int32_t child = i + 1; child < t->nodes[i].end; child = t->nodes[child].end)
			if (t->nodes[i].height <= t->nodes[child].height)
				t->nodes[i].height = (uint16_t)(t->nodes[child].height + 1);
}

/* Collect the tokens that have bytes, which are copied to `text`; NULL: only count both. */
static int32_t collect(token_trie *t, entry *all, char *text, size_t *bytes)
{
	char one[TOKEN_MAX_BYTES];
	int32_t n = 0;
	*bytes = 0;
	for (int32_t id = 0; id < t->vocab; id++) {
		const size_t count = tokenizer_token_bytes(t->tokenizer, id, one, sizeof one);
		if (count == 0 || tokenizer_ends(t->tokenizer, id) || (!t->marks && tokenizer_is_mark(t->tokenizer, id)))
			continue;
		if (text) {
			memcpy(text + *bytes, one, count);
			all[n] = (entry){text + *bytes, count, id};
		}
		t->longest = (int32_t)count > t->longest ? (int32_t)count : t->longest;
		*bytes += count;
		n++;
	}
	return n;
}

static status token_trie_build(token_trie *t, int32_t n, size_t bytes)
{
	entry *all = memory_new((size_t)n, sizeof *all);
	char *text = malloc(bytes + 1);
	int32_t *path = memory_new((size_t)t->longest + 1, sizeof *path);
	t->nodes = memory_new(bytes + 2, sizeof *t->nodes);
	t->tokens = memory_new((size_t)n, sizeof *t->tokens);
	const bool whole = all && text && path && t->nodes && t->tokens;
	if (whole) {
		collect(t, all, text, &bytes);
		qsort(all, (size_t)n, sizeof *all, by_bytes);
		token_trie_fill(t, all, n, path);
		void *shorter = realloc(t->nodes, ((size_t)t->n_nodes + 1) * sizeof *t->nodes);
		if (shorter)
			t->nodes = shorter;
	}
	free(all);
	free(text);
	free(path);
	return whole ? STATUS_OK : STATUS_NOMEM;
}

static status find_ends(token_trie *t)
{
	for (int pass = 0; pass < 2; pass++) {
		t->n_ends = 0;
		for (int32_t id = 0; id < t->vocab; id++) {
			if (!tokenizer_ends(t->tokenizer, id))
				continue;
			if (pass)
				t->ends[t->n_ends] = id;
			t->n_ends++;
		}
		t->ends = pass ? t->ends : memory_new((size_t)t->n_ends, sizeof *t->ends);
		if (!t->ends)
			return STATUS_NOMEM;
	}
	return STATUS_OK;
}

status token_trie_new(token_trie **out, const tokenizer *from, int64_t vocab, bool marks)
{
	size_t bytes;
	token_trie *t = *out = memory_new(1, sizeof *t);
	if (!t)
		return STATUS_NOMEM;
	*t = (token_trie){.tokenizer = from, .vocab = (int32_t)vocab, .marks = marks};
	const int32_t n = collect(t, NULL, NULL, &bytes);
	if (find_ends(t) == STATUS_OK && token_trie_build(t, n, bytes) == STATUS_OK)
		return STATUS_OK;
	token_trie_free(t);
	*out = NULL;
	return STATUS_NOMEM;
}

void token_trie_free(token_trie *t)
{
	if (!t)
		return;
	free(t->nodes);
	free(t->tokens);
	free(t->ends);
	free(t);
}
