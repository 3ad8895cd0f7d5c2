#include "engine/daemon/generation/format_buffer.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reserve n more bytes. */
static bool reserve_room(format_buffer *b, size_t n)
{
	if (b->failed || n <= b->capacity - b->used)
		return !b->failed;
	size_t capacity = 2 * b->capacity + n + 64;
	char *data = capacity > b->capacity ? realloc(b->data, capacity) : NULL;
	b->failed = !data;
	if (b->failed)
		return false;
	b->data = data;
	b->capacity = capacity;
	return true;
}

void format_buffer_append(format_buffer *b, const void *data, size_t n)
{
	if (n == 0 || !reserve_room(b, n))
		return;
	memcpy(b->data + b->used, data, n);
	b->used += n;
}

void format_buffer_string(format_buffer *b, const char *text)
{
	format_buffer_append(b, text, strlen(text));
}

void format_buffer_print(format_buffer *b, const char *format, ...)
{
	char text[513];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	assert(n >= 0 && (size_t)n < sizeof text);
	format_buffer_append(b, text, (size_t)n);
}

void format_buffer_fini(format_buffer *b)
{
	free(b->data);
	*b = (format_buffer){0};
}
