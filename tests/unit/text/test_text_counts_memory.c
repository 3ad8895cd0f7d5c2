#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/text/text_counts.h"
#include "tests/unit/support/allocations.h"

static void fail_each(const char *text, record_kind records)
{
	tokenizer *t;
	chat_template *plain;
	assert_int_equal(tokenizer_new(&t, NULL, NULL), STATUS_OK);
	assert_int_equal(chat_template_new(&plain, &(chat_template_source){0}, NULL), STATUS_OK);
	const conversation_template chat = {plain, NULL};
	const text_counts_options o = {
	    .tokenizer = t, .chat = &chat, .records = records, .documents = 1024, .piece_bytes = 32};
	bool refused = true;
	for (int64_t n = 0; refused; n++) {
		byte_source *source;
		text_counts c;
		assert_int_equal(byte_source_memory(&source, text, strlen(text), NULL), STATUS_OK);
		allocations_fail(n, true);
		const status s = text_counts_read(&c, source, &o, NULL);
		refused = allocations_refused();
		allocations_limit(-1);
		assert_int_equal(s, refused ? STATUS_NOMEM : STATUS_OK);
		assert_true(refused || c.documents == 3);
		text_counts_fini(&c);
	}
	chat_template_free(plain);
	tokenizer_free(t);
}

static void every_allocation_for_running_text_may_fail(void **state)
{
	(void)state;
	fail_each("the first line of a text\nand the second\nand \xff the third", RECORD_BLOCK);
}

static void every_allocation_for_data_may_fail(void **state)
{
	(void)state;
	fail_each("{\"text\": \"a\"}\n{\"prompt\": \"b\", \"completion\": \"c\"}\n"
	          "{\"messages\": [{\"role\": \"user\", \"content\": \"d\"}, {\"role\": \"assistant\", \"content\": "
	          "\"e\"}]}\n",
	          RECORD_BLOCK);
	fail_each("{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": 2}\n{\"text\": \"b\", \"label\": 2}\n",
	          RECORD_LABELLED);
	fail_each("{\"source\": \"a\", \"target\": \"b\"}\n{\"source\": \"a\", \"target\": \"\"}\n{\"source\": \"c\", "
	          "\"target\": \"b\"}",
	          RECORD_PAIR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(every_allocation_for_running_text_may_fail),
	    cmocka_unit_test(every_allocation_for_data_may_fail),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
