/* text.c - doubling growth. */
#include "clients/cli/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool text_reserve(text *t, size_t bytes)
{
	if (bytes < t->capacity - t->used)
		return true;
	if (bytes >= SIZE_MAX / 4 - t->used)
		return false;

	size_t capacity = t->capacity ? t->capacity : 256;

	while (capacity <= t->used + bytes)
		capacity *= 2;
	char *data = realloc(t->data, capacity);
	if (!data)
		return false;
	t->data = data;
	t->capacity = capacity;
	return true;
}

bool text_append(text *t, const void *data, size_t bytes)
{
	if (!text_reserve(t, bytes))
		return false;
	if (bytes)
		memcpy(t->data + t->used, data, bytes);
	t->used += bytes;
	t->data[t->used] = '\0';
	return true;
}

bool text_string(text *t, const char *string)
{
	return text_append(t, string, strlen(string));
}

bool text_format(text *t, const char *format, ...)
{
	va_list arguments, again;

	va_start(arguments, format);
	va_copy(again, arguments);
	int bytes = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	bool ok = bytes >= 0 && text_reserve(t, (size_t)bytes);
	if (ok) {
		vsnprintf(t->data + t->used, (size_t)bytes + 1, format, again);
		t->used += (size_t)bytes;
	}
	va_end(again);
	return ok;
}

void text_clear(text *t)
{
	t->used = 0;
	if (t->data)
		t->data[0] = '\0';
}

void text_free(text *t)
{
	free(t->data);
	*t = (text){0};
}

const char *text_get(const text *t)
{
	return t->data ? t->data : "";
}
