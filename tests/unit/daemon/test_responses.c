/* test_responses.c - generations that the engine keeps: they outlive their client, and each follower gets every event
 * once. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/daemon/requests/responses.h"
#include "engine/store/store_private.h"
#include "tests/unit/support/rig.h"

static int setup(void **state)
{
	*state = rig_new(NULL);
	return 0;
}

enum { POOL_WORKS = 16 }; /* at least as many as the pool has threads */

static uv_sem_t gate;
static uv_work_t blocks[POOL_WORKS];
static bool gate_is_closed;

static void wait_at_gate(uv_work_t *work)
{
	(void)work;
	uv_sem_wait(&gate);
}

static void passed_gate(uv_work_t *work, int cancelled)
{
	(void)work;
	(void)cancelled;
}

static void open_gate(void)
{
	gate_is_closed = false;
	for (int i = 0; i < POOL_WORKS; i++)
		uv_sem_post(&gate);
}

static int teardown(void **state)
{
	if (gate_is_closed) /* a test has failed */
		open_gate();
	rig_free(*state);
	return 0;
}

/* A completion of max_tokens `a`s that is kept as `id`. */
static json_t *kept(const char *id, int max_tokens, bool background, bool streams)
{
	return json_pack("{s:s, s:s, s:i, s:i, s:{s:i}, s:{s:s, s:{s:i}, s:b, s:b}}", "model", "m", "prompt",
	                 "word", "max_tokens", max_tokens, "temperature", 0, "logit_bias", "100", 100, "response", "id",
	                 id, "about", "n", 7, "background", background, "stream", streams);
}

static json_t *named(const char *id)
{
	return json_pack("{s:s}", "id", id);
}

static json_t *following(const char *id)
{
	return json_pack("{s:s, s:b}", "id", id, "follow", 1);
}

/* The text of all events but the first, which is about the response. */
static char *text_of(rig_call *c)
{
	assert_non_null(json_object_get(json_array_get(c->events, 0), "about"));
	json_array_remove(c->events, 0);
	return rig_text(c, 0);
}

/* A request that must fail with this status, code and param. */
static void refused(rig *d, int http, const char *code, const char *param, const char *method, json_t *params)
{
	json_t *answer = rig_ask(d, http, method, params);
	assert_string_equal(json_string_value(json_object_get(answer, "code")), code);
	assert_string_equal(json_string_value(json_object_get(answer, "param")), param);
	json_decref(answer);
}

static const char *status_of(const json_t *outcome)
{
	return json_string_value(json_object_get(outcome, "status"));
}

static void must_have_status(rig *d, const char *method, const char *id, const char *expected)
{
	json_t *outcome = rig_ask(d, 0, method, named(id));
	assert_string_equal(status_of(outcome), expected);
	json_decref(outcome);
}

/* Follow `id` to its end: one event about it, then `tokens` tokens, all of them `a`. */
static void must_have_text(rig *d, const char *id, size_t tokens)
{
	rig_call *c = rig_begin(d, "response.get", following(id), 1000);
	rig_wait(c);
	const json_t *about = json_object_get(json_array_get(c->events, 0), "about");
	assert_int_equal(json_integer_value(json_object_get(about, "n")), 7);
	char *text = text_of(c);
	assert_false(c->failed);
	assert_string_equal(status_of(c->answer), "completed");
	assert_int_equal(strlen(text), tokens);
	assert_int_equal(strspn(text, "a"), tokens);
	free(text);
	rig_call_free(c);
}

static void a_background_response_outlives_its_client(void **state)
{
	rig *d = *state;
	rig_call *c = rig_begin(d, "completion.create", kept("r1", 40, true, true), 3);
	assert_int_equal(json_array_size(c->events), 1); /* about it */
	rig_call_free(c);
	must_have_text(d, "r1", 40);
	must_have_status(d, "response.get", "r1", "completed");
	rig_reopen(d, NULL);
	must_have_text(d, "r1", 40);
}

static void a_background_response_that_does_not_stream_is_answered_at_once(void **state)
{
	rig *d = *state;
	rig_hold(d);
	json_t *answer = rig_ask(d, 0, "completion.create", kept("r1", 40, true, false));
	assert_string_equal(status_of(answer), "queued");
	json_decref(answer);
	must_have_status(d, "response.get", "r1", "queued");
	rig_release(d);
	must_have_text(d, "r1", 40);
}

static void a_follower_gets_each_event_once_at_its_own_pace(void **state)
{
	rig *d = *state;
	rig_call *slow = rig_begin(d, "completion.create", kept("r1", 40, true, true), 1);
	rig_call *idle = rig_begin(d, "response.get", following("r1"), 0);
	must_have_text(d, "r1", 40); /* neither delays it */
	assert_int_equal(json_array_size(idle->events), 0);
	while (!slow->answers) {
		const size_t before = json_array_size(slow->events);
		rig_grant(slow, 1);
		assert_true(slow->answers || json_array_size(slow->events) == before + 1);
	}
	char *text = text_of(slow);
	assert_int_equal(strlen(text), 40);
	free(text);
}

static void one_outside_the_background_is_kept_when_it_is_complete(void **state)
{
	rig *d = *state;
	rig_call *left = rig_begin(d, "completion.create", kept("r1", 40, false, true), 1000);
	rig_call_free(left);
	rig_settle(d);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
	json_t *outcome = rig_ask(d, 0, "completion.create", kept("r2", 5, false, false));
	assert_string_equal(status_of(outcome), "completed");
	assert_non_null(json_object_get(json_object_get(outcome, "result"), "usage"));
	json_decref(outcome);
	rig_reopen(d, NULL);
	must_have_text(d, "r2", 5);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
}

static void a_request_that_is_refused_is_no_response(void **state)
{
	rig *d = *state;
	json_t *params = kept("r1", 5, true, true);
	json_object_set_new(params, "model", json_string("none"));
	rig_call *c = rig_begin(d, "completion.create", params, 1000);
	rig_wait(c);
	assert_true(c->failed);
	assert_int_equal(json_array_size(c->events), 0);
	rig_call_free(c);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
	assert_int_equal(responses_count(d->engine.net.responses).bytes, 0);
	refused(d, 400, "invalid_request", "response.id", "completion.create", kept("../r", 5, true, true));
}

static void an_id_is_used_once(void **state)
{
	rig *d = *state;
	json_decref(rig_ask(d, 0, "completion.create", kept("r1", 5, true, false)));
	refused(d, 409, "conflict", "response.id", "completion.create", kept("r1", 5, true, false));
	must_have_text(d, "r1", 5);
}

static void a_cancelled_response_stays_with_what_it_has(void **state)
{
	rig *d = *state;
	rig_hold(d);
	rig_call *c = rig_begin(d, "completion.create", kept("r1", 40, true, true), 1000);
	rig_call *by = rig_begin(d, "response.cancel", named("r1"), 1000);
	assert_int_equal(by->answers, 0); /* it answers when the generation has ended */
	rig_release(d);
	rig_wait(by);
	rig_wait(c);
	assert_string_equal(status_of(by->answer), "cancelled");
	assert_string_equal(status_of(c->answer), "cancelled");
	must_have_status(d, "response.cancel", "r1", "cancelled");
	rig_drop_calls(d);
	rig_reopen(d, NULL);
	must_have_status(d, "response.get", "r1", "cancelled");
}

static void one_outside_the_background_is_cancelled_by_its_client_alone(void **state)
{
	rig *d = *state;
	rig_hold(d);
	rig_call *c = rig_begin(d, "completion.create", kept("r1", 5, false, true), 1000);
	refused(d, 409, "not_in_background", "id", "response.cancel", named("r1"));
	rig_release(d);
	rig_wait(c);
	must_have_status(d, "response.cancel", "r1", "completed"); /* it has ended */
}

static void a_deleted_response_is_gone_at_once(void **state)
{
	rig *d = *state;
	rig_hold(d);
	rig_call *c = rig_begin(d, "completion.create", kept("r1", 40, true, true), 1000);
	json_decref(rig_ask(d, 0, "response.delete", named("r1")));
	rig_wait(c);
	assert_true(c->failed);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
	rig_release(d);
	assert_int_equal(responses_count(d->engine.net.responses).bytes, 0);
	rig_drop_calls(d);
	rig_reopen(d, NULL);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
}

static void close_gate(rig *d)
{
	gate_is_closed = true;
	for (int i = 0; i < POOL_WORKS; i++)
		assert_int_equal(uv_queue_work(&d->engine.loop, &blocks[i], wait_at_gate, passed_gate), 0);
}

/* Let a response of more than STREAM_LARGE bytes be generated while the pool is blocked. Returns its client's call. */
static rig_call *large_response(rig *d, const char *id)
{
	json_t *params = kept(id, 40, true, true);
	json_object_set_new(params, "logprobs", json_integer(20));
	json_object_set_new(params, "n", json_integer(3));
	close_gate(d);
	rig_call *c = rig_begin(d, "completion.create", params, 1000);
	while (d->engine.net.streams > 1)
		uv_run(&d->engine.loop, UV_RUN_ONCE);
	char *text = json_dumps(c->events, 0);
	assert_true(strlen(text) > STREAM_LARGE);
	free(text);
	return c;
}

static void a_large_response_has_ended_when_its_row_is_stored(void **state)
{
	rig *d = *state;
	assert_int_equal(uv_sem_init(&gate, 0), 0);
	rig_call *c = large_response(d, "r1");
	assert_int_equal(c->answers, 0);
	must_have_status(d, "response.get", "r1", "in_progress");
	open_gate();
	rig_wait(c);
	assert_string_equal(status_of(c->answer), "completed");
	rig_settle(d);
	rig_reopen(d, NULL);
	must_have_status(d, "response.get", "r1", "completed");
	uv_sem_destroy(&gate);
}

static void a_response_is_large_with_all_that_its_row_has(void **state)
{
	rig *d = *state;
	json_t *params = kept("r1", 1, true, true);
	char text[STREAM_LARGE - 2048]; /* the request itself is not large */
	memset(text, 'x', sizeof text);
	json_object_set_new(json_object_get(json_object_get(params, "response"), "about"), "text",
	                    json_stringn(text, sizeof text));
	assert_int_equal(uv_sem_init(&gate, 0), 0);
	close_gate(d);
	rig_call *c = rig_begin(d, "completion.create", params, 1000);
	while (d->engine.net.streams > 1)
		uv_run(&d->engine.loop, UV_RUN_ONCE);
	assert_int_equal(c->answers, 0);
	open_gate();
	rig_wait(c);
	assert_string_equal(status_of(c->answer), "completed");
	rig_settle(d);
	uv_sem_destroy(&gate);
}

static void a_large_response_can_be_deleted_while_its_row_is_made(void **state)
{
	rig *d = *state;
	assert_int_equal(uv_sem_init(&gate, 0), 0);
	rig_call *c = large_response(d, "r1");
	json_decref(rig_ask(d, 0, "response.delete", named("r1")));
	assert_true(c->failed);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
	open_gate();
	while (uv_loop_alive(&d->engine.loop) && d->engine.loop.active_reqs.count > 0)
		uv_run(&d->engine.loop, UV_RUN_ONCE);
	rig_reopen(d, NULL);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
	uv_sem_destroy(&gate);
}

static void an_interrupted_response_has_failed_after_the_restart(void **state)
{
	rig *d = *state;
	json_t *row = json_pack("{s:s, s:s, s:b, s:{s:i}, s:s}", "id", "r1", "owner", "k",
	                        "background", 1, "about", "n", 7, "events", "");
	assert_int_equal(store_response_put(d->engine.store, "r1", row, NULL), STATUS_OK);
	json_decref(row);
	for (int i = 0; i < 2; i++) {
		rig_reopen(d, NULL);
		json_t *outcome = rig_ask(d, 0, "response.get", named("r1"));
		const json_t *failure = json_object_get(outcome, "error");
		assert_string_equal(status_of(outcome), "failed");
		assert_string_equal(json_string_value(json_object_get(failure, "code")), "unavailable");
		json_decref(outcome);
	}
}

static void the_oldest_of_an_owner_make_room(void **state)
{
	rig *d = *state;
	d->options.responses.owner_bytes = 16 << 10;
	rig_reopen(d, NULL);
	for (int i = 0; i < 4; i++) {
		char id[16];
		snprintf(id, sizeof id, "r%d", i);
		json_decref(rig_ask(d, 0, "completion.create", kept(id, 5, false, false)));
	}
	refused(d, 410, "gone", "id", "response.get", named("r0"));
	must_have_text(d, "r3", 5);
	const responses_counts counts = responses_count(d->engine.net.responses);
	assert_true(counts.evicted > 0);
	assert_true(counts.bytes <= 16 << 10);
}

static void one_without_room_fails_alone(void **state)
{
	rig *d = *state;
	d->options.responses.bytes = 6 << 10;
	rig_reopen(d, NULL);
	json_decref(rig_ask(d, 0, "completion.create", kept("r1", 50, true, false)));
	rig_call *c = rig_begin(d, "response.get", following("r1"), 1000);
	rig_wait(c);
	const json_t *failure = json_object_get(c->answer, "error");
	assert_string_equal(status_of(c->answer), "failed");
	assert_int_equal(json_integer_value(json_object_get(failure, "status")), 429);
	rig_call_free(c);
	refused(d, 404, "not_found", "id", "response.get", named("r2"));
	json_decref(rig_ask(d, 0, "completion.create", kept("r2", 1, false, false))); /* r1 makes room */
	refused(d, 410, "gone", "id", "response.get", named("r1"));
}

static void an_ended_response_expires_unless_it_is_followed(void **state)
{
	rig *d = *state;
	d->options.responses.seconds = 0;
	rig_reopen(d, NULL);
	json_decref(rig_ask(d, 0, "completion.create", kept("r1", 5, false, false)));
	rig_call *c = rig_begin(d, "response.get", following("r1"), 0);
	responses_tick(d->engine.net.responses);
	rig_grant(c, 1000);
	assert_int_equal(c->answers, 1);
	assert_false(c->failed);
	responses_tick(d->engine.net.responses);
	refused(d, 410, "gone", "id", "response.get", named("r1"));
	assert_int_equal(responses_count(d->engine.net.responses).known, 0);
	rig_call_free(c);
	rig_reopen(d, NULL);
	refused(d, 404, "not_found", "id", "response.get", named("r1"));
}

static int count_commit(void *count)
{
	++*(int *)count;
	return 0;
}

static void many_are_removed_in_one_commit(void **state)
{
	rig *d = *state;
	int commits = 0;
	d->options.responses.seconds = 0;
	rig_reopen(d, NULL);
	for (int i = 0; i < 3; i++) {
		char id[16];
		snprintf(id, sizeof id, "r%d", i);
		json_decref(rig_ask(d, 0, "completion.create", kept(id, 5, true, true)));
	}
	rig_settle(d);
	sqlite3_commit_hook(d->engine.net.store->db, count_commit, &commits);
	responses_tick(d->engine.net.responses);
	sqlite3_commit_hook(d->engine.net.store->db, NULL, NULL);
	assert_int_equal(responses_count(d->engine.net.responses).known, 0);
	assert_int_equal(commits, 1);
}

/* --- conversations ------------------------------------------------------------------------- */

/* A response of a space and letters, as a conversation without a template has it; input is stolen. id NULL: not kept.
 */
static json_t *response(const char *id, json_t *input, const char *previous)
{
	json_t *params =
	    json_pack("{s:s, s:o, s:i, s:i, s:{s:s}, s:s*}", "model", "m", "input", input, "max_output_tokens", 4,
	              "temperature", 0, "structured_outputs", "regex", " [a-z]{8}", "previous_response_id", previous);
	json_t *how = json_pack("{s:s*, s:{}, s:b}", "id", id, "about", "background", 0);
	json_object_set_new(params, "response", how);
	return params;
}

static char *text_of_response(rig *d, json_t *params)
{
	rig_call *c = rig_begin(d, "response.create", params, 1000);
	rig_wait(c);
	assert_false(c->failed);
	char *text = json_object_get(c->answer, "result") ? text_of(c) : rig_text(c, 0);
	rig_call_free(c);
	return text;
}

static void a_response_continues_the_previous_one_as_one_conversation_would(void **state)
{
	rig *d = *state;
	char *first = text_of_response(d, response("r1", json_string("a"), NULL));
	rig_reopen(d, NULL);
	char *next = text_of_response(d, response(NULL, json_string("b"), "r1"));
	char *whole = text_of_response(
	    d, response(NULL,
	                json_pack("[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]", "role", "user", "content", "a", "role",
	                          "assistant", "content", first, "role", "user", "content", "b"),
	                NULL));
	char *alone = text_of_response(d, response(NULL, json_string("b"), NULL));
	assert_string_equal(next, whole);
	assert_string_not_equal(next, alone);
	json_t *outcome = rig_ask(d, 0, "response.get", named("r1"));
	assert_null(json_object_get(json_object_get(outcome, "result"), "state")); /* the state stays in the engine */
	json_decref(outcome);
	json_t *input = rig_ask(d, 0, "response.input", named("r1"));
	assert_string_equal(json_string_value(json_object_get(input, "input")), "a");
	json_decref(input);
	free(first);
	free(next);
	free(whole);
	free(alone);
}

static void what_cannot_be_continued_is_refused_by_name(void **state)
{
	static const char param[] = "previous_response_id";
	rig *d = *state;
	json_t *row = json_pack("{s:s, s:s, s:s, s:{}, s:i, s:s, s:{s:s}}", "id", "r1", "owner", "k",
	                        "model", "m", "about", "ended", 1, "events", "", "outcome", "status", "completed");
	assert_int_equal(store_response_put(d->engine.store, "r1", row, NULL), STATUS_OK);
	json_object_set_new(row, "id", json_string("r5"));
	json_object_set_new(row, "state", json_string("AAAA"));
	assert_int_equal(store_response_put(d->engine.store, "r5", row, NULL), STATUS_OK);
	json_decref(row);
	d->options.responses.seconds = 1 << 30;
	rig_reopen(d, NULL);
	refused(d, 400, "unsupported", param, "response.create", response(NULL, json_string("b"), "r1"));
	refused(d, 400, "corrupt_data", param, "response.create", response(NULL, json_string("b"), "r5"));
	refused(d, 404, "not_found", param, "response.create", response(NULL, json_string("b"), "r2"));
	rig_hold(d);
	json_decref(rig_ask(d, 0, "completion.create", kept("r3", 40, true, false)));
	refused(d, 409, "response_in_progress", param, "response.create", response(NULL, json_string("b"), "r3"));
	rig_call *c = rig_begin(d, "response.cancel", named("r3"), 1000);
	rig_release(d);
	rig_wait(c);
	refused(d, 409, "response_failed", param, "response.create", response(NULL, json_string("b"), "r3"));
	json_t *other = response(NULL, json_string("b"), "r4");
	json_decref(rig_ask(d, 0, "response.create", response("r4", json_string("a"), NULL)));
	json_object_set_new(other, "model", json_string("n"));
	refused(d, 400, "invalid_request", param, "response.create", other);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(a_background_response_outlives_its_client),
	    CASE(a_background_response_that_does_not_stream_is_answered_at_once),
	    CASE(a_follower_gets_each_event_once_at_its_own_pace),
	    CASE(one_outside_the_background_is_kept_when_it_is_complete),
	    CASE(a_request_that_is_refused_is_no_response),
	    CASE(an_id_is_used_once),
	    CASE(a_cancelled_response_stays_with_what_it_has),
	    CASE(one_outside_the_background_is_cancelled_by_its_client_alone),
	    CASE(a_deleted_response_is_gone_at_once),
	    CASE(a_large_response_has_ended_when_its_row_is_stored),
	    CASE(a_response_is_large_with_all_that_its_row_has),
	    CASE(a_large_response_can_be_deleted_while_its_row_is_made),
	    CASE(an_interrupted_response_has_failed_after_the_restart),
	    CASE(the_oldest_of_an_owner_make_room),
	    CASE(one_without_room_fails_alone),
	    CASE(an_ended_response_expires_unless_it_is_followed),
	    CASE(many_are_removed_in_one_commit),
	    CASE(a_response_continues_the_previous_one_as_one_conversation_would),
	    CASE(what_cannot_be_continued_is_refused_by_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
