/* test_large_body.c - large bodies are parsed on the thread pool: while the pool is blocked, the loop serves other
 * requests, and clients may disconnect. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <uv.h>

#include "server/json_body.h"
#include "tests/unit/support/front.h"
#include "tests/unit/support/pool.h"

enum { LARGE = 512 << 10, ANSWER_BYTES = 64 << 10, SOON_MS = 50, QUIET_MS = 5000 };

/* --- requests ------------------------------------------------------------------------------ */

static front *the_front;

/* POST /v1/tokenize with a text of `bytes` bytes. */
static int post(size_t bytes, const char *more)
{
	char *text = malloc(bytes + 1024);
	size_t length = strlen("{\"model\":\"m\",\"text\":\"\"}") + strlen(more) + bytes;
	size_t n = (size_t)sprintf(text,
	                           "POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
	                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n{\"model\":\"m\"%s,"
	                           "\"text\":\"",
	                           length, more);
	memset(text + n, 'x', bytes);
	memcpy(text + n + bytes, "\"}", 2);
	int client = front_client(the_front);
	assert_true(client >= 0);
	assert_true(front_send(the_front, client, text, n + bytes + 2));
	free(text);
	return client;
}

static int answer(int client, char *out)
{
	bool ended;
	size_t n = front_receive(the_front, client, out, ANSWER_BYTES - 1, QUIET_MS, &ended);
	out[n] = 0;
	assert_true(ended);
	close(client);
	return n > 12 ? atoi(out + 9) : 0;
}

static void a_large_body_is_parsed_on_the_pool_and_a_small_one_at_once(void **state)
{
	static char large_answer[ANSWER_BYTES], small_answer[ANSWER_BYTES];
	bool ended;
	(void)state;
	pool_hold();
	int large = post(LARGE, ""), wrong = post(LARGE, ",\"wrong\":1"), small = post(8, "");
	assert_int_equal(answer(small, small_answer), 200);
	assert_int_equal(front_receive(the_front, large, large_answer, 1, SOON_MS, &ended), 0);
	assert_int_equal(front_receive(the_front, wrong, large_answer, 1, SOON_MS, &ended), 0);
	pool_release();
	assert_int_equal(answer(large, large_answer), 200);
	assert_string_equal(strstr(large_answer, "\r\n\r\n"), strstr(small_answer, "\r\n\r\n"));
	assert_int_equal(answer(wrong, large_answer), 400);
	assert_non_null(strstr(large_answer, "\"param\":\"wrong\""));
}

static void a_client_may_disconnect_while_its_body_is_parsed(void **state)
{
	static char text[ANSWER_BYTES];
	(void)state;
	pool_hold();
	close(post(LARGE, ""));
	while (front_requests(the_front) > 0)
		front_turn(the_front, 1);
	pool_release();
	assert_int_equal(answer(post(LARGE, ""), text), 200);
}

/* --- members of a body ------------------------------------------------------------------------- */

static char *print(json_t *json)
{
	char *text = json_dumps(json, JSON_COMPACT);
	assert_non_null(text);
	json_decref(json);
	return text;
}

static json_t *numbers(int n)
{
	json_t *array = json_array();
	for (int i = 0; i < n; i++)
		json_array_append_new(array, json_integer(i));
	return array;
}

static void large_members_are_kept_as_text_and_the_others_are_parsed(void **state)
{
	json_body b;
	(void)state;
	json_t *all = json_pack("{s:s, s:o, s:i, s:s%, s:[i]}", "model", "m", "prompt", numbers(20000), "n", 2, "t\"n",
	                        "\0\"", (size_t)2, "stop", 1);
	json_object_set_new(all, "text", numbers(9000));
	char *text = print(json_incref(all));
	json_body_read(&b, text, strlen(text), NULL);
	assert_non_null(b.json);
	assert_int_equal(json_object_size(b.json), 4);
	assert_int_equal(json_integer_value(json_object_get(b.json, "n")), 2);
	assert_int_equal(b.members.data[0], ',');
	b.members.data[0] = '{';
	buffer_append(&b.members, "}", 1);
	json_t *rest = json_loadb(b.members.data, b.members.used, JSON_ALLOW_NUL, NULL);
	assert_int_equal(json_object_size(rest), 2);
	assert_int_equal(json_object_update(b.json, rest), 0);
	assert_true(json_equal(b.json, all));
	json_body_fini(&b);
	json_decref(rest);
	json_decref(all);
	free(text);
}

int main(void)
{
	pool_setup();
	the_front = front_new(10000);
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(a_large_body_is_parsed_on_the_pool_and_a_small_one_at_once),
	    cmocka_unit_test(a_client_may_disconnect_while_its_body_is_parsed),
	    cmocka_unit_test(large_members_are_kept_as_text_and_the_others_are_parsed),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	front_free(the_front);
	pool_teardown();
	return failed;
}
