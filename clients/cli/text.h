/* text.h - bytes that grow, always followed by a NUL. Zero-initialise; free with text_free. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct text {
	char *data; /* NULL while nothing was appended */
	size_t used, capacity;
} text;

/* False when out of memory; what was there stays. */
bool text_append(text *t, const void *data, size_t bytes);
bool text_string(text *t, const char *string);
bool text_format(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Forget the bytes, keep the memory. */
void text_clear(text *t);
void text_free(text *t);
/* The bytes as a string; "" when there are none. */
const char *text_get(const text *t);

#endif
