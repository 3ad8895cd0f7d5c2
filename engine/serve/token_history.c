#include "engine/serve/token_history.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

enum { LEAST_TOKENS = 64 };

struct token_chunk {
	atomic_llong references;
	int32_t tokens[]; /* [TOKEN_CHUNK]; fewer in a last chunk that is not full */
};

static size_t chunk_bytes(int64_t tokens)
{
	return sizeof(token_chunk) + (size_t)tokens * sizeof(int32_t);
}

static int64_t chunks_of(const token_history *h)
{
	return (h->capacity + TOKEN_CHUNK - 1) / TOKEN_CHUNK;
}

/* Add a chunk of this size to a history whose chunks have TOKEN_CHUNK tokens. */
static status add_chunk(token_history *h, int64_t tokens)
{
	const int64_t n = chunks_of(h);
	token_chunk **all = realloc(h->chunks, (size_t)(n + 1) * sizeof(token_chunk *));
	if (!all)
		return STATUS_NOMEM;
	h->chunks = all;
	all[n] = malloc(chunk_bytes(tokens));
	if (!all[n])
		return STATUS_NOMEM;
	atomic_init(&all[n]->references, 1);
	h->capacity += tokens;
	return STATUS_OK;
}

/* Size of a chunk for n more tokens. */
static int64_t chunk_size(int64_t n)
{
	int64_t size = LEAST_TOKENS;
	while (size < n && size < TOKEN_CHUNK)
		size *= 2;
	return size;
}

status token_history_reserve(token_history *h, int64_t n)
{
	const int64_t last = h->capacity % TOKEN_CHUNK, before = h->capacity - last;
	if (n <= h->capacity)
		return STATUS_OK;
	if (last > 0) {
		token_chunk **chunk = &h->chunks[before / TOKEN_CHUNK];
		const int64_t size = chunk_size(n - before);
		token_chunk *bigger = realloc(*chunk, chunk_bytes(size));
		if (!bigger)
			return STATUS_NOMEM;
		*chunk = bigger;
		h->capacity = before + size;
	}
	while (h->capacity < n)
		TRY(add_chunk(h, chunk_size(n - h->capacity)));
	return STATUS_OK;
}

void token_history_append(token_history *h, const int32_t *tokens, int64_t n)
{
	assert(n <= h->capacity - h->count);
	for (int64_t some; n > 0; tokens += some, n -= some) {
		const int64_t at = h->count % TOKEN_CHUNK;
		some = n < TOKEN_CHUNK - at ? n : TOKEN_CHUNK - at;
		memcpy(h->chunks[h->count / TOKEN_CHUNK]->tokens + at, tokens, (size_t)some * sizeof *tokens);
		h->count += some;
	}
}

int32_t token_history_at(const token_history *h, int64_t i)
{
	assert(i >= 0 && i < h->count);
	return h->chunks[i / TOKEN_CHUNK]->tokens[i % TOKEN_CHUNK];
}

void token_history_read(const token_history *h, int64_t from, int64_t n, int32_t *out)
{
	assert(from >= 0 && n >= 0 && n <= h->count - from);
	for (int64_t some; n > 0; from += some, out += some, n -= some) {
		const int64_t at = from % TOKEN_CHUNK;
		some = n < TOKEN_CHUNK - at ? n : TOKEN_CHUNK - at;
		memcpy(out, h->chunks[from / TOKEN_CHUNK]->tokens + at, (size_t)some * sizeof *out);
	}
}

bool token_history_equals(const token_history *h, const int32_t *ids)
{
	for (int64_t at = 0, some; at < h->count; at += some) {
		some = h->count - at < TOKEN_CHUNK ? h->count - at : TOKEN_CHUNK;
		if (memcmp(h->chunks[at / TOKEN_CHUNK]->tokens, ids + at, (size_t)some * sizeof *ids) != 0)
			return false;
	}
	return true;
}

bool token_history_same(const token_history *a, const token_history *b)
{
	for (int64_t at = 0; a->count == b->count && at < a->count; at += TOKEN_CHUNK) {
		const int64_t some = a->count - at < TOKEN_CHUNK ? a->count - at : TOKEN_CHUNK;
		const token_chunk *x = a->chunks[at / TOKEN_CHUNK], *y = b->chunks[at / TOKEN_CHUNK];
		if (x != y && memcmp(x->tokens, y->tokens, (size_t)some * sizeof *x->tokens) != 0)
			return false;
	}
	return a->count == b->count;
}

int64_t token_history_common(const token_history *h, const int32_t *ids, int64_t n)
{
	int64_t i = 0;
	n = n < h->count ? n : h->count;
	while (i < n && h->chunks[i / TOKEN_CHUNK]->tokens[i % TOKEN_CHUNK] == ids[i])
		i++;
	return i;
}

status token_history_copy(token_history *out, const token_history *h)
{
	const int64_t full = h->count / TOKEN_CHUNK, rest = h->count % TOKEN_CHUNK;
	*out = (token_history){0};
	if (full > 0) {
		out->chunks = memory_new((size_t)full, sizeof *out->chunks);
		if (!out->chunks)
			return STATUS_NOMEM;
		memcpy(out->chunks, h->chunks, (size_t)full * sizeof *out->chunks);
		for (int64_t i = 0; i < full; i++)
			atomic_fetch_add_explicit(&out->chunks[i]->references, 1, memory_order_relaxed);
		out->capacity = out->count = full * TOKEN_CHUNK;
	}
	if (rest == 0)
		return STATUS_OK;
	const status s = add_chunk(out, rest);
	if (s == STATUS_OK)
		token_history_append(out, h->chunks[full]->tokens, rest);
	else
		token_history_fini(out);
	return s;
}

void token_history_fini(token_history *h)
{
	for (int64_t i = 0; i < chunks_of(h); i++)
		if (atomic_fetch_sub_explicit(&h->chunks[i]->references, 1, memory_order_acq_rel) == 1)
			free(h->chunks[i]);
	free(h->chunks);
	*h = (token_history){0};
}
