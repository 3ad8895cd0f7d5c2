/* Tokenizers in the forms that model families publish (tests/data/tokenizers) give the ids and texts of the library
 * `tokenizers`. An unsupported part of a file is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/philox.h"
#include "engine/text/grammar/token_trie.h"
#include "engine/text/tokenizer.h"
#include "engine/text/huggingface/pieces.h"
#include "tests/unit/support/folder.h"

#define FOLDER "tests/data/tokenizers/"
static const char *const families[] = {
    "gpt2",  "llama3", "qwen2", "o200k",   "neox", "roberta",       "digits",    "llama2",         "mistral",
    "gemma", "nfkc",   "nfd",   "trained", "t5",   "unigram_bytes", "wordpiece", "capital_pieces", "capital_words",
    "bert",  "words",  "cased", "strips",  "clip", "gpt1",          "continued"};
enum { FAMILIES = sizeof families / sizeof *families };

static tokenizer *open_family(const char *name)
{
	char folder[128];
	tokenizer *t;
	error err = ERROR_INIT;
	snprintf(folder, sizeof folder, FOLDER "%s", name);
	if (tokenizer_open(&t, folder, 1 << 20, &err) != STATUS_OK)
		fail_msg("%s: %s", name, error_message(&err));
	assert_string_equal(tokenizer_type(t), "huggingface");
	return t;
}

static json_t *load(const char *family, const char *file)
{
	char path[160];
	json_error_t where;
	snprintf(path, sizeof path, FOLDER "%s/%s", family, file);
	json_t *json = json_load_file(path, JSON_ALLOW_NUL, &where);
	if (!json)
		fail_msg("%s: %s", path, where.text);
	return json;
}

static void assert_ids(const tokenizer *t, const json_t *text, const json_t *ids, const encode_options *o,
                       const char *family)
{
	token_list list;
	assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text), o, &list, NULL),
	                 STATUS_OK);
	bool same = list.count == json_array_size(ids);
	for (size_t i = 0; i < list.count && same; i++)
		same = list.ids[i] == json_integer_value(json_array_get(ids, i));
	if (!same)
		fail_msg("%s: \"%s\" has other ids", family, json_string_value(text));
	token_list_fini(&list);
}

/* The decoded text, *bytes long, to be freed. */
static char *decode(const tokenizer *t, const token_list *list, size_t *bytes)
{
	text_stream stream = {0};
	char *text = malloc((list->count + 1) * TEXT_STREAM_ROOM);
	*bytes = 0;
	for (size_t i = 0; i <= list->count; i++) {
		const bool last = i == list->count;
		*bytes += text_stream_token(&stream, t, last ? TOKEN_NONE : list->ids[i], last, text + *bytes);
	}
	return text;
}

static void assert_decoded(const tokenizer *t, const json_t *text, const json_t *expected, const encode_options *o,
                           const char *family)
{
	token_list list;
	size_t bytes;
	assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text), o, &list, NULL),
	                 STATUS_OK);
	char *decoded = decode(t, &list, &bytes);
	if (bytes != json_string_length(expected) || memcmp(decoded, json_string_value(expected), bytes) != 0)
		fail_msg("%s: \"%s\" comes back as \"%.*s\"", family, json_string_value(text), (int)bytes, decoded);
	free(decoded);
	token_list_fini(&list);
}

static void every_form_of_tokenizer_gives_the_ids_and_texts_of_the_library(void **state)
{
	(void)state;
	for (int f = 0; f < FAMILIES; f++) {
		tokenizer *t = open_family(families[f]);
		json_t *cases = load(families[f], "cases.json"), *c;
		size_t i;
		assert_true(json_array_size(cases) > 100);
		json_array_foreach(cases, i, c)
		{
			const json_t *text = json_object_get(c, "text"), *trusted = json_object_get(c, "trusted");
			const json_t *plain = json_object_get(c, "plain"), *wrapped = json_object_get(c, "wrapped");
			const byte_range whole = {0, json_string_length(text)};
			assert_ids(t, text, trusted, &(encode_options){.trusted = &whole, .n_trusted = 1}, families[f]);
			assert_ids(t, text, plain ? plain : trusted, NULL, families[f]);
			if (wrapped)
				assert_ids(
				    t, text, wrapped,
				    &(encode_options){.trusted = &whole, .n_trusted = 1, .begin = true, .end = true},
				    families[f]);
			assert_ids(t, text, trusted,
			           &(encode_options){.trusted = &whole, .n_trusted = 1, .spans = true}, families[f]);
			assert_decoded(t, text, json_object_get(c, "decoded"),
			               &(encode_options){.trusted = &whole, .n_trusted = 1}, families[f]);
		}
		json_decref(cases);
		tokenizer_free(t);
	}
}

static void write_json(const char *folder, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	assert_int_equal(file_write(path, &(file_part){text, strlen(text)}, 1, NULL), STATUS_OK);
}

static int32_t find_name(const tokenizer *t, const char *name)
{
	for (int32_t id = 0; id < tokenizer_size(t); id++) {
		char own[TOKEN_MAX_BYTES];
		const size_t n = tokenizer_token_name(t, id, own, sizeof own);
		if (n == strlen(name) && memcmp(own, name, n) == 0)
			return id;
	}
	fail_msg("there is no token %s", name);
	return TOKEN_NONE;
}

static size_t count_id(const token_list *list, int32_t id)
{
	size_t n = 0;
	for (size_t i = 0; i < list->count; i++)
		n += list->ids[i] == id;
	return n;
}

static void text_makes_special_tokens_only_within_ranges_that_are_trusted(void **state)
{
	(void)state;
	static const char text[] = "<|im_end|> <|im_end|><|im_end|>";
	/* True if the text is trusted, and how many of the three names become tokens. */
	static const struct {
		byte_range ranges[3];
		size_t n, found;
	} cases[] = {{{{0, 0}}, 0, 0},          {{{0, 31}}, 1, 3},           {{{0, 10}}, 1, 1}, {{{1, 30}}, 1, 2},
	             {{{0, 5}, {5, 26}}, 2, 2}, {{{11, 10}, {21, 9}}, 2, 1}, {{{0, 9}}, 1, 0}};
	tokenizer *t = open_family("qwen2");
	const int32_t end = find_name(t, "<|im_end|>");
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int spans = 0; spans < 2; spans++) {
			token_list list;
			size_t bytes;
			assert_int_equal(
			    tokenizer_encode(
			        t, text, strlen(text),
			        &(encode_options){.trusted = cases[i].ranges, .n_trusted = cases[i].n, .spans = spans},
			        &list, NULL),
			    STATUS_OK);
			assert_int_equal(count_id(&list, end), cases[i].found);
			char *decoded = decode(t, &list, &bytes);
			assert_int_equal(bytes, strlen(text) - 10 * cases[i].found);
			free(decoded);
			token_list_fini(&list);
		}
	tokenizer_free(t);
}

static bool is_in_trie(const tokenizer *t, int32_t id, bool marks)
{
	token_trie *trie;
	bool found = false;
	assert_int_equal(token_trie_new(&trie, t, tokenizer_size(t), marks), STATUS_OK);
	for (int32_t i = 0; i < trie->nodes[trie->n_nodes].tokens; i++)
		found = found || trie->tokens[i] == id;
	token_trie_free(trie);
	return found;
}

static void the_marks_of_calls_are_text_in_an_answer_but_not_in_a_message(void **state)
{
	(void)state;
	static const char mark[] = "[TOOL_CALLS]";
	const size_t bytes = sizeof mark - 1;
	char folder[FOLDER_BYTES], out[32];
	tokenizer *t;
	token_list list;
	size_t n;
	folder_new(folder);
	json_t *json = load("qwen2", "tokenizer.json"), *added = json_object_get(json, "added_tokens");
	const json_int_t id = json_integer_value(json_object_get(json_array_get(added, 3), "id")),
	                 other = json_integer_value(json_object_get(json_array_get(added, 4), "id"));
	for (size_t i = 3; i < 5; i++) {
		json_object_set_new(json_array_get(added, i), "content", json_string(i == 3 ? mark : "[OTHER]"));
		json_object_set_new(json_array_get(added, i), "special", json_true());
	}
	char *text = json_dumps(json, 0);
	write_json(folder, "tokenizer.json", text);
	assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
	assert_int_equal(tokenizer_token_bytes(t, (int32_t)id, out, sizeof out), bytes);
	assert_memory_equal(out, mark, bytes);
	assert_int_equal(tokenizer_token_bytes(t, (int32_t)other, out, sizeof out), 0);
	assert_true(is_in_trie(t, (int32_t)id, true));
	assert_false(is_in_trie(t, (int32_t)id, false)); /* a JSON string must not have it */
	assert_int_equal(tokenizer_encode(t, mark, bytes, NULL, &list, NULL), STATUS_OK);
	assert_int_equal(count_id(&list, (int32_t)id), 0);
	token_list_fini(&list);
	const byte_range whole = {0, bytes};
	assert_int_equal(
	    tokenizer_encode(t, mark, bytes, &(encode_options){.trusted = &whole, .n_trusted = 1}, &list, NULL),
	    STATUS_OK);
	assert_true(list.count == 1 && list.ids[0] == id);
	char *decoded = decode(t, &list, &n);
	assert_int_equal(n, bytes);
	assert_memory_equal(decoded, mark, bytes);
	free(decoded);
	token_list_fini(&list);
	tokenizer_free(t);
	free(text);
	json_decref(json);
	file_remove_tree(folder, NULL);
}

/* Some files have special tokens that are also the result of merges. */
static void a_special_token_is_never_made_by_merging(void **state)
{
	(void)state;
	static const char *const forms[] = {"gpt2",
	                                    "llama3"}; /* in gpt2 by merges; in llama3 as a word that is a token */
	static const char word[] = "ession";
	const size_t bytes = sizeof word - 1;
	for (int f = 0; f < 2; f++) {
		char folder[FOLDER_BYTES];
		tokenizer *t;
		token_list list;
		folder_new(folder);
		json_t *json = load(forms[f], "tokenizer.json");
		const json_t *vocabulary = json_object_get(json_object_get(json, "model"), "vocab");
		const json_int_t id = json_integer_value(json_object_get(vocabulary, word));
		assert_true(id > 0);
		json_array_append_new(
		    json_object_get(json, "added_tokens"),
		    json_pack("{s:I, s:s, s:b, s:b}", "id", id, "content", word, "special", 1, "normalized", 0));
		char *text = json_dumps(json, 0);
		write_json(folder, "tokenizer.json", text);
		assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
		const byte_range whole = {0, bytes};
		assert_int_equal(tokenizer_encode(t, word, bytes, NULL, &list, NULL), STATUS_OK);
		assert_true(list.count > 1);
		assert_int_equal(count_id(&list, (int32_t)id), 0);
		token_list_fini(&list);
		assert_int_equal(
		    tokenizer_encode(t, word, bytes, &(encode_options){.trusted = &whole, .n_trusted = 1}, &list, NULL),
		    STATUS_OK);
		assert_true(list.count == 1 && list.ids[0] == id);
		token_list_fini(&list);
		tokenizer_free(t);
		free(text);
		json_decref(json);
		assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	}
}

static void tokens_may_cross_the_border_of_a_trusted_range(void **state)
{
	(void)state;
	static const char text[] = "the state of a session";
	tokenizer *t = open_family("llama3");
	token_list whole, cut;
	assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, &whole, NULL), STATUS_OK);
	for (size_t at = 0; at < strlen(text); at++) {
		const byte_range range = {at, strlen(text) - at};
		assert_int_equal(tokenizer_encode(t, text, strlen(text),
		                                  &(encode_options){.trusted = &range, .n_trusted = 1}, &cut, NULL),
		                 STATUS_OK);
		assert_int_equal(cut.count, whole.count);
		assert_memory_equal(cut.ids, whole.ids, whole.count * sizeof *whole.ids);
		token_list_fini(&cut);
	}
	token_list_fini(&whole);
	tokenizer_free(t);
}

/* In byte-level tokenizers that do not change the text, the spans of the tokens cover it without gaps. */
static void the_spans_of_tokens_are_the_bytes_that_they_come_from(void **state)
{
	(void)state;
	static const char *const changing_nothing[] = {"gpt2", "llama3", "o200k", "digits"};
	for (size_t f = 0; f < 4; f++) {
		tokenizer *t = open_family(changing_nothing[f]);
		json_t *cases = load(changing_nothing[f], "cases.json"), *c;
		size_t i;
		json_array_foreach(cases, i, c)
		{
			const char *text = json_string_value(json_object_get(c, "text"));
			const size_t bytes = json_string_length(json_object_get(c, "text"));
			token_list list;
			size_t at = 0;
			assert_int_equal(
			    tokenizer_encode(t, text, bytes, &(encode_options){.spans = true}, &list, NULL), STATUS_OK);
			for (size_t k = 0; k < list.count; k++) {
				char own[TOKEN_MAX_BYTES];
				assert_int_equal(list.spans[k].first, at);
				assert_int_equal(tokenizer_token_bytes(t, list.ids[k], own, sizeof own),
				                 list.spans[k].bytes);
				assert_memory_equal(own, text + at, list.spans[k].bytes);
				at += list.spans[k].bytes;
			}
			assert_int_equal(at, bytes);
			token_list_fini(&list);
		}
		json_decref(cases);
		tokenizer_free(t);
	}
}

static void assert_span(const char *family, const char *text, size_t token, size_t first, size_t bytes)
{
	tokenizer *t = open_family(family);
	token_list list;
	assert_int_equal(tokenizer_encode(t, text, strlen(text), &(encode_options){.spans = true}, &list, NULL),
	                 STATUS_OK);
	assert_true(token < list.count);
	if (list.spans[token].first != first || list.spans[token].bytes != bytes)
		fail_msg("%s: token %zu of \"%s\" is %zu bytes at %zu", family, token, text, list.spans[token].bytes,
		         list.spans[token].first);
	token_list_fini(&list);
	tokenizer_free(t);
}

static void spans_refer_to_the_given_text_before_normalization(void **state)
{
	(void)state;
	assert_span("llama2", "\xF0\x9F\x99\x82", 0, 0, 0);   /* the space that the tokenizer inserts before the text */
	assert_span("llama2", "\xF0\x9F\x99\x82", 1, 0, 1);   /* one byte of a character that has no token */
	assert_span("nfkc", "\xEF\xAC\x81", 0, 0, 3);         /* a ligature that becomes "fi" */
	assert_span("qwen2", "x\xCC\x96 e\xCC\x81", 0, 0, 1); /* a combining mark that composes with nothing */
	assert_span("neox", "e\xCC\x81", 0, 0, 3);            /* a combining mark that composes */
	assert_span("gemma", "a\xF0\x9F\x99\x82", 1, 1, 1);
}

static void bytes_that_are_not_utf8_are_read_as_replacement_characters(void **state)
{
	(void)state;
	static const char broken[] = "a\xC3 b\xFF\xE2\x82z";
	static const char whole[] = "a\xEF\xBF\xBD b\xEF\xBF\xBD\xEF\xBF\xBDz";
	for (int f = 0; f < FAMILIES; f++) {
		tokenizer *t = open_family(families[f]);
		token_list a, b;
		assert_int_equal(tokenizer_encode(t, broken, strlen(broken), NULL, &a, NULL), STATUS_OK);
		assert_int_equal(tokenizer_encode(t, whole, strlen(whole), NULL, &b, NULL), STATUS_OK);
		assert_int_equal(a.count, b.count);
		assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
		token_list_fini(&a);
		token_list_fini(&b);
		tokenizer_free(t);
	}
}

static void a_trusted_range_after_invalid_bytes_keeps_its_place(void **state)
{
	(void)state;
	static const char text[] = "\xFF\xFF\xFF\xFF<|endoftext|><|endoftext|>";
	enum { BROKEN = 4, NAME = 13 };
	tokenizer *t = open_family("gpt2");
	const int32_t end = find_name(t, "<|endoftext|>");
	for (int which = 0; which < 2; which++)
		for (int spans = 0; spans < 2; spans++) {
			const byte_range range = {BROKEN + (size_t)which * NAME, NAME};
			token_list list;
			assert_int_equal(
			    tokenizer_encode(t, text, sizeof text - 1,
			                     &(encode_options){.trusted = &range, .n_trusted = 1, .spans = spans},
			                     &list, NULL),
			    STATUS_OK);
			assert_int_equal(count_id(&list, end), 1);
			assert_true((list.ids[list.count - 1] == end) == (which == 1));
			token_list_fini(&list);
		}
	tokenizer_free(t);
}

/* Append a random code point, more often a low one. */
static size_t put_random(char *out, uint64_t i)
{
	static const uint32_t ceilings[] = {0x80, 0x800, 0xD800, 0x110000};
	const philox_block r = philox(5, 0, 0, i);
	const uint32_t c = r.word[0] % ceilings[r.word[1] % 4];
	return pieces_write(c >= 0xD800 && c < 0xE000 ? ' ' : c, out);
}

static char *random_text(size_t characters, size_t *bytes)
{
	char *text = malloc(4 * characters);
	*bytes = 0;
	for (size_t i = 0; i < characters; i++)
		*bytes += put_random(text + *bytes, i);
	return text;
}

/* A repeated group keeps a backtracking point for each repetition. */
static void a_pattern_may_match_a_text_far_longer_than_its_stack(void **state)
{
	(void)state;
	static const char *const patterns[] = {"(?:ab|cd)+", "(?:a|b|(?:c|d))+(?=x)"};
	enum { PAIRS = 20000 };
	char *text = malloc(2 * PAIRS + 1);
	for (int i = 0; i < PAIRS; i++)
		memcpy(text + 2 * i, i % 2 ? "ab" : "cd", 2);
	text[2 * PAIRS] = 'x';
	for (int i = 0; i < 2; i++) {
		char folder[FOLDER_BYTES];
		tokenizer *t;
		token_list list;
		error err = ERROR_INIT;
		folder_new(folder);
		json_t *json = load("o200k", "tokenizer.json");
		json_t *split =
		    json_array_get(json_object_get(json_object_get(json, "pre_tokenizer"), "pretokenizers"), 0);
		json_object_set_new(json_object_get(split, "pattern"), "Regex", json_string(patterns[i]));
		char *dump = json_dumps(json, 0);
		write_json(folder, "tokenizer.json", dump);
		assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
		if (tokenizer_encode(t, text, 2 * PAIRS + 1, NULL, &list, &err) != STATUS_OK)
			fail_msg("%s", error_message(&err));
		assert_true(list.count > 1000);
		token_list_fini(&list);
		tokenizer_free(t);
		free(dump);
		json_decref(json);
		assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
	}
	free(text);
}

static void any_text_is_unchanged_by_a_tokenizer_of_bytes(void **state)
{
	(void)state;
	static const char *const lossless[] = {"gpt2", "llama3", "o200k", "digits", "llama2", "gemma"};
	size_t bytes, back;
	char *text = random_text(20000, &bytes);
	for (size_t f = 0; f < sizeof lossless / sizeof *lossless; f++) {
		tokenizer *t = open_family(lossless[f]);
		token_list list;
		assert_int_equal(tokenizer_encode(t, text, bytes, NULL, &list, NULL), STATUS_OK);
		char *decoded = decode(t, &list, &back);
		assert_int_equal(back, bytes);
		assert_memory_equal(decoded, text, bytes);
		free(decoded);
		token_list_fini(&list);
		tokenizer_free(t);
	}
	free(text);
}

/* --- threads ----------------------------------------------------------------------------------- */

typedef struct reader {
	const tokenizer *t;
	const char *text;
	size_t bytes;
	token_list list;
} reader;

static void *read_on_a_thread(void *context)
{
	reader *r = context;
	if (tokenizer_encode(r->t, r->text, r->bytes, NULL, &r->list, NULL) != STATUS_OK)
		r->list = (token_list){0};
	return NULL;
}

static void threads_that_share_a_tokenizer_get_the_same_ids(void **state)
{
	(void)state;
	enum { THREADS = 4 };
	pthread_t threads[THREADS];
	reader readers[THREADS];
	size_t bytes;
	char *text = random_text(5000, &bytes);
	tokenizer *t = open_family("gpt2");
	for (int i = 0; i < THREADS; i++) {
		readers[i] = (reader){t, text, bytes, {0}};
		assert_int_equal(pthread_create(&threads[i], NULL, read_on_a_thread, &readers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++) {
		assert_true(readers[i].list.count > 0);
		assert_int_equal(readers[i].list.count, readers[0].list.count);
		assert_memory_equal(readers[i].list.ids, readers[0].list.ids, readers[0].list.count * sizeof(int32_t));
	}
	for (int i = 0; i < THREADS; i++)
		token_list_fini(&readers[i].list);
	tokenizer_free(t);
	free(text);
}

/* --- roles ----------------------------------------------------------------------------------------- */

static void copy_tokenizer(const char *family, const char *folder)
{
	json_t *json = load(family, "tokenizer.json");
	char *text = json_dumps(json, 0);
	write_json(folder, "tokenizer.json", text);
	free(text);
	json_decref(json);
}

static void the_mask_is_the_named_token_or_a_special_token_with_a_known_name(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	tokenizer *t;
	folder_new(folder);
	copy_tokenizer("roberta", folder);
	assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
	assert_int_equal(tokenizer_mask(t), find_name(t, "<mask>"));
	tokenizer_free(t);
	write_json(folder, "tokenizer_config.json", "{\"mask_token\": {\"content\": \"<s>\"}}");
	assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
	assert_int_equal(tokenizer_mask(t), find_name(t, "<s>"));
	tokenizer_free(t);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

static void the_other_files_of_a_tokenizer_name_its_roles(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	tokenizer *t;
	folder_new(folder);
	copy_tokenizer("llama3", folder);
	write_json(folder, "tokenizer_config.json",
	           "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\", \"pad_token\": null,"
	           " \"model_max_length\": 1000000000000000019884624838656}");
	assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
	const int32_t end = find_name(t, "</s>"), turn = find_name(t, "<|im_end|>");
	assert_int_equal(tokenizer_begin(t), find_name(t, "<s>"));
	assert_int_equal(tokenizer_end(t), end);
	assert_int_equal(tokenizer_pad(t), TOKEN_NONE);
	assert_int_equal(tokenizer_filler(t), end);
	assert_int_equal(tokenizer_start(t), tokenizer_begin(t));
	assert_int_equal(tokenizer_unknown(t), TOKEN_NONE);
	assert_int_equal(tokenizer_mask(t), TOKEN_NONE);
	for (int32_t id = 0; id < tokenizer_size(t); id++)
		assert_int_equal(tokenizer_ends(t, id), id == end || id == turn);
	tokenizer_free(t);
	write_json(folder, "generation_config.json", "{\"eos_token_id\": [5, 7]}");
	assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
	assert_true(tokenizer_ends(t, 5) && tokenizer_ends(t, 7) && tokenizer_ends(t, end) && !tokenizer_ends(t, 6));
	tokenizer_free(t);
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

/* --- refusals --------------------------------------------------------------------------------------- */

/* A member of a tokenizer.json that is set to a value, and the name in the message. */
static const struct {
	const char *part, *member, *value, *names, *family; /* NULL: gpt2 */
} asked[] = {
    {NULL, "future", "1", "future", NULL},
    {NULL, "normalizer", "{\"type\": \"Runes\"}", "Runes", NULL},
    {NULL, "normalizer", "{\"type\": \"NFC\", \"twice\": true}", "twice", NULL},
    {NULL, "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Runes\"}]}",
     "normalizers[1]", NULL},
    {NULL, "pre_tokenizer", "{\"type\": \"UnicodeScripts\"}", "UnicodeScripts", NULL},
    {NULL, "pre_tokenizer",
     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": \"Digits\"}]}",
     "pretokenizers[1]", NULL},
    {NULL, "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a{1,2}+\"}, \"behavior\": \"Isolated\"}",
     "{…}+", NULL},
    {NULL, "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, \"behavior\": \"Isolated\"}",
     "intersection", NULL},
    {NULL, "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a(\"}, \"behavior\": \"Isolated\"}",
     "pattern", NULL},
    {NULL, "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Sideways\"}",
     "Sideways", NULL},
    {NULL, "pre_tokenizer", "{\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}", "last", NULL},
    {NULL, "post_processor", "{\"type\": \"Stapler\"}", "Stapler", NULL},
    {NULL, "decoder", "{\"type\": \"CTC\"}", "CTC", NULL},
    {NULL, "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", "
     "\"start\": 2, \"stop\": 0}]}",
     "first character", NULL},
    {NULL, "added_tokens", "[{\"id\": 3, \"content\": \"<x>\", \"special\": true}]", "another token", NULL},
    {NULL, "added_tokens", "[{\"id\": 9000, \"content\": \"<x>\", \"glow\": true}]", "glow", NULL},
    {"model", "type", "\"WordSoup\"", "WordSoup", NULL},
    {"model", "type", "\"WordLevel\"", "dropout", NULL},
    {"model", "type", "\"WordPiece\"", "dropout", NULL},
    {"model", "unk_token", "\"<nothing>\"", "unk_token", "wordpiece"},
    {"model", "max_input_chars_per_word", "0", "max_input_chars_per_word", "wordpiece"},
    {"model", "vocab", "[]", "vocab", "wordpiece"},
    {NULL, "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": "
     "\"^abc\"}, \"content\": \"A\"}]}",
     "behind a mark", NULL},
    {NULL, "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": "
     "\"^a\"}, \"content\": \"A\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \"~b\"}, \"content\": \"B\"}]}",
     "the same for all", NULL},
    {NULL, "decoder",
     "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": "
     "\"^a\"}, \"content\": \"A\"}, {\"type\": \"ByteLevel\"}]}",
     "stands behind", NULL},
    {"model", "dropout", "0.1", "dropout", NULL},
    {"model", "end_of_word_suffix", "\"123456789012345678901234567890123\"", "end_of_word_suffix", NULL},
    {"model", "continuing_subword_prefix", "\"##\"", "byte_fallback beside continuing_subword_prefix", "llama2"},
    {NULL, "decoder", "{\"type\": \"BPEDecoder\", \"suffix\": \"\"}", "suffix", NULL},
    {"model", "unk_token", "\"<nothing>\"", "unk_token", NULL},
    {"model", "merges", "[[\"a\", \"nothing\"]]", "merges", NULL},
    {"model", "merges", "[\"a b c\"]", "merges", NULL},
    {"model", "depth", "3", "depth", NULL},
    {"model", "vocab", "{}", "vocab", "t5"},
    {"model", "vocab", "[[\"a\", 0], [\"b\"], [\"c\", 0]]", "[1]", "t5"},
    {"model", "vocab", "[[\"a\", 0], [7, 0], [\"c\", 0]]", "[1]", "t5"},
    {"model", "vocab", "[[\"a\", 0], [\"b\", 0], [\"a\", 0]]", "twice", "t5"},
    {"model", "unk_id", "700000", "unk_id", "t5"},
    {"model", "byte_fallback", "true", "<0x00>", "t5"},
    {"model", "dropout", "0.1", "dropout", "t5"},
    {NULL, "pre_tokenizer", "{\"type\": \"ByteLevel\"}", "ByteLevel", "t5"},
    {NULL, "normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"#\"}", "base64", "t5"},
    {NULL, "normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAAAAAA\"}", "damaged", "t5"},
};

static void unsupported_parts_of_a_file_are_refused_by_name(void **state)
{
	(void)state;
	char folder[FOLDER_BYTES];
	folder_new(folder);
	for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
		json_t *json = load(asked[i].family ? asked[i].family : "gpt2", "tokenizer.json");
		json_t *part = asked[i].part ? json_object_get(json, asked[i].part) : json;
		json_t *value = json_loads(asked[i].value, JSON_DECODE_ANY, NULL);
		assert_non_null(value);
		assert_int_equal(json_object_set_new(part, asked[i].member, value), 0);
		char *text = json_dumps(json, 0);
		write_json(folder, "tokenizer.json", text);
		tokenizer *t;
		error err = ERROR_INIT;
		const status s = tokenizer_open(&t, folder, 1 << 20, &err);
		if ((s != STATUS_UNSUPPORTED && s != STATUS_INVALID) || t || !strstr(err.message, asked[i].names))
			fail_msg("%s %s: %s", asked[i].member, asked[i].value, error_message(&err));
		free(text);
		json_decref(json);
	}
	assert_int_equal(file_remove_tree(folder, NULL), STATUS_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_form_of_tokenizer_gives_the_ids_and_texts_of_the_library),
	    cmocka_unit_test(text_makes_special_tokens_only_within_ranges_that_are_trusted),
	    cmocka_unit_test(the_marks_of_calls_are_text_in_an_answer_but_not_in_a_message),
	    cmocka_unit_test(a_special_token_is_never_made_by_merging),
	    cmocka_unit_test(tokens_may_cross_the_border_of_a_trusted_range),
	    cmocka_unit_test(the_spans_of_tokens_are_the_bytes_that_they_come_from),
	    cmocka_unit_test(spans_refer_to_the_given_text_before_normalization),
	    cmocka_unit_test(bytes_that_are_not_utf8_are_read_as_replacement_characters),
	    cmocka_unit_test(a_trusted_range_after_invalid_bytes_keeps_its_place),
	    cmocka_unit_test(a_pattern_may_match_a_text_far_longer_than_its_stack),
	    cmocka_unit_test(any_text_is_unchanged_by_a_tokenizer_of_bytes),
	    cmocka_unit_test(threads_that_share_a_tokenizer_get_the_same_ids),
	    cmocka_unit_test(the_mask_is_the_named_token_or_a_special_token_with_a_known_name),
	    cmocka_unit_test(the_other_files_of_a_tokenizer_name_its_roles),
	    cmocka_unit_test(unsupported_parts_of_a_file_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
