/* Layout: header | guard [64] | content | guard [64]. 0xff bytes are a NaN in f32. */
#include "tests/unit/support/buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, GUARD_BYTE = 0xa5, POISON_BYTE = 0xff };

typedef union header {
	size_t bytes;
	unsigned char line[64];
} header;

static unsigned char *start_of(const void *data)
{
	return (unsigned char *)(uintptr_t)data - GUARD - sizeof(header);
}

size_t buffer_bytes(const void *data)
{
	return ((header *)(void *)start_of(data))->bytes;
}

void *buffer_new(size_t bytes)
{
	size_t total = sizeof(header) + GUARD + bytes + GUARD;
	unsigned char *start = aligned_alloc(64, (total + 63) / 64 * 64);
	if (!start)
		abort();
	((header *)(void *)start)->bytes = bytes;
	unsigned char *data = start + sizeof(header) + GUARD;
	memset(data - GUARD, GUARD_BYTE, GUARD);
	memset(data + bytes, GUARD_BYTE, GUARD);
	buffer_poison(data);
	return data;
}

void buffer_poison(void *data)
{
	memset(data, POISON_BYTE, buffer_bytes(data));
}

bool buffer_intact(const void *data)
{
	const unsigned char *before = (const unsigned char *)data - GUARD;
	const unsigned char *after = (const unsigned char *)data + buffer_bytes(data);
	for (int i = 0; i < GUARD; i++)
		if (before[i] != GUARD_BYTE || after[i] != GUARD_BYTE)
			return false;
	return true;
}

void buffer_free(void *data)
{
	if (data)
		free(start_of(data));
}
