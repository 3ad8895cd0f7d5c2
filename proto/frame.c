/* frame.c - the codec of frame.h.
 *
 * The decoder is one flat buffer with a read mark: push appends, next advances the mark. A push drops the bytes before
 * the mark only when they are at least half of the buffer, so every byte is moved at most once per doubling. The cost
 * is linear in the bytes received, however they are split. A ring was rejected because a frame's bodies must be
 * contiguous. */
#include "proto/frame.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* An empty buffer larger than this goes back to the allocator: one big request must not cost a
 * connection its memory for life. */
enum { KEEP_BYTES = 256 << 10, FIRST_BYTES = 4 << 10 };

static void put_u32(unsigned char *p, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		p[i] = (unsigned char)(v >> (8 * i));
}

static uint32_t get_u32(const unsigned char *p)
{
	uint32_t v = 0;

	for (int i = 0; i < 4; i++)
		v |= (uint32_t)p[i] << (8 * i);
	return v;
}

void frame_encode_header(const frame *f, unsigned char out[FRAME_HEADER_BYTES])
{
	assert(f->json_bytes <= FRAME_MAX_JSON && f->payload_bytes <= FRAME_MAX_PAYLOAD);
	put_u32(out, (uint32_t)(f->json_bytes + f->payload_bytes));
	put_u32(out + 4, (uint32_t)f->json_bytes);
	put_u32(out + 8, f->credit);
	out[12] = (unsigned char)f->type;
	out[13] = f->flags;
	out[14] = 0;
	out[15] = 0;
	put_u32(out + 16, (uint32_t)f->stream);
	put_u32(out + 20, (uint32_t)(f->stream >> 32));
}

/* The error in a header, or NULL. */
static const char *header_fault(const unsigned char *h)
{
	uint32_t length = get_u32(h), json = get_u32(h + 4);
	unsigned type = h[12], flags = h[13];

	if (type == 0 || type >= FRAME_TYPE_COUNT)
		return "unknown frame type";
	if (flags & ~(unsigned)FRAME_FLAG_END)
		return "unknown frame flags";
	if (flags && type != FRAME_REQUEST && type != FRAME_DATA)
		return "the END flag belongs to REQUEST and DATA frames";
	if (h[14] || h[15])
		return "the reserved bytes of a frame must be zero";
	if (json > length)
		return "the JSON of a frame is longer than the frame";
	if (json > FRAME_MAX_JSON)
		return "the JSON of a frame is too long";
	if (length - json > FRAME_MAX_PAYLOAD)
		return "the payload of a frame is too long";
	return NULL;
}

bool frame_request_id_valid(const char *text, size_t bytes)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";

	for (size_t i = 0; i < bytes; i++)
		if (!memchr(allowed, text[i], sizeof(allowed) - 1))
			return false;
	return bytes > 0 && bytes < FRAME_REQUEST_ID_BYTES;
}

/* Make room for `bytes` more, dropping what was taken when that pays. */
static bool frame_reserve(frame_decoder *d, size_t bytes)
{
	if (d->consumed == d->used && d->capacity > KEEP_BYTES)
		frame_decoder_fini(d);
	if (d->consumed >= d->used - d->consumed && d->consumed) {
		memmove(d->data, d->data + d->consumed, d->used - d->consumed);
		d->used -= d->consumed;
		d->consumed = 0;
	}
	if (bytes <= d->capacity - d->used)
		return true;
	if (bytes > SIZE_MAX / 2 - d->used)
		return false;

	size_t need = d->used + bytes;
	size_t capacity = d->capacity ? d->capacity : FIRST_BYTES;

	while (capacity < need)
		capacity *= 2;
	unsigned char *data = realloc(d->data, capacity);
	if (!data)
		return false;
	d->data = data;
	d->capacity = capacity;
	return true;
}

bool frame_decoder_push(frame_decoder *d, const void *data, size_t bytes)
{
	if (bytes == 0)
		return true;
	if (!frame_reserve(d, bytes))
		return false;
	memcpy(d->data + d->used, data, bytes);
	d->used += bytes;
	return true;
}

frame_result frame_decoder_next(frame_decoder *d, frame *out, const char **reason)
{
	size_t available = d->used - d->consumed;

	*out = (frame){0};
	*reason = NULL;
	if (available < FRAME_HEADER_BYTES)
		return FRAME_MORE;

	const unsigned char *h = d->data + d->consumed;

	*reason = header_fault(h);
	if (*reason)
		return FRAME_BAD;

	size_t length = get_u32(h), json = get_u32(h + 4);

	if (available - FRAME_HEADER_BYTES < length)
		return FRAME_MORE;
	out->type = (frame_type)h[12];
	out->flags = h[13];
	out->credit = get_u32(h + 8);
	out->stream = get_u32(h + 16) | (uint64_t)get_u32(h + 20) << 32;
	out->json = (const char *)h + FRAME_HEADER_BYTES;
	out->json_bytes = json;
	out->payload = h + FRAME_HEADER_BYTES + json;
	out->payload_bytes = length - json;
	d->consumed += FRAME_HEADER_BYTES + length;
	return FRAME_OK;
}

void frame_decoder_fini(frame_decoder *d)
{
	free(d->data);
	*d = (frame_decoder){0};
}
