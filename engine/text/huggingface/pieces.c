#include "engine/text/huggingface/pieces.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

text_piece pieces_part(const text_piece *p, size_t first, size_t bytes)
{
	return (text_piece){
	    p->text + first,           bytes, p->map ? p->map + first : NULL, p->base + first, p->first && first == 0,
	    p->continues && first == 0};
}

byte_range pieces_origin(const text_piece *p, size_t first, size_t bytes)
{
	if (!p->map || p->bytes == 0)
		return (byte_range){p->base + first, bytes};
	if (bytes == 0) { /* before the byte, or after the last one */
		const byte_range r = p->map[first < p->bytes ? first : first - 1];
		return (byte_range){first < p->bytes ? r.first : r.first + r.bytes, 0};
	}
	size_t begin = SIZE_MAX, end = 0;
	for (size_t i = first; i < first + bytes; i++) {
		const byte_range r = p->map[i];
		begin = r.first < begin ? r.first : begin;
		end = r.first + r.bytes > end ? r.first + r.bytes : end;
	}
	return (byte_range){begin, end - begin};
}

void pieces_fini(text_buffer *b)
{
	free(b->text);
	free(b->map);
	*b = (text_buffer){0};
}

/* Room for `more` bytes, which the caller appends. STATUS_NOMEM; STATUS_INVALID: past a limit. */
static status pieces_reserve(text_buffer *b, size_t more)
{
	b->made += more;
	if (b->limit && (more > b->limit - b->bytes || b->made / PIECES_REUSES > b->limit))
		return STATUS_INVALID;
	if (more <= b->capacity - b->bytes)
		return STATUS_OK;
	size_t capacity = b->bytes + more > 2 * b->capacity ? b->bytes + more : 2 * b->capacity;
	capacity = capacity < 256 ? 256 : capacity;
	char *text = realloc(b->text, capacity);
	if (!text)
		return STATUS_NOMEM;
	b->text = text;
	if (b->mapped) {
		byte_range *map = realloc(b->map, capacity * sizeof *map);
		if (!map)
			return STATUS_NOMEM;
		b->map = map;
	}
	b->capacity = capacity;
	return STATUS_OK;
}

status pieces_copy(text_buffer *b, const text_piece *p, size_t first, size_t bytes)
{
	if (bytes == 0)
		return STATUS_OK;
	TRY(pieces_reserve(b, bytes));
	memcpy(b->text + b->bytes, p->text + first, bytes);
	for (size_t i = 0; b->mapped && i < bytes; i++)
		b->map[b->bytes + i] = p->map ? p->map[first + i] : (byte_range){p->base + first + i, 1};
	b->bytes += bytes;
	return STATUS_OK;
}

status pieces_put(text_buffer *b, const char *text, size_t bytes, byte_range origin)
{
	if (bytes == 0)
		return STATUS_OK;
	TRY(pieces_reserve(b, bytes));
	memcpy(b->text + b->bytes, text, bytes);
	for (size_t i = 0; b->mapped && i < bytes; i++)
		b->map[b->bytes + i] = origin;
	b->bytes += bytes;
	return STATUS_OK;
}

text_piece pieces_made(const text_buffer *b, const text_piece *p)
{
	return (text_piece){
	    b->text ? b->text : "", b->bytes, b->mapped ? b->map : NULL, p->base, p->first, p->continues};
}

bool pieces_is_space(uint32_t c)
{
	return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
	       (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

uint32_t pieces_first(const char *text, size_t *bytes)
{
	const unsigned char *p = (const unsigned char *)text;
	if (p[0] < 0x80)
		return *bytes = 1, p[0];
	if (p[0] < 0xE0)
		return *bytes = 2, (uint32_t)(p[0] & 0x1F) << 6 | (p[1] & 0x3F);
	if (p[0] < 0xF0)
		return *bytes = 3, (uint32_t)(p[0] & 0xF) << 12 | (uint32_t)(p[1] & 0x3F) << 6 | (p[2] & 0x3F);
	*bytes = 4;
	return (uint32_t)(p[0] & 7) << 18 | (uint32_t)(p[1] & 0x3F) << 12 | (uint32_t)(p[2] & 0x3F) << 6 |
	       (p[3] & 0x3F);
}

uint32_t pieces_last(const char *text, size_t bytes, size_t *length)
{
	size_t first = bytes - 1;
	while (first > 0 && ((unsigned char)text[first] & 0xC0) == 0x80)
		first--;
	return pieces_first(text + first, length);
}

size_t pieces_write(uint32_t c, char out[4])
{
	return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

uint32_t pieces_spelling(int byte)
{
	/* A printable byte is its own character; the others map to 256 and above, in order. */
	if ((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF))
		return (uint32_t)byte;
	return 256 + (uint32_t)(byte <= ' ' ? byte : byte <= 0xA0 ? byte - 0x7F + 33 : 67);
}
