#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/text/corpus_reader.h"
#include "engine/text/jsonl.h"

enum { TEXT_BYTES = 300000 };

/* "abc…" in lines of 50 bytes. */
static char *make_text(void)
{
	char *text = malloc(TEXT_BYTES);
	for (int i = 0; i < TEXT_BYTES; i++)
		text[i] = i % 50 == 49 ? '\n' : (char)('a' + i * 7 / 3 % 26);
	return text;
}

static size_t gzip(const char *text, size_t bytes, unsigned char *out, size_t room)
{
	z_stream z = {0};
	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_in = (unsigned char *)(uintptr_t)text;
	z.avail_in = (uInt)bytes;
	z.next_out = out;
	z.avail_out = (uInt)room;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return room - z.avail_out;
}

static size_t zstd(const char *text, size_t bytes, unsigned char *out, size_t room)
{
	size_t made = ZSTD_compress(out, room, text, bytes, 3);
	assert_false(ZSTD_isError(made));
	return made;
}

/* Read all of a source; returns the error's status. */
static status read_all(const void *data, size_t bytes, char *out, size_t room, size_t *made, error *err)
{
	byte_source *s;
	*made = 0;
	*err = (error)ERROR_INIT;
	status result = byte_source_memory(&s, data, bytes, err);
	for (size_t n = 1; result == STATUS_OK && n > 0; *made += n)
		result = byte_source_read(s, out + *made, room - *made < 777 ? room - *made : 777, &n, err);
	if (result == STATUS_OK || s)
		byte_source_free(s);
	return result;
}

typedef size_t (*compressor)(const char *text, size_t bytes, unsigned char *out, size_t room);
static const compressor compressors[] = {gzip, zstd};
static const char *const names[] = {"gzip", "zstd"};

static void compressed_data_is_read_as_the_original_in_one_part_or_several(void **state)
{
	(void)state;
	char *text = make_text(), *out = malloc(TEXT_BYTES + 1);
	unsigned char *packed = malloc(2 * TEXT_BYTES);
	for (int i = 0; i < 2; i++) {
		size_t first = compressors[i](text, 1000, packed, 2 * TEXT_BYTES), made;
		size_t second = compressors[i](text + 1000, TEXT_BYTES - 1000, packed + first, TEXT_BYTES);
		error err;
		assert_int_equal(read_all(packed, first + second, out, TEXT_BYTES + 1, &made, &err), STATUS_OK);
		assert_int_equal(made, TEXT_BYTES);
		assert_memory_equal(out, text, TEXT_BYTES);
	}
	free(text);
	free(out);
	free(packed);
}

static void padding_after_compressed_data_is_ignored_and_anything_else_is_refused(void **state)
{
	(void)state;
	enum { PADDING = 300000, SKIPPED = 40 };
	static const unsigned char skippable[8] = {0x5a, 0x2a, 0x4d, 0x18, SKIPPED - 8};
	char *text = make_text(), *out = malloc(TEXT_BYTES + 1);
	unsigned char *packed = malloc(4 * TEXT_BYTES);
	error err;
	size_t made;
	for (int i = 0; i < 2; i++) {
		memset(packed, 0, 4 * TEXT_BYTES);
		const size_t skipped = i == 1 ? SKIPPED : 0; /* before the first frame and after it */
		memcpy(packed, skippable, i == 1 ? sizeof skippable : 0);
		size_t bytes = skipped + compressors[i](text, 1000, packed + skipped, TEXT_BYTES);
		memcpy(packed + bytes, skippable, i == 1 ? sizeof skippable : 0);
		bytes += skipped + PADDING;
		assert_int_equal(read_all(packed, bytes, out, TEXT_BYTES + 1, &made, &err), STATUS_OK);
		assert_int_equal(made, 1000);
		bytes += compressors[i](text + 1000, 500, packed + bytes, TEXT_BYTES);
		assert_int_equal(read_all(packed, bytes, out, TEXT_BYTES + 1, &made, &err), STATUS_OK);
		assert_int_equal(made, 1500);
		assert_memory_equal(out, text, 1500);
		packed[bytes] = 'x';
		assert_int_equal(read_all(packed, bytes + 1, out, TEXT_BYTES + 1, &made, &err), STATUS_INVALID);
		assert_non_null(strstr(err.message, "something else"));
	}
	free(text);
	free(out);
	free(packed);
}

static void truncated_or_changed_compressed_data_is_refused_by_its_format(void **state)
{
	(void)state;
	char *text = make_text(), *out = malloc(TEXT_BYTES + 1);
	unsigned char *packed = malloc(TEXT_BYTES);
	for (int i = 0; i < 2; i++) {
		size_t bytes = compressors[i](text, TEXT_BYTES, packed, TEXT_BYTES), made;
		error err;
		for (size_t cut = 5; cut < bytes; cut += bytes / 7 + 1) {
			assert_int_equal(read_all(packed, cut, out, TEXT_BYTES + 1, &made, &err), STATUS_INVALID);
			assert_non_null(strstr(err.message, names[i]));
		}
		packed[bytes / 2] ^= 0xff;
		packed[bytes / 2 + 1] ^= 0xff;
		if (i == 0) { /* zstd's checksum is optional */
			assert_int_equal(read_all(packed, bytes, out, TEXT_BYTES + 1, &made, &err), STATUS_INVALID);
			assert_non_null(strstr(err.message, "gzip"));
		}
	}
	free(text);
	free(out);
	free(packed);
}

/* Concatenate all pieces and count them. */
static char *join_pieces(corpus_reader *r, size_t *bytes, int *pieces)
{
	char *all = NULL;
	corpus_piece p;
	*bytes = 0;
	*pieces = 0;
	while (corpus_reader_next(r, &p, NULL) == STATUS_OK && p.text) {
		all = realloc(all, *bytes + p.bytes);
		memcpy(all + *bytes, p.text, p.bytes);
		*bytes += p.bytes;
		++*pieces;
		free(p.text);
	}
	return all;
}

static corpus_reader *open_text(const char *text, size_t bytes, size_t piece)
{
	byte_source *s;
	corpus_reader *r;
	assert_int_equal(byte_source_memory(&s, text, bytes, NULL), STATUS_OK);
	assert_int_equal(corpus_reader_new(&r, s, piece, corpus_cut_at_line, NULL, NULL), STATUS_OK);
	return r;
}

static status take_value(void *context, const json_t *object, long line, error *err)
{
	(void)context, (void)object, (void)line, (void)err;
	return STATUS_OK;
}

static void pieces_are_complete_lines_and_together_the_text(void **state)
{
	(void)state;
	char *text = make_text();
	static const size_t sizes[] = {1, 49, 50, 51, 4096, 1 << 20};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		corpus_reader *r = open_text(text, TEXT_BYTES - 7, sizes[i]);
		size_t bytes;
		int pieces;
		char *all = join_pieces(r, &bytes, &pieces);
		assert_int_equal(bytes, TEXT_BYTES - 7);
		assert_memory_equal(all, text, bytes);
		assert_true(pieces > 1 || sizes[i] > TEXT_BYTES);
		free(all);
		corpus_reader_free(r);
	}
	free(text);
}

static void a_line_far_longer_than_a_piece_is_one_piece(void **state)
{
	(void)state;
	char *text = malloc(TEXT_BYTES);
	memset(text, 'x', TEXT_BYTES);
	corpus_reader *r = open_text(text, TEXT_BYTES, 64);
	size_t bytes;
	int pieces;
	free(join_pieces(r, &bytes, &pieces));
	assert_int_equal(bytes, TEXT_BYTES);
	assert_int_equal(pieces, 1);
	corpus_reader_free(r);
	free(text);
}

static void pieces_of_json_lines_have_the_number_of_their_first_line(void **state)
{
	(void)state;
	static const char text[] = "\n{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n{\"text\": \"three\"}\n";
	corpus_reader *r = open_text(text, strlen(text), 16);
	corpus_piece p;
	long expected = 1;
	assert_true(corpus_reader_is_data(r));
	while (corpus_reader_next(r, &p, NULL) == STATUS_OK && p.text) {
		assert_int_equal(p.place.line, expected);
		for (size_t i = 0; i < p.bytes; i++)
			expected += p.text[i] == '\n';
		free(p.text);
	}
	assert_int_equal(expected, 6);
	corpus_reader_free(r);
}

/* Read a text, whose beginning is followed by bytes 'a', with a kind of hint. Returns the error's message. */
static status read_long(const char *begin, size_t bytes, bool data, error *err)
{
	char *text = malloc(bytes);
	unsigned char *packed = malloc(bytes / 64 + 4096);
	memset(text, 'a', bytes);
	memcpy(text, begin, strlen(begin));
	const size_t made = zstd(text, bytes, packed, bytes / 64 + 4096);
	free(text);
	byte_source *source;
	corpus_reader *r;
	corpus_piece piece;
	*err = (error)ERROR_INIT;
	assert_int_equal(byte_source_memory(&source, packed, made, err), STATUS_OK);
	status s = corpus_reader_new(&r, source, 1 << 20, corpus_cut_at_line, NULL, err);
	assert_int_equal(s, STATUS_OK);
	assert_int_equal(corpus_reader_is_data(r), data);
	do {
		s = corpus_reader_next(r, &piece, err);
		if (s == STATUS_OK && piece.text && data)
			s = jsonl_walk(&piece, take_value, NULL, err);
		free(piece.text);
	} while (s == STATUS_OK && piece.text);
	corpus_reader_free(r);
	free(packed);
	return s;
}

static void a_value_and_a_text_without_a_cut_are_bounded(void **state)
{
	enum { VALUE = CORPUS_VALUE_BYTES + 1000 };
	error err;
	(void)state;
	assert_int_equal(read_long("{\"text\": \"", VALUE, true, &err), STATUS_INVALID);
	assert_string_equal(error_message(&err), "line 1: the value has more than 67108864 bytes; at most 64 MiB are "
	                                         "read of one");
	assert_int_equal(read_long("{\"text\": 1}\n{\"text\": \"", VALUE, true, &err), STATUS_INVALID);
	assert_string_equal(error_message(&err), "line 2: the value has more than 67108864 bytes; at most 64 MiB are "
	                                         "read of one");
	assert_int_equal(read_long("{\"text\" 1 [", VALUE, true, &err), STATUS_INVALID);
	assert_non_null(strstr(error_message(&err), "not JSON: ':' expected near '1'"));
	assert_int_equal(read_long("one line\n", CORPUS_STRETCH_BYTES + 1000, false, &err), STATUS_INVALID);
	assert_string_equal(error_message(&err),
	                    "from byte 9 on, 268435456 bytes have no place to cut the text, such as "
	                    "a line end; the most is 256 MiB");
}

static void bytes_that_are_not_utf8_are_named_by_their_offset_in_the_text(void **state)
{
	(void)state;
	char *text = make_text();
	static const size_t places[] = {3, 64, 127, 128, 200003, TEXT_BYTES - 1};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		char expected[40], before = text[places[i]];
		error err = ERROR_INIT;
		corpus_piece p = {0};
		status s;
		text[places[i]] = (char)0xc3; /* the beginning of an incomplete character */
		corpus_reader *r = open_text(text, TEXT_BYTES, 64);
		do {
			free(p.text);
			s = corpus_reader_next(r, &p, &err);
		} while (s == STATUS_OK && p.text);
		assert_int_equal(s, STATUS_INVALID);
		snprintf(expected, sizeof expected, "invalid UTF-8 at byte %zu", places[i]);
		assert_string_equal(err.message, expected);
		corpus_reader_free(r);
		text[places[i]] = before;
	}
	free(text);
}

/* Allow a cut anywhere. */
static size_t cut_anywhere(const void *context, const char *text, size_t bytes)
{
	(void)context, (void)text;
	return bytes;
}

static void a_character_is_never_cut_in_half(void **state)
{
	(void)state;
	char text[3000];
	for (int i = 0; i < 1000; i++)
		memcpy(text + 3 * i, "\xe2\x82\xac", 3);
	for (size_t piece = 16; piece < 19; piece++) {
		byte_source *s;
		corpus_reader *r;
		corpus_piece p;
		size_t all = 0;
		assert_int_equal(byte_source_memory(&s, text, sizeof text, NULL), STATUS_OK);
		assert_int_equal(corpus_reader_new(&r, s, piece, cut_anywhere, NULL, NULL), STATUS_OK);
		while (corpus_reader_next(r, &p, NULL) == STATUS_OK && p.text) {
			assert_int_equal(p.bytes % 3, 0);
			all += p.bytes;
			free(p.text);
		}
		assert_int_equal(all, sizeof text);
		corpus_reader_free(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(compressed_data_is_read_as_the_original_in_one_part_or_several),
	    cmocka_unit_test(padding_after_compressed_data_is_ignored_and_anything_else_is_refused),
	    cmocka_unit_test(truncated_or_changed_compressed_data_is_refused_by_its_format),
	    cmocka_unit_test(pieces_are_complete_lines_and_together_the_text),
	    cmocka_unit_test(a_line_far_longer_than_a_piece_is_one_piece),
	    cmocka_unit_test(pieces_of_json_lines_have_the_number_of_their_first_line),
	    cmocka_unit_test(a_value_and_a_text_without_a_cut_are_bounded),
	    cmocka_unit_test(bytes_that_are_not_utf8_are_named_by_their_offset_in_the_text),
	    cmocka_unit_test(a_character_is_never_cut_in_half),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
