/* Training of byte-level BPE gives the result of the library `tokenizers` (tests/data/tokenizers/trained). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/unit/support/allocations.h"

#define FOLDER "tests/data/tokenizers/trained/"

static json_t *load(const char *path)
{
	json_t *json = json_load_file(path, JSON_ALLOW_NUL, NULL);
	assert_non_null(json);
	return json;
}

/* The texts of the cases, one at a time. */
typedef struct texts {
	json_t *cases;
	size_t at;
} texts;

static status next_text(void *context, const char **text, size_t *bytes, error *err)
{
	(void)err;
	texts *t = context;
	const json_t *found = json_object_get(json_array_get(t->cases, t->at++), "text");
	*text = json_string_value(found);
	*bytes = json_string_length(found);
	return STATUS_OK;
}

static tokenizer *train(const char *spec_text)
{
	texts t = {.cases = load(FOLDER "cases.json")};
	json_t *spec = json_loads(spec_text, 0, NULL);
	tokenizer *out;
	error err = ERROR_INIT;
	assert_true(tokenizer_trains(spec));
	if (tokenizer_train(&out, spec, &(text_source){next_text, &t}, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	json_decref(spec);
	json_decref(t.cases);
	return out;
}

/* Print a merge as "left right" in either form of the file. */
static void print_merge(const json_t *merge, char out[256])
{
	if (json_is_array(merge))
		snprintf(out, 256, "%s %s", json_string_value(json_array_get(merge, 0)),
		         json_string_value(json_array_get(merge, 1)));
	else
		snprintf(out, 256, "%s", json_string_value(merge));
}

static void training_learns_the_vocabulary_and_merges_of_the_library(void **state)
{
	(void)state;
	tokenizer *t = train("{\"type\": \"bpe\", \"vocab_size\": 461}");
	json_t *theirs = load(FOLDER "tokenizer.json"),
	       *ours = json_loads(tokenizer_file(t, "tokenizer.json", NULL), 0, NULL);
	const json_t *a = json_object_get(ours, "model"), *b = json_object_get(theirs, "model");
	const json_t *merges = json_object_get(a, "merges"), *expected = json_object_get(b, "merges");
	assert_int_equal(json_array_size(merges), json_array_size(expected));
	assert_true(json_array_size(merges) > 100);
	for (size_t i = 0; i < json_array_size(merges); i++) {
		char x[256], y[256];
		print_merge(json_array_get(merges, i), x);
		print_merge(json_array_get(expected, i), y);
		assert_string_equal(x, y);
	}
	assert_true(json_equal(json_object_get(a, "vocab"), json_object_get(b, "vocab")));
	assert_true(json_equal(json_object_get(ours, "added_tokens"), json_object_get(theirs, "added_tokens")));
	assert_int_equal(tokenizer_size(t), json_object_size(json_object_get(b, "vocab")));
	assert_int_equal(tokenizer_end(t), 0);
	json_decref(ours);
	json_decref(theirs);
	tokenizer_free(t);
}

static void a_text_that_gives_fewer_ids_than_requested_is_refused_with_their_number(void **state)
{
	(void)state;
	json_t *spec = json_pack("{s:s, s:i, s:i}", "type", "bpe", "vocab_size", 258, "min_frequency", 1000000);
	texts t = {.cases = load(FOLDER "cases.json")};
	tokenizer *out;
	error err = ERROR_INIT;
	assert_int_equal(tokenizer_train(&out, spec, &(text_source){next_text, &t}, &err), STATUS_INVALID);
	assert_null(out);
	assert_string_equal(err.param, "vocab_size");
	assert_non_null(strstr(err.message, "257 ids"));
	json_object_set_new(spec, "vocab_size", json_integer(257));
	t.at = 0;
	assert_int_equal(tokenizer_train(&out, spec, &(text_source){next_text, &t}, &err), STATUS_OK);
	assert_int_equal(tokenizer_size(out), 257);
	tokenizer_free(out);
	json_decref(spec);
	json_decref(t.cases);
}

static void no_merge_spells_a_special_token(void **state)
{
	(void)state;
	tokenizer *t = train("{\"type\": \"bpe\"}"); /* as many ids as the text gives, up to 8,000 */
	assert_true(tokenizer_size(t) > 300 && tokenizer_size(t) < 8000);
	tokenizer_free(t);
	t = train("{\"type\": \"bpe\", \"vocab_size\": 440, \"special_tokens\": [\"ab\", \"the\"]}");
	static const char text[] = "ababab the ab";
	token_list list;
	assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, &list, NULL), STATUS_OK);
	for (size_t i = 0; i < list.count; i++)
		assert_true(list.ids[i] >= 2);
	token_list_fini(&list);
	tokenizer_free(t);
}

static void assert_refused(const char *text, const char *param)
{
	json_t *spec = json_loads(text, 0, NULL);
	error err = ERROR_INIT;
	tokenizer *t;
	assert_non_null(spec);
	assert_int_equal(tokenizer_check(spec, &err), STATUS_INVALID);
	assert_string_equal(err.param, param);
	assert_int_equal(tokenizer_train(&t, spec, &(text_source){next_text, &(texts){NULL, 0}}, NULL), STATUS_INVALID);
	assert_null(t);
	json_decref(spec);
}

static void a_bad_spec_is_refused_by_the_name_of_its_field(void **state)
{
	(void)state;
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": \"300\"}", "vocab_size");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 256}", "vocab_size");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 10000000}", "vocab_size");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 300, \"min_frequency\": 0}", "min_frequency");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 300, \"special_tokens\": \"x\"}", "special_tokens");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 300, \"special_tokens\": [\"x\"]}", "special_tokens");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 300, \"special_tokens\": [\"xy\", \"xy\"]}",
	               "special_tokens");
	assert_refused("{\"type\": \"bpe\", \"vocab_size\": 300, \"dropout\": 0.1}", "dropout");
}

static void a_tokenizer_that_needs_training_is_not_made_without_a_text(void **state)
{
	(void)state;
	json_t *spec = json_pack("{s:s, s:i}", "type", "bpe", "vocab_size", 300);
	error err = ERROR_INIT;
	tokenizer *t;
	assert_int_equal(tokenizer_check(spec, NULL), STATUS_OK);
	assert_int_equal(tokenizer_new(&t, spec, &err), STATUS_UNSUPPORTED);
	assert_null(t);
	assert_non_null(strstr(err.message, "trained"));
	json_decref(spec);
}

static status broken_source(void *context, const char **text, size_t *bytes, error *err)
{
	(void)context;
	(void)text;
	(void)bytes;
	return error_set(err, STATUS_IO, NULL, "the disk is gone");
}

static void an_error_of_the_source_is_returned_by_the_training(void **state)
{
	(void)state;
	json_t *spec = json_pack("{s:s, s:i}", "type", "bpe", "vocab_size", 300);
	error err = ERROR_INIT;
	tokenizer *t;
	assert_int_equal(tokenizer_train(&t, spec, &(text_source){broken_source, NULL}, &err), STATUS_IO);
	assert_null(t);
	assert_string_equal(err.message, "the disk is gone");
	json_decref(spec);
}

static void every_allocation_of_training_may_fail(void **state)
{
	(void)state;
	json_t *spec = json_pack("{s:s, s:i}", "type", "bpe", "vocab_size", 260);
	json_t *cases = json_pack("[{s:s}, {s:s}]", "text", "abababab abab cdcd", "text", "abcd abcd abab");
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		texts t = {.cases = cases};
		tokenizer *out;
		allocations_fail(n, true);
		const status s = tokenizer_train(&out, spec, &(text_source){next_text, &t}, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true((s == STATUS_OK) == (out != NULL));
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		tokenizer_free(out);
	}
	json_decref(cases);
	json_decref(spec);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(training_learns_the_vocabulary_and_merges_of_the_library),
	    cmocka_unit_test(a_text_that_gives_fewer_ids_than_requested_is_refused_with_their_number),
	    cmocka_unit_test(no_merge_spells_a_special_token),
	    cmocka_unit_test(a_bad_spec_is_refused_by_the_name_of_its_field),
	    cmocka_unit_test(a_tokenizer_that_needs_training_is_not_made_without_a_text),
	    cmocka_unit_test(an_error_of_the_source_is_returned_by_the_training),
	    cmocka_unit_test(every_allocation_of_training_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
