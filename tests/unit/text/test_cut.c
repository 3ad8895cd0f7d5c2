/* A text that is encoded in pieces (tokenizer_safe_cut) has the tokens of the undivided text. Random texts of many
 * scripts, with few and many spaces, are tried with all the tokenizers of tests/data/tokenizers. The tests also show
 * that slightly wrong rules are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/philox.h"
#include "engine/text/corpus_tokens.h"

#define FOLDER "tests/data/tokenizers/"

typedef struct form {
	const char *name;
	bool cuts;
} form;
static const form forms[] = {{"gpt2", true},    {"llama3", true},   {"qwen2", true},          {"o200k", true},
                             {"neox", true},    {"roberta", true},  {"digits", true},         {"llama2", true},
                             {"mistral", true}, {"gemma", true},    {"nfkc", false},          {"nfd", true},
                             {"trained", true}, {"t5", false},      {"unigram_bytes", false}, {"bpe", true},
                             {"char", true},    {"unigram", false}, {"suffix", false},        {"word", false}};
enum { FORMS = sizeof forms / sizeof *forms };

static tokenizer *open_form(const char *name)
{
	char folder[128];
	tokenizer *t;
	error err = ERROR_INIT;
	snprintf(folder, sizeof folder, FOLDER "%s", name);
	if (tokenizer_open(&t, folder, 1 << 20, &err) != STATUS_OK)
		fail_msg("%s: %s", name, error_message(&err));
	return t;
}

/* --- texts ---------------------------------------------------------------------------------------- */

/* Letters, combining marks, characters that normalization turns into spaces or marks, names of tokens, invalid
 * bytes. */
static const char *const parts[] = {"the",
                                    "model",
                                    "a",
                                    "I'll",
                                    "don't",
                                    "'s",
                                    "THE",
                                    "\xD1\x81\xD0\xBB\xD0\xBE\xD0\xB2\xD0\xBE", /* Cyrillic */
                                    "\xE6\xBC\xA2\xE5\xAD\x97",                 /* Han */
                                    "\xE1\x84\x80\xE1\x85\xA1", /* a syllable of Hangul, decomposed into two letters */
                                    "\xE1\x85\xA1",             /* a vowel of Hangul */
                                    "e\xCC\x81",
                                    "\xCC\x81",
                                    "\xC3\xA9",
                                    "\xE0\xA5\x98",     /* a letter whose normal form ends with a mark */
                                    "\xEF\xB1\x9E",     /* a letter whose compatibility form begins with a space */
                                    "\xEF\xAC\x81",     /* a ligature */
                                    "\xC4\xB0",         /* a letter whose lower case ends with a mark */
                                    "\xF0\x91\xBC\x82", /* a letter of Unicode 15 */
                                    "\xC2\xAA",
                                    "\xC2\xA0",
                                    "\xE3\x80\x80",
                                    "\xE2\x80\x8B",
                                    "\xE2\x96\x81",
                                    "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
                                    "1",
                                    "2026",
                                    "...",
                                    "/",
                                    "=",
                                    "\n",
                                    "\r\n",
                                    "\n\n",
                                    "\t",
                                    "  ",
                                    "    ",
                                    "<s>",
                                    "<user>",
                                    "<|im_end|>",
                                    "<tool_call>",
                                    "\xC3",
                                    "\xE2\x96",
                                    "\xFF"};
enum {
	PARTS = sizeof parts / sizeof *parts,
	WORDS = 12 /* WORDS: the parts without spaces and symbols */,
	TEXT_PARTS = 1500
};

/* spaces: one of every `spaces` parts is followed by a space. */
static char *make_text(uint32_t seed, uint32_t spaces, size_t *bytes)
{
	char *text = malloc((size_t)TEXT_PARTS * 16);
	*bytes = 0;
	for (uint64_t i = 0; i < TEXT_PARTS; i++) {
		const philox_block r = philox(seed, 0, 0, i);
		const char *part = parts[r.word[0] % (r.word[1] % 3 ? WORDS : PARTS)];
		memcpy(text + *bytes, part, strlen(part));
		*bytes += strlen(part);
		if (r.word[2] % 8 < spaces)
			text[(*bytes)++] = ' ';
	}
	return text;
}

/* --- pieces ----------------------------------------------------------------------------------------- */

typedef size_t (*cutter)(const tokenizer *t, const char *text, size_t bytes);

/* Encode a text in pieces of about `piece` bytes; true if the tokens are those of `whole`. */
static bool encode_in_pieces(const tokenizer *t, const char *text, size_t bytes, size_t piece, cutter cut,
                             bool continues, const token_list *whole, int *cuts)
{
	size_t done = 0;
	bool same = true;
	for (size_t at = 0, end; at < bytes; at = end) {
		token_list list;
		end = 0;
		for (size_t n = piece; !end; n *= 2)
			end = bytes - at <= n ? bytes - at : cut(t, text + at, n);
		end += at;
		const encode_options o = {.continues = continues && at > 0};
		assert_int_equal(tokenizer_encode(t, text + at, end - at, &o, &list, NULL), STATUS_OK);
		same &= done + list.count <= whole->count &&
		        memcmp(list.ids, whole->ids + done, list.count * sizeof *list.ids) == 0;
		done = same ? done + list.count : done;
		token_list_fini(&list);
		*cuts += end < bytes;
	}
	return same && done == whole->count;
}

enum { TEXTS = 8 };

/* Number of texts and sizes of pieces that give other tokens. */
static int count_differences(const tokenizer *t, cutter cut, bool continues, int *cuts)
{
	static const size_t sizes[] = {12, 40, 300, 2500};
	int differences = 0;
	*cuts = 0;
	for (uint32_t i = 0; i < TEXTS; i++) {
		size_t bytes;
		char *text = make_text(i, i % 2 ? 6 : 1, &bytes);
		token_list whole;
		assert_int_equal(tokenizer_encode(t, text, bytes, NULL, &whole, NULL), STATUS_OK);
		for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
			differences += !encode_in_pieces(t, text, bytes, sizes[k], cut, continues, &whole, cuts);
		token_list_fini(&whole);
		free(text);
	}
	return differences;
}

static void the_tokens_of_pieces_are_those_of_the_undivided_text(void **state)
{
	(void)state;
	for (int f = 0; f < FORMS; f++) {
		int cuts;
		tokenizer *t = open_form(forms[f].name);
		const int differences = count_differences(t, tokenizer_safe_cut, true, &cuts);
		if (differences > 0)
			fail_msg("%s: %d of texts have other tokens in pieces", forms[f].name, differences);
		if (forms[f].cuts != (cuts > 500))
			fail_msg("%s: texts are cut %d times", forms[f].name, cuts);
		tokenizer_free(t);
	}
}

/* --- bounds ----------------------------------------------------------------------------------------- */

static void no_text_has_fewer_tokens_than_the_bound_for_its_bytes(void **state)
{
	static const char *const bounded[] = {"gpt2", "llama3", "digits", "trained"};
	(void)state;
	for (int f = 0; f < FORMS; f++) {
		tokenizer *t = open_form(forms[f].name);
		for (uint32_t i = 0; i < TEXTS; i++) {
			size_t bytes;
			char *text = make_text(i, i % 2 ? 6 : 1, &bytes);
			token_list list;
			assert_int_equal(tokenizer_encode(t, text, bytes, NULL, &list, NULL), STATUS_OK);
			if (tokenizer_least_tokens(t, bytes) > (int64_t)list.count)
				fail_msg("%s: %zu bytes are %zu tokens", forms[f].name, bytes, list.count);
			token_list_fini(&list);
			free(text);
		}
		tokenizer_free(t);
	}
	for (size_t i = 0; i < sizeof bounded / sizeof *bounded; i++) {
		tokenizer *t = open_form(bounded[i]);
		if (tokenizer_least_tokens(t, 1 << 20) == 0)
			fail_msg("%s: no bound", bounded[i]);
		tokenizer_free(t);
	}
}

/* --- threads ---------------------------------------------------------------------------------------- */

/* A text of more than LONG_TEXT_BYTES, with stretches that cannot be cut. */
static char *make_long_text(size_t *bytes)
{
	char *text = NULL;
	*bytes = 0;
	for (uint32_t i = 0; *bytes < 700000; i++) {
		size_t n;
		char *more = make_text(100 + i, i % 8 == 7 ? 0 : 4, &n);
		text = realloc(text, *bytes + n);
		memcpy(text + *bytes, more, n);
		*bytes += n;
		free(more);
	}
	return text;
}

static void a_long_text_has_the_same_tokens_and_spans_on_several_threads(void **state)
{
	(void)state;
	size_t bytes;
	char *text = make_long_text(&bytes);
	for (int f = 0; f < FORMS; f++) {
		tokenizer *t = open_form(forms[f].name);
		token_list one, several;
		encode_options o = {.begin = true, .end = true, .spans = true, .threads = 1};
		assert_int_equal(tokenizer_encode(t, text, bytes, &o, &one, NULL), STATUS_OK);
		o.threads = 3;
		assert_int_equal(tokenizer_encode(t, text, bytes, &o, &several, NULL), STATUS_OK);
		assert_int_equal(one.count, several.count);
		assert_memory_equal(one.ids, several.ids, one.count * sizeof *one.ids);
		for (size_t i = 0; i < one.count; i++)
			if (one.spans[i].first != several.spans[i].first ||
			    one.spans[i].bytes != several.spans[i].bytes)
				fail_msg("%s: token %zu is %zu bytes at %zu, and %zu at %zu", forms[f].name, i,
				         one.spans[i].bytes, one.spans[i].first, several.spans[i].bytes,
				         several.spans[i].first);
		token_list_fini(&one);
		token_list_fini(&several);
		tokenizer_free(t);
	}
	free(text);
}

/* --- corpora ------------------------------------------------------------------------------------------ */

static void a_corpus_of_one_line_has_the_tokens_of_the_line_in_pieces_of_any_size(void **state)
{
	(void)state;
	static const char words[] = "the state of a session,  \xD1\x81\xD0\xBB\xD0\xBE\xD0\xB2\xD0\xBE and 12 models";
	enum { TIMES = 400 };
	char *text = malloc(TIMES * sizeof words);
	for (int i = 0; i < TIMES; i++)
		memcpy(text + (size_t)i * (sizeof words - 1), words, sizeof words);
	const size_t bytes = strlen(text);
	for (int f = 0; f < FORMS; f++)
		for (size_t piece = 50; piece < bytes && forms[f].cuts; piece *= 9) {
			tokenizer *t = open_form(forms[f].name);
			byte_source *source;
			token_cache *c;
			token_list whole;
			const corpus_tokens_options o = {.threads = 3, .piece_bytes = piece};
			assert_int_equal(
			    tokenizer_encode(t, text, bytes, &(encode_options){.begin = true}, &whole, NULL),
			    STATUS_OK);
			assert_int_equal(byte_source_memory(&source, text, bytes, NULL), STATUS_OK);
			assert_int_equal(corpus_tokens_build(&c, source, t, &o, NULL), STATUS_OK);
			int32_t *ids = malloc(whole.count * sizeof *ids);
			if (token_cache_tokens(c) != (int64_t)whole.count)
				fail_msg("%s: %lld tokens, not %zu", forms[f].name, (long long)token_cache_tokens(c),
				         whole.count);
			assert_int_equal(token_cache_read(c, 0, (int64_t)whole.count, ids, NULL, NULL), STATUS_OK);
			assert_memory_equal(ids, whole.ids, whole.count * sizeof *ids);
			free(ids);
			token_cache_free(c);
			token_list_fini(&whole);
			tokenizer_free(t);
		}
	free(text);
}

/* --- rules that are wrong --------------------------------------------------------------------------- */

static size_t cut_before_any_space(const tokenizer *t, const char *text, size_t bytes)
{
	const char *space = memrchr(text, ' ', bytes);
	(void)t;
	return space ? (size_t)(space - text) : 0;
}

static size_t cut_after_the_space(const tokenizer *t, const char *text, size_t bytes)
{
	const size_t at = tokenizer_safe_cut(t, text, bytes);
	return at ? at + 1 : 0;
}

static size_t cut_within_a_word(const tokenizer *t, const char *text, size_t bytes)
{
	const size_t at = tokenizer_safe_cut(t, text, bytes);
	return at > 1 && (unsigned char)text[at - 1] < 0x80 ? at - 1 : at;
}

static void slightly_wrong_rules_are_detected(void **state)
{
	(void)state;
	int cuts;
	for (int f = 0; f < FORMS; f++) {
		tokenizer *t = open_form(forms[f].name);
		if (forms[f].cuts &&
		    strcmp(forms[f].name, "char") != 0) { /* its tokens are characters, wherever the text is cut */
			const bool divides = strcmp(forms[f].name, "nfd") == 0; /* this one drops all spaces */
			assert_true(divides || count_differences(t, cut_after_the_space, true, &cuts) > 0);
			assert_true(count_differences(t, cut_within_a_word, true, &cuts) > 0);
		}
		tokenizer_free(t);
	}
	static const char *const of_runs[] = {"gpt2", "llama3", "qwen2", "o200k", "neox", "llama2", "mistral"};
	for (size_t i = 0; i < sizeof of_runs / sizeof *of_runs; i++) {
		tokenizer *t = open_form(of_runs[i]);
		assert_true(count_differences(t, cut_before_any_space, true, &cuts) > 0);
		tokenizer_free(t);
	}
	static const char *const beginning[] = {"llama2", "bpe"};
	for (size_t i = 0; i < sizeof beginning / sizeof *beginning; i++) {
		tokenizer *t = open_form(beginning[i]);
		assert_true(count_differences(t, tokenizer_safe_cut, false, &cuts) > 0);
		tokenizer_free(t);
	}
}

/* --- parts without a safe cut ----------------------------------------------------------------------- */

static const char sentence[] = "the state of a session and the model";

static bool cuts_sentence(const json_t *file)
{
	tokenizer *t;
	error err = ERROR_INIT;
	char *text = json_dumps(file, 0);
	assert_non_null(text);
	if (tokenizer_open_data(&t, text, strlen(text), &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	const bool cuts = tokenizer_safe_cut(t, sentence, sizeof sentence - 1) > 0;
	tokenizer_free(t);
	free(text);
	return cuts;
}

static json_t *load(const char *name)
{
	char path[128];
	snprintf(path, sizeof path, FOLDER "%s/tokenizer.json", name);
	json_t *file = json_load_file(path, JSON_ALLOW_NUL, NULL);
	assert_non_null(file);
	return file;
}

/* A part of gpt2's file and its replacement. */
static void texts_are_not_cut_if_a_part_may_match_across_a_space(void **state)
{
	(void)state;
	static const struct {
		const char *part, *value;
		bool cuts;
	} cases[] = {
	    {"normalizer", "{\"type\":\"NFKC\"}", true},
	    {"normalizer", "{\"type\":\"Lowercase\"}", true},
	    {"normalizer", "{\"type\":\"Strip\"}", false},
	    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"e s\"},\"content\":\"es\"}", false},
	    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"e\"},\"content\":\" \"}", false},
	    {"added_tokens", "[{\"id\":700,\"content\":\"state\",\"special\":false}]", true},
	    {"added_tokens", "[{\"id\":700,\"content\":\"e s\",\"special\":false}]", false},
	    {"added_tokens", "[{\"id\":700,\"content\":\"e s\",\"special\":true}]", true},
	    {"added_tokens", "[{\"id\":700,\"content\":\"state\",\"special\":false,\"rstrip\":true}]", false},
	    {"added_tokens", "[{\"id\":700,\"content\":\" a\",\"special\":false,\"single_word\":true}]", false},
	    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"use_regex\":false}", false},
	    {"pre_tokenizer",
	     "[\"'(?i:[sdmt]|ll|ve|re)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?+\\\\p{L}+|\\\\p{N}| "
	     "?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+\"]",
	     true},
	    {"pre_tokenizer", "[\" ?\\\\p{L}+|\\\\s+\"]", false}, /* symbols between the matches are lost */
	    {"pre_tokenizer", "[\"\\\\p{L}+ | ?\\\\p{L}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+\"]", false},
	    {"pre_tokenizer", "[\"(?<=e) | ?\\\\p{L}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+\"]", false},
	    {"pre_tokenizer", "[\" ?\\\\p{L}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+|\"]", false},
	    {"pre_tokenizer", "[\"\\\\p{N}{1,3}\", \" ?\\\\p{L}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+\"]", true},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		json_t *file = load("gpt2"), *value = json_loads(cases[i].value, 0, NULL);
		assert_non_null(value);
		if (strcmp(cases[i].part, "pre_tokenizer") == 0 && json_is_array(value)) {
			json_t *steps = json_array(), *pattern;
			size_t k;
			json_array_foreach(value, k, pattern) json_array_append_new(
			    steps, json_pack("{s:s, s:{s:O}, s:s, s:b}", "type", "Split", "pattern", "Regex", pattern,
			                     "behavior", "Isolated", "invert", 0));
			json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "use_regex", 0,
			                                       "add_prefix_space", 0));
			json_decref(value);
			value = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
		}
		json_object_set_new(file, cases[i].part, value);
		if (cuts_sentence(file) != cases[i].cuts)
			fail_msg("%s %s", cases[i].part, cases[i].value);
		json_decref(file);
	}
}

static void a_merge_across_a_space_forbids_cuts_of_texts_without_words(void **state)
{
	(void)state;
	json_t *file = load("llama2"), *model = json_object_get(file, "model");
	assert_true(cuts_sentence(file));
	json_object_set_new(json_object_get(model, "vocab"), "e\xE2\x96\x81", json_integer(703));
	json_array_append_new(json_object_get(model, "merges"), json_string("e \xE2\x96\x81"));
	assert_false(cuts_sentence(file));
	json_decref(file);
}

/* --- rules of normalization -------------------------------------------------------------------------- */

static status next_line(void *context, const char **text, size_t *bytes, error *err)
{
	int *line = context;
	(void)err;
	*text = (*line)++ < 200 ? sentence : NULL;
	*bytes = sizeof sentence - 1;
	return STATUS_OK;
}

static void a_sentencepiece_model_with_rules_is_cut_after_letters_that_they_keep(void **state)
{
	(void)state;
	int line = 0, cuts;
	tokenizer *t;
	error err = ERROR_INIT;
	json_t *spec = json_pack("{s:s, s:s, s:i, s:b}", "type", "sentencepiece", "model_type", "bpe", "vocab_size",
	                         300, "byte_fallback", 1);
	if (tokenizer_train(&t, spec, &(text_source){next_line, &line}, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(count_differences(t, tokenizer_safe_cut, true, &cuts), 0);
	assert_true(cuts > 500);
	tokenizer_free(t);
	json_decref(spec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(the_tokens_of_pieces_are_those_of_the_undivided_text),
	    cmocka_unit_test(no_text_has_fewer_tokens_than_the_bound_for_its_bytes),
	    cmocka_unit_test(a_long_text_has_the_same_tokens_and_spans_on_several_threads),
	    cmocka_unit_test(a_corpus_of_one_line_has_the_tokens_of_the_line_in_pieces_of_any_size),
	    cmocka_unit_test(slightly_wrong_rules_are_detected),
	    cmocka_unit_test(texts_are_not_cut_if_a_part_may_match_across_a_space),
	    cmocka_unit_test(a_merge_across_a_space_forbids_cuts_of_texts_without_words),
	    cmocka_unit_test(a_sentencepiece_model_with_rules_is_cut_after_letters_that_they_keep),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
