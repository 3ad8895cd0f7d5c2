/* A model's files cannot make a text grow without bound. Normalizers, pre-tokenizers, rules of SentencePiece and chat
 * templates are stopped once their output is too large. Files with parts out of proportion are refused when opened. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_kind.h"

#define MODEL "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}"

static char *repeated(const char *part, size_t count)
{
	const size_t n = strlen(part);
	char *text = malloc(n * count + 1);
	for (size_t i = 0; i < count; i++)
		memcpy(text + n * i, part, n);
	text[n * count] = 0;
	return text;
}

static status open_text(tokenizer **out, const char *json, error *err)
{
	return tokenizer_open_data(out, json, strlen(json), err);
}

/* Open a tokenizer.json with its model and one further part. */
static tokenizer *open_with(const char *part)
{
	tokenizer *t;
	error err = ERROR_INIT;
	char *json = malloc(strlen(part) + sizeof MODEL + 16);
	sprintf(json, "{" MODEL ", %s}", part);
	if (open_text(&t, json, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	free(json);
	return t;
}

static void assert_refused(const tokenizer *t, const char *text, size_t bytes, bool spans)
{
	token_list list;
	error err = ERROR_INIT;
	assert_int_equal(tokenizer_encode(t, text, bytes, &(encode_options){.spans = spans}, &list, &err),
	                 STATUS_TOO_LARGE);
	assert_non_null(strstr(err.message, "grow too much"));
	assert_int_equal(list.count, 0);
}

static void assert_encoded(const tokenizer *t, const char *text, size_t count)
{
	token_list list;
	assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, &list, NULL), STATUS_OK);
	assert_int_equal(list.count, count);
	token_list_fini(&list);
}

static void replacements_of_replacements_are_refused_before_they_fill_memory(void **state)
{
	(void)state;
	char *many = repeated("a", 1000), *step = malloc(1200), *steps, *part = malloc(20000);
	sprintf(step, ", {\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}", many);
	steps = repeated(step, 10);
	sprintf(part, "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s]}", steps + 1);
	tokenizer *t = open_with(part);
	assert_refused(t, "a", 1, false);
	assert_refused(t, "a", 1, true);
	assert_encoded(t, "b", 0);
	tokenizer_free(t);
	free(part);
	free(steps);
	free(step);
	free(many);
}

static void a_short_text_may_grow_by_an_allowance_and_a_long_one_by_a_factor(void **state)
{
	(void)state;
	tokenizer *t = open_with("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, \"content\": "
	                         "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}");
	char *text = repeated("a", 4097);
	text[4096] = 0;
	assert_encoded(t, text, 4096 * 32);
	text[4096] = 'a';
	assert_refused(t, text, 4097, false);
	free(text);
	tokenizer_free(t);
}

static void text_inserted_before_pieces_is_bounded_in_total(void **state)
{
	(void)state;
	/* Each pair of steps splits a piece into characters and inserts one before each. */
	static const char *const marks[] = {"X", "Y", "Z", "W", "V", "U", "T"};
	char part[4096] = "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [";
	for (int i = 0; i < 7; i++)
		snprintf(part + strlen(part), sizeof part - strlen(part),
		         "%s{\"type\": \"Split\", \"pattern\": {\"Regex\": \".\"}, \"behavior\": \"Isolated\"}, "
		         "{\"type\": \"Metaspace\", \"replacement\": \"%s\", \"split\": false}",
		         i ? ", " : "", marks[i]);
	strcat(part, "]}");
	tokenizer *t = open_with(part);
	char *text = repeated("a", 1000);
	assert_refused(t, text, 1000, false);
	free(text);
	tokenizer_free(t);
}

static void an_added_token_that_normalization_makes_too_long_is_refused(void **state)
{
	(void)state;
	char *many = repeated("a", 1000), json[8192];
	tokenizer *t;
	error err = ERROR_INIT;
	snprintf(json, sizeof json,
	         "{" MODEL ", \"added_tokens\": [{\"id\": 1, \"content\": \"aaaa\", \"normalized\": true}], "
	         "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": ["
	         "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}, "
	         "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}]}}",
	         many, many);
	assert_int_equal(open_text(&t, json, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.message, "aaaa"));
	free(many);
}

static void ids_far_past_the_number_of_tokens_are_refused(void **state)
{
	(void)state;
	tokenizer *t;
	error err = ERROR_INIT;
	assert_int_equal(open_text(&t,
	                           "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 16000000}, \"merges\": []}}",
	                           &err),
	                 STATUS_INVALID);
	assert_non_null(strstr(err.message, "16000000"));
}

static void a_name_too_long_for_a_token_is_refused_in_every_model(void **state)
{
	(void)state;
	static const char *const forms[] = {
	    "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"[UNK]\": 0, \"%s\": 1}}}",
	    "{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"%s\", 0]]}}",
	    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"%s\": 0}, \"merges\": []}}",
	    "{" MODEL ", \"added_tokens\": [{\"id\": 1, \"content\": \"%s\"}]}"};
	char *name = repeated("n", 200000), *json = malloc(200200);
	for (int i = 0; i < 4; i++) {
		tokenizer *t;
		error err = ERROR_INIT;
		sprintf(json, forms[i], name);
		assert_int_equal(open_text(&t, json, &err), STATUS_UNSUPPORTED);
		assert_non_null(strstr(err.message, "bytes"));
	}
	free(json);
	free(name);
}

/* --- SentencePiece -------------------------------------------------------------------------------------- */

static size_t put_field(char *out, int number, const char *data, size_t bytes)
{
	size_t n = 0;
	out[n++] = (char)(number << 3 | 2);
	for (size_t left = bytes; out[n++] = (char)((left & 0x7F) | (left > 0x7F ? 0x80 : 0)), left > 0x7F; left >>= 7)
		;
	memcpy(out + n, data, bytes);
	return n + bytes;
}

static size_t put_piece(char *out, const char *name, int type)
{
	char piece[64];
	size_t n = put_field(piece, 1, name, strlen(name));
	piece[n++] = 3 << 3;
	piece[n++] = (char)type;
	return put_field(out, 1, piece, n);
}

enum { UNKNOWN = 2, CONTROL = 3 };

static void a_model_without_pieces_makes_unknown_tokens_as_the_library_does(void **state)
{
	(void)state;
	for (char algorithm = 1; algorithm <= 4; algorithm++) {
		char file[256];
		const char trainer[] = {3 << 3, algorithm};
		size_t n = put_piece(file, "<unk>", UNKNOWN);
		n += put_piece(file + n, "<s>", CONTROL);
		n += put_field(file + n, 2, trainer, sizeof trainer);
		tokenizer *t;
		token_list list;
		assert_int_equal(tokenizer_open_data(&t, file, n, NULL), STATUS_OK);
		assert_int_equal(tokenizer_encode(t, "hello world", 11, NULL, &list, NULL), STATUS_OK);
		assert_int_equal(list.count, 1);
		assert_int_equal(list.ids[0], 0);
		token_list_fini(&list);
		tokenizer_free(t);
	}
}

static void a_unigram_model_whose_tokens_are_all_special_drops_every_text(void **state)
{
	(void)state;
	tokenizer *t;
	error err = ERROR_INIT;
	if (open_text(&t,
	              "{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"<s>\", 0]]}, "
	              "\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true}]}",
	              &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_encoded(t, "hello", 0);
	tokenizer_free(t);
}

/* A table with one rule: "a" becomes `bytes` bytes. */
static size_t put_rule(char *out, size_t bytes)
{
	enum { UNITS = 256 };
	uint32_t units[UNITS] = {0};
	units[0] = UINT32_C(128) << 10;                   /* the root's children are at 128 */
	units[128 ^ 'a'] = UINT32_C(1) << 10 | 1 << 8 | 'a'; /* a text ends here; its value is one place further */
	units[128 ^ 'a' ^ 1] = UINT32_C(1) << 31;         /* replacement 0 */
	const uint32_t size = sizeof units;
	memcpy(out, &size, 4);
	memcpy(out + 4, units, sizeof units);
	memset(out + 4 + sizeof units, 'b', bytes);
	out[4 + sizeof units + bytes] = 0;
	return 4 + sizeof units + bytes + 1;
}

static void normalization_rules_with_too_much_output_are_refused(void **state)
{
	(void)state;
	enum { MADE = 20000 };
	char *table = malloc(2 * MADE), *rules = malloc(2 * MADE), *file = malloc(4 * MADE);
	const size_t bytes = put_rule(table, MADE);
	size_t n = put_piece(file, "<unk>", UNKNOWN);
	n += put_piece(file + n, "b", 1);
	n += put_field(file + n, 3, rules, put_field(rules, 2, table, bytes));
	tokenizer *t;
	token_list list;
	error err = ERROR_INIT;
	if (tokenizer_open_data(&t, file, n, &err) != STATUS_OK)
		fail_msg("%s", error_message(&err));
	assert_int_equal(tokenizer_encode(t, "a", 1, NULL, &list, NULL), STATUS_OK);
	assert_true(list.count >= MADE);
	token_list_fini(&list);
	assert_refused(t, "aaaaaaaa", 8, false);
	assert_refused(t, "aaaaaaaa", 8, true);
	tokenizer_free(t);
	free(file);
	free(rules);
	free(table);
}

/* --- time ------------------------------------------------------------------------------------------------- */

static void a_pattern_that_scans_to_the_end_from_each_character_is_stopped(void **state)
{
	(void)state;
	static const char *const patterns[] = {"(?=.*b)a", "a(?=.*b)|a"};
	char *text = repeated("a", 400000);
	for (size_t i = 0; i < 2; i++) {
		char part[200];
		sprintf(part,
		        "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
		        "\"behavior\": \"Isolated\", \"invert\": false}",
		        patterns[i]);
		tokenizer *t = open_with(part);
		token_list list;
		error err = ERROR_INIT;
		assert_int_equal(tokenizer_encode(t, text, strlen(text), NULL, &list, &err), STATUS_TOO_LARGE);
		assert_non_null(strstr(err.message, "too many steps"));
		assert_encoded(t, "aaab", 3);
		tokenizer_free(t);
	}
	free(text);
}

/* --- chat templates --------------------------------------------------------------------------------------- */

static void a_chat_template_adds_a_bounded_amount_of_text(void **state)
{
	(void)state;
	char *prefix = repeated("p", 600000);
	json_t *form = json_pack("{s:{s:s, s:s}, s:{s:s, s:s}}", "user", "prefix", prefix, "suffix", "", "assistant",
	                         "prefix", "", "suffix", "");
	json_t *one = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
	json_t *two = json_pack("[{s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "x", "role", "user", "content", "y");
	chat_template *t;
	chat_text text;
	error err = ERROR_INIT;
	assert_int_equal(chat_template_new(&t, &(chat_template_source){.declared = form}, &err), STATUS_OK);
	assert_int_equal(chat_template_render(t, one, NULL, false, true, &text, &err), STATUS_OK);
	chat_text_fini(&text);
	assert_int_equal(chat_template_render(t, two, NULL, false, true, &text, &err), STATUS_TOO_LARGE);
	assert_non_null(strstr(err.message, "grow too much"));
	assert_null(text.text);
	chat_template_free(t);
	json_decref(one);
	json_decref(two);
	json_decref(form);
	free(prefix);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(replacements_of_replacements_are_refused_before_they_fill_memory),
	    cmocka_unit_test(a_short_text_may_grow_by_an_allowance_and_a_long_one_by_a_factor),
	    cmocka_unit_test(text_inserted_before_pieces_is_bounded_in_total),
	    cmocka_unit_test(an_added_token_that_normalization_makes_too_long_is_refused),
	    cmocka_unit_test(ids_far_past_the_number_of_tokens_are_refused),
	    cmocka_unit_test(a_name_too_long_for_a_token_is_refused_in_every_model),
	    cmocka_unit_test(a_model_without_pieces_makes_unknown_tokens_as_the_library_does),
	    cmocka_unit_test(a_unigram_model_whose_tokens_are_all_special_drops_every_text),
	    cmocka_unit_test(normalization_rules_with_too_much_output_are_refused),
	    cmocka_unit_test(a_pattern_that_scans_to_the_end_from_each_character_is_stopped),
	    cmocka_unit_test(a_chat_template_adds_a_bounded_amount_of_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
