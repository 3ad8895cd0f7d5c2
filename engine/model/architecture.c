/* The list is short and searched linearly; parameter lists double when full. */
#include "engine/model/architecture.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const architecture *const architectures[] = {&architecture_additive};
enum { ARCHITECTURE_COUNT = sizeof architectures / sizeof architectures[0] };

const architecture *architecture_at(int index)
{
	return index >= 0 && index < ARCHITECTURE_COUNT ? architectures[index] : NULL;
}

const architecture *architecture_find(const char *name)
{
	for (int i = 0; i < ARCHITECTURE_COUNT; i++)
		if (strcmp(name, architectures[i]->name) == 0 || strcmp(name, architectures[i]->model_type) == 0)
			return architectures[i];
	return NULL;
}

/* Room for one more item. */
static bool reserve(parameter_list *list)
{
	if (list->status != STATUS_OK || list->count < list->capacity)
		return list->status == STATUS_OK;
	int capacity = list->capacity ? 2 * list->capacity : 64;
	parameter_spec *items = realloc(list->items, (size_t)capacity * sizeof *items);
	if (!items) {
		list->status = STATUS_NOMEM;
		return false;
	}
	list->items = items;
	list->capacity = capacity;
	return true;
}

void parameter_list_add(parameter_list *list, parameter_init init, float std, shape s, const char *format, ...)
{
	if (!reserve(list))
		return;
	parameter_spec *item = &list->items[list->count++];
	*item = (parameter_spec){.shape = s, .init = init, .std = std};
	va_list args;
	va_start(args, format);
	int n = vsnprintf(item->name, sizeof item->name, format, args);
	va_end(args);
	assert(n > 0 && (size_t)n < sizeof item->name);
}

void parameter_list_alias(parameter_list *list, const char *alias)
{
	if (list->status != STATUS_OK)
		return;
	parameter_spec *item = &list->items[list->count - 1];
	assert(strlen(alias) < sizeof item->alias);
	strcpy(item->alias, alias);
}

void parameter_list_free(parameter_list *list)
{
	free(list->items);
	*list = (parameter_list){0};
}
