/* The failure is kept beside the text, so it does not matter which results jansson looks at. */
#include "engine/base/json_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 256 };

typedef struct buffer {
	char *text;
	size_t bytes, capacity; /* the capacity has room for a NUL */
	bool failed;
} buffer;

static int append(const char *piece, size_t bytes, void *context)
{
	buffer *b = context;
	if (!b->failed && bytes >= b->capacity - b->bytes) {
		size_t capacity = 2 * b->capacity + bytes;
		char *text = realloc(b->text, capacity);
		b->failed = !text;
		b->text = text ? text : b->text;
		b->capacity = text ? capacity : b->capacity;
	}
	if (b->failed)
		return -1;
	memcpy(b->text + b->bytes, piece, bytes);
	b->bytes += bytes;
	return 0;
}

char *json_text(const json_t *json, size_t flags)
{
	buffer b = {.text = malloc(FIRST_BYTES), .capacity = FIRST_BYTES};
	if (b.text && json && json_dump_callback(json, append, &b, flags) == 0 && !b.failed) {
		b.text[b.bytes] = 0;
		return b.text;
	}
	free(b.text);
	return NULL;
}
