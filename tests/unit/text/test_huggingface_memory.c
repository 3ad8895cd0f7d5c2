#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/unit/support/allocations.h"

static const char *const folders[] = {"tests/data/tokenizers/qwen2", "tests/data/tokenizers/t5",
                                      "tests/data/tokenizers/unigram_bytes", "tests/data/tokenizers/wordpiece",
                                      "tests/data/tokenizers/capital_pieces"};
enum { FOLDERS = sizeof folders / sizeof *folders };

static void fail_each_of_encoding(const char *folder)
{
	static const char text[] = "e\xCC\x81 <|im_end|> the state \xFF of <tool_call>12345 "
	                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	const byte_range whole = {0, sizeof text - 1};
	const encode_options options = {.trusted = &whole, .n_trusted = 1, .begin = true, .end = true, .spans = true};
	tokenizer *t;
	assert_int_equal(tokenizer_open(&t, folder, 1 << 20, NULL), STATUS_OK);
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		token_list list;
		allocations_fail(n, true);
		const status s = tokenizer_encode(t, text, sizeof text - 1, &options, &list, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_true((list.ids != NULL) == !refused);
		token_list_fini(&list);
	}
	tokenizer_free(t);
}

/* A failed allocation when a thread is started is no error: the other threads do its work. */
static void every_allocation_for_a_long_text_may_fail(void **state)
{
	(void)state;
	enum { WORDS = 50000, BYTES = 6 * WORDS };
	const encode_options options = {.spans = true, .threads = 2};
	tokenizer *t;
	assert_int_equal(tokenizer_open(&t, folders[0], 1 << 20, NULL), STATUS_OK);
	char *text = malloc(BYTES);
	for (int i = 0; i < WORDS; i++)
		memcpy(text + (size_t)6 * (size_t)i, " token", 6);
	token_list want;
	assert_int_equal(tokenizer_encode(t, text, BYTES, &options, &want, NULL), STATUS_OK);
	int failures = 0;
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		token_list list;
		allocations_fail(n, true);
		const status s = tokenizer_encode(t, text, BYTES, &options, &list, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		failures += s == STATUS_NOMEM;
		assert_true(s == STATUS_OK || (s == STATUS_NOMEM && refused && !list.ids));
		assert_true(s != STATUS_OK || (list.count == want.count &&
		                               memcmp(list.ids, want.ids, want.count * sizeof *want.ids) == 0));
		token_list_fini(&list);
	}
	assert_true(failures > 10);
	token_list_fini(&want);
	free(text);
	tokenizer_free(t);
}

static void every_allocation_of_encoding_may_fail(void **state)
{
	(void)state;
	for (int f = 0; f < FOLDERS; f++)
		fail_each_of_encoding(folders[f]);
}

static void fail_each_of_opening(const char *folder)
{
	bool refused = true;
	for (int64_t n = 0; refused && n < 400; n++) {
		tokenizer *t;
		allocations_fail(n, true);
		const status s = tokenizer_open(&t, folder, 1 << 20, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true((s == STATUS_OK) == (t != NULL));
		assert_true(!refused || s == STATUS_NOMEM);
		tokenizer_free(t);
	}
	assert_false(refused);
}

static void every_allocation_of_opening_may_fail(void **state)
{
	(void)state;
	for (int f = 0; f < FOLDERS; f++)
		fail_each_of_opening(folders[f]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_allocation_of_encoding_may_fail),
	    cmocka_unit_test(every_allocation_for_a_long_text_may_fail),
	    cmocka_unit_test(every_allocation_of_opening_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
