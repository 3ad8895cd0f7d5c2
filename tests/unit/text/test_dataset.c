#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include <stdio.h>
#include <string.h>

#include "engine/text/corpus_tokens.h"
#include "engine/text/dataset.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/support/record.h"

/* "abcdefgh…" of n bytes. */
static const char *letters(char *out, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = (char)('a' + i % 26);
	return out;
}

static void blocks_cut_the_text_and_drop_the_remainder(void **state)
{
	char text[33];
	dataset *d;
	assert_int_equal(dataset_new(&d, *state, letters(text, 33), 33, 8, NULL), STATUS_OK);
	assert_int_equal(dataset_length(d), 8);
	assert_int_equal(dataset_records(d), 4);
	assert_int_equal(dataset_tokens(d), 33);
	assert_int_equal(dataset_token_bytes(d, 'a' + 3), 1);
	assert_int_equal(dataset_vocab(d), 259);
	for (int64_t b = 0; b < 4; b++) {
		text_record r = record_at(d, 0, 5, b);
		assert_int_equal(r.count, 8);
		for (int j = 0; j < 8; j++)
			assert_int_equal(r.ids[j], text[b * 8 + j] + 3);
	}
	dataset_free(d);
}

/* Index of the block at position i of an epoch, derived from its first token. */
static int64_t block_at(const dataset *d, uint64_t seed, int64_t epoch, int64_t i)
{
	return record_at(d, seed, epoch, i).ids[0] - 3;
}

/* n blocks of length 2; block b begins with byte b (n <= 128). */
static dataset *numbered(const tokenizer *t, int n)
{
	char text[256];
	for (int i = 0; i < n; i++)
		text[2 * i] = (char)i, text[2 * i + 1] = ' ';
	dataset *d;
	assert_int_equal(dataset_new(&d, t, text, 2 * (size_t)n, 2, NULL), STATUS_OK);
	assert_int_equal(dataset_records(d), n);
	return d;
}

static void the_order_of_an_epoch_equals_the_published_algorithm(void **state)
{
	/* Computed by a separate program from the definition in dataset.h. */
	static const struct {
		uint64_t seed;
		int64_t epoch;
		int order[10];
	} known[] = {
	    {1, 0, {2, 4, 6, 9, 7, 1, 5, 3, 8, 0}},
	    {1, 1, {8, 6, 5, 2, 9, 1, 7, 0, 3, 4}},
	    {0x123456789abcdef, 0, {8, 5, 3, 1, 2, 7, 6, 4, 0, 9}},
	    {0, 1, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
	};
	dataset *d = numbered(*state, 10);
	for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
		for (int i = 0; i < 10; i++)
			assert_int_equal(block_at(d, known[k].seed, known[k].epoch, i), known[k].order[i]);
	dataset_free(d);
}

static void every_epoch_is_a_permutation_whatever_the_number_of_blocks(void **state)
{
	static const int counts[] = {1, 2, 3, 4, 5, 16, 17, 31, 33, 64, 65, 128};
	for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
		dataset *d = numbered(*state, counts[k]);
		for (int64_t epoch = 0; epoch < 50; epoch++) {
			int seen[128] = {0};
			for (int i = 0; i < counts[k]; i++)
				seen[block_at(d, 42, epoch, i)]++;
			for (int i = 0; i < counts[k]; i++)
				assert_int_equal(seen[i], 1);
		}
		dataset_free(d);
	}
}

static void every_block_comes_first_about_equally_often(void **state)
{
	enum { N = 5, SEEDS = 5000 };
	dataset *d = numbered(*state, N);
	int first[N] = {0};
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		first[block_at(d, seed, 0, 0)]++;
	for (int i = 0; i < N; i++) /* mean 1000, standard deviation 28 */
		assert_in_range(first[i], 860, 1140);
	dataset_free(d);
}

static void a_split_puts_the_end_of_the_text_into_the_second_set(void **state)
{
	char text[103];
	dataset *train, *valid;
	letters(text, 103);
	assert_int_equal(dataset_split(&train, &valid, *state, text, 103, 4, 0.1, NULL), STATUS_OK);
	assert_int_equal(dataset_tokens(train), 93);
	assert_int_equal(dataset_tokens(valid), 10);
	assert_int_equal(dataset_records(train), 23);
	assert_int_equal(dataset_records(valid), 2);
	assert_int_equal(record_at(valid, 0, 0, 0).ids[0], text[93] + 3);
	dataset_free(train);
	dataset_free(valid);
}

static void a_split_without_a_block_on_either_side_is_refused(void **state)
{
	static const struct {
		double fraction;
		const char *param;
	} bad[] = {{1, "validation_fraction"},
	           {-0.5, "validation_fraction"},
	           {0.05, "sequence_length"},
	           {0.95, "sequence_length"},
	           {0.0 / 0.0, "validation_fraction"}};
	char text[40];
	letters(text, 40);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		dataset *train = (dataset *)text, *valid = (dataset *)text;
		error err = ERROR_INIT;
		assert_int_equal(dataset_split(&train, &valid, *state, text, 40, 4, bad[i].fraction, &err),
		                 STATUS_INVALID);
		assert_null(train);
		assert_null(valid);
		assert_string_equal(err.param, bad[i].param);
	}
}

/* Expect a refusal of `text`; returns the message in err. */
static void assert_refused(const tokenizer *t, const char *text, size_t bytes, int64_t length, error *err)
{
	dataset *d = (dataset *)err;
	*err = (error)ERROR_INIT;
	assert_int_equal(dataset_new(&d, t, text, bytes, length, err), STATUS_INVALID);
	assert_null(d);
}

static void too_short_a_text_or_sequence_is_refused(void **state)
{
	error err;
	assert_refused(*state, "abc", 3, 4, &err);
	assert_string_equal(err.param, "sequence_length");
	assert_refused(*state, "", 0, 2, &err);
	assert_refused(*state, "abc", 3, 1, &err);
	assert_string_equal(err.param, "sequence_length");
	assert_refused(*state, "abc", 3, -4, &err);
}

static void invalid_utf8_is_refused_with_its_byte(void **state)
{
	error err;
	assert_refused(*state, "good\xC3\xA9\xFF bad", 11, 2, &err);
	assert_non_null(strstr(err.message, "byte 6"));
	assert_refused(*state,
	               "\xEF\xBB\xBF"
	               "ab\x80"
	               "cd",
	               8, 2, &err);
	assert_non_null(strstr(err.message, "byte 5"));
}

static void json_lines_become_documents_with_an_end_token_each(void **state)
{
	static const char text[] = "\xEF\xBB\xBF \r\n"
	                           "{\"text\": \"ab\", \"source\": 1}\r\n"
	                           "\n"
	                           "{\"prompt\": \"\\u00e9\", \"completion\": \"x\\u0000\"}\n"
	                           "{\"text\": \"\"}";
	static const int32_t expected[] = {'a' + 3, 'b' + 3, BYTES_END, 0xC3 + 3, 0xA9 + 3,
	                                   'x' + 3, 3,       BYTES_END, BYTES_END};
	dataset *d;
	error err = ERROR_INIT;
	assert_int_equal(dataset_new(&d, *state, text, sizeof text - 1, 9, &err), STATUS_OK);
	assert_int_equal(dataset_tokens(d), 9);
	assert_memory_equal(record_at(d, 0, 0, 0).ids, expected, sizeof expected);
	assert_int_equal(dataset_token_bytes(d, BYTES_END), 0);
	dataset_free(d);
}

static token_cache *cache_of(const tokenizer *t, const char *text, size_t piece_bytes)
{
	byte_source *source;
	token_cache *c;
	const corpus_tokens_options o = {.threads = 1, .piece_bytes = piece_bytes};
	assert_int_equal(byte_source_memory(&source, text, strlen(text), NULL), STATUS_OK);
	assert_int_equal(corpus_tokens_build(&c, source, t, &o, NULL), STATUS_OK);
	return c;
}

static size_t ids_of(const tokenizer *t, const char *text, size_t piece_bytes, int32_t out[64])
{
	token_cache *c = cache_of(t, text, piece_bytes);
	const int64_t n = token_cache_tokens(c);
	assert_in_range(n, 1, 64);
	assert_int_equal(token_cache_read(c, 0, n, out, NULL, NULL), STATUS_OK);
	token_cache_free(c);
	return (size_t)n;
}

static void a_text_and_each_document_begin_with_the_tokenizers_start(void **state)
{
	(void)state;
	tokenizer *t;
	int32_t ids[64];
	assert_int_equal(tokenizer_open(&t, "tests/data/tokenizers/roberta", 1 << 20, NULL), STATUS_OK);
	const int32_t begin = tokenizer_begin(t), end = tokenizer_end(t);
	size_t n = ids_of(t, "one two three four five six seven", 8, ids), begins = 0;
	for (size_t i = 0; i < n; i++)
		begins += ids[i] == begin;
	assert_int_equal(begins, 1);
	assert_int_equal(ids[0], begin);
	n = ids_of(t, "{\"text\": \"one\"}\n{\"prompt\": \"two\", \"completion\": \" three\"}\n", 0, ids);
	begins = 0;
	for (size_t i = 0; i < n; i++) {
		begins += ids[i] == begin;
		assert_int_equal(ids[i] == begin, i == 0 || ids[i - 1] == end);
	}
	assert_int_equal(begins, 2);
	assert_int_equal(ids[n - 1], end);
	tokenizer_free(t);
}

static void the_entropy_is_that_of_the_bytes_frequencies(void **state)
{
	static const struct {
		const char *text;
		double bits;
	} cases[] = {
	    {"aaaaaaaa", 0}, {"abababab", 1}, {"aabc", 1.5}, {"{\"text\": \"abcd\"}\n{\"text\": \"dcba\"}\n", 2}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		dataset *d;
		assert_int_equal(dataset_new(&d, *state, cases[i].text, strlen(cases[i].text), 2, NULL), STATUS_OK);
		assert_true(fabs(dataset_byte_entropy(d) - cases[i].bits) <= 1e-12);
		dataset_free(d);
	}
}

static void text_that_only_looks_like_json_is_text(void **state)
{
	static const char *const texts[] = {"[1, 2]\n{\"text\": \"x\"}", "{{oops}}", "[1] A footnote", "\n \n"};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		dataset *d;
		assert_int_equal(dataset_new(&d, *state, texts[i], strlen(texts[i]), 2, NULL), STATUS_OK);
		assert_int_equal(dataset_tokens(d), strlen(texts[i]));
		dataset_free(d);
	}
}

static void a_bad_json_line_is_named_by_its_number(void **state)
{
	static const char *const second[] = {
	    "{\"text\": 3}",
	    "{\"text\": \"a\", \"prompt\": \"b\"}",
	    "{\"prompt\": \"b\"}",
	    "{\"completion\": \"b\"}",
	    "{\"prompt\": 1, \"completion\": \"b\"}",
	    "{\"text\": \"a\"",
	    "{\"text\": \"\xFF\"}",
	    "{\"text\": \"a\", \"text\": \"b\"}",
	    "[\"text\"]",
	    "plain",
	    "{}",
	    "{\"messages\": []}",
	    "{\"messages\": \"hi\"}",
	    "{\"messages\": [{\"role\": \"user\"}]}",
	    "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"text\": \"a\"}",
	};
	for (size_t i = 0; i < sizeof second / sizeof second[0]; i++) {
		char text[128];
		int n = snprintf(text, sizeof text, "{\"text\": \"fine\"}\n\n%s\n", second[i]);
		error err;
		assert_refused(*state, text, (size_t)n, 2, &err);
		assert_non_null(strstr(err.message, "line 3"));
	}
}

static void json_lines_of_another_kind_are_refused_and_not_taken_for_text(void **state)
{
	static const struct {
		const char *text, *names;
	} cases[] = {
	    {"{\"foo\": \"bar\"}\n{\"text\": \"x\"}\n", "foo"},
	    {"{}\nplain\n", "empty"},
	    {"[[{\"text\": \"a\"}, {\"text\": \"b\"}]]\n", "not a JSON object"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		error err;
		assert_refused(*state, cases[i].text, strlen(cases[i].text), 2, &err);
		assert_non_null(strstr(err.message, "line 1"));
		assert_non_null(strstr(err.message, cases[i].names));
		assert_non_null(strstr(err.message, "\"text\""));
		assert_non_null(strstr(err.message, "\"completion\""));
	}
}

static void the_fingerprint_distinguishes_texts(void **state)
{
	dataset *a, *b, *c;
	assert_int_equal(dataset_new(&a, *state, "abcdef", 6, 2, NULL), STATUS_OK);
	assert_int_equal(dataset_new(&b, *state, "abcdef", 6, 3, NULL), STATUS_OK);
	assert_int_equal(dataset_new(&c, *state, "abcdfe", 6, 2, NULL), STATUS_OK);
	assert_true(dataset_fingerprint(a) == dataset_fingerprint(b));
	assert_true(dataset_fingerprint(a) != dataset_fingerprint(c));
	dataset_free(a);
	dataset_free(b);
	dataset_free(c);
	dataset_free(NULL);
}

static void fingerprints_equal_those_of_earlier_versions(void **state)
{
	/* Checkpoints store them: this version resumes a run that an earlier version began. */
	static char big[700000];
	dataset *train, *valid, *lines;
	const char *json = "{\"text\": \"ab\"}\n{\"prompt\": \"q\", \"completion\": \"a\"}\n";
	for (int i = 0; i < 700000; i++)
		big[i] = (char)('a' + (i * 7 + i / 26) % 26);
	assert_int_equal(dataset_split(&train, &valid, *state, big, sizeof big, 512, 0.1, NULL), STATUS_OK);
	assert_int_equal(dataset_new(&lines, *state, json, strlen(json), 2, NULL), STATUS_OK);
	assert_true(dataset_fingerprint(train) == 0x40914e32b83d4d2b);
	assert_true(dataset_fingerprint(valid) == 0x8f3f20ec00a880bf);
	assert_true(dataset_fingerprint(lines) == 0xa98d5b25622327f8);
	dataset_free(train);
	dataset_free(valid);
	dataset_free(lines);
}

/* The text of a record's tokens, with '.' for the end token. */
static const char *text_of(text_record r)
{
	static char out[64];
	for (int64_t i = 0; i < r.count; i++)
		out[i] = (char)(r.ids[i] >= 3 ? r.ids[i] - 3 : '.');
	out[r.count] = 0;
	return out;
}

static void an_epoch_shows_each_text_as_often_as_its_weight_and_no_block_before_the_others(void **state)
{
	/* 8 blocks of "a…", 4 of "b…", 4 of "c…"; the second letter is the block's number. */
	token_cache *texts[3] = {cache_of(*state, "a0a1a2a3a4a5a6a7", 0), cache_of(*state, "b0b1b2b3", 0),
	                         cache_of(*state, "c0c1c2c3", 0)};
	const dataset_text parts[] = {{texts[0], 0.5}, {texts[1], 2}, {texts[2], 1}};
	dataset *d;
	assert_int_equal(dataset_make(&d, NULL, *state, parts, 3, &(dataset_options){.length = 2}, NULL), STATUS_OK);
	assert_int_equal(dataset_records(d), 4 + 8 + 4);
	int seen[3][8] = {0}, order = 0;
	for (int64_t epoch = 0; epoch < 4; epoch++) {
		int shown[3] = {0};
		for (int64_t i = 0; i < 16; i++) {
			const char *text = text_of(record_at(d, 9, epoch, i));
			shown[text[0] - 'a']++;
			seen[text[0] - 'a'][text[1] - '0']++;
			order += (text[0] == 'a') != (i < 4);
		}
		assert_int_equal(shown[0], 4);
		assert_int_equal(shown[1], 8);
		assert_int_equal(shown[2], 4);
		for (int i = 0; i < 8; i++) /* two epochs show the entire first text */
			assert_int_equal(seen[0][i], epoch % 2 ? (epoch + 1) / 2 : seen[0][i]);
	}
	for (int i = 0; i < 4; i++) {
		assert_int_equal(seen[1][i], 8);
		assert_int_equal(seen[2][i], 4);
	}
	assert_true(order > 0);
	/* In file order: half of the first text, the second text twice, the third. No state is carried into the
	 * beginning of a stretch. */
	for (int64_t i = 0; i < 16; i++) {
		assert_int_equal(record_at(d, 0, 1, i).continues, i % 4 != 0);
		assert_false(record_at(d, 9, 1, i).continues);
	}
	dataset_free(d);
	for (int i = 0; i < 3; i++)
		token_cache_free(texts[i]);
}

static void a_split_at_documents_does_not_divide_them(void **state)
{
	token_cache *c = cache_of(*state, "{\"text\": \"abcde\"}\n{\"text\": \"fgh\"}\n{\"text\": \"ij\"}\n", 0);
	dataset *train, *valid;
	const dataset_options o = {.length = 2, .held_back = 0.4, .split_documents = true};
	assert_int_equal(dataset_make(&train, &valid, *state, &(dataset_text){c, 1}, 1, &o, NULL), STATUS_OK);
	assert_int_equal(dataset_tokens(train), 6); /* ⌊0.4 · 13⌋ = 5 tokens end within the second document */
	assert_int_equal(dataset_tokens(valid), 7);
	assert_string_equal(text_of(record_at(valid, 0, 0, 0)), "fg");
	dataset_free(train);
	dataset_free(valid);
	token_cache_free(c);
}

static void with_reset_each_block_holds_one_document(void **state)
{
	static const char *const expected[] = {"abcd", "e.", "fg.", "hijk", "lm."};
	token_cache *c = cache_of(*state,
	                          "{\"text\": \"abcde\"}\n{\"text\": \"\"}\n{\"text\": \"fg\"}\n"
	                          "{\"prompt\": \"hij\", \"completion\": \"klm\"}\n",
	                          0);
	dataset *d;
	const dataset_options o = {.length = 4, .reset_at_document = true};
	assert_int_equal(dataset_make(&d, NULL, *state, &(dataset_text){c, 1}, 1, &o, NULL), STATUS_OK);
	assert_int_equal(dataset_records(d), 5);
	for (int i = 0; i < 5; i++) {
		assert_string_equal(text_of(record_at(d, 0, 0, i)), expected[i]);
		assert_int_equal(record_at(d, 0, 1, i).continues, i == 1 || i == 4);
	}
	dataset_free(d);
	token_cache_free(c);
}

static void tokens_of_prompts_are_marked_where_completions_count(void **state)
{
	static const char text[] = "{\"prompt\": \"ab\", \"completion\": \"c\"}\n{\"text\": \"d\"}\n"
	                           "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}, {\"role\": "
	                           "\"assistant\", \"content\": \"y\"}]}\n";
	static const char shown[] = "abc.d.User: x\nAssistant: y\n.";
	static const char asked[] = "  ++++                  ++++";
	token_cache *c = cache_of(*state, text, 0);
	for (int completions = 0; completions < 2; completions++) {
		dataset *d;
		const dataset_options o = {.length = 28, .completions = completions};
		assert_int_equal(dataset_make(&d, NULL, *state, &(dataset_text){c, 1}, 1, &o, NULL), STATUS_OK);
		text_record r = record_at(d, 0, 0, 0);
		assert_string_equal(text_of(r), shown);
		assert_int_equal(r.not_predicted != NULL, completions);
		for (int i = 0; i < 28 && completions; i++)
			assert_int_equal(r.not_predicted[i], asked[i] == ' ');
		dataset_free(d);
	}
	token_cache_free(c);
}

static void completions_count_only_in_a_text_with_prompts(void **state)
{
	static const char *const texts[] = {"plain text", "{\"text\": \"a document\"}\n",
	                                    "{\"prompt\": \"ab\", \"completion\": \"c\"}\n"};
	const dataset_options o = {.length = 2, .completions = true};
	dataset_text of[3];
	for (int i = 0; i < 3; i++)
		of[i] = (dataset_text){cache_of(*state, texts[i], 0), 1};
	for (size_t n = 1; n <= 3; n++) {
		error err = ERROR_INIT;
		dataset *d;
		assert_int_equal(dataset_make(&d, NULL, *state, of, n, &o, &err), n == 3 ? STATUS_OK : STATUS_INVALID);
		assert_string_equal(err.param, n == 3 ? "" : "loss_on");
		assert_true((d != NULL) == (n == 3));
		dataset_free(d);
	}
	for (int i = 0; i < 3; i++)
		token_cache_free(of[i].tokens);
}

static void completions_need_a_token_to_predict_in_a_block(void **state)
{
	static const char *const texts[] = {"{\"messages\": [{\"role\": \"user\", \"content\": \"is it there?\"}]}\n",
	                                    "{\"prompt\": \"a prompt\", \"completion\": \"c\"}\n"};
	const dataset_options cut[] = {{.length = 4, .completions = true}, {.length = 8, .completions = true}};
	for (int i = 0; i < 2; i++) {
		error err = ERROR_INIT;
		dataset *d;
		dataset_text text = {cache_of(*state, texts[i], 0), 1};
		assert_int_equal(dataset_make(&d, NULL, *state, &text, 1, &cut[i], &err), STATUS_INVALID);
		assert_string_equal(err.param, "loss_on");
		assert_non_null(strstr(err.message, "has a completion"));
		assert_null(d);
		token_cache_free(text.tokens);
	}
}

/* Plain text only: jansson's parser reports some failed allocations as syntax errors. */
static void every_allocation_may_fail(void **state)
{
	for (int split = 0; split < 2; split++) {
		dataset *train = NULL, *valid = NULL;
		status s = STATUS_NOMEM;
		for (int64_t limit = 0; s == STATUS_NOMEM; limit++) {
			error err = ERROR_INIT;
			allocations_limit(limit);
			if (split)
				s = dataset_split(&train, &valid, *state, "plain text", 10, 2, 0.3, &err);
			else
				s = dataset_new(&train, *state, "plain text", 10, 2, &err);
			allocations_limit(-1);
			assert_true((s == STATUS_OK) == (train != NULL));
			assert_true((s == STATUS_OK) == (err.message[0] == 0));
			assert_true(limit > 0 || s == STATUS_NOMEM);
		}
		assert_int_equal(s, STATUS_OK);
		dataset_free(train);
		dataset_free(valid);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(blocks_cut_the_text_and_drop_the_remainder),
	    cmocka_unit_test(the_order_of_an_epoch_equals_the_published_algorithm),
	    cmocka_unit_test(every_epoch_is_a_permutation_whatever_the_number_of_blocks),
	    cmocka_unit_test(every_block_comes_first_about_equally_often),
	    cmocka_unit_test(a_split_puts_the_end_of_the_text_into_the_second_set),
	    cmocka_unit_test(a_split_without_a_block_on_either_side_is_refused),
	    cmocka_unit_test(too_short_a_text_or_sequence_is_refused),
	    cmocka_unit_test(invalid_utf8_is_refused_with_its_byte),
	    cmocka_unit_test(the_entropy_is_that_of_the_bytes_frequencies),
	    cmocka_unit_test(json_lines_become_documents_with_an_end_token_each),
	    cmocka_unit_test(a_text_and_each_document_begin_with_the_tokenizers_start),
	    cmocka_unit_test(text_that_only_looks_like_json_is_text),
	    cmocka_unit_test(a_bad_json_line_is_named_by_its_number),
	    cmocka_unit_test(json_lines_of_another_kind_are_refused_and_not_taken_for_text),
	    cmocka_unit_test(the_fingerprint_distinguishes_texts),
	    cmocka_unit_test(fingerprints_equal_those_of_earlier_versions),
	    cmocka_unit_test(an_epoch_shows_each_text_as_often_as_its_weight_and_no_block_before_the_others),
	    cmocka_unit_test(a_split_at_documents_does_not_divide_them),
	    cmocka_unit_test(with_reset_each_block_holds_one_document),
	    cmocka_unit_test(tokens_of_prompts_are_marked_where_completions_count),
	    cmocka_unit_test(completions_count_only_in_a_text_with_prompts),
	    cmocka_unit_test(completions_need_a_token_to_predict_in_a_block),
	    cmocka_unit_test(every_allocation_may_fail),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
