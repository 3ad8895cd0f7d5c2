/* format_buffer.h - the bytes of a piece of an explanation.
 *
 * Zero-initialise. Free with format_buffer_fini, or take over `data`. Out of memory sets `failed`, which stays set:
 * writers append without checking, and the last one checks once. (A stream of open_memstream loses bytes silently.) */
#ifndef ENGINE_DAEMON_GENERATION_FORMAT_BUFFER_H
#define ENGINE_DAEMON_GENERATION_FORMAT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct format_buffer {
	char *data;
	size_t used, capacity;
	bool failed;
} format_buffer;

void format_buffer_append(format_buffer *b, const void *data, size_t n);
void format_buffer_string(format_buffer *b, const char *text);
/* Append a formatted text, which must have at most 512 bytes. */
void format_buffer_print(format_buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void format_buffer_fini(format_buffer *b);

#endif
