/* test_sse.c - the event parser gives the same events however the bytes are split. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "clients/cli/sse.h"

#include <stdio.h>
#include <string.h>

/* Events, recorded as "id|data;" one after another. */
typedef struct log {
	text seen;
	int stop_after; /* 0: never */
	int count;
} log;

static bool take(void *context, const char *id, const char *data, size_t bytes)
{
	log *l = context;

	assert_int_equal(strlen(data), bytes);
	assert_true(text_format(&l->seen, "%s|%s;", id, data));
	return ++l->count != l->stop_after;
}

static void expect(const char *stream, const char *events)
{
	size_t n = strlen(stream);

	for (size_t piece = 1; piece <= n; piece++) {
		sse s = {0};
		log l = {0};

		for (size_t at = 0; at < n; at += piece)
			assert_int_equal(sse_feed(&s, stream + at, n - at < piece ? n - at : piece, take, &l), SSE_OK);
		assert_string_equal(text_get(&l.seen), events);
		sse_free(&s);
		text_free(&l.seen);
	}
	for (size_t cut = 0; cut <= n; cut++) {
		sse s = {0};
		log l = {0};

		assert_int_equal(sse_feed(&s, stream, cut, take, &l), SSE_OK);
		assert_int_equal(sse_feed(&s, stream + cut, n - cut, take, &l), SSE_OK);
		assert_string_equal(text_get(&l.seen), events);
		sse_free(&s);
		text_free(&l.seen);
	}
}

static void an_event_ends_with_an_empty_line(void **state)
{
	(void)state;
	expect("data: one\n\ndata: two\n\n", "|one;|two;");
	expect("data: one\n", "");
	expect("data: one\n\ndata: unfinished", "|one;");
}

static void all_three_line_ends_count_as_one(void **state)
{
	(void)state;
	expect("id: 1\r\ndata: a\r\n\r\nid: 2\rdata: b\r\rid: 3\ndata: c\n\n", "1|a;2|b;3|c;");
	expect("data: a\r\n\rdata: b\n\r\n", "|a;|b;");
}

static void data_lines_are_joined_and_one_space_is_dropped(void **state)
{
	(void)state;
	expect("data: a\ndata:b\ndata:  c\n\n", "|a\nb\n c;");
	expect("data\n\n", "|;");
	expect("data:\ndata:\n\n", "|\n;");
}

static void an_id_is_kept_until_the_next_one(void **state)
{
	(void)state;
	expect("id: 7\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", "7|a;7|b;|c;");
}

static void comments_and_other_fields_are_skipped(void **state)
{
	(void)state;
	expect(": ping\n\n:\n\nevent: x\nretry: 5\ndata: a\nunknown: 1\ndatax: 2\n\n", "|a;");
	expect("id: 1\n\n\n\ndata: a\n\n", "1|a;");
}

static void a_byte_order_mark_is_dropped_at_the_beginning_only(void **state)
{
	(void)state;
	expect("\xef\xbb\xbf"
	       "data: a\n\n\xef\xbb\xbf"
	       "data: b\n\n",
	       "|a;");
}

static void text_of_any_language_is_unchanged(void **state)
{
	(void)state;
	expect("id: 5\ndata: {\"text\":\"näive ☃ 🙂\"}\n\n", "5|{\"text\":\"näive ☃ 🙂\"};");
}

static void the_receiver_can_stop_the_stream(void **state)
{
	(void)state;
	static const char stream[] = "data: a\n\ndata: b\n\ndata: c\n\n";
	sse s = {0};
	log l = {.stop_after = 2};

	assert_int_equal(sse_feed(&s, stream, strlen(stream), take, &l), SSE_STOPPED);
	assert_string_equal(text_get(&l.seen), "|a;|b;");
	sse_free(&s);
	text_free(&l.seen);
}

static void an_endless_line_is_refused(void **state)
{
	(void)state;
	static char block[1 << 20];
	sse s = {0};
	log l = {0};
	sse_result r = SSE_OK;

	memset(block, 'x', sizeof(block));
	for (int i = 0; i < 80 && r == SSE_OK; i++)
		r = sse_feed(&s, block, sizeof(block), take, &l);
	assert_int_equal(r, SSE_TOO_LARGE);
	sse_free(&s);
}

static void an_endless_event_is_refused(void **state)
{
	(void)state;
	static char block[1 << 20];
	sse s = {0};
	log l = {0};
	sse_result r = SSE_OK;

	memset(block, 'x', sizeof(block));
	memcpy(block, "data: ", 6);
	block[sizeof(block) - 1] = '\n';
	for (int i = 0; i < 80 && r == SSE_OK; i++)
		r = sse_feed(&s, block, sizeof(block), take, &l);
	assert_int_equal(r, SSE_TOO_LARGE);
	assert_int_equal(l.count, 0);
	sse_free(&s);
}

static void an_id_that_is_too_long_is_not_taken(void **state)
{
	(void)state;
	char stream[400] = "id: ok\nid: ";

	memset(stream + strlen(stream), 'i', 200);
	strcat(stream, "\ndata: a\n\n");
	expect(stream, "ok|a;");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(an_event_ends_with_an_empty_line),
	    cmocka_unit_test(all_three_line_ends_count_as_one),
	    cmocka_unit_test(data_lines_are_joined_and_one_space_is_dropped),
	    cmocka_unit_test(an_id_is_kept_until_the_next_one),
	    cmocka_unit_test(comments_and_other_fields_are_skipped),
	    cmocka_unit_test(a_byte_order_mark_is_dropped_at_the_beginning_only),
	    cmocka_unit_test(text_of_any_language_is_unchanged),
	    cmocka_unit_test(the_receiver_can_stop_the_stream),
	    cmocka_unit_test(an_endless_line_is_refused),
	    cmocka_unit_test(an_endless_event_is_refused),
	    cmocka_unit_test(an_id_that_is_too_long_is_not_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
