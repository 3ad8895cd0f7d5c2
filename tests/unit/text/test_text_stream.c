#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/text/tokenizer.h"
#include "engine/base/utf8.h"

#define R "\xEF\xBF\xBD" /* U+FFFD */

/* One character of every length, and the bounds of every range of code points. */
static const char whole[] = "a\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xEC\xBF\xBF\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"
                            "\xF0\x90\x80\x80\xF3\xBF\xBF\xBF\xF4\x8F\xBF\xBFz";

/* Input (may contain NULs) and expected output. */
static const struct {
	const char *in;
	size_t bytes;
	const char *out;
} broken[] = {
    {"\x80", 1, R}, /* a continuation byte alone */
    {"\xBF\xBF", 2, R R},
    {"\xC0\xAF", 2, R R},             /* overlong; C0 never begins a character */
    {"\xE0\x80\xAF", 3, R R R},       /* overlong, three bytes */
    {"\xF0\x80\x80\xAF", 4, R R R R}, /* overlong, four bytes */
    {"\xED\xA0\x80", 3, R R R},       /* a surrogate */
    {"\xF4\x90\x80\x80", 4, R R R R}, /* above U+10FFFF */
    {"\xF5\xFE\xFF", 3, R R R},
    {"\xC2"
     "A",
     2, R "A"},
    {"\xE1\x80"
     "A",
     3, R "A"}, /* one maximal subpart of two bytes */
    {"\xF1\x80\x80"
     "A",
     4, R "A"}, /* one maximal subpart of three bytes */
    {"\xF0\x90\xF0\x90\x80\x80", 6, R "\xF0\x90\x80\x80"},
    {"\xE2\x82\xE2\x82\xAC", 5, R "\xE2\x82\xAC"},
    {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64", 13, "a" R R R "b" R "c" R R "d"}, /* Unicode's example */
    {"a\xC3", 2, "a" R},                                                                       /* cut at the end */
    {"a\xF0\x9F\x98", 4, "a" R},
};

/* Push text in two parts, flush, and compare; the output has a guard byte. */
static void assert_stream(const char *in, size_t bytes, size_t cut, const char *expected)
{
	char out[256];
	memset(out, '#', sizeof out);
	assert_true(3 * (bytes + 6) < sizeof out);
	text_stream s = {0};
	size_t n = text_stream_push(&s, in, cut, false, out);
	assert_true(n <= 3 * (cut + 3));
	n += text_stream_push(&s, in + cut, bytes - cut, true, out + n);
	assert_int_equal(n, strlen(expected));
	assert_memory_equal(out, expected, n);
	assert_int_equal(s.n_held, 0);
}

static void valid_text_is_unchanged_wherever_it_is_split(void **state)
{
	(void)state;
	for (size_t cut = 0; cut < sizeof whole; cut++)
		assert_stream(whole, sizeof whole - 1, cut, whole);
}

static void invalid_text_has_its_maximal_subparts_replaced_wherever_it_is_split(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
		for (size_t cut = 0; cut <= broken[i].bytes; cut++)
			assert_stream(broken[i].in, broken[i].bytes, cut, broken[i].out);
}

static void a_character_is_held_back_until_it_is_complete(void **state)
{
	(void)state;
	text_stream s = {0};
	char out[16];
	assert_int_equal(text_stream_push(&s, "\xF0\x9F", 2, false, out), 0);
	assert_int_equal(s.n_held, 2);
	assert_int_equal(text_stream_push(&s, "\x98", 1, false, out), 0);
	assert_int_equal(text_stream_push(&s, "\x80", 1, false, out), 4);
	assert_memory_equal(out, "\xF0\x9F\x98\x80", 4);
	assert_int_equal(s.n_held, 0);
}

static void every_output_is_valid_utf8_whatever_the_bytes(void **state)
{
	(void)state;
	for (unsigned a = 0; a < 256; a++)
		for (unsigned b = 0; b < 256; b++) {
			const char in[] = {(char)a, (char)b, 'x', (char)b, (char)a};
			char out[3 * (sizeof in + 3)];
			text_stream s = {0};
			size_t n = text_stream_push(&s, in, sizeof in, true, out);
			assert_int_equal(utf8_valid_prefix(out, n), n);
		}
}

static void the_valid_prefix_ends_at_the_first_broken_byte(void **state)
{
	(void)state;
	assert_int_equal(utf8_valid_prefix(whole, sizeof whole - 1), sizeof whole - 1);
	assert_int_equal(utf8_valid_prefix(NULL, 0), 0);
	assert_int_equal(utf8_valid_prefix("ab\xC3\xA9\xE2\x82", 6), 4);
	assert_int_equal(utf8_valid_prefix("ab\xFF"
	                                   "cd",
	                                   5),
	                 2);
}

/* Bytes pushed one by one: count characters that replace bytes of earlier pushes. */
static void characters_before_a_token_are_the_invalid_bytes_held_before_it(void **state)
{
	(void)state;
	static const struct {
		const char *in;
		size_t first, bytes;
		int before, before_each;
	} cases[] = {
	    {"\xC3"
	     "a",
	     1, 2, 1, 1},             /* made invalid by the next token */
	    {"\xC3\xA9", 1, 2, 0, 0}, /* completed */
	    {"\xF0\x9F"
	     "a",
	     2, 3, 1, 2}, /* two bytes become one character, or two */
	    {"\xF0\x9F"
	     "a",
	     1, 3, 0, 1},       /* invalid within the token */
	    {"ab", 1, 2, 0, 0}, /* nothing is held */
	    {"\xC3"
	     "a\xC3"
	     "b",
	     1, 4, 1, 1},                 /* invalid bytes of the token itself do not count */
	    {"\xEF\xBF\xBD", 2, 3, 0, 0}, /* a U+FFFD that is text */
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (int each = 0; each < 2; each++) {
			char out[64];
			text_stream s = {.each_byte = each};
			text_stream_push(&s, cases[i].in, cases[i].first, false, out);
			text_stream_push(&s, cases[i].in + cases[i].first, cases[i].bytes - cases[i].first, false, out);
			assert_int_equal(s.n_before, each ? cases[i].before_each : cases[i].before);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(valid_text_is_unchanged_wherever_it_is_split),
	    cmocka_unit_test(invalid_text_has_its_maximal_subparts_replaced_wherever_it_is_split),
	    cmocka_unit_test(a_character_is_held_back_until_it_is_complete),
	    cmocka_unit_test(every_output_is_valid_utf8_whatever_the_bytes),
	    cmocka_unit_test(characters_before_a_token_are_the_invalid_bytes_held_before_it),
	    cmocka_unit_test(the_valid_prefix_ends_at_the_first_broken_byte),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
