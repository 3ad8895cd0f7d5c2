/* `in` holds stored bytes that are not used yet. A format is a row of functions that turn them into text. */
#include "engine/text/byte_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/base/file.h"
#include "engine/base/memory.h"

enum { IN_BYTES = 256 << 10 };

typedef struct format {
	const char *name;
	uint32_t mark, mask;     /* the first 4 bytes, little-endian, and which bits of them count */
	uint32_t mark_2, mask_2; /* another mark of the same format */
	status (*begin)(byte_source *s);
	/* Decode some of in[at…have) into at most `room` bytes; *made: their number. Sets s->within. NULL: the bytes
	 * are text. */
	status (*decode)(byte_source *s, unsigned char *out, size_t room, size_t *made, error *err);
	void (*end)(byte_source *s);
} format;

struct byte_source {
	int fd; /* -1: memory */
	const unsigned char *memory;
	size_t memory_left;
	unsigned char *in;
	size_t at, have;
	bool ended;  /* no stored byte is left beyond `in` */
	bool within; /* a compressed member has begun and not ended */
	bool after;  /* one has ended */
	const format *format;
	z_stream gzip;
	bool gzip_open;
	ZSTD_DStream *zstd;
	corpus_hint hint;
};

static status byte_source_damaged(const byte_source *s, const char *reason, error *err)
{
	return error_set(err, STATUS_INVALID, NULL, "the %s data is damaged: %s", s->format->name, reason);
}

/* --- formats ------------------------------------------------------------------------ */

static status gzip_begin(byte_source *s)
{
	s->gzip_open = inflateInit2(&s->gzip, 15 + 16) == Z_OK; /* 16: with gzip's header and checksum */
	return s->gzip_open ? STATUS_OK : STATUS_NOMEM;
}

static status gzip_decode(byte_source *s, unsigned char *out, size_t room, size_t *made, error *err)
{
	z_stream *z = &s->gzip;
	uInt limit = room > 1u << 30 ? 1u << 30 : (uInt)room;
	z->next_in = s->in + s->at;
	z->avail_in = (uInt)(s->have - s->at);
	z->next_out = out;
	z->avail_out = limit;
	s->within = true;
	int code = inflate(z, Z_NO_FLUSH);
	s->at = s->have - z->avail_in;
	*made = limit - z->avail_out;
	if (code == Z_STREAM_END) {
		s->within = false;
		s->after = true;
		return inflateReset(z) == Z_OK ? STATUS_OK : STATUS_NOMEM;
	}
	if (code == Z_OK || code == Z_BUF_ERROR)
		return STATUS_OK;
	return code == Z_MEM_ERROR ? STATUS_NOMEM : byte_source_damaged(s, z->msg ? z->msg : "not gzip", err);
}

static void gzip_end(byte_source *s)
{
	if (s->gzip_open)
		inflateEnd(&s->gzip);
}

static status zstd_begin(byte_source *s)
{
	s->zstd = ZSTD_createDStream();
	return s->zstd ? STATUS_OK : STATUS_NOMEM;
}

static status zstd_decode(byte_source *s, unsigned char *out, size_t room, size_t *made, error *err)
{
	ZSTD_inBuffer in = {s->in, s->have, s->at};
	ZSTD_outBuffer to = {out, room, 0};
	size_t left = ZSTD_decompressStream(s->zstd, &to, &in);
	s->at = in.pos;
	*made = to.pos;
	if (ZSTD_isError(left))
		return byte_source_damaged(s, ZSTD_getErrorName(left), err);
	s->within = left != 0;
	s->after = left == 0;
	return STATUS_OK;
}

static void zstd_end(byte_source *s)
{
	ZSTD_freeDStream(s->zstd);
}

static const format formats[] = {
    {"gzip", 0x8b1f, 0xffff, 0x8b1f, 0xffff, gzip_begin, gzip_decode, gzip_end},
    {"zstd", 0xfd2fb528, 0xffffffff, 0x184d2a50, 0xfffffff0 /* a skippable frame */, zstd_begin, zstd_decode, zstd_end},
    {"plain", 0, 0, 0, 0, NULL, NULL, NULL},
};

/* True if the stored bytes that are not used yet begin with the format's mark. */
static bool has_mark(const byte_source *s, const format *f)
{
	uint32_t first = 0;
	for (size_t i = 0; i < 4 && s->at + i < s->have; i++)
		first |= (uint32_t)s->in[s->at + i] << 8 * i;
	return (first & f->mask) == f->mark || (first & f->mask_2) == f->mark_2;
}

/* --- stored bytes ------------------------------------------------------------------- */

/* Add to what `in` holds. */
static status byte_source_fill(byte_source *s, error *err)
{
	memmove(s->in, s->in + s->at, s->have - s->at);
	s->have -= s->at;
	s->at = 0;
	while (s->have < IN_BYTES && !s->ended) {
		size_t room = IN_BYTES - s->have;
		ssize_t n;
		if (s->fd < 0) {
			n = (ssize_t)(s->memory_left < room ? s->memory_left : room);
			if (n > 0)
				memcpy(s->in + s->have, s->memory, (size_t)n);
			s->memory += n;
			s->memory_left -= (size_t)n;
		} else {
			n = read(s->fd, s->in + s->have, room);
		}
		if (n < 0 && errno != EINTR)
			return file_error(err, "the text", "cannot read");
		s->ended = n == 0;
		s->have += n > 0 ? (size_t)n : 0;
	}
	return STATUS_OK;
}

static status byte_source_begin(byte_source *s, error *err)
{
	s->in = memory_new(IN_BYTES, 1);
	if (!s->in)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	TRY(byte_source_fill(s, err));
	s->format = formats;
	while (!has_mark(s, s->format))
		s->format++;
	status result = s->format->begin ? s->format->begin(s) : STATUS_OK;
	return result == STATUS_OK ? result : error_set(err, result, NULL, "out of memory");
}

static status byte_source_finish(byte_source **out, byte_source *s, error *err)
{
	status result = byte_source_begin(s, err);
	if (result == STATUS_OK)
		*out = s;
	else
		byte_source_free(s);
	return result;
}

status byte_source_open(byte_source **out, const char *path, error *err)
{
	*out = NULL;
	byte_source *s = memory_new(1, sizeof *s);
	if (!s)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	s->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (s->fd < 0) {
		free(s);
		return file_error(err, path, "cannot open");
	}
	s->hint = corpus_hint_of_file(path);
	posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	return byte_source_finish(out, s, err);
}

status byte_source_memory(byte_source **out, const void *data, size_t bytes, error *err)
{
	*out = NULL;
	byte_source *s = memory_new(1, sizeof *s);
	if (!s)
		return error_set(err, STATUS_NOMEM, NULL, "out of memory");
	s->fd = -1;
	s->memory = data ? data : (const void *)"";
	s->memory_left = bytes;
	return byte_source_finish(out, s, err);
}

bool byte_source_compressed(const byte_source *s)
{
	return s->format->decode;
}

corpus_hint byte_source_hint(const byte_source *s)
{
	return s->hint;
}

void byte_source_free(byte_source *s)
{
	if (!s)
		return;
	if (s->format && s->format->end)
		s->format->end(s);
	if (s->fd >= 0)
		close(s->fd);
	free(s->in);
	free(s);
}

/* --- text ----------------------------------------------------------------------------- */

static status copy(byte_source *s, unsigned char *out, size_t room, size_t *made)
{
	size_t n = s->have - s->at < room ? s->have - s->at : room;
	memcpy(out, s->in + s->at, n);
	s->at += n;
	*made = n;
	return STATUS_OK;
}

/* After a member: skip padding. STATUS_INVALID: what follows is no further member. */
static status find_member(byte_source *s, error *err)
{
	for (;;) {
		while (s->at < s->have && s->in[s->at] == 0)
			s->at++;
		if (s->have - s->at >= sizeof(uint32_t) || s->ended)
			break;
		TRY(byte_source_fill(s, err));
	}
	s->after = false;
	return s->at == s->have || has_mark(s, s->format) ? STATUS_OK
	                                                  : byte_source_damaged(s, "something else follows it", err);
}

status byte_source_read(byte_source *s, void *out, size_t room, size_t *bytes, error *err)
{
	unsigned char *to = out;
	*bytes = 0;
	while (*bytes < room) {
		size_t made = 0, before;
		if (s->at == s->have)
			TRY(byte_source_fill(s, err));
		if (s->after)
			TRY(find_member(s, err));
		before = s->at;
		if (s->at == s->have && !s->within)
			return STATUS_OK;
		TRY(s->format->decode ? s->format->decode(s, to + *bytes, room - *bytes, &made, err)
		                      : copy(s, to + *bytes, room - *bytes, &made));
		*bytes += made;
		if (made == 0 && s->at == before && s->at == s->have && s->ended)
			return s->within ? byte_source_damaged(s, "it ends in the middle", err) : STATUS_OK;
	}
	return STATUS_OK;
}
