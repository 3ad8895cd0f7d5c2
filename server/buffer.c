/* Capacity doubles, so appending is O(1) amortised. The contents are not NUL-terminated. */
#include "server/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_FIRST = 256, BUFFER_KEEP = 64 << 10 };

static bool buffer_reserve(buffer *b, size_t more)
{
	if (b->failed)
		return false;
	if (more <= b->capacity - b->used)
		return true;
	size_t capacity = b->capacity ? b->capacity : BUFFER_FIRST;
	while (capacity - b->used < more) {
		if (capacity > SIZE_MAX / 2) {
			b->failed = true;
			return false;
		}
		capacity *= 2;
	}
	char *data = realloc(b->data, capacity);
	if (!data) {
		b->failed = true;
		return false;
	}
	b->data = data;
	b->capacity = capacity;
	return true;
}

void buffer_append(buffer *b, const void *data, size_t bytes)
{
	if (bytes == 0 || !buffer_reserve(b, bytes))
		return;
	memcpy(b->data + b->used, data, bytes);
	b->used += bytes;
}

void buffer_string(buffer *b, const char *text)
{
	buffer_append(b, text, strlen(text));
}

void buffer_format(buffer *b, const char *format, ...)
{
	va_list measure, print;
	va_start(print, format);
	va_copy(measure, print);
	int bytes = vsnprintf(NULL, 0, format, measure);
	va_end(measure);
	if (bytes < 0)
		b->failed = true;
	else if (buffer_reserve(b, (size_t)bytes + 1)) {
		vsnprintf(b->data + b->used, (size_t)bytes + 1, format, print);
		b->used += (size_t)bytes;
	}
	va_end(print);
}

void buffer_clear(buffer *b)
{
	b->used = 0;
	if (b->capacity > BUFFER_KEEP)
		buffer_fini(b);
}

void buffer_fini(buffer *b)
{
	free(b->data);
	*b = (buffer){0};
}
