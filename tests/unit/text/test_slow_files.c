/* Folders with files from before tokenizer.json give the ids of the same tokenizer in that form. Unreadable files are
 * refused by name. The ids that end a text are those of generation_config.json, or else of config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/support/folder.h"

static void write_text(const char *folder, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(file_write(path, &(file_part){text, strlen(text)}, 1, NULL), STATUS_OK);
}

static void write_json(const char *folder, const char *name, const json_t *json)
{
	char *text = json_dumps(json, 0);
	write_text(folder, name, text);
	free(text);
}

static json_t *load(const char *family, const char *file)
{
	char path[160];
	snprintf(path, sizeof path, "tests/data/tokenizers/%s/%s", family, file);
	json_t *json = json_load_file(path, JSON_ALLOW_NUL, NULL);
	assert_non_null(json);
	return json;
}

static void write_merges(const char *folder, const json_t *merges)
{
	char *all = malloc(1 << 20);
	size_t n = (size_t)sprintf(all, "#version: 0.2\n"), i;
	json_t *pair;
	json_array_foreach(merges, i, pair)
	{
		if (json_is_string(pair))
			n += (size_t)sprintf(all + n, "%s\n", json_string_value(pair));
		else
			n += (size_t)sprintf(all + n, "%s %s\r\n", json_string_value(json_array_get(pair, 0)),
			                     json_string_value(json_array_get(pair, 1)));
	}
	write_text(folder, "merges.txt", all);
	free(all);
}

static void write_words(const char *folder, const json_t *vocabulary)
{
	char *all = malloc(1 << 20);
	size_t n = 0;
	for (json_int_t id = 0; id < (json_int_t)json_object_size(vocabulary); id++) {
		const char *name;
		json_t *number;
		json_object_foreach((json_t *)(uintptr_t)vocabulary, name, number)
		{
			if (json_integer_value(number) == id)
				n += (size_t)sprintf(all + n, "%s\n", name);
		}
	}
	write_text(folder, "vocab.txt", all);
	free(all);
}

/* Write a family's files in the old form, with a tokenizer_config.json. */
static void write_slow(const char *folder, const char *family, bool words, const char *config)
{
	json_t *json = load(family, "tokenizer.json"), *model = json_object_get(json, "model");
	json_t *added = json_object(), *token;
	size_t i;
	if (words)
		write_words(folder, json_object_get(model, "vocab"));
	else
		write_json(folder, "vocab.json", json_object_get(model, "vocab"));
	if (!words)
		write_merges(folder, json_object_get(model, "merges"));
	json_array_foreach(json_object_get(json, "added_tokens"), i, token)
	{
		char id[24];
		snprintf(id, sizeof id, "%lld", (long long)json_integer_value(json_object_get(token, "id")));
		json_t *about = json_deep_copy(token);
		json_object_del(about, "id");
		json_object_set_new(added, id, about);
	}
	json_t *all = json_loads(config, 0, NULL);
	json_object_set_new(all, "added_tokens_decoder", added);
	write_json(folder, "tokenizer_config.json", all);
	json_decref(all);
	json_decref(json);
}

static void assert_cases(const char *folder, const char *family)
{
	tokenizer *t;
	error err = ERROR_INIT;
	if (tokenizer_open(&t, folder, 1 << 20, &err) != STATUS_OK)
		fail_msg("%s: %s", family, error_message(&err));
	json_t *cases = load(family, "cases.json"), *c;
	size_t i;
	json_array_foreach(cases, i, c)
	{
		const json_t *text = json_object_get(c, "text"), *wrapped = json_object_get(c, "wrapped");
		const json_t *ids = wrapped ? wrapped : json_object_get(c, "trusted");
		const byte_range whole = {0, json_string_length(text)};
		token_list list;
		assert_int_equal(tokenizer_encode(t, json_string_value(text), whole.bytes,
		                                  &(encode_options){.trusted = &whole,
		                                                    .n_trusted = 1,
		                                                    .begin = wrapped != NULL,
		                                                    .end = wrapped != NULL},
		                                  &list, NULL),
		                 STATUS_OK);
		bool same = list.count == json_array_size(ids);
		for (size_t k = 0; same && k < list.count; k++)
			same = list.ids[k] == json_integer_value(json_array_get(ids, k));
		if (!same)
			fail_msg("%s: \"%s\" has other ids", family, json_string_value(text));
		token_list_fini(&list);
	}
	json_decref(cases);
	tokenizer_free(t);
}

static void files_from_before_tokenizer_json_give_the_same_ids(void **state)
{
	(void)state;
	static const struct {
		const char *family, *config;
		bool words;
	} all[] = {{"gpt2", "{\"tokenizer_class\": \"GPT2Tokenizer\"}", false},
	           {"gpt2", "{}", false},
	           {"roberta", "{\"tokenizer_class\": \"RobertaTokenizerFast\", \"add_prefix_space\": true}", false},
	           {"qwen2", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}", false},
	           {"strips", "{}", false},
	           {"bert", "{\"tokenizer_class\": \"DistilBertTokenizer\"}", true}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char folder[FOLDER_BYTES];
		folder_new(folder);
		write_slow(folder, all[i].family, all[i].words, all[i].config);
		assert_cases(folder, all[i].family);
		assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	}
}

static void names_of_roles_are_special_without_a_list_of_added_tokens(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	tokenizer *t;
	token_list list;
	const byte_range whole = {0, 5};
	folder_new(folder);
	write_text(folder, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n\xC3\xBC\n");
	write_text(folder, "special_tokens_map.json", "{\"pad_token\": \"[PAD]\", \"sep_token\": {\"content\": \"[SEP]\"}}");
	write_text(folder, "tokenizer_config.json", "{\"do_lower_case\": true, \"strip_accents\": false}");
	write_text(folder, "added_tokens.json", "{\"<x>\": 8}");
	assert_int_equal(tokenizer_open(&t, folder, 9, NULL), STATUS_OK);
	assert_int_equal(tokenizer_pad(t), 0);
	assert_int_equal(tokenizer_mask(t), 4);
	assert_int_equal(tokenizer_encode(t, "[SEP]", 5, &(encode_options){.trusted = &whole, .n_trusted = 1}, &list, NULL),
	                 STATUS_OK);
	assert_int_equal(list.count, 1);
	assert_int_equal(list.ids[0], 3);
	token_list_fini(&list);
	static const int32_t ids[] = {2, 5, 6, 8, 7, 3};
	assert_int_equal(tokenizer_encode(t, "AB<x>\xC3\x9C", 7, &(encode_options){.begin = true, .end = true}, &list, NULL),
	                 STATUS_OK);
	assert_int_equal(list.count, 6);
	assert_memory_equal(list.ids, ids, sizeof ids);
	token_list_fini(&list);
	tokenizer_free(t);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void files_of_other_tokenizers_are_refused_by_name(void **state)
{
	(void)state;
	static const struct {
		const char *file, *text, *more, *more_text, *names;
	} all[] = {{"vocab.json", "{\"a\": 0}", NULL, NULL, "vocab.json"},
	           {"vocab.json", "{\"a\": 0, \"b</w>\": 1}", "merges.txt", "a b</w>\n", "byte-level"},
	           {"vocab.json", "{}", "tokenizer_config.json", "{\"tokenizer_class\": \"MarianTokenizer\"}", "vocab.json"},
	           {"vocab.txt", "a\n", "tokenizer_config.json", "{\"tokenizer_class\": \"BertJapaneseTokenizer\"}",
	            "BertJapaneseTokenizer"},
	           {"bpe.codes", "", NULL, NULL, "bpe.codes"},
	           {"tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}", NULL, NULL, "LlamaTokenizer"}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char folder[FOLDER_BYTES];
		tokenizer *t;
		error err = ERROR_INIT;
		folder_new(folder);
		write_text(folder, all[i].file, all[i].text);
		if (all[i].more)
			write_text(folder, all[i].more, all[i].more_text);
		const status s = tokenizer_open(&t, folder, 1 << 20, &err);
		if ((s != STATUS_UNSUPPORTED && s != STATUS_INVALID) || t || !strstr(err.message, all[i].names))
			fail_msg("%s: %s", all[i].file, error_message(&err));
		assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	}
}

static void the_configuration_names_the_ends_of_a_text_where_no_other_file_does(void **state)
{
	(void)state;
	static const struct {
		const char *config, *generation;
		bool ends[3]; /* ids 5, 6 and 7 */
	} all[] = {{"{\"eos_token_id\": 5}", NULL, {true}},
	           {"{\"eos_token_id\": [5, 7, 1000000]}", NULL, {true, false, true}},
	           {"{\"eos_token_id\": 5}", "{\"eos_token_id\": 6}", {false, true}},
	           {"{\"eos_token_id\": 5}", "{}", {false}},
	           {"{\"eos_token_id\": null}", NULL, {false}},
	           {"{\"eos_token_id\": \"x\"}", NULL, {false}},
	           {"not JSON", NULL, {false}}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		for (int kind = 0; kind < 3; kind++) {
			char folder[FOLDER_BYTES];
			tokenizer *t;
			folder_new(folder);
			if (kind == 1) {
				json_t *json = load("gpt2", "tokenizer.json");
				write_json(folder, "tokenizer.json", json);
				json_decref(json);
			} else if (kind == 2) {
				char *data, path[256];
				size_t bytes;
				assert_int_equal(file_read("tests/data/tokenizers/bpe/tokenizer.model", 1 << 20, &data, &bytes,
				                           NULL),
				                 STATUS_OK);
				snprintf(path, sizeof path, "%s/tokenizer.model", folder);
				assert_int_equal(file_write(path, &(file_part){data, bytes}, 1, NULL), STATUS_OK);
				free(data);
			}
			write_text(folder, "config.json", all[i].config);
			if (all[i].generation)
				write_text(folder, "generation_config.json", all[i].generation);
			assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
			for (int k = 0; k < 3; k++)
				assert_int_equal(tokenizer_ends(t, 5 + k), all[i].ends[k]);
			tokenizer_free(t);
			assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(files_from_before_tokenizer_json_give_the_same_ids),
	    cmocka_unit_test(names_of_roles_are_special_without_a_list_of_added_tokens),
	    cmocka_unit_test(files_of_other_tokenizers_are_refused_by_name),
	    cmocka_unit_test(the_configuration_names_the_ends_of_a_text_where_no_other_file_does),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
