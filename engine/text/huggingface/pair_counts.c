#include "engine/text/huggingface/pair_counts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

void pair_counts_fini(pair_counts *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->pairs[i].words);
	free(c->pairs);
	free(c->slots);
	free(c->touched);
	free(c->queue);
	*c = (pair_counts){0};
}

/* --- the table ---------------------------------------------------------------------------------- */

static size_t slot_of(const pair_counts *c, int32_t left, int32_t right)
{
	const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	size_t at = (size_t)(pair * UINT64_C(0x9E3779B97F4A7C15) >> 20) & c->mask;
	for (; c->slots[at] != UINT32_MAX; at = (at + 1) & c->mask)
		if (c->pairs[c->slots[at]].left == left && c->pairs[c->slots[at]].right == right)
			break;
	return at;
}

static status pair_counts_grow(pair_counts *c)
{
	const size_t slots = c->mask ? 2 * (c->mask + 1) : 1024;
	uint32_t *table = malloc(slots * sizeof *table);
	if (!table)
		return STATUS_NOMEM;
	memset(table, 0xFF, slots * sizeof *table);
	free(c->slots);
	c->slots = table;
	c->mask = slots - 1;
	for (size_t i = 0; i < c->n; i++)
		table[slot_of(c, c->pairs[i].left, c->pairs[i].right)] = (uint32_t)i;
	return STATUS_OK;
}

static status pair_counts_find(pair_counts *c, int32_t left, int32_t right, uint32_t *out)
{
	if (2 * c->n >= c->mask)
		TRY(pair_counts_grow(c));
	const size_t at = slot_of(c, left, right);
	if (c->slots[at] == UINT32_MAX) {
		if (!MEMORY_ROOM(c->pairs, c->capacity, c->n + 1))
			return STATUS_NOMEM;
		c->slots[at] = (uint32_t)c->n;
		c->pairs[c->n++] = (counted_pair){.left = left, .right = right};
	}
	*out = c->slots[at];
	return STATUS_OK;
}

status pair_counts_add(pair_counts *c, int32_t left, int32_t right, int64_t change, uint32_t word)
{
	uint32_t number;
	TRY(pair_counts_find(c, left, right, &number));
	counted_pair *p = &c->pairs[number];
	p->count += change;
	if (change < 0)
		return STATUS_OK;
	if (!p->touched) {
		if (!MEMORY_ROOM(c->touched, c->touched_capacity, c->n_touched + 1))
			return STATUS_NOMEM;
		c->touched[c->n_touched++] = number;
		p->touched = true;
	}
	if (p->n_words > 0 && p->words[p->n_words - 1] == word)
		return STATUS_OK;
	if (!MEMORY_ROOM(p->words, p->capacity, p->n_words + 1))
		return STATUS_NOMEM;
	p->words[p->n_words++] = word;
	return STATUS_OK;
}

/* --- the queue -------------------------------------------------------------------------------------- */

/* True if a is merged before b. */
static bool is_before(const pair_counts *c, queued_pair a, queued_pair b)
{
	const counted_pair *p = &c->pairs[a.pair], *q = &c->pairs[b.pair];
	if (a.count != b.count)
		return a.count > b.count;
	return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static void sift_down(pair_counts *c)
{
	const queued_pair item = c->queue[0];
	size_t at = 0;
	for (size_t child; (child = 2 * at + 1) < c->n_queue; at = child) {
		child += child + 1 < c->n_queue && is_before(c, c->queue[child + 1], c->queue[child]);
		if (!is_before(c, c->queue[child], item))
			break;
		c->queue[at] = c->queue[child];
	}
	c->queue[at] = item;
}

status pair_counts_push(pair_counts *c)
{
	for (; c->n_touched > 0; c->n_touched--) {
		const uint32_t number = c->touched[c->n_touched - 1];
		const queued_pair item = {c->pairs[number].count, number};
		if (!MEMORY_ROOM(c->queue, c->queue_capacity, c->n_queue + 1))
			return STATUS_NOMEM;
		size_t at = c->n_queue++;
		for (; at > 0 && is_before(c, item, c->queue[(at - 1) / 2]); at = (at - 1) / 2)
			c->queue[at] = c->queue[(at - 1) / 2];
		c->queue[at] = item;
		c->pairs[number].touched = false;
	}
	return STATUS_OK;
}

uint32_t pair_counts_pop(pair_counts *c)
{
	while (c->n_queue > 0) {
		queued_pair *top = &c->queue[0];
		const int64_t count = c->pairs[top->pair].count;
		if (count == top->count && count > 0) {
			const uint32_t pair = top->pair;
			c->queue[0] = c->queue[--c->n_queue];
			if (c->n_queue > 0)
				sift_down(c);
			return pair;
		}
		if (count > 0)
			top->count = count;
		else
			c->queue[0] = c->queue[--c->n_queue];
		if (c->n_queue > 0)
			sift_down(c);
	}
	return UINT32_MAX;
}
