/* held_state.c - blocks are counted under one mutex: a state takes it when it begins, ends, or is freed, which is rare.
 * The bytes of a block are written before the block gets them, and read by those states only that keep them alive. */
#include "engine/serve/held_state.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

struct state_block {
	int64_t references; /* lists of sessions and of states */
	int64_t holders;    /* states that need the bytes */
	int64_t counted[HELD_BUDGETS];
	char *bytes; /* NULL: no state needs them */
	size_t size;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static held_stats stats;

/* --- lists ------------------------------------------------------------------------- */

int64_t block_list_needs(const state_piece *pieces, int n)
{
	for (int i = 0; i < n; i++)
		if (pieces[i].by_token)
			return pieces[i].count / HELD_BLOCK;
	return 0;
}

status block_list_extend(block_list *l, int64_t count)
{
	const int64_t before = l->count;
	state_block **more = count > before ? realloc(l->blocks, (size_t)count * sizeof(state_block *)) : l->blocks;
	if (count <= before)
		return STATUS_OK;
	if (!more)
		return STATUS_NOMEM;
	l->blocks = more;
	for (int64_t i = before; i < count; i++) {
		more[i] = memory_new(1, sizeof *more[i]);
		if (!more[i]) {
			while (i > before)
				free(more[--i]);
			return STATUS_NOMEM;
		}
		more[i]->references = 1;
	}
	l->count = count;
	return STATUS_OK;
}

status block_list_copy(block_list *out, const block_list *l, int64_t count)
{
	count = count < l->count ? count : l->count;
	*out = (block_list){0};
	if (count == 0)
		return STATUS_OK;
	out->blocks = memory_new((size_t)count, sizeof(state_block *));
	if (!out->blocks)
		return STATUS_NOMEM;
	memcpy(out->blocks, l->blocks, (size_t)count * sizeof(state_block *));
	out->count = count;
	pthread_mutex_lock(&mutex);
	for (int64_t i = 0; i < count; i++)
		out->blocks[i]->references++;
	pthread_mutex_unlock(&mutex);
	return STATUS_OK;
}

void block_list_fini(block_list *l)
{
	if (l->count > 0) {
		pthread_mutex_lock(&mutex);
		for (int64_t i = 0; i < l->count; i++)
			if (--l->blocks[i]->references == 0)
				free(l->blocks[i]);
		pthread_mutex_unlock(&mutex);
	}
	free(l->blocks);
	*l = (block_list){0};
}

/* --- pieces ------------------------------------------------------------------------ */

static size_t piece_bytes(const state_piece *p, int64_t places)
{
	return (size_t)(p->width * places) * sizeof(float);
}

size_t state_pieces_bytes(const state_piece *pieces, int n)
{
	size_t all = 0;
	for (int i = 0; i < n; i++)
		all += piece_bytes(&pieces[i], pieces[i].count);
	return all;
}

held_run state_pieces_run(const state_piece *pieces, int n, size_t at)
{
	int i = 0;
	for (; i < n && at >= piece_bytes(&pieces[i], pieces[i].count); i++)
		at -= piece_bytes(&pieces[i], pieces[i].count);
	assert(i < n);
	return (held_run){.slot = (size_t)pieces[i].first * sizeof(float) + at,
	                  .bytes = piece_bytes(&pieces[i], pieces[i].count) - at};
}

bool state_pieces_find(const state_piece *pieces, int n, size_t slot, size_t *at, size_t *bytes)
{
	*at = 0;
	for (int i = 0; i < n; i++) {
		const size_t first = (size_t)pieces[i].first * sizeof(float);
		const size_t size = piece_bytes(&pieces[i], pieces[i].count);
		*bytes = slot < first ? first - slot : first + size - slot;
		if (slot < first)
			return false;
		if (slot < first + size) {
			*at += slot - first;
			return true;
		}
		*at += size;
	}
	*bytes = SIZE_MAX - slot;
	return false;
}

held_run held_state_run(const held_state *h, size_t at)
{
	size_t in_block = 0, in_rest = 0; /* bytes of earlier pieces */
	int i = 0;
	for (;; i++) {
		assert(i < h->n_pieces);
		const state_piece *p = &h->pieces[i];
		const size_t size = piece_bytes(p, p->count);
		const int64_t whole = p->by_token ? h->blocks.count : 0;
		if (at < size)
			break;
		at -= size;
		in_block += whole > 0 ? piece_bytes(p, HELD_BLOCK) : 0;
		in_rest += size - piece_bytes(p, whole * HELD_BLOCK);
	}
	const state_piece *p = &h->pieces[i];
	const size_t slot = (size_t)p->first * sizeof(float) + at, block = piece_bytes(p, HELD_BLOCK);
	const size_t shared = p->by_token ? (size_t)h->blocks.count * block : 0;
	if (at >= shared)
		return (held_run){slot, piece_bytes(p, p->count) - at, h->rest + in_rest + (at - shared), false};
	const size_t k = at / block, from = at % block;
	return (held_run){slot, block - from, h->bytes[k] + in_block + from, (int64_t)k < h->n_found};
}

/* --- states ------------------------------------------------------------------------ */

/* Keep the leading blocks that have bytes. */
static void find_blocks(held_state *h)
{
	pthread_mutex_lock(&mutex);
	for (; h->n_found < h->blocks.count && h->blocks.blocks[h->n_found]->bytes; h->n_found++) {
		state_block *b = h->blocks.blocks[h->n_found];
		b->holders++;
		stats.shared += (int64_t)b->size;
		h->bytes[h->n_found] = b->bytes;
	}
	pthread_mutex_unlock(&mutex);
}

static size_t block_size(const state_piece *pieces, int n)
{
	size_t size = 0;
	for (int i = 0; i < n; i++)
		size += pieces[i].by_token ? piece_bytes(&pieces[i], HELD_BLOCK) : 0;
	return size;
}

static status allocate(held_state *h, const state_piece *pieces, int n)
{
	const size_t count = (size_t)n, blocks = (size_t)h->blocks.count, block = block_size(pieces, n);
	h->size = state_pieces_bytes(pieces, n);
	h->own_size = h->size - blocks * block;
	h->pieces = malloc(count * sizeof *pieces + blocks * sizeof *h->bytes + h->own_size + 1);
	if (!h->pieces)
		return STATUS_NOMEM;
	h->bytes = (char **)(h->pieces + count);
	h->rest = (char *)(h->bytes + blocks);
	memcpy(h->pieces, pieces, count * sizeof *pieces);
	memset(h->bytes, 0, blocks * sizeof *h->bytes);
	h->n_pieces = n;
	find_blocks(h);
	for (int64_t i = h->n_found; i < h->blocks.count; i++)
		if (!(h->bytes[i] = malloc(block)))
			return STATUS_NOMEM;
	return STATUS_OK;
}

status held_state_begin(held_state *h, const state_piece *pieces, int n, block_list *blocks)
{
	const int64_t count = block_list_needs(pieces, n);
	*h = (held_state){0};
	TRY(block_list_extend(blocks, count));
	TRY(block_list_copy(&h->blocks, blocks, count));
	const status s = allocate(h, pieces, n);
	if (s != STATUS_OK)
		held_state_fini(h);
	return s;
}

size_t held_state_missing(const held_state *h)
{
	return h->size - (size_t)h->n_found * block_size(h->pieces, h->n_pieces);
}

void held_state_end(held_state *h)
{
	const size_t size = block_size(h->pieces, h->n_pieces);
	pthread_mutex_lock(&mutex);
	for (int64_t i = h->n_found; i < h->blocks.count; i++) {
		state_block *b = h->blocks.blocks[i];
		if (b->bytes) { /* another state has been faster */
			free(h->bytes[i]);
			h->bytes[i] = b->bytes;
			stats.shared += (int64_t)size;
		} else {
			b->bytes = h->bytes[i];
			b->size = size;
			stats.bytes += (int64_t)size;
		}
		b->holders++;
	}
	pthread_mutex_unlock(&mutex);
	h->complete = true;
}

/* Give up the bytes of a block. Under the mutex. */
static void give_up(state_block *b)
{
	if (--b->holders > 0) {
		stats.shared -= (int64_t)b->size;
		return;
	}
	stats.bytes -= (int64_t)b->size;
	free(b->bytes);
	b->bytes = NULL;
}

void held_state_fini(held_state *h)
{
	pthread_mutex_lock(&mutex);
	for (int64_t i = 0; h->bytes && i < h->blocks.count; i++)
		if (h->complete || i < h->n_found)
			give_up(h->blocks.blocks[i]);
		else
			free(h->bytes[i]);
	pthread_mutex_unlock(&mutex);
	block_list_fini(&h->blocks);
	free(h->pieces);
	*h = (held_state){0};
}

/* --- budgets ----------------------------------------------------------------------- */

/* Change the number of states that count each block from or to 0. */
static int64_t change_count(held_state *h, held_budget budget, int by)
{
	const int64_t size = (int64_t)block_size(h->pieces, h->n_pieces), first = by > 0 ? 0 : 1;
	int64_t n = (int64_t)h->own_size;
	pthread_mutex_lock(&mutex);
	for (int64_t i = 0; i < h->blocks.count; i++) {
		int64_t *counted = &h->blocks.blocks[i]->counted[budget];
		n += *counted == first ? size : 0;
		*counted += by;
	}
	pthread_mutex_unlock(&mutex);
	return n;
}

int64_t held_state_count(held_state *h, held_budget budget)
{
	return change_count(h, budget, 1);
}

int64_t held_state_uncount(held_state *h, held_budget budget)
{
	return change_count(h, budget, -1);
}

void held_state_read_stats(held_stats *out)
{
	pthread_mutex_lock(&mutex);
	*out = stats;
	pthread_mutex_unlock(&mutex);
}
