#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "server/sse.h"

static void expect(const char *id, const char *data, const char *expected)
{
	buffer out = {0};
	sse_event(&out, id, data, strlen(data));
	assert_false(out.failed);
	assert_int_equal(out.used, strlen(expected));
	assert_memory_equal(out.data, expected, out.used);
	buffer_fini(&out);
}

static void an_event_consists_of_its_id_and_its_data(void **state)
{
	(void)state;
	expect("7", "{\"a\":1}", "id: 7\ndata: {\"a\":1}\n\n");
	expect(NULL, "[DONE]", "data: [DONE]\n\n");
}

static void every_kind_of_line_end_starts_a_new_field(void **state)
{
	(void)state;
	expect(NULL, "a\nb\r\nc\rd", "data: a\ndata: b\ndata: c\ndata: d\n\n");
	expect(NULL, "a\n", "data: a\ndata: \n\n");
	expect(NULL, "\r", "data: \ndata: \n\n");
	expect(NULL, "", "data: \n\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_event_consists_of_its_id_and_its_data),
	    cmocka_unit_test(every_kind_of_line_end_starts_a_new_field),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
