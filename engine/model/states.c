#include "engine/model/states.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/tensor/ops/forgetting.h"

enum { CACHE_LINE_FLOATS = 16 };

void state_list_add(state_list *list, state_kind kind, int64_t floats, const char *format, ...)
{
	va_list args;
	if (list->status == STATUS_OK && !MEMORY_ROOM(list->items, list->capacity, list->count + 1))
		list->status = STATUS_NOMEM;
	if (list->status != STATUS_OK)
		return;
	state_spec *item = &list->items[list->count++];
	*item = (state_spec){.kind = kind, .floats = floats, .offset = list->floats};
	va_start(args, format);
	int n = vsnprintf(item->name, sizeof item->name, format, args);
	va_end(args);
	assert(n > 0 && (size_t)n < sizeof item->name);
	list->floats += floats;
}

void state_list_set_ring(state_list *list, int64_t places, int64_t width, int64_t second, int64_t third)
{
	if (list->status != STATUS_OK)
		return;
	state_spec *item = &list->items[list->count - 1];
	assert(places * (width + second + third) == item->floats);
	item->places = places;
	item->widths[0] = width;
	item->widths[1] = second;
	item->widths[2] = third;
}

void state_list_set_sums(state_list *list, int64_t heads)
{
	if (list->status == STATUS_OK)
		list->items[list->count - 1].sums = heads;
}

static void add_range(state_range *out, int *n, int64_t first, int64_t count, int64_t gap)
{
	state_range *last = *n > 0 ? &out[*n - 1] : NULL;
	if (count == 0)
		return;
	if (last && first - (last->first + last->count) <= gap)
		last->count = first + count - last->first;
	else
		out[(*n)++] = (state_range){first, count};
}

int state_list_changes(const state_list *list, int64_t from, int64_t to, int64_t gap, state_range *out)
{
	int n = 0;
	for (int i = 0; i < list->count; i++) {
		const state_spec *item = &list->items[i];
		const int64_t places = item->places, tokens = to - from;
		if (item->kind == STATE_SOURCE)
			continue;
		if (tokens >= places) { /* also with places 0: any float may change */
			add_range(out, &n, item->offset, item->floats, gap);
			continue;
		}
		const int64_t first = from % places, end = first + tokens;
		int64_t tensor = item->offset;
		for (int k = 0; k < STATE_RING_TENSORS; tensor += places * item->widths[k++]) {
			const int64_t width = item->widths[k], behind = end > places ? end - places : 0;
			add_range(out, &n, tensor, behind * width, gap);
			add_range(out, &n, tensor + first * width, (tokens - behind) * width, gap);
		}
	}
	return n;
}

static void add_piece(state_piece *out, int *n, state_piece piece)
{
	state_piece *last = *n > 0 ? &out[*n - 1] : NULL;
	if (piece.width * piece.count == 0)
		return;
	if (last && !last->by_token && !piece.by_token && last->first + last->count == piece.first)
		last->count += piece.count;
	else
		out[(*n)++] = piece;
}

int state_list_pieces(const state_list *list, int64_t tokens, bool source, state_piece *out)
{
	int n = 0;
	int64_t longest = 1;
	for (int i = 0; i < list->count; i++)
		longest = list->items[i].places > longest ? list->items[i].places : longest;
	for (int i = 0; i < list->count; i++) {
		const state_spec *item = &list->items[i];
		const bool by_token = item->places == longest && tokens <= longest;
		int64_t tensor = item->offset;
		if (item->kind == STATE_SOURCE ? !source : tokens == 0)
			continue;
		if (tokens >= item->places && !by_token) { /* also with places 0 */
			add_piece(out, &n, (state_piece){tensor, 1, item->floats, false});
			continue;
		}
		for (int k = 0; k < STATE_RING_TENSORS; tensor += item->places * item->widths[k++])
			add_piece(out, &n,
			          by_token ? (state_piece){tensor, item->widths[k], tokens, true}
			                   : (state_piece){tensor, 1, tokens * item->widths[k], false});
	}
	return n;
}

const state_spec *state_list_find(const state_list *list, const char *name)
{
	for (int i = 0; i < list->count; i++)
		if (strcmp(list->items[i].name, name) == 0)
			return &list->items[i];
	return NULL;
}

static int64_t whole_lines(int64_t floats)
{
	return (floats + CACHE_LINE_FLOATS - 1) / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS;
}

int64_t state_list_slot(const state_list *list)
{
	return whole_lines(list->floats);
}

static int64_t sums_of(const state_list *list)
{
	int64_t n = 0;
	for (int i = 0; i < list->count; i++)
		n += list->items[i].sums;
	return n;
}

bool state_list_has_sums(const state_list *list)
{
	return sums_of(list) > 0;
}

int64_t state_list_slot_with_logs(const state_list *list)
{
	return whole_lines(list->floats - sums_of(list)); /* two floats for three */
}

void state_list_convert_logs(const state_list *list, const float *from, float *to)
{
	memset(to, 0, (size_t)state_list_slot(list) * sizeof *to);
	for (int i = 0; i < list->count; i++) {
		const state_spec *item = &list->items[i];
		const int64_t heads = item->sums;
		for (int64_t h = 0; h < heads; h++)
			forgetting_sum_of_log((double)from[h] + (double)from[heads + h], to + h, heads);
		memcpy(to + 3 * heads, from + 2 * heads, (size_t)(item->floats - 3 * heads) * sizeof *to);
		from += item->floats - heads;
		to += item->floats;
	}
}

void state_list_free(state_list *list)
{
	free(list->items);
	*list = (state_list){0};
}
