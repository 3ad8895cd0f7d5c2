#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/text/tokenizer.h"
#include "tests/unit/support/allocations.h"

#define FOLDER "tests/data/tokenizers/qwen2"

static tokenizer *open_tokenizer(void)
{
	tokenizer *t;
	assert_int_equal(tokenizer_open(&t, FOLDER, 1 << 20, NULL), STATUS_OK);
	return t;
}

static void every_allocation_of_encoding_may_fail(void **state)
{
	(void)state;
	static const char text[] = "e\xCC\x81 <|im_end|> the state \xFF of <tool_call>12345 "
	                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
	const byte_range whole = {0, sizeof text - 1};
	const encode_options options = {&whole, 1, true, true};
	tokenizer *t = open_tokenizer();
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

static void every_allocation_of_opening_may_fail(void **state)
{
	(void)state;
	bool refused = true;
	for (int64_t n = 0; refused && n < 400; n++) {
		tokenizer *t;
		allocations_fail(n, true);
		const status s = tokenizer_open(&t, FOLDER, 1 << 20, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_true((s == STATUS_OK) == (t != NULL));
		assert_true(!refused || s == STATUS_NOMEM);
		tokenizer_free(t);
	}
	assert_false(refused);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_allocation_of_encoding_may_fail),
	    cmocka_unit_test(every_allocation_of_opening_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
