/* The reserve is a stack of blocks that only grows, until none is live. Free lists were rejected: a shortage is rare
 * and short, and what is taken during one lives as long as a request. */
#include "engine/base/reserve.h"

#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct block {
	size_t bytes;
	_Alignas(16) char data[];
} block;

static struct {
	pthread_mutex_t mutex; /* guards what follows */
	size_t used;
	int live;
	_Alignas(16) char bytes[RESERVE_BYTES];
} reserve = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local bool failed;

static bool is_reserve(const void *data)
{
	return (const char *)data >= reserve.bytes && (const char *)data < reserve.bytes + RESERVE_BYTES;
}

static block *block_of(void *data)
{
	return (block *)(void *)((char *)data - offsetof(block, data));
}

static void *take(size_t bytes)
{
	void *data = NULL;
	if (bytes <= RESERVE_MAX_BLOCK) {
		size_t whole = (sizeof(block) + bytes + 15) & ~(size_t)15;
		pthread_mutex_lock(&reserve.mutex);
		if (RESERVE_BYTES - reserve.used >= whole) {
			block *b = (block *)(void *)(reserve.bytes + reserve.used);
			b->bytes = bytes;
			data = b->data;
			reserve.used += whole;
			reserve.live++;
		}
		pthread_mutex_unlock(&reserve.mutex);
	}
	failed |= !data;
	return data;
}

void *reserve_malloc(size_t bytes)
{
	void *data = malloc(bytes);
	if (!data && bytes > 0)
		data = take(bytes);
	return data;
}

void *reserve_calloc(size_t count, size_t size)
{
	size_t bytes;
	void *data = calloc(count, size);
	if (data || __builtin_mul_overflow(count, size, &bytes) || bytes == 0)
		return data;
	data = take(bytes);
	return data ? memset(data, 0, bytes) : NULL;
}

void *reserve_realloc(void *data, size_t bytes)
{
	if (!data)
		return reserve_malloc(bytes);
	bool ours = is_reserve(data);
	void *more = ours ? NULL : realloc(data, bytes);
	if (more || bytes == 0)
		return more;
	size_t had = ours ? block_of(data)->bytes : malloc_usable_size(data);
	if (bytes <= had)
		return data;
	more = ours ? reserve_malloc(bytes) : take(bytes);
	if (!more)
		return NULL;
	memcpy(more, data, had);
	reserve_free(data);
	return more;
}

void reserve_free(void *data)
{
	if (!is_reserve(data)) {
		free(data);
		return;
	}
	pthread_mutex_lock(&reserve.mutex);
	if (--reserve.live == 0)
		reserve.used = 0;
	pthread_mutex_unlock(&reserve.mutex);
}

bool reserve_failed(void)
{
	return failed;
}

void reserve_forget(void)
{
	failed = false;
}

void reserve_remember(void)
{
	failed = true;
}
