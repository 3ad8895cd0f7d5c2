#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/labelled.h"
#include "engine/text/sequence.h"
#include "tests/unit/support/bytes.h"
#include "tests/unit/support/allocations.h"
#include "tests/unit/support/datasets.h"
#include "tests/unit/support/folder.h"
#include "tests/unit/support/record.h"

/* The tokens as text, with | for an end token. */
static const char *shown(const int32_t *ids, int64_t count, char out[64])
{
	for (int64_t i = 0; i < count; i++)
		out[i] = ids[i] == BYTES_END ? '|' : (char)(ids[i] - 3);
	out[count] = 0;
	return out;
}

static void assert_record(const dataset *d, int64_t i, const char *tokens, const char *label)
{
	char text[64];
	text_record r = record_at(d, 0, 0, i);
	assert_string_equal(shown(r.ids, r.count, text), tokens);
	assert_string_equal(labelled_classes(d)[r.label], label);
}

static dataset *read_lines(const tokenizer *t, const char *text, int64_t length)
{
	dataset *d;
	error err = ERROR_INIT;
	status s = labelled_new(&d, t, text, strlen(text), length, NULL, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return d;
}

static void a_line_becomes_the_tokens_of_its_text_an_end_and_a_label(void **state)
{
	dataset *d = read_lines(*state,
	                        "\xEF\xBB\xBF{\"text\": \"good\", \"label\": \"yes\", \"more\": 1}\r\n\n"
	                        "{\"label\": \"no\", \"text\": \"bad\", \"text_pair\": null}\n",
	                        8);
	assert_int_equal(dataset_kind(d), RECORD_LABELLED);
	assert_int_equal(dataset_records(d), 2);
	assert_int_equal(dataset_length(d), 8);
	assert_int_equal(dataset_tokens(d), 9);
	assert_int_equal(dataset_vocab(d), 259);
	assert_int_equal(dataset_pad(d), BYTES_PAD);
	assert_true(isnan(dataset_byte_entropy(d)));
	assert_record(d, 0, "good|", "yes");
	assert_record(d, 1, "bad|", "no");
	dataset_free(d);
}

static void a_long_text_is_cut_at_its_end_and_in_a_pair_the_longer_one_is(void **state)
{
	static const struct {
		const char *first, *second, *tokens;
	} cases[] = {
	    {"abcdefgh", NULL, "abcdefg|"}, {"abcdefg", NULL, "abcdefg|"}, {"abc", "xyz", "abc|xyz|"},
	    {"abcdefgh", "xy", "abcd|xy|"}, {"ab", "uvwxyz", "ab|uvwx|"},  {"abcdefgh", "stuvwxyz", "abc|stu|"},
	    {"abcd", "stuv", "abc|stu|"},   {"a", "stuvwxyz", "a|stuvw|"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		int32_t ids[9] = {[8] = -7};
		int64_t count;
		char text[64];
		const char *second = cases[i].second;
		assert_int_equal(sequence_encode(*state, cases[i].first, strlen(cases[i].first), second,
		                                 second ? strlen(second) : 0, 8, ids, &count, NULL),
		                 STATUS_OK);
		assert_string_equal(shown(ids, count, text), cases[i].tokens);
		assert_int_equal(ids[8], -7);
	}
	int32_t ids[5];
	int64_t count;
	char text[64];
	assert_int_equal(sequence_encode(*state, "abcd", 4, "xyz", 3, 5, ids, &count, NULL), STATUS_OK);
	assert_string_equal(shown(ids, count, text), "ab|x|"); /* the first text gets the odd token */
}

/* Ids that the library `tokenizers` gives for a text and for a pair. */
static void texts_get_the_frame_of_the_tokenizers_files(void **state)
{
	(void)state;
	static const struct {
		const char *folder, *second;
		int64_t length, count;
		int32_t ids[12];
	} cases[] = {
	    {"roberta", NULL, 12, 5, {700, 268, 276, 269, 701}},
	    {"roberta", "dog", 12, 9, {700, 268, 276, 269, 701, 701, 500, 70, 701}},
	    {"roberta", "dog", 8, 8, {700, 268, 276, 701, 701, 500, 70, 701}},
	    {"t5", NULL, 12, 4, {7, 94, 69, 1}},
	    {"t5", "dog", 12, 9, {7, 94, 69, 1, 3, 16, 25, 34, 1}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		tokenizer *t;
		int32_t ids[12];
		int64_t count;
		char folder[64];
		const char *second = cases[i].second;
		snprintf(folder, sizeof folder, "tests/data/tokenizers/%s", cases[i].folder);
		assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
		assert_int_equal(sequence_encode(t, "the cat", 7, second, second ? strlen(second) : 0, cases[i].length,
		                                 ids, &count, NULL),
		                 STATUS_OK);
		assert_int_equal(count, cases[i].count);
		assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
		tokenizer_free(t);
	}
}

static void classes_are_the_labels_in_their_order(void **state)
{
	dataset *words = read_lines(*state,
	                            "{\"text\": \"1\", \"label\": \"b\"}\n{\"text\": \"2\", \"label\": \"a\"}\n"
	                            "{\"text\": \"3\", \"label\": \"10\"}\n{\"text\": \"4\", \"label\": \"a\"}\n",
	                            8);
	assert_int_equal(labelled_class_count(words), 3);
	assert_string_equal(labelled_classes(words)[0], "10");
	assert_string_equal(labelled_classes(words)[1], "a");
	assert_string_equal(labelled_classes(words)[2], "b");
	assert_null(labelled_classes(words)[3]);
	assert_record(words, 0, "1|", "b");
	assert_record(words, 3, "4|", "a");
	dataset_free(words);
	dataset *numbers = read_lines(*state,
	                              "{\"text\": \"1\", \"label\": 10}\n{\"text\": \"2\", \"label\": 9}\n"
	                              "{\"text\": \"3\", \"label\": -1}\n",
	                              8);
	assert_string_equal(labelled_classes(numbers)[0], "-1");
	assert_string_equal(labelled_classes(numbers)[1], "9");
	assert_string_equal(labelled_classes(numbers)[2], "10");
	assert_record(numbers, 0, "1|", "10");
	dataset_free(numbers);
}

static void labels_that_a_configuration_cannot_hold_are_refused(void **state)
{
	enum { LINES = LABELLED_MAX_NAMES / LABELLED_MAX_LABEL + 1 };
	char *text = calloc(LINES, LABELLED_MAX_LABEL + 64), *end = text;
	assert_non_null(text);
	for (int i = 0; i < LINES; i++)
		end += sprintf(end, "{\"text\": \"a\", \"label\": \"%0*d\"}\n", LABELLED_MAX_LABEL, i);
	dataset *d;
	error err = ERROR_INIT;
	assert_int_equal(labelled_new(&d, *state, text, (size_t)(end - text), 8, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.message, "line 2049: the labels have more than 524288 bytes together");
	free(text);
}

static void known_classes_keep_their_numbers_and_others_are_refused(void **state)
{
	static const char *const known[] = {"b", "7", "a", NULL};
	static const char good[] = "{\"text\": \"1\", \"label\": \"a\"}\n{\"text\": \"2\", \"label\": \"b\"}\n",
	                  number[] = "{\"text\": \"1\", \"label\": 7}\n",
	                  bad[] = "{\"text\": \"1\", \"label\": \"a\"}\n{\"text\": \"2\", \"label\": \"c\"}\n";
	dataset *d;
	error err = ERROR_INIT;
	assert_int_equal(labelled_new(&d, *state, good, strlen(good), 8, known, NULL), STATUS_OK);
	assert_int_equal(record_at(d, 0, 0, 0).label, 2);
	assert_int_equal(record_at(d, 0, 0, 1).label, 0);
	assert_int_equal(labelled_class_count(d), 3);
	dataset_free(d);
	assert_int_equal(labelled_new(&d, *state, number, strlen(number), 8, known, NULL), STATUS_OK);
	assert_int_equal(record_at(d, 0, 0, 0).label, 1);
	dataset_free(d);
	assert_int_equal(labelled_new(&d, *state, bad, strlen(bad), 8, known, &err), STATUS_INVALID);
	assert_string_equal(err.message, "line 2: \"c\" is not one of the 3 labels");
	assert_null(d);
}

#define FIRST "{\"text\": \"a\", \"label\": \"x\"}\n"
#define PAIRED "{\"text\": \"a\", \"text_pair\": \"b\", \"label\": \"x\"}\n"

static void a_bad_record_is_named_by_its_line(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
	    {FIRST "{\"text\": \"b\"}", "line 2: needs a \"label\"; its keys are \"text\""},
	    {FIRST "\n{\"text\": \"b\", \"label\": null}",
	     "line 3: needs a \"label\"; its keys are \"text\", \"label\""},
	    {FIRST "{\"text\": \"b\", \"label\": 1}",
	     "line 2: \"label\" is an integer, but the lines before have strings"},
	    {"{\"text\": \"b\", \"label\": 1}\n" FIRST,
	     "line 2: \"label\" is a string, but the lines before have integers"},
	    {FIRST "{\"text\": \"b\", \"label\": 0.5}", "line 2: \"label\" must be a string or an integer"},
	    {FIRST "{\"text\": \"b\", \"label\": true}", "line 2: \"label\" must be a string or an integer"},
	    {FIRST "{\"text\": \"b\", \"label\": \"\"}",
	     "line 2: \"label\" must have 1 to 256 bytes, none of them NUL"},
	    {FIRST "{\"text\": \"b\", \"label\": \"y\\u0000\"}",
	     "line 2: \"label\" must have 1 to 256 bytes, none of them NUL"},
	    {FIRST "{\"text\": \"\", \"label\": \"y\"}", "line 2: \"text\" is empty"},
	    {FIRST "{\"text\": 3, \"label\": \"y\"}", "line 2: \"text\" must be a string"},
	    {FIRST "{\"label\": \"y\"}", "line 2: needs a string \"text\"; its keys are \"label\""},
	    {FIRST PAIRED, "line 2: has a \"text_pair\", unlike the lines before"},
	    {PAIRED FIRST, "line 2: has no \"text_pair\", unlike the lines before"},
	    {"{\"text\": \"a\", \"text_pair\": \"\", \"label\": \"x\"}", "line 1: \"text_pair\" is empty"},
	    {"{\"text\": \"a\", \"text_pair\": [], \"label\": \"x\"}", "line 1: \"text_pair\" must be a string"},
	    {FIRST "[1]", "line 2: not a JSON object; every line needs \"text\" and \"label\""},
	    {FIRST FIRST, "all labels are \"x\"; there must be at least two"},
	    {"\n \n", "there is no record"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		dataset *d;
		error err = ERROR_INIT;
		assert_int_equal(labelled_new(&d, *state, cases[i].text, strlen(cases[i].text), 8, NULL, &err),
		                 STATUS_INVALID);
		assert_string_equal(err.message, cases[i].message);
		assert_null(d);
	}
	static const char *const broken[] = {"prose", FIRST "{\"text\": \"\xff\", \"label\": \"y\"}", FIRST "{"};
	for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
		dataset *d;
		error err = ERROR_INIT;
		assert_int_equal(labelled_new(&d, *state, broken[i], strlen(broken[i]), 8, NULL, &err), STATUS_INVALID);
		assert_int_equal(strncmp(err.message, i ? "line 2, " : "line 1, ", 8), 0);
	}
	dataset *d;
	error err = ERROR_INIT;
	assert_int_equal(labelled_new(&d, *state, PAIRED, strlen(PAIRED), 3, NULL, &err), STATUS_INVALID);
	assert_string_equal(err.param, "sequence_length");
}

/* n records; the first half has class "a". */
static const char *sorted(char *out, size_t room, int n)
{
	size_t at = 0;
	for (int i = 0; i < n; i++)
		at += (size_t)snprintf(out + at, room - at, "{\"text\": \"%02d\", \"label\": \"%s\"}\n", i,
		                       i < n / 2 ? "a" : "b");
	return out;
}

static void a_split_takes_records_of_all_classes_out_of_a_sorted_file(void **state)
{
	char text[4096];
	dataset *train, *valid;
	sorted(text, sizeof text, 40);
	assert_int_equal(labelled_split(&train, &valid, *state, text, strlen(text), 8, 0.25, NULL), STATUS_OK);
	assert_int_equal(dataset_records(train), 30);
	assert_int_equal(dataset_records(valid), 10);
	int seen[40] = {0}, of_a = 0, before = -1;
	for (int i = 0; i < 40; i++) {
		text_record r = i < 30 ? record_at(train, 0, 0, i) : record_at(valid, 0, 0, i - 30);
		int number = (r.ids[0] - 3 - '0') * 10 + r.ids[1] - 3 - '0';
		before = i == 30 ? -1 : before;
		assert_true(number > before); /* in the file's order */
		before = number;
		seen[number]++;
		assert_int_equal(r.label, number >= 20);
		of_a += i >= 30 && r.label == 0;
	}
	for (int i = 0; i < 40; i++)
		assert_int_equal(seen[i], 1);
	assert_true(of_a >= 2 && of_a <= 8);
	assert_int_equal(labelled_class_count(valid), 2);
	dataset_free(train);
	dataset_free(valid);
	error err = ERROR_INIT;
	assert_int_equal(labelled_split(&train, &valid, *state, text, strlen(text), 8, 0.01, &err), STATUS_INVALID);
	assert_string_equal(err.param, "validation_fraction");
	assert_null(train);
}

static void an_epoch_shows_every_record_once_in_an_order_set_by_its_number(void **state)
{
	char text[4096];
	sorted(text, sizeof text, 13);
	dataset *d = read_lines(*state, text, 8);
	int64_t moved = 0;
	for (int64_t epoch = 0; epoch < 3; epoch++) {
		int seen[13] = {0};
		for (int64_t i = 0; i < 13; i++) {
			text_record r = record_at(d, 5, epoch, i), again = record_at(d, 5, epoch, i);
			int number = (r.ids[0] - 3 - '0') * 10 + r.ids[1] - 3 - '0';
			assert_int_equal(r.count, again.count);
			assert_memory_equal(r.ids, again.ids, (size_t)r.count * sizeof *r.ids);
			seen[number]++;
			moved += number != i;
		}
		for (int i = 0; i < 13; i++)
			assert_int_equal(seen[i], 1);
	}
	assert_true(moved > 20);
	dataset_free(d);
}

static void the_fingerprint_changes_with_texts_ends_labels_and_names(void **state)
{
	static const char *const texts[] = {
	    "{\"text\": \"ab\", \"label\": \"x\"}\n{\"text\": \"c\", \"label\": \"y\"}\n",
	    "{\"text\": \"ac\", \"label\": \"x\"}\n{\"text\": \"c\", \"label\": \"y\"}\n",
	    "{\"text\": \"ab\", \"label\": \"y\"}\n{\"text\": \"c\", \"label\": \"x\"}\n",
	    "{\"text\": \"ab\", \"label\": \"x\"}\n{\"text\": \"c\", \"label\": \"z\"}\n",
	};
	uint64_t prints[4];
	for (int i = 0; i < 4; i++) {
		dataset *d = read_lines(*state, texts[i], 8);
		prints[i] = dataset_fingerprint(d);
		for (int k = 0; k < i; k++)
			assert_true(prints[k] != prints[i]);
		dataset_free(d);
	}
}

/* A cached file that is opened again has, in either set, the records of the same text in memory. */
static void a_cached_text_has_the_records_of_the_same_text_in_memory(void **state)
{
	enum { RECORDS = 9000, BYTES = RECORDS * 80, LENGTH = 40 };
	char folder[64], path[96], entries[PATH_MAX], *text = malloc(BYTES);
	size_t at = 0;
	assert_non_null(text);
	for (int i = 0; i < RECORDS; i++)
		at += (size_t)snprintf(text + at, BYTES - at, "{\"text\": \"%d %.*s\", \"label\": %d}\n", i, i * 7 % 37,
		                       "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop", i % 11 - 5);
	folder_new(folder);
	snprintf(path, sizeof path, "%s/a", folder);
	snprintf(entries, sizeof entries, "%s.entries", path);
	for (int share = 0; share < 2; share++) {
		labelled_text x;
		byte_source *source;
		dataset *want[2] = {NULL, NULL}, *got[2] = {NULL, NULL};
		assert_int_equal(byte_source_memory(&source, text, at, NULL), STATUS_OK);
		assert_int_equal(labelled_text_build(&x, source, *state, LENGTH, NULL,
		                                     &(corpus_tokens_options){.path = path, .key = 5}, NULL),
		                 STATUS_OK);
		labelled_text_close(&x);
		assert_int_equal(labelled_text_open(&x, path, 5, 259, NULL), STATUS_OK);
		assert_int_equal(labelled_make(&got[0], &got[1], *state, &x, LENGTH, share ? 0.3 : 0, NULL), STATUS_OK);
		labelled_text_close(&x);
		if (share)
			assert_int_equal(labelled_split(&want[0], &want[1], *state, text, at, LENGTH, 0.3, NULL),
			                 STATUS_OK);
		else
			want[0] = read_lines(*state, text, LENGTH);
		int64_t number = 0;
		for (int set = 0; set <= share; set++) {
			assert_true(dataset_fingerprint(got[set]) == dataset_fingerprint(want[set]));
			assert_int_equal(dataset_tokens(got[set]), dataset_tokens(want[set]));
			assert_int_equal(dataset_records(got[set]), dataset_records(want[set]));
			assert_true(dataset_memory(got[set]) <= RECORDS / 2 && dataset_memory(want[set]) > RECORDS);
			number += dataset_records(got[set]);
			for (int64_t i = 0; i < dataset_records(got[set]); i++) {
				text_record a = record_at(got[set], 9, 1, i), b = record_at(want[set], 9, 1, i);
				char shown_text[64];
				assert_int_equal(a.label, b.label);
				assert_int_equal(a.count, b.count);
				assert_memory_equal(a.ids, b.ids, (size_t)a.count * sizeof *a.ids);
				int line = atoi(shown(a.ids, a.count, shown_text));
				assert_int_equal(a.label, line % 11);
			}
			dataset_free(got[set]);
			dataset_free(want[set]);
		}
		assert_int_equal(number, RECORDS);
		assert_int_equal(unlink(path), 0);
		assert_int_equal(unlink(entries), 0);
	}
	assert_int_equal(rmdir(folder), 0);
	free(text);
}

static void a_text_that_fails_to_be_read_leaves_no_file(void **state)
{
	static const char bad[] = "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 2}\n{}\n";
	atomic_bool cancel = true;
	char folder[64], path[96];
	folder_new(folder);
	snprintf(path, sizeof path, "%s/a", folder);
	for (int i = 0; i < 3; i++) {
		labelled_text x;
		byte_source *source;
		const corpus_tokens_options o = {
		    .path = path, .most = i == 1 ? 100 : 0, .cancel = i == 2 ? &cancel : NULL};
		size_t bytes = i == 0 ? sizeof bad - 1 : sizeof bad - 4;
		assert_int_equal(byte_source_memory(&source, bad, bytes, NULL), STATUS_OK);
		assert_int_equal(labelled_text_build(&x, source, *state, 8, NULL, &o, NULL), i == 0 ? STATUS_INVALID
		                                                                             : i == 1
		                                                                                 ? STATUS_FULL
		                                                                                 : STATUS_CANCELLED);
		assert_null(x.text.tokens);
	}
	assert_int_equal(rmdir(folder), 0);
}

static void running_out_of_memory_is_an_error_and_leaks_nothing(void **state)
{
	char text[8192];
	status s = STATUS_NOMEM;
	sorted(text, sizeof text, 100);
	for (int64_t limit = 0; s != STATUS_OK; limit++) {
		dataset *train, *valid;
		allocations_limit(limit);
		s = labelled_split(&train, &valid, *state, text, strlen(text), 8, 0.5, NULL);
		allocations_limit(-1);
		if (s != STATUS_OK)
			assert_true(!train && !valid);
		dataset_free(train);
		dataset_free(valid);
		assert_true(limit < 100000);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_line_becomes_the_tokens_of_its_text_an_end_and_a_label),
	    cmocka_unit_test(a_long_text_is_cut_at_its_end_and_in_a_pair_the_longer_one_is),
	    cmocka_unit_test(texts_get_the_frame_of_the_tokenizers_files),
	    cmocka_unit_test(classes_are_the_labels_in_their_order),
	    cmocka_unit_test(labels_that_a_configuration_cannot_hold_are_refused),
	    cmocka_unit_test(known_classes_keep_their_numbers_and_others_are_refused),
	    cmocka_unit_test(a_bad_record_is_named_by_its_line),
	    cmocka_unit_test(a_split_takes_records_of_all_classes_out_of_a_sorted_file),
	    cmocka_unit_test(an_epoch_shows_every_record_once_in_an_order_set_by_its_number),
	    cmocka_unit_test(the_fingerprint_changes_with_texts_ends_labels_and_names),
	    cmocka_unit_test(a_cached_text_has_the_records_of_the_same_text_in_memory),
	    cmocka_unit_test(a_text_that_fails_to_be_read_leaves_no_file),
	    cmocka_unit_test(running_out_of_memory_is_an_error_and_leaks_nothing),
	};
	return cmocka_run_group_tests(tests, make_tokenizer, drop_tokenizer);
}
