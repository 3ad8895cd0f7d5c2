/* buffer.h - memory that shows whether it was touched.
 *
 * A buffer is 64-byte aligned and filled with NaN (all bits set: -1 as integers), so an unwritten result cannot pass
 * for a result. A guard on each side detects writes outside the buffer. Aborts the test when out of memory. */
#ifndef TESTS_UNIT_SUPPORT_BUFFER_H
#define TESTS_UNIT_SUPPORT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* Allocate `bytes` poisoned bytes. Free with buffer_free. */
void *buffer_new(size_t bytes);
/* Poison the content again. */
void buffer_poison(void *data);
/* True if both guards are unchanged. */
bool buffer_intact(const void *data);
size_t buffer_bytes(const void *data);
void buffer_free(void *data);

#endif
