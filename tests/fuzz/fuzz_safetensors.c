/* fuzz_safetensors - a file of weights: what is opened has every tensor within the file, none over another, and all of
 * them can be read. The input is the header's JSON up to the first NUL, then data; or, after a 0xff, the file as it is.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
	if (!condition)
		abort();
}

static void put(int fd, const void *data, size_t bytes)
{
	require(write(fd, data, bytes) == (ssize_t)bytes);
}

static void check(safetensors *st, size_t size)
{
	size_t sum = 0;

	for (int i = 0; i < safetensors_count(st); i++) {
		const safetensors_entry *e = safetensors_at(st, i);
		int64_t count = 1;

		for (int k = 0; k < e->rank; k++)
			count *= e->dim[k];
		require(count == e->count && e->bytes == (size_t)count * safetensors_type_bytes(e->type));
		require(e->offset >= 8 && e->offset <= size && e->bytes <= size - e->offset);
		require(safetensors_find(st, e->name) == e);
		sum += e->bytes;
		float *values = malloc((size_t)count * sizeof *values + 1);
		require(values);
		status s = safetensors_load_f32(st, e, 0, count, values, NULL);
		require(s == STATUS_OK || (s == STATUS_INVALID && e->type == ST_BOOL));
		free(values);
	}
	require(sum <= size - 8);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	char path[64];
	error err = ERROR_INIT;
	safetensors *st;

	if (fd < 0)
		fd = memfd_create("weights", 0);
	require(fd >= 0 && ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	if (size && data[0] == 0xff) {
		put(fd, data + 1, --size);
	} else {
		uint64_t header = strnlen((const char *)data, size);
		put(fd, &header, sizeof header);
		put(fd, data, header);
		size_t rest = size > header ? size - header - 1 : 0;
		put(fd, data + header + 1, rest);
		size = sizeof header + header + rest;
	}
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (safetensors_open_verified(&st, path, NULL, &err) == STATUS_OK)
		check(st, size);
	else
		require(!st && err.message[0]);
	safetensors_close(st);
	return 0;
}
