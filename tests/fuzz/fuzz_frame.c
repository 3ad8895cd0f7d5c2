/* fuzz_frame - the frame decoder. For any bytes in any pieces it gives the same frames as for all bytes at once, and no
 * frame points outside the received bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct summary {
	uint64_t hash;
	int frames;
	frame_result end;
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

static void drain(frame_decoder *d, summary *s)
{
	frame f;
	const char *err;

	while ((s->end = frame_decoder_next(d, &f, &err)) == FRAME_OK) {
		require(!err && f.type >= FRAME_HELLO && f.type < FRAME_TYPE_COUNT);
		require(f.json_bytes <= FRAME_MAX_JSON && f.payload_bytes <= FRAME_MAX_PAYLOAD);
		require((const unsigned char *)f.json >= d->data);
		require((const unsigned char *)f.payload + f.payload_bytes <= d->data + d->used);
		mix(s, f.json, f.json_bytes);
		mix(s, f.payload, f.payload_bytes);
		mix(s, &f.stream, sizeof(f.stream));
		mix(s, &f.credit, sizeof(f.credit));
		s->frames++;
	}
	require((s->end == FRAME_BAD) == (err != NULL));
}

/* seed 0: all at once; else pieces of up to 64 bytes. */
static summary decode(const uint8_t *data, size_t size, uint32_t seed)
{
	frame_decoder d = {0};
	summary s = {.end = FRAME_MORE};

	for (size_t at = 0; at < size && s.end != FRAME_BAD;) {
		size_t piece = size - at;

		if (seed) {
			seed = seed * 1664525 + 1013904223;
			piece = piece < (seed >> 26) ? piece : seed >> 26;
		}
		require(frame_decoder_push(&d, data + at, piece));
		at += piece;
		drain(&d, &s);
	}
	frame_decoder_fini(&d);
	return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	summary whole = decode(data, size, 0), pieces = decode(data, size, (uint32_t)size * 2654435761u | 1);

	require(whole.frames == pieces.frames && whole.hash == pieces.hash && whole.end == pieces.end);
	return 0;
}
