/* A long word that BPE encodes part by part has the tokens of the word as a whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/text/huggingface/word_model.h"

/* The next random number below n. */
static uint32_t below(uint64_t *draws, uint32_t n)
{
	return philox(1, 0, 0, (*draws)++).word[0] % n;
}

typedef struct opened {
	word_model model;
	vocabulary names;
	bool *special;
} opened;

static void open_model(opened *o, const json_t *json, bool byte_level)
{
	const json_t *ids = json_object_get(json, "vocab");
	const int32_t size = (int32_t)json_object_size(ids);
	const char *name;
	json_t *id;
	error err = ERROR_INIT;
	*o = (opened){.special = calloc((size_t)size, sizeof *o->special)};
	assert_int_equal(vocabulary_init(&o->names, size, 1 << 24), STATUS_OK);
	json_object_foreach((json_t *)(uintptr_t)ids, name, id)
	    vocabulary_add(&o->names, name, strlen(name), (int32_t)json_integer_value(id), true);
	assert_int_equal(word_model_check(&o->model, json, &err), STATUS_OK);
	if (o->model.kind->read(&o->model, json, &o->names, o->special, byte_level, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
}

static void close_model(opened *o)
{
	word_model_fini(&o->model);
	vocabulary_fini(&o->names);
	free(o->special);
}

/* Encode a word and compare it with the word as a whole. Returns the number of parts. */
static int compare_parts(opened *o, const char *word, size_t bytes, size_t window)
{
	word_room whole = {.bytes = bytes}, part = {0};
	const size_t usual = o->model.bpe.window;
	int parts = 0;
	o->model.bpe.window = SIZE_MAX / 4;
	assert_int_equal(bpe_kind.encode(&o->model, word, bytes, &whole), STATUS_OK);
	assert_int_equal(whole.bytes, bytes);
	o->model.bpe.window = window ? window : usual;
	size_t k = 0;
	for (size_t at = 0; at < bytes; at += part.bytes, parts++) {
		part.bytes = bytes - at;
		assert_int_equal(bpe_kind.encode(&o->model, word + at, bytes - at, &part), STATUS_OK);
		assert_true(part.bytes > 0 && k + part.count <= whole.count);
		assert_memory_equal(part.ids, whole.ids + k, part.count * sizeof *part.ids);
		assert_memory_equal(part.lengths, whole.lengths + k, part.count * sizeof *part.lengths);
		k += part.count;
	}
	assert_int_equal(k, whole.count);
	o->model.bpe.window = usual;
	word_room_fini(&whole);
	word_room_fini(&part);
	return parts;
}

/* --- made vocabularies ---------------------------------------------------------------------------------- */

enum { NAME_BYTES = 12, RANDOM_MERGES = 24, WORD_BYTES = 6000 };

/* Random merges of the characters a, b and c, of which some make the same token. "?" is unknown. */
static json_t *random_model(uint64_t *random)
{
	json_t *ids = json_pack("{s:i, s:i, s:i, s:i}", "?", 0, "a", 1, "b", 2, "c", 3), *list = json_array();
	char names[RANDOM_MERGES + 3][NAME_BYTES + 1] = {"a", "b", "c"};
	int n = 3;
	for (int i = 0; i < 8 * RANDOM_MERGES && n < RANDOM_MERGES + 3; i++) {
		const char *left = names[below(random, (uint32_t)n)];
		const char *right = names[below(random, (uint32_t)n)];
		char joined[2 * NAME_BYTES + 1], pair[2 * NAME_BYTES + 2];
		snprintf(joined, sizeof joined, "%s%s", left, right);
		snprintf(pair, sizeof pair, "%s %s", left, right);
		if (strlen(joined) > NAME_BYTES)
			continue;
		json_array_append_new(list, json_string(pair));
		if (json_object_get(ids, joined))
			continue;
		json_object_set_new(ids, joined, json_integer((json_int_t)json_object_size(ids)));
		strcpy(names[n++], joined);
	}
	return json_pack("{s:s, s:s, s:o, s:o}", "type", "BPE", "unk_token", "?", "vocab", ids, "merges", list);
}

/* A word of random characters, of one with few others, or of a period. */
static void random_word(uint64_t *random, char *word)
{
	const uint32_t kind = below(random, 3), period = 1 + below(random, 9);
	for (size_t i = 0; i < WORD_BYTES; i++) {
		const uint32_t c = below(random, 40);
		word[i] = kind == 0 ? "abc"[c % 3] : kind == 1 ? "abcd"[c < 3 ? c + 1 : 0] : "abc"[c % 3];
		if (kind == 2 && i >= period)
			word[i] = word[i - period];
	}
}

static void a_word_in_parts_has_the_tokens_of_the_whole_whatever_the_merges(void **state)
{
	(void)state;
	uint64_t random = 7;
	int divided = 0;
	for (int i = 0; i < 200; i++) {
		opened o;
		char word[WORD_BYTES];
		json_t *json = random_model(&random);
		open_model(&o, json, false);
		assert_true(o.model.bpe.parts && o.model.bpe.longest <= NAME_BYTES);
		for (int k = 0; k < 6; k++) {
			random_word(&random, word);
			divided += compare_parts(&o, word, sizeof word, 3 * NAME_BYTES + below(&random, 300)) > 8;
		}
		close_model(&o);
		json_decref(json);
	}
	assert_true(divided > 800);
}

/* Pairs of neighbours in an alphabet, the last ones first: which pairs merge depends on where a text ends, as far back
 * as the beginning of the alphabet. */
static void an_end_that_changes_tokens_far_before_it_is_no_end_of_a_part(void **state)
{
	enum { LETTERS = 90, PERIODS = 40 };
	(void)state;
	json_t *ids = json_pack("{s:i}", "\x7f", 0), *list = json_array();
	for (int i = 0; i < LETTERS; i++) {
		const char name[3] = {(char)('!' + i), (char)('!' + i + 1)}, letter[2] = {name[0]};
		const char pair[4] = {name[0], ' ', name[1]};
		json_object_set_new(ids, letter, json_integer(2 * i + 1));
		if (i + 1 < LETTERS) {
			json_object_set_new(ids, name, json_integer(2 * i + 2));
			json_array_insert_new(list, 0, json_string(pair));
		}
	}
	json_t *json =
	    json_pack("{s:s, s:s, s:o, s:o}", "type", "BPE", "unk_token", "\x7f", "vocab", ids, "merges", list);
	char word[PERIODS * LETTERS];
	for (int i = 0; i < PERIODS * LETTERS; i++)
		word[i] = (char)('!' + i % LETTERS);
	opened o;
	open_model(&o, json, false);
	int divided = 0;
	for (size_t window = 100; window < 100 + 2 * LETTERS; window++)
		divided += compare_parts(&o, word, sizeof word, window) > 3;
	assert_true(divided > LETTERS);
	close_model(&o);
	json_decref(json);
}

/* --- published forms ---------------------------------------------------------------------------------- */

enum { LONG_BYTES = 60000 };

/* Words without spaces: lines of the cases, a character, a period, random letters, characters of several bytes. */
static size_t published_word(int kind, char *word)
{
	static const char *const periods[] = {"a", "abcde", "é漢", "=-"};
	uint64_t random = (uint64_t)kind << 32;
	size_t n = 0;
	while (n + 8 < LONG_BYTES) {
		if (kind < 4)
			n += (size_t)sprintf(word + n, "%s", periods[kind]);
		else if (kind == 4)
			word[n++] = (char)('a' + below(&random, 26));
		else
			n += (size_t)sprintf(word + n, "%s",
			                     (const char *[]){"the", "é", "state", "漢", "\xF0\x9F\x98\x80", "ing", "x",
			                                      "er"}[below(&random, 8)]);
	}
	return n;
}

static void published_forms_divide_long_words(void **state)
{
	static const struct {
		const char *folder;
		bool byte_level;
	} forms[] = {{"gpt2", true}, {"qwen2", true}, {"llama2", false}, {"gemma", false}};
	(void)state;
	char *word = malloc(LONG_BYTES);
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		char path[96];
		opened o;
		snprintf(path, sizeof path, "tests/data/tokenizers/%s/tokenizer.json", forms[i].folder);
		json_t *json = json_load_file(path, 0, NULL), *model = json_object_get(json, "model");
		open_model(&o, model, forms[i].byte_level);
		assert_true(o.model.bpe.parts);
		for (int kind = 0; kind < 6; kind++) {
			const size_t bytes = published_word(kind, word), window = 40 * o.model.bpe.longest;
			assert_true(compare_parts(&o, word, bytes, window) > 4);
		}
		close_model(&o);
		json_decref(json);
	}
	free(word);
}

static void the_memory_for_a_word_does_not_grow_with_it(void **state)
{
	enum { BYTES = 8 << 20 };
	(void)state;
	opened o;
	json_t *json = json_pack("{s:s, s:s, s:{s:i, s:i, s:i, s:i}, s:[s, s]}", "type", "BPE", "unk_token", "?",
	                         "vocab", "?", 0, "a", 1, "aa", 2, "aaa", 3, "merges", "a a", "aa a");
	char *word = malloc(BYTES);
	memset(word, 'a', BYTES);
	open_model(&o, json, false);
	word_room r = {0};
	for (size_t at = 0; at < BYTES; at += r.bytes) {
		r.bytes = BYTES - at;
		assert_int_equal(bpe_kind.encode(&o.model, word + at, BYTES - at, &r), STATUS_OK);
	}
	assert_true(r.capacity < BYTES / 16);
	word_room_fini(&r);
	close_model(&o);
	json_decref(json);
	free(word);
}

static void words_whose_characters_depend_on_each_other_are_never_divided(void **state)
{
	static const char *const members[] = {"\"fuse_unk\": true, \"unk_token\": \"?\"", "\"x\": 0",
	                                      "\"end_of_word_suffix\": \"b\", \"unk_token\": \"?\"",
	                                      "\"continuing_subword_prefix\": \"b\", \"unk_token\": \"?\"",
	                                      "\"unk_token\": \"a\""};
	char word[4096];
	(void)state;
	memset(word, 'a', sizeof word);
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		char text[300];
		opened o;
		snprintf(
		    text, sizeof text,
		    "{\"type\": \"BPE\", \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"aab\": 4, \"ba\": 5}, "
		    "\"merges\": [\"a b\"], %s}",
		    i == 1 ? "\"unk_token\": null" : members[i]);
		json_t *json = json_loads(text, 0, NULL);
		assert_non_null(json);
		open_model(&o, json, false);
		assert_false(o.model.bpe.parts);
		assert_int_equal(compare_parts(&o, word, sizeof word, 64), 1);
		close_model(&o);
		json_decref(json);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_word_in_parts_has_the_tokens_of_the_whole_whatever_the_merges),
	    cmocka_unit_test(an_end_that_changes_tokens_far_before_it_is_no_end_of_a_part),
	    cmocka_unit_test(published_forms_divide_long_words),
	    cmocka_unit_test(the_memory_for_a_word_does_not_grow_with_it),
	    cmocka_unit_test(words_whose_characters_depend_on_each_other_are_never_divided),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
