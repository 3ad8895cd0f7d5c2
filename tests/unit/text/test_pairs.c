#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/pairs.h"
#include "engine/text/sequence.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/record.h"

/* Source > target, with | for an end token. */
static void assert_pair(const dataset *d, int64_t i, const char *want)
{
	char text[64];
	int n = 0;
	text_record r = record_at(d, 0, 0, i);
	for (int64_t k = 0; k <= r.count; k++) {
		if (k == r.source)
			text[n++] = '>';
		if (k < r.count)
			text[n++] = r.ids[k] == BYTES_END ? '|' : (char)(r.ids[k] - BYTES_FIRST);
	}
	text[n] = 0;
	assert_string_equal(text, want);
}

static dataset *read_lines(const tokenizer *t, const char *text, int64_t source, int64_t target)
{
	dataset *d;
	error err = ERROR_INIT;
	status s = pairs_new(&d, NULL, t, text, strlen(text), (pair_lengths){source, target}, 0, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return d;
}

static void a_line_becomes_the_tokens_of_its_source_and_its_target_and_an_end(void **state)
{
	dataset *d = read_lines(*state,
	                        "\xEF\xBB\xBF{\"source\": \"abc\", \"target\": \"xy\", \"more\": 1}\r\n\n"
	                        "{\"target\": \"\", \"source\": \"d\"}\n",
	                        6, 5);
	assert_int_equal(dataset_kind(d), RECORD_PAIR);
	assert_int_equal(dataset_records(d), 2);
	assert_int_equal(dataset_length(d), 5);
	assert_int_equal(dataset_source_length(d), 6);
	assert_int_equal(dataset_tokens(d), 8);
	assert_int_equal(dataset_start(d), BYTES_PAD);
	assert_pair(d, 0, "abc>xy|");
	assert_pair(d, 1, "d>|");
	dataset_free(d);
}

static void a_long_text_is_cut_at_its_end_and_a_target_keeps_its_end_token(void **state)
{
	dataset *d = read_lines(*state,
	                        "{\"source\": \"abcd\", \"target\": \"uvwx\"}\n{\"source\": \"abc\", \"target\": "
	                        "\"uv\"}\n{\"source\": \"abcde\", \"target\": \"u\"}\n",
	                        3, 3);
	assert_pair(d, 0, "abc>uv|");
	assert_pair(d, 1, "abc>uv|");
	assert_pair(d, 2, "abc>u|");
	dataset_free(d);
}

/* A tokenizer whose template puts [A] before a text and [B] [C] after it. */
static tokenizer *wrapping(void)
{
	static const char data[] =
	    "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": ["
	    "{\"id\": 0, \"content\": \"[A]\", \"special\": true, \"single_word\": false, \"lstrip\": false, "
	    "\"rstrip\": false, \"normalized\": false},"
	    "{\"id\": 1, \"content\": \"[B]\", \"special\": true, \"single_word\": false, \"lstrip\": false, "
	    "\"rstrip\": false, \"normalized\": false},"
	    "{\"id\": 2, \"content\": \"[C]\", \"special\": true, \"single_word\": false, \"lstrip\": false, "
	    "\"rstrip\": false, \"normalized\": false}],"
	    "\"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": "
	    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[A]\", \"type_id\": 0}}, "
	    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"[B]\", \"type_id\": 0}}, "
	    "{\"SpecialToken\": {\"id\": \"[C]\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "
	    "{\"[A]\": {\"id\": \"[A]\", \"ids\": [0], \"tokens\": [\"[A]\"]}, "
	    "\"[B]\": {\"id\": \"[B]\", \"ids\": [1], \"tokens\": [\"[B]\"]}, "
	    "\"[C]\": {\"id\": \"[C]\", \"ids\": [2], \"tokens\": [\"[C]\"]}}}, \"decoder\": null, "
	    "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": "
	    "null, "
	    "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"vocab\": "
	    "{\"[A]\": 0, \"[B]\": 1, \"[C]\": 2, \"u\": 3, \"x\": 4, \"y\": 5}, \"merges\": []}}";
	tokenizer *t;
	error err = ERROR_INIT;
	status s = tokenizer_open_data(&t, data, sizeof data - 1, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static void a_source_keeps_the_tokens_of_the_template_when_it_is_cut(void **state)
{
	(void)state;
	static const struct {
		int64_t length, count;
		int32_t ids[6];
	} cases[] = {{6, 6, {0, 4, 5, 4, 1, 2}}, {5, 5, {0, 4, 5, 1, 2}}, {3, 3, {0, 1, 2}}, {2, 2, {1, 2}}};
	tokenizer *t = wrapping();
	int32_t ids[7];
	int64_t count;
	error err = ERROR_INIT;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		ids[cases[i].length] = -7;
		assert_int_equal(sequence_encode_source(t, "xyx", 3, cases[i].length, ids, &count, NULL), STATUS_OK);
		assert_int_equal(count, cases[i].count);
		assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
		assert_int_equal(ids[cases[i].length], -7);
	}
	assert_int_equal(sequence_encode_source(t, "xyx", 3, 1, ids, &count, &err), STATUS_INVALID);
	assert_string_equal(err.param, "source_length");
	/* The tokenizer has no token that ends a text. */
	static const char line[] = "{\"source\": \"x\", \"target\": \"y\"}";
	dataset *d;
	err = (error)ERROR_INIT;
	assert_int_equal(pairs_new(&d, NULL, t, line, sizeof line - 1, (pair_lengths){8, 8}, 0, &err), STATUS_INVALID);
	assert_string_equal(err.param, "tokenizer");
	assert_null(d);
	tokenizer_free(t);
}

#define FIRST "{\"source\": \"a\", \"target\": \"b\"}\n"

static void a_bad_record_is_named_by_its_line_and_field(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
	    {FIRST "{\"source\": \"b\"}", "line 2: needs a string \"target\"; its keys are \"source\""},
	    {FIRST "\n{\"target\": \"b\"}", "line 3: needs a string \"source\"; its keys are \"target\""},
	    {FIRST "{\"source\": 1, \"target\": \"b\"}", "line 2: \"source\" must be a string"},
	    {FIRST "{\"source\": \"b\", \"target\": null}",
	     "line 2: needs a string \"target\"; its keys are \"source\", \"target\""},
	    {"{\"source\": \"\", \"target\": \"b\"}", "line 1: \"source\" is empty"},
	    {FIRST "[1]", "line 2: not a JSON object; every line needs \"source\" and \"target\""},
	    {"\n \n", "there is no record"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		dataset *d;
		error err = ERROR_INIT;
		assert_int_equal(
		    pairs_new(&d, NULL, *state, cases[i].text, strlen(cases[i].text), (pair_lengths){8, 8}, 0, &err),
		    STATUS_INVALID);
		assert_string_equal(err.message, cases[i].message);
		assert_null(d);
	}
}

/* n lines; source and target contain the line's number. */
static char *numbered(int n, size_t *bytes)
{
	char *text = malloc((size_t)n * 96);
	assert_non_null(text);
	*bytes = 0;
	for (int i = 0; i < n; i++)
		*bytes += (size_t)sprintf(text + *bytes, "{\"source\": \"%d %.*s\", \"target\": \"%d\"}\n", i,
		                          i * 7 % 30, "abcdefghijklmnopqrstuvwxyzabcd", i);
	return text;
}

static int number_at(const int32_t *ids)
{
	int number = 0;
	for (; *ids >= BYTES_FIRST + '0' && *ids <= BYTES_FIRST + '9'; ids++)
		number = 10 * number + *ids - BYTES_FIRST - '0';
	return number;
}

/* The cached file is opened again. */
static void a_cached_text_is_split_into_the_pairs_of_the_same_text_in_memory(void **state)
{
	enum { RECORDS = 9000 };
	const pair_lengths lengths = {40, 8};
	char folder[64], path[96];
	size_t bytes;
	char *text = numbered(RECORDS, &bytes), *seen = calloc(RECORDS, 1);
	folder_new(folder);
	snprintf(path, sizeof path, "%s/a", folder);
	record_text x;
	byte_source *source;
	dataset *want[2], *got[2];
	assert_int_equal(byte_source_memory(&source, text, bytes, NULL), STATUS_OK);
	assert_int_equal(
	    pairs_build(&x, source, *state, lengths, &(corpus_tokens_options){.path = path, .key = 5}, NULL),
	    STATUS_OK);
	record_text_close(&x);
	assert_int_equal(record_text_open(&x, path, 5, 259, NULL), STATUS_OK);
	assert_int_equal(pairs_make(&got[0], &got[1], *state, &x, lengths, 0.3, NULL), STATUS_OK);
	record_text_close(&x);
	assert_int_equal(pairs_new(&want[0], &want[1], *state, text, bytes, lengths, 0.3, NULL), STATUS_OK);
	for (int set = 0; set < 2; set++) {
		assert_int_equal(dataset_records(got[set]), set ? 2700 : 6300);
		assert_true(dataset_fingerprint(got[set]) == dataset_fingerprint(want[set]));
		assert_true(dataset_memory(got[set]) <= RECORDS / 2 && dataset_memory(want[set]) > RECORDS);
		for (int64_t i = 0; i < dataset_records(got[set]); i++) {
			text_record a = record_at(got[set], 9, 1, i), b = record_at(want[set], 9, 1, i);
			assert_int_equal(a.source, b.source);
			assert_int_equal(a.count, b.count);
			assert_memory_equal(a.ids, b.ids, (size_t)a.count * sizeof *a.ids);
			assert_int_equal(number_at(a.ids), number_at(a.ids + a.source));
			assert_int_equal(a.ids[a.count - 1], BYTES_END);
			seen[number_at(a.ids)]++;
		}
		dataset_free(got[set]);
		dataset_free(want[set]);
	}
	for (int i = 0; i < RECORDS; i++)
		assert_int_equal(seen[i], 1);
	assert_int_equal(unlink(path), 0);
	strcat(path, ".entries");
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(folder), 0);
	free(text);
	free(seen);
}

static void the_fingerprint_changes_with_where_a_source_ends(void **state)
{
	dataset *a = read_lines(*state, "{\"source\": \"ab\", \"target\": \"c\"}", 8, 8);
	dataset *b = read_lines(*state, "{\"source\": \"a\", \"target\": \"bc\"}", 8, 8);
	assert_int_equal(dataset_tokens(a), dataset_tokens(b));
	assert_true(dataset_fingerprint(a) != dataset_fingerprint(b));
	dataset_free(a);
	dataset_free(b);
}

static void running_out_of_memory_is_an_error_and_leaks_nothing(void **state)
{
	size_t bytes;
	char *text = numbered(60, &bytes);
	status s = STATUS_NOMEM;
	for (int64_t limit = 0; s != STATUS_OK; limit++) {
		dataset *train, *valid;
		allocations_limit(limit);
		s = pairs_new(&train, &valid, *state, text, bytes, (pair_lengths){40, 8}, 0.5, NULL);
		allocations_limit(-1);
		if (s != STATUS_OK)
			assert_true(!train && !valid);
		dataset_free(train);
		dataset_free(valid);
		assert_true(limit < 100000);
	}
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_becomes_the_tokens_of_its_source_and_its_target_and_an_end),
	    cmocka_unit_test(a_long_text_is_cut_at_its_end_and_a_target_keeps_its_end_token),
	    cmocka_unit_test(a_source_keeps_the_tokens_of_the_template_when_it_is_cut),
	    cmocka_unit_test(a_bad_record_is_named_by_its_line_and_field),
	    cmocka_unit_test(a_cached_text_is_split_into_the_pairs_of_the_same_text_in_memory),
	    cmocka_unit_test(the_fingerprint_changes_with_where_a_source_ends),
	    cmocka_unit_test(running_out_of_memory_is_an_error_and_leaks_nothing),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
