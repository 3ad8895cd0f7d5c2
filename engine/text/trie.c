/* Sorted strings with a common prefix are adjacent, so a node is a range of them. Its children get the first places
 * that are free for all of them. Only the last blocks are searched, so building takes linear time and leaves a few
 * places unused. */
#include "engine/text/trie.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, SEARCHED_BLOCKS = 16 };

typedef struct builder {
	trie *trie;
	const trie_string *strings;
	uint32_t first_free; /* no place before it is tried */
} builder;

static int compare(const void *a, const void *b)
{
	const trie_string *x = a, *y = b;
	int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
	return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool add_block(trie *t)
{
	/* Twice as large each time that the size is a power of two. */
	if ((t->size & (t->size - 1)) == 0) {
		trie_unit *units = realloc(t->units, (t->size ? 2 * (size_t)t->size : BLOCK) * sizeof *units);
		if (!units)
			return false;
		t->units = units;
	}
	for (uint32_t i = t->size; i < t->size + BLOCK; i++)
		t->units[i] = (trie_unit){.value = -1};
	t->size += BLOCK;
	return true;
}

static bool fits(const trie *t, uint32_t base, const unsigned char *bytes, int count)
{
	for (int i = 0; i < count; i++)
		if (t->units[base ^ bytes[i]].parent)
			return false;
	return true;
}

/* A base whose places for these bytes are free. */
static bool find_base(builder *b, const unsigned char *bytes, int count, uint32_t *base)
{
	trie *t = b->trie;
	uint32_t window = SEARCHED_BLOCKS * BLOCK;
	if (t->size > window && b->first_free < t->size - window)
		b->first_free = t->size - window;
	while (b->first_free < t->size && t->units[b->first_free].parent)
		b->first_free++;
	for (uint32_t at = b->first_free;; at++) {
		if (at == t->size && !add_block(t))
			return false;
		*base = at ^ bytes[0];
		if (fits(t, *base, bytes, count))
			return true;
	}
}

/* The children of a node: strings[first … end), all longer than depth. */
static bool build(builder *b, uint32_t node, size_t first, size_t end, uint32_t depth)
{
	const trie_string *s = b->strings;
	unsigned char bytes[256];
	int count = 0;
	uint32_t base;
	if (s[first].bytes == depth) {
		b->trie->units[node].value = s[first].value;
		b->trie->units[node].score = s[first].score;
		first++;
	}
	if (first == end)
		return true;
	for (size_t i = first; i < end; i++)
		if (i == first || s[i].text[depth] != s[i - 1].text[depth])
			bytes[count++] = (unsigned char)s[i].text[depth];
	if (!find_base(b, bytes, count, &base))
		return false;
	b->trie->units[node].base = base;
	for (int i = 0; i < count; i++)
		b->trie->units[base ^ bytes[i]].parent = node + 1;
	for (int i = 0; i < count; i++) {
		size_t next = first;
		while (next < end && (unsigned char)s[next].text[depth] == bytes[i])
			next++;
		if (!build(b, base ^ bytes[i], first, next, depth + 1))
			return false;
		first = next;
	}
	return true;
}

status trie_build(trie *out, trie_string *strings, size_t count, size_t *same)
{
	static const trie_unit nothing[BLOCK];
	*out = (trie){0};
	if (count == 0) {
		out->units = (trie_unit *)(uintptr_t)nothing; /* a root without children, never written */
		return STATUS_OK;
	}
	for (size_t i = 0; i < count; i++) /* a call for each byte: see build */
		if (strings[i].bytes > TRIE_MAX_BYTES)
			return STATUS_TOO_LARGE;
	qsort(strings, count, sizeof *strings, compare);
	for (*same = 1; *same < count; ++*same)
		if (compare(&strings[*same - 1], &strings[*same]) == 0)
			return STATUS_CONFLICT;
	if (!add_block(out))
		return STATUS_NOMEM;
	out->units[0].parent = UINT32_MAX;
	return build(&(builder){out, strings, 1}, 0, 0, count, 0) ? STATUS_OK : STATUS_NOMEM;
}

void trie_fini(trie *t)
{
	if (t->size)
		free(t->units);
	*t = (trie){0};
}

int32_t trie_find(const trie *t, const char *text, size_t bytes)
{
	uint32_t node = 0;
	if (!t->size)
		return -1;
	for (size_t i = 0; i < bytes; i++)
		if (!(node = trie_step(t, node, (unsigned char)text[i])))
			return -1;
	return t->units[node].value;
}

size_t trie_prefix(const trie *t, const char *text, size_t bytes, int32_t *value)
{
	size_t longest = 0;
	uint32_t node = 0;
	for (size_t i = 0; t->size && i < bytes && (node = trie_step(t, node, (unsigned char)text[i])); i++) {
		if (t->units[node].value < 0)
			continue;
		longest = i + 1;
		*value = t->units[node].value;
	}
	return longest;
}
