#include "engine/model/parameters.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

static void parameters_add(parameter_list *list, parameter_spec spec, const char *format, va_list args)
{
	if (list->status == STATUS_OK && !MEMORY_ROOM(list->items, list->capacity, list->count + 1))
		list->status = STATUS_NOMEM;
	if (list->status != STATUS_OK)
		return;
	int n = vsnprintf(spec.name, sizeof spec.name, format, args);
	assert(n > 0 && (size_t)n < sizeof spec.name);
	list->items[list->count++] = spec;
}

void parameter_list_add(parameter_list *list, parameter_init init, float std, shape s, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	parameters_add(list, (parameter_spec){.shape = s, .init = init, .std = std}, format, args);
	va_end(args);
}

void parameter_list_add_matrix(parameter_list *list, float std, int64_t n, int64_t k, bool transposed,
                               const char *format, ...)
{
	va_list args;
	va_start(args, format);
	parameter_spec spec = {.shape = SHAPE2(n, k),
	                       .init = INIT_NORMAL,
	                       .std = std,
	                       .matrix = true,
	                       .hidden = true,
	                       .transposed = transposed};
	parameters_add(list, spec, format, args);
	va_end(args);
}

void parameter_list_stored(parameter_list *list, shape stored)
{
	if (list->status != STATUS_OK)
		return;
	parameter_spec *item = &list->items[list->count - 1];
	assert(shape_count(stored) == shape_count(item->shape));
	item->stored = stored;
}

void parameter_list_values(parameter_list *list, const float *values)
{
	if (list->status != STATUS_OK)
		return;
	list->items[list->count - 1].init = INIT_VALUES;
	list->items[list->count - 1].values = values;
}

void parameter_list_curve(parameter_list *list, parameter_curve curve)
{
	if (list->status != STATUS_OK)
		return;
	list->items[list->count - 1].init = INIT_CURVE;
	list->items[list->count - 1].curve = curve;
}

void parameter_list_quantized(parameter_list *list, int bits)
{
	if (list->status == STATUS_OK)
		list->items[list->count - 1].bits = bits;
}

void parameter_list_log_counts(parameter_list *list)
{
	if (list->status != STATUS_OK)
		return;
	parameter_spec *item = &list->items[list->count - 1];
	item->log_counts = true;
	item->init = INIT_CONSTANT;
	item->std = -1; /* log2(0 + ½) */
}

void parameter_list_alias(parameter_list *list, const char *alias, bool written)
{
	if (list->status != STATUS_OK)
		return;
	parameter_spec *item = &list->items[list->count - 1];
	assert(strlen(alias) < sizeof item->alias);
	strcpy(item->alias, alias);
	item->written = written ? WRITE_BOTH : WRITE_NAME;
}

void parameter_list_sequence(parameter_list *list, int drawn_first)
{
	if (list->status != STATUS_OK)
		return;
	list->items[list->count - 1].init = INIT_NORMAL_SEQUENCE;
	list->items[list->count - 1].drawn_first = drawn_first;
}

void parameter_list_by_row(parameter_list *list)
{
	if (list->status != STATUS_OK)
		return;
	list->items[list->count - 1].by_row = true;
	list->items[list->count - 1].hidden = false;
}

void parameter_list_head(parameter_list *list)
{
	if (list->status == STATUS_OK)
		list->items[list->count - 1].hidden = false;
}

void parameter_list_fixed(parameter_list *list)
{
	if (list->status == STATUS_OK)
		list->items[list->count - 1].fixed = true;
}

void parameter_list_free(parameter_list *list)
{
	free(list->items);
	*list = (parameter_list){0};
}

/* --- layouts ------------------------------------------------------------------ */

/* to [columns, rows] = the transpose of from [rows, columns]. */
static void transpose(const float *from, int64_t rows, int64_t columns, float *to)
{
	for (int64_t i = 0; i < rows; i++)
		for (int64_t j = 0; j < columns; j++)
			to[j * rows + i] = from[i * columns + j];
}

shape parameter_stored_shape(const parameter_spec *p)
{
	if (p->stored.rank)
		return p->stored;
	return p->transposed ? SHAPE2(p->shape.dim[1], p->shape.dim[0]) : p->shape;
}

void parameter_load(const parameter_spec *p, const float *stored, float *values)
{
	if (p->transposed)
		transpose(stored, p->shape.dim[1], p->shape.dim[0], values);
	else
		memcpy(values, stored, (size_t)shape_count(p->shape) * sizeof *values);
}

void parameter_store(const parameter_spec *p, const float *values, float *stored)
{
	if (p->transposed)
		transpose(values, p->shape.dim[0], p->shape.dim[1], stored);
	else
		memcpy(stored, values, (size_t)shape_count(p->shape) * sizeof *stored);
}

bool parameter_name_ends(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);
	return n >= m && strcmp(name + n - m, end) == 0;
}
