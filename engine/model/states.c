#include "engine/model/states.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE_FLOATS = 16 };

static bool reserve(state_list *list)
{
	if (list->status != STATUS_OK || list->count < list->capacity)
		return list->status == STATUS_OK;
	int capacity = list->capacity ? 2 * list->capacity : 32;
	state_spec *items = realloc(list->items, (size_t)capacity * sizeof *items);
	if (!items) {
		list->status = STATUS_NOMEM;
		return false;
	}
	list->items = items;
	list->capacity = capacity;
	return true;
}

void state_list_add(state_list *list, state_kind kind, int64_t floats, const char *format, ...)
{
	va_list args;
	if (!reserve(list))
		return;
	state_spec *item = &list->items[list->count++];
	*item = (state_spec){.kind = kind, .floats = floats, .offset = list->floats};
	va_start(args, format);
	int n = vsnprintf(item->name, sizeof item->name, format, args);
	va_end(args);
	assert(n > 0 && (size_t)n < sizeof item->name);
	list->floats += floats;
}

const state_spec *state_list_find(const state_list *list, const char *name)
{
	for (int i = 0; i < list->count; i++)
		if (strcmp(list->items[i].name, name) == 0)
			return &list->items[i];
	return NULL;
}

int64_t state_list_slot(const state_list *list)
{
	return (list->floats + CACHE_LINE_FLOATS - 1) / CACHE_LINE_FLOATS * CACHE_LINE_FLOATS;
}

void state_list_free(state_list *list)
{
	free(list->items);
	*list = (state_list){0};
}
