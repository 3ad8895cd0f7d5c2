/* test_sealed_text.c - bytes as text, with and without a key. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/sealed_text.h"
#include "tests/unit/support/folder.h"

static const seal_key none = {0}, first = {20, "a key of twenty byte"}, second = {20, "a key of twenty bytf"};

static void every_length_is_read_back_and_every_change_is_refused(void **state)
{
	unsigned char in[70], *out;
	size_t bytes;
	(void)state;
	for (size_t i = 0; i < sizeof in; i++)
		in[i] = (unsigned char)(37 * i);
	for (int keyed = 0; keyed < 2; keyed++)
		for (size_t n = 0; n <= sizeof in; n++) {
			const seal_key *key = keyed ? &first : &none;
			char *text = sealed_text_write(in, n, key);
			const size_t length = strlen(text);
			assert_int_equal(sealed_text_read(text, length, key, &out, &bytes, NULL), STATUS_OK);
			assert_int_equal(bytes, n);
			assert_memory_equal(out, in, n);
			free(out);
			for (size_t i = 0; keyed && i < length; i++) {
				if (text[i] == '=')
					continue;
				text[i] ^= 1;
				status s = sealed_text_read(text, length, key, &out, &bytes, NULL);
				if (s == STATUS_OK) /* the last bits of base64 may have no meaning */
					assert_true(bytes == n && memcmp(out, in, n) == 0 && i + 4 >= length);
				free(out);
				text[i] ^= 1;
			}
			free(text);
		}
}

static void a_seal_of_another_key_or_none_is_refused(void **state)
{
	(void)state;
	const seal_key *const keys[] = {&none, &first, &second};
	for (int i = 0; i < 3; i++) {
		char *text = sealed_text_write("some bytes", 10, keys[i]);
		for (int j = 0; j < 3; j++) {
			unsigned char *out;
			size_t bytes;
			error err = ERROR_INIT;
			const status s = sealed_text_read(text, strlen(text), keys[j], &out, &bytes, &err);
			assert_int_equal(s, i == j ? STATUS_OK : STATUS_CORRUPT);
			assert_true(i == j || (!out && err.message[0]));
			free(out);
		}
		free(text);
	}
}

static void text_that_is_no_base64_is_refused(void **state)
{
	static const char *const wrong[] = {"a", "ab*d", "abc", "====", "hs256.", "hs256.YWJj", "a\nb\xff"};
	(void)state;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		for (int keyed = 0; keyed < 2; keyed++) {
			unsigned char *out;
			size_t bytes;
			assert_int_equal(
			    sealed_text_read(wrong[i], strlen(wrong[i]), keyed ? &first : &none, &out, &bytes, NULL),
			    STATUS_CORRUPT);
			assert_null(out);
		}
}

/* RFC 4231, test case 2, has a shorter key than is allowed; this value was made with Python's hmac. */
static void the_seal_is_hmac_sha_256(void **state)
{
	(void)state;
	char *text = sealed_text_write("what do ya want for nothing?", 28, &first);
	assert_string_equal(text,
	                    "hs256.d2hhdCBkbyB5YSB3YW50IGZvciBub3RoaW5nP4N9QEXJAyM+Z4tdykH3sX1lx5JDk486TKD8DnozU3JT");
	free(text);
}

static void a_key_is_read_without_its_newline_and_must_be_long_enough(void **state)
{
	static const struct {
		const char *text;
		size_t bytes;
	} cases[] = {{"0123456789abcdef", 16}, {"0123456789abcdef\n", 16}, {"0123456789abcde\n\n", 0}, {"", 0}};
	char folder[64], path[128], *large = malloc(SEAL_KEY_MAX_BYTES + 9);
	seal_key key;
	(void)state;
	folder_new(folder);
	snprintf(path, sizeof path, "%s/key", folder);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(file_write(path, &(file_part){cases[i].text, strlen(cases[i].text)}, 1, NULL),
		                 STATUS_OK);
		assert_int_equal(seal_key_read(&key, path, NULL), cases[i].bytes ? STATUS_OK : STATUS_INVALID);
		assert_int_equal(key.bytes, cases[i].bytes);
	}
	memset(large, 'k', SEAL_KEY_MAX_BYTES + 9);
	assert_int_equal(file_write(path, &(file_part){large, SEAL_KEY_MAX_BYTES + 9}, 1, NULL), STATUS_OK);
	assert_int_equal(seal_key_read(&key, path, NULL), STATUS_INVALID);
	free(large);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	assert_int_equal(seal_key_read(&key, path, NULL), STATUS_NOT_FOUND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_length_is_read_back_and_every_change_is_refused),
	    cmocka_unit_test(a_seal_of_another_key_or_none_is_refused),
	    cmocka_unit_test(text_that_is_no_base64_is_refused),
	    cmocka_unit_test(the_seal_is_hmac_sha_256),
	    cmocka_unit_test(a_key_is_read_without_its_newline_and_must_be_long_enough),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
