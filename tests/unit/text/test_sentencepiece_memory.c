/* SentencePiece when memory is short: every allocation fails once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/text/tokenizer.h"
#include "tests/unit/support/allocations.h"

static status open_and_encode(const char *folder, const char *text, token_list *out)
{
	tokenizer *t;
	byte_range all = {0, strlen(text)};
	encode_options o = {.trusted = &all, .n_trusted = 1, .begin = true, .end = true, .spans = true};
	*out = (token_list){0};
	TRY(tokenizer_open(&t, folder, INT32_MAX, NULL));
	status s = tokenizer_encode(t, text, strlen(text), &o, out, NULL);
	tokenizer_free(t);
	return s;
}

static void a_failed_allocation_is_an_error_and_the_next_try_succeeds(void **state)
{
	(void)state;
	static const char *const folders[] = {"tests/data/tokenizers/unigram", "tests/data/tokenizers/bpe"};
	static const char text[] = "the model <control> reads  tokens\n and \xE6\xBC\xA2";
	for (int f = 0; f < 2; f++) {
		token_list want;
		assert_int_equal(open_and_encode(folders[f], text, &want), STATUS_OK);
		for (int64_t n = 0;; n++) {
			token_list got;
			allocations_fail(n, true);
			status s = open_and_encode(folders[f], text, &got);
			allocations_limit(-1);
			if (!allocations_refused()) {
				assert_int_equal(s, STATUS_OK);
				assert_int_equal(got.count, want.count);
				assert_memory_equal(got.ids, want.ids, got.count * sizeof *got.ids);
				token_list_fini(&got);
				assert_true(n > 10);
				break;
			}
			assert_int_not_equal(s, STATUS_OK);
			assert_null(got.ids);
		}
		token_list_fini(&want);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_failed_allocation_is_an_error_and_the_next_try_succeeds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
