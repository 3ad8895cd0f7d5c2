#include "engine/base/json_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/reserve.h"
#include "engine/base/utf8.h"

typedef struct buffer {
	char *data;
	size_t used, capacity;
	void *(*grow)(void *data, size_t bytes);
	bool failed; /* jansson does not look at every result of `append` */
} buffer;

static int json_text_append(const char *text, size_t bytes, void *context)
{
	buffer *b = context;
	if (b->failed)
		return -1;
	if (b->capacity - b->used <= bytes) {
		size_t capacity = 2 * b->capacity + bytes + 256;
		char *data = b->grow(b->data, capacity);
		b->failed = !data;
		if (!data)
			return -1;
		b->data = data;
		b->capacity = capacity;
	}
	memcpy(b->data + b->used, text, bytes);
	b->used += bytes;
	b->data[b->used] = 0;
	return 0;
}

static char *print(const json_t *document, size_t flags, void *(*grow)(void *data, size_t bytes))
{
	buffer b = {.grow = grow};
	bool whole = document && json_dump_callback(document, json_text_append, &b, flags) == 0 && !b.failed &&
	             !reserve_failed();
	reserve_forget();
	if (whole)
		return b.data;
	reserve_free(b.data);
	return NULL;
}

char *json_text(const json_t *document, size_t flags)
{
	return print(document, flags, realloc);
}

char *json_text_reserve(const json_t *document, size_t flags)
{
	return print(document, flags, reserve_realloc);
}

json_t *json_text_repaired(const char *text)
{
	char *copy = strdup(text);
	if (copy)
		utf8_repair(copy);
	json_t *string = copy ? json_string(copy) : NULL;
	free(copy);
	return string;
}
