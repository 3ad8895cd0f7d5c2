/* fuzz_compressed - an upload that may be compressed: the same bytes come out however they are asked for, or the same
 * refusal. An input that begins with 'P' is a recipe instead: what it packs comes back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/base/digest.h"
#include "engine/text/byte_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROOM = 1 << 16, MOST = 4 << 20 /* bytes of text that are looked at */, PACKED = 1 << 20, PLAIN = 1 << 16 };

typedef struct outcome {
	status end;
	uint64_t digest;
	size_t bytes;
} outcome;

static void require(bool condition)
{
	if (!condition)
		abort();
}

static outcome read_all(const uint8_t *data, size_t size, size_t piece)
{
	static unsigned char room[MOST + ROOM];
	byte_source *s;
	outcome o = {0};
	error err = ERROR_INIT;
	o.end = byte_source_memory(&s, data, size, &err);
	for (size_t n = piece; o.end == STATUS_OK && n == piece && o.bytes < MOST; o.bytes += n)
		o.end = byte_source_read(s, room + o.bytes, piece, &n, &err);
	byte_source_free(s);
	require(o.end == STATUS_OK || o.end == STATUS_INVALID);
	require(o.end == STATUS_OK || err.message[0]);
	o.digest = digest_bytes(room, o.bytes < MOST ? o.bytes : MOST);
	return o;
}

/* --- recipes ------------------------------------------------------------------------------------------------ */

typedef struct parcel {
	uint8_t packed[PACKED], plain[PLAIN];
	size_t n_packed, n_plain;
} parcel;

static void add_member(parcel *p, bool zstd, const uint8_t *text, size_t n)
{
	uint8_t *to = p->packed + p->n_packed;
	const size_t room = PACKED - p->n_packed;
	memcpy(p->plain + p->n_plain, text, n);
	p->n_plain += n;
	if (zstd) {
		p->n_packed += ZSTD_compress(to, room, text, n, 1);
		return;
	}
	z_stream z = {.next_in = (uint8_t *)(uintptr_t)text, .avail_in = (uInt)n, .next_out = to, .avail_out = (uInt)room};
	require(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
	require(deflate(&z, Z_FINISH) == Z_STREAM_END);
	p->n_packed += room - z.avail_out;
	deflateEnd(&z);
}

/* Each pair of bytes adds a member, padding, or a skippable frame. */
static void check_recipe(const uint8_t *data, size_t size)
{
	static parcel p;
	const bool zstd = size > 0 && data[0] & 1;
	p.n_packed = p.n_plain = 0;
	add_member(&p, zstd, data, 0);
	for (size_t at = 1; at + 1 < size && at < 400; at += 2) {
		const size_t n = data[at + 1];
		uint8_t *to = p.packed + p.n_packed;
		if (data[at] % 3 == 0) {
			memset(to, 0, n * 16);
			p.n_packed += n * 16;
		} else if (data[at] % 3 == 1 && zstd) {
			memcpy(to, (uint8_t[]){0x50 | data[at] >> 4, 0x2a, 0x4d, 0x18, (uint8_t)n, 0, 0, 0}, 8);
			memset(to + 8, data[at], n);
			p.n_packed += 8 + n;
		} else {
			add_member(&p, zstd, data, n < size ? n : size);
		}
	}
	const outcome o = read_all(p.packed, p.n_packed, 1 + size % 97);
	require(o.end == STATUS_OK && o.bytes == p.n_plain && o.digest == digest_bytes(p.plain, p.n_plain));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 1 && data[0] == 'P') {
		check_recipe(data + 1, size - 1);
		return 0;
	}
	const outcome whole = read_all(data, size, ROOM), pieces = read_all(data, size, 1 + size % 509);
	if (whole.bytes >= MOST || pieces.bytes >= MOST)
		return 0;
	require(whole.end == pieces.end);
	require(whole.end != STATUS_OK || (whole.bytes == pieces.bytes && whole.digest == pieces.digest));
	return 0;
}
