/* test_frame.c - the frame codec: frames are decoded as encoded, however the bytes are split, and a peer's input is
 * never trusted. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "proto/frame.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_MAX = 4096 };

static size_t encode(unsigned char *out, const frame *f)
{
	frame_encode_header(f, out);
	if (f->json_bytes)
		memcpy(out + FRAME_HEADER_BYTES, f->json, f->json_bytes);
	if (f->payload_bytes)
		memcpy(out + FRAME_HEADER_BYTES + f->json_bytes, f->payload, f->payload_bytes);
	return FRAME_HEADER_BYTES + f->json_bytes + f->payload_bytes;
}

static frame sample(int i)
{
	static const char json[] = "{\"method\":\"engine.status\",\"params\":{}}";
	static const unsigned char payload[] = {0, 255, 1, 2, 3, 0, 0, 9};
	static const frame frames[] = {
	    {.type = FRAME_HELLO, .json = json, .json_bytes = sizeof(json) - 1},
	    {.type = FRAME_REQUEST, .flags = FRAME_FLAG_END, .credit = 7, .stream = 1, .json = json, .json_bytes = 25},
	    {.type = FRAME_DATA,
	     .stream = UINT64_MAX,
	     .json = json,
	     .json_bytes = 1,
	     .payload = payload,
	     .payload_bytes = sizeof(payload)},
	    {.type = FRAME_DATA, .flags = FRAME_FLAG_END, .stream = 3, .payload = payload, .payload_bytes = 1},
	    {.type = FRAME_CREDIT, .credit = UINT32_MAX, .stream = 0x0102030405060708},
	    {.type = FRAME_PING},
	};

	assert_true(i < (int)(sizeof(frames) / sizeof(frames[0])));
	return frames[i];
}

enum { SAMPLES = 6 };

static size_t encode_samples(unsigned char *out)
{
	size_t n = 0;

	for (int i = 0; i < SAMPLES; i++) {
		frame f = sample(i);

		n += encode(out + n, &f);
	}
	assert_true(n <= STREAM_MAX);
	return n;
}

static void assert_same(const frame *got, const frame *want)
{
	assert_int_equal(got->type, want->type);
	assert_int_equal(got->flags, want->flags);
	assert_int_equal(got->credit, want->credit);
	assert_true(got->stream == want->stream);
	assert_int_equal(got->json_bytes, want->json_bytes);
	assert_int_equal(got->payload_bytes, want->payload_bytes);
	if (want->json_bytes)
		assert_memory_equal(got->json, want->json, want->json_bytes);
	if (want->payload_bytes)
		assert_memory_equal(got->payload, want->payload, want->payload_bytes);
}

/* Take every complete frame and check each against the samples from `first` on; returns their number. */
static int take(frame_decoder *d, int first)
{
	frame f;
	const char *err;
	int n = 0;

	while (frame_decoder_next(d, &f, &err) == FRAME_OK) {
		frame want = sample(first + n);

		assert_same(&f, &want);
		n++;
	}
	assert_null(err);
	return n;
}

static void a_header_has_the_documented_bytes(void **state)
{
	(void)state;
	static const unsigned char want[FRAME_HEADER_BYTES] = {5, 0, 0, 0, 2, 0, 0, 0, 0x78, 0x56, 0x34, 0x12,
	                                                       3, 1, 0, 0, 8, 7, 6, 5, 4,    3,    2,    1};
	unsigned char out[FRAME_HEADER_BYTES + 1];
	frame f = {.type = FRAME_DATA,
	           .flags = FRAME_FLAG_END,
	           .credit = 0x12345678,
	           .stream = 0x0102030405060708,
	           .json_bytes = 2,
	           .payload_bytes = 3};

	memset(out, 0xa5, sizeof(out));
	frame_encode_header(&f, out);
	assert_memory_equal(out, want, sizeof(want));
	assert_int_equal(out[FRAME_HEADER_BYTES], 0xa5);
}

static void a_stream_split_in_two_at_any_byte_gives_the_same_frames(void **state)
{
	(void)state;
	unsigned char stream[STREAM_MAX];
	size_t n = encode_samples(stream);

	for (size_t cut = 0; cut <= n; cut++) {
		frame_decoder d = {0};
		int got = 0;

		assert_true(frame_decoder_push(&d, stream, cut));
		got += take(&d, got);
		assert_true(frame_decoder_push(&d, stream + cut, n - cut));
		got += take(&d, got);
		assert_int_equal(got, SAMPLES);
		frame_decoder_fini(&d);
	}
}

static void a_stream_in_pieces_of_any_size_gives_the_same_frames(void **state)
{
	(void)state;
	unsigned char stream[STREAM_MAX];
	size_t n = encode_samples(stream);

	for (size_t piece = 1; piece <= n; piece++) {
		frame_decoder d = {0};
		int got = 0;

		for (size_t at = 0; at < n; at += piece) {
			assert_true(frame_decoder_push(&d, stream + at, n - at < piece ? n - at : piece));
			got += take(&d, got);
		}
		assert_int_equal(got, SAMPLES);
		frame_decoder_fini(&d);
	}
}

static void frames_pushed_together_stay_valid_until_the_next_push(void **state)
{
	(void)state;
	unsigned char stream[STREAM_MAX];
	size_t n = encode_samples(stream);
	frame_decoder d = {0};
	frame all[SAMPLES];
	const char *err;

	assert_true(frame_decoder_push(&d, stream, n));
	for (int i = 0; i < SAMPLES; i++)
		assert_int_equal(frame_decoder_next(&d, &all[i], &err), FRAME_OK);
	for (int i = 0; i < SAMPLES; i++) {
		frame want = sample(i);

		assert_same(&all[i], &want);
	}
	frame_decoder_fini(&d);
}

static void an_empty_decoder_needs_more(void **state)
{
	(void)state;
	frame_decoder d = {0};
	frame f = {.type = FRAME_DATA};
	const char *err = "poison";

	assert_true(frame_decoder_push(&d, NULL, 0));
	assert_int_equal(frame_decoder_next(&d, &f, &err), FRAME_MORE);
	assert_null(err);
	assert_int_equal(f.type, 0);
	frame_decoder_fini(&d);
	frame_decoder_fini(&d);
}

/* Decode a PING header with one byte or word changed. */
static frame_result decode_header(size_t offset, uint32_t value, int width, const char **err)
{
	unsigned char h[FRAME_HEADER_BYTES];
	frame f = {.type = FRAME_PING}, out;
	frame_decoder d = {0};

	frame_encode_header(&f, h);
	for (int i = 0; i < width; i++)
		h[offset + (size_t)i] = (unsigned char)(value >> (8 * i));
	assert_true(frame_decoder_push(&d, h, sizeof(h)));
	frame_result r = frame_decoder_next(&d, &out, err);
	if (r == FRAME_BAD) {
		const char *again;

		assert_non_null(*err);
		assert_int_equal(frame_decoder_next(&d, &out, &again), FRAME_BAD);
		assert_ptr_equal(again, *err);
	}
	frame_decoder_fini(&d);
	return r;
}

static void every_type_that_is_not_listed_is_bad(void **state)
{
	(void)state;
	const char *err;

	for (uint32_t type = 0; type < 256; type++)
		assert_int_equal(decode_header(12, type, 1, &err),
		                 type >= FRAME_HELLO && type < FRAME_TYPE_COUNT ? FRAME_OK : FRAME_BAD);
}

static void unknown_flags_and_reserved_bytes_are_bad(void **state)
{
	(void)state;
	const char *err;

	for (uint32_t value = 1; value < 256; value++) {
		assert_int_equal(decode_header(13, value, 1, &err), FRAME_BAD);
		assert_int_equal(decode_header(14, value, 1, &err), FRAME_BAD);
		assert_int_equal(decode_header(15, value, 1, &err), FRAME_BAD);
		/* DATA allows one flag, END. */
		assert_int_equal(decode_header(12, FRAME_DATA | value << 8, 2, &err),
		                 value == FRAME_FLAG_END ? FRAME_OK : FRAME_BAD);
	}
}

static void impossible_lengths_are_bad_before_any_body_arrives(void **state)
{
	(void)state;
	static const struct {
		uint32_t length, json;
		frame_result want;
	} cases[] = {
	    {0, 1, FRAME_BAD},
	    {0, UINT32_MAX, FRAME_BAD},
	    {UINT32_MAX, UINT32_MAX, FRAME_BAD},
	    {UINT32_MAX, 0, FRAME_BAD},
	    {FRAME_MAX_PAYLOAD + 1, 0, FRAME_BAD},
	    {FRAME_MAX_PAYLOAD, 0, FRAME_MORE},
	    {FRAME_MAX_JSON + 1, FRAME_MAX_JSON + 1, FRAME_BAD},
	    {FRAME_MAX_JSON, FRAME_MAX_JSON, FRAME_MORE},
	    {FRAME_MAX_JSON + FRAME_MAX_PAYLOAD, FRAME_MAX_JSON, FRAME_MORE},
	    {FRAME_MAX_JSON + FRAME_MAX_PAYLOAD + 1u, FRAME_MAX_JSON, FRAME_BAD},
	    {0, 0, FRAME_OK},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned char h[FRAME_HEADER_BYTES];
		frame f = {.type = FRAME_DATA}, out;
		frame_decoder d = {0};
		const char *err;

		frame_encode_header(&f, h);
		for (int b = 0; b < 4; b++) {
			h[b] = (unsigned char)(cases[i].length >> (8 * b));
			h[4 + b] = (unsigned char)(cases[i].json >> (8 * b));
		}
		assert_true(frame_decoder_push(&d, h, sizeof(h)));
		assert_int_equal(frame_decoder_next(&d, &out, &err), cases[i].want);
		assert_true(d.capacity < 64 << 10);
		frame_decoder_fini(&d);
	}
}

static void the_largest_frame_is_decoded_and_its_memory_is_released(void **state)
{
	(void)state;
	size_t bytes = FRAME_HEADER_BYTES + (size_t)FRAME_MAX_JSON + FRAME_MAX_PAYLOAD;
	unsigned char *raw = calloc(bytes, 1), ping[FRAME_HEADER_BYTES];
	frame f = {.type = FRAME_DATA, .stream = 1, .json_bytes = FRAME_MAX_JSON, .payload_bytes = FRAME_MAX_PAYLOAD};
	frame small = {.type = FRAME_PING}, out;
	frame_decoder d = {0};
	const char *err;

	assert_non_null(raw);
	frame_encode_header(&f, raw);
	raw[bytes - 1] = 42;
	for (size_t at = 0; at < bytes; at += 65536)
		assert_true(frame_decoder_push(&d, raw + at, bytes - at < 65536 ? bytes - at : 65536));
	assert_int_equal(frame_decoder_next(&d, &out, &err), FRAME_OK);
	assert_int_equal(out.json_bytes, FRAME_MAX_JSON);
	assert_int_equal(out.payload_bytes, FRAME_MAX_PAYLOAD);
	assert_int_equal(((const unsigned char *)out.payload)[FRAME_MAX_PAYLOAD - 1], 42);
	frame_encode_header(&small, ping);
	assert_true(frame_decoder_push(&d, ping, sizeof(ping)));
	assert_true(d.capacity < 1 << 20);
	assert_int_equal(frame_decoder_next(&d, &out, &err), FRAME_OK);
	frame_decoder_fini(&d);
	free(raw);
}

static void a_long_stream_needs_no_more_buffer_than_its_unread_bytes(void **state)
{
	(void)state;
	unsigned char stream[STREAM_MAX];
	size_t n = encode_samples(stream);
	frame_decoder d = {0};

	/* The cut leaves a partial frame each time, so the buffer never becomes empty. */
	assert_true(frame_decoder_push(&d, stream, 10));
	for (int round = 0; round < 2000; round++) {
		assert_true(frame_decoder_push(&d, stream + 10, n - 10));
		assert_int_equal(take(&d, 0), SAMPLES);
		assert_true(frame_decoder_push(&d, stream, 10));
		assert_true(d.capacity <= 8 << 10);
	}
	frame_decoder_fini(&d);
}

static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

static void random_bytes_never_crash_the_decoder(void **state)
{
	(void)state;
	uint64_t seed = 0x9e3779b97f4a7c15u;

	for (int round = 0; round < 3000; round++) {
		unsigned char stream[STREAM_MAX];
		size_t n = encode_samples(stream), at = 0;
		frame_decoder d = {0};
		frame f;
		const char *err;
		frame_result r = FRAME_MORE;

		for (uint64_t edits = next_random(&seed) % 6; edits; edits--)
			stream[next_random(&seed) % n] = (unsigned char)next_random(&seed);
		while (at < n && r != FRAME_BAD) {
			size_t piece = next_random(&seed) % 60;

			piece = piece < n - at ? piece : n - at;
			assert_true(frame_decoder_push(&d, stream + at, piece));
			at += piece;
			while ((r = frame_decoder_next(&d, &f, &err)) == FRAME_OK) {
				const unsigned char *end = (const unsigned char *)f.payload + f.payload_bytes;

				assert_true((const unsigned char *)f.json >= d.data && end <= d.data + d.used);
			}
			assert_true((r == FRAME_BAD) == (err != NULL));
		}
		frame_decoder_fini(&d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_header_has_the_documented_bytes),
	    cmocka_unit_test(a_stream_split_in_two_at_any_byte_gives_the_same_frames),
	    cmocka_unit_test(a_stream_in_pieces_of_any_size_gives_the_same_frames),
	    cmocka_unit_test(frames_pushed_together_stay_valid_until_the_next_push),
	    cmocka_unit_test(an_empty_decoder_needs_more),
	    cmocka_unit_test(every_type_that_is_not_listed_is_bad),
	    cmocka_unit_test(unknown_flags_and_reserved_bytes_are_bad),
	    cmocka_unit_test(impossible_lengths_are_bad_before_any_body_arrives),
	    cmocka_unit_test(the_largest_frame_is_decoded_and_its_memory_is_released),
	    cmocka_unit_test(a_long_stream_needs_no_more_buffer_than_its_unread_bytes),
	    cmocka_unit_test(random_bytes_never_crash_the_decoder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
