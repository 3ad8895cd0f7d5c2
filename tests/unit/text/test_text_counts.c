/* Counts of texts, compared with slow ones of the whole text, and with the datasets of the same text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/text/labelled.h"
#include "engine/text/pairs.h"
#include "engine/text/text_counts.h"
#include "tests/unit/support/random.h"

enum { TEXT_BYTES = 20000, MANY = 1 << 20 };

static const char *const tokenizers[] = {NULL, "tests/data/tokenizers/qwen2", "tests/data/tokenizers/llama2",
                                         "tests/data/tokenizers/wordpiece", "tests/data/tokenizers/t5"};
enum { TOKENIZERS = sizeof tokenizers / sizeof *tokenizers };

static tokenizer *open_tokenizer(const char *folder)
{
	tokenizer *t;
	error err = ERROR_INIT;
	status s = folder ? tokenizer_open(&t, folder, INT64_MAX, &err) : tokenizer_new(&t, NULL, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return t;
}

static status count(text_counts *out, const char *text, size_t bytes, const tokenizer *t, record_kind records,
                    size_t piece, error *err)
{
	byte_source *source;
	chat_template *plain;
	assert_int_equal(byte_source_memory(&source, text, bytes, NULL), STATUS_OK);
	assert_int_equal(chat_template_new(&plain, &(chat_template_source){0}, NULL), STATUS_OK);
	const conversation_template chat = {plain, NULL};
	const text_counts_options o = {
	    .tokenizer = t, .chat = &chat, .records = records, .documents = MANY, .piece_bytes = piece};
	status s = text_counts_read(out, source, &o, err);
	chat_template_free(plain);
	return s;
}

static text_counts count_text(const char *text, const tokenizer *t, record_kind records)
{
	text_counts c;
	error err = ERROR_INIT;
	status s = count(&c, text, strlen(text), t, records, 0, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	return c;
}

static int64_t duplicates(const text_counts *c)
{
	bool estimated;
	const int64_t n = duplicate_count_value(c->duplicates, &estimated);
	assert_false(estimated);
	return n;
}

/* --- the parts ----------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static void percentiles_are_those_of_the_sorted_lengths(void **state)
{
	(void)state;
	enum { MOST = 3000 };
	static int64_t lengths[MOST];
	static const int percents[] = {1, 50, 90, 99, 100};
	uint64_t seed = 5;
	for (int round = 0; round < 60; round++) {
		const int n = (int)random_next(&seed, 1, round < 30 ? 7 : MOST);
		const int64_t limit = round % 3 == 0 ? 4095 : round % 3 == 1 ? 100000 : INT64_MAX;
		length_counts c;
		assert_int_equal(length_counts_init(&c, NULL), STATUS_OK);
		for (int i = 0; i < n; i++) {
			lengths[i] = random_next(&seed, 0, limit - 1);
			length_counts_add(&c, lengths[i]);
		}
		qsort(lengths, (size_t)n, sizeof *lengths, compare);
		assert_true(c.n == n && c.least == lengths[0] && c.most == lengths[n - 1]);
		for (size_t p = 0; p < sizeof percents / sizeof *percents; p++) {
			int rank = 1;
			while (rank * 100 < percents[p] * n)
				rank++;
			const int64_t right = lengths[rank - 1], got = length_counts_percentile(&c, percents[p]);
			assert_true(got <= right && right - got <= (right < 4096 ? 0 : right / 2048));
		}
		length_counts_fini(&c);
	}
}

/* Add `each` copies of n different hashes, one after another or in rounds. */
static int64_t add_hashes(int64_t limit, int n, int each, bool *estimated)
{
	duplicate_count *d;
	digest_stream *s = digest_stream_new();
	assert_int_equal(duplicate_count_new(&d, limit, NULL), STATUS_OK);
	for (int copy = 0; copy < each; copy++)
		for (int i = 0; i < n; i++) {
			digest_stream_reset(s);
			digest_stream_add(s, &i, sizeof i);
			assert_int_equal(duplicate_count_add(d, digest_stream_wide(s), NULL), STATUS_OK);
		}
	const int64_t value = duplicate_count_value(d, estimated);
	duplicate_count_free(d);
	digest_stream_free(s);
	return value;
}

static void duplicates_are_exact_up_to_the_limit_and_estimated_beyond_it(void **state)
{
	(void)state;
	bool estimated;
	assert_int_equal(add_hashes(4096, 4096, 3, &estimated), 8192);
	assert_false(estimated);
	assert_int_equal(add_hashes(4096, 200000, 1, &estimated), 0);
	assert_true(estimated);
	const int64_t n = add_hashes(4096, 200000, 3, &estimated);
	assert_true(estimated && n > 360000 && n < 440000);
	assert_int_equal(add_hashes(1, 1, 5, &estimated), 4);
	assert_false(estimated);
}

static void scripts_are_named_and_sorted_by_their_characters(void **state)
{
	(void)state;
	static const uint32_t text[] = {'a', 'b', 0xe9, ' ', '1', 0x4e2d, 0x3b1, 0x3b2, 0x301, 0x10ffff};
	static const struct {
		const char *name;
		int64_t n;
	} right[] = {{"Latin", 3}, {"Common", 2}, {"Greek", 2}, {"Han", 1}, {"Inherited", 1}, {"Unknown", 1}};
	script_counts c = {0};
	int64_t n;
	for (size_t i = 0; i < sizeof text / sizeof *text; i++)
		script_counts_add(&c, text[i]);
	for (int i = 0; i < 6; i++) {
		assert_string_equal(script_counts_at(&c, i, &n), right[i].name);
		assert_int_equal(n, right[i].n);
	}
	assert_null(script_counts_at(&c, 6, &n));
}

/* --- running text ---------------------------------------------------------------------------- */

/* Random lines: words of several scripts, some of them again, blank ones, ends of three kinds, and broken bytes. */
static size_t make_text(char *out, uint64_t seed, bool broken)
{
	static const char *const words[] = {"a",
	                                    "the",
	                                    " ",
	                                    "  ",
	                                    "\t",
	                                    "\n",
	                                    "\n",
	                                    "\r\n",
	                                    "\r",
	                                    "na\xc3\xafve",
	                                    "\xe4\xb8\xad\xe6\x96\x87",
	                                    "\xf0\x9f\x98\x80",
	                                    "x1",
	                                    ".",
	                                    "aa bb"};
	static const char *const faults[] = {"\xff", "\xe4\xb8", "\xc3", "\xed\xa0\x80"};
	enum { WORDS = sizeof words / sizeof *words };
	size_t n = 0;
	while (n < TEXT_BYTES - 8) {
		const bool fault = broken && random_next(&seed, 0, 40) == 0;
		const char *word = fault ? faults[random_next(&seed, 0, 3)] : words[random_next(&seed, 0, WORDS - 1)];
		memcpy(out + n, word, strlen(word));
		n += strlen(word);
	}
	return n;
}

typedef struct slow {
	int64_t documents, characters, duplicates, invalid_lines, least, most;
} slow;

static bool is_blank(const char *line, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strchr(" \t\v\f", line[i]))
			return false;
	return true;
}

static int64_t count_characters(const char *text, size_t n)
{
	int64_t characters = 0;
	for (size_t i = 0; i < n; i++)
		characters += (text[i] & 0xc0) != 0x80;
	return characters;
}

/* Replace broken bytes in place. Returns the number of lines with them. */
static int64_t repair(char *text, size_t n)
{
	int64_t lines = 0;
	bool counted = false;
	for (size_t i = 0; i < n;) {
		size_t bytes;
		if (utf8_next((unsigned char *)text + i, n - i, &bytes) == UTF8_WHOLE) {
			counted &= text[i] != '\n';
			i += bytes;
			continue;
		}
		text[i++] = '?';
		lines += !counted;
		counted = true;
	}
	return lines;
}

static slow count_slowly(const char *text, size_t n)
{
	static struct {
		const char *line;
		size_t bytes;
	} all[TEXT_BYTES];
	slow s = {.characters = count_characters(text, n), .least = INT64_MAX};
	for (size_t at = 0; at < n;) {
		size_t end = at;
		while (end < n && text[end] != '\n' && text[end] != '\r')
			end++;
		if (!is_blank(text + at, end - at)) {
			const int64_t length = count_characters(text + at, end - at);
			bool found = false;
			for (int64_t i = 0; i < s.documents; i++)
				found |= all[i].bytes == end - at && memcmp(all[i].line, text + at, end - at) == 0;
			s.duplicates += found;
			s.least = length < s.least ? length : s.least;
			s.most = length > s.most ? length : s.most;
			all[s.documents].line = text + at;
			all[s.documents++].bytes = end - at;
		}
		at = end + 1;
	}
	return s;
}

static int64_t dataset_tokens_of(const char *text, size_t n, const tokenizer *t, size_t piece)
{
	byte_source *source;
	token_cache *cache;
	error err = ERROR_INIT;
	assert_int_equal(byte_source_memory(&source, text, n, NULL), STATUS_OK);
	status s = corpus_tokens_build(&cache, source, t, &(corpus_tokens_options){.piece_bytes = piece}, &err);
	assert_string_equal(err.message, "");
	assert_int_equal(s, STATUS_OK);
	const int64_t tokens = token_cache_tokens(cache);
	token_cache_free(cache);
	return tokens;
}

static void running_text_has_the_counts_of_the_whole_whatever_its_pieces(void **state)
{
	(void)state;
	static char text[TEXT_BYTES], whole[TEXT_BYTES];
	static const size_t pieces[] = {16, 1000, 0};
	for (int round = 0; round < 3 * TOKENIZERS; round++) {
		tokenizer *t = open_tokenizer(tokenizers[round % TOKENIZERS]);
		const size_t n = make_text(text, (uint64_t)round, round >= TOKENIZERS),
		             piece = pieces[round / TOKENIZERS];
		text_counts c;
		memcpy(whole, text, n);
		const int64_t invalid = repair(whole, n);
		const slow right = count_slowly(whole, n);
		assert_true((invalid > 0) == (round >= TOKENIZERS) && right.duplicates > 0);
		assert_int_equal(count(&c, text, n, t, RECORD_BLOCK, piece, NULL), STATUS_OK);
		assert_false(c.data);
		assert_int_equal(c.documents, right.documents);
		assert_int_equal(c.characters, right.characters);
		assert_int_equal(c.invalid_lines, invalid);
		assert_int_equal(duplicates(&c), right.duplicates);
		assert_true(c.lengths[0].least == right.least && c.lengths[0].most == right.most);
		assert_int_equal(c.tokens, dataset_tokens_of(whole, n, t, piece));
		int64_t scripts = 0, one;
		for (int i = 0; script_counts_at(&c.scripts, i, &one); i++)
			scripts += one;
		assert_int_equal(scripts, right.characters);
		text_counts_fini(&c);
		tokenizer_free(t);
	}
}

static void a_token_belongs_to_the_line_in_which_it_begins(void **state)
{
	tokenizer *t = *state;
	text_counts c = count_text("abc\n\n  \nde\r\n\xc3\xa9", t, RECORD_BLOCK);
	assert_int_equal(c.documents, 3);
	assert_int_equal(c.tokens, 14);
	assert_int_equal(c.characters, 13);
	assert_true(c.lengths[1].least == 2 && c.lengths[1].most == 3 &&
	            length_counts_percentile(&c.lengths[1], 50) == 2);
	assert_true(c.lengths[0].least == 1 && c.lengths[0].most == 3);
	text_counts_fini(&c);
}

static void an_empty_text_has_no_document(void **state)
{
	text_counts c = count_text("", *state, RECORD_BLOCK);
	assert_true(c.documents == 0 && c.tokens == 0 && c.characters == 0 && c.lengths[0].n == 0);
	text_counts_fini(&c);
}

/* --- data -------------------------------------------------------------------------------------- */

static const char documents_text[] =
    "{\"text\": \"ab\"}\n{\"text\": \"ab\", \"more\": 1}\n\n{\"prompt\": \"a\", \"completion\": \"b\"}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": "
    "\"\xc3\xa9\"}]}\n"
    "{\"messages\": [{\"content\": \"Hi\", \"role\": \"user\"}, {\"role\": \"assistant\", \"content\": "
    "\"\xc3\xa9\"}]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"H\"}, {\"role\": \"assistant\", \"content\": "
    "\"i\xc3\xa9\"}]}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"H\"}, {\"type\": \"text\", "
    "\"text\": \"\xc3\xa9\"}]}, {\"role\": \"assistant\", \"content\": \"i\"}]}\n";

static void documents_of_data_have_the_tokens_of_a_dataset(void **state)
{
	(void)state;
	for (int i = 0; i < TOKENIZERS; i++) {
		tokenizer *t = open_tokenizer(tokenizers[i]);
		text_counts c = count_text(documents_text, t, RECORD_BLOCK);
		assert_true(c.data && c.documents == 7 && c.characters == 18);
		assert_int_equal(duplicates(&c),
		                 2); /* not the pair, and not the conversation that is divided otherwise */
		assert_true(c.lengths[0].least == 2 && c.lengths[0].most == 3);
		assert_int_equal(c.tokens, dataset_tokens_of(documents_text, strlen(documents_text), t, 0));
		text_counts_fini(&c);
		tokenizer_free(t);
	}
}

static void labelled_texts_have_the_tokens_of_their_records(void **state)
{
	(void)state;
	static const char text[] = "{\"text\": \"a b\", \"text_pair\": \"c\", \"label\": 1}\n"
	                           "{\"text\": \"a b\", \"text_pair\": \"c\", \"label\": 2}\n"
	                           "{\"text\": \"a\", \"text_pair\": \" bc\", \"label\": 1}\n"
	                           "{\"text\": \"a b\", \"text_pair\": \"c\", \"label\": 1, \"id\": 4}\n";
	for (int i = 0; i < TOKENIZERS; i++) {
		tokenizer *t = open_tokenizer(tokenizers[i]);
		byte_source *source;
		labelled_text records;
		assert_int_equal(byte_source_memory(&source, text, strlen(text), NULL), STATUS_OK);
		assert_int_equal(labelled_text_build(&records, source, t, 500, NULL, &(corpus_tokens_options){0}, NULL),
		                 STATUS_OK);
		text_counts c = count_text(text, t, RECORD_LABELLED);
		assert_int_equal(c.documents, records.text.records);
		assert_int_equal(c.tokens, token_cache_tokens(records.text.tokens));
		assert_true(c.characters == 16 && duplicates(&c) == 1);
		labelled_text_close(&records);
		text_counts_fini(&c);
		tokenizer_free(t);
	}
}

static void pairs_have_the_tokens_of_their_records(void **state)
{
	(void)state;
	static const char text[] =
	    "{\"source\": \"a b\", \"target\": \"c\"}\n{\"source\": \"a\", \"target\": \" bc\"}\n"
	    "{\"target\": \"c\", \"source\": \"a b\"}\n{\"source\": \"x\", \"target\": \"\"}\n";
	for (int i = 0; i < TOKENIZERS; i++) {
		tokenizer *t = open_tokenizer(tokenizers[i]);
		byte_source *source;
		record_text records;
		if (tokenizer_end(t) != TOKEN_NONE) {
			assert_int_equal(byte_source_memory(&source, text, strlen(text), NULL), STATUS_OK);
			assert_int_equal(pairs_build(&records, source, t, (pair_lengths){500, 500},
			                             &(corpus_tokens_options){0}, NULL),
			                 STATUS_OK);
			text_counts c = count_text(text, t, RECORD_PAIR);
			assert_int_equal(c.documents, records.records);
			assert_int_equal(c.tokens, token_cache_tokens(records.tokens));
			assert_true(c.characters == 13 && duplicates(&c) == 1);
			record_text_close(&records);
			text_counts_fini(&c);
		}
		tokenizer_free(t);
	}
}

static void broken_bytes_in_data_are_counted_by_lines_and_lines_keep_their_numbers(void **state)
{
	static const char text[] =
	    "{\"text\": \"a\xff\xff\"}\n{\"text\": \"b\xe4\"}\n{\"text\": \"c\"}\n{\"text\": 4}\n";
	text_counts c;
	error err = ERROR_INIT;
	assert_int_equal(count(&c, text, strlen(text), *state, RECORD_BLOCK, 0, &err), STATUS_INVALID);
	assert_non_null(strstr(err.message, "line 4:"));
	assert_true(c.invalid_lines == 2 && c.documents == 3 && c.characters == 6);
	text_counts_fini(&c);
}

static void a_line_that_a_dataset_refuses_is_refused(void **state)
{
	static const struct {
		const char *text, *message;
		record_kind records;
	} cases[] = {
	    {"{\"text\": \"a\"}\n{\"words\": 1}\n", "line 2: needs \"text\"", RECORD_BLOCK},
	    {"{\"text\": \"a\"}\n{\"text\": \n", "line 2", RECORD_BLOCK},
	    {"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\"}\n", "line 2: needs a \"label\"", RECORD_LABELLED},
	    {"{\"text\": \"a\", \"label\": true}\n", "line 1: \"label\" must be", RECORD_LABELLED},
	    {"{\"text\": 1, \"label\": 1}\n", "line 1: \"text\" must be a string", RECORD_LABELLED},
	    {"{\"source\": \"a\"}\n", "line 1: needs a string \"target\"", RECORD_PAIR},
	    {"\n[1]\n", "line 2: not a JSON object", RECORD_PAIR}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		text_counts c;
		error err = ERROR_INIT;
		assert_int_equal(count(&c, cases[i].text, strlen(cases[i].text), *state, cases[i].records, 0, &err),
		                 STATUS_INVALID);
		assert_non_null(strstr(err.message, cases[i].message));
		text_counts_fini(&c);
	}
}

static int set_up(void **state)
{
	*state = open_tokenizer(NULL);
	return 0;
}

static int tear_down(void **state)
{
	tokenizer_free(*state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(percentiles_are_those_of_the_sorted_lengths),
	    cmocka_unit_test(duplicates_are_exact_up_to_the_limit_and_estimated_beyond_it),
	    cmocka_unit_test(scripts_are_named_and_sorted_by_their_characters),
	    cmocka_unit_test(running_text_has_the_counts_of_the_whole_whatever_its_pieces),
	    cmocka_unit_test(a_token_belongs_to_the_line_in_which_it_begins),
	    cmocka_unit_test(an_empty_text_has_no_document),
	    cmocka_unit_test(documents_of_data_have_the_tokens_of_a_dataset),
	    cmocka_unit_test(labelled_texts_have_the_tokens_of_their_records),
	    cmocka_unit_test(pairs_have_the_tokens_of_their_records),
	    cmocka_unit_test(broken_bytes_in_data_are_counted_by_lines_and_lines_keep_their_numbers),
	    cmocka_unit_test(a_line_that_a_dataset_refuses_is_refused),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
