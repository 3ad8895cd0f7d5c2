/* buffer.h - memory that shows whether it was touched.
 *
 * A buffer is 64-byte aligned, filled with NaN (all bits set: -1 as integers), so that
 * a result that was never written is not mistaken for one, and lies between two guards whose
 * bytes must not change. Aborts the test when out of memory. */
#ifndef TESTS_UNIT_SUPPORT_BUFFER_H
#define TESTS_UNIT_SUPPORT_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* `bytes` poisoned bytes. Free with buffer_free. */
void *buffer_new(size_t bytes);
/* Poison the content again. */
void buffer_poison(void *data);
/* Are both guards as they were? */
bool buffer_intact(const void *data);
size_t buffer_bytes(const void *data);
void buffer_free(void *data);

#endif
