/* buffer.h - growing bytes: bodies, events, pages.
 *
 * Zero-initialise; free with _fini. Running out of memory sets `failed`, which persists: writers append without
 * checking, and the last one checks once. */
#ifndef SERVER_BUFFER_H
#define SERVER_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
	char *data;
	size_t used, capacity;
	bool failed;
} buffer;

void buffer_append(buffer *b, const void *data, size_t bytes);
void buffer_string(buffer *b, const char *text);
__attribute__((format(printf, 2, 3))) void buffer_format(buffer *b, const char *format, ...);
/* Empty it, keeping no more than a small allocation. */
void buffer_clear(buffer *b);
void buffer_fini(buffer *b);

#endif
