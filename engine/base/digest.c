/* The library is compiled in: the compute core links nothing for it. */
#include "engine/base/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t digest_bytes(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

struct digest_stream {
	XXH3_state_t state;
};

digest_stream *digest_stream_new(void)
{
	digest_stream *d = aligned_alloc(_Alignof(digest_stream), sizeof *d);
	if (d)
		digest_stream_reset(d);
	return d;
}

void digest_stream_add(digest_stream *d, const void *data, size_t bytes)
{
	XXH3_64bits_update(&d->state, data, bytes);
}

uint64_t digest_stream_value(const digest_stream *d)
{
	return XXH3_64bits_digest(&d->state);
}

/* Both widths share their state and their updates. */
digest_wide digest_stream_wide(const digest_stream *d)
{
	const XXH128_hash_t hash = XXH3_128bits_digest(&d->state);
	return (digest_wide){hash.low64, hash.high64};
}

void digest_stream_reset(digest_stream *d)
{
	XXH3_64bits_reset(&d->state);
}

void digest_stream_free(digest_stream *d)
{
	free(d);
}

bool digest_file(int fd, int64_t at, size_t bytes, uint64_t *out)
{
	char piece[16 << 10];
	XXH3_state_t state;
	XXH3_64bits_reset(&state);
	errno = 0;
	while (bytes > 0) {
		ssize_t n = pread(fd, piece, bytes < sizeof piece ? bytes : sizeof piece, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		XXH3_64bits_update(&state, piece, (size_t)n);
		at += n;
		bytes -= (size_t)n;
	}
	*out = XXH3_64bits_digest(&state);
	return true;
}

void digest_write(uint64_t digest, char out[DIGEST_TEXT_BYTES])
{
	snprintf(out, DIGEST_TEXT_BYTES, "%016" PRIx64, digest);
}

bool digest_read(const char *text, uint64_t *out)
{
	*out = 0;
	for (int i = 0; i < DIGEST_TEXT_BYTES - 1; i++) {
		char c = text[i];
		int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
		if (digit < 0)
			return false;
		*out = *out << 4 | (uint64_t)digit;
	}
	return true;
}
