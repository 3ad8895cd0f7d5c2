/* grown_text.h - bytes that are appended to. Zero-initialise; free `data`. */
#ifndef PROTO_GROWN_TEXT_H
#define PROTO_GROWN_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct grown_text {
	char *data; /* may hold U+0000 */
	size_t bytes, capacity;
} grown_text;

/* False: out of memory; nothing is appended. */
static inline bool grown_text_append(grown_text *t, const char *data, size_t bytes)
{
	if (t->capacity - t->bytes < bytes) {
		const size_t capacity = 2 * (t->bytes + bytes) + 64;
		char *grown = realloc(t->data, capacity);
		if (!grown)
			return false;
		t->data = grown;
		t->capacity = capacity;
	}
	if (bytes > 0)
		memcpy(t->data + t->bytes, data, bytes);
	t->bytes += bytes;
	return true;
}

static inline json_t *grown_text_json(const grown_text *t)
{
	return json_stringn(t->data ? t->data : "", t->bytes);
}

#endif
