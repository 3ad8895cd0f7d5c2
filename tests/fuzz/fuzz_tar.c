/* fuzz_tar - an uploaded archive: however it is cut, the same files come out of it or the same error; no path leads out
 * of it, and files have the bytes that were announced. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct summary {
	uint64_t hash;
	int64_t left; /* bytes left of the file; -1: none is open */
	status end;
} summary;

static void require(bool condition)
{
	if (!condition)
		abort();
}

static void mix(summary *s, const void *bytes, size_t n)
{
	const unsigned char *p = bytes;

	for (size_t i = 0; i < n; i++)
		s->hash = (s->hash ^ p[i]) * 1099511628211u;
}

static status begin(void *context, const char *path, int64_t bytes, error *err)
{
	summary *s = context;

	(void)err;
	require(s->left == -1 && bytes >= 0);
	require(path[0] && path[0] != '/' && strlen(path) < TAR_MAX_PATH && path[strlen(path) - 1] != '/');
	for (const char *part = path; part; part = strchr(part, '/')) {
		part += *part == '/';
		require(strncmp(part, "..", 2) != 0 || (part[2] && part[2] != '/'));
	}
	mix(s, path, strlen(path) + 1);
	s->left = bytes;
	return STATUS_OK;
}

static status take(void *context, const void *data, size_t bytes, error *err)
{
	summary *s = context;

	(void)err;
	require(s->left >= 0 && (uint64_t)s->left >= bytes && bytes > 0);
	mix(s, data, bytes);
	s->left -= (int64_t)bytes;
	return STATUS_OK;
}

static status end(void *context, error *err)
{
	summary *s = context;

	(void)err;
	require(s->left == 0);
	s->left = -1;
	return STATUS_OK;
}

static summary read_archive(const uint8_t *data, size_t size, size_t piece)
{
	summary s = {.left = -1};
	tar_reader t = {.events = {begin, take, end}, .context = &s};

	for (size_t at = 0; at < size && s.end == STATUS_OK; at += piece)
		s.end = tar_feed(&t, data + at, size - at < piece ? size - at : piece, NULL);
	if (s.end == STATUS_OK)
		s.end = tar_finish(&t, NULL);
	require(s.end != STATUS_OK || s.left == -1);
	tar_fini(&t);
	return s;
}

/* The sum of a header is put right in half of the inputs, or none would get further. */
static void mend(uint8_t *data, size_t size)
{
	for (size_t at = 0; at + TAR_BLOCK <= size; at += TAR_BLOCK) {
		uint8_t *block = data + at;
		unsigned sum = 0;

		if (block[148] != 'S')
			continue;
		memset(block + 148, ' ', 8);
		for (int i = 0; i < TAR_BLOCK; i++)
			sum += block[i];
		for (int i = 0; i < 6; i++)
			block[148 + i] = (uint8_t)('0' + (sum >> 3 * (5 - i) & 7));
		block[154] = '\0';
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *archive = malloc(size ? size : 1);

	require(archive);
	memcpy(archive, data, size);
	mend(archive, size);
	summary whole = read_archive(archive, size, size ? size : 1),
	        pieces = read_archive(archive, size, 1 + size % 509);
	require(whole.end == pieces.end);
	require(whole.hash == pieces.hash || whole.end != STATUS_OK);
	free(archive);
	return 0;
}
