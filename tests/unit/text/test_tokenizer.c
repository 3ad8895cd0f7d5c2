#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/manifest.h"
#include "engine/base/philox.h"
#include "engine/text/tokenizer.h"
#include "engine/text/huggingface/pieces.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/folder.h"

static void assert_round_trip(const tokenizer *t, const char *text, size_t bytes)
{
	token_list tokens;
	assert_int_equal(tokenizer_encode(t, text, bytes, &(encode_options){.spans = true}, &tokens, NULL), STATUS_OK);
	assert_int_equal(tokens.count, bytes);
	for (size_t i = 0; i < tokens.count; i++) {
		char byte[2] = {'?', '!'};
		assert_int_equal(tokens.ids[i], (unsigned char)text[i] + BYTES_FIRST);
		assert_true(tokens.spans[i].first == i && tokens.spans[i].bytes == 1);
		assert_int_equal(tokenizer_token_bytes(t, tokens.ids[i], byte, 1), 1);
		assert_int_equal(byte[0], text[i]);
		assert_int_equal(byte[1], '!');
	}
	token_list_fini(&tokens);
}

static void all_256_bytes_survive_a_round_trip(void **state)
{
	char all[256];
	for (int i = 0; i < 256; i++)
		all[i] = (char)i;
	assert_round_trip(*state, all, sizeof all);
	assert_round_trip(*state, all, 0);
}

static void random_utf8_survives_encoding_and_streaming(void **state)
{
	const tokenizer *t = *state;
	char text[4096], back[TEXT_STREAM_ROOM];
	size_t bytes = 0;
	for (uint64_t i = 0; bytes + 4 <= sizeof text; i++) {
		static const uint32_t ceilings[] = {0x80, 0x800, 0xD800, 0x110000};
		philox_block r = philox(3, 0, 0, i);
		uint32_t c = r.word[0] % ceilings[r.word[1] % 4];
		if (c >= 0xD800 && c < 0xE000)
			continue;
		bytes += pieces_write(c, text + bytes);
	}
	assert_round_trip(t, text, bytes);
	token_list tokens;
	size_t at = 0;
	assert_int_equal(tokenizer_encode(t, text, bytes, NULL, &tokens, NULL), STATUS_OK);
	text_stream s = {0};
	for (size_t i = 0; i < tokens.count; i++) {
		size_t n = text_stream_token(&s, t, tokens.ids[i], false, back);
		assert_memory_equal(back, text + at, n);
		at += n;
	}
	assert_int_equal(at, bytes);
	assert_int_equal(text_stream_push(&s, NULL, 0, true, back), 0);
	token_list_fini(&tokens);
}

static void the_roles_of_the_byte_tokenizer_are_those_of_stored_models(void **state)
{
	const tokenizer *t = *state;
	assert_int_equal(tokenizer_pad(t), BYTES_PAD);
	assert_int_equal(tokenizer_filler(t), BYTES_PAD);
	assert_int_equal(tokenizer_start(t), BYTES_PAD);
	assert_int_equal(tokenizer_end(t), BYTES_END);
	assert_int_equal(tokenizer_unknown(t), BYTES_UNKNOWN);
	assert_int_equal(tokenizer_begin(t), TOKEN_NONE);
	assert_int_equal(tokenizer_mask(t), TOKEN_NONE);
	for (int32_t id = -1; id <= tokenizer_size(t); id++)
		assert_int_equal(tokenizer_ends(t, id), id == BYTES_END);
}

static void special_tokens_and_ids_outside_the_vocabulary_have_no_text(void **state)
{
	const tokenizer *t = *state;
	static const int32_t ids[] = {BYTES_PAD, BYTES_END, BYTES_UNKNOWN, -1, 259, INT32_MAX, INT32_MIN};
	assert_int_equal(tokenizer_size(t), 259);
	assert_string_equal(tokenizer_type(t), "bytes");
	for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
		char byte = '?';
		assert_int_equal(tokenizer_token_bytes(t, ids[i], &byte, 1), 0);
		assert_int_equal(byte, '?');
	}
	assert_int_equal(tokenizer_token_bytes(t, 'a' + 3, NULL, 0), 1);
}

static void assert_refused(const char *json, status expected, const char *param)
{
	json_t *spec = json_loads(json, JSON_DECODE_ANY, NULL);
	assert_non_null(spec);
	tokenizer *t = (tokenizer *)spec;
	error err = ERROR_INIT;
	assert_int_equal(tokenizer_new(&t, spec, &err), expected);
	assert_null(t);
	assert_string_equal(err.param, param);
	assert_true(err.message[0]);
	json_decref(spec);
}

static void a_bad_spec_is_refused_by_the_name_of_its_field(void **state)
{
	(void)state;
	assert_refused("{}", STATUS_INVALID, "type");
	assert_refused("[1]", STATUS_INVALID, "type");
	assert_refused("{\"type\": 3}", STATUS_INVALID, "type");
	assert_refused("{\"type\": \"runes\"}", STATUS_UNSUPPORTED, "type");
	assert_refused("{\"type\": \"bytes\", \"vocab_size\": 300}", STATUS_INVALID, "vocab_size");
}

static void write_text(const char *folder, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(file_write(path, &(file_part){text, strlen(text)}, 1, NULL), STATUS_OK);
}

static void a_saved_tokenizer_opens_again_and_a_folder_without_one_uses_bytes(void **state)
{
	char folder[FOLDER_BYTES];
	folder_new(folder);
	for (int saved = 0; saved < 2; saved++) {
		tokenizer *t;
		assert_int_equal(tokenizer_open(&t, folder, 259, NULL), STATUS_OK);
		assert_string_equal(tokenizer_type(t), "bytes");
		tokenizer_free(t);
		assert_int_equal(tokenizer_save(*state, folder, NULL), STATUS_OK);
	}
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void assert_text(const char *folder, const char *name, const char *expected)
{
	char path[256], *text;
	size_t bytes;
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), STATUS_OK);
	assert_string_equal(text, expected);
	free(text);
}

static void the_files_of_a_tokenizer_are_saved_byte_for_byte(void **state)
{
	(void)state;
	static const char *const files[][2] = {{"tokenizer.json", "{ \"type\":\n\"bytes\" }\n"},
	                                       {"tokenizer_config.json", "{\"chat_template\":  \"x\"}"},
	                                       {"chat_template.jinja", "{{ bos_token }}\n"}};
	char from[FOLDER_BYTES], to[FOLDER_BYTES];
	folder_new(from);
	folder_new(to);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		write_text(from, files[i][0], files[i][1]);
	tokenizer *t;
	assert_int_equal(tokenizer_open(&t, from, 259, NULL), STATUS_OK);
	assert_int_equal(file_remove_tree(from, NULL), STATUS_OK);
	assert_int_equal(tokenizer_save(t, to, NULL), STATUS_OK);
	for (size_t i = 0; i < sizeof files / sizeof *files; i++)
		assert_text(to, files[i][0], files[i][1]);
	size_t bytes;
	assert_string_equal(tokenizer_file(t, "chat_template.jinja", &bytes), files[2][1]);
	assert_int_equal(bytes, strlen(files[2][1]));
	assert_null(tokenizer_file(t, "special_tokens_map.json", NULL));
	tokenizer_free(t);
	assert_int_equal(file_remove_tree(to, NULL), STATUS_OK);
}

static status no_text(void *context, const char **text, size_t *bytes, error *err)
{
	(void)context;
	(void)text;
	(void)bytes;
	return error_set(err, STATUS_IO, NULL, "a tokenizer that needs no text has read some");
}

static void a_tokenizer_that_needs_no_training_reads_no_text(void **state)
{
	(void)state;
	tokenizer *t;
	json_t *spec = json_pack("{s:s}", "type", "bytes");
	assert_false(tokenizer_trains(spec));
	assert_int_equal(tokenizer_check(spec, NULL), STATUS_OK);
	assert_int_equal(tokenizer_train(&t, spec, &(text_source){no_text, NULL}, NULL), STATUS_OK);
	assert_string_equal(tokenizer_type(t), "bytes");
	tokenizer_free(t);
	json_decref(spec);
}

static void a_tokenizer_with_more_ids_than_the_model_is_refused(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	folder_new(folder);
	tokenizer *t;
	error err = ERROR_INIT;
	assert_int_equal(tokenizer_open(&t, folder, 258, &err), STATUS_INVALID);
	assert_null(t);
	assert_string_equal(err.param, "vocab_size");
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void a_broken_tokenizer_file_is_an_error_with_its_line(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	folder_new(folder);
	write_text(folder, "tokenizer.json", "{\n\"type\": \n}");
	tokenizer *t;
	error err = ERROR_INIT;
	assert_int_equal(tokenizer_open(&t, folder, 1000, &err), STATUS_INVALID);
	assert_null(t);
	assert_non_null(strstr(err.message, "line 3"));
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* --- sharing -------------------------------------------------------------------------------------- */

/* A folder with a tokenizer's file and its manifest. */
static void copy_family(const char *folder, const char *name)
{
	char from[128], to[FOLDER_BYTES + 32];
	file_map map;
	snprintf(from, sizeof from, "tests/data/tokenizers/%s/tokenizer.json", name);
	snprintf(to, sizeof to, "%s/tokenizer.json", folder);
	assert_int_equal(file_map_open(&map, from, NULL), STATUS_OK);
	assert_int_equal(file_write(to, &(file_part){map.data, map.bytes}, 1, NULL), STATUS_OK);
	assert_int_equal(manifest_write(folder, "model", "m", NULL, NULL), STATUS_OK);
	file_map_close(&map);
}

static void folders_with_the_same_files_share_one_tokenizer(void **state)
{
	(void)state;
	enum { FOLDERS = 3, TIMES = 100 };
	static const char *const families[FOLDERS] = {"gpt2", "gpt2", "llama3"};
	char folder[FOLDERS][FOLDER_BYTES];
	tokenizer *t[FOLDERS], *more[TIMES];
	for (int i = 0; i < FOLDERS; i++) {
		folder_new(folder[i]);
		copy_family(folder[i], families[i]);
		assert_int_equal(tokenizer_open(&t[i], folder[i], 1000, NULL), STATUS_OK);
	}
	assert_ptr_equal(t[0], t[1]);
	assert_ptr_not_equal(t[0], t[2]);
	const size_t before = mallinfo2().uordblks;
	for (int i = 0; i < TIMES; i++)
		assert_int_equal(tokenizer_open(&more[i], folder[i % 2], 1000, NULL), STATUS_OK);
	assert_true(mallinfo2().uordblks < before + 65536); /* TIMES more copies of the file would take more */
	for (int i = 0; i < TIMES; i++)
		tokenizer_free(more[i]);
	tokenizer_free(t[0]);
	token_list list;
	assert_int_equal(tokenizer_encode(t[1], "the state", 9, NULL, &list, NULL), STATUS_OK);
	assert_true(list.count > 0);
	token_list_fini(&list);
	tokenizer_free(t[1]);
	tokenizer_free(t[2]);
	for (int i = 0; i < FOLDERS; i++)
		assert_int_equal(file_remove_tree(folder[i], NULL), STATUS_OK);
}

static void a_folder_is_checked_by_its_own_files_and_model_even_when_shared(void **state)
{
	(void)state;
	char good[FOLDER_BYTES], damaged[FOLDER_BYTES], path[FOLDER_BYTES + 32], *text;
	tokenizer *t, *other;
	size_t bytes;
	folder_new(good);
	folder_new(damaged);
	copy_family(good, "gpt2");
	copy_family(damaged, "gpt2");
	snprintf(path, sizeof path, "%s/tokenizer.json", damaged);
	assert_int_equal(file_read(path, 1 << 20, &text, &bytes, NULL), STATUS_OK);
	text[bytes - 3] ^= 1;
	assert_int_equal(file_write(path, &(file_part){text, bytes}, 1, NULL), STATUS_OK);
	free(text);
	assert_int_equal(tokenizer_open(&t, good, 1000, NULL), STATUS_OK);
	assert_int_equal(tokenizer_open(&other, damaged, 1000, NULL), STATUS_STORAGE);
	assert_null(other);
	assert_int_equal(tokenizer_open(&other, good, 100, NULL), STATUS_INVALID); /* a smaller model */
	assert_null(other);
	assert_int_equal(tokenizer_size(t), 701);
	tokenizer_free(t);
	assert_int_equal(file_remove_tree(good, NULL), STATUS_OK);
	assert_int_equal(file_remove_tree(damaged, NULL), STATUS_OK);
}

static void *open_and_free(void *context)
{
	static const char *const folders[] = {"tests/data/tokenizers/gpt2", "tests/data/tokenizers/trained"};
	int *failures = context;
	for (int i = 0; i < 20; i++) {
		tokenizer *t;
		token_list list;
		if (tokenizer_open(&t, folders[i % 2], 1000, NULL) != STATUS_OK ||
		    tokenizer_encode(t, "the state", 9, NULL, &list, NULL) != STATUS_OK)
			return ++*failures, NULL;
		token_list_fini(&list);
		tokenizer_free(t);
	}
	return NULL;
}

static void threads_open_and_free_a_shared_tokenizer_at_any_time(void **state)
{
	(void)state;
	enum { THREADS = 4 };
	pthread_t threads[THREADS];
	int failures[THREADS] = {0};
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, open_and_free, &failures[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_int_equal(failures[i], 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(all_256_bytes_survive_a_round_trip),
	    cmocka_unit_test(random_utf8_survives_encoding_and_streaming),
	    cmocka_unit_test(the_roles_of_the_byte_tokenizer_are_those_of_stored_models),
	    cmocka_unit_test(special_tokens_and_ids_outside_the_vocabulary_have_no_text),
	    cmocka_unit_test(a_bad_spec_is_refused_by_the_name_of_its_field),
	    cmocka_unit_test(a_saved_tokenizer_opens_again_and_a_folder_without_one_uses_bytes),
	    cmocka_unit_test(the_files_of_a_tokenizer_are_saved_byte_for_byte),
	    cmocka_unit_test(a_tokenizer_that_needs_no_training_reads_no_text),
	    cmocka_unit_test(a_tokenizer_with_more_ids_than_the_model_is_refused),
	    cmocka_unit_test(a_broken_tokenizer_file_is_an_error_with_its_line),
	    cmocka_unit_test(folders_with_the_same_files_share_one_tokenizer),
	    cmocka_unit_test(a_folder_is_checked_by_its_own_files_and_model_even_when_shared),
	    cmocka_unit_test(threads_open_and_free_a_shared_tokenizer_at_any_time),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
