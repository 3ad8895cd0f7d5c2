/* test_token_history.c - tokens in chunks that copies share. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "engine/serve/token_history.h"

enum { MOST = 3 * TOKEN_CHUNK + 5 };

/* Append the tokens first, first + 1, … */
static void append_numbers(token_history *h, int32_t first, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		const int32_t token = first + (int32_t)i;
		assert_int_equal(token_history_reserve(h, h->count + 1), STATUS_OK);
		token_history_append(h, &token, 1);
	}
}

/* The history has the tokens 0, 1, … below `same`, then first, first + 1, … */
static void assert_numbers(const token_history *h, int64_t same, int32_t first)
{
	static int32_t out[4 * TOKEN_CHUNK];
	token_history_read(h, 0, h->count, out);
	for (int64_t i = 0; i < h->count; i++) {
		const int32_t expected = i < same ? (int32_t)i : first + (int32_t)(i - same);
		assert_int_equal(out[i], expected);
		assert_int_equal(token_history_at(h, i), expected);
	}
}

static void tokens_are_appended_and_read_in_pieces_of_any_size(void **state)
{
	static int32_t in[MOST], out[MOST];
	static const int64_t pieces[] = {1, 63, 64, 65, TOKEN_CHUNK - 1, TOKEN_CHUNK, TOKEN_CHUNK + 1, MOST};
	(void)state;
	for (int32_t i = 0; i < MOST; i++)
		in[i] = 7 * i;
	for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
		token_history h = {0};
		for (int64_t n; h.count < MOST;) {
			n = MOST - h.count < pieces[p] ? MOST - h.count : pieces[p];
			assert_int_equal(token_history_reserve(&h, h.count + n), STATUS_OK);
			token_history_append(&h, in + h.count, n);
		}
		for (int64_t at = 0, n; at < MOST; at += n) {
			n = MOST - at < pieces[p] ? MOST - at : pieces[p];
			token_history_read(&h, at, n, out + at);
		}
		assert_memory_equal(out, in, sizeof in);
		token_history_fini(&h);
		assert_int_equal(h.count, 0);
	}
}

static void a_copy_and_its_original_grow_independently(void **state)
{
	static const int64_t lengths[] = {
	    0, 1, 64, 65, TOKEN_CHUNK - 1, TOKEN_CHUNK, TOKEN_CHUNK + 1, 2 * TOKEN_CHUNK, 2 * TOKEN_CHUNK + 70};
	(void)state;
	for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
		token_history h = {0}, copy, second;
		append_numbers(&h, 0, lengths[l]);
		assert_int_equal(token_history_copy(&copy, &h), STATUS_OK);
		append_numbers(&h, 1000000, TOKEN_CHUNK);
		assert_int_equal(token_history_copy(&second, &copy), STATUS_OK);
		append_numbers(&copy, 2000000, 3);
		append_numbers(&second, 3000000, 70);
		assert_numbers(&h, lengths[l], 1000000);
		assert_numbers(&copy, lengths[l], 2000000);
		token_history_fini(&h);
		token_history_fini(&copy);
		assert_numbers(&second, lengths[l], 3000000);
		token_history_fini(&second);
	}
}

static void a_copy_shares_full_chunks(void **state)
{
	(void)state;
	token_history h = {0}, copy;
	append_numbers(&h, 0, 2 * TOKEN_CHUNK + 5);
	assert_int_equal(token_history_copy(&copy, &h), STATUS_OK);
	assert_ptr_equal(copy.chunks[0], h.chunks[0]);
	assert_ptr_equal(copy.chunks[1], h.chunks[1]);
	assert_ptr_not_equal(copy.chunks[2], h.chunks[2]);
	assert_true(token_history_same(&copy, &h));
	append_numbers(&h, 0, 1);
	assert_false(token_history_same(&copy, &h));
	append_numbers(&copy, 1, 1);
	assert_false(token_history_same(&copy, &h));
	copy.count = h.count -= 1;
	assert_true(token_history_same(&copy, &h));
	token_history_fini(&h);
	assert_numbers(&copy, 2 * TOKEN_CHUNK + 5, 0);
	token_history_fini(&copy);
}

static void a_short_history_takes_little_memory(void **state)
{
	(void)state;
	token_history h = {0}, copy;
	append_numbers(&h, 0, 3);
	assert_int_equal(h.capacity, 64);
	append_numbers(&h, 3, 62);
	assert_int_equal(h.capacity, 128);
	assert_int_equal(token_history_copy(&copy, &h), STATUS_OK);
	assert_int_equal(copy.capacity, 65);
	assert_numbers(&copy, 65, 0);
	append_numbers(&copy, 65, TOKEN_CHUNK - 65);
	assert_int_equal(copy.capacity, TOKEN_CHUNK);
	append_numbers(&copy, TOKEN_CHUNK, 65);
	assert_int_equal(copy.capacity, TOKEN_CHUNK + 128);
	assert_numbers(&copy, TOKEN_CHUNK + 65, 0);
	token_history_fini(&h);
	token_history_fini(&copy);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(tokens_are_appended_and_read_in_pieces_of_any_size),
	    cmocka_unit_test(a_copy_and_its_original_grow_independently),
	    cmocka_unit_test(a_copy_shares_full_chunks),
	    cmocka_unit_test(a_short_history_takes_little_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
