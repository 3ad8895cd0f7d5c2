#include "engine/daemon/generation/format_buffer.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* Reserve n more bytes. */
static bool reserve_room(format_buffer *b, size_t n)
{
	b->failed = b->failed || !MEMORY_ROOM(b->data, b->capacity, b->used + n);
	return !b->failed;
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
