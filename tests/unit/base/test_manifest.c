#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/digest.h"
#include "engine/base/file.h"
#include "engine/base/manifest.h"
#include "tests/unit/support/folder.h"

/* A folder with a small file and a file of two and a half chunks, and its manifest. */
enum { LARGE = 2 * MANIFEST_CHUNK_BYTES + MANIFEST_CHUNK_BYTES / 2 };
static char folder[64];

static const char *path(const char *name)
{
	static char joined[2][128]; /* two, since one expression may call this twice */
	static int turn;
	turn = !turn;
	snprintf(joined[turn], sizeof joined[turn], "%s/%s", folder, name);
	return joined[turn];
}

static void put(const char *name, const void *data, size_t bytes)
{
	assert_int_equal(file_write(path(name), &(file_part){data, bytes}, 1, NULL), STATUS_OK);
}

static int make_folder(void **state)
{
	folder_new(folder);
	char *large = malloc(LARGE);
	for (size_t i = 0; i < LARGE; i++)
		large[i] = (char)(i * 2654435761u >> 13);
	put("small", "hello", 5);
	put("empty", "", 0);
	put("large", large, LARGE);
	json_t *about = json_pack("{s:s, s:i, s:f}", "name", "caf\xc3\xa9", "number", 7, "third", 1.0 / 3);
	assert_int_equal(manifest_write(folder, "model", "m-1", about, NULL), STATUS_OK);
	json_decref(about);
	*state = large;
	return 0;
}

static int remove_folder(void **state)
{
	free(*state);
	return file_remove_tree(folder, NULL) != STATUS_OK;
}

static manifest *open_it(void)
{
	manifest *m;
	assert_int_equal(manifest_open_folder(&m, folder, NULL), STATUS_OK);
	assert_non_null(m);
	return m;
}

/* Change byte `at` of a file in place. */
static void flip(const char *name, long at)
{
	FILE *f = fopen(path(name), "r+b");
	assert_non_null(f);
	fseek(f, at, SEEK_SET);
	int c = fgetc(f);
	fseek(f, at, SEEK_SET);
	fputc(c ^ 4, f);
	fclose(f);
}

static void a_manifest_lists_the_written_files(void **state)
{
	manifest *m = open_it();
	assert_string_equal(manifest_kind(m), "model");
	assert_string_equal(manifest_id(m), "m-1");
	assert_string_equal(json_string_value(json_object_get(manifest_about(m), "name")), "caf\xc3\xa9");
	assert_true(json_real_value(json_object_get(manifest_about(m), "third")) == 1.0 / 3);
	assert_int_equal(manifest_bytes(m), LARGE + 5);
	assert_int_equal(manifest_file_bytes(m, "empty"), 0);
	assert_int_equal(manifest_file_bytes(m, "absent"), -1);
	assert_int_equal(manifest_check(m, folder, NULL), STATUS_OK);
	assert_int_equal(manifest_check_data(m, "large", *state, LARGE, NULL), STATUS_OK);
	assert_int_equal(manifest_check_chunk(m, "large", 2, (char *)*state + 2 * MANIFEST_CHUNK_BYTES,
	                                      MANIFEST_CHUNK_BYTES / 2, NULL),
	                 STATUS_OK);
	manifest_free(m);
}

static void one_flipped_bit_is_found_and_the_file_and_place_are_named(void **state)
{
	error err = ERROR_INIT;
	manifest *m = open_it();
	flip("large", MANIFEST_CHUNK_BYTES + 17);
	assert_int_equal(manifest_check(m, folder, &err), STATUS_STORAGE);
	assert_string_equal(err.message, "large is damaged: bytes 4194304 to 8388607 differ from what was written");
	assert_int_equal(manifest_check_sizes(m, folder, NULL), STATUS_OK);
	((char *)*state)[LARGE - 1] ^= 1;
	assert_int_equal(manifest_check_data(m, "large", *state, LARGE, NULL), STATUS_STORAGE);
	manifest_free(m);
}

static void a_missing_or_shorter_or_longer_file_is_damage(void **state)
{
	error err = ERROR_INIT;
	manifest *m = open_it();
	assert_int_equal(truncate(path("large"), LARGE - 1), 0);
	assert_int_equal(manifest_check_sizes(m, folder, NULL), STATUS_STORAGE);
	assert_int_equal(manifest_check_data(m, "large", *state, LARGE - 1, NULL), STATUS_STORAGE);
	assert_int_equal(truncate(path("large"), LARGE), 0);
	assert_int_equal(truncate(path("small"), 6), 0);
	assert_int_equal(manifest_check(m, folder, NULL), STATUS_STORAGE);
	unlink(path("small"));
	assert_int_equal(manifest_check_sizes(m, folder, &err), STATUS_STORAGE);
	assert_string_equal(err.message, "small is missing");
	assert_int_equal(manifest_check_data(m, "other", "", 0, NULL), STATUS_STORAGE);
	manifest_free(m);
}

static void every_flipped_bit_and_every_truncation_of_a_manifest_is_found(void **state)
{
	(void)state;
	char *text;
	size_t bytes;
	manifest *m;
	assert_int_equal(file_read(path(MANIFEST_NAME), MANIFEST_MAX_BYTES, &text, &bytes, NULL), STATUS_OK);
	for (size_t i = 0; i < bytes; i++) {
		for (int bit = 0; bit < 8; bit++) {
			text[i] = (char)(text[i] ^ 1 << bit);
			assert_int_equal(manifest_parse(&m, text, bytes, "x", NULL), STATUS_STORAGE);
			assert_null(m);
			text[i] = (char)(text[i] ^ 1 << bit);
		}
		assert_int_equal(manifest_parse(&m, text, i, "x", NULL), STATUS_STORAGE);
	}
	assert_int_equal(manifest_parse(&m, text, bytes, "x", NULL), STATUS_OK);
	assert_string_equal(manifest_text(m), text);
	json_t *plain = json_loads(text, 0, NULL); /* any parser reads it as JSON */
	assert_non_null(plain);
	json_decref(plain);
	manifest_free(m);
	free(text);
}

static void a_folder_without_a_manifest_has_nothing_to_verify(void **state)
{
	manifest *m;
	unlink(path(MANIFEST_NAME));
	assert_int_equal(manifest_open_folder(&m, folder, NULL), STATUS_OK);
	assert_null(m);
	assert_int_equal(manifest_check_data(NULL, "large", *state, 3, NULL), STATUS_OK);
	assert_int_equal(manifest_check_chunk(NULL, "large", 9, *state, 3, NULL), STATUS_OK);
	put(MANIFEST_NAME, "", 0);
	assert_int_equal(manifest_open_folder(&m, folder, NULL), STATUS_STORAGE);
	assert_null(m);
}

static void a_manifest_of_a_single_file_is_a_file_next_to_it(void **state)
{
	(void)state;
	manifest *m;
	assert_int_equal(manifest_write_file(path("small"), "file-1", "file", "file-1", NULL, NULL), STATUS_OK);
	assert_int_equal(rename(path("small"), path("file-1")), 0);
	assert_int_equal(manifest_open(&m, path("small" MANIFEST_SUFFIX), NULL), STATUS_OK);
	assert_int_equal(manifest_check(m, folder, NULL), STATUS_OK);
	flip("file-1", 0);
	assert_int_equal(manifest_check(m, folder, NULL), STATUS_STORAGE);
	manifest_free(m);
	assert_int_equal(manifest_open(&m, path("absent"), NULL), STATUS_NOT_FOUND);
}

static void digests_are_written_and_read_as_16_hex_digits(void **state)
{
	(void)state;
	char text[DIGEST_TEXT_BYTES];
	uint64_t back;
	/* XXH3-64 of the empty input, as the library's authors publish it. */
	assert_true(digest_bytes("", 0) == 0x2d06800538d394c2);
	digest_write(0x0123456789abcdef, text);
	assert_string_equal(text, "0123456789abcdef");
	assert_true(digest_read(text, &back) && back == 0x0123456789abcdef);
	assert_false(digest_read("0123456789abcdeF", &back));
	assert_false(digest_read("0123", &back));
}

int main(void)
{
#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
	const struct CMUnitTest tests[] = {
	    FOLDER_TEST(a_manifest_lists_the_written_files),
	    FOLDER_TEST(one_flipped_bit_is_found_and_the_file_and_place_are_named),
	    FOLDER_TEST(a_missing_or_shorter_or_longer_file_is_damage),
	    FOLDER_TEST(every_flipped_bit_and_every_truncation_of_a_manifest_is_found),
	    FOLDER_TEST(a_folder_without_a_manifest_has_nothing_to_verify),
	    FOLDER_TEST(a_manifest_of_a_single_file_is_a_file_next_to_it),
	    cmocka_unit_test(digests_are_written_and_read_as_16_hex_digits),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
